"""Reads one report into a digest, which any executor can run, and all reports of a run.

All reports of a run get one step family. For that, some are read again.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

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
from nsyspipe.nsys.files import check_file
from nsyspipe.reader.metadata import Capture, read_capture
from nsyspipe.reader.operations import Operations
from nsyspipe.reader.sidecar import FoundSidecars
from nsyspipe.reader.tables import release_memory
from nsyspipe.run.captures import (
    candidates_of,
    capture_numbers,
    captures_of_processes,
    joined_ranks,
)
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
    ProcessSteps,
    digest_process,
    process_events,
)
from nsyspipe.run.sidecars import RunSidecars, run_sidecars, with_sidecar_facts
from nsyspipe.run.step_sources import digest_hosts, host_families, process_steps
from nsyspipe.run.unrecorded import unrecorded_processes
from nsyspipe.run.workers import SerialExecutor, executor_for, place_for, telling_shortage

# Families of ranges that a digest keeps.
MAX_FAMILIES = 1000
# The largest families of each report, among which messages look for steps.
MAX_COMPARED_FAMILIES = 8
# Families that a message names.
MAX_NAMED_FAMILIES = 6
# Processes of one report. A node has some tens of them. Each takes 30 ms, even if it has nothing.
MAX_PROCESSES = 256


def texts_of(ranges: pa.Table) -> pa.StringArray:
    """Return the different texts of `canonical.RANGES`, as families count them."""
    if not ranges.num_rows:
        return pa.array([], pa.string())
    return ranges["text"].combine_chunks().dictionary


def text_families(ranges: pa.Table, reading: Reading) -> tuple[TextFamilies, TextFamilies]:
    """Return the families of ranges by their normalized texts, and those that steps may be of."""
    texts = texts_of(ranges)
    by_text = TextFamilies.by_text(texts)
    return by_text, TextFamilies.by_option(texts, reading.step) if reading.step else by_text


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


def _read_texts(ranges: pa.Table, reading: Reading) -> _RangeTexts:
    by_text, step_families = text_families(ranges, reading)
    other_ranges = ranges
    n_named_steps = 0 if reading.step else None
    if reading.step and ranges.num_rows:
        text_index = ranges["text"].combine_chunks().indices.to_numpy()
        is_step = step_families.of_text[text_index] == 0
        other_ranges = ranges.filter(pa.array(~is_step))
        n_named_steps = int(np.count_nonzero(is_step))
    codes = phase_codes(by_text, reading.phases, texts_of(ranges))
    return _RangeTexts(by_text, step_families, codes, other_ranges, n_named_steps)


def digest_report(
    path: str, reading: Reading, family: str | None = None, *, is_decided: bool = False
) -> ReportDigest:
    """Reduce one report to small tables.

    Its steps are of the best family of this report, unless the run `is_decided` on `family`. None
    then means no steps.
    """
    capture = read_capture(path, reading.comm_kernel)
    ranges = capture.ranges.table
    texts = _read_texts(ranges, reading)
    # Most memory is that of the operations, then that of the calls. Each is freed as soon as it
    # is not needed.
    capture, shares = _split_by_process(path, capture)
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
        family = choose_host([[candidates for _, candidates in hosts.values()]], [0])
    between = [
        between_steps(
            rank.ranges, texts.codes, rank_steps.members, capture.calls.all, rank.operations
        )
        for rank, rank_steps in zip(events, steps, strict=True)
    ]
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
        path, reading, capture, texts, digested=digested, hosts=host_digests, family=family
    )


def _report_digest(
    path: str,
    reading: Reading,
    capture: Capture,
    texts: _RangeTexts,
    *,
    digested: Sequence[tuple[ProcessDigest, list[Problem]]],
    hosts: tuple[HostDigest, ...],
    family: str | None,
) -> ReportDigest:
    """Put the digests of processes together with what the report shows as a whole."""
    operations = capture.operations
    processes = tuple(process for process, _ in digested)
    process_problems = [each for _, problems in digested for each in problems]
    families = largest_families(texts.other_ranges, texts.by_text, MAX_FAMILIES)
    option_problems = [*_problems_of_options(reading, texts.codes, families, operations)]
    unrecorded = unrecorded_processes(
        capture.launches_without_kernels,
        capture.ranges.table,
        texts.step_families,
        family,
        _recorded_ranks(capture),
    )
    problems = [*capture.problems, *option_problems]
    problems += _with_fix_of_option(process_problems, option_problems)
    return ReportDigest(
        path=path,
        facts=capture.facts,
        mpi_ranks=capture.ranges.mpi_ranks,
        comm_ranks=capture.payloads.comm_ranks,
        comm_sizes=_communicator_sizes(capture),
        processes=processes,
        hosts=hosts,
        family=family,
        families=families,
        phase_families=_phase_families(texts),
        n_named_steps=texts.n_named_steps,
        name_column=operations.name_column,
        open_end_ns=capture.ranges.open_end_ns,
        called=capture.called,
        zones={**operations.zones, **capture.calls.zones},
        n_graphs=operations.n_graphs,
        n_nccl_ranges=capture.ranges.n_nccl,
        n_message_bytes=len(capture.payloads.table["message_bytes"].drop_null()),
        has_communication=_has_communication(capture, processes),
        size_gap=_size_gap(capture, process_problems),
        problems=tuple(problems),
        unrecorded=unrecorded,
    )


def _split_by_process(path: str, capture: Capture) -> tuple[Capture, dict[int, ProcessShare]]:
    """Return a capture without its operations, and the operations of each process."""
    kernels = capture.operations.kernels
    copies = capture.operations.copies
    n_processes = len(processes_with_operations(kernels, copies))
    if n_processes > MAX_PROCESSES:
        what = (
            f"has GPU operations of {n_processes} processes, more than the limit of {MAX_PROCESSES}"
        )
        raise DamagedReportError(path, what, fix="pass one report per rank, or per node")
    shares = operations_by_process(kernels, copies, capture.calls.all)
    without_tables = replace(
        capture.operations, kernels=canonical.KERNELS.empty(), copies=canonical.COPIES.empty()
    )
    return replace(capture, operations=without_tables), shares


def _communicator_sizes(capture: Capture) -> dict[int, int]:
    """Return the number of ranks of each communicator."""
    sizes = capture.payloads.comm_sizes
    comm_ids = sizes["comm_id"].to_pylist()
    return dict(zip(comm_ids, sizes["n_ranks"].to_pylist(), strict=True))


def _recorded_ranks(capture: Capture) -> dict[int, int]:
    """Return the rank of each process by NCCL's payload, else by MPI's thread names."""
    by_nccl = {process: rank for process, (rank, _) in capture.payloads.comm_ranks.items()}
    return capture.ranges.mpi_ranks | by_nccl


def _has_communication(capture: Capture, processes: Iterable[ProcessDigest]) -> bool:
    return capture.ranges.has_communication or any(process.n_comm for process in processes)


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
    text_index = ranges["text"].combine_chunks().indices.to_numpy()
    is_library = ranges["is_library"].to_numpy()
    n_ranges = np.bincount(text_index[~is_library], minlength=codes.size)
    counts: Counter[tuple[str, str]] = Counter()
    for text in np.flatnonzero((codes >= 0) & (n_ranges > 0)).tolist():
        family_and_phase = families.names[families.of_text[text]], PHASES[codes[text]]
        counts[family_and_phase] += int(n_ranges[text])
    return tuple((family, phase, n) for (family, phase), n in counts.items())


def _problems_of_options(
    reading: Reading, codes: Int64, families: Sequence[tuple[str, int]], operations: Operations
) -> Iterator[Problem]:
    """Yield patterns of options that match nothing, and communication that needs an option."""
    if reading.comm_kernel is not None and operations.names and not operations.has_named_comm:
        yield _problem_of_comm_pattern(reading.comm_kernel, operations)
    elif operations.uncounted:
        yield _problem_of_uncounted(operations.uncounted)
    names = ", ".join(repr(name) for name, _ in families[:MAX_NAMED_FAMILIES])
    for code, (phase, default_pattern) in enumerate(PHASE_PATTERNS.items()):
        pattern = reading.phases[phase].pattern
        if names and pattern != default_pattern and code not in codes:
            yield problem(
                "phase-pattern-unmatched",
                option=f"--{phase}",
                pattern=repr(pattern),
                phase=phase,
                families=names,
            )


def _problem_of_comm_pattern(pattern: re.Pattern[str], operations: Operations) -> Problem:
    """Return that --comm-kernel matches nothing, with kernels that look like communication."""
    alike = {
        kernel_label(name) for name in operations.names.values() if LIKE_COMMUNICATION.search(name)
    }
    shown = ", ".join(map(repr, sorted(alike)[:MAX_NAMED_FAMILIES])) or "none"
    return problem("comm-kernel-unmatched", pattern=repr(pattern.pattern), alike=shown)


def _problem_of_uncounted(labels: Iterable[str]) -> Problem:
    """Return that kernels look like communication and do not count, with a pattern for them."""
    functions = list(dict.fromkeys(label.partition(" [")[0] for label in labels))
    pattern = "|".join(re.escape(name) for name in functions[:MAX_NAMED_FAMILIES])
    shown = few(map(repr, functions), MAX_NAMED_FAMILIES)
    return problem("uncounted-communication", names=shown, pattern=f"'{pattern}'")


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
    paths: Sequence[Path],
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
    for path in paths:
        check_file(path)
    with contextlib.nullcontext(executor) if executor else executor_for(paths, jobs) as running:
        digest_all = functools.partial(_digest_all, running, reading)
        digests = digest_all([(str(path),) for path in paths], on_progress)
        asks_for_steps = reading.step is None and not reading.is_capture
        sidecars = RunSidecars()
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
    numbers_of_process: dict[tuple[int, int], Int64] = {}
    n_before = 0
    is_aligned = True
    for parts_of_capture in _parts_by_capture(parts):
        # All ranks of a process have the units of its first rank.
        leaders = one_of_each_process(parts_of_capture)
        units = [(rank.process.comm, rank.process.members, rank.shift_ns) for rank in leaders]
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
    lowest = min((int(numbers.min()) for numbers in with_numbers), default=0)
    highest = max((int(numbers.max()) for numbers in with_numbers), default=0)
    return lowest, highest


def _parts_by_capture(
    parts: Sequence[Rank[ProcessDigest]],
) -> list[list[Rank[ProcessDigest]]]:
    """Return the ranks of each capture of the run, in order of captures."""
    groups = captures_of_processes(parts, is_one_job=False)
    captures = capture_numbers(groups) if len(groups) < len(parts) else {}
    by_capture: dict[int, list[Rank[ProcessDigest]]] = {}
    for part in parts:
        by_capture.setdefault(captures.get(part.argument, 0), []).append(part)
    return [by_capture[capture] for capture in sorted(by_capture)]


def _with_member_numbers(
    digests: Sequence[ReportDigest],
    parts: Sequence[Rank[ProcessDigest]],
    numbers_of_process: Mapping[tuple[int, int], Int64],
) -> list[ReportDigest]:
    """Return digests whose members have other numbers. `parts` are all their ranks in order."""
    processes_of_reports: list[list[ProcessDigest]] = [[] for _ in digests]
    for part in parts:
        numbers = pa.array(numbers_of_process[part.place])
        members = part.process.members.set_column(0, "number", numbers)
        processes_of_reports[part.argument].append(replace(part.process, members=members))
    return [
        replace(digest, processes=tuple(processes))
        for digest, processes in zip(digests, processes_of_reports, strict=True)
    ]


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
    why = _why_no_windows(family, reading)
    return _AgreedSteps(_redo(digest_all, digests, None), None, why)


def _why_no_windows(family: str, reading: Reading) -> str:
    """Return in words that the ranges of a family are no steps on the device."""
    shown = reading.step.pattern if reading.step else family
    return f"the ranges {shown!r} launched no kernel"


def _have_windows(digests: Sequence[ReportDigest]) -> bool:
    return any(process.windows.num_rows for digest in digests for process in digest.processes)


def _agree_on_host_steps(
    digest_all: _DigestAll, digests: list[ReportDigest], named: str | None
) -> _AgreedSteps:
    """Bring all digests of a run without device activity to one family.

    Here a pattern that matches nothing is no error.
    """
    candidates_of_reports = [_candidates_of_hosts(digest) for digest in digests]
    family = named or choose_host(candidates_of_reports, clock_shifts(digests))
    why = "no process has any" if family is None else None
    return _AgreedSteps(_redo(digest_all, digests, family), family, why)


def _candidates_of_hosts(digest: ReportDigest) -> list[tuple[Candidate, ...]]:
    return [host.candidates for host in digest.hosts]


def _choose_family(digests: Sequence[ReportDigest]) -> str | None:
    """Return the best family that all ranks have."""
    groups = captures_of_processes(place(digests), is_one_job=False)
    families = []
    for group in groups:
        captures = [part.process for part in group]
        families.append(candidates_of(captures))
    return choose(families, [group[0].shift_ns for group in groups])


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
    ranks = [process for digest in with_ranks for process in digest.processes]
    units = _candidates_by_repetition(ranks)
    # Units that are no part of a step would be the steps.
    if units and all(unit.is_part for unit in units):
        unit = max(units, key=lambda candidate: candidate.n_members)
        every_ms = unit.union_ns / unit.n_members / 1e6
        return (
            f"{why}. A launch pattern repeats {unit.n_members} times, every {every_ms:.3f} ms, "
            "but neither updates weights nor has a backward pass"
        )
    where = f"only on {len(units)} of {len(ranks)} ranks" if units else "on no rank"
    return f"{why}, and nsyspipe found a periodic launch pattern {where}"


def _single_step_range(digests: Sequence[ReportDigest]) -> str | None:
    """Return the family that is named like a step and has one range on each rank."""
    n_ranks = [len(digest.processes) for digest in digests]
    largest = [dict(digest.families[:MAX_COMPARED_FAMILIES]) for digest in digests]
    for name in largest[0]:
        n_ranges = [families.get(name) for families in largest]
        if is_step_name(name) and n_ranges == n_ranks:
            return name
    return None


def _candidates_by_repetition(ranks: Sequence[ProcessDigest]) -> list[Candidate]:
    return [
        candidate for rank in ranks for candidate in rank.candidates if candidate.name == REPETITION
    ]


def _redo(
    digest_all: _DigestAll, digests: list[ReportDigest], family: str | None
) -> list[ReportDigest]:
    """Digest again the reports whose windows, or whose hosts' steps, are of another family."""
    wrong = [
        argument
        for argument, has_ranks in enumerate(have_ranks(digests))
        if has_ranks and digests[argument].family != family
    ]
    redone = digest_all([(digests[argument].path, family) for argument in wrong])
    digest_of = dict(zip(wrong, redone, strict=True))
    return [digest_of.get(argument, digest) for argument, digest in enumerate(digests)]


