"""All tables of a run by name: which it is saved as, and which a user gets, with every column's unit and formula."""

from typing import TypeAlias

import pyarrow as pa

from nsyspipe.model.table import TableSchema, table

_RANK = "rank  id  global rank <- the first of rank map, environment, NCCL payload, MPI thread name, file name, order that numbers every rank"
_STEP = "step  id  step number, the same on every rank <- NVTX range text, or its ordinal"
_CALLS_NULL = "null without API calls, or without their names and ends"

STEPS = table(rf"""steps by rank, start_ns: One row per (rank, step): where the step's wall time goes. C, M, P are the unions of the rank's compute, comm and
        memory operations clipped to the window. compute + exposed_comm + exposed_memory + idle = wall and exposed_comm + overlap_compute = comm, exactly.
    {_RANK}
    {_STEP}
    start_ns                ns      window start, aligned time: start of the step's first compute or comm kernel; on a rank without launches the step range's
        own start, without steps the first operation's <- KERNEL.start
    end_ns                  ns      window end: where the next window starts; the last one ends with its last operation <- KERNEL.start
    wall_ns                 ns      end - start <- derived
    compute_ns              ns?     |C| <- KERNEL, GRAPH_TRACE
    comm_ns                 ns?     |M| <- KERNEL
    exposed_comm_ns         ns?     |M \ C| <- KERNEL
    exposed_memory_ns       ns?     |P \ (C u M)| <- MEMCPY, MEMSET
    idle_ns                 ns?     wall - |C u M u P| <- KERNEL, MEMCPY, MEMSET
    dtod_ns                 ns?     |D|, D = the device-to-device copies, but those that are communication <- MEMCPY
    dtod_bytes              bytes?  bytes of DtoD copies that start in the window <- MEMCPY
    n_dtod                  count?  DtoD copies that start in the window <- MEMCPY
    exposed_dtod_ns         ns?     |D \ (C u M)| <- MEMCPY
    overlap_compute_ns      ns?     |M n C| <- KERNEL
    comm_on_compute_stream_ns ns?   |M_s|, M_s = the comm operations on the stream that most of the rank's compute kernels run on, those of CUDA graphs apart: nothing
        else of that stream can run beside them; null without launches, and in a run saved before there was this column <- KERNEL.streamId
    overlap_backward_ns     ns?     |M n B|, B = compute kernels launched inside a backward range, by any thread; null on a rank without a backward range or
        without launches <- KERNEL, RUNTIME, NVTX_EVENTS
    n_collectives           count?  comm operations that start in the window <- KERNEL
    wait_ns                 ns?     |W|, W = the union of [own start, min(last start, own end)) over the rank's matched collectives; null in a run of one rank,
        without a common clock, or where an operation of the step is unmatched, or of a communicator of which a rank is missing <- KERNEL
    exposed_wait_ns         ns?     |W \ C|: of the waiting the part beside no compute; exposed_comm less it is exposed transfer; null where wait is <- KERNEL
    transfer_ns             ns?     comm - wait: communication with all ranks there; null where wait is <- KERNEL
    message_bytes           bytes?  whole messages of the collectives that belong to the step; null where one is not known <- NCCL payload
    idle_input_ns           ns?     idle because the host got the next batch, in the data phase or between two steps (see idle_between_steps): |late n (data u
        between)| of gaps [g0, g1) ended by an operation launched at L, with R = min(max(L + latency, g0), g1), late = [g0, R); latency is the rank's shortest
        time from a kernel's launch to its start (copies are not looked at), clamped to 20 us. The five causes sum to idle_ns exactly, and are null where it is, or where the clocks of device and host may be apart by a step <- RUNTIME, NVTX_EVENTS
    idle_launch_ns          ns?     idle because the launch came late for any other reason: |late \ (data u between)| - idle_blocked; {_CALLS_NULL} <- RUNTIME
    idle_blocked_ns         ns?     idle because the host was blocked in a synchronisation or memory call: |late \ (data u between)| from the start of
        each such call, which drained the queue, until as much late time as it lasted has gone by, and at most as long after its end as it lasted: without it all
        launches behind it had come so much earlier; {_CALLS_NULL} <- RUNTIME.nameId, start, end, MEMCPY
    idle_dependency_ns      ns?     g1 - R: launched by then, it waited for an event of another stream, or for the device to start it (with more latency than
        the 20 us that R is clamped to, too) <- RUNTIME
    idle_unknown_ns         ns?     idle - all of these: no launch recorded
    idle_between_steps_ns   ns?     of idle_input the part in which the host was between two steps: after the end of one step range and before the start of the
        next, the longest stretch in which the thread of the steps was in no range (those around several steps apart) and in no CUDA call: probably the data
        loader; where less than 2 ms are between (steps of the optimizer), such a stretch of 2 ms and more between the launches of kernels around the start of the next <- RUNTIME, NVTX_EVENTS
    idle_pause_ns           ns?     of idle_launch the part in pauses: stretches of 2 ms and more in which the host launched nothing that the device could have
        started, while it was in no data phase and in no synchronisation or memory call, nor behind one as idle_blocked has it <- RUNTIME, NVTX_EVENTS
    idle_blocked_by_copies_ns  ns?  of idle_blocked the part that blocking copies from the host explain (see n_blocking_copies) <- RUNTIME, MEMCPY
    idle_made_by_input_ns   ns?     at most what input makes of idle time: gaps that a late launch ends, from the start of each time in which the host got
        input until as much of them as it lasted has gone by, as idle_blocked has it of calls <- RUNTIME, NVTX_EVENTS
    idle_made_by_calls_ns   ns?     at most what synchronisation and memory calls make of idle time, those of blocking copies from the host apart: gaps that a late
        launch ends, from the start of each call until as much of them as it lasted has gone by, as idle_blocked has it; {_CALLS_NULL} <- RUNTIME
    idle_made_by_copies_ns  ns?     the same for the calls of blocking copies from the host <- RUNTIME, MEMCPY
    n_blocking_copies       count?  copies from the host that start in the window and may block it: out of pageable memory, by a call without Async in its name, or
        with a call that synchronises as the next call of the same thread; null without API calls, copies or their kinds <- MEMCPY, RUNTIME
    n_pageable_copies       count?  of these the ones out of pageable memory; null where the kind of memory is not known <- MEMCPY.srcKind
    blocking_copy_bytes     bytes?  bytes of the blocking copies; null where n_blocking_copies is <- MEMCPY.bytes
    exposed_blocking_copy_ns  ns?   union of the blocking copies beside neither compute nor comm; null where n_blocking_copies is <- MEMCPY, KERNEL
    host_launch_ns          ns?     how long the host took to launch the step: from the launch of its first kernel to the launch of the next step's first
        kernel (of the last step: to its last launch), without calls that waited for the device. Such a call synchronises, or allocates, frees or copies
        memory, or is a launch of 100 us and more with 256 operations and more still in the queue; {_CALLS_NULL}, or without launches <- RUNTIME
    host_input_ns           ns?     of host_launch the part in which the host got the next batch, in the data phase or between two steps (see
        idle_between_steps); null where host_launch is <- RUNTIME, NVTX_EVENTS
    host_lead_ns            ns?     how long before the window's start its first kernel was launched; null where host_launch is <- RUNTIME, KERNEL.start
    idle_late_start_ns      ns?     of idle_dependency the part in gaps in which a launch came late: the device took longer than the shortest latency to start
        it; null where idle_dependency is <- RUNTIME
    exposed_late_comm_ns    ns?     of exposed_comm the part that late launches expose: comm operations that started within 20 us of their launch, and times in
        which the compute kernel that starts next was not launched yet, or for less than the shortest latency (see idle_input): launched in time it could have run
        beside compute; null without launches, where idle_dependency is, and in a run saved before there was this column <- KERNEL, RUNTIME
    grad_copy_ns            ns?     union of DtoD copies launched in runs of at least 8 with nothing between, inside backward ranges where there are any:
        gradients copied out of their buckets <- MEMCPY, RUNTIME
    exposed_grad_copy_ns    ns?     of that the part beside neither compute nor comm <- MEMCPY, RUNTIME
    grad_copy_span_ns       ns?     the union of these copies and of the gaps of up to 20 us from the end of one to the start of the next in the same window <-
        MEMCPY, RUNTIME
    grad_copy_bytes         bytes?  bytes of those that start in the window <- MEMCPY
    n_grad_copies           count?  number of those that start in the window <- MEMCPY
    comm_delay_ns           ns?     how much later operations began beside communication, all together: those that began beside it x (mean gap before a compute
        kernel there - mean gap without communication), at least 0; of gaps up to 100 us whose kernel was launched before the gap; null with fewer than 100 of
        either kind in the capture <- KERNEL, MEMCPY, MEMSET, RUNTIME
    overhead_ns             ns?     time in the window in which the profiler was at its own work in the rank's process; 0 without the table in a lazy export of schema 2.9 or newer,
        else null without it <- PROFILER_OVERHEAD
    is_complete             flag    neither cut off at the capture's end nor at its start <- derived
    in_summary              flag    counts in the run's figures <- derived
    comm_share              ratio?  comm / wall <- derived
    exposed_comm_share      ratio?  exposed_comm / wall <- derived
    overlap_ratio           ratio?  overlap_compute / comm <- derived
    backward_overlap_ratio  ratio?  overlap_backward / comm <- derived
    idle_share              ratio?  idle / wall <- derived
    compute_share           ratio?  compute / wall <- derived
    exposed_memory_share    ratio?  exposed_memory / wall <- derived
    wait_share              ratio?  wait / wall <- derived
    transfer_share          ratio?  transfer / wall <- derived
""")

