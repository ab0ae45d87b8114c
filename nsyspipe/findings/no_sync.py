"""Rule ``no-sync``: gradients are sent in every backward pass of a step that has several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe.analysis.traffic import SHARDED, SMALL_BYTES
from nsyspipe.findings.model import WITH_CALLS, Answer, Evidence, Finding, NotJudged

if TYPE_CHECKING:
    import pyarrow as pa

_LEAST_SHARE = 0.01
_WITHOUT_SIZES = (
    "every backward pass sends gradients, and message sizes are needed to tell whether each time all of them"
)
# By whether they are sharded.
_ADVICE = {
    False: (
        "no_sync() in all micro-batches but the last",
        "run all passes but the last in model.no_sync() (Accelerate: accelerator.accumulate(model))",
    ),
    True: (
        "sync gradients in the last micro-batch, if memory allows",
        "call model.set_requires_gradient_sync(False), or no_sync(), in all passes but the last; gradients then stay whole",
    ),
}


def no_sync(evidence: Evidence) -> Answer:
    """Fire when each backward pass, of the same number of several in all steps, sends as many bytes in as many messages.

    Where sizes are not known, as many messages, two at least. Those are DDP's all-reduces, or the reduce-scatters of sharded gradients; small messages apart. It must cost 1 % of step
    time. Saving: `Evidence.saving_without` those of all passes but the last, with the waiting in them.
    """
    scatters = evidence.of_role(SHARDED, "reduce_scatter")
    rows = scatters if scatters.num_rows else evidence.gradient_all_reduces
    n_passes = (pc.max(rows["micro_batch"]).as_py() or 0) + 1
    if n_passes == 1:
        return None
    rows = rows.filter(pc.is_valid(rows["micro_batch"]))
    rows = rows.filter(pc.greater(pc.fill_null(rows["message_bytes"], SMALL_BYTES + 1), SMALL_BYTES))
    passes = rows.group_by(["rank", "step", "micro_batch"], use_threads=False)
    passes = passes.aggregate([("message_bytes", "sum"), ("end_ns", "count")])
    if passes.num_rows < n_passes * evidence.steps.num_rows or _varies(passes, "end_ns_count"):
        return None
    is_sized = not rows["message_bytes"].null_count
    if not is_sized and pc.min(passes["end_ns_count"]).as_py() == 1:  # two programs' alike: one message each
        return NotJudged(_WITHOUT_SIZES, WITH_CALLS)
    saving = evidence.saving_without(rows.filter(pc.less(rows["micro_batch"], n_passes - 1)), waits=True)
    if (is_sized and _varies(passes, "message_bytes_sum")) or evidence.share(saving) < _LEAST_SHARE:
        return None
    action, advice = _ADVICE[bool(scatters.num_rows)]
    alike = "all of them" if is_sized else "in as many messages"
    return Finding(
        title=f"gradients are sent in each of {n_passes} backward passes of a step, {alike} each time",
        action=action,
        advice=f"where they are accumulated for one optimizer step, {advice}",
        saving_ns_per_step=saving,
        evidence={
            "n_backward_passes": n_passes,
            "messages_per_step": rows.num_rows / evidence.steps.num_rows,
            "bytes_per_step": pc.sum(rows["message_bytes"]).as_py() / evidence.steps.num_rows if is_sized else None,
            **evidence.slowdown_figures,
        },
    )


def _varies(passes: pa.Table, column: str) -> bool:
    """Tell whether the passes of a rank differ."""
    by_rank = passes.group_by("rank", use_threads=False).aggregate([(column, "min"), (column, "max")])
    return bool(pc.any(pc.not_equal(by_rank[f"{column}_min"], by_rank[f"{column}_max"])).as_py())
