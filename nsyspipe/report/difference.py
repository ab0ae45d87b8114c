"""A difference as text for the terminal, as JSON and as Markdown: verdict first, then where it comes from."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from nsyspipe.comparison.changes import top_kernels
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.model.text import printable
from nsyspipe.report.as_text import MAX_WIDTH, VERDICTS, apart, dim, grid, marked, rendered
from nsyspipe.report.difference_words import (
    change_cells,
    delta_text,
    figure_heading,
    gate_text,
    interval_cell,
    interval_text,
    notes,
    part_cells,
    part_rows,
    percent_change,
    shown_metrics,
    shown_name,
    side_text,
    value_text,
    verdict_text,
)
from nsyspipe.report.document import dumps
from nsyspipe.report.files import Format, identity_of_page, json_of
from nsyspipe.report.markdown import escaped, marked_as, marker, prose, table
from nsyspipe.report.units import percent_text
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from rich.console import Console, RenderableType
    from rich.table import Table

    from nsyspipe.comparison.difference import RunDifference, Side
    from nsyspipe.comparison.gate import Gate


_SIDES = ("baseline", "candidate")
_LONGEST_FACT, _LONGEST_VALUE = 40, 20
# A narrower terminal gets fewer columns rather than cut numbers: of the figures' table these go first.
_LESS_NEEDED = (("interval",), _SIDES, ("verdict",))
_WORDS_WIDTH, _LEAST_NAME, _GAP = 79, 16, 2
_SHOWN_CHANGES = 20


def difference_text(
    difference: RunDifference,
    console: Console,
    gate: Gate | None = None,
    *,
    settings_file: str | None = None,
) -> str:
    """Return a difference as text for a console, at most 100 columns wide."""
    return rendered(Group(*_sections(difference, console.width, gate, settings_file)), console)


def _sections(
    difference: RunDifference, width: int, gate: Gate | None, settings_file: str | None
) -> Iterable[RenderableType]:
    style = VERDICTS.get(difference.verdict, "")
    yield Text(printable(verdict_text(difference, gate)), style=f"bold {style}".strip())
    for name, side in zip(_SIDES, (difference.baseline, difference.candidate), strict=True):
        yield Text(printable(f"{name:<9}  {side_text(side)}"), style="dim")
    if checks := difference.comparability.to_pylist():
        words = (("not comparable" if row["blocks"] else "warning", row["message"], "", None) for row in checks)
        yield apart(marked(words))
    if difference.mean_step_time[2] is not None:
        yield apart(_parts(difference, width))
    yield apart(Group(*_metrics(shown_metrics(difference), width)))
    if kernels := top_kernels(difference.kernels).to_pylist():
        yield apart(_kernels(kernels, width))
    if changes := difference.changes.to_pylist():
        yield apart(_changes(changes, width))
    if said := notes(difference, settings_file):
        yield apart(dim(said))


def _parts(difference: RunDifference, width: int) -> Table:
    heading = "mean on the slowest rank" if width >= _WORDS_WIDTH else "slowest rank"
    table = _grid(heading, *_SIDES, "change")
    for name, row in part_rows(difference):
        table.add_row(name, *part_cells(row))
    return table


def _metrics(rows: Sequence[dict[str, Any]], width: int) -> Iterable[RenderableType]:
    names = ["figure", *_SIDES, "change", "%", "interval", "verdict"]
    if all(row["ci_low"] is None for row in rows):
        names.remove("interval")
    cells = [_metric_cells(row) for row in rows]
    headings = dict(zip(names, names, strict=True)) | {
        "figure": figure_heading(rows),
        "interval": f"{percent_text(rows[0]['confidence'], 0)} interval",
    }
    left_out: list[str] = []
    for group in _LESS_NEEDED:
        columns = [[headings[name], *(row[name] for row in cells)] for name in names]
        if _width(columns) <= min(width, MAX_WIDTH):
            break
        left_out += [name for name in group if name in names]
        names = [name for name in names if name not in group]
    table = _grid(*(headings[name] for name in names), n_words=1 if "verdict" in names else 0)
    for row in cells:
        style = VERDICTS.get(row["verdict"], "")
        table.add_row(*(Text(row[name], style=style if name == "verdict" else "") for name in names))
    yield table
    if left_out:
        yield _left_out(*left_out)


def _metric_cells(row: dict[str, Any], *, is_short: bool = True) -> dict[str, str]:
    short = _short if is_short else str
    percent = percent_change(row)
    return {
        "figure": shown_name(row),
        **{side: short(value_text(row["unit"], row[side])) for side in _SIDES},
        "change": short(delta_text(row["unit"], row["delta"])),
        "%": percent.removesuffix(" %") if is_short else percent,
        "interval": interval_cell(row) if is_short else interval_text(row),
        "verdict": row["verdict"],
    }


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + _GAP for column in columns) - _GAP


def _short(text: str) -> str:
    return text.replace(" steps/s", " /s")


def _kernels(rows: Sequence[dict[str, Any]], width: int) -> Group:
    is_wide = width >= _WORDS_WIDTH
    headings = [*_SIDES, "change", *(["phase", ""] if is_wide else [])]
    cells = [
        [
            *_kernel_times(row),
            row["phase"] or "",
            "" if row["status"] == "changed" else row["status"],
        ][: len(headings)]
        for row in rows
    ]
    # Names of kernels can be as long as they like; figures are never cut for them.
    taken = _width(list(zip(headings, *cells, strict=True)))
    longest = max(min(width, MAX_WIDTH) - taken - _GAP, _LEAST_NAME)
    table = _grid("kernels, per rank and step", *headings, n_words=len(headings) - 3)
    for row, others in zip(rows, cells, strict=True):
        table.add_row(Text(_cut(row["name"], longest)), *others)
    return Group(table, *([] if is_wide else [_left_out("phase", "status")]))


def _kernel_times(row: dict[str, Any]) -> list[str]:
    sides = [value_text("ns", row[f"{side}_ns_per_step"]) for side in _SIDES]
    return [*sides, delta_text("ns", row["delta_ns_per_step"])]


def _changes(rows: Sequence[dict[str, Any]], width: int) -> Group:
    is_wide = width >= _WORDS_WIDTH
    cells = [change_cells(row) for row in rows[:_SHOWN_CHANGES]]
    shown = [[_cut(cell, _LONGEST_VALUE) for cell in row[1:]] for row in cells]
    headings = [*_SIDES, "change"] if is_wide else list(_SIDES)
    columns = [[heading, *column] for heading, column in zip(headings, zip(*shown, strict=True), strict=False)]
    longest = min(max(min(width, MAX_WIDTH) - _width(columns) - _GAP, _LEAST_NAME), _LONGEST_FACT)
    table = _grid("what else changed", *headings)
    for (what, *_), others in zip(cells, shown, strict=True):
        table.add_row(Text(_cut(what, longest)), *map(Text, others[: len(headings)]))
    below = [] if is_wide else [_left_out("change")]
    if len(rows) > _SHOWN_CHANGES:
        more = f"and {len(rows) - _SHOWN_CHANGES} more; --json has all"
        below.append(Text(more, style="dim"))
    return Group(table, *below)


def _left_out(*columns: str) -> Text:
    return Text(f"Left out, for want of width: {', '.join(columns)}.", style="dim")


def _cut(text: str, longest: int) -> str:
    text = printable(text)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _grid(*headings: str, n_words: int = 0) -> Table:
    """Return a table whose first column and last `n_words` hold words, the others figures."""
    table = grid()
    for at, heading in enumerate(headings):
        is_word = at == 0 or at >= len(headings) - n_words
        # What is too long is cut: of all columns only names can be.
        table.add_column(heading, justify="left" if is_word else "right", no_wrap=True)
    return table


def difference_document(
    difference: RunDifference, gate: Gate | None = None, *, settings_file: str | None = None
) -> dict[str, Any]:
    """Return the document as plain Python values, in a fixed order.

    ``baseline`` and ``candidate`` are the run object of the side's first capture with the side's label, and
    ``captures``, the run ids of all. ``step_time_parts`` sum to ``mean_step_time`` and ``idle_causes`` to the part
    idle, exactly. ``kernels`` are the ten largest differences.
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


