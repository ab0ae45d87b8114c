"""The tables a user gets: every column's unit and formula, as ``nsyspipe schema`` prints them."""

from __future__ import annotations

from nsyspipe.schema.model import FLAG, FLOAT, INT, TEXT, Column, TableSchema

__all__ = [
    "DESCRIBED",
    "FIGURES",
    "PHASES",
    "PROBLEMS",
    "RANKS",
    "RANK_SUMMARY",
    "STEPS",
    "SUMMARY",
]

_RANK = Column(
    "rank",
    INT,
    "id",
    "global rank",
    "the first of rank map, environment, NCCL payload, MPI thread name, file name, order that numbers every rank",
)
_STEP = Column(
    "step", INT, "id", "step number, the same on every rank", "NVTX range text, or its ordinal"
)


def _ns(name: str, doc: str, *, source: str = "", nullable: bool = False) -> Column:
    return Column(name, INT, "ns", doc, source, nullable)


def _ratio(name: str, doc: str) -> Column:
    return Column(name, FLOAT, "ratio", doc, "derived", nullable=True)


RANKS = TableSchema(
    "ranks",
    "One row per rank: a process with device activity.",
    ("rank",),
    (
        _RANK,
        Column("local_rank", INT, "id", "captured LOCAL_RANK", "META_DATA_CAPTURE", nullable=True),
        Column("report", TEXT, "text", "report that holds the rank", "file name"),
        Column("pid", INT, "id", "operating system's process id", "globalPid"),
        Column(
            "device_id",
            INT,
            "id",
            "device with most operations (tie: the lowest)",
            "KERNEL.deviceId",
            nullable=True,
        ),
        Column(
            "device_ids",
            TEXT,
            "text",
            "all devices of the process, comma separated",
            "KERNEL.deviceId",
        ),
        Column("gpu_name", TEXT, "text", "model of that device", "TARGET_INFO_GPU", nullable=True),
        Column("host", TEXT, "text", "host name", "TARGET_INFO_SYSTEM_ENV", nullable=True),
        Column(
            "rank_source",
            TEXT,
            "text",
            "where the number comes from: rank_map, env:RANK (or another variable), nccl_payload, nvtx_mpi, file_name, order",
            "derived",
        ),
        Column(
            "n_kernels",
            INT,
            "count",
            "compute and comm operations",
            "KERNEL, GRAPH_TRACE",
            nullable=True,
        ),
        Column("n_comm", INT, "count", "comm operations", "KERNEL names", nullable=True),
        Column(
            "n_dtod", INT, "count", "device-to-device copies", "MEMCPY.copyKind = 8", nullable=True
        ),
        _ns(
            "clock_shift_ns",
            "added to the report's own times to get aligned time: utcEpochNs - the run's lowest; 0 where a report lacks it",
            source="TARGET_INFO_SESSION_START_TIME",
        ),
    ),
)

_BACKWARD_NULL = "null on a rank without a backward range or without launches"

STEPS = TableSchema(
    "steps",
    "One row per (rank, step): where the step's wall time goes. "
    "C, M, P are the unions of the rank's compute, comm and memory operations clipped to the window. "
    "compute + exposed_comm + exposed_memory + idle = wall and exposed_comm + overlap_compute = comm, exactly.",
    ("rank", "start_ns"),
    (
        _RANK,
        _STEP,
        _ns(
            "start_ns",
            "window start, aligned time: start of the step's first compute or comm kernel; on a rank without launches the step range's own start, without steps the first operation's",
            source="KERNEL.start",
        ),
        _ns(
            "end_ns",
            "window end: where the next window starts; the last one ends with its last operation",
            source="KERNEL.start",
        ),
        _ns("wall_ns", "end - start", source="derived"),
        _ns("compute_ns", "|C|", source="KERNEL, GRAPH_TRACE", nullable=True),
        _ns("comm_ns", "|M|", source="KERNEL", nullable=True),
        _ns("exposed_comm_ns", "|M \\ C|", source="KERNEL", nullable=True),
        _ns("exposed_memory_ns", "|P \\ (C u M)|", source="MEMCPY, MEMSET", nullable=True),
        _ns("idle_ns", "wall - |C u M u P|", source="KERNEL, MEMCPY, MEMSET", nullable=True),
        _ns("dtod_ns", "|D|, D = the device-to-device copies", source="MEMCPY", nullable=True),
        Column(
            "dtod_bytes",
            INT,
            "bytes",
            "bytes of DtoD copies that start in the window",
            "MEMCPY",
            nullable=True,
        ),
        Column(
            "n_dtod", INT, "count", "DtoD copies that start in the window", "MEMCPY", nullable=True
        ),
        _ns("exposed_dtod_ns", "|D \\ (C u M)|", source="MEMCPY", nullable=True),
        _ns("overlap_compute_ns", "|M n C|", source="KERNEL", nullable=True),
        _ns(
            "overlap_backward_ns",
            f"|M n B|, B = compute kernels launched inside a backward range, by any thread; {_BACKWARD_NULL}",
            source="KERNEL, RUNTIME, NVTX_EVENTS",
            nullable=True,
        ),
        Column(
            "n_collectives",
            INT,
            "count",
            "comm operations that start in the window",
            "KERNEL",
            nullable=True,
        ),
        Column(
            "is_complete",
            FLAG,
            "flag",
            "neither cut off at the capture's end nor at its start",
            "derived",
        ),
        Column("in_summary", FLAG, "flag", "counts in the run's figures", "derived"),
        _ratio("comm_share", "comm / wall"),
        _ratio("exposed_comm_share", "exposed_comm / wall"),
        _ratio("overlap_ratio", "overlap_compute / comm"),
        _ratio("backward_overlap_ratio", "overlap_backward / comm"),
        _ratio("idle_share", "idle / wall"),
        _ratio("compute_share", "compute / wall"),
        _ratio("exposed_memory_share", "exposed_memory / wall"),
    ),
)

