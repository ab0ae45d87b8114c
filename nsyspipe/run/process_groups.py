"""Whether a run that names no communicators may be matched over all its ranks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

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

MIN_RANKS = 3  # two ranks that communicate are one group
_NOT_KNOWN = -1
_SEND_RECV = COLLECTIVES.index("send_recv")


def doubt_before_matching(rows: CommRows, n_ranks: int) -> Doubt | None:
    """Return why the communicators of a run, told by order of first use, cannot each hold all ranks; None if they may."""
    chosen = np.flatnonzero(rows.in_step)
    if rows.has_ids or n_ranks < MIN_RANKS or not chosen.size:
        return None
    stages = kernels_before_sends(rows, rows.in_step)
    doubt = doubt_of_purposes(
        _calls(rows, chosen), has_stages=any(map(begins_in_stages, stages.values()))
    )
    return doubt or _doubt_of_counts(rows, chosen, n_ranks)


def _calls(rows: CommRows, chosen: Int64) -> list[Calls]:
    """Count the calls of each communicator in forward and in backward, the mean over ranks and steps with communication."""
    n_cells = np.unique(np.stack((rows.step[chosen], rows.rank[chosen])), axis=1).shape[1]
    n_communicators = len(rows.communicators)
    communicator = rows.communicator[chosen]
    launched_in = rows.launched_in[chosen]
    in_forward, in_backward = (
        np.bincount(communicator[launched_in == phase], minlength=n_communicators) / n_cells
        for phase in (IN_FORWARD, IN_BACKWARD)
    )
    collective = np.zeros(n_communicators, np.int64)
    collective[communicator] = rows.collective[chosen]
    return [
        Calls(COLLECTIVES[code], float(forward), float(backward))
        for code, forward, backward in zip(
            collective.tolist(), in_forward, in_backward, strict=True
        )
    ]


def _doubt_of_counts(rows: CommRows, chosen: Int64, n_ranks: int) -> Doubt | None:
    has_each_rank = (
        np.unique(rows.rank[chosen]).size == n_ranks
    )  # else a rank's communication was not recorded
    for communicator in np.unique(rows.communicator[chosen]).tolist() if has_each_rank else ():
        own = chosen[rows.communicator[chosen] == communicator]
        if is_contradicted_by_counts(rows.step[own], rows.rank[own], n_ranks):
            return Doubt.COUNTS
    return None


def kernels_before_sends(rows: CommRows, chosen: Flags) -> dict[int, tuple[float, ...]]:
    """Return how many kernels ranks launch in a step before their first send or receive, the median over steps, by `use_of`."""
    sends = np.flatnonzero(chosen & (rows.collective == _SEND_RECV))
    use = use_of(rows)[sends]
    # Where communicators are not NCCL's own, a stage's two may be two streams: they count as one.
    columns = {
        "use": use if rows.has_ids else np.zeros_like(use),
        "rank": rows.rank[sends],
        "step": rows.step[sends],
    }
    calls = pa.table(columns | {"n": rows.n_before[sends]}).group_by(
        ["use", "rank", "step"], use_threads=False
    )
    firsts = calls.aggregate([("n", "min")]).group_by(["use", "rank"], use_threads=False)
    before: dict[int, list[float]] = {}
    for row in firsts.aggregate([("n_min", "list")]).sort_by("rank").to_pylist():
        median = np.nan if _NOT_KNOWN in row["n_min_list"] else float(np.median(row["n_min_list"]))
        before.setdefault(row["use"], []).append(median)
    known = {group: tuple(own) for group, own in before.items() if not np.isnan(own).any()}
    groups = {one: one if rows.has_ids else 0 for one in np.unique(use).tolist()}
    return {one: known[group] for one, group in groups.items() if group in known}


def use_of(rows: CommRows) -> Int64:
    """Return a number for each pair of a communicator and a collective."""
    return rows.communicator.astype(np.int64) * len(COLLECTIVES) + rows.collective


def named_by_log(rows: CommRows, pids: Sequence[int], log: NcclLog) -> CommRows:
    """Give communicators the names that NCCL's log has for them, where times leave one group possible for each rank.

    The log says which ranks are a group, not which calls are made in it. So it has to name every
    group of the run's processes, and their clocks have to be one: those of one host. Sends and
    receives get the group of their two ranks.
    """
    groups = _groups_of_log(pids, log)
    chosen = np.flatnonzero(rows.in_step)
    found: dict[int, dict[int, tuple[int, ...]]] = {}
    for communicator in np.unique(rows.communicator[chosen]).tolist() if groups else ():
        own = chosen[rows.communicator[chosen] == communicator]
        calls = CallTimes(rows.rank[own], rows.step[own], rows.start_ns[own], rows.end_ns[own])
        by_rank = None
        if COLLECTIVES[rows.collective[own[0]]] in ALIGNING:
            by_rank = groups_by_times(calls, list(groups))
        elif rows.collective[own[0]] == _SEND_RECV:
            by_rank = _pairs_of_stages(rows, own, calls, groups)
        if by_rank is not None:
            found[communicator] = by_rank
    return _with_groups(rows, _without_doubles(rows, found), groups)


def _pairs_of_stages(
    rows: CommRows, chosen: Int64, calls: CallTimes, groups: Collection[tuple[int, ...]]
) -> dict[int, tuple[int, ...]] | None:
    """Return by rank the pair of pipeline stages whose sends and receives these are; None where that is not certain.

    The log has to name each pair, and the two ranks of a pair have to be of different stages.
    """
    partners = partners_by_times(calls)
    kernels_before = kernels_before_sends(rows, rows.in_step).get(int(use_of(rows)[chosen[0]]))
    if partners is None or kernels_before is None:
        return None
    n_before = dict(zip(sorted(partners), kernels_before, strict=True))
    by_rank = {one: (min(one, other), max(one, other)) for one, other in partners.items()}
    pairs = set(by_rank.values())
    are_stages = all(begins_in_stages([n_before[rank] for rank in pair]) for pair in pairs)
    return dict(by_rank) if are_stages and pairs.issubset(groups) else None


def _groups_of_log(pids: Sequence[int], log: NcclLog) -> dict[tuple[int, ...], str]:
    """Return the names of groups by the places of their ranks; nothing where the log may lack one, or ranks share no host."""
    communicators = log.of_processes(pids)
    members = [member for communicator in communicators for member in communicator.members]
    is_whole = all(
        len(communicator.members) == communicator.n_ranks for communicator in communicators
    )
    is_of_run = {member.pid for member in members} == set(pids) and len(set(pids)) == len(pids)
    if not (is_whole and is_of_run) or len({member.host for member in members}) != 1:
        return {}
    names: dict[tuple[int, ...], str] = {}
    for communicator in communicators:
        names.setdefault(
            tuple(sorted(pids.index(member.pid) for member in communicator.members)),
            communicator.comm_id,
        )
    return names


def _without_doubles(
    rows: CommRows, found: dict[int, dict[int, tuple[int, ...]]]
) -> dict[int, dict[int, tuple[int, ...]]]:
    """Leave out communicators of one collective that would be one group: their calls have no common order."""
    used = Counter(
        (_collective_of(rows, one), group)
        for one, own in found.items()
        for group in set(own.values())
    )
    return {
        one: own
        for one, own in found.items()
        if all(used[_collective_of(rows, one), group] == 1 for group in own.values())
    }


def _collective_of(rows: CommRows, communicator: int) -> int:
    return int(rows.collective[np.flatnonzero(rows.communicator == communicator)[0]])


def _with_groups(
    rows: CommRows, found: dict[int, dict[int, tuple[int, ...]]], groups: dict[tuple[int, ...], str]
) -> CommRows:
    names = [*rows.communicators, *groups.values()]
    places = {group: len(rows.communicators) + place for place, group in enumerate(groups)}
    communicator = rows.communicator.copy()
    for one, by_rank in found.items():
        for rank, group in by_rank.items():
            communicator[(rows.communicator == one) & (rows.rank == rank)] = places[group]
    used, place = np.unique(communicator, return_inverse=True)
    is_named = used >= len(rows.communicators)
    return replace(
        rows,
        communicator=place.astype(np.int32),
        communicators=tuple(names[one] for one in used.tolist()),
        is_named=is_named,
        has_ids=bool(is_named.size and is_named.all()),
        is_by_log=bool(is_named.any()),
    )
