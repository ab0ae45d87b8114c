"""Rule ``straggler``: ranks make the others wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.findings.host import host_launch_ns_by_rank
from nsyspipe.findings.late_node import LateNode
from nsyspipe.findings.late_saving import limited_saving, saving_of_all
from nsyspipe.findings.lateness import (
    LIMITS,
    Lateness,
    LateRanks,
    find_culprit,
    launched_late_ns,
    measure_lateness,
    ranks_with_slow_hosts,
    why_waiting_is_unknown,
)
from nsyspipe.findings.longer_phase import LongerPhase, find_longer_phase
from nsyspipe.findings.model import (
    COLUMNS_OF_COMM,
    IS_LAUNCH_BOUND,
    Answer,
    Evidence,
    Finding,
    NotJudged,
    Rules,
    select_rows,
)
from nsyspipe.model.names import listed, ranges
from nsyspipe.model.typed_tables import (
    StragglersTable,
)

# Delays are mostly for late launches if these have this part of them.
MIN_PART_OF_HOST = 0.6
# The parts of a saving that launching limits.
_LIMITED_BY_LAUNCHING = {"above_launching", "left_for_launching"}
# An action names at most so many ranks.
_MAX_NAMED_RANKS = 3
_ADVICE_BY_PHASE = {
    "data": (
        "Balance the data of this rank: batch lengths, the storage of its shard, "
        "DataLoader(num_workers=...)"
    ),
    "forward": (
        "Look for what only this rank does in forward: longer sequences, logging, a slower CPU or "
        "GPU"
    ),
    "backward": (
        "Look for what only this rank does in backward: longer sequences, hooks, a slower GPU"
    ),
    "optimizer": (
        "Look for what only this rank does around the optimizer: checkpoints, metrics, uneven "
        "shards"
    ),
}
_LAUNCH_SOONER = (
    "Let each rank launch as early as the others: look for other work on the CPUs, and for "
    "logging. "
)
_LAUNCH_AS_FAST = (
    "launch as fast as the other ranks. The other ranks launch a step in less time, although one "
    "of them computes about as much. Look for other work on the CPUs, logging, hooks and slower "
    "CPUs"
)
_HARDLY_SLOWER = f"by less than {100 * LIMITS.min_slower_share:.0f}% of a step on average"
_BEGIN_TOGETHER = (
    "if the capture begins at another time on each rank, that alone can make a rank late. Let "
    "all ranks meet before the "
    "capture starts (torch.distributed.barrier(), then torch.cuda.synchronize()), some steps "
    "before the steps that count"
)
_COMPARE_RANK = (
    "Compare what this rank does in these steps: its data, its CPU, the clocks of its GPU"
)
_COMPARE_RANKS = (
    "Compare what these ranks do in the steps in which each is late: their data (batch "
    "lengths), their CPUs, "
    "the clocks of their GPUs"
)
_COMPARE_NODE = (
    "Compare this node with the others: the storage of its data, other work on its CPUs, the "
    "clocks of its GPUs, and "
    "its network"
)
_NOTHING_TO_GAIN = (
    "ranks are late, but every CPU launches a step as slowly as the step runs, so balanced ranks "
    "would save nothing"
)
_RECORD_WAITS = (
    "if CPUs wait outside of CUDA calls, mark this with NVTX ranges. Otherwise see launch-bound"
)


class Explanation(Struct, frozen=True):
    """Why the worst rank is late, as far as the figures show."""

    phase: LongerPhase | None
    # How much longer late ranks idle for launches than the others.
    launched_late_ns_per_step: float
    # Whether that is most of their delays, or the hosts of all late ranks are slow.
    is_by_host: bool
    # The late ranks of `ranks_with_slow_hosts`.
    slow_hosts: Sequence[int]
    # How late the rank began the first step, if that is a part of its delays.
    late_at_start_ns: int | None


def straggler(evidence: Evidence) -> Answer:
    """Fire if ranks come late by themselves, and the others wait for these ranks in most steps.

    The limits are `lateness.LIMITS`. If all ranks of a host are late, the host is named. Otherwise
    each rank with a large part of the delays is named. Saving: see `late_saving`.
    """
    has_one_rank = evidence.n_ranks == 1 and not evidence.has_absent_ranks
    if has_one_rank or not evidence.has_comm:
        return None
    unknown = why_waiting_is_unknown(evidence)
    if unknown is not None:
        return unknown
    lateness = measure_lateness(evidence)
    culprit = find_culprit(evidence, lateness)
    if isinstance(culprit, LateNode):
        return _finding_about_node(evidence, lateness, culprit)
    if isinstance(culprit, LateRanks):
        return _answer_about_ranks(evidence, lateness, culprit)
    return culprit


def _answer_about_ranks(
    evidence: Evidence, lateness: Lateness, late: LateRanks
) -> Finding | NotJudged:
    """Return the finding about late ranks, or why it is not known whether they cost time."""
    if not late.delays_ns:
        # Only ranks that are no slower are late, which the begin of the capture may have caused.
        reason = f"the others wait for {_no_slower_text(late, lateness)}"
        return NotJudged(reason, _BEGIN_TOGETHER)
    saving_parts = saving_of_all(evidence, lateness.collectives)
    saving_ns = sum(saving_parts.values())
    if saving_ns <= 0:
        return NotJudged(_NOTHING_TO_GAIN, _RECORD_WAITS)
    why = explain(evidence, lateness, late)
    figures = _rank_figures(evidence, lateness, late, why)
    figures["saving_ns_per_step_by_part"] = saving_parts
    if _LIMITED_BY_LAUNCHING & saving_parts.keys():
        figures |= evidence.launching_figures
    slow_clock = find_slow_clock(evidence, late)
    title = _word_title(evidence, lateness, late, why)
    if slow_clock is not None:
        figures |= slow_clock._asdict()
        title = f"{title}{_word_slow_clock(slow_clock)}"
    action = _word_action(late, why)
    advice = _word_advice(late, why)
    return Finding(title, action, advice, saving_ns, figures)


# Explain


# A smaller difference between clocks does not explain a late rank.
MIN_CLOCK_DIFFERENCE = 0.02


class SlowClock(NamedTuple):
    """The clock of the late rank's GPU, and the median clock of the GPUs of other ranks."""

    clock_hz: float
    others_clock_hz: float


