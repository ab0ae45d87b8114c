"""A run in words, whatever the format: subject, link, steps, phases, idle causes, problems."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.counted_steps import CountedMeans, counted_bus, counted_means
from nsyspipe.analysis.summary import (
    MUCH_RATIO,
    divided,
    fastest_and_slowest,
    host_medians,
    longest_between,
    uneven_backward,
)
from nsyspipe.errors import shortened
from nsyspipe.findings.judge import CAUSES
from nsyspipe.model.captured import RunCapture
from nsyspipe.model.figures import CLOCK_LABEL, COUNTERS, FIGURES
from nsyspipe.model.names import (
    LONGEST_CALL,
    counted,
    few,
    grouped,
    listed,
    noun_for,
    printable,
    ranges,
)
from nsyspipe.model.problems import BACKWARD_SOURCES, EXPORT_AGAIN, OF_FILES_BESIDE
from nsyspipe.model.schema import IDLE_CAUSES, PHASE_TIMES
from nsyspipe.model.typed_tables import (
    CountersColumn,
    HostStepsTable,
    PhasesTable,
    StepsTable,
)
from nsyspipe.report.units import (
    bandwidth_text,
    delta_text,
    metric_label,
    ms_text,
    percent_text,
    upper_first,
)
from nsyspipe.run.work import has_whole_graphs

if TYPE_CHECKING:
    from nsyspipe.analysis.links import LinkVerdict, SlowestLink
    from nsyspipe.analysis.summary import Evenness, HostFigures
    from nsyspipe.run.run import Run, RunHeader

# Three lines of a terminal, less some characters because lines break between words.
_MAX_LINK_CHARACTERS = 285
_COMMIT_DIGITS = 10
_MAX_COMMAND_CHARACTERS = 500
# More hosts are counted, not named.
_MAX_NAMED_HOSTS = 2
# Steps that alternate between two levels have this period.
_ALTERNATING = 2
_ORDINALS = dict(
    enumerate(["third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"], start=3)
)
# Two times differ visibly by this share, because times have four digits and shares three.
MIN_VISIBLE_DIFFERENCE = 0.002
# What causes of idle time are called in sentences.
IDLE_PHRASES = {
    "input": "idle time for data loading",
    "launch": "idle time for late launches",
    "blocked": "idle time while the CPU is blocked",
    "dependency": "idle time for stream dependencies or launch latency",
    "unknown": "idle time without a recorded launch",
}
NVLINK_THERE = "NVLink connects all of the GPUs"
WITHOUT_END = "without an end"
STEPS_BY_PATTERN = "steps found by launch pattern"
Row: TypeAlias = "Mapping[str, Any]"
_DIGITS = re.compile(r"\d+")
# So many problems of reports that differ only in numbers are shown. If there are more, only the
# first of them is shown.
_MAX_SIMILAR_PROBLEMS = 4
_NOT_JUDGED = re.compile(r"skipped checks: (?P<rules>[a-z-]+(, [a-z-]+)*) \((?P<reason>.*)\)")
# If more rules could not be judged for one reason, they are counted, not named.
_MAX_NAMED_RULES = 5
_ABOUT_COMM = {*CAUSES["communication and late ranks"], *CAUSES["communication that slows compute"]}
# Of the step time: less idle time is not named, and no smaller cause of it.
_MIN_IDLE_SHARE = 0.02
_MIN_CAUSE_SHARE = 0.001
# CPU times vary from step to step, so times of 0.01 to 10 ms are shown with two decimals.
_TWO_DECIMALS_NS = range(10_000, 10_000_000)
_WAITING = "There ranks wait for each other:"
# Of communication. If a larger share runs on the stream of compute, this is said.
_MIN_SHARE_ON_COMPUTE_STREAM = 0.1
_PHASE_WORDS = {
    "host_ns": "CPU time",
    "device_ns": "GPU time, with wait time",
    "compute_ns": "compute",
    "comm_ns": "communication",
    "exposed_comm_ns": "exposed communication",
    "idle_ns": "idle before",
}
# Of a step. Smaller differences of a phase between ranks are not shown.
_MIN_PHASE_DIFFERENCE_SHARE = 0.1
STEP_ENDS = "On the GPU a step ends where the first kernel of the next step begins."
IDLE_BEFORE = "Idle time before a kernel counts in the phase of this kernel."
WHERE_STEPS_END = f"{STEP_ENDS} {IDLE_BEFORE}"
WHERE_STEPS_END_WITH_COPIES = (
    f"{WHERE_STEPS_END} Copies of the next batch run before the first kernel of the next step, so "
    "they count in the step before."
)
_MORE_ON_HOST = "The CPU times of the phases sum to more than the step on the GPU, because"
HOST_AHEAD = f"{_MORE_ON_HOST} the CPU runs ahead and may wait for the GPU in other steps."
HOST_NOT_AHEAD = f"{_MORE_ON_HOST} phases are nested, or the CPU takes longer than the GPU."
# Of a step. If the CPU times of the phases sum to more, the reason is given.
_MAX_HOST_SHARE_OF_STEP = 1.02
# Of a step. A CPU that runs ahead by more waits for GPU work of earlier steps.
_MIN_AHEAD_SHARE_OF_STEP = 0.1


class Trouble(NamedTuple):
    """A problem in words."""

    severity: str
    message: str
    # The ranks or the reports that have the problem. Empty if the message needs no place.
    place: str
    fix: str | None


def subject_parts(run: Run, summary: Mapping[str, Any]) -> list[str]:
    """Return which run it is, how many ranks, the GPUs, and which steps are used.

    Names are as recorded, not escaped.
    """
    header = run.header
    host_steps = run.host_steps()
    # Only a run without ranks has steps on the host.
    if host_steps.num_rows:
        host_parts = _host_parts(run, host_steps)
        return [header.label, *host_parts]
    parts = [header.label, ranks_text(header)]
    parts += header.gpu_names
    if run.is_capture:
        parts.append("a capture without steps")
    elif header.n_ranks:
        parts.append(_steps_part(run, summary))
    return [*parts, *backward_source(run)]


def _host_parts(run: Run, host_steps: HostStepsTable) -> list[str]:
    """Return how many processes and steps a run has that used no GPU."""
    rows = host_steps.to_pylist()
    processes = {(row["report"], row["pid"]) for row in rows}
    world_size = run.header.world_size
    size = counted_of_all(len(processes), world_size, noun="process", plural_ending="es")
    family = _step_family_text(run)
    return [f"{size} without GPU activity", f"{len(rows)} host steps{family}"]


def _steps_part(run: Run, summary: Mapping[str, Any]) -> str:
    """Return how many steps are used, how they were found, and which are left out and why."""
    is_by_pattern = run.header.steps_from == "repetition"
    found_by = f", {STEPS_BY_PATTERN}" if is_by_pattern else _step_family_text(run)
    n_used = summary["n_summary_steps"]
    n_captured = summary["n_steps"]
    text = f"{n_used} of {n_captured} captured steps used{found_by}"
    left_out_texts = []
    for reason, steps in _left_out_steps(run).items():
        if steps:
            numbers = _numbered("step", steps)
            left_out_texts.append(f"{numbers} {reason}")
    if not left_out_texts:
        return text
    return f"{text} ({', '.join(left_out_texts)})"


def _step_family_text(run: Run) -> str:
    """Return the name of the NVTX ranges that are the steps. Empty if no ranges are."""
    return f", ranges {run.step_family!r}" if run.step_family else ""


def _left_out_steps(run: Run) -> dict[str, list[int]]:
    """Return the numbers of the steps that are not used, by the reason in words.

    Each step has one reason. A step that is complete on all ranks that have it, and still not used,
    is missing on some ranks.
    """
    steps = run.steps()
    skipped = {*run.skipped_steps}
    is_incomplete = pc.invert(steps["is_complete"])
    used = _numbers_of(steps.filter(steps["in_summary"]))
    incomplete_on_some_rank = _numbers_of(steps.filter(is_incomplete))
    unused = _numbers_of(steps) - used - skipped
    missing_on_some_rank = unused - incomplete_on_some_rank
    without_end = unused & steps_without_end(steps)
    otherwise_incomplete = unused - missing_on_some_rank - without_end
    return {
        "skipped": sorted(skipped),
        "incomplete": sorted(otherwise_incomplete),
        "without a recorded end": sorted(without_end),
        "not on every rank": sorted(missing_on_some_rank),
    }


def _numbers_of(steps: StepsTable) -> set[int]:
    return {*steps["step"].unique().to_pylist()}


def steps_without_end(steps: StepsTable) -> set[int]:
    """Return the incomplete steps that are the last step of a rank.

    A step ends where the next step begins. So a last step may be whole, but its end is not known.
    """
    steps_of_ranks = steps.group_by("rank", use_threads=False)
    last_steps = steps_of_ranks.aggregate([("step", "max")]).to_pylist()
    last_step_of_rank = {row["rank"]: row["step_max"] for row in last_steps}
    is_incomplete = pc.invert(steps["is_complete"])
    incomplete = steps.filter(is_incomplete).select(["rank", "step"])
    without_end = set()
    for row in incomplete.to_pylist():
        rank = row["rank"]
        if row["step"] == last_step_of_rank[rank]:
            without_end.add(row["step"])
    return without_end


def backward_source(run: Run) -> list[str]:
    """Return how nsyspipe found the backward pass if no range marks it."""
    codes = {row["code"] for row in run.problem_rows}
    sources = BACKWARD_SOURCES.items()
    return [text for code, text in sources if code in codes]


def sources(run: Run) -> list[str]:
    """Return how nsyspipe found steps and the backward pass if no ranges mark them."""
    texts = backward_source(run)
    if run.header.steps_from == "repetition":
        texts.insert(0, STEPS_BY_PATTERN)
    return texts


def hosts_text(run: Run) -> list[str]:
    """Return the hosts of a run, or how many if they are more than two. Empty if not known."""
    hosts = run.header.hosts
    if len(hosts) > _MAX_NAMED_HOSTS:
        return [f"{len(hosts)} hosts"]
    names = " and ".join(hosts)
    return [f"on {names}"] if hosts else []


def ranks_text(header: RunHeader) -> str:
    """Return how many ranks a run has: ``4 ranks``, or ``1 of 4 ranks`` if some are missing.

    If processes have several ranks, the processes are counted too: ``8 ranks on the GPUs of 2
    processes``.
    """
    world_size = header.world_size
    if not header.has_shared_processes:
        return counted_of_all(header.n_ranks, world_size, noun="rank", plural_ending="s")
    n_processes = header.n_processes or 0
    # Here the world size counts processes. If it is smaller than their number, it counts something
    # else, and says nothing of how many there are in all.
    has_missing_processes = n_processes < (world_size or 0)
    n_all_processes = world_size if has_missing_processes else None
    processes = counted_of_all(n_processes, n_all_processes, noun="process", plural_ending="es")
    return f"{header.n_ranks} ranks on the GPUs of {processes}"


def counted_of_all(count: int, n_all: int | None, *, noun: str, plural_ending: str) -> str:
    """Return ``4 ranks``, or ``1 of 4 ranks`` if `count` is not the number of all.

    `n_all` is None if it is not known.
    """
    are_all = n_all is None or count == n_all
    if are_all:
        ending = "" if count == 1 else plural_ending
        return f"{count} {noun}{ending}"
    return f"{count} of {n_all} {noun}{plural_ending}"


def link_text(run: Run) -> str | None:
    """Return the slowest interconnect, its edges, and how much of its bandwidth the run reached.

    The name of the link is shortened so that the text fits three lines. None if no link is known.
    """
    verdict = run.link
    if verdict is None or verdict.slowest is None:
        return None
    link = verdict.slowest
    codes = {row["code"] for row in run.problem_rows}
    source = ", by a log of other processes" if "log-of-other-processes" in codes else ""
    after_name = f", {link.edges}{source}{_bandwidth_part(run, verdict, link)}"
    name = printable(f"Interconnect: {link.text}")
    room = _MAX_LINK_CHARACTERS - len(after_name)
    return f"{shortened(name, room)}{after_name}"


def _bandwidth_part(run: Run, verdict: LinkVerdict, link: SlowestLink) -> str:
    """Return the reached and the peak bandwidth of a link, with a comma in front.

    Empty if neither is known.
    """
    nominal = link.nominal_bytes_per_s
    peak = bandwidth_text(nominal) if nominal else ""
    if verdict.busbw_bytes_per_s is None:
        return f", peak {peak}" if peak else ""
    about = "about " if verdict.is_estimate else ""
    text = f", bus bandwidth {about}{bandwidth_text(verdict.busbw_bytes_per_s)}"
    if peak:
        text += f" of {peak} peak"
    if verdict.is_estimate:
        text += ", estimated from gradient copy sizes"
    counted_bandwidth = counted_text(run)
    if counted_bandwidth:
        text += f", {counted_bandwidth}"
    return text


_LINK_WORDS = {"nvlink": "NVLink", "pcie": "PCIe"}


def counted_text(run: Run) -> str:
    """Return the bus bandwidth that hardware counters show, and its ratio to the derived one.

    The derived bandwidth is from message sizes and times. Empty without counters.
    """
    counters = run.counters()
    if not counters.num_rows:
        return ""
    bus = counted_bus(counters, run.steps(), run.collectives())
    if bus is None:
        return ""
    bandwidth = bandwidth_text(bus.bytes_per_s)
    ratio = f" ({bus.ratio:.2f}x)" if bus.ratio is not None else ""
    return f"counted {bandwidth} on {_LINK_WORDS[bus.link]}{ratio}"


def counter_texts(run: Run) -> list[str]:
    """Return what hardware counters show of the steps in use. Empty without counters."""
    counters = run.counters()
    if not counters.num_rows:
        return []
    means = counted_means(counters, run.steps())
    if means is None:
        return []
    texts = [_counted_means_text(means)]
    bus = counted_bus(counters, run.steps(), run.collectives())
    if bus is not None:
        bandwidth = bandwidth_text(bus.bytes_per_s)
        text = (
            f"Counted bus bandwidth, in transfer time only: {bandwidth} on {_LINK_WORDS[bus.link]}"
        )
        if bus.ratio is not None:
            text += f", {bus.ratio:.2f} x the bus bandwidth from message sizes"
        if bus.link == "pcie":
            text += ". PCIe counts headers of packets and other copies too"
        texts.append(text)
    return texts


def _counted_means_text(counted: CountedMeans) -> str:
    """Return the means of hardware counters: shares of time, bandwidths, and the clock."""
    means = counted.means
    parts = []
    for counter, percent_column in _PERCENT_OF_COUNTER.items():
        percent = means[percent_column]
        label = COUNTERS[counter].label
        if percent is not None:
            parts.append(f"{label} {percent:.1f}%")
    for counter, rate_column in _RATE_OF_COUNTER.items():
        bytes_per_s = means[rate_column]
        label = COUNTERS[counter].label
        # Left out if it is 0 or not known.
        if bytes_per_s:
            parts.append(f"{label} {bandwidth_text(bytes_per_s)}")
    clock_hz = means["gpc_clock_hz"]
    if clock_hz is not None:
        parts.append(f"{CLOCK_LABEL} {clock_hz / 1e6:.0f} MHz")
    figures = ", ".join(parts)
    sampled = percent_text(counted.sampled_ratio)
    return f"Hardware counters, means over the steps (samples cover {sampled}): {figures}"


# Counters that are shown as shares of time, and their columns in percent.
_PERCENT_OF_COUNTER: dict[str, CountersColumn] = {
    "sm_active": "sm_active_percent",
    "tensor_active": "tensor_active_percent",
}
# Counters that are shown as bandwidths. The columns are means over the steps, not over the time of
# communication.
_RATE_OF_COUNTER: dict[str, CountersColumn] = {
    "dram_read": "dram_read_bytes_per_s",
    "dram_write": "dram_write_bytes_per_s",
    "nvlink_rx": "nvlink_rx_bytes_per_s",
    "nvlink_tx": "nvlink_tx_bytes_per_s",
    "pcie_rx": "pcie_rx_bytes_per_s",
    "pcie_tx": "pcie_tx_bytes_per_s",
}


def capture_rows(capture: RunCapture | None) -> list[tuple[str, str]]:
    """Return what sidecars recorded of a capture, as pairs of name and value.

    What was not recorded is left out.
    """
    if capture is None:
        return []
    rows = {
        "command": _command_text(capture),
        "torch": capture.torch_version,
        "NCCL": capture.nccl_version,
        "CUDA": capture.cuda_version,
        "driver": capture.driver_version,
        "program at commit": _commit_text(capture),
    }
    return [(name, value) for name, value in rows.items() if value]


def _command_text(capture: RunCapture) -> str:
    """Return the command that was captured, or the start of a long one. Empty if not recorded."""
    command = shlex.join(capture.command or ())
    if len(command) <= _MAX_COMMAND_CHARACTERS:
        return command
    start = command[:_MAX_COMMAND_CHARACTERS]
    return f"{start} \N{HORIZONTAL ELLIPSIS}"


def _commit_text(capture: RunCapture) -> str | None:
    """Return the commits of a program, and whether its files had uncommitted changes.

    None if no commit was recorded.
    """
    if not capture.git_commit:
        return None
    commits = capture.git_commit.split(", ")
    short_commits = ", ".join(commit[:_COMMIT_DIGITS] for commit in commits)
    changes = " with uncommitted changes" if capture.git_is_dirty else ""
    return f"{short_commits}{changes}"


def steps_used_text(run: Run, n_used: int, n_captured: int) -> str:
    """Return how many captured steps the metrics use, and whether launches mark the steps."""
    is_by_pattern = run.header.steps_from == "repetition"
    source = f", {STEPS_BY_PATTERN}" if is_by_pattern else ""
    used = counted(n_used, "step")
    return f"{used} used of {n_captured} captured{source}"


def captured_versions_text(capture: RunCapture | None) -> str:
    """Return the versions that sidecars recorded of the software. Empty if there are none.

    The version of CUDA is left out.
    """
    rows = capture_rows(capture)
    left_out = {"command", "CUDA"}
    return ", ".join(f"{name} {value}" for name, value in rows if name not in left_out)


def uneven_text(evenness: Evenness) -> str:
    """Return that steps are uneven, with mean and median, and the pattern if there is one.

    The text also says if less than half of the steps are near the median.

    A pattern has two levels of step times. Either the levels alternate, or the rarer level comes
    at a regular period, or the rarer level comes irregularly.
    """
    mean = ms_text(evenness.mean)
    median = ms_text(evenness.median)
    text = f"steps are uneven: mean {mean}, median {median}"
    are_few_near = evenness.n_near < evenness.n_steps / 2
    if evenness.is_median_nobodys:
        text += ", which no step takes"
    elif are_few_near:
        near_steps = f"{evenness.n_near} of {evenness.n_steps} steps"
        text += f", only {near_steps} within 10% of it"
    if evenness.levels is None or evenness.n_long is None:
        # There is no pattern.
        return text
    short, long = map(ms_text, evenness.levels)
    if evenness.period == _ALTERNATING:
        return f"{text}, {short} and {long} in turn"
    if evenness.period is None:
        # The rarer level comes irregularly.
        long_steps = f"{evenness.n_long} of {evenness.n_steps} steps"
        levels = f"two levels, {short} and {long}"
        return f"{text}, {levels} ({long_steps})"
    is_rare_long = evenness.n_long <= evenness.n_steps / 2
    periodic = _periodic_text(evenness.period, short, long, is_rare_long=is_rare_long)
    return f"{text}, {periodic}"


def uneven_sentence(evenness: Evenness) -> str:
    """Return that steps are uneven, with their pattern.

    The pattern is as in `uneven_text`. Without a pattern, the sentence has the mean and the median
    of the steps.
    """
    if evenness.levels is None or evenness.n_long is None:
        mean = ms_text(evenness.mean)
        median = ms_text(evenness.median)
        return f"Steps are uneven: their mean is {mean}, and their median is {median}."
    short, long = map(ms_text, evenness.levels)
    if evenness.period == _ALTERNATING:
        return f"Steps are uneven: they alternate between {short} and {long}."
    if evenness.period is None:
        # The rarer level comes irregularly.
        long_steps = f"{evenness.n_long} of {evenness.n_steps} steps"
        levels = f"{long_steps} take about {long}, and the others take about {short}"
        return f"Steps are uneven: {levels}."
    is_rare_long = evenness.n_long <= evenness.n_steps / 2
    periodic = _periodic_text(evenness.period, short, long, is_rare_long=is_rare_long)
    return f"Steps are uneven: {periodic}."


def _periodic_text(period: int, short: str, long: str, *, is_rare_long: bool) -> str:
    """Return that every so many steps (`period`) take longer, or shorter, than the other steps.

    `short` and `long` are the two step times in words.
    """
    rare = long if is_rare_long else short
    usual = short if is_rare_long else long
    ordinal = _ORDINALS.get(period, f"{period}th")
    return f"every {ordinal} step takes {rare} instead of {usual}"


def uneven_notes(sides: Iterable[tuple[str, Iterable[Evenness]]]) -> list[str]:
    """Return a note for each side with uneven steps, about its first uneven capture.

    `sides` are pairs: the name of a side, and the evenness of the steps of each of its captures.
    """
    notes = []
    for name, evenness_of_captures in sides:
        uneven_captures = (evenness for evenness in evenness_of_captures if evenness.is_uneven)
        first_uneven = next(uneven_captures, None)
        if first_uneven is not None:
            text = uneven_text(first_uneven)
            notes.append(f"{name}: {text}.")
    return notes


def mean_step_ns(summary: Mapping[str, Any]) -> float | None:
    """Return the mean step time, of which savings are shares. None without steps."""
    ns_per_s = 1e9
    return divided(ns_per_s, summary["throughput_steps_per_s"])


def _summary_phases(run: Run) -> pa.Table:
    """Return the rows of `phases` of the steps in use."""
    phases = run.phases()
    used_steps = run.breakdown()["step"].unique()
    is_used = pc.is_in(phases["step"], used_steps)
    return phases.filter(is_used)


def host_medians_of(run: Run) -> dict[str, dict[int, float]]:
    """Return a run's `summary.host_medians`."""
    return host_medians(_summary_phases(run))


