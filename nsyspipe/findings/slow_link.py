"""Rule ``slow-link``: whether ranks are connected by less than they could be, by NCCL's log, topology or the bandwidth reached."""

from __future__ import annotations  # a saved run is checked by types as they are written

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.collectives import bus_factor
from nsyspipe.analysis.links import (
    BYTES_OF_COPIES,
    LinkVerdict,
    SlowestLink,
    nominal_speed,
    slowest,
)
from nsyspipe.analysis.traffic import TENSOR
from nsyspipe.findings.model import OF_COMM, Answer, Evidence, Finding, NotJudged, Rules
from nsyspipe.nsys.command_words import OF_LINKS
from nsyspipe.nsys.settings import is_costly, writes_log

_LEAST_SHARE = 0.05
_P2P_DISABLE = "NCCL_P2P_DISABLE"
LACKING = NotJudged(
    "neither an NCCL log nor message sizes show how fast the interconnect is",
    (
        "pass --nccl-log FILE (from a run with NCCL_DEBUG=INFO) and --topology FILE (nvidia-smi "
        "topo -m)"
    ),
)
_ASK = {
    "p2p": NotJudged(
        (
            "GPUs reach each other directly, but without the topology it is unknown whether over "
            "NVLink"
        ),
        "pass --topology FILE (nvidia-smi topo -m)",
    ),
    # A problem says what brings the sizes.
    "net": NotJudged(
        "the NCCL log names a network, but without message sizes its speed is unknown", None
    ),
}
_ABSENT = NotJudged(
    "transfer times are unknown for communicators with ranks that are not among the reports",
    (
        "pass the reports of all ranks, or --nccl-log FILE (from a run with NCCL_DEBUG=INFO) and "
        "--topology FILE"
    ),
)
_UNSET = "Unset NCCL_P2P_DISABLE"
_INSIDE_HOSTS = (
    "Unset NCCL_P2P_DISABLE, check nvidia-smi topo -m, place the ranks on GPUs that NVLink "
    "connects, and let "
    "containers share memory and IPC (--ipc=host)"
)
_FIND_OUT = (
    "Find out which interconnect the ranks use: run again with NCCL_DEBUG=INFO and pass --nccl-log "
    "FILE"
)
_FIND_OUT_BY_ITS_LOG = (
    "Find out which interconnect the ranks use: NCCL_DEBUG was set, so NCCL wrote a log, which "
    "--nccl-log FILE takes"
)
_WHY_UNUSED = (
    "Find out why NCCL does not use NVLink: run again with NCCL_DEBUG=INFO and pass --nccl-log FILE"
)
_BETWEEN_HOSTS = (
    "NCCL's log shows why NCCL does not use InfiniBand or RoCE (lines with NET/IB, "
    "NCCL_IB_DISABLE, NCCL_NET). Give "
    "containers the network cards (/dev/infiniband) and enough pinned memory (--ulimit memlock=-1)"
)
_SLOW_RATIO = (
    0.15  # below this share of what NVLink promises, it is not NVLink that carries the data
)
_MUCH_MORE = 1.5  # times what a link carries at most: it is another one
_PER_S = 1e9
_LARGE_BYTES = 16e6
_MOSTLY_GRADIENTS = 0.95  # of all transfer
_LEAST_BUCKET_BYTES = (
    1 << 20
)  # DDP closes each bucket but the last at its cap, the first one at this
_NEAR = ("PIX", "PXB", "PHB")
_NARROW = ("bf16", "f16", "f8e4m3", "f8e5m2")


