"""Samples of Python: at which line the main thread of each process was, and when.

nsys writes each sample as a marker in an NVTX domain of its own. NVIDIA does not document the
payload. In all known reports it has a header, three numbers, and a frame for each call, the
innermost first. Paths and functions are strings of the report, with characters escaped as in HTML.

Newer versions export payloads as tables on request. NVIDIA does not document the names of the
sampler's fields, which would be the names of the columns. So samples in tables are not read.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from numpy.typing import NDArray

from nsyspipe.analysis.attribution import filled
from nsyspipe.model.canonical import PYTHON_FRAMES, PYTHON_LINES, PYTHON_SAMPLES
from nsyspipe.model.names import printable
from nsyspipe.model.problems import Problem, problem
from nsyspipe.model.python_files import NOT_SEEN, is_of_program
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    LockRangesOfReportTable,
    PythonFramesOfReportTable,
    PythonLinesOfReportTable,
    PythonSamplesOfReportTable,
)
from nsyspipe.reader.calls import Strings
from nsyspipe.reader.lock_holds import HoldEnds, Stacks, ThreadSamples, find_hold_ends
from nsyspipe.reader.payload_tables import has_tables_of_domains
from nsyspipe.reader.ranges import condition_of_domains
from nsyspipe.reader.report import NVTX, TIME_LIMIT, Report, process_of

# NVTX_EVENTS.eventType
_MARK_ROW = 34
_HEADER_BYTES = 48
# The state of the thread in the header. NVIDIA does not document it. In all captures, a thread that
# holds Python's lock (GIL) for longer than a period has this state. The sampler needs the lock. It
# waits until the thread lets go, and writes the frames of then with the times at which samples were
# due. After a call in C, these are often the frames of a later line.
_STATE_AT = 32
_LATE_STATE = 3
# The number of frames in the header.
_N_FRAMES_AT = 40
_FRAME = np.dtype([("function", "<i8"), ("file", "<i8"), ("line", "<u4"), ("padding", "<u4")])
# Python stops at 1000 calls, unless a program asks for more.
MAX_FRAMES = 10_000
# 1 kHz makes half a MB per second.
MAX_BYTES = 256 * 2**20
_MAX_CHARACTERS = 1000
_BOOTSTRAP_FILE = "/threading.py"
_BOOTSTRAP = "_bootstrap"
_NO_CATEGORY = -1
_MAIN_AND_ANOTHER = 2
_NO_LINE = -1
_COLUMNS = {"start": "int", "globalTid": "int", "domainId": "int", "category": "int"}


class PythonSamples(Struct, frozen=True):
    """The samples of the main threads in one report, and of the only other Python thread of each.

    Both have the form of `canonical.PYTHON_SAMPLES`.
    """

    samples: PythonSamplesOfReportTable = field(default_factory=PYTHON_SAMPLES.empty)
    # Samples of a thread that holds Python's lock (GIL), with the line at which it lets go.
    # Processes with several other threads have none.
    samples_of_others: PythonSamplesOfReportTable = field(default_factory=PYTHON_SAMPLES.empty)
    # `canonical.PYTHON_LINES`
    lines: PythonLinesOfReportTable = field(default_factory=PYTHON_LINES.empty)
    # `canonical.PYTHON_FRAMES`
    frames: PythonFramesOfReportTable = field(default_factory=PYTHON_FRAMES.empty)
    # `canonical.LOCK_RANGES`, None if they were not recorded.
    lock_ranges: LockRangesOfReportTable | None = None
    problems: tuple[Problem, ...] = ()


class _Frames(Struct, frozen=True):
    """The frames of all samples that could be decoded, innermost first in each sample."""

    # Positions among the frames: the first frame of each sample, and the frame after its last one.
    first: Int64
    end: Int64
    # The line of each frame, as a row of `lines`.
    line: Int64
    lines: PythonLinesOfReportTable


def read_python_samples(
    report: Report, strings: Strings, domains: Sequence[tuple[int, int]]
) -> PythonSamples:
    """Read the samples of Python in some domains. A domain is a pair of its process and number.

    Without such a domain nothing is read.
    """
    where = condition_of_samples(report, domains)
    if where is None:
        return PythonSamples()
    n_rows = report.count(NVTX, where)
    if not n_rows:
        return PythonSamples()
    if not _has_frames(report, where):
        in_tables = has_tables_of_domains(report, domains)
        code = "python-samples-in-tables" if in_tables else "python-samples-without-lines"
        return PythonSamples(problems=(problem(code, n=n_rows),))
    n_bytes = report.number(NVTX, 'total(octet_length("binaryData"))', where) or 0
    if n_bytes > MAX_BYTES:
        limit_mb = MAX_BYTES // 2**20
        too_large = problem("python-samples-too-large", n=n_rows, limit_mb=limit_mb)
        return PythonSamples(problems=(too_large,))
    rows = report.select(NVTX, _COLUMNS | {"binaryData": "blob"}, where=where)
    return _decode(rows, strings)


def condition_of_samples(report: Report, domains: Sequence[tuple[int, int]]) -> str | None:
    """Return the SQL condition for samples in some domains; None if there can be none."""
    if not domains or not report.has(NVTX, "start", "globalTid", "domainId", "eventType"):
        return None
    return f"(eventType = {_MARK_ROW} AND {condition_of_domains(domains)})"


def _has_frames(report: Report, where: str) -> bool:
    if not report.has(NVTX, "binaryData"):
        return False
    return report.number(NVTX, "1", f'{where} AND length("binaryData") > 0') is not None


class _Decoded(Struct, frozen=True):
    """The samples whose frames have the known form, and the frames."""

    # Rows of `NVTX_EVENTS`.
    rows: pa.Table
    frames: _Frames


def _decode(rows: pa.Table, strings: Strings) -> PythonSamples:
    """Decode the rows of samples, and tell which are of the main thread of each process.

    If a process has exactly one other thread, the late samples of that thread are returned too. A
    sample is late if its thread held Python's lock when the sample was due (see `_LATE_STATE`).
    """
    decoded = _decode_frames(rows, strings)
    decoded_rows = decoded.rows
    frames = decoded.frames
    processes = process_of(decoded_rows["globalTid"].to_numpy())
    categories = filled(decoded_rows["category"], _NO_CATEGORY)
    threads = _threads_of(processes, categories, frames)
    is_in_time = _are_in_time(decoded_rows["binaryData"].combine_chunks())
    samples = _Samples(
        processes=processes,
        threads=threads.number,
        times=decoded_rows["start"].to_numpy(),
        frames=frames,
        is_in_time=is_in_time,
    )
    of_main = samples.table(threads.is_main, is_in_time)
    is_late_of_other = threads.is_only_other & ~is_in_time
    # These frames count although they are late, because they show what held the lock.
    shows_frames = np.ones_like(is_in_time)
    of_others = samples.table(is_late_of_other, shows_frames)
    # The line of late samples comes last.
    lines = pa.concat_tables([frames.lines, _unseen_line()])
    processes_without_main = np.setdiff1d(processes, processes[threads.is_main])
    problems = _problems(
        n_samples=rows.num_rows,
        n_undecoded=rows.num_rows - decoded_rows.num_rows,
        processes_without_main=processes_without_main,
    )
    return PythonSamples(
        samples=of_main,
        samples_of_others=of_others,
        lines=lines,
        frames=samples.program.table,
        problems=problems,
    )


def _problems(
    *, n_samples: int, n_undecoded: int, processes_without_main: Int64
) -> tuple[Problem, ...]:
    """Return problems with samples that are left out, and processes without a main thread."""
    problems = []
    if n_undecoded:
        problems.append(problem("python-samples-undecoded", n=n_undecoded, total=n_samples))
    problems += [
        problem("python-thread-unknown", process_id=process)
        for process in processes_without_main.tolist()
    ]
    return tuple(problems)


def _are_in_time(blobs: pa.BinaryArray) -> Flags:
    """Tell which samples were taken in time, so that their frames are those of that time."""
    starts_of_blobs = _blob_edges(blobs)[:-1]
    state = _records_at(_data_of(blobs), starts_of_blobs + _STATE_AT, np.dtype("<i4"))
    is_in_time: Flags = state != _LATE_STATE
    return is_in_time


def _unseen_line() -> pa.Table:
    """Return the row of `canonical.PYTHON_LINES` of samples that were not taken in time."""
    unseen = {"path": [NOT_SEEN], "line": [0], "function": [""], "is_of_program": [False]}
    return PYTHON_LINES.table(unseen)


def _decode_frames(rows: pa.Table, strings: Strings) -> _Decoded:
    """Return the samples that can be decoded, with their frames.

    A sample can be decoded if its time is possible, and if the report has the strings for the file
    and the function of each of its frames.
    """
    starts = filled(rows["start"], TIME_LIMIT)
    is_possible = (starts > -TIME_LIMIT) & (starts < TIME_LIMIT)
    blobs = rows["binaryData"].combine_chunks()
    n_frames = _count_frames(blobs)
    rows_with_frames = np.flatnonzero(is_possible & (n_frames > 0))
    # The frames of all these rows, one row after the other.
    records = _read_frames(blobs, n_frames, rows_with_frames)
    n_frames_of_row = n_frames[rows_with_frames]
    is_row_defined = _are_defined(records, strings, n_frames_of_row)
    is_record_defined = np.repeat(is_row_defined, n_frames_of_row)
    n_frames_of_sample = n_frames_of_row[is_row_defined]
    frames = _number_lines(records[is_record_defined], n_frames_of_sample, strings)
    decoded_rows = rows.take(pa.array(rows_with_frames[is_row_defined]))
    return _Decoded(decoded_rows, frames)


def _blob_edges(blobs: pa.BinaryArray) -> Int64:
    """Return the byte of the data at which each blob starts, and the end of the last blob."""
    # The array may be a slice, whose first blob is the blob `offset` of the buffers.
    edges_in_buffer = np.frombuffer(blobs.buffers()[1], np.int32)
    n_edges = len(blobs) + 1
    return edges_in_buffer[blobs.offset : blobs.offset + n_edges].astype(np.int64)


def _data_of(blobs: pa.BinaryArray) -> NDArray[np.uint8]:
    """Return the bytes of all blobs, one after the other."""
    # An Arrow array of binary values has the buffers validity, starts and bytes.
    buffer = blobs.buffers()[2]
    return np.frombuffer(buffer or b"", np.uint8)


def _records_at(data: NDArray[np.uint8], starts: Int64, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the record that begins at each of some bytes of the data."""
    if not starts.size:
        return np.empty(0, dtype)
    # Window n is a view of the bytes of the record that would begin at byte n.
    windows = np.lib.stride_tricks.sliding_window_view(data, dtype.itemsize)
    record_bytes = np.ascontiguousarray(windows[starts])
    return record_bytes.view(dtype)[:, 0]


