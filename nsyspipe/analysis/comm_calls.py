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
import pyarrow.compute as pc
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
from nsyspipe.model.typed_tables import (
    CommCallsOfReportTable,
    CopiesOfReportTable,
    KernelsOfReportTable,
)

# Kinds of copies that may be those of a collective.
COPY_KINDS = (canonical.DTOD_KIND, canonical.PEER_KIND)
_ORDER_OF_LAUNCHES = [
    ("process_id", "ascending"),
    ("start_ns", "ascending"),
    ("correlation_id", "ascending"),
]
_COLUMNS_OF_LAUNCHES = ("process_id", "correlation_id", "call", "is_copy")
_COLUMNS_OF_FIRST_LAUNCH = ("process_id", "correlation_id", "stream_id", "name_id")
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
        flag_of_call = [is_wanted(call) for call in self.calls]
        flags = np.array(flag_of_call, np.bool_)
        return flags[self.call]

    def take(self, rows: Int64 | slice) -> CallRanges:
        """Return some ranges. With a slice, changes of the result change these ranges, too."""
        thread_id = self.thread_id[rows]
        start_ns = self.start_ns[rows]
        end_ns = self.end_ns[rows]
        call = self.call[rows]
        n_ranks = self.n_ranks[rows]
        return CallRanges(thread_id, start_ns, end_ns, call, n_ranks, calls=self.calls)

    def holding(self, thread: int, times: Int64) -> tuple[Int64, Int64]:
        """Return the places of the times that are in a range of a thread, and the range of each.

        The times are sorted.
        """
        bounds = (thread, thread + 1)
        first, last = np.searchsorted(self.thread_id, bounds)
        starts = self.start_ns[first:last]
        ends = self.end_ns[first:last]
        slices = Slices.within(times, starts, ends)
        place, range_of_thread = slices.rows()
        return place, range_of_thread + first


def call_ranges(comm_calls: CommCallsOfReportTable, n_ranks: Int64) -> CallRanges:
    """Return the ranges of `canonical.COMM_CALLS` that may hold launches.

    These are the outermost ranges of each thread, without starts of groups. The end of a group has
    the call of the group. `n_ranks` is the size of the communicator of each row.
    """
    ranges = _ranges_by_thread(comm_calls, n_ranks)
    rows_of_threads = [np.empty(0, np.int64)]
    for part in _slices_of_threads(ranges.thread_id):
        # Views of `ranges`, so that groups are named there too.
        ranges_of_thread = ranges.take(part)
        is_group_start = ranges_of_thread.flags(lambda call: call.is_group_start)
        is_group_end = ranges_of_thread.flags(lambda call: call.is_group_end)
        if is_group_end.any():
            _name_groups(ranges_of_thread, is_group_start, is_group_end)
        may_launch = np.flatnonzero(~is_group_start)
        starts = ranges_of_thread.start_ns[may_launch]
        ends = ranges_of_thread.end_ns[may_launch]
        outer = may_launch[outermost(starts, ends)]
        rows_of_threads.append(outer + part.start)
    rows = np.concatenate(rows_of_threads)
    return ranges.take(rows)


def _ranges_by_thread(comm_calls: CommCallsOfReportTable, n_ranks: Int64) -> CallRanges:
    """Return all ranges, those of each thread in order of start, the longest first."""
    texts = comm_calls["text"].combine_chunks()
    words = texts.dictionary.to_pylist()
    calls = [_call_of_text(text) for text in words]
    call = texts.indices.to_numpy()
    thread = comm_calls["thread_id"].to_numpy()
    start = comm_calls["start_ns"].to_numpy()
    end = comm_calls["end_ns"].to_numpy()
    ranges = CallRanges(
        thread_id=thread,
        start_ns=start,
        end_ns=end,
        call=call.astype(np.int64),
        n_ranks=n_ranks,
        calls=tuple(calls),
    )
    order = np.lexsort((-end, start, thread))
    return ranges.take(order)


def _call_of_text(text: str | None) -> CommCall:
    """Return the call that a range's text names; one of no collective if it names none."""
    return comm_call_of(text or "") or CommCall(MIXED_GROUP, OTHER)


