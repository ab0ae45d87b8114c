"""At which line of Python the main thread of a host was while its GPU idled for this host.

A sample says where a thread was, not what delayed the GPU. While the GPU works, a host often waits
for it, at a line that delays nothing. So only samples in idle time that the host causes count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace

from nsyspipe.analysis.intervals import EMPTY, IntervalSet
from nsyspipe.analysis.steps import Windows
from nsyspipe.model.canonical import PYTHON_LINES
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.model.typed_tables import (
    PythonFramesOfReportTable,
    PythonLinesOfReportTable,
    PythonSamplesOfReportTable,
)

# What a GPU idles for, if its host is the reason, as the middle of names of columns.
HOST_CAUSES = ("input", "launch", "blocked")
# With fewer samples in the time in question, the line is not known.
MIN_SAMPLES = 5
_NO_CAUSE = -1
_ABOVE_ALL_NUMBERS = np.iinfo(np.int64).max
_LINE_COLUMNS = ("path", "line", "function")
_FUNCTION_COLUMNS = ("path", "function")
_MODULE = "<module>"
# Columns of `canonical.PYTHON_SAMPLES` that `HostLines` has too, and all of its columns.
_STACK_COLUMNS = ("innermost", "in_program", "first_frame", "n_frames", "held_after", "let_go")
_SAMPLE_COLUMNS = ("times", "window", "cause", *_STACK_COLUMNS)
_COLUMNS = (*_SAMPLE_COLUMNS, "frames")
_COLUMNS_OF_LINES = ("innermost", "in_program", "held_after", "let_go", "frames")
_NO_INTS = np.empty(0, np.int64)


class HostIdleTime(Struct, frozen=True):
    """When a device idles for its host, on the clock of the device."""

    # All idle time before late launches.
    late: IntervalSet = EMPTY
    # Parts of the late time, without time in common. None if calls were not recorded.
    launch: IntervalSet | None = None
    blocked: IntervalSet | None = None

    @classmethod
    def of(cls, late: IntervalSet, waiting: IntervalSet, blocked: IntervalSet) -> HostIdleTime:
        """Return the parts of late time.

        In the waiting part, the host gets no input. In the blocked part of that, it is blocked.
        """
        launch = waiting.without(blocked)
        return cls(late, launch, blocked)

    def causes_at(self, times: Int64) -> Int64:
        """Return what the device idles for at each time: an index into `HOST_CAUSES`.

        `_NO_CAUSE` if the device does not idle for its host.
        """
        causes = np.full(times.size, _NO_CAUSE)
        # The other causes are parts of late time, and overwrite this one.
        causes[self.late.contains(times)] = HOST_CAUSES.index("input")
        if self.launch is not None:
            causes[self.launch.contains(times)] = HOST_CAUSES.index("launch")
        if self.blocked is not None:
            causes[self.blocked.contains(times)] = HOST_CAUSES.index("blocked")
        return causes


class HostLines(Struct, frozen=True):
    """The samples of one rank's main thread in its windows."""

    # `canonical.PYTHON_LINES`
    lines: PythonLinesOfReportTable = field(default_factory=PYTHON_LINES.empty)
    # Of each sample: its time, its window, what the device idles for (-1 for nothing), and its
    # lines as rows of `lines`, the second -1 for none. Times are those of the device, in order.
    times: Int64 = _NO_INTS
    window: Int64 = _NO_INTS
    cause: Int64 = _NO_INTS
    innermost: Int64 = _NO_INTS
    in_program: Int64 = _NO_INTS
    # Of each sample: its frames of the user's program, innermost first, as rows of `frames`.
    first_frame: Int64 = _NO_INTS
    n_frames: Int64 = _NO_INTS
    # Of each sample that was not taken in time: the line after which the thread held Python's lock,
    # and the line at which it let go of the lock. -1 if it was taken in time. The first is also -1
    # if it is not known.
    held_after: Int64 = _NO_INTS
    let_go: Int64 = _NO_INTS
    # The line of each frame, as a row of `lines`.
    frames: Int64 = _NO_INTS
    # Whether causes are known. If not, no sample has one.
    is_cause_known: bool = True

    @property
    def shown_line(self) -> Int64:
        """The innermost line of the program of each sample, otherwise the innermost line of all."""
        return np.where(self.in_program >= 0, self.in_program, self.innermost)

    def chosen(self, is_chosen: Flags) -> HostLines:
        """Return some of the samples."""
        chosen = {}
        for name in _SAMPLE_COLUMNS:
            column = getattr(self, name)
            chosen[name] = column[is_chosen]
        return replace(self, **chosen)


