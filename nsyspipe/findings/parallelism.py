"""Ranks that hold parts of one model: layers, stages and experts wait for what others hold or compute."""

from typing import Any

import pyarrow.compute as pc

from nsyspipe.analysis.traffic import EXPERT, PIPELINE, SHARDED, TENSOR
from nsyspipe.findings.gradients import many_small
from nsyspipe.findings.host import launching_ns
from nsyspipe.findings.model import (
    IS_LAUNCH_BOUND,
    OF_COMM,
    WAITING_UNKNOWN,
    Answer,
    Evidence,
    Finding,
    NotJudged,
    Rules,
)

_LEAST_BUBBLE = 0.05  # of step time
_LEAST_AGAIN = (
    0.25  # of a step's all-gathers: the last unit's parameters may stay, and a few others
)
_PREFETCH = (
    "If you use fully_shard, call set_modules_to_forward_prefetch() and "
    "set_modules_to_backward_prefetch() of each unit. Or set "
    "FullyShardedDataParallel(forward_prefetch=True, "
    "backward_prefetch=BackwardPrefetch.BACKWARD_PRE)"
)
_KEEP = (
    "fully_shard(reshard_after_forward=False), or ShardingStrategy.SHARD_GRAD_OP, keeps "
    "parameters from forward to backward. "
    "This needs memory for all parameters"
)
_LARGER_UNITS = (
    "Call fully_shard on larger units, several layers as a list, or give "
    "FullyShardedDataParallel an auto_wrap_policy for larger "
    "units (size_based_auto_wrap_policy, min_num_params)"
)
_ASYNC = (
    "torch.compile with torch._inductor.config._micro_pipeline_tp = True overlaps collectives "
    "with matrix products (async "
    "tensor parallelism, in Megatron --tp-comm-overlap)"
)
_SPLIT = (
    "SequenceParallel of torch.distributed.tensor.parallel replaces each all-reduce by a "
    "reduce-scatter and an all-gather "
    "(Megatron: --sequence-parallel). "
)
_ALL_TO_ALL = (
    "Overlap all-to-all with compute (Megatron: --overlap-moe-expert-parallel-comm, "
    "--moe-shared-expert-overlap). You "
    "can also send fewer tokens: a capacity factor (Megatron: --moe-expert-capacity-factor) "
    "may drop tokens"
)
_MORE_STAGES = (
    "Use more micro-batches per step (n_microbatches of torch.distributed.pipelining), several "
    "stages per rank "
    "(ScheduleInterleaved1F1B, in Megatron --num-layers-per-virtual-pipeline-stage), and "
    "stages of equal work"
)
_AFTER_LAUNCHING = "Launch fewer kernels first, because more micro-batches need more launches. "
_SIZES_UNKNOWN = "message sizes are unknown, so nsyspipe cannot separate latency from bandwidth"
_STAGES_UNKNOWN = "it is not known which stages send to each other, so their wait time is unknown"


def shard_prefetch(evidence: Evidence) -> Answer:
    """Fire where all-gathers of sharded parameters have an `Evidence.exposed_cost`, which is the saving."""
    cost = evidence.exposed_cost(SHARDED, "all_gather")
    if cost is None:
        return None
    title = "Layers wait until their sharded parameters have been gathered"
    return Finding(title, "Prefetch parameters before layers need them", _PREFETCH, *cost)


def shard_regather(evidence: Evidence) -> Answer:
    """Fire where `shard_prefetch` does, and backward launches a quarter of the all-gathers.

    Saving: `Evidence.saving_without` those.
    """
    cost = evidence.exposed_cost(SHARDED, "all_gather")
    rows = evidence.operations_of_role(SHARDED, "all_gather")
    again = rows.filter(pc.is_valid(rows["micro_batch"]))
    if cost is None or again.num_rows < _LEAST_AGAIN * rows.num_rows:
        return None
    title = "Sharded parameters are gathered a second time in the backward pass"
    saving, of_saving = evidence.saving_without(again)
    figures = (
        cost[1] | of_saving | {"backward_calls_per_step": again.num_rows / evidence.steps.num_rows}
    )
    return Finding(
        title, "Set reshard_after_forward=False, if memory allows", _KEEP, saving, figures
    )


