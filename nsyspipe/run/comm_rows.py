"""The communication operations of all ranks, side by side, in columns of equal length."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis import collectives as matching
from nsyspipe.analysis.attribution import filled
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
        collective_of_kind = _collective_of_kinds(self.kinds)
        return collective_of_kind[self.kind]

    def __len__(self) -> int:
        return int(self.rank.size)

    def n_users(self, n_ranks: int) -> Int64:
        """Return how many of the run's ranks use each communicator."""
        communicator = self.communicator.astype(np.int64)
        # One number for each pair of a communicator and a rank.
        pair_of_operation = communicator * n_ranks + self.rank
        pairs = np.unique(pair_of_operation)
        # Without ranks there are no pairs, but the divisor must not be 0 either.
        communicator_of_pair = pairs // max(n_ranks, 1)
        return np.bincount(communicator_of_pair, minlength=len(self.communicators))

    def groups(self, n_ranks: int) -> tuple[Int64, Int64]:
        """Return the group of each operation, and the number of ranks that each group needs.

        `collectives.match_collectives` matches the operations of a group with each other.
        Operations outside of steps are in no group. An operation without NCCL's number is in no
        group either if other operations of its communicator are matched by such numbers.
        """
        group_of_operation = np.full(len(self), matching.UNGROUPED)
        in_step = self.in_step
        if not in_step.any():
            return group_of_operation, np.empty(0, np.int64)
        numbers = find_operation_numbers(self)
        columns_in_steps = _columns_of_groups(self, numbers.is_numbered)
        group_in_steps, n_groups = joint_code(columns_in_steps)
        group_of_operation[in_step] = group_in_steps
        # A collective of a named communicator needs the ranks that use it. A communicator without
        # a name should hold all ranks of the run.
        n_users = self.n_users(n_ranks)
        n_required_of_communicator = np.where(self.is_named, n_users, n_ranks)
        # All operations of a group have one communicator.
        communicator_in_steps = self.communicator[in_step]
        n_required_of_group = np.zeros(n_groups, np.int64)
        n_required_of_group[group_in_steps] = n_required_of_communicator[communicator_in_steps]
        group_of_operation[numbers.is_unnumbered] = matching.UNGROUPED
        return group_of_operation, n_required_of_group


def _columns_of_groups(rows: CommRows, is_numbered: Flags) -> list[Int64]:
    """Return columns of the operations in steps, by which operations are grouped.

    Operations of different ranks may be one collective if they are equal in all of these columns.
    `is_numbered` says of each operation of the run whether it is matched by its number.
    """
    in_step = rows.in_step
    communicator = rows.communicator[in_step].astype(np.int64)
    is_numbered_in_steps = is_numbered[in_step]
    operation_id = np.where(is_numbered_in_steps, rows.operation_id[in_step], ABSENT)
    columns: list[Int64] = [communicator, rows.step[in_step], operation_id]
    seq_number = rows.seq_number[in_step]
    has_seq_numbers = rows.has_ids and (seq_number != ABSENT).all()
    # NCCL counts the calls of each collective separately. Its log names a communicator for the
    # calls of one collective at a time.
    is_each_collective_apart = has_seq_numbers or rows.is_by_log
    if is_each_collective_apart:
        collective = rows.collective[in_step]
        columns.append(collective.astype(np.int64))
    if has_seq_numbers:
        # Sequence numbers are compared only for operations that are not matched by their number.
        compared_seq_number = np.where(is_numbered_in_steps, ABSENT, seq_number)
        columns.append(compared_seq_number)
    return columns


class OperationNumbers(Struct, frozen=True):
    """Which operations are matched by NCCL's number of the operation (``operationId``)."""

    # Of each operation, whether it is matched by its number.
    is_numbered: Flags
    # Of each operation, whether it lacks a number, although its communicator is matched by
    # numbers. Such an operation is not matched.
    is_unnumbered: Flags
    # Operations in steps whose number contradicts the collective or the size on another rank.
    # Their communicators are matched by order.
    n_contradicted: int


