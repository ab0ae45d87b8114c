r"""The tables of a run: unit, meaning and source of each column, and which are saved or shown.

A source names tables and columns of a report. Sets of time in formulas: ``|X|`` is the total length
of a union of intervals, ``\`` the difference, ``n`` the intersection, and ``u`` the union.
"""

from typing import NamedTuple, TypeAlias

import pyarrow as pa

from nsyspipe.model.columns import (
    bytes_per_s,
    count,
    flag,
    flop_count,
    flops_per_s,
    identifier,
    json_text,
    n_bytes,
    ns,
    per_s,
    percent,
    ratio,
    samples_per_s,
    text,
    tokens_per_s,
    utc_time,
)
from nsyspipe.model.matrix_datatypes import MIN_SHARE_OF_DATATYPE
from nsyspipe.model.names import KERNEL_NAMES, OPTION
from nsyspipe.model.table import FLOAT, TEXT, WORD, Column, DescribedTable, TableSchema

# Columns and sentences that several tables share.
_RANK_COLUMN = identifier(
    "rank",
    "Global rank",
    source=(
        "the first source that numbers every rank: rank map, environment, NCCL "
        "payload, MPI thread name, file name, order of the reports"
    ),
)

_STEP_COLUMN = identifier(
    "step", "Step number, the same on every rank", source="NVTX range text, or its ordinal"
)
_NULL_WITHOUT_CALLS = "Null without API calls, or without their names and ends."
_IN_OLDER_RUN = "in a run saved before this column existed"
_NULL_WITHOUT_MEMORY_CALLS = (
    f"Null without API calls, or without their names and ends, and {_IN_OLDER_RUN}."
)
_NULL_WITHOUT_MEMORY_SIZES = (
    "Null if a size was not recorded. nsys profile --cuda-memory-usage=true records sizes. "
    f"{_NULL_WITHOUT_MEMORY_CALLS}"
)
_NULL_WITHOUT_PEAKS = (
    "Null in three cases: no sidecar (NAME.capture.json) has it, the process uses several GPUs, or "
    "the run was saved before this column existed."
)
_NULL_WITHOUT_WORK = f"Null if unknown, if the step is not complete, and {_IN_OLDER_RUN}."

