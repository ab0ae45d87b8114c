"""A run in words, whatever the format: subject, link, steps, phases, idle causes, problems."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

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
from nsyspipe.model.figures import FIGURES
from nsyspipe.model.names import LONGEST_CALL, few, grouped, listed, printable, ranges
from nsyspipe.model.problems import BACKWARD_SOURCES, EXPORT_AGAIN
from nsyspipe.model.schema import IDLE_CAUSES, PHASE_TIMES
from nsyspipe.report.units import (
    bandwidth_text,
    counted,
    delta_text,
    metric_label,
    ms_text,
    noun_for,
    percent_text,
    upper_first,
)
from nsyspipe.run.work import has_whole_graphs

if TYPE_CHECKING:
    from nsyspipe.analysis.summary import Evenness, HostFigures
    from nsyspipe.run.run import Run, RunHeader

_LINK_LENGTH = 285  # three lines of a terminal, less what breaking between words costs
# of a commit; of what was captured
_SHOWN_DIGITS = 10
_LONGEST_COMMAND = 500
_TWO = 2
_ORDINALS = dict(
    enumerate(["third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"], start=3)
)
# by so much two times differ visibly: of what is written with four digits; shares have three
SEEN = 0.002
NVLINK_THERE = "NVLink connects all of the GPUs"
WITHOUT_END = "without an end"
STEPS_BY_PATTERN = "steps found by launch pattern"
Row: TypeAlias = "Mapping[str, Any]"
Trouble: TypeAlias = "tuple[str, str, str, str | None]"  # severity, message, where, fix
_DIGITS = re.compile(r"\d+")
_MOST_ALIKE = 4
_NOT_JUDGED = re.compile(r"skipped checks: (?P<rules>[a-z-]+(, [a-z-]+)*) \((?P<reason>.*)\)")
_MOST_RULES = 5  # that are named where one reason keeps them from being judged
_ABOUT_COMM = {*CAUSES["communication and late ranks"], *CAUSES["communication that slows compute"]}
# Of the step time: less idle time is not named, and no smaller cause of it.
_MIN_IDLE_SHARE = 0.02
_MIN_CAUSE_SHARE = 0.001
_TWO_DECIMALS_NS = range(
    10_000, 10_000_000
)  # of the host, where they say enough of what varies from step to step
_WAITING = "There ranks wait for each other:"
_MUCH_ON_STREAM = 0.1  # of communication, from which on its stream is shown
_PHASE_WORDS = {
    "host_ns": "CPU time",
    "device_ns": "GPU time, with wait time",
    "compute_ns": "compute",
    "comm_ns": "communication",
    "exposed_comm_ns": "exposed communication",
    "idle_ns": "idle before",
}
_MUCH_OF_RANKS = 0.1  # of a step: by so much phases differ between ranks, whatever runs ahead
STEP_ENDS = "On the GPU a step ends where the first kernel of the next step begins."
NEXT_IDLE = f"{STEP_ENDS} The idle time before that kernel counts in the phase of that kernel."
NEXT_COPIES = f"{NEXT_IDLE} Data copies of the next step count in this step."
_MORE_ON_HOST = "The CPU times of the phases sum to more than the step on the GPU, because"
HOST_AHEAD = f"{_MORE_ON_HOST} the CPU runs ahead and may wait for the GPU in other steps."
HOST_NOT_AHEAD = f"{_MORE_ON_HOST} phases are nested, or the CPU takes longer than the GPU."
_MORE_THAN_STEP = (
    1.02  # from this part of a step on the host's phases are said to sum to more than it
)
# of a step: from so much on the host waits for what the device still has to do of earlier steps
_MUCH_AHEAD = 0.1


def subject_parts(run: Run, summary: Mapping[str, Any]) -> list[str]:
    """Return which run, how many ranks, on what, and which steps count; as recorded, not escaped."""
    header = run.header
    host_steps = run.host_steps()
    family = f" {run.step_family!r}" if run.step_family else ""
    if host_steps.num_rows:  # then there are no ranks
        n_processes = len({(row["report"], row["pid"]) for row in host_steps.to_pylist()})
        processes = (
            f"{of_world(n_processes, header.world_size, 'process', 'es')} without GPU activity"
        )
        return [header.label, processes, f"{host_steps.num_rows} host steps{family}"]
    parts = [header.label, ranks_text(header), *header.gpu_names]
    if run.is_capture:
        parts.append("a capture without steps")
    elif header.n_ranks:
        family = ", steps found by launch pattern" if header.steps_from == "repetition" else family
        left_out = [
            f"{_numbered('step', steps)} {why}" for why, steps in _left_out(run).items() if steps
        ]
        steps = f"{summary['n_summary_steps']} of {summary['n_steps']} steps used{family}"
        parts.append(f"{steps} ({', '.join(left_out)})" if left_out else steps)
    return [*parts, *backward_source(run)]


def _left_out(run: Run) -> dict[str, list[int]]:
    steps = run.steps()
    skipped = {*run.skipped_steps}
    number, is_counted, is_complete = (
        steps[name] for name in ("step", "in_summary", "is_complete")
    )
    counted, cut_off = (
        {*number.filter(mask).unique().to_pylist()} for mask in (is_counted, pc.invert(is_complete))
    )
    unused = {*number.unique().to_pylist()} - counted - skipped
    uneven = unused - cut_off
    endless = unused & steps_without_end(steps)
    return {
        "skipped": sorted(skipped),
        "incomplete": sorted(unused - uneven - endless),
        "without a recorded end": sorted(endless),
        "not on every rank": sorted(uneven),
    }


def steps_without_end(steps: pa.Table) -> set[int]:
    """Return the incomplete steps that are the last of a rank.

    They may be whole, but they end where the next step begins, and there is none.
    """
    last = steps.group_by("rank", use_threads=False).aggregate([("step", "max")]).to_pylist()
    at_end = {(row["rank"], row["step_max"]) for row in last}
    rows = zip(*(steps[name].to_pylist() for name in ("rank", "step", "is_complete")), strict=True)
    return {step for rank, step, is_complete in rows if not is_complete and (rank, step) in at_end}


def backward_source(run: Run) -> list[str]:
    """Return how nsyspipe found the backward pass if no range marks it."""
    codes = {row["code"] for row in run.problem_rows}
    return [text for code, text in BACKWARD_SOURCES.items() if code in codes]


def sources(run: Run) -> list[str]:
    """Return how nsyspipe found steps and the backward pass if no ranges mark them."""
    return [
        *([STEPS_BY_PATTERN] if run.header.steps_from == "repetition" else []),
        *backward_source(run),
    ]


def hosts_text(run: Run) -> list[str]:
    """Return which hosts a run is of, as far as one knows; of more than two how many."""
    hosts = run.header.hosts
    return (
        [f"{len(hosts)} hosts" if len(hosts) > _TWO else f"on {' and '.join(hosts)}"]
        if hosts
        else []
    )


def ranks_text(header: RunHeader) -> str:
    """Return how many ranks there are of how many in the job, or of which processes."""
    if not header.has_shared_processes:
        return of_world(header.n_ranks, header.world_size, "rank", "s")
    # A launcher that counts fewer does not count these processes.
    n_processes = header.n_processes or 0
    size = header.world_size if n_processes < (header.world_size or 0) else None
    return f"{header.n_ranks} ranks on the GPUs of {of_world(n_processes, size, 'process', 'es')}"


def of_world(n: int, world_size: int | None, noun: str, plural: str) -> str:
    """Return ``4 ranks``, or ``1 of 4 ranks`` where some are missing."""
    missing = f" of {world_size}" if world_size not in (None, n) else ""
    ending = plural if missing or n != 1 else ""
    return f"{n}{missing} {noun}{ending}"


def link_text(run: Run) -> str | None:
    """Return the interconnect, its edges, and how much of its bandwidth the run reached.

    The text fits three lines.
    """
    verdict = run.link
    if verdict is None or verdict.slowest is None:
        return None
    link = verdict.slowest
    is_foreign = any(row["code"] == "log-of-other-processes" for row in run.problem_rows)
    foreign = ", by a log of other processes" if is_foreign else ""
    rest = f", {link.edges}{foreign}"
    nominal = link.nominal_bytes_per_s
    if verdict.busbw_bytes_per_s is not None:
        about = "about " if verdict.is_estimate else ""
        rest += f", bus bandwidth {about}{bandwidth_text(verdict.busbw_bytes_per_s)}"
        rest += f" of {bandwidth_text(nominal)} peak" if nominal else ""
        rest += ", estimated from gradient copy sizes" if verdict.is_estimate else ""
    elif nominal:
        rest += f", peak {bandwidth_text(nominal)}"
    return shortened(printable(f"Interconnect: {link.text}"), _LINK_LENGTH - len(rest)) + rest


def capture_rows(capture: RunCapture | None) -> list[tuple[str, str]]:
    """Return what sidecars say of a capture, as pairs."""
    if capture is None:
        return []
    command = shlex.join(capture.command or ())
    if len(command) > _LONGEST_COMMAND:
        command = f"{command[:_LONGEST_COMMAND]} \N{HORIZONTAL ELLIPSIS}"
    commit = capture.git_commit and ", ".join(
        digits[:_SHOWN_DIGITS] for digits in capture.git_commit.split(", ")
    )
    versions = {
        name: getattr(capture, f"{name.lower()}_version")
        for name in ("torch", "NCCL", "CUDA", "driver")
    }
    commit = f"{commit} with changes" if commit and capture.git_is_dirty else commit
    return [
        (name, value)
        for name, value in {"command": command, **versions, "commit": commit}.items()
        if value
    ]


def steps_used_text(run: Run, n_used: int, n_captured: int) -> str:
    """Return how many captured steps the metrics use, and whether the launch pattern marks the steps."""
    source = f", {STEPS_BY_PATTERN}" if run.header.steps_from == "repetition" else ""
    return f"{counted(n_used, 'step')} used of {n_captured} captured{source}"


def captured_versions_text(capture: RunCapture | None) -> str:
    """Return the versions that sidecars recorded of the software; empty if there are none."""
    rows = capture_rows(capture)
    return ", ".join(f"{name} {value}" for name, value in rows if name not in {"command", "CUDA"})


def uneven_text(evenness: Evenness) -> str:
    """Return that steps are uneven, with mean and median, and the pattern if there is one.

    If few steps are like the median, that is added.
    """
    text = f"steps are uneven: mean {ms_text(evenness.mean)}, median {ms_text(evenness.median)}"
    if evenness.is_median_nobodys:
        text += ", which no step takes"
    elif 2 * evenness.n_near < evenness.n_steps:
        text += f", only {evenness.n_near} of {evenness.n_steps} steps within 10% of it"
    if evenness.levels is None or evenness.n_long is None:
        return text
    short, long = map(ms_text, evenness.levels)
    if evenness.period == _TWO:
        return f"{text}, {short} and {long} in turn"
    if not evenness.period:
        return (
            f"{text}, two levels, {short} and {long} ({evenness.n_long} of {evenness.n_steps} "
            "steps)"
        )
    rare, usual = (long, short) if 2 * evenness.n_long <= evenness.n_steps else (short, long)
    every = f"every {_ORDINALS.get(evenness.period, f'{evenness.period}th')} step"
    return f"{text}, {every} takes {rare} instead of {usual}"


def uneven_sentence(evenness: Evenness) -> str:
    """Return that steps are uneven, with their pattern, else with mean and median."""
    if evenness.levels is None or evenness.n_long is None:
        mean = ms_text(evenness.mean)
        median = ms_text(evenness.median)
        return f"Steps are uneven: their mean is {mean}, and their median is {median}."
    short, long = map(ms_text, evenness.levels)
    if evenness.period == _TWO:
        return f"Steps are uneven: they alternate between {short} and {long}."
    if not evenness.period:
        of_steps = f"{evenness.n_long} of {evenness.n_steps} steps"
        return f"Steps are uneven: {of_steps} take about {long}, and the others take about {short}."
    is_rare_long = 2 * evenness.n_long <= evenness.n_steps
    rare, usual = (long, short) if is_rare_long else (short, long)
    every = f"every {_ORDINALS.get(evenness.period, f'{evenness.period}th')} step"
    return f"Steps are uneven: {every} takes {rare} instead of {usual}."


def uneven_notes(sides: Iterable[tuple[str, Iterable[Evenness]]]) -> list[str]:
    """Return a note for each side with uneven steps, about its first uneven capture."""
    uneven = (
        (name, [capture for capture in captures if capture.is_uneven]) for name, captures in sides
    )
    return [f"{name}: {uneven_text(captures[0])}." for name, captures in uneven if captures]


def mean_step_ns(summary: Mapping[str, Any]) -> float | None:
    """Return the mean step time, which savings are shares of; None without steps."""
    return divided(1e9, summary["throughput_steps_per_s"])


def _summary_phases(run: Run) -> pa.Table:
    phases = run.phases()
    return phases.filter(pc.is_in(phases["step"], run.breakdown()["step"].unique()))


def host_medians_of(run: Run) -> dict[str, dict[int, float]]:
    """Return a run's `summary.host_medians`."""
    return host_medians(_summary_phases(run))


