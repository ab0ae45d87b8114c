"""The questions that reports may answer.

Each has a rule, and a fix that would add what the reports lack.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace

from nsyspipe.analysis.kernels import (
    LEAST_COMPARED,
    LESS_HIDDEN,
    MIN_OVERLAP_SHARE_OF_STEP,
    compared_kernels,
)
from nsyspipe.analysis.links import SlowestLink, links, slowest
from nsyspipe.analysis.steps import REPETITION
from nsyspipe.model.comm_kernels import library_of
from nsyspipe.model.names import PHASES
from nsyspipe.model.options import Reading
from nsyspipe.model.problems import (
    BACKWARD_SOURCES,
    CATALOGUE,
    SIZE_GAPS,
    TRACE_NVTX,
    UNREAD_COUNTERS,
)
from nsyspipe.model.side_files import NcclLog, Topology
from nsyspipe.nsys.settings import LOG_WRITTEN, writes_log
from nsyspipe.reader import report as versions
from nsyspipe.reader.metadata import Counts
from nsyspipe.run.digests import ReportDigest, one_of_each_process
from nsyspipe.run.gather import ranks_or_hosts
from nsyspipe.run.process import ProcessDigest
from nsyspipe.run.ranks import (
    JobSize,
    Ranks,
    number_by_name,
    rank_sources,
    ranks_by_map,
    recorded_world_size,
    shown_ranks,
    world_size,
)
from nsyspipe.run.sidecars import RunSidecars

YES = "yes"
PARTLY = "partly"
NO = "no"
_MAX_FAMILIES_SHOWN = 3
_MAX_TEXT_LENGTH = 32
# A first step is left out of the metrics, so that this many are needed.
_MIN_STEPS = 2
_ONE_RUN = "pass the reports of one run, each once"
_LOG = "run with NCCL_DEBUG=INFO, and pass --nccl-log FILE"
_ALL_LOGS = "pass the logs of all processes: --nccl-log 'nccl_*.log'"
_TOPOLOGY = "run nvidia-smi topo -m > topo.txt, and pass --topology topo.txt"
_UNDER_TORCHRUN = "capture under torchrun with nsys 2023.3 or newer, which records WORLD_SIZE"
NSYS_OF_EACH = (
    "start nsys inside torchrun, with one report per rank, so that nsys records the WORLD_SIZE "
    "of each rank "
    "(launchers/ddp.sh does this)"
)
# A second nsys that counts on the same GPU fails to start.
ONE_NSYS_PER_GPU = (
    ", on only one rank of each host (only one nsys at a time can sample the metrics of a GPU)"
)
# The first nsys that calls the option --gpu-metrics-devices.
_NSYS_WITH_DEVICES = (2024, 5)
_ONLY_BETWEEN_GRAPHS = "only gaps between CUDA graphs, because gaps inside are not visible"
_ONE_RANK = "not needed: one rank"
_SHAPES = "grid and block size of every kernel"
LESS_WAITING = (
    "capture a second run with less wait time or less communication, and compare the kernels of "
    "both runs: nsyspipe diff"
)
# Compute hides most of the communication if it hides at least this share of the time.
_MIN_MOSTLY_HIDDEN_SHARE = 0.5
_NO_CALLS = "API calls were not recorded"
_NONE_RECORDED = "none recorded"
_UNKNOWN_CLOCKS = "unknown, because the clocks of CPU and GPU cannot be compared"
_UNREAD_METRICS = "samples that nsyspipe cannot read"
SAMPLE_PYTHON = (
    "capture with nsys profile --python-sampling=true, and export with --include-blobs=true (nsys "
    "2025.3 or newer)"
)
TRACE_LOCK = "capture with nsys profile --trace=cuda,nvtx,python-gil"
# Why samples of Python name no line, by the code of the problem.
_PYTHON_GAPS = {
    "python-samples-without-lines": "samples without lines",
    "python-samples-too-large": "samples larger than the limit",
    "python-thread-unknown": "samples of unknown threads",
}
# The range of our own captures, which is not a range of the user.
_CAPTURE_RANGE = "nsyspipe.capture"
_NAMES_OF_RANK_SOURCES = {
    "sidecar": "the sidecar (NAME.capture.json)",
    "nccl_payload": "NCCL's NVTX payloads",
    "nvtx_mpi": "MPI's thread names",
    "file_name": "the file names",
}

# How many there are of what, for example ``(("kernels", 12), ("copies", 3))``.
_Counts: TypeAlias = tuple[tuple[str, int], ...]


class Answer(Struct, frozen=True):
    """What one report has for one question."""

    status: str
    # The counts of several reports add up.
    counts: _Counts = ()
    # What there is, in words. It is shown if there are no counts.
    text: str = ""
    fix: str | None = None


def _lack(code: str, text: str = "", counts: _Counts = (), *, status: str = NO) -> Answer:
    """Return the answer of a report that has the problem `code`, with the fix of that problem."""
    fix = CATALOGUE[code].fix
    return Answer(status, counts, text, fix)


def _have(n: int, noun: str) -> Answer:
    """Return the answer yes of a report that has `n` of something, which `noun` names."""
    return Answer(YES, ((noun, n),))


class Beside(Struct, frozen=True):
    """What lies beside the reports. None was neither passed nor named by a sidecar."""

    rank_map: Mapping[str, int] | None = None
    log: NcclLog | None = None
    topology: Topology | None = None
    sidecars: RunSidecars = field(default_factory=RunSidecars)
    # Whether to look in the directories of the reports for a log or topology that was not passed.
    looks_beside: bool = True


class Examined(Struct, frozen=True):
    """What one report holds, and what the analysis makes of it."""

    digest: ReportDigest
    counts: Counts
    reading: Reading
    # The family of the steps, None if the analysis finds no steps.
    family: str | None
    # Whether no report has device activity. Then the processes with steps stand for ranks.
    is_host_only: bool
    # Whether this was so on purpose, because the capture was not meant to trace a GPU.
    was_without_gpu: bool
    # How large the job was, as far as it is known.
    job: JobSize
    # Whether the job had several ranks, in this report or elsewhere.
    had_several_ranks: bool
    # Whether the process groups of the run are not known.
    lacks_groups: bool = False
    # The number of its ranks whose GPU is counted, in any report of the run.
    n_ranks_with_counters: int = 0

    @property
    def n_processes(self) -> int:
        """How many processes its ranks belong to."""
        return len(set(self.pids))

    @property
    def pids(self) -> list[int]:
        """The process of each rank."""
        if self.is_host_only:
            return [host.pid for host in self.digest.hosts_with_steps]
        return [process.pid for process in self.digest.processes]

    @property
    def families(self) -> list[tuple[str, int]]:
        """The user's ranges that no step pattern names, with their numbers, most time first.

        Their texts have ``#`` for digits.
        """
        return [family for family in self.digest.families if family[0] != _CAPTURE_RANGE]

    @property
    def other_families(self) -> list[tuple[str, int]]:
        """The first few families except that of the steps, as counts of an answer."""
        counts = []
        for text, n_ranges in self.families:
            if text != self.family:
                counts.append((_quoted(text), n_ranges))
        return counts[:_MAX_FAMILIES_SHOWN]

    @property
    def n_comm(self) -> int:
        """Number of communication operations: kernels, and collectives that are made of copies.

        A rank whose number was not recorded adds none.
        """
        return sum(process.n_comm or 0 for process in self.digest.processes)

    @property
    def n_made_of_copies(self) -> int:
        """Number of collectives that are made of copies."""
        launches = self.digest.called.launches
        calls_of_copies = launches["call"].filter(launches["is_copy"])
        n_calls: int = pc.count_distinct(calls_of_copies).as_py()
        return n_calls

    @property
    def has_only_nccl(self) -> bool:
        """Whether every communication kernel is NCCL's, as far as nsyspipe knows kernel names."""
        if self.reading.comm_kernel is not None:
            # Kernels that match the user's pattern may be of any library.
            return False
        kernel_names: set[str] = set()
        for process in self.digest.processes:
            names = process.kernels["name"].unique()
            kernel_names.update(names.to_pylist())
        # `library_of` knows only names of other libraries than NCCL.
        other_libraries = map(library_of, kernel_names)
        return not any(other_libraries)

    @property
    def windows(self) -> list[pa.Table]:
        """The windows of each rank that has some."""
        return [rank.windows for rank in self._ranks_with_windows]

    @property
    def stepping_processes(self) -> list[ProcessDigest]:
        """Each process with windows once, although it may have several ranks."""
        # The last rank of a process stands for it. All its ranks have the same steps.
        rank_of_process = {rank.process_id: rank for rank in self._ranks_with_windows}
        return list(rank_of_process.values())

    @property
    def _ranks_with_windows(self) -> list[ProcessDigest]:
        return [rank for rank in self.digest.processes if rank.windows.num_rows]

    def fix_of(self, code: str) -> str | None:
        """Return the fix of a problem as the report has it, else the general one."""
        for problem in self.digest.problems:
            if problem.code == code:
                return problem.fix
        return CATALOGUE[code].fix

    def has(self, code: str) -> bool:
        """Tell whether the analysis has a problem with the report alone."""
        return any(problem.code == code for problem in self.digest.problems)

    @property
    def hides_comm(self) -> bool:
        """Whether CUDA graphs that were captured as a whole may hold communication."""
        may_communicate = self.had_several_ranks or self.digest.has_communication
        return bool(self.digest.n_graphs) and may_communicate

    @property
    def sends_nothing(self) -> bool:
        """Whether the report has one rank, which is alone in its job and does not communicate."""
        may_send = self.had_several_ranks or self.n_comm or self.hides_comm
        return len(self.pids) == 1 and not may_send

    @property
    def replays_communication(self) -> bool:
        """Whether the report's communication may be inside CUDA graphs, which make no NCCL calls.

        This would explain why the report has NVTX ranges, but none of NCCL.
        """
        n_ranges = self.counts.rows[versions.NVTX]
        if not n_ranges or self.digest.n_nccl_ranges:
            return False
        return bool(self.digest.n_graphs or self.counts.n_graph_kernels)

    @property
    def phase_counts(self) -> _Counts:
        """How many ranges are named like each phase, without the ranges of the steps."""
        n_by_phase = dict.fromkeys(PHASES, 0)
        for family, phase, n_ranges in self.digest.phase_families:
            if family not in (self.family, _CAPTURE_RANGE):
                n_by_phase[phase] += n_ranges
        return _counts_of_existing(n_by_phase)