def find_operation_numbers(rows: CommRows) -> OperationNumbers:
    """Decide which operations are matched by NCCL's numbers of operations.

    All operations of a communicator are matched by number, or none. They are if the communicator
    has an ID from NCCL, most of its operations in steps have a number, and no number is
    contradicted. A number is contradicted if its operations cannot be one collective. Sends and
    receives are left out, because a kernel may be several of them.
    """
    is_eligible = rows.collective != _SEND_RECV
    is_eligible &= rows.in_step
    is_eligible &= rows.has_ids
    has_number = rows.operation_id != ABSENT
    has_number &= is_eligible
    with_number = np.flatnonzero(has_number)
    is_contradicted = _have_contradicted_numbers(rows, with_number)
    contradicted = with_number[is_contradicted]
    share_of_communicator = _shares_by_communicator(rows, has_number, is_eligible)
    is_communicator_numbered = share_of_communicator > _MIN_NUMBERED_SHARE
    is_communicator_numbered[rows.communicator[contradicted]] = False
    is_matched_by_number = is_eligible & is_communicator_numbered[rows.communicator]
    is_numbered = is_matched_by_number & has_number
    is_unnumbered = is_matched_by_number & ~has_number
    return OperationNumbers(is_numbered, is_unnumbered, contradicted.size)


def _shares_by_communicator(rows: CommRows, has_number: Flags, is_eligible: Flags) -> Float64:
    """Return which share of each communicator's eligible operations has a number.

    `has_number` is true only for eligible operations. A communicator without eligible operations
    has the share 0.
    """
    n_communicators = len(rows.communicators)
    communicator_of_numbered = rows.communicator[has_number]
    communicator_of_eligible = rows.communicator[is_eligible]
    n_numbered = np.bincount(communicator_of_numbered, minlength=n_communicators)
    n_eligible = np.bincount(communicator_of_eligible, minlength=n_communicators)
    # Without eligible operations, 0 / 1 is the share 0.
    divisor = np.maximum(n_eligible, 1)
    return n_numbered / divisor


def _have_contradicted_numbers(rows: CommRows, chosen: Int64) -> Flags:
    """Tell which of the chosen operations have a number that is contradicted.

    Operations of one communicator with the same number should be one collective. The number is
    contradicted if their collectives or sizes differ, or if two of them are of the same rank.
    """
    if not chosen.size:
        return np.zeros(0, np.bool_)
    communicator = rows.communicator[chosen].astype(np.int64)
    operation_id = rows.operation_id[chosen]
    rank = rows.rank[chosen].astype(np.int64)
    # The numbers of all communicators, counted from 0.
    number, n_numbers = joint_code([communicator, operation_id])
    number_and_rank, _ = joint_code([number, rank])
    n_uses_by_rank = np.bincount(number_and_rank)
    is_used_twice = n_uses_by_rank[number_and_rank] > 1
    is_number_contradicted = np.zeros(n_numbers, np.bool_)
    is_number_contradicted[number[is_used_twice]] = True
    collective = rows.collective[chosen].astype(np.int64)
    message_bytes = rows.message_bytes[chosen]
    for values in (collective, message_bytes):
        # The values of a number differ if one of them is not the lowest.
        lowest_of_number = least_of(number, values, n_numbers)
        differs = values != lowest_of_number[number]
        is_number_contradicted[number[differs]] = True
    return is_number_contradicted[number]


def joint_code(columns: Sequence[Int64]) -> tuple[Int64, int]:
    """Return a code for each row of some columns, and a limit. Codes are from 0 to below the limit.

    Two rows have the same code if they are equal in all columns.
    """
    code = np.zeros(columns[0].size, np.int64)
    code_limit = 1
    for column in columns:
        value_code, value_limit = _small_numbers(column)
        # One code for each pair of the code so far and a value of this column.
        pair_code = code * value_limit + value_code
        # Codes are made small again, so that the next product does not overflow.
        code, code_limit = _small_numbers(pair_code)
    return code, code_limit


def _small_numbers(values: Int64) -> tuple[Int64, int]:
    """Return a number for each value, and a limit. Numbers are from 0 to below the limit.

    Equal values have the same number. Some numbers below the limit may stand for no value.
    """
    lowest = int(values.min())
    highest = int(values.max())
    width = highest - lowest + 1
    are_close_together = width <= 2 * values.size
    if are_close_together:
        # The distance from the lowest value is a small number, and needs no sort.
        return values - lowest, width
    distinct_values, number_of_value = np.unique(values, return_inverse=True)
    return number_of_value, distinct_values.size