def host_note(run: Run, sum_of_phases_ns: float) -> str | None:
    """Return why CPU times of phases sum to more than a step on the GPU. None if they do not.

    `sum_of_phases_ns` is the sum of the CPU times of all phases, per step.
    """
    step_ns = rank_step_ns(run)
    if not step_ns or sum_of_phases_ns < _MAX_HOST_SHARE_OF_STEP * step_ns:
        return None
    steps = run.breakdown()
    # The lead is how far the CPU is ahead of the GPU.
    leads_of_ranks = steps.group_by("rank").aggregate([("host_lead_ns", "mean")])
    mean_leads_ns = leads_of_ranks["host_lead_ns_mean"]
    largest_lead_ns = pc.max(mean_leads_ns).as_py() or 0.0
    is_ahead = largest_lead_ns >= _MIN_AHEAD_SHARE_OF_STEP * step_ns
    return HOST_AHEAD if is_ahead else HOST_NOT_AHEAD


def _without_earlier_waits(run: Run, phases: PhasesTable) -> pa.Table:
    """Return phases, in which CPU times that include waits for skipped steps are null.

    If steps were skipped before the first step in use, the CPU of a rank that runs ahead waits in
    the first step for GPU work of the skipped steps. Such a rank counts as waiting in a phase of
    the first step if the phase takes its CPU longer there than in all later steps.
    """
    steps = run.breakdown()
    first_step = pc.min(steps["step"]).as_py()
    if first_step is None:
        return phases
    has_skipped_before = any(step < first_step for step in run.skipped_steps)
    if not has_skipped_before:
        return phases
    is_in_first_step = pc.equal(phases["step"], first_step)
    ranks_ahead = pa.array(_ranks_ahead(steps, first_step), pa.int64())
    is_of_rank_ahead = pc.is_in(phases["rank"], value_set=ranks_ahead)
    later_phases = phases.filter(pc.invert(is_in_first_step))
    is_longer_than_later = _is_longer_than(phases, _longest_host_ns(later_phases))
    may_wait = pc.and_(is_in_first_step, is_of_rank_ahead)
    is_waiting = pc.and_(may_wait, is_longer_than_later)
    return _without_host_ns(phases, is_waiting)


