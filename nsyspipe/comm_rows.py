"""The communication operations of all ranks of a run, side by side as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from nsyspipe.classify import COLLECTIVES
from nsyspipe.comm_operations import NO_MEMBER, CommKind
from nsyspipe.matching import UNGROUPED

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from nsyspipe.placing import PlacedProcess

    Int64 = NDArray[np.int64]

__all__ = ["ABSENT", "CommRows", "comm_rows", "communicator_name"]

# What stands for null: no size, and no id that NCCL makes, is that low.
ABSENT = np.iinfo(np.int64).min


@dataclass(frozen=True)
class CommRows:
    """Columns of equal length, ordered by (rank, start).

    Attributes
    ----------
    rank
        Place of the rank among the run's ranks in ascending order.
    report
        Place of its report among the arguments.
    step
        Step number; meaningless where `in_step` is false.
    start_ns, end_ns
        On the clocks that sessions started by.
    kind
        Index into `kinds`. What NCCL runs as sends and receives is there as what was called, if all calls are known.
    collective
        Index into `classify.COLLECTIVES`.
    communicator
        Index into `communicators`, the names of the run's communicators.
    seq_number, message_bytes
        From NCCL's payload, `ABSENT` where there is none; bytes as NCCL reports them.
    has_ids
        Whether communicators are NCCL's own rather than orders of first use.
    """

    rank: Int64
    report: Int64
    step: Int64
    in_step: NDArray[np.bool_]
    start_ns: Int64
    end_ns: Int64
    kind: Int64
    kinds: tuple[CommKind, ...]
    collective: Int64
    communicator: Int64
    communicators: tuple[str, ...]
    seq_number: Int64
    message_bytes: Int64
    has_ids: bool

    def __len__(self) -> int:
        return int(self.rank.size)

    def groups(self, n_ranks: int) -> tuple[Int64, Int64]:
        """Return each operation's group for `matching.match`, and how many ranks each group needs.

        A group is a communicator within a step, and a sequence number where NCCL gave one to all.
        A communicator that is only an order of first use needs all ranks, NCCL's own the ranks that use it.
        """
        group = np.full(len(self), UNGROUPED)
        chosen = self.in_step
        if not chosen.any():
            return group, np.empty(0, np.int64)
        columns = [self.communicator[chosen], self.step[chosen]]
        if self.has_ids and (self.seq_number[chosen] != ABSENT).all():
            # NCCL counts the calls of each kind by themselves.
            columns += [self.collective[chosen], self.seq_number[chosen]]
        code, width = np.zeros(columns[0].size, np.int64), 1
        for column in columns:
            own, n_values = _dense(column)
            code, width = _dense(code * n_values + own)
        group[chosen] = code
        users = np.full(len(self.communicators), n_ranks)
        if self.has_ids:
            pairs = np.unique(self.communicator * n_ranks + self.rank) // n_ranks
            users = np.bincount(pairs, minlength=users.size)
        n_required = np.zeros(width, np.int64)
        n_required[code] = users[columns[0]]
        return group, n_required


def _dense(values: Int64) -> tuple[Int64, int]:
    """Return a number from 0 for each distinct value, with holes where that is cheap, and the first not used."""
    lowest = int(values.min())
    width = int(values.max()) - lowest + 1
    if width <= 2 * values.size:
        return values - lowest, width
    distinct, index = np.unique(values, return_inverse=True)
    return index, distinct.size


def comm_rows(placed: Sequence[PlacedProcess], step_numbers: Sequence[Int64]) -> CommRows:
    """Put the communication of all ranks side by side.

    Parameters
    ----------
    placed
        The ranks in ascending order.
    step_numbers
        For each rank the step number of each member.
    """
    tables = [one.process.comm.table for one in placed]
    sizes = [table.num_rows for table in tables]
    kinds = tuple(dict.fromkeys(kind for one in placed for kind in one.process.comm.kinds))
    member = _column(tables, "member")
    kind = _joined(
        np.array([kinds.index(kind) for kind in one.process.comm.kinds], np.int64)[
            table["kind"].to_numpy()
        ]
        for one, table in zip(placed, tables, strict=True)
        if table.num_rows
    )
    shift = np.repeat([one.shift_ns for one in placed], sizes).astype(np.int64)
    codes = np.array([COLLECTIVES.index(one.collective) for one in kinds], np.int64)
    collective = codes[kind] if kinds else kind
    comm_id, in_step = _column(tables, "comm_id"), member != NO_MEMBER
    has_ids = bool(in_step.any() and (comm_id[in_step] != ABSENT).all())
    names, communicator = (
        _by_id(comm_id) if has_ids else _by_order(collective, _column(tables, "stream_order"))
    )
    message_bytes, called = _column(tables, "message_bytes"), _column(tables, "called")
    if (called != ABSENT).any():
        if has_ids:
            kinds, kind = _as_called(kinds, kind, called)
            collective = np.where(called != ABSENT, called, collective)
        else:  # of sends and receives that is not the size
            message_bytes = np.where(called != ABSENT, ABSENT, message_bytes)
    return CommRows(
        rank=np.repeat(np.arange(len(placed)), sizes),
        report=np.repeat([one.argument for one in placed], sizes).astype(np.int64),
        step=_joined(
            np.append(numbers, 0)[table["member"].to_numpy()]  # the last place is that of no member
            for numbers, table in zip(step_numbers, tables, strict=True)
        ),
        in_step=in_step,
        start_ns=_column(tables, "start_ns") + shift,
        end_ns=_column(tables, "end_ns") + shift,
        kind=kind,
        kinds=kinds,
        collective=collective,
        communicator=communicator,
        communicators=names,
        seq_number=_column(tables, "seq_number"),
        message_bytes=message_bytes,
        has_ids=has_ids,
    )


def _as_called(
    kinds: tuple[CommKind, ...], kind: Int64, called: Int64
) -> tuple[tuple[CommKind, ...], Int64]:
    """Put what was called in the place of the sends and receives that it ran as."""
    pairs, index = np.unique(
        kind * (len(COLLECTIVES) + 1) + called.clip(-1) + 1, return_inverse=True
    )
    named = [
        replace(kinds[at], collective=COLLECTIVES[told - 1]) if told else kinds[at]
        for at, told in (divmod(one, len(COLLECTIVES) + 1) for one in pairs.tolist())
    ]
    known = tuple(dict.fromkeys(named))
    return known, np.array([known.index(one) for one in named], np.int64)[index]


def _column(tables: Sequence[pa.Table], name: str) -> Int64:
    return _joined(pc.fill_null(table[name], ABSENT).to_numpy() for table in tables)


def _joined(arrays: object) -> Int64:
    found = list(arrays)  # type: ignore[call-overload]  # any iterable of arrays
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _by_id(comm_id: Int64) -> tuple[tuple[str, ...], Int64]:
    ids, index = np.unique(comm_id, return_inverse=True)
    return tuple(map(communicator_name, ids.tolist())), index


def communicator_name(number: int) -> str:
    """Return NCCL's 64-bit hash of a communicator as it logs it."""
    return f"{number & (2**64 - 1):#x}"


def _by_order(collective: Int64, order: Int64) -> tuple[tuple[str, ...], Int64]:
    width = int(order.max()) + 1 if order.size else 1
    codes, index = np.unique(collective * width + order, return_inverse=True)
    names = (f"{COLLECTIVES[code // width]}/{code % width}" for code in codes.tolist())
    return tuple(names), index
