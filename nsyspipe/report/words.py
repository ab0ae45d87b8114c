"""What is said of a run in words, whatever it is written in: subject, link, steps, idle causes, problems."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from nsyspipe.model.figures import FIGURES, Figure
from nsyspipe.model.names import LONGEST_CALL, few, grouped, listed, printable, ranges
from nsyspipe.model.problems import BACKWARD_SOURCES, EXPORT_AGAIN
from nsyspipe.model.schema import IDLE_CAUSES, PHASE_TIMES
from nsyspipe.report.units import (
    STEP_PARTS,
    bandwidth_text,
    delta_text,
    metric_label,
    ms_text,
    percent_text,
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
NOT_CLEAR = "within noise"  # a gain within the error of a replay
Row: TypeAlias = "Mapping[str, Any]"
Trouble: TypeAlias = "tuple[str, str, str, str | None]"  # severity, message, where, fix
_DIGITS = re.compile(r"\d+")
_MOST_ALIKE = 4
_NOT_JUDGED = re.compile(r"skipped checks: (?P<rules>[a-z-]+(, [a-z-]+)*) \((?P<reason>.*)\)")
_MOST_RULES = 5  # that are named where one reason keeps them from being judged
_ABOUT_COMM = {*CAUSES["communication and late ranks"], *CAUSES["communication that slows compute"]}
# of step time: idle that is told, and a cause of it
_LEAST_SHARE = 0.02
_LEAST_PART = 0.001
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
    others = {*number.unique().to_pylist()} - counted - skipped
    uneven = others - cut_off
    endless = others & steps_without_end(steps)
    return {
        "skipped": sorted(skipped),
        "incomplete": sorted(others - uneven - endless),
        "without a recorded end": sorted(endless),
        "not on every rank": sorted(uneven),
    }


def steps_without_end(steps: pa.Table) -> set[int]:
    """Return the steps that are a rank's last: they may be whole, but where the next one would begin they would end."""
    last = steps.group_by("rank", use_threads=False).aggregate([("step", "max")]).to_pylist()
    at_end = {(row["rank"], row["step_max"]) for row in last}
    rows = zip(*(steps[name].to_pylist() for name in ("rank", "step", "is_complete")), strict=True)
    return {step for rank, step, is_complete in rows if not is_complete and (rank, step) in at_end}


def backward_source(run: Run) -> list[str]:
    """Return what backward is taken to be where no range says it: what is said of it rests on that."""
    codes = {row["code"] for row in run.problem_rows}
    return [text for code, text in BACKWARD_SOURCES.items() if code in codes]


def sources(run: Run) -> list[str]:
    """Return what steps and backward are taken to be, for what is said of a run without `subject_parts`."""
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
    """Return how many ranks there are, and of how many that the job had, or of which processes where some have several."""
    if not header.has_shared_processes:
        return of_world(header.n_ranks, header.world_size, "rank", "s")
    # A launcher that counts fewer does not count these processes.
    n_processes = header.n_processes or 0
    size = header.world_size if n_processes < (header.world_size or 0) else None
    return f"{header.n_ranks} ranks on the GPUs of {of_world(n_processes, size, 'process', 'es')}"


def of_world(n: int, world_size: int | None, noun: str, plural: str) -> str:
    """Return ``4 ranks``, or ``1 of 4 ranks`` where some are missing."""
    missing = f" of {world_size}" if world_size not in (None, n) else ""
    return f"{n}{missing} {noun}{plural if missing or n != 1 else ''}"


def link_text(run: Run) -> str | None:
    """Return what communication crosses, on which edges, and how much of its bandwidth the run reached; in three lines."""
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
    found = f", {STEPS_BY_PATTERN}" if run.header.steps_from == "repetition" else ""
    return f"{n_used} step{'s'[: n_used != 1]} used of {n_captured} captured{found}"


def captured_versions_text(capture: RunCapture | None) -> str:
    """Return the versions that sidecars give of what a run was captured with; empty where there are none."""
    rows = capture_rows(capture)
    return ", ".join(f"{name} {value}" for name, value in rows if name not in {"command", "CUDA"})


def uneven_text(evenness: Evenness) -> str:
    """Return ``steps are uneven``, with mean and median, how many steps are like the median if few are, and the pattern."""
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
    """Return that steps are uneven, with their pattern where there is one, else with mean and median."""
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
    """Return of each side that has captures with uneven steps what the first of them is like."""
    uneven = (
        (name, [capture for capture in captures if capture.is_uneven]) for name, captures in sides
    )
    return [f"{name}: {uneven_text(captures[0])}." for name, captures in uneven if captures]


