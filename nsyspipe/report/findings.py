"""What to change, finding by finding, in words: for the summary, the page and notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from nsyspipe.findings.judge import (
    is_conditional,
    is_nvlink_assumed,
    is_wait_included,
)
from nsyspipe.model.figures import FIGURES
from nsyspipe.model.names import few
from nsyspipe.report import words
from nsyspipe.report.blocks import Line, Lines, Sentence
from nsyspipe.report.units import (
    absent,
    bandwidth_text,
    bytes_text,
    count_text,
    ms_text,
    percent_text,
)
from nsyspipe.run.rank_names import RankNames
from nsyspipe.run.run import Run

_CODE_WORD = re.compile(r"^\S*[_=()\d]")  # a word that is typed as it is keeps its first letter
# Suffix of a figure's name, and what writes it. The first that fits counts.
_UNITS = (
    ("_bytes_per_s", bandwidth_text),
    ("_ns", ms_text),
    ("_bytes", bytes_text),
    ("_share", percent_text),
    ("_ratio", percent_text),
    ("", count_text),
)
# What figures of the evidence are called that are none of a run's, and their parts.
_LABELS = {
    "left_for_compute": "less, for what the rank that computes least computes meanwhile",
    "idle_for_launches": "idle for late launches",
    "idle_at_late_start": "idle until what was launched late starts",
    "idle_for_input_and_calls": "idle for input and in blocking calls, while the CPU launches",
    "left_for_launching": "less, for the time that even the fastest CPU takes to launch a step",
    "fastest_launch": "time of the fastest CPU to launch a step",
    "beside_compute": "concurrent with compute, which stays",
    "above_launching": "step time above the launch time of the fastest CPU",
    "host_launch": "time to launch a step",
    "is_launch_bound": "CPUs need longer to launch a step than GPUs need to run it",
    "all_reduce": "longest all-reduce",
    "arrived_last": "collectives reached last, in all steps",
    "backward_on_device": "backward on the GPU",
    "bubble": "pipeline bubble",
    "by_breakdown": "as measured",
    "comm_delay_at_most": "compute delayed by communication, at most",
    "comm_delay": "compute delayed by communication",
    "comm_on_compute_stream": "communication on the compute stream",
    "could_hide": "compute that could overlap with communication",
    "exposed": "exposed comm",
    "exposed_grad_copy": "exposed gradient copies",
    "exposed_wait": "exposed wait time",
    "first_step_is_skipped": "first step is not used",
    "first_step_to_median": "first step, of the median one",
    "grad_copies": "number of gradient copies",
    "grad_copy": "gradient copies",
    "grad_copy_span": "from first to last gradient copy",
    "held_up": "delay of others",
    "held_up_steps": "steps in which others were delayed",
    "idle_pause": "idle in pauses of the CPU",
    "is_conditional": "conditional (not recorded)",
    "is_nvlink_assumed": "assumes NVLink, which was not recorded",
    "is_wait_included": "may include wait time",
    "is_estimate": "an estimate",
    "judged_idle_blocked": "idle (CPU blocked), late rank",
    "judged_idle_input": "idle (data loading), late rank",
    "judged_idle_launch": "idle (late launch), late rank",
    "lateness": "delays of others",
    "launched_late": "idle for lack of launches, more than the others",
    "left_by_replay": "left over if transfers take no time (simulated)",
    "limit_rank": "rank that the bound is of",
    "link_nominal": "peak bandwidth of the interconnect",
    "longer_window": "difference to the slowest rank",
    "nvlink_nominal": "peak bandwidth of NVLink",
    "overlap_compute_at_most": "compute during communication, at most",
    "overlap_compute": "compute during communication",
    "phase_excess": "excess of the phase",
    "replay_assumes": "simulation assumes",
    "replay_change": "simulated with",
    "replay_conditional": "estimated saving, if available",
    "replay_limit": "saving with perfect overlap, a limit",
    "replay_refused": "no estimate",
    "replay_step_time": "estimated step time",
    "replay_step_time_high": "estimated step time, at most",
    "replay_step_time_low": "estimated step time, at least",
    "saving": "saving at most",
    "slowdown_at_most": "slowdown under communication, at most",
    "slowdown": "slowdown under communication",
    "exposed_by_late_launches": "communication that late launches expose",
    "possible_waiting": "communication that may be wait time",
    "slowed_by_possible_waiting": "compute slowed by that communication",
    "slowed_by_waiting": "slowdown while waiting",
    "steps_held_up": "number of steps in which others were delayed",
    "wait_caused": "wait time caused, in all steps",
}
_BY_NUMBER = RankNames()
_NUMBERS_OF_RANKS = {"rank", "limit_rank"}
LITTLE = 0.02  # of the step time: a change that saves less at most is not on the first screen
_OF_WINDOW = {
    "exposed_wait",
    "longer_window",
}  # parts of the bound on late ranks where more than compute is left
_MOST_LISTED = 12
_LEAST_PART = 0.00005  # of a bound: smaller parts change none of its four digits
_CUTS = {"left_for_launching", "left_for_compute"}  # parts that are what a limit cuts off
_NOTHING = 0.0005  # less of the step time is shown as nothing, without a sign


class Finding(Struct, frozen=True):
    """One finding as words."""

    id: str
    severity: str
    action: str
    title: str
    advice: str
    saving: str
    share: float  # of the step time, 0 to 1; 0 without a bound
    share_text: str
    expected: tuple[str, str] | None  # share and time by a replay; None where there was none
    is_limit: bool  # they are of no setting: what it could bring at most
    replayed: tuple[float, float, float] | None  # the step time then, likely, at least, at most
    is_clear: bool  # not where that lies within the replay's error, as far as that is said
    worth: float  # share by a replay, else the bound; of a limit that
    is_conditional: bool  # the bound holds only if something is so that was not recorded
    is_wait_included: bool
    assumed: str  # what the bound assumes, `words.assumed_text`
    parts: str  # of the bound, `parts_text`
    replay_assumes: str | None
    is_nvlink_assumed: bool  # whether it promises NVLink that was not recorded
    refused: str  # why its advice was not replayed
    evidence: list[tuple[str, str]]
    saving_ns: float | None  # the bound
    expected_ns: float | None  # by a replay: of its advice, of a condition or of a limit

    @property
    def likely(self) -> str:
        """What stands beside the bound where findings are replayed: a share, or why there is none."""
        if self.expected is None:
            return (
                ("conditional" if self.is_conditional else "no estimate") if self.share else absent
            )
        if self.is_limit:
            return f"with perfect overlap: {self.expected[0]}"
        return f"{'if available: ' * self.is_conditional}{self.expected[0] if self.is_clear else words.NOT_CLEAR}"

    @property
    def gain(self) -> str:
        """What a replay gives, with its share of the step."""
        return f"{self.expected[1]} ({self.expected[0]})" if self.expected else absent

    @property
    def assumes(self) -> str:
        """What its gain assumes, with ``if`` in front; nothing where it assumes nothing."""
        of_replay = self.replay_assumes if self.expected else None
        assumed = [words.NVLINK_THERE] * self.is_nvlink_assumed + [of_replay] * bool(of_replay)
        return f"if {' and '.join(filter(None, assumed))}" if assumed else ""

    @property
    def headline(self) -> str:
        """The action, as a sentence begins."""
        return _sentence(self.action)


def findings_of(run: Run) -> list[Finding]:
    """Return what to change, as `run.findings` ranks it; shares are of the mean step time, which none can exceed."""
    summary = run.summary().to_pylist()[0]
    step_time = words.mean_step_ns(summary)

    def share(ns: float | None) -> float | None:
        return ns / step_time if ns is not None and step_time else None

    findings = []
    for row in run.finding_rows:
        if _is_of_capture(row):
            continue
        saving = row["saving_ns_per_step"] or None
        evidence = json.loads(row["evidence"])
        is_limit = (limit := evidence.get("replay_limit_ns_per_step")) is not None
        of_condition = evidence.get("replay_conditional_ns_per_step", row["expected_ns_per_step"])
        possible = share(saving)
        expected = share(limit if is_limit else of_condition)
        if expected is not None and abs(expected) < _NOTHING:
            expected = 0.0
        times = tuple(evidence.get(f"replay_step_time_{end}ns") for end in ("", "low_", "high_"))
        in_replay = (
            None
            if expected is None
            else (percent_text(expected), ms_text(expected * (step_time or 0.0)))
        )
        findings.append(
            Finding(
                row["id"],
                row["severity"],
                row["action"],
                _sentence(row["title"]),
                _sentence(row["advice"]),
                ms_text(saving),
                min(possible or 0.0, 1.0),
                percent_text(possible),
                in_replay,
                is_limit,
                None if None in times else times,
                None in times[1:] or words.is_clear(summary["step_time_ns"], *times[1:]),
                min(possible or 0.0, 1.0) if expected is None else expected,
                is_conditional(row),
                is_wait_included(row),
                words.assumed_text(evidence),
                parts_text(evidence, run.rank_names),
                evidence.get("replay_assumes"),
                is_nvlink_assumed(row),
                evidence.get("replay_refused") or "",
                [*evidence_rows(evidence, run.rank_names)],
                saving,
                limit if is_limit else of_condition,
            )
        )
    return findings


def finding_lines(finding: Finding) -> Lines:
    """Return everything about a finding: what to do, why, and what the saving rests on."""
    lines = [Line(f"{finding.title}.", "Why:"), Line(f"{finding.advice}.", "How:")]
    if finding.share:
        lines.append(
            Line(
                f"at most {finding.saving} per step ({finding.share_text}){finding.assumed}.",
                "Saves",
            )
        )
    if finding.parts:
        lines.append(Line(f"{finding.parts}.", "Upper bound:"))
    if finding.expected and finding.is_limit:
        lines.append(
            Line(
                f"{finding.gain} with perfect overlap, which is a limit and not a setting.", "Saves"
            )
        )
    elif finding.expected:
        noise = "" if finding.is_clear else ", within noise"
        lines.append(
            Line(
                f"{finding.gain}{noise}{finding.assumes and f', {finding.assumes}'}.",
                "Estimated saving:",
            )
        )
    if finding.refused:
        lines.append(Line(f"{finding.refused}.", "No estimate:"))
    return Lines(f"{finding.action} [{finding.id}]", lines)


def of_capture(run: Run) -> Iterator[Sentence]:
    """Yield what distorted the capture and costs no step of the figures: that is to be known, and nothing to change."""
    yield from (
        Sentence(f"{_sentence(row['title'])}.") for row in run.finding_rows if _is_of_capture(row)
    )


def _is_of_capture(row: Mapping[str, Any]) -> bool:
    return row["id"] == "profiler-overhead" and not row["saving_ns_per_step"]


def _sentence(text: str) -> str:
    return text if _CODE_WORD.match(text) else f"{text[:1].upper()}{text[1:]}"


def evidence_rows(
    evidence: Mapping[str, Any], names: RankNames = _BY_NUMBER
) -> Iterator[tuple[str, str]]:
    """Return name and value of each figure of a finding's evidence, in words; what is null, or is there by rank too, is left out."""
    for key, value in evidence.items():
        if isinstance(value, dict):
            yield from evidence_rows(
                {f"{key}: {name}": of_name for name, of_name in value.items()}, names
            )
        elif value is not None and f"{key}_by_rank" not in evidence:
            yield _words(key, value, names)


