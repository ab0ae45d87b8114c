"""Reads one report into a digest, which any executor can run, and all reports of a run.

All reports of a run get one step family. For that, some are read again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.attribution import Inputs
from nsyspipe.analysis.devices import (
    ProcessShare,
    operations_by_process,
    processes_with_operations,
)
from nsyspipe.analysis.phases import between_steps, phase_codes
from nsyspipe.analysis.repeated_steps import aligned_numbers
from nsyspipe.analysis.steps import (
    REPETITION,
    Candidate,
    TextFamilies,
    choose,
    choose_host,
    largest_families,
)
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
from nsyspipe.model.typed_tables import (
    PayloadsOfReportTable,
    RangesOfReportTable,
)
from nsyspipe.model.user_paths import ReportFile
from nsyspipe.nsys.files import check_file
from nsyspipe.reader.metadata import Capture, read_capture
from nsyspipe.reader.operations import Operations
from nsyspipe.reader.python_samples import PythonSamples
from nsyspipe.reader.sidecar import FoundSidecars
from nsyspipe.reader.tables import release_memory
from nsyspipe.run.captures import (
    candidates_of,
    capture_numbers,
    captures_of_processes,
    joined_ranks,
    parts_by_capture,
)
from nsyspipe.run.counters import lag_of_report
from nsyspipe.run.digests import (
    Rank,
    ReportDigest,
    clock_shifts,
    have_ranks,
    one_of_each_process,
    place,
    place_hosts,
)
from nsyspipe.run.process import (
    HostDigest,
    ProcessDigest,
    ProcessEvents,
    ProcessSteps,
    digest_process,
    process_events,
)
from nsyspipe.run.sidecars import RunSidecars, run_sidecars, with_sidecar_facts
from nsyspipe.run.step_sources import digest_hosts, host_families, process_steps
from nsyspipe.run.unrecorded import UnrecordedProcess, unrecorded_processes
from nsyspipe.run.workers import SerialExecutor, executor_for, telling_shortage

# Families of ranges that a digest keeps.
MAX_FAMILIES = 1000
# The largest families of each report, among which messages look for steps.
MAX_COMPARED_FAMILIES = 8
# Families that a message names.
MAX_NAMED_FAMILIES = 6
# Processes of one report. A node has some tens of them. Each takes 30 ms, even if it has nothing.
MAX_PROCESSES = 256
# A report's argument, and a process in it.
_Place: TypeAlias = tuple[int, int]


def texts_of(ranges: pa.Table) -> pa.StringArray:
    """Return the different texts of `canonical.RANGES`, as families count them."""
    if not ranges.num_rows:
        return pa.array([], pa.string())
    return ranges["text"].combine_chunks().dictionary


def text_families(ranges: pa.Table, reading: Reading) -> tuple[TextFamilies, TextFamilies]:
    """Return the families of ranges by their normalized texts, and those that steps may be of."""
    texts = texts_of(ranges)
    by_text = TextFamilies.by_text(texts)
    if not reading.step:
        return by_text, by_text
    return by_text, TextFamilies.by_option(texts, reading.step)


def _text_of_ranges(ranges: RangesOfReportTable) -> Int64:
    """Return the text of each range, as an index into `texts_of`. There must be ranges."""
    texts = ranges["text"].combine_chunks()
    index: Int64 = texts.indices.to_numpy()
    return index


class _RangeTexts(Struct, frozen=True):
    """What the texts of a report's ranges mean."""

    by_text: TextFamilies
    # the families that steps may be of
    step_families: TextFamilies
    # the phase of each text
    codes: Int64
    # the ranges that do not match the step pattern
    other_ranges: pa.Table
    # number of ranges that match the step pattern, or None without a pattern
    n_named_steps: int | None


def _read_texts(ranges: RangesOfReportTable, reading: Reading) -> _RangeTexts:
    by_text, step_families = text_families(ranges, reading)
    other_ranges = ranges
    n_named_steps = 0 if reading.step else None
    if reading.step and ranges.num_rows:
        family = step_families.of_text[_text_of_ranges(ranges)]
        is_step = family == 0
        other_ranges = ranges.filter(pa.array(~is_step))
        n_named_steps = int(np.count_nonzero(is_step))
    codes = phase_codes(by_text, reading.phases, texts_of(ranges))
    return _RangeTexts(by_text, step_families, codes, other_ranges, n_named_steps)