def mean_step_ns(summary: Mapping[str, Any]) -> float | None:
    """Return the mean step time that savings are shares of: of a mean, none can exceed it. None without steps."""
    return divided(1e9, summary["throughput_steps_per_s"])


def _part_name(part: Figure) -> str:
    """Return what a part of the step is called where the parts are listed; copies are said to hold memsets too."""
    return f"{part.short} (memcpy and memset)" if part.name == "exposed_memory" else part.short


def shares_text(run: Run) -> str | None:
    """Return what the shares are of, and the parts that sum to it as far as they are known; None without steps."""
    mean = rank_step_ns(run)
    if not mean:
        return None
    whose = "a rank's" if run.header.n_ranks > 1 else "the"
    what = f"{whose} mean {'capture' if run.is_capture else 'step'}, {ms_text(mean)}"
    of_parts = {
        _part_name(part): pc.mean(run.breakdown()[part.column], skip_nulls=False).as_py()
        for part in STEP_PARTS
    }
    if None in of_parts.values():
        return None
    return (
        f"shares are of {what}: "
        f"{' + '.join(f'{name} {percent_text(ns / mean)}' for name, ns in of_parts.items() if ns)}"
    )


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
    """Return phases with host times null in the first step, on ranks that run ahead into it from a step left out.

    There the host waits for what the device still has to do of that step, which is in no figure:
    where it takes longer than in all other steps.
    """
    steps = run.breakdown()
    first = pc.min(steps["step"]).as_py()
    if first is None or not any(step < first for step in run.skipped_steps):
        return phases
    of_first = zip(
        *(steps[name].to_pylist() for name in ("rank", "step", "wall_ns", "host_lead_ns")),
        strict=True,
    )
    ahead = [
        rank
        for rank, step, wall, lead in of_first
        if step == first and (lead or 0.0) >= _MUCH_AHEAD * wall
    ]
    is_waiting = pc.and_(
        pc.equal(phases["step"], first),
        pc.is_in(phases["rank"], value_set=pa.array(ahead, pa.int64())),
    )
    later = phases.filter(pc.not_equal(phases["step"], first))
    longest: dict[tuple[str, int], int] = {}
    for row in later.select(["phase", "rank", "host_ns"]).to_pylist():
        key = row["phase"], row["rank"]
        longest[key] = max(longest.get(key, 0), row["host_ns"] or 0)
    of_phases = zip(
        *(phases[name].to_pylist() for name in ("phase", "rank", "host_ns")), strict=True
    )
    is_longest = [(host or 0) > longest.get((phase, rank), 0) for phase, rank, host in of_phases]
    is_waiting = pc.and_(is_waiting, pa.array(is_longest, pa.bool_()))
    host = pc.if_else(is_waiting, pa.scalar(None, phases["host_ns"].type), phases["host_ns"])
    return phases.set_column(phases.column_names.index("host_ns"), "host_ns", host)


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
    """Return by what each phase differs most between ranks, from 10 % of a step on; None where none does."""
    return _phases_sentence(phase_differences(run))


def phases_of_rank_text(run: Run, rank: int) -> str | None:
    """Return in which phases a rank takes most; None where there is none. The others then wait, which is its consequence."""
    return _phases_sentence([phase for phase in phase_differences(run) if phase.slow_rank == rank])


def _phases_sentence(phases: Sequence[PhaseDifference]) -> str | None:
    if not phases:
        return None
    return (
        "Phases differ between ranks. "
        f"{' '.join(f'{phase.text[:1].upper()}{phase.text[1:]}' for phase in phases)}"
    )


def phase_differences(run: Run) -> list[PhaseDifference]:
    """Return by what each phase differs most between ranks, from 10 % of a step on, the largest difference first."""
    rows = _without_earlier_waits(run, _summary_phases(run))
    least = _MUCH_OF_RANKS * (rank_step_ns(run) or 0.0)
    by_rank = rows.group_by(["phase", "rank"]).aggregate([(name, "mean") for name in PHASE_TIMES])
    medians = host_medians_of(run)
    means = by_rank.to_pylist()
    for row in means:
        if row["phase"] in medians:
            row["host_ns_mean"] = medians[row["phase"]].get(row["rank"])
    most: dict[str, PhaseDifference] = {}
    for phase, name in product(sorted({row["phase"] for row in means}), PHASE_TIMES):
        of_ranks = [(row[f"{name}_mean"], row["rank"]) for row in means if row["phase"] == phase]
        (low, fast), *_, (high, slow) = (
            sorted(pair for pair in of_ranks if pair[0] is not None) * 2 or [(0.0, 0)] * 2
        )
        what = _PHASE_WORDS[name]
        if name == "host_ns":
            what = (
                "median CPU time" if phase in medians else "CPU time, including waits for the GPU"
            )
        where = {rank: f"on rank {run.rank_names.name(rank)}" for rank in (slow, fast)}
        text = f"{phase} ({what}): {ms_text(high)} {where[slow]}, {ms_text(low)} {where[fast]}."
        found = PhaseDifference(high - low, slow, text)
        most[phase] = max(
            most.get(phase, found), found, key=lambda phase: (phase.more_ns, phase.text)
        )
    told = [phase for phase in most.values() if phase.more_ns and phase.more_ns >= least]
    return sorted(told, key=lambda phase: (phase.more_ns, phase.text), reverse=True)


