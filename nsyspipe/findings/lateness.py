"""How late ranks come to their collectives, who causes the delays, and who is named for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from nsyspipe.analysis.delays import without_passed_on
from nsyspipe.analysis.launching import MIN_SLOWER_SHARE
from nsyspipe.analysis.steps import FEW_STEPS
from nsyspipe.analysis.traffic import own_lateness, sum_held_up
from nsyspipe.findings.late_node import LateNode, find_late_node
from nsyspipe.findings.model import (
    WAITING_UNKNOWN,
    Evidence,
    NotJudged,
    aggregate_by,
    fill_zero,
    select_rows,
)
from nsyspipe.model.problems import MORE_STEPS
from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import (
    CollectivesTable,
)

_STAGES_NOT_KNOWN = (
    "ranks that send to each other may wait by design, and without the calls of NCCL it is unknown "
    "which do"
)
_CAPTURE_START = (
    "the only step used contains the start of the capture, which ranks reach at different times"
)


class StragglerLimits(Struct, frozen=True):
    """From where on ranks that come late are a finding, and who is named."""

    # The largest delays of all steps together, as a share of step time. Less than this is within
    # the variation of steps.
    min_share: float = 0.03
    # The same for one or two steps. In so few steps, only a large delay is not due to chance.
    min_share_of_few_steps: float = 0.10
    # A delay that counts, as a share of step time. Most steps with collectives have one, and each
    # rank that is named has one on average.
    noticeable_share: float = 0.01
    # The part of all delays that each named rank causes. Less is hardly worth a look.
    min_part_of_delays: float = 0.10
    # How late a rank comes that is not the last, as a part of all delays. The others wait for such
    # a rank once the last one is no longer late.
    min_part_behind: float = 0.25
    # How much longer than on other ranks launching or computing takes, as a share of step time. It
    # counts if launching decides how long steps take: ranks that are not slower in either are late
    # only because their capture began late.
    min_slower_share: float = MIN_SLOWER_SHARE


LIMITS = StragglerLimits()


class Lateness(Struct, frozen=True):
    """How late ranks are by themselves."""

    # As `own_lateness` returns them.
    collectives: CollectivesTable
    # The same without delays that ranks only pass on.
    own_delays: pa.Table
    # How long others wait for each rank in each step, as `sum_held_up` returns it of own delays.
    held_up: pa.Table
    # The largest single delay beyond clock error of each step that has one.
    largest_ns: Int64
    # Only matched collectives count here.
    n_steps_with_collectives: int
    n_steps: int

    @property
    def total_ns_per_step(self) -> float:
        """How long ranks are waited for, per step: the sum over ranks."""
        if not self.n_steps:
            return 0.0
        held_up_ns = self.held_up["held_up_ns"]
        total_ns: int = pc.sum(held_up_ns).as_py() or 0
        return total_ns / self.n_steps


class LateRanks(Struct, frozen=True):
    """The ranks that make the others wait, in the order of their delays."""

    # How long the others wait for each rank per step. Empty if all of them are in `no_slower_ns`.
    delays_ns: Mapping[int, float]
    # How late ranks come per step that are late, but not the last.
    behind_ns: Mapping[int, float]
    # The steps in which each rank is waited for noticeably. Ranks of `no_slower_ns` are included.
    steps_of: Mapping[int, Int64]
    # Like `delays_ns`, of ranks that launch and compute no more slowly than the others.
    no_slower_ns: Mapping[int, float] = field(default_factory=dict)

    @property
    def worst(self) -> int:
        """The rank that the others wait for most."""
        return next(iter(self.delays_ns))

    @property
    def n_named(self) -> int:
        """The number of ranks that are named."""
        return len(self.delays_ns) + len(self.behind_ns)


# None: no rank and no host is late.
Culprit: TypeAlias = LateRanks | LateNode | NotJudged | None


def why_waiting_is_unknown(evidence: Evidence) -> NotJudged | None:
    """Return why it cannot be known who waits for whom; None if it is known."""
    is_lateness_known = _is_any_known(evidence.stragglers["lateness_ns"])
    # If only stages of a pipeline meet, waiting is known although lateness is not.
    is_waiting_known = _is_any_known(evidence.stragglers["wait_ns"])
    if not is_lateness_known and not is_waiting_known:
        return WAITING_UNKNOWN
    starts_ns = evidence.all_steps["start_ns"]
    is_earliest = pc.equal(starts_ns, pc.min(starts_ns))
    # The number of the step that began first on any rank.
    first_step = evidence.all_steps["step"].filter(is_earliest).to_pylist()
    used_steps = evidence.steps["step"].to_pylist()
    # In the first step of a capture, ranks also wait for those whose capture began later.
    is_only_first_step_used = set(used_steps) == set(first_step)
    if is_only_first_step_used:
        return NotJudged(_CAPTURE_START, f"{MORE_STEPS}, each in an NVTX range")
    return None


def _is_any_known(column: pa.ChunkedArray) -> bool:
    n_known: int = len(column) - column.null_count
    return n_known > 0


def measure_lateness(evidence: Evidence) -> Lateness:
    """Measure how late each rank is by itself in the summary steps."""
    collectives = own_lateness(evidence.collectives)
    # Without the delays that a rank only passes on from another rank.
    own_delays = without_passed_on(collectives)
    held_up = sum_held_up(own_delays, evidence.steps)
    beyond_clock_error = own_delays.filter(own_delays["is_late_significant"])
    by_step = beyond_clock_error.group_by("step", use_threads=False)
    largest = by_step.aggregate([("late_by_ns", "max")])
    # Lateness is known of operations that were matched with those of other ranks.
    is_matched = pc.is_valid(collectives["late_by_ns"])
    steps_with_matched = collectives["step"].filter(is_matched).unique()
    return Lateness(
        collectives=collectives,
        own_delays=own_delays,
        held_up=held_up,
        largest_ns=largest["late_by_ns_max"].to_numpy(),
        n_steps_with_collectives=len(steps_with_matched),
        n_steps=evidence.summary["n_summary_steps"],
    )


def find_culprit(evidence: Evidence, lateness: Lateness) -> Culprit:
    """Return who makes the others wait: a host that is to blame, otherwise ranks.

    The result is None if nobody is late often. It is a reason if that cannot be known.
    """
    node = find_late_node(evidence.collectives, evidence.hosts, evidence.clock_error_ns)
    if node and _is_node_to_blame(evidence, lateness, node):
        return node
    if not _is_often_late(evidence, lateness, lateness.largest_ns):
        if _are_stages_known(evidence, lateness):
            return None
        # Ranks may be stages that wait by design. Then delays do not show who is late.
        return NotJudged(_STAGES_NOT_KNOWN, evidence.payload_fix)
    late = _find_late_ranks(evidence, lateness)
    if late is not None and evidence.is_launch_bound:
        # If launching decides how long steps take, a rank can be late without being slower.
        return _separate_slower_ranks(evidence, late)
    return late


def _are_stages_known(evidence: Evidence, lateness: Lateness) -> bool:
    """Tell whether it is known which ranks are stages of a pipeline.

    It is known if some collectives are not between stages, if NCCL names its communicators, or if
    all operations are of one kind.
    """
    if lateness.collectives.num_rows or evidence.has_communicators:
        return True
    kinds = evidence.collectives["collective"].unique()
    return len(kinds) == 1


def _is_node_to_blame(evidence: Evidence, lateness: Lateness, node: LateNode) -> bool:
    """Tell whether a host is often late and has at least half of the delays.

    If launching decides how long steps take, the host also has to be slower than the other hosts.
    Otherwise it may be late only because its capture began late.
    """
    total_ns = lateness.largest_ns.sum()
    has_half = 2 * node.late_ns.sum() >= total_ns
    if not has_half or not _is_often_late(evidence, lateness, node.late_ns):
        return False
    if not evidence.is_launch_bound:
        return True
    return _is_slower(evidence, *node.ranks)


def _is_often_late(evidence: Evidence, lateness: Lateness, delays_ns: Int64) -> bool:
    """Tell whether the sum of delays is large, and most steps have a noticeable delay.

    `delays_ns` has at most one delay of each step. Only steps with collectives count.
    """
    if not lateness.n_steps:
        return False
    wall_ns = _mean_wall_ns(evidence)
    has_few_steps = lateness.n_steps_with_collectives < FEW_STEPS
    min_share = LIMITS.min_share_of_few_steps if has_few_steps else LIMITS.min_share
    min_total_ns = min_share * wall_ns * lateness.n_steps
    is_large = delays_ns.sum() >= min_total_ns
    is_noticeable = delays_ns >= LIMITS.noticeable_share * wall_ns
    is_in_most_steps = 2 * np.count_nonzero(is_noticeable) > lateness.n_steps_with_collectives
    return bool(is_large and is_in_most_steps)


def _mean_wall_ns(evidence: Evidence) -> float:
    return evidence.mean("wall_ns") or 0.0


def _find_late_ranks(evidence: Evidence, lateness: Lateness) -> LateRanks | None:
    """Return the ranks to name: those that delay the others most, and others that come late.

    A rank delays the others if it is the only last one. Ranks with large delays are named, or else
    the one with the largest delay. Other ranks are named if they come late, see `_measure_behind`.
    The result is None if no rank was ever the only last one.
    """
    all_delays_ns = lateness.total_ns_per_step
    noticeable_ns = LIMITS.noticeable_share * _mean_wall_ns(evidence)
    # In these rows, the rank was the only last one.
    alone = lateness.held_up.filter(lateness.held_up["is_alone"])
    delays_ns = _sum_per_step(alone, "held_up_ns", lateness.n_steps)
    if not delays_ns:
        return None
    min_delay_ns = max(noticeable_ns, LIMITS.min_part_of_delays * all_delays_ns)
    largest_first = [*delays_ns]
    delaying = _ranks_from(delays_ns, min_delay_ns) or largest_first[:1]
    behind_ns = _measure_behind(lateness.own_delays, lateness.n_steps)
    min_behind_ns = max(noticeable_ns, LIMITS.min_part_behind * all_delays_ns)
    behind = [rank for rank in _ranks_from(behind_ns, min_behind_ns) if rank not in delaying]
    is_noticeable = pc.greater_equal(alone["held_up_ns"], noticeable_ns)
    steps_of = _steps_of_ranks(alone.filter(is_noticeable), delaying)
    return LateRanks(_pick(delays_ns, delaying), _pick(behind_ns, behind), steps_of)


def _ranks_from(values_ns: Mapping[int, float], min_ns: float) -> list[int]:
    """Return the ranks whose value is not below a limit, in the order of the values."""
    return [rank for rank, value_ns in values_ns.items() if value_ns >= min_ns]


def _steps_of_ranks(rows: pa.Table, ranks: Iterable[int]) -> dict[int, Int64]:
    """Return for each of some ranks the steps of its rows."""
    steps_of = {}
    ranks_and_steps = rows.select(["rank", "step"])
    for rank in ranks:
        rows_of_rank = select_rows(ranks_and_steps, "rank", rank)
        steps_of[rank] = rows_of_rank["step"].to_numpy()
    return steps_of


def _pick(values: Mapping[int, float], ranks: Collection[int]) -> dict[int, float]:
    """Return the values of some ranks, in the order of the values."""
    return {rank: value for rank, value in values.items() if rank in ranks}


def _separate_slower_ranks(evidence: Evidence, late: LateRanks) -> LateRanks:
    """Separate late ranks by whether they launch or compute more slowly than the others.

    A rank that is no slower may only pass on the delays of a slower rank. So the rank is left out
    if each step that it holds up is also held up by a slower rank.

    If launching decides how long steps take, ranks can stay late for many steps without being
    slower: their captures began late. The hosts of the other ranks have launched ahead of their
    devices by then, and a host keeps this lead unless it is slower.
    """
    late_ranks = (*late.delays_ns, *late.behind_ns)
    slower = {rank for rank in late_ranks if _is_slower(evidence, rank)}
    no_slower = _unexplained_ranks(late, slower)
    delays_ns = _pick(late.delays_ns, slower)
    behind_ns = _pick(late.behind_ns, slower)
    no_slower_ns = _pick(late.delays_ns, no_slower)
    return LateRanks(delays_ns, behind_ns, late.steps_of, no_slower_ns=no_slower_ns)


def _unexplained_ranks(late: LateRanks, slower: Collection[int]) -> list[int]:
    """Return the late ranks that are not slower, and hold up a step that no slower rank holds up.

    If no slower rank holds up any step, all late ranks that are not slower are returned.
    """
    no_slower = [rank for rank in late.delays_ns if rank not in slower]
    late_and_slower = _pick(late.delays_ns, slower)
    if not late_and_slower:
        return no_slower
    explained_steps = np.concatenate([late.steps_of[rank] for rank in late_and_slower])
    unexplained_ranks = []
    for rank in no_slower:
        unexplained_steps = np.setdiff1d(late.steps_of[rank], explained_steps)
        if unexplained_steps.size:
            unexplained_ranks.append(rank)
    return unexplained_ranks


def _is_slower(evidence: Evidence, *ranks: int) -> bool:
    """Tell whether some ranks launch or compute more slowly than the others.

    The mean step of these ranks counts, and that of the others.
    """
    steps = evidence.steps
    rank_type = steps.schema.field("rank").type
    arrow_ranks = pa.array(ranks, rank_type)
    is_of_ranks = pc.is_in(steps["rank"], value_set=arrow_ranks)
    longer_launch_ns = mean_excess(steps["host_launch_ns"], is_of_ranks)
    longer_compute_ns = mean_excess(steps["compute_ns"], is_of_ranks)
    return max(longer_launch_ns, longer_compute_ns) >= _min_slower_ns(evidence)


def _min_slower_ns(evidence: Evidence) -> float:
    """Return how much longer launching or computing has to take on a slower rank."""
    return LIMITS.min_slower_share * _mean_wall_ns(evidence)


def mean_excess(values_ns: pa.ChunkedArray, is_of_rank: pa.ChunkedArray) -> float:
    """Return by how much the mean of a rank exceeds that of the others; 0 if either has no rows.

    The mean is over rows. `is_of_rank` tells which rows are of the rank.
    """
    is_of_others = pc.invert(is_of_rank)
    mean_of_rank = pc.mean(values_ns.filter(is_of_rank)).as_py()
    mean_of_others = pc.mean(values_ns.filter(is_of_others)).as_py()
    if mean_of_rank is None or mean_of_others is None:
        return 0.0
    excess_ns: float = mean_of_rank - mean_of_others
    return excess_ns


def ranks_with_slow_hosts(evidence: Evidence, late: Sequence[int]) -> list[int]:
    """Return the late ranks that launch more slowly than every rank that is not late.

    A late rank is left out if it also computes more slowly than every rank that is not late. These
    ranks are not averaged, since stages of a pipeline launch and compute differently by design. The
    result is empty unless launching decides how long steps take.
    """
    if not evidence.is_launch_bound:
        return []
    min_excess_ns = _min_slower_ns(evidence)
    longer_launch_ns = _excess_over_largest(evidence, "host_launch_ns", late)
    longer_compute_ns = _excess_over_largest(evidence, "compute_ns", late)
    slow_to_launch = _ranks_from(longer_launch_ns, min_excess_ns)
    return [rank for rank in slow_to_launch if longer_compute_ns[rank] < min_excess_ns]


def _excess_over_largest(evidence: Evidence, column: str, late: Sequence[int]) -> dict[int, float]:
    """Return how much more each late rank spends per step than any rank that is not late.

    Empty if all ranks are late.
    """
    means = aggregate_by(evidence.steps, "rank", column, "mean")
    means_ns = {rank: mean_ns or 0.0 for rank, mean_ns in means.items()}
    means_of_others = [mean_ns for rank, mean_ns in means_ns.items() if rank not in late]
    if not means_of_others:
        return {}
    largest_ns = max(means_of_others)
    return {rank: means_ns[rank] - largest_ns for rank in late}


def launched_late_ns(evidence: Evidence, steps_of: Mapping[int, Int64]) -> float:
    """Return how much longer ranks idle for late launches than the others, summed over ranks.

    `steps_of` has the steps that count for each rank. A rank that idles less counts as 0.
    """
    total_ns = 0.0
    for rank, steps in steps_of.items():
        is_in_steps = pc.field("step").isin(pa.array(steps))
        rows = evidence.steps.filter(is_in_steps)
        idle_ns = fill_zero(rows["idle_launch_ns"])
        is_of_rank = pc.equal(rows["rank"], rank)
        excess_ns = mean_excess(idle_ns, is_of_rank)
        # The excess is a mean over these steps.
        total_ns += steps.size * max(excess_ns, 0.0)
    return total_ns


def _measure_behind(own_delays: pa.Table, n_steps: int) -> dict[int, float]:
    """Return how late ranks come to collectives for which they are not the last, by rank.

    A rank is late by the time from the start of the first rank to its own start. What it inherited
    from other stages does not count. The latest time in each step counts, and the result is the
    mean over steps. The latest rank is first.
    """
    # The last rank of a collective does not wait.
    has_waited = pc.greater(own_delays["wait_ns"], 0)
    not_last = own_delays.filter(has_waited)
    # The skew is from the first start to the last start, and the wait from the rank's own start.
    after_first_ns = pc.subtract(not_last["arrival_skew_ns"], not_last["wait_ns"])
    late_ns = pc.subtract(after_first_ns, not_last["inherited_ns"])
    with_lateness = not_last.append_column("late_ns", late_ns)
    by_step = with_lateness.group_by(["rank", "step"], use_threads=False)
    latest = by_step.aggregate([("late_ns", "max")])
    return _sum_per_step(latest, "late_ns_max", n_steps)


def _sum_per_step(rows: pa.Table, column: str, n_steps: int) -> dict[int, float]:
    """Return the sum of a column for each rank, per step.

    The largest sum is first, and of equal ones the lowest rank.
    """
    totals = aggregate_by(rows, "rank", column, "sum")
    lowest_rank_first = sorted(totals)
    largest_first = sorted(lowest_rank_first, key=totals.__getitem__, reverse=True)
    return {rank: totals[rank] / n_steps for rank in largest_first}