def _without_host_ns(phases: PhasesTable, is_unknown: pa.Array) -> pa.Table:
    """Return a copy of `phases`, in which the CPU time is null in each row that `is_unknown`."""
    host_ns = phases["host_ns"]
    null_ns = pa.scalar(None, host_ns.type)
    host_ns_or_null = pc.if_else(is_unknown, null_ns, host_ns)
    place = phases.column_names.index("host_ns")
    return phases.set_column(place, "host_ns", host_ns_or_null)


def _ranks_ahead(steps: StepsTable, step: int) -> list[int]:
    """Return the ranks whose CPU is far ahead of the GPU in a step, by a share of the step."""
    is_of_step = pc.equal(steps["step"], step)
    # A row per rank.
    step_on_ranks = steps.filter(is_of_step)
    min_lead_ns = pc.multiply(step_on_ranks["wall_ns"], _MIN_AHEAD_SHARE_OF_STEP)
    # A CPU whose lead is not known is not ahead.
    lead_ns = pc.fill_null(step_on_ranks["host_lead_ns"], 0)
    is_ahead = pc.greater_equal(lead_ns, min_lead_ns)
    ranks: list[int] = step_on_ranks["rank"].filter(is_ahead).to_pylist()
    return ranks


def _is_longer_than(phases: PhasesTable, max_ns: Mapping[tuple[str, int], int]) -> pa.Array:
    """Return for each row whether its CPU time is longer than `max_ns` of its phase and rank."""
    is_longer = []
    for row in phases.select(["phase", "rank", "host_ns"]).to_pylist():
        phase_and_rank = (row["phase"], row["rank"])
        host_ns = row["host_ns"] or 0
        is_longer.append(host_ns > max_ns.get(phase_and_rank, 0))
    return pa.array(is_longer, pa.bool_())


