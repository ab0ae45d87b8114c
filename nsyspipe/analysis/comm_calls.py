"""Operations that calls of NCCL and of symmetric memory launched, and which collectives they are.

NCCL may move data by copies alone (copy engines), and run several collectives by one kernel of a
generic name. Then the NVTX range of the call that holds the launch tells the collective. For a
group these are the calls between ``ncclGroupStart`` and the ``ncclGroupEnd`` that launched all of
them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

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

# Kinds of copies that may be those of a collective.
COPY_KINDS = (canonical.DTOD_KIND, canonical.PEER_KIND)
# Number of ranks of a communicator that was not recorded.
UNKNOWN_SIZE = 0


class Called(Struct, frozen=True):
    """The operations of a report that are communication because of the call that launched them."""

    launches: pa.Table = field(default_factory=canonical.CALLED.empty)
    # Text of each name ID of the launches.
    names: Mapping[int, str] = field(default_factory=dict)
    # Ranges with copies that count as communication although the size of their communicator is not
    # known.
    n_assumed: int = 0
    # Ranges with copies inside a GPU that do not count, because nothing says that there are several
    # ranks.
    n_left: int = 0


class CallRanges(Struct, frozen=True):
    """Ranges that may hold launches, in order of (thread, start). Those of a thread are apart."""

    thread_id: Int64
    start_ns: Int64
    end_ns: Int64
    # Index into `calls`.
    call: Int64
    # Ranks of the communicator, of a group the largest number. `UNKNOWN_SIZE` if not recorded.
    n_ranks: Int64
    calls: tuple[CommCall, ...]

    def flags(self, is_wanted: Callable[[CommCall], bool]) -> Flags:
        """Tell for each range whether its call is wanted."""
        return np.array([is_wanted(call) for call in self.calls], np.bool_)[self.call]

    def holding(self, thread: int, times: Int64) -> tuple[Int64, Int64]:
        """Return the places of sorted times that are in a range of a thread, and their ranges."""
        first, last = np.searchsorted(self.thread_id, (thread, thread + 1))
        starts = self.start_ns[first:last]
        ends = self.end_ns[first:last]
        place, owner = Slices.within(times, starts, ends).rows()
        return place, owner + first


def call_ranges(comm_calls: pa.Table, n_ranks: Int64) -> CallRanges:
    """Return the ranges of `canonical.COMM_CALLS` that may hold launches.

    `n_ranks` is the size of the communicator of each row.
    """
    texts = comm_calls["text"].combine_chunks()
    calls = tuple(
        comm_call_of(text or "") or CommCall(MIXED_GROUP, OTHER)
        for text in texts.dictionary.to_pylist()
    )
    start = comm_calls["start_ns"].to_numpy()
    end = comm_calls["end_ns"].to_numpy()
    thread = comm_calls["thread_id"].to_numpy()
    order = np.lexsort((-end, start, thread))
    start = start[order]
    end = end[order]
    thread = thread[order]
    call = texts.indices.to_numpy().astype(np.int64)[order]
    size = n_ranks[order]
    is_group_start = np.array([call.is_group_start for call in calls], np.bool_)[call]
    is_group_end = np.array([call.is_group_end for call in calls], np.bool_)[call]
    rows_of_threads = [np.empty(0, np.int64)]
    for part in _slices_of_threads(thread):
        if is_group_end[part].any():
            _name_groups(calls, call[part], size[part], is_group_start[part], is_group_end[part])
        rows = np.flatnonzero(~is_group_start[part]) + part.start
        rows_of_threads.append(rows[outermost(start[rows], end[rows])])
    rows = np.concatenate(rows_of_threads)
    return CallRanges(
        thread_id=thread[rows],
        start_ns=start[rows],
        end_ns=end[rows],
        call=call[rows],
        n_ranks=size[rows],
        calls=calls,
    )


def _name_groups(
    calls: tuple[CommCall, ...],
    call: Int64,
    size: Int64,
    is_group_start: Flags,
    is_group_end: Flags,
) -> None:
    """Give the end of each group of a thread the call of the group and the largest size, in place.

    An end stays as it is if the calls of the group differ, if it is inside another group, or if its
    start was not captured.
    """
    depth = np.cumsum(is_group_start.astype(np.int64) - is_group_end)
    # Ends without a start do not count.
    depth -= np.minimum(np.minimum.accumulate(depth), 0)
    ends = np.flatnonzero(is_group_end & (depth == 0))
    inside = np.flatnonzero(~is_group_start & ~is_group_end & (depth > 0))
    group = np.searchsorted(ends, inside)
    inside = inside[group < ends.size]
    group = group[group < ends.size]
    if not inside.size:
        return
    first = run_starts(group)
    name_of_call = np.unique([call.name for call in calls], return_inverse=True)[1]
    names = name_of_call[call[inside]]
    is_alike = np.minimum.reduceat(names, first) == np.maximum.reduceat(names, first)
    end = ends[group[first]]
    call[end[is_alike]] = call[inside[first]][is_alike]
    size[end] = np.maximum.reduceat(size[inside], first)


def _slices_of_threads(thread: Int64) -> Iterator[slice]:
    """Yield the rows of each thread, if rows are sorted by thread."""
    edges = np.append(run_starts(thread), thread.size).tolist()
    return itertools.starmap(slice, itertools.pairwise(edges))


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

    The tables are those of `canonical`, and `n_ranks` is as `call_ranges` takes it. Copies inside a
    GPU count if the communicator has two ranks or more. If its size was not recorded, they count if
    `are_several` says that the job has several ranks (None: not known). Copies to another GPU, and
    those of symmetric memory, always count.
    """
    if host_calls is None or not comm_calls.num_rows:
        return Called()
    is_nameless = pa.array(_are_nameless(kernels, names))
    is_copied = pa.array(np.isin(filled(copies["copy_kind"], -1), COPY_KINDS))
    kernels = kernels.select(["process_id", "correlation_id", "name_id"]).filter(is_nameless)
    copies = copies.select(["process_id", "correlation_id", "copy_kind"]).filter(is_copied)
    if not (kernels.num_rows or copies.num_rows):
        return Called()
    ids = np.append(filled(kernels["correlation_id"]), filled(copies["correlation_id"]))
    ranges = call_ranges(comm_calls, n_ranks)
    if not ranges.call.size:
        return Called()
    launched = _launched_in(host_calls, ranges, np.unique(ids))
    if not launched.num_rows:
        return Called()
    copying = _find_copying(launched, copies, ranges, are_several=are_several)
    kernel_launches = _kernels_launched(launched, kernels, ranges, names)
    launches = pa.concat_tables([copying.launches, kernel_launches])
    keys = ("process_id", "start_ns", "correlation_id")
    launches = launches.sort_by([(name, "ascending") for name in keys])
    name_id_of_text = _number_texts(launches["text"].to_pylist())
    return Called(
        launches=_called_table(launches, name_id_of_text),
        names={name_id: text for text, name_id in name_id_of_text.items()},
        n_assumed=copying.n_assumed,
        n_left=copying.n_left,
    )


