"""Rule ``slow-link``: the ranks are connected by less than they could be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.findings.link_evidence import judge_link
from nsyspipe.findings.model import Finding, NotJudged
from nsyspipe.nsys.variables import OF_LINKS

if TYPE_CHECKING:
    from nsyspipe.findings.model import Answer, Evidence


ID = "slow-link"
_LEAST_SHARE = 0.05
# What a user may have set that decides what NCCL uses.


def slow_link(evidence: Evidence) -> Answer:
    """Fire when transfer takes 5 % of step time over a link that is slow (see `link_evidence.judge_link`).

    Between hosts only what NCCL's log or the topology says counts: there a network is all there is, and
    slower than NVLink. Peer to peer below one PCIe host bridge is the best there is without NVLink. Saving: the lesser of
    exposed transfer and transfer less the share that NVLink would still need, where both bandwidths are known, and
    all that communication slows compute down by, as `Evidence.saving_without_comm` has it.
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
    reached, promised = (
        verdict.evidence[name] for name in ("busbw_bytes_per_s", "nvlink_nominal_bytes_per_s")
    )
    kept = min(reached / promised, 1.0) if reached and promised else 0.0
    return Finding(
        id=ID,
        title=f"the ranks communicate over a slow link: {verdict.text}",
        action=_action(verdict.evidence["link_kind"], evidence),
        advice="unset NCCL_P2P_DISABLE, check nvidia-smi topo -m, place the ranks on GPUs that NVLink connects, and let "
        "containers share memory and IPC (--ipc=host)",
        saving_ns_per_step=None
        if evidence.exposed_transfer_ns_per_step is None
        else evidence.saving_without_comm(kept),
        evidence=dict(verdict.evidence)
        | {
            "nccl_settings": _settings(evidence),
            "exposed_comm_ns_per_step": evidence.mean("exposed_comm_ns"),
            "transfer_ns_per_step": transfer,
            **evidence.slowdown_figures,
        },
    )


def _settings(evidence: Evidence) -> dict[str, str] | None:
    """Return what was set of that which decides what NCCL uses; None without its log."""
    found = evidence.nccl_settings
    return None if found is None else {name: found[name] for name in OF_LINKS if name in found}


def _action(kind: str | None, evidence: Evidence) -> str:
    """Name the setting that keeps GPUs from each other's memory, if that is why; else what would be faster."""
    is_inside = kind == "shm" or evidence.n_hosts == 1  # between hosts P2P is no way
    if is_inside and _is_p2p_off(evidence):
        # Host memory is what NCCL falls back on, and "(SHM)" would not fit.
        over = "host memory" if kind == "shm" else _now(kind)
        return f"unset NCCL_P2P_DISABLE: data goes over {over}"
    return f"use NVLink or P2P: data goes over {_now(kind)}"


def _is_p2p_off(evidence: Evidence) -> bool:
    """Tell whether a process at least had P2P switched off; values that differ between processes are listed."""
    value = (evidence.nccl_settings or {}).get("NCCL_P2P_DISABLE", "")
    return "1" in value.split(" | ")


def _now(kind: str | None) -> str:
    """Return in a word or two what carries the data."""
    words = {"shm": "host memory (SHM)", "p2p_pcie": "PCIe", "net": "a network"}
    return words.get(kind or "", "something slower")