def digest_report(
    file: ReportFile, reading: Reading, family: str | None = None, *, is_decided: bool = False
) -> ReportDigest:
    """Reduce one report to small tables.

    Its steps are of the best family of this report, unless the run `is_decided` on `family`. None
    then means no steps.
    """
    capture = read_capture(file, reading.comm_kernel, with_lines=reading.with_lines)
    ranges = capture.ranges.table
    texts = _read_texts(ranges, reading)
    # Most memory is that of the operations, then that of the calls. Each is freed as soon as it
    # is not needed.
    capture, shares = _split_by_process(file, capture)
    release_memory()
    events = list(process_events(capture, shares))
    hosts = {} if events else host_families(ranges, texts.step_families)
    steps: list[ProcessSteps] = []
    if events:
        steps, family = process_steps(
            capture,
            events,
            texts.step_families,
            texts.codes,
            reading,
            family=family,
            is_decided=is_decided,
        )
    elif not is_decided and not reading.is_capture:
        candidates_of_hosts = [candidates for _, candidates in hosts.values()]
        family = choose_host([candidates_of_hosts], [0])
    capture = _with_counter_lag(capture, events)
    between = _inputs_between_steps(events, steps, texts.codes, capture.calls.all)
    capture = replace(capture, calls=replace(capture.calls, all=None))
    release_memory()
    digested = [
        digest_process(*rank, capture, is_one_window=family is None)
        for rank in zip(events, steps, between, strict=True)
    ]
    host_digests = digest_hosts(
        hosts, texts.step_families, texts.codes, family, capture.ranges.open_end_ns
    )
    return _report_digest(
        file, reading, capture, texts, digested=digested, hosts=host_digests, family=family
    )


def _with_counter_lag(capture: Capture, events: Sequence[ProcessEvents]) -> Capture:
    """Return a capture with the lag of its hardware counters behind its kernels."""
    counters = capture.counters
    if not counters.gpus:
        return capture
    lag = lag_of_report(counters, capture.facts, events)
    return replace(capture, counters=replace(counters, lag=lag))


def _inputs_between_steps(
    events: Sequence[ProcessEvents],
    steps: Sequence[ProcessSteps],
    codes: Int64,
    calls: pa.Table | None,
) -> list[Inputs]:
    """Return what the host of each rank does between steps. `codes` are phases by text."""
    between = []
    for rank, rank_steps in zip(events, steps, strict=True):
        members = rank_steps.members
        inputs = between_steps(rank.ranges, codes, members, calls, rank.operations)
        between.append(inputs)
    return between


def _report_digest(
    file: ReportFile,
    reading: Reading,
    capture: Capture,
    texts: _RangeTexts,
    *,
    digested: Sequence[tuple[ProcessDigest, list[Problem]]],
    hosts: tuple[HostDigest, ...],
    family: str | None,
) -> ReportDigest:
    """Put the digests of processes together with what the report shows as a whole."""
    processes = tuple(process for process, _ in digested)
    process_problems: list[Problem] = []
    for _, problems_of_process in digested:
        process_problems += problems_of_process
    families = largest_families(texts.other_ranges, texts.by_text, MAX_FAMILIES)
    option_problems = list(_problems_of_options(reading, texts.codes, families, capture.operations))
    problems = [*capture.problems, *option_problems]
    problems += _with_fix_of_option(process_problems, option_problems)
    phase_families = _phase_families(texts)
    has_communication = _has_communication(capture, processes)
    size_gap = _size_gap(capture, process_problems)
    unrecorded = _unrecorded_processes(capture, texts.step_families, family)
    return ReportDigest(
        file=file,
        processes=processes,
        hosts=hosts,
        family=family,
        families=families,
        phase_families=phase_families,
        n_named_steps=texts.n_named_steps,
        has_communication=has_communication,
        size_gap=size_gap,
        problems=tuple(problems),
        unrecorded=unrecorded,
        counters=capture.counters,
        **_describe_reading(capture),
        **_describe_communication(capture),
    )