# Why devices idle, and what a phase costs: columns of the steps and of the phases.
IDLE_CAUSES = tuple(f"idle_{cause}_ns" for cause in ("input", "launch", "blocked", "dependency", "unknown"))
# Parts of these, and what each source makes of idle time at most.
IDLE_DETAILS = (
    "idle_between_steps_ns", "idle_pause_ns", "idle_blocked_by_copies_ns",
    *(f"idle_made_by_{source}_ns" for source in ("input", "calls", "copies")),
)  # fmt: skip

_NO_DEVICE = "null on a rank without launches of kernels, where the step has no window"

PHASES = table(f"""phases by rank, step, phase: One row per (rank, step, phase) that has a range. An operation belongs to the phase whose host range holds its
        launch, whatever thread launched it.
    {_RANK}
    {_STEP}
    phase            text    backward, forward, optimizer or data <- NVTX_EVENTS
    host_ns          ns      union of the phase's host ranges in the step <- NVTX_EVENTS
    n_kernels        count?  compute and comm operations launched in those ranges; null without launches <- RUNTIME
    compute_ns       ns?     union of the compute operations that belong to this phase, clipped to the step's window; {_NO_DEVICE}, or without names of kernels
        <- KERNEL, RUNTIME
    comm_ns          ns?     the same of comm operations; null where compute is <- KERNEL, RUNTIME
    exposed_comm_ns  ns?     of that the part beside no compute of any phase; null where compute is <- KERNEL, RUNTIME
    device_ns        ns?     union of all operations that belong to this phase, copies too, clipped to the window; {_NO_DEVICE}, or where copies or memsets were
        not recorded <- KERNEL, MEMCPY, MEMSET, RUNTIME
    n_blocking_copies  count?  blocking copies from the host that were launched in those ranges; null where they are in the steps <- MEMCPY, RUNTIME
    idle_ns          ns?     idle time of the step's window in gaps that an operation of this phase ends; null where device is <- KERNEL, MEMCPY, MEMSET,
        RUNTIME
""")
PHASE_TIMES = tuple(column.name for column in PHASES.columns if column.unit == "ns")