def _counts_of_existing(n_by_noun: Mapping[str, int]) -> _Counts:
    """Return the counts that are not 0."""
    return tuple((noun, n) for noun, n in n_by_noun.items() if n)


def _steps(report: Examined) -> Answer:
    """Return how many steps there are. The answer is "partly" if metrics would use too few."""
    n_steps = _count_steps(report)
    absent = _lacking_steps(report, n_steps)
    if absent is not None:
        return absent
    step_count = _step_count(report, n_steps)
    if n_steps < _MIN_STEPS:
        return _lack("no-complete-step", counts=(step_count,), status=PARTLY)
    # Empty if no process has a complete step. Then the answer says nothing of used steps.
    n_used_of_processes = _count_used_steps(report)
    uses_few = any(n_used < _MIN_STEPS for n_used in n_used_of_processes)
    if uses_few:
        used_count = ("used", sum(n_used_of_processes))
        return _lack("few-steps", counts=(step_count, used_count), status=PARTLY)
    return Answer(YES, (step_count,))


def _count_steps(report: Examined) -> int:
    """Return how many steps the analysis finds.

    With a step pattern, this is the number of all ranges that match it, if any of them is a step.
    """
    if report.family is None:
        return 0
    processes = (*report.stepping_processes, *report.digest.hosts)
    n_steps: int = sum(process.members.num_rows for process in processes)
    has_step_pattern = report.reading.step is not None
    are_steps_ranges = report.family != REPETITION
    if has_step_pattern and are_steps_ranges and n_steps:
        return report.digest.n_named_steps or 0
    return n_steps


