"""The page of a difference: whether it is one, where it comes from, and both sides above each other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nsyspipe.report.difference_document import identity_of
from nsyspipe.report.difference_figures import delta_text, interval_text, percent_change, value_text
from nsyspipe.report.difference_words import gate_text, metric_name, notes, side_text, verdict_text
from nsyspipe.report.page.difference_tables import (
    change_table,
    figure_table,
    formula_table,
    kernel_table,
    provenance_table,
)
from nsyspipe.report.page.difference_timelines import timelines
from nsyspipe.report.page.difference_waterfall import waterfall, waterfall_table
from nsyspipe.report.page.embed import cut, identity_of_page
from nsyspipe.report.page.headline import Tile
from nsyspipe.report.page.link_board import troubles
from nsyspipe.report.page.shell import Page, render
from nsyspipe.statistics import MEAN, MEDIAN
from nsyspipe.units import absent, ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from nsyspipe.difference.run_difference import RunDifference
    from nsyspipe.gate import Gate
    from nsyspipe.report.page.link_board import Trouble

__all__ = ["DIFF_RUNS", "difference_page", "identity_of_difference_page"]

# Name of the meta element that says which runs a page compares.
DIFF_RUNS = "nsyspipe-diff-runs"

_SIDES = ("baseline", "candidate")
_SECTIONS = (
    ("step-time", "Step time"),
    ("timelines", "Timelines"),
    ("figures", "Figures"),
    ("kernels", "Kernels"),
    ("changes", "What else changed"),
    ("problems", "Problems"),
    ("definitions", "Definitions"),
    ("provenance", "Provenance"),
)
_SCRIPTS = (
    "difference_waterfall.js",
    "timeline_layout.js",
    "timeline_draw.js",
    "timeline.js",
    "difference_timelines.js",
)


def difference_page(
    difference: RunDifference, gate: Gate | None = None, *, settings_file: str | None = None
) -> str:
    """Return the page of a difference as one HTML file: complete, offline, the same bytes for the same runs.

    Parameters
    ----------
    difference
        Any difference; what a side does not know is said to be unknown.
    gate
        What the gate said, if one was asked for.
    settings_file
        The file that set thresholds; None without one.

    Returns
    -------
    str
        HTML, to be written as UTF-8.
    """
    drawn, bars = timelines(difference), waterfall(difference)
    data = {"waterfall": bars, "timelines": drawn.data}
    labels = [cut(side.name) for side in (difference.baseline, difference.candidate)]
    context = {
        "sections": _SECTIONS,
        "labels": labels,
        **_head(difference, gate, settings_file),
        "waterfall": bars,
        "waterfall_table": waterfall_table(difference) if bars else None,
        "is_of_means": difference.statistic == MEAN,
        "axis_note": _axis_note(bars),
        "timelines": drawn,
        "of_first_capture": ", in its first capture" if difference.has_spread_between_captures else "",
        "has_comm": _has_comm(drawn.data),
        "figure_table": figure_table(difference),
        "kernel_table": kernel_table(difference),
        "change_table": change_table(difference),
        "troubles": [(name, *one) for name in _SIDES for one in _troubles(difference.problems, name)],
        "formula_table": formula_table(),
        "provenance_table": provenance_table(difference),
    }  # fmt: skip
    return render(
        Page(
            template="difference.html.j2",
            title=f"{labels[0]} -> {labels[1]}: nsyspipe diff",
            identity=(DIFF_RUNS, json.dumps(identity_of(difference))),
            context=context,
            data={name: chart for name, chart in data.items() if chart is not None},
            scripts=_SCRIPTS,
            styles=("run.css", "difference.css"),
        )
    )


def identity_of_difference_page(path: Path) -> list[list[str]] | None:
    """Return the run ids of both sides of a page of `difference_page`; None for any other file."""
    found = identity_of_page(path, DIFF_RUNS)
    try:
        sides = json.loads(found) if found else None
    except (ValueError, RecursionError):
        return None
    return sides if isinstance(sides, list) else None


def _head(
    difference: RunDifference, gate: Gate | None, settings_file: str | None
) -> dict[str, Any]:
    """Return the first screen: the verdict, how sure it is, what it compares, and what makes it doubtful."""
    rows = {row["metric"]: row for row in difference.metrics.to_pylist()}
    sides = zip(_SIDES, (difference.baseline, difference.candidate), strict=True)
    return {
        "verdict": difference.verdict,
        "sentence": verdict_text(difference, gate),
        "gate": _gate_line(gate),
        "sides": [(name, side_text(side)) for name, side in sides],
        "checks": difference.comparability.to_pylist(),
        "judged": [_tiles(rows[name]) for name in difference.judged],
        "notes": notes(difference, settings_file),
    }


def _gate_line(gate: Gate | None) -> dict[str, str] | None:
    if gate is None:
        return None
    why = gate_text(gate) or f"--fail-on {gate.fail_on}"
    return {"outcome": gate.outcome, "text": f"Gate {gate.outcome}: {why}"}


def _tiles(row: Mapping[str, Any]) -> list[Tile]:
    """Return a judged figure as tiles: both sides, their difference, how sure it is."""
    name, unit = metric_name(row["metric"]), row["unit"]
    why = row["why"] or "not decided"
    over = [_over(row[f"n_{side}"], row["statistic"] or MEDIAN) for side in _SIDES]
    relative = percent_change(row)
    below = "candidate - baseline" if relative == absent else f"{relative} of the baseline"
    sure = f"{percent_text(row['confidence'], 0)} interval"
    named = [f"{name.capitalize()}, {side}" for side in _SIDES]
    return [
        _tile(named[0], row["baseline"], value_text(unit, row["baseline"]), over[0], why),
        _tile(named[1], row["candidate"], value_text(unit, row["candidate"]), over[1], why),
        _tile("Change", row["delta"], delta_text(unit, row["delta"]), below, why),
        _tile(sure, row["ci_low"], interval_text(row), "of the change", why),
    ]


def _tile(name: str, value: float | None, text: str, meaning: str, why: str) -> Tile:
    number, _, unit = text.rpartition(" ")
    if value is None:
        return Tile(name, "", "", why, "not recorded" if "interval" not in name else "none")
    return Tile(name, number, unit, meaning) if number else Tile(name, unit, "", meaning)


def _over(n_steps: int | None, statistic: str) -> str:
    return "of one step" if n_steps == 1 else f"{statistic} of {n_steps} steps"


def _axis_note(bars: Mapping[str, Any] | None) -> str | None:
    if bars is None or not bars["from"]:
        return None
    return f"The axis begins at {ms_text(bars['from'])}: on a whole one the changes would be too small to see."


def _has_comm(data: Mapping[str, Any] | None) -> bool:
    return data is not None and any("comm" in one["lanes"] for one in data["ranks"])


def _troubles(problems: pa.Table, side: str) -> Sequence[Trouble]:
    return troubles(problems.filter(pc.equal(problems["side"], side)))
