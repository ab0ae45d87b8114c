"""Writes results completely or not at all, and never over the file of another run.

The start of a file tells of which run it is.
"""

import contextlib
import errno
import html
import json
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from nsyspipe.errors import OutputError
from nsyspipe.model.names import RUN_DIRECTORY, decoded, place_as_given
from nsyspipe.nsys.files import claimed_file, is_capture, make_readable
from nsyspipe.store.layout import run_ids

# Tells whether a file may be replaced. It is called only if there is a file.
MayReplace: TypeAlias = Callable[[], bool]
_HEAD_BYTES = 65536
# Parquet files start with these letters.
_PARQUET_MAGIC = "PAR1"
# What stands before the identity in an HTML page.
_START_OF_PAGE = r'<!doctype html>\s*<html lang="en">\s*<head>\s*<meta charset="utf-8">\s*'


def head_of(path: Path, n_bytes: int = _HEAD_BYTES) -> str:
    """Return the start of a text file. Empty if the file cannot be read."""
    try:
        return _content(path, n_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def json_of(path: Path) -> Any:  # noqa: ANN401 - any JSON
    """Return the content of a JSON file. None if it cannot be read or is not JSON."""
    try:
        return json.loads(_content(path, -1).decode())
    except (OSError, ValueError, RecursionError):
        return None


def identity_of_page(path: Path, name: str) -> str | None:
    """Return the content of the first `meta` element of a page of nsyspipe, after the charset.

    None if this element has another name, and for any other file.
    """
    element = rf'<meta name="{re.escape(name)}" content="([^"]*)">'
    match = re.match(_START_OF_PAGE + element, head_of(path))
    return html.unescape(match[1]) if match else None


def _content(path: Path, n_bytes: int) -> bytes:
    """Return the start of a file, or all of it if `n_bytes` is -1.

    Empty for what is not an ordinary file, such as a FIFO, for which nothing may ever be written.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        is_ordinary = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        return file.read(n_bytes) if is_ordinary else b""


def write_text(
    path: Path, text: str, inputs: Iterable[Path], *, may_replace: MayReplace, is_named: bool = True
) -> None:
    """Write a text file, as `writing` does."""
    with writing(path, inputs, may_replace=may_replace, is_named=is_named) as file:
        file.write(text.encode("utf-8", errors="replace"))


@contextlib.contextmanager
def writing(
    path: Path, inputs: Iterable[Path], *, may_replace: MayReplace, is_named: bool = True
) -> Iterator[BinaryIO]:
    """Yield an open file that is named `path` when it is complete. After an error, it is removed.

    If `path` is a link, the target of the link is replaced. If the user did not name the file
    (`is_named` is False), a link is refused.
    """
    if not is_named and path.is_symlink():
        raise OutputError(str(path), "is a link", fix=f"remove {path}")
    check_target(path, inputs, may_replace=may_replace)
    # `realpath`, because `Path.resolve` fails on a link to itself.
    target = Path(os.path.realpath(path)) if is_named else path
    try:
        with claimed_file(target.parent) as temporary:
            with temporary.open("wb") as file:
                yield file
            make_readable(temporary)
            temporary.replace(target)
    except OSError as error:
        raise not_writable(target, error) from error


def check_place_for_file(path_text: str, example: str) -> None:
    """Refuse a path at which no file can be made, before any work is done.

    `example` is the name of a file that the fix proposes, if the path has no name of a file.
    """
    path = Path(path_text)
    if not path_text:
        raise OutputError("''", "names no file to write", fix=example)
    try:
        if path_text.endswith("/") or path.is_dir():
            fix = str(path / example)
            raise OutputError(path_text, "is a directory, not a file", fix=fix)
        if path.is_symlink():
            _check_link(path)
        parent = Path(os.path.realpath(path)).parent
        if not parent.exists():
            directory = shlex.quote(decoded(place_as_given(parent, path)))
            problem = "cannot be written, because its directory does not exist"
            fix = f"mkdir -p {directory}, or another directory"
            raise OutputError(path_text, problem, fix=fix)
        # These errors become an `OutputError` below, as if a file had been opened there.
        if not parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if _is_in_run_store(parent):
            problem = "is among the files of a run store, where all files must be Parquet"
            raise OutputError(path_text, problem, fix="another directory")
    except OSError as error:
        raise not_writable(path, error) from error


def _is_in_run_store(directory: Path) -> bool:
    """Tell whether a directory is of a table of a run store, or of a run in such a table.

    A run store has a directory for each table, which has a directory for each run.
    """
    is_of_run = directory.name.startswith(RUN_DIRECTORY)
    table = directory.parent if is_of_run else directory
    store = table.parent
    has_runs = any(entry.name.startswith(RUN_DIRECTORY) for entry in table.iterdir())
    return has_runs and any(run_ids(store))


def _check_link(path: Path) -> None:
    """Raise an OSError if a link leads to itself. Its target need not exist yet."""
    with contextlib.suppress(FileNotFoundError):
        path.stat()


def check_target(path: Path, inputs: Iterable[Path], *, may_replace: MayReplace) -> None:
    """Refuse to write over a file that may not be replaced."""
    try:
        if path.is_symlink():
            _check_link(path)
        if not path.exists():
            return
        problem = _why_never_replaced(path, inputs)
    except OSError as error:
        raise not_writable(path, error) from error
    if problem:
        raise OutputError(str(path), problem, fix="another name")
    if not may_replace():
        problem = "exists, and is not of this run"
        raise OutputError(str(path), problem, fix="--force, or another name")


def _why_never_replaced(path: Path, inputs: Iterable[Path]) -> str | None:
    """Return why a file is not replaced even with ``--force``. None if it may be replaced."""
    if any(path.samefile(input_path) for input_path in inputs):
        return "is one of the inputs"
    if not path.is_file():
        return "is not an ordinary file"
    if head_of(path).startswith(_PARQUET_MAGIC):
        return "is a file of a run store"
    if is_capture(path):
        return "is a report or another SQLite database, which nsyspipe never replaces"
    return None


def run_id_of_document(path: Path) -> str | None:
    """Return the ID of the run of a JSON document of ``analyze``. None for any other file."""
    document = json_of(path)
    # A document of ``whatif`` has a run, but no summary.
    is_of_analyze = isinstance(document, dict) and "summary" in document
    run = document.get("run") if is_of_analyze else None
    return run.get("run_id") if isinstance(run, dict) else None


def not_writable(path: Path, error: OSError) -> OutputError:
    """Return the error for a place at which the file system lets nothing be written."""
    return OutputError.not_writable(str(path), error, fix="another name or directory")
