"""What an nsys leaves: its report, a capture that it could not put where it belongs, and its last words."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.nsys.command_words import without_words
from nsyspipe.nsys.programs import telling_lines

if TYPE_CHECKING:
    from collections.abc import Sequence


NOTHING = "nothing was captured"

_LONGEST_LOG = 4096
_LOOK_S = 1.0
# What nsys says when it and the agent that it starts have missed each other; the next time they do not.
_MISSED = re.compile(r"end of file|connection to agent lost", re.IGNORECASE)
_VARIABLE = re.compile(r"%q\{([^}]*)\}")
# Clocks of file servers may differ from ours.
_CLOCK_SLACK_NS = 60 * 10**9


@dataclass(frozen=True)
class Captured:
    """What came of a capture: the path of its report without suffix, or what is wrong."""

    report: str | None = None
    problem: str | None = None


def output_of(nsys: Sequence[str]) -> str | None:
    """Return what the words of an nsys name as its output, variables filled in."""
    prefix = "--output="
    named = next((word[len(prefix) :] for word in nsys if word.startswith(prefix)), None)
    return named and _VARIABLE.sub(lambda found: os.environ.get(found[1], ""), named)


def report_there(output: str) -> tuple[int, int] | None:
    """Return what tells the report that is there from another one of its name; None without one."""
    try:
        there = Path(f"{output}.nsys-rep").stat()
    except OSError:
        return None
    return there.st_ino, there.st_mtime_ns


def captured(
    output: str,
    temporary: Path,
    log: Path,
    *,
    earlier: tuple[int, int] | None,
    started_ns: int,
    command: Sequence[str] = (),
) -> Captured:
    """Return what an nsys that has ended left; a capture that lies in its temporary directory is moved to safety.

    Parameters
    ----------
    output
        What nsys was told to write, without suffix.
    earlier
        As `report_there` said before nsys started.
    started_ns
        When that was, ns since the epoch.
    command
        Its own words and the program's, which its messages may quote.
    """
    there = report_there(output)
    is_new = there not in (None, earlier) and there[1] >= started_ns - _CLOCK_SLACK_NS
    reports = _captures(temporary, "*.nsys-rep")
    # Nsys moves its report to its place, so one that is left says that the file there is somebody else's.
    if is_new and not [one for one in reports if not _is_copy(one, output)]:
        return Captured(report=output)
    said = last_words(log, command)
    if reports:
        return Captured(problem=f"nsys could not write its report{_kept(reports, output)}{said}")
    if streams := _captures(temporary, "*.qdstrm"):
        return Captured(
            problem=f"nsys did not make a report of its capture{_kept(streams, output)}"
        )
    if any(temporary.rglob("*.nsys-rep")):
        return Captured(problem=f"nsys could not write its report{said}")
    return Captured(problem=NOTHING)


class ReportWatch:
    """Looks whether an nsys has put its whole report in its place while the program still runs.

    With ``--capture-range-end=stop`` it does so at once when the range ends, not when the program does.
    """

    def __init__(self, output: str, temporary: Path, earlier: tuple[int, int] | None) -> None:
        self._output = output
        self._temporary = temporary
        self._earlier = earlier
        self._looked_at = -_LOOK_S
        self._seen: tuple[int, int, int] | None = None

    def is_whole(self, now_s: float) -> bool:
        """Tell whether the report is there, and looks as it did a second ago; asked more often, it does not look."""
        if now_s - self._looked_at < _LOOK_S:
            return False
        self._looked_at = now_s
        before, self._seen = self._seen, self._look()
        return self._seen is not None and self._seen == before

    def _look(self) -> tuple[int, int, int] | None:
        there = report_there(self._output)
        try:
            size = Path(f"{self._output}.nsys-rep").stat().st_size
            left = _captures(self._temporary, "*.nsys-rep")
        except OSError:  # moved in between
            return None
        # On its way from another file system it is there twice, and once not whole.
        is_moving = any(not _is_copy(one, self._output) for one in left)
        if there in (None, self._earlier) or not size or is_moving:
            return None
        return (*there, size)


def last_words(log: Path, command: Sequence[str] = ()) -> str:
    """Return the last of what nsys said that went wrong, else what it printed last, progress bars left out.

    What it quotes of a command is left out where it may not be written down.
    """
    telling = telling_lines(_text(log), 1)
    return f": {without_words(telling[0], command)}" if telling else ""


def is_missed_agent(said: str) -> bool:
    """Tell by what nsys said whether it and its agent missed each other, which starting it again mends."""
    return _MISSED.search(said) is not None


def _text(log: Path) -> str:
    try:
        return log.read_bytes()[-_LONGEST_LOG:].decode("utf-8", "replace")
    except OSError:
        return ""


def _captures(temporary: Path, pattern: str) -> list[Path]:
    return sorted(
        path for path in temporary.rglob(pattern) if path.is_file() and path.stat().st_size
    )


def _is_copy(left: Path, output: str) -> bool:
    """Tell whether what is left has been copied to its place, which may be on another file system."""
    try:
        return left.stat().st_size == Path(f"{output}.nsys-rep").stat().st_size
    except OSError:
        return False


def _kept(paths: Sequence[Path], output: str) -> str:
    """Move captures beside their output, under free names, and say where they are."""
    names = []
    for number, path in enumerate(paths):
        target = Path(f"{output}{path.suffix}")
        if path.suffix == ".nsys-rep" or target.exists():
            target = _free_name(output, f"{os.getpid()}-{number}" if number else f"{os.getpid()}")
            target = target.with_name(target.name + path.suffix)
        try:
            shutil.move(path, target)  # often to another file system
        except OSError as error:
            return f" ({error.strerror}); it is still in {path.parent.resolve()}"
        names.append(target.name)
    return f", which is kept: {', '.join(names)}"


def _free_name(output: str, mark: str) -> Path:
    """Return a name that no glob of the job's reports takes in, and that ends in the rank as theirs do."""
    name, _, rank = output.rpartition("_")
    return Path(f"{name}.kept-{mark}_{rank}")
