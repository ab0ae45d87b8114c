"""The reasons why a run or a change has no estimate, in words.

A function that yields reasons yields the most important one first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.links import GB, NAMED_LINKS
from nsyspipe.analysis.traffic import OTHER, PIPELINE
from nsyspipe.model.names import few, is_nccl_communicator, noun_for
from nsyspipe.model.problems import MORE_STEPS, WITH_BLOBS
from nsyspipe.model.table import Flags, Float64
from nsyspipe.replay.gradients import Gradients, bucket_ends
from nsyspipe.replay.knobs import Knobs
from nsyspipe.replay.program import CapturedSteps
from nsyspipe.replay.starving import LAUNCH_BOUND, MAX_STARVED_SHARE, Starving
from nsyspipe.replay.timelines import (
    BEFORE_ALL_NS,
    SHARD_COLLECTIVES,
    Collectives,
    RankTimeline,
    ReplayWindows,
)
from nsyspipe.run.rank_names import RankNames
from nsyspipe.run.run import Run

_Refusal: TypeAlias = "Callable[[CheckedReplay, Knobs], Iterator[str]]"

# The simulation of no change may be wrong by this share of a step.
MAX_IDENTITY_ERROR = 0.01
# CPUs with a full queue of launches take longer. If a faster link was captured too, launching a
# step took before up to 1.17 times as long as the step took with the faster link.
MAX_LAUNCH_TO_STEP = 1.25
_MAX_NAMED_RANKS = 4
_MAX_UNLAUNCHED_SHARE = 0.01
# A bandwidth is lower only if it is lower by more than this share.
_MAX_SAME_BANDWIDTH_RATIO = 1.03
# If less of the gradients is sent, a hook compresses them.
_MIN_SENT_SHARE = 0.75
# With NVLink SHARP the switch adds up, if there are more than two ranks. The bandwidth can be so
# much above that of the links.
_MAX_TO_PEAK_IN_SWITCH = 1.25
_MAX_RANKS_WITHOUT_SWITCH = 2
# A tenth of Ethernet with 1 Gb/s.
_MIN_NETWORK_BYTES_PER_S = 10e6
_MAX_BUCKETS = 128
# The buckets of all steps. The simulation takes a tenth of a second for a thousand.
_MAX_SIMULATED_BUCKETS = 2_500
_MAX_LAG_TO_TRANSFER = 1
_CHANGES_OF_GRADIENTS = {"gradient_dtype", "bucket_mb", "no_grad_copy", "no_sync"}
_CHANGES_ON_ONE_RANK = {"bucket_mb", "no_grad_copy"}
# Kernels may be slower during communication, but hardly by more.
_MAX_COMPUTE_SLOWDOWN = 1.5


# --- runs -----------------------------------------------------------------------------------------
class CheckedReplay(Protocol):
    """What the rules ask of a `scenarios.Replay`, to find out whether the simulation holds."""

    @property
    def captured(self) -> CapturedSteps:
        """The captured steps."""

    @property
    def rank_names(self) -> RankNames:
        """The names of the ranks."""

    @property
    def world_size(self) -> int:
        """Number of ranks of the job."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The kinds of parallelism that the communication is for."""

    @property
    def datatypes(self) -> frozenset[str | None]:
        """The datatypes of the gradients' all-reduces."""

    @property
    def sizes_recorded_by(self) -> str:
        """What records message sizes."""

    @property
    def starving(self) -> Starving:
        """Which GPUs lack launches in which steps."""

    @property
    def starved_shares(self) -> Float64:
        """The share of each rank's step in which its GPU waits for launches."""

    @property
    def starved_causes(self) -> Sequence[tuple[str, ...]]:
        """Why the GPU of each rank waits for launches."""

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are gathered and gradients scattered."""

    @property
    def is_hybrid_sharded(self) -> bool:
        """Whether all-reduces of gradients are of their shards."""

    @property
    def is_prefetched(self) -> Flags:
        """Which collectives a prefetch would start earlier."""

    @property
    def has_gradients(self) -> bool:
        """Whether there are all-reduces of gradients."""

    @property
    def gradients(self) -> tuple[Gradients | None, ...]:
        """The gradients of each step."""

    @property
    def gradient_bytes(self) -> float | None:
        """Bytes of gradients per step."""

    @property
    def sent_share(self) -> float | None:
        """The share of the gradients' bytes that is sent."""

    @property
    def n_bursts(self) -> int:
        """How often the gradients of a step are sent."""

    @property
    def n_copies(self) -> int:
        """Number of gradient copies per step."""

    @property
    def lag_share(self) -> float:
        """How late collectives start, as a share of their transfer time."""

    @property
    def bus_bytes_per_s(self) -> float | None:
        """Bus bandwidth of the gradients' all-reduces."""

    @property
    def nominal_bytes_per_s(self) -> float | None:
        """Bandwidth of the fastest link of these GPUs."""

    @property
    def limits(self) -> Float64 | None:
        """Step times with zero communication time."""

    @property
    def is_answered_balanced(self) -> bool:
        """Whether CPUs would launch in time if no rank waited for a late one."""

    def bus_bandwidth_of(self, role: str) -> float | None:
        """Return the bus bandwidth of the communicators of a role."""

    def bandwidth_ratio(self, knobs: Knobs, role: str) -> float:
        """Return the captured bandwidth of a role divided by the one that is asked for."""

    def is_waited_for(self, role: str) -> bool:
        """Tell whether it is known what waits for the communication of a role."""

    def least_compute_ns(self, max_slowdown: float) -> float:
        """Return how long compute takes at least in a step."""

    def why_refused_balanced(self, knobs: Knobs) -> str | None:
        """Return why a change has no answer even if no rank waited for a late one."""


