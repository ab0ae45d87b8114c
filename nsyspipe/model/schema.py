"""All tables of a run by name: which it is saved as, and which a user gets, with every column's unit and formula."""

from typing import TypeAlias

import pyarrow as pa

from nsyspipe.model.table import TableSchema, table

_RANK = (
    "rank  id  Global rank <- the first source that numbers every rank: rank map, environment, "
    "NCCL payload, MPI thread "
    "name, file name, order of the reports"
)
_STEP = "step  id  Step number, the same on every rank <- NVTX range text, or its ordinal"
_CALLS_NULL = "Null without API calls, or without their names and ends."
_BEFORE = "in a run saved before this column existed"

STEPS = table(rf"""steps by rank, start_ns: One row per (rank, step), which shows where the time of the step
        goes. C, M and P are the unions of the compute, communication and memory operations of the rank,
        clipped to the window. These equations are exact: compute + exposed_comm + exposed_memory + idle =
        wall, and exposed_comm + overlap_compute = comm.
    {_RANK}
    {_STEP}
    start_ns ns Start of the window, in aligned time. The window starts with the first compute or
        communication kernel of the step. On a rank without launches the window starts with the step range.
        Without steps the window starts with the first operation. <- KERNEL.start
    end_ns ns End of the window, which is the start of the next window. The last window ends with its last
        operation. <- KERNEL.start
    wall_ns ns Length of the window: end - start <- derived
    compute_ns ns? |C| <- KERNEL, GRAPH_TRACE
    comm_ns ns? |M| <- KERNEL
    exposed_comm_ns ns? |M \ C| <- KERNEL
    exposed_memory_ns ns? |P \ (C u M)| <- MEMCPY, MEMSET
    idle_ns ns? wall - |C u M u P| <- KERNEL, MEMCPY, MEMSET
    dtod_ns ns? |D|. D is the union of the device-to-device copies that are not communication. <- MEMCPY
    dtod_bytes bytes? Counts the copies of D (see dtod_ns) that start in the window <- MEMCPY
    n_dtod count? Number of the copies of D (see dtod_ns) that start in the window <- MEMCPY
    exposed_dtod_ns ns? D2D memcpy while neither compute nor communication runs: |D \ (C u M)| <- MEMCPY
    overlap_compute_ns ns? Communication during which a compute kernel runs: |M n C| <- KERNEL
    comm_on_compute_stream_ns ns? |M_s|. M_s is the union of the communication operations on the stream that
        most compute kernels of the rank use, without operations of CUDA graphs. Nothing else on that stream
        can run at the same time. Null without launches, and {_BEFORE}. <- KERNEL.streamId
    overlap_backward_ns ns? |M n B|. B is the union of the compute kernels that any thread launched inside a
        backward range. Null on a rank without a backward range or without launches. <- KERNEL, RUNTIME,
        NVTX_EVENTS
    n_collectives count? Counts the operations that start in the window <- KERNEL
    wait_ns ns? |W|. W is the union of [own start, min(last start, own end)) over the matched collectives of
        the rank. Null in a run of one rank and without a common clock. Null also if an operation of the step
        is not matched, or if a rank of its communicator is missing. <- KERNEL
    exposed_wait_ns ns? The part of wait time during which no compute runs: |W \ C|. The rest of exposed_comm
        is exposed transfer time. Null if wait is null. <- KERNEL
    transfer_ns ns? comm - wait. Null if wait is null. <- KERNEL
    message_bytes bytes? Counts the whole messages of the collectives that belong to the step. Null if a size
        is unknown. <- NCCL payload
    idle_input_ns ns? |late n (data u between)|. A gap [g0, g1) is idle time that ends when an operation
        starts. L is the time at which this operation was launched. R is L + latency, but at least g0 and at
        most g1. The latency is the shortest time of the rank from the launch of a kernel to its start, at
        most 20 us. Copies do not count for the latency. The set late is [g0, R). The set data is the data
        phase. The set between is the time between two steps (see idle_between_steps). The five causes sum to
        idle_ns exactly. Null if idle_ns is null, or if the clocks of GPU and CPU may differ by a step. <-
        RUNTIME, NVTX_EVENTS
    idle_launch_ns ns? |late \ (data u between)| - idle_blocked, with the sets of idle_input. {_CALLS_NULL} <-
        RUNTIME
    idle_blocked_ns ns? |late \ (data u between)| in the period of each synchronization or memory call that
        drained the queue. The sets are those of idle_input. The period starts with the call. The period ends
        when its late time equals the duration of the call, and at the latest this duration after the call
        returns. Without the call, all later launches would have come earlier by this duration. {_CALLS_NULL}
        <- RUNTIME.nameId, start, end, MEMCPY
    idle_dependency_ns ns? g1 - R, with g1 and R as in idle_input. At R, the operation was already launched.
        From R on, the operation waited for an event of another stream, or for the GPU to start it. This wait
        can be longer than 20 us. <- RUNTIME
    idle_unknown_ns ns? idle - all other causes
    idle_between_steps_ns ns? Part of idle_input in which the CPU was between two steps, probably in the data
        loader. Between the end of a step range and the start of the next, nsyspipe takes the longest stretch
        in which the thread of the steps was in no range and in no CUDA call. Ranges around several steps do
        not count. The time between the ranges can be less than 2 ms, as with steps of the optimizer. Then
        nsyspipe takes a stretch of at least 2 ms between kernel launches near the start of the next step. <-
        RUNTIME, NVTX_EVENTS
    idle_pause_ns ns? Part of idle_launch in pauses. A pause is a stretch of at least 2 ms in which the CPU
        launched nothing that the GPU could have started. In a pause, the CPU is in no data phase and in no
        synchronization or memory call. A pause also lies outside the period after such a call (see
        idle_blocked). <- RUNTIME, NVTX_EVENTS
    idle_blocked_by_copies_ns ns? Part of idle_blocked that blocking copies from CPU memory explain (see
        n_blocking_copies) <- RUNTIME, MEMCPY
    idle_made_by_input_ns ns? Upper bound on the idle time that data loading causes. An input period is a time
        in which the CPU gets input. From the start of each input period, nsyspipe adds up the gaps that end
        with a late launch. The sum stops when it reaches the length of the input period, and at the latest
        this length after the end of the input period. <- RUNTIME, NVTX_EVENTS
    idle_made_by_calls_ns ns? Upper bound on the idle time that synchronization and memory calls cause,
        without the calls of blocking copies from CPU memory. From the start of each call, nsyspipe adds up
        the gaps that end with a late launch. The sum stops when it reaches the duration of the call, and at
        the latest this duration after the call returns. {_CALLS_NULL} <- RUNTIME
    idle_made_by_copies_ns ns? The same as idle_made_by_calls, for the calls of blocking copies from CPU
        memory <- RUNTIME, MEMCPY
    n_blocking_copies count? Copies from CPU memory that start in the window and may block the CPU. Such a
        copy reads pageable memory, or is made by a call without Async in its name, or the next call of the
        same thread synchronizes. Null without API calls, copies or their kinds. <- MEMCPY, RUNTIME
    n_pageable_copies count? Blocking copies that read pageable memory. Null if the kind of memory is unknown.
        <- MEMCPY.srcKind
    blocking_copy_bytes bytes? Bytes of the blocking copies. Null if n_blocking_copies is null. <-
        MEMCPY.bytes
    exposed_blocking_copy_ns ns? Blocking copies (their union) while neither compute nor communication runs.
        Null if n_blocking_copies is null. <- MEMCPY, KERNEL
    host_launch_ns ns? from the launch of the first kernel of the step to the launch of the first kernel of
        the next step, without calls that waited for the GPU. The last step ends with its last launch. A call
        that waits for the GPU synchronizes, or allocates, frees or copies memory. A launch of at least 100 us
        also waits if at least 256 operations are still in the queue. Null without launches. {_CALLS_NULL} <-
        RUNTIME
    host_input_ns ns? Part of host_launch in which the CPU got the next batch, in the data phase or between
        two steps (see idle_between_steps). Null if host_launch is null. <- RUNTIME, NVTX_EVENTS
    host_lead_ns ns? Time from the launch of the first kernel of the window to the start of the window. Null
        if host_launch is null. <- RUNTIME, KERNEL.start
    idle_late_start_ns ns? Part of idle_dependency in gaps that end with a late launch. In this part, the
        operation was launched longer ago than the shortest latency (see idle_input), but the GPU had not
        started it. Null if idle_dependency is null. <- RUNTIME
    exposed_late_comm_ns ns? Part of exposed_comm that late launches expose. If the launches had come earlier,
        this communication could have overlapped with compute. Two kinds of time count. First, communication
        that started within 20 us of its launch. Second, time in which the next compute kernel was not
        launched yet, or was launched less than the shortest latency ago (see idle_input). Null without
        launches, if idle_dependency is null, and {_BEFORE}. <- KERNEL, RUNTIME
    grad_copy_ns ns? union of D2D copies launched in sequences of at least 8 with nothing between them, inside
        backward ranges if there are any. These copies move gradients out of their buckets. <- MEMCPY, RUNTIME
    exposed_grad_copy_ns ns? Part of grad_copy during which neither compute nor communication runs <- MEMCPY,
        RUNTIME
    grad_copy_span_ns ns? Union of the gradient copies and of the gaps between them. A gap counts if it is in
        one window and at most 20 us long. <- MEMCPY, RUNTIME
    grad_copy_bytes bytes? Bytes of the gradient copies that start in the window <- MEMCPY
    n_grad_copies count? Number of the gradient copies that start in the window <- MEMCPY
    comm_delay_ns ns? Additional delay of all operations that started while communication ran, at least 0.
        Formula: number of these operations x (mean gap with communication - mean gap without communication).
        A gap is the time before a compute kernel starts. Gaps of up to 100 us count, if the kernel was
        launched before the gap. Null with fewer than 100 gaps of either kind in the capture. <- KERNEL,
        MEMCPY, MEMSET, RUNTIME
    overhead_ns ns? Time in the window in which the profiler did its own work in the process of the rank. If
        the report has no such table, the value depends on the export. The value is 0 for schema 2.9 or newer
        if the export leaves out empty tables, which is the default (nsys export --lazy=true). Otherwise the
        value is null. <- PROFILER_OVERHEAD
    is_complete flag Neither the start nor the end of the capture cuts off the step <- derived
    in_summary flag The step counts in the metrics of the run <- derived
    comm_share ratio? comm / wall <- derived
    exposed_comm_share ratio? exposed_comm / wall <- derived
    overlap_ratio ratio? overlap_compute / comm <- derived
    backward_overlap_ratio ratio? overlap_backward / comm <- derived
    idle_share ratio? idle / wall <- derived
    compute_share ratio? compute / wall <- derived
    exposed_memory_share ratio? exposed_memory / wall <- derived
    wait_share ratio? wait / wall <- derived
    transfer_share ratio? transfer / wall <- derived
""")

