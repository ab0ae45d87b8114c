"""Findings in words, for the summary, the page and notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.summary import divided
from nsyspipe.findings.host_lines import (
    HOST_CALL,
    HOST_FUNCTION,
    HOST_LINE,
    INNERMOST_LINE,
    LINE_UNKNOWN,
    LOCK_HELD,
    LOCK_HELD_BY_OTHER,
    LOCK_WAIT,
    LOCK_WAIT_SHARE,
    MIN_SHARE_OF_LOCK,
    NAMING_LINES,
)
from nsyspipe.findings.judge import is_conditional, is_nvlink_assumed, is_wait_included
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
    upper_first,
)
from nsyspipe.run.rank_names import RankNames
from nsyspipe.run.run import Run

# A first word that is code keeps its first letter in a sentence.
_CODE_WORD = re.compile(r"^\S*[_=()\d]")


class _UnitOfName(NamedTuple):
    """A unit at the end of the name of a metric."""

    # With an underscore in front. Empty for a count, which has no unit.
    suffix: str
    # Writes a value in the unit.
    write: Callable[[float | None], str]


# The first suffix that a name has counts.
_UNITS_OF_NAMES = (
    _UnitOfName("_bytes_per_s", bandwidth_text),
    _UnitOfName("_ns", ms_text),
    _UnitOfName("_bytes", bytes_text),
    _UnitOfName("_share", percent_text),
    _UnitOfName("_ratio", percent_text),
)
_COUNT = _UnitOfName("", count_text)
# Words for entries of the evidence that are not metrics of a run, and for their parts.
_LABELS = {
    "copies_beside_no_compute": "exposed gradient copies",
    "left_for_compute": "less, for the compute of the rank that computes least",
    "idle_for_launches": "idle for late launches",
    "idle_at_late_start": "idle from late launches to the start of their kernels",
    "idle_for_input_and_calls": (
        "idle for data loading or blocking calls (a CPU that launches faster starts these earlier)"
    ),
    "left_for_launching": "less, because the fastest CPU takes time to launch a step",
    "fastest_launch": "time of the fastest CPU to launch a step",
    "beside_compute": "concurrent with compute, which stays",
    "above_launching": "step time beyond the time that the fastest CPU takes to launch a step",
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
    "left_by_replay": "not saved in the simulation without transfer times",
    "limit_rank": "rank that the bound is of",
    "link_nominal": "peak bandwidth of the interconnect",
    "longer_window": "difference of the step times of the slowest and the limiting rank",
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
_RANK_ENTRIES = {"rank", "limit_rank"}
# A change that saves less of the step time, at most, is not on the first screen.
LITTLE_SHARE_OF_STEP = 0.02
# Parts of the bound on late ranks if more than compute is left to them.
_PARTS_OF_WHOLE_STEP = {"exposed_wait", "longer_window"}
_MAX_LISTED_VALUES = 12
# Figures that `line_text` has in words.
_PLACE_KEYS = {HOST_LINE, HOST_FUNCTION, HOST_CALL}
# Saved runs of earlier versions have these: lines at which a thread released Python's lock, which
# say little about what held the lock.
_EARLIER_KEYS = {"let_go_line", "lock_holder_line"}
_LINE_KEYS = {
    *_PLACE_KEYS,
    *_EARLIER_KEYS,
    INNERMOST_LINE,
    LINE_UNKNOWN,
    LOCK_HELD,
    LOCK_HELD_BY_OTHER,
    LOCK_WAIT,
    LOCK_WAIT_SHARE,
}
_RECORD_LINES = (
    "not recorded. To name it, capture with nsys profile --python-sampling=true, and export with "
    "--include-blobs=true."
)
_LOOK_AT_LINE = "Look at this line, at what it calls, and at the loop around it."
_LOOK_AT_CODE = "Look at these lines, and at what they call."
_RECORD_LOCK = (
    "waits were not recorded. To see them, capture with nsys profile --trace=cuda,nvtx,python-gil."
)
_MODULE = "<module>"
# Smaller parts of a bound change none of its four digits.
_MIN_SHOWN_SHARE_OF_BOUND = 0.00005
# Smaller parts of a bound are shown as one number.
_MIN_NAMED_SHARE_OF_BOUND = 0.01
# A part of the bound of `launch-bound`.
_OTHER_CAUSES_PART = "idle_for_input_and_calls"
# The part "idle" of the bound of `ddp-single-gpu`.
_IDLE_BESIDES_PAUSES = "idle (without data loading and without CPU pauses of 2 ms or more)"
# Parts of a bound that a limit subtracts.
_LIMIT_PARTS = {"left_for_launching", "left_for_compute"}
# An estimate below this share of the step time is shown as zero, without a sign.
_MIN_ESTIMATED_SHARE = 0.0005


class Bound(Struct, frozen=True):
    """The most that a change can save per step."""

    # None if not known.
    saving_ns: float | None
    saving: str
    # Of the mean step time, 0 to 1. 0 if not known.
    share: float
    share_text: str
    # How its parts add up to it, see `parts_text`.
    parts: str
    # What it assumes, see `words.assumed_text`.
    assumed: str
    # The share of the bound that is idle time for other causes than the finding is about.
    other_causes_share: float = 0.0


class EstimatedSaving(NamedTuple):
    """What a simulation of a change saves per step."""

    # Of the mean step time.
    share: str
    time: str


class SimulatedStep(NamedTuple):
    """The step time after a change by a simulation, and its range."""

    likely_ns: float
    low_ns: float
    high_ns: float


class Estimate(Struct, frozen=True):
    """What a simulation of the advice of a finding gives."""

    # None if there is no estimate.
    saving: EstimatedSaving | None
    saving_ns: float | None
    # Whether it is the limit of what any setting can reach, not of one setting.
    is_limit: bool
    step: SimulatedStep | None
    # False if the captured step time is within the range of the estimate.
    is_clear: bool
    assumes: str | None
    # Why the advice was not simulated. Empty if it was.
    refused: str


class Finding(Struct, frozen=True):
    """One finding in words."""

    id: str
    severity: str
    action: str
    title: str
    advice: str
    bound: Bound
    estimate: Estimate
    # Whether the bound holds only under a condition that was not recorded.
    is_conditional: bool
    # Whether the bound may include wait time.
    is_wait_included: bool
    # Whether it promises NVLink, which was not recorded.
    is_nvlink_assumed: bool
    # Label and text of each entry.
    evidence: list[tuple[str, str]]
    # At which line of Python the CPU was, or why that is not known. Empty if no line explains it.
    line_of_python: str = ""
    is_line_known: bool = False
    # How long the launching thread waited for Python's lock, or how to record it. Empty if no
    # thread was sampled either.
    lock_wait: str = ""
    is_lock_wait_long: bool = False

    @property
    def gain(self) -> str:
        """The estimated saving, with its share of the step time."""
        saving = self.estimate.saving
        if not saving:
            return absent
        return f"{saving.time} ({saving.share})"

    @property
    def assumes(self) -> str:
        """What the estimate assumes, with ``if`` in front. Empty if it assumes nothing."""
        assumptions = []
        if self.is_nvlink_assumed:
            assumptions.append(words.NVLINK_THERE)
        if self.estimate.saving and self.estimate.assumes:
            assumptions.append(self.estimate.assumes)
        return f"if {' and '.join(assumptions)}" if assumptions else ""

    @property
    def headline(self) -> str:
        """The action, as a sentence begins."""
        return _sentence(self.action)


def findings_of(run: Run) -> list[Finding]:
    """Return what to change, in the order of `run.findings`.

    Shares are of the mean step time, which no saving can exceed.
    """
    (summary,) = run.summary().to_pylist()
    rows = [row for row in run.finding_rows if not _is_of_capture(row)]
    return [_finding(row, summary, run.rank_names) for row in rows]


def _finding(row: Mapping[str, Any], summary: Mapping[str, Any], names: RankNames) -> Finding:
    """Return a row of `Run.finding_rows` in words."""
    evidence = json.loads(row["evidence"])
    mean_step_ns = words.mean_step_ns(summary)
    # A saving of 0 is none.
    saving_ns = row["saving_ns_per_step"] or None
    bound = _bound(saving_ns, evidence, mean_step_ns, names)
    estimate = _estimate(row, evidence, mean_step_ns, summary["step_time_ns"])
    # Lines of Python have texts of their own.
    figures = {key: value for key, value in evidence.items() if key not in _LINE_KEYS}
    evidence_texts = [*evidence_rows(figures, names)]
    title = _sentence(row["title"])
    advice = _sentence(row["advice"])
    finding = Finding(
        id=row["id"],
        severity=row["severity"],
        action=row["action"],
        title=title,
        advice=advice,
        bound=bound,
        estimate=estimate,
        is_conditional=is_conditional(row),
        is_wait_included=is_wait_included(row),
        is_nvlink_assumed=is_nvlink_assumed(row),
        evidence=evidence_texts,
    )
    return _with_lines_of_python(finding, evidence)


def _with_lines_of_python(finding: Finding, evidence: Mapping[str, Any]) -> Finding:
    """Return a finding with the line of Python, and with how long Python's lock was waited for."""
    is_line_known = any(key in evidence for key in _PLACE_KEYS)
    lock_wait_share = evidence.get(LOCK_WAIT_SHARE, 0.0)
    return replace(
        finding,
        line_of_python=line_text(finding.id, evidence),
        is_line_known=is_line_known,
        lock_wait=lock_text(evidence),
        is_lock_wait_long=lock_wait_share >= MIN_SHARE_OF_LOCK,
    )


