"""Which ranks are late by themselves, and which pass on the delay of another rank."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import run_starts
from nsyspipe.model.table import Int64

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

    A rank that waited in one group of ranks is late for the next collective of another group for
    that reason, and not by itself. It passes on the time that it waited in other groups since its
    last collective of the same group, less the time that the rank of the collective waited that
    waited least. Waiting at the same time as compute delays no rank.

    `rows` have `LATE_COLUMNS` and ``inherited_ns``, as `traffic.own_lateness` returns them. In the
    result, ``late_by_ns`` and ``held_up_ns`` are less by what is passed on (0 at least), and
    ``inherited_ns`` is more by it.
    """
    if not rows.num_rows:
        return rows
    comm = _communicators(rows)
    group = _groups(comm, rows["rank"].to_numpy())
    if np.unique(group).size <= 1:
        return rows
    waited = _waited_elsewhere(rows, group)
    passed_on = waited - _least_of_collective(rows, comm, waited)
    for name in ("late_by_ns", "held_up_ns"):
        difference = pc.subtract(rows[name], pa.array(passed_on))
        by_itself = pc.max_element_wise(difference, 0, skip_nulls=False)
        rows = _with_column(rows, name, by_itself)
    inherited = pc.add(rows["inherited_ns"], pa.array(passed_on))
    return _with_column(rows, "inherited_ns", inherited)


def _with_column(rows: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    """Return a table with other values in one of its columns."""
    return rows.set_column(rows.column_names.index(name), name, values)


def _communicators(rows: pa.Table) -> Int64:
    """Return a number for the communicator of each operation; unknown ones share a number."""
    named = rows["comm_id"].cast(pa.string()).combine_chunks().dictionary_encode()
    code_of_unknown = len(named.dictionary)
    codes: Int64 = pc.fill_null(named.indices, code_of_unknown).to_numpy().astype(np.int64)
    return codes


def _groups(comm: Int64, rank: Int64) -> Int64:
    """Return a number for the ranks of the communicator of each operation.

    Communicators of the same ranks have the same number.
    """
    comm_of_pair, rank_of_pair = np.unique(np.stack((comm, rank)), axis=1)
    firsts = run_starts(comm_of_pair)
    codes = comm_of_pair[firsts].tolist()
    ranks_of_codes = np.split(rank_of_pair, firsts[1:])
    group_of_comm = np.zeros(int(comm.max(initial=0)) + 1, np.int64)
    numbers: dict[bytes, int] = {}
    for code, ranks in zip(codes, ranks_of_codes, strict=True):
        group_of_comm[code] = numbers.setdefault(ranks.tobytes(), len(numbers))
    return group_of_comm[comm]


def _waited_elsewhere(rows: pa.Table, group: Int64) -> Int64:
    """Return how long the rank of each operation waited in other groups, ns.

    This counts from its last operation of the same group on.
    """
    start = rows["start_ns"].to_numpy()
    end = rows["end_ns"].to_numpy()
    wait_ns = pc.fill_null(rows["wait_ns"], 0).to_numpy()
    until = np.clip(start + wait_ns, start, np.maximum(end, start))
    exposed = pc.fill_null(rows["exposed_ns"], np.iinfo(np.int64).max).to_numpy()
    wait = np.minimum(until - start, exposed)
    rank = rows["rank"].to_numpy()
    order = np.lexsort((start, rank))
    waited = np.zeros(rank.size, np.int64)
    for operations in np.split(order, run_starts(rank[order])[1:]):
        waited[operations] = _waited_by_rank(
            group[operations], start[operations], until[operations], wait[operations]
        )
    return waited


def _waited_by_rank(group: Int64, start: Int64, until: Int64, wait: Int64) -> Int64:
    """Return what `_waited_elsewhere` does for the operations of one rank, in order of start."""
    by_end = np.argsort(until, kind="stable")
    ended = until[by_end]
    waited_by_then = np.append(0, np.cumsum(wait[by_end]))
    # Operations of a group stay in order of start.
    by_group = np.argsort(group, kind="stable")
    sorted_group = group[by_group]
    is_first = np.append(True, sorted_group[1:] != sorted_group[:-1])
    # Until when the previous operation of the group waited.
    until_of_previous = np.append(0, until[by_group][:-1])
    before = np.empty(start.size, np.int64)
    before[by_group] = np.where(is_first, start[0], until_of_previous)
    n_ended_at_start = np.searchsorted(ended, start, side="right")
    n_ended_before = np.searchsorted(ended, before, side="right")
    waited = waited_by_then[n_ended_at_start] - waited_by_then[n_ended_before]
    # If a rank waits for several groups at the same time, that delays it once.
    once: Int64 = np.clip(waited, 0, np.maximum(start - before, 0))
    return once


def _least_of_collective(rows: pa.Table, comm: Int64, waited: Int64) -> Int64:
    """Return for each operation the least that a rank of its collective waited elsewhere."""
    step = rows["step"].to_numpy()
    wait_ns = pc.fill_null(rows["wait_ns"], 0).to_numpy()
    last_start = rows["start_ns"].to_numpy() + wait_ns
    order = np.lexsort((last_start, comm, step))
    keys = np.stack((step, comm, last_start))[:, order]
    differs_from_previous = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    is_first = np.append(True, differs_from_previous)[: order.size]
    least_of_collectives = np.minimum.reduceat(waited[order], np.flatnonzero(is_first))
    collective = np.cumsum(is_first) - 1
    least = np.empty(order.size, np.int64)
    least[order] = least_of_collectives[collective]
    return least