def _count_frames(blobs: pa.BinaryArray) -> Int64:
    """Return the number of frames of each sample.

    This is the number in the header of the blob. It is 0 if the blob does not have the length of a
    header and that many frames.
    """
    edges = _blob_edges(blobs)
    lengths = np.diff(edges)
    has_header = lengths >= _HEADER_BYTES
    starts_of_headers = edges[:-1][has_header]
    places_of_numbers = starts_of_headers + _N_FRAMES_AT
    stated_numbers = np.zeros(len(blobs), np.int64)
    stated_numbers[has_header] = _records_at(_data_of(blobs), places_of_numbers, np.dtype("<i4"))
    is_in_limits = (stated_numbers > 0) & (stated_numbers <= MAX_FRAMES)
    fits_length = lengths == _HEADER_BYTES + _FRAME.itemsize * stated_numbers
    return np.where(is_in_limits & fits_length, stated_numbers, 0)


def _read_frames(blobs: pa.BinaryArray, n_frames: Int64, rows: Int64) -> NDArray[np.void]:
    """Return the frames of the samples in some rows of `blobs`, one sample after the other.

    `n_frames` has the number of frames of each blob.
    """
    n_frames_of_row = n_frames[rows]
    n_all_frames = n_frames_of_row.sum()
    n_frames_before_row = np.cumsum(n_frames_of_row) - n_frames_of_row
    # From here on, all arrays have a value for each frame.
    n_frames_before_sample = np.repeat(n_frames_before_row, n_frames_of_row)
    position_in_sample = np.arange(n_all_frames) - n_frames_before_sample
    start_of_blob = np.repeat(_blob_edges(blobs)[:-1][rows], n_frames_of_row)
    starts = start_of_blob + _HEADER_BYTES + _FRAME.itemsize * position_in_sample
    return _records_at(_data_of(blobs), starts, _FRAME)


