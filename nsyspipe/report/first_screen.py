"""The first screen of a run in words: what run it is, where a step goes, what to change first, and what to type next."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from nsyspipe.analysis.summary import means_of_slowest
from nsyspipe.analysis.traffic import DATA, EXPERT, OTHER, PIPELINE, SHARDED, TENSOR, dimensions
from nsyspipe.findings.judge import STRAGGLER
from nsyspipe.model.figures import FIGURES, Figure
from nsyspipe.model.names import few, listed, ranges
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
    StepTime,
)
from nsyspipe.report.units import (
    absent,
    in_one_unit,
    ms_text,
    percent_text,
    rate_text,
    short_percent,
)
from nsyspipe.run.run import Run

_PARALLELISM = {
    DATA: "data parallel",
    SHARDED: "FSDP/ZeRO",
    TENSOR: "tensor parallel",
    PIPELINE: "pipeline parallel",
    EXPERT: "expert parallel",
}
_MOST_WARNINGS = 3
_MOST_CODES = 4
_MUCH_IDLE = 0.05  # of step time, from which on the main cause is named
_NOTHING = 0.0005  # a smaller share is shown as 0%
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
_OVERLAP = FIGURES["overlap_ratio"]
_BACKWARD = FIGURES["backward_overlap_ratio"]


def title_of(run: Run) -> blocks.Title:
    """Return what the run is called and what it ran on."""
    header = run.header
    facts = [_machines(run)]
    if header.hosts:
        facts.append("one node" if len(header.hosts) == 1 else f"{len(header.hosts)} nodes")
    parallelism = _parallelism(run)
    if parallelism:
        facts.append(parallelism)
    return blocks.Title(header.label, [fact for fact in facts if fact])


def _machines(run: Run) -> str:
    header = run.header
    if not header.n_ranks:
        n_processes = len({(row["report"], row["pid"]) for row in run.host_steps().to_pylist()})
        return (
            f"{words.of_world(n_processes, header.world_size, 'process', 'es')} without GPU "
            "activity"
        )
    names = listed(header.gpu_names) if header.gpu_names else ""
    n_job_ranks = header.n_job_ranks or header.n_ranks
    if header.has_shared_processes or header.n_ranks < n_job_ranks or len(header.gpu_names) != 1:
        return f"{words.ranks_text(header)}{f' on {names}' if names else ''}"
    return f"{header.n_ranks} x {names}"


def _parallelism(run: Run) -> str:
    """Return the kinds of parallelism with their sizes where there are several; nothing where communication is not known."""
    groups = dimensions(run.traffic(), run.header.world_size)
    named = [group for group in groups if set(group.roles) - {OTHER}]
    if len(named) == 1:
        return listed(_PARALLELISM[role] for role in named[0].roles if role in _PARALLELISM)
    return " x ".join(_sized(group.roles, group.size) for group in named)


def _sized(roles: Sequence[str], size: int | None) -> str:
    names = listed(
        _PARALLELISM[role].removesuffix(" parallel") for role in roles if role in _PARALLELISM
    )
    return names if size is None else f"{names} {size}"


def headline_of(run: Run, step: StepTime | None) -> str:
    """Return the step time, and how many steps it rests on; else why there is none."""
    if run.is_capture and step is not None:
        return f"Capture of {ms_text(step.mean_ns)}, no training steps found"
    if not run.header.n_ranks:
        return _HOST_ONLY if run.host_steps().num_rows else _NO_GPU
    if step is None:
        return "No step is complete on every rank, so there is no step time."
    rate = rate_text(1e9 / step.mean_ns, _ESTIMATE_DIGITS)
    return (
        f"{_mean_step_time(step)} ({rate}), "
        f"{words.steps_used_text(run, step.n_used, step.n_captured)}"
    )


def _mean_step_time(step: StepTime) -> str:
    """Return the mean step time, which the parts of a step add up to; of one step its time."""
    name = "Step time" if step.n_used == 1 else "Mean step time"
    return f"{name} {ms_text(step.mean_ns)}"


def warnings_of(run: Run) -> Iterator[str]:
    """Yield why one may not trust the figures: what matters most first."""
    if overview.is_of_mixed_runs(run):
        yield MIXED
    codes = {row["code"] for row in run.problem_rows}
    if "few-steps" in codes:
        n_steps = run.summary()["n_summary_steps"][0].as_py()
        steps = "a single step" if n_steps == 1 else f"{n_steps} steps"
        yield f"Based on {steps}. Capture at least 10 steps to see the variation."
    n_ranks = run.header.n_ranks
    n_job_ranks = run.header.n_job_ranks or 0
    if 0 < n_ranks < n_job_ranks:
        yield f"Only {n_ranks} of {n_job_ranks} ranks are in the reports. The other ranks may differ."
    evenness = run.evenness()
    if evenness is not None and evenness.is_uneven:
        yield words.uneven_sentence(evenness)


def trust_blocks(run: Run) -> Iterator[blocks.Block]:
    """Yield warnings: those of the figures, then problems that are no mere notes, the gravest first."""
    rows: list[words.Trouble] = [("warning", text, "", None) for text in warnings_of(run)]
    rows += _grave(run)[:_MOST_WARNINGS]
    if rows:
        yield blocks.Troubles(rows)


def _grave(run: Run) -> list[words.Trouble]:
    return [row for row in words.troubles(run.problem_rows, 4) if row[0] != "info"]


def step_blocks(run: Run, step: StepTime | None) -> Iterator[blocks.Block]:
    """Yield where a step goes, as bars, with what overlaps and whether ranks differ."""
    if step is None:
        return
    (summary,) = run.summary().to_pylist()
    if not step.parts:
        is_said = any(_has_error(run, code) for code in _UNKNOWN_COMM)
        if not is_said:
            yield blocks.Sentence(unknown_text(run), is_close=False)
        return
    unseen = words.unseen_idle(run)
    _, *times = in_one_unit([ms_text(step.mean_ns), *(ms_text(part.ns) for part in step.parts)])
    rows = [
        BarRow(
            label=_part_label(part.figure, unseen),
            time=time,
            percent=short_percent(part.share),
            share=part.share,
            category=part.figure.category or "",
        )
        for part, time in zip(step.parts, times, strict=True)
        if part.ns
    ]
    whole = "the capture" if run.is_capture else "a step"
    of_ranks = "" if run.header.n_ranks == 1 else " (slowest rank of each step)"
    of_ranks = " (longest rank)" if run.is_capture and of_ranks else of_ranks
    notes = [*comm_notes(run, summary), *_idle_notes(run, step), *_rank_notes(run)]
    yield Bars(f"Where {whole} goes{of_ranks}", rows, notes)


def _part_label(part: Figure, unseen: str) -> str:
    text = f"{part.label[:1].lower()}{part.label[1:]}"
    return f"{text}, at least" if part.name == "idle" and unseen else text


def unknown_text(run: Run) -> str:
    """Return why it is not known where a step goes."""
    known = next((text for code, text in _UNKNOWN_COMM.items() if _has_error(run, code)), None)
    if known is not None:
        return known
    ranks = ranks_without_kernels(run)
    return (
        f"The parts of a step are unknown, because kernels{ranks}, copies or their names were not "
        "recorded."
    )


def ranks_without_kernels(run: Run) -> str:
    """Return the ranks without recorded kernels, as `` of ranks 1-3``; nothing where there are none."""
    codes = {"no-kernels", "no-kernel-names"}
    ranks = {row["rank"] for row in run.problem_rows if row["code"] in codes} - {None}
    return f" of rank{'s'[: len(ranks) > 1]} {few(ranges(sorted(ranks)), 3)}" if ranks else ""


def comm_notes(run: Run, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield how much communication overlaps with compute, in one sentence."""
    share = summary["comm_share"]
    overlap = summary["overlap_ratio"]
    if share is None:
        yield next(
            (text for code, text in _UNKNOWN_COMM.items() if _has_error(run, code)),
            "Communication is not known.",
        )
    elif share == 0:
        if run.header.n_ranks > 1:
            yield "The ranks do not communicate."
    elif overlap is not None:
        if overlap < _NOTHING:
            yield "Communication does not overlap with compute."
        else:
            yield f"{short_percent(overlap)} of communication overlaps with compute."


