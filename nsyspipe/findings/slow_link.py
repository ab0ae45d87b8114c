"""Rule ``slow-link``: whether the link between ranks is slower than it could be.

NCCL's log or the topology shows the link, or else the bandwidth that was reached.
"""

# A saved run is checked by the types as they are written here.
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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
from nsyspipe.findings.model import (
    COLUMNS_OF_COMM,
    Answer,
    Condition,
    Evidence,
    Finding,
    NotJudged,
    Rules,
    Saving,
    select_rows,
)
from nsyspipe.model.typed_tables import (
    LinksTable,
)
from nsyspipe.nsys.command_words import OF_LINKS
from nsyspipe.nsys.settings import is_costly, writes_log

_MIN_TRANSFER_SHARE_OF_STEP = 0.05
# Data does not go over NVLink if it reaches less than this share of NVLink's bandwidth.
_MAX_SHARE_OF_NVLINK_IF_SLOW = 0.15
# A link that reaches more than this times its nominal bandwidth is another link.
_MAX_RATIO_TO_NOMINAL = 1.5
_MIN_LARGE_MESSAGE_BYTES = 16e6
# All-reduces of gradients have this share of transfer, if copies give an estimate of bandwidth.
_MIN_GRADIENT_SHARE_OF_TRANSFER = 0.95
# DDP closes each bucket except the last one at its cap, and the first one at this size.
_MIN_BUCKET_BYTES = 1 << 20
_NS_PER_S = 1e9
_P2P_DISABLE = "NCCL_P2P_DISABLE"
# Paths of the topology below one PCIe host bridge.
_NEAR_PATHS = ("PIX", "PXB", "PHB")
_NARROW_DATATYPES = frozenset({"bf16", "f16", "f8e4m3", "f8e5m2"})
_WORDS_BY_KIND = {"shm": "host memory", "p2p_pcie": "PCIe", "net": "a network"}
# Other kinds are slow or not by more than their kind.
_IS_SLOW_BY_KIND = {"shm": True, "p2p_pcie": True, "nvlink": False}
LACKING = NotJudged(
    "neither an NCCL log nor message sizes show how fast the interconnect is",
    (
        "pass --nccl-log FILE (from a run with NCCL_DEBUG=INFO) and --topology FILE (nvidia-smi "
        "topo -m)"
    ),
)
_LACKING_BY_KIND = {
    "p2p": NotJudged(
        (
            "GPUs reach each other directly, but without the topology it is unknown whether over "
            "NVLink"
        ),
        "pass --topology FILE (nvidia-smi topo -m)",
    ),
    # A problem of the run says what adds the sizes.
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
_USE_NVLINK = (
    "Unset NCCL_P2P_DISABLE, check nvidia-smi topo -m, place the ranks on GPUs that NVLink "
    "connects, and let "
    "containers share memory and IPC (--ipc=host)"
)
_FIND_OUT = (
    "Find out which interconnect the ranks use: run again with NCCL_DEBUG=INFO and pass --nccl-log "
    "FILE"
)
_FIND_OUT_BY_LOG = (
    "Find out which interconnect the ranks use: NCCL_DEBUG was set, so NCCL wrote a log, which "
    "--nccl-log FILE takes"
)
_WHY_UNUSED = (
    "Find out why NCCL does not use NVLink: run again with NCCL_DEBUG=INFO and pass --nccl-log FILE"
)
_USE_FAST_NETWORK = (
    "NCCL's log shows why NCCL does not use InfiniBand or RoCE (lines with NET/IB, "
    "NCCL_IB_DISABLE, NCCL_NET). Give "
    "containers the network cards (/dev/infiniband) and enough pinned memory (--ulimit memlock=-1)"
)


def slow_link(evidence: Evidence) -> Answer:
    """Fire if transfer takes 5 % of step time over a link that is slow, see `judge_link`.

    With several hosts, a link must be slow by NCCL's log or the topology, because a low bandwidth
    is normal between hosts. The rule does not fire for near GPUs, which are peer to peer below one
    PCIe host bridge, because nothing is faster without NVLink.

    Saving: see `_saving_with_nvlink`.
    """
    if evidence.n_ranks == 1 or not evidence.has_comm:
        return None
    transfer_ns = evidence.transfer_ns_per_step
    if evidence.share_of_step(transfer_ns) < _MIN_TRANSFER_SHARE_OF_STEP:
        return None
    verdict = judge_link(evidence)
    if verdict.is_slow is None:
        return not_judged(verdict)
    is_normal_between_hosts = evidence.n_hosts > 1 and not verdict.is_seen
    if not verdict.is_slow or verdict.is_near or is_normal_between_hosts:
        return None
    change = _find_change(evidence, verdict)
    bound = _saving_with_nvlink(evidence, verdict)
    condition = _find_condition(evidence, verdict)
    figures = {**verdict.evidence, **condition.figures, **evidence.counted_figures}
    figures["nccl_settings"] = _shown_settings(evidence)
    figures["exposed_comm_ns_per_step"] = evidence.mean("exposed_comm_ns")
    figures["transfer_ns_per_step"] = transfer_ns
    saving_ns = None
    if bound is None:
        figures |= evidence.slowdown.figures
    else:
        saving_ns = bound.ns_per_step
        figures |= bound.figures
    title = f"{_word_title(evidence, verdict)}{evidence.counted_text}"
    return Finding(title, change.action, change.advice, saving_ns, figures)


def _saving_with_nvlink(evidence: Evidence, verdict: LinkVerdict) -> Saving | None:
    """Return what NVLink saves at most: `Evidence.saving_without` all communication.

    The share of transfer that NVLink would still need remains, if both bandwidths are known. None
    if exposed transfer is not known, or if data also goes between hosts.
    """
    crosses_hosts = evidence.n_hosts > 1 and verdict.crosses_hosts
    if evidence.exposed_transfer_ns_per_step is None or crosses_hosts:
        return None
    reached = verdict.busbw_bytes_per_s
    promised = nvlink_promise(evidence.gpu_names)
    remaining_share = min(reached / promised, 1.0) if reached and promised else 0.0
    return evidence.saving_without(remaining_share=remaining_share)


def _find_condition(evidence: Evidence, verdict: LinkVerdict) -> Condition:
    """Return what the finding depends on that was not recorded."""
    # If only the bandwidth is low, it was not recorded whether there is a faster link.
    is_faster_link_known = verdict.is_seen or verdict.is_nvlink_there
    return Condition(
        is_conditional=not is_faster_link_known,
        is_nvlink_assumed=_is_nvlink_assumed(evidence, verdict),
    )


def _is_nvlink_assumed(evidence: Evidence, verdict: LinkVerdict) -> bool:
    """Tell whether the finding promises NVLink, and it is not known whether NVLink is there.

    NVLink is promised in place of a slow link that NCCL's log or the topology shows. Only the
    topology shows NVLink that is not used. A network between hosts is no link to replace.
    """
    is_promised = verdict.evidence["nvlink_nominal_bytes_per_s"] is not None
    is_between_hosts = verdict.evidence["link_kind"] == "net" and evidence.n_hosts > 1
    if is_between_hosts or not is_promised or not verdict.is_seen:
        return False
    return not _has_topology(evidence.links)


def _has_topology(links: LinksTable | None) -> bool:
    return links is not None and links["path"].null_count < links.num_rows


def _shown_settings(evidence: Evidence) -> dict[str, str] | None:
    """Return the settings that decide which way NCCL takes; None if they are not known."""
    settings = evidence.link_settings
    if settings is None:
        return None
    return {name: settings[name] for name in OF_LINKS if name in settings}


def _word_title(evidence: Evidence, verdict: LinkVerdict) -> str:
    verb = "communicate over" if verdict.is_seen else "reach"
    transfer_ns = evidence.transfer_ns_per_step
    role = evidence.main_role_text("comm_ns_per_step", transfer_ns, noun="traffic")
    return f"The ranks {verb} {verdict.text}{role}"


class _Change(Struct, frozen=True):
    """What to change, and how."""

    action: str
    advice: str


def _find_change(evidence: Evidence, verdict: LinkVerdict) -> _Change:
    """Return what gives the ranks a faster link."""
    kind = verdict.evidence["link_kind"]
    if kind == "net" and evidence.n_hosts > 1:
        return _Change("Use InfiniBand or RoCE (data goes over TCP now)", _USE_FAST_NETWORK)
    way = _WORDS_BY_KIND.get(kind, "something slower")
    # Between hosts, there is no P2P that a setting could disable.
    is_inside_host = kind == "shm" or evidence.n_hosts == 1
    if is_inside_host and _is_p2p_disabled(evidence):
        return _Change(f"{_UNSET} (it forces {way})", _UNSET)
    is_only_bandwidth_low = not verdict.is_seen
    if is_only_bandwidth_low and verdict.is_nvlink_there:
        advice = f"{_WHY_UNUSED}. {_USE_NVLINK}"
        return _Change("Use the NVLink that connects the GPUs", advice)
    find_out = f"{_advise_to_find_out(evidence)}. " if is_only_bandwidth_low else ""
    advice = f"{find_out}{_USE_NVLINK}"
    if kind:
        return _Change(f"Use NVLink or P2P (data goes over {way} now)", advice)
    return _Change("If NVLink connects the GPUs (not recorded), use it", advice)


def _advise_to_find_out(evidence: Evidence) -> str:
    """Say how NCCL's log comes to nsyspipe, with the log if NCCL wrote one."""
    return _FIND_OUT_BY_LOG if writes_log(evidence.environment or {}) else _FIND_OUT


def _is_p2p_disabled(evidence: Evidence) -> bool:
    settings = evidence.link_settings or {}
    return is_costly(_P2P_DISABLE, settings.get(_P2P_DISABLE))


def not_judged(verdict: LinkVerdict) -> NotJudged:
    """Return why it is not known whether a link is slow, and what would show it."""
    reason, *fixes = verdict.lacking
    fix = fixes[0] if fixes else None
    return NotJudged(reason, fix)


class _Bandwidth(NamedTuple):
    """The bus bandwidth that all-reduces reach, and where its bytes come from."""

    bytes_per_s: float | None
    source: str | None


_UNKNOWN_BANDWIDTH = _Bandwidth(None, None)


class _RecordedLinks(NamedTuple):
    """What NCCL's log or the topology shows of the links between ranks."""

    slowest: SlowestLink | None
    # Rows of `schema.LINKS`.
    rows: Sequence[Mapping[str, Any]]

    @property
    def crosses_hosts(self) -> bool:
        """Whether a network is among the links."""
        return any(row["kind"] == "net" for row in self.rows)

    def paths_of_slowest(self) -> list[str | None]:
        """Return the paths of all links of the slowest kind; None for a path that is not known."""
        if self.slowest is None:
            return []
        slowest_kind = self.slowest.kind
        return [row["path"] for row in self.rows if row["kind"] == slowest_kind]

    def is_nvlink_there(self) -> bool:
        """Tell whether NVLink connects all pairs of GPUs of the slowest kind of link."""
        paths = [path or "" for path in self.paths_of_slowest()]
        return bool(paths) and all(path.startswith("NV") for path in paths)

    def is_near(self) -> bool:
        """Tell whether the slowest links are peer to peer below one PCIe host bridge."""
        if self.slowest is None or self.slowest.kind not in {"p2p_pcie", "unknown"}:
            return False
        return all(path in _NEAR_PATHS for path in self.paths_of_slowest())


_NO_LINKS = _RecordedLinks(None, ())


class _Judgement(NamedTuple):
    """Whether a link is slow, and how that is known."""

    # None if it is not known.
    is_slow: bool | None
    is_seen: bool
    text: str
    # Why it is not known.
    lacking: NotJudged = LACKING

    @property
    def lacking_words(self) -> tuple[str, ...]:
        """Why it is not known whether the link is slow: the reason, and the fix if there is one.

        Empty if it is known.
        """
        if self.is_slow is not None:
            return ()
        reason = self.lacking.reason
        fix = self.lacking.fix
        return (reason,) if fix is None else (reason, fix)


def judge_link(evidence: Evidence) -> LinkVerdict:
    """Tell whether a link between ranks is slower than NVLink, or than a network other than TCP.

    These decide, in this order:

    - NCCL's log or the topology: host memory (SHM), PCIe and a network over TCP are slow.
    - The bandwidth on GPUs that have NVLink: less than 15 % of that of NVLink is slow, see
      `_judge_by_bandwidth`. Otherwise the link is not slow.
    - NCCL_P2P_DISABLE, if neither of these has decided, or if only the bandwidth is low. The link
      is slow, and is the one that this setting leaves to NCCL.
    """
    bandwidth = _measure_bandwidth(evidence)
    recorded = _find_recorded_links(evidence, bandwidth)
    facts = _link_facts(evidence, recorded.slowest, bandwidth)
    judgement = _judge_by_record(recorded)
    if not judgement.is_seen:
        judgement = _judge_by_bandwidth(evidence, recorded, bandwidth, judgement)
    forced = None
    if not judgement.is_seen and judgement.is_slow is not False:
        forced = _find_forced_link(evidence)
    slowest_link = recorded.slowest
    if forced is not None:
        judgement = _Judgement(is_slow=True, is_seen=True, text=forced.text)
        facts |= {"link_kind": forced.kind, "link": forced.text, "link_nominal_bytes_per_s": None}
        if slowest_link is not None:
            slowest_link = replace(
                slowest_link, kind=forced.kind, text=forced.text, nominal_bytes_per_s=None
            )
    is_recorded = judgement.is_seen and forced is None
    is_near = is_recorded and recorded.is_near()
    is_nvlink_there = recorded.is_nvlink_there()
    return LinkVerdict(
        is_slow=judgement.is_slow,
        is_seen=judgement.is_seen,
        is_near=is_near,
        text=judgement.text,
        lacking=judgement.lacking_words,
        evidence=facts,
        slowest=slowest_link,
        busbw_bytes_per_s=bandwidth.bytes_per_s,
        busbw_source=bandwidth.source,
        crosses_hosts=recorded.crosses_hosts,
        is_nvlink_there=is_nvlink_there,
    )


def _find_recorded_links(evidence: Evidence, bandwidth: _Bandwidth) -> _RecordedLinks:
    """Return the links that NCCL's log or the topology shows.

    There are none if the bandwidth is much higher than the slowest link allows, because then the
    log or the topology is of another run.
    """
    if evidence.links is None:
        return _NO_LINKS
    rows = evidence.links.to_pylist()
    link = slowest(evidence.links)
    if link is None:
        return _NO_LINKS
    if evidence.n_hosts > 1:
        if link.kind == "net":
            link = _find_slow_link_inside_hosts(evidence.links, link, rows) or link
        # The bandwidth is also that of data between hosts, so the link does not limit it.
        link = replace(link, nominal_bytes_per_s=None)
        return _RecordedLinks(link, rows)
    max_bytes_per_s = math.inf
    if link.nominal_bytes_per_s and link.kind != "nvlink":
        max_bytes_per_s = _MAX_RATIO_TO_NOMINAL * link.nominal_bytes_per_s
    is_of_other_run = (bandwidth.bytes_per_s or 0.0) > max_bytes_per_s
    return _NO_LINKS if is_of_other_run else _RecordedLinks(link, rows)


def _link_facts(
    evidence: Evidence, link: SlowestLink | None, bandwidth: _Bandwidth
) -> dict[str, Any]:
    """Return the figures of a link and of the bandwidths. What is not known is None."""
    facts: dict[str, Any] = {"link_kind": None, "link": None, "link_nominal_bytes_per_s": None}
    if link is not None:
        facts["link_kind"] = link.kind
        facts["link"] = link.text
        facts["link_nominal_bytes_per_s"] = link.nominal_bytes_per_s
    facts["nvlink_nominal_bytes_per_s"] = nvlink_promise(evidence.gpu_names)
    facts["busbw_bytes_per_s"] = bandwidth.bytes_per_s
    facts["busbw_source"] = bandwidth.source
    return facts


def _judge_by_record(recorded: _RecordedLinks) -> _Judgement:
    """Judge by the kind of the slowest link, if NCCL's log or the topology shows it."""
    link = recorded.slowest
    if link is None:
        return _Judgement(is_slow=None, is_seen=False, text="")
    is_slow = _is_kind_slow(link.kind, recorded.rows)
    lacking = _LACKING_BY_KIND.get(link.kind, LACKING)
    is_known = is_slow is not None
    return _Judgement(is_slow, is_seen=is_known, text=link.text, lacking=lacking)


def _judge_by_bandwidth(
    evidence: Evidence, recorded: _RecordedLinks, bandwidth: _Bandwidth, by_record: _Judgement
) -> _Judgement:
    """Judge by the bandwidth, compared to that of NVLink, on GPUs that have NVLink.

    The bandwidth is the one that was estimated from gradient copies, or else that of messages of
    16 MB and more. If it is not known, or if GPUs have no NVLink, the judgement by the record
    stays.
    """
    promised = nvlink_promise(evidence.gpu_names)
    if promised is None:
        return by_record
    is_of_copies = bandwidth.source == BYTES_OF_COPIES
    reached = bandwidth.bytes_per_s if is_of_copies else _bandwidth_of_large_messages(evidence)
    if reached is None:
        return by_record._replace(lacking=_ABSENT) if evidence.has_absent_ranks else by_record
    # Between hosts, a low bandwidth is normal.
    is_slow = evidence.n_hosts == 1 and reached < _MAX_SHARE_OF_NVLINK_IF_SLOW * promised
    text = "far less bandwidth than NVLink gives"
    if recorded.is_nvlink_there():
        text += ", although NVLink connects the GPUs"
    return by_record._replace(is_slow=is_slow, text=text)


def _bandwidth_of_large_messages(evidence: Evidence) -> float | None:
    """Return the bus bandwidth of large messages, of which latency hardly costs any time.

    None if there are none, or if a size or a transfer time is not known.
    """
    rows = evidence.collectives
    large = rows.filter(pc.greater_equal(rows["message_bytes"], _MIN_LARGE_MESSAGE_BYTES))
    n_bytes = _sum_or_none(large["bus_bytes"])
    transfer_ns = _sum_or_none(large["transfer_ns"])
    return _NS_PER_S * n_bytes / transfer_ns if n_bytes and transfer_ns else None


class _ForcedLink(Struct, frozen=True):
    """The way between GPUs of one host that settings leave."""

    kind: str
    text: str


def _find_forced_link(evidence: Evidence) -> _ForcedLink | None:
    """Return the link that NCCL_P2P_DISABLE leaves to NCCL. None if it is not set, or has no say.

    It has no say with several hosts.
    """
    if evidence.n_hosts > 1 or not _is_p2p_disabled(evidence):
        return None
    settings = evidence.link_settings or {}
    if settings.get("NCCL_SHM_DISABLE") == "1":
        return _ForcedLink("net", "a network, by NCCL_P2P_DISABLE and NCCL_SHM_DISABLE")
    return _ForcedLink("shm", "host memory (SHM), by NCCL_P2P_DISABLE")


def _find_slow_link_inside_hosts(
    links: LinksTable, network: SlowestLink, rows: Sequence[Mapping[str, Any]]
) -> SlowestLink | None:
    """Return the slowest link inside hosts; None unless it is slow and the network is not.

    The result replaces the network between hosts as the slowest link of the run. So it has the
    number of edges of the network.
    """
    if _is_kind_slow("net", rows):
        return None
    inside = slowest(links.filter(pc.not_equal(links["kind"], "net")))
    if inside is None or not _is_kind_slow(inside.kind, rows):
        return None
    return replace(inside, n_edges=network.n_edges)


def nvlink_promise(gpu_names: Sequence[str]) -> float | None:
    """Return the bandwidth of NVLink between GPUs of some models, bytes per s.

    None for PCIe cards, which NVLink connects only in pairs, if at all.
    """
    if any("PCI" in name.upper() for name in gpu_names):
        return None
    speed = nominal_speed(gpu_names)
    return None if speed is None else speed.bytes_per_s


def _is_kind_slow(kind: str, rows: Sequence[Mapping[str, Any]]) -> bool | None:
    """Tell whether links of a kind are slow; None if it is not known.

    Some kinds are always slow or always fast. Of other kinds, the transports and paths of all links
    can show that they are slow, but not that they are fast.
    """
    if kind in _IS_SLOW_BY_KIND:
        return _IS_SLOW_BY_KIND[kind]
    rows_of_kind = [row for row in rows if row["kind"] == kind]
    known_paths = [row["path"] for row in rows_of_kind if row["path"]]
    has_nvlink = any(path.startswith("NV") for path in known_paths)
    if kind == "net":
        # Nothing is faster than a network between hosts. Inside a host, where NVLink connects GPUs,
        # a network replaces what NCCL could not use.
        is_surely_slow = _has_socket(rows_of_kind) or has_nvlink
    elif kind == "unknown":
        # Whatever NCCL uses, data crosses PCIe if no pair has NVLink.
        is_surely_slow = bool(known_paths) and not has_nvlink
    else:
        is_surely_slow = False
    return True if is_surely_slow else None


def _has_socket(links: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether NCCL uses TCP for one of some links."""
    return any("Socket" in (link["transport"] or "") for link in links)


def _sum_or_none(column: pa.ChunkedArray) -> int | None:
    """Return the sum of a column; None if a value is null, or without values."""
    total: int | None = pc.sum(column, skip_nulls=False, min_count=1).as_py()
    return total


def _measure_bandwidth(evidence: Evidence) -> _Bandwidth:
    """Return the measured bus bandwidth, otherwise that estimated from gradient copies."""
    measured = evidence.summary["busbw_bytes_per_s"]
    if measured is not None:
        return _Bandwidth(float(measured), "payload")
    if evidence.traffic_of_role(TENSOR, "all_reduce"):
        # The time of these all-reduces is not that of gradients.
        return _UNKNOWN_BANDWIDTH
    return _estimate_bandwidth(evidence)


def _estimate_bandwidth(evidence: Evidence) -> _Bandwidth:
    """Estimate the bus bandwidth: the bytes of gradients that DDP copied over the transfer time.

    All-reduces must be nearly all of transfer, because only they send gradients. The bandwidth is
    also not known if a narrow type shows that gradients may have been compressed, or if the copied
    bytes are too few to fill the buckets of all all-reduces.
    """
    all_rows = evidence.collectives
    rows = select_rows(all_rows, "collective", "all_reduce")
    n_bytes = _sum_or_none(evidence.steps["grad_copy_bytes"])
    all_transfer_ns = _sum_or_none(all_rows["transfer_ns"])
    transfer_ns = _sum_or_none(rows["transfer_ns"])
    if not (n_bytes and transfer_ns and all_transfer_ns):
        return _UNKNOWN_BANDWIDTH
    # Metrics that are gathered and buffers that are broadcast take little of all transfer.
    has_much_else = transfer_ns < _MIN_GRADIENT_SHARE_OF_TRANSFER * all_transfer_ns
    datatypes = rows["datatype"].unique().to_pylist()
    may_be_compressed = not _NARROW_DATATYPES.isdisjoint(datatypes)
    if has_much_else or may_be_compressed:
        return _UNKNOWN_BANDWIDTH
    # Each row is an all-reduce of a rank, which sends one bucket. All buckets are full but the last
    # one of each rank and step, and `steps` has one row for each rank and step.
    n_last_buckets = evidence.steps.num_rows
    n_full_buckets = rows.num_rows - n_last_buckets
    if n_bytes < n_full_buckets * _MIN_BUCKET_BYTES:
        # Nothing was copied for some all-reduces, because a hook sends something else.
        return _UNKNOWN_BANDWIDTH
    n_ranks = pc.max(rows["n_ranks"]).as_py()
    factor = float(bus_factor("all_reduce", n_ranks))
    bytes_per_s = _NS_PER_S * n_bytes * factor / transfer_ns
    return _Bandwidth(bytes_per_s, BYTES_OF_COPIES)


RULES: Rules = {slow_link: COLUMNS_OF_COMM}
