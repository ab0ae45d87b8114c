"""Where things lie in a store, and which names a run may have there.

::

    STORE/steps            -> .nsyspipe/current/steps        one link per table, made once
    STORE/.nsyspipe/current -> snapshots/7                   the one link that a commit replaces
    STORE/.nsyspipe/snapshots/7/steps/run_id=ID/part-0.parquet
    STORE/.nsyspipe/staging/UNIQUE/...                       what a writer has not committed yet
    STORE/.nsyspipe/lock

A run has a file in many tables, and no single rename can publish them together, so that readers
would meet half a run. Here all tables of all runs are one snapshot (files are shared by hard
links), and replacing one link replaces it. A copy of a store without links reads the same.
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from nsyspipe.errors import OptionError

__all__ = [
    "CURRENT",
    "HIDDEN",
    "LOCK",
    "PART",
    "SNAPSHOTS",
    "STAGING",
    "check_run_id",
    "partition",
    "run_ids",
    "tables_dir",
]

HIDDEN = ".nsyspipe"
CURRENT, SNAPSHOTS, STAGING, LOCK = "current", "snapshots", "staging", "lock"
PART = "part-0.parquet"

_PREFIX = "run_id="
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def partition(table: str, run_id: str, rank: int | None = None) -> Path:
    """Return the directory of one run in one table, relative to the tables' directory."""
    path = Path(table) / f"{_PREFIX}{run_id}"
    return path if rank is None else path / f"rank={rank}"


def tables_dir(store: Path) -> Path:
    """Return the directory whose subdirectories are the tables: one snapshot, which stays as it is, or a plain copy."""
    current = store / HIDDEN / CURRENT
    return current.resolve() if current.is_symlink() else store


def run_ids(tables: Path) -> list[str]:
    """Return the runs of a snapshot, sorted; none where there is no store."""
    found = (tables / "runs").glob(f"{_PREFIX}*/{PART}")
    return sorted(path.parent.name.removeprefix(_PREFIX) for path in found)


def check_run_id(run_id: str) -> None:
    """Refuse an id that cannot be a directory's name, or that readers of the dataset would take for a number or a date.

    Raises
    ------
    OptionError
        With a name that works.
    """
    if not _NAME.fullmatch(run_id):
        mended = re.sub(r"[^A-Za-z0-9._+-]+", "-", run_id).strip("-.")[:80] or "run-1"
        raise OptionError(
            f"--run-id {run_id!r}",
            "names a directory of the dataset: up to 100 letters, digits and . _ + -, the first a letter or digit",
            fix=f"--run-id {mended}",
        )
    if _is_number_or_date(run_id):
        raise OptionError(
            f"--run-id {run_id!r}",
            "reads like a number or a date, and DuckDB and pandas would make it one",
            fix=f"--run-id run-{run_id}",
        )


def _is_number_or_date(text: str) -> bool:
    for kind in (float, lambda number: int(number, 0), date.fromisoformat):
        try:
            kind(text)
        except ValueError:
            continue
        return True
    return False
