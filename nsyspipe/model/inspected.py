"""What NCCL Inspector recorded of the processes of a run: calls of NCCL, and bytes by peer."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from nsyspipe.model.table import Int64

DIRECTIONS = ("send", "recv")


class Tuning(NamedTuple):
    """How NCCL ran a collective. None means that its name was not recorded."""

    # For example RING.
    algorithm: str | None
    # For example SIMPLE.
    protocol: str | None


class InspectedMember(NamedTuple):
    """A rank of a communicator, as its process recorded it."""

    comm_id: str
    rank: int
    n_ranks: int


class PeerSum(Struct, frozen=True):
    """All sends, or all receives, of a rank of a communicator with one peer."""

    comm_id: str
    # Both are ranks of the communicator.
    rank: int
    peer: int
    # One of `DIRECTIONS`.
    direction: str
    n_calls: int
    n_bytes: int


class InspectedProcess(Struct, frozen=True):
    """A process that wrote a file."""

    host: str
    pid: int


class ProcessPeers(Struct, frozen=True):
    """The communicators of a process, and its sends and receives."""

    process: InspectedProcess
    members: frozenset[InspectedMember]
    sums: tuple[PeerSum, ...]
    # Communicators that may have had more sends and receives than were recorded.
    incomplete: frozenset[str] = frozenset()


class InspectedCalls(Struct, frozen=True):
    """Calls of collectives, in columns of equal length. Each rank of a collective has a row."""

    # Names of communicators, as `communicator_name` writes them.
    comm_ids: tuple[str, ...]
    tunings: tuple[Tuning, ...]
    # Index into `comm_ids`.
    comm: Int64
    # Index into `names.COLLECTIVES`.
    collective: Int64
    # NCCL counts the calls of each collective of a communicator.
    number: Int64
    # As NCCL reports them: the part of one rank of all_gather and reduce_scatter.
    call_bytes: Int64
    # Index into `tunings`.
    tuning: Int64
    # Communicators some of whose calls were not recorded.
    incomplete: frozenset[str] = frozenset()
    # The sends and receives of each process.
    processes: tuple[ProcessPeers, ...] = ()
