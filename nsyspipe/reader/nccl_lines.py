"""The lines of NCCL logs as facts; what is no NCCL line, or is mixed with another, is passed over.

The forms are those of NCCL's ``INFO`` calls (init.cc, graph/rings.cc, transport/{p2p,shm,net,nvls}.cc)
from 2.10 on.
"""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from nsyspipe.errors import InputError
from nsyspipe.model.text import decoded, printable
from nsyspipe.nsys.files import readable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_LONGEST_TEXT = 200
# NCCL writes at most 1024 characters and a line end; a progress bar may stand before them.
_LONGEST_LINE = 4096
# Numbers are short, so that none overflows; launchers put words of their own before the host.
_HEADER = re.compile(
    r"(?P<host>[^\s:\[\]<>()]{1,255}):(?P<pid>\d{1,10}):(?P<thread>\d{1,10}) \[-?\d{1,9}\]"
    r"(?: \S{1,200}){0,3}? NCCL [A-Z]{2,8} "
)
_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)+[\w.+-]{0,40})\s*$")
_SETTING = re.compile(r"(NCCL_[A-Z0-9_]{1,80}) set by environment to (.*?)\.?\s*$")
_INIT = re.compile(
    r"\bcomm (?P<pointer>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,9}) nranks (?P<n_ranks>\d{1,9})"
    r" cudaDev (?P<cuda>-?\d{1,9})(?: nvmlDev (?P<nvml>-?\d{1,9}))?(?: busId (?P<bus>[0-9a-f]{1,16}))?"
    r"(?P<rest>.*?)\s?- (?P<what>Init START|Init COMPLETE|Destroy COMPLETE|Abort COMPLETE)\s*$"
)
_COMM_ID = re.compile(r"\bcommId (0x[0-9a-f]{1,16})\b")
_PARENT = re.compile(r"\bparent (0x[0-9a-f]{1,16})\b")
# Later releases count children where earlier ones count splits.
_SPLIT = re.compile(r"\b(?:splitCount|childCount) (\d{1,9}) color (-?\d{1,10})\b")
_RING = re.compile(r"Channel (\d{1,6})/\d{1,6} :((?: +\d{1,9})+)\s*$")
_CONNECTED = re.compile(
    r"(?:Channel|Ring) (?P<channel>\d{1,6})(?:/(?P<connection>\d{1,6}))? :"
    r" (?P<from>\d{1,9})(?:\[(?P<from_gpu>[0-9a-f]{1,16})\])?"
    r" -> (?P<to>\d{1,9})(?:\[(?P<to_gpu>[0-9a-f]{1,16})\])?"
    r"(?: \[(?P<side>send|receive)\])? via (?P<transport>\S.*?)"
    r"(?: comm 0x.*)?\s*$"  # RCCL says which communicator
)
_COUNTS = re.compile(r"(\d{1,6}) coll channels\b")
_NVLS_COUNT = re.compile(r"\b(\d{1,6}) nvls channels\b")
_NVLS_ON = re.compile(r"NVLS comm 0x|Connected NVLS tree")
_NVLS_OFF = re.compile(r"NVLS multicast support is not available")


class Init(NamedTuple):
    """Begin or end of a communicator's initialisation; `split` is its count and colour under `parent`."""

    rank: int
    n_ranks: int
    pointer: str = ""
    is_complete: bool = False
    cuda_device: int | None = None
    nvml_device: int | None = None
    bus_id: str | None = None
    comm_id: str | None = None
    parent: str | None = None
    split: str | None = None


class Gone(NamedTuple):
    """A communicator was destroyed: its pointer may be given to another."""

    pointer: str


class Ring(NamedTuple):
    """The ranks of a channel's ring, in order."""

    channel: int
    ranks: tuple[int, ...]


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


class Counts(NamedTuple):
    """Channels of collectives and of NVLink SHARP; older releases do not name the latter."""

    n_channels: int
    n_nvls_channels: int | None


class Nvls(NamedTuple):
    """NVLink SHARP is set up, or is not available."""

    is_on: bool


class Setting(NamedTuple):
    """A variable that NCCL took from the environment."""

    name: str
    value: str


class Version(NamedTuple):
    """NCCL's version."""

    text: str