STEPS = DescribedTable(
    name="steps",
    summary="One row per rank and step: where its time goes.",
    doc=(
        "One row per (rank, step), which shows where the time of the step goes. C, M and P are "
        "the unions of the compute, communication and memory operations of the rank, clipped to "
        "the window. These equations are exact: compute + exposed_comm + exposed_memory + idle = "
        "wall, and exposed_comm + overlap_compute = comm."
    ),
    key=("rank", "start_ns"),
    columns=(
        _RANK_COLUMN,
        _STEP_COLUMN,
        ns(
            "start_ns",
            "Start of the window, in aligned time. The window starts with the first compute or "
            "communication kernel of the step. On a rank without launches the window starts with "
            "the step range. Without steps the window starts with the first operation.",
            source="KERNEL.start",
        ),
        ns(
            "end_ns",
            "End of the window, which is the start of the next window. The last window ends with "
            "its last operation.",
            source="KERNEL.start",
        ),
        ns("wall_ns", "Length of the window: end - start", source="derived"),
        # What the GPU does: compute, communication, copies, or nothing.
        ns("compute_ns", "|C|", source="KERNEL, GRAPH_TRACE", nullable=True),
        ns("comm_ns", "|M|", source="KERNEL", nullable=True),
        ns("exposed_comm_ns", "|M \\ C|", source="KERNEL", nullable=True),
        ns("exposed_memory_ns", "|P \\ (C u M)|", source="MEMCPY, MEMSET", nullable=True),
        ns("idle_ns", "wall - |C u M u P|", source="KERNEL, MEMCPY, MEMSET", nullable=True),
        ns(
            "dtod_ns",
            "|D|. D is the union of the device-to-device copies that are not communication.",
            source="MEMCPY",
            nullable=True,
        ),
        n_bytes(
            "dtod_bytes",
            "Counts the copies of D (see dtod_ns) that start in the window",
            source="MEMCPY",
            nullable=True,
        ),
        count(
            "n_dtod",
            "Number of the copies of D (see dtod_ns) that start in the window",
            source="MEMCPY",
            nullable=True,
        ),
        ns(
            "exposed_dtod_ns",
            "D2D memcpy while neither compute nor communication runs: |D \\ (C u M)|",
            source="MEMCPY",
            nullable=True,
        ),
        ns(
            "overlap_compute_ns",
            "Communication during which a compute kernel runs: |M n C|",
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "comm_on_compute_stream_ns",
            "|M_s|. M_s is the union of the communication operations on the stream that most "
            "compute kernels of the rank use, without operations of CUDA graphs. Nothing else on "
            f"that stream can run at the same time. Null without launches, and {_IN_OLDER_RUN}.",
            source="KERNEL.streamId",
            nullable=True,
        ),
        ns(
            "overlap_backward_ns",
            "|M n B|. B is the union of the compute kernels that any thread launched inside a "
            "backward range. Null on a rank without a backward range or without launches.",
            source="KERNEL, RUNTIME, NVTX_EVENTS",
            nullable=True,
        ),
        # Collectives, and the wait for other ranks in them.
        count(
            "n_collectives",
            "Counts the operations that start in the window",
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "wait_ns",
            "|W|. W is the union of [own start, min(last start, own end)) over the matched "
            "collectives of the rank. Null in a run of one rank and without a common clock. Null "
            "also if an operation of the step is not matched, or if a rank of its communicator is "
            "missing.",
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "exposed_wait_ns",
            "The part of wait time during which no compute runs: |W \\ C|. The rest of "
            "exposed_comm is exposed transfer time. Null if wait is null.",
            source="KERNEL",
            nullable=True,
        ),
        ns("transfer_ns", "comm - wait. Null if wait is null.", source="KERNEL", nullable=True),
        n_bytes(
            "message_bytes",
            "Counts the whole messages of the collectives that belong to the step. Null if a size "
            "is unknown.",
            source="NCCL payload",
            nullable=True,
        ),
        # Causes of idle time, which sum to idle_ns.
        ns(
            "idle_input_ns",
            "|late n (data u between)|. A gap [g0, g1) is idle time that ends when an operation "
            "starts. L is the time at which this operation was launched. R is L + latency, but at "
            "least g0 and at most g1. The latency is the shortest time of the rank from the "
            "launch of a kernel to its start, at most 20 us. Copies do not count for the latency. "
            "The set late is [g0, R). The set data is the data phase. The set between is the time "
            "between two steps (see idle_between_steps). The five causes sum to idle_ns exactly. "
            "Null if idle_ns is null, or if the clocks of GPU and CPU may differ by a step.",
            source="RUNTIME, NVTX_EVENTS",
            nullable=True,
        ),
        ns(
            "idle_launch_ns",
            "|late \\ (data u between)| - idle_blocked, with the sets of idle_input. "
            f"{_NULL_WITHOUT_CALLS}",
            source="RUNTIME",
            nullable=True,
        ),
        ns(
            "idle_blocked_ns",
            "|late \\ (data u between)| in the period of each synchronization or memory call that "
            "drained the queue. The sets are those of idle_input. The period starts with the "
            "call. D is the duration of the call. The period ends as soon as the late time in it "
            "adds up to D, and no later than D after the call returns. Without the call, all later "
            f"launches would have come earlier by D. {_NULL_WITHOUT_CALLS}",
            source="RUNTIME.nameId, start, end, MEMCPY",
            nullable=True,
        ),
        ns(
            "idle_dependency_ns",
            "g1 - R, with g1 and R as in idle_input. At R, the operation was already launched. "
            "From R on, the operation waited for an event of another stream, or for the GPU to "
            "start it.",
            source="RUNTIME",
            nullable=True,
        ),
        ns("idle_unknown_ns", "idle - all other causes", nullable=True),
        # Parts of these causes, and how much idle time each source causes at most.
        ns(
            "idle_between_steps_ns",
            "Part of idle_input in which the CPU was between two steps, probably in the data "
            "loader. Between the end of a step range and the start of the next, nsyspipe takes "
            "the longest stretch in which the thread of the steps was in no range and in no CUDA "
            "call. A range that contains several steps, such as an epoch, is ignored here. Step "
            "ranges may touch each other, for example if each lasts from one optimizer.step() to "
            "the next. If less than 2 ms lie between them, nsyspipe takes a stretch of at least 2 "
            "ms without a launch, near the start of the next step.",
            source="RUNTIME, NVTX_EVENTS",
            nullable=True,
        ),
        ns(
            "idle_pause_ns",
            "Part of idle_launch in pauses. A pause lasts at least 2 ms. In a pause, the CPU "
            "launches nothing that the GPU could start at once. During a pause, the CPU does not "
            "load "
            "data and is in no synchronization or memory call. Idle time after such a call is "
            "idle_blocked, so it is no pause.",
            source="RUNTIME, NVTX_EVENTS",
            nullable=True,
        ),
        ns(
            "idle_blocked_by_copies_ns",
            "Part of idle_blocked that blocking copies from CPU memory explain (see "
            "n_blocking_copies)",
            source="RUNTIME, MEMCPY",
            nullable=True,
        ),
        ns(
            "idle_made_by_input_ns",
            "Upper bound on the idle time that data loading causes. An input period is a time in "
            "which the CPU gets input. From the start of each input period, nsyspipe adds up the "
            "gaps that end with a late launch. L is the length of the "
            "input period. Gaps count up to a time L after the end of the input period. Their sum "
            "is limited to L.",
            source="RUNTIME, NVTX_EVENTS",
            nullable=True,
        ),
        ns(
            "idle_made_by_calls_ns",
            "Upper bound on the idle time that synchronization and memory calls cause, without "
            "the calls of blocking copies from CPU memory. From the start of each call, nsyspipe "
            "adds up the gaps that end with a late launch. D is the "
            "duration of the call. Gaps count up to a time D after the call returns. Their sum is "
            "limited to D. "
            f"{_NULL_WITHOUT_CALLS}",
            source="RUNTIME",
            nullable=True,
        ),
        ns(
            "idle_made_by_copies_ns",
            "Upper bound on the idle time that blocking copies from CPU memory cause, computed as "
            "idle_made_by_calls",
            source="RUNTIME, MEMCPY",
            nullable=True,
        ),
        # Copies from CPU memory that may block the CPU.
        count(
            "n_blocking_copies",
            "Copies from CPU memory that start in the window and may block the CPU. Such a copy "
            "reads pageable memory, or is made by a call without Async in its name, or the next "
            "call of the same thread synchronizes. Null without API calls, copies or their kinds.",
            source="MEMCPY, RUNTIME",
            nullable=True,
        ),
        count(
            "n_pageable_copies",
            "Blocking copies that read pageable memory. Null if the kind of memory is unknown.",
            source="MEMCPY.srcKind",
            nullable=True,
        ),
        n_bytes(
            "blocking_copy_bytes",
            "Bytes of the blocking copies. Null if n_blocking_copies is null.",
            source="MEMCPY.bytes",
            nullable=True,
        ),
        ns(
            "exposed_blocking_copy_ns",
            "Blocking copies (their union) while neither compute nor communication runs. Null if "
            "n_blocking_copies is null.",
            source="MEMCPY, KERNEL",
            nullable=True,
        ),
        # Calls that allocate and free memory of the GPU.
        count(
            "n_allocs",
            "Calls that allocate GPU memory: cudaMalloc and its variants, cuMemAlloc and "
            "cuMemCreate, also calls that fail. cudaMallocAsync takes memory from a pool and does "
            "not count. A call belongs to the step in which it starts. A call between two step "
            "ranges belongs to the earlier step. If the process uses several GPUs, each of its "
            f"ranks has all calls. {_NULL_WITHOUT_MEMORY_CALLS}",
            source="RUNTIME.nameId, start",
            nullable=True,
        ),
        count(
            "n_frees",
            "Calls that free GPU memory: cudaFree and its variants, cuMemFree and cuMemRelease. "
            f"cudaFreeAsync does not count. {_NULL_WITHOUT_MEMORY_CALLS}",
            source="RUNTIME.nameId, start",
            nullable=True,
        ),
        count(
            "n_failed_allocs",
            "The calls of n_allocs that failed. After such a call, PyTorch frees its cache and "
            f"tries again. Null if a result was not recorded. {_NULL_WITHOUT_MEMORY_CALLS}",
            source="RUNTIME.returnValue",
            nullable=True,
        ),
        n_bytes(
            "alloc_bytes",
            f"Bytes that the calls of n_allocs allocated. {_NULL_WITHOUT_MEMORY_SIZES}",
            source="CUDA_GPU_MEMORY_USAGE_EVENTS.bytes",
            nullable=True,
        ),
        n_bytes(
            "freed_bytes",
            f"Bytes that the calls of n_frees freed. {_NULL_WITHOUT_MEMORY_SIZES}",
            source="CUDA_GPU_MEMORY_USAGE_EVENTS.bytes",
            nullable=True,
        ),
        ns(
            "alloc_host_ns",
            "Time in which the CPU is in a call of n_allocs or n_frees, or in a call that maps GPU "
            "memory (cuMemMap, cuMemSetAccess, cuMemUnmap). It counts from the start of the step "
            "range to the start of the next. "
            f"{_NULL_WITHOUT_MEMORY_CALLS}",
            source="RUNTIME.start, end",
            nullable=True,
        ),
        ns(
            "exposed_alloc_ns",
            "Part of the window in which the CPU is in a call that alloc_host_ns counts, and the "
            "GPU runs nothing. "
            f"Null if idle_dependency is null. {_NULL_WITHOUT_MEMORY_CALLS}",
            source="RUNTIME.start, end",
            nullable=True,
        ),
        ns(
            "idle_blocked_by_allocs_ns",
            f"Part of idle_blocked that the calls of alloc_host_ns explain. Null {_IN_OLDER_RUN}.",
            source="RUNTIME",
            nullable=True,
        ),
        ns(
            "idle_made_by_allocs_ns",
            "Upper bound on the idle time that the calls of alloc_host_ns cause, computed as "
            f"idle_made_by_calls. Null {_IN_OLDER_RUN}.",
            source="RUNTIME",
            nullable=True,
        ),
        # How fast the CPU launches, and how far it runs ahead of the GPU.
        ns(
            "host_launch_ns",
            "from the launch of the first kernel of the step to the launch of the first kernel of "
            "the next step, without calls that waited for the GPU. The last step ends with its "
            "last launch. A call that waits for the GPU synchronizes, or allocates, frees or "
            "copies memory. A launch of at least 100 us also waits if at least 256 operations are "
            f"still in the queue. Null without launches. {_NULL_WITHOUT_CALLS}",
            source="RUNTIME",
            nullable=True,
        ),
        ns(
            "host_input_ns",
            "Part of host_launch in which the CPU got the next batch, in the data phase or "
            "between two steps (see idle_between_steps). Null if host_launch is null.",
            source="RUNTIME, NVTX_EVENTS",
            nullable=True,
        ),
        ns(
            "host_lead_ns",
            "Time from the launch of the first kernel of the window to the start of the window. "
            "Null if host_launch is null.",
            source="RUNTIME, KERNEL.start",
            nullable=True,
        ),
        # What late launches cost.
        ns(
            "idle_late_start_ns",
            "Part of idle_dependency in gaps that end with a late launch. In this part, the "
            "operation was launched longer ago than the shortest latency (see idle_input), but "
            "the GPU had not started it. Null if idle_dependency is null.",
            source="RUNTIME",
            nullable=True,
        ),
        ns(
            "exposed_late_comm_ns",
            "Part of exposed_comm that late launches expose. If the launches had come earlier, "
            "this communication could have overlapped with compute. Two kinds of time count. "
            "First, communication that started within 20 us of its launch. Second, time in which "
            "the next compute kernel was not launched yet, or was launched less than the shortest "
            "latency ago (see idle_input). Null without launches, if idle_dependency is null, and "
            f"{_IN_OLDER_RUN}.",
            source="KERNEL, RUNTIME",
            nullable=True,
        ),
        # Copies of gradients.
        ns(
            "grad_copy_ns",
            "union of D2D copies launched in sequences of at least 8 with nothing between them, "
            "inside backward ranges if there are any. These copies move gradients out of their "
            "buckets.",
            source="MEMCPY, RUNTIME",
            nullable=True,
        ),
        ns(
            "exposed_grad_copy_ns",
            "Part of grad_copy during which neither compute nor communication runs",
            source="MEMCPY, RUNTIME",
            nullable=True,
        ),
        ns(
            "grad_copy_span_ns",
            "Union of the gradient copies and of the gaps between them. A gap counts if it is in "
            "one window and at most 20 us long.",
            source="MEMCPY, RUNTIME",
            nullable=True,
        ),
        n_bytes(
            "grad_copy_bytes",
            "Bytes of the gradient copies that start in the window",
            source="MEMCPY",
            nullable=True,
        ),
        count(
            "n_grad_copies",
            "Number of the gradient copies that start in the window",
            source="MEMCPY",
            nullable=True,
        ),
        # Slowdown by concurrent communication, and by the profiler.
        ns(
            "comm_delay_ns",
            "Additional delay of all operations that started while communication ran, at least 0. "
            "Formula: number of these operations x (mean gap with communication - mean gap "
            "without communication). A gap is the time before a compute kernel starts. Gaps of up "
            "to 100 us count, if the kernel was launched before the gap. Null with fewer than 100 "
            "gaps of either kind in the capture.",
            source="KERNEL, MEMCPY, MEMSET, RUNTIME",
            nullable=True,
        ),
        ns(
            "overhead_ns",
            "Time in the window in which the profiler did its own work in the process of the "
            "rank. If the report has no such table, the value depends on the export. The value is "
            "0 for schema 2.9 or newer if the export leaves out empty tables, which is the "
            "default (nsys export --lazy=true). Otherwise the value is null.",
            source="PROFILER_OVERHEAD",
            nullable=True,
        ),
        # Which steps count.
        flag(
            "is_complete",
            "Neither the start nor the end of the capture cuts off the step",
            source="derived",
        ),
        # What the step works on, and how long that takes at the peak of the GPU.
        count(
            "tokens",
            f"Tokens of the step, of the whole job. {_NULL_WITHOUT_WORK}",
            source="--tokens-per-step, else sidecar",
            nullable=True,
        ),
        count(
            "samples",
            f"Samples of the step, of the whole job. {_NULL_WITHOUT_WORK}",
            source="--samples-per-step, else sidecar",
            nullable=True,
        ),
        flop_count(
            "flops",
            f"FLOPs of the step on this rank. {_NULL_WITHOUT_WORK}",
            source="--flops-per-step, else sidecar",
            nullable=True,
        ),
        ns(
            "ideal_compute_ns",
            "flops / dense peak of the GPU for the datatype of ranks.peak_datatype, rounded to ns. "
            "Null if flops or the peak is unknown.",
            source="derived",
            nullable=True,
        ),
        ns(
            "slow_compute_ns",
            "compute - ideal_compute. Null if that is negative, because then the FLOPs or the "
            "peak are wrong.",
            source="derived",
            nullable=True,
        ),
        ratio("mfu", "ideal_compute / wall", source="derived", nullable=True),
        flag("in_summary", "The step counts in the metrics of the run", source="derived"),
        # Shares of the step.
        ratio("comm_share", "comm / wall", source="derived", nullable=True),
        ratio("exposed_comm_share", "exposed_comm / wall", source="derived", nullable=True),
        ratio("overlap_ratio", "overlap_compute / comm", source="derived", nullable=True),
        ratio("backward_overlap_ratio", "overlap_backward / comm", source="derived", nullable=True),
        ratio("idle_share", "idle / wall", source="derived", nullable=True),
        ratio("compute_share", "compute / wall", source="derived", nullable=True),
        ratio("exposed_memory_share", "exposed_memory / wall", source="derived", nullable=True),
        ratio("wait_share", "wait / wall", source="derived", nullable=True),
        ratio("transfer_share", "transfer / wall", source="derived", nullable=True),
    ),
)

# Columns of the steps: the causes of idle time.
IDLE_CAUSES = (
    "idle_input_ns",
    "idle_launch_ns",
    "idle_blocked_ns",
    "idle_dependency_ns",
    "idle_unknown_ns",
)
# Columns of the steps: parts of these causes, and how much idle time each source causes at most.
IDLE_DETAILS = (
    "idle_between_steps_ns",
    "idle_pause_ns",
    "idle_blocked_by_copies_ns",
    "idle_made_by_input_ns",
    "idle_made_by_calls_ns",
    "idle_made_by_copies_ns",
    "idle_blocked_by_allocs_ns",
    "idle_made_by_allocs_ns",
)

_NULL_WITHOUT_DEVICE_TIME = "Null on a rank without kernel launches if the step has no window."

