"""By what a scoreboard is sorted."""

from __future__ import annotations

import pytest

from nsyspipe.comparison.scoreboard import SORTS, check_sort, sorted_rows
from nsyspipe.comparison.tables import SCOREBOARD
from nsyspipe.errors import OptionError


def test_every_metric_is_a_column():
    assert {column for column, _ in SORTS.values()} <= set(SCOREBOARD.names)


@pytest.mark.parametrize("name", ["step_time", "step_time_ns"])
def test_a_metric_goes_by_its_name_or_its_column(name):
    assert check_sort(name) == "step_time"


def test_an_unknown_metric_lists_those_that_there_are():
    with pytest.raises(OptionError) as caught:
        check_sort("label", "--sort")
    assert str(caught.value) == "--sort 'label': there is no such metric"
    assert caught.value.found.startswith("step_time, throughput, ")


@pytest.mark.parametrize(
    ("name", "expected"), [("step_time", ["b", "c", "a", "d"]), ("overlap_ratio", ["a", "b", "c", "d"])]
)  # fmt: skip
def test_the_best_comes_first_nulls_last_and_equal_ones_as_given(name, expected):
    column = SORTS[name][0]
    rows = [{"label": label, column: value} for label, value in [("d", None), ("a", 3), ("b", 1), ("c", 1)]]  # fmt: skip
    assert [row["label"] for row in sorted_rows(rows, name)] == expected
