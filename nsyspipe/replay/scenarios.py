"""Answer one combination of knobs: get the run ready, rebuild what changes, replay, say how far it may be off and on what it rests."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow.compute as pc
from msgspec.structs import replace
from numpy.typing import NDArray

from nsyspipe.analysis.breakdown import PAUSE_NS
from nsyspipe.analysis.kernels import MOST_USUAL, Slowing, compared_kernels, operations_per_ns
from nsyspipe.analysis.launching import fastest_launch_times, longest_work_times
from nsyspipe.analysis.links import GB, nominal_speed
from nsyspipe.analysis.summary import divided, sums_by
from nsyspipe.analysis.traffic import DATA, OTHER, SHARDED, is_hybrid_sharded
from nsyspipe.errors import OptionError
from nsyspipe.model.names import grouped, is_nccl_communicator
from nsyspipe.model.problems import EXPORT_AGAIN, IN_GRAPHS, NO_SIZES, WITH_BLOBS
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.replay import knobs as limits
from nsyspipe.replay.gradients import gradients_of
from nsyspipe.replay.knobs import LINKS, Knobs, why_not_knobs
from nsyspipe.replay.program import captured_program
from nsyspipe.replay.ranges import (
    LIKELY_OVERHEAD_NS,
    MAX_OVERHEAD_NS,
    MIN_OVERHEAD_NS,
    CapturedFacts,
)
from nsyspipe.replay.rebucket import (
    with_balanced_ranks,
    with_buckets,
    with_casts,
    with_one_send,
    with_prefetch,
    without_copies,
)
from nsyspipe.replay.simulate import NO_SLOWING, SimulationSetting, StepProgram, simulate
from nsyspipe.replay.timelines import (
    SHARD_COLLECTIVES,
    CollectiveUses,
    RankTimeline,
    rank_timelines,
    summary_windows,
)
from nsyspipe.run.run import Run

# Of bandwidths: as a user measured; as other sizes and work beside change them.
_GIVEN_WITHIN = 0.1
_MOVED_WITHIN = 0.06
_NOISE = 0.005  # two captures of one program differ by this much (seen: 0.2 to 0.5 %)
# What any replay may be off by: on pairs of captures that differ by one change 0.7 % in the middle.
_MODEL_WITHIN = 0.02
_BYTES_WITHIN = (
    0.1  # of bytes of gradients: what a user says may be this much off what the capture says
)
_ELEMENT_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}  # as NCCL's kernels name them
_USE = "comm_id", "collective"
_Roles: TypeAlias = Mapping[tuple[str, ...], str]  # of each such use


class Prediction(NamedTuple):
    """The step time of a scenario, ns: likeliest, least and most; and what a step gains, the mean over steps."""

    step_time_ns: float
    low_ns: float
    high_ns: float
    mean_gain_ns: float


@dataclass(frozen=True)
class Replay(CapturedFacts):
    """The captured steps, ready to be asked."""

    @cached_property
    def identity_error(self) -> float:
        """Largest relative difference between captured step times and their replay with nothing changed."""
        times = self._identity
        own = self.captured.windows.step_times()
        return float((np.abs(times - own) / np.maximum(own, 1.0)).max(initial=0.0))

    @cached_property
    def _before(self) -> Slowing:
        return self.slowdowns(None).pairs[0][0]

    @cached_property
    def _identity(self) -> Float64:
        edges = simulate(self.captured.program, [SimulationSetting(self._before, self._before)])
        return cast("Float64", self.captured.windows.step_times(edges)[0])

    @cached_property
    def limits(self) -> Float64 | None:
        """Step times with transfers that take no time and slow nothing: likeliest and least; None where sharded, or ranks miss."""
        if self.is_sharded or self.captured.program.n_ranks < max(self.world_size, 2):
            return None
        likely, *_, most = (before for before, _ in self.slowdowns(None).pairs)
        times = self._without_transfer(self.captured.program, [likely, most])
        return np.stack((times[0], times.min(axis=0)))

    @property
    def limit_ns(self) -> float | None:
        """The least step time with transfers that take no time; None likewise."""
        return None if self.limits is None else float(np.median(self.limits[1]))

    @property
    def limit_gain_ns(self) -> float | None:
        """What a step gains then, the mean over steps, at least 0; None likewise."""
        return (
            None
            if self.limits is None
            else max((self.captured.windows.step_times() - self.limits[1]).mean(), 0.0)
        )

    def predict(self, knobs: Knobs, *, is_launch_free: bool = False) -> Prediction:
        """Replay with what the knobs change, which `why_not_knobs` does not refuse; the range is that of `answer.whatif`.

        Balanced ranks take as long as the fastest host launches, unless launching is taken to be
        free.
        """
        base = self.captured
        if knobs.no_grad_copy or knobs.no_sync:
            base = without_copies(base, is_last_pass_kept=not knobs.no_grad_copy)
        programs = [base.program]
        if knobs.bucket_mb is not None:
            others = () if self.is_exact else map(self.gradients_with, (-0.25, 0.25))
            programs = [
                with_buckets(base, one, knobs.bucket_mb) for one in (self.gradients, *others)
            ]
        if knobs.no_sync:
            programs = [with_one_send(one, base.burst) for one in programs]
        if knobs.prefetch:
            programs = [with_prefetch(one, self.is_prefetched) for one in programs]
        program, *skewed = programs
        times, n_slowdowns = self._times(program, knobs, is_launch_free=is_launch_free)
        medians = np.median(times, axis=-1).tolist()
        likely = medians[0]
        moved = [
            float(np.median(self._times(one, knobs, is_likely_only=True)[0])) for one in skewed
        ]
        unknowns = (medians[:n_slowdowns], [likely, *medians[n_slowdowns:]], [likely, *moved])
        noise, model = (
            (within + self.standard_error) * likely for within in (_NOISE, _MODEL_WITHIN)
        )
        below = math.hypot(noise, *(likely - min(one) for one in unknowns))
        above = math.hypot(noise, *(max(one) - likely for one in unknowns))
        # What the step takes if transfers took no time, with the changes that are no
        # communication's if they beat it.
        least = self.limit_ns or 0.0
        if likely < least:
            least = float(
                np.median(self._without_transfer(self._waited(program, knobs), [self._before])[0])
            )
            least *= 1 - _NOISE  # no captured work, so as another capture may show it
        low = max(likely - max(below, model), least)
        gain = float((self.captured.windows.step_times() - times[0]).mean())
        return Prediction(likely, min(low, likely), likely + max(above, model), gain)

    def launch_bound_share(self, knobs: Knobs) -> float:
        """Return the share of a scenario's step that GPUs stand idle for launches; 0 where far from what decides it."""
        share = self.starved_shares[self.starved_shares <= limits.MAX_STARVED_SHARE].max(
            initial=0.0
        )
        if share <= limits.MAX_STARVED_SHARE / 4:
            return 0.0
        return float(
            share * self.step_time_ns / self.predict(knobs, is_launch_free=True).step_time_ns
        )

    @property
    def launch_bound_by(self) -> str:
        """Why the GPU stands idle for launches that `launch_bound_share` is about, in words."""
        trusted = np.where(
            self.starved_shares <= limits.MAX_STARVED_SHARE, self.starved_shares, -1.0
        )
        return " or ".join(self.starved_causes[int(np.argmax(trusted))])

    @cached_property
    def is_answered_balanced(self) -> bool:
        """Whether hosts would launch in time if no rank waited for a late one."""
        return self.why_refused_balanced(Knobs()) is None

    def why_refused_balanced(self, knobs: Knobs) -> str | None:
        """Return why a change has no answer even if no rank waited for a late one; None if it has one then."""
        return why_refused(self, replace(knobs, no_wait=True))

    def _waited(self, program: StepProgram, knobs: Knobs) -> StepProgram:
        trusted = self.starved_shares <= limits.MAX_STARVED_SHARE
        return with_balanced_ranks(program, trusted, self._before) if knobs.no_wait else program

    def _times(
        self,
        program: StepProgram,
        knobs: Knobs,
        *,
        is_likely_only: bool = False,
        is_launch_free: bool = False,
    ) -> tuple[Float64, int]:
        """Return step times, a row per setting, the likeliest first, and how many are of slowdowns; others are of transfers."""
        program = self._waited(program, knobs)
        pairs = self.slowdowns(self.target(knobs)).pairs
        unpack = None
        if knobs.gradient_dtype is not None and self.n_copies:
            program, unpack = with_casts(program, self.copies_ns)
        transfers = self._transfers(program, knobs)
        if is_likely_only:
            pairs = pairs[:1]
            transfers = transfers[:1]
        settings = [SimulationSetting(*pair, transfers[0]) for pair in pairs] + [
            SimulationSetting(*pairs[0], transfer) for transfer in transfers[1:]
        ]
        if knobs.perfect_overlap:
            times = self._hidden(program, settings, unpack)
        else:
            times = self._step_times(simulate(program, settings, unpack))
        if knobs.no_wait and not is_launch_free:
            times = np.maximum(times, self.fastest_launch_ns)
        return times, len(pairs)

    def _step_times(self, edges: Float64) -> Float64:
        """Return the step times; what the replay of nothing is off by, every replay is."""
        windows = self.captured.windows
        return windows.step_times(edges) + (windows.step_times() - self._identity)

    def _transfers(self, program: StepProgram, knobs: Knobs) -> list[Float64]:
        is_rebucketed = (
            knobs.bucket_mb is not None and program.step.size != self.captured.program.step.size
        )
        changed = is_rebucketed or knobs.gradient_dtype is not None
        within = _MOVED_WITHIN if changed else 0.0
        by_role = {role: self.bandwidth_ratio(knobs, role) for role in self.roles}
        ratio = np.array([by_role[role] for role in program.role.tolist()])[:, np.newaxis]
        if (ratio != 1.0).any():
            within = LINKS[knobs.link].within if knobs.link else _GIVEN_WITHIN
        elif not changed:
            return [program.transfer_ns]
        half = np.where(program.is_gradient, 0.5, 1.0) if knobs.gradient_dtype else np.ones(1)
        least, likely, most = (MIN_OVERHEAD_NS, LIKELY_OVERHEAD_NS, MAX_OVERHEAD_NS)
        fixed = np.minimum(likely, program.transfer_ns / 2)
        moved = program.transfer_ns - fixed
        if not is_rebucketed:
            # What a collective takes besides its bytes is in the captured bandwidth too.
            moved = moved + fixed * np.maximum(1 - 1 / ratio, 0.0)
        moved = moved * ratio * half[:, np.newaxis]
        scales = (1.0, likely), (1 / (1 + within), least), (1 / (1 - within), most)
        return [
            moved * scale + fixed * overhead / likely for scale, overhead in scales
        ]  # likeliest, shortest, longest

    def _hidden(
        self, program: StepProgram, settings: Sequence[SimulationSetting], unpack: Float64 | None
    ) -> Float64:
        """Return step times when all of the transfers are beside the work, which they still slow."""
        total = np.stack(
            [
                self._per_step(program, setting.transfer(program).mean(axis=1))
                for setting in settings
            ]
        )
        unlagged = replace(program, lag_ns=np.zeros_like(program.lag_ns))
        alone = self._without_transfer(unlagged, [setting.before for setting in settings])
        if unpack is not None:
            alone = alone + self._per_step(program, unpack)
        after = np.array([setting.after.total(self.operations_per_ns) for setting in settings])[
            :, np.newaxis
        ]
        return cast("Float64", np.maximum(alone + after / (1 + after) * total, total))

    def _per_step(self, program: StepProgram, each: Float64) -> Float64:
        windows = self.captured.windows
        return np.bincount(program.step, weights=each, minlength=windows.steps.size).astype(
            np.float64
        )[windows.is_used]

    def _without_transfer(self, program: StepProgram, before: Sequence[Slowing]) -> Float64:
        program = replace(program, transfer_ns=np.zeros_like(program.transfer_ns))
        return self._step_times(
            simulate(program, [SimulationSetting(one, NO_SLOWING) for one in before])
        )


