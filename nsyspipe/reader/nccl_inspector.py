"""Reads the files of NCCL Inspector, a profiler plugin of NCCL.

NCCL's repository documents the format (``plugins/profiler/inspector``). A file has a JSON object in
each line, for a call of NCCL or for what was lost. Versions v4.0 to v4.2 are read, and algorithms
are in v4.2 only. No file of a real run was available.

Whoever sent the reports may have sent these files too. Every field is checked by type and range.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta, Struct

from nsyspipe.errors import InputError
from nsyspipe.model.inspected import (
    DIRECTIONS,
    InspectedCalls,
    InspectedMember,
    InspectedProcess,
    PeerSum,
    ProcessPeers,
    Tuning,
)
from nsyspipe.model.names import COLLECTIVES, bare_name, decoded
from nsyspipe.model.table import Int64

_FIX = "the files that NCCL Inspector writes as JSON (v4.0 to v4.2)"
_WITHOUT_LOSSES = "v4.0"
_VERSIONS = (_WITHOUT_LOSSES, "v4.1", "v4.2")
# A verbose line has two entries for each channel, of which NCCL has at most 64.
MAX_LINE_BYTES = 1 << 16
_MAX_NUMBER = 2**62
_MAX_NAME_CHARACTERS = 255
_MAX_COMMUNICATORS = 10_000
_MAX_TUNINGS = 100
# Of one process, each with its direction.
MAX_PEERS = 20_000
# ``Unknown`` and ``unknown`` are no names.
_TUNING_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
_PLACE_OF_COLLECTIVE = {bare_name(name): place for place, name in enumerate(COLLECTIVES)}

_Count: TypeAlias = Annotated[int, Meta(ge=0, le=_MAX_NUMBER)]
_Name: TypeAlias = Annotated[str, Meta(max_length=_MAX_NAME_CHARACTERS)]
_Hash: TypeAlias = Annotated[str, Meta(pattern="^0x[0-9a-f]{1,16}$")]


class _Communicator(Struct):
    id: _Hash
    rank: _Count
    n_ranks: _Count


class _Origin(Struct):
    inspector_output_format_version: _Name
    hostname: _Name
    pid: _Count


class _Collective(Struct):
    coll: _Name
    coll_sn: _Count
    coll_msg_size_bytes: _Count
    coll_algo: _Name | None = None
    coll_proto: _Name | None = None


class _PointToPoint(Struct):
    p2p: _Name
    p2p_peer: _Count
    p2p_msg_size_bytes: _Count


class _Losses(Struct):
    coll_dropped_total: _Count = 0
    p2p_dropped_total: _Count = 0


class _Line(Struct):
    """One line. A line has exactly one of the last three fields."""

    header: _Communicator
    metadata: _Origin
    coll_perf: _Collective | None = None
    p2p_perf: _PointToPoint | None = None
    dump_stats: _Losses | None = None


_DECODER = msgspec.json.Decoder(_Line)


class _Peer(NamedTuple):
    """Whom a rank of a communicator sends to, or receives from."""

    comm_id: str
    rank: int
    peer: int
    direction: str


class _Peers:
    """The communicators, sends and receives of the lines of a file that were read so far."""

    def __init__(self) -> None:
        self.members: set[InspectedMember] = set()
        self.incomplete: set[str] = set()
        self.n_calls: Counter[_Peer] = Counter()
        self.n_bytes: Counter[_Peer] = Counter()
        self.total_bytes = 0

    @property
    def are_too_many(self) -> bool:
        """Whether the file has more than any process can have."""
        n_entries = max(len(self.members), len(self.n_calls))
        return n_entries > MAX_PEERS or self.total_bytes > _MAX_NUMBER

    def add(self, record: _Line) -> None:
        """Add what a line says of the sends and receives of its communicator."""
        comm = record.header
        self.members.add(InspectedMember(comm.id, comm.rank, comm.n_ranks))
        losses = record.dump_stats
        has_lost_calls = losses is not None and losses.p2p_dropped_total > 0
        # This version does not say whether calls were lost.
        may_have_lost_calls = record.metadata.inspector_output_format_version == _WITHOUT_LOSSES
        if has_lost_calls or may_have_lost_calls:
            self.incomplete.add(comm.id)
        if record.p2p_perf is not None:
            self._add_call(comm, record.p2p_perf)

    def _add_call(self, comm: _Communicator, call: _PointToPoint) -> None:
        """Add a call, unless it is neither a send nor a receive."""
        direction = bare_name(call.p2p)
        if direction not in DIRECTIONS:
            return
        peer = _Peer(comm.id, comm.rank, call.p2p_peer, direction)
        self.n_calls[peer] += 1
        self.n_bytes[peer] += call.p2p_msg_size_bytes
        self.total_bytes += call.p2p_msg_size_bytes

    def of_process(self, process: InspectedProcess) -> ProcessPeers:
        """Return all members and peers of a process."""
        sums = [
            PeerSum(*peer, n_calls=n_calls, n_bytes=self.n_bytes[peer])
            for peer, n_calls in self.n_calls.items()
        ]
        members = frozenset(self.members)
        return ProcessPeers(process, members, tuple(sums), frozenset(self.incomplete))


class _Sizes(NamedTuple):
    """How much was read so far."""

    n_calls: int
    n_comms: int
    n_tunings: int
    n_incomplete: int


class _Columns:
    """The calls of the files that were read so far, in the columns of `InspectedCalls`."""

    def __init__(self) -> None:
        # The position of each communicator and of each tuning, in the order in which they appear.
        self.comms: dict[str, int] = {}
        self.tunings: dict[Tuning, int] = {}
        # A value for each call. `comm` and `tuning` are such positions.
        self.comm = array("q")
        self.collective = array("q")
        self.number = array("q")
        self.call_bytes = array("q")
        self.tuning = array("q")
        # The communicators some of whose calls are missing. A dict keeps their order, which
        # `leave_out` needs.
        self.incomplete: dict[str, None] = {}
        self.processes: dict[InspectedProcess, ProcessPeers] = {}

    def add(self, comm_id: str, call: _Collective) -> None:
        """Add a call, if nsyspipe knows its collective.

        Communicators and tunings are numbered in the order in which they appear.
        """
        collective = _PLACE_OF_COLLECTIVE.get(bare_name(call.coll))
        if collective is None:
            return
        comm = self.comms.setdefault(comm_id, len(self.comms))
        tuning = Tuning(_tuning_name(call.coll_algo), _tuning_name(call.coll_proto))
        tuning_number = self.tunings.setdefault(tuning, len(self.tunings))
        self.comm.append(comm)
        self.collective.append(collective)
        self.number.append(call.coll_sn)
        self.call_bytes.append(call.coll_msg_size_bytes)
        self.tuning.append(tuning_number)

    @property
    def sizes(self) -> _Sizes:
        """How much was read so far."""
        n_incomplete = len(self.incomplete)
        return _Sizes(len(self.comm), len(self.comms), len(self.tunings), n_incomplete)

    def leave_out(self, sizes_before: _Sizes) -> None:
        """Remove all entries that were added since the columns had the sizes `sizes_before`.

        A bad file then does not count towards the limits of communicators and tunings.
        """
        for column in (self.comm, self.collective, self.number, self.call_bytes, self.tuning):
            del column[sizes_before.n_calls :]
        _shorten(self.comms, sizes_before.n_comms)
        _shorten(self.tunings, sizes_before.n_tunings)
        _shorten(self.incomplete, sizes_before.n_incomplete)

    def calls(self) -> InspectedCalls:
        """Return all calls."""
        comm = _as_numbers(self.comm)
        collective = _as_numbers(self.collective)
        number = _as_numbers(self.number)
        call_bytes = _as_numbers(self.call_bytes)
        tuning = _as_numbers(self.tuning)
        return InspectedCalls(
            comm_ids=tuple(self.comms),
            tunings=tuple(self.tunings),
            comm=comm,
            collective=collective,
            number=number,
            call_bytes=call_bytes,
            tuning=tuning,
            incomplete=frozenset(self.incomplete),
            processes=tuple(self.processes.values()),
        )


def _shorten(entries: dict[Any, Any], n_kept: int) -> None:
    """Remove the last entries of a dict, so that the first `n_kept` stay."""
    while len(entries) > n_kept:
        entries.popitem()


def _as_numbers(values: array[int]) -> Int64:
    return np.array(values, np.int64)


def _tuning_name(name: str | None) -> str | None:
    """Return the name of an algorithm or protocol, None if NCCL does not name it."""
    if name is None or not _TUNING_NAME.fullmatch(name):
        return None
    return name


def read_inspected_calls(
    paths: Iterable[tuple[Path, InspectedProcess]], unusable: dict[Path, InputError]
) -> InspectedCalls:
    """Read files of NCCL Inspector, each with the process that wrote it.

    Files that cannot be used are added to `unusable`, with their errors. What was read of such a
    file before its error is taken back.
    """
    columns = _Columns()
    for path, process in paths:
        sizes_before = columns.sizes
        try:
            _read_file(path, process, columns)
        except InputError as error:
            columns.leave_out(sizes_before)
            unusable[path] = error
    return columns.calls()


def _read_file(path: Path, process: InspectedProcess, columns: _Columns) -> None:
    """Add the calls of a file; `InputError` if a line is not of this format or process.

    If the last line is cut off, the calls of all communicators of the file are incomplete.
    """
    # Two files of one process would count each send twice.
    if process in columns.processes:
        raise InputError(decoded(str(path)), "another file of the same process is used")
    peers = _Peers()
    is_last_complete = False
    for number, line in enumerate(_lines(path), start=1):
        # Only the last line can be without an end.
        is_last_complete = line.endswith(b"\n")
        if is_last_complete and line.strip():
            record = _read_line(path, process, columns, number=number, line=line)
            peers.add(record)
            if peers.are_too_many:
                raise _bad_line(path, number, "is beyond the limit of peers or bytes")
    if not is_last_complete:
        # The process was killed, and may have made more calls than its file has. Or the file is
        # empty, and the error follows.
        comm_ids = {member.comm_id for member in peers.members}
        columns.incomplete |= dict.fromkeys(comm_ids)
        peers.incomplete |= comm_ids
    if not peers.members:
        raise InputError(decoded(str(path)), "contains no record of NCCL Inspector", fix=_FIX)
    columns.processes[process] = peers.of_process(process)


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their ends.

    Raises `InputError` for a line that is too long, or for a file that cannot be read.
    """
    try:
        with path.open("rb") as file:
            line = file.readline(MAX_LINE_BYTES)
            while line:
                is_cut = len(line) == MAX_LINE_BYTES and not line.endswith(b"\n")
                if is_cut:
                    raise InputError(decoded(str(path)), "contains a line that is too long")
                yield line
                line = file.readline(MAX_LINE_BYTES)
    except OSError as error:
        raise InputError(decoded(str(path)), error.strerror or "unreadable") from error


