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
from typing import Any, NamedTuple, TypeAlias

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
from nsyspipe.run.step_sources import Hosts, digest_hosts, host_families, process_steps
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
    """Find out the family and the phase of each text, and which ranges match the step pattern."""
    by_text, step_families = text_families(ranges, reading)
    if not reading.step:
        n_named_steps = None
        other_ranges = ranges
    elif not ranges.num_rows:
        n_named_steps = 0
        other_ranges = ranges
    else:
        family_of_range = step_families.of_text[_text_of_ranges(ranges)]
        # With a step pattern, family 0 has all texts that match it.
        matches_step = family_of_range == 0
        n_named_steps = int(np.count_nonzero(matches_step))
        other_ranges = ranges.filter(pa.array(~matches_step))
    return _RangeTexts(
        by_text=by_text,
        step_families=step_families,
        phase_of_text=phase_codes(by_text, reading.phases, texts_of(ranges)),
        other_ranges=other_ranges,
        n_named_steps=n_named_steps,
    )


def digest_report(
    file: ReportFile, reading: Reading, family: str | None = None, *, is_decided: bool = False
) -> ReportDigest:
    """Reduce one report to small tables.

    `is_decided` says that the run decided on the steps. Then they are the ranges of `family`, and
    None means that there are no steps. If nothing is decided, the best family of this report is
    chosen.
    """
    capture = read_capture(file, reading.comm_kernel, with_lines=reading.with_lines)
    texts = _read_texts(capture.ranges.table, reading)
    # The operations take most memory, and the calls take the second most. Both are freed as soon
    # as nothing needs them.
    capture, operations_of_process = _split_by_process(file, capture)
    release_memory()
    events = list(process_events(capture, operations_of_process))
    # Only a report without GPU activity has steps of hosts.
    hosts = {} if events else host_families(capture.ranges.table, texts.step_families)
    steps: list[ProcessSteps] = []
    if events:
        steps, step_family = process_steps(
            capture,
            events,
            texts.step_families,
            texts.phase_of_text,
            reading,
            family=family,
            is_decided=is_decided,
        )
    elif is_decided or reading.is_capture:
        step_family = family
    else:
        step_family = _choose_host_family(hosts)
    capture = _with_counter_lag(capture, events)
    inputs_between = _inputs_between_steps(events, steps, texts.phase_of_text, capture.calls.all)
    capture = replace(capture, calls=replace(capture.calls, all=None))
    release_memory()
    digested = [
        digest_process(rank, rank_steps, inputs, capture, is_one_window=step_family is None)
        for rank, rank_steps, inputs in zip(events, steps, inputs_between, strict=True)
    ]
    host_digests = digest_hosts(
        hosts, texts.step_families, texts.phase_of_text, step_family, capture.ranges.open_end_ns
    )
    return _report_digest(
        file, reading, capture, texts, digested=digested, hosts=host_digests, family=step_family
    )