def _name_groups(ranges: CallRanges, is_group_start: Flags, is_group_end: Flags) -> None:
    """Write into the end of each group the call of the group, and its largest number of ranks.

    This changes `ranges`, which are those of one thread. The range of the end gets the call of the
    first range in the group. If the ranges of a group have calls of several names, the end keeps
    its own call. The end stays as it is if the group is inside another group, or if the start of
    the group was not captured.
    """
    grouped = _calls_in_groups(is_group_start, is_group_end)
    if not grouped.row.size:
        return
    # Indices into `ranges.calls`.
    call = ranges.call[grouped.row]
    n_ranks = ranges.n_ranks[grouped.row]
    first_of_group = run_starts(grouped.end)
    end_of_group = grouped.end[first_of_group]
    name_of_call = _number_names(ranges.calls)
    name = name_of_call[call]
    lowest_name = np.minimum.reduceat(name, first_of_group)
    highest_name = np.maximum.reduceat(name, first_of_group)
    has_one_name = lowest_name == highest_name
    end_with_one_name = end_of_group[has_one_name]
    first_with_one_name = first_of_group[has_one_name]
    ranges.call[end_with_one_name] = call[first_with_one_name]
    ranges.n_ranks[end_of_group] = np.maximum.reduceat(n_ranks, first_of_group)


def _number_names(calls: tuple[CommCall, ...]) -> Int64:
    """Return a number for each call. Calls of the same name have the same number."""
    names = [call.name for call in calls]
    _, number = np.unique(names, return_inverse=True)
    return number


class _Grouped(NamedTuple):
    """The ranges inside groups, in order."""

    row: Int64  # of the range
    end: Int64  # row of the range that ends the group


def _calls_in_groups(is_group_start: Flags, is_group_end: Flags) -> _Grouped:
    """Return the calls between the start and the end of each outermost group.

    The parameters have a flag per range of a thread, in order of start. A group whose end was not
    captured is left out.
    """
    depth_change = is_group_start.astype(np.int64) - is_group_end
    n_starts_less_ends = np.cumsum(depth_change)
    # Each end whose start was not captured makes a new lowest number below 0. Such ends close no
    # group, so add them again.
    lowest_so_far = np.minimum.accumulate(n_starts_less_ends)
    n_ends_without_start = -np.minimum(lowest_so_far, 0)
    # How many groups are open behind each range.
    depth = n_starts_less_ends + n_ends_without_start
    is_outer_end = is_group_end & (depth == 0)
    is_edge = is_group_start | is_group_end
    is_call_in_group = ~is_edge & (depth > 0)
    outer_ends = np.flatnonzero(is_outer_end)
    calls = np.flatnonzero(is_call_in_group)
    # The next outer end is that of the group of the call.
    next_end = np.searchsorted(outer_ends, calls)
    has_end = next_end < outer_ends.size
    end_of_call = outer_ends[next_end[has_end]]
    return _Grouped(calls[has_end], end_of_call)


def _slices_of_threads(thread: Int64) -> Iterator[slice]:
    """Yield the rows of each thread as a slice. Rows are sorted by thread."""
    first = run_starts(thread)
    edges = np.append(first, thread.size)
    pairs = itertools.pairwise(edges.tolist())
    return itertools.starmap(slice, pairs)


