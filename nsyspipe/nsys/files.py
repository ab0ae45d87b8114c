"""Files that are complete or missing: scratch directories, remains of killed processes, modes.

Files that cannot be closed, complete SQLite files are refused before an engine opens them.
"""

import contextlib
import errno
import fcntl
import os
import re
import shlex
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nsyspipe.errors import DamagedReportError, NotAReportError, ReportNotFoundError, shortage
from nsyspipe.model.captured import SIDECAR_SUFFIX
from nsyspipe.model.names import RUN_DIRECTORY
from nsyspipe.model.user_paths import AnyPath

# A lock in a directory means that a process of this machine uses it. It ends with the process,
# however that ends.
_LOCK = "lock"
# Temporary names start and end with these, so that no other program uses them.
_PREFIX = ".nsyspipe-"
_SUFFIX = ".unfinished"
# Without the group bit, which a directory may inherit from its parent.
_PERMISSIONS = 0o777
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_OURS = re.compile(rf"{re.escape(_PREFIX)}[a-z0-9_]{{8}}{re.escape(_SUFFIX)}")
# A new directory looks abandoned until it has its lock, so it is not removed for this time.
YOUNG_S = 60.0
# Without locks, a directory that was used in this time is not abandoned.
_RECENT_S = 86_400.0
_EXPORT = ".sqlite"
_SIDE_SUFFIXES = ("-journal", "-wal", "-shm")
_CAPTURES = (".nsys-rep", ".qdrep", ".qdstrm")
# The name, without suffix, of a copy of a report in a scratch directory, and of its ranges.
NAME_OF_COPY = "copy-with-ranges"
SUFFIX_OF_RANGES = ".nvtxt"
_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100
_WAL_FORMAT = 2
# Files that are not reports, by suffix: outputs of commands, and files next to reports.
OUTPUTS = {
    ".html": "a page",
    ".json": "a JSON document",
    ".md": "a summary in Markdown",
    ".csv": "a table",
    ".log": "a log",
    ".pftrace": "a trace for Perfetto",
    ".parquet": "a file of a run store",
    ".ipynb": "a notebook",
    ".py": "a program",
}
EXPORT_AGAIN = "export it again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep"
BEING_WRITTEN = "is still being written, or its writer was killed"
WAIT = "wait until nsys export has ended"


@contextlib.contextmanager
def opened(path: AnyPath, flags: int, directory: int | None = None) -> Iterator[int]:
    """Yield a file descriptor, which does not wait for a pipe.

    `path` may be relative to an open `directory`. Raises OSError if the file cannot be opened.
    """
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield file
    finally:
        os.close(file)


