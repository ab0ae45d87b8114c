"""What the communication of a run crosses: NVLink, PCIe, host memory or a network, and what that promises."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

from nsyspipe.link_speeds import Speed, nvlink_speed, pcie_speed
from nsyspipe.schema.links import LINK_KINDS, LINKS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.fabric import CommMember, Communicator, NcclLog, Topology

__all__ = ["absent_gpus", "classify_transport", "links"]

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
    """Say for each edge of the largest communicator what it crosses.

    Parameters
    ----------
    log
        Of its communicators, those with a process among `pids` if any; then the largest, then the first.
    topology
        Of a host of the run; for edges inside a host, as all hosts are taken to be alike. GPUs are found by
        NVML index, else CUDA index, as logged, else by `local_ranks`.
    gpu_names, local_ranks, hosts
        By rank of the run. Ranks of a communicator that does not span the run have other numbers: for it,
        only a name that all ranks share is used.
    n_ranks
        Of the run; None for that of the communicator.

    Returns
    -------
    pyarrow.Table
        `schema.links.LINKS`, sorted by its key. Edges are those of the rings, or all that NCCL connected
        when no ring was logged. A transport that another communicator logged for the same two GPUs
        holds for this one too. With neither, one row per pair of GPUs of a host, of which nothing says
        that it is used: transport null, kind unknown.
    """
    comm = _largest(log, pids)
    edges = _edges(comm) if comm else []
    if comm and n_ranks not in {None, comm.n_ranks}:
        shared = set(gpu_names.values())
        gpu_names = dict.fromkeys(range(comm.n_ranks), shared.pop()) if len(shared) == 1 else {}
        local_ranks, hosts = {}, {}
    members = comm.members if comm else ()
    seats = _Seats(topology, gpu_names, local_ranks or {}, hosts or {}, members)
    if log is None or comm is None or (not edges and comm.n_ranks > 1):
        return LINKS.from_rows(_pair_rows(seats))
    said = _transports(log, comm)
    return LINKS.from_rows(
        [_edge_row(comm.comm_id, edge, said.get(edge, ((), None)), seats) for edge in edges]
    )


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
    is_of_run = comm is None or comm.n_ranks == n_ranks
    members = comm.members if comm else ()
    seats = _Seats(
        topology, {}, local_ranks if is_of_run else {}, hosts if is_of_run else {}, members
    )
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
    return found | {
        (edge.from_rank, edge.to_rank): (edge.transports, edge.n_channels) for edge in own
    }


class _Seats:
    """Where the ranks sit: GPU model, host, and index among the host's GPUs; None is "not known"."""

    def __init__(
        self,
        topology: Topology | None,
        names: Mapping[int, str | None],
        local_ranks: Mapping[int, int | None],
        hosts: Mapping[int, str | None],
        members: Sequence[CommMember],
    ) -> None:
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
            rank: index
            for rank, index in sorted(indices.items())
            if taken[self._hosts.get(rank), index] == 1
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
        _row(
            None,
            pair,
            ((), None),
            path=path,
            kind="unknown",
            speed=_wire_speed(path, seats.models(pair)),
        )
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
    speed = _speed(kind, words, path, seats.models(pair))
    return _row(comm_id, pair, said, path=path, kind=kind, speed=speed)


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


def _row(
    comm_id: str | None,
    pair: Pair,
    said: Said,
    *,
    path: str | None,
    kind: str,
    speed: Speed | None,
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