# Why GPUs idle, and what a phase costs: columns of the steps and of the phases.
IDLE_CAUSES = tuple(
    f"idle_{cause}_ns" for cause in ("input", "launch", "blocked", "dependency", "unknown")
)
# Parts of these, and what each source makes of idle time at most.
IDLE_DETAILS = (
    "idle_between_steps_ns",
    "idle_pause_ns",
    "idle_blocked_by_copies_ns",
    *(f"idle_made_by_{source}_ns" for source in ("input", "calls", "copies")),
)

_NO_DEVICE = "Null on a rank without kernel launches if the step has no window."

PHASES = table(f"""phases by rank, step, phase: One row per (rank, step, phase) that has a range. An operation
        belongs to the phase in which it was launched, by any thread.
    {_RANK}
    {_STEP}
    phase text backward, forward, optimizer or data <- NVTX_EVENTS
    host_ns ns union of the CPU ranges of the phase in the step <- NVTX_EVENTS
    n_kernels count? Compute and communication operations launched in those ranges. Null without launches. <-
        RUNTIME
    compute_ns ns? Union of the compute operations that belong to the phase, clipped to the window of the
        step. Null without kernel names. {_NO_DEVICE} <- KERNEL, RUNTIME
    comm_ns ns? Union of the communication operations that belong to the phase, clipped to the window. Null if
        compute is null. <- KERNEL, RUNTIME
    exposed_comm_ns ns? The part of comm during which no compute of any phase runs. Null if compute is null.
        <- KERNEL, RUNTIME
    device_ns ns? union of all operations that belong to the phase, clipped to the window. Copies count too.
        Null if copies or memsets were not recorded. {_NO_DEVICE} <- KERNEL, MEMCPY, MEMSET, RUNTIME
    n_blocking_copies count? Blocking copies from CPU memory that were launched in those ranges. Null if
        n_blocking_copies of the steps is null. <- MEMCPY, RUNTIME
    idle_ns ns? idle time of the window in gaps that end with an operation of the phase. Null if device_ns is
        null. <- KERNEL, MEMCPY, MEMSET, RUNTIME
""")
PHASE_TIMES = tuple(column.name for column in PHASES.columns if column.unit == "ns")

