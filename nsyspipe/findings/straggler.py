"""Rule ``straggler``: ranks make the others wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import places_in_runs, run_starts
from nsyspipe.analysis.steps import FEW_STEPS
from nsyspipe.analysis.traffic import held_up_by_step, own_lateness
from nsyspipe.findings.host import excess, launched_late_ns
from nsyspipe.findings.model import OF_COMM, WAITING_UNKNOWN, WITH_CALLS, Answer, Evidence, Finding, NotJudged, Rules
from nsyspipe.model.names import few, listed, printable, ranges
from nsyspipe.model.problems import MORE_STEPS
from nsyspipe.model.table import Float64, Int64

_LEAST_SHARE = 0.03
_LEAST_SHARE_OF_FEW = 0.1  # of a step or two only a large delay is no chance
_NOTICEABLE, _LEAST_PART, _MOST_NAMED = 0.01, 0.1, 3  # who is named: share of step time, of all delays; the most ranks
_STAGES_NOT_KNOWN = "ranks that send to each other may wait by design, and which do is not known without NCCL's calls"
_LEAST_BEHIND = 0.25  # of all delays: who comes so late behind the last makes the others wait once these are mended
_MOSTLY, _OUTSIDE = 0.6, ""  # share of what a rank takes longer that is mostly one phase's; what no phase has
_ADVICE = {
    "data": "balance the data of this rank: batch lengths, its shard's storage, DataLoader(num_workers=...)",
    "forward": "look for what only this rank does in forward: longer sequences, logging, a slower host or GPU",
    "backward": "look for what only this rank does in backward: longer sequences, hooks, a slower GPU",
    "optimizer": "look for what only this rank does around the optimizer: checkpoints, metrics, uneven shards",
}
_LAUNCH_SOONER = "let each host launch as soon as the others do (other work on its CPUs, logging); or "
_COMPARE = "compare what this rank does in those steps: its data, its host, its GPU's clocks"
_COMPARE_ALL = (
    "compare what these ranks do in the steps that each holds up: their data (batch lengths), their hosts, "
    "their GPUs' clocks"
)
_COMPARE_NODE = (
    "compare this node with the others: where its ranks read their data from, other work on its CPUs, its GPUs' clocks, "
    "its network"
)
_FAR = 2**62


def straggler(evidence: Evidence) -> Answer:
    """Fire when ranks come late, beyond clock error, by 3 % of step time, and by 1 % in most steps with collectives.

    By that much at the largest single delay of each step, whoever caused it; of fewer than 3 such steps, by 10 %. Saving:
    `_delay_ns` of all late ranks together, or step time less the shortest window without its exposed waiting if that is more,
    but of pipelines, since a step is as long as its longest window; at most `_room_ns`. Named is each rank whose own part is 1 % of step time and 10 % of all
    ``held_up_ns`` of `schema.COLLECTIVES`: per collective the longest wait in it. Late is what `own_lateness` leaves: nobody,
    where stages of a pipeline wait for each other by design.
    Their hosts launch late where they idle for lack of launches longer than the others, by 60 % of these delays.
    Where a whole host is late by as much, and by half of the largest delays, it is named instead; saving: by how much.
    """
    if (evidence.n_ranks == 1 and not evidence.has_absent_ranks) or not evidence.has_comm:
        return None
    rows = {row["rank"]: row for row in evidence.stragglers.to_pylist() if row["lateness_ns"] is not None}
    if not rows:
        return NotJudged(*WAITING_UNKNOWN)
    starts = evidence.all_steps["start_ns"]
    began = evidence.all_steps.filter(pc.equal(starts, pc.min(starts)))["step"]
    if set(evidence.steps["step"].to_pylist()) == set(began.to_pylist()):
        return NotJudged(
            "the only step of the figures holds the capture's start, which ranks reach at different times",
            f"{MORE_STEPS}, each in an NVTX range",
        )
    met = own_lateness(evidence.collectives)
    n_meeting = len(met["step"].filter(pc.is_valid(met["late_by_ns"])).unique())
    n_steps = evidence.summary["n_summary_steps"]
    node = late_node(evidence.collectives, evidence.hosts, evidence.clock_error_ns)
    # The largest single delay of each step that exceeds clock error.
    by_step = met.filter(met["is_late_significant"]).group_by("step", use_threads=False)
    largest = by_step.aggregate([("late_by_ns", "max")])["late_by_ns_max"].to_numpy()
    if node and not (_is_often_late(evidence, node.late_ns, n_meeting) and 2 * node.late_ns.sum() >= largest.sum()):
        node = None
    if node or not _is_often_late(evidence, largest, n_meeting):
        is_known = met.num_rows or len(evidence.collectives["collective"].unique()) == 1 or evidence.has_communicators
        nobody = None if is_known else NotJudged(_STAGES_NOT_KNOWN, WITH_CALLS)
        return _of_node(node, evidence, n_meeting) if node else nobody
    held_up = held_up_by_step(evidence.collectives, evidence.steps)
    total = (pc.sum(held_up["held_up_ns"]).as_py() or 0) / n_steps if n_steps else 0.0
    noticeable = _NOTICEABLE * (evidence.mean("wall_ns") or 0.0)
    alone = held_up.filter(held_up["is_alone"])
    long = alone.filter(pc.greater_equal(alone["held_up_ns"], noticeable))
    parts = _per_step(alone, "held_up_ns", n_steps)
    named = [rank for rank, part in parts.items() if part >= max(noticeable, _LEAST_PART * total)] or [*parts][:1]
    if not named:
        return None
    steps_of = {rank: long.filter(pc.equal(long["rank"], rank))["step"].to_numpy() for rank in named}
    worst, least = named[0], max(noticeable, _LEAST_BEHIND * total)
    behind = {rank: ns for rank, ns in _behind(met, n_steps).items() if ns >= least and rank not in named}
    phase, phase_ns, is_idle = _longer_phase(evidence, worst, steps_of[worst])
    where = f", mostly {'idle ' * is_idle}in {phase}" if phase and len(named) == 1 and not behind else ""
    of_named = {rank: parts[rank] for rank in named}
    late_ns = 0.0 if where or behind or evidence.is_pipeline else launched_late_ns(evidence, steps_of)
    is_by_host = late_ns >= _MOSTLY * n_steps * sum(of_named.values())
    host = f", whose host{' launches' if len(named) == 1 else 's launch'} late" if is_by_host else ""
    as_host = f": {'its host launches' if len(named) == 1 else 'hosts launch'} late" if is_by_host else ""
    title, action = _words(of_named, behind, steps_of, total, n_meeting, are_all=len(named) == evidence.n_ranks)
    earlier, late_before = _late_before(evidence, worst, total * n_steps)
    saving_by_part = _parts(evidence, _delay_ns(met, held_up, evidence), has_bubble=evidence.is_pipeline)
    compare = _ADVICE.get(phase or "", _COMPARE) if len([*named, *behind]) == 1 else _COMPARE_ALL
    figures = {
        "saving_ns_per_step_by_part": saving_by_part,
        "rank": worst,
        "phase": phase,
        "phase_excess_ns_per_step": phase_ns,
        "held_up_ns_per_step_by_rank": {str(rank): part for rank, part in of_named.items()},
        **({"late_behind_ns_per_step_by_rank": {str(rank): ns for rank, ns in behind.items()}} if behind else {}),
        "n_steps_held_up_by_rank": {str(rank): int(steps.size) for rank, steps in steps_of.items()},
        "held_up_steps_by_rank": {str(rank): ranges(steps.tolist()) for rank, steps in steps_of.items()},
        **({"launched_late_ns_per_step": late_ns / n_steps} if host else {}),
        **late_before,
        "lateness_ns_per_step": rows[worst]["lateness_ns"] / n_steps,
        "n_steps_held_up": int(steps_of[worst].size),
        "n_steps_with_collectives": n_meeting,
        **{name: rows[worst][name] for name in ("n_arrived_last", "wait_caused_ns")},
    }
    title += where + host + evidence.waited_in + earlier
    advice = _LAUNCH_SOONER * bool(host) + compare
    return Finding(title, action + where + as_host, advice, sum(saving_by_part.values()), figures)


def _late_before(evidence: Evidence, rank: int, delays_ns: float) -> tuple[str, dict[str, int]]:
    """Tell by how much later than all others a rank began the first step of the figures, where that is a tenth of all delays."""
    first, is_own = pc.min(evidence.steps["step"]).as_py(), pc.field("rank") == rank
    of_first = evidence.steps.filter(pc.field("step") == first)
    own, others = (pc.max(of_first.filter(rows)["start_ns"]).as_py() for rows in (is_own, ~is_own))
    if evidence.is_pipeline or own - others < _LEAST_PART * delays_ns:  # stages begin one after the other by design
        return "", {}
    # No share: one late start is in the delays of several collectives.
    return f", in part because rank {rank} began step {first} late", {"late_before_first_step_ns": own - others}


def _parts(evidence: Evidence, delays: float, *, has_bubble: bool) -> dict[str, float]:
    """Return what late ranks can give at most, by part: see `straggler`."""
    names = ("wall_ns", "compute_ns", "idle_ns", "exposed_comm_ns", "exposed_wait_ns")
    wall, compute, idle, exposed, exposed_wait = evidence.columns(*names)
    slowed = _slowed_by_hidden_waits(evidence)
    shortest = evidence.rows_of_most(exposed_wait - wall)
    of_window = {} if has_bubble else evidence.parts_of(shortest, exposed_wait=exposed_wait)
    beside_compute = evidence.parts_of(
        evidence.rows_of_most(-compute), exposed_wait=exposed_wait, slowed_by_waiting=slowed, idle=idle,
        exposed_transfer=exposed - exposed_wait, exposed_copies=wall - compute - exposed - idle,
    )  # fmt: skip
    most = max({"delays": delays}, of_window, key=lambda parts: sum(parts.values()))
    return min(most, beside_compute, key=lambda parts: sum(parts.values()))


def _room_ns(evidence: Evidence) -> Float64:
    """Return of each step what lateness can take: its time less the least compute of a rank, without what hidden waiting slowed."""
    wall, compute = evidence.columns("wall_ns", "compute_ns")
    least = evidence.rows_of_most(-compute)
    return evidence.most(wall) - compute[least] + _slowed_by_hidden_waits(evidence)[least]


def _slowed_by_hidden_waits(evidence: Evidence) -> Float64:
    wait, exposed_wait, hidden = evidence.columns("wait_ns", "exposed_wait_ns", "overlap_compute_ns")
    return evidence.slowed_ns(np.minimum(wait - exposed_wait, hidden), is_most=True)


def _delay_ns(late: pa.Table, held_up: pa.Table, evidence: Evidence) -> float:
    """Return by how much a step is longer for ranks that come late, the mean over steps.

    Of each step the most of a rank, no more than what is waited for in all, nor than `_room_ns`.
    """
    numbers = np.unique(evidence.steps["step"].to_numpy())
    waited, delays = np.zeros((2, numbers.size))
    np.add.at(waited, np.searchsorted(numbers, held_up["step"].to_numpy()), held_up["held_up_ns"].to_numpy())
    rows = late.filter(pc.is_valid(late["wait_ns"]))
    comm = pc.fill_null(rows["comm_id"].cast(pa.string()), "").combine_chunks().dictionary_encode().indices.to_numpy()
    names = ("step", "rank", "start_ns", "end_ns", "wait_ns", "held_up_ns")
    step, rank, start, end, wait, held_up = (rows[name].to_numpy() for name in names)
    order = np.lexsort((comm, start + wait, step))  # by when the last of the ranks comes
    keys = np.stack((step, comm, start + wait))[:, order]
    is_first = np.append(True, (np.diff(keys, axis=1) != 0).any(axis=0))[: order.size]
    collective, first = np.cumsum(is_first) - 1, np.flatnonzero(is_first)
    held_up = np.add.reduceat(held_up[order], first)[collective] if order.size else held_up
    place = places_in_runs(keys[0, first])[collective]  # in its step
    steps, row = np.unique(keys[0], return_inverse=True)
    ranks, column = np.unique(rank[order], return_inverse=True)
    start, until = start[order], np.minimum(start + wait, end)[order]
    delay, waited_until = np.zeros((2, steps.size, ranks.size), np.int64)
    turn = np.argsort(place, kind="stable")
    # In turn, a collective delays its ranks by the most of what each was delayed by before and waits in it: groups that wait
    # side by side for different ranks count once, and so does a rank for which several groups wait.
    for own in np.split(turn, run_starts(place[turn])[1:]):
        at = row[own], column[own]
        waits = np.maximum(until[own] - np.maximum(start[own], waited_until[at]), 0)
        begins = run_starts(collective[own])
        most = np.maximum.reduceat(delay[at] + np.minimum(waits, held_up[own]), begins) if own.size else waits
        delay[at] = np.repeat(most, np.diff(begins, append=own.size))
        waited_until[at] = np.maximum(waited_until[at], until[own])
    delays[np.searchsorted(numbers, steps)] = delay.max(axis=1, initial=0)
    return float(np.minimum(np.minimum(delays, waited), _room_ns(evidence)).mean())


def _of_node(node: LateNode, evidence: Evidence, n_meeting: int) -> Finding:
    """Name a host all of whose ranks are late alike; it is late once a step, whatever communicators wait for it."""
    late_ns = float(node.late_ns.sum() / evidence.summary["n_summary_steps"])
    figures = {"node": node.host, "ranks": list(node.ranks), "node_late_ns_per_step": late_ns}
    steps = {"n_steps_held_up": int(node.late_ns.size), "n_steps_with_collectives": n_meeting}
    title = f"the others wait for {node.text}, all of it late alike{evidence.waited_in}"
    parts = _parts(evidence, late_ns, has_bubble=True)
    figures |= {"saving_ns_per_step_by_part": parts, **steps}
    return Finding(title, f"{node.text} makes the others wait", _COMPARE_NODE, sum(parts.values()), figures)


def _is_often_late(evidence: Evidence, largest: Int64, n_meeting: int) -> bool:
    wall = evidence.mean("wall_ns") or 0.0
    least = _LEAST_SHARE if n_meeting >= FEW_STEPS else _LEAST_SHARE_OF_FEW
    n_steps = evidence.summary["n_summary_steps"]
    is_large = n_steps and largest.sum() >= least * wall * n_steps
    return bool(is_large and 2 * np.count_nonzero(largest >= _NOTICEABLE * wall) > n_meeting)


def _words(
    parts: Mapping[int, float], behind: Mapping[int, float], steps_of: Mapping[int, Int64], total: float, n_steps: int,
    *, are_all: bool,
) -> tuple[str, str]:  # fmt: skip
    """Name the ranks, in a title and in an action; in the title of several each one's part and in which steps."""
    names = [*parts, *behind]
    who = f"ranks {listed(names)} make" if len(names) > 1 else f"rank {names[0]} makes"
    if len(names) > _MOST_NAMED:
        who = f"{len(names)} ranks {'' if behind else 'in turn '}make"
    which = {rank: f"{one.size} of {n_steps} steps: {few(ranges(one.tolist()), 3)}" for rank, one in steps_of.items()}
    shares = listed(f"{rank} ({100 * part / total:.0f} % of it, in {which[rank]})" for rank, part in parts.items())
    awaited = f"ranks {shares}" if len(parts) > 1 else f"rank {names[0]}"
    then = f", and then for {', '.join(map(str, behind))}" if behind else ""
    if are_all:
        return f"ranks wait for each other, for {awaited.removeprefix('ranks ')}", f"{who} each other wait"
    return f"the others wait for {awaited}{then}", f"{who} the others wait"