def opened_replay(run: Run, gradient_bytes: float | None = None) -> Replay | str:
    """Return the run ready to be asked, or why it cannot be; an `OptionError` if the capture says other bytes of gradients."""
    reason = next(limits.why_not(run), None)
    if reason:
        return reason
    windows = summary_windows(run)
    if windows is None:
        return "the steps used do not follow each other on every rank"
    timelines = rank_timelines(run, windows)
    reason = next(limits.why_not_replayable(run, timelines, windows), None)
    if reason:
        return reason
    traffic = run.traffic()
    role_of: _Roles = {
        (row["communicator"], row["collective"]): row["role"] for row in traffic.to_pylist()
    }
    uses, datatypes = _uses(run, timelines, role_of)
    sent = frozenset(one for one, is_own in zip(datatypes, uses.is_gradient, strict=True) if is_own)
    sizes = {_ELEMENT_BYTES.get(one or "") for one in sent}
    kernels = run.kernels()
    names = run.ranks["gpu_name"].to_pylist()
    nominal = nominal_speed(names) or nominal_speed(names, "PCIe")
    replay = Replay(
        captured=captured_program(timelines, windows, uses),
        given_bytes=gradient_bytes,
        datatypes=sent,
        element_bytes=sizes.pop() if len(sizes) == 1 else None,
        starved_shares=limits.starved_shares(run),
        starving=limits.starving(run),
        starved_causes=limits.starved_causes(run),
        longest_work_ns=float(longest_work_times(run.breakdown()).mean()),
        fastest_launch_ns=fastest_launch_times(run.breakdown()),
        recorded_bytes_per_s=_bandwidths(run, role_of),
        compared=compared_kernels(kernels),
        operations_per_ns=operations_per_ns(kernels),
        nominal_bytes_per_s=None if nominal is None else nominal.bytes_per_s,
        known_link="shm" if run.links()["kind"].unique().to_pylist() == ["shm"] else None,
        world_size=max(len(timelines), run.header.n_job_ranks or 0),
        rank_names=run.rank_names,
        is_hybrid_sharded=is_hybrid_sharded(traffic),
        sizes_recorded_by=_what_records_sizes(run),
    )
    _check_bytes(replay, gradient_bytes)
    if replay.identity_error > limits.LARGEST_IDENTITY_ERROR:
        return (
            f"the simulation error on the captured run is {100 * replay.identity_error:.1f}%, "
            "so the run waits for "
            "something that the simulation does not cover"
        )
    return limits.contradiction(replay) or replay


