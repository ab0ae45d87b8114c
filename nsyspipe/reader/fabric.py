"""What connects the ranks: communicators from NCCL logs, whose line is whose, and paths from nvidia-smi's topology.

The forms of NCCL's lines are those of its ``INFO`` calls (init.cc, graph/rings.cc,
transport/{p2p,shm,net,nvls}.cc) from 2.10 on. Which processes were in one communicator it says by
``commId``, and for a split by parent, count and colour. Old releases say neither: of their logs
only version and settings are known.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field

from nsyspipe.errors import InputError
from nsyspipe.model.names import decoded, printable
from nsyspipe.model.side_files import CommMember, Communicator, Edge, NcclLog, Topology
from nsyspipe.model.text_files import MOST_LOG_BYTES, NotOrdinaryError, open_ordinary
from nsyspipe.nsys.command_words import Mask, recorded_settings
from nsyspipe.nsys.files import readable

_LONGEST_LINE_BYTES = 65_536
# Colours and cursor moves, window titles, and two-character sequences, in this order.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[@-Z\\^_])")
_LONGEST_TEXT = 200
_LONGEST_LINE = (
    4096  # NCCL writes at most 1024 characters and a line end; a progress bar may stand before them
)
# Numbers are short, so that none overflows; launchers put words of their own before the host.
_HEADER = re.compile(
    r"(?P<host>[^\s:\[\]<>()]{1,255}):(?P<pid>\d{1,10}):(?P<thread>\d{1,10}) \[-?\d{1,9}\]"
    r"(?: \S{1,200}){0,3}? NCCL [A-Z]{2,8} "
)
_VERSION = re.compile(r"NCCL version (?P<value>\d+(?:\.\d+)+[\w.+-]{0,40})\s*$")
_SETTING = re.compile(r"(?P<name>NCCL_[A-Z0-9_]{1,80}) set by environment to (?P<value>.*?)\.?\s*$")
_INIT = re.compile(
    r"\bcomm (?P<pointer>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,9}) nranks (?P<n_ranks>\d{1,9})"
    r" cudaDev (?P<cuda>-?\d{1,9})(?: nvmlDev (?P<nvml>-?\d{1,9}))?(?: busId "
    r"(?P<bus>[0-9a-f]{1,16}))?"
    r"(?P<rest>.*?)\s?- (?P<what>Init START|Init COMPLETE|Destroy COMPLETE|Abort COMPLETE)\s*$"
)
_COMM_ID = re.compile(r"\bcommId (0x[0-9a-f]{1,16})\b")
_PARENT = re.compile(r"\bparent (0x[0-9a-f]{1,16})\b")
# Later releases count children where earlier ones count splits.
_SPLIT = re.compile(r"\b(?:splitCount|childCount) (\d{1,9}) color (-?\d{1,10})\b")
_RING = re.compile(r"Channel (\d{1,6})/\d{1,6} :((?: +\d{1,9})+)\s*$")
_TREES = re.compile(r"Trees(?: \[\d{1,6}\] -?\d{1,9}(?:/-?\d{1,9}){1,9}->\d{1,9}->-?\d{1,9})+\s*$")
_TREE = re.compile(r"\[(\d+)\] [-\d/]+->(\d+)->(-?\d+)")  # children, rank, parent
_CONNECTED = re.compile(
    r"(?:Channel|Ring) (?P<channel>\d{1,6})(?:/(?P<connection>\d{1,6}))? :"
    r" (?P<from>\d{1,9})(?:\[(?P<from_gpu>[0-9a-f]{1,16})\])?"
    r" -> (?P<to>\d{1,9})(?:\[(?P<to_gpu>[0-9a-f]{1,16})\])?"
    r"(?: \[(?P<side>send|receive)\])? via (?P<transport>\S.*?)"
    r"(?: comm 0x.*)?\s*$"  # RCCL says which communicator
)
_COUNTS = re.compile(r"(\d{1,6}) coll channels\b(?:.*?\b(\d{1,6}) nvls channels\b)?")
_NVLS = re.compile(
    r"(?P<on>NVLS comm 0x|Connected NVLS tree)|NVLS multicast support is not available"
)
_FIX = "run with NCCL_DEBUG=INFO, and NCCL_DEBUG_FILE=nccl_%h_%p.log for a file per process"


def printed_lines(path: Path, *, most: int | None = None) -> Iterator[tuple[str, bool]]:
    """Yield the first lines of a text file without escape codes, and of each whether neither begin nor end was cut off.

    `InputError` if the file is missing, not readable or no ordinary file.
    """
    with readable(path):
        try:
            opened = open_ordinary(path, MOST_LOG_BYTES)
        except NotOrdinaryError as error:
            raise InputError(decoded(str(path)), str(error), fix="name the file itself") from error
        with opened as file:
            was_whole = True
            for line in itertools.islice(
                iter(lambda: file.readline(_LONGEST_LINE_BYTES), b""), most
            ):
                is_whole = line.endswith(b"\n")
                yield (
                    _ESCAPES.sub("", line.decode("utf-8", "replace").rstrip("\r\n")),
                    is_whole and was_whole,
                )
                was_whole = is_whole


class Init(NamedTuple):
    """Begin or end of a communicator's initialisation, or that it is gone; `split` is its count and colour under `parent`."""

    what: str
    pointer: str
    rank: int
    n_ranks: int
    cuda_device: int | None
    nvml_device: int | None
    bus_id: str | None
    comm_id: str | None
    parent: str | None
    split: str | None


