"""The first screen of a run in words.

Where the time of a step goes, what to change first, and what to type next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from nsyspipe.analysis.summary import means_of_slowest
from nsyspipe.model.figures import Figure
from nsyspipe.model.names import counted, few, listed, noun_for, ranges, verb_for
from nsyspipe.model.schema import IDLE_CAUSES
from nsyspipe.report import blocks, overview, words
from nsyspipe.report.blocks import BarRow, Bars, Line, Lines
from nsyspipe.report.overview import (
    BOUNDED,
    CONDITIONAL,
    UNBOUNDED,
    Checks,
    Recommendation,
    Recommendations,
    StepPart,
    StepTime,
    Straggler,
)
from nsyspipe.report.units import (
    absent,
    in_one_unit,
    ms_text,
    percent_text,
    rate_text,
    short_percent,
    upper_first,
)
from nsyspipe.run.run import Run

_MAX_SHOWN_WARNINGS = 3
_MAX_SHOWN_CODES = 4
# Of an upper bound on late launches. Less idle time for other causes is not named.
_MIN_NAMED_SHARE_OF_OTHER_CAUSES = 0.25
# Without this check, the cause of idle time is not known.
_OF_LAUNCHES = "launch-bound"
# At this share of the step the main cause of idle time is named.
_MIN_IDLE_SHARE_WITH_CAUSE = 0.05
# Below this share of communication, overlap is shown as none.
_MIN_SHOWN_OVERLAP = 0.0005
_ESTIMATE_DIGITS = 3
MIXED = "The reports may come from different runs. Then nothing that compares ranks is true."
_NO_GPU = "No GPU activity was recorded, so there is nothing to measure."
_HOST_ONLY = "No GPU activity was recorded. The times below are CPU times of the NVTX step ranges."
_UNKNOWN_COMM = {
    "comm-in-graphs": (
        "Communication is not known, because CUDA graphs were captured as a whole. Capture with "
        "nsys profile --cuda-graph-trace=node."
    ),
    "no-comm-kernels": (
        "Communication is not known, because nsyspipe recognizes no communication kernel. Name "
        "yours with --comm-kernel REGEX."
    ),
}


def headline_of(run: Run, step: StepTime | None) -> str:
    """Return the mean step time, and how many steps it is a mean of.

    Without training steps, return the length of the capture. If nothing was measured on a GPU, or
    no step can be used, return why there is no step time.
    """
    if run.is_capture and step is not None:
        return f"Capture of {ms_text(step.mean_ns)}, no training steps found"
    if not run.header.n_ranks:
        return _HOST_ONLY if run.host_steps().num_rows else _NO_GPU
    if step is None:
        return "No step is complete on every rank, so there is no step time."
    rate = rate_text(1e9 / step.mean_ns, _ESTIMATE_DIGITS)
    used = words.steps_used_text(run, step.n_used, step.n_captured)
    return f"{_mean_step_time(step)} ({rate}), {used}"


def _mean_step_time(step: StepTime) -> str:
    """Return the mean step time, which is the sum of the parts of a step."""
    name = "Step time" if step.n_used == 1 else "Mean step time"
    return f"{name} {ms_text(step.mean_ns)}"


def warnings_of(run: Run) -> Iterator[str]:
    """Yield reasons to doubt the metrics, the most important first."""
    if overview.is_of_mixed_runs(run):
        yield MIXED
    codes = {row["code"] for row in run.problem_rows}
    if "few-steps" in codes:
        (n_steps,) = run.summary()["n_summary_steps"].to_pylist()
        steps = "a single step" if n_steps == 1 else f"{n_steps} steps"
        yield f"Based on {steps}. Capture at least 10 steps to see the variation."
    n_ranks = run.header.n_ranks
    n_job_ranks = run.header.n_job_ranks or 0
    has_missing_ranks = 0 < n_ranks < n_job_ranks
    if has_missing_ranks:
        are = verb_for(n_ranks, "are")
        seen = f"Only {n_ranks} of {n_job_ranks} ranks {are} in the reports."
        yield f"{seen} The ranks without a report may differ."
    evenness = run.evenness()
    if evenness is not None and evenness.is_uneven:
        yield words.uneven_sentence(evenness)


def trust_blocks(run: Run) -> Iterator[blocks.Troubles]:
    """Yield warnings about the metrics, then the first problems that are warnings or errors."""
    rows = [
        words.Trouble(severity="warning", message=text, place="", fix=None)
        for text in warnings_of(run)
    ]
    rows += _warnings_and_errors(run)[:_MAX_SHOWN_WARNINGS]
    if rows:
        yield blocks.Troubles(rows)


def _warnings_and_errors(run: Run) -> list[words.Trouble]:
    """Return the problems that are warnings or errors, with few of their ranks or reports."""
    problems = words.troubles(run.problem_rows, most_places=4)
    return [problem for problem in problems if problem.severity != "info"]


def step_blocks(run: Run, step: StepTime | None) -> Iterator[blocks.Block]:
    """Yield where a step goes, as bars, with what overlaps and whether ranks differ.

    If the parts of the step are not known, yield why.
    """
    if step is None:
        return
    is_explained_above = _unknown_comm(run) is not None
    if step.parts:
        yield _step_bars(run, step)
    elif not is_explained_above:
        # An error about communication would be among the problems above.
        yield blocks.Sentence(unknown_text(run), is_close=False)


def _step_bars(run: Run, step: StepTime) -> Bars:
    """Return the parts of a step that are not 0 as bars, with notes below them."""
    (summary,) = run.summary().to_pylist()
    unseen = words.unseen_idle(run)
    # The parts are written in the unit of the whole step, which has no bar.
    part_times = [ms_text(part.ns) for part in step.parts]
    _step_time, *times = in_one_unit([ms_text(step.mean_ns), *part_times])
    timed_parts = zip(step.parts, times, strict=True)
    rows = [_bar_row(part, time, unseen) for part, time in timed_parts if part.ns]
    notes = [*comm_notes(run, summary)]
    notes += _idle_notes(run, step)
    notes += _rank_notes(run)
    return Bars(_step_caption(run), rows, notes)


def _bar_row(part: StepPart, time: str, unseen: str) -> BarRow:
    """Return the bar of a part. `unseen` says why there may be more idle time, or is empty."""
    label = _part_label(part.figure, unseen)
    percent = short_percent(part.share)
    category = part.figure.category or ""
    return BarRow(label=label, time=time, percent=percent, share=part.share, category=category)


def _step_caption(run: Run) -> str:
    """Return what the bars are the parts of: the capture, or the steps of the slowest ranks."""
    whole = "the capture" if run.is_capture else "a step"
    if run.header.n_ranks == 1:
        whose = ""
    elif run.is_capture:
        whose = " (longest rank)"
    else:
        whose = " (slowest rank of each step)"
    return f"Where {whole} goes{whose}"


def _part_label(part: Figure, unseen: str) -> str:
    """Return the label of a part, beginning with a small letter.

    If there may be more idle time (`unseen`), the label of idle time says that it is a lower bound.
    """
    first_letter = part.label[:1].lower()
    text = f"{first_letter}{part.label[1:]}"
    is_lower_bound = part.name == "idle" and bool(unseen)
    return f"{text}, at least" if is_lower_bound else text


def unknown_text(run: Run) -> str:
    """Return why it is not known where a step goes."""
    unknown_comm = _unknown_comm(run)
    if unknown_comm is not None:
        return unknown_comm
    ranks = ranks_without_kernels(run)
    return (
        f"The parts of a step are unknown, because kernels{ranks}, copies or their names were not "
        "recorded."
    )


def _unknown_comm(run: Run) -> str | None:
    """Return why communication is not known, if an error of the run explains that."""
    texts = (text for code, text in _UNKNOWN_COMM.items() if _has_error(run, code))
    return next(texts, None)


def _has_error(run: Run, code: str) -> bool:
    errors = {row["code"] for row in run.problem_rows if row["severity"] == "error"}
    return code in errors


def ranks_without_kernels(run: Run) -> str:
    """Return the ranks without recorded kernels, as `` of ranks 1-3``.

    Empty if all ranks have kernels, and if the reports without kernels have no rank.
    """
    codes = {"no-kernels", "no-kernel-names"}
    rows = [row for row in run.problem_rows if row["code"] in codes]
    ranks = {row["rank"] for row in rows}
    ranks.discard(None)
    if not ranks:
        return ""
    noun = noun_for(len(ranks), "rank")
    numbers = few(ranges(ranks), most=3)
    return f" of {noun} {numbers}"


def comm_notes(run: Run, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield how much communication overlaps with compute, in one sentence.

    Nothing is yielded if a single rank does not communicate, or if overlap is not known.
    """
    share = summary["comm_share"]
    overlap = summary["overlap_ratio"]
    if share is None:
        yield _unknown_comm(run) or "Communication is not known."
    elif share == 0:
        if run.header.n_ranks > 1:
            yield "The ranks do not communicate."
    elif overlap is not None:
        if overlap < _MIN_SHOWN_OVERLAP:
            yield "Communication does not overlap with compute."
        else:
            yield f"{short_percent(overlap)} of communication overlaps with compute."


