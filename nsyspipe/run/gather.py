"""The work on one report, which any executor can run, and all reports on one step family, for which some are redone."""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from nsyspipe.analysis.comm_calls import Called
from nsyspipe.analysis.devices import operations_by_process, processes_with_operations
from nsyspipe.analysis.phases import between_steps, phase_codes
from nsyspipe.analysis.repeated_steps import aligned_numbers
from nsyspipe.analysis.steps import REPETITION, TextFamilies, choose, choose_host, largest_families
from nsyspipe.errors import DamagedReportError, OptionError
from nsyspipe.model import canonical
from nsyspipe.model.comm_kernels import LIKE_COMMUNICATION
from nsyspipe.model.names import (
    PHASE_PATTERNS,
    PHASES,
    few,
    is_part_of_step,
    is_step_name,
    kernel_label,
)
from nsyspipe.model.options import Reading
from nsyspipe.model.problems import MORE_STEPS, Problem, problem
from nsyspipe.model.table import Int64
from nsyspipe.nsys.files import check_file
from nsyspipe.reader.metadata import Capture, ReportFacts, read_capture
from nsyspipe.reader.operations import Operations
from nsyspipe.reader.report import Zones
from nsyspipe.reader.sidecar import FoundSidecars
from nsyspipe.reader.tables import release_memory
from nsyspipe.run.captures import (
    candidates_of,
    capture_numbers,
    captures_of_processes,
    joined_ranks,
)
from nsyspipe.run.process import (
    HostDigest,
    ProcessDigest,
    ProcessSteps,
    digest_process,
    process_events,
)
from nsyspipe.run.sidecars import RunSidecars, run_sidecars, with_sidecar_facts
from nsyspipe.run.step_sources import digest_hosts, host_families, process_steps
from nsyspipe.run.unrecorded import UnrecordedProcess, unrecorded_processes
from nsyspipe.run.workers import SerialExecutor, executor_for, place_for, telling_shortage

_MOST_FAMILIES = 1000
_LARGEST_FAMILIES = 8
_NAMED_FAMILIES = 6
P = TypeVar("P", ProcessDigest, HostDigest)


class ReportDigest(Struct, frozen=True):
    """What the run needs of one report."""

    path: str
    facts: ReportFacts
    mpi_ranks: dict[int, int]  # rank by process, from MPI's thread names
    comm_ranks: dict[
        int, tuple[int, int]
    ]  # the same from NCCL's payload, with the communicator's size
    comm_sizes: dict[int, int]  # number of ranks by communicator, also from that
    processes: tuple[
        ProcessDigest, ...
    ]  # the ranks: each process on each of its devices, in this order
    hosts: tuple[
        HostDigest, ...
    ]  # in a report without device activity the processes with ranges of their own
    family: (
        str | None
    )  # of the steps that windows rest on, or the hosts' steps; None: the capture is one window
    families: tuple[
        tuple[str, int], ...
    ]  # that no step pattern names, and their number of ranges, most time first
    phase_families: tuple[
        tuple[str, str, int], ...
    ]  # those named like a phase: family, phase, number of ranges
    n_named_steps: int | None  # ranges that the step pattern matches; None without one
    # What a second reading must not decide anew: where kernels' names come from, and when ranges
    # never closed end
    name_column: str | None
    open_end_ns: int | None
    zones: Mapping[str, Zones]  # of large tables, by which it finds the rows of a span
    called: Called  # what is communication by the calls that launched it
    n_graphs: int  # CUDA graphs that were captured as a whole
    n_nccl_ranges: int  # NVTX ranges of NCCL
    n_message_bytes: int  # calls of NCCL whose message size can be read
    # whether anything says that its processes communicate: a kernel, or NCCL or MPI in NVTX
    has_communication: bool
    size_gap: (
        str | None
    )  # why NCCL does not say how many bytes it sends (`problems.SIZE_GAPS`); None where it does
    problems: tuple[Problem, ...]
    unrecorded: tuple[
        UnrecordedProcess, ...
    ] = ()  # processes without kernels, in a report that has kernels of others

    @property
    def hosts_with_steps(self) -> list[HostDigest]:
        """The processes that stand for ranks where no report of the run has device activity."""
        return [host for host in self.hosts if host.members.num_rows]


