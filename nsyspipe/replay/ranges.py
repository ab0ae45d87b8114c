"""What the captured steps show about communication and its slowdown of concurrent work."""

import itertools
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
from nsyspipe.replay.simulate import (
    CONCURRENT_WORK_NS,
    N_STARTED_CONCURRENTLY,
    NO_SLOWING,
    WORK_NS,
)
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
    """The slowdown by communication in the capture."""

    slowing: Slowing
    # Whether its ratio was measured, and not only assumed.
    is_measured: bool


class _SlowingBounds(NamedTuple):
    """How little and how much communication may slow work down in the capture."""

    least: Slowing
    most: Slowing


def slowdowns(
    measured: Contention | None,
    captured_bytes_per_s: float | None,
    target_bytes_per_s: float | None,
    operations_per_ns: float = 0.0,
) -> Slowdowns:
    """Return the slowdowns to simulate with.

    The further the target's link is from the captured link, the less the measured slowdown counts,
    and the more the slowdown that is assumed over the target's link.

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
    bounds = _slowing_bounds(captured, measured, captured_bytes_per_s, operations_per_ns)
    if target_bytes_per_s is None:
        # The link stays, so the slowdown stays too.
        slowings = (captured.slowing, bounds.least, bounds.most)
        unchanged = tuple(SlowingPair(slowing, slowing) for slowing in slowings)
        return Slowdowns(unchanged, captured.is_measured)
    # A captured link that is not known counts as the target's link.
    captured_width = slowdown.link_width(captured_bytes_per_s or target_bytes_per_s)
    target_width = slowdown.link_width(target_bytes_per_s)
    distance = abs(target_width - captured_width)
    assumed = slowdown.assumed(target_bytes_per_s)
    pairs = _pairs_over_link(captured, bounds, assumed, distance)
    is_near = distance <= _MAX_LINK_DISTANCE
    return Slowdowns(pairs, captured.is_measured and is_near)


def _pairs_over_link(
    captured: _CapturedSlowing, bounds: _SlowingBounds, assumed: Slowing, distance: float
) -> tuple[SlowingPair, ...]:
    """Return the slowdowns to simulate another link with, see `Slowdowns.pairs`.

    `assumed` is the slowdown that is assumed over the other link. `distance` is how far the other
    link is from the captured one: 0 for the same link, and 1 from shared memory to NVLink.
    """
    before = captured.slowing
    assumed_share = distance if captured.is_measured else 1.0
    after = before.blended(assumed, assumed_share)
    # The further the other link is, the more the slowdown may be wrong, as an assumed one may be.
    captured_within = _ratio_within(captured)
    within = captured_within + distance * (slowdown.ASSUMED_WITHIN - captured_within)
    least_after = _scaled_slowing(after, ratio_scale=1 - within, delay_scale=1 - within)
    most_after = _scaled_slowing(after, ratio_scale=1 + within, delay_scale=1 + within)
    likely = SlowingPair(before, after)
    # A step is shortest if much of the captured work was slowdown, and little slowdown is added.
    shortest = SlowingPair(bounds.most, least_after)
    longest = SlowingPair(bounds.least, most_after)
    return (likely, shortest, longest)


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

    Both differ from the captured slowdown by as much as it may be wrong. If neither the slowdown
    nor the captured link is known, they differ so from the slowdowns of the extreme links.
    """
    ratio_within = _ratio_within(captured)
    # The delay may be measured although the ratio is not.
    is_delay_measured = measured is not None and measured.delay_ns is not None
    delay_within = slowdown.MEASURED_WITHIN if is_delay_measured else ratio_within
    is_assumed_over_any_link = captured.slowing == slowdown.assumed(bytes_per_s=None)
    if captured_bytes_per_s is None and is_assumed_over_any_link:
        extreme_links = (slowdown.NARROW, slowdown.WIDE)
        least, most = sorted(extreme_links, key=lambda slowing: slowing.total(operations_per_ns))
    else:
        least = captured.slowing
        most = captured.slowing
    return _SlowingBounds(
        least=_scaled_slowing(least, ratio_scale=1 - ratio_within, delay_scale=1 - delay_within),
        most=_scaled_slowing(most, ratio_scale=1 + ratio_within, delay_scale=1 + delay_within),
    )


