"""Kernels that appeared, vanished or changed: matched by phase and normalised name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.difference.tables import KERNEL_CHANGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from nsyspipe.difference.step_table import StepTable

    Float64 = NDArray[np.float64]
    Int64 = NDArray[np.int64]

__all__ = ["TOP", "kernel_changes", "top_kernels"]

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

    The runs count kernels over their whole capture. To get from there to a summary step, totals are
    multiplied by (mean compute time of the summary steps) / (compute time of all windows), rank by
    rank, communication kernels by the same of communication, and their number by that of collectives: cut-off and
    skipped steps then count for what they hold.

    Parameters
    ----------
    min_effect
        A kernel on both sides whose time changed by less than this ratio is ``same``, unless that is more than a
        thousandth of the baseline's step time.

    Returns
    -------
    pyarrow.Table
        `tables.KERNEL_CHANGES`, the largest difference first; no rows where a side has no summary steps.
    """
    if not all(table.n_steps for table in (*baseline, *candidate)):
        return KERNEL_CHANGES.empty()
    before, after = (_side_costs(side) for side in (baseline, candidate))
    wall = [table.matrix("wall_ns") for table in baseline]
    little = _LITTLE * min(float(one.max(axis=0).mean()) for one in wall if one is not None)
    rows = [_row(key, before, after, min_effect, little) for key in {*before, *after}]
    rows.sort(key=_order)
    return KERNEL_CHANGES.from_rows(rows)


def top_kernels(kernels: pa.Table, n_kept: int = TOP) -> pa.Table:
    """Keep the largest differences of those that are not the same."""
    chosen = kernels.filter(pc.not_equal(kernels["status"], "same"))
    return chosen.slice(0, n_kept)


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
        is_same = apart <= min_effect * old_ns and apart <= little
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
    kernels = table.run.kernels()
    ranks = kernels["rank"].to_numpy()
    is_comm = pc.starts_with(kernels["name"], _NCCL, ignore_case=True).to_numpy().astype(np.bool_)
    compute, comm, calls = (
        _scales(table, column) for column in ("compute_ns", "comm_ns", "n_collectives")
    )
    time_scale = np.where(is_comm, comm(ranks), compute(ranks))
    scale = np.where(is_comm, calls(ranks), compute(ranks))
    n_ranks = len(table.ranks)
    totals = kernels["total_ns"].to_numpy()
    numbers = kernels["n_kernels"].to_numpy()
    summed = pa.table(
        {
            "phase": kernels["phase"],
            "name": kernels["name"],
            "ns": totals * time_scale / n_ranks,
            "n": numbers * scale / n_ranks,
            "total": totals,
            "number": numbers,
        }
    ).group_by(["phase", "name"], use_threads=False)
    rows = summed.aggregate([(name, "sum") for name in ("ns", "n", "total", "number")]).to_pylist()
    return {
        (row["phase"], row["name"]): (
            row["ns_sum"],
            row["n_sum"],
            row["total_sum"] / row["number_sum"],
        )
        for row in rows
    }


def _scales(table: StepTable, column: str) -> Callable[[Int64], Float64]:
    """Return what gives, for each rank, the factor from its capture's total to one summary step's."""
    steps = table.run.steps()
    ranks, own = np.unique(steps["rank"].to_numpy(), return_inverse=True)
    windows = np.bincount(own)
    values = np.zeros(own.size) if steps[column].null_count else steps[column].to_numpy()
    whole = np.bincount(own, weights=values)
    part = np.bincount(own, weights=values * steps["in_summary"].to_numpy()) / table.n_steps
    # Without such time (or knowledge of it) windows are counted.
    is_known = part > 0
    factor = np.where(is_known, part, 1.0) / np.where(is_known, whole, windows)

    def of_ranks(wanted: Int64) -> Float64:
        at = np.minimum(np.searchsorted(ranks, wanted), ranks.size - 1)
        return np.where(ranks[at] == wanted, factor[at], 1.0)

    return of_ranks