def texts_of(ranges: pa.Table) -> pa.StringArray:
    """Return the different texts of `canonical.RANGES`, as families count them."""
    return (
        ranges["text"].combine_chunks().dictionary if ranges.num_rows else pa.array([], pa.string())
    )


def text_families(ranges: pa.Table, reading: Reading) -> tuple[TextFamilies, TextFamilies]:
    """Return the families of ranges' texts by their normalised form, and those that steps are looked for among."""
    texts = texts_of(ranges)
    named = TextFamilies.by_text(texts)
    return named, TextFamilies.by_option(texts, reading.step) if reading.step else named


# of one report: a node has some tens at most, and each costs some 30 ms even if it does nothing
_MOST_PROCESSES = 256


def digest_report(
    path: str, reading: Reading, family: str | None = None, *, is_decided: bool = False
) -> ReportDigest:
    """Reduce one report to small tables, on its best step family unless the run has decided on one (None: no steps)."""
    capture = read_capture(path, reading.comm_kernel)
    ranges = capture.ranges.table
    named, families = text_families(ranges, reading)
    others = ranges
    n_named = 0 if reading.step else None
    if reading.step and ranges.num_rows:
        is_step = families.of_text[ranges["text"].combine_chunks().indices.to_numpy()] == 0
        others = ranges.filter(pa.array(~is_step))
        n_named = int(np.count_nonzero(is_step))
    codes = phase_codes(named, reading.phases, texts_of(ranges))
    kernels = capture.operations.kernels
    copies = capture.operations.copies
    n_processes = len(processes_with_operations(kernels, copies))
    if n_processes > _MOST_PROCESSES:
        what = (
            f"has GPU operations of {n_processes} processes, more than the limit of "
            f"{_MOST_PROCESSES}"
        )
        raise DamagedReportError(path, what, fix="pass one report per rank, or per node")
    operations = operations_by_process(kernels, copies, capture.calls.all)
    del kernels, copies
    without = replace(
        capture.operations, kernels=canonical.KERNELS.empty(), copies=canonical.COPIES.empty()
    )
    capture = replace(capture, operations=without)  # which hold most of its memory
    release_memory()
    events = list(process_events(capture, operations))
    steps: list[ProcessSteps] = []
    hosts = {} if events else host_families(ranges, families)
    if events:
        steps, family = process_steps(
            capture, events, families, codes, reading, family=family, is_decided=is_decided
        )
    elif not is_decided and not reading.is_capture:
        family = choose_host([[measured for _, measured in hosts.values()]], [0])
    pairs = zip(events, steps, strict=True)
    between = [
        between_steps(one.ranges, codes, own.members, capture.calls.all, one.operations)
        for one, own in pairs
    ]
    capture = replace(capture, calls=replace(capture.calls, all=None))  # most of what is left
    release_memory()
    shares = zip(events, steps, between, strict=True)
    digested = [digest_process(*share, capture, is_one_window=family is None) for share in shares]
    longest = largest_families(others, named, _MOST_FAMILIES)
    sizes = capture.payloads.comm_sizes.select(["comm_id", "n_ranks"]).to_pydict().values()
    unmatched = [*_unmatched(reading, codes, longest, capture.operations)]
    gap = capture.payloads.size_gap
    # No range would be looked at but those that --backward asks for.
    asked = next((one.fix for one in unmatched if "--backward " in one.message), None)
    problems = (one for _, of_process in digested for one in of_process)
    of_processes = (
        replace(one, fix=asked or one.fix) if "backward" in one.code else one for one in problems
    )
    is_replayed = any(
        one.code == "backward-in-graphs" for _, of_process in digested for one in of_process
    )
    without_calls = "replayed" if is_replayed else "no-ranges"  # why NCCL's calls have no range
    return ReportDigest(
        path=path,
        facts=capture.facts,
        mpi_ranks=capture.ranges.mpi_ranks,
        comm_ranks=capture.payloads.comm_ranks,
        comm_sizes=dict(zip(*sizes, strict=True)),
        processes=tuple(digest for digest, _ in digested),
        hosts=digest_hosts(hosts, families, codes, family, capture.ranges.open_end_ns),
        family=family,
        families=longest,
        phase_families=_phase_families(others, named, codes),
        n_named_steps=n_named,
        name_column=capture.operations.name_column,
        open_end_ns=capture.ranges.open_end_ns,
        called=capture.called,
        zones={**capture.operations.zones, **capture.calls.zones},
        n_graphs=capture.operations.n_graphs,
        n_nccl_ranges=capture.ranges.n_nccl,
        n_message_bytes=len(capture.payloads.table["message_bytes"].drop_null()),
        has_communication=capture.ranges.has_communication
        or any(digest.n_comm for digest, _ in digested),
        size_gap=gap if gap is None or capture.ranges.n_nccl else without_calls,
        problems=(*capture.problems, *unmatched, *of_processes),
        unrecorded=unrecorded_processes(
            capture.launches_without_kernels, ranges, families, family, _told_numbers(capture)
        ),
    )


