"""Communication operations of each rank, the collectives that they form, and who waits in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    cells = _sort_into_cells(grouped, group[grouped], rank[grouped])
    first_cell = run_starts(cells.group)
    n_cells = np.diff(first_cell, append=cells.group.size)
    fewest = np.minimum.reduceat(cells.count, first_cell)
    most = np.maximum.reduceat(cells.count, first_cell)
    is_complete = n_cells == n_required[cells.group[first_cell]]
    is_matched = is_complete & (fewest == most) & (n_cells > 1)
    matrices = []
    for n_ranks in np.unique(n_cells[is_matched]).tolist():
        groups = np.flatnonzero(is_matched & (n_cells == n_ranks))
        cells_of_groups = first_cell[groups][:, np.newaxis] + np.arange(n_ranks)
        # Each group has as many collectives as any of its cells has operations.
        group_of_collective = np.repeat(np.arange(groups.size), fewest[groups])
        first_operation = cells.first[cells_of_groups[group_of_collective]]
        k = places_in_runs(group_of_collective)[:, np.newaxis]
        matrices.append(cells.operations[first_operation + k])
    return matrices


def _sort_into_cells(operations: Int64, group: Int64, rank: Int64 | Int32) -> _Cells:
    n_ranks = int(rank.max()) + 1
    key = group * n_ranks + rank
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = run_starts(key)
    return _Cells(
        operations=operations[order],
        first=first,
        count=np.diff(first, append=key.size),
        group=key[first] // n_ranks,
    )


def whole_message(collective: str, reported_bytes: Int64, n_ranks: Int64) -> Int64:
    """Return the size of the whole array that a collective moves, in bytes as nccl-tests counts.

    `n_ranks` is the number of ranks of the communicator.
    """
    return reported_bytes * n_ranks if collective in PER_RANK else reported_bytes


def bus_factor(collective: str, n_ranks: Float64) -> Float64:
    """Return busbw / algbw: 2(n-1)/n for all_reduce, (n-1)/n for gather, scatter, all-to-all.

    It is 1 for every other collective.
    """
    part = (n_ranks - 1) / n_ranks
    if collective == "all_reduce":
        return 2 * part
    return part if collective in PER_RANK else np.ones_like(part)


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

        The values are zero for operations that are not matched.
        """
        collective_id = self.collective_id[rows]
        is_matched = collective_id != NOBODY
        starts = self.starts[rows]
        last_start_ns = self.last_start_ns[collective_id]
        match name:
            case "arrival_skew_ns":
                return last_start_ns - self.first_start_ns[collective_id]
            case "wait_ns":
                return np.where(is_matched, last_start_ns - starts, 0)
            case "transfer_ns":
                transfer_ns = np.maximum(self.ends[rows] - last_start_ns, 0)
                return np.where(is_matched, transfer_ns, 0)
        values = getattr(self, name)[collective_id]
        if name == "held_up_ns":
            # Only one operation of a collective has it, so that sums count it once.
            operations = np.arange(self.starts.size)[rows] if isinstance(rows, slice) else rows
            return values * (self.latest[collective_id] == operations)
        is_of_late_ranks = name in {"late_by_ns", "is_late_significant"}
        return values * (starts == last_start_ns) if is_of_late_ranks else values


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


def measure_waiting(
    matched: Sequence[Int64], starts: Int64, ends: Int64, owner: Int32, clocks: tuple[Int64, Int64]
) -> Waiting:
    """Measure who waits for whom in collectives, from the aligned times of all operations.

    `matched` has a collective per row, as `match_collectives` returns it. `owner` is an index into
    both arrays of `clocks`: the error of the owner's clock in ns, and its part. Clocks of different
    parts were never compared.
    """
    collective_id = np.full(starts.size, NOBODY, np.int32)
    parts = []
    n_collectives = 0
    errors, clock_parts = clocks
    for matrix in matched:
        n_parts = matrix.size // _MAX_OPERATIONS_AT_ONCE + 1
        for rows in np.array_split(matrix, n_parts):
            ids = n_collectives + np.arange(len(rows), dtype=np.int32)
            collective_id[rows] = ids[:, np.newaxis]
            n_collectives += len(rows)
            owners = owner[rows]
            times = starts[rows], ends[rows]
            parts.append(_measure_collectives(rows, *times, errors[owners], clock_parts[owners]))
    parts.append(_NOT_MATCHED)
    columns = {}
    for name in _NOT_MATCHED:
        columns[name] = np.concatenate([part[name] for part in parts]).ravel()
    return Waiting(starts=starts, ends=ends, collective_id=collective_id, **columns)


