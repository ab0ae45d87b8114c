"""The communication operations of all ranks, side by side, in columns of equal length."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis import collectives as matching
from nsyspipe.analysis.collectives import NO_MEMBER, CommKind
from nsyspipe.analysis.intervals import least_of
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.model.table import Flags, Float64, Int32, Int64
from nsyspipe.run.digests import Ranks

# Stands for null. No size is that low, and no id that NCCL makes.
ABSENT = np.iinfo(np.int64).min
# Stands for null where values count from 0.
NONE = -1
_SEND_RECV = COLLECTIVES.index("send_recv")
# Communicators are matched by numbers of operations if more of their operations have one.
_MIN_NUMBERED_SHARE = 0.5
_IntType: TypeAlias = type[np.int32] | type[np.int64]


class CommRows(Struct, frozen=True):
    """Columns of equal length, ordered by (rank, start)."""

    # place of the rank among the run's ranks in ascending order
    rank: Int32
    # step number, meaningless if `in_step` is false
    step: Int64
    in_step: Flags
    # on the clocks that start with their sessions, as `end_ns`
    start_ns: Int64
    end_ns: Int64
    # Index into `kinds`. Sends and receives that NCCL made for another call have the kind of that
    # call, if it is known.
    kind: Int32
    kinds: tuple[CommKind, ...]
    # index into `communicators`, the names of the run's communicators
    communicator: Int32
    communicators: tuple[str, ...]
    # from NCCL's payload, `ABSENT` without payload
    seq_number: Int64
    operation_id: Int64
    # as NCCL reports them, `ABSENT` without payload
    message_bytes: Int64
    # the number of NCCL's calls that ran as this operation, `ABSENT` without payload
    n_calls: Int64
    # the pass of the step that launched it, such as `phases.IN_FORWARD`, or `NONE`
    launched_in: Int32
    # the number of the backward pass of the step that launched it, or `NONE`
    micro_batch: Int32
    # the number of compute kernels that its step launched before it, or `NONE`
    n_before: Int32
    # whether communicators are NCCL's own, and not orders of first use
    has_ids: bool
    # of each communicator, whether NCCL's payload or log names it
    is_named: Flags
    # Whether the log names some. It names the calls of one collective at a time.
    is_by_log: bool = False

    @property
    def collective(self) -> Int32:
        """Index of each operation's collective in `names.COLLECTIVES`."""
        return _collective_of_kinds(self.kinds)[self.kind]

    def __len__(self) -> int:
        return int(self.rank.size)

    def n_users(self, n_ranks: int) -> Int64:
        """Return how many of the run's ranks use each communicator."""
        communicator = self.communicator.astype(np.int64)
        rank_of_communicator = communicator * n_ranks + self.rank
        uses_by_ranks = np.unique(rank_of_communicator)
        used_communicator = uses_by_ranks // max(n_ranks, 1)
        return np.bincount(used_communicator, minlength=len(self.communicators))

    def groups(self, n_ranks: int) -> tuple[Int64, Int64]:
        """Return the group of each operation, and the number of ranks that each group needs.

        `collectives.match_collectives` matches the operations of a group with each other.
        """
        group = np.full(len(self), matching.UNGROUPED)
        in_step = self.in_step
        if not in_step.any():
            return group, np.empty(0, np.int64)
        numbers = find_operation_numbers(self)
        columns = _columns_of_groups(self, numbers.is_numbered)
        communicator = self.communicator[in_step]
        code, n_codes = joint_code(columns)
        group[in_step] = code
        # A communicator that NCCL names needs the ranks that use it. One that is only an order of
        # first use needs all ranks.
        n_users = self.n_users(n_ranks)
        n_ranks_of_communicator = np.where(self.is_named, n_users, n_ranks)
        n_required = np.zeros(n_codes, np.int64)
        n_required[code] = n_ranks_of_communicator[communicator]
        group[numbers.is_unnumbered] = matching.UNGROUPED
        return group, n_required


def _columns_of_groups(rows: CommRows, is_numbered: Flags) -> list[Int64]:
    """Return what the operations in steps have in common that may be one collective."""
    in_step = rows.in_step
    communicator = rows.communicator[in_step].astype(np.int64)
    is_numbered = is_numbered[in_step]
    operation_id = rows.operation_id[in_step]
    operation_id = np.where(is_numbered, operation_id, ABSENT)
    columns: list[Int64] = [communicator, rows.step[in_step], operation_id]
    seq_number = rows.seq_number[in_step]
    has_seq_numbers = rows.has_ids and (seq_number != ABSENT).all()
    if has_seq_numbers or rows.is_by_log:
        collective = rows.collective[in_step]
        columns.append(collective.astype(np.int64))
    if has_seq_numbers:
        # NCCL counts the calls of each collective separately.
        seq_number = np.where(is_numbered, ABSENT, seq_number)
        columns.append(seq_number)
    return columns