PHASES = TableSchema(
    "phases",
    "One row per (rank, step, phase) that has a range. An operation belongs to the phase whose host range holds "
    "its launch, whatever thread launched it.",
    ("rank", "step", "phase"),
    (
        _RANK,
        _STEP,
        Column("phase", TEXT, "text", "backward, forward, optimizer or data", "NVTX_EVENTS"),
        _ns("host_ns", "union of the phase's host ranges in the step", source="NVTX_EVENTS"),
        Column(
            "n_kernels",
            INT,
            "count",
            "compute and comm operations launched in those ranges; null without launches",
            "RUNTIME",
            nullable=True,
        ),
        _ns(
            "compute_ns",
            "union of the compute operations that belong to this phase, clipped to the step's window; "
            "null without launches, or where the step has no window",
            source="KERNEL, RUNTIME",
            nullable=True,
        ),
        _ns("comm_ns", "the same of comm operations", source="KERNEL, RUNTIME", nullable=True),
    ),
)

_POOLED = "pooled: sum over ranks and summary steps of the numerator / sum of the denominator"

_FIGURES = (
    _ratio("comm_share", f"comm / wall, {_POOLED}"),
    _ratio("exposed_comm_share", "exposed_comm / wall, pooled"),
    _ratio("overlap_ratio", "overlap_compute / comm, pooled"),
    _ratio("backward_overlap_ratio", "overlap_backward / comm, pooled"),
    _ratio("idle_share", "idle / wall, pooled"),
    _ratio("compute_share", "compute / wall, pooled"),
    _ratio("exposed_memory_share", "exposed_memory / wall, pooled"),
    Column(
        "dtod_ns_per_step", FLOAT, "ns", "mean dtod_ns over (rank, step)", "derived", nullable=True
    ),
    Column(
        "dtod_bytes_per_step",
        FLOAT,
        "bytes",
        "mean dtod_bytes over (rank, step)",
        "derived",
        nullable=True,
    ),
    Column(
        "collectives_per_step",
        FLOAT,
        "count",
        "mean n_collectives over (rank, step)",
        "derived",
        nullable=True,
    ),
)

FIGURES = tuple(column.name for column in _FIGURES)

SUMMARY = TableSchema(
    "summary",
    "One row: the run's figures over its summary steps: complete on every rank, less the skipped; if there are none, all that every rank has.",
    (),
    (
        Column("n_steps", INT, "count", "steps with a window on some rank", "derived"),
        Column("n_summary_steps", INT, "count", "steps the figures rest on", "derived"),
        Column(
            "step_time_ns",
            FLOAT,
            "ns",
            "per summary step the largest window over ranks; the median of those",
            "derived",
            nullable=True,
        ),
        Column(
            "throughput_steps_per_s",
            FLOAT,
            "1/s",
            "1e9 / mean of the same",
            "derived",
            nullable=True,
        ),
        *_FIGURES,
    ),
)

RANK_SUMMARY = TableSchema(
    "rank_summary",
    "One row per rank: the same figures over the rank's summary steps.",
    ("rank",),
    (
        _RANK,
        Column(
            "step_time_ns", FLOAT, "ns", "median of the rank's windows", "derived", nullable=True
        ),
        *_FIGURES,
    ),
)

PROBLEMS = TableSchema(
    "problems",
    "One row per thing that could not be read or answered, what it costs, and what would bring it back.",
    (),
    (
        Column("code", TEXT, "text", "stable identifier", ""),
        Column("severity", TEXT, "text", "error, warning or info", ""),
        Column("report", TEXT, "text", "the report concerned", "", nullable=True),
        Column("rank", INT, "id", "the rank concerned", "", nullable=True),
        Column("message", TEXT, "text", "what is missing and which answer it costs", ""),
        Column("fix", TEXT, "text", "the flag or option that mends it", "", nullable=True),
    ),
)

DESCRIBED: dict[str, TableSchema] = {
    schema.name: schema for schema in (RANKS, STEPS, PHASES, SUMMARY, RANK_SUMMARY, PROBLEMS)
}
