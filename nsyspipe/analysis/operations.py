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
from nsyspipe.analysis.phases import (
    Launched,
    LaunchingThreads,
    PhaseRanges,
    launched_in,
    phases_of_launches,
)
from nsyspipe.analysis.steps import Members, Windows
from nsyspipe.errors import DamagedReportError
from nsyspipe.model import schema
from nsyspipe.model.comm_kernels import collective_of_kernel
from nsyspipe.model.names import COLLECTIVES, PHASES
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    KernelsOfReportTable,
)

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
# The place of each phase in alphabetical order. The last place is that of a step, which is -1.
_ALPHABETICAL = np.array([*map(sorted(PHASES).index, PHASES), _STEP_ITSELF])


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
        values = {}
        for name in columns:
            column = getattr(self, name)
            values[name] = column[rows]
        return replace(self, **values)

    @cached_property
    def by_launch(self) -> Int64:
        """The rows in order of launch."""
        return np.argsort(self.launch, kind="stable")

    def _visible_columns(self) -> tuple[Int64, ...]:
        """Return the columns that a user sees, the most important for the order first."""
        times = (self.start, self.end)
        ids = (self.device_id, self.stream_id, self.correlation_id)
        names = (self.name, self.n_bytes)
        return (*times, self.category, *ids, self.launch, *names)

    def in_order(self, *more: Int64) -> Int64:
        """Return the rows in order of start, end, all columns that a user sees, and `more`."""
        order = np.argsort(self.start, kind="stable")
        starts = self.start[order]
        is_same = np.diff(starts) == 0
        starts_with_next = np.append(is_same, False)
        starts_with_previous = np.append(False, is_same)
        # Few operations start together. Only for them, the other keys count.
        places = np.flatnonzero(starts_with_next | starts_with_previous)
        rows = order[places]
        keys = (*self._visible_columns(), *more)
        keys_of_rows = [key[rows] for key in reversed(keys)]
        order_of_rows = np.lexsort(keys_of_rows)
        order[places] = rows[order_of_rows]
        return order


def overlapping_rows(starts: Int64, ends: Int64, span: tuple[int, int]) -> Int64:
    """Return the rows of operations that run in a span ``[first, last)`` or begin in it."""
    first, last = span
    starts_before_last = starts < last
    ends_behind_first = ends > first
    starts_with_span = starts == first
    is_in_span = ends_behind_first | starts_with_span
    return np.flatnonzero(starts_before_last & is_in_span)


def device_operations(
    kernels: pa.Table,
    memcpys: pa.Table,
    memsets: pa.Table,
    launches: Sequence[Int64],
    texts: Mapping[int, str],
) -> DeviceOperations:
    """Return the operations of one process: kernels, memcpys, memsets, each in order of row."""
    tables = (kernels, memcpys, memsets)
    start = _joined(tables, "start_ns")
    end = _joined(tables, "end_ns")
    device_id = _joined(tables, "device_id")
    stream_id = _joined(tables, "stream_id")
    correlation_id = _joined(tables, "correlation_id")
    launch = np.concatenate(launches)
    bytes_of_kernels = _bytes_of(kernels)
    bytes_of_memory = _joined((memcpys, memsets), "bytes")
    n_bytes = np.append(bytes_of_kernels, bytes_of_memory)
    n_memory = bytes_of_memory.size
    category = _categories(kernels, n_memory)
    collective = _collectives(kernels, n_memory, texts)
    names, name = _names_of_operations(kernels, memcpys, memsets, texts)
    return DeviceOperations(
        start=start,
        end=end,
        launch=launch,
        category=category,
        name=name,
        collective=collective,
        device_id=device_id,
        stream_id=stream_id,
        correlation_id=correlation_id,
        n_bytes=n_bytes,
        names=names,
    )


def _categories(kernels: KernelsOfReportTable, n_memory: int) -> Int64:
    """Return the category of each kernel, then that of the copies and memsets."""
    is_comm = kernels["is_comm"].to_numpy()
    category_of_kernels = np.where(is_comm, COMM, _COMPUTE)
    category_of_memory = np.full(n_memory, _MEMORY)
    return np.append(category_of_kernels, category_of_memory)


