"""Canonical tables between `reader` and the analysis: what a report and NCCL's payloads hold, whatever nsys calls it."""

from __future__ import annotations

import pyarrow as pa

from nsyspipe.model.table import FLAG, INT, TEXT, Column, TableSchema

# Values of COPIES.copy_kind that the analysis asks for.
MEMSET_KIND, DTOD_KIND = 0, 8
# Unified memory moves by itself: no call launches these.
UNIFIED_KINDS = (11, 12, 13, 14)
# KERNELS.name_id of a CUDA graph captured as a whole.
GRAPH_NAME_ID = -1

KERNELS = TableSchema(
    "kernels_of_report",
    "One row per kernel, or per CUDA graph captured as a whole.",
    (),
    (
        Column("process_id", INT, "id", "process that launched it", "KERNEL.globalPid"),
        Column("start_ns", INT, "ns", "device start, report time", "KERNEL.start"),
        Column("end_ns", INT, "ns", "device end, report time", "KERNEL.end"),
        Column(
            "device_id",
            INT,
            "id",
            "CUDA ordinal inside the process",
            "KERNEL.deviceId",
            nullable=True,
        ),
        Column(
            "correlation_id", INT, "id", "joins the launch", "KERNEL.correlationId", nullable=True
        ),
        Column(
            "stream_id", INT, "id", "stream inside its context", "KERNEL.streamId", nullable=True
        ),
        Column(
            "name_id",
            INT,
            "id",
            "its name in the report's strings; -1 for a graph",
            "KERNEL.demangledName, else shortName",
            nullable=True,
        ),
        Column(
            "grid",
            INT,
            "id",
            "gridX | gridY << 32 | gridZ << 48; null outside of the sample of large reports",
            "KERNEL.gridX, gridY, gridZ",
            nullable=True,
        ),
        Column(
            "block",
            INT,
            "id",
            "blockX | blockY << 11 | blockZ << 22; null where the grid is",
            "KERNEL.blockX, blockY, blockZ",
            nullable=True,
        ),
        Column(
            "is_comm", FLAG, "flag", "a communication kernel", "KERNEL.shortName, demangledName"
        ),
    ),
)

COPIES = TableSchema(
    "copies_of_report",
    "One row per memcpy or memset.",
    (),
    (
        Column("process_id", INT, "id", "process that launched it", "MEMCPY.globalPid"),
        Column("start_ns", INT, "ns", "device start, report time", "MEMCPY.start"),
        Column("end_ns", INT, "ns", "device end, report time", "MEMCPY.end"),
        Column(
            "device_id",
            INT,
            "id",
            "CUDA ordinal inside the process",
            "MEMCPY.deviceId",
            nullable=True,
        ),
        Column(
            "correlation_id", INT, "id", "joins the launch", "MEMCPY.correlationId", nullable=True
        ),
        Column(
            "copy_kind",
            INT,
            "enum",
            "CUPTI's: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 0 for a memset",
            "MEMCPY.copyKind",
            nullable=True,
        ),
        Column("bytes", INT, "bytes", "bytes moved or set", "MEMCPY.bytes", nullable=True),
    ),
)

LAUNCHES = TableSchema(
    "launches_of_report",
    "One row per CUDA API call.",
    (),
    (
        Column("process_id", INT, "id", "process of the calling thread", "RUNTIME.globalTid"),
        Column("start_ns", INT, "ns", "host start of the call", "RUNTIME.start"),
        Column("correlation_id", INT, "id", "joins the operation", "RUNTIME.correlationId"),
    ),
)

RANGES = TableSchema(
    "ranges_of_report",
    "One row per NVTX push/pop or start/end range of any domain but NCCL's and MPI's.",
    (),
    (
        Column("process_id", INT, "id", "process of the thread", "NVTX_EVENTS.globalTid"),
        Column("thread_id", INT, "id", "thread that opened it", "NVTX_EVENTS.globalTid"),
        Column("start_ns", INT, "ns", "host start", "NVTX_EVENTS.start"),
        Column(
            "end_ns",
            INT,
            "ns",
            "host end; an unclosed range ends 1 ns after the last event",
            "NVTX_EVENTS.end",
        ),
        Column(
            "text",
            pa.dictionary(pa.int32(), TEXT),
            "text",
            "the range's text",
            "NVTX_EVENTS.text, textId",
        ),
        Column(
            "is_library",
            FLAG,
            "flag",
            "whether its domain is a library's own: such a range is no phase, and a step only by --step",
            "NVTX_EVENTS.domainId",
        ),
    ),
)

HOST_CALLS = TableSchema(
    "host_calls_of_report",
    "One row per CUDA API call: when which thread was in it.",
    (),
    (
        Column("process_id", INT, "id", "process of the calling thread", "RUNTIME.globalTid"),
        Column("thread_id", INT, "id", "calling thread", "RUNTIME.globalTid"),
        Column("start_ns", INT, "ns", "host start of the call", "RUNTIME.start"),
        Column("end_ns", INT, "ns", "host end; its start where it has none", "RUNTIME.end"),
    ),
)