def _words(key: str, value: object, names: RankNames) -> tuple[str, str]:
    head, _, name = key.partition(": ")
    column, _, split_by = head.partition("_by_")
    stem = column.removesuffix("_per_step")
    suffix, write = next((suffix, write) for suffix, write in _UNITS if f"_{stem}".endswith(suffix))
    figure = FIGURES.get(column) or FIGURES.get(stem)
    bare = stem.removesuffix(suffix).removeprefix("n_")
    label = (
        figure.short
        if figure
        else "bytes of " * (suffix == "_bytes" and bare in _LABELS) + _label(bare)
    )
    label += " per step" * (stem != column and "per step" not in label)
    which = (
        {"rank": names.in_text(f", rank {name}"), "part": f", {_label(name)}"}.get(
            split_by, f", {name}"
        )
        if name
        else ""
    )
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, list):
        text = few(value, _MOST_LISTED) or absent
    elif stem in _NUMBERS_OF_RANKS and isinstance(value, int):
        text = names.name(value)
    else:
        text = write(value) if isinstance(value, int | float) else str(value)
    return label + which, text


def _label(name: str) -> str:
    return _LABELS.get(name, name.replace("_", " "))


def parts_text(evidence: Mapping[str, Any], names: RankNames = _BY_NUMBER) -> str:
    """Return the sum that a bound is; nothing of one visible part, but of late ranks."""
    parts, longest = (
        evidence.get(name, {}) for name in ("saving_ns_per_step_by_part", "lateness_ns_per_step")
    )
    parts = dict(sorted(parts.items(), key=lambda part: -part[1]))
    has_more = len(parts) > 1 or (
        longest and abs(parts.get("delays", 0.0) / longest - 1) >= words.SEEN
    )
    if "delays" in parts and longest and has_more:
        late = f"rank {names.name(evidence['rank'])}'s"
        cut = {name: ns for name, ns in parts.items() if name != "delays"}
        together = "all delays of a step together" + f" {ms_text(parts['delays'])}" * bool(cut)
        if cut:
            limits = ", ".join(_limit_text(name, evidence) for name in cut)
            together += f", cut to {ms_text(sum(parts.values()))}: {limits}"
        return f"{together}. The longest delay is {late}, {ms_text(longest)} per step on average"
    if parts.keys() == {"above_launching"}:
        return "the step time above the launch time of the fastest CPU"
    whole = sum(parts.values())
    seen = {name: ns for name, ns in parts.items() if abs(ns) >= _LEAST_PART * whole}
    if "delays" in parts or not (longest or len(seen) > 1):
        return ""
    text = " + ".join(f"{_label(name)} {ms_text(ns)}" for name, ns in seen.items() if ns > 0)
    less = {name: ns for name, ns in seen.items() if ns < 0 and name not in _CUTS}
    text += "".join(f", less {ms_text(-ns)} {_label(name)}" for name, ns in less.items())
    cuts = [_limit_text(name, evidence) for name in seen if name in _CUTS]
    if cuts:
        text += f", cut to {ms_text(whole)}: {', '.join(cuts)}"
    if longest:
        whose = (
            "with the shortest step without wait time"
            if parts.keys() <= _OF_WINDOW
            else "that computes least"
        )
        return f"in each step, on the rank {whose}: {text}"
    return (
        text
        if (rank := evidence.get("limit_rank")) is None
        else f"on rank {names.name(rank)}: {text}"
    )


def _limit_text(name: str, evidence: Mapping[str, Any]) -> str:
    """Say what a bound is limited by: no step is shorter than that."""
    if name == "left_for_compute":
        return "even the rank that computes least computes for the rest of a step"
    launch_ns, step_ns = (
        evidence.get(f"{of}_ns_per_step") for of in ("fastest_launch", "step_time")
    )
    if launch_ns is None:
        return "even the fastest CPU needs the rest of a step to launch the step"
    of_step = "" if step_ns is None else f" of {ms_text(step_ns)}"
    return f"even the fastest CPU launches for {ms_text(launch_ns)}{of_step} on average"


def is_little(findings: Sequence[Finding]) -> bool:
    """Tell whether bounds are known, and all are little."""
    return 0 < max((finding.share for finding in findings), default=0.0) < LITTLE