def _choose_host_family(hosts: Hosts) -> str | None:
    """Return the best family of the hosts of one report, None if no family qualifies."""
    candidates_of_hosts = [candidates for _, candidates in hosts.values()]
    # There is one report, whose clock is not shifted.
    return choose_host([candidates_of_hosts], [0])


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
    """Return when the CPU process of each rank gets input between its steps.

    `phase_of_text` has the phase of each range text, as an index into `PHASES`.
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
    """Return the processes of a report whose kernels were not recorded."""
    launches = capture.launches_without_kernels
    numbers = _recorded_ranks(capture)
    return unrecorded_processes(launches, capture.ranges.table, step_families, family, numbers)


def _split_by_process(
    file: ReportFile, capture: Capture
) -> tuple[Capture, dict[int, ProcessShare]]:
    """Return a capture without its operations, and the share of each process in them by its ID."""
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
    """Tell whether ranges or kernels of a report show communication."""
    if capture.ranges.has_communication:
        return True
    return any(process.n_comm for process in processes)


def _size_gap(capture: Capture, process_problems: Iterable[Problem]) -> str | None:
    """Return the code of why message sizes are not known, None if NCCL reports them.

    The codes are the keys of `problems.SIZE_GAPS`.
    """
    gap_of_payloads = capture.payloads.size_gap
    if gap_of_payloads is None or capture.ranges.n_nccl:
        return gap_of_payloads
    # Without any range of NCCL, the reason is why its calls have no ranges.
    is_replayed = any(each.code == "backward-in-graphs" for each in process_problems)
    return "replayed" if is_replayed else "no-ranges"


def _with_fix_of_option(
    process_problems: Iterable[Problem], option_problems: Iterable[Problem]
) -> Iterator[Problem]:
    """Yield all problems of processes. Problems with the backward pass may get another fix.

    If the pattern of --backward matches no range, that is a problem of the option. Then only
    another pattern can find the backward pass, and the fix of the option's problem replaces theirs.
    """
    option_fixes = (each.fix for each in option_problems if "--backward " in each.message)
    backward_option_fix = next(option_fixes, None)
    for each in process_problems:
        is_fixed_by_option = backward_option_fix is not None and "backward" in each.code
        yield replace(each, fix=backward_option_fix) if is_fixed_by_option else each


def _phase_families(texts: _RangeTexts) -> tuple[tuple[str, str, int], ...]:
    """Return how many ranges of each family are named like a phase: family, phase and number.

    A text has a family and may have a phase. Texts of one family may have different phases. Ranges
    of libraries do not count, and ranges that the step pattern matches do not count either.
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
    has_phase = phase_of_text >= 0
    is_counted_text = has_phase & (n_ranges_of_text > 0)
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
    """Yield problems of patterns that match nothing, and of kernels that need --comm-kernel.

    Such kernels look like communication, but do not count as such (`operations.uncounted`).
    `phase_of_text` has the phase of each range text, as an index into `PHASES`. `families` are
    names with numbers of ranges.
    """
    comm_pattern = reading.comm_kernel
    matches_no_kernel = bool(operations.names) and not operations.has_named_comm
    if comm_pattern is not None and matches_no_kernel:
        yield _problem_of_comm_pattern(comm_pattern, operations)
    elif operations.uncounted:
        yield _problem_of_uncounted(operations.uncounted)
    shown_families = [repr(name) for name, _ in families[:MAX_NAMED_FAMILIES]]
    if not shown_families:
        return
    for phase_index, phase in enumerate(PHASES):
        pattern = reading.phases[phase].pattern
        is_from_option = pattern != PHASE_PATTERNS[phase]
        matches_a_text = phase_index in phase_of_text
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


class _DigestCall(NamedTuple):
    """A call of `digest_report` for one report."""

    file: ReportFile
    family: str | None = None
    # Whether the run decided that `family` has the steps, or that there are no steps if it is None.
    is_decided: bool = False


# `_digest_all` with an executor and a reading. It takes a list of `_DigestCall`, and `on_progress`.
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
    # An option about steps has priority over the sidecars.
    may_sidecars_name_steps = reading.step is None and not reading.is_capture
    # An executor of the caller is left open.
    running_executor = contextlib.nullcontext(executor) if executor else executor_for(files, jobs)
    with running_executor as running:
        digest_all = functools.partial(_digest_all, running, reading)
        # Each report chooses its own family at first.
        calls = [_DigestCall(file) for file in files]
        digests = digest_all(calls, on_progress)
        if found_sidecars:
            sidecars = run_sidecars(
                found_sidecars, digests, wants_step_family=may_sidecars_name_steps
            )
        agreed = _agree_on_steps(digest_all, digests, reading, sidecars.family)
    if agreed.family == REPETITION:
        agreed_digests, is_aligned = _with_numbered_units(agreed.digests)
    else:
        agreed_digests = agreed.digests
        is_aligned = True
    return Gathered(
        digests=with_sidecar_facts(agreed_digests, sidecars),
        sidecars=sidecars,
        family=agreed.family,
        why_no_steps=agreed.why_no_steps,
        is_aligned=is_aligned,
    )


