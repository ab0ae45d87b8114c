"""Answer one combination of knobs: get the run ready, rebuild what changes, replay, say how far it may be off."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from nsyspipe.analysis.link_speeds import nvlink_speed, pcie_speed
from nsyspipe.errors import OptionError
from nsyspipe.replay.knobs import LINKS
from nsyspipe.replay.program import NOTHING, captured_program
from nsyspipe.replay.ranges import OVERHEADS_NS, Facts
from nsyspipe.replay.rebucket import balanced, with_buckets, with_casts, without_copies
from nsyspipe.replay.refusals import (
    LARGEST_IDENTITY_ERROR,
    Starvation,
    beyond_nominal,
    contradiction,
    is_sharded,
    starvation,
    why_not,
    why_not_knobs,
    why_not_replayable,
)
from nsyspipe.replay.simulate import Setting, compared_kernels, simulate
from nsyspipe.replay.timelines import Collectives, rank_timelines, summary_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.model.types import Flags, Float64
    from nsyspipe.replay.knobs import Knobs
    from nsyspipe.replay.program import Captured, Program, Slowing
    from nsyspipe.run.run import Run


# Of bandwidths: what a user measured; and what other sizes and work beside them made of it, their overhead apart: 0 to 6 %.
_GIVEN_WITHIN, _MOVED_WITHIN = 0.1, 0.06
_SKEWS = (-0.25, 0.25)
# Two captures of one program differ by this much (seen: 0.2 to 0.5 %).
_NOISE = 0.005
# What the replay itself may be off by, whatever is asked: on pairs of captures that differ by one change 0.7 % in the middle.
_MODEL_WITHIN = 0.02


@dataclass(frozen=True)
class Prediction:
    """The step time of a scenario, ns: likeliest, least and most; and what a step gains, the mean over steps."""

    step_time_ns: float
    low_ns: float
    high_ns: float
    mean_gain_ns: float


class Replay(Facts):
    """The captured steps, ready to be asked."""

    @cached_property
    def identity_error(self) -> float:
        """Largest relative difference between captured step times and their replay with nothing changed."""
        times, own = self._identity, self.captured.windows.step_times()
        return float((np.abs(times - own) / np.maximum(own, 1.0)).max(initial=0.0))

    @cached_property
    def _identity(self) -> Float64:
        """Step times replayed with nothing changed."""
        before, _ = self.slowdowns(None).likely
        found: Float64 = self.captured.windows.step_times(
            simulate(self.captured.program, [Setting(before, before)])
        )[0]
        return found

    @cached_property
    def limit_ns(self) -> float | None:
        """Step time with transfers that take no time and slow nothing; None where sharded.

        No other link, bucket or datatype can beat it; balanced ranks and copies left out, which change the work, can.
        How much of a sharded run's work communication slows is not known, so neither is this.
        """
        if self.is_sharded:
            return None
        before, _ = self.slowdowns(None).likely
        found = self._without_transfer(self.captured.program, [(before, NOTHING)])
        return float(np.median(found[0]))

    def predict(self, knobs: Knobs) -> Prediction:
        """Replay with what the knobs change.

        Parameters
        ----------
        knobs
            Those that `refusals.why_not_knobs` does not refuse.

        Notes
        -----
        The range holds, on either side, the root of the sum of squares of what each unknown moves the median by (the
        slowdown, the transfers, ready times that were not seen: nothing ties one to another) and of half a per cent and
        twice the standard error; at least 2 % and twice the standard error to either side of the likeliest, for the model.
        """
        base = without_copies(self.captured) if knobs.no_grad_copy else self.captured
        programs = self._programs(base, knobs)
        times, n_slowdowns = self._times(programs[0], knobs)
        medians = [float(one) for one in np.median(times, axis=-1)]
        likely = medians[0]
        unknowns = [medians[:n_slowdowns], [likely, *medians[n_slowdowns:]]]
        if len(programs) > 1:
            others = [self._times(one, knobs, is_likely_only=True)[0] for one in programs[1:]]
            unknowns.append([likely, *(float(np.median(one)) for one in others)])
        noise = (_NOISE + self.standard_error) * likely
        model = (_MODEL_WITHIN + self.standard_error) * likely
        below = math.hypot(noise, *(likely - min(one) for one in unknowns))
        above = math.hypot(noise, *(max(one) - likely for one in unknowns))
        low = max(likely - max(below, model), self._least(programs[0], knobs, likely))
        gain = float((self.captured.windows.step_times() - times[0]).mean())
        return Prediction(likely, min(low, likely), likely + max(above, model), gain)

    def _least(self, program: Program, knobs: Knobs, likely: float) -> float:
        """Return what the step takes if transfers took no time, with the changes that are no communication's if they beat it."""
        limit = self.limit_ns or 0.0
        if likely >= limit:
            return limit
        before, _ = self.slowdowns(None).likely
        if knobs.no_wait:
            program = balanced(program, self.trusted, before)
        return float(np.median(self._without_transfer(program, [(before, NOTHING)])[0]))

    def _programs(self, base: Captured, knobs: Knobs) -> list[Program]:
        if knobs.bucket_mb is None:
            return [base.program]
        choices = [self.gradients]
        if not all(one is not None and one.is_exact for one in self.gradients):
            choices += [self.gradients_with(skew) for skew in _SKEWS]
        return [with_buckets(base, one, knobs.bucket_mb, OVERHEADS_NS[1]) for one in choices]

    def _times(
        self, program: Program, knobs: Knobs, *, is_likely_only: bool = False
    ) -> tuple[Float64, int]:
        """Return step times, a row per setting, and how many settings are of slowdowns; then come those of other transfers.

        The first is the likeliest.
        """
        if knobs.no_wait:
            before, _ = self.slowdowns(None).likely
            program = balanced(program, self.trusted, before)
        pairs = self.slowdowns(self.target(knobs)).pairs
        unpack = None
        if knobs.gradient_dtype is not None and self.n_copies:
            program, unpack = with_casts(program, self.copies_ns)
        transfers = self._transfers(program, knobs)
        if is_likely_only:
            pairs, transfers = pairs[:1], transfers[:1]
        settings = [(*one, transfers[0]) for one in pairs]
        settings += [(*pairs[0], one) for one in transfers[1:]]
        if knobs.perfect_overlap:
            times = self._hidden(program, settings, unpack)
        else:
            times = self._step_times(simulate(program, [Setting(*one) for one in settings], unpack))
        return times, len(pairs)

    def _step_times(self, edges: Float64) -> Float64:
        """Return the step times; what the replay of nothing is off by, every replay is."""
        windows = self.captured.windows
        off: Float64 = windows.step_times() - self._identity
        times: Float64 = windows.step_times(edges) + off
        return times

    def _transfers(self, program: Program, knobs: Knobs) -> list[Float64]:
        """Return the transfers: likeliest, shortest, longest."""
        is_rebucketed = program.step.size != self.captured.program.step.size
        changed = is_rebucketed or knobs.gradient_dtype is not None
        target, own = self.target(knobs), self.bus_bytes_per_s
        within = _MOVED_WITHIN if changed else 0.0
        ratio = 1.0 if target is None or own is None else own / target
        if ratio != 1.0:
            within = LINKS[knobs.link].within if knobs.link else _GIVEN_WITHIN
        if not changed and ratio == 1.0:
            return [program.transfer_ns]
        half = np.where(program.is_gradient, 0.5, 1.0) if knobs.gradient_dtype else np.ones(1)
        least, likely, most = OVERHEADS_NS
        fixed = np.minimum(likely, program.transfer_ns / 2)
        moved = program.transfer_ns - fixed
        if ratio > 1 and not is_rebucketed:
            # What a collective takes besides its bytes is in the captured bandwidth too.
            moved = moved + fixed * (1 - 1 / ratio)
        moved = moved * ratio * half[:, np.newaxis]
        return [
            moved * scale + fixed * overhead / likely
            for scale, overhead in (
                (1.0, likely),
                (1 / (1 + within), least),
                (1 / (1 - within), most),
            )
        ]

    def _hidden(
        self,
        program: Program,
        settings: Sequence[tuple[Slowing, Slowing, Float64]],
        unpack: Float64 | None,
    ) -> Float64:
        """Return step times when all of the transfers are beside the work, which they still slow."""
        total = np.stack([self._per_step(program, one.mean(axis=1)) for *_, one in settings])
        alone = self._without_transfer(program, [(before, NOTHING) for before, *_ in settings])
        if unpack is not None:
            alone = alone + self._per_step(program, unpack)
        after = np.array([one.total(*self.total_work) for _, one, _ in settings])[:, np.newaxis]
        slow = after / (1 + after)
        found: Float64 = np.maximum(alone + slow * total, total)
        return found

    def _per_step(self, program: Program, each: Float64) -> Float64:
        """Return the sums over the collectives of each step that counts."""
        windows = self.captured.windows
        found = np.bincount(program.step, weights=each, minlength=windows.steps.size)
        sums: Float64 = found[windows.counts].astype(np.float64)
        return sums

    def _without_transfer(
        self, program: Program, pairs: Sequence[tuple[Slowing, Slowing]]
    ) -> Float64:
        still = replace(
            program,
            transfer_ns=np.zeros_like(program.transfer_ns),
            lag_ns=np.zeros_like(program.lag_ns),
        )
        found = simulate(still, [Setting(before, after) for before, after in pairs])
        return self._step_times(found)