def _count_used_steps(report: Examined) -> list[int]:
    """Return how many steps the metrics use of each process that has complete steps.

    The first of several complete steps is not used. A single complete step is used.
    """
    n_used_of_processes = []
    for process in report.stepping_processes:
        n_complete = pc.sum(process.windows["is_complete"]).as_py()
        if n_complete:
            n_used = n_complete - 1 if n_complete > 1 else 1
            n_used_of_processes.append(n_used)
    return n_used_of_processes


def _lacking_steps(report: Examined, n_steps: int) -> Answer | None:
    """Return why a report has no steps, as its answer. None if it has steps."""
    if report.family == REPETITION and n_steps:
        # Steps by a launch pattern need no ranges.
        return None
    if not report.counts.rows[versions.NVTX]:
        if report.has("no-nvtx"):
            return _lack("no-nvtx", "NVTX ranges were not recorded")
        return _lack("no-nvtx-ranges", "no NVTX range")
    if not report.families and not report.digest.n_named_steps:
        return _lack("no-steps", "only NVTX ranges of libraries")
    return None if n_steps else _only_other_ranges(report)


def _only_other_ranges(report: Examined) -> Answer:
    """Return the answer of a report that has ranges, but no steps.

    Its ranges may help to find a step pattern.
    """
    range_counts = report.other_families
    if report.reading.step is not None:
        fix = "leave out --step, or match one of the existing ranges"
        pattern_count = _step_count(report, n_steps=0)
        return Answer(NO, (pattern_count, *range_counts), fix=fix)
    if report.reading.is_capture:
        return Answer(NO, tuple(range_counts), fix="leave out --step none")
    return Answer(NO, tuple(range_counts), fix=CATALOGUE["no-steps"].fix)


def _step_count(report: Examined, n_steps: int) -> tuple[str, int]:
    """Return the number of steps, with a noun that says what the steps are."""
    if report.family == REPETITION and n_steps:
        return ("found by a periodic launch pattern", n_steps)
    if report.reading.step is not None:
        pattern = _quoted(report.reading.step.pattern)
        return (f"match --step {pattern}", n_steps)
    return (_quoted(report.family or ""), n_steps)


def _phases(report: Examined) -> Answer:
    """Return which phases ranges mark.

    The answer is "yes" only if ranges mark the backward pass of steps. It is "partly" if the
    backward pass was found in launches, or if ranges mark other phases.
    """
    if not report.counts.n_launches:
        return _lack("no-launches", _NO_CALLS)
    counts = report.phase_counts
    # The codes of the problems that backward was found in launches.
    for code, text in BACKWARD_SOURCES.items():
        if report.has(code):
            window_count = (text, _count_windows(report))
            return Answer(PARTLY, (window_count, *counts), fix=report.fix_of(code))
    code_of_lack = _find_lack_of_backward(report)
    if code_of_lack is None:
        return Answer(YES, counts)
    fix = report.fix_of(code_of_lack)
    if counts:
        return Answer(PARTLY, counts, fix=fix)
    return Answer(NO, text="no NVTX range has the name of a phase", fix=fix)


def _find_lack_of_backward(report: Examined) -> str | None:
    """Return the code of why no ranges mark the backward pass of steps, None if ranges do."""
    has_backward_ranges = "backward" in dict(report.phase_counts)
    codes = ("backward-in-graphs", "no-backward")
    code_of_problem = next(filter(report.has, codes), None)
    if not has_backward_ranges:
        return code_of_problem or "no-backward"
    has_steps = report.family is not None
    if code_of_problem is None and has_steps:
        return None
    # The backward ranges are in no step.
    return "no-steps"


def _count_windows(report: Examined) -> int:
    """Return the number of windows of all processes.

    The windows of a process with several ranks count once, by its rank with most windows.
    """
    n_windows_of_process: dict[int, int] = {}
    for rank in report.digest.processes:
        n_windows_so_far = n_windows_of_process.get(rank.process_id, 0)
        n_windows = max(n_windows_so_far, rank.windows.num_rows)
        n_windows_of_process[rank.process_id] = n_windows
    return sum(n_windows_of_process.values())


def _kernels(report: Examined) -> Answer:
    """Return how many kernels there are, and how many of them communicate.

    The answer is "partly" if communication may be missing.
    """
    n_kernels = report.counts.rows[versions.KERNEL]
    if not n_kernels:
        return _lacking_kernels(report)
    if not report.counts.rows[versions.STRINGS]:
        return _lack("no-kernel-names", "kernels without names")
    comm_noun = "NCCL kernels" if report.has_only_nccl else "communication kernels"
    n_made_of_copies = report.n_made_of_copies
    n_comm_kernels = report.n_comm - n_made_of_copies
    counts = [("kernels", n_kernels), (comm_noun, n_comm_kernels)]
    if n_made_of_copies:
        counts.append(("collectives made of copies", n_made_of_copies))
    if report.hides_comm:
        return _lack("comm-in-graphs", counts=tuple(counts), status=PARTLY)
    # A job of several ranks communicates, so its kernels must have names that are not known.
    if report.had_several_ranks and not report.n_comm:
        return _lack("no-comm-kernels", counts=tuple(counts), status=PARTLY)
    return Answer(YES, tuple(counts))


def _lacking_kernels(report: Examined) -> Answer:
    """Return the answer of a report without kernels, which says what there is instead."""
    if report.counts.rows[versions.GRAPH]:
        text = "only CUDA graphs as a whole, no single kernel"
        return _lack("graphs-as-a-whole", text, status=PARTLY)
    if report.has("no-kernels"):
        return _lack("no-kernels", "kernels were launched, but not recorded")
    return _lack("no-gpu-activity", "no kernels")


def _copies(report: Examined) -> Answer:
    """Return how many copies and memsets there are.

    The answer is "partly" if only one of both was recorded, or if CUDA graphs may hold more.
    """
    noun_by_code = {"no-memcpy": "copies", "no-memset": "memsets"}
    unrecorded = [noun for code, noun in noun_by_code.items() if report.has(code)]
    if unrecorded:
        lacks_both = len(unrecorded) == len(noun_by_code)
        text = f"not recorded: {', '.join(unrecorded)}"
        # Both problems have the same fix.
        return _lack("no-memcpy", text, status=NO if lacks_both else PARTLY)
    n_copies = report.counts.rows[versions.MEMCPY]
    n_memsets = report.counts.rows[versions.MEMSET]
    counts = (("copies", n_copies), ("memsets", n_memsets))
    if report.digest.n_graphs:
        text = "copies inside CUDA graphs are not visible"
        return _lack("graphs-as-a-whole", text, counts, status=PARTLY)
    return Answer(YES, counts)


