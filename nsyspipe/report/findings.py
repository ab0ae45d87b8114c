"""What to change, finding by finding, in words: for the summary, the page and notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from nsyspipe.findings.judge import (
    EXPOSURE,
    LESSEN_EXPOSURE,
    OF_HOSTS,
    STRAGGLER,
    is_conditional,
    is_nvlink_assumed,
    is_wait_included,
)
from nsyspipe.model.figures import FIGURES
from nsyspipe.model.names import few
from nsyspipe.report import words
from nsyspipe.report.blocks import Sentence
from nsyspipe.report.units import absent, bandwidth_text, bytes_text, count_text, ms_text, percent_text
from nsyspipe.run.rank_names import RankNames
from nsyspipe.run.run import Run

_CODE_WORD = re.compile(r"^\S*[_=()\d]")  # a word that is typed as it is keeps its first letter
# Suffix of a figure's name, and what writes it. The first that fits counts.
_UNITS = (
    ("_bytes_per_s", bandwidth_text), ("_ns", ms_text), ("_bytes", bytes_text),
    ("_share", percent_text), ("_ratio", percent_text), ("", count_text),
)  # fmt: skip
# What figures of the evidence are called that are none of a run's, and their parts.
_LABELS = {
    "left_for_compute": "less, for what the rank that computes least computes meanwhile", "idle_for_launches": "idle for late launches",
    "idle_at_late_start": "idle until what was launched late starts", "idle_for_input_and_calls": "idle for input and in blocking calls, as much as the host launches beside",
    "left_for_launching": "less, for the time that even the fastest host takes to launch a step", "fastest_launch": "time of the fastest host to launch a step", "beside_compute": "beside compute, which stays", "above_launching": "step longer than the fastest host takes to launch it", "host_launch": "time to launch a step",
    "is_launch_bound": "hosts take longer to launch a step than devices work",
    "all_reduce": "longest all-reduce", "arrived_last": "collectives reached last, in all steps", "backward_on_device": "backward on the device",
    "bubble": "pipeline bubble", "by_breakdown": "as measured", "comm_delay_at_most": "compute delayed by communication, at most", "comm_delay": "compute delayed by communication", "comm_on_compute_stream": "communication on the compute stream", "could_hide": "time that could hide more",
    "exposed": "exposed comm", "exposed_grad_copy": "exposed gradient copies", "exposed_wait": "exposed waiting",
    "first_step_is_skipped": "first step is left out", "first_step_to_median": "first step, of the median one",
    "grad_copies": "number of gradient copies", "grad_copy": "gradient copies", "grad_copy_span": "from first to last gradient copy",
    "held_up": "others held up", "held_up_steps": "steps in which others were held up", "idle_pause": "idle in pauses of the host", "is_conditional": "rests on what was not recorded",
    "is_nvlink_assumed": "assumes NVLink, which was not recorded", "is_wait_included": "holds waiting that is not known",
    "is_estimate": "an estimate", "judged_idle_blocked": "idle blocked, rank waited for", "judged_idle_input": "idle input, rank waited for",
    "judged_idle_launch": "idle launch, rank waited for",
    "lateness": "delays of others", "launched_late": "idle for lack of launches, more than the others", "left_by_replay": "left over if transfers take no time (by a replay)", "limit_rank": "rank that the bound is of", "link_nominal": "nominal bandwidth of the link", "longer_window": "step shorter than the slowest rank's by",
    "nvlink_nominal": "nominal bandwidth of NVLink", "overlap_compute_at_most": "compute beside communication, at most", "overlap_compute": "compute beside communication",
    "phase_excess": "excess of the phase", "replay_assumes": "replay assumes", "replay_change": "replayed with", "replay_conditional": "gain of the replay, if so", "replay_limit": "gain of the replay, a limit", "replay_refused": "not replayed",
    "replay_step_time": "step time in the replay", "replay_step_time_high": "step time in the replay, at most",
    "replay_step_time_low": "step time in the replay, at least", "saving": "gain at most", "slowdown_at_most": "slower beside communication, at most", "slowdown": "slower beside communication",
    "exposed_by_late_launches": "communication that late launches expose",
    "possible_waiting": "communication that may be waiting", "slowed_by_possible_waiting": "compute slowed by that communication",
    "slowed_by_waiting": "compute slowed by waiting", "steps_held_up": "number of steps in which others were held up", "wait_caused": "waiting caused, in all steps",
}  # fmt: skip
_BY_NUMBER, _NUMBERS_OF_RANKS = RankNames(), {"rank", "limit_rank"}
_LITTLE = 0.02  # of the step time: where no bound is more, there is little to gain
_OF_WINDOW = {"exposed_wait", "longer_window"}  # parts of the bound on late ranks where more than compute is left
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

    @property
    def likely(self) -> str:
        """What stands beside the bound where findings are replayed: a share, or why there is none."""
        if self.expected is None:
            return ("conditional" if self.is_conditional else "not replayed") if self.share else absent
        if self.is_limit:
            return f"hidden: {self.expected[0]}"
        return f"{'if so: ' * self.is_conditional}{self.expected[0] if self.is_clear else words.NOT_CLEAR}"

    @property
    def gain(self) -> str:
        """What a replay gives, with its share of the step."""
        return f"{self.expected[1]} ({self.expected[0]})" if self.expected else absent

    def is_level(self, other: Finding) -> bool:
        """Tell whether a replay gives each about what it gives the other: in either's range."""
        if not (self.replayed and other.replayed) or self.is_limit or other.is_limit:
            return False
        (own, *ends), (others, *of_other) = self.replayed, other.replayed
        return ends[0] <= others <= ends[1] and of_other[0] <= own <= of_other[1]

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
        possible, expected = share(saving), share(limit if is_limit else of_condition)
        if expected is not None and abs(expected) < _NOTHING:
            expected = 0.0
        times = tuple(evidence.get(f"replay_step_time_{end}ns") for end in ("", "low_", "high_"))
        in_replay = None if expected is None else (percent_text(expected), ms_text(expected * (step_time or 0.0)))
        findings.append(Finding(
            row["id"], row["severity"], row["action"], _sentence(row["title"]), _sentence(row["advice"]),
            ms_text(saving), min(possible or 0.0, 1.0), percent_text(possible), in_replay, is_limit,
            None if None in times else times, None in times[1:] or words.is_clear(summary["step_time_ns"], *times[1:]), min(possible or 0.0, 1.0) if expected is None else expected,
            is_conditional(row), is_wait_included(row), words.assumed_text(evidence),
            parts_text(evidence, run.rank_names), evidence.get("replay_assumes"), is_nvlink_assumed(row), evidence.get("replay_refused") or "", [*evidence_rows(evidence, run.rank_names)],
        ))  # fmt: skip
    return findings


