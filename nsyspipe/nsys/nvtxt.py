"""Adds ranges to a copy of a report, with the program ImportNvtxt of Nsight Systems.

The program reads NVTXT, a text with a line for each start and each end of a range. The ranges are
of threads that do not exist, so that Nsight Systems draws each lane as a row of its process. nsys
does not export them to SQLite.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.errors import NsysFailedError, NsysNotFoundError
from nsyspipe.nsys.programs import (
    GET_NSYS,
    Output,
    find,
    find_range_importer,
    printed,
    telling_lines,
)

# Linux has fewer threads than that, and a thread ID has 24 bits.
_FIRST_THREAD = 16_000_000
# The machine of a report that one nsys captured: hardware 0, virtual machine 1.
_TARGET = "0:1"
_MAX_LETTERS = 200
_START = "RangePush"
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
_ADDED = re.compile(r"\b(\d+) events imported")


class Lane(NamedTuple):
    """Ranges that are drawn in one row, in the time of their report. They nest or do not touch."""

    name: str
    # One of the names of colors of NVTXT.
    color: str
    # Of the process at which Nsight Systems draws the row.
    process_id: int
    starts_ns: np.ndarray
    ends_ns: np.ndarray
    # The text of each range.
    texts: Sequence[str] | pa.ChunkedArray


class Added(NamedTuple):
    """How many ranges a copy has more than its report, and how many did not fit."""

    n_ranges: int
    # Ranges outside of the time that the report covers.
    n_left_out: int


def find_importer() -> Path:
    """Return the ImportNvtxt of the nsys of this machine, or raise NsysNotFoundError."""
    nsys = find()
    importer = find_range_importer(nsys.path)
    if importer is None:
        problem = "has no ImportNvtxt, which adds ranges to a report"
        fix = f"{GET_NSYS}, the package with the user interface"
        raise NsysNotFoundError(str(nsys.path), problem, fix=fix)
    return importer


def add_ranges(
    importer: Path, report: Path, copy: Path, lanes: Iterable[Lane], *, timeout_s: float
) -> Added:
    """Write a copy of a report with more ranges.

    `copy` is a new file in a directory of our own, where the text of the ranges is written too.
    """
    nvtxt = copy.with_suffix(".nvtxt")
    lines = _lines(lanes)
    text = _DEFINITIONS + "".join(lines)
    nvtxt.write_text(text, encoding="utf-8", errors="replace")
    paths = ("-i", report.absolute(), "-n", nvtxt.absolute(), "-o", copy.absolute())
    command = [str(word) for word in (importer, "--cmd", "merge", *paths, "--target", _TARGET)]
    try:
        output = printed(command, timeout_s, folder=copy.parent)
    except OSError as error:
        problem = f"cannot be started ({error.strerror})"
        raise NsysFailedError(str(importer), problem, fix=GET_NSYS) from error
    added = _ADDED.search(output.text)
    if output.status != 0 or added is None or not copy.is_file():
        raise _failure(importer, report, output)
    # A start and an end are one event each.
    n_ranges = int(added[1]) // 2
    n_given = sum(line.startswith(_START) for line in lines)
    return Added(n_ranges, n_given - n_ranges)


def _failure(importer: Path, report: Path, output: Output) -> NsysFailedError:
    found = " / ".join(telling_lines(output.text, 3)) or None
    problem = f"{importer.name} failed with status {output.status}"
    if output.status is None:
        problem = f"{importer.name} did not end in time, and was stopped"
    fix = f"use the ImportNvtxt of the nsys that captured the report, not {importer}"
    return NsysFailedError(shlex.quote(str(report)), problem, found=found, fix=fix)


def _lines(lanes: Iterable[Lane]) -> list[str]:
    """Return the lines of all lanes, each lane as a thread of its own."""
    lines: list[str] = []
    for thread, lane in enumerate(lanes, start=_FIRST_THREAD):
        (name,) = _quoted([lane.name]).to_pylist()
        lines.append(f"NameOsThread, {lane.process_id}, {thread}, {name}\n")
        lines += _lines_of_ranges(lane, thread)
    return lines


def _lines_of_ranges(lane: Lane, thread: int) -> list[str]:
    """Return a line for each start and each end, in order of time."""
    is_some_time = lane.starts_ns < lane.ends_ns
    starts_ns = lane.starts_ns[is_some_time]
    ends_ns = lane.ends_ns[is_some_time]
    texts = _quoted(lane.texts).filter(pa.array(is_some_time))
    place = f"{lane.process_id}, {thread}"
    starts = _joined(_START, _words(starts_ns), f"{place}, {lane.color}", texts)
    ends = _joined(_END, _words(ends_ns), place)
    # Where one range ends and the next one starts, the end comes first.
    is_start = np.repeat([1, 0], starts_ns.size)
    order = np.lexsort((is_start, np.concatenate([starts_ns, ends_ns])))
    lines: list[str] = pa.concat_arrays([starts, ends]).take(pa.array(order)).to_pylist()
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
