"""What a finished file needs before it takes its place: the mode of any new file, and nothing of an older one beside it.

Needs only the standard library: it runs beside training programs too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make_readable", "remove_side_files", "side_files"]

_SIDE_SUFFIXES = ("-journal", "-wal", "-shm")


def make_readable(path: Path) -> None:
    """Give a temporary file, which is its owner's alone, the mode that any new file gets.

    Raises
    ------
    OSError
        If it cannot be changed.
    """
    mask = os.umask(0)  # asking means setting it
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def side_files(path: Path) -> list[Path]:
    """Return the files beside a database that are there: SQLite would roll them back into what takes its place."""
    beside = [path.with_name(path.name + suffix) for suffix in _SIDE_SUFFIXES]
    return [one for one in beside if os.path.lexists(one)]


def remove_side_files(path: Path) -> None:
    """Remove what an older writer left beside a database.

    Raises
    ------
    OSError
        If one cannot be removed.
    """
    for one in side_files(path):
        one.unlink(missing_ok=True)
