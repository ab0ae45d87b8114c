"""Problems: stable codes, what each problem costs, the option that fixes the problem, and which facts a report has."""

from __future__ import annotations

from numbers import Integral

from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.model.schema import PROBLEMS

SEVERITIES = ("error", "warning", "info")
MORE_STEPS = "capture at least 10 steps"  # 8 steps in the metrics show how much steps vary
WHOLE_STEP = "pass --step with a range that contains the whole step, or leave out --step"
OR_LOG = ", or pass an NCCL log of the run (--nccl-log, NCCL_DEBUG=INFO)"  # if none was given
EXPORT_AGAIN = "export again from the .nsys-rep files with nsys 2025.3 or newer: "
WITH_BLOBS = f"{EXPORT_AGAIN}--include-blobs=true"  # wherever NCCL's payloads are missing
_FIXES = {  # fixes of several problems
    "CUDA": "capture with nsys profile --trace=cuda,nvtx and export without --tables",
    "ANNOTATE": (
        "wrap each step in torch.cuda.nvtx.range_push('step N') / range_pop(), or name it with "
        "--step REGEX"
    ),
    "WITH_BLOBS": WITH_BLOBS,
    "EXPORT_ALL": (
        "export again without --tables (needs the .nsys-rep file): nsys export --type=sqlite "
        "--force-overwrite=true REPORT.nsys-rep"
    ),
    "MORE_STEPS": MORE_STEPS,
    "ONE_CLOCK": (
        "call torch.cuda.synchronize() once during the capture, between two steps, so that "
        "nsyspipe can align the clocks"
    ),
    "WHOLE_STEP": WHOLE_STEP,
    "OR_LOG": OR_LOG,
    "GRAPH_NODES": "capture with nsys profile --cuda-graph-trace=node",
}

