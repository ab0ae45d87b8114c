"""Whether a run that names no communicators may be matched over all its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nsyspipe.analysis.phases import IN_BACKWARD, IN_FORWARD
from nsyspipe.analysis.process_groups import Calls, Doubt, doubt_of_purposes, is_contradicted_by_counts
from nsyspipe.analysis.traffic import begins_in_stages
from nsyspipe.model.names import COLLECTIVES

if TYPE_CHECKING:
    from nsyspipe.model.table import Flags, Int64
    from nsyspipe.run.collectives import CommRows

MIN_RANKS = 3  # two ranks that communicate are one group
_NOT_KNOWN = -1
_SEND_RECV = COLLECTIVES.index("send_recv")


def doubt_before_matching(rows: CommRows, n_ranks: int) -> Doubt | None:
    """Return why the communicators of a run, told by order of first use, cannot each hold all ranks; None if they may."""
    chosen = np.flatnonzero(rows.in_step)
    if rows.has_ids or n_ranks < MIN_RANKS or not chosen.size:
        return None
    stages = kernels_before_sends(rows, rows.in_step)
    doubt = doubt_of_purposes(_calls(rows, chosen), has_stages=any(map(begins_in_stages, stages.values())))
    return doubt or _doubt_of_counts(rows, chosen, n_ranks)


def _calls(rows: CommRows, chosen: Int64) -> list[Calls]:
    """Count the calls of each communicator in forward and in backward, the mean over ranks and steps with communication."""
    n_cells = np.unique(np.stack((rows.step[chosen], rows.rank[chosen])), axis=1).shape[1]
    n_communicators = len(rows.communicators)
    communicator, launched_in = rows.communicator[chosen], rows.launched_in[chosen]
    in_forward, in_backward = (
        np.bincount(communicator[launched_in == phase], minlength=n_communicators) / n_cells
        for phase in (IN_FORWARD, IN_BACKWARD)
    )
    collective = np.zeros(n_communicators, np.int64)
    collective[communicator] = rows.collective[chosen]
    return [
        Calls(COLLECTIVES[code], float(forward), float(backward))
        for code, forward, backward in zip(collective.tolist(), in_forward, in_backward, strict=True)
    ]


def _doubt_of_counts(rows: CommRows, chosen: Int64, n_ranks: int) -> Doubt | None:
    has_each_rank = np.unique(rows.rank[chosen]).size == n_ranks  # else a rank's communication was not recorded
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
    columns = {"use": use if rows.has_ids else np.zeros_like(use), "rank": rows.rank[sends], "step": rows.step[sends]}
    calls = pa.table(columns | {"n": rows.n_before[sends]}).group_by(["use", "rank", "step"], use_threads=False)
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
