"""Read the logs that NCCL writes with ``NCCL_DEBUG=INFO``: who talks to whom, and over what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.errors import InputError
from nsyspipe.fabric import NcclLog
from nsyspipe.read.nccl_comms import communicators
from nsyspipe.read.nccl_lines import Fact, Line, Setting, Version, parse_line
from nsyspipe.read.printed_text import printed_lines
from nsyspipe.untrusted import decoded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nsyspipe.read.nccl_groups import Process

__all__ = ["read_nccl_logs"]

_FIX = "run with NCCL_DEBUG=INFO, and NCCL_DEBUG_FILE=nccl_%h_%p.log for a file per process"


def read_nccl_logs(paths: Sequence[Path]) -> NcclLog:
    """Read what one or several logs of a run say.

    Parameters
    ----------
    paths
        Files in any order; each may hold the lines of several ranks and of other programs, mixed. A file
        given twice counts once.

    Returns
    -------
    NcclLog
        The same for every order of the lines of different processes. What was not logged is None: with
        ``NCCL_DEBUG=VERSION`` there is a version and no communicator, and a communicator that never
        connected has no edges.

    Raises
    ------
    InputError
        If a file cannot be read or holds no line of NCCL's.

    Notes
    -----
    NCCL names the communicator only where it is made and unmade. Its other lines belong to the one that
    their thread makes at that time; since 2.22 connections follow later, and go to the youngest
    communicator of the process that has these ranks on these GPUs and not yet this connection.
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