def _number_texts(texts: Iterable[str]) -> dict[str, int]:
    """Return a name ID that no report has for each text."""
    in_order = sorted(set(texts))
    return {text: canonical.LARGEST_MADE_NAME_ID - place for place, text in enumerate(in_order)}


def _called_table(launches: pa.Table, name_id_of_text: Mapping[str, int]) -> pa.Table:
    """Return `canonical.CALLED`."""
    name_ids = [name_id_of_text[text] for text in launches["text"].to_pylist()]
    columns = {
        "process_id": launches["process_id"],
        "correlation_id": launches["correlation_id"],
        "call": launches["call"],
        "is_copy": launches["is_copy"],
        "stream_id": pa.nulls(launches.num_rows, pa.int64()),
        "name_id": pa.array(name_ids, pa.int64()),
    }
    return canonical.CALLED.table(columns)


def _are_nameless(kernels: pa.Table, names: Mapping[int, str]) -> Flags:
    """Tell which communication kernels have a name that does not tell the collective."""
    is_comm: Flags = kernels["is_comm"].to_numpy()
    if not is_comm.any():
        return is_comm
    nameless = [name_id for name_id, text in names.items() if collective_of_kernel(text) == OTHER]
    return is_comm & np.isin(filled(kernels["name_id"]), nameless)


