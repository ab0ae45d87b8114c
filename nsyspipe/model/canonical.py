"""Canonical tables between `reader` and `analysis`: what a report holds, whatever nsys calls it."""

from nsyspipe.model.columns import count, enum_number, flag, identifier, n_bytes, ns, text
from nsyspipe.model.table import WORD, TableSchema

# Values of COPIES.copy_kind that the analysis asks for. PEER_KIND is a copy to another GPU.
MEMSET_KIND = 0
DTOD_KIND = 8
PEER_KIND = 10
# Unified memory moves by itself: no call launches copies of these kinds.
UNIFIED_KINDS = (11, 12, 13, 14)

# KERNELS.name_id of a CUDA graph that was captured as a whole.
GRAPH_NAME_ID = -1
# KERNELS.name_id is this or lower if the name is not one of the strings of the report.
LARGEST_MADE_NAME_ID = -2

KERNELS = TableSchema(
    name="kernels_of_report",
    doc="One row per kernel, or per CUDA graph captured as a whole.",
    key=(),
    columns=(
        identifier("process_id", "process that launched it", source="KERNEL.globalPid"),
        ns("start_ns", "device start, report time", source="KERNEL.start"),
        ns("end_ns", "device end, report time", source="KERNEL.end"),
        identifier(
            "device_id", "CUDA ordinal inside the process", source="KERNEL.deviceId", nullable=True
        ),
        identifier(
            "correlation_id", "joins the launch", source="KERNEL.correlationId", nullable=True
        ),
        identifier(
            "stream_id", "stream inside its context", source="KERNEL.streamId", nullable=True
        ),
        identifier(
            "name_id",
            "its name in the report's strings; -1 for a graph, lower where `CALLED` says it",
            source="KERNEL.demangledName, else shortName",
            nullable=True,
        ),
        identifier(
            "grid",
            "gridX | gridY << 32 | gridZ << 48; null outside of the sample of large reports",
            source="KERNEL.gridX, gridY, gridZ",
            nullable=True,
        ),
        identifier(
            "block",
            "blockX | blockY << 11 | blockZ << 22; null where the grid is",
            source="KERNEL.blockX, blockY, blockZ",
            nullable=True,
        ),
        flag("is_comm", "a communication kernel", source="KERNEL.shortName, demangledName"),
    ),
)

COPIES = TableSchema(
    name="copies_of_report",
    doc="One row per memcpy or memset.",
    key=(),
    columns=(
        identifier("process_id", "process that launched it", source="MEMCPY.globalPid"),
        ns("start_ns", "device start, report time", source="MEMCPY.start"),
        ns("end_ns", "device end, report time", source="MEMCPY.end"),
        identifier(
            "device_id", "CUDA ordinal inside the process", source="MEMCPY.deviceId", nullable=True
        ),
        identifier(
            "correlation_id", "joins the launch", source="MEMCPY.correlationId", nullable=True
        ),
        enum_number(
            "copy_kind",
            "CUPTI's: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 0 for a memset",
            source="MEMCPY.copyKind",
            nullable=True,
        ),
        n_bytes("bytes", "bytes moved or set", source="MEMCPY.bytes", nullable=True),
    ),
)

LAUNCHES = TableSchema(
    name="launches_of_report",
    doc="One row per CUDA API call.",
    key=(),
    columns=(
        identifier("process_id", "process of the calling thread", source="RUNTIME.globalTid"),
        ns("start_ns", "host start of the call", source="RUNTIME.start"),
        identifier("correlation_id", "joins the operation", source="RUNTIME.correlationId"),
    ),
)

RANGES = TableSchema(
    name="ranges_of_report",
    doc="One row per NVTX push/pop or start/end range of any domain but NCCL's and MPI's.",
    key=(),
    columns=(
        identifier("process_id", "process of the thread", source="NVTX_EVENTS.globalTid"),
        identifier("thread_id", "thread that opened it", source="NVTX_EVENTS.globalTid"),
        ns("start_ns", "host start", source="NVTX_EVENTS.start"),
        ns(
            "end_ns",
            "host end; an unclosed range ends 1 ns after the last event",
            source="NVTX_EVENTS.end",
        ),
        text("text", "the range's text", arrow_type=WORD, source="NVTX_EVENTS.text, textId"),
        flag(
            "is_library",
            "whether its domain is a library's own: such a range is no phase, and a step only by "
            "--step",
            source="NVTX_EVENTS.domainId",
        ),
    ),
)

