"""Where processes of ours import from: never the current directory, where anybody's reports may lie, and more than reports."""

from __future__ import annotations

import os
import sys

__all__ = ["import_path"]


def import_path() -> list[str]:
    """Return ``sys.path`` without the current directory, however it is written there, and without relative entries."""
    # No pathlib: it would be imported from the path that this mends.
    return [entry for entry in sys.path if os.path.isabs(entry) and not _is_here(entry)]  # noqa: PTH117


def _is_here(entry: str) -> bool:
    try:
        return os.path.samefile(entry, os.curdir)  # noqa: PTH121
    except (OSError, ValueError):
        return False
