"""Kernels by phase and name."""

from __future__ import annotations

from nsyspipe.schema.columns import RANK, count, ns, ratio
from nsyspipe.schema.model import TEXT, Column, TableSchema

__all__ = ["KERNEL_COSTS"]

_SLOWED = (
    "equal in name, grid and block, their own and their three neighbours' on either side in order of launch, with at "
    "least three that ran beside no communication and are about as long as each other (of a large report a sample of "
    "50 000 kernels is compared)"
)
_UNKNOWN = (
    "null in a run saved before there was this column; and, where a rank has over 2^18 pairs of a step and a row, so "
    "that steps in the middle are summed together, if only a part of such a group are summary steps"
)

KERNEL_COSTS = TableSchema(
    "kernels",
    "One row per (rank, phase, name) over the whole capture, its cut-off steps included; the last two columns are of the summary steps.",
    ("rank", "phase", "name"),
    (
        RANK,
        Column(
            "phase",
            TEXT,
            "text",
            "phase that launched them; null outside of all",
            "NVTX_EVENTS",
            nullable=True,
        ),
        Column(
            "name",
            TEXT,
            "text",
            "without parameters and template arguments, with the functor that tells it apart in brackets",
            "KERNEL.demangledName, else shortName",
        ),
        count("n_kernels", "how many", "KERNEL"),
        ns("total_ns", "sum of durations", source="KERNEL"),
        ns("mean_ns", "total / n, floored", source="derived"),
        ns("min_ns", "shortest", source="KERNEL"),
        ns("max_ns", "longest", source="KERNEL"),
        ns(
            "overlapped_ns",
            "time with communication under way; 0 of communication itself",
            source="KERNEL",
        ),
        ns("not_overlapped_ns", "total - overlapped", source="derived"),
        count(
            "n_slowed",
            f"kernels beside communication, all or in part, that have equal ones without it: {_SLOWED}",
            "KERNEL",
        ),
        ns(
            "slowed_ns",
            "their time with communication under way",
            source="derived",
        ),
        ns(
            "free_ns",
            "what that time would be without: less what each takes longer than the median of its equals",
            source="derived",
        ),
        ratio("slowdown_ratio", "slowed / free - 1; null where there are no equal ones"),
        count(
            "n_in_summary",
            f"how many of them start in the window of a summary step; {_UNKNOWN}",
            "KERNEL",
            nullable=True,
        ),
        ns(
            "in_summary_ns",
            "sum of the durations of those; null likewise",
            source="KERNEL",
            nullable=True,
        ),
    ),
)
