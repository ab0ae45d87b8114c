"""The sidecars beside a run's reports, found, and their JSON as facts: every field checked by type and range.

A sidecar lies beside reports that somebody sent; it may be cut short, of another program, or made to mislead.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsyspipe.errors import InputError
from nsyspipe.model.names import DIGITS_PATTERN
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.sidecar import (
    CAPTURE_VERSION,
    SIDECAR_SUFFIX,
    CapturedRank,
    RunCapture,
    Sidecar,
)
from nsyspipe.model.text import decoded, printable
from nsyspipe.nsys.command_words import PER_CAPTURE, Mask, recorded_command, recorded_environment
from nsyspipe.reader.nccl_log import read_nccl_logs
from nsyspipe.reader.topology import read_topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsyspipe.model.fabric import NcclLog, Topology


_LONGEST_TEXT = 500
_MOST_RANKS, _MOST_WORDS, _MOST_NAMES = 100_000, 10_000, 4096
_LARGEST = 2**31 - 1
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_HASH_KEY = re.compile(r"[0-9a-f]{8}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR, _LAST_YEAR = 2000, 2200
_NUMBER_PATTERNS = re.compile(r"\[0-9\]\+|\\d\+")
_ESCAPED = re.compile(r"\\([^\w])")
_SPECIAL = set(r".^$*+?{}[]\|()")


class UnusableError(ValueError):
    """A sidecar that says something impossible; the message says what."""


def parse_sidecar(content: bytes, path: Path) -> Sidecar:
    """Read a sidecar.

    Parameters
    ----------
    content
        The file's bytes.

    Raises
    ------
    UnusableError
        If it is no JSON object, of a later version, or a field of it has another type or is out of range.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnusableError("no JSON") from error
    if not isinstance(found, dict):
        raise UnusableError("no JSON object")
    version = _number(found, "capture_version", 1)
    if version is not None and version > CAPTURE_VERSION:
        raise UnusableError(f"of version {version}, which only a later nsyspipe reads")
    moment = _moment(found)
    pattern = _text(found, "step_pattern")
    return Sidecar(
        path=path,
        facts=_facts(found, moment),
        captured_at_utc_ns=None if moment is None else _ns(moment),
        host=_text(found, "host"),
        world_size=_number(found, "world_size", 1),
        ranks=_ranks(found),
        step_pattern=pattern,
        family=None if pattern is None else family_of_pattern(pattern),
        log_names=tuple(_texts(found, "nccl_log_files") or ()),
        topology_name=_text(found, "topology_file"),
    )


def family_of_pattern(pattern: str) -> str | None:
    """Return the normalised text that a step pattern stands for; None when it stands for more than one.

    Examples
    --------
    >>> family_of_pattern("^step [0-9]+$")
    'step #'
    >>> family_of_pattern("^(a+)+$") is None
    True
    """
    if not pattern.startswith("^") or not pattern.endswith("$"):
        return None
    # No pattern of a file is ever run: it could take forever.
    parts = _NUMBER_PATTERNS.split(pattern[1:-1])
    texts = [_ESCAPED.sub("", part) for part in parts]
    if len(parts) == 1 or any(_SPECIAL & set(text) for text in texts):
        return None
    name = "#".join(_ESCAPED.sub(r"\1", part) for part in parts)
    return None if re.search(DIGITS_PATTERN, name) else name


def _facts(found: Mapping[str, Any], moment: datetime | None) -> RunCapture:
    command = _texts(found, "command", _MOST_WORDS, longest=None)
    environment = _field(found, "environment", dict) or {}
    if not all(isinstance(value, str) for value in environment.values()):
        raise UnusableError("environment holds more than texts")
    return RunCapture(
        name=_text(found, "name"),
        captured_at_utc=None if moment is None else moment.isoformat().replace("+00:00", "Z"),
        command=None if command is None else recorded_command(command, Mask()),
        hash_key=_hash_key(found),
        git_commit=_commit(found),
        git_is_dirty=_field(found, "git_is_dirty", bool),
        torch_version=_text(found, "torch_version"),
        cuda_version=_text(found, "cuda_version"),
        nccl_version=_text(found, "nccl_version"),
        driver_version=_text(found, "driver_version"),
        nsys_version=_text(found, "nsys_version"),
        python_version=_text(found, "python_version"),
        trace=_texts(found, "trace"),
        capture_range=_text(found, "capture_range"),
        environment=recorded_environment(environment, Mask()),
    )


