"""The tables of steps and phases, of why devices idle, of ranks, and of host steps where there is no device activity."""

from __future__ import annotations

from nsyspipe.model.table import FLAG, FLOAT, INT, RANK, STEP, TEXT, Column, TableSchema, ns, ratio

# Why devices idle: the columns that several tables share, and idle time by API call.


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

IDLE_PAUSES = ns(
    "idle_pause_ns",
    "of idle_launch the part in pauses: stretches of 2 ms and more in which the host launched nothing that the device "
    "could have started, while it was in no data phase and in no synchronisation or memory call",
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


_BACKWARD_NULL = "null on a rank without a backward range or without launches"

_GRAD_COPIES = (
    ns(
        "grad_copy_ns",
        "union of DtoD copies launched in runs of at least 8 with nothing between, inside backward ranges "
        "where there are any: gradients copied out of their buckets",
        source="MEMCPY, RUNTIME",
        nullable=True,
    ),
    ns(
        "exposed_grad_copy_ns",
        "of that the part beside neither compute nor comm",
        source="MEMCPY, RUNTIME",
        nullable=True,
    ),
    ns(
        "grad_copy_span_ns",
        "the union of these copies and of the gaps of up to 20 us from the end of one to the start of the next in "
        "the same window",
        source="MEMCPY, RUNTIME",
        nullable=True,
    ),
    Column(
        "grad_copy_bytes",
        INT,
        "bytes",
        "bytes of those that start in the window",
        "MEMCPY",
        nullable=True,
    ),
    Column(
        "n_grad_copies",
        INT,
        "count",
        "number of those that start in the window",
        "MEMCPY",
        nullable=True,
    ),
)

STEPS = TableSchema(
    "steps",
    "One row per (rank, step): where the step's wall time goes. "
    "C, M, P are the unions of the rank's compute, comm and memory operations clipped to the window. "
    "compute + exposed_comm + exposed_memory + idle = wall and exposed_comm + overlap_compute = comm, exactly.",
    ("rank", "start_ns"),
    (
        RANK,
        STEP,
        ns(
            "start_ns",
            "window start, aligned time: start of the step's first compute or comm kernel; on a rank without "
            "launches the step range's own start, without steps the first operation's",
            source="KERNEL.start",
        ),
        ns(
            "end_ns",
            "window end: where the next window starts; the last one ends with its last operation",
            source="KERNEL.start",
        ),
        ns("wall_ns", "end - start", source="derived"),
        ns("compute_ns", "|C|", source="KERNEL, GRAPH_TRACE", nullable=True),
        ns("comm_ns", "|M|", source="KERNEL", nullable=True),
        ns("exposed_comm_ns", "|M \\ C|", source="KERNEL", nullable=True),
        ns("exposed_memory_ns", "|P \\ (C u M)|", source="MEMCPY, MEMSET", nullable=True),
        ns("idle_ns", "wall - |C u M u P|", source="KERNEL, MEMCPY, MEMSET", nullable=True),
        ns("dtod_ns", "|D|, D = the device-to-device copies", source="MEMCPY", nullable=True),
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
        ns("exposed_dtod_ns", "|D \\ (C u M)|", source="MEMCPY", nullable=True),
        ns("overlap_compute_ns", "|M n C|", source="KERNEL", nullable=True),
        ns(
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
        ns(
            "wait_ns",
            "|W|, W = the union of [own start, min(last start, own end)) over the rank's matched collectives; "
            "null in a run of one rank, without a common clock, or where an operation of the step is unmatched",
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "exposed_wait_ns",
            "|W \\ C|: of the waiting the part beside no compute; exposed_comm less it is exposed transfer; null "
            "where wait is",
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "transfer_ns",
            "comm - wait: communication with all ranks there; null where wait is",
            source="KERNEL",
            nullable=True,
        ),
        Column(
            "message_bytes",
            INT,
            "bytes",
            "whole messages of the collectives that belong to the step; null where one is not known",
            "NCCL payload",
            nullable=True,
        ),
        *IDLE_COLUMNS,
        BETWEEN_STEPS,
        IDLE_PAUSES,
        *_GRAD_COPIES,
        ns(
            "comm_delay_ns",
            "how much later operations began beside communication, all together: those that began beside it x (mean gap before a compute kernel "
            "there - mean gap without communication), at least 0; of gaps up to 100 us whose kernel was launched before the gap; "
            "null with fewer than 100 of either kind in the capture",
            source="KERNEL, MEMCPY, MEMSET, RUNTIME",
            nullable=True,
        ),
        ns(
            "overhead_ns",
            "time in the window in which the profiler was at its own work; 0 without the table in a lazy export "
            "of schema 2.9 or newer, else null without it",
            source="PROFILER_OVERHEAD",
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
        ratio("comm_share", "comm / wall"),
        ratio("exposed_comm_share", "exposed_comm / wall"),
        ratio("overlap_ratio", "overlap_compute / comm"),
        ratio("backward_overlap_ratio", "overlap_backward / comm"),
        ratio("idle_share", "idle / wall"),
        ratio("compute_share", "compute / wall"),
        ratio("exposed_memory_share", "exposed_memory / wall"),
        ratio("wait_share", "wait / wall"),
        ratio("transfer_share", "transfer / wall"),
    ),
)

_NO_DEVICE = "null on a rank without launches of kernels, where the step has no window"

PHASES = TableSchema(
    "phases",
    "One row per (rank, step, phase) that has a range. An operation belongs to the phase whose host range holds "
    "its launch, whatever thread launched it.",
    ("rank", "step", "phase"),
    (
        RANK,
        STEP,
        Column("phase", TEXT, "text", "backward, forward, optimizer or data", "NVTX_EVENTS"),
        ns("host_ns", "union of the phase's host ranges in the step", source="NVTX_EVENTS"),
        Column(
            "n_kernels",
            INT,
            "count",
            "compute and comm operations launched in those ranges; null without launches",
            "RUNTIME",
            nullable=True,
        ),
        ns(
            "compute_ns",
            "union of the compute operations that belong to this phase, clipped to the step's window; "
            f"{_NO_DEVICE}, or without names of kernels",
            source="KERNEL, RUNTIME",
            nullable=True,
        ),
        ns(
            "comm_ns",
            "the same of comm operations; null where compute is",
            source="KERNEL, RUNTIME",
            nullable=True,
        ),
        ns(
            "exposed_comm_ns",
            "of that the part beside no compute of any phase; null where compute is",
            source="KERNEL, RUNTIME",
            nullable=True,
        ),
        ns(
            "device_ns",
            "union of all operations that belong to this phase, copies too, clipped to the window; "
            f"{_NO_DEVICE}, or where copies or memsets were not recorded",
            source="KERNEL, MEMCPY, MEMSET, RUNTIME",
            nullable=True,
        ),
        ns(
            "idle_ns",
            "idle time of the step's window in gaps that an operation of this phase ends; null where device is",
            source="KERNEL, MEMCPY, MEMSET, RUNTIME",
            nullable=True,
        ),
    ),
)

PHASE_TIMES = tuple(column.name for column in PHASES.columns if column.unit == "ns")


# The ranks of a run.


RANKS = TableSchema(
    "ranks",
    "One row per rank: a process with device activity.",
    ("rank",),
    (
        RANK,
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
            "where the number comes from: rank_map, env:RANK (or another variable), sidecar, nccl_payload, nvtx_mpi, file_name, order",
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
        ns(
            "clock_shift_ns",
            "added to the report's own times to get aligned time: utcEpochNs - the run's lowest (0 where a "
            "report lacks it) - clock_offset",
            source="TARGET_INFO_SESSION_START_TIME",
        ),
        ns(
            "clock_offset_ns",
            "the report's clock less the others': median over matched all_reduce, all_gather, reduce_scatter, "
            "all_to_all of (own end - median end over ranks), of all its ranks; 0 unless it exceeds the error "
            "and there are at least 3",
            source="KERNEL.end",
        ),
        ns(
            "clock_error_ns",
            "1.4826 x median absolute deviation of the same; a skew below it is not significant; 0 in a run "
            "of one report, null with fewer than 3",
            source="KERNEL.end",
            nullable=True,
        ),
    ),
)


# The steps of a run without device activity, as their host saw them.


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
