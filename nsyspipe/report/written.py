"""What a file that is there already says: whose result it is decides whether another may replace it."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["head_of", "json_of"]

# What tells results apart stands at their start; the file behind it may be megabytes.
_HEAD_BYTES = 65536


def head_of(path: Path) -> str:
    """Return how a text file begins; nothing of a file that cannot be read."""
    try:
        return _content(path, _HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def json_of(path: Path) -> Any:  # noqa: ANN401 - whatever stands there
    """Return what a JSON file holds; None of a file that is none, or cannot be read."""
    try:
        return json.loads(_content(path, -1).decode())
    except (OSError, ValueError, RecursionError):
        return None


def _content(path: Path, n_bytes: int) -> bytes:
    """Return how an ordinary file begins; a FIFO is not waited for."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(n_bytes) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
