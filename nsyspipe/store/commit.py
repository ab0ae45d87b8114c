"""Replace a run in one step: staged in the store, then switched to; killed at any moment, the old one still stands."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
from pathlib import Path
from typing import IO, TYPE_CHECKING

from nsyspipe.errors import OutputError
from nsyspipe.store.layout import EMPTY, HIDDEN, RUNS, VERSIONS, file_name, published
from nsyspipe.store.links import current_version, linked, replace_version, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["replacing_run"]

_STAGING, _LOCK, _UNSETTLED = "staging", "lock", "unsettled"
# Held by a writer as long as it lives, which its process id would not tell: ids come again.
_ALIVE = "alive"
_RUNS_FILE = file_name("runs")
_FULL = (errno.ENOSPC, errno.EDQUOT)
# How long a replaced version stays for those who are reading it.
_GRACE_S = 60.0


@contextlib.contextmanager
def replacing_run(store: Path, run_id: str) -> Iterator[Path]:
    """Yield an empty directory; what it holds in the end replaces one run of the store, all tables at once.

    Parameters
    ----------
    store
        Made if it is not there.

    Raises
    ------
    OutputError
        If the directory is no store, or cannot be written. The store is as it was.
    """
    root = Path(os.path.realpath(store))
    try:
        made = [path for path in (root, *root.parents) if not path.exists()]
        _check(store, root / published(_RUNS_FILE, run_id))
        try:
            with _staged(root) as staging:
                yield staging
                with _locked(root):
                    _commit(root, run_id, staging)
        except BaseException:
            _forget(root, made)
            raise
    except OSError as error:
        if error.errno in _FULL:
            what, fix = "its disk is full", "free some space, or --out with another directory"
        else:
            why = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
            what, fix = f"cannot be written ({why})", "--out with another directory"
        raise OutputError(
            str(store),
            f"{what}; the store is as it was",
            fix=fix,
        ) from error


def _check(store: Path, of_run: Path) -> None:
    if store.exists() and not store.is_dir():
        raise OutputError(str(store), "is no directory", fix="--out DIR")
    if of_run.exists() and not of_run.is_symlink():
        raise OutputError(
            str(store),
            "has this run as a plain copy, without the links of a store, and cannot replace it",
            fix="--out with a new directory",
        )


@contextlib.contextmanager
def _staged(root: Path) -> Iterator[Path]:
    """Yield a directory that stays while this process lives."""
    staging = root / HIDDEN / _STAGING / uuid.uuid4().hex
    try:
        with contextlib.ExitStack() as living:
            with _locked(root):
                _clean(root)
                staging.mkdir()
                alive = living.enter_context((staging / _ALIVE).open("w"))
                fcntl.flock(alive, fcntl.LOCK_EX)
            tables = staging / "tables"
            tables.mkdir()
            yield tables
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Keep other writers out, in a store where nothing is left half-way."""
    hidden = root / HIDDEN
    with _lock(hidden):
        unsettled = hidden / _UNSETTLED
        if unsettled.is_symlink():  # by a writer that was killed
            settle(root, unsettled.readlink().name)
            unsettled.unlink()
        yield


def _lock(hidden: Path) -> IO[str]:
    """Return the file whose lock is held until it is closed, or the process ends, however it ends."""
    path = hidden / _LOCK
    while True:
        for name in (RUNS, f"{VERSIONS}/{EMPTY}", _STAGING):
            (hidden / name).mkdir(parents=True, exist_ok=True)
        # Meanwhile a writer that failed may take away the store that it had made.
        with contextlib.suppress(FileNotFoundError):
            file = path.open("a")
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
            file.close()


def _commit(root: Path, run_id: str, staged: Path) -> None:
    unsettled = root / HIDDEN / _UNSETTLED
    unsettled.symlink_to(run_id)
    try:
        replace_version(root, run_id, staged)
    finally:
        # Once it is switched, it is done: what is left the next writer can do.
        with contextlib.suppress(OSError):
            settle(root, run_id)
            unsettled.unlink()


def _clean(root: Path) -> None:
    """Remove what nobody needs: of writers that were killed, of replaced versions, of runs that the user removed."""
    hidden = root / HIDDEN
    for staging in (hidden / _STAGING).iterdir():
        if _is_dead(staging):
            shutil.rmtree(staging, ignore_errors=True)
    used = {hidden / VERSIONS / EMPTY}
    for link in (hidden / RUNS).iterdir():
        if (root / published(_RUNS_FILE, link.name)).is_symlink() or linked(root, link.name):
            used.add(current_version(root, link.name))
        elif link.is_symlink():  # in a copy without links it is not
            link.unlink()
    for version in (hidden / VERSIONS).iterdir():
        if version not in used and version.stat().st_mtime < time.time() - _GRACE_S:
            shutil.rmtree(version, ignore_errors=True)


def _is_dead(staging: Path) -> bool:
    try:
        with (staging / _ALIVE).open("r+") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:  # made under the lock, so its writer is gone
        return True
    return True


def _forget(root: Path, made: list[Path]) -> None:
    """Take away a store that never held a run, unless another writer is at it."""
    hidden = root / HIDDEN
    with contextlib.suppress(OSError):
        if (hidden / _LOCK).exists():
            with _locked(root):
                if not any([*(hidden / RUNS).iterdir(), *(hidden / _STAGING).iterdir()]):
                    shutil.rmtree(hidden)
        else:
            made = [*sorted(hidden.rglob("*"), reverse=True), *hidden.parent.glob(HIDDEN), *made]
        for path in made:
            if path.exists():
                path.rmdir()  # not if anything is in it
