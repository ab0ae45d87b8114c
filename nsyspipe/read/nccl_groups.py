"""Which processes of NCCL logs were in one communicator.

NCCL says so by ``commId``, and for a split by parent, count and colour. Logs of older releases tell only
rank and size: there, processes belong together when their ranks differ and what they say of each other's
GPUs and hosts agrees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from nsyspipe.read.nccl_lines import Connected, Counts, Fact, Gone, Init, Ring

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Facts", "Group", "Membership", "Process", "group", "memberships"]

Process: TypeAlias = tuple[str, int]
# Of one process, in its order: thread and what it logged.
Facts: TypeAlias = "Sequence[tuple[int, Fact]]"


@dataclass(eq=False)
class Membership:
    """A process's rank in a communicator, and what it logged of it.

    Attributes
    ----------
    order
        Among the memberships of its process.
    begin, ready, end
        Positions among the facts of its process: it is made from `begin` to `ready`, and unmade at `end`.
    init
        Its ``n_ranks`` is 0 when no line tells it.
    connections
        Transport by (receive side, connection, from, to, channel).
    is_nvls_on
        What its lines said of NVLink SHARP.
    """

    process: Process
    order: int
    thread: int
    init: Init
    begin: int
    ready: float = math.inf
    end: float = math.inf
    parent: Membership | None = None
    group: Group | None = None
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    connections: dict[tuple[bool, int, int, int, int], str] = field(default_factory=dict)
    counts: list[Counts] = field(default_factory=list)
    is_nvls_on: set[bool] = field(default_factory=set)


@dataclass(eq=False)
class Group:
    """The memberships of one communicator; `parent` and `split` where it has no id of its own."""

    comm_id: str | None
    n_ranks: int
    parent: Group | None = None
    split: str | None = None
    members: list[Membership] = field(default_factory=list)
    by_rank: dict[int, Membership] = field(default_factory=dict)
    gpus: dict[int, str] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)

    def add(self, member: Membership) -> None:
        """Take a membership in; of two with one rank the first is the rank's."""
        member.group = self
        self.members.append(member)
        self.by_rank.setdefault(member.init.rank, member)

    @property
    def order(self) -> tuple[int, Process]:
        """Where it comes among all: when its processes made it, then by process."""
        return min((member.order, member.process) for member in self.members)


def memberships(process: Process, facts: Facts) -> list[Membership]:
    """List the communicators that a process was in, in the order in which it made them."""
    found: list[Membership] = []
    # Older releases log only the end: it began when its thread had ended the one before.
    free_from: dict[int, int] = {}
    for at, (thread, fact) in enumerate(facts):
        if isinstance(fact, Gone):
            if gone := _latest(found, fact.pointer):
                gone.end = at
        elif isinstance(fact, Init) and fact.rank < fact.n_ranks:
            begun = _latest(found, fact.pointer) if fact.is_complete else None
            if begun and begun.ready == math.inf:
                begun.ready = at
            else:
                begin, ready = (
                    (free_from.get(thread, 0), at) if fact.is_complete else (at, math.inf)
                )
                parent = _latest(found, fact.parent)
                found.append(
                    Membership(process, len(found), thread, fact, begin, ready, parent=parent)
                )
            free_from[thread] = at + 1
    return found or list(_unnamed(process, facts))


def _latest(found: Sequence[Membership], pointer: str | None) -> Membership | None:
    if pointer is None:
        return None
    of_pointer = (
        one for one in reversed(found) if one.init.pointer == pointer and one.end == math.inf
    )
    return next(of_pointer, None)


def _unnamed(process: Process, facts: Facts) -> Iterator[Membership]:
    """Make one membership for a log without the lines that name it: rank 0 logs the rings, a sender itself."""
    for thread, fact in facts:
        if isinstance(fact, Ring | Connected):
            own = 0
            if isinstance(fact, Connected):
                own = fact.to_rank if fact.is_receive else fact.from_rank
            yield Membership(process, 0, thread, Init(rank=own, n_ranks=0), 0)
            return


def group(members: Iterable[Membership], facts_of: dict[Process, Facts]) -> list[Group]:
    """Put memberships of all processes together, by process and order; groups come in their order."""
    groups: dict[object, Group] = {}
    for member in members:
        init, parent = member.init, member.parent.group if member.parent else None
        if init.comm_id:
            new = Group(init.comm_id, init.n_ranks)
            groups.setdefault((init.comm_id, init.n_ranks), new).add(member)
        elif parent and init.split:
            new = Group(None, init.n_ranks, parent, init.split)
            groups.setdefault((id(parent), init.split, init.n_ranks), new).add(member)
        else:
            _join(groups, member, facts_of[member.process])
    return sorted(groups.values(), key=lambda one: one.order)


def _join(groups: dict[object, Group], member: Membership, facts: Facts) -> None:
    """Add a membership without id to the first group that agrees with what it says, or to a new one."""
    gpus, hosts = _claims(member, facts)
    for one in groups.values():
        if (
            one.comm_id is None
            and one.split is None
            and one.n_ranks == member.init.n_ranks
            and member.init.rank not in one.by_rank
            and all(one.gpus.get(rank, gpu) == gpu for rank, gpu in gpus.items())
            and all(one.hosts.get(rank, host) == host for rank, host in hosts.items())
        ):
            break
    else:
        one = groups[len(groups), "unnamed"] = Group(None, member.init.n_ranks)
    one.add(member)
    one.gpus.update(gpus)
    one.hosts.update(hosts)


def _claims(member: Membership, facts: Facts) -> tuple[dict[int, str], dict[int, str]]:
    """Return what a membership's own connections say of its ranks: GPU labels, and hosts (only a network leaves one)."""
    gpus: dict[int, str] = {}
    hosts = {member.init.rank: member.process[0]}
    last = len(facts) if member.ready == math.inf else int(member.ready)
    for thread, fact in facts[member.begin : last]:
        if thread != member.thread or not isinstance(fact, Connected):
            continue
        for rank, gpu in ((fact.from_rank, fact.from_gpu), (fact.to_rank, fact.to_gpu)):
            if gpu:
                gpus.setdefault(rank, gpu)
            if not fact.transport.startswith("NET"):
                hosts.setdefault(rank, member.process[0])
    return gpus, hosts
