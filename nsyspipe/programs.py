"""Other programs on this machine: where nsys and its importer lie, and what one prints before a deadline."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ROOT", "Output", "Patience", "Program", "Run", "ask", "find_importer", "find_nsys"]

ROOT = Path("/")

# Where NVIDIA's, Debian's and the CUDA toolkit's packages put nsys, below the root.
_NSYS_PLACES = (
    "opt/nvidia/nsight-systems*/*/bin/nsys",
    "opt/nvidia/nsight-systems*/bin/nsys",
    "opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Systems/bin/nsys",
    "usr/lib/nsight-systems/bin/nsys",
    "usr/local/cuda*/bin/nsys",
)
# From a directory above nsys; its own package comes first.
_IMPORTER_PLACES = (
    "host-*/QdstrmImporter",
    "nsight-systems-*/host-*/QdstrmImporter",
    "lib/nsight-systems/host-*/QdstrmImporter",
    "usr/lib/nsight-systems/host-*/QdstrmImporter",
    "opt/nvidia/nsight-systems*/*/host-*/QdstrmImporter",
)
_MOST_BYTES = 1 << 20
_CHUNK, _POLL_S = 1 << 16, 0.02
_PROGRAM_S = 3.0


@dataclass(frozen=True)
class Program:
    """A program that was found.

    Attributes
    ----------
    place
        The usual place where it was found; None when it is on the search path.
    """

    path: Path
    place: str | None


@dataclass(frozen=True)
class Output:
    """What a program printed.

    Attributes
    ----------
    status
        Its exit status; None when it did not end in time.
    """

    status: int | None
    text: str


# Runs a program with a time limit in seconds; None when it cannot be started.
Run: TypeAlias = Callable[[Sequence[str], float], Output | None]


def find_nsys(search_path: str | None = None, root: Path = ROOT) -> Program | None:
    """Return nsys from the search path (None: the environment's), else the newest in the usual places."""
    if on_path := shutil.which("nsys", path=search_path):
        return Program(Path(on_path), None)
    found = sorted(_existing(root, _NSYS_PLACES), key=_by_number)
    if not found:
        return None
    newest = found[-1]
    return Program(newest, f"/{newest.relative_to(root).as_posix()}")


def find_importer(nsys: Program, root: Path = ROOT) -> Path | None:
    """Return the importer that belongs to an nsys: it turns what is captured into a report."""
    # The name on the search path is often a link into the package.
    homes = dict.fromkeys([*_homes(nsys.path), *_homes(Path(os.path.realpath(nsys.path))), root])
    return next((found for home in homes for found in _existing(home, _IMPORTER_PLACES)), None)


def _homes(program: Path) -> Sequence[Path]:
    return program.parents[:2]


def _existing(folder: Path, patterns: Iterable[str]) -> list[Path]:
    found: list[Path] = []
    for pattern in patterns:
        with contextlib.suppress(OSError):  # a directory that may not be read
            found += [path for path in sorted(folder.glob(pattern)) if os.access(path, os.X_OK)]
    return found


def _by_number(path: Path) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isascii() and part.isdigit() else (-1, part)
        for part in re.split(r"([0-9]+)", str(path))
    ]


def ask(command: Sequence[str], timeout_s: float) -> Output | None:
    """Run a program and return what it printed; None when it cannot be started.

    It gets no input, and is ended with all of its process group.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - a list, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        text, status = _read(process, time.monotonic() + timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return Output(status, text)


def _read(process: subprocess.Popen[bytes], deadline: float) -> tuple[str, int | None]:
    """Read until the program ends, whoever else holds its output open, or until the deadline."""
    source = process.stdout.fileno() if process.stdout is not None else -1
    received = bytearray()
    is_open = True
    while time.monotonic() < deadline and len(received) < _MOST_BYTES:
        has_ended = process.poll() is not None
        if is_open and select.select([source], [], [], 0 if has_ended else _POLL_S)[0]:
            chunk = os.read(source, _CHUNK)
            is_open = bool(chunk)
            received += chunk
        elif has_ended:
            break
        elif not is_open:
            time.sleep(_POLL_S)
    return received.decode("utf-8", "replace"), process.poll()


class Patience:
    """Runs programs, each for a few seconds, until the time for all is up; one that hung is not asked again."""

    def __init__(self, run: Run, total_s: float) -> None:
        self._run = run
        self._deadline = time.monotonic() + total_s
        self._hung: set[str] = set()

    def output(self, program: str, *arguments: str) -> Output | None:
        """Return what a program printed; one that there is no time for did not answer."""
        left = min(self._deadline - time.monotonic(), _PROGRAM_S)
        if program in self._hung or left <= 0:
            return Output(None, "")
        output = self._run([program, *arguments], left)
        if output is not None and output.status is None:
            self._hung.add(program)
        return output

    def answer(self, program: str, *arguments: str) -> str:
        """Return what a program printed if it ended well, else nothing."""
        output = self.output(program, *arguments)
        return output.text if output is not None and output.status == 0 else ""
