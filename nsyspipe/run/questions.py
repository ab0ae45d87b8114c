"""What reports can answer: a rule per question, and the flag that would add what is not there."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

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
from nsyspipe.analysis.links import links, slowest
from nsyspipe.analysis.steps import REPETITION
from nsyspipe.model.comm_kernels import library_of
from nsyspipe.model.names import PHASES
from nsyspipe.model.options import Reading
from nsyspipe.model.problems import BACKWARD_SOURCES, CATALOGUE, SIZE_GAPS, TRACE_NVTX
from nsyspipe.model.side_files import NcclLog, Topology
from nsyspipe.nsys.settings import LOG_WRITTEN, writes_log
from nsyspipe.reader import report as versions
from nsyspipe.reader.metadata import Counts
from nsyspipe.run.digests import ReportDigest, one_of_each_process
from nsyspipe.run.gather import ranks_or_hosts
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
_SHOWN_FAMILIES = 3
_LONGEST_TEXT = 32
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
_NSYS_WITH_DEVICES = (2024, 5)  # the first that calls the option --gpu-metrics-devices
_ONLY_BETWEEN_GRAPHS = "only gaps between CUDA graphs, because gaps inside are not visible"
_ONE_RANK = "one rank"
_SHAPES = "grid and block size of every kernel"
LESS_WAITING = (
    "capture a second run with less wait time or less communication, and compare the kernels of "
    "both runs: nsyspipe diff"
)
_MOSTLY_HIDDEN = 0.5  # of communication
_NO_CALLS = "API calls were not recorded"
_SOURCES = {  # what each source of ranks is called
    "sidecar": "the sidecar of the capture",
    "nccl_payload": "NCCL's NVTX payloads",
    "nvtx_mpi": "MPI's thread names",
    "file_name": "the file names",
}


class Answer(Struct, frozen=True):
    """What one report has for one question."""

    status: str
    counts: tuple[
        tuple[str, int], ...
    ] = ()  # how many there are of what; those of several reports add up
    text: str = ""  # what there is, in words; shown without counts
    fix: str | None = None


def _lack(
    code: str, text: str = "", counts: tuple[tuple[str, int], ...] = (), *, status: str = NO
) -> Answer:
    return Answer(status, counts, text, CATALOGUE[code].fix)


class Beside(Struct, frozen=True):
    """What lies beside the reports; None is "neither given nor named by a sidecar"."""

    rank_map: Mapping[str, int] | None = None
    log: NcclLog | None = None
    topology: Topology | None = None
    sidecars: RunSidecars = field(default_factory=RunSidecars)
    looks_beside: bool = True  # for logs and topologies that are not given


class Examined(Struct, frozen=True):
    """What one report holds, and what the analysis makes of it."""

    digest: ReportDigest
    counts: Counts
    reading: Reading
    family: str | None  # the steps' family; None where the analysis finds no steps
    # whether no report has device activity, so that the processes with steps stand for ranks
    is_host_only: bool
    was_left_out: bool  # whether no GPU was to be traced either
    job: JobSize  # how large the job was, as far as anything tells
    is_several: bool  # whether there are several ranks, here or elsewhere
    lacks_groups: bool = False  # whether the run's process groups are not known

    @property
    def n_processes(self) -> int:
        """How many processes its ranks are of."""
        return len(set(self.pids))

    @property
    def pids(self) -> list[int]:
        """The process of each rank."""
        return [
            one.pid
            for one in (
                self.digest.hosts_with_steps if self.is_host_only else self.digest.processes
            )
        ]

    @property
    def families(self) -> list[tuple[str, int]]:
        """The users' ranges that no step pattern names: texts with digits as ``#`` and how many, most time first."""
        return [
            family for family in self.digest.families if family[0] != "nsyspipe.capture"
        ]  # our own captures' range

    @property
    def n_comm(self) -> int:
        """Communication operations: kernels, and collectives that are made of copies."""
        return sum(process.n_comm or 0 for process in self.digest.processes)

    @property
    def n_copied(self) -> int:
        """Collectives that are made of copies."""
        launches = self.digest.called.launches
        return int(pc.count_distinct(launches["call"].filter(launches["is_copy"])).as_py())

    @property
    def has_only_nccl(self) -> bool:
        """Whether all kernels that communicate are NCCL's, as far as this program knows them by their names."""
        labels = {
            label
            for process in self.digest.processes
            for label in process.kernels["name"].unique().to_pylist()
        }
        return self.reading.comm_kernel is None and not any(map(library_of, labels))

    def fix_of(self, code: str) -> str | None:
        """Return what mends a problem, as the analysis says it of the report, else as the catalogue does."""
        return next(
            (problem.fix for problem in self.digest.problems if problem.code == code),
            CATALOGUE[code].fix,
        )

    def has(self, code: str) -> bool:
        """Tell whether the analysis has a problem with the report alone."""
        return any(problem.code == code for problem in self.digest.problems)

    @property
    def hides_comm(self) -> bool:
        """Whether CUDA graphs that were captured as a whole may hold communication."""
        return bool(self.digest.n_graphs) and (self.is_several or self.digest.has_communication)

    @property
    def sends_nothing(self) -> bool:
        """Whether it is the only rank of its job, and does not communicate."""
        return len(self.pids) == 1 and not (self.is_several or self.n_comm or self.hides_comm)

    @property
    def replays_communication(self) -> bool:
        """Whether its communication may be inside CUDA graphs, which make no call of NCCL when they run, though NVTX was traced."""
        has_graphs = self.digest.n_graphs or self.counts.n_graph_kernels
        return (
            bool(has_graphs and self.counts.rows[versions.NVTX]) and not self.digest.n_nccl_ranges
        )

    @property
    def phase_counts(self) -> tuple[tuple[str, int], ...]:
        """How many ranges are named like each phase; the steps themselves are none."""
        counts = dict.fromkeys(PHASES, 0)
        for text, phase, n_ranges in self.digest.phase_families:
            if text not in (self.family, "nsyspipe.capture"):
                counts[phase] += n_ranges
        return tuple((phase, n_ranges) for phase, n_ranges in counts.items() if n_ranges)


