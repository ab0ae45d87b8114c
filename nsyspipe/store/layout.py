"""Where things lie in a store, and which names a run may have there.

::

    STORE/steps/run_id=ID/part-0.parquet           plain files, all that readers need; in any copy of any part too
    STORE/events/run_id=ID/rank=0/part-0.parquet
    STORE/.nsyspipe/staging/UNIQUE.ID/...          what a writer has not committed yet
    STORE/.nsyspipe/switch/ID/steps.parquet, ...   committed, and not in place yet
    STORE/.nsyspipe/switch/ID/files                the names of all files that the run then has
    STORE/.nsyspipe/lock

A run has a file in many tables, and no single rename can publish them together. So a writer puts all of
them into one directory, and renaming that directory to ``switch/ID`` is the moment at which the run is
replaced. After it, each file is renamed into its place, ``runs`` last, which takes some milliseconds; a
writer that is killed meanwhile leaves the rest to the next one.

Who reads by `nsyspipe` looks into ``switch`` first, and finds the names and digests of a run's files in the
run's own row: it gets the old run or the new one, never some tables of each. Who reads the plain files
gets whole ones, and may find old tables beside new ones while they are renamed, or after a writer was
killed just then, until the next run is saved.
"""

from __future__ import annotations

import os
import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.errors import DatasetError, OptionError
from nsyspipe.store.files import LINK, Directory, NotPlainError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "HIDDEN",
    "PART",
    "RUNS_FILE",
    "SWITCH",
    "check_run_id",
    "file_name",
    "has_run",
    "is_file_name",
    "is_run_id",
    "links_fix",
    "partition",
    "published",
    "run_ids",
    "table_of_file",
]

HIDDEN, SWITCH = ".nsyspipe", "switch"
PART = "part-0.parquet"

_RUN, _SUFFIX = "run_id", ".parquet"
RUNS_FILE = f"runs{_SUFFIX}"
_LONGEST = 100
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{_LONGEST - 1}}}")
_FILE = re.compile(r"[a-z][a-z0-9_]*(-(0|[1-9][0-9]{0,9}))?\.parquet")
# DuckDB takes more for a date than Python does.
_DATE = re.compile(r"[0-9]+-[0-9]+-[0-9]+|epoch", re.IGNORECASE)


def file_name(table: str, rank: int | None = None) -> str:
    """Return the name of a table's file while it is not in its place."""
    return f"{table}{_SUFFIX}" if rank is None else f"{table}-{rank}{_SUFFIX}"


def is_file_name(name: str) -> bool:
    """Tell whether `file_name` could have made a name."""
    return _FILE.fullmatch(name) is not None


def table_of_file(name: str) -> str | None:
    """Return the table of the dataset that a file is of, by its `file_name`; None of any other name."""
    from nsyspipe.schema import DATASET  # noqa: PLC0415 - heavy, and not needed to find a run

    table = name.removesuffix(_SUFFIX).partition("-")[0]
    return table if is_file_name(name) and table in DATASET else None


def partition(table: str, run_id: str, rank: int | None = None) -> Path:
    """Return where readers find a run's rows in one table: a directory, relative to the store."""
    path = Path(table) / f"{_RUN}={run_id}"
    return path if rank is None else path / f"rank={rank}"


def published(name: str, run_id: str) -> Path:
    """Return where readers find a file of a run, by its `file_name`; relative to the store."""
    table, _, rank = name.removesuffix(_SUFFIX).partition("-")
    return partition(table, run_id, int(rank) if rank else None) / PART


def has_run(store: Path, run_id: str) -> bool:
    """Tell whether a store has a run, whatever its files are: who reads them says what is wrong."""
    if not run_id or "/" in run_id or "\0" in run_id:
        return False
    # First there: a file leaves it only for its place, and would be in neither otherwise.
    places = [Path(HIDDEN, SWITCH, run_id, RUNS_FILE)] if is_run_id(run_id) else []
    places.append(published(RUNS_FILE, run_id))
    return any(os.path.lexists(store / place) for place in places)


def run_ids(store: Path) -> Iterator[str]:
    """Yield the runs of a store, in no order; none where there is no store.

    Raises
    ------
    DatasetError
        If there is a link in place of a directory of the store.
    """
    switched = _listed(store, HIDDEN, SWITCH)  # before their places, as `has_run`
    published_runs = {
        name.removeprefix(f"{_RUN}=")
        for name in _listed(store, "runs")
        if name.startswith(f"{_RUN}=")
    }
    if os.path.islink(store / "runs") and not published_runs:  # noqa: PTH114 - a name may be too long
        return  # of somebody else
    for run_id in published_runs | set(switched):
        if has_run(store, run_id):
            yield run_id


def _listed(store: Path, *names: str) -> list[str]:
    """Return what is in a directory of the store; nothing if it is not there."""
    try:
        with Directory.at(store) as top, top.within(*names) as directory:
            return directory.names()
    except NotPlainError as error:
        if names == ("runs",) and error.found != LINK:
            return []
        if names == ("runs",) and not _leads_to_runs(store):
            return []
        fix = links_fix(store) if error.found == LINK else f"remove {error.path}"
        raise DatasetError(str(error.path), error.problem, fix=fix) from error
    except (OSError, ValueError):
        return []


def _leads_to_runs(store: Path) -> bool:
    try:
        return any(name.startswith(f"{_RUN}=") for name in os.listdir(store / "runs"))  # noqa: PTH208
    except OSError:
        return False


def links_fix(store: Path) -> str:
    """Return what to do with a store whose files are links, as older versions of nsyspipe wrote them."""
    return f"cp -rL {store} COPY, remove COPY/{HIDDEN}, and use COPY"


def is_run_id(run_id: str) -> bool:
    """Tell whether a run that is saved can have an id."""
    return _NAME.fullmatch(run_id) is not None


def check_run_id(run_id: str) -> None:
    """Refuse an id that cannot be a directory's name, or that readers of the dataset would take for a number or a date.

    Raises
    ------
    OptionError
        With a name that works.
    """
    if not is_run_id(run_id):
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
