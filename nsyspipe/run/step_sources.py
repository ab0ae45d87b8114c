"""Where the steps of a report's processes come from, ranges or repetition, and their backward pass where no range marks it."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
from nsyspipe.model.table import Int64
from nsyspipe.reader.metadata import Capture
from nsyspipe.reader.report import main_thread_of
from nsyspipe.run.process import HostDigest, ProcessEvents, ProcessSteps, member_columns

_LEAST_COVERED = 0.9  # of a rank's launches, by its steps
_NO_MEMBERS = Members(0, *(np.empty(0, np.int64),) * 3)
# Of a report without device activity: the processes with ranges of their own, each with its
# families.
_Hosts = dict[int, tuple[pa.Table, list[Candidate]]]


def process_steps(
    capture: Capture,
    events: Sequence[ProcessEvents],
    families: TextFamilies,
    codes: Int64,
    reading: Reading,
    *,
    family: str | None,
    is_decided: bool,
) -> tuple[list[ProcessSteps], str | None]:
    """Return the steps of each rank of a report, and the family that they are: the run's, else what is best here.

    `codes` are phases by text. Launches are looked through for a repetition where no family of
    ranges qualifies, or where that is asked for; for the backward pass where no range marks it.
    """
    names = capture.operations.names
    measured: list[list[Candidate]] = [[] for _ in events]
    if not reading.is_repetition:
        measured = [_candidates(event, families, names) for event in events]
        if not is_decided and not reading.is_capture:
            family = choose(measured, [0] * len(events))
    may_repeat = family in {None, REPETITION} or is_part_of_step(family)
    may_repeat = (
        may_repeat
        and reading.step is None
        and not reading.is_capture
        and capture.operations.has_names
    )
    own_calls = by_process(capture.calls.all, [event.process_id for event in events])

    @functools.cache  # made where something asks for it
    def launched(at: int) -> LaunchSequence:
        main_thread = main_thread_of(events[at].process_id)
        return launch_sequence(events[at].operations, names, own_calls[at], main_thread)

    repeated: list[Repetition | None] = [None] * len(events)
    if may_repeat:
        sequences = [launched(at) for at in range(len(events))]
        repeated = _of_processes(
            events, [find_repetition(sequence, reading.n_steps) for sequence in sequences]
        )
        if reading.n_steps is not None and None in repeated:
            raise _not_as_many(reading.n_steps, launched(repeated.index(None)))
        measured = [
            own if one is None else [*own, one.candidate]
            for own, one in zip(measured, repeated, strict=True)
        ]
        family = family if is_decided else choose(measured, [0] * len(events))
    steps = []
    for at, one in enumerate(events):
        units = repeated[at] if family == REPETITION else None
        members = (
            units.members if units else _step_members(one.ranges, families, measured[at], family)
        )
        phases, others, passes = _phases(one, codes, members, own_calls[at])
        problems: list[Problem] = []
        if units:
            marked = phases["optimizer"].member
            is_marked = bool((np.bincount(marked, minlength=members.starts.size) == 1).all())
            problems += _by_repetition(one.process_id, units, is_marked=is_marked)
        backward = None
        if not phases["backward"].starts.size:  # it may be seen by what is not called so
            backward, source = _unmarked_backward(one, members, functools.partial(launched, at))
            if backward is not None:
                passes = backward
                problems.append(problem(source, process_id=one.process_id))
        steps.append(
            ProcessSteps(measured[at], members, phases, others, backward, passes, tuple(problems))
        )
    return steps, family


def _of_processes(
    events: Sequence[ProcessEvents], repeated: Sequence[Repetition | None]
) -> list[Repetition | None]:
    """Give all ranks of a process one repetition, since they share its host: the one that says most of what a step is."""
    best: dict[int, Repetition] = {}
    for one, found in zip(events, repeated, strict=True):
        if found is not None and (
            one.process_id not in best or _tells_more(found, best[one.process_id])
        ):
            best[one.process_id] = found
    return [best.get(event.process_id) for event in events]


def _tells_more(one: Repetition, other: Repetition) -> bool:
    """Tell whether units update weights, else whether they train, else whether there are more launches in them."""
    own, others = (
        (each.has_optimizer, each.is_step, int(np.ptp(each.edges))) for each in (one, other)
    )
    return own > others


def _phases(
    events: ProcessEvents, codes: Int64, members: Members, calls: pa.Table | None
) -> tuple[dict[str, PhaseRanges], LaunchingThreads, PhaseRanges]:
    """Return a process's phases, the threads other than that of the steps that have some, and its backward passes."""
    if calls is None or not has_phases_elsewhere(events.ranges, codes, members):
        phases = phase_ranges(events.ranges, codes, members)
        return phases, NO_OTHER_THREADS, phases["backward"]
    launches = events.operations.kernel_launch[: events.operations.n_launched]
    threads = threads_of(launches, calls)
    others = launching_threads(members, launches, threads)
    phases = phase_ranges(events.ranges, codes, members, others)
    return phases, others, backward_passes(phases["backward"], members, launches, threads)


