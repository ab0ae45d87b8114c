"""The representative step, and its operations reduced to few bars that can be drawn."""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

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
from nsyspipe.model.typed_tables import (
    CollectivesTable,
    EventsTable,
    PhaseRangesTable,
    StepsRow,
    StepsTable,
)

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
    # Of each operation with a part in the window, in order of start: its piece, the code of its
    # name, the length of that part, and its row of `collectives`.
    piece: Int64
    names: Int64
    lengths: Int64
    seqs: Int64


def merged_pieces(starts: Int64, ends: Int64, names: Int64, window: tuple[int, int]) -> Pieces:
    """Merge operations that overlap into one piece. Those that only touch stay apart.

    `starts`, `ends` and `names` have an element per operation, in any order. Only the parts inside
    the window count.
    """
    clipped = _clip(starts, ends, window)
    begins_piece = clipped.starts >= clipped.previous_end
    first_of_piece = np.flatnonzero(begins_piece)
    n_begun = np.cumsum(begins_piece)
    piece_of_operation = n_begun - 1
    return Pieces(
        starts=clipped.starts[first_of_piece],
        ends=np.maximum.reduceat(clipped.ends, first_of_piece),
        piece=piece_of_operation,
        names=names[clipped.rows],
        lengths=clipped.lengths,
        seqs=np.full(piece_of_operation.size, NO_SEQ),
    )


def painted_pieces(
    starts: Int64, ends: Int64, names: Int64, seqs: Int64, window: tuple[int, int]
) -> Pieces:
    """Give each time to one operation, the one that begins first; of equal ones the longest.

    A piece is the time of one operation. It begins when all earlier operations have ended. An
    operation inside earlier ones has no piece of its own. Such an operation counts in the piece in
    which it begins.
    """
    clipped = _clip(starts, ends, window)
    has_piece = clipped.ends > clipped.previous_end
    own_start = np.maximum(clipped.starts, clipped.previous_end)
    starts_of_pieces = own_start[has_piece]
    # The number of the own piece of each operation, if it has one.
    n_pieces_so_far = np.cumsum(has_piece)
    own_piece = n_pieces_so_far - 1
    n_begun = np.searchsorted(starts_of_pieces, clipped.starts, side="right")
    piece_at_start = n_begun - 1
    return Pieces(
        starts=starts_of_pieces,
        ends=clipped.ends[has_piece],
        piece=np.where(has_piece, own_piece, piece_at_start),
        names=names[clipped.rows],
        lengths=clipped.lengths,
        seqs=seqs[clipped.rows],
    )


def pieces_outside(pieces: Pieces, busy: IntervalSet) -> Pieces:
    """Return the parts of painted pieces outside of `busy`, as pieces.

    Each part counts as one operation: the one to which the time of the original piece was given.
    """
    painted = IntervalSet(pieces.starts, pieces.ends)
    parts = painted.without(busy)
    # The first operation of each piece. All others begin inside the piece, and only count there.
    _, operation_of_piece = np.unique(pieces.piece, return_index=True)
    n_begun = np.searchsorted(pieces.starts, parts.starts, side="right")
    piece_of_part = n_begun - 1
    operation_of_part = operation_of_piece[piece_of_part]
    return Pieces(
        starts=parts.starts,
        ends=parts.ends,
        # Each part has one operation.
        piece=np.arange(operation_of_part.size),
        names=pieces.names[operation_of_part],
        lengths=parts.ends - parts.starts,
        seqs=pieces.seqs[operation_of_part],
    )


class _Clipped(NamedTuple):
    """The parts of operations in a window, by start. Of equal starts the longest is first."""

    rows: Int64  # of the operations
    starts: Int64
    ends: Int64
    previous_end: Int64  # the latest end of all parts before; the start of the window for the first

    @property
    def lengths(self) -> Int64:
        """Length of each part, ns."""
        return self.ends - self.starts


def _clip(starts: Int64, ends: Int64, window: tuple[int, int]) -> _Clipped:
    """Return the parts of operations in a window ``[first, last)``, without empty parts."""
    first, last = window
    # By start, then the longest first.
    order = np.lexsort((-ends, starts))
    part_starts = np.maximum(starts[order], first)
    part_ends = np.minimum(ends[order], last)
    is_in_window = part_ends > part_starts
    rows = order[is_in_window]
    part_starts = part_starts[is_in_window]
    part_ends = part_ends[is_in_window]
    # The latest end before each part, if there is any part. Before the first one, the start of the
    # window counts.
    ends_before = np.append(first, part_ends[:-1])
    previous_end = np.maximum.accumulate(ends_before)[: rows.size]
    return _Clipped(rows, part_starts, part_ends, previous_end)