IDLE_CALLS = table("""idle_calls by blocked_ns_per_step, call: One row per API call that blocked CPUs while
        their GPUs were idle in summary steps. Rows are sorted by time, largest first, then by name. The rows
        sum to idle_blocked_ns_per_step of the summary. There are no rows if that metric is null.
    call text Name of the call without the API version. During several calls at the same time, this is the
        call that returns last. After calls, this is the call with the period (see idle_blocked) that ends
        last. <- RUNTIME.nameId
    blocked_ns_per_step float:ns Mean over (rank, step) of the part of idle_blocked_ns that this call explains
        <- RUNTIME.nameId, start, end
    of_copies_ns_per_step float:ns? The part that blocking copies from CPU memory explain <- RUNTIME, MEMCPY
""")

_UNMATCHED = (
    "Null if the operation is not matched or a rank of its communicator is missing. Null also "
    "in a run of one rank, and "
    "without a common clock."
)

COLLECTIVES = table(f"""collectives by step, seq, rank: One row per communication operation that belongs to a
        step: a collective on one rank. The k-th operation of a communicator in a step is the same collective
        on all ranks of the communicator.
    {_STEP}
    seq count Position in the step, ordered by first start. Matched collectives have the same position on all
        ranks. <- derived
    {_RANK}
    collective text all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send_recv or other
        <- KERNEL names
    datatype text? Type of the elements, for example f32 <- KERNEL names
    algorithm text? For example RING_LL <- KERNEL names
    comm_id text Communicator: the hash of NCCL. Without a hash, the name of the collective and the order in
        which its stream was first used on its GPU, for example all_reduce/0. <- NCCL payload, KERNEL.streamId
    start_ns ns Start on this rank, in aligned time <- KERNEL.start
    end_ns ns End on this rank, in aligned time <- KERNEL.end
    exposed_ns ns? Time of the operation during which no compute runs. Null on a rank with CUDA graphs that
        were captured as a whole, and {_BEFORE}. <- KERNEL
    is_matched flag The operation has its counterparts on the other ranks <- derived
    in_summary flag The step of the operation counts in the metrics of the run <- derived
    n_ranks count? Number of matched ranks. {_UNMATCHED} <- derived
    arrival_skew_ns ns? last start - first start. {_UNMATCHED}
    wait_ns ns? Time from the start on this rank to the start on the last rank: last start - own start.
        {_UNMATCHED}
    transfer_ns ns? Time from the start on the last rank to the end on this rank: own end - last start, at
        least 0. {_UNMATCHED}
    late_by_ns ns? Delay of the rank that arrived last: last start - second-last start. The other ranks have
        0. {_UNMATCHED}
    held_up_ns ns? Longest wait that the last rank caused. The wait of another rank is min(last start, own
        end) - own start. If several ranks arrived last, the lowest rank has the value. The other ranks have
        0. The value is also 0 if the skew is not significant. {_UNMATCHED}
    is_significant flag? arrival_skew exceeds the larger clock error of the first and the last rank. The flag
        is false if a clock error is unknown. {_UNMATCHED} <- derived
    is_late_significant flag? late_by exceeds the larger clock error of the last and the second-last rank. The
        flag is false if a clock error is unknown. {_UNMATCHED} <- derived
    message_bytes bytes? Size of the whole array, as nccl-tests counts it. For all_gather, reduce_scatter and
        all_to_all, this is the size that NCCL records x ranks of the communicator. <- NCCL payload
    bus_bytes float:bytes? message_bytes x a factor. The factor is 2(n-1)/n for all_reduce, (n-1)/n for
        all_gather, reduce_scatter and all_to_all, and 1 for the others. <- NCCL payload
    algbw_bytes_per_s bytes/s? message_bytes / transfer <- derived
    busbw_bytes_per_s bytes/s? bus_bytes / transfer <- derived
""")

