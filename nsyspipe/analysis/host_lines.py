"""At which line of Python the main thread of a host was while its GPU idled for this host.

A sample says where a thread was, not what delayed the GPU. While the GPU works, a host often waits
for it, at a line that delays nothing. So only samples in idle time that the host causes count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from nsyspipe.analysis.intervals import EMPTY, IntervalSet
from nsyspipe.analysis.steps import Windows
from nsyspipe.model.canonical import PYTHON_LINES
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    PythonLinesOfReportTable,
    PythonSamplesOfReportTable,
)

# What a GPU idles for, if its host is the reason, as the middle of names of columns.
HOST_CAUSES = ("input", "launch", "blocked")
# With fewer samples in the time in question, the line is not known.
MIN_SAMPLES = 5
_NO_CAUSE = -1
_NO_INTS = np.empty(0, np.int64)


class HostIdleTime(Struct, frozen=True):
    """When a device idles for its host, on one clock; without calls only `late` is known."""

    # All idle time before late launches.
    late: IntervalSet = EMPTY
    # Parts of it, without time in common. None if calls were not recorded.
    launch: IntervalSet | None = None
    blocked: IntervalSet | None = None

    @classmethod
    def of(cls, late: IntervalSet, waiting: IntervalSet, blocked: IntervalSet) -> HostIdleTime:
        """Return the parts of late time, given when the host gets no input and is blocked."""
        return cls(late, waiting.without(blocked), blocked)

    def causes_at(self, times: Int64) -> Int64:
        """Return what the device idles for at each time: an index into `HOST_CAUSES`, or -1."""
        causes = np.full(times.size, _NO_CAUSE)
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
    # Whether causes are known. If not, no sample has one.
    is_cause_known: bool = True

    def chosen(self, is_chosen: Flags) -> HostLines:
        """Return some of the samples."""
        times = self.times[is_chosen]
        window = self.window[is_chosen]
        cause = self.cause[is_chosen]
        innermost = self.innermost[is_chosen]
        in_program = self.in_program[is_chosen]
        return HostLines(
            lines=self.lines,
            times=times,
            window=window,
            cause=cause,
            innermost=innermost,
            in_program=in_program,
            is_cause_known=self.is_cause_known,
        )


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


def find_host_lines(
    samples: PythonSamplesOfReportTable,
    lines: PythonLinesOfReportTable,
    windows: Windows,
    idle: HostIdleTime | None,
    offset_ns: int,
) -> HostLines:
    """Return the samples in the windows of a rank, with what its device idles for at that time.

    `offset_ns` is added to times of the host to get times of the device. Without `idle`, causes
    are not known.
    """
    if not samples.num_rows or not len(windows):
        return HostLines()
    times = samples["time_ns"].to_numpy() + offset_ns
    window = np.searchsorted(windows.starts, times, side="right") - 1
    is_inside = window >= 0
    is_inside &= times < windows.ends[window]
    times = times[is_inside]
    is_cause_known = idle is not None and idle.launch is not None
    causes = np.full(times.size, _NO_CAUSE)
    if idle is not None and is_cause_known:
        causes = idle.causes_at(times)
    innermost = samples["innermost"].to_numpy()
    in_program = samples["in_program"].to_numpy()
    return HostLines(
        lines=lines,
        times=times,
        window=window[is_inside],
        cause=causes,
        innermost=innermost[is_inside],
        in_program=in_program[is_inside],
        is_cause_known=is_cause_known,
    )


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
    times = []
    windows = []
    innermost = []
    in_program = []
    for part, windows_before, later_ns in parts:
        times.append(part.times + later_ns)
        windows.append(part.window + windows_before)
        innermost.append(part.innermost + lines_before)
        has_line = part.in_program >= 0
        in_program.append(np.where(has_line, part.in_program + lines_before, -1))
        lines_before += part.lines.num_rows
    samples = [part.samples for part in parts]
    lines = pa.concat_tables([part.lines for part in samples])
    cause = np.concatenate([part.cause for part in samples])
    window = np.concatenate(windows)
    is_cause_known = all(part.is_cause_known for part in samples)
    return HostLines(
        lines=lines,
        times=np.concatenate(times),
        window=window,
        cause=cause,
        innermost=np.concatenate(innermost),
        in_program=np.concatenate(in_program),
        is_cause_known=is_cause_known,
    )


def count_lines(samples: HostLines, line: Int64) -> LineCounts:
    """Count the samples of each line, where `line` is one of the two lines of each sample.

    Samples without a line (-1) are not counted. The line with most samples in idle time is first.
    """
    has_line = line >= 0
    lines, place = np.unique(line[has_line], return_inverse=True)
    cause = samples.cause[has_line]
    window = samples.window[has_line]
    n_samples = np.bincount(place, minlength=lines.size)
    is_idle = cause != _NO_CAUSE
    n_idle_samples = np.bincount(place[is_idle], minlength=lines.size)
    order = np.lexsort((lines, -n_samples, -n_idle_samples))
    by_cause = []
    windows_by_cause = []
    for code in range(len(HOST_CAUSES)):
        is_cause = cause == code
        by_cause.append(np.bincount(place[is_cause], minlength=lines.size)[order])
        n_windows = _count_windows(place[is_cause], window[is_cause], lines.size)
        windows_by_cause.append(n_windows[order])
    n_idle_windows = _count_windows(place[is_idle], window[is_idle], lines.size)
    return LineCounts(
        line=lines[order],
        n_samples=n_samples[order],
        n_idle_samples=n_idle_samples[order],
        n_idle_windows=n_idle_windows[order],
        n_samples_by_cause=tuple(by_cause),
        n_windows_by_cause=tuple(windows_by_cause),
    )


def _count_windows(place: Int64, window: Int64, n_places: int) -> Int64:
    """Return in how many different windows each place occurs."""
    n_windows = int(window.max(initial=0)) + 1
    pairs = np.unique(place * n_windows + window)
    return np.bincount(pairs // n_windows, minlength=n_places)
