"""What calls of NCCL and of symmetric memory launched: copies, which are one collective each, and kernels without a collective's name.

NCCL may move data by copies alone (copy engines), and run several collectives by one kernel of a
generic name. What it is then says the NVTX range of the call that holds the launch, or, of a group,
the calls between ``ncclGroupStart`` and the ``ncclGroupEnd`` that launched all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from nsyspipe.analysis.attribution import UNKNOWN, are_among, filled
from nsyspipe.analysis.intervals import Slices, is_sorted, outermost, run_starts
from nsyspipe.model import canonical
from nsyspipe.model.comm_kernels import (
    MIXED_GROUP,
    CommCall,
    collective_of_kernel,
    comm_call_of,
    name_of_copies,
    name_with_collective,
)
from nsyspipe.model.names import OTHER
from nsyspipe.model.table import Flags, Int64

COPY_KINDS = (canonical.DTOD_KIND, canonical.PEER_KIND)  # that may be a collective's
UNKNOWN_SIZE = 0  # number of ranks of a communicator that was not recorded


class Called(Struct, frozen=True):
    """What of a report is communication, or which, by the call that launched it."""

    launches: pa.Table = field(default_factory=canonical.CALLED.empty)
    names: Mapping[int, str] = field(default_factory=dict)  # text of each of its name ids
    # ranges with copies that count as communication although the size of their communicator is not
    # known
    n_assumed: int = 0
    # ranges with copies inside a GPU that do not count, since nothing says that there are several
    # ranks
    n_left: int = 0


class CallRanges(Struct, frozen=True):
    """Ranges that may hold launches, in order of (thread, start); none holds another of its thread."""

    thread_id: Int64
    start_ns: Int64
    end_ns: Int64
    call: Int64  # index into `calls`
    # of its communicator, of a group the largest; `UNKNOWN_SIZE` where that was not recorded
    n_ranks: Int64
    calls: tuple[CommCall, ...]

    def holding(self, thread: int, times: Int64) -> tuple[Int64, Int64]:
        """Return the places of those sorted times that lie in a range of a thread, and which range holds each."""
        first, last = np.searchsorted(self.thread_id, (thread, thread + 1))
        place, owner = Slices.within(
            times, self.start_ns[first:last], self.end_ns[first:last]
        ).rows()
        return place, owner + first


def call_ranges(comm_calls: pa.Table, n_ranks: Int64) -> CallRanges:
    """Return the ranges of `canonical.COMM_CALLS` that may hold launches; of each row the size of its communicator is given."""
    texts = comm_calls["text"].combine_chunks()
    known = [comm_call_of(text or "") for text in texts.dictionary.to_pylist()]
    calls = tuple(CommCall(MIXED_GROUP, OTHER) if one is None else one for one in known)
    thread, start, end = (
        comm_calls[name].to_numpy() for name in ("thread_id", "start_ns", "end_ns")
    )
    order = np.lexsort((-end, start, thread))
    thread = thread[order]
    start = start[order]
    end = end[order]
    call = texts.indices.to_numpy().astype(np.int64)[order]
    size = n_ranks[order]
    is_group_start = np.array([one.is_group_start for one in calls], np.bool_)[call]
    is_group_end = np.array([one.is_group_end for one in calls], np.bool_)[call]
    edges = np.append(run_starts(thread), thread.size).tolist()
    picked = []
    for first, last in itertools.pairwise(edges):
        own = slice(first, last)
        if is_group_end[own].any():
            _tell_groups(calls, call[own], size[own], is_group_start[own], is_group_end[own])
        rows = np.flatnonzero(~is_group_start[own]) + first
        picked.append(rows[outermost(start[rows], end[rows])])
    kept = np.concatenate([np.empty(0, np.int64), *picked])
    return CallRanges(thread[kept], start[kept], end[kept], call[kept], size[kept], calls)


def _tell_groups(
    calls: tuple[CommCall, ...],
    call: Int64,
    size: Int64,
    is_group_start: Flags,
    is_group_end: Flags,
) -> None:
    """Give the ends of one thread's groups the call that all calls of the group are, and the largest size, in place.

    An end stays as it is where the calls differ, where it is inside another group, or where its
    start was not captured.
    """
    depth = np.cumsum(is_group_start.astype(np.int64) - is_group_end)
    depth -= np.minimum(np.minimum.accumulate(depth), 0)  # ends without a start
    ends = np.flatnonzero(is_group_end & (depth == 0))
    inside = np.flatnonzero(~is_group_start & ~is_group_end & (depth > 0))
    group = np.searchsorted(ends, inside)
    inside = inside[group < ends.size]
    group = group[group < ends.size]
    if not inside.size:
        return
    first = run_starts(group)
    names = np.unique([one.name for one in calls], return_inverse=True)[1][call[inside]]
    is_alike = np.minimum.reduceat(names, first) == np.maximum.reduceat(names, first)
    end = ends[group[first]]
    call[end[is_alike]] = call[inside[first]][is_alike]
    size[end] = np.maximum.reduceat(size[inside], first)


def find_called(
    kernels: pa.Table,
    copies: pa.Table,
    names: Mapping[int, str],
    *,
    host_calls: pa.Table | None,
    comm_calls: pa.Table,
    n_ranks: Int64,
    are_several: bool | None,
) -> Called:
    """Find what calls that communicate launched; without streams.

    The tables are those of `canonical`; `n_ranks` as `call_ranges` takes it. Copies inside a GPU
    count where the communicator has two ranks or more; where that was not recorded, if
    `are_several` says that the job has (None: nobody knows). What goes to another GPU counts in any
    case, as does what symmetric memory copies.
    """
    if host_calls is None or not comm_calls.num_rows:
        return Called()
    nameless = _nameless(kernels, names)
    is_copied = np.isin(filled(copies["copy_kind"], -1), COPY_KINDS)
    if not (nameless.any() or is_copied.any()):
        return Called()
    of_kernels = kernels.select(["process_id", "correlation_id", "name_id"]).filter(
        pa.array(nameless)
    )
    of_copies = copies.select(["process_id", "correlation_id", "copy_kind"]).filter(
        pa.array(is_copied)
    )
    ids = [filled(rows["correlation_id"]) for rows in (of_kernels, of_copies)]
    ranges = call_ranges(comm_calls, n_ranks)
    if not ranges.call.size:
        return Called()
    launched = _launched_in(host_calls, ranges, np.unique(np.concatenate(ids)))
    if not launched.num_rows:
        return Called()
    copying, n_assumed, n_left = _copying(launched, of_copies, ranges, are_several=are_several)
    kernel_rows = _kernels_launched(launched, of_kernels, ranges, names)
    texts = sorted({*copying["text"].to_pylist(), *kernel_rows["text"].to_pylist()})
    name_ids = {text: canonical.LARGEST_MADE_NAME_ID - at for at, text in enumerate(texts)}
    rows = pa.concat_tables([copying, kernel_rows]).sort_by(
        [(name, "ascending") for name in ("process_id", "start_ns", "correlation_id")]
    )
    columns = {name: rows[name] for name in ("process_id", "correlation_id", "call", "is_copy")}
    columns["stream_id"] = pa.nulls(rows.num_rows, pa.int64())
    columns["name_id"] = pa.array([name_ids[text] for text in rows["text"].to_pylist()], pa.int64())
    return Called(
        canonical.CALLED.table(columns),
        {at: text for text, at in name_ids.items()},
        n_assumed,
        n_left,
    )


def _nameless(kernels: pa.Table, names: Mapping[int, str]) -> Flags:
    """Tell which communication kernels have a name that says no collective."""
    nameless = [number for number, text in names.items() if collective_of_kernel(text) == OTHER]
    is_comm = kernels["is_comm"].to_numpy()
    flags: Flags = (
        is_comm & np.isin(filled(kernels["name_id"]), nameless) if is_comm.any() else is_comm
    )
    return flags


def _launched_in(host_calls: pa.Table, ranges: CallRanges, correlation_ids: Int64) -> pa.Table:
    """Return process, correlation id, start and ``call`` of the API calls with such an id that lie in a range, the first of equal ids."""
    thread, start = (host_calls[name].to_numpy() for name in ("thread_id", "start_ns"))
    found = []
    for number in np.unique(ranges.thread_id).tolist():
        of_thread = np.flatnonzero(thread == number)
        if not is_sorted(start[of_thread]):
            of_thread = of_thread[np.argsort(start[of_thread], kind="stable")]
        place, call = ranges.holding(number, start[of_thread])
        found.append((of_thread[place], call))
    # Few API calls lie in a range, so that all else looks at these only.
    inside, calls = (np.concatenate(one) for one in zip(*found, strict=True))
    order = np.argsort(start[inside], kind="stable")
    inside = inside[order]
    calls = calls[order]
    rows = host_calls.select(["process_id", "correlation_id", "start_ns"]).take(pa.array(inside))
    rows = rows.append_column("call", pa.array(calls))
    rows = rows.filter(pa.array(are_among(rows["correlation_id"].to_numpy(), correlation_ids)))
    return rows.take(pa.array(np.sort(np.unique(_pairs(rows), return_index=True)[1])))


def _pairs(*tables: pa.Table) -> Int64:
    """Return a number for each (process, correlation id) of all tables, one behind the other."""
    codes = []
    for name in ("process_id", "correlation_id"):
        values = np.concatenate([filled(table[name]) for table in tables])
        codes.append(np.unique(values, return_inverse=True)[1])
    width = int(codes[1].max(initial=0)) + 1
    pairs: Int64 = codes[0] * width + codes[1]
    return pairs


def rows_of_launches(wanted: pa.Table, table: pa.Table) -> Int64:
    """Return the row of a table with the process and correlation id of each wanted row; -1 for none."""
    pairs = _pairs(wanted, table)
    asked = pairs[: wanted.num_rows]
    there = pairs[wanted.num_rows :]
    order = np.argsort(there, kind="stable")
    at = np.minimum(np.searchsorted(there[order], asked), max(there.size - 1, 0))
    if not there.size:
        return np.full(asked.size, -1)
    return np.where(there[order][at] == asked, order[at], -1)


def _copying(
    launched: pa.Table, copies: pa.Table, ranges: CallRanges, *, are_several: bool | None
) -> tuple[pa.Table, int, int]:
    """Return the API calls whose copies are communication, and how many ranges' copies are so, or are not, unseen how many ranks there are."""
    launch = rows_of_launches(copies, launched)
    is_inside = launch >= 0
    launch = launch[is_inside]
    kind = filled(copies["copy_kind"])[is_inside]
    call_of_launch = launched["call"].to_numpy()
    call = call_of_launch[launch]
    is_peer = np.zeros(ranges.call.size, np.bool_)
    is_peer[call[kind == canonical.PEER_KIND]] = True
    is_symmetric = np.array([one.is_symmetric for one in ranges.calls], np.bool_)[ranges.call]
    has_copies = np.zeros(ranges.call.size, np.bool_)
    has_copies[call] = True
    is_sure = is_peer | is_symmetric | (ranges.n_ranks > 1)
    is_open = has_copies & ~is_sure & (ranges.n_ranks == UNKNOWN_SIZE)
    counts = is_sure | (is_open & bool(are_several))
    rows = np.unique(launch[counts[call]])
    n_open = int(np.count_nonzero(is_open))
    chosen = _named(
        launched, rows, ranges, [name_of_copies(one.name) for one in ranges.calls], is_copy=True
    )
    return chosen, n_open if are_several else 0, n_open if are_several is None else 0


