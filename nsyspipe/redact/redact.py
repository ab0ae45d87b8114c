"""Redacts all reports of a run at once.

A host or a GPU has the same new name in all copies. Copies never overwrite originals, and go to an
otherwise empty directory.
"""

import contextlib
import glob
import itertools
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nsyspipe.errors import InputError, NotAReportError, OutputError
from nsyspipe.model.names import REDACTED_HOST, counted, decoded, listed
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
    CHOSEN,
    NUMBERS,
    Contents,
    Copying,
    NewNames,
    Removed,
    count_left_behind,
    is_copy,
    look_at,
    opened,
)
from nsyspipe.redact.values import (
    copy_counters,
    copy_facts,
    copy_layouts,
    copy_payload_tables,
    copy_ranges,
    copy_strings,
    count_named,
)

_MAX_TABLES_LISTED = 5
_MIB = 2**20
_ANOTHER = "another name"
_NEW_UUID = "gpu-{}"
_NEW_BUS_LOCATION = "bus-{}"
# The files that launchers and NCCL Inspector write into the directory of the reports.
_BESIDE = ("*.capture.json", "*nccl*.log", "*topo*.txt", "*-pid*.log")


class Place(NamedTuple):
    """A report, and where its copy goes."""

    report: Path
    copy: Path


class FilesBeside(NamedTuple):
    """Files in the directories of some reports that are not copied with them."""

    # Names of sidecars of the reports, and of the files that the sidecars name.
    names: list[str]
    # Whether there are logs, topologies or sidecars that belong to none of the reports.
    has_others: bool


@dataclass(frozen=True)
class Redaction:
    """What was done."""

    places: Sequence[Place]
    # Number of hosts that got another name.
    n_hosts: int
    removed: Removed
    # Files in the directories of the reports that `analyze` reads, and that were not copied.
    beside: Sequence[str]
    # Whether there are logs, topologies or sidecars that belong to none of the reports.
    has_others_beside: bool = False


def redact(
    reports: str | Sequence[str],
    out: Path,
    *,
    force: bool = False,
    drop_unknown: bool = False,
    on_progress: OnProgress | None = None,
) -> Redaction:
    """Write copies of reports without what analysis does not need.

    One report is copied to a file, several to a directory. `force` replaces existing copies.
    `drop_unknown` leaves out unknown tables, which are an error otherwise. `on_progress` is called
    with how much is done, and how much there is, in MiB.

    Raises InputError if a report cannot be used, or has an unknown table with rows. Raises
    OutputError if a copy cannot be written, or would replace a file that must stay. After an error,
    no copy is left.
    """
    places = places_for(reports, out, force=force)
    contents = [look_at(place.report) for place in places]
    if not drop_unknown:
        for place, content in zip(places, contents, strict=True):
            _refuse_unknown_tables(place.report, content.unknown_tables)
    new_names = _names_of_copies(contents)
    removed = Removed()
    progress = _Progress(places, on_progress)
    with staged(places) as files:
        for place, names, file in zip(places, new_names, files, strict=True):
            on_rows = partial(progress.show_file, file)
            _copy_report(place.report, file, names, on_rows, removed)
            progress.finish(place.report)
    files_beside = beside([place.report for place in places])
    n_hosts = len({names.host for names in new_names if names.host})
    return Redaction(places, n_hosts, removed, files_beside.names, files_beside.has_others)


def _refuse_unknown_tables(report: Path, unknown_tables: Mapping[str, int]) -> None:
    if not unknown_tables:
        return
    tables = []
    for table in sorted(unknown_tables):
        n_rows = unknown_tables[table]
        tables.append(f"{table} ({counted(n_rows, 'row')})")
    found = listed(tables, _MAX_TABLES_LISTED)
    problem = (
        "has tables that this version of nsyspipe does not know, so they may contain private data"
    )
    fix = "pass --drop-unknown to leave out these tables (nsyspipe does not need them)"
    raise InputError(str(report), problem, found=found, fix=fix)


def _names_of_copies(contents: Sequence[Contents]) -> list[NewNames]:
    """Return the new names in each copy. Equal names stay equal, in all copies."""
    new_hosts = _numbered((content.host for content in contents), REDACTED_HOST)
    all_uuids = itertools.chain.from_iterable(content.uuids for content in contents)
    new_uuids = _numbered(all_uuids, _NEW_UUID)
    all_locations = itertools.chain.from_iterable(content.bus_locations for content in contents)
    new_locations = _numbered(all_locations, _NEW_BUS_LOCATION)
    names_of_copies = []
    for content in contents:
        host = content.host
        # An empty name stays empty. None stays for a report that names no host.
        new_host = new_hosts[host] if host else host
        names_of_copies.append(NewNames(new_host, new_uuids, new_locations))
    return names_of_copies