def host_note(run: Run, in_host_ns: float) -> str | None:
    """Say why phases sum to more than a step on the host; None where they do not."""
    step_ns = rank_step_ns(run)
    if not step_ns or in_host_ns < _MORE_THAN_STEP * step_ns:
        return None
    steps = run.breakdown()
    leads = steps.group_by("rank").aggregate([("host_lead_ns", "mean")])["host_lead_ns_mean"]
    return HOST_AHEAD if (pc.max(leads).as_py() or 0.0) >= _MUCH_AHEAD * step_ns else HOST_NOT_AHEAD


def _without_earlier_waits(run: Run, phases: pa.Table) -> pa.Table:
    """Return phases, with those CPU times as null that include waits for skipped steps.

    If a skipped step precedes the first step, a CPU that runs ahead waits in the first step for
    GPU work of the skipped one. Its time there counts as such a wait if it is longer than in all
    other steps.
    """
    steps = run.breakdown()
    first_step = pc.min(steps["step"]).as_py()
    if first_step is None or not any(step < first_step for step in run.skipped_steps):
        return phases
    ranks = pa.array(_ranks_ahead(steps, first_step), pa.int64())
    is_first = pc.equal(phases["step"], first_step)
    longest_ns = _longest_host_ns(phases.filter(pc.invert(is_first)))
    is_longest = [
        (row["host_ns"] or 0) > longest_ns.get((row["phase"], row["rank"]), 0)
        for row in phases.select(["phase", "rank", "host_ns"]).to_pylist()
    ]
    is_ahead = pc.and_(is_first, pc.is_in(phases["rank"], value_set=ranks))
    is_waiting = pc.and_(is_ahead, pa.array(is_longest, pa.bool_()))
    host_ns = phases["host_ns"]
    known_ns = pc.if_else(is_waiting, pa.scalar(None, host_ns.type), host_ns)
    return phases.set_column(phases.column_names.index("host_ns"), "host_ns", known_ns)


