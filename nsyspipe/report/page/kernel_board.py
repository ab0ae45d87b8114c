"""The kernels that take most time, over all ranks and the whole capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe.report.page.embed import cut
from nsyspipe.report.page.tables import Column, Table, bars
from nsyspipe.units import absent, count_text, ms_text, percent_text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SHOWN_KERNELS", "kernel_table"]

SHOWN_KERNELS = 15
# Longer names differ in their template arguments, which nobody reads in a table.
_LONGEST_NAME = 160
_SUMMED = ("n_kernels", "total_ns", "overlapped_ns", "n_slowed", "slowed_ns", "free_ns")


def kernel_table(kernels: pa.Table) -> Table | None:
    """Return the kernels with most time, by phase; None without kernels."""
    if not kernels.num_rows:
        return None
    found = (
        kernels.group_by(["phase", "name"])
        .aggregate([(name, "sum") for name in _SUMMED])
        .sort_by([("total_ns_sum", "descending"), ("name", "ascending"), ("phase", "ascending")])
    )
    whole = pc.sum(kernels["total_ns"]).as_py()
    rows = found.slice(0, SHOWN_KERNELS).to_pylist()
    totals = [row["total_ns_sum"] for row in rows]
    beside = [_ratio(row["overlapped_ns_sum"], row["total_ns_sum"]) for row in rows]
    columns = [
        [cut(row["name"], _LONGEST_NAME) for row in rows],
        [row["phase"] or absent for row in rows],
        [count_text(row["n_kernels_sum"]) for row in rows],
        bars(totals, [ms_text(total) for total in totals], "accent"),
        [percent_text(_ratio(total, whole)) for total in totals],
        [ms_text(row["total_ns_sum"] / row["n_kernels_sum"]) for row in rows],
        bars(beside, [percent_text(one) for one in beside], "hidden"),
        [_slowdown(row["n_slowed_sum"], row["slowed_ns_sum"], row["free_ns_sum"]) for row in rows],
    ]
    headings = [
        Column("kernel", "name"),
        Column("phase", "text"),
        Column("number"),
        Column("total", hint="sum of durations over all ranks and the whole capture"),
        Column("of all kernels"),
        Column("mean"),
        Column("beside comm", hint="share of its time with communication under way"),
        Column(
            "slower beside comm",
            hint="against equal kernels that ran beside none; how many were compared",
        ),
    ]
    left = found.num_rows - len(rows)
    note = f"{left} more names take {percent_text(1 - sum(totals) / whole)} of kernel time." if left else None  # fmt: skip
    return Table("Top kernels", headings, [*zip(*columns, strict=True)], note)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _slowdown(n: int, slowed: int, free: int) -> str:
    return f"{percent_text(slowed / free - 1)} ({n})" if n and free else absent
