"""Whether all ranks can be one process group where nothing names NCCL's communicators.

Without names, the k-th call of one rank is matched with the k-th call of every other rank. That is
right if all ranks form one group, as in DDP or FSDP. If the job has several groups, it is wrong
even where the counts agree.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import combinations
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from nsyspipe.analysis.traffic import DATA, SHARDED, TENSOR
from nsyspipe.model.table import Flags, Int32, Int64

# No rank leaves a collective before the last one has entered. But clocks differ a little, so a few
# ends may come before it. From this share of early ends on, the ranks are not one group.
MIN_EARLY_SHARE = 0.2
# All ranks of a collective leave it together, however far apart they entered. Ranks of different
# groups leave as far apart as they entered.
WIDE_START_SPREAD_NS = 100_000
MIN_WIDE_COLLECTIVES = 3
MIN_APART_SHARE = 0.5
MIN_UNEVEN_STEPS = 3
# The share of calls that end apart, of those that two ranks start far apart. A send may leave
# before its receiver comes, so some calls end apart even between partners.
MAX_APART_SHARE_OF_PARTNERS = 0.5
MIN_APART_SHARE_OF_STRANGERS = 2 / 3
# Layers make at least this many calls in forward and in backward of a step.
_MIN_CALLS_OF_LAYERS = 2


class Doubt(Enum):
    """Why the ranks of a run cannot be taken for one group."""

    TIMES = "collectives do not end at the same time on all ranks"
    COUNTS = "ranks call the same collective a different number of times in every step"
    PURPOSES = "collectives serve several kinds of parallelism"
    STAGES = "ranks look like stages of a pipeline, which send and receive in pairs"


class Calls(Struct, frozen=True):
    """The calls of one inferred communicator, per step and rank."""

    collective: str
    in_forward: float
    in_backward: float


def doubt_of_purposes(calls: Sequence[Calls], *, has_stages: bool) -> Doubt | None:
    """Return a doubt if the calls serve several kinds of parallelism.

    If all ranks were one group, they would serve one kind. Stages of a pipeline are a doubt by
    themselves. They send and receive in pairs, which are groups of two ranks.
    """
    if has_stages:
        return Doubt.STAGES
    purposes = {_purpose(call) for call in calls}
    purposes.discard(None)
    return Doubt.PURPOSES if len(purposes) > 1 else None


def _purpose(calls: Calls) -> str | None:
    """Return the kind of parallelism that calls certainly serve.

    Layers communicate several times in forward and in backward of a step. Gradients are reduced or
    scattered mostly in backward. None for all other calls, which may only count, average or check
    something.
    """
    if calls.collective not in {"all_reduce", "reduce_scatter"}:
        return None
    n_in_either_pass = min(calls.in_forward, calls.in_backward)
    if n_in_either_pass >= _MIN_CALLS_OF_LAYERS:
        return TENSOR
    is_mostly_backward = calls.in_forward < calls.in_backward
    is_of_gradients = calls.in_backward >= 1 and is_mostly_backward
    if not is_of_gradients:
        return None
    return DATA if calls.collective == "all_reduce" else SHARDED


def do_times_refute_one_group(matched: Sequence[Int64], starts: Int64, ends: Int64) -> bool:
    """Tell whether times of collectives show that not all ranks took part in each.

    `matched` are collectives that no rank leaves before all have entered, matched over all ranks,
    as `collectives.match_collectives` returns them. Two signs show that the ranks of a row did not
    take part in one collective. An operation is early: it ends before the last rank enters. Or
    ranks start far apart (wide), and also end far apart.
    """
    n_operations = 0
    n_early = 0
    n_wide = 0
    n_apart = 0
    # Each matrix has a collective per row, and a rank per column.
    for operations in matched:
        entered = starts[operations]
        left = ends[operations]
        last_entered = entered.max(axis=1, keepdims=True)
        is_early = left < last_entered
        spreads = _Spreads.of(entered, left)
        n_operations += operations.size
        n_early += int(np.count_nonzero(is_early))
        n_wide += spreads.n_wide
        n_apart += spreads.n_apart
    are_many_early = n_early > 0 and n_early >= MIN_EARLY_SHARE * n_operations
    are_enough_wide = n_wide >= MIN_WIDE_COLLECTIVES
    are_many_apart = n_apart >= MIN_APART_SHARE * n_wide
    return are_many_early or (are_enough_wide and are_many_apart)


class _Spreads(NamedTuple):
    """How far apart ranks start and end their calls."""

    n_wide: int  # calls that ranks start far apart
    n_apart: int  # of these, calls that the ranks also end apart

    @classmethod
    def of(cls, starts: Int64, ends: Int64) -> "_Spreads":
        """Count calls. The times have a row per call, and a column per rank."""
        # From the first rank to the last.
        start_spread = np.ptp(starts, axis=1)
        end_spread = np.ptp(ends, axis=1)
        is_wide = start_spread >= WIDE_START_SPREAD_NS
        # At least half as far apart as they started.
        ends_apart = 2 * end_spread >= start_spread
        n_wide = int(np.count_nonzero(is_wide))
        n_apart = int(np.count_nonzero(is_wide & ends_apart))
        return cls(n_wide, n_apart)


def do_counts_refute_one_group(step: Int64, rank: Int32, n_ranks: int) -> bool:
    """Tell whether ranks make different numbers of calls of one communicator in every step.

    Ranks of one group make all calls together, so such ranks are not one group. At least three
    steps are needed. `step` and `rank` have a value per call.
    """
    if not step.size:
        return False
    steps, place_of_step = np.unique(step, return_inverse=True)
    n_steps = steps.size
    # A cell is a step and a rank.
    cell = place_of_step * n_ranks + rank
    n_calls_of_cell = np.bincount(cell, minlength=n_steps * n_ranks)
    n_calls = n_calls_of_cell.reshape(n_steps, n_ranks)
    fewest = n_calls.min(axis=1)
    most = n_calls.max(axis=1)
    is_uneven: Flags = fewest != most
    return bool(n_steps >= MIN_UNEVEN_STEPS and is_uneven.all())


class CallTimes(Struct, frozen=True):
    """The calls of one inferred communicator, in order of start on each rank."""

    rank: Int32  # place of the rank in the run
    step: Int64
    start_ns: Int64
    end_ns: Int64


def groups_by_times(
    calls: CallTimes, groups: Sequence[tuple[int, ...]]
) -> dict[int, tuple[int, ...]] | None:
    """Return for each rank the only group that its calls can be of.

    None if a rank has no such group, or several. `groups` are all groups of the job. They have
    their ranks as `CallTimes.rank` does, as places in the run. A group is ruled out if the times of
    two of its ranks show that they did not take part in the same collectives. The calls are of
    collectives that no rank leaves before all have entered.
    """
    ranks = set(np.unique(calls.rank).tolist())
    possible_groups = []
    for group in groups:
        is_seen = len(group) > 1 and ranks.issuperset(group)
        if is_seen and _is_possible(calls, group):
            possible_groups.append(group)
    group_of_rank = {}
    for rank in ranks:
        groups_of_rank = [group for group in possible_groups if rank in group]
        if len(groups_of_rank) != 1:
            return None
        group_of_rank[rank] = groups_of_rank[0]
    return group_of_rank


def _is_possible(calls: CallTimes, group: tuple[int, ...]) -> bool:
    """Tell whether no pair of ranks of a group is contradicted."""
    pairs = combinations(group, 2)
    return not any(_do_times_refute_pair(calls, *pair) for pair in pairs)


def partners_by_times(calls: CallTimes) -> dict[int, int] | None:
    """Return for each rank the only rank that it sends to and receives from.

    A send may leave before its receiver comes, so a single call rules out no pair. But a receive
    ends with its send. So partners end most calls together, even calls that they start far apart.
    Other ranks also end these calls apart.

    None if that is not certain: each rank needs one partner, and all other ranks must be ruled out.
    """
    ranks = np.unique(calls.rank).tolist()
    partners: dict[int, list[int]] = {rank: [] for rank in ranks}
    for first_rank, second_rank in combinations(ranks, 2):
        apart_share = _measure_apart_share(calls, first_rank, second_rank)
        if apart_share is None or _is_undecided(apart_share):
            return None
        if apart_share < MAX_APART_SHARE_OF_PARTNERS:
            partners[first_rank].append(second_rank)
            partners[second_rank].append(first_rank)
    partner_of_rank = {}
    for rank, possible_partners in partners.items():
        if len(possible_partners) != 1:
            return None
        partner_of_rank[rank] = possible_partners[0]
    return partner_of_rank


def _is_undecided(apart_share: float) -> bool:
    """Tell whether times leave open if two ranks are partners."""
    return MAX_APART_SHARE_OF_PARTNERS <= apart_share < MIN_APART_SHARE_OF_STRANGERS


def _pair_calls(calls: CallTimes, first_rank: int, second_rank: int) -> Int64 | None:
    """Return the calls of two ranks in pairs: row k has the k-th call of each rank.

    None if the ranks make different numbers of calls in a step.
    """
    first_calls = np.flatnonzero(calls.rank == first_rank)
    second_calls = np.flatnonzero(calls.rank == second_rank)
    first_steps = calls.step[first_calls]
    second_steps = calls.step[second_calls]
    if not np.array_equal(first_steps, second_steps):
        return None
    return np.stack((first_calls, second_calls), axis=1)


def _measure_apart_share(calls: CallTimes, first_rank: int, second_rank: int) -> float | None:
    """Return the share of calls that end apart, of those that two ranks start far apart.

    None if too few start far apart.
    """
    pairs = _pair_calls(calls, first_rank, second_rank)
    if pairs is None:
        # Partners make the same number of calls in each step.
        return 1.0
    starts = calls.start_ns[pairs]
    ends = calls.end_ns[pairs]
    spreads = _Spreads.of(starts, ends)
    if spreads.n_wide < MIN_WIDE_COLLECTIVES:
        return None
    return spreads.n_apart / spreads.n_wide


def _do_times_refute_pair(calls: CallTimes, first_rank: int, second_rank: int) -> bool:
    """Tell whether two ranks cannot have made their k-th calls of each step together."""
    pairs = _pair_calls(calls, first_rank, second_rank)
    if pairs is None:
        return True
    return do_times_refute_one_group([pairs], calls.start_ns, calls.end_ns)