def _ranks_ahead(steps: pa.Table, step: int) -> list[int]:
    """Return the ranks whose CPU runs ahead of the GPU into a step."""
    rows = steps.filter(pc.equal(steps["step"], step))
    columns = rows.select(["rank", "wall_ns", "host_lead_ns"])
    return [
        row["rank"]
        for row in columns.to_pylist()
        if (row["host_lead_ns"] or 0.0) >= _MUCH_AHEAD * row["wall_ns"]
    ]


def _longest_host_ns(phases: pa.Table) -> dict[tuple[str, int], int]:
    """Return the longest CPU time of each phase and rank."""
    longest_ns: dict[tuple[str, int], int] = {}
    for row in phases.select(["phase", "rank", "host_ns"]).to_pylist():
        key = (row["phase"], row["rank"])
        longest_ns[key] = max(longest_ns.get(key, 0), row["host_ns"] or 0)
    return longest_ns


def host_median_note(medians: Mapping[str, Mapping[int, float]]) -> str:
    """Say of which phases the host's time is a median, and why."""
    named = listed(sorted(medians))
    return (
        f"The CPU time of {named} is the mean over ranks of their medians, because one step "
        "dominates a mean."
    )


class PhaseDifference(Struct, frozen=True):
    """By what a phase differs most between ranks."""

    more_ns: float
    slow_rank: int
    text: str