def rank_step_ns(run: Run) -> float | None:
    """Return the mean over ranks and steps, which shares are of: shorter than the mean step time, the slowest ranks'."""
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
    return f"{noun}{'s'[: len(numbers) != 1]} {few(ranges(numbers), most)}"


def same_problems(problems: Iterable[Row], place_of: Callable[[list[Row]], str]) -> list[Trouble]:
    """Join equal problems of several places, in the order of the first of each."""
    where = grouped(((row["severity"], row["message"], row["fix"]), row) for row in problems)
    return [
        (severity, message, place_of(rows), fix) for (severity, message, fix), rows in where.items()
    ]


def _exported_once(rows: Iterable[Trouble]) -> list[Trouble]:
    """Leave out a fix that begins as one before it: that one export, of all reports or of the same ones, mends both."""
    told: list[Trouble] = []
    places: set[str] = set()
    for severity, message, place, fix in rows:
        is_export = fix is not None and fix.startswith(EXPORT_AGAIN)
        is_told = is_export and not places.isdisjoint({"", place})
        told.append((severity, message, place, None if is_told else fix))
        if is_export:
            places.add(place)
    return told


def _counted_rules(message: str) -> str:
    """Return a message about rules that were not judged with their number where they are many; JSON has the names."""
    found = _NOT_JUDGED.fullmatch(message)
    names = found["rules"].split(", ") if found else []
    if found is None or len(names) <= _MOST_RULES:
        return message
    about = " about communication" if _ABOUT_COMM.issuperset(names) else ""
    return f"skipped {len(names)} checks{about} ({found['reason']})"


def troubles(problems: Iterable[Row], most_places: int = 12) -> list[Trouble]:
    """Return the problems, those of several ranks, else reports, once; of ranks' alike but for numbers the largest, of many the first."""

    def place_of(rows: list[Row]) -> str:
        ranks, reports = (
            sorted({row[name] for row in rows if row[name] is not None})
            for name in ("rank", "report")
        )
        return _numbered("rank", ranks, most_places) if ranks else few(reports, most_places)

    problems = [{**row, "message": _counted_rules(row["message"])} for row in problems]
    alike = grouped(
        ((row["severity"], _DIGITS.sub("#", row["message"]), row["fix"]), row) for row in problems
    )
    rows: list[Trouble] = []
    for group in alike.values():
        told = same_problems(group, place_of)
        is_of_ranks = all(row["rank"] is not None for row in group)
        if len(told) > (1 if is_of_ranks else _MOST_ALIKE):
            # Only digits differ: what is longest, then last in order, has the largest.
            is_by_size = is_of_ranks and "rank " not in told[0][1]
            severity, message, _, fix = (
                max(told, key=lambda one: (len(one[1]), one[1])) if is_by_size else told[0]
            )
            place = place_of(group)
            which = "largest" if is_by_size else "first"
            told = [
                (
                    severity,
                    message,
                    f"the {which} of {len(told)} alike{place and f': {place}'}",
                    fix,
                )
            ]
        rows += told
    rows = _exported_once(rows)
    return [
        (severity, message, "" if place in message else place, fix)
        for severity, message, place, fix in rows
    ]


def unseen_idle(run: Run) -> str:
    """Return why idle time is at least what is known of it; nothing where that is all."""
    return "idle time inside CUDA graphs is not visible" if has_whole_graphs(run) else ""


