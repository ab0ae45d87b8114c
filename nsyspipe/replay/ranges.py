"""What the captured steps show about communication and its slowdown of concurrent work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nsyspipe.analysis import kernels as slowdown
from nsyspipe.analysis.breakdown import PAUSE_NS
from nsyspipe.analysis.collectives import bus_factor
from nsyspipe.analysis.intervals import union
from nsyspipe.analysis.kernels import ENOUGH_GAPS, Compared, Slowing, gaps_before
from nsyspipe.analysis.steps import FEW_STEPS
from nsyspipe.analysis.traffic import OTHER, SHARDED
from nsyspipe.model.problems import WITH_BLOBS
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.replay.gradients import GradientCopies, Gradients, gradient_copies, gradients_of
from nsyspipe.replay.knobs import Knobs
from nsyspipe.replay.program import CapturedSteps, RankMarkers
from nsyspipe.replay.simulate import NO_SLOWING
from nsyspipe.replay.starving import MAX_STARVED_SHARE, Starving
from nsyspipe.replay.timelines import SHARD_COLLECTIVES, RankTimeline, durations_ns
from nsyspipe.run.rank_names import RankNames

# What a collective takes besides the time for its bytes.
MIN_OVERHEAD_NS = 10_000.0
LIKELY_OVERHEAD_NS = 30_000.0
MAX_OVERHEAD_NS = 80_000.0

# A slowdown is measured only if this share of the work is during communication.
_MIN_COVERED_SHARE = 0.02
# No kernels were ever seen to take so much longer. A larger ratio has another cause.
_MAX_KERNEL_SLOWDOWN = 1.5
# A measured slowdown also holds for a link this far from the measured one. From shared memory to
# NVLink the distance is 1.
_MAX_LINK_DISTANCE = 0.1
# Over shared memory, this part of the delay makes the operation longer, and not the gap before it.
_NARROW_IN_OPERATION_NS = 3_800.0
# The standard error of a median over that of the mean, for normal values: sqrt(pi / 2).
_MEDIAN_ERROR_FACTOR = 1.2533
# A link is the captured one if its bandwidth differs by at most this share.
_MAX_SAME_LINK_DIFFERENCE = 0.2
_LEAD_PERCENTILE = 5


class Contention(NamedTuple):
    """What the capture shows about work during communication."""

    compared: Compared
    # How much later an operation starts after its predecessor than without communication. None if
    # there are few such operations.
    delay_ns: float | None
    # The gap between two operations without communication.
    free_gap_ns: float
    # The work during communication: its share of all work, its time, and the number of operations
    # that started in it.
    covered_share: float
    covered_ns: float
    n_covered: float


class SlowingPair(NamedTuple):
    """The slowdown by communication in the capture, and in the simulation."""

    before: Slowing
    after: Slowing


class Slowdowns(NamedTuple):
    """The slowdowns to simulate with."""

    # The most likely pair, then those of the shortest and of the longest step.
    pairs: tuple[SlowingPair, ...]
    # Whether the capture shows the slowdown, over about the same link.
    is_measured: bool


class _CapturedSlowing(NamedTuple):
    slowing: Slowing
    is_measured: bool


class _SlowingBounds(NamedTuple):
    least: Slowing
    most: Slowing


def slowdowns(
    measured: Contention | None,
    captured_bytes_per_s: float | None,
    target_bytes_per_s: float | None,
    operations_per_ns: float = 0.0,
) -> Slowdowns:
    """Return the slowdowns to simulate with.

    On the way from a narrow link to a wide one, the measured slowdown gives way to the assumed one
    of the target.

    Parameters
    ----------
    measured
        What the capture shows, if anything.
    captured_bytes_per_s
        The bus bandwidth in the capture, if known.
    target_bytes_per_s
        The bus bandwidth in the simulation. By default, it stays the same.
    operations_per_ns
        How dense the operations are that communication slows down.
    """
    captured = _slowing_in_capture(measured, captured_bytes_per_s)
    before = captured.slowing
    least, most = _slowing_bounds(captured, measured, captured_bytes_per_s, operations_per_ns)
    if target_bytes_per_s is None:
        same = tuple(SlowingPair(slowing, slowing) for slowing in (before, least, most))
        return Slowdowns(same, captured.is_measured)
    captured_width = slowdown.link_width(captured_bytes_per_s or target_bytes_per_s)
    distance = abs(slowdown.link_width(target_bytes_per_s) - captured_width)
    assumed_share = distance if captured.is_measured else 1.0
    after = before.blended(slowdown.assumed(target_bytes_per_s), assumed_share)
    within = _ratio_within(captured)
    within += distance * (slowdown.ASSUMED_WITHIN - within)
    pairs = (
        SlowingPair(before, after),
        SlowingPair(most, NO_SLOWING.blended(after, 1 - within)),
        SlowingPair(least, NO_SLOWING.blended(after, 1 + within)),
    )
    return Slowdowns(pairs, captured.is_measured and distance <= _MAX_LINK_DISTANCE)


def _ratio_within(captured: _CapturedSlowing) -> float:
    """Return the share by which the ratio of a slowing may be wrong."""
    return slowdown.MEASURED_WITHIN if captured.is_measured else slowdown.ASSUMED_WITHIN


def _slowing_bounds(
    captured: _CapturedSlowing,
    measured: Contention | None,
    captured_bytes_per_s: float | None,
    operations_per_ns: float,
) -> _SlowingBounds:
    """Return the least and the most that communication may slow work down in the capture.

    If the captured link is not known, the bounds are those of all links.
    """
    ratio_within = _ratio_within(captured)
    has_delay = measured is not None and measured.delay_ns is not None
    delay_within = slowdown.MEASURED_WITHIN if has_delay else ratio_within
    least = most = captured.slowing
    if captured_bytes_per_s is None and captured.slowing == slowdown.assumed(None):
        links = (slowdown.NARROW, slowdown.WIDE)
        least, most = sorted(links, key=lambda slowing: slowing.total(operations_per_ns))
    return _SlowingBounds(
        least=_scaled_slowing(least, 1 - ratio_within, 1 - delay_within),
        most=_scaled_slowing(most, 1 + ratio_within, 1 + delay_within),
    )


def _scaled_slowing(slowing: Slowing, ratio_scale: float, delay_scale: float) -> Slowing:
    return Slowing(ratio_scale * slowing.ratio, delay_scale * slowing.delay_ns)


def _slowing_in_capture(measured: Contention | None, bytes_per_s: float | None) -> _CapturedSlowing:
    """Return the slowdown in the capture: measured as far as possible, and otherwise assumed."""
    assumed = slowdown.assumed(bytes_per_s)
    if measured is None or measured.covered_share < _MIN_COVERED_SHARE:
        return _CapturedSlowing(assumed, is_measured=False)
    compared = measured.compared
    delay_in_operation_ns = _NARROW_IN_OPERATION_NS * assumed.delay_ns / slowdown.NARROW.delay_ns
    operation_ns = _free_operation_ns(measured, assumed)
    operation_ns = max(operation_ns, delay_in_operation_ns, 1.0)
    ratio = assumed.ratio + delay_in_operation_ns / operation_ns
    kernel_ratio = compared.slowdown_ratio if compared.is_enough else None
    if kernel_ratio is not None and kernel_ratio > _MAX_KERNEL_SLOWDOWN:
        kernel_ratio = None
    if kernel_ratio is not None:
        ratio += compared.share * (max(kernel_ratio, 0.0) - ratio)
    slowing = assumed
    if measured.delay_ns is not None:
        # The gap between two operations is no work that could take longer.
        slowing = Slowing(ratio, measured.delay_ns - ratio * measured.free_gap_ns)
    elif kernel_ratio is not None:
        slowing = Slowing(ratio, assumed.delay_ns - delay_in_operation_ns)
    return _CapturedSlowing(slowing, is_measured=kernel_ratio is not None)


def _free_operation_ns(measured: Contention, assumed: Slowing) -> float:
    """Return how long an operation takes without communication, without the gap before it."""
    covered_ns = measured.covered_ns / max(measured.n_covered, 1.0)
    operation_ns = covered_ns - measured.free_gap_ns
    return (operation_ns - assumed.delay_ns) / (1 + assumed.ratio)


class _Gaps(NamedTuple):
    """Gaps between operations of the main stream, ns."""

    free: Int64
    # During communication.
    covered: Int64


def _measure_gaps(timeline: RankTimeline, markers: RankMarkers) -> _Gaps:
    """Return the gaps before operations of a rank that wait for no collective."""
    comm = timeline.collectives
    active = union(comm.start, comm.end)
    gaps = gaps_before(timeline.start, timeline.end, timeline.launch, active)
    waits_for_none = ~np.isin(gaps.place, markers.join)
    return _Gaps(
        free=gaps.gap_ns[waits_for_none & gaps.is_free],
        covered=gaps.gap_ns[waits_for_none & gaps.is_covered],
    )


def _measure_progress(timeline: RankTimeline, markers: RankMarkers) -> Float64:
    """Return the rows of `StepProgram.progress` from the first operation of a rank to the last."""
    if not timeline.start.size:
        return np.zeros(4)
    ends = np.array([timeline.start[0], timeline.end.max()])
    return np.diff(markers.measure_progress(ends))[:, 0]


@dataclass(frozen=True)
class CapturedFacts:
    """What captured steps show about their communication. Figures are computed on first use."""

    captured: CapturedSteps
    # The size of the gradients per step, if the user gives it.
    given_bytes: float | None
    # The datatypes of the gradient all-reduces, by NCCL's kernels. None is an unknown datatype.
    datatypes: frozenset[str | None]
    # The size of an element, if all of these datatypes have the same.
    element_bytes: int | None
    # By rank: the share of the median step in which its GPU waits for launches.
    starved_shares: Float64
    starving: Starving
    # By rank: the causes as `starving.starved_causes` words them.
    starved_causes: Sequence[tuple[str, ...]]
    # The work time per step of the rank that works longest, without wait time for other ranks.
    longest_work_ns: float
    # By step used: the launch time of the fastest CPU, 0 if it is not known.
    fastest_launch_ns: Float64
    # By parallelism: the bus bandwidth that follows from message sizes.
    recorded_bytes_per_s: Mapping[str, float | None]
    compared: Compared
    # How dense the kernels are that communication may slow down.
    operations_per_ns: float
    # The peak bandwidth of the fastest interconnect of these GPUs.
    nominal_bytes_per_s: float | None
    # The interconnect that all ranks use by NCCL's log, if its name stands for one bandwidth.
    known_link: str | None
    # The number of ranks of the job. Some may not be among the reports.
    world_size: int
    rank_names: RankNames = field(default_factory=RankNames, kw_only=True)
    # Whether all-reduces of gradients are of their shards.
    is_hybrid_sharded: bool = field(default=False, kw_only=True)
    # What records message sizes that were not recorded.
    sizes_recorded_by: str = field(default=WITH_BLOBS, kw_only=True)

    @cached_property
    def is_sharded(self) -> bool:
        """Whether parameters are gathered and gradients scattered during compute, as with FSDP.

        Then it is not completely known what waits for communication.
        """
        comm = self.captured.timelines[0].collectives
        is_shard_collective = np.isin(comm.kind, [*SHARD_COLLECTIVES])
        has_concurrent_ones = bool((is_shard_collective & ~comm.is_inline).any())
        return has_concurrent_ones or SHARDED in self.captured.uses.role

    @property
    def n_steps(self) -> int:
        """The number of simulated steps that are used; of several captures those of one."""
        return int(np.count_nonzero(self.captured.windows.is_used))

    @cached_property
    def has_gradients(self) -> bool:
        """Whether there are all-reduces of gradients."""
        return bool(self.captured.program.is_gradient.any())

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The kinds of parallelism: that of the gradients, then by transfer time."""
        program = self.captured.program
        first_place = np.where(program.is_gradient, np.inf, 0.0)
        weights = program.transfer_ns.mean(axis=1) + first_place
        roles = sorted({*program.role.tolist()})
        sums = {role: float(weights[program.role == role].sum()) for role in roles}
        return tuple(sorted(roles, key=lambda role: -sums[role]))

    @cached_property
    def contention(self) -> Contention | None:
        """What the capture shows about work during communication. None with FSDP."""
        if self.is_sharded:
            return None
        ranks = list(zip(self.captured.timelines, self.captured.ranks, strict=True))
        gaps = [_measure_gaps(timeline, markers) for timeline, markers in ranks]
        free_ns = np.concatenate([rank_gaps.free for rank_gaps in gaps])
        covered_gap_ns = np.concatenate([rank_gaps.covered for rank_gaps in gaps])
        has_enough_gaps = min(free_ns.size, covered_gap_ns.size) >= ENOUGH_GAPS
        delay_ns = float(covered_gap_ns.mean() - free_ns.mean()) if has_enough_gaps else None
        progress = [_measure_progress(timeline, markers) for timeline, markers in ranks]
        work_ns, covered_ns, _, n_covered = np.sum(progress, axis=0).tolist()
        return Contention(
            compared=self.compared,
            delay_ns=delay_ns,
            free_gap_ns=float(free_ns.mean()) if free_ns.size else 0.0,
            covered_share=covered_ns / max(work_ns, 1.0),
            covered_ns=covered_ns,
            n_covered=n_covered,
        )

    @cached_property
    def gradients(self) -> tuple[Gradients | None, ...]:
        """The gradients of each step. None if their sizes are not known."""
        return self.gradients_with(None)

    @property
    def is_exact(self) -> bool:
        """Whether the capture shows the sizes and ready times of all gradients."""
        return all(gradients is not None and gradients.is_exact for gradients in self.gradients)

    def gradients_with(self, skew: float | None) -> tuple[Gradients | None, ...]:
        """Return the gradients, with the skew of `gradients.gradients_of`."""
        return tuple(
            gradients_of(self.captured, step, self.given_bytes, skew)
            for step in self.captured.steps
        )

    @cached_property
    def gradient_bytes(self) -> float | None:
        """The size of the gradients per step, a median. None if a step lacks it."""
        known = [gradients.n_bytes.sum() for gradients in self.gradients if gradients is not None]
        if not known or len(known) != len(self.gradients):
            return None
        return float(np.median(known))

    @cached_property
    def bus_bytes_per_s(self) -> float | None:
        """The bus bandwidth of the gradient all-reduces, or as recorded. None if not known.

        It is bytes x factor / transfer time.
        """
        program = self.captured.program
        if program.n_ranks <= 1:
            return None
        if self.gradient_bytes is None or self.is_sharded:
            return self.recorded_bytes_per_s.get(self.roles[0])
        world_size = np.array([self.world_size], np.float64)
        factor = float(bus_factor("all_reduce", world_size)[0])
        mean_ns = program.transfer_ns[program.is_gradient].mean(axis=1)
        step_ns = np.bincount(program.step[program.is_gradient], weights=mean_ns)
        median_ns = max(float(np.median(step_ns)), 1.0)
        return self.gradient_bytes * factor / median_ns * 1e9

    def bus_bandwidth_of(self, role: str) -> float | None:
        """Return the bus bandwidth of a kind of parallelism. None if not known."""
        if role == self.roles[0]:
            return self.bus_bytes_per_s
        return self.recorded_bytes_per_s.get(role)

    def least_compute_ns(self, max_slowdown: float) -> float:
        """Return the least compute time of a step on the rank with the most, a median over steps.

        Compute during communication may have taken so much longer.
        """
        windows = self.captured.windows
        times = []
        for timeline, edges in zip(self.captured.timelines, windows.edges.T, strict=True):
            comm = timeline.collectives
            active = union(comm.start, comm.end)
            is_compute = timeline.is_compute
            compute = union(timeline.start[is_compute], timeline.end[is_compute])
            compute_ns = compute.lengths(edges[:-1], edges[1:])
            covered_ns = compute.intersect(active).lengths(edges[:-1], edges[1:])
            times.append(compute_ns - max_slowdown / (1 + max_slowdown) * covered_ns)
        longest_ns = np.max(times, axis=0)[windows.is_used]
        return float(np.median(longest_ns))

    def is_waited_for(self, role: str) -> bool:
        """Tell whether it is known what waits for the communication of a kind of parallelism.

        It is known for gradients, and for communication on the main stream.
        """
        if role == OTHER or (role == self.roles[0] and self.has_gradients):
            return True
        uses = self.captured.uses
        is_inline = self.captured.timelines[0].collectives.is_inline
        is_known = is_inline | uses.is_gradient
        return bool(is_known[uses.role == role].all())

    @cached_property
    def is_prefetched(self) -> Flags:
        """Which collectives could start earlier: the all-gathers of shards during compute."""
        comm = self.captured.timelines[0].collectives
        is_sharded = self.captured.uses.role == SHARDED
        gathers: Flags = (comm.kind == "all_gather") & ~comm.is_inline & is_sharded
        return gathers

    @cached_property
    def n_bursts(self) -> int:
        """How often the gradients of a step are sent at most.

        With gradient accumulation, they may be sent after each micro-batch.
        """
        program = self.captured.program
        step = program.step[program.is_gradient]
        burst = self.captured.burst[program.is_gradient]
        step_of_burst, _ = np.unique(np.stack((step, burst)), axis=1)
        return int(np.bincount(step_of_burst).max(initial=0))

    @cached_property
    def lag_share(self) -> float:
        """How late gradient all-reduces start after they could, as a share of their transfer time.

        Both are medians, the lag that of the latest rank.
        """
        program = self.captured.program
        if not self.has_gradients:
            return 0.0
        mean_transfer_ns = program.transfer_ns[program.is_gradient].mean(axis=1)
        rank_lag_ns = np.median(program.lag_ns[program.is_gradient], axis=0)
        lag_ns = max(rank_lag_ns.max(), 0.0)
        return float(lag_ns / max(np.median(mean_transfer_ns), 1.0))

    @cached_property
    def _copies(self) -> list[list[GradientCopies]]:
        """The copies of gradients, by step and rank."""
        return [self._copies_of_step(step) for step in self.captured.steps]

    def _copies_of_step(self, step: int) -> list[GradientCopies]:
        ranks = range(self.captured.program.n_ranks)
        return [gradient_copies(self.captured, step, rank) for rank in ranks]

    @cached_property
    def copies_ns(self) -> float:
        """The time of the copies of gradients per step: mean over ranks, median over steps."""
        step_times = []
        for step_copies in self._copies:
            ranks = zip(self.captured.timelines, step_copies, strict=True)
            step_times.append([durations_ns(rank, copies.rows).sum() for rank, copies in ranks])
        return float(np.median(np.mean(step_times, axis=1)))

    @cached_property
    def n_copies(self) -> int:
        """The number of copies of gradients per step: the fewest of any step and rank."""
        return min(copies.rows.size for step_copies in self._copies for copies in step_copies)

    @cached_property
    def sent_share(self) -> float | None:
        """The bytes sent over the bytes copied to the gradients. None if one is not known.

        Both are medians over steps.
        """
        program = self.captured.program
        step = program.step[program.is_gradient]
        n_bytes = program.n_bytes[program.is_gradient]
        sent = np.bincount(step, weights=n_bytes, minlength=len(self._copies))
        copied = [copies.n_bytes.sum() for step_copies in self._copies for copies in step_copies]
        median_copied = float(np.median(copied))
        if not median_copied:
            return None
        share = float(np.median(sent)) / median_copied
        # It is NaN if a message size was not recorded.
        return share if share > 0 else None

    @cached_property
    def lead_ns(self) -> float:
        """How far CPUs are ahead of their GPUs, the least over ranks.

        It is the 5th percentile of start - launch.
        """
        leads = [
            np.percentile(timeline.start - timeline.launch, _LEAD_PERCENTILE)
            for timeline in self.captured.timelines
            if timeline.start.size
        ]
        return float(max(min(leads, default=0.0), 0.0))

    @cached_property
    def launching_ns(self) -> float | None:
        """How long the CPU of the median rank takes at least to launch a step, a mean over steps.

        With two ranks, it is the faster one. Ranks count whose GPUs do not wait for launches. None
        with few steps.
        """
        windows = self.captured.windows
        steps = windows.steps[windows.is_used]
        if steps.size < FEW_STEPS:
            return None
        launch_times = []
        ranks = zip(self.starved_shares, self.captured.timelines, strict=True)
        for starved_share, timeline in ranks:
            if starved_share <= MAX_STARVED_SHARE:
                launch_times.append(_mean_launch_time(timeline, steps))
        if not launch_times:
            return None
        return float(np.sort(launch_times)[(len(launch_times) - 1) // 2])

    @cached_property
    def step_time_ns(self) -> float:
        """The captured step time."""
        return float(np.median(self.captured.windows.step_times()))

    def slowdowns(self, target: float | None) -> Slowdowns:
        """Return the slowdowns for a bus bandwidth. None keeps the captured one."""
        if self.is_sharded:
            return Slowdowns((SlowingPair(NO_SLOWING, NO_SLOWING),), is_measured=False)
        return slowdowns(self.contention, self.bus_bytes_per_s, target, self.operations_per_ns)

    def target(self, knobs: Knobs, role: str | None = None) -> float | None:
        """Return the requested bus bandwidth of a kind of parallelism, by default of the first.

        Return None if it stays the captured one. This is so if the requested link is about as fast,
        or if it is the one that the ranks use by NCCL's log.
        """
        role = role or self.roles[0]
        if knobs.role not in (None, role):
            return None
        requested = knobs.target_bytes_per_s
        captured = self.bus_bandwidth_of(role)
        if knobs.bandwidth_factor is not None:
            return None if captured is None else captured * knobs.bandwidth_factor
        if requested is None or captured is None or knobs.link is None:
            return requested
        max_difference = _MAX_SAME_LINK_DIFFERENCE * requested
        is_same_link = abs(captured - requested) <= max_difference
        return None if is_same_link or knobs.link == self.known_link else requested

    def bandwidth_ratio(self, knobs: Knobs, role: str) -> float:
        """Return the captured over the requested bandwidth of a kind of parallelism.

        It is 1 if the bandwidth does not change.
        """
        if knobs.bandwidth_factor is not None and knobs.role in (None, role):
            return 1 / knobs.bandwidth_factor
        target = self.target(knobs, role)
        captured = self.bus_bandwidth_of(role)
        return 1.0 if target is None or captured is None else captured / target

    @cached_property
    def standard_error(self) -> float:
        """Twice the relative standard error of the median step. 0 with few steps."""
        times = self.captured.windows.step_times()
        if times.size < FEW_STEPS:
            return 0.0
        deviation_ns = 2 * _MEDIAN_ERROR_FACTOR * times.std(ddof=1)
        return float(deviation_ns / np.sqrt(times.size) / self.step_time_ns)


def _mean_launch_time(timeline: RankTimeline, steps: Int64) -> float:
    """Return how long a CPU takes to launch one of some steps, ns.

    It is the time from one launch to the next. Longer times may be waits and do not count.
    """
    comm = timeline.collectives
    launch = np.concatenate((timeline.launch, comm.launch))
    order = np.argsort(launch, kind="stable")
    gaps_ns = np.diff(launch[order])
    step = np.concatenate((timeline.step, comm.step))[order[:-1]]
    is_launching = (gaps_ns < PAUSE_NS) & np.isin(step, steps)
    return float(gaps_ns[is_launching].sum() / steps.size)