def _are_defined(records: NDArray[np.void], strings: Strings, n_frames: Int64) -> Flags:
    """Tell for which samples the report has the strings of all frames.

    `records` are the frames, and `n_frames` says how many of them each sample has. No sample is
    without frames.
    """
    is_frame_defined = np.ones(records.size, np.bool_)
    for name in ("function", "file"):
        string_ids, string_of_frame = np.unique(records[name], return_inverse=True)
        has_text = pc.is_valid(strings.lookup(string_ids)).to_numpy(zero_copy_only=False)
        is_frame_defined &= has_text[string_of_frame]
    if not n_frames.size:
        return np.empty(0, np.bool_)
    first_frame = np.cumsum(n_frames) - n_frames
    are_all_defined: Flags = np.logical_and.reduceat(is_frame_defined, first_frame)
    return are_all_defined


def _number_lines(records: NDArray[np.void], n_frames: Int64, strings: Strings) -> _Frames:
    """Return the distinct lines of all frames, and which line each frame has.

    A line is a file, a function and a number of a line. `records` are the frames, and `n_frames`
    says how many of them each sample has.
    """
    file_ids, file_of_frame = np.unique(records["file"], return_inverse=True)
    function_ids, function_of_frame = np.unique(records["function"], return_inverse=True)
    # A code stands for a pair of file and function. Its divisor is 1 if there are no frames.
    n_functions = max(function_ids.size, 1)
    pair_codes, pair_of_frame = np.unique(
        file_of_frame * n_functions + function_of_frame, return_inverse=True
    )
    # Another code stands for a pair and the number of the line, which has 32 bits.
    code_of_frame = (pair_of_frame << 32) + records["line"].astype(np.int64)
    code_of_line, line_of_frame = np.unique(code_of_frame, return_inverse=True)
    # Both codes are taken apart again. The upper bits of the code of a line are its pair.
    file_of_line, function_of_line = np.divmod(pair_codes[code_of_line >> 32], n_functions)
    columns = _file_columns(_clean_texts(strings, file_ids), file_of_line)
    function_texts = pa.array(_clean_texts(strings, function_ids), pa.string())
    columns["function"] = function_texts.take(pa.array(function_of_line))
    columns["line"] = code_of_line & 0xFFFFFFFF
    end = np.cumsum(n_frames)
    return _Frames(
        first=end - n_frames,
        end=end,
        line=line_of_frame.astype(np.int64),
        lines=PYTHON_LINES.table(columns),
    )


