"""A few rows of the canonical tables, written as plainly as possible. Times are ns, the process is always 1."""

from __future__ import annotations

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
    """Return a copy of unified memory, which nothing launches."""
    return Op("copy", start, end, None, canonical.UNIFIED_KINDS[0], 100)


def memset(start: int, end: int, launch: int | None = None, n_bytes: int | None = 100) -> Op:
    return Op("copy", start, end, launch, canonical.MEMSET_KIND, n_bytes)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def operations(*ops: Op) -> ProcessOperations:
    kernels = [op for op in ops if op.category != "copy"]
    copies = [op for op in ops if op.category == "copy"]
    nothing = [None] * len(ops)
    rare = ("device_id", "stream_id", "name_id", "grid", "block")
    kernel_table = canonical.KERNELS.table(
        _times(kernels)
        | {name: [getattr(op, name) for op in kernels] for name in rare}
        | {"correlation_id": nothing[: len(kernels)]}
        | {"is_comm": np.array([op.category == "comm" for op in kernels], np.bool_)}
    )
    copy_table = canonical.COPIES.table(
        _times(copies)
        | {name: nothing[: len(copies)] for name in ("device_id", "correlation_id")}
        | {"copy_kind": [op.copy_kind for op in copies], "bytes": [op.n_bytes for op in copies]}
    )
    return operations_of(kernel_table, _launches(kernels), copy_table, _launches(copies))


def ranges(*rows: tuple[int, int, int, str | None], libraries: tuple[int, ...] = ()):
    """Build `canonical.RANGES` from (thread, start, end, text); the text's dictionary may hold a null, as when read.

    `libraries` are the places of those in a library's domain.
    """
    texts = list(dict.fromkeys(row[3] for row in rows))
    index = pa.array([texts.index(row[3]) for row in rows], pa.int32())
    return canonical.RANGES.table(
        {
            "process_id": [PROCESS] * len(rows),
            "thread_id": [row[0] for row in rows],
            "start_ns": [row[1] for row in rows],
            "end_ns": [row[2] for row in rows],
            "text": pa.DictionaryArray.from_arrays(index, pa.array(texts, pa.string())),
            "is_library": pa.array([at in libraries for at in range(len(rows))], pa.bool_()),
        }
    )


def texts_of(table):
    """Return the dictionary of the ranges' texts, to which families and phase codes belong."""
    return table["text"].combine_chunks().dictionary


def members(*spans: tuple[int, int], thread: int = 1, rows: tuple[int, ...] | None = None) -> Members:
    """Build step ranges of the given times; row i is member i unless told."""
    return Members(
        thread,
        ints(*(range(len(spans)) if rows is None else rows)),
        ints(*(start for start, _ in spans)),
        ints(*(end for _, end in spans)),
    )


def windows(*spans: tuple[int, int]) -> Windows:
    """Build complete windows of the given times; window i is of member i."""
    starts, ends = ints(*(start for start, _ in spans)), ints(*(end for _, end in spans))
    return Windows(np.arange(len(spans)), starts, ends, np.ones(len(spans), np.bool_))


def phase(*rows: tuple[int, int, int]) -> PhaseRanges:
    """Build the ranges of a phase from (step, start, end)."""
    return PhaseRanges(*(ints(*(row[at] for row in rows)) for at in range(3)))


def calls(*rows: tuple[int, int, str]) -> pa.Table:
    """Build `canonical.BLOCKING_CALLS` from (start, end, call)."""
    return canonical.BLOCKING_CALLS.table(
        {
            "process_id": [PROCESS] * len(rows),
            "start_ns": [row[0] for row in rows],
            "end_ns": [row[1] for row in rows],
            "call": [row[2] for row in rows],
        }
    )


def listed(columns: dict[str, Any]) -> dict[str, Any]:
    """Turn columns of arrays into lists, which compare whole; None stays."""
    return {name: None if one is None else one.tolist() for name, one in columns.items()}


def _times(ops: list[Op]) -> dict[str, list[int]]:
    return {"process_id": [PROCESS] * len(ops), "start_ns": [op.start for op in ops], "end_ns": [op.end for op in ops]}


def _launches(ops: list[Op]) -> np.ndarray:
    return ints(*(NEVER if op.launch is None else op.launch for op in ops))
