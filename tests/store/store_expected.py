"""What every reader of a store must find while runs are saved in it and their writers are stopped."""

import contextlib

import duckdb

import nsyspipe
from nsyspipe.store.layout import run_ids
from tests.store import store_tools
from tests.store.store_tools import (
    OTHER_ID,
    RUN_ID,
    TABLES,
    by_duckdb,
    by_pandas,
    by_polars,
    contents,
    stored,
)

IDS = {"old": RUN_ID, "new": RUN_ID, "other": OTHER_ID}


class Expected:
    """Three runs, each alone in a store: two versions of one run, and another run."""

    def __init__(self, folder):
        runs = {name: getattr(store_tools, f"{name}_run")(folder) for name in IDS}
        self.stores = {name: folder / f"alone-{name}" for name in runs}  # with their operations
        self.files = {}  # bytes by path, without operations and with
        for name, run in runs.items():
            stores = (
                stored(folder / f"without-{name}", run),
                stored(self.stores[name], run, events=True),
            )
            self.files[name] = [*map(contents, stores)]
        self.sums = {name: by_duckdb(store)[IDS[name]] for name, store in self.stores.items()}
        self.loaded = {name: tables_of(store, IDS[name]) for name, store in self.stores.items()}
        self.frames = {name: frames_of(store) for name, store in self.stores.items()}
        self._checked = {}

    def whole(self, store):
        """As `_whole`, once for all stores in which readers find the same."""
        key = frozenset(
            (str(path.relative_to(store)), path.is_dir() or path.read_bytes())
            for path in (*store.glob("[!.]*/**/*"), *store.glob(".nsyspipe/switch/**/*"))
        )
        if key not in self._checked:
            self._checked[key] = self._whole(store)
        return self._checked[key]

    def _whole(self, store):
        """Check that no reader finds a run by halves; return which of the two there is, None for neither.

        Plain readers may find files of both, each whole, while a switch to one of them is not
        finished.
        """
        there = {}
        for run_id in run_ids(store):
            found = tables_of(store, run_id)
            (there[run_id],) = (
                name for name in IDS if IDS[name] == run_id and same(found, self.loaded[name])
            )
        for path, found in contents(store).items():  # each is a whole file of one of the runs
            assert any(
                found == files.get(path) for both in self.files.values() for files in both
            ), path
        if not any((store / ".nsyspipe" / "switch").glob("*")):
            assert self.by_files(store) == there.get(RUN_ID)
            if there:  # before its first run, DuckDB finds no file to read
                rows = {
                    run_id: runs_rows(self.stores[name])[run_id] for run_id, name in there.items()
                }
                assert runs_rows(store) == rows
                sums = by_duckdb(store, WITHOUT_RUNS)
                assert sums == {
                    run_id: without_runs(self.sums[name]) for run_id, name in there.items()
                }
                assert frames_of(store) == {
                    k: v for name in there.values() for k, v in self.frames[name].items()
                }
        return there.get(RUN_ID)

    def meanwhile(self, store):
        """Check what readers see while a writer is at it: each table whole, a loaded run whole.

        DuckDB opens a file twice for one query, so that one that is replaced in between is an error
        to it.
        """
        for (_, table, run_id), rows in frames_of(store, [by_pandas]).items():
            names = ("old", "new") if run_id == RUN_ID else ("other",)
            assert rows in [
                self.frames[name].get(("by_pandas", table, run_id)) for name in names
            ], table
        found = tables_of(store, RUN_ID)
        assert any(same(found, self.loaded[name]) for name in ("old", "new"))
        with contextlib.suppress(duckdb.Error):
            sums = by_duckdb(store, WITHOUT_RUNS)
            assert sums[OTHER_ID] == without_runs(self.sums["other"])
            for table in WITHOUT_RUNS:
                assert sums[RUN_ID].get(table) in [
                    self.sums[name].get(table) for name in ("old", "new")
                ], table

    def by_files(self, store):
        files = {
            path: found for path, found in contents(store).items() if f"run_id={RUN_ID}/" in path
        }
        if not files:
            return None
        (which,) = (name for name in ("old", "new") if files in self.files[name])
        return which


# The row of a run says which files belong to it, with operations others than without.
WITHOUT_RUNS = tuple(table for table in TABLES if table != "runs")


def without_runs(sums):
    return {table: found for table, found in sums.items() if table != "runs"}


def runs_rows(store):
    """Return the rows of `runs` as DuckDB reads them, less the column that is for us alone."""
    query = (
        "SELECT run_id, hash(COLUMNS(* EXCLUDE (details))) FROM "
        f"read_parquet('{store}/runs/*/*.parquet')"
    )
    return {row[0]: row[1:] for row in duckdb.sql(query).fetchall()}


def tables_of(store, run_id):
    run = nsyspipe.load(store, run_id=run_id)
    assert run.header.run_id == run_id
    found = {
        name: getattr(run, name) for name in ("summary", *TABLES) if name not in ("runs", "metrics")
    }
    return {name: table() if callable(table) else table for name, table in found.items()}


def same(found, expected):
    return all(found[table].equals(expected[table]) for table in expected)


def frames_of(store, readers=(by_pandas, by_polars)):
    return {
        (read.__name__, table, run_id): rows
        for read in readers
        for table in ("ranks", "links", "steps")
        for run_id, rows in read(store, table).items()
    }
