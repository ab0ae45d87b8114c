"""Communication operations of each rank, the collectives that they form, and who waits in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.attribution import NEVER, ProcessOperations, filled
from nsyspipe.analysis.breakdown import DeviceTime
from nsyspipe.analysis.intervals import holders, least_of, places_in_runs, run_starts, sums_of
from nsyspipe.analysis.phases import PhaseRanges, launching_passes
from nsyspipe.analysis.steps import Members, Windows
from nsyspipe.model import canonical
from nsyspipe.model.comm_kernels import collective_of_kernel
from nsyspipe.model.names import COLLECTIVES, algorithm_of, bare_name, datatype_of
from nsyspipe.model.table import Flags, Float64, Int32, Int64, conform, narrowed
from nsyspipe.model.typed_tables import (
    PayloadsOfReportTable,
)

UNGROUPED = -1
NOBODY = -1
NO_MEMBER = -1
# NCCL reports one rank's part of the array of these collectives.
PER_RANK = ("all_gather", "reduce_scatter", "all_to_all")
_ALL_ROWS = slice(None)
# Collectives are measured in parts of this many operations, so that temporary arrays stay small.
_MAX_OPERATIONS_AT_ONCE = 2**19
# The kind of a call or kernel is an index into this tuple. Sends and receives share a kernel.
_COLLECTIVES = (
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "gather",
    "reduce",
    "reducescatter",
    "scatter",
    "sendrecv",
)
_ALIASES = {"bcast": "broadcast", "send": "sendrecv", "recv": "sendrecv"}
SEND_RECV = _COLLECTIVES.index("sendrecv")
N_KINDS = len(_COLLECTIVES)
ALL_TO_ALL = _COLLECTIVES.index("alltoall")
# NCCL implements these collectives with sends and receives.
_KINDS_MADE_OF_SENDS = (
    ALL_TO_ALL,
    _COLLECTIVES.index("gather"),
    _COLLECTIVES.index("scatter"),
)
# The kind of a call or kernel that may be any collective.
ANY = -1
# The kind of a call that launches no kernel.
_LAUNCHES_NO_KERNEL = -2


class _Cells(Struct, frozen=True):
    """Operations sorted by group, then rank. A cell is what one rank has of one group."""

    operations: Int64
    first: Int64  # of each cell, the place of its first operation in `operations`
    count: Int64  # number of operations of each cell
    group: Int64  # of each cell


class _MatchedGroups(Struct, frozen=True):
    """The groups that have as many operations on each of their ranks."""

    first_cell: Int64
    n_ranks: Int64
    n_collectives: Int64  # as many as operations in each of its cells


def match_collectives(group: Int64, rank: Int64 | Int32, n_required: Int64) -> list[Int64]:
    """Match the k-th operation of a group on each rank with the k-th on the other ranks.

    Matched operations are the same collective. A group is a communicator within one step. It is not
    matched if it has fewer ranks than `n_required` of the group, if the number of operations
    differs between ranks, or if it has a single rank. `UNGROUPED` operations are left out.

    The operations of one rank must be in order of start. Returns one matrix per number of ranks,
    smallest first. A matrix has a row per collective (in order of group, then k) and a column per
    rank in ascending order. It holds indices of operations. Cost O(n log n): one stable sort.
    """
    grouped = np.flatnonzero(group != UNGROUPED)
    if not grouped.size:
        return []
    cells = _sort_into_cells(grouped, group, rank)
    groups = _find_matched_groups(cells, n_required)
    numbers_of_ranks = np.unique(groups.n_ranks)
    return [_match_cells(cells, groups, n_ranks) for n_ranks in numbers_of_ranks.tolist()]


def _find_matched_groups(cells: _Cells, n_required: Int64) -> _MatchedGroups:
    """Return the groups whose ranks are as many as required, and have as many operations each.

    A group with a single rank is left out. `n_required` has a value per group.
    """
    group_of_cell = cells.group
    n_operations_of_cell = cells.count
    first_cell = run_starts(group_of_cell)
    group = group_of_cell[first_cell]
    n_ranks = np.diff(first_cell, append=group_of_cell.size)
    fewest = np.minimum.reduceat(n_operations_of_cell, first_cell)
    most = np.maximum.reduceat(n_operations_of_cell, first_cell)
    is_matched = n_ranks == n_required[group]
    is_matched &= n_ranks > 1
    is_matched &= fewest == most
    return _MatchedGroups(first_cell[is_matched], n_ranks[is_matched], fewest[is_matched])


def _match_cells(cells: _Cells, groups: _MatchedGroups, n_ranks: int) -> Int64:
    """Return the operations of all collectives of groups with `n_ranks` ranks.

    The result has a row per collective and a column per rank. A cell is one rank of a group. Its
    operations follow each other in `cells.operations`, from the place `cells.first` on, in the
    order of the collectives of the group.
    """
    groups_of_size = np.flatnonzero(groups.n_ranks == n_ranks)
    n_collectives = groups.n_collectives[groups_of_size]
    group_of_collective = np.repeat(groups_of_size, n_collectives)
    number_in_group = places_in_runs(group_of_collective)
    first_cell = groups.first_cell[group_of_collective]
    # The cells of a group follow each other, one per rank.
    cell = np.add.outer(first_cell, np.arange(n_ranks))
    place = cells.first[cell] + number_in_group[:, np.newaxis]
    operations: Int64 = cells.operations[place]
    return operations


def _sort_into_cells(operations: Int64, group: Int64, rank: Int64 | Int32) -> _Cells:
    """Sort some operations by group, then rank. `group` and `rank` are those of all operations."""
    n_ranks = int(rank.max()) + 1
    # The key of a cell: its group and its rank in one number.
    key = group[operations] * n_ranks
    key += rank[operations]
    by_cell = np.argsort(key, kind="stable")
    sorted_key = key[by_cell]
    first = run_starts(sorted_key)
    count = np.diff(first, append=sorted_key.size)
    group_of_cell = sorted_key[first] // n_ranks
    return _Cells(operations=operations[by_cell], first=first, count=count, group=group_of_cell)


def whole_message(collective: str, reported_bytes: Int64, n_ranks: Int64) -> Int64:
    """Return the size of the whole array that a collective moves, in bytes as nccl-tests counts.

    `n_ranks` is the number of ranks of the communicator.
    """
    if collective in PER_RANK:
        return reported_bytes * n_ranks
    return reported_bytes


def bus_factor(collective: str, n_ranks: Float64) -> Float64:
    """Return busbw / algbw: 2(n-1)/n for all_reduce, (n-1)/n for gather, scatter, all-to-all.

    It is 1 for every other collective.
    """
    part = (n_ranks - 1) / n_ranks
    if collective == "all_reduce":
        return 2 * part
    if collective in PER_RANK:
        return part
    return np.ones_like(part)


class Waiting(Struct, frozen=True):
    """When the ranks of each collective arrive, and how long they wait for each other.

    `starts`, `ends` and `collective_id` have a row per operation; the ID is `NOBODY` if the
    operation is not matched. All other fields have a row per collective, and a last row of zeros
    for operations that are not matched.
    """

    # Aligned time of each operation.
    starts: Int64
    ends: Int64
    collective_id: Int32
    # Ranks that take part.
    n_ranks: Int64
    # When the first and the last rank arrived.
    first_start_ns: Int64
    last_start_ns: Int64
    # The same columns as in `schema.COLLECTIVES`.
    late_by_ns: Int64
    held_up_ns: Int64
    # The operation of the rank that arrived last; if several did, that of the lowest rank.
    latest: Int64
    # Whether the skew, and the delay of the last rank, exceed the error of the clocks. If ranks
    # arrived at the same time, the largest error of them counts.
    is_significant: Flags
    is_late_significant: Flags

    @property
    def is_matched(self) -> Flags:
        """Whether each operation has its counterparts on the other ranks."""
        matched: Flags = self.collective_id != NOBODY
        return matched

    def column(self, name: str, rows: Int64 | slice = _ALL_ROWS) -> Any:  # noqa: ANN401 - an array
        """Return a column of `schema.COLLECTIVES`, or a field of this class, for some operations.

        The values are zero for operations that are not matched. ``held_up_ns`` is zero for all but
        the latest operation of a collective, so that sums count it once. The columns about being
        late are zero for operations that did not start last.
        """
        # `NOBODY` is -1, so it reads the last row of a field, which is zero.
        collective_id = self.collective_id[rows]
        is_matched = collective_id != NOBODY
        starts = self.starts[rows]
        last_start_ns = self.last_start_ns[collective_id]
        match name:
            case "arrival_skew_ns":
                first_start_ns = self.first_start_ns[collective_id]
                return last_start_ns - first_start_ns
            case "wait_ns":
                wait_ns = last_start_ns - starts
                return np.where(is_matched, wait_ns, 0)
            case "transfer_ns":
                # A rank that ended before the last start transferred nothing from then on.
                transfer_ns = np.maximum(self.ends[rows] - last_start_ns, 0)
                return np.where(is_matched, transfer_ns, 0)
        values = getattr(self, name)[collective_id]
        match name:
            case "held_up_ns":
                operations = _row_numbers(rows, self.starts.size)
                is_latest = self.latest[collective_id] == operations
                return values * is_latest
            case "late_by_ns" | "is_late_significant":
                started_last = starts == last_start_ns
                return values * started_last
        return values


# The fields of `Waiting` with a row per collective, as the row of operations that are not matched.
_NUMBERS_OF_COLLECTIVES = (
    "n_ranks",
    "first_start_ns",
    "last_start_ns",
    "late_by_ns",
    "held_up_ns",
    "latest",
)
_FLAGS_OF_COLLECTIVES = ("is_significant", "is_late_significant")
_NOT_MATCHED: dict[str, Any] = {
    **dict.fromkeys(_NUMBERS_OF_COLLECTIVES, np.zeros((1, 1), np.int64)),
    **dict.fromkeys(_FLAGS_OF_COLLECTIVES, np.zeros((1, 1), np.bool_)),
}


def _row_numbers(rows: Int64 | slice, n_rows: int) -> Int64:
    """Return the numbers of some rows of a table."""
    if isinstance(rows, slice):
        return np.arange(n_rows)[rows]
    return rows


def _in_small_parts(matched: Sequence[Int64]) -> Iterator[Int64]:
    """Yield the collectives of all matrices, as matrices of few operations."""
    for matrix in matched:
        n_parts = matrix.size // _MAX_OPERATIONS_AT_ONCE + 1
        yield from np.array_split(matrix, n_parts)


def measure_waiting(
    matched: Sequence[Int64],
    starts: Int64,
    ends: Int64,
    clock: Int32,
    *,
    error_ns_of_clock: Int64,
    part_of_clock: Int64,
) -> Waiting:
    """Measure who waits for whom in collectives, from the aligned times of all operations.

    `matched` has a collective per row, as `match_collectives` returns it. `starts`, `ends` and
    `clock` have a value per operation. `clock` is the index of the clock of its rank. Clocks of
    different parts were never compared with each other.
    """
    collective_id = np.full(starts.size, NOBODY, np.int32)
    pieces = []
    n_collectives = 0
    for operations in _in_small_parts(matched):
        ids = np.arange(len(operations), dtype=np.int32)
        ids += n_collectives
        collective_id[operations] = ids[:, np.newaxis]
        n_collectives += ids.size
        clock_of_arrivals = clock[operations]
        arrivals = _Arrivals(
            operation=operations,
            start_ns=starts[operations],
            end_ns=ends[operations],
            clock_error_ns=error_ns_of_clock[clock_of_arrivals],
            clock_part=part_of_clock[clock_of_arrivals],
        )
        pieces.append(_measure_collectives(arrivals))
    # The last row, which `NOBODY` reads.
    pieces.append(_NOT_MATCHED)
    columns = {}
    for name in _NOT_MATCHED:
        pieces_of_column = [piece[name] for piece in pieces]
        column = np.concatenate(pieces_of_column)
        columns[name] = column.ravel()
    return Waiting(starts=starts, ends=ends, collective_id=collective_id, **columns)


class _Arrivals(Struct, frozen=True):
    """The operations of some collectives: a row per collective, and a column per rank."""

    operation: Int64
    # Aligned times.
    start_ns: Int64
    end_ns: Int64
    # The error of the clock of each operation, and the part of clocks that it belongs to.
    clock_error_ns: Int64
    clock_part: Int64


def _measure_collectives(arrivals: _Arrivals) -> dict[str, Any]:
    """Return the fields of `Waiting` that have a row per collective, as matrices of one column."""
    start = arrivals.start_ns
    n_ranks = start.shape[1]
    # Only the first and the last two starts of each row have to be in their sorted places.
    partly_sorted = np.partition(start, (0, -2, -1), axis=1)
    first = partly_sorted[:, [0]]
    second_last = partly_sorted[:, [-2]]
    last = partly_sorted[:, [-1]]
    is_skewed = _is_beyond_clocks(first, last, arrivals)
    is_late = _is_beyond_clocks(second_last, last, arrivals)
    # A rank whose own operation ends before the last start waits only until its end.
    end_of_wait = waited_until(start, arrivals.end_ns, wait_ns=last - start)
    waited_ns = end_of_wait - start
    longest_wait_ns = waited_ns.max(axis=1, keepdims=True)
    # If several ranks started last, `argmax` takes the lowest.
    last_rank = start.argmax(axis=1, keepdims=True)
    latest = np.take_along_axis(arrivals.operation, last_rank, axis=1)
    return {
        "n_ranks": np.full_like(first, n_ranks),
        "first_start_ns": first,
        "last_start_ns": last,
        "late_by_ns": last - second_last,
        "held_up_ns": np.where(is_skewed, longest_wait_ns, 0),
        "latest": latest,
        "is_significant": is_skewed,
        "is_late_significant": is_late,
    }


def _is_beyond_clocks(earlier: Int64, later: Int64, arrivals: _Arrivals) -> Flags:
    """Tell for each collective whether two arrivals are farther apart than the clock errors.

    `earlier` and `later` are the times of both arrivals. Several ranks may have arrived at either
    time. Of their clocks, the largest error counts. False if some of these clocks were never
    compared with each other.
    """
    start = arrivals.start_ns
    part = arrivals.clock_part
    is_involved = start == earlier
    is_involved |= start == later
    # All clocks that are involved have to be of one part, so of the part of the first such clock.
    first_involved = is_involved.argmax(axis=1, keepdims=True)
    part_of_first = np.take_along_axis(part, first_involved, axis=1)
    is_comparable = part == part_of_first
    is_comparable |= ~is_involved
    involved_errors = np.where(is_involved, arrivals.clock_error_ns, 0)
    max_error = involved_errors.max(axis=1, keepdims=True)
    is_beyond: Flags = later - earlier > max_error
    is_beyond &= is_comparable.all(axis=1, keepdims=True)
    return is_beyond


def waited_until(starts: Int64, ends: Int64, wait_ns: Int64) -> Int64:
    """Return until when each operation waits from its start on: ``min(last start, own end)``.

    `wait_ns` is the time from the start of each operation to the last start in its collective.
    """
    last_start = starts + wait_ns
    until: Int64 = np.minimum(ends, last_start)
    return until


class CommKind(Struct, frozen=True):
    """What the name of a communication kernel says; None where it says nothing."""

    collective: str
    datatype: str | None
    algorithm: str | None


class CommOperations(Struct, frozen=True):
    """The communication operations of one rank.

    Each column has the narrowest type that holds it, since one process may hold thousands of ranks.
    """

    kinds: tuple[CommKind, ...]
    narrow: pa.Table

    @classmethod
    def of(cls, kinds: Iterable[CommKind], table: pa.Table) -> CommOperations:
        """Narrow `canonical.COMM_OPERATIONS`, whose column ``kind`` is an index into the kinds."""
        columns = {}
        for name in table.column_names:
            columns[name] = narrowed(table[name])
        return cls(tuple(kinds), pa.table(columns))

    @property
    def table(self) -> pa.Table:
        """The operations as `canonical.COMM_OPERATIONS`."""
        return conform(self.narrow, canonical.COMM_OPERATIONS)


class _CommKernels(Struct, frozen=True):
    """The communication kernels of a rank or a process, in order of start."""

    rows: Int64  # among all kernels, which are in order of launch
    place_by_launch: Int64  # place of each among the communication kernels in order of launch
    launch: Int64
    kinds: list[CommKind]
    kind: Int64  # of each kernel, an index into `kinds`

    @property
    def collectives(self) -> Int64:
        """The kind of each kernel as of `kernel_kinds`."""
        names = [kind.collective for kind in self.kinds]
        return kernel_kinds(names)[self.kind]


def _find_comm_kernels(operations: ProcessOperations, names: Mapping[int, str]) -> _CommKernels:
    """Return the communication kernels in order of start; `names` are by name ID."""
    rows_by_launch = np.flatnonzero(operations.is_comm)
    starts = operations.kernel_start[rows_by_launch]
    place_by_launch = np.argsort(starts, kind="stable")
    rows = rows_by_launch[place_by_launch]
    name_ids = operations.kernel_column("name_id")[rows]
    kinds, kind = _kinds(name_ids, names)
    return _CommKernels(
        rows=rows,
        place_by_launch=place_by_launch,
        launch=operations.kernel_launch[rows],
        kinds=kinds,
        kind=kind,
    )


def messages_of(
    operations: ProcessOperations, names: Mapping[int, str], payloads: PayloadsOfReportTable
) -> pa.Table:
    """Return what NCCL recorded of each communication kernel of a process: rows of `calls_of`.

    The rows are in the kernels' order of launch. A process with several ranks is matched as a
    whole, since the calls of NCCL and the launches that follow them have one order in it.
    """
    kernels = _find_comm_kernels(operations, names)
    messages_by_start = assign_messages(payloads, kernels.launch, kernels.collectives)
    # For each kernel in order of launch, its place in order of start.
    place_by_start = np.argsort(kernels.place_by_launch, kind="stable")
    return messages_by_start.take(pa.array(place_by_start))


def comm_operations(
    device: DeviceTime,
    names: Mapping[int, str],
    members: Members,
    payloads: PayloadsOfReportTable,
    backward: PhaseRanges | None,
    *,
    messages: PayloadsOfReportTable | None = None,
) -> CommOperations:
    """List the communication operations of one rank in order of start.

    `names` are texts by name ID. `backward` are the backward passes, None if they are not known. If
    the process has several ranks, `messages` are the rows of `messages_of` for this rank. Without
    `messages`, the payloads are assigned to the operations here.
    """
    operations = device.operations
    kernels = _find_comm_kernels(operations, names)
    rows = kernels.rows
    launch = kernels.launch
    if not rows.size:
        nothing = canonical.COMM_OPERATIONS.empty()
        return CommOperations.of((), nothing)
    if messages is None:
        messages = assign_messages(payloads, launch, kernels.collectives)
    else:
        # From the order of launch to the order of start.
        messages = messages.take(pa.array(kernels.place_by_launch))
    start = operations.kernel_start[rows]
    member = members_holding(members, device.windows, launch, start)
    launched_in, micro_batch = launching_passes(member, launch, backward)
    stream_order = _order_of_streams(operations, kernels, member)
    n_before = _compute_kernels_before(operations, kernels, members, member)
    columns = {
        "start_ns": start,
        "end_ns": operations.kernel_end[rows],
        "member": member,
        "kind": kernels.kind,
        "stream_order": stream_order,
        "launched_in": _known(launched_in),
        "micro_batch": _known(micro_batch),
        "n_before": n_before,
    }
    columns |= _columns_of_messages(messages)
    table = canonical.COMM_OPERATIONS.table(columns)
    return CommOperations.of(kernels.kinds, table)


def _columns_of_messages(messages: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the columns of `canonical.COMM_OPERATIONS` that NCCL recorded.

    ``called`` is the collective of the call if the kernel does not name it. This is so for
    all-to-all, which runs on kernels for sends and receives.
    """
    is_all_to_all = pc.equal(messages["kind"], ALL_TO_ALL)
    all_to_all = COLLECTIVES.index("all_to_all")
    return {
        "comm_id": messages["comm_id"],
        "seq_number": messages["seq"],
        "operation_id": messages["operation_id"],
        "message_bytes": messages["message_bytes"],
        "n_calls": messages["n_calls"],
        "called": pc.if_else(is_all_to_all, all_to_all, None),
    }


