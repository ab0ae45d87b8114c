"""What one report can answer: a rule per question, and the flag that would add what is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.slowdown import LEAST_COMPARED, compared_share
from nsyspipe.findings.comm_slows_compute import LEAST_OVERLAP_SHARE, LESS_HIDDEN
from nsyspipe.model.names import PHASES, phase_of
from nsyspipe.model.problems import CATALOGUE, SIZE_GAPS, TRACE_NVTX
from nsyspipe.reader import report as versions
from nsyspipe.reader.contents import Contents

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsyspipe.run.gather import ReportDigest


YES, PARTLY, NO = "yes", "partly", "no"

_SHOWN_FAMILIES, _LONGEST_TEXT = 3, 32
_MIN_STEPS = 2


@dataclass(frozen=True)
class Finding:
    """What one report has for one question.

    Attributes
    ----------
    counts
        How many there are of what; counts of several reports add up.
    text
        What was found, in words; shown without counts.
    """

    status: str
    counts: tuple[tuple[str, int], ...] = ()
    text: str = ""
    fix: str | None = None


@dataclass(frozen=True)
class Examined(Contents):
    """What one report holds, and what the analysis decides of it.

    Attributes
    ----------
    digest
        As the analysis has it.
    family
        The steps' family; None where the analysis finds no steps.
    is_several
        Whether there are several ranks, here or elsewhere.
    """

    digest: ReportDigest
    family: str | None
    is_several: bool

    @property
    def n_members(self) -> int:
        """Step ranges of all processes that have windows; of a report without device activity all of them."""
        if self.family is None:
            return 0
        digest = self.digest
        ranks = [one.members for one in digest.processes if one.windows.num_rows]
        return sum(one.num_rows for one in (*ranks, *(host.members for host in digest.hosts)))

    @property
    def codes(self) -> set[str]:
        """The problems that the analysis has with the report alone."""
        return {one.code for one in self.digest.problems}


@dataclass(frozen=True)
class Rule:
    """One question.

    Attributes
    ----------
    is_used
        Whether nsyspipe answers it; the others are for a look in Nsight Systems.
    """

    name: str
    answers: str
    judge: Callable[[Examined], Finding]
    is_used: bool = True


def _fix(code: str) -> str | None:
    return CATALOGUE[code].fix


def _steps(report: Examined) -> Finding:
    """Tell which ranges the analysis takes for the steps of this report, and what others there are."""
    if not report.rows[versions.NVTX]:
        return Finding(NO, text="NVTX ranges were not recorded", fix=_fix("no-nvtx"))
    if not report.families and not report.n_steps:
        return Finding(NO, text="no NVTX range but libraries' own", fix=_fix("no-steps"))
    others = [one for one in report.families if one[0] != report.family]
    shown = tuple((_short(text), n) for text, n in others[:_SHOWN_FAMILIES])
    if report.reading.step is not None:
        n_steps = (report.n_steps or 0) if report.n_members else 0
        return _named_steps(report.reading.step.pattern, n_steps, shown)
    if report.family is None or not report.n_members:
        is_asked = report.reading.is_capture
        return Finding(NO, shown, fix="leave --step none out" if is_asked else _fix("no-steps"))
    shown = ((_short(report.family), report.n_members), *shown[: _SHOWN_FAMILIES - 1])
    if report.n_members < _MIN_STEPS:
        return Finding(PARTLY, shown, fix=_fix("no-complete-step"))
    return Finding(YES, shown)


def _named_steps(pattern: str, n_steps: int, others: tuple[tuple[str, int], ...]) -> Finding:
    """Tell whether the ranges that the user named are steps; if there are none, what else there is."""
    matching = (f"match --step {_short(pattern)!r}", n_steps)
    if not n_steps:
        fix = "leave --step out, or let it match one of the ranges that there are"
        return Finding(NO, (matching, *others), fix=fix)
    if n_steps < _MIN_STEPS:
        return Finding(PARTLY, (matching,), fix=_fix("no-complete-step"))
    return Finding(YES, (matching,))


def phase_counts(report: Examined) -> tuple[tuple[str, int], ...]:
    """Return how many ranges are named like each phase; the steps themselves are none."""
    n_of = dict.fromkeys(PHASES, 0)
    for text, n in report.families:
        phase = phase_of(text, report.reading.phases)
        if phase is not None and text != report.family:
            n_of[phase] += n
    return tuple((phase, n) for phase, n in n_of.items() if n)


def _phases(report: Examined) -> Finding:
    if not report.n_launches:
        return Finding(NO, text="API calls were not recorded", fix=_fix("no-launches"))
    counts = phase_counts(report)
    if (
        report.family is not None
        and "no-backward" not in report.codes
        and "backward" in dict(counts)
    ):
        return Finding(YES, counts)
    text = "" if counts else "no NVTX range is named like a phase"
    fix = _fix("no-steps" if "backward" in dict(counts) else "no-backward")
    return Finding(PARTLY if counts else NO, counts, text, fix)


def _kernels(report: Examined) -> Finding:
    n_kernels = report.rows[versions.KERNEL]
    if not n_kernels and report.rows[versions.GRAPH]:
        text = "CUDA graphs as a whole, no kernel of its own"
        return Finding(PARTLY, text=text, fix=_fix("graphs-as-a-whole"))
    if not n_kernels:
        launched = report.n_device_calls[versions.KERNEL] > 0
        text = "kernels were launched, but not recorded" if launched else "no kernel"
        return Finding(NO, text=text, fix=_fix("no-kernels" if launched else "no-gpu-activity"))
    whose = "of them NCCL's" if report.reading.comm_kernel is None else "of them communication"
    counts = (("kernels", n_kernels), (whose, report.n_comm))
    if not report.rows[versions.STRINGS]:
        return Finding(NO, text="no kernel has a name", fix=_fix("no-kernel-names"))
    if report.digest.n_graphs and (report.is_several or report.digest.has_communication):
        return Finding(PARTLY, counts, fix=_fix("comm-in-graphs"))
    if not report.n_comm and report.is_several:
        return Finding(PARTLY, counts, fix=_fix("no-comm-kernels"))
    return Finding(YES, counts)


def _launches(report: Contents) -> Finding:
    if not report.n_launches:
        return Finding(NO, text="API calls were not recorded", fix=_fix("no-launches"))
    return Finding(YES, (("API calls", report.n_launches),))


def _copies(report: Examined) -> Finding:
    kinds = {
        "no-memcpy": ("copies", versions.MEMCPY),
        "no-memset": ("memsets", versions.MEMSET),
    }
    lacking = [noun for code, (noun, _) in kinds.items() if code in report.codes]
    if not lacking:
        counts = tuple((noun, report.rows[table]) for noun, table in kinds.values())
        if report.digest.n_graphs:
            text = "those inside CUDA graphs as a whole are not seen"
            return Finding(PARTLY, counts, text, _fix("graphs-as-a-whole"))
        return Finding(YES, counts)
    text = f"not recorded: {', '.join(lacking)}"
    return Finding(NO if len(lacking) == len(kinds) else PARTLY, (), text, _fix("no-memcpy"))


def _gpu_model(report: Contents) -> Finding:
    names = sorted(set(report.facts.gpu_names.values()))
    if not names:
        return Finding(NO, text="not recorded", fix=_fix("no-kernels"))
    return Finding(YES, text=", ".join(map(_short, names)))


def _nccl_ranges(report: Contents) -> Finding:
    if report.n_nccl_ranges:
        return Finding(YES, (("ranges", report.n_nccl_ranges),))
    return Finding(NO, text="none recorded", fix=TRACE_NVTX)


def _message_bytes(report: Examined) -> Finding:
    """Tell whether calls say their sizes; what is lacking is what the analysis says."""
    if report.digest.size_gap is None:
        return Finding(YES, (("calls with their size", report.n_message_bytes),))
    text, fix = SIZE_GAPS[report.digest.size_gap]
    return Finding(NO, text=text, fix=fix)


def _idle_causes(report: Contents) -> Finding:
    waits = ("waits", report.rows[versions.SYNCHRONIZATION])
    if report.n_timed_calls:
        return Finding(YES, (("timed calls", report.n_timed_calls), waits))
    if waits[1]:
        return Finding(PARTLY, (waits,), fix=_fix("no-launches"))
    return Finding(NO, text="API calls were not recorded", fix=_fix("no-launches"))


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
    if report.has_shapes and report.rows[versions.KERNEL]:
        share = _compared(report)
        if share is not None and share < LEAST_COMPARED:
            text = f"only {100 * share:.1f} % of the kernel time beside it has equal kernels without it"
            return Finding(NO, text=text, fix=LESS_HIDDEN)
    if report.has_shapes and report.rows[versions.KERNEL]:
        return Finding(YES, text="grid and block of every kernel")
    if report.rows[versions.GRAPH] and not report.rows[versions.KERNEL]:
        text = "not known inside CUDA graphs as a whole"
        return Finding(NO, text=text, fix=_fix("graphs-as-a-whole"))
    return Finding(NO, text="not recorded", fix=_fix("no-kernels"))


def _cuda_graphs(report: Contents) -> Finding:
    n_whole = report.rows[versions.GRAPH]
    counts = tuple(
        (noun, n)
        for noun, n in (("graphs as a whole", n_whole), ("kernels inside", report.n_graph_kernels))
        if n
    )
    if n_whole:
        return Finding(PARTLY, counts, fix=_fix("graphs-as-a-whole"))
    return Finding(YES, counts, "no CUDA graph ran")


def _table(table: str, noun: str, flag: str | None = None) -> Callable[[Contents], Finding]:
    """Return a rule for what is there if its table has rows, and the flag of nsys that adds them."""

    def judge(report: Contents) -> Finding:
        if n := report.rows[table]:
            return Finding(YES, ((noun, n),))
        fix = f"capture with nsys profile {flag}" if flag else None
        return Finding(NO, text="none recorded", fix=fix)

    return judge


def _short(text: str) -> str:
    return (
        text
        if len(text) <= _LONGEST_TEXT
        else f"{text[: _LONGEST_TEXT - 1]}\N{HORIZONTAL ELLIPSIS}"
    )


# What analysis rests on; what is known only from all reports together stands between the two.
EVENT_RULES = (
    Rule("steps", "time per step", _steps),
    Rule("phases", "overlap with backward, cost by phase", _phases),
    Rule("compute_and_comm", "where the time goes, overlap", _kernels),
    Rule("launches", "which step launched what", _launches),
    Rule("copies", "gradient copies and others", _copies),
)
DETAIL_RULES = (
    Rule("gpu_model", "which GPU each rank ran on", _gpu_model),
    Rule("nccl_ranges", "which collective each call was", _nccl_ranges),
    Rule("message_bytes", "bytes and bandwidth of collectives", _message_bytes),
    Rule("idle_causes", "why the GPU idles", _idle_causes),
    Rule("kernel_shapes", "kernels slower beside communication", _kernel_shapes),
    Rule("cuda_graphs", "communication inside CUDA graphs", _cuda_graphs),
    Rule("profiler_overhead", "what the capture itself cost", _table(versions.OVERHEAD, "pauses")),
    Rule(
        "os_runtime",
        "system calls the host waits in",
        _table(versions.OS_RUNTIME, "calls", "--trace=cuda,nvtx,osrt"),
        is_used=False,
    ),
    Rule(
        "cpu_samples",
        "which host code runs",
        _table(versions.CPU_SAMPLES, "samples", "--sample=process-tree"),
        is_used=False,
    ),
    Rule(
        "gpu_metrics",
        "how busy GPU units and links are",
        _table(versions.GPU_METRICS, "samples", "--gpu-metrics-devices=all"),
        is_used=False,
    ),
)
