"""The device operations of one process side by side, and the tables of operations and phase ranges made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

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

CATEGORIES = ("comm", "compute", "memory")  # in order of the alphabet
COMM, _COMPUTE, _MEMORY = range(3)

# nsys's kinds of memcpy; 11 to 14 are those of unified memory.
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
    """Columns of equal length; times are the report's, ns; `attribution.UNKNOWN` stands for null."""

    start: Int64
    end: Int64
    launch: Int64  # host start of the launch; `attribution.NEVER` without one
    category: Int64  # index into `CATEGORIES`
    name: Int64  # index into `names`, which stand in order of the alphabet
    collective: Int64  # index into `names.COLLECTIVES`; -1 for what does not communicate
    device_id: Int64
    stream_id: Int64
    correlation_id: Int64
    n_bytes: Int64
    names: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.start.size)

    def take(self, rows: Int64) -> DeviceOperations:
        """Return some of them, in that order."""
        return replace(
            self, **{name: getattr(self, name)[rows] for name in self.__struct_fields__[:-1]}
        )

    @cached_property
    def by_launch(self) -> Int64:
        """The rows in order of launch."""
        return np.argsort(self.launch, kind="stable")

    def in_order(self, *more: Int64) -> Int64:
        """Return the rows in order of start, then end, then every other column that a user sees, then `more`."""
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
        is_same = np.diff(self.start[order]) == 0
        # Few: other keys count only there.
        places = np.flatnonzero(np.append(is_same, False) | np.append(False, is_same))
        rows = order[places]
        order[places] = rows[np.lexsort([key[rows] for key in reversed(keys)])]
        return order


def overlapping_rows(starts: Int64, ends: Int64, span: tuple[int, int]) -> Int64:
    """Return the rows of those operations that run in a span ``[first, last)`` or begin in it."""
    first, last = span
    return np.flatnonzero((starts < last) & ((ends > first) | (starts == first)))


def device_operations(
    kernels: pa.Table,
    memcpys: pa.Table,
    memsets: pa.Table,
    launches: Sequence[Int64],
    texts: Mapping[int, str],
) -> DeviceOperations:
    """Put the operations of one process side by side: kernels, memcpys, memsets, each in order of row."""

    def joined(name: str) -> Int64:
        return np.concatenate([filled(table[name]) for table in (kernels, memcpys, memsets)])

    n_kernels = kernels.num_rows
    n_memory = memcpys.num_rows + memsets.num_rows
    name_ids = filled(kernels["name_id"])
    is_comm = kernels["is_comm"].to_numpy()
    collective = np.full(n_kernels + n_memory, -1)
    ids, index = np.unique(name_ids[is_comm], return_inverse=True)
    codes = [COLLECTIVES.index(collective_of_kernel(texts.get(one, ""))) for one in ids.tolist()]
    collective[np.flatnonzero(is_comm)] = np.array(codes, np.int64)[index]
    labels, label = kernel_labels(name_ids, texts)
    kinds, kind = np.unique(filled(memcpys["copy_kind"]), return_inverse=True)
    words = [*labels, *(_COPY_NAMES.get(one, "memcpy") for one in kinds.tolist()), "memset"]
    names = sorted(set(words))
    place = np.array([names.index(word) for word in words], np.int64)
    return DeviceOperations(
        start=joined("start_ns"),
        end=joined("end_ns"),
        launch=np.concatenate(launches),
        category=np.concatenate((np.where(is_comm, COMM, _COMPUTE), np.full(n_memory, _MEMORY))),
        name=np.concatenate(
            (place[label], place[len(labels) + kind], np.full(memsets.num_rows, place[-1]))
        ),
        collective=collective,
        device_id=joined("device_id"),
        stream_id=joined("stream_id"),
        correlation_id=joined("correlation_id"),
        n_bytes=np.concatenate(
            (_bytes_of(kernels), filled(memcpys["bytes"]), filled(memsets["bytes"]))
        ),
        names=tuple(names),
    )


def _bytes_of(kernels: pa.Table) -> Int64:
    """Return what collectives that are made of copies move; kernels do not say it."""
    if "bytes" not in kernels.column_names:
        return np.full(kernels.num_rows, UNKNOWN)
    return filled(kernels["bytes"])