class LineCounts(Struct, frozen=True):
    """How many samples, and in how many windows, each line has."""

    # Rows of `HostLines.lines`.
    line: Int64
    n_samples: Int64
    # In idle time that the host causes.
    n_idle_samples: Int64
    n_idle_windows: Int64
    # By `HOST_CAUSES`.
    n_samples_by_cause: tuple[Int64, ...]
    n_windows_by_cause: tuple[Int64, ...]


class HoldCounts(Struct, frozen=True):
    """How many samples were due while a thread held Python's lock between two lines."""

    # The line is that at which the thread let go of the lock.
    counts: LineCounts
    # The line after which the thread held the lock, as a row of `HostLines.lines`; -1 if unknown.
    held_after: Int64


class FrameCounts(Struct, frozen=True):
    """How many samples have a function, or a call, in their stack."""

    counts: LineCounts
    # The first and the last line of each, over its samples in idle time, or else over all.
    first_line: Int64
    last_line: Int64
    # How many frames of the program are further inside, mean over the samples.
    mean_depth: Float64


class PythonThread(Struct, frozen=True):
    """The samples of one thread, with the tables that they refer to."""

    samples: PythonSamplesOfReportTable
    # `canonical.PYTHON_LINES` and `canonical.PYTHON_FRAMES` of the report.
    lines: PythonLinesOfReportTable
    frames: PythonFramesOfReportTable


def find_host_lines(
    thread: PythonThread, windows: Windows, idle: HostIdleTime | None, offset_ns: int
) -> HostLines:
    """Return the samples in the windows of a rank, and what its device idles for at their times.

    `offset_ns` is added to times of the host to get times of the device. If `idle` is None, or was
    found without calls, causes are not known.
    """
    samples = thread.samples
    if not samples.num_rows or not len(windows):
        return HostLines()
    times = samples["time_ns"].to_numpy() + offset_ns
    # The last window that has begun. Times before the first window get -1, which reads any window.
    window = np.searchsorted(windows.starts, times, side="right") - 1
    is_inside = window >= 0
    is_inside &= times < windows.ends[window]
    if idle is None or idle.launch is None:
        is_cause_known = False
        causes = np.full(times.size, _NO_CAUSE)
    else:
        is_cause_known = True
        causes = idle.causes_at(times)
    stacks = {}
    for name in _STACK_COLUMNS:
        stacks[name] = samples.column(name).to_numpy()
    frames = thread.frames["line"].to_numpy()
    all_samples = HostLines(
        lines=thread.lines,
        times=times,
        window=window,
        cause=causes,
        frames=frames,
        is_cause_known=is_cause_known,
        **stacks,
    )
    return all_samples.chosen(is_inside)


class HostLinesPart(NamedTuple):
    """The samples of one of several captures of a rank."""

    samples: HostLines
    # How many windows the captures before have.
    windows_before: int
    # What turns its times into those of the first capture.
    later_ns: int


def join_host_lines(parts: Sequence[HostLinesPart]) -> HostLines:
    """Return the samples of several captures of a rank, on the clock of the first."""
    lines_before = 0
    frames_before = 0
    moved = []
    for part in parts:
        moved_part = _moved(part.samples, lines_before, frames_before)
        times = moved_part.times + part.later_ns
        window = moved_part.window + part.windows_before
        moved.append(replace(moved_part, times=times, window=window))
        lines_before += moved_part.lines.num_rows
        frames_before += moved_part.frames.size
    columns = {}
    for name in _COLUMNS:
        arrays = [getattr(part, name) for part in moved]
        columns[name] = np.concatenate(arrays)
    lines = pa.concat_tables([part.lines for part in moved])
    is_cause_known = all(part.is_cause_known for part in moved)
    return HostLines(lines=lines, is_cause_known=is_cause_known, **columns)


def _moved(samples: HostLines, lines_before: int, frames_before: int) -> HostLines:
    """Return samples that refer to the same rows when other rows are put in front of their tables.

    `lines_before` rows are put in front of the lines, and `frames_before` in front of the frames.
    """
    moved_lines = {}
    for name in _COLUMNS_OF_LINES:
        moved_lines[name] = _later_lines(getattr(samples, name), lines_before)
    first_frame = samples.first_frame + frames_before
    return replace(samples, first_frame=first_frame, **moved_lines)


