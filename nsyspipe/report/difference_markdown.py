"""A difference for a pull request: verdict, parts of the step time, figures, kernels, what else changed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from nsyspipe import __version__
from nsyspipe.difference.kernel_changes import top_kernels
from nsyspipe.report.difference_document import identity_of
from nsyspipe.report.difference_figures import delta_text, interval_text, percent_change, value_text
from nsyspipe.report.difference_words import (
    change_cells,
    figure_heading,
    gate_text,
    notes,
    part_rows,
    shown_metrics,
    shown_name,
    side_text,
    verdict_text,
)
from nsyspipe.report.markdown_text import escaped, prose, table
from nsyspipe.report.written import head_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nsyspipe.difference.run_difference import RunDifference
    from nsyspipe.gate import Gate

__all__ = ["MARKER", "difference_markdown", "identity_of_markdown"]

# The first line, whatever the runs: a bot looks for the comment that begins with it.
MARKER = "<!-- nsyspipe:diff -->"
_RUNS_MARKER = re.compile(re.escape(MARKER) + r"\s+<!-- nsyspipe:runs=(\S*) -->")
_SIDES = ("baseline", "candidate")
_SHOWN_KERNELS, _SHOWN_CHANGES, _LONGEST_NAME = 5, 12, 60


def difference_markdown(
    difference: RunDifference, gate: Gate | None = None, *, settings_file: str | None = None
) -> str:
    """Return a difference in GitHub's Markdown: the same for the same runs.

    The first line is `MARKER`, the second a comment with the runs' ids; neither is shown.

    Parameters
    ----------
    gate
        What the gate said, if one was asked for.
    settings_file
        The file that set thresholds; None without one.
    """
    why = gate_text(gate) if gate else None
    sides = zip(_SIDES, (difference.baseline, difference.candidate), strict=True)
    blocks = [
        [MARKER, _runs_marker(difference)],
        [f"**{escaped(verdict_text(difference, gate))}**"],
        [f"Gate {gate.outcome}: {escaped(why)}"] if gate and why else [],
        [f"- {name}: {escaped(side_text(side))}" for name, side in sides],
        [_check(row) for row in difference.comparability.to_pylist()],
    ]
    if difference.mean_step_time[2] is not None:
        headings = ["mean on the slowest rank", *_SIDES, "change"]
        parts = [[name.replace("  ", "of it "), *cells] for name, *cells in part_rows(difference)]
        blocks.append(table(headings, parts))
    blocks.append(_metrics(shown_metrics(difference)))
    blocks += _kernels(top_kernels(difference.kernels, _SHOWN_KERNELS).to_pylist())
    blocks += _changes(difference.changes.to_pylist())
    blocks.append([prose(note) + "<br>" for note in notes(difference, settings_file)])
    blocks.append([f"nsyspipe {__version__}: `nsyspipe diff BASELINE CANDIDATE` shows more."])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def identity_of_markdown(path: Path) -> list[list[str]] | None:
    """Return the run ids of both sides of a file of `difference_markdown`; None if it is no such file."""
    found = _RUNS_MARKER.match(head_of(path))
    try:
        sides = json.loads(unquote(found[1], errors="surrogatepass")) if found else None
    except (ValueError, RecursionError):
        return None
    return sides if isinstance(sides, list) else None


def _runs_marker(difference: RunDifference) -> str:
    """Return a comment that no run id can end: neither ``>`` nor ``--`` is left in it."""
    ids = json.dumps(identity_of(difference))
    text = quote(ids, safe="", errors="surrogatepass").replace("--", "-%2D")
    return f"<!-- nsyspipe:runs={text} -->"


def _check(row: dict[str, Any]) -> str:
    word = "not comparable" if row["blocks"] else "warning"
    return f"- **{word}**: {escaped(row['message'])}"


def _metrics(rows: Sequence[dict[str, Any]]) -> list[str]:
    headings = [figure_heading(rows), *_SIDES, "change", "%", "interval of change", "verdict"]
    cells = [
        [
            shown_name(row),
            *(value_text(row["unit"], row[side]) for side in _SIDES),
            delta_text(row["unit"], row["delta"]),
            percent_change(row),
            interval_text(row),
            row["verdict"],
        ]
        for row in rows
    ]
    return table(headings, cells, n_words=1)


def _kernels(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    if not rows:
        return []
    cells = [
        [
            *(value_text("ns", row[f"{side}_ns_per_step"]) for side in _SIDES),
            delta_text("ns", row["delta_ns_per_step"]),
            escaped(row["name"], _LONGEST_NAME),
            row["phase"] or "",
            row["status"],
        ]
        for row in rows
    ]
    headings = [*_SIDES, "change", "kernel, per rank and step", "phase", ""]
    return [table(headings, cells, n_words=3)]


def _changes(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    if not rows:
        return []
    cells = [
        [escaped(cell, _LONGEST_NAME) for cell in change_cells(row)]
        for row in rows[:_SHOWN_CHANGES]
    ]
    found = [table(["what else changed", *_SIDES, "change"], cells, n_words=4)]
    more = len(rows) - _SHOWN_CHANGES
    return found + ([[f"Left out: {more} more (`--json` has all)."]] if more > 0 else [])
