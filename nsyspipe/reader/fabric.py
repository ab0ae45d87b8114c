"""What connects the ranks: communicators from NCCL logs, whose line is whose, and paths from nvidia-smi's topology.

NCCL says which processes were in one by ``commId``, and for a split by parent, count and colour. Old releases say
neither: of their logs only version and settings are known.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from nsyspipe.errors import InputError
from nsyspipe.model.fabric import CommMember, Communicator, Edge, NcclLog, Topology
from nsyspipe.model.text import decoded
from nsyspipe.reader.nccl_lines import (
    Connected,
    Counts,
    Fact,
    Gone,
    Init,
    Line,
    Nvls,
    Ring,
    Setting,
    Version,
    parse_line,
    printed_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


Process: TypeAlias = tuple[str, int]
# Of one process, in its order: thread and what it logged.
Facts: TypeAlias = "Sequence[tuple[int, Fact]]"
Said: TypeAlias = Ring | Connected | Counts | Nvls


@dataclass(eq=False)
class Membership:
    """A process's rank in a communicator, and what it logged of it."""

    process: Process
    order: int  # among the memberships of its process
    thread: int
    init: Init
    # begin, ready, end: positions among the facts of its process: it is made from `begin` to `ready`, and unmade at
    # `end`
    begin: int
    ready: float = math.inf
    end: float = math.inf
    parent: Membership | None = None
    group: Group | None = None
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # Transport by (receive side, connection, from, to, channel)
    connections: dict[tuple[bool, int, int, int, int], str] = field(default_factory=dict)
    counts: list[Counts] = field(default_factory=list)
    is_nvls_on: set[bool] = field(default_factory=set)  # what its lines said of NVLink SHARP


@dataclass(eq=False)
class Group:
    """The memberships of one communicator, and of two with one rank the first as the rank's."""

    name: str
    n_ranks: int
    members: list[Membership] = field(default_factory=list)
    by_rank: dict[int, Membership] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, Process]:
        """Where it comes among all: when its processes made it, then by process."""
        return min((member.order, member.process) for member in self.members)


def memberships(process: Process, facts: Facts) -> list[Membership]:
    """List the communicators that a process was in, in the order in which it made them."""
    found: list[Membership] = []
    for at, (thread, fact) in enumerate(facts):
        if isinstance(fact, Gone):
            if gone := _latest(found, fact.pointer):
                gone.end = at
        elif isinstance(fact, Init) and fact.rank < fact.n_ranks:
            begun = _latest(found, fact.pointer) if fact.is_complete else None
            if begun and begun.ready == math.inf:
                begun.ready = at
            else:
                ready, parent = at if fact.is_complete else math.inf, _latest(found, fact.parent)
                found.append(Membership(process, len(found), thread, fact, at, ready, parent=parent))
    return found


def _latest(found: Sequence[Membership], pointer: str | None) -> Membership | None:
    of_pointer = (one for one in reversed(found) if one.init.pointer == pointer and one.end == math.inf)
    return next(of_pointer, None)


def _grouped(members: Sequence[Membership]) -> list[Group]:
    """Put memberships of all processes together, a parent's before its splits'; groups come in their order."""
    groups: dict[tuple[str, int], Group] = {}
    for member in members:
        init, parent = member.init, member.parent.group if member.parent else None
        name = init.comm_id
        if name is None and parent and init.split:
            name = f"{parent.name}/{init.split}"
        if name is not None:
            member.group = groups.setdefault((name, init.n_ranks), Group(name, init.n_ranks))
            member.group.members.append(member)
            member.group.by_rank.setdefault(init.rank, member)
    return sorted(groups.values(), key=lambda one: one.order)


def communicators(facts_of: Mapping[Process, Facts]) -> tuple[Communicator, ...]:
    """Put together what all processes (host, pid) logged, each in its order; theirs does not matter."""
    facts_of = dict(sorted(facts_of.items()))
    members = {process: memberships(process, facts) for process, facts in facts_of.items()}
    groups = _grouped([one for ones in members.values() for one in ones])
    for process, facts in facts_of.items():
        for at, (thread, fact) in enumerate(facts):
            if isinstance(fact, Ring | Connected | Counts | Nvls):
                _give(members[process], at, thread, fact)
    return tuple(_communicator(one) for one in groups)


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
        is_whole = len(said.ranks) == n_ranks and max(said.ranks) < n_ranks
        return is_whole and len(set(said.ranks)) == len(said.ranks)
    if not isinstance(said, Connected):
        return True
    own = said.to_rank if said.is_receive else said.from_rank
    ends = ((said.from_rank, said.from_gpu), (said.to_rank, said.to_gpu))
    return (
        own == member.init.rank
        and said.from_rank != said.to_rank
        and all(rank < n_ranks and _is_on(member.group, rank, gpu) for rank, gpu in ends)
    )


def _is_on(group_of: Group | None, rank: int, gpu: str | None) -> bool:
    """Tell whether a rank may be on the GPU with this label: PCI address, NVML index or CUDA index by release."""
    known = group_of.by_rank.get(rank) if group_of else None
    if known is None or gpu is None:
        return True
    init = known.init
    indices = {str(index) for index in (init.nvml_device, init.cuda_device) if index is not None}
    labels = indices | ({init.bus_id} if init.bus_id else set())
    return not labels or gpu in labels


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


