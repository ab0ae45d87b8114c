"""Change a store in one step: staged beside it, then switched to; killed at any moment, the old one still stands."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import uuid
from typing import TYPE_CHECKING

from nsyspipe.errors import OutputError
from nsyspipe.store.layout import CURRENT, HIDDEN, LOCK, SNAPSHOTS, STAGING, tables_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["replacing_run"]

# Held by a writer as long as it lives, which its process id would not tell: ids come again.
_ALIVE = "alive"
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def replacing_run(store: Path, run_id: str, tables: Sequence[str]) -> Iterator[Path]:
    """Yield an empty directory; what it holds in the end replaces one run of the store, all tables at once.

    Parameters
    ----------
    store
        Made if it is not there.
    tables
        Every table that a store may have; each gets its link.

    Raises
    ------
    OutputError
        If the directory is no store, or cannot be written. The store is as it was.
    """
    root = store.resolve()
    try:
        created = _open(root, tables)
        with _staged(root) as staging:
            try:
                yield staging
                with _locked(root):
                    _commit(root, staging, run_id, tables)
            except BaseException:
                if created:
                    _forget(root, staging, tables)
                raise
    except OSError as error:
        what = "is full" if error.errno in _FULL else f"cannot be written ({error.strerror})"
        where = f"the disk of {store}" if error.errno in _FULL else str(store)
        raise OutputError(
            where, f"{what}; the store is as it was", fix="free some space, or another directory"
        ) from error


def _open(store: Path, tables: Sequence[str]) -> bool:
    """Make what a store needs; tell whether it was not there."""
    if store.exists() and not store.is_dir():
        raise OutputError(str(store), "is no directory", fix="--out DIR")
    for table in tables:
        path = store / table
        if path.exists() and not path.is_symlink():
            raise OutputError(
                str(path),
                "is not part of a store that can be written: a copy without links, or something else",
                fix="--out with a new directory",
            )
    is_new = not (store / HIDDEN).exists()
    for name in (SNAPSHOTS, STAGING):
        (store / HIDDEN / name).mkdir(parents=True, exist_ok=True)
    return is_new


@contextlib.contextmanager
def _locked(store: Path) -> Iterator[None]:
    with (store / HIDDEN / LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the process ends, however it ends
        yield


@contextlib.contextmanager
def _staged(store: Path) -> Iterator[Path]:
    staging = store / HIDDEN / STAGING / uuid.uuid4().hex
    with _locked(store):
        _remove_dead(staging.parent)
        staging.mkdir()
        alive = (staging / _ALIVE).open("w")
        fcntl.flock(alive, fcntl.LOCK_EX)
    with alive:
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _remove_dead(parent: Path) -> None:
    """Remove what writers that were killed have left."""
    for staging in parent.iterdir():
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            with (staging / _ALIVE).open("a") as alive:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(staging)


def _commit(store: Path, staging: Path, run_id: str, tables: Sequence[str]) -> None:
    """Make the next snapshot of the current one's other runs and the staged run, then switch to it."""
    snapshots = store / HIDDEN / SNAPSHOTS
    current = tables_dir(store)
    is_first = current == store
    number = 1 if is_first else int(current.name) + 1
    _keep_only(snapshots, {str(number - 1)})
    snapshot = snapshots / str(number)
    try:
        for table in tables:
            (snapshot / table).mkdir(parents=True)
            if not is_first:
                _link_runs(current / table, snapshot / table, f"run_id={run_id}")
        for path in staging.iterdir():
            if path.is_dir():
                for partition in path.iterdir():
                    partition.rename(snapshot / path.name / partition.name)
        for table in tables:
            with contextlib.suppress(FileExistsError):
                (store / table).symlink_to(f"{HIDDEN}/{CURRENT}/{table}")
        switch = staging / CURRENT
        switch.symlink_to(f"{SNAPSHOTS}/{number}")
        switch.replace(store / HIDDEN / CURRENT)
    except BaseException:
        if tables_dir(store) != snapshot:
            shutil.rmtree(snapshot, ignore_errors=True)
        raise
    # A reader may still be listing the snapshot before this one.
    _keep_only(snapshots, {str(number), str(number - 1)})


def _link_runs(source: Path, target: Path, but: str) -> None:
    """Share the files of one table's other runs."""
    if not source.is_dir():  # a table of a later version
        return
    for run in os.scandir(source):
        if run.name == but or not run.is_dir():
            continue
        shutil.copytree(run.path, target / run.name, copy_function=_share)


def _share(source: str, target: str) -> None:
    """Let two snapshots have one file; where the file system cannot, each has its own."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _keep_only(snapshots: Path, names: set[str]) -> None:
    for path in snapshots.iterdir():
        if path.name not in names:
            shutil.rmtree(path, ignore_errors=True)


def _forget(store: Path, staging: Path, tables: Sequence[str]) -> None:
    """Take away a store that never held a run, unless another writer is at it."""
    shutil.rmtree(staging, ignore_errors=True)
    with contextlib.suppress(OSError):
        if tables_dir(store) == store and not any((store / HIDDEN / STAGING).iterdir()):
            shutil.rmtree(store / HIDDEN)
            for table in tables:
                (store / table).unlink(missing_ok=True)
            store.rmdir()  # stays if anything else is in it
