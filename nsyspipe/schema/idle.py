"""Why devices idle: the columns that several tables share, and idle time by API call."""

from __future__ import annotations

from nsyspipe.schema.columns import ns
from nsyspipe.schema.model import FLOAT, TEXT, Column, TableSchema

__all__ = ["BETWEEN_STEPS", "IDLE_CALLS", "IDLE_CAUSES", "IDLE_COLUMNS"]

_GAP = "of gaps [g0, g1) ended by an operation launched at L, with R = min(max(L + latency, g0), g1), late = [g0, R)"
_CALLS_NULL = "null without API calls, or without their names and ends"

IDLE_COLUMNS = (
    ns(
        "idle_input_ns",
        "idle because the host got the next batch, in the data phase or between two steps (see "
        f"idle_between_steps): |late n (data u between)| {_GAP}; latency is the rank's "
        "shortest time from launch to start, clamped to 20 us. The five causes sum to idle_ns exactly, and are null "
        "where it is",
        source="RUNTIME, NVTX_EVENTS",
        nullable=True,
    ),
    ns(
        "idle_launch_ns",
        f"idle because the launch came late for any other reason: |late \\ (data u between)| - idle_blocked; {_CALLS_NULL}",
        source="RUNTIME",
        nullable=True,
    ),
    ns(
        "idle_blocked_ns",
        "idle because the host was blocked in a synchronisation or memory call: |late \\ data| of gaps at "
        f"whose start such a call was under way, else the part during such calls; {_CALLS_NULL}",
        source="RUNTIME.nameId, start, end",
        nullable=True,
    ),
    ns(
        "idle_dependency_ns",
        "g1 - R: launched in time, it waited for an event of another stream, or for the device to start it "
        "(with more latency than the 20 us that R is clamped to, too)",
        source="RUNTIME",
        nullable=True,
    ),
    ns("idle_unknown_ns", "idle - all of these: no launch recorded", nullable=True),
)

IDLE_CAUSES = tuple(column.name for column in IDLE_COLUMNS)

BETWEEN_STEPS = ns(
    "idle_between_steps_ns",
    "of idle_input the part in which the host was between two steps: after the end of one step range and before the "
    "start of the next, the longest stretch in which the thread of the steps was in no range (those around several "
    "steps apart) and in no CUDA call: probably the data loader",
    source="RUNTIME, NVTX_EVENTS",
    nullable=True,
)

IDLE_CALLS = TableSchema(
    "idle_calls",
    "One row per API call that hosts were blocked in while their devices idled in summary steps, largest first, "
    "then by name. The rows sum to idle_blocked_ns_per_step of the summary; there are none where that is null.",
    ("blocked_ns_per_step", "call"),
    (
        Column(
            "call",
            TEXT,
            "text",
            "name of the call, less the API version; of calls under way together the one that lasts longest",
            "RUNTIME.nameId",
        ),
        Column(
            "blocked_ns_per_step",
            FLOAT,
            "ns",
            "mean over (rank, step) of the part of idle_blocked_ns that this call explains",
            "RUNTIME.nameId, start, end",
        ),
    ),
)
