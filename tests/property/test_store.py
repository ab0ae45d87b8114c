"""Whatever a run is like: it comes back from a store as it is, and replayed with nothing changed it is itself."""

import json
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, strategies as st

import nsyspipe
from nsyspipe.errors import OptionError
from nsyspipe.model.schema import RUN_TABLES
from nsyspipe.replay.answer import whatif
from nsyspipe.replay.knobs import LINKS
from nsyspipe.report.export import document
from nsyspipe.report.formats import dumps
from nsyspipe.report.whatif import whatif_document
from nsyspipe.store.layout import check_run_id, published
from nsyspipe.store.write import save
from tests.build.ddp_run import MIB, MS, US, Ddp
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
    assert dumps(document(saved)) == dumps(document(run))
    for ours, theirs in zip(run.operations(), saved.operations(), strict=True):
        assert ours[0] == theirs[0], ours
        assert all(one.equals(other) for one, other in zip(ours[1:], theirs[1:], strict=True)), ours


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
        check_round_trip(load_run(found, Path(name)), Path(name))


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


LONGEST_DELAY_NS = 6_500.0  # as assumed over host memory


@st.composite
def trainings(draw):
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    n_ranks = draw(st.integers(2, 3))
    forward, layer = draw(st.integers(1, 20)) * MS, draw(st.integers(1, 8)) * MS
    return Ddp(
        n_ranks=n_ranks,
        n_steps=4,
        forward=forward,
        layer=layer,
        buckets=tuple(counts),
        scale=20 * US,
        copy=20 * US,
        transfer=tuple(draw(st.integers(1, 40)) * MS for _ in counts),
        has_copies=draw(st.booleans()),
        gradients=tuple(draw(st.integers(1, 60)) * MIB for _ in range(sum(counts))),
        late=tuple(draw(st.sampled_from((0, 0, MS, 15 * MS))) for _ in range(n_ranks)),
    )


@pytest.mark.slow
@given(run=trainings())
@examples(15)
def test_any_run_replays_to_itself_and_keeps_its_limits(tmp_path_factory, run):
    opened = nsyspipe.load(run.write(tmp_path_factory.mktemp("run")))
    found = whatif(opened, gradient_bytes=sum(run.gradients))
    # Operations count as spread evenly over the work between two markers: each may be taken to
    # begin beside communication where it did not, and then moves by a delay.
    delays_ns = 2 * sum(run.buckets) * LONGEST_DELAY_NS
    assert found.identity_error_pct <= 0.01 + 100 * delays_ns / found.step_time_ns
    assert found.limit_step_time_ns <= found.step_time_ns * 1.0001
    for one in found.scenarios:
        if one.refused is None:
            assert 0 < one.low_ns <= one.step_time_ns <= one.high_ns, one
            assert np.isfinite(one.high_ns), one
    by_id = {one.id: one for one in found.scenarios}
    (nvlink5,) = whatif(opened, gradient_bytes=sum(run.gradients), link="nvlink5").scenarios
    assert nvlink5.step_time_ns <= by_id["link-nvlink4"].step_time_ns * 1.0001
    # Both are wide links, between which nothing but the bandwidth changes.
    assert nvlink5.high_ns <= by_id["link-nvlink4"].high_ns * 1.0001
    # Between them the assumed slowdown of work grows from 1.03 to 1.13 times, for as long as
    # communication is under way or waits for a late rank: where all of it is hidden that costs more
    # than the bandwidth gives.
    sent_ns = (
        sum(run.gradients)
        * 2
        * (run.n_ranks - 1)
        / run.n_ranks
        / LINKS["pcie5x16"].bus_bytes_per_s
        * 1e9
    )
    under_way_ns = sent_ns + max(run.late) + len(run.buckets) * 30 * US
    assert (
        by_id["link-pcie5x16"].step_time_ns
        <= by_id["link-pcie4x16"].step_time_ns * 1.0001 + 0.1 * under_way_ns
    )
    assert (
        by_id["no-wait"].step_time_ns <= found.step_time_ns * 1.0001
    )  # nobody waits longer than the slowest does


@pytest.mark.slow
@given(run=runs())
@examples(20)
def test_a_run_of_any_kind_gets_an_answer_or_a_reason(tmp_path_factory, run):
    loaded = load_run(run, tmp_path_factory.mktemp("run"))
    found = whatif(loaded)
    assert found.scenarios
    for row in loaded.findings().to_pylist():
        expected, bound = row["expected_ns_per_step"], row["saving_ns_per_step"]
        assert expected is None or (
            np.isfinite(expected) and (bound is None or expected <= bound)
        ), row
    for one in found.scenarios:
        assert (
            (one.refused is None) == (one.step_time_ns is not None) == (one.low_ns is not None)
        ), one
        assert one.refused is None or one.refused.strip(), one
    assert (
        json.loads(json.dumps(whatif_document(found), allow_nan=False))["step_time_ns"]
        == found.step_time_ns
    )