class Ring(NamedTuple):
    """The ranks of a channel's ring, in order."""

    channel: int
    ranks: tuple[int, ...]


class Trees(NamedTuple):
    """The parent of a rank in the tree of each channel; -1 of the root."""

    rank: int
    parents: tuple[tuple[int, int], ...]


class Connected(NamedTuple):
    """A connection of a channel (0: collectives); GPUs are labelled by PCI address, later by NVML index."""

    channel: int
    connection: int
    from_rank: int
    to_rank: int
    from_gpu: str | None
    to_gpu: str | None
    is_receive: bool
    transport: str


class Channels(NamedTuple):
    """Channels of collectives, and whether NVLink SHARP has some; None is "not said"."""

    n_channels: int | None
    is_nvls_on: bool | None


class Setting(NamedTuple):
    """A variable that NCCL took from the environment; without a name NCCL's version."""

    name: str | None
    value: str


Said: TypeAlias = Ring | Trees | Connected | Channels
Fact: TypeAlias = Init | Said | Setting
Process: TypeAlias = tuple[str, int]


def parse_line(text: str) -> tuple[Process | None, int, Fact | None] | None:
    """Read one line: host and process, thread, and what it says, where that is of interest; None when it is not NCCL's.

    Two that were written into one have no fact, as neither can be trusted.
    """
    if "NCCL" not in text:
        return None
    text = text[-_LONGEST_LINE:]
    header = _HEADER.search(text)
    if header is None:
        bare = _VERSION.match(text.strip())  # as NCCL_DEBUG=VERSION prints it
        return (None, 0, Setting(None, bare["value"])) if bare else None
    if _HEADER.search(text, header.end()):
        return None, 0, None
    return (
        (printable(header["host"]), int(header["pid"])),
        int(header["thread"]),
        _fact(text[header.end() :]),
    )


def _fact(body: str) -> Fact | None:  # noqa: PLR0911 - a form of line each
    match = _RING.match(body)
    if match:
        return Ring(int(match[1]), tuple(map(int, match[2].split())))
    if _TREES.match(body):
        channels, ranks, parents = zip(
            *(map(int, tree) for tree in _TREE.findall(body)), strict=True
        )
        return Trees(ranks[0], tuple(zip(channels, parents, strict=True)))
    match = _CONNECTED.match(body)
    if match:
        channel, connection, start, end = (
            int(match[name] or 0) for name in ("channel", "connection", "from", "to")
        )
        transport = printable(match["transport"][:_LONGEST_TEXT])
        is_receive = match["side"] == "receive"
        return Connected(
            channel,
            connection,
            start,
            end,
            match["from_gpu"],
            match["to_gpu"],
            is_receive,
            transport,
        )
    match = _INIT.search(body)
    if match:
        pointer, rank, n_ranks, cuda, nvml, bus_id, rest, what = match.groups()
        of_process, of_host = (
            None if index is None or index[0] == "-" else int(index) for index in (cuda, nvml)
        )
        names = (form.search(rest) for form in (_COMM_ID, _PARENT, _SPLIT))
        comm_id, parent, split = (".".join(name.groups()) if name else None for name in names)
        return Init(
            what,
            pointer,
            int(rank),
            int(n_ranks),
            of_process,
            of_host,
            bus_id,
            comm_id,
            parent,
            split,
        )
    match = _COUNTS.match(body)
    if match:
        return Channels(int(match[1]), int(match[2]) > 0 if match[2] else None)
    match = _NVLS.match(body)
    if match:
        return Channels(None, is_nvls_on=match["on"] is not None)
    match = _SETTING.match(body) or _VERSION.match(body)
    return (
        Setting(match.groupdict().get("name"), printable(match["value"][:_LONGEST_TEXT]))
        if match
        else None
    )


