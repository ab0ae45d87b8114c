"""What the steps of each rank work on: from the options of the user, else from the sidecars.

The datatype of the peak is from the option, else from the names of kernels.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.work import RankWork, n_faster_than_peak
from nsyspipe.model.captured import WorkPerStep
from nsyspipe.model.matrix_datatypes import MIN_SHARE_OF_DATATYPE, DatatypeShares, MatrixTimes
from nsyspipe.model.names import KERNEL_NAMES, OPTION
from nsyspipe.model.peaks import DATATYPES, peak_flops_per_s, peaks_of
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.typed_tables import StepsTable
from nsyspipe.model.work import AskedWork
from nsyspipe.run.digests import Rank, Ranks
from nsyspipe.run.process import ProcessDigest
from nsyspipe.run.sidecars import RunSidecars

# A problem names this many values.
_MAX_SHOWN_VALUES = 3
_NO_WORK = WorkPerStep()


class RunWork(Struct, frozen=True):
    """What the steps of a run work on."""

    # In the order of the ranks.
    ranks: tuple[RankWork, ...] = ()
    problems: tuple[Problem, ...] = ()


def work_of_run(ranks: Ranks, sidecars: RunSidecars, asked: AskedWork) -> RunWork:
    """Return the work of each rank, with a problem for each contradiction and unknown peak.

    An option has priority over the sidecars. Tokens and samples are of the whole job. If sidecars
    have different numbers of tokens or samples, the number is not known.
    """
    recorded = [_recorded_work(rank, sidecars) for rank in ranks]
    problems = [*_contradictions(recorded, asked)]
    tokens = _of_job([work.tokens for work in recorded], asked.tokens)
    samples = _of_job([work.samples for work in recorded], asked.samples)
    works = []
    for rank, work in zip(ranks, recorded, strict=True):
        flops = work.flops if asked.flops is None else asked.flops
        work_of_rank = RankWork(tokens=tokens, samples=samples, flops=flops)
        works.append(_with_peak(work_of_rank, rank, asked))
    problems += _problems_of_peak(ranks, works)
    return RunWork(tuple(works), tuple(problems))


def _with_peak(work: RankWork, rank: Rank[ProcessDigest], asked: AskedWork) -> RankWork:
    """Add the peak of a rank's GPU for the datatype of its work.

    The datatype is that of the option, else that of the rank's kernels. If neither gives a
    datatype, nothing is added.
    """
    if asked.datatype is not None:
        datatype: str | None = asked.datatype
        source = OPTION
    else:
        datatype = _matrix_times([rank]).shares().datatype
        source = KERNEL_NAMES
    if datatype is None:
        return work
    return replace(
        work,
        peak_flops_per_s=peak_flops_per_s(_gpu_name(rank), datatype),
        peak_datatype=datatype,
        peak_datatype_source=source,
    )


def _matrix_times(ranks: Iterable[Rank[ProcessDigest]]) -> MatrixTimes:
    """Return the time of the matrix kernels of some ranks, in all their captures."""
    parts = [part.process.matrix_times for rank in ranks for part in rank.parts]
    return MatrixTimes.total(parts)


def with_problems_of_steps(work: RunWork, steps: StepsTable) -> RunWork:
    """Add the problem that steps are faster than the peak of their GPU, if they are."""
    compute_of_steps = steps.select(["ideal_compute_ns", "compute_ns"])
    summary_steps = compute_of_steps.filter(steps["in_summary"])
    n_faster = n_faster_than_peak(summary_steps)
    if not n_faster:
        return work
    row = problem("faster-than-peak", n=n_faster, total=summary_steps.num_rows)
    return replace(work, problems=(*work.problems, row))


def _recorded_work(rank: Rank[ProcessDigest], sidecars: RunSidecars) -> WorkPerStep:
    """Return the work of a rank in the sidecar of its first capture that says it."""
    for part in rank.parts:
        entry = sidecars.rank_of(part.argument, part.process.pid, is_alone=part.is_alone)
        if entry is not None and entry.work_per_step is not None:
            return entry.work_per_step
    return _NO_WORK


def _of_job(recorded: Sequence[int | None], asked: int | None) -> int | None:
    """Return a count of the whole job; None if nothing says, or if sidecars differ."""
    if asked is not None:
        return asked
    known = _known(recorded)
    return known[0] if len(known) == 1 else None


def _known(values: Sequence[int | None]) -> list[int]:
    """Return the different values that are known, in ascending order."""
    return sorted({value for value in values if value is not None})


def _contradictions(recorded: Sequence[WorkPerStep], asked: AskedWork) -> Iterator[Problem]:
    """Yield where an option replaces what the sidecars say, and where the sidecars differ.

    FLOPs may differ, because they are of each rank.
    """
    for name in ("tokens", "samples", "flops"):
        known = _known([getattr(work, name) for work in recorded])
        values = ", ".join(map(str, known[:_MAX_SHOWN_VALUES]))
        asked_value = getattr(asked, name)
        option = f"--{name}-per-step"
        if asked_value is not None and known and known != [asked_value]:
            yield problem("work-replaced", option=option, asked=asked_value, values=values)
        elif asked_value is None and len(known) > 1 and name != "flops":
            yield problem("work-differs", what=name, values=values, option=option)


def _problems_of_peak(ranks: Ranks, works: Sequence[RankWork]) -> Iterator[Problem]:
    """Yield why ranks with known FLOPs have no MFU."""
    without_datatype: list[Rank[ProcessDigest]] = []
    without_peak: set[tuple[str, str]] = set()
    for rank, work in zip(ranks, works, strict=True):
        if work.flops is None or work.peak_flops_per_s is not None:
            continue
        if work.peak_datatype is None:
            without_datatype.append(rank)
        else:
            without_peak.add((_gpu_name(rank) or "", work.peak_datatype))
    if without_datatype:
        yield _problem_of_datatype(_matrix_times(without_datatype).shares())
    for gpu, datatype in sorted(without_peak):
        if peaks_of(gpu) is None:
            yield problem("gpu-without-peak", gpu=gpu or "a GPU without a recorded name")
        else:
            yield problem("datatype-without-peak", gpu=gpu, datatype=datatype)


def _problem_of_datatype(shares: DatatypeShares) -> Problem:
    """Return the problem that the names of kernels give no datatype, because of their shares."""
    datatypes = ", ".join(DATATYPES)
    if not shares.of_datatypes:
        return problem("no-datatype", datatypes=datatypes)
    percents = [f"{name} {share:.1%}" for name, share in shares.of_datatypes.items()]
    if shares.unknown:
        percents.append(f"unknown {shares.unknown:.1%}")
    shown = ", ".join(percents)
    least = f"{MIN_SHARE_OF_DATATYPE:.0%}"
    return problem("mixed-datatypes", least=least, shares=shown, datatypes=datatypes)


def _gpu_name(rank: Rank[ProcessDigest]) -> str | None:
    return rank.report.facts.gpu_name(rank.process.pid, rank.process.device_id)
