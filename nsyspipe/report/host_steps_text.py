"""The host steps of a run without GPU activity, for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from nsyspipe.metrics.host_steps import host_figures
from nsyspipe.report.host_steps_words import PARTS, host_cells, host_notes, slowest_first
from nsyspipe.report.run_words import left_out
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from nsyspipe.metrics.host_steps import HostFigures

__all__ = ["host_steps_text"]

_SHOWN_RANKS = 16
_HEADINGS = ("rank", "report", "steps", "median\nstep", "slowest\nstep", "at\nstep", *PARTS)
_REPORT = "report"
# A narrower terminal gets fewer columns rather than cut numbers: first those without a time.
_FULL_WIDTH, _PARTS_WIDTH = 92, 78
_UNNEEDED = ("at\nstep",)
_FEW = ("rank", _REPORT, "median\nstep", "backward", "other")
_UNIT = " ms"


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
    headings = _shown_headings(figures, width)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        if heading == _REPORT:
            table.add_column(heading, overflow="fold")
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    for one in slowest_first(figures, _SHOWN_RANKS):
        cells = dict(zip(_HEADINGS, host_cells(one), strict=True))
        table.add_row(*(printable(cells[name].removesuffix(_UNIT)) for name in headings))
    unit = "Times in ms; of phases and the rest (other) the median."
    notes = (unit, *left_out(_HEADINGS, headings))
    return Group(
        table,
        Text("\n".join(notes), style="dim"),
        *(Text(printable(note)) for note in host_notes(figures, _SHOWN_RANKS)),
    )


def _shown_headings(figures: Sequence[HostFigures], width: int) -> list[str]:
    if width >= _FULL_WIDTH:
        return list(_HEADINGS)
    # One name is enough: the rank where every process has one, else the report.
    name = _REPORT if all(one.rank is not None for one in figures) else "rank"
    kept = _HEADINGS if width >= _PARTS_WIDTH else _FEW
    return [heading for heading in kept if heading not in (name, *_UNNEEDED)]
