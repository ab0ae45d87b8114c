"""What each rank leaves for its launcher, written and read: ``rank_<R>.json`` and ``ranges_<R>.json``.

The first is its supervisor's, the second the training program's. Either may be missing, or cut short where a process
was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from nsyspipe.capture.backends import loaded_torch
from nsyspipe.capture.nsys_output import NOTHING
from nsyspipe.capture.outcome import CUT_SHORT
from nsyspipe.model.text import decoded, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# What a training program tells its launcher: ``ranges_<rank>.json`` in the directory ``NSYSPIPE_STATUS_DIR``.


STATUS_DIR = "NSYSPIPE_STATUS_DIR"
# A program that puts numbers into its phases' names would otherwise grow this list for days.
_MOST_NAMES, _LONGEST_NAME = 64, 200
_STEP_PATTERN = "^step [0-9]+$"
# What torch raises for a question that its build or the machine cannot answer.
_UNANSWERED = (AssertionError, AttributeError, OSError, RuntimeError, TypeError, ValueError)


class Facts:
    """What this process knows of its own capture.

    Attributes
    ----------
    n_steps, n_captured_steps
        Steps that were begun, and measured ones that were completed.
    warmup, n_asked
        Steps before the capture and steps in it, as the program asked for; None without a capture.
    has_ended
        Whether the training loop is over for good.
    """

    def __init__(self) -> None:
        self.n_steps = 0
        self.n_captured_steps = 0
        self.warmup: int | None = None
        self.n_asked: int | None = None
        self.has_ended = False
        self._names: dict[str, None] = {}
        self._pid: int | None = None

    def saw(self, phase: str) -> None:
        """Remember the name of a phase."""
        names = self._names
        if phase not in names and len(names) < _MOST_NAMES and len(phase) <= _LONGEST_NAME:
            names[phase] = None

    def announce(self) -> None:
        """Write the file for the first time, and once more when the process ends."""
        if self._pid is None:
            self._pid = os.getpid()
            atexit.register(self._end)
            self.write()

    def _end(self) -> None:
        self.has_ended = True
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all, if the launcher asks for it; a failure costs the file only."""
        directory = os.environ.get(STATUS_DIR)
        if not directory or self._pid != os.getpid():  # a fork of the program is not the program
            return
        path = Path(directory) / f"ranges_{_number('RANK') or 0}.json"
        unfinished = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError, ValueError):
            unfinished.write_text(json.dumps(self._gathered()), encoding="utf-8")
            unfinished.replace(path)

    def _gathered(self) -> dict[str, Any]:
        return {
            "rank": _number("RANK") or 0,
            "local_rank": _number("LOCAL_RANK") or 0,
            "pid": self._pid,
            "step_pattern": _STEP_PATTERN,
            "phase_names": list(self._names),
            "n_steps": self.n_steps,
            "n_captured_steps": self.n_captured_steps,
            "warmup": self.warmup,
            "steps_asked": self.n_asked,
            "loop_ended": self.has_ended,
            **_versions(),
        }


facts = Facts()


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(
        ("torch_version", "cuda_version", "nccl_version", "gpu_name")
    )
    torch = loaded_torch()
    if torch is None:
        return found
    with contextlib.suppress(*_UNANSWERED):
        found["torch_version"] = str(torch.__version__)
        found["cuda_version"] = torch.version.cuda
    with contextlib.suppress(*_UNANSWERED):
        # To ask for the name of a device would make a context on it, perhaps the wrong rank's.
        if torch.cuda.is_initialized():
            found["gpu_name"] = str(torch.cuda.get_device_name())
            found["nccl_version"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found


# What each rank leaves for the launcher: small JSON files in a directory of the job's own.


@dataclass(frozen=True)
class RankRecord:
    """How one rank's program and its capture ended.

    Attributes
    ----------
    pid
        The training program's process; None when it never started.
    nsys_group
        Process group of its nsys, which may outlive who started it; None without one.
    is_captured
        Whether this rank was to be captured.
    report
        Path of the report without suffix; None when none was written.
    status
        Exit status of the program, 128 + N for one ended by signal N; None while it runs.
    problem
        What went wrong with the capture, in one sentence.
    ended_at
        Seconds since the epoch when the program ended; None while it runs.
    report_at
        Likewise when its report was whole, if the program still ran then, unasked to end.
    """

    rank: int
    local_rank: int
    pid: int | None = None
    nsys_group: int | None = None
    is_captured: bool = True
    report: str | None = None
    status: int | None = None
    problem: str | None = None
    ended_at: float | None = None
    report_at: float | None = None


@dataclass(frozen=True)
class Loop:
    """What a training program that uses `captured_steps` says of its loops.

    Attributes
    ----------
    n_steps, n_captured
        Steps that it went through, and those of them that were captured.
    warmup, n_asked
        Steps before the capture and steps in it, as it asked for.
    """

    n_steps: int
    n_captured: int
    warmup: int
    n_asked: int


def write_record(directory: Path, record: RankRecord) -> None:
    """Write a rank's record, whole or not at all."""
    path = directory / f"rank_{record.rank}.json"
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(asdict(record)), encoding="utf-8")
    unfinished.replace(path)


def read_records(directory: Path) -> list[RankRecord]:
    """Return the records there are, by rank."""
    found = [RankRecord(**_json(path)) for path in directory.glob("rank_*.json")]
    return sorted(found, key=lambda record: record.rank)


def end_path(directory: Path, rank: int) -> Path:
    """Return the file that holds the program's exit status once it has ended."""
    return directory / f"program_{rank}.status"


def read_loops(directory: Path) -> dict[int, Loop]:
    """Return what the training programs say, by rank; those that have no loop of ours say nothing."""
    found: dict[int, Loop] = {}
    for path in directory.glob("ranges_*.json"):
        with contextlib.suppress(OSError, ValueError):
            said = _json(path)
            names = ("rank", "n_steps", "n_captured_steps", "warmup", "steps_asked")
            numbers = [one for name in names if isinstance(one := said.get(name), int)]
            if len(numbers) == len(names):
                found[numbers[0]] = Loop(*numbers[1:])
    return found


def loop_has_ended(directory: Path, rank: int) -> bool:
    """Tell whether the program said that its training loop is over; one that does not use ours never says."""
    path = directory / f"ranges_{rank}.json"
    try:
        return _json(path).get("loop_ended") is True
    except (OSError, ValueError):
        return False


def _json(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


T = TypeVar("T")

_FILE = re.compile(r"(rank|ranges)_([0-9]{1,9})\.json")
_MOST_BYTES = 1 << 20
_LONGEST_TEXT, _MOST_FILES = 500, 100
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
_STEP_FILE = re.compile(r"\^[A-Za-z]{1,20}[ _#]?\[0-9\]\+\$", re.ASCII)


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
            row[name] = _first(_file_number(one.get(name)) for one in order)
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
    return list(dict.fromkeys(text for text in found if text in _PHASES.split()))[:_MOST_FILES]


def step_pattern(said: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the steps' pattern that all ranks say alike, if it is a word with a number."""
    pattern = common(said, "step_pattern")
    return pattern if pattern and _STEP_FILE.fullmatch(pattern) else None


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


def _file_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return printable(decoded(value))[:_LONGEST_TEXT] if isinstance(value, str) and value else None
