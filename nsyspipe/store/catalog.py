"""All runs of a store at once, from one snapshot; a run that cannot be read never hides the others.

What a user names is told here: a saved run or reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.errors import DatasetError
from nsyspipe.model.schema import DATASET
from nsyspipe.model.text import decoded
from nsyspipe.store.layout import has_run, run_ids
from nsyspipe.store.read import AGAIN, RunFiles, read_run_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_BY_TIME = [("captured_at_utc", "ascending", "at_start"), ("run_id", "ascending", "at_start")]


@dataclass(frozen=True)
class Unreadable:
    """A run of a store, or one table of it, that cannot be read.

    Attributes
    ----------
    table
        ``runs`` when all of it is missing from the answer, ``findings`` when only those are.
    message
        What is wrong with the table's file.
    """

    run_id: str
    table: str
    message: str
    fix: str | None


@dataclass(frozen=True)
class StoredRuns:
    """The runs of a store, each in one version of it.

    Attributes
    ----------
    runs
        `schema.RUNS`, one row per run that can be read, by time of capture; of an unknown time first, equal times by
        run id.
    findings
        `schema.FINDINGS` after the run id: the finding of each run that could bring most, in order of the run ids.
    unreadable
        In order of run id.
    """

    runs: pa.Table
    findings: pa.Table
    unreadable: tuple[Unreadable, ...]


def stored_runs(
    store: Path, *, on_progress: Callable[[int, int], None] | None = None
) -> StoredRuns:
    """Read what identifies each run of a store, its figures, and its first finding.

    Parameters
    ----------
    store
        A directory that ``analyze --out`` wrote, or a copy of one.
    on_progress
        Called with (runs read, runs in all).

    Returns
    -------
    StoredRuns
        A run that is damaged or of a later version is no row, but told in `unreadable`.

    Raises
    ------
    DatasetError
        If there is no such directory, it holds no run, or none that can be read.
    """
    ids = sorted(run_ids(store))
    if not ids:
        what = "holds no saved run" if store.is_dir() else "is no directory"
        raise DatasetError(str(store), what, fix=f"nsyspipe analyze REPORTS --out {store}")
    runs: list[pa.Table] = []
    findings: list[pa.Table] = []
    unreadable: list[Unreadable] = []
    for n_done, run_id in enumerate(ids, start=1):
        run, finding = _first_rows(store, run_id)
        unreadable += [one for one in (run, finding) if isinstance(one, Unreadable)][:1]
        if not isinstance(run, Unreadable):
            runs.append(run)
            findings += [] if isinstance(finding, Unreadable) else [finding]
        if on_progress:
            on_progress(n_done, len(ids))
    if not runs:
        first = unreadable[0]
        what = f"none of its {len(ids)} saved runs can be read"
        raise DatasetError(str(store), what, found=f"{first.run_id} {first.message}", fix=first.fix)
    return StoredRuns(_by_time(runs), _joined("findings", findings), tuple(unreadable))


def _first_rows(store: Path, run_id: str) -> tuple[pa.Table | Unreadable, pa.Table | Unreadable]:
    """Return the first row of `runs` and of `findings`, both of one save of the run."""
    files = read_run_files(store, run_id, ("findings",))
    if not has_run(store, run_id):  # removed since it was listed
        gone = Unreadable(decoded(run_id), "runs", "is gone", None)
        return gone, gone
    return _first_row(files, "runs", run_id), _first_row(files, "findings", run_id)


def _first_row(files: RunFiles, name: str, run_id: str) -> pa.Table | Unreadable:
    """Return the first row of one table of a run, under the id that the directory has: it is the run's address."""
    try:
        table = files.table(name)
        table = table.drop_columns(["run_id"]) if name == "runs" else table.slice(0, 1)
        ids = pa.array([run_id] * table.num_rows, pa.string())
    except DatasetError as error:
        return Unreadable(decoded(run_id), name, error.problem, error.fix)
    except (
        ValueError,
        pa.ArrowException,
    ):  # columns of other types; a directory's name that is no text
        return Unreadable(decoded(run_id), name, "is not what nsyspipe writes", AGAIN)
    if name == "runs" and table.num_rows != 1:
        return Unreadable(run_id, name, f"holds {table.num_rows} rows of the run, not 1", AGAIN)
    return table.add_column(0, "run_id", ids)


def _joined(name: str, rows: list[pa.Table]) -> pa.Table:
    wanted = DATASET[name]
    if not rows:
        return wanted.empty()
    table = pa.concat_tables([row.select(wanted.names) for row in rows]).combine_chunks()
    return wanted.table({column: table[column] for column in wanted.names})


def _by_time(rows: list[pa.Table]) -> pa.Table:
    table = _joined("runs", rows)
    # Ids in a dictionary sort by their codes in older Arrow.
    keys = table.set_column(0, "run_id", table["run_id"].cast(pa.string()))
    return table.take(pc.sort_indices(keys, _BY_TIME))