def _has_error(run: Run, code: str) -> bool:
    return any(row["code"] == code and row["severity"] == "error" for row in run.problem_rows)


def _idle_notes(run: Run, step: StepTime) -> Iterator[str]:
    """Yield the main cause of idle time, where there is much of it and the causes are known."""
    share = next((part.share for part in step.parts if part.figure.name == "idle"), 0.0)
    if share < _MUCH_IDLE:
        return
    means = means_of_slowest(run.breakdown(), IDLE_CAUSES)
    causes_ns = {name: ns for name, ns in means.items() if ns is not None}
    if len(causes_ns) < len(IDLE_CAUSES) or not any(causes_ns.values()):
        return
    main = max(causes_ns, key=causes_ns.__getitem__)
    if 2 * causes_ns[main] > sum(causes_ns.values()):
        yield f"Main cause of idle time: {words.idle_cause(main)}."


def _rank_notes(run: Run) -> Iterator[str]:
    """Yield that ranks are alike; where they differ a table shows them."""
    spread = overview.rank_spread(run)
    if spread is None or spread.is_visible or has_straggler(run):
        return
    yield f"Ranks are balanced: each part differs by at most {ms_text(spread.ns, 2)}."


def has_straggler(run: Run) -> bool:
    """Tell whether a rank was found that the others wait for."""
    return any(row["id"] == STRAGGLER for row in run.finding_rows)