def small_shards(evidence: Evidence) -> Answer:
    """Fire when a step has 20 collectives of sharded parameters or more that are small, as `many_small` has it; saving too.

    Not judged where message sizes are not known: over a fast link large shards are as short as
    small ones.
    """
    small = many_small(evidence, evidence.operations_of_role(SHARDED))
    if small is None or isinstance(small, NotJudged):
        return small
    if small[1]["median_message_bytes"] is None:
        return evidence.not_judged_without_sizes(_SIZES_UNKNOWN)
    title = (
        "A step has many collectives of sharded parameters that are so short that latency dominates"
    )
    figures = evidence.traffic_figures(SHARDED) | small[1]
    return Finding(
        title, "Shard larger units (many small collectives now)", _LARGER_UNITS, small[0], figures
    )


def tensor_comm(evidence: Evidence) -> Answer:
    """Fire where tensor parallelism has an `Evidence.exposed_cost`, which is the saving."""
    cost = evidence.exposed_cost(TENSOR)
    is_whole = bool(evidence.traffic_of_role(TENSOR, "all_reduce"))
    if cost is None:
        return None
    title = "Layers wait for the collectives of tensor parallelism"
    action = f"Use {'sequence parallelism and ' if is_whole else ''}async tensor parallelism"
    return Finding(title, action, f"{_SPLIT if is_whole else ''}{_ASYNC}", *cost)


def pipeline_bubble(evidence: Evidence) -> Answer:
    """Fire when ranks wait for other stages for 5 % of step time.

    Saving, per step: max over ranks(wall) - max over ranks(wall - wait - idle), the limit where no
    stage waits, in other collectives either, nor idles, which may stand in the bubble. Of idle time
    `host.launching_ns` does not: it stays. The stage with most work sets the pace. The saving is at
    most what a step takes longer than the fastest host needs to launch it: no schedule launches
    earlier.
    """
    if not evidence.is_pipeline:
        return evidence.why_sends_are_unknown
    rows = evidence.traffic_of_role(PIPELINE)
    if not evidence.has_communicators:
        return NotJudged(_STAGES_UNKNOWN, evidence.payload_fix)
    bubble = evidence.bubble_ns_per_step
    if bubble is None:
        return WAITING_UNKNOWN
    if evidence.share_of_step(bubble) < _LEAST_BUBBLE:
        return None
    bubbles = dict.fromkeys((str(row["rank"]) for row in rows), 0.0)
    for row in rows:
        bubbles[str(row["rank"])] += row["bubble_ns_per_step"]
    wall, idle = evidence.columns("wall_ns", "idle_ns")
    idle = idle - launching_ns(evidence)
    waiting = pc.coalesce(evidence.steps["wait_ns"], evidence.steps["comm_ns"], 0).to_numpy()
    work = wall - idle - waiting
    parts = evidence.mean_parts(evidence.rows_of_largest(work), waiting=waiting, idle=idle)
    saving_ns = evidence.saving_down_to(work)
    most_ns = float(evidence.above_launching_ns.mean())
    of_launching: dict[str, Any] = {}
    if saving_ns > most_ns:
        parts["left_for_launching"] = most_ns - saving_ns
        saving_ns = most_ns
        of_launching = evidence.launching_figures
    advice = _MORE_STAGES
    if evidence.is_launch_bound:
        of_launching |= {IS_LAUNCH_BOUND: True}
        advice = _AFTER_LAUNCHING + _MORE_STAGES
    figures = {
        "bubble_ns_per_step": bubble,
        "bubble_share": evidence.share_of_step(bubble),
        "bubble_ns_per_step_by_rank": bubbles,
        **evidence.means("idle_ns"),
        "saving_ns_per_step_by_part": parts,
        **of_launching,
    }
    title = "Stages of the pipeline wait for each other"
    action = "Use more micro-batches, or an interleaved schedule"
    return Finding(title, action, advice, saving_ns, figures)


def expert_comm(evidence: Evidence) -> Answer:
    """Fire where all-to-all, of experts or sequence parallelism, has an `Evidence.exposed_cost`, which is the saving."""
    cost = evidence.exposed_cost(EXPERT)
    if cost is None:
        return evidence.why_sends_are_unknown
    title = "Layers wait for the tokens of an all-to-all"
    return Finding(
        title, "Overlap all-to-all, or limit the capacity of experts", _ALL_TO_ALL, *cost
    )


RULES: Rules = dict.fromkeys(
    (shard_prefetch, shard_regather, small_shards, tensor_comm, pipeline_bubble, expert_comm),
    OF_COMM,
)
