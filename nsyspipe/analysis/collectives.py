"""The communication operations of each rank, which of different ranks are one collective, and what those say."""

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
PER_RANK = ("all_gather", "reduce_scatter", "all_to_all")  # NCCL reports one rank's part of these
NOBODY = -1
_ALL = slice(None)
_AT_ONCE = 2**19  # operations that are measured at once, for what is computed on the way
NO_MEMBER = -1
# Kinds of NCCL's calls are counted through these. Sends and receives meet in one kernel.
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
_AS_SENDS = (
    ALL_TO_ALL,
    *map(_COLLECTIVES.index, ("gather", "scatter")),
)  # NCCL makes sends and receives of these
# fits each kind; launches no kernel
ANY = -1
_NONE = -2


def match(group: Int64, rank: Int64 | Int32, n_required: Int64) -> list[Int64]:
    """Match the k-th operation of a group on each of its ranks with the k-th on the others, as the same collective.

    A group (a communicator within one step) with fewer ranks than `n_required` of it, with counts
    that differ between ranks, or of a single rank, is not matched; `UNGROUPED` is left out.
    Operations of one rank stand in order of start. Returns one matrix per number of ranks, smallest
    first: a row per collective (in order of group, then k), a column per rank in ascending order,
    holding indices of operations. Cost O(n log n): one stable sort.
    """
    chosen = np.flatnonzero(group != UNGROUPED)
    if not chosen.size:
        return []
    n_ranks = int(rank.max()) + 1
    key = group[chosen] * n_ranks + rank[chosen]
    order = np.argsort(key, kind="stable")
    key = key[order]
    rows = chosen[order]
    cell_first = run_starts(key)  # a cell is what one rank has of one group
    cell_count = np.diff(cell_first, append=key.size)
    cell_group = key[cell_first] // n_ranks
    group_first = run_starts(cell_group)
    n_cells = np.diff(group_first, append=cell_group.size)
    fewest, most = (of.reduceat(cell_count, group_first) for of in (np.minimum, np.maximum))
    is_matched = (fewest == most) & (n_cells == n_required[cell_group[group_first]]) & (n_cells > 1)
    matched = []
    for size in np.unique(n_cells[is_matched]).tolist():
        own = np.flatnonzero(is_matched & (n_cells == size))
        cells = group_first[own][:, np.newaxis] + np.arange(size)
        # Row k of a group's block takes the k-th operation of each of its cells.
        block = np.repeat(np.arange(own.size), fewest[own])
        matched.append(rows[cell_first[cells[block]] + places_in_runs(block)[:, np.newaxis]])
    return matched


def whole_message(collective: str, reported_bytes: Int64, n_ranks: Int64) -> Int64:
    """Return the size of the whole array that a collective moves, as nccl-tests counts; `n_ranks` is the communicator's."""
    return reported_bytes * n_ranks if collective in PER_RANK else reported_bytes


def bus_factor(collective: str, n_ranks: Float64) -> Float64:
    """Return busbw / algbw: 2(n-1)/n for all_reduce, (n-1)/n for gather, scatter, all-to-all, else 1."""
    part = (n_ranks - 1) / n_ranks
    if collective == "all_reduce":
        return 2 * part
    return part if collective in PER_RANK else np.ones_like(part)


class Waiting(Struct, frozen=True):
    """What matched collectives say: a number for each operation, `NOBODY` where it is not matched; and a row for each collective.

    The last row is that of what is not matched, all zero.
    """

    starts: Int64  # of each operation, aligned time
    ends: Int64
    collective_id: Int32
    n_ranks: Int64  # ranks that take part
    first_start_ns: Int64  # when the first and the last rank arrived
    last_start_ns: Int64
    late_by_ns: Int64  # the other columns are as `schema.COLLECTIVES` has them
    held_up_ns: Int64
    latest: Int64  # operation of the rank that arrived last, of several the lowest
    is_significant: Flags  # of ranks that tie the largest clock error counts
    is_late_significant: Flags

    @property
    def is_matched(self) -> Flags:
        """Whether each operation has its counterparts on the other ranks."""
        matched: Flags = self.collective_id != NOBODY
        return matched

    def column(self, name: str, rows: Int64 | slice = _ALL) -> Any:  # noqa: ANN401 - an array
        """Return a column of `schema.COLLECTIVES`, or a field, of some operations; zero where one is not matched."""
        own = self.collective_id[rows]
        starts = self.starts[rows]
        last = self.last_start_ns[own]
        if name == "arrival_skew_ns":
            return last - self.first_start_ns[own]
        if name == "wait_ns":
            return np.where(own == NOBODY, 0, last - starts)
        if name == "transfer_ns":
            return np.where(own == NOBODY, 0, np.maximum(self.ends[rows] - last, 0))
        value = getattr(self, name)[own]
        if name == "held_up_ns":
            operations = np.arange(self.starts.size)[rows] if isinstance(rows, slice) else rows
            return value * (self.latest[own] == operations)
        return value * (starts == last) if name in ("late_by_ns", "is_late_significant") else value