def _gpu_model(report: Examined) -> Answer:
    """Return the models of the report's GPUs."""
    names = report.digest.facts.gpu_names
    models = sorted(set(names.values()))
    if not models:
        return _lack("no-kernels", "not recorded")
    text = ", ".join(map(_shortened, models))
    return Answer(YES, text=text)


def _message_bytes(report: Examined) -> Answer:
    """Return how many NCCL calls have a message size, else why they have none."""
    if report.sends_nothing:
        # Nothing is missing, because a single rank sends no messages.
        return Answer(YES, text=_ONE_RANK)
    if report.replays_communication:
        return _size_gap("replayed")
    if report.digest.size_gap is None:
        return _have(report.digest.n_message_bytes, "calls with a size")
    return _size_gap(report.digest.size_gap)


def _size_gap(code: str) -> Answer:
    """Return the answer of a report without message sizes, for the reason `code` of `SIZE_GAPS`."""
    text, fix = SIZE_GAPS[code]
    return Answer(NO, text=text, fix=fix)


def _idle_causes(report: Examined) -> Answer:
    """Return how many calls show why the GPU is idle.

    The answer is "partly" if CUDA graphs hide a part of the idle time. It is "partly" too if there
    are only synchronization records, which show the idle time of some calls.
    """
    # They are not called waits, because in some of them the host does not wait.
    n_records = report.counts.rows[versions.SYNCHRONIZATION]
    record_count = ("synchronization records", n_records)
    n_calls = report.counts.n_timed_calls
    if n_calls and report.has("device-clock-unknown"):
        status = _status_of_unknown_clocks(report)
        return _lack("device-clock-unknown", _UNKNOWN_CLOCKS, status=status)
    if n_calls and report.digest.n_graphs:
        return _lack("graphs-as-a-whole", _ONLY_BETWEEN_GRAPHS, status=PARTLY)
    if n_calls:
        return Answer(YES, (("timed calls", n_calls), record_count))
    if n_records:
        return _lack("no-launches", counts=(record_count,), status=PARTLY)
    return _lack("no-launches", _NO_CALLS)


def _device_clock(report: Examined) -> Answer:
    """Return how well the clocks of CPU and GPU agree.

    Idle causes compare times of both. The answer is "partly" if the error of the clocks is large,
    and "no" if the error is longer than a step.
    """
    if not report.counts.n_timed_calls:
        return _lack("no-launches", _NO_CALLS)
    if report.has("device-clock-unknown"):
        text = "the clocks may differ by more than a step"
        return _lack("device-clock-unknown", text, status=_status_of_unknown_clocks(report))
    if report.has("device-clock-uncertain"):
        text = "the clocks may differ by more than 1 ms"
        return _lack("device-clock-uncertain", text, status=PARTLY)
    if report.has("device-clock-apart"):
        return Answer(YES, text="the clocks differ, and nsyspipe corrects this")
    return Answer(YES, text="as far as nsyspipe knows, the clocks agree within 1 ms")


def _status_of_unknown_clocks(report: Examined) -> str:
    """Return "no" if the clock of each GPU in the report is unknown, else "partly"."""
    codes = [problem.code for problem in report.digest.problems]
    n_unknown = codes.count("device-clock-unknown")
    return NO if n_unknown >= len(report.pids) else PARTLY


def _nccl_ranges(report: Examined) -> Answer:
    """Return how many NVTX ranges NCCL has, else why it has none."""
    n_ranges = report.digest.n_nccl_ranges
    if n_ranges:
        # A single rank calls NCCL too, although NCCL then launches no kernels.
        is_alone = report.sends_nothing and report.counts.rows[versions.KERNEL] > 0
        noun = "ranges, no NCCL kernels (normal for a run with one rank)" if is_alone else "ranges"
        return _have(n_ranges, noun)
    if report.replays_communication:
        return _size_gap("replayed")
    return Answer(NO, text="none recorded", fix=TRACE_NVTX)


def _comparable_share(report: Examined) -> float | None:
    """Return the share of kernel time during communication that can be compared.

    The time of a kernel can be compared if equal kernels ran without communication too. None if
    compute and communication hardly overlap.
    """
    overlap_ns = _sum_over_windows(report, "overlap_compute_ns")
    all_windows_ns = sum(map(_wall_ns, report.windows))
    min_overlap_ns = MIN_OVERLAP_SHARE_OF_STEP * all_windows_ns
    if overlap_ns == 0 or overlap_ns < min_overlap_ns:
        return None
    kernels_of_ranks = []
    for rank_index, process in enumerate(report.digest.processes):
        kernels = process.kernels
        rank_column = pa.repeat(rank_index, kernels.num_rows)
        kernels_of_ranks.append(kernels.append_column("rank", rank_column))
    return compared_kernels(pa.concat_tables(kernels_of_ranks)).share


def _wall_ns(windows: pa.Table) -> int:
    """Return the sum of the times of some windows, of which there must be one."""
    lengths_ns = pc.subtract(windows["end_ns"], windows["start_ns"])
    return int(pc.sum(lengths_ns).as_py())


def _sum_over_windows(report: Examined, column: str) -> int:
    """Return the sum of a column over the windows of all ranks. Null counts as 0."""
    total = 0
    for windows in report.windows:
        total += pc.sum(windows[column]).as_py() or 0
    return total