class OperationNumbers(Struct, frozen=True):
    """Which operations are matched by NCCL's number of the operation (``operationId``)."""

    # Of each operation, whether it is matched by its number.
    is_numbered: Flags
    # Of each operation, whether it lacks a number, and its communicator is matched by numbers. It
    # is not matched.
    is_unnumbered: Flags
    # Operations in steps whose number contradicts the collective or the size on another rank.
    # Their communicators are matched by order.
    n_contradicted: int


def find_operation_numbers(rows: CommRows) -> OperationNumbers:
    """Decide which communicators are matched by NCCL's numbers of operations.

    These are communicators with ids, if most of their operations in steps have a number, and no
    number contradicts itself. Sends and receives are left out: a kernel may have several.
    """
    is_eligible = rows.collective != _SEND_RECV
    is_eligible &= rows.in_step
    is_eligible &= rows.has_ids
    has_number = rows.operation_id != ABSENT
    has_number &= is_eligible
    numbered = np.flatnonzero(has_number)
    is_contradicted = _are_contradicted(rows, numbered)
    contradicted = numbered[is_contradicted]
    share = _shares_by_communicator(rows, has_number, is_eligible)
    is_by_number = share > _MIN_NUMBERED_SHARE
    is_by_number[rows.communicator[contradicted]] = False
    is_chosen = is_by_number[rows.communicator]
    is_numbered = has_number & is_chosen
    is_unnumbered = is_eligible & is_chosen
    is_unnumbered &= ~has_number
    return OperationNumbers(is_numbered, is_unnumbered, contradicted.size)


def _shares_by_communicator(rows: CommRows, is_counted: Flags, is_eligible: Flags) -> Float64:
    """Return which part of the eligible operations of each communicator counts, at least 0."""
    n_communicators = len(rows.communicators)
    counted = rows.communicator[is_counted]
    eligible = rows.communicator[is_eligible]
    n_counted = np.bincount(counted, minlength=n_communicators)
    n_eligible = np.bincount(eligible, minlength=n_communicators)
    return n_counted / np.maximum(n_eligible, 1)


def _are_contradicted(rows: CommRows, chosen: Int64) -> Flags:
    """Tell which of some operations have a number that cannot be of one collective.

    The operations of such a number have different collectives or sizes, or are of the same rank.
    """
    if not chosen.size:
        return np.zeros(0, np.bool_)
    communicator = rows.communicator[chosen].astype(np.int64)
    operation_id = rows.operation_id[chosen]
    rank = rows.rank[chosen].astype(np.int64)
    operation, n_operations = joint_code([communicator, operation_id])
    rank_of_operation, _ = joint_code([operation, rank])
    n_uses = np.bincount(rank_of_operation)
    is_repeated = n_uses[rank_of_operation] > 1
    is_contradicted = np.zeros(n_operations, np.bool_)
    is_contradicted[operation[is_repeated]] = True
    collective = rows.collective[chosen].astype(np.int64)
    message_bytes = rows.message_bytes[chosen]
    for values in (collective, message_bytes):
        lowest = least_of(operation, values, n_operations)
        differs = values != lowest[operation]
        is_contradicted[operation[differs]] = True
    return is_contradicted[operation]


def joint_code(columns: Sequence[Int64]) -> tuple[Int64, int]:
    """Return a number for each distinct row of some columns, and the first number not used."""
    code = np.zeros(columns[0].size, np.int64)
    n_codes = 1
    for column in columns:
        dense, n_values = _dense(column)
        pair_code = code * n_values + dense
        code, n_codes = _dense(pair_code)
    return code, n_codes


def _dense(values: Int64) -> tuple[Int64, int]:
    """Return a number from 0 for each distinct value, and the first number not used.

    Some numbers are not used if that saves a sort.
    """
    lowest = int(values.min())
    highest = int(values.max())
    width = highest - lowest + 1
    if width <= 2 * values.size:
        return values - lowest, width
    distinct, index = np.unique(values, return_inverse=True)
    return index, distinct.size