HOST_WAITS = TableSchema(
    "host_waits_of_report",
    "One row per CUDA API call that returned only when something had ended on a device.",
    (),
    (
        Column("process_id", INT, "id", "process of the calling thread", "RUNTIME.globalTid"),
        Column("thread_id", INT, "id", "calling thread", "RUNTIME.globalTid"),
        Column("start_ns", INT, "ns", "host start of the call", "RUNTIME.start"),
        Column("end_ns", INT, "ns", "host end of the call", "RUNTIME.end"),
        Column(
            "device_id",
            INT,
            "id",
            "device that it waited for",
            "SYNCHRONIZATION, MEMCPY.deviceId",
            nullable=True,
        ),
        Column(
            "stream_id",
            INT,
            "id",
            "stream that it waited for; null where it is not known",
            "SYNCHRONIZATION.streamId",
            nullable=True,
        ),
        Column("is_whole", FLAG, "flag", "it waited for all streams", "RUNTIME.nameId"),
        Column(
            "copy_end_ns",
            INT,
            "ns",
            "device end of the copy that the call made, and waited for; null for others",
            "MEMCPY.end",
            nullable=True,
        ),
    ),
)

BLOCKING_CALLS = TableSchema(
    "blocking_calls_of_report",
    "One row per CUDA API call that synchronises, or allocates, frees or copies memory synchronously.",
    (),
    (
        Column("process_id", INT, "id", "process of the calling thread", "RUNTIME.globalTid"),
        Column("start_ns", INT, "ns", "host start of the call", "RUNTIME.start"),
        Column("end_ns", INT, "ns", "host end of the call", "RUNTIME.end"),
        Column("call", TEXT, "text", "name of the API, without its version", "RUNTIME.nameId"),
    ),
)

COMM_OPERATIONS = TableSchema(
    "comm_operations",
    "One row per communication operation of one process that belongs to a step or to none, in order of start.",
    ("start_ns",),
    (
        Column("start_ns", INT, "ns", "device start, report time", "KERNEL.start"),
        Column("end_ns", INT, "ns", "device end, report time", "KERNEL.end"),
        Column("member", INT, "id", "index of its step range; -1 for none", "RUNTIME, NVTX_EVENTS"),
        Column("kind", INT, "id", "index into the process's kinds of comm kernel", "KERNEL names"),
        Column(
            "stream_order",
            INT,
            "id",
            "how many other (device, stream) the process launched that collective on before",
            "KERNEL.deviceId, streamId",
        ),
        Column("comm_id", INT, "id", "NCCL's communicator", "NCCL payload", nullable=True),
        Column(
            "seq_number", INT, "count", "place in the communicator", "NCCL payload", nullable=True
        ),
        Column(
            "message_bytes",
            INT,
            "bytes",
            "as NCCL reports it: the per-rank part of all_gather, reduce_scatter, all_to_all",
            "NCCL payload",
            nullable=True,
        ),
        Column(
            "called",
            INT,
            "id",
            "the collective that was called, which ran as sends and receives: index into `names.COLLECTIVES`",
            "NCCL payload",
            nullable=True,
        ),
    ),
)


# Canonical tables of what NCCL itself reported of its calls, in the payloads of its NVTX ranges.


PAYLOADS = TableSchema(
    "payloads_of_report",
    "One row per NCCL call whose payload can be decoded, in order of process, start and thread.",
    ("process_id", "start_ns", "thread_id"),
    (
        Column("process_id", INT, "id", "process of the thread", "NVTX_EVENTS.globalTid"),
        Column("thread_id", INT, "id", "calling thread", "NVTX_EVENTS.globalTid"),
        Column("start_ns", INT, "ns", "host start of the call, report time", "NVTX_EVENTS.start"),
        Column(
            "end_ns",
            INT,
            "ns",
            "host end of the call, report time; null when it never ended",
            "NVTX_EVENTS.end",
            nullable=True,
        ),
        Column(
            "call",
            pa.dictionary(pa.int32(), TEXT),
            "text",
            "NCCL's function, such as ncclAllReduce; null without a text",
            "NVTX_EVENTS.text, textId",
            nullable=True,
        ),
        Column(
            "comm_id",
            INT,
            "id",
            "communicator, the same on all its ranks: 64 bits read as a signed number; null for NCCL's 0 (none yet)",
            "payload: NCCL communicator ID, commHash",
            nullable=True,
        ),
        Column(
            "seq",
            INT,
            "count",
            "NCCL's own number of the call in its communicator",
            "payload: seqNumber",
            nullable=True,
        ),
        Column(
            "message_bytes",
            INT,
            "bytes",
            "as NCCL reports it: the per-rank part of all_gather, reduce_scatter, all_to_all",
            "payload: Message size [bytes], else count x size of dataType",
            nullable=True,
        ),
        Column(
            "n_ranks",
            INT,
            "count",
            "size of the communicator",
            "payload: No. of ranks",
            nullable=True,
        ),
        Column("rank", INT, "id", "rank in the communicator", "payload: Rank", nullable=True),
    ),
)

COMM_SIZES = TableSchema(
    "comm_sizes_of_report",
    "One row per process and communicator whose size NCCL reported without contradiction.",
    ("process_id", "comm_id"),
    (
        Column("process_id", INT, "id", "process of the thread", "NVTX_EVENTS.globalTid"),
        Column("comm_id", INT, "id", "communicator, as in payloads_of_report", "payload"),
        Column("n_ranks", INT, "count", "size of the communicator", "payload: No. of ranks"),
    ),
)