# A kind per line: its code, severity, message, and the fix after ``->``.
_KINDS = """
    no-gpu-activity (warning): no GPU activity was recorded (no kernel, copy or memset) -> <CUDA>
    captured-without-gpu (info): the capture has no GPU activity. nsyspipe reports only the steps on the CPU and their phases
    no-comm-kernels (error): no communication kernel was found on the {n:rank that has|ranks that have} GPU work. Compute and communication are not available,
        because nsyspipe cannot separate them -> name your communication kernels with --comm-kernel REGEX (nsyspipe knows NCCL's kernels)
    uncounted-communication (warning): some kernels have names like communication kernels, but count as compute: {names}
        -> if these kernels communicate, pass --comm-kernel {pattern}
    copies-of-unknown-communicators (info): {n} NCCL calls launched copies inside a GPU or to memory mapped into that GPU. No report records how many ranks
        the communicators of these calls have. nsyspipe counts these copies as communication -> <WITH_BLOBS>, which adds the communicator of each call
    copies-in-nccl-calls (warning): {n} NCCL calls launched copies. The reports do not show whether several ranks took part. nsyspipe counts these
        copies as copies, not as communication -> <WITH_BLOBS>, which adds the communicator of each call
    no-steps (warning): no steps were found ({why}). All metrics describe the capture as a whole. Step time, throughput, savings and overlap with
        backward are not available -> <ANNOTATE>
    no-nvtx (warning): NVTX ranges were not recorded. Phases are not available, and nsyspipe can find steps only by a periodic launch pattern
        -> capture with nsys profile --trace=cuda,nvtx
    no-nvtx-ranges (info): NVTX was traced, but the captured part of the program has no NVTX range. Phases are not available, and nsyspipe can find steps only
        by a periodic launch pattern -> wrap each step, and forward, backward and optimizer in each step, in torch.cuda.nvtx.range_push / range_pop
    cuda-backtraces (warning): CUDA API calls were recorded with backtraces, which slow down every call. Kernel launches are later than without backtraces, so
        CPU times and idle time for late launches are too high -> capture without --cudabacktrace
    python-backtraces (info): Python backtraces were recorded, which costs CPU time. Kernel launches may be later than without backtraces, so CPU times and
        idle time for late launches may be too high -> to compare steps, capture without --python-sampling and --python-backtrace
    no-launches (warning): the launches of all {n} GPU operations are missing. nsyspipe assigns these operations to steps by their GPU times. Overlap with
        backward is not available -> <CUDA>
    launch-missing (warning): {n} of {total} GPU operations have no launch. nsyspipe assigns these operations to steps by their GPU times -> <CUDA>
    stray-device (info): the process of this rank also ran {n} operations on GPU {device}, less than 1% of the kernels and of the kernel time of the process.
        nsyspipe does not count GPU {device} as a rank and ignores these operations
    device-clock-apart (info): the clock of {device} differs from the CPU clock by {ms} ms. nsyspipe corrects GPU times by this difference when nsyspipe compares
        GPU times with CPU times, as for idle causes -> you need not do anything, but the difference may change in another capture
    device-clock-uncertain (info): the clock of {device} may differ from the CPU clock by {ms} ms. Metrics that compare GPU times with CPU times, such as idle
        causes, may be wrong by up to {ms} ms -> <ONE_CLOCK>
    device-clock-unknown (warning): the clock of {device} may differ from the CPU clock by {ms} ms, which is longer than a step. Idle causes are not available
        -> <ONE_CLOCK>
    no-backward (warning): the steps contain no backward range. Overlap with backward is not available
        -> wrap loss.backward() in an NVTX range named 'backward', or name your range with --backward REGEX
    backward-in-graphs (warning): steps run as CUDA graphs, and phases inside CUDA graphs are not visible. Overlap with backward is not available
        -> capture some steps without CUDA graphs
    backward-by-thread (info): no NVTX range marks backward. nsyspipe assumes that backward runs while autograd's thread launches kernels and the
        training loop's thread does not -> wrap loss.backward() in an NVTX range named 'backward'
    backward-by-operators (info): no NVTX range marks backward. nsyspipe assumes that backward is everything that autograd's operators launch
        -> wrap loss.backward() in an NVTX range named 'backward'
    steps-by-repetition (info): no NVTX range marks steps, so nsyspipe found the steps by a periodic launch pattern: {n_units} times {n_launches} launches
        (agreement of the {key}: {agreement}, 1 is exact) -> <ANNOTATE>
    steps-without-optimizer (info): no kernel name and no range marks the optimizer in each step. A step is therefore the shortest launch pattern that repeats
        and contains a backward pass. Such a step may be one of several micro-batches, or several steps if one of them differs
        -> pass --steps N (about how many steps were captured), or <ANNOTATE>
    steps-of-several-updates (info): each step that nsyspipe found by a periodic launch pattern has {n} backward passes, each followed by an update. The program
        may have several optimizers, as a GAN has, or the pattern holds {n} steps
        -> if the pattern holds several steps, pass --steps N (about how many steps were captured), or <ANNOTATE>
    steps-cover-part (warning): the steps that nsyspipe found by a periodic launch pattern hold {percent}% of the launches of this rank. Step metrics do not
        include the other launches -> <ANNOTATE>
    launches-between-steps (warning): {percent}% of the launches of this rank are outside all step ranges. nsyspipe counts these launches in the preceding
        step -> <WHOLE_STEP>
    comm-between-steps (warning): {n_comm} communication operations and {percent}% of all launches of this rank are outside all step ranges. nsyspipe counts
        these operations in the preceding step. Wait time, message sizes, gradient copies and overlap with backward are not available, and the tables of
        collectives do not contain these operations -> <WHOLE_STEP>
    steps-not-aligned (warning): nsyspipe cannot match the steps of different ranks. Metrics across ranks, such as wait time, are not available -> <ANNOTATE>
    no-complete-step (warning): no step is complete on every rank. All metrics use incomplete steps, and no warm-up step was skipped -> <MORE_STEPS>
    capture-start-in-figures (info): the metrics include the step in which the capture started. Ranks reach this step at different times, so wait time
        and communication may be too high -> <MORE_STEPS>, or leave out --skip-first
    no-common-step (error): no step was recorded on every rank. Metrics of the run are not available -> name the steps with --step REGEX
    slowest-rank-changes (info): the slowest rank changes from step to step. A delay first lengthens the step of the delayed rank, then the next step of the other
        ranks. Step time is the longest of all ranks in each step and counts both. The mean step time is {percent}% above the mean of every rank, and throughput
        is too low by the same amount
    few-steps (info): the metrics use {n:step|steps}, too few to show how much steps vary -> <MORE_STEPS>
    captured-several-times (info): {n} process(es) were captured {times} times, in reports with the same host and process ID. nsyspipe treats each process
        as one rank. No step contains the time between two captures, and --skip-first applies to each capture
        -> you need not do anything, but if the reports are of several runs, analyze each report by itself
    step-missing (warning): step {step} is missing on rank {missing}. Metrics across ranks leave out step {step}
        -> start and stop the capture at the same step on every rank
    steps-missing-on-rank (warning): no step range was found on this rank -> check that the --step pattern matches the ranges of this report
    step-without-window (info): {n:step range is|step ranges are} left out of all metrics ({why}, no time on the GPU)
    dropped-operations (warning): nsyspipe left out {n:GPU operation that ends before it starts or has|GPU operations that end before they start or have} no time -> <EXPORT_ALL>
    dropped-ranges (info): nsyspipe left out {n:NVTX range that ends before it starts|NVTX ranges that end before they start}
    graphs-as-a-whole (warning): CUDA graphs were captured as a whole and count as compute. The contents of {n} graph launches of the report are not visible.
        Copies are not available, and idle time inside graphs is missing -> <GRAPH_NODES>
    comm-in-graphs (error): CUDA graphs were captured as a whole, so communication inside {n} graph launches of the report is not visible. Communication, wait
        time, compute and copies are not available, and idle time inside graphs is missing -> <GRAPH_NODES>
    no-kernels (error): kernels were launched, but the report has no kernel table. Metrics that need kernels are not available -> <EXPORT_ALL>
    no-kernel-names (error): the report has no kernel names. Compute and communication are not available, because nsyspipe cannot separate them -> <EXPORT_ALL>
    no-memcpy (warning): the program made copy calls, but the report has no table of copies. Copies and idle time are not available -> <EXPORT_ALL>
    no-memset (warning): the program made memset calls, but the report has no table of memsets and does not show that the export is complete. Exposed copies
        and idle time are not available -> <EXPORT_ALL>
    memset-calls-only (info): {n} memset calls ran nothing on the GPU that nsys recorded, and the export is complete. Such calls were captured into CUDA
        graphs, set no bytes, or set CPU memory. Exposed copies and idle time count no memset
    no-copy-kind (warning): the report does not record the kind of each copy. Metrics of D2D memcpy are not available -> <EXPORT_ALL>
    no-copy-bytes (warning): the report does not record the size of each copy. Copy sizes are not available -> <EXPORT_ALL>
    no-session-start (warning): the report does not record when its session started, so nsyspipe cannot use session starts to align the clocks of the ranks
        -> export with nsys 2022.1 or newer
    no-common-clock (warning): nsyspipe cannot align the clocks of the ranks (no session start, fewer than 3 matching collectives). Wait time and transfer time
        are not available -> export with nsys 2022.1 or newer
    clock-error-unknown (info): the ranks do not share 3 collectives that end at the same time on every rank (sends and receives do not). The clocks are aligned
        only by the session starts -> capture at least 3 collectives of all ranks, for example more steps, or add torch.distributed.barrier()
    unmatched-collectives (warning): {n} of {total} communication operations could not be matched with certainty across ranks. Wait time is not available
        in the steps of these operations -> capture whole steps on every rank. If there are several process groups, <WITH_BLOBS>, which adds the communicator of each call
    groups-not-named (warning): the process groups of {which} are unknown, and the ranks cannot all be one group ({reason}). Wait time, transfer time, stragglers
        and bus bandwidth are not available there -> <WITH_BLOBS>, which adds the communicator of each call<OR_LOG>
    groups-by-log (info): the process groups are from the NCCL log. nsyspipe used the times of collectives to find the group of each call
    reports-changed (warning): these reports changed or were removed after nsyspipe read them: {reports}. Results that need a second reading (simulation,
        timeline, single operations) may be missing -> do not change the reports during the analysis, and start again
    different-runs (error): none of the {total} communication operations matches an operation on another rank. The reports may be of different runs. In that case
        all metrics across ranks are wrong. Wait time is not available
        -> pass the reports of one run. If the reports are of one run, capture the same whole steps on every rank
    more-ranks-than-world (error): there are {n} processes, but the job had {world_size} ranks. The reports may be of different runs. In that case all metrics
        across ranks are wrong -> pass the reports of one run
    ended-before-last-arrived (warning): {n:communication operation ends|communication operations end} before the last rank starts. These operations may be of different process groups.
        Their transfer time counts as 0 -> <WITH_BLOBS>, which adds the communicator of each call
    clocks-put-last-behind-end (warning): {n:communication operation ends|communication operations end} before the last rank starts, which is impossible. The clocks of these ranks
        differ by more than the estimated clock error. The transfer time of these operations counts as 0, and bandwidths of short messages may be too high
    rank-by-order (warning): the reports do not identify the ranks. nsyspipe numbered the ranks by order of argument, GPU and process
        -> --rank-map "REPORT=RANK,...", with REPORT:PID=RANK for a report of several processes
    rank-map-differs (warning): --rank-map assigns rank {number} to {report}, but the report was captured as rank {told}{more}. nsyspipe uses the numbers
        of the map -> leave out --rank-map, or assign to each report the rank of its capture
    processes-without-kernels (warning): {processes} {what}, and no kernel of {them} was recorded{stand_for}. {cost}
        -> capture each rank with its own nsys: nsys profile --trace=cuda,nvtx
    ranks-missing (warning): the reports of {n} of {world_size} {noun} are missing ({missing}). All metrics describe the other ranks. Wait time, transfer time,
        bandwidth and stragglers are not available for communication with a missing rank -> pass the reports of all ranks
    ranks-not-captured (info): {n} of {world_size} {noun} were left out of the capture ({missing}). All metrics describe the other ranks. Wait time, transfer
        time, bandwidth and stragglers are not available for communication with a missing rank
    ranks-not-read (info): {n} of {world_size} {noun} were not read ({missing}). All metrics describe the other ranks. Wait time, transfer time, bandwidth
        and stragglers are not available for communication with a missing rank -> leave out --ranks
    capture-failed (warning): rank {which}: {outcome}. The report may be incomplete -> read the output of the training program, and capture again
    unusable-sidecar (warning): {file} cannot be used ({reason}). The facts about the capture in this file are not available -> remove the file, or capture again
    stale-sidecar (warning): {file} belongs to another capture with the same name ({reason}), so nsyspipe ignores this file
        -> keep the sidecar with the reports of its capture
    conflicting-sidecars (warning): {files} disagree about {of}, so nsyspipe uses none of these files -> keep only the sidecar that was written with the reports
    sidecar-file-unusable (warning): the sidecar of the capture names {file}, but nsyspipe cannot use this file ({reason})
        -> name the files with --nccl-log and --topology
    step-pattern-ignored (info): the sidecar of the capture gives the step pattern {pattern}, but {why}. nsyspipe found the steps by the names of the ranges
        -> pass --step REGEX if these are not the steps that you want
    phase-pattern-unmatched (warning): no NVTX range matches {option} {pattern}, so nothing counts as {phase}. The longest ranges: {families}
        -> leave out {option}, or name existing ranges
    comm-kernel-unmatched (warning): no kernel matches --comm-kernel {pattern}. Kernels with names like communication: {alike}
        -> leave out --comm-kernel, or match one of the names that nsyspipe analyze --top 30 prints
    no-gpu-name (info): the report does not record the GPU model of rank {rank}
    untested-version (info): export schema {version} is newer than all versions that nsyspipe was tested with -> compare the results with nsys stats
    no-message-size (info): message sizes were not recorded ({why}), so nsyspipe can only estimate bandwidths -> {how}
    few-message-sizes (info): the message sizes of {n} of {total} communication operations are unknown. Bytes and bandwidths of these operations are not available
    log-of-another-run (warning): the NCCL log contains no process of this run and no communicator of its size ({sizes}). The log is of another run, so nsyspipe
        ignores the log -> pass the log of this run, made with NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl_%h_%p.log
    log-of-other-processes (warning): the NCCL log is of as many ranks as this run, but has other process IDs. The log is of another job or of containers
        -> pass the log of this job (in containers process IDs may differ)
    log-of-some-processes (info): the NCCL logs cover {n} of {total} processes of the run. The interconnect of the other processes may be unknown
        -> pass the logs of all processes: --nccl-log 'nccl_*.log'
    log-without-communicators (info): the NCCL log names no communicator, so the log does not show what connects the ranks
        -> pass the log of a run with NCCL_DEBUG=INFO and an NCCL version that logs a commId
    topology-of-another-machine (warning): the topology has no GPU {gpus}, but the run has ranks on GPU {gpus}. The topology is of another machine, so nsyspipe
        does not use the topology for these ranks -> run nvidia-smi topo -m > topo.txt on a host of the run, and pass --topology topo.txt
    files-beside-used (info): found in the directory of the reports and used: {files} (--no-logs ignores these files)
    log-beside-ignored (info): found in the directory of the reports, but not used: {files} ({whose}). No process of this run wrote these logs
        -> keep logs with the reports of their run, or pass --nccl-log FILE to use a log anyway
    file-beside-unusable (info): found in the directory of the reports, but not used: {file} ({reason}) -> {option} FILE, if the file is of this run
    topologies-beside (info): the topology files in the directory of the reports differ, so nsyspipe uses none of them: {files} -> --topology FILE
    not-judged (info): skipped checks: {rules} ({reason}) -> {how}
    few-steps-to-replay (warning): the predictions use {n:step|steps}, so their ranges do not show how much steps vary -> <MORE_STEPS>
    one-capture-replayed (info): the predictions use {n} of {total} steps, which are the steps of one capture of the run -> <MORE_STEPS>
    no-figures (warning): no step has a window on every rank, so the run has no metrics to compare -> see the other notes of this run
    older-definitions (warning): the run was saved with older definitions. nsyspipe does not compare its communication, compute and copies with those of the
        other runs -> save the run again with nsyspipe analyze --out STORE
    undecoded-payload (info): nsyspipe ignored {n:NVTX payload that does|NVTX payloads that do} not match the description
"""
NOT_RECORDED = {  # the problem that each lacking fact is
    "kernels": "no-kernels",
    "names": "no-kernel-names",
    "memcpy": "no-memcpy",
    "memset": "no-memset",
    "kinds": "no-copy-kind",
    "sizes": "no-copy-bytes",
}


