"""The first screen of a difference: verdict, parts of the step, what explains the change, what could not be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from nsyspipe.comparison.changes import SIDES
from nsyspipe.comparison.difference import RunDifference
from nsyspipe.model.figures import FIGURES, METRICS
from nsyspipe.report import difference as full
from nsyspipe.report.blocks import (
    Block,
    Facts,
    Field,
    Line,
    Lines,
    Notes,
    Sentence,
    Troubles,
    table_of,
)
from nsyspipe.report.subject import hardware_text, steps_text, subject_facts
from nsyspipe.report.units import (
    delta_text,
    in_one_unit,
    metric_label,
    ms_text,
    percent_text,
    value_text,
)

LITTLE_SHARE = 0.001  # of the step time: nobody asks where a smaller change comes from
_VISIBLE_SHARE = 0.02  # of the step time, from which on compute is explained by its kernels
_MOST_CHANGES = 6
_MOST_KERNELS = 3
_BAR_WIDTH = 16  # characters of the bar of the largest change
_OVERLAP = METRICS["overlap_ratio"]
# narrower terminals leave out both sides, or the bars
_BOTH_WIDTH = 44
_BARS_WIDTH = 64
PARTS = "Parts of the step"
# Names of files that nobody gave; `-v` lists them.
_MATTERS_ALWAYS = frozenset({"log-of-another-run", "topology-of-another-machine"})


class PartRow(Struct, frozen=True):
    """A part of the step on both sides, and a bar of its change."""

    name: str
    baseline: str
    candidate: str
    change: str
    bar: str


def screen_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield the first screen; `-v` and the files have everything."""
    yield from full.answer_blocks(difference)
    yield from side_blocks(difference)
    yield from _problem_blocks(difference)
    yield parts_or_metrics(difference)
    yield from _kernel_blocks(difference)
    yield from _change_blocks(difference)
    yield from full.not_compared_block(difference)
    yield Notes(_notes(difference))