IDLE_CALLS = table("""idle_calls by blocked_ns_per_step, call: One row per API call that hosts were blocked in while their devices idled in summary steps,
        largest first, then by name. The rows sum to idle_blocked_ns_per_step of the summary; there are none where that is null.
    call                 text      name of the call, less the API version; of calls under way together the one that returns last, behind them the one that explains idle time
        longest <- RUNTIME.nameId
    blocked_ns_per_step  float:ns  mean over (rank, step) of the part of idle_blocked_ns that this call explains <- RUNTIME.nameId, start, end
    of_copies_ns_per_step  float:ns?  the part of it that is of blocking copies from the host <- RUNTIME, MEMCPY
""")

_UNMATCHED = "null where the operation is not matched or a rank of its communicator is missing, in a run of one rank, or without a common clock"

COLLECTIVES = table(f"""collectives by step, seq, rank: One row per communication operation that belongs to a step: a collective on one rank. The k-th operation
        of a communicator in a step is the same collective on all its ranks.
    {_STEP}
    seq                  count         place in the step, by first start; the same on all ranks if matched <- derived
    {_RANK}
    collective           text          all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send_recv, other <- KERNEL names
    datatype             text?         element type, as f32 <- KERNEL names
    algorithm            text?         as RING_LL <- KERNEL names
    comm_id              text          communicator: NCCL's hash, else collective/order of first use of its (device, stream) <- NCCL payload, KERNEL.streamId
    start_ns             ns            own start, aligned time <- KERNEL.start
    end_ns               ns            own end, aligned time <- KERNEL.end
    exposed_ns           ns?           own time beside no compute; null on a rank with CUDA graphs as a whole, and where saved without it <- KERNEL
    is_matched           flag          has its counterparts on the other ranks <- derived
    in_summary           flag          its step counts in the run's figures <- derived
    n_ranks              count?        ranks matched; {_UNMATCHED} <- derived
    arrival_skew_ns      ns?           last start - first start; {_UNMATCHED}
    wait_ns              ns?           last start - own start; {_UNMATCHED}
    transfer_ns          ns?           own end - last start, at least 0; {_UNMATCHED}
    late_by_ns           ns?           of the rank that arrived last: last start - second-last start; 0 of the others; {_UNMATCHED}
    held_up_ns           ns?           of the rank that arrived last (of several the lowest): the longest that another waited, the largest min(last start, own
        end) - own start; 0 of the others, and where the skew is not significant; {_UNMATCHED}
    is_significant       flag?         arrival_skew exceeds the larger clock error of the first and the last rank, never where an error is not known;
        {_UNMATCHED} <- derived
    is_late_significant  flag?         late_by exceeds the larger clock error of the last and the second-last rank, likewise; {_UNMATCHED} <- derived
    message_bytes        bytes?        the whole array, as nccl-tests counts: for all_gather, reduce_scatter and all_to_all NCCL's figure x ranks of the
        communicator <- NCCL payload
    bus_bytes            float:bytes?  message_bytes x 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter, all_to_all, else 1 <- NCCL payload
    algbw_bytes_per_s    bytes/s?      message_bytes / transfer <- derived
    busbw_bytes_per_s    bytes/s?      bus_bytes / transfer <- derived
""")