def _kernels_launched(
    launched: pa.Table, kernels: pa.Table, ranges: CallRanges, names: Mapping[int, str]
) -> pa.Table:
    """Return the API calls that launched a kernel without a collective's name inside a call that says which it is."""
    launch = rows_of_launches(kernels, launched)
    told = np.array([one.collective != OTHER for one in ranges.calls], np.bool_)[ranges.call]
    call = np.where(launch < 0, 0, launched["call"].to_numpy()[launch])
    rows = np.flatnonzero((launch >= 0) & told[call])
    texts = [
        name_with_collective(names[number], ranges.calls[code].collective)
        for number, code in zip(
            filled(kernels["name_id"])[rows].tolist(), ranges.call[call[rows]].tolist(), strict=True
        )
    ]
    chosen = _named(launched, launch[rows], ranges, [""] * len(ranges.calls), is_copy=False)
    return chosen.set_column(
        chosen.column_names.index("text"), "text", pa.array(texts, pa.string())
    )


def _named(
    launched: pa.Table, rows: Int64, ranges: CallRanges, texts: list[str], *, is_copy: bool
) -> pa.Table:
    chosen = launched.take(pa.array(rows, pa.int64()))
    code = ranges.call[chosen["call"].to_numpy()]
    chosen = chosen.append_column("is_copy", pa.array(np.full(rows.size, is_copy)))
    return chosen.append_column(
        "text", pa.array(texts, pa.string()).take(pa.array(code, pa.int64()))
    )


