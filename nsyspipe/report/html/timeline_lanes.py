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
    """Return a color for each of the `MAX_COLORED_LINES` lines with most time, by label.

    The time is the sum over all steps. A color is a category of the palette.
    """
    total_ns_of_label: Counter[str] = Counter()
    for tables in steps:
        lengths_ns = pc.subtract(tables.lines["end_ns"], tables.lines["start_ns"])
        labels = _line_labels(tables.lines)
        for label, length_ns in zip(labels, lengths_ns.to_pylist(), strict=True):
            total_ns_of_label[label] += length_ns
    # Samples that show no line have no color of their own.
    total_ns_of_label.pop(_NOT_SEEN_LABEL, None)
    alphabetical = sorted(total_ns_of_label)
    # The sort is stable, so lines with equal time stay in alphabetical order.
    most_time_first = sorted(alphabetical, key=total_ns_of_label.__getitem__, reverse=True)
    color_of_label = {}
    for number, label in enumerate(most_time_first[:MAX_COLORED_LINES], start=1):
        color_of_label[label] = f"{LINE}-{number}"
    return color_of_label


def _line_labels(lines: LineBarsTable) -> list[str]:
    """Return the label of each row: ``FILE:NUMBER``, or `_NOT_SEEN_LABEL`."""
    numbers = pc.cast(lines["line"], pa.string())
    labels = pc.binary_join_element_wise(lines["file"], numbers, ":")
    is_not_seen = pc.equal(lines["file"], NOT_SEEN)
    shown_labels: list[str] = pc.if_else(is_not_seen, _NOT_SEEN_LABEL, labels).to_pylist()
    return shown_labels


def add_lanes(
    data: dict[str, Any], tables: LaneTables, steps: StepsTable, colors: Mapping[str, str]
) -> None:
    """Add lanes of what was sampled to `data`, a result of `timeline.timeline_data`.

    A rank with samples of counters gets ``counted``: the columns ``start`` and ``length``, and
    ``values`` with the percent of each counter. If any rank gets ``counted``, `data` gets
    ``counters``: the lanes of the counters that were sampled.

    A rank with samples of Python gets the lane ``line``, see `_lines`. The labels of its lines are
    added to ``names`` of `data`.
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
        lanes = _lanes_of_counters(counted_names)
        data["counters"] = [_lane_data(lane) for lane in lanes]


def _lanes_of_counters(counted_names: set[str]) -> Iterator[CounterLane]:
    """Yield the lanes of which at least one counter was sampled."""
    for lane in COUNTER_LANES:
        names_of_lane = {counter.name for counter in lane.counters}
        if not counted_names.isdisjoint(names_of_lane):
            yield lane


def _lane_data(lane: CounterLane) -> dict[str, Any]:
    """Return what the scripts need of a lane. ``isSum`` is whether its counters are stacked."""
    parts = [[counter.name, counter.label] for counter in lane.counters]
    return {"label": lane.label, "parts": parts, "isSum": lane.is_sum}


def _counted(counters: CounterBarsTable, start_ns: int) -> dict[str, Any]:
    """Return the bars of the counters that have any value, in percent with one decimal."""
    values = {}
    for name in COUNTERS:
        column: pa.ChunkedArray = counters.column(f"{name}_percent")
        has_no_value = column.null_count == len(column)
        if has_no_value:
            continue
        rounded = pc.round(column, 1)
        values[name] = rounded.to_pylist()
    counted: dict[str, Any] = {"values": values}
    return counted | _starts_and_lengths(counters, start_ns)


def _starts_and_lengths(table: pa.Table, start_ns: int) -> dict[str, list[int]]:
    """Return the columns ``start``, since `start_ns`, and ``length`` of bars, in ns."""
    starts = pc.subtract(table["start_ns"], start_ns)
    lengths = pc.subtract(table["end_ns"], table["start_ns"])
    return {"start": starts.to_pylist(), "length": lengths.to_pylist()}


def _lines(
    lines: LineBarsTable, start_ns: int, names: list[str], colors: Mapping[str, str]
) -> dict[str, Any]:
    """Return the bars of a lane of lines of Python, in times since `start_ns`.

    The labels of the lines are added to `names`. ``name`` of a bar is the place of its label in
    `names`. Lines without a color of their own share a color.
    """
    labels = _line_labels(lines)
    for label in labels:
        if label not in names:
            names.append(label)
    bars: dict[str, Any] = {}
    bars["name"] = [names.index(label) for label in labels]
    bars["function"] = lines["function"].to_pylist()
    bars["samples"] = lines["n_samples"].to_pylist()
    bars["color"] = [colors.get(label, _OTHER_COLOR) for label in labels]
    return bars | _starts_and_lengths(lines, start_ns)


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
        if line is not None and _OTHER_COLOR in line["color"]:
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
    """Yield a column for each counter that any rank has: its mean over the step on each rank."""
    counters = tables.counters
    ranks = counters["rank"].unique().to_pylist()
    bars_of_ranks = {rank: _rows_of_rank(counters, rank) for rank in ranks}
    for name, counter in COUNTERS.items():
        text_of_rank = {}
        for rank, bars in bars_of_ranks.items():
            mean_percent = _mean(bars, f"{name}_percent")
            if mean_percent is not None:
                text_of_rank[rank] = f"{mean_percent:.1f}%"
        if text_of_rank:
            yield Field(counter.label, partial(_text_of_row, text_of_rank))


def _text_of_row(text_of_rank: Mapping[int, str], row: Mapping[str, Any]) -> str:
    """Return the text of the rank of a row."""
    rank = row["rank"]
    return text_of_rank.get(rank, absent)


def _mean(bars: pa.Table, column: str) -> float | None:
    """Return the mean of a column over bars, weighted by their sampled time; None without any."""
    known = bars.filter(pc.is_valid(bars[column]))
    total_sampled_ns = pc.sum(known["sampled_ns"]).as_py()  # Arrow's sum of no rows is null.
    if not total_sampled_ns:
        return None
    weights_ns = pc.cast(known["sampled_ns"], pa.float64())
    weighted_values = pc.multiply(known[column], weights_ns)
    weighted_sum = pc.sum(weighted_values).as_py()
    return float(weighted_sum / total_sampled_ns)