def _ranks(found: Mapping[str, Any]) -> tuple[CapturedRank, ...]:
    rows = _field(found, "ranks", list) or []
    if len(rows) > _MOST_RANKS:
        raise UnusableError(f"ranks has more than {_MOST_RANKS} entries")
    ranks = tuple(_rank(row) for row in rows)
    if len({one.rank for one in ranks}) < len(ranks):
        raise UnusableError("ranks names one rank twice")
    pids = [(one.report, one.pid) for one in ranks if one.report and one.pid]
    if len(set(pids)) < len(pids):
        raise UnusableError("ranks gives one process two ranks")
    return ranks


def _rank(row: object) -> CapturedRank:
    if not isinstance(row, dict):
        raise UnusableError("ranks holds more than objects")
    rank = _number(row, "rank", 0)
    if rank is None:
        raise UnusableError("ranks holds an entry without rank")
    report = _text(row, "report")
    return CapturedRank(
        rank=rank,
        local_rank=_number(row, "local_rank", 0),
        pid=_number(row, "pid", 1),
        report=report or None,
        status=_number(row, "status", -_LARGEST),
        problem=_text(row, "problem"),
        gpu_name=_text(row, "gpu_name"),
        is_complete=_field(row, "is_complete", bool),
    )


def _field(found: Mapping[str, Any], name: str, kind: type) -> Any:  # noqa: ANN401 - of that kind, or None
    value = found.get(name)
    if value is not None and not isinstance(value, kind):
        raise UnusableError(f"{name} has another type")
    return value


def _number(found: Mapping[str, Any], name: str, least: int) -> int | None:
    value = _field(found, name, int)
    if value is None:
        return None
    if isinstance(value, bool) or not least <= value <= _LARGEST:
        raise UnusableError(f"{name} is no number from {least}")
    return int(value)


def _text(found: Mapping[str, Any], name: str) -> str | None:
    value = _field(found, name, str)
    return None if value is None else _checked(value, name, _LONGEST_TEXT)


def _texts(
    found: Mapping[str, Any],
    name: str,
    most: int = _MOST_NAMES,
    *,
    longest: int | None = _LONGEST_TEXT,
) -> list[str] | None:
    values = _field(found, name, list)
    if values is None:
        return None
    if len(values) > most:
        raise UnusableError(f"{name} has more than {most} entries")
    if not all(isinstance(value, str) for value in values):
        raise UnusableError(f"{name} holds more than texts")
    return [_checked(value, name, longest) for value in values]


def _checked(value: str, name: str, longest: int | None) -> str:
    if longest is not None and len(value) > longest:
        raise UnusableError(f"{name} has more than {longest} characters")
    return printable(value) if longest is not None else value


def _hash_key(found: Mapping[str, Any]) -> str | None:
    value = _text(found, "hash_key")
    if value not in (None, PER_CAPTURE) and not _HASH_KEY.fullmatch(value):
        raise UnusableError("hash_key is no name of a key")
    return value


def _commit(found: Mapping[str, Any]) -> str | None:
    value = _text(found, "git_commit")
    if value is not None and not _COMMIT.fullmatch(value):
        raise UnusableError("git_commit is no commit")
    return value


def _moment(found: Mapping[str, Any]) -> datetime | None:
    value = _text(found, "captured_at_utc")
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise UnusableError("captured_at_utc is no time") from error
    if moment.tzinfo is None or not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise UnusableError("captured_at_utc is no time in UTC")
    return moment.astimezone(UTC)


def _ns(moment: datetime) -> int:
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


# Find the sidecars of a run's reports: ``NAME.capture.json`` beside ``NAME_<rank>``, as the launchers leave them.


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
