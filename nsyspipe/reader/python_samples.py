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
    """The frames of all samples that could be decoded, innermost first."""

    # The first frame of each sample, and the one after its last frame.
    first: Int64
    end: Int64
    # The line of each frame, as a row of `lines`.
    line: Int64
    lines: PythonLinesOfReportTable


def read_python_samples(
    report: Report, strings: Strings, domains: Sequence[tuple[int, int]]
) -> PythonSamples:
    """Read the samples of Python in some domains, each with its process and number.

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
    decoded = _decode_frames(rows, strings)
    known = decoded.rows
    frames = decoded.frames
    processes = process_of(known["globalTid"].to_numpy())
    categories = filled(known["category"], _NO_CATEGORY)
    threads = _threads_of(processes, categories, frames)
    is_seen = _are_seen(known["binaryData"].combine_chunks())
    samples = _Samples(processes, known["start"].to_numpy(), frames, is_seen)
    is_of_holder = threads.is_only_other & ~is_seen
    all_seen = np.ones_like(is_seen)
    lines = pa.concat_tables([frames.lines, _unseen_line()])
    without_main = np.setdiff1d(processes, processes[threads.is_main])
    problems = _problems(rows.num_rows, known.num_rows, without_main)
    of_main = samples.table(threads.is_main, is_seen)
    of_holder = samples.table(is_of_holder, all_seen)
    return PythonSamples(
        samples=of_main,
        samples_of_others=of_holder,
        lines=lines,
        frames=samples.program.table,
        problems=problems,
    )


def _problems(n_samples: int, n_decoded: int, without_main: Int64) -> tuple[Problem, ...]:
    """Return problems with samples that are left out, and processes without a main thread."""
    problems = []
    n_ignored = n_samples - n_decoded
    if n_ignored:
        undecoded = problem("python-samples-undecoded", n=n_ignored, total=n_samples)
        problems.append(undecoded)
    unknown = [problem("python-thread-unknown", process_id=id_) for id_ in without_main.tolist()]
    return (*problems, *unknown)


def _are_seen(blobs: pa.BinaryArray) -> Flags:
    """Tell which samples were taken in time, so that their frames are those of that time."""
    places = _blob_starts(blobs)[:-1] + _STATE_AT
    is_seen: Flags = _records_at(_data_of(blobs), places, np.dtype("<i4")) != _LATE_STATE
    return is_seen


def _unseen_line() -> pa.Table:
    """Return the row of `canonical.PYTHON_LINES` of samples that were not taken in time."""
    unseen = {"path": [NOT_SEEN], "line": [0], "function": [""], "is_of_program": [False]}
    return PYTHON_LINES.table(unseen)


def _decode_frames(rows: pa.Table, strings: Strings) -> _Decoded:
    """Return the samples at possible times whose frames all have a defined file and function."""
    starts = filled(rows["start"], TIME_LIMIT)
    is_possible = (starts > -TIME_LIMIT) & (starts < TIME_LIMIT)
    blobs = rows["binaryData"].combine_chunks()
    n_frames = _count_frames(blobs)
    is_known = is_possible & (n_frames > 0)
    records = _read_frames(blobs, n_frames, is_known)
    n_frames = n_frames[is_known]
    is_defined = _are_defined(records, strings, n_frames)
    is_frame_defined = np.repeat(is_defined, n_frames)
    frames = _number_lines(records[is_frame_defined], n_frames[is_defined], strings)
    is_known[is_known] = is_defined
    known = rows.filter(pa.array(is_known))
    return _Decoded(known, frames)


def _blob_starts(blobs: pa.BinaryArray) -> Int64:
    """Return where each blob starts in the data, and at last where the last one ends."""
    starts = np.frombuffer(blobs.buffers()[1], np.int32)
    return starts[blobs.offset : blobs.offset + len(blobs) + 1].astype(np.int64)


def _data_of(blobs: pa.BinaryArray) -> NDArray[np.uint8]:
    buffer = blobs.buffers()[2]
    return np.frombuffer(buffer or b"", np.uint8)


def _records_at(data: NDArray[np.uint8], starts: Int64, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the record that begins at each place."""
    if not starts.size:
        return np.empty(0, dtype)
    windows = np.lib.stride_tricks.sliding_window_view(data, dtype.itemsize)
    record_bytes = np.ascontiguousarray(windows[starts])
    return record_bytes.view(dtype)[:, 0]


