"""Where things lie in a store, and which names a run may have there.

::

    STORE/steps/run_id=ID/part-0.parquet         -> ../../.nsyspipe/runs/ID/steps.parquet
    STORE/events/run_id=ID/rank=0/part-0.parquet -> ../../../.nsyspipe/runs/ID/events-0.parquet
    STORE/.nsyspipe/runs/ID                      -> ../versions/UNIQUE
    STORE/.nsyspipe/versions/UNIQUE/steps.parquet, ...
    STORE/.nsyspipe/versions/empty/steps.parquet, ...  without rows: what a run is before its first version
    STORE/.nsyspipe/staging/UNIQUE/...                 what a writer has not committed yet
    STORE/.nsyspipe/unsettled                    -> ID  the run that a commit is at work on
    STORE/.nsyspipe/lock

A run has a file in many tables, and no single rename can publish them together, so that readers
would meet half a run. Here all files of a run are reached through the one link ``runs/ID``, and
replacing it replaces them all, in a time that does not depend on how many runs there are. The
directories that readers list stay where they are, and what they find there can always be opened.
A copy of the tables without links reads the same.
"""

from __future__ import annotations

import os
import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "EMPTY",
    "HIDDEN",
    "RUNS",
    "VERSIONS",
    "check_run_id",
    "file_name",
    "file_of",
    "partition",
    "published",
    "run_ids",
    "tables_dir",
]

HIDDEN = ".nsyspipe"
RUNS, VERSIONS, EMPTY = "runs", "versions", "empty"

_RUN, _SUFFIX, _PART = "run_id", ".parquet", "part-0.parquet"
_LONGEST = 100
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{_LONGEST - 1}}}")
# DuckDB takes more for a date than Python does.
_DATE = re.compile(r"[0-9]+-[0-9]+-[0-9]+|epoch", re.IGNORECASE)


def file_name(table: str, rank: int | None = None) -> str:
    """Return the name of a table's file in a version of a run."""
    return f"{table}{_SUFFIX}" if rank is None else f"{table}-{rank}{_SUFFIX}"


def partition(table: str, run_id: str, rank: int | None = None) -> Path:
    """Return where readers find a run's rows in one table: a directory, relative to the store."""
    path = Path(table) / f"{_RUN}={run_id}"
    return path if rank is None else path / f"rank={rank}"


def published(name: str, run_id: str) -> Path:
    """Return where readers find a file of a run, by its name in a version; relative to the store."""
    table, _, rank = name.removesuffix(_SUFFIX).partition("-")
    return partition(table, run_id, int(rank) if rank else None) / _PART


def tables_dir(store: Path, run_id: str) -> Path | None:
    """Return the directory of a run's tables: a version, which stays as it is, or a plain copy of a store.

    None if the store has no such run.
    """
    path = Path(os.path.realpath(store / published(file_name("runs"), run_id)))
    if not os.path.isfile(path) or path.parent.name == EMPTY:  # noqa: PTH113 - a name may be too long
        return None
    return path.parents[2] if path.name == _PART else path.parent


def file_of(tables: Path, table: str, run_id: str, rank: int | None = None) -> Path:
    """Return the path of one table in what `tables_dir` found."""
    name = file_name(table, rank)
    is_version = tables.parts[-3:-1] == (HIDDEN, VERSIONS)
    return tables / (name if is_version else published(name, run_id))


def run_ids(store: Path) -> Iterator[str]:
    """Yield the runs of a store, in no order; none where there is no store."""
    try:
        names = os.listdir(store / "runs")  # noqa: PTH208 - names alone
    except OSError:
        return
    for name in names:
        kind, _, run_id = name.partition("=")
        if kind == _RUN and tables_dir(store, run_id):
            yield run_id


def check_run_id(run_id: str) -> None:
    """Refuse an id that cannot be a directory's name, or that readers of the dataset would take for a number or a date.

    Raises
    ------
    OptionError
        With a name that works.
    """
    if not _NAME.fullmatch(run_id):
        mended = re.sub(r"[^A-Za-z0-9._+-]+", "-", run_id).lstrip("._+-")[:_LONGEST].rstrip("-.")
        raise OptionError(
            f"--run-id {run_id!r}",
            f"names a directory of the dataset: up to {_LONGEST} letters, digits and . _ + -, the first a letter or digit",
            fix=f"--run-id {_as_text(mended or '1')}",
        )
    if _is_number_or_date(run_id):
        raise OptionError(
            f"--run-id {run_id!r}",
            "reads like a number or a date, and DuckDB and pandas would make it one",
            fix=f"--run-id {_as_text(run_id)}",
        )


def _as_text(name: str) -> str:
    """Return a name like it that nobody takes for a number or a date."""
    return f"run-{name}"[:_LONGEST] if _is_number_or_date(name) else name


def _is_number_or_date(text: str) -> bool:
    if _DATE.fullmatch(text):
        return True
    for kind in (float, lambda number: int(number, 0), date.fromisoformat):
        try:
            kind(text)
        except ValueError:
            continue
        return True
    return False
