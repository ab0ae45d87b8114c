"""Whether a run that names no communicators may be matched over all its ranks."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from nsyspipe.analysis.clock import ALIGNING
from nsyspipe.analysis.phases import IN_BACKWARD, IN_FORWARD
from nsyspipe.analysis.process_groups import (
    Calls,
    CallTimes,
    Doubt,
    do_counts_refute_one_group,
    doubt_of_purposes,
    groups_by_times,
    partners_by_times,
)
from nsyspipe.analysis.traffic import begins_in_stages
from nsyspipe.model.names import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from nsyspipe.model.side_files import NcclLog
    from nsyspipe.model.table import Flags, Int32, Int64
    from nsyspipe.run.comm_rows import CommRows

# Two ranks that communicate are one group.
MIN_RANKS = 3
_NOT_KNOWN = -1
_SEND_RECV = COLLECTIVES.index("send_recv")
# By communicator and rank, the ranks of a group.
_GroupOfRank: TypeAlias = "dict[int, dict[int, tuple[int, ...]]]"
# A collective, and the ranks of a group that calls it.
_GroupUse: TypeAlias = "tuple[int, tuple[int, ...]]"


def doubt_before_matching(rows: CommRows, n_ranks: int) -> Doubt | None:
    """Return why communicators that NCCL does not name may not hold all ranks of a run.

    None if nothing makes that doubtful, or if NCCL names the communicators.
    """
    chosen = np.flatnonzero(rows.in_step)
    if rows.has_ids or n_ranks < MIN_RANKS or not chosen.size:
        return None
    kernels_before_of_use = kernels_before_sends(rows, rows.in_step)
    has_stages = any(map(begins_in_stages, kernels_before_of_use.values()))
    doubt = doubt_of_purposes(_calls(rows, chosen), has_stages=has_stages)
    return doubt or _doubt_of_counts(rows, chosen, n_ranks)


def _calls(rows: CommRows, chosen: Int64) -> list[Calls]:
    """Return how often each communicator is called in forward and in backward.

    `chosen` are the calls that count. The numbers are means over the ranks and steps that have
    communication. The communicators are those that NCCL does not name, each of one collective.
    """
    step = rows.step[chosen]
    rank = rows.rank[chosen]
    # A column for each pair of a step and a rank.
    rank_steps = np.unique(np.stack((step, rank)), axis=1)
    n_rank_steps = rank_steps.shape[1]
    n_communicators = len(rows.communicators)
    communicator = rows.communicator[chosen]
    launched_in = rows.launched_in[chosen]
    collective_of_communicator = np.zeros(n_communicators, np.int64)
    collective_of_communicator[communicator] = rows.collective[chosen]
    names = [COLLECTIVES[collective] for collective in collective_of_communicator.tolist()]
    means_by_direction = []
    for direction in (IN_FORWARD, IN_BACKWARD):
        communicator_of_launched = communicator[launched_in == direction]
        n_calls = np.bincount(communicator_of_launched, minlength=n_communicators)
        means_by_direction.append((n_calls / n_rank_steps).tolist())
    return [*map(Calls, names, *means_by_direction)]


def _doubt_of_counts(rows: CommRows, chosen: Int64, n_ranks: int) -> Doubt | None:
    """Return a doubt if ranks call a communicator a different number of times, else None."""
    ranks_with_comm = np.unique(rows.rank[chosen])
    # If the communication of a rank was not recorded, counts show nothing.
    if ranks_with_comm.size < n_ranks:
        return None
    for _, calls in _by_communicator(rows, chosen):
        if do_counts_refute_one_group(rows.step[calls], rows.rank[calls], n_ranks):
            return Doubt.COUNTS
    return None


def _by_communicator(rows: CommRows, chosen: Int64) -> Iterator[tuple[int, Int64]]:
    """Yield the index of each communicator with the chosen calls that are made in it."""
    communicator_of_call = rows.communicator[chosen]
    for communicator in np.unique(communicator_of_call).tolist():
        is_in_communicator = communicator_of_call == communicator
        yield communicator, chosen[is_in_communicator]


def kernels_before_sends(rows: CommRows, chosen: Flags) -> dict[int, tuple[float, ...]]:
    """Return how many kernels each rank launches in a step before its first send or receive.

    A use is a pair of a communicator and a collective, with a number from `use_of`. The result has,
    for each use, a median over steps for each of its ranks, in order of rank. A use is left out if
    one of its medians is not known. `chosen` are the operations that count.
    """
    is_send = rows.collective == _SEND_RECV
    sends = np.flatnonzero(chosen & is_send)
    use_of_send = use_of(rows)[sends]
    uses = np.unique(use_of_send).tolist()
    if rows.has_ids:
        medians_of_use = _medians_of_first_sends(rows, sends, use_of_send)
    else:
        # Without NCCL's names, a stage may use several streams for one communicator. So all uses
        # count as one, and get the same medians.
        one_use = np.zeros_like(use_of_send)
        medians_of_all = _medians_of_first_sends(rows, sends, one_use)
        medians_of_use = dict.fromkeys(uses, medians_of_all.get(0, []))
    kernels_before = {}
    for use in uses:
        medians_of_ranks = medians_of_use[use]
        is_unknown = np.isnan(medians_of_ranks)
        if not is_unknown.any():
            kernels_before[use] = tuple(medians_of_ranks)
    return kernels_before


def _medians_of_first_sends(
    rows: CommRows, sends: Int64, use_of_send: Int64
) -> dict[int, list[float]]:
    """Return for each use how many kernels its ranks launch before their first send of a step.

    A use has a median over steps for each of its ranks, in order of rank. The median of a rank is
    NaN if the number of kernels is not known for one of its steps.
    """
    columns: dict[str, Any] = {"rank": rows.rank[sends]}
    columns["use"] = use_of_send
    columns["step"] = rows.step[sends]
    columns["n"] = rows.n_before[sends]
    calls = pa.table(columns)
    calls_by_step = calls.group_by(["use", "rank", "step"], use_threads=False)
    # The first send of a step has the fewest kernels before it.
    firsts = calls_by_step.aggregate([("n", "min")])
    firsts_by_rank = firsts.group_by(["use", "rank"], use_threads=False)
    counts_of_ranks = firsts_by_rank.aggregate([("n_min", "list")])
    medians_of_use: dict[int, list[float]] = {}
    for row in counts_of_ranks.sort_by("rank").to_pylist():
        counts = row["n_min_list"]
        median = np.nan if _NOT_KNOWN in counts else float(np.median(counts))
        medians_of_use.setdefault(row["use"], []).append(median)
    return medians_of_use


def use_of(rows: CommRows) -> Int64:
    """Return a number for each pair of a communicator and a collective."""
    communicator = rows.communicator.astype(np.int64)
    return communicator * len(COLLECTIVES) + rows.collective


def named_by_log(rows: CommRows, pids: Sequence[int], log: NcclLog) -> CommRows:
    """Give communicators the names of NCCL's log, if times leave one group possible for each rank.

    The log has the ranks of each group, but not the calls that are made in the group. So it must
    name every group of the run's processes, and these must be on one host, which has one clock.
    Sends and receives get the group of their two ranks.
    """
    groups = _groups_of_log(pids, log)
    if not groups:
        return _with_groups(rows, group_of_rank={}, groups={})
    chosen = np.flatnonzero(rows.in_step)
    possible_groups: _GroupOfRank = {}
    for communicator, calls in _by_communicator(rows, chosen):
        by_rank = _groups_of_calls(rows, calls, groups)
        if by_rank is not None:
            possible_groups[communicator] = by_rank
    group_of_rank = _without_doubles(rows, possible_groups)
    return _with_groups(rows, group_of_rank, groups)


def _groups_of_calls(
    rows: CommRows, calls: Int64, groups: Collection[tuple[int, ...]]
) -> dict[int, tuple[int, ...]] | None:
    """Return the group of each rank in the calls of one communicator, None if it is not sure."""
    rank = rows.rank[calls]
    step = rows.step[calls]
    starts_ns = rows.start_ns[calls]
    ends_ns = rows.end_ns[calls]
    times = CallTimes(rank, step, starts_ns, ends_ns)
    # All calls of a communicator without NCCL's name are of one collective.
    first_call = calls[0]
    collective = rows.collective[first_call]
    if COLLECTIVES[collective] in ALIGNING:
        return groups_by_times(times, list(groups))
    if collective == _SEND_RECV:
        return _pairs_of_stages(rows, calls, times, groups)
    return None


def _pairs_of_stages(
    rows: CommRows, chosen: Int64, calls: CallTimes, groups: Collection[tuple[int, ...]]
) -> dict[int, tuple[int, ...]] | None:
    """Return, for each rank, the pair of ranks in which it sends and receives.

    None unless the log names each pair, and the two ranks of each pair are different stages of a
    pipeline. `chosen` are the calls of one communicator, and `calls` are their times.
    """
    partner_of_rank = partners_by_times(calls)
    first_call = chosen[0]
    use = int(use_of(rows)[first_call])
    kernels_before = kernels_before_sends(rows, rows.in_step).get(use)
    if partner_of_rank is None or kernels_before is None:
        return None
    # `kernels_before` is in order of rank.
    kernels_before_of_rank = dict(zip(sorted(partner_of_rank), kernels_before, strict=True))
    pair_of_rank: dict[int, tuple[int, ...]] = {}
    for rank, partner in partner_of_rank.items():
        pair = tuple(sorted((rank, partner)))
        are_two_stages = begins_in_stages([kernels_before_of_rank[member] for member in pair])
        if not are_two_stages:
            return None
        pair_of_rank[rank] = pair
    are_all_logged = {*pair_of_rank.values()}.issubset(groups)
    return pair_of_rank if are_all_logged else None


def _groups_of_log(pids: Sequence[int], log: NcclLog) -> dict[tuple[int, ...], str]:
    """Return the names of the log's groups, by the ranks of the group.

    A rank is the index of its process in `pids`. The result is empty if the log may lack a group or
    a member, if processes have the same ID, or if they are on several hosts.
    """
    communicators = log.of_processes(pids)
    # A log that does not have all members of a communicator is not complete.
    if any(len(communicator.members) != communicator.n_ranks for communicator in communicators):
        return {}
    members = [*chain.from_iterable(communicator.members for communicator in communicators)]
    unique_pids = set(pids)
    logged_pids = {member.pid for member in members}
    hosts = {member.host for member in members}
    are_pids_unique = len(unique_pids) == len(pids)
    if logged_pids != unique_pids or not are_pids_unique or len(hosts) != 1:
        return {}
    names: dict[tuple[int, ...], str] = {}
    for communicator in communicators:
        ranks = sorted(pids.index(member.pid) for member in communicator.members)
        # Of several communicators of the same ranks, the first gives the name.
        names.setdefault(tuple(ranks), communicator.comm_id)
    return names


def _without_doubles(rows: CommRows, group_of_rank: _GroupOfRank) -> _GroupOfRank:
    """Leave out communicators of the same collective that would be the same group.

    Their calls have no common order, and so could not be matched as calls of one group.
    """
    uses_of_communicator = {
        communicator: _uses_of_groups(rows, communicator, by_rank)
        for communicator, by_rank in group_of_rank.items()
    }
    all_uses = chain.from_iterable(uses_of_communicator.values())
    n_communicators_of_use: Counter[_GroupUse] = Counter(all_uses)
    without_doubles = {}
    for communicator, uses in uses_of_communicator.items():
        has_no_double = all(n_communicators_of_use[use] == 1 for use in uses)
        if has_no_double:
            without_doubles[communicator] = group_of_rank[communicator]
    return without_doubles


def _uses_of_groups(
    rows: CommRows, communicator: int, by_rank: dict[int, tuple[int, ...]]
) -> set[_GroupUse]:
    """Return the groups of a communicator, each with the collective of the communicator."""
    collective = _collective_of(rows, communicator)
    return {(collective, group) for group in by_rank.values()}


def _collective_of(rows: CommRows, communicator: int) -> int:
    """Return the collective of all calls of a communicator."""
    calls = np.flatnonzero(rows.communicator == communicator)
    first_call = calls[0]
    return int(rows.collective[first_call])


def _groups_as_communicators(
    rows: CommRows, group_of_rank: _GroupOfRank, index_of_group: dict[tuple[int, ...], int]
) -> Int32:
    """Return the communicator of each operation, as an index.

    An operation that belongs to a group has the index of the group. All others keep the index of
    their communicator.
    """
    communicator_of_operation = rows.communicator.copy()
    for communicator, by_rank in group_of_rank.items():
        is_in_communicator = rows.communicator == communicator
        for rank, group in by_rank.items():
            is_call_of_rank = is_in_communicator & (rows.rank == rank)
            communicator_of_operation[is_call_of_rank] = index_of_group[group]
    return communicator_of_operation


def _with_groups(
    rows: CommRows, group_of_rank: _GroupOfRank, groups: dict[tuple[int, ...], str]
) -> CommRows:
    """Return the rows with the groups as communicators, and without unused communicators.

    `groups` has the name of each group by its ranks. `group_of_rank` has, for each communicator
    that becomes groups, the group of each rank.
    """
    # The groups follow the communicators of the rows.
    n_before = len(rows.communicators)
    names = [*rows.communicators, *groups.values()]
    index_of_group = {group: index for index, group in enumerate(groups, start=n_before)}
    communicator = _groups_as_communicators(rows, group_of_rank, index_of_group)
    used, used_index_of_operation = np.unique(communicator, return_inverse=True)
    used_names = tuple(names[index] for index in used.tolist())
    is_named = used >= n_before
    is_any_named = bool(is_named.any())
    are_all_named = is_any_named and bool(is_named.all())
    return replace(
        rows,
        communicator=used_index_of_operation.astype(np.int32),
        communicators=used_names,
        is_named=is_named,
        has_ids=are_all_named,
        is_by_log=is_any_named,
    )