def _launched_in(host_calls: pa.Table, ranges: CallRanges, correlation_ids: Int64) -> pa.Table:
    """Return the API calls with such a correlation ID that are in a range, the first of equal IDs.

    The columns are process, correlation ID, start and ``call``.
    """
    thread = host_calls["thread_id"].to_numpy()
    start = host_calls["start_ns"].to_numpy()
    rows_of_threads = []
    calls_of_threads = []
    for thread_id in np.unique(ranges.thread_id).tolist():
        rows = np.flatnonzero(thread == thread_id)
        if not is_sorted(start[rows]):
            rows = rows[np.argsort(start[rows], kind="stable")]
        place, call = ranges.holding(thread_id, start[rows])
        rows_of_threads.append(rows[place])
        calls_of_threads.append(call)
    # Few API calls are in a range. Everything else looks at these only.
    inside = np.concatenate(rows_of_threads)
    calls = np.concatenate(calls_of_threads)
    order = np.argsort(start[inside], kind="stable")
    columns = host_calls.select(["process_id", "correlation_id", "start_ns"])
    launched = columns.take(pa.array(inside[order])).append_column("call", pa.array(calls[order]))
    is_wanted = are_among(launched["correlation_id"].to_numpy(), correlation_ids)
    launched = launched.filter(pa.array(is_wanted))
    first_of_pair = np.unique(_pairs(launched), return_index=True)[1]
    return launched.take(pa.array(np.sort(first_of_pair)))


def _pairs(*tables: pa.Table) -> Int64:
    """Return a number for each (process, correlation ID) of all tables, table after table."""
    codes = []
    for name in ("process_id", "correlation_id"):
        values = np.concatenate([filled(table[name]) for table in tables])
        codes.append(np.unique(values, return_inverse=True)[1])
    width = int(codes[1].max(initial=0)) + 1
    pairs: Int64 = codes[0] * width + codes[1]
    return pairs


def rows_of_launches(wanted: pa.Table, table: pa.Table) -> Int64:
    """Return the row of a table with the process and ID of each wanted row; -1 for none."""
    pairs = _pairs(wanted, table)
    wanted_pairs = pairs[: wanted.num_rows]
    table_pairs = pairs[wanted.num_rows :]
    if not table_pairs.size:
        return np.full(wanted_pairs.size, -1)
    order = np.argsort(table_pairs, kind="stable")
    place = np.searchsorted(table_pairs[order], wanted_pairs)
    place = np.minimum(place, table_pairs.size - 1)
    return np.where(table_pairs[order][place] == wanted_pairs, order[place], -1)


class _Copying(NamedTuple):
    """The API calls whose copies are communication, and what `Called` counts."""

    launches: pa.Table
    n_assumed: int
    n_left: int


def _find_copying(
    launched: pa.Table, copies: pa.Table, ranges: CallRanges, *, are_several: bool | None
) -> _Copying:
    launch = rows_of_launches(copies, launched)
    is_inside = launch >= 0
    launch = launch[is_inside]
    kind = filled(copies["copy_kind"])[is_inside]
    call = launched["call"].to_numpy()[launch]
    is_peer = np.zeros(ranges.call.size, np.bool_)
    is_peer[call[kind == canonical.PEER_KIND]] = True
    has_copies = np.zeros(ranges.call.size, np.bool_)
    has_copies[call] = True
    is_symmetric = ranges.flags(lambda call: call.is_symmetric)
    is_certain = is_peer | is_symmetric | (ranges.n_ranks > 1)
    is_open = has_copies & ~is_certain & (ranges.n_ranks == UNKNOWN_SIZE)
    is_counted = is_certain | (is_open & bool(are_several))
    rows = np.unique(launch[is_counted[call]])
    n_open = int(np.count_nonzero(is_open))
    names = [name_of_copies(call.name) for call in ranges.calls]
    return _Copying(
        launches=_with_names(launched, rows, ranges, names, is_copy=True),
        n_assumed=n_open if are_several else 0,
        n_left=n_open if are_several is None else 0,
    )


