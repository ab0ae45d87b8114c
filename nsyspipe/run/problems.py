"""What a whole run could not answer, and the rows that say so."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model import schema
from nsyspipe.model.problems import SEVERITIES, SIZE_GAPS, Problem, problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsyspipe.analysis.steps import Selection
    from nsyspipe.model.types import Int64
    from nsyspipe.run.digest import ProcessDigest
    from nsyspipe.run.gather import Placed, ReportDigest
    from nsyspipe.run.sidecars import Captured


_FEW_STEPS = 3
# The slowest rank of each step takes so much more than any rank in the mean: worth a line, or a warning.
_IN_TURN, _MUCH_IN_TURN = 0.01, 0.05
# Where payloads say sizes, and none of them belongs to a kernel.
_UNMATCHED_SIZES = (
    "NCCL's payloads fit no communication kernel",
    "capture whole steps on every rank, with the host's calls (--trace=cuda,nvtx)",
)
_SHOWN = 8


def of_reports(
    digests: Sequence[ReportDigest],
    names: Sequence[str],
    placed: Sequence[Placed[ProcessDigest]],
    ranks: Sequence[int],
    captured: Captured,
    *,
    is_hidden: bool = False,
) -> list[Problem]:
    """Place the reports' own problems, and name reports without GPU activity, which is none if none was to be traced.

    `is_hidden`: communication may have run in the figures' steps that was not seen.
    """
    rank_of = {(one.argument, one.process.process_id): rank for one, rank in zip(placed, ranks, strict=True)}
    found = []
    for argument, (digest, name) in enumerate(zip(digests, names, strict=True)):
        if not placed and captured.is_without_gpu(argument):
            found.append(problem("captured-without-gpu"))
            continue
        if not digest.processes:
            severity = "error" if not placed else None
            found.append(problem("no-gpu-activity", severity=severity, what=name).at(report=name))
            continue
        own = [rank_of[argument, process.process_id] for process in digest.processes]
        for one in digest.problems:
            rank = rank_of.get((argument, one.process_id)) if one.process_id is not None else None
            found.append(one.at(report=name, rank=own[0] if rank is None and len(own) == 1 else rank))
        if digest.n_graphs:
            code = "comm-in-graphs" if is_hidden else "graphs-as-a-whole"
            found.append(problem(code, n=digest.n_graphs).at(report=name, rank=own[0] if len(own) == 1 else None))
        if digest.facts.session_start_utc_ns is None and len(digests) > 1:
            found.append(problem("no-session-start").at(report=name))
    return found


def of_ranks(
    placed: Sequence[Placed[ProcessDigest]], ranks: Sequence[int], size: int | None, captured: Captured
) -> list[Problem]:
    """State what the ranks lack: a GPU's name, communication, other ranks of the world."""
    found = []
    for one, rank in zip(placed, ranks, strict=True):
        if one.report.facts.gpu_name(one.process.pid, one.process.device_id) is None:
            found.append(problem("no-gpu-name", rank=rank))
    if lacks_comm(placed, size) and not any(one.report.n_graphs for one in placed):
        found.append(problem("no-comm-kernels", n=len(ranks)))
    if size is not None and placed:
        found += _absent(set(ranks), size, captured)
    return found


def lacks_comm(placed: Sequence[Placed[ProcessDigest]], size: int | None) -> bool:
    """Tell whether several ranks ran, and no kernel is known to communicate."""
    is_several = len(placed) > 1 or (size or 0) > 1
    return bool(placed) and is_several and all(one.process.n_comm == 0 for one in placed)


def of_world(n_processes: int, world_size: int | None) -> list[Problem]:
    """State that there are more processes with steps or device activity than the job had ranks."""
    if world_size is None or n_processes <= world_size:
        return []
    return [problem("more-ranks-than-world", n=n_processes, world_size=world_size)]


def _absent(present: set[int], size: int, captured: Captured) -> Iterator[Problem]:
    """State which ranks of the world have no report here, and which of those were never to have one."""
    left_out = {rank for rank in captured.not_captured if rank < size} - present
    n_missing = size - sum(rank < size for rank in present | left_out)
    if n_missing:
        known = present | left_out
        absent = (rank for rank in range(size) if rank not in known)
        missing = _shown(absent, n_missing)
        if files := captured.reports_of(captured.ranks - known):
            missing += f"; captured as {', '.join(files[:_SHOWN])}"
        yield problem("ranks-missing", n=n_missing, world_size=size, missing=missing)
    if left_out:
        missing = _shown(sorted(left_out), len(left_out))
        yield problem("ranks-not-captured", n=len(left_out), world_size=size, missing=missing)


