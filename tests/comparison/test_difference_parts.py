"""The parts of the difference in step time sum to it, exactly."""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pytest

from nsyspipe.comparison.changes import StepTable, apportioned, mean_step_time, step_parts


def parts(before, after):
    rows = step_parts(before, after)[0].to_pylist()
    return {row["part"]: (row["baseline_ns"], row["candidate_ns"], row["delta_ns"]) for row in rows}


@pytest.fixture
def table(made):
    return lambda *ranks: StepTable(made(*ranks))


def test_parts_are_those_of_the_slowest_rank_of_each_step(table):
    # Slowest: rank 1 (140), rank 0 (130), and of two equal ones (140) the lower: rank 0.
    before = table(
        [(100, 10, 4, 6), (100, 20, 4, 6), (100, 30, 4, 6)],
        [(90, 10, 4, 36), (90, 20, 4, 6), (90, 40, 4, 6)],
    )
    after = table([(100, 10, 0, 10)] * 3, [(90, 10, 0, 10)] * 3)
    found = parts([before], [after])
    # Of compute the mean is 290 / 3, in 1/1024 ns.
    assert abs(found.pop("compute")[0] - 290 / 3) < 1 / 1024
    assert found == {"exposed_comm": (20, 10, -10), "exposed_memory": (4, 0, -4), "idle": (16, 10, -6)}


def test_thirds_of_a_nanosecond_sum_exactly_as_floats(table):
    before = table([(101, 7, 1, 3), (103, 8, 1, 4), (100, 9, 2, 1)])
    after = table([(90, 17, 0, 3), (91, 3, 1, 5), (93, 8, 2, 2)])
    found = parts([before], [after])
    means = [float(mean_step_time([one])) for one in (before, after)]
    for at, total in enumerate([*means, means[1] - means[0]]):
        assert sum(cells[at] for cells in found.values()) == total
    assert abs(means[0] - 340 / 3) < 1 / 1024


def test_idle_causes_sum_to_idle_exactly(table):
    before = table([(101, 7, 1, 30), (103, 8, 1, 41), (100, 9, 2, 11)])
    after = table([(90, 17, 0, 31), (91, 3, 1, 5), (93, 8, 2, 2)])
    steps, causes = step_parts([before], [after])
    idle = steps.to_pylist()[-1]
    for column in ("baseline_ns", "candidate_ns", "delta_ns"):
        assert sum(row[column] or 0 for row in causes.to_pylist()) == idle[column]
    assert [row["cause"] for row in causes.to_pylist()] == ["input", "launch", "blocked", "dependency", "other"]


def test_several_captures_count_alike_whatever_their_length(table):
    short = table([(100, 0, 0, 0)] * 2)
    long = table([(200, 0, 0, 0)] * 6)
    assert float(mean_step_time([short, long])) == 150


def test_parts_of_a_side_that_lacks_one_are_null_and_the_others_are_said(table):
    whole, lacking = (table([(100, 10, 4, 6)] * 3) for _ in range(2))
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
