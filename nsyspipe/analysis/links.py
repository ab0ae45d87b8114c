"""The links that connect the GPUs of a run: NVLink, PCIe, host memory or a network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.model.names import few
from nsyspipe.model.schema import LINK_KINDS, LINKS
from nsyspipe.model.side_files import CommMember, Communicator, NcclLog, Topology
from nsyspipe.model.typed_tables import (
    LinksTable,
)

# Where a bandwidth comes from whose bytes were copied, not sent.
BYTES_OF_COPIES = "gradient copies"
Row: TypeAlias = "dict[str, str | int | float | None]"
Pair: TypeAlias = "tuple[int, int]"


class Transport(NamedTuple):
    """What NCCL logged about an edge: its transports, and on how many channels."""

    names: tuple[str, ...]
    n_channels: int | None


_NOT_LOGGED = Transport((), None)
_PATH_WORDS = {
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "a PCIe host bridge, usually the CPU",
    "NODE": "the PCIe host bridges of a NUMA node",
    "SYS": "the link between NUMA nodes",
}
# Data sheets promise this per second and direction (half of what they call total). It is an upper
# bound, since packets have headers.
GB = 1e9
# PCI Express Base Specification: GT/s x 16 lanes x 128/130 (line code) / 8 bits. In version 6.0,
# 242 of the 256 bytes of a flit are data.
_PCIE_X16 = {
    3: 8e9 * 16 * 128 / 130 / 8,
    4: 16e9 * 16 * 128 / 130 / 8,
    5: 32e9 * 16 * 128 / 130 / 8,
    6: 64e9 * 16 * 242 / 256 / 8,
}
# The part of the 450 GB/s of NVLink 4 (18 links x 25 GB/s and direction) that was measured, on four
# H200.
_MEASURED_SHARE = 0.78


def classify_transport(transport: str) -> str:
    """Return the kind of link that a transport of NCCL is by itself.

    A ``p2p`` transport uses NVLink or PCIe, which only the topology tells. It uses NVLink for
    certain between hosts (MNNVL) and through a third GPU.
    """
    head, _, rest = transport.partition("/")
    if head == "P2P":
        is_nvlink = rest.startswith(("MNNVL", "indirect"))
        return "nvlink" if is_nvlink else "p2p"
    if head == "SHM" or transport.startswith("direct shared memory"):
        return "shm"
    if head in {"NET", "COLLNET"}:
        return "net"
    return "unknown"


def links(
    log: NcclLog | None,
    topology: Topology | None,
    gpu_names: Mapping[int, str | None] = MappingProxyType({}),
    *,
    n_ranks: int | None = None,
    local_ranks: Mapping[int, int | None] = MappingProxyType({}),
    hosts: Mapping[int, str | None] = MappingProxyType({}),
    pids: Collection[int] = (),
) -> tuple[pa.Table, list[int]]:
    """Return what each edge of a communicator crosses: `schema.LINKS`, sorted by its key.

    The second result are the indices of GPUs that ranks run on and that the topology lacks, sorted.

    One communicator is chosen: the one over most hosts, and of several such the largest.
    Communicators with a process among `pids` come before all others. The edges are those of the
    ring of the communicator. If no ring was logged, they are all that NCCL connected. An edge
    without a logged transport gets a transport that another communicator logged for the same two
    GPUs. Without a log, the edges are pairs of GPUs, with transport null and kind unknown.

    The topology is that of one host, since all hosts are assumed to be alike. The index of a GPU is
    that of NVML in the log, or that of CUDA in the log, or that of `local_ranks`: the first that is
    known. `gpu_names`, `local_ranks` and `hosts` are by rank of the run. In a communicator that
    does not span the `n_ranks` of the run, ranks have other numbers. So only a GPU name that all
    ranks share is used then.
    """
    comm = _choose_communicator(log, pids)
    members: Sequence[CommMember] = ()
    edges: list[Pair] = []
    if comm is not None:
        members = comm.members
        edges = _find_edges(comm)
        spans_run = n_ranks is None or n_ranks == comm.n_ranks
        if not spans_run:
            gpu_names = _name_of_all_ranks(gpu_names, comm.n_ranks)
            local_ranks = {}
            hosts = {}
    all_hosts = dict(hosts)
    for member in members:
        all_hosts[member.rank] = member.host
    gpus = _gpus(members, local_ranks, all_hosts)
    seats = _Seats(topology, gpu_names, all_hosts, gpus)
    absent: list[int] = []
    if topology:
        absent = sorted(set(gpus.values()).difference(topology.gpus))
    if log is None or comm is None or not _are_edges_known(comm, edges):
        rows = [_row(None, pair, _NOT_LOGGED, seats) for pair in _connected_pairs(seats)]
    else:
        rows = _rows_of_edges(log, comm, edges, seats)
    return LINKS.from_rows(rows), absent


def _name_of_all_ranks(
    gpu_names: Mapping[int, str | None], n_ranks: int
) -> Mapping[int, str | None]:
    """Return the GPU name that all ranks of the run share, for each rank of a communicator."""
    names = set(gpu_names.values())
    if len(names) != 1:
        return {}
    return dict.fromkeys(range(n_ranks), names.pop())


def _choose_communicator(log: NcclLog | None, pids: Collection[int]) -> Communicator | None:
    """Return the communicator over most hosts, of several such the largest."""
    if log is None:
        return None
    communicators = log.of_processes(pids) or log.communicators
    return max(communicators, key=_size_of_communicator, default=None)


def _size_of_communicator(comm: Communicator) -> tuple[int, int]:
    """Return the number of hosts and the number of ranks."""
    hosts = {member.host for member in comm.members}
    return len(hosts), comm.n_ranks


def _find_edges(comm: Communicator) -> list[Pair]:
    """Return the edges of the ring; if no ring was logged, all edges that NCCL connected."""
    ring = comm.ring_edges()
    if ring is not None:
        return list(ring)
    return [(edge.from_rank, edge.to_rank) for edge in comm.edges or ()]


def _are_edges_known(comm: Communicator, edges: Sequence[Pair]) -> bool:
    """Tell whether the log has the edges of a communicator. A single rank has none."""
    return bool(edges) or comm.n_ranks <= 1


def _connected_pairs(seats: _Seats) -> list[Pair]:
    """Return the pairs of ranks of one host that the topology connects."""
    pairs = combinations(seats.gpus, 2)
    return [pair for pair in pairs if seats.are_together(pair) and seats.path(pair)]


def _rows_of_edges(
    log: NcclLog, comm: Communicator, edges: Sequence[Pair], seats: _Seats
) -> list[Row]:
    """Return a row for each of the `edges` of a communicator, sorted.

    Edges of its trees that leave a host get a row, too. ``algorithms`` tells which of rings and
    trees use an edge.
    """
    tree_edges = comm.tree_edges()
    # No ring may have been logged.
    ring_edges = comm.ring_edges() or ()
    tree_edges_between_hosts = [edge for edge in tree_edges if not seats.are_together(edge)]
    all_edges = {*edges, *tree_edges_between_hosts}
    transports = _transports(log, comm)
    rows = []
    for edge in sorted(all_edges):
        transport = transports.get(edge, _NOT_LOGGED)
        row = _row(comm.comm_id, edge, transport, seats)
        algorithms = []
        if edge in ring_edges:
            algorithms.append("ring")
        if edge in tree_edges:
            algorithms.append("tree")
        row["algorithms"] = ", ".join(algorithms) or None
        rows.append(row)
    return rows


def _transports(log: NcclLog, comm: Communicator) -> dict[Pair, Transport]:
    """Return the transport of each edge of a communicator.

    NCCL chooses a transport by the two GPUs. So if an edge has none in the log, the transport that
    any communicator has for the same GPUs is taken.
    """
    rank_of_gpu = {_gpu_of(member): member.rank for member in comm.members}
    transports: dict[Pair, Transport] = {}
    for communicator in log.communicators:
        ranks = _ranks_in(rank_of_gpu, communicator)
        for edge in communicator.edges or ():
            from_rank = ranks.get(edge.from_rank)
            to_rank = ranks.get(edge.to_rank)
            if from_rank is not None and to_rank is not None:
                transport = Transport(edge.transports, None)
                transports.setdefault((from_rank, to_rank), transport)
    # What the communicator logged itself replaces what others logged.
    for edge in comm.edges or ():
        pair = edge.from_rank, edge.to_rank
        transports[pair] = Transport(edge.transports, edge.n_channels)
    return transports


def _gpu_of(member: CommMember) -> CommMember:
    """Return a key of the GPU of a member, which is the same in all communicators."""
    return replace(member, rank=0)


def _ranks_in(
    rank_of_gpu: Mapping[CommMember, int], communicator: Communicator
) -> dict[int, int | None]:
    """Return the rank of each GPU of a communicator, by its rank in that communicator."""
    return {member.rank: rank_of_gpu.get(_gpu_of(member)) for member in communicator.members}


class _Seats(Struct, frozen=True):
    """Where the ranks run. What is not known of a rank is absent or None."""

    topology: Topology | None
    # Models of the GPUs.
    names: Mapping[int, str | None]
    hosts: Mapping[int, str | None]
    # Index among the GPUs of the host, by rank in ascending order.
    gpus: Mapping[int, int]

    def are_together(self, pair: Pair) -> bool:
        first, second = pair
        return self.hosts.get(first) == self.hosts.get(second)

    def path(self, pair: Pair) -> str | None:
        """Return the topology's word between the GPUs of two ranks, as if they were on one host."""
        topology = self.topology
        first = self.gpus.get(pair[0])
        second = self.gpus.get(pair[1])
        if topology is None or first is None or second is None:
            return None
        # Other GPUs are those of another machine.
        is_in_topology = {first, second} <= set(topology.gpus)
        if not is_in_topology:
            return None
        return topology.link(first, second)