def _behind(late: pa.Table, n_steps: int) -> dict[int, float]:
    """Return how much later than the first ranks come that are not the last, of each step the most; the latest first."""
    rows = late.filter(pc.greater(late["wait_ns"], 0))  # the last is told of already
    by = pc.subtract(pc.subtract(rows["arrival_skew_ns"], rows["wait_ns"]), rows["inherited_ns"])
    rows = rows.append_column("late_ns", by)
    by_step = rows.group_by(["rank", "step"], use_threads=False).aggregate([("late_ns", "max")])
    return _per_step(by_step, "late_ns_max", n_steps)


def _per_step(rows: pa.Table, column: str, n_steps: int) -> dict[int, float]:
    totals = rows.group_by("rank", use_threads=False).aggregate([(column, "sum")]).to_pylist()
    totals.sort(key=lambda row: (-row[f"{column}_sum"], row["rank"]))
    return {row["rank"]: row[f"{column}_sum"] / n_steps for row in totals}


def _longer_phase(evidence: Evidence, rank: int, steps: Int64) -> tuple[str | None, float | None, bool]:
    """Return the phase that has 60 % of what this rank took longer than the others in those steps, by how much, and whether its device idles for half of it; else None."""
    held = pc.field("step").isin(pa.array(steps))
    phases, windows = evidence.phases.filter(held), evidence.steps.filter(held)
    # Time on the device beside exposed communication, and idle time; for all phases on the host where a rank's is not known.
    spent = pc.add(pc.subtract(phases["device_ns"], pc.fill_null(phases["exposed_comm_ns"], 0)), phases["idle_ns"])
    is_device = not spent.null_count
    if not is_device:
        spent = phases["host_ns"]
    more = {}
    for phase in sorted(phases["phase"].unique().to_pylist()):
        of_phase = pc.equal(phases["phase"], phase)
        more[phase] = excess(spent.filter(of_phase), pc.equal(phases["rank"], rank).filter(of_phase))
    input_ns = 0.0
    if is_device:
        spent = pc.subtract(windows["wall_ns"], pc.fill_null(windows["exposed_comm_ns"], 0))
        is_own = pc.equal(windows["rank"], rank)
        more[_OUTSIDE] = excess(spent, is_own) - sum(more.values())
        input_ns = max(excess(pc.fill_null(windows["idle_input_ns"], 0), is_own), 0.0)
    longer = sum(max(one, 0.0) for one in more.values())
    # What ends a gap may be forward's although the host was loading data: that is no time of forward.
    if "data" in more and input_ns > max(more["data"], _MOSTLY * longer):
        return "data", input_ns, False
    phase = max(more, key=more.__getitem__, default=_OUTSIDE)
    own = more.get(phase, 0.0) - (0.0 if phase == "data" else input_ns)
    # Where its device idles and its host is shorter in the phase, the host had fallen behind before.
    in_phase = phases.filter(pc.equal(phases["phase"], phase))
    idle, host = (excess(in_phase[name], pc.equal(in_phase["rank"], rank)) for name in ("idle_ns", "host_ns"))
    is_idle = is_device and 2 * idle > own
    if (is_idle and host < 0) or phase == _OUTSIDE or own <= _MOSTLY * longer:
        return None, None, False
    return phase, own, is_idle