class Kind(Struct, frozen=True):
    """One kind of problem: its message and fix are templates over the facts of the case."""

    severity: str
    message: str
    fix: str | None = None


def _kind(line: str) -> tuple[str, Kind]:
    head, _, rest = line.strip().partition(": ")
    code, severity = head.removesuffix(")").split(" (")
    message, _, fix = rest.partition(" -> ")
    for name, text in _FIXES.items():
        fix = fix.replace(f"<{name}>", text)
    return code, Kind(severity, message, fix or None)


CATALOGUE: dict[str, Kind] = dict(
    map(_kind, _KINDS.replace("\n" + 8 * " ", " ").strip().splitlines())
)

# What may be communication, or not.
UNSURE_COMM = frozenset(
    {"uncounted-communication", "copies-of-unknown-communicators", "copies-in-nccl-calls"}
)
MIXED_RUNS = frozenset(
    {"different-runs", "more-ranks-than-world"}
)  # figures across ranks mean nothing then

# What is to be known of files that nobody named: which are used, and why others are not.
OF_FILES_BESIDE = (
    "files-beside-used",
    "log-beside-ignored",
    "file-beside-unusable",
    "topologies-beside",
)

# Where no range marks backward: what it is taken to be, in a few words.
BACKWARD_SOURCES = {
    f"backward-by-{what}": f"backward by autograd's {what}" for what in ("thread", "operators")
}