def _gpus(
    members: Sequence[CommMember],
    local_ranks: Mapping[int, int | None],
    hosts: Mapping[int, str | None],
) -> dict[int, int]:
    """Return the index of each rank's GPU on its host, from the log or the local rank.

    Each rank has a GPU of its own. If two ranks of a host have the same index, the index only
    counts the GPUs that each process sees. So such ranks are left out.
    """
    gpus = dict(local_ranks)
    for member in members:
        # The NVML index is better, so it comes last and overwrites the CUDA index.
        for gpu in (member.cuda_device, member.nvml_device):
            if gpu is not None:
                gpus[member.rank] = gpu
    known = {rank: gpu for rank, gpu in sorted(gpus.items()) if gpu is not None}
    places = {rank: (hosts.get(rank), gpu) for rank, gpu in known.items()}
    n_ranks_of_place = Counter(places.values())
    return {rank: gpu for rank, gpu in known.items() if n_ranks_of_place[places[rank]] == 1}


def _row(comm_id: str | None, pair: Pair, transport: Transport, seats: _Seats) -> Row:
    """Return the row of `schema.LINKS` of an edge, without its algorithms.

    The path of the topology is used if both ranks are on one host. The path tells what a transport
    of the kind ``p2p`` uses. Of several transports, the worst kind counts.
    """
    kinds = {classify_transport(name) for name in transport.names}
    # These kinds never leave a host, whatever the names of the hosts are.
    has_kind_inside_host = not kinds.isdisjoint({"p2p", "shm"})
    are_on_one_host = has_kind_inside_host or seats.are_together(pair)
    path = seats.path(pair) if are_on_one_host else None
    if "p2p" in kinds and path:
        kinds.remove("p2p")
        kinds.add("nvlink" if path.startswith("NV") else "p2p_pcie")
    kind = max(kinds, key=LINK_KINDS.index, default="unknown")
    from_rank, to_rank = pair
    models = [seats.names.get(rank) for rank in pair]
    speed = _nominal_speed_of_link(kind, transport.names, path, models)
    return {
        "comm_id": comm_id,
        "from_rank": from_rank,
        "to_rank": to_rank,
        "transport": ", ".join(transport.names) or None,
        "n_channels": transport.n_channels,
        "path": path,
        "kind": kind,
        "nominal_bytes_per_s": speed.bytes_per_s if speed else None,
        "nominal_source": speed.source if speed else None,
    }


