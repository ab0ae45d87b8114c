"""Processes that outlive those who started them: found in /proc, adopted and ended. Other systems do without."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Process", "adopt_orphans", "die_with_parent", "end_adopted", "processes"]

# Of prctl(2).
_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
# What nsys's own programs are called: nsys (the agent, too), nsys-launcher, QdstrmImporter.
_OF_NSYS = ("nsys", "Qdstrm")
_POLL_S = 0.05
# To end by themselves; after a polite signal; after the last one.
_PATIENCE = ((None, 1.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0))


class Process(NamedTuple):
    """What /proc says of a process: its state is a letter, Z for one that has ended and was not waited for."""

    pid: int
    state: str
    parent: int
    group: int


def processes() -> Iterator[Process]:
    """Yield every process; nothing where the system does not tell."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = path.read_bytes().rpartition(b")")[2].split()
            state = words[0].decode("ascii")
            yield Process(int(path.parent.name), state, int(words[1]), int(words[2]))


def adopt_orphans() -> None:
    """Become the parent of what our children leave running, where Linux can do that."""
    _prctl()(_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> Callable[[], None]:
    """Return what, called in a new process, has it asked to end (SIGTERM) when we die, killed or not."""
    prctl = _prctl()  # looked up here: between fork and exec as little as possible happens

    def ask_for_it() -> None:
        prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)

    return ask_for_it


def end_adopted(*, is_any_of_nsys: bool) -> None:
    """End what an nsys that has ended left running: an agent that stays forever keeps our terminal's pipe open.

    Only what we have adopted is looked at, and of that only nsys's own programs: what the training program put into
    the background is the user's.

    Parameters
    ----------
    is_any_of_nsys
        The training program never began: there is nothing but nsys's.
    """
    for number, wait_s in _PATIENCE:
        left = _adopted(is_any_of_nsys=is_any_of_nsys)
        if number is not None:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        deadline = time.monotonic() + wait_s
        while left and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            left = _adopted(is_any_of_nsys=is_any_of_nsys)
        if not left:
            return


def _adopted(*, is_any_of_nsys: bool) -> list[int]:
    """Return our children of that kind; those that have ended are waited for first."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    children = [one.pid for one in processes() if one.parent == os.getpid() and one.state != "Z"]
    return [pid for pid in children if is_any_of_nsys or _program_name(pid).startswith(_OF_NSYS)]


def _program_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def _prctl() -> Callable[[int, int], object]:
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes  # noqa: PLC0415 - only Linux needs it

            found: Callable[[int, int], object] = ctypes.CDLL(None).prctl
            return found
    return lambda _option, _value: None