def _describe_reading(capture: Capture) -> dict[str, Any]:
    """Return the fields of `ReportDigest` that say what was read, and how to read it again."""
    operations = capture.operations
    zones = {**operations.zones, **capture.calls.zones}
    of_python = _describe_python(capture.python)
    return of_python | {
        "facts": capture.facts,
        "name_column": operations.name_column,
        "open_end_ns": capture.ranges.open_end_ns,
        "called": capture.called,
        "zones": zones,
        "n_graphs": operations.n_graphs,
        "has_memory_sizes": capture.memory.has_sizes,
    }


def _describe_python(python: PythonSamples) -> dict[str, Any]:
    """Return the fields of `ReportDigest` that say what was recorded of Python."""
    n_lock_ranges = None
    if python.lock_ranges is not None:
        is_of_program = pc.invert(python.lock_ranges["is_of_sampler"])
        n_lock_ranges = pc.sum(is_of_program, min_count=0).as_py()
    return {"n_python_samples": python.samples.num_rows, "n_lock_ranges": n_lock_ranges}


def _describe_communication(capture: Capture) -> dict[str, Any]:
    """Return the fields of `ReportDigest` that MPI's and NCCL's ranges give."""
    ranges = capture.ranges
    payloads = capture.payloads
    message_bytes = payloads.table["message_bytes"].drop_null()
    comm_sizes = _communicator_sizes(payloads.comm_sizes)
    return {
        "mpi_ranks": ranges.mpi_ranks,
        "comm_ranks": payloads.comm_ranks,
        "comm_sizes": comm_sizes,
        "n_nccl_ranges": ranges.n_nccl,
        "n_message_bytes": len(message_bytes),
    }


def _unrecorded_processes(
    capture: Capture, step_families: TextFamilies, family: str | None
) -> tuple[UnrecordedProcess, ...]:
    launches = capture.launches_without_kernels
    numbers = _recorded_ranks(capture)
    return unrecorded_processes(launches, capture.ranges.table, step_families, family, numbers)


def _split_by_process(
    file: ReportFile, capture: Capture
) -> tuple[Capture, dict[int, ProcessShare]]:
    """Return a capture without its operations, and the operations of each process."""
    operations = capture.operations
    kernels = operations.kernels
    copies = operations.copies
    n_processes = len(processes_with_operations(kernels, copies))
    if n_processes > MAX_PROCESSES:
        what = (
            f"has GPU operations of {n_processes} processes, more than the limit of {MAX_PROCESSES}"
        )
        raise DamagedReportError(str(file), what, fix="pass one report per rank, or per node")
    shares = operations_by_process(kernels, copies, capture.calls.all)
    no_kernels = canonical.KERNELS.empty()
    no_copies = canonical.COPIES.empty()
    without_tables = replace(operations, kernels=no_kernels, copies=no_copies)
    return replace(capture, operations=without_tables), shares


def _communicator_sizes(comm_sizes: PayloadsOfReportTable) -> dict[int, int]:
    """Return the number of ranks of each communicator."""
    comm_ids = comm_sizes["comm_id"].to_pylist()
    n_ranks = comm_sizes["n_ranks"].to_pylist()
    return dict(zip(comm_ids, n_ranks, strict=True))


def _recorded_ranks(capture: Capture) -> dict[int, int]:
    """Return the rank of each process by NCCL's payload, else by MPI's thread names."""
    ranks = dict(capture.ranges.mpi_ranks)
    for process_id, (rank, _) in capture.payloads.comm_ranks.items():
        ranks[process_id] = rank
    return ranks


def _has_communication(capture: Capture, processes: Iterable[ProcessDigest]) -> bool:
    if capture.ranges.has_communication:
        return True
    return any(process.n_comm for process in processes)