def late_rank(run: Run) -> int | None:
    """Return the rank that the others wait for, if it is only one; None for other runs."""
    late = [row["rank"] for row in run.stragglers().to_pylist() if row["lateness_ns"]]
    return late[0] if has_straggler(run) and len(late) == 1 else None


def delay_texts(run: Run, rank: int) -> Iterator[str]:
    """Yield how long the others wait for a late rank, and in which phases it is slow: its own step time does not show that."""
    n_steps = run.summary()["n_summary_steps"][0].as_py()
    delays = {row["rank"]: row["lateness_ns"] for row in run.stragglers().to_pylist()}
    delay = ms_text(delays[rank] / n_steps, _ESTIMATE_DIGITS)
    text = f"Rank {run.rank_names.name(rank)} delays the other ranks by {delay} per step"
    evidence = next(
        json.loads(row["evidence"]) for row in run.finding_rows if row["id"] == STRAGGLER
    )
    if evidence.get("rank") == rank and (late_ns := evidence.get("late_before_first_step_ns")):
        first_step = pc.min(run.breakdown()["step"]).as_py()
        text += (
            f", and was {ms_text(late_ns, _ESTIMATE_DIGITS)} late at the start of step {first_step}"
        )
    yield f"{text}."
    phases = words.phases_of_rank_text(run, rank)
    if phases:
        yield phases


def do_ranks_differ(run: Run) -> bool:
    """Tell whether the first screen has a table of ranks: they differ visibly, or one is late."""
    spread = overview.rank_spread(run)
    return spread is not None and (spread.is_visible or has_straggler(run))


def estimate_text(change: Recommendation, step_ns: float) -> str:
    """Return what a recommendation makes of the step time: an estimate with its range, else an upper bound."""
    if change.step_ns is None or change.saving_ns is None or change.saved_share is None:
        return "The saving is not known."
    share = short_percent(change.saved_share)
    if change.known == BOUNDED or change.low_ns is None:
        return (
            f"saves at most {ms_text(change.saving_ns, _ESTIMATE_DIGITS)} per step ({share}), an "
            "upper bound"
        )
    now = _number(step_ns, 4)
    then = ms_text(change.step_ns, _ESTIMATE_DIGITS)
    return f"{now} -> {then} per step (estimated {_range_text(change)}), {share} less"


def _range_text(change: Recommendation) -> str:
    return (
        f"{_number(change.low_ns, _ESTIMATE_DIGITS)} to {_number(change.high_ns, _ESTIMATE_DIGITS)}"
    )


def _number(ns: float | None, n_digits: int) -> str:
    return str(ms_text(ns, n_digits)).removesuffix(" ms")


def as_clause(sentence: str) -> str:
    """Return a sentence as it goes on after a label: its first letter is small, unless the word is a name."""
    first = sentence.partition(" ")[0]
    is_name = not first[1:].islower() and first != "A"
    return sentence if is_name else f"{sentence[:1].lower()}{sentence[1:]}"


