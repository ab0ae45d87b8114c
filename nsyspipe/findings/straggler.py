"""Rule ``straggler``: ranks make the others wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.findings.host import excess, launched_late_ns
from nsyspipe.findings.late_saving import limited_saving, saving_of_all
from nsyspipe.findings.lateness import (
    LIMITS,
    Lateness,
    LateNode,
    LateRanks,
    find_culprit,
    measure_lateness,
    why_waiting_is_unknown,
    with_slow_hosts,
)
from nsyspipe.findings.model import (
    IS_LAUNCH_BOUND,
    OF_COMM,
    Answer,
    Evidence,
    Finding,
    NotJudged,
    Rules,
)
from nsyspipe.model.names import listed, ranges
from nsyspipe.model.table import Int64

MIN_PART_OF_PHASE = 0.6  # of what a rank takes longer: from there on it is mostly one phase's
MIN_PART_OF_HOST = 0.6  # of its delays: from there on they are mostly for launches that come late
_MOST_NAMED = 3  # ranks in an action
_OUTSIDE = ""  # what no phase has
_ADVICE = {
    "data": (
        "Balance the data of this rank: batch lengths, the storage of its shard, "
        "DataLoader(num_workers=...)"
    ),
    "forward": (
        "Look for what only this rank does in forward: longer sequences, logging, a slower CPU or "
        "GPU"
    ),
    "backward": "Look for what only this rank does in backward: longer sequences, hooks, a slower GPU",
    "optimizer": (
        "Look for what only this rank does around the optimizer: checkpoints, metrics, uneven "
        "shards"
    ),
}
_LAUNCH_SOONER = (
    "Let each rank launch as early as the others: look for other work on the CPUs, and for "
    "logging. "
)
_MEND_HOST = (
    "launch as fast as the other ranks: none of the others takes as long, and one computes "
    "about as much. Look for other "
    "work on the CPUs, logging, hooks and slower CPUs"
)
_HARDLY_SLOWER = f"by less than {100 * LIMITS.min_slower_share:.0f}% of a step on average"
_BEGIN_TOGETHER = (
    "if the capture begins at another time on each rank, that alone can make a rank late. Let "
    "all ranks meet before the "
    "capture starts (torch.distributed.barrier(), then torch.cuda.synchronize()), some steps "
    "before the steps that count"
)
_COMPARE = "Compare what this rank does in these steps: its data, its CPU, the clocks of its GPU"
_COMPARE_ALL = (
    "Compare what these ranks do in the steps in which each is late: their data (batch "
    "lengths), their CPUs, "
    "the clocks of their GPUs"
)
_COMPARE_NODE = (
    "Compare this node with the others: the storage of its data, other work on its CPUs, the "
    "clocks of its GPUs, and "
    "its network"
)


class LongerPhase(Struct, frozen=True):
    """The phase that has most of what a rank takes longer than the others."""

    name: str
    excess_ns: float
    is_idle: bool  # whether its device idles for more than half of that


class Explanation(Struct, frozen=True):
    """Why the worst rank is late, as far as the figures tell."""

    phase: LongerPhase | None
    launched_late_ns_per_step: float  # how much longer late ranks idle for launches than the others
    is_by_host: bool  # whether that is most of their delays, or the hosts of all of them are slow
    slow_hosts: Sequence[int]  # late ranks, see `with_slow_hosts`
    late_at_start_ns: (
        int | None
    )  # by how much it began the first step late, where that is a part of its delays


_NOTHING_TO_GAIN = (
    "ranks are late, but every CPU launches a step as slowly as the step runs, so balanced ranks "
    "would save nothing"
)
_RECORD_WAITS = (
    "if CPUs wait outside of CUDA calls, mark this with NVTX ranges. Otherwise see launch-bound"
)


def straggler(evidence: Evidence) -> Answer:
    """Fire when ranks come late by themselves, and the others wait for them in most steps; see `lateness.StragglerLimits`.

    Where a whole host is late it is named, else each rank with a part of the delays. Saving: see
    `late_saving`.
    """
    if (evidence.n_ranks == 1 and not evidence.has_absent_ranks) or not evidence.has_comm:
        return None
    reason = why_waiting_is_unknown(evidence)
    if reason:
        return reason
    lateness = measure_lateness(evidence)
    culprit = find_culprit(evidence, lateness)
    if isinstance(culprit, LateNode):
        return _finding_of_node(evidence, lateness, culprit)
    return (
        _answer_of_ranks(evidence, lateness, culprit) if isinstance(culprit, LateRanks) else culprit
    )


def _answer_of_ranks(
    evidence: Evidence, lateness: Lateness, late: LateRanks
) -> Finding | NotJudged:
    if not late.delays_ns:
        return NotJudged(
            f"the others wait for {_text_of_no_slower(late, lateness)}", _BEGIN_TOGETHER
        )
    parts = saving_of_all(evidence, lateness.collectives)
    if sum(parts.values()) <= 0:
        return NotJudged(_NOTHING_TO_GAIN, _RECORD_WAITS)
    return _finding_of_ranks(evidence, lateness, late, explain(evidence, lateness, late), parts)


def explain(evidence: Evidence, lateness: Lateness, late: LateRanks) -> Explanation:
    """Return why ranks are late: one phase of a single rank, their hosts, a late begin."""
    phase = find_longer_phase(evidence, late.worst, late.steps_of[late.worst])
    late_ns = 0.0
    has_one_phase = phase is not None and late.n_named == 1
    if not (has_one_phase or late.behind_ns or evidence.is_pipeline):
        steps_of_named = {rank: late.steps_of[rank] for rank in late.delays_ns}
        late_ns = launched_late_ns(evidence, steps_of_named) / lateness.n_steps
    delays_ns = sum(late.delays_ns.values())
    slow_hosts = with_slow_hosts(evidence, [*late.delays_ns])
    return Explanation(
        phase=phase,
        launched_late_ns_per_step=late_ns,
        is_by_host=late_ns >= MIN_PART_OF_HOST * delays_ns
        or len(slow_hosts) == len(late.delays_ns),
        slow_hosts=slow_hosts,
        late_at_start_ns=_late_at_start_ns(
            evidence, late.worst, lateness.total_ns_per_step * lateness.n_steps
        ),
    )


def _late_at_start_ns(evidence: Evidence, rank: int, delays_ns: float) -> int | None:
    """Return by how much later than all others a rank began the first step, where that is a tenth of all delays."""
    first = pc.min(evidence.steps["step"]).as_py()
    is_own = pc.field("rank") == rank
    of_first = evidence.steps.filter(pc.field("step") == first)
    own, others = (pc.max(of_first.filter(rows)["start_ns"]).as_py() for rows in (is_own, ~is_own))
    is_little = own - others < LIMITS.min_part_of_delays * delays_ns
    # Stages begin one after the other by design. No share: one late start is in the delays of
    # several collectives.
    return None if evidence.is_pipeline or is_little else own - others


def _finding_of_node(evidence: Evidence, lateness: Lateness, node: LateNode) -> Finding:
    """Name a host all of whose ranks are late alike; it is late once a step, whatever communicators wait for it."""
    late_ns = float(node.late_ns.sum() / lateness.n_steps)
    parts = limited_saving(evidence, {"delays": late_ns}, has_bubble=True)
    figures: dict[str, Any] = {
        "node": node.host,
        "ranks": list(node.ranks),
        "node_late_ns_per_step": late_ns,
        "saving_ns_per_step_by_part": parts,
        "n_steps_held_up": int(node.late_ns.size),
        "n_steps_with_collectives": lateness.n_meeting,
    }
    title = f"The other ranks wait for {node.text}, where all ranks are late alike{evidence.main_waiting_text}"
    return Finding(
        title, f"Find out why {node.text} is late", _COMPARE_NODE, sum(parts.values()), figures
    )


def _finding_of_ranks(
    evidence: Evidence,
    lateness: Lateness,
    late: LateRanks,
    why: Explanation,
    parts: Mapping[str, float],
) -> Finding:
    """Name the ranks that are late, and why as far as it is known."""
    title = _title(late, lateness, are_all=len(late.delays_ns) == evidence.n_ranks)
    earlier = ""
    if why.late_at_start_ns is not None:
        first = pc.min(evidence.steps["step"]).as_py()
        earlier = f", and rank {late.worst} began step {first} late"
    compare = _COMPARE_ALL
    if late.n_named == 1:
        compare = _ADVICE.get(why.phase.name, _COMPARE) if why.phase else _COMPARE
    advice = _LAUNCH_SOONER + compare if why.is_by_host else compare
    if why.slow_hosts:
        advice = _advice_of_slow_hosts(late, why.slow_hosts)
    also = ""
    if late.no_slower_ns:
        also = f", and also for {_text_of_no_slower(late, lateness)}"
        verb = "are" if len(late.no_slower_ns) > 1 else "is"
        advice += (
            f". In steps in which {_ranks_text(late.no_slower_ns)} {verb} late: {_BEGIN_TOGETHER}"
        )
    figures = _figures(evidence, lateness, late, why) | {"saving_ns_per_step_by_part": {**parts}}
    if {"above_launching", "left_for_launching"} & parts.keys():
        figures |= evidence.launching_figures
    title = f"{title}{_clause_of_cause(late, why)}{evidence.main_waiting_text}{earlier}{also}"
    return Finding(title, _action(late, why), advice, sum(parts.values()), figures)


def _advice_of_slow_hosts(late: LateRanks, slow_hosts: Sequence[int]) -> str:
    """Advise about hosts that launch slower, and then about the other late ranks."""
    advice = f"Let {_ranks_text(slow_hosts)} {_MEND_HOST}"
    rest = [rank for rank in late.delays_ns if rank not in slow_hosts]
    return f"{advice}. {_COMPARE_ALL}" if rest else advice


def _figures(
    evidence: Evidence, lateness: Lateness, late: LateRanks, why: Explanation
) -> dict[str, Any]:
    of_ranks = {row["rank"]: row for row in evidence.stragglers.to_pylist()}
    worst = of_ranks[late.worst]
    waited_for_ns = {**late.delays_ns, **late.no_slower_ns}
    figures: dict[str, Any] = {
        "saving_ns_per_step_by_part": None,
        "rank": late.worst,
        "phase": why.phase.name if why.phase else None,
        "phase_excess_ns_per_step": why.phase.excess_ns if why.phase else None,
        "held_up_ns_per_step_by_rank": {str(rank): delay for rank, delay in waited_for_ns.items()},
    }
    if late.no_slower_ns:
        figures["no_slower_ranks"] = [*late.no_slower_ns]
    if late.behind_ns:
        figures["late_behind_ns_per_step_by_rank"] = {
            str(rank): ns for rank, ns in late.behind_ns.items()
        }
    figures |= {
        "n_steps_held_up_by_rank": {
            str(rank): int(late.steps_of[rank].size) for rank in waited_for_ns
        },
        "held_up_steps_by_rank": {
            str(rank): ranges(late.steps_of[rank].tolist()) for rank in waited_for_ns
        },
    }
    if why.is_by_host and why.launched_late_ns_per_step:
        figures["launched_late_ns_per_step"] = why.launched_late_ns_per_step
    if why.late_at_start_ns is not None:
        figures["late_before_first_step_ns"] = why.late_at_start_ns
    if evidence.is_launch_bound:
        launch = evidence.steps.group_by("rank", use_threads=False).aggregate(
            [("host_launch_ns", "mean")]
        )
        means = zip(
            launch["rank"].to_pylist(), launch["host_launch_ns_mean"].to_pylist(), strict=True
        )
        figures |= {
            IS_LAUNCH_BOUND: True,
            "host_launch_ns_per_step_by_rank": {str(rank): ns for rank, ns in means},
        }
    return figures | {
        "lateness_ns_per_step": worst["lateness_ns"] / lateness.n_steps,
        "n_steps_held_up": int(late.steps_of[late.worst].size),
        "n_steps_with_collectives": lateness.n_meeting,
        **{name: worst[name] for name in ("n_arrived_last", "wait_caused_ns")},
    }


def _clause_of_cause(late: LateRanks, why: Explanation) -> str:
    """Return why ranks are late, as a clause of the title; nothing where the cause is not known."""
    if why.phase and late.n_named == 1 and not why.slow_hosts:
        if why.phase.is_idle:
            return f", mostly because its GPU idles in {why.phase.name}"
        return f", mostly because its {why.phase.name} phase takes longer"
    if not why.is_by_host:
        return ""
    return (
        f", because {'its CPU launches' if len(late.delays_ns) == 1 else 'their CPUs launch'} "
        "kernels late"
    )


def _action(late: LateRanks, why: Explanation) -> str:
    """Return what to look into: which ranks are late, and where, if that is known."""
    names = [*late.delays_ns, *late.behind_ns]
    ranks = _ranks_text(names) if len(names) <= _MOST_NAMED else f"{len(names)} ranks"
    if why.phase and late.n_named == 1 and not why.slow_hosts:
        if why.phase.is_idle:
            return f"Find out why the GPU of {ranks} idles in {why.phase.name}"
        return f"Find out why {ranks} takes longer in {why.phase.name}"
    if why.is_by_host and not late.behind_ns:
        launches = "launches" if len(names) == 1 else "launch"
        return f"Find out why {ranks} {launches} kernels late"
    return f"Find out why {ranks} {'is' if len(names) == 1 else 'are'} late"


def _title(late: LateRanks, lateness: Lateness, *, are_all: bool) -> str:
    """Name the ranks, and in how many steps one of them is late, or each one's part of the delays."""
    awaited = f"rank {late.worst}"
    in_steps = _in_steps(late, lateness, late.worst)
    if len(late.delays_ns) > 1 or late.no_slower_ns:
        awaited = _parts_of_ranks(late, lateness, late.delays_ns)
        in_steps = ""
    then = f", and then for {_ranks_text([*late.behind_ns])}" if late.behind_ns else ""
    if are_all:
        return f"The ranks wait for each other: for {awaited}"
    return f"The other ranks wait{in_steps} for {awaited}{then}"


