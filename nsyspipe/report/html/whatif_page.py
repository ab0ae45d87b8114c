"""The page of a what-if: what to change, and the step time after each change as a bar.

The step times are compared with the captured one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsyspipe.replay.answer import Scenario, WhatIf
from nsyspipe.report import whatif as report
from nsyspipe.report.blocks import Facts, Items, Notes, Sentence, Tile, Tiles, Troubles
from nsyspipe.report.html.answer_page import (
    AnswerPage,
    PageBlock,
    Section,
    Segment,
    StackedBar,
    StackedBars,
    answer_html,
)
from nsyspipe.report.subject import steps_text
from nsyspipe.report.units import ms_text, percent_text
from nsyspipe.run.run import Run

# These change the work of a step, so its time without communication is another one.
_CHANGES_OF_WORK = frozenset({"no_wait", "no_grad_copy", "no_sync"})
# Categories of the palette.
_WORK = "untold"
_COMMUNICATION = "exposed"
_WHOLE = "accent"
# In the order in which they are drawn.
_NAMES = {
    _WORK: "with zero communication time",
    _COMMUNICATION: "added by communication",
    _WHOLE: "step time, parts not known",
}
# Categories of the palette, and words.
STEP_LEGEND = tuple(_NAMES.items())
_COLUMNS = ("change", "step time", "ms per step", "range", "saved")
_DIGITS_OF_ESTIMATE = 3


def whatif_page(answer: WhatIf, run: Run) -> str:
    """Return the page of an answer as one HTML file.

    The file is complete and needs no network. The same answer gives the same bytes.
    """
    verdict, *sentences = report.headline_sentences(answer)
    answered = [scenario for scenario in answer.scenarios if scenario.refused is None]
    # The first block is a heading, which the section has already. There may be no block at all.
    assumptions = [*report.assumption_blocks(answered, is_verbose=True)][1:]
    introduction = [*_introduction(answer, run, sentences)]
    bars = [*_picture(answer, answered)]
    picture = Section("Step time after each change", bars, short_title="Changes")
    finding_blocks = _findings(answer, run)
    details = [
        Section("Findings and their estimates", finding_blocks, short_title="Findings"),
        Section("What the estimates assume", assumptions, short_title="Assumptions"),
        Section("No estimate", _refused(answer)),
        Section("Notes", [*_notes(answer)]),
    ]
    identity = (report.META, answer.run_id)
    page = AnswerPage(
        title=f"{answer.label}: nsyspipe whatif",
        identity=identity,
        verdict=Sentence(verdict),
        introduction=introduction,
        picture=picture,
        details=details,
    )
    return answer_html(page)


def _introduction(answer: WhatIf, run: Run, sentences: Sequence[str]) -> Iterator[PageBlock]:
    """Yield the rest of the headline, how far to trust it, what was simulated, and key figures."""
    yield from (Sentence(text) for text in sentences)
    yield from report.few_steps_blocks(answer)
    subject = report.subject(answer, run)
    yield Facts([*subject, steps_text(run)], "Run")
    tiles = _tiles(answer)
    if tiles:
        yield Tiles(tiles)


def _tiles(answer: WhatIf) -> list[Tile]:
    """Return the tiles: the captured step time, the best setting with its saving, and the limit.

    The list is empty if no change has an estimate.
    """
    captured_ns = answer.step_time_ns
    has_estimate = any(scenario.refused is None for scenario in answer.scenarios)
    if captured_ns is None or not has_estimate:
        return []
    steps = f"median of {answer.n_steps} steps" if answer.n_steps > 1 else "one step"
    captured = _tile("Captured step time", captured_ns, steps)
    tiles = [captured]
    best = report.change_named_first(answer)
    if best is not None and best.step_time_ns is not None:
        tiles += _tiles_of_best(best, best.step_time_ns, captured_ns)
    if answer.limit_step_time_ns is not None:
        meaning = "step time with zero communication time, not a setting"
        limit = _tile("Limit", answer.limit_step_time_ns, meaning)
        tiles.append(limit)
    return tiles


def _tiles_of_best(best: Scenario, step_ns: float, captured_ns: float) -> list[Tile]:
    """Return the step time with the best setting, and what it saves or loses.

    `step_ns` is the step time with the setting, and `captured_ns` the step time without it.
    """
    low = ms_text(best.low_ns, _DIGITS_OF_ESTIMATE).removesuffix(" ms")
    high = ms_text(best.high_ns, _DIGITS_OF_ESTIMATE)
    step_tile = _tile(f"With {best.label}", step_ns, f"estimated {low} to {high}")
    difference_ns = abs(captured_ns - step_ns)
    share = difference_ns / captured_ns
    name = "Saved" if step_ns <= captured_ns else "Lost"
    saved_tile = _tile(name, difference_ns, f"{percent_text(share)} of the step")
    return [step_tile, saved_tile]


def _tile(name: str, ns: float | None, meaning: str) -> Tile:
    """Return the tile of a time. Without a time, its number is empty, and its unit is a dash."""
    number, _, unit = ms_text(ns, _DIGITS_OF_ESTIMATE).rpartition(" ")
    return Tile(name, number, unit, meaning)


def _picture(answer: WhatIf, answered: Sequence[Scenario]) -> Iterator[PageBlock]:
    """Yield the bars of the captured step and of each change, and which changes have no effect."""
    rows = report.menu_rows(answer, answered, is_verbose=False)
    # The first row is the captured step.
    has_changes = len(rows) > 1
    if has_changes:
        yield stacked_bars(answer, rows)
    if answered:
        yield from report.without_effect(answer, is_verbose=False)


def stacked_bars(answer: WhatIf, rows: Sequence[report.MenuRow]) -> StackedBars:
    """Return the rows of the menu as bars of two parts, as shares of the longest bar.

    The parts are the step time with zero communication time, and what communication adds. A line
    marks the captured step time.
    """
    longest_ns = max(map(_longest_ns, rows)) or 1.0
    bars = [_bar(answer, row, longest_ns) for row in rows]
    drawn_categories = {segment.category for bar in bars for segment in bar.segments}
    legend = [(category, words) for category, words in STEP_LEGEND if category in drawn_categories]
    mark = _share(answer.step_time_ns, longest_ns)
    note = _note_of_bars(rows)
    return StackedBars(
        caption="Step time after each change",
        columns=_COLUMNS,
        bars=bars,
        legend=legend,
        mark=mark,
        note=note,
    )


def _share(ns: float | None, longest_ns: float) -> float | None:
    return None if ns is None else ns / longest_ns


def _longest_ns(row: report.MenuRow) -> float:
    """Return the step time of a row, or the end of its range if that is longer."""
    step_ns = row.step_time_ns or 0.0
    high_ns = row.high_ns or 0.0
    return max(step_ns, high_ns)


def _note_of_bars(rows: Sequence[report.MenuRow]) -> str:
    """Return how to read the bars."""
    note = "The dashed line is the captured step time."
    n_estimates = sum(row.low_ns is not None for row in rows)
    if n_estimates:
        note = f"{note} The line at the end of a bar is the range of the estimate."
    if n_estimates > 1:
        note = f"{note} Savings overlap, so do not add them up."
    return note


def _bar(answer: WhatIf, row: report.MenuRow, longest_ns: float) -> StackedBar:
    """Return the bar of a row; only its label if the row is the name of a group."""
    if row.step_time_ns is None:
        return StackedBar(row.label)
    segments = []
    for category, part_ns in divided_step(answer, row):
        part_text = ms_text(part_ns, _DIGITS_OF_ESTIMATE)
        words = f"{_NAMES[category]}: {part_text}"
        share = part_ns / longest_ns
        segments.append(Segment(category, share, words))
    cells = report.menu_cells(row)
    # Neither the captured step nor the limit is an estimate of a setting.
    has_range = row.low_ns is not None
    return StackedBar(
        label=row.label,
        segments=segments,
        cells=cells,
        low=_share(row.low_ns, longest_ns),
        high=_share(row.high_ns, longest_ns),
        is_faint=not has_range,
    )


def divided_step(answer: WhatIf, row: report.MenuRow) -> list[tuple[str, float]]:
    """Return the parts of the step of a row: categories of the palette, and ns.

    The parts are the limit, which is the step time with zero communication time, and what
    communication adds. The step is one part if the limit is not known, or is above the step time.
    It is also one part if the row changes the work of a step, because another limit holds then.

    `row` has a step time, so it is not the name of a group.
    """
    step_ns = row.step_time_ns or 0.0
    limit_ns = answer.limit_step_time_ns
    has_other_work = not _CHANGES_OF_WORK.isdisjoint(row.knobs)
    if limit_ns is None or step_ns < limit_ns or has_other_work:
        return [(_WHOLE, step_ns)]
    communication_ns = step_ns - limit_ns
    parts = [(_WORK, limit_ns), (_COMMUNICATION, communication_ns)]
    return [(category, ns) for category, ns in parts if ns > 0]


def _findings(answer: WhatIf, run: Run) -> list[PageBlock]:
    """Return the lists of findings with their estimates; nothing without findings."""
    blocks = report.finding_blocks(answer, run)
    items = [block for block in blocks if isinstance(block, Items)]
    if not items:
        return []
    text = "Shares of the mean step time, as in analyze. The bars above use the median."
    return [Sentence(text), *items]


def _refused(answer: WhatIf) -> list[PageBlock]:
    """Return the changes without an estimate, each with its reason."""
    reasons = report.refusals(answer)
    return [Items(reasons)] if reasons else []


def _notes(answer: WhatIf) -> Iterator[PageBlock]:
    yield from report.note_blocks(answer)
    if answer.identity_error_pct is not None:
        error = percent_text(answer.identity_error_pct / 100, 2)
        yield Notes([f"The simulation error on the captured run is {error}."])
    troubles = report.trouble_rows(answer, is_verbose=True)
    if troubles:
        yield Troubles(troubles)
