"""Rule ``tensor-comm``: layers wait for the collectives of tensor parallelism."""

from __future__ import annotations

from nsyspipe.analysis.traffic import TENSOR
from nsyspipe.findings.model import Answer, Evidence, Finding

_ASYNC = (
    "torch.compile with torch._inductor.config._micro_pipeline_tp = True runs them beside the matrix products (async tensor "
    "parallelism; Megatron: --tp-comm-overlap)"
)
_SPLIT = (
    "SequenceParallel of torch.distributed.tensor.parallel makes each all-reduce a reduce-scatter and an all-gather "
    "(Megatron: --sequence-parallel), and "
)


def tensor_comm(evidence: Evidence) -> Answer:
    """Fire where tensor parallelism has an `Evidence.exposed_cost`, which is the saving."""
    cost, is_whole = evidence.exposed_cost(TENSOR), bool(evidence.traffic_of(TENSOR, "all_reduce"))
    if cost is None:
        return None
    title = "layers wait for the collectives of tensor parallelism"
    action = f"{'sequence parallelism and ' if is_whole else ''}async tensor parallelism"
    return Finding(title, action, f"{_SPLIT if is_whole else ''}{_ASYNC}", *cost)
