"""What connects the ranks: communicators from NCCL logs, and paths from nvidia-smi's topology.

The patterns of log lines follow the ``INFO`` calls of NCCL (init.cc, graph/rings.cc,
transport/{p2p,shm,net,nvls}.cc) from 2.10 on. NCCL identifies a communicator by its ``commId``, and
a split communicator by parent, count and color. The logs of older releases have neither, so only
the version and the settings are read from them.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from msgspec import Struct, field

from nsyspipe.errors import InputError
from nsyspipe.model.names import decoded, printable
from nsyspipe.model.side_files import CommMember, Communicator, Edge, NcclLog, Topology
from nsyspipe.model.text_files import MOST_LOG_BYTES, NotOrdinaryError, open_ordinary
from nsyspipe.model.user_paths import AnyPath
from nsyspipe.nsys.command_words import Mask, recorded_settings
from nsyspipe.nsys.files import readable

# A longer line is read in pieces.
_MAX_LINE_BYTES = 65_536
# Colors and cursor moves, window titles, and two-character sequences, in this order.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[@-Z\\^_])")
# The length at which transports and values of settings are cut.
_MAX_TEXT_CHARS = 200
# NCCL writes at most 1024 characters and a line end. A progress bar may precede them.
_MAX_LINE_CHARS = 4096
# The number of digits is limited, so that no number overflows. Launchers put words before the host.
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
# Later releases print ``childCount`` in place of ``splitCount``.
_SPLIT = re.compile(r"\b(?:splitCount|childCount) (\d{1,9}) color (-?\d{1,10})\b")
_RING = re.compile(r"Channel (\d{1,6})/\d{1,6} :((?: +\d{1,9})+)\s*$")
_TREES = re.compile(r"Trees(?: \[\d{1,6}\] -?\d{1,9}(?:/-?\d{1,9}){1,9}->\d{1,9}->-?\d{1,9})+\s*$")
# Channel, children (not read), rank and parent of one tree.
_TREE = re.compile(r"\[(\d+)\] [-\d/]+->(\d+)->(-?\d+)")
_CONNECTED = re.compile(
    r"(?:Channel|Ring) (?P<channel>\d{1,6})(?:/(?P<connection>\d{1,6}))? :"
    r" (?P<from>\d{1,9})(?:\[(?P<from_gpu>[0-9a-f]{1,16})\])?"
    r" -> (?P<to>\d{1,9})(?:\[(?P<to_gpu>[0-9a-f]{1,16})\])?"
    r"(?: \[(?P<side>send|receive)\])? via (?P<transport>\S.*?)"
    # RCCL appends the communicator.
    r"(?: comm 0x.*)?\s*$"
)
_COUNTS = re.compile(r"(\d{1,6}) coll channels\b(?:.*?\b(\d{1,6}) nvls channels\b)?")
_NVLS = re.compile(
    r"(?P<on>NVLS comm 0x|Connected NVLS tree)|NVLS multicast support is not available"
)
_FIX = "run with NCCL_DEBUG=INFO, and NCCL_DEBUG_FILE=nccl_%h_%p.log for a file per process"


def printed_lines(path: AnyPath, *, max_lines: int | None = None) -> Iterator[tuple[str, bool]]:
    """Yield each line of a text file without escape codes, and whether the line is complete.

    A line that is too long comes in several pieces, none of which is complete. A last line
    without a line end is not complete either. At most `max_lines` lines and pieces are yielded;
    None stands for all. Raises `InputError` if the file is missing, not readable or not an
    ordinary file.
    """
    with readable(path):
        try:
            opened = open_ordinary(path, MOST_LOG_BYTES)
        except NotOrdinaryError as error:
            name = decoded(str(path))
            raise InputError(name, str(error), fix="name the file itself") from error
        with opened as file:
            # A piece is a whole line, or as much of the line as is read at once.
            pieces = iter(lambda: file.readline(_MAX_LINE_BYTES), b"")
            starts_line = True
            for piece in itertools.islice(pieces, max_lines):
                ends_line = piece.endswith(b"\n")
                is_whole_line = starts_line and ends_line
                text = piece.decode("utf-8", "replace").rstrip("\r\n")
                yield _ESCAPES.sub("", text), is_whole_line
                # The next piece begins a line if this piece ends one.
                starts_line = ends_line


class Init(NamedTuple):
    """A communicator's initialization begins or ends, or the communicator is gone."""

    # ``Init START``, ``Init COMPLETE``, ``Destroy COMPLETE`` or ``Abort COMPLETE``.
    what: str
    pointer: str
    rank: int
    n_ranks: int
    cuda_device: int | None
    nvml_device: int | None
    bus_id: str | None
    comm_id: str | None
    parent: str | None
    # The count and color of a split of `parent`, joined by a dot.
    split: str | None


