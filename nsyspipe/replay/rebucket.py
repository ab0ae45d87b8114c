"""Changes of the program: gradients in buckets of another size or sent once, balanced ranks, 16 bits, no copies, prefetch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from nsyspipe.analysis.kernels import Slowing
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.replay.gradients import MIB, Gradients, bucket_ends, bucket_rows, gradient_copies
from nsyspipe.replay.program import CapturedSteps, RemovedWork, captured_program
from nsyspipe.replay.ranges import OVERHEADS_NS
from nsyspipe.replay.simulate import JOIN, READY, WINDOW, StepProgram

# what sizes by the transfers are off by, of the largest; and numbers by these
_SAME_SIZE = 0.15
_SAME_NUMBER = 0.06
_LONGER_BESIDE = 0.02  # of collectives beside work, over host memory and NVLink: between 0 and 6 %
_LONGEST_BLOCK_NS = 250_000.0  # a block of a kernel seldom runs longer
_NOT_PER_COLLECTIVE = {"kind", "subject", "is_passed", "progress", "begin_ns"}


def with_buckets(
    captured: CapturedSteps, gradients: Sequence[Gradients | None], cap_mib: float
) -> StepProgram:
    """Return the program with each step's gradients in buckets of another size; a step of which they are not known stays.

    A bucket may be sent when its last gradient is ready, and is waited for where its gradients were
    copied out, or where the capture waited. Its transfer: overhead + bytes x (captured transfers
    less their overheads) / bytes of the step.
    """
    program = captured.program
    found = []
    for step, (own, chosen) in enumerate(zip(gradients, captured.gradients_by_step, strict=True)):
        if own is not None and chosen.size:
            ends = bucket_ends(own.n_bytes, cap_mib)
            sizes = np.diff(np.cumsum(own.n_bytes)[ends], prepend=0.0)
            found.append((step, chosen, own, ends, sizes))
    if 2 * sum(
        _is_own(program, chosen, own, sizes, cap_mib) for _, chosen, own, _, sizes in found
    ) >= len(found):
        return program
    # How long a collective waits for a place on the GPU: half a kernel, or block of one, by their
    # share of time.
    lengths = (
        (timeline.end - timeline.start)[timeline.is_compute].astype(np.float64)
        for timeline in captured.timelines
    )
    halves = [
        (each * np.minimum(each, _LONGEST_BLOCK_NS)).sum() / (2 * max(each.sum(), 1.0))
        for each in lengths
    ]
    slot_ns = float(np.mean(halves))
    is_gone = np.zeros(program.step.size, np.bool_)
    new = []
    markers = []
    for step, chosen, own, ends, sizes in found:
        is_gone[chosen] = True
        new.append(_collectives(program, chosen, sizes, own.n_bytes.sum(), slot_ns))
        for kind, times in (
            (READY, own.ready[ends]),
            (JOIN, _join_times(captured, step, chosen, sizes)),
        ):
            places = [
                one.measure_progress(times[:, at].astype(np.int64))
                for at, one in enumerate(captured.ranks)
            ]
            markers.append((kind, chosen, np.stack(places, axis=2)))
    return _rebuilt(program, is_gone, new, markers)


def _is_own(
    program: StepProgram, chosen: Int64, own: Gradients, sizes: Float64, cap_mib: float
) -> bool:
    """Tell whether a cap gives the captured buckets: by their sizes, or where those are estimates by their number."""
    captured = program.n_bytes[chosen]
    if not captured.sum() > 0:  # not of what holds a NaN
        captured = program.transfer_ns[chosen].mean(axis=1)
    captured = captured * (own.n_bytes.sum() / max(float(captured.sum()), 1.0))
    if own.is_exact:
        return sizes.size == captured.size and bool(
            (np.abs(sizes - captured) <= _SAME_SIZE * captured.max()).all()
        )
    is_possible = cap_mib * MIB <= (1 + _SAME_NUMBER) * captured[:-1].min(
        initial=np.inf
    )  # all but the last are full
    return is_possible and abs(sizes.size - chosen.size) <= max(_SAME_NUMBER * chosen.size, 1.0)


def _collectives(
    program: StepProgram, chosen: Int64, sizes: Float64, total: float, slot_ns: float
) -> dict[str, Any]:
    transfer = program.transfer_ns[chosen].mean(axis=1)
    overhead_ns = OVERHEADS_NS[1]
    per_byte = max(float(transfer.sum() - np.minimum(overhead_ns, transfer / 2).sum()), 0.0) / total
    shape = (sizes.size, program.n_ranks)
    is_alone = (
        chosen.size == 1
    )  # the captured lags and transfers of several buckets hold what work beside them does
    return {
        **{
            name: np.full(sizes.size, getattr(program, name)[chosen[0]])
            for name in ("step", "chain", "role")
        },
        "lag_ns": np.broadcast_to(
            np.maximum(np.median(program.lag_ns[chosen], axis=0), 0.0), shape
        ),
        "transfer_ns": np.broadcast_to((overhead_ns + sizes * per_byte)[:, np.newaxis], shape),
        "n_bytes": sizes,
        "group": np.broadcast_to(program.group[chosen[0]], shape),
        "is_gradient": np.ones(sizes.size, np.bool_),
        "late_during_work_ns": np.full(sizes.size, slot_ns if is_alone else 0.0),
        "longer_during_work": np.full(sizes.size, _LONGER_BESIDE if is_alone else 0.0),
    }


def _join_times(captured: CapturedSteps, step: int, chosen: Int64, sizes: Float64) -> Float64:
    """Return where each bucket is waited for: before its first gradient's copy, else where the capture waited last."""
    columns = []
    for rank, (timeline, markers) in enumerate(
        zip(captured.timelines, captured.ranks, strict=True)
    ):
        rows, n_bytes = gradient_copies(captured, step, rank)
        if rows.size:
            copied = np.cumsum(n_bytes)
            before = (np.cumsum(sizes) - sizes) / sizes.sum() * copied[-1]
            places = rows[np.minimum(np.searchsorted(copied, before, side="right"), rows.size - 1)]
        else:
            places = np.full(sizes.size, min(int(markers.join[chosen].max()), timeline.start.size))
        columns.append(np.maximum(timeline.end_before[places], captured.windows.edges[0, rank]))
    return np.stack(columns, axis=1).astype(np.float64)