def _bound(
    saving_ns: float | None,
    evidence: Mapping[str, Any],
    mean_step_ns: float | None,
    names: RankNames,
) -> Bound:
    """Return the upper bound of a finding, which is not known if `saving_ns` is None."""
    share = divided(saving_ns, mean_step_ns)
    # A bar is not longer than the step.
    bar_share = min(share or 0.0, 1.0)
    return Bound(
        saving_ns=saving_ns,
        saving=ms_text(saving_ns),
        share=bar_share,
        share_text=percent_text(share),
        parts=parts_text(evidence, names),
        assumed=words.assumed_text(evidence),
        other_causes_share=_other_causes_share(saving_ns, evidence),
    )


def _other_causes_share(saving_ns: float | None, evidence: Mapping[str, Any]) -> float:
    """Return which share of a bound on late launches is idle time for input and blocking calls."""
    parts_ns = evidence.get("saving_ns_per_step_by_part", {})
    return divided(parts_ns.get(_OTHER_CAUSES_PART, 0.0), saving_ns) or 0.0


def _estimate(
    row: Mapping[str, Any],
    evidence: Mapping[str, Any],
    mean_step_ns: float | None,
    captured_step_ns: float | None,
) -> Estimate:
    """Return what a simulation (a replay) of the advice of a finding gives.

    The saving is the limit of all settings if the evidence has it, or else the saving under a
    condition if the evidence has it, or else the expected saving of the row.
    """
    limit_ns = evidence.get("replay_limit_ns_per_step")
    is_limit = limit_ns is not None
    if is_limit:
        saving_ns = limit_ns
    elif "replay_conditional_ns_per_step" in evidence:
        saving_ns = evidence["replay_conditional_ns_per_step"]
    else:
        saving_ns = row["expected_ns_per_step"]
    likely_ns = evidence.get("replay_step_time_ns")
    low_ns = evidence.get("replay_step_time_low_ns")
    high_ns = evidence.get("replay_step_time_high_ns")
    has_range = low_ns is not None and high_ns is not None
    # Without a range, nothing says that the estimate is noise.
    is_clear = not has_range or words.is_clear(captured_step_ns, low_ns, high_ns)
    return Estimate(
        saving=_estimated_saving(saving_ns, mean_step_ns),
        saving_ns=saving_ns,
        is_limit=is_limit,
        step=_simulated_step(likely_ns, low_ns, high_ns),
        is_clear=is_clear,
        assumes=evidence.get("replay_assumes"),
        refused=evidence.get("replay_refused") or "",
    )


