"""What ranks send to each other over whole processes, from the records of NCCL Inspector.

A record names its peer by a rank of a communicator. It is a rank of the run only if all members of
the communicator are known. Otherwise the peer is null, as a wrong peer is worse than none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from msgspec import Struct

from nsyspipe.model import schema
from nsyspipe.model.inspected import InspectedCalls, InspectedProcess, PeerSum, ProcessPeers
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.side_files import Communicator, NcclLog
from nsyspipe.model.typed_tables import PeersTable, RanksTable
from nsyspipe.reader.beside import may_be_host


class Unknown(IntEnum):
    """Why the peer of a call is not known. The first is the most severe."""

    RANK = 0
    CONTRADICTION = 1
    MEMBERS = 2
    PEER = 3


REASONS = {
    Unknown.RANK: "it is not certain which rank of the run made them",
    Unknown.CONTRADICTION: "records contradict each other about the ranks of a communicator",
    Unknown.MEMBERS: "neither records nor an NCCL log have all members of the communicator",
    Unknown.PEER: "the peer is not in the run",
}


class PeerTraffic(Struct, frozen=True):
    """Sends and receives by peer."""

    # `schema.PEERS`
    table: PeersTable
    # How many calls have no known peer, and why. None if all have one.
    problem: Problem | None = None


class _Key(NamedTuple):
    """The key of a row."""

    rank: int
    peer_rank: int | None
    direction: str

    @property
    def order(self) -> _Key:
        """What rows are sorted by: unknown peers are first."""
        return self._replace(peer_rank=-1) if self.peer_rank is None else self


class _Row:
    """The values of a row."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.message_bytes = 0
        self.is_lower_bound = False

    def add(self, peer_sum: PeerSum, *, is_incomplete: bool) -> None:
        """Add calls of one communicator."""
        self.n_calls += peer_sum.n_calls
        self.message_bytes += peer_sum.n_bytes
        self.is_lower_bound |= is_incomplete


# Ranks of the run by rank of a communicator, or why they are not known.
_Members = Mapping[int, int | None] | Unknown


def peer_traffic(
    ranks: RanksTable, calls: InspectedCalls | None, log: NcclLog | None
) -> PeerTraffic:
    """Return the sends and receives of the ranks of `schema.RANKS` by peer.

    A row needs the rank that made the calls. Its peer is null if it is not known.
    """
    if calls is None:
        return PeerTraffic(schema.PEERS.empty())
    processes = calls.processes
    places = _Places(ranks)
    rank_of_process = _ranks_of_processes(places, [peers.process for peers in processes])
    members_of = _members_of_communicators(processes, rank_of_process, places, log)
    rows: dict[_Key, _Row] = {}
    n_unknown: Counter[Unknown] = Counter()
    for peers in processes:
        rank = rank_of_process.get(peers.process)
        for peer_sum in peers.sums:
            if rank is None:
                n_unknown[Unknown.RANK] += peer_sum.n_calls
                continue
            peer = _peer_of(peer_sum, members_of[peer_sum.comm_id])
            peer_rank = None if isinstance(peer, Unknown) else peer
            if isinstance(peer, Unknown):
                n_unknown[peer] += peer_sum.n_calls
            key = _Key(rank, peer_rank, peer_sum.direction)
            row = rows.setdefault(key, _Row())
            row.add(peer_sum, is_incomplete=peer_sum.comm_id in peers.incomplete)
    return PeerTraffic(_table_of(rows), _problem_of(processes, n_unknown))


def _peer_of(peer_sum: PeerSum, members: _Members) -> int | Unknown:
    """Return the rank of the run that a peer is, or why it is not known."""
    if isinstance(members, Unknown):
        return members
    peer_rank = members.get(peer_sum.peer)
    return Unknown.PEER if peer_rank is None else peer_rank


def _table_of(rows: Mapping[_Key, _Row]) -> PeersTable:
    keys = sorted(rows, key=lambda key: key.order)
    dicts: list[dict[str, Any]] = [key._asdict() | vars(rows[key]) for key in keys]
    table: PeersTable = schema.PEERS.from_rows(dicts)
    return table