def _steps(report: Examined) -> Answer:
    digest = report.digest
    step = report.reading.step
    family = report.family
    others = [(repr(_short(text)), n) for text, n in report.families if text != family][
        :_SHOWN_FAMILIES
    ]
    of_process = {
        process.process_id: process for process in digest.processes if process.windows.num_rows
    }
    with_members = (*of_process.values(), *digest.hosts)
    n_steps = (
        sum(with_member.members.num_rows for with_member in with_members)
        if family is not None
        else 0
    )
    if family == REPETITION and n_steps:
        counts = [("found by a periodic launch pattern", n_steps)]
    elif not report.counts.rows[versions.NVTX]:
        is_lost = report.has("no-nvtx")
        return (
            _lack("no-nvtx", "NVTX ranges were not recorded")
            if is_lost
            else _lack("no-nvtx-ranges", "no NVTX range")
        )
    elif not report.families and not digest.n_named_steps:
        return _lack("no-steps", "only NVTX ranges of libraries")
    elif step is not None:
        n_steps = (digest.n_named_steps or 0) * bool(n_steps)
        counts = [(f"match --step {_short(step.pattern)!r}", n_steps)]
        if not n_steps:
            unmatched = "leave out --step, or match one of the existing ranges"
            return Answer(NO, (*counts, *others), fix=unmatched)
    elif family is None or not n_steps:
        fix = "leave out --step none" if report.reading.is_capture else CATALOGUE["no-steps"].fix
        return Answer(NO, tuple(others), fix=fix)
    else:
        counts = [(repr(_short(family)), n_steps), *others[: _SHOWN_FAMILIES - 1]]
    complete = [
        pc.sum(one.windows["is_complete"], min_count=0).as_py() for one in of_process.values()
    ]
    counted = [max(n - 1, 1) for n in complete if n]  # without the first
    is_few = n_steps >= _MIN_STEPS and min(counted, default=_MIN_STEPS) < _MIN_STEPS
    if is_few:
        counts.insert(1, ("used", sum(counted)))
    if n_steps < _MIN_STEPS or is_few:
        return _lack(
            "few-steps" if is_few else "no-complete-step", counts=tuple(counts), status=PARTLY
        )
    return Answer(YES, tuple(counts))


