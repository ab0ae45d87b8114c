"""Rule ``compress-gradients``: over a slow link fewer bytes cost less."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.findings.model import Answer, Evidence, Finding, NotJudged
from nsyspipe.findings.slow_link import judge_link

_LEAST_SHARE, _WIDE = 0.1, ("f32", "f64")


def compress_gradients(evidence: Evidence) -> Answer:
    """Fire when all-reduces of f32 over a slow link leave 10 % of step time exposed.

    Saving: all that communication without other ranks' waiting costs, as `Evidence.saving_without_comm` has it, less
    the transfer that is not of these all-reduces: bf16 halves theirs, PowerSGD leaves next to nothing.
    """
    exposed = evidence.exposed_transfer_ns_per_step if evidence.has_comm else None
    if evidence.n_ranks == 1 or exposed is None:
        return None
    rows = evidence.gradient_all_reduces
    if not rows.num_rows and evidence.share(exposed) >= _LEAST_SHARE:
        return evidence.unknown_gradients
    rows = rows.filter(pc.is_in(rows["datatype"].cast(pa.string()), value_set=pa.array(_WIDE)))
    # Their whole time where transfer is not known.
    spent = pc.coalesce(rows["transfer_ns"], pc.subtract(rows["end_ns"], rows["start_ns"]))
    transfer = float((pc.sum(spent).as_py() or 0) / evidence.steps.num_rows)
    transferring = min(exposed, transfer)
    if evidence.share(transferring) < _LEAST_SHARE:
        return None
    verdict = judge_link(evidence)
    if verdict.is_slow is None:
        return NotJudged(*verdict.lacking)
    if not verdict.is_slow:
        return None
    total = evidence.transfer_ns_per_step
    wide = min(transfer / total, 1.0) if total else 1.0
    return Finding(
        title="f32 gradients cross a slow link without being hidden",
        action="bf16_compress_hook halves the bytes; mind the precision",
        advice="model.register_comm_hook(None, bf16_compress_hook), or PowerSGD: gradients lose precision, so check that "
        "training still converges",
        saving_ns_per_step=evidence.saving_without_comm(kept=1 - wide),
        evidence={**verdict.evidence, "exposed_transfer_ns_per_step": transferring, **evidence.slowdown_figures},
    )
