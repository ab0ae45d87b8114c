"""The source of the steps of a report's processes: ranges, or a periodic launch pattern.

It also finds their backward pass if no range marks it.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.attribution import by_process, operations_of
from nsyspipe.analysis.intervals import grouped_lengths
from nsyspipe.analysis.phases import (
    NO_OTHER_THREADS,
    LaunchingThreads,
    PhaseRanges,
    backward_passes,
    has_phases_elsewhere,
    launching_threads,
    phase_ranges,
    with_copies_behind,
)
from nsyspipe.analysis.repeated_steps import backward_of_operators, backward_of_thread
from nsyspipe.analysis.repetition import (
    LaunchSequence,
    Repetition,
    find_repetition,
    launch_sequence,
    threads_of,
)
from nsyspipe.analysis.steps import (
    REPETITION,
    Candidate,
    Members,
    TextFamilies,
    candidates,
    choose,
    members_of,
)
from nsyspipe.errors import OptionError, short_repr
from nsyspipe.model import canonical
from nsyspipe.model.names import is_optimizer, is_part_of_step
from nsyspipe.model.options import Reading
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    RangesOfReportTable,
)
from nsyspipe.reader.metadata import Capture
from nsyspipe.reader.report import main_thread_of
from nsyspipe.run.process import HostDigest, ProcessEvents, ProcessSteps, member_columns

# If steps have a smaller share of a rank's launches, this is a problem.
MIN_COVERED_SHARE = 0.9
_NO_NUMBERS = np.empty(0, np.int64)
_NO_MEMBERS = Members(0, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS)
# Of a report without device activity: the processes with ranges, each with its ranges and families.
Hosts = dict[int, tuple[pa.Table, list[Candidate]]]


class _RankLaunches:
    """A rank with its launches, which are put in order only if steps or backward passes need it."""

    def __init__(
        self, events: ProcessEvents, calls: pa.Table | None, names: Mapping[int, str]
    ) -> None:
        self.events = events
        self.calls = calls
        self._names = names

    @functools.cached_property
    def sequence(self) -> LaunchSequence:
        """The launches of the rank in order."""
        main_thread = main_thread_of(self.events.process_id)
        return launch_sequence(self.events.operations, self._names, self.calls, main_thread)


def process_steps(
    capture: Capture,
    events: Sequence[ProcessEvents],
    families: TextFamilies,
    phase_of_text: Int64,
    reading: Reading,
    *,
    family: str | None,
    is_decided: bool,
) -> tuple[list[ProcessSteps], str | None]:
    """Return the steps of each rank of a report, and the family that the steps are of.

    `is_decided` says that the run decided on `family`. Else the best family of this report is
    chosen. If no family of ranges qualifies, or if the user asks for it, nsyspipe looks for a
    periodic launch pattern. If no range marks the backward pass, nsyspipe looks for it in the
    launches. `phase_of_text` has the phase of each range text, as an index into `PHASES`.
    """
    names = capture.operations.names
    ranks = _launches_of_ranks(capture, events)
    range_candidates: list[list[Candidate]] = [[] for _ in ranks]
    if not reading.is_repetition:
        range_candidates = [_range_candidates(rank, families, names) for rank in events]
    range_family = family
    if not (is_decided or reading.is_repetition or reading.is_capture):
        range_family = _choose_in_report(range_candidates)
    if _may_repeat(capture, reading, range_family):
        repetitions = _find_repetitions(ranks, reading)
        # The launch pattern is one more candidate, so the best one is chosen again.
        all_candidates = _with_repetitions(range_candidates, repetitions)
        step_family = family if is_decided else _choose_in_report(all_candidates)
    else:
        repetitions = [None] * len(ranks)
        all_candidates = range_candidates
        step_family = range_family
    steps = []
    for rank, rank_candidates, repetition in zip(ranks, all_candidates, repetitions, strict=True):
        # A pattern that was found, but not chosen, makes no steps.
        units = repetition if step_family == REPETITION else None
        if units is None:
            members = _step_members(rank.events.ranges, families, rank_candidates, step_family)
        else:
            members = units.members
        steps.append(_steps_of_rank(rank, rank_candidates, members, units, phase_of_text))
    return steps, step_family


def _choose_in_report(candidates_of_ranks: Sequence[list[Candidate]]) -> str | None:
    """Return the best family of the ranks of one report, None if no family qualifies."""
    # The ranks of one report have one clock.
    no_shifts = [0] * len(candidates_of_ranks)
    return choose(candidates_of_ranks, no_shifts)


def _launches_of_ranks(capture: Capture, events: Sequence[ProcessEvents]) -> list[_RankLaunches]:
    """Return each rank with the API calls of its process and the names of kernels."""
    process_ids = [rank.process_id for rank in events]
    calls_of_ranks = by_process(capture.calls.all, process_ids)
    names = capture.operations.names
    ranks = []
    for rank, calls in zip(events, calls_of_ranks, strict=True):
        ranks.append(_RankLaunches(rank, calls, names))
    return ranks


def _may_repeat(capture: Capture, reading: Reading, family: str | None) -> bool:
    """Tell whether to look for a periodic launch pattern.

    `family` is the best family of ranges, or the one on which the run decided. nsyspipe looks for
    patterns if there is no such family of ranges, or if its ranges are named like parts of a step.
    """
    if reading.step is not None or reading.is_capture or not capture.operations.has_names:
        return False
    return family in {None, REPETITION} or is_part_of_step(family)


def _find_repetitions(ranks: Sequence[_RankLaunches], reading: Reading) -> list[Repetition | None]:
    """Return the periodic launch pattern of each rank, None for a rank without one.

    The ranks of a process share one pattern. Raises `OptionError` if the user says how many steps
    there are, and a rank has no pattern that repeats about as often.
    """
    repetitions_alone = [find_repetition(rank.sequence, reading.n_steps) for rank in ranks]
    events = [rank.events for rank in ranks]
    repetitions = _share_in_processes(events, repetitions_alone)
    if reading.n_steps is not None and None in repetitions:
        first_without = repetitions.index(None)
        raise _error_of_n_steps(reading.n_steps, ranks[first_without].sequence)
    return repetitions


def _with_repetitions(
    candidates_of_ranks: Sequence[list[Candidate]], repetitions: Sequence[Repetition | None]
) -> list[list[Candidate]]:
    """Return the candidates of each rank, with its periodic launch pattern as the last one."""
    extended = []
    for rank_candidates, repetition in zip(candidates_of_ranks, repetitions, strict=True):
        last = [] if repetition is None else [repetition.candidate]
        extended.append([*rank_candidates, *last])
    return extended


def _share_in_processes(
    events: Sequence[ProcessEvents], repetitions: Sequence[Repetition | None]
) -> list[Repetition | None]:
    """Return the repetition that each rank shares with the other ranks of its process.

    One CPU process launches for all its ranks, so its ranks have the same steps. They share the
    repetition of the rank with the strongest evidence. The result is None for a rank whose process
    has no repetition.
    """
    best_of_process: dict[int, Repetition] = {}
    for rank, repetition in zip(events, repetitions, strict=True):
        if repetition is None:
            continue
        best_so_far = best_of_process.get(rank.process_id)
        if best_so_far is None or _evidence(repetition) > _evidence(best_so_far):
            best_of_process[rank.process_id] = repetition
    return [best_of_process.get(rank.process_id) for rank in events]


class _Evidence(NamedTuple):
    """What shows that the units of a repetition are steps. The first field counts most."""

    has_optimizer: bool
    is_step: bool
    n_launches: int


def _evidence(repetition: Repetition) -> _Evidence:
    """Return what shows that the units of a repetition are steps."""
    n_launches = _count_launches_in_units(repetition)
    return _Evidence(repetition.has_optimizer, repetition.is_step, n_launches)


def _count_launches_in_units(repetition: Repetition) -> int:
    """Return the number of launches in all units, which follow each other without a gap."""
    first_edge = repetition.edges[0]
    last_edge = repetition.edges[-1]
    return int(last_edge - first_edge)


def _steps_of_rank(
    rank: _RankLaunches,
    rank_candidates: list[Candidate],
    members: Members,
    units: Repetition | None,
    phase_of_text: Int64,
) -> ProcessSteps:
    """Return the steps of one rank with their phases.

    `members` are the steps. `units` is the repetition whose units are the steps, or None if the
    steps are ranges. `phase_of_text` has the phase of each range text, as an index into `PHASES`.
    """
    process_id = rank.events.process_id
    marked = _find_marked_phases(rank, phase_of_text, members)
    problems: list[Problem] = []
    if units is not None:
        step_of_optimizer = marked.phases["optimizer"].member
        n_optimizers_of_step = np.bincount(step_of_optimizer, minlength=members.starts.size)
        has_each_one_optimizer = bool((n_optimizers_of_step == 1).all())
        problems += _problems_of_repetition(
            process_id, units, has_each_one_optimizer=has_each_one_optimizer
        )
    is_backward_marked = marked.phases["backward"].starts.size > 0
    unmarked = None if is_backward_marked else _find_unmarked_backward(rank, members)
    if unmarked is not None:
        problems.append(problem(unmarked.problem_code, process_id=process_id))
    return ProcessSteps(
        candidates=rank_candidates,
        members=members,
        phases=marked.phases,
        other_threads=marked.other_threads,
        backward=None if unmarked is None else unmarked.backward,
        passes=marked.passes if unmarked is None else unmarked.backward,
        problems=tuple(problems),
    )


class _FoundPhases(Struct, frozen=True):
    """The phases of a rank that ranges mark."""

    phases: dict[str, PhaseRanges]
    # threads with phases, other than the thread of the steps
    other_threads: LaunchingThreads
    # the backward passes, of which a step with several micro-batches has several
    passes: PhaseRanges


def _find_marked_phases(
    rank: _RankLaunches, phase_of_text: Int64, members: Members
) -> _FoundPhases:
    """Find the phases that ranges mark, on the thread of the steps and on other threads.

    `phase_of_text` has the phase of each range text, as an index into `PHASES`.
    """
    ranges = rank.events.ranges
    operations = rank.events.operations
    # Only API calls show on which thread a kernel was launched.
    if rank.calls is None or not has_phases_elsewhere(ranges, phase_of_text, members):
        phases = phase_ranges(ranges, phase_of_text, members)
        return _FoundPhases(phases, other_threads=NO_OTHER_THREADS, passes=phases["backward"])
    # The kernels whose launch is known come first.
    launches = operations.kernel_launch[: operations.n_launched]
    threads = threads_of(launches, rank.calls)
    other_threads = launching_threads(members, launches, threads)
    phases = phase_ranges(ranges, phase_of_text, members, other_threads)
    passes = backward_passes(phases["backward"], members, launches, threads)
    return _FoundPhases(phases, other_threads, passes)


class _UnmarkedBackward(Struct, frozen=True):
    """The backward pass of a rank that no range of the phase marks."""

    backward: PhaseRanges
    # The code of the problem that says how it was found.
    problem_code: str


def _find_unmarked_backward(rank: _RankLaunches, members: Members) -> _UnmarkedBackward | None:
    """Find the backward pass by autograd's operators, else by autograd's thread.

    None if neither shows it.
    """
    operations = rank.events.operations
    by_operators = backward_of_operators(rank.events.ranges, members)
    if by_operators is not None:
        backward = with_copies_behind(by_operators, operations)
        return _UnmarkedBackward(backward, "backward-by-operators")
    by_thread = backward_of_thread(rank.sequence, members)
    if by_thread is not None:
        backward = with_copies_behind(by_thread, operations)
        return _UnmarkedBackward(backward, "backward-by-thread")
    return None


def _step_members(
    ranges: RangesOfReportTable,
    families: TextFamilies,
    process_candidates: Sequence[Candidate],
    family: str | None,
) -> Members:
    """Return the step ranges of a process that are of one family, empty if it has none."""
    for candidate in process_candidates:
        if candidate.name == family:
            return members_of(ranges, families, candidate)
    return _NO_MEMBERS


def _range_candidates(
    events: ProcessEvents, families: TextFamilies, names: Mapping[int, str]
) -> list[Candidate]:
    """Return the families of a rank's ranges that may be its steps.

    `names` are names of kernels by ID. Launches of the optimizer's kernels help to tell steps from
    parts of steps. They are None if no optimizer is known, which shows nothing.
    """
    operations = events.operations
    optimizer_name_ids = [name_id for name_id, name in names.items() if is_optimizer(name)]
    # The kernels whose launch is known come first.
    launches = operations.kernel_launch[: operations.n_launched]
    name_ids = operations.kernel_column("name_id", 0, operations.n_launched)
    is_optimizer_launch = np.isin(name_ids, optimizer_name_ids)
    optimizer_launches = launches[is_optimizer_launch] if is_optimizer_launch.any() else None
    return candidates(events.ranges, families, operations, optimizer_launches)


def _error_of_n_steps(n_steps: int, sequence: LaunchSequence) -> OptionError:
    """Return the error that no launch pattern repeats about as often as --steps says.

    The error names how often a pattern repeats, if any does.
    """
    option = f"--steps {short_repr(n_steps)}"
    repeated = find_repetition(sequence)
    if repeated is None:
        return OptionError(option, "no launch pattern repeats", fix="leave out --steps")
    # A unit lies between two edges.
    n_units = repeated.edges.size - 1
    pattern = f"{n_units} x {repeated.n_launches} launches"
    fix = f"--steps {n_units}, or leave out --steps"
    return OptionError(option, "no launch pattern repeats about as often", found=pattern, fix=fix)


def _problems_of_repetition(
    process_id: int, units: Repetition, *, has_each_one_optimizer: bool
) -> Iterator[Problem]:
    """Yield the problems of steps that are units of a launch pattern.

    These problems say what the units are, how sure it is that a unit is a step, and how much the
    units leave out. `has_each_one_optimizer` says that each unit has one optimizer range.
    """
    yield _problem_of_pattern(process_id, units)
    if not (units.has_optimizer or has_each_one_optimizer):
        yield problem("steps-without-optimizer", process_id=process_id)
    elif units.n_updates > 1:
        yield problem("steps-of-several-updates", process_id=process_id, n=units.n_updates)
    n_all_launches = units.sequence.time_ns.size
    n_in_units = _count_launches_in_units(units)
    n_outside = n_all_launches - n_in_units
    # A unit may be cut off at each end of the capture. Its launches are no sign of other work.
    n_launches_of_unit = units.n_launches
    max_n_cut_off = 2 * n_launches_of_unit
    is_small_share = n_in_units < MIN_COVERED_SHARE * n_all_launches
    if is_small_share and n_outside > max_n_cut_off:
        percent = f"{100 * n_in_units / n_all_launches:.0f}"
        yield problem("steps-cover-part", process_id=process_id, percent=percent)


def _problem_of_pattern(process_id: int, units: Repetition) -> Problem:
    """Return the problem that steps are units of a launch pattern, with the pattern."""
    # A unit lies between two edges.
    n_units = units.edges.size - 1
    return problem(
        "steps-by-repetition",
        process_id=process_id,
        agreement=f"{units.agreement:.3f}",
        n_units=n_units,
        n_launches=units.n_launches,
        key=units.key,
    )


def host_families(ranges: RangesOfReportTable, families: TextFamilies) -> Hosts:
    """Return the ranges of each process, and the families of these ranges that may be steps.

    This is for a report without GPU activity. Processes without such a family are left out.
    """
    no_kernels = canonical.KERNELS.empty()
    no_copies = canonical.COPIES.empty()
    no_operations = operations_of(no_kernels, _NO_NUMBERS, no_copies, _NO_NUMBERS)
    process_ids = ranges["process_id"]
    hosts = {}
    for process_id in np.unique(process_ids.to_numpy()).tolist():
        is_of_process = pc.equal(process_ids, process_id)
        process_ranges = ranges.filter(is_of_process)
        process_candidates = candidates(process_ranges, families, no_operations)
        if process_candidates:
            hosts[process_id] = process_ranges, process_candidates
    return hosts


def digest_hosts(
    hosts: Hosts,
    families: TextFamilies,
    phase_of_text: Int64,
    family: str | None,
    open_end_ns: int | None,
) -> tuple[HostDigest, ...]:
    """Return the digest of each process, with its step ranges of `family`.

    `hosts` has the ranges of each process, and the families that may be its step ranges. Ranges
    that never closed end at `open_end_ns`, which is None if all closed. `phase_of_text` has the
    phase of each range text, as an index into `PHASES`.
    """
    digests = []
    for process_id, (ranges, process_candidates) in hosts.items():
        members = _step_members(ranges, families, process_candidates, family)
        columns = member_columns(ranges, members)
        columns["is_complete"] = _are_closed(members, open_end_ns)
        for phase, phase_of_steps in phase_ranges(ranges, phase_of_text, members).items():
            columns[f"{phase}_ns"] = _times_of_members(phase_of_steps, members)
        digest = HostDigest(process_id, tuple(process_candidates), pa.table(columns))
        digests.append(digest)
    return tuple(digests)


def _are_closed(members: Members, open_end_ns: int | None) -> Flags:
    """Tell which step ranges closed.

    Ranges that never closed have the end `open_end_ns`. It is later than the end of every range
    that closed, so the end tells them apart. None means that all ranges closed.
    """
    if open_end_ns is None:
        return np.ones(members.starts.size, np.bool_)
    is_closed: Flags = members.ends != open_end_ns
    return is_closed


def _times_of_members(phase: PhaseRanges, members: Members) -> pa.Array:
    """Return the time of a phase in each step, null if no range marks the phase."""
    n_members = members.starts.size
    if not phase.starts.size:
        return pa.nulls(n_members, pa.int64())
    times_ns = grouped_lengths(phase.member, phase.starts, phase.ends, n_members)
    return pa.array(times_ns)
