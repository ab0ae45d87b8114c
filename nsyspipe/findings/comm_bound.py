"""Rule ``comm-bound``: communication that no compute hides."""

from __future__ import annotations

import pyarrow.compute as pc

from nsyspipe.analysis.traffic import DATA, OTHER
from nsyspipe.findings.model import Answer, Evidence, Finding

_LEAST_SHARE = 0.05
_NO_PHASE = "no phase"
# By whether all of it may be DDP's.
_ADVICE = {
    True: (
        "hide communication under backward, or send less",
        "hide it under backward (DDP bucket_cap_mb), send less (no_sync(), bf16_compress_hook), or use a faster link",
    ),
    False: ("hide communication under compute, or send less", "hide it under compute, send less, or use a faster link"),
}
_MOSTLY = 2 / 3  # a phase is named from this share of what is exposed on


def comm_bound(evidence: Evidence) -> Answer:
    r"""Fire when at least 5 % of step time is exposed communication, waiting for other ranks apart.

    Waiting is `straggler`'s; where it is not known, it counts, and the title says so. Saving: what is exposed so,
    ``|M \\ C \\ W|``, and what communication slows compute down by, as `Evidence.saving_without_comm` has it.
    """
    exposed = evidence.mean("exposed_comm_ns") if evidence.has_comm else None
    transfer = evidence.exposed_transfer_ns_per_step
    if exposed is None or transfer is None or evidence.share(transfer) < _LEAST_SHARE:
        return None
    by_phase = _by_phase(evidence)
    phase = max(by_phase, key=by_phase.__getitem__)
    # Of which phase the waiting is, is not known: it may all be of this one.
    is_mostly = by_phase[phase] - evidence.exposed_wait_ns_per_step >= _MOSTLY * transfer
    where = f", launched in {phase}" if is_mostly and phase != _NO_PHASE else ""
    apart = "waiting apart" if evidence.is_wait_known else "waiting included, which is not known"
    is_ddp = set(evidence.roles) <= {DATA, OTHER}
    action, advice = _ADVICE[is_ddp and bool(evidence.gradient_all_reduces.num_rows)]
    mostly = evidence.mostly("", "exposed_ns_per_step", transfer)
    by_role = {role: evidence.traffic_figures(role)["exposed_ns_per_step"] for role in evidence.roles}
    return Finding(
        title=f"communication is exposed ({apart}){where}{mostly}",
        action=action,
        advice=advice,
        saving_ns_per_step=evidence.saving_without_comm(),
        evidence={
            "exposed_comm_ns_per_step": exposed,
            "exposed_comm_share": evidence.share(exposed),
            "exposed_transfer_ns_per_step": transfer if evidence.is_wait_known else None,
            **evidence.slowdown_figures,
            **evidence.means("wait_ns", "exposed_wait_ns"),
            "exposed_comm_ns_per_step_by_phase": by_phase,
            **({} if is_ddp else {"exposed_comm_ns_per_step_by_role": by_role}),
        },
    )


def _by_phase(evidence: Evidence) -> dict[str, float]:
    """Split the exposed communication, ns per step, by the phase that launched it."""
    sums = evidence.phases.group_by("phase", use_threads=False).aggregate([("exposed_comm_ns", "sum")])
    rows = sums.sort_by("phase").to_pylist()
    totals = {row["phase"]: total for row in rows if (total := row["exposed_comm_ns_sum"])}
    rest = pc.sum(evidence.steps["exposed_comm_ns"]).as_py() - sum(totals.values())
    totals |= {_NO_PHASE: rest} if rest > 0 else {}
    return {phase: total / evidence.steps.num_rows for phase, total in totals.items()}
