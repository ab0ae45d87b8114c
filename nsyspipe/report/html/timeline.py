"""The timeline of one step on a page: bars by rank and lane, and the same as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model.typed_tables import (
    StepsTable,
    TimelineTable,
)
from nsyspipe.report.blocks import Field, Table, table_of
from nsyspipe.report.run import LOOP, table_note
from nsyspipe.report.units import absent, in_one_unit, ms_text
from nsyspipe.run.rank_names import RankNames

# Lanes of a rank, from top to bottom.
_LANES = (
    "phase",
    "launch",
    "compute",
    "comm",
    "exposed",
    "wait",
    "memory",
)
# The lane ``compute`` of a rank on which some kernels may be communication.
_UNTOLD = "untold"
# More bars take longer to draw than to understand, and each costs some 25 bytes.
MOST_BARS = 22_400
IS_PAINTED = (
    "Short operations are merged into one bar, and a fainter bar is less busy. If colors share "
    "a pixel, each shows as often as "
    "its share. Point at a bar for its name and its times."
)
# The scripts' number for a value that is not known.
_NOT_KNOWN = -1
# A shorter time without compute, as a share of the step, does not explain the length of the step.
MIN_GAP_SHARE_OF_STEP = 0.01
# Lane, or what is drawn of communication; its category of the palette, and words.
_LEGEND = (
    ("compute", "compute", "compute"),
    (_UNTOLD, _UNTOLD, "kernels"),
    ("hidden", "hidden", "overlapped communication"),
    ("exposed", "exposed", "exposed communication"),
    ("wait", "waiting", "wait time"),
    ("transfer", "transfer", "transfer time"),
    ("memory", "copies", "copies"),
    ("launch", "launch", "launch queue"),
)


class _BusyColumn(NamedTuple):
    """A column of the table, with how long a lane is busy."""

    heading: str
    lane: str
    # The column of `steps` that is null where the lane was not recorded.
    step_column: str
    is_communication: bool = True


_BUSY_COLUMNS = (
    _BusyColumn("compute", "compute", "compute_ns", is_communication=False),
    _BusyColumn("total comm", "comm", "comm_ns"),
    _BusyColumn("exposed comm", "exposed", "exposed_comm_ns"),
    _BusyColumn("wait", "wait", "wait_ns"),
    _BusyColumn("copies", "memory", "exposed_memory_ns", is_communication=False),
)


class _StepWindow(NamedTuple):
    """The step on one rank."""

    start_ns: int
    end_ns: int
    # Whether it is known which kernels are compute.
    is_compute_known: bool

    @property
    def length_ns(self) -> int:
        """How long the step takes on the rank."""
        return self.end_ns - self.start_ns


def timeline_data(
    timeline: TimelineTable, steps: StepsTable, first: list[int], listed: list[int]
) -> dict[str, Any] | None:
    """Return the data of the bars of one step; None if `timeline` has no bars.

    The bars are of the `first` ranks, and of as many of the `listed` ranks as there is room for.
    All times are in ns since the start of the step on the first rank.

    Keys of the data:

    - ``step``: the number of the step, and ``end``: its end on the last rank.
    - ``names``: texts, which bars name by their place.
    - ``ranks``: an entry per drawn rank, sorted by rank, see `_rank_data`. ``isFirst`` tells
      whether it is one of the `first` ranks.
    - ``stretch``: the longest gap between compute on the slowest drawn rank, see `_longest_gap`.
    - ``n_ranks``: how many ranks have bars, and ``n_shown``: how many of these are `first`.
    """
    if not timeline.num_rows:
        return None
    step = timeline["step"][0].as_py()
    windows = _step_windows(steps.filter(pc.field("step") == step))
    start_ns = min(window.start_ns for window in windows.values())
    end_ns = max(window.end_ns for window in windows.values())
    n_bars_by_rank = _n_bars_by_rank(timeline)
    first_with_bars = [rank for rank in first if rank in n_bars_by_rank]
    further_ranks = [rank for rank in listed if rank in n_bars_by_rank and rank not in first]
    ranks = _fitting_ranks(first_with_bars, further_ranks, n_bars_by_rank)
    bars = timeline.filter(pc.field("rank").isin(ranks))
    # In the bars, the place of a name among the distinct names replaces the name.
    names = bars["name"].combine_chunks().dictionary_encode()
    bars = bars.set_column(bars.column_names.index("name"), "name", names.indices)
    slowest_rank = max(ranks, key=lambda rank: windows[rank].length_ns)
    rank_entries = [_rank_data(bars, rank, windows[rank], start_ns) for rank in ranks]
    for entry in rank_entries:
        entry["isFirst"] = entry["rank"] in first
    return {
        "step": step,
        "end": end_ns - start_ns,
        "stretch": _longest_gap(bars, slowest_rank, windows[slowest_rank], start_ns),
        "n_ranks": len(n_bars_by_rank),
        "n_shown": len(first_with_bars),
        "names": names.dictionary.to_pylist(),
        "ranks": rank_entries,
    }


def _n_bars_by_rank(timeline: TimelineTable) -> dict[int, int]:
    """Return how many bars each rank has in a timeline."""
    counts = pc.value_counts(timeline["rank"])
    rows = counts.to_pylist()
    return {row["values"]: row["counts"] for row in rows}


def _step_windows(steps: StepsTable) -> dict[int, _StepWindow]:
    """Return the windows of one step by rank."""
    rows = steps.select(["rank", "start_ns", "end_ns", "compute_ns"]).to_pylist()
    windows = {}
    for row in rows:
        is_compute_known = row["compute_ns"] is not None
        windows[row["rank"]] = _StepWindow(row["start_ns"], row["end_ns"], is_compute_known)
    return windows


def _fitting_ranks(
    first: Sequence[int], listed: Sequence[int], n_bars_by_rank: Mapping[int, int]
) -> list[int]:
    """Return all `first` ranks, and as many `listed` ones as `MOST_BARS` has room for, sorted."""
    ranks = [*first, *listed]
    n_bars_of_ranks = [n_bars_by_rank[rank] for rank in ranks]
    # Of each rank: the bars up to and with this rank.
    n_bars_so_far = np.cumsum(n_bars_of_ranks)
    n_fitting = int(np.count_nonzero(n_bars_so_far <= MOST_BARS))
    n_drawn = max(n_fitting, len(first))
    return sorted(ranks[:n_drawn])


def _rank_data(
    timeline: TimelineTable, rank: int, window: _StepWindow, start_ns: int
) -> dict[str, Any]:
    """Return ``rank``, ``window`` and ``lanes`` of a rank, in times since `start_ns`.

    The window is the start and the end of the step. The lanes are results of `_bars` by the name of
    the lane. Lanes without bars are left out. If it is not known which kernels are compute, the
    lane ``compute`` has the name ``untold``, as in the palette.
    """
    is_of_rank = pc.field("rank") == rank
    bars_of_rank = timeline.filter(is_of_rank)
    lanes = {}
    for lane in _LANES:
        is_in_lane = pc.field("lane") == lane
        bars = bars_of_rank.filter(is_in_lane)
        if bars.num_rows:
            is_untold = lane == "compute" and not window.is_compute_known
            name = _UNTOLD if is_untold else lane
            lanes[name] = _bars(bars, start_ns)
    start_and_end = [window.start_ns - start_ns, window.end_ns - start_ns]
    return {"rank": rank, "window": start_and_end, "lanes": lanes}


def n_bars(data: Mapping[str, Any]) -> int:
    """Return how many bars the data hold, which tells how large a page gets."""
    n_bars_of_ranks = map(_n_bars_of_rank, data["ranks"])
    return sum(n_bars_of_ranks)


def _n_bars_of_rank(rank: Mapping[str, Any]) -> int:
    lanes = rank["lanes"].values()
    return sum(len(bars["start"]) for bars in lanes)


def _longest_gap(
    timeline: TimelineTable, rank: int, window: _StepWindow, start_ns: int
) -> dict[str, int] | None:
    """Return ``rank``, ``start`` and ``end`` of the longest gap between compute in a window.

    The times are since `start_ns`. No gap that matters is inside of a bar, because bars only join
    operations that are close to each other. The result is None if the longest gap is too short to
    matter, or if it is not known which kernels are compute.
    """
    if not window.is_compute_known:
        return None
    is_of_rank = pc.field("rank") == rank
    is_compute = pc.field("lane") == "compute"
    compute = timeline.filter(is_of_rank & is_compute)
    if not compute.num_rows:
        return None
    # The first gap begins with the window, and the last one ends with it. The bars are in order.
    gap_starts_ns = np.append(window.start_ns, compute["end_ns"].to_numpy())
    gap_ends_ns = np.append(compute["start_ns"].to_numpy(), window.end_ns)
    gaps_ns = gap_ends_ns - gap_starts_ns
    longest = int(np.argmax(gaps_ns))
    min_gap_ns = MIN_GAP_SHARE_OF_STEP * window.length_ns
    if gaps_ns[longest] <= min_gap_ns:
        return None
    gap_start_ns = int(gap_starts_ns[longest])
    gap_end_ns = int(gap_ends_ns[longest])
    return {"rank": rank, "start": gap_start_ns - start_ns, "end": gap_end_ns - start_ns}


def _bars(rows: TimelineTable, start_ns: int) -> dict[str, list[int]]:
    """Return the columns of the bars of a lane, in times since `start_ns`.

    A bar may join several operations and the gaps between them. Every lane has:

    - ``start`` and ``length`` of each bar.
    - ``name``: a place among names, -1 for no name.

    A lane has these columns only if they add something:

    - ``busy``: the time without gaps, unless it is the length of all bars.
    - ``n``: the number of operations, unless it is 1 for all bars.
    - ``seq``: the place of a collective, or -1, unless it is -1 for all bars.
    - ``exposed`` and ``wait``: times, if they are known.
    """
    starts_ns = rows["start_ns"].to_numpy()
    lengths_ns = rows["end_ns"].to_numpy() - starts_ns
    since_start_ns = starts_ns - start_ns
    names = _without_nulls(rows["name"])
    bars = {
        "start": since_start_ns.tolist(),
        "length": lengths_ns.tolist(),
        "name": names.tolist(),
    }
    busy_ns = _without_nulls(rows["busy_ns"])
    if (busy_ns != lengths_ns).any():
        bars["busy"] = busy_ns.tolist()
    n_operations = _without_nulls(rows["n_operations"])
    if (n_operations != 1).any():
        bars["n"] = n_operations.tolist()
    seq = _without_nulls(rows["seq"])
    if (seq != _NOT_KNOWN).any():
        bars["seq"] = seq.tolist()
    # Each is known of all bars of a lane, or of none.
    for name in ("exposed", "wait"):
        times_ns = rows.column(f"{name}_ns")
        if not times_ns.null_count:
            bars[name] = times_ns.to_pylist()
    return bars


def _without_nulls(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column with `_NOT_KNOWN` in place of nulls."""
    known = pc.fill_null(column, _NOT_KNOWN)
    return np.asarray(known.to_numpy())


