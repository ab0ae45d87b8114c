"""The work on one report's operations: a plain function of what a run knows, which returns them one by one.

Any `concurrent.futures.Executor` can run it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.attribution import launch_times
from nsyspipe.device_operations import DeviceOperations, device_operations
from nsyspipe.families import Members, TextFamilies
from nsyspipe.intervals import outermost
from nsyspipe.phases import phase_codes, phase_ranges
from nsyspipe.rank_operations import RankSteps, events_table, phase_ranges_table
from nsyspipe.read.again import Wanted, read_again

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    tables = (found.kernels, found.memcpys, found.memsets)
    launches = [launch_times(table, found.launches) for table in tables]
    texts = found.ranges["text"].combine_chunks()
    texts = texts.dictionary if len(texts) else pa.array([], pa.string())
    named = TextFamilies.by_text(texts)
    step = task.reading.step
    families = TextFamilies.by_option(texts, step) if step else named
    codes = phase_codes(named, task.reading.phases)
    result = []
    for rank in task.ranks:
        operations = _of_process(rank.process_id, tables, launches, found.names)
        ranges = found.ranges.filter(pc.equal(found.ranges["process_id"], rank.process_id))
        members = _members(rank, ranges, families, task.family)
        phases = phase_ranges(ranges, codes, members)
        events = events_table(task.path, rank, operations, phases, members)
        result.append((rank.rank, events, phase_ranges_table(rank, operations, phases)))
    return result


def _of_process(
    process: int,
    tables: Sequence[pa.Table],
    launches: Sequence[Int64],
    names: Mapping[int, str],
) -> DeviceOperations:
    mine = [pc.equal(table["process_id"], process) for table in tables]
    if not all(pc.all(own, min_count=0).as_py() for own in mine):
        tables = [table.filter(own) for table, own in zip(tables, mine, strict=True)]
        launches = [time[own.to_numpy()] for time, own in zip(launches, mine, strict=True)]
    kernels, memcpys, memsets = tables
    return device_operations(kernels, memcpys, memsets, launches, names)


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
