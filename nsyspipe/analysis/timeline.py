"""The step that stands for the others, and its operations reduced to few bars that can be drawn."""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.breakdown import exposed_comm
from nsyspipe.analysis.collectives import waited_until
from nsyspipe.analysis.intervals import (
    IntervalSet,
    Slices,
    grouped_lengths,
    run_starts,
    sums_of,
    union,
)
from nsyspipe.analysis.operations import NO_SEQ
from nsyspipe.model import schema
from nsyspipe.model.table import Int64

Bars: TypeAlias = "dict[str, Int64]"  # columns of bars, in order of start; names are codes
MAX_RANKS = 64  # of a run; nobody looks at more, and each is read a second time
MAX_BARS = 560  # of a lane; more cannot be told apart on a screen


class Pieces(Struct, frozen=True):
    """Disjoint pieces of time in order, each with its operations."""

    starts: Int64  # of each piece, ns, as is the next
    ends: Int64
    # of each operation with a part in the window: its piece, name's code, length of that part, row
    # of `collectives`
    owner: Int64
    names: Int64
    lengths: Int64
    seqs: Int64


def merged_pieces(starts: Int64, ends: Int64, names: Int64, window: tuple[int, int]) -> Pieces:
    """Merge operations that overlap into one piece; those that only touch stay apart."""
    rows, begin, finish, reached = _clipped(starts, ends, window)
    opens = begin >= reached
    first = np.flatnonzero(opens)
    owner = np.cumsum(opens) - 1
    seqs = np.full(rows.size, NO_SEQ)
    return Pieces(
        begin[first], np.maximum.reduceat(finish, first), owner, names[rows], finish - begin, seqs
    )


def painted_pieces(
    starts: Int64, ends: Int64, names: Int64, seqs: Int64, window: tuple[int, int]
) -> Pieces:
    """Give each time to the first to begin (of equal ones the longest); one within earlier ones counts in its piece."""
    rows, begin, finish, reached = _clipped(starts, ends, window)
    is_seen = finish > reached
    first = np.maximum(begin, reached)[is_seen]
    owner = np.searchsorted(first, begin, side="right") - 1
    owner[is_seen] = np.arange(first.size)
    return Pieces(first, finish[is_seen], owner, names[rows], finish - begin, seqs[rows])


def pieces_outside(pieces: Pieces, busy: IntervalSet) -> Pieces:
    """Return what `busy` leaves of painted pieces; each part counts as one operation, the one its piece belongs to."""
    parts = IntervalSet(pieces.starts, pieces.ends).without(busy)
    # The operation that a piece belongs to comes before those that only count in it.
    operations = np.unique(pieces.owner, return_index=True)[1]
    rows = operations[np.searchsorted(pieces.starts, parts.starts, side="right") - 1]
    owner = np.arange(len(parts))
    lengths = parts.ends - parts.starts
    return Pieces(parts.starts, parts.ends, owner, pieces.names[rows], lengths, pieces.seqs[rows])


def _clipped(
    starts: Int64, ends: Int64, window: tuple[int, int]
) -> tuple[Int64, Int64, Int64, Int64]:
    """Return the rows that have a part in the window, by (start, longest first), those parts, and what ended before."""
    order = np.lexsort((-ends, starts))
    begin = np.maximum(starts[order], window[0])
    finish = np.minimum(ends[order], window[1])
    kept = finish > begin
    return (
        order[kept],
        begin[kept],
        finish[kept],
        np.maximum.accumulate(np.append(window[0], finish[kept]))[:-1],
    )


def joined(pieces: Pieces, max_bars: int) -> Bars:
    """Join neighbouring pieces, those with the smallest gap first (of equal gaps the earliest), until few enough are left.

    A bar has the name of the operations with most time (tie: the lowest code), and the seq of its
    only operation.
    """
    group = joins(pieces.starts, pieces.ends, max_bars)
    owner = group[pieces.owner]
    counts = np.bincount(owner, minlength=run_starts(group).size)
    seqs = np.full(counts.size, NO_SEQ)
    seqs[owner] = pieces.seqs
    name = longest_names(owner, pieces.names, pieces.lengths)
    bars = {"n_operations": counts, "name": name, "seq": np.where(counts == 1, seqs, NO_SEQ)}
    return _bars(group, pieces.starts, pieces.ends) | bars


def _bars(group: Int64, starts: Int64, ends: Int64) -> Bars:
    first = run_starts(group)
    busy = np.add.reduceat(ends - starts, first)
    return {"start_ns": starts[first], "end_ns": np.maximum.reduceat(ends, first), "busy_ns": busy}


