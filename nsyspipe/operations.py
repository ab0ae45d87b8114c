"""The work on one report's operations: a plain function of what a run knows, which returns them one by one.

Any `concurrent.futures.Executor` can run it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nsyspipe.attribution import by_process, launch_times
from nsyspipe.device_operations import DeviceOperations, device_operations
from nsyspipe.families import Members, TextFamilies
from nsyspipe.intervals import outermost
from nsyspipe.phases import phase_codes, phase_ranges
from nsyspipe.rank_operations import RankSteps, events_table, phase_ranges_table
from nsyspipe.read.again import SecondReading, Wanted, read_again

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from nsyspipe.settings import Reading

    Int64 = NDArray[np.int64]

__all__ = ["ReportTask", "report_operations"]


@dataclass(frozen=True)
class ReportTask:
    """One report's share of the work.

    Attributes
    ----------
    family
        The run's step family; None when each rank's capture is one window.
    """

    path: str
    reading: Reading
    family: str | None
    wanted: Wanted
    ranks: tuple[RankSteps, ...]


def report_operations(task: ReportTask) -> list[tuple[int, pa.Table, pa.Table]]:
    """Read the operations of one report.

    Returns
    -------
    list
        Per rank its number, `schema.EVENTS` and `schema.PHASE_RANGES`; both sorted by their keys, ties by the other
        columns.

    Raises
    ------
    InputError
        If the report cannot be read any more, or has changed.
    """
    found = read_again(task.path, task.reading.comm_kernel, task.wanted)
    texts = found.ranges["text"].combine_chunks()
    texts = texts.dictionary if len(texts) else pa.array([], pa.string())
    named = TextFamilies.by_text(texts)
    step = task.reading.step
    families = TextFamilies.by_option(texts, step) if step else named
    codes = phase_codes(named, task.reading.phases)
    result = []
    for rank, operations, ranges in _by_rank(task.ranks, found):
        members = _members(rank, ranges, families, task.family)
        phases = phase_ranges(ranges, codes, members)
        events = events_table(task.path, rank, operations, phases, members)
        result.append((rank.rank, events, phase_ranges_table(rank, operations, phases)))
    return result


def _by_rank(
    ranks: Sequence[RankSteps], found: SecondReading
) -> Iterator[tuple[RankSteps, DeviceOperations, pa.Table]]:
    """Yield each rank's operations and ranges."""
    processes = sorted({rank.process_id for rank in ranks})
    parts = [
        by_process(table, processes)
        for table in (found.kernels, found.memcpys, found.memsets, found.ranges)
    ]
    calls = found.launches
    launches = [None] * len(processes) if calls is None else by_process(calls, processes)
    place = {process: at for at, process in enumerate(processes)}
    for rank in ranks:
        at = place[rank.process_id]
        kernels, memcpys, memsets, ranges = (part[at] for part in parts)
        times = [launch_times(table, launches[at]) for table in (kernels, memcpys, memsets)]
        yield rank, device_operations(kernels, memcpys, memsets, times, found.names), ranges


def _members(
    rank: RankSteps, ranges: pa.Table, families: TextFamilies, family: str | None
) -> Members:
    """Return the rank's step ranges, and the rows of those that were read this time."""
    rows = np.empty(0, np.int64)
    if family in families.names and rank.starts.size:
        text = ranges["text"].combine_chunks()
        code = families.of_text[text.indices.to_numpy()] if len(text) else rows
        starts, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
        at = np.minimum(np.searchsorted(rank.starts, starts), rank.starts.size - 1)
        is_step = (rank.starts[at] == starts) & (rank.ends[at] == ends)
        is_step &= code == families.names.index(family)
        rows = np.flatnonzero(is_step & (ranges["thread_id"].to_numpy() == rank.thread_id))
        rows = rows[outermost(starts[rows], ends[rows])]  # of equal ones the one that was taken
    return Members(rank.thread_id, rows, rank.starts, rank.ends)