def _kernel_shapes(report: Examined) -> Answer:
    """Return whether shapes show which kernels are equal.

    The answer is "partly" if too small a share of the kernel time during communication can be
    compared with equal kernels. Its fix is to hide less communication, or to wait less.
    """
    n_kernels = report.counts.rows[versions.KERNEL]
    n_graphs = report.counts.rows[versions.GRAPH]
    if n_graphs and not n_kernels:
        return _lack("graphs-as-a-whole", "unknown inside CUDA graphs captured as a whole")
    if not n_kernels or not report.counts.has_shapes:
        return _lack("no-kernels", "not recorded")
    share = _comparable_share(report)
    if share is None or share >= LEAST_COMPARED:
        return Answer(YES, text=_SHAPES)
    fix = LESS_HIDDEN if _is_mostly_hidden(report) else LESS_WAITING
    return Answer(PARTLY, text=_SHAPES, fix=fix)


def _is_mostly_hidden(report: Examined) -> bool:
    """Tell whether compute hides most of the communication.

    This says why few kernels can be compared. If compute hides little of it, communication is long,
    for example because ranks wait. Then all compute runs during communication.
    """
    overlap_ns = _sum_over_windows(report, "overlap_compute_ns")
    comm_ns = _sum_over_windows(report, "comm_ns")
    return bool(overlap_ns >= _MIN_MOSTLY_HIDDEN_SHARE * comm_ns)


def _shapes_of_all(reports: Sequence[Examined], _: Beside) -> list[Answer]:
    """Return what each report has of kernel shapes.

    If some reports have too few comparable kernels, one sentence about them is the text of all
    reports that have shapes.
    """
    answers = [_kernel_shapes(report) for report in reports]
    hardly_comparable = []
    for report, answer in zip(reports, answers, strict=True):
        has_shapes = answer.text == _SHAPES
        if has_shapes and answer.status == PARTLY:
            hardly_comparable.append(report)
    if not hardly_comparable:
        return answers
    text = _text_of_few_comparable(hardly_comparable, len(reports))
    answers_with_text = []
    for answer in answers:
        has_shapes = answer.text == _SHAPES
        answers_with_text.append(replace(answer, text=text) if has_shapes else answer)
    return answers_with_text


def _text_of_few_comparable(hardly_comparable: Sequence[Examined], n_reports: int) -> str:
    """Return the sentence of reports with too few comparable kernels, of `n_reports` in all."""
    shares = [_comparable_share(report) or 0.0 for report in hardly_comparable]
    lowest = f"{100 * min(shares):.1f}"
    highest = f"{100 * max(shares):.1f}"
    percents = lowest if lowest == highest else f"{lowest} to {highest}"
    n_hardly = len(hardly_comparable)
    start = "Only" if n_hardly == n_reports else f"In {n_hardly} of {n_reports} reports, only"
    return (
        f"{_SHAPES}. {start} {percents}% of the kernel time during communication can be "
        "compared with equal kernels "
        "without communication"
    )


def _cuda_graphs(report: Examined) -> Answer:
    """Return how many CUDA graphs ran. The answer is "partly" if some were captured as a whole."""
    n_launched_as_a_whole = report.counts.rows[versions.GRAPH]
    n_by_noun = {
        "launches as a whole": n_launched_as_a_whole,
        "kernels inside": report.counts.n_graph_kernels,
    }
    counts = _counts_of_existing(n_by_noun)
    if n_launched_as_a_whole:
        return _lack("graphs-as-a-whole", counts=counts, status=PARTLY)
    return Answer(YES, counts, "no CUDA graph ran")


def _gpu_metrics(reports: Sequence[Examined], _: Beside) -> list[Answer]:
    """Return what there is of GPU metrics for the ranks of each report."""
    n_run_ranks = _count_ranks(reports)
    return [_gpu_metrics_of_report(report, n_run_ranks) for report in reports]


def _gpu_metrics_of_report(report: Examined, n_run_ranks: int) -> Answer:
    """Return what there is of GPU metrics for the ranks of a report.

    Another report may have the metrics of the GPUs of these ranks. `n_run_ranks` is the number of
    ranks in all reports.
    """
    n_samples = report.counts.rows[versions.GPU_METRICS]
    counts = (("samples", n_samples),)
    n_ranks = len(report.digest.processes)
    n_ranks_with_counters = report.n_ranks_with_counters
    if n_ranks_with_counters and n_ranks_with_counters == n_ranks:
        return Answer(YES, counts)
    unread_code = next(filter(report.has, UNREAD_COUNTERS), None)
    if unread_code is not None:
        return Answer(NO, text=_UNREAD_METRICS, fix=report.fix_of(unread_code))
    fix = _fix_of_gpu_metrics(report, n_run_ranks)
    if n_ranks_with_counters:
        return Answer(PARTLY, (*counts, ("counted ranks", n_ranks_with_counters)), fix=fix)
    text = "only samples of GPUs of other ranks" if n_samples else _NONE_RECORDED
    return Answer(NO, text=text, fix=fix)


def _fix_of_gpu_metrics(report: Examined, n_run_ranks: int) -> str:
    """Return how to record GPU metrics of a report.

    `n_run_ranks` is the number of ranks in all reports.
    """
    # Older versions of nsys do not know the newer name of the option. If the version is not known,
    # the older name is right: newer versions accept it, because it is a prefix.
    version = versions.version_numbers(report.digest.facts.nsys_version)
    option = "--gpu-metrics-devices" if version >= _NSYS_WITH_DEVICES else "--gpu-metrics-device"
    fix = f"capture with nsys profile {option}=all"
    n_job_ranks = max(n_run_ranks, report.job.n_ranks or 0)
    has_job_other_ranks = len(report.pids) < n_job_ranks
    is_one_nsys_per_process = report.n_processes == 1 and has_job_other_ranks
    return f"{fix}{ONE_NSYS_PER_GPU}" if is_one_nsys_per_process else fix


def _python_lines(report: Examined) -> Answer:
    """Return how many samples name a line of Python.

    The answer is "partly" if other samples name no line.
    """
    n_samples_with_line = report.digest.n_python_samples
    # The code of the problem that some samples name no line, None if there is no such problem.
    gap_code = next(filter(report.has, _PYTHON_GAPS), None)
    if gap_code is None:
        if n_samples_with_line:
            return _have(n_samples_with_line, "samples")
        return Answer(NO, text=_NONE_RECORDED, fix=SAMPLE_PYTHON)
    fix = report.fix_of(gap_code)
    if n_samples_with_line:
        return Answer(PARTLY, (("samples", n_samples_with_line),), fix=fix)
    return Answer(NO, text=_PYTHON_GAPS[gap_code], fix=fix)


