"""The representative step, and its operations reduced to few bars that can be drawn."""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

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

# Columns of bars, in order of start. Names are codes.
Bars: TypeAlias = "dict[str, Int64]"
# Ranks of a timeline. Each is read a second time, and a person looks at no more.
MAX_RANKS = 64
# Bars of a lane. A screen cannot show more.
MAX_BARS = 560


class Pieces(Struct, frozen=True):
    """Disjoint pieces of time in order, each with its operations."""

    # Of each piece, ns.
    starts: Int64
    ends: Int64
    # Of each operation with a part in the window: its piece, the code of its name, the length of
    # that part, and its row of `collectives`.
    owner: Int64
    names: Int64
    lengths: Int64
    seqs: Int64


def merged_pieces(starts: Int64, ends: Int64, names: Int64, window: tuple[int, int]) -> Pieces:
    """Merge operations that overlap into one piece. Those that only touch stay apart."""
    clipped = _clip(starts, ends, window)
    opens = clipped.starts >= clipped.reached
    first = np.flatnonzero(opens)
    ends_of_pieces = np.maximum.reduceat(clipped.ends, first)
    return Pieces(
        starts=clipped.starts[first],
        ends=ends_of_pieces,
        owner=np.cumsum(opens) - 1,
        names=names[clipped.rows],
        lengths=clipped.ends - clipped.starts,
        seqs=np.full(clipped.rows.size, NO_SEQ),
    )


def painted_pieces(
    starts: Int64, ends: Int64, names: Int64, seqs: Int64, window: tuple[int, int]
) -> Pieces:
    """Give each time to the operation that begins first; of equal ones the longest.

    An operation inside earlier ones counts in their piece.
    """
    clipped = _clip(starts, ends, window)
    is_seen = clipped.ends > clipped.reached
    first = np.maximum(clipped.starts, clipped.reached)[is_seen]
    owner = np.searchsorted(first, clipped.starts, side="right") - 1
    owner[is_seen] = np.arange(first.size)
    return Pieces(
        starts=first,
        ends=clipped.ends[is_seen],
        owner=owner,
        names=names[clipped.rows],
        lengths=clipped.ends - clipped.starts,
        seqs=seqs[clipped.rows],
    )


def pieces_outside(pieces: Pieces, busy: IntervalSet) -> Pieces:
    """Return what `busy` leaves of painted pieces.

    Each part counts as one operation: the one that its piece belongs to.
    """
    parts = IntervalSet(pieces.starts, pieces.ends).without(busy)
    # The operation that a piece belongs to comes before those that only count in it.
    operations = np.unique(pieces.owner, return_index=True)[1]
    rows = operations[np.searchsorted(pieces.starts, parts.starts, side="right") - 1]
    return Pieces(
        starts=parts.starts,
        ends=parts.ends,
        owner=np.arange(len(parts)),
        names=pieces.names[rows],
        lengths=parts.ends - parts.starts,
        seqs=pieces.seqs[rows],
    )


class _Clipped(NamedTuple):
    """The parts of operations in a window, by (start, longest first)."""

    rows: Int64
    starts: Int64
    ends: Int64
    reached: Int64  # the last end of all before


def _clip(starts: Int64, ends: Int64, window: tuple[int, int]) -> _Clipped:
    order = np.lexsort((-ends, starts))
    part_starts = np.maximum(starts[order], window[0])
    part_ends = np.minimum(ends[order], window[1])
    is_inside = part_ends > part_starts
    part_ends = part_ends[is_inside]
    reached = np.maximum.accumulate(np.append(window[0], part_ends))[:-1]
    return _Clipped(order[is_inside], part_starts[is_inside], part_ends, reached)