_OVER = "over matched collectives of summary steps; null when none could be matched, and in a run of one rank"

STRAGGLERS = table(f"""stragglers by rank: One row per rank: how the others waited for it.
    {_RANK}
    n_arrived_last  count?  collectives in which it arrived last, alone, but for those in which stages of a pipeline meet, {_OVER} <- KERNEL.start
    wait_caused_ns  ns?     sum of late_by of these, less what the rank itself waited longer for other stages in that step, {_OVER} <- KERNEL.start
    lateness_ns     ns?     sum over steps of the step's largest late_by of these, less the same, for the rank of that, 0 for others, {_OVER} <- KERNEL.start
    held_up_ns      ns?     sum of held_up of these, less the same, at most the step's time in each step, {_OVER} <- KERNEL.start
    wait_ns         ns?     sum of wait_ns of its summary steps; null where one of them is, and without summary steps <- KERNEL.start
""")

TRAFFIC = table("""traffic by rank, communicator, collective: One row per (rank, communicator, collective), and one of all its ranks together, with
        rank null: means over (rank, summary step).
    rank                id?           global rank; null for the communicator's ranks together <- as in ranks
    communicator        text:id       NCCL's hash, 0x...; without payloads the collective and the order in which its stream was first used, all_reduce/0 <- NCCL
        payload, else KERNEL.streamId
    collective          text          all_reduce, all_gather, ... <- KERNEL names, NCCL payload
    role                text          what it serves: data (gradients), sharded (parameters and their gradients), tensor (inside layers), pipeline (between
        stages), expert (all-to-all), other <- collectives, sizes, and the pass that launches them
    n_ranks             count?        ranks of the communicator <- NCCL payload, else the ranks that use it
    ranks               text          those of the run that use it, 0,2,4,6 <- KERNEL
    calls_per_step      float:count?  operations <- KERNEL
    bytes_per_step      float:bytes?  whole messages, as nccl-tests counts; null where one is not known <- NCCL payload
    comm_ns_per_step    float:ns?     |M|, M = the union of its operations, clipped to the step's window; unions of different rows may overlap <- KERNEL
    exposed_ns_per_step float:ns?     |M \\ C|, C = the rank's compute <- KERNEL
    exposed_part_ns_per_step float:ns? its part of that: while several rows of a rank are exposed at once, each has an equal part of the time, so that the parts of
        a rank sum to its exposed_comm; null in a run saved before there was this column <- KERNEL
    hidden_ns_per_step  float:ns?     |M n C| <- KERNEL
    wait_ns_per_step    float:ns?     the union of [own start, min(last start, own end)) over its matched operations; null where one is not matched, and of a
        pipeline, whose stages wait for each other by design <- KERNEL
    bubble_ns_per_step  float:ns?     that of a pipeline: waiting between stages, nobody's lateness; null of all other roles <- KERNEL
    algbw_bytes_per_s   float:bytes/s?  bytes / transfer; null where a size is not known or an operation not matched <- derived
    busbw_bytes_per_s   float:bytes/s?  bus bytes / transfer <- derived
""")

KERNEL_COSTS = table(f"""kernels by rank, phase, name: One row per (rank, phase, name) over the whole capture, cut-off steps too; the columns in_summary: summary steps.
    {_RANK}
    phase              text?   phase that launched them; null outside of all <- NVTX_EVENTS
    name               text    without parameters and template arguments, with the functor that tells it apart in brackets; ncclAllGather [copies] of copies
        that are a collective <- KERNEL.demangledName, else shortName; NVTX_EVENTS
    n_kernels          count   how many <- KERNEL
    total_ns           ns      sum of durations <- KERNEL
    mean_ns            ns      total / n, floored <- derived
    min_ns             ns      shortest <- KERNEL
    max_ns             ns      longest <- KERNEL
    overlapped_ns      ns      time with communication under way; 0 of communication itself <- KERNEL
    not_overlapped_ns  ns      total - overlapped <- derived
    n_slowed           count   kernels beside communication, all or in part, that have equal ones without it: equal in name, grid and block, their own and their
        three neighbours' on either side in order of launch, with at least three that ran beside no communication and are about as long as each other (of a
        large report a sample of 50 000 kernels is compared) <- KERNEL
    slowed_ns          ns      their time with communication under way <- derived
    free_ns            ns      what that time would be without: less what each takes longer than the median of its equals <- derived
    slowdown_ratio     ratio?  slowed / free - 1; null where there are no equal ones <- derived
    n_in_summary       count?  how many of them start in the window of a summary step; null in a run saved before there was this column; and, where a rank has
        over 2^18 pairs of a step and a row, so that steps in the middle are summed together, if only a part of such a group are summary steps <- KERNEL
    in_summary_ns      ns?     sum of the durations of those; null likewise <- KERNEL
    overlapped_in_summary_ns ns? of that the time with communication under way, as overlapped; null likewise <- KERNEL
""")

