"""The device operations of one process side by side, whatever their sort."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.attribution import UNKNOWN
from nsyspipe.classify import COLLECTIVES, collective_of
from nsyspipe.kernel_names import kernel_labels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

__all__ = ["CATEGORIES", "COMM", "DeviceOperations", "device_operations", "overlapping_rows"]

# In order of the alphabet.
CATEGORIES = ("comm", "compute", "memory")
COMM, _COMPUTE, _MEMORY = range(3)
_NO_COLLECTIVE = -1

# nsys's kinds of memcpy; 11 to 14 are those of unified memory.
_COPY_NAMES = {
    1: "memcpy HtoD", 2: "memcpy DtoH", 3: "memcpy HtoA", 4: "memcpy AtoH", 5: "memcpy AtoA", 6: "memcpy AtoD",
    7: "memcpy DtoA", 8: "memcpy DtoD", 9: "memcpy HtoH", 10: "memcpy PtoP", 11: "memcpy unified HtoD",
    12: "memcpy unified DtoH", 13: "memcpy unified DtoD", 14: "memcpy unified",
}  # fmt: skip
_COPY, _MEMSET = "memcpy", "memset"


@dataclass(frozen=True)
class DeviceOperations:
    """Columns of equal length; times are the report's, ns; `attribution.UNKNOWN` stands for null.

    Attributes
    ----------
    launch
        Host start of the launch; `attribution.NEVER` without one.
    category
        Index into `CATEGORIES`.
    name
        Index into `names`, which stand in order of the alphabet.
    collective
        Index into `classify.COLLECTIVES`; -1 for what does not communicate.
    """

    start: Int64
    end: Int64
    launch: Int64
    category: Int64
    name: Int64
    collective: Int64
    device_id: Int64
    stream_id: Int64
    correlation_id: Int64
    n_bytes: Int64
    names: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.start.size)

    def take(self, rows: Int64) -> DeviceOperations:
        """Return some of them, in that order."""
        columns = {one.name: getattr(self, one.name)[rows] for one in fields(self)[:-1]}
        return replace(self, **columns)

    @cached_property
    def by_launch(self) -> Int64:
        """The rows in order of launch."""
        return np.argsort(self.launch, kind="stable")

    def in_order(self, *more: Int64) -> Int64:
        """Return the rows in order of start, then end, then every other column that a user sees, then `more`.

        Rows that are equal in all of them may stand in any order.
        """
        keys = (
            self.start, self.end, self.category, self.device_id, self.stream_id, self.correlation_id, self.launch,
            self.name, self.n_bytes, *more,
        )  # fmt: skip
        order = np.argsort(self.start, kind="stable")
        ordered = self.start[order]
        is_tie = np.zeros(order.size, np.bool_)
        is_tie[1:] = ordered[1:] == ordered[:-1]
        is_tie[:-1] |= is_tie[1:]
        places = np.flatnonzero(is_tie)  # few: the other keys are looked at only there
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
    """Put the operations of one process side by side: kernels, memcpys, memsets, each in order of row.

    Parameters
    ----------
    kernels, memcpys, memsets
        As `read.again.SecondReading` holds them, of one process.
    launches
        Their launch times, as `attribution.launch_times` gives them.
    texts
        Text of each kernel name id.
    """
    tables = (kernels, memcpys, memsets)
    sizes = [table.num_rows for table in tables]
    name_ids, is_comm = _filled(kernels["name_id"]), kernels["is_comm"].to_numpy()
    labels, label = kernel_labels(name_ids, texts)
    kinds, kind = np.unique(_filled(memcpys["copy_kind"]), return_inverse=True)
    words = [*labels, *(_COPY_NAMES.get(one, _COPY) for one in kinds.tolist()), _MEMSET]
    names = sorted(set(words))
    place = np.array([names.index(word) for word in words], np.int64)
    memory = sum(sizes[1:])
    return DeviceOperations(
        start=_joined(tables, "start_ns"),
        end=_joined(tables, "end_ns"),
        launch=np.concatenate(launches),
        category=np.concatenate(
            (np.where(is_comm, COMM, _COMPUTE), np.full(memory, _MEMORY, np.int64))
        ),
        name=np.concatenate(
            (
                place[label],
                place[len(labels) + kind],
                np.full(sizes[2], place[-1]),
            )
        ),
        collective=np.concatenate(
            (_collectives(name_ids, is_comm, texts), np.full(memory, _NO_COLLECTIVE))
        ),
        device_id=_joined(tables, "device_id"),
        stream_id=_joined(tables, "stream_id"),
        correlation_id=_joined(tables, "correlation_id"),
        n_bytes=np.concatenate((np.full(sizes[0], UNKNOWN), _joined(tables[1:], "bytes"))),
        names=tuple(names),
    )


def _collectives(name_ids: Int64, is_comm: NDArray[np.bool_], texts: Mapping[int, str]) -> Int64:
    found = np.full(name_ids.size, _NO_COLLECTIVE)
    rows = np.flatnonzero(is_comm)
    ids, index = np.unique(name_ids[rows], return_inverse=True)
    codes = [COLLECTIVES.index(collective_of(texts.get(one, ""))) for one in ids.tolist()]
    found[rows] = np.array(codes, np.int64)[index] if codes else index
    return found


def _joined(tables: Sequence[pa.Table], name: str) -> Int64:
    return np.concatenate([_filled(table[name]) for table in tables])


def _filled(column: pa.ChunkedArray) -> Int64:
    values: Int64 = (pc.fill_null(column, UNKNOWN) if column.null_count else column).to_numpy()
    return values
