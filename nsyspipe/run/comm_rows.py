"""The communication operations of all ranks, side by side, in columns of equal length."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis import collectives as matching
from nsyspipe.analysis.collectives import NO_MEMBER, CommKind
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.model.table import Flags, Int32, Int64
from nsyspipe.run.digests import Ranks

# Stands for null. No size is that low, and no id that NCCL makes.
ABSENT = np.iinfo(np.int64).min
# Stands for null where values count from 0.
NONE = -1
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
    # as NCCL reports them, `ABSENT` without payload
    message_bytes: Int64
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
        pairs = np.unique(self.communicator.astype(np.int64) * n_ranks + self.rank)
        return np.bincount(pairs // max(n_ranks, 1), minlength=len(self.communicators))

    def groups(self, n_ranks: int) -> tuple[Int64, Int64]:
        """Return the group of each operation, and the number of ranks that each group needs.

        `collectives.match_collectives` matches the operations of a group with each other.
        """
        group = np.full(len(self), matching.UNGROUPED)
        chosen = self.in_step
        if not chosen.any():
            return group, np.empty(0, np.int64)
        communicator = self.communicator[chosen].astype(np.int64)
        columns: list[Int64] = [communicator, self.step[chosen]]
        if self.has_ids and (self.seq_number[chosen] != ABSENT).all():
            # NCCL counts the calls of each collective separately.
            columns += [self.collective[chosen].astype(np.int64), self.seq_number[chosen]]
        elif self.is_by_log:
            columns.append(self.collective[chosen].astype(np.int64))
        code, n_codes = _one_code(columns)
        group[chosen] = code
        # A communicator that NCCL names needs the ranks that use it. One that is only an order of
        # first use needs all ranks.
        n_ranks_of_communicator = np.where(self.is_named, self.n_users(n_ranks), n_ranks)
        n_required = np.zeros(n_codes, np.int64)
        n_required[code] = n_ranks_of_communicator[communicator]
        return group, n_required


def _one_code(columns: Sequence[Int64]) -> tuple[Int64, int]:
    """Return a number for each distinct row of some columns, and the first number not used."""
    code = np.zeros(columns[0].size, np.int64)
    n_codes = 1
    for column in columns:
        dense, n_values = _dense(column)
        code, n_codes = _dense(code * n_values + dense)
    return code, n_codes


def _dense(values: Int64) -> tuple[Int64, int]:
    """Return a number from 0 for each distinct value, and the first number not used.

    Some numbers are not used if that saves a sort.
    """
    lowest = int(values.min())
    width = int(values.max()) - lowest + 1
    if width <= 2 * values.size:
        return values - lowest, width
    distinct, index = np.unique(values, return_inverse=True)
    return index, distinct.size


class _Columns:
    """The columns of the operations of several ranks, each behind those of the rank before."""

    def __init__(self, ranks: Ranks) -> None:
        self.tables: list[pa.Table] = [rank.process.comm.narrow for rank in ranks]
        self.n_rows = [table.num_rows for table in self.tables]

    def int64(self, name: str) -> Int64:
        """Return a column with `ABSENT` for null."""
        return self._column(name, ABSENT, np.int64)

    def int32(self, name: str) -> Int32:
        """Return a column with `NONE` for null."""
        return self._column(name, NONE, np.int32)  # type: ignore[return-value]  # of that type

    def by_rank(self, name: str) -> Iterable[Int64]:
        """Yield the part of a column of each rank, with `ABSENT` for null."""
        return (_values(table, name, ABSENT) for table in self.tables)

    def _column(self, name: str, absent: int, kind: _IntType) -> Int64:
        if all(pa.types.is_null(table[name].type) for table in self.tables):
            return np.broadcast_to(kind(absent), sum(self.n_rows))
        return _concatenate((_values(table, name, absent) for table in self.tables), kind)


def _values(table: pa.Table, name: str, absent: int) -> Int64:
    values: Int64 = pc.fill_null(table[name].cast(pa.int64()), absent).to_numpy()
    return values


def _concatenate(parts: Iterable[Int64], kind: _IntType) -> Int64:
    return np.concatenate([np.empty(0, kind), *parts], dtype=kind, casting="same_kind")


def comm_rows(ranks: Ranks, step_numbers: Sequence[Int64]) -> CommRows:
    """Put the communication of all ranks, in ascending order, side by side.

    `step_numbers` are of each rank, by member.
    """
    columns = _Columns(ranks)
    kinds, kind = _kinds_of_run(ranks, columns)
    in_step = columns.int64("member") != NO_MEMBER
    comm_id = columns.int64("comm_id")
    has_ids = bool(in_step.any() and (comm_id[in_step] != ABSENT).all())
    if has_ids:
        communicators, communicator = _communicators_by_id(comm_id)
    else:
        communicators, communicator = _communicators_by_first_use(
            _collective_of_kinds(kinds)[kind].astype(np.int64), columns.int64("stream_order")
        )
    message_bytes = columns.int64("message_bytes")
    called = columns.int64("called")
    is_called = called != ABSENT
    if is_called.any() and has_ids:
        kinds, kind = _as_called(kinds, kind, called)
    elif is_called.any():
        # The size is that of the call, not of its sends and receives.
        message_bytes = np.where(is_called, ABSENT, message_bytes)
    rank_place = np.repeat(np.arange(len(ranks), dtype=np.int32), columns.n_rows)
    shift_ns = np.array([rank.shift_ns for rank in ranks], np.int64)[rank_place]
    return CommRows(
        rank=rank_place,
        step=_steps_of_members(columns, step_numbers),
        in_step=in_step,
        start_ns=columns.int64("start_ns") + shift_ns,
        end_ns=columns.int64("end_ns") + shift_ns,
        kind=kind,
        kinds=kinds,
        communicator=communicator.astype(np.int32),
        communicators=communicators,
        seq_number=columns.int64("seq_number"),
        message_bytes=message_bytes,
        launched_in=columns.int32("launched_in"),
        micro_batch=columns.int32("micro_batch"),
        n_before=columns.int32("n_before"),
        has_ids=has_ids,
        is_named=np.full(len(communicators), has_ids),
    )


def _kinds_of_run(ranks: Ranks, columns: _Columns) -> tuple[tuple[CommKind, ...], Int32]:
    """Return the kinds of operations that a run has, and the index of each operation's kind."""
    kinds = tuple(dict.fromkeys(kind for rank in ranks for kind in rank.process.comm.kinds))
    index_of = {kind: index for index, kind in enumerate(kinds)}
    parts = []
    for rank, kind_of_rank in zip(ranks, columns.by_rank("kind"), strict=True):
        index_in_run = np.array([*map(index_of.get, rank.process.comm.kinds), 0])
        parts.append(index_in_run[kind_of_rank])
    return kinds, _concatenate(parts, np.int32)  # type: ignore[return-value]  # of that type