def _estimated_saving(
    saving_ns: float | None, mean_step_ns: float | None
) -> EstimatedSaving | None:
    """Return a saving in words. None if it is not known.

    A saving that is too small for its digits is 0, so that it has no sign.
    """
    share = divided(saving_ns, mean_step_ns)
    if share is None or mean_step_ns is None:
        return None
    is_tiny = abs(share) < _MIN_ESTIMATED_SHARE
    shown_share = 0.0 if is_tiny else share
    time = ms_text(shown_share * mean_step_ns)
    return EstimatedSaving(share=percent_text(shown_share), time=time)


def _simulated_step(
    likely_ns: float | None, low_ns: float | None, high_ns: float | None
) -> SimulatedStep | None:
    """Return the step time after a change with its range. None if a part of it is not known."""
    if likely_ns is None or low_ns is None or high_ns is None:
        return None
    return SimulatedStep(likely_ns, low_ns, high_ns)


def finding_lines(finding: Finding) -> Lines:
    """Return everything about a finding: what to do, why, and what the saving rests on."""
    bound = finding.bound
    estimate = finding.estimate
    why = Line(f"{finding.title}.", label="Why:")
    how = Line(f"{finding.advice}.", label="How:")
    lines = [why, how]
    if finding.line_of_python:
        lines.append(Line(finding.line_of_python, label="Line of Python:"))
    if finding.lock_wait:
        lines.append(Line(finding.lock_wait, label="Python's lock (GIL):"))
    if bound.share:
        saving = f"at most {bound.saving} per step ({bound.share_text}){bound.assumed}."
        lines.append(Line(saving, label="Saves"))
    if bound.parts:
        parts = Line(f"{bound.parts}.", label="Upper bound:")
        lines.append(parts)
    if estimate.saving:
        lines.append(_estimate_line(finding))
    if estimate.refused:
        refusal = Line(f"{estimate.refused}.", label="No estimate:")
        lines.append(refusal)
    heading = f"{finding.action} [{finding.id}]"
    return Lines(heading, lines)


