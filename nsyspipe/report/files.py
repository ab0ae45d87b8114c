"""Writing results: whole or not at all, and never over another run's, which a file's beginning tells."""

import contextlib
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

Answer: TypeAlias = Callable[[], bool]  # asked only where a file is in the way


def head_of(path: Path, n_bytes: int = 65536) -> str:
    """Return how a text file begins, where it says whose it is; nothing of a file that cannot be read."""
    try:
        return _content(path, n_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def json_of(path: Path) -> Any:  # noqa: ANN401 - whatever stands there
    """Return what a JSON file holds; None of a file that is none, or cannot be read."""
    try:
        return json.loads(_content(path, -1).decode())
    except (OSError, ValueError, RecursionError):
        return None


def identity_of_page(path: Path, name: str) -> str | None:
    """Return the content of the meta element of that name, which stands first in a page of ours; else None."""
    head = r'<!doctype html>\s*<html lang="en">\s*<head>\s*<meta charset="utf-8">\s*'
    found = re.match(rf'{head}<meta name="{re.escape(name)}" content="([^"]*)">', head_of(path))
    return html.unescape(found[1]) if found else None


def _content(path: Path, n_bytes: int) -> bytes:
    """Return how an ordinary file begins; a FIFO is not waited for."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(n_bytes) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""


def write_text(
    path: Path, text: str, inputs: Iterable[Path], *, may_replace: Answer, is_named: bool = True
) -> None:
    """Write a text file, as `writing` does."""
    with writing(path, inputs, may_replace=may_replace, is_named=is_named) as file:
        file.write(text.encode("utf-8", errors="replace"))


@contextlib.contextmanager
def writing(
    path: Path, inputs: Iterable[Path], *, may_replace: Answer, is_named: bool = True
) -> Iterator[BinaryIO]:
    """Yield a file under a temporary name, which is renamed in the end; after an error nothing is left of it."""
    if not is_named and path.is_symlink():
        raise OutputError(str(path), "is a link", fix=f"remove {path}")
    check_target(path, inputs, may_replace=may_replace)
    try:
        if is_named:
            path = Path(
                os.path.realpath(path)
            )  # write through a link, not over it; resolve() fails on a link to itself
        with claimed_file(path.parent) as temporary:
            with temporary.open("wb") as file:
                yield file
            make_readable(temporary)
            temporary.replace(path)
    except OSError as error:
        raise _not_writable(path, error) from error


def check_directory(given: str, name: str) -> None:
    """Raise early if a file could not be made at a path at all; a directory is told the `name` of a file in it."""
    path = Path(given)
    if not given:
        raise OutputError("''", "names no file to write", fix=name)
    try:
        if given.endswith("/") or path.is_dir():
            raise OutputError(given, "is a directory, not a file", fix=str(path / name))
        if path.is_symlink():
            _check_link(path)
        parent = Path(os.path.realpath(path)).parent
        if not parent.exists():
            fix = (
                f"mkdir -p {shlex.quote(decoded(place_as_given(parent, path)))}, or another "
                "directory"
            )
            raise OutputError(
                given, "cannot be written, because its directory does not exist", fix=fix
            )
        if not parent.is_dir():
            raise NotADirectoryError(20, os.strerror(20))
        if not os.access(parent, os.W_OK):
            raise PermissionError(13, os.strerror(13))
        table = parent.parent if parent.name.startswith(RUN_DIRECTORY) else parent
        if any(one.name.startswith(RUN_DIRECTORY) for one in table.iterdir()) and any(
            run_ids(table.parent)
        ):
            problem = "is among the files of a run store, where all files must be Parquet"
            raise OutputError(given, problem, fix="another directory")
    except OSError as error:
        raise _not_writable(path, error) from error


def _check_link(path: Path) -> None:
    """Raise an OSError if a link leads to itself, in one step or several; a file that is not there yet can be made."""
    with contextlib.suppress(FileNotFoundError):
        path.stat()


def check_target(path: Path, inputs: Iterable[Path], *, may_replace: Answer) -> None:
    """Raise if a file is in the way."""
    try:
        if path.is_symlink():
            _check_link(path)
        if not path.exists():
            return
        is_file = path.is_file()
        is_input = any(path.samefile(one) for one in inputs)
    except OSError as error:
        raise _not_writable(path, error) from error
    problem = "is one of the inputs" if is_input else "" if is_file else "is not an ordinary file"
    if problem or head_of(path).startswith(
        "PAR1"
    ):  # whether linked or not, it belongs to a dataset
        raise OutputError(str(path), problem or "is a file of a run store", fix="another name")
    if is_capture(path):
        problem = "is a report or another SQLite database, which nsyspipe never replaces"
        raise OutputError(str(path), problem, fix="another name")
    if not may_replace():
        raise OutputError(
            str(path), "exists, and is not of this run", fix="--force, or another name"
        )


def run_id_of_document(path: Path) -> str | None:
    """Return the run of a JSON document of ``analyze``; None for any other file, that of ``whatif`` too."""
    found = json_of(path)
    run = found.get("run") if isinstance(found, dict) and "summary" in found else None
    return run.get("run_id") if isinstance(run, dict) else None


def _not_writable(path: Path, error: OSError) -> OutputError:
    return OutputError(
        str(path), f"cannot be written ({error.strerror})", fix="another name or directory"
    )
