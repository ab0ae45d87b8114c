"""By what a scoreboard can be sorted, and which way is better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SORTS", "check_sort", "sorted_rows"]

# Name -> column of `tables.SCOREBOARD`, and whether more of it is better.
SORTS = {
    "step_time": ("step_time_ns", False),
    "throughput": ("throughput_steps_per_s", True),
    "rank_steps": ("rank_steps_per_s", True),
    "speedup": ("speedup", True),
    "comm_share": ("comm_share", False),
    "exposed_comm_share": ("exposed_comm_share", False),
    "overlap_ratio": ("overlap_ratio", True),
    "backward_overlap_ratio": ("backward_overlap_ratio", True),
    "compute_share": ("compute_share", True),
    "exposed_memory_share": ("exposed_memory_share", False),
    "idle_share": ("idle_share", False),
    "wait_share": ("wait_share", False),
    "dtod": ("dtod_ns_per_step", False),
    "dtod_bytes": ("dtod_bytes_per_step", False),
    "collectives": ("collectives_per_step", False),
    "message_bytes": ("message_bytes_per_step", False),
    "busbw": ("busbw_bytes_per_s", True),
    "compute": ("compute_ns", False),
    "exposed_comm": ("exposed_comm_ns", False),
    "exposed_memory": ("exposed_memory_ns", False),
    "idle": ("idle_ns", False),
}


def check_sort(name: str, option: str = "sort") -> str:
    """Return a name of `SORTS` for what a user gives: that, or the name of its column.

    Raises
    ------
    OptionError
        If it is neither.
    """
    if name in SORTS:
        return name
    for one, (column, _) in SORTS.items():
        if column == name:
            return one
    raise OptionError.no_such_name(f"{option} {name!r}", "there is no such metric", name, SORTS)


def sorted_rows(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return rows with the best first, nulls last, equal ones in the order given."""
    column, is_more_better = SORTS[name]
    known = [row for row in rows if row[column] is not None]
    known.sort(key=lambda row: -row[column] if is_more_better else row[column])
    return known + [row for row in rows if row[column] is None]
