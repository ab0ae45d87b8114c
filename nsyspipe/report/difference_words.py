"""What a difference says in words, whatever it is written in: verdict, figures with units and signs, notes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nsyspipe.comparison.gate import REGRESSION
from nsyspipe.comparison.metrics import INCONCLUSIVE, NO_CHANGE
from nsyspipe.comparison.statistics import MEAN, MEDIAN
from nsyspipe.model.figures import NEITHER
from nsyspipe.report.units import (
    absent,
    bandwidth_text,
    bytes_text,
    count_text,
    ms_text,
    percent_text,
    rate_text,
)
from nsyspipe.report.words import subject_parts, uneven_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsyspipe.comparison.difference import RunDifference, Side
    from nsyspipe.comparison.gate import Gate


_NS_PER_US, _SHORT_NS = 1e3, 1e5
_POINTS = "points"
_MOST_DIGITS = 3


def _time_text(ns: float | None) -> str:
    """Return milliseconds, and what is much shorter in microseconds or nanoseconds."""
    if ns is None or not 0 < abs(ns) < _SHORT_NS:
        return ms_text(ns)
    return f"{ns / _NS_PER_US:.4g} us" if abs(ns) >= _NS_PER_US else f"{ns:.4g} ns"


_TEXTS: dict[str, Callable[[float | None], str]] = {
    "ns": _time_text,
    "1/s": rate_text,
    "ratio": percent_text,
    "count": count_text,
    "bytes": bytes_text,
    "bytes/s": bandwidth_text,
}
# Of each unit: what differences are shown in, how much of that one is, below which its own words say too little.
_SMALL = {
    "ns": ("ns", 1.0, 1.0),
    "1/s": ("steps/s", 1.0, 1e-3),
    "count": ("", 1.0, 1e-3),
    "bytes": ("B", 1.0, 1.0),
    "bytes/s": ("GB/s", 1e9, 1e6),
}


def value_text(unit: str | None, value: float | None) -> str:
    """Return a figure with its unit."""
    return _TEXTS[unit or "count"](value)


def delta_text(unit: str | None, delta: float | None) -> str:
    """Return a difference with sign and unit; of ratios in percentage points."""
    if delta is None:
        return absent
    size = abs(delta)
    sign = "+" if delta > 0 else "-" if delta < 0 else ""
    if unit == "ratio":
        return f"{sign}{_percent(100 * size)} {_POINTS}"
    name, scale, least = _SMALL[unit or "count"]
    if 0 < size < least:
        return f"{sign}{size / scale:.2g} {name}".rstrip()
    return f"{sign}{value_text(unit, size)}"


def percent_change(row: Mapping[str, Any]) -> str:
    """Return the relative difference with its sign; nothing of ratios, which have points."""
    pct = row["delta_pct"]
    if pct is None or row["unit"] == "ratio":
        return absent
    return f"{_signed(pct, row.get('min_effect_pct'))} %"


def interval_in_percent(row: Mapping[str, Any]) -> str | None:
    """Return the interval in per cent of the baseline, and what counts; of ratios in points. None without either."""
    base, least = row["baseline"], row["min_effect"]
    if row["ci_low"] is None or least is None or not (base or row["unit"] == "ratio"):
        return None
    unit, word = (1, _POINTS) if row["unit"] == "ratio" else (abs(base), "%")
    counts = 100 * least / unit
    low, high = (_signed(100 * row[name] / unit, counts) for name in ("ci_low", "ci_high"))
    return f"{low} to {high} {word}, and {_percent(counts)} {word} counts"


def _signed(pct: float, counts: float | None) -> str:
    return f"{'+' if pct > 0 else '-' if pct < 0 else ''}{_percent(abs(pct), counts)}"


def _percent(size: float, counts: float | None = None) -> str:
    """Write with one decimal, or as many as tell it from zero and from what counts; at last with an exponent."""
    if not size:
        return "0.0"
    for digits in range(1, _MOST_DIGITS + 1):
        text = f"{size:.{digits}f}"
        is_told = counts is None or math.isclose(size, counts) or text != f"{counts:.{digits}f}"
        if float(text) and is_told:
            return text
    return f"{size:.0e}" if size < 10**-_MOST_DIGITS else f"{size:.{_MOST_DIGITS + 3}g}"


def interval_text(row: Mapping[str, Any]) -> str:
    """Return the interval of a metric's difference, ``-74.15 .. -71.61 ms``; one unit where both ends have it."""
    if row["ci_low"] is None:
        return absent
    low, high = (delta_text(row["unit"], row[name]) for name in ("ci_low", "ci_high"))
    return f"{low.removesuffix(f' {unit}') if (unit := _unit(high)) else low} .. {high}"


