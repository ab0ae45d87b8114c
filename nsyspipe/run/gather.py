"""The work on one report, a plain function of a path that returns small tables, and all reports on one step family.

Any `concurrent.futures.Executor` can run it. The step family is a decision of the whole run, which
one report cannot take: the digest holds every candidate, and windows for the one that would win
if this report were alone. Where the run decides otherwise, that report is digested again.
"""

from __future__ import annotations

import contextlib
import re
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import pyarrow as pa

from nsyspipe.analysis.attribution import by_process, distinct, launch_times
from nsyspipe.analysis.intervals import union
from nsyspipe.analysis.phases import between_steps, phase_codes
from nsyspipe.analysis.step_families import TextFamilies, candidates, choose, choose_host, largest_families
from nsyspipe.errors import OptionError
from nsyspipe.model.names import is_optimizer
from nsyspipe.nsys.files import check_file
from nsyspipe.reader.metadata import Capture, read_capture
from nsyspipe.run.digest import HostDigest, ProcessDigest, digest_hosts, digest_process, host_candidates, step_members
from nsyspipe.run.process import ProcessEvents, ReportContext
from nsyspipe.run.sidecars import Captured, believe, with_captured_facts
from nsyspipe.run.workers import PRELOAD, SerialExecutor, executor_for, telling_shortage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from nsyspipe.analysis.attribution import ProcessOperations
    from nsyspipe.model.options import Reading
    from nsyspipe.model.problems import Problem
    from nsyspipe.reader.metadata import ReportFacts
    from nsyspipe.reader.payload import CommRank
    from nsyspipe.reader.sidecar import FoundSidecars


@dataclass(frozen=True)
class ReportDigest:
    """What the run needs of one report."""

    path: str
    facts: ReportFacts
    # mpi_ranks, comm_ranks: rank by process, from MPI's thread names and from NCCL's payload
    mpi_ranks: dict[int, int]
    comm_ranks: dict[int, CommRank]
    comm_sizes: dict[int, int]  # number of ranks by communicator, from the same
    processes: tuple[ProcessDigest, ...]
    # In a report without device activity the processes with ranges of their own
    hosts: tuple[HostDigest, ...]
    # The step family that the windows rest on, or the hosts' steps; None when the capture is one window
    family: str | None
    # The families of ranges that no step pattern names and their number of ranges, most time first
    families: tuple[tuple[str, int], ...]
    n_named_steps: int | None  # ranges that the step pattern matches; None without one
    # name_column, open_end_ns: what a second reading must not decide anew: where kernels' names come from, and when
    # ranges that were never closed end
    name_column: str | None
    open_end_ns: int | None
    n_graphs: int  # CUDA graphs that were captured as a whole
    # n_nccl_ranges, n_message_bytes: NVTX ranges of NCCL, and calls of NCCL whose message size can be read
    n_nccl_ranges: int
    n_message_bytes: int
    # Whether anything says that its processes communicate: a kernel, or NCCL or MPI in NVTX
    has_communication: bool
    # Why NCCL does not say how many bytes it sends: a key of `problems.SIZE_GAPS`; None where it does
    size_gap: str | None
    problems: tuple[Problem, ...]

    @property
    def hosts_with_steps(self) -> list[HostDigest]:
        """The processes that stand for ranks where no report of the run has device activity."""
        return [one for one in self.hosts if one.members.num_rows]


