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
# In place of an index into `names.COLLECTIVES`.
_NO_COLLECTIVE = -1
# In place of an index into `names.PHASES`.
_STEP_ITSELF = -1
# The place of each phase in alphabetical order. `_STEP_ITSELF` reads the last element, which sorts
# before all phases.
_ALPHABETICAL_PLACE = np.array([*map(sorted(PHASES).index, PHASES), -1])


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
    # Index into `names.COLLECTIVES`; `_NO_COLLECTIVE` for operations that do not communicate.
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
        # All fields but the last, `names`, have a value per operation.
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
        """Return the rows sorted by start, then by the other visible columns, then by `more`."""
        row_at_place = np.argsort(self.start, kind="stable")
        sorted_starts = self.start[row_at_place]
        is_same = np.diff(sorted_starts) == 0
        starts_with_next = np.append(is_same, False)
        starts_with_previous = np.append(False, is_same)
        # Few operations start together. Only their places depend on the other keys.
        shared_places = np.flatnonzero(starts_with_next | starts_with_previous)
        rows = row_at_place[shared_places]
        keys = (*self._visible_columns(), *more)
        # The last key of `lexsort` is the one that sorts first.
        keys_of_rows = [key[rows] for key in reversed(keys)]
        order_of_rows = np.lexsort(keys_of_rows)
        row_at_place[shared_places] = rows[order_of_rows]
        return row_at_place


def overlapping_rows(starts: Int64, ends: Int64, span: tuple[int, int]) -> Int64:
    """Return the rows of operations that run in a span ``[first, last)`` or begin in it."""
    first, last = span
    starts_before_last = starts < last
    ends_behind_first = ends > first
    # Without this, an operation of no length at the begin of the span would be missed.
    starts_with_span = starts == first
    reaches_into_span = ends_behind_first | starts_with_span
    return np.flatnonzero(starts_before_last & reaches_into_span)


def device_operations(
    kernels: pa.Table,
    memcpys: pa.Table,
    memsets: pa.Table,
    launches: Sequence[Int64],
    texts: Mapping[int, str],
) -> DeviceOperations:
    """Return the operations of one process: first all kernels, then all memcpys, then all memsets.

    Each kind is in the order of its table. `launches` are the host starts of the launches of each
    kind. `texts` are the names of kernels by name ID.
    """
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
    """Return the names in alphabetical order, and for each operation the index of its name."""
    name_ids = filled(kernels["name_id"])
    labels, label_of_kernel = kernel_labels(name_ids, texts)
    copy_names, copy_name_of_memcpy = _names_of_copies(memcpys)
    names = sorted({*labels, *copy_names, "memset"})
    name_of_label = _indices_in(names, labels)
    name_of_copy_name = _indices_in(names, copy_names)
    name_of_kernel = name_of_label[label_of_kernel]
    name_of_memcpy = name_of_copy_name[copy_name_of_memcpy]
    name_of_memset = np.full(memsets.num_rows, names.index("memset"))
    name_of_operation = np.concatenate((name_of_kernel, name_of_memcpy, name_of_memset))
    return tuple(names), name_of_operation


def _indices_in(names: Sequence[str], wanted: Sequence[str]) -> Int64:
    """Return the index of each wanted name among the names."""
    indices = [names.index(name) for name in wanted]
    return np.array(indices, np.int64)


def _names_of_copies(memcpys: pa.Table) -> tuple[list[str], Int64]:
    """Return the name of each kind of copy that occurs, and for each copy the index of its name."""
    kind_of_copy = filled(memcpys["copy_kind"])
    kinds, name_of_copy = np.unique(kind_of_copy, return_inverse=True)
    names = [_COPY_NAMES.get(kind, "memcpy") for kind in kinds.tolist()]
    return names, name_of_copy


def _joined(tables: Sequence[pa.Table], name: str) -> Int64:
    """Return the column of that name of all tables, one table after the other."""
    columns = [filled(table[name]) for table in tables]
    return np.concatenate(columns)