def _measure_collectives(
    operations: Int64, start: Int64, end: Int64, clock_error: Int64, clock_part: Int64
) -> dict[str, Any]:
    """Return the columns of `_NOT_MATCHED` for collectives, one per row of all these matrices."""
    n_collectives, n_ranks = operations.shape
    ordered = np.partition(start, (0, -2, -1), axis=1)
    first = ordered[:, [0]]
    second_last = ordered[:, [-2]]
    last = ordered[:, [-1]]
    is_skewed = _is_beyond_clocks(first, last, start, clock_error, clock_part)
    is_late = _is_beyond_clocks(second_last, last, start, clock_error, clock_part)
    waited_ns = waited_until(start, end, last - start) - start
    longest_wait_ns = waited_ns.max(axis=1, keepdims=True)
    latest = operations[np.arange(n_collectives), start.argmax(axis=1)]
    return {
        "n_ranks": np.full_like(first, n_ranks),
        "first_start_ns": first,
        "last_start_ns": last,
        "late_by_ns": last - second_last,
        "held_up_ns": np.where(is_skewed, longest_wait_ns, 0),
        "latest": latest[:, np.newaxis],
        "is_significant": is_skewed,
        "is_late_significant": is_late,
    }


def _is_beyond_clocks(
    earlier: Int64, later: Int64, start: Int64, error: Int64, part: Int64
) -> Flags:
    """Tell for each collective whether two arrivals are farther apart than the clock errors.

    All ranks that arrived at either time count. False if their clocks were never compared.
    """
    is_concerned = (start == earlier) | (start == later)
    first_concerned = is_concerned.argmax(axis=1, keepdims=True)
    expected_part = np.take_along_axis(part, first_concerned, axis=1)
    is_compared = (~is_concerned | (part == expected_part)).all(axis=1, keepdims=True)
    max_error = np.where(is_concerned, error, 0).max(axis=1, keepdims=True)
    is_beyond: Flags = is_compared & (later - earlier > max_error)
    return is_beyond


def waited_until(starts: Int64, ends: Int64, wait_ns: Int64) -> Int64:
    """Return until when each operation waits from its start on: ``min(last start, own end)``."""
    until: Int64 = np.minimum(ends, starts + wait_ns)
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
        columns = {name: narrowed(table[name]) for name in table.column_names}
        return cls(tuple(kinds), pa.table(columns))

    @property
    def table(self) -> pa.Table:
        """The operations as `canonical.COMM_OPERATIONS`."""
        return conform(self.narrow, canonical.COMM_OPERATIONS)


class _CommKernels(Struct, frozen=True):
    """The communication kernels of a rank or a process, in order of start."""

    rows: Int64  # among all kernels
    launch_order: Int64  # place of each among the communication kernels in order of launch
    launch: Int64
    kinds: list[CommKind]
    kind: Int64  # of each kernel, an index into `kinds`

    @property
    def collectives(self) -> Int64:
        """The kind of each kernel as of `kernel_kinds`."""
        return kernel_kinds(kind.collective for kind in self.kinds)[self.kind]


def _find_comm_kernels(operations: ProcessOperations, names: Mapping[int, str]) -> _CommKernels:
    by_launch = np.flatnonzero(operations.is_comm)
    launch_order = np.argsort(operations.kernel_start[by_launch], kind="stable")
    rows = by_launch[launch_order]
    kinds, kind = _kinds(operations.kernel_column("name_id")[rows], names)
    return _CommKernels(
        rows=rows,
        launch_order=launch_order,
        launch=operations.kernel_launch[rows],
        kinds=kinds,
        kind=kind,
    )


def messages_of(
    operations: ProcessOperations, names: Mapping[int, str], payloads: pa.Table
) -> pa.Table:
    """Return what NCCL recorded of each communication kernel of a process: rows of `calls_of`.

    The rows are in the kernels' order of launch. A process with several ranks is matched as a
    whole, since the calls of NCCL and the launches that follow them have one order in it.
    """
    kernels = _find_comm_kernels(operations, names)
    messages = assign_messages(payloads, kernels.launch, kernels.collectives)
    return messages.take(pa.array(np.argsort(kernels.launch_order, kind="stable")))


