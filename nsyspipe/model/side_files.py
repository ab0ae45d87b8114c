"""Contents of files next to the reports: sidecar, NCCL logs, and ``nvidia-smi topo -m``."""

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

    # The file.
    path: Path
    # What it says about the capture as a whole.
    facts: RunCapture
    # The time of these facts, to compare it with the reports.
    captured_at_utc_ns: int | None = None
    host: str | None = None
    world_size: int | None = None
    ranks: tuple[CapturedRank, ...] = ()
    # The pattern for the texts of steps.
    step_pattern: str | None = None
    # The normalized text (``step #``) that the pattern stands for. None if it is a regular
    # expression.
    family: str | None = None
    # Names of files in the directory of the sidecar. nsyspipe has not opened them yet.
    log_names: tuple[str, ...] = ()
    topology_name: str | None = None


class Edge(Struct, frozen=True, order=True):
    """The connection that NCCL set up from one rank of a communicator to another."""

    from_rank: int
    to_rank: int
    # Names that NCCL gives (``P2P/CUMEM``, ``NET/IB/0/GDRDMA``), sorted. There are several if the
    # channels differ. They are from the sender, or from the receiver if the sender logged none.
    transports: tuple[str, ...]
    # Channels of collectives, or of sends and receives if there are no others.
    n_channels: int


class CommMember(Struct, frozen=True, order=True):
    """One rank of a communicator, as its process logged it. None means that it was not logged."""

    rank: int
    host: str
    pid: int
    # Index among the GPUs that the process sees.
    cuda_device: int | None = None
    # Index among the GPUs of the host.
    nvml_device: int | None = None
    # PCI address of the GPU as NCCL writes it, in hexadecimal.
    bus_id: str | None = None


class Communicator(Struct, frozen=True):
    """One NCCL communicator. None means that it was not logged."""

    # The ``commId`` of NCCL. One that was split off has that of its parent with ``/count.color``.
    comm_id: str
    n_ranks: int
    # The ranks whose process logged, sorted. Fewer than `n_ranks` if files are missing.
    members: tuple[CommMember, ...] = ()
    # Ranks in the order of the ring by channel, as rank 0 logs it. No ring that was cut off.
    rings: dict[int, tuple[int, ...]] | None = None
    # Channels of collectives.
    n_channels: int | None = None
    # Whether channels for NVLink SHARP were set up.
    is_nvls_on: bool | None = None
    # Sorted. None if no line says what any edge uses.
    edges: tuple[Edge, ...] | None = None
    # Pairs of rank and parent by channel, as these ranks log them.
    trees: dict[int, tuple[tuple[int, int], ...]] | None = None

    @property
    def pids(self) -> set[int]:
        """The processes that logged."""
        return {member.pid for member in self.members}

    def ring_edges(self) -> list[tuple[int, int]] | None:
        """Return the directed edges of all rings, sorted. None if no ring was logged."""
        if self.rings is None:
            return None
        edges: set[tuple[int, int]] = set()
        for ring in self.rings.values():
            # The rank before the first one is the last one.
            previous_ranks = (*ring[-1:], *ring[:-1])
            for previous_rank, rank in zip(previous_ranks, ring, strict=True):
                # A ring of one rank has no edge.
                if previous_rank != rank:
                    edges.add((previous_rank, rank))
        return sorted(edges)

    def tree_edges(self) -> list[tuple[int, int]]:
        """Return the edges of all trees in both directions, sorted.

        Data goes up and down a tree. The list is empty if no tree was logged.
        """
        edges: set[tuple[int, int]] = set()
        for tree in (self.trees or {}).values():
            for rank, parent in tree:
                edges |= {(rank, parent), (parent, rank)}
        return sorted(edges)


@dataclass(frozen=True)
class NcclFacts:
    """What a user gets of an `NcclLog`."""

    version: str | None
    settings: dict[str, str]
    # Whether any communicator set up NVLink SHARP. None if no log says.
    nvls: bool | None


class NcclLog(Struct, frozen=True):
    """What the NCCL logs of a run say."""

    # The version of NCCL, or several separated by commas if processes differ.
    version: str | None = None
    # In the order in which their processes made them, then by process.
    communicators: tuple[Communicator, ...] = ()
    # ``NCCL_*`` variables that NCCL took from the environment, as a sidecar may have them.
    # `` | `` separates values of different processes.
    settings: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def facts(self) -> NcclFacts:
        """What outputs show of the logs."""
        flags = [comm.is_nvls_on for comm in self.communicators]
        known_flags = [flag for flag in flags if flag is not None]
        nvls = any(known_flags) if known_flags else None
        return NcclFacts(version=self.version, settings=dict(self.settings), nvls=nvls)

    def of_processes(self, pids: Collection[int]) -> tuple[Communicator, ...]:
        """Return the communicators with at least one of these processes."""
        communicators = []
        for comm in self.communicators:
            has_no_process = comm.pids.isdisjoint(pids)
            if not has_no_process:
                communicators.append(comm)
        return tuple(communicators)

    def of_run(self, pids: Collection[int], sizes: Collection[int | None]) -> NcclLog | None:
        """Return what the logs say about a run.

        `pids` are the processes of the run, and `sizes` the numbers of ranks that it may have.
        Communicators that are larger than the largest communicator of the processes are left out.
        In containers, processes may log other IDs than nsys sees. If no communicator has one of the
        processes, the largest communicator of a possible size is the limit. If no communicator has
        a possible size either, the logs belong to another run, and the result is None. Logs without
        communicators fit every run.
        """
        if not self.communicators:
            return self
        sizes_of_run = [comm.n_ranks for comm in self.of_processes(pids)]
        if not sizes_of_run:
            all_sizes = [comm.n_ranks for comm in self.communicators]
            sizes_of_run = [size for size in all_sizes if size in sizes]
        if not sizes_of_run:
            return None
        largest = max(sizes_of_run)
        communicators_of_run = [comm for comm in self.communicators if comm.n_ranks <= largest]
        return replace(self, communicators=tuple(communicators_of_run))


class Topology(Struct, frozen=True):
    """The matrix of ``nvidia-smi topo -m``."""

    # Indices as NVML counts them, sorted.
    gpus: tuple[int, ...]
    # Between two devices (``GPU0``, ``NIC0``): ``NV#``, ``PIX``, ``PXB``, ``PHB``, ``NODE`` or
    # ``SYS``, and nothing else.
    paths: dict[tuple[str, str], str]

    def link(self, from_gpu: int, to_gpu: int) -> str | None:
        """Return the path between two GPUs, or None if it is not known or they are the same GPU."""
        from_device = f"GPU{from_gpu}"
        to_device = f"GPU{to_gpu}"
        return self.paths.get((from_device, to_device))