def _later_lines(lines: Int64, n_before: int) -> Int64:
    """Return the same lines if `n_before` lines are put in front; -1 for no line stays."""
    return np.where(lines >= 0, lines + n_before, -1)


def count_lines(samples: HostLines, line: Int64) -> LineCounts:
    """Count the samples of each line, where `line` is one of the lines of each sample.

    Samples without a line (-1) are not counted. Equal lines count as the first of them. The line
    with most samples in idle time is first.
    """
    samples_with_line = np.flatnonzero(line >= 0)
    first_of_equals = _first_of_equals(samples.lines, _LINE_COLUMNS)
    lines = line[samples_with_line]
    return _counts_of(samples, samples_with_line, first_of_equals[lines])


def count_holds(samples: HostLines) -> HoldCounts:
    """Count the samples of each pair of lines between which the thread held Python's lock.

    Samples that were taken in time are not counted. Equal lines count as the first of them. The
    pair with most samples in idle time is first.
    """
    late_samples = np.flatnonzero(samples.let_go >= 0)
    first_of_equals = _first_of_equals(samples.lines, _LINE_COLUMNS)
    let_go = first_of_equals[samples.let_go[late_samples]]
    held_after = samples.held_after[late_samples]
    is_known = held_after >= 0
    held_after[is_known] = first_of_equals[held_after[is_known]]
    # One number per pair of lines. The line that is not known is -1, so 1 is added.
    n_lines = samples.lines.num_rows + 1
    pair_of_sample = let_go * n_lines + held_after + 1
    counts = _counts_of(samples, late_samples, pair_of_sample)
    line, held_after_plus_one = np.divmod(counts.line, n_lines)
    return HoldCounts(replace(counts, line=line), held_after_plus_one - 1)


def _first_of_equals(lines: pa.Table, columns: Sequence[str]) -> Int64:
    """Return for each line the first line with the same values in some columns."""
    # One number per combination of the values so far.
    number_of_line = np.zeros(lines.num_rows, np.int64)
    for name in columns:
        encoded = lines[name].combine_chunks().dictionary_encode()
        value_of_line = encoded.indices.to_numpy()
        n_values = max(len(encoded.dictionary), 1)
        number_of_line *= n_values
        number_of_line += value_of_line
        # From 0 without gaps again, so that the next product is small enough.
        _, first_line, number_of_line = np.unique(
            number_of_line, return_index=True, return_inverse=True
        )
    return first_line[number_of_line]


def _counts_of(samples: HostLines, sample: Int64, line: Int64) -> LineCounts:
    """Count the samples of each line, and the windows of these samples.

    `sample` and `line` are the two sides of pairs. No pair occurs twice. The line with most samples
    in idle time is first, then that with most samples, then the lowest.
    """
    lines, place_of_pair = np.unique(line, return_inverse=True)
    cause = samples.cause[sample]
    window = samples.window[sample]
    is_idle = cause != _NO_CAUSE
    n_samples = np.bincount(place_of_pair, minlength=lines.size)
    n_idle_samples = np.bincount(place_of_pair[is_idle], minlength=lines.size)
    most_idle_first = np.lexsort((lines, -n_samples, -n_idle_samples))
    samples_by_cause = []
    windows_by_cause = []
    for code in range(len(HOST_CAUSES)):
        pairs = np.flatnonzero(cause == code)
        n_samples_of_cause = np.bincount(place_of_pair[pairs], minlength=lines.size)
        samples_by_cause.append(n_samples_of_cause[most_idle_first])
        n_windows_of_cause = _count_windows(place_of_pair[pairs], window[pairs], lines.size)
        windows_by_cause.append(n_windows_of_cause[most_idle_first])
    n_idle_windows = _count_windows(place_of_pair[is_idle], window[is_idle], lines.size)
    return LineCounts(
        line=lines[most_idle_first],
        n_samples=n_samples[most_idle_first],
        n_idle_samples=n_idle_samples[most_idle_first],
        n_idle_windows=n_idle_windows[most_idle_first],
        n_samples_by_cause=tuple(samples_by_cause),
        n_windows_by_cause=tuple(windows_by_cause),
    )