# Name of the meta element that says which runs a page compares.
DIFF_RUNS = "nsyspipe-diff-runs"
_SHOWN_KERNELS, _MARKDOWN_CHANGES, _LONGEST_NAME = 5, 12, 60


def difference_markdown(
    difference: RunDifference, gate: Gate | None = None, *, settings_file: str | None = None
) -> str:
    """Return a difference in GitHub's Markdown: the same for the same runs.

    The first lines are comments, which are not shown: `marker`.
    """
    why = gate_text(gate) if gate else None
    sides = zip(_SIDES, (difference.baseline, difference.candidate), strict=True)
    blocks = [
        marker("diff", "runs", json.dumps(identity_of(difference))),
        [f"**{escaped(verdict_text(difference, gate))}**"],
        [f"Gate {gate.outcome}: {escaped(why)}"] if gate and why else [],
        [f"- {name}: {escaped(side_text(side))}" for name, side in sides],
        [_check(row) for row in difference.comparability.to_pylist()],
    ]
    if difference.mean_step_time[2] is not None:
        headings = ["mean on the slowest rank", *_SIDES, "change"]
        parts = [[name.replace("  ", "of it "), *part_cells(row)] for name, row in part_rows(difference)]
        blocks.append(table(headings, parts))
    blocks.append(_markdown_metrics(shown_metrics(difference)))
    blocks += _markdown_kernels(top_kernels(difference.kernels, _SHOWN_KERNELS).to_pylist())
    blocks += _markdown_changes(difference.changes.to_pylist())
    blocks.append([prose(note) + "<br>" for note in notes(difference, settings_file)])
    blocks.append([f"nsyspipe {__version__}: `nsyspipe diff BASELINE CANDIDATE` shows more."])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def difference_formats(
    difference: RunDifference, gate: Gate | None = None, *, settings_file: str | None = None
) -> dict[str, Format]:
    """Return how a difference is written in each format, and how a file of it says which runs it is of."""

    def page() -> str:
        from nsyspipe.report.html.difference_page import difference_page

        return difference_page(difference, gate, settings_file=settings_file)

    def text_by(write: Callable[..., str]) -> Callable[[], str]:
        return lambda: write(difference, gate, settings_file=settings_file)

    return {
        "json": Format(text_by(difference_document_text), identity_of_document),
        "markdown": Format(text_by(difference_markdown), identity_of_markdown),
        "html": Format(page, identity_of_difference_page),
    }