def digest_report(path: str, reading: Reading, family: str | None = None, *, is_decided: bool = False) -> ReportDigest:
    """Read one report and reduce it to small tables.

    It chooses the best step family of its own, unless the run has decided on one; None of it makes each rank's capture
    one window. `InputError` if the file cannot be used.
    """
    capture = read_capture(path, reading.comm_kernel)
    ranges = capture.ranges.table
    texts = ranges["text"].combine_chunks() if ranges.num_rows else _NO_TEXTS
    named = TextFamilies.by_text(texts.dictionary)
    families = TextFamilies.by_option(texts.dictionary, reading.step) if reading.step else named
    is_named = families.of_text[texts.indices.to_numpy()] == 0 if reading.step else None
    others = ranges if is_named is None else ranges.filter(pa.array(~is_named))
    events = _split(capture)
    context = ReportContext(
        families=families,
        codes=phase_codes(named, reading.phases),
        names=capture.operations.names,
        recorded=capture.recorded,
        overhead=None if capture.overhead is None else union(*capture.overhead),
    )
    found = [
        candidates(one.ranges, families, one.operations, _optimizer_launches(one.operations, context.names))
        for one in events
    ]
    hosts = {} if events else host_candidates(ranges, families)
    if not is_decided:
        own = [[one for _, one in hosts.values()]]
        best = choose(found, [0] * len(found)) if events else choose_host(own, [0])
        family = None if reading.is_capture else best
    members = [step_members(one, families, own, family) for one, own in zip(events, found, strict=True)]
    host = [
        between_steps(one.ranges, context.codes, own, capture.calls.all)
        for one, own in zip(events, members, strict=True)
    ]
    capture = capture.without_events()  # most of the memory, not needed any more
    digests = [
        digest_process(one, context, own, steps, between, family=family)
        for one, own, steps, between in zip(events, found, members, host, strict=True)
    ]
    sizes = (capture.payloads.comm_sizes[name].to_pylist() for name in ("comm_id", "n_ranks"))
    gap = capture.payloads.size_gap
    return ReportDigest(
        path=path,
        facts=capture.facts,
        mpi_ranks=capture.ranges.mpi_ranks,
        comm_ranks=capture.payloads.comm_ranks,
        comm_sizes=dict(zip(*sizes, strict=True)),
        processes=tuple(digest for digest, _ in digests),
        hosts=digest_hosts(hosts, families, context.codes, family, capture.ranges.open_end_ns),
        family=family,
        families=largest_families(others, named, _MOST_FAMILIES),
        n_named_steps=None if is_named is None else int(np.count_nonzero(is_named)),
        name_column=capture.operations.name_column,
        open_end_ns=capture.ranges.open_end_ns,
        n_graphs=capture.operations.n_graphs,
        n_nccl_ranges=capture.ranges.n_nccl,
        n_message_bytes=len(capture.payloads.table["message_bytes"].drop_null()),
        has_communication=capture.ranges.has_communication or any(digest.n_comm for digest, _ in digests),
        size_gap=gap if gap is None or capture.ranges.n_nccl else "no-ranges",
        problems=(*capture.problems, *(one for _, problems in digests for one in problems)),
    )


_NO_TEXTS = pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), pa.array([], pa.string()))


def _optimizer_launches(operations: ProcessOperations, names: Mapping[int, str]) -> NDArray[np.int64] | None:
    """Return when the kernels that update the weights were launched, sorted; None where none is known by its name."""
    ids = [number for number, name in names.items() if is_optimizer(name)]
    if not ids:
        return None
    own = np.isin(operations.kernel_column("name_id", 0, operations.n_launched), ids)
    found: NDArray[np.int64] = operations.kernel_launch[: operations.n_launched][own]
    return found if found.size else None


def _split(capture: Capture) -> list[ProcessEvents]:
    """Return the events of each process with device activity, in order of process id."""
    kernels, copies = capture.operations.kernels, capture.operations.copies
    processes = np.union1d(distinct(kernels["process_id"]), distinct(copies["process_id"])).tolist()
    tables = {
        "kernels": kernels,
        "copies": copies,
        "launches": capture.calls.launches,
        "ranges": capture.ranges.table,
        "payloads": capture.payloads.table,
        "blocking_calls": capture.calls.blocking,
        "waits": capture.calls.waits,
        "calls": capture.calls.all,
    }
    nothing = [None] * len(processes)
    split = [nothing if table is None else by_process(table, processes) for table in tables.values()]
    found = []
    for process, *parts in zip(processes, *split, strict=True):
        own = dict(zip(tables, parts, strict=True))
        launches = own.pop("launches")
        times = [launch_times(own[name], launches) for name in ("kernels", "copies")]
        found.append(ProcessEvents.of(process, *times, **own))
    return found


