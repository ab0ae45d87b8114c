"""What each rank left behind: ``rank_<R>.json`` of its supervisor, ``ranges_<R>.json`` of the training program.

Either may be missing, or cut short where a process was killed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from nsyspipe.masking import masked_command
from nsyspipe.untrusted import decoded, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["StatusFiles", "common", "every", "rank_rows", "read_status_files"]

T = TypeVar("T")

_FILE = re.compile(r"(rank|ranges)_([0-9]{1,9})\.json")
_MOST_BYTES = 1 << 20
_LONGEST_TEXT, _MOST_NAMES = 500, 100
_NUMBERS = ("local_rank", "pid", "status")
_TEXTS = ("report", "problem", "gpu_name")


@dataclass(frozen=True)
class StatusFiles:
    """The objects in a status directory, by rank."""

    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    ranges: dict[int, dict[str, Any]] = field(default_factory=dict)


def read_status_files(directory: Path | None) -> StatusFiles:
    """Read what ranks left in a directory; what cannot be read is as if it were not there."""
    found = StatusFiles()
    try:
        paths = [] if directory is None else sorted(directory.iterdir())
    except OSError:
        paths = []
    for path in paths:
        if (match := _FILE.fullmatch(path.name)) and (content := _object(path)):
            kind = found.ranks if match[1] == "rank" else found.ranges
            kind[int(match[2])] = content
    return found


def rank_rows(given: Iterable[Mapping[str, Any]], found: StatusFiles) -> list[dict[str, Any]]:
    """Return one row per rank with the sidecar's keys, sorted by rank.

    What the caller gives goes before what the supervisor left, and that before the training program's word; but
    only the training program is sure of its own process id.
    """
    by_rank = {row["rank"]: dict(row) for row in given}
    rows = []
    for rank in sorted(by_rank | found.ranks | found.ranges):
        given_row, left = by_rank.get(rank, {}), found.ranks.get(rank, {})
        said = found.ranges.get(rank, {})
        row: dict[str, Any] = {"rank": rank}
        for name in _NUMBERS:
            order = (said, given_row, left) if name == "pid" else (given_row, left, said)
            row[name] = _first(_number(one.get(name)) for one in order)
        for name in _TEXTS:
            row[name] = _first(_text(one.get(name)) for one in (given_row, left, said))
        if row["problem"] is not None:  # nsys's last words may quote the command
            (row["problem"],) = masked_command([row["problem"]])
        if row["report"] is not None:
            row["report"] = PurePath(row["report"]).name or None
        rows.append(row)
    return rows


def common(said: Iterable[Mapping[str, Any]], name: str) -> str | None:
    """Return the text that all ranks that say one say alike; None if they differ."""
    texts = {text for one in said if (text := _text(one.get(name)))}
    return texts.pop() if len(texts) == 1 else None


def every(said: Iterable[Mapping[str, Any]], name: str) -> list[str]:
    """Return the texts that any rank lists, in the order of the first of each."""
    lists = [one.get(name) for one in said]
    found = [_text(text) for texts in lists if isinstance(texts, list) for text in texts]
    return list(dict.fromkeys(text for text in found if text))[:_MOST_NAMES]


def _object(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _first(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return printable(decoded(value))[:_LONGEST_TEXT] if isinstance(value, str) and value else None
