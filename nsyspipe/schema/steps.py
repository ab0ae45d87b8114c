"""Where the time of steps and phases goes."""

from __future__ import annotations

from nsyspipe.schema.columns import RANK, STEP, ns, ratio
from nsyspipe.schema.idle import BETWEEN_STEPS, IDLE_COLUMNS
from nsyspipe.schema.model import FLAG, INT, TEXT, Column, TableSchema

__all__ = ["PHASES", "PHASE_TIMES", "STEPS"]

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