def _estimate_line(finding: Finding) -> Line:
    """Return the saving that a simulation estimates. A limit of all settings is named as such."""
    if finding.estimate.is_limit:
        limit = f"{finding.gain} with perfect overlap, which is a limit and not a setting."
        return Line(limit, label="Saves")
    noise = "" if finding.estimate.is_clear else ", within noise"
    assumption = f", {finding.assumes}" if finding.assumes else ""
    text = f"{finding.gain}{noise}{assumption}."
    return Line(text, label="Estimated saving:")


def line_text(finding_id: str, evidence: Mapping[str, Any]) -> str:
    """Return at which line of Python the CPU was while the GPU waited, or why it is not known.

    Empty for a finding that no line explains.
    """
    if finding_id not in NAMING_LINES:
        return ""
    is_place_known = any(key in evidence for key in _PLACE_KEYS)
    if not is_place_known:
        return _unknown_line_text(evidence)
    return " ".join(_place_sentences(evidence))


def _unknown_line_text(evidence: Mapping[str, Any]) -> str:
    """Return why the line is not known, and between which lines the thread held Python's lock.

    Without a reason, lines were not recorded. Then return how to record them.
    """
    reason = evidence.get(LINE_UNKNOWN)
    if not reason:
        return _RECORD_LINES
    held = evidence.get(LOCK_HELD)
    if held is None:
        return f"not known, because {reason}."
    code = _held_text(held)
    return (
        f"not known exactly, because {reason}. While it held the lock, the main thread ran {code}"
    )


def _held_text(held: Mapping[str, Any]) -> str:
    """Return which code ran while a thread held Python's lock, and where to look for the reason."""
    first = f"{held['after_file']}:{held['after_line']}"
    last = f"{held['file']}:{held['line']}"
    counts = f"in {_part_text(held)} samples that came late because of the lock"
    if first == last:
        return f"the code at {first} {counts}. {_LOOK_AT_LINE}"
    if _is_in_next_pass(held):
        code = f"the code from {first} to the end of the loop"
        code += f", and from the start of the loop to {last}"
    else:
        code = f"the code from {first} to {last}"
    return f"{code}, {counts}. {_LOOK_AT_CODE}"


def _is_in_next_pass(held: Mapping[str, Any]) -> bool:
    """Tell whether a thread released the lock at an earlier line of the function it was in."""
    is_in_one_file = held["file"] == held["after_file"]
    is_in_one_function = is_in_one_file and held["function"] == held["after_function"]
    return bool(is_in_one_function and held["line"] < held["after_line"])


def _place_sentences(evidence: Mapping[str, Any]) -> Iterator[str]:
    """Yield where the main thread was: at a line, in a function, and in a call, if these are known.

    Only the first sentence says that it was while the GPU waited. The innermost line is only known
    together with the line that calls it.
    """
    line = evidence.get(HOST_LINE)
    innermost = evidence.get(INNERMOST_LINE)
    function = evidence.get(HOST_FUNCTION)
    call = evidence.get(HOST_CALL)
    when = "While the GPU waited, the"
    if line is not None:
        yield f"{when} main thread was at {_place_text(line)}, {_steps_text(line)}."
    if innermost is not None:
        yield f"This line calls other code, which was at {_place_text(innermost)}."
    if function is not None:
        beginning = when if line is None else "The"
        place = _function_text(function)
        counts = f"{_samples_text(function)}, {_steps_text(function)}"
        yield f"{beginning} main thread was in {place}, {counts}."
    if call is not None:
        beginning = when if line is None and function is None else "The"
        place = _place_text(call)
        yield f"{beginning} main thread was in the call at {place}, {_steps_text(call)}."


