"""Units of repeated launches as the steps of ranks: their backward pass, and their numbers."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.collectives import CommOperations
from nsyspipe.analysis.intervals import IntervalSet, holders, places_in_runs, union
from nsyspipe.analysis.phases import PhaseRanges
from nsyspipe.analysis.repetition import MIN_BACKWARD_SHARE, LaunchSequence
from nsyspipe.analysis.steps import Members
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    RangesOfReportTable,
)

# What `torch.autograd.profiler.emit_nvtx` calls the ranges of autograd's engine.
_AUTOGRAD_NAME: Final = re.compile(r"^autograd::engine|Backward\d*(,|$)")
# Shifts between the units of two ranks, in the order in which they are preferred.
_SHIFTS: Final = (0, -1, 1, -2, 2)
_KEYS: Final = ["comm_id", "seq_number", "kind"]
# A shift is certain if its measure is less than this share of that of every other shift.
_MAX_SHARE_OF_OTHER_SHIFTS: Final = 0.5
# The parts of `_Comm.place` are below these numbers, and the place itself is below the last.
_MAX_STREAMS_OF_COLLECTIVE: Final = 1000
_MAX_PLACES_IN_STREAM: Final = 10**6
_MAX_PLACES_IN_UNIT: Final = 10**15


def backward_of_operators(ranges: RangesOfReportTable, members: Members) -> PhaseRanges | None:
    """Return when the engine of autograd is in ranges of its operators, inside steps.

    The ranges may be of any thread. None if there are none.
    """
    texts = ranges["text"].combine_chunks()
    is_operator_text = [_is_operator(text) for text in texts.dictionary.to_pylist()]
    text_of_range = texts.indices.to_numpy()
    is_operator = np.array(is_operator_text, np.bool_)[text_of_range]
    starts = ranges["start_ns"].to_numpy()
    ends = ranges["end_ns"].to_numpy()
    in_operators = union(starts[is_operator], ends[is_operator])
    steps = IntervalSet(members.starts, members.ends)
    pieces = in_operators.intersect(steps)
    if not len(pieces):
        return None
    n_begun = np.searchsorted(members.starts, pieces.starts, side="right")
    return PhaseRanges(n_begun - 1, pieces.starts, pieces.ends)


def _is_operator(text: str | None) -> bool:
    return _AUTOGRAD_NAME.search(text or "") is not None


def backward_of_thread(sequence: LaunchSequence, members: Members) -> PhaseRanges | None:
    """Return when the thread of autograd launches and that of the steps does not.

    The thread of autograd launches a tenth of the compute kernels of every step or more. None if
    there is no such thread, or if there are several. A step may have several blocks, because of
    accumulation or recomputation.
    """
    n_steps = members.starts.size
    if not n_steps:
        return None
    step = holders(members.starts, members.ends, sequence.time_ns)
    is_inside = step >= 0
    thread = _backward_thread(sequence, step, members)
    if thread is None:
        return None
    threads = (members.thread_id, thread)
    is_of_threads = np.isin(sequence.thread_id, threads)
    rows = np.flatnonzero(is_inside & is_of_threads)
    is_backward = sequence.thread_id[rows] == thread
    return _blocks_of_backward(sequence.time_ns[rows], step[rows], is_backward)


def _backward_thread(sequence: LaunchSequence, step: Int64, members: Members) -> int | None:
    """Return the thread that launches enough compute kernels of each step, besides the loop's.

    None if there is no such thread, or if there are several. Also None if a step has no compute
    kernel. `step` is the step range of each launch, -1 for none.
    """
    n_steps = members.starts.size
    ids, thread_of_launch = np.unique(sequence.thread_id, return_inverse=True)
    is_compute = ~sequence.is_comm
    rows = np.flatnonzero((step >= 0) & is_compute)
    # A cell is a thread and a step.
    cell = thread_of_launch[rows] * n_steps
    cell += step[rows]
    n_kernels_of_cell = np.bincount(cell, minlength=ids.size * n_steps)
    # A row per thread, and a column per step.
    n_kernels = n_kernels_of_cell.reshape(-1, n_steps)
    min_kernels_of_step = MIN_BACKWARD_SHARE * n_kernels.sum(axis=0)
    has_enough = n_kernels >= min_kernels_of_step
    is_backward_thread = has_enough.all(axis=1)
    is_backward_thread &= ids != members.thread_id
    backward_threads = ids[is_backward_thread].tolist()
    if len(backward_threads) != 1 or not min_kernels_of_step.all():
        return None
    backward_thread: int = backward_threads[0]
    return backward_thread


def _blocks_of_backward(time_ns: Int64, step: Int64, is_backward: Flags) -> PhaseRanges:
    """Return the runs of launches of the backward pass, cut at the edges of steps.

    The parameters have a value per launch, in order of time. All launches are inside steps.
    """
    # Whether something changes before each launch, and behind the last. Before the first launch and
    # behind the last is another step, -1.
    is_thread_changed = np.diff(is_backward, prepend=False, append=False)
    is_step_changed = np.diff(step, prepend=-1, append=-1) != 0
    is_edge = is_thread_changed | is_step_changed
    begins_block = is_edge[:-1] & is_backward
    ends_block = is_edge[1:] & is_backward
    first_launch = np.flatnonzero(begins_block)
    last_launch = np.flatnonzero(ends_block)
    # Ranges are half-open. One that ends 1 ns behind the last launch still holds the launch.
    end_ns = time_ns[last_launch] + 1
    return PhaseRanges(step[first_launch], time_ns[first_launch], end_ns)


class RankUnits(NamedTuple):
    """What is aligned of a rank."""

    comm: CommOperations
    # The units, with the column ``start_ns``, report time.
    units: pa.Table
    # What turns report time into aligned time.
    shift_ns: int

    @property
    def aligned_starts(self) -> Int64:
        """Start of each unit, aligned time."""
        starts: Int64 = self.units["start_ns"].to_numpy()
        return starts + self.shift_ns


def aligned_numbers(
    ranks: Sequence[tuple[CommOperations, pa.Table, int]],
) -> tuple[list[Int64], bool]:
    """Return the numbers of the units of each rank, and whether all numbers are certain.

    Units of several ranks that are one step have one number. 0 is the first unit that all ranks
    have. Each of `ranks` has the fields of a `RankUnits`.

    A shift is how many units a rank begins later than another. If NCCL names communicator and
    number of the collectives, units with the same collectives tell the shift. Without these names,
    shifts from -2 to 2 are tried. The shift is right if the k-th collectives of units end at the
    most constant distance. If several shifts are about as constant, the collectives have to end
    closest together. A rank that shares no collective with any other is shifted by time.
    """
    if not ranks:
        return [], True
    rank_units = [RankUnits(*fields) for fields in ranks]
    comms = [_Comm.of(rank.comm, rank.shift_ns) for rank in rank_units]
    # By rank, against the first rank.
    shifts = {0: 0}
    is_certain = True
    waiting_ranks = deque(range(1, len(ranks)))
    # How many waiting ranks were tried since the last shift was found.
    n_in_vain = 0
    while waiting_ranks:
        rank = waiting_ranks.popleft()
        shift = _shift_of_rank(comms, shifts, rank)
        if shift is None and n_in_vain < len(waiting_ranks):
            # The rank may share collectives with a rank that still waits. So try again later.
            waiting_ranks.append(rank)
            n_in_vain += 1
            continue
        if shift is None:
            # No waiting rank shares a collective with a rank of known shift.
            n_units = _apart_in_time(rank_units[0], rank_units[rank])
            shift = _Shift(n_units, is_certain=True)
        shifts[rank] = shift.n_units
        is_certain &= shift.is_certain
        n_in_vain = 0
    largest_shift = max(shifts.values())
    numbers = []
    for rank, aligned in enumerate(rank_units):
        first_number = shifts[rank] - largest_shift
        numbers.append(np.arange(aligned.units.num_rows) + first_number)
    return numbers, is_certain


class _Shift(NamedTuple):
    """How many units a rank is behind another, and whether that is certain."""

    n_units: int
    is_certain: bool


def _shift_of_rank(comms: Sequence[_Comm], shifts: Mapping[int, int], rank: int) -> _Shift | None:
    """Return the shift of a rank; None if it shares no collective with a rank of known shift."""
    for known_rank, known_shift in shifts.items():
        shift = _shift_between(comms[known_rank], comms[rank])
        if shift is not None:
            n_units = known_shift + shift.n_units
            return _Shift(n_units, shift.is_certain)
    return None


class _Comm(Struct, frozen=True):
    """The communication operations of one rank that are in its units."""

    member: Int64
    # Aligned time.
    end_ns: Int64
    # A number for each (collective, stream, place among those of the unit).
    place: Int64
    # ``comm_id``, ``seq_number``, ``kind`` (of `COLLECTIVES`) and ``member`` of the operations that
    # NCCL names.
    known: pa.Table

    @classmethod
    def of(cls, comm: CommOperations, shift_ns: int) -> _Comm:
        """Return the operations in units; `shift_ns` turns report time into aligned time."""
        is_in_unit = pc.greater_equal(comm.table["member"], 0)
        table = comm.table.filter(is_in_unit)
        member = table["member"].to_numpy()
        ends = table["end_ns"].to_numpy()
        stream_order = table["stream_order"].to_numpy()
        kind = table["kind"].to_numpy()
        codes = [COLLECTIVES.index(comm_kind.collective) for comm_kind in comm.kinds]
        collective = np.array(codes, np.int64)[kind]
        stream = collective * _MAX_STREAMS_OF_COLLECTIVE + stream_order
        place = stream * _MAX_PLACES_IN_STREAM
        place += _places_in_units(member, collective, stream_order)
        # Kinds are numbered in each rank. Collectives have the same numbers on all ranks.
        kind_column = table.column_names.index("kind")
        table = table.set_column(kind_column, "kind", pa.array(collective))
        known = table.select([*_KEYS, "member"])
        return cls(member, end_ns=ends + shift_ns, place=place, known=known.drop_null())


def _places_in_units(member: Int64, collective: Int64, stream_order: Int64) -> Int64:
    """Return the place of each operation among those of its unit, collective and stream.

    `member` is the unit of each operation.
    """
    n_streams = int(stream_order.max(initial=0)) + 1
    stream = collective * n_streams + stream_order
    n_groups_of_unit = int(stream.max(initial=0)) + 1
    group = member * n_groups_of_unit + stream
    by_group = np.argsort(group, kind="stable")
    place = np.empty(group.size, np.int64)
    place[by_group] = places_in_runs(group[by_group])
    return place


def _shift_between(first: _Comm, second: _Comm) -> _Shift | None:
    """Return the shift of the second rank against the first; None if they share no collective.

    If NCCL names the collectives of both ranks, the shift of most shared collectives counts.
    Otherwise the distances between the ends of collectives decide, as `aligned_numbers` explains.
    """
    shared = first.known.join(second.known, _KEYS, join_type="inner", right_suffix="_other")
    if shared.num_rows:
        first_member = shared["member"].to_numpy()
        second_member = shared["member_other"].to_numpy()
        n_units, counts = np.unique(first_member - second_member, return_counts=True)
        most_frequent = int(n_units[counts.argmax()])
        return _Shift(most_frequent, is_certain=True)
    if first.known.num_rows and second.known.num_rows:
        # These are different communicators.
        return None
    distances_ns = _distances_by_shift(first, second)
    if not distances_ns:
        return None
    # By shift: how much the distances vary, and how large they are.
    deviations_ns = {}
    lengths_ns = {}
    for shift, distance_ns in distances_ns.items():
        deviation_ns = np.abs(distance_ns - np.median(distance_ns))
        deviations_ns[shift] = float(np.median(deviation_ns))
        length_ns = np.abs(distance_ns)
        lengths_ns[shift] = float(np.median(length_ns))
    most_constant = _least_shift(deviations_ns)
    return most_constant if most_constant.is_certain else _least_shift(lengths_ns)


def _distances_by_shift(first: _Comm, second: _Comm) -> dict[int, Int64]:
    """Return for each shift how far apart the collectives at the same places of units end, ns.

    With a shift, unit i of the second rank is compared with unit i + shift of the first rank. A
    shift without common places is left out.
    """
    first_keys = first.member * _MAX_PLACES_IN_UNIT + first.place
    distances_ns = {}
    for shift in _SHIFTS:
        compared_unit = second.member + shift
        second_keys = compared_unit * _MAX_PLACES_IN_UNIT + second.place
        _, in_first, in_second = np.intersect1d(first_keys, second_keys, return_indices=True)
        if in_first.size:
            first_ends = first.end_ns[in_first]
            distances_ns[shift] = first_ends - second.end_ns[in_second]
    return distances_ns


def _least_shift(measures: Mapping[int, float]) -> _Shift:
    """Return the shift with the least measure. It is certain if that is far below all others."""
    # The sort is stable, so of equal measures the preferred shift comes first.
    shifts = [shift for shift in _SHIFTS if shift in measures]
    best, *rest = sorted(shifts, key=measures.__getitem__)
    measures_of_rest = [measures[shift] for shift in rest]
    least_of_rest = min(measures_of_rest, default=math.inf)
    max_measure = _MAX_SHARE_OF_OTHER_SHIFTS * least_of_rest
    is_certain = measures[best] < max_measure
    return _Shift(best, is_certain)


def _apart_in_time(first: RankUnits, second: RankUnits) -> int:
    """Return how many units the second rank begins later than the first rank, by the clock.

    Each unit of the second rank is compared with the unit of the first rank that begins nearest.
    The median over the units of the second rank counts.
    """
    first_starts = first.aligned_starts
    second_starts = second.aligned_starts
    # Halfway between the starts of neighboring units, the nearest unit changes.
    sums = first_starts[1:] + first_starts[:-1]
    middles = sums // 2
    nearest_unit = np.searchsorted(middles, second_starts)
    number_in_second = np.arange(second_starts.size)
    n_later = nearest_unit - number_in_second
    return int(np.median(n_later))