COMM_CALLS = TableSchema(
    name="comm_calls_of_report",
    doc=(
        "One row per range of a call of NCCL, or of a collective of symmetric memory, that "
        "`comm_kernels.comm_call_of` knows."
    ),
    key=(),
    columns=(
        identifier("process_id", "process of the thread", source="NVTX_EVENTS.globalTid"),
        identifier("thread_id", "calling thread", source="NVTX_EVENTS.globalTid"),
        ns("start_ns", "host start", source="NVTX_EVENTS.start"),
        ns("end_ns", "host end", source="NVTX_EVENTS.end"),
        text("text", "the range's text", arrow_type=WORD, source="NVTX_EVENTS.text, textId"),
    ),
)

CALLED = TableSchema(
    name="called_of_report",
    doc=(
        "One row per API call that launched copies, or a kernel whose name says no collective, "
        "inside such a range; in order of launch."
    ),
    key=(),
    columns=(
        identifier("process_id", "process of the calling thread", source="RUNTIME.globalTid"),
        identifier("correlation_id", "joins what it launched", source="RUNTIME.correlationId"),
        identifier("call", "a number for each range"),
        flag("is_copy", "what it launched are copies"),
        identifier(
            "stream_id",
            "stream of the copies; null of kernels",
            source="MEMCPY.streamId",
            nullable=True,
        ),
        identifier(
            "name_id",
            "what the collective of these copies, or the kernel, is called: "
            "`LARGEST_MADE_NAME_ID` or lower",
            source="NVTX_EVENTS.text",
        ),
    ),
)

HOST_CALLS = TableSchema(
    name="host_calls_of_report",
    doc="One row per CUDA API call: what it launched, and when which thread was in it.",
    key=(),
    columns=(
        identifier("process_id", "process of the calling thread", source="RUNTIME.globalTid"),
        identifier("thread_id", "calling thread", source="RUNTIME.globalTid"),
        ns("start_ns", "host start of the call", source="RUNTIME.start"),
        ns("end_ns", "host end; its start where it has none", source="RUNTIME.end"),
        identifier("correlation_id", "joins the operation", source="RUNTIME.correlationId"),
    ),
)

HOST_WAITS = TableSchema(
    name="host_waits_of_report",
    doc="One row per CUDA API call that returned only when something had ended on a device.",
    key=(),
    columns=(
        identifier("process_id", "process of the calling thread", source="RUNTIME.globalTid"),
        identifier("thread_id", "calling thread", source="RUNTIME.globalTid"),
        ns("start_ns", "host start of the call", source="RUNTIME.start"),
        ns("end_ns", "host end of the call", source="RUNTIME.end"),
        identifier(
            "device_id",
            "device that it waited for",
            source="SYNCHRONIZATION, MEMCPY.deviceId",
            nullable=True,
        ),
        identifier(
            "stream_id",
            "stream that it waited for; null where it is not known",
            source="SYNCHRONIZATION.streamId",
            nullable=True,
        ),
        flag("is_whole", "it waited for all streams", source="RUNTIME.nameId"),
        ns(
            "copy_end_ns",
            "device end of the copy that the call made, and waited for; null for others",
            source="MEMCPY.end",
            nullable=True,
        ),
    ),
)

BLOCKING_CALLS = TableSchema(
    name="blocking_calls_of_report",
    doc=(
        "One row per CUDA API call that synchronises, or allocates, frees or copies memory "
        "synchronously. A copy from or to pageable memory counts too, whatever the name of its "
        "call."
    ),
    key=(),
    columns=(
        identifier("process_id", "process of the calling thread", source="RUNTIME.globalTid"),
        ns("start_ns", "host start of the call", source="RUNTIME.start"),
        ns("end_ns", "host end of the call", source="RUNTIME.end"),
        text("call", "name of the API, without its version", source="RUNTIME.nameId"),
        flag(
            "is_of_copy",
            "made a copy of `BLOCKING_COPIES`, or waited for one as the next call of its thread",
            source="RUNTIME, MEMCPY",
        ),
        flag(
            "is_of_memory",
            "allocates, frees or maps memory of a GPU, as in `MEMORY_CALLS`",
            source="RUNTIME.nameId",
        ),
    ),
)

