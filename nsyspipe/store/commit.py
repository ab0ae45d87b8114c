"""Replace a run of a store in one step.

The files are staged in the store, and one rename then switches to them. If the writer is killed at
any moment, the store has the old run or the new one. `layout` describes how. Everything that may
fail because of space or permissions comes before this rename.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from nsyspipe.errors import OutputError
from nsyspipe.model.names import RUN_DIRECTORY
from nsyspipe.model.schema import DATASET
from nsyspipe.store import layout
from nsyspipe.store.layout import Directory, NotPlainError
from nsyspipe.store.read import files_in_row

_STAGING = "staging"
_LOCK = "lock"
_TABLES = "tables"
_FILES = "files"
# A file that a writer keeps locked as long as it lives. Its process id would not tell whether it
# lives, because ids are used again.
_ALIVE = "alive"
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
# Another writer holds the lock for some milliseconds.
_MAX_LOCK_WAIT_S = 60.0
_LOCK_RETRY_PAUSE_S = 0.01
_MAX_BYTES_OF_FILE_LIST = 2**24


class Locked(Struct, frozen=True):
    """A store that no other writer writes now, without half-finished work of former writers.

    Its methods raise a `NotPlainError` for a link or another unexpected thing.
    """

    top: Directory
    hidden: Directory
    staging: Directory
    switch: Directory

    def files_of(self, run_id: str) -> set[str]:
        """Return the names of the files of a run that are in their places, by `layout.file_name`.

        Only files of tables of the dataset count.
        """
        files = set()
        name = f"{RUN_DIRECTORY}{run_id}"
        for table in DATASET.keys() & self.top.names():
            with (
                contextlib.suppress(FileNotFoundError),
                self.top.within(table, name) as run_directory,
            ):
                if run_directory.require(layout.PART, layout.FILE):
                    files.add(layout.file_name(table))
                files.update(_files_of_ranks(run_directory, table))
        return files

    def commit(self, staged: Staged, names: Iterable[str]) -> None:
        """Replace the files of a run by the staged ones. Present files in `names` stay.

        If this raises, the run is as it was before.
        """
        run_id = staged.run_id
        staged_names = sorted(staged.tables.names())
        try:
            with staged.tables.create(_FILES) as file:
                all_names = sorted({*names, *staged_names})
                file.write(json.dumps(all_names).encode())
            # Directories are made now, while the run can stay as it was.
            for name in staged_names:
                with self.place_of(name, run_id, make=True) as place:
                    # This raises the error if something else than a file is in the way.
                    place.require(layout.PART, layout.FILE)
            staged.directory.move(_TABLES, self.switch, run_id)
        except BaseException:
            self._prune(run_id)
            raise
        # The run is replaced now. The next writer can do the rest if this one fails.
        try:
            with contextlib.suppress(OSError, NotPlainError):
                self.settle(run_id, is_ours=True)
        except BaseException:
            # Such as an interrupt. Some files are in their places by now, so this does the rest.
            with contextlib.suppress(OSError, NotPlainError):
                self.settle(run_id)
            raise

    def settle(self, run_id: str, *, is_ours: bool = False) -> None:
        """Put the files of a committed run into their places, and remove its other files.

        With `is_ours`, this writer has just committed them. Otherwise they come from a writer that
        was killed, and a `NotPlainError` is raised if they are not what such a writer leaves.
        """
        with self.switch.enter(run_id) as committed:
            listed = _listed_files(committed)
            names = [name for name in sorted(committed.names()) if name != _FILES]
            for name in names:
                committed.require(name, layout.FILE)
            self._check_committed(committed, run_id, names, listed, is_ours=is_ours)
            # `runs` comes last, because False sorts before True.
            for name in sorted(names, key=lambda file: file == layout.RUNS_FILE):
                with self.place_of(name, run_id, make=True) as place:
                    committed.move(name, place, layout.PART)
            # Without a list, a former writer has done this already.
            if listed:
                not_listed = self.files_of(run_id) - listed
                for name in sorted(not_listed):
                    with self.place_of(name, run_id) as place:
                        os.unlink(layout.PART, dir_fd=place.fd)
                # A writer that was killed here may have left empty directories, too.
                self._prune(run_id)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_FILES, dir_fd=committed.fd)
        os.rmdir(run_id, dir_fd=self.switch.fd)

    def _check_committed(
        self,
        committed: Directory,
        run_id: str,
        names: list[str],
        listed: set[str],
        *,
        is_ours: bool,
    ) -> None:
        """Raise a `NotPlainError` if a directory in `switch` is not what a writer leaves there.

        A writer leaves an empty directory, or a list of all files of a run with some of these
        files. The list must agree with the row of the run, which a writer knows of its own run.
        """
        is_empty = not listed and not names
        are_names_listed = listed.issuperset({*names, layout.RUNS_FILE})
        has_run_id = layout.RUN_ID.fullmatch(run_id) is not None
        are_of_tables = all(map(layout.table_of_file, listed))
        is_of_run = has_run_id and are_of_tables and (is_empty or are_names_listed)
        if is_of_run and not is_empty and not is_ours:
            is_of_run = files_in_row(self.top, run_id) == listed
        if not is_of_run:
            raise NotPlainError(committed.path, "files of no run", "those of one")

    def clean(self) -> None:
        """Remove what writers that were killed had not committed yet."""
        for name in self.staging.names():
            if not _is_dead(self.staging, name):
                continue
            # The name is a unique text, a dot, and the id of the run.
            _, _, run_id = name.partition(".")
            if layout.RUN_ID.fullmatch(run_id):
                self._prune(run_id)
            shutil.rmtree(name, dir_fd=self.staging.fd, ignore_errors=True)

    def place_of(
        self, name: str, run_id: str, *, make: bool = False
    ) -> contextlib.AbstractContextManager[Directory]:
        """Return the directory of the place of a file of a run, as a context."""
        directory = layout.published(name, run_id).parent
        return self.top.within(*directory.parts, make=make)

    def _prune(self, run_id: str) -> None:
        """Remove the empty directories of a run."""
        for table in DATASET.keys() & self.top.names():
            names = (table, f"{RUN_DIRECTORY}{run_id}")
            with (
                contextlib.suppress(OSError, NotPlainError),
                self.top.within(*names) as run_directory,
            ):
                for name in run_directory.names():
                    run_directory.remove_empty(name)
            self.top.remove_empty(*names)


def _files_of_ranks(run_directory: Directory, table: str) -> Iterator[str]:
    """Yield the files of single ranks in the directory of a run, by `layout.file_name`."""
    for name in run_directory.names():
        kind, _, rank = name.partition("=")
        file = f"{table}-{rank}.parquet"
        if kind == "rank" and layout.FILE_NAME.fullmatch(file):
            with run_directory.enter(name) as rank_directory:
                if rank_directory.require(layout.PART, layout.FILE):
                    yield file


class Staged(Struct, frozen=True):
    """Where the files of a run are made before they replace the present ones."""

    run_id: str
    directory: Directory
    # New files are made here, by their `layout.file_name`.
    tables: Directory


@contextlib.contextmanager
def staged_run(store: Path, run_id: str) -> Iterator[Staged]:
    """Yield where to make the files of a run. A missing store is made.

    An `OutputError` is raised if the store cannot be written. Then the store is as it was.
    """
    root = Path(os.path.realpath(store))
    try:
        if root.exists() and not root.is_dir():
            raise OutputError(str(store), "is not a directory", fix="--out DIR")
        directories = (root, *root.parents)
        missing = [path for path in directories if not path.exists()]
        is_new = not os.path.lexists(root / layout.HIDDEN)
        try:
            with _staged(store, run_id) as staged:
                yield staged
        except BaseException:
            if is_new:
                _remove_new_store(store, missing)
            raise
    except NotPlainError as error:
        is_inside = error.path.is_relative_to(root)
        place = error.path.relative_to(root) if is_inside else error.path
        problem = (
            f"has {error.actual} at {place}, but a run store needs {error.expected}, "
            "so nothing was saved"
        )
        fix = f"remove {error.path}"
        raise OutputError(str(store), problem, fix=fix) from error
    except OSError as error:
        use_another = "use --out with another directory"
        if error.errno in _DISK_FULL_ERRORS:
            problem = "its disk is full"
            fix = f"free some space, or {use_another}"
        else:
            file = f": {error.filename}" if error.filename else ""
            problem = f"cannot be written ({error.strerror}{file})"
            fix = use_another
        raise OutputError(str(store), f"{problem}, so nothing was saved", fix=fix) from error


@contextlib.contextmanager
def _staged(store: Path, run_id: str) -> Iterator[Staged]:
    """Yield where to make the files of a run: in a new directory, which is removed in the end.

    The store is locked only until the directory is made. From then on, the locked file `_ALIVE`
    tells other writers to leave the directory alone.
    """
    name = f"{uuid.uuid4().hex}.{run_id}"
    with contextlib.ExitStack() as opened:
        with locked(store) as store_directories:
            store_directories.clean()
            # If an unexpected thing is in the way, fail before any work is done.
            store_directories.files_of(run_id)
            # The directories of `store_directories` are closed with the lock, so that this one is
            # opened once more.
            staging = opened.enter_context(store_directories.hidden.enter(_STAGING))
            opened.callback(shutil.rmtree, name, ignore_errors=True, dir_fd=staging.fd)
            directory = opened.enter_context(staging.enter(name, make=True))
            alive = opened.enter_context(directory.create(_ALIVE))
            fcntl.flock(alive, fcntl.LOCK_EX)
        tables = opened.enter_context(directory.enter(_TABLES, make=True))
        yield Staged(run_id, directory, tables)


@contextlib.contextmanager
def locked(store: Path) -> Iterator[Locked]:
    """Lock a store against other writers, and finish what writers that were killed left."""
    root = Path(os.path.realpath(store))
    deadline_s = time.monotonic() + _MAX_LOCK_WAIT_S
    with contextlib.ExitStack() as opened:
        while True:
            root.mkdir(parents=True, exist_ok=True)
            # Another writer that fails removes the store if it had made the store. If that happens
            # now, the next attempt makes the store again.
            with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as attempt:
                top = attempt.enter_context(Directory.at(root))
                hidden = attempt.enter_context(top.enter(layout.HIDDEN, make=True))
                staging = attempt.enter_context(hidden.enter(_STAGING, make=True))
                switch = attempt.enter_context(hidden.enter(layout.SWITCH, make=True))
                if _take_lock(hidden, attempt, deadline_s):
                    # The directories and the lock outlive this attempt.
                    opened.enter_context(attempt.pop_all())
                    break
            if time.monotonic() > deadline_s:
                problem = f"has been locked by another writer for {_MAX_LOCK_WAIT_S:.0f} s"
                fix = "try again, or stop the process that holds .nsyspipe/lock"
                raise OutputError(str(store), problem, fix=fix)
        directories = Locked(top, hidden, staging, switch)
        # A writer that was killed may have committed these runs.
        for run_id in switch.names():
            directories.settle(run_id)
        yield directories


def _take_lock(hidden: Directory, opened: contextlib.ExitStack, deadline_s: float) -> bool:
    """Try to take the lock of a store, and return whether this writer holds the lock now.

    The result is False if another writer holds the lock until the deadline, or has removed the
    lock. The lock is held until `opened` closes its file or the process ends in any way.
    """
    # A full disk can open an existing file, but not make one.
    has_lock_file = hidden.require(_LOCK, layout.FILE)
    flags = os.O_RDWR if has_lock_file else os.O_RDWR | os.O_CREAT
    lock = opened.enter_context(hidden.open_file(_LOCK, flags))
    while time.monotonic() <= deadline_s:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_RETRY_PAUSE_S)
        else:
            # Another writer may have removed the file. Then the next writer locks a new file.
            present_file = os.stat(_LOCK, dir_fd=hidden.fd, follow_symlinks=False)
            locked_file = os.fstat(lock.fileno())
            return os.path.samestat(present_file, locked_file)
    return False


def _listed_files(committed: Directory) -> set[str]:
    """Return the names of all files that a committed run has, from its list.

    The result is empty if there is no list, because the run is in its place already. A
    `NotPlainError` is raised for a damaged list.
    """
    with contextlib.suppress(FileNotFoundError), committed.open_file(_FILES) as file:
        names: object = None
        with contextlib.suppress(ValueError, RecursionError):
            names = json.loads(file.read(_MAX_BYTES_OF_FILE_LIST))
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return set(names)
        raise NotPlainError(committed.path / _FILES, "damaged", "a list of names")
    return set()


def _is_dead(staging: Directory, name: str) -> bool:
    """Return whether the writer of a staged run has ended.

    A writer makes and locks the file `_ALIVE` while it holds the lock of the store, which the
    caller holds now. So the writer has ended if the file is missing, or if its lock is free.
    """
    with contextlib.suppress(FileNotFoundError), staging.enter(name) as directory:
        try:
            # NFS locks only files that are open for writing.
            with directory.open_file(_ALIVE, os.O_RDWR) as alive:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _remove_new_store(store: Path, new_directories: list[Path]) -> None:
    """Remove what this writer made of a store in which nothing was saved.

    What another writer uses stays. `new_directories` are the store and its new parents, the
    innermost first.
    """
    root = Path(os.path.realpath(store))
    with contextlib.suppress(OSError, OutputError, NotPlainError):
        if os.path.lexists(root / layout.HIDDEN / _LOCK):
            # While this writer has the lock, no other writer can begin.
            with locked(store) as directories:
                if not [*directories.staging.names(), *directories.switch.names()]:
                    shutil.rmtree(layout.HIDDEN, dir_fd=directories.top.fd)
        else:
            # Nobody got as far as the lock, so there are only empty directories.
            with Directory.at(root) as top:
                for name in (_STAGING, layout.SWITCH):
                    top.remove_empty(layout.HIDDEN, name)
    with contextlib.suppress(OSError):
        for path in new_directories:
            if path.exists():
                # Fails if the directory is not empty.
                path.rmdir()
