"""Hardware counters over time: exact integrals over windows, and the lag behind kernels.

nsys samples the counters of a GPU. The value of a sample holds from its time to the next sample.
Zeros count like all other values. After a gap nothing is known: the time is unsampled, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.intervals import IntervalSet, counts_up_to
from nsyspipe.model.table import Float64, Int64

# A longer time between two samples, in median periods, is a gap. The sample before the gap holds
# for one period.
MAX_PERIODS = 2
# A window with fewer samples has no counted bandwidth.
MIN_SAMPLES = 3
# Lags are looked for up to this many periods, in quarters of a period.
_MAX_LAG_PERIODS = 3
_LAG_STEPS_PER_PERIOD = 4
# A lag must move this share of the counted traffic into the kernels.
_MIN_LAG_GAIN = 0.01
# Kernels that a search for the lag compares with samples.
_MAX_LAG_KERNELS = 100_000
# An idle link that reads full in a larger share of the time without communication is not connected.
MAX_IDLE_FULL_SHARE = 0.5
_FULL_PERCENT = 99


class Series(Struct, frozen=True, eq=False, dict=True):
    """The samples of one counter of one GPU, in order of time.

    No integral may overflow: the span of the times, in ns, times the largest value is below 2**62.
    """

    times: Int64
    # Whole numbers: per cent, or MHz.
    values: Int64

    @classmethod
    def of(cls, times: Int64, values: Int64) -> Series:
        """Return samples in any order as a series.

        Of several values at one time the largest counts.
        """
        is_each_time_later = bool((times[1:] > times[:-1]).all())
        if not is_each_time_later:
            order = np.lexsort((values, times))
            return cls(times[order], values[order])
        return cls(times, values)

    @cached_property
    def period_ns(self) -> int:
        """The median time between two samples, 0 with fewer than two different times."""
        between_ns = np.diff(self.times)
        between_ns = between_ns[between_ns > 0]
        if not between_ns.size:
            return 0
        return int(np.median(between_ns))

    @cached_property
    def held_ns(self) -> Int64:
        """How long each sample holds. The last one, and any before a gap, hold for one period."""
        period_ns = self.period_ns
        held_ns = np.full(self.times.size, period_ns)
        between_ns = np.diff(self.times)
        is_gap = between_ns > MAX_PERIODS * period_ns
        held_ns[:-1] = np.where(is_gap, period_ns, between_ns)
        return held_ns

    @cached_property
    def _sampled_before(self) -> Int64:
        """The sampled time before each sample, and after the last."""
        return np.append(0, np.cumsum(self.held_ns))

    @cached_property
    def _integral_before(self) -> Int64:
        """The integral before each sample, and after the last."""
        parts = self.values * self.held_ns
        return np.append(0, np.cumsum(parts))

    def shifted(self, by_ns: int) -> Series:
        """Return the same samples later by some time."""
        return Series(self.times + by_ns, self.values)

    def integrals(self, starts: Int64, ends: Int64) -> Int64:
        """Return the sum of value x ns over the sampled part of each window."""
        return self._integral_until(ends) - self._integral_until(starts)

    def sampled_ns(self, starts: Int64, ends: Int64) -> Int64:
        """Return how much of each window is sampled."""
        return self._sampled_until(ends) - self._sampled_until(starts)

    def n_samples(self, starts: Int64, ends: Int64) -> Int64:
        """Return how many samples begin in each window."""
        n_samples: Int64 = np.searchsorted(self.times, ends) - np.searchsorted(self.times, starts)
        return n_samples

    def _until(self, times: Int64) -> tuple[Int64, Int64]:
        """Return the last sample before each time, and how long the sample has held by then, ns.

        Times before the first sample get the first sample, which has held for 0 ns.
        """
        n_begun = counts_up_to(self.times, times)
        sample = np.maximum(n_begun - 1, 0)
        passed_ns = np.maximum(times - self.times[sample], 0)
        return sample, np.minimum(passed_ns, self.held_ns[sample])

    def _sampled_until(self, times: Int64) -> Int64:
        if not self.times.size:
            return np.zeros(times.size, np.int64)
        sample, passed_ns = self._until(times)
        return self._sampled_before[sample] + passed_ns

    def _integral_until(self, times: Int64) -> Int64:
        if not self.times.size:
            return np.zeros(times.size, np.int64)
        sample, passed_ns = self._until(times)
        return self._integral_before[sample] + self.values[sample] * passed_ns


EMPTY_SERIES = Series(np.empty(0, np.int64), np.empty(0, np.int64))


def mean_values(series: Series, starts: Int64, ends: Int64) -> pa.Array:
    """Return the mean over the sampled part of each window, null without any."""
    integrals = series.integrals(starts, ends)
    sampled_ns = series.sampled_ns(starts, ends)
    is_empty = sampled_ns == 0
    divisors_ns = np.where(is_empty, 1, sampled_ns)
    means = integrals / divisors_ns
    return pa.array(means, pa.float64(), mask=is_empty)


def total_of(series: Sequence[Series]) -> Series:
    """Return the sum of one or more counters at the times that all of them have."""
    first = series[0]
    times = first.times
    values = first.values
    for addend in series[1:]:
        wide = values.astype(np.int64)
        if np.array_equal(times, addend.times):
            values = wide + addend.values
            continue
        common = np.intersect1d(times, addend.times, return_indices=True)
        times, rows, addend_rows = common
        values = wide[rows] + addend.values[addend_rows]
    return Series(times, values)


def joined(series: Sequence[Series]) -> Series:
    """Return the samples of several captures of one counter as one series."""
    if len(series) == 1:
        return series[0]
    times = np.concatenate([EMPTY_SERIES.times, *(each.times for each in series)])
    values = np.concatenate([EMPTY_SERIES.values, *(each.values for each in series)])
    return Series.of(times, values)


class Lag(NamedTuple):
    """How much later kernels run than the samples that count them."""

    lag_ns: int
    # The share of the counter that lies inside the kernels, without and with the lag.
    share_without: float
    share_with: float


class CounterKernels(NamedTuple):
    """A counter of a GPU, and when the kernels run that it counts."""

    series: Series
    busy: IntervalSet


def measure_lag(counters: Sequence[CounterKernels]) -> Lag | None:
    """Find the lag with which most of what some counters count lies inside their kernels.

    The counters are of several GPUs of one report. Lags from -3 to 3 sampling periods are tried, in
    quarters of a period. The lag is 0 unless another lag moves at least 1 % of what is counted into
    the kernels. None if the counters are always 0, or if there are no kernels.
    """
    periods_ns = [each.series.period_ns for each in counters if len(each.busy)]
    period_ns = max(periods_ns, default=0)
    if not period_ns:
        return None
    n_quarters = _MAX_LAG_PERIODS * _LAG_STEPS_PER_PERIOD
    quarters = np.arange(-n_quarters, n_quarters + 1)
    lags_ns = quarters * period_ns // _LAG_STEPS_PER_PERIOD
    # Any tried lag keeps the kernels inside this margin.
    margin_ns = (_MAX_LAG_PERIODS + 1) * period_ns
    total = sum(_total_around(each, margin_ns) for each in counters)
    if not total:
        return None
    counted_inside = [_counted_inside(counters, lag_ns) for lag_ns in lags_ns.tolist()]
    shares = np.array(counted_inside) / total
    # Of equal shares, the smallest lag counts.
    best_first = np.lexsort((np.abs(quarters), -shares))
    best = int(best_first[0])
    # The lag in the middle is 0.
    share_without = float(shares[n_quarters])
    share_with = float(shares[best])
    if share_with - share_without < _MIN_LAG_GAIN:
        return Lag(0, share_without, share_without)
    return Lag(int(lags_ns[best]), share_without, share_with)


def _counted_inside(counters: Sequence[CounterKernels], lag_ns: int) -> int:
    """Return what is counted inside the kernels, if these run `lag_ns` later than the samples."""
    chosen = slice(_MAX_LAG_KERNELS)
    inside = 0
    for counter in counters:
        # On the clock of the samples.
        starts = counter.busy.starts[chosen] - lag_ns
        ends = counter.busy.ends[chosen] - lag_ns
        inside += int(counter.series.integrals(starts, ends).sum())
    return inside


def _total_around(counter: CounterKernels, margin_ns: int) -> int:
    """Return how much a counter counts from its first kernel to its last, and around them."""
    if not len(counter.busy):
        return 0
    chosen = slice(_MAX_LAG_KERNELS)
    first_start = counter.busy.starts[chosen][:1] - margin_ns
    last_end = counter.busy.ends[chosen][-1:] + margin_ns
    return int(counter.series.integrals(first_start, last_end)[0])


class LinkTraffic(NamedTuple):
    """What a link received and sent, and the bytes/s that both counters call 100 %."""

    received: Series
    sent: Series
    bytes_per_s: int


def link_bandwidth(link: LinkTraffic, starts: Int64, ends: Int64) -> Float64:
    """Return the bandwidth of a link in each window, bytes/s: received or sent, the larger one.

    It is NaN in windows with a gap or with fewer than `MIN_SAMPLES` samples.
    """
    durations_ns = ends - starts
    # In per cent x ns, of the direction that carried more.
    integral = np.zeros(starts.size, np.int64)
    is_known = np.ones(starts.size, np.bool_)
    for series in (link.received, link.sent):
        integral = np.maximum(integral, series.integrals(starts, ends))
        is_known &= series.sampled_ns(starts, ends) == durations_ns
        is_known &= series.n_samples(starts, ends) >= MIN_SAMPLES
    known_durations_ns = np.where(is_known, durations_ns, np.nan)
    bytes_per_s_of_one_percent = link.bytes_per_s / 100
    bandwidth: Float64 = integral * bytes_per_s_of_one_percent / known_durations_ns
    return bandwidth


def is_full_while_idle(series: Series, busy: IntervalSet) -> bool:
    """Tell whether the counter of a link shows a full link although nothing communicates.

    It has to show a full link in most of the sampled time outside of communication. Such a counter
    does not count bytes. `busy` is when the GPU communicates.
    """
    times = series.times
    ends = times + series.held_ns
    outside_ns = series.held_ns - busy.lengths(times, ends)
    is_full = series.values >= _FULL_PERCENT
    idle_ns = int(outside_ns.sum())
    full_ns = int(outside_ns[is_full].sum())
    return full_ns > MAX_IDLE_FULL_SHARE * idle_ns
