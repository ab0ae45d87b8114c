"""Whether two sides can be compared at all, and what else makes a comparison doubtful: each reason by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe.comparison.changes import is_estimated
from nsyspipe.comparison.series import MIN_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nsyspipe.comparison.difference import Side
    from nsyspipe.run.run import Run


# A reason to doubt a comparison, and what is told of both sides for it.


UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Check:
    """One reason for doubt: a row of `tables.COMPARABILITY`."""

    check: str
    blocks: bool
    baseline: str
    candidate: str
    message: str

    def row(self) -> dict[str, object]:
        """Return it as a row."""
        return asdict(self)


def differing(
    name: str,
    what: str,
    baseline: Side,
    candidate: Side,
    told: Callable[[Run], str],
    *,
    blocks: bool = True,
) -> Iterator[Check]:
    """Yield a check if what is told of the captures is not the same of all."""
    values = {told(run) for run in (*baseline.runs, *candidate.runs)}
    if len(values) == 1:
        return
    both = [said(side, told) for side in (baseline, candidate)]
    yield check(name, what, both, blocks=blocks)


def check(
    name: str, what: str, sides: Sequence[str], *, blocks: bool = False, after: str = ""
) -> Check:
    """Return a check whose message has both sides in it."""
    before, now = sides
    return Check(name, blocks, before, now, f"{what}: baseline {before}, candidate {now}{after}")


def said(side: Side, told: Callable[[Run], str]) -> str:
    """Return what is told of a side's captures, each once."""
    return " | ".join(dict.fromkeys(told(run) for run in side.runs))


# From this share of step time on, the profiler's own work changes what it measures.
_MUCH_OVERHEAD = 0.01
# What a run sends in a step may differ a little with padding.
_SAME_BYTES = 0.01
_SHOWN = 6
_NONE = "none"
_GPU = "recorded"


def check_comparable(baseline: Side, candidate: Side) -> list[Check]:
    """Return what speaks against comparing two sides; what blocks comes first.

    Blocking: another world size, another GPU model, ranks missing that the other side has, no GPU activity on one
    side only, steps on one side only. A warning: the same lacking on both sides, other step families or numbers of skipped steps, other
    message bytes, captures that distort (profiler overhead, cut-off steps, other traces, parts not recorded on one side), times
    of kernels that are estimated, fewer than 3 summary steps, and one capture on both sides.
    """
    found = [check for test in _TESTS for check in test(baseline, candidate)]
    return sorted(found, key=lambda check: not check.blocks)


def _world_sizes(baseline: Side, candidate: Side) -> Iterator[Check]:
    runs = (*baseline.runs, *candidate.runs)
    is_known = all(run.header.world_size is not None for run in runs)
    what = "world size" if is_known else "number of ranks"
    yield from differing(
        "world-size",
        what,
        baseline,
        candidate,
        lambda run: str(run.header.world_size if is_known else run.header.n_ranks),
    )


def _gpus(baseline: Side, candidate: Side) -> Iterator[Check]:
    def model(run: Run) -> str:
        return ", ".join(run.header.gpu_names) or UNKNOWN

    is_known = all(run.header.gpu_names for run in (*baseline.runs, *candidate.runs))
    yield from differing("gpu-model", "GPU model", baseline, candidate, model, blocks=is_known)


def _without_gpu(baseline: Side, candidate: Side) -> Iterator[Check]:
    has_gpu = [run.header.n_ranks > 0 for run in (*baseline.runs, *candidate.runs)]
    if all(has_gpu):
        return
    before, now = (said(side, _gpu_activity) for side in (baseline, candidate))
    lacking = [name for name, said in (("baseline", before), ("candidate", now)) if said != _GPU]
    message = f"no GPU activity was recorded: {' and '.join(lacking)}"
    yield Check("no-gpu-activity", any(has_gpu), before, now, message)


def _same_capture(baseline: Side, candidate: Side) -> Iterator[Check]:
    """Warn of a baseline that is the candidate: a gate on them always passes."""
    for run in candidate.runs:
        for other in baseline.runs:
            if _is_one_capture(other, run):
                before, now = other.header.label, run.header.label
                message = f"the same capture is on both sides: {before}"
                yield Check(
                    "same-capture", blocks=False, baseline=before, candidate=now, message=message
                )
                return


def _is_one_capture(one: Run, other: Run) -> bool:
    """Tell by what no two captures share, under whatever run ids they were saved; the cheap first."""
    at = one.header.captured_at_utc
    return at is not None and at == other.header.captured_at_utc and _work(one) == _work(other)


def _work(run: Run) -> tuple[object, object]:
    ranks = run.ranks.select(["rank", "pid", "n_kernels"]).to_pylist()
    return run.summary()["step_time_ns"][0].as_py(), ranks


def _gpu_activity(run: Run) -> str:
    return _GPU if run.header.n_ranks else UNKNOWN


def _missing_ranks(baseline: Side, candidate: Side) -> Iterator[Check]:
    missing = [_missing(run) for run in (*baseline.runs, *candidate.runs)]
    if not any(missing):
        return
    is_same = len({tuple(one) for one in missing}) == 1
    sides = [_listed(_missing(run) for run in side.runs) for side in (baseline, candidate)]
    yield check("missing-ranks", "ranks without a report", sides, blocks=not is_same)