def _function_text(function: Mapping[str, Any]) -> str:
    """Return where samples were: in a function with its lines, or in code that it calls."""
    first = function["line"]
    last = function["last_line"]
    lines = f"{first}" if first == last else f"{first}-{last}"
    place = f"{function['file']}:{lines}"
    if function["function"] == _MODULE:
        return f"module-level code ({place}) or what it calls"
    return f"the function {function['function']} ({place}) or what it calls"


def lock_text(evidence: Mapping[str, Any]) -> str:
    """Return how long the launching thread waited for Python's lock, and who held it meanwhile.

    If waits were not recorded, return how to record them. Empty for a finding that is not about
    the lock.
    """
    if LOCK_WAIT not in evidence:
        return ""
    wait_ns = evidence[LOCK_WAIT]
    if wait_ns is None:
        return _RECORD_LOCK
    if wait_ns == 0:
        return "the launching thread did not wait for it in this idle time."
    share = percent_text(evidence.get(LOCK_WAIT_SHARE))
    text = f"the launching thread waited {ms_text(wait_ns)} per step for this lock"
    text += f", {share} of the idle time of this finding."
    held = evidence.get(LOCK_HELD_BY_OTHER)
    if held is not None:
        text += " Meanwhile, another thread held the lock."
        text += f" That thread ran {_held_text(held)}"
    elif evidence[LOCK_WAIT_SHARE] < MIN_SHARE_OF_LOCK:
        text += " So other threads that hold the lock are not the main cause."
    return text


def _place_text(line: Mapping[str, Any]) -> str:
    place = f"{line['file']}:{line['line']}"
    return f"{place} {_samples_text(line)}"


def _samples_text(place: Mapping[str, Any]) -> str:
    return f"in {_part_text(place)} samples"


def _part_text(place: Mapping[str, Any]) -> str:
    n_samples = count_text(place["n_samples"])
    n_of_samples = count_text(place["n_of_samples"])
    return f"{n_samples} of {n_of_samples}"


def _steps_text(line: Mapping[str, Any]) -> str:
    n_steps = count_text(line["n_steps"])
    n_of_steps = count_text(line["n_of_steps"])
    return f"in {n_steps} of {n_of_steps} steps"


def capture_notes(run: Run) -> Iterator[Sentence]:
    """Yield what distorted the capture, but did not change the times of the steps in use.

    A reader should know it, although there is nothing to change.
    """
    for row in run.finding_rows:
        if _is_of_capture(row):
            title = _sentence(row["title"])
            yield Sentence(f"{title}.", is_close=False)


def _is_of_capture(row: Mapping[str, Any]) -> bool:
    is_of_profiler = row["id"] == "profiler-overhead"
    return is_of_profiler and not row["saving_ns_per_step"]


def _sentence(text: str) -> str:
    """Return a text as a sentence begins."""
    is_code = _CODE_WORD.match(text)
    return text if is_code else upper_first(text)