def _python_lock(report: Examined) -> Answer:
    n_ranges = report.digest.n_lock_ranges
    if n_ranges is None:
        return Answer(NO, text=_NONE_RECORDED, fix=TRACE_LOCK)
    return _have(n_ranges, "ranges")


def _shortened(text: str) -> str:
    if len(text) <= _MAX_TEXT_LENGTH:
        return text
    return f"{text[: _MAX_TEXT_LENGTH - 1]}\N{HORIZONTAL ELLIPSIS}"


def _quoted(text: str) -> str:
    return repr(_shortened(text))


def _pids(reports: Sequence[Examined]) -> list[int]:
    """Return the process of each rank of all reports."""
    return [pid for report in reports for pid in report.pids]


def _count_ranks(reports: Sequence[Examined]) -> int:
    return len(_pids(reports))


def _lacking_other_ranks(reports: Sequence[Examined]) -> Answer | None:
    """Return the answer of a single rank whose job had more ranks.

    None if the reports have several ranks, or if nothing shows more ranks of the job.
    """
    had_more_ranks = any(report.had_several_ranks for report in reports)
    if had_more_ranks and _count_ranks(reports) == 1:
        return _lack("ranks-missing", "the other ranks' reports are missing")
    return None


def _ranks(reports: Sequence[Examined], beside: Beside) -> list[Answer]:
    numbering = _rank_numbers(reports, beside)
    without_gpu = _lack("no-gpu-activity", "no GPU activity")
    return [numbering if report.pids else without_gpu for report in reports]


def _ranks_of(reports: Sequence[Examined]) -> Ranks:
    digests = [report.digest for report in reports]
    return ranks_or_hosts(digests)


def _rank_numbers(reports: Sequence[Examined], beside: Beside) -> Answer:
    """Return which ranks there are, and which source gives them their numbers.

    The source is the rank map, else the first source that gives each process another number. If
    there is no such source, the answer names a rank that is there twice in the first source with a
    number for each process. A single process needs no source.
    """
    ranks = _ranks_of(reports)
    processes = one_of_each_process(ranks)
    if beside.rank_map is not None:
        numbers = ranks_by_map(processes, beside.rank_map, beside.sidecars)
        shown = _shown_processes(numbers, len(ranks))
        return Answer(YES, text=f"{shown}, from --rank-map")
    repeated_rank: Answer | None = None
    for source, numbers_or_none in rank_sources(processes, beside.sidecars):
        numbers = [number for number in numbers_or_none if number is not None]
        if len(numbers) < len(processes):
            continue
        name = _name_of_rank_source(source)
        repeated_number = _lowest_repeated(numbers)
        if repeated_number is None:
            shown = _shown_processes(numbers, len(ranks))
            return Answer(YES, text=f"{shown}, from {name}")
        if repeated_rank is None:
            n_times = numbers.count(repeated_number)
            text = f"rank {repeated_number} occurs {n_times} times in {name}"
            repeated_rank = Answer(PARTLY, text=text, fix=_ONE_RUN)
    if len(processes) > 1:
        unnamed = _lack(
            "rank-by-order",
            "numbered by order, because the reports do not identify them",
            status=PARTLY,
        )
        return repeated_rank or unnamed
    if len(ranks) == 1:
        return Answer(YES, text="one rank")
    return Answer(YES, text=f"the {len(ranks)} GPUs of the only process")


def _name_of_rank_source(source: str) -> str:
    """Return the name of a source of `rank_sources` in words."""
    variable = source.removeprefix("env:")
    return _NAMES_OF_RANK_SOURCES.get(source, f"the {variable} environment variable")


def _lowest_repeated(numbers: Sequence[int]) -> int | None:
    """Return the lowest number that occurs several times, None if all are different."""
    n_by_number = Counter(numbers)
    repeated = [number for number, n_times in n_by_number.items() if n_times > 1]
    return min(repeated, default=None)


def _shown_processes(numbers: Sequence[int], n_ranks: int) -> str:
    """Return in words which `n_ranks` ranks run in the processes with these numbers.

    If each process has one rank, its number is that of the rank.
    """
    noun_of_ranks = "rank" if n_ranks == 1 else "ranks"
    if len(numbers) == n_ranks:
        return f"{noun_of_ranks} {shown_ranks(numbers)}"
    all_ranks = f"{noun_of_ranks} {shown_ranks(range(n_ranks))}"
    noun = "process" if len(numbers) == 1 else "processes"
    return f"{all_ranks} on the GPUs of {noun} {shown_ranks(numbers)}"


def _have_shared_processes(reports: Sequence[Examined]) -> bool:
    """Tell whether some process has several ranks, so that launchers count fewer than NCCL does."""
    return any(report.n_processes < len(report.pids) for report in reports)


def _world_size(reports: Sequence[Examined], beside: Beside) -> list[Answer]:
    """Return the world size that each report has, and whether all reports together have all ranks.

    Reports with a world size have the same answer.
    """
    sizes = _world_sizes(reports, beside)
    known_sizes = {size for size in sizes if size is not None}
    answer_with_size = _answer_with_world_size(reports, sorted(known_sizes))
    answers = []
    for report, size in zip(reports, sizes, strict=True):
        answers.append(_answer_without_world_size(report) if size is None else answer_with_size)
    return answers


def _world_sizes(reports: Sequence[Examined], beside: Beside) -> list[int | None]:
    """Return the world size of each report, None if it is not known."""
    # NCCL's communicators count ranks, and so are no world size if processes have several ranks.
    read_size = recorded_world_size if _have_shared_processes(reports) else world_size
    sizes = [read_size([report.digest], beside.sidecars) for report in reports]
    if any(sizes):
        return sizes
    # A launcher, a log, or gaps in the numbers of the ranks may show the size.
    return [report.job.world_size for report in reports]


def _answer_without_world_size(report: Examined) -> Answer:
    # If one nsys captured a launcher, the environment is the launcher's, without WORLD_SIZE.
    fix = NSYS_OF_EACH if report.n_processes > 1 else _UNDER_TORCHRUN
    return Answer(NO, text="WORLD_SIZE was not recorded", fix=fix)