def _idle_notes(run: Run, step: StepTime) -> Iterator[str]:
    """Yield the main cause of idle time: the cause of more than half of it.

    Nothing is yielded if there is little idle time, or if the idle time of a cause is not known.
    """
    share_of_part = {part.figure.name: part.share for part in step.parts}
    idle_share = share_of_part.get("idle", 0.0)
    if idle_share < _MIN_IDLE_SHARE_WITH_CAUSE:
        return
    ns_of_cause = means_of_slowest(run.breakdown(), IDLE_CAUSES)
    known_ns = {cause: ns for cause, ns in ns_of_cause.items() if ns is not None}
    are_all_known = len(known_ns) == len(IDLE_CAUSES)
    idle_ns = sum(known_ns.values())
    if not are_all_known or not idle_ns:
        return
    main_cause = max(known_ns, key=known_ns.__getitem__)
    if known_ns[main_cause] > idle_ns / 2:
        yield f"Main cause of idle time: {words.idle_cause(main_cause)}."
        if main_cause == "idle_dependency_ns":
            yield (
                "These kernels were launched, but waited for another stream or for the GPU to "
                "start them."
            )


def _rank_notes(run: Run) -> Iterator[str]:
    """Yield that ranks are alike. Nothing if they differ, because then a table shows them."""
    spread = overview.rank_spread(run)
    if spread is None or spread.is_visible:
        return
    if not overview.has_straggler(run):
        most = ms_text(spread.ns, n_digits=2)
        yield f"Ranks are balanced: no part differs by more than {most} between ranks."
        if overview.do_waits_differ(run):
            yield (
                "Wait time is not one of these parts. It differs more between ranks, but most of "
                "it overlaps with compute."
            )


