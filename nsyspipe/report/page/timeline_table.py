"""The timeline in figures: what each rank's lanes hold, for those who do not see the chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe.report.page.tables import Column, Table
from nsyspipe.units import absent, ms_text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["timeline_table"]

# Heading, lane, and the column of `steps` that is null where the lane was not recorded.
_BUSY = (
    ("compute, busy", "compute", "compute_ns"),
    ("communication, busy", "comm", "comm_ns"),
    ("exposed of it", "exposed", "exposed_comm_ns"),
    ("waiting in it", "wait", "wait_ns"),
    ("copies, busy", "memory", "exposed_memory_ns"),
)
_PHASES = ("data", "forward", "backward", "optimizer")


def timeline_table(timeline: pa.Table, steps: pa.Table, *, is_capture: bool = False) -> Table:
    """Return per rank when its window begins and ends, how long its lanes are busy, and when its phases run.

    Parameters
    ----------
    timeline, steps
        `schema.TIMELINE`, not empty, and `schema.STEPS`.

    Returns
    -------
    Table
        Times count from the first rank's start. What was not recorded, or is not known, is a dash. A phase that runs
        several times is shown from its first start to its last end.
    """
    of_step = steps.filter(pc.equal(steps["step"], timeline["step"][0]))
    origin = pc.min(of_step["start_ns"]).as_py()
    busy = _by_lane(timeline)
    spans = _spans(timeline)
    phases = [phase for phase in _PHASES if any(phase in found for found in spans.values())]
    rows = [
        [
            str(row["rank"]),
            _span(row["start_ns"], row["end_ns"], origin),
            *(
                absent if row[known] is None else ms_text(busy.get((row["rank"], lane), 0))
                for _, lane, known in _BUSY
            ),
            *(
                _span(*found, origin) if (found := spans.get(row["rank"], {}).get(phase)) else absent
                for phase in phases
            ),
        ]
        for row in of_step.to_pylist()
    ]  # fmt: skip
    whole = "capture" if is_capture else "step"
    columns = [
        Column("rank"),
        Column(f"{whole}, from and to"),
        *(Column(heading) for heading, *_ in _BUSY),
        *(Column(f"{phase}, from and to") for phase in phases),
    ]
    return Table(f"Timeline of the {whole}, per rank", columns, rows)


def _by_lane(timeline: pa.Table) -> dict[tuple[int, str], int]:
    summed = timeline.group_by(["rank", "lane"]).aggregate([("busy_ns", "sum")]).to_pylist()
    return {(row["rank"], row["lane"]): row["busy_ns_sum"] for row in summed}


def _spans(timeline: pa.Table) -> dict[int, dict[str, tuple[int, int]]]:
    rows = timeline.filter(pc.equal(timeline["lane"], "phase"))
    found = rows.group_by(["rank", "name"]).aggregate([("start_ns", "min"), ("end_ns", "max")])
    spans: dict[int, dict[str, tuple[int, int]]] = {}
    for row in found.to_pylist():
        spans.setdefault(row["rank"], {})[row["name"]] = (row["start_ns_min"], row["end_ns_max"])
    return spans


def _span(start: int, end: int, origin: int) -> str:
    return f"{ms_text(start - origin)} \N{EN DASH} {ms_text(end - origin)}"