_OVER = (
    "Counted over matched collectives of summary steps. Null if none could be matched, and in a "
    "run of one rank."
)
_OTHER_STAGES = "In a pipeline, the wait for other stages is subtracted (see wait_caused)."

STRAGGLERS = table(f"""stragglers by rank: One row per rank, which shows how the other ranks waited for the
        rank.
    {_RANK}
    n_arrived_last count? Ties do not count, and neither do collectives in which the stages of a pipeline
        meet. {_OVER} <- KERNEL.start
    wait_caused_ns ns? sum of late_by of the collectives of n_arrived_last. In a pipeline, a rank can be late
        because it waited for other stages. From each late_by, nsyspipe subtracts this wait of the step, as
        far as it exceeds the shortest such wait in the communicator. {_OVER} <- KERNEL.start
    lateness_ns ns? Straggler delay, as a sum over steps. In each step, the rank that caused the largest
        late_by gets this late_by, and other ranks get 0. {_OTHER_STAGES} {_OVER} <- KERNEL.start
    held_up_ns ns? Sum of held_up of the collectives of n_arrived_last. {_OTHER_STAGES} The sum of one step is
        at most the step time. {_OVER} <- KERNEL.start
    wait_ns ns? Sum of wait_ns over the summary steps of the rank. Null if a step has null, and without
        summary steps. <- KERNEL.start
""")

TRAFFIC = table("""traffic by rank, communicator, collective: One row per (rank, communicator, collective),
        and one row per (communicator, collective) for all its ranks together, with rank null. The values are
        means over (rank, summary step).
    rank id? Global rank. Null in the row of all ranks of the communicator. <- as in ranks
    communicator text:id Hash of NCCL, 0x... Without payloads, the name of the collective and the order in
        which its stream was first used, for example all_reduce/0. <- NCCL payload, else KERNEL.streamId
    collective text all_reduce, all_gather, ... <- KERNEL names, NCCL payload
    role text Parallelism: data (gradients), sharded (parameters and their gradients), tensor (inside layers),
        pipeline (between stages), expert (all-to-all) or other <- collectives, sizes, and the pass that
        launches them
    n_ranks count? Number of ranks of the communicator <- NCCL payload, else the ranks that use it
    ranks text Ranks of the run that use the communicator, for example 0,2,4,6 <- KERNEL
    calls_per_step float:count? Number of operations <- KERNEL
    bytes_per_step float:bytes? Whole messages, as nccl-tests counts them. Null if a size is unknown. <- NCCL
        payload
    comm_ns_per_step float:ns? |M|. M is the union of the operations of the row, clipped to the window of the
        step. The unions of different rows may overlap. <- KERNEL
    exposed_ns_per_step float:ns? The part of M during which no compute of the rank runs: |M \\ C| <- KERNEL
    exposed_part_ns_per_step float:ns? Share of the row in exposed_comm of the rank. While several rows of a
        rank are exposed at once, each row gets an equal part of the time. The parts of a rank therefore sum
        to its exposed_comm. Null in a run saved before this column existed. <- KERNEL
    hidden_ns_per_step float:ns? The part of M during which compute of the rank runs: |M n C| <- KERNEL
    wait_ns_per_step float:ns? Union of [own start, min(last start, own end)) over the matched operations.
        Null if an operation is not matched. Null also for a pipeline, because its stages wait for each other
        by design. <- KERNEL
    bubble_ns_per_step float:ns? union of [own start, min(last start, own end)) over the matched operations of
        a pipeline. No rank counts as a straggler for this time. Null for all other kinds of parallelism. <-
        KERNEL
    algbw_bytes_per_s float:bytes/s? bytes / transfer. Null if a size is unknown or an operation is not
        matched. <- derived
    busbw_bytes_per_s float:bytes/s? bus bytes / transfer. Null if algbw is null. <- derived
""")

KERNEL_COSTS = table(f"""kernels by rank, phase, name: One row per (rank, phase, name) over the whole capture,
        incomplete steps included. Only the columns with in_summary in their name are limited to summary
        steps.
    {_RANK}
    phase text? Phase that launched the kernels. Null outside of all phases. <- NVTX_EVENTS
    name text Name of the kernel without parameters and template arguments. The functor that distinguishes the
        kernel is in brackets. Copies that are a collective have a name such as ncclAllGather [copies]. <-
        KERNEL.demangledName, else shortName, NVTX_EVENTS
    n_kernels count Number of kernels <- KERNEL
    total_ns ns Sum of durations <- KERNEL
    mean_ns ns total / n, rounded down <- derived
    min_ns ns Shortest duration <- KERNEL
    max_ns ns Longest duration <- KERNEL
    overlapped_ns ns Time during which communication runs. Communication kernels have 0. <- KERNEL
    not_overlapped_ns ns total - overlapped <- derived
    n_slowed count Kernels that run at least partly while communication runs, and that have equal kernels
        without communication. Equal kernels have the same name, grid and block, and so do their three
        neighbors before and after in launch order. At least three equal kernels must run without
        communication and take about equally long. In a large report, nsyspipe compares a sample of 50,000
        kernels. <- KERNEL
    slowed_ns ns Time of these kernels during which communication runs <- derived
    free_ns ns Estimated time that the kernels of slowed_ns would need without communication. For each kernel,
        nsyspipe subtracts the difference between the kernel and the median of its equal kernels from
        slowed_ns. <- derived
    slowdown_ratio ratio? slowed / free - 1. Null if there are no equal kernels. <- derived
    n_in_summary count? Number of kernels that start in the window of a summary step. Null {_BEFORE}. In long
        captures (steps x rows of a rank above 2^18), nsyspipe sums neighboring steps together. Null also if
        only some of the steps in one such sum are summary steps. <- KERNEL
    in_summary_ns ns? Sum of the durations of these kernels. Null if n_in_summary is null. <- KERNEL
    overlapped_in_summary_ns ns? The part of in_summary_ns during which communication runs. Null if
        n_in_summary is null. <- KERNEL
""")

