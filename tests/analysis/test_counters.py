"""Integrals of hardware counters over windows, by hand and against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis.counters import (
    CounterKernels,
    Series,
    is_full_while_idle,
    joined,
    measure_lag,
    total_of,
)
from nsyspipe.analysis.intervals import union

# A sample every 10 ns from 0 on: 100 % in the samples at 20 and 30, else 0.
BURST = {at: 100 if at in (20, 30) else 0 for at in range(0, 100, 10)}


def series(samples):
    """Return a series of a dictionary of values by time."""
    return Series.of(np.array([*samples]), np.array([*samples.values()]))


def of_one(counter, start, end):
    """Return the integral over one window, and its sampled time."""
    window = np.array([start]), np.array([end])
    return int(counter.integrals(*window)[0]), int(counter.sampled_ns(*window)[0])


def test_a_value_holds_from_its_time_to_the_next_sample():
    assert of_one(series(BURST), 20, 40) == (2000, 20)


def test_a_window_may_cut_samples():
    assert of_one(series(BURST), 25, 33) == (800, 8)


def test_zeros_count_in_a_mean():
    integral, sampled_ns = of_one(series(BURST), 0, 100)
    # A mean that left out zeros would be 100.
    assert integral / sampled_ns == 20


def test_the_last_sample_holds_for_one_period():
    assert of_one(series({0: 50, 10: 50}), 0, 1000) == (1000, 20)


def test_time_before_the_first_sample_is_unsampled():
    assert of_one(series({0: 50, 10: 50}), -100, 10) == (500, 10)


def test_a_gap_is_unsampled_and_not_zero():
    samples = {0: 40, 10: 40, 20: 40, 90: 40, 100: 40}
    # From 30 to 90 nothing is known.
    assert of_one(series(samples), 0, 110) == (40 * 50, 50)


@pytest.mark.parametrize(("second", "sampled_ns"), [(40, 60), (41, 50)])
def test_a_gap_is_longer_than_two_periods(second, sampled_ns):
    samples = {0: 1, 10: 1, 20: 1, second: 1, second + 10: 1}
    assert of_one(series(samples), 0, 1000)[1] == sampled_ns


def test_a_single_sample_has_no_known_length():
    assert of_one(series({5: 100}), 0, 10) == (0, 0)


def test_no_samples_are_no_sampled_time():
    assert of_one(series({}), 0, 10) == (0, 0)


# The larger value of the time 10 is last, first, and apart from the other one.
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 1, 3], [2, 0, 3, 1]])
def test_of_two_values_at_one_time_the_larger_counts_in_any_order(order):
    times, values = np.array([0, 10, 10, 20]), np.array([7, 3, 9, 7])
    shuffled = Series.of(times[order], values[order])
    assert of_one(shuffled, 10, 20) == (90, 10)


def test_requests_and_responses_are_summed_up_at_common_times():
    requests, responses = series({0: 10, 10: 20, 20: 30}), series({0: 1, 20: 3})
    total = total_of([requests, responses])
    assert (total.times.tolist(), total.values.tolist()) == ([0, 20], [11, 33])


def test_captures_of_one_counter_are_one_series():
    both = joined([series({100: 5, 110: 5}), series({0: 3, 10: 3})])
    assert of_one(both, 0, 120) == (2 * 10 * 3 + 2 * 10 * 5, 40)


def test_integrals_are_exact_over_a_capture_of_months():
    n_samples, period_ns = 1000, 10**13
    times = np.arange(n_samples) * period_ns
    counter = Series.of(times, np.full(n_samples, 77, np.uint8))
    assert of_one(counter, 0, n_samples * period_ns)[0] == 77 * n_samples * period_ns


@st.composite
def _samples(draw):
    times = sorted(draw(st.lists(st.integers(0, 200), unique=True, max_size=20)))
    return {at: draw(st.integers(0, 100)) for at in times}


def brute_force(samples, start, end):
    """Return the integral and the sampled time of a window, ns by ns."""
    times = sorted(samples)
    between = [later - at for at, later in itertools.pairwise(times)]
    period = int(np.median(between)) if between else 0
    integral = sampled = 0
    for place, at in enumerate(times):
        is_last = place == len(times) - 1
        length = period if is_last or between[place] > 2 * period else between[place]
        for moment in range(at, at + length):
            if start <= moment < end:
                integral += samples[at]
                sampled += 1
    return integral, sampled


@given(_samples(), st.integers(-20, 250), st.integers(0, 100))
def test_windows_equal_brute_force(samples, start, length):
    counter = series(samples)
    assert of_one(counter, start, start + length) == brute_force(samples, start, start + length)


@given(_samples(), st.randoms())
def test_shuffled_samples_are_the_same_series(samples, random):
    rows = list(samples.items())
    random.shuffle(rows)
    assert of_one(series(dict(rows)), 0, 200) == of_one(series(samples), 0, 200)


def lag_of(samples, *kernels):
    starts, ends = np.array(kernels).T
    return measure_lag([CounterKernels(series(samples), union(starts, ends))])


def test_the_lag_moves_the_counter_into_its_kernels():
    # The kernel runs from 40 to 60, 20 ns after the samples that count it.
    lag = lag_of(BURST, (40, 60))
    assert (lag.lag_ns, lag.share_without, lag.share_with) == (20, 0, 1)


def test_a_counter_that_fits_its_kernels_has_no_lag():
    assert lag_of(BURST, (20, 40)).lag_ns == 0


def test_a_lag_that_gains_less_than_a_hundredth_is_none():
    # With a lag of 2 or more, all of the counter is inside. Without, one of 200 parts is not.
    samples = {at: 100 if 100 <= at < 2100 else 0 for at in range(0, 3000, 10)}
    assert lag_of(samples, (110, 2110)).lag_ns == 0


def test_a_counter_of_zeros_shows_no_lag():
    assert lag_of(dict.fromkeys(BURST, 0), (20, 40)) is None


@pytest.mark.parametrize(("n_full", "is_full"), [(4, False), (5, True)])
def test_a_link_that_reads_full_in_most_of_its_idle_time_is_not_connected(n_full, is_full):
    # Of 10 samples, the kernel covers the first. Half of the other 9 are 4.5.
    samples = {10 * place: 100 if 1 <= place <= n_full else 0 for place in range(10)}
    kernel = union(np.array([0]), np.array([10]))
    assert is_full_while_idle(series(samples), kernel) is is_full


def test_a_link_that_is_full_during_communication_is_connected():
    kernels = union(np.array([20]), np.array([40]))
    assert not is_full_while_idle(series(BURST), kernels)