class _Columns:
    """The columns of the operations of several ranks, each behind those of the rank before."""

    def __init__(self, ranks: Ranks) -> None:
        comm_of_ranks = [rank.process.comm for rank in ranks]
        self.tables: list[pa.Table] = [comm.narrow for comm in comm_of_ranks]
        self.n_rows = [table.num_rows for table in self.tables]
        shifts_of_ranks = [rank.shift_ns for rank in ranks]
        shifts_ns = np.array(shifts_of_ranks, np.int64)
        # Of each operation, what is added to its times to get aligned time.
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

    def _column(self, name: str, absent: int, int_type: _IntType) -> Int64:
        """Return a column of all ranks, with `absent` for null."""
        types = {table[name].type for table in self.tables}
        has_no_values = all(map(pa.types.is_null, types))
        if has_no_values:
            # All rows share the memory of one number.
            n_all_rows = sum(self.n_rows)
            return np.broadcast_to(int_type(absent), n_all_rows)
        values = (_values(table, name, absent) for table in self.tables)
        return _concatenate(values, int_type)


def _values(table: pa.Table, name: str, absent: int) -> Int64:
    """Return a column of a table, with `absent` for null."""
    return filled(table[name].cast(pa.int64()), absent)


def _concatenate(parts: Iterable[Int64], int_type: _IntType) -> Int64:
    """Return the parts one after the other, an empty array without parts."""
    parts = [np.empty(0, int_type), *parts]
    return np.concatenate(parts, dtype=int_type, casting="same_kind")


class _Communicators(Struct, frozen=True):
    """The communicators of a run, and which of them each operation uses."""

    names: tuple[str, ...]
    # Of each operation, the index into `names`.
    index: Int32
    # Whether the names are NCCL's ids, and not orders of first use.
    has_ids: bool