def _known(numbers: Int64) -> pa.Array:
    """Return numbers with null in place of the negative ones, which are not known."""
    return pa.array(numbers, mask=numbers < 0)


def _compute_kernels_before(
    operations: ProcessOperations, kernels: _CommKernels, members: Members, member: Int64
) -> pa.Array:
    """Return for each communication kernel how many compute kernels of its step precede it.

    Kernels are counted in order of launch. Null if the step or the launch of the communication
    kernel is not known. `member` is the step range of each communication kernel.
    """
    is_compute = ~operations.is_comm
    # Compute kernels before each kernel. The last element is the number of all compute kernels.
    n_compute_before = np.append(0, np.cumsum(is_compute))
    # The appended element is for kernels without a step range, which get null below. Their member
    # is `NO_MEMBER`, or 0 in a capture that is measured as a whole.
    step_starts = np.append(members.starts, 0)
    first_kernel_of_step = np.searchsorted(operations.kernel_launch, step_starts)
    n_before_step = n_compute_before[first_kernel_of_step]
    n_before_kernel = n_compute_before[kernels.rows]
    n_in_step = n_before_kernel - n_before_step[member]
    has_step_ranges = members.starts.size > 0
    is_step_known = (member != NO_MEMBER) & has_step_ranges
    is_known = is_step_known & (kernels.launch != NEVER)
    return pa.array(n_in_step, mask=~is_known)


