"""What a timeline shows below the operations of a rank: hardware counters, and lines of Python.

A lane has a limited number of bars. A bar of a counter is a mean over its time, never one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.counters import EMPTY_SERIES, Series, mean_values
from nsyspipe.analysis.intervals import run_starts
from nsyspipe.analysis.timeline import longest_names
from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import PythonLinesOfReportTable

# Bars of a lane. A lane is about 1000 pixels wide.
MAX_BARS = 280


class Window(NamedTuple):
    """A stretch of time, ns."""

    start_ns: int
    end_ns: int

    def width_ns(self, n_parts: int) -> int:
        """Return the length of one of equal parts that cover the window, at least 1 ns."""
        length_ns = self.end_ns - self.start_ns
        rounded_up_ns = (length_ns + n_parts - 1) // n_parts
        return max(rounded_up_ns, 1)


class Bins(NamedTuple):
    """Neighboring stretches of time that cover a window."""

    starts: Int64
    ends: Int64


def counter_bins(series: Series, window: Window, max_bars: int = MAX_BARS) -> Bins:
    """Divide a window where samples begin and end. A window without length has no bins.

    If that makes more than `max_bars` bins, divide the window evenly.
    """
    start_ns, end_ns = window
    if end_ns <= start_ns:
        return Bins(np.empty(0, np.int64), np.empty(0, np.int64))
    ends_of_samples = series.times + series.held_ns
    edges = np.union1d(series.times, ends_of_samples)
    is_inside = (edges > start_ns) & (edges < end_ns)
    starts = np.append(start_ns, edges[is_inside])
    if starts.size > max_bars:
        starts = np.arange(start_ns, end_ns, window.width_ns(max_bars))
    # Each bin ends where the next begins.
    ends = np.append(starts[1:], end_ns)
    return Bins(starts, ends)


class CountedBars(NamedTuple):
    """The bars of the counters of one rank, in order of time."""

    starts: Int64
    ends: Int64
    # Of the counter with most samples, how much of each bar was sampled.
    sampled_ns: Int64
    # Of each counter the mean over the sampled time of each bar, null without any.
    means: dict[str, pa.Array]


def counted_bars(
    series: Mapping[str, Series], window: Window, max_bars: int = MAX_BARS
) -> CountedBars:
    """Return the bars of the counters of a rank. Bars in which nothing was sampled are left out.

    Counters of a GPU are sampled together, so the samples of the first one divide the window for
    all. If a counter lacks samples, the counter with most samples tells how much was sampled.
    """
    first_counter = next(iter(series.values()), EMPTY_SERIES)
    bins = counter_bins(first_counter, window, max_bars)
    most_sampled_ns = np.zeros(bins.starts.size, np.int64)
    for counter in series.values():
        sampled_ns = counter.sampled_ns(bins.starts, bins.ends)
        most_sampled_ns = np.maximum(most_sampled_ns, sampled_ns)
    is_sampled = most_sampled_ns > 0
    starts = bins.starts[is_sampled]
    ends = bins.ends[is_sampled]
    means = {}
    for name, counter in series.items():
        means[name] = mean_values(counter, starts, ends)
    return CountedBars(starts, ends, most_sampled_ns[is_sampled], means)


class LineSamples(Struct, frozen=True):
    """At which line of Python the main thread of one rank was, in order of time."""

    times: Int64
    # Rows of `lines`: the innermost line of the program, otherwise the innermost line of all.
    line: Int64
    # `canonical.PYTHON_LINES`
    lines: PythonLinesOfReportTable


class LineBars(NamedTuple):
    """Stretches of time that a thread spent at one line."""

    starts: Int64
    ends: Int64
    # Row of `LineSamples.lines`.
    line: Int64
    # Samples at this line that begin in this time, or hold at the start of the window.
    n_samples: Int64


class _Pieces(NamedTuple):
    """The parts of samples in a window, in order of time."""

    starts: Int64
    ends: Int64
    line: Int64


def line_bars(samples: LineSamples, window: Window, max_bars: int = MAX_BARS) -> LineBars:
    """Return at which lines a thread was in a window.

    A sample holds until the next one, as a sample of a counter does. With more bars than allowed,
    the window is divided evenly. Each part has the samples that begin in it, and the line with
    most time.
    """
    pieces = _pieces_of_samples(samples, window)
    bar = _runs_of_lines(pieces)
    n_bars = np.unique(bar).size
    if n_bars > max_bars:
        since_start_ns = pieces.starts - window.start_ns
        bar = since_start_ns // window.width_ns(max_bars)
    return _joined(pieces, bar)


def _pieces_of_samples(samples: LineSamples, window: Window) -> _Pieces:
    """Return the part of each sample in a window, without empty parts."""
    start_ns, end_ns = window
    series = Series(samples.times, samples.line)
    held_until = samples.times + series.held_ns
    starts = np.maximum(samples.times, start_ns)
    ends = np.minimum(held_until, end_ns)
    is_inside = ends > starts
    starts = starts[is_inside]
    ends = ends[is_inside]
    return _Pieces(starts, ends, samples.line[is_inside])


def _runs_of_lines(pieces: _Pieces) -> Int64:
    """Return the run of each piece, from 0: neighbors at one line that touch are one run."""
    starts, ends, line = pieces
    is_apart = starts[1:] > ends[:-1]
    is_other_line = line[1:] != line[:-1]
    begins_run = is_apart | is_other_line
    n_begun: Int64 = np.cumsum(begins_run)
    # The first piece is in run 0. Without pieces there is no run.
    return np.append(0, n_begun)[: line.size]


def _joined(pieces: _Pieces, bar_of_piece: Int64) -> LineBars:
    """Return the bars of some pieces. A bar has the line with most time, and its samples.

    Bars may be numbered with gaps.
    """
    starts, ends, line = pieces
    first_piece = run_starts(bar_of_piece)
    _, place_of_bar = np.unique(bar_of_piece, return_inverse=True)
    longest = longest_names(place_of_bar, line, ends - starts)
    is_longest = line == longest[place_of_bar]
    n_samples = np.bincount(place_of_bar[is_longest], minlength=first_piece.size)
    last_ends = np.maximum.reduceat(ends, first_piece)
    return LineBars(starts[first_piece], last_ends, longest, n_samples)
