"""Operations of one lane reduced to few bars: what overlaps is told apart or merged, what is close is joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import IntervalSet, run_starts

if TYPE_CHECKING:
    from nsyspipe.model.types import Int64


NO_SEQ = -1


@dataclass(frozen=True)
class Pieces:
    """Disjoint pieces of time in order, each with its operations."""

    # of each piece, ns
    starts: Int64
    ends: Int64
    # of each operation that has a part in the window: its piece, a code of its name, the length of that part, and its
    # row of `collectives` (`NO_SEQ` for none)
    owner: Int64
    names: Int64
    lengths: Int64
    seqs: Int64


@dataclass(frozen=True)
class Bars:
    """What is drawn, in order of start; `names` and `seqs` as in `Pieces`, the last two None where they say nothing."""

    starts: Int64
    ends: Int64
    busy_ns: Int64
    n_operations: Int64
    names: Int64
    seqs: Int64
    exposed_ns: Int64 | None = None
    wait_ns: Int64 | None = None


def merged_pieces(starts: Int64, ends: Int64, names: Int64, window: tuple[int, int]) -> Pieces:
    """Merge operations that overlap into one piece; those that only touch stay apart.

    Parameters
    ----------
    starts, ends, names
        Of each operation, any order.
    window
        What they are clipped to.
    """
    rows, begin, finish = _clipped(starts, ends, window)
    reached = np.maximum.accumulate(finish)
    opens = np.ones(rows.size, np.bool_)
    opens[1:] = begin[1:] >= reached[:-1]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], rows.size)[: first.size] - 1
    return Pieces(
        starts=begin[first],
        ends=reached[last],
        owner=np.cumsum(opens) - 1,
        names=names[rows],
        lengths=finish - begin,
        seqs=np.full(rows.size, NO_SEQ),
    )


def painted_pieces(
    starts: Int64, ends: Int64, names: Int64, seqs: Int64, window: tuple[int, int]
) -> Pieces:
    """Give each time to the operation that began first of those that run (of equal starts the longest).

    An operation gets one piece: what is left of it when the earlier ones have ended. One that lies within earlier ones
    gets none, and counts in the piece that it begins in.
    """
    rows, begin, finish = _clipped(starts, ends, window)
    reached = np.full(rows.size, window[0])
    reached[1:] = np.maximum.accumulate(finish)[:-1]
    is_seen = finish > reached
    piece_starts = np.maximum(begin, reached)[is_seen]
    owner = np.searchsorted(piece_starts, begin, side="right") - 1
    owner[is_seen] = np.arange(piece_starts.size)
    return Pieces(
        starts=piece_starts,
        ends=finish[is_seen],
        owner=owner,
        names=names[rows],
        lengths=finish - begin,
        seqs=seqs[rows],
    )


def pieces_outside(pieces: Pieces, busy: IntervalSet) -> Pieces:
    """Return what `busy` leaves of painted pieces; each part counts as one operation, the one its piece belongs to."""
    parts = IntervalSet(pieces.starts, pieces.ends).without(busy)
    # The operation that a piece belongs to comes before those that only count in it.
    _, operations = np.unique(pieces.owner, return_index=True)
    operation = operations[np.searchsorted(pieces.starts, parts.starts, side="right") - 1]
    return Pieces(
        starts=parts.starts,
        ends=parts.ends,
        owner=np.arange(len(parts)),
        names=pieces.names[operation],
        lengths=parts.ends - parts.starts,
        seqs=pieces.seqs[operation],
    )


def _clipped(starts: Int64, ends: Int64, window: tuple[int, int]) -> tuple[Int64, Int64, Int64]:
    """Return the rows that have a part in the window, by (start, longest first), and those parts."""
    order = np.lexsort((-ends, starts))
    begin, finish = np.maximum(starts[order], window[0]), np.minimum(ends[order], window[1])
    kept = finish > begin
    return order[kept], begin[kept], finish[kept]


def joined(pieces: Pieces, max_bars: int) -> Bars:
    """Join neighbouring pieces, those with the smallest gap first (of equal gaps the earliest), until few enough are left.

    Parameters
    ----------
    max_bars
        At least 1.

    Returns
    -------
    Bars
        ``busy_ns``: sum of the pieces' lengths. ``names``: that of the operations with most time (tie: the lowest
        code). ``seqs``: of a bar of one operation, else `NO_SEQ`.
    """
    group = joins(pieces.starts, pieces.ends, max_bars)
    first, owner = run_starts(group), group[pieces.owner]
    counts = np.bincount(owner, minlength=first.size)
    seqs = np.full(first.size, NO_SEQ)
    seqs[owner] = pieces.seqs
    if not first.size:
        return Bars(*(group,) * 6)
    return Bars(
        starts=pieces.starts[first],
        ends=np.maximum.reduceat(pieces.ends, first),
        busy_ns=np.add.reduceat(pieces.ends - pieces.starts, first),
        n_operations=counts,
        names=longest_names(owner, pieces.names, pieces.lengths),
        seqs=np.where(counts == 1, seqs, NO_SEQ),
    )


def joins(starts: Int64, ends: Int64, max_bars: int) -> Int64:
    """Return the bar of each piece, from 0; pieces in order of start.

    The gap before a piece is counted from the last end of all before it, and negative where it begins earlier.
    """
    group = np.arange(starts.size)
    if starts.size <= max_bars:
        return group
    gaps = starts[1:] - np.maximum.accumulate(ends)[:-1]
    is_open = np.ones(starts.size, np.bool_)
    is_open[1 + np.argsort(gaps, kind="stable")[: starts.size - max_bars]] = False
    return np.cumsum(is_open) - 1


def longest_names(owner: Int64, names: Int64, lengths: Int64) -> Int64:
    """Return for each owner the name with the largest sum of lengths; of equal ones the lowest code."""
    width = int(names.max()) + 1
    keys, index = np.unique(owner * width + names, return_inverse=True)
    totals = np.zeros(keys.size, np.int64)
    np.add.at(totals, index, lengths)
    order = np.lexsort((keys, -totals, keys // width))
    most: Int64 = keys[order[run_starts(keys[order] // width)]] % width
    return most


def times(table: pa.Table) -> tuple[Int64, Int64]:
    """Return start and end of each row."""
    return table["start_ns"].to_numpy(), table["end_ns"].to_numpy()


def coded(column: pa.ChunkedArray) -> tuple[Int64, pa.Array]:
    """Return a code for each text, in order of the alphabet, and the text of each code; null comes last."""
    texts = column.cast(pa.string())
    words = pc.unique(texts).sort()
    words = words if words.null_count else pa.concat_arrays([words, pa.nulls(1, pa.string())])
    codes = pc.fill_null(pc.index_in(texts, value_set=words.drop_null()), len(words) - 1)
    return codes.to_numpy().astype(np.int64), words