def of_capture(run: Run) -> Iterator[Sentence]:
    """Yield what distorted the capture and costs no step of the figures: that is to be known, and nothing to change."""
    yield from (Sentence(f"{_sentence(row['title'])}.") for row in run.finding_rows if _is_of_capture(row))


def _is_of_capture(row: Mapping[str, Any]) -> bool:
    return row["id"] == "profiler-overhead" and not row["saving_ns_per_step"]


def _sentence(text: str) -> str:
    return text if _CODE_WORD.match(text) else f"{text[:1].upper()}{text[1:]}"


def evidence_rows(evidence: Mapping[str, Any], names: RankNames = _BY_NUMBER) -> Iterator[tuple[str, str]]:
    """Return name and value of each figure of a finding's evidence, in words; what is null, or is there by rank too, is left out."""
    for key, value in evidence.items():
        if isinstance(value, dict):
            yield from evidence_rows({f"{key}: {name}": of_name for name, of_name in value.items()}, names)
        elif value is not None and f"{key}_by_rank" not in evidence:
            yield _words(key, value, names)


def _words(key: str, value: object, names: RankNames) -> tuple[str, str]:
    head, _, name = key.partition(": ")
    column, _, split_by = head.partition("_by_")
    stem = column.removesuffix("_per_step")
    suffix, write = next((suffix, write) for suffix, write in _UNITS if f"_{stem}".endswith(suffix))
    figure = FIGURES.get(column) or FIGURES.get(stem)
    bare = stem.removesuffix(suffix).removeprefix("n_")
    label = figure.short if figure else "bytes of " * (suffix == "_bytes" and bare in _LABELS) + _label(bare)
    label += " per step" * (stem != column and "per step" not in label)
    which = (
        {"rank": names.in_text(f", rank {name}"), "part": f", {_label(name)}"}.get(split_by, f", {name}")
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
    parts, longest = (evidence.get(name, {}) for name in ("saving_ns_per_step_by_part", "lateness_ns_per_step"))
    parts = dict(sorted(parts.items(), key=lambda part: -part[1]))
    has_more = len(parts) > 1 or (longest and abs(parts.get("delays", 0.0) / longest - 1) >= words.SEEN)
    if "delays" in parts and longest and has_more:
        late = f"rank {names.name(evidence['rank'])}'s"
        cut = {name: ns for name, ns in parts.items() if name != "delays"}
        together = "all delays of a step together, at most" + f" {ms_text(parts['delays'])}" * bool(cut)
        if cut:
            limits = "; ".join(_limit_text(name, evidence) for name in cut)
            together += f", cut to {ms_text(sum(parts.values()))}: {limits}"
        return f"{together}; its longest is {late} for {ms_text(longest)} in the mean"
    if parts.keys() == {"above_launching"}:
        return "what a step takes longer than the fastest host needs to launch it"
    whole = sum(parts.values())
    seen = {name: ns for name, ns in parts.items() if abs(ns) >= _LEAST_PART * whole}
    if "delays" in parts or not (longest or len(seen) > 1):
        return ""
    text = " + ".join(f"{_label(name)} {ms_text(ns)}" for name, ns in seen.items() if ns > 0)
    less = {name: ns for name, ns in seen.items() if ns < 0 and name not in _CUTS}
    text += "".join(f", less {ms_text(-ns)} {_label(name)}" for name, ns in less.items())
    if cuts := [_limit_text(name, evidence) for name in seen if name in _CUTS]:
        text += f", cut to {ms_text(whole)}: {'; '.join(cuts)}"
    if longest:
        whose = "with the shortest step but for waiting" if parts.keys() <= _OF_WINDOW else "that computes least"
        return f"in each step of the rank {whose}: {text}"
    return text if (rank := evidence.get("limit_rank")) is None else f"on rank {names.name(rank)}: {text}"


def _limit_text(name: str, evidence: Mapping[str, Any]) -> str:
    """Say what a bound is limited by: no step is shorter than that."""
    if name == "left_for_compute":
        return "for the rest of a step even the rank that computes least computes"
    launch_ns, step_ns = (evidence.get(f"{of}_ns_per_step") for of in ("fastest_launch", "step_time"))
    if launch_ns is None:
        return "even the fastest host takes the rest of a step to launch it"
    of_step = "" if step_ns is None else f" of {ms_text(step_ns)}"
    return f"in each step to what even the fastest host leaves, which launches for {ms_text(launch_ns)}{of_step} in the mean"


def is_little(findings: Sequence[Finding]) -> bool:
    """Tell whether bounds are known, and all are little."""
    return 0 < max((one.share for one in findings), default=0.0) < _LITTLE


def order_notes(findings: Sequence[Finding]) -> list[str]:
    """Return in which order findings stand, and at last that their bounds do not add up."""
    by = "likely where it is known, else by up to" if any(one.expected for one in findings) else "up to"
    if_so = " (if so: over that link)" * any(one.is_conditional and one.expected for one in findings)
    lasts = {"bounds that may hold waiting": "is_wait_included", f"conditional ones{if_so}": "is_conditional"}
    bounds = [one for one in findings if one.share and (one.is_conditional or one.is_limit or not one.expected)]
    there = (those for those, name in lasts.items() if any(getattr(one, name) for one in bounds))
    notes = [f"largest first, by {by}", *(f"{those} last" for those in there)]
    names = {one.id for one in findings}
    late = next((at for at, one in enumerate(findings) if one.id == STRAGGLER), 0)
    is_behind = any(one.id in OF_HOSTS and one.worth < findings[late].worth for one in findings[:late])
    notes += ["straggler after why its hosts launch late"] * is_behind
    notes += ["comm-bound after what lessens it"] if EXPOSURE in names and names & LESSEN_EXPOSURE else []
    return [*notes, "do not add them up: they overlap"]
