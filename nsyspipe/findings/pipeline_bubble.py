"""Rule ``pipeline-bubble``: stages of a pipeline wait for each other, by design."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from nsyspipe.analysis.traffic import PIPELINE, bubble_ns_per_step
from nsyspipe.findings.model import WITH_CALLS, Answer, Evidence, Finding, NotJudged

_LEAST_SHARE = 0.05
_WITHOUT_CALLS = "sends and receives may be a pipeline's, or parts of an all-to-all"


def pipeline_bubble(evidence: Evidence) -> Answer:
    """Fire when ranks wait for other stages for 5 % of step time.

    Saving, per step: max over ranks(wall) - max over ranks(wall - wait - idle), the limit where no stage waits, in other
    collectives either, nor idles, which may stand in the bubble. The stage with most work sets the pace.
    """
    if not evidence.is_pipeline:
        return evidence.unknown_sends
    rows = evidence.traffic_of(PIPELINE)
    if not evidence.has_communicators:
        return NotJudged(_WITHOUT_CALLS, WITH_CALLS)
    bubble = bubble_ns_per_step(evidence.traffic, evidence.n_ranks)
    if bubble is None:
        return NotJudged("waiting is not known", "see the problems about clocks and matching")
    if evidence.share(bubble) < _LEAST_SHARE:
        return None
    steps, bubbles = evidence.steps, dict.fromkeys((str(row["rank"]) for row in rows), 0.0)
    for row in rows:
        bubbles[str(row["rank"])] += row["bubble_ns_per_step"]
    wall, idle = steps["wall_ns"].to_numpy(), pc.fill_null(steps["idle_ns"], 0).to_numpy()
    work = wall - idle - pc.coalesce(steps["wait_ns"], steps["comm_ns"], 0).to_numpy()
    saving = evidence.most(wall) - np.maximum(evidence.most(work), 0.0)
    return Finding(
        title="stages of the pipeline wait for each other",
        action="more micro-batches, or an interleaved schedule",
        advice="more micro-batches per step (n_microbatches of torch.distributed.pipelining), several stages per rank "
        "(ScheduleInterleaved1F1B; Megatron: --num-layers-per-virtual-pipeline-stage), and stages of equal work",
        saving_ns_per_step=min(float(saving.mean()), evidence.mean("wall_ns") or 0.0),
        evidence={
            "bubble_ns_per_step": bubble, "bubble_share": evidence.share(bubble), "bubble_ns_per_step_by_rank": bubbles,
            **evidence.means("idle_ns"),
        },
    )  # fmt: skip
