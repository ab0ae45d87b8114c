"""Which ranks are late by themselves, and which pass on the delay of another rank."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import run_starts
from nsyspipe.model.table import Int64

_MAX_NS = np.iinfo(np.int64).max
LATE_COLUMNS = (
    "step",
    "rank",
    "comm_id",
    "start_ns",
    "end_ns",
    "exposed_ns",
    "wait_ns",
    "late_by_ns",
    "held_up_ns",
)


def without_passed_on(rows: pa.Table) -> pa.Table:
    """Return matched collectives with delays that do not count what ranks pass on.

    A rank that waited in one group of ranks is late for the next collective of another group. It is
    not late by itself, but passes on a delay.

    Each rank of a collective has waited some time in other groups, since its last collective of the
    same group. One of the ranks has waited least. Each other rank passes on how much longer it has
    waited. Waiting at the same time as compute delays no rank, and does not count.

    `rows` have `LATE_COLUMNS` and ``inherited_ns``, as `traffic.own_lateness` returns them. In the
    result, ``late_by_ns`` and ``held_up_ns`` are less by what is passed on, but at least 0.
    ``inherited_ns`` is more by what is passed on.
    """
    if not rows.num_rows:
        return rows
    comm = _communicators(rows)
    group = _groups(comm, rows["rank"].to_numpy())
    n_groups = np.unique(group).size
    if n_groups <= 1:
        # No rank can wait in another group.
        return rows
    waited_ns = _waited_elsewhere(rows, group)
    least_waited_ns = _least_of_collective(rows, comm, waited_ns)
    passed_on = pa.array(waited_ns - least_waited_ns)
    for name in ("late_by_ns", "held_up_ns"):
        difference = pc.subtract(rows[name], passed_on)
        by_itself = pc.max_element_wise(difference, 0, skip_nulls=False)
        rows = _with_column(rows, name, by_itself)
    inherited = pc.add(rows["inherited_ns"], passed_on)
    return _with_column(rows, "inherited_ns", inherited)


def _with_column(rows: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    """Return a table with other values in one of its columns."""
    place = rows.column_names.index(name)
    return rows.set_column(place, name, values)


def _communicators(rows: pa.Table) -> Int64:
    """Return a number for the communicator of each operation; unknown ones share a number."""
    names = rows["comm_id"].cast(pa.string())
    encoded = names.combine_chunks().dictionary_encode()
    code_of_unknown = len(encoded.dictionary)
    codes = pc.fill_null(encoded.indices, code_of_unknown)
    numbers: Int64 = codes.to_numpy().astype(np.int64)
    return numbers


def _groups(comm: Int64, rank: Int64) -> Int64:
    """Return the group of ranks of each operation, as a number.

    Communicators of the same ranks are one group. `comm` and `rank` are those of each operation.
    """
    comm_and_rank = np.stack((comm, rank))
    comm_of_pair, rank_of_pair = np.unique(comm_and_rank, axis=1)
    first_pair = run_starts(comm_of_pair)
    comms = comm_of_pair[first_pair]
    ranks_of_comms = np.split(rank_of_pair, first_pair[1:])
    largest_comm = int(comm.max(initial=0))
    group_of_comm = np.zeros(largest_comm + 1, np.int64)
    group_of_ranks: dict[bytes, int] = {}
    for number, ranks in zip(comms.tolist(), ranks_of_comms, strict=True):
        key = ranks.tobytes()
        # A new group gets the next number.
        group_of_comm[number] = group_of_ranks.setdefault(key, len(group_of_ranks))
    return group_of_comm[comm]


class _Waits(NamedTuple):
    """Operations: their group, their start, and until when and how long their rank waited."""

    group: Int64
    start: Int64
    until: Int64
    wait_ns: Int64


def _waited_elsewhere(rows: pa.Table, group: Int64) -> Int64:
    """Return how long the rank of each operation waited in other groups, ns.

    Only waiting since the rank's previous operation in the same group counts.
    """
    start = rows["start_ns"].to_numpy()
    rank = rows["rank"].to_numpy()
    until, exposed_wait_ns = _waits_of_operations(rows)
    waits = _Waits(group, start, until, exposed_wait_ns)
    by_rank = np.lexsort((start, rank))
    first_of_rank = run_starts(rank[by_rank])
    waited_ns = np.zeros(rank.size, np.int64)
    for operations in np.split(by_rank, first_of_rank[1:]):
        columns_of_rank = [column[operations] for column in waits]
        waits_of_rank = _Waits(*columns_of_rank)
        waited_ns[operations] = _waited_by_rank(waits_of_rank)
    return waited_ns


def _waits_of_operations(rows: pa.Table) -> tuple[Int64, Int64]:
    """Return until when each operation waited, and how long it waited without compute, ns.

    An operation waits from its start on, and no longer than until its end. The time without compute
    is at most the exposed time of the operation. All of the waiting counts if that is not known.
    """
    start = rows["start_ns"].to_numpy()
    end = rows["end_ns"].to_numpy()
    wait_ns = pc.fill_null(rows["wait_ns"], 0).to_numpy()
    exposed_ns = pc.fill_null(rows["exposed_ns"], _MAX_NS).to_numpy()
    # No wait is negative, even in a damaged report.
    latest_until = np.maximum(end, start)
    until = np.clip(start + wait_ns, start, latest_until)
    exposed_wait_ns = np.minimum(until - start, exposed_ns)
    return until, exposed_wait_ns


def _waited_by_rank(waits: _Waits) -> Int64:
    """Return how long one rank waited in other groups before each of its operations, ns.

    These are all waits that ended between the end of the previous wait of the same group and the
    start of the operation. `waits` are those of the rank, in order of start.
    """
    start = waits.start
    previous_end = _end_of_previous_wait(waits)
    by_end = np.argsort(waits.until, kind="stable")
    sorted_ends = waits.until[by_end]
    # Element i is the length of the first i waits to end.
    total_of_first_ns = np.append(0, np.cumsum(waits.wait_ns[by_end]))
    n_ended_by_start = np.searchsorted(sorted_ends, start, side="right")
    n_ended_by_previous = np.searchsorted(sorted_ends, previous_end, side="right")
    waited_ns = total_of_first_ns[n_ended_by_start] - total_of_first_ns[n_ended_by_previous]
    # Waits for several groups at the same time delay the rank once, so by no more than this time.
    max_waited_ns = np.maximum(start - previous_end, 0)
    waited_once_ns: Int64 = np.clip(waited_ns, 0, max_waited_ns)
    return waited_once_ns


def _end_of_previous_wait(waits: _Waits) -> Int64:
    """Return for each operation until when the previous operation of its group waited.

    The first operation of a group has none. It gets the start of the first operation of all.
    """
    # Operations of a group stay in order of start.
    by_group = np.argsort(waits.group, kind="stable")
    group = waits.group[by_group]
    until = waits.until[by_group]
    end_of_previous = np.roll(until, 1)
    first_of_group = run_starts(group)
    end_of_previous[first_of_group] = waits.start[0]
    # Back in the order of the operations.
    previous_end = np.empty(by_group.size, np.int64)
    previous_end[by_group] = end_of_previous
    return previous_end


def _least_of_collective(rows: pa.Table, comm: Int64, waited_ns: Int64) -> Int64:
    """Return for each operation the least that a rank of its collective waited elsewhere, ns.

    `comm` and `waited_ns` have a value per operation.
    """
    step = rows["step"].to_numpy()
    start = rows["start_ns"].to_numpy()
    wait_ns = pc.fill_null(rows["wait_ns"], 0).to_numpy()
    # All ranks of a collective wait for the same last start. So it tells collectives apart.
    last_start = start + wait_ns
    by_collective = np.lexsort((last_start, comm, step))
    key = np.stack((step, comm, last_start))[:, by_collective]
    differs_from_previous = key[:, 1:] != key[:, :-1]
    is_new = differs_from_previous.any(axis=0)
    begins_collective = np.append(True, is_new)
    first = np.flatnonzero(begins_collective)
    least_of_collective = np.minimum.reduceat(waited_ns[by_collective], first)
    n_begun = np.cumsum(begins_collective)
    # Back in the order of the operations.
    least_ns = np.empty(by_collective.size, np.int64)
    least_ns[by_collective] = least_of_collective[n_begun - 1]
    return least_ns
