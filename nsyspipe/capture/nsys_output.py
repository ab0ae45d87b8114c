"""What an nsys leaves: its report, a capture that it could not put where it belongs, and its last words."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass, field
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


@dataclass
class NsysOutput:
    """What an nsys is to write, looked at from before it starts: its report without suffix, where it works and prints."""

    output: str
    temporary: Path
    log: Path
    # Its own words and the program's, which its messages may quote.
    command: Sequence[str] = ()
    # As `report_there` said before it started; and when that was, since the epoch.
    earlier: tuple[int, int] | None = None
    started_ns: int = field(default_factory=time.time_ns)
    _looked_at: float = -_LOOK_S
    _seen: tuple[int, int, int] | None = None

    def is_whole(self, now_s: float) -> bool:
        """Tell whether the report is there, and looks as it did a second ago; asked more often, it does not look.

        With ``--capture-range-end=stop`` nsys puts it in its place when the range ends, not when the program does.
        """
        if now_s - self._looked_at < _LOOK_S:
            return False
        self._looked_at = now_s
        before, self._seen = self._seen, self._look()
        return self._seen is not None and self._seen == before

    def _look(self) -> tuple[int, int, int] | None:
        there = report_there(self.output)
        try:
            size = Path(f"{self.output}.nsys-rep").stat().st_size
            # On its way from another file system it is there twice, and once not whole.
            is_moving = bool(self._others())
        except OSError:  # moved in between
            return None
        return None if there in (None, self.earlier) or not size or is_moving else (*there, size)

    def _others(self) -> list[Path]:
        """Return reports that are left where nsys works, and are no copies of the one in its place."""
        left = _captures(self.temporary, "*.nsys-rep")
        return [one for one in left if not _is_copy(one, self.output)]

    def captured(self) -> Captured:
        """Return what an nsys that has ended left; a capture that lies in its temporary directory is moved to safety."""
        there = report_there(self.output)
        is_new = there not in (None, self.earlier) and there[1] >= self.started_ns - _CLOCK_SLACK_NS
        # Nsys moves its report to its place, so one that is left says that the file there is somebody else's.
        if is_new and not self._others():
            return Captured(report=self.output)
        said = last_words(self.log, self.command)
        if reports := _captures(self.temporary, "*.nsys-rep"):
            kept = _kept(reports, self.output)
            return Captured(problem=f"nsys could not write its report{kept}{said}")
        if streams := _captures(self.temporary, "*.qdstrm"):
            kept = _kept(streams, self.output)
            return Captured(problem=f"nsys did not make a report of its capture{kept}")
        if any(self.temporary.rglob("*.nsys-rep")):
            return Captured(problem=f"nsys could not write its report{said}")
        return Captured(problem=NOTHING)


def last_words(log: Path, command: Sequence[str] = ()) -> str:
    """Return the last of what nsys said that went wrong, else what it printed last, progress bars left out.

    What it quotes of a command is left out where it may not be written down.
    """
    try:
        said = log.read_bytes()[-_LONGEST_LOG:].decode("utf-8", "replace")
    except OSError:
        return ""
    telling = telling_lines(said, 1)
    return f": {without_words(telling[0], command)}" if telling else ""


def is_missed_agent(said: str) -> bool:
    """Tell by what nsys said whether it and its agent missed each other, which starting it again mends."""
    return _MISSED.search(said) is not None


def _captures(temporary: Path, pattern: str) -> list[Path]:
    return sorted(path for path in temporary.rglob(pattern) if path.is_file() and path.stat().st_size)


def _is_copy(left: Path, output: str) -> bool:
    """Tell whether what is left has been copied to its place, which may be on another file system."""
    try:
        return left.stat().st_size == Path(f"{output}.nsys-rep").stat().st_size
    except OSError:
        return False


def _kept(paths: Sequence[Path], output: str) -> str:
    """Move captures beside their output, under free names, and say where they are."""
    names = []
    # No glob of the job's reports takes such a name in, and it ends in the rank as theirs do.
    name, _, rank = output.rpartition("_")
    for number, path in enumerate(paths):
        target = Path(f"{output}{path.suffix}")
        if path.suffix == ".nsys-rep" or target.exists():
            mark = f"{os.getpid()}-{number}" if number else f"{os.getpid()}"
            target = Path(f"{name}.kept-{mark}_{rank}{path.suffix}")
        try:
            shutil.move(path, target)  # often to another file system
        except OSError as error:
            return f" ({error.strerror}); it is still in {path.parent.resolve()}"
        names.append(target.name)
    return f", which is kept: {', '.join(names)}"