def _in_steps(late: LateRanks, lateness: Lateness, rank: int) -> str:
    """Return in how many steps a rank is late; nothing where there is only one."""
    n_steps = late.steps_of[rank].size
    if lateness.n_meeting == 1:
        return ""
    return (
        " in every step"
        if n_steps == lateness.n_meeting
        else f" in {n_steps} of {lateness.n_meeting} steps"
    )


def _text_of_no_slower(late: LateRanks, lateness: Lateness) -> str:
    """Say for which ranks the others wait though they are no slower, and in which steps."""
    whose_times = "their" if len(late.no_slower_ns) > 1 else "its"
    times = (
        f"although {whose_times} launch and compute times exceed those of the other ranks "
        f"{_HARDLY_SLOWER}"
    )
    return f"{_parts_of_ranks(late, lateness, late.no_slower_ns)}, {times}"


def _parts_of_ranks(late: LateRanks, lateness: Lateness, ranks: Iterable[int]) -> str:
    parts = [_part_of_rank(late, lateness, rank) for rank in ranks]
    return f"rank{'s'[: len(parts) > 1]} {listed(parts)}"


def _ranks_text(ranks: Collection[int]) -> str:
    return f"rank{'s'[: len(ranks) > 1]} {listed(ranks)}"


def _part_of_rank(late: LateRanks, lateness: Lateness, rank: int) -> str:
    delay_ns = late.delays_ns.get(rank) or late.no_slower_ns[rank]
    part = 100 * delay_ns / lateness.total_ns_per_step
    return f"{rank} ({part:.0f}% of the delays)"


