"""Problems: a stable code, a message and a fix for each, and which facts a report records."""

from __future__ import annotations

from numbers import Integral
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.model.names import SINGULAR_VERBS, verb_for
from nsyspipe.model.schema import PROBLEMS

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


class ProblemKind(Struct, frozen=True, kw_only=True):
    """One kind of problem.

    `message` and `fix` are templates: ``{name}`` stands for a fact of the case. A number may have a
    noun in both forms, as in ``{n:step|steps}``. A verb of `SINGULAR_VERBS` has the number of
    ``n``: ``{are}`` is "is" or "are".
    """

    code: str
    severity: Severity
    message: str
    fix: str | None = None


class SkippedCheck(Struct, frozen=True):
    """Rules of findings that were skipped: the reason, and how to record what they need."""

    rules: tuple[str, ...]
    reason: str
    fix: str | None


class Problem(Struct, frozen=True):
    """One row of `schema.PROBLEMS`.

    `process_id` and `device_id` identify the rank until the ranks have numbers.
    """

    code: str
    message: str
    report: str | None = None
    process_id: int | None = None
    rank: int | None = None
    severity: str = ""
    fix: str | None = None
    device_id: int | None = None
    # The check that the message is about.
    skipped_check: SkippedCheck | None = None

    def at(self, *, report: str | None, rank: int | None = None) -> Problem:
        """Return the same problem placed in a run."""
        return replace(self, report=report, rank=rank)

    @property
    def row(self) -> dict[str, object]:
        """The row of `schema.PROBLEMS`."""
        return {name: getattr(self, name) for name in PROBLEMS.names}


class Recorded(Struct, frozen=True):
    """Which facts a report records. A fact is false only if it existed and the report lacks it."""

    kernels: bool = True
    # Names of the kernels, without which communication cannot be told from compute.
    names: bool = True
    memcpy: bool = True
    memset: bool = True
    # The kind of every copy.
    kinds: bool = True
    # The size of every device-to-device copy, in bytes.
    sizes: bool = True


# Fixes of several problems.
CAPTURE_CUDA = "capture with nsys profile --trace=cuda,nvtx and export without --tables"
TRACE_NVTX = (
    "unset NCCL_NVTX_DISABLE and capture with nsys profile --trace=cuda,nvtx (from nsys 2025.6 on "
    "add nccl)"
)
TRACE_GRAPH_NODES = "capture with nsys profile --cuda-graph-trace=node"
ANNOTATE_STEPS = (
    "wrap each step in torch.cuda.nvtx.range_push('step N') / range_pop(), or name it with "
    "--step REGEX"
)
WHOLE_STEP = "pass --step with a range that contains the whole step, or leave out --step"
# Of 10 captured steps, 8 count in the metrics. That is enough to show how much steps vary.
MORE_STEPS = "capture at least 10 steps"
SYNCHRONIZE_ONCE = (
    "call torch.cuda.synchronize() once during the capture, between two steps, so that nsyspipe "
    "can align the clocks"
)
EXPORT_ALL_TABLES = (
    "export again without --tables (needs the .nsys-rep file): nsys export --type=sqlite "
    "--force-overwrite=true REPORT.nsys-rep"
)
EXPORT_AGAIN = "export again from the .nsys-rep files with nsys 2025.3 or newer: "
# For reports without the payloads of NCCL.
WITH_BLOBS = f"{EXPORT_AGAIN}--include-blobs=true"
EXPORT_COMMUNICATORS = f"{WITH_BLOBS}, which adds the communicator of each call"
# Follows another fix, for a run without an NCCL log.
OR_LOG = ", or pass an NCCL log of the run (--nccl-log, NCCL_DEBUG=INFO)"