class Ring(NamedTuple):
    """The ranks of a channel's ring, in order."""

    channel: int
    ranks: tuple[int, ...]


class Trees(NamedTuple):
    """The parent of a rank in the tree of each channel."""

    rank: int
    # Channel and parent. The root has the parent -1.
    parents: tuple[tuple[int, int], ...]


class Connected(NamedTuple):
    """A connection of a channel from one rank to another.

    Its GPUs are labeled by PCI address, or in later releases by NVML index.
    """

    channel: int
    # 0 is the connection of collectives, others are of point-to-point calls.
    connection: int
    from_rank: int
    to_rank: int
    from_gpu: str | None
    to_gpu: str | None
    is_receive: bool
    transport: str


class Channels(NamedTuple):
    """The number of collective channels, and whether NVLink SHARP is on; None is "not logged"."""

    n_channels: int | None
    is_nvls_on: bool | None


class Setting(NamedTuple):
    """A variable that NCCL took from the environment, or the version of NCCL."""

    # None: the value is NCCL's version.
    name: str | None
    value: str


CommunicatorFact: TypeAlias = Ring | Trees | Connected | Channels
Fact: TypeAlias = Init | CommunicatorFact | Setting
# Host and process id.
Process: TypeAlias = tuple[str, int]
_FactT = TypeVar("_FactT", Ring, Trees, Connected)
_LogPath = TypeVar("_LogPath", bound=os.PathLike[str])


class LogLine(NamedTuple):
    """A line that NCCL wrote."""

    # None and thread 0 if the line does not say which process wrote it.
    process: Process | None
    thread: int
    # None if the line has nothing of interest.
    fact: Fact | None


def parse_line(text: str) -> LogLine | None:
    """Read one line of a log; None if NCCL did not write it.

    If two lines were written into one, the result has no fact, because neither can be trusted.
    """
    if "NCCL" not in text:
        return None
    # NCCL's line is at the end of the text. Something may precede it, for example a progress bar.
    end_of_text = text[-_MAX_LINE_CHARS:]
    header = _HEADER.search(end_of_text)
    if header is None:
        # NCCL_DEBUG=VERSION prints the version without a header.
        version = _VERSION.match(end_of_text.strip())
        if version is None:
            return None
        return LogLine(process=None, thread=0, fact=Setting(name=None, value=version["value"]))
    end_of_header = header.end()
    has_second_header = _HEADER.search(end_of_text, end_of_header) is not None
    if has_second_header:
        return LogLine(process=None, thread=0, fact=None)
    host = printable(header["host"])
    process = (host, int(header["pid"]))
    thread = int(header["thread"])
    fact = _read_fact(end_of_text[end_of_header:])
    return LogLine(process, thread, fact)


def _read_fact(body: str) -> Fact | None:
    """Return what a line says after its header; None if that is not of interest."""
    facts = (read_form(body) for read_form in _READERS_OF_LINES)
    return next((fact for fact in facts if fact is not None), None)