def _told_numbers(capture: Capture) -> dict[int, int]:
    """Return the rank of each process that NCCL's payload or MPI's thread names tell."""
    by_nccl = {process: rank for process, (rank, _) in capture.payloads.comm_ranks.items()}
    return capture.ranges.mpi_ranks | by_nccl


def _phase_families(
    ranges: pa.Table, families: TextFamilies, codes: Int64
) -> tuple[tuple[str, str, int], ...]:
    """Return each family with each phase that texts of it are named like, and the number of those ranges."""
    if not ranges.num_rows:
        return ()
    place = ranges["text"].combine_chunks().indices.to_numpy()
    n_ranges = np.bincount(place[~ranges["is_library"].to_numpy()], minlength=codes.size)
    counts: Counter[tuple[str, str]] = Counter()
    for place in np.flatnonzero((codes >= 0) & (n_ranges > 0)).tolist():
        counts[families.names[families.of_text[place]], PHASES[codes[place]]] += int(
            n_ranges[place]
        )
    return tuple((name, phase, n) for (name, phase), n in counts.items())


def _unmatched(
    reading: Reading, codes: Int64, families: Sequence[tuple[str, int]], operations: Operations
) -> Iterator[Problem]:
    if reading.comm_kernel is not None and operations.names and not operations.has_named_comm:
        alike = sorted(
            {
                kernel_label(name)
                for name in operations.names.values()
                if LIKE_COMMUNICATION.search(name)
            }
        )
        shown = ", ".join(map(repr, alike[:_NAMED_FAMILIES])) or "none"
        yield problem(
            "comm-kernel-unmatched", pattern=repr(reading.comm_kernel.pattern), alike=shown
        )
    elif operations.uncounted:
        functions = dict.fromkeys(label.partition(" [")[0] for label in operations.uncounted)
        pattern = "|".join(re.escape(name) for name in list(functions)[:_NAMED_FAMILIES])
        shown = few(map(repr, functions), _NAMED_FAMILIES)
        yield problem("uncounted-communication", names=shown, pattern=f"'{pattern}'")
    names = ", ".join(repr(name) for name, _ in families[:_NAMED_FAMILIES])
    for code, (phase, usual) in enumerate(PHASE_PATTERNS.items()):
        pattern = reading.phases[phase].pattern
        if names and pattern != usual and code not in codes:
            option = f"--{phase}"
            text = repr(pattern)
            yield problem(
                "phase-pattern-unmatched", option=option, pattern=text, phase=phase, families=names
            )


