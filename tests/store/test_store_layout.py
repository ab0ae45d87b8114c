"""Which names a run may have in a dataset, where its files lie, and what DuckDB, pandas, Polars and pyarrow read in them."""

import os
import re
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.errors import OptionError
from nsyspipe.model.schema import DATASET, EVENT_TABLES
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.report import export
from nsyspipe.store import layout, write
from nsyspipe.store.layout import FILE_NAME, check_run_id, file_name, has_run, published, run_ids
from tests.build.trace import steady_rank

GOOD = [
    "nightly",
    "20260301T043000-1a2b3c4d",
    "v1.2",
    "a",
    "x" * 100,
    "a+b",
    "2026-03-01-night",
    "1-2",
    "1.2.3",
    "12-34",
    "true",
    "null",
    "3e",
    "e5",
    "0x",
    "run",
]
NO_NAMES = [
    "",
    ".",
    "..",
    ".hidden",
    "-x",
    "_x",
    "a/b",
    "a b",
    "a=b",
    "a%20b",
    "é",
    "a\nb",
    "a\x00b",
    "x" * 101,
    "*",
    "\ud800",
    " ",
    "+1",
]
NUMBERS = [
    "1",
    "007",
    "1.5",
    "1e5",
    "1E400",
    "0x1F",
    "0b1",
    "1_000",
    "nan",
    "inf",
    "Infinity",
    "5.",
    "2026-03-01",
    "2026-3-1",
    "1-2-3",
    "epoch",
    "EPOCH",
    "20260301",
]


def test_a_good_name_is_the_same_text_to_every_reader(tmp_path):
    # Each in a table of its own: what a reader takes one name for, it may take from another one
    # beside it.
    for number, run_id in enumerate(GOOD):
        check_run_id(run_id)
        path = tmp_path / published(f"t{number}.parquet", run_id)
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"run_id": pa.array([run_id]).dictionary_encode(), "x": [1]}), path)
        table = tmp_path / f"t{number}"
        query = f"SELECT run_id FROM read_parquet('{table}/*/*.parquet', hive_partitioning = true)"
        assert duckdb.sql(query).fetchall() == [(run_id,)], number
        assert pd.read_parquet(table)["run_id"].astype(object).tolist() == [run_id], number
        assert pl.scan_parquet(table).collect()["run_id"].to_list() == [run_id], number


FIXES = {
    "a b/c": "a-b-c",
    "_x": "x",
    "": "run-1",
    "é": "run-1",
    "2026 03 01": "run-2026-03-01",
    "5/": "run-5",
}


@pytest.mark.parametrize("run_id", dict.fromkeys([*NO_NAMES, *NUMBERS, *FIXES]))
def test_a_bad_run_name_is_refused_with_the_nearest_good_one(run_id, worded):
    with pytest.raises(OptionError) as caught:
        check_run_id(run_id)
    worded(re.sub("x{50,}", "x...", caught.value.problem))
    fix = caught.value.fix.removeprefix("--run-id ")
    assert fix == FIXES.get(run_id, fix)
    check_run_id(fix)


@pytest.mark.parametrize(
    ("table", "rank", "path"),
    [
        ("phase_summary", None, "phase_summary/run_id=a"),
        ("events", 0, "events/run_id=a/rank=0"),
        ("phase_ranges", 12, "phase_ranges/run_id=a/rank=12"),
    ],
)
def test_each_file_has_its_place_in_a_store_and_a_name_before(table, rank, path):
    name = file_name(table, rank)
    assert published(name, "a") == Path(path, "part-0.parquet")
    assert FILE_NAME.fullmatch(name)
    others = [
        "",
        "steps",
        "steps.parquet/x",
        "../x.parquet",
        "x-1-2.parquet",
        "x-01.parquet",
        "x-.parquet",
        "files",
    ]
    assert not any(map(FILE_NAME.fullmatch, others))


def test_what_is_no_store_has_no_runs(tmp_path):
    (tmp_path / "runs" / "run_id=empty").mkdir(parents=True)
    (tmp_path / "runs" / "other=1").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file", tmp_path / ("x" * 300)):
        assert list(run_ids(path)) == [], path
        for run_id in ("empty", "", "..", "a/b", "a\0b"):
            assert not has_run(path, run_id), run_id


