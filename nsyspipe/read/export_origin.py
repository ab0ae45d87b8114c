"""What an SQLite file says about its own export: whether nsys wrote it, whole, and from which report.

Needs only the standard library, unlike the rest of this package: exports are made where there is nothing else.
"""

from __future__ import annotations

import sqlite3  # noqa: TID251 - the standard library's, see above
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from nsyspipe.read.file_check import check_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ExportOrigin", "export_origin"]

_META, _OLD_META = "META_DATA_EXPORT", "EXPORT_META_DATA"
_EVERY_EXPORT_HAS = "StringIds"
_INPUT = "EXPORT_PARAM_INPUT_FILE"
_LIMITS = ("EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_TIMES_TO_EXPORT")
_MOST_ROWS = 1000


@dataclass(frozen=True)
class ExportOrigin:
    """Where an export comes from.

    Attributes
    ----------
    report_name
        File name of the report; None when the export does not say (before 2023.3).
    is_whole
        Whether it has all tables and times, as far as it says.
    """

    report_name: str | None
    is_whole: bool


def export_origin(path: Path) -> ExportOrigin | None:
    """Return what an export says of itself; None for an SQLite file that nsys did not write.

    Raises
    ------
    NotAReportError, DamagedReportError
        If it is no SQLite file, or one that is not whole.
    """
    _, flags = check_file(path)
    uri = f"{path.absolute().as_uri()}?{flags}"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if _META not in tables:
                is_nsys = bool(tables & {_OLD_META, _EVERY_EXPORT_HAS})
                return ExportOrigin(None, is_whole=True) if is_nsys else None
            query = f"SELECT name, value FROM {_META} LIMIT {_MOST_ROWS}"  # noqa: S608 - constants
            said = {str(name): value for name, value in database.execute(query)}
    except (sqlite3.Error, UnicodeDecodeError):
        return None
    return ExportOrigin(_file_name(said.get(_INPUT)), not any(said.get(one) for one in _LIMITS))


def _file_name(given: object) -> str | None:
    if not isinstance(given, str) or not given:
        return None
    # A report may have been exported on Windows.
    return PurePosixPath(PureWindowsPath(given).name).name