Fact: TypeAlias = Init | Gone | Ring | Connected | Counts | Nvls | Setting | Version


class Line(NamedTuple):
    """A line of NCCL's: host and process, thread, and what it says, where that is of interest."""

    process: tuple[str, int] | None
    thread: int
    fact: Fact | None


def parse_line(text: str) -> Line | None:
    """Read one line; None when it is not NCCL's.

    Two lines that were written into one are NCCL's without a fact: neither can be trusted.
    """
    if "NCCL" not in text:
        return None
    text = text[-_LONGEST_LINE:]
    header = _HEADER.search(text)
    if header is None:
        # NCCL_DEBUG=VERSION prints it bare.
        bare = _VERSION.match(text.strip())
        return Line(None, 0, Version(bare[1])) if bare else None
    process = printable(header["host"]), int(header["pid"])
    if _HEADER.search(text, header.end()):
        return Line(None, 0, None)
    return Line(process, int(header["thread"]), _fact(text[header.end() :]))


def _fact(body: str) -> Fact | None:
    if body.startswith(("Channel ", "Ring ")):
        return _ring_or_connected(body)
    if match := _INIT.search(body):
        return _init(match)
    if match := _COUNTS.match(body):
        nvls = _NVLS_COUNT.search(body)
        return Counts(int(match[1]), int(nvls[1]) if nvls else None)
    if _NVLS_ON.match(body) or _NVLS_OFF.match(body):
        return Nvls(is_on=bool(_NVLS_ON.match(body)))
    return _of_process(body)


def _of_process(body: str) -> Setting | Version | None:
    if match := _SETTING.match(body):
        return Setting(match[1], printable(match[2][:_LONGEST_TEXT]))
    match = _VERSION.match(body)
    return Version(match[1]) if match else None


def _ring_or_connected(body: str) -> Ring | Connected | None:
    if match := _RING.match(body):
        return Ring(int(match[1]), tuple(int(rank) for rank in match[2].split()))
    match = _CONNECTED.match(body)
    if match is None:
        return None
    return Connected(
        int(match["channel"]),
        int(match["connection"] or 0),
        int(match["from"]),
        int(match["to"]),
        match["from_gpu"],
        match["to_gpu"],
        match["side"] == "receive",
        printable(match["transport"][:_LONGEST_TEXT]),
    )


def _init(match: re.Match[str]) -> Init | Gone:
    if not match["what"].startswith("Init"):
        return Gone(match["pointer"])
    comm_id, parent, split = (form.search(match["rest"]) for form in (_COMM_ID, _PARENT, _SPLIT))
    return Init(
        rank=int(match["rank"]),
        n_ranks=int(match["n_ranks"]),
        pointer=match["pointer"],
        is_complete=match["what"] == "Init COMPLETE",
        cuda_device=_index(match["cuda"]),
        nvml_device=_index(match["nvml"]),
        bus_id=match["bus"],
        comm_id=comm_id[1] if comm_id else None,
        parent=parent[1] if parent else None,
        split=f"{split[1]}.{split[2]}" if split else None,
    )


def _index(text: str | None) -> int | None:
    return int(text) if text and not text.startswith("-") else None


# Read what a program printed: any bytes at all, with escape codes, cut at any place.


_LONGEST_LINE_BYTES = 65_536
# Colours and cursor moves, window titles, and two-character sequences, in this order.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[@-Z\\^_])")


class PrintedLine(NamedTuple):
    """A line without escape codes; one that is not whole has lost its end, or its begin."""

    text: str
    is_whole: bool


def printed_lines(path: Path, *, most: int | None = None) -> Iterator[PrintedLine]:
    """Yield the first lines of a text file, one after the other; bytes that are not UTF-8 are replaced.

    `InputError` if the file is missing, not readable or no ordinary file.
    """
    with readable(path):
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(decoded(str(path)), "no ordinary file, where a text was needed")
        with path.open("rb") as file:
            was_whole, count = True, 0
            while (most is None or count < most) and (line := file.readline(_LONGEST_LINE_BYTES)):
                count += 1
                is_whole = line.endswith(b"\n")
                text = _ESCAPES.sub("", line.decode("utf-8", "replace").rstrip("\r\n"))
                yield PrintedLine(text, is_whole and was_whole)
                was_whole = is_whole
