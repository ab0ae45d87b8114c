"""The page of a what-if: what to change, and the step time after each change as a bar, compared with the captured one."""

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
# categories of the palette
_WORK = "untold"
_COMMUNICATION = "exposed"
_WHOLE = "accent"
_NAMES = {  # in the order in which they are drawn
    _WORK: "with zero communication time",
    _COMMUNICATION: "added by communication",
    _WHOLE: "step time, parts not known",
}
STEP_LEGEND = tuple(_NAMES.items())  # categories of the palette, and words
_COLUMNS = ("change", "step time", "ms per step", "range", "saved")
_DIGITS = 3  # of an estimate


def whatif_page(found: WhatIf, run: Run) -> str:
    """Return the page of an answer as one HTML file: complete, offline, the same bytes for the same answer."""
    verdict, *sentences = report.headline_sentences(found)
    answered = [scenario for scenario in found.scenarios if scenario.refused is None]
    details = [
        Section("Findings and their estimates", _findings(found, run), "Findings"),
        Section(
            "What the estimates assume",
            [*report.assumption_blocks(answered, is_verbose=True)][1:],
            "Assumptions",
        ),
        Section("No estimate", _refused(found)),
        Section("Notes", [*_notes(found)]),
    ]
    page = AnswerPage(
        title=f"{found.label}: nsyspipe whatif",
        identity=(report.META, found.run_id),
        verdict=Sentence(verdict),
        introduction=[*_introduction(found, run, sentences)],
        picture=Section("Step time after each change", [*_picture(found, answered)], "Changes"),
        details=details,
    )
    return answer_html(page)


def _introduction(found: WhatIf, run: Run, sentences: Sequence[str]) -> Iterator[PageBlock]:
    """Yield what else the headline says, how far to trust it, what was simulated, and the key figures."""
    yield from (Sentence(text) for text in sentences)
    yield from report.few_steps_blocks(found)
    yield Facts([*report.subject(found, run), steps_text(run)], "Run")
    tiles = _tiles(found)
    if tiles:
        yield Tiles(tiles)


def _tiles(found: WhatIf) -> list[Tile]:
    """Return the captured step time, the best setting with its saving, and the limit; nothing without an estimate."""
    captured_ns = found.step_time_ns
    if captured_ns is None or all(scenario.refused is not None for scenario in found.scenarios):
        return []
    steps = f"median of {found.n_steps} steps" if found.n_steps > 1 else "one step"
    tiles = [_tile("Captured step time", captured_ns, steps)]
    best = report.best_setting(found)
    if best:
        ends = (
            f"{ms_text(best.low_ns, _DIGITS).removesuffix(' ms')} to "
            f"{ms_text(best.high_ns, _DIGITS)}"
        )
        tiles.append(_tile(f"With {best.label}", best.step_time_ns, f"estimated {ends}"))
        saved_ns = captured_ns - (best.step_time_ns or captured_ns)
        share = f"{percent_text(abs(saved_ns) / captured_ns)} of the step"
        tiles.append(_tile("Saved" if saved_ns >= 0 else "Lost", abs(saved_ns), share))
    if found.limit_step_time_ns is not None:
        limit = _tile(
            "Limit",
            found.limit_step_time_ns,
            "step time with zero communication time, not a setting",
        )
        tiles.append(limit)
    return tiles


def _tile(name: str, ns: float | None, meaning: str) -> Tile:
    number, _, unit = ms_text(ns, _DIGITS).rpartition(" ")
    return Tile(name, number, unit, meaning)


def _picture(found: WhatIf, answered: Sequence[Scenario]) -> Iterator[PageBlock]:
    rows = report.menu_rows(found, answered, is_verbose=False)
    if len(rows) > 1:
        yield stacked_bars(found, rows)
    if answered:
        yield from report.without_effect(found, is_verbose=False)


def stacked_bars(found: WhatIf, rows: Sequence[report.MenuRow]) -> StackedBars:
    """Return the rows of the menu as bars: what a step takes without communication, and what communication adds."""
    longest_ns = max(max(row.step_time_ns or 0.0, row.high_ns or 0.0) for row in rows) or 1.0
    bars = [_bar(found, row, longest_ns) for row in rows]
    used = {segment.category for bar in bars for segment in bar.segments}
    legend = [(category, words) for category, words in STEP_LEGEND if category in used]
    captured_ns = found.step_time_ns
    note = "The dashed line is the captured step time."
    n_estimates = sum(row.low_ns is not None for row in rows)
    if n_estimates:
        note = f"{note} The line at the end of a bar is the range of the estimate."
    if n_estimates > 1:
        note = f"{note} Savings overlap, so do not add them up."
    return StackedBars(
        caption="Step time after each change",
        columns=_COLUMNS,
        bars=bars,
        legend=legend,
        mark=captured_ns and captured_ns / longest_ns,
        note=note,
    )


def _bar(found: WhatIf, row: report.MenuRow, longest_ns: float) -> StackedBar:
    if row.step_time_ns is None:
        return StackedBar(row.label)
    segments = []
    for category, ns in divided_step(found, row):
        segments.append(
            Segment(category, ns / longest_ns, f"{_NAMES[category]}: {ms_text(ns, _DIGITS)}")
        )
    return StackedBar(
        label=row.label,
        segments=segments,
        cells=report.menu_cells(row),
        low=row.low_ns and row.low_ns / longest_ns,
        high=row.high_ns and row.high_ns / longest_ns,
        is_faint=row.low_ns is None,
    )


def divided_step(found: WhatIf, row: report.MenuRow) -> list[tuple[str, float]]:
    """Return the parts of a step: undivided if the limit is not known, or if the change is one of the work itself."""
    step_ns = row.step_time_ns or 0.0
    limit_ns = found.limit_step_time_ns
    if limit_ns is None or step_ns < limit_ns or not _CHANGES_OF_WORK.isdisjoint(row.knobs):
        return [(_WHOLE, step_ns)]
    parts = [(_WORK, limit_ns), (_COMMUNICATION, step_ns - limit_ns)]
    return [(category, ns) for category, ns in parts if ns > 0]


def _findings(found: WhatIf, run: Run) -> list[PageBlock]:
    items = [block for block in report.finding_blocks(found, run) if isinstance(block, Items)]
    if not items:
        return []
    return [
        Sentence("Shares of the mean step time, as in analyze. The bars above use the median."),
        *items,
    ]


def _refused(found: WhatIf) -> list[PageBlock]:
    reasons = report.refusals(found)
    return [Items(reasons)] if reasons else []


def _notes(found: WhatIf) -> Iterator[PageBlock]:
    yield from report.note_blocks(found)
    if found.identity_error_pct is not None:
        error = percent_text(found.identity_error_pct / 100, 2)
        yield Notes([f"The simulation error on the captured run is {error}."])
    troubles = report.trouble_rows(found, is_verbose=True)
    if troubles:
        yield Troubles(troubles)