def joined(pieces: Pieces, max_bars: int) -> Bars:
    """Join neighboring pieces to at most `max_bars` bars.

    Pieces with the smallest gap between them are joined first, of equal gaps the earliest. A bar
    has the name of the operations with most time, of equal names the lowest code. A bar with only
    one operation has the seq of the operation.
    """
    bar_of_piece = bars_of_pieces(pieces.starts, pieces.ends, max_bars)
    bar_of_operation = bar_of_piece[pieces.piece]
    n_bars = run_starts(bar_of_piece).size
    n_operations = np.bincount(bar_of_operation, minlength=n_bars)
    # If a bar has several operations, the last one overwrites the others. It is not used below.
    last_seq = np.full(n_bars, NO_SEQ)
    last_seq[bar_of_operation] = pieces.seqs
    seqs = np.where(n_operations == 1, last_seq, NO_SEQ)
    bars = _bars(bar_of_piece, pieces.starts, pieces.ends)
    bars["n_operations"] = n_operations
    bars["name"] = longest_names(bar_of_operation, pieces.names, pieces.lengths)
    bars["seq"] = seqs
    return bars


def _bars(bar_of_piece: Int64, starts: Int64, ends: Int64) -> Bars:
    """Return the first start, the last end, and the sum of the lengths of the pieces of each bar.

    Pieces are in order of bar.
    """
    first_piece = run_starts(bar_of_piece)
    first_starts = starts[first_piece]
    last_ends = np.maximum.reduceat(ends, first_piece)
    lengths = ends - starts
    busy_ns = np.add.reduceat(lengths, first_piece)
    return {"start_ns": first_starts, "end_ns": last_ends, "busy_ns": busy_ns}


def bars_of_pieces(starts: Int64, ends: Int64, max_bars: int) -> Int64:
    """Return the number of the bar of each piece, from 0. Pieces are in order of start.

    If there are more pieces than `max_bars`, neighbors are joined to one bar, first those with the
    smallest gaps. A gap lasts from the latest end of all pieces before to the start of a piece. It
    is negative if pieces overlap, so these are joined first.
    """
    n_pieces = starts.size
    if n_pieces <= max_bars:
        return np.arange(n_pieces)
    latest_end = np.maximum.accumulate(ends)
    gaps = starts[1:] - latest_end[:-1]
    smallest_first = np.argsort(gaps, kind="stable")
    n_joined = n_pieces - max_bars
    joined_gaps = smallest_first[:n_joined]
    # A gap has the index of the piece before it.
    pieces_behind = joined_gaps + 1
    begins_bar = np.ones(n_pieces, np.bool_)
    begins_bar[pieces_behind] = False
    n_begun = np.cumsum(begins_bar)
    return n_begun - 1


def longest_names(owner: Int64, names: Int64, lengths: Int64) -> Int64:
    """Return for each owner the name with the largest sum of lengths; of equal ones the lowest.

    `owner`, `names` and `lengths` have an element per operation.
    """
    n_names = int(names.max(initial=0)) + 1
    # A key is an owner and a name.
    key_of_operation = owner * n_names + names
    keys, operation_key = np.unique(key_of_operation, return_inverse=True)
    owner_of_key, name_of_key = np.divmod(keys, n_names)
    length_of_key = sums_of(operation_key, lengths, keys.size)
    # By owner, then the largest sum first, then the lowest name.
    order = np.lexsort((keys, -length_of_key, owner_of_key))
    first_of_owner = run_starts(owner_of_key[order])
    longest: Int64 = name_of_key[order[first_of_owner]]
    return longest


class _Times(NamedTuple):
    """When rows of a table start and end, ns."""

    starts: Int64
    ends: Int64


def _times(table: pa.Table) -> _Times:
    starts = table["start_ns"].to_numpy()
    ends = table["end_ns"].to_numpy()
    return _Times(starts, ends)


def _of_category(events: EventsTable, category: str) -> pa.Table:
    is_of_category = pc.equal(events["category"], category)
    return events.filter(is_of_category)