def _what_records_sizes(run: Run) -> str:
    """Return what records message sizes as the run's problems say it, without the whole command of an export."""
    fix_of = {row["code"]: row["fix"] for row in run.problem_rows}
    fix: str | None = fix_of.get(IN_GRAPHS) or fix_of.get(NO_SIZES)
    return WITH_BLOBS if fix is None or fix.startswith(EXPORT_AGAIN) else fix


def why_refused(opened: Replay | str, knobs: Knobs) -> str | None:
    """Return why what `opened_replay` returned has no answer to a combination of knobs; None if it has one."""
    if isinstance(opened, str):
        return opened
    reason = why_not_knobs(opened, knobs)
    if reason:
        return reason
    share = opened.launch_bound_share(knobs)
    host = opened.launching_ns
    sure = 1.0 if knobs.no_wait else limits.LAUNCHING_AT_MOST
    if share > limits.MAX_STARVED_SHARE:
        return (
            f"after this change GPUs would wait for the CPU for {100 * share:.1f}% of the "
            "remaining step "
            f"({opened.launch_bound_by}), which the simulation does not cover"
        )
    if host is not None and host > sure * (
        most := opened.predict(knobs, is_launch_free=True).high_ns
    ):
        needed = min(most, opened.longest_work_ns)
        return (
            f"the GPUs would need at most {needed / 1e6:.2f} ms for a step, but the median CPU "
            f"needs {host / 1e6:.2f} ms "
            f"to launch it (launch-bound or input-bound). Pauses of {PAUSE_NS / 1e6:g} ms or "
            "more do not count"
        )
    return None