def _with_numbered_units(digests: Sequence[ReportDigest]) -> tuple[list[ReportDigest], bool]:
    """Give numbers to the units of all ranks. Units are the members of steps by repetition.

    Units of several ranks that are the same step get the same number. Numbers go on from capture to
    capture. Returns the digests with these numbers, and whether it is sure which units are the same
    step.
    """
    parts = place(digests)
    numbers_of_process: dict[_Place, Int64] = {}
    # The lowest number for the next capture. None before the first capture.
    next_number: int | None = None
    is_aligned = True
    for parts_of_capture in _parts_of_captures(parts):
        # The ranks of a process share their units, so its first rank is enough.
        first_ranks = one_of_each_process(parts_of_capture)
        units_of_processes = []
        for first_rank in first_ranks:
            process = first_rank.process
            units_of_processes.append((process.comm, process.members, first_rank.shift_ns))
        numbers_in_capture, is_sure = aligned_numbers(units_of_processes)
        lowest, highest = _extremes(numbers_in_capture)
        # The first capture keeps its numbers, of which some may be negative.
        added = 0 if next_number is None else next_number - lowest
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
    """Bring all digests to one family: the one that sidecars name, else the best one.

    If that is no family of whole steps, and there is no step pattern, a periodic launch pattern may
    give the steps.
    """
    if reading.is_capture:
        return _AgreedSteps(digests, family=None, why_no_steps="as --step none asks for")
    has_gpu_activity = any(digest.processes for digest in digests)
    if not has_gpu_activity:
        return _agree_on_host_steps(digest_all, digests, sidecar_family)
    family_of_ranges = sidecar_family or _choose_family(digests)
    if reading.step is not None:
        if family_of_ranges is None:
            raise _no_match(reading.step.pattern, digests)
        return _bring_to_family(digest_all, digests, reading, family_of_ranges)
    has_whole_steps = family_of_ranges is not None and not is_part_of_step(family_of_ranges)
    if has_whole_steps:
        return _bring_to_family(digest_all, digests, reading, family_of_ranges)
    by_repetition = _digest_again(digest_all, digests, REPETITION)
    best_family = _choose_family(by_repetition)
    # Digests that have the chosen family already are not read again.
    closest_digests = by_repetition if best_family == REPETITION else digests
    return _bring_to_family(digest_all, closest_digests, reading, best_family)


def _bring_to_family(
    digest_all: _DigestAll, digests: list[ReportDigest], reading: Reading, family: str | None
) -> _AgreedSteps:
    """Bring all digests to a family. Without one, or if it has no window, there are no steps."""
    digests_of_family = _digest_again(digest_all, digests, family)
    if family is None:
        why_no_family = _why_no_family(digests_of_family)
        return _AgreedSteps(digests_of_family, family=None, why_no_steps=why_no_family)
    if _have_windows(digests_of_family):
        return _AgreedSteps(digests_of_family, family, why_no_steps=None)
    # The steps of the family exist on the CPU alone, so each capture is one window.
    digests_of_captures = _digest_again(digest_all, digests_of_family, None)
    why_no_windows = _why_no_windows(family, reading)
    return _AgreedSteps(digests_of_captures, family=None, why_no_steps=why_no_windows)


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
    digests_of_family = _digest_again(digest_all, digests, family)
    return _AgreedSteps(digests_of_family, family, why_no_steps)


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
    # A rank has at most one of them.
    patterns = _launch_patterns(ranks)
    if not patterns:
        return f"{why}, and nsyspipe found a periodic launch pattern on no rank"
    # The units of a pattern may be parts of steps, such as micro-batches. Then they are no steps.
    are_units_parts_of_steps = all(pattern.is_part for pattern in patterns)
    if are_units_parts_of_steps:
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
    # A family of all reports is in the first report too.
    for name in families_of_reports[0]:
        n_ranges_of_reports = [families.get(name) for families in families_of_reports]
        # Each report must have as many of these ranges as ranks.
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
    arguments_to_read: list[int] = []
    calls: list[_DigestCall] = []
    for argument, has_ranks in enumerate(have_ranks(digests)):
        if has_ranks and digests[argument].family != family:
            arguments_to_read.append(argument)
            calls.append(_DigestCall(digests[argument].file, family, is_decided=True))
    new_digests = digest_all(calls)
    digests_of_family = list(digests)
    for argument, new_digest in zip(arguments_to_read, new_digests, strict=True):
        digests_of_family[argument] = new_digest
    return digests_of_family


def _digest_all(
    running: Executor,
    reading: Reading,
    calls: Sequence[_DigestCall],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[ReportDigest]:
    """Make the calls in the executor `running`, and return the digests in order of `calls`.

    `on_progress` gets the number of reports that are done, and the number of all.
    """
    report_progress = on_progress or (lambda _n_done, _n_calls: None)
    n_calls = len(calls)
    # A serial executor makes a call while it is submitted. Asking for the result at once raises the
    # error of the call, before the next report is read.
    is_serial = isinstance(running, SerialExecutor)
    futures: list[Future[ReportDigest]] = []
    try:
        with telling_shortage():
            for call in calls:
                future = running.submit(
                    digest_report, call.file, reading, call.family, is_decided=call.is_decided
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
