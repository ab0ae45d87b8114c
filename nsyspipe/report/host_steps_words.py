"""What the summaries of a run without GPU activity say of its host steps, whatever they are written in."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from nsyspipe.metrics.host_steps import fastest_and_slowest
from nsyspipe.units import absent, ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.metrics.host_steps import HostFigures

__all__ = ["LOOP", "host_cells", "host_notes", "slowest_first"]

# As in a training loop.
LOOP = ("data", "forward", "backward", "optimizer")


def host_cells(one: HostFigures) -> list[str]:
    """Return rank, report, steps, median step, slowest step and which it is, and the median of each phase of `LOOP`."""
    return [
        absent if one.rank is None else str(one.rank),
        _report(one),
        str(one.n_steps),
        ms_text(one.median_ns),
        ms_text(one.slowest_ns),
        absent if one.slowest_step is None else str(one.slowest_step),
        *(ms_text(one.phase_ns[phase]) for phase in LOOP),
    ]


def slowest_first(figures: Sequence[HostFigures], n_shown: int) -> list[HostFigures]:
    """Return the processes with the slowest median steps, as many as are shown, in the order that they had."""
    order = sorted(range(len(figures)), key=lambda at: (-(figures[at].median_ns or 0), at))
    return [figures[at] for at in sorted(order[:n_shown])]


def host_notes(figures: Sequence[HostFigures], n_shown: int) -> list[str]:
    """Return what stands below the table, sentence by sentence: the slowest, what was left out, names not known."""
    notes = []
    if pair := fastest_and_slowest(figures):
        fast, slow = pair
        fastest, slowest = fast.median_ns or 0, slow.median_ns or 0
        share = f" ({percent_text((slowest - fastest) / fastest)})" if fastest else ""
        notes.append(
            f"Slowest: {_name(slow)}, its median step takes {ms_text(slowest - fastest)}{share} longer than that of "
            f"{_name(fast)}."
        )
    if n_open := sum(one.n_open for one in figures):
        what, they = ("range", "it is") if n_open == 1 else ("ranges", "they are")
        notes.append(
            f"{n_open} step {what} had not ended when the capture did; {they} in no figure here."
        )
    if any(one.rank is None for one in figures):
        notes.append("Which process is which rank was not recorded; --rank-map says it.")
    if len(figures) > n_shown:
        notes.append(
            f"These are the {n_shown} slowest of {len(figures)} processes; --json has all."
        )
    return notes


def _name(one: HostFigures) -> str:
    return _report(one) if one.rank is None else f"rank {one.rank}"


def _report(one: HostFigures) -> str:
    """Return the report as --rank-map names it: of several processes with the pid."""
    stem = PurePath(one.report).stem
    return stem if one.is_alone else f"{stem}:{one.pid}"
