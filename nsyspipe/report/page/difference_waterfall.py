"""From the baseline's mean step time to the candidate's, part by part: for a chart and a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nsyspipe.report.difference_words import part_rows
from nsyspipe.report.page.tables import Column, Table
from nsyspipe.units import absent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.difference.run_difference import RunDifference

__all__ = ["waterfall", "waterfall_table"]

# Name in words and colour of each part.
_PARTS = {
    "compute": ("compute", "compute"),
    "exposed_comm": ("exposed comm", "exposed"),
    "exposed_memory": ("exposed copies", "copies"),
    "idle": ("idle", "idle"),
}
_REST = "not split"
# A colour that stands for no part.
_NEUTRAL = "ink3"
# What changed has at least this share of the axis.
_LEAST_SHARE = 0.25


def waterfall(difference: RunDifference) -> dict[str, Any] | None:
    """Return the bars of the chart.

    Returns
    -------
    dict or None
        ``from``: where the axis begins, ns; above 0 where what changed could not be seen on a whole one. ``bars``: each
        with ``name``, ``category``, ``start`` and ``end`` (ns; those of a part are the sum so far without and with it),
        ``baseline``, ``candidate`` and ``delta``. The first is the baseline, the last the candidate, and between them
        every bar begins where the one before ends, exactly. A part that a side did not record is in the bar
        ``not split``. None where a side has no steps.
    """
    before, after, delta = difference.mean_step_time
    if before is None or after is None or delta is None:
        return None
    bars, at = [_whole("baseline", before)], before
    for name, category, row in _parts(difference):
        bars.append(_part(name, category, at, row))
        at = bars[-1]["end"]
    if at != after or difference.step_time_parts["delta_ns"].null_count:
        rest = {"baseline_ns": None, "candidate_ns": None, "delta_ns": after - at}
        bars.append(_part(_REST, _NEUTRAL, at, rest))
    bars.append(_whole("candidate", after))
    return {"from": _axis_start([bar["end"] for bar in bars]), "bars": bars}


def _whole(name: str, time: float) -> dict[str, Any]:
    sides = {"baseline": None, "candidate": None, "delta": None}
    return {"name": name, "category": _NEUTRAL, "start": 0.0, "end": time} | sides


def _part(name: str, category: str, at: float, row: Mapping[str, Any]) -> dict[str, Any]:
    sides = {side: row[f"{side}_ns"] for side in ("baseline", "candidate", "delta")}
    return {"name": name, "category": category, "start": at, "end": at + row["delta_ns"]} | sides


def _parts(difference: RunDifference) -> list[tuple[str, str, dict[str, Any]]]:
    """Return name, colour and row of each part that both sides recorded; idle by cause, if causes are known."""
    found = []
    for row in difference.step_time_parts.to_pylist():
        if row["delta_ns"] is None:
            continue
        name, category = _PARTS[row["part"]]
        causes = []
        if row["part"] == "idle":
            causes = [
                (f"idle: {one['cause']}", category, one)
                for one in difference.idle_causes.to_pylist()
                if one["baseline_ns"] or one["candidate_ns"]
            ]
        found += causes or [(name, category, row)]
    return found


def _axis_start(ends: list[float]) -> float:
    """Return where the axis begins: at 0, unless what changed is too little of it to be seen."""
    lowest, highest = min(ends), max(ends)
    span = highest - lowest
    if not span or span >= _LEAST_SHARE * highest:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(span))
    return max(unit * math.floor((lowest - span / 2) / unit), 0.0)


def waterfall_table(difference: RunDifference) -> Table:
    """Return the parts of both sides in words, with the exact difference."""
    exact = [row["delta_ns"] for row in _with_causes(difference)]
    rows = [
        [name.replace("  ", "of it idle: "), *cells, _exact(ns)]
        for (name, *cells), ns in zip(part_rows(difference), exact, strict=True)
    ]
    columns = [
        Column("part", "text"),
        Column("baseline"),
        Column("candidate"),
        Column("change"),
        Column("change, exactly"),
    ]
    return Table("Parts of the mean step time on the slowest rank", columns, rows)


def _with_causes(difference: RunDifference) -> list[dict[str, Any]]:
    """Return the rows that `part_rows` puts into words."""
    found = []
    for row in difference.step_time_parts.to_pylist():
        found.append(row)
        if row["part"] == "idle":
            found += [
                one
                for one in difference.idle_causes.to_pylist()
                if one["baseline_ns"] or one["candidate_ns"]
            ]
    return [*found, {"delta_ns": difference.mean_step_time[2]}]


def _exact(ns: float | None) -> str:
    if ns is None:
        return absent
    text = f"{ns:+,.3f}".replace(",", " ").removesuffix(".000")
    return f"{text if ns else '0'} ns"