class Membership(Struct, eq=False):
    """A process's rank in a communicator, and what it logged of it."""

    process: Process
    order: int  # among the memberships of its process
    thread: int
    init: Init
    # Positions among the facts of its process: it is made from `begin` to `ready`, and unmade at
    # `end`
    begin: int
    ready: float = math.inf
    end: float = math.inf
    group: Group | None = None
    said: dict[tuple[int, ...], Ring | Trees | Connected] = field(
        default_factory=dict
    )  # by its key, the first of each
    channels: list[Channels] = field(default_factory=list)


class Group(Struct, eq=False):
    """The memberships of one communicator, and of two with one rank the first as the rank's."""

    name: str
    n_ranks: int
    members: list[Membership] = field(default_factory=list)
    by_rank: dict[int, Membership] = field(default_factory=dict)


def communicators(
    facts_of: Mapping[Process, Sequence[tuple[int, Fact]]],
) -> tuple[Communicator, ...]:
    """Put together what all processes (host, pid) logged, thread and fact in order, by the order in which they were made."""
    facts_of = dict(sorted(facts_of.items()))
    groups: dict[tuple[str, int], Group] = {}
    members = {process: _memberships(process, facts, groups) for process, facts in facts_of.items()}
    for process, facts in facts_of.items():
        for at, (thread, fact) in enumerate(facts):
            if isinstance(fact, Ring | Trees | Connected | Channels):
                _give(members[process], at, thread, fact)
    ordered = sorted(
        groups.values(),
        key=lambda one: min((member.order, member.process) for member in one.members),
    )
    return tuple(map(_communicator, ordered))


def _memberships(
    process: Process, facts: Sequence[tuple[int, Fact]], groups: dict[tuple[str, int], Group]
) -> list[Membership]:
    """List the communicators that a process was in, in the order in which it made them, each in its group."""
    made: list[Membership] = []

    def latest(pointer: str | None) -> Membership | None:
        return next(
            (one for one in reversed(made) if one.init.pointer == pointer and one.end == math.inf),
            None,
        )

    for at, (thread, fact) in enumerate(facts):
        if not isinstance(fact, Init):
            continue
        known = latest(fact.pointer)
        is_complete = fact.what == "Init COMPLETE"
        if not fact.what.startswith("Init"):  # the pointer may be given to another
            if known:
                known.end = at
        elif fact.rank < fact.n_ranks and is_complete and known and known.ready == math.inf:
            known.ready = at
        elif fact.rank < fact.n_ranks:
            parent = latest(fact.parent)
            member = Membership(
                process, len(made), thread, fact, at, at if is_complete else math.inf
            )
            made.append(member)
            name = fact.comm_id
            if name is None and fact.split and parent and parent.group:
                name = f"{parent.group.name}/{fact.split}"
            if name is not None:
                member.group = groups.setdefault((name, fact.n_ranks), Group(name, fact.n_ranks))
                member.group.members.append(member)
                member.group.by_rank.setdefault(fact.rank, member)
    return made


