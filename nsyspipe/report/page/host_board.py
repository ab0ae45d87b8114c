"""The host steps of a run without GPU activity, as a table of its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.metrics.host_steps import host_figures
from nsyspipe.report.host_steps_words import PARTS, host_cells, host_notes, slowest_first
from nsyspipe.report.page.tables import Column, Table, bars

if TYPE_CHECKING:
    import pyarrow as pa

    from nsyspipe.report.page.tables import Cell

__all__ = ["host_table"]

_SHOWN_RANKS = 64
_MEDIAN = 3


def host_table(host_steps: pa.Table) -> Table | None:
    """Return one row per process; None for a run with GPU activity, or without steps.

    Parameters
    ----------
    host_steps
        `schema.HOST_STEPS`.
    """
    if not host_steps.num_rows:
        return None
    figures = host_figures(host_steps)
    shown = slowest_first(figures, _SHOWN_RANKS)
    columns: list[list[Cell]] = [list(cells) for cells in zip(*map(host_cells, shown), strict=True)]
    medians = [one.median_ns for one in shown]
    columns[_MEDIAN] = bars(medians, [str(cell) for cell in columns[_MEDIAN]], "accent")
    headings = [
        Column("rank"),
        Column("report", "name"),
        Column("steps", hint="step ranges that were closed"),
        Column("median step", hint="from the start to the end of the NVTX range, on the host"),
        Column("slowest step"),
        Column("at step", hint="number of the slowest step"),
        *(Column(phase, hint="median on the host, inside the step") for phase in PARTS),
    ]
    note = " ".join(host_notes(figures, _SHOWN_RANKS)) or None
    return Table("Host steps", headings, [*zip(*columns, strict=True)], note)
