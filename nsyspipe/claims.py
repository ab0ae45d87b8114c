"""Directories that a process of this machine is using: a lock in them, gone when the process is, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "claim",
    "claimed_at",
    "claimed_file",
    "is_claimed",
    "remove_abandoned",
    "scratch_directory",
]

_LOCK = "lock"
_PREFIX = ".nsyspipe-"
# Between its making and its lock, a directory looks abandoned.
_YOUNG_S = 60.0
_RECENT_S = 86_400.0


def claim(directory: Path) -> int | None:
    """Say that this process uses a directory, and return the open lock; None where locks are not to be had.

    The lock is shared, and its time is that of the last claim. It lasts until it is closed with `os.close`,
    or the process ends.
    """
    try:
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        os.utime(lock)
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def is_claimed(directory: Path) -> bool:
    """Return whether a process uses a directory; where locks are not to be had, whether one did lately."""
    try:
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return time.time() - os.fstat(lock).st_mtime < _RECENT_S
    finally:
        os.close(lock)
    return False


def claimed_at(directory: Path) -> float:
    """Return when a directory was last claimed, in seconds since the epoch; 0 if never."""
    try:
        return (directory / _LOCK).stat().st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """Yield a new hidden directory that only this user can read; it is removed in the end.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    directory = Path(tempfile.mkdtemp(dir=parent, prefix=_PREFIX))
    lock = claim(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def claimed_file(parent: Path) -> Iterator[Path]:
    """Yield a new hidden file that only this user can read, to be renamed; whatever still has its name goes in the end.

    Files of processes that were killed are removed first.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    remove_abandoned(parent)
    lock, name = tempfile.mkstemp(dir=parent, prefix=_PREFIX)
    with contextlib.suppress(OSError):  # where locks are not to be had, none is ever removed
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield Path(name)
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        os.close(lock)


def remove_abandoned(parent: Path) -> None:
    """Remove the scratch directories and files of processes that were killed; links are left alone."""
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    status = path.lstat()
    if status.st_uid != os.geteuid() or time.time() - status.st_mtime <= _YOUNG_S:
        return
    if stat.S_ISDIR(status.st_mode):
        if not is_claimed(path):
            shutil.rmtree(path, ignore_errors=True)
    elif stat.S_ISREG(status.st_mode):
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), path.lstat()):
                path.unlink()
        finally:
            os.close(lock)
