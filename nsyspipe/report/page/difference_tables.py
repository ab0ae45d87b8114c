"""The tables of a difference's page: figures with their intervals, kernels, what else changed, provenance."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from nsyspipe.difference.figures import METRICS
from nsyspipe.difference.kernel_changes import top_kernels
from nsyspipe.report.difference_figures import delta_text, interval_text, percent_change, value_text
from nsyspipe.report.difference_words import change_cells, metric_name, settle_text, shown_name
from nsyspipe.report.page.difference_cells import Cell, DeltaCell, DeltaTable, Judged, Scale
from nsyspipe.report.page.embed import cut
from nsyspipe.report.page.provenance import provenance
from nsyspipe.report.page.tables import Column, Table
from nsyspipe.units import absent, count_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsyspipe.difference.run_difference import RunDifference

__all__ = ["change_table", "figure_table", "formula_table", "kernel_table", "provenance_table"]

_SIDES = ("baseline", "candidate")
# As long as names of kernels are on the page of a run.
_LONGEST_NAME = 160


def figure_table(difference: RunDifference) -> DeltaTable:
    """Return all figures with verdicts, the judged ones first, each with its difference and interval beside zero.

    The track is in per cent of the baseline, of ratios in points: as the words beside it.
    """
    rows = sorted(
        difference.metrics.to_pylist(), key=lambda row: row["metric"] not in difference.judged
    )
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
    return {
        name: None if value is None or unit is None else 100 * value / unit
        for name, value in values.items()
    }


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
    columns = [
        Column("about", "text"),
        Column("what", "text"),
        *(Column(side, "name") for side in _SIDES),
        Column("change"),
    ]
    cells = [[row["topic"], *(cut(cell) for cell in change_cells(row))] for row in rows]
    return Table("What else changed", columns, cells)


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
    columns = [
        Column("figure", "text"),
        Column("name", "name", hint="as --metric takes it"),
        Column("unit", "text"),
        Column("better is", "text"),
        Column("of a step", "text"),
    ]
    rows = [
        [metric_name(one.name), one.name, one.unit, better[one.better], one.formula]
        for one in METRICS.values()
    ]
    return Table("How each figure is made", columns, rows)
