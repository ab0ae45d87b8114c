"""Rule ``input-bound``: the GPU waits for data."""

from __future__ import annotations

from nsyspipe.findings.idle_share import idle_evidence, idle_of, on_rank
from nsyspipe.findings.model import Answer, Evidence, Finding

_LEAST_SHARE = 0.02
_ADVICE = "DataLoader(num_workers=..., pin_memory=True, prefetch_factor=...), and .to(device, non_blocking=True)"
_TO_BE_SURE = "; wrap it in an NVTX range named 'data' to be sure"


def input_bound(evidence: Evidence) -> Answer:
    """Fire when the rank that the others wait for idles for 2 % of step time while its host gets the next batch.

    That is in the data phase, and between two steps, where the loop is in no range and in no CUDA call: probably its
    data loader, which the finding says where that is most of it. Saving: as `idle_share.idle_of` has it. Without
    launches `launch_bound` says that this cannot be judged.
    """
    idle = idle_of(evidence, "idle_input_ns")
    if idle is None or evidence.share(idle.judged_ns) < _LEAST_SHARE:
        return None
    between = evidence.mean("idle_between_steps_ns") or 0.0
    is_probable = 2 * between > (evidence.mean("idle_input_ns") or 0.0)
    title = "the GPU idles while the host gets the next batch"
    if is_probable:
        title = "the GPU idles between steps while the host probably waits for the data loader"
    return Finding(
        title=title + on_rank(idle),
        action="probably the data loader: num_workers, pin_memory"
        if is_probable
        else "feed the GPU: num_workers, pin_memory, non_blocking",
        advice=_ADVICE + (_TO_BE_SURE if is_probable else ""),
        saving_ns_per_step=idle.saving_ns,
        evidence=idle_evidence(evidence, idle, "idle_input_ns")
        | {"idle_between_steps_ns_per_step": evidence.mean("idle_between_steps_ns")},
    )