def _file_columns(paths: list[str], file_of_line: Int64) -> dict[str, Any]:
    """Return the columns of `canonical.PYTHON_LINES` that depend on the file of each line.

    `file_of_line` is the position of the file among the paths.
    """
    is_path_of_program = np.array([is_of_program(path) for path in paths], np.bool_)
    path_of_line = pa.array(paths, pa.string()).take(pa.array(file_of_line))
    return {"path": path_of_line, "is_of_program": is_path_of_program[file_of_line]}


def _clean_texts(strings: Strings, ids: Int64) -> list[str]:
    """Return the texts of some ids without escapes, control characters and excessive length."""
    texts = strings.lookup(ids).to_pylist()
    unescaped = [html.unescape((text or "")[:_MAX_CHARACTERS]) for text in texts]
    return [printable(text) for text in unescaped]


class _Threads(Struct, frozen=True):
    """The thread of each sample."""

    # A number from 0 for each thread.
    number: Int64
    # The main thread of its process.
    is_main: Flags
    # The other thread of a process that has a main thread and one other.
    is_only_other: Flags


class _Roles(Struct, frozen=True):
    """What each thread is: see `_Threads`."""

    is_main: Flags
    is_only_other: Flags


def _threads_of(processes: Int64, categories: Int64, frames: _Frames) -> _Threads:
    """Tell for each sample whether its thread is the main thread, or the only other thread.

    Each thread of a process has a category of its own. The outermost frame of all threads but the
    main thread is in a function of Python that starts threads. So the main thread is the thread
    without samples that have this frame. If a process has no such thread, or several, it is not
    known which of its threads is the main thread.
    """
    if not processes.size:
        no_flags = np.empty(0, np.bool_)
        return _Threads(np.empty(0, np.int64), no_flags, no_flags)
    _, process_of_sample = np.unique(processes, return_inverse=True)
    _, category_of_sample = np.unique(categories, return_inverse=True)
    # A thread is a pair of process and category, and each pair has a number.
    n_categories = category_of_sample.max() + 1
    number_of_sample = process_of_sample * n_categories + category_of_sample
    thread_numbers, thread_of_sample = np.unique(number_of_sample, return_inverse=True)
    # How many samples of each thread have the frame that starts threads.
    n_started = np.bincount(
        thread_of_sample, weights=_start_threads(frames), minlength=thread_numbers.size
    )
    process_of_thread = thread_numbers // n_categories
    roles = _main_and_other(process_of_thread, may_be_main=n_started == 0)
    has_category = categories != _NO_CATEGORY
    is_main = roles.is_main[thread_of_sample] & has_category
    is_only_other = roles.is_only_other[thread_of_sample] & has_category
    return _Threads(thread_of_sample, is_main, is_only_other)


