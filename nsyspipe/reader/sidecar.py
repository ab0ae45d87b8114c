"""Finds the sidecars of a run's reports, and checks every field of their JSON by type and range.

A sidecar is in the directory of reports that somebody sent. It may be cut short, written by another
program, or made to mislead.
"""

import contextlib
import itertools
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from nsyspipe.errors import InputError, require
from nsyspipe.model.captured import (
    CAPTURE_VERSION,
    MAX_COUNT,
    SIDECAR_SUFFIX,
    CapturedRank,
    MemoryPeaks,
    RunCapture,
    WorkPerStep,
)
from nsyspipe.model.names import DIGITS_PATTERN, decoded, printable
from nsyspipe.model.problems import Problem
from nsyspipe.model.side_files import NcclLog, Sidecar, Topology
from nsyspipe.model.text_files import open_ordinary
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
from nsyspipe.reader.beside import problem_with_files, used_beside
from nsyspipe.reader.fabric import read_nccl_logs, read_topology

_MAX_TEXT_CHARS = 500
_MAX_RANKS = 100_000
_MAX_WORDS = 10_000
_MAX_NAMES = 4096
_MAX_NUMBER = 2**31 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR = 2000
_LAST_YEAR = 2200
_NUMBER_PATTERNS = re.compile(r"\[0-9\]\+|\\d\+")
_ESCAPED = re.compile(r"\\([^\w])")
_SPECIAL = set(r".^$*+?{}[]\|()")


class Field(NamedTuple):
    """What the value of a field must be.

    Texts must be short, and control characters in them are replaced, unless they are masked.
    """

    kind: type[Any]
    # Of a number.
    min_value: int = 0
    max_value: int = _MAX_NUMBER
    # Of a text, with its name for messages.
    form: re.Pattern[str] | None = None
    form_name: str = ""
    # Of the elements of a list or dict.
    element_kind: type[Any] = str
    max_elements: int = _MAX_NAMES
    # Whether values are masked afterwards, so that texts need no check.
    is_masked: bool = False


_TEXT = Field(str)
_TEXTS = Field(list)
_NUMBER = Field(int)
_HOST = Field(str, form=HOST_NAME, form_name="host name")
_GPU = Field(str, form=GPU_NAME, form_name="GPU model")
_COMMAND = Field(list, max_elements=_MAX_WORDS, is_masked=True)
_KEY_NAME = re.compile(rf"[0-9a-f]{{8}}|{PER_CAPTURE}")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
# The outcome of a rank, in sentences that nsyspipe writes.
_OUTCOME = re.compile(r"[\w ,.;:'()-]*", re.ASCII)
_VERSIONS = (
    "torch_version",
    "cuda_version",
    "nccl_version",
    "driver_version",
    "nsys_version",
    "python_version",
)
# By annotation of the dataclasses in `model.captured`.
_KINDS = {
    **dict.fromkeys(("str", "str | None"), _TEXT),
    **dict.fromkeys(("int", "int | None"), _NUMBER),
    "bool | None": Field(bool),
    "list[str] | None": _TEXTS,
    "dict[str, str]": Field(dict, is_masked=True),
}
_FACT_FIELDS = {field.name: _KINDS[str(field.type)] for field in fields(RunCapture)}
_FACT_FIELDS |= dict.fromkeys(_VERSIONS, Field(str, form=VERSION, form_name="version"))
_FACT_FIELDS |= {
    "command": _COMMAND,
    "hash_key": Field(str, form=_KEY_NAME, form_name="name of a key"),
    "git_commit": Field(str, form=_COMMIT, form_name="commit"),
    "name": Field(str, form=CAPTURE_NAME, form_name="name of a capture"),
    "capture_range": Field(str, form=CAPTURE_RANGE, form_name="capture range"),
}
_WORK_FIELDS = {
    field.name: Field(int, min_value=1, max_value=MAX_COUNT) for field in fields(WorkPerStep)
}
_MEMORY_FIELDS = {field.name: Field(int, max_value=MAX_COUNT) for field in fields(MemoryPeaks)}
# The class and the fields of each object in a rank.
_PARTS_OF_RANK: dict[str, tuple[type[Any], dict[str, Field]]] = {
    "work_per_step": (WorkPerStep, _WORK_FIELDS),
    "memory": (MemoryPeaks, _MEMORY_FIELDS),
}
_RANK_FIELDS = {
    field.name: _KINDS[str(field.type)]
    for field in fields(CapturedRank)
    if field.name not in _PARTS_OF_RANK
}
_RANK_FIELDS |= {
    "pid": Field(int, min_value=1),
    "status": Field(int, min_value=-_MAX_NUMBER),
    "gpu_name": _GPU,
    "problem": Field(str, form=_OUTCOME, form_name="outcome"),
}
_SIDECAR_FIELDS = {
    "capture_version": Field(int, min_value=1),
    "host": _HOST,
    "world_size": Field(int, min_value=1),
    "ranks": Field(list, element_kind=dict, max_elements=_MAX_RANKS),
    "step_pattern": _TEXT,
    "nccl_log_files": _TEXTS,
    "topology_file": _TEXT,
}