class Gathered(Struct, frozen=True):
    """The digests of a run's reports, all on one step family."""

    digests: tuple[ReportDigest, ...]
    sidecars: RunSidecars  # those that are of these reports
    family: str | None
    why_no_steps: str | None  # why there is no family; None when there is one
    is_aligned: bool = True  # whether it is sure which steps of different ranks are one


_DigestAll = Callable[..., list[ReportDigest]]  # `_digest_all` with all but its last two arguments


def gather(
    paths: Sequence[Path],
    reading: Reading,
    found: FoundSidecars | None = None,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Gathered:
    """Digest the reports of a run, all on one step family; what a sidecar names the steps goes before what is found."""
    for path in paths:
        check_file(path)  # all of them, before any is read
    with contextlib.nullcontext(executor) if executor else executor_for(paths, jobs) as running:
        digest_all = functools.partial(_digest_all, running, reading)
        digests = digest_all([(str(path),) for path in paths], on_progress)
        asks = reading.step is None and not reading.is_capture
        sidecars = run_sidecars(found, digests, asks_for_steps=asks) if found else RunSidecars()
        digests, family, why = _agreed(digest_all, digests, reading, sidecars.family)
    is_aligned = True
    if family == REPETITION:
        digests, is_aligned = _with_numbered_units(digests)
    return Gathered(with_sidecar_facts(digests, sidecars), sidecars, family, why, is_aligned)


def _with_numbered_units(digests: Sequence[ReportDigest]) -> tuple[list[ReportDigest], bool]:
    """Give units that are the same step of several ranks the same number, and tell whether that is sure."""
    parts = place(digests)
    groups = captures_of_processes(parts, is_one_job=False)
    captures = capture_numbers(groups) if len(groups) < len(parts) else {}
    of_captures: dict[int, list[Rank[ProcessDigest]]] = {}
    for part in parts:
        of_captures.setdefault(captures.get(part.argument, 0), []).append(part)
    number_of: dict[tuple[int, int], Int64] = {}
    n_before = 0
    is_aligned = True
    for _, parts_of_capture in sorted(of_captures.items()):
        leaders = one_of_each_process(
            parts_of_capture
        )  # whose units are those of all ranks of the process
        units = [(rank.process.comm, rank.process.members, rank.shift_ns) for rank in leaders]
        of_units, is_sure = aligned_numbers(units)
        lowest = min((int(one.min()) for one in of_units if one.size), default=0)
        highest = max((int(one.max()) for one in of_units if one.size), default=0)
        later = n_before - lowest if n_before else 0  # behind those of the capture before
        number_of |= {
            leader.place: one + later for leader, one in zip(leaders, of_units, strict=True)
        }
        n_before = highest + later + 1
        is_aligned = is_aligned and is_sure
    members = iter(
        [
            part.process.members.set_column(0, "number", pa.array(number_of[part.place]))
            for part in parts
        ]
    )
    renumbered = [
        [replace(process, members=next(members)) for process in digest.processes]
        for digest in digests
    ]
    return [
        replace(one, processes=tuple(own)) for one, own in zip(digests, renumbered, strict=True)
    ], is_aligned


def _agreed(
    digest_all: _DigestAll, digests: list[ReportDigest], reading: Reading, named: str | None
) -> tuple[list[ReportDigest], str | None, str | None]:
    """Bring all digests to one family, that which sidecars name if they do; and say why there is none."""
    if reading.is_capture:
        return digests, None, "as --step none asks for"
    if not any(
        digest.processes for digest in digests
    ):  # a pattern that matches nothing is no error
        of_hosts = [[host.candidates for host in digest.hosts] for digest in digests]
        family = named or choose_host(of_hosts, clock_shifts(digests))
        return (
            _redo(digest_all, digests, family),
            family,
            None if family is not None else "no process has any",
        )
    family = named or _chosen(digests)
    if family is None and reading.step is not None:
        raise _no_match(reading.step.pattern, digests)
    # Each rank may repeat something that is no family of ranges of all.
    if reading.step is None and (family is None or is_part_of_step(family)):
        again = _redo(digest_all, digests, REPETITION)
        family = _chosen(again)
        digests = again if family == REPETITION else digests
    digests = _redo(digest_all, digests, family)
    if family is None:
        return digests, None, _why_none(digests)
    if not any(process.windows.num_rows for digest in digests for process in digest.processes):
        shown = reading.step.pattern if reading.step else family
        return _redo(digest_all, digests, None), None, f"the ranges {shown!r} launched no kernel"
    return digests, family, None


def _chosen(digests: Sequence[ReportDigest]) -> str | None:
    groups = captures_of_processes(place(digests), is_one_job=False)
    families = [candidates_of([part.process for part in group]) for group in groups]
    return choose(families, [group[0].shift_ns for group in groups])


def _why_none(digests: Sequence[ReportDigest]) -> str:
    own = [digest for digest in digests if digest.processes]
    for name, _ in own[0].families[:_LARGEST_FAMILIES]:
        n_ranges = [dict(digest.families[:_LARGEST_FAMILIES]).get(name) for digest in own]
        if is_step_name(name) and n_ranges == [len(digest.processes) for digest in own]:
            why = (
                f"every rank has only one range {name!r}, and one step does not show what is usual"
            )
            return f"{why}: {MORE_STEPS}, or pass --step '^{name.replace('#', '[0-9]+')}$'"
    ranks = [process for digest in own for process in digest.processes]
    units = [
        candidate
        for process in ranks
        for candidate in process.candidates
        if candidate.name == REPETITION
    ]
    why = "no group of NVTX ranges qualifies as steps on every rank"
    if units and all(unit.is_part for unit in units):  # of a step: it would have been chosen else
        shown = max(units, key=lambda one: one.n_members)
        every_ms = shown.union_ns / shown.n_members / 1e6
        why += f". A launch pattern repeats {shown.n_members} times, every {every_ms:.3f} ms,"
        return f"{why} but neither updates weights nor has a backward pass"
    where = f"only on {len(units)} of {len(ranks)} ranks" if units else "on no rank"
    return f"{why}, and nsyspipe found a periodic launch pattern {where}"


def _redo(
    digest_all: _DigestAll, digests: list[ReportDigest], family: str | None
) -> list[ReportDigest]:
    """Digest again the reports whose windows, or whose hosts' steps, rest on another family."""
    wrong = [at for at, used in enumerate(_used(digests)) if used and digests[at].family != family]
    again = dict(zip(wrong, digest_all([(digests[at].path, family) for at in wrong]), strict=True))
    return [again.get(at, digest) for at, digest in enumerate(digests)]


def _digest_all(
    running: Executor,
    reading: Reading,
    calls: Sequence[tuple[str] | tuple[str, str | None]],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[ReportDigest]:
    progress = on_progress or (lambda _n_done, _n_calls: None)
    works_at_once = isinstance(running, SerialExecutor)  # while submitting
    futures: list[Future[ReportDigest]] = []
    try:
        with telling_shortage():
            for path, *family in calls:
                place = place_for(running, path)
                futures.append(
                    running.submit(digest_report, place, reading, *family, is_decided=bool(family))
                )
                if works_at_once:
                    futures[-1].result()  # stop at the first error
                    progress(len(futures), len(calls))
            for n_done, _ in enumerate(() if works_at_once else as_completed(futures), start=1):
                progress(n_done, len(calls))
            return [
                replace(future.result(), path=path)
                for future, (path, *_) in zip(futures, calls, strict=True)
            ]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _no_match(pattern: str, digests: Sequence[ReportDigest]) -> OptionError:
    families = sum(
        (Counter(dict(digest.families[:_LARGEST_FAMILIES])) for digest in digests), Counter[str]()
    )
    shown = ", ".join(f"{name!r} ({n})" for name, n in [*families.items()][:_NAMED_FAMILIES])
    example = next(iter(families), "step #").replace("#", "[0-9]+")
    problem = "matches no NVTX range, so there are no steps"
    found = shown or "no NVTX ranges"
    fix = (
        "leave out --step, or name one of these ranges, with [0-9]+ for digits: --step "
        f"'^{example}$'"
    )
    return OptionError(f"--step {pattern!r}", problem, found=found, fix=fix)


class Rank(Struct, Generic[P], frozen=True):
    """A process on one of its devices, or one with steps in a run without device activity, and where it comes from."""

    argument: int  # position of its report among the run's
    report: ReportDigest
    process: P
    shift_ns: int  # added to report time to get aligned time
    is_alone: bool = True  # whether its report holds no rank of another process
    number: int = -1  # its rank, once ranks are numbered
    process_number: int = (
        -1
    )  # then also that of its process: the same, unless some process has several devices
    steps: Int64 = field(
        default_factory=lambda: np.empty(0, np.int64)
    )  # then also the number of each of its members
    captures: tuple[
        Rank[P], ...
    ] = ()  # of a process that was captured several times, each of them, in order of time

    @property
    def parts(self) -> tuple[Rank[P], ...]:
        """What is in one report each: its captures, or itself."""
        return self.captures or (self,)

    @property
    def place(self) -> tuple[int, int]:
        """Which process of which report it is of."""
        return self.argument, self.process.process_id

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of its operations, or of its steps, aligned time."""
        first, last = self.process.span
        return first + self.shift_ns, last + self.shift_ns


Ranks: TypeAlias = Sequence[Rank[ProcessDigest]]
R = TypeVar("R", bound=Rank[Any])


def one_of_each_process(ranks: Sequence[R]) -> list[R]:
    """Return the first rank of each process: launchers and rank maps number processes, whatever devices these have."""
    first: dict[tuple[int, int], R] = {}
    for rank in ranks:
        first.setdefault(rank.place, rank)
    return list(first.values())


def place(digests: Sequence[ReportDigest]) -> list[Rank[ProcessDigest]]:
    """List the ranks of a run, in order of argument."""
    return _placed(digests, [digest.processes for digest in digests])


def place_hosts(digests: Sequence[ReportDigest]) -> list[Rank[HostDigest]]:
    """List the processes with steps of a run without device activity, in order of argument."""
    return _placed(digests, [digest.hosts_with_steps for digest in digests])


def ranks_or_hosts(
    digests: Sequence[ReportDigest],
) -> list[Rank[ProcessDigest]] | list[Rank[HostDigest]]:
    """List what is numbered, in order of argument: the ranks, in a run without any the processes with steps."""
    return joined_ranks(place(digests), is_one_job=False) or place_hosts(digests)


def _placed(digests: Sequence[ReportDigest], processes: Sequence[Sequence[P]]) -> list[Rank[P]]:
    shifts = clock_shifts(digests)
    return [
        Rank(
            argument,
            digest,
            process,
            shifts[argument],
            is_alone=len({one.process_id for one in own}) == 1,
        )
        for argument, (digest, own) in enumerate(zip(digests, processes, strict=True))
        for process in own
    ]


def _used(digests: Sequence[ReportDigest]) -> list[bool]:
    """Flag the reports that hold ranks; in a run without device activity, those that may hold hosts' steps."""
    has_ranks = any(digest.processes for digest in digests)
    return [bool(digest.processes if has_ranks else digest.hosts) for digest in digests]


def clock_shifts(digests: Sequence[ReportDigest]) -> list[int]:
    """Return what turns each report's time into aligned time: its session start less the earliest; 0 unless all say it."""
    starts = [digest.facts.session_start_utc_ns for digest in digests]
    if any(used and start is None for used, start in zip(_used(digests), starts, strict=True)):
        return [0] * len(starts)
    first = min((start for start in starts if start is not None), default=0)
    return [0 if start is None else start - first for start in starts]