def find_called(
    kernels: KernelsOfReportTable,
    copies: CopiesOfReportTable,
    names: Mapping[int, str],
    *,
    host_calls: pa.Table | None,
    comm_calls: CommCallsOfReportTable,
    n_ranks: Int64,
    has_job_several_ranks: bool | None,
) -> Called:
    """Find the operations that are communication because of the call that launched them.

    The tables are those of `canonical`, and `n_ranks` is as `call_ranges` takes it. The result has
    no streams yet. It is empty if nothing of the kind was recorded.

    Copies to another GPU, and copies of symmetric memory, always count. Copies inside a GPU count
    if their communicator has two ranks or more. If its size was not recorded, they count if
    `has_job_several_ranks` is true. None means that the number of ranks of the job is not known.
    """
    if host_calls is None or not comm_calls.num_rows:
        return Called()
    kernels = _nameless_kernels(kernels, names)
    copies = _copies_of_calls(copies)
    if not (kernels.num_rows or copies.num_rows):
        return Called()
    ranges = call_ranges(comm_calls, n_ranks)
    if not ranges.call.size:
        return Called()
    ids_of_kernels = filled(kernels["correlation_id"])
    ids_of_copies = filled(copies["correlation_id"])
    ids = np.unique(np.append(ids_of_kernels, ids_of_copies))
    launched = _launched_in(host_calls, ranges, ids)
    if not launched.num_rows:
        return Called()
    copying = _find_copying(launched, copies, ranges, has_job_several_ranks=has_job_several_ranks)
    kernel_launches = _kernels_launched(launched, kernels, ranges, names)
    launches = pa.concat_tables([copying.launches, kernel_launches])
    launches = launches.sort_by(_ORDER_OF_LAUNCHES)
    name_id_of_text = _number_texts(launches["text"].to_pylist())
    text_of_name_id = {name_id: text for text, name_id in name_id_of_text.items()}
    return Called(
        launches=_called_table(launches, name_id_of_text),
        names=text_of_name_id,
        n_assumed=copying.n_assumed,
        n_left=copying.n_left,
    )


def _number_texts(texts: Iterable[str]) -> dict[str, int]:
    """Return a name ID for each text. No name of a report has such an ID."""
    largest = canonical.LARGEST_MADE_NAME_ID
    different_texts = sorted(set(texts))
    return {text: largest - place for place, text in enumerate(different_texts)}


def _called_table(launches: pa.Table, name_id_of_text: Mapping[str, int]) -> pa.Table:
    """Return `canonical.CALLED` of launches, which have a column ``text``."""
    columns = {name: launches[name] for name in _COLUMNS_OF_LAUNCHES}
    n_launches = launches.num_rows
    columns["stream_id"] = pa.nulls(n_launches, pa.int64())
    texts = launches["text"].to_pylist()
    name_ids = [name_id_of_text[text] for text in texts]
    columns["name_id"] = pa.array(name_ids, pa.int64())
    return canonical.CALLED.table(columns)


def _nameless_kernels(kernels: KernelsOfReportTable, names: Mapping[int, str]) -> pa.Table:
    """Return the communication kernels with a name that does not tell the collective."""
    columns = kernels.select(["process_id", "correlation_id", "name_id"])
    is_comm = kernels["is_comm"].to_numpy()
    if not is_comm.any():
        # This is usual without several ranks, and needs no look at the names.
        return columns.slice(0, 0)
    nameless_ids = [name_id for name_id, text in names.items() if _is_nameless(text)]
    name_ids = filled(kernels["name_id"])
    is_nameless = np.isin(name_ids, nameless_ids)
    return columns.filter(is_comm & is_nameless)


def _is_nameless(text: str) -> bool:
    return collective_of_kernel(text) == OTHER


def _copies_of_calls(copies: pa.Table) -> pa.Table:
    """Return the copies that may be those of a collective."""
    columns = ["process_id", "correlation_id", "copy_kind"]
    rows = _copy_rows(copies)
    return copies.select(columns).take(rows)


def _copy_rows(copies: CopiesOfReportTable) -> Int64:
    """Return the rows of copies whose kind is one of `COPY_KINDS`."""
    kinds = filled(copies["copy_kind"], -1)
    is_candidate = np.isin(kinds, COPY_KINDS)
    return np.flatnonzero(is_candidate)


def _launched_in(host_calls: pa.Table, ranges: CallRanges, correlation_ids: Int64) -> pa.Table:
    """Return the API calls in a range whose correlation ID is among some IDs, in order of start.

    If API calls of a process have the same ID, only the first is returned. The columns are process,
    correlation ID, start, and ``call``, which is the range.
    """
    inside = _calls_inside(host_calls, ranges)
    columns = host_calls.select(["process_id", "correlation_id", "start_ns"])
    launched = columns.take(inside.row)
    launched = launched.append_column("call", pa.array(inside.call))
    ids = launched["correlation_id"].to_numpy()
    is_wanted = are_among(ids, correlation_ids)
    launched = launched.filter(is_wanted)
    pairs = _number_launches(launched)
    _, first_of_pair = np.unique(pairs, return_index=True)
    # In order of start again, not of pairs.
    first_of_pair.sort()
    return launched.take(first_of_pair)