def side_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield both sides, what they ran on only once if it is the same, and doubts about the comparison."""
    sides = dict(zip(SIDES, (difference.baseline, difference.candidate), strict=True))
    hardware = {hardware_text(side.runs[0]) for side in sides.values()}
    is_shared = len(hardware) == 1
    for name, side in sides.items():
        run = side.runs[0]
        facts = [steps_text(run)] if is_shared else subject_facts(run)
        captures = [f"the first of {len(side.runs)} captures"] if len(side.runs) > 1 else []
        yield Facts([side.name, *facts, *captures], name, is_of_several=True)
    if is_shared:
        yield Facts(sorted(hardware), "both", is_of_several=True)
    yield from full.doubt_blocks(difference)


def _problem_blocks(difference: RunDifference) -> Iterator[Block]:
    unused = [row for row in difference.problem_rows if row["code"] in _MATTERS_ALWAYS]
    if unused:
        yield Troubles(full.side_problems(unused), is_close=True)


def parts_or_metrics(difference: RunDifference) -> Block:
    """Return the parts of the step; of a capture without steps, or without known parts, the metrics that it has."""
    if not _known_parts(difference):
        return full.metrics_table(difference)
    rows = part_rows(difference)
    if not rows:
        return Sentence(
            f"No part of the step changed by more than {percent_text(LITTLE_SHARE)}.",
            is_close=False,
        )
    fields = [
        Field("slowest rank, mean of steps", lambda row: row.name, "word"),
        Field("baseline", lambda row: row.baseline, from_width=_BOTH_WIDTH),
        Field("candidate", lambda row: row.candidate, from_width=_BOTH_WIDTH),
        Field("change", lambda row: row.change),
        Field("", lambda row: row.bar, "word", from_width=_BARS_WIDTH),
    ]
    return table_of(PARTS, rows, fields)


def part_rows(difference: RunDifference) -> list[PartRow]:
    """Return the parts of the step that changed visibly, then overlap and other judged metrics; nothing without parts.

    A part that changed by less than a thousandth of the step is left out.
    """
    mean_ns = difference.mean_step_time[0] or 0.0
    parts = _known_parts(difference)
    if not parts:
        return []
    shown = [part for part in parts if abs(part["delta_ns"]) >= LITTLE_SHARE * mean_ns]
    rows = _time_rows(shown)
    extra = [
        name
        for name in difference.judged
        if name not in {"step_time", *(part["part"] for part in shown)}
    ]
    metrics = {row["metric"]: row for row in difference.metrics.to_pylist()}
    names = dict.fromkeys([_OVERLAP.name, *extra])
    rows += [_metric_row(metrics[name]) for name in names if _is_shown(metrics[name])]
    return rows


def _known_parts(difference: RunDifference) -> list[dict[str, Any]]:
    return [part for part in difference.step_time_parts.to_pylist() if part["delta_ns"] is not None]


def _time_rows(parts: list[dict[str, Any]]) -> list[PartRow]:
    largest_ns = max((abs(part["delta_ns"]) for part in parts), default=0.0)
    values = [ms_text(part[f"{name}_ns"]) for name in SIDES for part in parts]
    values += [delta_text("ns", part["delta_ns"]) for part in parts]
    texts = in_one_unit(values, "ms")  # all with the decimals of the longest
    n_parts = len(parts)
    columns = (texts[:n_parts], texts[n_parts : 2 * n_parts], texts[2 * n_parts :])
    rows = []
    for part, before, after, change in zip(parts, *columns, strict=True):
        sign = "+" if part["delta_ns"] > 0 else "-"
        bar = sign * max(round(_BAR_WIDTH * abs(part["delta_ns"]) / largest_ns), 1)
        rows.append(
            PartRow(metric_label(part["part"]), f"{before} ms", f"{after} ms", f"{change} ms", bar)
        )
    return rows


def _metric_row(row: Mapping[str, Any]) -> PartRow:
    unit = row["unit"]
    before, after = (value_text(unit, row[side]) for side in SIDES)
    return PartRow(metric_label(row["metric"]), before, after, delta_text(unit, row["delta"]), "")


def _is_shown(row: Mapping[str, Any]) -> bool:
    """Tell whether a metric changed: both sides have it, and the change is not just noise in the last digit."""
    return row["delta"] is not None and abs(row["delta"]) >= LITTLE_SHARE * abs(
        row["baseline"] or 1.0
    )


def _kernel_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield the kernels that explain a change of compute, if compute changed visibly."""
    mean_ns = difference.mean_step_time[0]
    deltas = {
        part["part"]: part["delta_ns"] or 0.0 for part in difference.step_time_parts.to_pylist()
    }
    if not mean_ns or abs(deltas.get("compute", 0.0)) < _VISIBLE_SHARE * mean_ns:
        return
    rows = difference.top_kernels.to_pylist()[:_MOST_KERNELS]
    if rows:
        yield full.kernels_table(difference, rows)


def _change_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield what else changed, without what the cause names already."""
    cause = difference.cause
    changes = () if cause is None else (*cause.facts, *(change for change, _ in cause.beside))
    named = {change[0] for change in changes}
    lines = [
        full.change_text_of_fact(row)
        for row in full.shown_changes(difference)
        if row["what"] not in named
    ]
    if lines:
        n_more = len(lines) - _MOST_CHANGES
        shown = [Line(line) for line in lines[:_MOST_CHANGES]]
        yield Lines(
            "Also changed", [*shown, *([Line(f"and {n_more} more (-v)")] if n_more > 0 else [])]
        )


def _notes(difference: RunDifference) -> list[str]:
    """Return how to include the spread between captures, and what `-v` adds."""
    same = full.same_facts(difference)
    is_nothing_found = not full.shown_changes(difference)
    texts = []
    if is_nothing_found and same:
        texts.append("No other difference was found in what both sides recorded (-v lists it).")
    texts += full.spread_text(difference, "LABEL=REPORTS")
    if difference.settings.file:
        texts.append(f"Thresholds from {difference.settings.file}.")
    texts.append(f"-v shows all {len(FIGURES)} metrics, kernels, facts and methods.")
    return texts
