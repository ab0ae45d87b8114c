"""The page of a difference: its tables (figures, kernels, what else changed, provenance) and the page itself."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nsyspipe.comparison.changes import top_kernels
from nsyspipe.comparison.metrics import METRICS
from nsyspipe.comparison.statistics import MEAN, MEDIAN
from nsyspipe.report.blocks import Column, Field, Table, Tile, of, table_of
from nsyspipe.report.difference import DIFF_RUNS, identity_of
from nsyspipe.report.difference_words import (
    change_cells,
    delta_text,
    gate_text,
    interval_text,
    metric_name,
    notes,
    percent_change,
    settle_text,
    shown_name,
    side_text,
    value_text,
    verdict_text,
)
from nsyspipe.report.html.difference_charts import (
    Cell,
    DeltaCell,
    DeltaTable,
    Judged,
    Scale,
    timelines,
    waterfall,
    waterfall_table,
)
from nsyspipe.report.html.page import Page, cut, render
from nsyspipe.report.html.run_page import provenance
from nsyspipe.report.units import absent, count_text, ms_text, percent_text
from nsyspipe.report.words import troubles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.comparison.difference import RunDifference
    from nsyspipe.comparison.gate import Gate


_SIDES = ("baseline", "candidate")
# As long as names of kernels are on the page of a run.
_LONGEST_NAME = 160


def figure_table(difference: RunDifference) -> DeltaTable:
    """Return all figures with verdicts, the judged ones first, each with its difference and interval beside zero.

    The track is in per cent of the baseline, of ratios in points: as the words beside it.
    """
    rows = sorted(difference.metrics.to_pylist(), key=lambda row: row["metric"] not in difference.judged)
    shares = [_in_percent(row) for row in rows]
    scale = _scale(rows, shares, difference.judged)
    mostly = _shared_reason(rows)
    cells: list[Sequence[Cell]] = [
        [
            shown_name(row),
            _change_text(row),
            DeltaCell(**{name: scale.share(value) for name, value in share.items()}),
            Judged(row["verdict"], _why(row, mostly)),
            *(value_text(row["unit"], row[side]) for side in _SIDES),
            delta_text(row["unit"], row["delta"]),
            interval_text(row),
            _numbers(row),
        ]
        for row, share in zip(rows, shares, strict=True)
    ]
    columns = [
        Column("figure of a step", "text"),
        Column("change", hint="per cent of the baseline; of ratios in points"),
        Column(f"-{scale.limit:g} to +{scale.limit:g} %", "track"),
        Column("verdict", "text"),
        *(Column(side, hint="median (or mean, where said) over summary steps") for side in _SIDES),
        Column("difference", hint="candidate - baseline"),
        Column(f"{percent_text(difference.confidence, 0)} interval", hint="of the difference"),
        Column("steps", hint="summary steps that have the figure: baseline, candidate"),
    ]
    strong = frozenset(at for at, row in enumerate(rows) if row["metric"] in difference.judged)
    note = (
        "Bar: the change in per cent of the baseline, of ratios in points; line across it: its interval; grey: less than "
        "the smallest change that counts; an arrow: further than the scale. Bold: what the verdict rests on."
    )
    if mostly:
        note += f" Inconclusive for no reason told beside it: {mostly}."
    return DeltaTable("Figures of a step, both sides", columns, cells, strong, note)


def _in_percent(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return difference, interval and what is no change of one figure, in per cent; of ratios in points."""
    base = row["baseline"]
    unit = 1 if row["unit"] == "ratio" else abs(base) if base else None
    values = {"at": row["delta"], "low": row["ci_low"], "high": row["ci_high"]}
    values["band"] = row["min_effect"]
    return {name: None if value is None or unit is None else 100 * value / unit for name, value in values.items()}


def _scale(
    rows: Sequence[Mapping[str, Any]],
    shares: Sequence[Mapping[str, float | None]],
    judged: Sequence[str],
) -> Scale:
    """Return the scale on which judged figures can be read with their intervals, and most others."""
    reach = [
        max((abs(one) for one in map(share.get, ("at", "low", "high")) if one is not None), default=0)
        for share in shares
    ]  # fmt: skip
    is_held = [row["metric"] in judged for row in rows]
    return Scale.around(
        [one for one, held in zip(reach, is_held, strict=True) if held],
        [one for one, held in zip(reach, is_held, strict=True) if one and not held],
    )


def _change_text(row: Mapping[str, Any]) -> str:
    relative = percent_change(row)
    return delta_text(row["unit"], row["delta"]) if relative == absent else relative


