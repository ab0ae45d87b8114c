"""Lanes of ranges as NVTXT: a text with a line for each start and each end of a range.

The ranges are of threads that do not exist, so that Nsight Systems draws each lane as a row below
the ID of its process.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.nsys.nvtxt import START

# ImportNvtxt keeps the threads of NVTXT apart from those that were captured.
_FIRST_THREAD = 1
_MAX_LETTERS = 200
_END = "RangePop"
# Times are those of the export. What stands in a definition need not stand in each line.
_DEFINITIONS = """\
SetFileDisplayName, nsyspipe
@NameOsThread, ProcessId, ThreadId, Name
@RangePush, Time, ProcessId, ThreadId, Color, Message
TimeBase = Relative
@RangePop, Time, ProcessId, ThreadId
TimeBase = Relative
"""


class Lane(NamedTuple):
    """Ranges that are drawn in one row, in the time of their report. They nest or do not touch."""

    name: str
    # One of the names of colors of NVTXT.
    color: str
    # Of the process below which Nsight Systems draws the row.
    process_id: int
    starts_ns: np.ndarray
    ends_ns: np.ndarray
    # The text of each range.
    texts: Sequence[str] | pa.ChunkedArray


def nvtxt_of(lanes: Iterable[Lane]) -> str:
    """Return lanes as NVTXT."""
    return _DEFINITIONS + "".join(_lines(lanes))


def _lines(lanes: Iterable[Lane]) -> list[str]:
    """Return the lines of all lanes, each lane as a thread of its own."""
    lines: list[str] = []
    for thread, lane in enumerate(lanes, start=_FIRST_THREAD):
        (name,) = _quoted([lane.name]).to_pylist()
        lines.append(f"NameOsThread, {lane.process_id}, {thread}, {name}\n")
        lines += _lines_of_ranges(lane, thread)
    return lines


def _lines_of_ranges(lane: Lane, thread: int) -> list[str]:
    """Return a line for each start and each end, in order of time.

    Ranges without a length are left out.
    """
    has_length = lane.starts_ns < lane.ends_ns
    starts_ns = lane.starts_ns[has_length]
    ends_ns = lane.ends_ns[has_length]
    texts = _quoted(lane.texts).filter(pa.array(has_length))
    process_and_thread = f"{lane.process_id}, {thread}"
    start_lines = _joined(START, _words(starts_ns), f"{process_and_thread}, {lane.color}", texts)
    end_lines = _joined(_END, _words(ends_ns), process_and_thread)
    times_ns = np.concatenate([starts_ns, ends_ns])
    # Where one range ends and the next one starts, the end comes first.
    is_start = np.repeat([1, 0], starts_ns.size)
    line_numbers_in_order = np.lexsort((is_start, times_ns))
    all_lines = pa.concat_arrays([start_lines, end_lines])
    lines: list[str] = all_lines.take(pa.array(line_numbers_in_order)).to_pylist()
    return lines


def _words(times_ns: np.ndarray) -> pa.Array:
    return pa.array(times_ns, pa.int64()).cast(pa.string())


def _joined(*words: str | pa.Array) -> pa.Array:
    without_end = pc.binary_join_element_wise(*words, ", ")
    return pc.binary_join_element_wise(without_end, "\n", "")


def _quoted(texts: Sequence[str] | pa.ChunkedArray) -> pa.Array:
    """Return texts of a report as strings of NVTXT: short, and with nothing that ends a string."""
    array = pa.array(texts, pa.string()) if isinstance(texts, Sequence) else texts
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    short = pc.utf8_slice_codeunits(array, 0, _MAX_LETTERS)
    without_controls = pc.replace_substring_regex(short, r"[[:cntrl:]]", "?")
    without_quotes = pc.replace_substring(without_controls, '"', "'")
    plain = pc.replace_substring(without_quotes, "\\", "/")
    return pc.binary_join_element_wise('"', plain, '"', "")
