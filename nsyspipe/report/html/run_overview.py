"""The first screen of the page of a run.

It has what to change first, whether to trust the metrics, four of them, all recommendations, and
where the time of a step goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.summary import means_of_slowest
from nsyspipe.model.figures import FIGURES, OTHER_FIGURES, RATIOS, Figure
from nsyspipe.model.names import counted
from nsyspipe.report import first_screen, overview, run as run_report, words
from nsyspipe.report.blocks import (
    Bars,
    Block,
    Commands,
    Facts,
    Heading,
    Items,
    Lines,
    Sentence,
    Tile,
    Tiles,
)
from nsyspipe.report.explanations.subjects import FINDINGS_FOLDER, explain_finding
from nsyspipe.report.explanations.text import (
    Code,
    Explanation,
    Items as ExplainedItems,
    Paragraph,
    ids_in,
)
from nsyspipe.report.findings import Finding, capture_notes, finding_lines
from nsyspipe.report.html import run_charts as charts
from nsyspipe.report.html.page import SUBSECTION, Chart, Columns, Fold
from nsyspipe.report.overview import CONDITIONAL, Checks, Recommendation, Recommendations, StepTime
from nsyspipe.report.subject import steps_text, title_of
from nsyspipe.report.units import ms_text, rate_text, short_percent
from nsyspipe.run.run import Run

_DIGITS_OF_ESTIMATE = 3
_DIGITS_OF_STEP_TIME = 4
_DIGITS_OF_SMALL_DELAY = 2
# Ranks that the chart draws.
MAX_DRAWN_RANKS = 12
MAX_TILES = 4
# A smaller delay, as a share of the step, does not make a straggler.
MIN_DELAY_SHARE_OF_STEP = 0.02
_STEP_HINT = (
    "The time of the slowest rank in each training step, as the mean over the steps used. "
    "The parts of the step sum to this time. The median is under All metrics."
)
# Sections of an explanation that answer a reader who has seen the recommendation.
_EXPLAINED = ("What it means", "Code before and after", "When not to do it")


class Effect(Struct, frozen=True):
    """What a recommendation saves, in words: an estimate with its range, or an upper bound."""

    saving: str  # ``71.4 ms``, empty where nothing is known
    share: str  # of the step
    qualifier: str  # what stands before the saving: ``at most`` of an upper bound
    now: str = ""  # the step time, captured
    then: str = ""  # and predicted
    step_range: str = ""  # of the predicted step time
    condition: str = ""


class Answer(Struct, frozen=True):
    """The headline: what to change first and what it saves, or that there is nothing to change."""

    headline: str
    id: str = ""  # of the finding
    is_doubt: bool = False  # the headline is a warning, and the action stands below it
    action: str = ""
    effect: Effect | None = None
    reasons: Sequence[str] = ()


class _Doubt(NamedTuple):
    """Why all metrics of a run may be wrong."""

    # The first sentence.
    problem: str
    # The other sentences: what follows from the problem, or how to solve it.
    consequence: str


class Gain(Struct, frozen=True):
    """A saving as a bar: shares of the longest, with the ends of its range."""

    share: float
    low: float | None = None
    high: float | None = None
    is_bound: bool = False  # the bar is as long as the upper bound


class Opportunity(Struct, frozen=True):
    """One recommendation in a list: its number, what it saves, and details when it is opened."""

    number: int | None
    action: str
    id: str
    effect: Effect
    saving_range: str
    gain: Gain | None
    details: Sequence[Any]  # blocks


class Opportunities(Struct, frozen=True):
    """Recommendations, the one with the largest number first."""

    rows: Sequence[Opportunity]


class Evidence(Struct, frozen=True):
    """The figures behind a finding: name and value."""

    severity: str
    rows: Sequence[tuple[str, str]]


class CodeLines(Struct, frozen=True):
    """Lines of a program."""

    lines: Sequence[str]


class Explained(Struct, frozen=True):
    """A paragraph or a list of an explanation, in which code stands between backticks."""

    texts: Sequence[str]
    is_list: bool = False


def overview_blocks(run: Run, listed: Sequence[int]) -> Iterator[Block | Answer | Columns]:
    """Yield the first screen: the answer, whether to trust the metrics, tiles, and two columns.

    The left column has what can be changed. The right one has where the time goes, also by rank:
    its table has the `listed` ranks.
    """
    step = overview.step_time_of(run)
    recommendations = overview.recommendations_of(run)
    checks = overview.checks_of(run)
    (summary,) = run.summary().to_pylist()
    step_ns = words.mean_step_ns(summary)
    yield answer_of(run, step, recommendations, checks, step_ns)
    yield trust_facts(run)
    for problems in first_screen.trust_blocks(run):
        yield replace(problems, is_close=True)
    blocks_of_step = [*first_screen.step_blocks(run, step)]
    bars = next((block for block in blocks_of_step if isinstance(block, Bars)), None)
    tiles = [] if step is None else tiles_of(run, step, bars)
    if tiles:
        yield Tiles(tiles)
    left = [*opportunity_blocks(run, recommendations, checks, step_ns)]
    blocks_of_ranks = rank_blocks(run, step, recommendations, listed)
    right = [*blocks_of_step, *blocks_of_ranks]
    columns = [column for column in (left, right) if column]
    yield Columns(columns)


def answer_of(
    run: Run,
    step: StepTime | None,
    recommendations: Recommendations,
    checks: Checks,
    step_ns: float | None,
) -> Answer:
    """Return the answer at the top of the page: its headline, and what stands below.

    The headline is a doubt about all metrics, if there is one. Otherwise it is what to change
    first, or that there is nothing to change. A doubt has the change, or that there is none, below
    the headline.
    """
    if not run.header.n_ranks or step is None:
        headline = first_screen.headline_of(run, step)
        return Answer(headline.removesuffix("."))
    doubt = _doubt_of(run)
    first = recommendations.first
    if first is None or step_ns is None:
        conclusions = first_screen.nothing_sentences(run, recommendations, checks)
        if doubt is not None:
            return _doubt_without_change(doubt, conclusions)
        headline, *reasons = conclusions or [first_screen.headline_of(run, step)]
        return Answer(headline.removesuffix("."), reasons=reasons)
    finding = first.finding
    assumptions = first_screen.assumptions_of(first)
    why_first = first_screen.why_first(recommendations)
    reasons = [f"{finding.title}.", *assumptions, *why_first]
    effect = effect_of(first, step_ns)
    if doubt is None:
        return Answer(headline=finding.headline, id=finding.id, effect=effect, reasons=reasons)
    if doubt.consequence:
        reasons.insert(0, doubt.consequence)
    return Answer(
        headline=doubt.problem,
        id=finding.id,
        is_doubt=True,
        action=finding.headline,
        effect=effect,
        reasons=reasons,
    )


def _doubt_without_change(doubt: _Doubt, conclusions: Sequence[str]) -> Answer:
    """Return the answer of a run with a doubt, for which no change is recommended.

    `conclusions` say that there is nothing to change. Without them, the consequence of the doubt
    stands below the headline.
    """
    headline = doubt.problem.removesuffix(".")
    reasons = conclusions or [doubt.consequence]
    return Answer(headline, is_doubt=True, reasons=reasons)


def _doubt_of(run: Run) -> _Doubt | None:
    """Return why all metrics of the run may be wrong; None if there is no such reason."""
    comm_share = run.summary()["comm_share"][0]
    if overview.is_of_mixed_runs(run):
        text = first_screen.MIXED
    elif comm_share.as_py() is None:
        text = first_screen.unknown_text(run)
    else:
        return None
    problem, _, consequence = text.partition(". ")
    return _Doubt(problem, consequence)


def effect_of(change: Recommendation, step_ns: float) -> Effect:
    """Return what a recommendation saves, in words. `step_ns` is the captured step time.

    A saving without a range is an upper bound: "at most". All words are empty if the saving is not
    known.
    """
    if change.saving_ns is None or change.step_ns is None:
        return Effect("", "", "")
    condition = "if available" if change.saving_kind == CONDITIONAL else ""
    saving = ms_text(change.saving_ns, _DIGITS_OF_ESTIMATE)
    share = short_percent(change.saved_share)
    now = _without_ms(step_ns, _DIGITS_OF_STEP_TIME)
    then = ms_text(change.step_ns, _DIGITS_OF_ESTIMATE)
    if change.low_ns is None or change.high_ns is None:
        return Effect(
            saving=saving,
            share=share,
            qualifier="at most",
            now=now,
            then=f"at least {then}",
            condition=condition,
        )
    low = _without_ms(change.low_ns, _DIGITS_OF_ESTIMATE)
    high = _without_ms(change.high_ns, _DIGITS_OF_ESTIMATE)
    return Effect(
        saving=saving,
        share=share,
        qualifier="",
        now=now,
        then=then,
        step_range=f"{low} to {high}",
        condition=condition,
    )


def _without_ms(ns: float, n_digits: int) -> str:
    """Return a time in words, without its unit if that is ms."""
    text = ms_text(ns, n_digits)
    return text.removesuffix(" ms")


def trust_facts(run: Run) -> Facts:
    """Return what the run is and what the figures rest on."""
    title = title_of(run)
    facts = [title.name, *title.facts, steps_text(run)]
    captured = run.header.captured_at_utc
    if captured:
        # Of a text such as 2026-03-01T04:30:59Z.
        day = captured[:10]
        time = captured[11:16]
        facts.append(f"captured {day} {time} UTC")
    return Facts(facts, "Run")


def tiles_of(run: Run, step: StepTime, bars: Bars | None) -> list[Tile]:
    """Return the first `MAX_TILES` of the metrics that a run has, the most important ones first.

    A tile of a part of the step has the same time and share as the bar of that part.
    """
    (summary,) = run.summary().to_pylist()
    step_tile = _step_tile(run, step)
    tiles = [step_tile]
    if run.header.n_ranks > 1 or summary["comm_share"] != 0:
        exposed_tile = _part_tile(run, "exposed_comm_share", bars)
        tiles += [exposed_tile, _overlap_tile(run)]
    straggler = _straggler_tile(run, step)
    if straggler is not None:
        tiles.append(straggler)
    # There is room for these tiles if there are no tiles about communication.
    tiles += [_part_tile(run, name, bars) for name in ("idle_share", "exposed_memory_share")]
    if not run.is_capture:
        rate_tile = _rate_tile(step)
        tiles.append(rate_tile)
    return tiles[:MAX_TILES]


def _rate_tile(step: StepTime) -> Tile:
    figure = FIGURES["throughput_steps_per_s"]
    steps_per_s = 1e9 / step.mean_ns
    value, unit = rate_text(steps_per_s, _DIGITS_OF_ESTIMATE).split(" ")
    return Tile(figure.short, value, unit, figure.meaning)


def _step_tile(run: Run, step: StepTime) -> Tile:
    """Return the tile with the step time, or with the length of a capture without steps."""
    value, unit = ms_text(step.mean_ns).split(" ")
    has_several_ranks = run.header.n_ranks > 1
    if run.is_capture:
        which_rank = "longest rank" if has_several_ranks else ""
        return Tile("capture", value, unit, which_rank)
    which_rank = "slowest rank, " if has_several_ranks else ""
    which_steps = f"mean of {step.n_used} steps"
    if step.n_used == 1:
        which_steps = "the only step used"
    name = FIGURES["step_time_ns"].short
    return Tile(name, value, unit, f"{which_rank}{which_steps}", hint=_STEP_HINT)


def _part_tile(run: Run, name: str, bars: Bars | None) -> Tile:
    """Return the tile of a part of the step, or why the part is not known.

    `name` is the metric of its share.
    """
    figure = FIGURES[name]
    (summary_row,) = run.summary().to_pylist()
    # A copy of a type that has a value for any name.
    summary: dict[str, Any] = {**summary_row}
    if summary[name] is None:
        missing, why = run_report.why_null(name, run, summary)
        return _tile_without_value(figure, missing=missing, why=why)
    time, share = _time_and_share(run, name, bars)
    value, unit = time.split(" ")
    has_unseen_idle_time = bool(words.unseen_idle(run))
    is_lower_bound = name == "idle_share" and has_unseen_idle_time
    if is_lower_bound:
        value = f"\N{GREATER-THAN OR EQUAL TO}{value}"
    whole = "capture" if run.is_capture else "step"
    return Tile(figure.short, value, unit, f"{share} of the {whole}", category=figure.category)


def _tile_without_value(figure: Figure, *, missing: str, why: str) -> Tile:
    """Return the tile of a metric that is null: `missing` in place of the value, and why."""
    return Tile(
        figure.short, value="", unit="", meaning=why, missing=missing, category=figure.category
    )


def _time_and_share(run: Run, name: str, bars: Bars | None) -> tuple[str, str]:
    """Return time and share of a part of the step, in words.

    `name` is the metric of the share. If there are bars, the words are those of the bar.
    """
    if bars is None:
        # A share of the step divides this column by the step time.
        column = RATIOS[name].numerator
        means_ns = means_of_slowest(run.breakdown(), ["wall_ns", column])
        part_ns = means_ns[column] or 0.0
        # Not 0, because it divides.
        step_ns = means_ns["wall_ns"] or 1.0
        share = part_ns / step_ns
        return ms_text(part_ns, _DIGITS_OF_ESTIMATE), short_percent(share)
    category = FIGURES[name].category
    for row in bars.rows:
        if row.category == category:
            return row.time, row.percent
    # A part that takes no time has no bar.
    return "0 ms", "0%"


def _overlap_tile(run: Run) -> Tile:
    figure = FIGURES["overlap_ratio"]
    (summary,) = run.summary().to_pylist()
    overlap_ratio = summary["overlap_ratio"]
    if overlap_ratio is None:
        missing, why = run_report.why_null("overlap_ratio", run, summary)
        return _tile_without_value(figure, missing=missing, why=why)
    value = short_percent(overlap_ratio)
    return Tile(figure.short, value, unit="", meaning="of communication", category=figure.category)


def _straggler_tile(run: Run, step: StepTime) -> Tile | None:
    """Return the tile with the latest rank and its mean delay; None if no delay is known.

    The rank is not named if its delay is a small part of the step, unless the delay is a finding.
    """
    latest = overview.latest_rank(run)
    if latest is None:
        return None
    figure = OTHER_FIGURES["straggler_delay"]
    min_delay_ns = MIN_DELAY_SHARE_OF_STEP * step.mean_ns
    is_small = latest.delay_ns < min_delay_ns
    if is_small and not overview.has_straggler(run):
        value, unit = ms_text(latest.delay_ns, _DIGITS_OF_SMALL_DELAY).split(" ")
        return Tile(figure.short, value, unit, "no straggler", category="waiting")
    value, unit = ms_text(latest.delay_ns, _DIGITS_OF_ESTIMATE).split(" ")
    rank_name = run.rank_names.name(latest.rank)
    meaning = f"rank {rank_name}, mean per step"
    return Tile(figure.short, value, unit, meaning, category="waiting")


def opportunity_blocks(
    run: Run, recommendations: Recommendations, checks: Checks, step_ns: float | None
) -> Iterator[Block | Opportunities | Fold]:
    """Yield the recommendations as bars, the largest saving first, and what was checked.

    Without recommendations, yield why there are none. A run without ranks has no GPU activity, and
    therefore no heading here.
    """
    (summary,) = run.summary().to_pylist()
    has_ranks = run.header.n_ranks > 0
    # Savings are parts of a step, and most rules need communication.
    can_be_judged = not run.is_capture and summary["comm_share"] is not None
    if recommendations.shown and step_ns is not None:
        yield Heading("What you can change", SUBSECTION)
        rows = _numbered_rows(recommendations.shown, step_ns)
        yield Opportunities(rows)
        notes = first_screen.notes_of_all(recommendations)
        if notes:
            yield Sentence(notes)
    elif has_ranks and not can_be_judged:
        yield Heading("What you can change", SUBSECTION)
        yield Sentence(_not_judged(run))
    elif has_ranks:
        yield Heading("What nsyspipe checked", SUBSECTION)
    yield from capture_notes(run)
    if step_ns is not None:
        yield from _folded(recommendations, step_ns)
    yield from _check_folds(checks)


def _numbered_rows(changes: Sequence[Recommendation], step_ns: float) -> list[Opportunity]:
    """Return recommendations as rows with numbers."""
    longest_ns = longest_saving(changes, step_ns)
    rows = []
    for number, change in enumerate(changes, start=1):
        row = opportunity_of(change, step_ns, longest_ns, number)
        rows.append(row)
    return rows


def _not_judged(run: Run) -> str:
    if run.is_capture:
        return (
            "nsyspipe recommends nothing, because a saving is a part of a step and there are no "
            "steps."
        )
    return "nsyspipe could check hardly anything, because communication is not known."


def longest_saving(changes: Sequence[Recommendation], step_ns: float) -> float:
    """Return the largest saving of any change in ns, at the better end of its range if it has one.

    `step_ns` is the captured step time. The result is never 0, so that bars can be shares of it.
    """
    savings_ns = [change.saving_ns or 0.0 for change in changes]
    # The lower end of the predicted step time is the larger saving.
    low_step_times_ns = [change.low_ns for change in changes if change.low_ns is not None]
    savings_ns += [step_ns - low_ns for low_ns in low_step_times_ns]
    return max(savings_ns, default=0.0) or 1.0


def opportunity_of(
    change: Recommendation, step_ns: float, longest_ns: float, number: int | None = None
) -> Opportunity:
    """Return a recommendation as a row, whose bar is a share of a bar of `longest_ns`.

    `step_ns` is the captured step time.
    """
    gain = _gain_of(change, step_ns, longest_ns)
    saving_range = ""
    if gain is not None and change.low_ns is not None and change.high_ns is not None:
        # The change has a range of step times. The longest step time is the least saving.
        least = _without_ms(step_ns - change.high_ns, _DIGITS_OF_ESTIMATE)
        most = ms_text(step_ns - change.low_ns, _DIGITS_OF_ESTIMATE)
        saving_range = f"{least} to {most}"
    finding = change.finding
    details = [*_details(finding)]
    effect = effect_of(change, step_ns)
    return Opportunity(
        number=number,
        action=finding.headline,
        id=finding.id,
        effect=effect,
        saving_range=saving_range,
        gain=gain,
        details=details,
    )


def _gain_of(change: Recommendation, step_ns: float, longest_ns: float) -> Gain | None:
    """Return the bar of a recommendation; None if its saving is not known.

    The saving, and the ends of its range, become shares of a bar of `longest_ns`. A change that
    makes the step longer has no saving, so its share is 0.
    """
    if change.saving_ns is None:
        return None
    share = _share_of_bar(change.saving_ns, longest_ns)
    if change.low_ns is None or change.high_ns is None:
        return Gain(share, low=None, high=None, is_bound=True)
    # The longest step time of the range is the least saving.
    least_saving_ns = step_ns - change.high_ns
    most_saving_ns = step_ns - change.low_ns
    low = _share_of_bar(least_saving_ns, longest_ns)
    high = _share_of_bar(most_saving_ns, longest_ns)
    return Gain(share, low, high, is_bound=False)


def _share_of_bar(saving_ns: float, longest_ns: float) -> float:
    """Return a saving as a share of the longest bar, from 0 to 1."""
    share = saving_ns / longest_ns
    return min(max(share, 0.0), 1.0)


def _details(finding: Finding) -> Iterator[Block | Fold | Evidence]:
    """Yield the details of a finding: why, how, what the saving rests on, and an explanation."""
    lines = finding_lines(finding)
    yield Lines("", lines.lines)
    if finding.evidence:
        evidence = Evidence(finding.severity, finding.evidence)
        yield Fold("Numbers behind this finding", [evidence], is_printed=True)
    if finding.id in ids_in(FINDINGS_FOLDER):
        explanation = explain_finding(finding.id)
        blocks = [*explained_blocks(explanation)]
        yield Fold("Explanation and code", blocks)
    yield Commands("In full", [f"nsyspipe explain {finding.id}"])


def explained_blocks(explanation: Explanation) -> Iterator[Block | Explained | CodeLines]:
    """Yield the sections of `_EXPLAINED`; `nsyspipe explain` has the whole explanation."""
    for section in explanation.sections:
        if section.heading not in _EXPLAINED:
            continue
        yield Lines(section.heading, [])
        for piece in section.pieces:
            match piece:
                case Paragraph(text=text):
                    yield Explained((text,))
                case ExplainedItems(texts=texts):
                    yield Explained(texts, is_list=True)
                case Code(text=text):
                    lines = text.rstrip().split("\n")
                    yield CodeLines(lines)


def _folded(recommendations: Recommendations, step_ns: float) -> Iterator[Fold]:
    """Yield folds with the recommendations that the list of changes leaves out.

    These are the changes within noise, and those that save little. What all communication costs is
    a recommendation too. It has a fold unless another list has it.
    """
    within_noise = recommendations.within_noise
    little = recommendations.little
    n_within_noise = counted(len(within_noise), "change")
    n_little = counted(len(little), "change")
    noise_summary = f"{n_within_noise} with a saving within noise"
    little_summary = f"{n_little} with a small saving"
    groups = [(noise_summary, within_noise), (little_summary, little)]
    exposure = recommendations.exposure
    listed = (*recommendations.shown, *within_noise, *little)
    if exposure is not None and exposure not in listed:
        groups.append(("All communication together", (exposure,)))
    for summary, changes in groups:
        if changes:
            longest_ns = longest_saving(changes, step_ns)
            rows = [opportunity_of(change, step_ns, longest_ns) for change in changes]
            yield Fold(summary, [Opportunities(rows)])


def _check_folds(checks: Checks) -> Iterator[Fold]:
    """Yield a fold with the checks that found nothing, and one with the skipped checks."""
    if checks.passed:
        summary = f"{counted(len(checks.passed), 'check')} found nothing"
        names = ", ".join(checks.passed)
        yield Fold(summary, [Sentence(names)])
    if checks.skipped:
        # Rules that were skipped for the same reason share a text.
        texts = [run_report.skipped_text(check) for check in checks.skipped]
        n_skipped_rules = len(checks.skipped_rules)
        yield Fold(counted(n_skipped_rules, "skipped check"), [Items(texts)])


def rank_blocks(
    run: Run, step: StepTime | None, recommendations: Recommendations, listed: Sequence[int]
) -> Iterator[Block | Chart]:
    """Yield the chart of where the time of each rank goes.

    Below the ranks, the chart has the step that is predicted with the first recommendation. The
    table of the chart has the `listed` ranks.
    """
    drawn_ranks = run.telling_ranks(MAX_DRAWN_RANKS)
    comm_share = run.summary()["comm_share"][0]
    has_comm = comm_share.as_py() != 0
    n_ranks = run.header.n_ranks
    caption = run_report.left_out_note(len(drawn_ranks), n_ranks)
    step_ns = step.mean_ns if step else None
    after = _step_after(recommendations.first)
    chart = charts.rank_chart(
        run.breakdown(),
        drawn_ranks,
        listed,
        caption=caption,
        is_capture=run.is_capture,
        has_comm=has_comm,
        names=run.rank_names,
        step_ns=step_ns,
        after=after,
    )
    if chart is None:
        if n_ranks:
            yield Sentence("No step is complete on every rank, so there is nothing to split.")
        return
    yield Heading("On each rank" if n_ranks > 1 else "On the rank", SUBSECTION)
    yield chart


def _step_after(first: Recommendation | None) -> charts.After | None:
    """Return the simulated step time with the first recommendation; None without a simulation."""
    if first is None or first.step_ns is None:
        return None
    if first.low_ns is None or first.high_ns is None:
        return None
    return charts.After(first.step_ns, first.low_ns, first.high_ns)
