"""What each rank leaves for the launcher: small JSON files in a directory of the job's own."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RankRecord", "end_path", "loop_has_ended", "read_records", "write_record"]


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