COSTS = table("""costs by table: One row per phase and name of kernels, kind and size of collectives, or communicator and collective (traffic): summary steps of
        all ranks, the costliest first. Figures per step are means over (rank, step), of traffic over its ranks. They are null in a capture, and where a part of the sum is null.
    table                   text            kernels, collectives or traffic
    name                    text            of the kernel, as in kernels, or of the collective <- KERNEL names
    phase                   text?           of kernels: phase that launched them; null outside of all <- NVTX_EVENTS
    message_bytes           bytes?          of collectives: the whole message of one, as in collectives <- NCCL payload
    communicator            text:id?        of traffic: as there
    role                    text?           of traffic: as there
    ranks                   text?           of traffic: as there
    n_calls                 count?          kernels, collectives: all of them, of all ranks and summary steps <- KERNEL
    total_ns                ns?             sum of the durations of these calls <- KERNEL
    step_share              ratio?          total / sum of wall over ranks and summary steps <- derived
    calls_per_step          float:count?    n_calls, per step
    time_ns_per_step        float:ns?       total, per step; of traffic comm_ns_per_step
    beside_comm_ratio       ratio?          of kernels: overlapped_in_summary / total; null of NCCL's own, and where steps' comm is <- KERNEL
    slowdown_ratio          ratio?          of kernels over the whole capture, as in kernels <- KERNEL
    n_slowed                count?          of kernels: how many of the whole capture's were compared for that <- KERNEL
    bytes_per_step          float:bytes?    of collectives and traffic: whole messages <- NCCL payload
    exposed_ns_per_step     float:ns?       of collectives the sum of exposed, of traffic as there <- KERNEL
    hidden_ns_per_step      float:ns?       time - exposed <- derived
    wait_ns_per_step        float:ns?       of collectives the sum of min(wait, own time), of traffic as there <- KERNEL
    bubble_ns_per_step      float:ns?       of traffic, as there
    transfer_ns_per_step    float:ns?       of collectives the sum of transfer <- KERNEL
    algbw_bytes_per_s       bytes/s?        of collectives the sum of message_bytes / sum of transfer, of traffic as there <- derived
    busbw_bytes_per_s       bytes/s?        the same of bus_bytes <- derived
""")

# From the fastest to the slowest; what is not known stands last.
LINK_KINDS = ("nvlink", "p2p", "p2p_pcie", "shm", "net", "unknown")

LINKS = table("""links by from_rank, to_rank: One row per directed edge that NCCL laid in rings, and in trees between hosts, for one communicator: that over most hosts; where several are over as many, that of most ranks. Without an NCCL log one row per pair of GPUs.
    comm_id              text:id?   communicator; null without an NCCL log: the row is a pair, not an edge <- NCCL log
    from_rank            id        sender's rank in the communicator <- NCCL log
    to_rank              id        receiver's rank in the communicator <- NCCL log
    transport            text?     what NCCL set up, in its words; null when no line says so <- NCCL log
    n_channels           count?    channels of collectives on this edge; null when no line of this communicator says so <- NCCL log
    path                 text?     what lies between the two GPUs: NV#, PIX, PXB, PHB, NODE, SYS; null across hosts <- nvidia-smi topo -m
    kind                 text      nvlink, p2p_pcie, p2p (direct, the topology does not say over what), shm (host memory), net, unknown; of several transports
        the slowest <- transport and path
    nominal_bytes_per_s  bytes/s?  what the data sheet promises per direction; of path when the transport is not known; null for networks and unknown models <-
        GPU model, transport and path
    nominal_source       text?     what that figure is: generation, number of links, GPU model <- data sheet
    algorithms           text?     ring, tree or both, which NCCL lays over it; null where no line says so <- NCCL log
""")

EVENTS = table(f"""events by rank, start_ns: One row per device operation: kernel, copy or memset. Copies that one call of NCCL, or of symmetric
        memory, launched to communicate are one row, from the first start to the last end.
    {_RANK}
    step            id?     step it belongs to, maybe not the one in whose window it runs; null for none <- RUNTIME, NVTX_EVENTS
    phase           text?   phase whose host range holds its launch; null outside of all <- RUNTIME, NVTX_EVENTS
    category        text    compute (CUDA graphs too), comm or memory <- KERNEL names, MEMCPY, MEMSET, GRAPH_TRACE
    name            text    as in `kernels`; memcpy HtoD, DtoH, DtoD, ... (memcpy: of a kind that is not known) or memset <- KERNEL.demangledName, else
        shortName; MEMCPY.copyKind
    device_id       id?     CUDA ordinal inside the process <- KERNEL.deviceId
    stream_id       id?     stream inside its context <- KERNEL.streamId
    start_ns        ns      device start, aligned time <- KERNEL.start
    end_ns          ns      device end, aligned time <- KERNEL.end
    dur_ns          ns      end - start <- derived
    launch_ns       ns?     start of the API call that launched it, aligned time <- RUNTIME.start
    correlation_id  id?     joins the API call, inside the process <- KERNEL.correlationId
    bytes           bytes?  moved or set; null of kernels <- MEMCPY.bytes
    collective      text?   of communication: all_reduce, ...; null otherwise <- KERNEL names
    seq             count?  of communication that belongs to a step: its row of `collectives` <- derived
""")