def _longest_host_ns(phases: PhasesTable) -> dict[tuple[str, int], int]:
    """Return the longest CPU time of each phase and rank, by phase and rank. Null counts as 0."""
    longest_ns: dict[tuple[str, int], int] = {}
    for row in phases.select(["phase", "rank", "host_ns"]).to_pylist():
        phase_and_rank = (row["phase"], row["rank"])
        host_ns = row["host_ns"] or 0
        longest_so_far_ns = longest_ns.get(phase_and_rank, 0)
        longest_ns[phase_and_rank] = max(longest_so_far_ns, host_ns)
    return longest_ns


def host_median_note(median_of_rank_by_phase: Mapping[str, Mapping[int, float]]) -> str:
    """Return the note that names the phases whose CPU time is a median, and says why."""
    named = listed(sorted(median_of_rank_by_phase))
    return (
        f"The CPU time of {named} is the mean over ranks of their medians, because one step "
        "dominates a mean."
    )


class PhaseDifference(Struct, frozen=True):
    """In which time a phase differs most between ranks, and by how much."""

    # How much longer the phase takes on the slowest rank than on the fastest one.
    more_ns: float
    slow_rank: int
    text: str


def phases_text(run: Run) -> str | None:
    """Return how each phase differs most between ranks. None if all differ by less than 10 %.

    The difference is a share of the step.
    """
    return _phases_sentence(phase_differences(run))


