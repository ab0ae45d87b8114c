"""What the communication of a run crosses, edge by edge: NVLink, PCIe, host memory or a network; which edge is slowest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

from nsyspipe.analysis.link_speeds import Speed, nvlink_speed, pcie_speed
from nsyspipe.model.schema import LINK_KINDS, LINKS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.model.fabric import Communicator, NcclLog, Topology


_NO_NAMES: Mapping[int, str | None] = {}
Row: TypeAlias = "dict[str, str | int | float | None]"
Models: TypeAlias = "tuple[str | None, str | None]"
Pair: TypeAlias = "tuple[int, int]"
# Transports and number of channels.
Said: TypeAlias = "tuple[tuple[str, ...], int | None]"


def classify_transport(transport: str) -> str:
    """Return what a transport of NCCL's says by itself.

    Returns
    -------
    str
        ``p2p``: a GPU reaches the other's memory, over NVLink or PCIe, which only the topology tells.
        ``nvlink``: between hosts (MNNVL) or through a third GPU (indirect), which NCCL does over NVLink only.
        ``shm``: through host memory. ``net``: through a network. ``unknown``: any other word.
    """
    head, _, rest = transport.partition("/")
    if head == "P2P":
        return "nvlink" if rest.startswith(("MNNVL", "indirect")) else "p2p"
    if head == "SHM" or transport.startswith("direct shared memory"):
        return "shm"
    return "net" if head in {"NET", "COLLNET"} else "unknown"


def links(
    log: NcclLog | None,
    topology: Topology | None,
    gpu_names: Mapping[int, str | None] = _NO_NAMES,
    *,
    n_ranks: int | None = None,
    local_ranks: Mapping[int, int | None] | None = None,
    hosts: Mapping[int, str | None] | None = None,
    pids: Collection[int] = (),
) -> pa.Table:
    """Say for each edge of the largest communicator what it crosses: `schema.LINKS`, sorted by its key.

    Of the log's communicators those with a process among `pids` count, if any; then the largest, then the first. Edges are
    those of the rings, or all that NCCL connected when no ring was logged. A transport that another communicator logged for
    the same two GPUs holds for this one too. With neither, one row per pair of GPUs of a host, of which nothing says that it
    is used: transport null, kind unknown.

    The topology is of a host of the run, as all are taken to be alike; GPUs are found by NVML index, else CUDA index, as
    logged, else by `local_ranks`. Names, local ranks and hosts are by rank of the run. Ranks of a communicator that does not
    span the run's `n_ranks` have other numbers: for it, only a name that all ranks share is used.
    """
    comm = _largest(log, pids)
    edges = _edges(comm) if comm else []
    if comm and n_ranks not in {None, comm.n_ranks}:
        shared = set(gpu_names.values())
        gpu_names = dict.fromkeys(range(comm.n_ranks), shared.pop()) if len(shared) == 1 else {}
        local_ranks, hosts = {}, {}
    seats = _Seats(topology, gpu_names, local_ranks or {}, hosts or {}, comm)
    if log is None or comm is None or (not edges and comm.n_ranks > 1):
        return LINKS.from_rows(_pair_rows(seats))
    said = _transports(log, comm)
    return LINKS.from_rows([_edge_row(comm.comm_id, edge, said.get(edge, ((), None)), seats) for edge in edges])


def absent_gpus(
    log: NcclLog | None,
    topology: Topology | None,
    *,
    n_ranks: int,
    local_ranks: Mapping[int, int | None],
    hosts: Mapping[int, str | None],
    pids: Collection[int],
) -> list[int]:
    """Return the indices of GPUs that ranks run on and the topology lacks, sorted; parameters as of `links`."""
    if topology is None:
        return []
    comm = _largest(log, pids)
    if comm and comm.n_ranks != n_ranks:
        local_ranks, hosts = {}, {}
    seats = _Seats(topology, {}, local_ranks, hosts, comm)
    return sorted(seats.indices - set(topology.gpus))


def _largest(log: NcclLog | None, pids: Collection[int]) -> Communicator | None:
    comms = log.communicators if log else ()
    ours = [comm for comm in comms if any(member.pid in pids for member in comm.members)]
    return max(ours or comms, key=lambda comm: comm.n_ranks, default=None)


def _edges(comm: Communicator) -> list[Pair]:
    ring_edges = comm.ring_edges()
    if ring_edges is not None:
        return ring_edges
    return [(edge.from_rank, edge.to_rank) for edge in comm.edges or ()]


def _transports(log: NcclLog, comm: Communicator) -> dict[Pair, Said]:
    """Return transports and channels by edge; NCCL chooses by the two GPUs, so other communicators fill gaps."""
    rank_of = {replace(member, rank=0): member.rank for member in comm.members}
    found: dict[Pair, Said] = {}
    for other in log.communicators:
        ranks = {member.rank: rank_of.get(replace(member, rank=0)) for member in other.members}
        for edge in other.edges or ():
            start, end = ranks.get(edge.from_rank), ranks.get(edge.to_rank)
            if start is not None and end is not None:
                found.setdefault((start, end), (edge.transports, None))
    own = comm.edges or ()
    return found | {(edge.from_rank, edge.to_rank): (edge.transports, edge.n_channels) for edge in own}


class _Seats:
    """Where the ranks sit: GPU model, host, and index among the host's GPUs; None is "not known"."""

    def __init__(
        self,
        topology: Topology | None,
        names: Mapping[int, str | None],
        local_ranks: Mapping[int, int | None],
        hosts: Mapping[int, str | None],
        comm: Communicator | None,
    ) -> None:
        members = comm.members if comm else ()
        self._topology = topology
        self._names = names
        self._hosts = dict(hosts) | {member.rank: member.host for member in members}
        indices = {rank: index for rank, index in local_ranks.items() if index is not None}
        for member in members:
            for index in (member.cuda_device, member.nvml_device):
                if index is not None:
                    indices[member.rank] = index
        # Two ranks on one GPU: then the index counts what each process sees, not the host's GPUs.
        taken = Counter((self._hosts.get(rank), index) for rank, index in indices.items())
        self._indices = {
            rank: index for rank, index in sorted(indices.items()) if taken[self._hosts.get(rank), index] == 1
        }

    @property
    def ranks(self) -> list[int]:
        """Ranks whose GPU is known, sorted."""
        return list(self._indices)

    @property
    def indices(self) -> set[int]:
        """Indices of their GPUs."""
        return set(self._indices.values())

    def models(self, pair: Pair) -> Models:
        """Return the GPU models of two ranks."""
        return self._names.get(pair[0]), self._names.get(pair[1])

    def are_together(self, pair: Pair) -> bool:
        """Tell whether two ranks are on one host."""
        return self._hosts.get(pair[0]) == self._hosts.get(pair[1])

    def path(self, pair: Pair) -> str | None:
        """Return the topology's word between the GPUs of two ranks, as if they were on one host."""
        first, second = self._indices.get(pair[0]), self._indices.get(pair[1])
        if self._topology is None or first is None or second is None:
            return None
        if not {first, second} <= set(self._topology.gpus):
            return None  # of another machine
        return self._topology.link(first, second)