def phases_text(run: Run) -> str | None:
    """Return by what each phase differs most between ranks; None below 10 % of a step."""
    return _phases_sentence(phase_differences(run))


def phases_of_rank_text(run: Run, rank: int) -> str | None:
    """Return in which phases a rank takes longest, so that other ranks wait; None for no phase."""
    return _phases_sentence([phase for phase in phase_differences(run) if phase.slow_rank == rank])


def _phases_sentence(phases: Sequence[PhaseDifference]) -> str | None:
    if not phases:
        return None
    return " ".join(
        ["Phases differ between ranks.", *(upper_first(phase.text) for phase in phases)]
    )


def phase_differences(run: Run) -> list[PhaseDifference]:
    """Return by what each phase differs most between ranks, the largest difference first.

    Differences below 10 % of a step are left out.
    """
    medians = host_medians_of(run)
    rows = _phase_means(run, medians)
    largest: dict[str, PhaseDifference] = {}
    for phase, column in product(sorted({row["phase"] for row in rows}), PHASE_TIMES):
        rows_of_phase = [row for row in rows if row["phase"] == phase]
        what = _phase_time_text(column, is_median=phase in medians)
        difference = _phase_difference(run, rows_of_phase, column, f"{phase} ({what})")
        largest[phase] = max(largest.get(phase, difference), difference, key=_size_of)
    min_ns = _MUCH_OF_RANKS * (rank_step_ns(run) or 0.0)
    visible = [phase for phase in largest.values() if phase.more_ns and phase.more_ns >= min_ns]
    return sorted(visible, key=_size_of, reverse=True)


