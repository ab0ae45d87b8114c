"""Which ranks are late by themselves, and which pass on the delay of another rank."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import run_starts
from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import (
    PayloadsOfReportTable,
)

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
    n_groups = np.unique(group).size
    if n_groups <= 1:
        return rows
    waited = _waited_elsewhere(rows, group)
    least_waited = _least_of_collective(rows, comm, waited)
    passed_on = pa.array(waited - least_waited)
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
    """Return a number for the ranks of the communicator of each operation.

    Communicators of the same ranks have the same number.
    """
    pairs = np.unique(np.stack((comm, rank)), axis=1)
    comm_of_pair, rank_of_pair = pairs
    firsts = run_starts(comm_of_pair)
    codes = comm_of_pair[firsts]
    ranks_of_codes = np.split(rank_of_pair, firsts[1:])
    largest_code = int(comm.max(initial=0))
    group_of_comm = np.zeros(largest_code + 1, np.int64)
    numbers: dict[bytes, int] = {}
    for code, ranks in zip(codes.tolist(), ranks_of_codes, strict=True):
        key = ranks.tobytes()
        group_of_comm[code] = numbers.setdefault(key, len(numbers))
    return group_of_comm[comm]


class _Waits(NamedTuple):
    """Operations: their group, their start, and until when and how long their rank waited."""

    group: Int64
    start: Int64
    until: Int64
    wait_ns: Int64


def _waited_elsewhere(rows: PayloadsOfReportTable, group: Int64) -> Int64:
    """Return how long the rank of each operation waited in other groups, ns.

    This counts from its last operation of the same group on.
    """
    start = rows["start_ns"].to_numpy()
    rank = rows["rank"].to_numpy()
    until, exposed_wait_ns = _waits_of_operations(rows)
    waits = _Waits(group, start, until, exposed_wait_ns)
    order = np.lexsort((start, rank))
    first_of_rank = run_starts(rank[order])
    waited = np.zeros(rank.size, np.int64)
    for places in np.split(order, first_of_rank[1:]):
        waits_of_rank = _Waits(*(column[places] for column in waits))
        waited[places] = _waited_by_rank(waits_of_rank)
    return waited


def _waits_of_operations(rows: pa.Table) -> tuple[Int64, Int64]:
    """Return until when each operation waited, and how long it did without compute, ns."""
    start = rows["start_ns"].to_numpy()
    end = rows["end_ns"].to_numpy()
    wait_ns = pc.fill_null(rows["wait_ns"], 0).to_numpy()
    exposed_ns = pc.fill_null(rows["exposed_ns"], _MAX_NS).to_numpy()
    latest = np.maximum(end, start)
    until = np.clip(start + wait_ns, start, latest)
    duration_ns = until - start
    exposed_wait_ns = np.minimum(duration_ns, exposed_ns)
    return until, exposed_wait_ns


def _waited_by_rank(waits: _Waits) -> Int64:
    """Return what `_waited_elsewhere` does for the operations of one rank, in order of start."""
    start = waits.start
    before = _end_of_previous_wait(waits)
    by_end = np.argsort(waits.until, kind="stable")
    ended = waits.until[by_end]
    total_wait_ns = np.cumsum(waits.wait_ns[by_end])
    waited_by_then = np.append(0, total_wait_ns)
    n_ended_at_start = np.searchsorted(ended, start, side="right")
    n_ended_before = np.searchsorted(ended, before, side="right")
    waited = waited_by_then[n_ended_at_start] - waited_by_then[n_ended_before]
    # If a rank waits for several groups at the same time, that delays it once.
    longest = np.maximum(start - before, 0)
    once: Int64 = np.clip(waited, 0, longest)
    return once


def _end_of_previous_wait(waits: _Waits) -> Int64:
    """Return until when the previous operation of the group waited.

    For the first of a group, it is the start of the first operation.
    """
    # Operations of a group stay in order of start.
    by_group = np.argsort(waits.group, kind="stable")
    group = waits.group[by_group]
    until = waits.until[by_group]
    end_of_previous = np.roll(until, 1)
    first_of_group = run_starts(group)
    end_of_previous[first_of_group] = waits.start[0]
    before = np.empty(by_group.size, np.int64)
    before[by_group] = end_of_previous
    return before


def _least_of_collective(rows: pa.Table, comm: Int64, waited: Int64) -> Int64:
    """Return for each operation the least that a rank of its collective waited elsewhere."""
    step = rows["step"].to_numpy()
    start = rows["start_ns"].to_numpy()
    wait_ns = pc.fill_null(rows["wait_ns"], 0).to_numpy()
    last_start = start + wait_ns
    order = np.lexsort((last_start, comm, step))
    keys = np.stack((step, comm, last_start))
    keys = keys[:, order]
    following_keys = keys[:, 1:]
    differs = following_keys != keys[:, :-1]
    is_new = differs.any(axis=0)
    is_first = np.append(True, is_new)[: order.size]
    first = np.flatnonzero(is_first)
    waited = waited[order]
    least_of_collectives = np.minimum.reduceat(waited, first)
    n_begun = np.cumsum(is_first)
    least = np.empty(order.size, np.int64)
    least[order] = least_of_collectives[n_begun - 1]
    return least