def _order_of_streams(operations: ProcessOperations, kernels: _CommKernels, member: Int64) -> Int64:
    """Return the number of the stream of each kernel, as `_number_streams` counts streams.

    `member` is the step of each kernel.
    """
    rows = kernels.rows
    start = operations.kernel_start[rows]
    # A kernel uses its stream when it is launched. If the launch is not known, its start stands in.
    is_launched = kernels.launch != NEVER
    used_ns = np.where(is_launched, kernels.launch, start)
    collectives = [COLLECTIVES.index(kind.collective) for kind in kernels.kinds]
    collective_of_kind = np.array(collectives, np.int64)
    collective = collective_of_kind[kernels.kind]
    device_id = operations.kernel_column("device_id")[rows]
    stream_id = operations.kernel_column("stream_id")[rows]
    return _number_streams(used_ns, member, collective, device_id, stream_id)


def members_holding(members: Members, windows: Windows, launch: Int64, start: Int64) -> Int64:
    """Return the step range that each operation belongs to, as an index; `NO_MEMBER` for none.

    The step range holds the launch of the operation. If the launch is not known, the window of the
    step range holds the start of the operation. A capture without steps has one window, to which no
    step range belongs. Then each operation gets the index 0.
    """
    is_whole_capture = len(windows) > members.starts.size
    if is_whole_capture:
        return np.zeros(launch.size, np.int64)
    member = holders(members.starts, members.ends, launch)
    without_launch = np.flatnonzero(launch == NEVER)
    window = holders(windows.starts, windows.ends, start[without_launch])
    # An operation in no window has the window -1, which reads the appended element.
    member_of_window = np.append(windows.member, NO_MEMBER)
    member[without_launch] = member_of_window[window]
    return member


