"""Rule ``launch-bound``: the GPU waits for kernel launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.findings.idle_share import idle_evidence, idle_of, on_rank
from nsyspipe.findings.model import Finding, NotJudged

if TYPE_CHECKING:
    from nsyspipe.findings.model import Answer, Evidence

__all__ = ["launch_bound"]

ID = "launch-bound"
_LEAST_SHARE = 0.02
_UNMARKED = "; wrap data loading in an NVTX range named 'data' to tell it apart"


def launch_bound(evidence: Evidence) -> Answer:
    """Fire when the rank that the others wait for idles for 2 % of step time because launches come late.

    Saving: as `idle_share.idle_of` has it. Not judged where more idle time than that has no known cause. Where no
    range marks the data phase, the host may have been waiting for data, and the finding says so.
    """
    idle, unknown = (idle_of(evidence, name) for name in ("idle_launch_ns", "idle_unknown_ns"))
    if evidence.steps.num_rows and (
        idle is None or unknown is None or evidence.share(unknown.judged_ns) >= _LEAST_SHARE
    ):
        return NotJudged(
            ID,
            "why the GPU idles is not known without copies, launches and their names, so input-bound and sync-bound are not either",
            "capture with nsys profile --trace=cuda,nvtx and export without --tables",
        )
    if idle is None or evidence.share(idle.judged_ns) < _LEAST_SHARE:
        return None
    has_data = "data" in evidence.phases["phase"].unique().to_pylist()
    return Finding(
        id=ID,
        title=f"the GPU idles because kernels are launched late{on_rank(idle)}",
        action="launch less: torch.compile, CUDA graphs, fused=True"
        if has_data
        else "launch less (torch.compile), or load data faster",
        advice='launch less or faster: torch.compile(mode="reduce-overhead") or CUDA graphs, fused optimizers '
        f"(fused=True), larger batches{'' if has_data else _UNMARKED}",
        saving_ns_per_step=idle.saving_ns,
        evidence=idle_evidence(evidence, idle, "idle_launch_ns"),
    )