def why_not(run: Run) -> Iterator[str]:
    """Yield why a run cannot be simulated at all, as its tables show without its operations."""
    if run.is_capture:
        yield "the run is a capture as a whole, without steps (name the steps with --step REGEX)"
    reason_of = {row["code"]: f"{row['message']} ({row['fix']})" for row in run.problem_rows}
    yield from _why_no_communication(run, reason_of)
    (summary,) = run.summary().to_pylist()
    idle_share = summary["idle_share"] or 0.0
    # Without one clock of CPU and GPU, it is not known why a GPU is idle. All of the idle time may
    # be for lack of launches.
    if idle_share > MAX_STARVED_SHARE and "device-clock-unknown" in reason_of:
        yield reason_of["device-clock-unknown"]
    yield from _why_no_steps(run)
    traffic = run.traffic()
    if PIPELINE in traffic["role"].to_pylist():
        yield "the simulation does not cover pipeline schedules"
    elif "send_recv" in traffic["collective"].to_pylist():
        yield "the run has sends and receives, and their purpose is unknown"


def _why_no_communication(run: Run, reason_of: Mapping[str, str]) -> Iterator[str]:
    """Yield that there is no communication. `reason_of` has the problems of the run in words."""
    n_job_ranks = run.header.n_job_ranks
    has_communication = bool(run.collectives().num_rows)
    # A job of unknown size counts as one rank if its rank does not communicate.
    has_job_one_rank = not has_communication if n_job_ranks is None else n_job_ranks == 1
    if run.header.n_ranks <= 1 and has_job_one_rank:
        yield "the run has 1 rank, so there is no communication to change"
    if not has_communication:
        yield reason_of.get("comm-in-graphs", "no communication was recorded in any step")


def _why_no_steps(run: Run) -> Iterator[str]:
    """Yield why no step of a run can be simulated."""
    steps = run.steps()
    complete_rows = steps.filter(steps["is_complete"])
    used_rows = steps.filter(steps["in_summary"])
    complete_steps = np.unique(complete_rows["step"].to_numpy())
    used_steps = np.unique(used_rows["step"].to_numpy())
    is_used_complete = np.isin(used_steps, complete_steps)
    if not is_used_complete.all() or not used_steps.size:
        yield "no step is complete on every rank"
    # If no step is skipped, the only complete step is the first one.
    is_only_first_complete = complete_steps.size == 1 and not run.skipped_steps
    if is_only_first_complete:
        yield (
            "there is no complete step after the first, and ranks start the first step at "
            f"different times ({MORE_STEPS})"
        )


