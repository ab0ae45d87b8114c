"""What one report can answer: a rule per question, and the flag that would add what is not there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.slowdown import LEAST_COMPARED, compared_share
from nsyspipe.findings.comm_slows_compute import LEAST_OVERLAP_SHARE, LESS_HIDDEN
from nsyspipe.model.names import PHASES, phase_of
from nsyspipe.model.problems import CATALOGUE, SIZE_GAPS, TRACE_NVTX
from nsyspipe.reader import report as versions
from nsyspipe.run.sidecars import Captured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsyspipe.model.fabric import NcclLog, Topology
    from nsyspipe.model.options import Reading
    from nsyspipe.reader.metadata import Counts, ReportFacts
    from nsyspipe.run.gather import ReportDigest


YES, PARTLY, NO = "yes", "partly", "no"

_SHOWN_FAMILIES, _LONGEST_TEXT = 3, 32
_MIN_STEPS = 2
# The range that our own captures begin and end with.
_CAPTURE_RANGE = "nsyspipe.capture"


@dataclass(frozen=True)
class Finding:
    """What one report has for one question."""

    status: str
    # How many there are of what; counts of several reports add up
    counts: tuple[tuple[str, int], ...] = ()
    text: str = ""  # what was found, in words; shown without counts
    fix: str | None = None


@dataclass(frozen=True)
class Beside:
    """What lies beside the reports; None is "neither given nor named by a sidecar"."""

    rank_map: Mapping[str, int] | None = None
    log: NcclLog | None = None
    topology: Topology | None = None
    captured: Captured = field(default_factory=Captured)


@dataclass(frozen=True)
class Examined:
    """What one report holds, and what the analysis makes of it."""

    digest: ReportDigest
    counts: Counts
    reading: Reading
    family: str | None  # the steps' family; None where the analysis finds no steps
    # Whether no report has device activity, so that the processes with steps stand for ranks
    is_host_only: bool
    is_several: bool = False  # whether there are several ranks, here or elsewhere

    @property
    def facts(self) -> ReportFacts:
        """The report's facts."""
        return self.digest.facts

    @property
    def rows(self) -> Mapping[str, int]:
        """Rows by table; 0 for a table that is absent."""
        return self.counts.rows

    @property
    def pids(self) -> list[int]:
        """The processes that are ranks."""
        digest = self.digest
        ranks = digest.hosts_with_steps if self.is_host_only else digest.processes
        return [one.pid for one in ranks]

    @property
    def families(self) -> list[tuple[str, int]]:
        """The users' ranges that no step pattern names: texts with digits as ``#`` and how many, most time first."""
        return [one for one in self.digest.families if one[0] != _CAPTURE_RANGE]

    @property
    def n_comm(self) -> int:
        """Kernels that communicate."""
        return sum(one.n_comm or 0 for one in self.digest.processes)

    @property
    def n_members(self) -> int:
        """Step ranges of all processes that have windows; of a report without device activity all of them."""
        if self.family is None:
            return 0
        ranks = [one.members for one in self.digest.processes if one.windows.num_rows]
        hosts = [one.members for one in self.digest.hosts]
        return sum(one.num_rows for one in (*ranks, *hosts))

    @property
    def codes(self) -> set[str]:
        """The problems that the analysis has with the report alone."""
        return {one.code for one in self.digest.problems}

    @property
    def hides_comm(self) -> bool:
        """Whether CUDA graphs that were captured as a whole may hold communication."""
        is_used = self.is_several or self.digest.has_communication
        return bool(self.digest.n_graphs) and is_used


@dataclass(frozen=True)
class Rule:
    """One question, and what each report has for it."""

    name: str
    answers: str
    judge: Callable[[Sequence[Examined], Beside], list[Finding]]
    is_used: bool = True  # whether nsyspipe answers it; the others are for a look in Nsight Systems


def _each(judge: Callable[[Examined], Finding]) -> Callable[..., list[Finding]]:
    """Return a rule that looks at each report by itself."""
    return lambda reports, _: [judge(one) for one in reports]


def lack(code: str, text: str = "", counts: tuple[tuple[str, int], ...] = (), *, status: str = NO) -> Finding:  # fmt: skip
    """Return what lacks something that a problem of the catalogue tells how to mend."""
    return Finding(status, counts, text, CATALOGUE[code].fix)


# What one report has.


