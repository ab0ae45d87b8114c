"""What a notebook shows of a run or an answer: verdict, chart, table, as HTML without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from nsyspipe.comparison.changes import SIDES
from nsyspipe.comparison.difference import Gate, RunDifference
from nsyspipe.comparison.scoreboard import Scoreboard
from nsyspipe.errors import in_python
from nsyspipe.model.names import printable
from nsyspipe.replay.answer import WhatIf
from nsyspipe.report import (
    difference as of_difference,
    difference_screen,
    first_screen,
    overview,
    run as of_run,
    scoreboard as of_scoreboard,
    whatif as of_whatif,
)
from nsyspipe.report.blocks import (
    Block,
    Cell,
    Facts,
    Heading,
    Items,
    Line,
    Lines,
    Notes,
    Sentence,
    Table,
    Troubles,
)
from nsyspipe.report.html.page import PART_LEGEND, fragment, read_asset, with_kinds
from nsyspipe.report.html.whatif_page import STEP_LEGEND, divided_step
from nsyspipe.report.units import STEP_PARTS, in_one_unit, ms_text, percent_text
from nsyspipe.report.verdict import verdict
from nsyspipe.report.words import subject_parts
from nsyspipe.run.run import Run

# What a notebook shows.
Answer: TypeAlias = Run | RunDifference | Gate | Scoreboard | WhatIf

MAX_RANKS = 8
MAX_BARS = 12
# Lines of a list: recommendations, problems, or changes without an estimate.
MAX_LINES = 3
# Changes that a difference lists.
MAX_CHANGES = 8
# A colour of the palette in a style sheet: its name and its value.
_COLOUR = r"--(?:c-|(?=(?:accent|ink|page):))(\w+): (light-dark\(.*?\));"


class Bar(NamedTuple):
    """A bar of `Bars`."""

    label: str
    # Its length in words.
    text: str
    # Category of the palette, share of the longest bar, and words.
    segments: Sequence[tuple[str, float, str]]


class Bars(NamedTuple):
    """A chart of bars below each other, as shares of the longest."""

    rows: Sequence[Bar]
    # Categories of the palette, and words.
    legend: Sequence[tuple[str, str]]


class _StepTime(NamedTuple):
    """A step time of a rank, a side or a change, and its parts, to be drawn as a bar."""

    label: str
    wall_ns: float
    # In the order of the legend; None where a part was not recorded.
    parts_ns: Sequence[float | None]


def headline(shown: Answer) -> str:
    """Return the verdict of a run or an answer in one line, as its page has it."""
    match shown:
        case Run():
            text = verdict(shown)
        case WhatIf():
            text = of_whatif.headline(shown)
        case Scoreboard():
            text = "\n".join(of_scoreboard.headlines(shown))
        case RunDifference():
            text = of_difference.verdict_text(shown)
        case Gate():
            text = f"Gate {shown.outcome}: {of_difference.gate_text(shown)}"
    return in_python(text.replace("\n", " "))


def notebook_html(shown: Answer) -> str:
    """Return HTML for the output of a cell. All names are escaped, and nothing is loaded or run."""
    blocks = with_kinds(map(_in_python, _blocks(shown)))
    colours = re.findall(_COLOUR, read_asset("tokens.css"))
    return fragment("notebook.html.j2", {"blocks": blocks, "colours": dict(colours)})


def _in_python(block: Block | Bars) -> Block | Bars:
    """Return a block that names functions and arguments in place of commands and options."""
    match block:
        case Sentence() | Heading():
            text = in_python(block.text)
            return replace(block, text=text)
        case Items() | Notes():
            texts = list(map(in_python, block.texts))
            return replace(block, texts=texts)
        case Table():
            rows = [list(map(_cell_in_python, row)) for row in block.rows]
            note = in_python(block.note) if block.note else block.note
            return replace(block, rows=rows, note=note)
    return block


def _cell_in_python(cell: Cell) -> Cell:
    return in_python(cell) if isinstance(cell, str) else cell


def _blocks(shown: Answer) -> Iterator[Block | Bars]:
    """Yield the verdict, then the chart and the tables of an answer. A gate has only a verdict."""
    first_sentence, *further_sentences = _verdict_lines(shown)
    yield Sentence(first_sentence)
    yield from map(Heading, further_sentences)
    match shown:
        case RunDifference():
            yield from _change_blocks(shown)
        case Scoreboard():
            yield from _scoreboard_blocks(shown)
        case WhatIf():
            yield from _whatif_blocks(shown)
        case Run():
            yield from _run_blocks(shown)


def _verdict_lines(shown: Answer) -> list[str]:
    """Return the sentences of the verdict, the most important first."""
    match shown:
        case Run():
            return verdict(shown).split("\n")
        case WhatIf():
            return of_whatif.headline_sentences(shown)
        case Scoreboard():
            return of_scoreboard.headlines(shown)
    return [headline(shown)]


def _scoreboard_blocks(board: Scoreboard) -> Iterator[Block | Bars]:
    """Yield the chart of the sides, problems, and the table of results with its headings."""
    yield Heading("Mean step time on the slowest rank, by part:")
    yield from _chart_blocks(_side_bars(board))
    for block in of_scoreboard.scoreboard_blocks(board):
        yield from _troubles(block)
        is_table_of_results = isinstance(block, Table) and block.caption == of_scoreboard.RESULTS
        if is_table_of_results or isinstance(block, Facts | Heading):
            yield block


def _side_bars(board: Scoreboard) -> Iterator[_StepTime]:
    """Yield the mean step time of each side of a comparison, if it is known."""
    for row in board.table.to_pylist():
        mean_ns = row["mean_step_time_ns"]
        if mean_ns:
            parts_ns = [row[part.column] for part in STEP_PARTS]
            yield _StepTime(row["label"], mean_ns, parts_ns)


def _whatif_blocks(answer: WhatIf) -> Iterator[Block | Bars]:
    """Yield the chart and the table of changes, assumptions, refused changes, and problems."""
    answered = [scenario for scenario in answer.scenarios if scenario.refused is None]
    menu_rows = of_whatif.menu_rows(answer, answered, is_verbose=False)
    drawn_rows = [row for row in menu_rows if row.step_time_ns is not None]
    # The first row is the captured step.
    has_changes = len(drawn_rows) > 1
    if has_changes:
        yield from _chart_blocks(_simulated_bars(answer, drawn_rows), STEP_LEGEND)
        yield of_whatif.menu(answer, answered, is_verbose=False)
    if answered:
        yield from of_whatif.without_effect(answer, is_verbose=False)
    yield from of_whatif.assumption_blocks(answered, is_verbose=False)
    reasons = of_whatif.refusals(answer, MAX_LINES)
    if reasons:
        yield Heading("No estimate:")
        yield Items(reasons)
    if answered:
        yield from _problems(answer.problem_rows)


def _simulated_bars(answer: WhatIf, rows: Sequence[of_whatif.MenuRow]) -> Iterator[_StepTime]:
    """Yield the step time of each row that has one, with its parts in order of `STEP_LEGEND`."""
    for row in rows:
        if row.step_time_ns:
            ns_by_category = dict(divided_step(answer, row))
            parts_ns = [ns_by_category.get(category) for category, _ in STEP_LEGEND]
            yield _StepTime(row.label, row.step_time_ns, parts_ns)


def _change_blocks(change: RunDifference) -> Iterator[Block | Bars]:
    """Yield what a notebook shows of a difference below the verdict."""
    for sentence in of_difference.gate_blocks(change):
        yield Heading(sentence.text)
    if change.cause is not None:
        yield Heading(of_difference.cause_text(change.cause))
    yield Heading("Mean step time on the slowest rank, by part:")
    yield from _chart_blocks(_bars_of_sides(change))
    for block in of_difference.difference_blocks(change):
        yield from _troubles(block)
    table = difference_screen.parts_or_metrics(change)
    # The column of bars has no heading. Its bars are letters, and the notebook has a chart.
    yield _only_columns_with_heading(table) if isinstance(table, Table) else table
    facts = of_difference.shown_changes(change)
    changes = [Line(of_difference.change_text_of_fact(row)) for row in facts]
    if changes:
        yield Lines("Also changed", changes[:MAX_CHANGES])
    not_compared = of_difference.not_compared_texts(change)
    spread = of_difference.spread_text(change, several="a list of runs")
    yield Notes([*not_compared, *spread, "All metrics: .metrics"])


def _bars_of_sides(change: RunDifference) -> Iterator[_StepTime]:
    """Yield the mean step time of each side of a difference, with its parts, if it is known."""
    # Rows about causes of idle time, and the row of the step time, have no "part".
    part_rows = [row for row in of_difference.part_rows(change) if "part" in row]
    baseline_ns, candidate_ns, _delta_ns = change.mean_step_time
    mean_step_times_ns = (baseline_ns, candidate_ns)
    sides = (change.baseline, change.candidate)
    for name, side, mean_ns in zip(SIDES, sides, mean_step_times_ns, strict=True):
        if mean_ns:
            parts_ns = [row[f"{name}_ns"] for row in part_rows]
            yield _StepTime(side.name, mean_ns, parts_ns)


def _only_columns_with_heading(table: Table) -> Table:
    """Return a table without its columns that have no heading."""
    shown_numbers = [number for number, column in enumerate(table.columns) if column.heading]

    def shown_of(columns_or_cells: Sequence[Any]) -> list[Any]:
        return [columns_or_cells[number] for number in shown_numbers]

    columns = shown_of(table.columns)
    rows = list(map(shown_of, table.rows))
    return replace(table, columns=columns, rows=rows)


def _troubles(block: Block) -> Iterator[Heading]:
    """Yield the warnings and errors of a block; nothing of a block without problems."""
    if not isinstance(block, Troubles):
        return
    for severity, message, *_ in block.rows:
        if severity != "info":
            yield Heading(printable(f"{severity}: {message}"))


def _run_blocks(run: Run) -> Iterator[Block | Bars]:
    """Yield what a notebook shows of a run below the verdict."""
    (summary,) = run.summary().to_pylist()
    subject = map(printable, subject_parts(run, summary))
    yield Heading(", ".join(subject))
    if not run.breakdown().num_rows:
        yield from of_run.host_blocks(run.host_steps(), MAX_RANKS)
        yield from _problems(run.problem_rows)
        return
    yield from _chart_blocks(_rank_bars(run))
    if overview.do_ranks_differ(run):
        yield _rank_table(run)
    recommendations = overview.recommendations_of(run)
    for block in first_screen.alternatives_blocks(recommendations, MAX_LINES):
        # The column with the numbers of the rows has no heading. Without this column, the last one
        # is in sight on a narrow page.
        yield _only_columns_with_heading(block) if isinstance(block, Table) else block
    yield from _problems(run.problem_rows)


def _rank_table(run: Run) -> Table:
    """Return the table of the ranks. Its note says what the shares are shares of."""
    table = of_run.rank_table(run, MAX_RANKS)
    whole = "capture" if run.is_capture else "mean step"
    note = f"Shares are of each rank's own {whole}."
    if table.note:
        note = f"{note} {table.note}"
    return replace(table, note=note)


def _rank_bars(run: Run) -> Iterator[_StepTime]:
    """Yield the step time of the most informative ranks, with its parts, if it is known.

    A part that is not known counts as 0, which is not drawn.
    """
    telling_ranks = run.telling_ranks(MAX_RANKS)
    for row in of_run.rank_rows(run):
        length_ns = row["length_ns"]
        if row["rank"] in telling_ranks and length_ns:
            parts_ns = []
            for part in STEP_PARTS:
                share = row[f"{part.name}_share"] or 0
                parts_ns.append(share * length_ns)
            rank_name = run.rank_names.name(row["rank"])
            yield _StepTime(f"rank {rank_name}", length_ns, parts_ns)


def _problems(rows: Sequence[Mapping[str, Any]]) -> Iterator[Heading]:
    """Yield the first warnings and errors, and how many problems are not shown.

    Problems with severity info are notes, which are never shown.
    """
    warnings_and_errors = [row for row in rows if row["severity"] != "info"]
    shown = warnings_and_errors[:MAX_LINES]
    for row in shown:
        text = f"{row['severity']}: {row['message']}"
        yield Heading(printable(text))
    hidden = [row for row in rows if row not in shown]
    if not hidden:
        return
    are_all_notes = all(row["severity"] == "info" for row in hidden)
    if len(hidden) == 1:
        noun = "note" if are_all_notes else "warning or note"
    else:
        noun = "notes" if are_all_notes else "warnings or notes"
    more = "more " if shown else ""
    yield Heading(f"{len(hidden)} {more}{noun}: .problems")


def _chart_blocks(
    step_times: Iterable[_StepTime], legend: Sequence[tuple[str, str]] = PART_LEGEND
) -> Iterator[Bars | Heading]:
    """Yield the chart of the first `MAX_BARS` step times, and how many it leaves out."""
    all_step_times = [*step_times]
    drawn = all_step_times[:MAX_BARS]
    if drawn:
        yield _bars(drawn, legend)
    if len(all_step_times) > len(drawn):
        yield Heading(f"The chart shows the first {MAX_BARS} of {len(all_step_times)}.")


def _bars(step_times: Sequence[_StepTime], legend: Sequence[tuple[str, str]]) -> Bars:
    """Return the bars of step times, with the part of the legend that is drawn."""
    longest_ns = max(step_time.wall_ns for step_time in step_times)
    texts = in_one_unit([ms_text(step_time.wall_ns) for step_time in step_times])
    bars = []
    drawn_categories = set()
    for step_time, text in zip(step_times, texts, strict=True):
        segments = [*_segments(step_time, longest_ns, legend)]
        drawn_categories |= {category for category, _, _ in segments}
        bars.append(Bar(step_time.label, text, segments))
    drawn_legend = [(category, words) for category, words in legend if category in drawn_categories]
    return Bars(bars, drawn_legend)


def _segments(
    step_time: _StepTime, longest_ns: float, legend: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, float, str]]:
    """Yield the parts of a step time that take time, in the order of the legend.

    A part is its category of the palette, its share of the longest bar, and its words.
    """
    # A step time has no parts if they are not known.
    for (category, words), part_ns in zip(legend, step_time.parts_ns, strict=False):
        if part_ns:
            share = percent_text(part_ns / step_time.wall_ns)
            text = f"{words}: {ms_text(part_ns)}, {share}"
            yield category, part_ns / longest_ns, text