# --- operations of a run --------------------------------------------------------------------------
def why_not_replayable(
    run: Run, timelines: Sequence[RankTimeline], windows: ReplayWindows
) -> Iterator[str]:
    """Yield why the operations of a run cannot be simulated."""
    collectives = run.collectives()
    steps_of_windows = pc.cast(windows.steps, "int64")
    is_in_windows = pc.is_in(collectives["step"], value_set=steps_of_windows)
    in_windows = collectives.filter(is_in_windows)
    if any(timeline.n_comm_outside_steps for timeline in timelines):
        yield (
            "communication from outside the steps still runs inside the steps, so nsyspipe cannot "
            "separate the collectives"
        )
    has_collectives = all(timeline.collectives.start.size for timeline in timelines)
    if not in_windows.num_rows or not has_collectives:
        yield "no communication was recorded in the steps used"
    yield from _why_not_matched(in_windows, timelines)
    yield from _why_kernels_on_comm_stream(timelines, windows)
    yield from _why_several_communicators(in_windows, timelines)
    yield from _why_no_dependencies(timelines)


def _why_not_matched(in_windows: pa.Table, timelines: Sequence[RankTimeline]) -> Iterator[str]:
    """Yield why collectives cannot be matched across ranks."""
    collectives = [timeline.collectives for timeline in timelines]
    first_steps = collectives[0].step
    has_same_steps = all(np.array_equal(comm.step, first_steps) for comm in collectives)
    is_several_ranks = len(timelines) > 1
    is_any_unmatched = is_several_ranks and not pc.all(in_windows["is_matched"]).as_py()
    if not has_same_steps or is_any_unmatched:
        yield "collectives could not be matched across ranks"
    # A collective is a step and a `seq`. At one place, ranks of different groups may have different
    # collectives. But one collective must have the same place on all of its ranks.
    keys_of_ranks = []
    for comm in collectives:
        place = np.arange(comm.seq.size)
        keys_of_ranks.append(np.stack((comm.step, comm.seq, place)))
    all_keys = np.concatenate(keys_of_ranks, axis=1)
    collectives_and_places = np.unique(all_keys, axis=1)
    distinct_collectives = np.unique(collectives_and_places[:2], axis=1)
    has_several_places = collectives_and_places.shape[1] > distinct_collectives.shape[1]
    if has_several_places:
        yield (
            "ranks launch their collectives in different orders, so nsyspipe cannot match the "
            "collectives"
        )


def _why_kernels_on_comm_stream(
    timelines: Sequence[RankTimeline], windows: ReplayWindows
) -> Iterator[str]:
    """Yield that a hook computes between a collective and the work that waits for the collective.

    The rank with most of such compute counts. If it takes less time than the simulation may be
    wrong by, nothing is yielded. This is so if casts of bf16 compression sometimes run on NCCL's
    stream.
    """
    n_steps = windows.steps.size
    most = max(timelines, key=lambda timeline: timeline.comm_stream_kernels_ns)
    all_windows_ns = windows.edges[-1] - windows.edges[0]
    mean_ns_of_ranks = all_windows_ns.mean()
    share = most.comm_stream_kernels_ns / mean_ns_of_ranks
    if share > MAX_IDENTITY_ERROR:
        n_kernels = most.n_comm_stream_kernels / n_steps
        kernels = noun_for(n_kernels, "kernel")
        amount = f"up to {n_kernels:,.3g} {kernels} per step, {100 * share:.1f}% of the step"
        yield (
            f"compute kernels run on the communication stream ({amount}), as with PowerSGD, "
            "and the simulation does not cover such kernels"
        )


def _why_several_communicators(
    in_windows: pa.Table, timelines: Sequence[RankTimeline]
) -> Iterator[str]:
    """Yield that the order of collectives of several communicators is not known.

    Each stream with collectives counts as a communicator. NCCL's IDs would show the order.
    """
    comm_ids = in_windows["comm_id"].unique().to_pylist()
    has_ids = all(map(is_nccl_communicator, comm_ids))
    has_several = any(_has_several_streams(timeline.collectives) for timeline in timelines)
    if has_several and not has_ids:
        missing_ids = f"NCCL's communicator IDs were not recorded ({WITH_BLOBS})"
        yield (
            f"the run uses several communicators, and {missing_ids}, so the order of the "
            "collectives is unknown"
        )


