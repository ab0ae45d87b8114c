"""The host steps of a run without GPU activity, for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from nsyspipe.metrics.host_steps import host_figures
from nsyspipe.report.host_steps_words import LOOP, host_cells, host_notes, slowest_first
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["host_steps_text"]

_SHOWN_RANKS = 16
_HEADINGS = ("rank", "report", "steps", "median\nstep", "slowest\nstep", "at\nstep", *LOOP)
_REPORT = 1
# A narrower terminal gets no phases rather than cut numbers.
_FULL_WIDTH, _FEW_COLUMNS = 92, 6


def host_steps_text(host_steps: pa.Table, width: int) -> Group:
    """Return one row per process, at most `_SHOWN_RANKS`, and what is to be said of them.

    Parameters
    ----------
    host_steps
        `schema.HOST_STEPS`, with rows.
    width
        Of the terminal.
    """
    figures = host_figures(host_steps)
    headings = _HEADINGS if width >= _FULL_WIDTH else _HEADINGS[:_FEW_COLUMNS]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for at, heading in enumerate(headings):
        if at == _REPORT:
            table.add_column(heading, overflow="fold")
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    for one in slowest_first(figures, _SHOWN_RANKS):
        table.add_row(*(printable(cell) for cell in host_cells(one)[: len(headings)]))
    return Group(table, *(Text(printable(note)) for note in host_notes(figures, _SHOWN_RANKS)))