def _read_ring(body: str) -> Ring | None:
    match = _RING.match(body)
    if match is None:
        return None
    channel, ranks = match.groups()
    ranks_in_order = map(int, ranks.split())
    return Ring(int(channel), tuple(ranks_in_order))


def _read_trees(body: str) -> Trees | None:
    if _TREES.match(body) is None:
        return None
    trees = _TREE.findall(body)
    # All trees of a line are of one rank.
    _, rank, _ = trees[0]
    parents = [(int(channel), int(parent)) for channel, _, parent in trees]
    return Trees(int(rank), tuple(parents))


def _read_connection(body: str) -> Connected | None:
    match = _CONNECTED.match(body)
    if match is None:
        return None
    channel = int(match["channel"])
    connection = int(match["connection"] or 0)
    from_rank = int(match["from"])
    to_rank = int(match["to"])
    transport = printable(match["transport"][:_MAX_TEXT_CHARS])
    return Connected(
        channel=channel,
        connection=connection,
        from_rank=from_rank,
        to_rank=to_rank,
        from_gpu=match["from_gpu"],
        to_gpu=match["to_gpu"],
        is_receive=match["side"] == "receive",
        transport=transport,
    )


def _read_init(body: str) -> Init | None:
    match = _INIT.search(body)
    if match is None:
        return None
    rank = int(match["rank"])
    n_ranks = int(match["n_ranks"])
    cuda_device = _device_index(match["cuda"])
    nvml_device = _device_index(match["nvml"])
    # What these lines say after the GPU differs between releases.
    comm_id = _joined_groups(_COMM_ID, match["rest"])
    parent = _joined_groups(_PARENT, match["rest"])
    split = _joined_groups(_SPLIT, match["rest"])
    return Init(
        what=match["what"],
        pointer=match["pointer"],
        rank=rank,
        n_ranks=n_ranks,
        cuda_device=cuda_device,
        nvml_device=nvml_device,
        bus_id=match["bus"],
        comm_id=comm_id,
        parent=parent,
        split=split,
    )


def _device_index(text: str | None) -> int | None:
    """Return the index of a GPU; None if the line has none, or a negative one."""
    return None if text is None or text.startswith("-") else int(text)


