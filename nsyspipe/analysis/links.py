"""What the communication of a run crosses, edge by edge: NVLink, PCIe, host memory or a network; which edge is slowest."""

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

Row: TypeAlias = "dict[str, str | int | float | None]"
Pair: TypeAlias = "tuple[int, int]"
Said: TypeAlias = "tuple[tuple[str, ...], int | None]"
_PATH_WORDS = {
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "a PCIe host bridge, usually the CPU",
    "NODE": "the PCIe host bridges of a NUMA node",
    "SYS": "the link between NUMA nodes",
}
# What data sheets promise per second and direction (half of what they call total) is an upper
# bound: packets have headers.
GB = 1e9
# PCI Express Base Specification: GT/s x 16 lanes x 128/130 (line code; 6.0: 242 of the 256 bytes of
# a flit) / 8 bits.
_PCIE_X16 = {
    generation: rate * 16 * 128 / 130 / 8 for generation, rate in ((3, 8e9), (4, 16e9), (5, 32e9))
}
_PCIE_X16[6] = 64e9 * 16 * 242 / 256 / 8
# the part of NVLink 4's 450 GB/s (18 links x 25 GB/s and direction) that was measured, on four H200
_REACHED = 0.78


def classify_transport(transport: str) -> str:
    """Return the kind of link that a transport of NCCL's is by itself.

    Of ``p2p`` the topology tells whether over NVLink or PCIe; between hosts (MNNVL) and through a
    third GPU over NVLink only.
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
    gpu_names: Mapping[int, str | None] = MappingProxyType({}),
    *,
    n_ranks: int | None = None,
    local_ranks: Mapping[int, int | None] = MappingProxyType({}),
    hosts: Mapping[int, str | None] = MappingProxyType({}),
    pids: Collection[int] = (),
) -> tuple[pa.Table, list[int]]:
    """Say for each edge of the communicator over most hosts (of several such the largest) what it crosses: `schema.LINKS`, sorted by its key.

    With it the indices of GPUs that ranks run on and the topology lacks, sorted. Communicators with
    a process among `pids` count first. Where no ring was logged, edges are all that NCCL connected.
    A transport that another communicator logged for the same two GPUs holds for this one too. A
    pair of GPUs without a log has transport null, kind unknown.

    The topology is of a host of the run, as all are taken to be alike; GPUs are found by NVML
    index, else CUDA index, as logged, else by `local_ranks`. Names, local ranks and hosts are by
    rank of the run. Ranks of a communicator that does not span the run's `n_ranks` have other
    numbers: for it, only a name that all ranks share is used.
    """
    comms = (log.of_processes(pids) or log.communicators) if log else ()
    comm = max(
        comms,
        key=lambda one: (len({member.host for member in one.members}), one.n_ranks),
        default=None,
    )
    if comm and n_ranks not in {None, comm.n_ranks}:
        shared = set(gpu_names.values())
        gpu_names = dict.fromkeys(range(comm.n_ranks), shared.pop()) if len(shared) == 1 else {}
        local_ranks = {}
        hosts = {}
    members = comm.members if comm else ()
    hosts = dict(hosts) | {member.rank: member.host for member in members}
    seats = _Seats(topology, gpu_names, hosts, _gpus(members, local_ranks, hosts))
    absent = sorted(set(seats.gpus.values()) - set(topology.gpus)) if topology else []
    edges = comm.ring_edges() if comm else None
    if comm and edges is None:
        edges = [(edge.from_rank, edge.to_rank) for edge in comm.edges or ()]
    if log is None or comm is None or edges is None or (not edges and comm.n_ranks > 1):
        pairs = (
            pair
            for pair in combinations(seats.gpus, 2)
            if seats.are_together(pair) and seats.path(pair)
        )
        return LINKS.from_rows([_row(None, pair, ((), None), seats) for pair in pairs]), absent
    of_trees = comm.tree_edges()
    edges = sorted({*edges, *(edge for edge in of_trees if not seats.are_together(edge))})
    users = {"ring": comm.ring_edges() or (), "tree": of_trees}
    words = _transports(log, comm)
    rows = [
        _row(comm.comm_id, edge, words.get(edge, ((), None)), seats)
        | {"algorithms": ", ".join(name for name, own in users.items() if edge in own) or None}
        for edge in edges
    ]
    return LINKS.from_rows(rows), absent


def _transports(log: NcclLog, comm: Communicator) -> dict[Pair, Said]:
    """Return transports and channels by edge; NCCL chooses by the two GPUs, so other communicators fill gaps."""
    rank_of = {replace(member, rank=0): member.rank for member in comm.members}
    transports: dict[Pair, Said] = {}
    for communicator in log.communicators:
        ranks = {
            member.rank: rank_of.get(replace(member, rank=0)) for member in communicator.members
        }
        for edge in communicator.edges or ():
            start = ranks.get(edge.from_rank)
            end = ranks.get(edge.to_rank)
            if start is not None and end is not None:
                transports.setdefault((start, end), (edge.transports, None))
    own = {
        (edge.from_rank, edge.to_rank): (edge.transports, edge.n_channels)
        for edge in comm.edges or ()
    }
    return transports | own


class _Seats(Struct, frozen=True):
    """Where the ranks sit; what is not known of a rank is absent or None."""

    topology: Topology | None
    names: Mapping[int, str | None]  # GPU models
    hosts: Mapping[int, str | None]
    gpus: Mapping[int, int]  # index among the GPUs of the host, by rank in ascending order

    def are_together(self, pair: Pair) -> bool:
        return self.hosts.get(pair[0]) == self.hosts.get(pair[1])

    def path(self, pair: Pair) -> str | None:
        """Return the topology's word between the GPUs of two ranks, as if they were on one host."""
        first = self.gpus.get(pair[0])
        second = self.gpus.get(pair[1])
        if self.topology is None or first is None or second is None:
            return None
        is_of_host = {first, second} <= set(self.topology.gpus)  # else it is of another machine
        return self.topology.link(first, second) if is_of_host else None