def _unmarked_backward(
    events: ProcessEvents, members: Members, launched: Callable[[], LaunchSequence]
) -> tuple[PhaseRanges | None, str]:
    """Return the backward pass by autograd's operators, else by its thread, and the problem that says which; None for neither."""
    found = backward_of_operators(events.ranges, members)
    source = "backward-by-operators"
    if found is None:
        found = backward_of_thread(launched(), members)
        source = "backward-by-thread"
    return None if found is None else with_copies_behind(found, events.operations), source


def _step_members(
    ranges: pa.Table, families: TextFamilies, own: Sequence[Candidate], family: str | None
) -> Members:
    candidate = next((one for one in own if one.name == family), None)
    return _NO_MEMBERS if candidate is None else members_of(ranges, families, candidate)


def _candidates(
    events: ProcessEvents, families: TextFamilies, names: Mapping[int, str]
) -> list[Candidate]:
    operations = events.operations
    ids = [number for number, name in names.items() if is_optimizer(name)]
    launches = operations.kernel_launch[: operations.n_launched]
    updates = launches[np.isin(operations.kernel_column("name_id", 0, operations.n_launched), ids)]
    return candidates(events.ranges, families, operations, updates if updates.size else None)


def _not_as_many(n_steps: int, sequence: LaunchSequence) -> OptionError:
    given = f"--steps {short_repr(n_steps)}"
    repeated = find_repetition(sequence)
    if repeated is None:
        return OptionError(given, "no launch pattern repeats", fix="leave out --steps")
    n_units = repeated.edges.size - 1
    found = f"{n_units} x {repeated.n_launches} launches"
    fix = f"--steps {n_units}, or leave out --steps"
    return OptionError(given, "no launch pattern repeats about as often", found=found, fix=fix)


def _by_repetition(process_id: int, units: Repetition, *, is_marked: bool) -> Iterator[Problem]:
    """Say what the units are (marked: with one optimizer range each), how sure that is, and what much they leave out."""
    found: dict[str, Any] = {
        "n_units": units.edges.size - 1,
        "n_launches": units.n_launches,
        "key": units.key,
    }
    yield problem(
        "steps-by-repetition", process_id=process_id, agreement=f"{units.agreement:.3f}", **found
    )
    if not (units.has_optimizer or is_marked):
        yield problem("steps-without-optimizer", process_id=process_id)
    elif (n_updates := units.n_updates) > 1:
        yield problem("steps-of-several-updates", process_id=process_id, n=n_updates)
    n_launches = units.sequence.time_ns.size
    n_covered = int(np.ptp(units.edges))
    n_ends = 2 * units.n_launches
    if n_covered < _LEAST_COVERED * n_launches and n_launches - n_covered > n_ends:
        yield problem(
            "steps-cover-part", process_id=process_id, percent=f"{100 * n_covered / n_launches:.0f}"
        )


def host_families(ranges: pa.Table, families: TextFamilies) -> _Hosts:
    """Return the ranges and families of each process of a report without device activity that has any."""
    never = np.empty(0, np.int64)
    nothing = operations_of(canonical.KERNELS.empty(), never, canonical.COPIES.empty(), never)
    hosts = {}
    for process in np.unique(ranges["process_id"].to_numpy()).tolist():
        own = ranges.filter(pc.equal(ranges["process_id"], process))
        measured = candidates(own, families, nothing)
        if measured:
            hosts[process] = own, measured
    return hosts


def digest_hosts(
    hosts: _Hosts, families: TextFamilies, codes: Int64, family: str | None, open_end_ns: int | None
) -> tuple[HostDigest, ...]:
    """Reduce each process to its digest; ranges that were never closed got `open_end_ns`."""
    digests = []
    for process, (ranges, own) in hosts.items():
        members = _step_members(ranges, families, own, family)
        n_members = members.starts.size
        # Such an end lies behind all that were recorded.
        is_closed = (
            np.ones(n_members, np.bool_) if open_end_ns is None else members.ends != open_end_ns
        )
        phases = {
            f"{phase}_ns": pa.array(grouped_lengths(one.member, one.starts, one.ends, n_members))
            if one.starts.size
            else pa.nulls(n_members, pa.int64())
            for phase, one in phase_ranges(ranges, codes, members).items()
        }
        columns = member_columns(ranges, members) | {"is_complete": is_closed, **phases}
        digests.append(HostDigest(process, tuple(own), pa.table(columns)))
    return tuple(digests)
