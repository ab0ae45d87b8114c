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
# The position of a report in the run, and a process ID in it, as `Rank.place`.
_Place: TypeAlias = tuple[int, int]


def texts_of(ranges: pa.Table) -> pa.StringArray:
    """Return the different texts of `canonical.RANGES`, as families count them."""
    if not ranges.num_rows:
        return pa.array([], pa.string())
    return ranges["text"].combine_chunks().dictionary


def text_families(ranges: pa.Table, reading: Reading) -> tuple[TextFamilies, TextFamilies]:
    """Return the families of ranges by their normalized texts, and those that steps may be of.

    The two are the same unless the user gave a step pattern.
    """
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
    # of each text, the index of its phase in `PHASES`, or -1 if it has none
    phase_of_text: Int64
    # the ranges that do not match the step pattern, which are all ranges without a pattern
    other_ranges: pa.Table
    # number of ranges that match the step pattern, or None without a pattern
    n_named_steps: int | None


def _read_texts(ranges: RangesOfReportTable, reading: Reading) -> _RangeTexts:
    by_text, step_families = text_families(ranges, reading)
    other_ranges = ranges
    n_named_steps = 0 if reading.step else None
    if reading.step and ranges.num_rows:
        text_of_range = _text_of_ranges(ranges)
        family_of_range = step_families.of_text[text_of_range]
        # Family 0 has all texts that match the step pattern.
        matches_step = family_of_range == 0
        other_ranges = ranges.filter(pa.array(~matches_step))
        n_named_steps = int(np.count_nonzero(matches_step))
    phase_of_text = phase_codes(by_text, reading.phases, texts_of(ranges))
    return _RangeTexts(by_text, step_families, phase_of_text, other_ranges, n_named_steps)


def digest_report(
    file: ReportFile, reading: Reading, family: str | None = None, *, is_decided: bool = False
) -> ReportDigest:
    """Reduce one report to small tables.

    If `is_decided`, the steps are the ranges of `family`, and a `family` of None means that the
    report has no steps. If not, the best family of this report is chosen.
    """
    capture = read_capture(file, reading.comm_kernel, with_lines=reading.with_lines)
    ranges = capture.ranges.table
    texts = _read_texts(ranges, reading)
    # The operations take most memory, and the calls take the second most. Both are freed as soon
    # as nothing needs them.
    capture, operations_of_process = _split_by_process(file, capture)
    release_memory()
    events = list(process_events(capture, operations_of_process))
    # Only a report without GPU activity has steps of hosts.
    hosts = {} if events else host_families(ranges, texts.step_families)
    steps: list[ProcessSteps] = []
    if events:
        steps, family = process_steps(
            capture,
            events,
            texts.step_families,
            texts.phase_of_text,
            reading,
            family=family,
            is_decided=is_decided,
        )
    elif not is_decided and not reading.is_capture:
        candidates_of_hosts = [candidates for _, candidates in hosts.values()]
        # This report is the only one, and its clock is not shifted.
        family = choose_host([candidates_of_hosts], [0])
    capture = _with_counter_lag(capture, events)
    inputs_between = _inputs_between_steps(events, steps, texts.phase_of_text, capture.calls.all)
    capture = replace(capture, calls=replace(capture.calls, all=None))
    release_memory()
    digested = [
        digest_process(*parts_of_rank, capture, is_one_window=family is None)
        for parts_of_rank in zip(events, steps, inputs_between, strict=True)
    ]
    host_digests = digest_hosts(
        hosts, texts.step_families, texts.phase_of_text, family, capture.ranges.open_end_ns
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
    phase_of_text: Int64,
    calls: pa.Table | None,
) -> list[Inputs]:
    """Return what the CPU process of each rank does between steps.

    `phase_of_text` has the phase of each range text.
    """
    inputs_of_ranks = []
    for rank, rank_steps in zip(events, steps, strict=True):
        members = rank_steps.members
        inputs = between_steps(rank.ranges, phase_of_text, members, calls, rank.operations)
        inputs_of_ranks.append(inputs)
    return inputs_of_ranks


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
    """Put the digests of processes together with what the report shows as a whole.

    `digested` has the digest of each rank and its problems. `hosts` are the processes of a report
    without GPU activity.
    """
    processes = tuple(process for process, _ in digested)
    process_problems: list[Problem] = []
    for _, problems_of_process in digested:
        process_problems += problems_of_process
    families = largest_families(texts.other_ranges, texts.by_text, MAX_FAMILIES)
    option_problems = list(
        _problems_of_options(reading, texts.phase_of_text, families, capture.operations)
    )
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
    zones_by_table = {**operations.zones, **capture.calls.zones}
    python_fields = _describe_python(capture.python)
    return python_fields | {
        "facts": capture.facts,
        "name_column": operations.name_column,
        "open_end_ns": capture.ranges.open_end_ns,
        "called": capture.called,
        "zones": zones_by_table,
        "n_graphs": operations.n_graphs,
        "has_memory_sizes": capture.memory.has_sizes,
    }