def _gpus(
    members: Sequence[CommMember],
    local_ranks: Mapping[int, int | None],
    hosts: Mapping[int, str | None],
) -> dict[int, int]:
    logged = [
        (member.rank, gpu) for member in members for gpu in (member.cuda_device, member.nvml_device)
    ]
    gpus = {rank: gpu for rank, gpu in (*local_ranks.items(), *logged) if gpu is not None}
    # Two ranks on one GPU: then the index counts what each process sees, not the host's GPUs.
    taken = Counter((hosts.get(rank), gpu) for rank, gpu in gpus.items())
    return {rank: gpu for rank, gpu in sorted(gpus.items()) if taken[hosts.get(rank), gpu] == 1}


def _row(comm_id: str | None, pair: Pair, said: Said, seats: _Seats) -> Row:
    words, n_channels = said
    kinds = {classify_transport(word) for word in words}
    # Only a network, or NVLink between hosts, leaves the host.
    path = seats.path(pair) if kinds & {"p2p", "shm"} or seats.are_together(pair) else None
    if "p2p" in kinds and path:
        kinds = kinds - {"p2p"} | {"nvlink" if path.startswith("NV") else "p2p_pcie"}
    kind = max(kinds, key=LINK_KINDS.index, default="unknown")
    speed = _speed(kind, words, path, [seats.names.get(rank) for rank in pair])
    row = (
        comm_id,
        *pair,
        ", ".join(words) or None,
        n_channels,
        path,
        kind,
        *(speed or (None, None)),
    )
    return dict(zip(LINKS.names[: len(row)], row, strict=True))


def _speed(
    kind: str, words: Sequence[str], path: str | None, models: Sequence[str | None]
) -> Speed | None:
    if kind == "shm":
        speed = nominal_speed(models, "PCIe")
        return speed and Speed(speed.bytes_per_s, f"{speed.source} to host memory")
    if kind == "nvlink" and any("MNNVL" in word for word in words):
        return nominal_speed(models)
    is_indirect = kind == "nvlink" and any("indirect" in word for word in words)
    is_by_wire = kind in {"nvlink", "p2p_pcie"} or not words
    return nominal_speed(models, path) if path and is_by_wire and not is_indirect else None