class RankSteps(Struct, frozen=True):
    """What the run's first reading says of one rank; times are the report's, ns."""

    rank: int
    process_id: int
    device: (
        RankDevice | None
    )  # which operations of the process are the rank's; None where it used one device
    shift_ns: int  # added to report time to get aligned time
    has_launches: bool  # whether any operation of the process has a launch
    thread_id: int  # of the step ranges, as are the next three
    starts: Int64
    ends: Int64
    numbers: Int64
    backward: (
        PhaseRanges | None
    )  # where no range marks it; None where one does, or nothing shows it
    others: LaunchingThreads  # the threads besides that of the steps whose ranges are phases too
    windows: Windows  # their windows on the device
    is_chosen: Flags  # by step range: whether its ranges are asked for
    span: (
        tuple[int, int] | None
    )  # device time ``[first, last)`` whose operations are asked for; None asks for all
    # the communication operations asked for, in order of (start, launch); `NO_SEQ` for those of no
    # step
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
    """Return `schema.EVENTS` of what is asked for; a `DamagedReportError` if the communication is not what was first read."""
    launched = operations.by_launch
    phase = np.empty(len(operations), np.int64)
    phase[launched] = phases_of_launches(phases, operations.launch[launched])
    if rank.span is not None:
        rows = overlapping_rows(operations.start, operations.end, rank.span)
        operations = operations.take(rows)
        phase = phase[rows]
    seq = _seqs(path, rank, operations)
    order = operations.in_order(seq)
    operations = operations.take(order)
    phase = phase[order]
    seq = seq[order]
    launch = operations.launch
    start = operations.start
    member = members_holding(members, rank.windows, launch, start)
    step = np.append(rank.numbers, 0)[member]  # the last place is that of no member
    return schema.EVENTS.table(
        {
            "rank": np.full(len(operations), rank.rank),
            "step": pa.array(step, mask=member == NO_MEMBER),
            "phase": _words(phase, PHASES),
            "category": _words(operations.category, CATEGORIES),
            "name": _words(operations.name, operations.names),
            "device_id": _nullable(operations.device_id),
            "stream_id": _nullable(operations.stream_id),
            "start_ns": start + rank.shift_ns,
            "end_ns": operations.end + rank.shift_ns,
            "dur_ns": operations.end - start,
            "launch_ns": _nullable(launch, NEVER, rank.shift_ns),
            "correlation_id": _nullable(operations.correlation_id),
            "bytes": _nullable(operations.n_bytes),
            "collective": _words(operations.collective, COLLECTIVES),
            "seq": _nullable(seq, NO_SEQ),
        }
    )


def _seqs(path: str, rank: RankSteps, operations: DeviceOperations) -> Int64:
    """Return the place of each communication operation in its step, `NO_SEQ` for all others; as first read, one by one."""
    rows = np.flatnonzero(operations.category == COMM)
    rows = rows[np.lexsort((operations.launch[rows], operations.start[rows]))]
    times = (operations.start, rank.comm_starts), (operations.end, rank.comm_ends)
    if not all(np.array_equal(column[rows], first_read) for column, first_read in times):
        fix = "do not change the report, and start again (in Python, load it again)"
        raise DamagedReportError(path, "has changed since it was first read", fix=fix)
    seqs = np.full(len(operations), NO_SEQ)
    seqs[rows] = rank.seqs
    return seqs


def phase_ranges_table(
    rank: RankSteps, operations: DeviceOperations, phases: Mapping[str, PhaseRanges]
) -> pa.Table:
    """Return `schema.PHASE_RANGES` of the steps asked for."""
    each = [(_STEP_ITSELF, np.arange(rank.starts.size), rank.starts, rank.ends)]
    each += [
        (code, phase.member, phase.starts, phase.ends) for code, phase in enumerate(phases.values())
    ]
    code = np.repeat([one[0] for one in each], [one[1].size for one in each])
    member, starts, ends = (
        np.concatenate(column) for column in zip(*(one[1:] for one in each), strict=True)
    )
    step = rank.numbers[member]
    word = np.array([*(sorted(PHASES).index(one) for one in PHASES), _STEP_ITSELF])[code]
    order = np.lexsort((step, ends, word, starts))
    order = order[rank.is_chosen[member[order]]]
    starts = starts[order]
    ends = ends[order]
    rows = operations.by_launch
    launched = operations.launch[rows], operations.start[rows], operations.end[rows]
    counts, device_starts, device_ends = launched_in(starts, ends, launched)
    nothing = counts == 0
    return schema.PHASE_RANGES.table(
        {
            "rank": np.full(order.size, rank.rank),
            "step": step[order],
            "phase": _words(code[order], PHASES),
            "start_ns": starts + rank.shift_ns,
            "end_ns": ends + rank.shift_ns,
            "n_operations": pa.array(counts, mask=nothing & (not rank.has_launches)),
            "device_start_ns": pa.array(device_starts + rank.shift_ns, mask=nothing),
            "device_end_ns": pa.array(device_ends + rank.shift_ns, mask=nothing),
        }
    )


def _words(codes: Int64, words: Sequence[str]) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(codes, mask=codes < 0))


def _nullable(values: Int64, null: int = UNKNOWN, shift: int = 0) -> pa.Array:
    return pa.array(values + shift if shift else values, mask=values == null)
