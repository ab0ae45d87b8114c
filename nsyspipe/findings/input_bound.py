"""Rule ``input-bound``: the GPU waits for data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.findings.idle_share import idle_evidence, most_ns, typical_ns
from nsyspipe.findings.model import Finding

if TYPE_CHECKING:
    from nsyspipe.findings.model import Answer, Evidence

__all__ = ["input_bound"]

ID = "input-bound"
_LEAST_SHARE = 0.02


def input_bound(evidence: Evidence) -> Answer:
    """Fire when the middle rank idles for 2 % of step time while its host is in the data phase.

    Saving: at most that idle time of the rank with most. Without launches `launch_bound` says that this cannot be judged.
    """
    idle = typical_ns(evidence, "idle_input_ns")
    if idle is None or evidence.share(idle) < _LEAST_SHARE:
        return None
    return Finding(
        id=ID,
        title="the GPU idles while the host gets the next batch",
        action="feed the GPU: num_workers, pin_memory, non_blocking",
        advice="DataLoader(num_workers=..., pin_memory=True, prefetch_factor=...), and .to(device, non_blocking=True)",
        saving_ns_per_step=most_ns(evidence, "idle_input_ns"),
        evidence=idle_evidence(evidence),
    )
