"""The tables of collectives and stragglers, links, kernels by name, single operations, and the step that can be drawn."""

from __future__ import annotations

from nsyspipe.model.table import (
    FLAG,
    FLOAT,
    INT,
    RANK,
    STEP,
    TEXT,
    Column,
    TableSchema,
    count,
    ns,
    ratio,
)

# Collectives across ranks, and who the others wait for.


_UNMATCHED = (
    "null where the operation is not matched, in a run of one rank, or without a common clock"
)

COLLECTIVES = TableSchema(
    "collectives",
    "One row per communication operation that belongs to a step: a collective on one rank. The k-th operation of "
    "a communicator in a step is the same collective on all its ranks.",
    ("step", "seq", "rank"),
    (
        STEP,
        count(
            "seq", "place in the step, by first start; the same on all ranks if matched", "derived"
        ),
        RANK,
        Column(
            "collective",
            TEXT,
            "text",
            "all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send_recv, other",
            "KERNEL names",
        ),
        Column("datatype", TEXT, "text", "element type, as f32", "KERNEL names", nullable=True),
        Column("algorithm", TEXT, "text", "as RING_LL", "KERNEL names", nullable=True),
        Column(
            "comm_id",
            TEXT,
            "text",
            "communicator: NCCL's hash, else collective/order of first use of its (device, stream)",
            "NCCL payload, KERNEL.streamId",
        ),
        ns("start_ns", "own start, aligned time", source="KERNEL.start"),
        ns("end_ns", "own end, aligned time", source="KERNEL.end"),
        Column("is_matched", FLAG, "flag", "has its counterparts on the other ranks", "derived"),
        Column("in_summary", FLAG, "flag", "its step counts in the run's figures", "derived"),
        count("n_ranks", f"ranks matched; {_UNMATCHED}", "derived", nullable=True),
        ns("arrival_skew_ns", f"last start - first start; {_UNMATCHED}", nullable=True),
        ns("wait_ns", f"last start - own start; {_UNMATCHED}", nullable=True),
        ns("transfer_ns", f"own end - last start, at least 0; {_UNMATCHED}", nullable=True),
        ns(
            "late_by_ns",
            f"of the rank that arrived last: last start - second-last start; 0 of the others; {_UNMATCHED}",
            nullable=True,
        ),
        ns(
            "held_up_ns",
            "of the rank that arrived last (of several the lowest): the longest that another waited, the largest "
            "min(last start, own end) - own start; 0 of the others, and where the skew is not significant; "
            f"{_UNMATCHED}",
            nullable=True,
        ),
        Column(
            "is_significant",
            FLAG,
            "flag",
            "arrival_skew exceeds the larger clock error of the first and the last rank, never where an error is not "
            f"known; {_UNMATCHED}",
            "derived",
            nullable=True,
        ),
        Column(
            "is_late_significant",
            FLAG,
            "flag",
            f"late_by exceeds the larger clock error of the last and the second-last rank, likewise; {_UNMATCHED}",
            "derived",
            nullable=True,
        ),
        Column(
            "message_bytes",
            INT,
            "bytes",
            "the whole array, as nccl-tests counts: for all_gather, reduce_scatter and all_to_all NCCL's "
            "figure x ranks of the communicator",
            "NCCL payload",
            nullable=True,
        ),
        Column(
            "bus_bytes",
            FLOAT,
            "bytes",
            "message_bytes x 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter, all_to_all, else 1",
            "NCCL payload",
            nullable=True,
        ),
        Column(
            "algbw_bytes_per_s",
            FLOAT,
            "bytes/s",
            "message_bytes / transfer",
            "derived",
            nullable=True,
        ),
        Column(
            "busbw_bytes_per_s", FLOAT, "bytes/s", "bus_bytes / transfer", "derived", nullable=True
        ),
    ),
)

_OVER = "over matched collectives of summary steps; null when none could be matched, and in a run of one rank"

STRAGGLERS = TableSchema(
    "stragglers",
    "One row per rank: how the others waited for it.",
    ("rank",),
    (
        RANK,
        count(
            "n_arrived_last",
            f"collectives in which it arrived last, alone, {_OVER}",
            "KERNEL.start",
            nullable=True,
        ),
        ns("wait_caused_ns", f"sum of late_by {_OVER}", source="KERNEL.start", nullable=True),
        ns(
            "lateness_ns",
            f"sum over steps of the step's largest late_by, for the rank that was last there, {_OVER}",
            source="KERNEL.start",
            nullable=True,
        ),
        ns(
            "held_up_ns",
            "sum of held_up of the collectives in which it arrived last, alone, send_recv apart, at most the step's "
            f"time in each step, {_OVER}",
            source="KERNEL.start",
            nullable=True,
        ),
        ns(
            "wait_ns",
            "sum of wait_ns of its summary steps; null where one of them is, and without summary steps",
            source="KERNEL.start",
            nullable=True,
        ),
    ),
)


# The table of what connects the ranks.


# From the fastest to the slowest; what is not known stands last.
LINK_KINDS = ("nvlink", "p2p", "p2p_pcie", "shm", "net", "unknown")

LINKS = TableSchema(
    "links",
    "One row per directed edge of the rings of the largest communicator; without an NCCL log one per pair of GPUs.",
    ("from_rank", "to_rank"),
    (
        Column(
            "comm_id",
            TEXT,
            "id",
            "communicator; null without an NCCL log: the row is a pair, not an edge",
            "NCCL log",
            nullable=True,
        ),
        Column("from_rank", INT, "id", "sender's rank in the communicator", "NCCL log"),
        Column("to_rank", INT, "id", "receiver's rank in the communicator", "NCCL log"),
        Column(
            "transport",
            TEXT,
            "text",
            "what NCCL set up, in its words; null when no line says so",
            "NCCL log",
            nullable=True,
        ),
        Column(
            "n_channels",
            INT,
            "count",
            "channels of collectives on this edge; null when no line of this communicator says so",
            "NCCL log",
            nullable=True,
        ),
        Column(
            "path",
            TEXT,
            "text",
            "what lies between the two GPUs: NV#, PIX, PXB, PHB, NODE, SYS; null across hosts",
            "nvidia-smi topo -m",
            nullable=True,
        ),
        Column(
            "kind",
            TEXT,
            "text",
            "nvlink, p2p_pcie, p2p (direct, the topology does not say over what), shm (host memory), net, unknown;"
            " of several transports the slowest",
            "transport and path",
        ),
        Column(
            "nominal_bytes_per_s",
            FLOAT,
            "bytes/s",
            "what the data sheet promises per direction; of path when the transport is not known; null for"
            " networks and unknown models",
            "GPU model, transport and path",
            nullable=True,
        ),
        Column(
            "nominal_source",
            TEXT,
            "text",
            "what that figure is: generation, number of links, GPU model",
            "data sheet",
            nullable=True,
        ),
    ),
)


# Kernels by phase and name.


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
