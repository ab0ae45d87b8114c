"""Kernels that appeared, vanished or changed: matched by phase and normalised name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.difference.step_table import has_whole_graphs
from nsyspipe.difference.tables import KERNEL_CHANGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from nsyspipe.difference.step_table import StepTable
    from nsyspipe.run import Run

    Float64 = NDArray[np.float64]
    Int64 = NDArray[np.int64]

__all__ = ["TOP", "is_estimated", "kernel_changes", "top_kernels"]

TOP = 10
_NCCL = "nccl"
# Of the step time: a change that is worth a line, however long the kernel is.
_LITTLE = 0.001
# By phase and name: time and number per rank and step, mean duration.
Costs = dict[tuple[str | None, str], tuple[float, float, float]]


def kernel_changes(
    baseline: Sequence[StepTable], candidate: Sequence[StepTable], *, min_effect: float
) -> pa.Table:
    """Compare what each kernel costs per rank and step.

    Time and number per rank and step are ``in_summary_ns`` and ``n_in_summary`` of `schema.KERNEL_COSTS`, summed over
    ranks, / (ranks x summary steps): exactly what starts in the steps that the figures rest on. A kernel that never
    runs there, on a side, is not there; one that is on neither has no row.

    Where those columns are null (runs saved before they were counted: `is_estimated`) they are estimated: totals of
    the whole capture times (mean compute time of the summary steps) / (compute time of all windows), rank by rank,
    for communication the same of communication and, for its number, of collectives.

    Parameters
    ----------
    min_effect
        A kernel on both sides whose time changed by at most this ratio of the lesser is ``same``, unless that is more
        than a thousandth of the step time (of the captures the least). Swapped sides have the same answer.

    Returns
    -------
    pyarrow.Table
        `tables.KERNEL_CHANGES`, the largest difference first; no rows where a side has no summary steps, nor where
        captures of CUDA graphs as a whole stand beside others: kernels inside those were not seen.
    """
    if not all(table.n_steps for table in (*baseline, *candidate)):
        return KERNEL_CHANGES.empty()
    if len({has_whole_graphs(table.run) for table in (*baseline, *candidate)}) > 1:
        return KERNEL_CHANGES.empty()
    before, after = (_side_costs(side) for side in (baseline, candidate))
    wall = [table.matrix("wall_ns") for table in (*baseline, *candidate)]
    little = _LITTLE * min(float(one.max(axis=0).mean()) for one in wall if one is not None)
    rows = [_row(key, before, after, min_effect, little) for key in {*before, *after}]
    rows.sort(key=_order)
    return KERNEL_CHANGES.from_rows(rows)


def top_kernels(kernels: pa.Table, n_kept: int = TOP) -> pa.Table:
    """Keep the largest differences of those that are not the same."""
    chosen = kernels.filter(pc.not_equal(kernels["status"], "same"))
    return chosen.slice(0, n_kept)


def is_estimated(run: Run) -> bool:
    """Tell whether some of what a run's kernels take in a summary step is not counted but estimated."""
    return bool(run.kernels()["in_summary_ns"].null_count)


def _order(row: dict[str, Any]) -> tuple[float, str, str]:
    return -abs(row["delta_ns_per_step"]), row["phase"] or "", row["name"]


def _row(
    key: tuple[str | None, str], before: Costs, after: Costs, min_effect: float, little: float
) -> dict[str, Any]:
    old, new = before.get(key), after.get(key)
    old_ns, new_ns = (side[0] if side else 0.0 for side in (old, new))
    if old is None or new is None:
        status = "appeared" if old is None else "vanished"
    else:
        apart = abs(new_ns - old_ns)
        is_same = apart <= min_effect * min(old_ns, new_ns) and apart <= little
        status = "same" if is_same else "changed"
    return {
        "phase": key[0],
        "name": key[1],
        "status": status,
        "baseline_ns_per_step": old_ns,
        "candidate_ns_per_step": new_ns,
        "delta_ns_per_step": new_ns - old_ns,
        "baseline_n_per_step": old[1] if old else 0.0,
        "candidate_n_per_step": new[1] if new else 0.0,
        "baseline_mean_ns": old[2] if old else None,
        "candidate_mean_ns": new[2] if new else None,
    }


def _side_costs(side: Iterable[StepTable]) -> Costs:
    """Return the mean over a side's captures; where a capture lacks a kernel, it took no time there."""
    captures = [_costs(table) for table in side]
    found: Costs = {}
    for key in {key for costs in captures for key in costs}:
        own = [costs[key] for costs in captures if key in costs]
        ns, number = (sum(cost[at] for cost in own) / len(captures) for at in (0, 1))
        found[key] = (ns, number, sum(cost[2] for cost in own) / len(own))
    return found


def _costs(table: StepTable) -> Costs:
    """Return what each kernel that runs in a summary step costs there."""
    kernels = table.run.kernels()
    ns, n = (
        pc.cast(kernels[name], pa.float64(), safe=False)
        for name in ("in_summary_ns", "n_in_summary")
    )
    if ns.null_count or n.null_count:
        ns, n = (pc.coalesce(*pair) for pair in zip((ns, n), _estimated(table), strict=True))
    summed = pa.table({"phase": kernels["phase"], "name": kernels["name"], "ns": ns, "n": n})
    rows = summed.group_by(["phase", "name"], use_threads=False).aggregate(
        [("ns", "sum"), ("n", "sum")]
    )
    n_rows = len(table.ranks) * table.n_steps
    return {
        (row["phase"], row["name"]): (
            row["ns_sum"] / n_rows,
            row["n_sum"] / n_rows,
            row["ns_sum"] / row["n_sum"],
        )
        for row in rows.to_pylist()
        if row["n_sum"] > 0
    }


def _estimated(table: StepTable) -> tuple[pa.Array, pa.Array]:
    """Return time and number in the summary steps for each row of kernels, from those of the whole capture."""
    kernels = table.run.kernels()
    ranks = kernels["rank"].to_numpy()
    is_comm = pc.starts_with(kernels["name"], _NCCL, ignore_case=True).to_numpy().astype(np.bool_)
    compute, comm, calls = (
        _share_in_summary(table, column, ranks)
        for column in ("compute_ns", "comm_ns", "n_collectives")
    )
    return (
        pa.array(kernels["total_ns"].to_numpy() * np.where(is_comm, comm, compute)),
        pa.array(kernels["n_kernels"].to_numpy() * np.where(is_comm, calls, compute)),
    )


def _share_in_summary(table: StepTable, column: str, wanted: Int64) -> Float64:
    """Return for each of some ranks how much of a figure of all its windows is in the summary steps."""
    steps = table.run.steps()
    ranks, own = np.unique(steps["rank"].to_numpy(), return_inverse=True)
    is_in = steps["in_summary"].to_numpy()
    part, whole = np.bincount(own, weights=is_in), np.bincount(own).astype(np.float64)
    if not steps[column].null_count:
        values = steps[column].to_numpy()
        of_all = np.bincount(own, weights=values)
        # Where it is 0 in all windows, or not known, windows are counted.
        part = np.where(of_all > 0, np.bincount(own, weights=values * is_in), part)
        whole = np.where(of_all > 0, of_all, whole)
    found: Float64 = (part / whole)[np.searchsorted(ranks, wanted)]
    return found
