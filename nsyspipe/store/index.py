"""What all runs of a store are: their rows of `runs`, which an index holds together, so that thousands are listed in a second.

The index is believed only of a file whose bytes have the digest that it names; the row of any other
is read from the file itself. So a store reads the same without it, as a copy may be, only slower.
Who saves a run brings it up to date.
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

_TEXTS = (
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
# `RUNS` less what only the run itself is asked for.
INDEX = TableSchema("index", "One row per run.", RUNS.key, (*_TEXTS, *RUNS.columns[1:-1], _WORK))


class Unreadable(Struct, frozen=True):
    """A run of a store that cannot be read, or of which there is no page."""

    run_id: str
    table: str  # `runs`, or `page`
    message: str  # what is wrong with the table's file
    fix: str | None


class StoredRuns(Struct, frozen=True):
    """The runs of a store, each in one version of it."""

    # `INDEX`, one row per run that can be read, by time of capture; of an unknown time first, equal
    # times by run id.
    runs: pa.Table
    unreadable: tuple[Unreadable, ...]  # in order of run id


def listed_runs(store: Path, on_progress: OnProgress | None = None) -> StoredRuns:
    """Read what identifies each run of a store, its figures, and its first finding; nothing where there is no store.

    A run that is damaged or of a later version never hides the others: it is no row, but told in
    `unreadable`. `on_progress` is called with (runs read, runs in all).
    """
    ids = sorted(run_ids(store))
    index = read_index(store) if ids else INDEX.empty()
    places = {
        pair: at
        for at, pair in enumerate(
            zip(*(index[one.name].to_pylist() for one in _TEXTS), strict=True)
        )
    }
    known: list[int] = []
    others: list[pa.Table] = []
    unreadable: list[Unreadable] = []
    for n_done, run_id in enumerate(ids, start=1):
        try:
            content = content_of(store, run_id, layout.RUNS_FILE)
            at = places.get((run_id, digest_of(content)))
            if at is None:
                others.append(read_index_row(store, run_id, content))
            else:
                known.append(at)
        except DatasetError as error:
            told = (
                (error.problem, error.fix) if has_run(store, run_id) else ("is gone", None)
            )  # since it was listed
            unreadable.append(Unreadable(run_id, "runs", *told))
        if on_progress:
            on_progress(n_done, len(ids))
    rows = pa.concat_tables([index.take(pa.array(known, pa.int64())), *others]).combine_chunks()
    return StoredRuns(nulls_first(rows, ["captured_at_utc", "run_id"]), tuple(unreadable))


def stored_runs(store: Path, *, on_progress: OnProgress | None = None) -> StoredRuns:
    """Return `listed_runs` of a store; a `DatasetError` if it has none, or none that can be read."""
    found = listed_runs(store, on_progress)
    if found.runs.num_rows:
        return found
    if found.unreadable:
        first = found.unreadable[0]
        n_runs = len(found.unreadable)
        what = f"contains {n_runs} saved runs, but none can be read"
        raise DatasetError(
            str(store), what, found=printable(f"{first.run_id} {first.message}"), fix=first.fix
        )
    what = "no such directory"
    fix = f"nsyspipe analyze REPORTS --out {shlex.quote(str(store))}"
    if store.is_file():
        what = f"is {OUTPUTS.get(store.suffix, 'a file')}, not a run store"
        name = shlex.quote(str(store))
        fix = (
            "pass the run store (a directory)"
            if store.suffix in OUTPUTS
            else f"nsyspipe analyze {name} --out runs"
        )
    elif store.is_dir():
        there = [*store.iterdir()]
        reports = [one for one in there if one.suffix in (EXPORT_SUFFIX, *RAW_SUFFIXES)]
        if reports:
            fix = (
                f"nsyspipe analyze {next(iter(words_of_runs(without_exported(sorted(reports)))))} "
                "--out runs"
            )
        elif there:
            fix = f"nsyspipe analyze REPORTS --out {shlex.quote(str(store / 'runs'))}"
        what, fix = table_of_store(store) or ("contains no saved run", fix)
    raise DatasetError(str(store), what, fix=fix)


def read_index(store: Path) -> pa.Table:
    """Return the `INDEX` of a store; no rows where there is none that can be used."""
    with (
        contextlib.suppress(OSError, ValueError, MemoryError, NotPlainError, DatasetError),
        Directory.at(store) as top,
        top.enter(layout.HIDDEN) as hidden,
        hidden.open_file(layout.INDEX_FILE) as file,
    ):
        return table_of(small_content(file), INDEX, store / layout.HIDDEN / layout.INDEX_FILE)
    return INDEX.empty()


def read_index_row(store: Path, run_id: str, content: pa.Buffer) -> pa.Table:
    """Return the row of `INDEX` of a run from the bytes of its file; its id is its address, whatever they say."""
    path = store / layout.published(layout.RUNS_FILE, run_id)
    row = table_of(content, RUNS, path)
    if row.num_rows != 1:
        raise DatasetError(
            str(path), f"has {row.num_rows} rows for the run instead of 1", fix=AGAIN
        )
    try:
        return index_row(row, run_id, digest_of(content))
    except ValueError as error:  # a directory's name that is no text
        raise DatasetError(str(path), "is not what nsyspipe writes", fix=AGAIN) from error


def index_row(row: pa.Table, run_id: str, digest: str) -> pa.Table:
    """Return the row of `INDEX` of a run from its row of `runs`, and the digest of the file that has it."""
    work = None
    with contextlib.suppress(ValueError):  # of damaged details nobody lists more
        work = parsed_object(row["details"][0].as_py()).get(WORK)
    texts = {"run_id": run_id, "digest": digest, WORK: work if isinstance(work, str) else None}
    return INDEX.table(
        {column_name: row[column_name] for column_name in row.column_names}
        | {name: [text] for name, text in texts.items()}
    )
