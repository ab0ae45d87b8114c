"""Findings and the link, for the terminal: what to change first, and what it could bring at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsyspipe.report.run_words import expected_text, saving_texts
from nsyspipe.units import absent, bandwidth_text
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsyspipe.findings.link_evidence import LinkVerdict

__all__ = ["findings_text", "link_text"]

# On a narrower terminal a column of words would be a few letters wide.
_TABLE_WIDTH = 79
# Two lines of a terminal, less what breaking between words costs.
_LINK_LENGTH = 185
_STYLES = {"high": "bold red", "medium": "yellow", "low": "dim"}


def findings_text(
    findings: Sequence[Mapping[str, Any]],
    step_time_ns: float | None,
    n_shown: int | None,
    width: int = _TABLE_WIDTH,
) -> RenderableType:
    """Return what to change first, each with the most that it could bring: a line per finding, or all in full.

    Parameters
    ----------
    findings
        Rows of `schema.FINDINGS`.
    n_shown
        How many of them, a line each; None shows all with what was found and the whole advice.
    width
        Columns of the terminal; on a narrow one what to change stands below its figures, as the whole advice does.
    """
    shown = findings[:n_shown]
    is_brief = n_shown is not None
    is_table = is_brief and width >= _TABLE_WIDTH
    more = len(findings) - len(shown)
    hint = f"; {more} more, and why: --findings all" if more else "; why: --findings all"
    title = Text("What to change first", style="bold")
    is_replayed = any(row["expected_ns_per_step"] is not None for row in shown)
    most = f"most it gives back per step{', ~ in a replay' if is_replayed else ''}"
    title.append(f" ({most}{hint if is_brief else ''})", style="not bold dim")
    rows = [
        (
            _figures(row, step_time_ns, is_replayed=is_replayed, is_short=is_table),
            Text(row["id"], style=_STYLES[row["severity"]]),
            _what(row, is_brief=is_brief),
        )
        for row in shown
    ]
    if is_table:
        return Group(title, _table(rows))
    widths = [max(map(len, column)) for column in zip(*(row[0] for row in rows), strict=True)]
    below = [
        (
            Text("  ".join(map(str.rjust, figures, widths))).append("  ").append(name),
            Padding(what, (0, 0, 0, 4)),
        )
        for figures, name, what in rows
    ]
    return Group(title, *(part for parts in below for part in parts))


def _what(row: Mapping[str, Any], *, is_brief: bool) -> Text:
    """Return what to change in a few words, or what was found and the whole advice."""
    if is_brief:
        return Text(printable(row["action"]))
    return Text(f"{printable(row['title'])}\n").append(row["advice"], style="dim")


def _table(rows: Sequence[tuple[tuple[str, ...], Text, Text]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in zip(*(figures for figures, _, _ in rows), strict=True):
        table.add_column(justify="right", no_wrap=True, min_width=max(map(len, column)))
    table.add_column(no_wrap=True, min_width=max(len(name) for _, name, _ in rows))
    table.add_column(ratio=1)
    for figures, name, what in rows:
        table.add_row(*figures, name, what)
    return table


def _figures(
    row: Mapping[str, Any], step_time_ns: float | None, *, is_replayed: bool, is_short: bool
) -> tuple[str, ...]:
    """Return a saving's bound, what share of the step time it is, and the share that a replay expects.

    Where there is a replay and room is short, the shares alone.
    """
    most, share = saving_texts(row["saving_ns_per_step"], step_time_ns)
    if not is_replayed:
        return _at_most(most), share
    expected = expected_text(row["expected_ns_per_step"], step_time_ns)
    return (_at_most(share), expected) if is_short else (_at_most(most), share, expected)


def _at_most(text: str) -> str:
    return text if text == absent else f"<= {text}"


def link_text(verdict: LinkVerdict | None) -> str | None:
    """Return what communication crosses, on which edges, and how much of its bandwidth the run reached; in two lines.

    None when the link is not known. A bandwidth that was estimated has an ``about``.
    """
    if verdict is None or verdict.slowest is None:
        return None
    link = verdict.slowest
    rest = f"; {link.edges}"
    nominal = link.nominal_bytes_per_s
    if verdict.busbw_bytes_per_s is not None:
        about = "about " if verdict.is_estimate else ""
        rest += f"; bus bandwidth {about}{bandwidth_text(verdict.busbw_bytes_per_s)}"
        rest += f" of {bandwidth_text(nominal)} nominal" if nominal else ""
    elif nominal:
        rest += f"; nominal {bandwidth_text(nominal)}"
    room = _LINK_LENGTH - len(rest)
    text = printable(f"link: {link.text}")
    return (text if len(text) <= room else f"{text[: room - 3].rstrip()}...") + rest
