"""Whether the link between ranks is slow: by NCCL's log and the topology, else by the bandwidth that was reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nsyspipe.link_speeds import nvlink_speed
from nsyspipe.metrics.bandwidth import bus_factor
from nsyspipe.slowest_link import slowest

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from nsyspipe.findings.model import Evidence
    from nsyspipe.slowest_link import SlowestLink

__all__ = ["LACKING", "LinkVerdict", "judge_link"]

# What to say when nothing tells.
LACKING = (
    "neither NCCL's log nor message sizes say how fast the link is",
    "pass --nccl-log FILE (from a run with NCCL_DEBUG=INFO) and --topology FILE (nvidia-smi topo -m)",
)
_ASK_TOPOLOGY = (
    "GPUs reach each other directly, and the topology is needed to tell whether over NVLink",
    "pass --topology FILE (nvidia-smi topo -m)",
)
# Below this share of what NVLink promises, it is not NVLink that carries the data.
_SLOW_RATIO = 0.15
_PER_S = 1e9


@dataclass(frozen=True)
class LinkVerdict:
    """What is known of the link.

    Attributes
    ----------
    is_slow
        None when it cannot be told.
    text
        What the data crosses, in words.
    lacking
        Reason and fix when it cannot be told.
    evidence
        Figures behind it.
    """

    is_slow: bool | None
    text: str
    lacking: tuple[str, str]
    evidence: Mapping[str, Any]


def judge_link(evidence: Evidence) -> LinkVerdict:
    """Tell whether the ranks of a run are connected by less than NVLink could give, or by TCP.

    Slow: host memory (SHM), PCIe, a socket network; without such knowledge a bus bandwidth below
    15 % of NVLink's on GPUs that have it. The bandwidth is measured from payload sizes, or estimated
    from the bytes of all gradients that DDP copied, over the time that all-reduces transferred.
    """
    links = evidence.links
    link = None if links is None else slowest(links)
    promised = nvlink_speed(evidence.gpu_names) if evidence.gpu_names else None
    reached, source = _busbw(evidence)
    facts = {
        "link_kind": link.kind if link else None,
        "link": link.text if link else None,
        "link_nominal_bytes_per_s": link.nominal_bytes_per_s if link else None,
        "nvlink_nominal_bytes_per_s": promised.bytes_per_s if promised else None,
        "busbw_bytes_per_s": reached,
        "busbw_source": source,
    }
    is_slow = _by_link(link, links) if link and links is not None else None
    if is_slow is not None and link is not None:
        return LinkVerdict(is_slow, link.text, LACKING, facts)
    if reached is not None and promised is not None:
        text = "far less bandwidth than NVLink gives"
        return LinkVerdict(reached < _SLOW_RATIO * promised.bytes_per_s, text, LACKING, facts)
    lacking = _ASK_TOPOLOGY if link and link.kind == "p2p" else LACKING
    return LinkVerdict(None, "", lacking, facts)


def _by_link(link: SlowestLink, links: pa.Table) -> bool | None:
    """Judge by what NCCL or the topology says; None when that leaves it open."""
    if link.kind in ("shm", "p2p_pcie"):
        return True
    if link.kind == "nvlink":
        return False
    paths = [path for path in links["path"].to_pylist() if path]
    if link.kind == "net":
        transports = " ".join(filter(None, links["transport"].to_pylist()))
        return "Socket" in transports or any(path.startswith("NV") for path in paths)
    if link.kind == "unknown" and paths and not any(path.startswith("NV") for path in paths):
        return True  # whatever NCCL uses, it crosses PCIe
    return None


def _busbw(evidence: Evidence) -> tuple[float | None, str | None]:
    """Return the bus bandwidth that the run reached, and where its bytes come from."""
    measured = evidence.summary["busbw_bytes_per_s"]
    if measured is not None:
        return float(measured), "payload"
    rows = evidence.collectives
    n_bytes = pc.sum(evidence.steps["grad_copy_bytes"], skip_nulls=False, min_count=1).as_py()
    transfer = pc.sum(rows["transfer_ns"], skip_nulls=False, min_count=1).as_py()
    is_all_reduce = pc.all(pc.equal(rows["collective"], "all_reduce"), min_count=1).as_py()
    if not (n_bytes and transfer and is_all_reduce):
        return None, None
    factor = bus_factor("all_reduce", pc.max(rows["n_ranks"]).as_py())
    return _PER_S * n_bytes * float(factor) / transfer, "gradient copies"
