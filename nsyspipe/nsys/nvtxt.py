"""Adds ranges to a copy of a report, with the program ImportNvtxt of Nsight Systems.

The program reads NVTXT, a text with a line for each start and each end of a range. nsys does not
export the added ranges to SQLite.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from nsyspipe.errors import NsysFailedError, NsysNotFoundError
from nsyspipe.nsys.files import SUFFIX_OF_RANGES
from nsyspipe.nsys.programs import (
    GET_NSYS,
    Output,
    find,
    find_range_importer,
    printed,
    telling_lines,
)

# A line with the start of a range begins with this.
START = "RangePush"
_ADDED = re.compile(r"\b(\d+) events imported")


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


def add_ranges(importer: Path, report: Path, copy: Path, nvtxt: str, *, timeout_s: float) -> Added:
    """Write a copy of a report with the ranges of an NVTXT text.

    `copy` is a new file in a directory of our own, where the text is written too. Raises
    NsysFailedError if the importer fails.
    """
    nvtxt_file = copy.with_suffix(SUFFIX_OF_RANGES)
    nvtxt_file.write_text(nvtxt, encoding="utf-8", errors="replace")
    paths = ("-i", report.absolute(), "-n", nvtxt_file.absolute(), "-o", copy.absolute())
    # With --target, the copy would not open in the user interface of 2024.2.
    command = [str(word) for word in (importer, "--cmd", "merge", *paths)]
    try:
        output = printed(command, timeout_s, folder=copy.parent)
    except OSError as error:
        problem = f"cannot be started ({error.strerror})"
        raise NsysFailedError(str(importer), problem, fix=GET_NSYS) from error
    # The line in which the importer says how many events it added.
    added_events = _ADDED.search(output.text)
    if output.status != 0 or added_events is None or not copy.is_file():
        raise _failure(importer, report, output)
    # A range has two events, its start and its end.
    n_ranges = int(added_events[1]) // 2
    # In the text, each start of a range begins a line.
    n_ranges_of_text = nvtxt.count(f"\n{START}, ")
    return Added(n_ranges, n_left_out=n_ranges_of_text - n_ranges)


def _failure(importer: Path, report: Path, output: Output) -> NsysFailedError:
    last_lines = " / ".join(telling_lines(output.text, most=3)) or None
    if output.status is None:
        problem = f"{importer.name} did not end in time, and was stopped"
    else:
        problem = f"{importer.name} failed with status {output.status}"
    fix = f"use the ImportNvtxt of the nsys that captured the report, not {importer}"
    return NsysFailedError(shlex.quote(str(report)), problem, found=last_lines, fix=fix)
