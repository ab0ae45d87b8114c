"""What a difference says in words, whatever it is written in: verdict, figures with units and signs, notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsyspipe.difference.figures import NEITHER
from nsyspipe.difference.metric_rows import INCONCLUSIVE, NO_CHANGE
from nsyspipe.report.difference_figures import (
    delta_text,
    interval_text,
    percent_change,
    value_text,
)
from nsyspipe.report.run_words import subject_parts
from nsyspipe.units import absent, percent_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.difference.run_difference import RunDifference
    from nsyspipe.difference.sides import Side
    from nsyspipe.gate import Gate

__all__ = [
    "change_cells",
    "gate_text",
    "metric_name",
    "notes",
    "part_rows",
    "shown_metrics",
    "side_text",
    "verdict_text",
]

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


def verdict_text(difference: RunDifference) -> str:
    """Return one sentence: what became of the judged metric that decides, by how much, how sure that is.

    What became of the other judged ones stands behind it.
    """
    row = _deciding(difference)
    others = [
        f"{metric_name(one['metric'])}: {one['verdict']}"
        for one in difference.judged_rows
        if one["metric"] != row["metric"]
    ]
    text = f"{difference.verdict.capitalize()}: {_decided(row)}"
    return "; ".join([text, ", ".join(others)]) if others else text


def _deciding(difference: RunDifference) -> dict[str, Any]:
    """Return the first judged row that has the verdict; of such that know no better, one that is not the same."""
    rows = difference.judged_rows
    with_direction = [row for row in rows if row["better"] != NEITHER]
    found = [row for row in with_direction or rows if row["verdict"] == difference.verdict]
    return found[0] if found else next(row for row in rows if row["verdict"] != NO_CHANGE)


def _decided(row: Mapping[str, Any]) -> str:
    name = metric_name(row["metric"])
    if row["baseline"] is None or row["candidate"] is None:
        return f"no {name} ({row['why']})"
    sides = " -> ".join(value_text(row["unit"], row[side]) for side in ("baseline", "candidate"))
    relative = percent_change(row)
    change = delta_text(row["unit"], row["delta"]) if relative == absent else relative
    text = f"{name} {sides} ({change})"
    if row["ci_low"] is None or row["verdict"] == INCONCLUSIVE:
        return f"{text}; {_reason(row['why'] or 'not decided')}"
    text += f", {percent_text(row['confidence'], 0)} interval {interval_text(row)}"
    if row["better"] == NEITHER and row["verdict"] != NO_CHANGE:
        text += f"; {name} is neither better lower nor higher"
    return text


def _reason(why: str) -> str:
    if why.startswith("not comparable"):
        return f"{why} (--force to go on)"
    return f"{why}; capture more steps" if "step" in why else why


def side_text(side: Side) -> str:
    """Return what a side is: its label, ranks, GPU, steps, number of captures."""
    run = side.runs[0]
    _, *rest = subject_parts(run, run.summary().to_pylist()[0])
    captures = [f"the first of {len(side.runs)} captures"] if len(side.runs) > 1 else []
    return " | ".join([side.name, *rest, *captures])


def shown_metrics(difference: RunDifference) -> list[dict[str, Any]]:
    """Return the rows that are shown: the main figures that both sides have, and all judged ones."""
    return [
        row
        for row in difference.metrics.to_pylist()
        if row["metric"] in difference.judged
        or (row["metric"] in _MAIN and row["baseline"] is not None)
    ]


def part_rows(difference: RunDifference) -> list[tuple[str, str, str, str]]:
    """Return the parts of the mean step time, idle with the causes that both sides have some of, and their sum."""
    rows = []
    for row in difference.step_time_parts.to_pylist():
        rows.append((_PART_NAMES.get(row["part"], row["part"]), row))
        if row["part"] == "idle":
            causes = difference.idle_causes.to_pylist()
            rows += [(f"  {one['cause']}", one) for one in causes if _is_any(one)]
    names = ("baseline_ns", "candidate_ns", "delta_ns")
    rows.append(("mean step time", dict(zip(names, difference.mean_step_time, strict=True))))
    return [
        (
            name,
            value_text("ns", row["baseline_ns"]),
            value_text("ns", row["candidate_ns"]),
            delta_text("ns", row["delta_ns"]),
        )
        for name, row in rows
    ]


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
    if method:
        found.append(
            f"Figures are medians over steps; intervals of their difference: {method}; "
            f"under {percent_text(difference.min_effect)} is no change."
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
        named = "; ".join(
            f"{row['metric']} is inconclusive ({row['why'] or 'not decided'})"
            for row in gate.undecided
        )
        return f"--fail-on {gate.fail_on} cannot be decided: {named}"
    return None


def _failed(row: Mapping[str, Any]) -> str:
    sides = " -> ".join(value_text(row["unit"], row[side]) for side in ("baseline", "candidate"))
    relative = percent_change(row)
    change = delta_text(row["unit"], row["delta"]) if relative == absent else relative
    return f"{row['metric']} {row['verdict']}, {sides} ({change})"


def _is_any(row: Mapping[str, Any]) -> bool:
    return bool(row["baseline_ns"] or row["candidate_ns"])