def _answer_with_world_size(reports: Sequence[Examined], sizes: Sequence[int]) -> Answer:
    """Return the answer of reports that have a world size.

    `sizes` are the different sizes of all reports, in order. It is empty if no report has one.
    """
    shown_sizes = shown_ranks(sizes)
    if len(sizes) > 1:
        return Answer(PARTLY, text=f"{shown_sizes} in different reports", fix=_ONE_RUN)
    n_processes = sum(report.n_processes for report in reports)
    if sizes and n_processes < sizes[0]:
        text = f"{sizes[0]}, but only {n_processes} in these reports"
        return _lack("ranks-missing", text, status=PARTLY)
    if not _have_shared_processes(reports):
        return Answer(YES, text=shown_sizes)
    n_gpus = _count_ranks(reports)
    return Answer(YES, text=f"{shown_sizes} processes, with {n_gpus} GPUs in these reports")


def _one_clock(reports: Sequence[Examined], _: Beside) -> list[Answer]:
    """Return whether the times of each report can be compared with those of other reports."""
    answer = _known_clock(reports)
    absent = _lack("no-session-start", "no session start")
    starts_ns = [report.digest.facts.session_start_utc_ns for report in reports]
    return [absent if start_ns is None else answer for start_ns in starts_ns]


def _known_clock(reports: Sequence[Examined]) -> Answer:
    """Return the answer of reports whose session start is known."""
    lacking_other_ranks = _lacking_other_ranks(reports)
    if lacking_other_ranks is not None:
        return lacking_other_ranks
    if _count_ranks(reports) < _largest_job_size(reports):
        text = "waiting is unknown for communication with missing ranks"
        return _lack("ranks-missing", text, status=PARTLY)
    if any(report.hides_comm for report in reports):
        return _lack("comm-in-graphs", "communication inside CUDA graphs is not visible")
    text = _clock_text(reports)
    if any(report.lacks_groups for report in reports):
        text = f"{text}, but the process groups are unknown"
        return _lack("groups-not-named", text, status=PARTLY)
    # A single rank that sends nothing has no clock to be compared with.
    is_one_rank = len(reports) == 1 and reports[0].sends_nothing
    return Answer(YES, text=_ONE_RANK if is_one_rank else text)


def _largest_job_size(reports: Sequence[Examined]) -> int:
    """Return the largest number of ranks that a report says the job had, 0 if none says it."""
    sizes = [_job_size_of(report, reports) or 0 for report in reports]
    return max(sizes)


def _job_size_of(report: Examined, reports: Sequence[Examined]) -> int | None:
    """Return the number of ranks that a report says the job had, None if it does not say it."""
    if _have_shared_processes(reports):
        # World sizes count processes, which are fewer than ranks.
        return report.job.n_ranks
    return world_size([report.digest]) or report.job.world_size


def _clock_text(reports: Sequence[Examined]) -> str:
    """Return in words what puts the reports on one clock, and whether hosts make it doubtful."""
    text = "from session start times" if len(reports) > 1 else "from the session start time"
    hosts = {report.digest.facts.host for report in reports}
    hosts -= {None, ""}
    if len(hosts) > 1:
        text += f" of {len(hosts)} hosts, which may have different clocks"
    return text


def _link(reports: Sequence[Examined], beside: Beside) -> list[Answer]:
    """Return what connects the ranks. All reports have the same answer."""
    # Each has a size or None.
    sizes = {world_size([report.digest]) for report in reports}
    if _have_shared_processes(reports):
        sizes |= {report.job.n_ranks for report in reports}
    if _is_whole_job_one_rank(reports, sizes):
        answer = Answer(YES, text=_ONE_RANK)
    else:
        answer = _links_of_ranks(reports, beside, sizes)
    # A known link does not help one rank alone. Then the answer is that other ranks are missing.
    lacking_other_ranks = None if answer.status == NO else _lacking_other_ranks(reports)
    return [lacking_other_ranks or answer] * len(reports)


def _is_whole_job_one_rank(reports: Sequence[Examined], sizes: set[int | None]) -> bool:
    """Tell whether the job had one rank, by the `sizes` that the reports name.

    If no report names a size, communication shows that there may be other ranks.
    """
    if _count_ranks(reports) != 1:
        return False
    known_sizes = sizes - {None}
    if known_sizes:
        return known_sizes == {1}
    return not any(report.n_comm for report in reports)


def _links_of_ranks(
    reports: Sequence[Examined], beside: Beside, world_sizes: set[int | None]
) -> Answer:
    """Return what connects several ranks, by the NCCL log and the topology.

    `world_sizes` are the sizes that the reports name, and None if a report names none. The answer
    is "yes" if the kind of each link is clear.
    """
    log = beside.log
    topology = beside.topology
    pids = _pids(reports)
    if log is None and topology is None:
        text = "neither an NCCL log nor a topology file was passed or found next to the reports"
        fix = f"{_log_fix(reports)}. Also {_TOPOLOGY}"
        return Answer(NO, text=text, fix=fix)
    # If all ranks were captured, the world size is the number of ranks in the reports.
    possible_world_sizes = {len(pids), *world_sizes}
    if log is not None and log.of_run(pids, possible_world_sizes) is None:
        return _lack("log-of-another-run", "the NCCL log is of another run")
    local_ranks = _local_ranks(reports, beside)
    rows, _ = links(log, topology, pids=pids, local_ranks=local_ranks)
    slowest_link = slowest(rows)
    if slowest_link is not None:
        kinds = set(rows["kind"].to_pylist())
        are_kinds_clear = kinds.isdisjoint(("p2p", "unknown"))
        # Direct access (p2p) uses NVLink or PCIe. Only the topology shows which.
        lacks_topology = "p2p" in kinds and topology is None
        return _answer_of_link(
            slowest_link, are_kinds_clear=are_kinds_clear, lacks_topology=lacks_topology
        )
    # The log does not show any link, or only the topology was passed.
    if topology is None:
        text = "the log does not show what NCCL uses"
        return Answer(PARTLY, text=text, fix=f"{_LOG}. Also {_TOPOLOGY}")
    text = f"{_connections(topology)}, but no NCCL log shows what NCCL uses"
    return Answer(PARTLY, text=text, fix=_log_fix(reports))