def with_called(kernels: pa.Table, copies: pa.Table, called: Called) -> tuple[pa.Table, pa.Table]:
    """Return the operations with each call's copies as one communication operation among the kernels, and no copies.

    That begins with the first of them, ends with the last, and has the launch of the first that was
    launched; copies of one call on two devices are two operations. A column ``bytes`` of kernels,
    where there is one, gets the sum of theirs.
    """
    if not called.launches.num_rows:
        return kernels, copies
    is_copy = called.launches["is_copy"].to_numpy()
    kernels = _with_collectives(kernels, called.launches.filter(pa.array(~is_copy)))
    of_copies = called.launches.filter(pa.array(is_copy))
    candidates = np.flatnonzero(np.isin(filled(copies["copy_kind"], -1), COPY_KINDS))
    launch = rows_of_launches(copies.take(pa.array(candidates)), of_copies)
    rows = candidates[launch >= 0]
    launch = launch[launch >= 0]
    if not rows.size:
        return kernels, copies
    is_left = np.ones(copies.num_rows, np.bool_)
    is_left[rows] = False
    made = _collectives_of(copies.take(pa.array(rows)), launch, of_copies, kernels.column_names)
    return pa.concat_tables([kernels, made.cast(kernels.schema)]), copies.filter(pa.array(is_left))