def _phase_time_text(column: str, *, is_median: bool) -> str:
    """Return what a time of a phase is called."""
    if column != "host_ns":
        return _PHASE_WORDS[column]
    return "median CPU time" if is_median else "CPU time, including waits for the GPU"


def _phase_difference(
    run: Run, rows: Sequence[Mapping[str, Any]], column: str, subject: str
) -> PhaseDifference:
    """Return by what a time of one phase differs most between ranks."""
    times = [(row[f"{column}_mean"], row["rank"]) for row in rows]
    known = sorted(time for time in times if time[0] is not None)
    fastest = known[0] if known else (0.0, 0)
    slowest = known[-1] if known else (0.0, 0)
    text = f"{subject}: {_on_rank(run, slowest)}, {_on_rank(run, fastest)}."
    return PhaseDifference(slowest[0] - fastest[0], slowest[1], text)


def _phase_means(run: Run, medians: Mapping[str, Mapping[int, float]]) -> list[dict[str, Any]]:
    """Return the mean times of each phase and rank; CPU times as medians if there are any."""
    phases = _without_earlier_waits(run, _summary_phases(run))
    means = phases.group_by(["phase", "rank"]).aggregate([(name, "mean") for name in PHASE_TIMES])
    rows: list[dict[str, Any]] = means.to_pylist()
    for row in rows:
        if row["phase"] in medians:
            row["host_ns_mean"] = medians[row["phase"]].get(row["rank"])
    return rows


def _on_rank(run: Run, time_of_rank: tuple[float, int]) -> str:
    ns, rank = time_of_rank
    return f"{ms_text(ns)} on rank {run.rank_names.name(rank)}"


def _size_of(difference: PhaseDifference) -> tuple[float, str]:
    return difference.more_ns, difference.text


def rank_step_ns(run: Run) -> float | None:
    """Return the mean step of all ranks; the mean step time, of the slowest ranks, is longer."""
    return cast("float | None", pc.mean(run.breakdown()["wall_ns"]).as_py())


def is_clear(step_ns: float | None, low_ns: float | None, high_ns: float | None) -> bool:
    """Tell whether the range that a replay gives leaves the captured step time out."""
    return not (
        step_ns is None or low_ns is None or high_ns is None or low_ns <= step_ns <= high_ns
    )


def assumed_text(evidence: Mapping[str, Any]) -> str:
    """Return what a finding's bound assumes, with a comma in front; nothing where it assumes nothing."""
    names = "assumed_slowdown_ratio", "is_conditional", "is_nvlink_assumed", "is_wait_included"
    ratio, is_open, is_nvlink_assumed, may_wait = (evidence.get(name) for name in names)
    text = f", if {NVLINK_THERE}" if is_open or is_nvlink_assumed else ""
    text += ", which may include wait time" if may_wait else ""
    compared = evidence.get("compared_share")
    if compared and compared < 1 - SEEN:
        text += (
            ", if all compute concurrent with communication is slowed like the "
            f"{percent_text(compared, 0)} that can be compared"
        )
    if ratio:
        text += (
            f", if communication slows compute by {percent_text(ratio, 0)}, which is assumed "
            "because too few kernels can be compared"
        )
    return text


