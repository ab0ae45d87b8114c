"""A few rows of the canonical tables, written as plainly as possible. Times are ns, the process is always 1."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nsyspipe.analysis.attribution import NEVER, ProcessOperations, operations_of
from nsyspipe.analysis.phases import PhaseRanges
from nsyspipe.analysis.steps import Members, Windows
from nsyspipe.model import canonical

PROCESS = 1


class Op(NamedTuple):
    """A device operation; `launch` is the host time of its launch, None without one."""

    category: str
    start: int
    end: int
    launch: int | None = None
    copy_kind: int | None = None
    n_bytes: int | None = None
    name_id: int | None = None
    grid: int | None = None
    block: int | None = None
    device_id: int | None = None
    stream_id: int | None = None


def compute(start: int, end: int, launch: int | None = None, **more: int | None) -> Op:
    return Op("compute", start, end, launch, **more)


def comm(start: int, end: int, launch: int | None = None, **more: int | None) -> Op:
    return Op("comm", start, end, launch, **more)


def dtod(start: int, end: int, launch: int | None = None, n_bytes: int | None = 100) -> Op:
    return Op("copy", start, end, launch, canonical.DTOD_KIND, n_bytes)


def htod(start: int, end: int, launch: int | None = None, n_bytes: int | None = 100) -> Op:
    return Op("copy", start, end, launch, 1, n_bytes)


def unified(start: int, end: int) -> Op:
    return Op("copy", start, end, None, canonical.UNIFIED_KINDS[0], 100)


def memset(start: int, end: int, launch: int | None = None, n_bytes: int | None = 100) -> Op:
    return Op("copy", start, end, launch, canonical.MEMSET_KIND, n_bytes)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def operations(*ops: Op) -> ProcessOperations:
    kernels, copies = (
        [op for op in ops if (op.category == "copy") is is_copy] for is_copy in (False, True)
    )
    nothing = [None] * len(ops)
    rare = ("device_id", "stream_id", "name_id", "grid", "block")
    of_kernels = _columns([(op.start, op.end) for op in kernels], "start_ns", "end_ns")
    of_kernels |= {name: [getattr(op, name) for op in kernels] for name in rare}
    of_kernels["correlation_id"] = nothing[: len(kernels)]
    of_kernels["is_comm"] = np.array([op.category == "comm" for op in kernels], np.bool_)
    of_copies = _columns([(op.start, op.end) for op in copies], "start_ns", "end_ns")
    of_copies |= {name: nothing[: len(copies)] for name in ("device_id", "correlation_id")}
    of_copies |= {
        "copy_kind": [op.copy_kind for op in copies],
        "bytes": [op.n_bytes for op in copies],
    }
    tables = canonical.KERNELS.table(of_kernels), canonical.COPIES.table(of_copies)
    return operations_of(tables[0], _launches(kernels), tables[1], _launches(copies))


def ranges(*rows: tuple[int, int, int, str | None], libraries: tuple[int, ...] = ()):
    """Build `canonical.RANGES` from (thread, start, end, text or None); `libraries`: places of those in such a domain."""
    texts = list(dict.fromkeys(row[3] for row in rows))
    index = pa.array([texts.index(row[3]) for row in rows], pa.int32())
    columns = _columns(rows, "thread_id", "start_ns", "end_ns")
    columns["text"] = pa.DictionaryArray.from_arrays(index, pa.array(texts, pa.string()))
    columns["is_library"] = pa.array([at in libraries for at in range(len(rows))], pa.bool_())
    return canonical.RANGES.table(columns)


def texts_of(table):
    return table["text"].combine_chunks().dictionary


def members(
    *spans: tuple[int, int], thread: int = 1, rows: tuple[int, ...] | None = None
) -> Members:
    """Build step ranges of the given times; row i is member i unless told."""
    starts, ends = ints(*(start for start, _ in spans)), ints(*(end for _, end in spans))
    return Members(thread, ints(*(range(len(spans)) if rows is None else rows)), starts, ends)


def windows(*spans: tuple[int, int]) -> Windows:
    starts, ends = ints(*(start for start, _ in spans)), ints(*(end for _, end in spans))
    return Windows(np.arange(len(spans)), starts, ends, np.ones(len(spans), np.bool_))


def phase(*rows: tuple[int, int, int]) -> PhaseRanges:
    """Build the ranges of a phase from (step, start, end)."""
    return PhaseRanges(*(ints(*(row[at] for row in rows)) for at in range(3)))


MEMORY_CALLS = ("cudaMalloc", "cudaFree")


def calls(*rows: tuple[int, int, str], of_copies: Sequence[int] = ()) -> pa.Table:
    """Build `canonical.BLOCKING_CALLS` from (start, end, call), and the places of those of copies from the host."""
    flags = [place in of_copies for place in range(len(rows))]
    columns = _columns(rows, "start_ns", "end_ns", "call") | {"is_of_copy": flags}
    columns["is_of_memory"] = [call in MEMORY_CALLS for _, _, call in rows]
    return canonical.BLOCKING_CALLS.table(columns)


def listed(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: None if one is None else one.tolist() for name, one in columns.items()}


def _columns(rows: Sequence[tuple[Any, ...]], *names: str) -> dict[str, Any]:
    return {"process_id": [PROCESS] * len(rows)} | {
        name: [row[at] for row in rows] for at, name in enumerate(names)
    }


def _launches(ops: list[Op]) -> np.ndarray:
    return ints(*(NEVER if op.launch is None else op.launch for op in ops))
