"""What captured steps say of their communication, and of how much it slows the work beside it."""

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
from nsyspipe.model.table import Flags, Float64
from nsyspipe.replay.gradients import GradientCopies, Gradients, gradient_copies, gradients_of
from nsyspipe.replay.knobs import LARGEST_STARVED_SHARE, Knobs, Starving
from nsyspipe.replay.program import CapturedSteps
from nsyspipe.replay.simulate import NO_SLOWING
from nsyspipe.replay.timelines import SHARD_COLLECTIVES
from nsyspipe.run.rank_names import RankNames

# What a collective takes besides the time for its bytes.
MIN_OVERHEAD_NS = 10_000.0
LIKELY_OVERHEAD_NS = 30_000.0
MAX_OVERHEAD_NS = 80_000.0

# a slowdown that is measured in the capture needs this share of the work beside communication
_LEAST_COVERED = 0.02
_MOST_POSSIBLE = (
    1.5  # no kernels were ever seen to take so much longer: such a figure is of something else
)
# how far from the measured link its slowdown is said of another, of 1 from host memory to NVLink
_SAME_WIDTH = 0.1
_NARROW_IN_OPERATION_NS = (
    3_800.0  # of the delay over host memory: what makes the operation longer, not the gap before
)
_OF_MEDIAN = 1.2533  # standard error of a median over the mean's, of normal steps: sqrt(pi / 2)
_SAME_LINK = 0.2  # a link is the captured one when its bandwidth is within this of it


class Contention(NamedTuple):
    """What the capture says of work beside communication."""

    compared: Compared
    # How much later an operation begins after the one before than without communication (None: few
    # did); and without it.
    delay_ns: float | None
    free_gap_ns: float
    # Work that was beside communication: its share of all, its time, and how many operations it
    # began.
    covered_share: float
    covered_ns: float
    n_covered: float


class Slowdowns(NamedTuple):
    """The slowdown of work beside communication, in the capture and in the replay."""

    pairs: tuple[
        tuple[Slowing, Slowing], ...
    ]  # the likeliest, then those that make the step shortest and longest
    is_measured: bool  # in the capture, over about the same link


def slowdowns(
    measured: Contention | None,
    captured_bytes_per_s: float | None,
    target_bytes_per_s: float | None,
    operations_per_ns: float = 0.0,
) -> Slowdowns:
    """Return the slowdowns to run with, by bus bandwidths: in the capture, None if not known; in the replay, None if it stays.

    On the way from a narrow link to a wide one the measured slowdown gives way to the assumed one
    of the target. Where the captured link is not known either, it may be any: that which slows so
    many operations least, or most.
    """
    before, is_measured = _of_capture(measured, captured_bytes_per_s)
    within = slowdown.MEASURED_WITHIN if is_measured else slowdown.ASSUMED_WITHIN
    of_delay = within if measured is None or measured.delay_ns is None else slowdown.MEASURED_WITHIN
    scales = [(1 + sign * within, 1 + sign * of_delay) for sign in (-1, 1)]
    ends = [before, before]
    if before == slowdown.assumed(None) and captured_bytes_per_s is None:
        ends = sorted(
            (slowdown.NARROW, slowdown.WIDE), key=lambda one: one.total(operations_per_ns)
        )
    scaled = zip(ends, scales, strict=True)
    least, most = (
        Slowing(of_ratio * end.ratio, of_delay * end.delay_ns)
        for end, (of_ratio, of_delay) in scaled
    )
    if target_bytes_per_s is None:
        return Slowdowns(((before, before), (least, least), (most, most)), is_measured)
    width = slowdown.link_width(captured_bytes_per_s or target_bytes_per_s)
    moved = abs(slowdown.link_width(target_bytes_per_s) - width)
    after = before.blended(slowdown.assumed(target_bytes_per_s), moved if is_measured else 1.0)
    within += moved * (slowdown.ASSUMED_WITHIN - within)
    pairs = (
        (before, after),
        (most, NO_SLOWING.blended(after, 1 - within)),
        (least, NO_SLOWING.blended(after, 1 + within)),
    )
    return Slowdowns(pairs, is_measured and moved <= _SAME_WIDTH)