def _local_ranks(reports: Sequence[Examined], beside: Beside) -> dict[int, int | None]:
    """Return which GPU of its host each rank has, by the number of the rank.

    `links` needs this for processes without a log. It is empty if no process has a log, or if
    nothing numbers the ranks.
    """
    if beside.log is None or not beside.log.communicators:
        return {}
    ranks = _ranks_of(reports)
    numbers = number_by_name(ranks, beside.sidecars).numbers
    if not numbers:
        return {}
    have_shared_processes = _have_shared_processes(reports)
    local_ranks: dict[int, int | None] = {}
    for number, rank in zip(numbers, ranks, strict=True):
        if have_shared_processes:
            local_ranks[number] = rank.process.device_id
        elif rank.is_alone:
            local_ranks[number] = rank.report.facts.number("LOCAL_RANK")
    return local_ranks


def _answer_of_link(link: SlowestLink, *, are_kinds_clear: bool, lacks_topology: bool) -> Answer:
    """Return the answer for the slowest link.

    The answer is "partly", with a fix, unless the kinds of all links are clear.
    """
    if are_kinds_clear:
        return Answer(YES, text=link.text)
    fixes = []
    if link.is_unlogged:
        fixes.append(_ALL_LOGS)
    if lacks_topology:
        fixes.append(_TOPOLOGY)
    text = f"{link.text}, {link.edges}" if link.n_unknown else link.text
    fix = ". Also ".join(fixes) if fixes else _LOG
    return Answer(PARTLY, text=text, fix=fix)


def _connections(topology: Topology) -> str:
    """Return in words what connects the GPUs of a topology."""
    gpus = {f"GPU{index}" for index in topology.gpus}
    paths: set[str] = set()
    for ends, path in topology.paths.items():
        # Other devices, such as network cards, have paths too.
        are_ends_gpus = gpus.issuperset(ends)
        if are_ends_gpus:
            paths.add(path)
    if not paths:
        return "a topology of one GPU"
    return f"the GPUs are connected by {', '.join(sorted(paths))}"


def _log_fix(reports: Sequence[Examined]) -> str:
    """Return how to get the NCCL log.

    If all reports were told to write a log, it exists and need only be passed.
    """
    environments = [report.digest.facts.environment or {} for report in reports]
    have_logs = all(map(writes_log, environments))
    return LOG_WRITTEN if have_logs else _LOG


class Question(Struct, frozen=True):
    """One question that reports may answer."""

    name: str
    # What the user gets to know.
    answers: str
    # Returns what each report has for it.
    judge: Callable[[Sequence[Examined], Beside], list[Answer]]
    # Whether nsyspipe itself uses the answer.
    is_used: bool = True


def _each(judge: Callable[[Examined], Answer]) -> Callable[..., list[Answer]]:
    """Return a rule that judges each report on its own, without what lies beside the reports."""
    return lambda reports, _: [judge(report) for report in reports]


def _counted(
    count: Callable[[Examined], int], noun: str, fix: str | None = None, text: str = _NONE_RECORDED
) -> Callable[..., list[Answer]]:
    """Return a rule that asks only how many there are of something in each report.

    The answer is yes with the count, or no with `text` and `fix` if there is none.
    """

    def judge(report: Examined) -> Answer:
        n = count(report)
        return _have(n, noun) if n else Answer(NO, text=text, fix=fix)

    return _each(judge)


def _rows(table: str, noun: str, flag: str | None = None) -> Callable[..., list[Answer]]:
    """Return a rule that asks only how many rows a table of each report has."""
    fix = flag and f"capture with nsys profile {flag}"
    return _counted(lambda report: report.counts.rows[table], noun, fix)


_CALLS = _counted(
    lambda report: report.counts.n_launches, "API calls", CATALOGUE["no-launches"].fix, _NO_CALLS
)
_SYSTEM_CALLS = _rows(versions.OS_RUNTIME, "calls", "--trace=cuda,nvtx,osrt")
_CPU_SAMPLES = _rows(versions.CPU_SAMPLES, "samples", "--sample=process-tree")
QUESTIONS = (
    Question("steps", "time per step", _each(_steps)),
    Question("phases", "overlap with backward, time by phase", _each(_phases)),
    Question("compute_and_comm", "where the time goes, overlap", _each(_kernels)),
    Question("launches", "which step launched each kernel", _CALLS),
    Question("copies", "gradient copies and others", _each(_copies)),
    Question("ranks", "the rank of each report", _ranks),
    Question("world_size", "whether ranks are missing", _world_size),
    Question("one_clock", "which ranks wait for which", _one_clock),
    Question("link", "interconnect and its bandwidth", _link),
    Question("gpu_model", "the GPU of each rank", _each(_gpu_model)),
    Question("nccl_ranges", "the collective of each call", _each(_nccl_ranges)),
    Question("message_bytes", "bytes and bandwidth of collectives", _each(_message_bytes)),
    Question(
        "device_clock", "comparing CPU and GPU times, as for idle causes", _each(_device_clock)
    ),
    Question("idle_causes", "why the GPU is idle", _each(_idle_causes)),
    Question("kernel_shapes", "slowdown under communication", _shapes_of_all),
    Question("cuda_graphs", "communication inside CUDA graphs", _each(_cuda_graphs)),
    # Records of overhead nest, so that they are no count of pauses.
    Question(
        "profiler_overhead", "the cost of the capture itself", _rows(versions.OVERHEAD, "records")
    ),
    Question("gpu_metrics", "activity of SMs, traffic of memory and links", _gpu_metrics),
    Question("python_lines", "the line of Python while the GPU is idle", _each(_python_lines)),
    Question("python_lock", "waits for Python's lock (GIL)", _each(_python_lock)),
    Question("os_runtime", "system calls that block the CPU", _SYSTEM_CALLS, is_used=False),
    Question("cpu_samples", "which CPU code runs", _CPU_SAMPLES, is_used=False),
)