def _digest_all(
    running: Executor,
    reading: Reading,
    calls: Sequence[tuple[str] | tuple[str, str | None]],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[ReportDigest]:
    """Digest reports, each with its path and, if it is decided, its family."""
    report_progress = on_progress or (lambda _n_done, _n_calls: None)
    # In this process, work is done while it is submitted. It stops at the first error.
    works_at_once = isinstance(running, SerialExecutor)
    futures: list[Future[ReportDigest]] = []
    try:
        with telling_shortage():
            for path, *family in calls:
                place_of_report = place_for(running, path)
                is_decided = bool(family)
                future = running.submit(
                    digest_report, place_of_report, reading, *family, is_decided=is_decided
                )
                futures.append(future)
                if works_at_once:
                    future.result()
                    report_progress(len(futures), len(calls))
            if not works_at_once:
                for n_done, _ in enumerate(as_completed(futures), start=1):
                    report_progress(n_done, len(calls))
            return [
                replace(future.result(), path=path)
                for future, (path, *_) in zip(futures, calls, strict=True)
            ]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _no_match(pattern: str, digests: Sequence[ReportDigest]) -> OptionError:
    """Return the error of a step pattern that matches no range, with the largest families."""
    n_ranges: Counter[str] = Counter()
    for digest in digests:
        n_ranges.update(dict(digest.families[:MAX_COMPARED_FAMILIES]))
    named = list(n_ranges.items())[:MAX_NAMED_FAMILIES]
    shown = ", ".join(f"{name!r} ({n})" for name, n in named)
    example = next(iter(n_ranges), "step #").replace("#", "[0-9]+")
    fix = (
        "leave out --step, or name one of these ranges, with [0-9]+ for digits: --step "
        f"'^{example}$'"
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
    return joined_ranks(place(digests), is_one_job=False) or place_hosts(digests)