def slow_link(evidence: Evidence) -> Answer:
    """Fire when transfer takes 5 % of step time over a link that is slow (see `judge_link`).

    Between hosts only what NCCL's log or the topology says counts: there a network is all there is.
    Peer to peer below one PCIe host bridge is the best there is without NVLink. Saving: the lesser
    of exposed transfer and transfer less the share that NVLink would still need, where both
    bandwidths are known, and all that communication slows compute down by, as
    `Evidence.saving_without` has it.
    """
    if evidence.n_ranks == 1 or not evidence.has_comm:
        return None
    transfer = evidence.transfer_ns_per_step
    if evidence.share(transfer) < _LEAST_SHARE:
        return None
    verdict = judge_link(evidence)
    if verdict.is_slow is None:
        return not_judged(verdict)
    if not verdict.is_slow or verdict.is_near or (evidence.n_hosts > 1 and not verdict.is_seen):
        return None
    reached = verdict.busbw_bytes_per_s
    promised = nvlink_promise(evidence.gpu_names)
    kept = min(reached / promised, 1.0) if reached and promised else 0.0
    # What NVLink would still need says nothing of what goes between hosts.
    is_open = evidence.exposed_transfer_ns_per_step is None or (
        evidence.n_hosts > 1 and verdict.crosses_hosts
    )
    saving, figures = (
        (None, evidence.slowdown_figures) if is_open else evidence.saving_without(kept=kept)
    )
    mostly = evidence.mostly("traffic ", "comm_ns_per_step", transfer)
    settings = evidence.link_settings  # of these what decides which way NCCL takes is shown
    how = "communicate over " if verdict.is_seen else "reach "
    title = f"The ranks {how}{verdict.text}{mostly}"
    change = _change(verdict, evidence)
    figures = {
        **verdict.evidence,
        # whether there is a faster one was not recorded
        **({} if verdict.is_seen or verdict.is_nvlink_there else {"is_conditional": True}),
        **({"is_nvlink_assumed": True} if _is_nvlink_assumed(verdict, evidence) else {}),
        "nccl_settings": settings
        and {name: settings[name] for name in OF_LINKS if name in settings},
        "exposed_comm_ns_per_step": evidence.mean("exposed_comm_ns"),
        "transfer_ns_per_step": transfer,
        **figures,
    }
    return Finding(title, change.action, change.advice, saving, figures)


def _is_nvlink_assumed(verdict: LinkVerdict, evidence: Evidence) -> bool:
    """Tell whether NVLink is promised that no topology shows: NCCL's log only names the slow link that is used."""
    is_between_hosts = verdict.evidence["link_kind"] == "net" and evidence.n_hosts > 1
    is_promised = verdict.evidence["nvlink_nominal_bytes_per_s"] is not None
    has_topology = (
        evidence.links is not None and evidence.links["path"].null_count < evidence.links.num_rows
    )
    return verdict.is_seen and is_promised and not (is_between_hosts or has_topology)


class _Change(Struct, frozen=True):
    """What to change, and how."""

    action: str
    advice: str


def _change(verdict: LinkVerdict, evidence: Evidence) -> _Change:
    """Return what gives the ranks a faster link."""
    kind = verdict.evidence["link_kind"]
    if kind == "net" and evidence.n_hosts > 1:
        return _Change("Use InfiniBand or RoCE (data goes over TCP now)", _BETWEEN_HOSTS)
    is_inside = kind == "shm" or evidence.n_hosts == 1  # between hosts P2P is no way
    is_switched_off = is_costly(_P2P_DISABLE, (evidence.link_settings or {}).get(_P2P_DISABLE))
    over = {"shm": "host memory", "p2p_pcie": "PCIe", "net": "a network"}.get(
        kind or "", "something slower"
    )
    if is_inside and is_switched_off:
        return _Change(f"{_UNSET} (it forces {over})", _UNSET)
    if verdict.is_seen:
        advice = _INSIDE_HOSTS
    elif verdict.is_nvlink_there:
        return _Change("Use the NVLink that connects the GPUs", f"{_WHY_UNUSED}. {_INSIDE_HOSTS}")
    else:
        is_log_written = writes_log(evidence.environment or {})
        advice = f"{_FIND_OUT_BY_ITS_LOG if is_log_written else _FIND_OUT}. {_INSIDE_HOSTS}"
    if kind:
        return _Change(f"Use NVLink or P2P (data goes over {over} now)", advice)
    return _Change("If NVLink connects the GPUs (not recorded), use it", advice)


def not_judged(verdict: LinkVerdict) -> NotJudged:
    """Return why no rule can judge a link, where it cannot be told."""
    reason, *fixes = verdict.lacking
    return NotJudged(reason, fixes[0] if fixes else None)


