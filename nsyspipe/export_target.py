"""Where the export of a report belongs, and what is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.errors import DamagedReportError, NotAReportError, OutputError
from nsyspipe.read.export_origin import export_origin
from nsyspipe.read.file_check import readable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_up_to_date", "not_writable", "target_of"]

_EXPORT_SUFFIX = ".sqlite"
_REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
_HEADER_BYTES = 100


def target_of(report: Path, directory: Path | None = None) -> Path:
    """Return where a report is exported to: beside it, or into a directory."""
    is_report = report.suffix in _REPORT_SUFFIXES
    name = f"{report.stem if is_report else report.name}{_EXPORT_SUFFIX}"
    return (report.parent if directory is None else directory) / name


def is_up_to_date(source: Path, target: Path, *, force: bool) -> bool:
    """Return whether an export is there that is whole, of a report with this name, and not older than it.

    Parameters
    ----------
    force
        Whether to export in any case.

    Raises
    ------
    InputError
        If the report cannot be read, or is empty.
    OutputError
        If something else is where the export would be, and may not be replaced.
    """
    with readable(source):
        report = source.stat()
        if not source.is_file():
            raise NotAReportError(str(source), "no ordinary file, where a report was needed")
        source.open("rb").close()
    if not report.st_size:
        problem = "is empty (0 bytes): its capture did not end well"
        raise DamagedReportError(str(source), problem, fix="capture it again")
    if not target.exists():
        return False
    if not target.is_file():
        raise OutputError(str(target), "is no ordinary file", fix="another directory: -o DIR")
    if force:
        return False
    try:
        origin = export_origin(target)
    except (DamagedReportError, NotAReportError):
        if _is_unfinished(target):
            return False
        origin = None
    if origin is None or origin.report_name not in (None, source.name):
        what = "is no export of nsys"
        if origin is not None:
            what = f"was exported from {origin.report_name}, not from {source.name}"
        raise OutputError(
            str(target),
            f"exists, and {what}",
            fix="--force to replace it, or another directory: -o DIR",
        )
    return origin.is_whole and target.stat().st_mtime_ns >= report.st_mtime_ns


def _is_unfinished(target: Path) -> bool:
    """Return whether a file looks like an SQLite file whose writer was killed: cut short, or no header yet."""
    try:
        with target.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError:
        return False
    return not header.strip(b"\0") or header.startswith(b"SQLite format 3")


def not_writable(path: Path, error: OSError) -> OutputError:
    """Return the error that says why a file or directory cannot be written."""
    problem = f"cannot be written ({error.strerror})"
    return OutputError(str(path), problem, fix="another directory: -o DIR")