class _Inside(NamedTuple):
    """The API calls that are in a range, in order of start."""

    row: Int64  # of the API call
    call: Int64  # the range that holds it


def _calls_inside(host_calls: pa.Table, ranges: CallRanges) -> _Inside:
    """Return the API calls that begin in a range of their thread; there is at least one range."""
    thread = host_calls["thread_id"].to_numpy()
    start = host_calls["start_ns"].to_numpy()
    rows_of_threads = []
    calls_of_threads = []
    for thread_id in np.unique(ranges.thread_id).tolist():
        rows = np.flatnonzero(thread == thread_id)
        starts = start[rows]
        if not is_sorted(starts):
            rows = rows[np.argsort(starts, kind="stable")]
            starts = start[rows]
        place, call = ranges.holding(thread_id, starts)
        rows_of_threads.append(rows[place])
        calls_of_threads.append(call)
    # In order of thread, so sort by start. Few API calls are in a range.
    row = np.concatenate(rows_of_threads)
    call = np.concatenate(calls_of_threads)
    by_start = np.argsort(start[row], kind="stable")
    return _Inside(row[by_start], call[by_start])


def _number_launches(*tables: pa.Table) -> Int64:
    """Return a number for each row of all tables, table after table.

    Rows with the same process and correlation ID have the same number.
    """
    codes = []
    for name in ("process_id", "correlation_id"):
        columns = [filled(table[name]) for table in tables]
        values = np.concatenate(columns)
        _, code = np.unique(values, return_inverse=True)
        codes.append(code)
    process, correlation = codes
    n_ids = int(correlation.max(initial=0)) + 1
    numbers: Int64 = process * n_ids + correlation
    return numbers


def rows_of_launches(wanted: pa.Table, table: pa.Table) -> Int64:
    """Return for each wanted row the first row of a table with its process and correlation ID.

    -1 if the table has none.
    """
    numbers = _number_launches(wanted, table)
    wanted_numbers = numbers[: wanted.num_rows]
    numbers_in_table = numbers[wanted.num_rows :]
    if not numbers_in_table.size:
        return np.full(wanted_numbers.size, -1)
    row_at_place = np.argsort(numbers_in_table, kind="stable")
    sorted_numbers = numbers_in_table[row_at_place]
    place = np.searchsorted(sorted_numbers, wanted_numbers)
    # A number above all others has no place, so compare it with the last one.
    place = np.minimum(place, sorted_numbers.size - 1)
    is_in_table = sorted_numbers[place] == wanted_numbers
    return np.where(is_in_table, row_at_place[place], -1)


class _Matched(NamedTuple):
    """The rows of a table that have a launch, and the row of the launch of each."""

    row: Int64
    launch: Int64


def _matched(wanted: pa.Table, launches: pa.Table) -> _Matched:
    """Match the rows of a table with launches, by process and correlation ID."""
    launch = rows_of_launches(wanted, launches)
    rows = np.flatnonzero(launch >= 0)
    return _Matched(rows, launch[rows])


class _Copying(NamedTuple):
    """The API calls whose copies are communication, and what `Called` counts."""

    launches: pa.Table
    n_assumed: int
    n_left: int


def _find_copying(
    launched: pa.Table,
    copies: CopiesOfReportTable,
    ranges: CallRanges,
    *,
    has_job_several_ranks: bool | None,
) -> _Copying:
    """Find the API calls whose copies are communication. `find_called` says when copies count.

    A range is open if only the number of ranks of the job tells whether its copies count.
    """
    matched = _matched(copies, launched)
    kind_of_copy = filled(copies["copy_kind"])[matched.row]
    call_of_copy = launched["call"].to_numpy()[matched.launch]
    is_peer_copy = kind_of_copy == canonical.PEER_KIND
    # From here on, flags are those of ranges.
    is_certain = _are_certain(ranges, call_of_copy[is_peer_copy])
    has_copies = _occur(call_of_copy, ranges)
    is_size_unknown = ranges.n_ranks == UNKNOWN_SIZE
    is_open = has_copies & ~is_certain & is_size_unknown
    is_counted = is_certain | is_open if has_job_several_ranks else is_certain
    is_comm_copy = is_counted[call_of_copy]
    rows = np.unique(matched.launch[is_comm_copy])
    n_open = int(np.count_nonzero(is_open))
    is_number_of_ranks_unknown = has_job_several_ranks is None
    return _Copying(
        launches=_copy_launches(launched, rows, ranges),
        n_assumed=n_open if has_job_several_ranks else 0,
        n_left=n_open if is_number_of_ranks_unknown else 0,
    )