COSTS = table("""costs by table: One row per phase and name of kernels, per kind and size of collectives, or
        per communicator and collective (traffic). Rows cover the summary steps of all ranks, most expensive
        first. Values per step are means over (rank, step). For traffic, they are means over the ranks of the
        communicator. Values are null in a capture without steps, and if a part of the sum is null.
    table text kernels, collectives or traffic
    name text Name of the kernel (as in kernels) or of the collective <- KERNEL names
    phase text? For kernels: the phase that launched them. Null outside of all phases. <- NVTX_EVENTS
    message_bytes bytes? For collectives: the whole message of one collective, as in collectives <- NCCL
        payload
    communicator text:id? For traffic: as in traffic
    role text? For traffic: as in traffic
    ranks text? For traffic: as in traffic
    n_calls count? For kernels and collectives: the number of calls on all ranks in all summary steps <-
        KERNEL
    total_ns ns? Sum of the durations of these calls <- KERNEL
    step_share ratio? total / sum of wall over ranks and summary steps <- derived
    calls_per_step float:count? n_calls, per step
    time_ns_per_step float:ns? total, per step. For traffic: comm_ns_per_step.
    beside_comm_ratio ratio? overlapped_in_summary / total, for kernels. Null for NCCL kernels, and if comm of
        the steps is null. <- KERNEL
    slowdown_ratio ratio? As in kernels, over the whole capture <- KERNEL
    n_slowed count? For kernels: the number of kernels of the whole capture that slowdown_ratio compares <-
        KERNEL
    bytes_per_step float:bytes? For collectives and traffic: whole messages <- NCCL payload
    exposed_ns_per_step float:ns? For collectives: the sum of exposed. For traffic: as in traffic. <- KERNEL
    hidden_ns_per_step float:ns? time - exposed <- derived
    wait_ns_per_step float:ns? For collectives: the sum of min(wait, own time). For traffic: as in traffic. <-
        KERNEL
    bubble_ns_per_step float:ns? For traffic: as in traffic
    transfer_ns_per_step float:ns? For collectives: the sum of transfer <- KERNEL
    algbw_bytes_per_s bytes/s? sum of message_bytes / sum of transfer for collectives. For traffic: as in
        traffic. <- derived
    busbw_bytes_per_s bytes/s? sum of bus_bytes / sum of transfer for collectives. For traffic: as in traffic.
        <- derived
""")

# From the fastest to the slowest; what is not known is last.
LINK_KINDS = ("nvlink", "p2p", "p2p_pcie", "shm", "net", "unknown")

LINKS = table("""links by from_rank, to_rank: One row per directed connection of the rings (and of the trees
        between hosts) of one NCCL communicator. nsyspipe takes the communicator that spans most hosts. In a
        tie, nsyspipe takes the communicator with most ranks. Without an NCCL log there is one row per pair of
        GPUs.
    comm_id text:id? Communicator. Null without an NCCL log, because the row is then a pair of GPUs. <- NCCL
        log
    from_rank id Rank of the sender in the communicator <- NCCL log
    to_rank id Rank of the receiver in the communicator <- NCCL log
    transport text? Transport that NCCL set up, as the log names it. Null if no line of the log names it. <-
        NCCL log
    n_channels count? Number of channels of collectives on this connection. Null if no line of this
        communicator gives it. <- NCCL log
    path text? Path between the two GPUs: NV#, PIX, PXB, PHB, NODE or SYS. Null across hosts. <- nvidia-smi
        topo -m
    kind text nvlink, p2p_pcie, p2p (direct, but the topology does not show over what), shm (CPU memory), net
        or unknown. For several transports, this is the slowest. <- transport and path
    nominal_bytes_per_s bytes/s? Peak bandwidth of the data sheet in one direction. If the transport is
        unknown, this is the peak bandwidth of path. Null for networks and unknown models. <- GPU model,
        transport and path
    nominal_source text? Basis of the peak bandwidth: generation, number of links, GPU model <- data sheet
    algorithms text? ring, tree or both, as NCCL uses the connection. Null if no line of the log shows it. <-
        NCCL log
""")

EVENTS = table(f"""events by rank, start_ns: One row per GPU operation: kernel, copy or memset. Copies that
        one call of NCCL or of symmetric memory launched to communicate are one row, from the first start to
        the last end.
    {_RANK}
    step id? Step that the operation belongs to, which may differ from the step during which the operation
        runs. Null for none. <- RUNTIME, NVTX_EVENTS
    phase text? Phase in which the operation was launched. Null outside of all phases. <- RUNTIME, NVTX_EVENTS
    category text compute (CUDA graphs too), comm or memory <- KERNEL names, MEMCPY, MEMSET, GRAPH_TRACE
    name text As in kernels for a kernel. For copies: memcpy HtoD, memcpy DtoH, ..., or memcpy if the kind is
        unknown. For memsets: memset. <- KERNEL.demangledName, else shortName, MEMCPY.copyKind
    device_id id? CUDA ordinal of the GPU in the process <- KERNEL.deviceId
    stream_id id? Stream in its context <- KERNEL.streamId
    start_ns ns Start on the GPU, in aligned time <- KERNEL.start
    end_ns ns End on the GPU, in aligned time <- KERNEL.end
    dur_ns ns end - start <- derived
    launch_ns ns? Start of the API call that launched the operation, in aligned time <- RUNTIME.start
    correlation_id id? Joins the operation and its API call, inside the process <- KERNEL.correlationId
    bytes bytes? Bytes moved or set. Null for kernels. <- MEMCPY.bytes
    collective text? For communication: all_reduce, ... Null for other operations. <- KERNEL names
    seq count? For communication that belongs to a step: seq of its row in collectives <- derived
""")