def test_a_run_is_there_whatever_its_files_are_and_before_they_are_in_place(tmp_path):
    makers = {
        "link": lambda path: path.symlink_to("nothing"),
        "directory": Path.mkdir,
        "file": Path.touch,
    }
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
        def looked(*arguments):
            found = look(*arguments)
            if (switch / "runs.parquet").exists():
                (switch / "runs.parquet").rename(place / "part-0.parquet")
                switch.rmdir()
            return found

        return looked

    for name, look, ask in (
        (
            "nsyspipe.store.layout.os.path.lexists",
            os.path.lexists,
            lambda: has_run(tmp_path, "new"),
        ),
        (
            "nsyspipe.store.layout._names_in",
            layout._names_in,
            lambda: [*run_ids(tmp_path)] == ["new"],
        ),
    ):
        (place / "part-0.parquet").unlink(missing_ok=True)
        switch.mkdir(exist_ok=True)
        (switch / "runs.parquet").touch()
        with monkeypatch.context() as patched:
            patched.setattr(name, move_after(look))
            assert ask(), name


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readers")
    for name, n_ranks in (("pair", 2), ("alone", 1)):
        (folder / name).mkdir()
        for rank in range(n_ranks):
            steady_rank(rank, world_size=n_ranks).write(folder / name / f"{name}_{rank}.sqlite")
        export.parquet(
            nsyspipe.load(folder / name, run_id=name, jobs=1),
            folder / "store",
            events=name == "pair",
        )
    return folder / "store"


def saved(store, table):
    files = sorted(
        (store / table).glob("*/*/*.parquet" if table in EVENT_TABLES else "*/*.parquet")
    )
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files])


def plain(table):
    return [tuple(map(_plain, row.values())) for row in table.to_pylist()]


def _plain(value):
    return value.astimezone(UTC) if isinstance(value, datetime) else value


@pytest.mark.parametrize("table", DATASET)
def test_every_reader_reads_what_was_saved_to_the_nanosecond(store, table):
    expected = sorted(map(repr, plain(saved(store, table))))
    lanes = ("counter_bars", "line_bars", "peers")
    assert expected or table in (
        *("counters", "host_lines", "host_steps", "idle_calls", "links", *lanes),
    )
    levels = "*/*/*" if table in EVENT_TABLES else "*/*"
    for pattern in (f"{store}/{table}/{levels}.parquet", f"{store}/{table}/**/*.parquet"):
        for options in (
            "hive_partitioning = true, union_by_name = true",
            "hive_partitioning = false",
        ):
            rows = duckdb.sql(
                f"SELECT * FROM read_parquet('{pattern}', {options})"
            ).to_arrow_table()
            assert rows.column_names == DATASET[table].names, options
            assert sorted(map(repr, plain(rows))) == expected, options
    more = {"partitioning": None} if table in EVENT_TABLES else {}
    frame = pd.read_parquet(store / table, dtype_backend="pyarrow", **more)
    kinds = {name: frame[name].dtype.pyarrow_dtype for name in frame.columns}
    assert kinds == {field.name: field.type for field in DATASET[table].arrow}
    assert sorted(map(repr, plain(pa.Table.from_pandas(frame, preserve_index=False)))) == expected
    polars = pl.scan_parquet(store / table).collect()
    assert polars.columns == DATASET[table].names
    assert sorted(repr(tuple(map(_plain, row))) for row in polars.rows()) == expected
    assert sorted(map(repr, plain(ds.dataset(store / table).to_table()))) == expected


@pytest.mark.parametrize("table", DATASET)
def test_files_say_what_they_hold(store, table):
    for path in sorted((store / table).rglob("*.parquet")):
        file = pq.ParquetFile(path)
        assert file.metadata.metadata[b"schema_version"] == str(SCHEMA_VERSION).encode(), path
        assert file.schema_arrow.equals(DATASET[table].arrow, check_metadata=True), path
        assert not any(pa.types.is_nested(field.type) for field in file.schema_arrow), path
        for field in file.schema_arrow:
            assert field.metadata[b"unit"] and field.metadata[b"doc"], field.name  # noqa: PT018
        for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
            assert {group.column(at).compression for at in range(group.num_columns)} == {"ZSTD"}, (
                group
            )