def _numbered(names: Iterable[str | None], form: str) -> dict[str, str]:
    """Return a new name for each distinct name: a form with a number.

    Numbers count up in the order in which the names appear. Empty names are left out.
    """
    distinct_names = dict.fromkeys(name for name in names if name)
    return {name: form.format(index) for index, name in enumerate(distinct_names)}


class _Progress:
    """Shows how much of some reports was copied.

    A finished report counts with its own size, and an unfinished copy with the size that it has.
    """

    def __init__(self, places: Sequence[Place], on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._n_total_bytes = sum(place.report.stat().st_size for place in places)
        self._n_finished_bytes = 0

    def show_file(self, file: Path) -> None:
        """Show progress while a copy is written to a file."""
        self._show(file.stat().st_size)

    def finish(self, report: Path) -> None:
        """Show that a report was copied."""
        self._n_finished_bytes += report.stat().st_size
        self._show(0)

    def _show(self, n_unfinished_bytes: int) -> None:
        if self._on_progress:
            # A copy may be larger than its report.
            n_done_bytes = self._n_finished_bytes + n_unfinished_bytes
            n_done_bytes = min(n_done_bytes, self._n_total_bytes)
            n_done_mib = n_done_bytes // _MIB
            # Rounded up.
            n_total_mib = -(-self._n_total_bytes // _MIB)
            self._on_progress(n_done_mib, n_total_mib)


def _copy_report(
    source: Path, file: Path, names: NewNames, on_rows: Callable[[], None], removed: Removed
) -> None:
    """Copy a report to an empty file, with new names of its host and GPUs."""
    with open_report(source) as report, opened(source, file) as connection:
        copying = Copying(report, connection, on_rows, removed)
        # Tables of numbers are copied as they are. Those with values to check, or of which only
        # some rows are copied, follow.
        for base in NUMBERS:
            if base not in CHECKED and base not in CHOSEN:
                for table in copying.tables(base):
                    copying.copy(table)
        copy_facts(copying, names)
        copy_counters(copying)
        copy_layouts(copying)
        copy_payload_tables(copying)
        copy_ranges(copying)
        copy_strings(copying)
        count_named(copying)
        count_left_behind(copying)


def places_for(reports: str | Sequence[str], out: Path, *, force: bool) -> list[Place]:
    """Decide where the copies of reports go. Nothing is written.

    `reports` are paths, directories or globs. The copy of a single file is `out` itself. Other
    copies go into the directory `out`. Raises InputError if there is no report, or one that was not
    exported to SQLite. Raises OutputError if a copy would replace an original, another file or,
    without `force`, an existing copy.
    """
    arguments = [reports] if isinstance(reports, str) else reports
    sources = [_export_of(path) for path in find_named(arguments)]
    raw_reports = [path for path in sources if path.suffix in RAW_SUFFIXES]
    if raw_reports:
        raw_paths = [decoded(str(path)) for path in raw_reports]
        problem = "is an nsys report, but nsyspipe can redact only SQLite exports"
        fix = f"nsyspipe convert {shlex.join(raw_paths)}"
        raise NotAReportError(raw_paths[0], problem, fix=fix)
    is_single_file = len(arguments) == 1 and _names_a_file(arguments[0])
    with _writable(out):
        if is_single_file:
            places = [Place(sources[0], out)]
        else:
            places = _in_directory(sources, out, force=force)
        for place in places:
            _check_place(place, sources, force=force)
    return places


def _export_of(report: Path) -> Path:
    """Return the export of a report in its directory, if there is one; else the report."""
    export = report.with_suffix(EXPORT_SUFFIX)
    return export if report.suffix in RAW_SUFFIXES and export.is_file() else report


def _names_a_file(argument: str) -> bool:
    """Tell whether an argument names one file, which need not exist: no directory and no glob."""
    path = Path(argument)
    if path.is_file():
        # Its name may have the signs of a glob.
        return True
    return not path.is_dir() and not glob.has_magic(argument)


def _in_directory(reports: Sequence[Path], out: Path, *, force: bool) -> list[Place]:
    """Return the places of several copies in a directory; OutputError if it cannot be used.

    The directory need not exist.
    """
    is_file = out.exists() and not out.is_dir()
    is_named_as_file = not out.exists() and out.suffix in (EXPORT_SUFFIX, *RAW_SUFFIXES)
    if is_file or is_named_as_file:
        what = "a file" if is_file else "named as a file"
        problem = f"is {what}, but several reports need a directory"
        fix = shlex.quote(f"{out.with_suffix('')}/") if out.suffix else _ANOTHER
        raise OutputError(str(out), problem, fix=fix)
    if out.is_dir():
        _check_directory(out, reports, force=force)
    report_of_name: dict[str, Path] = {}
    for report in reports:
        if report.name in report_of_name:
            first = report_of_name[report.name]
            problem = f"has the same name as {first}, and copies keep their names"
            raise OutputError(str(report), problem, fix="one directory at a time")
        report_of_name[report.name] = report
    return [Place(report, out / report.name) for report in reports]


def _check_directory(out: Path, reports: Sequence[Path], *, force: bool) -> None:
    """Raise OutputError if copies cannot go to an existing directory.

    Copies cannot go to the directory of a report. Without `force`, the directory must be empty.
    """
    if any(out.samefile(report.parent) for report in reports):
        problem = "is the directory of the reports, and nsyspipe never replaces reports"
        raise OutputError(str(out), problem, fix="another directory")
    if not force and any(out.iterdir()):
        problem = "is not empty, so other files could be mistaken for redacted copies"
        raise OutputError(str(out), problem, fix="a new directory, or --force")


def _check_place(place: Place, reports: Sequence[Path], *, force: bool) -> None:
    """Raise OutputError if a copy would replace a file that must stay.

    Only an older redacted copy may be replaced, with `force`.
    """
    copy = place.copy
    # SQLite would apply the side files of an older database to the copy, so they are removed.
    files_to_replace = (copy, *side_files(copy))
    existing = [file for file in files_to_replace if os.path.lexists(file)]
    for file in existing:
        if _is_any_of(file, reports):
            raise OutputError(str(file), "is the original, which is never replaced", fix=_ANOTHER)
    if copy.exists() and not copy.is_file():
        problem = "is a directory, but one report needs a file"
        suggested = copy / place.report.name
        if os.path.lexists(suggested):
            suggested = suggested.with_name(f"redacted-{suggested.name}")
        raise OutputError(str(copy), problem, fix=shlex.quote(str(suggested)))
    if copy.exists() and not is_copy(copy):
        raise OutputError(str(copy), "exists, but is not a copy that redact made", fix=_ANOTHER)
    if existing and not force:
        raise OutputError(str(existing[0]), "exists", fix=f"--force, or {_ANOTHER}")


def _is_any_of(file: Path, reports: Iterable[Path]) -> bool:
    """Tell whether a file is one of the reports, under any name."""
    if not file.exists():
        return False
    return any(file.samefile(report) for report in reports if report.exists())


@contextlib.contextmanager
def staged(places: Sequence[Place]) -> Iterator[list[Path]]:
    """Yield an empty file for each copy; the files are renamed to the copies in the end.

    All copies are in one directory, which is made if it does not exist. After an error, no copy and
    no new directory is left. Raises OutputError if the files cannot be written.
    """
    directory = places[0].copy.parent
    new_directories: list[Path] = []
    renamed_copies: list[Path] = []
    is_complete = False
    scratch_context = contextlib.ExitStack()
    try:
        with _writable(directory):
            # The innermost comes first, because a directory must be empty to be removed.
            parents = (directory, *directory.parents)
            new_directories = [folder for folder in parents if not folder.exists()]
            directory.mkdir(parents=True, exist_ok=True)
            remove_abandoned(directory)
            scratch = scratch_context.enter_context(scratch_directory(directory))
            files = [scratch / f"{number}.sqlite" for number in range(len(places))]
            for file in files:
                file.touch(mode=0o600)
        yield files
        with _writable(directory):
            for file in files:
                _flush(file)
                make_readable(file)
            for file, place in zip(files, places, strict=True):
                remove_side_files(place.copy)
                file.replace(place.copy)
                renamed_copies.append(place.copy)
        is_complete = True
    finally:
        scratch_context.close()
        if not is_complete:
            _remove_left(renamed_copies, new_directories)


def _remove_left(copies: Iterable[Path], directories: Iterable[Path]) -> None:
    """Remove what a failure leaves: some copies, and directories that are empty without these."""
    for copy in copies:
        with contextlib.suppress(OSError):
            copy.unlink()
    for directory in directories:
        with contextlib.suppress(OSError):
            directory.rmdir()


def _flush(file: Path) -> None:
    """Write a file to the disk."""
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())


def beside(reports: Sequence[Path]) -> FilesBeside:
    """Find the sidecars, logs and topologies in the directories of some reports."""
    files_of_sidecars = {path for path in read_sidecars(reports).paths if path.exists()}
    all_files: set[Path] = set()
    for folder in dict.fromkeys(report.parent for report in reports):
        for pattern in _BESIDE:
            all_files.update(folder.glob(pattern))
    other_files = all_files - files_of_sidecars
    names = {decoded(path.name) for path in files_of_sidecars}
    return FilesBeside(sorted(names), has_others=bool(other_files))


@contextlib.contextmanager
def _writable(out: Path) -> Iterator[None]:
    """Raise an OutputError for an OSError."""
    try:
        yield
    except OSError as error:
        place = decoded(str(out))
        raise OutputError.not_writable(place, error, fix="another directory") from error