def _problem_of(
    processes: Iterable[ProcessPeers], n_unknown: Mapping[Unknown, int]
) -> Problem | None:
    """Return the problem that calls have no known peer, with the most common reason."""
    if not n_unknown:
        return None
    total = 0
    for peers in processes:
        total += sum(peer_sum.n_calls for peer_sum in peers.sums)
    # `Unknown` has the most severe reason first. `max` takes the first of equally common reasons.
    most_severe_first = sorted(n_unknown)
    most_common = max(most_severe_first, key=lambda unknown: n_unknown[unknown])
    n = sum(n_unknown.values())
    return problem("nccl-inspector-peers", n=n, total=total, reason=REASONS[most_common])


class _Places:
    """On which hosts the ranks of a run are, by process ID."""

    def __init__(self, ranks: RanksTable) -> None:
        self._rows_of_pid: dict[int, list[Mapping[str, Any]]] = {}
        for row in ranks.select(["rank", "host", "pid"]).to_pylist():
            self._rows_of_pid.setdefault(row["pid"], []).append(row)

    def only_rank(self, process: InspectedProcess) -> int | None:
        """Return the only rank that a process may be, None without one or if there are several."""
        rows = self._rows_of_pid.get(process.pid, [])
        fitting = [int(row["rank"]) for row in rows if may_be_host(row["host"], process.host)]
        return fitting[0] if len(fitting) == 1 else None


def _ranks_of_processes(
    places: _Places, processes: Iterable[InspectedProcess]
) -> dict[InspectedProcess, int]:
    """Return the rank of each process that is certain to be one rank of the run."""
    rank_of_process: dict[InspectedProcess, int] = {}
    for process in processes:
        rank = places.only_rank(process)
        if rank is not None:
            rank_of_process[process] = rank
    # Hosts of redacted reports have other names, so that several processes may fit one rank.
    n_processes = Counter(rank_of_process.values())
    return {process: rank for process, rank in rank_of_process.items() if n_processes[rank] == 1}


def _members_of_communicators(
    processes: Sequence[ProcessPeers],
    rank_of_process: Mapping[InspectedProcess, int],
    places: _Places,
    log: NcclLog | None,
) -> dict[str, _Members]:
    """Return, for each recorded communicator, which ranks of the run its members are."""
    recorded: dict[str, _Recorded] = {}
    for peers in processes:
        rank = rank_of_process.get(peers.process)
        for member in peers.members:
            communicator = recorded.setdefault(member.comm_id, _Recorded())
            communicator.sizes.add(member.n_ranks)
            if rank is not None:
                communicator.claims.add((member.rank, rank))
    logged = {comm.comm_id: comm for comm in log.communicators} if log else {}
    return {
        comm_id: _members_of(communicator, logged.get(comm_id), places)
        for comm_id, communicator in recorded.items()
    }


class _Recorded:
    """What records say of a communicator."""

    def __init__(self) -> None:
        self.sizes: set[int] = set()
        # Pairs of a rank of the communicator and a rank of the run.
        self.claims: set[tuple[int, int]] = set()

    @property
    def is_contradictory(self) -> bool:
        """Whether two processes say that they are the same rank, or one that it is two ranks."""
        comm_ranks = {comm_rank for comm_rank, _ in self.claims}
        run_ranks = {run_rank for _, run_rank in self.claims}
        are_pairs = len(comm_ranks) == len(run_ranks) == len(self.claims)
        return len(self.sizes) > 1 or not are_pairs


def _members_of(recorded: _Recorded, logged: Communicator | None, places: _Places) -> _Members:
    """Return the members of a communicator by its records, else by the log.

    The log is used only if it has all members. Its members must not contradict the records, and
    must be different ranks of the run.
    """
    if recorded.is_contradictory:
        return Unknown.CONTRADICTION
    # Without a contradiction, all records have one size.
    (n_ranks,) = recorded.sizes
    if len(recorded.claims) == n_ranks:
        return dict(recorded.claims)
    if logged is None or logged.n_ranks != n_ranks or len(logged.members) != n_ranks:
        return Unknown.MEMBERS
    members = {
        member.rank: places.only_rank(InspectedProcess(member.host, member.pid))
        for member in logged.members
    }
    is_contradicted = any(members.get(comm_rank) != rank for comm_rank, rank in recorded.claims)
    known_ranks = [rank for rank in members.values() if rank is not None]
    is_a_rank_repeated = len(set(known_ranks)) < len(known_ranks)
    return Unknown.CONTRADICTION if is_contradicted or is_a_rank_repeated else members