def straggler_texts(run: Run, straggler: Straggler) -> Iterator[str]:
    """Yield how long the other ranks wait for a late rank, and in which phases the rank is slow.

    The step time of the late rank does not show the delay, because all ranks wait for each other.
    """
    delay = ms_text(straggler.delay_ns, _ESTIMATE_DIGITS)
    name = run.rank_names.name(straggler.rank)
    text = f"Rank {name} delays the other ranks by {delay} per step."
    if straggler.late_at_start_ns:
        steps = run.breakdown()["step"]
        first_step = pc.min(steps).as_py()
        late = ms_text(straggler.late_at_start_ns, _ESTIMATE_DIGITS)
        text += f" It was already {late} late when step {first_step} began."
    yield text
    phases = words.phases_of_rank_text(run, straggler.rank)
    if phases:
        yield phases


def estimate_text(change: Recommendation, step_ns: float) -> str:
    """Return what a change saves. `step_ns` is the captured step time.

    An estimate is the step time after the change with its range. A saving without a range is an
    upper bound.
    """
    share = change.saved_share
    if change.step_ns is None or change.saving_ns is None or share is None:
        return "The saving is not known."
    percent = short_percent(share)
    has_range = change.low_ns is not None
    if not has_range:
        saving = ms_text(change.saving_ns, _ESTIMATE_DIGITS)
        return f"saves at most {saving} per step ({percent}), an upper bound"
    captured = _number(step_ns, n_digits=4)
    predicted = ms_text(change.step_ns, _ESTIMATE_DIGITS)
    predicted_range = _range_text(change)
    return f"{captured} -> {predicted} per step (estimated {predicted_range}), {percent} less"