def joined(pieces: Pieces, max_bars: int) -> Bars:
    """Join neighboring pieces until few enough are left.

    Those with the smallest gap are joined first, of equal gaps the earliest. A bar has the name of
    the operations with most time (of equal ones the lowest code), and the seq of its only
    operation.
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
    return {
        "start_ns": starts[first],
        "end_ns": np.maximum.reduceat(ends, first),
        "busy_ns": np.add.reduceat(ends - starts, first),
    }


def joins(starts: Int64, ends: Int64, max_bars: int) -> Int64:
    """Return the bar of each piece, from 0, in order of start.

    Gaps count from the last end of all pieces before, and may be negative.
    """
    if starts.size <= max_bars:
        return np.arange(starts.size)
    gaps = starts[1:] - np.maximum.accumulate(ends)[:-1]
    is_open = np.ones(starts.size, np.bool_)
    smallest_gaps = np.argsort(gaps, kind="stable")[: starts.size - max_bars]
    is_open[1 + smallest_gaps] = False
    return np.cumsum(is_open) - 1


def longest_names(owner: Int64, names: Int64, lengths: Int64) -> Int64:
    """Return the name of each owner with the largest sum of lengths, then the lowest code."""
    width = int(names.max(initial=0)) + 1
    keys, index = np.unique(owner * width + names, return_inverse=True)
    owner_of_key = keys // width
    sums = sums_of(index, lengths, keys.size)
    order = np.lexsort((keys, -sums, owner_of_key))
    first_of_owner = order[run_starts(owner_of_key[order])]
    longest: Int64 = keys[first_of_owner] % width
    return longest


def _times(table: pa.Table) -> tuple[Int64, Int64]:
    return table["start_ns"].to_numpy(), table["end_ns"].to_numpy()


def _of_category(events: pa.Table, category: str) -> pa.Table:
    return events.filter(pc.equal(events["category"], category))


def coded(column: pa.ChunkedArray) -> tuple[Int64, pa.Array]:
    """Return a code for each text, and the text of each code, in alphabetical order, null last."""
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
    """Return the lanes ``comm``, ``exposed`` and ``wait`` of one rank, as bars and texts of names.

    Sums are of the operations before bars are joined. If the step has no ``wait_ns``, the bars of
    ``comm`` have none. `events` and `waiting` are rows of `schema.EVENTS` and matched rows of
    `schema.COLLECTIVES`.
    """
    comm_events = _of_category(events, "comm")
    codes, names = coded(comm_events["collective"])
    seqs = pc.fill_null(comm_events["seq"], NO_SEQ).to_numpy()
    comm = painted_pieces(*_times(comm_events), codes, seqs, window)
    compute = union(*_times(_of_category(events, "compute")))
    starts, ends = _times(waiting)
    until = waited_until(starts, ends, waiting["wait_ns"].to_numpy())
    codes, wait_names = coded(waiting["collective"])
    waits = painted_pieces(starts, until, codes, waiting["seq"].to_numpy(), window)
    # Bars of communication do not overlap, so all communication inside a bar is its own.
    bars = joined(comm, max_bars)
    times = union(comm.starts, comm.ends)
    bars["exposed_ns"] = exposed_comm(times, compute).lengths(bars["start_ns"], bars["end_ns"])
    if is_wait_known:
        waiting_times = union(waits.starts, waits.ends).intersect(times)
        bars["wait_ns"] = waiting_times.lengths(bars["start_ns"], bars["end_ns"])
    exposed = joined(pieces_outside(comm, compute), max_bars)
    return {
        "comm": (bars, names),
        "exposed": (exposed, names),
        "wait": (joined(waits, max_bars), wait_names),
    }


def representative_step(steps: pa.Table) -> int | None:
    """Return the step whose time is closest to the median; of equally close steps the lowest.

    The time of a step is its longest window over ranks. The step is one of the summary steps, else
    one that all ranks have, else any. None without any window.
    """
    step = steps["step"].to_numpy()
    rank = steps["rank"].to_numpy()
    numbers, index = np.unique(step, return_inverse=True)
    walls = np.zeros(numbers.size, np.int64)
    wall_ns = steps["end_ns"].to_numpy() - steps["start_ns"].to_numpy()
    np.maximum.at(walls, index, wall_ns)
    in_summary = np.isin(numbers, step[steps["in_summary"].to_numpy()])
    is_shared = np.bincount(index, minlength=numbers.size) == np.unique(rank).size
    for chosen in (in_summary, is_shared, np.ones(numbers.size, np.bool_)):
        if chosen.any():
            ordered = np.sort(walls[chosen])
            twice_median = ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]
            twice_distance = np.abs(2 * walls[chosen] - twice_median)
            return int(numbers[chosen][twice_distance.argmin()])
    return None


def drawn_ranks(steps: pa.Table, step: int, telling: Iterable[int]) -> list[int]:
    """Return the ranks of the timeline of a step, sorted, at most `MAX_RANKS`.

    These are the slowest rank of the step and `telling` ranks.
    """
    windows = steps.filter(pc.equal(steps["step"], step))
    ranks = list(telling)
    if windows.num_rows:
        lengths = pc.subtract(windows["end_ns"], windows["start_ns"])
        slowest = pc.index(lengths, pc.max(lengths)).as_py()
        ranks = [windows["rank"][slowest].as_py(), *ranks]
    return sorted(list(dict.fromkeys(ranks))[:MAX_RANKS])


def timeline(
    steps: pa.Table,
    collectives: pa.Table,
    operations: Iterable[schema.OfRank],
    step: int,
    max_bars: int = MAX_BARS,
) -> pa.Table:
    r"""Reduce one step to bars: `schema.TIMELINE`, sorted by rank, lane, start, end and name.

    The schema says what a lane holds. Communication and waiting are painted, other operations are
    merged. A lane has at most `max_bars`, at least 1. For each rank, the sums of ``busy_ns`` are
    ``compute_ns``, ``comm_ns``, ``exposed_comm_ns`` and, if known, ``wait_ns`` of the step, and
    \|P\| in the memory lane. The same holds for the sums of ``exposed_ns`` and ``wait_ns``. A rank
    without the step has no rows.

    `operations` has for each rank its number, `schema.EVENTS` and `schema.PHASE_RANGES`, with at
    least what overlaps the window.
    """
    windows = steps.filter(pc.equal(steps["step"], step))
    window_of_rank = {
        row["rank"]: row
        for row in windows.select(["rank", "start_ns", "end_ns", "wait_ns"]).to_pylist()
    }
    tables = [schema.TIMELINE.empty()]
    for rank, events, ranges in operations:
        row = window_of_rank.get(rank)
        if row is None:
            continue
        window = row["start_ns"], row["end_ns"]
        lanes = comm_lanes(
            events,
            _matched_collectives(collectives, rank),
            window,
            max_bars,
            is_wait_known=row["wait_ns"] is not None,
        )
        for category in ("compute", "memory"):
            lanes[category] = _merged_lane(events, category, window, max_bars)
        lanes["launch"] = _launch_lane(events, window, max_bars)
        lanes["phase"] = _phases(events, ranges, step, window, max_bars)
        for lane in sorted(lanes):
            bars, words = lanes[lane]
            tables.append(_table(step, rank, lane, bars, words))
    return pa.concat_tables(tables).combine_chunks()


def _matched_collectives(collectives: pa.Table, rank: int) -> pa.Table:
    is_of_rank = pc.equal(collectives["rank"], rank)
    is_matched = pc.is_valid(collectives["wait_ns"])
    columns = ["start_ns", "end_ns", "wait_ns", "collective", "seq"]
    return collectives.select(columns).filter(pc.and_(is_of_rank, is_matched))


def _merged_lane(
    events: pa.Table, category: str, window: tuple[int, int], max_bars: int
) -> tuple[Bars, pa.Array]:
    events = events.filter(pc.equal(events["category"], category))
    codes, words = coded(events["name"])
    return joined(merged_pieces(*_times(events), codes, window), max_bars), words


def _launch_lane(events: pa.Table, window: tuple[int, int], max_bars: int) -> tuple[Bars, pa.Array]:
    """Return the times from launch to start of operations that run in the window."""
    starts_before_end = pc.less(events["start_ns"], window[1])
    ends_after_start = pc.greater(events["end_ns"], window[0])
    is_queued = pc.less(events["launch_ns"], events["start_ns"])
    is_chosen = pc.and_(pc.and_(starts_before_end, ends_after_start), is_queued)
    queued = events.filter(is_chosen)
    codes, words = coded(queued["name"])
    launches = queued["launch_ns"].to_numpy()
    starts = queued["start_ns"].to_numpy()
    return joined(merged_pieces(launches, starts, codes, window), max_bars), words


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
    """Return the lane of phases: from the first to the last operation that each range launched."""
    has_run = pc.and_(pc.is_valid(ranges["phase"]), pc.is_valid(ranges["device_start_ns"]))
    ranges = ranges.filter(pc.and_(pc.equal(ranges["step"], step), has_run))
    codes, words = coded(ranges["phase"])
    starts = np.maximum(ranges["device_start_ns"].to_numpy(), window[0])
    ends = np.minimum(ranges["device_end_ns"].to_numpy(), window[1])
    order = np.lexsort((codes, ends, starts))
    order = order[ends[order] > starts[order]]
    codes = codes[order]
    starts = starts[order]
    ends = ends[order]
    ranges = ranges.take(pa.array(order))
    group = joins(starts, ends, max_bars)
    n_bars = run_starts(group).size
    bars = _bars(group, starts, ends)
    bars["busy_ns"] = _busy_times(events, ranges, group, n_bars, window)
    bars["n_operations"] = sums_of(group, ranges["n_operations"].to_numpy(), n_bars)
    bars["name"] = longest_names(group, codes, ends - starts)
    bars["seq"] = np.full(n_bars, NO_SEQ)
    return bars, words


def _busy_times(
    events: pa.Table, ranges: pa.Table, group: Int64, n_bars: int, window: tuple[int, int]
) -> Int64:
    """Return how long operations that the ranges of each bar launched run in the window, ns."""
    launched = events.select(["launch_ns", "start_ns", "end_ns"]).drop_null().sort_by("launch_ns")
    slices = Slices.within(launched["launch_ns"].to_numpy(), *_times(ranges))
    rows, owner = slices.rows()
    starts, ends = _times(launched)
    begins = np.clip(starts[rows], *window)
    finishes = np.clip(ends[rows], *window)
    return grouped_lengths(group[owner], begins, finishes, n_bars)