def _main_and_other(process_of_thread: Int64, may_be_main: Flags) -> _Roles:
    """Tell for each thread whether it is the main thread of its process, or the only other thread.

    The main thread of a process is known if exactly one of its threads may be the main thread.
    """
    n_candidates_of_process = np.bincount(process_of_thread, weights=may_be_main)
    n_threads_of_process = np.bincount(process_of_thread)
    process_has_main = n_candidates_of_process[process_of_thread] == 1
    process_has_two = n_threads_of_process[process_of_thread] == _MAIN_AND_ANOTHER
    is_main = process_has_main & may_be_main
    is_only_other = process_has_main & process_has_two & ~may_be_main
    return _Roles(is_main, is_only_other)


def _start_threads(frames: _Frames) -> Flags:
    """Tell which samples have the function that starts threads as their outermost frame."""
    lines = frames.lines
    is_in_file = pc.ends_with(lines["path"], _BOOTSTRAP_FILE)
    is_in_function = pc.starts_with(lines["function"], _BOOTSTRAP)
    line_starts_thread = pc.and_(is_in_file, is_in_function).to_numpy()
    # The last frame of a sample is its outermost frame.
    outermost_line_of_sample = frames.line[frames.end - 1]
    starts_thread: Flags = line_starts_thread[outermost_line_of_sample]
    return starts_thread