PHASE_RANGES = table(f"""phase_ranges by rank, start_ns, phase: One row per host range of a phase, and one per step range (phase null): when the host was in it,
        and when the device ran what was launched in it.
    {_RANK}
    step             id      step number <- NVTX_EVENTS
    phase            text?   backward, forward, optimizer or data; null of the step itself <- NVTX_EVENTS
    start_ns         ns      host start, aligned time <- NVTX_EVENTS.start
    end_ns           ns      host end, aligned time <- NVTX_EVENTS.end
    n_operations     count?  device operations launched inside, by any thread; null where the process has no launches <- RUNTIME
    device_start_ns  ns?     first start of those, aligned time; null without any <- KERNEL.start, MEMCPY.start
    device_end_ns    ns?     last end of those, aligned time; null without any <- KERNEL.end, MEMCPY.end
""")

TIMELINE = table(f"""timeline by rank, lane, start_ns: One row per bar of the representative step: the step of the figures whose step time is closest to the
        median. Of more than 64 ranks it has 64: the most waited for, the slowest, the most exposed, the fastest, and some between. Operations that overlap are one bar, but of communication each time belongs to the operation that began first; bars of phases may overlap.
        Neighbouring ones of a lane are joined, those with the smallest gaps first, until few enough are left.
    step          id      the step drawn, the same on every row <- derived
    {_RANK}
    lane          text    phase (from the first start to the last end of what was launched in a range of it), compute, comm, exposed (of comm, where no compute
        runs), wait (of matched comm, for the last rank), memory, or launch (of all operations that run in the window, from the call that launched each to its
        start: then the device has something to do next) <- derived
    start_ns      ns      start, aligned time, clipped to the rank's window <- derived
    end_ns        ns      end, aligned time, clipped to the rank's window <- derived
    busy_ns       ns      of that the union of its operations; less than end - start where gaps were joined
    exposed_ns    ns?     of comm: the part of busy beside no compute; null of other lanes
    wait_ns       ns?     of comm: the part of busy spent waiting for the last rank; null of other lanes, and where wait_ns of the step is
    n_operations  count   operations in the bar that have a part in the window; of a phase those launched in it, of exposed the parts that compute leaves of
        them <- KERNEL, MEMCPY, MEMSET
    name          text?   of the bar's operations with most time in the window, each for itself; the phase's or collective's <- derived
    seq           count?  of comm, exposed and wait: its row of `collectives`; null of a bar of several operations, and of other lanes <- derived
""")

RANKS = table(f"""ranks by rank: One row per rank: a process with device activity, on each device that it runs kernels on.
    {_RANK}
    process_rank     id?     number of its process, which launchers and --rank-map give: the rank, unless processes of the run have several devices; null where the
        run was saved before there was this column <- as of the rank
    local_rank       id?     captured LOCAL_RANK <- META_DATA_CAPTURE
    report           text    report that holds the rank; of a process that was captured several times all of them, comma separated <- file name
    pid              id      operating system's process id <- globalPid
    device_id        id?     the rank's device <- KERNEL.deviceId
    device_ids       text    all devices of the process, comma separated <- KERNEL.deviceId
    gpu_name         text?   model of that device <- TARGET_INFO_GPU
    host             text?   host name <- TARGET_INFO_SYSTEM_ENV
    rank_source      text    where the number comes from: rank_map, env:RANK (or another variable), sidecar, nccl_payload, nvtx_mpi, file_name, order <- derived
    n_kernels        count?  compute and comm operations <- KERNEL, GRAPH_TRACE
    compute_stream_id id?    the stream that most of its compute kernels run on, of several the lowest; null without any <- KERNEL.streamId
    n_comm           count?  comm operations: kernels, and the copies of one call as one <- KERNEL names, NVTX_EVENTS
    n_dtod           count?  device-to-device copies, but those that are communication <- MEMCPY.copyKind = 8
    clock_shift_ns   ns      added to the report's own times to get aligned time: utcEpochNs - the run's lowest (0 where a report lacks it) - clock_offset <-
        TARGET_INFO_SESSION_START_TIME
    clock_offset_ns  ns?     the report's clock less the others': median over matched all_reduce, all_gather, reduce_scatter, all_to_all of (own end - median
        end over ranks), of all its ranks; 0 unless above the error and at least 3; null where some never meet others; of several captures that of the first <- KERNEL.end
    clock_error_ns   ns?     1.4826 x median absolute deviation of the same; a skew below it is not significant; 0 in a run of one report, null with fewer than
        3; of several captures the largest <- KERNEL.end
""")