def _phases(report: Examined) -> Answer:
    if not report.counts.n_launches:
        return _lack("no-launches", _NO_CALLS)
    counts = report.phase_counts
    has_backward = "backward" in dict(counts)
    lacking = next(filter(report.has, ("backward-in-graphs", "no-backward")), None)
    for code, text in BACKWARD_SOURCES.items():
        if report.has(code):
            n_steps = sum(
                {
                    process.process_id: process.windows.num_rows
                    for process in report.digest.processes
                }.values()
            )
            return Answer(PARTLY, ((text, n_steps), *counts), fix=report.fix_of(code))
    if report.family is not None and has_backward and lacking is None:
        return Answer(YES, counts)
    text = "" if counts else "no NVTX range has the name of a phase"
    fix = report.fix_of("no-steps" if has_backward else lacking or "no-backward")
    return Answer(PARTLY if counts else NO, counts, text, fix)


def _kernels(report: Examined) -> Answer:
    n_kernels = report.counts.rows[versions.KERNEL]
    if not n_kernels and report.counts.rows[versions.GRAPH]:
        return _lack(
            "graphs-as-a-whole", "only CUDA graphs as a whole, no single kernel", status=PARTLY
        )
    if not n_kernels and report.has("no-kernels"):
        return _lack("no-kernels", "kernels were launched, but not recorded")
    if not n_kernels:
        return _lack("no-gpu-activity", "no kernels")
    if not report.counts.rows[versions.STRINGS]:
        return _lack("no-kernel-names", "kernels without names")
    whose = "NCCL kernels" if report.has_only_nccl else "communication kernels"
    counts = [("kernels", n_kernels), (whose, report.n_comm - report.n_copied)]
    if report.n_copied:
        counts.append(("collectives made of copies", report.n_copied))
    if report.hides_comm or (report.is_several and not report.n_comm):
        return _lack(
            "comm-in-graphs" if report.hides_comm else "no-comm-kernels",
            counts=tuple(counts),
            status=PARTLY,
        )
    return Answer(YES, tuple(counts))


def _copies(report: Examined) -> Answer:
    kinds = {"no-memcpy": ("copies", versions.MEMCPY), "no-memset": ("memsets", versions.MEMSET)}
    lacking = [noun for code, (noun, _) in kinds.items() if report.has(code)]
    if lacking:
        status = NO if len(lacking) == len(kinds) else PARTLY
        return _lack("no-memcpy", f"not recorded: {', '.join(lacking)}", status=status)
    counts = tuple((noun, report.counts.rows[table]) for noun, table in kinds.values())
    if report.digest.n_graphs:
        return _lack(
            "graphs-as-a-whole", "copies inside CUDA graphs are not visible", counts, status=PARTLY
        )
    return Answer(YES, counts)


def _gpu_model(report: Examined) -> Answer:
    names = sorted(set(report.digest.facts.gpu_names.values()))
    return (
        Answer(YES, text=", ".join(map(_short, names)))
        if names
        else _lack("no-kernels", "not recorded")
    )


def _message_bytes(report: Examined) -> Answer:
    if report.sends_nothing:
        return Answer(YES, text=_ONE_RANK)
    if report.replays_communication:
        text, fix = SIZE_GAPS["replayed"]
        return Answer(NO, text=text, fix=fix)
    if report.digest.size_gap is None:
        return Answer(YES, (("calls with a size", report.digest.n_message_bytes),))
    text, fix = SIZE_GAPS[report.digest.size_gap]
    return Answer(NO, text=text, fix=fix)