def comm_rows(ranks: Ranks, step_numbers: Sequence[Int64]) -> CommRows:
    """Return the communication operations of all ranks, one rank after the other.

    The ranks must be in ascending order. `step_numbers` has for each rank the step number of each
    of its members.
    """
    columns = _Columns(ranks)
    kinds, kind_of_operation = _kinds_of_run(ranks, columns)
    in_step = columns.int64("member") != NO_MEMBER
    communicators = _communicators_of_run(columns, kinds, kind_of_operation, in_step)
    message_bytes = columns.int64("message_bytes")
    # NCCL makes some collectives of sends and receives. `called` has the collective of such an
    # operation, else `ABSENT`. The message size is that of the collective.
    called = columns.int64("called")
    is_called = called != ABSENT
    if is_called.any():
        if communicators.has_ids:
            kinds, kind_of_operation = _as_called(kinds, kind_of_operation, called)
        else:
            # The operation stays a send and receive, whose own size is not known.
            message_bytes = np.where(is_called, ABSENT, message_bytes)
    rank_indices = np.arange(len(ranks), dtype=np.int32)
    rank_of_operation = np.repeat(rank_indices, columns.n_rows)
    step = _steps_of_members(columns, step_numbers)
    start_ns = columns.aligned_ns("start_ns")
    end_ns = columns.aligned_ns("end_ns")
    n_communicators = len(communicators.names)
    is_named = np.full(n_communicators, communicators.has_ids)
    return CommRows(
        rank=rank_of_operation,
        step=step,
        in_step=in_step,
        start_ns=start_ns,
        end_ns=end_ns,
        kind=kind_of_operation,
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
    # Of each rank, the kind of each operation as an index into the kinds of the rank.
    kind_in_ranks = columns.by_rank("kind")
    parts = []
    for kinds_of_rank, kind_in_rank in zip(kinds_of_ranks, kind_in_ranks, strict=True):
        indices = [index_of_kind[kind] for kind in kinds_of_rank]
        # From an index into the kinds of the rank to an index into those of the run.
        index_in_run = np.array(indices, np.int64)
        parts.append(index_in_run[kind_in_rank])
    return kinds, _concatenate(parts, np.int32)  # type: ignore[return-value]  # of that type


def _steps_of_members(columns: _Columns, step_numbers: Sequence[Int64]) -> Int64:
    """Return the step number of each operation, 0 for operations outside of steps."""
    parts = []
    members = columns.by_rank("member")
    for steps_of_rank, member_of_operation in zip(step_numbers, members, strict=True):
        # `NO_MEMBER` is the index -1. It takes the last value, which is this 0.
        step_of_member = np.append(steps_of_rank, 0)
        parts.append(step_of_member[member_of_operation])
    return _concatenate(parts, np.int64)


def _collective_of_kinds(kinds: Sequence[CommKind]) -> Int32:
    """Return the index in `names.COLLECTIVES` of each kind, and a 0 at the end for no kind."""
    collectives = [COLLECTIVES.index(kind.collective) for kind in kinds]
    return np.array([*collectives, 0], np.int32)


def _communicators_of_run(
    columns: _Columns, kinds: Sequence[CommKind], kind: Int32, in_step: Flags
) -> _Communicators:
    """Return the communicators of a run, and the communicator of each operation.

    If all operations in steps have an ID of NCCL, the communicators are those of NCCL. Else each
    stream of a collective is one communicator.
    """
    comm_id = columns.int64("comm_id")
    has_id_in_step = comm_id[in_step] != ABSENT
    has_ids = bool(has_id_in_step.size and has_id_in_step.all())
    if has_ids:
        names, index_of_operation = _communicators_by_id(comm_id)
    else:
        collective_of_kind = _collective_of_kinds(kinds)
        stream_order = columns.int64("stream_order")
        names, index_of_operation = _communicators_by_first_use(
            collective_of_kind[kind], stream_order
        )
    return _Communicators(names, index_of_operation.astype(np.int32), has_ids)


def _communicators_by_id(comm_id: Int64) -> tuple[tuple[str, ...], Int64]:
    """Return the names of communicators by NCCL's ids, and the index of each operation's name."""
    ids, index_of_operation = np.unique(comm_id, return_inverse=True)
    names = tuple(map(communicator_name, ids.tolist()))
    return names, index_of_operation


def _communicators_by_first_use(
    collective: Int32, stream_order: Int64
) -> tuple[tuple[str, ...], Int64]:
    """Return made-up names of communicators that NCCL does not name, such as ``all_reduce/0``.

    A communicator is one stream of one collective. `stream_order` numbers the streams of a
    collective from 0, in order of first use. Returns the names, and the index of each operation's
    name.
    """
    n_orders = int(stream_order.max(initial=0)) + 1
    # One number for each pair of a collective and a stream.
    pair_of_operation = collective.astype(np.int64) * n_orders + stream_order
    pairs, index_of_operation = np.unique(pair_of_operation, return_inverse=True)
    names = []
    for pair in pairs.tolist():
        collective_index, order = divmod(pair, n_orders)
        names.append(f"{COLLECTIVES[collective_index]}/{order}")
    return tuple(names), index_of_operation


def communicator_name(comm_id: int) -> str:
    """Return the name of a communicator that NCCL has an id for, which is the id in hexadecimal."""
    # Tables have the id as a signed number, and NCCL writes it unsigned.
    unsigned_id = comm_id & (2**64 - 1)
    return f"{unsigned_id:#x}"


def _as_called(
    kinds: tuple[CommKind, ...], kind: Int32, called: Int64
) -> tuple[tuple[CommKind, ...], Int32]:
    """Give sends and receives the collective of the call that NCCL made them for.

    `called` has the collective of that call, or `ABSENT` for an operation that keeps its kind.
    Returns the kinds of the run, and the index of each operation's kind.
    """
    n_call_codes = len(COLLECTIVES) + 1
    # 0 for an operation that keeps its kind, else the index of the collective plus 1.
    call_code = np.where(called >= 0, called + 1, 0)
    pair_of_operation = kind.astype(np.int64) * n_call_codes + call_code
    pairs, pair_index_of_operation = np.unique(pair_of_operation, return_inverse=True)
    kind_of_pair = []
    for pair in pairs.tolist():
        kind_index, code = divmod(pair, n_call_codes)
        called_kind = kinds[kind_index]
        if code:
            called_kind = replace(called_kind, collective=COLLECTIVES[code - 1])
        kind_of_pair.append(called_kind)
    # Several pairs may have one kind.
    called_kinds = tuple(dict.fromkeys(kind_of_pair))
    kind_indices = [called_kinds.index(called_kind) for called_kind in kind_of_pair]
    kind_index_of_pair = np.array(kind_indices, np.int32)
    return called_kinds, kind_index_of_pair[pair_index_of_operation]