def _scaled_slowing(slowing: Slowing, *, ratio_scale: float, delay_scale: float) -> Slowing:
    """Return a slowing with its ratio and its delay multiplied by a factor each."""
    ratio = ratio_scale * slowing.ratio
    delay_ns = delay_scale * slowing.delay_ns
    return Slowing(ratio, delay_ns)


def _slowing_in_capture(measured: Contention | None, bytes_per_s: float | None) -> _CapturedSlowing:
    """Return the slowdown in the capture: measured as far as possible, and otherwise assumed.

    Operations take longer by a ratio, and start later by a delay. Kernels show the ratio, and gaps
    between operations show the delay. Either may not be known.
    """
    assumed = slowdown.assumed(bytes_per_s)
    if measured is None or measured.covered_share < _MIN_COVERED_SHARE:
        return _CapturedSlowing(assumed, is_measured=False)
    is_ratio_measured = _kernel_ratio(measured.compared) is not None
    if not is_ratio_measured and measured.delay_ns is None:
        return _CapturedSlowing(assumed, is_measured=False)
    # This part of the assumed delay makes operations longer, so it counts as ratio here.
    delay_in_operation_ns = _NARROW_IN_OPERATION_NS * assumed.delay_ns / slowdown.NARROW.delay_ns
    ratio = _ratio_in_capture(measured, assumed, delay_in_operation_ns)
    if measured.delay_ns is None:
        delay_ns = assumed.delay_ns - delay_in_operation_ns
    else:
        # The simulation makes gaps longer by the ratio too, although gaps do not take longer. This
        # is taken from the delay.
        lengthened_by_ns = ratio * measured.free_gap_ns
        delay_ns = measured.delay_ns - lengthened_by_ns
    return _CapturedSlowing(Slowing(ratio, delay_ns), is_measured=is_ratio_measured)


def _ratio_in_capture(
    measured: Contention, assumed: Slowing, delay_in_operation_ns: float
) -> float:
    """Return the ratio by which operations took longer during communication.

    Kernels that were compared have the measured ratio, and other operations the assumed one. If the
    measured ratio is not known, all operations have the assumed one. `delay_in_operation_ns` is the
    part of the assumed delay that makes an operation longer.
    """
    free_operation_ns = _free_operation_ns(measured, assumed)
    operation_ns = max(free_operation_ns, delay_in_operation_ns, 1.0)
    assumed_ratio = assumed.ratio + delay_in_operation_ns / operation_ns
    kernel_ratio = _kernel_ratio(measured.compared)
    if kernel_ratio is None:
        return assumed_ratio
    measured_ratio = max(kernel_ratio, 0.0)
    return assumed_ratio + measured.compared.share * (measured_ratio - assumed_ratio)


def _kernel_ratio(compared: Compared) -> float | None:
    """Return the slowdown ratio of the kernels. None if there are few, or if it is too large."""
    ratio = compared.slowdown_ratio
    if not compared.is_enough or ratio is None:
        return None
    return ratio if ratio <= _MAX_KERNEL_SLOWDOWN else None


def _free_operation_ns(measured: Contention, assumed: Slowing) -> float:
    """Return how long an operation would take without communication, the mean, ns.

    It is the time of an operation during communication, less the gap before it and less the assumed
    slowdown.
    """
    n_covered = max(measured.n_covered, 1.0)
    covered_ns = measured.covered_ns / n_covered
    without_gap_ns = covered_ns - measured.free_gap_ns
    without_delay_ns = without_gap_ns - assumed.delay_ns
    return without_delay_ns / (1 + assumed.ratio)


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
    is_free = waits_for_none & gaps.is_without_comm
    is_covered = waits_for_none & gaps.is_during_comm
    return _Gaps(free=gaps.gap_ns[is_free], covered=gaps.gap_ns[is_covered])


def _join_gaps(gaps: Sequence[_Gaps]) -> _Gaps:
    """Return the gaps of all ranks together."""
    free = np.concatenate([rank_gaps.free for rank_gaps in gaps])
    covered = np.concatenate([rank_gaps.covered for rank_gaps in gaps])
    return _Gaps(free, covered)