def _nominal_speed_of_link(
    kind: str, transports: Sequence[str], path: str | None, models: Sequence[str | None]
) -> Speed | None:
    """Return what data sheets promise for a link; None if that is not known.

    `models` are those of the two GPUs. Data sheets tell nothing of a network, nor of NVLink through
    a third GPU ("indirect"). If no transport was logged, the data is assumed to take the path of
    the topology.
    """
    if kind == "shm":
        speed = nominal_speed(models, "PCIe")
        if speed is None:
            return None
        return Speed(speed.bytes_per_s, f"{speed.source} to host memory")
    all_transports = " ".join(transports)
    is_nvlink = kind == "nvlink"
    if is_nvlink and "MNNVL" in all_transports:
        # Between hosts, all links of a GPU go to switches.
        return nominal_speed(models)
    if is_nvlink and "indirect" in all_transports:
        return None
    takes_path = kind in {"nvlink", "p2p_pcie"} or not transports
    return nominal_speed(models, path) if path and takes_path else None


@dataclass(frozen=True)
class SlowestLink:
    """The slowest of the links of a run."""

    # Of `schema.LINK_KINDS`. ``unknown`` only if the kind of no link is known.
    kind: str
    # The first edge of that kind with the least nominal bandwidth.
    from_rank: int
    to_rank: int
    # Of that edge. None if it is not known of every edge of that kind, or if the slowest edge is
    # not known.
    nominal_bytes_per_s: float | None
    # What the edge crosses, in words.
    text: str
    # Edges that the text holds for, edges that no log line describes, and all edges.
    n_links: int
    n_unknown: int
    n_edges: int
    # Whether NCCL connected these edges. Otherwise they are pairs of GPUs of the topology.
    is_of_ring: bool
    # Whether the unknown edges would be in logs of processes of which there is no log.
    is_unlogged: bool = False

    @property
    def edges(self) -> str:
        """The edges that the text holds for, as ``2 of 8 connections, rank 3 to 4 first``."""
        noun = "connection" if self.is_of_ring else "pair"
        first_edge = f"rank {self.from_rank} to {self.to_rank}"
        if self.n_links == self.n_edges:
            short_texts = {1: first_edge, 2: f"both {noun}s"}
            all_edges = f"all {self.n_links} {noun}s"
            return short_texts.get(self.n_links, all_edges)
        text = f"{self.n_links} of {self.n_edges} {noun}s, {first_edge}"
        if self.n_links > 1:
            text += " first"
        if 0 < self.n_unknown < self.n_edges:
            text += f", {self.n_unknown} not known"
            if self.is_unlogged:
                text += " (the other processes' logs are missing)"
        return text