# Get a run ready to be replayed, or say why it cannot be.


# Of bytes of gradients: what a user says may be this much off what the capture says.
_BYTES_WITHIN = 0.1
# As NCCL's kernels name them.
_ELEMENT_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True)
class Opened:
    """A run that can be replayed, and what may stand against single questions.

    Attributes
    ----------
    starved
        How much of its step each rank's GPU waits for launches.
    datatypes
        Of the gradients' all-reduces, as kernel names say; None for one that is not told.
    """

    replay: Replay
    starved: Starvation
    datatypes: set[str | None]


def opened_replay(run: Run, gradient_bytes: float | None = None) -> Opened | str:
    """Return the run ready to be asked, or why it cannot be.

    Parameters
    ----------
    gradient_bytes
        Per step, as the user says.

    Raises
    ------
    OptionError
        If the capture says other bytes.
    DatasetError
        If the run was saved without its operations.
    """
    if reason := why_not(run):
        return reason
    windows = summary_windows(run)
    if windows is None:
        return "the steps that count do not follow one another, or not on every rank"
    timelines = rank_timelines(run, windows)
    if reason := why_not_replayable(run, timelines, windows):
        return reason
    first = timelines[0].collectives
    n_bytes, datatypes = _recorded(run, first)
    is_gradient = _gradient_collectives(first)
    captured = captured_program(timelines, windows, n_bytes, is_gradient)
    starved = starvation(timelines, windows)
    sent = {one for one, is_own in zip(datatypes, is_gradient, strict=True) if is_own}
    recorded = run.summary().to_pylist()[0]["busbw_bytes_per_s"]
    replay = Replay(
        captured,
        gradient_bytes,
        ~starved.is_starved,
        recorded_bytes_per_s=recorded,
        compared=compared_kernels(run.kernels()),
        nominal_bytes_per_s=_nominal(run),
        world_size=run.header.world_size,
        element_bytes=_element_bytes(sent),
    )
    _check_bytes(replay, gradient_bytes, sent)
    if replay.identity_error > LARGEST_IDENTITY_ERROR:
        return (
            f"the replay with nothing changed is off by {100 * replay.identity_error:.1f} %: the run waits for "
            "something that the model does not know"
        )
    if reason := contradiction(replay):
        return reason
    return Opened(replay, starved, sent)


