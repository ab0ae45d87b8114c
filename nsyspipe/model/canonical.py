"""Canonical tables between `reader` and the analysis: what a report and NCCL's payloads hold, whatever nsys calls it."""

from nsyspipe.model.table import table

# values of COPIES.copy_kind that the analysis asks for
MEMSET_KIND = 0
DTOD_KIND = 8
PEER_KIND = 10  # a copy to another GPU
UNIFIED_KINDS = (11, 12, 13, 14)  # unified memory moves by itself: no call launches these
GRAPH_NAME_ID = -1  # KERNELS.name_id of a CUDA graph captured as a whole
LARGEST_MADE_NAME_ID = (
    -2
)  # KERNELS.name_id is this or lower where the name is none of the report's strings

KERNELS = table("""kernels_of_report: One row per kernel, or per CUDA graph captured as a whole.
    process_id      id    process that launched it <- KERNEL.globalPid
    start_ns        ns    device start, report time <- KERNEL.start
    end_ns          ns    device end, report time <- KERNEL.end
    device_id       id?   CUDA ordinal inside the process <- KERNEL.deviceId
    correlation_id  id?   joins the launch <- KERNEL.correlationId
    stream_id       id?   stream inside its context <- KERNEL.streamId
    name_id         id?   its name in the report's strings; -1 for a graph, lower where `CALLED` says it <- KERNEL.demangledName, else shortName
    grid            id?   gridX | gridY << 32 | gridZ << 48; null outside of the sample of large reports <- KERNEL.gridX, gridY, gridZ
    block           id?   blockX | blockY << 11 | blockZ << 22; null where the grid is <- KERNEL.blockX, blockY, blockZ
    is_comm         flag  a communication kernel <- KERNEL.shortName, demangledName
""")

COPIES = table("""copies_of_report: One row per memcpy or memset.
    process_id      id      process that launched it <- MEMCPY.globalPid
    start_ns        ns      device start, report time <- MEMCPY.start
    end_ns          ns      device end, report time <- MEMCPY.end
    device_id       id?     CUDA ordinal inside the process <- MEMCPY.deviceId
    correlation_id  id?     joins the launch <- MEMCPY.correlationId
    copy_kind       enum?   CUPTI's: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 0 for a memset <- MEMCPY.copyKind
    bytes           bytes?  bytes moved or set <- MEMCPY.bytes
""")

LAUNCHES = table("""launches_of_report: One row per CUDA API call.
    process_id      id  process of the calling thread <- RUNTIME.globalTid
    start_ns        ns  host start of the call <- RUNTIME.start
    correlation_id  id  joins the operation <- RUNTIME.correlationId
""")

RANGES = table("""ranges_of_report: One row per NVTX push/pop or start/end range of any domain but NCCL's and MPI's.
    process_id  id    process of the thread <- NVTX_EVENTS.globalTid
    thread_id   id    thread that opened it <- NVTX_EVENTS.globalTid
    start_ns    ns    host start <- NVTX_EVENTS.start
    end_ns      ns    host end; an unclosed range ends 1 ns after the last event <- NVTX_EVENTS.end
    text        word:text  the range's text <- NVTX_EVENTS.text, textId
    is_library  flag  whether its domain is a library's own: such a range is no phase, and a step only by --step <- NVTX_EVENTS.domainId
""")

COMM_CALLS = table("""comm_calls_of_report: One row per range of a call of NCCL, or of a collective of symmetric memory, that `comm_kernels.comm_call_of` knows.
    process_id  id         process of the thread <- NVTX_EVENTS.globalTid
    thread_id   id         calling thread <- NVTX_EVENTS.globalTid
    start_ns    ns         host start <- NVTX_EVENTS.start
    end_ns      ns         host end <- NVTX_EVENTS.end
    text        word:text  the range's text <- NVTX_EVENTS.text, textId
""")

CALLED = table("""called_of_report: One row per API call that launched copies, or a kernel whose name says no collective, inside such a range; in order of launch.
    process_id      id    process of the calling thread <- RUNTIME.globalTid
    correlation_id  id    joins what it launched <- RUNTIME.correlationId
    call            id    a number for each range
    is_copy         flag  what it launched are copies
    stream_id       id?   stream of the copies; null of kernels <- MEMCPY.streamId
    name_id         id    what the collective of these copies, or the kernel, is called: `LARGEST_MADE_NAME_ID` or lower <- NVTX_EVENTS.text
""")

HOST_CALLS = table("""host_calls_of_report: One row per CUDA API call: what it launched, and when which thread was in it.
    process_id      id  process of the calling thread <- RUNTIME.globalTid
    thread_id       id  calling thread <- RUNTIME.globalTid
    start_ns        ns  host start of the call <- RUNTIME.start
    end_ns          ns  host end; its start where it has none <- RUNTIME.end
    correlation_id  id  joins the operation <- RUNTIME.correlationId
""")

