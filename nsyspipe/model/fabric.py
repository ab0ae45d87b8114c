"""What connects the GPUs of a run: as NCCL logged it, and as ``nvidia-smi topo -m`` printed it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


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
        NCCL's ``commId``; of a split its parent's with ``/count.color``.
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
class NcclFacts:
    """What NCCL says of itself.

    Attributes
    ----------
    version, settings, nvls
        As `NcclLog` has them; nvls: whether NVLink SHARP is on, None when nothing says.
    """

    version: str | None
    settings: dict[str, str]
    nvls: bool | None


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

    @property
    def is_nvls_on(self) -> bool | None:
        """Whether any communicator set up NVLink SHARP; None when none says."""
        said = {comm.is_nvls_on for comm in self.communicators} - {None}
        return True in said if said else None

    @property
    def facts(self) -> NcclFacts:
        """What outputs show of it."""
        return NcclFacts(self.version, dict(self.settings), self.is_nvls_on)

    def of_run(self, pids: Collection[int], sizes: Collection[int | None]) -> NcclLog | None:
        """Return what the logs say of one run; None when they are of another.

        Parameters
        ----------
        pids
            Of the run's processes.
        sizes
            How many ranks the run may have.

        Returns
        -------
        NcclLog or None
            Without communicators larger than those of the run's processes, else than those of its size: processes
            in containers may log other ids than nsys sees. Logs without a communicator contradict no run.
        """
        own = [
            comm.n_ranks
            for comm in self.communicators
            if any(member.pid in pids for member in comm.members)
        ]
        fitting = own or [comm.n_ranks for comm in self.communicators if comm.n_ranks in sizes]
        if not fitting:
            return None if self.communicators else self
        kept = tuple(comm for comm in self.communicators if comm.n_ranks <= max(fitting))
        return replace(self, communicators=kept)


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
    """

    gpus: tuple[int, ...]
    paths: dict[tuple[str, str], str]

    def link(self, one: int, other: int) -> str | None:
        """Return the path between two GPUs; None for one and the same, or when it is not known."""
        return self.paths.get((f"GPU{one}", f"GPU{other}"))
