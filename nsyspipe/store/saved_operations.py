"""The operations of a saved run, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.device_operations import overlapping_rows
from nsyspipe.errors import DatasetError
from nsyspipe.selection import check_steps
from nsyspipe.store.layout import file_of
from nsyspipe.store.read import read_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["saved_operations"]


def saved_operations(
    tables: Path, run_id: str, all_steps: pa.Table, ranks: list[int], steps: tuple[int, int] | None
) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    """Yield what `run_operations.run_operations` yields, from files.

    Parameters
    ----------
    tables
        The directory of the tables.
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
    if ranks and not any(_is_saved(file_of(tables, "events", run_id, rank)) for rank in ranks):
        raise DatasetError(
            f"run {run_id}",
            "was saved without its operations",
            fix="analyze the reports again with --out DIR --events",
        )
    return (_of_rank(tables, run_id, all_steps, rank, steps) for rank in ranks)


def _is_saved(file: Path) -> bool:
    """Tell whether there are operations; a link leads to a file without rows."""
    return file.is_file() and not file.is_symlink()


def _of_rank(
    tables: Path, run_id: str, all_steps: pa.Table, rank: int, steps: tuple[int, int] | None
) -> tuple[int, pa.Table, pa.Table]:
    events = read_table(tables, "events", run_id, rank)
    ranges = read_table(tables, "phase_ranges", run_id, rank)
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
