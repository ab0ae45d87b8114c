"""Where files lie in a store, which names a run may have, and which runs a store has.

Every start of the program asks for this, so nothing here takes long.

::

    STORE/steps/run_id=ID/part-0.parquet            plain files, which are all that readers need
    STORE/events/run_id=ID/rank=0/part-0.parquet
    STORE/.nsyspipe/staging/UNIQUE.ID/...           what a writer has not committed yet
    STORE/.nsyspipe/switch/ID/steps.parquet, ...    committed, but not in place yet
    STORE/.nsyspipe/switch/ID/files                 the names of all files that the run then has
    STORE/.nsyspipe/index                           the rows of `runs` of all runs, each with a
                                                    digest of the file that it was read from
    STORE/.nsyspipe/lock

A copy of any part of a store can be read, too.

A run has a file in many tables, and no single rename can publish them together. So a writer puts
all of them into one directory, and renaming that directory to ``switch/ID`` is the moment at which
the run is replaced. After it, each file is renamed into its place, ``runs`` last, which takes some
milliseconds. If a writer is killed meanwhile, the next writer does the rest.

A reader that uses `nsyspipe` looks into ``switch`` first, and finds the names and digests of the
files of a run in the run's own row. Such a reader gets the old run or the new one, never some
tables of each. A reader of the plain files gets whole files, but may find old tables next to new
ones while a writer renames them. After a writer was killed at that moment, this lasts until the
next run is saved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from nsyspipe.errors import DatasetError, OptionError
from nsyspipe.model.names import RUN_DIRECTORY
from nsyspipe.model.user_paths import AnyPath

FILE = "a file"
DIRECTORY = "a directory"
LINK = "a link"
_KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: DIRECTORY,
    stat.S_IFLNK: LINK,
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}
# Never follow a link, and never wait for a writer of a FIFO.
_SAFE_OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
HIDDEN = ".nsyspipe"
SWITCH = "switch"
INDEX_FILE = "index"
PART = "part-0.parquet"
_SUFFIX = ".parquet"
RUNS_FILE = f"runs{_SUFFIX}"
_MAX_RUN_ID_LENGTH = 100
# The ids of runs that can be saved.
RUN_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{_MAX_RUN_ID_LENGTH - 1}}}")
# The names that `file_name` makes.
FILE_NAME = re.compile(r"[a-z][a-z0-9_]*(-(0|[1-9][0-9]{0,9}))?\.parquet")
# DuckDB takes more texts for a date than Python does.
_DUCKDB_DATE = re.compile(r"[0-9]+-[0-9]+-[0-9]+|epoch", re.IGNORECASE)


class NotPlainError(Exception):
    """A link or another unexpected thing stands where a store has a directory or a file."""

    def __init__(self, path: Path, actual: str, expected: str) -> None:
        self.path = path
        self.actual = actual
        self.expected = expected
        self.problem = f"is {actual}, where a store has {expected}"
        super().__init__(f"{path}: {self.problem}")

    def as_dataset_error(self) -> DatasetError:
        """Return the error for the user who reads the store."""
        return DatasetError(str(self.path), self.problem, fix=f"remove {self.path}")


@dataclass(frozen=True)
class Directory(contextlib.AbstractContextManager["Directory"]):
    """An open directory of a store, as a context.

    Links in the directory are never followed. A `NotPlainError` is raised for a link, and for
    anything else that is neither a directory nor an ordinary file.
    """

    fd: int
    # For messages only.
    path: Path

    @classmethod
    def at(cls, path: AnyPath) -> Self:
        """Open a directory that the user named. Links in its path are followed."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return cls(fd, Path(str(path)))

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def names(self) -> list[str]:
        """Return the names in the directory, in no order."""
        return os.listdir(self.fd)  # noqa: PTH208 - by descriptor

    def require(self, name: str, kind: str) -> bool:
        """Return whether a name exists. Raise a `NotPlainError` if it is of another kind.

        `kind` is `FILE` or `DIRECTORY`.
        """
        try:
            state = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        actual_kind = _kind(state.st_mode)
        if actual_kind != kind:
            raise NotPlainError(self.path / name, actual_kind, kind)
        return True

    def enter(self, name: str, *, make: bool = False) -> Directory:
        """Open a directory inside this one. With `make`, a missing one is made first."""
        flags = os.O_RDONLY | os.O_DIRECTORY | _SAFE_OPEN_FLAGS
        try:
            fd = os.open(name, flags, dir_fd=self.fd)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=self.fd)
            return self.enter(name)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                self.require(name, DIRECTORY)
            raise
        return Directory(fd, self.path / name)

    @contextlib.contextmanager
    def within(self, *names: str, make: bool = False) -> Iterator[Directory]:
        """Enter the named directories one after the other, and yield the last."""
        with contextlib.ExitStack() as opened:
            directory = self
            for name in names:
                directory = opened.enter_context(directory.enter(name, make=make))
            yield directory

    def open_file(self, name: str, flags: int = os.O_RDONLY) -> BinaryIO:
        """Open an ordinary file in the directory."""
        # Check first, because some devices take the opening itself for a request.
        self.require(name, FILE)
        try:
            fd = os.open(name, flags | _SAFE_OPEN_FLAGS, 0o666, dir_fd=self.fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotPlainError(self.path / name, LINK, FILE) from error
            raise
        kind = _kind(os.fstat(fd).st_mode)
        if kind != FILE:
            os.close(fd)
            raise NotPlainError(self.path / name, kind, FILE)
        return os.fdopen(fd, "wb" if flags & os.O_ACCMODE else "rb")

    def create(self, name: str) -> BinaryIO:
        """Make a new file in the directory, and open it for writing."""
        return self.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def move(self, name: str, target: Directory, new_name: str) -> None:
        """Move a file or directory from this directory into another one, in one step."""
        os.rename(name, new_name, src_dir_fd=self.fd, dst_dir_fd=target.fd)

    def remove_empty(self, *names: str) -> None:
        """Remove the directory at the end of a path of names, and its parents, while empty."""
        for n_names in range(len(names), 0, -1):
            *parents, name = names[:n_names]
            with (
                contextlib.suppress(OSError, NotPlainError),
                self.within(*parents) as parent,
            ):
                os.rmdir(name, dir_fd=parent.fd)


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a device")


def file_name(table: str, rank: int | None = None) -> str:
    """Return the name of a table's file while the file is not in its place."""
    name = table if rank is None else f"{table}-{rank}"
    return f"{name}{_SUFFIX}"


def table_of_file(name: str) -> str | None:
    """Return the table that a file belongs to by its `file_name`; None for any other name."""
    from nsyspipe.model.schema import DATASET  # noqa: PLC0415 - heavy, and not needed to find a run

    table, _, _ = name.removesuffix(_SUFFIX).partition("-")
    is_of_table = FILE_NAME.fullmatch(name) and table in DATASET
    return table if is_of_table else None


def published(name: str, run_id: str) -> Path:
    """Return the path in a store at which readers find a file of a run, by its `file_name`."""
    table, _, rank = name.removesuffix(_SUFFIX).partition("-")
    directory = Path(table, f"{RUN_DIRECTORY}{run_id}")
    if rank:
        directory /= f"rank={rank}"
    return directory / PART


def has_run(store: Path, run_id: str) -> bool:
    """Return whether a store has a run. Checks existence only: reading reports damage."""
    if not run_id or "/" in run_id or "\0" in run_id:
        return False
    # Look into `switch` first. A file leaves it only for its place, so in the other order a file
    # that moves in between would be in neither.
    place_in_switch = store / HIDDEN / SWITCH / run_id / RUNS_FILE
    if RUN_ID.fullmatch(run_id) and os.path.lexists(place_in_switch):
        return True
    place = store / published(RUNS_FILE, run_id)
    return os.path.lexists(place)


def name_of_store(store: Path) -> str:
    """Return the name of a store's directory, with links resolved."""
    return Path(os.path.realpath(store)).name or "runs"


def run_ids(store: Path) -> Iterator[str]:
    """Yield the runs of a store, in no order.

    Without a store there are none. A store with links instead of directories is an error.
    """
    # Look into `switch` first. A run leaves it only for its place, so it is found in one of both.
    switched = _names_in(store, HIDDEN, SWITCH)
    names = _names_in(store, "runs")
    directories = [name for name in names if name.startswith(RUN_DIRECTORY)]
    in_place = {name.removeprefix(RUN_DIRECTORY) for name in directories}
    for run_id in in_place.union(switched):
        if has_run(store, run_id):
            yield run_id


def _names_in(store: Path, *names: str) -> list[str]:
    try:
        with Directory.at(store) as top, top.within(*names) as directory:
            return directory.names()
    except NotPlainError as error:
        # A directory of another program may have anything called `runs`.
        if names == ("runs",):
            return []
        raise error.as_dataset_error() from error
    except (OSError, ValueError):
        return []


def check_run_id(run_id: str) -> None:
    """Raise an `OptionError` for an id that no run can have. The fix is a similar id that works.

    No run can have an id that is not the name of a directory, or one that DuckDB, pandas, Polars or
    pyarrow would convert to a number or a date.
    """
    is_directory_name = RUN_ID.fullmatch(run_id) is not None
    if is_directory_name and not _is_number_or_date(run_id):
        return
    if is_directory_name:
        problem = "looks like a number or a date, and DuckDB and pandas would convert it"
        usable = run_id
    else:
        problem = (
            f"is not a valid directory name (up to {_MAX_RUN_ID_LENGTH} letters, digits and "
            ". _ + -, first a letter or digit)"
        )
        usable = _as_directory_name(run_id)
    # A text that was made the name of a directory may be a number, too.
    if _is_number_or_date(usable):
        usable = f"run-{usable}"[:_MAX_RUN_ID_LENGTH]
    raise OptionError(f"--run-id {run_id!r}", problem, fix=f"--run-id {usable}")


def _as_directory_name(text: str) -> str:
    """Return the most similar text that `RUN_ID` allows, which may still be a number."""
    with_dashes = re.sub(r"[^A-Za-z0-9._+-]+", "-", text).lstrip("._+-")
    return with_dashes[:_MAX_RUN_ID_LENGTH].rstrip("-.") or "1"


def _is_number_or_date(text: str) -> bool:
    for parse in (float, lambda number: int(number, 0), date.fromisoformat):
        with contextlib.suppress(ValueError):
            parse(text)
            return True
    return _DUCKDB_DATE.fullmatch(text) is not None


def is_saved(path: Path) -> bool:
    """Return whether a path is a store with runs, or the directory of one run in one table."""
    # A file is mostly a report, and a name with a zero byte exists nowhere. Both are left to the
    # reader of reports, which has the right message.
    if "\0" in str(path) or os.path.isfile(path):  # noqa: PTH113 - a name may be too long
        return False
    return is_one_run(path) or any(run_ids(path))


def is_one_run(path: Path) -> bool:
    """Return whether a path names one run: ``STORE:NAME``, or the run's directory in a table."""
    return run_reference(path) is not None


class RunReference(NamedTuple):
    """A store, and the name of one of its runs as the user wrote it."""

    store: Path
    # None: the user named the store only.
    name: str | None
    # The name is certainly the id of a run, and not perhaps a label.
    is_id: bool


def place_of(store: str | Path, run_id: str) -> str:
    """Return the path that names one run of a store by its id, whatever labels there are."""
    directory = published(RUNS_FILE, run_id).parent
    return str(Path(store, directory))


def run_reference(path: Path) -> RunReference | None:
    """Return what ``STORE/<table>/run_id=ID`` or ``STORE:NAME`` refers to; None for other paths."""
    has_table_and_run = len(path.parts) > 1 and path.name.startswith(RUN_DIRECTORY)
    # A path such as `.` has no name of its own, so it is resolved.
    directory = path if has_table_and_run else Path(os.path.realpath(path))
    if directory.name.startswith(RUN_DIRECTORY):
        run_id = directory.name.removeprefix(RUN_DIRECTORY)
        store = directory.parent.parent
        is_directory = os.path.isdir(directory)  # noqa: PTH112 - a name may be too long
        if is_directory and has_run(store, run_id):
            return RunReference(store, run_id, is_id=True)
    text = str(path)
    if os.path.lexists(text):
        return None
    # A store and a name may contain colons themselves, so each colon may be the one between them.
    for index, letter in enumerate(text):
        # The name of a store is not empty.
        if letter == ":" and index > 0:
            store = Path(text[:index])
            if any(run_ids(store)):
                name = text[index + 1 :]
                return RunReference(store, name, is_id=False)
    return None