def coded(column: pa.ChunkedArray) -> tuple[Int64, pa.Array]:
    """Return a code for each text, and the text of each code, in alphabetical order, null last."""
    texts = column.cast(pa.string())
    words = pc.unique(texts).drop_null().sort()
    null = pa.nulls(1, pa.string())
    words_and_null = pa.concat_arrays([words, null])
    code_of_null = len(words)
    places = pc.index_in(texts, value_set=words)
    places = pc.fill_null(places, code_of_null)
    codes = places.to_numpy().astype(np.int64)
    return codes, words_and_null


def _painted_comm(events: EventsTable, window: tuple[int, int]) -> tuple[Pieces, pa.Array]:
    """Return the pieces of communication, and the text of each code of their names."""
    codes, names = coded(events["collective"])
    known_seqs = pc.fill_null(events["seq"], NO_SEQ)
    seqs = known_seqs.to_numpy()
    starts, ends = _times(events)
    pieces = painted_pieces(starts, ends, codes, seqs, window)
    return pieces, names


def _painted_waits(waiting: CollectivesTable, window: tuple[int, int]) -> tuple[Pieces, pa.Array]:
    """Return the pieces of wait time, and the text of each code of their names."""
    codes, names = coded(waiting["collective"])
    seqs = waiting["seq"].to_numpy()
    wait_ns = waiting["wait_ns"].to_numpy()
    starts, ends = _times(waiting)
    until = waited_until(starts, ends, wait_ns)
    pieces = painted_pieces(starts, until, codes, seqs, window)
    return pieces, names


def comm_lanes(
    events: EventsTable,
    waiting: pa.Table,
    window: tuple[int, int],
    max_bars: int,
    *,
    is_wait_known: bool,
) -> dict[str, tuple[Bars, pa.Array]]:
    """Return the lanes ``comm``, ``exposed`` and ``wait`` of one rank.

    Each lane is its bars, and the text of each code of their names. The times of a bar are sums of
    its operations, so joining loses none. If the step has no ``wait_ns``, the bars of ``comm`` have
    none. `events` and `waiting` are rows of `schema.EVENTS` and matched rows of
    `schema.COLLECTIVES`.
    """
    comm, names = _painted_comm(_of_category(events, "comm"), window)
    waits, wait_names = _painted_waits(waiting, window)
    compute_times = _times(_of_category(events, "compute"))
    compute = union(compute_times.starts, compute_times.ends)
    comm_times = union(comm.starts, comm.ends)
    exposed_times = exposed_comm(comm_times, compute)
    # Bars of communication do not overlap, so all communication inside a bar is its own.
    bars = joined(comm, max_bars)
    bar_starts = bars["start_ns"]
    bar_ends = bars["end_ns"]
    bars["exposed_ns"] = exposed_times.lengths(bar_starts, bar_ends)
    if is_wait_known:
        waiting_times = union(waits.starts, waits.ends).intersect(comm_times)
        bars["wait_ns"] = waiting_times.lengths(bar_starts, bar_ends)
    exposed = pieces_outside(comm, compute)
    exposed_bars = joined(exposed, max_bars)
    wait_bars = joined(waits, max_bars)
    return {
        "comm": (bars, names),
        "exposed": (exposed_bars, names),
        "wait": (wait_bars, wait_names),
    }


def _closest_to_median(values: Int64) -> int:
    """Return the place of the value that is closest to the median, the first of equal ones."""
    sorted_values = np.sort(values)
    # Both are the same place if the number of values is odd.
    upper_middle = values.size // 2
    lower_middle = (values.size - 1) // 2
    # Doubled, so that a median between two values is an integer too.
    twice_median = sorted_values[lower_middle] + sorted_values[upper_middle]
    difference = 2 * values - twice_median
    twice_distance = np.abs(difference)
    return int(twice_distance.argmin())


def representative_step(steps: StepsTable) -> int | None:
    """Return the step whose time is closest to the median; of equally close steps the lowest.

    The time of a step is its longest window over ranks. Of three groups of steps, the first one
    that is not empty is chosen from: summary steps, steps that all ranks have, and all steps. None
    without any window.
    """
    step_of_window = steps["step"].to_numpy()
    starts, ends = _times(steps)
    numbers, place_of_window = np.unique(step_of_window, return_inverse=True)
    wall_ns = np.zeros(numbers.size, np.int64)
    np.maximum.at(wall_ns, place_of_window, ends - starts)
    n_ranks = pc.count_distinct(steps["rank"]).as_py()
    n_ranks_of_step = np.bincount(place_of_window, minlength=numbers.size)
    is_on_all_ranks = n_ranks_of_step == n_ranks
    in_summary = steps["in_summary"].to_numpy()
    is_summary_step = np.isin(numbers, step_of_window[in_summary])
    is_any_step = np.ones(numbers.size, np.bool_)
    for is_candidate in (is_summary_step, is_on_all_ranks, is_any_step):
        if is_candidate.any():
            place = _closest_to_median(wall_ns[is_candidate])
            candidates = numbers[is_candidate]
            return int(candidates[place])
    # There is no step at all.
    return None