def _describe_python(python: PythonSamples) -> dict[str, Any]:
    """Return the fields of `ReportDigest` that say what was recorded of Python.

    The ranges of Python's lock that belong to the sampler of nsys itself do not count.
    """
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
    """Return a capture without its operations, and the operations by process ID."""
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
    """Return the code of why NCCL does not report message sizes, None if it reports them."""
    gap = capture.payloads.size_gap
    if gap is None or capture.ranges.n_nccl:
        return gap
    # Calls of NCCL have no range, for example because a CUDA graph replays them.
    is_replayed = any(each.code == "backward-in-graphs" for each in process_problems)
    return "replayed" if is_replayed else "no-ranges"


def _with_fix_of_option(
    process_problems: Iterable[Problem], option_problems: Iterable[Problem]
) -> Iterator[Problem]:
    """Yield all problems of processes. Those about the backward pass may get another fix.

    If the pattern of --backward matches no range, only another pattern can find the backward pass.
    Their fix is then that of the problem with the option.
    """
    option_fixes = (each.fix for each in option_problems if "--backward " in each.message)
    # None if the option has no problem.
    backward_option_fix = next(option_fixes, None)
    for each in process_problems:
        if backward_option_fix and "backward" in each.code:
            yield replace(each, fix=backward_option_fix)
        else:
            yield each


def _phase_families(texts: _RangeTexts) -> tuple[tuple[str, str, int], ...]:
    """Count the ranges of each pair of a family and a phase that a text belongs to.

    Returns family, phase and number of ranges of each pair. Ranges of libraries do not count, and
    neither do those that the step pattern matches.
    """
    ranges = texts.other_ranges
    if not ranges.num_rows:
        return ()
    phase_of_text = texts.phase_of_text
    families = texts.by_text
    is_library = ranges["is_library"].to_numpy()
    text_of_range = _text_of_ranges(ranges)
    text_of_program_range = text_of_range[~is_library]
    n_ranges_of_text = np.bincount(text_of_program_range, minlength=phase_of_text.size)
    is_counted_text = (phase_of_text >= 0) & (n_ranges_of_text > 0)
    n_ranges: Counter[tuple[str, str]] = Counter()
    for text in np.flatnonzero(is_counted_text).tolist():
        family_index = families.of_text[text]
        family = families.names[family_index]
        phase = PHASES[phase_of_text[text]]
        n_ranges[family, phase] += int(n_ranges_of_text[text])
    return tuple((family, phase, n) for (family, phase), n in n_ranges.items())