def comm_operations(
    device: DeviceTime,
    names: Mapping[int, str],
    members: Members,
    payloads: pa.Table,
    backward: PhaseRanges | None,
    *,
    messages: pa.Table | None = None,
) -> CommOperations:
    """List the communication operations of one rank in order of start; `names` are by name ID.

    `messages` are the rank's rows of `messages_of` if its process has other ranks too. Otherwise
    they are read from `payloads`.
    """
    operations = device.operations
    kernels = _find_comm_kernels(operations, names)
    if not kernels.rows.size:
        return CommOperations.of((), canonical.COMM_OPERATIONS.empty())
    if messages is None:
        messages = assign_messages(payloads, kernels.launch, kernels.collectives)
    else:
        messages = messages.take(pa.array(kernels.launch_order))
    start = operations.kernel_start[kernels.rows]
    member = members_holding(members, device.windows, kernels.launch, start)
    launched_in, micro_batch = launching_passes(member, kernels.launch, backward)
    stream_order = _order_of_streams(operations, kernels, member)
    n_before = _compute_kernels_before(operations, kernels, members, member)
    of_operations = {
        "start_ns": start,
        "end_ns": operations.kernel_end[kernels.rows],
        "member": member,
        "kind": kernels.kind,
        "stream_order": stream_order,
        "launched_in": pa.array(launched_in, mask=launched_in < 0),
        "micro_batch": pa.array(micro_batch, mask=micro_batch < 0),
        "n_before": n_before,
    }
    is_all_to_all = pc.equal(messages["kind"], ALL_TO_ALL)
    of_messages = {
        "comm_id": messages["comm_id"],
        "seq_number": messages["seq"],
        "message_bytes": messages["message_bytes"],
        "called": pc.if_else(is_all_to_all, COLLECTIVES.index("all_to_all"), None),
    }
    table = canonical.COMM_OPERATIONS.table(of_operations | of_messages)
    return CommOperations.of(kernels.kinds, table)


def _compute_kernels_before(
    operations: ProcessOperations, kernels: _CommKernels, members: Members, member: Int64
) -> pa.Array:
    """Return how many compute kernels its step launched before each communication kernel.

    Null if the step or the launch of the kernel is not known.
    """
    n_launched = np.append(0, np.cumsum(~operations.is_comm))
    # The last step is that of kernels of no step.
    first_kernel = np.searchsorted(operations.kernel_launch, np.append(members.starts, 0))
    n_before_step = n_launched[first_kernel]
    is_known = (member != NO_MEMBER) & (kernels.launch != NEVER) & (members.starts.size > 0)
    n_before = n_launched[kernels.rows] - n_before_step[np.where(is_known, member, NO_MEMBER)]
    return pa.array(n_before, mask=~is_known | (n_before < 0))


def _order_of_streams(operations: ProcessOperations, kernels: _CommKernels, member: Int64) -> Int64:
    """Return the number of the stream of each kernel, among those of its collective."""
    start = operations.kernel_start[kernels.rows]
    used = np.where(kernels.launch == NEVER, start, kernels.launch)
    collective_of_kind = [COLLECTIVES.index(kind.collective) for kind in kernels.kinds]
    collective = np.array(collective_of_kind, np.int64)[kernels.kind]
    device_id = operations.kernel_column("device_id")[kernels.rows]
    stream_id = operations.kernel_column("stream_id")[kernels.rows]
    return _stream_order(used, member, collective, device_id, stream_id)


def members_holding(members: Members, windows: Windows, launch: Int64, start: Int64) -> Int64:
    """Return the step range that each operation belongs to, as an index; `NO_MEMBER` for none.

    The step range holds the launch of the operation. If the launch is not known, it is that of the
    window in which the operation starts. A capture is a window without a range and holds all.
    """
    if len(windows) > members.starts.size:
        return np.zeros(launch.size, np.int64)
    member = holders(members.starts, members.ends, launch)
    without_launch = np.flatnonzero(launch == NEVER)
    window = holders(windows.starts, windows.ends, start[without_launch])
    # The last place is that of no window.
    member[without_launch] = np.append(windows.member, NO_MEMBER)[window]
    return member