def _missing(run: Run) -> list[int]:
    if not run.header.n_ranks:
        return []  # its reports are there, and say nothing of GPUs
    present = set(run.ranks["rank"].to_pylist())
    size = run.header.world_size or 0
    # A count is enough to compare by; of a damaged report it may be any number.
    return [rank for rank in range(min(size, 1 << 16)) if rank not in present]


def _listed(missing: Iterator[list[int]]) -> str:
    texts = []
    for ranks in missing:
        more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
        texts.append(", ".join(map(str, ranks[:_SHOWN])) + more if ranks else _NONE)
    return " | ".join(dict.fromkeys(texts))


def _sources(baseline: Side, candidate: Side) -> Iterator[Check]:
    """Figures of a step are not those of a capture; what has no GPU activity is said elsewhere."""
    runs = (*baseline.runs, *candidate.runs)
    if all(run.header.n_ranks for run in runs):
        yield from differing(
            "steps-from",
            "steps come from",
            baseline,
            candidate,
            lambda run: "nothing: a capture" if run.is_capture else str(run.header.steps_from),
        )


def _families(baseline: Side, candidate: Side) -> Iterator[Check]:
    yield from differing(
        "step-family",
        "steps are",
        baseline,
        candidate,
        lambda run: repr(run.step_family) if run.step_family else "the whole capture",
        blocks=False,
    )
    yield from differing(
        "skipped-steps",
        "steps skipped at the start",
        baseline,
        candidate,
        lambda run: str(len(run.skipped_steps)),
        blocks=False,
    )


def _messages(baseline: Side, candidate: Side) -> Iterator[Check]:
    means = []
    for side in (baseline, candidate):
        values = [run.summary()["message_bytes_per_step"][0].as_py() for run in side.runs]
        known = [value for value in values if value is not None]
        means.append(sum(known) / len(known) if known and len(known) == len(values) else None)
    before, after = means
    if before is None or after is None or abs(after - before) <= _SAME_BYTES * max(before, after):
        return
    texts = [f"{mean:.0f} bytes" for mean in (before, after)]
    yield check("message-bytes", "messages of a step have", texts)


def _distortion(baseline: Side, candidate: Side) -> Iterator[Check]:
    shares = [[_overhead_share(run) for run in side.runs] for side in (baseline, candidate)]
    if any(share >= _MUCH_OVERHEAD for side in shares for share in side):
        texts = [" | ".join(f"{100 * share:.1f} %" for share in side) for side in shares]
        yield check("profiler-overhead", "the profiler's own work takes of the steps", texts)
    if all(_traced(run) != UNKNOWN for run in (*baseline.runs, *candidate.runs)):
        yield from differing("traces", "traced", baseline, candidate, _traced, blocks=False)
    # A capture that lacks something measures less, whatever the program did.
    yield from differing(
        "recorded",
        "problems of the captures",
        baseline,
        candidate,
        lambda run: ", ".join(_grave(run)) or _NONE,
        blocks=False,
    )


def _overhead_share(run: Run) -> float:
    steps = run.breakdown()
    overhead, wall = (pc.sum(steps[name]).as_py() for name in ("overhead_ns", "wall_ns"))
    return float(overhead / wall) if overhead and wall else 0.0


def _traced(run: Run) -> str:
    capture = run.header.capture
    return ", ".join(sorted(capture.trace)) if capture and capture.trace else UNKNOWN


def _grave(run: Run) -> list[str]:
    problems = run.problems
    grave = problems.filter(pc.not_equal(problems["severity"], "info"))
    return sorted(grave["code"].unique().to_pylist())


def _cut_off(baseline: Side, candidate: Side) -> Iterator[Check]:
    words = [said(side, _cut_off_words) for side in (baseline, candidate)]
    if any(text != _NONE for text in words):
        yield check("cut-off-steps", "cut-off steps among the figures'", words)


def _cut_off_words(run: Run) -> str:
    if run.is_capture:
        return _NONE  # it has no steps
    steps = run.breakdown()
    is_complete = pc.all(steps["is_complete"], min_count=0).as_py()
    return _NONE if is_complete else "some"


def _estimated_kernels(baseline: Side, candidate: Side) -> Iterator[Check]:
    def told(run: Run) -> str:
        return "estimated from the whole capture" if is_estimated(run) else "counted"

    words = [said(side, told) for side in (baseline, candidate)]
    if any(text != "counted" for text in words):
        again = "; analyze the reports again with --out if an older nsyspipe saved them"
        yield check("kernel-times", "times of kernels per step are", words, after=again)


def _too_few(baseline: Side, candidate: Side) -> Iterator[Check]:
    if not all(
        run.header.n_ranks and not run.is_capture for run in (*baseline.runs, *candidate.runs)
    ):
        return  # more steps are not what is lacking
    numbers = [
        [run.summary()["n_summary_steps"][0].as_py() for run in side.runs]
        for side in (baseline, candidate)
    ]
    if all(number >= MIN_STEPS for side in numbers for number in side):
        return
    texts = [" | ".join(map(str, side)) for side in numbers]
    enough = f"; {MIN_STEPS} are the least, 20 are better"
    yield check("few-steps", "too few summary steps", texts, after=enough)


_TESTS = (
    _same_capture,
    _world_sizes,
    _without_gpu,
    _gpus,
    _missing_ranks,
    _sources,
    _families,
    _messages,
    _distortion,
    _cut_off,
    _estimated_kernels,
    _too_few,
)