def judge_link(evidence: Evidence) -> LinkVerdict:
    """Tell whether the ranks of a run are connected by less than NVLink could give, or by TCP.

    Slow: host memory (SHM), PCIe, a socket network; without such knowledge a bus bandwidth below 15
    % of NVLink's on GPUs that have it. It is measured on messages of 16 MB and more, or estimated
    from the bytes of all gradients that DDP copied, over the time that all-reduces transferred,
    which have to be 95 % of all transfer; not from copies where a narrow type shows that gradients
    may have been compressed, or where so many all-reduces are of larger buckets than what was
    copied. NCCL_P2P_DISABLE tells the link too, where nothing says which way NCCL took and the
    bandwidth is not NVLink's.
    """
    rows = evidence.links.to_pylist() if evidence.links is not None else []
    link = slowest(evidence.links) if rows else None
    if link and link.kind == "net" and evidence.n_hosts > 1:
        link = _slow_inside(evidence, link, rows) or link
    if (
        link and evidence.n_hosts > 1
    ):  # the bandwidth is of what crosses hosts too, whose ceiling is not known
        link = replace(link, nominal_bytes_per_s=None)
    promised = nvlink_promise(evidence.gpu_names)
    reached, source = _busbw(evidence)
    if (
        link
        and link.kind != "nvlink"
        and reached
        and reached > _MUCH_MORE * (link.nominal_bytes_per_s or math.inf)
    ):
        # that cannot be: what names it is of another run
        link = None
        rows = []
    facts = {
        "link_kind": link and link.kind,
        "link": link and link.text,
        "link_nominal_bytes_per_s": link and link.nominal_bytes_per_s,
        "nvlink_nominal_bytes_per_s": promised,
        "busbw_bytes_per_s": reached,
        "busbw_source": source,
    }
    is_slow = _by_link(link.kind, rows) if link else None
    text = link.text if link else ""
    lacking = _ASK.get(link.kind, LACKING) if link else LACKING
    is_seen = is_slow is not None
    crosses = any(row["kind"] == "net" for row in rows)
    paths = [row["path"] or "" for row in rows if link and link.kind == row["kind"]]
    is_nvlink_there = bool(paths) and all(path.startswith("NV") for path in paths)
    if not is_seen and promised is not None:
        large = reached if source == BYTES_OF_COPIES else None
        if large is None:
            # Large messages, which latency does not hide.
            sent = evidence.collectives.filter(
                pc.greater_equal(evidence.collectives["message_bytes"], _LARGE_BYTES)
            )
            n_bytes = _total(sent["bus_bytes"])
            transfer = _total(sent["transfer_ns"])
            large = _PER_S * n_bytes / transfer if n_bytes and transfer else None
        if large is not None:
            is_slow = large < _SLOW_RATIO * promised and evidence.n_hosts == 1
            text = "far less bandwidth than NVLink gives"
            if is_nvlink_there:
                text += ", although NVLink connects the GPUs"
        elif evidence.has_absent_ranks:
            lacking = _ABSENT
    is_way_open = not is_seen and is_slow is not False
    forced = _forced_link(evidence) if is_way_open else None
    if forced is not None:
        is_slow = True
        is_seen = True
        text = forced.text
        facts |= {"link_kind": forced.kind, "link": forced.text, "link_nominal_bytes_per_s": None}
        link = link and replace(link, kind=forced.kind, text=forced.text, nominal_bytes_per_s=None)
    may_be_near = is_seen and link is not None and link.kind in ("p2p_pcie", "unknown")
    is_near = may_be_near and all(
        row["path"] in _NEAR for row in rows if link and row["kind"] == link.kind
    )
    lacking_words = _words_of(lacking) if is_slow is None else ()
    return LinkVerdict(
        is_slow,
        is_seen,
        is_near,
        text,
        lacking_words,
        facts,
        link,
        reached,
        source,
        crosses,
        is_nvlink_there,
    )


