"""What connects the GPUs of a run: as NCCL logged it, and as ``nvidia-smi topo -m`` printed it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CommMember", "Communicator", "Edge", "NcclLog", "Topology"]


@dataclass(frozen=True, order=True)
class Edge:
    """What NCCL set up from one rank to another.

    Attributes
    ----------
    from_rank, to_rank
        Ranks in the communicator.
    transports
        As NCCL names them (``P2P/CUMEM``, ``NET/IB/0/GDRDMA``), sorted; several when channels differ.
        The sender's words; the receiver's only where the sender logged none.
    n_channels
        Channels of collectives; of point-to-point calls when there are no others.
    """

    from_rank: int
    to_rank: int
    transports: tuple[str, ...]
    n_channels: int

    @property
    def transport(self) -> str:
        """Return the transports as one text."""
        return ", ".join(self.transports)


@dataclass(frozen=True, order=True)
class CommMember:
    """One rank of a communicator, as its process logged it; None is "not logged".

    Attributes
    ----------
    cuda_device, nvml_device
        Index among the GPUs that the process sees, and among those of the host.
    bus_id
        PCI address of the GPU as NCCL writes it, hexadecimal.
    """

    rank: int
    host: str
    pid: int
    cuda_device: int | None = None
    nvml_device: int | None = None
    bus_id: str | None = None


@dataclass(frozen=True)
class Communicator:
    """One NCCL communicator; None is "not logged".

    Attributes
    ----------
    comm_id
        NCCL's ``commId``; of a split its parent's with ``/count.color``; else ``comm0``, ``comm1`` ... by
        process and order.
    members
        Ranks whose process logged, sorted; fewer than `n_ranks` when files are missing.
    rings
        Ranks in ring order by channel; rank 0 logs them. A ring that was cut is left out.
    n_channels
        Channels of collectives.
    is_nvls_on
        Whether channels for NVLink SHARP were set up.
    edges
        Sorted; None when no line says what any edge uses.
    """

    comm_id: str
    n_ranks: int
    members: tuple[CommMember, ...] = ()
    rings: dict[int, tuple[int, ...]] | None = None
    n_channels: int | None = None
    is_nvls_on: bool | None = None
    edges: tuple[Edge, ...] | None = None

    def ring_edges(self) -> list[tuple[int, int]] | None:
        """Return the directed edges of all rings, sorted; None when no ring was logged."""
        if self.rings is None:
            return None
        around = [
            (ring[at - 1], ring[at]) for ring in self.rings.values() for at in range(len(ring))
        ]
        return sorted({edge for edge in around if edge[0] != edge[1]})


@dataclass(frozen=True)
class NcclLog:
    """What the logs of a run say.

    Attributes
    ----------
    version
        Of NCCL; several, separated by commas, when processes differ.
    communicators
        By the order in which their processes made them, then by process.
    settings
        ``NCCL_*`` variables that NCCL says it took from the environment; values that differ between
        processes are separated by `` | ``.
    """

    version: str | None = None
    communicators: tuple[Communicator, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Topology:
    """The matrix of ``nvidia-smi topo -m``.

    Attributes
    ----------
    gpus
        Indices as NVML counts them, sorted.
    paths
        Between two devices (``GPU0``, ``NIC0``) of the matrix: ``NV#``, ``PIX``, ``PXB``, ``PHB``,
        ``NODE`` or ``SYS``; what the file does not say in these words is left out.
    nic_names
        From the NIC legend: ``NIC0`` to ``mlx5_0``.
    numa_nodes
        NUMA affinity by GPU index, as printed.
    """

    gpus: tuple[int, ...]
    paths: dict[tuple[str, str], str]
    nic_names: dict[str, str] = field(default_factory=dict)
    numa_nodes: dict[int, str] = field(default_factory=dict)

    def link(self, one: int, other: int) -> str | None:
        """Return the path between two GPUs; None for one and the same, or when it is not known."""
        return self.paths.get((f"GPU{one}", f"GPU{other}"))

    def nic_link(self, gpu: int, nic: str) -> str | None:
        """Return the path between a GPU and a NIC, by its name (``mlx5_0``) or its label (``NIC0``)."""
        labels = [label for label, name in self.nic_names.items() if name == nic]
        return self.paths.get((f"GPU{gpu}", labels[0] if labels else nic))