class _Columns:
    """The columns of the operations of several ranks, each behind those of the rank before."""

    def __init__(self, ranks: Ranks) -> None:
        comm_of_ranks = [rank.process.comm for rank in ranks]
        self.tables: list[pa.Table] = [comm.narrow for comm in comm_of_ranks]
        self.n_rows = [table.num_rows for table in self.tables]
        shifts_of_ranks = [rank.shift_ns for rank in ranks]
        shifts_ns = np.array(shifts_of_ranks, np.int64)
        # How far the clock of each operation is shifted.
        self.shift_ns = np.repeat(shifts_ns, self.n_rows)

    def int64(self, name: str) -> Int64:
        """Return a column with `ABSENT` for null."""
        return self._column(name, ABSENT, np.int64)

    def int32(self, name: str) -> Int32:
        """Return a column with `NONE` for null."""
        return self._column(name, NONE, np.int32)  # type: ignore[return-value]  # of that type

    def aligned_ns(self, name: str) -> Int64:
        """Return a column of times on the clocks that start with their sessions."""
        return self.int64(name) + self.shift_ns

    def places_in_steps(self) -> dict[str, Any]:
        """Return the columns that tell where in its step each operation was launched."""
        return {name: self.int32(name) for name in ("launched_in", "micro_batch", "n_before")}

    def of_calls(self) -> dict[str, Any]:
        """Return the other columns that NCCL's payloads give."""
        return {name: self.int64(name) for name in ("seq_number", "operation_id", "n_calls")}

    def by_rank(self, name: str) -> Iterable[Int64]:
        """Yield the part of a column of each rank, with `ABSENT` for null."""
        return (_values(table, name, ABSENT) for table in self.tables)

    def _column(self, name: str, absent: int, kind: _IntType) -> Int64:
        types = {table[name].type for table in self.tables}
        if all(map(pa.types.is_null, types)):
            return np.broadcast_to(kind(absent), sum(self.n_rows))
        values = (_values(table, name, absent) for table in self.tables)
        return _concatenate(values, kind)


def _values(table: pa.Table, name: str, absent: int) -> Int64:
    column = table[name].cast(pa.int64())
    values: Int64 = pc.fill_null(column, absent).to_numpy()
    return values


def _concatenate(parts: Iterable[Int64], kind: _IntType) -> Int64:
    parts = [np.empty(0, kind), *parts]
    return np.concatenate(parts, dtype=kind, casting="same_kind")


class _Communicators(Struct, frozen=True):
    """The communicators of a run, and which of them each operation uses."""

    names: tuple[str, ...]
    # Of each operation, the index into `names`.
    index: Int32
    # Whether the names are NCCL's ids, and not orders of first use.
    has_ids: bool


def comm_rows(ranks: Ranks, step_numbers: Sequence[Int64]) -> CommRows:
    """Put the communication of all ranks, in ascending order, side by side.

    `step_numbers` are of each rank, by member.
    """
    columns = _Columns(ranks)
    kinds, kind = _kinds_of_run(ranks, columns)
    in_step = columns.int64("member") != NO_MEMBER
    communicators = _communicators_of_run(columns, kinds, kind, in_step)
    message_bytes = columns.int64("message_bytes")
    called = columns.int64("called")
    is_called = called != ABSENT
    if is_called.any() and communicators.has_ids:
        kinds, kind = _as_called(kinds, kind, called)
    elif is_called.any():
        # The size is that of the call, not of its sends and receives.
        message_bytes = np.where(is_called, ABSENT, message_bytes)
    rank_places = np.arange(len(ranks), dtype=np.int32)
    rank = np.repeat(rank_places, columns.n_rows)
    step = _steps_of_members(columns, step_numbers)
    start_ns = columns.aligned_ns("start_ns")
    end_ns = columns.aligned_ns("end_ns")
    n_communicators = len(communicators.names)
    is_named = np.full(n_communicators, communicators.has_ids)
    return CommRows(
        rank=rank,
        step=step,
        in_step=in_step,
        start_ns=start_ns,
        end_ns=end_ns,
        kind=kind,
        kinds=kinds,
        communicator=communicators.index,
        communicators=communicators.names,
        message_bytes=message_bytes,
        **columns.of_calls(),
        **columns.places_in_steps(),
        has_ids=communicators.has_ids,
        is_named=is_named,
    )