def _names_of_operations(
    kernels: KernelsOfReportTable, memcpys: pa.Table, memsets: pa.Table, texts: Mapping[int, str]
) -> tuple[tuple[str, ...], Int64]:
    """Return the names in alphabetical order, and which one each operation has."""
    name_ids = filled(kernels["name_id"])
    labels, label = kernel_labels(name_ids, texts)
    copy_names, copy_name = _names_of_copies(memcpys)
    all_names = [*labels, *copy_names, "memset"]
    names = sorted(set(all_names))
    codes = [names.index(name) for name in all_names]
    code = np.array(codes, np.int64)
    code_of_copies = code[len(labels) :]
    name_of_kernel = code[label]
    name_of_memcpy = code_of_copies[copy_name]
    name_of_memset = np.full(memsets.num_rows, code[-1])
    name = np.concatenate((name_of_kernel, name_of_memcpy, name_of_memset))
    return tuple(names), name


def _names_of_copies(memcpys: pa.Table) -> tuple[list[str], Int64]:
    """Return the name of each kind of copy that occurs, and which one each copy has."""
    kind_of_copy = filled(memcpys["copy_kind"])
    kinds, kind = np.unique(kind_of_copy, return_inverse=True)
    names = [_COPY_NAMES.get(number, "memcpy") for number in kinds.tolist()]
    return names, kind


def _joined(tables: Sequence[pa.Table], name: str) -> Int64:
    columns = [filled(table[name]) for table in tables]
    return np.concatenate(columns)


def _collectives(kernels: KernelsOfReportTable, n_memory: int, texts: Mapping[int, str]) -> Int64:
    """Return the index of the collective of each kernel, then -1 for the copies and memsets.

    It is -1 for kernels that do not communicate.
    """
    is_comm = kernels["is_comm"].to_numpy()
    name_ids = filled(kernels["name_id"])[is_comm]
    ids, index = np.unique(name_ids, return_inverse=True)
    names = [texts.get(name_id, "") for name_id in ids.tolist()]
    collectives = [collective_of_kernel(name) for name in names]
    codes = [COLLECTIVES.index(collective) for collective in collectives]
    code = np.array(codes, np.int64)
    n_operations = is_comm.size + n_memory
    collective_of_row = np.full(n_operations, -1)
    rows = np.flatnonzero(is_comm)
    collective_of_row[rows] = code[index]
    return collective_of_row


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
        threads = np.unique(self.others.thread_id)
        return [self.thread_id, *threads.tolist()]


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
    phase = _phases_of_operations(phases, operations)
    if rank.span is not None:
        rows = overlapping_rows(operations.start, operations.end, rank.span)
        operations = operations.take(rows)
        phase = phase[rows]
    seq = _seqs(path, rank, operations)
    order = operations.in_order(seq)
    operations = operations.take(order)
    phase = phase[order]
    seq = seq[order]
    columns = _kinds(operations)
    columns |= _times(operations, rank.shift_ns)
    columns |= _ids(operations)
    columns["rank"] = np.full(len(operations), rank.rank)
    columns["step"] = _steps_of_operations(rank, members, operations)
    columns["phase"] = _words(phase, PHASES)
    columns["seq"] = _nullable(seq, NO_SEQ)
    return schema.EVENTS.table(columns)


def _phases_of_operations(phases: Mapping[str, PhaseRanges], operations: DeviceOperations) -> Int64:
    """Return the phase that launched each operation, as `phases_of_launches` does."""
    rows = operations.by_launch
    launches = operations.launch[rows]
    phase = np.empty(len(operations), np.int64)
    phase[rows] = phases_of_launches(phases, launches)
    return phase


def _steps_of_operations(
    rank: RankSteps, members: Members, operations: DeviceOperations
) -> pa.Array:
    """Return the number of the step of each operation, null for none."""
    member = members_holding(members, rank.windows, operations.launch, operations.start)
    is_of_no_step = member == NO_MEMBER
    # The last place is that of no step.
    number_of_member = np.append(rank.numbers, 0)
    numbers = number_of_member[member]
    return pa.array(numbers, mask=is_of_no_step)


def _kinds(operations: DeviceOperations) -> dict[str, Any]:
    category = _words(operations.category, CATEGORIES)
    name = _words(operations.name, operations.names)
    collective = _words(operations.collective, COLLECTIVES)
    return {"category": category, "name": name, "collective": collective}


def _times(operations: DeviceOperations, shift_ns: int) -> dict[str, Any]:
    start_ns = operations.start + shift_ns
    end_ns = operations.end + shift_ns
    dur_ns = end_ns - start_ns
    launch_ns = _nullable(operations.launch, NEVER, shift_ns)
    return {"start_ns": start_ns, "end_ns": end_ns, "dur_ns": dur_ns, "launch_ns": launch_ns}