def interval_cell(row: Mapping[str, Any]) -> str:
    """Return the same without the unit, for a table that has it in the cell of the difference, if that is the same."""
    text = interval_text(row)
    unit = _unit(text)
    is_same = unit and unit == _unit(delta_text(row["unit"], row["delta"])) == _unit(
        delta_text(row["unit"], row["ci_low"])
    )
    return text.removesuffix(f" {unit}") if is_same else text


def _unit(text: str) -> str:
    return text.rpartition(" ")[2] if " " in text else ""


# What a screen has room for; the document has all.
_MAIN = (
    "step_time", "throughput", "compute", "comm", "exposed_comm", "exposed_memory", "idle", "wait", "dtod",
    "overlap_ratio", "backward_overlap_ratio", "message_bytes", "busbw",
)  # fmt: skip
_METRIC_NAMES = {
    "exposed_memory": "exposed copies",
    "wait": "waits for others",
    "overlap_ratio": "hidden by compute",
    "backward_overlap_ratio": "hidden by backward",
    "busbw": "bus bandwidth",
    "comm_share": "comm in all",
}
_PART_NAMES = {"exposed_comm": "exposed comm", "exposed_memory": "exposed copies"}


def metric_name(name: str) -> str:
    """Return a metric's name in words, as the summary of a run says it."""
    return _METRIC_NAMES.get(name) or name.replace("_", " ").replace("dtod", "DtoD")