@dataclass(frozen=True)
class SlowestLink:
    """The slowest of the links of a run."""

    kind: str  # of `schema.LINK_KINDS`; ``unknown`` only if that is all that is known of every link
    from_rank: int  # of the first edge of that kind with the least nominal bandwidth
    to_rank: int
    nominal_bytes_per_s: (
        float | None
    )  # of that edge; null if it is not known of every edge of that kind, or of which
    text: str  # what it crosses, in words
    n_links: int  # edges that the text holds for
    n_unknown: int  # of which no line says what they use
    n_edges: int  # all
    # whether NCCL connected these edges; otherwise they are the pairs of GPUs that the topology
    # names
    is_of_ring: bool
    is_unlogged: bool = (
        False  # whether what is not known would be in logs of processes of which there is none
    )

    @property
    def edges(self) -> str:
        """Which edges the text holds for, in words: ``all 4 edges``, ``2 of 8 edges, rank 3 to 4 first``."""
        noun = "connection" if self.is_of_ring else "pair"
        if self.n_links == self.n_edges:
            few = {1: f"rank {self.from_rank} to {self.to_rank}", 2: f"both {noun}s"}
            return few.get(self.n_links, f"all {self.n_links} {noun}s")
        first = f", rank {self.from_rank} to {self.to_rank}{' first' * (self.n_links > 1)}"
        unknown = f", {self.n_unknown} not known" if 0 < self.n_unknown < self.n_edges else ""
        why = " (the other processes' logs are missing)" if unknown and self.is_unlogged else ""
        return f"{self.n_links} of {self.n_edges} {noun}s{first}{unknown}{why}"


def slowest(links: pa.Table) -> SlowestLink | None:
    """Pick the worst kind of link, and of that kind the one with the least nominal bandwidth; None for a table without rows."""
    rows = sorted(
        links.to_pylist(), key=lambda row: (row["from_rank"], row["to_rank"], row["comm_id"] or "")
    )
    if not rows:
        return None
    known = [row for row in rows if row["kind"] != "unknown"]
    kind = max((str(row["kind"]) for row in known), key=LINK_KINDS.index, default="unknown")
    of_kind = [row for row in rows if row["kind"] == kind]
    rates = [row["nominal_bytes_per_s"] for row in of_kind]
    worst = min(of_kind, key=lambda row: row["nominal_bytes_per_s"] or float("inf"))
    text = _text(kind, worst)
    n_links = sum(_text(kind, row) == text for row in of_kind)
    senders, silent = (
        {row["from_rank"] for row in rows if (row["kind"] == "unknown") is is_so}
        for is_so in (False, True)
    )
    is_any = kind == "unknown" and n_links < len(rows)  # it may go around the worst
    return SlowestLink(
        kind=kind,
        from_rank=worst["from_rank"],
        to_rank=worst["to_rank"],
        nominal_bytes_per_s=None if None in rates or is_any else worst["nominal_bytes_per_s"],
        text=text,
        n_links=n_links,
        n_unknown=len(rows) - len(known),
        n_edges=len(rows),
        is_of_ring=worst["comm_id"] is not None,
        is_unlogged=bool(senders and silent - senders),
    )


def _text(kind: str, row: Mapping[str, Any]) -> str:
    """Say what a link crosses, ``shared memory (SHM) via host memory, although NVLink (NV18) connects the GPUs``."""
    path = row["path"] or ""
    words = (row["transport"] or "").split(", ")
    transport = few(words, 2)  # a network has one per card
    by_path = f"the GPUs are connected by {path}" if path else ""
    although = f", although NVLink ({path}) connects the GPUs" if path.startswith("NV") else ""
    match kind:
        case "nvlink":
            return f"NVLink ({transport}{f' over {path}' if although else ''})"
        case "p2p":
            return (
                f"direct access to GPU memory ({transport}, over NVLink or PCIe: see nvidia-smi "
                "topo -m)"
            )
        case "p2p_pcie":
            return f"direct access over PCIe ({transport}, {path}: across {_PATH_WORDS[path]})"
        case "shm":
            return f"shared memory (SHM) via host memory{although}"
        case "net":
            # Data waits in host memory on its way in every network without GPUDirect RDMA.
            is_direct = all("GDRDMA" in word for word in words if word.startswith("NET"))
            return f"network ({transport}){'' if is_direct else ' via host memory'}{although}"
        case _:
            known = f"{transport}, a transport that nsyspipe does not know" if transport else ""
            return ", and ".join(
                filter(None, (known or "no NCCL log shows what NCCL uses", by_path))
            )


class Speed(NamedTuple):
    """A nominal bandwidth, and in words what it is."""

    bytes_per_s: float
    source: str


class _Gpu(NamedTuple):
    """Links of a model: None where it has none, or where NVIDIA's sources differ."""

    words: str
    nvlink: int | None
    bytes_per_link_s: float
    n_links: int
    pcie: int | None