def _idle_causes(report: Examined) -> Answer:
    # Records of queries and of waits of a stream are among them, in which the host does not wait.
    records = ("synchronization records", report.counts.rows[versions.SYNCHRONIZATION])
    n_calls = report.counts.n_timed_calls
    if n_calls:
        if report.digest.n_graphs:
            return _lack("graphs-as-a-whole", _ONLY_BETWEEN_GRAPHS, status=PARTLY)
        return Answer(YES, (("timed calls", n_calls), records))
    return (
        _lack("no-launches", counts=(records,), status=PARTLY)
        if records[1]
        else _lack("no-launches", _NO_CALLS)
    )


def _nccl_ranges(report: Examined) -> Answer:
    n_ranges = report.digest.n_nccl_ranges
    if n_ranges:
        return Answer(YES, (("ranges", n_ranges),))
    if report.replays_communication:
        text, fix = SIZE_GAPS["replayed"]
        return Answer(NO, text=text, fix=fix)
    return Answer(NO, text="none recorded", fix=TRACE_NVTX)


def _compared(report: Examined) -> float | None:
    """Return how much of the kernel time beside communication has equals without it; None where there is too little."""
    ranks = report.digest.processes
    overlap = walls = 0
    for windows in (rank.windows for rank in ranks if rank.windows.num_rows):
        overlap += pc.sum(windows["overlap_compute_ns"]).as_py() or 0
        walls += pc.sum(pc.subtract(windows["end_ns"], windows["start_ns"])).as_py()
    if not overlap or overlap < MIN_OVERLAP_SHARE_OF_STEP * walls:
        return None
    tables = enumerate(rank.kernels for rank in ranks)
    numbered = (
        own.append_column("rank", pa.repeat(number, own.num_rows)) for number, own in tables
    )
    return compared_kernels(pa.concat_tables(numbered)).share


def _kernel_shapes(report: Examined) -> Answer:
    has_kernels = bool(report.counts.rows[versions.KERNEL])
    if report.counts.rows[versions.GRAPH] and not has_kernels:
        return _lack("graphs-as-a-whole", "unknown inside CUDA graphs captured as a whole")
    if not (report.counts.has_shapes and has_kernels):
        return _lack("no-kernels", "not recorded")
    share = _compared(report)
    if share is None or share >= LEAST_COMPARED:
        return Answer(YES, text=_SHAPES)
    return Answer(
        PARTLY, text=_SHAPES, fix=LESS_HIDDEN if _is_mostly_hidden(report) else LESS_WAITING
    )


def _is_mostly_hidden(report: Examined) -> bool:
    """Tell whether compute hides most of the communication: else that is long, as where ranks wait, and compute is all beside it."""
    windows = [rank.windows for rank in report.digest.processes if rank.windows.num_rows]
    overlap, comm = (
        sum(pc.sum(window[name]).as_py() or 0 for window in windows)
        for name in ("overlap_compute_ns", "comm_ns")
    )
    return bool(overlap >= _MOSTLY_HIDDEN * comm)


def _shapes_of_all(reports: Sequence[Examined], _: Beside) -> list[Answer]:
    """Return what each report has of kernels' shapes; one sentence of all that have too few kernels to compare."""
    answers = [_kernel_shapes(report) for report in reports]
    few = [
        report
        for report, answer in zip(reports, answers, strict=True)
        if (answer.status, answer.text) == (PARTLY, _SHAPES)
    ]
    if not few:
        return answers
    shares = sorted(100 * (_compared(report) or 0.0) for report in few)
    percent = " to ".join(dict.fromkeys(f"{share:.1f}" for share in (shares[0], shares[-1])))
    start = "Only" if len(few) == len(reports) else f"In {len(few)} of {len(reports)} reports, only"
    text = (
        f"{_SHAPES}. {start} {percent}% of the kernel time during communication can be "
        "compared with equal kernels "
        "without communication"
    )
    return [replace(answer, text=text) if answer.text == _SHAPES else answer for answer in answers]