def phases_of_rank_text(run: Run, rank: int) -> str | None:
    """Return in which phases a rank takes longest, so that other ranks wait. None for no phase."""
    differences = phase_differences(run)
    return _phases_sentence([phase for phase in differences if phase.slow_rank == rank])


def _phases_sentence(differences: Sequence[PhaseDifference]) -> str | None:
    """Return some differences in one text. None if there are none."""
    if not differences:
        return None
    texts = [upper_first(difference.text) for difference in differences]
    return " ".join(["Phases differ between ranks.", *texts])


def phase_differences(run: Run) -> list[PhaseDifference]:
    """Return how each phase differs most between ranks, the largest difference first.

    A phase has several times, for example on the CPU and on the GPU. The time that differs most
    counts. Differences of 0, and differences below 10 % of a step, are left out.
    """
    host_medians_by_phase = host_medians_of(run)
    rows = _phase_means(run, host_medians_by_phase)
    step_ns = rank_step_ns(run) or 0.0
    min_ns = _MIN_PHASE_DIFFERENCE_SHARE * step_ns
    visible: list[PhaseDifference] = []
    phases = sorted({row["phase"] for row in rows})
    for phase in phases:
        rows_of_phase = [row for row in rows if row["phase"] == phase]
        differences = []
        for column in PHASE_TIMES:
            time_name = _phase_time_text(column, is_median=phase in host_medians_by_phase)
            subject = f"{phase} ({time_name})"
            differences.append(_phase_difference(run, rows_of_phase, column, subject))
        largest = max(differences, key=_size_of)
        if largest.more_ns > 0 and largest.more_ns >= min_ns:
            visible.append(largest)
    return sorted(visible, key=_size_of, reverse=True)


def _phase_time_text(column: str, *, is_median: bool) -> str:
    """Return what a time of a phase is called."""
    if column != "host_ns":
        return _PHASE_WORDS[column]
    return "median CPU time" if is_median else "CPU time, including waits for the GPU"


def _phase_difference(
    run: Run, rows: Sequence[Mapping[str, Any]], column: str, subject: str
) -> PhaseDifference:
    """Return how much longer a phase takes on the slowest rank than on the fastest one.

    `rows` are those of the phase, one per rank. `column` names one of the times of the phase, and
    `subject` is the phase and this time in words. If no rank has the time, the difference is 0.
    """
    column_of_means = f"{column}_mean"
    known_rows = [row for row in rows if row[column_of_means] is not None]
    if not known_rows:
        # A difference of 0 is never shown, so it needs no rank and no text.
        return PhaseDifference(more_ns=0.0, slow_rank=0, text="")
    times_and_ranks = [(row[column_of_means], row["rank"]) for row in known_rows]
    fast_ns, fast_rank = min(times_and_ranks)
    slow_ns, slow_rank = max(times_and_ranks)
    slow_text = _on_rank(run, slow_ns, slow_rank)
    fast_text = _on_rank(run, fast_ns, fast_rank)
    text = f"{subject}: {slow_text}, {fast_text}."
    return PhaseDifference(slow_ns - fast_ns, slow_rank, text)


def _phase_means(
    run: Run, host_medians_by_phase: Mapping[str, Mapping[int, float]]
) -> list[dict[str, Any]]:
    """Return the mean times of each phase and rank, in columns such as ``host_ns_mean``.

    If a phase has medians, its CPU time is the median of the rank in place of the mean.
    """
    phases = _without_earlier_waits(run, _summary_phases(run))
    mean_of_each = [(name, "mean") for name in PHASE_TIMES]
    means = phases.group_by(["phase", "rank"]).aggregate(mean_of_each)
    rows: list[dict[str, Any]] = means.to_pylist()
    for row in rows:
        phase = row["phase"]
        if phase in host_medians_by_phase:
            row["host_ns_mean"] = host_medians_by_phase[phase].get(row["rank"])
    return rows