def find_longer_phase(evidence: Evidence, rank: int, numbers: Int64) -> LongerPhase | None:
    """Return the phase that has most of what a rank took longer than the others in some steps; None where none has."""
    in_steps = pc.field("step").isin(pa.array(numbers))
    phases = evidence.phases.filter(in_steps)
    steps = evidence.steps.filter(in_steps)
    spent = _device_time(phases)
    is_device = not spent.null_count
    if not is_device:  # on the host for all phases, where a rank's time on the device is not known
        spent = phases["host_ns"]
    longer_ns = {}
    for phase in sorted(phases["phase"].unique().to_pylist()):
        is_phase = pc.equal(phases["phase"], phase)
        longer_ns[phase] = excess(
            spent.filter(is_phase), pc.equal(phases["rank"], rank).filter(is_phase)
        )
    input_ns = 0.0
    if is_device:
        is_own = pc.equal(steps["rank"], rank)
        in_step = pc.subtract(steps["wall_ns"], pc.fill_null(steps["exposed_comm_ns"], 0))
        longer_ns[_OUTSIDE] = excess(in_step, is_own) - sum(longer_ns.values())
        input_ns = max(excess(pc.fill_null(steps["idle_input_ns"], 0), is_own), 0.0)
    least_ns = MIN_PART_OF_PHASE * sum(max(excess_ns, 0.0) for excess_ns in longer_ns.values())
    # What ends a gap may be forward's although the host was loading data: that is no time of
    # forward.
    if "data" in longer_ns and input_ns > max(longer_ns["data"], least_ns):
        return LongerPhase("data", input_ns, is_idle=False)
    phase = max(longer_ns, key=longer_ns.__getitem__, default=_OUTSIDE)
    excess_ns = longer_ns.get(phase, 0.0) - (0.0 if phase == "data" else input_ns)
    if phase == _OUTSIDE or excess_ns <= least_ns:
        return None
    in_phase = phases.filter(pc.equal(phases["phase"], phase))
    idle_ns, host_ns = (
        excess(in_phase[name], pc.equal(in_phase["rank"], rank)) for name in ("idle_ns", "host_ns")
    )
    is_idle = is_device and 2 * idle_ns > excess_ns
    # Where its device idles and its host is shorter in the phase, the host had fallen behind
    # before.
    return None if is_idle and host_ns < 0 else LongerPhase(phase, excess_ns, is_idle)


def _device_time(phases: pa.Table) -> pa.ChunkedArray:
    """Return the time of each phase on the device beside exposed communication, and idle; null where it is not known."""
    without_comm = pc.subtract(phases["device_ns"], pc.fill_null(phases["exposed_comm_ns"], 0))
    return pc.add(without_comm, phases["idle_ns"])


RULES: Rules = {straggler: OF_COMM}
