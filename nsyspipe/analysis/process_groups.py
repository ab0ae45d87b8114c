"""Whether all ranks can be one process group where nothing names NCCL's communicators.

Without names, the k-th call of one rank is matched with the k-th call of every other rank. That is
right if all ranks form one group, as in DDP or FSDP. If the job has several groups, it is wrong
even where the counts agree.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import combinations

import numpy as np
from msgspec import Struct

from nsyspipe.analysis.traffic import DATA, SHARDED, TENSOR
from nsyspipe.model.table import Flags, Int32, Int64

# No rank leaves a collective before the last one has entered. Clocks that are apart by a little put
# a few ends before it.
MIN_EARLY_SHARE = 0.2
# All ranks of a collective leave it together, however far apart they entered. Ranks of different
# groups leave as they entered.
WIDE_START_SPREAD_NS = 100_000
MIN_WIDE_COLLECTIVES = 3
MIN_APART_SHARE = 0.5
MIN_UNEVEN_STEPS = 3
# Of calls that two ranks start far apart: a send may leave before its receiver comes, so some end
# apart even of partners.
MAX_APART_SHARE_OF_PARTNERS = 0.5
MIN_APART_SHARE_OF_STRANGERS = 2 / 3
_MIN_LAYERS = (
    2  # calls of a step in forward, and in backward, from which on they are those of layers
)


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
    """Return a doubt if the calls serve more than one kind of parallelism, whose groups cannot all hold all ranks.

    Sends and receives between stages are a doubt by themselves: of three ranks or more, they join
    two at a time.
    """
    if has_stages:
        return Doubt.STAGES
    purposes = {_purpose(call) for call in calls} - {None}
    return Doubt.PURPOSES if len(purposes) > 1 else None


def _purpose(calls: Calls) -> str | None:
    """Return the kind of parallelism that calls surely serve; None for what may only count, average or check something."""
    is_of_layers = min(calls.in_forward, calls.in_backward) >= _MIN_LAYERS
    is_of_gradients = calls.in_backward >= 1 and calls.in_forward < calls.in_backward
    if calls.collective not in {"all_reduce", "reduce_scatter"}:
        return None
    if is_of_layers:
        return TENSOR
    if not is_of_gradients:
        return None
    return DATA if calls.collective == "all_reduce" else SHARDED


def is_contradicted_by_times(matched: Sequence[Int64], starts: Int64, ends: Int64) -> bool:
    """Tell whether the times of collectives, matched over all ranks, show that not all ranks took part in each.

    `matched` is as of `collectives.match_collectives`, of collectives that no rank leaves before all have
    entered.
    """
    n_operations = n_early = n_wide = n_apart = 0
    for rows in matched:
        entered = starts[rows]
        left = ends[rows]
        start_spread = np.ptp(entered, axis=1)
        end_spread = np.ptp(left, axis=1)
        is_wide = start_spread >= WIDE_START_SPREAD_NS
        n_operations += rows.size
        n_early += int(np.count_nonzero(left < entered.max(axis=1, keepdims=True)))
        n_wide += int(np.count_nonzero(is_wide))
        n_apart += int(np.count_nonzero(is_wide & (2 * end_spread >= start_spread)))
    is_often_early = n_early > 0 and n_early >= MIN_EARLY_SHARE * n_operations
    is_often_apart = n_wide >= MIN_WIDE_COLLECTIVES and n_apart >= MIN_APART_SHARE * n_wide
    return is_often_early or is_often_apart


def is_contradicted_by_counts(step: Int64, rank: Int32, n_ranks: int) -> bool:
    """Tell whether ranks make different numbers of calls of one communicator in every step, of three at least."""
    if not step.size:
        return False
    steps, place = np.unique(step, return_inverse=True)
    counts = np.bincount(place * n_ranks + rank, minlength=steps.size * n_ranks).reshape(
        steps.size, n_ranks
    )
    is_uneven: Flags = counts.min(axis=1) != counts.max(axis=1)
    return bool(steps.size >= MIN_UNEVEN_STEPS and is_uneven.all())


class CallTimes(Struct, frozen=True):
    """The calls of one inferred communicator, in order of start on each rank."""

    rank: Int32  # place of the rank in the run
    step: Int64
    start_ns: Int64
    end_ns: Int64


def groups_by_times(
    calls: CallTimes, groups: Sequence[tuple[int, ...]]
) -> dict[int, tuple[int, ...]] | None:
    """Return by rank the one of some groups that its calls can be of; None where a rank has no such group, or several.

    `groups` are all that there are, by the places of their ranks. A group is ruled out if the times
    of two of its ranks contradict that they took part in the same collectives. The calls are of
    collectives that no rank leaves early.
    """
    ranks = set(np.unique(calls.rank).tolist())
    possible = [
        group
        for group in groups
        if len(group) > 1 and ranks.issuperset(group) and _is_possible(calls, group)
    ]
    found = {rank: [group for group in possible if rank in group] for rank in ranks}
    if any(len(own) != 1 for own in found.values()):
        return None
    return {rank: own[0] for rank, own in found.items()}


def _is_possible(calls: CallTimes, group: tuple[int, ...]) -> bool:
    return not any(_is_pair_contradicted(calls, *pair) for pair in combinations(group, 2))


def partners_by_times(calls: CallTimes) -> dict[int, int] | None:
    """Return by rank the one other rank that it sends to and receives from; None where that is not certain.

    A send may leave before its receiver comes, so times alone contradict no pair. But a receive
    ends with its send: partners end most calls together, also those that they start far apart, and
    ranks that are not partners do not. Each rank needs one partner, and every other rank has to be
    shown to be none.
    """
    ranks = np.unique(calls.rank).tolist()
    partners: dict[int, list[int]] = {rank: [] for rank in ranks}
    for one, other in combinations(ranks, 2):
        apart_share = _apart_share(calls, one, other)
        if (
            apart_share is None
            or MAX_APART_SHARE_OF_PARTNERS <= apart_share < MIN_APART_SHARE_OF_STRANGERS
        ):
            return None
        if apart_share < MAX_APART_SHARE_OF_PARTNERS:
            partners[one].append(other)
            partners[other].append(one)
    if any(len(partner) != 1 for partner in partners.values()):
        return None
    return {rank: found[0] for rank, found in partners.items()}


def _apart_share(calls: CallTimes, one: int, other: int) -> float | None:
    """Return how many of the k-th calls of two ranks that start far apart also end apart; None of too few."""
    own, others = (np.flatnonzero(calls.rank == rank) for rank in (one, other))
    if not np.array_equal(calls.step[own], calls.step[others]):
        return 1.0  # partners make as many calls in each step
    start_spread = np.abs(calls.start_ns[own] - calls.start_ns[others])
    end_spread = np.abs(calls.end_ns[own] - calls.end_ns[others])
    is_wide = start_spread >= WIDE_START_SPREAD_NS
    n_wide = int(np.count_nonzero(is_wide))
    if n_wide < MIN_WIDE_COLLECTIVES:
        return None
    return int(np.count_nonzero(is_wide & (2 * end_spread >= start_spread))) / n_wide


def _is_pair_contradicted(calls: CallTimes, one: int, other: int) -> bool:
    """Tell whether two ranks cannot have made their k-th calls of each step together."""
    own, others = (np.flatnonzero(calls.rank == rank) for rank in (one, other))
    if not np.array_equal(calls.step[own], calls.step[others]):
        return True
    return is_contradicted_by_times([np.stack((own, others), axis=1)], calls.start_ns, calls.end_ns)