def _numbers(row: Mapping[str, Any]) -> str:
    before, after = (count_text(row[f"n_{side}"]) for side in _SIDES)
    return before if before == after else f"{before}, {after}"


def _why(row: Mapping[str, Any], mostly: str | None) -> str | None:
    """Return why a figure is inconclusive, if that is not told for most, and what would settle it."""
    said = [
        None if row["why"] == mostly else row["why"],
        settle_text(row) if row["settle_steps"] or row["settle_captures"] else None,
    ]
    return "; ".join(one for one in said if one) or None


def _shared_reason(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why most figures are inconclusive, to be told once; None where there is no such reason."""
    reasons = Counter(row["why"] for row in rows if row["why"])
    reason, number = max(reasons.items(), key=lambda one: one[1], default=(None, 0))
    return reason if number > len(rows) / 2 else None


def kernel_table(difference: RunDifference) -> DeltaTable | None:
    """Return the ten kernels that changed most, with their sign; None where none did."""
    rows = top_kernels(difference.kernels).to_pylist()
    if not rows:
        return None
    most = max(abs(row["delta_ns_per_step"]) for row in rows) or 1
    cells: list[Sequence[Cell]] = [
        [
            cut(row["name"], _LONGEST_NAME),
            delta_text("ns", row["delta_ns_per_step"]),
            DeltaCell(row["delta_ns_per_step"] / most),
            *(value_text("ns", row[f"{side}_ns_per_step"]) for side in _SIDES),
            row["phase"] or absent,
            row["status"],
            *(count_text(round(row[f"{side}_n_per_step"], 2)) for side in _SIDES),
        ]
        for row in rows
    ]
    columns = [
        Column("kernel", "name"),
        Column("change"),
        Column("less, more", "track"),
        *(Column(side, hint="per rank and summary step") for side in _SIDES),
        Column("phase", "text"),
        Column("status", "text"),
        *(Column(f"number, {side}", hint="per rank and summary step") for side in _SIDES),
    ]
    n_same = difference.kernels.num_rows - len(rows)
    note = f"{n_same} more changed less, or not." if n_same else None
    return DeltaTable("Kernels that changed most", columns, cells, note=note)


def change_table(difference: RunDifference) -> Table | None:
    """Return every fact around the runs that differs; None without any."""
    rows = difference.changes.to_pylist()
    if not rows:
        return None
    fields = [
        Field("about", of("topic"), "text"),
        Field("what", lambda row: cut(change_cells(row)[0]), "text"),
        Field("baseline", lambda row: cut(change_cells(row)[1]), "name"),
        Field("candidate", lambda row: cut(change_cells(row)[2]), "name"),
        Field("change", lambda row: cut(change_cells(row)[3])),
    ]
    return table_of("What else changed", rows, fields)


def provenance_table(difference: RunDifference) -> Table:
    """Return what identifies the captures, one column per capture."""
    headings, captures = [], []
    for name, side in zip(_SIDES, (difference.baseline, difference.candidate), strict=True):
        for at, run in enumerate(side.runs):
            number = f", capture {at + 1} of {len(side.runs)}" if len(side.runs) > 1 else ""
            headings.append(f"{name} {side.name}{number}")
            captures.append(dict(provenance(run)))
    # Not every capture has every fact; the order is that of whoever has it.
    names = dict.fromkeys(name for capture in captures for name in capture)
    rows = [[name, *(cut(capture.get(name, absent)) for capture in captures)] for name in names]
    columns = [Column("", "text"), *(Column(cut(one), "name") for one in headings)]
    return Table("Provenance of both sides", columns, rows)


def formula_table() -> Table:
    """Return how each figure of a step is made."""
    better = {"lower": "less", "higher": "more", "neither": "neither by itself"}
    fields = [
        Field("figure", lambda one: metric_name(one.name), "text"),
        Field("name", lambda one: one.name, "name", "as --metric takes it"),
        Field("unit", lambda one: one.unit, "text"),
        Field("better is", lambda one: better[one.better], "text"),
        Field("of a step", lambda one: one.formula, "text"),
    ]
    return table_of("How each figure is made", [*METRICS.values()], fields)


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


def difference_page(difference: RunDifference, gate: Gate | None = None, *, settings_file: str | None = None) -> str:
    """Return the page of a difference as one HTML file: complete, offline, the same bytes for the same runs."""
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


def _head(difference: RunDifference, gate: Gate | None, settings_file: str | None) -> dict[str, Any]:
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


def _troubles(problems: pa.Table, side: str) -> Sequence[tuple[str, str, str, str | None]]:
    return troubles(problems.filter(pc.equal(problems["side"], side)).to_pylist())