def change_blocks(found: Recommendations, step_ns: float) -> Iterator[blocks.Block]:
    """Yield what to change first: the recommendation, its effect, and the reason."""
    first = found.first
    if first is None:
        return
    finding = first.finding
    lines = [
        Line(finding.action, tag=finding.id, style="bold"),
        Line(_upper(estimate_text(first, step_ns))),
        Line(f"{as_clause(finding.title)}.", "Why:"),
    ]
    if finding.refused and first.known == BOUNDED:
        lines.append(Line(f"No estimate: {finding.refused}."))
    lines += [Line(text) for text in (*assumptions_of(first), *why_first(found))]
    yield Lines("Change first", lines)


def _upper(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def assumptions_of(change: Recommendation) -> Iterator[str]:
    """Yield what a recommendation takes for granted that was not recorded."""
    finding = change.finding
    if finding.is_nvlink_assumed:
        yield "Assumes that NVLink connects all GPUs, which was not recorded (--topology)."
    if finding.is_wait_included:
        yield "May include wait time for other ranks, which is not known."


def why_first(found: Recommendations) -> Iterator[str]:
    """Yield why a recommendation comes first although another could save more."""
    first = found.first
    if first is None:
        return
    for other in overview.outranked_by(first, found.alternatives)[:1]:
        if overview.is_cause_of(first, other):
            yield (
                f"Comes before {other.finding.id}, because late launches are the cause of the "
                "delay."
            )
        elif other.known == CONDITIONAL or other.finding.is_conditional:
            place = found.shown.index(other) + 1
            yield (
                f"Change {place} ({other.finding.id}) could save more, but only if NVLink connects "
                "the GPUs."
            )
        elif other.known == BOUNDED:
            yield f"{other.finding.id} has a larger upper bound, but no estimate."


def alternatives_blocks(found: Recommendations, n_shown: int | None) -> Iterator[blocks.Block]:
    """Yield the alternatives with the lowest step time first, then notes about all of them."""
    shown = found.alternatives[:n_shown]
    if not shown:
        return
    numbers = {id(change): at for at, change in enumerate(found.shown, start=1)}

    def step_cell(change: Recommendation) -> str:
        if change.known == UNBOUNDED:
            return absent
        if change.low_ns is None:
            return f"at least {ms_text(change.step_ns, _ESTIMATE_DIGITS)}"
        return f"{ms_text(change.step_ns, _ESTIMATE_DIGITS)} ({_range_text(change)})"

    def saved_cell(change: Recommendation) -> str:
        if change.saved_share is None:
            return absent
        condition = "if available " if change.known == CONDITIONAL else ""
        most = "at most " if change.low_ns is None else ""
        return f"{condition}{most}{short_percent(change.saved_share)}"

    is_estimated = all(change.low_ns is not None or change.known == UNBOUNDED for change in shown)
    heading = "est. step time" if is_estimated else "step time after"
    fields = [
        blocks.Field("", lambda change: str(numbers[id(change)])),
        blocks.Field(
            "Alternatives", lambda change: f"{change.finding.action} [{change.finding.id}]", "prose"
        ),
        blocks.Field(heading, step_cell),
        blocks.Field("saved", saved_cell),
    ]
    yield blocks.table_of("Alternatives", shown, fields, _notes_text(found, shown) or None)


def notes_of_all(found: Recommendations) -> str:
    """Return what is true of all recommendations together: they overlap, what they assume, and their limit."""
    return _notes_text(found, found.alternatives)


def _notes_text(found: Recommendations, shown: Sequence[Recommendation]) -> str:
    return " ".join(filter(None, [*_notes_of_alternatives(found, shown), limit_text(found)]))


def _notes_of_alternatives(
    found: Recommendations, shown: Sequence[Recommendation]
) -> Iterator[str]:
    if sum(change.known != UNBOUNDED for change in found.shown) > 1:
        yield "Savings overlap: do not add them."
    assuming = [
        at for at, change in enumerate(found.shown, start=1) if change.finding.replay_assumes
    ]
    assuming = [at for at in assuming if at <= len(shown) + 1]
    estimated = [change for change in found.shown[: len(shown) + 1] if change.low_ns is not None]
    if assuming and len(assuming) == len(estimated):
        yield "The estimates assume that the CPU can keep up."
    elif assuming:
        verb = "assumes" if len(assuming) == 1 else "assume"
        noun = "estimate" if len(assuming) == 1 else "estimates"
        yield f"The {noun} for {listed(map(str, assuming))} {verb} that the CPU can keep up."


def limit_text(found: Recommendations) -> str | None:
    """Return the step time without communication, which no change of communication beats; None where it is not known."""
    exposure = found.exposure
    if exposure is None or exposure is found.first or not exposure.finding.saving_ns:
        return None
    whole_ns = (exposure.step_ns or 0.0) + (exposure.saving_ns or 0.0)
    least_ns = whole_ns - exposure.finding.saving_ns
    return f"Without communication time, a step would take {ms_text(least_ns, _ESTIMATE_DIGITS)}."


def nothing_text(run: Run, found: Recommendations, checks: Checks) -> str | None:
    """Return that there is nothing to change, as far as it was checked; None where there is, or nothing was judged."""
    return " ".join(nothing_sentences(run, found, checks)) or None


def nothing_sentences(run: Run, found: Recommendations, checks: Checks) -> list[str]:
    """Return the same, a sentence each: that there is nothing to change, then the figures behind it."""
    (summary,) = run.summary().to_pylist()
    if (
        found.first is not None
        or run.is_capture
        or not summary["n_summary_steps"]
        or summary["comm_share"] is None
    ):
        return []
    reservation = ", as far as nsyspipe could check" if checks.skipped else ""
    lead = "Little to gain" if found.little else "Nothing to fix was found"
    facts = []
    if summary["exposed_comm_share"]:
        facts.append(
            f"Exposed communication is {short_percent(summary['exposed_comm_share'])} of the step."
        )
    if found.little:
        most = max(change.finding.share for change in found.little)
        facts.append(f"No change would save more than {percent_text(most)} of the step.")
    return [f"{lead}{reservation}.", *facts]


def closing_text(run: Run, found: Recommendations, checks: Checks, n_shown: int | None) -> str:
    """Return which checks passed or were skipped, and what -v adds: other recommendations, and notes by their codes."""
    hidden = []
    n_more = max(len(found.alternatives) - n_shown, 0) if n_shown is not None else 0
    if n_more:
        hidden.append(f"{n_more} more recommendation{'s'[: n_more != 1]}")
    if found.within_noise:
        hidden.append(f"{_changes(len(found.within_noise))} with a saving within noise")
    if found.little:
        hidden.append(f"{_changes(len(found.little))} with a small saving")
    codes = list(dict.fromkeys(row["code"] for row in _notes(run)))
    if codes:
        hidden.append(f"{len(codes)} note{'s'[: len(codes) != 1]} ({few(codes, _MOST_CODES)})")
    parts = []
    if checks.passed:
        n_passed = len(checks.passed)
        parts.append(
            f"{n_passed} check{'s'[: n_passed != 1]} found nothing{_skipped_text(checks)}."
        )
    elif checks.skipped:
        parts.append(f"No check could be made: {checks.skipped[0].reason}.")
    parts.append(f"-v also shows {listed(hidden)}." if hidden else "Use -v for details.")
    return " ".join(parts)


def _changes(n_changes: int) -> str:
    return f"{n_changes} change{'s'[: n_changes != 1]}"


def _skipped_text(checks: Checks) -> str:
    names = checks.skipped_rules
    return f", {len(names)} skipped ({few(names, 2)})" if names else ""


def _notes(run: Run) -> list[Mapping[str, Any]]:
    shown_elsewhere = {*overview.SHOWN_ABOVE, "not-judged"}
    return [
        row
        for row in run.problem_rows
        if row["severity"] == "info" and row["code"] not in shown_elsewhere
    ]


def next_commands(
    found: Recommendations, step: StepTime | None, reports: str | None, *, is_comment: bool = False
) -> blocks.Commands:
    """Return what to type next; the last is what explains the first recommendation. A comment has the first anyway."""
    commands = [] if is_comment else [f"nsyspipe analyze {reports or 'REPORTS'} --html run.html"]
    lost = (
        [part.figure.name for part in step.parts if part.figure.name != "compute"] if step else []
    )
    main_loss = lost[0] if lost else "step_time"
    explained = found.shown or found.little or found.within_noise
    if explained:
        commands.append(f"nsyspipe explain {explained[0].finding.id}")
    else:
        commands.append(f"nsyspipe explain {main_loss}")
    return blocks.Commands("Next", commands)