def _on_rank(run: Run, ns: float, rank: int) -> str:
    name = run.rank_names.name(rank)
    return f"{ms_text(ns)} on rank {name}"


def _size_of(difference: PhaseDifference) -> tuple[float, str]:
    return difference.more_ns, difference.text


def rank_step_ns(run: Run) -> float | None:
    """Return the mean step of all ranks.

    The mean step time is longer, because it is of the slowest rank of each step.
    """
    mean_ns = pc.mean(run.breakdown()["wall_ns"]).as_py()
    return cast("float | None", mean_ns)


def is_clear(step_ns: float | None, low_ns: float | None, high_ns: float | None) -> bool:
    """Tell whether the captured step time is outside the range of an estimate."""
    if step_ns is None or low_ns is None or high_ns is None:
        return False
    return not low_ns <= step_ns <= high_ns


def assumed_text(evidence: Mapping[str, Any]) -> str:
    """Return what the bound of a finding assumes, with a comma in front.

    Empty if it assumes nothing.
    """
    text = ""
    if evidence.get("is_conditional") or evidence.get("is_nvlink_assumed"):
        text += f", if {NVLINK_THERE}"
    if evidence.get("is_wait_included"):
        text += ", which may include wait time"
    compared_share = evidence.get("compared_share")
    # If all compute could be compared, nothing needs to be assumed.
    if compared_share and compared_share < 1 - MIN_VISIBLE_DIFFERENCE:
        text += (
            f". The slowdown was measured for {percent_text(compared_share, n_decimals=0)} of the "
            "compute during communication, and is assumed to be equal for the rest"
        )
    slowdown_ratio = evidence.get("assumed_slowdown_ratio")
    if slowdown_ratio:
        slowdown = percent_text(slowdown_ratio, n_decimals=0)
        text += (
            f", if communication slows compute by {slowdown} (the largest slowdown that nsyspipe "
            "assumes, because too few kernels can be compared)"
        )
    return text


def stream_text(run: Run) -> str | None:
    """Return how much communication runs on the stream of compute. None if little or not known."""
    steps = run.breakdown()
    on_compute_stream_ns = pc.mean(steps["comm_on_compute_stream_ns"], skip_nulls=False).as_py()
    comm_ns = pc.mean(steps["comm_ns"], skip_nulls=False).as_py()
    if not on_compute_stream_ns or not comm_ns:
        return None
    if on_compute_stream_ns < _MIN_SHARE_ON_COMPUTE_STREAM * comm_ns:
        return None
    looks_like_all = on_compute_stream_ns >= (1 - MIN_VISIBLE_DIFFERENCE) * comm_ns
    if looks_like_all:
        subject = "Communication runs"
    else:
        subject = f"{ms_text(on_compute_stream_ns)} of communication per step runs"
    stream_ids = run.ranks["compute_stream_id"].drop_null()
    numbers = sorted(stream_ids.unique().to_pylist())
    streams = f"{noun_for(len(numbers), 'stream')} {few(ranges(numbers), most=3)}"
    return (
        f"{subject} on {streams}, which also runs compute. Compute of that stream cannot overlap "
        "with it."
    )


def _numbered(noun: str, numbers: Sequence[int], most: int = 6) -> str:
    """Return ``step 3``, or ``steps 3, 5-7``."""
    nouns = noun_for(len(numbers), noun)
    names = few(ranges(numbers), most)
    return f"{nouns} {names}"


def is_problem_shown(row: Row, *, is_verbose: bool) -> bool:
    """Tell whether a problem is shown outside the report of its run, such as in a comparison.

    Errors and warnings are shown. Of the notes, a verbose output shows those about files that were
    found beside the reports.
    """
    if row["severity"] != "info":
        return True
    return is_verbose and row["code"] in OF_FILES_BESIDE


def same_problems(problems: Iterable[Row], place_of: Callable[[list[Row]], str]) -> list[Trouble]:
    """Return problems in words. Problems that differ only in their places become one problem.

    `place_of` returns the common place of rows. Problems are in the order in which they first
    occur.
    """
    keys_and_rows = []
    for row in problems:
        key = (row["severity"], row["message"], row["fix"])
        keys_and_rows.append((key, row))
    joined = []
    for (severity, message, fix), equal_rows in grouped(keys_and_rows).items():
        place = place_of(equal_rows)
        joined.append(Trouble(severity=severity, message=message, place=place, fix=fix))
    return joined


def _without_repeated_exports(problems: Iterable[Trouble]) -> list[Trouble]:
    """Return the problems, with the fix to export reports again only where it is new.

    The fix is not new if an earlier problem has it for the same place, or for all reports.
    """
    all_reports = ""
    shown: list[Trouble] = []
    exported_places: set[str] = set()
    for problem in problems:
        is_export = problem.fix is not None and problem.fix.startswith(EXPORT_AGAIN)
        is_place_exported = problem.place in exported_places or all_reports in exported_places
        if is_export and is_place_exported:
            shown.append(problem._replace(fix=None))
        else:
            shown.append(problem)
        if is_export:
            exported_places.add(problem.place)
    return shown


def _counted_rules(message: str) -> str:
    """Return a message with the number of rules in place of their names, if it names many rules.

    The rules are those that were not judged. Any other message stays as it is. JSON has the names.
    """
    match = _NOT_JUDGED.fullmatch(message)
    if match is None:
        return message
    rules = match["rules"].split(", ")
    if len(rules) <= _MAX_NAMED_RULES:
        return message
    are_all_about_comm = _ABOUT_COMM.issuperset(rules)
    about = " about communication" if are_all_about_comm else ""
    reason = match["reason"]
    return f"skipped {len(rules)} checks{about} ({reason})"


def troubles(problems: Iterable[Row], most_places: int = 12) -> list[Trouble]:
    """Return the problems in words, each one once with the ranks or the reports that have it.

    `most_places` is how many ranks or reports a problem names. If ranks have problems that differ
    only in numbers, only the problem with the largest numbers is returned. If many reports have
    problems that differ only in numbers, only the first one is returned.
    """
    rows = [_with_counted_rules(row) for row in problems]
    place_of = partial(_place_of, most_places=most_places)
    groups_of_similar = grouped((_key_without_numbers(row), row) for row in rows)
    joined: list[Trouble] = []
    for similar_rows in groups_of_similar.values():
        joined += _joined_similar(similar_rows, place_of)
    shown: list[Trouble] = []
    for problem in _without_repeated_exports(joined):
        # A place that the message names already is not named twice.
        shown_place = "" if problem.place in problem.message else problem.place
        shown.append(problem._replace(place=shown_place))
    return shown


