"""Findings and the link, for the terminal: what to change first, and what it could bring at most."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsyspipe.slowest_link import slowest
from nsyspipe.units import absent, bandwidth_text, ms_text, percent_text
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

__all__ = ["findings_text", "link_text"]

# On a narrower terminal a column of words would be a few letters wide.
_TABLE_WIDTH = 79
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
    more = len(findings) - len(shown)
    hint = f"; {more} more, and why: --findings all" if more else "; why: --findings all"
    title = Text("What to change first", style="bold")
    title.append(f" (most it gives back per step{hint if is_brief else ''})", style="not bold dim")
    rows = [
        (
            *_figures(row["saving_ns_per_step"], step_time_ns),
            Text(row["id"], style=_STYLES[row["severity"]]),
            _what(row, is_brief=is_brief),
        )
        for row in shown
    ]
    if is_brief and width >= _TABLE_WIDTH:
        return Group(title, _table(rows))
    below = [
        (Text(f"{most}  {share}  ").append(name), Padding(what, (0, 0, 0, 4)))
        for most, share, name, what in rows
    ]
    return Group(title, *(part for parts in below for part in parts))


def _what(row: Mapping[str, Any], *, is_brief: bool) -> Text:
    """Return what to change in a few words, or what was found and the whole advice."""
    if is_brief:
        return Text(printable(row["action"]))
    return Text(f"{printable(row['title'])}\n").append(row["advice"], style="dim")


def _table(rows: Sequence[tuple[str, str, Text, Text]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column, side in zip(zip(*rows, strict=True), ("right", "right", "left"), strict=False):
        table.add_column(justify=side, no_wrap=True, min_width=max(map(len, column)))  # type: ignore[arg-type]  # a side
    table.add_column(ratio=1)
    for row in rows:
        table.add_row(*row)
    return table


def _figures(saving: float | None, step_time_ns: float | None) -> tuple[str, str]:
    """Return a saving's bound, and what share of the step time it is."""
    if not saving:
        return absent, absent
    return f"<= {ms_text(saving)}", percent_text(saving / step_time_ns if step_time_ns else None)


def link_text(
    links: pa.Table, findings: Sequence[Mapping[str, Any]], busbw: float | None
) -> str | None:
    """Return one line on what communication crosses, and how much of its bandwidth the run reached; None without links.

    Parameters
    ----------
    links, findings
        `schema.LINKS` and rows of `schema.FINDINGS`.
    busbw
        Measured bus bandwidth; without it the estimate of a finding, if there is one.
    """
    link = slowest(links)
    if link is None:
        return None
    text = f"link: {link.text}"
    about = ""
    if busbw is None:
        for row in findings:
            evidence = json.loads(row["evidence"])
            if evidence.get("busbw_bytes_per_s"):
                busbw, about = evidence["busbw_bytes_per_s"], "about "
    if busbw is not None:
        text += f"; bus bandwidth {about}{bandwidth_text(busbw)}"
        if link.nominal_bytes_per_s:
            text += f" of {bandwidth_text(link.nominal_bytes_per_s)} nominal"
    elif link.nominal_bytes_per_s:
        text += f"; nominal {bandwidth_text(link.nominal_bytes_per_s)}"
    return printable(text)