def _cuda_graphs(report: Examined) -> Answer:
    nouns = {
        "launches as a whole": report.counts.rows[versions.GRAPH],
        "kernels inside": report.counts.n_graph_kernels,
    }
    counts = tuple((noun, n) for noun, n in nouns.items() if n)
    if report.counts.rows[versions.GRAPH]:
        return _lack("graphs-as-a-whole", counts=counts, status=PARTLY)
    return Answer(YES, counts, "no CUDA graph ran")


def _gpu_metrics(reports: Sequence[Examined], _: Beside) -> list[Answer]:
    n_ranks = len(_pids(reports))
    return [_gpu_metrics_of(report, n_ranks) for report in reports]


def _gpu_metrics_of(report: Examined, n_ranks: int) -> Answer:
    """Return what a report has of GPU metrics, of `n_ranks` in all reports."""
    n_samples = report.counts.rows[versions.GPU_METRICS]
    if n_samples:
        return Answer(YES, (("samples", n_samples),))
    # Earlier nsys do not know this name; later ones take the earlier name as its beginning.
    version = versions.version_numbers(report.digest.facts.nsys_version)
    option = "--gpu-metrics-devices" if version >= _NSYS_WITH_DEVICES else "--gpu-metrics-device"
    fix = f"capture with nsys profile {option}=all"
    has_nsys_of_its_own = report.n_processes == 1 and len(report.pids) < max(
        n_ranks, report.job.n_ranks or 0
    )
    if has_nsys_of_its_own:
        fix += ONE_NSYS_PER_GPU
    return Answer(NO, text="none recorded", fix=fix)


def _short(text: str) -> str:
    return (
        text
        if len(text) <= _LONGEST_TEXT
        else f"{text[: _LONGEST_TEXT - 1]}\N{HORIZONTAL ELLIPSIS}"
    )


def _pids(reports: Sequence[Examined]) -> list[int]:
    return [pid for report in reports for pid in report.pids]


def _of_a_rank_alone(reports: Sequence[Examined]) -> Answer | None:
    """Return the answer where one rank alone is there of a job that is known to have had more; else None."""
    is_alone = len(_pids(reports)) == 1 and any(report.is_several for report in reports)
    return _lack("ranks-missing", "the other ranks' reports are missing") if is_alone else None


def _ranks(reports: Sequence[Examined], beside: Beside) -> list[Answer]:
    numbered = _numbered(reports, beside)
    without = _lack("no-gpu-activity", "no GPU activity")
    return [numbered if report.pids else without for report in reports]


def _numbered(reports: Sequence[Examined], beside: Beside) -> Answer:
    ranks: Ranks = ranks_or_hosts([report.digest for report in reports])
    processes = one_of_each_process(ranks)
    if beside.rank_map is not None:
        numbers = ranks_by_map(processes, beside.rank_map, beside.sidecars)
        return Answer(YES, text=f"{_of_processes(numbers, len(ranks))}, from --rank-map")
    best = _lack("rank-by-order", "the reports do not identify the ranks", status=PARTLY)
    for source, of_each in rank_sources(processes, beside.sidecars):
        numbers = [number for number in of_each if number is not None]
        if len(numbers) < len(processes):
            continue
        name = _SOURCES.get(source, f"the {source.removeprefix('env:')} environment variable")
        repeated = sorted(number for number, n in Counter(numbers).items() if n > 1)
        if not repeated:
            return Answer(YES, text=f"{_of_processes(numbers, len(ranks))}, from {name}")
        if best.fix != _ONE_RUN:
            text = f"rank {repeated[0]} occurs {numbers.count(repeated[0])} times in {name}"
            best = Answer(PARTLY, text=text, fix=_ONE_RUN)
    if len(processes) > 1:
        return best
    return Answer(
        YES, text="one rank" if len(ranks) == 1 else f"the {len(ranks)} GPUs of the only process"
    )