def _range_text(change: Recommendation) -> str:
    low = _number(change.low_ns, _ESTIMATE_DIGITS)
    high = _number(change.high_ns, _ESTIMATE_DIGITS)
    return f"{low} to {high}"


def _number(ns: float | None, n_digits: int) -> str:
    return str(ms_text(ns, n_digits)).removesuffix(" ms")


def as_clause(sentence: str) -> str:
    """Return a sentence to follow a label: its first letter is small, unless a name comes first."""
    first_word, *_ = sentence.split(" ")
    # A name has a capital or a digit behind its first letter, as in `NCCL`.
    is_article = first_word == "A"
    is_usual_word = is_article or first_word[1:].islower()
    if not is_usual_word:
        return sentence
    first_letter = sentence[:1].lower()
    return f"{first_letter}{sentence[1:]}"


def change_blocks(recommendations: Recommendations, step_ns: float) -> Iterator[blocks.Block]:
    """Yield what to change first: the recommendation, its effect, and the reason."""
    first = recommendations.first
    if first is None:
        return
    finding = first.finding
    refused = finding.estimate.refused
    effect = upper_first(estimate_text(first, step_ns))
    reason = f"{as_clause(finding.title)}."
    lines = [Line(finding.action, tag=finding.id, style="bold")]
    lines += [Line(effect), Line(reason, label="Why:")]
    if finding.is_line_known:
        lines.append(Line(finding.line_of_python, label="Where:"))
    if finding.is_lock_wait_long:
        lines.append(Line(finding.lock_wait, label="Python's lock (GIL):"))
    is_upper_bound = first.saving_kind == BOUNDED
    if is_upper_bound and refused:
        lines.append(Line(f"No estimate: {refused}."))
    lines += map(Line, assumptions_of(first))
    lines += map(Line, why_first(recommendations))
    yield Lines("Change first", lines)


def assumptions_of(change: Recommendation) -> Iterator[str]:
    """Yield what a recommendation assumes, because it was not recorded."""
    finding = change.finding
    if finding.is_nvlink_assumed:
        yield "Assumes that NVLink connects all GPUs, which was not recorded (--topology)."
    if finding.is_wait_included:
        yield "May include wait time for other ranks, which is not known."
    share = finding.bound.other_causes_share
    if share >= _MIN_NAMED_SHARE_OF_OTHER_CAUSES:
        percent = short_percent(share)
        yield (
            f"{percent} of this bound is idle time for data loading or blocking calls. Faster "
            "launches may not save this time."
        )


def why_first(recommendations: Recommendations) -> Iterator[str]:
    """Yield why a recommendation comes first although an alternative could save more.

    The sentence is about the alternative that could save most. Nothing is yielded if no alternative
    could save more, or if nsyspipe has no words for the reason.
    """
    first = recommendations.first
    if first is None:
        return
    largest_first = overview.outranked_by(first, recommendations.alternatives)
    if not largest_first:
        return
    largest = largest_first[0]
    rule = largest.finding.id
    if overview.is_cause_of(first, largest):
        yield f"Comes before {rule}, because late launches are the cause of the delay."
    elif _needs_nvlink(largest):
        # Changes are numbered from 1.
        number = recommendations.shown.index(largest) + 1
        yield f"Change {number} ({rule}) could save more, but only if NVLink connects the GPUs."
    elif largest.saving_kind == BOUNDED:
        yield f"{rule} has a larger upper bound, but no estimate."


