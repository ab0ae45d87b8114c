"""Units of launches as the steps of ranks: when their backward pass runs, and which of other ranks' they are."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.collectives import CommOperations
from nsyspipe.analysis.intervals import IntervalSet, holders, places_in_runs, union
from nsyspipe.analysis.phases import PhaseRanges
from nsyspipe.analysis.repetition import LEAST_BACKWARD, LaunchSequence
from nsyspipe.analysis.steps import Members
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.model.table import Int64

# What `torch.autograd.profiler.emit_nvtx` calls the ranges of autograd's engine.
_OPERATOR: Final = re.compile(r"^autograd::engine|Backward\d*(,|$)")
_SHIFTS: Final = (0, -1, 1, -2, 2)
_KEYS: Final = ["comm_id", "seq_number", "kind"]
# A shift is sure where no other comes near: the spread of what ends together is half of any
# other's, or less.
_SURE: Final = 0.5


def backward_of_operators(ranges: pa.Table, members: Members) -> PhaseRanges | None:
    """Return when autograd's engine is in any of its operators' ranges, of any thread, inside steps; None if nowhere."""
    texts = ranges["text"].combine_chunks()
    is_operator = np.array(
        [bool(_OPERATOR.search(text or "")) for text in texts.dictionary.to_pylist()], np.bool_
    )
    rows = np.flatnonzero(is_operator[texts.indices.to_numpy()])
    pieces = union(ranges["start_ns"].to_numpy()[rows], ranges["end_ns"].to_numpy()[rows])
    pieces = pieces.intersect(IntervalSet(members.starts, members.ends))
    if not len(pieces):
        return None
    return PhaseRanges(
        np.searchsorted(members.starts, pieces.starts, side="right") - 1, pieces.starts, pieces.ends
    )


def backward_of_thread(sequence: LaunchSequence, members: Members) -> PhaseRanges | None:
    """Return when autograd's thread launches and that of the steps does not; None where no single thread does.

    It launches a tenth of every step's compute kernels or more. Several blocks of a step count:
    accumulation, recomputation.
    """
    n_steps = members.starts.size
    if not n_steps:
        return None
    step = holders(members.starts, members.ends, sequence.time_ns)
    inside = step >= 0
    ids, thread = np.unique(sequence.thread_id, return_inverse=True)
    compute = inside & ~sequence.is_comm
    counts = np.bincount(
        thread[compute] * n_steps + step[compute], minlength=ids.size * n_steps
    ).reshape(-1, n_steps)
    least = LEAST_BACKWARD * counts.sum(axis=0)
    others = ids[(counts >= least).all(axis=1) & (ids != members.thread_id)]
    if len(others) != 1 or not least.all():
        return None
    rows = np.flatnonzero(inside & np.isin(sequence.thread_id, (members.thread_id, *others)))
    is_backward = sequence.thread_id[rows] == others[0]
    step = step[rows]
    changes = (np.diff(is_backward, prepend=False, append=False) != 0) | (
        np.diff(step, prepend=-1, append=-1) != 0
    )
    firsts = np.flatnonzero(changes[:-1] & is_backward)
    lasts = np.flatnonzero(changes[1:] & is_backward)
    return PhaseRanges(
        step[firsts], sequence.time_ns[rows[firsts]], sequence.time_ns[rows[lasts]] + 1
    )


def aligned_numbers(
    ranks: Sequence[tuple[CommOperations, pa.Table, int]],
) -> tuple[list[Int64], bool]:
    """Return numbers of each rank's units, and whether they are sure: what is one step of several ranks has one number.

    0 is the first unit that all have. Of each rank its communication operations, its units
    (``start_ns``, report time) and what makes aligned time of report time. Two ranks' units are as
    far apart as those are in which the same collectives stand: those of which NCCL says
    communicator and number; else, of the shifts from -2 to 2, that at which the k-th collectives of
    units end at the most constant distance, of those alike the one at which they end closest
    together. A rank that shares none with any other is shifted by time.
    """
    comms = [_Comm.of(comm, shift_ns) for comm, _, shift_ns in ranks]
    shifts = dict.fromkeys(range(min(1, len(ranks))), 0)
    is_sure = True
    waiting = deque(range(1, len(ranks)))
    n_in_vain = 0
    while waiting:
        at = waiting.popleft()
        found = ((before, _units_apart(comms[before], comms[at])) for before in shifts)
        before, apart = next(
            ((before, apart) for before, apart in found if apart is not None), (0, None)
        )
        if apart is not None:
            shifts[at], n_in_vain = shifts[before] + apart[0], 0
            is_sure &= apart[1]
        elif n_in_vain < len(waiting):  # it may share some with one of those
            waiting.append(at)
            n_in_vain += 1
        else:
            shifts[at], n_in_vain = _apart_in_time(ranks[0], ranks[at]), 0
    first = max(shifts.values(), default=0)
    return [
        np.arange(units.num_rows) + shifts[at] - first for at, (_, units, _) in enumerate(ranks)
    ], is_sure


class _Comm(Struct, frozen=True):
    member: Int64
    end_ns: Int64  # aligned time
    place: Int64  # a number for each (collective, stream, place among those of the unit)
    # ``comm_id``, ``seq_number``, ``kind`` (of `COLLECTIVES`), ``member`` of those that NCCL names
    known: pa.Table

    @classmethod
    def of(cls, comm: CommOperations, shift_ns: int) -> _Comm:
        table = comm.table.filter(pc.greater_equal(comm.table["member"], 0))
        kinds = np.array([COLLECTIVES.index(kind.collective) for kind in comm.kinds], np.int64)
        member, order, end = (
            table[name].to_numpy() for name in ("member", "stream_order", "end_ns")
        )
        collective = kinds[table["kind"].to_numpy()]
        stream = collective * (int(order.max(initial=0)) + 1) + order
        group = member * (int(stream.max(initial=0)) + 1) + stream
        sorted_rows = np.argsort(group, kind="stable")
        place = (
            collective * 1000 + order
        ) * 10**6  # streams and collectives are few, places are below a million
        place[sorted_rows] += places_in_runs(group[sorted_rows])
        table = table.set_column(table.schema.get_field_index("kind"), "kind", pa.array(collective))
        return cls(member, end + shift_ns, place, table.select([*_KEYS, "member"]).drop_null())


def _units_apart(one: _Comm, other: _Comm) -> tuple[int, bool] | None:
    """Return how many units the other's first is behind, and whether that is sure; None where they share no collective."""
    shared = one.known.join(other.known, _KEYS, join_type="inner", right_suffix="_other")
    if shared.num_rows:
        apart = shared["member"].to_numpy() - shared["member_other"].to_numpy()
        distances, counts = np.unique(apart, return_counts=True)
        return int(distances[counts.argmax()]), True
    if one.known.num_rows and other.known.num_rows:  # of other communicators
        return None
    distances_ns = {}
    for shift in _SHIFTS:
        own, theirs = (
            (rank.member + moved) * 10**15 + rank.place
            for rank, moved in ((one, 0), (other, shift))
        )
        _, mine, yours = np.intersect1d(own, theirs, return_indices=True)
        if mine.size:
            distances_ns[shift] = one.end_ns[mine] - other.end_ns[yours]
    if not distances_ns:
        return None
    spreads = {
        shift: float(np.median(np.abs(of - np.median(of)))) for shift, of in distances_ns.items()
    }
    sizes = {shift: float(np.median(np.abs(of))) for shift, of in distances_ns.items()}
    for measured in (spreads, sizes):
        best, *others = sorted(measured, key=lambda shift: (measured[shift], _SHIFTS.index(shift)))
        if all(measured[best] < _SURE * measured[shift] for shift in others):
            return best, True
    return best, False


def _apart_in_time(
    one: tuple[CommOperations, pa.Table, int], other: tuple[CommOperations, pa.Table, int]
) -> int:
    """Return how many units the other's first is behind by the clock: each begins near one, most as far apart."""
    starts, own = (units["start_ns"].to_numpy() + shift_ns for _, units, shift_ns in (one, other))
    return int(
        np.median(np.searchsorted((starts[1:] + starts[:-1]) // 2, own) - np.arange(own.size))
    )
