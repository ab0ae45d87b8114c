"""Rule ``small-shards``: many small all-gathers and reduce-scatters, each of which costs little more than its latency."""

from __future__ import annotations

from nsyspipe.analysis.traffic import SHARDED
from nsyspipe.findings.model import Answer, Evidence, Finding, NotJudged
from nsyspipe.findings.too_many_buckets import many_small

_ADVICE = (
    "call fully_shard on larger units, several layers as a list, or give FullyShardedDataParallel an auto_wrap_policy of larger "
    "ones (size_based_auto_wrap_policy, min_num_params)"
)


def small_shards(evidence: Evidence) -> Answer:
    """Fire when a step has 20 collectives of sharded parameters or more that are small, as `many_small` has it; saving too."""
    small = many_small(evidence, evidence.of_role(SHARDED))
    if small is None or isinstance(small, NotJudged):
        return small
    title = "many small collectives of sharded parameters, each bound by latency"
    figures = evidence.traffic_figures(SHARDED) | small[1]
    return Finding(title, "shard larger units: small collectives, latency-bound", _ADVICE, small[0], figures)
