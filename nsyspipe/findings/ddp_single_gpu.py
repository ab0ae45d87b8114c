"""Rule ``ddp-single-gpu``: DDP around a single process does its copies for nothing."""

from __future__ import annotations

from nsyspipe.findings.grad_copy import copy_evidence
from nsyspipe.findings.model import Answer, Evidence, Finding

NEEDS = ("grad_copy_ns",)


def ddp_single_gpu(evidence: Evidence) -> Answer:
    """Fire when the only rank of a world of one copies gradients out of buckets.

    Saving: the part of these copies beside compute, and all idle time, since DDP also launches a small kernel for each
    gradient. Where nothing says the size of the world, only copies inside marked backward ranges are known to be DDP's.
    """
    is_marked = evidence.mean("overlap_backward_ns") is not None
    is_known = evidence.world_size == 1 or (evidence.world_size is None and is_marked)
    if evidence.n_ranks != 1 or not is_known or evidence.has_comm or not evidence.mean("n_grad_copies"):
        return None
    exposed, idle = evidence.mean("exposed_grad_copy_ns"), evidence.mean("idle_ns")
    return Finding(
        title="DDP wraps a single process, and copies its gradients for nothing",
        action="drop DDP: there is only one process",
        advice="use DistributedDataParallel only when torch.distributed.get_world_size() > 1",
        saving_ns_per_step=None if exposed is None or idle is None else exposed + idle,
        evidence={"world_size": evidence.world_size, "idle_ns_per_step": idle, **copy_evidence(evidence)},
    )
