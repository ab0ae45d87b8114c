"""Find the sidecars of a run's reports: ``NAME.capture.json`` beside ``NAME_<rank>``, as the launchers leave them."""

from __future__ import annotations

import itertools
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.errors import InputError
from nsyspipe.problems import Problem, problem
from nsyspipe.read.nccl_log import read_nccl_logs
from nsyspipe.read.sidecar_fields import UnusableError, parse_sidecar
from nsyspipe.read.topology import read_topology
from nsyspipe.sidecar_model import SIDECAR_SUFFIX
from nsyspipe.untrusted import decoded, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsyspipe.fabric import NcclLog, Topology
    from nsyspipe.sidecar_model import CapturedRank, Sidecar

__all__ = ["FoundSidecar", "FoundSidecars", "read_beside", "read_sidecars"]

_MOST_ENTRIES, _MOST_SIDECARS, _MOST_BYTES = 100_000, 4096, 1 << 20
_MOST_LOG_BYTES = 256 << 20
_NODE = re.compile(r"\.node[0-9]+$")
# What follows the capture's name in a report's: its rank or node.
_RANK_OR_NODE = re.compile(r"(?i)(?:[._-]?(?:rank|node)?[0-9]+)?$")


@dataclass(frozen=True)
class FoundSidecar:
    """A sidecar, and what it says of each report that it names.

    Attributes
    ----------
    by_argument
        Its ranks by the position of their report among the run's.
    """

    sidecar: Sidecar
    by_argument: dict[int, tuple[CapturedRank, ...]]


@dataclass(frozen=True)
class FoundSidecars:
    """The sidecars that name a report of the run, and what is wrong with others."""

    found: tuple[FoundSidecar, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where they were read, and the files that they name."""
        return tuple(
            path for one in self.found for path in (one.sidecar.path, *_named_files(one.sidecar))
        )


def read_sidecars(reports: Sequence[Path]) -> FoundSidecars:
    """Read the sidecars that lie beside some reports; what is wrong with one is a problem, never an error.

    Parameters
    ----------
    reports
        Where the reports lie, or lay before their export went to a cache.

    Returns
    -------
    FoundSidecars
        In order of directory and name.
    """
    by_place: dict[Path, dict[str, list[int]]] = {}
    for argument, report in enumerate(reports):
        stems = by_place.setdefault(report.parent, {})
        stems.setdefault(decoded(report.stem), []).append(argument)
    found: list[FoundSidecar] = []
    problems: list[Problem] = []
    for folder, stems in by_place.items():
        for path in _candidates(folder, stems):
            try:
                sidecar = parse_sidecar(_content(path), path)
            except (UnusableError, OSError) as error:
                reason = error.strerror or "unreadable" if isinstance(error, OSError) else error
                problems.append(problem("unusable-sidecar", file=_shown(path), reason=reason))
                continue
            if claims := _claims(sidecar, stems):
                found.append(FoundSidecar(sidecar, claims))
    return FoundSidecars(tuple(found), tuple(problems))


def read_beside(
    sidecars: Iterable[Sidecar], *, wants_log: bool, wants_topology: bool
) -> tuple[NcclLog | None, Topology | None, list[Problem]]:
    """Read the NCCL logs and the topology that sidecars name; what cannot be used is a problem, never an error.

    Hosts are taken to have one topology, so the first one holds.
    """
    log, topology = None, None
    problems: list[Problem] = []
    sidecars = list(sidecars)
    if wants_log:
        logs = [path for one in sidecars for path in _inside(one, one.log_names, problems)]
        log = _read_logs(logs, problems)
    for one in sidecars if wants_topology else ():
        for path in _inside(one, filter(None, [one.topology_name]), problems):
            try:
                topology = topology or read_topology(path)
            except InputError as error:
                problems.append(_unused(path, error.problem))
    return log, topology, problems


def _named_files(sidecar: Sidecar) -> Iterator[Path]:
    names = (*sidecar.log_names, *filter(None, [sidecar.topology_name]))
    yield from (sidecar.path.parent / name for name in names if name == Path(name).name)


def _read_logs(paths: Sequence[Path], problems: list[Problem]) -> NcclLog | None:
    try:
        return read_nccl_logs(paths) if paths else None
    except InputError:
        usable = []
        for path in paths:
            try:
                read_nccl_logs([path])
                usable.append(path)
            except InputError as error:
                problems.append(_unused(path, error.problem))
        return read_nccl_logs(usable) if usable else None


def _inside(sidecar: Sidecar, names: Iterable[str], problems: list[Problem]) -> Iterator[Path]:
    """Yield the files that a sidecar names: those of its own directory, reached by no link."""
    folder = sidecar.path.parent
    n_bytes = 0
    for name in names:
        path = folder / name
        parts = Path(name).parts
        try:
            is_own = bool(parts) and not Path(name).is_absolute() and ".." not in parts
            is_own = is_own and Path(os.path.realpath(path)) == Path(os.path.realpath(folder)) / name  # fmt: skip
            state = path.lstat() if is_own else None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no file name"
            problems.append(_unused(path, reason or "unreadable"))
            continue
        if state is None:
            problems.append(_unused(path, f"not in the directory of {_shown(sidecar.path)}"))
        elif not stat.S_ISREG(state.st_mode):
            problems.append(_unused(path, "no ordinary file"))
        elif (n_bytes := n_bytes + state.st_size) > _MOST_LOG_BYTES:
            problems.append(_unused(path, "too large; pass it with --nccl-log"))
        else:
            yield path


def _unused(path: Path, reason: str) -> Problem:
    return problem("sidecar-file-unusable", file=_shown(path), reason=printable(reason))


def _shown(path: Path) -> str:
    return printable(decoded(path.name))


def _candidates(folder: Path, stems: Iterable[str]) -> list[Path]:
    """Return the sidecars of a directory whose name fits that of a report, sorted."""
    known = list(stems)
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name
                for entry in itertools.islice(entries, _MOST_ENTRIES)
                if entry.name.endswith(SIDECAR_SUFFIX)
            ]
    except (OSError, ValueError):
        return []  # whoever reads the reports will say what is wrong
    fitting = [name for name in sorted(names)[:_MOST_SIDECARS] if _fits(decoded(name), known)]
    return [folder / name for name in fitting]


def _fits(name: str, stems: Iterable[str]) -> bool:
    base = _NODE.sub("", name.removesuffix(SIDECAR_SUFFIX))
    return any(stem.startswith(base) and _RANK_OR_NODE.match(stem[len(base) :]) for stem in stems)


def _content(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):
        raise UnusableError("no ordinary file")
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise UnusableError("larger than a sidecar can be")
    return content


def _claims(sidecar: Sidecar, stems: dict[str, list[int]]) -> dict[int, tuple[CapturedRank, ...]]:
    """Return a sidecar's ranks by the position of their report."""
    by_report: dict[str, list[CapturedRank]] = {}
    for one in sidecar.ranks:
        if one.report is not None and one.report in stems:
            by_report.setdefault(one.report, []).append(one)
    return {
        argument: tuple(ranks) for report, ranks in by_report.items() for argument in stems[report]
    }