PHASES = DescribedTable(
    name="phases",
    summary="One row per rank, step and phase.",
    doc=(
        "One row per (rank, step, phase) that has a range. An operation belongs to the phase in "
        "which it was launched, by any thread."
    ),
    key=("rank", "step", "phase"),
    columns=(
        _RANK_COLUMN,
        _STEP_COLUMN,
        text("phase", "backward, forward, optimizer or data", source="NVTX_EVENTS"),
        ns("host_ns", "union of the CPU ranges of the phase in the step", source="NVTX_EVENTS"),
        count(
            "n_kernels",
            "Compute and communication operations launched in those ranges. Null without launches.",
            source="RUNTIME",
            nullable=True,
        ),
        ns(
            "compute_ns",
            "Union of the compute operations that belong to the phase, clipped to the window of "
            f"the step. Null without kernel names. {_NULL_WITHOUT_DEVICE_TIME}",
            source="KERNEL, RUNTIME",
            nullable=True,
        ),
        ns(
            "comm_ns",
            "Union of the communication operations that belong to the phase, clipped to the "
            "window. Null if compute is null.",
            source="KERNEL, RUNTIME",
            nullable=True,
        ),
        ns(
            "exposed_comm_ns",
            "The part of comm during which no compute of any phase runs. Null if compute is null.",
            source="KERNEL, RUNTIME",
            nullable=True,
        ),
        ns(
            "device_ns",
            "union of all operations that belong to the phase, clipped to the window. Copies "
            f"count too. Null if copies or memsets were not recorded. {_NULL_WITHOUT_DEVICE_TIME}",
            source="KERNEL, MEMCPY, MEMSET, RUNTIME",
            nullable=True,
        ),
        count(
            "n_blocking_copies",
            "Blocking copies from CPU memory that were launched in those ranges. Null if "
            "n_blocking_copies of the steps is null.",
            source="MEMCPY, RUNTIME",
            nullable=True,
        ),
        ns(
            "idle_ns",
            "idle time of the window in gaps that end with an operation of the phase. Null if "
            "device_ns is null.",
            source="KERNEL, MEMCPY, MEMSET, RUNTIME",
            nullable=True,
        ),
    ),
)

# Columns of the phases that are times.
PHASE_TIMES = tuple(column.name for column in PHASES.columns if column.unit == "ns")

IDLE_CALLS = DescribedTable(
    name="idle_calls",
    summary="One row per API call that blocked CPUs.",
    doc=(
        "One row per API call that blocked CPUs while their GPUs were idle in summary steps. Rows "
        "are sorted by time, largest first, then by name. The rows sum to "
        "idle_blocked_ns_per_step of the summary. There are no rows if that metric is null."
    ),
    key=("blocked_ns_per_step", "call"),
    columns=(
        text(
            "call",
            "Name of the call without the API version. During several calls at the same time, "
            "this is the call that returns last. After calls, this is the call with the period "
            "(see idle_blocked) that ends last.",
            source="RUNTIME.nameId",
        ),
        ns(
            "blocked_ns_per_step",
            "Mean over (rank, step) of the part of idle_blocked_ns that this call explains",
            arrow_type=FLOAT,
            source="RUNTIME.nameId, start, end",
        ),
        ns(
            "of_copies_ns_per_step",
            "The part that blocking copies from CPU memory explain",
            arrow_type=FLOAT,
            source="RUNTIME, MEMCPY",
            nullable=True,
        ),
    ),
)

_SAMPLES = "NVTX_EVENTS.binaryData of the domain Python Backtrace"
_NOT_IN_STACK = f"Null for other frames, and {_IN_OLDER_RUN}."
_NO_LINE_BEFORE = (
    "Null if the thread has no sample before in this report, for frames other than let_go and "
    f"lock_holder, and {_IN_OLDER_RUN}."
)
HOST_LINES = DescribedTable(
    name="host_lines",
    summary="One row per rank and line of its main thread.",
    doc=(
        "One row per rank, kind of row (frame), and line or function of Python that has samples in "
        "summary steps. Samples are of the main thread, except in rows with frame lock_holder. A "
        "sample counts in several rows. To add up samples, use only the rows with frame "
        "program, or only the rows with frame innermost. Only samples in idle time "
        "that the CPU causes show why the GPU waited. The table is empty if nsys did not sample "
        "Python (--python-sampling=true), or if the main thread is not known."
    ),
    key=("rank", "frame", "n_idle_samples", "n_samples", "file", "line"),
    columns=(
        _RANK_COLUMN,
        text(
            "frame",
            "Kind of the row, one of six values. (1) program: the innermost line of the user's "
            "program. The program is all code in files, except installed packages "
            "(site-packages, dist-packages), the standard library (lib/python3.12) and PyTorch. "
            "(2) innermost: the innermost line of all code. (3) let_go: the line at which the "
            "main thread released Python's lock (GIL), so that nsys could take delayed samples. "
            "The code that held the lock ran between the line after_line and this line. (4) "
            "lock_holder: as let_go, but of another Python thread, while the launching thread "
            "waited for the lock. A process with several other Python threads "
            "has no rows of lock_holder. (5) call: a line of the program that called other code "
            "of the program. (6) function: a function of the program. Rows of call and function "
            "count all samples that have the call or the function in their stack.",
            source="derived",
        ),
        text(
            "file",
            "File of the line. Files of the program are relative to the longest folder that they "
            "have in common. Other files begin with their package. <not seen> means samples "
            "that could not be taken in time, because the thread held Python's lock (GIL).",
            source=_SAMPLES,
        ),
        count(
            "line",
            "Number of the line. For a function, the lowest number in samples of idle time. If no "
            "sample of the function is in idle time, all its samples count.",
            source=_SAMPLES,
        ),
        count(
            "last_line",
            f"For a function, the highest number, in the same samples as for line. {_NOT_IN_STACK}",
            source=_SAMPLES,
            nullable=True,
        ),
        count(
            "mean_depth",
            "Mean number of frames of the program that are deeper in the stack than this call or "
            f"function. {_NOT_IN_STACK}",
            source=_SAMPLES,
            nullable=True,
            arrow_type=FLOAT,
        ),
        text("function", "Function of the line", source=_SAMPLES),
        text(
            "after_file",
            "File of the thread's last sample before it held Python's lock (GIL), written as in "
            f"the column file. {_NO_LINE_BEFORE}",
            source=_SAMPLES,
            nullable=True,
        ),
        count(
            "after_line", f"Number of this line. {_NO_LINE_BEFORE}", source=_SAMPLES, nullable=True
        ),
        text(
            "after_function",
            f"Function of this line. {_NO_LINE_BEFORE}",
            source=_SAMPLES,
            nullable=True,
        ),
        text(
            "after_path",
            "Whole path of after_file. Only in the JSON document, and null in a saved run.",
            source=_SAMPLES,
            nullable=True,
        ),
        text(
            "path",
            "Whole path of the file. Only in the JSON document, and null in a saved run.",
            source=_SAMPLES,
            nullable=True,
        ),
        count("n_samples", "Samples at this line in summary steps", source=_SAMPLES),
        count(
            "n_idle_samples",
            "Samples at this line while the GPU is idle because of its CPU (idle_input_ns, "
            "idle_launch_ns and idle_blocked_ns). Null if these are not known.",
            source=_SAMPLES,
            nullable=True,
        ),
        count("n_idle_steps", "Steps with such a sample", source=_SAMPLES, nullable=True),
        count(
            "n_input_samples",
            "Samples at this line in the idle time that idle_input_ns counts",
            source=_SAMPLES,
            nullable=True,
        ),
        count("n_input_steps", "Steps with such a sample", source=_SAMPLES, nullable=True),
        count(
            "n_launch_samples",
            "Samples at this line in the idle time that idle_launch_ns counts",
            source=_SAMPLES,
            nullable=True,
        ),
        count("n_launch_steps", "Steps with such a sample", source=_SAMPLES, nullable=True),
        count(
            "n_blocked_samples",
            "Samples at this line in the idle time that idle_blocked_ns counts",
            source=_SAMPLES,
            nullable=True,
        ),
        count("n_blocked_steps", "Steps with such a sample", source=_SAMPLES, nullable=True),
    ),
)

_NULL_IF_UNMATCHED = (
    "Null if the operation is not matched or a rank of its communicator is missing. Null also in "
    "a run of one rank, and without a common clock."
)

_NULL_WITHOUT_INSPECTOR = (
    "Null without a file of NCCL Inspector, and if no record is certain to be of this call. Null "
    f"also {_IN_OLDER_RUN}."
)

COLLECTIVES = DescribedTable(
    name="collectives",
    summary="One row per collective of a rank: wait, transfer, size.",
    doc=(
        "One row per communication operation that belongs to a step: a collective on one rank. "
        "The k-th operation of a communicator in a step is the same collective on all ranks of "
        "the communicator. If NCCL's payloads have operationId, nsyspipe uses this number "
        "instead of k, unless most operations lack it or the numbers of ranks contradict each "
        "other. Sends and receives are always matched by k."
    ),
    key=("step", "seq", "rank"),
    columns=(
        _STEP_COLUMN,
        count(
            "seq",
            "Position in the step, ordered by first start. Matched collectives have the same "
            "position on all ranks.",
            source="derived",
        ),
        _RANK_COLUMN,
        text(
            "collective",
            "all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send_recv or "
            "other",
            source="KERNEL names",
        ),
        text(
            "datatype",
            "Type of the elements, for example f32",
            source="KERNEL names",
            nullable=True,
        ),
        text(
            "algorithm",
            "Algorithm and protocol in the name of the kernel, for example RING_LL. From NCCL "
            "2.19 on, another algorithm or protocol may run in this kernel, see nccl_algorithm.",
            source="KERNEL names",
            nullable=True,
        ),
        text(
            "comm_id",
            "Communicator: the hash of NCCL. Without a hash, the name of the collective and the "
            "order in which its stream was first used on its GPU, for example all_reduce/0.",
            source="NCCL payload, KERNEL.streamId",
        ),
        ns("start_ns", "Start on this rank, in aligned time", source="KERNEL.start"),
        ns("end_ns", "End on this rank, in aligned time", source="KERNEL.end"),
        ns(
            "exposed_ns",
            "Time of the operation during which no compute runs. Null on a rank with CUDA graphs "
            f"that were captured as a whole, and {_IN_OLDER_RUN}.",
            source="KERNEL",
            nullable=True,
        ),
        flag(
            "is_matched", "The operation has its counterparts on the other ranks", source="derived"
        ),
        flag(
            "in_summary",
            "The step of the operation counts in the metrics of the run",
            source="derived",
        ),
        count(
            "n_ranks",
            f"Number of matched ranks. {_NULL_IF_UNMATCHED}",
            source="derived",
            nullable=True,
        ),
        ns("arrival_skew_ns", f"last start - first start. {_NULL_IF_UNMATCHED}", nullable=True),
        ns(
            "wait_ns",
            "Time from the start on this rank to the start on the last rank: last start - own "
            f"start. {_NULL_IF_UNMATCHED}",
            nullable=True,
        ),
        ns(
            "transfer_ns",
            "Time from the start on the last rank to the end on this rank: own end - last start, "
            f"at least 0. {_NULL_IF_UNMATCHED}",
            nullable=True,
        ),
        ns(
            "late_by_ns",
            "Delay of the rank that arrived last: last start - second-last start. The other ranks "
            f"have 0. {_NULL_IF_UNMATCHED}",
            nullable=True,
        ),
        ns(
            "held_up_ns",
            "Longest wait that the last rank caused. The wait of another rank is min(last start, "
            "own end) - own start. If several ranks arrived last, the lowest rank has the value. "
            "The other ranks have 0. The value is also 0 if the skew is not significant. "
            f"{_NULL_IF_UNMATCHED}",
            nullable=True,
        ),
        flag(
            "is_significant",
            "arrival_skew exceeds the larger clock error of the first and the last rank. The flag "
            f"is false if a clock error is unknown. {_NULL_IF_UNMATCHED}",
            source="derived",
            nullable=True,
        ),
        flag(
            "is_late_significant",
            "late_by exceeds the larger clock error of the last and the second-last rank. The "
            f"flag is false if a clock error is unknown. {_NULL_IF_UNMATCHED}",
            source="derived",
            nullable=True,
        ),
        n_bytes(
            "message_bytes",
            "Size of the whole array, as nccl-tests counts it. For all_gather, reduce_scatter and "
            "all_to_all, this is the size that NCCL records x ranks of the communicator.",
            source="NCCL payload",
            nullable=True,
        ),
        n_bytes(
            "bus_bytes",
            "message_bytes x a factor. The factor is 2(n-1)/n for all_reduce, (n-1)/n for "
            "all_gather, reduce_scatter and all_to_all, and 1 for the others.",
            arrow_type=FLOAT,
            source="NCCL payload",
            nullable=True,
        ),
        bytes_per_s(
            "algbw_bytes_per_s", "message_bytes / transfer", source="derived", nullable=True
        ),
        bytes_per_s("busbw_bytes_per_s", "bus_bytes / transfer", source="derived", nullable=True),
        bytes_per_s(
            "counted_bytes_per_s",
            "Bandwidth that hardware counters of this rank's GPU saw during the transfer, or "
            "during the operation if it is not matched. It is the larger one of received and sent. "
            "Null with fewer than three samples, with a gap, without counters, and "
            f"{_IN_OLDER_RUN}.",
            source="GPU_METRICS",
            nullable=True,
        ),
        text(
            "counted_link",
            "Link that counted_bytes_per_s is about: nvlink, or pcie if NVLink carried nothing. "
            "PCIe counts headers and other copies too.",
            source="GPU_METRICS",
            nullable=True,
        ),
        ratio(
            "counted_ratio",
            "counted_bytes_per_s / busbw_bytes_per_s. In a ring, both are about equal. In-network "
            "sums (NVLS) send fewer bytes.",
            source="GPU_METRICS",
            nullable=True,
        ),
        text(
            "nccl_algorithm",
            "Algorithm that NCCL ran, for example RING, as NCCL Inspector recorded it. "
            f"{_NULL_WITHOUT_INSPECTOR}",
            source="NCCL Inspector",
            nullable=True,
        ),
        text(
            "nccl_protocol",
            "Protocol that NCCL ran, for example SIMPLE, as NCCL Inspector recorded it. "
            f"{_NULL_WITHOUT_INSPECTOR}",
            source="NCCL Inspector",
            nullable=True,
        ),
    ),
)

