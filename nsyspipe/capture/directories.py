"""A job's temporary directory: where the user's are, under a path that sockets can have."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["short_directory"]

# A Unix socket's path has 107 bytes at most (unix(7)). Below this directory a rank has its own, and in that Python's
# multiprocessing, which a DataLoader's workers use, puts sockets 32 bytes deeper; nsys has some too.
_MOST_BYTES = 50
_CAPTURES = (".nsys-rep", ".qdstrm")
_SHORT = "/tmp"  # noqa: S108 - every user's; mkdtemp makes what is ours in it


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


def _made(parent: str | None, cleaning: contextlib.ExitStack) -> Path:
    path = Path(tempfile.mkdtemp(prefix="nsyspipe-", dir=parent)).absolute()
    cleaning.callback(_remove, path)
    return path


def _remove(path: Path) -> None:
    if not any(_is_capture(one) for one in path.rglob("*")):
        shutil.rmtree(path, ignore_errors=True)


def _is_capture(path: Path) -> bool:
    """Tell whether a file is a report of nsys, or what it makes one of."""
    return path.suffix in _CAPTURES and path.is_file() and path.stat().st_size > 0