def _kinds(name_ids: Int64, names: Mapping[int, str]) -> tuple[list[CommKind], Int64]:
    """Return the different kinds of kernels, sorted, and for each kernel the index of its kind.

    `name_ids` are those of the kernels, and `names` are by name ID.
    """
    ids, name_of_kernel = np.unique(name_ids, return_inverse=True)
    kinds_of_names = []
    for name_id in ids.tolist():
        text = names.get(name_id, "")
        kinds_of_names.append(_kind_of_kernel(text))
    kinds = sorted(set(kinds_of_names), key=_order_of_kind)
    indices = [kinds.index(kind) for kind in kinds_of_names]
    kind_of_name = np.array(indices, np.int64)
    return kinds, kind_of_name[name_of_kernel]


def _kind_of_kernel(text: str) -> CommKind:
    collective = collective_of_kernel(text)
    datatype = datatype_of(text)
    return CommKind(collective, datatype, algorithm_of(text))


def _order_of_kind(kind: CommKind) -> tuple[str, ...]:
    return kind.collective, kind.datatype or "", kind.algorithm or ""


def _number_streams(
    used_ns: Int64, member: Int64, collective: Int64, device_id: Int64, stream_id: Int64
) -> Int64:
    """Return the number of the stream of each operation, from 0 in each collective.

    A stream is a CUDA stream of a device. If it runs two collectives, it is two streams here. The
    streams of a collective are in the order in which most steps first use them, so that all ranks
    number them alike. `used_ns` is when each operation was launched, and `member` is its step.
    """
    if not collective.size:
        return collective
    device_key = _key_of_pair(collective, device_id)
    key = _key_of_pair(device_key, stream_id)
    _, any_row_of_stream, stream = np.unique(key, return_index=True, return_inverse=True)
    collective_of_stream = collective[any_row_of_stream]
    mean_place, last_place = _places_in_steps(used_ns, member, stream, collective_of_stream)
    n_streams = collective_of_stream.size
    first_use_ns, first_row = _first_uses(stream, used_ns, n_streams)
    # By collective, then by mean place, and so on: the last key of `lexsort` sorts first.
    streams_in_order = np.lexsort(
        (first_row, first_use_ns, last_place, mean_place, collective_of_stream)
    )
    number_of_stream = np.empty(n_streams, np.int64)
    number_of_stream[streams_in_order] = places_in_runs(collective_of_stream[streams_in_order])
    return number_of_stream[stream]