PHASE_RANGES = table(f"""phase_ranges by rank, start_ns, phase: One row per CPU range of a phase, and one row
        per step range (phase null). A row has the time of the range on the CPU, and the time of its
        operations on the GPU.
    {_RANK}
    step id Step number <- NVTX_EVENTS
    phase text? backward, forward, optimizer or data. Null for the step itself. <- NVTX_EVENTS
    start_ns ns Start on the CPU, in aligned time <- NVTX_EVENTS.start
    end_ns ns End on the CPU, in aligned time <- NVTX_EVENTS.end
    n_operations count? GPU operations that any thread launched in the range. Null if the process has no
        launches. <- RUNTIME
    device_start_ns ns? First start of these operations, in aligned time. Null without operations. <-
        KERNEL.start, MEMCPY.start
    device_end_ns ns? Last end of these operations, in aligned time. Null without operations. <- KERNEL.end,
        MEMCPY.end
""")

TIMELINE = table(f"""timeline by rank, lane, start_ns: One row per bar of the representative step. Among the
        steps used for the metrics, this step is closest to the median step time. A run of more than 64 ranks
        has bars for 64: the most waited for, the slowest, the most exposed, the fastest, and some between.
        Operations that overlap are one bar. If communication operations overlap, each time belongs to the
        operation that started first. Bars of phases may overlap. Neighboring bars of a lane are joined,
        smallest gaps first, until few enough are left.
    step id The step of the timeline, the same on every row <- derived
    {_RANK}
    lane text phase, compute, comm, exposed, wait, memory or launch. A phase lasts from the first start to the
        last end of the operations launched in its range. Lane exposed is communication while no compute runs,
        and lane wait is matched communication before the last rank arrives. A bar of launch lasts from the
        call that launches an operation to the start of the operation. During such a bar, the GPU has
        something to do next. <- derived
    start_ns ns Start in aligned time, clipped to the window of the rank <- derived
    end_ns ns End in aligned time, clipped to the window of the rank <- derived
    busy_ns ns Union of the operations in the bar. The value is less than end - start if gaps were joined.
    exposed_ns ns? For comm: the part of busy during which no compute runs. Null in other lanes.
    wait_ns ns? For comm: the part of busy in which the rank waits for the last rank. Null in other lanes, and
        if wait_ns of the step is null.
    n_operations count Number of operations of the bar that are at least partly in the window. For a phase:
        the operations launched in it. For exposed: the number of pieces of communication during which no
        compute runs. <- KERNEL, MEMCPY, MEMSET
    name text? Name of the operation with the most time in the window, or of the phase or collective <-
        derived
    seq count? For comm, exposed and wait: seq of its row in collectives. Null for a bar of several
        operations, and in other lanes. <- derived
""")

RANKS = table(f"""ranks by rank: One row per rank: a process together with one GPU on which the process runs
        kernels.
    {_RANK}
    process_rank id? Number of the process, as launchers and --rank-map give it. This is the rank, unless
        processes of the run use several GPUs. Null {_BEFORE}. <- as for rank
    local_rank id? LOCAL_RANK as captured <- META_DATA_CAPTURE
    report text Report of the rank. If a process was captured several times, all its reports, separated by
        commas. <- file name
    pid id Process ID of the operating system <- globalPid
    device_id id? GPU of the rank <- KERNEL.deviceId
    device_ids text All GPUs of the process, separated by commas <- KERNEL.deviceId
    gpu_name text? Model of the GPU <- TARGET_INFO_GPU
    host text? Host name <- TARGET_INFO_SYSTEM_ENV
    rank_source text Source of the rank: rank_map, env:RANK (or another variable), sidecar, nccl_payload,
        nvtx_mpi, file_name or order <- derived
    n_kernels count? Number of compute and communication operations <- KERNEL, GRAPH_TRACE
    compute_stream_id id? Stream that most compute kernels of the rank use. If several streams are equal, this
        is the lowest. Null without compute kernels. <- KERNEL.streamId
    n_comm count? Number of communication operations. The copies of one call count as one operation. <- KERNEL
        names, NVTX_EVENTS
    n_dtod count? Number of device-to-device copies that are not communication <- MEMCPY.copyKind = 8
    clock_shift_ns ns Shift that converts times of the report into aligned time: utcEpochNs of the report -
        smallest utcEpochNs of the run - clock_offset. The difference of the two utcEpochNs is 0 if a report
        does not record utcEpochNs. <- TARGET_INFO_SESSION_START_TIME
    clock_offset_ns ns? Difference between the clock of the report and the other clocks. Formula: median of
        (own end - median end over ranks). The median is over the matched all_reduce, all_gather,
        reduce_scatter and all_to_all of all ranks of the report. The value is 0 if the median does not exceed
        the clock error, or if there are fewer than 3 such collectives. Null if some ranks have no collective
        in common with others. If a process was captured several times, this is the offset of the first
        capture. <- KERNEL.end
    clock_error_ns ns? 1.4826 x median absolute deviation of the same differences. A skew below this value is
        not significant. The value is 0 in a run of one report. Null with fewer than 3 collectives. If a
        process was captured several times, this is the largest error. <- KERNEL.end
""")