def _with_counted_rules(row: Row) -> Row:
    message = _counted_rules(row["message"])
    return {**row, "message": message}


def _key_without_numbers(problem: Row) -> tuple[str, ...]:
    """Return what is equal of problems that differ only in numbers."""
    message = _DIGITS.sub("#", problem["message"])
    return problem["severity"], message, problem["fix"]


def _place_of(rows: Sequence[Row], most_places: int) -> str:
    """Return the ranks that have some problems, or the reports if the problems have no ranks."""
    ranks = {row["rank"] for row in rows}
    ranks.discard(None)
    if ranks:
        return _numbered("rank", sorted(ranks), most_places)
    reports = {row["report"] for row in rows}
    reports.discard(None)
    return few(sorted(reports), most_places)


def _joined_similar(rows: list[Row], place_of: Callable[[list[Row]], str]) -> list[Trouble]:
    """Return problems that differ only in numbers. If they are many, return one of them.

    For problems of ranks, that is the problem with the largest number. It is the first problem if
    the number is the rank itself, and for problems of reports.
    """
    distinct = same_problems(rows, place_of)
    are_of_ranks = all(row["rank"] is not None for row in rows)
    max_shown = 1 if are_of_ranks else _MAX_SIMILAR_PROBLEMS
    if len(distinct) <= max_shown:
        return distinct
    is_number_a_rank = "rank " in rows[0]["message"]
    if are_of_ranks and not is_number_a_rank:
        which = "largest"
        chosen = max(distinct, key=_size_of_number)
    else:
        which = "first"
        chosen = distinct[0]
    place = place_of(rows)
    places = f": {place}" if place else ""
    return [chosen._replace(place=f"the {which} of {len(distinct)} alike{places}")]


def _size_of_number(trouble: Trouble) -> tuple[int, str]:
    """Return a sort key for problems whose messages differ only in digits.

    The longest message has the largest number, and of equal lengths the last in the alphabet.
    """
    return len(trouble.message), trouble.message


def unseen_idle(run: Run) -> str:
    """Return why there may be more idle time than is known. Empty if there cannot be."""
    return "idle time inside CUDA graphs is not visible" if has_whole_graphs(run) else ""


def idle_text(steps: StepsTable, calls: pa.Table, unseen: str = "") -> str | None:
    """Return what share of the step time is idle and why. None below 2 %, or if not known.

    `steps` has a row per step and rank. `calls` are the calls that blocked CPUs, the longest first.
    `unseen` says why there may be more idle time, as `unseen_idle` does. Times are means over the
    rows of `steps`. Causes below 0.1 % of the step time are left out.
    """
    sum_of_steps_ns = _sum_of(steps["wall_ns"])
    sum_of_idle_ns = _sum_of(steps["idle_ns"])
    if not sum_of_steps_ns or sum_of_idle_ns is None:
        return None
    idle_share = sum_of_idle_ns / sum_of_steps_ns
    if idle_share < _MIN_IDLE_SHARE:
        return None
    sums_of_causes_ns = [_sum_of(steps.column(name)) for name in IDLE_CAUSES]
    blocking_cause = idle_cause("idle_blocked_ns")
    cause_texts = []
    for cause, sum_ns in _known_causes(sum_of_idle_ns, sums_of_causes_ns).items():
        share = sum_ns / sum_of_steps_ns
        if share >= _MIN_CAUSE_SHARE:
            call = _blocking_call_text(calls) if cause == blocking_cause else ""
            time = _time_and_share(sum_ns / steps.num_rows, share, call)
            cause_texts.append(f"{cause} {time}")
    causes = ", ".join(cause_texts) or "cause not known"
    idle = _time_and_share(sum_of_idle_ns / steps.num_rows, idle_share)
    if unseen:
        return f"idle at least {idle}: {causes} ({unseen})"
    return f"idle {idle}: {causes}"


def _time_and_share(mean_ns: float, share: float, remark: str = "") -> str:
    return f"{ms_text(mean_ns)} ({percent_text(share)}{remark})"


def _sum_of(column: pa.ChunkedArray) -> int | None:
    """Return the sum of a column; None without rows, or if a value is null."""
    total = pc.sum(column, skip_nulls=False, min_count=1).as_py()
    return cast("int | None", total)


def _known_causes(idle_ns: int, causes_ns: Sequence[int | None]) -> dict[str, int]:
    """Return the idle time of each cause in words, the largest first. Empty if none is known.

    `causes_ns` are the idle times of `IDLE_CAUSES`. If only some are known, the other causes have
    the rest of the idle time together, as one cause.
    """
    ns_of_cause = dict(zip(map(idle_cause, IDLE_CAUSES), causes_ns, strict=True))
    known = {cause: ns for cause, ns in ns_of_cause.items() if ns is not None}
    unknown_causes = [cause for cause in ns_of_cause if cause not in known]
    if known and unknown_causes:
        known_ns = sum(known.values())
        known[" or ".join(unknown_causes)] = idle_ns - known_ns
    largest_first = sorted(known.items(), key=itemgetter(1), reverse=True)
    return dict(largest_first)


def _blocking_call_text(calls: pa.Table) -> str:
    """Return the call that blocked CPUs most, as ``, cudaStreamSynchronize and others``."""
    if not calls.num_rows:
        return ""
    longest_call = printable(calls["call"][0].as_py())
    name = longest_call[:LONGEST_CALL]
    return f", {name} and others" if calls.num_rows > 1 else f", {name}"


def idle_cause(column: str) -> str:
    """Return the cause of the idle time in a column.

    For ``idle_launch_ns``, it is ``late kernel launch (CPU-bound)``.
    """
    figure = FIGURES[f"{column}_per_step"]
    return figure.label.removeprefix("Idle: ")