def _key_of_pair(major: Int64, minor: Int64) -> Int64:
    """Return a number for each pair of numbers, in order of the first, then of the second."""
    minor_code = np.unique(minor, return_inverse=True)[1]
    n_codes = minor_code.max() + 1
    key: Int64 = major * n_codes + minor_code
    return key


def _places_in_steps(
    used_ns: Int64, member: Int64, stream: Int64, collective_of_stream: Int64
) -> tuple[Float64, Int64]:
    """Return the mean place of each stream in its steps, and its place in its last step.

    A place is the number of streams of the same collective that the step uses earlier. The mean is
    infinite for streams that no step uses. `used_ns`, `member` and `stream` have a value per
    operation: when it used its stream, its step, and its stream.
    """
    n_streams = collective_of_stream.size
    n_collectives = int(collective_of_stream.max()) + 1
    rows_in_steps = np.flatnonzero(member != NO_MEMBER)
    # A cell is a step and a stream, and its key has both in one number.
    key = member[rows_in_steps] * n_streams
    key += stream[rows_in_steps]
    key_of_cell, cell = np.unique(key, return_inverse=True)
    first_use_ns, first_row = _first_uses(cell, used_ns[rows_in_steps], key_of_cell.size)
    step, stream_of_cell = np.divmod(key_of_cell, n_streams)
    # A group is a step and a collective. Places are counted in each group.
    group = step * n_collectives
    group += collective_of_stream[stream_of_cell]
    cells_in_order = np.lexsort((first_row, first_use_ns, group))
    sorted_streams = stream_of_cell[cells_in_order]
    places = places_in_runs(group[cells_in_order])
    last_place = np.zeros(n_streams, np.int64)
    # Cells are in order of steps, so the last step of a stream overwrites the others.
    last_place[sorted_streams] = places
    return _means_of(sorted_streams, places, n_streams), last_place