_KINDS = (
    # What the GPU did, and what is communication.
    ProblemKind(
        code="no-gpu-activity",
        severity="warning",
        message="no GPU activity was recorded (no kernel, copy or memset)",
        fix=CAPTURE_CUDA,
    ),
    ProblemKind(
        code="captured-without-gpu",
        severity="info",
        message=(
            "the capture has no GPU activity. nsyspipe reports only the steps on the CPU and "
            "their phases"
        ),
    ),
    ProblemKind(
        code="no-comm-kernels",
        severity="error",
        message=(
            "no communication kernel was found on the {n:rank that has|ranks that have} GPU work. "
            "Compute and communication are not available, because nsyspipe cannot separate them"
        ),
        fix=(
            "name your communication kernels with --comm-kernel REGEX (nsyspipe knows NCCL's "
            "kernels)"
        ),
    ),
    ProblemKind(
        code="uncounted-communication",
        severity="warning",
        message=(
            "some kernels have names like communication kernels, but count as compute: {names}"
        ),
        fix="if these kernels communicate, pass --comm-kernel {pattern}",
    ),
    ProblemKind(
        code="copies-of-unknown-communicators",
        severity="info",
        message=(
            "{n:NCCL call|NCCL calls} launched copies inside a GPU or to memory mapped into that "
            "GPU. No report records how many ranks the communicators of these calls have. nsyspipe "
            "counts these copies as communication"
        ),
        fix=EXPORT_COMMUNICATORS,
    ),
    ProblemKind(
        code="copies-in-nccl-calls",
        severity="warning",
        message=(
            "{n:NCCL call|NCCL calls} launched copies. The reports do not show whether several "
            "ranks took part. nsyspipe counts these copies as copies, not as communication"
        ),
        fix=EXPORT_COMMUNICATORS,
    ),
    # Steps and NVTX ranges.
    ProblemKind(
        code="no-steps",
        severity="warning",
        message=(
            "no steps were found ({why}). All metrics describe the capture as a whole. Step time, "
            "throughput, savings and overlap with backward are not available"
        ),
        fix=ANNOTATE_STEPS,
    ),
    ProblemKind(
        code="no-nvtx",
        severity="warning",
        message=(
            "NVTX ranges were not recorded. Phases are not available, and nsyspipe can find steps "
            "only by a periodic launch pattern"
        ),
        fix="capture with nsys profile --trace=cuda,nvtx",
    ),
    ProblemKind(
        code="no-nvtx-ranges",
        severity="info",
        message=(
            "NVTX was traced, but the captured part of the program has no NVTX range. Phases are "
            "not available, and nsyspipe can find steps only by a periodic launch pattern"
        ),
        fix=(
            "wrap each step, and forward, backward and optimizer in each step, in "
            "torch.cuda.nvtx.range_push / range_pop"
        ),
    ),
    # Costs of the capture itself.
    ProblemKind(
        code="cuda-backtraces",
        severity="warning",
        message=(
            "CUDA API calls were recorded with backtraces, which slow down every call. Kernel "
            "launches are later than without backtraces, so CPU times and idle time for late "
            "launches are too high"
        ),
        fix="capture without --cudabacktrace",
    ),
    ProblemKind(
        code="python-backtraces",
        severity="info",
        message=(
            "Python was sampled, or Python backtraces were recorded, which costs CPU time. Kernel "
            "launches may be later than without, so CPU times and idle time for late launches may "
            "be too high"
        ),
        fix=(
            "to compare the step times of two runs, capture both without --python-sampling and "
            "--python-backtrace"
        ),
    ),
    # Hardware counters.
    ProblemKind(
        code="too-many-counters",
        severity="warning",
        message=(
            "the report has {n:row|rows} of hardware counters, too many for the memory of this "
            "machine. The counters were not read"
        ),
        fix="capture fewer steps, or analyze the report on a machine with more memory",
    ),
    ProblemKind(
        code="counters-unreadable",
        severity="warning",
        message="the hardware counters hold values that no nsys writes. They were not read",
        fix=EXPORT_AGAIN.rstrip(": "),
    ),
    ProblemKind(
        code="counters-without-names",
        severity="warning",
        message=(
            "the report has samples of hardware counters, but no name of a counter that nsyspipe "
            "knows. The counters were not read"
        ),
        fix="export again without --tables",
    ),
    ProblemKind(
        code="counter-values-wrong",
        severity="warning",
        message=(
            "{n:sample|samples} of hardware counters had an impossible time or value. Impossible "
            "times were left out, and impossible values count as the nearest possible value"
        ),
    ),
    ProblemKind(
        code="counters-of-unknown-gpu",
        severity="warning",
        message=(
            "the report has hardware counters of {n:GPU|GPUs}, and none of them is known to "
            "be the GPU of a rank. These counters were not used"
        ),
    ),
    ProblemKind(
        code="idle-link-full",
        severity="warning",
        message=(
            "the counters of NVLink read 100% while nothing communicated, so this link is "
            "probably not connected. Its counters were not used"
        ),
    ),
    ProblemKind(
        code="link-rate-unknown",
        severity="info",
        message=(
            "nsyspipe does not know the link rates of the GPU {model}, so traffic on NVLink or "
            "PCIe is in per cent only"
        ),
    ),
    # Launches and clocks of the GPU.
    ProblemKind(
        code="no-launches",
        severity="warning",
        message=(
            "the launches of all GPU operations ({n}) are missing. nsyspipe assigns these "
            "operations to steps by their GPU times. Overlap with backward is not available"
        ),
        fix=CAPTURE_CUDA,
    ),
    ProblemKind(
        code="launch-missing",
        severity="warning",
        message=(
            "{n} of {total} GPU operations {have} no launch. nsyspipe assigns these operations to "
            "steps by their GPU times"
        ),
        fix=CAPTURE_CUDA,
    ),
    ProblemKind(
        code="stray-device",
        severity="info",
        message=(
            "the process of this rank also ran {n:operation|operations} on GPU {device}, less than "
            "1% of the kernels and of the kernel time of the process. nsyspipe does not count GPU "
            "{device} as a rank and ignores these operations"
        ),
    ),
    ProblemKind(
        code="device-clock-apart",
        severity="info",
        message=(
            "the clock of {device} differs from the CPU clock by {ms} ms. nsyspipe corrects GPU "
            "times by this difference when nsyspipe compares GPU times with CPU times, as for "
            "idle causes"
        ),
        fix="you need not do anything, but the difference may change in another capture",
    ),
    ProblemKind(
        code="device-clock-uncertain",
        severity="warning",
        message=(
            "the clock of {device} may differ from the CPU clock by {ms} ms. Metrics that compare "
            "GPU times with CPU times, such as idle causes, may be wrong by up to {ms} ms"
        ),
        fix=SYNCHRONIZE_ONCE,
    ),
    ProblemKind(
        code="device-clock-unknown",
        severity="warning",
        message=(
            "the clock of {device} may differ from the CPU clock by {ms} ms, which is longer than "
            "a step. Idle causes are not available"
        ),
        fix=SYNCHRONIZE_ONCE,
    ),
    # Phases.
    ProblemKind(
        code="no-backward",
        severity="warning",
        message="the steps contain no backward range. Overlap with backward is not available",
        fix=(
            "wrap loss.backward() in an NVTX range named 'backward', or name your range with "
            "--backward REGEX"
        ),
    ),
    ProblemKind(
        code="backward-in-graphs",
        severity="warning",
        message=(
            "steps run as CUDA graphs, and phases inside CUDA graphs are not visible. Overlap "
            "with backward is not available"
        ),
        fix="capture some steps without CUDA graphs",
    ),
    ProblemKind(
        code="backward-by-thread",
        severity="info",
        message=(
            "no NVTX range marks backward. nsyspipe assumes that backward runs while autograd's "
            "thread launches kernels and the training loop's thread launches none"
        ),
        fix="wrap loss.backward() in an NVTX range named 'backward'",
    ),
    ProblemKind(
        code="backward-by-operators",
        severity="info",
        message=(
            "no NVTX range marks backward. nsyspipe assumes that backward is everything that "
            "autograd's operators launch"
        ),
        fix="wrap loss.backward() in an NVTX range named 'backward'",
    ),
    # Steps by a periodic launch pattern.
    ProblemKind(
        code="steps-by-repetition",
        severity="info",
        message=(
            "no NVTX range marks steps, so nsyspipe found the steps by a periodic launch pattern: "
            "{n_units} times {n_launches} launches (agreement of the {key}: {agreement}, 1 is "
            "exact)"
        ),
        fix=ANNOTATE_STEPS,
    ),
    ProblemKind(
        code="steps-without-optimizer",
        severity="info",
        message=(
            "no kernel name and no range marks the optimizer in each step. A step is therefore "
            "the shortest launch pattern that repeats and contains a backward pass. Such a step "
            "may be one of several micro-batches, or several steps if one of them differs"
        ),
        fix=f"pass --steps N (about how many steps were captured), or {ANNOTATE_STEPS}",
    ),
    ProblemKind(
        code="steps-of-several-updates",
        severity="info",
        message=(
            "each step that nsyspipe found by a periodic launch pattern has {n} backward passes, "
            "each followed by an update. The program may have several optimizers, as a GAN has, "
            "or the pattern holds {n} steps"
        ),
        fix=(
            "if the pattern holds several steps, pass --steps N (about how many steps were "
            f"captured), or {ANNOTATE_STEPS}"
        ),
    ),
    ProblemKind(
        code="steps-cover-part",
        severity="warning",
        message=(
            "the steps that nsyspipe found by a periodic launch pattern hold {percent}% of the "
            "launches of this rank. Step metrics do not include the other launches"
        ),
        fix=ANNOTATE_STEPS,
    ),
    # Work outside steps, and steps that do not match across ranks.
    ProblemKind(
        code="launches-between-steps",
        severity="warning",
        message=(
            "{percent}% of the launches of this rank are outside all step ranges. nsyspipe counts "
            "these launches in the preceding step"
        ),
        fix=WHOLE_STEP,
    ),
    ProblemKind(
        code="comm-between-steps",
        severity="warning",
        message=(
            "{n_comm:communication operation|communication operations} and {percent}% of all "
            "launches of this rank are outside all step ranges. nsyspipe counts these operations "
            "in the preceding step. Wait time, message sizes, gradient copies and overlap with "
            "backward are not available, and the tables of collectives do not contain these "
            "operations"
        ),
        fix=WHOLE_STEP,
    ),
    ProblemKind(
        code="steps-not-aligned",
        severity="warning",
        message=(
            "nsyspipe cannot match the steps of different ranks. Metrics across ranks, such as "
            "wait time, are not available"
        ),
        fix=ANNOTATE_STEPS,
    ),
    ProblemKind(
        code="no-complete-step",
        severity="warning",
        message=(
            "no step is complete on every rank. All metrics use incomplete steps, and no warm-up "
            "step was skipped"
        ),
        fix=MORE_STEPS,
    ),
    ProblemKind(
        code="capture-start-in-figures",
        severity="info",
        message=(
            "the metrics include the step in which the capture started. Ranks reach this step at "
            "different times, so wait time and communication may be too high"
        ),
        fix=f"{MORE_STEPS}, or leave out --skip-first",
    ),
    ProblemKind(
        code="no-common-step",
        severity="error",
        message="no step was recorded on every rank. Metrics of the run are not available",
        fix="name the steps with --step REGEX",
    ),
    ProblemKind(
        code="slowest-rank-changes",
        severity="info",
        message=(
            "the slowest rank changes from step to step. A delay first lengthens the step of the "
            "delayed rank, then the next step of the other ranks. Step time is the longest of all "
            "ranks in each step and counts both. The mean step time is {percent}% longer than the "
            "mean step of any single rank, and throughput is too low by the same percentage"
        ),
    ),
    ProblemKind(
        code="work-replaced",
        severity="info",
        message="{option} {asked} replaces the value of the sidecar (NAME.capture.json): {values}",
        fix="leave out {option} to use the sidecar",
    ),
    ProblemKind(
        code="work-differs",
        severity="warning",
        message=(
            "the sidecars (NAME.capture.json) have different {what} per step ({values}), but this "
            "is a number of the whole job. {what} per second are not available"
        ),
        fix="pass {option} N",
    ),
    ProblemKind(
        code="no-datatype",
        severity="info",
        message=(
            "no name of a kernel shows the datatype of the matrix multiplications, so MFU, ideal "
            "compute and slow compute are not available"
        ),
        fix="pass --peak with one of {datatypes}",
    ),
    ProblemKind(
        code="mixed-datatypes",
        severity="info",
        message=(
            "no datatype has {least} of the time of the matrix multiplications, so MFU, ideal "
            "compute and slow compute are not available. The names of kernels show {shares}"
        ),
        fix="pass --peak with one of {datatypes}",
    ),
    ProblemKind(
        code="gpu-without-peak",
        severity="info",
        message=(
            "nsyspipe has no peak of {gpu}, so MFU, ideal compute and slow compute are not "
            "available"
        ),
    ),
    ProblemKind(
        code="datatype-without-peak",
        severity="info",
        message=(
            "{gpu} has no dense {datatype} peak, so MFU, ideal compute and slow compute are not "
            "available"
        ),
        fix="pass --peak with another datatype",
    ),
    ProblemKind(
        code="faster-than-peak",
        severity="warning",
        message=(
            "compute is shorter than the FLOPs take at the peak, in {n} of {total} steps of ranks. "
            "The FLOPs per step or the datatype of the peak must be wrong, and MFU is too high"
        ),
        fix="pass the FLOPs of one rank with --flops-per-step, and their datatype with --peak",
    ),
    ProblemKind(
        code="few-steps",
        severity="info",
        message="the metrics use {n:step|steps}, too few to show how much steps vary",
        fix=MORE_STEPS,
    ),
    ProblemKind(
        code="captured-several-times",
        severity="info",
        message=(
            "{n:process was|processes were} captured {times} times, in reports with the same host "
            "and process ID. nsyspipe treats each process as one rank. No step contains the time "
            "between two captures, and --skip-first applies to each capture"
        ),
        fix=(
            "you need not do anything, but if the reports are of several runs, analyze each "
            "report by itself"
        ),
    ),
    ProblemKind(
        code="step-missing",
        severity="warning",
        message=(
            "step {step} is missing on rank {missing}. Metrics across ranks leave out step {step}"
        ),
        fix="start and stop the capture at the same step on every rank",
    ),
    ProblemKind(
        code="steps-missing-on-rank",
        severity="warning",
        message="no step range was found on this rank",
        fix="check that the --step pattern matches the ranges of this report",
    ),
    ProblemKind(
        code="step-without-window",
        severity="info",
        message=(
            "{n:step range is|step ranges are} left out of all metrics ({why}, no time on the GPU)"
        ),
    ),
    # What was left out, or is hidden.
    ProblemKind(
        code="dropped-operations",
        severity="warning",
        message=(
            "nsyspipe left out {n:GPU operation that ends before it starts or has|GPU operations "
            "that end before they start or have} no time"
        ),
        fix=EXPORT_ALL_TABLES,
    ),
    ProblemKind(
        code="dropped-ranges",
        severity="info",
        message=(
            "nsyspipe left out {n:NVTX range that ends before it starts|NVTX ranges that end "
            "before they start}"
        ),
    ),
    ProblemKind(
        code="graphs-as-a-whole",
        severity="warning",
        message=(
            "CUDA graphs were captured as a whole and count as compute. The contents of "
            "{n:graph launch|graph launches} of the report are not visible. Copies are not "
            "available, and idle time inside graphs is missing"
        ),
        fix=TRACE_GRAPH_NODES,
    ),
    ProblemKind(
        code="comm-in-graphs",
        severity="error",
        message=(
            "CUDA graphs were captured as a whole, so communication inside "
            "{n:graph launch|graph launches} of the report is not visible. Communication, wait "
            "time, compute and copies are not available, and idle time inside graphs is missing"
        ),
        fix=TRACE_GRAPH_NODES,
    ),
    # Facts that the report does not record.
    ProblemKind(
        code="no-kernels",
        severity="error",
        message=(
            "kernels were launched, but the report has no kernel table. Metrics that need kernels "
            "are not available"
        ),
        fix=EXPORT_ALL_TABLES,
    ),
    ProblemKind(
        code="no-kernel-names",
        severity="error",
        message=(
            "the report has no kernel names. Compute and communication are not available, because "
            "nsyspipe cannot separate them"
        ),
        fix=EXPORT_ALL_TABLES,
    ),
    ProblemKind(
        code="no-memcpy",
        severity="warning",
        message=(
            "the program made copy calls, but the report has no table of copies. Copies and idle "
            "time are not available"
        ),
        fix=EXPORT_ALL_TABLES,
    ),
    ProblemKind(
        code="no-memset",
        severity="warning",
        message=(
            "the program made memset calls, but the report has no table of memsets and does not "
            "show that the export is complete. Exposed copies and idle time are not available"
        ),
        fix=EXPORT_ALL_TABLES,
    ),
    ProblemKind(
        code="memset-calls-only",
        severity="info",
        message=(
            "{n:memset call|memset calls} ran nothing on the GPU that nsys recorded, and the "
            "export is complete. Such calls were captured into CUDA graphs, set no bytes, or set "
            "CPU memory. Exposed copies and idle time count no memset"
        ),
    ),
    ProblemKind(
        code="no-copy-kind",
        severity="warning",
        message=(
            "the report does not record the kind of each copy. Metrics of D2D memcpy are not "
            "available"
        ),
        fix=EXPORT_ALL_TABLES,
    ),
    ProblemKind(
        code="no-copy-bytes",
        severity="warning",
        message="the report does not record the size of each copy. Copy sizes are not available",
        fix=EXPORT_ALL_TABLES,
    ),
    # Clocks of the ranks, and collectives across ranks.
    ProblemKind(
        code="no-session-start",
        severity="warning",
        message=(
            "the report does not record when its session started, so nsyspipe cannot use session "
            "starts to align the clocks of the ranks"
        ),
        fix="export with nsys 2022.1 or newer",
    ),
    ProblemKind(
        code="no-common-clock",
        severity="warning",
        message=(
            "nsyspipe cannot align the clocks of the ranks (no session start, fewer than 3 "
            "matching collectives). Wait time and transfer time are not available"
        ),
        fix="export with nsys 2022.1 or newer",
    ),
    ProblemKind(
        code="clock-error-unknown",
        severity="info",
        message=(
            "the ranks do not share 3 collectives that end at the same time on every rank (sends "
            "and receives do not). The clocks are aligned only by the session starts"
        ),
        fix=(
            "capture at least 3 collectives of all ranks, for example more steps, or add "
            "torch.distributed.barrier()"
        ),
    ),
    ProblemKind(
        code="unmatched-collectives",
        severity="warning",
        message=(
            "{n} of {total} communication operations could not be matched with certainty across "
            "ranks. Wait time is not available in the steps of these operations"
        ),
        fix=(
            "capture whole steps on every rank. If there are several process groups, "
            f"{EXPORT_COMMUNICATORS}"
        ),
    ),
    ProblemKind(
        code="operation-ids-contradict",
        severity="warning",
        message=(
            "{n:communication operation has|communication operations have} a number (operationId) "
            "that other operations contradict by collective, size or rank. nsyspipe matches the "
            "ranks of these communicators by order instead"
        ),
    ),
    ProblemKind(
        code="groups-not-named",
        severity="warning",
        message=(
            "the process groups of {which} are unknown, and the ranks cannot all be one group "
            "({reason}). Wait time, transfer time, stragglers and bus bandwidth are not available "
            "there"
        ),
        fix=f"{EXPORT_COMMUNICATORS}{OR_LOG}",
    ),
    ProblemKind(
        code="groups-by-log",
        severity="info",
        message=(
            "the process groups are from the NCCL log. nsyspipe used the times of collectives to "
            "find the group of each call"
        ),
    ),
    ProblemKind(
        code="reports-changed",
        severity="warning",
        message=(
            "these reports changed or were removed after nsyspipe read them: {reports}. Results "
            "that need a second reading (simulation, timeline, single operations) may be missing"
        ),
        fix="do not change the reports during the analysis, and start again",
    ),
    ProblemKind(
        code="different-runs",
        severity="error",
        message=(
            "none of the {total} communication operations matches an operation on another rank. "
            "The reports may be of different runs. In that case all metrics across ranks are "
            "wrong. Wait time is not available"
        ),
        fix=(
            "pass the reports of one run. If the reports are of one run, capture the same whole "
            "steps on every rank"
        ),
    ),
    ProblemKind(
        code="more-ranks-than-world",
        severity="error",
        message=(
            "there are {n} processes, but the job had {world_size:rank|ranks}. The reports may be "
            "of different runs. In that case all metrics across ranks are wrong"
        ),
        fix="pass the reports of one run",
    ),
    ProblemKind(
        code="ended-before-last-arrived",
        severity="warning",
        message=(
            "{n:communication operation ends|communication operations end} before the last rank "
            "starts. These operations may be of different process groups. Their transfer time "
            "counts as 0"
        ),
        fix=EXPORT_COMMUNICATORS,
    ),
    ProblemKind(
        code="clocks-put-last-behind-end",
        severity="warning",
        message=(
            "{n:communication operation ends|communication operations end} before the last rank "
            "starts, which is impossible. The clocks of these ranks differ by more than the "
            "estimated clock error. The transfer time of these operations counts as 0, and "
            "bandwidths of short messages may be too high"
        ),
    ),
    # Ranks and their reports.
    ProblemKind(
        code="rank-by-order",
        severity="warning",
        message=(
            "the reports do not identify the ranks. nsyspipe numbered the ranks by order of "
            "argument, GPU and process"
        ),
        fix=('--rank-map "REPORT=RANK,...", or REPORT:PID=RANK if a report has several processes'),
    ),
    ProblemKind(
        code="rank-map-differs",
        severity="warning",
        message=(
            "--rank-map assigns rank {number} to {report}, but the report was captured as rank "
            "{told}{more}. nsyspipe uses the numbers of the map"
        ),
        fix="leave out --rank-map, or assign to each report the rank of its capture",
    ),
    ProblemKind(
        code="processes-without-kernels",
        severity="warning",
        message="{processes} {what}, and no kernel of {them} was recorded{stand_for}. {cost}",
        fix="capture each rank with its own nsys: nsys profile --trace=cuda,nvtx",
    ),
    ProblemKind(
        code="ranks-missing",
        severity="warning",
        message=(
            "the reports of {n} of {world_size} {noun} are missing ({missing}). All metrics "
            "describe only the ranks with a report. Wait time, transfer time, bandwidth and "
            "stragglers are not available for communication with a missing rank"
        ),
        fix="pass the reports of all ranks",
    ),
    ProblemKind(
        code="ranks-not-captured",
        severity="info",
        message=(
            "{n} of {world_size} {noun} {were} left out of the capture ({missing}). All metrics "
            "describe only the captured ranks. Wait time, transfer time, bandwidth and "
            "stragglers are not available for communication with a missing rank"
        ),
    ),
    ProblemKind(
        code="ranks-not-read",
        severity="info",
        message=(
            "{n} of {world_size} {noun} {were} not read ({missing}). All metrics describe the "
            "other ranks. Wait time, transfer time, bandwidth and stragglers are not available for "
            "communication with a missing rank"
        ),
        fix="leave out --ranks",
    ),
    # Sidecars of a capture.
    ProblemKind(
        code="capture-failed",
        severity="warning",
        message="rank {which}: {outcome}. The report may be incomplete",
        fix="read the output of the training program, and capture again",
    ),
    ProblemKind(
        code="unusable-sidecar",
        severity="warning",
        message=(
            "{n:sidecar|sidecars} cannot be used: {files}. Facts about the capture are missing"
        ),
        fix="remove the named files, or capture again",
    ),
    ProblemKind(
        code="stale-sidecar",
        severity="warning",
        message=(
            "{n:sidecar of another capture with the same name is"
            "|sidecars of another capture with the same name are} not used: {files}"
        ),
        fix="keep the sidecar (NAME.capture.json) with the reports of its capture",
    ),
    ProblemKind(
        code="conflicting-sidecars",
        severity="warning",
        message="{files} disagree about {of}, so nsyspipe uses none of these files",
        fix="keep only the sidecar (NAME.capture.json) that was written with the reports",
    ),
    ProblemKind(
        code="sidecar-file-unusable",
        severity="warning",
        message=(
            "{n:file that the sidecar (NAME.capture.json) names is"
            "|files that the sidecar (NAME.capture.json) names are} not used: {files}"
        ),
        fix="pass the path of the log with --nccl-log, or of the topology with --topology",
    ),
    # Patterns that match nothing.
    ProblemKind(
        code="step-pattern-ignored",
        severity="info",
        message=(
            "the sidecar (NAME.capture.json) gives the step pattern {pattern}, but {why}. nsyspipe "
            "found the steps by the names of the ranges"
        ),
        fix="pass --step REGEX if these are not the steps that you want",
    ),
    ProblemKind(
        code="phase-pattern-unmatched",
        severity="warning",
        message=(
            "no NVTX range matches {option} {pattern}, so nothing counts as {phase}. The longest "
            "ranges: {families}"
        ),
        fix="leave out {option}, or name existing ranges",
    ),
    ProblemKind(
        code="comm-kernel-unmatched",
        severity="warning",
        message=(
            "no kernel matches --comm-kernel {pattern}. Kernels with names like communication: "
            "{alike}"
        ),
        fix=(
            "leave out --comm-kernel, or match one of the names that nsyspipe analyze --top 30 "
            "prints"
        ),
    ),
    # Versions, models and message sizes.
    ProblemKind(
        code="no-gpu-name",
        severity="info",
        message="the report does not record the GPU model of rank {rank}",
    ),
    ProblemKind(
        code="untested-version",
        severity="info",
        message=(
            "export schema {version} is newer than all real reports that nsyspipe was tested with"
        ),
        fix="compare the results with nsys stats",
    ),
    ProblemKind(
        code="no-message-size",
        severity="info",
        message=(
            "message sizes were not recorded ({why}), so nsyspipe can only estimate bandwidths"
        ),
        fix="{how}",
    ),
    ProblemKind(
        code="few-message-sizes",
        severity="info",
        message=(
            "the message sizes of {n} of {total} communication operations are unknown. Bytes and "
            "bandwidths of these operations are not available"
        ),
    ),
    # NCCL logs and topologies.
    ProblemKind(
        code="log-of-another-run",
        severity="warning",
        message=(
            "the NCCL log contains no process of this run and no communicator of its size "
            "({sizes}). The log is of another run, so nsyspipe ignores the log"
        ),
        fix="pass the log of this run, made with NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl_%h_%p.log",
    ),
    ProblemKind(
        code="log-of-other-processes",
        severity="warning",
        message=(
            "the NCCL log is of as many ranks as this run, but has other process IDs. The log is "
            "of another job or of containers"
        ),
        fix="pass the log of this job (in containers process IDs may differ)",
    ),
    ProblemKind(
        code="log-of-some-processes",
        severity="info",
        message=(
            "the NCCL logs cover {n} of {total} processes of the run. The interconnect of the "
            "other processes may be unknown"
        ),
        fix="pass the logs of all processes: --nccl-log 'nccl_*.log'",
    ),
    ProblemKind(
        code="log-without-communicators",
        severity="info",
        message=(
            "the NCCL log names no communicator, so the log does not show what connects the ranks"
        ),
        fix="pass the log of a run with NCCL_DEBUG=INFO and an NCCL version that logs a commId",
    ),
    ProblemKind(
        code="topology-of-another-machine",
        severity="warning",
        message=(
            "the topology has no GPU {gpus}, but the run has ranks on GPU {gpus}. The topology is "
            "of another machine, so nsyspipe does not use the topology for these ranks"
        ),
        fix=(
            "run nvidia-smi topo -m > topo.txt on a host of the run, and pass --topology topo.txt"
        ),
    ),
    ProblemKind(
        code="files-beside-used",
        severity="info",
        message=(
            "found in the directory of the reports and used: {files} (--no-logs ignores these "
            "files)"
        ),
    ),
    ProblemKind(
        code="log-beside-ignored",
        severity="info",
        message=(
            "found in the directory of the reports, but not used: {files} ({whose}). No process "
            "of this run wrote these logs"
        ),
        fix=(
            "keep logs with the reports of their run, or pass --nccl-log FILE to use a log anyway"
        ),
    ),
    ProblemKind(
        code="file-beside-unusable",
        severity="info",
        message=(
            "{n:file was|files were} found in the directory of the reports, but not used: {files}"
        ),
        fix="{option} FILE, if a file is of this run",
    ),
    ProblemKind(
        code="topologies-beside",
        severity="info",
        message=(
            "the topology files in the directory of the reports differ, so nsyspipe uses none of "
            "them: {files}"
        ),
        fix="--topology FILE",
    ),
    ProblemKind(
        code="nccl-inspector-used",
        severity="info",
        message=(
            "files of NCCL Inspector give the algorithms and protocols of collectives: {files}. "
            "nsyspipe follows the documentation of the format. No file of a real run was "
            "available to test it (--no-logs ignores these files)"
        ),
    ),
    ProblemKind(
        code="nccl-inspector-unusable",
        severity="info",
        message=("{n:file of NCCL Inspector is|files of NCCL Inspector are} not used: {files}"),
        fix="nsyspipe reads the JSON format v4.0 to v4.2, which has a line for each call",
    ),
    ProblemKind(
        code="nccl-inspector-unmatched",
        severity="info",
        message=(
            "{n} of {total} communication operations in steps {have} no algorithm from NCCL "
            "Inspector: {reason}"
        ),
        fix=(
            "record all calls with NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0 and "
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500, and export the reports with "
            "--include-blobs=true"
        ),
    ),
    ProblemKind(
        code="nccl-inspector-peers",
        severity="info",
        message=(
            "{n} of {total} sends and receives that NCCL Inspector recorded {have} no known peer: "
            "{reason}"
        ),
        fix=(
            "keep the files of NCCL Inspector of all processes next to the reports, or pass the "
            "log with --nccl-log FILE"
        ),
    ),
    # Findings, predictions and comparisons.
    ProblemKind(
        code="not-judged",
        severity="info",
        message="skipped checks: {rules} ({reason})",
        fix="{how}",
    ),
    ProblemKind(
        code="few-steps-to-replay",
        severity="warning",
        message=(
            "the predictions use {n:step|steps}, so their ranges do not show how much steps vary"
        ),
        fix=MORE_STEPS,
    ),
    ProblemKind(
        code="one-capture-replayed",
        severity="info",
        message=(
            "the predictions use {n} of {total} steps, which are the steps of one capture of the "
            "run"
        ),
        fix=MORE_STEPS,
    ),
    ProblemKind(
        code="no-figures",
        severity="warning",
        message="no step has a window on every rank, so the run has no metrics to compare",
        fix="see the other notes of this run",
    ),
    ProblemKind(
        code="older-definitions",
        severity="warning",
        message=(
            "the run was saved with older definitions. nsyspipe does not compare its "
            "communication, compute and copies with those of the other runs"
        ),
        fix="save the run again with nsyspipe analyze --out STORE",
    ),
    # Memory of GPUs.
    ProblemKind(
        code="alloc-sizes-unrecorded",
        severity="info",
        message=(
            "CUDA calls allocate or free GPU memory in {n} of {total} steps (sum over all "
            "ranks), but nsys did not record how many bytes"
        ),
        fix="capture with nsys profile --cuda-memory-usage=true",
    ),
    # NVTX payloads.
    ProblemKind(
        code="undecoded-payload",
        severity="info",
        message=(
            "nsyspipe ignored {n:NVTX payload that does|NVTX payloads that do} not match the "
            "description"
        ),
    ),
    # Samples of Python.
    ProblemKind(
        code="python-samples-without-lines",
        severity="info",
        message=(
            "{n:sample|samples} of Python were recorded, but the export left out their lines. "
            "Findings cannot name a line of Python"
        ),
        fix=WITH_BLOBS,
    ),
    ProblemKind(
        code="python-samples-in-tables",
        severity="info",
        message=(
            "{n:sample|samples} of Python were exported only as tables with columns that NVIDIA "
            "does not document. Findings cannot name a line of Python"
        ),
        fix=WITH_BLOBS,
    ),
    ProblemKind(
        code="python-samples-undecoded",
        severity="info",
        message=(
            "nsyspipe ignored {n:sample|samples} of Python of {total}, because the frames are not "
            "of the known form"
        ),
    ),
    ProblemKind(
        code="python-samples-too-large",
        severity="info",
        message=(
            "nsyspipe did not read {n:sample|samples} of Python, because they are larger than the "
            "limit of {limit_mb} MB. Findings cannot name a line of Python"
        ),
        fix="capture fewer steps, or sample less often: --python-sampling-frequency=200",
    ),
    ProblemKind(
        code="python-thread-unknown",
        severity="info",
        message=(
            "the samples of Python do not show which thread of the process is the main thread. "
            "Findings cannot name a line of Python"
        ),
    ),
)

