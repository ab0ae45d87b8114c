"""When threads wait for Python's lock (GIL), and when they hold it.

``--trace=python-gil`` writes this as ranges in an NVTX domain of its own. The thread with which
nsys takes samples of Python needs the lock too.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.attribution import filled
from nsyspipe.model.canonical import LOCK_RANGES
from nsyspipe.model.table import Flags, Int64
from nsyspipe.reader.calls import Strings
from nsyspipe.reader.python_samples import condition_of_samples
from nsyspipe.reader.ranges import Ranges, condition_of_domains, names_of_rows
from nsyspipe.reader.report import NVTX, TIME_LIMIT, Report, are_possible, process_of

# NVTX_EVENTS.eventType of ranges.
_RANGE_ROWS = "eventType IN (59, 60)"
_WAITS = "Waiting for GIL"
_HOLDS = "Holding GIL"
_COLUMNS = {
    **dict.fromkeys(("start", "end", "globalTid", "textId"), "int"),
    "text": "text",
}


def read_lock_ranges(report: Report, strings: Strings, ranges: Ranges) -> pa.Table | None:
    """Return `canonical.LOCK_RANGES`; None if no process recorded them.

    Ranges at impossible times are left out. Ranges that never closed end with the report.
    """
    if not ranges.lock_domains:
        return None
    where = f"{_RANGE_ROWS} AND {condition_of_domains(ranges.lock_domains)}"
    rows = report.select(NVTX, _COLUMNS, where=where)
    texts = names_of_rows(rows, strings).cast(pa.string())
    threads = filled(rows["globalTid"], 0)
    is_wait = _are_texts(texts, _WAITS)
    # Without a known end, a range gets the limit as its end. `are_possible` is false for this time.
    open_end_ns = TIME_LIMIT if ranges.open_end_ns is None else ranges.open_end_ns
    starts = filled(rows["start"], TIME_LIMIT)
    ends = filled(rows["end"], open_end_ns)
    is_of_sampler = np.isin(threads, _sampler_threads(report, ranges))
    columns = {
        "process_id": process_of(threads),
        "thread_id": threads,
        "start_ns": starts,
        "end_ns": ends,
        "is_wait": is_wait,
        "is_of_sampler": is_of_sampler,
    }
    waits_or_holds = is_wait | _are_texts(texts, _HOLDS)
    is_chosen = waits_or_holds & are_possible(starts, ends)
    return _in_order(LOCK_RANGES.table(columns), is_chosen)


def _in_order(ranges: pa.Table, is_chosen: Flags) -> pa.Table:
    """Return some ranges in the order of the table."""
    chosen = ranges.filter(pa.array(is_chosen))
    sort_keys = [(name, "ascending") for name in LOCK_RANGES.key]
    return chosen.sort_by(sort_keys)


def _are_texts(texts: pa.StringArray, text: str) -> Flags:
    """Tell which texts are the given text."""
    is_equal = pc.equal(texts, text)
    is_text = pc.fill_null(is_equal, fill_value=False)
    flags: Flags = is_text.to_numpy(zero_copy_only=False)
    return flags


def _sampler_threads(report: Report, ranges: Ranges) -> Int64:
    """Return the threads that took samples of Python. Each process has at most one.

    A thread that was not recorded is 0.
    """
    samples = condition_of_samples(report, ranges.python_domains)
    if samples is None:
        return np.empty(0, np.int64)
    rows = report.select(NVTX, {"globalTid": "int"}, where=samples)
    return filled(rows["globalTid"].unique(), 0)