def _has_several_streams(comm: Collectives) -> bool:
    """Tell whether collectives outside the main stream are on several streams.

    With FSDP, each of its two kinds of collectives may have a stream.
    """
    is_outside = ~comm.is_inline
    kinds = {*comm.kind[is_outside].tolist()}
    if kinds <= SHARD_COLLECTIVES:
        # By kind: whether each collective is of this kind.
        memberships = [is_outside & (comm.kind == kind) for kind in kinds]
    else:
        memberships = [is_outside]
    streams_of_groups = [np.unique(comm.stream[is_member]) for is_member in memberships]
    return any(streams.size > 1 for streams in streams_of_groups)


def _why_no_dependencies(timelines: Sequence[RankTimeline]) -> Iterator[str]:
    """Yield why it is not known what operations wait for."""
    if any(map(_shares_launches, timelines)):
        yield (
            "CUDA graphs launch communication and compute together, so their dependencies are "
            "unknown"
        )
    n_operations = sum(timeline.start.size for timeline in timelines)
    n_without_launch = sum(timeline.n_without_launch for timeline in timelines)
    if n_without_launch > _MAX_UNLAUNCHED_SHARE * n_operations:
        yield (
            "kernel launches were not recorded (capture with --trace=cuda,nvtx), so dependencies "
            "are unknown"
        )
    # Collectives may be few of all operations, but the launch of each one is needed.
    launches = np.concatenate([timeline.collectives.launch for timeline in timelines])
    n_missing = int(np.count_nonzero(launches == BEFORE_ALL_NS))
    if n_missing:
        yield (
            f"launches of collectives are missing ({n_missing} of {launches.size}), so their "
            "dependencies are unknown"
        )


def _shares_launches(timeline: RankTimeline) -> bool:
    """Tell whether a launch has both a collective of another stream and an operation.

    The operation is one of the main stream, and the collective is not.
    """
    comm = timeline.collectives
    comm_launches = comm.launch[~comm.is_inline]
    return bool(np.isin(comm_launches, timeline.launch).any())


def beyond_nominal(replay: CheckedReplay) -> str | None:
    """Return why the captured bandwidth is impossible. Return None if it may be right.

    A bandwidth is impossible if it is above that of the fastest interconnect of the GPUs, or below
    that of any network. Only the bandwidth of gradients is checked.
    """
    bandwidth = replay.bus_bytes_per_s if replay.has_gradients else None
    if bandwidth is None:
        return None
    # If the peak is not known, no bandwidth is too large.
    peak = replay.nominal_bytes_per_s or 0.0
    max_bandwidth = math.inf
    if peak:
        may_have_switch = replay.captured.program.n_ranks > _MAX_RANKS_WITHOUT_SWITCH
        max_bandwidth = peak * _MAX_TO_PEAK_IN_SWITCH if may_have_switch else peak
    if _MIN_NETWORK_BYTES_PER_S <= bandwidth <= max_bandwidth:
        return None
    if bandwidth < _MIN_NETWORK_BYTES_PER_S:
        bound = f"even the slowest network reaches {_MIN_NETWORK_BYTES_PER_S / GB:g} GB/s"
    else:
        bound = f"the fastest interconnect of these GPUs reaches only {peak / GB:,.0f} GB/s"
    return (
        "the size of the gradients is wrong: it means a bandwidth of "
        f"{bandwidth / GB:,.3g} GB/s, but {bound}"
    )


def contradiction(replay: CheckedReplay) -> str | None:
    """Return how the simulation contradicts itself. Return None if it does not.

    With zero communication time, a simulated step cannot be shorter than the compute of a step. The
    compute is as short as possible: as if communication had slowed it down as much as possible.
    """
    if replay.limits is None:
        return None
    likely_times = replay.limits[0]
    limit_ns = np.median(likely_times)
    least_compute_ns = replay.least_compute_ns(_MAX_COMPUTE_SLOWDOWN)
    if limit_ns >= least_compute_ns:
        return None
    return (
        "the simulation contradicts itself: with zero communication time a step takes "
        f"{limit_ns / 1e6:.2f} ms, but compute alone takes at least {least_compute_ns / 1e6:.2f} ms"
    )