@dataclass(frozen=True)
class LateNode:
    """The host that is the latest in most steps."""

    host: str
    ranks: tuple[int, ...]
    late_ns: Int64  # of each step in which it is the latest: by how much its first rank comes after all others' last

    @property
    def text(self) -> str:
        """Name it and its ranks."""
        return f"node {printable(self.host)} (ranks {listed(ranges(self.ranks))})"


def late_node(collectives: pa.Table, hosts_of: Mapping[int, str], clock_error_ns: int | None) -> LateNode | None:
    """Return the host (by rank) that is late by the most in all; None for none, where hosts have one rank, or clocks are not compared.

    A rank is late in a collective by what lies between the last rank of the other hosts there and the first of its own, in
    a step by the most of that, and its host by the least of its ranks, beyond the clocks' error.
    """
    hosts = sorted(set(hosts_of.values()))
    if len(hosts) <= 1 or clock_error_ns is None:
        return None
    rows = own_lateness(collectives.filter(pc.is_valid(collectives["wait_ns"])))
    rows = rows.filter(pc.equal(rows["inherited_ns"], 0))  # others are kept waiting by another stage
    if not rows.num_rows or not set(rows["rank"].unique().to_pylist()) <= set(hosts_of):
        return None
    rank, start = rows["rank"].to_numpy(), rows["start_ns"].to_numpy()
    numbers = np.array(sorted(hosts_of), np.int64)
    host = np.array([hosts.index(hosts_of[number]) for number in numbers.tolist()])[np.searchsorted(numbers, rank)]
    group = pc.fill_null(rows["comm_id"].cast(pa.string()), "").combine_chunks().dictionary_encode().indices.to_numpy()
    key = np.stack((rows["step"].to_numpy(), group, start + rows["wait_ns"].to_numpy()))
    met = np.unique(key, axis=1, return_inverse=True)[1].ravel()
    first, last = np.full((2, int(met.max()) + 1, len(hosts)), _FAR)
    np.minimum.at(first, (met, host), start)
    np.minimum.at(last, (met, host), -start)
    first, last = np.where(first == _FAR, -_FAR, first), -last
    each, latest = np.arange(len(first)), first.argmax(axis=1)
    last[each, latest] = -_FAR
    before = last.max(axis=1)
    late = np.where(before == -_FAR, 0, first[each, latest] - np.maximum(before, -_FAR // 2))
    late_ns = np.where((host == latest[met]) & (late[met] > clock_error_ns), late[met], 0)
    by_rank = pa.table({"step": rows["step"], "host": host, "rank": rank, "late_ns": late_ns})
    by_rank = by_rank.group_by(["step", "host", "rank"], use_threads=False).aggregate([("late_ns", "max")])
    by_host = by_rank.group_by(["step", "host"], use_threads=False)
    by_host = by_host.aggregate([("late_ns_max", "min"), ("rank", "count")])
    of_host, delay = by_host["host"].to_numpy(), by_host["late_ns_max_min"].to_numpy()
    n_ranks = np.array([sum(name == one for one in hosts_of.values()) for name in hosts])
    delay = np.where((by_host["rank_count"].to_numpy() == n_ranks[of_host]) & (n_ranks[of_host] > 1), delay, 0)
    totals = np.bincount(of_host, delay, len(hosts))
    if not totals.any():
        return None
    name = hosts[int(totals.argmax())]
    ranks = tuple(number for number in numbers.tolist() if hosts_of[number] == name)
    return LateNode(name, ranks, delay[(of_host == totals.argmax()) & (delay > 0)])


RULES: Rules = {straggler: OF_COMM}