def _checked(content: Mapping[str, Any], expected: Mapping[str, Field]) -> dict[str, Any]:
    """Return the expected fields that are not null, checked; a ValueError if one is wrong."""
    checked: dict[str, Any] = {}
    for name, field in expected.items():
        value = content.get(name)
        if value is not None:
            checked[name] = _check(name, value, field)
    return checked


def _check(name: str, value: Any, field: Field) -> Any:  # noqa: ANN401 - of that kind
    """Return the value of a field; a ValueError if the value is not what the field must be.

    Control characters in texts are replaced.
    """
    require(isinstance(value, field.kind), f"{name} has another type")
    if field.kind is int:
        # A bool is an int in Python.
        is_number = not isinstance(value, bool)
        is_in_range = field.min_value <= value <= field.max_value
        require(is_number and is_in_range, f"{name} is no number from {field.min_value}")
    if field.kind is str:
        return _check_text(name, value, field)
    if field.kind in {list, dict}:
        return _check_elements(name, value, field)
    return value


def _check_text(name: str, text: str, field: Field) -> str:
    is_short = len(text) <= _MAX_TEXT_CHARS
    require(is_short, f"{name} has more than {_MAX_TEXT_CHARS} characters")
    has_form = field.form is None or field.form.fullmatch(text)
    require(has_form, f"{name} is no {field.form_name}")
    return printable(text)


def _check_elements(name: str, value: Any, field: Field) -> Any:  # noqa: ANN401 - of that kind
    """Return a list or dict; a ValueError if it has too many elements, or one of another kind.

    A dict may be of any size, because only a few known names of it are read later.
    """
    is_dict = field.kind is dict
    may_be_this_long = is_dict or len(value) <= field.max_elements
    require(may_be_this_long, f"{name} has more than {field.max_elements} entries")
    elements = value.values() if is_dict else value
    must_be_texts = field.element_kind is str
    kinds = "texts" if must_be_texts else "objects"
    have_kind = all(isinstance(element, field.element_kind) for element in elements)
    require(have_kind, f"{name} holds more than {kinds}")
    if must_be_texts and not field.is_masked:
        return [_check(name, element, _TEXT) for element in elements]
    return value


def _moment(captured_at_utc: str) -> datetime:
    """Return the time that a text states, in UTC; a ValueError if it states no possible time."""
    try:
        moment = datetime.fromisoformat(captured_at_utc)
    except ValueError as error:
        raise ValueError("captured_at_utc is no time") from error
    is_in_range = _FIRST_YEAR <= moment.year <= _LAST_YEAR
    has_zone = moment.tzinfo is not None
    require(has_zone and is_in_range, "captured_at_utc is no time in UTC")
    return moment.astimezone(UTC)


def _ranks(rows: Iterable[Mapping[str, Any]]) -> tuple[CapturedRank, ...]:
    """Return the ranks of a sidecar, checked; a ValueError if a rank or process is there twice.

    A process is known by its report and its PID. A rank that lacks one of the two is not compared
    with other ranks.
    """
    checked_rows = [_checked_rank(row) for row in rows]
    have_rank = all("rank" in row for row in checked_rows)
    require(have_rank, "ranks holds an entry without rank")
    ranks: list[CapturedRank] = []
    for row in checked_rows:
        # An empty name is no report.
        row["report"] = row.get("report") or None
        ranks.append(CapturedRank(**row))
    require(_are_distinct(rank.rank for rank in ranks), "ranks names one rank twice")
    processes = ((rank.report, rank.pid) for rank in ranks if rank.report and rank.pid)
    require(_are_distinct(processes), "ranks gives one process two ranks")
    return tuple(ranks)