MEMORY_CALLS = TableSchema(
    name="memory_calls_of_report",
    doc=(
        "One row per CUDA API call that allocates, frees or maps memory of a GPU, in order of "
        "start. Calls that take memory from a pool of CUDA, or memory of the host, are left out."
    ),
    key=("start_ns",),
    columns=(
        identifier("process_id", "process of the calling thread", source="RUNTIME.globalTid"),
        ns("start_ns", "host start of the call", source="RUNTIME.start"),
        ns("end_ns", "host end of the call", source="RUNTIME.end"),
        flag("is_alloc", "allocates memory", source="RUNTIME.nameId"),
        flag("is_free", "frees memory", source="RUNTIME.nameId"),
        flag(
            "is_failed",
            "returned an error; null where that is not known",
            source="RUNTIME.returnValue",
            nullable=True,
        ),
        n_bytes(
            "bytes",
            "bytes that it allocated or freed",
            source="CUDA_GPU_MEMORY_USAGE_EVENTS.bytes",
            nullable=True,
        ),
    ),
)

BLOCKING_COPIES = TableSchema(
    name="blocking_copies_of_report",
    doc=(
        "One row per copy from the host that may block it: out of pageable memory, by a call "
        "without Async in its name, or with a call that synchronises as the next call of the same "
        "thread."
    ),
    key=(),
    columns=(
        identifier("process_id", "process that launched it", source="MEMCPY.globalPid"),
        ns("start_ns", "device start, report time", source="MEMCPY.start"),
        ns("end_ns", "device end, report time", source="MEMCPY.end"),
        ns("launch_ns", "host start of its call", source="RUNTIME.start"),
        identifier("device_id", "CUDA device", source="MEMCPY.deviceId", nullable=True),
        n_bytes("bytes", "bytes copied", source="MEMCPY.bytes", nullable=True),
        flag(
            "is_pageable",
            "out of pageable memory; null where that is not known",
            source="MEMCPY.srcKind",
            nullable=True,
        ),
    ),
)

COMM_OPERATIONS = TableSchema(
    name="comm_operations",
    doc=(
        "One row per communication operation of one process that belongs to a step or to none, in "
        "order of start."
    ),
    key=("start_ns",),
    columns=(
        ns("start_ns", "device start, report time", source="KERNEL.start"),
        ns("end_ns", "device end, report time", source="KERNEL.end"),
        identifier("member", "index of its step range; -1 for none", source="RUNTIME, NVTX_EVENTS"),
        identifier("kind", "index into the process's kinds of comm kernel", source="KERNEL names"),
        identifier(
            "stream_order",
            "how many other (device, stream) the process launched that collective on before",
            source="KERNEL.deviceId, streamId",
        ),
        identifier("comm_id", "NCCL's communicator", source="NCCL payload", nullable=True),
        count("seq_number", "place in the communicator", source="NCCL payload", nullable=True),
        identifier(
            "operation_id",
            "number of the operation, the same on all its ranks",
            source="NCCL payload",
            nullable=True,
        ),
        n_bytes(
            "message_bytes",
            "as NCCL reports it: the per-rank part of all_gather, reduce_scatter, all_to_all",
            source="NCCL payload",
            nullable=True,
        ),
        count(
            "n_calls",
            "calls of NCCL that ran as this operation; null without payload",
            source="NCCL payload",
            nullable=True,
        ),
        identifier(
            "called",
            "the collective that was called, which ran as sends and receives: index into "
            "`names.COLLECTIVES`",
            source="NCCL payload",
            nullable=True,
        ),
        identifier(
            "launched_in",
            "the pass of its step that launched it: 0 forward, 1 backward, 2 behind all backward "
            "ranges; null in a step without one",
            source="RUNTIME, NVTX_EVENTS",
            nullable=True,
        ),
        identifier(
            "micro_batch",
            "which backward pass of its step launched it, from 0; null where none did",
            source="RUNTIME, NVTX_EVENTS",
            nullable=True,
        ),
        count(
            "n_before",
            "compute kernels that its step launched before it; null without launch or step range",
            source="RUNTIME, NVTX_EVENTS",
            nullable=True,
        ),
    ),
)