def _kinds(name_ids: Int64, names: Mapping[int, str]) -> tuple[list[CommKind], Int64]:
    """Return the kinds of kernels, sorted, and for each name ID the index of its kind."""
    ids, index = np.unique(name_ids, return_inverse=True)
    texts = [names.get(name_id, "") for name_id in ids.tolist()]
    kind_of_id = [
        CommKind(collective_of_kernel(text), datatype_of(text), algorithm_of(text))
        for text in texts
    ]
    kinds = sorted(
        set(kind_of_id),
        key=lambda kind: (kind.collective, kind.datatype or "", kind.algorithm or ""),
    )
    return kinds, np.array([kinds.index(kind) for kind in kind_of_id], np.int64)[index]


def _stream_order(
    used: Int64, member: Int64, collective: Int64, device: Int64, stream: Int64
) -> Int64:
    """Return numbers of (device, stream) pairs: the usual order in which they are first launched.

    Usual means in most steps, so that all ranks number them alike. `used` is when each operation
    was launched. The result has the number of each operation's pair, from 0 in each collective.
    """
    if not collective.size:
        return collective
    device_code = np.unique(device, return_inverse=True)[1]
    stream_code = np.unique(stream, return_inverse=True)[1]
    device_key = collective * (device_code.max() + 1) + device_code
    key = device_key * (stream_code.max() + 1) + stream_code
    _, first, pair = np.unique(key, return_index=True, return_inverse=True)
    collective_of_pair = collective[first]
    mean_place, last_place = _places_in_steps(used, member, pair, collective_of_pair)
    n_pairs = collective_of_pair.size
    begun, first_row = _first_uses(pair, used, n_pairs)
    order = np.lexsort((first_row, begun, last_place, mean_place, collective_of_pair))
    numbers = np.empty(n_pairs, np.int64)
    numbers[order] = places_in_runs(collective_of_pair[order])
    return numbers[pair]


def _places_in_steps(
    used: Int64, member: Int64, pair: Int64, collective_of_pair: Int64
) -> tuple[Float64, Int64]:
    """Return the mean place of each pair in its steps, and its place in its last step.

    A place is the number of pairs of the same collective that the step uses earlier. The mean is
    infinite for pairs that no step uses.
    """
    n_pairs = collective_of_pair.size
    inside = np.flatnonzero(member != NO_MEMBER)
    # A cell is what one step has of one pair.
    cells, cell = np.unique(member[inside] * n_pairs + pair[inside], return_inverse=True)
    begun, first_row = _first_uses(cell, used[inside], cells.size)
    step = cells // n_pairs
    group = step * (int(collective_of_pair.max()) + 1) + collective_of_pair[cells % n_pairs]
    order = np.lexsort((first_row, begun, group))
    pair_of_cell = cells[order] % n_pairs
    places = places_in_runs(group[order])
    n_steps = np.bincount(pair_of_cell, minlength=n_pairs)
    mean = sums_of(pair_of_cell, places, n_pairs) / np.maximum(n_steps, 1)
    last = np.zeros(n_pairs, np.int64)
    # Cells are in order of steps, so the last step of a pair overwrites the others.
    last[pair_of_cell] = places
    return np.where(n_steps > 0, mean, np.inf), last


def _first_uses(key: Int64, used: Int64, n_keys: int) -> tuple[Int64, Int64]:
    """Return when each key is first used, and the first row with that time.

    Rows are in order of start. So streams that are used at the same time are ordered by what starts
    first, never by their IDs.
    """
    begun = least_of(key, used, n_keys)
    rows = np.flatnonzero(used == begun[key])
    return begun, least_of(key[rows], rows, n_keys)


def calls_of(payloads: pa.Table) -> pa.Table:
    """Return the calls of `canonical.PAYLOADS` that may have launched a kernel, in the same order.

    Adds the columns ``kind``, the index of the collective or `ANY`, and ``is_receive``, whether the
    call was ncclRecv. The call of a group, or a call without a name, may be any collective. It is
    returned only if its size or its sequence number is known.
    """
    call = payloads["call"].combine_chunks()
    names = call.dictionary.to_pylist()
    # The code behind the last name is that of null, which may be any collective.
    code = pc.fill_null(call.indices, len(names)).to_numpy()
    kind = np.array([*map(_kind_of_call, names), ANY], np.int64)[code]
    is_name_of_receive = ["recv" in name.lower() for name in names]
    is_receive = np.array([*is_name_of_receive, False])[code]
    has_bytes = pc.is_valid(payloads["message_bytes"])
    is_described = pc.or_(has_bytes, pc.is_valid(payloads["seq"])).to_numpy()
    calls = payloads.select(["start_ns", "end_ns", "comm_id", "seq", "message_bytes"])
    calls = calls.append_column("kind", pa.array(kind))
    calls = calls.append_column("is_receive", pa.array(is_receive))
    return calls.filter((kind >= 0) | ((kind == ANY) & is_described))


