"""Replace a run in one step: staged in the store, then switched to; killed at any moment, the store still has one run.

How is said in `layout`. Whatever may fail for want of space or of permission comes before the one
rename that counts.
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
# held by a writer as long as it lives, which its process id would not tell: ids come again
_ALIVE = "alive"
_FULL = (errno.ENOSPC, errno.EDQUOT)
# another writer holds the lock for some milliseconds
_LONGEST_WAIT_S = 60.0
_PAUSE_S = 0.01
_LONGEST_RECORD = 2**24


class Locked(Struct, frozen=True):
    """A store that nobody else writes, in which nothing is left half-way; what is not plain is a `NotPlainError`."""

    top: Directory
    hidden: Directory
    staging: Directory
    switch: Directory

    def files_of(self, run_id: str) -> set[str]:
        """Return the names of the files that a run has in their places, of tables of the dataset alone."""
        found = set()
        for table in DATASET.keys() & self.top.names():
            with (
                contextlib.suppress(FileNotFoundError),
                self.top.within(table, f"{RUN_DIRECTORY}{run_id}") as of_run,
            ):
                if of_run.require(layout.PART, layout.FILE):
                    found.add(layout.file_name(table))
                for name in of_run.names():
                    kind, _, rank = name.partition("=")
                    file = f"{table}-{rank}.parquet"
                    if kind == "rank" and layout.FILE_NAME.fullmatch(file):
                        with of_run.enter(name) as of_rank:
                            if of_rank.require(layout.PART, layout.FILE):
                                found.add(file)
        return found

    def commit(self, staged: Staged, names: Iterable[str]) -> None:
        """Let a run have what is staged, and of what it has what is named, no more; where it raises it is as it was."""
        run_id = staged.run_id
        new = sorted(staged.tables.names())
        try:
            with staged.tables.create(_FILES) as file:
                file.write(json.dumps(sorted({*names, *new})).encode())
            for name in new:
                with self.place_of(name, run_id, make=True) as place:
                    place.require(layout.PART, layout.FILE)
            os.rename(_TABLES, run_id, src_dir_fd=staged.own.fd, dst_dir_fd=self.switch.fd)
        except BaseException:
            self._prune(run_id)
            raise
        # Now it is done: what is left the next writer can do.
        try:
            with contextlib.suppress(OSError, NotPlainError):
                self.settle(run_id, is_ours=True)
        except BaseException:
            with contextlib.suppress(OSError, NotPlainError):
                self.settle(run_id)
            raise

    def settle(self, run_id: str, *, is_ours: bool = False) -> None:
        """Put the files of a run that is committed into their places, and remove others; nothing if no writer left them."""
        with self.switch.enter(run_id) as new:
            listed = _listed(new)
            names = sorted({*new.names()} - {_FILES})
            for name in names:
                new.require(name, layout.FILE)
            is_left = {*names, layout.RUNS_FILE} <= listed
            is_left = (is_left and (is_ours or files_in_row(self.top, run_id) == listed)) or not (
                listed or names
            )
            if not (
                layout.RUN_ID.fullmatch(run_id)
                and is_left
                and all(map(layout.table_of_file, listed))
            ):
                raise NotPlainError(new.path, "files of no run", "those of one")
            for name in sorted(names, key=lambda one: one == layout.RUNS_FILE):
                with self.place_of(name, run_id, make=True) as place:
                    os.rename(name, layout.PART, src_dir_fd=new.fd, dst_dir_fd=place.fd)
            for name in sorted(self.files_of(run_id) - listed) if listed else ():
                with self.place_of(name, run_id) as place:
                    os.unlink(layout.PART, dir_fd=place.fd)
            if listed:  # also what a writer that was killed here had emptied
                self._prune(run_id)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_FILES, dir_fd=new.fd)
        os.rmdir(run_id, dir_fd=self.switch.fd)

    def clean(self) -> None:
        """Remove what writers that were killed had not committed yet."""
        for name in self.staging.names():
            if not _is_dead(self.staging, name):
                continue
            if layout.RUN_ID.fullmatch(run_id := name.partition(".")[2]):
                self._prune(run_id)
            shutil.rmtree(name, dir_fd=self.staging.fd, ignore_errors=True)

    def place_of(
        self, name: str, run_id: str, *, make: bool = False
    ) -> contextlib.AbstractContextManager[Directory]:
        """Return the directory that a file of a run lies in, as a context."""
        return self.top.within(*layout.published(name, run_id).parent.parts, make=make)

    def _prune(self, run_id: str) -> None:
        for table in DATASET.keys() & self.top.names():
            own = table, f"{RUN_DIRECTORY}{run_id}"
            with contextlib.suppress(OSError, NotPlainError), self.top.within(*own) as of_run:
                for name in of_run.names():
                    of_run.remove_empty(name)
            self.top.remove_empty(*own)


class Staged(Struct, frozen=True):
    """Where the files of a run are made before it is replaced."""

    run_id: str
    own: Directory
    tables: Directory  # where new files are made, by their `layout.file_name`


@contextlib.contextmanager
def staged_run(store: Path, run_id: str) -> Iterator[Staged]:
    """Yield where to make the files of a run, in a store that is made if need be; an `OutputError` leaves it as it was."""
    root = Path(os.path.realpath(store))
    try:
        if root.exists() and not root.is_dir():
            raise OutputError(str(store), "is not a directory", fix="--out DIR")
        made = [path for path in (root, *root.parents) if not path.exists()]
        is_new = not os.path.lexists(root / layout.HIDDEN)
        try:
            with _staged(store, run_id) as staged:
                yield staged
        except BaseException:
            if is_new:
                _forget(store, made)
            raise
    except NotPlainError as error:
        shown = error.path.relative_to(root) if error.path.is_relative_to(root) else error.path
        problem = (
            f"has {error.actual} at {shown}, but a run store needs {error.expected}, so nothing was "
            "saved"
        )
        raise OutputError(str(store), problem, fix=f"remove {error.path}") from error
    except OSError as error:
        why = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        what = f"cannot be written ({why})"
        fix = "use --out with another directory"
        if error.errno in _FULL:
            what = "its disk is full"
            fix = f"free some space, or {fix}"
        raise OutputError(str(store), f"{what}, so nothing was saved", fix=fix) from error


@contextlib.contextmanager
def _staged(store: Path, run_id: str) -> Iterator[Staged]:
    name = f"{uuid.uuid4().hex}.{run_id}"
    with contextlib.ExitStack() as living:
        with locked(store) as opened:
            opened.clean()
            opened.files_of(run_id)  # what is in the way is said before any work is done
            staging = living.enter_context(
                opened.hidden.enter(_STAGING)
            )  # not the lock's: these stay open
            living.callback(shutil.rmtree, name, ignore_errors=True, dir_fd=staging.fd)
            own = living.enter_context(staging.enter(name, make=True))
            fcntl.flock(living.enter_context(own.create(_ALIVE)), fcntl.LOCK_EX)
        yield Staged(run_id, own, living.enter_context(own.enter(_TABLES, make=True)))


@contextlib.contextmanager
def locked(store: Path) -> Iterator[Locked]:
    """Keep other writers out, in a store where nothing is left half-way."""
    root = Path(os.path.realpath(store))
    until = time.monotonic() + _LONGEST_WAIT_S
    with contextlib.ExitStack() as opened:
        while True:
            root.mkdir(parents=True, exist_ok=True)
            # Meanwhile a writer that failed may take away the store that it had made.
            with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as trial:
                top = trial.enter_context(Directory.at(root))
                hidden = trial.enter_context(top.enter(layout.HIDDEN, make=True))
                inside = (
                    trial.enter_context(hidden.enter(name, make=True))
                    for name in (_STAGING, layout.SWITCH)
                )
                found = Locked(top, hidden, *inside)
                if _islocked(found.hidden, trial, until):
                    opened.enter_context(trial.pop_all())
                    break
            if time.monotonic() > until:
                what = f"has been locked by another writer for {_LONGEST_WAIT_S:.0f} s"
                raise OutputError(
                    str(store), what, fix="try again, or stop the process that holds .nsyspipe/lock"
                )
        for run_id in found.switch.names():  # by a writer that was killed
            found.settle(run_id)
        yield found


def _islocked(hidden: Directory, opened: contextlib.ExitStack, until: float) -> bool:
    """Take the lock, which is held until its file is closed, or the process ends, however it ends."""
    has_lock = hidden.require(_LOCK, layout.FILE)  # a full disk makes none, and opens one
    lock = opened.enter_context(
        hidden.open_file(_LOCK, os.O_RDWR | (0 if has_lock else os.O_CREAT))
    )
    while time.monotonic() <= until:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            return os.path.samestat(
                os.stat(_LOCK, dir_fd=hidden.fd, follow_symlinks=False), os.fstat(lock.fileno())
            )
    return False


def _listed(new: Directory) -> set[str]:
    """Return the files that a run is to have; nothing if nobody says, as when it is already so."""
    with contextlib.suppress(FileNotFoundError), new.open_file(_FILES) as file:
        found: object = None
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(file.read(_LONGEST_RECORD))
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise NotPlainError(new.path / _FILES, "damaged", "a list of names")
        return set(found)
    return set()


def _is_dead(staging: Directory, name: str) -> bool:
    # Made under the lock: where it is missing its writer is gone.
    with contextlib.suppress(FileNotFoundError), staging.enter(name) as own:
        try:
            with own.open_file(_ALIVE, os.O_RDWR) as alive:  # NFS locks no other
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _forget(store: Path, made: list[Path]) -> None:
    """Take away what was made of a store in which nothing was saved, unless another writer is at it."""
    root = Path(os.path.realpath(store))
    with contextlib.suppress(OSError, OutputError, NotPlainError):
        if os.path.lexists(root / layout.HIDDEN / _LOCK):
            with locked(store) as found:
                if not [*found.staging.names(), *found.switch.names()]:
                    shutil.rmtree(layout.HIDDEN, dir_fd=found.top.fd)
        else:
            with Directory.at(root) as top:
                for name in (_STAGING, layout.SWITCH):
                    top.remove_empty(layout.HIDDEN, name)
    with contextlib.suppress(OSError):
        for path in made:
            if path.exists():
                path.rmdir()  # not if anything is in it