def find_slow_clock(evidence: Evidence, late: LateRanks) -> SlowClock | None:
    """Return the clocks if the worst rank has a lower clock than the median of ranks in time.

    A clock is lower from a difference of `MIN_CLOCK_DIFFERENCE` on. None if it is not lower, if
    the clock of the worst rank was not counted, or if no clock of the other ranks was.
    """
    clocks_hz = evidence.clocks_hz
    clock_hz = clocks_hz.get(late.worst)
    others_hz = [hz for rank, hz in clocks_hz.items() if rank not in late.delays_ns]
    if clock_hz is None or not others_hz:
        return None
    median_hz = float(np.median(others_hz))
    if clock_hz > (1 - MIN_CLOCK_DIFFERENCE) * median_hz:
        return None
    return SlowClock(clock_hz, median_hz)


def _word_slow_clock(clock: SlowClock) -> str:
    mhz = clock.clock_hz / 1e6
    others_mhz = clock.others_clock_hz / 1e6
    return f". Its GPU runs at {mhz:.0f} MHz, the others at {others_mhz:.0f} MHz"


def explain(evidence: Evidence, lateness: Lateness, late: LateRanks) -> Explanation:
    """Return why ranks are late: one phase of a single rank, their hosts, or a late begin.

    Late launches are not measured, and are 0, in three cases: a phase explains a single late rank,
    some rank is late behind another, or the run is a pipeline.
    """
    phase = find_longer_phase(evidence, late.worst, late.steps_of[late.worst])
    is_explained_by_phase = phase is not None and late.n_named == 1
    has_ranks_behind = len(late.behind_ns) > 0
    launched_late_per_step_ns = 0.0
    if not (is_explained_by_phase or has_ranks_behind or evidence.is_pipeline):
        steps_of_named = {rank: late.steps_of[rank] for rank in late.delays_ns}
        total_ns = launched_late_ns(evidence, steps_of_named)
        launched_late_per_step_ns = total_ns / lateness.n_steps
    delays_ns = sum(late.delays_ns.values())
    is_mostly_launches = launched_late_per_step_ns >= MIN_PART_OF_HOST * delays_ns
    slow_hosts = ranks_with_slow_hosts(evidence, [*late.delays_ns])
    are_all_hosts_slow = len(slow_hosts) == len(late.delays_ns)
    late_at_start_ns = _late_at_start_ns(evidence, lateness, late.worst)
    return Explanation(
        phase=phase,
        launched_late_ns_per_step=launched_late_per_step_ns,
        is_by_host=is_mostly_launches or are_all_hosts_slow,
        slow_hosts=slow_hosts,
        late_at_start_ns=late_at_start_ns,
    )


