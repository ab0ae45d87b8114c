"""The links by which a run's files are reached: made while they lead to no rows, then switched all at once.

A reader may open any file at any moment, one that it has listed before too. So each link has something
behind it from when it is made until it is gone; where the run has no such file, one without rows.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from nsyspipe.store.layout import EMPTY, HIDDEN, RUNS, VERSIONS, partition, published

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["current_version", "linked", "replace_version", "settle"]


def linked(store: Path, run_id: str) -> set[str]:
    """Return the names of the files that a run has links to, also of those that are not there."""
    found = set()
    for folder, files in _directories(store, run_id):
        for link in (folder / file for file in files):
            name = link.readlink().name if link.is_symlink() else ""
            if name and link.readlink() == _target(link.relative_to(store), run_id, name):
                found.add(name)
    return found


def current_version(store: Path, run_id: str) -> Path:
    """Return the version that a run's links lead to; the empty one before its first."""
    link = store / HIDDEN / RUNS / run_id
    return store / HIDDEN / VERSIONS / (link.readlink().name if link.is_symlink() else EMPTY)


def replace_version(store: Path, run_id: str, staged: Path) -> None:
    """Let all links of a run lead to the files in a directory, which becomes its version."""
    wanted, known = set(os.listdir(staged)), linked(store, run_id)  # noqa: PTH208 - names alone
    scratch, empty = staged.parent, store / HIDDEN / VERSIONS / EMPTY
    old = current_version(store, run_id) if known else empty
    for name in sorted(wanted - known):
        _fill(empty / name, staged / name, scratch, old)
    if not known:
        _lead_to(store, run_id, old, scratch)
    for name in sorted(wanted - known):
        _link(store, run_id, name)
    for name in sorted(known - wanted):
        with contextlib.suppress(OSError, pa.ArrowInvalid):  # damaged: nobody can be reading it
            _fill(empty / name, old / name, scratch, staged)
    version = empty.with_name(uuid.uuid4().hex)
    staged.rename(version)
    os.utime(old)  # when it was replaced: somebody may read it for a while
    _lead_to(store, run_id, version, scratch)


def settle(store: Path, run_id: str) -> None:
    """Remove a run's links that lead to no file of its own, whether it was switched or not."""
    version = current_version(store, run_id)
    names = linked(store, run_id)
    own = {name for name in names if _is_own(version, name)}
    for name in sorted(names - own):
        (store / published(name, run_id)).unlink()
        if version.name != EMPTY:
            (version / name).unlink(missing_ok=True)
    for folder, _ in _directories(store, run_id):
        _remove_empty(store, folder)
    if not own:
        (store / HIDDEN / RUNS / run_id).unlink(missing_ok=True)


def _directories(store: Path, run_id: str) -> Iterator[tuple[Path, list[str]]]:
    """Yield each directory that a run has in a table and what is in it, the innermost first."""
    for directory in list(store.glob(str(partition("[!.]*", run_id)))):
        # A glob would leave out links to nothing.
        for folder, _, files in os.walk(directory, topdown=False):
            yield Path(folder), files


def _link(store: Path, run_id: str, name: str) -> None:
    path = published(name, run_id)
    try:
        (store / path).parent.mkdir(parents=True, exist_ok=True)
        (store / path).symlink_to(_target(path, run_id, name))
    except BaseException:
        _remove_empty(store, (store / path).parent)
        raise


def _remove_empty(store: Path, folder: Path) -> None:
    """Remove a directory and those around it as far as nothing is in them."""
    while folder != store:
        with contextlib.suppress(OSError):
            folder.rmdir()
        folder = folder.parent


def _target(path: Path, run_id: str, name: str) -> Path:
    return Path(*[".."] * (len(path.parts) - 1), HIDDEN, RUNS, run_id, name)


def _is_own(version: Path, name: str) -> bool:
    file = version / name
    return version.name != EMPTY and file.is_file() and not file.is_symlink()


def _fill(empty: Path, like: Path, scratch: Path, version: Path) -> None:
    """Put a file without rows into a version that has none of that name."""
    schema = _schema(like)
    if not (empty.exists() and _schema(empty).equals(schema)):
        made = scratch / empty.name
        with made.open("wb") as file:
            pq.write_table(schema.empty_table(), file)
        made.replace(empty)
    if not (version / empty.name).exists():
        (version / empty.name).symlink_to(f"../{EMPTY}/{empty.name}")


def _schema(path: Path) -> pa.Schema:
    with path.open("rb") as file:
        return pq.read_schema(file)


def _lead_to(store: Path, run_id: str, version: Path, scratch: Path) -> None:
    switch = scratch / "switch"
    switch.symlink_to(f"../{VERSIONS}/{version.name}")
    switch.replace(store / HIDDEN / RUNS / run_id)