def _problems_of_options(
    reading: Reading,
    phase_of_text: Int64,
    families: Sequence[tuple[str, int]],
    operations: Operations,
) -> Iterator[Problem]:
    """Yield problems of patterns that match nothing, and of communication that needs an option.

    `phase_of_text` has the phase of each range text.
    """
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
        matches_a_text = code in phase_of_text
        if is_from_option and not matches_a_text:
            yield problem(
                "phase-pattern-unmatched",
                option=f"--{phase}",
                pattern=repr(pattern),
                phase=phase,
                families=", ".join(shown_families),
            )


def _problem_of_comm_pattern(pattern: re.Pattern[str], operations: Operations) -> Problem:
    """Return the problem that --comm-kernel matches nothing.

    The problem names the kernels that look like communication.
    """
    names = filter(LIKE_COMMUNICATION.search, operations.names.values())
    labels = sorted({kernel_label(name) for name in names})
    alike = ", ".join(map(repr, labels[:MAX_NAMED_FAMILIES]))
    return problem("comm-kernel-unmatched", pattern=repr(pattern.pattern), alike=alike or "none")


def _problem_of_uncounted(labels: Iterable[str]) -> Problem:
    """Return the problem that kernels look like communication, but do not count as such.

    `labels` are those of the kernels. The problem has a pattern for --comm-kernel that matches
    them.
    """
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