def _joined_groups(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the groups of the first match, joined by dots; None if there is no match."""
    match = pattern.search(text)
    return ".".join(match.groups()) if match else None


def _read_channels(body: str) -> Channels | None:
    match = _COUNTS.match(body)
    if match is None:
        return None
    n_channels, n_nvls_channels = match.groups()
    is_nvls_on = int(n_nvls_channels) > 0 if n_nvls_channels else None
    return Channels(int(n_channels), is_nvls_on)


def _read_nvls(body: str) -> Channels | None:
    match = _NVLS.match(body)
    if match is None:
        return None
    is_on = match["on"] is not None
    return Channels(None, is_nvls_on=is_on)


def _read_setting(body: str) -> Setting | None:
    match = _SETTING.match(body) or _VERSION.match(body)
    if match is None:
        return None
    value = printable(match["value"][:_MAX_TEXT_CHARS])
    return Setting(match.groupdict().get("name"), value)


# The first that knows a line reads it.
_READERS_OF_LINES: tuple[Callable[[str], Fact | None], ...] = (
    _read_ring,
    _read_trees,
    _read_connection,
    _read_init,
    _read_channels,
    _read_nvls,
    _read_setting,
)


class Membership(Struct, eq=False):
    """A process's rank in a communicator, and what the process logged about the communicator."""

    process: Process
    # Position among the memberships of its process.
    order: int
    thread: int
    init: Init
    # Positions among the facts of the process: its initialization begins at `begin` and ends at
    # `ready`, and the communicator is gone from `end` on.
    begin: int
    ready: float = math.inf
    end: float = math.inf
    group: Group | None = None
    # The first fact of each key (`_key_of`).
    facts: dict[tuple[int, ...], Ring | Trees | Connected] = field(default_factory=dict)
    channels: list[Channels] = field(default_factory=list)


class Group(Struct, eq=False):
    """The memberships of one communicator."""

    name: str
    n_ranks: int
    members: list[Membership] = field(default_factory=list)
    # The first membership of each rank.
    by_rank: dict[int, Membership] = field(default_factory=dict)


# By name and number of ranks.
Groups: TypeAlias = dict[tuple[str, int], Group]
# The transport of each channel by source of knowledge: whether it is the receiver, and whether the
# connection is of a point-to-point call.
TransportsBySource: TypeAlias = dict[tuple[bool, bool], dict[int, str]]


def communicators(
    facts_of: Mapping[Process, Sequence[tuple[int, Fact]]],
) -> tuple[Communicator, ...]:
    """Put together the communicators that processes logged, in the order of their initialization.

    `facts_of` has, for each process, pairs of a thread and a fact, in the order of its log.
    """
    facts_of_sorted_processes = dict(sorted(facts_of.items()))
    groups: Groups = {}
    memberships: dict[Process, list[Membership]] = {}
    for process, facts in facts_of_sorted_processes.items():
        memberships[process] = _list_memberships(process, facts, groups)
    # This loop follows the other one, because facts are assigned by the GPUs of all ranks, and each
    # process logged only the GPUs of its own ranks.
    for process, facts in facts_of_sorted_processes.items():
        # The position of a fact in the log of its process stands in for a time.
        for position, (thread, fact) in enumerate(facts):
            if isinstance(fact, Ring | Trees | Connected | Channels):
                _assign_fact(memberships[process], position, thread, fact)
    groups_in_order = sorted(groups.values(), key=_order_of_first_member)
    return tuple(map(_communicator, groups_in_order))


def _order_of_first_member(group: Group) -> tuple[int, Process]:
    """Return the order and the process of the membership that comes first."""
    return min((member.order, member.process) for member in group.members)


def _list_memberships(
    process: Process, facts: Sequence[tuple[int, Fact]], groups: Groups
) -> list[Membership]:
    """List the memberships of a process in communicators, in the order of their initialization.

    `facts` are pairs of a thread and a fact. Each membership is also added to its group in
    `groups`.
    """
    memberships: list[Membership] = []
    for position, (thread, fact) in enumerate(facts):
        if not isinstance(fact, Init):
            continue
        # The membership in the communicator that is at this address in memory.
        existing = _latest_membership(memberships, fact.pointer)
        completes_init = fact.what == "Init COMPLETE"
        starts_or_completes_init = completes_init or fact.what == "Init START"
        if not starts_or_completes_init:
            # The communicator was destroyed or aborted. Another one may get its address.
            if existing:
                existing.end = position
        elif fact.rank >= fact.n_ranks:
            # A communicator has no such rank, so the line is damaged.
            continue
        elif completes_init and existing and existing.ready == math.inf:
            existing.ready = position
        else:
            # A new communicator. The line about the start of its initialization may be missing.
            order = len(memberships)
            membership = Membership(process, order, thread, init=fact, begin=position)
            if completes_init:
                membership.ready = position
            parent = _latest_membership(memberships, fact.parent)
            _join_group(membership, parent, groups)
            memberships.append(membership)
    return memberships


def _latest_membership(memberships: Sequence[Membership], pointer: str | None) -> Membership | None:
    """Return the last membership whose communicator has a pointer and is not gone; None for none.

    `pointer` is the address of the communicator in the memory of its process.
    """
    for member in reversed(memberships):
        # The log has no line about the end of the communicator so far.
        is_alive = member.end == math.inf
        if is_alive and member.init.pointer == pointer:
            return member
    return None


def _join_group(membership: Membership, parent: Membership | None, groups: Groups) -> None:
    """Add a membership to the group of its communicator, if the log identifies the communicator.

    A communicator has an id of its own, or is a split of a parent with a known group.
    """
    init = membership.init
    name = init.comm_id
    if name is None and init.split and parent and parent.group:
        name = f"{parent.group.name}/{init.split}"
    if name is None:
        return
    # Memberships with the same name and size are of one communicator.
    new_group = Group(name, init.n_ranks)
    group = groups.setdefault((name, init.n_ranks), new_group)
    group.members.append(membership)
    group.by_rank.setdefault(init.rank, membership)
    membership.group = group


def _assign_fact(
    memberships: Sequence[Membership], position: int, thread: int, fact: CommunicatorFact
) -> None:
    """Add a fact to the communicator that it is about, as far as the log tells.

    `thread` logged the fact at `position`. A communicator that the thread initializes at this
    position comes first. A fact that fits no communicator is dropped.
    """
    youngest_first = reversed(memberships)
    alive = [member for member in youngest_first if member.begin <= position < member.end]
    in_init = [member for member in alive if member.thread == thread and position < member.ready]
    if isinstance(fact, Channels):
        # This fact names no rank that could tell communicators apart.
        candidates = [*in_init, *alive]
        if candidates:
            candidates[0].channels.append(fact)
    elif isinstance(fact, Connected) or not in_init:
        # Communicators that lack the fact come before those that have it already.
        lacking = [member for member in alive if _key_of(fact) not in member.facts]
        _assign_to_fitting(fact, (*in_init, *lacking, *alive))
    else:
        # Rings and trees are logged during the initialization only. One that does not fit the
        # communicator in initialization was cut, so it fits no other communicator.
        _assign_to_fitting(fact, in_init)


def _assign_to_fitting(fact: Ring | Trees | Connected, candidates: Iterable[Membership]) -> None:
    """Add a fact to the first candidate that it fits.

    If this communicator has a fact with the same key already, it keeps the old one, and the new
    one is dropped.
    """
    for member in candidates:
        if _fits(member, fact):
            member.facts.setdefault(_key_of(fact), fact)
            return


def _key_of(fact: Ring | Trees | Connected) -> tuple[int, ...]:
    """Return what identifies a fact among the facts of one membership.

    Keys of connections have five elements, those of trees two, and those of rings one, so that no
    two of them are equal.
    """
    if isinstance(fact, Connected):
        edge = (fact.from_rank, fact.to_rank)
        return (fact.channel, fact.connection, *edge, fact.is_receive)
    if isinstance(fact, Trees):
        # One line has the trees of all channels, so -1 stands in for the channel.
        return (-1, fact.rank)
    return (fact.channel,)


def _fits(member: Membership, fact: Ring | Trees | Connected) -> bool:
    """Tell whether a fact may be about the communicator of a membership."""
    init = member.init
    if isinstance(fact, Ring):
        # A ring has each rank of the communicator once.
        return sorted(fact.ranks) == list(range(init.n_ranks))
    if isinstance(fact, Trees):
        parents = [parent for _, parent in fact.parents]
        # The root of a tree has the parent -1.
        are_valid = all(-1 <= parent < init.n_ranks for parent in parents)
        is_its_own_parent = fact.rank in parents
        return fact.rank == init.rank and are_valid and not is_its_own_parent
    # A receiver logs what it receives, and a sender what it sends.
    logging_rank = fact.to_rank if fact.is_receive else fact.from_rank
    connects_rank_to_itself = fact.from_rank == fact.to_rank
    if logging_rank != init.rank or connects_rank_to_itself:
        return False
    may_have_source_gpu = _may_have_gpu(member, fact.from_rank, fact.from_gpu)
    may_have_target_gpu = _may_have_gpu(member, fact.to_rank, fact.to_gpu)
    return may_have_source_gpu and may_have_target_gpu


def _may_have_gpu(member: Membership, rank: int, gpu: str | None) -> bool:
    """Tell whether a rank of a communicator may have the GPU with the label `gpu`.

    `member` is any member of the communicator. The label is the PCI address, NVML index or CUDA
    index of the GPU, depending on the release of NCCL. Without a label, or if the log does not
    have the GPU of the rank, the answer is yes.
    """
    if rank >= member.init.n_ranks:
        return False
    member_of_rank = member.group.by_rank if member.group else {}
    if not gpu or rank not in member_of_rank:
        return True
    init = member_of_rank[rank].init
    known_labels = {init.nvml_device, init.cuda_device, init.bus_id} - {None}
    label_texts = {str(label) for label in known_labels}
    return not label_texts or gpu in label_texts


def _communicator(group: Group) -> Communicator:
    """Sum up what all members of a communicator logged."""
    rings = _rings(group)
    edges = _edges(group)
    trees = _trees(group)
    members = [_comm_member(rank, member) for rank, member in sorted(group.by_rank.items())]
    channels: list[Channels] = []
    for member in group.members:
        channels += member.channels
    logged_numbers = [fact.n_channels for fact in channels if fact.n_channels]
    # Each channel has a ring. So the number of rings stands in for a number of channels that was
    # not logged.
    n_channels = max(logged_numbers, default=len(rings))
    is_nvls_on = _is_nvls_on(channels)
    return Communicator(
        comm_id=group.name,
        n_ranks=group.n_ranks,
        edges=edges or None,
        rings=rings or None,
        members=tuple(members),
        trees=trees or None,
        n_channels=n_channels or None,
        is_nvls_on=is_nvls_on,
    )


def _is_nvls_on(channels: Iterable[Channels]) -> bool | None:
    """Tell whether NVLink SHARP is on for any member; None if no member logged it."""
    states = {fact.is_nvls_on for fact in channels} - {None}
    return (True in states) if states else None


def _comm_member(rank: int, membership: Membership) -> CommMember:
    host, pid = membership.process
    init = membership.init
    return CommMember(
        rank=rank,
        host=host,
        pid=pid,
        cuda_device=init.cuda_device,
        nvml_device=init.nvml_device,
        bus_id=init.bus_id,
    )


def _logged(members: Iterable[Membership], kind: type[_FactT]) -> Iterator[_FactT]:
    """Yield the facts of one kind that some members logged."""
    for member in members:
        for fact in member.facts.values():
            if isinstance(fact, kind):
                yield fact


def _rings(group: Group) -> dict[int, tuple[int, ...]]:
    """Return the ranks of each channel's ring, as the lowest rank logged them."""
    members_by_rank = [group.by_rank[rank] for rank in sorted(group.by_rank)]
    rings: dict[int, tuple[int, ...]] = {}
    for ring in _logged(members_by_rank, Ring):
        rings.setdefault(ring.channel, ring.ranks)
    return dict(sorted(rings.items()))


def _trees(group: Group) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return the edges (rank, parent) of each channel's tree, sorted; a root adds no edge."""
    edges_by_channel: dict[int, set[tuple[int, int]]] = {}
    for trees in _logged(group.by_rank.values(), Trees):
        for channel, parent in trees.parents:
            edges = edges_by_channel.setdefault(channel, set())
            is_root = parent < 0
            if not is_root:
                edges.add((trees.rank, parent))
    channels = sorted(edges_by_channel)
    return {channel: tuple(sorted(edges_by_channel[channel])) for channel in channels}


def _edges(group: Group) -> tuple[Edge, ...]:
    """Sum up the connections from each rank to each other rank, sorted by ranks.

    Both ranks of a connection may have logged it. For each two ranks, only what the best source
    logged counts. A sender is a better source than a receiver. Of two senders, and of two
    receivers, one for collectives is better than one for point-to-point calls.
    """
    sources_by_edge: dict[tuple[int, int], TransportsBySource] = {}
    for connection in _logged(group.members, Connected):
        ranks = (connection.from_rank, connection.to_rank)
        transports_by_source = sources_by_edge.setdefault(ranks, {})
        # Connection 0 is that of collectives.
        is_point_to_point = connection.connection > 0
        source = (connection.is_receive, is_point_to_point)
        transport_of_channel = transports_by_source.setdefault(source, {})
        transport_of_channel.setdefault(connection.channel, connection.transport)
    edges = []
    for (from_rank, to_rank), transports_by_source in sorted(sources_by_edge.items()):
        # False sorts before true: senders before receivers, collectives before other calls.
        best_source = min(transports_by_source)
        transport_of_channel = transports_by_source[best_source]
        transports = sorted(set(transport_of_channel.values()))
        n_channels = len(transport_of_channel)
        edges.append(Edge(from_rank, to_rank, tuple(transports), n_channels))
    return tuple(edges)


def read_nccl_logs(
    paths: Iterable[_LogPath], unusable: dict[_LogPath, InputError] | None = None
) -> NcclLog:
    """Read the logs of a run, in any order; each may have lines of several ranks and programs.

    NCCL names the communicator only when it initializes or destroys one. Its other lines belong to
    the communicator that their thread initializes at that time. Since NCCL 2.22, connections are
    logged after the initialization. Then a line about a connection names two ranks and their GPUs.
    The connection belongs to the youngest communicator of the process that has these ranks on
    these GPUs, and lacks this connection.

    A file that cannot be read, or has no line of NCCL, is added to `unusable` with its error.
    Without `unusable`, the `InputError` is raised.
    """
    # The values of each variable. The key None has the versions of NCCL.
    settings: dict[str | None, set[str]] = {}
    # For each process, pairs of a thread and a fact.
    facts_of: dict[Process, list[tuple[int, Fact]]] = {}
    # A path that is named twice is read once.
    path_of_absolute = {Path(path).absolute(): path for path in paths}
    for path in path_of_absolute.values():
        try:
            lines = _read_log(path)
        except InputError as error:
            if unusable is None:
                raise
            unusable[path] = error
            continue
        for process, thread, fact in lines:
            if isinstance(fact, Setting):
                values = settings.setdefault(fact.name, set())
                values.add(fact.value)
            elif process and fact:
                facts = facts_of.setdefault(process, [])
                facts.append((thread, fact))
    versions = sorted(settings.pop(None, set()))
    # No name is None any more.
    named_settings = {name: values for name, values in settings.items() if name}
    return NcclLog(
        version=", ".join(versions) or None,
        communicators=communicators(facts_of),
        settings=recorded_settings(named_settings, Mask()),
    )


def _read_log(path: AnyPath) -> list[LogLine]:
    """Return the complete lines that NCCL wrote; `InputError` if it wrote none at all."""
    n_nccl_lines = 0
    complete_lines = []
    for text, is_complete in printed_lines(path):
        line = parse_line(text)
        if line is None:
            continue
        n_nccl_lines += 1
        if is_complete:
            complete_lines.append(line)
    if not n_nccl_lines:
        raise InputError(decoded(str(path)), "contains no line from NCCL", fix=_FIX)
    return complete_lines


# What ``nvidia-smi topo -m`` prints: a matrix of paths, affinity columns, legends.

_TOPOLOGY_FIX = "nvidia-smi topo -m > topo.txt, on the host of the run"
_MAX_TOPOLOGY_LINES = 10_000
# Rows of NICs are labeled NIC0 or, by older drivers, with the name of the device.
_GPU = re.compile(r"GPU(\d{1,6})$")
_DEVICE = re.compile(r"(?:GPU|NIC)\d{1,6}$|[a-z][a-z0-9]*_[a-z0-9_]*\d$")
_PATH = re.compile(r"NV[1-9]\d?|PIX|PXB|PHB|NODE|SYS|SOC")
_CELL = re.compile(rf"(?:{_PATH.pattern}|X|N/A|PSB)$")


def read_topology(path: AnyPath) -> Topology:
    """Read the first matrix in a file; `InputError` if the file has none, or one without paths.

    If a row of the matrix was cut, its last paths are unknown.
    """
    printed = printed_lines(path, max_lines=_MAX_TOPOLOGY_LINES)
    lines = iter([text for text, _ in printed])
    headers = filter(None, map(_header_devices, lines))
    # This takes the lines up to the first header, so that `lines` goes on with the rows.
    columns = next(headers, None)
    if columns is None:
        problem = "contains no matrix of nvidia-smi topo -m"
        raise InputError(decoded(str(path)), problem, fix=_TOPOLOGY_FIX)
    rows = _read_rows(lines, columns)
    paths: dict[tuple[str, str], str] = {}
    for row, links in rows.items():
        paths |= {(row, column): link for column, link in links.items()}
    # A single device has no path to another.
    lacks_paths = not paths and len(columns) > 1
    if not rows or lacks_paths:
        problem = (
            "contains a matrix without NV#, PIX, PXB, PHB, NODE or SYS, as nvidia-smi topo -m "
            "prints"
        )
        raise InputError(decoded(str(path)), problem, fix=_TOPOLOGY_FIX)
    gpus = _gpu_indices(columns)
    return Topology(gpus, _with_mirrored(paths))


def _with_mirrored(paths: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """Return the path of each pair of devices in both directions, sorted.

    The matrix is symmetric, so a path that was cut off is taken from the row of the other device.
    A path that was printed stays.
    """
    mirrored_paths = {(column, row): link for (row, column), link in paths.items()}
    # In a union of dicts, the right one prevails.
    all_paths = mirrored_paths | dict(paths)
    return dict(sorted(all_paths.items()))


def _gpu_indices(devices: Iterable[str]) -> tuple[int, ...]:
    matches = map(_GPU.match, devices)
    indices = {int(match[1]) for match in matches if match}
    return tuple(sorted(indices))


def _header_devices(line: str) -> list[str]:
    """Return the devices that a header line names; none if the line is not a header.

    The lines are those of ``nvidia-smi topo -m``. A header begins with distinct devices, and the
    first of them is a GPU. After the devices, the header ends or goes on with ``CPU`` or ``NUMA``.
    A row of the matrix also begins with a device, but goes on with a path or an X.
    """
    words = line.split()
    devices = list(itertools.takewhile(_DEVICE.match, words))
    n_devices = len(devices)
    if not devices or not _GPU.match(devices[0]):
        return []
    if len(set(devices)) < n_devices:
        return []
    word_after_devices = words[n_devices] if n_devices < len(words) else None
    return devices if word_after_devices in {None, "CPU", "NUMA"} else []


def _read_rows(lines: Iterable[str], columns: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return, for each row of a matrix, its paths by column.

    The matrix ends at the legend or at the next header. Of rows with one name, the first counts.
    """
    rows: dict[str, dict[str, str]] = {}
    for line in lines:
        words = line.split()
        if not words:
            continue
        name, *cells = words
        is_legend = name.lower().startswith("legend")
        if is_legend or (cells and _header_devices(line)):
            break
        if cells and name not in rows and _DEVICE.match(name):
            rows[name] = _paths_of_row(name, columns, cells)
    return rows


def _paths_of_row(name: str, columns: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """Return the path from the device of a row to each other device whose path is printed.

    `cells` are the words after the name of the row. The columns after the matrix are left out.
    """
    matrix_cells = itertools.takewhile(_CELL.match, cells)
    path_to_device: dict[str, str] = {}
    # A row that was cut has fewer cells than there are columns.
    for column, cell in zip(columns, matrix_cells, strict=False):
        if column != name and _PATH.fullmatch(cell):
            # Drivers before 387 print SOC in place of SYS.
            path_to_device[column] = "SYS" if cell == "SOC" else cell
    return path_to_device