def evidence_rows(
    evidence: Mapping[str, Any], names: RankNames = _BY_NUMBER
) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each entry of the evidence of a finding.

    A value may be split, for example by rank: then each part has its own row. Nulls are left out. A
    value is left out as well if the evidence also has its split by rank.
    """
    for key, value in evidence.items():
        is_also_by_rank = f"{key}_by_rank" in evidence
        if isinstance(value, dict):
            value_of_part = {f"{key}: {part}": part_value for part, part_value in value.items()}
            yield from evidence_rows(value_of_part, names)
        elif value is not None and not is_also_by_rank:
            yield _evidence_row(key, value, names)


def _evidence_row(key: str, value: object, names: RankNames) -> tuple[str, str]:
    """Return the label and the text of an entry.

    In the key ``idle_ns_by_rank: 3``, the metric is ``idle_ns``, it is split by ``rank``, and the
    part is ``3``. Other keys are a metric alone.
    """
    split_metric, _, part = key.partition(": ")
    metric, _, split_by = split_metric.partition("_by_")
    label = _metric_label(metric)
    part_label = _part_label(split_by, part, names)
    return f"{label}{part_label}", _value_text(metric, value, names)


def _metric_label(column: str) -> str:
    """Return what a metric is called. The label of a metric per step ends in ``per step``.

    The words are not added to a label that has them already.
    """
    stem = column.removesuffix("_per_step")
    figure = FIGURES.get(column) or FIGURES.get(stem)
    label = figure.short if figure else _label_without_figure(stem)
    is_per_step = stem != column
    if is_per_step and "per step" not in label:
        return f"{label} per step"
    return label


def _label_without_figure(stem: str) -> str:
    """Return the label of an entry that is not a metric of a run, from its name without unit.

    The labels of `_LABELS` are also those of times, so a number of bytes is named as such.
    """
    suffix = _unit_of(stem).suffix
    name = stem.removesuffix(suffix).removeprefix("n_")
    label = _label(name)
    needs_bytes = suffix == "_bytes" and name in _LABELS
    return f"bytes of {label}" if needs_bytes else label


def _unit_of(stem: str) -> _UnitOfName:
    """Return the unit at the end of the name of a metric. Without a unit, it is a count."""
    # A name may be a unit alone, such as ``ns``. So it gets the underscore of a suffix.
    name = f"_{stem}"
    units = (unit for unit in _UNITS_OF_NAMES if name.endswith(unit.suffix))
    return next(units, _COUNT)


def _part_label(split_by: str, part: str, names: RankNames) -> str:
    """Return the part that a split value is of, with a comma in front.

    A value may be split by rank, by the parts of a bound (``part``), or by names such as those of
    phases. Empty for a value that is not split.
    """
    if not part:
        return ""
    if split_by == "rank":
        return names.in_text(f", rank {part}")
    is_part_of_bound = split_by == "part"
    label = _label(part) if is_part_of_bound else part
    return f", {label}"


def _value_text(column: str, value: object, names: RankNames) -> str:
    """Return a value in words.

    The name of the column says in which unit the value is, and whether the value is a rank.
    """
    stem = column.removesuffix("_per_step")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return few(value, _MAX_LISTED_VALUES) or absent
    is_rank = stem in _RANK_ENTRIES
    if is_rank and isinstance(value, int):
        return names.name(value)
    if isinstance(value, int | float):
        return _unit_of(stem).write(value)
    return str(value)


def _label(name: str) -> str:
    return _LABELS.get(name, name.replace("_", " "))


def parts_text(evidence: Mapping[str, Any], names: RankNames = _BY_NUMBER) -> str:
    """Return how the parts of a bound add up to the bound, the largest part first.

    The delays of late ranks, and the time above launching, have sentences of their own. Any other
    bound with only one visible part has no text, unless it is on a late rank.
    """
    unsorted_parts_ns = evidence.get("saving_ns_per_step_by_part", {})
    largest_first = sorted(unsorted_parts_ns.items(), key=itemgetter(1), reverse=True)
    parts_ns = dict(largest_first)
    if "delays" in parts_ns:
        return _delays_text(parts_ns, evidence, names)
    if parts_ns.keys() == {"above_launching"}:
        return "the step time minus the time that the fastest CPU takes to launch a step"
    # Parts below 0 are subtracted.
    bound_ns = sum(parts_ns.values())
    min_visible_ns = _MIN_SHOWN_SHARE_OF_BOUND * bound_ns
    visible_ns = {name: ns for name, ns in parts_ns.items() if abs(ns) >= min_visible_ns}
    is_on_late_rank = bool(evidence.get("lateness_ns_per_step"))
    if len(visible_ns) <= 1 and not is_on_late_rank:
        return ""
    place = _place_of_bound(parts_ns, evidence, names)
    return f"{place}{_sum_text(visible_ns, bound_ns, evidence)}"


def _place_of_bound(
    parts_ns: Mapping[str, float], evidence: Mapping[str, Any], names: RankNames
) -> str:
    """Return on which rank the parts of a bound are, with a colon.

    The parts of a bound on a late rank are on another rank, which may differ from step to step.
    Empty if the parts are on no single rank.
    """
    is_on_late_rank = bool(evidence.get("lateness_ns_per_step"))
    if is_on_late_rank:
        are_of_whole_step = parts_ns.keys() <= _PARTS_OF_WHOLE_STEP
        if are_of_whole_step:
            return "in each step, on the rank with the shortest step without wait time: "
        return "in each step, on the rank that computes least: "
    limit_rank = evidence.get("limit_rank")
    if limit_rank is None:
        return ""
    return f"on rank {names.name(limit_rank)}, which limits it: "


def _delays_text(
    parts_ns: Mapping[str, float], evidence: Mapping[str, Any], names: RankNames
) -> str:
    """Return how the delays of several late ranks add up to a bound.

    The part ``delays`` is the sum of all delays. All other parts are limits: they are below 0, and
    cut the sum of the delays to the bound. Empty if the bound is the delay of a single rank.
    """
    longest_ns = evidence.get("lateness_ns_per_step")
    if not longest_ns:
        return ""
    delays_ns = parts_ns["delays"]
    ratio_to_longest = delays_ns / longest_ns
    # A single rank is late if the sum of all delays looks the same as the longest delay.
    is_of_single_rank = abs(ratio_to_longest - 1) < words.MIN_VISIBLE_DIFFERENCE
    limits = [_limit_text(name, evidence) for name in parts_ns if name != "delays"]
    if is_of_single_rank and not limits:
        return ""
    text = "the sum of all delays of a step"
    if limits:
        bound_ns = sum(parts_ns.values())
        cut = f"is {ms_text(delays_ns)}, limited to {ms_text(bound_ns)}"
        text += f" {cut}, because {', and '.join(limits)}"
    name = names.name(evidence["rank"])
    longest = ms_text(longest_ns)
    return f"{text}. The longest delay is rank {name}'s, {longest} per step on average"


def _sum_text(parts_ns: Mapping[str, float], bound_ns: float, evidence: Mapping[str, Any]) -> str:
    """Return a bound as a sum of parts, then what is subtracted, then the limits that cut it.

    A part below 0 is subtracted. If it is a limit, its reason is given in place of its size.
    """
    added_ns = {name: ns for name, ns in parts_ns.items() if ns > 0}
    text = _added_text(added_ns, min_named_ns=_MIN_NAMED_SHARE_OF_BOUND * bound_ns)
    for name, ns in parts_ns.items():
        is_limit = name in _LIMIT_PARTS
        if ns < 0 and not is_limit:
            text += f", less {ms_text(-ns)} {_label(name)}"
    limits = [_limit_text(name, evidence) for name in parts_ns if name in _LIMIT_PARTS]
    if limits:
        reasons = ", and ".join(limits)
        text += f", limited to {ms_text(bound_ns)}, because {reasons}"
    return text


def _added_text(parts_ns: Mapping[str, float], min_named_ns: float) -> str:
    """Return parts as a sum. Several parts below `min_named_ns` are one number together."""
    labels = {name: _label(name) for name in parts_ns}
    is_without_ddp = "copies_beside_no_compute" in parts_ns
    if is_without_ddp and "idle" in parts_ns:
        labels["idle"] = _IDLE_BESIDES_PAUSES
    named_ns = {name: ns for name, ns in parts_ns.items() if ns >= min_named_ns}
    if len(named_ns) == len(parts_ns) - 1:
        # A single small part keeps its name.
        named_ns = dict(parts_ns)
    texts = [f"{ms_text(ns)} {labels[name]}" for name, ns in named_ns.items()]
    unnamed_ns = sum(parts_ns.values()) - sum(named_ns.values())
    if len(named_ns) < len(parts_ns):
        texts.append(f"{ms_text(unnamed_ns)} in smaller parts")
    return " + ".join(texts)


def _limit_text(part: str, evidence: Mapping[str, Any]) -> str:
    """Return why a bound is cut to a limit: no step can be shorter than some time.

    `part` is a name of `_LIMIT_PARTS`.
    """
    if part == "left_for_compute":
        return "a step takes at least the compute time of the rank that computes least"
    shortest = (
        "a step takes at least the time that the CPU needs to launch its kernels (with several "
        "ranks, the fastest CPU)"
    )
    launch_ns = evidence.get("fastest_launch_ns_per_step")
    if launch_ns is None:
        return shortest
    return f"{shortest}, {ms_text(launch_ns)} on average"


def is_little(findings: Sequence[Finding]) -> bool:
    """Tell whether some bounds are known, and all of them are little."""
    # The share of an unknown bound is 0.
    shares = [finding.bound.share for finding in findings]
    largest_share = max(shares, default=0.0)
    return 0 < largest_share < LITTLE_SHARE_OF_STEP