def sent_once(program: StepProgram, burst: Int64) -> StepProgram:
    """Return the program with the gradients of each step sent once, in the last of its bursts, as under ``no_sync()``."""
    last = np.zeros(int(program.step.max(initial=0)) + 1, np.int64)
    np.maximum.at(last, program.step[program.is_gradient], burst[program.is_gradient])
    return _rebuilt(program, program.is_gradient & (burst < last[program.step]), [], [])


def with_prefetch(program: StepProgram, is_prefetched: Flags) -> StepProgram:
    """Return the program where each of these collectives may begin when the one of them before it in its step may."""
    ready = np.flatnonzero(
        (program.kind == READY) & is_prefetched[np.where(program.kind == READY, program.subject, 0)]
    )
    follows = np.flatnonzero(np.diff(program.step[program.subject[ready]]) == 0) + 1
    key = np.arange(program.kind.size, dtype=np.float64)
    places = program.progress.copy()
    key[ready[follows]] = ready[follows - 1] + 0.5
    places[:, ready[follows]] = program.progress[:, ready[follows - 1]]
    order = np.argsort(key, kind="stable")
    markers = {name: getattr(program, name)[order] for name in ("kind", "subject", "is_passed")}
    return replace(program, **markers, progress=places[:, order])


def _rebuilt(
    program: StepProgram,
    is_gone: Flags,
    new: Sequence[dict[str, Any]],
    markers: Sequence[tuple[int, Int64, Float64]],
) -> StepProgram:
    """Return the program without some collectives, with new ones, and their markers where the last of the old ones stood."""
    names = (name for name in program.__struct_fields__ if name not in _NOT_PER_COLLECTIVE)
    columns = {
        name: np.concatenate([getattr(program, name)[~is_gone], *(one[name] for one in new)])
        for name in names
    }
    is_comm = program.kind != WINDOW
    collective = np.where(is_comm, program.subject, 0)
    rows = np.flatnonzero(~(is_comm & is_gone[collective]))
    which = np.where(is_comm, (np.cumsum(~is_gone) - 1)[collective], program.subject)
    # Of each part of the new order: what it is sorted by, kind, which, who passes it, places.
    parts = [
        (rows, program.kind[rows], which[rows], program.is_passed[rows], program.progress[:, rows])
    ]
    counts = dict.fromkeys((READY, JOIN), int(np.count_nonzero(~is_gone)))
    for kind, chosen, found in markers:
        n_new = found.shape[1]
        at = np.flatnonzero((program.kind == kind) & np.isin(program.subject, chosen)).max()
        new_which = counts[kind] + np.arange(n_new)
        passes = np.ones(found.shape[1:], np.bool_)
        parts.append((np.full(n_new, at), np.full(n_new, kind), new_which, passes, found))
        counts[kind] += n_new
    *firsts, places = zip(*parts, strict=True)
    key, kinds, which, passes = map(np.concatenate, firsts)
    order = np.lexsort((which, key))
    columns |= {"kind": kinds[order], "subject": which[order], "is_passed": passes[order]}
    return replace(program, **columns, progress=np.concatenate(places, axis=1)[:, order])


