"""From the JSON of a sidecar to its facts: every field checked by type and range, nothing taken as it is.

A sidecar lies beside reports that somebody sent; it may be cut short, of another program, or made to mislead.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nsyspipe.command_words import PER_CAPTURE, Mask, recorded_command, recorded_environment
from nsyspipe.labels import DIGITS_PATTERN
from nsyspipe.sidecar_model import CAPTURE_VERSION, CapturedRank, RunCapture, Sidecar
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["UnusableError", "family_of_pattern", "parse_sidecar"]

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
