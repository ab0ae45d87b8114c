"""Rule ``shard-regather``: sharded parameters are gathered a second time in backward."""

from __future__ import annotations

import pyarrow.compute as pc

from nsyspipe.analysis.traffic import SHARDED
from nsyspipe.findings.model import Answer, Evidence, Finding

_LEAST_PART = 0.25  # of a step's all-gathers: the last unit's parameters may stay, and a few others
_ADVICE = (
    "fully_shard(reshard_after_forward=False), or ShardingStrategy.SHARD_GRAD_OP, keeps parameters from forward to backward, "
    "which takes the memory of all of them"
)


def shard_regather(evidence: Evidence) -> Answer:
    """Fire where `shard_prefetch` does, and backward launches a quarter of the all-gathers.

    Saving: `Evidence.saving_without` those.
    """
    cost, rows = evidence.exposed_cost(SHARDED, "all_gather"), evidence.of_role(SHARDED, "all_gather")
    again = rows.filter(pc.is_valid(rows["micro_batch"]))
    if cost is None or again.num_rows < _LEAST_PART * rows.num_rows:
        return None
    title = "sharded parameters are gathered a second time in backward"
    figures = cost[1] | {"backward_calls_per_step": again.num_rows / evidence.steps.num_rows}
    action = "reshard_after_forward=False, where memory allows"
    return Finding(title, action, _ADVICE, evidence.saving_without(again), figures)