# Digest all reports of a run, agree on one step family, and digest again those that chose another.


# What a range of one step may be called.
_ONE_STEP = re.compile(r"(?i)(?<![a-z])(step|iter|iteration|batch)(?![a-z])")
_MOST_FAMILIES, _LARGEST_FAMILIES, _NAMED_FAMILIES = 1000, 8, 6


@dataclass(frozen=True)
class Gathered:
    """The digests of a run's reports, all on one step family."""

    digests: tuple[ReportDigest, ...]
    captured: Captured  # what those sidecars say that are of these reports
    family: str | None
    why_no_steps: str | None  # why there is no family; None when there is one


def gather(
    paths: Sequence[Path],
    reading: Reading,
    sidecars: FoundSidecars | None = None,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Gathered:
    """Digest the reports of a run; what a sidecar names the steps goes before what is found.

    Raises the `InputError` of the first report that cannot be used, and an `OptionError` if a step pattern matches
    nothing.
    """
    for path in paths:
        check_file(path)  # all of them, before any is read
    own = executor_for(paths, jobs, preload=PRELOAD)
    with contextlib.nullcontext(executor) if executor else own as running:
        digests = _digest_all(running, [(str(path),) for path in paths], reading, on_progress)
        asks = reading.step is None and not reading.is_capture
        captured = believe(sidecars, digests, asks_for_steps=asks) if sidecars else Captured()
        digests, family, why = _agreed(running, digests, reading, captured.family)
    return Gathered(with_captured_facts(digests, captured), captured, family, why)


def _agreed(
    running: Executor, digests: list[ReportDigest], reading: Reading, named: str | None
) -> tuple[list[ReportDigest], str | None, str | None]:
    """Bring all digests to one family, that which sidecars name if they do; and say why there is none."""
    if reading.is_capture:
        return digests, None, "as --step none asks for"
    if not any(digest.processes for digest in digests):  # a pattern that matches nothing is no error
        family = named or choose_host_family(digests)
        why = None if family is not None else "no process has any"
        return _redo(running, digests, reading, family), family, why
    family = named or choose_family(digests)
    if family is None and reading.step is not None:
        raise _no_match(reading.step.pattern, digests)
    digests = _redo(running, digests, reading, family)
    if family is None:
        return digests, None, _why_none(digests)
    if not any(one.windows.num_rows for digest in digests for one in digest.processes):
        shown = reading.step.pattern if reading.step else family
        why = f"{shown!r} ranges launched no kernel"
        return _redo(running, digests, reading, None), None, why
    return digests, family, None


def _why_none(digests: Sequence[ReportDigest]) -> str:
    """Say why no family is of steps: none qualifies, or one named like a step is there just once on every rank."""
    own = [digest for digest in digests if digest.processes]
    for name, _ in own[0].families[:_LARGEST_FAMILIES] if own else ():
        if _ONE_STEP.search(name) and all(
            dict(digest.families[:_LARGEST_FAMILIES]).get(name) == len(digest.processes) for digest in own
        ):
            pattern = name.replace("#", "[0-9]+")
            return (
                f"there is one range {name!r} on every rank, and one step does not show what is usual: capture 10 or more, "
                f"or ask for it with --step '^{pattern}$'"
            )
    return "no family of NVTX ranges qualifies on every rank"


def _redo(running: Executor, digests: list[ReportDigest], reading: Reading, family: str | None) -> list[ReportDigest]:
    """Digest again the reports whose windows, or whose hosts' steps, rest on another family."""
    has_ranks = any(digest.processes for digest in digests)
    wrong = [
        at
        for at, digest in enumerate(digests)
        if digest.family != family and (digest.processes if has_ranks else digest.hosts)
    ]
    calls = [(digests[at].path, family) for at in wrong]
    again = dict(zip(wrong, _digest_all(running, calls, reading, None), strict=True))
    return [again.get(at, digest) for at, digest in enumerate(digests)]


def _digest_all(
    running: Executor,
    calls: Sequence[tuple[str] | tuple[str, str | None]],
    reading: Reading,
    on_progress: Callable[[int, int], None] | None,
) -> list[ReportDigest]:
    """Digest reports by path, on a family where one is decided on."""
    works_at_once = isinstance(running, SerialExecutor)  # while submitting
    futures: list[Future[ReportDigest]] = []
    try:
        with telling_shortage():
            for path, *family in calls:
                futures.append(running.submit(digest_report, path, reading, *family, is_decided=bool(family)))
                if works_at_once:
                    futures[-1].result()  # stop at the first error
                    if on_progress:
                        on_progress(len(futures), len(calls))
            if on_progress and not works_at_once:
                for n_done, _ in enumerate(as_completed(futures), start=1):
                    on_progress(n_done, len(calls))
            return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _no_match(pattern: str, digests: Sequence[ReportDigest]) -> OptionError:
    families: dict[str, int] = {}
    for digest in digests:
        for name, n_ranges in digest.families[:_LARGEST_FAMILIES]:
            families[name] = families.get(name, 0) + n_ranges
    shown = ", ".join(f"{name!r} ({n})" for name, n in list(families.items())[:_NAMED_FAMILIES])
    example = next(iter(families), "step #").replace("#", "[0-9]+")
    return OptionError(
        f"--step {pattern!r}",
        "matches no NVTX range, needed for steps",
        found=shown or "no NVTX ranges at all",
        fix=f"leave --step out, or name one of these, digits as [0-9]+: --step '^{example}$'",
    )


# The processes of a run, each with its place on the common clock.


P = TypeVar("P", ProcessDigest, HostDigest)


@dataclass(frozen=True)
class Placed(Generic[P]):
    """A process with device activity, or with steps in a run without any, and where it comes from."""

    argument: int  # position of its report among the run's
    report: ReportDigest
    process: P
    shift_ns: int  # added to report time to get aligned time
    is_alone: bool = True  # whether its report holds no other rank

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of its operations, or of its steps, aligned time."""
        first, last = self.process.span
        return first + self.shift_ns, last + self.shift_ns


def place(digests: Sequence[ReportDigest]) -> list[Placed[ProcessDigest]]:
    """List the processes of a run, in order of argument."""
    return _placed(digests, [digest.processes for digest in digests])


def place_hosts(digests: Sequence[ReportDigest]) -> list[Placed[HostDigest]]:
    """List the processes with steps of a run without device activity, in order of argument."""
    return _placed(digests, [digest.hosts_with_steps for digest in digests])


def _placed(digests: Sequence[ReportDigest], processes: Sequence[Sequence[P]]) -> list[Placed[P]]:
    shifts = clock_shifts(digests)
    return [
        Placed(argument, digest, one, shifts[argument], len(own) == 1)
        for argument, (digest, own) in enumerate(zip(digests, processes, strict=True))
        for one in own
    ]


def clock_shifts(digests: Sequence[ReportDigest]) -> list[int]:
    """Return what turns each report's time into aligned time: its session start less the earliest.

    Zeros when any report that holds a rank does not say when its session started; without any rank, when any that
    holds steps does not.
    """
    starts = [digest.facts.session_start_utc_ns for digest in digests]
    has_ranks = any(digest.processes for digest in digests)
    if any(
        (digest.processes if has_ranks else digest.hosts) and start is None
        for digest, start in zip(digests, starts, strict=True)
    ):
        return [0] * len(starts)
    first = min((start for start in starts if start is not None), default=0)
    return [0 if start is None else start - first for start in starts]


def choose_host_family(digests: Sequence[ReportDigest]) -> str | None:
    """Decide on the step family of a run without device activity; None for none."""
    own = [[host.candidates for host in digest.hosts] for digest in digests]
    return choose_host(own, clock_shifts(digests))


def choose_family(digests: Sequence[ReportDigest]) -> str | None:
    """Decide on the step family of a run; None for none."""
    placed = place(digests)
    return choose([one.process.candidates for one in placed], [one.shift_ns for one in placed])
