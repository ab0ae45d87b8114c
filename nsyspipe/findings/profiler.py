"""Rule ``profiler-overhead``: what the profiler itself costs in the steps that are measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from nsyspipe.findings.model import (
    Answer,
    Bound,
    Evidence,
    Finding,
    Rules,
    Wording,
    aggregate_by,
    fill_zero,
    select_rows,
)
from nsyspipe.model.names import few

# The first step is distorted if it is the longest, and takes this times the median step.
_MIN_RATIO_OF_DISTORTED_STEP = 1.5
_MIN_OVERHEAD_SHARE_OF_STEP = 0.01
_MAX_SHOWN_RANKS = 4
# By their names in nsys.
_NEEDED_EVENTS = frozenset({"Cuda", "NvtxEvents"})
_CAPTURE_LATER = (
    "start the capture some steps before the steps that count, and keep the capture short"
)


class _FirstStep(NamedTuple):
    """How the first step compares to the other steps that are used."""

    # Its length over the median length of the others. None if that is not known.
    ratio: float | None
    is_longest: bool
    # Whether the start of the capture explains half of what the first step takes longer.
    is_explained: bool

    @property
    def is_distorted(self) -> bool:
        """Whether it is much longer than the others."""
        return (
            self.ratio is not None
            and self.ratio >= _MIN_RATIO_OF_DISTORTED_STEP
            and self.is_longest
        )


def profiler_overhead(evidence: Evidence) -> Answer:
    """Fire if the first step is distorted, or the profiler works during 1 % of step time.

    A distorted first step is the longest step, and takes 1.5 times the median. Saving: see
    `_bound_without_overhead`. There is none if only the first step is distorted, or if no device
    idles for the work of the profiler.
    """
    overhead_share = evidence.share_of_step(evidence.mean("overhead_ns") or 0.0)
    is_busy = overhead_share >= _MIN_OVERHEAD_SHARE_OF_STEP
    first = _compare_first_step(evidence)
    if not is_busy and not first.is_distorted:
        return None
    ratio_by_rank = _ratios_of_long_first_steps(evidence)
    figures: dict[str, Any] = {**evidence.means("overhead_ns")}
    # The ratio of the run, which compares steps over all ranks.
    figures["first_step_to_median_ratio"] = first.ratio
    figures["first_step_is_skipped"] = bool(evidence.skipped_steps)
    if evidence.n_ranks > 1 and ratio_by_rank:
        ratios = {str(rank): ratio for rank, ratio in ratio_by_rank.items()}
        figures["first_step_to_median_ratio_by_rank"] = ratios
    if not is_busy:
        words = _word_distorted_step(evidence, first, ratio_by_rank)
        return Finding(words.title, words.action, words.advice, None, figures)
    bound = _bound_without_overhead(evidence)
    if bound is not None and bound.parts:
        figures["saving_ns_per_step_by_part"] = bound.parts
    words = _word_busy_profiler(evidence, has_saving=bound is not None)
    saving_ns = None if bound is None else bound.saving_ns
    return Finding(words.title, words.action, words.advice, saving_ns, figures)


def _word_busy_profiler(evidence: Evidence, *, has_saving: bool) -> Wording:
    title = "The profiler was busy during the steps"
    if not has_saving:
        title += ", but no GPU idled because of the profiler"
    action = "Read with care: the profiler distorts the capture"
    return Wording(title, action, _advise_to_trace_less(evidence))


def _word_distorted_step(
    evidence: Evidence, first: _FirstStep, ratio_by_rank: Mapping[int, float]
) -> Wording:
    """Say how the first step differs from the others, and whether metrics use the first step."""
    if evidence.skipped_steps:
        left_out = ", and nsyspipe does not use the first step"
        action_if_explained = "Change nothing: only the unused first step is distorted"
        advice = "Change nothing, because no metric uses the first step"
    else:
        left_out = ""
        action_if_explained = "Read with care: the profiler distorts the capture"
        advice = _advise_to_trace_less(evidence)
    if first.is_explained:
        title = f"The start of the capture distorts the first step{left_out}"
        return Wording(title, action_if_explained, advice)
    times = _times_text(ratio_by_rank, first.ratio or 0.0, evidence.n_ranks)
    title = f"The first step takes {times}{left_out}"
    return Wording(title, "Read with care: the first step differs from the others", advice)


def _bound_without_overhead(evidence: Evidence) -> Bound | None:
    """Return what a step gains at most without the work of the profiler; None if that is nothing.

    The window of each rank gets shorter by ``work``: the work of the profiler during which the
    device idles for its host. Waiting for other ranks gets shorter too, at most by their work::

        max over ranks(wall) - max over ranks(wall - work - min(wait, work of all other ranks))

    If idle time is not known, all of the work counts. If waiting is not known, all communication
    may be waiting.
    """
    wall_ns, work_ns = evidence.columns("wall_ns", "overhead_ns")
    idle_ns, dependency_ns = evidence.columns("idle_ns", "idle_dependency_ns")
    is_idle_known = pc.is_valid(evidence.steps["idle_ns"]).to_numpy()
    # While a device waits for other operations, it does not idle for its host.
    work_while_idle_ns = np.minimum(work_ns, idle_ns - dependency_ns)
    cost_ns = np.where(is_idle_known, work_while_idle_ns, work_ns)
    is_wait_known = evidence.is_wait_known and evidence.are_groups_known
    (wait_ns,) = evidence.columns("wait_ns" if is_wait_known else "comm_ns")
    caused_ns = np.minimum(wait_ns, evidence.sum_of_other_ranks(cost_ns))
    shortened_ns = wall_ns - cost_ns - caused_ns
    saving_ns = evidence.saving_down_to(shortened_ns)
    if saving_ns <= 0:
        return None
    limit_rows = evidence.rows_of_largest(shortened_ns)
    parts = evidence.mean_parts(limit_rows, overhead=cost_ns, waiting=caused_ns)
    return Bound(saving_ns, parts)


def _advise_to_trace_less(evidence: Evidence) -> str:
    """Say what the profiler can leave out of what it recorded.

    What is not known may have been recorded.
    """
    recording = evidence.recording
    are_events_known = len(recording.events) > 0
    has_other_events = not _NEEDED_EVENTS.issuperset(recording.events)
    options = []
    if has_other_events or not are_events_known:
        options.append("--trace=cuda,nvtx")
    if recording.is_cpu_sampled is not False:
        options.append("--sample=none")
    if recording.has_backtraces is not False:
        options.append("no --cudabacktrace")
    if not options:
        return _CAPTURE_LATER.capitalize()
    return f"Trace less ({', '.join(options)}), {_CAPTURE_LATER}"


def _used_steps(evidence: Evidence) -> list[int]:
    steps: list[int] = evidence.steps["step"].unique().to_pylist()
    return steps


def _number_of_first_step(evidence: Evidence) -> int:
    """Return the number of the first step, which may be skipped. Skipped steps come first."""
    steps = (*evidence.skipped_steps, *_used_steps(evidence))
    return steps[0]


def _compare_first_step(evidence: Evidence) -> _FirstStep:
    """Compare the first step to the other steps that are used.

    A step is as long as its longest window over ranks.
    """
    first = _number_of_first_step(evidence)
    step_ns = aggregate_by(evidence.all_steps, "step", "wall_ns", "max")
    other_steps_ns = [step_ns[step] for step in _used_steps(evidence) if step != first]
    median_ns = float(np.median(other_steps_ns)) if other_steps_ns else 0.0
    if not median_ns:
        return _FirstStep(ratio=None, is_longest=False, is_explained=False)
    first_ns = step_ns[first]
    excess_ns = first_ns - median_ns
    capture_start_cost_ns = _cost_of_capture_start(evidence, first)
    return _FirstStep(
        ratio=first_ns / median_ns,
        is_longest=first_ns > max(other_steps_ns),
        is_explained=2 * capture_start_cost_ns >= excess_ns,
    )


def _cost_of_capture_start(evidence: Evidence, first: int) -> int:
    """Return the time that the start of the capture may cost the first step, ns.

    That is the time of a rank for waiting and for the work of the profiler, the largest over ranks.
    """
    costs_of_steps = evidence.all_steps.select(["step", "wait_ns", "overhead_ns"])
    rows = select_rows(costs_of_steps, "step", first)
    cost_ns = pc.add(fill_zero(rows["wait_ns"]), fill_zero(rows["overhead_ns"]))
    return pc.max(cost_ns).as_py() or 0


def _ratios_of_long_first_steps(evidence: Evidence) -> dict[int, float]:
    """Return for each rank the length of its first step over the median of its other used steps.

    Ranks with a ratio below 1.5 are left out, and so are ranks without one of these steps.
    """
    rows = evidence.all_steps
    rank_of_row = rows["rank"].to_numpy()
    wall_ns = rows["wall_ns"].to_numpy()
    is_first = rows["step"].to_numpy() == _number_of_first_step(evidence)
    used_steps = evidence.steps["step"].unique()
    is_used = pc.is_in(rows["step"], value_set=used_steps).to_numpy()
    ratios: dict[int, float] = {}
    for rank in np.unique(rank_of_row).tolist():
        is_of_rank = rank_of_row == rank
        first_ns = wall_ns[is_first & is_of_rank]
        other_steps_ns = wall_ns[is_used & ~is_first & is_of_rank]
        if not first_ns.size or not other_steps_ns.size:
            continue
        median_ns = np.median(other_steps_ns)
        min_long_ns = _MIN_RATIO_OF_DISTORTED_STEP * median_ns
        if median_ns > 0 and first_ns.max() >= min_long_ns:
            ratios[rank] = float(first_ns.max() / median_ns)
    return ratios


def _times_text(ratios: Mapping[int, float], ratio_of_run: float, n_ranks: int) -> str:
    """Say how much longer the first step is, and on which ranks if not on all ranks.

    `ratios` are by rank. Without any, the ratio of the run is the only figure.
    """
    if not ratios:
        return f"{ratio_of_run:.2g} times as long as the others"
    low = f"{min(ratios.values()):.2g}"
    high = f"{max(ratios.values()):.2g}"
    times = high if low == high else f"{low} to {high}"
    where = ""
    if len(ratios) < n_ranks:
        noun = "ranks" if len(ratios) > 1 else "rank"
        where = f" on {noun} {few([*ratios], _MAX_SHOWN_RANKS)}"
    longest = ""
    if low != high:
        longest = f" (longest on rank {max(ratios, key=ratios.__getitem__)})"
    return f"{times} times as long as the others{where}{longest}"


RULES: Rules = {profiler_overhead: ("overhead_ns",)}
