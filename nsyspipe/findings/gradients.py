"""Gradients that data-parallel ranks send: their buckets, copies, bytes, and how often."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.traffic import DATA, OTHER, SHARDED, SMALL_BYTES
from nsyspipe.findings.model import (
    OF_COMM,
    WAITING_UNKNOWN,
    Answer,
    Evidence,
    Finding,
    NotJudged,
    Rules,
)
from nsyspipe.findings.slow_link import judge_link, not_judged

_LEAST_SHARE = 0.01  # of step time, from which on how gradients are sent is worth a word
# what is advised, and replayed: DDP's default, and what few small buckets take
BUCKET_MB = 25
LARGE_BUCKET_MB = 100
_MOST_OVERLAP = 0.1
# a loss or a norm may be reduced as well: one takes nearly all of the time
_MOST_ALL_REDUCES = 3
_DOMINANT = 0.95
_MANY = 20
_FLOOR_NS = (
    100_000  # what an all-reduce of hardly any bytes takes, within a host or over a fast network
)
_SMALL_BUCKET_BYTES = (
    4e6  # buckets of this size are limited by the link, not by latency, however short they take
)
_VIEW = "gradient_as_bucket_view=True"
_COPY_SPAN = "grad_copy_span_ns"
_LEAST_COPIED = 0.001
# compression hooks copy factors as well: few bytes must cost more
_FEW_BYTES = 16e6
_LEAST_COPIED_OF_FEW = 0.005
_LEAST_COMPRESSED = 0.1
_NO_SIZES = (
    "every backward pass sends gradients, but message sizes are missing, so nsyspipe does not know "
    "whether each pass sends all"
)
# By whether they are sharded.
_NO_SYNC = {
    False: (
        "Skip gradient sync in all micro-batches but the last",
        (
            "run all passes except the last inside model.no_sync() (Accelerate: "
            "accelerator.accumulate(model))"
        ),
    ),
    True: (
        "Sync gradients in the last micro-batch, if memory allows",
        (
            "call model.set_requires_gradient_sync(False), or no_sync(), in all passes except "
            "the last. Each rank then keeps "
            "whole gradients in memory"
        ),
    ),
}
_HIERARCHY = (
    'HSDP, fully_shard(mesh=init_device_mesh("cuda", (nodes, ranks per node), '
    "mesh_dim_names=...)), reduce-scatters within a "
    "node and all-reduces only a part across nodes. Or let NCCL use a tree "
    "(NCCL_ALGO=NVLSTree,Tree). NCCL's log with "
    "NCCL_DEBUG_SUBSYS=TUNING shows which algorithm NCCL uses"
)


def single_bucket(evidence: Evidence) -> Answer:
    """Fire when in every step one all-reduce takes 95 % of communication, and compute hides less than 10 % of it.

    Saving: what the backward pass could hide, the least of exposed communication, transfer (nothing
    hides waiting for a slower rank) and backward's time but for exposed communication (all compute
    where backward is not marked).
    """
    if not evidence.has_comm or not evidence.mean("compute_ns"):
        return None  # without compute nothing can hide it
    to_hide = min(evidence.exposed_transfer_ns_per_step or 0.0, evidence.transfer_ns_per_step)
    if (evidence.summary["overlap_ratio"] or 0.0) >= _MOST_OVERLAP or evidence.share(
        to_hide
    ) < _LEAST_SHARE:
        return None
    rows = evidence.gradient_all_reduces
    if not rows.num_rows:
        return evidence.unknown_gradients
    rows = rows.append_column("ns", pc.subtract(rows["end_ns"], rows["start_ns"]))
    per_step = rows.group_by(["rank", "step"], use_threads=False).aggregate(
        [("ns", "max"), ("ns", "count")]
    )
    longest = pc.sum(per_step["ns_max"]).as_py()
    total = pc.sum(evidence.steps["comm_ns"]).as_py()
    if pc.max(per_step["ns_count"]).as_py() > _MOST_ALL_REDUCES or longest < _DOMINANT * total:
        return None
    backward = evidence.phases.filter(pc.equal(evidence.phases["phase"], "backward"))
    is_after = backward["compute_ns"].null_count < backward.num_rows
    names = ("device_ns", "exposed_comm_ns", "idle_ns", "compute_ns")
    busy, alone, idle, compute = (pc.mean(backward[name]).as_py() for name in names)
    # The time per step that could hide it.
    hiding = (
        {"compute_of_backward": compute}
        if compute
        else {"compute": evidence.mean("compute_ns") or 0.0}
    )
    if compute and None not in {busy, alone, idle} and busy - alone + idle > compute:
        hiding = {"backward_on_device": busy, "idle_before": idle, "less_exposed_comm": -alone}
    is_only_one = pc.max(per_step["ns_count"]).as_py() == 1
    gradients = "all gradients" if is_only_one else "almost all gradients"
    when = "at the end of the backward pass" if is_after else "that hardly overlaps with compute"
    title = f"One all-reduce sends {gradients} {when}"
    action = f"Set bucket_cap_mb={BUCKET_MB} ({gradients} are in one bucket now)"
    option = f"Set DistributedDataParallel(bucket_cap_mb={BUCKET_MB}), which is the default"
    figures = {
        **{name: evidence.summary[name] for name in ("collectives_per_step", "overlap_ratio")},
        **evidence.means("exposed_comm_ns", "transfer_ns"),
        "all_reduce_ns_per_step": longest / evidence.steps.num_rows,
        "could_hide_ns_per_step_by_part": hiding,
    }
    saving = min(to_hide, float(sum(hiding.values())))
    return Finding(
        title,
        action,
        f"{option}. Smaller buckets are sent while the backward pass still runs",
        saving,
        figures,
    )


def too_many_buckets(evidence: Evidence) -> Answer:
    """Fire when a step has 20 all-reduces or more, whose median transfer is below 100 us (and size below 4 MB, if known).

    Saving: the lesser of exposed communication and that number times the median transfer.
    """
    rows = evidence.gradient_all_reduces
    if (
        not rows.num_rows
        and many_small(evidence, evidence.of_role(OTHER, "all_reduce")) is not None
    ):
        return evidence.unknown_gradients
    small = many_small(evidence, rows)
    if small is None or isinstance(small, NotJudged):
        return small
    title = "A step has many all-reduces that are so short that latency dominates"
    action = f"Set bucket_cap_mb={LARGE_BUCKET_MB} (many small all-reduces now)"
    option = (
        "Set DistributedDataParallel(bucket_cap_mb=...) to a larger value, for example "
        f"{LARGE_BUCKET_MB}"
    )
    figures = {"all_reduces_per_step": rows.num_rows / evidence.steps.num_rows, **small[1]}
    return Finding(title, action, f"{option}, or reduce small tensors together", small[0], figures)


def many_small(
    evidence: Evidence, rows: pa.Table
) -> tuple[float, dict[str, float | None]] | NotJudged | None:
    """Return what the latency of many small collectives costs at most, with its figures; None where they are not, as the rule has it."""
    n_per_step = rows.num_rows / evidence.steps.num_rows if evidence.steps.num_rows else 0
    if evidence.n_ranks == 1 or n_per_step < _MANY:
        return None
    transfer = rows["transfer_ns"].drop_null()
    if not len(transfer):
        return NotJudged("transfer times are not known", WAITING_UNKNOWN[1])
    median = pc.approximate_median(transfer).as_py()
    n_bytes = pc.approximate_median(rows["message_bytes"].drop_null()).as_py()
    saving = min(evidence.exposed_transfer_ns_per_step or 0.0, n_per_step * median)
    is_small = n_bytes is None or n_bytes <= _SMALL_BUCKET_BYTES
    if median > _FLOOR_NS or not is_small or evidence.share(saving) < _LEAST_SHARE:
        return None
    return saving, {"median_transfer_ns": median, "median_message_bytes": n_bytes} | evidence.means(
        "exposed_comm_ns"
    )


def grad_copy(evidence: Evidence) -> Answer:
    """Fire when a run with all-reduces makes long runs of DtoD copies for 0.1 % of step time, of less than 16 MB for 0.5 %.

    Saving: their own time and the gaps of up to 20 us between them, in which nothing else of theirs
    could run, on the rank with most of it in each step; beside communication too, which they slow
    down.
    """
    exposed = evidence.mean("exposed_grad_copy_ns")
    if exposed is None:
        return None
    n_bytes = evidence.mean("grad_copy_bytes")
    has_few = n_bytes is not None and n_bytes < _FEW_BYTES
    if evidence.share(exposed) < (_LEAST_COPIED_OF_FEW if has_few else _LEAST_COPIED):
        return None
    if not evidence.gradient_all_reduces.num_rows:
        return evidence.unknown_gradients
    parts: dict[str, float] = {}
    if None not in (evidence.mean(_COPY_SPAN), evidence.mean("grad_copy_ns")):
        span, copies = (evidence.steps[name].to_numpy() for name in (_COPY_SPAN, "grad_copy_ns"))
        rows = evidence.rows_of_most(span)
        parts = {
            "copies": float(copies[rows].mean()),
            "gaps_between_copies": float((span - copies)[rows].mean()),
        }
    title = "Gradients are copied out of their buckets at the end of the backward pass"
    advice = (
        f"Set DistributedDataParallel({_VIEW}). Gradients then live in the buckets, which also "
        "saves their memory"
    )
    figures = _copy_evidence(evidence) | ({"saving_ns_per_step_by_part": parts} if parts else {})
    return Finding(title, f"Set {_VIEW}", advice, sum(parts.values()) if parts else None, figures)


def _copy_evidence(evidence: Evidence) -> dict[str, float | None]:
    figures = evidence.means("grad_copy_ns", "exposed_grad_copy_ns", _COPY_SPAN, "grad_copy_bytes")
    return figures | {"grad_copies_per_step": evidence.mean("n_grad_copies")}


def ddp_single_gpu(evidence: Evidence) -> Answer:
    """Fire when the only rank of a world of one copies gradients out of buckets.

    Saving: the part of these copies beside compute, and all idle time but that for input, since DDP
    also launches a small kernel for each gradient. Where nothing says the size of the world, only
    copies inside marked backward ranges are known to be DDP's.
    """
    is_alone = evidence.n_ranks == 1 and evidence.world_size in {1, None} and not evidence.has_comm
    if is_alone and evidence.steps["grad_copy_ns"].null_count:
        return NotJudged("copies not known on every rank", None)
    is_marked = evidence.mean("overlap_backward_ns") is not None
    is_known = evidence.world_size == 1 or is_marked
    if not (is_alone and is_known and evidence.mean("n_grad_copies")):
        return None
    exposed = evidence.mean("exposed_grad_copy_ns")
    all_idle = evidence.mean("idle_ns")
    for_input = evidence.mean("idle_input_ns") or 0.0
    idle = None if all_idle is None else all_idle - for_input
    title = "DDP wraps a single process and copies gradients that no other process needs"
    advice = "Use DistributedDataParallel only if torch.distributed.get_world_size() > 1"
    parts = (
        None
        if exposed is None or idle is None
        else {"copies_beside_no_compute": exposed, "idle": idle}
    )
    figures: dict[str, Any] = {
        "world_size": evidence.world_size,
        "idle_ns_per_step": idle,
        **_copy_evidence(evidence),
    }
    figures |= {"saving_ns_per_step_by_part": parts} if parts else {}
    action = "Do not use DDP (there is only one process)"
    return Finding(title, action, advice, sum(parts.values()) if parts else None, figures)


def compress_gradients(evidence: Evidence) -> Answer:
    """Fire when all-reduces of f32 over a slow link leave 10 % of step time exposed.

    Saving: all that communication without other ranks' waiting costs, as `Evidence.saving_without`
    has it, less the transfer that is not of these all-reduces: bf16 halves theirs, PowerSGD leaves
    next to nothing.
    """
    exposed = evidence.exposed_transfer_ns_per_step if evidence.has_comm else None
    if evidence.n_ranks == 1 or exposed is None:
        return None
    rows = evidence.gradient_all_reduces
    if not rows.num_rows and evidence.share(exposed) >= _LEAST_COMPRESSED:
        return evidence.unknown_gradients
    rows = evidence.wide_gradients
    # Their whole time where transfer is not known.
    spent = pc.coalesce(rows["transfer_ns"], pc.subtract(rows["end_ns"], rows["start_ns"]))
    transfer = float((pc.sum(spent).as_py() or 0) / evidence.steps.num_rows)
    transferring = min(exposed, transfer)
    if evidence.share(transferring) < _LEAST_COMPRESSED:
        return None
    verdict = judge_link(evidence)
    if verdict.is_slow is None:
        return not_judged(verdict)
    if not verdict.is_slow:
        return None
    total = evidence.transfer_ns_per_step
    wide = min(transfer / total, 1.0) if total else 1.0
    saving, figures = evidence.saving_without(kept=1 - wide)
    is_partly_hidden = round(evidence.summary["overlap_ratio"] or 0.0, 2) > 0
    how = (
        " and overlap with compute only in part"
        if is_partly_hidden
        else " and do not overlap with compute"
    )
    figures = {**verdict.evidence, "exposed_transfer_ns_per_step": transferring, **figures}
    halves = "model.register_comm_hook(None, bf16_compress_hook) halves the bytes"
    advice = (
        f"{halves}. PowerSGD sends almost none, which is the upper bound. Check that training "
        "still converges"
    )
    action = "Send gradients as bf16 (changes numerics)"
    return Finding(f"f32 gradients cross a slow interconnect{how}", action, advice, saving, figures)


def no_sync(evidence: Evidence) -> Answer:
    """Fire when each backward pass, of the same number of several in all steps, sends as many bytes in as many messages.

    Where sizes are not known, as many messages, two at least. Those are DDP's all-reduces, or the
    reduce-scatters of sharded gradients; small messages apart. It must cost 1 % of step time.
    Saving: `Evidence.saving_without` those of all passes but the last, with the waiting in them.
    """
    scatters = evidence.of_role(SHARDED, "reduce_scatter")
    rows = scatters if scatters.num_rows else evidence.gradient_all_reduces
    n_passes = (pc.max(rows["micro_batch"]).as_py() or 0) + 1
    if n_passes == 1:
        return None
    rows = rows.filter(pc.is_valid(rows["micro_batch"]))
    rows = rows.filter(
        pc.greater(pc.fill_null(rows["message_bytes"], SMALL_BYTES + 1), SMALL_BYTES)
    )
    passes = rows.group_by(["rank", "step", "micro_batch"], use_threads=False)
    passes = passes.aggregate([("message_bytes", "sum"), ("end_ns", "count")])
    if passes.num_rows < n_passes * evidence.steps.num_rows or _varies(passes, "end_ns_count"):
        return None
    is_sized = not rows["message_bytes"].null_count
    if (
        not is_sized and pc.min(passes["end_ns_count"]).as_py() == 1
    ):  # two programs' alike: one message each
        return evidence.lacks_sizes(_NO_SIZES)
    saving, figures = evidence.saving_without(
        rows.filter(pc.less(rows["micro_batch"], n_passes - 1)), waits=True
    )
    if (is_sized and _varies(passes, "message_bytes_sum")) or evidence.share(saving) < _LEAST_SHARE:
        return None
    action, advice = _NO_SYNC[bool(scatters.num_rows)]
    alike = "all gradients" if is_sized else "gradients in the same number of messages"
    title = f"Each of the {n_passes} backward passes of a step sends {alike}"
    figures = {
        "n_backward_passes": n_passes,
        "messages_per_step": rows.num_rows / evidence.steps.num_rows,
        "bytes_per_step": pc.sum(rows["message_bytes"]).as_py() / evidence.steps.num_rows
        if is_sized
        else None,
        **figures,
    }
    return Finding(
        title,
        action,
        f"If you accumulate gradients for one optimizer step, {advice}",
        saving,
        figures,
    )


def _varies(passes: pa.Table, column: str) -> bool:
    by_rank = passes.group_by("rank", use_threads=False).aggregate(
        [(column, "min"), (column, "max")]
    )
    return bool(pc.any(pc.not_equal(by_rank[f"{column}_min"], by_rank[f"{column}_max"])).as_py())


def flat_all_reduce(evidence: Evidence) -> Answer:
    """Fire where all-reduces of gradients among several ranks on each of several hosts have an `Evidence.exposed_cost`.

    That is the saving. Which way NCCL takes inside of one all-reduce is not looked at.
    """
    cost = (
        evidence.exposed_cost(DATA, "all_reduce")
        if evidence.gradient_all_reduces.num_rows
        else None
    )
    groups: dict[str, list[str | None]] = {}
    for row in evidence.traffic_of(DATA, "all_reduce"):
        groups.setdefault(row["communicator"], []).append(evidence.hosts.get(row["rank"]))
    per_host = [*map(Counter, groups.values())]
    flat = [one for one in per_host if None not in one and len(one) > 1 and min(one.values()) > 1]
    if cost is None or not flat:
        return None
    largest = max(flat, key=Counter.total)
    title = f"One all-reduce spans all {largest.total()} ranks on {len(largest)} nodes"
    figures = {"n_hosts": len(largest), "n_ranks": largest.total(), **cost[1]}
    return Finding(
        title, "Reduce within each node first, then across nodes", _HIERARCHY, cost[0], figures
    )


RULES: Rules = {
    **dict.fromkeys(
        (single_bucket, too_many_buckets, compress_gradients, no_sync, flat_all_reduce), OF_COMM
    ),
    grad_copy: ("grad_copy_ns",),
    # which says by itself where it lacks copies: of several ranks it has nothing to say
    ddp_single_gpu: (),
}