def _count_windows(place: Int64, window: Int64, n_places: int) -> Int64:
    """Return in how many different windows each place occurs."""
    n_windows = int(window.max(initial=0)) + 1
    # One number per pair of a place and a window.
    different_pairs = np.unique(place * n_windows + window)
    place_of_pair = different_pairs // n_windows
    return np.bincount(place_of_pair, minlength=n_places)


class _Frames(Struct, frozen=True):
    """Frames of samples, sample by sample, innermost first."""

    sample: Int64
    # What is counted: a row of `HostLines.lines`.
    key: Int64
    # The line of the frame, and how many frames of the program are further inside.
    line: Int64
    depth: Int64


def count_functions(samples: HostLines) -> FrameCounts:
    """Count the samples that have each function of the program in their stack.

    The code of a module (``<module>``) counts as a function. All other names in such brackets, for
    example ``<listcomp>``, are parts of functions and do not count.
    """
    frames = _once_in_each_sample(_frames_of(samples, _FUNCTION_COLUMNS))
    names = samples.lines["function"]
    is_in_brackets = pc.starts_with(names, "<").to_numpy()
    is_module = pc.equal(names, _MODULE).to_numpy()
    is_function_of_line = is_module | ~is_in_brackets
    is_function = is_function_of_line[frames.key]
    return _count_frames(samples, _chosen(frames, is_function))


def count_calls(samples: HostLines) -> FrameCounts:
    """Count the samples that have each line of the program in their stack as that of a call."""
    frames = _frames_of(samples, _LINE_COLUMNS)
    calls = _once_in_each_sample(_chosen(frames, frames.depth > 0))
    return _count_frames(samples, calls)


def _frames_of(samples: HostLines, columns: Sequence[str]) -> _Frames:
    """Return the frames of all samples.

    Frames whose lines have the same values in `columns` get the same key: the first of all lines
    with these values.
    """
    n_frames = samples.n_frames
    sample = np.repeat(np.arange(n_frames.size), n_frames)
    first_place_of_sample = np.cumsum(n_frames) - n_frames
    place = np.arange(sample.size)
    depth = place - first_place_of_sample[sample]
    # The frames of a sample follow its first frame, which is the innermost.
    frame = samples.first_frame[sample] + depth
    line = samples.frames[frame]
    first_of_equals = _first_of_equals(samples.lines, columns)
    return _Frames(sample, first_of_equals[line], line, depth)


def _once_in_each_sample(frames: _Frames) -> _Frames:
    """Return the innermost frame of each pair of a sample and a key."""
    n_keys = int(frames.key.max(initial=0)) + 1
    pair_of_frame = frames.sample * n_keys
    pair_of_frame += frames.key
    # Frames are innermost first, so the first frame of a pair is the innermost.
    _, first_of_pair = np.unique(pair_of_frame, return_index=True)
    return _chosen(frames, first_of_pair)


def _chosen(frames: _Frames, rows: Flags | Int64) -> _Frames:
    """Return some of the frames."""
    sample = frames.sample[rows]
    key = frames.key[rows]
    line = frames.line[rows]
    depth = frames.depth[rows]
    return _Frames(sample, key, line, depth)


def _count_frames(samples: HostLines, frames: _Frames) -> FrameCounts:
    """Count the samples of each key. No key occurs twice in a sample.

    The result has a row per key. The first and the last line are numbers in the file. They are
    those of frames in idle time. If a key has no frame in idle time, all its frames count.
    """
    counts = _counts_of(samples, frames.sample, frames.key)
    n_keys = counts.line.size
    row_of_key = np.full(samples.lines.num_rows, -1)
    row_of_key[counts.line] = np.arange(n_keys)
    row = row_of_key[frames.key]
    is_idle = samples.cause[frames.sample] != _NO_CAUSE
    has_no_idle_frame = counts.n_idle_samples == 0
    is_counted = is_idle | has_no_idle_frame[row]
    number_of_line = samples.lines["line"].to_numpy()
    counted_lines = frames.line[is_counted]
    counted_numbers = number_of_line[counted_lines]
    counted_row = row[is_counted]
    # Each key has a counted frame, so no start value remains.
    first_line = np.full(n_keys, _ABOVE_ALL_NUMBERS)
    last_line = np.zeros(n_keys, np.int64)
    np.minimum.at(first_line, counted_row, counted_numbers)
    np.maximum.at(last_line, counted_row, counted_numbers)
    total_depth = np.bincount(row, frames.depth, n_keys)
    mean_depth = total_depth / counts.n_samples
    return FrameCounts(counts, first_line, last_line, mean_depth)