def of_messages(collectives: pa.Table, n_ranks: int, digests: Sequence[ReportDigest]) -> list[Problem]:
    """State that bandwidths are null for want of message sizes, and why the report has none that lacks most."""
    sizes = collectives["message_bytes"]
    if n_ranks < 2 or not sizes.null_count:  # noqa: PLR2004 - one rank sends nothing
        return []
    if sizes.null_count == len(sizes):
        gaps = {digest.size_gap for digest in digests}
        why, how = next((said for gap, said in SIZE_GAPS.items() if gap in gaps), _UNMATCHED_SIZES)
        return [problem("no-message-size", why=why, how=how)]
    return [problem("few-message-sizes", n=sizes.null_count, total=len(sizes))]


def of_steps(table: pa.Table, ranks: Sequence[int], selection: Selection, why_no_steps: str | None) -> list[Problem]:
    """State what is wrong with the steps as a whole."""
    if not ranks:
        return []
    if why_no_steps is not None:
        return [problem("no-steps", why=why_no_steps)]
    found = []
    rank_column, step_column = table["rank"].to_numpy(), table["step"].to_numpy()
    for missing, steps in _missing(rank_column, step_column, ranks).items():
        where, what = _shown(missing, len(missing)), _shown(steps, len(steps))
        found.append(problem("step-missing", step=what, missing=where))
    if not selection.steps.size:
        found.append(problem("no-common-step"))
    elif selection.is_fallback:
        found.append(problem("no-complete-step"))
        if selection.steps.size == 1:
            found.append(problem("few-steps", n=1))
    elif len(ranks) > 1 and _holds_start(table, selection):
        found.append(problem("capture-start-in-figures"))
    elif selection.steps.size < _FEW_STEPS:
        found.append(problem("few-steps", n=selection.steps.size))
    above = _above_any_rank(table, selection)
    if above > _IN_TURN:
        severity = "warning" if above > _MUCH_IN_TURN else None
        found.append(problem("slowest-rank-changes", severity=severity, percent=f"{100 * above:.1f}"))
    return found


def _above_any_rank(table: pa.Table, selection: Selection) -> float:
    """Return by what share the largest windows of the figures' steps sum to more than any rank's windows."""
    own = table.filter(pc.is_in(table["step"], value_set=pa.array(selection.steps, pa.int64())))
    if not own.num_rows:
        return 0.0
    wall = own["wall_ns"].to_numpy().astype(np.float64)
    _, step = np.unique(own["step"].to_numpy(), return_inverse=True)
    _, rank = np.unique(own["rank"].to_numpy(), return_inverse=True)
    largest = np.zeros(int(step.max()) + 1)
    np.maximum.at(largest, step, wall)
    of_rank = np.bincount(rank, wall).max()
    return float(largest.sum() / of_rank - 1) if of_rank else 0.0


def _holds_start(table: pa.Table, selection: Selection) -> bool:
    """Tell whether the step in which the capture began is among the figures'."""
    first = table["step"][int(np.argmin(table["start_ns"].to_numpy()))].as_py()
    return first in selection.steps


def _missing(rank: Int64, step: Int64, ranks: Sequence[int]) -> dict[tuple[int, ...], list[int]]:
    """Return the steps that some rank lacks, by the ranks that lack them."""
    numbers, counts = np.unique(step, return_counts=True)
    found: dict[tuple[int, ...], list[int]] = {}
    for number in numbers[counts < len(ranks)].tolist():
        present = rank[step == number]
        found.setdefault(tuple(np.setdiff1d(ranks, present).tolist()), []).append(number)
    return found


def _shown(numbers: Iterable[int], n_numbers: int) -> str:
    """List the first of some ascending numbers, and say how many more there are; the rest is not made."""
    listed = ", ".join(map(str, itertools.islice(numbers, _SHOWN)))
    return f"{listed} and {n_numbers - _SHOWN} more" if n_numbers > _SHOWN else listed


def problems_table(found: Sequence[Problem]) -> pa.Table:
    """Return `schema.PROBLEMS`, the gravest first; equal ones once."""

    def key(one: Problem) -> tuple[int, str, int, str, str]:
        return (
            SEVERITIES.index(one.severity),
            one.code,
            -1 if one.rank is None else one.rank,
            one.report or "",
            one.message,
        )

    names = schema.PROBLEMS.names
    return schema.PROBLEMS.from_rows(
        [{name: getattr(one, name) for name in names} for one in sorted(set(found), key=key)]
    )