# All kinds of problems by code.
CATALOGUE: dict[str, ProblemKind] = {kind.code: kind for kind in _KINDS}

# The problem that each fact is if it is not recorded.
NOT_RECORDED = {
    "kernels": "no-kernels",
    "names": "no-kernel-names",
    "memcpy": "no-memcpy",
    "memset": "no-memset",
    "kinds": "no-copy-kind",
    "sizes": "no-copy-bytes",
}
# Why hardware counters that a report has were not read.
UNREAD_COUNTERS = ("counters-unreadable", "counters-without-names", "too-many-counters")
# Operations that may be communication or not.
UNSURE_COMM = frozenset(
    {
        "uncounted-communication",
        "copies-of-unknown-communicators",
        "copies-in-nccl-calls",
    }
)
# Reports of several runs, where metrics across ranks mean nothing.
MIXED_RUNS = frozenset({"different-runs", "more-ranks-than-world"})
# Files that nobody named: which of them are used, and why others are not.
OF_FILES_BESIDE = (
    "files-beside-used",
    "log-beside-ignored",
    "file-beside-unusable",
    "topologies-beside",
    "nccl-inspector-used",
    "nccl-inspector-unusable",
    "nccl-inspector-unmatched",
    "nccl-inspector-peers",
)
# What nsyspipe takes for backward if no range marks it, in a few words.
BACKWARD_SOURCES = {
    "backward-by-thread": "backward passes found by launches of autograd's thread",
    "backward-by-operators": "backward passes found by autograd's operators",
}
IN_GRAPHS = "backward-in-graphs"
NO_SIZES = "no-message-size"

