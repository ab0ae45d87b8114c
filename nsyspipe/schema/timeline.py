"""Operations one by one, and one step of them reduced to what can be drawn."""

from __future__ import annotations

from nsyspipe.schema.columns import RANK, count, ns
from nsyspipe.schema.model import INT, TEXT, Column, TableSchema

__all__ = ["EVENTS", "LANES", "PHASE_RANGES", "TIMELINE"]

# Lanes of a rank in a timeline, from top to bottom.
LANES = ("phase", "compute", "comm", "exposed", "wait", "memory")

_STEP = Column(
    "step",
    INT,
    "id",
    "step it belongs to, maybe not the one in whose window it runs; null for none",
    "RUNTIME, NVTX_EVENTS",
    nullable=True,
)
_PHASE = Column(
    "phase",
    TEXT,
    "text",
    "phase whose host range holds its launch; null outside of all",
    "RUNTIME, NVTX_EVENTS",
    nullable=True,
)

EVENTS = TableSchema(
    "events",
    "One row per device operation: kernel, copy or memset.",
    ("rank", "start_ns"),
    (
        RANK,
        _STEP,
        _PHASE,
        Column(
            "category",
            TEXT,
            "text",
            "compute (CUDA graphs too), comm or memory",
            "KERNEL names, MEMCPY, MEMSET, GRAPH_TRACE",
        ),
        Column(
            "name",
            TEXT,
            "text",
            "as in `kernels`; memcpy HtoD, DtoH, DtoD, ... (memcpy: of a kind that is not known) or memset",
            "KERNEL.demangledName, else shortName; MEMCPY.copyKind",
        ),
        Column(
            "device_id",
            INT,
            "id",
            "CUDA ordinal inside the process",
            "KERNEL.deviceId",
            nullable=True,
        ),
        Column(
            "stream_id", INT, "id", "stream inside its context", "KERNEL.streamId", nullable=True
        ),
        ns("start_ns", "device start, aligned time", source="KERNEL.start"),
        ns("end_ns", "device end, aligned time", source="KERNEL.end"),
        ns("dur_ns", "end - start", source="derived"),
        ns(
            "launch_ns",
            "start of the API call that launched it, aligned time",
            source="RUNTIME.start",
            nullable=True,
        ),
        Column(
            "correlation_id",
            INT,
            "id",
            "joins the API call, inside the process",
            "KERNEL.correlationId",
            nullable=True,
        ),
        Column(
            "bytes", INT, "bytes", "moved or set; null of kernels", "MEMCPY.bytes", nullable=True
        ),
        Column(
            "collective",
            TEXT,
            "text",
            "of communication: all_reduce, ...; null otherwise",
            "KERNEL names",
            nullable=True,
        ),
        Column(
            "seq",
            INT,
            "count",
            "of communication that belongs to a step: its row of `collectives`",
            "derived",
            nullable=True,
        ),
    ),
)

PHASE_RANGES = TableSchema(
    "phase_ranges",
    "One row per host range of a phase, and one per step range (phase null): when the host was in it, and when the "
    "device ran what was launched in it.",
    ("rank", "start_ns", "phase"),
    (
        RANK,
        Column("step", INT, "id", "step number", "NVTX_EVENTS"),
        Column(
            "phase",
            TEXT,
            "text",
            "backward, forward, optimizer or data; null of the step itself",
            "NVTX_EVENTS",
            nullable=True,
        ),
        ns("start_ns", "host start, aligned time", source="NVTX_EVENTS.start"),
        ns("end_ns", "host end, aligned time", source="NVTX_EVENTS.end"),
        count(
            "n_operations",
            "device operations launched inside, by any thread; null where the process has no launches",
            "RUNTIME",
            nullable=True,
        ),
        ns(
            "device_start_ns",
            "first start of those, aligned time; null without any",
            source="KERNEL.start, MEMCPY.start",
            nullable=True,
        ),
        ns(
            "device_end_ns",
            "last end of those, aligned time; null without any",
            source="KERNEL.end, MEMCPY.end",
            nullable=True,
        ),
    ),
)

_ONE_OPERATION = "null of a bar of several operations, and of other lanes"

TIMELINE = TableSchema(
    "timeline",
    "One row per bar of the representative step: the step of the figures whose step time is closest to the median. "
    "Operations that overlap are one bar, but of communication each time belongs to the operation that began first; "
    "bars of phases may overlap. Neighbouring ones of a lane are joined, those with the smallest gaps first, until few "
    "enough are left.",
    ("rank", "lane", "start_ns"),
    (
        Column("step", INT, "id", "the step drawn, the same on every row", "derived"),
        RANK,
        Column(
            "lane",
            TEXT,
            "text",
            "phase (from the first start to the last end of what was launched in a range of it), compute, comm, "
            "exposed (of comm, where no compute runs), wait (of matched comm, for the last rank) or memory",
            "derived",
        ),
        ns("start_ns", "start, aligned time, clipped to the rank's window", source="derived"),
        ns("end_ns", "end, aligned time, clipped to the rank's window", source="derived"),
        ns(
            "busy_ns",
            "of that the union of its operations; less than end - start where gaps were joined",
        ),
        ns(
            "exposed_ns",
            "of comm: the part of busy beside no compute; null of other lanes",
            nullable=True,
        ),
        ns(
            "wait_ns",
            "of comm: the part of busy spent waiting for the last rank; null of other lanes, and where wait_ns of the "
            "step is",
            nullable=True,
        ),
        count(
            "n_operations",
            "operations in the bar that have a part in the window; of a phase those launched in it, of exposed the "
            "parts that compute leaves of them",
            "KERNEL, MEMCPY, MEMSET",
        ),
        Column(
            "name",
            TEXT,
            "text",
            "of the bar's operations with most time in the window, each for itself; the phase's or collective's",
            "derived",
            nullable=True,
        ),
        Column(
            "seq",
            INT,
            "count",
            f"of comm, exposed and wait: its row of `collectives`; {_ONE_OPERATION}",
            "derived",
            nullable=True,
        ),
    ),
)