def kernel_kinds(collectives: Iterable[str]) -> Int64:
    """Return the kind of kernels by the name of their collective, for example ``all_reduce``.

    A name of no collective (``other``) is `ANY`.
    """
    names = map(bare_name, collectives)
    kinds = [_COLLECTIVES.index(name) if name in _COLLECTIVES else ANY for name in names]
    return np.array(kinds, np.int64)


def fits(call_kind: Int64, kernel_kind: Int64) -> Flags:
    """Tell whether each call may have launched the kernel with the same index."""
    fit: Flags = (call_kind == kernel_kind) | (call_kind == ANY) | (kernel_kind == ANY)
    fit |= (kernel_kind == SEND_RECV) & np.isin(call_kind, _KINDS_MADE_OF_SENDS)
    return fit


def _kind_of_call(text: str) -> int:
    name = bare_name(text).removeprefix("nccl")
    if not name or name.startswith("group"):
        return ANY
    name = _ALIASES.get(name, name)
    return _COLLECTIVES.index(name) if name in _COLLECTIVES else _LAUNCHES_NO_KERNEL


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


def assign_messages(payloads: pa.Table, launches: Int64, kinds: Int64) -> pa.Table:
    """Assign the payloads of NCCL to the communication kernels of one process.

    Returns a row of `calls_of` per kernel, in the order of `launches`. Its columns are null if no
    payload can be assigned.

    A kernel and its call share no ID, but they have an order. A call comes before its launch, which
    is in the range of the call or in the ``ncclGroupEnd`` that follows. Consecutive payloads and
    the consecutive launches that follow them form a block.

    - As many kernels as payloads in a block belong together one to one, in order. If a payload
      names another collective than its kernel, no kernel of the block gets a payload.
    - One kernel behind several payloads of one communicator and one collective is a group that NCCL
      fused. Its size is the sum of theirs. But if the kernel was launched inside the range of the
      last payload, it belongs to that payload alone.
    - Every other block is ambiguous. Its kernels get no payload. Kernels without a known launch,
      and those before the first payload, get none either.

    Sends and receives share a kernel. So a receive counts only if its communicator sends nothing in
    the block. A kernel whose launch is not known may own any payload. So nothing counts as fused in
    its process.

    `payloads` is `canonical.PAYLOADS` of the process. `launches` is `NEVER` if not known. `kinds`
    are as of `kernel_kinds`.
    """
    calls = calls_of(payloads)
    if not calls.num_rows:
        return calls.take(pa.nulls(launches.size, pa.int64()))
    call_kind = calls["kind"].to_numpy()
    blocks = _find_blocks(calls, launches)
    # Of each kernel: the row of its call, behind them that of a fused group, or -1.
    source = np.full(launches.size, -1)
    kernels, calls_of_kernels = _pair_one_to_one(blocks, call_kind, kinds)
    source[kernels] = calls_of_kernels
    groups = _find_groups(blocks)
    last_call_end = filled(calls["end_ns"], _NEVER_ENDED)[groups.last_call]
    is_of_last_call = launches[groups.kernel] < last_call_end
    fits_last_call = fits(call_kind[groups.last_call], kinds[groups.kernel])
    has_last_call = is_of_last_call & fits_last_call
    source[groups.kernel[has_last_call]] = groups.last_call[has_last_call]
    fused, is_fused = _fuse_calls(calls.take(groups.calls), groups.first, kinds[groups.kernel])
    if (launches < NEVER).all():
        is_fused &= ~is_of_last_call
        source[groups.kernel[is_fused]] = calls.num_rows + np.flatnonzero(is_fused)
    return pa.concat_tables([calls, fused]).take(pa.array(source, mask=source < 0))


