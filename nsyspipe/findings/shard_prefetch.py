"""Rule ``shard-prefetch``: layers wait for their parameters to be gathered."""

from __future__ import annotations

from nsyspipe.analysis.traffic import SHARDED
from nsyspipe.findings.model import Answer, Evidence, Finding

_ADVICE = (
    "fully_shard: set_modules_to_forward_prefetch() and set_modules_to_backward_prefetch() of each unit; "
    "FullyShardedDataParallel(forward_prefetch=True, backward_prefetch=BackwardPrefetch.BACKWARD_PRE)"
)


def shard_prefetch(evidence: Evidence) -> Answer:
    """Fire where all-gathers of sharded parameters have an `Evidence.exposed_cost`, which is the saving."""
    cost = evidence.exposed_cost(SHARDED, "all_gather")
    if cost is None:
        return None
    title = "layers wait for their sharded parameters to be gathered"
    return Finding(title, "prefetch: gather parameters before they are needed", _ADVICE, *cost)