def idle_text(steps: pa.Table, calls: pa.Table, unseen: str = "") -> str | None:
    """Return what share of step time is idle, and why, causes from 0.1 % on; None under 2 %, or where not known."""
    names = ("wall_ns", "idle_ns", *IDLE_CAUSES)
    wall, idle, *of_causes = (
        pc.sum(steps[name], skip_nulls=False, min_count=1).as_py() for name in names
    )
    if not wall or idle is None or idle / wall < _LEAST_SHARE:
        return None
    n = steps.num_rows
    parts = dict(zip(map(idle_cause, IDLE_CAUSES), of_causes, strict=True))
    known = {cause: part for cause, part in parts.items() if part is not None}
    if 0 < len(known) < len(parts):  # the other causes are still told apart
        known[" or ".join(cause for cause in parts if cause not in known)] = idle - sum(
            known.values()
        )
    call: dict[str, str] = {}
    others = " and others" * (calls.num_rows > 1)
    call |= (
        {
            idle_cause(
                "idle_blocked_ns"
            ): f", {printable(calls['call'][0].as_py())[:LONGEST_CALL]}{others}"
        }
        if calls.num_rows
        else {}
    )
    causes = sorted(
        (pair for pair in known.items() if pair[1] / wall >= _LEAST_PART), key=lambda pair: -pair[1]
    )
    texts = [
        f"{name} {ms_text(part / n)} ({percent_text(part / wall)}{call.get(name, '')})"
        for name, part in causes
    ]
    total = f"idle {'at least ' if unseen else ''}{ms_text(idle / n)} ({percent_text(idle / wall)})"
    return f"{total}: {', '.join(texts) or 'cause not known'}{unseen and f' ({unseen})'}"


def idle_cause(column: str) -> str:
    """Return the cause of idle time that a column is of: ``late kernel launch (CPU-bound)`` of ``idle_launch_ns``."""
    return FIGURES[f"{column}_per_step"].label.removeprefix("Idle: ")


def host_notes(figures: Sequence[HostFigures], n_shown: int) -> Iterator[str]:
    """Yield what stands below the table, sentence by sentence: the slowest, what was left out, names not known."""
    pair = fastest_and_slowest(figures)
    if pair:
        yield _slowest(*pair)
    elif pair := uneven_backward(figures):
        least, most = pair
        yield (
            f"Steps take equally long on all (within {percent_text(MUCH_RATIO, 0)}), but "
            "backward takes "
            f"{host_ms(most.phase_ns['backward'])} on {_name(most)} and "
            f"{host_ms(least.phase_ns['backward'])} on "
            f"{_name(least)}. {_WAITING} {_name(least)} may be the one that is waited for."
        )
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


def _slowest(fast: HostFigures, slow: HostFigures) -> str:
    more = (slow.median_ns or 0) - (fast.median_ns or 0)
    share = f" ({percent_text(more / fast.median_ns)})" if fast.median_ns else ""
    longer = f"its median step takes {host_ms(more)}{share} longer than that of {_name(fast)}"
    backward = [one.phase_ns["backward"] or 0 for one in (fast, slow)]
    if 2 * (backward[1] - backward[0]) < more:
        return f"Slowest: {_name(slow)}, {longer}."
    return (
        f"Longest: {_name(slow)}, {longer}, most of it in backward. {_WAITING} {_name(slow)} may "
        "only wait."
    )


def host_ms(ns: float | None) -> str:
    """Return a time on the host, with few digits where it varies from step to step."""
    return ms_text(ns) if ns is None or ns not in _TWO_DECIMALS_NS else f"{ns / 1e6:.2f} ms"


def _name(one: HostFigures) -> str:
    return report_name(one) if one.rank is None else f"rank {one.rank}"


def report_name(one: HostFigures) -> str:
    """Return a process's report as --rank-map names it: of several processes with the pid."""
    return PurePath(one.report).stem + ("" if one.is_alone else f":{one.pid}")


def settling_text(
    steps: int | None, captures: int | None, counts: Sequence[int], aim: str = "settle it"
) -> str:
    """Return that so many steps or captures would do, the cheaper one first, beside the steps that both sides have now; nothing of neither."""
    n = max(counts)
    now = f"{' and '.join(map(str, dict.fromkeys(counts)))} now"
    unit = 10 ** max(len(str(steps)) - 2, 0)  # two digits: more is not known
    ways = [f"about {-(-steps // unit) * unit} steps per capture ({now})"] if steps else []
    ways += (
        [f"about {captures} captures of each{' like these' if steps else ''}"] if captures else []
    )
    is_shorter = steps and captures and captures * n < steps
    return f"{' or '.join(ways[::-1] if is_shorter else ways)} would {aim}" if ways else ""


def opposed_text(parts: Sequence[tuple[str, float]]) -> str:
    """Return what part of the step time changed against it, or which two against each other, ns."""
    if len(parts) > 1:
        changes = ", ".join(f"{_part_label(name)} {delta_text('ns', ns)}" for name, ns in parts)
        return f"Parts of the step changed in opposite directions: {changes}."
    ((name, ns),) = parts
    return (
        f"In the other direction, {_part_label(name)} takes {ms_text(abs(ns), 3)} "
        f"{'more' if ns > 0 else 'less'}."
    )


def _part_label(name: str) -> str:
    """Return what a part of the step, or a cause of idle time (``idle, launch``), is called."""
    part, _, cause = name.partition(", ")
    return metric_label(f"{part}_{cause}" if cause else part)