_BLOBS = "nsys export --type=sqlite --include-blobs=true --force-overwrite=true REPORT.nsys-rep"
TRACE_NVTX = (
    "unset NCCL_NVTX_DISABLE and capture with nsys profile --trace=cuda,nvtx (from nsys 2025.6 on "
    "add nccl)"
)
IN_GRAPHS = "backward-in-graphs"
NO_SIZES = "no-message-size"
_CAPTURE_BLOBS = (
    "If you have no .nsys-rep files, capture again with nsys profile --trace=cuda,nvtx, and export "
    "the new files like this"
)
_EXPORT_BLOBS = f"{EXPORT_AGAIN}{_BLOBS}. {_CAPTURE_BLOBS}"
# Why NCCL's payloads do not record message sizes, and the fix. The first gap lacks most.
SIZE_GAPS = {
    "no-ranges": ("NCCL's NVTX ranges are missing", TRACE_NVTX),
    "replayed": ("a replayed CUDA graph makes no NCCL call", CATALOGUE[IN_GRAPHS].fix or ""),
    "no-payloads": ("NCCL's NVTX payloads are missing", _EXPORT_BLOBS),
    "not-described": ("NCCL's NVTX payloads have no description", _EXPORT_BLOBS),
    "not-exported": (
        "NCCL's NVTX payloads were not exported",
        f"export again from the .nsys-rep files: {_BLOBS}. {_CAPTURE_BLOBS}",
    ),
}