def _communicator(of: Group) -> Communicator:
    rings = {
        channel: ring for _, one in sorted(of.by_rank.items(), reverse=True) for channel, ring in one.rings.items()
    }
    said = {is_on for one in of.members for is_on in one.is_nvls_on}
    counts = [counted.n_channels for one in of.members for counted in one.counts]
    return Communicator(
        comm_id=of.name,
        n_ranks=of.n_ranks,
        members=tuple(_member(one) for _, one in sorted(of.by_rank.items())),
        rings=dict(sorted(rings.items())) or None,
        n_channels=max(counts, default=None) or len(rings) or None,
        is_nvls_on=(True in said) if said else None,
        edges=_edges(of) or None,
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


_FIX = "run with NCCL_DEBUG=INFO, and NCCL_DEBUG_FILE=nccl_%h_%p.log for a file per process"


def read_nccl_logs(paths: Sequence[Path]) -> NcclLog:
    """Read what the logs of a run say, in any order; each may hold lines of several ranks and of other programs.

    What was not logged is None: with ``NCCL_DEBUG=VERSION`` there is a version and no communicator, and a communicator
    that never connected has no edges. NCCL names the communicator only where it is made and unmade. Its other lines
    belong to the one that their thread makes at that time; since 2.22 connections follow later, and go to the youngest
    communicator of the process that has these ranks on these GPUs and not yet this connection.

    Raises
    ------
    InputError
        If a file cannot be read or holds no line of NCCL's.
    """
    settings: dict[str, set[str]] = {}
    versions: set[str] = set()
    facts: dict[Process, list[tuple[int, Fact]]] = {}
    for path in dict.fromkeys(path.absolute() for path in paths):
        for line in _nccl_lines(path):
            match line.fact:
                case Setting(name, value):
                    settings.setdefault(name, set()).add(value)
                case Version(text):
                    versions.add(text)
                case None:
                    pass
                case fact if line.process:
                    facts.setdefault(line.process, []).append((line.thread, fact))
    return NcclLog(
        version=", ".join(sorted(versions)) or None,
        communicators=communicators(facts),
        settings={name: " | ".join(sorted(values)) for name, values in sorted(settings.items())},
    )


def _nccl_lines(path: Path) -> list[Line]:
    """Read one file; of a line that was cut only that NCCL wrote it."""
    found: list[Line] = []
    is_of_nccl = False
    for text, is_whole in printed_lines(path):
        line = parse_line(text)
        is_of_nccl = is_of_nccl or line is not None
        if line and line.fact and is_whole:
            found.append(line)
    if not is_of_nccl:
        raise InputError(decoded(str(path)), "no line of NCCL's in it", fix=_FIX)
    return found


# What ``nvidia-smi topo -m`` prints: a matrix of paths, affinity columns, legends.


_TOPOLOGY_FIX = "nvidia-smi topo -m > topo.txt, on the host of the run"
_MOST_LINES = 10_000
# Rows of NICs are labelled NIC0 or, by older drivers, with the device's name.
_GPU = re.compile(r"GPU(\d{1,6})$")
_DEVICE = re.compile(r"(?:GPU|NIC)\d{1,6}$|[a-z][a-z0-9]*_[a-z0-9_]*\d$")
_PATH = re.compile(r"NV[1-9]\d?|PIX|PXB|PHB|NODE|SYS|SOC")
# SOC is what drivers before 387 called SYS.
_RENAMED = {"SOC": "SYS"}
_CELL = re.compile(rf"(?:{_PATH.pattern}|X|N/A|PSB)$")


def read_topology(path: Path) -> Topology:
    """Read the printed matrix of one host, perhaps among other output: the first matrix counts.

    Only what the file says: a row that was cut leaves its last paths unknown. `InputError` if there is no such matrix.
    """
    lines = [line.text for line in printed_lines(path, most=_MOST_LINES)]
    header = next((at for at, line in enumerate(lines) if _columns(line)), None)
    if header is None:
        raise InputError(decoded(str(path)), "no matrix of nvidia-smi topo -m in it", fix=_TOPOLOGY_FIX)
    columns = _columns(lines[header])
    rows = _rows(lines[header + 1 :])
    paths = _paths(columns, rows)
    if not rows or (not paths and len(columns) > 1):
        raise InputError(
            decoded(str(path)),
            "a matrix without NV#, PIX, PXB, PHB, NODE or SYS, which nvidia-smi topo -m prints",
            fix=_TOPOLOGY_FIX,
        )
    return Topology(
        gpus=tuple(sorted({int(match[1]) for name in columns if (match := _GPU.match(name))})),
        paths=paths,
    )


def _columns(line: str) -> list[str]:
    """Return the devices that a header line names, or nothing: a row has its own name before an X."""
    words = line.split()
    names: list[str] = []
    for word in words:
        if not _DEVICE.match(word):
            break
        names.append(word)
    rest = words[len(names) : len(names) + 1]
    is_header = names and _GPU.match(names[0]) and rest in ([], ["CPU"], ["NUMA"])
    return names if is_header and len(set(names)) == len(names) else []


def _rows(lines: Iterable[str]) -> dict[str, str]:
    """Return the rest of each device's row by its name, up to the legend."""
    rows: dict[str, str] = {}
    for line in lines:
        words = line.split(maxsplit=1)
        if words and words[0].lower().startswith("legend"):
            break
        # A second header ends the first matrix.
        if _columns(line) and len(words) > 1:
            break
        if len(words) > 1 and _DEVICE.match(words[0]):
            rows.setdefault(words[0], words[1])
    return rows


def _paths(columns: Sequence[str], rows: dict[str, str]) -> dict[tuple[str, str], str]:
    """Pair the cells of each row with the columns; the matrix is symmetric, so a row stands in for one that was cut."""
    found: dict[tuple[str, str], str] = {}
    for name, rest in rows.items():
        for column, cell in zip(columns, rest.split(), strict=False):
            if not _CELL.match(cell):
                break
            if column != name and _PATH.fullmatch(cell):
                found[name, column] = _RENAMED.get(cell, cell)
    for (one, other), path in list(found.items()):
        found.setdefault((other, one), path)
    return dict(sorted(found.items()))
