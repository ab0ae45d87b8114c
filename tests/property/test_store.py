"""Any run comes back from a store as it is; any name that is allowed is a text to every reader."""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, strategies as st

import nsyspipe
from nsyspipe.errors import OptionError
from nsyspipe.model.schema import RUN_TABLES
from nsyspipe.report.export import document_text
from nsyspipe.store.layout import check_run_id, published
from nsyspipe.store.write import save
from tests.conftest import examples
from tests.property.strategies import PROCESSES, load_run, runs, write

RUNS = st.lists(PROCESSES, min_size=1, max_size=3)
# What numbers and dates are made of, and a few letters.
NAMES = st.text("0123456789-.eExTZ_+abinfnt", min_size=1, max_size=12)


def table_of(run, name):
    found = getattr(run, name)
    return found if isinstance(found, pa.Table) else found()


def check_round_trip(run, folder):
    save(run, folder / "store", events=True)
    saved = nsyspipe.load(folder / "store")
    for name in RUN_TABLES:
        assert table_of(saved, name).equals(table_of(run, name), check_metadata=True), name
    assert document_text(saved) == document_text(run)
    for ours, theirs in zip(run.operations(), saved.operations(), strict=True):
        assert ours[0] == theirs[0]
        assert all(one.equals(other) for one, other in zip(ours[1:], theirs[1:], strict=True))


@pytest.mark.slow
@examples(10)
@given(RUNS)
def test_any_run_comes_back_as_it_is(found):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(found, folder)
        check_round_trip(nsyspipe.load(folder, jobs=1, run_id="run"), folder)


@pytest.mark.slow
@examples(8)
@given(runs())
def test_any_run_of_several_ranks_comes_back_as_it_is(found):
    with tempfile.TemporaryDirectory() as name:
        run = load_run(found, Path(name))
        check_round_trip(run, Path(name))


@examples(40)
@given(NAMES)
@example("1-1-1")
@example("1e5")
@example("epoch")
def test_a_name_that_is_allowed_is_a_text_to_every_reader(name):
    try:
        check_run_id(name)
    except OptionError as error:
        check_run_id(error.fix.removeprefix("--run-id "))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / published("t.parquet", name)
        path.parent.mkdir(parents=True)
        ids = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([name]))
        pq.write_table(pa.table({"run_id": ids}), path)
        glob = f"read_parquet('{folder}/t/*/*.parquet', hive_partitioning = true)"
        assert duckdb.sql(f"SELECT run_id FROM {glob}").fetchall() == [(name,)]
        assert pd.read_parquet(f"{folder}/t")["run_id"].astype(object).tolist() == [name]