def joins(starts: Int64, ends: Int64, max_bars: int) -> Int64:
    """Return the bar of each piece, from 0, in order of start; gaps are from the last end of all before, maybe negative."""
    if starts.size <= max_bars:
        return np.arange(starts.size)
    gaps = starts[1:] - np.maximum.accumulate(ends)[:-1]
    is_open = np.ones(starts.size, np.bool_)
    is_open[1 + np.argsort(gaps, kind="stable")[: starts.size - max_bars]] = False
    return np.cumsum(is_open) - 1


def longest_names(owner: Int64, names: Int64, lengths: Int64) -> Int64:
    """Return for each owner the name with the largest sum of lengths; of equal ones the lowest code."""
    width = int(names.max(initial=0)) + 1
    keys, index = np.unique(owner * width + names, return_inverse=True)
    order = np.lexsort((keys, -sums_of(index, lengths, keys.size), keys // width))
    return keys[order[run_starts(keys[order] // width)]] % width  # type: ignore[no-any-return]


def _times(table: pa.Table) -> tuple[Int64, Int64]:
    return table["start_ns"].to_numpy(), table["end_ns"].to_numpy()


def coded(column: pa.ChunkedArray) -> tuple[Int64, pa.Array]:
    """Return a code for each text, in order of the alphabet, and the text of each code; null comes last."""
    texts = column.cast(pa.string())
    words = pc.unique(texts).drop_null().sort()
    codes = pc.fill_null(pc.index_in(texts, value_set=words), len(words))
    return codes.to_numpy().astype(np.int64), pa.concat_arrays([words, pa.nulls(1, pa.string())])


def comm_lanes(
    events: pa.Table,
    waiting: pa.Table,
    window: tuple[int, int],
    max_bars: int,
    *,
    is_wait_known: bool,
) -> dict[str, tuple[Bars, pa.Array]]:
    """Return the lanes ``comm``, ``exposed`` and ``wait`` of one rank, each as bars and the texts of their names.

    Sums are of the operations, before any bars are joined. Where the step has no ``wait_ns`` the
    bars of ``comm`` have none. `events` and `waiting` are rows of `schema.EVENTS` and matched ones
    of `schema.COLLECTIVES`.
    """
    own = events.filter(pc.equal(events["category"], "comm"))
    codes, names = coded(own["collective"])
    comm = painted_pieces(*_times(own), codes, pc.fill_null(own["seq"], NO_SEQ).to_numpy(), window)
    compute = union(*_times(events.filter(pc.equal(events["category"], "compute"))))
    starts, ends = _times(waiting)
    until = waited_until(starts, ends, waiting["wait_ns"].to_numpy())
    codes, wait_names = coded(waiting["collective"])
    waits = painted_pieces(starts, until, codes, waiting["seq"].to_numpy(), window)
    # All communication between start and end of a bar is its own: bars of comm do not overlap.
    bars = joined(comm, max_bars)
    times = union(comm.starts, comm.ends)
    bars["exposed_ns"] = exposed_comm(times, compute).lengths(bars["start_ns"], bars["end_ns"])
    if is_wait_known:
        bars["wait_ns"] = (
            union(waits.starts, waits.ends)
            .intersect(times)
            .lengths(bars["start_ns"], bars["end_ns"])
        )
    exposed = joined(pieces_outside(comm, compute), max_bars)
    return {
        "comm": (bars, names),
        "exposed": (exposed, names),
        "wait": (joined(waits, max_bars), wait_names),
    }


def representative_step(steps: pa.Table) -> int | None:
    """Return the step whose time, its largest window over ranks, is closest to the median, of equally close ones the lowest.

    It is of the summary steps, else of those that all ranks have, else of all; None without any
    window.
    """
    step = steps["step"].to_numpy()
    rank = steps["rank"].to_numpy()
    numbers, index = np.unique(step, return_inverse=True)
    walls = np.zeros(numbers.size, np.int64)
    np.maximum.at(walls, index, steps["end_ns"].to_numpy() - steps["start_ns"].to_numpy())
    in_summary = np.isin(numbers, step[steps["in_summary"].to_numpy()])
    is_shared = np.bincount(index, minlength=numbers.size) == np.unique(rank).size
    for chosen in (in_summary, is_shared, np.ones(numbers.size, np.bool_)):
        if chosen.any():
            ordered = np.sort(walls[chosen])
            twice_median = ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]
            return int(numbers[chosen][np.abs(2 * walls[chosen] - twice_median).argmin()])
    return None


def drawn_ranks(steps: pa.Table, step: int, telling: Iterable[int]) -> list[int]:
    """Return the ranks of a step's timeline, sorted, at most `MAX_RANKS`: the slowest of the step, and `telling` ones."""
    own = steps.filter(pc.equal(steps["step"], step))
    lengths = pc.subtract(own["end_ns"], own["start_ns"])
    slowest = (
        [own["rank"][pc.index(lengths, pc.max(lengths)).as_py()].as_py()] if own.num_rows else []
    )
    return sorted(list(dict.fromkeys([*slowest, *telling]))[:MAX_RANKS])


def timeline(
    steps: pa.Table,
    collectives: pa.Table,
    operations: Iterable[schema.OfRank],
    step: int,
    max_bars: int = MAX_BARS,
) -> pa.Table:
    r"""Reduce one step to bars: `schema.TIMELINE`, sorted by (rank, lane, start), then end and name; none of ranks without it.

    What a lane holds is said there; communication and waiting are painted, other operations merged.
    A lane has at most `max_bars`, at least 1. For each rank the sums of ``busy_ns`` are
    ``compute_ns``, ``comm_ns``, ``exposed_comm_ns`` and, where it is known, ``wait_ns`` of that
    step, and \|P\| in the memory lane; those of ``exposed_ns`` and ``wait_ns`` too.

    `operations` has per rank its number, `schema.EVENTS` and `schema.PHASE_RANGES`, at least what
    overlaps the window.
    """
    chosen = steps.filter(pc.equal(steps["step"], step)).select(
        ["rank", "start_ns", "end_ns", "wait_ns"]
    )
    of_rank = {row["rank"]: row for row in chosen.to_pylist()}
    tables = [schema.TIMELINE.empty()]
    for rank, events, ranges in operations:
        if rank in of_rank:
            window = of_rank[rank]["start_ns"], of_rank[rank]["end_ns"]
            is_own = pc.and_(
                pc.equal(collectives["rank"], rank), pc.is_valid(collectives["wait_ns"])
            )
            own = collectives.select(["start_ns", "end_ns", "wait_ns", "collective", "seq"]).filter(
                is_own
            )
            lanes = comm_lanes(
                events, own, window, max_bars, is_wait_known=of_rank[rank]["wait_ns"] is not None
            )
            for category in ("compute", "memory"):
                operations_of = events.filter(pc.equal(events["category"], category))
                codes, words = coded(operations_of["name"])
                lanes[category] = (
                    joined(merged_pieces(*_times(operations_of), codes, window), max_bars),
                    words,
                )
            runs = pc.and_(
                pc.less(events["start_ns"], window[1]), pc.greater(events["end_ns"], window[0])
            )
            queued = events.filter(pc.and_(runs, pc.less(events["launch_ns"], events["start_ns"])))
            codes, words = coded(queued["name"])
            times = queued["launch_ns"].to_numpy(), queued["start_ns"].to_numpy()
            lanes["launch"] = joined(merged_pieces(*times, codes, window), max_bars), words
            lanes["phase"] = _phases(events, ranges, step, window, max_bars)
            tables += [_table(step, rank, lane, *lanes[lane]) for lane in sorted(lanes)]
    return pa.concat_tables(tables).combine_chunks()


def _table(step: int, rank: int, lane: str, bars: Bars, words: pa.Array) -> pa.Table:
    n_bars = bars["start_ns"].size
    nothing = dict.fromkeys(("exposed_ns", "wait_ns", "seq"), pa.nulls(n_bars, pa.int64()))
    columns = nothing | {name: pa.array(values) for name, values in bars.items()}
    columns["seq"] = pa.array(bars["seq"], mask=bars["seq"] == NO_SEQ)
    columns["name"] = words.take(columns["name"])
    return schema.TIMELINE.table(
        {"step": [step] * n_bars, "rank": [rank] * n_bars, "lane": [lane] * n_bars} | columns
    )


def _phases(
    events: pa.Table, ranges: pa.Table, step: int, window: tuple[int, int], max_bars: int
) -> tuple[Bars, pa.Array]:
    has_run = pc.and_(pc.is_valid(ranges["phase"]), pc.is_valid(ranges["device_start_ns"]))
    own = ranges.filter(pc.and_(pc.equal(ranges["step"], step), has_run))
    codes, words = coded(own["phase"])
    starts = np.maximum(own["device_start_ns"].to_numpy(), window[0])
    ends = np.minimum(own["device_end_ns"].to_numpy(), window[1])
    order = np.lexsort((codes, ends, starts))
    order = order[ends[order] > starts[order]]
    codes = codes[order]
    starts = starts[order]
    ends = ends[order]
    group = joins(starts, ends, max_bars)
    n_bars = run_starts(group).size
    own = own.take(pa.array(order))
    launched = events.select(["launch_ns", "start_ns", "end_ns"]).drop_null().sort_by("launch_ns")
    rows, of_range = Slices.within(launched["launch_ns"].to_numpy(), *_times(own)).rows()
    begin, finish = (np.clip(column[rows], *window) for column in _times(launched))
    return _bars(group, starts, ends) | {
        "busy_ns": grouped_lengths(group[of_range], begin, finish, n_bars),
        "n_operations": sums_of(group, own["n_operations"].to_numpy(), n_bars),
        "name": longest_names(group, codes, ends - starts),
        "seq": np.full(n_bars, NO_SEQ),
    }, words