_OVER_MATCHED_COLLECTIVES = (
    "Counted over matched collectives of summary steps. Null if none could be matched, and in a "
    "run of one rank."
)

_WITHOUT_OTHER_STAGES = "In a pipeline, the wait for other stages is subtracted (see wait_caused)."

STRAGGLERS = DescribedTable(
    name="stragglers",
    summary="One row per rank: how the others waited for it.",
    doc="One row per rank, which shows how the other ranks waited for the rank.",
    key=("rank",),
    columns=(
        _RANK_COLUMN,
        count(
            "n_arrived_last",
            "Ties do not count, and neither do collectives in which the stages of a pipeline "
            f"meet. {_OVER_MATCHED_COLLECTIVES}",
            source="KERNEL.start",
            nullable=True,
        ),
        ns(
            "wait_caused_ns",
            "sum of late_by of the collectives of n_arrived_last. In a pipeline, a rank can be "
            "late because it waited for other stages. From each late_by, nsyspipe subtracts this "
            "wait of the step, as far as it exceeds the shortest such wait in the communicator. "
            f"{_OVER_MATCHED_COLLECTIVES}",
            source="KERNEL.start",
            nullable=True,
        ),
        ns(
            "lateness_ns",
            "Straggler delay, as a sum over steps. In each step, the rank that caused the largest "
            f"late_by gets this late_by, and other ranks get 0. {_WITHOUT_OTHER_STAGES} "
            f"{_OVER_MATCHED_COLLECTIVES}",
            source="KERNEL.start",
            nullable=True,
        ),
        ns(
            "held_up_ns",
            f"Sum of held_up of the collectives of n_arrived_last. {_WITHOUT_OTHER_STAGES} The "
            f"sum of one step is at most the step time. {_OVER_MATCHED_COLLECTIVES}",
            source="KERNEL.start",
            nullable=True,
        ),
        ns(
            "wait_ns",
            "Sum of wait_ns over the summary steps of the rank. Null if a step has null, and "
            "without summary steps.",
            source="KERNEL.start",
            nullable=True,
        ),
    ),
)

TRAFFIC = DescribedTable(
    name="traffic",
    summary="One row per rank, communicator and collective.",
    doc=(
        "One row per (rank, communicator, collective), and one row per (communicator, collective) "
        "for all its ranks together, with rank null. The values are means over (rank, summary "
        "step)."
    ),
    key=("rank", "communicator", "collective"),
    columns=(
        identifier(
            "rank",
            "Global rank. Null in the row of all ranks of the communicator.",
            source="as in ranks",
            nullable=True,
        ),
        identifier(
            "communicator",
            "Hash of NCCL, 0x... Without payloads, the name of the collective and the order in "
            "which its stream was first used, for example all_reduce/0.",
            arrow_type=TEXT,
            source="NCCL payload, else KERNEL.streamId",
        ),
        text("collective", "all_reduce, all_gather, ...", source="KERNEL names, NCCL payload"),
        text(
            "role",
            "Parallelism: data (gradients), sharded (parameters and their gradients), tensor "
            "(inside layers), pipeline (between stages), expert (all-to-all) or other",
            source="collectives, sizes, and the pass that launches them",
        ),
        count(
            "n_ranks",
            "Number of ranks of the communicator",
            source="NCCL payload, else the ranks that use it",
            nullable=True,
        ),
        text(
            "ranks",
            "Ranks of the run that use the communicator, for example 0,2,4,6",
            source="KERNEL",
        ),
        count(
            "calls_per_step",
            "Number of operations",
            arrow_type=FLOAT,
            source="KERNEL",
            nullable=True,
        ),
        n_bytes(
            "bytes_per_step",
            "Whole messages, as nccl-tests counts them. Null if a size is unknown.",
            arrow_type=FLOAT,
            source="NCCL payload",
            nullable=True,
        ),
        ns(
            "comm_ns_per_step",
            "|M|. M is the union of the operations of the row, clipped to the window of the step. "
            "The unions of different rows may overlap.",
            arrow_type=FLOAT,
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "exposed_ns_per_step",
            "The part of M during which no compute of the rank runs: |M \\ C|",
            arrow_type=FLOAT,
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "exposed_part_ns_per_step",
            "Share of the row in exposed_comm of the rank. While several rows of a rank are "
            "exposed at once, each row gets an equal part of the time. The parts of a rank "
            f"therefore sum to its exposed_comm. Null {_IN_OLDER_RUN}.",
            arrow_type=FLOAT,
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "hidden_ns_per_step",
            "The part of M during which compute of the rank runs: |M n C|",
            arrow_type=FLOAT,
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "wait_ns_per_step",
            "Union of [own start, min(last start, own end)) over the matched operations. Null if "
            "an operation is not matched. Null also for a pipeline, because its stages wait for "
            "each other by design.",
            arrow_type=FLOAT,
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "bubble_ns_per_step",
            "union of [own start, min(last start, own end)) over the matched operations of a "
            "pipeline. No rank counts as a straggler for this time. Null for all other kinds of "
            "parallelism.",
            arrow_type=FLOAT,
            source="KERNEL",
            nullable=True,
        ),
        bytes_per_s(
            "algbw_bytes_per_s",
            "bytes / transfer. Null if a size is unknown or an operation is not matched.",
            source="derived",
            nullable=True,
        ),
        bytes_per_s(
            "busbw_bytes_per_s",
            "bus bytes / transfer. Null if algbw is null.",
            source="derived",
            nullable=True,
        ),
    ),
)

KERNEL_COSTS = DescribedTable(
    name="kernels",
    summary="One row per rank, phase and kernel name.",
    doc=(
        "One row per (rank, phase, name) over the whole capture, incomplete steps included. Only "
        "the columns with in_summary in their name are limited to summary steps."
    ),
    key=("rank", "phase", "name"),
    columns=(
        _RANK_COLUMN,
        text(
            "phase",
            "Phase that launched the kernels. Null outside of all phases.",
            source="NVTX_EVENTS",
            nullable=True,
        ),
        text(
            "name",
            "Name of the kernel without parameters and template arguments. The functor that "
            "distinguishes the kernel is in brackets. Copies that are a collective have a name "
            "such as ncclAllGather [copies].",
            source="KERNEL.demangledName, else shortName, NVTX_EVENTS",
        ),
        count("n_kernels", "Number of kernels", source="KERNEL"),
        ns("total_ns", "Sum of durations", source="KERNEL"),
        ns("mean_ns", "total / n, rounded down", source="derived"),
        ns("min_ns", "Shortest duration", source="KERNEL"),
        ns("max_ns", "Longest duration", source="KERNEL"),
        ns(
            "overlapped_ns",
            "Time during which communication runs. Communication kernels have 0.",
            source="KERNEL",
        ),
        ns("not_overlapped_ns", "total - overlapped", source="derived"),
        count(
            "n_slowed",
            "Kernels that run at least partly while communication runs, and that have equal "
            "kernels without communication. Equal kernels have the same name, grid and block, and "
            "so do their three neighbors before and after in launch order. At least three equal "
            "kernels must run without communication and take about equally long. In a large "
            "report, nsyspipe compares a sample of 50,000 kernels.",
            source="KERNEL",
        ),
        ns("slowed_ns", "Time of these kernels during which communication runs", source="derived"),
        ns(
            "free_ns",
            "Estimated time that the kernels of slowed_ns would need without communication. For "
            "each kernel, nsyspipe subtracts the difference between the kernel and the median of "
            "its equal kernels from slowed_ns.",
            source="derived",
        ),
        ratio(
            "slowdown_ratio",
            "slowed / free - 1. Null if there are no equal kernels.",
            source="derived",
            nullable=True,
        ),
        count(
            "n_in_summary",
            f"Number of kernels that start in the window of a summary step. Null {_IN_OLDER_RUN}. "
            "In long captures (steps x rows of a rank above 2^18), nsyspipe sums neighboring "
            "steps together. Null also if only some of the steps in one such sum are summary "
            "steps.",
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "in_summary_ns",
            "Sum of the durations of these kernels. Null if n_in_summary is null.",
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "overlapped_in_summary_ns",
            "The part of in_summary_ns during which communication runs. Null if n_in_summary is "
            "null.",
            source="KERNEL",
            nullable=True,
        ),
    ),
)

