"""Changes of the program: gradients in buckets of another size, balanced ranks, casts to 16 bits, no copies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nsyspipe.replay.gradients import MIB, bucket_ends, gradient_copies
from nsyspipe.replay.program import JOIN, READY, WINDOW, Program, Slowing, captured_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.model.types import Flags, Float64, Int64
    from nsyspipe.replay.gradients import Gradients
    from nsyspipe.replay.program import Captured


# Sizes by the transfers differ so much from the true ones, of the largest; numbers by estimated sizes likewise.
_SAME_SIZE, _SAME_NUMBER = 0.15, 0.06
_COLUMNS = ("step", "lag_ns", "transfer_ns", "n_bytes", "late_beside_ns", "longer_beside")
# By how much collectives took longer beside work than alone, over host memory and NVLink: between 0 and 6 %.
_LONGER_BESIDE = 0.02
# A block of a kernel seldom runs longer.
_LONGEST_BLOCK_NS = 250_000.0
_PLACES = ("work", "beside", "begun", "begun_beside")


def with_buckets(
    captured: Captured, gradients: Sequence[Gradients | None], cap_mib: float, overhead_ns: float
) -> Program:
    """Return the program with each step's gradients in buckets of another size.

    A bucket may be sent when its last gradient is ready, and is waited for where its gradients were copied out, or
    where the capture waited. Its transfer is overhead + bytes x (sum of captured transfers less their overheads) /
    bytes of the step.

    Parameters
    ----------
    gradients
        Of each step; where None, the step stays as it is.
    overhead_ns
        Of each collective, whatever its size.
    """
    program = captured.program
    found = []
    for step, own in enumerate(gradients):
        chosen = np.flatnonzero((program.step == step) & program.is_gradient)
        if own is not None and chosen.size:
            ends = bucket_ends(own.n_bytes, cap_mib)
            found.append((step, chosen, own, ends, _is_own(program, chosen, own, ends, cap_mib)))
    if 2 * sum(is_own for *_, is_own in found) >= len(found):
        return program
    builder = _Builder(captured, overhead_ns)
    for step, chosen, own, ends, _ in found:
        builder.replace_step(step, chosen, own, ends)
    return builder.program()


def _is_own(program: Program, chosen: Int64, own: Gradients, ends: Int64, cap_mib: float) -> bool:
    """Tell whether a cap gives the captured buckets: by their sizes, or where those are estimates by their number."""
    captured = program.n_bytes[chosen]
    if not captured.sum() > 0:  # not of what holds a NaN
        captured = program.transfer_ns[chosen].mean(axis=1)
    captured = captured * (own.total / max(float(captured.sum()), 1.0))
    if own.is_exact:
        sizes = np.diff(np.cumsum(own.n_bytes)[ends], prepend=0.0)
        return sizes.size == captured.size and bool(
            (np.abs(sizes - captured) <= _SAME_SIZE * captured.max()).all()
        )
    # All but the last are full.
    fullest = captured[:-1].min(initial=np.inf)
    is_possible = cap_mib * MIB <= (1 + _SAME_NUMBER) * fullest
    return is_possible and abs(ends.size - chosen.size) <= max(_SAME_NUMBER * chosen.size, 1.0)


def _slot_ns(captured: Captured) -> float:
    """Return how long a collective waits for a place on the GPU beside a backward pass: half a kernel, or block of one.

    Of kernels by their share of the time: the mean time that one has left which is under way.
    """
    parts = []
    for one in captured.timelines:
        length = (one.end - one.start)[one.is_compute].astype(np.float64)
        parts.append(
            (length * np.minimum(length, _LONGEST_BLOCK_NS)).sum() / (2 * max(length.sum(), 1.0))
        )
    return float(np.mean(parts))


class _Builder:
    """Collects the markers and collectives that stay and those that are new."""

    def __init__(self, captured: Captured, overhead_ns: float) -> None:
        self._captured, self._overhead = captured, overhead_ns
        self._program = captured.program
        self._gone = np.zeros(self._program.step.size, np.bool_)
        self._new: list[dict[str, Float64 | Int64]] = []
        self._markers: list[tuple[Float64, int, list[Float64]]] = []  # sort key, kind, `_PLACES`
        self._n_new = 0
        self._slot_ns = _slot_ns(captured)

    def replace_step(self, step: int, chosen: Int64, own: Gradients, ends: Int64) -> None:
        program = self._program
        self._gone[chosen] = True
        sizes = np.diff(np.cumsum(own.n_bytes)[ends], prepend=0.0)
        transfer = program.transfer_ns[chosen].mean(axis=1)
        overheads = np.minimum(self._overhead, transfer / 2).sum()
        per_byte = max(float(transfer.sum() - overheads), 0.0) / own.total
        shape = (ends.size, program.n_ranks)
        lag = np.maximum(np.median(program.lag_ns[chosen], axis=0), 0.0)
        # The captured lags and transfers of several buckets hold what work beside them does.
        is_alone = chosen.size == 1
        self._new.append(
            {
                "step": np.full(ends.size, step),
                "lag_ns": np.broadcast_to(lag, shape),
                "transfer_ns": np.broadcast_to(
                    (self._overhead + sizes * per_byte)[:, np.newaxis], shape
                ),
                "n_bytes": sizes,
                "late_beside_ns": np.full(ends.size, self._slot_ns if is_alone else 0.0),
                "longer_beside": np.full(ends.size, _LONGER_BESIDE if is_alone else 0.0),
            }
        )
        self._place(chosen, READY, own.ready[ends])
        self._place(chosen, JOIN, self._join_times(step, chosen, sizes))
        self._n_new += ends.size

    def _join_times(self, step: int, chosen: Int64, sizes: Float64) -> Float64:
        """Return where each bucket is waited for: before its first gradient's copy, else where the capture waited last."""
        columns = []
        for rank, (timeline, markers) in enumerate(
            zip(self._captured.timelines, self._captured.ranks, strict=True)
        ):
            copies = gradient_copies(self._captured, step, rank)
            rows = copies.rows
            if rows.size:
                copied = np.cumsum(copies.n_bytes)
                before = (np.cumsum(sizes) - sizes) / sizes.sum() * copied[-1]
                at = np.minimum(np.searchsorted(copied, before, side="right"), rows.size - 1)
                places = rows[at]
            else:
                last = min(int(markers.join[chosen].max()), timeline.start.size)
                places = np.full(sizes.size, last)
            free = np.append(0, np.maximum.accumulate(timeline.end))
            columns.append(np.maximum(free[places], self._captured.windows.edges[0, rank]))
        return np.stack(columns, axis=1).astype(np.float64)

    def _place(self, chosen: Int64, kind: int, times: Float64) -> None:
        program = self._program
        at = np.flatnonzero((program.kind == kind) & np.isin(program.which, chosen)).max()
        pairs = [
            one.places(times[:, rank].astype(np.int64))
            for rank, one in enumerate(self._captured.ranks)
        ]
        found = [np.stack(column, axis=1) for column in zip(*pairs, strict=True)]
        # All of them stand where the last of the captured ones stood.
        self._markers.append((np.full(times.shape[0], at), kind, found))

    def program(self) -> Program:
        program = self._program
        kept = np.flatnonzero(~self._gone)
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(program, name)[kept], *(one[name] for one in self._new)])
            for name in _COLUMNS
        }
        nothing, new = np.zeros(self._n_new, np.int64), np.ones(self._n_new, np.bool_)
        return replace(
            program,
            chain=np.concatenate((program.chain[kept], nothing)),
            is_gradient=np.concatenate((program.is_gradient[kept], new)),
            **columns,
            **self._merged_markers(kept.size),
        )

    def _merged_markers(self, n_kept: int) -> dict[str, Any]:
        """Return the markers that stay and the new ones, in order."""
        program = self._program
        is_comm = program.kind != WINDOW
        collective = np.where(is_comm, program.which, 0)
        rows = np.flatnonzero(~(is_comm & self._gone[collective]))
        number = np.cumsum(~self._gone) - 1
        which = np.where(is_comm, number[collective], program.which)
        keys: list[Float64] = [rows.astype(np.float64)]
        kinds, whiches = [program.kind[rows]], [which[rows]]
        places = [[getattr(program, name)[rows]] for name in _PLACES]
        counts = {READY: n_kept, JOIN: n_kept}
        for key, kind, found in self._markers:
            keys.append(key)
            kinds.append(np.full(key.size, kind))
            whiches.append(counts[kind] + np.arange(key.size))
            for columns, column in zip(places, found, strict=True):
                columns.append(column)
            counts[kind] += key.size
        of_all = np.concatenate(whiches)
        order = np.lexsort((of_all, np.concatenate(keys)))
        return {
            "kind": np.concatenate(kinds)[order],
            "which": of_all[order],
            **{
                name: np.concatenate(columns)[order]
                for name, columns in zip(_PLACES, places, strict=True)
            },
        }


# Changes of a program that leave its collectives as they are: balanced ranks, no copies, casts.


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


def _along(places: Float64, rows: Int64, ranks: Int64) -> Float64:
    """Return the places of the markers when each piece between two of them is that of the rank chosen for it."""
    pieces = np.diff(places, axis=0)[rows, ranks]
    return np.concatenate(([0.0], np.cumsum(pieces)))[:, np.newaxis]


def with_casts(program: Program, copies_ns: float) -> tuple[Program, Float64]:
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
