"""Rule ``single-bucket``: all gradients go in one all-reduce, which nothing can hide."""

from __future__ import annotations

import pyarrow.compute as pc

from nsyspipe.findings.model import Answer, Evidence, Finding

_MOST_OVERLAP, _LEAST_SHARE = 0.1, 0.01
_MOST_ALL_REDUCES, _DOMINANT = 3, 0.95  # a loss or a norm may be reduced as well: one takes nearly all of the time


def single_bucket(evidence: Evidence) -> Answer:
    """Fire when in every step one all-reduce takes 95 % of communication, and compute hides less than 10 % of it.

    Saving: what the backward pass could hide, the least of exposed communication, transfer (nothing hides waiting for
    a slower rank) and backward's time but for exposed communication (all compute where backward is not marked).
    """
    if not evidence.has_comm or not evidence.mean("compute_ns"):
        return None  # without compute nothing can hide it
    to_hide = min(evidence.exposed_transfer_ns_per_step or 0.0, evidence.transfer_ns_per_step)
    overlap = evidence.summary["overlap_ratio"] or 0.0
    if overlap >= _MOST_OVERLAP or evidence.share(to_hide) < _LEAST_SHARE:
        return None
    rows = evidence.gradient_all_reduces
    if not rows.num_rows:
        return evidence.unknown_gradients
    rows = rows.append_column("ns", pc.subtract(rows["end_ns"], rows["start_ns"]))
    per_step = rows.group_by(["rank", "step"], use_threads=False).aggregate([("ns", "max"), ("ns", "count")])
    longest, total = pc.sum(per_step["ns_max"]).as_py(), pc.sum(evidence.steps["comm_ns"]).as_py()
    if pc.max(per_step["ns_count"]).as_py() > _MOST_ALL_REDUCES or longest < _DOMINANT * total:
        return None
    backward = evidence.phases.filter(pc.equal(evidence.phases["phase"], "backward"))
    is_after = backward["compute_ns"].null_count < backward.num_rows
    names = ("device_ns", "exposed_comm_ns", "idle_ns", "compute_ns")
    busy, alone, idle, compute = (pc.mean(backward[name]).as_py() for name in names)
    hiding = compute or evidence.mean("compute_ns") or 0.0  # the time per step that could hide it
    if compute and None not in {busy, alone, idle}:
        hiding = max(compute, busy - alone + idle)
    return Finding(
        title="the gradients go in one all-reduce "
        + ("after the backward pass" if is_after else "that no compute hides"),
        action="lower bucket_cap_mb: one all-reduce " + ("goes after backward" if is_after else "that nothing hides"),
        advice="lower DistributedDataParallel(bucket_cap_mb=...), 25 is the default, so that buckets go while "
        "backward still runs",
        saving_ns_per_step=min(to_hide, float(hiding)),
        evidence={
            "collectives_per_step": evidence.summary["collectives_per_step"],
            "overlap_ratio": evidence.summary["overlap_ratio"],
            **evidence.means("exposed_comm_ns", "transfer_ns"),
            "all_reduce_ns_per_step": longest / evidence.steps.num_rows,
        },
    )