# NVIDIA's data sheets and architecture white papers, total NVLink bandwidth behind. The first whose
# words stand in the name counts. B200 and its kin: PCIe 5 by the HGX, 6 by the Blackwell brief;
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

    name: str  # for options
    gpus: tuple[str, ...]  # other names: the GPUs that have it
    # bus bandwidth (busbw of nccl-tests) that all-reduces of large messages reach over it
    bus_bytes_per_s: float
    nominal_bytes_per_s: (
        float | None
    )  # what its data sheet says, per direction; None for host memory
    source: str  # where the figure is from
    is_measured: bool = (
        True  # else it is the same part of the data sheet as of the NVLink that was measured
    )

    @property
    def within(self) -> float:
        """What the bandwidth may be off by: what was measured lay within 8 %, a data sheet's part is rounder."""
        return 0.1 if self.is_measured else 0.2


def _of_data_sheet(name: str, rate: float, words: str, *gpus: str) -> NamedLink:
    return NamedLink(
        name,
        gpus,
        rate * _REACHED,
        rate,
        f"{words} of the data sheet x {_REACHED:g}",
        is_measured=False,
    )


# NVLink as in `_GPUS`; InfiniBand Trade Association's roadmap, four lanes per port; RoCE by its
# Ethernet.
_PCIE = (
    (f"pcie{generation}x16", rate) for generation, rate in sorted(_PCIE_X16.items(), reverse=True)
)
_PORTS = (
    *(
        ("infiniband-xdr", 800),
        ("infiniband-ndr", 400),
        ("infiniband-hdr", 200),
        ("infiniband-edr", 100),
    ),
    *(("roce-400", 400), ("roce-200", 200), ("roce-100", 100)),
)
NAMED_LINKS = (
    _of_data_sheet("nvlink5", 900 * GB, "18 x 50 GB/s", "b200"),
    NamedLink(
        "nvlink4",
        ("h100", "h200"),
        350 * GB,
        450 * GB,
        "4 x H200, NCCL ring, 0.6 to 1.2 GB: 347 to 356 GB/s",
    ),
    _of_data_sheet("nvlink3", 300 * GB, "12 x 25 GB/s", "a100"),
    _of_data_sheet("nvlink2", 150 * GB, "6 x 25 GB/s", "v100"),
    *(_of_data_sheet(name, rate, f"{rate / GB:.1f} GB/s") for name, rate in _PCIE),
    *(
        _of_data_sheet(name, gbit / 8 * GB, f"{gbit} Gb/s, one port per GPU,")
        for name, gbit in _PORTS
    ),
    NamedLink("shm", (), 25 * GB, None, "2 and 4 x H200 through host memory: 24 to 27 GB/s"),
)


def named_link(word: str) -> NamedLink | None:
    """Return the link of that name, or the NVLink of a GPU of that name; None where there is none.

    >>> named_link("A100").name, named_link("roce-100").nominal_bytes_per_s
    ('nvlink3', 12500000000.0)
    """
    return next((one for one in NAMED_LINKS if word.lower() in (one.name, *one.gpus)), None)


def nominal_speed(names: Sequence[str | None], path: str = "NV") -> Speed | None:
    """Return what the slowest of some models promises over a path of the topology; None if one has none or is not known.

    ``NV4`` is four NVLinks, ``NV`` all there are, as through a switch; any other word 16 lanes of
    PCIe.
    """
    speeds = []
    for name in names:
        matches = (
            (gpu, re.search(rf"(?<![A-Za-z0-9])(?:{gpu.words})(?![A-Za-z0-9])", name or ""))
            for gpu in _GPUS
        )
        gpu, word = next(((gpu, match[0]) for gpu, match in matches if match), (_NO_GPU, ""))
        if path.startswith("NV") and gpu.nvlink:
            n_links = int(path[2:] or gpu.n_links)
            rate = gpu.bytes_per_link_s
            speeds.append(
                Speed(
                    n_links * rate, f"NVLink {gpu.nvlink}, {n_links} x {rate / GB:g} GB/s ({word})"
                )
            )
        elif gpu.pcie and not path.startswith("NV"):
            speeds.append(Speed(_PCIE_X16[gpu.pcie], f"PCIe {gpu.pcie}.0 x16 ({word})"))
    return min(speeds) if speeds and len(speeds) == len(names) else None
