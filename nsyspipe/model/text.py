"""Names that come from traces and file systems: any bytes at all, until they are made fit to show."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def printable(text: str) -> str:
    """Replace control characters, so that a name can neither drive a terminal nor break a line."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def decoded(name: str) -> str:
    """Return a file name as text: bytes that are not UTF-8 are replaced."""
    return os.fsencode(name).decode("utf-8", "replace")


def listed(names: Iterable[object], most: int | None = None) -> str:
    """Return names as ``a, b and c``; of more than `most` the first, and how many more there are."""
    *some, last = words = [str(name) for name in names]
    if most is not None and len(words) > most:
        some, last = words[:most], f"{len(words) - most} more"
    return f"{', '.join(some)} and {last}" if some else last
