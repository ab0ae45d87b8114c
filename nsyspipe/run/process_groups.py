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
    doubt_of_purposes,
    groups_by_times,
    is_contradicted_by_counts,
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
    step = rows.step[chosen]
    rank = rows.rank[chosen]
    rank_steps = np.stack((step, rank))
    _, n_rank_steps = np.unique(rank_steps, axis=1).shape
    n_communicators = len(rows.communicators)
    communicator = rows.communicator[chosen]
    launched_in = rows.launched_in[chosen]
    collective = np.zeros(n_communicators, np.int64)
    collective[communicator] = rows.collective[chosen]
    names = [COLLECTIVES[code] for code in collective.tolist()]
    calls_per_step = []
    for direction in (IN_FORWARD, IN_BACKWARD):
        launched = communicator[launched_in == direction]
        n_calls = np.bincount(launched, minlength=n_communicators)
        calls_per_step.append((n_calls / n_rank_steps).tolist())
    return [*map(Calls, names, *calls_per_step)]


def _doubt_of_counts(rows: CommRows, chosen: Int64, n_ranks: int) -> Doubt | None:
    """Return whether ranks call a communicator differently often."""
    ranks_with_comm = np.unique(rows.rank[chosen])
    # The communication of a rank may not be recorded.
    if ranks_with_comm.size < n_ranks:
        return None
    for _, calls in _by_communicator(rows, chosen):
        if is_contradicted_by_counts(rows.step[calls], rows.rank[calls], n_ranks):
            return Doubt.COUNTS
    return None


def _by_communicator(rows: CommRows, chosen: Int64) -> Iterator[tuple[int, Int64]]:
    """Yield each communicator with those of the chosen calls that are made in it."""
    communicator = rows.communicator[chosen]
    for number in np.unique(communicator).tolist():
        is_in_communicator = communicator == number
        yield number, chosen[is_in_communicator]


def kernels_before_sends(rows: CommRows, chosen: Flags) -> dict[int, tuple[float, ...]]:
    """Return how many kernels each rank launches in a step before its first send or receive.

    The numbers are medians over steps, by `use_of`.
    """
    is_send = rows.collective == _SEND_RECV
    sends = np.flatnonzero(chosen & is_send)
    use = use_of(rows)[sends]
    medians = _medians_of_first_sends(rows, sends, use)
    kernels_before = {}
    for use_number in np.unique(use).tolist():
        medians_of_ranks = medians[use_number if rows.has_ids else 0]
        is_unknown = np.isnan(medians_of_ranks)
        if not is_unknown.any():
            kernels_before[use_number] = tuple(medians_of_ranks)
    return kernels_before


def _medians_of_first_sends(rows: CommRows, sends: Int64, use: Int64) -> dict[int, list[float]]:
    """Return the median number of kernels before the first send of a step, of each rank by use.

    The median is NaN if a number is not known.
    """
    # Without NCCL's names, the two communicators of a stage may be two streams. They count as one.
    columns: dict[str, Any] = {"rank": rows.rank[sends]}
    columns["use"] = use if rows.has_ids else np.zeros_like(use)
    columns["step"] = rows.step[sends]
    columns["n"] = rows.n_before[sends]
    calls = pa.table(columns)
    calls_by_step = calls.group_by(["use", "rank", "step"], use_threads=False)
    firsts = calls_by_step.aggregate([("n", "min")])
    firsts_by_rank = firsts.group_by(["use", "rank"], use_threads=False)
    counts_of_ranks = firsts_by_rank.aggregate([("n_min", "list")])
    medians: dict[int, list[float]] = {}
    for row in counts_of_ranks.sort_by("rank").to_pylist():
        counts = row["n_min_list"]
        median = np.nan if _NOT_KNOWN in counts else float(np.median(counts))
        medians.setdefault(row["use"], []).append(median)
    return medians