def _late_at_start_ns(evidence: Evidence, lateness: Lateness, rank: int) -> int | None:
    """Return how long after all other ranks a rank began the first step.

    None if that time is less than a tenth of all delays. Also None in a pipeline, because stages
    begin one after the other by design.
    """
    if evidence.is_pipeline:
        return None
    steps = evidence.steps.select(["rank", "step", "start_ns"])
    first_step = select_rows(steps, "step", pc.min(steps["step"]))
    is_of_rank = pc.equal(first_step["rank"], rank)
    is_of_others = pc.invert(is_of_rank)
    # The rank has one row in the step.
    start_of_rank_ns = pc.max(first_step["start_ns"].filter(is_of_rank))
    last_start_of_others_ns = pc.max(first_step["start_ns"].filter(is_of_others))
    late_ns: int = start_of_rank_ns.as_py() - last_start_of_others_ns.as_py()
    delays_of_all_steps_ns = lateness.total_ns_per_step * lateness.n_steps
    # This only compares sizes. The late start is no part of the delays, because several collectives
    # may contain it.
    is_large = late_ns >= LIMITS.min_part_of_delays * delays_of_all_steps_ns
    return late_ns if is_large else None


# Late nodes


def _finding_about_node(evidence: Evidence, lateness: Lateness, node: LateNode) -> Finding:
    """Return the finding about a host whose ranks are all late alike.

    The host is late once in each step, however many communicators wait for it.
    """
    # The mean over all steps. `node.late_ns` only has the steps in which the host is late.
    late_ns = float(node.late_ns.sum() / lateness.n_steps)
    # Only the delays of this host count, and not those of other ranks.
    saving_parts = limited_saving(evidence, {"delays": late_ns}, only_delays=True)
    figures: dict[str, Any] = {
        "node": node.host,
        "ranks": list(node.ranks),
        "node_late_ns_per_step": late_ns,
        "saving_ns_per_step_by_part": saving_parts,
        "n_steps_held_up": int(node.late_ns.size),
        "n_steps_with_collectives": lateness.n_steps_with_collectives,
    }
    where = f"{node.text}, where all ranks are late alike{evidence.main_waiting_text}"
    title = f"The other ranks wait for {where}"
    action = f"Find out why {node.text} is late"
    saving_ns = sum(saving_parts.values())
    return Finding(title, action, _COMPARE_NODE, saving_ns, figures)


# Figures of late ranks


def _rank_figures(
    evidence: Evidence, lateness: Lateness, late: LateRanks, why: Explanation
) -> dict[str, Any]:
    """Return the figures of a finding about late ranks, in the order in which they are shown."""
    phase = why.phase
    figures: dict[str, Any] = {
        # The rule sets this figure later. It is here because it is the first one.
        "saving_ns_per_step_by_part": None,
        "rank": late.worst,
        "phase": phase.name if phase else None,
        "phase_excess_ns_per_step": phase.excess_ns if phase else None,
    }
    figures |= _delay_figures(late)
    if why.is_by_host and why.launched_late_ns_per_step:
        figures["launched_late_ns_per_step"] = why.launched_late_ns_per_step
    if why.late_at_start_ns is not None:
        figures["late_before_first_step_ns"] = why.late_at_start_ns
    if evidence.is_launch_bound:
        figures[IS_LAUNCH_BOUND] = True
        figures["host_launch_ns_per_step_by_rank"] = host_launch_ns_by_rank(evidence)
    return figures | _figures_of_worst(evidence.stragglers, lateness, late)