def test_tables_are_sorted_by_their_keys(store):
    for table in {*DATASET} - {*EVENT_TABLES, "findings", "idle_calls", "kernels", "problems"}:
        for path in (store / table).rglob("*.parquet"):
            rows = pq.ParquetFile(path).read().to_pylist()
            keys = [
                tuple((row[name] is not None, row[name]) for name in DATASET[table].key)
                for row in rows
            ]
            assert keys == sorted(keys), table


def test_a_time_and_a_null_are_what_they_are(store):
    captured = pq.ParquetFile(store / "runs/run_id=pair/part-0.parquet").read()["captured_at_utc"]
    assert captured.to_pylist()[0].year == 2001  # 10**18 ns after the epoch
    rows = duckdb.sql(
        f"SELECT run_id, wait_share FROM read_parquet('{store}/runs/*/*.parquet') ORDER BY run_id"
    )
    alone, pair = rows.fetchall()
    assert alone == ("alone", None)  # nobody to wait for
    assert pair[1] is not None


def test_the_long_form_has_every_figure_of_the_other_tables(store):
    metrics = f"read_parquet('{store}/metrics/*/*.parquet')"
    for name in ("comm_ns", "idle_share", "n_dtod"):
        query = f"""SELECT s.{name}, m.value FROM read_parquet('{store}/steps/*/*.parquet') s JOIN {metrics} m
                    ON s.run_id = m.run_id AND s.rank = m.rank AND s.step = m.step WHERE m.metric = '{name}'"""
        rows = duckdb.sql(query).fetchall()
        assert len(rows) == saved(store, "steps").num_rows, name
        assert all(one == value for one, value in rows), name
    of_run = (
        f"SELECT run_id, value FROM {metrics} WHERE rank IS NULL AND metric = 'comm_share' ORDER "
        "BY run_id"
    )
    runs = (
        f"SELECT run_id, comm_share FROM read_parquet('{store}/runs/*/*.parquet') ORDER BY run_id"
    )
    assert duckdb.sql(of_run).fetchall() == duckdb.sql(runs).fetchall()


@pytest.mark.reads_anew
@pytest.mark.parametrize(
    ("table", "n_rows", "ranks"),
    [
        ("steps", 15, [(0, 1), (2, 3), (4, 5)]),  # 6 steps a rank: two ranks are 12 rows
        (
            "steps",
            4,
            [(rank, rank) for rank in range(6) for _ in range(2)],
        ),  # a rank is more than a group
        pytest.param("metrics", 700, None, marks=pytest.mark.slow),
        pytest.param("phases", 40, None, marks=pytest.mark.slow),
        pytest.param("timeline", 20, None, marks=pytest.mark.slow),
    ],
)
def test_row_groups_hold_whole_ranks_so_that_duckdb_skips_others(
    tmp_path, monkeypatch, table, n_rows, ranks
):
    for rank in range(6):
        steady_rank(rank, 6, world_size=6).write(tmp_path / f"r_{rank}.sqlite")
    monkeypatch.setattr(write, "_ROWS_PER_GROUP", n_rows)
    write.save(nsyspipe.load(tmp_path, run_id="a"), tmp_path / "store")
    path = tmp_path / "store" / table / "run_id=a" / "part-0.parquet"
    found = duckdb.sql(
        "SELECT stats_min_value::INT, stats_max_value::INT, row_group_num_rows FROM "
        "parquet_metadata"
        f"('{path}') WHERE path_in_schema = 'rank' ORDER BY row_group_id"
    ).fetchall()
    assert max(size for *_, size in found) <= n_rows
    spans = [(low, high) for low, high, _ in found]
    assert spans == ranks or (ranks is None and len(spans) > 1)
    assert ranks or all(last < first for (_, last), (first, _) in pairwise(spans))