def assumptions(replay: Replay, knobs: Knobs) -> Iterator[str]:
    """Yield what a prediction rests on, a sentence each."""
    n_ranks = replay.captured.program.n_ranks
    if n_ranks <= 1:
        yield "only this rank is simulated, and its wait time for other ranks stays the same"
    elif n_missing := replay.world_size - n_ranks:
        are = "rank is" if n_missing == 1 else "ranks are"
        there = f"the {n_ranks} captured ranks of {replay.world_size}"
        yield (
            f"{n_missing} {are} missing: a step is as long as on {there}, and these ranks do not "
            "wait for missing ranks"
        )
    given = replay.given_bytes
    if given is not None:
        # Bytes of f32 gradients that a hook sends as bf16 show here as twice as many gradients.
        element = replay.element_bytes
        of = f" ({given / element:,.0f} gradients of {element} bytes, as sent)" if element else ""
        yield f"gradients have {given:,.0f} bytes per step, as given by --gradient-bytes{of}"
    yield from _of_link(replay, knobs)
    if knobs.bucket_mb is not None:
        how = (
            "from the copies and kernels of each gradient"
            if replay.is_exact
            else "estimated from the captured buckets"
        )
        yield f"sizes and ready times of the gradients are {how}"
        yield "buckets of other sizes reach the same bandwidth"
    if knobs.gradient_dtype is not None:
        yield f"gradients as {knobs.gradient_dtype} have half the bytes"
        yield (
            f"gradients as {knobs.gradient_dtype} may change convergence, which nsyspipe does not "
            "check"
        )
        yield "launching casts costs no CPU time" if replay.n_copies else "casting takes no time"
    if None not in {knobs.bucket_mb, knobs.gradient_dtype}:
        yield (
            "buckets and datatype change independently (the only capture of both was 2.4% "
            "slower than the predicted "
            "range)"
        )
    yield from _of_work(replay, knobs)


