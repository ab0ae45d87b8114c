"""The sidecars beside a run's reports, found, and their JSON as facts: every field checked by type and range.

A sidecar lies beside reports that somebody sent; it may be cut short, of another program, or made
to mislead.
"""

import contextlib
import itertools
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from nsyspipe.errors import InputError, require
from nsyspipe.model.captured import CAPTURE_VERSION, SIDECAR_SUFFIX, CapturedRank, RunCapture
from nsyspipe.model.names import DIGITS_PATTERN, decoded, printable
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.side_files import NcclLog, Sidecar, Topology
from nsyspipe.nsys.command_words import (
    CAPTURE_NAME,
    CAPTURE_RANGE,
    GPU_NAME,
    HOST_NAME,
    PER_CAPTURE,
    VERSION,
    Mask,
    recorded_command,
    recorded_environment,
)
from nsyspipe.reader.beside import used_beside
from nsyspipe.reader.fabric import read_nccl_logs, read_topology

_LONGEST_TEXT = 500
_MOST_RANKS = 100_000
_MOST_WORDS = 10_000
_MOST_NAMES = 4096
_LARGEST = 2**31 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR = 2000
_LAST_YEAR = 2200
_NUMBER_PATTERNS = re.compile(r"\[0-9\]\+|\\d\+")
_ESCAPED = re.compile(r"\\([^\w])")
_SPECIAL = set(r".^$*+?{}[]\|()")


class Field(NamedTuple):
    """What a field must be; texts are short and fit to be shown, but for those that are masked afterwards."""

    kind: type[Any]
    least: int = 0
    form: re.Pattern[str] | None = None
    what: str = ""
    of: type[Any] = str
    most: int = _MOST_NAMES
    is_masked: bool = False


_TEXT = Field(str)
_TEXTS = Field(list)
_NUMBER = Field(int)
_HOST = Field(str, form=HOST_NAME, what="host name")
_GPU = Field(str, form=GPU_NAME, what="GPU model")
_OUTCOME = re.compile(r"[\w ,.;:'()-]*", re.ASCII)  # of a rank, in sentences of ours
_VERSIONS = (
    "torch_version",
    "cuda_version",
    "nccl_version",
    "driver_version",
    "nsys_version",
    "python_version",
)
_KINDS = {  # by annotation of the dataclasses in `model.captured`
    **dict.fromkeys(("str", "str | None"), _TEXT),
    **dict.fromkeys(("int", "int | None"), _NUMBER),
    "bool | None": Field(bool),
    "list[str] | None": _TEXTS,
    "dict[str, str]": Field(dict, is_masked=True),
}
_OF_FACTS = {field.name: _KINDS[str(field.type)] for field in fields(RunCapture)} | {
    "command": Field(list, most=_MOST_WORDS, is_masked=True),
    "hash_key": Field(str, form=re.compile(rf"[0-9a-f]{{8}}|{PER_CAPTURE}"), what="name of a key"),
    "git_commit": Field(str, form=re.compile(r"[0-9a-f]{7,64}"), what="commit"),
    **dict.fromkeys(_VERSIONS, Field(str, form=VERSION, what="version")),
    "name": Field(str, form=CAPTURE_NAME, what="name of a capture"),
    "capture_range": Field(str, form=CAPTURE_RANGE, what="capture range"),
}
_OF_RANK = {field.name: _KINDS[str(field.type)] for field in fields(CapturedRank)} | {
    "pid": Field(int, least=1),
    "status": Field(int, least=-_LARGEST),
    "gpu_name": _GPU,
    "problem": Field(str, form=_OUTCOME, what="outcome"),
}
_OF_SIDECAR = {
    "capture_version": Field(int, least=1),
    "host": _HOST,
    "world_size": Field(int, least=1),
    "ranks": Field(list, of=dict, most=_MOST_RANKS),
    "step_pattern": _TEXT,
    "nccl_log_files": _TEXTS,
    "topology_file": _TEXT,
}


def _checked(found: Mapping[str, Any], wanted: Mapping[str, Field]) -> dict[str, Any]:
    return {
        name: _check(name, found[name], field)
        for name, field in wanted.items()
        if found.get(name) is not None
    }


def _check(name: str, value: Any, field: Field) -> Any:  # noqa: ANN401 - of that kind
    require(isinstance(value, field.kind), f"{name} has another type")
    if field.kind is int:
        is_number = not isinstance(value, bool) and field.least <= value <= _LARGEST
        require(is_number, f"{name} is no number from {field.least}")
    if field.kind is str:
        require(len(value) <= _LONGEST_TEXT, f"{name} has more than {_LONGEST_TEXT} characters")
        require(field.form is None or field.form.fullmatch(value), f"{name} is no {field.what}")
        return printable(value)
    if field.kind in {list, dict}:
        require(
            field.kind is dict or len(value) <= field.most,
            f"{name} has more than {field.most} entries",
        )
        each = value.values() if field.kind is dict else value
        kinds = "texts" if field.of is str else "objects"
        require(all(isinstance(one, field.of) for one in each), f"{name} holds more than {kinds}")
        if field.of is str and not field.is_masked:
            return [_check(name, one, _TEXT) for one in each]
    return value


