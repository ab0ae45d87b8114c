"""What a launcher asks for: one job on this node; the files that belong to it, and room for them."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.errors import OptionError, OutputError

if TYPE_CHECKING:
    from collections.abc import Sequence


_REPORTS = (".nsys-rep", ".sqlite", ".qdstrm")
_FACTS = (".capture.json", ".topo.txt")
_OF_NODE = re.compile(r"\.node([0-9]{1,9})(?=\.)")
_LOG = re.compile(r"\.nccl\..+\.log", re.DOTALL)
_NUMBER = re.compile(r"_(node)?([0-9]{1,9})")
# More ranks than any job has.
_MOST_RANKS = 1 << 20
_LINGER_S = 120.0
_MOST_NAMED = 3


@dataclass(frozen=True)
class Job:
    """One job, as far as this node runs it."""

    name: Path  # that all its files begin with
    command: tuple[str, ...]  # torchrun and nsys included
    program: str  # what to call the training program in messages
    n_local: int  # ranks on each node
    node_rank: int
    n_nodes: int
    chosen: frozenset[int] | None  # ranks to capture, of all nodes; None for all of them
    rendezvous: str  # static where a node's ranks follow from its number; any other deals them out
    is_node_wide: bool  # one report for all ranks of a node
    nsys: str | None  # None to run without a capture
    trace: tuple[str, ...]
    capture_range: str
    # limits for the whole job, for nsys once the program has ended, and for the program once it has said that it is
    # over; 0 for none, but nsys always has one
    timeout_s: float
    exit_timeout_s: float
    linger_s: float
    # whether the last of these holds for any program once its reports are whole: somebody has asked for it
    ends_any: bool
    is_exported: bool
    is_forced: bool

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.n_nodes * self.n_local

    @property
    def local_ranks(self) -> range | None:
        """The ranks of this node; None while nobody knows."""
        if self.rendezvous != "static":
            return None
        return range(self.node_rank * self.n_local, (self.node_rank + 1) * self.n_local)

    def expected(self, started: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks of this node that are to be captured, given those that have started."""
        if self.nsys is None:
            return ()
        ranks = self.local_ranks or started
        return tuple(one for one in ranks if self.chosen is None or one in self.chosen)

    @property
    def node_report(self) -> Path:
        """The report of a node-wide capture, without suffix."""
        return self.beside(f"_node{self.node_rank}")

    def beside(self, ending: str) -> Path:
        """Return a file of this job."""
        return self.name.with_name(self.name.name + ending)


def earlier_files(job: Job) -> list[Path]:
    """Return what an earlier capture of the same name has left.

    Of a job on several nodes it is what this node would write; node 0 answers for ranks and nodes that this job has
    not, too. Where nobody knows yet which ranks a node will have, each answers for all: no rank of this job has a
    report before all nodes have come together.
    """
    files = (path for path in job.name.parent.iterdir() if path.name.startswith(job.name.name))
    return sorted(path for path in files if _belongs(job, _ending(job, path)))


def _ending(job: Job, path: Path) -> str:
    return path.name[len(job.name.name) :]


def _belongs(job: Job, ending: str) -> bool:
    """Tell by what follows the job's name."""
    stem, dot, suffix = ending.partition(".")
    if f"{dot}{suffix}" in _REPORTS and (found := _NUMBER.fullmatch(stem)):
        number = int(found[2])
        return _is_nodes(job, number) if found[1] else _is_ranks(job, number)
    if _LOG.fullmatch(ending):
        return job.n_nodes == 1
    if ending in _FACTS:
        return job.node_rank == 0  # of one node
    node = _OF_NODE.match(ending)
    return bool(node and ending[node.end() :] in _FACTS and _is_nodes(job, int(node[1])))


def _is_nodes(job: Job, node: int) -> bool:
    if job.n_nodes == 1:
        return True
    return node == job.node_rank or (job.node_rank == 0 and node >= job.n_nodes)


def _is_ranks(job: Job, rank: int) -> bool:
    if job.n_nodes == 1 or job.local_ranks is None:
        return True
    return rank in job.local_ranks or (job.node_rank == 0 and rank >= job.world_size)