COSTS = DescribedTable(
    name="costs",
    summary="The rows that analyze --csv writes.",
    doc=(
        "One row per phase and name of kernels, per kind and size of collectives, or per "
        "communicator and collective (traffic). Rows cover the summary steps of all ranks, most "
        "expensive first. Values per step are means over (rank, step). For traffic, they are "
        "means over the ranks of the communicator. Values are null in a capture without steps, "
        "and if a part of the sum is null."
    ),
    key=("table",),
    columns=(
        text("table", "kernels, collectives or traffic"),
        text(
            "name", "Name of the kernel (as in kernels) or of the collective", source="KERNEL names"
        ),
        text(
            "phase",
            "For kernels: the phase that launched them. Null outside of all phases.",
            source="NVTX_EVENTS",
            nullable=True,
        ),
        n_bytes(
            "message_bytes",
            "For collectives: the whole message of one collective, as in collectives",
            source="NCCL payload",
            nullable=True,
        ),
        identifier("communicator", "For traffic: as in traffic", arrow_type=TEXT, nullable=True),
        text("role", "For traffic: as in traffic", nullable=True),
        text("ranks", "For traffic: as in traffic", nullable=True),
        count(
            "n_calls",
            "For kernels and collectives: the number of calls on all ranks in all summary steps",
            source="KERNEL",
            nullable=True,
        ),
        ns("total_ns", "Sum of the durations of these calls", source="KERNEL", nullable=True),
        ratio(
            "step_share",
            "total / sum of wall over ranks and summary steps",
            source="derived",
            nullable=True,
        ),
        count("calls_per_step", "n_calls, per step", arrow_type=FLOAT, nullable=True),
        ns(
            "time_ns_per_step",
            "total, per step. For traffic: comm_ns_per_step.",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ratio(
            "beside_comm_ratio",
            "overlapped_in_summary / total, for kernels. Null for NCCL kernels, and if comm of "
            "the steps is null.",
            source="KERNEL",
            nullable=True,
        ),
        ratio(
            "slowdown_ratio",
            "As in kernels, over the whole capture",
            source="KERNEL",
            nullable=True,
        ),
        count(
            "n_slowed",
            "For kernels: the number of kernels of the whole capture that slowdown_ratio compares",
            source="KERNEL",
            nullable=True,
        ),
        n_bytes(
            "bytes_per_step",
            "For collectives and traffic: whole messages",
            arrow_type=FLOAT,
            source="NCCL payload",
            nullable=True,
        ),
        ns(
            "exposed_ns_per_step",
            "For collectives: the sum of exposed. For traffic: as in traffic.",
            arrow_type=FLOAT,
            source="KERNEL",
            nullable=True,
        ),
        ns(
            "hidden_ns_per_step",
            "time - exposed",
            arrow_type=FLOAT,
            source="derived",
            nullable=True,
        ),
        ns(
            "wait_ns_per_step",
            "For collectives: the sum of min(wait, own time). For traffic: as in traffic.",
            arrow_type=FLOAT,
            source="KERNEL",
            nullable=True,
        ),
        ns("bubble_ns_per_step", "For traffic: as in traffic", arrow_type=FLOAT, nullable=True),
        ns(
            "transfer_ns_per_step",
            "For collectives: the sum of transfer",
            arrow_type=FLOAT,
            source="KERNEL",
            nullable=True,
        ),
        bytes_per_s(
            "algbw_bytes_per_s",
            "sum of message_bytes / sum of transfer for collectives. For traffic: as in traffic.",
            source="derived",
            nullable=True,
        ),
        bytes_per_s(
            "busbw_bytes_per_s",
            "sum of bus_bytes / sum of transfer for collectives. For traffic: as in traffic.",
            source="derived",
            nullable=True,
        ),
    ),
)

# Kinds of connections, from the fastest to the slowest. A kind that is not known is last.
LINK_KINDS = ("nvlink", "p2p", "p2p_pcie", "shm", "net", "unknown")

LINKS = DescribedTable(
    name="links",
    summary="One row per connection between two ranks.",
    doc=(
        "One row per directed connection of the rings (and of the trees between hosts) of one "
        "NCCL communicator. nsyspipe takes the communicator that spans most hosts. In a tie, "
        "nsyspipe takes the communicator with most ranks. Without an NCCL log there is one row "
        "per pair of GPUs."
    ),
    key=("from_rank", "to_rank"),
    columns=(
        identifier(
            "comm_id",
            "Communicator. Null without an NCCL log, because the row is then a pair of GPUs.",
            arrow_type=TEXT,
            source="NCCL log",
            nullable=True,
        ),
        identifier("from_rank", "Rank of the sender in the communicator", source="NCCL log"),
        identifier("to_rank", "Rank of the receiver in the communicator", source="NCCL log"),
        text(
            "transport",
            "Transport that NCCL set up, as the log names it. Null if no line of the log names it.",
            source="NCCL log",
            nullable=True,
        ),
        count(
            "n_channels",
            "Number of channels of collectives on this connection. Null if no line of this "
            "communicator gives it.",
            source="NCCL log",
            nullable=True,
        ),
        text(
            "path",
            "Path between the two GPUs: NV#, PIX, PXB, PHB, NODE or SYS. Null across hosts.",
            source="nvidia-smi topo -m",
            nullable=True,
        ),
        text(
            "kind",
            "nvlink, p2p_pcie, p2p (direct, but the topology does not show over what), shm (CPU "
            "memory), net or unknown. For several transports, this is the slowest.",
            source="transport and path",
        ),
        bytes_per_s(
            "nominal_bytes_per_s",
            "Peak bandwidth of the data sheet in one direction. If the transport is unknown, this "
            "is the peak bandwidth of path. Null for networks and unknown models.",
            source="GPU model, transport and path",
            nullable=True,
        ),
        text(
            "nominal_source",
            "Basis of the peak bandwidth: generation, number of links, GPU model",
            source="data sheet",
            nullable=True,
        ),
        text(
            "algorithms",
            "ring, tree or both, as NCCL uses the connection. Null if no line of the log shows it.",
            source="NCCL log",
            nullable=True,
        ),
    ),
)

PEERS = DescribedTable(
    name="peers",
    summary="One row per rank, peer and direction: calls, bytes.",
    doc=(
        "One row per rank, peer and direction: the sends and receives that NCCL Inspector recorded "
        "of the whole process. Its records have no time by default, so these are not the sends "
        "and receives of steps. Inspector does not record calls below "
        "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES. The peer in a record is a rank of a communicator. "
        "nsyspipe knows its rank in the run only if the records, or an NCCL log, have all members "
        "of the communicator. All unknown peers of a rank share a row. There are no rows without a "
        "file of NCCL Inspector, and none for a process with several GPUs."
    ),
    key=("rank", "peer_rank", "direction"),
    columns=(
        _RANK_COLUMN,
        identifier(
            "peer_rank",
            "Global rank of the peer. Null if the members of the communicator are not known, or "
            "the peer is not in the run.",
            source="NCCL Inspector, NCCL log",
            nullable=True,
        ),
        text(
            "direction",
            "send if the rank sends to the peer, or recv if it receives from the peer",
            source="NCCL Inspector",
        ),
        count(
            "n_calls",
            "Recorded sends or receives of the whole process, not only of steps",
            source="NCCL Inspector",
        ),
        n_bytes(
            "message_bytes",
            "Their bytes, of the whole process, not only of steps",
            source="NCCL Inspector",
        ),
        flag(
            "is_lower_bound",
            "Whether the process may have had more sends or receives: records were lost, the file "
            "is cut, or its format (v4.0) does not count lost records",
            source="NCCL Inspector",
        ),
    ),
)

EVENTS = DescribedTable(
    name="events",
    summary="One row per GPU operation.",
    doc=(
        "One row per GPU operation: kernel, copy or memset. Copies that one call of NCCL or of "
        "symmetric memory launched to communicate are one row, from the first start to the last "
        "end."
    ),
    key=("rank", "start_ns"),
    columns=(
        _RANK_COLUMN,
        identifier(
            "step",
            "Step that the operation belongs to, which may differ from the step during which the "
            "operation runs. Null for none.",
            source="RUNTIME, NVTX_EVENTS",
            nullable=True,
        ),
        text(
            "phase",
            "Phase in which the operation was launched. Null outside of all phases.",
            source="RUNTIME, NVTX_EVENTS",
            nullable=True,
        ),
        text(
            "category",
            "compute (CUDA graphs too), comm or memory",
            source="KERNEL names, MEMCPY, MEMSET, GRAPH_TRACE",
        ),
        text(
            "name",
            "As in kernels for a kernel. For copies: memcpy HtoD, memcpy DtoH, ..., or memcpy if "
            "the kind is unknown. For memsets: memset.",
            source="KERNEL.demangledName, else shortName, MEMCPY.copyKind",
        ),
        identifier(
            "device_id",
            "CUDA ordinal of the GPU in the process",
            source="KERNEL.deviceId",
            nullable=True,
        ),
        identifier("stream_id", "Stream in its context", source="KERNEL.streamId", nullable=True),
        ns("start_ns", "Start on the GPU, in aligned time", source="KERNEL.start"),
        ns("end_ns", "End on the GPU, in aligned time", source="KERNEL.end"),
        ns("dur_ns", "end - start", source="derived"),
        ns(
            "launch_ns",
            "Start of the API call that launched the operation, in aligned time",
            source="RUNTIME.start",
            nullable=True,
        ),
        identifier(
            "correlation_id",
            "Joins the operation and its API call, inside the process",
            source="KERNEL.correlationId",
            nullable=True,
        ),
        n_bytes(
            "bytes", "Bytes moved or set. Null for kernels.", source="MEMCPY.bytes", nullable=True
        ),
        text(
            "collective",
            "For communication: all_reduce, ... Null for other operations.",
            source="KERNEL names",
            nullable=True,
        ),
        count(
            "seq",
            "For communication that belongs to a step: seq of its row in collectives",
            source="derived",
            nullable=True,
        ),
    ),
)

PHASE_RANGES = DescribedTable(
    name="phase_ranges",
    summary="One row per CPU range of a phase or a step.",
    doc=(
        "One row per CPU range of a phase, and one row per step range (phase null). A row has the "
        "time of the range on the CPU, and the time of its operations on the GPU."
    ),
    key=("rank", "start_ns", "phase"),
    columns=(
        _RANK_COLUMN,
        identifier("step", "Step number", source="NVTX_EVENTS"),
        text(
            "phase",
            "backward, forward, optimizer or data. Null for the step itself.",
            source="NVTX_EVENTS",
            nullable=True,
        ),
        ns("start_ns", "Start on the CPU, in aligned time", source="NVTX_EVENTS.start"),
        ns("end_ns", "End on the CPU, in aligned time", source="NVTX_EVENTS.end"),
        count(
            "n_operations",
            "GPU operations that any thread launched in the range. Null if the process has no "
            "launches.",
            source="RUNTIME",
            nullable=True,
        ),
        ns(
            "device_start_ns",
            "First start of these operations, in aligned time. Null without operations.",
            source="KERNEL.start, MEMCPY.start",
            nullable=True,
        ),
        ns(
            "device_end_ns",
            "Last end of these operations, in aligned time. Null without operations.",
            source="KERNEL.end, MEMCPY.end",
            nullable=True,
        ),
    ),
)

TIMELINE = DescribedTable(
    name="timeline",
    summary="One row per bar of the timeline of one step.",
    doc=(
        "One row per bar of the representative step. Among the steps used for the metrics, this "
        "step is closest to the median step time. A run of more than 64 ranks has bars for 64: "
        "the most waited for, the slowest, the most exposed, the fastest, and some between. "
        "Operations that overlap are one bar. If communication operations overlap, each time "
        "belongs to the operation that started first. Bars of phases may overlap. Neighboring "
        "bars of a lane are joined, smallest gaps first, until few enough are left."
    ),
    key=("rank", "lane", "start_ns"),
    columns=(
        identifier("step", "The step of the timeline, the same on every row", source="derived"),
        _RANK_COLUMN,
        text(
            "lane",
            "phase, compute, comm, exposed, wait, memory or launch. A phase lasts from the first "
            "start to the last end of the operations launched in its range. Lane exposed is "
            "communication while no compute runs, and lane wait is matched communication before "
            "the last rank arrives. A bar of launch lasts from the call that launches an "
            "operation to the start of the operation. During such a bar, the GPU has something to "
            "do next.",
            source="derived",
        ),
        ns(
            "start_ns", "Start in aligned time, clipped to the window of the rank", source="derived"
        ),
        ns("end_ns", "End in aligned time, clipped to the window of the rank", source="derived"),
        ns(
            "busy_ns",
            "Union of the operations in the bar. The value is less than end - start if gaps were "
            "joined.",
        ),
        ns(
            "exposed_ns",
            "For comm: the part of busy during which no compute runs. Null in other lanes.",
            nullable=True,
        ),
        ns(
            "wait_ns",
            "For comm: the part of busy in which the rank waits for the last rank. Null in other "
            "lanes, and if wait_ns of the step is null.",
            nullable=True,
        ),
        count(
            "n_operations",
            "Number of operations of the bar that are at least partly in the window. For a phase: "
            "the operations launched in it. For exposed: the number of pieces of communication "
            "during which no compute runs.",
            source="KERNEL, MEMCPY, MEMSET",
        ),
        text(
            "name",
            "Name of the operation with the most time in the window, or of the phase or collective",
            source="derived",
            nullable=True,
        ),
        count(
            "seq",
            "For comm, exposed and wait: seq of its row in collectives. Null for a bar of several "
            "operations, and in other lanes.",
            source="derived",
            nullable=True,
        ),
    ),
)

_NULL_IF_UNCOUNTED = "Null if this counter was not sampled in the time of the row."
_NULL_WITHOUT_RATE = f"{_NULL_IF_UNCOUNTED} Null also if nsyspipe does not know the full rate."


def _counted_percent(name: str, meaning: str) -> Column:
    return percent(
        f"{name}_percent",
        f"{meaning}. Mean over the sampled time. {_NULL_IF_UNCOUNTED}",
        source="GPU_METRICS",
        nullable=True,
    )


def _counted_bytes(name: str, meaning: str, rate: str) -> tuple[Column, Column]:
    """Return the columns of the bytes that a counter counted, and of the bytes per second.

    The counter has per cent of a `rate`, whose name stands in the description.
    """
    total = n_bytes(
        f"{name}_bytes",
        f"{meaning} in the sampled time: sum of per cent x time x {rate}, rounded down. "
        f"{_NULL_WITHOUT_RATE}",
        source="GPU_METRICS",
        nullable=True,
    )
    mean = bytes_per_s(
        f"{name}_bytes_per_s",
        f"{name}_bytes / sampled time of this counter. {_NULL_WITHOUT_RATE}",
        source="GPU_METRICS",
        nullable=True,
    )
    return total, mean


_WITH_HEADERS = "with headers of packets"
# What per cent of a counter mean.
_COUNTED = {
    "sm_active": "Share of time in which an SM had a warp, mean over all SMs",
    "tensor_active": "Share of time in which tensor cores were active",
    "dram_read": "Reads from GPU memory, as a share of the memory bandwidth",
    "dram_write": "Writes to GPU memory, as a share of the memory bandwidth",
    "nvlink_rx": "User data received on NVLink, as a share of the raw rate",
    "nvlink_tx": "User data sent on NVLink, as a share of the raw rate",
    "pcie_rx": f"Traffic received on PCIe, {_WITH_HEADERS}, as a share of its rate",
    "pcie_tx": f"Traffic sent on PCIe, {_WITH_HEADERS}, as a share of its rate",
}
_CLOCK = f"Clock of the GPU's compute clusters. Mean over the sampled time. {_NULL_IF_UNCOUNTED}"

COUNTERS = DescribedTable(
    name="counters",
    summary="One row per rank, step and phase with hardware counters.",
    doc=(
        "One row per (rank, step), and one per (rank, step, phase). Ranks have rows if nsys "
        "sampled the counters of their GPU. All means are weighted by time, and zeros count. Time "
        "without samples is left out."
    ),
    key=("rank", "step", "phase"),
    columns=(
        _RANK_COLUMN,
        _STEP_COLUMN,
        text(
            "phase",
            "backward, forward, optimizer or data. Null in the row of the whole step.",
            source="NVTX_EVENTS",
            nullable=True,
        ),
        ns(
            "window_ns",
            "Time that the row is about. For a step, it is the window. For a phase, it is the sum "
            "of its stretches. A stretch is a series of compute kernels of the phase, without a "
            "kernel of another phase between them. It lasts from the first kernel to the last.",
            source="KERNEL",
        ),
        ns(
            "sampled_ns",
            "Part of window that every counter of the row was sampled in. A sample holds until "
            "the next one. If the next one is more than two sampling periods later, it holds for "
            "one period.",
            source="GPU_METRICS",
        ),
        ratio("sampled_ratio", "sampled / window", source="GPU_METRICS", nullable=True),
        ns(
            "lag_ns",
            "Shift that nsyspipe adds to the times of samples, so that they fit the kernels of "
            "their report best. The shift is negative if the samples are late.",
            source="GPU_METRICS, KERNEL",
        ),
        _counted_percent("sm_active", _COUNTED["sm_active"]),
        _counted_percent("tensor_active", _COUNTED["tensor_active"]),
        _counted_percent("dram_read", _COUNTED["dram_read"]),
        *_counted_bytes("dram_read", "Bytes read from GPU memory", "memoryBandwidth"),
        _counted_percent("dram_write", _COUNTED["dram_write"]),
        *_counted_bytes("dram_write", "Bytes written to GPU memory", "memoryBandwidth"),
        _counted_percent("nvlink_rx", _COUNTED["nvlink_rx"]),
        *_counted_bytes("nvlink_rx", "User data received on NVLink", "raw rate"),
        _counted_percent("nvlink_tx", _COUNTED["nvlink_tx"]),
        *_counted_bytes("nvlink_tx", "User data sent on NVLink", "raw rate"),
        _counted_percent("pcie_rx", _COUNTED["pcie_rx"]),
        *_counted_bytes("pcie_rx", f"Bytes received on PCIe, {_WITH_HEADERS},", "rate"),
        _counted_percent("pcie_tx", _COUNTED["pcie_tx"]),
        *_counted_bytes("pcie_tx", f"Bytes sent on PCIe, {_WITH_HEADERS},", "rate"),
        per_s("gpc_clock_hz", _CLOCK, source="GPU_METRICS", nullable=True),
    ),
)

_SHOWN_STEP = identifier(
    "step", "The step of the timeline, the same on every row", source="derived"
)
COUNTER_BARS = DescribedTable(
    name="counter_bars",
    summary="One row per bar of hardware counters in the timeline.",
    doc=(
        "One row per rank and bar of its hardware counters, in the step and on the ranks of "
        "timeline. A bar is one sample, or an equal part of the step if there are more than 280 "
        "samples. All values are means over the sampled time of the bar. Bars without samples are "
        "left out."
    ),
    key=("rank", "start_ns"),
    columns=(
        _SHOWN_STEP,
        _RANK_COLUMN,
        ns(
            "start_ns", "Start in aligned time, clipped to the window of the rank", source="derived"
        ),
        ns("end_ns", "End in aligned time, clipped to the window of the rank", source="derived"),
        ns(
            "sampled_ns",
            "Part of the bar in which the counter that was sampled longest was sampled. In the "
            "table counters, this column counts only time in which every counter was sampled.",
            source="GPU_METRICS",
        ),
        *(_counted_percent(name, meaning) for name, meaning in _COUNTED.items()),
        per_s("gpc_clock_hz", _CLOCK, source="GPU_METRICS", nullable=True),
    ),
)

LINE_BARS = DescribedTable(
    name="line_bars",
    summary="One row per bar of lines of Python in the timeline.",
    doc=(
        "One row per rank and bar: at which line of Python its main thread was, in the step and "
        "on the ranks of timeline. A sample holds until the next one. If the next one is more "
        "than two sampling periods later, it holds for one period. If there are more than 280 "
        "bars, each bar is an equal part of the step, and has the line with the most time."
    ),
    key=("rank", "start_ns"),
    columns=(
        _SHOWN_STEP,
        _RANK_COLUMN,
        ns(
            "start_ns", "Start in aligned time, clipped to the window of the rank", source="derived"
        ),
        ns("end_ns", "End in aligned time, clipped to the window of the rank", source="derived"),
        text(
            "frame",
            "program: the innermost line of the user's program. innermost: the innermost line of "
            "all code, for samples without a line of the program.",
            source="derived",
        ),
        text("file", "File of the line, as in host_lines", source=_SAMPLES),
        count("line", "Number of the line", source=_SAMPLES),
        text("function", "Function of the line", source=_SAMPLES),
        count("n_samples", "Samples at this line in the bar", source=_SAMPLES),
    ),
)

RANKS = DescribedTable(
    name="ranks",
    summary="One row per rank: its process, GPU, host and clock.",
    doc="One row per rank: a process together with one GPU on which the process runs kernels.",
    key=("rank",),
    columns=(
        _RANK_COLUMN,
        identifier(
            "process_rank",
            "Number of the process, as launchers and --rank-map give it. This is the rank, unless "
            f"processes of the run use several GPUs. Null {_IN_OLDER_RUN}.",
            source="as for rank",
            nullable=True,
        ),
        identifier(
            "local_rank", "LOCAL_RANK as captured", source="META_DATA_CAPTURE", nullable=True
        ),
        text(
            "report",
            "Report of the rank. If a process was captured several times, all its reports, "
            "separated by commas.",
            source="file name",
        ),
        identifier("pid", "Process ID of the operating system", source="globalPid"),
        identifier("device_id", "GPU of the rank", source="KERNEL.deviceId", nullable=True),
        text(
            "device_ids", "All GPUs of the process, separated by commas", source="KERNEL.deviceId"
        ),
        text("gpu_name", "Model of the GPU", source="TARGET_INFO_GPU", nullable=True),
        text("host", "Host name", source="TARGET_INFO_SYSTEM_ENV", nullable=True),
        n_bytes(
            "gpu_memory_bytes",
            f"Memory of the GPU. Null {_IN_OLDER_RUN}.",
            source="TARGET_INFO_GPU.totalMemory",
            nullable=True,
        ),
        n_bytes(
            "peak_allocated_bytes",
            "Measured from the start of the program to the end of the captured steps. "
            f"{_NULL_WITHOUT_PEAKS}",
            source="sidecar",
            nullable=True,
        ),
        n_bytes(
            "peak_reserved_bytes",
            "Measured from the start of the program to the end of the captured steps. "
            f"{_NULL_WITHOUT_PEAKS}",
            source="sidecar",
            nullable=True,
        ),
        n_bytes(
            "headroom_bytes",
            "gpu_memory - peak_reserved. CUDA, NCCL and other programs use a part of it. Null if "
            "a part is unknown, or if peak_reserved exceeds gpu_memory.",
            source="derived",
            nullable=True,
        ),
        count(
            "n_alloc_retries",
            "Counted from the start of the program to the end of the captured steps. "
            f"{_NULL_WITHOUT_PEAKS}",
            source="sidecar",
            nullable=True,
        ),
        text(
            "peak_datatype",
            "Datatype for which MFU uses the dense peak rate of the GPU: fp32, tf32, bf16, fp16 or "
            "fp8. "
            "Null if the names of kernels do not show it, if no datatype has "
            f"{MIN_SHARE_OF_DATATYPE:.0%} of the time of matrix multiplications, and "
            f"{_IN_OLDER_RUN}.",
            source="--peak, KERNEL names",
            nullable=True,
        ),
        text(
            "peak_datatype_source",
            f"Source of peak_datatype: {OPTION} or {KERNEL_NAMES}. Null if peak_datatype is null.",
            source="derived",
            nullable=True,
        ),
        text(
            "rank_source",
            "Source of the rank: rank_map, env:RANK (or another variable), sidecar, nccl_payload, "
            "nvtx_mpi, file_name or order",
            source="derived",
        ),
        count(
            "n_kernels",
            "Number of compute and communication operations",
            source="KERNEL, GRAPH_TRACE",
            nullable=True,
        ),
        identifier(
            "compute_stream_id",
            "Stream that most compute kernels of the rank use. If several streams are equal, this "
            "is the lowest. Null without compute kernels.",
            source="KERNEL.streamId",
            nullable=True,
        ),
        count(
            "n_comm",
            "Number of communication operations. The copies of one call count as one operation.",
            source="KERNEL names, NVTX_EVENTS",
            nullable=True,
        ),
        count(
            "n_dtod",
            "Number of device-to-device copies that are not communication",
            source="MEMCPY.copyKind = 8",
            nullable=True,
        ),
        ns(
            "clock_shift_ns",
            "Shift that converts times of the report into aligned time: utcEpochNs of the report "
            "- smallest utcEpochNs of the run - clock_offset. The difference of the two "
            "utcEpochNs is 0 if a report does not record utcEpochNs.",
            source="TARGET_INFO_SESSION_START_TIME",
        ),
        ns(
            "clock_offset_ns",
            "Difference between the clock of the report and the other clocks. Formula: median of "
            "(own end - median end over ranks). The median is over the matched all_reduce, "
            "all_gather, reduce_scatter and all_to_all of all ranks of the report. The value is 0 "
            "if the median does not exceed the clock error, or if there are fewer than 3 such "
            "collectives. Null if some ranks have no collective in common with others. If a "
            "process was captured several times, this is the offset of the first capture.",
            source="KERNEL.end",
            nullable=True,
        ),
        ns(
            "clock_error_ns",
            "1.4826 x median absolute deviation of the same differences. A skew below this value "
            "is not significant. The value is 0 in a run of one report. Null with fewer than 3 "
            "collectives. If a process was captured several times, this is the largest error.",
            source="KERNEL.end",
            nullable=True,
        ),
    ),
)

_RANGES_OF_PHASE = (
    "ranges inside the step, on the thread of the step. The value is 0 in a step without such a "
    "range. Null for a process without any such range."
)

HOST_STEPS = DescribedTable(
    name="host_steps",
    summary="One row per process and step without GPU activity.",
    doc=(
        "One row per (process, step) of a run without GPU activity: the duration of the NVTX step "
        "range on the CPU. There are no rows if any process of the run has GPU activity, because "
        "its steps are in steps. CPU time is not GPU time: it ends when work was handed over, not "
        "when the work was done."
    ),
    key=("rank", "report", "pid", "step"),
    columns=(
        identifier(
            "rank",
            "Global rank. Null if the order of the reports is the only source that numbers every "
            "process with steps.",
            source="as in ranks",
            nullable=True,
        ),
        text("report", "Report of the process", source="file name"),
        identifier("pid", "Process ID of the operating system", source="globalTid"),
        identifier(
            "step",
            "Step number, the same on every process",
            source="NVTX range text, or its ordinal",
        ),
        ns(
            "host_start_ns",
            "Start of the step range: report time + (utcEpochNs of the report - smallest "
            "utcEpochNs of the run). Nothing is added if a report does not record utcEpochNs.",
            source="NVTX_EVENTS",
        ),
        ns("host_end_ns", "End of the step range, on the same clock", source="NVTX_EVENTS"),
        ns("host_ns", "host_end - host_start", source="derived"),
        ns("data_ns", f"Union of the data {_RANGES_OF_PHASE}", source="NVTX_EVENTS", nullable=True),
        ns(
            "forward_ns",
            f"Union of the forward {_RANGES_OF_PHASE}",
            source="NVTX_EVENTS",
            nullable=True,
        ),
        ns(
            "backward_ns",
            f"Union of the backward {_RANGES_OF_PHASE}",
            source="NVTX_EVENTS",
            nullable=True,
        ),
        ns(
            "optimizer_ns",
            f"Union of the optimizer {_RANGES_OF_PHASE}",
            source="NVTX_EVENTS",
            nullable=True,
        ),
        flag(
            "is_complete",
            "False if the range was never closed. Such a range ends 1 ns after the last event of "
            "the report.",
            source="NVTX_EVENTS",
        ),
    ),
)

# Metrics of a run and of each rank.
_FIGURE_COLUMNS = (
    ratio(
        "comm_share",
        "comm / wall, pooled: sum of the numerator over ranks and summary steps / sum of the "
        "denominator",
        source="derived",
        nullable=True,
    ),
    ratio("exposed_comm_share", "exposed_comm / wall, pooled", source="derived", nullable=True),
    ratio("overlap_ratio", "overlap_compute / comm, pooled", source="derived", nullable=True),
    ratio(
        "backward_overlap_ratio", "overlap_backward / comm, pooled", source="derived", nullable=True
    ),
    ratio("idle_share", "idle / wall, pooled", source="derived", nullable=True),
    ratio("compute_share", "compute / wall, pooled", source="derived", nullable=True),
    ratio("exposed_memory_share", "exposed_memory / wall, pooled", source="derived", nullable=True),
    ratio("wait_share", "wait / wall, pooled", source="derived", nullable=True),
    ratio("transfer_share", "(comm - wait) / wall, pooled", source="derived", nullable=True),
    ratio("mfu", "ideal_compute / wall, pooled", source="derived", nullable=True),
    flops_per_s(
        "flops_per_s",
        "sum of flops / sum of wall over (rank, step), which is the rate of one GPU",
        source="derived",
        nullable=True,
    ),
    ns(
        "dtod_ns_per_step",
        "mean dtod_ns over (rank, step)",
        arrow_type=FLOAT,
        source="derived",
        nullable=True,
    ),
    n_bytes(
        "dtod_bytes_per_step",
        "mean dtod_bytes over (rank, step)",
        arrow_type=FLOAT,
        source="derived",
        nullable=True,
    ),
    count(
        "collectives_per_step",
        "mean n_collectives over (rank, step)",
        arrow_type=FLOAT,
        source="derived",
        nullable=True,
    ),
    ns(
        "idle_input_ns_per_step",
        "mean idle_input_ns over (rank, step)",
        arrow_type=FLOAT,
        source="derived",
        nullable=True,
    ),
    ns(
        "idle_launch_ns_per_step",
        "mean idle_launch_ns over (rank, step)",
        arrow_type=FLOAT,
        source="derived",
        nullable=True,
    ),
    ns(
        "idle_blocked_ns_per_step",
        "mean idle_blocked_ns over (rank, step)",
        arrow_type=FLOAT,
        source="derived",
        nullable=True,
    ),
    ns(
        "idle_dependency_ns_per_step",
        "mean idle_dependency_ns over (rank, step)",
        arrow_type=FLOAT,
        source="derived",
        nullable=True,
    ),
    ns(
        "idle_unknown_ns_per_step",
        "mean idle_unknown_ns over (rank, step)",
        arrow_type=FLOAT,
        source="derived",
        nullable=True,
    ),
    n_bytes(
        "message_bytes_per_step",
        "mean message_bytes over (rank, step)",
        arrow_type=FLOAT,
        source="derived",
        nullable=True,
    ),
    bytes_per_s(
        "algbw_bytes_per_s",
        "sum of message_bytes / sum of transfer over matched collectives of summary steps",
        source="derived",
        nullable=True,
    ),
    bytes_per_s(
        "busbw_bytes_per_s",
        "sum of bus_bytes / sum of transfer over matched collectives of summary steps",
        source="derived",
        nullable=True,
    ),
)

# Metrics of a run, in the summary and in the list of runs.
_SUMMARY_COLUMNS = (
    count("n_steps", "Steps with a window on some rank", source="derived"),
    count("n_summary_steps", "Steps used for the metrics", source="derived"),
    ns(
        "step_time_ns",
        "median over summary steps of the largest window over ranks",
        arrow_type=FLOAT,
        source="derived",
        nullable=True,
    ),
    per_s(
        "throughput_steps_per_s",
        "1e9 / mean over summary steps of the largest window over ranks",
        source="derived",
        nullable=True,
    ),
    tokens_per_s(
        "tokens_per_s",
        "tokens x throughput_steps_per_s, of the whole job",
        source="derived",
        nullable=True,
    ),
    samples_per_s(
        "samples_per_s",
        "samples x throughput_steps_per_s, of the whole job",
        source="derived",
        nullable=True,
    ),
    *_FIGURE_COLUMNS,
)

SUMMARY = DescribedTable(
    name="summary",
    summary="One row: the metrics of the run.",
    doc=(
        "One row: the metrics of the run over its summary steps. Summary steps are complete on "
        "every rank and not skipped. If there are none, all steps that every rank has are summary "
        "steps."
    ),
    key=(),
    columns=_SUMMARY_COLUMNS,
)

RANK_SUMMARY = DescribedTable(
    name="rank_summary",
    summary="One row per rank: the metrics of the rank.",
    doc=(
        "One row per rank: the same metrics over the summary steps of the rank. The exposed "
        "communication of a rank in ns per step is the mean of exposed_comm_ns in the table "
        "steps, over the rows with in_summary."
    ),
    key=("rank",),
    columns=(
        _RANK_COLUMN,
        ns(
            "step_time_ns",
            "Median over summary steps of the windows of the rank",
            arrow_type=FLOAT,
            source="derived",
            nullable=True,
        ),
        *_FIGURE_COLUMNS,
    ),
)

# Columns of the summary of ranks that are metrics, without the step time.
FIGURES_OF_RANKS = tuple(column.name for column in _FIGURE_COLUMNS)

PHASE_SUMMARY = DescribedTable(
    name="phase_summary",
    summary="One row per phase: the metrics of the phase.",
    doc=(
        "One row per phase: the mean of each metric over all (rank, step) that contain the phase."
    ),
    key=("phase",),
    columns=(
        text("phase", "backward, forward, optimizer or data", source="NVTX_EVENTS"),
        ns(
            "host_ns_per_step",
            "mean of host_ns of phases",
            arrow_type=FLOAT,
            source="derived",
            nullable=True,
        ),
        ns(
            "compute_ns_per_step",
            "mean of compute_ns of phases",
            arrow_type=FLOAT,
            source="derived",
            nullable=True,
        ),
        ns(
            "comm_ns_per_step",
            "mean of comm_ns of phases",
            arrow_type=FLOAT,
            source="derived",
            nullable=True,
        ),
        ns(
            "exposed_comm_ns_per_step",
            "mean of exposed_comm_ns of phases",
            arrow_type=FLOAT,
            source="derived",
            nullable=True,
        ),
        ns(
            "device_ns_per_step",
            "mean of device_ns of phases",
            arrow_type=FLOAT,
            source="derived",
            nullable=True,
        ),
        ns(
            "idle_ns_per_step",
            "mean of idle_ns of phases",
            arrow_type=FLOAT,
            source="derived",
            nullable=True,
        ),
    ),
)

FINDINGS = DescribedTable(
    name="findings",
    summary="One row per finding: action, saving and evidence.",
    doc=(
        "One row per finding. The largest estimated saving is first. Findings without an estimate "
        "follow, the largest upper bound first. Finding comm-bound is after the findings that "
        "would reduce it."
    ),
    key=("expected_ns_per_step", "saving_ns_per_step", "id"),
    columns=(
        text("id", "Stable identifier of the finding"),
        text(
            "severity",
            "high, medium or low. High is a saving of at least 10% of step time, and medium of at "
            "least 3%. Low is less, or unknown.",
            source="derived",
        ),
        text("title", "Cause of the lost time"),
        text("action", "Recommendation, in a few words"),
        text("advice", "Recommendation, with the name of the option"),
        ns(
            "saving_ns_per_step",
            "Upper bound on the saving: step time minus the step time without the cause. For the "
            "cost of transfers, the bound is at most the saving of a simulation in which "
            "transfers take no time (limit_gain_ns of whatif), if there is one. Null if the "
            "finding has no bound.",
            arrow_type=FLOAT,
            source="derived",
            nullable=True,
        ),
        ns(
            "expected_ns_per_step",
            "Estimated saving: step time minus the step time of a simulation with the change (see "
            "nsyspipe whatif). The value is the mean over steps, and is not limited to "
            "saving_ns_per_step. The evidence has the range of the simulation, which may include "
            "no saving at all. Null if the simulation cannot model the change. Null also if it "
            "has only a limit (replay_limit_ns_per_step) or a condition "
            "(replay_conditional_ns_per_step). Null also if it has no estimate (the evidence has "
            f"the reason, replay_refused), and {_IN_OLDER_RUN}.",
            arrow_type=FLOAT,
            source="derived",
            nullable=True,
        ),
        json_text("evidence", "Metrics that the finding uses, as a JSON object"),
    ),
)

PROBLEMS = DescribedTable(
    name="problems",
    summary="One row per error, warning or note.",
    doc="One row per error, warning or note about what nsyspipe could not read or answer.",
    key=(),
    columns=(
        text("code", "Stable identifier"),
        text("severity", "error, warning or info"),
        text("report", "Report that the row is about", nullable=True),
        identifier("rank", "Rank that the row is about", nullable=True),
        text(
            "message",
            "Description of the problem, and the answers that are not available because of it",
        ),
        text("fix", "Option or command that fixes it", nullable=True),
    ),
)

RUNS = DescribedTable(
    name="runs",
    summary="One row per saved run: its identity and metrics.",
    doc="One row per run: its identity and its metrics.",
    key=("run_id",),
    columns=(
        identifier(
            "run_id",
            "ID of the run, as in the name of its directory",
            arrow_type=WORD,
            source="--run-id, else capture time and contents",
        ),
        text(
            "label", "Label of the run", source="--label, else what the report names have in common"
        ),
        count("n_ranks", "Number of ranks in the reports", source="derived"),
        count(
            "n_processes",
            "Number of processes of these ranks, which is smaller if some processes use several "
            f"GPUs. Null {_IN_OLDER_RUN}.",
            source="derived",
            nullable=True,
        ),
        count("world_size", "Number of ranks of the job", source="WORLD_SIZE, NCCL", nullable=True),
        text("gpu_names", "GPU models, separated by commas", source="TARGET_INFO_GPU"),
        text("hosts", "Host names, separated by commas", source="TARGET_INFO_SYSTEM_ENV"),
        text(
            "nsys_versions",
            "Versions of nsys that captured, separated by commas",
            source="META_DATA",
        ),
        text(
            "export_schema_versions",
            "Schema versions of the exports, separated by commas",
            source="META_DATA_EXPORT",
        ),
        utc_time(
            "captured_at_utc",
            "Start of the earliest session",
            source="TARGET_INFO_SESSION_START_TIME",
            nullable=True,
        ),
        text("reports", "Names of the reports, separated by commas", source="file names"),
        text(
            "step_family",
            "NVTX texts that mark the steps. Null without steps.",
            source="NVTX_EVENTS",
            nullable=True,
        ),
        *_SUMMARY_COLUMNS,
        text(
            "link_kind",
            "Kind of the slowest connection, as in links. Null if unknown.",
            source="NCCL log, topology",
            nullable=True,
        ),
        text(
            "nccl_version",
            "Version of NCCL. Null without its log.",
            source="NCCL log",
            nullable=True,
        ),
        json_text(
            "environment",
            "Environment variables at the start of the programs, as a JSON object. Only variables "
            "that are known to be harmless are included. Null if no report recorded them, and "
            f"{_IN_OLDER_RUN}.",
            source="META_DATA_CAPTURE",
            nullable=True,
        ),
        count(
            "n_findings",
            f"Number of findings. Null {_IN_OLDER_RUN}.",
            source="findings",
            nullable=True,
        ),
        text(
            "first_finding",
            "Identifier of the first finding. Null without findings, and so are the two columns "
            "that follow.",
            source="findings",
            nullable=True,
        ),
        text(
            "first_action",
            "Recommendation of the first finding, in a few words",
            source="findings",
            nullable=True,
        ),
        ns(
            "first_saving_ns_per_step",
            "Upper bound on the saving of the first finding. Null if the finding has no bound.",
            arrow_type=FLOAT,
            source="findings",
            nullable=True,
        ),
        text("tool_version", "Version of nsyspipe that wrote the run"),
        count("schema_version", "Version of the columns of the run store"),
        count(
            "definitions_version",
            "Version of the definitions that the metrics follow. Null means version 1, "
            f"{_IN_OLDER_RUN}.",
            nullable=True,
        ),
        json_text("details", "Lists and verdicts of the run, for internal use by nsyspipe"),
    ),
)

METRICS = DescribedTable(
    name="metrics",
    summary="One row per metric of a run, a rank, or a step.",
    doc=(
        "One row per metric of the run (rank and step null), of a rank (step null), or of a "
        "(rank, step). This is the long form of runs, rank_summary and steps, for dashboards."
    ),
    key=("rank", "step", "metric"),
    columns=(
        identifier("rank", "Global rank. Null for metrics of the run.", nullable=True),
        identifier(
            "step", "Step number. Null for metrics of the run and of a rank.", nullable=True
        ),
        text("metric", "Name of the column in those tables"),
        text("unit", "Unit in those tables"),
        Column("value", FLOAT, "the metric's", "Value. Null if not recorded.", nullable=True),
        flag(
            "in_summary",
            "For a (rank, step): whether the step counts in the metrics of the run",
            nullable=True,
        ),
    ),
)

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


def _as_saved(*tables: TableSchema) -> dict[str, TableSchema]:
    """Return tables by name as a store of runs has them: each row begins with the ID of its run."""
    return {table.name: _with_run_id(table) for table in tables}


def _with_run_id(table: TableSchema) -> TableSchema:
    run_id = RUNS.columns[0]
    key = (run_id.name, *table.key)
    columns = (run_id, *table.columns)
    return TableSchema(name=table.name, doc=table.doc, key=key, columns=columns)


_RESULTS = (
    RANKS,
    STEPS,
    PHASES,
    COLLECTIVES,
    STRAGGLERS,
    TRAFFIC,
    KERNEL_COSTS,
    LINKS,
    PEERS,
    COUNTERS,
)
_SUMMARIES = (
    RANK_SUMMARY,
    PHASE_SUMMARY,
    IDLE_CALLS,
    HOST_LINES,
    TIMELINE,
    COUNTER_BARS,
    LINE_BARS,
    HOST_STEPS,
    FINDINGS,
    PROBLEMS,
)

# Tables of a store by name. Those of events are written only on demand, and by rank.
EVENT_TABLES = _as_saved(EVENTS, PHASE_RANGES)
DATASET = {RUNS.name: RUNS} | _as_saved(*_RESULTS, *_SUMMARIES, METRICS) | EVENT_TABLES
# The number of a rank, and its rows of `EVENTS` and of `PHASE_RANGES`.
OfRank: TypeAlias = tuple[int, pa.Table, pa.Table]


class DrawnStep(NamedTuple):
    """A step that a timeline shows, and the numbers of its ranks."""

    step: int
    ranks: list[int]


# Tables of a run by name.
RUN_TABLES = {table.name: table for table in (*_RESULTS, SUMMARY, *_SUMMARIES)}
# Tables of the JSON document by their key there.
DOCUMENTED = {
    RANKS.name: RANKS,
    STEPS.name: STEPS,
    PHASES.name: PHASE_SUMMARY,
    IDLE_CALLS.name: IDLE_CALLS,
    HOST_LINES.name: HOST_LINES,
    HOST_STEPS.name: HOST_STEPS,
    STRAGGLERS.name: STRAGGLERS,
    TRAFFIC.name: TRAFFIC,
    LINKS.name: LINKS,
    PEERS.name: PEERS,
}
# Tables that ``nsyspipe schema`` prints by name.
DESCRIBED = RUN_TABLES | {
    table.name: table for table in (COSTS, EVENTS, PHASE_RANGES, RUNS, METRICS)
}