def _pair_rows(seats: _Seats) -> list[Row]:
    return [
        _row(None, pair, ((), None), path, "unknown", _wire_speed(path, seats.models(pair)))
        for pair in combinations(seats.ranks, 2)
        if seats.are_together(pair) and (path := seats.path(pair))
    ]


def _edge_row(comm_id: str, pair: Pair, said: Said, seats: _Seats) -> Row:
    words, _ = said
    kinds = {classify_transport(word) for word in words}
    # Only a network, or NVLink between hosts, leaves the host.
    is_inside = bool(kinds & {"p2p", "shm"}) or seats.are_together(pair)
    path = seats.path(pair) if is_inside else None
    if "p2p" in kinds and path:
        kinds = kinds - {"p2p"} | {"nvlink" if path.startswith("NV") else "p2p_pcie"}
    kind = max(kinds, key=LINK_KINDS.index, default="unknown")
    return _row(comm_id, pair, said, path, kind, _speed(kind, words, path, seats.models(pair)))


def _speed(kind: str, words: Sequence[str], path: str | None, models: Models) -> Speed | None:
    if kind == "shm":
        speed = pcie_speed(models)
        return speed and Speed(speed.bytes_per_s, f"{speed.source} to host memory")
    if kind == "nvlink" and any("MNNVL" in word for word in words):
        return nvlink_speed(models)
    if kind == "nvlink" and any("indirect" in word for word in words):
        return None
    is_by_wire = kind in {"nvlink", "p2p_pcie"} or not words
    return _wire_speed(path, models) if is_by_wire else None


def _wire_speed(path: str | None, models: Models) -> Speed | None:
    if path is None:
        return None
    return nvlink_speed(models, int(path[2:])) if path.startswith("NV") else pcie_speed(models)


def _row(  # noqa: PLR0917 - a row has that many parts
    comm_id: str | None, pair: Pair, said: Said, path: str | None, kind: str, speed: Speed | None
) -> Row:
    transports, n_channels = said
    return {
        "comm_id": comm_id,
        "from_rank": pair[0],
        "to_rank": pair[1],
        "transport": ", ".join(transports) or None,
        "n_channels": n_channels,
        "path": path,
        "kind": kind,
        "nominal_bytes_per_s": speed.bytes_per_s if speed else None,
        "nominal_source": speed.source if speed else None,
    }


# Which edge of the ring holds the others back, and what it crosses.


_PATH_WORDS = {
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "a PCIe host bridge, usually the CPU",
    "NODE": "the PCIe host bridges of a NUMA node",
    "SYS": "the link between NUMA nodes",
}
_SHOWN = 2
_ASK_TOPOLOGY = "nvidia-smi topo -m tells whether over NVLink or PCIe"
LinkRow: TypeAlias = "Mapping[str, str | int | float | None]"


@dataclass(frozen=True)
class SlowestLink:
    """The slowest of the links of a run."""

    # of `schema.links.LINK_KINDS`; ``unknown`` only if that is all that is known of every link
    kind: str
    # the first edge of that kind with the least nominal bandwidth
    from_rank: int
    to_rank: int
    # of that edge; null if it is not known of every edge of that kind
    nominal_bytes_per_s: float | None
    text: str  # what it crosses, in words
    # edges that the text holds for; edges of which no line says what they use; all
    n_links: int
    n_unknown: int
    n_edges: int
    # whether NCCL connected these edges; otherwise they are the pairs of GPUs that the topology names
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
    """Pick the worst kind of link, and of that kind the one with the least nominal bandwidth; None for a table without rows.

    A ring is as fast as its slowest edge. Kinds count from ``nvlink`` to ``net``.
    """
    rows: list[LinkRow] = sorted(
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


def _nominal(row: LinkRow) -> float:
    nominal = row["nominal_bytes_per_s"]
    return float("inf") if nominal is None else float(nominal)


def _text(kind: str, row: LinkRow) -> str:
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
