"""The simulation of one combination of changes, and why some combinations have no estimate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
from msgspec.structs import replace

from nsyspipe.analysis.breakdown import PAUSE_NS
from nsyspipe.analysis.kernels import Slowing
from nsyspipe.model.table import Flags, Float64
from nsyspipe.replay.knobs import LINKS, Knobs
from nsyspipe.replay.program import CapturedSteps
from nsyspipe.replay.ranges import (
    LIKELY_OVERHEAD_NS,
    MAX_OVERHEAD_NS,
    MIN_OVERHEAD_NS,
    CapturedFacts,
    SlowingPair,
)
from nsyspipe.replay.rebucket import (
    with_balanced_ranks,
    with_buckets,
    with_casts,
    with_one_send,
    with_prefetch,
    without_copies,
)
from nsyspipe.replay.refusals import MAX_LAUNCH_TO_STEP, why_not_knobs
from nsyspipe.replay.simulate import NO_SLOWING, SimulationSetting, StepProgram, simulate
from nsyspipe.replay.starving import MAX_STARVED_SHARE

# A bandwidth may be wrong by this share: one that the user gives, and one that other message sizes
# and concurrent work change.
_GIVEN_BANDWIDTH_WITHIN = 0.1
_MOVED_BANDWIDTH_WITHIN = 0.06
# Two captures of one program differ by this share (0.2 to 0.5 % was seen).
_NOISE_SHARE = 0.005
# Any simulation may be wrong by this share. On pairs of captures that differ by one change, the
# median error is 0.7 %.
_MODEL_ERROR_SHARE = 0.02
# Estimated gradients are also simulated with these skews.
_SKEWS = (-0.25, 0.25)
# A lower share of a step is far from what is refused.
_MIN_DOUBTFUL_STARVED_SHARE = MAX_STARVED_SHARE / 4


class Prediction(NamedTuple):
    """The step time of a scenario: medians over steps, and what a step saves."""

    # The most likely step time, and its range.
    step_time_ns: float
    low_ns: float
    high_ns: float
    # A mean over steps.
    mean_gain_ns: float


class _SimulatedSteps(NamedTuple):
    """The step times of a program for several settings."""

    # A row per setting, a column per step. The first row is the most likely one.
    step_times: Float64
    # The first rows differ in the slowdown by communication, and the others in transfer times.
    n_slowdowns: int


class _Range(NamedTuple):
    """The range of a step time."""

    low_ns: float
    high_ns: float


@dataclass(frozen=True)
class Replay(CapturedFacts):
    """The captured steps, ready to simulate changes."""

    @cached_property
    def identity_error(self) -> float:
        """The largest relative error of the simulation of any step if nothing changes."""
        captured = self.captured.windows.step_times()
        differences = np.abs(self._identity - captured)
        errors = differences / np.maximum(captured, 1.0)
        return float(errors.max(initial=0.0))

    @cached_property
    def _slowing_before(self) -> Slowing:
        """The most likely slowdown by communication in the capture."""
        likely = self.slowdowns(target=None).pairs[0]
        return likely.before

    @cached_property
    def _identity(self) -> Float64:
        """The simulated step times if nothing changes."""
        captured = self.captured
        setting = SimulationSetting(self._slowing_before, self._slowing_before)
        edges = simulate(captured.program, [setting])
        step_times = captured.windows.step_times(edges)
        return cast("Float64", step_times[0])

    @cached_property
    def limits(self) -> Float64 | None:
        """The step times with zero communication time: the most likely and the least, by step.

        None with FSDP, for one rank, and if ranks are missing.
        """
        program = self.captured.program
        min_ranks = max(self.world_size, 2)
        if self.is_sharded or program.n_ranks < min_ranks:
            return None
        likely, *_, longest = self.slowdowns(target=None).pairs
        # If the link does not change, the pair of the longest step has the largest slowdown in the
        # capture. With this slowdown, the captured work is shortest without communication.
        slowings = [likely.before, longest.before]
        step_times = self._without_transfer(program, slowings)
        likely_times = step_times[0]
        least_times = step_times.min(axis=0)
        return np.stack((likely_times, least_times))

    @property
    def limit_ns(self) -> float | None:
        """The least step time with zero communication time. None as for `limits`."""
        if self.limits is None:
            return None
        _, least_times = self.limits
        return float(np.median(least_times))

    @property
    def limit_gain_ns(self) -> float | None:
        """What a step saves with zero communication time, a mean over steps. None as for `limits`.

        It is at least 0.
        """
        if self.limits is None:
            return None
        _, least_times = self.limits
        captured = self.captured.windows.step_times()
        saved_ns = captured - least_times
        gain_ns: float = max(saved_ns.mean(), 0.0)
        return gain_ns

    def predict(self, knobs: Knobs, *, is_launch_free: bool = False) -> Prediction:
        """Simulate a combination of changes, which `why_not_knobs` must not refuse.

        The range covers what is not known exactly: slowdowns, transfer times, and sizes of
        gradients. A step of balanced ranks takes at least as long as the fastest CPU launches it,
        unless launching takes no time.
        """
        program, *skewed_programs = self._changed_programs(knobs)
        simulated = self._simulate_steps(program, knobs, is_launch_free=is_launch_free)
        # The first setting has the likely slowdown and the likely transfer times.
        medians = np.median(simulated.step_times, axis=-1).tolist()
        likely = medians[0]
        by_slowdown = medians[: simulated.n_slowdowns]
        by_other_transfers = medians[simulated.n_slowdowns :]
        by_skew = [self._likely_median(skewed, knobs) for skewed in skewed_programs]
        # For each thing that is not known exactly: the step times that are possible.
        possible_times = (by_slowdown, [likely, *by_other_transfers], [likely, *by_skew])
        step_range = self._range_of(likely, possible_times)
        shortest = self._shortest_step(likely, program, knobs)
        # The range begins at the shortest step or later, but always includes the likely step.
        low = min(max(step_range.low_ns, shortest), likely)
        captured = self.captured.windows.step_times()
        saved_ns = captured - simulated.step_times[0]
        return Prediction(likely, low, step_range.high_ns, float(saved_ns.mean()))

    def _changed_programs(self, knobs: Knobs) -> list[StepProgram]:
        """Return the changed program, followed by one for each skew if gradients are estimated.

        A skew is another time at which gradients are ready, see `gradients.gradients_of`. It only
        matters for buckets of another size.
        """
        base = self.captured
        if knobs.no_grad_copy:
            base = without_copies(base, is_last_pass_kept=False)
        elif knobs.no_sync:
            # The last pass still sends gradients, and copies them.
            base = without_copies(base, is_last_pass_kept=True)
        programs = [base.program]
        if knobs.bucket_mb is not None:
            programs = self._bucket_programs(base, knobs.bucket_mb)
        if knobs.no_sync:
            programs = [with_one_send(program, base.burst) for program in programs]
        if knobs.prefetch:
            programs = [with_prefetch(program, self.is_prefetched) for program in programs]
        return programs

    def _bucket_programs(self, base: CapturedSteps, cap_mib: float) -> list[StepProgram]:
        """Return the program with other buckets, also for each skew if gradients are estimated."""
        gradients = [self.gradients]
        if not self.is_exact:
            gradients += map(self.gradients_with, _SKEWS)
        return [with_buckets(base, candidate, cap_mib) for candidate in gradients]

    def _range_of(self, likely: float, possible_times: Sequence[Sequence[float]]) -> _Range:
        """Return the range of a step time.

        For each thing that is not known exactly, `possible_times` has the possible step times.
        These things and the noise are independent, so their differences from the likely step time
        add up as squares. On either side, the range is at least as wide as the error of the
        simulation.
        """
        noise = (_NOISE_SHARE + self.relative_error_of_median) * likely
        model_error = (_MODEL_ERROR_SHARE + self.relative_error_of_median) * likely
        shorter_by = [likely - min(step_times) for step_times in possible_times]
        longer_by = [max(step_times) - likely for step_times in possible_times]
        below = max(math.hypot(noise, *shorter_by), model_error)
        above = max(math.hypot(noise, *longer_by), model_error)
        return _Range(likely - below, likely + above)

    def _shortest_step(self, likely: float, program: StepProgram, knobs: Knobs) -> float:
        """Return how long a changed step takes at least.

        This is `limit_ns`, the captured step with zero communication time, or 0 if it is not known.
        If the likely step time is shorter than that, the changes shorten the work itself. Then the
        result is the changed step with zero communication time, less the noise between captures.
        """
        limit_ns = self.limit_ns or 0.0
        if likely >= limit_ns:
            return limit_ns
        changed = self._balance_if_asked(program, knobs)
        (step_times,) = self._without_transfer(changed, [self._slowing_before])
        median_ns = float(np.median(step_times))
        return median_ns * (1 - _NOISE_SHARE)

    @property
    def _is_trusted(self) -> Flags:
        """By rank: whether its GPU does not wait for launches."""
        return self.starved_shares <= MAX_STARVED_SHARE

    def launch_bound_share(self, knobs: Knobs) -> float:
        """Return the share of a scenario's step in which GPUs wait for launches.

        The GPU that waits most in the capture counts, and it waits as long in the scenario. Ranks
        that wait too much in the capture are left out, because they are refused anyway. The result
        is 0 if the captured share is far below the share that is refused.
        """
        trusted_shares = self.starved_shares[self._is_trusted]
        captured_share = trusted_shares.max(initial=0.0)
        if captured_share <= _MIN_DOUBTFUL_STARVED_SHARE:
            return 0.0
        predicted = self.predict(knobs, is_launch_free=True)
        starved_ns = captured_share * self.step_time_ns
        return float(starved_ns / predicted.step_time_ns)

    @property
    def launch_bound_by(self) -> str:
        """Why GPUs wait for launches in `launch_bound_share`, in words."""
        # -1 is below all shares, so ranks that are not trusted are not chosen.
        trusted_shares = np.where(self._is_trusted, self.starved_shares, -1.0)
        most_starved = int(np.argmax(trusted_shares))
        causes = self.starved_causes[most_starved]
        return " or ".join(causes)

    @cached_property
    def is_answered_balanced(self) -> bool:
        """Whether CPUs would launch early enough if no rank waited for a late one."""
        return self.why_refused_balanced(Knobs()) is None

    def why_refused_balanced(self, knobs: Knobs) -> str | None:
        """Return why a change has no estimate even if no rank waits for a late one.

        Return None if it has one then.
        """
        balanced = replace(knobs, no_wait=True)
        return why_refused(self, balanced)

    def _balance_if_asked(self, program: StepProgram, knobs: Knobs) -> StepProgram:
        if not knobs.no_wait:
            return program
        return with_balanced_ranks(program, self._is_trusted, self._slowing_before)

    def _likely_median(self, program: StepProgram, knobs: Knobs) -> float:
        """Return the median step time with the most likely slowdowns and transfer times."""
        simulated = self._simulate_steps(program, knobs, is_likely_only=True)
        return float(np.median(simulated.step_times))

    def _simulate_steps(
        self,
        program: StepProgram,
        knobs: Knobs,
        *,
        is_likely_only: bool = False,
        is_launch_free: bool = False,
    ) -> _SimulatedSteps:
        """Simulate a program with the slowdowns and transfer times that are possible.

        See `_possible_settings` for their order. If `is_likely_only`, only the first setting is
        simulated. If `is_launch_free`, launching takes no time.
        """
        changed = self._balance_if_asked(program, knobs)
        target = self.target(knobs)
        pairs = self.slowdowns(target).pairs
        unpack_ns = None
        if knobs.gradient_dtype is not None and self.n_copies:
            changed, unpack_ns = with_casts(changed, self.copies_ns)
        transfers = self._transfers(changed, knobs)
        n_slowdowns = 1 if is_likely_only else len(pairs)
        possible_settings = _possible_settings(pairs, transfers)
        settings = possible_settings[:1] if is_likely_only else possible_settings
        if knobs.perfect_overlap:
            step_times = self._overlapped_step_times(changed, settings, unpack_ns)
        else:
            edges = simulate(changed, settings, unpack_ns)
            step_times = self._step_times(edges)
        if knobs.no_wait and not is_launch_free:
            step_times = np.maximum(step_times, self.fastest_launch_ns)
        return _SimulatedSteps(step_times, n_slowdowns)

    def _step_times(self, edges: Float64) -> Float64:
        """Return the simulated step times of each step used.

        They are corrected by the error of the simulation of that step if nothing changes.
        """
        windows = self.captured.windows
        error_ns = windows.step_times() - self._identity
        return windows.step_times(edges) + error_ns

    def _transfers(self, program: StepProgram, knobs: Knobs) -> list[Float64]:
        """Return the possible transfer times: the most likely, the shortest, the longest.

        If no transfer changes, return only those of the program. A transfer time is an overhead,
        and a time for its bytes, which changes with the bandwidth and the size.
        """
        n_captured = self.captured.program.step.size
        is_rebucketed = knobs.bucket_mb is not None and program.step.size != n_captured
        is_resized = is_rebucketed or knobs.gradient_dtype is not None
        bandwidth_ratio = self._bandwidth_ratios(program, knobs)
        is_bandwidth_changed = bool((bandwidth_ratio != 1.0).any())
        if not is_resized and not is_bandwidth_changed:
            return [program.transfer_ns]
        overhead_ns = np.minimum(LIKELY_OVERHEAD_NS, program.transfer_ns / 2)
        bytes_ns = program.transfer_ns - overhead_ns
        if not is_rebucketed:
            # The captured bandwidth includes the overhead of a collective. So over a slower link,
            # the overhead is as many times as long as the time for bytes. The time that this adds
            # is overhead x (ratio - 1). Before it is multiplied by the ratio below, it is overhead
            # x (1 - 1 / ratio).
            added_share = np.maximum(1 - 1 / bandwidth_ratio, 0.0)
            bytes_ns = bytes_ns + overhead_ns * added_share
        changed_bytes_ns = bytes_ns * bandwidth_ratio * _size_ratios(program, knobs)
        within = _bandwidth_within(knobs) if is_bandwidth_changed else _MOVED_BANDWIDTH_WITHIN
        return _possible_transfers(changed_bytes_ns, overhead_ns, within)

    def _bandwidth_ratios(self, program: StepProgram, knobs: Knobs) -> Float64:
        """Return the captured over the requested bandwidth of each collective, as a column."""
        by_role = {role: self.bandwidth_ratio(knobs, role) for role in self.roles}
        roles = program.role.tolist()
        ratios = np.array([by_role[role] for role in roles])
        return ratios[:, np.newaxis]

    def _overlapped_step_times(
        self,
        program: StepProgram,
        settings: Sequence[SimulationSetting],
        unpack_ns: Float64 | None,
    ) -> Float64:
        """Return step times with all transfers during compute: a row per setting.

        A step takes as long as its work, which transfers still slow down, or as its transfers if
        these take longer.
        """
        slowings_before = [setting.before for setting in settings]
        comm_ns = self._comm_times(program, settings)
        no_lag = np.zeros_like(program.lag_ns)
        without_lag = replace(program, lag_ns=no_lag)
        work_ns = self._without_transfer(without_lag, slowings_before)
        if unpack_ns is not None:
            unpack_ns_of_steps = self._sum_by_step(program, unpack_ns)
            work_ns = work_ns + unpack_ns_of_steps
        slowdowns = [setting.after.total(self.operations_per_ns) for setting in settings]
        slowdown = np.array(slowdowns)[:, np.newaxis]
        # During transfers, work takes 1 + slowdown times as long. So it loses this share of their
        # time.
        lost_share = slowdown / (1 + slowdown)
        slowed_work_ns = work_ns + lost_share * comm_ns
        return cast("Float64", np.maximum(slowed_work_ns, comm_ns))

    def _comm_times(self, program: StepProgram, settings: Sequence[SimulationSetting]) -> Float64:
        """Return the transfer time of each step used: a row per setting, a mean over ranks."""
        rows = []
        for setting in settings:
            transfer_ns = setting.transfer(program)
            mean_ns = transfer_ns.mean(axis=1)
            step_ns = self._sum_by_step(program, mean_ns)
            rows.append(step_ns)
        return np.stack(rows)

    def _sum_by_step(self, program: StepProgram, values: Float64) -> Float64:
        """Return for each step used the sum over its collectives. `values` are by collective."""
        windows = self.captured.windows
        n_steps = windows.steps.size
        sums = np.bincount(program.step, weights=values, minlength=n_steps)
        return sums.astype(np.float64)[windows.is_used]

    def _without_transfer(
        self, program: StepProgram, captured_slowings: Sequence[Slowing]
    ) -> Float64:
        """Return step times with zero communication time.

        There is a row for each of `captured_slowings`. These are slowdowns that the captured work
        may contain, and that are taken out of it.
        """
        no_transfer = np.zeros_like(program.transfer_ns)
        without_transfer = replace(program, transfer_ns=no_transfer)
        settings = [SimulationSetting(slowing, NO_SLOWING) for slowing in captured_slowings]
        edges = simulate(without_transfer, settings)
        return self._step_times(edges)


def _possible_settings(
    pairs: Sequence[SlowingPair], transfers: Sequence[Float64]
) -> list[SimulationSetting]:
    """Return the settings to simulate. The first pair and the first transfer times are likely.

    First come all pairs with the likely transfer times. Then comes the likely pair with each of the
    other transfer times.
    """
    likely_pair = pairs[0]
    likely_transfer_ns, *other_transfers_ns = transfers
    settings = [SimulationSetting(pair.before, pair.after, likely_transfer_ns) for pair in pairs]
    for transfer_ns in other_transfers_ns:
        setting = SimulationSetting(likely_pair.before, likely_pair.after, transfer_ns)
        settings.append(setting)
    return settings


def _possible_transfers(bytes_ns: Float64, overhead_ns: Float64, within: float) -> list[Float64]:
    """Return the transfer times: the most likely, the shortest, the longest.

    `bytes_ns` is the likely time for bytes, and `overhead_ns` the likely overhead. The bandwidth
    may be higher or lower by the share `within`. The overhead may be shorter or longer in the
    proportion of the least or the largest usual overhead to the likely one.
    """
    # What multiplies the time for bytes, and the usual overhead.
    likely = (1.0, LIKELY_OVERHEAD_NS)
    shortest = (1 / (1 + within), MIN_OVERHEAD_NS)
    longest = (1 / (1 - within), MAX_OVERHEAD_NS)
    transfers = []
    for factor, usual_overhead_ns in (likely, shortest, longest):
        scaled_overhead_ns = overhead_ns * usual_overhead_ns / LIKELY_OVERHEAD_NS
        transfer_ns = bytes_ns * factor + scaled_overhead_ns
        transfers.append(transfer_ns)
    return transfers


def _size_ratios(program: StepProgram, knobs: Knobs) -> Float64:
    """Return the requested over the captured size of each collective, as a column.

    Only gradients of f32 can change their datatype, and all requested datatypes have 16 bits. So
    gradients have half their size then. If no size changes, the result is a single 1.
    """
    if not knobs.gradient_dtype:
        return np.ones((1, 1))
    ratios = np.where(program.is_gradient, 0.5, 1.0)
    return ratios[:, np.newaxis]


def _bandwidth_within(knobs: Knobs) -> float:
    """Return the share by which a requested bandwidth may be wrong."""
    return LINKS[knobs.link].within if knobs.link else _GIVEN_BANDWIDTH_WITHIN


def why_refused(opened: Replay | str, knobs: Knobs) -> str | None:
    """Return why a combination of changes has no estimate. Return None if it has one.

    `opened` is what `opening.opened_replay` returns.
    """
    if isinstance(opened, str):
        return opened
    return why_not_knobs(opened, knobs) or _why_launch_bound(opened, knobs)


def _why_launch_bound(replay: Replay, knobs: Knobs) -> str | None:
    """Return why CPUs could not launch a changed step early enough. Return None if they could."""
    share = replay.launch_bound_share(knobs)
    if share > MAX_STARVED_SHARE:
        return (
            f"after this change GPUs would wait for the CPU for {100 * share:.1f}% of the "
            f"remaining step ({replay.launch_bound_by}), which the simulation does not cover"
        )
    if replay.launching_ns is None:
        return None
    # The time of launching must not be in the step that it is compared with.
    longest_step_ns = replay.predict(knobs, is_launch_free=True).high_ns
    # The tolerance is for CPUs with full queues of launches. With `no_wait` there is none.
    max_launch_to_step = 1.0 if knobs.no_wait else MAX_LAUNCH_TO_STEP
    if replay.launching_ns <= max_launch_to_step * longest_step_ns:
        return None
    # GPUs that do not wait need no longer than their work took in the capture.
    max_needed_ns = min(longest_step_ns, replay.longest_work_ns)
    return (
        f"the GPUs would need at most {max_needed_ns / 1e6:.2f} ms for a step, but the CPU of the "
        f"median rank needs {replay.launching_ns / 1e6:.2f} ms to launch it, not counting pauses "
        f"of {PAUSE_NS / 1e6:g} ms or more (launch-bound or input-bound)"
    )
