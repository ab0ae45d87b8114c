"""What files beside the reports say: the sidecar of a capture, NCCL's logs, and ``nvidia-smi topo -m`` of what connects the GPUs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.model.captured import CapturedRank, RunCapture


class Sidecar(Struct, frozen=True):
    """One sidecar of the reports of a run."""

    path: Path  # where it was read
    facts: RunCapture  # what it says of the capture as a whole
    captured_at_utc_ns: int | None = None  # of the facts' time, for comparison with reports
    host: str | None = None
    world_size: int | None = None
    ranks: tuple[CapturedRank, ...] = ()
    step_pattern: str | None = None  # what it says of the steps' texts
    family: str | None = (
        None  # the normalised text (``step #``) that this means; None if it is more than that
    )
    log_names: tuple[str, ...] = ()  # files of its directory, not looked at yet, as is the next
    topology_name: str | None = None


class Edge(Struct, frozen=True, order=True):
    """What NCCL set up from one rank of a communicator to another."""

    from_rank: int
    to_rank: int
    # as NCCL names them (``P2P/CUMEM``, ``NET/IB/0/GDRDMA``), sorted; several when channels differ.
    # The sender's words; the receiver's only where the sender logged none.
    transports: tuple[str, ...]
    n_channels: int  # channels of collectives; of point-to-point calls when there are no others


class CommMember(Struct, frozen=True, order=True):
    """One rank of a communicator, as its process logged it; None is "not logged"."""

    rank: int
    host: str
    pid: int
    cuda_device: int | None = None  # index among the GPUs that the process sees
    nvml_device: int | None = None  # index among those of the host
    bus_id: str | None = None  # PCI address of the GPU as NCCL writes it, hexadecimal


class Communicator(Struct, frozen=True):
    """One NCCL communicator; None is "not logged"."""

    comm_id: str  # NCCL's ``commId``; of a split its parent's with ``/count.color``
    n_ranks: int
    members: tuple[
        CommMember, ...
    ] = ()  # whose process logged, sorted; fewer than `n_ranks` when files are missing
    rings: dict[int, tuple[int, ...]] | None = (
        None  # ranks in ring order by channel, of rank 0; none that was cut
    )
    n_channels: int | None = None  # channels of collectives
    is_nvls_on: bool | None = None  # whether channels for NVLink SHARP were set up
    edges: tuple[Edge, ...] | None = None  # sorted; None when no line says what any edge uses
    trees: dict[int, tuple[tuple[int, int], ...]] | None = (
        None  # (rank, parent) by channel, as those ranks log
    )

    def ring_edges(self) -> list[tuple[int, int]] | None:
        """Return the directed edges of all rings, sorted; None when no ring was logged."""
        if self.rings is None:
            return None
        around = [
            (ring[at - 1], ring[at]) for ring in self.rings.values() for at in range(len(ring))
        ]
        return sorted({edge for edge in around if edge[0] != edge[1]})

    def tree_edges(self) -> list[tuple[int, int]]:
        """Return the edges of all trees in both directions, which data takes up and down, sorted; none where no tree was logged."""
        edges = {edge for tree in (self.trees or {}).values() for edge in tree}
        return sorted(edges | {(parent, rank) for rank, parent in edges})


@dataclass(frozen=True)
class NcclFacts:
    """What NCCL says of itself, as `NcclLog` has it."""

    version: str | None
    settings: dict[str, str]
    nvls: bool | None  # whether any communicator set up NVLink SHARP; None when none says


class NcclLog(Struct, frozen=True):
    """What the logs of a run say."""

    version: str | None = None  # of NCCL; several, separated by commas, when processes differ
    communicators: tuple[
        Communicator, ...
    ] = ()  # by the order in which their processes made them, then by process
    # ``NCCL_*`` variables that NCCL says it took from the environment, as a sidecar may have them;
    # `` | `` is between values of different processes
    settings: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def facts(self) -> NcclFacts:
        """What outputs show of it."""
        nvls = {comm.is_nvls_on for comm in self.communicators} - {None}
        return NcclFacts(self.version, dict(self.settings), True in nvls if nvls else None)

    def of_processes(self, pids: Collection[int]) -> tuple[Communicator, ...]:
        """Return the communicators that have one of some processes."""
        return tuple(
            comm
            for comm in self.communicators
            if any(member.pid in pids for member in comm.members)
        )

    def of_run(self, pids: Collection[int], sizes: Collection[int | None]) -> NcclLog | None:
        """Return what the logs say of a run of these processes and one of these sizes; None when they are of another.

        Communicators larger than those of the run's processes, else than those of its size, are
        left out: processes in containers may log other ids than nsys sees. Logs without a
        communicator contradict no run.
        """
        own = [comm.n_ranks for comm in self.of_processes(pids)]
        fitting = own or [comm.n_ranks for comm in self.communicators if comm.n_ranks in sizes]
        if not fitting:
            return None if self.communicators else self
        return replace(
            self,
            communicators=tuple(
                communicator
                for communicator in self.communicators
                if communicator.n_ranks <= max(fitting)
            ),
        )


class Topology(Struct, frozen=True):
    """The matrix of ``nvidia-smi topo -m``."""

    gpus: tuple[int, ...]  # indices as NVML counts them, sorted
    # between two devices (``GPU0``, ``NIC0``): ``NV#``, ``PIX``, ``PXB``, ``PHB``, ``NODE`` or
    # ``SYS``, nothing else
    paths: dict[tuple[str, str], str]

    def link(self, one: int, other: int) -> str | None:
        """Return the path between two GPUs; None for one and the same, or when it is not known."""
        return self.paths.get((f"GPU{one}", f"GPU{other}"))
