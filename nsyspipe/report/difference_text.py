"""A difference for the terminal: verdict first, where it comes from, the figures, what changed around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsyspipe.difference.kernel_changes import top_kernels
from nsyspipe.report.difference_figures import delta_text, interval_cell, percent_change, value_text
from nsyspipe.report.difference_words import (
    change_cells,
    figure_heading,
    notes,
    part_rows,
    shown_metrics,
    shown_name,
    side_text,
    verdict_text,
)
from nsyspipe.report.text import MAX_WIDTH, rendered
from nsyspipe.units import percent_text
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType

    from nsyspipe.difference.run_difference import RunDifference
    from nsyspipe.gate import Gate

__all__ = ["difference_text"]

_STYLES = {
    "improvement": "green",
    "regression": "bold red",
    "inconclusive": "yellow",
    "no change": "",
}
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
    """Return a difference as text for a console, at most 100 columns wide.

    Parameters
    ----------
    gate
        What the gate said, if one was asked for.
    settings_file
        The file that set thresholds; None without one.
    """
    return rendered(Group(*_sections(difference, console.width, gate, settings_file)), console)


def _sections(
    difference: RunDifference, width: int, gate: Gate | None, settings_file: str | None
) -> Iterable[RenderableType]:
    style = _STYLES.get(difference.verdict, "")
    yield Text(printable(verdict_text(difference, gate)), style=f"bold {style}".strip())
    for name, side in zip(_SIDES, (difference.baseline, difference.candidate), strict=True):
        yield Text(printable(f"{name:<9}  {side_text(side)}"), style="dim")
    if checks := difference.comparability.to_pylist():
        yield _padded(_checks(checks))
    if difference.mean_step_time[2] is not None:
        yield _padded(_parts(difference, width))
    yield _padded(Group(*_metrics(shown_metrics(difference), width)))
    if kernels := top_kernels(difference.kernels).to_pylist():
        yield _padded(_kernels(kernels, width))
    if changes := difference.changes.to_pylist():
        yield _padded(_changes(changes, width))
    if said := notes(difference, settings_file):
        yield _padded(Text("\n".join(map(printable, said)), style="dim"))


def _padded(content: RenderableType) -> Padding:
    return Padding(content, (1, 0, 0, 0))


def _checks(checks: Sequence[dict[str, Any]]) -> Table:
    table = _grid()
    table.show_header = False
    table.add_column()
    table.add_column(overflow="fold", ratio=1)
    for row in checks:
        word = Text("not comparable", style="bold red") if row["blocks"] else Text("warning", style="yellow")  # fmt: skip
        table.add_row(word, Text(printable(row["message"])))
    return table


def _parts(difference: RunDifference, width: int) -> Table:
    heading = "mean on the slowest rank" if width >= _WORDS_WIDTH else "slowest rank"
    table = _grid(heading, *_SIDES, "change")
    for row in part_rows(difference):
        table.add_row(*row)
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
        style = _STYLES.get(row["verdict"], "")
        table.add_row(
            *(Text(row[name], style=style if name == "verdict" else "") for name in names)
        )
    yield table
    if left_out:
        yield _left_out(*left_out)


def _metric_cells(row: dict[str, Any]) -> dict[str, str]:
    return {
        "figure": shown_name(row),
        **{side: _short(value_text(row["unit"], row[side])) for side in _SIDES},
        "change": _short(delta_text(row["unit"], row["delta"])),
        "%": percent_change(row).removesuffix(" %"),
        "interval": interval_cell(row),
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
            *(value_text("ns", row[f"{side}_ns_per_step"]) for side in _SIDES),
            delta_text("ns", row["delta_ns_per_step"]),
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


def _changes(rows: Sequence[dict[str, Any]], width: int) -> Group:
    is_wide = width >= _WORDS_WIDTH
    cells = [change_cells(row) for row in rows[:_SHOWN_CHANGES]]
    shown = [[_cut(cell, _LONGEST_VALUE) for cell in row[1:]] for row in cells]
    headings = [*_SIDES, "change"] if is_wide else list(_SIDES)
    columns = [
        [heading, *column]
        for heading, column in zip(headings, zip(*shown, strict=True), strict=False)
    ]
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
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for at, heading in enumerate(headings):
        is_word = at == 0 or at >= len(headings) - n_words
        # What is too long is cut: of all columns only names can be.
        table.add_column(heading, justify="left" if is_word else "right", no_wrap=True)
    return table