def drawn_ranks(steps: StepsTable, step: int, telling: Iterable[int]) -> list[int]:
    """Return the ranks of the timeline of a step, sorted, at most `MAX_RANKS`.

    These are the slowest rank of the step, and then the `telling` ranks, the most telling first.
    """
    is_of_step = pc.equal(steps["step"], step)
    windows = steps.filter(is_of_step)
    ranks = list(telling)
    if windows.num_rows:
        lengths = pc.subtract(windows["end_ns"], windows["start_ns"])
        longest = pc.max(lengths)
        row = pc.index(lengths, longest).as_py()
        slowest_rank = windows["rank"][row].as_py()
        ranks = [slowest_rank, *ranks]
    different_ranks = list(dict.fromkeys(ranks))
    return sorted(different_ranks[:MAX_RANKS])


def timeline(
    steps: StepsTable,
    collectives: CollectivesTable,
    operations: Iterable[schema.OfRank],
    step: int,
    max_bars: int = MAX_BARS,
) -> pa.Table:
    r"""Reduce one step to bars: `schema.TIMELINE`, sorted by rank, lane, start, end and name.

    The schema says what a lane holds. Communication and waiting are painted: each time belongs to
    one operation. Other operations are merged where they overlap. A lane has at most `max_bars`,
    which is at least 1. A rank without the step has no rows.

    Bars do not lose time. For each rank and lane, the sum of ``busy_ns`` is the time of the step in
    which an operation of the lane runs. For compute, this is ``compute_ns`` of the step. The sums
    of ``exposed_ns`` and ``wait_ns`` are those of the step too.

    `operations` has for each rank its number, `schema.EVENTS` and `schema.PHASE_RANGES`, with at
    least what overlaps the window.
    """
    windows = _windows_by_rank(steps, step)
    tables = [schema.TIMELINE.empty()]
    for rank, events, ranges in operations:
        row = windows.get(rank)
        if row is None:
            continue
        window = (row["start_ns"], row["end_ns"])
        waiting = _matched_collectives(collectives, rank)
        is_wait_known = row["wait_ns"] is not None
        lanes = comm_lanes(events, waiting, window, max_bars, is_wait_known=is_wait_known)
        for category in ("compute", "memory"):
            lanes[category] = _merged_lane(events, category, window, max_bars)
        lanes["launch"] = _launch_lane(events, window, max_bars)
        lanes["phase"] = _phases(events, ranges, step, window, max_bars)
        for lane in sorted(lanes):
            bars, words_of_codes = lanes[lane]
            table = _table_of_lane(step, rank, lane, bars, words_of_codes)
            tables.append(table)
    return pa.concat_tables(tables).combine_chunks()


def _windows_by_rank(steps: StepsTable, step: int) -> dict[int, StepsRow]:
    """Return the row of each rank in a step."""
    is_of_step = pc.equal(steps["step"], step)
    windows = steps.select(["rank", "start_ns", "end_ns", "wait_ns"])
    windows = windows.filter(is_of_step)
    return {row["rank"]: row for row in windows.to_pylist()}


def _matched_collectives(collectives: CollectivesTable, rank: int) -> pa.Table:
    """Return the collectives of a rank whose wait time is known."""
    is_of_rank = pc.equal(collectives["rank"], rank)
    is_matched = pc.is_valid(collectives["wait_ns"])
    is_wanted = pc.and_(is_of_rank, is_matched)
    columns = collectives.select(["start_ns", "end_ns", "wait_ns", "collective", "seq"])
    return columns.filter(is_wanted)


def _merged_lane(
    events: EventsTable, category: str, window: tuple[int, int], max_bars: int
) -> tuple[Bars, pa.Array]:
    """Return the bars of the operations of a category, and the text of each code of their names."""
    events = _of_category(events, category)
    codes, words = coded(events["name"])
    starts, ends = _times(events)
    pieces = merged_pieces(starts, ends, codes, window)
    bars = joined(pieces, max_bars)
    return bars, words


