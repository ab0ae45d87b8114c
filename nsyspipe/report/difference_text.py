"""A difference for the terminal: verdict first, where it comes from, the figures, what changed around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsyspipe.difference.kernel_changes import top_kernels
from nsyspipe.report.difference_words import (
    change_cells,
    delta_text,
    interval_cell,
    metric_name,
    notes,
    part_rows,
    percent_change,
    shown_metrics,
    side_text,
    value_text,
    verdict_text,
)
from nsyspipe.report.text import MAX_WIDTH, rendered
from nsyspipe.units import percent_text
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType

    from nsyspipe.difference.run_difference import RunDifference

__all__ = ["difference_text"]

_STYLES = {
    "improvement": "green",
    "regression": "bold red",
    "inconclusive": "yellow",
    "no change": "",
}
_SIDES = ("baseline", "candidate")
_LONGEST_FACT, _LONGEST_VALUE = 40, 20
# A narrower terminal gets fewer columns rather than cut numbers.
_INTERVAL_WIDTH, _WORDS_WIDTH, _LEAST_NAME = 90, 79, 16
_SHOWN_CHANGES = 20


def difference_text(
    difference: RunDifference, console: Console, *, settings_file: str | None = None
) -> str:
    """Return a difference as text for a console, at most 100 columns wide.

    Parameters
    ----------
    settings_file
        The file that set thresholds; None without one.
    """
    return rendered(Group(*_sections(difference, console.width, settings_file)), console)


def _sections(
    difference: RunDifference, width: int, settings_file: str | None
) -> Iterable[RenderableType]:
    style = _STYLES.get(difference.verdict, "")
    yield Text(printable(verdict_text(difference)), style=f"bold {style}".strip())
    for name, side in zip(_SIDES, (difference.baseline, difference.candidate), strict=True):
        yield Text(printable(f"{name:<9}  {side_text(side)}"), style="dim")
    if checks := difference.comparability.to_pylist():
        yield _padded(_checks(checks))
    if difference.mean_step_time[2] is not None:
        yield _padded(_parts(difference))
    yield _padded(_metrics(shown_metrics(difference), width))
    if kernels := top_kernels(difference.kernels).to_pylist():
        yield _padded(_kernels(kernels, width))
    if changes := difference.changes.to_pylist():
        yield _padded(_changes(changes))
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


def _parts(difference: RunDifference) -> Table:
    table = _grid("mean on the slowest rank", *_SIDES, "change")
    for row in part_rows(difference):
        table.add_row(*row)
    return table


def _metrics(rows: Sequence[dict[str, Any]], width: int) -> Table:
    has_interval = width >= _INTERVAL_WIDTH and any(row["ci_low"] is not None for row in rows)
    interval = [f"{percent_text(rows[0]['confidence'], 0)} interval"] if has_interval else []
    table = _grid("median over steps", *_SIDES, "change", "%", *interval, "verdict", n_words=1)
    for row in rows:
        table.add_row(
            metric_name(row["metric"]),
            *(_short(value_text(row["unit"], row[side])) for side in _SIDES),
            _short(delta_text(row["unit"], row["delta"])),
            percent_change(row).removesuffix(" %"),
            *([interval_cell(row)] if has_interval else []),
            Text(row["verdict"], style=_STYLES.get(row["verdict"], "")),
        )
    return table


def _short(text: str) -> str:
    return text.replace(" steps/s", " /s")


def _kernels(rows: Sequence[dict[str, Any]], width: int) -> Table:
    headings = [*_SIDES, "change", *(["phase", ""] if width >= _WORDS_WIDTH else [])]
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
    taken = [max(map(len, column)) + 2 for column in zip(headings, *cells, strict=True)]
    longest = max(min(width, MAX_WIDTH) - sum(taken) - 2, _LEAST_NAME)
    table = _grid("kernels, per rank and step", *headings, n_words=len(headings) - 3)
    for row, others in zip(rows, cells, strict=True):
        table.add_row(Text(_cut(row["name"], longest)), *others)
    return table


def _changes(rows: Sequence[dict[str, Any]]) -> Group | Table:
    table = _grid("what else changed", *_SIDES, "change")
    for row in rows[:_SHOWN_CHANGES]:
        what, before, after, delta = change_cells(row)
        sides = (Text(_cut(cell, _LONGEST_VALUE)) for cell in (before, after))
        table.add_row(Text(_cut(what, _LONGEST_FACT)), *sides, delta)
    if len(rows) > _SHOWN_CHANGES:
        more = f"and {len(rows) - _SHOWN_CHANGES} more; --json has all"
        return Group(table, Text(more, style="dim"))
    return table


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
