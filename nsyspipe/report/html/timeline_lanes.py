"""Lanes of hardware counters and of lines of Python in the timeline of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model.figures import COUNTER_LANES, COUNTERS, CounterLane
from nsyspipe.model.python_files import NOT_SEEN
from nsyspipe.model.typed_tables import (
    CounterBarsTable,
    LineBarsTable,
    StepsTable,
)
from nsyspipe.report.blocks import Field
from nsyspipe.report.units import absent

# Lines of Python that have a color of their own.
MAX_COLORED_LINES = 5
LINE = "line"
_OTHER_COLOR = "line-other"
_OTHER_LINES = (_OTHER_COLOR, "main thread at other lines")
_NOT_SEEN_LABEL = "not seen"
_COUNTED = ("counted", "hardware counters, 0 to 100%")
IS_COUNTED = (
    "The height of a counter is its mean over the time of the bar. A base line means that the "
    "counter was sampled there."
)
IS_SAMPLED = (
    "A sample of the main thread shows at which line of Python it was, not what delayed the GPU."
)


class LaneTables(NamedTuple):
    """What was sampled in the timeline of one step."""

    counters: CounterBarsTable
    lines: LineBarsTable


def _rows_of_rank(table: pa.Table, rank: int) -> pa.Table:
    is_of_rank = pc.equal(table["rank"], rank)
    return table.filter(is_of_rank)


def line_colors(steps: Sequence[LaneTables]) -> dict[str, str]:
    """Return the category of the palette of the lines with most time in some steps, by label."""
    total_ns: Counter[str] = Counter()
    for tables in steps:
        lengths_ns = pc.subtract(tables.lines["end_ns"], tables.lines["start_ns"])
        labels = _line_labels(tables.lines)
        for label, length_ns in zip(labels, lengths_ns.to_pylist(), strict=True):
            total_ns[label] += length_ns
    total_ns.pop(_NOT_SEEN_LABEL, None)
    # Of lines with equal time the first in the alphabet counts.
    labels = sorted(total_ns)
    labels.sort(key=total_ns.__getitem__, reverse=True)
    colors = {}
    for number, label in enumerate(labels[:MAX_COLORED_LINES], start=1):
        colors[label] = f"{LINE}-{number}"
    return colors


def _line_labels(lines: LineBarsTable) -> list[str]:
    numbers = pc.cast(lines["line"], pa.string())
    labels = pc.binary_join_element_wise(lines["file"], numbers, ":")
    is_not_seen = pc.equal(lines["file"], NOT_SEEN)
    shown_labels: list[str] = pc.if_else(is_not_seen, _NOT_SEEN_LABEL, labels).to_pylist()
    return shown_labels


def add_lanes(
    data: dict[str, Any], tables: LaneTables, steps: StepsTable, colors: Mapping[str, str]
) -> None:
    """Add lanes to what `timeline.timeline_data` returned.

    A rank with counters gets ``counted``: the columns ``start`` and ``length``, and ``values`` with
    the per cent of each counter. The data get ``counters``: the lanes of counters that any rank
    has. A rank with samples of Python gets the lane ``line``, whose bars also have ``samples``,
    ``function`` and ``color``, and the data get the names of lines.
    """
    is_of_step = pc.equal(steps["step"], data["step"])
    starts_ns = steps.filter(is_of_step)["start_ns"]
    start_ns = pc.min(starts_ns).as_py()
    names = data["names"]
    counted_names: set[str] = set()
    for rank in data["ranks"]:
        counters = _rows_of_rank(tables.counters, rank["rank"])
        if counters.num_rows:
            rank["counted"] = _counted(counters, start_ns)
            counted_names.update(rank["counted"]["values"])
        lines = _rows_of_rank(tables.lines, rank["rank"])
        if lines.num_rows:
            rank["lanes"][LINE] = _lines(lines, start_ns, names, colors)
    if counted_names:
        lanes = _lanes_of(counted_names)
        data["counters"] = [_described(lane) for lane in lanes]


def _lanes_of(names: set[str]) -> Iterator[CounterLane]:
    """Yield the lanes of which some counter was sampled."""
    for lane in COUNTER_LANES:
        names_of_lane = {counter.name for counter in lane.counters}
        if names & names_of_lane:
            yield lane


def _described(lane: CounterLane) -> dict[str, Any]:
    parts = [[counter.name, counter.label] for counter in lane.counters]
    return {"label": lane.label, "parts": parts, "isSum": lane.is_sum}


def _counted(counters: CounterBarsTable, start_ns: int) -> dict[str, Any]:
    values = {}
    for name in COUNTERS:
        column: pa.ChunkedArray = counters.column(f"{name}_percent")
        if column.null_count == len(column):
            continue
        rounded = pc.round(column, 1)
        values[name] = rounded.to_pylist()
    counted: dict[str, Any] = {"values": values}
    return counted | _places(counters, start_ns)


def _places(table: pa.Table, start_ns: int) -> dict[str, list[int]]:
    starts = pc.subtract(table["start_ns"], start_ns)
    lengths = pc.subtract(table["end_ns"], table["start_ns"])
    return {"start": starts.to_pylist(), "length": lengths.to_pylist()}


def _lines(
    lines: LineBarsTable, start_ns: int, names: list[str], colors: Mapping[str, str]
) -> dict[str, Any]:
    """Return the bars of a lane of lines. Their labels are added to `names`."""
    labels = _line_labels(lines)
    for label in labels:
        if label not in names:
            names.append(label)
    bars: dict[str, Any] = {}
    bars["name"] = [names.index(label) for label in labels]
    bars["function"] = lines["function"].to_pylist()
    bars["samples"] = lines["n_samples"].to_pylist()
    bars["color"] = [colors.get(label, _OTHER_COLOR) for label in labels]
    return bars | _places(lines, start_ns)


def lanes_legend(
    steps: Sequence[Mapping[str, Any]], colors: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return what is drawn of counters and lines in any step: categories, and words."""
    legend = []
    if any("counters" in step for step in steps):
        legend.append(_COUNTED)
    for label, color in colors.items():
        entry = (color, f"main thread at {label}")
        legend.append(entry)
    if any(map(_has_other_lines, steps)):
        legend.append(_OTHER_LINES)
    return legend