def _of_capture(measured: Contention | None, bytes_per_s: float | None) -> tuple[Slowing, bool]:
    assumed = slowdown.assumed(bytes_per_s)
    if measured is None or measured.covered_share < _LEAST_COVERED:
        return assumed, False
    found = assumed
    longer = measured.compared.slowdown_ratio
    is_measured = longer is not None and measured.compared.is_enough and longer <= _MOST_POSSIBLE
    in_operation = _NARROW_IN_OPERATION_NS * assumed.delay_ns / slowdown.NARROW.delay_ns
    # One operation beside communication, without the gap before it and what it is slower.
    each = measured.covered_ns / max(measured.n_covered, 1.0) - measured.free_gap_ns
    each = (each - assumed.delay_ns) / (1 + assumed.ratio)
    ratio = assumed.ratio + in_operation / max(each, in_operation, 1.0)
    if is_measured and longer is not None:
        ratio += measured.compared.share * (max(longer, 0.0) - ratio)
    if measured.delay_ns is not None:
        # The gap between two operations is no work that could be slower.
        found = Slowing(ratio, measured.delay_ns - ratio * measured.free_gap_ns)
    elif is_measured:
        found = Slowing(ratio, assumed.delay_ns - in_operation)
    return found, is_measured


@dataclass(frozen=True)
class Facts:
    """What captured steps say of their communication: bytes, bandwidth, contention; found out when asked for."""

    captured: CapturedSteps
    given_bytes: float | None  # of gradients per step, as the user says
    # As NCCL's kernels name those of the gradients' all-reduces, None for one not told; the bytes
    # of an element, if of one.
    datatypes: frozenset[str | None]
    element_bytes: int | None
    starved_shares: Float64  # of each rank's step: its GPU waits for launches
    starving: Starving
    starved_causes: Sequence[tuple[str, ...]]  # of each rank, as `knobs.starved_causes` words them
    longest_work_ns: float  # per step of the rank that works longest, waiting for others apart
    fastest_launch_ns: (
        Float64  # of each summary step the launch time of the fastest host, 0 where it is not known
    )
    recorded_bytes_per_s: Mapping[
        str, float | None
    ]  # bus bandwidth by NCCL's payload, by role of the communicators
    compared: Compared
    operations_per_ns: float  # how dense the kernels are that communication may slow
    nominal_bytes_per_s: float | None  # of the fastest link of these GPUs
    known_link: (
        str | None
    )  # what all ranks use, by NCCL's log; of links whose name is no generation
    world_size: int  # more than are replayed where some are not among the reports
    rank_names: RankNames = field(default_factory=RankNames, kw_only=True)
    is_hybrid_sharded: bool = field(
        default=False, kw_only=True
    )  # all-reduces of gradients are of their shards
    sizes_recorded_by: str = field(
        default=WITH_BLOBS, kw_only=True
    )  # what records message sizes, where they are not

    @cached_property
    def is_sharded(self) -> bool:
        """Whether parameters are gathered and gradients scattered beside the work, as of FSDP: who waits then is not all known."""
        first = self.captured.timelines[0].collectives
        return bool(
            (np.isin(first.kind, [*SHARD_COLLECTIVES]) & ~first.is_inline).any()
            or SHARDED in self.captured.uses.role
        )

    @property
    def n_steps(self) -> int:
        """Steps that are replayed and count: of several captures those of one."""
        return int(np.count_nonzero(self.captured.windows.is_used))

    @cached_property
    def has_gradients(self) -> bool:
        """Whether there are all-reduces of gradients."""
        return bool(self.captured.program.is_gradient.any())

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """What the communicators are for, that of the gradients' first, else that with most transfer."""
        program = self.captured.program
        weights = program.transfer_ns.mean(axis=1) + np.where(program.is_gradient, np.inf, 0.0)
        sums = {
            one: float(weights[program.role == one].sum())
            for one in sorted({*program.role.tolist()})
        }
        return tuple(sorted(sums, key=lambda one: -sums[one]))

    @cached_property
    def contention(self) -> Contention | None:
        """What the capture says of work beside communication, None where sharded: how much later operations begin there, in the mean.

        Of those of the main stream that `gaps_before` has and that wait for no collective.
        """
        if self.is_sharded:
            return None
        pairs = list(zip(self.captured.timelines, self.captured.ranks, strict=True))
        gaps = []
        for rank, markers in pairs:
            busy = union(rank.collectives.start, rank.collectives.end)
            place, gap, is_free, is_beside = gaps_before(rank.start, rank.end, rank.launch, busy)
            own = ~np.isin(place, markers.join)
            gaps.append((gap[own & is_free], gap[own & is_beside]))
        free, beside = (np.concatenate(own) for own in zip(*gaps, strict=True))
        # How far each rank came from its first operation to its last.
        ends = [
            (markers, np.array([rank.start[0], rank.end.max()]))
            for rank, markers in pairs
            if rank.start.size
        ]
        came = [np.diff(markers.measure_progress(times))[:, 0] for markers, times in ends]
        work, covered, _, n_covered = np.sum([np.zeros(4), *came], axis=0).tolist()
        delay_ns = (
            float(beside.mean() - free.mean())
            if min(free.size, beside.size) >= ENOUGH_GAPS
            else None
        )
        free_gap_ns = float(free.mean()) if free.size else 0.0
        return Contention(
            self.compared, delay_ns, free_gap_ns, covered / max(work, 1.0), covered, n_covered
        )

    @cached_property
    def gradients(self) -> tuple[Gradients | None, ...]:
        """Those of each step; None where their bytes are not known."""
        return self.gradients_with(None)

    @property
    def is_exact(self) -> bool:
        """Whether sizes and ready times of all of them were seen."""
        return all(gradient is not None and gradient.is_exact for gradient in self.gradients)

    def gradients_with(self, skew: float | None) -> tuple[Gradients | None, ...]:
        """Return them with a share of their bytes ready at once: see `gradients.gradients_of`."""
        return tuple(
            gradients_of(self.captured, step, self.given_bytes, skew)
            for step in self.captured.steps
        )

    @cached_property
    def gradient_bytes(self) -> float | None:
        """Bytes of gradients per step, the median over steps; None if not known for all."""
        known = [gradient.n_bytes.sum() for gradient in self.gradients if gradient is not None]
        return float(np.median(known)) if known and len(known) == len(self.gradients) else None

    @cached_property
    def bus_bytes_per_s(self) -> float | None:
        """Bus bandwidth: bytes x factor / transfer of the gradients' all-reduces, or as recorded; None if not known."""
        program = self.captured.program
        if program.n_ranks <= 1:
            return None
        if self.gradient_bytes is None or self.is_sharded:
            return self.recorded_bytes_per_s.get(self.roles[0])
        factor = float(bus_factor("all_reduce", np.array([self.world_size], np.float64))[0])
        own = program.is_gradient
        transfer = np.bincount(program.step[own], weights=program.transfer_ns[own].mean(axis=1))
        return self.gradient_bytes * factor / max(float(np.median(transfer)), 1.0) * 1e9

    def bus_of(self, role: str) -> float | None:
        """Return the bus bandwidth of the communicators of a role; None if not known."""
        return (
            self.bus_bytes_per_s if role == self.roles[0] else self.recorded_bytes_per_s.get(role)
        )

    def least_compute_ns(self, most_slower: float) -> float:
        """Return what the device of the rank that computes most does per step, slowed at most so much; median over steps."""
        windows = self.captured.windows
        rows = []
        for one, edges in zip(self.captured.timelines, windows.edges.T, strict=True):
            busy = union(one.start[one.is_compute], one.end[one.is_compute])
            covered = busy.intersect(union(one.collectives.start, one.collectives.end)).lengths(
                edges[:-1], edges[1:]
            )
            rows.append(
                busy.lengths(edges[:-1], edges[1:]) - most_slower / (1 + most_slower) * covered
            )
        return float(np.median(np.max(rows, axis=0)[windows.is_used]))

    def is_waited_for(self, role: str) -> bool:
        """Tell whether it is known what waits for the communication of a role: the gradients', or what is on the main stream."""
        if role == OTHER or (role == self.roles[0] and self.has_gradients):
            return True
        own = self.captured.uses.role == role
        return bool(
            (self.captured.timelines[0].collectives.is_inline | self.captured.uses.is_gradient)[
                own
            ].all()
        )

    @cached_property
    def is_prefetched(self) -> Flags:
        """Which collectives could be begun earlier: the all-gathers of shards beside the work."""
        first = self.captured.timelines[0].collectives
        role = self.captured.uses.role
        gathers: Flags = (first.kind == "all_gather") & ~first.is_inline & (role == SHARDED)
        return gathers

    @cached_property
    def n_bursts(self) -> int:
        """How often the gradients of a step are sent, the most: once, or of an accumulation in each micro-batch."""
        program = self.captured.program
        burst = self.captured.burst
        own = program.is_gradient
        steps, _ = np.unique(np.stack((program.step[own], burst[own])), axis=1)
        return int(np.bincount(steps).max(initial=0))

    @cached_property
    def lag_share(self) -> float:
        """Median time from when gradients' all-reduces could begin to their start, of the latest rank, over their transfer."""
        program = self.captured.program
        own = self.captured.program.is_gradient
        if not own.any():
            return 0.0
        transfer = np.median(program.transfer_ns[own].mean(axis=1))
        return float(max(np.median(program.lag_ns[own], axis=0).max(), 0.0) / max(transfer, 1.0))

    @cached_property
    def _copies(self) -> list[list[GradientCopies]]:
        ranks = range(self.captured.program.n_ranks)
        return [
            [gradient_copies(self.captured, step, rank) for rank in ranks]
            for step in self.captured.steps
        ]

    @cached_property
    def copies_ns(self) -> float:
        """Time of the copies from buckets to gradients per step: the mean over ranks, of steps the median."""
        lengths = [timeline.end - timeline.start for timeline in self.captured.timelines]
        times = [
            [own[one.rows].sum() for own, one in zip(lengths, step, strict=True)]
            for step in self._copies
        ]
        return float(np.median(np.mean(times, axis=1)))

    @cached_property
    def n_copies(self) -> int:
        """Such copies per step: the fewest of any step and rank."""
        return min(one.rows.size for step in self._copies for one in step)

    @cached_property
    def sent_share(self) -> float | None:
        """Bytes that NCCL's payload says over those copied to the gradients, medians over steps; None without either."""
        program = self.captured.program
        copies = self._copies
        own = program.is_gradient
        sent = np.bincount(program.step[own], weights=program.n_bytes[own], minlength=len(copies))
        copied = float(np.median([one.n_bytes.sum() for step in copies for one in step]))
        share = float(np.median(sent)) / copied if copied else np.nan
        return share if share > 0 else None

    @cached_property
    def lead_ns(self) -> float:
        """How far hosts are ahead of their GPUs: the 5th percentile of start less launch, the least over ranks."""
        leads = [
            timeline.start - timeline.launch
            for timeline in self.captured.timelines
            if timeline.start.size
        ]
        return float(max(min((np.percentile(one, 5) for one in leads), default=0.0), 0.0))

    @cached_property
    def launching_ns(self) -> float | None:
        """How long the host of the middle rank (of two the faster) takes to launch a step, at least; None of fewer than 3 steps.

        From one launch to the next, but for 2 ms and more, a wait perhaps; mean over steps; of
        ranks whose GPUs lack none.
        """
        steps = self.captured.windows.steps[self.captured.windows.is_used]
        if steps.size < FEW_STEPS:
            return None
        means = []
        for share, rank in zip(self.starved_shares, self.captured.timelines, strict=True):
            launch = np.concatenate((rank.launch, rank.collectives.launch))
            order = np.argsort(launch, kind="stable")
            gaps = np.diff(launch[order])
            step = np.concatenate((rank.step, rank.collectives.step))[order[:-1]]
            if share <= LARGEST_STARVED_SHARE:
                means.append(gaps[(gaps < PAUSE_NS) & np.isin(step, steps)].sum() / steps.size)
        return float(np.sort(means)[(len(means) - 1) // 2]) if means else None

    @cached_property
    def step_time_ns(self) -> float:
        """The captured step time."""
        return float(np.median(self.captured.windows.step_times()))

    def slowdowns(self, target: float | None) -> Slowdowns:
        """Return the slowdowns for a bus bandwidth; None keeps the captured one."""
        if self.is_sharded:
            return Slowdowns(((Slowing(), Slowing()),), is_measured=False)
        return slowdowns(self.contention, self.bus_bytes_per_s, target, self.operations_per_ns)

    def target(self, knobs: Knobs, role: str | None = None) -> float | None:
        """Return the bus bandwidth asked for of a role (the first); None for the captured one.

        A link leaves that which about reaches it, and the one that NCCL's log says ranks use: it
        gives what it gave.
        """
        role = role or self.roles[0]
        if knobs.role not in (None, role):
            return None
        asked = knobs.target_bytes_per_s
        own = self.bus_of(role)
        if knobs.bandwidth_factor is not None:
            return None if own is None else own * knobs.bandwidth_factor
        if asked is None or own is None or knobs.link is None:
            return asked
        if knobs.link == self.known_link:
            return None
        return None if abs(own - asked) <= _SAME_LINK * asked else asked

    def ratio(self, knobs: Knobs, role: str) -> float:
        """Return captured over asked bandwidth of the communicators of a role; 1 keeps the captured one."""
        if knobs.bandwidth_factor is not None and knobs.role in (None, role):
            return 1 / knobs.bandwidth_factor
        target = self.target(knobs, role)
        own = self.bus_of(role)
        return 1.0 if target is None or own is None else own / target

    @cached_property
    def standard_error(self) -> float:
        """Twice the relative standard error of the median step (1.25 x that of the mean); 0 with fewer than 3 steps."""
        times = self.captured.windows.step_times()
        if times.size < FEW_STEPS:
            return 0.0
        return float(2 * _OF_MEDIAN * times.std(ddof=1) / np.sqrt(times.size) / self.step_time_ns)