def _of_link(replay: Replay, knobs: Knobs) -> Iterator[str]:
    roles = [role for role in replay.roles if knobs.role in (None, role)]
    rates = {role: rate for role in roles if (rate := replay.bus_bandwidth_of(role)) is not None}
    if knobs.bandwidth_factor is not None:
        whose = "all" if knobs.role is None else knobs.role
        yield (
            f"{whose} communicators reach {knobs.bandwidth_factor:g} times the captured bandwidth, "
            "within 10%"
        )
        if not knobs.no_wait:
            yield "ranks wait for late ranks as before"
    target = knobs.target_bytes_per_s
    if target is None or not rates:
        return
    named = [
        f"{rate / GB:.4g} GB/s{f' ({one})' if len(replay.roles) > 1 else ''}"
        for one, rate in rates.items()
    ]
    captured = f"captured {', '.join(named)}"
    if knobs.link is None:
        most = replay.nominal_bytes_per_s
        fastest = (
            ""
            if most is None or target <= most
            else f", more than the {most / GB:,.0f} GB/s of the fastest interconnect of these GPUs"
        )
        yield (
            f"the bus bandwidth is {target / GB:.4g} GB/s as given{fastest}, within 10% "
            f"({captured})"
        )
        return
    link = LINKS[knobs.link]
    if all(replay.target(knobs, one) is None for one in rates):
        yield f"{link.name} is as fast as the {captured}"
        return
    how = "measured" if link.is_measured else "not measured"
    yield (
        f"{link.name} reaches {target / GB:.4g} GB/s bus bandwidth, within "
        f"{100 * link.within:.0f}% ({captured})"
    )
    yield f"the bandwidth of {link.name} is {how} ({link.source})"


