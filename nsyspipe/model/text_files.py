"""Text files that a user names, such as logs or a rank map: ordinary files only, up to a size."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from nsyspipe.model.user_paths import AnyPath

MOST_LOG_BYTES = 1 << 30
# A rank map of 100 000 ranks has some megabytes.
MOST_SMALL_BYTES = 16 << 20


class NotOrdinaryError(ValueError):
    """A path is not an ordinary file (but a device or a directory), or the file is too large."""


def open_ordinary(path: AnyPath, most_bytes: int) -> BinaryIO:
    """Open an ordinary file of at most `most_bytes`, without waiting for the writer of a pipe.

    Raise an OSError if the file cannot be opened, and a `NotOrdinaryError` if it is not an ordinary
    file or is larger.
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
    """Return the content of a small text file.

    Raise the errors of `open_ordinary`, and a ValueError if the content is not UTF-8.
    """
    with open_ordinary(path, MOST_SMALL_BYTES) as file:
        return file.read(MOST_SMALL_BYTES + 1).decode("utf-8")
