"""Rule ``slow-link``: the ranks are connected by less than they could be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsyspipe.findings.link_evidence import judge_link
from nsyspipe.findings.model import Finding, NotJudged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.findings.model import Answer, Evidence

__all__ = ["slow_link"]

ID = "slow-link"
_LEAST_SHARE = 0.05


def slow_link(evidence: Evidence) -> Answer:
    """Fire when transfer takes 5 % of step time over a link that is slow (see `link_evidence.judge_link`).

    Between hosts only what NCCL's log or the topology says counts: there a network is all there is, and
    slower than NVLink. Peer to peer below one PCIe host bridge is the best there is without NVLink. Saving: the lesser of exposed communication and transfer, less the share of
    transfer that NVLink would still need where both bandwidths are known.
    """
    if evidence.n_ranks == 1 or not evidence.has_comm:
        return None
    transfer = evidence.transfer_ns_per_step
    if evidence.share(transfer) < _LEAST_SHARE:
        return None
    verdict = judge_link(evidence)
    if verdict.is_slow is None:
        return NotJudged(ID, *verdict.lacking)
    if not verdict.is_slow or verdict.is_near:
        return None
    if evidence.n_hosts > 1 and not verdict.is_seen:
        return None
    exposed = evidence.mean("exposed_comm_ns") or 0.0
    reached, promised = (
        verdict.evidence[name] for name in ("busbw_bytes_per_s", "nvlink_nominal_bytes_per_s")
    )
    kept = min(reached / promised, 1.0) if reached and promised else 0.0
    return Finding(
        id=ID,
        title=f"the ranks communicate over a slow link: {verdict.text}",
        action=f"use NVLink or P2P: data goes over {_now(verdict.evidence)}",
        advice="unset NCCL_P2P_DISABLE, check nvidia-smi topo -m, place the ranks on GPUs that NVLink connects, and let "
        "containers share memory and IPC (--ipc=host)",
        saving_ns_per_step=min(exposed, transfer * (1 - kept)),
        evidence=dict(verdict.evidence)
        | {"exposed_comm_ns_per_step": exposed, "transfer_ns_per_step": transfer},
    )


def _now(evidence: Mapping[str, Any]) -> str:
    """Return in a word or two what carries the data."""
    words = {"shm": "host memory (SHM)", "p2p_pcie": "PCIe", "net": "a network"}
    return words.get(evidence["link_kind"] or "", "something slower")