def _of_work(replay: Replay, knobs: Knobs) -> Iterator[str]:
    copied = ", and the copies into and out of buckets disappear" if replay.n_copies else ""
    said = {
        "no_wait": "every rank is as fast as the median rank (with two ranks: as the faster rank)",
        "no_sync": f"adding up gradients on each rank takes no extra time{copied}",
        "prefetch": (
            "each all-gather can start when its predecessor can, and the parameters of one more "
            "layer fit in memory"
        ),
        "no_grad_copy": "all copies from buckets to gradients disappear",
        "perfect_overlap": "all communication overlaps with compute and slows compute down",
    }
    yield from (text for name, text in said.items() if name in knobs.given)
    if replay.is_sharded:
        yield "work during communication is as fast as captured"
        return
    if replay.captured.timelines[0].collectives.is_inline.all():
        yield (
            "communication and compute run on the same stream, so communication does not slow down "
            "compute"
        )
        return
    found = replay.slowdowns(replay.target(knobs))
    percents = [100 * after.total(replay.operations_per_ns) for _, after in found.pairs]
    has_delays = replay.contention is not None and replay.contention.delay_ns is not None
    how = (
        "measured here"
        if found.is_measured
        else "assumed, except for later kernel starts"
        if has_delays
        else "assumed"
    )
    within = f"{min(percents):.0f} to {max(percents):.0f}%"
    kernels = 100 * max(replay.compared.slowdown_ratio or 0.0, 0.0)
    parts = _parts_text(percents[0], kernels) if found.is_measured else ""
    yield (
        f"work during communication takes {percents[0]:.0f}% longer ({how}, range {within}){parts}"
    )
    if percents[0] > 100 * MOST_USUAL:
        yield f"few captures show that work takes more than {100 * MOST_USUAL:.0f}% longer"


def has_later_starts(work_percent: float, kernels_percent: float) -> bool:
    """Tell whether work takes longer than its kernels do, by the digits that are printed: then operations begin later too.

    Work has gaps between its kernels, which take no longer, so kernels may be slowed more than all
    of it.
    """
    return round(work_percent) > round(kernels_percent, 1)


def _parts_text(work_percent: float, kernels_percent: float) -> str:
    """Return what makes work beside communication take longer; nothing where nothing is known to."""
    if has_later_starts(work_percent, kernels_percent):
        return (
            f". Kernels take {kernels_percent:.1f}% longer (comm-slows-compute), and the rest is "
            "later kernel starts"
        )
    return (
        ", only because of slower kernels (comm-slows-compute)" if round(kernels_percent, 1) else ""
    )


def _check_bytes(replay: Replay, given: float | None) -> None:
    if given is None:
        return
    option = f"--gradient-bytes {given:,.0f}"
    reason = limits.beyond_nominal(replay)
    if reason:
        narrow = ", ".join(sorted(datatype or "?" for datatype in replay.datatypes))
        fix = "give the bytes sent: parameters x 4 for f32, x 2 for f16 or bf16"
        raise OptionError(option, reason, found=f"all-reduces of {narrow}", fix=fix)
    by_capture = [gradients_of(replay.captured, step, None) for step in replay.captured.steps]
    known = [one.n_bytes.sum() for one in by_capture if one is not None]
    if known and abs(given - (seen := float(np.median(known)))) > _BYTES_WITHIN * seen:
        what = f"differs from the {seen:,.0f} bytes of gradients per step in the capture"
        raise OptionError(
            option, what, fix="leave out --gradient-bytes (f32 gradients are parameters x 4 bytes)"
        )


