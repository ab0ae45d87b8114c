"""Rule ``expert-comm``: layers wait for the tokens that all-to-all brings."""

from __future__ import annotations

from nsyspipe.analysis.traffic import EXPERT
from nsyspipe.findings.model import Answer, Evidence, Finding

_ADVICE = (
    "run all-to-all beside compute (Megatron: --overlap-moe-expert-parallel-comm, --moe-shared-expert-overlap), or, of "
    "experts, send fewer tokens (a capacity factor; Megatron: --moe-expert-capacity-factor, which may drop some)"
)


def expert_comm(evidence: Evidence) -> Answer:
    """Fire where all-to-all, of experts or sequence parallelism, has an `Evidence.exposed_cost`, which is the saving."""
    cost = evidence.exposed_cost(EXPERT)
    if cost is None:
        return evidence.unknown_sends
    title = "layers wait for the tokens that all-to-all brings"
    return Finding(title, "overlap all-to-all; of experts, limit the capacity", _ADVICE, *cost)
