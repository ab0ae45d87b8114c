"""Copies of all reports of a run, hosts named alike: next to nothing that they could be mistaken for, no original replaced."""

import contextlib
import glob
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nsyspipe.errors import InputError, NotAReportError, OutputError
from nsyspipe.model.names import REDACTED_HOST, decoded, listed
from nsyspipe.model.options import OnProgress
from nsyspipe.nsys.files import (
    make_readable,
    remove_abandoned,
    remove_side_files,
    scratch_directory,
    side_files,
)
from nsyspipe.nsys.find_reports import EXPORT_SUFFIX, RAW_SUFFIXES, find_named
from nsyspipe.reader.report import open_report
from nsyspipe.reader.sidecar import read_sidecars
from nsyspipe.redact.copy import (
    CHECKED,
    NUMBERS,
    Copying,
    Removed,
    count_left_behind,
    is_copy,
    look_at,
    opened,
)
from nsyspipe.redact.values import copy_facts, copy_layouts, copy_ranges, copy_strings, count_named

_MOST_NAMED = 5
_MIB = 2**20
_ANOTHER = "another name"
_BESIDE = ("*.capture.json", "*nccl*.log", "*topo*.txt")  # what launchers leave beside reports


class Place(NamedTuple):
    """A report, and where its copy goes."""

    report: Path
    copy: Path


@dataclass(frozen=True)
class Redaction:
    """What was done."""

    places: Sequence[Place]
    n_hosts: int  # that got another name
    removed: Removed
    beside: Sequence[str]  # files beside the reports that `analyze` reads, and that were not copied
    has_others_beside: bool = False  # logs, topologies or sidecars of no report


