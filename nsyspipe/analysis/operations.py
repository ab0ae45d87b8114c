"""The device operations of a process as one table, and the tables of events and phase ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.attribution import NEVER, UNKNOWN, filled
from nsyspipe.analysis.collectives import NO_MEMBER, members_holding
from nsyspipe.analysis.devices import RankDevice
from nsyspipe.analysis.kernels import kernel_labels
from nsyspipe.analysis.phases import LaunchingThreads, PhaseRanges, launched_in, phases_of_launches
from nsyspipe.analysis.steps import Members, Windows
from nsyspipe.errors import DamagedReportError
from nsyspipe.model import schema
from nsyspipe.model.comm_kernels import collective_of_kernel
from nsyspipe.model.names import COLLECTIVES, PHASES
from nsyspipe.model.table import Flags, Int64

# In alphabetical order.
CATEGORIES = ("comm", "compute", "memory")
COMM = 0
_COMPUTE = 1
_MEMORY = 2

# The kinds of memcpy of nsys. 11 to 14 are those of unified memory.
_COPY_NAMES = {
    1: "memcpy HtoD",
    2: "memcpy DtoH",
    3: "memcpy HtoA",
    4: "memcpy AtoH",
    5: "memcpy AtoA",
    6: "memcpy AtoD",
    7: "memcpy DtoA",
    8: "memcpy DtoD",
    9: "memcpy HtoH",
    10: "memcpy PtoP",
    11: "memcpy unified HtoD",
    12: "memcpy unified DtoH",
    13: "memcpy unified DtoD",
    14: "memcpy unified",
}
NO_SEQ = -1
_STEP_ITSELF = -1


class DeviceOperations(Struct, frozen=True, dict=True):
    """Columns of equal length. Times are report times, ns. Null is `attribution.UNKNOWN`."""

    start: Int64
    end: Int64
    # Host start of the launch; `attribution.NEVER` without one.
    launch: Int64
    # Index into `CATEGORIES`.
    category: Int64
    # Index into `names`, which are in alphabetical order.
    name: Int64
    # Index into `names.COLLECTIVES`; -1 for operations that do not communicate.
    collective: Int64
    device_id: Int64
    stream_id: Int64
    correlation_id: Int64
    n_bytes: Int64
    names: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.start.size)

    def take(self, rows: Int64) -> DeviceOperations:
        """Return some operations, in the order of the rows."""
        *columns, _ = self.__struct_fields__
        return replace(self, **{column: getattr(self, column)[rows] for column in columns})

    @cached_property
    def by_launch(self) -> Int64:
        """The rows in order of launch."""
        return np.argsort(self.launch, kind="stable")

    def in_order(self, *more: Int64) -> Int64:
        """Return the rows in order of start, end, all columns that a user sees, and `more`."""
        ids = self.device_id, self.stream_id, self.correlation_id
        keys = (
            self.start,
            self.end,
            self.category,
            *ids,
            self.launch,
            self.name,
            self.n_bytes,
            *more,
        )
        order = np.argsort(self.start, kind="stable")
        # Few operations start together. Only for them, the other keys count.
        is_same = np.diff(self.start[order]) == 0
        starts_with_next = np.append(is_same, False)
        starts_with_previous = np.append(False, is_same)
        places = np.flatnonzero(starts_with_next | starts_with_previous)
        rows = order[places]
        keys_of_rows = [key[rows] for key in reversed(keys)]
        order[places] = rows[np.lexsort(keys_of_rows)]
        return order


def overlapping_rows(starts: Int64, ends: Int64, span: tuple[int, int]) -> Int64:
    """Return the rows of operations that run in a span ``[first, last)`` or begin in it."""
    first, last = span
    return np.flatnonzero((starts < last) & ((ends > first) | (starts == first)))


def device_operations(
    kernels: pa.Table,
    memcpys: pa.Table,
    memsets: pa.Table,
    launches: Sequence[Int64],
    texts: Mapping[int, str],
) -> DeviceOperations:
    """Return the operations of one process: kernels, memcpys, memsets, each in order of row."""
    tables = (kernels, memcpys, memsets)
    n_memory = memcpys.num_rows + memsets.num_rows
    name_ids = filled(kernels["name_id"])
    is_comm = kernels["is_comm"].to_numpy()
    names, name = _names_of_operations(kernels, memcpys, memsets, texts)
    category_of_kernels = np.where(is_comm, COMM, _COMPUTE)
    no_collective = np.full(n_memory, -1)
    return DeviceOperations(
        start=_joined(tables, "start_ns"),
        end=_joined(tables, "end_ns"),
        launch=np.concatenate(launches),
        category=np.append(category_of_kernels, np.full(n_memory, _MEMORY)),
        name=name,
        collective=np.append(_collectives(name_ids, is_comm, texts), no_collective),
        device_id=_joined(tables, "device_id"),
        stream_id=_joined(tables, "stream_id"),
        correlation_id=_joined(tables, "correlation_id"),
        n_bytes=np.append(_bytes_of(kernels), _joined((memcpys, memsets), "bytes")),
        names=names,
    )


def _names_of_operations(
    kernels: pa.Table, memcpys: pa.Table, memsets: pa.Table, texts: Mapping[int, str]
) -> tuple[tuple[str, ...], Int64]:
    """Return the names in alphabetical order, and which one each operation has."""
    labels, label = kernel_labels(filled(kernels["name_id"]), texts)
    copy_kinds, copy_kind = np.unique(filled(memcpys["copy_kind"]), return_inverse=True)
    copy_names = [_COPY_NAMES.get(kind, "memcpy") for kind in copy_kinds.tolist()]
    all_names = [*labels, *copy_names, "memset"]
    names = sorted(set(all_names))
    code = np.array([names.index(name) for name in all_names], np.int64)
    name_of_kernel = code[label]
    name_of_memcpy = code[len(labels) + copy_kind]
    name_of_memset = np.full(memsets.num_rows, code[-1])
    return tuple(names), np.concatenate((name_of_kernel, name_of_memcpy, name_of_memset))


def _joined(tables: Sequence[pa.Table], name: str) -> Int64:
    return np.concatenate([filled(table[name]) for table in tables])


def _collectives(name_ids: Int64, is_comm: Flags, texts: Mapping[int, str]) -> Int64:
    """Return the index of the collective of each kernel; -1 for kernels that do not communicate."""
    ids, index = np.unique(name_ids[is_comm], return_inverse=True)
    names = [texts.get(name_id, "") for name_id in ids.tolist()]
    codes = [COLLECTIVES.index(collective_of_kernel(name)) for name in names]
    collective = np.full(name_ids.size, -1)
    collective[is_comm] = np.array(codes, np.int64)[index]
    return collective


def _bytes_of(kernels: pa.Table) -> Int64:
    """Return the bytes of collectives that are made of copies. Those of kernels are not known."""
    if "bytes" not in kernels.column_names:
        return np.full(kernels.num_rows, UNKNOWN)
    return filled(kernels["bytes"])


class RankSteps(Struct, frozen=True):
    """What the first reading of a run found about one rank. Times are report times, ns."""

    rank: int
    process_id: int
    # Tells which operations of the process are those of the rank. None if it used one device.
    device: RankDevice | None
    # Added to report time to get aligned time.
    shift_ns: int
    # Whether any operation of the process has a launch.
    has_launches: bool
    # The step ranges.
    thread_id: int
    starts: Int64
    ends: Int64
    numbers: Int64
    # The backward passes, if no range marks them. None if a range does, or if they are not known.
    backward: PhaseRanges | None
    # Other threads than that of the steps whose ranges are phases too.
    others: LaunchingThreads
    # The windows of the steps on the device.
    windows: Windows
    # By step range: whether its ranges are wanted.
    is_chosen: Flags
    # Device time ``[first, last)`` whose operations are wanted. None for all.
    span: tuple[int, int] | None
    # The wanted communication operations, in order of (start, launch). Those of no step have
    # `NO_SEQ`.
    comm_starts: Int64
    comm_ends: Int64
    seqs: Int64

    @property
    def threads(self) -> list[int]:
        """The threads whose ranges are steps or phases."""
        return [self.thread_id, *np.unique(self.others.thread_id).tolist()]


def event_table(
    path: str,
    rank: RankSteps,
    operations: DeviceOperations,
    phases: Mapping[str, PhaseRanges],
    members: Members,
) -> pa.Table:
    """Return `schema.EVENTS` of the wanted operations.

    Raises a `DamagedReportError` if the communication is not what was first read.
    """
    by_launch = operations.by_launch
    phase = np.empty(len(operations), np.int64)
    phase[by_launch] = phases_of_launches(phases, operations.launch[by_launch])
    if rank.span is not None:
        rows = overlapping_rows(operations.start, operations.end, rank.span)
        operations = operations.take(rows)
        phase = phase[rows]
    seq = _seqs(path, rank, operations)
    order = operations.in_order(seq)
    operations = operations.take(order)
    start = operations.start
    member = members_holding(members, rank.windows, operations.launch, start)
    # The last place is that of no step.
    step = np.append(rank.numbers, 0)[member]
    columns = {
        "rank": np.full(len(operations), rank.rank),
        "step": pa.array(step, mask=member == NO_MEMBER),
        "phase": _words(phase[order], PHASES),
        "category": _words(operations.category, CATEGORIES),
        "name": _words(operations.name, operations.names),
        "collective": _words(operations.collective, COLLECTIVES),
        "seq": _nullable(seq[order], NO_SEQ),
    }
    columns |= _times(operations, rank.shift_ns)
    columns |= _ids(operations)
    return schema.EVENTS.table(columns)


def _times(operations: DeviceOperations, shift_ns: int) -> dict[str, Any]:
    return {
        "start_ns": operations.start + shift_ns,
        "end_ns": operations.end + shift_ns,
        "dur_ns": operations.end - operations.start,
        "launch_ns": _nullable(operations.launch, NEVER, shift_ns),
    }


def _ids(operations: DeviceOperations) -> dict[str, Any]:
    return {
        "device_id": _nullable(operations.device_id),
        "stream_id": _nullable(operations.stream_id),
        "correlation_id": _nullable(operations.correlation_id),
        "bytes": _nullable(operations.n_bytes),
    }


def _seqs(path: str, rank: RankSteps, operations: DeviceOperations) -> Int64:
    """Return the place of each communication operation in its step, `NO_SEQ` for all others.

    The places are those of the first reading, which found the same operations in the same order.
    """
    rows = np.flatnonzero(operations.category == COMM)
    order = np.lexsort((operations.launch[rows], operations.start[rows]))
    rows = rows[order]
    are_starts_same = np.array_equal(operations.start[rows], rank.comm_starts)
    are_ends_same = np.array_equal(operations.end[rows], rank.comm_ends)
    if not (are_starts_same and are_ends_same):
        fix = "do not change the report, and start again (in Python, load it again)"
        raise DamagedReportError(path, "has changed since it was first read", fix=fix)
    seqs = np.full(len(operations), NO_SEQ)
    seqs[rows] = rank.seqs
    return seqs


def phase_ranges_table(
    rank: RankSteps, operations: DeviceOperations, phases: Mapping[str, PhaseRanges]
) -> pa.Table:
    """Return `schema.PHASE_RANGES` of the wanted steps."""
    ranges = _ranges_of_rank(rank, phases)
    rows = operations.by_launch
    times = (operations.launch[rows], operations.start[rows], operations.end[rows])
    launched = launched_in(ranges.starts, ranges.ends, times)
    is_empty = launched.counts == 0
    first_start_ns = launched.first_start + rank.shift_ns
    last_end_ns = launched.last_end + rank.shift_ns
    is_unknown = is_empty & (not rank.has_launches)
    columns = {
        "rank": np.full(ranges.step.size, rank.rank),
        "step": ranges.step,
        "phase": _words(ranges.code, PHASES),
        "start_ns": ranges.starts + rank.shift_ns,
        "end_ns": ranges.ends + rank.shift_ns,
        "n_operations": pa.array(launched.counts, mask=is_unknown),
        "device_start_ns": pa.array(first_start_ns, mask=is_empty),
        "device_end_ns": pa.array(last_end_ns, mask=is_empty),
    }
    return schema.PHASE_RANGES.table(columns)


class _Ranges(NamedTuple):
    """Ranges of phases and steps, in the order of the table."""

    code: Int64  # index into `names.PHASES`; `_STEP_ITSELF` for a step
    step: Int64
    starts: Int64
    ends: Int64


def _ranges_of_rank(rank: RankSteps, phases: Mapping[str, PhaseRanges]) -> _Ranges:
    """Return the steps and phases of the wanted steps."""
    steps = PhaseRanges(np.arange(rank.starts.size), rank.starts, rank.ends)
    kinds = [steps, *phases.values()]
    codes = [_STEP_ITSELF, *range(len(phases))]
    code = np.repeat(codes, [ranges.member.size for ranges in kinds])
    member = np.concatenate([ranges.member for ranges in kinds])
    starts = np.concatenate([ranges.starts for ranges in kinds])
    ends = np.concatenate([ranges.ends for ranges in kinds])
    step = rank.numbers[member]
    # The last place is that of a step, which is -1.
    alphabetical = np.array([*map(sorted(PHASES).index, PHASES), _STEP_ITSELF])
    order = np.lexsort((step, ends, alphabetical[code], starts))
    order = order[rank.is_chosen[member[order]]]
    return _Ranges(code[order], step[order], starts[order], ends[order])


def _words(codes: Int64, words: Sequence[str]) -> pa.Array:
    places = pa.array(codes, mask=codes < 0)
    return pa.array(words, pa.string()).take(places)


def _nullable(values: Int64, null: int = UNKNOWN, shift: int = 0) -> pa.Array:
    return pa.array(values + shift if shift else values, mask=values == null)
