"""A job's temporary directory: where the user's are, under a path that sockets can have."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.claims import claim, claimed_at, is_claimed

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["holding", "short_directory"]

# A Unix socket's path has 107 bytes at most (unix(7)). Below this directory a rank has its own, and in that Python's
# multiprocessing, which a DataLoader's workers use, puts sockets 32 bytes deeper; nsys has some too.
_MOST_BYTES = 50
_CAPTURES = (".nsys-rep", ".qdstrm")
_SHORT = "/tmp"  # noqa: S108 - every user's; mkdtemp makes what is ours in it
_PREFIX, _LOCK = "nsyspipe-", "lock"
_OURS = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
# Between its making and its lock, a directory looks abandoned.
_YOUNG_S = 60.0


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """Make an empty directory of our own, and remove it at the end with all that is in it, captures excepted.

    A capture that could not be moved to its place may be all that is left of hours: its directory stays. It lies in TMPDIR, since nsys fills it with gigabytes; where that makes its path too long for sockets, the path
    is that of a short link to it.
    """
    with contextlib.ExitStack() as made:
        directory = _made(None, made)
        if len(os.fsencode(directory)) > _MOST_BYTES:
            with contextlib.suppress(OSError):  # a long path is better than none
                link = _made(_SHORT, made) / "t"
                link.symlink_to(directory, target_is_directory=True)
                directory = link
        yield directory


@contextlib.contextmanager
def holding(directory: Path) -> Iterator[tuple[int, ...]]:
    """Claim a job's directory, and return the descriptors of the locks.

    A program that inherits them holds it too: it stays as long as the program lives, whoever of us was killed.
    """
    places = [directory, directory.parent] if directory.is_symlink() else [directory]
    locks = [lock for lock in map(claim, places) if lock is not None]
    try:
        yield tuple(locks)
    finally:
        for lock in locks:
            os.close(lock)


def _made(parent: str | None, cleaning: contextlib.ExitStack) -> Path:
    _remove_abandoned(Path(parent or tempfile.gettempdir()))
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)).absolute()
    lock = claim(path)
    if lock is not None:
        cleaning.callback(os.close, lock)
    cleaning.callback(_remove, path)
    return path


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories of jobs that were killed: this user's, which no process has claimed, nor one in them."""
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                if _is_abandoned(path):
                    _remove(path)


def _is_abandoned(path: Path) -> bool:
    status = path.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    is_ours &= stat.S_IMODE(status.st_mode) == stat.S_IRWXU and bool(_OURS.fullmatch(path.name))
    if not is_ours or (path / _LOCK).lstat().st_size or time.time() - claimed_at(path) <= _YOUNG_S:
        return False
    inner = [one for one in path.glob(f"{_PREFIX}*") if one.is_dir() and not one.is_symlink()]
    return not any(is_claimed(one) for one in [path, *inner])


def _remove(path: Path) -> None:
    if not any(_is_capture(one) for one in path.rglob("*")):
        shutil.rmtree(path, ignore_errors=True)


def _is_capture(path: Path) -> bool:
    """Tell whether a file is a report of nsys, or what it makes one of."""
    return path.suffix in _CAPTURES and path.is_file() and path.stat().st_size > 0
