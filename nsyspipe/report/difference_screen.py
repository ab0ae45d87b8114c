"""The first screen of a difference.

It has the verdict, the parts of the step, the likely cause, and what could not be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from msgspec import Struct

from nsyspipe.comparison.causes import Cause
from nsyspipe.comparison.changes import SIDES
from nsyspipe.comparison.difference import RunDifference
from nsyspipe.model.figures import METRICS
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

# Of the step time. Nobody asks where a smaller change comes from.
LITTLE_SHARE = 0.001
# Of the step time. A larger change of compute is explained by its kernels.
_MIN_EXPLAINED_COMPUTE_SHARE = 0.02
_MAX_SHOWN_CHANGES = 6
_MAX_SHOWN_KERNELS = 3
# Characters of the bar of the largest change.
_BAR_WIDTH = 16
_OVERLAP = METRICS["overlap_ratio"]
# Narrower terminals leave out the values of both sides, or the bars.
_MIN_WIDTH_FOR_VALUES = 44
_MIN_WIDTH_FOR_BARS = 64
PARTS = "Parts of the step"
# These problems name files that the user did not pass. Only `-v` lists other problems.
_ALWAYS_SHOWN_PROBLEMS = frozenset({"log-of-another-run", "topology-of-another-machine"})


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
    """Yield both sides and doubts about the comparison.

    Hardware that both sides share is not among the facts of a side. It follows the sides.
    """
    sides = (difference.baseline, difference.candidate)
    distinct_hardware = {hardware_text(side.runs[0]) for side in sides}
    is_shared = len(distinct_hardware) == 1
    for name, side in zip(SIDES, sides, strict=True):
        run = side.runs[0]
        facts = [side.name]
        facts += [steps_text(run)] if is_shared else subject_facts(run)
        n_captures = len(side.runs)
        if n_captures > 1:
            facts.append(f"the first of {n_captures} captures")
        yield Facts(facts, about=name, is_of_several=True)
    if is_shared:
        yield Facts([*distinct_hardware], about="both", is_of_several=True)
    yield from full.doubt_blocks(difference)


def _problem_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield the problems about files that are not used, if there are any."""
    rows = difference.problem_rows
    shown_rows = [row for row in rows if row["code"] in _ALWAYS_SHOWN_PROBLEMS]
    if shown_rows:
        yield Troubles(full.side_problems(shown_rows), is_close=True)


def parts_or_metrics(difference: RunDifference) -> Block:
    """Return the parts of the step, or all metrics if no part is known.

    A capture without steps has no parts.
    """
    if not _known_parts(difference):
        return full.metrics_table(difference)
    rows = part_rows(difference)
    if not rows:
        limit = percent_text(LITTLE_SHARE)
        return Sentence(f"No part of the step changed by more than {limit}.", is_close=False)
    width = _MIN_WIDTH_FOR_VALUES
    whose = "" if full.has_one_rank(difference) else "slowest rank, "
    fields = [Field(f"{whose}mean of steps", attrgetter("name"), "word")]
    fields += [Field(side, attrgetter(side), from_width=width) for side in SIDES]
    fields.append(Field("change", attrgetter("change")))
    bar = Field("", attrgetter("bar"), "word", from_width=_MIN_WIDTH_FOR_BARS)
    fields.append(bar)
    return table_of(PARTS, rows, fields)


def part_rows(difference: RunDifference) -> list[PartRow]:
    """Return the parts of the step that changed visibly, then the metrics that did.

    A part changed visibly if it changed by at least a thousandth of the step. The metrics are the
    overlap and the judged ones. Empty if no part is known.
    """
    parts = _known_parts(difference)
    if not parts:
        return []
    step_before_ns = difference.mean_step_time.baseline_ns or 0.0
    min_change_ns = LITTLE_SHARE * step_before_ns
    changed_parts = [part for part in parts if abs(part["delta_ns"]) >= min_change_ns]
    # The verdict has the step time, and the rows of the parts have the metrics of the same names.
    metrics_shown_already = {"step_time", *(part["part"] for part in changed_parts)}
    judged = [metric for metric in difference.judged if metric not in metrics_shown_already]
    row_of_metric = {row["metric"]: row for row in difference.metrics.to_pylist()}
    distinct_metrics = dict.fromkeys([_OVERLAP.name, *judged])
    rows = [row_of_metric[metric] for metric in distinct_metrics]
    metric_rows = [_metric_row(row) for row in rows if _is_changed(row)]
    return [*_time_rows(changed_parts), *metric_rows]


def _known_parts(difference: RunDifference) -> list[dict[str, Any]]:
    """Return the parts of the step whose change is known."""
    parts = difference.step_time_parts.to_pylist()
    return [part for part in parts if part["delta_ns"] is not None]