# --- changes --------------------------------------------------------------------------------------
def why_not_knobs(replay: CheckedReplay, knobs: Knobs) -> str | None:
    """Return why a combination of changes cannot be simulated. Return None if it can."""
    changes = knobs.given
    changes_gradients = not _CHANGES_OF_GRADIENTS.isdisjoint(changes)
    if changes_gradients and (replay.is_sharded or not replay.has_gradients):
        return _why_no_gradients(replay, knobs)
    rules = [rule for name, rule in _REFUSALS.items() if name in changes]
    reasons_of_rules = [rule(replay, knobs) for rule in rules]
    reasons = chain(_why_not_any(replay, knobs), *reasons_of_rules)
    return next(reasons, None)


def _why_no_gradients(replay: CheckedReplay, knobs: Knobs) -> str:
    """Return why gradients cannot change."""
    if replay.is_sharded and "gradient_dtype" in knobs.given:
        return (
            "gradients are sharded (FSDP/ZeRO), and the simulation does not cover "
            "reduce-scatters in another datatype"
        )
    if replay.is_hybrid_sharded:
        return "the all-reduces are of gradient shards (hybrid sharding), not of DDP buckets"
    if OTHER in replay.roles and not replay.is_sharded:
        return "the purpose of some communication is unknown, so nsyspipe cannot identify gradients"
    if replay.is_sharded:
        communication = "only sharded gradients (FSDP/ZeRO)"
    else:
        communication = f"only {', '.join(replay.roles)} communication"
    return f"the run has {communication}, and no all-reduces of whole gradients that could change"


def _why_not_any(replay: CheckedReplay, knobs: Knobs) -> Iterator[str]:
    """Yield why a combination of changes cannot be simulated, whatever it changes."""
    reason = beyond_nominal(replay)
    if reason:
        yield reason
    yield from _why_ranks_missing(replay, knobs)
    yield from _why_starved(replay, knobs)


def _why_ranks_missing(replay: CheckedReplay, knobs: Knobs) -> Iterator[str]:
    """Yield that ranks are missing, if a change depends on how long ranks wait for each other."""
    n_ranks = replay.captured.program.n_ranks
    needs_all_ranks = bool(knobs.given.keys() - _CHANGES_ON_ONE_RANK)
    # The size of the job may not be known. But one rank alone never shows its wait time.
    min_ranks = max(replay.world_size, 2)
    if n_ranks < min_ranks and needs_all_ranks:
        if n_ranks <= 1:
            captured = "only 1 rank was captured"
        else:
            captured = f"only {n_ranks} of {replay.world_size} ranks were captured"
        yield (
            f"{captured}, so nsyspipe cannot separate wait time from transfer time (pass the "
            "reports of all ranks, nsyspipe can predict only buckets and their copies without the "
            "others)"
        )


def _why_starved(replay: CheckedReplay, knobs: Knobs) -> Iterator[str]:
    """Yield that GPUs wait for launches, so that CPUs decide how long steps are.

    One such GPU among several ranks is a late rank. It is allowed if the change removes waiting for
    late ranks (`no_wait`). Only the first sentence is shown.
    """
    shares = replay.starved_shares
    n_starved = np.count_nonzero(shares > MAX_STARVED_SHARE)
    if not n_starved:
        return
    # The GPU that waits most is named.
    place = int(np.argmax(shares))
    number = replay.captured.windows.ranks[place]
    rank = replay.rank_names.name(number)
    causes = " or ".join(replay.starved_causes[place])
    sentence = (
        f"rank {rank} is {causes}, because its GPU waits for the CPU for "
        f"{100 * shares.max():.1f}% of the median step"
    )
    # Even `no_wait` does not help if several GPUs wait, or if there is only one rank.
    if n_starved > 1:
        yield f"{sentence}, and other ranks wait too"
    elif replay.captured.program.n_ranks == 1:
        yield sentence
    if knobs.no_wait:
        return
    if not replay.is_answered_balanced:
        # Even without late ranks, CPUs would not launch early enough.
        yield f"{sentence}. {_how_to_launch_earlier(replay, place)}"
        return
    # A reason that would be left without late ranks is more important than the late rank.
    reason_without_late_ranks = replay.why_refused_balanced(knobs)
    if reason_without_late_ranks:
        yield reason_without_late_ranks
    yield sentence