def _means_of(groups: Int64, values: Int64, n_groups: int) -> Float64:
    """Return the mean of each group's values. It is infinite if the group has no value."""
    n_values = np.bincount(groups, minlength=n_groups)
    sums = sums_of(groups, values, n_groups)
    # Where there is no value, 1 avoids a division by 0.
    divisors = np.maximum(n_values, 1)
    return np.where(n_values > 0, sums / divisors, np.inf)


def _first_uses(key: Int64, used_ns: Int64, n_keys: int) -> tuple[Int64, Int64]:
    """Return when each key is first used, and the first row with that time.

    `key` and `used_ns` have a value per row. Rows are in order of start. So streams that are used
    at the same time are ordered by what starts first, never by their IDs.
    """
    first_use_ns = least_of(key, used_ns, n_keys)
    is_first_use = used_ns == first_use_ns[key]
    rows = np.flatnonzero(is_first_use)
    first_row = least_of(key[rows], rows, n_keys)
    return first_use_ns, first_row


def calls_of(payloads: PayloadsOfReportTable) -> pa.Table:
    """Return the calls of `canonical.PAYLOADS` that may have launched a kernel, in the same order.

    Adds the columns ``kind``, the index of the collective or `ANY`, ``is_receive``, whether the
    call was ncclRecv, and ``n_calls``, which is 1. The call of a group, or a call without a name,
    may be any collective. Such a call is returned only if its size or its sequence number is known.
    """
    call = payloads["call"].combine_chunks()
    names = call.dictionary.to_pylist()
    # The code behind the last name is that of null, which may be any collective.
    code = pc.fill_null(call.indices, len(names)).to_numpy()
    kinds = [_kind_of_call(name) for name in names]
    kind_of_code = np.array([*kinds, ANY], np.int64)
    kind = kind_of_code[code]
    are_receives = ["recv" in name.lower() for name in names]
    is_receive_of_code = np.array([*are_receives, False])
    is_receive = is_receive_of_code[code]
    has_bytes = pc.is_valid(payloads["message_bytes"])
    has_seq = pc.is_valid(payloads["seq"])
    has_bytes_or_seq = pc.or_(has_bytes, has_seq).to_numpy()
    # A collective is 0 or more. Calls that launch no kernel are below 0, too, but are not `ANY`.
    is_wanted = (kind >= 0) | (has_bytes_or_seq & (kind == ANY))
    calls = payloads.select(
        ["start_ns", "end_ns", "comm_id", "seq", "operation_id", "message_bytes"]
    )
    calls = calls.append_column("kind", pa.array(kind))
    calls = calls.append_column("is_receive", pa.array(is_receive))
    calls = calls.append_column("n_calls", pa.array(np.ones_like(kind)))
    return calls.filter(is_wanted)


def kernel_kinds(collectives: Iterable[str]) -> Int64:
    """Return the kind of kernels by the name of their collective, for example ``all_reduce``.

    A name of no collective (``other``) is `ANY`.
    """
    kinds = []
    for collective in collectives:
        name = bare_name(collective)
        kinds.append(_kind_of_name(name, ANY))
    return np.array(kinds, np.int64)


def _kind_of_name(name: str, fallback: int) -> int:
    """Return the kind of a collective. If the name is that of none, return the fallback."""
    if name not in _COLLECTIVES:
        return fallback
    return _COLLECTIVES.index(name)


def fits(call_kind: Int64, kernel_kind: Int64) -> Flags:
    """Tell whether each call may have launched the kernel with the same index."""
    fit: Flags = call_kind == kernel_kind
    fit |= call_kind == ANY
    fit |= kernel_kind == ANY
    is_made_of_sends = np.isin(call_kind, _KINDS_MADE_OF_SENDS)
    fit |= is_made_of_sends & (kernel_kind == SEND_RECV)
    return fit


def _kind_of_call(text: str) -> int:
    """Return the kind of a call of NCCL. The call of a group, or a nameless one, is `ANY`."""
    name = bare_name(text).removeprefix("nccl")
    if not name or name.startswith("group"):
        return ANY
    name = _ALIASES.get(name, name)
    return _kind_of_name(name, _LAUNCHES_NO_KERNEL)


# The end of a call that never ended: nothing was launched before it, so nothing in the call.
_NEVER_ENDED = -NEVER


