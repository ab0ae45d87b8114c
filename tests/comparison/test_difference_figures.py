"""The figures of a step that runs are compared by, and the parts of its time."""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pytest

import nsyspipe
from nsyspipe.comparison.changes import StepTable, apportioned, mean_step_time, step_parts
from nsyspipe.comparison.metrics import per_step
from nsyspipe.errors import DatasetError
from tests.build.nccl_layouts import NCCL_2_21
from tests.build.trace import steady_rank

# Two ranks, three steps: (compute, comm, copy, idle).
ZERO = [(100, 10, 4, 6), (100, 20, 4, 6), (100, 30, 4, 6)]
ONE = [(90, 10, 4, 36), (90, 20, 4, 6), (90, 40, 4, 6)]


@pytest.fixture(scope="module")
def table(made):
    return StepTable(made(ZERO, ONE))


def figures(table, name):
    found = per_step(table, name)
    return found if isinstance(found, str) else found.tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("step_time", [140, 130, 140]),  # rank 1, rank 0, and of equal ones either
        ("compute", [100, 100, 100]),
        ("exposed_comm", [10, 20, 40]),
        ("exposed_memory", [4, 4, 4]),
        ("idle", [36, 6, 6]),
        ("dtod", [4, 4, 4]),
        # one over the longest window
        ("throughput", [1e9 / 140, 1e9 / 130, 1e9 / 140]),
        # ratios are pooled over the ranks of a step; walls of the first step: 120 and 140
        ("comm_share", [20 / 260, 40 / 250, 70 / 280]),
        ("idle_share", [42 / 260, 12 / 250, 12 / 280]),
        ("overlap_ratio", [0, 0, 0]),
        # counts and bytes are means over ranks
        ("collectives", [1, 1, 1]),
        ("dtod_bytes", [32, 32, 32]),
    ],
)
def test_a_figure_of_a_step_is_made_of_its_ranks(table, name, expected):
    assert figures(table, name) == pytest.approx(expected)


def test_what_was_not_recorded_is_said_and_the_summary_rests_on_the_same_steps(table):
    assert all("include-blobs" in figures(table, name) for name in ("message_bytes", "busbw", "algbw"))
    summary = table.run.summary().to_pylist()[0]
    assert table.n_steps == summary["n_summary_steps"] == 3
    assert summary["step_time_ns"] == 140


def test_steps_without_a_denominator_are_left_out_of_a_ratio(made):
    table = StepTable(made(*[[(100, 10, 0, 0), (100, 0, 0, 0), (100, 30, 0, 0)]] * 2))
    assert figures(table, "overlap_ratio") == [0, 0]
    assert figures(table, "comm_share") == pytest.approx([10 / 110, 0, 30 / 130])

    # The first and the last step have communication; those of the figures have none.
    table = StepTable(made(*[[(100, 0, 0, 1)] * 3] * 2))
    assert "denominator is 0" in figures(table, "overlap_ratio")


def test_bus_bandwidth_is_pooled_over_the_collectives_of_a_step(tmp_path):
    fields = {"NCCL communicator ID": 7, "Message size [bytes]": 4096}
    for rank in range(2):
        builder = steady_rank(rank, version="3.25.0 2026.2.1 mfu").domain("NCCL", 1)
        for step in range(4):
            builder.nccl_payload(1000 * step + 80, "ncclAllReduce", fields, NCCL_2_21)
        builder.write(tmp_path / f"r_{rank}.sqlite")
    table = StepTable(nsyspipe.load(tmp_path, jobs=1))
    # 60 ns on both ranks at once: 4096 bytes / 60 ns, times 2 (n - 1) / n = 1.
    assert figures(table, "message_bytes") == [4096, 4096]
    assert figures(table, "busbw") == pytest.approx([4096 / 60 * 1e9] * 2)


def test_steps_that_not_every_rank_has_are_refused(table):
    broken = StepTable(table.run)
    vars(broken)["rows"] = table.rows.slice(1)  # as of a damaged store
    with pytest.raises(DatasetError, match="not every rank"):
        figures(broken, "step_time")


