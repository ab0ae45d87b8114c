"""What every reader of a store must find while runs are saved in it and their writers are stopped."""

from __future__ import annotations

import contextlib

import duckdb
import pyarrow.parquet as pq

import nsyspipe
from nsyspipe.schema import EVENT_TABLES
from nsyspipe.store.layout import run_ids
from tests.integration.store_tools import (
    OTHER_ID,
    RUN_ID,
    TABLES,
    by_duckdb,
    by_pandas,
    by_polars,
    contents,
    new_run,
    old_run,
    other_run,
    stored,
)

IDS = {"old": RUN_ID, "new": RUN_ID, "other": OTHER_ID}


class Expected:
    """Three runs, each alone in a store: two versions of one run, and another run.

    Attributes
    ----------
    stores
        Where each is alone, with its operations.
    files
        The bytes of each one's files that have rows, by path.
    """

    def __init__(self, folder):
        runs = {"old": old_run(folder), "new": new_run(folder), "other": other_run(folder)}
        self.stores = {name: folder / f"alone-{name}" for name in runs}
        for name, run in runs.items():
            stored(self.stores[name], run, events=True)
        self.sums = {name: by_duckdb(store)[IDS[name]] for name, store in self.stores.items()}
        self.files = {name: with_rows(store) for name, store in self.stores.items()}
        self.loaded = {name: tables_of(store, IDS[name]) for name, store in self.stores.items()}
        self.frames = {name: frames_of(store) for name, store in self.stores.items()}

    def whole(self, store):
        """Check that no reader finds a run by halves; return which of the two there is, None for neither."""
        which = self.by_files(store)
        there = {RUN_ID: which, OTHER_ID: self._other(store)}
        there = {run_id: name for run_id, name in there.items() if name}
        assert set(run_ids(store)) == set(there)
        for run_id, name in there.items():
            assert same(tables_of(store, run_id), self.loaded[name])
        if there:  # before its first run, DuckDB finds no file to read
            assert by_duckdb(store) == {run_id: self.sums[name] for run_id, name in there.items()}
            assert frames_of(store) == {k: v for name in there.values() for k, v in self.frames[name].items()}  # fmt: skip
        return which

    def meanwhile(self, store):
        """Check what readers see while a writer is at it: each table whole, a loaded run whole.

        DuckDB opens a file twice for one query, so that one that is replaced in between is an error to it.
        """
        frames = frames_of(store, [by_pandas])
        for (_, table, run_id), rows in frames.items():
            names = ("old", "new") if run_id == RUN_ID else ("other",)
            assert rows in [self.frames[name].get(("by_pandas", table, run_id)) for name in names]
        found = tables_of(store, RUN_ID)
        assert any(same(found, self.loaded[name]) for name in ("old", "new"))
        with contextlib.suppress(duckdb.Error):
            sums = by_duckdb(store)
            assert sums[OTHER_ID] == self.sums["other"]
            for table in TABLES:
                allowed = [self.sums[name].get(table) for name in ("old", "new")]
                assert sums[RUN_ID].get(table) in allowed

    def by_files(self, store):
        """Tell which run there is by the bytes of every file that can be listed; all of them can be opened."""
        files = {path: found for path, found in with_rows(store).items() if RUN_ID in path}
        if not files:
            return None
        tables = {path: found for path, found in files.items() if not is_events(path)}
        (which,) = (name for name in ("old", "new") if tables == self._tables(name))
        assert files in (tables, self.files[which])
        return which

    def _tables(self, name):
        return {path: found for path, found in self.files[name].items() if not is_events(path)}

    def _other(self, store):
        files = {path: found for path, found in with_rows(store).items() if OTHER_ID in path}
        assert files in ({}, self._tables("other"), self.files["other"])
        return "other" if files else None


def is_events(path):
    return path.partition("/")[0] in EVENT_TABLES


def with_rows(store):
    return {
        path: found
        for path, found in contents(store).items()
        if pq.read_metadata(store / path).num_rows
    }


def tables_of(store, run_id):
    run = nsyspipe.load(store, run_id=run_id)
    assert run.header.run_id == run_id
    names = [name for name in TABLES if name not in ("runs", "metrics")]
    return {"summary": run.summary()} | {
        name: found if not callable(found := getattr(run, name)) else found() for name in names
    }


def same(found, expected):
    return all(found[table].equals(expected[table]) for table in expected)


def frames_of(store, readers=(by_pandas, by_polars)):
    """Return some tables as pandas and Polars read a directory of them, by reader, table and run."""
    return {
        (read.__name__, table, run_id): rows
        for read in readers
        for table in ("runs", "links", "steps")
        for run_id, rows in read(store, table).items()
    }