def lane_legend(
    ranks: Sequence[Mapping[str, Any]], names: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Return what is drawn of any rank of a timeline: categories of the palette, and words.

    `ranks` and `names` are those of `timeline_data`. Without names, phases are left out.
    """
    drawn: set[str] = set()
    for rank in ranks:
        lanes = rank["lanes"]
        drawn |= lanes.keys()
        if "comm" in lanes:
            drawn |= _parts_of_comm(lanes["comm"])
    legend = [(category, words) for lane, category, words in _LEGEND if lane in drawn]
    phases = _phases(ranks, names) if names else set()
    legend += [(phase, f"{phase} phase") for phase in LOOP if phase in phases]
    return legend


def _parts_of_comm(bars: Mapping[str, Sequence[int]]) -> set[str]:
    """Return which of ``hidden`` and ``transfer`` take time in the bars of communication.

    Hidden communication is what is not exposed. Transfer time is what is not wait time.
    """
    # Without ``busy``, each bar is busy for its whole length.
    busy_ns = sum(bars.get("busy", bars["length"]))
    parts = set()
    exposed_ns = sum(bars.get("exposed", ()))
    if exposed_ns < busy_ns:
        parts.add("hidden")
    # Without ``wait``, wait time is not known, so that no transfer time is drawn.
    if "wait" in bars:
        wait_ns = sum(bars["wait"])
        if wait_ns < busy_ns:
            parts.add("transfer")
    return parts


def _phases(ranks: Sequence[Mapping[str, Any]], names: Sequence[str]) -> set[str]:
    """Return the names of the phases of any rank."""
    phases = set()
    for rank in ranks:
        lanes = rank["lanes"]
        if "phase" in lanes:
            places = lanes["phase"]["name"]
            phases |= {names[place] for place in places}
    return phases


def timeline_table(
    timeline: TimelineTable,
    steps: StepsTable,
    listed: Sequence[int] | None = None,
    *,
    is_capture: bool = False,
    names: RankNames | None = None,
    other_fields: Iterable[Field] = (),
) -> Table:
    """Return the table of a timeline, with a row per rank.

    The columns are the window of the step, how long each lane is busy, when each phase runs, and
    the `other_fields`. If `listed` is passed, only these ranks have a row. Times count from the
    first rank's start. A dash is what was not recorded. A phase that runs several times is shown
    from its first start to its last end.
    """
    is_drawn_step = pc.equal(steps["step"], timeline["step"][0])
    rows_of_step = steps.filter(is_drawn_step)
    start_ns = pc.min(rows_of_step["start_ns"]).as_py()
    rows = rows_of_step.to_pylist()
    if listed is not None:
        rows = [row for row in rows if row["rank"] in listed]
    whole = "capture" if is_capture else "step"
    names = names or RankNames()
    # Communication that is not known (None) has columns too.
    has_comm = any(row["comm_ns"] != 0 for row in rows)

    def window_text(row: Mapping[str, Any]) -> str:
        window_ns = (row["start_ns"], row["end_ns"])
        return _span_text(window_ns, start_ns)

    rank = Field("rank", lambda row: names.name(row["rank"]))
    window = Field(f"{whole}, from and to", window_text)
    busy = _busy_fields(timeline, has_comm=has_comm)
    phases = _phase_fields(timeline, start_ns)
    fields = [rank, window, *busy, *phases, *other_fields]
    note = table_note(len(rows), rows_of_step.num_rows)
    return table_of(f"Timeline of the {whole}, per rank", rows, fields, note)


def _busy_fields(timeline: TimelineTable, *, has_comm: bool) -> Iterator[Field]:
    """Yield the columns with how long each lane of a rank is busy."""
    by_lane = timeline.group_by(["rank", "lane"], use_threads=False)
    sums = by_lane.aggregate([("busy_ns", "sum")]).to_pylist()
    busy_ns_of_lane = {(row["rank"], row["lane"]): row["busy_ns_sum"] for row in sums}

    def busy_text(column: _BusyColumn, row: Mapping[str, Any]) -> str:
        if row[column.step_column] is None:
            return absent
        rank_and_lane = (row["rank"], column.lane)
        # A lane without bars is never busy.
        return ms_text(busy_ns_of_lane.get(rank_and_lane, 0))

    for column in _BUSY_COLUMNS:
        if has_comm or not column.is_communication:
            yield Field(column.heading, partial(busy_text, column))


def _phase_fields(timeline: TimelineTable, start_ns: int) -> Iterator[Field]:
    """Yield the columns with when each phase of a rank runs, in times since `start_ns`.

    The columns are in the order of the training loop.
    """
    is_phase = pc.equal(timeline["lane"], "phase")
    bars_of_phases = timeline.filter(is_phase)
    by_phase = bars_of_phases.group_by(["rank", "name"], use_threads=False)
    first_starts_and_last_ends = by_phase.aggregate([("start_ns", "min"), ("end_ns", "max")])
    span_ns_of_phase = {}
    for row in first_starts_and_last_ends.to_pylist():
        rank_and_phase = (row["rank"], row["name"])
        span_ns_of_phase[rank_and_phase] = (row["start_ns_min"], row["end_ns_max"])
    phases_of_any_rank = {phase for _, phase in span_ns_of_phase}

    def phase_text(phase: str, row: Mapping[str, Any]) -> str:
        rank_and_phase = (row["rank"], phase)
        span_ns = span_ns_of_phase.get(rank_and_phase)
        return absent if span_ns is None else _span_text(span_ns, start_ns)

    for phase in LOOP:
        if phase in phases_of_any_rank:
            yield Field(f"{phase}, from and to", partial(phase_text, phase))


def _span_text(span_ns: tuple[int, int], start_ns: int) -> str:
    """Return the two ends of a span in words, as times since a start."""
    texts = [ms_text(time_ns - start_ns) for time_ns in span_ns]
    times = in_one_unit(texts)
    return " \N{EN DASH} ".join(times)