def _figures_of_worst(
    stragglers: StragglersTable, lateness: Lateness, late: LateRanks
) -> dict[str, Any]:
    """Return how late the worst rank is, in how many steps, and the waiting that it causes."""
    worst = _straggler_row(stragglers, late.worst)
    steps_held_up = late.steps_of[late.worst]
    return {
        "lateness_ns_per_step": worst["lateness_ns"] / lateness.n_steps,
        "n_steps_held_up": int(steps_held_up.size),
        "n_steps_with_collectives": lateness.n_steps_with_collectives,
        "n_arrived_last": worst["n_arrived_last"],
        "wait_caused_ns": worst["wait_caused_ns"],
    }


def _straggler_row(stragglers: StragglersTable, rank: int) -> dict[str, Any]:
    """Return the row of a rank, of several rows the last one."""
    rows_of_rank = select_rows(stragglers, "rank", rank)
    rows: list[dict[str, Any]] = rows_of_rank.to_pylist()
    return rows[-1]


def _delay_figures(late: LateRanks) -> dict[str, Any]:
    """Return for each late rank how long the others wait for it, and in which steps."""
    # Both kinds of ranks are waited for: those to blame, and those that are no slower than others.
    delays_ns = {**late.delays_ns, **late.no_slower_ns}
    steps_of = {rank: late.steps_of[rank] for rank in delays_ns}
    figures: dict[str, Any] = {"held_up_ns_per_step_by_rank": _with_text_keys(delays_ns)}
    if late.no_slower_ns:
        figures["no_slower_ranks"] = [*late.no_slower_ns]
    if late.behind_ns:
        figures["late_behind_ns_per_step_by_rank"] = _with_text_keys(late.behind_ns)
    n_steps_of: dict[str, int] = {}
    texts_of_steps: dict[str, list[str]] = {}
    for rank, steps in steps_of.items():
        n_steps_of[str(rank)] = int(steps.size)
        texts_of_steps[str(rank)] = ranges(steps.tolist())
    figures["n_steps_held_up_by_rank"] = n_steps_of
    figures["held_up_steps_by_rank"] = texts_of_steps
    return figures


def _with_text_keys(values: Mapping[int, float]) -> dict[str, float]:
    return {str(rank): value for rank, value in values.items()}


# Words about late ranks


def _word_title(evidence: Evidence, lateness: Lateness, late: LateRanks, why: Explanation) -> str:
    """Say who waits for whom, why, in which traffic, and who else is late."""
    are_all_late = len(late.delays_ns) == evidence.n_ranks
    title = _name_late_ranks(late, lateness, are_all_late=are_all_late)
    title += _cause_clause(late, why) + evidence.main_waiting_text
    if why.late_at_start_ns is not None:
        first_step = pc.min(evidence.steps["step"]).as_py()
        title += f", and rank {late.worst} began step {first_step} late"
    if late.no_slower_ns:
        no_slower = _no_slower_text(late, lateness)
        title += f", and also for {no_slower}"
    return title


def _name_late_ranks(late: LateRanks, lateness: Lateness, *, are_all_late: bool) -> str:
    """Say who waits for which ranks.

    A single rank has the number of its late steps, and each of several ranks its share of delays.
    """
    has_several_ranks = len(late.delays_ns) > 1 or len(late.no_slower_ns) > 0
    if has_several_ranks:
        awaited = _delays_text(late, lateness, late.delays_ns)
        in_steps = ""
    else:
        awaited = f"rank {late.worst}"
        in_steps = _in_steps_text(late, lateness, late.worst)
    if are_all_late:
        # No other ranks are left, neither to wait nor to be late behind another.
        return f"The ranks wait for each other: for {awaited}"
    behind = f", and then for {_ranks_text(late.behind_ns)}" if late.behind_ns else ""
    return f"The other ranks wait{in_steps} for {awaited}{behind}"


def _in_steps_text(late: LateRanks, lateness: Lateness, rank: int) -> str:
    """Say in how many steps a rank is late; nothing if there is only one step."""
    n_steps = late.steps_of[rank].size
    if lateness.n_steps_with_collectives == 1:
        return ""
    if n_steps == lateness.n_steps_with_collectives:
        return " in every step"
    return f" in {n_steps} of {lateness.n_steps_with_collectives} steps"