def _find_blocks(calls: pa.Table, launches: Int64) -> _Blocks:
    """Return the blocks of all calls that count, and of all kernels whose launch is known."""
    launched = np.flatnonzero(launches < NEVER)
    # If times are equal, the call comes first.
    times = np.append(calls["start_ns"], launches[launched])
    order = np.argsort(times, kind="stable")
    is_kernel = order >= calls.num_rows
    # A block begins with each call that follows a kernel.
    begins = np.diff(is_kernel.astype(np.int8), prepend=0) < 0
    block = np.cumsum(begins, dtype=np.int64)
    n_blocks = int(block[-1]) + 1
    call = order[~is_kernel]
    call_block = block[~is_kernel]
    is_counted = _is_counted(calls.take(call), call_block)
    call_block = call_block[is_counted]
    kernel_block = block[is_kernel]
    return _Blocks(
        call=call[is_counted],
        call_block=call_block,
        kernel=launched[order[is_kernel] - calls.num_rows],
        kernel_block=kernel_block,
        n_calls=np.bincount(call_block, minlength=n_blocks),
        n_kernels=np.bincount(kernel_block, minlength=n_blocks),
    )


def _find_groups(blocks: _Blocks) -> _Groups:
    is_group = (blocks.n_calls > 1) & (blocks.n_kernels == 1)
    calls = blocks.call[is_group[blocks.call_block]]
    n_calls = blocks.n_calls[is_group]
    end = np.cumsum(n_calls)
    return _Groups(
        calls=calls,
        first=end - n_calls,
        last_call=calls[end - 1],
        kernel=blocks.kernel[is_group[blocks.kernel_block]],
    )


def _pair_one_to_one(blocks: _Blocks, call_kind: Int64, kinds: Int64) -> tuple[Int64, Int64]:
    """Return kernels and their calls in blocks that have as many kernels as calls, and fit."""
    is_even = blocks.n_calls == blocks.n_kernels
    call = blocks.call[is_even[blocks.call_block]]
    is_in_even_block = is_even[blocks.kernel_block]
    kernel = blocks.kernel[is_in_even_block]
    block = blocks.kernel_block[is_in_even_block]
    is_ambiguous = np.zeros(is_even.size, np.bool_)
    is_ambiguous[block[~fits(call_kind[call], kinds[kernel])]] = True
    is_certain = ~is_ambiguous[block]
    return kernel[is_certain], call[is_certain]


def _is_counted(calls: pa.Table, block: Int64) -> Flags:
    """Leave out what a communicator receives in a block in which it also sends."""
    codes = calls["comm_id"].combine_chunks().dictionary_encode().indices
    key = block * (len(codes) + 1) + pc.fill_null(codes, len(codes)).to_numpy()
    is_receive = calls["is_receive"].to_numpy()
    is_send = (calls["kind"].to_numpy() == SEND_RECV) & ~is_receive
    is_counted: Flags = ~is_receive | ~np.isin(key, key[is_send])
    return is_counted


def _fuse_calls(calls: pa.Table, firsts: Int64, kernel_kind: Int64) -> tuple[pa.Table, Flags]:
    """Sum up the calls of each group, and tell which groups NCCL can have fused into their kernel.

    `firsts` are the rows at which the groups begin. The size of a group is null if it is not known.
    """
    kind = calls["kind"].to_numpy()
    # A call without a name is lower than all others.
    highest = np.maximum.reduceat(kind, firsts)
    lowest_named = np.minimum.reduceat(np.where(kind == ANY, N_KINDS, kind), firsts)
    is_of_one_kind = (highest == ANY) | (lowest_named == highest)
    comm = filled(calls["comm_id"])
    has_comm = np.logical_and.reduceat(pc.is_valid(calls["comm_id"]).to_numpy(), firsts)
    is_of_one_comm = np.minimum.reduceat(comm, firsts) == np.maximum.reduceat(comm, firsts)
    is_fused = is_of_one_kind & has_comm & is_of_one_comm & fits(highest, kernel_kind)
    n_bytes = filled(calls["message_bytes"], 0)
    has_bytes = np.logical_and.reduceat(pc.is_valid(calls["message_bytes"]).to_numpy(), firsts)
    # A sum that overflows int64 is not a size.
    is_plausible = np.add.reduceat(n_bytes / 2**62, firsts) < 1
    total = pa.array(np.add.reduceat(n_bytes, firsts), mask=~(has_bytes & is_plausible))
    place = calls.column_names.index("message_bytes")
    return calls.take(firsts).set_column(place, "message_bytes", total), is_fused