def test_a_run_of_one_rank_waits_for_nobody_and_without_a_common_step_has_no_figures(made):
    table = StepTable(made(ZERO))
    assert "one rank" in figures(table, "wait")
    empty = StepTable(table.run)
    vars(empty)["rows"] = table.rows.slice(0, 0)
    assert empty.n_steps == 0
    assert figures(empty, "step_time") == "there is no step with a window on every rank"
    assert empty.matrix("wall_ns") is None


# The parts of the difference in step time sum to it, exactly.


def parts(before, after):
    rows = step_parts(before, after)[0].to_pylist()
    return {row["part"]: (row["baseline_ns"], row["candidate_ns"], row["delta_ns"]) for row in rows}


@pytest.fixture
def table_of(made):
    return lambda *ranks: StepTable(made(*ranks))


def test_parts_are_those_of_the_slowest_rank_of_each_step(table_of):
    # Slowest: rank 1 (140), rank 0 (130), and of two equal ones (140) the lower: rank 0.
    before = table_of(
        [(100, 10, 4, 6), (100, 20, 4, 6), (100, 30, 4, 6)], [(90, 10, 4, 36), (90, 20, 4, 6), (90, 40, 4, 6)]
    )
    after = table_of([(100, 10, 0, 10)] * 3, [(90, 10, 0, 10)] * 3)
    found = parts([before], [after])
    # Of compute the mean is 290 / 3, in 1/1024 ns.
    assert abs(found.pop("compute")[0] - 290 / 3) < 1 / 1024
    assert found == {"exposed_comm": (20, 10, -10), "exposed_memory": (4, 0, -4), "idle": (16, 10, -6)}


def test_thirds_of_a_nanosecond_sum_exactly_as_floats_and_causes_to_idle(table_of):
    before = table_of([(101, 7, 1, 30), (103, 8, 1, 41), (100, 9, 2, 11)])
    after = table_of([(90, 17, 0, 31), (91, 3, 1, 5), (93, 8, 2, 2)])
    steps, causes = (one.to_pylist() for one in step_parts([before], [after]))
    means = [float(mean_step_time([one])) for one in (before, after)]
    assert abs(means[0] - 414 / 3) < 1 / 1024
    totals = dict(zip(("baseline_ns", "candidate_ns", "delta_ns"), [*means, means[1] - means[0]], strict=True))
    for column, total in totals.items():
        assert sum(row[column] for row in steps) == total
        assert sum(row[column] or 0 for row in causes) == steps[-1][column]
    assert [row["cause"] for row in causes] == ["input", "launch", "blocked", "dependency", "other"]
    # Several captures count alike, whatever their length.
    short, long = table_of([(100, 0, 0, 0)] * 2), table_of([(200, 0, 0, 0)] * 6)
    assert float(mean_step_time([short, long])) == 150


def test_parts_of_a_side_that_lacks_one_are_null_and_the_others_are_said(table_of):
    whole, lacking = (table_of([(100, 10, 4, 6)] * 3) for _ in range(2))
    at = whole.rows.column_names.index("idle_ns")
    nulls = pa.nulls(whole.rows.num_rows, pa.int64())
    vars(lacking)["rows"] = whole.rows.set_column(at, "idle_ns", nulls)
    found = parts([whole], [lacking])
    assert found["idle"] == (6, None, None)
    assert found["compute"] == (100, 100, 0)


def test_rounding_gives_the_rest_to_the_largest_remainders_then_to_the_first():
    third = Fraction(1, 3)
    found = apportioned(Fraction(2), {"a": third, "b": 2 * third, "c": third, "d": 2 * third}, Fraction(1))
    assert found == {"a": 0, "b": 1, "c": 0, "d": 1}
    found = apportioned(Fraction(1), {"a": third, "b": third, "c": third}, Fraction(1))
    assert found == {"a": 1, "b": 0, "c": 0}