def _how_to_launch_earlier(replay: CheckedReplay, place: int) -> str:
    """Return which CPUs must launch earlier, and which other GPUs wait in some steps.

    `place` is that of the rank whose GPU waits most.
    """
    starving = replay.starving
    rank = replay.captured.windows.ranks[place]
    # The largest cause is the first one.
    causes = replay.starved_causes[place]
    is_launch_bound = causes[:1] == (LAUNCH_BOUND,)
    slower_ranks = starving.slower
    is_as_fast_as_others = slower_ranks is not None and rank not in slower_ranks
    if is_launch_bound and is_as_fast_as_others:
        fix = (
            "All CPUs launch equally fast on average, so first make all of them launch kernels "
            "earlier"
        )
    else:
        fix = "First make its CPU launch kernels earlier"
    waiting = []
    for waiting_rank, n_steps in starving.n_late_steps.items():
        if waiting_rank != rank:
            name = replay.rank_names.name(waiting_rank)
            waiting.append(f"rank {name} in {n_steps} of {starving.n_steps} steps")
    if not waiting:
        return fix
    return f"{fix}. Other GPUs wait too: {few(waiting, _MAX_NAMED_RANKS)}"


def _why_not_bandwidth(replay: CheckedReplay, knobs: Knobs) -> Iterator[str]:
    """Yield why another bandwidth cannot be simulated."""
    target = knobs.target_bytes_per_s or 0.0
    if knobs.role is not None and knobs.role not in replay.roles:
        yield f"the run has no {knobs.role} communication, only {', '.join(replay.roles)}"
        return
    peaks = [(link.nominal_bytes_per_s or 0.0, link.name) for link in NAMED_LINKS]
    peak, fastest = max(peaks)
    if target > peak * _MAX_TO_PEAK_IN_SWITCH:
        yield (
            f"no interconnect reaches {target / GB:,.0f} GB/s. The fastest that nsyspipe knows "
            f"is {fastest} with {peak / GB:,.0f} GB/s. "
            "For a limit, use nsyspipe whatif --perfect-overlap"
        )
    roles = replay.roles if knobs.role is None else (knobs.role,)
    for role in roles:
        yield from _why_not_bandwidth_of(replay, knobs, role)


def _why_not_bandwidth_of(replay: CheckedReplay, knobs: Knobs, role: str) -> Iterator[str]:
    """Yield why another bandwidth of a kind of parallelism cannot be simulated."""
    if knobs.bandwidth_factor is None and replay.bus_bandwidth_of(role) is None:
        if role == OTHER and len(replay.roles) > 1:
            # The bandwidth of `OTHER` stays as captured, and that of the other kinds changes.
            return
        if replay.has_gradients and not replay.is_sharded:
            fix = "use nsyspipe whatif --gradient-bytes N"
        else:
            fix = f"{replay.sizes_recorded_by}, or use nsyspipe whatif --bandwidth 2x"
        yield f"message sizes were not recorded, so the captured bandwidth is unknown ({fix})"
        return
    is_slower = replay.bandwidth_ratio(knobs, role) > _MAX_SAME_BANDWIDTH_RATIO
    if is_slower and not replay.is_waited_for(role):
        parallelism = "FSDP/ZeRO" if replay.is_sharded else role
        yield (
            f"{parallelism} communication overlaps with compute, and the work that waits for an "
            "overlapped collective is unknown, so nsyspipe predicts only faster interconnects"
        )