def _checked_rank(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a rank that are not null, checked.

    The objects in a rank become objects of their dataclasses.
    """
    checked = _checked(row, _RANK_FIELDS)
    for name, (dataclass_of_part, fields_of_part) in _PARTS_OF_RANK.items():
        part = row.get(name)
        if part is not None:
            require(isinstance(part, dict), f"{name} has another type")
            checked[name] = dataclass_of_part(**_checked(part, fields_of_part))
    return checked


def _are_distinct(values: Iterable[Hashable]) -> bool:
    values = list(values)
    return len(set(values)) == len(values)


def parse_sidecar(content: bytes, path: Path) -> Sidecar:
    """Read the bytes of a sidecar.

    Raises a ValueError if they are not a JSON object, are of a later version, or have a field with
    an impossible value.
    """
    json_object = _parse_json(content)
    checked = _checked(json_object, _SIDECAR_FIELDS)
    facts = _checked(json_object, _FACT_FIELDS)
    captured_at = facts.get("captured_at_utc")
    captured_at_ns = None
    if captured_at is not None:
        moment = _moment(captured_at)
        facts["captured_at_utc"] = moment.isoformat().replace("+00:00", "Z")
        # A datetime has whole microseconds, so that this is exact.
        captured_at_us = (moment - _EPOCH) // timedelta(microseconds=1)
        captured_at_ns = captured_at_us * 1000
    _mask_facts(facts)
    run_facts = RunCapture(**facts)
    ranks = _ranks(checked.get("ranks", ()))
    pattern = checked.get("step_pattern")
    family = None if pattern is None else family_of_pattern(pattern)
    host = checked.get("host")
    world_size = checked.get("world_size")
    log_names = checked.get("nccl_log_files", ())
    topology_name = checked.get("topology_file")
    return Sidecar(
        path=path,
        facts=run_facts,
        captured_at_utc_ns=captured_at_ns,
        host=host,
        world_size=world_size,
        ranks=ranks,
        step_pattern=pattern,
        family=family,
        log_names=tuple(log_names),
        topology_name=topology_name,
    )


def _mask_facts(facts: dict[str, Any]) -> None:
    """Mask, in the facts of a sidecar, what must not be shown of a command or an environment.

    Without an environment, the facts get an empty one.
    """
    if "command" in facts:
        facts["command"] = recorded_command(facts["command"], Mask())
    if "trace" in facts:
        # Traced kinds are checked as the values of this option, which is left out again.
        trace_option = ["--trace", *facts["trace"]]
        facts["trace"] = recorded_command(trace_option, Mask())[1:]
    environment = facts.get("environment", {})
    facts["environment"] = recorded_environment(environment, Mask())


def _parse_json(content: bytes) -> dict[str, Any]:
    """Return the JSON object of a sidecar; a ValueError if there is none, or of a later version."""
    try:
        json_object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError("no JSON") from error
    require(isinstance(json_object, dict), "no JSON object")
    version = json_object.get("capture_version")
    is_later = isinstance(version, int) and version > CAPTURE_VERSION
    require(not is_later, f"of version {version}, which only a later nsyspipe reads")
    checked_object: dict[str, Any] = json_object
    return checked_object


def family_of_pattern(pattern: str) -> str | None:
    """Return the normalized text that a step pattern stands for: ``step #`` for ``^step [0-9]+$``.

    None if the texts that match the pattern may differ in more than numbers. The pattern is never
    run, because a pattern in a file could be made to take forever.
    """
    if not pattern.startswith("^") or not pattern.endswith("$"):
        return None
    parts_between_numbers = _NUMBER_PATTERNS.split(pattern[1:-1])
    has_number = len(parts_between_numbers) > 1
    if not has_number or any(map(_has_special_characters, parts_between_numbers)):
        return None
    texts = [_ESCAPED.sub(r"\1", part) for part in parts_between_numbers]
    family = "#".join(texts)
    # A normalized text has # in place of all its numbers. So a pattern with a fixed number stands
    # for no normalized text.
    return None if re.search(DIGITS_PATTERN, family) else family


def _has_special_characters(pattern: str) -> bool:
    """Tell whether a pattern has a special character that is not escaped."""
    unescaped = _ESCAPED.sub("", pattern)
    return not _SPECIAL.isdisjoint(unescaped)


# Find the sidecars of a run's reports: ``NAME.capture.json`` in the directory of ``NAME_<rank>``,
# as the launchers write them.

_MAX_ENTRIES = 100_000
_MAX_SIDECARS = 4096
_MAX_SIDECAR_BYTES = 1 << 20
_MAX_LOG_BYTES = 256 << 20
_NODE = re.compile(r"\.node[0-9]+$")
# What follows the name of a capture in the name of a report.
_RANK_OR_NODE = re.compile(r"(?i)(?:[._-]?(?:rank|node)?[0-9]+)?$")


class FoundSidecar(Struct, frozen=True):
    """A sidecar, and the ranks in it of each report that it names."""

    sidecar: Sidecar
    # By the position of the report among the reports of the run.
    by_argument: dict[int, tuple[CapturedRank, ...]]


class FoundSidecars(Struct, frozen=True):
    """The sidecars that name a report of the run, and the problems with others."""

    found: tuple[FoundSidecar, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The sidecars themselves, and the files in their directories that they name."""
        paths: list[Path] = []
        for entry in self.found:
            sidecar = entry.sidecar
            folder = sidecar.path.parent
            names = [sidecar.path.name, *sidecar.log_names, sidecar.topology_name]
            paths += [folder / name for name in names if name and _is_in_folder(name)]
        return tuple(paths)


def _is_in_folder(name: str) -> bool:
    """Tell whether a name is that of a file, without a directory."""
    return name == Path(name).name


def read_sidecars(reports: Sequence[Path]) -> FoundSidecars:
    """Read the sidecars in the directories of some reports, and keep those that name a report.

    An unusable sidecar is a problem, never an error. `reports` has the paths of the reports
    themselves, even if their exports are in a cache.
    """
    # For each directory, the positions in `reports` by the name of the report.
    positions_by_folder: dict[Path, dict[str, list[int]]] = {}
    for position, path in enumerate(reports):
        positions_by_name = positions_by_folder.setdefault(path.parent, {})
        positions = positions_by_name.setdefault(decoded(path.stem), [])
        positions.append(position)
    sidecars: list[FoundSidecar] = []
    reason_of_unusable: dict[Path, str] = {}
    for folder, positions_by_name in positions_by_folder.items():
        for path in _candidates(folder, positions_by_name):
            try:
                sidecar = _read_sidecar(path)
            except (ValueError, OSError) as error:
                reason_of_unusable[path] = _reason(error)
                continue
            ranks_by_position = _ranks_by_position(sidecar, positions_by_name)
            if ranks_by_position:
                sidecars.append(FoundSidecar(sidecar, ranks_by_position))
    problems = []
    if reason_of_unusable:
        problems.append(problem_with_files("unusable-sidecar", reason_of_unusable))
    return FoundSidecars(tuple(sidecars), tuple(problems))


def _read_sidecar(path: Path) -> Sidecar:
    """Read a sidecar; a ValueError or an OSError if it cannot be used.

    A sidecar may be a link, because a report may be one: users link the reports of a capture into
    another directory, with the sidecar. This is harmless, because only known fields of JSON are
    taken, each checked. What the sidecar names must be in the directory of the link.
    """
    with open_ordinary(path, _MAX_SIDECAR_BYTES) as file:
        content = file.read(_MAX_SIDECAR_BYTES + 1)
    # The file may have grown since it was opened.
    require(len(content) <= _MAX_SIDECAR_BYTES, "larger than a sidecar can be")
    return parse_sidecar(content, path)


def _reason(error: ValueError | OSError) -> str:
    """Return in words why a file cannot be used."""
    if isinstance(error, OSError):
        return error.strerror or "unreadable"
    return str(error)


def _shown(path: Path) -> str:
    return printable(decoded(path.name))


def _ranks_by_position(
    sidecar: Sidecar, positions_by_name: Mapping[str, Sequence[int]]
) -> dict[int, tuple[CapturedRank, ...]]:
    """Return the ranks of each report that a sidecar names, by the position of the report."""
    ranks_by_position: dict[int, list[CapturedRank]] = {}
    for rank in sidecar.ranks:
        # A rank without a report has the empty name, which is the name of no report.
        for position in positions_by_name.get(rank.report or "", ()):
            ranks_by_position.setdefault(position, []).append(rank)
    return {position: tuple(ranks) for position, ranks in ranks_by_position.items()}


class NamedFiles(NamedTuple):
    """The contents of the files that sidecars name; None if there is none of that kind."""

    log: NcclLog | None
    topology: Topology | None
    problems: list[Problem]


def read_beside(
    sidecars: Iterable[Sidecar], *, wants_log: bool, wants_topology: bool
) -> NamedFiles:
    """Read the NCCL logs, and the first usable topology, that sidecars name.

    An unusable file is a problem, never an error.
    """
    sidecars = list(sidecars)
    reason_of_unused: dict[Path, str] = {}
    unusable: dict[Path, InputError] = {}
    log = None
    topology = None
    used_paths: list[Path] = []
    if wants_log:
        log_paths = _inside_all(sidecars, lambda sidecar: sidecar.log_names, reason_of_unused)
        log = read_nccl_logs(log_paths, unusable) if log_paths else None
        used_paths += [path for path in log_paths if path not in unusable]
    if wants_topology:
        topology_paths = _inside_all(sidecars, _topology_names, reason_of_unused)
        topology_path, topology = _read_first_topology(topology_paths, unusable)
        if topology_path is not None:
            used_paths.append(topology_path)
    problems: list[Problem] = []
    if used_paths:
        problems.append(used_beside(used_paths))
    reason_of_unused |= {path: error.problem for path, error in unusable.items()}
    if reason_of_unused:
        problems.append(problem_with_files("sidecar-file-unusable", reason_of_unused))
    return NamedFiles(log, topology, problems)


def _topology_names(sidecar: Sidecar) -> tuple[str, ...]:
    return (sidecar.topology_name,) if sidecar.topology_name else ()


def _read_first_topology(
    paths: Iterable[Path], unusable: dict[Path, InputError]
) -> tuple[Path | None, Topology | None]:
    """Return path and contents of the first usable topology; None and None without one.

    The files before it are added to `unusable`, with their errors.
    """
    for path in paths:
        try:
            return path, read_topology(path)
        except InputError as error:
            unusable[path] = error
    return None, None


def _inside_all(
    sidecars: Iterable[Sidecar],
    names_of: Callable[[Sidecar], Iterable[str]],
    reason_of_unused: dict[Path, str],
) -> list[Path]:
    """Return the files that some sidecars name, if they are inside the directories of these.

    Other files are added to `reason_of_unused`.
    """
    paths: list[Path] = []
    for sidecar in sidecars:
        paths += _inside(sidecar, names_of(sidecar), reason_of_unused)
    return paths


def _inside(
    sidecar: Sidecar, names: Iterable[str], reason_of_unused: dict[Path, str]
) -> Iterator[Path]:
    """Yield those files among `names` that are in the directory of the sidecar (`_why_refused`).

    All files together may have `_MAX_LOG_BYTES` bytes. Other files are added to `reason_of_unused`.
    """
    n_bytes_so_far = 0
    for name in names:
        path = sidecar.path.parent / name
        try:
            reason = _why_refused(sidecar, name)
            if reason is None:
                n_bytes_so_far += path.lstat().st_size
                if n_bytes_so_far > _MAX_LOG_BYTES:
                    # This file counts too, so no later file is read.
                    reason = "too large, pass the file with --nccl-log"
        except OSError as error:
            reason = error.strerror or "unreadable"
        except ValueError:
            reason = "no file name"
        if reason is None:
            yield path
        else:
            reason_of_unused[path] = reason


def _why_refused(sidecar: Sidecar, name: str) -> str | None:
    """Return why a file that a sidecar names must not be read; None if it may be read.

    The file must be an ordinary file in the directory of the sidecar, or below. Neither the file
    nor a directory on the way to it may be a link.
    """
    folder = sidecar.path.parent
    path = folder / name
    parts = Path(name).parts
    stays_below = bool(parts) and ".." not in parts and not Path(name).is_absolute()
    outside = f"not in the directory of {_shown(sidecar.path)}"
    if not stays_below:
        return outside
    # The real path is another one if there is a link.
    real_folder = Path(os.path.realpath(folder))
    if Path(os.path.realpath(path)) != real_folder / name:
        return outside
    if not stat.S_ISREG(path.lstat().st_mode):
        return "not an ordinary file"
    return None


def _candidates(folder: Path, stems: Collection[str]) -> list[Path]:
    """Return the sidecars in a directory whose names fit the names of some reports.

    Very many entries, and very many sidecars, are not looked at.
    """
    entries: list[str] = []
    # Whoever reads the reports raises the error for a directory that cannot be read.
    with contextlib.suppress(OSError, ValueError), os.scandir(folder) as scan:
        first_entries = itertools.islice(scan, _MAX_ENTRIES)
        entries += (entry.name for entry in first_entries)
    names = sorted(name for name in entries if name.endswith(SIDECAR_SUFFIX))
    fitting = [name for name in names[:_MAX_SIDECARS] if _fits_any(name, stems)]
    return [folder / name for name in fitting]


def _fits_any(name: str, stems: Iterable[str]) -> bool:
    """Tell whether a sidecar has the name of a report, apart from the ranks and nodes in the names.

    `name` is that of the sidecar. `stems` are the names of reports without their suffix.
    """
    name_and_node = decoded(name).removesuffix(SIDECAR_SUFFIX)
    capture_name = _NODE.sub("", name_and_node)
    fitting_stems = (stem for stem in stems if stem.startswith(capture_name))
    # What a report has after the common part must be a rank, a node or nothing.
    endings = (stem.removeprefix(capture_name) for stem in fitting_stems)
    return any(map(_RANK_OR_NODE.match, endings))
