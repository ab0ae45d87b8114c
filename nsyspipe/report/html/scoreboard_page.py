"""The page of a comparison: which run is fastest, step times and speed-ups.

It has the parts of the step times, and what could not be compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from nsyspipe.comparison.scoreboard import Scoreboard
from nsyspipe.report import scoreboard as report
from nsyspipe.report.blocks import (
    Commands,
    Field,
    Heading,
    Notes,
    Sentence,
    Table,
    Troubles,
    of,
    table_of,
)
from nsyspipe.report.html.answer_page import AnswerPage, PageBlock, Section, answer_html
from nsyspipe.report.html.page import PART_LEGEND, Chart
from nsyspipe.report.units import STEP_PARTS, absent, ms_text, with_share

# Heights in pixels.
_ROW_HEIGHT = 30
_FRAME_HEIGHT = 62
# Warnings on the first screen.
MAX_FIRST_WARNINGS = 3
# Keys in the data of the script, and columns of the scoreboard.
_COLUMN_OF_BAR = {
    "speedup": "peer_speedup",
    "low": "peer_speedup_low",
    "high": "peer_speedup_high",
    "why": "peer_why",
    "label": "label",
    "peer": "peer",
    "wall": "mean_step_time_ns",
    "n_steps": "n_summary_steps",
}


def scoreboard_page(board: Scoreboard) -> str:
    """Return a scoreboard as one HTML file.

    The file is complete and needs no network. The same runs give the same bytes.
    """
    verdict, *sentences = report.headlines(board)
    main_warnings = report.warnings(board, is_verbose=False)
    all_warnings = report.warnings(board, is_verbose=True)
    minor_warnings = [row for row in all_warnings if row not in main_warnings]
    first_warnings = main_warnings[:MAX_FIRST_WARNINGS]
    # These are in the last section.
    more_warnings = main_warnings[MAX_FIRST_WARNINGS:] + minor_warnings
    subject = report.subject(board)
    introduction = [*map(Sentence, sentences), subject, *_troubles(first_warnings)]
    identity = (report.RUNS, report.identity_of(board))
    title = f"{len(board.sides)} runs against {board.reference}: nsyspipe compare"
    picture = Section("Time and speed", [_chart(board)])
    page = AnswerPage(
        title=title,
        identity=identity,
        verdict=Sentence(verdict),
        introduction=introduction,
        picture=picture,
        details=[*_details(board, more_warnings)],
    )
    return answer_html(page, ["scoreboard"])


def _details(board: Scoreboard, more_warnings: Sequence[Any]) -> Iterator[Section]:
    """Yield the sections below the first screen."""
    yield Section("Runs", [*_results(board)])
    figures = report.figures_table(board, is_verbose=True)
    yield Section("Where a step goes", [figures])
    warnings = _troubles(more_warnings)
    notes = _notes(board)
    yield Section("Notes", [*warnings, *notes])


def _troubles(warnings: Sequence[Any]) -> list[PageBlock]:
    return [Troubles(warnings, is_close=True)] if warnings else []


def _notes(board: Scoreboard) -> list[PageBlock]:
    notes = report.notes(board)
    commands = Commands("What a metric means", ["nsyspipe explain METRIC"])
    return [Notes(notes), commands]


def _results(board: Scoreboard) -> Iterator[PageBlock]:
    """Yield a table of results for each group of runs. Several groups have headings."""
    groups = report.groups_of(board)
    for group in groups:
        if len(groups) > 1:
            yield Heading(group.title)
        yield report.results_table(board, group.rows)


def _chart(board: Scoreboard) -> Chart:
    """Return the bars of step times, and the speed-ups with their intervals."""
    bars = _bars(board)
    groups = report.groups_of(board)
    has_several_groups = len(groups) > 1
    over = "over the first of its group" if has_several_groups else f"over {board.reference}"
    # The heading of a group has no key "is_best".
    has_best = any(bar.get("is_best", False) for bar in bars)
    caption = (
        "Bars: mean of the steps used, on the slowest rank of each step. Dots: speed-up with "
        "its confidence interval. A "
        "filled dot means that the verdict is an improvement or a regression."
    )
    if has_best:
        caption += " Bold: the best run of a group."
    all_rows = itertools.chain.from_iterable(group.rows for group in groups)
    table = _parts_table(list(all_rows))
    height = _FRAME_HEIGHT + _ROW_HEIGHT * len(bars)
    return Chart(
        name="scoreboard",
        section="Time and speed",
        label="Parts of the step time of each run, and the speed-up of the run",
        height=height,
        data={"rows": bars, "over": over},
        table=table,
        caption=caption,
        legend=PART_LEGEND,
    )


def _bars(board: Scoreboard) -> list[Mapping[str, Any]]:
    """Return what the script draws: an entry per run, and above each group its heading.

    A single group has no heading. A group of one run has no best run.
    """
    bars: list[Mapping[str, Any]] = []
    groups = report.groups_of(board)
    for group in groups:
        if len(groups) > 1:
            heading = {"heading": group.title}
            bars.append(heading)
        label_of_best = group.kind.best if len(group.rows) > 1 else None
        bars += [_bar(row, is_best=row["label"] == label_of_best) for row in group.rows]
    return bars


def _bar(row: Mapping[str, Any], *, is_best: bool) -> dict[str, Any]:
    """Return what the script draws of a run: its step time, and its speed-up.

    The parts of the step time are None unless all of them are known.
    """
    bar = {key: row[column] for key, column in _COLUMN_OF_BAR.items()}
    ns_of_part = {part.category: row[part.column] for part in STEP_PARTS}
    are_all_known = None not in ns_of_part.values()
    verdict = row["peer_verdict"]
    bar["parts"] = ns_of_part if are_all_known else None
    bar["verdict"] = verdict
    bar["word"] = report.verdict_word(verdict)
    bar["is_best"] = is_best
    return bar


def _parts_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the table with the parts of the mean step time, a row per run."""
    part_fields = [
        Field(figure.short, partial(_part_text, column=figure.column)) for figure in STEP_PARTS
    ]
    run_field = report.run_field(rows, "of the slowest rank")
    step_field = Field("mean step time", of("mean_step_time_ns", ms_text))
    fields = [run_field, step_field, *part_fields]
    return table_of("Parts of the mean step time of each run", rows, fields)


def _part_text(row: Mapping[str, Any], column: str) -> str:
    part_ns = row[column]
    step_ns = row["mean_step_time_ns"]
    if part_ns is None or not step_ns:
        return absent
    share = part_ns / step_ns
    return with_share(ms_text(part_ns), share)
