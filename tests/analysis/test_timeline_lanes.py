"""Bars of counters and of lines of Python in a window: means over time, and limits."""

import numpy as np
import pytest

from nsyspipe.analysis.counters import Series
from nsyspipe.analysis.timeline_lanes import (
    MAX_BARS,
    LineSamples,
    Window,
    counted_bars,
    counter_bins,
    line_bars,
)
from nsyspipe.model.canonical import PYTHON_LINES

PERIOD = 100


def series(values, *, start=0, period=PERIOD):
    times = start + period * np.arange(len(values))
    return Series.of(times, np.array(values, np.int64))


def bars_of(values, window, max_bars=MAX_BARS):
    bars = counted_bars({"sm_active": values}, window, max_bars)
    means = bars.means["sm_active"].to_pylist()
    return list(zip(bars.starts.tolist(), bars.ends.tolist(), means, strict=True))


def test_few_samples_have_a_bar_each_and_the_ends_are_those_of_the_window():
    found = bars_of(series([10, 20, 30, 40]), Window(50, 250))
    assert found == [(50, 100, 10), (100, 200, 20), (200, 250, 30)]


def test_many_samples_are_means_over_equal_parts_of_the_window():
    # 1 000 samples in 4 bars of 25 000 ns: no peak is lost, and none is taken for the whole.
    values = [0] * 1000
    values[100] = 100
    values[600] = 50
    found = bars_of(series(values), Window(0, 100_000), 4)
    assert found == [
        (0, 25_000, 100 / 250),
        (25_000, 50_000, 0),
        (50_000, 75_000, 50 / 250),
        (75_000, 100_000, 0),
    ]


def test_bars_weigh_samples_by_the_time_that_they_hold():
    # A window that cuts samples: 50 ns of 10, 100 ns of 20, 50 ns of 40 in one bar.
    (bar,) = bars_of(series([10, 20, 40]), Window(50, 250), 1)
    assert bar == (50, 250, (50 * 10 + 100 * 20 + 50 * 40) / 200)


def test_the_sum_over_bars_is_the_integral_over_the_window():
    values = series([(7 * place) % 101 for place in range(997)])
    window = Window(1234, 98_765)
    bars = counted_bars({"sm_active": values}, window)
    total = sum(
        mean * sampled_ns
        for mean, sampled_ns in zip(
            bars.means["sm_active"].to_pylist(), bars.sampled_ns.tolist(), strict=True
        )
    )
    exact = values.integrals(np.array([window.start_ns]), np.array([window.end_ns]))
    assert total == pytest.approx(int(exact[0]))


def test_a_gap_has_no_bar():
    times = np.array([0, 100, 200, 900, 1000])
    values = Series.of(times, np.array([5, 5, 5, 5, 5]))
    found = bars_of(values, Window(0, 1100))
    assert [(start, end) for start, end, _ in found] == [
        (0, 100),
        (100, 200),
        (200, 300),
        (900, 1000),
        (1000, 1100),
    ]


def test_a_counter_that_was_not_sampled_in_a_bar_is_null_beside_one_that_was():
    counters = {"sm_active": series([10, 20]), "nvlink_tx": series([30])}
    bars = counted_bars(counters, Window(0, 200))
    # A single sample has no period, so it holds for no time.
    assert bars.means["nvlink_tx"].to_pylist() == [None, None]
    assert bars.means["sm_active"].to_pylist() == [10, 20]


@pytest.mark.parametrize(("n_samples", "n_bars"), [(280, 280), (281, 279), (560, 280)])
def test_the_number_of_bars_is_limited(n_samples, n_bars):
    # 281 samples of 100 ns in at most 280 bars are bars of 101 ns.
    window = Window(0, n_samples * PERIOD)
    assert len(bars_of(series([1] * n_samples), window)) == n_bars <= MAX_BARS


def test_a_window_without_length_has_no_bars():
    assert counter_bins(series([1, 2]), Window(50, 50)).starts.size == 0


LINES = PYTHON_LINES.table(
    {
        "path": ["/a.py", "/b.py", "/c.py"],
        "line": [1, 2, 3],
        "function": ["f", "g", "h"],
        "is_of_program": [True, True, False],
    }
)


def samples(line, *, times=None):
    line = np.array(line, np.int64)
    times = PERIOD * np.arange(line.size) if times is None else np.array(times)
    return LineSamples(times, line, LINES)


def lines_of(found):
    return list(
        zip(
            found.starts.tolist(),
            found.ends.tolist(),
            found.line.tolist(),
            found.n_samples.tolist(),
            strict=True,
        )
    )


def test_neighboring_samples_of_one_line_are_one_bar():
    found = line_bars(samples([0, 0, 1, 2, 2]), Window(0, 450))
    assert lines_of(found) == [(0, 200, 0, 2), (200, 300, 1, 1), (300, 450, 2, 2)]


def test_a_sample_that_holds_at_the_start_of_the_window_counts():
    found = line_bars(samples([0, 1, 1]), Window(50, 250))
    assert lines_of(found) == [(50, 100, 0, 1), (100, 250, 1, 2)]


def test_no_line_is_known_in_a_gap():
    found = line_bars(samples([0, 0, 0, 0], times=[0, 100, 200, 900]), Window(0, 1000))
    assert lines_of(found) == [(0, 300, 0, 3), (900, 1000, 0, 1)]


def test_with_too_many_bars_each_part_of_the_window_has_the_line_with_most_time():
    # Two bars of 400 ns: 3 samples of line 0 and one of line 1, then the reverse.
    found = line_bars(samples([0, 1, 0, 0, 1, 0, 1, 1]), Window(0, 800), 2)
    assert lines_of(found) == [(0, 400, 0, 3), (400, 800, 1, 3)]


def test_without_samples_in_the_window_there_are_no_bars():
    assert lines_of(line_bars(samples([0, 1]), Window(5000, 6000))) == []
