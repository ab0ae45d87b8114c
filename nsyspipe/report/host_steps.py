"""The host steps of a run without GPU activity, and how a run was captured, in words and for the terminal."""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from nsyspipe.analysis.summary import (
    MUCH_RATIO,
    fastest_and_slowest,
    host_figures,
    longest_between,
    uneven_backward,
)
from nsyspipe.model.text import printable
from nsyspipe.report.as_text import dim, grid
from nsyspipe.report.units import absent, ms_text, percent_text
from nsyspipe.report.words import left_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from nsyspipe.analysis.summary import HostFigures
    from nsyspipe.model.sidecar import RunCapture


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
        notes.append(f"{n_open} step {what} had not ended when the capture did; {they} in no figure here.")
    if any(one.rank is None for one in figures):
        notes.append("Which process is which rank was not recorded; --rank-map says it.")
    if len(figures) > n_shown:
        notes.append(f"These are the {n_shown} slowest of {len(figures)} processes; --json has all.")
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


_SHOWN_RANKS = 16
_HEADINGS = ("rank", "report", "steps", "median\nstep", "slowest\nstep", "at\nstep", *PARTS)
_REPORT = "report"
# A narrower terminal gets fewer columns rather than cut numbers: first those without a time.
_FULL_WIDTH, _PARTS_WIDTH = 92, 78
_UNNEEDED = ("at\nstep",)
_FEW = ("rank", _REPORT, "median\nstep", "backward", "other")
_UNIT = " ms"


def host_steps_text(host_steps: pa.Table, width: int) -> Group:
    """Return one row per process, at most `_SHOWN_RANKS`, and what is to be said of them."""
    figures = host_figures(host_steps)
    headings = _shown_headings(figures, width)
    table = grid()
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
        dim(notes),
        *(Text(printable(note)) for note in host_notes(figures, _SHOWN_RANKS)),
    )


def _shown_headings(figures: Sequence[HostFigures], width: int) -> list[str]:
    if width >= _FULL_WIDTH:
        return list(_HEADINGS)
    # One name is enough: the rank where every process has one, else the report.
    name = _REPORT if all(one.rank is not None for one in figures) else "rank"
    kept = _HEADINGS if width >= _PARTS_WIDTH else _FEW
    return [heading for heading in kept if heading not in (name, *_UNNEEDED)]


_SHOWN_DIGITS, _LONGEST_COMMAND = 10, 500


def capture_text(capture: RunCapture | None) -> str | None:
    """Return versions and commit in one line; None when no sidecar says any."""
    if capture is None:
        return None
    known = (
        ("torch", capture.torch_version),
        ("NCCL", capture.nccl_version),
        ("driver", capture.driver_version),
        ("commit", _commit(capture)),
    )
    return ", ".join(f"{name} {value}" for name, value in known if value) or None


def capture_rows(capture: RunCapture | None) -> list[tuple[str, str]]:
    """Return what is known of a capture, as pairs."""
    if capture is None:
        return []
    command = shlex.join(capture.command) if capture.command else None
    if command and len(command) > _LONGEST_COMMAND:
        command = f"{command[:_LONGEST_COMMAND]} \N{HORIZONTAL ELLIPSIS}"
    known = (
        ("command", command),
        ("commit", _commit(capture)),
        ("torch", capture.torch_version),
        ("NCCL", capture.nccl_version),
        ("CUDA", capture.cuda_version),
        ("driver", capture.driver_version),
    )
    return [(name, value) for name, value in known if value]


def _commit(capture: RunCapture) -> str | None:
    if capture.git_commit is None:
        return None
    shown = ", ".join(one[:_SHOWN_DIGITS] for one in capture.git_commit.split(", "))
    return f"{shown} with changes" if capture.git_is_dirty else shown
