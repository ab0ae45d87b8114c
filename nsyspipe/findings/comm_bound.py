"""Rule ``comm-bound``: communication that no compute hides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe.findings.model import Finding

if TYPE_CHECKING:
    from nsyspipe.findings.model import Answer, Evidence

__all__ = ["comm_bound"]

ID = "comm-bound"
_LEAST_SHARE = 0.05
_NO_PHASE = "no phase"


def comm_bound(evidence: Evidence) -> Answer:
    r"""Fire when at least 5 % of step time is exposed communication.

    Saving: all of it, ``|M \\ C|`` per step. In the step in which the capture begins ranks wait because their
    profilers start at different times: where there is no other step, waiting does not count.
    """
    exposed = evidence.mean("exposed_comm_ns") if evidence.has_comm else None
    if exposed is None:
        return None
    is_start = evidence.n_ranks > 1 and evidence.is_capture_start_only
    saving = max(exposed - (evidence.mean("wait_ns") or 0.0), 0.0) if is_start else exposed
    if evidence.share(saving) < _LEAST_SHARE:
        return None
    by_phase = _by_phase(evidence)
    return Finding(
        id=ID,
        title=f"communication is exposed, launched in {max(by_phase, key=by_phase.__getitem__)}",
        action="hide communication under backward, or send less",
        advice="hide it under backward (DDP bucket_cap_mb, FSDP prefetch), send less (gradient accumulation under "
        "no_sync(), bf16_compress_hook), or use a faster link",
        saving_ns_per_step=saving,
        evidence={
            "exposed_comm_ns_per_step": exposed,
            "exposed_comm_share": evidence.share(exposed),
            "wait_ns_per_step": evidence.mean("wait_ns"),
            "exposed_comm_ns_per_step_by_phase": by_phase,
        },
    )


def _by_phase(evidence: Evidence) -> dict[str, float]:
    """Split the exposed communication, ns per step, by the phase that launched it."""
    sums = evidence.phases.group_by("phase").aggregate([("exposed_comm_ns", "sum")]).to_pylist()
    found = {row["phase"]: row["exposed_comm_ns_sum"] or 0 for row in sums}
    found = {phase: found[phase] for phase in sorted(found) if found[phase]}
    rest = pc.sum(evidence.steps["exposed_comm_ns"]).as_py() - sum(found.values())
    found |= {_NO_PHASE: rest} if rest > 0 else {}
    return {phase: total / evidence.steps.num_rows for phase, total in found.items()}
