"""The list of all runs of a store, from an index of their rows of `runs`.

With the index, thousands of runs are listed in a second. A row of the index is used only if it has
the digest of the run's file. All other rows are read from the files themselves. So a store without
an index, such as a copy, is only slower to list. Saving a run brings the index up to date.
"""

import contextlib
import shlex
from pathlib import Path

import pyarrow as pa
from msgspec import Struct

from nsyspipe.errors import DatasetError
from nsyspipe.model.names import printable, table_of_store
from nsyspipe.model.options import OnProgress
from nsyspipe.model.schema import RUNS
from nsyspipe.model.table import TEXT, Column, TableSchema
from nsyspipe.model.typed_tables import (
    RunsTable,
)
from nsyspipe.nsys.files import OUTPUTS
from nsyspipe.nsys.find_reports import EXPORT_SUFFIX, RAW_SUFFIXES, without_exported, words_of_runs
from nsyspipe.store import layout
from nsyspipe.store.layout import Directory, NotPlainError, has_run, run_ids
from nsyspipe.store.read import (
    AGAIN,
    content_of,
    digest_of,
    nulls_first,
    parsed_object,
    small_content,
    table_of,
)

# Which run a row of the index is of, and which bytes of the run's file it was read from.
_IDENTITY = (
    Column("run_id", TEXT, "id", "the run"),
    Column("digest", TEXT, "text", "of the bytes of its file"),
)
WORK = "work"
_WORK = Column(
    WORK,
    TEXT,
    "text",
    "`Work`, of the details. Null if an older nsyspipe saved the run.",
    nullable=True,
)
# `RUNS` without the columns that are of use only to a reader of the run itself.
INDEX = TableSchema("index", "One row per run.", RUNS.key, (*_IDENTITY, *RUNS.columns[1:-1], _WORK))


class Unreadable(Struct, frozen=True):
    """A run of a store that cannot be read, or that has no page."""

    run_id: str
    # `runs`, or `page`.
    table: str
    # What is wrong with the table's file.
    message: str
    fix: str | None


class StoredRuns(Struct, frozen=True):
    """The runs of a store, each in one version of it."""

    # `INDEX`, one row per run that can be read, by time of capture and then by run id. Runs with an
    # unknown time are first.
    runs: RunsTable
    # In order of run id.
    unreadable: tuple[Unreadable, ...]


def listed_runs(store: Path, on_progress: OnProgress | None = None) -> StoredRuns:
    """Read the identity, the metrics and the first finding of each run of a store.

    A run that is damaged or of a later version never hides the others: it has no row, but an entry
    in `unreadable`. Without a store there are no runs. `on_progress` is called with (runs read,
    number of runs).
    """
    ids = sorted(run_ids(store))
    index = read_index(store) if ids else INDEX.empty()
    index_rows = _index_row_numbers(index)
    known_rows: list[int] = []
    read_rows: list[pa.Table] = []
    unreadable: list[Unreadable] = []
    for n_done, run_id in enumerate(ids, start=1):
        try:
            content = content_of(store, run_id, layout.RUNS_FILE)
            identity = (run_id, digest_of(content))
            row_number = index_rows.get(identity)
            if row_number is None:
                read_rows.append(read_index_row(store, run_id, content))
            else:
                known_rows.append(row_number)
        except DatasetError as error:
            unreadable.append(_unreadable_run(store, run_id, error))
        if on_progress:
            on_progress(n_done, len(ids))
    from_index = index.take(pa.array(known_rows, pa.int64()))
    rows = pa.concat_tables([from_index, *read_rows]).combine_chunks()
    runs = nulls_first(rows, ["captured_at_utc", "run_id"])
    return StoredRuns(runs, tuple(unreadable))


def _index_row_numbers(index: pa.Table) -> dict[tuple[str, str], int]:
    """Return the number of each row of an index, by run id and digest."""
    run_ids_of_rows = index["run_id"].to_pylist()
    digests = index["digest"].to_pylist()
    identities = zip(run_ids_of_rows, digests, strict=True)
    return {identity: number for number, identity in enumerate(identities)}


def _unreadable_run(store: Path, run_id: str, error: DatasetError) -> Unreadable:
    # Another program may have removed the run since it was listed.
    if not has_run(store, run_id):
        return Unreadable(run_id, "runs", "is gone", None)
    return Unreadable(run_id, "runs", error.problem, error.fix)