def host_notes(figures: Sequence[HostFigures], n_shown: int) -> Iterator[str]:
    """Yield the sentences below the table of processes.

    The sentences are about the slowest process, about the time between steps, and about ranges,
    ranks and processes that are missing. `n_shown` is how many processes the table has.
    """
    fastest_and_slowest_process = fastest_and_slowest(figures)
    least_and_most_backward = uneven_backward(figures)
    if fastest_and_slowest_process:
        yield _slowest_text(*fastest_and_slowest_process)
    elif least_and_most_backward:
        # Steps take equally long on all processes, because ranks wait for each other in backward.
        yield _uneven_backward_text(*least_and_most_backward)
    longest_loading = longest_between(figures)
    if longest_loading:
        place = f" on {_name(longest_loading)}" if len(figures) > 1 else ""
        median = f"{host_ms(longest_loading.between_ns)} (median){place}"
        between = f"From the end of a step to the start of the next: {median}"
        yield f"{between}, probably in the data loader."
    n_open = sum(figure.n_open for figure in figures)
    if n_open:
        noun = noun_for(n_open, "range")
        pronoun = "it is" if n_open == 1 else "they are"
        yield (
            f"{n_open} step {noun} had not ended at the end of the capture, so {pronoun} not in "
            "the metrics."
        )
    if None in {figure.rank for figure in figures}:
        yield "The reports do not record the ranks of the processes. Pass --rank-map."
    if len(figures) > n_shown:
        yield f"These are the {n_shown} slowest of {len(figures)} processes. --json has all."


def _uneven_backward_text(least: HostFigures, most: HostFigures) -> str:
    """Return which process takes longest in backward, and which one it may wait for."""
    longest_ms = host_ms(most.phase_ns["backward"])
    shortest_ms = host_ms(least.phase_ns["backward"])
    longest = f"{longest_ms} on {_name(most)}"
    shortest = f"{shortest_ms} on {_name(least)}"
    within = percent_text(MUCH_RATIO, n_decimals=0)
    evenness = f"Steps take equally long on all (within {within})"
    difference = f"backward takes {longest} and {shortest}"
    waiting = f"{_WAITING} {_name(least)} may be the one that is waited for"
    return f"{evenness}, but {difference}. {waiting}."


def _slowest_text(fast: HostFigures, slow: HostFigures) -> str:
    """Return which process is slowest, and whether it may only wait for another.

    A process may only wait if at least half of the difference is in backward, where ranks
    communicate.
    """
    slow_name = _name(slow)
    slow_ns = slow.median_ns or 0
    fast_ns = fast.median_ns or 0
    more_ns = slow_ns - fast_ns
    share = f" ({percent_text(more_ns / fast_ns)})" if fast_ns else ""
    longer = f"its median step takes {host_ms(more_ns)}{share} longer than that of {_name(fast)}"
    slow_backward_ns = slow.phase_ns["backward"] or 0
    fast_backward_ns = fast.phase_ns["backward"] or 0
    more_backward_ns = slow_backward_ns - fast_backward_ns
    if more_backward_ns < more_ns / 2:
        return f"Slowest: {slow_name}, {longer}."
    waiting = f"{_WAITING} {slow_name} may only wait."
    return f"Longest: {slow_name}, {longer}, most of it in backward. {waiting}"


def host_ms(ns: float | None) -> str:
    """Return a CPU time, with few digits because it varies from step to step."""
    if ns is None or ns not in _TWO_DECIMALS_NS:
        return ms_text(ns)
    return f"{ns / 1e6:.2f} ms"


def _name(process: HostFigures) -> str:
    if process.rank is None:
        return report_name(process)
    return f"rank {process.rank}"


def report_name(process: HostFigures) -> str:
    """Return the report of a process as --rank-map names it, with the PID if it has several."""
    stem = PurePath(process.report).stem
    if process.is_alone:
        return stem
    return f"{stem}:{process.pid}"


def settling_text(
    steps: int | None, captures: int | None, counts: Sequence[int], aim: str = "settle it"
) -> str:
    """Return how many steps or captures would settle a comparison.

    If both would, the way that takes fewer steps in all comes first. Empty if neither number is
    known.

    Parameters
    ----------
    steps
        The number of steps needed in each capture.
    captures
        The number of captures needed of each side.
    counts
        The number of steps that each side has now.
    aim
        The end of the sentence, after "would".
    """
    by_steps = _more_steps_text(steps, counts) if steps else ""
    # Such captures have as many steps as now, in contrast to those of the first way.
    such = "such captures" if steps else "captures"
    by_captures = f"about {captures} {such} of each side" if captures else ""
    are_captures_cheaper = bool(steps and captures and captures * max(counts) < steps)
    cheaper_first = [by_captures, by_steps] if are_captures_cheaper else [by_steps, by_captures]
    known_ways = [way for way in cheaper_first if way]
    if not known_ways:
        return ""
    return f"{' or '.join(known_ways)} would {aim}"


def _more_steps_text(n_needed_steps: int, counts: Sequence[int]) -> str:
    """Return how many steps per capture are needed. `counts` are the steps of each side now."""
    distinct_counts = map(str, dict.fromkeys(counts))
    now = " and ".join(distinct_counts)
    return f"about {_rounded_up(n_needed_steps)} steps per capture ({now} now)"


def _rounded_up(count: int) -> int:
    """Return a count rounded up to two digits, because more digits of it are not known."""
    n_zeros = max(len(str(count)) - 2, 0)
    unit: int = 10**n_zeros
    n_units, remainder = divmod(count, unit)
    if remainder:
        n_units += 1
    return n_units * unit


def opposed_text(parts: Sequence[tuple[str, float]]) -> str:
    """Return which parts of the step time changed in opposite directions.

    `parts` are names of parts and their differences in ns. A single part changed in the direction
    opposite to the step time.
    """
    if len(parts) > 1:
        texts = [f"{_part_label(name)} {delta_text('ns', ns)}" for name, ns in parts]
        changes = ", ".join(texts)
        return f"Parts of the step changed in opposite directions: {changes}."
    ((name, ns),) = parts
    direction = "longer" if ns > 0 else "shorter"
    difference = ms_text(abs(ns), n_digits=3)
    return f"In the other direction, {_part_label(name)} is {difference} {direction}."


def _part_label(name: str) -> str:
    """Return what a part of the step, or a cause of idle time (``idle, launch``), is called."""
    part, _, cause = name.partition(", ")
    return IDLE_PHRASES[cause] if cause else metric_label(part)
