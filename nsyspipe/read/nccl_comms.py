"""From the facts of NCCL logs to communicators: whose line is whose, and what all say together."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from nsyspipe.fabric import CommMember, Communicator, Edge
from nsyspipe.read.nccl_groups import Facts, Group, Membership, Process, group, memberships
from nsyspipe.read.nccl_lines import Connected, Counts, Nvls, Ring

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["communicators"]

Said: TypeAlias = Ring | Connected | Counts | Nvls


def communicators(facts_of: Mapping[Process, Facts]) -> tuple[Communicator, ...]:
    """Put together what all processes logged; their order does not matter.

    Parameters
    ----------
    facts_of
        By process (host, pid): thread and fact, in the order of the log.
    """
    facts_of = dict(sorted(facts_of.items()))
    members = {process: memberships(process, facts) for process, facts in facts_of.items()}
    groups = group([one for ones in members.values() for one in ones], facts_of)
    for process, facts in facts_of.items():
        for at, (thread, fact) in enumerate(facts):
            if isinstance(fact, Ring | Connected | Counts | Nvls):
                _give(members[process], at, thread, fact)
    names = _names(groups)
    return tuple(_communicator(names[id(one)], one) for one in groups)


def _give(members: Sequence[Membership], at: int, thread: int, said: Said) -> None:
    """Give a line to the communicator that it is about.

    The one that its thread makes at that time comes first; then one that does not have it yet; then the youngest.
    """
    alive = [one for one in reversed(members) if one.begin <= at < one.end]
    being_made = [one for one in alive if one.thread == thread and at < one.ready]
    if being_made and not isinstance(said, Connected):
        # Only connections are made later: a ring that does not fit here was cut.
        alive = being_made[:1]
    lacking = (one for one in alive if not _has(one, said))
    owners = (one for one in chain(being_made, lacking, alive) if _fits(one, said))
    if owner := next(owners, None):
        _take(owner, said)


def _fits(member: Membership, said: Said) -> bool:
    """Tell whether a line can be about this communicator: its ranks, on its GPUs."""
    n_ranks = member.init.n_ranks
    if isinstance(said, Ring):
        is_whole = not n_ranks or (len(said.ranks) == n_ranks and max(said.ranks) < n_ranks)
        return is_whole and len(set(said.ranks)) == len(said.ranks)
    if not isinstance(said, Connected):
        return True
    own = said.to_rank if said.is_receive else said.from_rank
    ends = ((said.from_rank, said.from_gpu), (said.to_rank, said.to_gpu))
    return (
        own == member.init.rank
        and said.from_rank != said.to_rank
        and all(not n_ranks or rank < n_ranks for rank, _ in ends)
        and all(_is_on(member.group, rank, gpu) for rank, gpu in ends)
    )


def _is_on(group_of: Group | None, rank: int, gpu: str | None) -> bool:
    """Tell whether a rank may be on the GPU with this label: PCI address, NVML index or CUDA index by release."""
    known = group_of.by_rank.get(rank) if group_of else None
    if known is None or gpu is None:
        return True
    init = known.init
    labels = {init.bus_id, _label(init.nvml_device), _label(init.cuda_device)} - {None}
    return not labels or gpu in labels


def _label(index: int | None) -> str | None:
    return None if index is None else str(index)


def _key(said: Connected) -> tuple[bool, int, int, int, int]:
    return said.is_receive, said.connection, said.from_rank, said.to_rank, said.channel


def _has(member: Membership, said: Said) -> bool:
    if isinstance(said, Ring):
        return said.channel in member.rings
    return isinstance(said, Connected) and _key(said) in member.connections


def _take(member: Membership, said: Said) -> None:
    match said:
        case Ring():
            member.rings.setdefault(said.channel, said.ranks)
        case Connected():
            member.connections.setdefault(_key(said), said.transport)
        case Counts():
            member.counts.append(said)
            if said.n_nvls_channels is not None:
                member.is_nvls_on.add(said.n_nvls_channels > 0)
        case Nvls():
            member.is_nvls_on.add(said.is_on)


def _names(groups: Sequence[Group]) -> dict[int, str]:
    """Name each group: its id, its parent's with the split, else by its place among those without either."""
    names: dict[int, str] = {}
    unnamed = [one for one in groups if one.comm_id is None and one.parent is None]
    for one in groups:
        suffix, root = "", one
        while root.parent:
            suffix, root = f"/{root.split}{suffix}", root.parent
        names[id(one)] = (root.comm_id or f"comm{unnamed.index(root)}") + suffix
    return names


def _communicator(name: str, of: Group) -> Communicator:
    rings = {
        channel: ring
        for _, one in sorted(of.by_rank.items(), reverse=True)
        for channel, ring in one.rings.items()
    }
    edges = _edges(of)
    said = {is_on for one in of.members for is_on in one.is_nvls_on}
    counts = [counted.n_channels for one in of.members for counted in one.counts]
    seen = [*of.by_rank, *(max(edge.from_rank, edge.to_rank) for edge in edges)]
    return Communicator(
        comm_id=name,
        n_ranks=of.n_ranks or max([*seen, *(len(ring) - 1 for ring in rings.values())]) + 1,
        members=tuple(_member(one) for _, one in sorted(of.by_rank.items())),
        rings=dict(sorted(rings.items())) or None,
        n_channels=max(counts, default=None) or len(rings) or None,
        is_nvls_on=(True in said) if said else None,
        edges=edges or None,
    )


def _member(of: Membership) -> CommMember:
    init, (host, pid) = of.init, of.process
    return CommMember(init.rank, host, pid, init.cuda_device, init.nvml_device, init.bus_id)


def _edges(of: Group) -> tuple[Edge, ...]:
    """Sum up connections by edge: the sender's before the receiver's, collectives before point-to-point calls."""
    by_edge: dict[tuple[int, int], dict[tuple[bool, bool], dict[int, str]]] = {}
    for member in of.members:
        for (is_receive, connection, start, end, channel), transport in member.connections.items():
            kinds = by_edge.setdefault((start, end), {})
            kinds.setdefault((is_receive, connection > 0), {}).setdefault(channel, transport)
    return tuple(
        Edge(start, end, tuple(sorted(set(best.values()))), len(best))
        for (start, end), kinds in sorted(by_edge.items())
        if (best := kinds[min(kinds)])
    )