def _are_certain(ranges: CallRanges, with_peer_copies: Int64) -> Flags:
    """Tell in which ranges copies are communication, whatever is known of the job.

    `with_peer_copies` are ranges that launched copies to another GPU.
    """
    has_peer_copies = _occur(with_peer_copies, ranges)
    is_symmetric = ranges.flags(lambda call: call.is_symmetric)
    has_several_ranks = ranges.n_ranks > 1
    return has_peer_copies | is_symmetric | has_several_ranks


def _occur(chosen: Int64, ranges: CallRanges) -> Flags:
    """Tell for each range whether it is among the chosen ones, which are indices of ranges."""
    does_occur = np.zeros(ranges.call.size, np.bool_)
    does_occur[chosen] = True
    return does_occur


def _copy_launches(launched: pa.Table, rows: Int64, ranges: CallRanges) -> pa.Table:
    """Return some API calls that launched copies, with the name of the copies of their call."""
    names = [name_of_copies(call.name) for call in ranges.calls]
    text_of_call = pa.array(names, pa.string())
    launched = launched.take(rows)
    range_of_launch = launched["call"].to_numpy()
    call_of_launch = ranges.call[range_of_launch]
    return _with_texts(launched, text_of_call.take(call_of_launch), is_copy=True)


def _kernels_launched(
    launched: pa.Table, kernels: KernelsOfReportTable, ranges: CallRanges, names: Mapping[int, str]
) -> pa.Table:
    """Return the API calls that launched some kernels in a range whose call tells the collective.

    `kernels` have names that tell no collective. ``text`` is the name with the collective.
    """
    matched = _matched(kernels, launched)
    launches = launched.take(matched.launch)
    range_of_launch = launches["call"].to_numpy()
    has_collective = ranges.flags(lambda call: call.collective != OTHER)
    is_wanted = has_collective[range_of_launch]
    rows = matched.row[is_wanted]
    name_ids = filled(kernels["name_id"])[rows]
    calls = ranges.call[range_of_launch[is_wanted]]
    texts = []
    for name_id, call in zip(name_ids.tolist(), calls.tolist(), strict=True):
        collective = ranges.calls[call].collective
        text = name_with_collective(names[name_id], collective)
        texts.append(text)
    wanted_launches = launches.filter(is_wanted)
    return _with_texts(wanted_launches, pa.array(texts, pa.string()), is_copy=False)


def _with_texts(launched: pa.Table, texts: pa.Array, *, is_copy: bool) -> pa.Table:
    """Return API calls with ``is_copy`` and a ``text`` for each."""
    flags = np.full(launched.num_rows, is_copy)
    launched = launched.append_column("is_copy", pa.array(flags))
    return launched.append_column("text", texts)


def with_called(kernels: pa.Table, copies: pa.Table, called: Called) -> tuple[pa.Table, pa.Table]:
    """Return kernels and copies, with the copies of each call as one communication operation.

    The operation is added to the kernels, and its copies are removed from the copies. The operation
    begins with the first copy and ends with the last. Its launch is that of the first copy that was
    launched. Copies of one call on two devices are two operations. If the kernels have a column
    ``bytes``, the operation has the sum of its copies there.

    Kernels without the name of a collective get a name with the collective of their call.
    """
    launches = called.launches
    if not launches.num_rows:
        return kernels, copies
    is_copy = launches["is_copy"]
    kernels = _with_collectives(kernels, launches.filter(pc.invert(is_copy)))
    copy_launches = launches.filter(is_copy)
    candidates = _copy_rows(copies)
    matched = _matched(copies.take(candidates), copy_launches)
    rows = candidates[matched.row]
    if not rows.size:
        return kernels, copies
    replaced = copies.take(rows)
    columns = kernels.column_names
    collectives = _collectives_of(replaced, matched.launch, copy_launches, columns)
    collectives = collectives.cast(kernels.schema)
    is_left = np.ones(copies.num_rows, np.bool_)
    is_left[rows] = False
    copies_left = copies.filter(is_left)
    return pa.concat_tables([kernels, collectives]), copies_left