def _of_processes(numbers: Sequence[int], n_ranks: int) -> str:
    """Return the numbers of ranks that processes of these numbers have."""
    if len(numbers) == n_ranks:
        return shown_ranks(numbers)
    noun = "process" if len(numbers) == 1 else "processes"
    return f"{shown_ranks(range(n_ranks))} on the GPUs of {noun} {shown_ranks(numbers)}"


def _are_shared(reports: Sequence[Examined]) -> bool:
    """Tell whether some process has several devices, so that launchers count fewer than there are ranks."""
    return any(report.n_processes < len(report.pids) for report in reports)


def _world_size(reports: Sequence[Examined], beside: Beside) -> list[Answer]:
    is_shared = _are_shared(reports)
    told = recorded_world_size if is_shared else world_size
    sizes = [told([report.digest], beside.sidecars) for report in reports]
    if not any(sizes):  # a launcher, a log, or gaps in the ranks' numbers
        sizes = [report.job.world_size for report in reports]
    known = sorted({size for size in sizes if size is not None})
    n_ranks = len(_pids(reports))
    n_here = sum(report.n_processes for report in reports)
    here = Answer(YES, text=shown_ranks(known))
    if is_shared:
        here = Answer(
            YES, text=f"{shown_ranks(known)} processes, with {n_ranks} GPUs in these reports"
        )
    if len(known) > 1:
        here = Answer(PARTLY, text=f"{shown_ranks(known)} in different reports", fix=_ONE_RUN)
    elif known and n_here < known[0]:
        here = _lack(
            "ranks-missing", f"{known[0]}, but only {n_here} in these reports", status=PARTLY
        )
    answers = []
    for report, size in zip(reports, sizes, strict=True):
        # Of one nsys around a launcher the environment is the launcher's, which does not have it.
        fix = NSYS_OF_EACH if report.n_processes > 1 else _UNDER_TORCHRUN
        answers.append(
            Answer(NO, text="WORLD_SIZE was not recorded", fix=fix) if size is None else here
        )
    return answers


def _one_clock(reports: Sequence[Examined], _: Beside) -> list[Answer]:
    hosts = {report.digest.facts.host for report in reports if report.digest.facts.host}
    text = "from session start times" if len(reports) > 1 else "from the session start time"
    if len(hosts) > 1:
        text += f" of {len(hosts)} hosts, which may have different clocks"
    sizes = {world_size([report.digest]) or report.job.world_size or 0 for report in reports}
    if _are_shared(reports):
        sizes = {report.job.n_ranks or 0 for report in reports}
    there = _of_a_rank_alone(reports) or Answer(YES, text=text)
    if all(report.sends_nothing for report in reports) and len(reports) == 1:
        there = Answer(YES, text=_ONE_RANK)
    if there.status == YES and len(_pids(reports)) < max(sizes):
        there = _lack(
            "ranks-missing",
            "waiting is unknown for communication with missing ranks",
            status=PARTLY,
        )
    elif there.status == YES and any(report.hides_comm for report in reports):
        there = _lack("comm-in-graphs", "communication inside CUDA graphs is not visible")
    elif there.status == YES and any(report.lacks_groups for report in reports):
        there = _lack(
            "groups-not-named", f"{text}, but the process groups are unknown", status=PARTLY
        )
    absent = _lack("no-session-start", "no session start")
    return [
        absent if report.digest.facts.session_start_utc_ns is None else there for report in reports
    ]


def _link(reports: Sequence[Examined], beside: Beside) -> list[Answer]:
    sizes = {world_size([report.digest]) for report in reports}
    if _are_shared(reports):
        sizes |= {report.job.n_ranks for report in reports}
    known = sizes - {None}
    # A report alone that communicates may be one of many, unless it says how many there are.
    is_told = bool(known) or not any(report.n_comm for report in reports)
    is_one_rank = {len(_pids(reports)), *known} == {1} and is_told
    answer = Answer(YES, text="one rank") if is_one_rank else _known_link(reports, beside, sizes)
    if answer.status != NO:
        answer = _of_a_rank_alone(reports) or answer
    return [answer] * len(reports)