@dataclass(frozen=True)
class LinkVerdict:
    """What is known about the link between ranks."""

    # None if it is not known.
    is_slow: bool | None
    # Whether NCCL's log or the topology shows it, and not only the bandwidth that was reached.
    is_seen: bool
    # Whether it is the shortest way there is without NVLink: peer to peer below one PCIe host
    # bridge.
    is_near: bool
    # What the data crosses, in words.
    text: str
    # Why it is not known whether the link is slow, and the fix if there is one. Empty if it is
    # known.
    lacking: tuple[str, ...]
    # The figures behind the verdict.
    evidence: Mapping[str, Any]
    # By NCCL's log or the topology.
    slowest: SlowestLink | None = None
    # The bus bandwidth that was reached.
    busbw_bytes_per_s: float | None = None
    # Where its bytes come from: `payload`, measured, or `BYTES_OF_COPIES`, an estimate.
    busbw_source: str | None = None
    # Whether a network is among the links, slow or not.
    crosses_hosts: bool = False
    # Whether the topology shows NVLink between all pairs of GPUs of the slowest link.
    is_nvlink_there: bool = False

    @property
    def is_estimate(self) -> bool:
        """Whether the bandwidth is estimated from bytes that were copied, not sent."""
        return self.busbw_source == BYTES_OF_COPIES


