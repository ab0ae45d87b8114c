"""How late ranks come to their collectives, whose lateness it is, and who is named for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from nsyspipe.analysis.delays import without_passed_on
from nsyspipe.analysis.launching import MIN_SLOWER_SHARE
from nsyspipe.analysis.steps import FEW_STEPS
from nsyspipe.analysis.traffic import own_lateness, sum_held_up
from nsyspipe.findings.host import excess
from nsyspipe.findings.model import WAITING_UNKNOWN, Evidence, NotJudged
from nsyspipe.model.names import listed, printable, ranges
from nsyspipe.model.problems import MORE_STEPS
from nsyspipe.model.table import Int64

_STAGES_NOT_KNOWN = (
    "ranks that send to each other may wait by design, and without the calls of NCCL it is unknown "
    "which do"
)
_CAPTURE_START = (
    "the only step used contains the start of the capture, which ranks reach at different times"
)
_FAR = 2**62


class StragglerLimits(Struct, frozen=True):
    """From where on ranks that come late are a finding, and who is named."""

    # The largest delays of all steps together, of step time: less than this is within what steps
    # vary by.
    min_share: float = 0.03
    # The same of one step or two: only a large delay in so few steps is no chance.
    min_share_of_few_steps: float = 0.10
    # A delay that counts, of step time: most steps with collectives have one, and so has each rank
    # that is named.
    noticeable_share: float = 0.01
    # What a rank that is named causes at least of all delays: less is hardly worth a look.
    min_part_of_delays: float = 0.10
    # How late, of all delays, a rank behind the last comes that the others wait for once the last
    # is mended.
    min_part_behind: float = 0.25
    # How much longer than the others' a late rank's launching or computing takes, of step time,
    # where launching decides how long steps take: ranks that are not slower in either are late only
    # because their capture began late.
    min_slower_share: float = MIN_SLOWER_SHARE


LIMITS = StragglerLimits()


class Lateness(Struct, frozen=True):
    """What ranks are late by themselves."""

    collectives: pa.Table  # as `own_lateness` returns them
    own: pa.Table  # the same without what ranks pass on
    held_up: (
        pa.Table
    )  # of all ranks and steps, as `held_up_by_step` has it, without what is passed on
    largest_ns: Int64  # of each step with one the largest single delay beyond clock error
    n_meeting: int  # steps with matched collectives
    n_steps: int

    @property
    def total_ns_per_step(self) -> float:
        """How long the others waited in all, per step."""
        return (
            (pc.sum(self.held_up["held_up_ns"]).as_py() or 0) / self.n_steps
            if self.n_steps
            else 0.0
        )


class LateRanks(Struct, frozen=True):
    """The ranks that make the others wait, those that cause most first."""

    # Per step how long the others wait for each. Nothing where all of them are in `no_slower_ns`.
    delays_ns: Mapping[int, float]
    behind_ns: Mapping[int, float]  # of ranks that come behind the last: per step how late they are
    steps_of: Mapping[
        int, Int64
    ]  # the steps in which each is waited for noticeably, of `no_slower_ns` too
    # Of ranks that are waited for too, though they launch and compute no slower than the others,
    # the same as `delays_ns`.
    no_slower_ns: Mapping[int, float] = field(default_factory=dict)

    @property
    def worst(self) -> int:
        """The rank that the others wait for most."""
        return next(iter(self.delays_ns))

    @property
    def n_named(self) -> int:
        """How many ranks are named in all."""
        return len(self.delays_ns) + len(self.behind_ns)


class LateNode(Struct, frozen=True):
    """The host that is the latest in most steps."""

    host: str
    ranks: tuple[int, ...]
    # of each step in which it is the latest: by how much its first rank comes after all others'
    # last
    late_ns: Int64

    @property
    def text(self) -> str:
        """Name it and its ranks."""
        return f"node {printable(self.host)} (ranks {listed(ranges(self.ranks))})"


Culprit = LateRanks | LateNode | NotJudged | None


def why_waiting_is_unknown(evidence: Evidence) -> NotJudged | None:
    """Return why nobody can tell who waits for whom; None where it is known."""
    is_lateness_known = pc.any(pc.is_valid(evidence.stragglers["lateness_ns"])).as_py()
    # Where only stages of a pipeline meet, waiting is known though lateness is not.
    is_waiting_known = pc.any(pc.is_valid(evidence.stragglers["wait_ns"])).as_py()
    if not is_lateness_known and not is_waiting_known:
        return WAITING_UNKNOWN
    starts = evidence.all_steps["start_ns"]
    began = evidence.all_steps.filter(pc.equal(starts, pc.min(starts)))["step"]
    if set(evidence.steps["step"].to_pylist()) == set(began.to_pylist()):
        return NotJudged(_CAPTURE_START, f"{MORE_STEPS}, each in an NVTX range")
    return None


def measure_lateness(evidence: Evidence) -> Lateness:
    """Measure what each rank is late by itself in the summary steps."""
    collectives = own_lateness(evidence.collectives)
    own = without_passed_on(collectives)
    by_step = own.filter(own["is_late_significant"]).group_by("step", use_threads=False)
    largest_ns = by_step.aggregate([("late_by_ns", "max")])["late_by_ns_max"].to_numpy()
    n_meeting = len(collectives["step"].filter(pc.is_valid(collectives["late_by_ns"])).unique())
    held_up = sum_held_up(own, evidence.steps)
    return Lateness(
        collectives, own, held_up, largest_ns, n_meeting, evidence.summary["n_summary_steps"]
    )


def find_culprit(evidence: Evidence, lateness: Lateness) -> Culprit:
    """Return who makes the others wait: a whole host, or ranks; None for nobody, or why it cannot be told."""
    node = late_node(evidence.collectives, evidence.hosts, evidence.clock_error_ns)
    if node and _is_node_to_blame(evidence, lateness, node):
        return node
    if not _is_often_late(evidence, lateness, lateness.largest_ns):
        has_one_collective = len(evidence.collectives["collective"].unique()) == 1
        is_known = lateness.collectives.num_rows or has_one_collective or evidence.has_communicators
        return None if is_known else NotJudged(_STAGES_NOT_KNOWN, evidence.payload_fix)
    late = _late_ranks(evidence, lateness)
    return late if late is None or not evidence.is_launch_bound else _slower_ranks(evidence, late)


def _is_node_to_blame(evidence: Evidence, lateness: Lateness, node: LateNode) -> bool:
    """Tell whether a host is often late and has most of the delays, not only because its capture began late."""
    is_most = 2 * node.late_ns.sum() >= lateness.largest_ns.sum()
    if not is_most or not _is_often_late(evidence, lateness, node.late_ns):
        return False
    return not evidence.is_launch_bound or _is_slower(evidence, *node.ranks)


def _is_often_late(evidence: Evidence, lateness: Lateness, delays_ns: Int64) -> bool:
    """Tell whether delays, one of each step at most, are large together and noticeable in most steps with collectives."""
    wall_ns = evidence.mean("wall_ns") or 0.0
    is_few = lateness.n_meeting < FEW_STEPS
    min_share = LIMITS.min_share_of_few_steps if is_few else LIMITS.min_share
    is_large = lateness.n_steps and delays_ns.sum() >= min_share * wall_ns * lateness.n_steps
    n_noticeable = np.count_nonzero(delays_ns >= LIMITS.noticeable_share * wall_ns)
    return bool(is_large and 2 * n_noticeable > lateness.n_meeting)


def _late_ranks(evidence: Evidence, lateness: Lateness) -> LateRanks | None:
    """Return the ranks whose own delays are large enough to be named; None for none."""
    noticeable_ns = LIMITS.noticeable_share * (evidence.mean("wall_ns") or 0.0)
    total_ns = lateness.total_ns_per_step
    alone = lateness.held_up.filter(lateness.held_up["is_alone"])
    of_ranks = _per_step(alone, "held_up_ns", lateness.n_steps)
    least_ns = max(noticeable_ns, LIMITS.min_part_of_delays * total_ns)
    named = [rank for rank, delay_ns in of_ranks.items() if delay_ns >= least_ns] or [*of_ranks][:1]
    if not named:
        return None
    long = alone.filter(pc.greater_equal(alone["held_up_ns"], noticeable_ns))
    least_behind_ns = max(noticeable_ns, LIMITS.min_part_behind * total_ns)
    behind = {
        rank: late_ns
        for rank, late_ns in _behind(lateness.own, lateness.n_steps).items()
        if late_ns >= least_behind_ns and rank not in named
    }
    steps_of = {
        rank: long.filter(pc.equal(long["rank"], rank))["step"].to_numpy() for rank in named
    }
    return LateRanks({rank: of_ranks[rank] for rank in named}, behind, steps_of)


def _slower_ranks(evidence: Evidence, late: LateRanks) -> LateRanks:
    """Return late ranks apart by whether they launch or compute slower than the others.

    Ranks that are no slower, and hold up only steps in which a slower one does too, are left out:
    they may pass its delays on.

    Where launching decides how long steps take, a rank whose capture began later than another's is
    behind it for many steps without being slower. The other one's host is ahead of its device, and
    loses that lead only as far as it is slower.
    """
    is_slower = {rank: _is_slower(evidence, rank) for rank in (*late.delays_ns, *late.behind_ns)}
    steps_of_slower = [late.steps_of[rank] for rank in late.delays_ns if is_slower[rank]]
    explained = np.concatenate([np.empty(0, np.int64), *steps_of_slower])
    no_slower_ns = {
        rank: delay_ns
        for rank, delay_ns in late.delays_ns.items()
        if not is_slower[rank]
        and (not steps_of_slower or np.setdiff1d(late.steps_of[rank], explained).size)
    }
    return LateRanks(
        delays_ns={rank: delay_ns for rank, delay_ns in late.delays_ns.items() if is_slower[rank]},
        behind_ns={rank: late_ns for rank, late_ns in late.behind_ns.items() if is_slower[rank]},
        steps_of=late.steps_of,
        no_slower_ns=no_slower_ns,
    )


def _is_slower(evidence: Evidence, *ranks: int) -> bool:
    """Tell whether ranks launch or compute slower than the others."""
    steps = evidence.steps
    is_own = pc.is_in(steps["rank"], value_set=pa.array(ranks, steps.schema.field("rank").type))
    slower_ns = (excess(steps[name], is_own) for name in ("host_launch_ns", "compute_ns"))
    return max(slower_ns) >= LIMITS.min_slower_share * (evidence.mean("wall_ns") or 0.0)


def with_slow_hosts(evidence: Evidence, late: Sequence[int]) -> list[int]:
    """Return the late ranks that launch slower than each rank that is not late, but compute no slower; none unless `is_launch_bound`.

    Than each, since stages of a pipeline launch and compute differently by design.
    """
    if not evidence.is_launch_bound:
        return []
    least_ns = LIMITS.min_slower_share * (evidence.mean("wall_ns") or 0.0)
    launch, compute = (
        _above_others(evidence, name, late) for name in ("host_launch_ns", "compute_ns")
    )
    return [rank for rank in launch if launch[rank] >= least_ns > compute[rank]]


def _above_others(evidence: Evidence, column: str, late: Sequence[int]) -> dict[int, float]:
    """Return how much more each late rank spends per step than any that is not late; nothing where all are late."""
    rows = evidence.steps.group_by("rank", use_threads=False).aggregate([(column, "mean")])
    means = dict(zip(rows["rank"].to_pylist(), rows[f"{column}_mean"].to_pylist(), strict=True))
    others = [mean or 0.0 for rank, mean in means.items() if rank not in late]
    return {rank: (means[rank] or 0.0) - max(others) for rank in late} if others else {}


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


def late_node(
    collectives: pa.Table, hosts_of: Mapping[int, str], clock_error_ns: int | None
) -> LateNode | None:
    """Return the host (by rank) that is late by the most in all; None for none, where hosts have one rank, or clocks are not compared.

    A rank is late in a collective by what lies between the last rank of the other hosts there and
    the first of its own, in a step by the most of that, and its host by the least of its ranks,
    beyond the clocks' error.
    """
    hosts = sorted(set(hosts_of.values()))
    if len(hosts) <= 1 or clock_error_ns is None:
        return None
    rows = own_lateness(collectives.filter(pc.is_valid(collectives["wait_ns"])))
    rows = rows.filter(
        pc.equal(rows["inherited_ns"], 0)
    )  # others are kept waiting by another stage
    if not rows.num_rows or not set(rows["rank"].unique().to_pylist()) <= set(hosts_of):
        return None
    rank = rows["rank"].to_numpy()
    start = rows["start_ns"].to_numpy()
    numbers = np.array(sorted(hosts_of), np.int64)
    host = np.array([hosts.index(hosts_of[number]) for number in numbers.tolist()])[
        np.searchsorted(numbers, rank)
    ]
    group = (
        pc.fill_null(rows["comm_id"].cast(pa.string()), "")
        .combine_chunks()
        .dictionary_encode()
        .indices.to_numpy()
    )
    key = np.stack((rows["step"].to_numpy(), group, start + rows["wait_ns"].to_numpy()))
    met = np.unique(key, axis=1, return_inverse=True)[1].ravel()
    first, last = np.full((2, int(met.max()) + 1, len(hosts)), _FAR)
    np.minimum.at(first, (met, host), start)
    np.minimum.at(last, (met, host), -start)
    first = np.where(first == _FAR, -_FAR, first)
    last = -last
    each = np.arange(len(first))
    latest = first.argmax(axis=1)
    last[each, latest] = -_FAR
    before = last.max(axis=1)
    late = np.where(before == -_FAR, 0, first[each, latest] - np.maximum(before, -_FAR // 2))
    late_ns = np.where((host == latest[met]) & (late[met] > clock_error_ns), late[met], 0)
    by_rank = pa.table({"step": rows["step"], "host": host, "rank": rank, "late_ns": late_ns})
    by_rank = by_rank.group_by(["step", "host", "rank"], use_threads=False).aggregate(
        [("late_ns", "max")]
    )
    by_host = by_rank.group_by(["step", "host"], use_threads=False)
    by_host = by_host.aggregate([("late_ns_max", "min"), ("rank", "count")])
    of_host = by_host["host"].to_numpy()
    delay = by_host["late_ns_max_min"].to_numpy()
    n_ranks = np.array([sum(name == one for one in hosts_of.values()) for name in hosts])
    delay = np.where(
        (by_host["rank_count"].to_numpy() == n_ranks[of_host]) & (n_ranks[of_host] > 1), delay, 0
    )
    totals = np.bincount(of_host, delay, len(hosts))
    if not totals.any():
        return None
    name = hosts[int(totals.argmax())]
    ranks = tuple(number for number in numbers.tolist() if hosts_of[number] == name)
    return LateNode(name, ranks, delay[(of_host == totals.argmax()) & (delay > 0)])
