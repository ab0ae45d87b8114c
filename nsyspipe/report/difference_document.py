"""The JSON document of a difference: every figure in base units, null where nothing was recorded."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nsyspipe.difference.kernel_changes import top_kernels
from nsyspipe.report.document import dumps
from nsyspipe.report.written import json_of
from nsyspipe.schema import SCHEMA_VERSION
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from nsyspipe.difference.run_difference import RunDifference
    from nsyspipe.difference.sides import Side
    from nsyspipe.gate import Gate

__all__ = [
    "difference_document",
    "difference_document_text",
    "identity_of",
    "identity_of_document",
]


def difference_document(
    difference: RunDifference, gate: Gate | None = None, *, settings_file: str | None = None
) -> dict[str, Any]:
    """Return the document as plain Python values, in a fixed order.

    ``baseline`` and ``candidate`` are the run object of the side's first capture with the side's label, and
    ``captures``, the run ids of all. ``step_time_parts`` sum to ``mean_step_time`` and ``idle_causes`` to the part
    idle, exactly. ``kernels`` are the ten largest differences.

    Parameters
    ----------
    gate
        What the gate said, if one was asked for.
    settings_file
        The file that set thresholds; None without one.
    """
    before, after, delta = difference.mean_step_time
    changes = difference.changes.to_pylist()
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "verdict": difference.verdict,
        "judged": list(difference.judged),
        "min_effect_pct": round(100 * difference.min_effect, 12),
        "statistic": difference.statistic,
        "evenness": {
            name: [asdict(one) for one in captures]
            for name, captures in zip(("baseline", "candidate"), difference.evenness, strict=True)
        },
        "confidence": difference.confidence,
        "settings_file": settings_file,
        "has_spread_between_captures": difference.has_spread_between_captures,
        "comparable": difference.is_comparable,
        "comparability": difference.comparability.to_pylist(),
        "gate": None if gate is None else _gate(gate),
        "baseline": _side(difference.baseline),
        "candidate": _side(difference.candidate),
        "metrics": difference.metrics.to_pylist(),
        "mean_step_time": {"baseline_ns": before, "candidate_ns": after, "delta_ns": delta},
        "step_time_parts": difference.step_time_parts.to_pylist(),
        "idle_causes": difference.idle_causes.to_pylist(),
        "kernels": top_kernels(difference.kernels).to_pylist(),
        "changes": [_change(row) for row in changes],
        "problems": difference.problems.to_pylist(),
    }


def difference_document_text(
    difference: RunDifference, gate: Gate | None = None, *, settings_file: str | None = None
) -> str:
    """Return the document as JSON."""
    return dumps(difference_document(difference, gate, settings_file=settings_file))


def identity_of(difference: RunDifference) -> list[list[str]]:
    """Return what tells differences apart: the run ids of both sides."""
    return [_ids(side) for side in (difference.baseline, difference.candidate)]


def identity_of_document(path: Path) -> list[list[str]] | None:
    """Return the same of a JSON document; None for any other file."""
    found = json_of(path)
    try:
        return [list(map(str, found[side]["captures"])) for side in ("baseline", "candidate")]
    except (KeyError, TypeError):
        return None


def _ids(side: Side) -> list[str]:
    return [run.header.run_id for run in side.runs]


def _side(side: Side) -> dict[str, Any]:
    header = asdict(side.runs[0].header)
    return {**header, "label": side.label, "captures": _ids(side)}


def _gate(gate: Gate) -> dict[str, Any]:
    return {
        "fail_on": gate.fail_on,
        "outcome": gate.outcome,
        "exit_code": gate.exit_code,
        "failed": [row["metric"] for row in gate.failed],
        "undecided": [row["metric"] for row in gate.undecided],
    }


def _change(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its numbers in the place of the words, which numbers do not have."""
    before, after = row.pop("baseline_value"), row.pop("candidate_value")
    return row | ({} if before is None else {"baseline": before, "candidate": after})