def why_refused(opened: Opened | str, knobs: Knobs) -> str | None:
    """Return why a run has no answer to a combination of knobs; None if it has one.

    Parameters
    ----------
    opened
        What `opened_replay` returned.
    """
    if isinstance(opened, str):
        return opened
    return why_not_knobs(opened.replay, knobs, opened.starved, opened.datatypes)


def _element_bytes(datatypes: set[str | None]) -> int | None:
    """Return the bytes of an element, where all are of one size."""
    sizes = {_ELEMENT_BYTES.get(one or "") for one in datatypes}
    return sizes.pop() if len(sizes) == 1 else None


def _nominal(run: Run) -> float | None:
    """Return what NVLink gives between the run's GPUs, or PCIe where they have none; None where a model is not known."""
    names = run.ranks["gpu_name"].to_pylist()
    found = nvlink_speed(names) or pcie_speed(names)
    return None if found is None else found.bytes_per_s


def _check_bytes(replay: Replay, given: float | None, datatypes: set[str | None]) -> None:
    """Raise if a user's bytes contradict NCCL's payload, the copies, or what the links can carry."""
    if given is None:
        return
    if reason := beyond_nominal(replay):
        narrow = ", ".join(sorted(one or "?" for one in datatypes))
        raise OptionError(
            f"--gradient-bytes {given:,.0f}",
            reason,
            found=f"all-reduces of {narrow}",
            fix="give what is sent: parameters x 4 bytes as f32, x 2 bytes as f16 or bf16",
        )
    if replay.seen_bytes is None:
        return
    if abs(given - replay.seen_bytes) > _BYTES_WITHIN * replay.seen_bytes:
        raise OptionError(
            f"--gradient-bytes {given:,.0f}",
            f"the capture says {replay.seen_bytes:,.0f} bytes of gradients per step",
            fix="leave it out (f32 gradients are parameters x 4 bytes)",
        )


def _recorded(run: Run, first: Collectives) -> tuple[Float64, list[str | None]]:
    """Return message bytes (NaN where not recorded) and datatype of each collective."""
    table = run.collectives()
    table = table.filter(pc.equal(table["rank"], run.ranks["rank"][0]))
    rows = {
        (step, seq): (n_bytes, datatype)
        for step, seq, n_bytes, datatype in zip(
            *(table[name].to_pylist() for name in ("step", "seq", "message_bytes", "datatype")),
            strict=True,
        )
    }
    found = [
        rows.get(key, (None, None))
        for key in zip(first.step.tolist(), first.seq.tolist(), strict=True)
    ]
    n_bytes = np.array([np.nan if one is None else one for one, _ in found], np.float64)
    return n_bytes, [datatype for _, datatype in found]


def _gradient_collectives(first: Collectives) -> Flags:
    """Tell which collectives are DDP's: of each step the all-reduces of the phase that has most of their time."""
    found = np.zeros(first.step.size, np.bool_)
    if is_sharded(first.kind.tolist()):
        return found
    all_reduce = first.kind == "all_reduce"
    length = first.end - first.start
    for step in np.unique(first.step).tolist():
        own = np.flatnonzero(all_reduce & (first.step == step))
        if own.size:
            phase = first.phase[own]
            total = {one: int(length[own][phase == one].sum()) for one in np.unique(phase).tolist()}
            found[own[phase == max(total, key=lambda one: (total[one], one))]] = True
    return found