_HOST_PHASES = "\n".join(
    f"    {phase}_ns ns? Union of the {phase} ranges inside the step, on the thread of the "
    "step. The value is 0 in a step "
    "without such a range. Null for a process without any such range. <- NVTX_EVENTS"
    for phase in ("data", "forward", "backward", "optimizer")
)
HOST_STEPS = table(f"""host_steps by rank, report, pid, step: One row per (process, step) of a run without GPU
        activity: the duration of the NVTX step range on the CPU. There are no rows if any process of the run
        has GPU activity, because its steps are in steps. CPU time is not GPU time: it ends when work was
        handed over, not when the work was done.
    rank id? Global rank. Null if the order of the reports is the only source that numbers every process with
        steps. <- as in ranks
    report text Report of the process <- file name
    pid id Process ID of the operating system <- globalTid
    step id Step number, the same on every process <- NVTX range text, or its ordinal
    host_start_ns ns Start of the step range: report time + (utcEpochNs of the report - smallest utcEpochNs of
        the run). Nothing is added if a report does not record utcEpochNs. <- NVTX_EVENTS
    host_end_ns ns End of the step range, on the same clock <- NVTX_EVENTS
    host_ns ns host_end - host_start <- derived
{_HOST_PHASES}
    is_complete flag False if the range was never closed. Such a range ends 1 ns after the last event of the
        report. <- NVTX_EVENTS
""")

_RATIOS = [column for column in STEPS.columns if column.unit == "ratio"]
_POOLED = "sum of the numerator over ranks and summary steps / sum of the denominator"
_FIGURES = f"""
    comm_share ratio? comm / wall, pooled: {_POOLED} <- derived
{"".join(f"    {one.name} ratio? {one.doc}, pooled <- derived{chr(10)}" for one in _RATIOS[1:-1])}
    transfer_share ratio? (comm - wait) / wall, pooled <- derived
    dtod_ns_per_step float:ns? mean dtod_ns over (rank, step) <- derived
    dtod_bytes_per_step float:bytes? mean dtod_bytes over (rank, step) <- derived
    collectives_per_step float:count? mean n_collectives over (rank, step) <- derived
{"".join(f"    {name}_per_step float:ns? mean {name} over (rank, step) <- derived{chr(10)}" for name in IDLE_CAUSES)}
    message_bytes_per_step float:bytes? mean message_bytes over (rank, step) <- derived
    algbw_bytes_per_s bytes/s? sum of message_bytes / sum of transfer over matched collectives of summary steps <- derived
    busbw_bytes_per_s bytes/s? sum of bus_bytes / sum of transfer over matched collectives of summary steps <- derived
"""

_SUMMARY = f"""
    n_steps count Steps with a window on some rank <- derived
    n_summary_steps count Steps used for the metrics <- derived
    step_time_ns float:ns? median over summary steps of the largest window over ranks <- derived
    throughput_steps_per_s 1/s? 1e9 / mean over summary steps of the largest window over ranks <- derived
{_FIGURES}
"""

SUMMARY = table(f"""summary: One row: the metrics of the run over its summary steps. Summary steps are
        complete on every rank and not skipped. If there are none, all steps that every rank has are summary
        steps.
{_SUMMARY}
""")

RANK_SUMMARY = table(f"""rank_summary by rank: One row per rank: the same metrics over the summary steps of
        the rank. The exposed communication of a rank in ns per step is the mean of exposed_comm_ns in the table
        steps, over the rows with in_summary.
    {_RANK}
    step_time_ns float:ns? Median over summary steps of the windows of the rank <- derived
{_FIGURES}
""")
FIGURES_OF_RANKS = tuple(RANK_SUMMARY.names[2:])

PHASE_SUMMARY = table(f"""phase_summary by phase: One row per phase: the mean of each metric over all (rank,
        step) that contain the phase.
    phase text backward, forward, optimizer or data <- NVTX_EVENTS
{"".join(f"    {name}_per_step float:ns? mean of {name} of phases <- derived{chr(10)}" for name in PHASE_TIMES)}
""")

FINDINGS = table("""findings by expected_ns_per_step, saving_ns_per_step, id: One row per finding. The largest
        estimated saving is first. Findings without an estimate follow, the largest upper bound first. Finding
        comm-bound is after the findings that would reduce it.
    id text Stable identifier of the finding
    severity text high, medium or low. High is a saving of at least 10% of step time, and medium of at least
        3%. Low is less, or unknown. <- derived
    title text Cause of the lost time
    action text Recommendation, in a few words
    advice text Recommendation, with the name of the option
    saving_ns_per_step float:ns? Upper bound on the saving: step time minus the step time without the cause.
        For the cost of transfers, the bound is at most the saving of a simulation in which transfers take no
        time (limit_gain_ns of whatif), if there is one. Null if the finding has no bound. <- derived
    expected_ns_per_step float:ns? Estimated saving: step time minus the step time of a simulation with the
        change (see nsyspipe whatif). The value is the mean over steps, and is not limited to
        saving_ns_per_step. The evidence has the range of the simulation, which may include no saving at all.
        Null if the simulation cannot model the change. Null also if it has only a limit
        (replay_limit_ns_per_step) or a condition (replay_conditional_ns_per_step). Null also if it has no
        estimate (the evidence has the reason, replay_refused), and in a run saved before this column existed.
        <- derived
    evidence json Metrics that the finding uses, as a JSON object
""")