def _needs_nvlink(change: Recommendation) -> bool:
    return change.saving_kind == CONDITIONAL or change.finding.is_conditional


def alternatives_blocks(
    recommendations: Recommendations, n_shown: int | None
) -> Iterator[blocks.Block]:
    """Yield a table of alternatives with notes about all changes. Nothing without alternatives.

    The table has the first `n_shown` alternatives, or all if that is None.
    """
    shown_alternatives = recommendations.alternatives[:n_shown]
    if not shown_alternatives:
        return
    # Numbers begin at the first recommendation, which is shown above the table.
    numbered = enumerate(recommendations.shown, start=1)
    # By identity, because equal recommendations have different numbers.
    number_of_identity = {id(change): number for number, change in numbered}

    def number_cell(change: Recommendation) -> str:
        return str(number_of_identity[id(change)])

    # A step time without a range comes from an upper bound, and is not an estimate.
    has_bounds = any(
        change.low_ns is None and change.saving_kind != UNBOUNDED for change in shown_alternatives
    )
    step_heading = "step time after" if has_bounds else "est. step time"
    fields = [
        blocks.Field("", number_cell),
        blocks.Field("Alternatives", _action_cell, kind="prose"),
        blocks.Field(step_heading, _step_cell),
        blocks.Field("saved", _saved_cell),
    ]
    notes = _notes_text(recommendations, shown_alternatives)
    yield blocks.table_of("Alternatives", shown_alternatives, fields, notes or None)


def _action_cell(change: Recommendation) -> str:
    finding = change.finding
    return f"{finding.action} [{finding.id}]"


def _step_cell(change: Recommendation) -> str:
    """Return the step time after a change: an estimate with its range, or a lower bound."""
    if change.saving_kind == UNBOUNDED:
        return absent
    step_time = ms_text(change.step_ns, _ESTIMATE_DIGITS)
    if change.low_ns is None:
        return f"at least {step_time}"
    return f"{step_time} ({_range_text(change)})"


def _saved_cell(change: Recommendation) -> str:
    """Return the saved share of the step, which is an upper bound if there is no range."""
    if change.saved_share is None:
        return absent
    condition = "if available " if change.saving_kind == CONDITIONAL else ""
    has_range = change.low_ns is not None
    at_most = "" if has_range else "at most "
    share = short_percent(change.saved_share)
    return f"{condition}{at_most}{share}"


def notes_of_all(recommendations: Recommendations) -> str:
    """Return what holds for all recommendations: overlap, assumptions, and their limit."""
    return _notes_text(recommendations, recommendations.alternatives)


def _notes_text(
    recommendations: Recommendations, shown_alternatives: Sequence[Recommendation]
) -> str:
    """Return what holds for all recommendations on the screen: overlap, assumptions, limit."""
    overlap = _overlap_note(recommendations)
    # The first recommendation is shown above the alternatives.
    n_shown = 1 + len(shown_alternatives)
    assumption = _assumption_note(recommendations, n_shown)
    notes = [overlap, assumption, limit_text(recommendations)]
    return " ".join(note for note in notes if note)


def _overlap_note(recommendations: Recommendations) -> str:
    bounded = [change for change in recommendations.shown if change.saving_kind != UNBOUNDED]
    return "Savings overlap: do not add them." if len(bounded) > 1 else ""


