"""Changes of a program: bucket size, one send, balanced ranks, 16 bits, no copies, prefetch."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nsyspipe.analysis.kernels import Slowing
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.replay.gradients import (
    MIB,
    Gradients,
    bucket_ends,
    gradient_copies,
    rows_of_early_passes,
)
from nsyspipe.replay.program import CapturedSteps, RemovedWork, captured_program
from nsyspipe.replay.ranges import LIKELY_OVERHEAD_NS
from nsyspipe.replay.simulate import JOIN, READY, WINDOW, WORK_NS, StepProgram
from nsyspipe.replay.timelines import RankTimeline, durations_ns

# New buckets are the captured ones if their sizes differ by at most this share of the largest. The
# sizes follow from transfer times.
_MAX_SIZE_DIFFERENCE = 0.15
# If the sizes are estimates, the number of buckets may differ by this share.
_MAX_NUMBER_DIFFERENCE = 0.06
# How much longer a collective is during compute. Over shared memory and NVLink it is 0 to 6 %.
_LONGER_DURING_WORK = 0.02
# A block of a kernel seldom takes longer.
_MAX_BLOCK_NS = 250_000.0


class _NewBuckets(NamedTuple):
    """The new buckets of one step."""

    step: int
    # The captured all-reduces, which the new buckets replace.
    captured: Int64
    gradients: Gradients
    # By new bucket: its last gradient, and its size.
    last_gradient: Int64
    n_bytes: Float64


class _CollectiveColumns(NamedTuple):
    """The columns of a `StepProgram` that have a row per collective."""

    step: Int64
    lag_ns: Float64
    transfer_ns: Float64
    n_bytes: Float64
    chain: Int64
    is_gradient: Flags
    role: NDArray[np.object_]
    group: Int64
    late_during_work_ns: Float64
    longer_during_work: Float64


class _NewMarkers(NamedTuple):
    """Markers of one kind for the new collectives of a step."""

    kind: int
    # The collectives whose markers they replace.
    captured: Int64
    # As `StepProgram.progress`.
    progress: Float64


class _MarkerColumns(NamedTuple):
    """The columns of a `StepProgram` that have a row per marker."""

    # What the markers are ordered by.
    position: Int64 | Float64
    kind: Int64
    subject: Int64
    is_passed: Flags
    progress: Float64


def with_buckets(
    captured: CapturedSteps, gradients: Sequence[Gradients | None], cap_mib: float
) -> StepProgram:
    """Return the program with the gradients of each step in buckets of another size.

    A step stays as it is if its gradients are not known. All steps stay if at least half of them
    would have the captured buckets. A bucket can be sent when its last gradient is ready. The work
    waits for a bucket where the gradients of the bucket were copied out. Without copies, the work
    waits where the captured work waited last.
    """
    program = captured.program
    buckets_of_steps = list(_divide_gradients(captured, gradients, cap_mib))
    n_unchanged = 0
    for buckets in buckets_of_steps:
        if _are_captured(program, buckets, cap_mib):
            n_unchanged += 1
    are_mostly_unchanged = 2 * n_unchanged >= len(buckets_of_steps)
    if are_mostly_unchanged:
        return program
    slot_wait_ns = _mean_slot_wait_ns(captured.timelines)
    is_removed = np.zeros(program.step.size, np.bool_)
    collectives = []
    markers: list[_NewMarkers] = []
    for buckets in buckets_of_steps:
        is_removed[buckets.captured] = True
        columns = _bucket_columns(program, buckets, slot_wait_ns)
        collectives.append(columns)
        markers += _new_markers(captured, buckets)
    return _with_collectives(program, is_removed, collectives, markers)


def _new_markers(captured: CapturedSteps, buckets: _NewBuckets) -> list[_NewMarkers]:
    """Return the markers of the new buckets of a step."""
    last_gradient = buckets.last_gradient
    ready_times = buckets.gradients.ready[last_gradient]
    ready_progress = _progress_of_ranks(captured, ready_times)
    ready = _NewMarkers(READY, buckets.captured, ready_progress)
    join_times = _join_times(captured, buckets)
    join_progress = _progress_of_ranks(captured, join_times)
    join = _NewMarkers(JOIN, buckets.captured, join_progress)
    return [ready, join]


def _divide_gradients(
    captured: CapturedSteps, gradients: Sequence[Gradients | None], cap_mib: float
) -> Iterator[_NewBuckets]:
    """Yield the new buckets of each step whose gradients are known."""
    steps = zip(gradients, captured.gradients_by_step, strict=True)
    for step, (step_gradients, all_reduces) in enumerate(steps):
        if step_gradients is None or not all_reduces.size:
            continue
        n_bytes_of_gradients = step_gradients.n_bytes
        last_gradient = bucket_ends(n_bytes_of_gradients, cap_mib)
        n_bytes_until = np.cumsum(n_bytes_of_gradients)
        n_bytes = np.diff(n_bytes_until[last_gradient], prepend=0.0)
        yield _NewBuckets(step, all_reduces, step_gradients, last_gradient, n_bytes)


def _are_captured(program: StepProgram, buckets: _NewBuckets, cap_mib: float) -> bool:
    """Tell whether the new buckets are the captured ones.

    If the capture shows the sizes of the gradients, the sizes of the buckets decide. If the sizes
    of the gradients are estimates, there must be about as many new buckets as captured ones, and
    the cap must fit the captured buckets.
    """
    captured_bytes = _captured_sizes(program, buckets)
    if buckets.gradients.is_exact:
        return _are_sizes_equal(buckets.n_bytes, captured_bytes)
    # A captured bucket is at least as large as the cap of the capture, except for the last bucket.
    # So a cap above the smallest of them is another cap.
    least_full_bytes = captured_bytes[:-1].min(initial=np.inf)
    max_cap_bytes = (1 + _MAX_NUMBER_DIFFERENCE) * least_full_bytes
    is_cap_possible = cap_mib * MIB <= max_cap_bytes
    # One bucket more or less is always allowed.
    n_captured = captured_bytes.size
    max_difference = max(_MAX_NUMBER_DIFFERENCE * n_captured, 1.0)
    n_more_buckets = buckets.n_bytes.size - n_captured
    return is_cap_possible and abs(n_more_buckets) <= max_difference


def _captured_sizes(program: StepProgram, buckets: _NewBuckets) -> Float64:
    """Return the size of each captured bucket of a step. They sum to the size of the gradients.

    The sizes are in proportion to the recorded message sizes, or else to the transfer times.
    """
    recorded_bytes = program.n_bytes[buckets.captured]
    transfer_ns = program.transfer_ns[buckets.captured].mean(axis=1)
    # A size that was not recorded is NaN. Then the sum is NaN too, and not above 0.
    are_sizes_recorded = recorded_bytes.sum() > 0
    weights = recorded_bytes if are_sizes_recorded else transfer_ns
    total_bytes = buckets.gradients.n_bytes.sum()
    total_weight = max(float(weights.sum()), 1.0)
    sizes: Float64 = weights * (total_bytes / total_weight)
    return sizes


def _are_sizes_equal(n_bytes: Float64, captured_bytes: Float64) -> bool:
    """Tell whether as many buckets have about the captured sizes."""
    if n_bytes.size != captured_bytes.size:
        return False
    max_difference = _MAX_SIZE_DIFFERENCE * captured_bytes.max()
    differences = np.abs(n_bytes - captured_bytes)
    is_equal = differences <= max_difference
    return bool(is_equal.all())


def _mean_slot_wait_ns(timelines: Sequence[RankTimeline]) -> float:
    """Return how long a collective waits for free multiprocessors during compute.

    It waits for the rest of the current block of a kernel: half a block on average. Longer kernels
    are met more often, so blocks are weighted by the time of their kernels.
    """
    mean_waits_ns = []
    for timeline in timelines:
        kernels = np.flatnonzero(timeline.is_compute)
        kernel_ns = durations_ns(timeline, kernels)
        # A kernel that is not long has one block.
        block_ns = np.minimum(kernel_ns, _MAX_BLOCK_NS)
        total_ns = max(kernel_ns.sum(), 1.0)
        weighted_ns = (kernel_ns * block_ns).sum()
        mean_waits_ns.append(weighted_ns / (2 * total_ns))
    return float(np.mean(mean_waits_ns))


def _bucket_columns(
    program: StepProgram, buckets: _NewBuckets, slot_wait_ns: float
) -> _CollectiveColumns:
    """Return the collectives of the new buckets of a step, a row per bucket.

    Columns that do not depend on the size are those of the first captured bucket.
    """
    captured = buckets.captured
    transfer_ns = _transfer_times(program, buckets)
    lag_ns = _median_lag_ns(program, captured)
    n_buckets = buckets.n_bytes.size
    shape = (n_buckets, program.n_ranks)
    # Compute at the same time delays and slows collectives. If several buckets were captured, their
    # lags and transfer times contain this effect. A single bucket was sent after compute, so that
    # the effect has to be added.
    is_single = captured.size == 1
    late_ns = slot_wait_ns if is_single else 0.0
    longer_share = _LONGER_DURING_WORK if is_single else 0.0
    first_captured = np.full(n_buckets, captured[0])
    templates = _select_collectives(program, first_captured)
    transfer_ns_of_ranks = np.broadcast_to(transfer_ns[:, np.newaxis], shape)
    lag_ns_of_ranks = np.broadcast_to(lag_ns, shape)
    late_during_work_ns = np.full(n_buckets, late_ns)
    longer_during_work = np.full(n_buckets, longer_share)
    return templates._replace(
        lag_ns=lag_ns_of_ranks,
        transfer_ns=transfer_ns_of_ranks,
        n_bytes=buckets.n_bytes,
        late_during_work_ns=late_during_work_ns,
        longer_during_work=longer_during_work,
    )


def _median_lag_ns(program: StepProgram, collectives: Int64) -> Float64:
    """Return the median lag of some collectives on each rank, ns. It is at least 0."""
    lag_ns = program.lag_ns[collectives]
    median_lag_ns = np.median(lag_ns, axis=0)
    lag_above_0_ns: Float64 = np.maximum(median_lag_ns, 0.0)
    return lag_above_0_ns


def _transfer_times(program: StepProgram, buckets: _NewBuckets) -> Float64:
    """Return the transfer time of each new bucket, ns: an overhead, and a time per byte.

    The time per byte follows from the captured transfers without their overheads. Of a captured
    transfer, the overhead is at most half.
    """
    captured_ns = program.transfer_ns[buckets.captured].mean(axis=1)
    overheads_ns = np.minimum(LIKELY_OVERHEAD_NS, captured_ns / 2)
    without_overheads_ns = float(captured_ns.sum() - overheads_ns.sum())
    bytes_ns = max(without_overheads_ns, 0.0)
    ns_per_byte = bytes_ns / buckets.gradients.n_bytes.sum()
    transfer_ns: Float64 = LIKELY_OVERHEAD_NS + buckets.n_bytes * ns_per_byte
    return transfer_ns


def _select_collectives(program: StepProgram, rows: Int64) -> _CollectiveColumns:
    """Return some collectives of a program. A collective may be among `rows` several times."""
    columns = (getattr(program, name)[rows] for name in _CollectiveColumns._fields)
    return _CollectiveColumns(*columns)


def _progress_of_ranks(captured: CapturedSteps, times: Float64) -> Float64:
    """Return the rows of `StepProgram.progress` at some times. `times` has a column per rank."""
    whole_ns = times.astype(np.int64)
    progress = []
    ranks = zip(captured.ranks, whole_ns.T, strict=True)
    for markers, rank_times in ranks:
        rank_progress = markers.measure_progress(rank_times)
        progress.append(rank_progress)
    return np.stack(progress, axis=2)


def _join_times(captured: CapturedSteps, buckets: _NewBuckets) -> Float64:
    """Return when each rank starts to wait for each new bucket: a row per bucket.

    A rank waits before the copy of the bucket's first gradient. Without copies, a rank waits where
    the captured work waited last.
    """
    columns = []
    for rank, timeline in enumerate(captured.timelines):
        waiting = _waiting_operations(captured, buckets, rank)
        end_before = timeline.end_before[waiting]
        first_edge = captured.windows.edges[0, rank]
        wait_times = np.maximum(end_before, first_edge)
        columns.append(wait_times)
    times = np.stack(columns, axis=1)
    return times.astype(np.float64)


def _waiting_operations(captured: CapturedSteps, buckets: _NewBuckets, rank: int) -> Int64:
    """Return the place of the operation of a rank that waits for each new bucket.

    It is the copy of the bucket's first gradient. A hook may send fewer bytes than are copied, so
    that copy is found by shares. Before it, the share of copied bytes is the share of bytes sent
    before the bucket. Without copies, it is the operation that waited last in the captured step.
    """
    n_bytes = buckets.n_bytes
    copies = gradient_copies(captured, buckets.step, rank)
    if copies.rows.size:
        sent_before_bucket = np.cumsum(n_bytes) - n_bytes
        share_before_bucket = sent_before_bucket / n_bytes.sum()
        copied_until_copy = np.cumsum(copies.n_bytes)
        copied_before_bucket = share_before_bucket * copied_until_copy[-1]
        n_copies_before = np.searchsorted(copied_until_copy, copied_before_bucket, side="right")
        last_copy = copies.rows.size - 1
        first_copy_of_bucket = np.minimum(n_copies_before, last_copy)
        waiting: Int64 = copies.rows[first_copy_of_bucket]
        return waiting
    joins = captured.ranks[rank].join[buckets.captured]
    n_operations = captured.timelines[rank].start.size
    last_join = min(int(joins.max()), n_operations)
    return np.full(n_bytes.size, last_join)


def with_one_send(program: StepProgram, burst: Int64) -> StepProgram:
    """Return the program with only the last burst of gradients of each step, as with ``no_sync()``.

    `burst` is by collective, see `CapturedSteps.burst`.
    """
    is_gradient = program.is_gradient
    last_step = int(program.step.max(initial=0))
    last_burst = np.zeros(last_step + 1, np.int64)
    step_of_gradients = program.step[is_gradient]
    burst_of_gradients = burst[is_gradient]
    np.maximum.at(last_burst, step_of_gradients, burst_of_gradients)
    is_early = burst < last_burst[program.step]
    is_removed = is_gradient & is_early
    return _with_collectives(program, is_removed, [], [])


def with_prefetch(program: StepProgram, is_prefetched: Flags) -> StepProgram:
    """Return the program in which prefetched collectives can start when their predecessors can.

    `is_prefetched` is by collective. The predecessor is the previous prefetched collective of the
    same step. The first prefetched collective of a step has no predecessor and stays.
    """
    is_ready = program.kind == READY
    # Other markers have no collective here, and 0 stands for it.
    collective_of_marker = np.where(is_ready, program.subject, 0)
    is_gather = is_ready & is_prefetched[collective_of_marker]
    # The `READY` markers of the prefetched collectives.
    gathers = np.flatnonzero(is_gather)
    step_of_gathers = program.step[program.subject[gathers]]
    # Without a value for the first gather, which has no predecessor.
    has_predecessor = np.diff(step_of_gathers) == 0
    followers = np.flatnonzero(has_predecessor) + 1
    moved = gathers[followers]
    predecessor = gathers[followers - 1]
    # Markers are ordered by position. A moved one stands right behind its predecessor.
    position = np.arange(program.kind.size, dtype=np.float64)
    position[moved] = predecessor + 0.5
    progress = program.progress.copy()
    progress_at_predecessor = program.progress[:, predecessor]
    progress[:, moved] = progress_at_predecessor
    markers = _MarkerColumns(
        position=position,
        kind=program.kind,
        subject=program.subject,
        is_passed=program.is_passed,
        progress=progress,
    )
    return _with_markers(program, markers)


def _with_collectives(
    program: StepProgram,
    is_removed: Flags,
    collectives: Sequence[_CollectiveColumns],
    markers: Sequence[_NewMarkers],
) -> StepProgram:
    """Return the program without some collectives and with new ones.

    The remaining collectives come first, then the new ones. The new markers of one kind and step
    take the place of the last marker that they replace.
    """
    rows = np.flatnonzero(~is_removed)
    remaining = _select_collectives(program, rows)
    parts_of_columns = zip(remaining, *collectives, strict=True)
    columns = _CollectiveColumns(*map(np.concatenate, parts_of_columns))
    n_remaining = remaining.step.size
    # By kind of marker: the number of the collective that the next new marker belongs to. Each new
    # collective has a marker of both kinds.
    next_collective = {READY: n_remaining, JOIN: n_remaining}
    remaining_markers = _remaining_markers(program, is_removed)
    marker_parts = [remaining_markers]
    for new_markers in markers:
        first_collective = next_collective[new_markers.kind]
        part = _marker_columns(program, new_markers, first_collective)
        n_new_collectives = part.kind.size
        next_collective[new_markers.kind] = first_collective + n_new_collectives
        marker_parts.append(part)
    with_columns = replace(program, **columns._asdict())
    all_markers = _join_markers(marker_parts)
    return _with_markers(with_columns, all_markers)


def _join_markers(parts: Sequence[_MarkerColumns]) -> _MarkerColumns:
    """Return the markers of all parts. Their progress has a column per marker, and not a row."""
    position = np.concatenate([part.position for part in parts])
    kind = np.concatenate([part.kind for part in parts])
    subject = np.concatenate([part.subject for part in parts])
    is_passed = np.concatenate([part.is_passed for part in parts])
    progress = np.concatenate([part.progress for part in parts], axis=1)
    return _MarkerColumns(position, kind, subject, is_passed, progress)


def _with_markers(program: StepProgram, markers: _MarkerColumns) -> StepProgram:
    """Return the program with these markers, ordered by position and by collective."""
    order = np.lexsort((markers.subject, markers.position))
    kind = markers.kind[order]
    subject = markers.subject[order]
    is_passed = markers.is_passed[order]
    progress = markers.progress[:, order]
    return replace(program, kind=kind, subject=subject, is_passed=is_passed, progress=progress)


def _remaining_markers(program: StepProgram, is_removed: Flags) -> _MarkerColumns:
    """Return the markers of the remaining collectives, which get new numbers."""
    is_of_collective = program.kind != WINDOW
    # Markers of windows have no collective, and 0 stands for it.
    collective = np.where(is_of_collective, program.subject, 0)
    is_of_removed = is_of_collective & is_removed[collective]
    rows = np.flatnonzero(~is_of_removed)
    # Remaining collectives are numbered from 0.
    new_number_of_collective = np.cumsum(~is_removed) - 1
    new_number = new_number_of_collective[collective]
    subject = np.where(is_of_collective, new_number, program.subject)
    kind = program.kind[rows]
    is_passed = program.is_passed[rows]
    progress = program.progress[:, rows]
    return _MarkerColumns(
        position=rows,
        kind=kind,
        subject=subject[rows],
        is_passed=is_passed,
        progress=progress,
    )


def _marker_columns(
    program: StepProgram, markers: _NewMarkers, first_collective: int
) -> _MarkerColumns:
    """Return markers of one kind, one for each new collective of a step.

    `first_collective` is the number of the first of these collectives. All the markers have the
    position of the last marker that they replace.
    """
    is_of_kind = program.kind == markers.kind
    is_of_captured = np.isin(program.subject, markers.captured)
    replaced = np.flatnonzero(is_of_kind & is_of_captured)
    _, n_new, n_ranks = markers.progress.shape
    is_passed = np.ones((n_new, n_ranks), np.bool_)
    position = np.full(n_new, replaced.max())
    kind = np.full(n_new, markers.kind)
    subject = first_collective + np.arange(n_new)
    return _MarkerColumns(
        position=position,
        kind=kind,
        subject=subject,
        is_passed=is_passed,
        progress=markers.progress,
    )


def with_balanced_ranks(program: StepProgram, is_trusted: Flags, slowing: Slowing) -> StepProgram:
    """Return a program of one rank that works in each step as the median of the trusted ranks.

    If the number of trusted ranks is even, it works as the faster one of the middle two.
    `is_trusted` is by rank.
    """
    median_rank_of_step = _median_ranks(program, is_trusted, slowing)
    rank_of_collective = median_rank_of_step[program.step]
    rank_column = rank_of_collective[:, np.newaxis]
    lag_ns = np.take_along_axis(program.lag_ns, rank_column, axis=1)
    transfer_ns = np.take_along_axis(program.transfer_ns, rank_column, axis=1)
    # A piece is the progress from a marker to the next one. Each piece is that of the median rank
    # of its step.
    rank_of_piece = _rank_of_pieces(program, median_rank_of_step)
    pieces = np.arange(rank_of_piece.size)
    pieces_of_all_ranks = np.diff(program.progress, axis=1)
    pieces_of_rank = pieces_of_all_ranks[:, pieces, rank_of_piece]
    progress_until_next = np.cumsum(pieces_of_rank, axis=1)
    # At the first marker, the progress is 0.
    progress = np.insert(progress_until_next, 0, 0.0, axis=1)
    is_end_passed = program.is_passed[pieces + 1, rank_of_piece]
    # The first marker ends no piece. The rank passes it.
    is_passed = np.append(True, is_end_passed)
    group = program.group[:, :1]
    return replace(
        program,
        begin_ns=program.begin_ns[:1],
        is_passed=is_passed[:, np.newaxis],
        progress=progress[..., np.newaxis],
        lag_ns=lag_ns,
        transfer_ns=transfer_ns,
        group=group,
    )


def _rank_of_pieces(program: StepProgram, rank_of_step: Int64) -> Int64:
    """Return the rank that does the work between each marker and the next one.

    The work belongs to the window that begins at the first of the two markers, or before it. Work
    before the first window belongs to the first step, and work after the last window to the last
    step.
    """
    window_markers = np.flatnonzero(program.kind == WINDOW)
    first_markers = np.arange(program.kind.size - 1)
    n_windows_begun = np.searchsorted(window_markers, first_markers, side="right")
    latest_window = n_windows_begun - 1
    # Before the first window this is -1, and at the last edge it is beyond the last step.
    last_step = rank_of_step.size - 1
    step = np.clip(latest_window, 0, last_step)
    return rank_of_step[step]


def _median_ranks(program: StepProgram, is_trusted: Flags, slowing: Slowing) -> Int64:
    """Return the trusted rank with the median work, by step.

    If the number of trusted ranks is even, it is the faster one of the middle two.
    """
    window_markers = np.flatnonzero(program.kind == WINDOW)
    trusted_ranks = np.flatnonzero(is_trusted)
    free_work = program.free_work(slowing)
    work_until = free_work[window_markers]
    work_of_steps = np.diff(work_until, axis=0)
    # A row per step, and a column per trusted rank.
    trusted_work = work_of_steps[:, trusted_ranks]
    least_first = np.argsort(trusted_work, axis=1, kind="stable")
    lower_middle = (trusted_ranks.size - 1) // 2
    median_column = least_first[:, lower_middle]
    return trusted_ranks[median_column]


def with_casts(program: StepProgram, copies_ns: float) -> tuple[StepProgram, Float64]:
    """Return the program with casts to 16 bits, and how long each collective's cast back takes.

    Copying the gradients of a step takes `copies_ns`, and reads and writes 8 bytes per element.
    Casting, scaling and casting back reads and writes 16 bytes, so it takes twice as long. Half of
    it is before the collective, and half after it. So each half takes `copies_ns` per step, of
    which each collective has its share by transfer time.
    """
    mean_transfer_ns = program.transfer_ns.mean(axis=1)
    transfer_ns = np.where(program.is_gradient, mean_transfer_ns, 0.0)
    transfer_ns_of_steps = np.bincount(program.step, weights=transfer_ns)
    step_transfer_ns = np.maximum(transfer_ns_of_steps, 1.0)
    share_of_step = transfer_ns / step_transfer_ns[program.step]
    cast_ns = share_of_step * copies_ns
    # The cast is before its own collective becomes ready, and so before everything that follows.
    is_ready = program.kind == READY
    collective_of_marker = np.where(is_ready, program.subject, 0)
    added_ns = np.where(is_ready, cast_ns[collective_of_marker], 0.0)
    added_until = np.cumsum(added_ns)
    progress = program.progress.copy()
    progress[WORK_NS] += added_until[:, np.newaxis]
    with_casts_before = replace(program, progress=progress)
    return with_casts_before, cast_ns


def without_copies(captured: CapturedSteps, *, is_last_pass_kept: bool) -> CapturedSteps:
    """Return the captured steps without the copies from buckets to gradients.

    If the last pass of a step is kept, only the copies and the scaling of earlier passes are left
    out. Operations in sequence are left out with the gaps between them.
    """
    removed = []
    for rank, timeline in enumerate(captured.timelines):
        rows = _copy_rows(captured, rank, is_last_pass_kept=is_last_pass_kept)
        # Operations are in sequence if their places are 1 apart. Before the first operation and
        # behind the last one stand places far away, so that sequences begin and end there too.
        far_before = -2
        far_behind = rows[-1:] + 2
        is_first = np.diff(rows, prepend=far_before) > 1
        is_last = np.diff(rows, append=far_behind) > 1
        starts = timeline.start[rows[is_first]]
        ends = timeline.end[rows[is_last]]
        removed.append(RemovedWork(starts, ends))
    return captured_program(captured.timelines, captured.windows, captured.uses, removed)


def _copy_rows(captured: CapturedSteps, rank: int, *, is_last_pass_kept: bool) -> Int64:
    """Return the operations of a rank that `without_copies` leaves out, in all steps."""
    steps = captured.steps
    if is_last_pass_kept:
        rows_of_steps = [rows_of_early_passes(captured, step, rank) for step in steps]
        return np.concatenate(rows_of_steps)
    copies = [gradient_copies(captured, step, rank) for step in steps]
    return np.concatenate([step_copies.rows for step_copies in copies])
