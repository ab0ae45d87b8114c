"""What the summaries of a run without GPU activity say of its host steps, whatever they are written in."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from nsyspipe.metrics.host_steps import (
    MUCH_RATIO,
    fastest_and_slowest,
    longest_between,
    uneven_backward,
)
from nsyspipe.units import absent, ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.metrics.host_steps import HostFigures

__all__ = ["PARTS", "host_cells", "host_notes", "slowest_first"]

# As in a training loop.
LOOP = ("data", "forward", "backward", "optimizer")
# What follows the phases in a row: the rest of the step.
PARTS = (*LOOP, "other")
# Between these, two decimals say enough of what varies from step to step.
_TWO_DECIMALS_NS = range(10_000, 10_000_000)
_WAITING = "There ranks wait for each other:"


def host_cells(one: HostFigures) -> list[str]:
    """Return rank, report, steps, median step, slowest step and which it is, and the median of each of `PARTS`."""
    return [
        absent if one.rank is None else str(one.rank),
        _report(one),
        str(one.n_steps),
        _ms(one.median_ns),
        _ms(one.slowest_ns),
        absent if one.slowest_step is None else str(one.slowest_step),
        *(_ms(one.phase_ns[phase]) for phase in LOOP),
        _ms(one.other_ns),
    ]


def slowest_first(figures: Sequence[HostFigures], n_shown: int) -> list[HostFigures]:
    """Return the processes with the slowest median steps, as many as are shown, in the order that they had."""
    order = sorted(range(len(figures)), key=lambda at: (-(figures[at].median_ns or 0), at))
    return [figures[at] for at in sorted(order[:n_shown])]


def host_notes(figures: Sequence[HostFigures], n_shown: int) -> list[str]:
    """Return what stands below the table, sentence by sentence: the slowest, what was left out, names not known."""
    notes = []
    if pair := fastest_and_slowest(figures):
        notes.append(_slowest(*pair))
    elif pair := uneven_backward(figures):
        least, most = pair
        notes.append(
            f"Steps take equally long on all (within {percent_text(MUCH_RATIO, 0)}), but backward takes "
            f"{_ms(most.phase_ns['backward'])} on {_name(most)} and {_ms(least.phase_ns['backward'])} on "
            f"{_name(least)}. {_WAITING} {_name(least)} may be the one that is waited for."
        )
    if loading := longest_between(figures):
        where = f" on {_name(loading)}" if len(figures) > 1 else ""
        notes.append(
            f"Between two steps {_ms(loading.between_ns)} pass (median){where}, outside of every step: probably in "
            "the data loader."
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


def _slowest(fast: HostFigures, slow: HostFigures) -> str:
    """Name the slowest process, unless it may only be the one that waits."""
    fastest, slowest = fast.median_ns or 0, slow.median_ns or 0
    more = slowest - fastest
    share = f" ({percent_text(more / fastest)})" if fastest else ""
    longer = f"its median step takes {_ms(more)}{share} longer than that of {_name(fast)}"
    backward = [one.phase_ns["backward"] or 0 for one in (fast, slow)]
    if 2 * (backward[1] - backward[0]) < more:
        return f"Slowest: {_name(slow)}, {longer}."
    return f"Longest: {_name(slow)}, {longer}, most of it in backward. {_WAITING} {_name(slow)} may only wait."


def _ms(ns: int | None) -> str:
    if ns is None or ns not in _TWO_DECIMALS_NS:
        return ms_text(ns)
    return f"{ns / 1e6:.2f} ms"


def _name(one: HostFigures) -> str:
    return _report(one) if one.rank is None else f"rank {one.rank}"


def _report(one: HostFigures) -> str:
    """Return the report as --rank-map names it: of several processes with the pid."""
    stem = PurePath(one.report).stem
    return stem if one.is_alone else f"{stem}:{one.pid}"