def stored_runs(store: Path, *, on_progress: OnProgress | None = None) -> StoredRuns:
    """Return the `listed_runs` of a store; a `DatasetError` if no run can be read."""
    stored = listed_runs(store, on_progress)
    if stored.runs.num_rows:
        return stored
    if stored.unreadable:
        first = stored.unreadable[0]
        n_runs = len(stored.unreadable)
        problem = f"contains {n_runs} saved runs, but none can be read"
        example = printable(f"{first.run_id} {first.message}")
        raise DatasetError(str(store), problem, found=example, fix=first.fix)
    raise _no_runs_error(store)


def _no_runs_error(store: Path) -> DatasetError:
    """Return the error of a path that is not a store with runs."""
    quoted = shlex.quote(str(store))
    if store.is_file():
        kind = OUTPUTS.get(store.suffix, "a file")
        if store.suffix in OUTPUTS:
            fix = "pass the run store (a directory)"
        else:
            fix = f"nsyspipe analyze {quoted} --out runs"
        return DatasetError(str(store), f"is {kind}, not a run store", fix=fix)
    if store.is_dir():
        # The user may have passed a directory inside a store.
        words_and_store = table_of_store(store)
        if words_and_store is not None:
            words, path_of_store = words_and_store
            return DatasetError(str(store), words, fix=path_of_store)
        fix = _fix_in_directory(store)
        return DatasetError(str(store), "contains no saved run", fix=fix)
    fix = f"nsyspipe analyze REPORTS --out {quoted}"
    return DatasetError(str(store), "no such directory", fix=fix)


def _fix_in_directory(directory: Path) -> str:
    """Return the command that saves a run, for a directory without runs."""
    content = [*directory.iterdir()]
    suffixes = (EXPORT_SUFFIX, *RAW_SUFFIXES)
    reports = sorted(path for path in content if path.suffix in suffixes)
    if reports:
        words = words_of_runs(without_exported(reports))
        first_run = next(iter(words))
        return f"nsyspipe analyze {first_run} --out runs"
    # Other files do not belong into a store, so the store is a new directory.
    store = directory / "runs" if content else directory
    return f"nsyspipe analyze REPORTS --out {shlex.quote(str(store))}"


def read_index(store: Path) -> pa.Table:
    """Return the `INDEX` of a store; no rows if the store has no usable index."""
    path = store / layout.HIDDEN / layout.INDEX_FILE
    with contextlib.suppress(OSError, ValueError, MemoryError, NotPlainError, DatasetError):
        content = _content_of_index(store)
        return table_of(content, INDEX, path)
    return INDEX.empty()


def _content_of_index(store: Path) -> pa.Buffer:
    with (
        Directory.at(store) as top,
        top.enter(layout.HIDDEN) as hidden,
        hidden.open_file(layout.INDEX_FILE) as file,
    ):
        return small_content(file)


def read_index_row(store: Path, run_id: str, content: pa.Buffer) -> pa.Table:
    """Return the row of `INDEX` of a run from the bytes of its file.

    The id of the run is that of its directory, whatever the file contains.
    """
    path = store / layout.published(layout.RUNS_FILE, run_id)
    row = table_of(content, RUNS, path)
    if row.num_rows != 1:
        problem = f"has {row.num_rows} rows for the run instead of 1"
        raise DatasetError(str(path), problem, fix=AGAIN)
    try:
        return index_row(row, run_id, digest_of(content))
    except ValueError as error:
        # The row cannot have this id, because the name of the directory is not valid text.
        raise DatasetError(str(path), "is not what nsyspipe writes", fix=AGAIN) from error


def index_row(row: pa.Table, run_id: str, digest: str) -> pa.Table:
    """Return the row of `INDEX` of a run, from its row of `runs` and the digest of the file."""
    work = None
    # Damaged details do not keep a run out of the list.
    with contextlib.suppress(ValueError):
        details = parsed_object(row["details"][0].as_py())
        work = details.get(WORK)
    columns = {column_name: row[column_name] for column_name in row.column_names}
    columns["run_id"] = [run_id]
    columns["digest"] = [digest]
    columns[WORK] = [work if isinstance(work, str) else None]
    return INDEX.table(columns)