class _Blocks(Struct, frozen=True):
    """Consecutive calls of NCCL, and the consecutive launches of kernels that follow them."""

    # Rows of calls and of kernels in order of time, and the block that each is in.
    call: Int64
    call_block: Int64
    kernel: Int64
    kernel_block: Int64
    # Of each block.
    n_calls: Int64
    n_kernels: Int64


class _Groups(Struct, frozen=True):
    """Blocks in which several calls precede one kernel, which NCCL may have fused them into."""

    calls: Int64  # rows of calls, group after group
    # Of each group.
    first: Int64  # place in `calls`
    last_call: Int64  # row of the call
    kernel: Int64


def assign_messages(payloads: PayloadsOfReportTable, launches: Int64, kinds: Int64) -> pa.Table:
    """Assign the payloads of NCCL to the communication kernels of one process.

    Returns a row of `calls_of` per kernel, in the order of `launches`. Its columns are null if no
    payload can be assigned.

    A kernel and its call share no ID, but they have an order. A call comes before its launch, which
    is in the range of the call or in the ``ncclGroupEnd`` that follows. Consecutive payloads and
    the consecutive launches that follow them form a block.

    - In a block with as many kernels as payloads, the k-th kernel gets the k-th payload. If one of
      these payloads names another collective than its kernel, no kernel of the block gets one.
    - In a block with several payloads and one kernel, the kernel gets the last payload if it was
      launched inside the range of that call. In any other case, NCCL may have fused the calls. If
      all payloads are of one communicator and one collective, the kernel gets their sum.
    - Every other block is ambiguous, and its kernels get no payload. Kernels without a known
      launch, and those before the first payload, get none either.

    Sends and receives share a kernel. So a receive counts only if its communicator sends nothing in
    the block. A kernel whose launch is not known may own any payload. So with such a kernel, no
    block of the process counts as fused.

    `payloads` is `canonical.PAYLOADS` of the process. `launches` is `NEVER` if not known. `kinds`
    are as of `kernel_kinds`.
    """
    calls = calls_of(payloads)
    if not calls.num_rows:
        return calls.take(pa.nulls(launches.size, pa.int64()))
    call_kind = calls["kind"].to_numpy()
    blocks = _find_blocks(calls, launches)
    # The row that each kernel gets of `calls_and_groups` below, -1 for none.
    row_of_kernel = np.full(launches.size, -1)
    paired_kernels, paired_calls = _pair_one_to_one(blocks, call_kind, kinds)
    row_of_kernel[paired_kernels] = paired_calls
    groups = _find_groups(blocks)
    kernel = groups.kernel
    last_call = groups.last_call
    is_in_last_call = _are_in_last_calls(calls, groups, launches)
    belongs_to_last_call = fits(call_kind[last_call], kinds[kernel])
    belongs_to_last_call &= is_in_last_call
    row_of_kernel[kernel[belongs_to_last_call]] = last_call[belongs_to_last_call]
    sums_of_groups, may_be_fused = _fuse_calls(calls, groups, kinds)
    if (launches < NEVER).all():
        # All launches are known.
        fused = np.flatnonzero(may_be_fused & ~is_in_last_call)
        row_of_kernel[kernel[fused]] = calls.num_rows + fused
    calls_and_groups = pa.concat_tables([calls, sums_of_groups])
    return calls_and_groups.take(_known(row_of_kernel))


def _are_in_last_calls(calls: pa.Table, groups: _Groups, launches: Int64) -> Flags:
    """Tell for each group whether its kernel was launched inside the range of its last call."""
    ends = filled(calls["end_ns"], _NEVER_ENDED)
    is_in_last_call: Flags = launches[groups.kernel] < ends[groups.last_call]
    return is_in_last_call


def _find_blocks(calls: pa.Table, launches: Int64) -> _Blocks:
    """Return the blocks of all calls that count, and of all kernels whose launch is known.

    A block is consecutive calls, and the consecutive launches that follow. There is at least one
    call.
    """
    launched_kernels = np.flatnonzero(launches < NEVER)
    # An event is a call or a launch. Calls have the first numbers, so that a call precedes a launch
    # at the same time.
    times = np.append(calls["start_ns"], launches[launched_kernels])
    events = np.argsort(times, kind="stable")
    is_launch = events >= calls.num_rows
    # A block begins with each call that follows a launch.
    follows_launch = np.append(False, is_launch[:-1])
    begins_block = follows_launch & ~is_launch
    # Block 0 is what comes before the first such call.
    block = np.cumsum(begins_block, dtype=np.int64)
    n_blocks = int(block[-1]) + 1
    call = events[~is_launch]
    block_of_call = block[~is_launch]
    is_counted = _is_counted(calls.take(call), block_of_call)
    counted_block = block_of_call[is_counted]
    launch = events[is_launch] - calls.num_rows
    block_of_launch = block[is_launch]
    return _Blocks(
        call=call[is_counted],
        call_block=counted_block,
        kernel=launched_kernels[launch],
        kernel_block=block_of_launch,
        n_calls=np.bincount(counted_block, minlength=n_blocks),
        n_kernels=np.bincount(block_of_launch, minlength=n_blocks),
    )