def _phase_to_blame(late: LateRanks, why: Explanation) -> LongerPhase | None:
    """Return the phase that explains why the only late rank is late; None if none does.

    A slow host explains more than a phase.
    """
    can_phase_explain = late.n_named == 1 and not why.slow_hosts
    return why.phase if can_phase_explain else None


def _cause_clause(late: LateRanks, why: Explanation) -> str:
    """Return why ranks are late as a clause of the title; empty if the cause is not known."""
    phase = _phase_to_blame(late, why)
    if phase is not None and phase.is_idle:
        return f", mostly because its GPU idles in {phase.name}"
    if phase is not None:
        return f", mostly because its {phase.name} phase takes longer"
    if not why.is_by_host:
        return ""
    hosts = "its CPU launches" if len(late.delays_ns) == 1 else "their CPUs launch"
    return f", because {hosts} kernels late"


def _word_action(late: LateRanks, why: Explanation) -> str:
    """Say what to look into: which ranks are late, and in what, if that is known."""
    named = [*late.delays_ns, *late.behind_ns]
    are_few = len(named) <= _MAX_NAMED_RANKS
    ranks = _ranks_text(named) if are_few else f"{len(named)} ranks"
    # Only a single rank has a phase to blame.
    phase = _phase_to_blame(late, why)
    if phase is not None and phase.is_idle:
        return f"Find out why the GPU of {ranks} idles in {phase.name}"
    if phase is not None:
        return f"Find out why {ranks} takes longer in {phase.name}"
    if why.is_by_host and not late.behind_ns:
        verb = "launches" if len(named) == 1 else "launch"
        return f"Find out why {ranks} {verb} kernels late"
    verb = "is" if len(named) == 1 else "are"
    return f"Find out why {ranks} {verb} late"


def _word_advice(late: LateRanks, why: Explanation) -> str:
    advice = _advise_about_ranks(late, why)
    if not late.no_slower_ns:
        return advice
    verb = "are" if len(late.no_slower_ns) > 1 else "is"
    ranks = _ranks_text(late.no_slower_ns)
    late_steps = f"In steps in which {ranks} {verb} late"
    return f"{advice}. {late_steps}: {_BEGIN_TOGETHER}"


def _advise_about_ranks(late: LateRanks, why: Explanation) -> str:
    """Return the advice: about slow hosts if there are any, otherwise about what ranks do."""
    if why.slow_hosts:
        ranks = _ranks_text(why.slow_hosts)
        advice = f"Let {ranks} {_LAUNCH_AS_FAST}"
        late_for_other_reasons = late.delays_ns.keys() - set(why.slow_hosts)
        return f"{advice}. {_COMPARE_RANKS}" if late_for_other_reasons else advice
    compare = _COMPARE_RANKS
    if late.n_named == 1:
        phase_name = why.phase.name if why.phase else ""
        compare = _ADVICE_BY_PHASE.get(phase_name, _COMPARE_RANK)
    return _LAUNCH_SOONER + compare if why.is_by_host else compare


def _no_slower_text(late: LateRanks, lateness: Lateness) -> str:
    """Say for which ranks the others wait although they are no slower."""
    whose = "their" if len(late.no_slower_ns) > 1 else "its"
    times = f"{whose} launch and compute times exceed those of the other ranks {_HARDLY_SLOWER}"
    delays = _delays_text(late, lateness, late.no_slower_ns)
    return f"{delays}, although {times}"


def _delays_text(late: LateRanks, lateness: Lateness, ranks: Iterable[int]) -> str:
    """Name ranks with their parts of the delays."""
    parts = [_delay_text(late, lateness, rank) for rank in ranks]
    noun = "ranks" if len(parts) > 1 else "rank"
    return f"{noun} {listed(parts)}"


def _delay_text(late: LateRanks, lateness: Lateness, rank: int) -> str:
    all_delays_ns = {**late.no_slower_ns, **late.delays_ns}
    delay_ns = all_delays_ns[rank]
    percent = 100 * delay_ns / lateness.total_ns_per_step
    return f"{rank} ({percent:.0f}% of the delays)"


def _ranks_text(ranks: Collection[int]) -> str:
    noun = "ranks" if len(ranks) > 1 else "rank"
    return f"{noun} {listed(ranks)}"


RULES: Rules = {straggler: COLUMNS_OF_COMM}