def slowest(links: LinksTable) -> SlowestLink | None:
    """Pick the worst kind of link, and the edge of that kind with the least nominal bandwidth.

    Kinds that are known come first. If none is known, the edges may be pairs of GPUs with different
    paths. The data may take any of these paths, so no nominal bandwidth is known. None for a table
    without rows.
    """
    rows = sorted(links.to_pylist(), key=_order_of_row)
    if not rows:
        return None
    known_kinds = [row["kind"] for row in rows if row["kind"] != "unknown"]
    kind = max(known_kinds, key=LINK_KINDS.index, default="unknown")
    rows_of_kind = [row for row in rows if row["kind"] == kind]
    worst = min(rows_of_kind, key=_speed_of_row)
    text = _text(kind, worst)
    texts = [_text(kind, row) for row in rows_of_kind]
    n_links = texts.count(text)
    # The text names the path of an edge.
    have_pairs_different_paths = kind == "unknown" and n_links < len(rows)
    speeds = [row["nominal_bytes_per_s"] for row in rows_of_kind]
    is_speed_known = None not in speeds and not have_pairs_different_paths
    nominal_bytes_per_s = worst["nominal_bytes_per_s"] if is_speed_known else None
    n_unknown = len(rows) - len(known_kinds)
    return SlowestLink(
        kind=kind,
        from_rank=worst["from_rank"],
        to_rank=worst["to_rank"],
        nominal_bytes_per_s=nominal_bytes_per_s,
        text=text,
        n_links=n_links,
        n_unknown=n_unknown,
        n_edges=len(rows),
        is_of_ring=worst["comm_id"] is not None,
        is_unlogged=_are_logs_missing(rows),
    )


def _speed_of_row(row: Mapping[str, Any]) -> float:
    """Return the nominal bandwidth of an edge. If it is not known, the edge counts as fast."""
    return row["nominal_bytes_per_s"] or float("inf")


def _order_of_row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    comm_id = row["comm_id"] or ""
    return row["from_rank"], row["to_rank"], comm_id


