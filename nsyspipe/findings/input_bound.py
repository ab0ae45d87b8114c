"""Rule ``input-bound``: the GPU waits for data."""

from __future__ import annotations

from nsyspipe.findings.model import Answer, Evidence, Finding, idle_above

NEEDS = ()

_ACTION = "feed the GPU: num_workers, pin_memory, non_blocking"
_ADVICE = "DataLoader(num_workers=..., pin_memory=True, prefetch_factor=...), and .to(device, non_blocking=True)"
_TO_BE_SURE = "; wrap it in an NVTX range named 'data' to be sure"


def input_bound(evidence: Evidence) -> Answer:
    """Fire when the rank that the others wait for idles for 2 % of step time while its host gets the next batch.

    That is in the data phase, and between two steps, where the loop is in no range and in no CUDA call: probably its
    data loader. Saving: as `model.idle_of` has it. Without launches `launch_bound` says that this cannot be judged.
    """
    idle = idle_above(evidence, "idle_input_ns")
    if idle is None:
        return None
    between = evidence.mean("idle_between_steps_ns")
    title, action, advice = "the GPU idles while the host gets the next batch", _ACTION, _ADVICE
    if 2 * (between or 0.0) > (evidence.mean("idle_input_ns") or 0.0):
        title = "the GPU idles between steps while the host probably waits for the data loader"
        action, advice = "probably the data loader: num_workers, pin_memory", _ADVICE + _TO_BE_SURE
    figures = idle.figures(evidence)
    figures["idle_between_steps_ns_per_step"] = between
    return Finding(title + idle.on_rank, action, advice, idle.saving_ns, figures)