def _give(members: Sequence[Membership], at: int, thread: int, said: Said) -> None:
    """Give a line to its communicator: that which its thread makes then, or one that lacks it, or the youngest."""
    alive = [member for member in reversed(members) if member.begin <= at < member.end]
    being_made = [one for one in alive if one.thread == thread and at < one.ready]
    if being_made and not isinstance(said, Connected):
        alive = being_made[
            :1
        ]  # only connections are made later: a ring that does not fit here was cut
    if isinstance(said, Channels):
        if alive:
            alive[0].channels.append(said)
        return
    # What tells it from others of its communicator.
    key = (*said[:4], said.is_receive) if isinstance(said, Connected) else said[:1]
    key = (-1, *key) if isinstance(said, Trees) else key
    lacking = [one for one in alive if key not in one.said]
    owner = next((one for one in (*being_made, *lacking, *alive) if _fits(one, said)), None)
    if owner:
        owner.said.setdefault(key, said)


def _fits(member: Membership, said: Ring | Trees | Connected) -> bool:
    n_ranks = member.init.n_ranks
    if isinstance(said, Ring):
        return sorted(said.ranks) == list(range(n_ranks))
    if isinstance(said, Trees):
        return said.rank == member.init.rank and all(
            -1 <= up < n_ranks and up != said.rank for _, up in said.parents
        )
    own = said.to_rank if said.is_receive else said.from_rank
    is_ours = own == member.init.rank and said.from_rank != said.to_rank
    known = member.group.by_rank if member.group else {}
    for rank, gpu in ((said.from_rank, said.from_gpu), (said.to_rank, said.to_gpu)):
        # By release a GPU's label is its PCI address, NVML index or CUDA index.
        init = known[rank].init if gpu and rank in known else None
        labels = {init.nvml_device, init.cuda_device, init.bus_id} - {None} if init else set()
        is_ours = (
            is_ours and rank < n_ranks and (not labels or gpu in {str(label) for label in labels})
        )
    return is_ours


def _communicator(of: Group) -> Communicator:
    by_rank = sorted(of.by_rank.items())
    rings = {
        one.channel: one.ranks
        for _, by in reversed(by_rank)
        for one in by.said.values()
        if isinstance(one, Ring)
    }
    trees: dict[int, set[tuple[int, int]]] = {}
    for one in (one for _, by in by_rank for one in by.said.values() if isinstance(one, Trees)):
        for channel, parent in one.parents:
            trees.setdefault(channel, set()).update({(one.rank, parent)} if parent >= 0 else ())
    channels = [one for member in of.members for one in member.channels]
    nvls = {one.is_nvls_on for one in channels} - {None}
    counts = [one.n_channels for one in channels if one.n_channels is not None]
    made = ((rank, one.process, one.init) for rank, one in by_rank)
    return Communicator(
        comm_id=of.name,
        n_ranks=of.n_ranks,
        edges=_edges(of) or None,
        rings=dict(sorted(rings.items())) or None,
        members=tuple(
            CommMember(rank, *own, one.cuda_device, one.nvml_device, one.bus_id)
            for rank, own, one in made
        ),
        trees={channel: tuple(sorted(edges)) for channel, edges in sorted(trees.items())} or None,
        n_channels=max(counts, default=None) or len(rings) or None,
        is_nvls_on=(True in nvls) if nvls else None,
    )


def _edges(of: Group) -> tuple[Edge, ...]:
    """Sum up connections by edge: the sender's before the receiver's, collectives before point-to-point calls."""
    by_edge: dict[tuple[int, int], dict[tuple[bool, bool], dict[int, str]]] = {}
    for one in (
        one for member in of.members for one in member.said.values() if isinstance(one, Connected)
    ):
        kinds = by_edge.setdefault((one.from_rank, one.to_rank), {})
        kinds.setdefault((one.is_receive, one.connection > 0), {}).setdefault(
            one.channel, one.transport
        )
    best = {edge: kinds[min(kinds)] for edge, kinds in sorted(by_edge.items())}
    return tuple(Edge(*edge, tuple(sorted(set(by.values()))), len(by)) for edge, by in best.items())