_BLOBS_COMMAND = (
    "nsys export --type=sqlite --include-blobs=true --force-overwrite=true REPORT.nsys-rep"
)
_CAPTURE_BLOBS = (
    "If you have no .nsys-rep files, capture again with nsys profile --trace=cuda,nvtx, and export "
    "the new files like this"
)
_EXPORT_BLOBS = f"{EXPORT_AGAIN}{_BLOBS_COMMAND}. {_CAPTURE_BLOBS}"
# Why the payloads of NCCL do not record message sizes, and the fix. The first reason lacks most.
SIZE_GAPS = {
    "no-ranges": ("NCCL's NVTX ranges are missing", TRACE_NVTX),
    "replayed": ("a replayed CUDA graph makes no NCCL call", CATALOGUE[IN_GRAPHS].fix or ""),
    "no-payloads": ("NCCL's NVTX payloads are missing", _EXPORT_BLOBS),
    "not-described": ("NCCL's NVTX payloads have no description", _EXPORT_BLOBS),
    "not-exported": (
        "NCCL's NVTX payloads were not exported",
        f"export again from the .nsys-rep files: {_BLOBS_COMMAND}. {_CAPTURE_BLOBS}",
    ),
}


class _Count(int):
    """A number of a message with its noun in both forms.

    ``{n:step|steps}`` becomes ``1 step`` or ``2 steps``.
    """

    def __format__(self, nouns: str) -> str:
        """Return the number with its noun. `nouns` are both forms, for example ``step|steps``."""
        singular, separator, plural = nouns.partition("|")
        if not separator:
            return super().__format__(nouns)
        noun = singular if self == 1 else plural
        return f"{int(self)} {noun}"


def _with_noun(fact: object) -> object:
    """Return a number as one that can state its noun, 1 step or 2 steps; other facts unchanged."""
    return _Count(fact) if isinstance(fact, Integral) else fact


def problem(
    code: str,
    *,
    severity: str | None = None,
    process_id: int | None = None,
    rank: int | None = None,
    **facts: object,
) -> Problem:
    """Return a problem of the catalogue with its message and fix, which `facts` fill in.

    `severity` replaces that of the catalogue.
    """
    kind = CATALOGUE[code]
    words = {name: _with_noun(fact) for name, fact in facts.items()}
    count = words.get("n")
    if isinstance(count, _Count):
        words |= {verb: verb_for(count, verb) for verb in SINGULAR_VERBS}
    # Only messages name the rank of a problem, never a fix.
    words_with_rank = {"rank": rank, **words}
    message = kind.message.format(**words_with_rank)
    fix = None if kind.fix is None else kind.fix.format(**words)
    return Problem(
        code=code,
        message=message,
        process_id=process_id,
        rank=rank,
        severity=severity or kind.severity,
        fix=fix,
    )