def _size_gap(capture: Capture, process_problems: Iterable[Problem]) -> str | None:
    """Return why NCCL does not report message sizes."""
    gap = capture.payloads.size_gap
    if gap is None or capture.ranges.n_nccl:
        return gap
    # Calls of NCCL have no range, for example because a CUDA graph replays them.
    is_replayed = any(each.code == "backward-in-graphs" for each in process_problems)
    return "replayed" if is_replayed else "no-ranges"


def _with_fix_of_option(
    process_problems: Iterable[Problem], option_problems: Iterable[Problem]
) -> Iterator[Problem]:
    """Yield problems of processes, with the fix of --backward if its pattern matches nothing.

    Without ranges that match it, no other fix could find the backward pass.
    """
    fixes = (each.fix for each in option_problems if "--backward " in each.message)
    fix_of_option = next(fixes, None)
    for each in process_problems:
        if fix_of_option and "backward" in each.code:
            yield replace(each, fix=fix_of_option)
        else:
            yield each


def _phase_families(texts: _RangeTexts) -> tuple[tuple[str, str, int], ...]:
    """Return each family with each phase that its texts are named like, and how many ranges."""
    ranges = texts.other_ranges
    if not ranges.num_rows:
        return ()
    codes = texts.codes
    families = texts.by_text
    is_library = ranges["is_library"].to_numpy()
    text_of_ranges = _text_of_ranges(ranges)[~is_library]
    n_ranges = np.bincount(text_of_ranges, minlength=codes.size)
    is_phase = (codes >= 0) & (n_ranges > 0)
    counts: Counter[tuple[str, str]] = Counter()
    for text in np.flatnonzero(is_phase).tolist():
        family = families.names[families.of_text[text]]
        phase = PHASES[codes[text]]
        counts[family, phase] += int(n_ranges[text])
    return tuple((family, phase, n) for (family, phase), n in counts.items())


def _problems_of_options(
    reading: Reading, codes: Int64, families: Sequence[tuple[str, int]], operations: Operations
) -> Iterator[Problem]:
    """Yield patterns of options that match nothing, and communication that needs an option."""
    comm_pattern = reading.comm_kernel
    has_unnamed_comm = bool(operations.names) and not operations.has_named_comm
    if comm_pattern is not None and has_unnamed_comm:
        yield _problem_of_comm_pattern(comm_pattern, operations)
    elif operations.uncounted:
        yield _problem_of_uncounted(operations.uncounted)
    shown_families = [repr(name) for name, _ in families[:MAX_NAMED_FAMILIES]]
    if not shown_families:
        return
    for code, phase in enumerate(PHASES):
        pattern = reading.phases[phase].pattern
        is_from_option = pattern != PHASE_PATTERNS[phase]
        if is_from_option and code not in codes:
            yield problem(
                "phase-pattern-unmatched",
                option=f"--{phase}",
                pattern=repr(pattern),
                phase=phase,
                families=", ".join(shown_families),
            )


def _problem_of_comm_pattern(pattern: re.Pattern[str], operations: Operations) -> Problem:
    """Return that --comm-kernel matches nothing, with kernels that look like communication."""
    names = filter(LIKE_COMMUNICATION.search, operations.names.values())
    labels = sorted({kernel_label(name) for name in names})
    alike = ", ".join(map(repr, labels[:MAX_NAMED_FAMILIES]))
    return problem("comm-kernel-unmatched", pattern=repr(pattern.pattern), alike=alike or "none")


def _problem_of_uncounted(labels: Iterable[str]) -> Problem:
    """Return that kernels look like communication and do not count, with a pattern for them."""
    functions = list(dict.fromkeys(_function_of_label(label) for label in labels))
    escaped = map(re.escape, functions[:MAX_NAMED_FAMILIES])
    pattern = "|".join(escaped)
    shown = few(map(repr, functions), MAX_NAMED_FAMILIES)
    return problem("uncounted-communication", names=shown, pattern=f"'{pattern}'")


def _function_of_label(label: str) -> str:
    """Return the function of a kernel's label, without its details in brackets."""
    function, _, _ = label.partition(" [")
    return function


