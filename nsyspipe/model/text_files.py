"""Text files that a user names beside reports (logs, a rank map, a scheduler's file): ordinary files only, up to a size."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_LOG_BYTES = 1 << 30
MOST_SMALL_BYTES = 16 << 20  # a rank map of 100 000 ranks has some megabytes


class NotOrdinaryError(ValueError):
    """A path is no ordinary file (a device, a pipe, a directory), or the file is larger than such a text can be."""


def open_ordinary(path: Path, most_bytes: int) -> BinaryIO:
    """Open an ordinary file of at most so many bytes, without waiting for a pipe's writer.

    An OSError if it cannot be opened, a `NotOrdinaryError` if it is something else or larger.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    state = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(state.st_mode):
        problem = "is not an ordinary file"
    elif state.st_size > most_bytes:
        problem = f"has {state.st_size} bytes, more than the limit of {most_bytes} bytes"
    if problem is not None:
        os.close(descriptor)
        raise NotOrdinaryError(problem)
    return os.fdopen(descriptor, "rb")


def read_small_text(path: Path) -> str:
    """Return a small text file's content; errors as of `open_ordinary`, and a ValueError if it is no UTF-8."""
    with open_ordinary(path, MOST_SMALL_BYTES) as file:
        return file.read(MOST_SMALL_BYTES + 1).decode("utf-8")