def _collectives(kernels: KernelsOfReportTable, n_memory: int, texts: Mapping[int, str]) -> Int64:
    """Return for each operation the index of its collective in `names.COLLECTIVES`.

    The kernels come first, then `n_memory` copies and memsets. Operations that do not communicate
    have `_NO_COLLECTIVE`.
    """
    is_comm = kernels["is_comm"].to_numpy()
    id_of_comm_kernel = filled(kernels["name_id"])[is_comm]
    ids, name_of_comm_kernel = np.unique(id_of_comm_kernel, return_inverse=True)
    names = [texts.get(name_id, "") for name_id in ids.tolist()]
    collectives = [collective_of_kernel(name) for name in names]
    collective_of_name = _indices_in(COLLECTIVES, collectives)
    n_operations = is_comm.size + n_memory
    collective_of_operation = np.full(n_operations, _NO_COLLECTIVE)
    comm_kernels = np.flatnonzero(is_comm)
    collective_of_operation[comm_kernels] = collective_of_name[name_of_comm_kernel]
    return collective_of_operation


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
    # `NO_MEMBER` reads the last element. It is masked below, so its value does not matter.
    step_of_member = np.append(rank.numbers, 0)
    step_of_operation = step_of_member[member]
    return pa.array(step_of_operation, mask=is_of_no_step)


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

    The places are those of the first reading of the report. Raises a `DamagedReportError` if the
    first reading found other operations.
    """
    unsorted_rows = np.flatnonzero(operations.category == COMM)
    unsorted_starts = operations.start[unsorted_rows]
    unsorted_launches = operations.launch[unsorted_rows]
    # By start, then by launch, as the first reading had them.
    by_start = np.lexsort((unsorted_launches, unsorted_starts))
    rows = unsorted_rows[by_start]
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
    """Return the number, first start and last end of the operations that each range launched."""
    rows = operations.by_launch
    launches = operations.launch[rows]
    starts = operations.start[rows]
    ends = operations.end[rows]
    columns = (launches, starts, ends)
    return launched_in(ranges.starts, ranges.ends, columns)


def _device_times(rank: RankSteps, launched: Launched) -> dict[str, Any]:
    """Return the number and the times of the operations that each range launched.

    The times are null if the range launched nothing. The number is 0 then, but null if the process
    has no launch at all.
    """
    is_empty = launched.counts == 0
    is_count_unknown = np.zeros_like(is_empty) if rank.has_launches else is_empty
    n_operations = pa.array(launched.counts, mask=is_count_unknown)
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
    """Return the step ranges as if they were ranges of a phase."""
    members = np.arange(rank.starts.size)
    return PhaseRanges(members, rank.starts, rank.ends)


def _joined_ranges(kinds: Sequence[PhaseRanges]) -> PhaseRanges:
    """Return the ranges of all kinds, one kind after the other."""
    members = [ranges.member for ranges in kinds]
    starts = [ranges.starts for ranges in kinds]
    ends = [ranges.ends for ranges in kinds]
    return PhaseRanges(np.concatenate(members), np.concatenate(starts), np.concatenate(ends))


def _ranges_of_rank(rank: RankSteps, phases: Mapping[str, PhaseRanges]) -> _Ranges:
    """Return the ranges of the wanted steps and of their phases.

    The ranges are sorted by start. Of ranges that start together, that of the step comes first, and
    then those of phases by name.
    """
    kinds = [_ranges_of_steps(rank), *phases.values()]
    code_of_kind = [_STEP_ITSELF, *range(len(phases))]
    n_ranges_of_kind = [ranges.member.size for ranges in kinds]
    code = np.repeat(code_of_kind, n_ranges_of_kind)
    all_ranges = _joined_ranges(kinds)
    member = all_ranges.member
    starts = all_ranges.starts
    ends = all_ranges.ends
    step = rank.numbers[member]
    # The code of a step is -1, which reads the last element. That is before all phases.
    name_place = _ALPHABETICAL_PLACE[code]
    # The last key of `lexsort` is the one that sorts first.
    by_start = np.lexsort((step, ends, name_place, starts))
    is_chosen = rank.is_chosen[member]
    rows = by_start[is_chosen[by_start]]
    return _Ranges(code[rows], step[rows], starts[rows], ends[rows])


def _words(codes: Int64, words: Sequence[str]) -> pa.Array:
    """Return the word at the index that each code is. Null for a negative code."""
    is_null = codes < 0
    places = pa.array(codes, mask=is_null)
    texts = pa.array(words, pa.string())
    return texts.take(places)


def _nullable(values: Int64, null: int = UNKNOWN, shift: int = 0) -> pa.Array:
    """Return the values plus `shift`, and null in place of the value `null`."""
    is_null = values == null
    shifted = values + shift if shift else values
    return pa.array(shifted, mask=is_null)
