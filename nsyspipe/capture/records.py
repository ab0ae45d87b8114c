"""What each rank leaves for the launcher: small JSON files in a directory of the job's own."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Loop",
    "RankRecord",
    "end_path",
    "loop_has_ended",
    "read_loops",
    "read_records",
    "write_record",
]


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