class _ProgramFrames(Struct, frozen=True):
    """The frames of the user's program, and which of them are of which sample."""

    # `canonical.PYTHON_FRAMES`
    table: PythonFramesOfReportTable
    # The row in `table` of the first frame of each sample, and how many frames it has there.
    first: Int64
    number: Int64


def _program_frames(frames: _Frames) -> _ProgramFrames:
    """Return the frames of the user's program."""
    is_line_of_program = frames.lines["is_of_program"].to_numpy()
    frames_of_program = np.flatnonzero(is_line_of_program[frames.line])
    # How many frames of the program there are before the first frame of each sample, and before the
    # end of its frames.
    first = np.searchsorted(frames_of_program, frames.first)
    end = np.searchsorted(frames_of_program, frames.end)
    table = PYTHON_FRAMES.table({"line": frames.line[frames_of_program]})
    return _ProgramFrames(table, first, number=end - first)


class _Samples:
    """All samples of a report that could be decoded."""

    def __init__(
        self,
        *,
        processes: Int64,
        threads: Int64,
        times: Int64,
        frames: _Frames,
        is_in_time: Flags,
    ) -> None:
        self._processes = processes
        self._threads = threads
        self._times = times
        self._frames = frames
        self._is_in_time = is_in_time
        self.program = _program_frames(frames)
        self._hold_ends = self._find_hold_ends()

    def table(self, is_chosen: Flags, shows_frames: Flags) -> pa.Table:
        """Return the chosen samples as `canonical.PYTHON_SAMPLES`, in order of process and time.

        `shows_frames` tells for which samples the frames count. If they do not count, the innermost
        line is that of `_unseen_line`, and the sample has no frames of the program. A sample that
        was taken late shows between which lines the thread held Python's lock, in any case.
        """
        # `_decode` appends this line to the lines of the frames.
        unseen_line = self._frames.lines.num_rows
        innermost = np.where(shows_frames, self._innermost_lines(), unseen_line)
        n_frames = np.where(shows_frames, self.program.number, 0)
        in_program = np.where(n_frames > 0, self._lines_of_program(), _NO_LINE)
        columns = {
            "process_id": self._processes,
            "time_ns": self._times,
            "innermost": innermost,
            "in_program": in_program,
            "first_frame": self.program.first,
            "n_frames": n_frames,
            "held_after": self._hold_ends.after,
            "let_go": self._hold_ends.let_go,
        }
        rows = np.flatnonzero(is_chosen)
        # numpy sorts by the last key first.
        sort_keys = (innermost[rows], self._times[rows], self._processes[rows])
        rows_in_order = rows[np.lexsort(sort_keys)]
        table = PYTHON_SAMPLES.table(columns)
        return table.take(pa.array(rows_in_order))

    def _find_hold_ends(self) -> HoldEnds:
        """Return between which lines the thread of each late sample held Python's lock."""
        line_of_program = self._lines_of_program()
        shown_line = np.where(line_of_program >= 0, line_of_program, self._innermost_lines())
        samples = ThreadSamples(
            thread=self._threads,
            times=self._times,
            is_late=~self._is_in_time,
            shown_line=shown_line,
        )
        stacks = Stacks(
            line=self.program.table["line"].to_numpy(),
            first=self.program.first,
            number=self.program.number,
        )
        return find_hold_ends(samples, stacks)

    def _innermost_lines(self) -> Int64:
        """Return the innermost line of each sample, which is that of its first frame."""
        return self._frames.line[self._frames.first]

    def _lines_of_program(self) -> Int64:
        """Return the innermost line of the program of each sample; -1 for none."""
        line_of_frame = self.program.table["line"].to_numpy()
        # The first frame of a sample without frames may be the one after the last.
        first_line = np.append(line_of_frame, _NO_LINE)[self.program.first]
        has_frames = self.program.number > 0
        return np.where(has_frames, first_line, _NO_LINE)
