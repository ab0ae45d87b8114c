"""The steps of a run without device activity, as their host saw them."""

from __future__ import annotations

from nsyspipe.schema.columns import ns
from nsyspipe.schema.model import FLAG, INT, TEXT, Column, TableSchema

__all__ = ["HOST_STEPS"]


def _phase(name: str) -> Column:
    doc = f"union of the {name} ranges inside the step, on its thread; 0 in a step without, null on a process without any"
    return ns(f"{name}_ns", doc, source="NVTX_EVENTS", nullable=True)


HOST_STEPS = TableSchema(
    "host_steps",
    "One row per (process, step) of a run without any device activity: how long its NVTX step range lasted on the "
    "host. No rows where any process of the run has device activity: its steps are in `steps`. Time on the host is "
    "no time on a device: it ends when work was handed over, not when it was done.",
    ("rank", "report", "pid", "step"),
    (
        Column(
            "rank",
            INT,
            "id",
            "global rank; null when no source but the order numbers every process with steps",
            "as in `ranks`",
            nullable=True,
        ),
        Column("report", TEXT, "text", "report that holds the process", "file name"),
        Column("pid", INT, "id", "operating system's process id", "globalTid"),
        Column(
            "step",
            INT,
            "id",
            "step number, the same on every process",
            "NVTX range text, or its ordinal",
        ),
        ns(
            "host_start_ns",
            "start of the step range, report time + utcEpochNs - the run's lowest (nothing added where a report lacks it)",
            source="NVTX_EVENTS",
        ),
        ns("host_end_ns", "end of the step range, on the same clock", source="NVTX_EVENTS"),
        ns("host_ns", "host_end - host_start", source="derived"),
        *map(_phase, ("data", "forward", "backward", "optimizer")),
        Column(
            "is_complete",
            FLAG,
            "flag",
            "false where the range was never closed: it then ends 1 ns after the report's last event",
            "NVTX_EVENTS",
        ),
    ),
)
