"""What a launcher asks for: one job on this node, and the files that belong to it."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Job", "earlier_files", "parse_job", "parse_ranks"]

_REPORTS = (".nsys-rep", ".sqlite", ".qdstrm")
_FACTS = (".capture.json", ".topo.txt")
_NODE = re.compile(r"\.node[0-9]+(?=\.)")
# More ranks than any job has.
_MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Job:
    """One job, as far as this node runs it.

    Attributes
    ----------
    name
        Path that all its files begin with.
    command
        What runs it, torchrun and nsys included.
    program
        What to call the training program in messages.
    n_local
        Ranks on each node.
    chosen
        The ranks to capture, of all nodes; None for all of them.
    are_ranks_known
        Whether this node's ranks follow from its number; a dynamic rendezvous deals them out.
    is_node_wide
        One report for all ranks of a node.
    nsys
        The program; None to run without a capture.
    timeout_s, exit_timeout_s, linger_s
        Limits for the whole job, for nsys once the program has ended, and for the program once its training loop is
        over; 0 for none, but nsys always has one.
    """

    name: Path
    command: tuple[str, ...]
    program: str
    n_local: int
    node_rank: int
    n_nodes: int
    chosen: frozenset[int] | None
    are_ranks_known: bool
    is_node_wide: bool
    nsys: str | None
    trace: tuple[str, ...]
    capture_range: str
    timeout_s: float
    exit_timeout_s: float
    linger_s: float
    is_exported: bool
    is_forced: bool

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.n_nodes * self.n_local

    @property
    def local_ranks(self) -> range | None:
        """The ranks of this node; None while nobody knows."""
        if not self.are_ranks_known:
            return None
        return range(self.node_rank * self.n_local, (self.node_rank + 1) * self.n_local)

    def expected(self, started: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks of this node that are to be captured, given those that have started."""
        if self.nsys is None:
            return ()
        ranks = self.local_ranks or started
        return tuple(one for one in ranks if self.chosen is None or one in self.chosen)

    @property
    def node_name(self) -> Path:
        """What this node's own files begin with: the job's name, with the node's number if there are several."""
        return self.beside(f".node{self.node_rank}") if self.n_nodes > 1 else self.name

    @property
    def node_report(self) -> Path:
        """The report of a node-wide capture, without suffix."""
        return self.beside(f"_node{self.node_rank}")

    def beside(self, ending: str) -> Path:
        """Return a file of this job."""
        return self.name.with_name(self.name.name + ending)


def earlier_files(job: Job) -> list[Path]:
    """Return what an earlier capture of the same name has left; of a job on several nodes, what this node would write."""
    files = (path for path in job.name.parent.iterdir() if path.name.startswith(job.name.name))
    return sorted(path for path in files if _belongs(job, path.name[len(job.name.name) :]))


def _belongs(job: Job, ending: str) -> bool:
    """Tell by what follows the job's name."""
    stem, dot, suffix = ending.partition(".")
    if stem.startswith("_") and f"{dot}{suffix}" in _REPORTS:
        number = stem[1:]
        if job.n_nodes > 1:
            return number == f"node{job.node_rank}" or number in map(str, job.local_ranks or ())
        return number.removeprefix("node").isdigit()
    if job.n_nodes > 1:
        return ending.removeprefix(f".node{job.node_rank}") in _FACTS and ending not in _FACTS
    return _NODE.sub("", ending, count=1) in _FACTS or (
        ending.startswith(".nccl.") and ending.endswith(".log")
    )


def parse_job(words: Sequence[str]) -> Job:
    """Read the words that a launcher passes; what follows ``--`` is the command."""
    parser = argparse.ArgumentParser(prog="nsyspipe.capture.job")
    parser.add_argument("--name", type=Path, required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--ranks", type=parse_ranks, default=None)
    parser.add_argument("--rendezvous", default="static")
    parser.add_argument("--node-wide", action="store_true")
    parser.add_argument("--nsys", default=None)
    parser.add_argument("--trace", default="")
    parser.add_argument("--capture-range", default="none")
    parser.add_argument("--timeout", type=float, default=0)
    parser.add_argument("--exit-timeout", type=float, default=0)
    parser.add_argument("--linger", type=float, default=0)
    parser.add_argument("--no-export", action="store_true")
    parser.add_argument("--force", action="store_true")
    at = list(words).index("--")
    options = parser.parse_args(words[:at])
    return Job(
        name=options.name.absolute(),
        command=tuple(words[at + 1 :]),
        program=options.program,
        n_local=options.nproc,
        node_rank=options.node_rank,
        n_nodes=options.nodes,
        chosen=options.ranks,
        are_ranks_known=options.rendezvous == "static",
        is_node_wide=options.node_wide,
        nsys=options.nsys,
        trace=tuple(options.trace.split(",")) if options.trace else (),
        capture_range=options.capture_range,
        timeout_s=options.timeout,
        exit_timeout_s=options.exit_timeout,
        linger_s=options.linger,
        is_exported=not options.no_export,
        is_forced=options.force,
    )


def parse_ranks(text: str) -> frozenset[int]:
    """Read ``0,7,63`` or ``0-3,7``.

    Raises
    ------
    ValueError
        If it is neither; argparse makes its message of it.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ranks = range(int(first), int(last if dash else first) + 1)
        if not ranks or ranks[-1] >= _MOST_RANKS:
            raise ValueError(part)
        found |= set(ranks)
    return frozenset(found)