def _with_collectives(kernels: KernelsOfReportTable, of_kernels: pa.Table) -> pa.Table:
    """Return the kernels, with new name IDs for those that `of_kernels` has launches of."""
    if not of_kernels.num_rows:
        return kernels
    candidates = np.flatnonzero(kernels["is_comm"].to_numpy())
    comm_kernels = kernels.take(candidates)
    matched = _matched(comm_kernels, of_kernels)
    rows = candidates[matched.row]
    new_name_ids = of_kernels["name_id"].to_numpy()
    name_ids = filled(kernels["name_id"]).copy()
    name_ids[rows] = new_name_ids[matched.launch]
    place = kernels.column_names.index("name_id")
    return kernels.set_column(place, kernels.field(place), _nullable(name_ids))


def _collectives_of(
    copies: CopiesOfReportTable, launch_of_copy: Int64, launches: pa.Table, columns: list[str]
) -> pa.Table:
    """Return one row for each call and device of some copies: a collective.

    `launches` are those of copies, in order of process and start. `launch_of_copy` is the row of
    `launches` of each copy. The result has the `columns` of kernels. Those that copies do not have
    are null.
    """
    call = launches["call"].to_numpy()[launch_of_copy]
    device = filled(copies["device_id"])
    # By call, then by device, then by launch: the last key of `lexsort` sorts first.
    by_call = np.lexsort((launch_of_copy, device, call))
    sorted_copies = copies.take(by_call)
    # The place of the first copy of each collective among the sorted copies.
    first = _first_of_pairs(call[by_call], device[by_call])
    first_copies = by_call[first]
    first_launches = launches.take(launch_of_copy[first_copies])
    n_collectives = first.size
    values = {name: first_launches[name] for name in _COLUMNS_OF_FIRST_LAUNCH}
    values |= _times_of_collectives(sorted_copies, first)
    values["device_id"] = _nullable(device[first_copies])
    values["is_comm"] = pa.array(np.ones(n_collectives, np.bool_))
    if "bytes" in columns:
        values["bytes"] = _bytes_of_collectives(sorted_copies, first)
    nulls = pa.nulls(n_collectives, pa.int64())
    return pa.table({name: values.get(name, nulls) for name in columns})


def _first_of_pairs(call: Int64, device: Int64) -> Int64:
    """Return the first place of each pair of a call and a device. Pairs are sorted."""
    is_new_call = call[1:] != call[:-1]
    is_new_device = device[1:] != device[:-1]
    is_new = is_new_call | is_new_device
    is_first = np.append(True, is_new)
    return np.flatnonzero(is_first)


def _times_of_collectives(copies: CopiesOfReportTable, first: Int64) -> dict[str, pa.Array]:
    """Return the first start and the last end of each run of copies.

    `first` is the first copy of each run.
    """
    starts = copies["start_ns"].to_numpy()
    ends = copies["end_ns"].to_numpy()
    first_starts = np.minimum.reduceat(starts, first)
    last_ends = np.maximum.reduceat(ends, first)
    start_ns = pa.array(first_starts)
    end_ns = pa.array(last_ends)
    return {"start_ns": start_ns, "end_ns": end_ns}


def _bytes_of_collectives(copies: CopiesOfReportTable, first: Int64) -> pa.Array:
    """Return the bytes of each run of copies. Null if the bytes of one of its copies are.

    `first` is the first copy of each run.
    """
    n_bytes = filled(copies["bytes"])
    is_known = n_bytes != UNKNOWN
    known_bytes = np.where(is_known, n_bytes, 0)
    total = np.add.reduceat(known_bytes, first)
    is_sum_known = np.logical_and.reduceat(is_known, first)
    return pa.array(total, mask=~is_sum_known)


def _nullable(values: Int64) -> pa.Array:
    is_null = values == UNKNOWN
    return pa.array(values, mask=is_null)