def _ids(operations: DeviceOperations) -> dict[str, Any]:
    device_id = _nullable(operations.device_id)
    stream_id = _nullable(operations.stream_id)
    correlation_id = _nullable(operations.correlation_id)
    return {
        "device_id": device_id,
        "stream_id": stream_id,
        "correlation_id": correlation_id,
        "bytes": _nullable(operations.n_bytes),
    }


def _seqs(path: str, rank: RankSteps, operations: DeviceOperations) -> Int64:
    """Return the place of each communication operation in its step, `NO_SEQ` for all others.

    The places are those of the first reading, which found the same operations in the same order.
    """
    rows = np.flatnonzero(operations.category == COMM)
    launches = operations.launch[rows]
    starts = operations.start[rows]
    order = np.lexsort((launches, starts))
    rows = rows[order]
    ends = operations.end[rows]
    are_starts_same = np.array_equal(starts[order], rank.comm_starts)
    are_ends_same = np.array_equal(ends, rank.comm_ends)
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
    launched = _launched_by_ranges(ranges, operations)
    n_ranges = ranges.step.size
    columns = _device_times(rank, launched)
    columns["rank"] = np.full(n_ranges, rank.rank)
    columns["step"] = ranges.step
    columns["phase"] = _words(ranges.code, PHASES)
    columns["start_ns"] = ranges.starts + rank.shift_ns
    columns["end_ns"] = ranges.ends + rank.shift_ns
    return schema.PHASE_RANGES.table(columns)


class _Ranges(NamedTuple):
    """Ranges of phases and steps, in the order of the table."""

    code: Int64  # index into `names.PHASES`; `_STEP_ITSELF` for a step
    step: Int64
    starts: Int64
    ends: Int64


def _launched_by_ranges(ranges: _Ranges, operations: DeviceOperations) -> Launched:
    rows = operations.by_launch
    launches = operations.launch[rows]
    starts = operations.start[rows]
    ends = operations.end[rows]
    columns = (launches, starts, ends)
    return launched_in(ranges.starts, ranges.ends, columns)


def _device_times(rank: RankSteps, launched: Launched) -> dict[str, Any]:
    """Return the columns of what ranges launched; the number is null if no launch is known."""
    is_empty = launched.counts == 0
    is_unknown = is_empty & (not rank.has_launches)
    n_operations = pa.array(launched.counts, mask=is_unknown)
    start_ns = launched.first_start + rank.shift_ns
    end_ns = launched.last_end + rank.shift_ns
    device_start_ns = pa.array(start_ns, mask=is_empty)
    device_end_ns = pa.array(end_ns, mask=is_empty)
    return {
        "n_operations": n_operations,
        "device_start_ns": device_start_ns,
        "device_end_ns": device_end_ns,
    }


def _ranges_of_steps(rank: RankSteps) -> PhaseRanges:
    members = np.arange(rank.starts.size)
    return PhaseRanges(members, rank.starts, rank.ends)


def _joined_ranges(kinds: Sequence[PhaseRanges]) -> PhaseRanges:
    members = [ranges.member for ranges in kinds]
    starts = [ranges.starts for ranges in kinds]
    ends = [ranges.ends for ranges in kinds]
    return PhaseRanges(np.concatenate(members), np.concatenate(starts), np.concatenate(ends))


def _ranges_of_rank(rank: RankSteps, phases: Mapping[str, PhaseRanges]) -> _Ranges:
    """Return the steps and phases of the wanted steps."""
    kinds = [_ranges_of_steps(rank), *phases.values()]
    codes = [_STEP_ITSELF, *range(len(phases))]
    n_ranges = [ranges.member.size for ranges in kinds]
    code = np.repeat(codes, n_ranges)
    all_ranges = _joined_ranges(kinds)
    member = all_ranges.member
    starts = all_ranges.starts
    ends = all_ranges.ends
    step = rank.numbers[member]
    place = _ALPHABETICAL[code]
    order = np.lexsort((step, ends, place, starts))
    is_chosen = rank.is_chosen[member]
    order = order[is_chosen[order]]
    return _Ranges(code[order], step[order], starts[order], ends[order])


def _words(codes: Int64, words: Sequence[str]) -> pa.Array:
    is_null = codes < 0
    places = pa.array(codes, mask=is_null)
    texts = pa.array(words, pa.string())
    return texts.take(places)


def _nullable(values: Int64, null: int = UNKNOWN, shift: int = 0) -> pa.Array:
    is_null = values == null
    shifted = values + shift if shift else values
    return pa.array(shifted, mask=is_null)