def _moment(captured_at_utc: str) -> datetime:
    try:
        moment = datetime.fromisoformat(captured_at_utc)
    except ValueError as error:
        raise ValueError("captured_at_utc is no time") from error
    require(
        moment.tzinfo is not None and _FIRST_YEAR <= moment.year <= _LAST_YEAR,
        "captured_at_utc is no time in UTC",
    )
    return moment.astimezone(UTC)


def _ranks(rows: Iterable[Mapping[str, Any]]) -> tuple[CapturedRank, ...]:
    found = [_checked(row, _OF_RANK) for row in rows]
    require(all("rank" in one for one in found), "ranks holds an entry without rank")
    ranks = tuple(CapturedRank(**one | {"report": one.get("report") or None}) for one in found)
    require(len({rank.rank for rank in ranks}) == len(ranks), "ranks names one rank twice")
    pids = [(rank.report, rank.pid) for rank in ranks if rank.report and rank.pid]
    require(len(set(pids)) == len(pids), "ranks gives one process two ranks")
    return ranks


def parse_sidecar(content: bytes, path: Path) -> Sidecar:
    """Read a sidecar's bytes; a ValueError if it is no JSON object, of a later version, or a field of it cannot be."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError("no JSON") from error
    require(isinstance(found, dict), "no JSON object")
    version = found.get("capture_version")
    is_later = isinstance(version, int) and version > CAPTURE_VERSION
    require(not is_later, f"of version {version}, which only a later nsyspipe reads")
    told = _checked(found, _OF_SIDECAR)
    facts = _checked(found, _OF_FACTS)
    captured_at = facts.get("captured_at_utc")
    pattern = told.get("step_pattern")
    moment = None if captured_at is None else _moment(captured_at)
    if moment is not None:
        facts["captured_at_utc"] = moment.isoformat().replace("+00:00", "Z")
    if "command" in facts:
        facts["command"] = recorded_command(facts["command"], Mask())
    if "trace" in facts:
        facts["trace"] = recorded_command(["--trace", *facts["trace"]], Mask())[1:]
    facts["environment"] = recorded_environment(facts.get("environment", {}), Mask())
    return Sidecar(
        path=path,
        facts=RunCapture(**facts),
        captured_at_utc_ns=None
        if moment is None
        else (moment - _EPOCH) // timedelta(microseconds=1) * 1000,
        host=told.get("host"),
        world_size=told.get("world_size"),
        ranks=_ranks(told.get("ranks", ())),
        step_pattern=pattern,
        family=None if pattern is None else family_of_pattern(pattern),
        log_names=tuple(told.get("nccl_log_files", ())),
        topology_name=told.get("topology_file"),
    )


def family_of_pattern(pattern: str) -> str | None:
    """Return the normalised text that a step pattern stands for, ``step #``; None when it stands for more than one."""
    if not pattern.startswith("^") or not pattern.endswith("$"):
        return None
    parts = _NUMBER_PATTERNS.split(
        pattern[1:-1]
    )  # no pattern of a file is ever run: it could take forever
    if len(parts) == 1 or any(_SPECIAL & set(_ESCAPED.sub("", part)) for part in parts):
        return None
    name = "#".join(_ESCAPED.sub(r"\1", part) for part in parts)
    return None if re.search(DIGITS_PATTERN, name) else name


# Find the sidecars of a run's reports: ``NAME.capture.json`` beside ``NAME_<rank>``, as the
# launchers leave them.

_MOST_ENTRIES = 100_000
_MOST_SIDECARS = 4096
_MOST_BYTES = 1 << 20
_MOST_LOG_BYTES = 256 << 20
_NODE = re.compile(r"\.node[0-9]+$")
_RANK_OR_NODE = re.compile(
    r"(?i)(?:[._-]?(?:rank|node)?[0-9]+)?$"
)  # what follows the capture's name in a report's


class FoundSidecar(Struct, frozen=True):
    """A sidecar, and what it says of each report that it names."""

    sidecar: Sidecar
    by_argument: dict[
        int, tuple[CapturedRank, ...]
    ]  # ranks by the position of their report among the run's