def _steps(report: Examined) -> Finding:
    """Tell which ranges the analysis takes for the steps of this report, and what others there are."""
    n_named = report.digest.n_named_steps
    if not report.rows[versions.NVTX]:
        return lack("no-nvtx", "NVTX ranges were not recorded")
    if not report.families and not n_named:
        return lack("no-steps", "no NVTX range but libraries' own")
    others = [one for one in report.families if one[0] != report.family]
    shown = tuple((_short(text), n) for text, n in others[:_SHOWN_FAMILIES])
    step = report.reading.step
    n_steps = report.n_members if step is None else (n_named or 0) * bool(report.n_members)
    if not n_steps and step is not None:
        unmatched = "leave --step out, or let it match one of the ranges that there are"
        return Finding(NO, ((f"match --step {_short(step.pattern)!r}", 0), *shown), fix=unmatched)
    if report.family is None or not n_steps:
        is_asked = report.reading.is_capture
        fix = "leave --step none out" if is_asked else CATALOGUE["no-steps"].fix
        return Finding(NO, shown, fix=fix)
    if step is not None:
        counts: tuple[tuple[str, int], ...] = ((f"match --step {_short(step.pattern)!r}", n_steps),)
    else:
        counts = ((_short(report.family), n_steps), *shown[: _SHOWN_FAMILIES - 1])
    if n_steps < _MIN_STEPS:
        return lack("no-complete-step", counts=counts, status=PARTLY)
    return Finding(YES, counts)


def phase_counts(report: Examined) -> tuple[tuple[str, int], ...]:
    """Return how many ranges are named like each phase; the steps themselves are none."""
    n_of = dict.fromkeys(PHASES, 0)
    for text, n in report.families:
        phase = phase_of(text, report.reading.phases)
        if phase is not None and text != report.family:
            n_of[phase] += n
    return tuple((phase, n) for phase, n in n_of.items() if n)


def _phases(report: Examined) -> Finding:
    if not report.counts.n_launches:
        return lack("no-launches", "API calls were not recorded")
    counts = phase_counts(report)
    has_backward = "backward" in dict(counts)
    if report.family is not None and "no-backward" not in report.codes and has_backward:
        return Finding(YES, counts)
    text = "" if counts else "no NVTX range is named like a phase"
    code = "no-steps" if has_backward else "no-backward"
    return lack(code, text, counts, status=PARTLY if counts else NO)


def _kernels(report: Examined) -> Finding:
    n_kernels = report.rows[versions.KERNEL]
    if not n_kernels:
        return _no_kernel(report)
    if not report.rows[versions.STRINGS]:
        return lack("no-kernel-names", "no kernel has a name")
    whose = "of them NCCL's" if report.reading.comm_kernel is None else "of them communication"
    counts = (("kernels", n_kernels), (whose, report.n_comm))
    if report.hides_comm:
        return lack("comm-in-graphs", counts=counts, status=PARTLY)
    if not report.n_comm and report.is_several:
        return lack("no-comm-kernels", counts=counts, status=PARTLY)
    return Finding(YES, counts)


def _no_kernel(report: Examined) -> Finding:
    if report.rows[versions.GRAPH]:
        text = "CUDA graphs as a whole, no kernel of its own"
        return lack("graphs-as-a-whole", text, status=PARTLY)
    if "no-kernels" in report.codes:
        return lack("no-kernels", "kernels were launched, but not recorded")
    return lack("no-gpu-activity", "no kernel")


def _launches(report: Examined) -> Finding:
    if n_launches := report.counts.n_launches:
        return Finding(YES, (("API calls", n_launches),))
    return lack("no-launches", "API calls were not recorded")


def _copies(report: Examined) -> Finding:
    kinds = {"no-memcpy": ("copies", versions.MEMCPY), "no-memset": ("memsets", versions.MEMSET)}
    lacking = [noun for code, (noun, _) in kinds.items() if code in report.codes]
    if lacking:
        status = NO if len(lacking) == len(kinds) else PARTLY
        return lack("no-memcpy", f"not recorded: {', '.join(lacking)}", status=status)
    counts = tuple((noun, report.rows[table]) for noun, table in kinds.values())
    if report.digest.n_graphs:
        text = "those inside CUDA graphs as a whole are not seen"
        return lack("graphs-as-a-whole", text, counts, status=PARTLY)
    return Finding(YES, counts)


def _gpu_model(report: Examined) -> Finding:
    names = sorted(set(report.facts.gpu_names.values()))
    if not names:
        return lack("no-kernels", "not recorded")
    return Finding(YES, text=", ".join(map(_short, names)))


def _nccl_ranges(report: Examined) -> Finding:
    if n_ranges := report.digest.n_nccl_ranges:
        return Finding(YES, (("ranges", n_ranges),))
    return Finding(NO, text="none recorded", fix=TRACE_NVTX)


def _message_bytes(report: Examined) -> Finding:
    """Tell whether calls say their sizes; what is lacking is what the analysis says."""
    digest = report.digest
    if digest.size_gap is None:
        return Finding(YES, (("calls with their size", digest.n_message_bytes),))
    text, fix = SIZE_GAPS[digest.size_gap]
    return Finding(NO, text=text, fix=fix)