# `_digest_all` with an executor and a reading: it takes the calls, and what is told of progress.
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

    A family that a sidecar names has priority over what the reports show. Without `executor`, the
    reports are read by up to `jobs` workers.
    """
    # All files are checked before any is read.
    for file in files:
        check_file(file)
    sidecars = RunSidecars()
    asks_for_steps = reading.step is None and not reading.is_capture
    # An executor of the caller is left open.
    running_executor = contextlib.nullcontext(executor) if executor else executor_for(files, jobs)
    with running_executor as running:
        digest_all = functools.partial(_digest_all, running, reading)
        # No family is decided yet, so each call has a file alone.
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
    """Give the units of all ranks numbers. Units are the members of steps by repetition.

    Units of several ranks that are the same step get the same number. Returns the digests with
    these numbers, and whether it is sure which units are the same step.
    """
    parts = place(digests)
    numbers_of_process: dict[_Place, Int64] = {}
    # The first number after those of the captures before, 0 in the first capture.
    next_number = 0
    is_aligned = True
    for parts_of_capture in _parts_of_captures(parts):
        # All ranks of a process have the units of its first rank.
        first_ranks = one_of_each_process(parts_of_capture)
        units_of_processes = []
        for first_rank in first_ranks:
            process = first_rank.process
            units_of_processes.append((process.comm, process.members, first_rank.shift_ns))
        numbers_in_capture, is_sure = aligned_numbers(units_of_processes)
        lowest, highest = _extremes(numbers_in_capture)
        # The first capture keeps its numbers, of which some may be negative.
        added = next_number - lowest if next_number else 0
        for first_rank, numbers in zip(first_ranks, numbers_in_capture, strict=True):
            numbers_of_process[first_rank.place] = numbers + added
        next_number = highest + added + 1
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
    parts_of_processes = captures_of_processes(parts, is_one_job=False)
    # A process with two parts was captured twice.
    has_several_captures = len(parts_of_processes) < len(parts)
    capture_of_report = capture_numbers(parts_of_processes) if has_several_captures else {}
    return parts_by_capture(parts, capture_of_report)


def _with_member_numbers(
    digests: Sequence[ReportDigest],
    parts: Sequence[Rank[ProcessDigest]],
    numbers_of_process: Mapping[_Place, Int64],
) -> list[ReportDigest]:
    """Return digests whose members have the numbers of their process.

    `parts` are all ranks of the digests, in order.
    """
    processes_of_reports: list[list[ProcessDigest]] = [[] for _ in digests]
    for part in parts:
        process = part.process
        numbers = pa.array(numbers_of_process[part.place])
        # The numbers are the first column.
        members = process.members.set_column(0, "number", numbers)
        processes = processes_of_reports[part.argument]
        processes.append(replace(process, members=members))
    numbered_digests = []
    for digest, processes in zip(digests, processes_of_reports, strict=True):
        numbered_digests.append(replace(digest, processes=tuple(processes)))
    return numbered_digests


class _AgreedSteps(Struct, frozen=True):
    """The digests of a run on one step family."""

    digests: list[ReportDigest]
    family: str | None
    # why there is no family, or None if there is one
    why_no_steps: str | None


def _agree_on_steps(
    digest_all: _DigestAll,
    digests: list[ReportDigest],
    reading: Reading,
    sidecar_family: str | None,
) -> _AgreedSteps:
    """Bring all digests to one family: the one that sidecars name, else the best one."""
    if reading.is_capture:
        return _AgreedSteps(digests, None, "as --step none asks for")
    has_gpu_activity = any(digest.processes for digest in digests)
    if not has_gpu_activity:
        return _agree_on_host_steps(digest_all, digests, sidecar_family)
    family = sidecar_family or _choose_family(digests)
    if reading.step is not None:
        if family is None:
            raise _no_match(reading.step.pattern, digests)
    elif family is None or is_part_of_step(family):
        # Each rank may repeat a launch pattern, even if no family of ranges is on all ranks.
        by_repetition = _digest_again(digest_all, digests, REPETITION)
        family = _choose_family(by_repetition)
        if family == REPETITION:
            digests = by_repetition
    digests = _digest_again(digest_all, digests, family)
    if family is None:
        return _AgreedSteps(digests, None, _why_no_family(digests))
    if _have_windows(digests):
        return _AgreedSteps(digests, family, None)
    # The steps of the family exist on the CPU alone, so each capture is one window.
    digests = _digest_again(digest_all, digests, None)
    return _AgreedSteps(digests, None, _why_no_windows(family, reading))


def _why_no_windows(family: str, reading: Reading) -> str:
    """Return in words that the ranges of a family are no steps on the device."""
    shown = reading.step.pattern if reading.step else family
    return f"the ranges {shown!r} launched no kernel"


def _have_windows(digests: Sequence[ReportDigest]) -> bool:
    processes = itertools.chain.from_iterable(digest.processes for digest in digests)
    return any(process.windows.num_rows for process in processes)


def _agree_on_host_steps(
    digest_all: _DigestAll, digests: list[ReportDigest], sidecar_family: str | None
) -> _AgreedSteps:
    """Bring all digests of a run without device activity to one family.

    A step pattern that matches nothing is no error in such a run.
    """
    candidates_of_reports = [_candidates_of_hosts(digest) for digest in digests]
    family = sidecar_family or choose_host(candidates_of_reports, clock_shifts(digests))
    why_no_steps = "no process has any" if family is None else None
    digests = _digest_again(digest_all, digests, family)
    return _AgreedSteps(digests, family, why_no_steps)


def _candidates_of_hosts(digest: ReportDigest) -> list[tuple[Candidate, ...]]:
    return [host.candidates for host in digest.hosts]


def _choose_family(digests: Sequence[ReportDigest]) -> str | None:
    """Return the best family that all ranks have, None if no family has the steps of all."""
    parts_of_ranks = captures_of_processes(place(digests), is_one_job=False)
    candidates_of_ranks = []
    shifts_ns = []
    for parts in parts_of_ranks:
        captures = [part.process for part in parts]
        candidates_of_ranks.append(candidates_of(captures))
        shifts_ns.append(parts[0].shift_ns)
    return choose(candidates_of_ranks, shifts_ns)


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
    # At most one of each rank.
    patterns = _launch_patterns(ranks)
    if not patterns:
        return f"{why}, and nsyspipe found a periodic launch pattern on no rank"
    # A pattern may be a part of the step, such as one micro-batch, and then marks no steps.
    are_all_parts = all(pattern.is_part for pattern in patterns)
    if are_all_parts:
        most_frequent = max(patterns, key=lambda pattern: pattern.n_members)
        n_times = most_frequent.n_members
        every_ms = most_frequent.union_ns / n_times / 1e6
        return (
            f"{why}. A launch pattern repeats {n_times} times, every {every_ms:.3f} ms, "
            "but neither updates weights nor has a backward pass"
        )
    where = f"only on {len(patterns)} of {len(ranks)} ranks"
    return f"{why}, and nsyspipe found a periodic launch pattern {where}"


def _largest_families(digest: ReportDigest) -> dict[str, int]:
    """Return the number of ranges of each of the largest families, by the family's name.

    Messages look for steps among these families.
    """
    return dict(digest.families[:MAX_COMPARED_FAMILIES])


def _single_step_range(digests: Sequence[ReportDigest]) -> str | None:
    """Return the family that is named like a step and has one range on each rank, else None."""
    n_ranks_of_reports = [len(digest.processes) for digest in digests]
    families_of_reports = [_largest_families(digest) for digest in digests]
    for name in families_of_reports[0]:
        n_ranges_of_reports = [families.get(name) for families in families_of_reports]
        is_once_on_each_rank = n_ranges_of_reports == n_ranks_of_reports
        if is_step_name(name) and is_once_on_each_rank:
            return name
    return None


def _launch_patterns(ranks: Sequence[ProcessDigest]) -> list[Candidate]:
    """Return the periodic launch pattern of each rank that has one."""
    candidates = itertools.chain.from_iterable(rank.candidates for rank in ranks)
    return [candidate for candidate in candidates if candidate.name == REPETITION]


def _digest_again(
    digest_all: _DigestAll, digests: list[ReportDigest], family: str | None
) -> list[ReportDigest]:
    """Return the digests of all reports, all with steps of `family`.

    Only reports that have steps of another family are read again.
    """
    digests_of_family = list(digests)
    arguments_to_read: list[int] = []
    calls: list[tuple[ReportFile, str | None]] = []
    for argument, has_ranks in enumerate(have_ranks(digests)):
        digest = digests[argument]
        if has_ranks and digest.family != family:
            arguments_to_read.append(argument)
            calls.append((digest.file, family))
    for argument, digest in zip(arguments_to_read, digest_all(calls), strict=True):
        digests_of_family[argument] = digest
    return digests_of_family


def _digest_all(
    running: Executor,
    reading: Reading,
    calls: Sequence[tuple[ReportFile] | tuple[ReportFile, str | None]],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[ReportDigest]:
    """Digest reports in `running`, an executor, and return the digests in order of `calls`.

    A call is a file, or a file and the family on which the run decided. `on_progress` gets the
    number of reports that are done, and the number of all.
    """
    report_progress = on_progress or (lambda _n_done, _n_calls: None)
    n_calls = len(calls)
    # A serial executor digests a report while it is submitted. `result` raises its error, so that
    # no further report is read.
    is_serial = isinstance(running, SerialExecutor)
    futures: list[Future[ReportDigest]] = []
    try:
        with telling_shortage():
            for file, *decided_family in calls:
                # An empty list, or a list of one family, which may be None.
                is_decided = bool(decided_family)
                future = running.submit(
                    digest_report, file, reading, *decided_family, is_decided=is_decided
                )
                futures.append(future)
                if is_serial:
                    future.result()
                    report_progress(len(futures), n_calls)
            if not is_serial:
                for n_done, _ in enumerate(as_completed(futures), start=1):
                    report_progress(n_done, n_calls)
            return [future.result() for future in futures]
    except BaseException:
        # Reports that no worker has begun are not read.
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
    """List what is numbered, in order of argument.

    These are the ranks. If no rank exists, they are the processes that have steps on the CPU.
    """
    ranks = joined_ranks(place(digests), is_one_job=False)
    return ranks or place_hosts(digests)