def _assumption_note(recommendations: Recommendations, n_shown: int) -> str:
    """Return which estimates assume a fast enough CPU, by the numbers of the recommendations.

    Only the first `n_shown` recommendations count. Empty if no estimate assumes that.
    """
    shown = recommendations.shown[:n_shown]
    numbers = []
    for number, change in enumerate(shown, start=1):
        if change.finding.estimate.assumes:
            numbers.append(str(number))
    if not numbers:
        return ""
    # If all estimates assume it, they need no numbers. Estimates are shown with a range.
    n_estimates = sum(change.low_ns is not None for change in shown)
    if len(numbers) == n_estimates:
        return "The estimates assume that the CPU can keep up."
    if len(numbers) == 1:
        return f"The estimate for {numbers[0]} assumes that the CPU can keep up."
    return f"The estimates for {listed(numbers)} assume that the CPU can keep up."


def limit_text(recommendations: Recommendations) -> str | None:
    """Return the step time without communication, the limit of all changes to communication.

    None if it is not known, or if the first recommendation is about all communication. Then that
    recommendation already says it.
    """
    exposure = recommendations.exposure
    if exposure is None or exposure is recommendations.first:
        return None
    # The bound of this finding is the cost of all communication.
    comm_cost_ns = exposure.finding.bound.saving_ns
    if not comm_cost_ns:
        return None
    # The step time after a change and its saving sum to the captured step time.
    step_after_ns = exposure.step_ns or 0.0
    captured_step_ns = step_after_ns + (exposure.saving_ns or 0.0)
    shortest = ms_text(captured_step_ns - comm_cost_ns, _ESTIMATE_DIGITS)
    return f"Limit: with zero communication time, a step would take {shortest}."


def nothing_text(run: Run, recommendations: Recommendations, checks: Checks) -> str | None:
    """Return that there is nothing to change, as far as nsyspipe could check.

    None if there is something to change, or if nothing was judged.
    """
    sentences = nothing_sentences(run, recommendations, checks)
    return " ".join(sentences) or None


def nothing_sentences(run: Run, recommendations: Recommendations, checks: Checks) -> list[str]:
    """Return that there is nothing to change, then the figures behind that, each as a sentence.

    If the GPU is idle for an unknown cause, the first sentences say that. Empty if there is
    something to change. Empty as well if communication is not known or no training step can be
    used, because then too little was checked.
    """
    (summary,) = run.summary().to_pylist()
    if recommendations.first is not None or run.is_capture:
        return []
    if not summary["n_summary_steps"] or summary["comm_share"] is None:
        return []
    unknown_idle = _unknown_idle_sentences(summary, checks)
    sentences = unknown_idle or [_conclusion(recommendations, checks)]
    if summary["exposed_comm_share"]:
        exposed = short_percent(summary["exposed_comm_share"])
        sentences.append(f"Exposed communication is {exposed} of the step.")
    if recommendations.little:
        shares = [change.finding.bound.share for change in recommendations.little]
        largest = percent_text(max(shares))
        subject = "No other change" if unknown_idle else "No change"
        sentences.append(f"{subject} would save more than {largest} of the step.")
    return sentences


def _conclusion(recommendations: Recommendations, checks: Checks) -> str:
    """Return that there is nothing to change, or little to gain."""
    reservation = ", as far as nsyspipe could check" if checks.skipped else ""
    conclusion = "Little to gain" if recommendations.little else "Nothing to fix was found"
    return f"{conclusion}{reservation}."


def _unknown_idle_sentences(summary: Mapping[str, Any], checks: Checks) -> list[str]:
    """Return that the GPU is idle for an unknown cause, why, and what would show the cause.

    Empty if there is little idle time, or if its causes were checked.
    """
    share = summary["idle_share"]
    if share is None or share < _MIN_IDLE_SHARE_WITH_CAUSE:
        return []
    skipped = next((check for check in checks.skipped if _OF_LAUNCHES in check.rules), None)
    if skipped is None:
        return []
    sentences = [
        f"The GPU is idle for {short_percent(share)} of the step, and the cause is not known.",
        f"nsyspipe skipped {listed(skipped.rules)}: {skipped.reason}.",
    ]
    if skipped.fix:
        sentences.append(f"Fix: {skipped.fix}.")
    return sentences