def _idle_causes(report: Examined) -> Finding:
    waits = ("waits", report.rows[versions.SYNCHRONIZATION])
    if n_calls := report.counts.n_timed_calls:
        return Finding(YES, (("timed calls", n_calls), waits))
    if waits[1]:
        return lack("no-launches", counts=(waits,), status=PARTLY)
    return lack("no-launches", "API calls were not recorded")


def _compared(report: Examined) -> float | None:
    """Return how much of the kernel time beside communication has equals without it; None where there is too little."""
    ranks = report.digest.processes
    windows = [one.windows for one in ranks if one.windows.num_rows]
    overlap, walls = 0, 0
    for one in windows:
        overlap += pc.sum(one["overlap_compute_ns"]).as_py() or 0
        walls += pc.sum(pc.subtract(one["end_ns"], one["start_ns"])).as_py()
    if not overlap or overlap < LEAST_OVERLAP_SHARE * walls:
        return None
    names = ("slowed_ns", "overlapped_ns", "n_kernels")
    tables = [
        one.kernels.select(names).append_column("rank", pa.repeat(rank, one.kernels.num_rows))
        for rank, one in enumerate(ranks)
    ]
    return compared_share(pa.concat_tables(tables))


def _kernel_shapes(report: Examined) -> Finding:
    has_kernels = bool(report.rows[versions.KERNEL])
    if report.counts.has_shapes and has_kernels:
        share = _compared(report)
        if share is None or share >= LEAST_COMPARED:
            return Finding(YES, text="grid and block of every kernel")
        text = f"only {100 * share:.1f} % of the kernel time beside it has equal kernels without it"
        return Finding(NO, text=text, fix=LESS_HIDDEN)
    if report.rows[versions.GRAPH] and not has_kernels:
        return lack("graphs-as-a-whole", "not known inside CUDA graphs as a whole")
    return lack("no-kernels", "not recorded")


def _cuda_graphs(report: Examined) -> Finding:
    n_whole = report.rows[versions.GRAPH]
    nouns = (("graphs as a whole", n_whole), ("kernels inside", report.counts.n_graph_kernels))
    counts = tuple((noun, n) for noun, n in nouns if n)
    if n_whole:
        return lack("graphs-as-a-whole", counts=counts, status=PARTLY)
    return Finding(YES, counts, "no CUDA graph ran")


def _table(table: str, noun: str, flag: str | None = None) -> Callable[..., list[Finding]]:
    """Return a rule for what is there if its table has rows, and the flag of nsys that adds them."""
    fix = f"capture with nsys profile {flag}" if flag else None

    def judge(report: Examined) -> Finding:
        if n := report.rows[table]:
            return Finding(YES, ((noun, n),))
        return Finding(NO, text="none recorded", fix=fix)

    return _each(judge)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}\N{HORIZONTAL ELLIPSIS}"


_SAMPLES, _METRICS = "--sample=process-tree", "--gpu-metrics-devices=all"
# What analysis rests on; what is known only from all reports together stands between the two.
EVENT_RULES = (
    Rule("steps", "time per step", _each(_steps)),
    Rule("phases", "overlap with backward, cost by phase", _each(_phases)),
    Rule("compute_and_comm", "where the time goes, overlap", _each(_kernels)),
    Rule("launches", "which step launched what", _each(_launches)),
    Rule("copies", "gradient copies and others", _each(_copies)),
)
DETAIL_RULES = (
    Rule("gpu_model", "which GPU each rank ran on", _each(_gpu_model)),
    Rule("nccl_ranges", "which collective each call was", _each(_nccl_ranges)),
    Rule("message_bytes", "bytes and bandwidth of collectives", _each(_message_bytes)),
    Rule("idle_causes", "why the GPU idles", _each(_idle_causes)),
    Rule("kernel_shapes", "kernels slower beside communication", _each(_kernel_shapes)),
    Rule("cuda_graphs", "communication inside CUDA graphs", _each(_cuda_graphs)),
    Rule("profiler_overhead", "what the capture itself cost", _table(versions.OVERHEAD, "pauses")),
    Rule(
        "os_runtime",
        "system calls the host waits in",
        _table(versions.OS_RUNTIME, "calls", "--trace=cuda,nvtx,osrt"),
        is_used=False,
    ),
    Rule("cpu_samples", "which host code runs", _table(versions.CPU_SAMPLES, "samples", _SAMPLES), is_used=False),
    Rule(
        "gpu_metrics",
        "how busy GPU units and links are",
        _table(versions.GPU_METRICS, "samples", _METRICS),
        is_used=False,
    ),
)