def _launch_lane(
    events: EventsTable, window: tuple[int, int], max_bars: int
) -> tuple[Bars, pa.Array]:
    """Return the times from launch to start of operations that run in the window.

    The times are bars. The second result is the text of each code of their names.
    """
    first, last = window
    starts_before_end = pc.less(events["start_ns"], last)
    ends_after_start = pc.greater(events["end_ns"], first)
    is_in_window = pc.and_(starts_before_end, ends_after_start)
    is_queued = pc.less(events["launch_ns"], events["start_ns"])
    is_wanted = pc.and_(is_in_window, is_queued)
    queued = events.filter(is_wanted)
    codes, words = coded(queued["name"])
    launches = queued["launch_ns"].to_numpy()
    starts = queued["start_ns"].to_numpy()
    pieces = merged_pieces(launches, starts, codes, window)
    bars = joined(pieces, max_bars)
    return bars, words


def _table_of_lane(
    step: int, rank: int, lane: str, bars: Bars, words_of_codes: pa.Array
) -> pa.Table:
    """Return `schema.TIMELINE` of one lane. Only bars of communication have all columns."""
    n_bars = bars["start_ns"].size
    null = pa.nulls(n_bars, pa.int64())
    columns: dict[str, Any] = {**bars}
    columns.setdefault("exposed_ns", null)
    columns.setdefault("wait_ns", null)
    has_no_seq = bars["seq"] == NO_SEQ
    columns["seq"] = pa.array(bars["seq"], mask=has_no_seq)
    columns["name"] = words_of_codes.take(bars["name"])
    columns["step"] = [step] * n_bars
    columns["rank"] = [rank] * n_bars
    columns["lane"] = [lane] * n_bars
    return schema.TIMELINE.table(columns)


def _phases(
    events: EventsTable, ranges: PhaseRangesTable, step: int, window: tuple[int, int], max_bars: int
) -> tuple[Bars, pa.Array]:
    """Return the lane of phases: from the first to the last operation that each range launched.

    The lane is its bars, and the text of each code of their names.
    """
    first, last = window
    ranges = _phases_that_ran(ranges, step)
    codes, words = coded(ranges["phase"])
    starts = np.maximum(ranges["device_start_ns"].to_numpy(), first)
    ends = np.minimum(ranges["device_end_ns"].to_numpy(), last)
    by_start = np.lexsort((codes, ends, starts))
    is_in_window = ends > starts
    rows = by_start[is_in_window[by_start]]
    ranges = ranges.take(rows)
    codes = codes[rows]
    starts = starts[rows]
    ends = ends[rows]
    bar_of_range = bars_of_pieces(starts, ends, max_bars)
    n_bars = run_starts(bar_of_range).size
    n_operations = ranges["n_operations"].to_numpy()
    bars = _bars(bar_of_range, starts, ends)
    # Operations of the ranges of a bar may overlap, and the device may pause between them.
    bars["busy_ns"] = _busy_times(events, ranges, bar_of_range, n_bars, window)
    bars["n_operations"] = sums_of(bar_of_range, n_operations, n_bars)
    bars["name"] = longest_names(bar_of_range, codes, ends - starts)
    bars["seq"] = np.full(n_bars, NO_SEQ)
    return bars, words


def _phases_that_ran(ranges: PhaseRangesTable, step: int) -> pa.Table:
    """Return the phases of a step that launched an operation."""
    is_of_step = pc.equal(ranges["step"], step)
    is_phase = pc.is_valid(ranges["phase"])
    has_run = pc.is_valid(ranges["device_start_ns"])
    is_wanted = pc.and_(is_of_step, is_phase)
    is_wanted = pc.and_(is_wanted, has_run)
    return ranges.filter(is_wanted)


def _busy_times(
    events: EventsTable,
    ranges: PhaseRangesTable,
    bar_of_range: Int64,
    n_bars: int,
    window: tuple[int, int],
) -> Int64:
    """Return for each bar how long the operations of its ranges run in the window, ns.

    The operations of a range are those that it launched.
    """
    launched = events.select(["launch_ns", "start_ns", "end_ns"]).drop_null()
    launched = launched.sort_by("launch_ns")
    launches = launched["launch_ns"].to_numpy()
    host = _times(ranges)
    slices = Slices.within(launches, host.starts, host.ends)
    operations, range_of_operation = slices.rows()
    starts, ends = _times(launched)
    starts_in_window = np.clip(starts[operations], *window)
    ends_in_window = np.clip(ends[operations], *window)
    bar_of_operation = bar_of_range[range_of_operation]
    return grouped_lengths(bar_of_operation, starts_in_window, ends_in_window, n_bars)
