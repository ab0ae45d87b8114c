"""The operations of a saved run, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.device_operations import overlapping_rows
from nsyspipe.errors import DatasetError
from nsyspipe.selection import check_steps
from nsyspipe.store.layout import partition
from nsyspipe.store.read import check_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsyspipe.store.read import RunFiles

__all__ = ["saved_operations"]


def saved_operations(
    files: RunFiles, all_steps: pa.Table, ranks: list[int], steps: tuple[int, int] | None
) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    """Yield what `run_operations.run_operations` yields, from files.

    Parameters
    ----------
    files
        Of the run.
    all_steps
        `schema.STEPS` of the run.
    ranks
        In order.

    Raises
    ------
    OptionError
        At once, if no rank has such a step.
    DatasetError
        At once, if the run was saved without its operations.
    """
    if steps is not None:
        check_steps(all_steps, steps)
    if ranks and not any(files.has("events", rank) for rank in ranks):
        raise DatasetError(
            f"run {files.run_id}",
            "was saved without its operations",
            fix="analyze the reports again with --out DIR --events",
        )
    return (_of_rank(files, all_steps, rank, steps) for rank in ranks)


def _of_rank(
    files: RunFiles, all_steps: pa.Table, rank: int, steps: tuple[int, int] | None
) -> tuple[int, pa.Table, pa.Table]:
    events = files.table("events", rank)
    ranges = files.table("phase_ranges", rank)
    check_ranks(events, [rank], files.store / partition("events", files.run_id, rank))
    check_ranks(ranges, [rank], files.store / partition("phase_ranges", files.run_id, rank))
    if steps is None:
        return rank, events, ranges
    windows = all_steps.filter(
        pc.and_(pc.equal(all_steps["rank"], rank), _between(all_steps, steps))
    )
    if windows.num_rows:
        span = pc.min(windows["start_ns"]).as_py(), pc.max(windows["end_ns"]).as_py()
        starts, ends = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
        rows = overlapping_rows(starts, ends, span)
    else:
        rows = np.empty(0, np.int64)
    return rank, events.take(pa.array(rows)), ranges.filter(_between(ranges, steps))


def _between(table: pa.Table, steps: tuple[int, int]) -> pa.ChunkedArray:
    first, last = steps
    return pc.and_(pc.greater_equal(table["step"], first), pc.less_equal(table["step"], last))