HOST_WAITS = table("""host_waits_of_report: One row per CUDA API call that returned only when something had ended on a device.
    process_id   id    process of the calling thread <- RUNTIME.globalTid
    thread_id    id    calling thread <- RUNTIME.globalTid
    start_ns     ns    host start of the call <- RUNTIME.start
    end_ns       ns    host end of the call <- RUNTIME.end
    device_id    id?   device that it waited for <- SYNCHRONIZATION, MEMCPY.deviceId
    stream_id    id?   stream that it waited for; null where it is not known <- SYNCHRONIZATION.streamId
    is_whole     flag  it waited for all streams <- RUNTIME.nameId
    copy_end_ns  ns?   device end of the copy that the call made, and waited for; null for others <- MEMCPY.end
""")

BLOCKING_CALLS = table("""blocking_calls_of_report: One row per CUDA API call that synchronises, or allocates, frees or copies memory synchronously. A copy
        from or to pageable memory counts too, whatever the name of its call.
    process_id  id    process of the calling thread <- RUNTIME.globalTid
    start_ns    ns    host start of the call <- RUNTIME.start
    end_ns      ns    host end of the call <- RUNTIME.end
    call        text  name of the API, without its version <- RUNTIME.nameId
    is_of_copy  flag  made a copy of `BLOCKING_COPIES`, or waited for one as the next call of its thread <- RUNTIME, MEMCPY
""")

BLOCKING_COPIES = table("""blocking_copies_of_report: One row per copy from the host that may block it: out of pageable memory, by a call without Async in its
        name, or with a call that synchronises as the next call of the same thread.
    process_id   id      process that launched it <- MEMCPY.globalPid
    start_ns     ns      device start, report time <- MEMCPY.start
    end_ns       ns      device end, report time <- MEMCPY.end
    launch_ns    ns      host start of its call <- RUNTIME.start
    device_id    id?     CUDA device <- MEMCPY.deviceId
    bytes        bytes?  bytes copied <- MEMCPY.bytes
    is_pageable  flag?   out of pageable memory; null where that is not known <- MEMCPY.srcKind
""")

COMM_OPERATIONS = table("""comm_operations by start_ns: One row per communication operation of one process that belongs to a step or to none, in order of start.
    start_ns       ns      device start, report time <- KERNEL.start
    end_ns         ns      device end, report time <- KERNEL.end
    member         id      index of its step range; -1 for none <- RUNTIME, NVTX_EVENTS
    kind           id      index into the process's kinds of comm kernel <- KERNEL names
    stream_order   id      how many other (device, stream) the process launched that collective on before <- KERNEL.deviceId, streamId
    comm_id        id?     NCCL's communicator <- NCCL payload
    seq_number     count?  place in the communicator <- NCCL payload
    message_bytes  bytes?  as NCCL reports it: the per-rank part of all_gather, reduce_scatter, all_to_all <- NCCL payload
    called         id?     the collective that was called, which ran as sends and receives: index into `names.COLLECTIVES` <- NCCL payload
    launched_in    id?     the pass of its step that launched it: 0 forward, 1 backward, 2 behind all backward ranges; null in a step without one <- RUNTIME,
        NVTX_EVENTS
    micro_batch    id?     which backward pass of its step launched it, from 0; null where none did <- RUNTIME, NVTX_EVENTS
    n_before       count?  compute kernels that its step launched before it; null without launch or step range <- RUNTIME, NVTX_EVENTS
""")

PAYLOADS = table("""payloads_of_report by process_id, start_ns, thread_id: One row per NCCL call whose payload can be decoded, in order of process, start and
        thread.
    process_id     id      process of the thread <- NVTX_EVENTS.globalTid
    thread_id      id      calling thread <- NVTX_EVENTS.globalTid
    start_ns       ns      host start of the call, report time <- NVTX_EVENTS.start
    end_ns         ns?     host end of the call, report time; null when it never ended <- NVTX_EVENTS.end
    call           word:text?  NCCL's function, such as ncclAllReduce; null without a text <- NVTX_EVENTS.text, textId
    comm_id        id?     communicator, the same on all its ranks: 64 bits read as a signed number; null for NCCL's 0 (none yet) <- payload: NCCL communicator
        ID, commHash
    seq            count?  NCCL's own number of the call in its communicator <- payload: seqNumber
    message_bytes  bytes?  as NCCL reports it: the per-rank part of all_gather, reduce_scatter, all_to_all <- payload: Message size [bytes], else count x size
        of dataType
    n_ranks        count?  size of the communicator <- payload: No. of ranks
    rank           id?     rank in the communicator <- payload: Rank
""")

COMM_SIZES = table("""comm_sizes_of_report by process_id, comm_id: One row per process and communicator whose size NCCL reported without contradiction.
    process_id  id     process of the thread <- NVTX_EVENTS.globalTid
    comm_id     id     communicator, as in payloads_of_report <- payload
    n_ranks     count  size of the communicator <- payload: No. of ranks
""")