def _time_rows(parts: list[dict[str, Any]]) -> list[PartRow]:
    """Return the rows of parts of the step. All times have the decimals of the longest."""
    n_parts = len(parts)
    largest_change_ns = max((abs(part["delta_ns"]) for part in parts), default=0.0)
    times_before = [ms_text(part["baseline_ns"]) for part in parts]
    times_after = [ms_text(part["candidate_ns"]) for part in parts]
    changes = [delta_text("ns", part["delta_ns"]) for part in parts]
    # All times before, then all times after, then all changes.
    texts = in_one_unit([*times_before, *times_after, *changes], "ms")
    rows = []
    for number, part in enumerate(parts):
        before = texts[number]
        after = texts[n_parts + number]
        change = texts[2 * n_parts + number]
        row = PartRow(
            name=metric_label(part["part"]),
            baseline=f"{before} ms",
            candidate=f"{after} ms",
            change=f"{change} ms",
            bar=_bar(part["delta_ns"], largest_change_ns),
        )
        rows.append(row)
    return rows


def _bar(delta_ns: float, largest_ns: float) -> str:
    """Return a bar of ``+`` or ``-`` for a change. The bar of the largest change is the longest."""
    sign = "+" if delta_ns > 0 else "-"
    length = round(_BAR_WIDTH * abs(delta_ns) / largest_ns)
    # Each change has a sign at least.
    return sign * max(length, 1)


def _metric_row(row: Mapping[str, Any]) -> PartRow:
    unit = row["unit"]
    label = metric_label(row["metric"])
    before, after = (value_text(unit, row[side]) for side in SIDES)
    change = delta_text(unit, row["delta"])
    return PartRow(label, before, after, change, bar="")


def _is_changed(row: Mapping[str, Any]) -> bool:
    """Tell whether both sides have a metric, and it changed visibly.

    A visible change is at least `LITTLE_SHARE` of the baseline. If the baseline is 0, a visible
    change is at least `LITTLE_SHARE` of one unit: of 1 ns, or of the ratio 1.
    """
    if row["delta"] is None:
        return False
    size_of_change = abs(row["delta"])
    has_baseline = bool(row["baseline"])
    min_change = LITTLE_SHARE * abs(row["baseline"]) if has_baseline else LITTLE_SHARE
    return bool(size_of_change >= min_change)


def _kernel_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield the kernels that explain a change of compute, if compute changed visibly."""
    step_before_ns = difference.mean_step_time.baseline_ns
    if not step_before_ns:
        return
    parts = difference.step_time_parts.to_pylist()
    delta_of_part_ns = {part["part"]: part["delta_ns"] or 0.0 for part in parts}
    compute_change_ns = abs(delta_of_part_ns.get("compute", 0.0))
    if compute_change_ns < _MIN_EXPLAINED_COMPUTE_SHARE * step_before_ns:
        return
    top_kernels = difference.top_kernels.to_pylist()
    rows = top_kernels[:_MAX_SHOWN_KERNELS]
    if rows:
        yield full.kernels_table(difference, rows)


def _change_blocks(difference: RunDifference) -> Iterator[Block]:
    """Yield what else changed, without what the cause names already."""
    cause = difference.cause
    facts_of_cause = set() if cause is None else _names_of_facts(cause)
    changes = full.shown_changes(difference)
    remaining_changes = [row for row in changes if row["what"] not in facts_of_cause]
    if not remaining_changes:
        return
    shown = remaining_changes[:_MAX_SHOWN_CHANGES]
    lines = [Line(full.change_text_of_fact(row)) for row in shown]
    n_more = len(remaining_changes) - len(shown)
    if n_more:
        lines.append(Line(f"and {n_more} more (-v)"))
    lines += [*map(Line, full.masked_notes(difference))]
    yield Lines("Also changed", lines)


def _names_of_facts(cause: Cause) -> set[str]:
    """Return the names of the changed facts that the sentence of a cause has."""
    changes = [*cause.facts, *(change for change, _ns in cause.beside)]
    return {name for name, *_ in changes}


def _notes(difference: RunDifference) -> list[str]:
    """Return how to include the variation between captures, and what `-v` adds."""
    same = full.same_facts(difference)
    changes = full.shown_changes(difference)
    texts = []
    if same and not changes:
        texts.append("No other difference was found in what both sides recorded (-v lists it).")
    texts += full.spread_text(difference, several=full.SEVERAL_CAPTURES)
    file = difference.settings.file
    if file:
        texts.append(f"Thresholds from {file}.")
    texts.append("-v shows kernels, settings, methods and more metrics. --json has all metrics.")
    return texts
