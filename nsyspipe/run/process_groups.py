"""Whether a run that names no communicators may be matched over all its ranks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from nsyspipe.analysis.clock import ALIGNING
from nsyspipe.analysis.phases import IN_BACKWARD, IN_FORWARD
from nsyspipe.analysis.process_groups import (
    Calls,
    CallTimes,
    Doubt,
    doubt_of_purposes,
    groups_by_times,
    is_contradicted_by_counts,
    partners_by_times,
)
from nsyspipe.analysis.traffic import begins_in_stages
from nsyspipe.model.names import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from nsyspipe.model.side_files import NcclLog
    from nsyspipe.model.table import Flags, Int64
    from nsyspipe.run.comm_rows import CommRows

# Two ranks that communicate are one group.
MIN_RANKS = 3
_NOT_KNOWN = -1
_SEND_RECV = COLLECTIVES.index("send_recv")
# By communicator and rank, the ranks of a group.
_GroupOfRank: TypeAlias = "dict[int, dict[int, tuple[int, ...]]]"


def doubt_before_matching(rows: CommRows, n_ranks: int) -> Doubt | None:
    """Return why communicators by order of first use cannot each hold all ranks of a run.

    None if they may.
    """
    chosen = np.flatnonzero(rows.in_step)
    if rows.has_ids or n_ranks < MIN_RANKS or not chosen.size:
        return None
    stages = kernels_before_sends(rows, rows.in_step)
    has_stages = any(map(begins_in_stages, stages.values()))
    doubt = doubt_of_purposes(_calls(rows, chosen), has_stages=has_stages)
    return doubt or _doubt_of_counts(rows, chosen, n_ranks)


def _calls(rows: CommRows, chosen: Int64) -> list[Calls]:
    """Return the calls of each communicator in forward and in backward.

    They are means over the ranks and steps that have communication.
    """
    steps_and_ranks = np.stack((rows.step[chosen], rows.rank[chosen]))
    n_rank_steps = np.unique(steps_and_ranks, axis=1).shape[1]
    n_communicators = len(rows.communicators)
    communicator = rows.communicator[chosen]
    launched_in = rows.launched_in[chosen]
    calls_in_forward = communicator[launched_in == IN_FORWARD]
    calls_in_backward = communicator[launched_in == IN_BACKWARD]
    n_in_forward = np.bincount(calls_in_forward, minlength=n_communicators) / n_rank_steps
    n_in_backward = np.bincount(calls_in_backward, minlength=n_communicators) / n_rank_steps
    collective = np.zeros(n_communicators, np.int64)
    collective[communicator] = rows.collective[chosen]
    columns = zip(collective.tolist(), n_in_forward, n_in_backward, strict=True)
    return [
        Calls(COLLECTIVES[code], float(forward), float(backward))
        for code, forward, backward in columns
    ]


def _doubt_of_counts(rows: CommRows, chosen: Int64, n_ranks: int) -> Doubt | None:
    """Return whether ranks call a communicator differently often."""
    # The communication of a rank may not be recorded.
    if np.unique(rows.rank[chosen]).size < n_ranks:
        return None
    for communicator in np.unique(rows.communicator[chosen]).tolist():
        calls = chosen[rows.communicator[chosen] == communicator]
        if is_contradicted_by_counts(rows.step[calls], rows.rank[calls], n_ranks):
            return Doubt.COUNTS
    return None


def kernels_before_sends(rows: CommRows, chosen: Flags) -> dict[int, tuple[float, ...]]:
    """Return how many kernels each rank launches in a step before its first send or receive.

    The numbers are medians over steps, by `use_of`.
    """
    sends = np.flatnonzero(chosen & (rows.collective == _SEND_RECV))
    use = use_of(rows)[sends]
    # Without NCCL's names, the two communicators of a stage may be two streams. They count as one.
    columns = {
        "use": use if rows.has_ids else np.zeros_like(use),
        "rank": rows.rank[sends],
        "step": rows.step[sends],
    }
    calls = pa.table(columns | {"n": rows.n_before[sends]})
    calls_by_step = calls.group_by(["use", "rank", "step"], use_threads=False)
    firsts = calls_by_step.aggregate([("n", "min")])
    firsts_by_rank = firsts.group_by(["use", "rank"], use_threads=False)
    counts_of_ranks = firsts_by_rank.aggregate([("n_min", "list")]).sort_by("rank")
    medians: dict[int, list[float]] = {}
    for row in counts_of_ranks.to_pylist():
        counts = row["n_min_list"]
        median = np.nan if _NOT_KNOWN in counts else float(np.median(counts))
        medians.setdefault(row["use"], []).append(median)
    kernels_before = {}
    for use_number in np.unique(use).tolist():
        group = use_number if rows.has_ids else 0
        if not np.isnan(medians[group]).any():
            kernels_before[use_number] = tuple(medians[group])
    return kernels_before


def use_of(rows: CommRows) -> Int64:
    """Return a number for each pair of a communicator and a collective."""
    return rows.communicator.astype(np.int64) * len(COLLECTIVES) + rows.collective


def named_by_log(rows: CommRows, pids: Sequence[int], log: NcclLog) -> CommRows:
    """Give communicators the names of NCCL's log, if times leave one group possible for each rank.

    The log has the ranks of each group, but not the calls that are made in it. So it must name
    every group of the run's processes, which must be on one host and its clock. Sends and receives
    get the group of their two ranks.
    """
    groups = _groups_of_log(pids, log)
    chosen = np.flatnonzero(rows.in_step)
    if not groups:
        return _with_groups(rows, {}, groups)
    group_of_rank: _GroupOfRank = {}
    for communicator in np.unique(rows.communicator[chosen]).tolist():
        calls = chosen[rows.communicator[chosen] == communicator]
        by_rank = _groups_of_calls(rows, calls, groups)
        if by_rank is not None:
            group_of_rank[communicator] = by_rank
    return _with_groups(rows, _without_doubles(rows, group_of_rank), groups)


def _groups_of_calls(
    rows: CommRows, calls: Int64, groups: Collection[tuple[int, ...]]
) -> dict[int, tuple[int, ...]] | None:
    """Return the group of each rank in the calls of one communicator, None if it is not sure."""
    times = CallTimes(rows.rank[calls], rows.step[calls], rows.start_ns[calls], rows.end_ns[calls])
    collective = rows.collective[calls[0]]
    if COLLECTIVES[collective] in ALIGNING:
        return groups_by_times(times, list(groups))
    if collective == _SEND_RECV:
        return _pairs_of_stages(rows, calls, times, groups)
    return None


def _pairs_of_stages(
    rows: CommRows, chosen: Int64, calls: CallTimes, groups: Collection[tuple[int, ...]]
) -> dict[int, tuple[int, ...]] | None:
    """Return the pair of pipeline stages of each rank by its sends and receives, None if not sure.

    The log must name each pair, and the two ranks of a pair must be of different stages.
    """
    partners = partners_by_times(calls)
    use = int(use_of(rows)[chosen[0]])
    kernels_before = kernels_before_sends(rows, rows.in_step).get(use)
    if partners is None or kernels_before is None:
        return None
    n_before = dict(zip(sorted(partners), kernels_before, strict=True))
    pair_of_rank: dict[int, tuple[int, ...]] = {}
    for rank, partner in partners.items():
        first, second = sorted((rank, partner))
        if not begins_in_stages([n_before[first], n_before[second]]):
            return None
        pair_of_rank[rank] = (first, second)
    return pair_of_rank if set(pair_of_rank.values()).issubset(groups) else None


def _groups_of_log(pids: Sequence[int], log: NcclLog) -> dict[tuple[int, ...], str]:
    """Return the names of groups by the places of their ranks.

    There are none if a group may be missing in the log, or if ranks are on several hosts.
    """
    communicators = log.of_processes(pids)
    members = [member for communicator in communicators for member in communicator.members]
    if any(len(communicator.members) != communicator.n_ranks for communicator in communicators):
        return {}
    are_pids_unique = len(set(pids)) == len(pids)
    logged_pids = {member.pid for member in members}
    hosts = {member.host for member in members}
    if logged_pids != set(pids) or not are_pids_unique or len(hosts) != 1:
        return {}
    names: dict[tuple[int, ...], str] = {}
    for communicator in communicators:
        places = sorted(pids.index(member.pid) for member in communicator.members)
        names.setdefault(tuple(places), communicator.comm_id)
    return names


def _without_doubles(rows: CommRows, group_of_rank: _GroupOfRank) -> _GroupOfRank:
    """Leave out communicators of one collective that would be one group.

    Their calls have no common order.
    """
    n_uses: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for communicator, by_rank in group_of_rank.items():
        collective = _collective_of(rows, communicator)
        groups = set(by_rank.values())
        n_uses.update((collective, group) for group in groups)
    single = {}
    for communicator, by_rank in group_of_rank.items():
        collective = _collective_of(rows, communicator)
        if all(n_uses[collective, group] == 1 for group in by_rank.values()):
            single[communicator] = by_rank
    return single


def _collective_of(rows: CommRows, communicator: int) -> int:
    first_call = np.flatnonzero(rows.communicator == communicator)[0]
    return int(rows.collective[first_call])


def _with_groups(
    rows: CommRows, group_of_rank: _GroupOfRank, groups: dict[tuple[int, ...], str]
) -> CommRows:
    n_before = len(rows.communicators)
    names = [*rows.communicators, *groups.values()]
    place_of_group = {group: place for place, group in enumerate(groups, start=n_before)}
    communicator = rows.communicator.copy()
    for number, by_rank in group_of_rank.items():
        for rank, group in by_rank.items():
            is_call = (rows.communicator == number) & (rows.rank == rank)
            communicator[is_call] = place_of_group[group]
    used, place = np.unique(communicator, return_inverse=True)
    is_named = used >= n_before
    is_any_named = bool(is_named.any())
    return replace(
        rows,
        communicator=place.astype(np.int32),
        communicators=tuple(names[number] for number in used.tolist()),
        is_named=is_named,
        has_ids=is_any_named and bool(is_named.all()),
        is_by_log=is_any_named,
    )
