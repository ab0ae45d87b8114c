"""Changes of a program that leave its collectives as they are: balanced ranks, no copies, casts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.replay.copies import gradient_copies
from nsyspipe.replay.markers import captured_program
from nsyspipe.replay.program import READY, WINDOW, Slowing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.replay.markers import Captured
    from nsyspipe.replay.program import Program

    Int64 = NDArray[np.int64]
    Float = NDArray[np.float64]
    Flags = NDArray[np.bool_]

__all__ = ["balanced", "with_casts", "without_copies"]

# Casting to 16 bits, scaling and casting back reads and writes 16 bytes per element, copying one of 4 bytes 8: half
# of it before the collective.
_CASTS_IN_COPIES = 2.0


def balanced(program: Program, trusted: Flags, slowing: Slowing) -> Program:
    """Let all ranks work as one does: in each step the one in the middle, of an even number the faster.

    Parameters
    ----------
    trusted
        Ranks that may stand for all.
    slowing
        Of work beside communication in the capture.

    Returns
    -------
    Program
        Of one rank.
    """
    work = program.free_work(slowing)
    at_edges = np.flatnonzero(program.kind == WINDOW)
    candidates = np.flatnonzero(trusted)
    lengths = np.diff(work[at_edges], axis=0)[:, candidates]
    order = np.argsort(lengths, axis=1, kind="stable")
    chosen = candidates[order[:, (candidates.size - 1) // 2]]
    # What leads up to a marker belongs to the step that the marker before it is in.
    step = np.searchsorted(at_edges, np.arange(1, program.kind.size)) - 1
    ranks = chosen[np.clip(step, 0, chosen.size - 1)]
    rows = np.arange(ranks.size)
    of_collective = chosen[program.step][:, np.newaxis]
    return replace(
        program,
        begin_ns=program.begin_ns[:1],
        work=_along(program.work, rows, ranks),
        beside=_along(program.beside, rows, ranks),
        begun=_along(program.begun, rows, ranks),
        begun_beside=_along(program.begun_beside, rows, ranks),
        lag_ns=np.take_along_axis(program.lag_ns, of_collective, axis=1),
        transfer_ns=np.take_along_axis(program.transfer_ns, of_collective, axis=1),
    )


def _along(places: Float, rows: Int64, ranks: Int64) -> Float:
    """Return the places of the markers when each piece between two of them is that of the rank chosen for it."""
    pieces = np.diff(places, axis=0)[rows, ranks]
    return np.concatenate(([0.0], np.cumsum(pieces)))[:, np.newaxis]


def with_casts(program: Program, copies_ns: float) -> tuple[Program, Float]:
    """Let the casts of gradients to 16 bits and back take their time.

    Parameters
    ----------
    copies_ns
        What copying all gradients of a step once takes.

    Returns
    -------
    tuple
        The program with the casts before the collectives, and per collective how long the cast back takes.
    """
    own = program.transfer_ns.mean(axis=1) * program.is_gradient
    in_step = np.maximum(np.bincount(program.step, weights=own), 1.0)
    each = own / in_step[program.step] * copies_ns * _CASTS_IN_COPIES / 2
    added = np.zeros(program.kind.size)
    ready = program.kind == READY
    added[ready] = each[program.which[ready]]
    # The cast stands before its own collective, and before all that follows.
    return replace(program, work=program.work + np.cumsum(added)[:, np.newaxis]), each


def without_copies(captured: Captured) -> Captured:
    """Leave out what runs from the first copy to the last of those from buckets to gradients."""
    removed = []
    for rank, timeline in enumerate(captured.timelines):
        steps = range(captured.windows.steps.size)
        rows = [gradient_copies(captured, one, rank).rows for one in steps]
        runs = [
            part for one in rows for part in np.split(one, np.flatnonzero(np.diff(one) > 1) + 1)
        ]
        held = [one for one in runs if one.size]
        firsts = np.array([timeline.start[one[0]] for one in held], np.int64)
        removed.append((firsts, np.array([timeline.end[one[-1]] for one in held], np.int64)))
    program = captured.program
    return captured_program(
        captured.timelines, captured.windows, program.n_bytes, program.is_gradient, removed
    )