def _known_link(reports: Sequence[Examined], beside: Beside, sizes: set[int | None]) -> Answer:
    log = beside.log
    topology = beside.topology
    pids = _pids(reports)
    if log is None and topology is None:
        fix = f"{_log_fix(reports)}. Also {_TOPOLOGY}"
        return Answer(
            NO,
            text="no NCCL log and no topology file was passed or lies next to the reports",
            fix=fix,
        )
    if log is not None and log.of_run(pids, {len(pids), *sizes}) is None:
        return _lack("log-of-another-run", "the NCCL log is of another run")
    # Which GPU a process without a log has its rank says.
    ranks: Ranks = ranks_or_hosts([report.digest for report in reports])
    numbers = number_by_name(ranks, beside.sidecars).numbers if log and log.communicators else ()
    alone = [(number, ranks[at]) for at, number in enumerate(numbers) if ranks[at].is_alone]
    local_ranks = {number: rank.report.facts.number("LOCAL_RANK") for number, rank in alone}
    if _are_shared(reports):
        local_ranks = {
            number: rank.process.device_id for number, rank in zip(numbers, ranks, strict=False)
        }
    rows, _ = links(log, topology, pids=pids, local_ranks=local_ranks)
    link = slowest(rows)
    if link is not None:
        # Direct access is over NVLink or PCIe, which the topology tells.
        unclear = {"p2p", "unknown"}.intersection(rows["kind"].to_pylist())
        if not unclear:
            return Answer(YES, text=link.text)
        text = f"{link.text}, {link.edges}" if link.n_unknown else link.text
        fixes = [_ALL_LOGS] * link.is_unlogged + [_TOPOLOGY] * (
            "p2p" in unclear and topology is None
        )
        return Answer(PARTLY, text=text, fix=". Also ".join(fixes) or _LOG)
    if topology is None:
        return Answer(
            PARTLY, text="the log does not show what NCCL uses", fix=f"{_LOG}. Also {_TOPOLOGY}"
        )
    gpus = {f"GPU{index}" for index in topology.gpus}
    paths = sorted({path for ends, path in topology.paths.items() if gpus.issuperset(ends)})
    text = f"the GPUs are connected by {', '.join(paths)}" if paths else "a topology of one GPU"
    return Answer(
        PARTLY, text=f"{text}, but no NCCL log shows what NCCL uses", fix=_log_fix(reports)
    )


def _log_fix(reports: Sequence[Examined]) -> str:
    """Return how to come by NCCL's log: where the run was told to write one, it is there."""
    environments = [report.digest.facts.environment or {} for report in reports]
    return LOG_WRITTEN if all(writes_log(environment) for environment in environments) else _LOG


class Question(Struct, frozen=True):
    """One question: name, what it answers, what each report has for it, and whether nsyspipe answers it itself."""

    name: str
    answers: str
    judge: Callable[[Sequence[Examined], Beside], list[Answer]]
    is_used: bool = True


def _each(judge: Callable[[Examined], Answer]) -> Callable[..., list[Answer]]:
    return lambda reports, _: [judge(report) for report in reports]


def _counted(
    count: Callable[[Examined], int], noun: str, fix: str | None = None, text: str = "none recorded"
) -> Callable[..., list[Answer]]:
    return _each(
        lambda report: (
            Answer(YES, ((noun, n),)) if (n := count(report)) else Answer(NO, text=text, fix=fix)
        )
    )


def _rows(table: str, noun: str, flag: str | None = None) -> Callable[..., list[Answer]]:
    return _counted(
        lambda report: report.counts.rows[table], noun, flag and f"capture with nsys profile {flag}"
    )


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
    Question("os_runtime", "system calls that block the CPU", _SYSTEM_CALLS, is_used=False),
    Question("cpu_samples", "which CPU code runs", _CPU_SAMPLES, is_used=False),
    Question("gpu_metrics", "utilization of GPU units and links", _gpu_metrics, is_used=False),
)