class SkippedCheck(Struct, frozen=True):
    """Rules of findings that could not be judged, by name, the reason, and what would add what they need."""

    rules: tuple[str, ...]
    reason: str
    fix: str | None


class Problem(Struct, frozen=True):
    """One row of `schema.PROBLEMS`; `process_id` and `device_id` find the rank once ranks have numbers."""

    code: str
    message: str
    report: str | None = None
    process_id: int | None = None
    rank: int | None = None
    severity: str = ""
    fix: str | None = None
    device_id: int | None = None  # of the rank
    skipped_check: SkippedCheck | None = None  # that the message is about

    def at(self, *, report: str | None, rank: int | None = None) -> Problem:
        """Return the same problem placed in a run."""
        return replace(self, report=report, rank=rank)

    @property
    def row(self) -> dict[str, object]:
        """The row of `schema.PROBLEMS`."""
        return {name: getattr(self, name) for name in PROBLEMS.names}


class _Count(int):
    """A number of a message with its noun in both forms: ``{n:step|steps}`` becomes ``1 step`` or ``2 steps``."""

    def __format__(self, nouns: str) -> str:
        singular, is_with_noun, plural = nouns.partition("|")
        if not is_with_noun:
            return super().__format__(nouns)
        return f"{int(self)} {singular if self == 1 else plural}"


def problem(
    code: str,
    *,
    severity: str | None = None,
    process_id: int | None = None,
    rank: int | None = None,
    **facts: object,
) -> Problem:
    """State a problem of the catalogue; `facts` fill its message."""
    kind = CATALOGUE[code]
    count = facts.get("n")
    if isinstance(count, Integral):
        facts["n"] = _Count(count)
    message = kind.message.format(**{"rank": rank, **facts})
    fix = kind.fix and kind.fix.format(**facts)
    return Problem(code, message, None, process_id, rank, severity or kind.severity, fix)


class Recorded(Struct, frozen=True):
    """Which facts a report holds; false means that there was something, and the report lacks it."""

    kernels: bool = True
    names: bool = (
        True  # what kernels are called, without which communication cannot be told from compute
    )
    memcpy: bool = True
    memset: bool = True
    kinds: bool = True  # of every copy
    sizes: bool = True  # of every device-to-device copy, in bytes