def parse_job(words: Sequence[str]) -> Job:
    """Read the words that a launcher passes; what follows ``--`` is the command."""
    parser = argparse.ArgumentParser(prog="nsyspipe.capture.job")
    parser.add_argument("--name", type=lambda name: Path(name).absolute(), required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--nproc", dest="n_local", type=int, default=1)
    parser.add_argument("--nodes", dest="n_nodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--ranks", dest="chosen", type=parse_ranks)
    parser.add_argument("--rendezvous", default="static")
    parser.add_argument("--node-wide", dest="is_node_wide", action="store_true")
    parser.add_argument("--nsys")
    parser.add_argument("--trace", type=_values, default=())
    parser.add_argument("--capture-range", default="none")
    parser.add_argument("--timeout", dest="timeout_s", type=float, default=0)
    parser.add_argument("--exit-timeout", dest="exit_timeout_s", type=float, default=0)
    parser.add_argument("--linger", dest="linger_s", type=float)
    parser.add_argument("--no-export", dest="is_exported", action="store_false")
    parser.add_argument("--force", dest="is_forced", action="store_true")
    at = list(words).index("--")
    given = vars(parser.parse_args(words[:at]))
    linger_s = given.pop("linger_s")
    return Job(
        **given,
        command=tuple(words[at + 1 :]),
        linger_s=_LINGER_S if linger_s is None else linger_s,
        ends_any=linger_s is not None,
    )


def _values(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def parse_ranks(text: str) -> frozenset[int]:
    """Read ``0,7,63`` or ``0-3,7``; OptionError if it is neither."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            ranks = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise _no_ranks(text, f"'{part}' is neither a rank nor a range of ranks") from None
        if not ranks:
            raise _no_ranks(text, f"the range {part} ends before it begins")
        if ranks[-1] >= _MOST_RANKS:
            raise _no_ranks(text, f"no job has a rank {ranks[-1]}")
        found |= set(ranks)
    return frozenset(found)


def _no_ranks(text: str, problem: str) -> OptionError:
    return OptionError(f"--ranks {text}", problem, fix="--ranks 0,7,63 or --ranks 0-3")


def check_ranks(chosen: frozenset[int] | None, world_size: int) -> None:
    """Refuse (OptionError) ranks that a job does not have: nothing would be captured, and nobody would know why."""
    unknown = sorted(one for one in chosen or () if one >= world_size)
    if unknown:
        raise OptionError(
            "--ranks",
            f"there is no rank {unknown[0]}: this job's are 0 to {world_size - 1}",
            fix=f"--ranks 0,{world_size - 1}" if world_size > 1 else "leave it out",
        )


class Room(contextlib.AbstractContextManager["Room"]):
    """Room for a job's files while it runs: an earlier capture is refused (OutputError), or with --force set aside.

    All of it is, so that none of its ranks is taken for this job's: into a hidden directory beside its place, from which
    nothing need be copied. It is removed at the end if the job `has_begun`, and else put back. Logs of NCCL are no capture:
    a job without a report leaves them too.
    """

    def __init__(self, job: Job) -> None:
        self.has_begun = False
        self._job = job
        self._aside = job.name.with_name(f".{job.name.name}.earlier-{os.getpid()}")

    def __enter__(self) -> Room:
        if self._job.nsys is not None:
            self._make()
        return self

    def __exit__(self, *_error: object) -> None:
        self._clear()

    def _make(self) -> None:
        job = self._job
        try:
            job.name.parent.mkdir(parents=True, exist_ok=True)
            there = earlier_files(job)
            if not job.is_forced:
                _refuse([path for path in there if not _LOG.fullmatch(_ending(job, path))], job)
                return
            for path in there:
                if path.is_dir() and not path.is_symlink():
                    raise IsADirectoryError(errno.EISDIR, f"{path.name} is a directory")
            if there:
                self._aside.mkdir()
            for path in there:
                with contextlib.suppress(FileNotFoundError):  # another node was first
                    path.rename(self._aside / path.name)
        except OSError as error:
            self._clear()
            raise OutputError(
                str(job.name), f"reports cannot be written there: {error.strerror}", fix="-o NAME"
            ) from error

    def _clear(self) -> None:
        """Remove the earlier capture, or put back what has not been replaced."""
        if not self._aside.is_dir():
            return
        with contextlib.suppress(OSError):  # what cannot be put back stays where it is
            for path in sorted(self._aside.iterdir()):
                place = self._job.name.with_name(path.name)
                if not self.has_begun and not place.exists():
                    path.rename(place)
            shutil.rmtree(self._aside)


def _refuse(there: Sequence[Path], job: Job) -> None:
    if there:
        more = f", … {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
        raise OutputError(
            str(job.name),
            "an earlier capture of this name is there",
            found=", ".join(path.name for path in there[:_MOST_NAMED]) + more,
            fix="-o ANOTHER_NAME, or --force to replace it",
        )