def _steps_of_members(columns: _Columns, step_numbers: Sequence[Int64]) -> Int64:
    """Return the step number of each operation, 0 for operations outside of steps."""
    # `NO_MEMBER` is the last place of the numbers.
    parts = (
        np.append(numbers, 0)[member]
        for numbers, member in zip(step_numbers, columns.by_rank("member"), strict=True)
    )
    return _concatenate(parts, np.int64)


def _collective_of_kinds(kinds: Sequence[CommKind]) -> Int32:
    """Return the index in `names.COLLECTIVES` of each kind, and of one more that is not used."""
    return np.array([*(COLLECTIVES.index(kind.collective) for kind in kinds), 0], np.int32)


def _communicators_by_id(comm_id: Int64) -> tuple[tuple[str, ...], Int64]:
    """Return the names of communicators by NCCL's ids, and the index of each row's name."""
    ids, communicator = np.unique(comm_id, return_inverse=True)
    return tuple(map(communicator_name, ids.tolist())), communicator


def _communicators_by_first_use(
    collective: Int64, stream_order: Int64
) -> tuple[tuple[str, ...], Int64]:
    """Return the same without NCCL's ids: each stream of a collective is a communicator."""
    width = int(stream_order.max(initial=0)) + 1
    pairs, communicator = np.unique(collective * width + stream_order, return_inverse=True)
    names = tuple(f"{COLLECTIVES[pair // width]}/{pair % width}" for pair in pairs.tolist())
    return names, communicator


def communicator_name(comm_id: int) -> str:
    """Return the name of a communicator that NCCL has an id for."""
    return f"{comm_id & (2**64 - 1):#x}"


def _as_called(
    kinds: tuple[CommKind, ...], kind: Int32, called: Int64
) -> tuple[tuple[CommKind, ...], Int32]:
    """Give sends and receives the kind of the call that NCCL made them for."""
    width = len(COLLECTIVES) + 1
    # 0 stands for operations without another call.
    call_code = called.clip(-1) + 1
    pairs, index = np.unique(kind.astype(np.int64) * width + call_code, return_inverse=True)
    named = []
    for pair in pairs.tolist():
        kind_number, code = divmod(pair, width)
        called_kind = kinds[kind_number]
        if code:
            called_kind = replace(called_kind, collective=COLLECTIVES[code - 1])
        named.append(called_kind)
    distinct = tuple(dict.fromkeys(named))
    index_of_pair = np.array([distinct.index(called_kind) for called_kind in named], np.int32)
    return distinct, index_of_pair[index]