def _read_line(
    path: Path, process: InspectedProcess, columns: _Columns, *, number: int, line: bytes
) -> _Line:
    """Decode a line, and add its collective to `columns`; `InputError` if the line is impossible.

    A line without a collective adds nothing. A line about lost collectives makes its communicator
    incomplete.
    """
    try:
        record = _DECODER.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _bad_line(path, number, "is not of the known format") from error
    why = _why_impossible(record, process, columns)
    if why:
        raise _bad_line(path, number, why)
    comm_id = record.header.id
    if record.coll_perf is not None:
        columns.add(comm_id, record.coll_perf)
    if record.dump_stats is not None and record.dump_stats.coll_dropped_total:
        columns.incomplete.setdefault(comm_id)
    return record


def _why_impossible(record: _Line, process: InspectedProcess, columns: _Columns) -> str | None:
    """Return why a line cannot be right, None if it can.

    A line must be of a known version, of the process, and of one kind, and its ranks must be ranks
    of its communicator. `columns` has the calls of all lines before, which have a limit.
    """
    origin = record.metadata
    comm = record.header
    version = origin.inspector_output_format_version
    if version not in _VERSIONS:
        return "is of a version that is not known"
    if origin.pid != process.pid or origin.hostname != process.host:
        return "is of another process than the file name"
    possible_kinds = (record.coll_perf, record.p2p_perf, record.dump_stats)
    kinds = [kind for kind in possible_kinds if kind is not None]
    if len(kinds) != 1:
        return "is not of exactly one kind"
    if comm.rank >= comm.n_ranks:
        return "has a rank outside of its communicator"
    if record.p2p_perf is not None and record.p2p_perf.p2p_peer >= comm.n_ranks:
        return "has a peer outside of its communicator"
    is_crowded = len(columns.comms) > _MAX_COMMUNICATORS or len(columns.tunings) > _MAX_TUNINGS
    return "is beyond the limit of communicators or algorithms" if is_crowded else None


def _bad_line(path: Path, number: int, why: str) -> InputError:
    return InputError(decoded(str(path)), f"line {number} {why}", fix=_FIX)