def _has_other_lines(step: Mapping[str, Any]) -> bool:
    """Tell whether any rank has a line without a color of its own."""
    for rank in step["ranks"]:
        line = rank["lanes"].get(LINE)
        if line and _OTHER_COLOR in line["color"]:
            return True
    return False


def lanes_hints(steps: Sequence[Mapping[str, Any]], colors: Mapping[str, str]) -> list[str]:
    """Return how to read the lanes that are drawn."""
    hints = []
    if any("counters" in step for step in steps):
        hints.append(IS_COUNTED)
    if colors:
        hints.append(IS_SAMPLED)
    return hints


def lane_fields(tables: LaneTables) -> Iterator[Field]:
    """Yield the columns of the table of a timeline: the mean of each counter on each rank."""
    counters = tables.counters
    ranks = counters["rank"].unique().to_pylist()
    rows_of_ranks = {rank: _rows_of_rank(counters, rank) for rank in ranks}
    for name, counter in COUNTERS.items():
        means = {}
        for rank, rows in rows_of_ranks.items():
            mean = _mean(rows, f"{name}_percent")
            if mean is not None:
                means[rank] = f"{mean:.1f}%"
        if means:
            yield Field(counter.label, partial(_mean_of_rank, means))


def _mean_of_rank(means: Mapping[int, str], row: Mapping[str, Any]) -> str:
    rank = row["rank"]
    return means.get(rank, absent)


def _mean(bars: pa.Table, column: str) -> float | None:
    """Return the mean of a counter over its bars, weighted by their sampled time."""
    known = bars.filter(pc.is_valid(bars[column]))
    sampled_ns = pc.sum(known["sampled_ns"]).as_py()
    if not sampled_ns:
        return None
    weights_ns = pc.cast(known["sampled_ns"], pa.float64())
    weighted = pc.multiply(known[column], weights_ns)
    total = pc.sum(weighted).as_py()
    return float(total / sampled_ns)