def stream_text(run: Run) -> str | None:
    """Return how much communication runs on the stream that computes, where that is much; None where it is not."""
    rows = run.breakdown()
    on_stream, comm = (
        pc.mean(rows[name], skip_nulls=False).as_py()
        for name in ("comm_on_compute_stream_ns", "comm_ns")
    )
    if not on_stream or not comm or on_stream < _MUCH_ON_STREAM * comm:
        return None
    numbers = sorted(set(run.ranks["compute_stream_id"].drop_null().to_pylist()))
    streams = f"stream{'s'[: len(numbers) > 1]} {few(ranges(numbers), 3)}"
    how_much = (
        "Communication runs"
        if on_stream >= (1 - SEEN) * comm
        else f"{ms_text(on_stream)} of communication runs"
    )
    return (
        f"{how_much} on {streams}, which also runs compute. No compute of that stream can overlap "
        "with communication."
    )


def _numbered(noun: str, numbers: Sequence[int], most: int = 6) -> str:
    """Return ``step 3``, or ``steps 3, 5-7``."""
    return f"{noun_for(len(numbers), noun)} {few(ranges(numbers), most)}"


def same_problems(problems: Iterable[Row], place_of: Callable[[list[Row]], str]) -> list[Trouble]:
    """Join equal problems of several places, in the order of the first of each."""
    where = grouped(((row["severity"], row["message"], row["fix"]), row) for row in problems)
    return [
        (severity, message, place_of(rows), fix) for (severity, message, fix), rows in where.items()
    ]


def _exported_once(rows: Iterable[Trouble]) -> list[Trouble]:
    """Leave out the fix to export again if a row before has it for all, or the same, reports."""
    shown: list[Trouble] = []
    places: set[str] = set()
    for severity, message, place, fix in rows:
        is_export = fix is not None and fix.startswith(EXPORT_AGAIN)
        is_repeated = is_export and not places.isdisjoint({"", place})
        shown.append((severity, message, place, None if is_repeated else fix))
        if is_export:
            places.add(place)
    return shown


def _counted_rules(message: str) -> str:
    """Return a message about rules that were not judged, with their number if they are many.

    JSON has the names.
    """
    match = _NOT_JUDGED.fullmatch(message)
    if match is None:
        return message
    names = match["rules"].split(", ")
    if len(names) <= _MOST_RULES:
        return message
    about = " about communication" if _ABOUT_COMM.issuperset(names) else ""
    return f"skipped {len(names)} checks{about} ({match['reason']})"


def troubles(problems: Iterable[Row], most_places: int = 12) -> list[Trouble]:
    """Return the problems, each once with the ranks, or the reports, that have it.

    Problems of ranks that differ only in numbers are one, with the largest numbers. Of many such
    problems of reports, the first is shown.
    """
    rows: list[Row] = [{**row, "message": _counted_rules(row["message"])} for row in problems]
    groups = grouped(
        ((row["severity"], _DIGITS.sub("#", row["message"]), row["fix"]), row) for row in rows
    )
    place_of = partial(_place_of, most_places=most_places)
    joined = [trouble for group in groups.values() for trouble in _joined(group, place_of)]
    return [
        (severity, message, "" if place in message else place, fix)
        for severity, message, place, fix in _exported_once(joined)
    ]


def _place_of(rows: Iterable[Row], most_places: int) -> str:
    """Return the ranks of problems; the reports, if they have no ranks."""
    rows = list(rows)
    ranks = sorted({row["rank"] for row in rows if row["rank"] is not None})
    if ranks:
        return _numbered("rank", ranks, most_places)
    reports = sorted({row["report"] for row in rows if row["report"] is not None})
    return few(reports, most_places)