def _kernels_launched(
    launched: pa.Table, kernels: pa.Table, ranges: CallRanges, names: Mapping[int, str]
) -> pa.Table:
    """Return the API calls that launched a kernel without the name of a collective.

    They are inside a call that tells the collective.
    """
    launch = rows_of_launches(kernels, launched)
    has_collective = ranges.flags(lambda call: call.collective != OTHER)
    call = np.where(launch < 0, 0, launched["call"].to_numpy()[launch])
    rows = np.flatnonzero((launch >= 0) & has_collective[call])
    name_ids = filled(kernels["name_id"])[rows].tolist()
    codes = ranges.call[call[rows]].tolist()
    texts = [
        name_with_collective(names[name_id], ranges.calls[code].collective)
        for name_id, code in zip(name_ids, codes, strict=True)
    ]
    no_names = [""] * len(ranges.calls)
    chosen = _with_names(launched, launch[rows], ranges, no_names, is_copy=False)
    place = chosen.column_names.index("text")
    return chosen.set_column(place, "text", pa.array(texts, pa.string()))


def _with_names(
    launched: pa.Table, rows: Int64, ranges: CallRanges, names: list[str], *, is_copy: bool
) -> pa.Table:
    """Return some API calls with ``is_copy`` and the name of their call as ``text``."""
    chosen = launched.take(pa.array(rows, pa.int64()))
    code = ranges.call[chosen["call"].to_numpy()]
    texts = pa.array(names, pa.string()).take(pa.array(code, pa.int64()))
    chosen = chosen.append_column("is_copy", pa.array(np.full(rows.size, is_copy)))
    return chosen.append_column("text", texts)


def with_called(kernels: pa.Table, copies: pa.Table, called: Called) -> tuple[pa.Table, pa.Table]:
    """Return kernels and copies, with the copies of each call as one communication operation.

    The operation is among the kernels, and its copies are removed. It begins with the first copy,
    ends with the last, and has the launch of the first copy that was launched. Copies of one call
    on two devices are two operations. If kernels have a column ``bytes``, it gets the sum of the
    copies.
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
    """Give kernels without the name of a collective a name that tells it."""
    if not of_kernels.num_rows:
        return kernels
    candidates = np.flatnonzero(kernels["is_comm"].to_numpy())
    launch = rows_of_launches(kernels.take(pa.array(candidates)), of_kernels)
    rows = candidates[launch >= 0]
    launch = launch[launch >= 0]
    name_ids = filled(kernels["name_id"]).copy()
    name_ids[rows] = of_kernels["name_id"].to_numpy()[launch]
    place = kernels.column_names.index("name_id")
    column = pa.array(name_ids, pa.int64(), mask=name_ids == UNKNOWN)
    return kernels.set_column(place, kernels.field(place), column)


def _collectives_of(
    copies: pa.Table, launch: Int64, of_copies: pa.Table, columns: list[str]
) -> pa.Table:
    """Return one row for each call and device of some copies, with the columns of kernels.

    `launch` has the row of `of_copies` of each copy.
    """
    call = of_copies["call"].to_numpy()[launch]
    device = filled(copies["device_id"])
    order = np.lexsort((launch, device, call))
    call = call[order]
    device = device[order]
    launch = launch[order]
    is_other = (call[1:] != call[:-1]) | (device[1:] != device[:-1])
    first = np.flatnonzero(np.append(True, is_other))
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
        total = np.add.reduceat(np.where(n_bytes == UNKNOWN, 0, n_bytes), first)
        values["bytes"] = pa.array(total, mask=~is_known)
    nothing = pa.nulls(first.size, pa.int64())
    return pa.table({name: values.get(name, nothing) for name in columns})
