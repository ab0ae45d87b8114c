"""Refuse what cannot be a closed, whole SQLite file, before an engine touches it."""

from __future__ import annotations

import contextlib
import stat
import struct
from typing import TYPE_CHECKING

from nsyspipe.errors import DamagedReportError, NotAReportError, ReportNotFoundError, shortage
from nsyspipe.sidecar_model import SIDECAR_SUFFIX

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["BEING_WRITTEN", "EXPORT_AGAIN", "WAIT", "check_file", "readable"]

EXPORT_AGAIN = "export it again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep"
BEING_WRITTEN = "is still being written, or its writer was killed"
WAIT = "wait until nsys export has ended"

_EXPORT = ".sqlite"
_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100
_WAL_FORMAT = 2


def check_file(path: Path) -> tuple[os.stat_result, str]:
    """Check one file.

    Returns
    -------
    tuple
        The file's status, and the URI flags to open it with: a closed file in WAL mode is opened as
        immutable, since without that SQLite makes ``-wal`` and ``-shm`` files, even for a reader.

    Raises
    ------
    ReportNotFoundError, NotAReportError, DamagedReportError
        If the file is missing, no SQLite, unreadable, truncated or being written.
    """
    status, header = _read_header(path)
    if not header:
        raise DamagedReportError(str(path), "is empty (0 bytes)", fix=EXPORT_AGAIN)
    if not header.startswith(_MAGIC[: len(header)]):
        raise NotAReportError(str(path), "not an SQLite database", fix=_needed(path))
    _check_size(path, header, status.st_size)
    _check_side_files(path)
    in_wal_mode = _WAL_FORMAT in header[18:20]
    return status, "mode=ro&immutable=1" if in_wal_mode else "mode=ro"


def _needed(path: Path) -> str:
    """Say what to pass instead of a file that is no database."""
    if path.name.endswith(SIDECAR_SUFFIX):
        return "pass the .sqlite reports beside it; it is read with them"
    if path.suffix == _EXPORT:
        return "nsys export --type=sqlite REPORT.nsys-rep"
    return "pass the reports of a capture: .sqlite, or .nsys-rep where there is nsys"


def _read_header(path: Path) -> tuple[os.stat_result, bytes]:
    with readable(path):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise NotAReportError(str(path), "no ordinary file, where a report was needed")
        with path.open("rb") as file:
            return status, file.read(_HEADER_BYTES)


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what the file system says about a path into our errors."""
    try:
        yield
    except FileNotFoundError as error:
        raise ReportNotFoundError(
            str(path), "no such file", fix="check the path, or quote the glob"
        ) from error
    except PermissionError as error:
        raise DamagedReportError(
            str(path), "permission denied", fix="chmod u+r on it, and u+x on its directories"
        ) from error
    except OSError as error:
        if (told := shortage(error)) is not None:
            raise told from error
        raise DamagedReportError(str(path), f"cannot be opened ({error.strerror})") from error
    except ValueError as error:  # a NUL character
        raise DamagedReportError(repr(str(path)), f"is no file name ({error})") from error


def _check_size(path: Path, header: bytes, size: int) -> None:
    """Compare the file's size with the page count in its header."""
    expected = _HEADER_BYTES
    if len(header) == _HEADER_BYTES:
        (page_size,) = struct.unpack(">H", header[16:18])
        (pages,) = struct.unpack(">I", header[28:32])
        expected = (65536 if page_size == 1 else page_size) * pages
    if size < expected:
        raise DamagedReportError(
            str(path), f"is truncated: {size} bytes of at least {expected}", fix=EXPORT_AGAIN
        )


def _check_side_files(path: Path) -> None:
    """Refuse a report whose writer has not finished: its journal lies beside it."""
    for suffix in ("-journal", "-wal"):
        side = path.with_name(path.name + suffix)
        with contextlib.suppress(OSError):
            if side.stat().st_size:
                problem = f"{BEING_WRITTEN}: {side.name} lies beside it"
                raise DamagedReportError(str(path), problem, fix=f"{WAIT}, or export again")