def _kinds_of_run(ranks: Ranks, columns: _Columns) -> tuple[tuple[CommKind, ...], Int32]:
    """Return the kinds of operations that a run has, and the index of each operation's kind."""
    kinds_of_ranks = [rank.process.comm.kinds for rank in ranks]
    all_kinds = chain.from_iterable(kinds_of_ranks)
    kinds = tuple(dict.fromkeys(all_kinds))
    index_of_kind = {kind: index for index, kind in enumerate(kinds)}
    kind_in_ranks = columns.by_rank("kind")
    parts = []
    for kinds_of_rank, kind_in_rank in zip(kinds_of_ranks, kind_in_ranks, strict=True):
        indexes = map(index_of_kind.get, kinds_of_rank)
        # The last place is not used.
        index_in_run = np.array([*indexes, 0])
        parts.append(index_in_run[kind_in_rank])
    return kinds, _concatenate(parts, np.int32)  # type: ignore[return-value]  # of that type


def _steps_of_members(columns: _Columns, step_numbers: Sequence[Int64]) -> Int64:
    """Return the step number of each operation, 0 for operations outside of steps."""
    parts = []
    members = columns.by_rank("member")
    for numbers, member in zip(step_numbers, members, strict=True):
        # `NO_MEMBER` is the last place of the numbers.
        number_of_member = np.append(numbers, 0)
        parts.append(number_of_member[member])
    return _concatenate(parts, np.int64)


def _collective_of_kinds(kinds: Sequence[CommKind]) -> Int32:
    """Return the index in `names.COLLECTIVES` of each kind, and of one more that is not used."""
    collectives = [COLLECTIVES.index(kind.collective) for kind in kinds]
    return np.array([*collectives, 0], np.int32)


def _communicators_of_run(
    columns: _Columns, kinds: Sequence[CommKind], kind: Int32, in_step: Flags
) -> _Communicators:
    """Return the communicators by NCCL's ids, if all operations in steps have them."""
    comm_id = columns.int64("comm_id")
    is_identified = comm_id[in_step] != ABSENT
    has_ids = bool(is_identified.size and is_identified.all())
    if has_ids:
        names, communicator = _communicators_by_id(comm_id)
    else:
        collective = _collective_of_kinds(kinds)[kind]
        stream_order = columns.int64("stream_order")
        names, communicator = _communicators_by_first_use(collective, stream_order)
    return _Communicators(names, communicator.astype(np.int32), has_ids)


def _communicators_by_id(comm_id: Int64) -> tuple[tuple[str, ...], Int64]:
    """Return the names of communicators by NCCL's ids, and the index of each row's name."""
    ids, communicator = np.unique(comm_id, return_inverse=True)
    names = tuple(map(communicator_name, ids.tolist()))
    return names, communicator


def _communicators_by_first_use(
    collective: Int32, stream_order: Int64
) -> tuple[tuple[str, ...], Int64]:
    """Return the same without NCCL's ids: each stream of a collective is a communicator."""
    last_order = int(stream_order.max(initial=0))
    width = last_order + 1
    pair = collective.astype(np.int64) * width + stream_order
    pairs, communicator = np.unique(pair, return_inverse=True)
    names = []
    for code in pairs.tolist():
        name = COLLECTIVES[code // width]
        names.append(f"{name}/{code % width}")
    return tuple(names), communicator


def communicator_name(comm_id: int) -> str:
    """Return the name of a communicator that NCCL has an id for."""
    unsigned_id = comm_id & (2**64 - 1)
    return f"{unsigned_id:#x}"


def _as_called(
    kinds: tuple[CommKind, ...], kind: Int32, called: Int64
) -> tuple[tuple[CommKind, ...], Int32]:
    """Give sends and receives the kind of the call that NCCL made them for."""
    width = len(COLLECTIVES) + 1
    # 0 stands for operations without another call.
    call_code = called.clip(-1) + 1
    kind_number = kind.astype(np.int64)
    pair = kind_number * width + call_code
    pairs, index = np.unique(pair, return_inverse=True)
    kind_of_pair = []
    for pair_number in pairs.tolist():
        number, code = divmod(pair_number, width)
        called_kind = kinds[number]
        if code:
            called_kind = replace(called_kind, collective=COLLECTIVES[code - 1])
        kind_of_pair.append(called_kind)
    called_kinds = tuple(dict.fromkeys(kind_of_pair))
    indexes = [called_kinds.index(called_kind) for called_kind in kind_of_pair]
    index_of_pair = np.array(indexes, np.int32)
    return called_kinds, index_of_pair[index]