class Gathered(Struct, frozen=True):
    """The digests of a run's reports, all on one step family."""

    digests: tuple[ReportDigest, ...]
    # those of these reports
    sidecars: RunSidecars
    family: str | None
    # why there is no family, or None if there is one
    why_no_steps: str | None
    # whether it is sure which steps of different ranks are the same step
    is_aligned: bool = True


# `_digest_all` with all but its last two arguments
_DigestAll: TypeAlias = Callable[..., list[ReportDigest]]


def gather(
    files: Sequence[ReportFile],
    reading: Reading,
    found_sidecars: FoundSidecars | None = None,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Gathered:
    """Digest the reports of a run, all on one step family.

    A family that a sidecar names has priority over what the reports show.
    """
    # All files are checked before any is read.
    for file in files:
        check_file(file)
    sidecars = RunSidecars()
    asks_for_steps = reading.step is None and not reading.is_capture
    with contextlib.nullcontext(executor) if executor else executor_for(files, jobs) as running:
        digest_all = functools.partial(_digest_all, running, reading)
        calls = [(file,) for file in files]
        digests = digest_all(calls, on_progress)
        if found_sidecars:
            sidecars = run_sidecars(found_sidecars, digests, asks_for_steps=asks_for_steps)
        agreed = _agree_on_steps(digest_all, digests, reading, sidecars.family)
    digests = agreed.digests
    is_aligned = True
    if agreed.family == REPETITION:
        digests, is_aligned = _with_numbered_units(digests)
    return Gathered(
        digests=with_sidecar_facts(digests, sidecars),
        sidecars=sidecars,
        family=agreed.family,
        why_no_steps=agreed.why_no_steps,
        is_aligned=is_aligned,
    )


def _with_numbered_units(digests: Sequence[ReportDigest]) -> tuple[list[ReportDigest], bool]:
    """Give units that are the same step of several ranks the same number.

    Also returns whether it is sure that they are the same step.
    """
    parts = place(digests)
    numbers_of_process: dict[_Place, Int64] = {}
    n_before = 0
    is_aligned = True
    for parts_of_capture in _parts_of_captures(parts):
        # All ranks of a process have the units of its first rank.
        leaders = one_of_each_process(parts_of_capture)
        units = []
        for leader in leaders:
            process = leader.process
            units.append((process.comm, process.members, leader.shift_ns))
        numbers_of_leaders, is_sure = aligned_numbers(units)
        lowest, highest = _extremes(numbers_of_leaders)
        # Numbers go on after those of the capture before.
        added = n_before - lowest if n_before else 0
        for leader, numbers in zip(leaders, numbers_of_leaders, strict=True):
            numbers_of_process[leader.place] = numbers + added
        n_before = highest + added + 1
        is_aligned = is_aligned and is_sure
    return _with_member_numbers(digests, parts, numbers_of_process), is_aligned


def _extremes(arrays: Iterable[Int64]) -> tuple[int, int]:
    """Return the lowest and the highest of all numbers, 0 and 0 without numbers."""
    with_numbers = [numbers for numbers in arrays if numbers.size]
    if not with_numbers:
        return 0, 0
    lowest = min(int(numbers.min()) for numbers in with_numbers)
    highest = max(int(numbers.max()) for numbers in with_numbers)
    return lowest, highest


def _parts_of_captures(
    parts: Sequence[Rank[ProcessDigest]],
) -> list[list[Rank[ProcessDigest]]]:
    """Return the ranks of each capture of the run, in order of captures."""
    groups = captures_of_processes(parts, is_one_job=False)
    has_several_captures = len(groups) < len(parts)
    captures = capture_numbers(groups) if has_several_captures else {}
    return parts_by_capture(parts, captures)


def _with_member_numbers(
    digests: Sequence[ReportDigest],
    parts: Sequence[Rank[ProcessDigest]],
    numbers_of_process: Mapping[_Place, Int64],
) -> list[ReportDigest]:
    """Return digests whose members have other numbers. `parts` are all their ranks in order."""
    processes_of_reports: list[list[ProcessDigest]] = [[] for _ in digests]
    for part in parts:
        process = part.process
        numbers = pa.array(numbers_of_process[part.place])
        members = process.members.set_column(0, "number", numbers)
        processes = processes_of_reports[part.argument]
        processes.append(replace(process, members=members))
    numbered = []
    for digest, processes in zip(digests, processes_of_reports, strict=True):
        numbered.append(replace(digest, processes=tuple(processes)))
    return numbered


class _AgreedSteps(Struct, frozen=True):
    """The digests of a run on one step family."""

    digests: list[ReportDigest]
    family: str | None
    # why there is no family, or None if there is one
    why_no_steps: str | None


def _agree_on_steps(
    digest_all: _DigestAll, digests: list[ReportDigest], reading: Reading, named: str | None
) -> _AgreedSteps:
    """Bring all digests to one family: the one that sidecars name, else the best one."""
    if reading.is_capture:
        return _AgreedSteps(digests, None, "as --step none asks for")
    if not any(digest.processes for digest in digests):
        return _agree_on_host_steps(digest_all, digests, named)
    family = named or _choose_family(digests)
    if reading.step is not None:
        if family is None:
            raise _no_match(reading.step.pattern, digests)
    elif family is None or is_part_of_step(family):
        # Each rank may repeat a launch pattern, even if no family of ranges is on all ranks.
        by_repetition = _redo(digest_all, digests, REPETITION)
        family = _choose_family(by_repetition)
        if family == REPETITION:
            digests = by_repetition
    digests = _redo(digest_all, digests, family)
    if family is None:
        return _AgreedSteps(digests, None, _why_no_family(digests))
    if _have_windows(digests):
        return _AgreedSteps(digests, family, None)
    digests = _redo(digest_all, digests, None)
    return _AgreedSteps(digests, None, _why_no_windows(family, reading))


def _why_no_windows(family: str, reading: Reading) -> str:
    """Return in words that the ranges of a family are no steps on the device."""
    shown = reading.step.pattern if reading.step else family
    return f"the ranges {shown!r} launched no kernel"


def _have_windows(digests: Sequence[ReportDigest]) -> bool:
    processes = itertools.chain.from_iterable(digest.processes for digest in digests)
    return any(process.windows.num_rows for process in processes)


def _agree_on_host_steps(
    digest_all: _DigestAll, digests: list[ReportDigest], named: str | None
) -> _AgreedSteps:
    """Bring all digests of a run without device activity to one family.

    Here a pattern that matches nothing is no error.
    """
    candidates_of_reports = [_candidates_of_hosts(digest) for digest in digests]
    family = named or choose_host(candidates_of_reports, clock_shifts(digests))
    why = "no process has any" if family is None else None
    digests = _redo(digest_all, digests, family)
    return _AgreedSteps(digests, family, why)


def _candidates_of_hosts(digest: ReportDigest) -> list[tuple[Candidate, ...]]:
    return [host.candidates for host in digest.hosts]


def _choose_family(digests: Sequence[ReportDigest]) -> str | None:
    """Return the best family that all ranks have."""
    groups = captures_of_processes(place(digests), is_one_job=False)
    families = []
    shifts_ns = []
    for group in groups:
        captures = [part.process for part in group]
        families.append(candidates_of(captures))
        shifts_ns.append(group[0].shift_ns)
    return choose(families, shifts_ns)


def _why_no_family(digests: Sequence[ReportDigest]) -> str:
    """Return in words why no family has the steps of all ranks."""
    with_ranks = [digest for digest in digests if digest.processes]
    single_range = _single_step_range(with_ranks)
    if single_range is not None:
        pattern = single_range.replace("#", "[0-9]+")
        return (
            f"every rank has only one range {single_range!r}, and one step does not show what is "
            f"usual: {MORE_STEPS}, or pass --step '^{pattern}$'"
        )
    why = "no group of NVTX ranges qualifies as steps on every rank"
    ranks = list(itertools.chain.from_iterable(digest.processes for digest in with_ranks))
    units = _candidates_by_repetition(ranks)
    if not units:
        return f"{why}, and nsyspipe found a periodic launch pattern on no rank"
    # Units that are no part of a step would be the steps.
    are_all_parts = all(unit.is_part for unit in units)
    if are_all_parts:
        unit = max(units, key=lambda candidate: candidate.n_members)
        every_ms = unit.union_ns / unit.n_members / 1e6
        return (
            f"{why}. A launch pattern repeats {unit.n_members} times, every {every_ms:.3f} ms, "
            "but neither updates weights nor has a backward pass"
        )
    where = f"only on {len(units)} of {len(ranks)} ranks"
    return f"{why}, and nsyspipe found a periodic launch pattern {where}"


def _largest_families(digest: ReportDigest) -> dict[str, int]:
    """Return the number of ranges of the families among which messages look for steps."""
    return dict(digest.families[:MAX_COMPARED_FAMILIES])


def _single_step_range(digests: Sequence[ReportDigest]) -> str | None:
    """Return the family that is named like a step and has one range on each rank."""
    n_ranks = [len(digest.processes) for digest in digests]
    families_of_reports = [_largest_families(digest) for digest in digests]
    for name in families_of_reports[0]:
        n_ranges = [families.get(name) for families in families_of_reports]
        if is_step_name(name) and n_ranges == n_ranks:
            return name
    return None


def _candidates_by_repetition(ranks: Sequence[ProcessDigest]) -> list[Candidate]:
    candidates = itertools.chain.from_iterable(rank.candidates for rank in ranks)
    return [candidate for candidate in candidates if candidate.name == REPETITION]


def _redo(
    digest_all: _DigestAll, digests: list[ReportDigest], family: str | None
) -> list[ReportDigest]:
    """Digest again the reports whose windows, or whose hosts' steps, are of another family."""
    redone = list(digests)
    arguments: list[int] = []
    calls: list[tuple[ReportFile, str | None]] = []
    for argument, has_ranks in enumerate(have_ranks(digests)):
        digest = digests[argument]
        if has_ranks and digest.family != family:
            arguments.append(argument)
            calls.append((digest.file, family))
    for argument, digest in zip(arguments, digest_all(calls), strict=True):
        redone[argument] = digest
    return redone


def _digest_all(
    running: Executor,
    reading: Reading,
    calls: Sequence[tuple[ReportFile] | tuple[ReportFile, str | None]],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[ReportDigest]:
    """Digest reports, each with its file and, if it is decided, its family."""
    report_progress = on_progress or (lambda _n_done, _n_calls: None)
    n_calls = len(calls)
    # In this process, work is done while it is submitted. It stops at the first error.
    works_at_once = isinstance(running, SerialExecutor)
    futures: list[Future[ReportDigest]] = []
    try:
        with telling_shortage():
            for file, *family in calls:
                is_decided = bool(family)
                future = running.submit(
                    digest_report, file, reading, *family, is_decided=is_decided
                )
                futures.append(future)
                if works_at_once:
                    future.result()
                    report_progress(len(futures), n_calls)
            if not works_at_once:
                for n_done, _ in enumerate(as_completed(futures), start=1):
                    report_progress(n_done, n_calls)
            return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _no_match(pattern: str, digests: Sequence[ReportDigest]) -> OptionError:
    """Return the error of a step pattern that matches no range, with the largest families."""
    n_ranges: Counter[str] = Counter()
    for digest in digests:
        n_ranges.update(_largest_families(digest))
    families = list(n_ranges)[:MAX_NAMED_FAMILIES]
    shown = ", ".join(f"{name!r} ({n_ranges[name]})" for name in families)
    example = families[0] if families else "step #"
    example_pattern = example.replace("#", "[0-9]+")
    fix = (
        "leave out --step, or name one of these ranges, with [0-9]+ for digits: --step "
        f"'^{example_pattern}$'"
    )
    return OptionError(
        f"--step {pattern!r}",
        "matches no NVTX range, so there are no steps",
        found=shown or "no NVTX ranges",
        fix=fix,
    )


def ranks_or_hosts(
    digests: Sequence[ReportDigest],
) -> list[Rank[ProcessDigest]] | list[Rank[HostDigest]]:
    """List what is numbered, in order of argument: ranks, or hosts with steps if no rank exists."""
    ranks = joined_ranks(place(digests), is_one_job=False)
    return ranks or place_hosts(digests)