def _count_frames(blobs: pa.BinaryArray) -> Int64:
    """Return the number of frames of each sample; 0 if its length does not fit the number."""
    edges = _blob_starts(blobs)
    lengths = np.diff(edges)
    n_frames = np.zeros(len(blobs), np.int64)
    has_header = lengths >= _HEADER_BYTES
    places = edges[:-1][has_header] + _N_FRAMES_AT
    n_frames[has_header] = _records_at(_data_of(blobs), places, np.dtype("<i4"))
    is_in_limits = (n_frames > 0) & (n_frames <= MAX_FRAMES)
    fits = lengths == _HEADER_BYTES + _FRAME.itemsize * n_frames
    n_frames[~(is_in_limits & fits)] = 0
    return n_frames


def _read_frames(blobs: pa.BinaryArray, n_frames: Int64, is_known: Flags) -> NDArray[np.void]:
    """Return the frames of the known samples, one sample after the other."""
    counts = n_frames[is_known]
    first_bytes = _blob_starts(blobs)[:-1][is_known] + _HEADER_BYTES
    first = np.cumsum(counts) - counts
    place_in_sample = np.arange(counts.sum()) - np.repeat(first, counts)
    starts = np.repeat(first_bytes, counts) + _FRAME.itemsize * place_in_sample
    return _records_at(_data_of(blobs), starts, _FRAME)


def _are_defined(records: NDArray[np.void], strings: Strings, n_frames: Int64) -> Flags:
    """Tell of which samples all frames have strings that the report defines."""
    is_defined = np.ones(records.size, np.bool_)
    for name in ("function", "file"):
        ids, index = np.unique(records[name], return_inverse=True)
        is_text = pc.is_valid(strings.lookup(ids)).to_numpy(zero_copy_only=False)
        is_defined &= is_text[index]
    if not n_frames.size:
        return np.empty(0, np.bool_)
    first = np.cumsum(n_frames) - n_frames
    all_defined: Flags = np.logical_and.reduceat(is_defined, first)
    return all_defined


def _number_lines(records: NDArray[np.void], n_frames: Int64, strings: Strings) -> _Frames:
    """Return the lines of all frames, each once, and which line each frame has."""
    file_ids, file = np.unique(records["file"], return_inverse=True)
    function_ids, function = np.unique(records["function"], return_inverse=True)
    pairs, pair = np.unique(file * function_ids.size + function, return_inverse=True)
    lines_of_pairs = (pair << 32) + records["line"].astype(np.int64)
    distinct, line = np.unique(lines_of_pairs, return_inverse=True)
    pair_of_line = pairs[distinct >> 32]
    file_of_line, function_of_line = np.divmod(pair_of_line, max(function_ids.size, 1))
    columns = _file_columns(_clean_texts(strings, file_ids), file_of_line)
    functions = pa.array(_clean_texts(strings, function_ids), pa.string())
    columns["function"] = functions.take(pa.array(function_of_line))
    columns["line"] = distinct & 0xFFFFFFFF
    end = np.cumsum(n_frames)
    return _Frames(end - n_frames, end, line.astype(np.int64), PYTHON_LINES.table(columns))


def _file_columns(paths: list[str], file_of_line: Int64) -> dict[str, Any]:
    """Return the columns of `canonical.PYTHON_LINES` that the file of each line gives."""
    is_of_program_by_file = np.array([is_of_program(path) for path in paths], np.bool_)
    path_of_line = pa.array(paths, pa.string()).take(pa.array(file_of_line))
    return {"path": path_of_line, "is_of_program": is_of_program_by_file[file_of_line]}


def _clean_texts(strings: Strings, ids: Int64) -> list[str]:
    """Return texts without escapes, control characters and excessive length."""
    texts = strings.lookup(ids).to_pylist()
    cut = [html.unescape((text or "")[:_MAX_CHARACTERS]) for text in texts]
    return [printable(text) for text in cut]


class _Threads(Struct, frozen=True):
    """Which samples, or which threads, are of the main thread of their process.

    And which are of the only other thread of a process with two threads.
    """

    is_main: Flags
    is_only_other: Flags