_HOST_PHASES = "\n".join(
    f"    {phase}_ns ns? union of the {phase} ranges inside the step, on its thread; 0 in a step without, null on a process "
    "without any <- NVTX_EVENTS"
    for phase in ("data", "forward", "backward", "optimizer")
)
HOST_STEPS = table(f"""host_steps by rank, report, pid, step: One row per (process, step) of a run without any device activity: how long its NVTX step range
        lasted on the host. No rows where any process of the run has device activity: its steps are in `steps`. Time on the host is no time on a device: it ends
        when work was handed over, not when it was done.
    rank           id?   global rank; null when no source but the order numbers every process with steps <- as in `ranks`
    report         text  report that holds the process <- file name
    pid            id    operating system's process id <- globalTid
    step           id    step number, the same on every process <- NVTX range text, or its ordinal
    host_start_ns  ns    start of the step range, report time + utcEpochNs - the run's lowest (nothing added where a report lacks it) <- NVTX_EVENTS
    host_end_ns    ns    end of the step range, on the same clock <- NVTX_EVENTS
    host_ns        ns    host_end - host_start <- derived
{_HOST_PHASES}
    is_complete    flag  false where the range was never closed: it then ends 1 ns after the report's last event <- NVTX_EVENTS
""")

_RATIOS = [column for column in STEPS.columns if column.unit == "ratio"]
_FIGURES = f"""
    comm_share                   ratio?        comm / wall, pooled: sum over ranks and summary steps of the numerator / sum of the denominator <- derived
{"".join(f"    {one.name} ratio? {one.doc}, pooled <- derived{chr(10)}" for one in _RATIOS[1:-1])}
    transfer_share               ratio?        (comm - wait) / wall, pooled <- derived
    dtod_ns_per_step             float:ns?     mean dtod_ns over (rank, step) <- derived
    dtod_bytes_per_step          float:bytes?  mean dtod_bytes over (rank, step) <- derived
    collectives_per_step         float:count?  mean n_collectives over (rank, step) <- derived
{"".join(f"    {name}_per_step float:ns? mean {name} over (rank, step): idle time by cause <- derived{chr(10)}" for name in IDLE_CAUSES)}
    message_bytes_per_step       float:bytes?  mean message_bytes over (rank, step) <- derived
    algbw_bytes_per_s            bytes/s?      sum of message_bytes / sum of transfer over matched collectives of summary steps <- derived
    busbw_bytes_per_s            bytes/s?      sum of bus_bytes / sum of transfer over the same <- derived
"""

_SUMMARY = f"""
    n_steps                 count      steps with a window on some rank <- derived
    n_summary_steps         count      steps the figures rest on <- derived
    step_time_ns            float:ns?  per summary step the largest window over ranks; the median of those <- derived
    throughput_steps_per_s  1/s?       1e9 / mean of the same <- derived
{_FIGURES}
"""

SUMMARY = table(f"""summary: One row: the run's figures over its summary steps, which are those complete on every rank but for the skipped ones; if there are none, all steps that every rank has.
{_SUMMARY}
""")

RANK_SUMMARY = table(f"""rank_summary by rank: One row per rank: the same figures over the rank's summary steps.
    {_RANK}
    step_time_ns  float:ns?  median of the rank's windows <- derived
{_FIGURES}
""")
FIGURES_OF_RANKS = tuple(RANK_SUMMARY.names[2:])

PHASE_SUMMARY = table(f"""phase_summary by phase: One row per phase: means over the (rank, step) of the figures that have it.
    phase  text  backward, forward, optimizer or data <- NVTX_EVENTS
{"".join(f"    {name}_per_step float:ns? mean of {name} of phases <- derived{chr(10)}" for name in PHASE_TIMES)}
""")

FINDINGS = table("""findings by expected_ns_per_step, saving_ns_per_step, id: One row per rule that fired: the largest likely gain first, where none is known the largest saving; comm-bound behind the findings whose advice would lessen it.
    id                    text       stable identifier of the rule
    severity              text       high, medium or low: the saving is at least 10 %, at least 3 % of step time, or less or not known <- derived
    title                 text       what was found
    action                text       what to change, in a few words
    advice                text       what to change, with the option's name
    saving_ns_per_step    float:ns?  upper bound on the step time that the change could give back: step time less a limit without the cause, of what transfers cost
        no more than what a replay gains if they took no time (limit_gain_ns of whatif), where one answers; null where it has none <- derived
    expected_ns_per_step  float:ns?  what the change would likely bring: step time less that of a replay with it (nsyspipe whatif, which says how), the mean
        over steps, never cut to saving_ns_per_step; the evidence has the replay's range, which may hold no gain at all; null where the replay knows no such
        change, or a limit (replay_limit_ns_per_step) or a condition (replay_conditional_ns_per_step) alone, refused it (replay_refused in the evidence says why), or the run was saved before there was this column <- derived
    evidence              json       the figures that the rule rests on, as a JSON object
""")

PROBLEMS = table("""problems: One row per thing that could not be read or answered, what it costs, and what would bring it back.
    code      text   stable identifier
    severity  text   error, warning or info
    report    text?  the report concerned
    rank      id?    the rank concerned
    message   text   what is missing and which answer it costs
    fix       text?  the flag or option that mends it
""")