def _with_collectives(kernels: pa.Table, of_kernels: pa.Table) -> pa.Table:
    """Give kernels without a collective's name the one that says what their call is."""
    if not of_kernels.num_rows:
        return kernels
    candidates = np.flatnonzero(kernels["is_comm"].to_numpy())
    launch = rows_of_launches(kernels.take(pa.array(candidates)), of_kernels)
    rows = candidates[launch >= 0]
    launch = launch[launch >= 0]
    name_ids = filled(kernels["name_id"]).copy()
    name_ids[rows] = of_kernels["name_id"].to_numpy()[launch]
    at = kernels.column_names.index("name_id")
    return kernels.set_column(
        at, kernels.field(at), pa.array(name_ids, pa.int64(), mask=name_ids == UNKNOWN)
    )


def _collectives_of(
    copies: pa.Table, launch: Int64, of_copies: pa.Table, columns: list[str]
) -> pa.Table:
    """Return one row for each call and device of some copies, with the columns of kernels; `launch` is a row of `of_copies`."""
    call = of_copies["call"].to_numpy()[launch]
    device = filled(copies["device_id"])
    order = np.lexsort((launch, device, call))
    call = call[order]
    device = device[order]
    launch = launch[order]
    first = np.flatnonzero(np.append(True, (call[1:] != call[:-1]) | (device[1:] != device[:-1])))
    begun = of_copies.take(pa.array(launch[first]))
    start, end = (copies[name].to_numpy()[order] for name in ("start_ns", "end_ns"))
    values = {
        name: begun[name] for name in ("process_id", "correlation_id", "stream_id", "name_id")
    }
    values["start_ns"] = pa.array(np.minimum.reduceat(start, first))
    values["end_ns"] = pa.array(np.maximum.reduceat(end, first))
    values["device_id"] = pa.array(device[first], mask=device[first] == UNKNOWN)
    values["is_comm"] = pa.array(np.ones(first.size, np.bool_))
    if "bytes" in columns:
        n_bytes = filled(copies["bytes"])[order]
        is_known = np.logical_and.reduceat(n_bytes != UNKNOWN, first)
        values["bytes"] = pa.array(
            np.add.reduceat(np.where(n_bytes == UNKNOWN, 0, n_bytes), first), mask=~is_known
        )
    nothing = pa.nulls(first.size, pa.int64())
    return pa.table({name: values.get(name, nothing) for name in columns})