def _joined(group: list[Row], place_of: Callable[[list[Row]], str]) -> list[Trouble]:
    """Return problems that differ only in numbers; if they are many, one for all of them."""
    distinct = same_problems(group, place_of)
    is_of_ranks = all(row["rank"] is not None for row in group)
    if len(distinct) <= (1 if is_of_ranks else _MOST_ALIKE):
        return distinct
    # Only digits differ: the longest message, then the last in order, has the largest number.
    is_by_size = is_of_ranks and "rank " not in distinct[0][1]
    chosen = max(distinct, key=_size_of_message) if is_by_size else distinct[0]
    severity, message, _, fix = chosen
    which = "largest" if is_by_size else "first"
    place = place_of(group)
    places = f": {place}" if place else ""
    return [(severity, message, f"the {which} of {len(distinct)} alike{places}", fix)]


def _size_of_message(trouble: Trouble) -> tuple[int, str]:
    return len(trouble[1]), trouble[1]


def unseen_idle(run: Run) -> str:
    """Return why idle time is at least what is known of it; nothing where that is all."""
    return "idle time inside CUDA graphs is not visible" if has_whole_graphs(run) else ""


def idle_text(steps: pa.Table, calls: pa.Table, unseen: str = "") -> str | None:
    """Return what share of the step time is idle and why; None below 2 %, or if not known.

    Causes below 0.1 % of the step time are left out.
    """
    wall_ns, idle_ns, *causes_ns = (
        pc.sum(steps[name], skip_nulls=False, min_count=1).as_py()
        for name in ("wall_ns", "idle_ns", *IDLE_CAUSES)
    )
    if not wall_ns or idle_ns is None or idle_ns / wall_ns < _MIN_IDLE_SHARE:
        return None
    call = _blocking_call_text(calls)
    texts = []
    for cause, cause_ns in _known_causes(idle_ns, causes_ns).items():
        if cause_ns / wall_ns >= _MIN_CAUSE_SHARE:
            time = ms_text(cause_ns / steps.num_rows)
            remark = call if cause == idle_cause("idle_blocked_ns") else ""
            texts.append(f"{cause} {time} ({percent_text(cause_ns / wall_ns)}{remark})")
    at_least = "at least " if unseen else ""
    idle = f"{ms_text(idle_ns / steps.num_rows)} ({percent_text(idle_ns / wall_ns)})"
    reservation = f" ({unseen})" if unseen else ""
    causes = ", ".join(texts) or "cause not known"
    return f"idle {at_least}{idle}: {causes}{reservation}"


def _known_causes(idle_ns: int, causes_ns: Sequence[int | None]) -> dict[str, int]:
    """Return the idle time of each cause, the largest first.

    What is left of the idle time belongs to the causes that are not known, if some are.
    """
    times_ns = dict(zip(map(idle_cause, IDLE_CAUSES), causes_ns, strict=True))
    known = {cause: ns for cause, ns in times_ns.items() if ns is not None}
    if 0 < len(known) < len(times_ns):
        unknown = " or ".join(cause for cause in times_ns if cause not in known)
        known[unknown] = idle_ns - sum(known.values())
    return dict(sorted(known.items(), key=lambda cause: -cause[1]))


def _blocking_call_text(calls: pa.Table) -> str:
    """Return the call that blocked CPUs most, as ``, cudaStreamSynchronize and others``."""
    if not calls.num_rows:
        return ""
    name = printable(calls["call"][0].as_py())[:LONGEST_CALL]
    return f", {name} and others" if calls.num_rows > 1 else f", {name}"


def idle_cause(column: str) -> str:
    """Return the cause of idle time that a column is of: ``late kernel launch (CPU-bound)`` of ``idle_launch_ns``."""
    return FIGURES[f"{column}_per_step"].label.removeprefix("Idle: ")


