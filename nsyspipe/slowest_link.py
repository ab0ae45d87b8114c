"""Which edge of the ring holds the others back, and what it crosses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from nsyspipe.schema.links import LINK_KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

__all__ = ["SlowestLink", "slowest"]

_PATH_WORDS = {
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "a PCIe host bridge, usually the CPU",
    "NODE": "the PCIe host bridges of a NUMA node",
    "SYS": "the link between NUMA nodes",
}
_SHOWN = 2
_ASK_TOPOLOGY = "nvidia-smi topo -m tells whether over NVLink or PCIe"
Row: TypeAlias = "Mapping[str, str | int | float | None]"


@dataclass(frozen=True)
class SlowestLink:
    """The slowest of the links of a run.

    Attributes
    ----------
    kind
        Of `schema.links.LINK_KINDS`; ``unknown`` only if that is all that is known of every link.
    from_rank, to_rank
        The first edge of that kind with the least nominal bandwidth.
    nominal_bytes_per_s
        Of that edge; null if it is not known of every edge of that kind.
    text
        What it crosses, in words.
    n_links, n_unknown, n_edges
        Edges that the text holds for; edges of which no line says what they use; all.
    is_of_ring
        Whether NCCL connected these edges; otherwise they are the pairs of GPUs that the topology names.
    """

    kind: str
    from_rank: int
    to_rank: int
    nominal_bytes_per_s: float | None
    text: str
    n_links: int
    n_unknown: int
    n_edges: int
    is_of_ring: bool

    @property
    def edges(self) -> str:
        """Which edges the text holds for, in words: ``all 4 edges``, ``2 of 8 edges, rank 3 to 4 first``."""
        noun = "edge" if self.is_of_ring else "pair"
        if self.n_links == self.n_edges:
            few = {1: f"rank {self.from_rank} to {self.to_rank}", 2: f"both {noun}s"}
            return few.get(self.n_links, f"all {self.n_links} {noun}s")
        first = f", rank {self.from_rank} to {self.to_rank}{' first' * (self.n_links > 1)}"
        unknown = f", {self.n_unknown} not known" if 0 < self.n_unknown < self.n_edges else ""
        return f"{self.n_links} of {self.n_edges} {noun}s{first}{unknown}"


def slowest(links: pa.Table) -> SlowestLink | None:
    """Pick the worst kind of link, and of that kind the one with the least nominal bandwidth.

    A ring is as fast as its slowest edge. Kinds count from ``nvlink`` to ``net``.

    Parameters
    ----------
    links
        `schema.links.LINKS`, in any order.

    Returns
    -------
    SlowestLink or None
        None for a table without rows.
    """
    rows: list[Row] = sorted(
        links.to_pylist(), key=lambda row: (row["from_rank"], row["to_rank"], row["comm_id"] or "")
    )
    if not rows:
        return None
    known = [row for row in rows if row["kind"] != "unknown"]
    kind = max((str(row["kind"]) for row in known), key=LINK_KINDS.index, default="unknown")
    of_kind = [row for row in rows if row["kind"] == kind]
    worst = min(of_kind, key=_nominal)
    has_all = all(row["nominal_bytes_per_s"] is not None for row in of_kind)
    text = _text(kind, worst)
    return SlowestLink(
        kind=kind,
        from_rank=int(worst["from_rank"] or 0),
        to_rank=int(worst["to_rank"] or 0),
        nominal_bytes_per_s=_nominal(worst) if has_all else None,
        text=text,
        n_links=sum(_text(kind, row) == text for row in of_kind),
        n_unknown=len(rows) - len(known),
        n_edges=len(rows),
        is_of_ring=worst["comm_id"] is not None,
    )


def _nominal(row: Row) -> float:
    nominal = row["nominal_bytes_per_s"]
    return float("inf") if nominal is None else float(nominal)


def _text(kind: str, row: Row) -> str:
    """Say what a link crosses, ``SHM through host memory, although the GPUs are connected by NV18``."""
    words, path = str(row["transport"] or ""), row["path"]
    transport = _shortened(words)
    by_path = f"the GPUs are connected by {path}" if path else ""
    has_nvlink = str(path or "").startswith("NV")
    although = f", although {by_path}" if has_nvlink else ""
    match kind:
        case "nvlink":
            over = f" over {path}" if has_nvlink else ""
            return f"NVLink ({transport}{over})"
        case "p2p":
            return f"direct access to GPU memory ({transport}); {_ASK_TOPOLOGY}"
        case "p2p_pcie":
            return f"direct access over PCIe ({transport}, {path}: across {_PATH_WORDS[str(path)]})"
        case "shm":
            return f"SHM through host memory{although}"
        case "net":
            return f"network ({transport}){_copies(words)}{although}"
        case _:
            said = f"{transport}, a transport that nsyspipe does not know" if transport else ""
            unsaid = "no NCCL log says what NCCL uses"
            return "; ".join(part for part in (said or unsaid, by_path) if part)


def _shortened(transport: str) -> str:
    """Name a few of many transports: a network has one per card."""
    words = transport.split(", ")
    n_more = len(words) - _SHOWN
    return f"{', '.join(words[:_SHOWN])} and {n_more} more" if n_more > 0 else transport


def _copies(transport: str) -> str:
    """Tell when data waits in host memory on its way: every network without GPUDirect RDMA."""
    is_direct = all("GDRDMA" in word for word in transport.split(", ") if word.startswith("NET"))
    return "" if is_direct else " through host memory"
