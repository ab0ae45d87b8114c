"""Rule ``sync-bound``: the GPU runs dry because the host waits for it."""

from __future__ import annotations

from nsyspipe.findings.model import Answer, Evidence, Finding, idle_above

NEEDS = ()

_SHOWN_CALLS = 5
_LONGEST_NAME = 35  # names of calls come from the report; all of CUDA's are shorter
_ADVICE = (
    "avoid .item(), .cpu(), print of tensors and torch.cuda.synchronize() in the step; copy with pin_memory=True and "
    "non_blocking=True; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against cudaMalloc"
)


def sync_bound(evidence: Evidence) -> Answer:
    """Fire when the rank that the others wait for idles for 2 % of step time after or during synchronising and memory calls.

    Saving: as `model.idle_of` has it. Without launches `launch_bound` says that this cannot be judged.
    """
    idle = idle_above(evidence, "idle_blocked_ns")
    if idle is None:
        return None
    calls = dict(list(evidence.blocked_ns_by_call.items())[:_SHOWN_CALLS])
    name = next(iter(calls), "a synchronising call")[:_LONGEST_NAME]
    return Finding(
        f"the GPU idles because the host was blocked in {name}{idle.on_rank}",
        f"keep {name} out of the step",
        _ADVICE,
        idle.saving_ns,
        idle.figures(evidence) | {"idle_ns_per_step_by_call": calls},
    )
