"""When threads wait for Python's lock (GIL), and when they hold it.

``--trace=python-gil`` writes this as ranges in an NVTX domain of its own. The thread with which
nsys takes samples of Python needs the lock too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.attribution import filled
from nsyspipe.model.canonical import LOCK_RANGES
from nsyspipe.model.table import Int64
from nsyspipe.reader.calls import Strings
from nsyspipe.reader.ranges import condition_of_domains, names_of_rows
from nsyspipe.reader.report import NVTX, TIME_LIMIT, Report, are_possible, process_of

# NVTX_EVENTS.eventType of ranges.
_RANGE_ROWS = "eventType IN (59, 60)"
_WAITS = "Waiting for GIL"
_HOLDS = "Holding GIL"
_COLUMNS = {
    **dict.fromkeys(("start", "end", "globalTid", "textId"), "int"),
    "text": "text",
}


def read_lock_ranges(
    report: Report,
    strings: Strings,
    domains: Sequence[tuple[int, int]],
    samples: str | None,
    open_end_ns: int | None,
) -> pa.Table | None:
    """Return `canonical.LOCK_RANGES` of some domains; None without such a domain.

    `samples` is the SQL condition for samples of Python, None if there are none.
    """
    if not domains:
        return None
    where = f"{_RANGE_ROWS} AND {condition_of_domains(domains)}"
    rows = report.select(NVTX, _COLUMNS, where=where)
    texts = names_of_rows(rows, strings).cast(pa.string())
    starts = filled(rows["start"], TIME_LIMIT)
    ends = filled(rows["end"], TIME_LIMIT if open_end_ns is None else open_end_ns)
    threads = filled(rows["globalTid"], 0)
    is_wait = pc.fill_null(pc.equal(texts, _WAITS), fill_value=False)
    is_hold = pc.fill_null(pc.equal(texts, _HOLDS), fill_value=False)
    is_known = pc.or_(is_wait, is_hold).to_numpy(zero_copy_only=False)
    chosen = np.flatnonzero(is_known & are_possible(starts, ends))
    processes = process_of(threads)
    order = np.lexsort((starts[chosen], processes[chosen]))
    chosen = chosen[order]
    columns = {
        "process_id": processes[chosen],
        "thread_id": threads[chosen],
        "start_ns": starts[chosen],
        "end_ns": ends[chosen],
        "is_wait": is_wait.to_numpy(zero_copy_only=False)[chosen],
        "is_of_sampler": np.isin(threads[chosen], _sampler_threads(report, samples)),
    }
    return LOCK_RANGES.table(columns)


def _sampler_threads(report: Report, samples: str | None) -> Int64:
    """Return the threads that took samples of Python, one for each process."""
    if samples is None:
        return np.empty(0, np.int64)
    rows = report.select(NVTX, {"globalTid": "int"}, where=samples)
    return filled(rows["globalTid"].unique(), 0)
