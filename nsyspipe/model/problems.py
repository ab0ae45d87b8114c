"""What could not be read or answered: stable codes, what each costs, the flag that mends it, and which facts a report has."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

SEVERITIES = ("error", "warning", "info")
MORE_STEPS = "capture 10 steps or more"  # wherever more are advised: of 8 in the figures the spread is told
WHOLE_STEP = "--step of a range that holds the whole step, or leave --step out"
OR_LOG = "; an NCCL log of the run (--nccl-log, NCCL_DEBUG=INFO) may tell them too"  # where none was given
EXPORT_AGAIN = "export again with nsys 2025.3 or newer: "
WITH_BLOBS = f"{EXPORT_AGAIN}--include-blobs=true"  # wherever NCCL's payloads are lacking
_MENDS = {  # what mends several of them
    "CUDA": "capture with nsys profile --trace=cuda,nvtx and export without --tables",
    "ANNOTATE": "wrap each step in torch.cuda.nvtx.range_push('step N') / range_pop(), or name it with --step REGEX",
    "WITH_BLOBS": WITH_BLOBS,
    "EXPORT_ALL": "export again without --tables: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep",
    "MORE_STEPS": MORE_STEPS,
    "ONE_CLOCK": "call torch.cuda.synchronize() once within the capture, between two steps: it ties one to the other",
    "WHOLE_STEP": WHOLE_STEP,
    "OR_LOG": OR_LOG,
    "GRAPH_NODES": "capture with nsys profile --cuda-graph-trace=node",
}

# A kind per line: its code, severity, message, and what mends it behind ``->``.
_KINDS = """
    no-gpu-activity (warning): no GPU activity recorded: no kernel, copy or memset -> <CUDA>
    captured-without-gpu (info): captured without a GPU: only the steps on the host and their phases are known
    no-comm-kernels (error): no communication kernel on the {n} rank(s) looked at: communication and compute cannot be told apart, both are null
        -> name your kernels with --comm-kernel REGEX (NCCL's are known by their names)
    uncounted-communication (warning): kernels that are named like communication count as compute: {names} -> if they communicate: --comm-kernel {pattern}
    copies-of-unknown-communicators (info): {n} calls of NCCL launched copies inside a GPU or to memory mapped into it, and no report says of how many ranks
        their communicators are: these copies count as communication -> <WITH_BLOBS>, so that NCCL's payload names the communicator
    copies-in-nccl-calls (warning): {n} calls of NCCL launched copies, and nothing says whether several ranks took part: these copies count as copies, not
        as communication -> <WITH_BLOBS>, so that NCCL's payload names the communicator
    no-steps (warning): there are no steps ({why}): the figures are of the capture as a whole; step time, throughput, savings and backward figures are
        null -> <ANNOTATE>
    no-nvtx (warning): NVTX ranges were not recorded: no phases, and no steps but by repetition -> capture with nsys profile --trace=cuda,nvtx
    no-nvtx-ranges (info): NVTX was traced, but the captured part of the program has no range: no phases, and no steps but by repetition
        -> wrap each step, and forward, backward and optimizer in it, in torch.cuda.nvtx.range_push / range_pop
    cuda-backtraces (warning): CUDA API calls were recorded with backtraces, which makes each of them slower: launches come later than in other captures, and
        times of the host, idle time for launches and its bounds are too high -> capture without --cudabacktrace
    python-backtraces (info): backtraces of Python were recorded, which takes time of the host: launches may come later than in other captures, and times of the
        host and idle time for launches may be too high -> capture without --python-sampling and --python-backtrace to compare steps
    no-launches (warning): no launch of any of the {n} operations was recorded: they are placed by their device times, backward figures are null -> <CUDA>
    launch-missing (warning): {n} of {total} operations have no launch: they are placed by their device times -> <CUDA>
    stray-device (info): the process of this rank also ran {n} operations on device {device}, less than 1 % of its kernels and of their time: that is no
        rank of its own, and what ran there is in no figure
    device-clock-apart (info): the clock of {device} is {ms} ms apart from its host's: device times are corrected by that where they are compared with
        host times (why it idles) -> nothing to do; in another capture it may be apart by something else
    device-clock-uncertain (info): the clock of {device} may be apart from its host's by {ms} ms: what compares device with host times (why it idles)
        may be wrong by as much -> <ONE_CLOCK>
    device-clock-unknown (warning): the clock of {device} may be apart from its host's by {ms} ms, more than a step: why it idles is null -> <ONE_CLOCK>
    no-backward (warning): no backward range inside the steps: hidden by backward is null
        -> wrap loss.backward() in an NVTX range named 'backward', or name yours with --backward REGEX
    backward-in-graphs (warning): steps run as CUDA graphs, inside which phases cannot be told: hidden by backward is null -> capture some steps without CUDA graphs
    backward-by-thread (info): no range says when backward runs: it is taken to be what autograd's thread launches while the training loop's
        launches nothing -> wrap loss.backward() in an NVTX range named 'backward'
    backward-by-operators (info): no range says when backward runs: it is taken to be what autograd's operators launch
        -> wrap loss.backward() in an NVTX range named 'backward'
    steps-by-repetition (info): no range marks steps: a step is a stretch of launches that repeats, {n_units} times {n_launches} launches ({key} agree to {agreement}, 1 is exact)
        -> <ANNOTATE>
    steps-without-optimizer (info): neither a kernel's name nor a range tells the optimizer in each step: a step is what repeats as a whole and has a
        backward pass, and may be one micro-batch of several, or several steps of which one differs -> --steps N, about how many were captured; or <ANNOTATE>
    steps-of-several-updates (info): a step by repetition has {n} backward passes with an update behind each: one of several optimizers, as of a GAN,
        or {n} steps that repeat only together -> if it is several: --steps N, about how many were captured; or <ANNOTATE>
    steps-cover-part (warning): the steps by repetition hold {percent} % of this rank's launches: what is outside of them is in no figure of a step
        -> <ANNOTATE>
    launches-between-steps (warning): {percent} % of this rank's launches lie between its step ranges, in none: they count in the step before -> <WHOLE_STEP>
    comm-between-steps (warning): {n_comm} communication operations and {percent} % of all launches of this rank lie between its step ranges, in none: they
        count in the step before, but waiting, message bytes, gradient copies and what backward hides are null, and tables of collectives lack them -> <WHOLE_STEP>
    steps-not-aligned (warning): which steps of different ranks are one cannot be told: figures across ranks, waiting among them, are null -> <ANNOTATE>
    no-complete-step (warning): no step is complete on every rank: figures rest on cut-off steps, nothing is skipped -> <MORE_STEPS>
    capture-start-in-figures (info): the figures include the step in which the capture began, which ranks reach at different times: waiting and
        communication may be too high -> <MORE_STEPS>, or leave --skip-first out
    no-common-step (error): no step has a window on every rank: there are no run figures -> name the steps with --step REGEX
    slowest-rank-changes (info): the slowest rank changes from step to step: a delay lengthens first its own rank's step, then the others' next one. Step time,
        the longest of the ranks in each step, counts both: its mean is {percent} % above any rank's, and throughput as much too low
    few-steps (info): steps in the figures: {n}, too few to show how much they vary -> <MORE_STEPS>
    captured-several-times (info): {n} process(es) were captured {times} times, by reports with the same host and process ID: each is one rank. What lies
        between two captures is in no step, and --skip-first counts in each -> nothing to do; if they are several runs, analyze each report by itself
    step-missing (warning): no window of step {step} on rank {missing}: left out of figures across ranks
        -> start and stop the capture at the same step on every rank
    steps-missing-on-rank (warning): no step range matches on this rank -> check the --step pattern against this report
    step-without-window (info): step ranges left out of all figures: {n}; {why}, so that they have no time of their own on the device
    dropped-operations (warning): device operations that end before they start or have no time: {n}, left out -> <EXPORT_ALL>
    dropped-ranges (info): {n} NVTX ranges end before they start: left out
    graphs-as-a-whole (warning): CUDA graphs were captured as a whole and count as compute: what ran inside {n} graph launches of the report is not seen,
        so copies are null, and idle time inside them is missing from idle -> <GRAPH_NODES>
    comm-in-graphs (error): CUDA graphs were captured as a whole: communication inside {n} graph launches of the report is not seen, so communication, waiting,
        compute and copies are null, and idle time inside them is missing from idle -> <GRAPH_NODES>
    no-kernels (error): kernels were launched, but the report has no table of them: figures that need them are null -> <EXPORT_ALL>
    no-kernel-names (error): no kernel has a name: communication cannot be told from compute, both are null -> <EXPORT_ALL>
    no-memcpy (warning): calls that copy were made, but the report has no table of copies: copy, memory and idle figures are null -> <EXPORT_ALL>
    no-memset (warning): calls that set memory were made, but the report has no table of them, and does not say that its export is whole: memory and
        idle figures are null -> <EXPORT_ALL>
    memset-calls-only (info): {n} calls that set memory ran nothing on the device that nsys recorded, and nothing was left out of the export: they
        were captured into CUDA graphs, of no bytes, or of the host's memory; memory and idle figures count none
    no-copy-kind (warning): copies without a kind: figures of device-to-device copies are null -> <EXPORT_ALL>
    no-copy-bytes (warning): copies without a size: bytes are null -> <EXPORT_ALL>
    no-session-start (warning): the report lacks the time its session started: ranks are not on one clock -> export with nsys 2022.1 or newer
    no-common-clock (warning): nothing puts the ranks on one clock (no session start, fewer than 3 matching collectives): waiting and transfer are
        null -> export with nsys 2022.1 or newer
    clock-error-unknown (info): the ranks do not all share 3 collectives that end at once on each (sends and receives do not): their times are as good as
        their sessions' starts -> capture 3 collectives of all ranks or more: more steps if each has one, else add some, such as torch.distributed.barrier()
    unmatched-collectives (warning): {n} of {total} communication operations have no certain counterpart on the other ranks: waiting is null in their
        steps -> capture whole steps on every rank; with several process groups <WITH_BLOBS>, so that NCCL's payload names the communicator
    groups-not-named (warning): the process groups of {which} are not known, and the ranks cannot all be one group ({reason}): waiting, transfer, who is late
        and bus bandwidth are null there -> <WITH_BLOBS>, so that NCCL's payload names the communicator of each call<OR_LOG>
    groups-by-log (info): NCCL's log names the process groups, and the times of collectives tell in which group each was called
    reports-changed (warning): changed or removed since they were read: {reports}; what is read of them again (a replay, which says what is likely, a timeline,
        single operations) may be missing -> leave reports alone while they are analyzed, and start again
    different-runs (error): none of the {total} communication operations has a counterpart on another rank: the reports may be of different runs, then
        all figures across ranks mean nothing; waiting is null -> pass the reports of one run; if they are, capture the same whole steps on every rank
    more-ranks-than-world (error): {n} processes, but the job had {world_size} ranks: the reports may be of different runs, then all figures across
        ranks mean nothing -> pass the reports of one run
    ended-before-last-arrived (warning): communication operations that end before their last rank arrives: {n}; they may be of different process groups,
        their transfer counts as 0 -> <WITH_BLOBS>, so that NCCL's payload names the communicator
    clocks-put-last-behind-end (warning): communication operations that end before their last rank arrives: {n}, which none does: the clocks of these ranks are
        apart by more than their error; their transfer counts as 0, and bandwidths of short messages may be too high
    rank-by-order (warning): nothing names the ranks: numbered by order of argument, device and process
        -> --rank-map "REPORT=RANK,...", with REPORT:PID=RANK for a report of several processes
    rank-map-differs (warning): --rank-map gives rank {number} to {report}, which was captured as rank {told}{more}: the map's numbers are taken
        -> leave --rank-map out, or give each report the rank that it was captured as
    processes-without-kernels (warning): {processes} {what}, and no kernel of {them} was recorded{stand_for}: {cost}
        -> capture each rank with an nsys of its own: nsys profile --trace=cuda,nvtx
    ranks-missing (warning): {n} of {world_size} {noun} are not among the reports ({missing}): figures hold for those present; waiting, transfer, bandwidth
        and who is late are null where one of these takes part -> pass the reports of all ranks
    ranks-not-captured (info): {n} of {world_size} {noun} were left out of the capture ({missing}): figures hold for those present; waiting, transfer,
        bandwidth and who is late are null where one of these takes part
    ranks-not-read (info): {n} of {world_size} {noun} were not read ({missing}): figures hold for those that were; waiting, transfer, bandwidth and who is
        late are null where one of these takes part -> leave out --ranks
    capture-failed (warning): rank {which}: {outcome}; the report may be cut short -> see what the training program printed, and capture again
    unusable-sidecar (warning): {file} cannot be used ({reason}): what it says of the capture is not known -> remove it, or capture again
    stale-sidecar (warning): {file} is of another capture of that name ({reason}): not used -> keep the sidecar with the reports that it was written for
    conflicting-sidecars (warning): {files} say different things of {of}: none of them is used -> keep only the sidecar that was written with the reports
    sidecar-file-unusable (warning): {file}, which the capture's sidecar names, is not used: {reason} -> name the files with --nccl-log and --topology
    step-pattern-ignored (info): the capture's sidecar says that the steps match {pattern}, but {why}: they were detected by their names
        -> --step REGEX, if they are not the ones that you mean
    phase-pattern-unmatched (warning): no NVTX range is named as {option} {pattern} asks for, so none counts as {phase}; the longest: {families}
        -> leave {option} out, or name ranges that are there
    comm-kernel-unmatched (warning): no kernel is named as --comm-kernel {pattern} asks for; named like communication: {alike}
        -> leave --comm-kernel out, or let it match one of the names that nsyspipe analyze --top 30 shows
    no-gpu-name (info): the report does not say which GPU model rank {rank} ran on
    untested-version (info): export schema {version} is newer than any nsyspipe was tested on: compare with nsys stats
    no-message-size (info): message sizes were not recorded ({why}): no bytes, at most estimates of bandwidths -> {how}
    few-message-sizes (info): the message sizes of {n} of {total} communication operations are not known: bytes and bandwidths over them are null
    log-of-another-run (warning): the NCCL log names no process of the run and no communicator of its size ({sizes}): it is of another run, and not
        used -> pass the log of this run, made with NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl_%h_%p.log
    log-of-other-processes (warning): the NCCL log is of as many ranks, but its processes have other ids: it is of another job, or of containers
        -> pass the log of this job; in containers ids may differ
    log-of-some-processes (info): the NCCL logs are of {n} of {total} processes of the run: what connects the others may not be known
        -> pass the logs of all processes: --nccl-log 'nccl_*.log'
    log-without-communicators (info): the NCCL log names no communicator, so that it says nothing of what connects the ranks
        -> pass the log of a run with NCCL_DEBUG=INFO, of an NCCL whose lines name a commId
    topology-of-another-machine (warning): the topology has no GPU {gpus}, on which the run has ranks: it is of another machine, and says nothing of
        them -> nvidia-smi topo -m > topo.txt on a host of the run, and --topology topo.txt
    files-beside-used (info): used, as found beside the reports: {files} (--no-logs leaves such files out)
    log-beside-ignored (info): not used, as no process of the run wrote it: {files} beside the reports, {whose}
        -> keep logs with the reports of their run; --nccl-log FILE uses one all the same
    file-beside-unusable (info): {file} beside the reports is not used: {reason} -> {option} FILE, if it is of this run
    topologies-beside (info): none of the topologies beside the reports is used, since they differ: {files} -> --topology FILE
    not-judged (info): not judged: {rules} ({reason}) -> {how}
    undecoded-payload (info): {n} NVTX payloads do not fit their description: ignored
"""
NOT_RECORDED = {  # the problem that each lacking fact is
    "kernels": "no-kernels", "names": "no-kernel-names", "memcpy": "no-memcpy", "memset": "no-memset",
    "kinds": "no-copy-kind", "sizes": "no-copy-bytes",
}  # fmt: skip


class Kind(Struct, frozen=True):
    """One kind of problem: its message and fix are templates over the facts of the case."""

    severity: str
    message: str
    fix: str | None = None


def _kind(line: str) -> tuple[str, Kind]:
    head, _, rest = line.strip().partition(": ")
    code, severity = head.removesuffix(")").split(" (")
    message, _, fix = rest.partition(" -> ")
    for name, text in _MENDS.items():
        fix = fix.replace(f"<{name}>", text)
    return code, Kind(severity, message, fix or None)


CATALOGUE: dict[str, Kind] = dict(map(_kind, _KINDS.replace("\n" + 8 * " ", " ").strip().splitlines()))

# What may be communication, or not.
UNSURE_COMM = frozenset({"uncounted-communication", "copies-of-unknown-communicators", "copies-in-nccl-calls"})
MIXED_RUNS = frozenset({"different-runs", "more-ranks-than-world"})  # figures across ranks mean nothing then

# What is to be known of files that nobody named: which are used, and why others are not.
OF_FILES_BESIDE = ("files-beside-used", "log-beside-ignored", "file-beside-unusable", "topologies-beside")

# Where no range marks backward: what it is taken to be, in a few words.
BACKWARD_SOURCES = {f"backward-by-{what}": f"backward by autograd's {what}" for what in ("thread", "operators")}

_BLOBS = "nsys export --type=sqlite --include-blobs=true --force-overwrite=true REPORT.nsys-rep"
TRACE_NVTX = "capture with nsys profile --trace=cuda,nvtx (nccl too from nsys 2025.6 on), NCCL_NVTX_DISABLE not set"
IN_GRAPHS, NO_SIZES = "backward-in-graphs", "no-message-size"
# Why NCCL's payloads do not say how many bytes are sent, and what mends it; the first lacks most.
SIZE_GAPS = {
    "no-ranges": ("no NVTX range of NCCL", TRACE_NVTX),
    "replayed": ("a replayed CUDA graph makes no NCCL call", CATALOGUE[IN_GRAPHS].fix or ""),
    "no-payloads": ("no payloads", f"{EXPORT_AGAIN}{_BLOBS}"),
    "not-described": ("payloads without a description", f"{EXPORT_AGAIN}{_BLOBS}"),
    "not-exported": ("described, but the payloads were not exported", f"export again: {_BLOBS}"),
}


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

    def at(self, *, report: str | None, rank: int | None = None) -> Problem:
        """Return the same problem placed in a run."""
        return replace(self, report=report, rank=rank)


def problem(
    code: str, *, severity: str | None = None, process_id: int | None = None, rank: int | None = None, **facts: object
) -> Problem:
    """State a problem of the catalogue; `facts` fill its message."""
    kind = CATALOGUE[code]
    message, fix = kind.message.format(**{"rank": rank, **facts}), kind.fix and kind.fix.format(**facts)
    return Problem(code, message, None, process_id, rank, severity or kind.severity, fix)


class Recorded(Struct, frozen=True):
    """Which facts a report holds; false means that there was something, and the report lacks it."""

    kernels: bool = True
    names: bool = True  # what kernels are called, without which communication cannot be told from compute
    memcpy: bool = True
    memset: bool = True
    kinds: bool = True  # of every copy
    sizes: bool = True  # of every device-to-device copy, in bytes
