"""Writing results: whole or not at all, and never over another run's."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsyspipe.run import Run

__all__ = ["write_json", "write_text"]


def write_json(path: Path, text: str, run: Run, *, force: bool) -> None:
    """Write a JSON document; one that is there already is replaced only if it is of the same run, or by force.

    Raises
    ------
    OutputError
        If the file is of another run or one of the run's own reports, or cannot be written.
    """
    run_id = run.header.run_id
    write_text(path, text, run.inputs, may_replace=lambda: force or _run_id_of(path) == run_id)


def write_text(
    path: Path, text: str, inputs: Iterable[Path], *, may_replace: Callable[[], bool]
) -> None:
    """Write a file under a temporary name beside it, then rename it.

    Raises
    ------
    OutputError
        If it is an input or no ordinary file, exists and may not be replaced, or cannot be written.
    """
    temporary = None
    try:
        path = path.resolve()  # write through a link, not over it
        _check_target(path, inputs, may_replace)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=".nsyspipe-", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(text)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise OutputError(str(path), problem, fix="another name or directory") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _check_target(path: Path, inputs: Iterable[Path], may_replace: Callable[[], bool]) -> None:
    if not path.exists():
        return
    if not path.is_file():
        raise OutputError(str(path), "is no ordinary file", fix="another name, or - for stdout")
    if any(path.samefile(one) for one in inputs):
        raise OutputError(str(path), "is one of the reports", fix="another name")
    if not may_replace():
        raise OutputError(
            str(path), "exists, and is not of this run", fix="--force, or another name"
        )


def _umask() -> int:
    """Return the process's file mask; asking means setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _run_id_of(path: Path) -> str | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    run = found.get("run") if isinstance(found, dict) else None
    return run.get("run_id") if isinstance(run, dict) else None