def _uses(
    run: Run, timelines: Sequence[RankTimeline], role_of: _Roles
) -> tuple[CollectiveUses, list[str | None]]:
    first = timelines[0].collectives
    table = run.collectives().filter(pc.field("rank") == run.ranks["rank"][0])
    names = ("step", "seq", "message_bytes", "datatype", "comm_id", "collective")
    rows = {
        (step, seq): more
        for step, seq, *more in zip(*(table[name].to_pylist() for name in names), strict=True)
    }
    found = [
        rows.get(key, [None, None, "/", ""])
        for key in zip(first.step.tolist(), first.seq.tolist(), strict=True)
    ]
    n_bytes, datatypes, comm_ids, calls = (list(column) for column in zip(*found, strict=True))
    role = np.array([role_of.get(key, OTHER) for key in zip(comm_ids, calls, strict=True)], object)
    has_ids = all(map(is_nccl_communicator, comm_ids))
    known = np.unique(comm_ids, return_inverse=True)[1].reshape(-1) if has_ids else None
    sizes = np.array(n_bytes, np.float64)  # NaN where None
    return CollectiveUses(
        sizes, _gradient_collectives(timelines, role), role, _chains(timelines, known)
    ), datatypes


def _chains(timelines: Sequence[RankTimeline], communicator: Int64 | None) -> Int64:
    """Return the number of each collective's chain: the main stream, its communicator, or, where that is not known, its stream."""
    first = timelines[0].collectives
    by = first.stream if communicator is None else communicator
    # FSDP's, of one communicator if its streams take turns.
    if communicator is None and {*first.kind.tolist()} <= SHARD_COLLECTIVES:
        in_turn = all(
            (one.start[1:] >= one.end[:-1]).all()
            for one in (rank.collectives for rank in timelines)
        )
        by = np.zeros_like(by) if in_turn else by
    return np.unique(np.where(first.is_inline, -1, by), return_inverse=True)[1].reshape(-1)


def _bandwidths(run: Run, role_of: _Roles) -> dict[str, float | None]:
    """Return the bus bandwidth of each role: sum of bytes x factor / sum of transfer of its collectives; None if not known."""
    table = run.collectives()
    has_transfer = pc.fill_null(pc.not_equal(table["transfer_ns"], 0), fill_value=True)
    table = table.append_column(
        "sent", pc.multiply(table["busbw_bytes_per_s"], table["transfer_ns"])
    )
    uses = sums_by(
        table.filter(pc.and_(table["in_summary"], has_transfer)), [*_USE], ["sent", "transfer_ns"]
    )
    by_role = grouped((role_of.get(tuple(row[name] for name in _USE), OTHER), row) for row in uses)
    sums = {
        role: [[row[name] for row in rows] for name in ("sent", "transfer_ns")]
        for role, rows in by_role.items()
    }
    return {
        role: None if None in sent else divided(sum(sent), sum(ns))
        for role, (sent, ns) in sums.items()
    }


def _gradient_collectives(timelines: Sequence[RankTimeline], role: NDArray[np.object_]) -> Flags:
    """Tell which collectives are DDP's: of each step the data-parallel all-reduces of the phase that has most of their time."""
    first = timelines[0].collectives
    found = np.zeros(first.step.size, np.bool_)
    if SHARDED in role or (np.isin(first.kind, [*SHARD_COLLECTIVES]) & ~first.is_inline).any():
        return found
    # Where nothing says what a communicator is for, on a stream of its own it may be DDP's.
    own = np.flatnonzero(
        (first.kind == "all_reduce")
        & ~first.is_inline
        & (role == (DATA if DATA in role else OTHER))
    )
    phases, phase = np.unique(first.phase[own], return_inverse=True)
    steps, step = np.unique(first.step[own], return_inverse=True)
    total = np.zeros((steps.size, phases.size), np.int64)
    np.add.at(total, (step, phase), (first.end - first.start)[own])
    most = (
        phases.size - 1 - total[:, ::-1].argmax(axis=1) if own.size else phase
    )  # of equal ones the last
    found[own] = phase == most[step]
    return found
