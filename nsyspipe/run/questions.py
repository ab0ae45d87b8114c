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
_ONE_RANK = "one rank"
_SHAPES = "grid and block size of every kernel"
LESS_WAITING = (
    "capture a second run with less wait time or less communication, and compare the kernels of "
    "both runs: nsyspipe diff"
)
# Compute hides most of the communication if it hides at least this share of the time.
_MIN_MOSTLY_HIDDEN_SHARE = 0.5
_NO_CALLS = "API calls were not recorded"
_NONE_RECORDED = "none recorded"
_UNREAD_METRICS = "samples that nsyspipe cannot read"
SAMPLE_PYTHON = (
    "capture with nsys profile --python-sampling=true, and export with --include-blobs=true (nsys "
    "2025.3 or newer)"
)
TRACE_LOCK = "capture with nsys profile --trace=cuda,nvtx,osrt,python-gil"
# Why samples of Python name no line, by the code of the problem.
_PYTHON_GAPS = {
    "python-samples-without-lines": "samples without lines",
    "python-samples-too-large": "samples larger than the limit",
    "python-thread-unknown": "samples of unknown threads",
}
# The range of our own captures, which is not a range of the user.
_CAPTURE_RANGE = "nsyspipe.capture"
_NAMES_OF_RANK_SOURCES = {
    "sidecar": "the sidecar of the capture",
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
    """Return the answer of a report that has a problem, with the fix of that problem."""
    fix = CATALOGUE[code].fix
    return Answer(status, counts, text, fix)


def _have(n: int, noun: str) -> Answer:
    """Return the answer of a report that has so many of something."""
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
    # Whether, in addition, the capture was not meant to trace a GPU.
    was_left_out: bool
    # How large the job was, as far as it is known.
    job: JobSize
    # Whether the job had several ranks, in this report or elsewhere.
    is_several: bool
    # Whether the process groups of the run are not known.
    lacks_groups: bool = False
    # The number of its ranks whose GPU is counted, in any report of the run.
    n_counted: int = 0

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
        """Number of communication operations: kernels, and collectives that are made of copies."""
        return sum(process.n_comm or 0 for process in self.digest.processes)

    @property
    def n_copied(self) -> int:
        """Number of collectives that are made of copies."""
        launches = self.digest.called.launches
        calls_of_copies = launches["call"].filter(launches["is_copy"])
        n_calls: int = pc.count_distinct(calls_of_copies).as_py()
        return n_calls

    @property
    def has_only_nccl(self) -> bool:
        """Whether every communication kernel is NCCL's, as far as nsyspipe knows kernel names."""
        if self.reading.comm_kernel is not None:
            return False
        kernel_names: set[str] = set()
        for process in self.digest.processes:
            names = process.kernels["name"].unique()
            kernel_names.update(names.to_pylist())
        return not any(map(library_of, kernel_names))

    @property
    def windows(self) -> list[pa.Table]:
        """The windows of each rank that has some."""
        return [rank.windows for rank in self._ranks_with_windows]

    @property
    def stepping_processes(self) -> list[ProcessDigest]:
        """Each process with windows once, although it may have several ranks."""
        by_process = {rank.process_id: rank for rank in self._ranks_with_windows}
        return list(by_process.values())

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
        may_communicate = self.is_several or self.digest.has_communication
        return bool(self.digest.n_graphs) and may_communicate

    @property
    def sends_nothing(self) -> bool:
        """Whether it is the only rank of its job, and does not communicate."""
        may_send = self.is_several or self.n_comm or self.hides_comm
        return len(self.pids) == 1 and not may_send

    @property
    def replays_communication(self) -> bool:
        """Whether its communication may be inside CUDA graphs, which make no NCCL calls.

        That explains why a report with NVTX ranges has none of NCCL.
        """
        n_ranges = self.counts.rows[versions.NVTX]
        if not n_ranges or self.digest.n_nccl_ranges:
            return False
        return bool(self.digest.n_graphs or self.counts.n_graph_kernels)

    @property
    def phase_counts(self) -> _Counts:
        """How many ranges are named like each phase, without those of the steps."""
        n_by_phase = dict.fromkeys(PHASES, 0)
        for text, phase, n_ranges in self.digest.phase_families:
            if text not in (self.family, _CAPTURE_RANGE):
                n_by_phase[phase] += n_ranges
        return _counts_of_existing(n_by_phase)


def _counts_of_existing(n_by_noun: Mapping[str, int]) -> _Counts:
    """Return the counts that are not 0."""
    return tuple((noun, n) for noun, n in n_by_noun.items() if n)


def _steps(report: Examined) -> Answer:
    n_steps = _count_steps(report)
    absent = _lacking_steps(report, n_steps)
    if absent is not None:
        return absent
    counts = _step_counts(report, n_steps)
    n_used = _count_used_steps(report)
    has_steps = n_steps >= _MIN_STEPS
    least_used = min(n_used, default=_MIN_STEPS)
    has_few_used = has_steps and least_used < _MIN_STEPS
    if has_few_used:
        counts.insert(1, ("used", sum(n_used)))
    if has_steps and not has_few_used:
        return Answer(YES, tuple(counts))
    code = "few-steps" if has_few_used else "no-complete-step"
    return _lack(code, counts=tuple(counts), status=PARTLY)


def _count_steps(report: Examined) -> int:
    """Return how many steps the analysis finds.

    If a step pattern was passed, these are all ranges that match it, unless none is a step.
    """
    if report.family is None:
        return 0
    processes = (*report.stepping_processes, *report.digest.hosts)
    n_steps: int = sum(process.members.num_rows for process in processes)
    are_of_pattern = report.reading.step is not None and report.family != REPETITION
    if not are_of_pattern or not n_steps:
        return n_steps
    return report.digest.n_named_steps or 0


def _count_used_steps(report: Examined) -> list[int]:
    """Return how many steps the metrics use of each process that has complete steps.

    The first complete step of several is not used.
    """
    n_used = []
    for process in report.stepping_processes:
        n_complete = pc.sum(process.windows["is_complete"]).as_py()
        if n_complete:
            n_used.append(max(n_complete - 1, 1))
    return n_used


def _lacking_steps(report: Examined, n_steps: int) -> Answer | None:
    """Return the answer of a report without steps, None if it has some."""
    if report.family == REPETITION and n_steps:
        return None
    if not report.counts.rows[versions.NVTX]:
        if report.has("no-nvtx"):
            return _lack("no-nvtx", "NVTX ranges were not recorded")
        return _lack("no-nvtx-ranges", "no NVTX range")
    if not report.families and not report.digest.n_named_steps:
        return _lack("no-steps", "only NVTX ranges of libraries")
    if n_steps:
        return None
    counts = report.other_families
    if report.reading.step is not None:
        counts = _step_counts(report, 0) + counts
        fix: str | None = "leave out --step, or match one of the existing ranges"
    elif report.reading.is_capture:
        fix = "leave out --step none"
    else:
        fix = CATALOGUE["no-steps"].fix
    return Answer(NO, tuple(counts), fix=fix)


def _step_counts(report: Examined, n_steps: int) -> list[tuple[str, int]]:
    """Return how many steps there are, and of what kind, and other ranges that could be steps."""
    if report.family == REPETITION and n_steps:
        return [("found by a periodic launch pattern", n_steps)]
    if report.reading.step is not None:
        pattern = _quoted(report.reading.step.pattern)
        return [(f"match --step {pattern}", n_steps)]
    family = _quoted(report.family or "")
    rivals = report.other_families[: _MAX_FAMILIES_SHOWN - 1]
    return [(family, n_steps), *rivals]


def _phases(report: Examined) -> Answer:
    if not report.counts.n_launches:
        return _lack("no-launches", _NO_CALLS)
    counts = report.phase_counts
    for code, text in BACKWARD_SOURCES.items():
        if report.has(code):
            window_count = (text, _count_windows(report))
            return Answer(PARTLY, (window_count, *counts), fix=report.fix_of(code))
    has_backward = "backward" in dict(counts)
    codes_without_backward = filter(report.has, ("backward-in-graphs", "no-backward"))
    lacking_code = next(codes_without_backward, None)
    is_split = has_backward and lacking_code is None
    if is_split and report.family is not None:
        return Answer(YES, counts)
    code = "no-steps" if has_backward else lacking_code or "no-backward"
    fix = report.fix_of(code)
    if counts:
        return Answer(PARTLY, counts, fix=fix)
    return Answer(NO, text="no NVTX range has the name of a phase", fix=fix)


def _count_windows(report: Examined) -> int:
    """Return the number of windows, once for each process although it may have several ranks."""
    n_by_process: dict[int, int] = {}
    for rank in report.digest.processes:
        n_of_other_ranks = n_by_process.get(rank.process_id, 0)
        n_by_process[rank.process_id] = max(n_of_other_ranks, rank.windows.num_rows)
    return sum(n_by_process.values())


def _kernels(report: Examined) -> Answer:
    n_kernels = report.counts.rows[versions.KERNEL]
    if not n_kernels:
        return _lacking_kernels(report)
    if not report.counts.rows[versions.STRINGS]:
        return _lack("no-kernel-names", "kernels without names")
    comm_noun = "NCCL kernels" if report.has_only_nccl else "communication kernels"
    n_copied = report.n_copied
    n_comm_kernels = report.n_comm - n_copied
    counts = [("kernels", n_kernels), (comm_noun, n_comm_kernels)]
    if n_copied:
        counts.append(("collectives made of copies", n_copied))
    if report.hides_comm:
        return _lack("comm-in-graphs", counts=tuple(counts), status=PARTLY)
    if report.is_several and not report.n_comm:
        return _lack("no-comm-kernels", counts=tuple(counts), status=PARTLY)
    return Answer(YES, tuple(counts))


def _lacking_kernels(report: Examined) -> Answer:
    if report.counts.rows[versions.GRAPH]:
        text = "only CUDA graphs as a whole, no single kernel"
        return _lack("graphs-as-a-whole", text, status=PARTLY)
    if report.has("no-kernels"):
        return _lack("no-kernels", "kernels were launched, but not recorded")
    return _lack("no-gpu-activity", "no kernels")


def _copies(report: Examined) -> Answer:
    noun_by_code = {"no-memcpy": "copies", "no-memset": "memsets"}
    lacking = [noun for code, noun in noun_by_code.items() if report.has(code)]
    if lacking:
        lacks_all = len(lacking) == len(noun_by_code)
        text = f"not recorded: {', '.join(lacking)}"
        return _lack("no-memcpy", text, status=NO if lacks_all else PARTLY)
    n_copies = report.counts.rows[versions.MEMCPY]
    n_memsets = report.counts.rows[versions.MEMSET]
    counts = (("copies", n_copies), ("memsets", n_memsets))
    if report.digest.n_graphs:
        text = "copies inside CUDA graphs are not visible"
        return _lack("graphs-as-a-whole", text, counts, status=PARTLY)
    return Answer(YES, counts)


def _gpu_model(report: Examined) -> Answer:
    names = report.digest.facts.gpu_names
    models = sorted(set(names.values()))
    if not models:
        return _lack("no-kernels", "not recorded")
    text = ", ".join(map(_shortened, models))
    return Answer(YES, text=text)


def _message_bytes(report: Examined) -> Answer:
    if report.sends_nothing:
        return Answer(YES, text=_ONE_RANK)
    if report.replays_communication:
        return _size_gap("replayed")
    if report.digest.size_gap is None:
        return _have(report.digest.n_message_bytes, "calls with a size")
    return _size_gap(report.digest.size_gap)


def _size_gap(name: str) -> Answer:
    """Return the answer of a report without message sizes, for a reason of `SIZE_GAPS`."""
    text, fix = SIZE_GAPS[name]
    return Answer(NO, text=text, fix=fix)


def _idle_causes(report: Examined) -> Answer:
    # Some records are queries and waits of a stream, in which the host does not wait.
    n_records = report.counts.rows[versions.SYNCHRONIZATION]
    record_count = ("synchronization records", n_records)
    n_calls = report.counts.n_timed_calls
    if n_calls and report.digest.n_graphs:
        return _lack("graphs-as-a-whole", _ONLY_BETWEEN_GRAPHS, status=PARTLY)
    if n_calls:
        return Answer(YES, (("timed calls", n_calls), record_count))
    if n_records:
        return _lack("no-launches", counts=(record_count,), status=PARTLY)
    return _lack("no-launches", _NO_CALLS)


def _nccl_ranges(report: Examined) -> Answer:
    n_ranges = report.digest.n_nccl_ranges
    if n_ranges:
        return _have(n_ranges, "ranges")
    if report.replays_communication:
        return _size_gap("replayed")
    return Answer(NO, text="none recorded", fix=TRACE_NVTX)


def _comparable_share(report: Examined) -> float | None:
    """Return the share of kernel time during communication that can be compared.

    Equal kernels must have run without communication too. None if compute and communication hardly
    overlap.
    """
    overlap_ns = _sum_over_windows(report, "overlap_compute_ns")
    min_overlap_ns = MIN_OVERLAP_SHARE_OF_STEP * sum(map(_wall_ns, report.windows))
    if not overlap_ns or overlap_ns < min_overlap_ns:
        return None
    kernels_of_ranks = []
    for place, process in enumerate(report.digest.processes):
        kernels = process.kernels
        rank = pa.repeat(place, kernels.num_rows)
        kernels_of_ranks.append(kernels.append_column("rank", rank))
    return compared_kernels(pa.concat_tables(kernels_of_ranks)).share


def _wall_ns(windows: pa.Table) -> int:
    lengths_ns = pc.subtract(windows["end_ns"], windows["start_ns"])
    return int(pc.sum(lengths_ns).as_py())


def _sum_over_windows(report: Examined, column: str) -> int:
    total = 0
    for windows in report.windows:
        total += pc.sum(windows[column]).as_py() or 0
    return total


def _kernel_shapes(report: Examined) -> Answer:
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

    Otherwise communication is long, for example because ranks wait, and all compute runs during it.
    """
    overlap_ns = _sum_over_windows(report, "overlap_compute_ns")
    comm_ns = _sum_over_windows(report, "comm_ns")
    return bool(overlap_ns >= _MIN_MOSTLY_HIDDEN_SHARE * comm_ns)


def _shapes_of_all(reports: Sequence[Examined], _: Beside) -> list[Answer]:
    """Return what each report has of kernel shapes.

    Reports with too few comparable kernels share one sentence.
    """
    answers = [_kernel_shapes(report) for report in reports]
    hardly_comparable = []
    for report, answer in zip(reports, answers, strict=True):
        if answer.text == _SHAPES and answer.status == PARTLY:
            hardly_comparable.append(report)
    if not hardly_comparable:
        return answers
    text = _text_of_few_comparable(hardly_comparable, len(reports))
    return [replace(answer, text=text) if answer.text == _SHAPES else answer for answer in answers]


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
    n_graphs = report.counts.rows[versions.GRAPH]
    n_by_noun = {
        "launches as a whole": n_graphs,
        "kernels inside": report.counts.n_graph_kernels,
    }
    counts = _counts_of_existing(n_by_noun)
    if n_graphs:
        return _lack("graphs-as-a-whole", counts=counts, status=PARTLY)
    return Answer(YES, counts, "no CUDA graph ran")


def _gpu_metrics(reports: Sequence[Examined], _: Beside) -> list[Answer]:
    n_ranks = _count_ranks(reports)
    return [_gpu_metrics_of_report(report, n_ranks) for report in reports]


def _gpu_metrics_of_report(report: Examined, n_ranks: int) -> Answer:
    """Return what there is of GPU metrics for the ranks of a report, if all have `n_ranks`.

    The metrics of its GPUs may be in another report.
    """
    n_samples = report.counts.rows[versions.GPU_METRICS]
    counts = (("samples", n_samples),)
    n_counted = report.n_counted
    if n_counted and n_counted == len(report.digest.processes):
        return Answer(YES, counts)
    unread_code = next(filter(report.has, UNREAD_COUNTERS), None)
    if unread_code is not None:
        return Answer(NO, text=_UNREAD_METRICS, fix=report.fix_of(unread_code))
    fix = _fix_of_gpu_metrics(report, n_ranks)
    if n_counted:
        return Answer(PARTLY, (*counts, ("counted ranks", n_counted)), fix=fix)
    text = "only samples of GPUs of other ranks" if n_samples else _NONE_RECORDED
    return Answer(NO, text=text, fix=fix)


def _fix_of_gpu_metrics(report: Examined, n_ranks: int) -> str:
    """Return how to record GPU metrics of a report, if all reports have `n_ranks`."""
    # Older versions of nsys do not know the newer name. Newer ones accept the older name, because
    # it is a prefix.
    version = versions.version_numbers(report.digest.facts.nsys_version)
    option = "--gpu-metrics-devices" if version >= _NSYS_WITH_DEVICES else "--gpu-metrics-device"
    fix = f"capture with nsys profile {option}=all"
    n_job_ranks = max(n_ranks, report.job.n_ranks or 0)
    lacks_ranks = len(report.pids) < n_job_ranks
    has_nsys_of_its_own = report.n_processes == 1 and lacks_ranks
    if has_nsys_of_its_own:
        fix += ONE_NSYS_PER_GPU
    return fix


def _python_lines(report: Examined) -> Answer:
    n_samples = report.digest.n_python_samples
    lacking_code = next(filter(report.has, _PYTHON_GAPS), None)
    if lacking_code is None:
        if n_samples:
            return _have(n_samples, "samples")
        return Answer(NO, text=_NONE_RECORDED, fix=SAMPLE_PYTHON)
    fix = report.fix_of(lacking_code)
    if n_samples:
        return Answer(PARTLY, (("samples", n_samples),), fix=fix)
    return Answer(NO, text=_PYTHON_GAPS[lacking_code], fix=fix)


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
    return [pid for report in reports for pid in report.pids]


def _count_ranks(reports: Sequence[Examined]) -> int:
    return len(_pids(reports))


def _missing_ranks(reports: Sequence[Examined]) -> Answer | None:
    """Return the answer of a single rank whose job had more ranks, None for other reports."""
    had_more_ranks = any(report.is_several for report in reports)
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
    """Return which ranks there are, and what gives them their numbers."""
    ranks = _ranks_of(reports)
    processes = one_of_each_process(ranks)
    if beside.rank_map is not None:
        numbers = ranks_by_map(processes, beside.rank_map, beside.sidecars)
        shown = _shown_processes(numbers, len(ranks))
        return Answer(YES, text=f"{shown}, from --rank-map")
    not_unique: Answer | None = None
    for source, numbers_of_processes in rank_sources(processes, beside.sidecars):
        numbers = [number for number in numbers_of_processes if number is not None]
        if len(numbers) < len(processes):
            continue
        name = _name_of_rank_source(source)
        repeated = _first_repeated(numbers)
        if repeated is None:
            shown = _shown_processes(numbers, len(ranks))
            return Answer(YES, text=f"{shown}, from {name}")
        if not_unique is None:
            n_times = numbers.count(repeated)
            text = f"rank {repeated} occurs {n_times} times in {name}"
            not_unique = Answer(PARTLY, text=text, fix=_ONE_RUN)
    if len(processes) > 1:
        unnamed = _lack("rank-by-order", "the reports do not identify the ranks", status=PARTLY)
        return not_unique or unnamed
    if len(ranks) == 1:
        return Answer(YES, text="one rank")
    return Answer(YES, text=f"the {len(ranks)} GPUs of the only process")


def _name_of_rank_source(source: str) -> str:
    variable = source.removeprefix("env:")
    return _NAMES_OF_RANK_SOURCES.get(source, f"the {variable} environment variable")


def _first_repeated(numbers: Sequence[int]) -> int | None:
    """Return the lowest number that occurs several times."""
    n_by_number = Counter(numbers)
    repeated = [number for number, n_times in n_by_number.items() if n_times > 1]
    return min(repeated, default=None)


def _shown_processes(numbers: Sequence[int], n_ranks: int) -> str:
    """Return in words which ranks run in processes with these numbers."""
    if len(numbers) == n_ranks:
        return shown_ranks(numbers)
    all_ranks = shown_ranks(range(n_ranks))
    noun = "process" if len(numbers) == 1 else "processes"
    return f"{all_ranks} on the GPUs of {noun} {shown_ranks(numbers)}"


def _have_shared_processes(reports: Sequence[Examined]) -> bool:
    """Tell whether some process has several devices, so that launchers count fewer than ranks."""
    return any(report.n_processes < len(report.pids) for report in reports)


def _world_size(reports: Sequence[Examined], beside: Beside) -> list[Answer]:
    read_size = recorded_world_size if _have_shared_processes(reports) else world_size
    sizes = [read_size([report.digest], beside.sidecars) for report in reports]
    if not any(sizes):
        # A launcher, a log, or gaps in the numbers of the ranks may show the size.
        sizes = [report.job.world_size for report in reports]
    known_sizes = {size for size in sizes if size is not None}
    answer = _known_world_size(reports, sorted(known_sizes))
    answers = []
    for report, size in zip(reports, sizes, strict=True):
        # If one nsys captured a launcher, the environment is the launcher's, without WORLD_SIZE.
        fix = NSYS_OF_EACH if report.n_processes > 1 else _UNDER_TORCHRUN
        absent = Answer(NO, text="WORLD_SIZE was not recorded", fix=fix)
        answers.append(absent if size is None else answer)
    return answers


def _known_world_size(reports: Sequence[Examined], sizes: Sequence[int]) -> Answer:
    """Return the answer of reports that have a world size. Different reports may have several."""
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
    answer = _known_clock(reports)
    absent = _lack("no-session-start", "no session start")
    starts_ns = [report.digest.facts.session_start_utc_ns for report in reports]
    return [absent if start_ns is None else answer for start_ns in starts_ns]


def _known_clock(reports: Sequence[Examined]) -> Answer:
    """Return the answer of reports whose session start is known."""
    missing = _missing_ranks(reports)
    if missing is not None:
        return missing
    if _count_ranks(reports) < _least_job_size(reports):
        text = "waiting is unknown for communication with missing ranks"
        return _lack("ranks-missing", text, status=PARTLY)
    if any(report.hides_comm for report in reports):
        return _lack("comm-in-graphs", "communication inside CUDA graphs is not visible")
    text = _clock_text(reports)
    if any(report.lacks_groups for report in reports):
        text = f"{text}, but the process groups are unknown"
        return _lack("groups-not-named", text, status=PARTLY)
    is_one_rank = len(reports) == 1 and reports[0].sends_nothing
    return Answer(YES, text=_ONE_RANK if is_one_rank else text)


def _least_job_size(reports: Sequence[Examined]) -> int:
    """Return how many ranks the job had at least, as far as the reports say, else 0."""
    sizes: list[int | None] = []
    if _have_shared_processes(reports):
        sizes += [report.job.n_ranks for report in reports]
    else:
        sizes += [world_size([report.digest]) or report.job.world_size for report in reports]
    return max(size or 0 for size in sizes)


def _clock_text(reports: Sequence[Examined]) -> str:
    text = "from session start times" if len(reports) > 1 else "from the session start time"
    hosts = {report.digest.facts.host for report in reports}
    hosts -= {None, ""}
    if len(hosts) > 1:
        text += f" of {len(hosts)} hosts, which may have different clocks"
    return text


def _link(reports: Sequence[Examined], beside: Beside) -> list[Answer]:
    sizes = {world_size([report.digest]) for report in reports}
    if _have_shared_processes(reports):
        sizes |= {report.job.n_ranks for report in reports}
    known_sizes = sizes - {None}
    # A single report with communication may be one of many, unless it has the size of the job.
    may_have_others = not known_sizes and any(report.n_comm for report in reports)
    is_size_one = {_count_ranks(reports), *known_sizes} == {1}
    if is_size_one and not may_have_others:
        answer = Answer(YES, text="one rank")
    else:
        answer = _links_of_ranks(reports, beside, sizes)
    if answer.status != NO:
        answer = _missing_ranks(reports) or answer
    return [answer] * len(reports)


def _links_of_ranks(
    reports: Sequence[Examined], beside: Beside, world_sizes: set[int | None]
) -> Answer:
    """Return what connects several ranks, by the NCCL log and the topology.

    `world_sizes` are those that the reports name, with None for reports that name none.
    """
    log = beside.log
    topology = beside.topology
    pids = _pids(reports)
    if log is None and topology is None:
        text = "no NCCL log and no topology file was passed or lies next to the reports"
        fix = f"{_log_fix(reports)}. Also {_TOPOLOGY}"
        return Answer(NO, text=text, fix=fix)
    # Without ranks that were not captured, the world is as large as the number of reports.
    possible_world_sizes = {len(pids), *world_sizes}
    if log is not None and log.of_run(pids, possible_world_sizes) is None:
        return _lack("log-of-another-run", "the NCCL log is of another run")
    local_ranks = _local_ranks(reports, beside)
    rows, _ = links(log, topology, pids=pids, local_ranks=local_ranks)
    link = slowest(rows)
    if link is not None:
        # Direct access uses NVLink or PCIe. Only the topology shows which.
        kinds = rows["kind"].to_pylist()
        unclear_kinds = {"p2p", "unknown"}.intersection(kinds)
        lacks_topology = "p2p" in unclear_kinds and topology is None
        return _slowest_link(link, is_clear=not unclear_kinds, lacks_topology=lacks_topology)
    if topology is None:
        text = "the log does not show what NCCL uses"
        return Answer(PARTLY, text=text, fix=f"{_LOG}. Also {_TOPOLOGY}")
    text = f"{_connections(topology)}, but no NCCL log shows what NCCL uses"
    return Answer(PARTLY, text=text, fix=_log_fix(reports))


def _local_ranks(reports: Sequence[Examined], beside: Beside) -> dict[int, int | None]:
    """Return which GPU of its host each rank has, to find the GPUs of processes without a log."""
    if beside.log is None or not beside.log.communicators:
        return {}
    ranks = _ranks_of(reports)
    # There are no numbers if nothing identifies the ranks.
    numbers = number_by_name(ranks, beside.sidecars).numbers
    counts_devices = _have_shared_processes(reports)
    local_ranks: dict[int, int | None] = {}
    for number, rank in zip(numbers, ranks, strict=False):
        if counts_devices:
            local_ranks[number] = rank.process.device_id
        elif rank.is_alone:
            local_ranks[number] = rank.report.facts.number("LOCAL_RANK")
    return local_ranks


def _slowest_link(link: SlowestLink, *, is_clear: bool, lacks_topology: bool) -> Answer:
    if is_clear:
        return Answer(YES, text=link.text)
    fixes = []
    if link.is_unlogged:
        fixes.append(_ALL_LOGS)
    if lacks_topology:
        fixes.append(_TOPOLOGY)
    text = f"{link.text}, {link.edges}" if link.n_unknown else link.text
    return Answer(PARTLY, text=text, fix=". Also ".join(fixes) or _LOG)


def _connections(topology: Topology) -> str:
    """Return in words what connects the GPUs of a topology."""
    gpus = {f"GPU{index}" for index in topology.gpus}
    paths: set[str] = set()
    for ends, path in topology.paths.items():
        if gpus.issuperset(ends):
            paths.add(path)
    if not paths:
        return "a topology of one GPU"
    return f"the GPUs are connected by {', '.join(sorted(paths))}"


def _log_fix(reports: Sequence[Examined]) -> str:
    """Return how to get the NCCL log. A run that was told to write a log has written it."""
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
    """Return a rule that judges each report on its own."""
    return lambda reports, _: [judge(report) for report in reports]


def _counted(
    count: Callable[[Examined], int], noun: str, fix: str | None = None, text: str = _NONE_RECORDED
) -> Callable[..., list[Answer]]:
    """Return a rule that asks only how many there are of something in each report."""

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