def _find_groups(blocks: _Blocks) -> _Groups:
    """Return the groups: the blocks with several calls and one kernel."""
    is_group = blocks.n_calls > 1
    is_group &= blocks.n_kernels == 1
    # Calls and kernels are in order of time, and so are blocks. So the calls of a group follow each
    # other, and the k-th kernel is that of the k-th group.
    is_call_of_group = is_group[blocks.call_block]
    calls = blocks.call[is_call_of_group]
    is_kernel_of_group = is_group[blocks.kernel_block]
    kernel = blocks.kernel[is_kernel_of_group]
    n_calls = blocks.n_calls[is_group]
    place_behind_last = np.cumsum(n_calls)
    first = place_behind_last - n_calls
    last_call = calls[place_behind_last - 1]
    return _Groups(calls=calls, first=first, last_call=last_call, kernel=kernel)


def _pair_one_to_one(blocks: _Blocks, call_kind: Int64, kinds: Int64) -> tuple[Int64, Int64]:
    """Return kernels, and the call of each, in blocks with as many kernels as calls.

    A block is left out if the kind of one call does not fit its kernel. `kinds` are those of all
    kernels.
    """
    is_even = blocks.n_calls == blocks.n_kernels
    is_call_in_even_block = is_even[blocks.call_block]
    call = blocks.call[is_call_in_even_block]
    is_kernel_in_even_block = is_even[blocks.kernel_block]
    kernel = blocks.kernel[is_kernel_in_even_block]
    block = blocks.kernel_block[is_kernel_in_even_block]
    # Both are in order of time, so the calls and kernels of even blocks are pairs already.
    is_fitting = fits(call_kind[call], kinds[kernel])
    has_misfit = np.zeros(is_even.size, np.bool_)
    has_misfit[block[~is_fitting]] = True
    is_certain = ~has_misfit[block]
    return kernel[is_certain], call[is_certain]


def _is_counted(calls: pa.Table, block: Int64) -> Flags:
    """Tell which calls count: all but receives whose communicator also sends in the block.

    `block` is the block of each call.
    """
    known_communicator = calls["comm_id"].combine_chunks().dictionary_encode().indices
    # Calls without a communicator get a number above all others.
    no_communicator = len(known_communicator)
    communicator = pc.fill_null(known_communicator, no_communicator).to_numpy()
    key = block * (no_communicator + 1)
    key += communicator
    is_receive = calls["is_receive"].to_numpy()
    is_send = calls["kind"].to_numpy() == SEND_RECV
    is_send &= ~is_receive
    also_sends = np.isin(key, key[is_send])
    is_counted: Flags = ~(is_receive & also_sends)
    return is_counted


def _fuse_calls(calls: pa.Table, groups: _Groups, kinds: Int64) -> tuple[pa.Table, Flags]:
    """Sum up the calls of each group, and tell which groups NCCL can have fused into their kernel.

    NCCL fuses calls of one communicator and one collective, which the kernel has to run. The first
    result has a row per group: the first call, with the sum of the bytes and the number of calls.
    The sum is null if the bytes of one call are not known. `kinds` are those of all kernels.
    """
    firsts = groups.first
    kernel_kind = kinds[groups.kernel]
    calls = calls.take(groups.calls)
    kind = calls["kind"].to_numpy()
    # Calls that may be any collective do not count in the highest and the lowest kind. For the
    # highest, `ANY` is below all kinds. For the lowest, `N_KINDS` stands in, which is above all.
    highest = np.maximum.reduceat(kind, firsts)
    kind_or_above_all = np.where(kind == ANY, N_KINDS, kind)
    lowest = np.minimum.reduceat(kind_or_above_all, firsts)
    is_one_collective = lowest == highest
    are_all_any = highest == ANY
    may_be_fused: Flags = is_one_collective | are_all_any
    may_be_fused &= fits(highest, kernel_kind)
    may_be_fused &= _are_of_one_communicator(calls["comm_id"], firsts)
    total_bytes = _total_bytes(calls["message_bytes"], firsts)
    n_calls = np.diff(firsts, append=calls.num_rows)
    sums = calls.take(firsts)
    place_of_bytes = sums.column_names.index("message_bytes")
    sums = sums.set_column(place_of_bytes, "message_bytes", total_bytes)
    place_of_n_calls = sums.column_names.index("n_calls")
    sums = sums.set_column(place_of_n_calls, "n_calls", pa.array(n_calls))
    return sums, may_be_fused


def _are_of_one_communicator(comm_ids: pa.ChunkedArray, firsts: Int64) -> Flags:
    """Tell which groups have one communicator, and no call without one."""
    comm = filled(comm_ids)
    lowest = np.minimum.reduceat(comm, firsts)
    highest = np.maximum.reduceat(comm, firsts)
    is_one: Flags = lowest == highest
    is_one &= _are_all_valid(comm_ids, firsts)
    return is_one


def _are_all_valid(column: pa.ChunkedArray, firsts: Int64) -> Flags:
    """Tell which groups have no null."""
    is_valid = pc.is_valid(column).to_numpy()
    return np.logical_and.reduceat(is_valid, firsts)


def _total_bytes(message_bytes: pa.ChunkedArray, firsts: Int64) -> pa.Array:
    """Return the bytes of each group. Null if those of one call are not known."""
    n_bytes = filled(message_bytes, 0)
    total = np.add.reduceat(n_bytes, firsts)
    # In a damaged report, the integers may overflow int64, but floats do not. A sum that is too
    # large for int64 counts as not known.
    float_total = np.add.reduceat(n_bytes.astype(np.float64), firsts)
    is_known = float_total < 2.0**62
    is_known &= _are_all_valid(message_bytes, firsts)
    return pa.array(total, mask=~is_known)
