"""What others make of the dataset: DuckDB, pandas, Polars and pyarrow read the rows, types and nulls that were saved."""

from __future__ import annotations

from datetime import UTC, datetime

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.model.schema import DATASET, EVENT_TABLES
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.report import export
from tests.build.trace import steady_rank


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a store of two runs, one of them with its operations."""
    folder = tmp_path_factory.mktemp("readers")
    for name, n_ranks in (("pair", 2), ("alone", 1)):
        (folder / name).mkdir()
        for rank in range(n_ranks):
            steady_rank(rank, world_size=n_ranks).write(folder / name / f"{name}_{rank}.sqlite")
        run = nsyspipe.load(folder / name, run_id=name, jobs=1)
        export.parquet(run, folder / "store", events=name == "pair")
    return folder / "store"


def saved(store, table):
    """Return what was written, file by file, in order of run and rank."""
    pattern = "*/*/*.parquet" if table in EVENT_TABLES else "*/*.parquet"
    files = sorted((store / table).glob(pattern))
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files])


def plain(table):
    """Return rows as Python values, whatever the library calls a text or the zone of UTC."""
    return [tuple(map(_plain, row.values())) for row in table.to_pylist()]


def _plain(value):
    return value.astimezone(UTC) if isinstance(value, datetime) else value


@pytest.mark.parametrize("table", DATASET)
def test_every_reader_reads_what_was_saved_to_the_nanosecond(store, table):
    expected = sorted(map(repr, plain(saved(store, table))))
    assert expected or table in ("host_steps", "idle_calls", "links")
    levels = "*/*/*" if table in EVENT_TABLES else "*/*"
    for pattern in (f"{store}/{table}/{levels}.parquet", f"{store}/{table}/**/*.parquet"):
        for options in ("hive_partitioning = true, union_by_name = true", "hive_partitioning = false"):
            rows = duckdb.sql(f"SELECT * FROM read_parquet('{pattern}', {options})").to_arrow_table()
            assert rows.column_names == DATASET[table].names
            assert sorted(map(repr, plain(rows))) == expected
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
        assert file.metadata.metadata[b"schema_version"] == str(SCHEMA_VERSION).encode()
        assert file.schema_arrow.equals(DATASET[table].arrow, check_metadata=True)
        assert not any(pa.types.is_nested(field.type) for field in file.schema_arrow)
        for field in file.schema_arrow:
            assert field.metadata[b"unit"] and field.metadata[b"doc"], field.name  # noqa: PT018
        for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
            assert {group.column(at).compression for at in range(group.num_columns)} == {"ZSTD"}


def test_tables_are_sorted_by_their_keys(store):
    for table in {*DATASET} - {
        *EVENT_TABLES,
        "findings",
        "idle_calls",
        "kernels",
        "problems",
    }:  # by size, or nulls last
        for path in (store / table).rglob("*.parquet"):
            rows = pq.ParquetFile(path).read().to_pylist()
            keys = [tuple((row[name] is not None, row[name]) for name in DATASET[table].key) for row in rows]
            assert keys == sorted(keys), table


def test_a_time_and_a_null_are_what_they_are(store):
    captured = pq.ParquetFile(store / "runs/run_id=pair/part-0.parquet").read()["captured_at_utc"]
    assert captured.to_pylist()[0].year == 2001  # 10**18 ns after the epoch
    rows = duckdb.sql(f"SELECT run_id, wait_share FROM read_parquet('{store}/runs/*/*.parquet') ORDER BY run_id")
    alone, pair = rows.fetchall()
    assert alone == ("alone", None)  # nobody to wait for
    assert pair[1] is not None


def test_the_long_form_has_every_figure_of_the_other_tables(store):
    metrics = f"read_parquet('{store}/metrics/*/*.parquet')"
    for name in ("comm_ns", "idle_share", "n_dtod"):
        query = f"""SELECT s.{name}, m.value FROM read_parquet('{store}/steps/*/*.parquet') s JOIN {metrics} m
                    ON s.run_id = m.run_id AND s.rank = m.rank AND s.step = m.step WHERE m.metric = '{name}'"""
        rows = duckdb.sql(query).fetchall()
        assert len(rows) == saved(store, "steps").num_rows
        assert all(one == value for one, value in rows)
    of_run = f"SELECT run_id, value FROM {metrics} WHERE rank IS NULL AND metric = 'comm_share' ORDER BY run_id"
    runs = f"SELECT run_id, comm_share FROM read_parquet('{store}/runs/*/*.parquet') ORDER BY run_id"
    assert duckdb.sql(of_run).fetchall() == duckdb.sql(runs).fetchall()


def test_a_column_that_an_older_run_lacks_is_null_in_the_union(store, tmp_path):
    old = pq.ParquetFile(store / "steps/run_id=alone/part-0.parquet").read()
    for run, rows in (("alone", old.drop_columns(["transfer_ns"])), ("pair", saved(store, "steps"))):
        (tmp_path / f"run_id={run}").mkdir()
        pq.write_table(rows, tmp_path / f"run_id={run}" / "part-0.parquet")
    files = f"read_parquet('{tmp_path}/*/*.parquet', union_by_name = true)"
    [(n_rows, n_values)] = duckdb.sql(f"SELECT count(*), count(transfer_ns) FROM {files}").fetchall()
    assert n_rows > n_values