def identity_of_markdown(path: Path) -> list[list[str]] | None:
    """Return the run ids of both sides of a file of `difference_markdown`; None if it is no such file."""
    return _sides_of(marked_as(path, "diff", "runs"))


def identity_of_difference_page(path: Path) -> list[list[str]] | None:
    """Return the run ids of both sides of a page of a difference; None for any other file."""
    return _sides_of(identity_of_page(path, DIFF_RUNS))


def _sides_of(text: str | None) -> list[list[str]] | None:
    try:
        sides = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return sides if isinstance(sides, list) else None


def _check(row: dict[str, Any]) -> str:
    word = "not comparable" if row["blocks"] else "warning"
    return f"- **{word}**: {escaped(row['message'])}"


def _markdown_metrics(rows: Sequence[dict[str, Any]]) -> list[str]:
    headings = [figure_heading(rows), *_SIDES, "change", "%", "interval of change", "verdict"]
    cells = [[*_metric_cells(row, is_short=False).values()] for row in rows]
    return table(headings, cells, n_words=1)


def _markdown_kernels(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    if not rows:
        return []
    cells = [
        [
            *_kernel_times(row),
            escaped(row["name"], _LONGEST_NAME),
            row["phase"] or "",
            row["status"],
        ]
        for row in rows
    ]
    headings = [*_SIDES, "change", "kernel, per rank and step", "phase", ""]
    return [table(headings, cells, n_words=3)]


def _markdown_changes(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    if not rows:
        return []
    cells = [[escaped(cell, _LONGEST_NAME) for cell in change_cells(row)] for row in rows[:_MARKDOWN_CHANGES]]
    found = [table(["what else changed", *_SIDES, "change"], cells, n_words=4)]
    more = len(rows) - _MARKDOWN_CHANGES
    return found + ([[f"Left out: {more} more (`--json` has all)."]] if more > 0 else [])