def use_of(rows: CommRows) -> Int64:
    """Return a number for each pair of a communicator and a collective."""
    communicator = rows.communicator.astype(np.int64)
    return communicator * len(COLLECTIVES) + rows.collective


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
    for communicator, calls in _by_communicator(rows, chosen):
        by_rank = _groups_of_calls(rows, calls, groups)
        if by_rank is not None:
            group_of_rank[communicator] = by_rank
    group_of_rank = _without_doubles(rows, group_of_rank)
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
    first_call = chosen[0]
    use = int(use_of(rows)[first_call])
    kernels_before = kernels_before_sends(rows, rows.in_step).get(use)
    if partners is None or kernels_before is None:
        return None
    n_before = dict(zip(sorted(partners), kernels_before, strict=True))
    pair_of_rank: dict[int, tuple[int, ...]] = {}
    for rank, partner in partners.items():
        pair = tuple(sorted((rank, partner)))
        if not begins_in_stages([n_before[member] for member in pair]):
            return None
        pair_of_rank[rank] = pair
    are_all_logged = {*pair_of_rank.values()}.issubset(groups)
    return pair_of_rank if are_all_logged else None


def _groups_of_log(pids: Sequence[int], log: NcclLog) -> dict[tuple[int, ...], str]:
    """Return the names of groups by the places of their ranks.

    There are none if a group may be missing in the log, or if ranks are on several hosts.
    """
    communicators = log.of_processes(pids)
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
        places = sorted(pids.index(member.pid) for member in communicator.members)
        names.setdefault(tuple(places), communicator.comm_id)
    return names


def _without_doubles(rows: CommRows, group_of_rank: _GroupOfRank) -> _GroupOfRank:
    """Leave out communicators of one collective that would be one group.

    Their calls have no common order.
    """
    n_uses: Counter[_GroupUse] = Counter()
    for communicator, by_rank in group_of_rank.items():
        n_uses.update(_uses_of_groups(rows, communicator, by_rank))
    single = {}
    for communicator, by_rank in group_of_rank.items():
        uses = _uses_of_groups(rows, communicator, by_rank)
        if all(n_uses[use] == 1 for use in uses):
            single[communicator] = by_rank
    return single


def _uses_of_groups(
    rows: CommRows, communicator: int, by_rank: dict[int, tuple[int, ...]]
) -> set[_GroupUse]:
    """Return the groups of a communicator, each with the collective of the communicator."""
    collective = _collective_of(rows, communicator)
    return {(collective, group) for group in by_rank.values()}


def _collective_of(rows: CommRows, communicator: int) -> int:
    calls = np.flatnonzero(rows.communicator == communicator)
    first_call = calls[0]
    return int(rows.collective[first_call])


def _groups_as_communicators(
    rows: CommRows, group_of_rank: _GroupOfRank, place_of_group: dict[tuple[int, ...], int]
) -> Int32:
    """Return the communicator of each operation, which is the place of its group if it has one."""
    communicator = rows.communicator.copy()
    for number, by_rank in group_of_rank.items():
        is_in_communicator = rows.communicator == number
        for rank, group in by_rank.items():
            is_call = is_in_communicator & (rows.rank == rank)
            communicator[is_call] = place_of_group[group]
    return communicator


def _with_groups(
    rows: CommRows, group_of_rank: _GroupOfRank, groups: dict[tuple[int, ...], str]
) -> CommRows:
    """Return the rows with the groups as communicators, and without unused communicators."""
    n_before = len(rows.communicators)
    names = [*rows.communicators, *groups.values()]
    place_of_group = {group: place for place, group in enumerate(groups, start=n_before)}
    communicator = _groups_as_communicators(rows, group_of_rank, place_of_group)
    used, place = np.unique(communicator, return_inverse=True)
    used_names = tuple(names[number] for number in used.tolist())
    is_named = used >= n_before
    is_any_named = bool(is_named.any())
    are_all_named = is_any_named and bool(is_named.all())
    return replace(
        rows,
        communicator=place.astype(np.int32),
        communicators=used_names,
        is_named=is_named,
        has_ids=are_all_named,
        is_by_log=is_any_named,
    )