def _measure_progress(timeline: RankTimeline, markers: RankMarkers) -> Float64:
    """Return the rows of `StepProgram.progress` from the first operation of a rank to the last."""
    if not timeline.start.size:
        return np.zeros(4)
    first_start = timeline.start[0]
    last_end = timeline.end.max()
    times = np.array([first_start, last_end])
    progress = markers.measure_progress(times)
    at_first_start, at_last_end = progress.T
    difference: Float64 = at_last_end - at_first_start
    return difference


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
        is_concurrent = is_shard_collective & ~comm.is_inline
        has_concurrent_ones = bool(is_concurrent.any())
        return has_concurrent_ones or SHARDED in self.captured.uses.role

    @property
    def n_steps(self) -> int:
        """The number of simulated steps that are used; of several captures those of one."""
        is_used = self.captured.windows.is_used
        return int(np.count_nonzero(is_used))

    @cached_property
    def has_gradients(self) -> bool:
        """Whether there are all-reduces of gradients."""
        is_gradient = self.captured.program.is_gradient
        return bool(is_gradient.any())

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The kinds of parallelism: that of the gradients, then those with most transfer time."""
        program = self.captured.program
        mean_transfer_ns = program.transfer_ns.mean(axis=1)
        # A role with gradients is first, however short its transfers are.
        weights = np.where(program.is_gradient, np.inf, mean_transfer_ns)
        # Of roles with equal weights, the first in the alphabet comes first.
        in_alphabet = sorted({*program.role.tolist()})
        weight_of_roles: dict[str, float] = {}
        for role in in_alphabet:
            weights_of_role = weights[program.role == role]
            weight_of_roles[role] = float(weights_of_role.sum())
        heaviest_first = sorted(in_alphabet, key=weight_of_roles.__getitem__, reverse=True)
        return tuple(heaviest_first)

    @cached_property
    def contention(self) -> Contention | None:
        """What the capture shows about work during communication. None with FSDP."""
        if self.is_sharded:
            return None
        captured = self.captured
        ranks = list(zip(captured.timelines, captured.ranks, strict=True))
        gaps = _join_gaps([_measure_gaps(timeline, markers) for timeline, markers in ranks])
        has_enough_gaps = min(gaps.free.size, gaps.covered.size) >= ENOUGH_GAPS
        delay_ns = None
        if has_enough_gaps:
            delay_ns = float(gaps.covered.mean() - gaps.free.mean())
        free_gap_ns = float(gaps.free.mean()) if gaps.free.size else 0.0
        progress = [_measure_progress(timeline, markers) for timeline, markers in ranks]
        total_progress = np.sum(progress, axis=0)
        work_ns = float(total_progress[WORK_NS])
        covered_ns = float(total_progress[CONCURRENT_WORK_NS])
        n_covered = float(total_progress[N_STARTED_CONCURRENTLY])
        covered_share = covered_ns / max(work_ns, 1.0)
        return Contention(
            compared=self.compared,
            delay_ns=delay_ns,
            free_gap_ns=free_gap_ns,
            covered_share=covered_share,
            covered_ns=covered_ns,
            n_covered=n_covered,
        )

    @cached_property
    def gradients(self) -> tuple[Gradients | None, ...]:
        """The gradients of each step. None if their sizes are not known."""
        return self.gradients_with(skew=None)

    @property
    def is_exact(self) -> bool:
        """Whether the capture shows the sizes and ready times of all gradients."""
        return all(gradients is not None and gradients.is_exact for gradients in self.gradients)

    def gradients_with(self, skew: float | None) -> tuple[Gradients | None, ...]:
        """Return the gradients of each step, with the skew of `gradients.gradients_of`."""
        captured = self.captured
        gradients = (
            gradients_of(captured, step, self.given_bytes, skew) for step in captured.steps
        )
        return tuple(gradients)

    @cached_property
    def gradient_bytes(self) -> float | None:
        """The size of the gradients per step, a median. None if a step lacks it."""
        known = [gradients for gradients in self.gradients if gradients is not None]
        if not known or len(known) != len(self.gradients):
            return None
        step_bytes = [gradients.n_bytes.sum() for gradients in known]
        return float(np.median(step_bytes))

    @cached_property
    def bus_bytes_per_s(self) -> float | None:
        """The bus bandwidth of the first of `roles`. None if it is not known, and for one rank.

        For gradient all-reduces, it is bytes x factor / transfer time, the time a median over
        steps. If gradients are sharded, or their size is not known, it is the recorded bandwidth.
        """
        program = self.captured.program
        if program.n_ranks <= 1:
            return None
        gradient_bytes = self.gradient_bytes
        if gradient_bytes is None or self.is_sharded:
            return self.recorded_bytes_per_s.get(self.roles[0])
        # `bus_factor` takes the sizes of several groups. Here there is one group.
        group_sizes = np.array([self.world_size], np.float64)
        (factor,) = bus_factor("all_reduce", group_sizes).tolist()
        is_gradient = program.is_gradient
        transfer_ns = program.transfer_ns[is_gradient]
        mean_ns = transfer_ns.mean(axis=1)
        step_ns = np.bincount(program.step[is_gradient], weights=mean_ns)
        median_ns = max(float(np.median(step_ns)), 1.0)
        bytes_per_s: float = gradient_bytes * factor / median_ns * 1e9
        return bytes_per_s

    def bus_bandwidth_of(self, role: str) -> float | None:
        """Return the bus bandwidth of a kind of parallelism. None if not known."""
        if role == self.roles[0]:
            return self.bus_bytes_per_s
        return self.recorded_bytes_per_s.get(role)

    def least_compute_ns(self, max_slowdown: float) -> float:
        """Return how long compute takes at least in a step, a median over steps.

        The rank with the longest compute counts. Compute during communication is taken as if it had
        been slowed down by `max_slowdown`, a share of the time without communication.
        """
        windows = self.captured.windows
        lost_share = max_slowdown / (1 + max_slowdown)
        ranks = zip(self.captured.timelines, windows.edges.T, strict=True)
        times_of_ranks = [
            _least_compute_times(timeline, edges, lost_share) for timeline, edges in ranks
        ]
        longest_ns = np.max(times_of_ranks, axis=0)
        used_ns = longest_ns[windows.is_used]
        return float(np.median(used_ns))

    def is_waited_for(self, role: str) -> bool:
        """Tell whether it is known what waits for the communication of a kind of parallelism.

        What waits is known for gradients, and for communication on the main stream. The answer is
        also yes for communication of unknown purpose (`OTHER`), so that it does not stop a replay.
        """
        # If there are gradients, their kind of parallelism is the first one.
        is_of_gradients = role == self.roles[0] and self.has_gradients
        if role == OTHER or is_of_gradients:
            return True
        captured = self.captured
        uses = captured.uses
        is_inline = captured.timelines[0].collectives.is_inline
        is_known = is_inline | uses.is_gradient
        is_known_of_role = is_known[uses.role == role]
        return bool(is_known_of_role.all())

    @cached_property
    def is_prefetched(self) -> Flags:
        """Which collectives a prefetch would start earlier: all-gathers of shards during compute.

        The flags are by collective.
        """
        captured = self.captured
        comm = captured.timelines[0].collectives
        is_sharded = captured.uses.role == SHARDED
        is_gather = comm.kind == "all_gather"
        is_prefetched: Flags = is_gather & ~comm.is_inline & is_sharded
        return is_prefetched

    @cached_property
    def n_bursts(self) -> int:
        """How often gradients are sent in a step: the largest number of bursts of a step.

        With gradient accumulation, they may be sent after each micro-batch.
        """
        captured = self.captured
        program = captured.program
        step = program.step[program.is_gradient]
        burst = captured.burst[program.is_gradient]
        step_and_burst = np.stack((step, burst))
        distinct_pairs = np.unique(step_and_burst, axis=1)
        step_of_bursts = distinct_pairs[0]
        n_bursts_of_steps = np.bincount(step_of_bursts)
        return int(n_bursts_of_steps.max(initial=0))

    @cached_property
    def lag_share(self) -> float:
        """How late gradient all-reduces start after they could, as a share of their transfer time.

        The lag is the median over all-reduces of the rank with the largest median, and at least 0.
        The transfer time is the mean over ranks of each all-reduce, and the median of these means.
        """
        program = self.captured.program
        if not self.has_gradients:
            return 0.0
        is_gradient = program.is_gradient
        median_lag_of_ranks_ns = np.median(program.lag_ns[is_gradient], axis=0)
        lag_ns = max(median_lag_of_ranks_ns.max(), 0.0)
        mean_transfer_ns = program.transfer_ns[is_gradient].mean(axis=1)
        transfer_ns = max(np.median(mean_transfer_ns), 1.0)
        return float(lag_ns / transfer_ns)

    @cached_property
    def _copies(self) -> list[list[GradientCopies]]:
        """The copies of gradients, by step and rank."""
        return [self._copies_of_step(step) for step in self.captured.steps]

    def _copies_of_step(self, step: int) -> list[GradientCopies]:
        captured = self.captured
        ranks = range(captured.program.n_ranks)
        return [gradient_copies(captured, step, rank) for rank in ranks]

    @cached_property
    def copies_ns(self) -> float:
        """The time of the copies of gradients per step: mean over ranks, median over steps."""
        mean_times = []
        for copies_of_ranks in self._copies:
            ranks = zip(self.captured.timelines, copies_of_ranks, strict=True)
            times_of_ranks = [
                durations_ns(timeline, copies.rows).sum() for timeline, copies in ranks
            ]
            mean_times.append(np.mean(times_of_ranks))
        return float(np.median(mean_times))

    @cached_property
    def n_copies(self) -> int:
        """The number of copies of gradients per step: the fewest of any step and rank."""
        copies_of_ranks = itertools.chain.from_iterable(self._copies)
        return min(copies.rows.size for copies in copies_of_ranks)

    @cached_property
    def sent_share(self) -> float | None:
        """The bytes sent over the bytes copied to the gradients. None if one is not known.

        The bytes sent are a median over steps, and those copied a median over steps and ranks.
        """
        program = self.captured.program
        is_gradient = program.is_gradient
        step = program.step[is_gradient]
        n_bytes = program.n_bytes[is_gradient]
        sent = np.bincount(step, weights=n_bytes, minlength=len(self._copies))
        median_sent = float(np.median(sent))
        copies_of_ranks = itertools.chain.from_iterable(self._copies)
        copied = [copies.n_bytes.sum() for copies in copies_of_ranks]
        median_copied = float(np.median(copied))
        if not median_copied:
            return None
        share = median_sent / median_copied
        # If a message size was not recorded, the share is NaN, which is not above 0.
        return share if share > 0 else None

    @cached_property
    def lead_ns(self) -> float:
        """How far CPUs are ahead of their GPUs, the least over ranks, at least 0.

        Of a rank, it is the 5th percentile of the time from the launch of an operation to its
        start.
        """
        leads_ns = []
        for timeline in self.captured.timelines:
            if timeline.start.size:
                ahead_ns = timeline.start - timeline.launch
                lead_ns = np.percentile(ahead_ns, _LEAD_PERCENTILE)
                leads_ns.append(lead_ns)
        least_lead_ns = min(leads_ns, default=0.0)
        return float(max(least_lead_ns, 0.0))

    @cached_property
    def launching_ns(self) -> float | None:
        """How long the CPU of the median rank takes at least to launch a step, a mean over steps.

        Only ranks count whose GPUs do not wait for launches. With an even number of them, it is the
        faster one of the middle two. None without such ranks, and with few steps.
        """
        windows = self.captured.windows
        steps = windows.steps[windows.is_used]
        if steps.size < FEW_STEPS:
            return None
        launch_times = []
        ranks = zip(self.starved_shares, self.captured.timelines, strict=True)
        for starved_share, timeline in ranks:
            if starved_share <= MAX_STARVED_SHARE:
                launch_ns = _mean_launch_time(timeline, steps)
                launch_times.append(launch_ns)
        if not launch_times:
            return None
        lower_middle = (len(launch_times) - 1) // 2
        fastest_first = sorted(launch_times)
        return fastest_first[lower_middle]

    @cached_property
    def step_time_ns(self) -> float:
        """The captured step time."""
        step_times = self.captured.windows.step_times()
        return float(np.median(step_times))

    def slowdowns(self, target: float | None) -> Slowdowns:
        """Return the slowdowns for a requested bus bandwidth. None keeps the captured one.

        With FSDP, work during communication stays as fast as captured.
        """
        if self.is_sharded:
            no_slowdown = SlowingPair(NO_SLOWING, NO_SLOWING)
            return Slowdowns((no_slowdown,), is_measured=False)
        return slowdowns(self.contention, self.bus_bytes_per_s, target, self.operations_per_ns)

    def target(self, knobs: Knobs, role: str | None = None) -> float | None:
        """Return the requested bus bandwidth of a kind of parallelism, by default of the first.

        Return None if the bandwidth stays the captured one. This is so if nothing is requested for
        this kind, if the requested link is about as fast, or if NCCL's log shows that the ranks use
        this link. Also return None for a multiple of a captured bandwidth that is not known.
        """
        role = role or self.roles[0]
        if knobs.role not in (None, role):
            return None
        requested = knobs.target_bytes_per_s
        captured = self.bus_bandwidth_of(role)
        if knobs.bandwidth_factor is not None:
            return None if captured is None else captured * knobs.bandwidth_factor
        # Only a link that is given by its name is compared with the captured one.
        if requested is None or captured is None or knobs.link is None:
            return requested
        max_difference = _MAX_SAME_LINK_DIFFERENCE * requested
        is_as_fast = abs(captured - requested) <= max_difference
        is_same_link = is_as_fast or knobs.link == self.known_link
        return None if is_same_link else requested

    def bandwidth_ratio(self, knobs: Knobs, role: str) -> float:
        """Return the captured over the requested bandwidth of a kind of parallelism.

        It is 1 if the bandwidth does not change.
        """
        factor = knobs.bandwidth_factor
        if factor is not None and knobs.role in (None, role):
            return 1 / factor
        target = self.target(knobs, role)
        captured = self.bus_bandwidth_of(role)
        if target is None or captured is None:
            return 1.0
        return captured / target

    @cached_property
    def relative_error_of_median(self) -> float:
        """Twice the standard error of the median step, as a share of it. 0 with few steps."""
        step_times = self.captured.windows.step_times()
        n_steps = step_times.size
        if n_steps < FEW_STEPS:
            return 0.0
        deviation_ns = step_times.std(ddof=1)
        twice_median_deviation_ns = 2 * _MEDIAN_ERROR_FACTOR * deviation_ns
        twice_error_ns = twice_median_deviation_ns / np.sqrt(n_steps)
        return float(twice_error_ns / self.step_time_ns)


def _least_compute_times(timeline: RankTimeline, edges: Int64, lost_share: float) -> Float64:
    """Return the least compute time of a rank in each window, ns.

    Communication may have cost `lost_share` of the compute during communication.
    """
    starts = edges[:-1]
    ends = edges[1:]
    comm = timeline.collectives
    active = union(comm.start, comm.end)
    is_compute = timeline.is_compute
    compute = union(timeline.start[is_compute], timeline.end[is_compute])
    covered = compute.intersect(active)
    lost_ns = lost_share * covered.lengths(starts, ends)
    return compute.lengths(starts, ends) - lost_ns


def _mean_launch_time(timeline: RankTimeline, steps: Int64) -> float:
    """Return how long a CPU takes to launch a step, as a mean over some steps, ns.

    The time of a step is the sum of the times from one launch to the next. Such a time belongs to
    the step of its first launch. Times of `PAUSE_NS` or more may be waits and do not count.
    """
    comm = timeline.collectives
    launch = np.concatenate((timeline.launch, comm.launch))
    by_launch = np.argsort(launch, kind="stable")
    gaps_ns = np.diff(launch[by_launch])
    step_of_launch = np.concatenate((timeline.step, comm.step))
    sorted_steps = step_of_launch[by_launch]
    step_of_gap = sorted_steps[:-1]
    is_short = gaps_ns < PAUSE_NS
    is_in_steps = np.isin(step_of_gap, steps)
    launching_ns = gaps_ns[is_short & is_in_steps].sum()
    return float(launching_ns / steps.size)
