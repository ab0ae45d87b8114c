"""One rank's operations and phase ranges as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nsyspipe import schema
from nsyspipe.attribution import NEVER, UNKNOWN
from nsyspipe.classify import COLLECTIVES
from nsyspipe.comm_operations import NO_MEMBER, members_holding
from nsyspipe.device_operations import CATEGORIES, COMM, overlapping_rows
from nsyspipe.errors import DamagedReportError
from nsyspipe.labels import PHASES
from nsyspipe.launched import launched_in
from nsyspipe.phases import phases_of_launches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nsyspipe.device_operations import DeviceOperations
    from nsyspipe.families import Members
    from nsyspipe.phases import PhaseRanges
    from nsyspipe.steps import Windows

    Int64 = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["NO_SEQ", "RankSteps", "events_table", "phase_ranges_table"]

NO_SEQ = -1
_STEP_ITSELF = -1


@dataclass(frozen=True)
class RankSteps:
    """What the run's first reading says of one rank; times are the report's, ns.

    Attributes
    ----------
    shift_ns
        Added to report time to get aligned time.
    has_launches
        Whether any operation of the process has a launch.
    is_one_window
        Whether the capture is the only window, which holds all operations.
    thread_id, starts, ends, numbers
        The step ranges: thread, host times, and step numbers.
    windows
        Their windows on the device.
    is_chosen
        By step range: whether its ranges are asked for.
    span
        Device time ``[first, last)`` whose operations are asked for; None asks for all.
    comm_starts, comm_ends, seqs
        The communication operations asked for, in order of (start, launch); `NO_SEQ` for those of no step.
    """

    rank: int
    process_id: int
    shift_ns: int
    has_launches: bool
    is_one_window: bool
    thread_id: int
    starts: Int64
    ends: Int64
    numbers: Int64
    windows: Windows
    is_chosen: Flags
    span: tuple[int, int] | None
    comm_starts: Int64
    comm_ends: Int64
    seqs: Int64


def events_table(
    path: str,
    rank: RankSteps,
    operations: DeviceOperations,
    phases: Mapping[str, PhaseRanges],
    members: Members,
) -> pa.Table:
    """Return `schema.EVENTS` of what is asked for.

    Parameters
    ----------
    path
        The report, for the message if it has changed.
    operations
        At least those asked for.
    phases
        Those around their launches.
    members
        The step ranges.

    Raises
    ------
    DamagedReportError
        If its communication is not what the first reading found.
    """
    phase = _phase_of_each(operations, phases)
    if rank.span is not None:
        rows = overlapping_rows(operations.start, operations.end, rank.span)
        operations, phase = operations.take(rows), phase[rows]
    seq = _seqs(path, rank, operations)
    order = operations.in_order(seq)
    operations, phase, seq = operations.take(order), phase[order], seq[order]
    launch, start = operations.launch, operations.start
    is_one = rank.is_one_window
    member = members_holding(members, rank.windows, launch, start, is_one_window=is_one)
    step = np.append(rank.numbers, 0)[member]  # the last place is that of no member
    return schema.EVENTS.table(
        {
            "rank": np.full(len(operations), rank.rank),
            "step": pa.array(step, mask=member == NO_MEMBER),
            "phase": _words(phase, PHASES),
            "category": _words(operations.category, CATEGORIES),
            "name": _words(operations.name, operations.names),
            "device_id": _nullable(operations.device_id),
            "stream_id": _nullable(operations.stream_id),
            "start_ns": start + rank.shift_ns,
            "end_ns": operations.end + rank.shift_ns,
            "dur_ns": operations.end - start,
            "launch_ns": _nullable(launch, NEVER, rank.shift_ns),
            "correlation_id": _nullable(operations.correlation_id),
            "bytes": _nullable(operations.n_bytes),
            "collective": _words(operations.collective, COLLECTIVES),
            "seq": _nullable(seq, NO_SEQ),
        }
    )


def _phase_of_each(operations: DeviceOperations, phases: Mapping[str, PhaseRanges]) -> Int64:
    """Return the phase of each operation, as an index into `labels.PHASES`; negative for none."""
    order = operations.by_launch
    found = np.empty(order.size, np.int64)
    found[order] = phases_of_launches(phases, operations.launch[order])
    return found


def _seqs(path: str, rank: RankSteps, operations: DeviceOperations) -> Int64:
    """Return the place of each communication operation in its step, `NO_SEQ` for all others.

    They are the first reading's one by one: both stand in order of start, then launch, then row.
    """
    rows = np.flatnonzero(operations.category == COMM)
    rows = rows[np.lexsort((operations.launch[rows], operations.start[rows]))]
    if not (
        np.array_equal(operations.start[rows], rank.comm_starts)
        and np.array_equal(operations.end[rows], rank.comm_ends)
    ):
        raise DamagedReportError(
            path, "has changed since it was first read", fix="leave it alone, and run this again"
        )
    found = np.full(len(operations), NO_SEQ)
    found[rows] = rank.seqs
    return found


def phase_ranges_table(
    rank: RankSteps, operations: DeviceOperations, phases: Mapping[str, PhaseRanges]
) -> pa.Table:
    """Return `schema.PHASE_RANGES` of the steps asked for.

    Parameters
    ----------
    operations
        At least all that were launched in these steps.
    phases
        At least those of these steps.
    """
    code, member, starts, ends = _ranges(rank, phases)
    step = rank.numbers[member]
    word = np.array([*(sorted(PHASES).index(one) for one in PHASES), _STEP_ITSELF])[code]
    order = np.lexsort((step, ends, word, starts))
    order = order[rank.is_chosen[member[order]]]
    starts, ends = starts[order], ends[order]
    rows = operations.by_launch
    launched = operations.launch[rows], operations.start[rows], operations.end[rows]
    found = launched_in(starts, ends, launched)
    nothing = found.counts == 0
    return schema.PHASE_RANGES.table(
        {
            "rank": np.full(order.size, rank.rank),
            "step": step[order],
            "phase": _words(code[order], PHASES),
            "start_ns": starts + rank.shift_ns,
            "end_ns": ends + rank.shift_ns,
            "n_operations": pa.array(found.counts, mask=nothing & (not rank.has_launches)),
            "device_start_ns": pa.array(found.starts + rank.shift_ns, mask=nothing),
            "device_end_ns": pa.array(found.ends + rank.shift_ns, mask=nothing),
        }
    )


def _ranges(
    rank: RankSteps, phases: Mapping[str, PhaseRanges]
) -> tuple[Int64, Int64, Int64, Int64]:
    """Return phase (-1 for the step itself), step range, start and end of all host ranges."""
    own = np.arange(rank.starts.size)
    columns = [(np.full(own.size, _STEP_ITSELF), own, rank.starts, rank.ends)]
    for code, one in enumerate(phases.values()):
        columns.append((np.full(one.member.size, code), one.member, one.starts, one.ends))
    phase, member, starts, ends = (np.concatenate(column) for column in zip(*columns, strict=True))
    return phase, member, starts, ends


def _words(codes: Int64, words: Sequence[str]) -> pa.Array:
    """Return the word of each code; null for negative ones."""
    return pa.array(words, pa.string()).take(pa.array(codes, mask=codes < 0))


def _nullable(values: Int64, null: int = UNKNOWN, shift: int = 0) -> pa.Array:
    return pa.array(values + shift if shift else values, mask=values == null)