def waiting(
    matched: Sequence[Int64], starts: Int64, ends: Int64, owner: Int32, clocks: tuple[Int64, Int64]
) -> Waiting:
    """Measure matched collectives, one per row of `matched`: times are aligned.

    `clocks` are of each owner of operations the clock's error, ns, and part: those of others were
    never compared with it.
    """
    numbers = np.full(starts.size, NOBODY, np.int32)
    parts: list[tuple[Any, ...]] = []
    n_before = 0
    for block in matched:
        for rows in np.array_split(block, block.size // _AT_ONCE + 1):
            numbers[rows] = n_before + np.arange(len(rows), dtype=np.int32)[:, np.newaxis]
            n_before += len(rows)
            own_start = starts[rows]
            own_end = ends[rows]
            ordered = np.partition(own_start, (0, -2, -1), axis=1)
            first, second_last, last = (ordered[:, [at]] for at in (0, -2, -1))
            of_each = own_start, *(clock[owner[rows]] for clock in clocks)
            is_skewed = _is_beyond_clocks(first, last, *of_each)
            waited = waited_until(own_start, own_end, last - own_start) - own_start
            latest = rows[np.arange(len(rows)), own_start.argmax(axis=1)]
            held_up = np.where(is_skewed, waited.max(axis=1, keepdims=True), 0)
            is_late = _is_beyond_clocks(second_last, last, *of_each)
            columns = (
                first,
                last,
                last - second_last,
                held_up,
                latest[:, np.newaxis],
                is_skewed,
                is_late,
            )
            parts.append((np.full(len(rows), rows.shape[1]), *(column[:, 0] for column in columns)))
    nothing = (
        *(np.zeros(1, np.int64) for _ in range(6)),
        *(np.zeros(1, np.bool_) for _ in range(2)),
    )
    return Waiting(
        starts, ends, numbers, *(np.concatenate(one) for one in zip(*parts, nothing, strict=True))
    )


def _is_beyond_clocks(
    earlier: Int64, later: Int64, start: Int64, error: Int64, part: Int64
) -> Flags:
    """Tell of each collective whether the ranks that arrived then, of several all, are farther apart than their clocks."""
    concerned = (start == earlier) | (start == later)
    one = np.take_along_axis(part, concerned.argmax(axis=1, keepdims=True), axis=1)
    is_compared = (~concerned | (part == one)).all(axis=1, keepdims=True)
    beyond: Flags = is_compared & (
        later - earlier > np.where(concerned, error, 0).max(axis=1, keepdims=True)
    )
    return beyond


def waited_until(starts: Int64, ends: Int64, wait_ns: Int64) -> Int64:
    """Return until when an operation waits, from its start on: ``min(last start, own end)``, which is what waiting is."""
    until: Int64 = np.minimum(ends, starts + wait_ns)
    return until


class CommKind(Struct, frozen=True):
    """What the name of a communication kernel says; None where it says nothing."""

    collective: str
    datatype: str | None
    algorithm: str | None


class CommOperations(Struct, frozen=True):
    """The communication of one rank, each column in the narrowest type that holds it: thousands of ranks meet in one process."""

    kinds: tuple[CommKind, ...]
    narrow: pa.Table

    @classmethod
    def of(cls, kinds: Iterable[CommKind], table: pa.Table) -> CommOperations:
        """Make one of `canonical.COMM_OPERATIONS`, whose column ``kind`` counts the kinds."""
        return cls(
            tuple(kinds), pa.table({name: narrowed(table[name]) for name in table.column_names})
        )

    @property
    def table(self) -> pa.Table:
        """The operations as `canonical.COMM_OPERATIONS`."""
        return conform(self.narrow, canonical.COMM_OPERATIONS)


def messages_of(
    operations: ProcessOperations, names: Mapping[int, str], payloads: pa.Table
) -> pa.Table:
    """Return what NCCL says of each communication kernel of a process, in the kernels' order: rows of `calls_of`.

    A process with several ranks is asked as a whole: NCCL's calls and the launches behind them come
    in one order.
    """
    rows = np.flatnonzero(operations.is_comm)
    in_time = np.argsort(operations.kernel_start[rows], kind="stable")
    kinds, kind = _kinds(operations.kernel_column("name_id")[rows[in_time]], names)
    launch = operations.kernel_launch[rows[in_time]]
    messages = assign_messages(
        payloads, launch, kernel_kinds(one.collective for one in kinds)[kind]
    )
    return messages.take(pa.array(np.argsort(in_time, kind="stable")))


def comm_operations(
    device: DeviceTime,
    names: Mapping[int, str],
    members: Members,
    payloads: pa.Table,
    backward: PhaseRanges | None,
    *,
    messages: pa.Table | None = None,
) -> CommOperations:
    """List the communication operations of one rank in order of start; `names` are texts by name id.

    `messages` are its rows of `messages_of` where its process has other ranks too; else they are
    found here.
    """
    operations = device.operations
    rows = np.flatnonzero(operations.is_comm)
    if not rows.size:
        return CommOperations.of((), canonical.COMM_OPERATIONS.empty())
    in_time = np.argsort(operations.kernel_start[rows], kind="stable")
    rows = rows[in_time]
    start = operations.kernel_start[rows]
    launch = operations.kernel_launch[rows]
    member = members_holding(members, device.windows, launch, start)
    kinds, kind = _kinds(operations.kernel_column("name_id")[rows], names)
    collective = np.array([COLLECTIVES.index(one.collective) for one in kinds], np.int64)
    ids = (operations.kernel_column(name)[rows] for name in ("device_id", "stream_id"))
    order = _stream_order(np.where(launch == NEVER, start, launch), member, collective[kind], *ids)
    if messages is None:
        says = assign_messages(
            payloads, launch, kernel_kinds(one.collective for one in kinds)[kind]
        )
    else:
        says = messages.take(pa.array(in_time))
    launched_in, micro_batch = launching_passes(member, launch, backward)
    n_launched = np.append(0, np.cumsum(~operations.is_comm))  # compute kernels, in order of launch
    begin = n_launched[np.searchsorted(operations.kernel_launch, np.append(members.starts, 0))]
    is_told = (member != NO_MEMBER) & (launch != NEVER) & (members.starts.size > 0)
    n_before = n_launched[rows] - begin[np.where(is_told, member, NO_MEMBER)]
    table = canonical.COMM_OPERATIONS.table(
        {
            "start_ns": start,
            "end_ns": operations.kernel_end[rows],
            "member": member,
            "kind": kind,
            "stream_order": order,
            "comm_id": says["comm_id"],
            "seq_number": says["seq"],
            "message_bytes": says["message_bytes"],
            "called": pc.if_else(
                pc.equal(says["kind"], ALL_TO_ALL), COLLECTIVES.index("all_to_all"), None
            ),
            "launched_in": pa.array(launched_in, mask=launched_in < 0),
            "micro_batch": pa.array(micro_batch, mask=micro_batch < 0),
            "n_before": pa.array(n_before, mask=~is_told | (n_before < 0)),
        }
    )
    return CommOperations.of(kinds, table)


def members_holding(members: Members, windows: Windows, launch: Int64, start: Int64) -> Int64:
    """Return the step range that each operation belongs to, as an index; `NO_MEMBER` for none.

    It holds its launch, or is that of the window that its start falls in. A capture, a window of no
    range, holds all.
    """
    if len(windows) > members.starts.size:
        return np.zeros(launch.size, np.int64)
    member = holders(members.starts, members.ends, launch)
    never = np.flatnonzero(launch == NEVER)
    window = holders(windows.starts, windows.ends, start[never])
    member[never] = np.append(windows.member, NO_MEMBER)[
        window
    ]  # the last place is that of no window
    return member


def _kinds(name_ids: Int64, names: Mapping[int, str]) -> tuple[list[CommKind], Int64]:
    ids, index = np.unique(name_ids, return_inverse=True)
    texts = [names.get(number, "") for number in ids.tolist()]
    of_id = [
        CommKind(collective_of_kernel(text), datatype_of(text), algorithm_of(text))
        for text in texts
    ]
    kinds = sorted(
        set(of_id), key=lambda one: (one.collective, one.datatype or "", one.algorithm or "")
    )
    return kinds, np.array([kinds.index(one) for one in of_id], np.int64)[index]


def _stream_order(
    used: Int64, member: Int64, collective: Int64, device: Int64, stream: Int64
) -> Int64:
    """Return which (device, stream) of its collective each uses, in order of first launch in most steps: alike on all ranks."""
    if not collective.size:
        return collective
    codes = [np.unique(column, return_inverse=True)[1] for column in (device, stream)]
    key = (collective * (codes[0].max() + 1) + codes[0]) * (codes[1].max() + 1) + codes[1]
    pairs, first, pair = np.unique(key, return_index=True, return_inverse=True)
    of_pair = collective[first]
    n_pairs = pairs.size
    # The places of the pairs of each step among its collective's: their mean, and that in the last
    # step that has it.
    inside = np.flatnonzero(member != NO_MEMBER)
    cells, cell = np.unique(member[inside] * n_pairs + pair[inside], return_inverse=True)
    begun, first_row = _first_uses(cell, used[inside], cells.size)
    group = cells // n_pairs * (int(of_pair.max()) + 1) + of_pair[cells % n_pairs]
    order = np.lexsort((first_row, begun, group))
    of_cell = cells[order] % n_pairs
    places = places_in_runs(group[order])
    number = np.bincount(of_cell, minlength=n_pairs)
    last = np.zeros(n_pairs, np.int64)
    mean = np.where(number > 0, sums_of(of_cell, places, n_pairs) / np.maximum(number, 1), np.inf)
    last[of_cell] = places  # steps come in order, so the last one stays
    begun, first_row = _first_uses(pair, used, n_pairs)
    order = np.lexsort((first_row, begun, last, mean, of_pair))
    numbers = np.empty(n_pairs, np.int64)
    numbers[order] = places_in_runs(of_pair[order])
    return numbers[pair]


def _first_uses(key: Int64, used: Int64, n_keys: int) -> tuple[Int64, Int64]:
    """Return when each key is first used, and the first row of that time: rows are in order of start.

    Streams that are used at once are told apart by what starts first, never by their ids.
    """
    begun = least_of(key, used, n_keys)
    rows = np.flatnonzero(used == begun[key])
    return begun, least_of(key[rows], rows, n_keys)


def calls_of(payloads: pa.Table) -> pa.Table:
    """Return the calls of `canonical.PAYLOADS` that may have launched a kernel, in the same order.

    Besides columns of that ``kind``, the number of the collective or `ANY`, and ``is_receive``,
    whether it was ncclRecv. A group's call, or one without a name, fits any kind, and counts if it
    has a size or a number.
    """
    call = payloads["call"].combine_chunks()  # a null fits any kind
    names = call.dictionary.to_pylist()
    code = pc.fill_null(call.indices, len(names)).to_numpy()
    kind = np.array([*map(_kind_of_call, names), ANY], np.int64)[code]
    is_receive = np.array([*("recv" in name.lower() for name in names), False])[code]
    is_told = pc.or_(
        pc.is_valid(payloads["message_bytes"]), pc.is_valid(payloads["seq"])
    ).to_numpy()
    calls = payloads.select(["start_ns", "end_ns", "comm_id", "seq", "message_bytes"])
    calls = calls.append_column("kind", pa.array(kind)).append_column(
        "is_receive", pa.array(is_receive)
    )
    return calls.filter((kind >= 0) | ((kind == ANY) & is_told))


def kernel_kinds(collectives: Iterable[str]) -> Int64:
    """Return the kind of kernels by the name of their collective, ``all_reduce``; what names none (``other``) is `ANY`."""
    names = map(bare_name, collectives)
    return np.array(
        [_COLLECTIVES.index(name) if name in _COLLECTIVES else ANY for name in names], np.int64
    )


def fits(call_kind: Int64, kernel_kind: Int64) -> Flags:
    """Tell whether each call may have launched the kernel beside it."""
    fit: Flags = (call_kind == kernel_kind) | (call_kind == ANY) | (kernel_kind == ANY)
    fit |= (kernel_kind == SEND_RECV) & np.isin(call_kind, _AS_SENDS)
    return fit


def _kind_of_call(text: str) -> int:
    bare = bare_name(text).removeprefix("nccl")
    if not bare or bare.startswith("group"):
        return ANY
    bare = _ALIASES.get(bare, bare)
    return _COLLECTIVES.index(bare) if bare in _COLLECTIVES else _NONE


def assign_messages(payloads: pa.Table, launches: Int64, kinds: Int64) -> pa.Table:
    """Assign NCCL's payloads to the communication kernels of one process: a row of `calls_of` per kernel, in their order.

    A kernel and its call share no id, but an order: a call comes before its launch, in its own
    range or in the ``ncclGroupEnd`` behind it. Consecutive payloads and the consecutive launches
    behind them form a block. In it, as many kernels as payloads belong together one to one, in
    order. One kernel behind several payloads of one communicator and one collective is NCCL's
    fusion of a group: their sizes are summed. (Launched inside the last payload's own range, it is
    no group's but that call's.) All else is ambiguous, a payload that names another collective than
    its kernel included: the kernels of that block get nothing, like those without a launch or
    before any payload.

    Sends and receives meet in one kernel: what is sent counts, and what is received only where that
    communicator sends nothing in the block. A kernel whose launch is unknown may own any payload:
    in its process nothing counts as fused.

    `payloads` is `canonical.PAYLOADS` of the process; `launches` is `NEVER` where unknown; `kinds`
    as of `kernel_kinds`.
    """
    calls = calls_of(payloads)
    if not calls.num_rows:
        return calls.take(pa.nulls(launches.size, pa.int64()))
    # of one that never ended
    call_kind = calls["kind"].to_numpy()
    call_end = filled(calls["end_ns"], -NEVER)
    kernel = np.flatnonzero(launches < NEVER)
    order = np.argsort(
        np.append(calls["start_ns"], launches[kernel]), kind="stable"
    )  # of equal times the call first
    is_kernel = order >= call_kind.size
    block = np.cumsum(np.diff(is_kernel.astype(np.int8), prepend=0) < 0, dtype=np.int64)
    kernel = kernel[order[is_kernel] - call_kind.size]
    kernel_block = block[is_kernel]
    call = order[~is_kernel]
    call_block = block[~is_kernel]
    counts = _is_counted(calls.take(call), call_block)
    call = call[counts]
    call_block = call_block[counts]
    n_blocks = int(block[-1]) + 1 if block.size else 0
    n_calls, n_kernels = (np.bincount(of, minlength=n_blocks) for of in (call_block, kernel_block))
    source = np.full(launches.size, -1)  # a call or a fused group for each kernel, or nothing
    is_even = n_calls == n_kernels
    even_call = call[is_even[call_block]]
    is_own = is_even[kernel_block]
    even_kernel = kernel[is_own]
    even_block = kernel_block[is_own]
    is_bad = np.zeros(n_blocks, np.bool_)
    is_bad[even_block[~fits(call_kind[even_call], kinds[even_kernel])]] = True
    source[even_kernel[~is_bad[even_block]]] = even_call[~is_bad[even_block]]
    is_group = (n_calls > 1) & (n_kernels == 1)
    call = call[is_group[call_block]]
    kernel = kernel[is_group[kernel_block]]
    ends = np.cumsum(n_calls[is_group])
    last = call[ends - 1]
    is_own = launches[kernel] < call_end[last]
    own = is_own & fits(call_kind[last], kinds[kernel])
    source[kernel[own]] = last[own]
    fused, is_fused = _fused(calls.take(call), ends - n_calls[is_group], kinds[kernel])
    if (launches < NEVER).all():
        is_fused &= ~is_own
        source[kernel[is_fused]] = calls.num_rows + np.flatnonzero(is_fused)
    return pa.concat_tables([calls, fused]).take(pa.array(source, mask=source < 0))


def _is_counted(calls: pa.Table, block: Int64) -> Flags:
    """Leave out what a communicator receives in a block in which it also sends."""
    codes = calls["comm_id"].combine_chunks().dictionary_encode().indices
    key = block * (len(codes) + 1) + pc.fill_null(codes, len(codes)).to_numpy()
    kind, is_receive = (calls[name].to_numpy() for name in ("kind", "is_receive"))
    counts: Flags = ~is_receive | ~np.isin(key, key[(kind == SEND_RECV) & ~is_receive])
    return counts


def _fused(calls: pa.Table, firsts: Int64, kinds: Int64) -> tuple[pa.Table, Flags]:
    """Sum up the calls from each of the first ones on, and tell which can be one fused group, of a kernel of that kind."""
    kind = calls["kind"].to_numpy()
    comm = filled(calls["comm_id"])
    n_bytes = filled(calls["message_bytes"], 0)
    has_comm, has_bytes = (
        pc.is_valid(calls[name]).to_numpy() for name in ("comm_id", "message_bytes")
    )
    highest = np.maximum.reduceat(kind, firsts)  # unnamed calls are the lowest
    is_group = (highest == ANY) | (
        np.minimum.reduceat(np.where(kind == ANY, N_KINDS, kind), firsts) == highest
    )
    is_group &= fits(highest, kinds) & np.logical_and.reduceat(has_comm, firsts)
    is_group &= np.minimum.reduceat(comm, firsts) == np.maximum.reduceat(comm, firsts)
    # No larger sum is believed.
    is_known = np.logical_and.reduceat(has_bytes, firsts) & (
        np.add.reduceat(n_bytes / 2**62, firsts) < 1
    )
    total = pa.array(np.add.reduceat(n_bytes, firsts), mask=~is_known)
    return calls.take(firsts).set_column(
        calls.column_names.index("message_bytes"), "message_bytes", total
    ), is_group