def redact(
    reports: str | Sequence[str],
    out: Path,
    *,
    force: bool = False,
    drop_unknown: bool = False,
    on_progress: OnProgress | None = None,
) -> Redaction:
    """Write copies of reports, to a file for one and a directory for others, without what analysis does not need.

    `force` replaces copies, `drop_unknown` leaves out tables that are not known, which are an error
    else; `on_progress` is called with how much is done, and how much there is, in MiB.

    InputError if a report cannot be used, or has an unknown table with rows; OutputError if a copy
    cannot be written, or would replace what it must not: nothing is left of it.
    """
    places = places_for(reports, out, force=force)
    looks = [look_at(place.report) for place in places]
    for place, (_, unknown) in zip(places, looks, strict=True):
        if unknown and not drop_unknown:
            rows = [f"{table} ({n} rows)" for table, n in sorted(unknown.items())]
            problem = (
                "has tables that this version of nsyspipe does not know, so they may contain "
                "private data"
            )
            fix = "pass --drop-unknown to leave out these tables (nsyspipe does not need them)"
            raise InputError(str(place.report), problem, found=listed(rows, _MOST_NAMED), fix=fix)
    named = dict.fromkeys(
        host for host, _ in looks if host
    )  # numbered as they appear; no name stays none
    hosts = {None: None, "": ""} | {
        host: REDACTED_HOST.format(index) for index, host in enumerate(named)
    }
    removed = Removed()
    n_done = 0
    n_bytes = sum(place.report.stat().st_size for place in places)

    def show(n_more: int) -> None:
        if on_progress:
            on_progress(min(n_done + n_more, n_bytes) // _MIB, -(-n_bytes // _MIB))

    with staged(places) as files:
        for place, (host, _), file in zip(places, looks, files, strict=True):
            with open_report(place.report) as report, opened(place.report, file) as connection:
                copying = Copying(
                    report,
                    connection,
                    partial(lambda copy: show(copy.stat().st_size), file),
                    removed,
                )
                for table in (
                    one for base in NUMBERS if base not in CHECKED for one in copying.tables(base)
                ):
                    copying.copy(table)
                copy_facts(copying, hosts[host])
                for copy_part in (
                    copy_layouts,
                    copy_ranges,
                    copy_strings,
                    count_named,
                    count_left_behind,
                ):
                    copy_part(copying)
            n_done += place.report.stat().st_size
            show(0)
    return Redaction(places, len(named), removed, *beside([place.report for place in places]))


def places_for(reports: str | Sequence[str], out: Path, *, force: bool) -> list[Place]:
    """Decide where the copies of one report, or of several, a directory or a glob, go, before anything is written.

    InputError if there is no report, or one that was not exported to SQLite; OutputError if an
    original or, without `force`, a copy that is there would be replaced, or anything else ever.
    """
    arguments = [reports] if isinstance(reports, str) else reports
    # What was exported beside it stands for a report.
    pairs = ((one, one.with_suffix(EXPORT_SUFFIX)) for one in find_named(arguments))
    found = [
        export if one.suffix in RAW_SUFFIXES and export.is_file() else one for one, export in pairs
    ]
    raw = [decoded(str(one)) for one in found if one.suffix in RAW_SUFFIXES]
    if raw:
        problem = "is an nsys report, but nsyspipe can redact only SQLite exports"
        raise NotAReportError(raw[0], problem, fix=f"nsyspipe convert {shlex.join(raw)}")
    path = Path(arguments[0])
    is_one = len(arguments) == 1 and (
        path.is_file() or not (path.is_dir() or glob.has_magic(arguments[0]))
    )
    with _writable(out):
        places = [Place(found[0], out)] if is_one else _in_directory(found, out, force=force)
        for place in places:
            _check(place, found, force=force)
    return places


def _in_directory(reports: Sequence[Path], out: Path, *, force: bool) -> list[Place]:
    if not out.is_dir() and (out.exists() or out.suffix in (EXPORT_SUFFIX, *RAW_SUFFIXES)):
        problem = (
            f"is {'' if out.exists() else 'named as '}a file, but several reports need a directory"
        )
        raise OutputError(
            str(out),
            problem,
            fix=shlex.quote(f"{out.with_suffix('')}/") if out.suffix else _ANOTHER,
        )
    if out.is_dir():
        if any(out.samefile(report.parent) for report in reports):
            problem = "is the directory of the reports, and nsyspipe never replaces reports"
            raise OutputError(str(out), problem, fix="another directory")
        if not force and any(out.iterdir()):
            problem = "is not empty, so other files could be mistaken for redacted copies"
            raise OutputError(str(out), problem, fix="a new directory, or --force")
    names: dict[str, Path] = {}
    for report in reports:
        if report.name in names:
            problem = f"has the same name as {names[report.name]}, and copies keep their names"
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
        problem = "is a directory, but one report needs a file"
        inside = copy / place.report.name
        inside = inside.with_name(f"redacted-{inside.name}") if os.path.lexists(inside) else inside
        raise OutputError(str(copy), problem, fix=shlex.quote(str(inside)))
    if copy.exists() and not is_copy(copy):
        raise OutputError(str(copy), "exists, but is not a copy that redact made", fix=_ANOTHER)
    if there and not force:
        raise OutputError(str(there[0]), "exists", fix=f"--force, or {_ANOTHER}")


@contextlib.contextmanager
def staged(places: Sequence[Place]) -> Iterator[list[Path]]:
    """Yield an empty file for each copy, renamed in the end; after an error nothing is left; OutputError if they cannot be written."""
    directory = places[0].copy.parent
    made = list[Path]()
    renamed = list[Path]()
    held = contextlib.ExitStack()
    try:
        with _writable(directory):
            made = [
                one for one in (directory, *directory.parents) if not one.exists()
            ]  # innermost first
            directory.mkdir(parents=True, exist_ok=True)
            remove_abandoned(directory)
            scratch = held.enter_context(scratch_directory(directory))
            files = [scratch / f"{number}.sqlite" for number in range(len(places))]
            for file in files:
                file.touch(mode=0o600)
        yield files
        with _writable(directory):
            for file in files:
                with file.open("rb+") as whole:
                    os.fsync(whole.fileno())
                make_readable(file)
            for file, place in zip(files, places, strict=True):
                remove_side_files(place.copy)
                file.replace(place.copy)
                renamed.append(place.copy)
        made = []
        renamed = []
    finally:
        held.close()
        for file in renamed:
            with contextlib.suppress(OSError):
                file.unlink()
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def beside(reports: Sequence[Path]) -> tuple[list[str], bool]:
    """Return the names of the sidecars of some reports and what those name, and whether other such files lie beside them."""
    read = {path for path in read_sidecars(reports).paths if path.exists()}
    folders = dict.fromkeys(report.parent for report in reports)
    there = {path for folder in folders for one in _BESIDE for path in folder.glob(one)}
    return sorted({decoded(path.name) for path in read}), bool(there - read)


@contextlib.contextmanager
def _writable(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise OutputError(decoded(str(out)), problem, fix="another directory") from error