def _words_of(lacking: NotJudged) -> tuple[str, ...]:
    """Return the reason, and the fix if there is one, as a run is saved with them."""
    return (lacking.reason,) if lacking.fix is None else (lacking.reason, lacking.fix)


class _ForcedLink(Struct, frozen=True):
    """What a setting leaves of the ways between GPUs of one host."""

    kind: str
    text: str


def _forced_link(evidence: Evidence) -> _ForcedLink | None:
    """Return the way that NCCL_P2P_DISABLE leaves NCCL on one host; None where it is not set."""
    settings = evidence.link_settings or {}
    if evidence.n_hosts > 1 or not is_costly(_P2P_DISABLE, settings.get(_P2P_DISABLE)):
        return None
    if settings.get("NCCL_SHM_DISABLE") == "1":
        return _ForcedLink("net", "a network, by NCCL_P2P_DISABLE and NCCL_SHM_DISABLE")
    return _ForcedLink("shm", "host memory (SHM), by NCCL_P2P_DISABLE")


def _slow_inside(
    evidence: Evidence, network: SlowestLink, rows: Sequence[Mapping[str, Any]]
) -> SlowestLink | None:
    """Return the slow link inside hosts where the network between them, which there is no way around, is not slow."""
    if evidence.links is None or _by_link("net", rows):
        return None
    inside = slowest(evidence.links.filter(pc.not_equal(evidence.links["kind"], "net")))
    is_slow = inside is not None and _by_link(inside.kind, rows)
    return replace(inside, n_edges=network.n_edges) if inside and is_slow else None


def nvlink_promise(gpu_names: Sequence[str]) -> float | None:
    """Return what NVLink gives between GPUs of these models; None of cards, which it connects only in pairs, if at all."""
    speed = None if any("PCI" in name.upper() for name in gpu_names) else nominal_speed(gpu_names)
    return None if speed is None else speed.bytes_per_s


def _by_link(kind: str, rows: Sequence[Mapping[str, Any]]) -> bool | None:
    """Judge by what NCCL or the topology says of the links of the slowest kind; None when that leaves it open."""
    rows = [row for row in rows if row["kind"] == kind]
    has_nvlink = [row["path"].startswith("NV") for row in rows if row["path"]]
    if kind == "net":
        # Between hosts nothing beats a network; within one it stands in for what NCCL could not
        # use.
        return (
            True
            if any("Socket" in (row["transport"] or "") for row in rows) or any(has_nvlink)
            else None
        )
    if kind == "unknown" and has_nvlink and not any(has_nvlink):
        return True  # whatever NCCL uses, it crosses PCIe
    return {"shm": True, "p2p_pcie": True, "nvlink": False}.get(kind)


def _total(column: pa.ChunkedArray) -> int | None:
    total: int | None = pc.sum(column, skip_nulls=False, min_count=1).as_py()
    return total


def _busbw(evidence: Evidence) -> tuple[float | None, str | None]:
    measured = evidence.summary["busbw_bytes_per_s"]
    if measured is not None:
        return float(measured), "payload"
    if evidence.traffic_of(TENSOR, "all_reduce"):
        return None, None  # their time is not that of gradients
    all_rows = evidence.collectives
    rows = all_rows.filter(pc.equal(all_rows["collective"], "all_reduce"))
    n_bytes = _total(evidence.steps["grad_copy_bytes"])
    in_all = _total(all_rows["transfer_ns"])
    transfer = _total(rows["transfer_ns"])
    is_narrow = any(datatype in _NARROW for datatype in rows["datatype"].unique().to_pylist())
    # Beside little else: a metric that is gathered, buffers that are broadcast.
    if is_narrow or not (n_bytes and transfer and in_all) or transfer < _MOSTLY_GRADIENTS * in_all:
        return None, None
    if n_bytes < (rows.num_rows - evidence.steps.num_rows) * _LEAST_BUCKET_BYTES:
        return None, None  # of some of them nothing was copied: a hook sends something else
    return _PER_S * n_bytes * float(
        bus_factor("all_reduce", pc.max(rows["n_ranks"]).as_py())
    ) / transfer, BYTES_OF_COPIES


RULES: Rules = {slow_link: OF_COMM}