class FoundSidecars(Struct, frozen=True):
    """The sidecars that name a report of the run, and what is wrong with others."""

    found: tuple[FoundSidecar, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where they were read, and the files that they name."""
        sidecars = [one.sidecar for one in self.found]
        named = (
            (sidecar.path.parent, [sidecar.path.name, *sidecar.log_names, sidecar.topology_name])
            for sidecar in sidecars
        )
        return tuple(
            at / name for at, names in named for name in names if name and name == Path(name).name
        )


def read_sidecars(reports: Sequence[Path]) -> FoundSidecars:
    """Read the sidecars that lie beside some reports; what is wrong with one is a problem, never an error.

    The reports lie, or lay before their export went to a cache, where the paths say.
    """
    by_place: dict[Path, dict[str, list[int]]] = {}
    for argument, path in enumerate(reports):
        by_place.setdefault(path.parent, {}).setdefault(decoded(path.stem), []).append(argument)
    found: list[FoundSidecar] = []
    problems: list[Problem] = []
    for folder, stems in by_place.items():
        for path in _candidates(folder, stems):
            try:
                require(stat.S_ISREG(path.stat().st_mode), "no ordinary file")
                with path.open("rb") as file:
                    content = file.read(_MOST_BYTES + 1)
                require(len(content) <= _MOST_BYTES, "larger than a sidecar can be")
                sidecar = parse_sidecar(content, path)
            except (ValueError, OSError) as error:
                reason = error.strerror or "unreadable" if isinstance(error, OSError) else error
                problems.append(
                    problem("unusable-sidecar", file=printable(decoded(path.name)), reason=reason)
                )
                continue
            claims: dict[int, list[CapturedRank]] = {}
            for rank in sidecar.ranks:
                for at in stems.get(rank.report or "", ()):
                    claims.setdefault(at, []).append(rank)
            if claims:
                found.append(
                    FoundSidecar(sidecar, {at: tuple(ranks) for at, ranks in claims.items()})
                )
    return FoundSidecars(tuple(found), tuple(problems))


def read_beside(
    sidecars: Iterable[Sidecar], *, wants_log: bool, wants_topology: bool
) -> tuple[NcclLog | None, Topology | None, list[Problem]]:
    """Read NCCL logs and the first topology that sidecars name; what cannot be used is a problem, never an error."""
    sidecars = list(sidecars)
    problems: list[Problem] = []
    unusable: dict[Path, InputError] = {}
    logs = [
        path
        for sidecar in sidecars
        if wants_log
        for path in _inside(sidecar, sidecar.log_names, problems)
    ]
    log = read_nccl_logs(logs, unusable) if len(unusable) < len(logs) else None
    topology = None
    used = [path for path in logs if path not in unusable]
    for one in sidecars if wants_topology else ():
        for path in _inside(one, filter(None, [one.topology_name]), problems):
            if topology is not None:
                continue
            try:
                topology = read_topology(path)
                used.append(path)
            except InputError as error:
                unusable[path] = error
    problems += [used_beside(used)] if used else []
    problems += [_unused(path, error.problem) for path, error in unusable.items()]
    return log, topology, problems


def _inside(sidecar: Sidecar, names: Iterable[str], problems: list[Problem]) -> Iterator[Path]:
    """Yield the files that a sidecar names: those of its own directory, reached by no link."""
    folder = sidecar.path.parent
    n_bytes = 0
    for name in names:
        path = folder / name
        parts = Path(name).parts
        reason = ""
        try:
            is_own = bool(parts) and not Path(name).is_absolute() and ".." not in parts
            if not (
                is_own and Path(os.path.realpath(path)) == Path(os.path.realpath(folder)) / name
            ):
                reason = f"not in the directory of {printable(decoded(sidecar.path.name))}"
            elif not stat.S_ISREG((state := path.lstat()).st_mode):
                reason = "not an ordinary file"
            elif (n_bytes := n_bytes + state.st_size) > _MOST_LOG_BYTES:
                reason = "too large, pass the file with --nccl-log"
        except (OSError, ValueError) as error:
            reason = (
                error.strerror if isinstance(error, OSError) else "no file name"
            ) or "unreadable"
        if reason:
            problems.append(_unused(path, reason))
        else:
            yield path


def _unused(path: Path, reason: str) -> Problem:
    return problem(
        "sidecar-file-unusable", file=printable(decoded(path.name)), reason=printable(reason)
    )


def _candidates(folder: Path, stems: Collection[str]) -> list[Path]:
    names: list[str] = []
    # Whoever reads the reports will say what is wrong.
    with contextlib.suppress(OSError, ValueError), os.scandir(folder) as entries:
        names += (entry.name for entry in itertools.islice(entries, _MOST_ENTRIES))
    names = sorted(name for name in names if name.endswith(SIDECAR_SUFFIX))[:_MOST_SIDECARS]
    bases = {name: _NODE.sub("", decoded(name).removesuffix(SIDECAR_SUFFIX)) for name in names}
    return [
        folder / name
        for name, base in bases.items()
        if any(stem.startswith(base) and _RANK_OR_NODE.match(stem[len(base) :]) for stem in stems)
    ]