def _threads_of(processes: Int64, categories: Int64, frames: _Frames) -> _Threads:
    """Tell which samples are of which thread.

    Threads differ in the category. The main thread is the only one without a sample that ends in
    the start of a thread. Without such a thread, or with several, no sample is of a known thread.
    """
    if not processes.size:
        no_flags = np.empty(0, np.bool_)
        return _Threads(no_flags, no_flags)
    _, process = np.unique(processes, return_inverse=True)
    _, category = np.unique(categories, return_inverse=True)
    n_categories = category.max() + 1
    pairs = process * n_categories
    pairs += category
    threads, thread = np.unique(pairs, return_inverse=True)
    n_bootstraps = np.bincount(thread, _start_threads(frames), threads.size)
    process_of_thread = threads // n_categories
    of_threads = _main_and_other(process_of_thread, n_bootstraps == 0)
    has_category = categories != _NO_CATEGORY
    is_main = of_threads.is_main[thread] & has_category
    is_only_other = of_threads.is_only_other[thread] & has_category
    return _Threads(is_main, is_only_other)


def _main_and_other(process_of_thread: Int64, may_be_main: Flags) -> _Threads:
    """Tell which threads are the main thread of their process, and its only other thread."""
    n_candidates = np.bincount(process_of_thread, may_be_main)
    n_threads = np.bincount(process_of_thread)
    has_main = n_candidates[process_of_thread] == 1
    has_one_other = n_threads[process_of_thread] == _MAIN_AND_ANOTHER
    is_only_other = has_main & has_one_other
    is_only_other &= ~may_be_main
    return _Threads(may_be_main & has_main, is_only_other)


def _start_threads(frames: _Frames) -> Flags:
    """Tell which samples have the start of a thread as their outermost frame."""
    lines = frames.lines
    is_file = pc.ends_with(lines["path"], _BOOTSTRAP_FILE)
    is_function = pc.starts_with(lines["function"], _BOOTSTRAP)
    is_bootstrap = pc.and_(is_file, is_function).to_numpy()
    outermost = frames.line[frames.end - 1]
    starts_thread: Flags = is_bootstrap[outermost]
    return starts_thread


class _ProgramFrames(Struct, frozen=True):
    """The frames of the user's program, and which of them are of which sample."""

    # `canonical.PYTHON_FRAMES`
    table: PythonFramesOfReportTable
    # The first frame of each sample, and how many it has.
    first: Int64
    number: Int64


def _program_frames(frames: _Frames) -> _ProgramFrames:
    """Return the frames of the user's program."""
    is_of_program_by_line = frames.lines["is_of_program"].to_numpy()
    places = np.flatnonzero(is_of_program_by_line[frames.line])
    first = np.searchsorted(places, frames.first)
    end = np.searchsorted(places, frames.end)
    table = PYTHON_FRAMES.table({"line": frames.line[places]})
    return _ProgramFrames(table, first, end - first)


class _Samples:
    """All samples of a report that could be decoded."""

    def __init__(self, processes: Int64, times: Int64, frames: _Frames, is_in_time: Flags) -> None:
        self._processes = processes
        self._times = times
        self._frames = frames
        self._is_in_time = is_in_time
        self.program = _program_frames(frames)

    def table(self, is_chosen: Flags, is_seen: Flags) -> pa.Table:
        """Return `canonical.PYTHON_SAMPLES` of some samples.

        Samples that were not taken in time have the line behind all others, and no frames.
        """
        unseen_line = self._frames.lines.num_rows
        first_line = self._frames.line[self._frames.first]
        line_of_program = self._lines_of_program()
        innermost = np.where(is_seen, first_line, unseen_line)
        n_frames = np.where(is_seen, self.program.number, 0)
        in_program = np.where(n_frames > 0, line_of_program, _NO_LINE)
        let_go = np.where(line_of_program >= 0, line_of_program, first_line)
        let_go[self._is_in_time] = _NO_LINE
        columns = {
            "process_id": self._processes,
            "time_ns": self._times,
            "innermost": innermost,
            "in_program": in_program,
            "first_frame": self.program.first,
            "n_frames": n_frames,
            "let_go": let_go,
        }
        rows = np.flatnonzero(is_chosen)
        times = self._times[rows]
        processes = self._processes[rows]
        order = np.lexsort((innermost[rows], times, processes))
        in_order = pa.array(rows[order])
        table = PYTHON_SAMPLES.table(columns)
        return table.take(in_order)

    def _lines_of_program(self) -> Int64:
        """Return the innermost line of the program of each sample; -1 for none."""
        lines = self.program.table["line"].to_numpy()
        line_at_place = np.append(lines, _NO_LINE)[self.program.first]
        return np.where(self.program.number > 0, line_at_place, _NO_LINE)