def closing_text(
    run: Run, recommendations: Recommendations, checks: Checks, n_shown: int | None
) -> str:
    """Return which checks passed or were skipped, and what -v would show.

    `n_shown` is the number of alternatives on the screen. None stands for all.
    """
    sentences = []
    if checks.passed or checks.skipped:
        sentences.append(_checks_text(checks))
    hidden = [*_hidden_recommendations(recommendations, n_shown), *_hidden_notes(run)]
    if hidden:
        sentences.append(f"-v also shows {listed(hidden)}.")
    else:
        sentences.append("Use -v for details.")
    return " ".join(sentences)


def _checks_text(checks: Checks) -> str:
    """Return how many checks found nothing, and which were skipped. There is at least one check."""
    if not checks.passed:
        # So some checks were skipped.
        first_skipped = checks.skipped[0]
        return f"No check could be made: {first_skipped.reason}."
    passed = counted(len(checks.passed), "check")
    return f"{passed} found nothing{_skipped_text(checks)}."


def _skipped_text(checks: Checks) -> str:
    """Return how many checks were skipped, with a comma in front. Empty if there are none."""
    names = checks.skipped_rules
    if not names:
        return ""
    return f", {len(names)} skipped ({few(names, most=2)})"


def _hidden_recommendations(recommendations: Recommendations, n_shown: int | None) -> Iterator[str]:
    """Yield how many recommendations of each kind are not on the screen."""
    n_alternatives = len(recommendations.alternatives)
    if n_shown is not None and n_alternatives > n_shown:
        yield counted(n_alternatives - n_shown, "more recommendation")
    if recommendations.within_noise:
        within_noise = counted(len(recommendations.within_noise), "change")
        yield f"{within_noise} with a saving within noise"
    if recommendations.little:
        little = counted(len(recommendations.little), "change")
        yield f"{little} with a small saving"


def _hidden_notes(run: Run) -> Iterator[str]:
    """Yield how many notes are not on the screen, with the first of their codes."""
    distinct_codes = list(dict.fromkeys(row["code"] for row in _notes(run)))
    if distinct_codes:
        notes = counted(len(distinct_codes), "note")
        yield f"{notes} ({few(distinct_codes, _MAX_SHOWN_CODES)})"


def _notes(run: Run) -> list[Mapping[str, Any]]:
    """Return the problems that are mere notes, and that no other part of the screen shows."""
    shown_elsewhere = {*overview.SHOWN_ABOVE, "not-judged"}
    infos = [row for row in run.problem_rows if row["severity"] == "info"]
    return [row for row in infos if row["code"] not in shown_elsewhere]


def next_commands(
    recommendations: Recommendations,
    step: StepTime | None,
    reports: str | None,
    *,
    is_comment: bool = False,
) -> blocks.Commands:
    """Return what to type next: a command that writes the page, and one that explains a term.

    The term is that of the first recommendation. Readers of a comment have the page already, so a
    comment has only the second command.
    """
    commands = []
    if not is_comment:
        commands.append(f"nsyspipe analyze {reports or 'REPORTS'} --html run.html")
    term = _term_to_explain(recommendations, step)
    commands.append(f"nsyspipe explain {term}")
    return blocks.Commands("Next", commands)


def _term_to_explain(recommendations: Recommendations, step: StepTime | None) -> str:
    """Return the term that `nsyspipe explain` is to explain: the ID of the first finding.

    Without findings, it is the longest part of the step except compute. Without known parts, it is
    the step time.
    """
    changes = recommendations.shown or recommendations.little or recommendations.within_noise
    if changes:
        return changes[0].finding.id
    # The longest part comes first.
    parts = step.parts if step is not None else ()
    losses = [part.figure.name for part in parts if part.figure.name != "compute"]
    return losses[0] if losses else "step_time"