def balanced(program: StepProgram, trusted: Flags, slowing: Slowing) -> StepProgram:
    """Return a program of one rank that works as all do: in each step as the middle one of those trusted, of two the faster."""
    work = program.free_work(slowing)
    at_edges = np.flatnonzero(program.kind == WINDOW)
    candidates = np.flatnonzero(trusted)
    order = np.argsort(np.diff(work[at_edges], axis=0)[:, candidates], axis=1, kind="stable")
    chosen = candidates[order[:, (candidates.size - 1) // 2]]
    # What leads up to a marker belongs to the step that the marker before it is in.
    ranks = chosen[
        np.clip(np.searchsorted(at_edges, np.arange(1, program.kind.size)) - 1, 0, chosen.size - 1)
    ]
    of_collective = chosen[program.step][:, np.newaxis]
    at = np.arange(ranks.size)
    pieces = np.diff(program.progress, axis=1)[:, at, ranks]
    return replace(
        program,
        begin_ns=program.begin_ns[:1],
        is_passed=np.append(True, program.is_passed[1:][at, ranks])[:, np.newaxis],
        progress=np.pad(np.cumsum(pieces, axis=1), ((0, 0), (1, 0)))[..., np.newaxis],
        **{
            key: np.take_along_axis(getattr(program, key), of_collective, axis=1)
            for key in ("lag_ns", "transfer_ns")
        },
        group=program.group[:, :1],
    )


def with_casts(program: StepProgram, copies_ns: float) -> tuple[StepProgram, Float64]:
    """Return the program with casts to 16 bits, and how long each collective's cast back takes; copying a step's takes `copies_ns`."""
    own = program.transfer_ns.mean(axis=1) * program.is_gradient
    # Casting, scaling and casting back reads and writes 16 bytes per element, copying 8: half of it
    # before the collective.
    each = own / np.maximum(np.bincount(program.step, weights=own), 1.0)[program.step] * copies_ns
    ready = (
        program.kind == READY
    )  # the cast stands before its own collective, and before all that follows
    added = np.where(ready, each[np.where(ready, program.subject, 0)], 0.0)
    places = program.progress.copy()
    places[0] += np.cumsum(added)[:, np.newaxis]
    return replace(program, progress=places), each


def without_copies(captured: CapturedSteps, *, is_last_kept: bool) -> CapturedSteps:
    """Leave out the rows of copies from buckets to gradients; or what copies and scales in all passes of a step but the last."""
    removed = []
    for rank, timeline in enumerate(captured.timelines):
        of_step = bucket_rows if is_last_kept else lambda *place: gradient_copies(*place).rows
        rows = np.concatenate([of_step(captured, step, rank) for step in captured.steps])
        first = rows[np.diff(rows, prepend=-2) > 1]
        last = rows[np.diff(rows, append=rows[-1:] + 2) > 1]
        removed.append(RemovedWork(timeline.start[first], timeline.end[last]))
    return captured_program(captured.timelines, captured.windows, captured.uses, removed)