def read_nccl_logs(
    paths: Iterable[Path], unusable: dict[Path, InputError] | None = None
) -> NcclLog:
    """Read what the logs of a run say, in any order; each may hold lines of several ranks and of other programs.

    NCCL names the communicator only where it is made and unmade. Its other lines belong to the one
    that their thread makes at that time; since 2.22 connections follow later, and go to the
    youngest communicator of the process that has these ranks on these GPUs and not yet this
    connection.

    A file that cannot be read, or has no line of NCCL's, is an `InputError`, or goes into
    `unusable`.
    """
    settings: dict[str | None, set[str]] = {}
    facts: dict[Process, list[tuple[int, Fact]]] = {}
    for path in {path.absolute(): path for path in paths}.values():  # each once, as it was named
        try:
            lines = [
                (line, is_whole)
                for text, is_whole in printed_lines(path)
                if (line := parse_line(text))
            ]
            if not lines:
                raise InputError(decoded(str(path)), "contains no line from NCCL", fix=_FIX)  # noqa: TRY301 - as what cannot be read
        except InputError as error:
            if unusable is None:
                raise
            unusable[path] = error
            continue
        for (process, thread, fact), is_whole in lines:
            if is_whole and isinstance(fact, Setting):
                settings.setdefault(fact.name, set()).add(fact.value)
            elif is_whole and process and fact:
                facts.setdefault(process, []).append((thread, fact))
    return NcclLog(
        version=", ".join(sorted(settings.pop(None, ()))) or None,
        communicators=communicators(facts),
        settings=recorded_settings(
            {name: values for name, values in settings.items() if name}, Mask()
        ),
    )


# What ``nvidia-smi topo -m`` prints: a matrix of paths, affinity columns, legends.

_TOPOLOGY_FIX = "nvidia-smi topo -m > topo.txt, on the host of the run"
_MOST_LINES = 10_000
# Rows of NICs are labelled NIC0 or, by older drivers, with the device's name.
_GPU = re.compile(r"GPU(\d{1,6})$")
_DEVICE = re.compile(r"(?:GPU|NIC)\d{1,6}$|[a-z][a-z0-9]*_[a-z0-9_]*\d$")
_PATH = re.compile(r"NV[1-9]\d?|PIX|PXB|PHB|NODE|SYS|SOC")
_CELL = re.compile(rf"(?:{_PATH.pattern}|X|N/A|PSB)$")


def read_topology(path: Path) -> Topology:
    """Read the first printed matrix of a file; a row that was cut leaves its last paths unknown. `InputError` for none."""
    lines = iter([text for text, _ in printed_lines(path, most=_MOST_LINES)])
    columns = next(filter(None, map(_columns, lines)), None)
    if columns is None:
        raise InputError(
            decoded(str(path)), "contains no matrix of nvidia-smi topo -m", fix=_TOPOLOGY_FIX
        )
    rows: set[str] = set()
    paths: dict[tuple[str, str], str] = {}
    for line in lines:
        name, *cells = line.split() or [""]
        if name.lower().startswith("legend") or (cells and _columns(line)):
            break  # a second header ends the first matrix
        if cells and name not in rows and _DEVICE.match(name):
            rows.add(name)
            for column, cell in zip(columns, itertools.takewhile(_CELL.match, cells), strict=False):
                if column != name and _PATH.fullmatch(cell):
                    paths[name, column] = (
                        "SYS" if cell == "SOC" else cell
                    )  # as drivers before 387 called it
    if not rows or (not paths and len(columns) > 1):
        problem = (
            "contains a matrix without NV#, PIX, PXB, PHB, NODE or SYS, as nvidia-smi topo -m "
            "prints"
        )
        raise InputError(decoded(str(path)), problem, fix=_TOPOLOGY_FIX)
    gpus = {int(match[1]) for name in columns if (match := _GPU.match(name))}
    # The matrix is symmetric, so a row stands in for one that was cut.
    paths = {(other, one): path for (one, other), path in paths.items()} | paths
    return Topology(gpus=tuple(sorted(gpus)), paths=dict(sorted(paths.items())))


def _columns(line: str) -> list[str]:
    """Return the devices that a header line names, or nothing: a row has its own name before an X."""
    words = line.split()
    names = list(itertools.takewhile(_DEVICE.match, words))
    is_header = (
        names and _GPU.match(names[0]) and words[len(names) :][:1] in ([], ["CPU"], ["NUMA"])
    )
    return names if is_header and len(set(names)) == len(names) else []