RUNS = table(f"""runs by run_id: One row per run: what identifies it, and its figures.
    run_id                  word:id     the run, as in the directory's name <- --run-id, else capture time and contents
    label                   text        name of the run <- --label, else what the reports' names have in common
    n_ranks                 count       ranks that the reports hold <- derived
    n_processes             count?      processes that they are of: fewer where some have several devices; null where the run was saved before there was this column <- derived
    world_size              count?      ranks that the job had <- WORLD_SIZE, NCCL
    gpu_names               text        models, comma separated <- TARGET_INFO_GPU
    hosts                   text        host names, comma separated <- TARGET_INFO_SYSTEM_ENV
    nsys_versions           text        versions of nsys that captured, comma separated <- META_DATA
    export_schema_versions  text        of the exports, comma separated <- META_DATA_EXPORT
    captured_at_utc         time?       start of the earliest session <- TARGET_INFO_SESSION_START_TIME
    reports                 text        names of the reports, comma separated <- file names
    step_family             text?       the NVTX texts that are the steps; null without steps <- NVTX_EVENTS
{_SUMMARY}
    link_kind               text?       kind of the slowest link, as in `links`; null when not known <- NCCL log, topology
    nccl_version            text?       of NCCL; null without its log <- NCCL log
    environment             json?       training variables of the programs when they started, those on the list of harmless ones, as a JSON object; null where no
        report captured them, and in runs saved before there was this column <- META_DATA_CAPTURE
    n_findings              count?      rules that fired; null where the run was saved before there was this column <- `findings`
    first_finding           text?       identifier of the first of them; null without any, and so are the two that follow <- `findings`
    first_action            text?       what it says to change, in a few words <- `findings`
    first_saving_ns_per_step  float:ns?  its upper bound on the step time that this could give back; null where it has none <- `findings`
    tool_version            text        nsyspipe that wrote the run
    schema_version          count       version of this dataset's columns
    definitions_version     count?      version of the definitions that the figures follow; null means 1: saved before there was this column
    details                 json        lists and verdicts of the run, for nsyspipe's own use
""")

METRICS = table("""metrics by rank, step, metric: One row per figure: of the run (rank and step null), of a rank (step null), or of a (rank, step). The long
        form of `runs`, `rank_summary` and `steps`, for dashboards.
    rank        id?                  global rank; null for the run's figures
    step        id?                  step number; null for the run's and a rank's
    metric      text                 name of the column that it is in those tables
    unit        text                 its unit there
    value       float:the_metric's?  its value; null when not recorded
    in_summary  flag?                of a (rank, step): it counts in the run's figures
""")

# Columns of steps and collectives that mean something else since a version of the definitions. In version 2 a rank is a process
# and a device, libraries other than NCCL and the copies that they launch are communication, and idle time after a call that
# drained the queue is blocked.
CHANGED_COLUMNS: dict[int, frozenset[str]] = {
    2: frozenset({
        "compute_ns", "comm_ns", "exposed_comm_ns", "overlap_compute_ns", "overlap_backward_ns", "n_collectives",
        "exposed_memory_ns", "dtod_ns", "dtod_bytes", "n_dtod", "exposed_dtod_ns",
        "grad_copy_ns", "exposed_grad_copy_ns", "grad_copy_span_ns", "grad_copy_bytes", "n_grad_copies",
        "wait_ns", "exposed_wait_ns", "transfer_ns", "message_bytes", "bus_bytes", "comm_delay_ns",
        "idle_launch_ns", "idle_blocked_ns",
    }),
}  # fmt: skip


def _saved(*schemas: TableSchema) -> dict[str, TableSchema]:
    key, column = RUNS.key, RUNS.columns[:1]
    return {one.name: TableSchema(one.name, one.doc, key + one.key, column + one.columns) for one in schemas}


_RESULTS = (RANKS, STEPS, PHASES, COLLECTIVES, STRAGGLERS, TRAFFIC, KERNEL_COSTS, LINKS)
_SUMMARIES = (RANK_SUMMARY, PHASE_SUMMARY, IDLE_CALLS, TIMELINE, HOST_STEPS, FINDINGS, PROBLEMS)

EVENT_TABLES = _saved(EVENTS, PHASE_RANGES)  # written on demand only, and by rank
OfRank: TypeAlias = tuple[int, pa.Table, pa.Table]  # a rank's number, and these two of it
DATASET = {RUNS.name: RUNS} | _saved(*_RESULTS, *_SUMMARIES, METRICS) | EVENT_TABLES

# Tables of a run by name; those of its JSON document, by their key there; and all that ``nsyspipe schema`` prints.
RUN_TABLES = {one.name: one for one in (*_RESULTS, SUMMARY, *_SUMMARIES)}
DOCUMENTED = {one.name: one for one in (RANKS, STEPS, PHASES, IDLE_CALLS, HOST_STEPS, STRAGGLERS, TRAFFIC, LINKS)}
DOCUMENTED[PHASES.name] = PHASE_SUMMARY
DESCRIBED = RUN_TABLES | {one.name: one for one in (COSTS, EVENTS, PHASE_RANGES, RUNS, METRICS)}