def _why_not_buckets(replay: CheckedReplay, knobs: Knobs) -> Iterator[str]:
    """Yield why another bucket size cannot be simulated."""
    if replay.n_bursts > 1:
        yield (
            f"gradients are all-reduced {replay.n_bursts} times per step, with other work in "
            "between, and nsyspipe cannot match them (with no_sync(), accumulation sends gradients "
            "only once)"
        )
    if replay.gradient_bytes is None:
        yield "the size of the gradients was not recorded (use nsyspipe whatif --gradient-bytes N)"
    if replay.sent_share is not None and replay.sent_share < _MIN_SENT_SHARE:
        yield (
            f"a hook compresses the gradients to {replay.sent_share:.2f} of their size, but "
            "bucket_cap_mb counts uncompressed gradients (use a capture without the hook)"
        )
    yield from _why_too_many_buckets(replay, knobs.bucket_mb or 0.0)
    if replay.lag_share > _MAX_LAG_TO_TRANSFER:
        yield (
            "collectives start late after everything that they depend on, with a delay of "
            f"{replay.lag_share:.1f} times their own duration, so the start of smaller or "
            "larger collectives is unknown"
        )


def _why_too_many_buckets(replay: CheckedReplay, cap_mib: float) -> Iterator[str]:
    """Yield that a cap makes too many buckets, for one step or for all steps together."""
    known = [gradients for gradients in replay.gradients if gradients is not None]
    numbers = [bucket_ends(gradients.n_bytes, cap_mib).size for gradients in known]
    n_buckets = max(numbers, default=0)
    if n_buckets > _MAX_BUCKETS:
        program = replay.captured.program
        step_of_gradients = program.step[program.is_gradient]
        n_captured = np.bincount(step_of_gradients).max(initial=0)
        yield (
            f"{n_buckets:,} buckets per step are too many: nsyspipe predicts up to {_MAX_BUCKETS}, "
            f"and the run has {n_captured}"
        )
    n_steps = len(replay.captured.steps)
    if n_buckets * n_steps > _MAX_SIMULATED_BUCKETS:
        yield (
            f"{n_buckets:,} buckets in each of {n_steps:,} steps take too long to simulate, the "
            f"most is {_MAX_SIMULATED_BUCKETS:,} in all steps (capture fewer steps, or leave out "
            "some with --skip-first N)"
        )


def _why_not_16_bits(replay: CheckedReplay, _: Knobs) -> Iterator[str]:
    if replay.datatypes != {"f32"}:
        datatypes = replay.datatypes or {None}
        names = sorted(datatype or "an unknown type" for datatype in datatypes)
        yield f"gradients are sent as {', '.join(names)}, and only f32 gradients can be halved"


def _why_not_without_copies(replay: CheckedReplay, _: Knobs) -> Iterator[str]:
    if replay.n_copies <= 1:
        yield (
            "there are no copies between buckets and gradients, so "
            "gradient_as_bucket_view=True is already set or a hook is in use"
        )


def _why_not_one_send(replay: CheckedReplay, _: Knobs) -> Iterator[str]:
    if replay.n_bursts <= 1:
        yield "the backward passes show that gradients are already sent once per step"


def _why_not_prefetch(replay: CheckedReplay, _: Knobs) -> Iterator[str]:
    if not replay.is_prefetched.any():
        yield "the run has no all-gathers of parameters (FSDP, ZeRO 3) that could start earlier"


def _why_not_overlapped(replay: CheckedReplay, _: Knobs) -> Iterator[str]:
    collectives = [timeline.collectives for timeline in replay.captured.timelines]
    if any(comm.is_inline.any() for comm in collectives):
        yield (
            "communication runs on the compute stream, so communication cannot overlap with compute"
        )


# Why a change cannot be simulated, by its name. Other changes have no reason of their own.
_REFUSALS: Mapping[str, _Refusal] = {
    "bandwidth_bytes_per_s": _why_not_bandwidth,
    "bandwidth_factor": _why_not_bandwidth,
    "link": _why_not_bandwidth,
    "bucket_mb": _why_not_buckets,
    "no_grad_copy": _why_not_without_copies,
    "gradient_dtype": _why_not_16_bits,
    "no_sync": _why_not_one_send,
    "prefetch": _why_not_prefetch,
    "perfect_overlap": _why_not_overlapped,
}
