"""Ranks that hold parts of one model: layers, stages and experts wait for other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow.compute as pc

from nsyspipe.analysis.traffic import EXPERT, PIPELINE, SHARDED, TENSOR
from nsyspipe.findings.gradients import many_small
from nsyspipe.findings.idle import launching_ns
from nsyspipe.findings.model import (
    COLUMNS_OF_COMM,
    IS_LAUNCH_BOUND,
    WAITING_UNKNOWN,
    Answer,
    Bound,
    Evidence,
    Finding,
    NotJudged,
    Rules,
)

_MIN_BUBBLE_SHARE_OF_STEP = 0.05
# Of the all-gathers of a step. The parameters of the last unit and of a few others may stay.
_MIN_SHARE_OF_SECOND_GATHERING = 0.25
_PREFETCH = (
    "If you use fully_shard, call set_modules_to_forward_prefetch() and "
    "set_modules_to_backward_prefetch() of each unit. Or set "
    "FullyShardedDataParallel(forward_prefetch=True, "
    "backward_prefetch=BackwardPrefetch.BACKWARD_PRE)"
)
_KEEP_PARAMETERS = (
    "fully_shard(reshard_after_forward=False), or ShardingStrategy.SHARD_GRAD_OP, keeps "
    "parameters from forward to backward. "
    "This needs memory for all parameters"
)
_SHARD_LARGER_UNITS = (
    "Call fully_shard on larger units, several layers as a list, or give "
    "FullyShardedDataParallel an auto_wrap_policy for larger "
    "units (size_based_auto_wrap_policy, min_num_params)"
)
_OVERLAP_TENSOR_PARALLELISM = (
    "torch.compile with torch._inductor.config._micro_pipeline_tp = True overlaps collectives "
    "with matrix products (async "
    "tensor parallelism, in Megatron --tp-comm-overlap)"
)
_USE_SEQUENCE_PARALLELISM = (
    "SequenceParallel of torch.distributed.tensor.parallel replaces each all-reduce by a "
    "reduce-scatter and an all-gather "
    "(Megatron: --sequence-parallel). "
)
_OVERLAP_ALL_TO_ALL = (
    "Overlap all-to-all with compute (Megatron: --overlap-moe-expert-parallel-comm, "
    "--moe-shared-expert-overlap). You "
    "can also send fewer tokens: a capacity factor (Megatron: --moe-expert-capacity-factor) "
    "may drop tokens"
)
_SHORTEN_BUBBLE = (
    "Use more micro-batches per step (n_microbatches of torch.distributed.pipelining), several "
    "stages per rank "
    "(ScheduleInterleaved1F1B, in Megatron --num-layers-per-virtual-pipeline-stage), and "
    "stages of equal work"
)
_LAUNCH_LESS_FIRST = "Launch fewer kernels first, because more micro-batches need more launches. "
_SIZES_UNKNOWN = "message sizes are unknown, so nsyspipe cannot separate latency from bandwidth"
_STAGES_UNKNOWN = "it is not known which stages send to each other, so their wait time is unknown"


# Sharded parameters


def shard_prefetch(evidence: Evidence) -> Answer:
    """Fire if all-gathers of sharded parameters cost much. Saving: `Evidence.exposed_cost`."""
    cost = evidence.exposed_cost(SHARDED, "all_gather")
    if cost is None:
        return None
    return Finding(
        title="Layers wait until their sharded parameters have been gathered",
        action="Prefetch parameters before layers need them",
        advice=_PREFETCH,
        saving_ns_per_step=cost.ns_per_step,
        evidence=cost.figures,
    )


def shard_regather(evidence: Evidence) -> Answer:
    """Fire if `shard_prefetch` does, and the backward pass launches a quarter of the all-gathers.

    Saving: `Evidence.saving_without` the all-gathers of the backward pass.
    """
    cost = evidence.exposed_cost(SHARDED, "all_gather")
    all_gathers = evidence.operations_of_role(SHARDED, "all_gather")
    # Only operations of a backward pass have a micro-batch.
    in_backward = all_gathers.filter(pc.is_valid(all_gathers["micro_batch"]))
    min_number = _MIN_SHARE_OF_SECOND_GATHERING * all_gathers.num_rows
    if cost is None or in_backward.num_rows < min_number:
        return None
    saving = evidence.saving_without(in_backward)
    figures = {**cost.figures, **saving.figures}
    figures["backward_calls_per_step"] = in_backward.num_rows / evidence.steps.num_rows
    return Finding(
        title="Sharded parameters are gathered a second time in the backward pass",
        action="Set reshard_after_forward=False, if memory allows",
        advice=_KEEP_PARAMETERS,
        saving_ns_per_step=saving.ns_per_step,
        evidence=figures,
    )


def small_shards(evidence: Evidence) -> Answer:
    """Fire if a step has many small collectives of sharded parameters, see `many_small`.

    Not judged if message sizes are not known, because over a fast link large shards take as little
    time as small ones.
    """
    small = many_small(evidence, evidence.operations_of_role(SHARDED))
    if small is None or isinstance(small, NotJudged):
        return small
    if small.figures["median_message_bytes"] is None:
        return evidence.not_judged_without_sizes(_SIZES_UNKNOWN)
    collectives = "collectives of sharded parameters"
    figures = evidence.traffic_figures(SHARDED) | small.figures
    return Finding(
        title=f"A step has many {collectives} that are so short that latency dominates",
        action="Shard larger units (many small collectives now)",
        advice=_SHARD_LARGER_UNITS,
        saving_ns_per_step=small.ns_per_step,
        evidence=figures,
    )


# Tensor and expert parallelism


def tensor_comm(evidence: Evidence) -> Answer:
    """Fire if tensor parallelism costs much. Saving: `Evidence.exposed_cost`."""
    cost = evidence.exposed_cost(TENSOR)
    if cost is None:
        return None
    action = "Use async tensor parallelism"
    advice = _OVERLAP_TENSOR_PARALLELISM
    if evidence.traffic_of_role(TENSOR, "all_reduce"):
        action = "Use sequence parallelism and async tensor parallelism"
        advice = _USE_SEQUENCE_PARALLELISM + _OVERLAP_TENSOR_PARALLELISM
    return Finding(
        title="Layers wait for the collectives of tensor parallelism",
        action=action,
        advice=advice,
        saving_ns_per_step=cost.ns_per_step,
        evidence=cost.figures,
    )


def expert_comm(evidence: Evidence) -> Answer:
    """Fire if all-to-all costs much, of experts or of sequence parallelism.

    Saving: `Evidence.exposed_cost`.
    """
    cost = evidence.exposed_cost(EXPERT)
    if cost is None:
        # Sends and receives of unknown purpose may be an all-to-all.
        return evidence.why_sends_are_unknown
    return Finding(
        title="Layers wait for the tokens of an all-to-all",
        action="Overlap all-to-all, or limit the capacity of experts",
        advice=_OVERLAP_ALL_TO_ALL,
        saving_ns_per_step=cost.ns_per_step,
        evidence=cost.figures,
    )


# Pipelines


def pipeline_bubble(evidence: Evidence) -> Answer:
    """Fire if ranks wait for other stages for 5 % of step time. Saving: see `_bound_on_bubble`."""
    if not evidence.is_pipeline:
        return evidence.why_sends_are_unknown
    if not evidence.has_communicators:
        return NotJudged(_STAGES_UNKNOWN, evidence.payload_fix)
    bubble_ns = evidence.bubble_ns_per_step
    if bubble_ns is None:
        return WAITING_UNKNOWN
    bubble_share = evidence.share_of_step(bubble_ns)
    if bubble_share < _MIN_BUBBLE_SHARE_OF_STEP:
        return None
    bound = _bound_on_bubble(evidence)
    traffic = evidence.traffic_of_role(PIPELINE)
    figures: dict[str, Any] = {"bubble_ns_per_step": bubble_ns, "bubble_share": bubble_share}
    figures["bubble_ns_per_step_by_rank"] = _bubble_by_rank(traffic)
    figures |= evidence.means("idle_ns")
    figures["saving_ns_per_step_by_part"] = bound.parts
    if "left_for_launching" in bound.parts:
        figures |= evidence.launching_figures
    advice = _SHORTEN_BUBBLE
    if evidence.is_launch_bound:
        figures[IS_LAUNCH_BOUND] = True
        advice = _LAUNCH_LESS_FIRST + _SHORTEN_BUBBLE
    return Finding(
        title="Stages of the pipeline wait for each other",
        action="Use more micro-batches, or an interleaved schedule",
        advice=advice,
        saving_ns_per_step=bound.saving_ns,
        evidence=figures,
    )


def _bound_on_bubble(evidence: Evidence) -> Bound:
    """Return what a step gains at most if no stage waits. The stage with most work sets the pace.

    Per step::

        max over ranks(wall) - max over ranks(wall - wait - idle)

    Waiting in other collectives counts too. So does idle time that may lie in the bubble: all but
    `idle.launching_ns`, which stays. A step stays at least as long as the fastest host needs to
    launch it, because no schedule launches earlier.
    """
    wall_ns, idle_ns = evidence.columns("wall_ns", "idle_ns")
    bubble_idle_ns = idle_ns - launching_ns(evidence)
    steps = evidence.steps
    # If waiting is not known, all communication counts.
    wait_ns = pc.coalesce(steps["wait_ns"], steps["comm_ns"], 0).to_numpy()
    work_ns = wall_ns - bubble_idle_ns - wait_ns
    busiest_rows = evidence.rows_of_largest(work_ns)
    parts = evidence.mean_parts(busiest_rows, waiting=wait_ns, idle=bubble_idle_ns)
    saving_ns = evidence.saving_down_to(work_ns)
    max_saving_ns = float(evidence.above_launching_ns.mean())
    if saving_ns <= max_saving_ns:
        return Bound(saving_ns, parts)
    # Parts sum to the bound, so what is left is a part below 0.
    left_ns = max_saving_ns - saving_ns
    return Bound(max_saving_ns, {**parts, "left_for_launching": left_ns})


def _bubble_by_rank(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the bubble of each rank: a sum over rows of traffic, in their order."""
    bubble_ns_by_rank: dict[str, float] = {}
    for row in rows:
        rank = str(row["rank"])
        previous_ns = bubble_ns_by_rank.get(rank, 0.0)
        bubble_ns_by_rank[rank] = previous_ns + row["bubble_ns_per_step"]
    return bubble_ns_by_rank


RULES: Rules = dict.fromkeys(
    (shard_prefetch, shard_regather, small_shards, tensor_comm, pipeline_bubble, expert_comm),
    COLUMNS_OF_COMM,
)
