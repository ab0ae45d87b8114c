"""What each rank left behind: ``rank_<R>.json`` of its supervisor, ``ranges_<R>.json`` of the training program.

Either may be missing, or cut short where a process was killed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from nsyspipe.capture.missing import CUT_SHORT
from nsyspipe.capture.nsys_output import NOTHING
from nsyspipe.untrusted import decoded, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = [
    "StatusFiles",
    "common",
    "phase_names",
    "rank_rows",
    "read_status_files",
    "step_pattern",
]

T = TypeVar("T")

_FILE = re.compile(r"(rank|ranges)_([0-9]{1,9})\.json")
_MOST_BYTES = 1 << 20
_LONGEST_TEXT, _MOST_NAMES = 500, 100
_NUMBERS = ("local_rank", "pid", "status")
_TEXTS = ("report", "problem", "gpu_name")
# Sentences of ours that a sidecar may say of a rank; what nsys said besides may quote the command, and is left out.
_PROBLEMS = re.compile(
    rf"{NOTHING}|nsys failed before it started the program|nsys could not write its report"
    rf"|nsys did not make a report of its capture|nsys had not ended [0-9]{{1,9}} s after the program: ended it|{CUT_SHORT}",
)
_ANOTHER_PROBLEM = "its capture failed"
# Names of phases that say nothing of anybody; others are the program's own words, and stand in the report alone.
_PHASES = (
    "data forward backward optimizer step loss zero_grad zero-grad eval validation val train checkpoint save load h2d "
    "to_device all_reduce allreduce reduce sync clip clip_grad scheduler lr_scheduler warmup"
)
_STEP_PATTERN = re.compile(r"\^[A-Za-z]{1,20}[ _#]?\[0-9\]\+\$", re.ASCII)


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
        if row["problem"] is not None:
            row["problem"] = _problem(row["problem"])
        if row["report"] is not None:
            row["report"] = PurePath(row["report"]).name or None
        row["is_complete"] = _first(_flag(one.get("is_complete")) for one in (given_row, left))
        rows.append(row)
    return rows


def common(said: Iterable[Mapping[str, Any]], name: str) -> str | None:
    """Return the text that all ranks that say one say alike; None if they differ."""
    texts = {text for one in said if (text := _text(one.get(name)))}
    return texts.pop() if len(texts) == 1 else None


def phase_names(said: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the well-known names of phases that any rank lists, in the order of the first of each."""
    lists = [one.get("phase_names") for one in said]
    found = [_text(text) for texts in lists if isinstance(texts, list) for text in texts]
    return list(dict.fromkeys(text for text in found if text in _PHASES.split()))[:_MOST_NAMES]


def step_pattern(said: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the steps' pattern that all ranks say alike, if it is a word with a number."""
    pattern = common(said, "step_pattern")
    return pattern if pattern and _STEP_PATTERN.fullmatch(pattern) else None


def _problem(text: str) -> str:
    """Return what of a problem is our own sentence."""
    return "; ".join(dict.fromkeys(_PROBLEMS.findall(text))) or _ANOTHER_PROBLEM


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


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return printable(decoded(value))[:_LONGEST_TEXT] if isinstance(value, str) and value else None