PAYLOADS = TableSchema(
    name="payloads_of_report",
    doc=(
        "One row per NCCL call whose payload can be decoded, in order of process, start and thread."
    ),
    key=("process_id", "start_ns", "thread_id"),
    columns=(
        identifier("process_id", "process of the thread", source="NVTX_EVENTS.globalTid"),
        identifier("thread_id", "calling thread", source="NVTX_EVENTS.globalTid"),
        ns("start_ns", "host start of the call, report time", source="NVTX_EVENTS.start"),
        ns(
            "end_ns",
            "host end of the call, report time; null when it never ended",
            source="NVTX_EVENTS.end",
            nullable=True,
        ),
        text(
            "call",
            "NCCL's function, such as ncclAllReduce; null without a text",
            arrow_type=WORD,
            source="NVTX_EVENTS.text, textId",
            nullable=True,
        ),
        identifier(
            "comm_id",
            "communicator, the same on all its ranks: 64 bits read as a signed number; null for "
            "NCCL's 0 (none yet)",
            source="payload: NCCL communicator ID, commHash",
            nullable=True,
        ),
        count(
            "seq",
            "NCCL's own number of the call in its communicator",
            source="payload: seqNumber",
            nullable=True,
        ),
        identifier(
            "operation_id",
            "number of the operation, the same on all its ranks; null for 0",
            source="payload: operationId",
            nullable=True,
        ),
        n_bytes(
            "message_bytes",
            "as NCCL reports it: the per-rank part of all_gather, reduce_scatter, all_to_all",
            source="payload: Message size [bytes], else count x size of dataType",
            nullable=True,
        ),
        count("n_ranks", "size of the communicator", source="payload: No. of ranks", nullable=True),
        identifier("rank", "rank in the communicator", source="payload: Rank", nullable=True),
    ),
)

COMM_SIZES = TableSchema(
    name="comm_sizes_of_report",
    doc="One row per process and communicator whose size NCCL reported without contradiction.",
    key=("process_id", "comm_id"),
    columns=(
        identifier("process_id", "process of the thread", source="NVTX_EVENTS.globalTid"),
        identifier("comm_id", "communicator, as in payloads_of_report", source="payload"),
        count("n_ranks", "size of the communicator", source="payload: No. of ranks"),
    ),
)

LOCK_RANGES = TableSchema(
    name="lock_ranges_of_report",
    doc=(
        "One row per time in which a thread waits for Python's lock (GIL), or holds it, in order "
        "of start."
    ),
    key=("process_id", "start_ns"),
    columns=(
        identifier("process_id", "process of the thread", source="NVTX_EVENTS.globalTid"),
        identifier("thread_id", "thread of the range", source="NVTX_EVENTS.globalTid"),
        ns("start_ns", "host start", source="NVTX_EVENTS.start"),
        ns(
            "end_ns",
            "host end; an unclosed range ends 1 ns after the last event",
            source="NVTX_EVENTS.end",
        ),
        flag("is_wait", "the thread waits; else it holds the lock", source="NVTX_EVENTS.text"),
        flag(
            "is_of_sampler",
            "the thread is that with which nsys takes samples of Python",
            source="NVTX_EVENTS.globalTid of samples",
        ),
    ),
)

PYTHON_LINES = TableSchema(
    name="python_lines_of_report",
    doc="One row per line of Python that a sample of a main thread was at.",
    key=(),
    columns=(
        text("path", "file of the code, as Python names it", source="NVTX_EVENTS.binaryData"),
        count("line", "number of the line", source="NVTX_EVENTS.binaryData"),
        text("function", "function of the line", source="NVTX_EVENTS.binaryData"),
        flag("is_of_program", "the file is of the user's program", source="derived"),
    ),
)

PYTHON_FRAMES = TableSchema(
    name="python_frames_of_report",
    doc="One row per frame of the user's program in a sample, innermost first, sample by sample.",
    key=(),
    columns=(identifier("line", "row of `PYTHON_LINES`", source="NVTX_EVENTS.binaryData"),),
)

PYTHON_SAMPLES = TableSchema(
    name="python_samples_of_report",
    doc="One row per sample of the main thread of a Python process, in order of time.",
    key=("process_id", "time_ns"),
    columns=(
        identifier("process_id", "process of the sampler", source="NVTX_EVENTS.globalTid"),
        ns("time_ns", "host time of the sample", source="NVTX_EVENTS.start"),
        identifier(
            "innermost", "row of `PYTHON_LINES` of the innermost frame", source="binaryData"
        ),
        identifier(
            "in_program",
            "row of `PYTHON_LINES` of the innermost frame of the user's program; -1 for none",
            source="binaryData",
        ),
        identifier(
            "first_frame",
            "row of `PYTHON_FRAMES` of the innermost frame of the user's program",
            source="binaryData",
        ),
        count("n_frames", "frames of the user's program", source="binaryData"),
        identifier(
            "held_after",
            "row of `PYTHON_LINES` at which the thread was in its last sample before it held "
            "Python's lock; -1 if there is none, or if the sample was taken in time",
            source="binaryData",
        ),
        identifier(
            "let_go",
            "row of `PYTHON_LINES` at which the thread let go of Python's lock, in the outermost "
            "frame that is another one than in the last sample before; -1 if the sample was taken "
            "in time",
            source="binaryData",
        ),
    ),
)