def _are_logs_missing(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the log describes edges of some ranks, and none of others."""
    logged: set[int] = set()
    unknown: set[int] = set()
    for row in rows:
        ranks = unknown if row["kind"] == "unknown" else logged
        ranks.add(row["from_rank"])
    return bool(logged and unknown - logged)


def _text(kind: str, row: Mapping[str, Any]) -> str:
    """Say what a link crosses, for example ``shared memory (SHM) via host memory``."""
    path = row["path"] or ""
    names = (row["transport"] or "").split(", ")
    # A network has a transport per card.
    transport = few(names, 2)
    has_nvlink = path.startswith("NV")
    although = f", although NVLink ({path}) connects the GPUs" if has_nvlink else ""
    match kind:
        case "nvlink":
            over_path = f" over {path}" if has_nvlink else ""
            return f"NVLink ({transport}{over_path})"
        case "p2p":
            hint = "over NVLink or PCIe: see nvidia-smi topo -m"
            return f"direct access to GPU memory ({transport}, {hint})"
        case "p2p_pcie":
            return f"direct access over PCIe ({transport}, {path}: across {_PATH_WORDS[path]})"
        case "shm":
            return f"shared memory (SHM) via host memory{although}"
        case "net":
            via_host = "" if _is_direct_network(names) else " via host memory"
            return f"network ({transport}){via_host}{although}"
        case _:
            return _text_of_unknown(transport, path)


def _is_direct_network(transports: Sequence[str]) -> bool:
    """Tell whether all networks use GPUDirect RDMA. In others data waits in host memory."""
    return all("GDRDMA" in name for name in transports if name.startswith("NET"))


def _text_of_unknown(transport: str, path: str) -> str:
    """Say what is known of a link of unknown kind. Without a log, `transport` is empty."""
    if transport:
        text = f"{transport}, a transport that nsyspipe does not know"
    else:
        text = "no NCCL log shows what NCCL uses"
    if path:
        text += f", and the GPUs are connected by {path}"
    return text


class Speed(NamedTuple):
    """A nominal bandwidth, and in words what it is."""

    bytes_per_s: float
    source: str


class _Gpu(NamedTuple):
    """Links of a GPU model. None if it has no such link, or if NVIDIA's sources differ."""

    pattern: str  # of its names
    nvlink: int | None
    bytes_per_link_s: float
    n_links: int
    pcie: int | None


# NVIDIA's data sheets and architecture white papers, total NVLink bandwidth in the comment. The
# first whose pattern matches the name counts. B200 and its kin: PCIe 5 by the HGX, 6 by the
# Blackwell brief;
# GH200 reaches its CPU over NVLink-C2C.
_GPUS = (
    _Gpu("P100", 1, 20 * GB, 4, 3),  # 160 GB/s
    _Gpu("V100S?", 2, 25 * GB, 6, 3),  # 300 GB/s
    _Gpu("Quadro RTX [68]000", 2, 25 * GB, 2, 3),  # bridge, 100 GB/s
    _Gpu("A100X?", 3, 25 * GB, 12, 4),  # 600 GB/s
    _Gpu("A800", 3, 25 * GB, 8, 4),  # 400 GB/s
    _Gpu("A30", 3, 25 * GB, 4, 4),  # bridge, 200 GB/s
    # Bridge, 112.5 GB/s: "Ampere GA102 GPU Architecture" has four links of 14.0625 GB/s.
    _Gpu("A40|RTX A(?:6000|5500|5000|4500)|RTX 3090(?: Ti)?", 3, 14.0625 * GB, 4, 4),
    _Gpu("GH200", 4, 25 * GB, 18, None),  # 900 GB/s
    _Gpu("H800", 4, 25 * GB, 8, 5),  # 400 GB/s
    _Gpu("H100|H200|H20", 4, 25 * GB, 18, 5),  # 900 GB/s; bridged cards have 12 links, 600 GB/s
    _Gpu("GB[23]00|B[123]00", 5, 50 * GB, 18, None),  # 1.8 TB/s
    _Gpu("T4|Quadro RTX [45]000|TITAN RTX", None, 0.0, 0, 3),
    _Gpu("A10G?|L4|L20|L40S?|RTX 40[0-9]0|RTX 6000 Ada|RTX 5000 Ada", None, 0.0, 0, 4),
    _Gpu("RTX PRO 6000|RTX 50[0-9]0", None, 0.0, 0, 5),
)
_NO_GPU = _Gpu("", None, 0.0, 0, None)


class NamedLink(Struct, frozen=True):
    """A link that can be asked about by name."""

    # As options have it.
    name: str
    # Other names: the GPUs that have it.
    gpus: tuple[str, ...]
    # Bus bandwidth (busbw of nccl-tests) that all-reduces of large messages reach over it.
    bus_bytes_per_s: float
    # As of its data sheet, per direction. None for host memory.
    nominal_bytes_per_s: float | None
    # Where the bandwidth is from.
    source: str
    # Whether it was measured. Otherwise it is a part of the data sheet: as much as of the NVLink
    # that was measured.
    is_measured: bool = True

    @property
    def within(self) -> float:
        """What the bandwidth may be wrong by, as a share.

        Measured values were within 8 %. A part of a data sheet is less certain.
        """
        return 0.1 if self.is_measured else 0.2


def _link_of_data_sheet(name: str, rate: float, words: str, *gpus: str) -> NamedLink:
    """Return a link by its data sheet. `rate` is in bytes/s, and `words` say how it is made up."""
    return NamedLink(
        name=name,
        gpus=gpus,
        bus_bytes_per_s=rate * _MEASURED_SHARE,
        nominal_bytes_per_s=rate,
        source=f"{words} of the data sheet x {_MEASURED_SHARE:g}",
        is_measured=False,
    )


# NVLink as in `_GPUS`.
_NVLINKS = (
    _link_of_data_sheet("nvlink5", 900 * GB, "18 x 50 GB/s", "b200"),
    NamedLink(
        name="nvlink4",
        gpus=("h100", "h200"),
        bus_bytes_per_s=350 * GB,
        nominal_bytes_per_s=450 * GB,
        source="4 x H200, NCCL ring, 0.6 to 1.2 GB: 347 to 356 GB/s",
    ),
    _link_of_data_sheet("nvlink3", 300 * GB, "12 x 25 GB/s", "a100"),
    _link_of_data_sheet("nvlink2", 150 * GB, "6 x 25 GB/s", "v100"),
)
_PCIE_LINKS = tuple(
    _link_of_data_sheet(f"pcie{generation}x16", rate, f"{rate / GB:.1f} GB/s")
    for generation, rate in sorted(_PCIE_X16.items(), reverse=True)
)
# Gb/s of a port: InfiniBand Trade Association's roadmap, four lanes per port; RoCE by its Ethernet.
_GBIT_OF_PORTS = {
    "infiniband-xdr": 800,
    "infiniband-ndr": 400,
    "infiniband-hdr": 200,
    "infiniband-edr": 100,
    "roce-400": 400,
    "roce-200": 200,
    "roce-100": 100,
}
_NETWORKS = tuple(
    _link_of_data_sheet(name, gbit / 8 * GB, f"{gbit} Gb/s, one port per GPU,")
    for name, gbit in _GBIT_OF_PORTS.items()
)
_HOST_MEMORY = NamedLink(
    name="shm",
    gpus=(),
    bus_bytes_per_s=25 * GB,
    nominal_bytes_per_s=None,
    source="2 and 4 x H200 through host memory: 24 to 27 GB/s",
)
NAMED_LINKS = (*_NVLINKS, *_PCIE_LINKS, *_NETWORKS, _HOST_MEMORY)


def named_link(word: str) -> NamedLink | None:
    """Return the link of that name, or the NVLink of a GPU of that name. None if there is none.

    >>> named_link("A100").name, named_link("roce-100").nominal_bytes_per_s
    ('nvlink3', 12500000000.0)
    """
    name = word.lower()
    for link in NAMED_LINKS:
        if name == link.name or name in link.gpus:
            return link
    return None


def nominal_speed(names: Sequence[str | None], path: str = "NV") -> Speed | None:
    """Return the nominal speed of the slowest of some models over a path of the topology.

    None if a model has no such link, or is not known. ``NV4`` is four NVLinks, and ``NV`` all that
    the model has, as through a switch. Every other path is 16 lanes of PCIe.
    """
    speeds = []
    for name in names:
        speed = _speed_of_model(name or "", path)
        if speed is None:
            return None
        speeds.append(speed)
    return min(speeds, default=None)


class _Model(NamedTuple):
    """A GPU model, and its name as in a report."""

    gpu: _Gpu
    name: str


def _find_model(name: str) -> _Model:
    """Return the model that the name of a GPU has; one without links if it is not known."""
    for gpu in _GPUS:
        pattern = rf"(?<![A-Za-z0-9])(?:{gpu.pattern})(?![A-Za-z0-9])"
        match = re.search(pattern, name)
        if match:
            return _Model(gpu, match[0])
    return _Model(_NO_GPU, "")


def _speed_of_model(name: str, path: str) -> Speed | None:
    """Return the nominal speed of a GPU over a path, as `nominal_speed` explains it."""
    gpu, model = _find_model(name)
    is_nvlink = path.startswith("NV")
    if is_nvlink and gpu.nvlink:
        # ``NV4`` has its number of links, and ``NV`` has none.
        n_links = int(path.removeprefix("NV") or gpu.n_links)
        rate = gpu.bytes_per_link_s
        source = f"NVLink {gpu.nvlink}, {n_links} x {rate / GB:g} GB/s ({model})"
        return Speed(n_links * rate, source)
    if gpu.pcie and not is_nvlink:
        source = f"PCIe {gpu.pcie}.0 x16 ({model})"
        return Speed(_PCIE_X16[gpu.pcie], source)
    return None
