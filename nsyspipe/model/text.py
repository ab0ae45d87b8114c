"""Names that come from traces and file systems: any bytes at all, until they are made fit to show."""

from __future__ import annotations

import os


def printable(text: str) -> str:
    """Replace control characters, so that a name can neither drive a terminal nor break a line."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def decoded(name: str) -> str:
    """Return a file name as text: bytes that are not UTF-8 are replaced."""
    return os.fsencode(name).decode("utf-8", "replace")
