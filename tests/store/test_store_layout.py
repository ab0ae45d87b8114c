"""Which names a run may have in a dataset, and where its files lie."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsyspipe.errors import OptionError
from nsyspipe.store import layout
from nsyspipe.store.layout import check_run_id, file_name, has_run, is_file_name, published, run_ids

GOOD = [
    "nightly", "20260301T043000-1a2b3c4d", "v1.2", "a", "x" * 100, "a+b", "2026-03-01-night", "1-2", "1.2.3", "12-34",
    "true", "null", "3e", "e5", "0x", "run",
]  # fmt: skip
NO_NAMES = [
    "", ".", "..", ".hidden", "-x", "_x", "a/b", "a b", "a=b", "a%20b", "é", "a\nb", "a\x00b", "x" * 101, "*",
    "\ud800", " ", "+1",
]  # fmt: skip
NUMBERS = [
    "1", "007", "1.5", "1e5", "1E400", "0x1F", "0b1", "1_000", "nan", "inf", "Infinity", "5.", "2026-03-01",
    "2026-3-1", "1-2-3", "epoch", "EPOCH", "20260301",
]  # fmt: skip


def test_a_good_name_is_the_same_text_to_every_reader(tmp_path):
    # Each in a table of its own: what a reader takes one name for, it may take from another one beside it.
    for number, run_id in enumerate(GOOD):
        check_run_id(run_id)
        path = tmp_path / published(f"t{number}.parquet", run_id)
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"run_id": pa.array([run_id]).dictionary_encode(), "x": [1]}), path)
        table = tmp_path / f"t{number}"
        query = f"SELECT run_id FROM read_parquet('{table}/*/*.parquet', hive_partitioning = true)"
        assert duckdb.sql(query).fetchall() == [(run_id,)]
        assert pd.read_parquet(table)["run_id"].astype(object).tolist() == [run_id]
        assert pl.scan_parquet(table).collect()["run_id"].to_list() == [run_id]


FIXES = {"a b/c": "a-b-c", "_x": "x", "": "run-1", "é": "run-1", "2026 03 01": "run-2026-03-01", "5/": "run-5"}


@pytest.mark.parametrize("run_id", dict.fromkeys([*NO_NAMES, *NUMBERS, *FIXES]))
def test_what_is_no_name_or_a_number_to_some_reader_is_refused_with_the_nearest_that_is(run_id):
    why = "reads like a number or a date" if run_id in NUMBERS else "names a directory of the dataset"
    with pytest.raises(OptionError, match=why) as caught:
        check_run_id(run_id)
    fix = caught.value.fix.removeprefix("--run-id ")
    assert fix == FIXES.get(run_id, fix)
    check_run_id(fix)


@pytest.mark.parametrize(("table", "rank", "path"), [
    ("phase_summary", None, "phase_summary/run_id=a"), ("events", 0, "events/run_id=a/rank=0"),
    ("phase_ranges", 12, "phase_ranges/run_id=a/rank=12"),
])  # fmt: skip
def test_each_file_has_its_place_in_a_store_and_a_name_before(table, rank, path):
    name = file_name(table, rank)
    assert published(name, "a") == Path(path, "part-0.parquet")
    assert is_file_name(name)
    others = ["", "steps", "steps.parquet/x", "../x.parquet", "x-1-2.parquet", "x-01.parquet", "x-.parquet", "files"]
    assert not any(map(is_file_name, others))


def test_what_is_no_store_has_no_runs(tmp_path):
    (tmp_path / "runs" / "run_id=empty").mkdir(parents=True)
    (tmp_path / "runs" / "other=1").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file", tmp_path / ("x" * 300)):
        assert list(run_ids(path)) == []
        for run_id in ("empty", "", "..", "a/b", "a\0b"):
            assert not has_run(path, run_id)


def test_a_run_is_there_whatever_its_files_are_and_before_they_are_in_place(tmp_path):
    makers = {"link": lambda path: path.symlink_to("nothing"), "directory": Path.mkdir, "file": Path.touch}
    for run_id, make in makers.items():
        (tmp_path / "runs" / f"run_id={run_id}").mkdir(parents=True)
        make(tmp_path / "runs" / f"run_id={run_id}" / "part-0.parquet")
    (tmp_path / ".nsyspipe" / "switch" / "new").mkdir(parents=True)
    (tmp_path / ".nsyspipe" / "switch" / "new" / "runs.parquet").touch()
    (tmp_path / ".nsyspipe" / "switch" / "rest").mkdir()
    assert sorted(run_ids(tmp_path)) == ["directory", "file", "link", "new"]


def test_a_run_that_gets_into_its_place_while_it_is_looked_for_is_found(tmp_path, monkeypatch):
    switch, place = tmp_path / ".nsyspipe" / "switch" / "new", tmp_path / "runs" / "run_id=new"
    switch.mkdir(parents=True)
    place.mkdir(parents=True)

    def move_after(look):
        """Let a writer put the run's row into its place once one of the two was looked at."""

        def looked(*arguments):
            found = look(*arguments)
            if (switch / "runs.parquet").exists():
                (switch / "runs.parquet").rename(place / "part-0.parquet")
                switch.rmdir()
            return found

        return looked

    for name, look, ask in (
        ("nsyspipe.store.layout.os.path.lexists", os.path.lexists, lambda: has_run(tmp_path, "new")),
        ("nsyspipe.store.layout._listed", layout._listed, lambda: [*run_ids(tmp_path)] == ["new"]),
    ):
        (place / "part-0.parquet").unlink(missing_ok=True)
        switch.mkdir(exist_ok=True)
        (switch / "runs.parquet").touch()
        with monkeypatch.context() as patched:
            patched.setattr(name, move_after(look))
            assert ask()
