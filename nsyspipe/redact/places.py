"""Where copies go: next to nothing that they could be mistaken for, and never over an original."""

from __future__ import annotations

import contextlib
import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.errors import NotAReportError, OutputError
from nsyspipe.model.text import decoded
from nsyspipe.nsys.files import (
    make_readable,
    remove_abandoned,
    remove_side_files,
    scratch_directory,
    side_files,
)
from nsyspipe.nsys.find_reports import find_reports
from nsyspipe.reader.sidecar import read_sidecars

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_RAW = ".nsys-rep"
_ANOTHER = "another name"
# What launchers leave beside reports.
_BESIDE = ("*.capture.json", "*nccl*.log", "*topo*.txt")


@dataclass(frozen=True)
class Place:
    """A report, and where its copy goes."""

    report: Path
    copy: Path


def places_for(reports: str, out: Path, *, force: bool) -> list[Place]:
    """Decide where the copies go, before anything is written.

    Parameters
    ----------
    reports
        One report, a directory, or a glob.
    out
        The copy of one report; a directory for the others.
    force
        Whether files may be replaced.

    Raises
    ------
    InputError
        If there is no report, or one that was not exported to SQLite.
    OutputError
        If an original or, without `force`, a file that is there would be replaced.
    """
    path = Path(reports)
    _check_exported([path])
    found = find_reports([reports])
    _check_exported(found)
    is_one = path.is_file() or not (path.is_dir() or glob.has_magic(reports))
    with _writable(out):
        places = [Place(found[0], out)] if is_one else _in_directory(found, out, force=force)
        for place in places:
            _check(place, found, force=force)
    return places


def _check_exported(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.suffix == _RAW:
            raise NotAReportError(
                decoded(str(path)),
                "an nsys report that was not exported to SQLite, and only exports can be redacted",
                fix=f"nsyspipe convert {path}",
            )


def _in_directory(reports: Sequence[Path], out: Path, *, force: bool) -> list[Place]:
    if out.exists() and not out.is_dir():
        problem = "is a file, where a directory for several reports was needed"
        raise OutputError(str(out), problem, fix=_ANOTHER)
    if out.is_dir():
        if any(out.samefile(report.parent) for report in reports):
            problem = "is the directory of the reports, which are never replaced"
            raise OutputError(str(out), problem, fix="another directory")
        if not force and any(out.iterdir()):
            problem = "is not empty: what lies in it would be taken for redacted too"
            raise OutputError(str(out), problem, fix="a new directory, or --force")
    names: dict[str, Path] = {}
    for report in reports:
        if report.name in names:
            problem = f"has the name of {names[report.name]}, and copies keep their names"
            raise OutputError(str(report), problem, fix="one directory at a time")
        names[report.name] = report
    return [Place(report, out / report.name) for report in reports]


def _check(place: Place, reports: Sequence[Path], *, force: bool) -> None:
    copy = place.copy
    # What is left of an older file would be rolled back into the copy, and goes with it.
    there = [one for one in (copy, *side_files(copy)) if os.path.lexists(one)]
    for one in there:
        if one.exists() and any(one.samefile(report) for report in reports if report.exists()):
            raise OutputError(str(one), "is the original, which is never replaced", fix=_ANOTHER)
    if copy.exists() and not copy.is_file():
        problem = "is a directory, where a file for one report was needed"
        raise OutputError(str(copy), problem, fix=str(copy / place.report.name))
    if there and not force:
        raise OutputError(str(there[0]), "exists", fix=f"--force, or {_ANOTHER}")


@contextlib.contextmanager
def staged(places: Sequence[Place]) -> Iterator[list[Path]]:
    """Yield an empty file for each copy, and rename them in the end; after an error nothing is left of them.

    Raises
    ------
    OutputError
        If they cannot be written.
    """
    directory = places[0].copy.parent
    files: list[Path] = []
    made: list[Path] = []
    renamed: list[Path] = []
    held = contextlib.ExitStack()
    try:
        with _writable(directory):
            made = _make(directory)
            remove_abandoned(directory)
            scratch = held.enter_context(scratch_directory(directory))
            for number, _ in enumerate(places):
                files.append(scratch / f"{number}.sqlite")
                files[-1].touch(mode=0o600)
        yield files
        with _writable(directory):
            for file in files:
                _finish(file)
            for file, place in zip(files, places, strict=True):
                remove_side_files(place.copy)
                file.replace(place.copy)
                renamed.append(place.copy)
        made, renamed = [], []
    finally:
        held.close()
        for file in renamed:
            with contextlib.suppress(OSError):
                file.unlink()
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def beside(reports: Sequence[Path]) -> tuple[list[str], bool]:
    """Return the names of the files beside some reports that `analyze` reads too, and whether others like them are there.

    It reads sidecars of the reports, and the logs and topologies that those name.
    """
    read = {path for path in read_sidecars(reports).paths if path.exists()}
    folders = dict.fromkeys(report.parent for report in reports)
    there = {path for folder in folders for one in _BESIDE for path in folder.glob(one)}
    return sorted({decoded(path.name) for path in read}), bool(there - read)


def _make(directory: Path) -> list[Path]:
    """Make a directory and those above it, and return what was made, innermost first."""
    missing = [one for one in (directory, *directory.parents) if not one.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    return missing


def _finish(file: Path) -> None:
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
    make_readable(file)


@contextlib.contextmanager
def _writable(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise OutputError(decoded(str(out)), problem, fix="another directory") from error
