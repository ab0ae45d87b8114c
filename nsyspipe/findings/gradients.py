"""Gradients that data-parallel ranks send: their buckets, copies, bytes, and how often."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.traffic import DATA, OTHER, SHARDED, SMALL_BYTES
from nsyspipe.findings.model import (
    COLUMNS_OF_COMM,
    WAITING_UNKNOWN,
    Answer,
    Evidence,
    Finding,
    NotJudged,
    Rules,
    Saving,
    select_rows,
)
from nsyspipe.findings.slow_link import judge_link, not_judged
from nsyspipe.model.typed_tables import (
    CommOperationsTable,
    PhasesTable,
)

# How gradients are sent matters from this share of step time on.
_MIN_SAVING_SHARE_OF_STEP = 0.01
# What is advised, and replayed: DDP's default, and a size for few small buckets.
BUCKET_MB = 25
LARGE_BUCKET_MB = 100
_MAX_OVERLAP_OF_SINGLE_BUCKET = 0.1
# A loss and a norm may be reduced too. One all-reduce takes nearly all of the time.
_MAX_ALL_REDUCES_OF_SINGLE_BUCKET = 3
_MIN_SHARE_OF_SINGLE_BUCKET = 0.95
_MIN_MANY_COLLECTIVES = 20
# What an all-reduce of very few bytes takes, within a host or over a fast network.
_MAX_SMALL_TRANSFER_NS = 100_000
# The link, and not latency, limits larger messages, however short their transfer is.
_MAX_SMALL_BUCKET_BYTES = 4e6
_MIN_COPY_SHARE_OF_STEP = 0.001
# Compression hooks copy factors, too. So few copied bytes must cost more.
_MIN_MANY_COPIED_BYTES = 16e6
_MIN_COPY_SHARE_OF_STEP_OF_FEW_BYTES = 0.005
_MIN_EXPOSED_SHARE_TO_COMPRESS = 0.1
_VIEW = "gradient_as_bucket_view=True"
_SIZES_MISSING = (
    "every backward pass sends gradients, but message sizes are missing, so nsyspipe does not know "
    "whether each pass sends all"
)


class _Advice(NamedTuple):
    """What to change, in a few words and in a part of a sentence."""

    action: str
    advice: str


_SKIP_SYNC = _Advice(
    "Skip gradient sync in all micro-batches but the last",
    (
        "run all passes except the last inside model.no_sync() (Accelerate: "
        "accelerator.accumulate(model))"
    ),
)
_SKIP_SYNC_OF_SHARDS = _Advice(
    "Sync gradients in the last micro-batch, if memory allows",
    (
        "call model.set_requires_gradient_sync(False), or no_sync(), in all passes except "
        "the last. Each rank then keeps "
        "whole gradients in memory"
    ),
)
_REDUCE_IN_NODES = (
    'HSDP, fully_shard(mesh=init_device_mesh("cuda", (nodes, ranks per node), '
    "mesh_dim_names=...)), reduce-scatters within a "
    "node and all-reduces only a part across nodes. Or let NCCL use a tree "
    "(NCCL_ALGO=NVLSTree,Tree). NCCL's log with "
    "NCCL_DEBUG_SUBSYS=TUNING shows which algorithm NCCL uses"
)


# single-bucket and too-many-buckets


class _AllReduces(NamedTuple):
    """The all-reduces of gradients of all ranks and steps."""

    # The sum, over ranks and steps, of the longest all-reduce of a rank in a step.
    sum_of_longest_ns: int
    # The largest number of all-reduces of a rank in a step.
    max_per_step: int


def single_bucket(evidence: Evidence) -> Answer:
    """Fire if one all-reduce is 95 % of communication, and compute overlaps less than 10 % of it.

    Saving: what the backward pass could hide. That is the least of exposed transfer, all transfer,
    and the sum of `_hiding_parts`. Transfer is communication without waiting for slower ranks.
    Nothing hides such waiting.
    """
    if not evidence.has_comm or not evidence.mean("compute_ns"):
        # Without compute, nothing can hide communication.
        return None
    exposed_transfer_ns = evidence.exposed_transfer_ns_per_step or 0.0
    to_hide_ns = min(exposed_transfer_ns, evidence.transfer_ns_per_step)
    overlap_ratio = evidence.summary["overlap_ratio"] or 0.0
    is_hidden = overlap_ratio >= _MAX_OVERLAP_OF_SINGLE_BUCKET
    if is_hidden or _is_little(evidence, to_hide_ns):
        return None
    if not evidence.gradient_all_reduces.num_rows:
        return evidence.why_gradients_are_unknown
    all_reduces = _measure_all_reduces(evidence.gradient_all_reduces)
    comm_ns = pc.sum(evidence.steps["comm_ns"]).as_py()
    is_dominant = all_reduces.sum_of_longest_ns >= _MIN_SHARE_OF_SINGLE_BUCKET * comm_ns
    if all_reduces.max_per_step > _MAX_ALL_REDUCES_OF_SINGLE_BUCKET or not is_dominant:
        return None
    return _finding_about_bucket(evidence, all_reduces, to_hide_ns)


def _finding_about_bucket(
    evidence: Evidence, all_reduces: _AllReduces, to_hide_ns: float
) -> Finding:
    """Return the finding that one bucket has all gradients, or almost all.

    `to_hide_ns` is the time per step that the backward pass would have to hide.
    """
    backward = select_rows(evidence.phases, "phase", "backward")
    hiding_parts = _hiding_parts(evidence, backward)
    hiding_ns = float(sum(hiding_parts.values()))
    figures: dict[str, Any] = {
        "collectives_per_step": evidence.summary["collectives_per_step"],
        "overlap_ratio": evidence.summary["overlap_ratio"],
    }
    figures |= evidence.means("exposed_comm_ns", "transfer_ns")
    figures["all_reduce_ns_per_step"] = all_reduces.sum_of_longest_ns / evidence.steps.num_rows
    figures["could_hide_ns_per_step_by_part"] = hiding_parts
    gradients = "all gradients" if all_reduces.max_per_step == 1 else "almost all gradients"
    n_known_passes = backward.num_rows - backward["compute_ns"].null_count
    if n_known_passes:
        when = "at the end of the backward pass"
    else:
        when = "that hardly overlaps with compute"
    option = f"Set DistributedDataParallel(bucket_cap_mb={BUCKET_MB}), which is the default"
    return Finding(
        title=f"One all-reduce sends {gradients} {when}",
        action=f"Set bucket_cap_mb={BUCKET_MB} ({gradients} are in one bucket now)",
        advice=f"{option}. Smaller buckets are sent while the backward pass still runs",
        saving_ns_per_step=min(to_hide_ns, hiding_ns),
        evidence=figures,
    )


def _is_little(evidence: Evidence, ns_per_step: float) -> bool:
    """Tell whether a time is below the share of step time from which on rules fire."""
    return evidence.share_of_step(ns_per_step) < _MIN_SAVING_SHARE_OF_STEP


def _measure_all_reduces(rows: pa.Table) -> _AllReduces:
    """Measure the all-reduces of each rank in each step. There must be one at least."""
    length_ns = pc.subtract(rows["end_ns"], rows["start_ns"])
    with_length = rows.append_column("length_ns", length_ns)
    by_rank_and_step = with_length.group_by(["rank", "step"], use_threads=False)
    measures = by_rank_and_step.aggregate([("length_ns", "max"), ("length_ns", "count")])
    return _AllReduces(
        sum_of_longest_ns=pc.sum(measures["length_ns_max"]).as_py(),
        max_per_step=pc.max(measures["length_ns_count"]).as_py(),
    )


def _hiding_parts(evidence: Evidence, backward: PhasesTable) -> dict[str, float]:
    """Return the time of the backward pass that could hide an all-reduce, per step, by part.

    The parts are the time of backward on the device, the idle time before it, and the exposed
    communication, which is taken off. The compute of backward is the only part if it is at least
    their sum, or if one of them is not known. Without marked backward passes, the only part is the
    compute of the whole step.
    """
    compute_ns = pc.mean(backward["compute_ns"]).as_py()
    if not compute_ns:
        return {"compute": evidence.mean("compute_ns") or 0.0}
    device_ns = pc.mean(backward["device_ns"]).as_py()
    exposed_ns = pc.mean(backward["exposed_comm_ns"]).as_py()
    idle_ns = pc.mean(backward["idle_ns"]).as_py()
    compute_part = {"compute_of_backward": compute_ns}
    if None in {device_ns, exposed_ns, idle_ns}:
        return compute_part
    without_exposed_ns = device_ns - exposed_ns + idle_ns
    if without_exposed_ns <= compute_ns:
        return compute_part
    return {
        "backward_on_device": device_ns,
        "idle_before": idle_ns,
        "less_exposed_comm": -exposed_ns,
    }


def too_many_buckets(evidence: Evidence) -> Answer:
    """Fire if a step has many small all-reduces of gradients.

    `many_small` has the limits. Saving: the cost that it returns.
    """
    rows = evidence.gradient_all_reduces
    if not rows.num_rows:
        # Many small all-reduces of unknown purpose may be gradients.
        all_reduces_of_unknown_role = evidence.operations_of_role(OTHER, "all_reduce")
        has_candidates = many_small(evidence, all_reduces_of_unknown_role) is not None
        return evidence.why_gradients_are_unknown if has_candidates else None
    small = many_small(evidence, rows)
    if small is None or isinstance(small, NotJudged):
        return small
    n_per_step = rows.num_rows / evidence.steps.num_rows
    figures = {"all_reduces_per_step": n_per_step, **small.figures}
    option = (
        "Set DistributedDataParallel(bucket_cap_mb=...) to a larger value, for example "
        f"{LARGE_BUCKET_MB}"
    )
    return Finding(
        title="A step has many all-reduces that are so short that latency dominates",
        action=f"Set bucket_cap_mb={LARGE_BUCKET_MB} (many small all-reduces now)",
        advice=f"{option}, or reduce small tensors together",
        saving_ns_per_step=small.ns_per_step,
        evidence=figures,
    )


def many_small(evidence: Evidence, rows: pa.Table) -> Saving | NotJudged | None:
    """Return what the latency of many small collectives costs a step at most.

    Collectives are many if a step has at least 20 of them. They are small if their median transfer
    is at most 100 us, and their median size at most 4 MB. Values that are not known do not count,
    and if no size is known, small transfers are enough. The cost is the number of collectives
    times their median transfer, but at most the exposed transfer.

    The result is None if the collectives are few or large, or cost less than 1 % of step time.
    """
    # `steps` has a row for each rank and step.
    n_steps_of_ranks = evidence.steps.num_rows
    n_per_step = rows.num_rows / n_steps_of_ranks if n_steps_of_ranks else 0
    if evidence.n_ranks == 1 or n_per_step < _MIN_MANY_COLLECTIVES:
        return None
    transfer_ns = rows["transfer_ns"].drop_null()
    if not len(transfer_ns):
        return NotJudged("transfer times are not known", WAITING_UNKNOWN.fix)
    median_ns = pc.approximate_median(transfer_ns).as_py()
    known_bytes = rows["message_bytes"].drop_null()
    median_bytes = pc.approximate_median(known_bytes).as_py()
    is_large = median_bytes is not None and median_bytes > _MAX_SMALL_BUCKET_BYTES
    if median_ns > _MAX_SMALL_TRANSFER_NS or is_large:
        return None
    exposed_transfer_ns = evidence.exposed_transfer_ns_per_step or 0.0
    saving_ns = min(exposed_transfer_ns, n_per_step * median_ns)
    if _is_little(evidence, saving_ns):
        return None
    figures = {"median_transfer_ns": median_ns, "median_message_bytes": median_bytes}
    return Saving(saving_ns, figures | evidence.means("exposed_comm_ns"))


# grad-copy and ddp-single-gpu


def grad_copy(evidence: Evidence) -> Answer:
    """Fire if gradient copies that nothing hides take 0.1 % of step time.

    Gradient copies are long sequences of copies within a device. If a step copies less than 16 MB,
    its copies have to take 0.5 %. The run must have all-reduces of gradients. Saving: the sum of
    `_parts_of_copies`.
    """
    exposed_ns = evidence.mean("exposed_grad_copy_ns")
    if exposed_ns is None:
        return None
    n_bytes = evidence.mean("grad_copy_bytes")
    min_share = _MIN_COPY_SHARE_OF_STEP
    if n_bytes is not None and n_bytes < _MIN_MANY_COPIED_BYTES:
        min_share = _MIN_COPY_SHARE_OF_STEP_OF_FEW_BYTES
    if evidence.share_of_step(exposed_ns) < min_share:
        return None
    if not evidence.gradient_all_reduces.num_rows:
        return evidence.why_gradients_are_unknown
    parts = _parts_of_copies(evidence)
    advice = (
        f"Set DistributedDataParallel({_VIEW}). Gradients then live in the buckets, which also "
        "saves their memory"
    )
    saving_ns = None if parts is None else sum(parts.values())
    figures = _copy_figures(evidence) | _part_figures(parts)
    return Finding(
        title="Gradients are copied out of their buckets at the end of the backward pass",
        action=f"Set {_VIEW}",
        advice=advice,
        saving_ns_per_step=saving_ns,
        evidence=figures,
    )


def _parts_of_copies(evidence: Evidence) -> dict[str, float] | None:
    """Return the time of gradient copies, and of the short gaps between them, means over steps.

    In each step, the rank counts whose copies and gaps take longest together. Gaps of up to 20 us
    are short: without the copies they would not be there. Copies during communication count too,
    because they slow it down. The result is None if copies are not known on every rank.
    """
    if evidence.mean("grad_copy_span_ns") is None or evidence.mean("grad_copy_ns") is None:
        return None
    span_ns, copies_ns = evidence.columns("grad_copy_span_ns", "grad_copy_ns")
    rows = evidence.rows_of_largest(span_ns)
    gaps_ns = span_ns - copies_ns
    mean_copies_ns = float(copies_ns[rows].mean())
    mean_gaps_ns = float(gaps_ns[rows].mean())
    return {"copies": mean_copies_ns, "gaps_between_copies": mean_gaps_ns}


def _part_figures(parts: dict[str, float] | None) -> dict[str, Any]:
    return {} if parts is None else {"saving_ns_per_step_by_part": parts}


def _copy_figures(evidence: Evidence) -> dict[str, Any]:
    means = evidence.means(
        "grad_copy_ns", "exposed_grad_copy_ns", "grad_copy_span_ns", "grad_copy_bytes"
    )
    return {**means, "grad_copies_per_step": evidence.mean("n_grad_copies")}


def ddp_single_gpu(evidence: Evidence) -> Answer:
    """Fire if the only rank of a world of one copies gradients out of buckets.

    If the size of the world is not known, backward passes must be marked, because copies are only
    known to be DDP's inside of marked passes.

    Saving: the part of these copies without concurrent compute, and the idle time, because DDP also
    launches a small kernel for each gradient. Idle time for input, and in pauses of the host, does
    not count: small kernels delay other launches by less than a pause.
    """
    if evidence.n_ranks != 1 or evidence.has_comm or evidence.world_size not in {1, None}:
        return None
    if evidence.steps["grad_copy_ns"].null_count:
        return NotJudged("copies not known on every rank", None)
    is_backward_marked = evidence.mean("overlap_backward_ns") is not None
    is_ddp = evidence.world_size == 1 or is_backward_marked
    if not is_ddp or not evidence.mean("n_grad_copies"):
        return None
    idle_ns = _idle_besides_input_and_pauses(evidence)
    copies_ns = evidence.mean("exposed_grad_copy_ns")
    parts = None
    if copies_ns is not None and idle_ns is not None:
        parts = {"copies_beside_no_compute": copies_ns, "idle": idle_ns}
    saving_ns = None if parts is None else sum(parts.values())
    figures = {"world_size": evidence.world_size, "idle_ns_per_step": idle_ns}
    figures |= _copy_figures(evidence) | _part_figures(parts)
    return Finding(
        title="DDP wraps a single process and copies gradients that no other process needs",
        action="Do not use DDP (there is only one process)",
        advice="Use DistributedDataParallel only if torch.distributed.get_world_size() > 1",
        saving_ns_per_step=saving_ns,
        evidence=figures,
    )


def _idle_besides_input_and_pauses(evidence: Evidence) -> float | None:
    """Return the idle time that is neither for input nor in pauses of the host, ns per step.

    None if the idle time is not known.
    """
    idle_ns = evidence.mean("idle_ns")
    if idle_ns is None:
        return None
    input_ns = evidence.mean("idle_input_ns") or 0.0
    pause_ns = evidence.mean("idle_pause_ns") or 0.0
    return idle_ns - input_ns - pause_ns


# compress-gradients


def compress_gradients(evidence: Evidence) -> Answer:
    """Fire if all-reduces of f32 over a slow link leave 10 % of step time exposed.

    Such all-reduces are called wide here, because a smaller datatype would shorten them.

    Saving: `Evidence.saving_without` communication, of which the share of other transfer remains.
    So it is the bound for PowerSGD, which leaves almost nothing of the wide transfer. bf16 halves
    the wide transfer.
    """
    exposed_transfer_ns = evidence.exposed_transfer_ns_per_step if evidence.has_comm else None
    if evidence.n_ranks == 1 or exposed_transfer_ns is None:
        return None
    has_gradients = evidence.gradient_all_reduces.num_rows > 0
    if not has_gradients and _is_much_exposed(evidence, exposed_transfer_ns):
        return evidence.why_gradients_are_unknown
    wide_transfer_ns = _transfer_of_wide_gradients(evidence)
    # At most so much of the wide transfer is exposed.
    exposed_wide_ns = min(exposed_transfer_ns, wide_transfer_ns)
    if not _is_much_exposed(evidence, exposed_wide_ns):
        return None
    verdict = judge_link(evidence)
    if verdict.is_slow is None:
        return not_judged(verdict)
    if not verdict.is_slow:
        return None
    all_transfer_ns = evidence.transfer_ns_per_step
    # The sum over operations may be larger than all transfer if operations overlap.
    wide_share = min(wide_transfer_ns / all_transfer_ns, 1.0) if all_transfer_ns else 1.0
    saving = evidence.saving_without(remaining_share=1 - wide_share)
    # As outputs show the ratio, in percent.
    overlap_ratio = round(evidence.summary["overlap_ratio"] or 0.0, 2)
    if overlap_ratio > 0:
        overlap = "overlap with compute only in part"
    else:
        overlap = "do not overlap with compute"
    figures = {
        **verdict.evidence,
        "exposed_transfer_ns_per_step": exposed_wide_ns,
        **saving.figures,
    }
    advice = (
        "model.register_comm_hook(None, bf16_compress_hook) halves the bytes. PowerSGD sends "
        "almost none, which is the upper bound. Check that training still converges"
    )
    return Finding(
        title=f"f32 gradients cross a slow interconnect and {overlap}",
        action="Send gradients as bf16 (changes numerics)",
        advice=advice,
        saving_ns_per_step=saving.ns_per_step,
        evidence=figures,
    )


def _is_much_exposed(evidence: Evidence, exposed_ns: float) -> bool:
    return evidence.share_of_step(exposed_ns) >= _MIN_EXPOSED_SHARE_TO_COMPRESS


def _transfer_of_wide_gradients(evidence: Evidence) -> float:
    """Return the transfer of f32 gradients, the mean over steps and ranks, ns.

    If the transfer of an all-reduce is not known, all of its time counts.
    """
    rows = evidence.wide_gradients
    length_ns = pc.subtract(rows["end_ns"], rows["start_ns"])
    transfer_ns = pc.coalesce(rows["transfer_ns"], length_ns)
    total_ns = pc.sum(transfer_ns).as_py() or 0
    # `steps` has a row for each rank and step.
    return float(total_ns / evidence.steps.num_rows)


# no-sync


class _Passes(NamedTuple):
    """What the backward passes of steps send."""

    rows: CommOperationsTable
    # One row for each rank, step and pass, with the number and the bytes of its messages.
    sums: pa.Table
    n_per_step: int

    @property
    def is_sized(self) -> bool:
        """Whether the sizes of all messages are known."""
        return not self.rows["message_bytes"].null_count

    @property
    def min_messages(self) -> int | None:
        """The smallest number of messages that a rank sends in a pass; None without messages."""
        n_messages: int | None = pc.min(self.sums["end_ns_count"]).as_py()
        return n_messages

    @property
    def is_number_the_same(self) -> bool:
        """Whether each rank sends the same number of messages in all of its passes."""
        return not _varies_by_rank(self.sums, "end_ns_count")

    @property
    def are_bytes_the_same(self) -> bool:
        """Whether each rank sends the same number of bytes in all of its passes.

        True if sizes are not known.
        """
        return not self.is_sized or not _varies_by_rank(self.sums, "message_bytes_sum")


def no_sync(evidence: Evidence) -> Answer:
    """Fire if steps have several backward passes, and each pass sends the same amount.

    All steps must have the same number of passes. On each rank, all passes must send the same
    number of messages and of bytes. If sizes are not known, passes must send at least two messages.
    Messages are DDP's all-reduces, or the reduce-scatters of sharded gradients. Small messages do
    not count.

    Saving: `Evidence.saving_without` the messages of all passes except the last pass of each step,
    and without the waiting in these messages. The saving must be 1 % of step time.
    """
    scatters = evidence.operations_of_role(SHARDED, "reduce_scatter")
    are_sharded = bool(scatters.num_rows)
    rows = scatters if are_sharded else evidence.gradient_all_reduces
    # Passes are numbered from 0 in each step, so this is 0 if there is one, and None without any.
    last_pass = pc.max(rows["micro_batch"]).as_py()
    if not last_pass:
        return None
    passes = _find_passes(rows, n_per_step=last_pass + 1)
    # `steps` has a row for each rank and step, and `sums` one for each of their passes.
    n_expected_passes = passes.n_per_step * evidence.steps.num_rows
    has_all_passes = passes.sums.num_rows >= n_expected_passes
    if not has_all_passes or not passes.is_number_the_same:
        return None
    if not passes.is_sized and passes.min_messages == 1:
        # One message in each pass may be of any program, so it does not show that passes are alike.
        return evidence.not_judged_without_sizes(_SIZES_MISSING)
    is_early = pc.less(passes.rows["micro_batch"], last_pass)
    early_messages = passes.rows.filter(is_early)
    saving = evidence.saving_without(early_messages, with_waiting=True)
    if _is_little(evidence, saving.ns_per_step) or not passes.are_bytes_the_same:
        return None
    skip_sync = _SKIP_SYNC_OF_SHARDS if are_sharded else _SKIP_SYNC
    sent = "all gradients" if passes.is_sized else "gradients in the same number of messages"
    title = f"Each of the {passes.n_per_step} backward passes of a step sends {sent}"
    advice = f"If you accumulate gradients for one optimizer step, {skip_sync.advice}"
    figures = _pass_figures(evidence, passes) | saving.figures
    return Finding(title, skip_sync.action, advice, saving.ns_per_step, figures)


def _find_passes(rows: pa.Table, n_per_step: int) -> _Passes:
    """Return the backward passes that launched some of these operations.

    Small messages are left out. A message of unknown size counts as large.
    """
    is_small = pc.less_equal(rows["message_bytes"], SMALL_BYTES)
    is_large = pc.invert(pc.fill_null(is_small, fill_value=False))
    is_of_pass = pc.is_valid(rows["micro_batch"])
    messages = rows.filter(pc.and_(is_of_pass, is_large))
    by_pass = messages.group_by(["rank", "step", "micro_batch"], use_threads=False)
    sums = by_pass.aggregate([("message_bytes", "sum"), ("end_ns", "count")])
    return _Passes(messages, sums, n_per_step)


def _varies_by_rank(passes: pa.Table, column: str) -> bool:
    """Tell whether a column of passes has several values on any rank."""
    by_rank = passes.group_by("rank", use_threads=False)
    extremes = by_rank.aggregate([(column, "min"), (column, "max")])
    least = extremes[f"{column}_min"]
    most = extremes[f"{column}_max"]
    is_varied = pc.not_equal(least, most)
    return bool(pc.any(is_varied).as_py())


def _pass_figures(evidence: Evidence, passes: _Passes) -> dict[str, Any]:
    """Return what the passes of a step send, the mean over steps and ranks."""
    # There is a row for each step and rank.
    n_steps_of_ranks = evidence.steps.num_rows
    bytes_per_step = None
    if passes.is_sized:
        n_bytes = pc.sum(passes.rows["message_bytes"]).as_py()
        bytes_per_step = n_bytes / n_steps_of_ranks
    return {
        "n_backward_passes": passes.n_per_step,
        "messages_per_step": passes.rows.num_rows / n_steps_of_ranks,
        "bytes_per_step": bytes_per_step,
    }


# flat-all-reduce


def flat_all_reduce(evidence: Evidence) -> Answer:
    """Fire if all-reduces of gradients span several hosts with several ranks each, and cost much.

    Saving: their `Evidence.exposed_cost`. The path of the data inside of an all-reduce is not
    recorded. So the rule also fires if NCCL itself reduces within each host first.
    """
    if not evidence.gradient_all_reduces.num_rows:
        return None
    cost = evidence.exposed_cost(DATA, "all_reduce")
    flat_groups = list(filter(_is_flat, _ranks_by_host_of_groups(evidence)))
    if cost is None or not flat_groups:
        return None
    largest_group = max(flat_groups, key=Counter.total)
    n_hosts = len(largest_group)
    n_ranks = largest_group.total()
    figures = {"n_hosts": n_hosts, "n_ranks": n_ranks, **cost.figures}
    return Finding(
        title=f"One all-reduce spans all {n_ranks} ranks on {n_hosts} nodes",
        action="Reduce within each node first, then across nodes",
        advice=_REDUCE_IN_NODES,
        saving_ns_per_step=cost.ns_per_step,
        evidence=figures,
    )


def _ranks_by_host_of_groups(evidence: Evidence) -> list[Counter[str | None]]:
    """Return the number of ranks of each host, for each group that all-reduces gradients.

    A host that is not known is None.
    """
    n_ranks_by_host_of_groups: dict[str, Counter[str | None]] = {}
    for row in evidence.traffic_of_role(DATA, "all_reduce"):
        host = evidence.hosts.get(row["rank"])
        n_ranks_by_host = n_ranks_by_host_of_groups.setdefault(row["communicator"], Counter())
        n_ranks_by_host[host] += 1
    return [*n_ranks_by_host_of_groups.values()]


def _is_flat(n_ranks_by_host: Counter[str | None]) -> bool:
    """Tell whether a group spans several hosts, with several ranks on each.

    False if a host is not known.
    """
    if None in n_ranks_by_host or len(n_ranks_by_host) == 1:
        return False
    return min(n_ranks_by_host.values()) > 1


RULES: Rules = {
    **dict.fromkeys(
        (single_bucket, too_many_buckets, compress_gradients, no_sync, flat_all_reduce),
        COLUMNS_OF_COMM,
    ),
    grad_copy: ("grad_copy_ns",),
    # This rule says by itself what is missing. With several ranks it has nothing to say.
    ddp_single_gpu: (),
}