PROBLEMS = table("""problems: One row per error, warning or note about what nsyspipe could not read or answer.
    code text Stable identifier
    severity text error, warning or info
    report text? Report that the row is about
    rank id? Rank that the row is about
    message text Description of the problem, and the answers that are not available because of it
    fix text? Option or command that fixes it
""")

RUNS = table(f"""runs by run_id: One row per run: its identity and its metrics.
    run_id word:id ID of the run, as in the name of its directory <- --run-id, else capture time and contents
    label text Label of the run <- --label, else what the report names have in common
    n_ranks count Number of ranks in the reports <- derived
    n_processes count? Number of processes of these ranks, which is smaller if some processes use several
        GPUs. Null {_BEFORE}. <- derived
    world_size count? Number of ranks of the job <- WORLD_SIZE, NCCL
    gpu_names text GPU models, separated by commas <- TARGET_INFO_GPU
    hosts text Host names, separated by commas <- TARGET_INFO_SYSTEM_ENV
    nsys_versions text Versions of nsys that captured, separated by commas <- META_DATA
    export_schema_versions text Schema versions of the exports, separated by commas <- META_DATA_EXPORT
    captured_at_utc time? Start of the earliest session <- TARGET_INFO_SESSION_START_TIME
    reports text Names of the reports, separated by commas <- file names
    step_family text? NVTX texts that mark the steps. Null without steps. <- NVTX_EVENTS
{_SUMMARY}
    link_kind text? Kind of the slowest connection, as in links. Null if unknown. <- NCCL log, topology
    nccl_version text? Version of NCCL. Null without its log. <- NCCL log
    environment json? Environment variables at the start of the programs, as a JSON object. Only variables
        that are known to be harmless are included. Null if no report recorded them, and {_BEFORE}. <-
        META_DATA_CAPTURE
    n_findings count? Number of findings. Null {_BEFORE}. <- findings
    first_finding text? Identifier of the first finding. Null without findings, and so are the two columns
        that follow. <- findings
    first_action text? Recommendation of the first finding, in a few words <- findings
    first_saving_ns_per_step float:ns? Upper bound on the saving of the first finding. Null if the finding has
        no bound. <- findings
    tool_version text Version of nsyspipe that wrote the run
    schema_version count Version of the columns of the run store
    definitions_version count? Version of the definitions that the metrics follow. Null means version 1,
        {_BEFORE}.
    details json Lists and verdicts of the run, for internal use by nsyspipe
""")

METRICS = table("""metrics by rank, step, metric: One row per metric of the run (rank and step null), of a
        rank (step null), or of a (rank, step). This is the long form of runs, rank_summary and steps, for
        dashboards.
    rank id? Global rank. Null for metrics of the run.
    step id? Step number. Null for metrics of the run and of a rank.
    metric text Name of the column in those tables
    unit text Unit in those tables
    value float:the_metric's? Value. Null if not recorded.
    in_summary flag? For a (rank, step): whether the step counts in the metrics of the run
""")

# Columns of steps and collectives that mean something else since a version of the definitions. In
# version 2 a rank is a process and a device, libraries other than NCCL and the copies that they
# launch are communication, and idle time after a call that drained the queue is blocked.
CHANGED_COLUMNS: dict[int, frozenset[str]] = {
    2: frozenset(
        {
            "compute_ns",
            "comm_ns",
            "exposed_comm_ns",
            "overlap_compute_ns",
            "overlap_backward_ns",
            "n_collectives",
            "exposed_memory_ns",
            "dtod_ns",
            "dtod_bytes",
            "n_dtod",
            "exposed_dtod_ns",
            "grad_copy_ns",
            "exposed_grad_copy_ns",
            "grad_copy_span_ns",
            "grad_copy_bytes",
            "n_grad_copies",
            "wait_ns",
            "exposed_wait_ns",
            "transfer_ns",
            "message_bytes",
            "bus_bytes",
            "comm_delay_ns",
            "idle_launch_ns",
            "idle_blocked_ns",
        }
    ),
}


def _saved(*schemas: TableSchema) -> dict[str, TableSchema]:
    key = RUNS.key
    column = RUNS.columns[:1]
    return {
        schema.name: TableSchema(schema.name, schema.doc, key + schema.key, column + schema.columns)
        for schema in schemas
    }


_RESULTS = (RANKS, STEPS, PHASES, COLLECTIVES, STRAGGLERS, TRAFFIC, KERNEL_COSTS, LINKS)
_SUMMARIES = (RANK_SUMMARY, PHASE_SUMMARY, IDLE_CALLS, TIMELINE, HOST_STEPS, FINDINGS, PROBLEMS)

EVENT_TABLES = _saved(EVENTS, PHASE_RANGES)  # written on demand only, and by rank
OfRank: TypeAlias = tuple[int, pa.Table, pa.Table]  # a rank's number, and these two of it
DATASET = {RUNS.name: RUNS} | _saved(*_RESULTS, *_SUMMARIES, METRICS) | EVENT_TABLES

# Tables of a run by name; those of its JSON document, by their key there; and all that ``nsyspipe
# schema`` prints.
RUN_TABLES = {one.name: one for one in (*_RESULTS, SUMMARY, *_SUMMARIES)}
DOCUMENTED = {
    one.name: one
    for one in (RANKS, STEPS, PHASES, IDLE_CALLS, HOST_STEPS, STRAGGLERS, TRAFFIC, LINKS)
}
DOCUMENTED[PHASES.name] = PHASE_SUMMARY
DESCRIBED = RUN_TABLES | {one.name: one for one in (COSTS, EVENTS, PHASE_RANGES, RUNS, METRICS)}