def figure_heading(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what figures are, above their names; those of a capture without steps have no statistic."""
    if all(row["statistic"] is None for row in rows):
        return "of the capture"
    return "over steps" if any(row["statistic"] == MEAN for row in rows) else "median over steps"


def shown_name(row: Mapping[str, Any]) -> str:
    """Return a figure's name, and that it is a mean where that is so."""
    name = metric_name(row["metric"])
    return f"{name}, mean" if row["statistic"] == MEAN else name


def verdict_text(difference: RunDifference, gate: Gate | None = None) -> str:
    """Return one sentence: what became of the judged metric that decides, by how much, how sure that is.

    What became of the other judged ones stands behind it.
    """
    row = _deciding(difference)
    others = [
        f"{metric_name(one['metric'])}: {one['verdict']}"
        for one in difference.judged_rows
        if one["metric"] != row["metric"]
    ]
    text = f"{difference.verdict.capitalize()}: {_decided(row, gate)}"
    return "; ".join([text, ", ".join(others)]) if others else text


def _deciding(difference: RunDifference) -> dict[str, Any]:
    """Return the first judged row that has the verdict; of such that know no better, one that is not the same."""
    rows = difference.judged_rows
    with_direction = [row for row in rows if row["better"] != NEITHER]
    found = [row for row in with_direction or rows if row["verdict"] == difference.verdict]
    return found[0] if found else next(row for row in rows if row["verdict"] != NO_CHANGE)


def _decided(row: Mapping[str, Any], gate: Gate | None) -> str:
    name = metric_name(row["metric"])
    if row["baseline"] is None or row["candidate"] is None:
        return f"no {name} ({row['why']})"
    of_mean = "mean " if row["statistic"] == MEAN else ""
    sides = " -> ".join(value_text(row["unit"], row[side]) for side in ("baseline", "candidate"))
    relative = percent_change(row)
    change = delta_text(row["unit"], row["delta"]) if relative == absent else relative
    text = f"{of_mean}{name} {sides} ({change})"
    if row["ci_low"] is None:
        return f"{text}; {_reason(row)}"
    text += f", {percent_text(row['confidence'], 0)} interval {interval_text(row)}"
    if row["verdict"] == INCONCLUSIVE:
        found = [text, _reason(row), _hint_of(row, gate)]
        return "; ".join(one for one in found if one)
    if row["better"] == NEITHER and row["verdict"] != NO_CHANGE:
        text += f"; {name} is neither better lower nor higher"
    return text


def _reason(row: Mapping[str, Any]) -> str:
    why: str = row["why"] or "not decided"
    if why.startswith("not comparable"):
        return f"{why} (--force to go on)"
    if "without steps" in why:
        return f"{why}; name the steps with --step REGEX"
    if row["ci_low"] is None:
        return f"{why}; capture more steps" if "step" in why else why
    if row["baseline_mean"] is not None and "differ in sign" in why:
        sides = ((f"baseline_{name}", f"candidate_{name}") for name in (MEAN, MEDIAN))
        apart = (delta_text(row["unit"], row[after] - row[before]) for before, after in sides)
        return "mean and median differ in sign ({}, {})".format(*apart)
    reach = interval_in_percent(row)
    return f"it may be {reach}" if reach else why


def _hint_of(row: Mapping[str, Any], gate: Gate | None) -> str:
    """Return what would settle an inconclusive row, for the gate that was asked; nothing where nothing is known."""
    if gate is not None and gate.fail_on == REGRESSION:
        if row["no_regression"]:
            return "a regression that counts is excluded, and the gate passes"
        return settle_text(row, "gate")
    return settle_text(row)


def settle_text(row: Mapping[str, Any], what: str = "settle") -> str:
    """Return about how many more steps or captures would settle an inconclusive row; nothing if that is not known."""
    steps, captures = row[f"{what}_steps"], row[f"{what}_captures"]
    n = max(row["n_baseline"] or 0, row["n_candidate"] or 0)
    by_steps = f"about {_round(steps)} steps per capture ({n} now)" if steps else ""
    by_captures = f"about {captures} captures on each side" if captures else ""
    aim = "settle it" if what == "settle" else "settle the gate"
    if not steps and not captures:
        is_open = row["verdict"] == INCONCLUSIVE and row["ci_low"] is not None
        is_close = is_open and "interval" in (row["why"] or "") and what == "settle"
        return "too close to what counts for more steps to settle it" if is_close else ""
    if steps and captures:
        by_captures = f"{by_captures} like these"
        cheaper = by_captures if captures * n < steps else by_steps
        other = by_steps if cheaper is by_captures else by_captures
        return f"{cheaper} would {aim}, or {other}"
    return f"{by_steps or by_captures} would {aim}"


def _round(steps: int) -> int:
    """Round up to two digits: more is not known."""
    unit: int = 10 ** max(len(str(steps)) - 2, 0)
    return -(-steps // unit) * unit


def evenness_texts(difference: RunDifference) -> list[str]:
    """Return a sentence for each side whose steps are uneven: mean, median and the pattern."""
    found = []
    for name, captures in zip(("baseline", "candidate"), difference.evenness, strict=True):
        uneven = [one for one in captures if one.is_uneven]
        if uneven:
            found.append(f"{name}: {uneven_text(uneven[0])}.")
    return found


def side_text(side: Side) -> str:
    """Return what a side is: its label, ranks, GPU, steps, number of captures."""
    run = side.runs[0]
    _, *rest = subject_parts(run, run.summary().to_pylist()[0])
    captures = [f"the first of {len(side.runs)} captures"] if len(side.runs) > 1 else []
    return " | ".join([side.name, *rest, *captures])


def shown_metrics(difference: RunDifference) -> list[dict[str, Any]]:
    """Return the rows that are shown: the main figures that both sides have, and all judged ones.

    Of a capture without steps all that it has is shown: shares and bandwidths.
    """
    is_capture = difference.has_capture_without_steps
    return [
        row
        for row in difference.metrics.to_pylist()
        if row["metric"] in difference.judged
        or ((is_capture or row["metric"] in _MAIN) and row["baseline"] is not None)
    ]


def part_rows(difference: RunDifference) -> list[tuple[str, dict[str, Any]]]:
    """Return the parts of the mean step time, idle with the causes that both sides have some of, and their sum."""
    rows = []
    for row in difference.step_time_parts.to_pylist():
        rows.append((_PART_NAMES.get(row["part"], row["part"]), row))
        if row["part"] == "idle":
            causes = difference.idle_causes.to_pylist()
            rows += [(f"  {one['cause']}", one) for one in causes if _is_any(one)]
    names = ("baseline_ns", "candidate_ns", "delta_ns")
    rows.append(("mean step time", dict(zip(names, difference.mean_step_time, strict=True))))
    return rows


def part_cells(row: Mapping[str, Any]) -> list[str]:
    """Return both sides of a part and their difference."""
    sides = [value_text("ns", row[f"{side}_ns"]) for side in ("baseline", "candidate")]
    return [*sides, delta_text("ns", row["delta_ns"])]


def change_cells(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return what changed, both sides and the difference; as recorded, not escaped."""
    if row["delta"] is not None:
        unit = row["unit"]
        sides = (value_text(unit, row[f"{side}_value"]) for side in ("baseline", "candidate"))
        return row["what"], *sides, delta_text(unit, row["delta"])
    unset = "not set"
    return row["what"], row["baseline"] or unset, row["candidate"] or unset, ""


def notes(difference: RunDifference, settings_file: str | None = None) -> list[str]:
    """Return what to know of the figures: the method, what the interval leaves out, which file set thresholds."""
    rows = difference.metrics.to_pylist()
    method = next((row["method"] for row in rows if row["method"]), None)
    found = []
    if difference.has_capture_without_steps:
        method = None
        found.append(
            "A capture without steps: shares and bandwidths of it as a whole are compared, without intervals; step time, "
            "times per step and a verdict need steps: name them with --step REGEX, or mark them with NVTX ranges."
        )
    if method:
        uneven = evenness_texts(difference)
        found += [one[0].upper() + one[1:] for one in uneven]
        times = "; times are judged on means, since steps are uneven" if uneven else ""
        found.append(
            f"Figures are medians over steps{times}; intervals of their difference: {method}; no change: all of the "
            f"interval within {percent_text(difference.min_effect)}."
        )
    if method and not difference.has_spread_between_captures:
        found.append(
            "One capture per side: the spread between captures is not in the interval; name several as LABEL=REPORTS."
        )
    if settings_file is not None:
        found.append(f"Thresholds from {settings_file}.")
    return found


def gate_text(gate: Gate) -> str | None:
    """Return why a gate did not pass, in one line; None if it did."""
    if gate.failed:
        return f"--fail-on {gate.fail_on}: {'; '.join(map(_failed, gate.failed))}"
    if gate.undecided:
        named = "; ".join(_undecided(row, gate) for row in gate.undecided)
        return f"--fail-on {gate.fail_on} cannot be decided: {named}"
    return None


def _undecided(row: Mapping[str, Any], gate: Gate) -> str:
    hint = settle_text(row, "gate" if gate.fail_on == REGRESSION else "settle")
    text = f"{row['metric']} is {row['verdict']} ({_reason(row)})"
    return f"{text}; {hint}" if hint else text


def _failed(row: Mapping[str, Any]) -> str:
    sides = " -> ".join(value_text(row["unit"], row[side]) for side in ("baseline", "candidate"))
    relative = percent_change(row)
    change = delta_text(row["unit"], row["delta"]) if relative == absent else relative
    return f"{row['metric']} {row['verdict']}, {sides} ({change})"


def _is_any(row: Mapping[str, Any]) -> bool:
    return bool(row["baseline_ns"] or row["candidate_ns"])