def claim(directory: Path) -> int | None:
    """Take the shared lock of a directory, which shows that this process uses the directory.

    Returns the open descriptor of the lock; None if the lock cannot be taken. The lock is held
    until the descriptor is closed or the process ends. The file of the lock gets the current time,
    for `claimed_at`.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(directory / _LOCK, flags, _FILE_MODE)
    except OSError:
        return None
    try:
        os.utime(lock)
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def is_claimed(directory: Path) -> bool:
    """Tell whether a process uses a directory.

    On a file system without locks, the answer is whether a process has used the directory recently.
    A directory whose lock cannot be opened counts as used.
    """
    with contextlib.suppress(OSError), opened(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW) as lock:
        try:
            # This is possible only if no process holds the shared lock.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            # The file system has no locks.
            seconds_since_use = time.time() - os.fstat(lock).st_mtime
            return seconds_since_use < _RECENT_S
        return False
    # The lock could not be opened.
    return True


def claimed_at(directory: Path) -> float:
    """Return when a directory was last claimed, in seconds since the epoch; 0 if never."""
    with contextlib.suppress(OSError):
        return (directory / _LOCK).stat().st_mtime
    return 0.0


@contextlib.contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """Yield a new hidden directory that only this user can read, and remove it in the end.

    Raises OSError if it cannot be made.
    """
    directory = Path(tempfile.mkdtemp(dir=parent, prefix=_PREFIX, suffix=_SUFFIX))
    lock = claim(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def claimed_file(parent: Path) -> Iterator[Path]:
    """Yield a new hidden file that only this user can read.

    It is removed in the end unless it was renamed.
    """
    remove_abandoned(parent)
    lock, name = tempfile.mkstemp(dir=parent, prefix=_PREFIX, suffix=_SUFFIX)
    # This fails on a file system without locks. There, `remove_abandoned` removes no file either.
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield Path(name)
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        os.close(lock)


def remove_abandoned(parent: Path) -> None:
    """Remove the scratch directories and files of killed processes from a directory.

    They are recognized by their names, modes and contents. What cannot be removed stays.
    """
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{_PREFIX}*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    """Remove a directory of `scratch_directory`, or a file of `claimed_file`, that nobody uses.

    Other paths stay. Raises OSError if a process uses the file, or if the path cannot be looked at.
    """
    status = path.lstat()
    # The process that made the path may not have its lock yet.
    is_young = time.time() - status.st_mtime <= YOUNG_S
    is_of_this_user = status.st_uid == os.geteuid()
    if is_young or not is_of_this_user or not _OURS.fullmatch(path.name):
        return
    permissions = status.st_mode & _PERMISSIONS
    is_private_file = stat.S_ISREG(status.st_mode) and permissions == _FILE_MODE
    if holds_exports_only(path) or _holds_copy_only(path):
        if not is_claimed(path):
            shutil.rmtree(path, ignore_errors=True)
    elif is_private_file:
        with opened(path, os.O_RDONLY | os.O_NOFOLLOW) as lock:
            # A process that uses the file holds this lock.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another file may have this name by now.
            if os.path.samestat(os.fstat(lock), path.lstat()):
                path.unlink()


def is_as_made(directory: Path) -> bool:
    """Tell whether a directory is as `scratch_directory` makes it: private, with an empty lock.

    Raises OSError if there is no such directory, or no lock.
    """
    status = directory.lstat()
    is_directory = stat.S_ISDIR(status.st_mode)
    is_of_this_user = status.st_uid == os.geteuid()
    has_mode = status.st_mode & _PERMISSIONS == _DIRECTORY_MODE
    if not is_directory or not is_of_this_user or not has_mode:
        return False
    lock = (directory / _LOCK).lstat()
    is_private = stat.S_IMODE(lock.st_mode) == _FILE_MODE
    is_empty = lock.st_size == 0
    return is_private and is_empty and stat.S_ISREG(lock.st_mode)


def holds_exports_only(directory: Path) -> bool:
    """Tell whether a directory is as in `is_as_made`, and has only exports and their side files."""
    endings = (_EXPORT, *(_EXPORT + suffix for suffix in _SIDE_SUFFIXES))
    return _holds_only(directory, lambda name: name.endswith(endings))


def _holds_copy_only(directory: Path) -> bool:
    """Tell whether a directory is as in `is_as_made`, and has only a copy of a report, unfinished.

    No user gives a file this name. So the copy is one that ``annotate`` has not finished.
    """
    names_of_copy = {f"{NAME_OF_COPY}{suffix}" for suffix in (*_CAPTURES, SUFFIX_OF_RANGES)}
    return _holds_only(directory, names_of_copy.__contains__)


def _holds_only(directory: Path, is_expected: Callable[[str], bool]) -> bool:
    """Tell whether a directory is as in `is_as_made`, and all its files have expected names."""
    if not is_as_made(directory):
        return False
    paths = [path for path in directory.iterdir() if path.name != _LOCK]
    if not all(is_expected(path.name) for path in paths):
        return False
    modes = [path.lstat().st_mode for path in paths]
    # Links and directories do not count as files.
    return all(map(stat.S_ISREG, modes))


def make_readable(path: Path) -> None:
    """Give a temporary file the mode of any new file. Raises an OSError if that is not possible."""
    # The mask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def side_files(path: Path) -> list[Path]:
    """Return the side files of a database that exist.

    SQLite would apply them to a database that replaces it.
    """
    possible = [path.with_name(path.name + suffix) for suffix in _SIDE_SUFFIXES]
    return [side_file for side_file in possible if os.path.lexists(side_file)]


def remove_side_files(path: Path) -> None:
    """Remove the side files of an older database. Raises an OSError if one cannot be removed."""
    for side_file in side_files(path):
        side_file.unlink(missing_ok=True)


def check_file(path: AnyPath) -> tuple[os.stat_result, str]:
    """Check that a file is a complete SQLite file that nobody is writing.

    Returns its status, and the flags of the URI that opens it for reading. Raises NotAReportError
    for a file of another kind, and DamagedReportError for one that is not complete.
    """
    with readable(path), opened(path, os.O_RDONLY) as file:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise no_file(path)
        header = os.read(file, _HEADER_BYTES)
    if not header:
        raise DamagedReportError(str(path), "is empty (0 bytes)", fix=EXPORT_AGAIN)
    # A truncated header is compared up to its end.
    if not header.startswith(_MAGIC[: len(header)]):
        raise _no_database(path)
    is_header_whole = len(header) == _HEADER_BYTES
    min_bytes = _database_bytes(header) if is_header_whole else _HEADER_BYTES
    if status.st_size < min_bytes:
        problem = f"is truncated: {status.st_size} bytes of at least {min_bytes}"
        raise DamagedReportError(str(path), problem, fix=EXPORT_AGAIN)
    for suffix in ("-journal", "-wal"):
        side_file = Path(os.fspath(path) + suffix)
        # There usually is no such file.
        with contextlib.suppress(OSError):
            if side_file.stat().st_size:
                problem = f"{BEING_WRITTEN}: {side_file.name} is in the same directory"
                raise DamagedReportError(str(path), problem, fix=f"{WAIT}, or export again")
    # To read a closed file in WAL mode, SQLite would make -wal and -shm files, unless it is told
    # that the file is immutable.
    is_in_wal_mode = _WAL_FORMAT in header[18:20]
    return status, "mode=ro&immutable=1" if is_in_wal_mode else "mode=ro"


def _database_bytes(header: bytes) -> int:
    """Return the size of a database in bytes by its header."""
    stated_page_bytes, n_pages = struct.unpack(">16xH10xI68x", header)
    # 65536 does not fit into the two bytes of this field, so 1 stands for it.
    page_bytes = 65536 if stated_page_bytes == 1 else stated_page_bytes
    n_bytes: int = page_bytes * n_pages
    return n_bytes


def is_capture(path: Path) -> bool:
    """Tell whether a file has the name of a report, or is a database.

    Such a file is never overwritten.
    """
    if path.suffix.lower() in _CAPTURES:
        return True
    with contextlib.suppress(OSError), opened(path, os.O_RDONLY) as file:
        return os.read(file, len(_MAGIC)) == _MAGIC
    return False


def no_file(path: AnyPath) -> NotAReportError:
    """Return the error for a path that is not an ordinary file."""
    return NotAReportError(str(path), "is not an ordinary file", fix="pass the file itself")


def _no_database(file: AnyPath) -> NotAReportError:
    """Return the error for a file that is no database, with a fix for what the file may be."""
    path = Path(str(file))
    fix_for_other_file = (
        "pass the reports of a capture: .sqlite files, or .nsys-rep files if nsys is installed"
    )
    is_sidecar = path.name.endswith(SIDECAR_SUFFIX)
    if path.suffix in OUTPUTS and not is_sidecar:
        problem = f"is {OUTPUTS[path.suffix]}, not a report"
        # The file may be one of a saved run, which is a directory.
        run_folders = [parent for parent in path.parents if parent.name.startswith(RUN_DIRECTORY)]
        if run_folders:
            fix = f"nsyspipe analyze {shlex.quote(str(run_folders[0]))}"
        else:
            fix = f"{fix_for_other_file}, or pass a run store (the directory)"
        return NotAReportError(str(path), problem, fix=fix)
    if is_sidecar:
        fix = "pass the .sqlite reports in the same directory, nsyspipe reads this file with them"
    elif path.suffix == _EXPORT:
        fix = "nsys export --type=sqlite REPORT.nsys-rep"
    else:
        fix = fix_for_other_file
    return NotAReportError(str(path), "is not an SQLite database", fix=fix)


@contextlib.contextmanager
def readable(path: AnyPath) -> Iterator[None]:
    """Turn the errors of the file system about a path into errors of nsyspipe."""
    try:
        yield
    except FileNotFoundError as error:
        fix = "check the path, or quote the glob"
        raise ReportNotFoundError(str(path), "no such file", fix=fix) from error
    except PermissionError as error:
        fix = "chmod u+r the file, and u+x its directories"
        raise DamagedReportError(str(path), "permission denied", fix=fix) from error
    except OSError as error:
        shortage_error = shortage(error)
        if shortage_error is not None:
            raise shortage_error from error
        if error.errno == errno.ENAMETOOLONG:
            raise ReportNotFoundError(
                str(path), "is too long for a file name", fix="check the path"
            ) from error
        raise DamagedReportError(str(path), f"cannot be opened ({error.strerror})") from error
    except ValueError as error:  # a NUL character
        raise DamagedReportError(repr(str(path)), f"is not a file name ({error})") from error
