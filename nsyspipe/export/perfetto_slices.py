"""What is drawn on a track: slices as columns, and how slices that overlap share tracks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = [
    "Slices",
    "Values",
    "disjoint_lanes",
    "nested_lanes",
    "same_text",
    "shown",
    "values_of",
]


@dataclass(frozen=True)
class Values:
    """A column: numbers, or places in `texts`; `is_known` is false where nothing was recorded."""

    numbers: Int64
    is_known: Flags
    texts: tuple[str, ...] | None = None

    def take(self, rows: Int64) -> Values:
        """Return the values of some rows; -1 stands for a row that is not there."""
        if not self.numbers.size:
            return Values(np.zeros(rows.size, np.int64), np.zeros(rows.size, np.bool_), self.texts)
        return Values(self.numbers[rows], self.is_known[rows] & (rows >= 0), self.texts)

    def compact(self) -> Values:
        """Return the same with no text that no row has."""
        if self.texts is None:
            return self
        is_used = np.bincount(self.numbers, minlength=len(self.texts)) > 0
        texts = tuple(text for text, used in zip(self.texts, is_used, strict=True) if used)
        return Values((np.cumsum(is_used) - 1)[self.numbers], self.is_known, texts)


@dataclass(frozen=True)
class Slices:
    """Slices of one track in order of start, outer ones first; each ends before the next or holds it.

    Attributes
    ----------
    starts, ends
        Aligned time, ns.
    names, category
        Texts.
    notes
        What else is told of each slice, by name.
    flows
        Slices with the same number are linked by arrows, in order of start; None for no arrows.
    """

    starts: Int64
    ends: Int64
    names: Values
    category: Values
    notes: Mapping[str, Values] = field(default_factory=dict)
    flows: Values | None = None

    def __len__(self) -> int:
        return int(self.starts.size)

    def take(self, rows: Int64) -> Slices:
        """Return some of them, in that order."""
        return Slices(
            self.starts[rows],
            self.ends[rows],
            self.names.take(rows),
            self.category.take(rows),
            {name: values.take(rows) for name, values in self.notes.items()},
            None if self.flows is None else self.flows.take(rows),
        )

    def compact(self) -> Slices:
        """Return the same with nothing that no slice has: texts, notes."""
        known = {name: one.compact() for name, one in self.notes.items() if one.is_known.any()}
        names, category = self.names.compact(), self.category.compact()
        return Slices(self.starts, self.ends, names, category, known, self.flows)


def shown(text: str) -> str:
    """Make a name of a trace or a file fit for protobuf and for a page: no control characters, no lone surrogates."""
    return printable(text.encode("utf-8", "replace").decode("utf-8"))


def values_of(column: pa.ChunkedArray) -> Values:
    """Turn an Arrow column of integers, flags or texts into `Values`; flags become texts."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.string())
    known = pc.is_valid(column).to_numpy().astype(np.bool_)
    if not pa.types.is_string(column.type):
        return Values(pc.fill_null(column, 0).to_numpy().astype(np.int64, copy=False), known)
    # As bytes, since nothing proves that what an export calls text is UTF-8.
    coded = column.cast(pa.binary()).combine_chunks().dictionary_encode()
    texts = tuple(shown(raw.decode("utf-8", "replace")) for raw in coded.dictionary.to_pylist())
    places = pc.fill_null(coded.indices, 0).to_numpy(zero_copy_only=False)
    return Values(places.astype(np.int64), known, texts)


def same_text(text: str, size: int) -> Values:
    """Return a column that says the same on every row."""
    return Values(np.zeros(size, np.int64), np.ones(size, np.bool_), (text,))


def disjoint_lanes(starts: Int64, ends: Int64, ties: Int64 | None = None) -> list[Int64]:
    """Share slices out among as few tracks as their order allows, so that none overlaps another on its track.

    Returns
    -------
    list of numpy.ndarray
        For each track its rows in order of (start, end, ties); each slice stands on the first track that is free.
    """
    order = np.lexsort((ends, starts) if ties is None else (ties, ends, starts))
    start, end = starts[order], ends[order]
    if (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
        return [order] if order.size else []
    free: list[int] = []
    lanes: list[list[int]] = []
    for row, begin, finish in zip(order.tolist(), start.tolist(), end.tolist(), strict=True):
        lane = next((place for place, time in enumerate(free) if time <= begin), len(free))
        if lane == len(free):
            free.append(finish)
            lanes.append([])
        free[lane] = finish
        lanes[lane].append(row)
    return [np.array(lane, np.int64) for lane in lanes]


def nested_lanes(starts: Int64, ends: Int64, depth: Int64) -> list[Int64]:
    """Share slices out among as few tracks as their order allows, so that of two that overlap one holds the other.

    Parameters
    ----------
    depth
        Of slices with equal times the lower one is the outer.

    Returns
    -------
    list of numpy.ndarray
        For each track its rows in order of (start, longest first, depth).
    """
    order = np.lexsort((depth, -ends, starts))
    lanes: list[tuple[list[int], list[int]]] = []  # rows, and the ends of those still open
    columns = (order.tolist(), starts[order].tolist(), ends[order].tolist())
    for row, begin, finish in zip(*columns, strict=True):
        found = next((lane for lane in lanes if _holds(lane[1], begin, finish)), None)
        if found is None:
            found = ([], [])
            lanes.append(found)
        found[0].append(row)
        found[1].append(finish)
    return [np.array(rows, np.int64) for rows, _ in lanes]


def _holds(open_ends: list[int], begin: int, finish: int) -> bool:
    """Close what ended before, and tell whether what is still open holds a slice."""
    while open_ends and open_ends[-1] <= begin:
        open_ends.pop()
    return not open_ends or open_ends[-1] >= finish