def host_notes(figures: Sequence[HostFigures], n_shown: int) -> Iterator[str]:
    """Yield what stands below the table, sentence by sentence: the slowest, what was left out, names not known."""
    pair = fastest_and_slowest(figures)
    backward_pair = uneven_backward(figures)
    if pair:
        yield _slowest(*pair)
    elif backward_pair:
        yield _uneven_backward_text(*backward_pair)
    loading = longest_between(figures)
    if loading:
        where = f" on {_name(loading)}" if len(figures) > 1 else ""
        between = (
            f"From the end of a step to the start of the next: {host_ms(loading.between_ns)} "
            f"(median){where}"
        )
        yield f"{between}, probably in the data loader."
    n_open = sum(figure.n_open for figure in figures)
    if n_open:
        what, they = ("range", "it is") if n_open == 1 else ("ranges", "they are")
        yield (
            f"{n_open} step {what} had not ended at the end of the capture, so {they} not in the "
            "metrics."
        )
    if any(figure.rank is None for figure in figures):
        yield "The reports do not record the ranks of the processes. Pass --rank-map."
    if len(figures) > n_shown:
        yield f"These are the {n_shown} slowest of {len(figures)} processes. --json has all."


def _uneven_backward_text(least: HostFigures, most: HostFigures) -> str:
    """Return which process takes longest in backward, and which one it may wait for."""
    longest = f"{host_ms(most.phase_ns['backward'])} on {_name(most)}"
    shortest = f"{host_ms(least.phase_ns['backward'])} on {_name(least)}"
    return (
        f"Steps take equally long on all (within {percent_text(MUCH_RATIO, 0)}), but backward "
        f"takes {longest} and {shortest}. {_WAITING} {_name(least)} may be the one that is waited "
        "for."
    )


def _slowest(fast: HostFigures, slow: HostFigures) -> str:
    """Return which process is slowest, and whether it may only wait for another."""
    more = (slow.median_ns or 0) - (fast.median_ns or 0)
    share = f" ({percent_text(more / fast.median_ns)})" if fast.median_ns else ""
    longer = f"its median step takes {host_ms(more)}{share} longer than that of {_name(fast)}"
    more_backward = (slow.phase_ns["backward"] or 0) - (fast.phase_ns["backward"] or 0)
    if 2 * more_backward < more:
        return f"Slowest: {_name(slow)}, {longer}."
    return (
        f"Longest: {_name(slow)}, {longer}, most of it in backward. {_WAITING} {_name(slow)} may "
        "only wait."
    )


def host_ms(ns: float | None) -> str:
    """Return a time on the host, with few digits where it varies from step to step."""
    return ms_text(ns) if ns is None or ns not in _TWO_DECIMALS_NS else f"{ns / 1e6:.2f} ms"


def _name(process: HostFigures) -> str:
    return report_name(process) if process.rank is None else f"rank {process.rank}"


def report_name(process: HostFigures) -> str:
    """Return the report of a process as --rank-map names it: of several processes with the pid."""
    stem = PurePath(process.report).stem
    return stem if process.is_alone else f"{stem}:{process.pid}"


def settling_text(
    steps: int | None, captures: int | None, counts: Sequence[int], aim: str = "settle it"
) -> str:
    """Return how many steps or captures would settle a comparison, the cheaper way first.

    `counts` are the steps that both sides have now. Empty if neither number is known.
    """
    ways = []
    if steps:
        now = " and ".join(map(str, dict.fromkeys(counts)))
        # Two digits, because more is not known.
        unit = 10 ** max(len(str(steps)) - 2, 0)
        rounded_up = -(-steps // unit) * unit
        ways.append(f"about {rounded_up} steps per capture ({now} now)")
    if captures:
        same = " like these" if steps else ""
        ways.append(f"about {captures} captures of each{same}")
    if not ways:
        return ""
    if steps and captures and captures * max(counts) < steps:
        ways.reverse()
    return f"{' or '.join(ways)} would {aim}"


def opposed_text(parts: Sequence[tuple[str, float]]) -> str:
    """Return what part of the step time changed against it, or which two against each other, ns."""
    if len(parts) > 1:
        changes = ", ".join(f"{_part_label(name)} {delta_text('ns', ns)}" for name, ns in parts)
        return f"Parts of the step changed in opposite directions: {changes}."
    ((name, ns),) = parts
    direction = "more" if ns > 0 else "less"
    time = f"{ms_text(abs(ns), 3)} {direction}"
    return f"In the other direction, {_part_label(name)} takes {time}."


def _part_label(name: str) -> str:
    """Return what a part of the step, or a cause of idle time (``idle, launch``), is called."""
    part, _, cause = name.partition(", ")
    return metric_label(f"{part}_{cause}" if cause else part)
