"""What a notebook shows of a run or an answer: verdict, one chart and a table, as HTML without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
from nsyspipe.report.html.page import PART_LEGEND, fragment, read_asset
from nsyspipe.report.html.whatif_page import STEP_LEGEND, divided_step
from nsyspipe.report.units import STEP_PARTS, in_one_unit, ms_text, percent_text
from nsyspipe.report.verdict import verdict
from nsyspipe.report.words import subject_parts
from nsyspipe.run.run import Run, ShownInNotebooks

_MOST_RANKS = 8
_MOST_ROWS = 12
_MOST_LINES = 3


class Bars(NamedTuple):
    """Lengths beside each other: `rows` of label, text, and segments of category, share of the longest, and words."""

    rows: Sequence[tuple[str, str, Sequence[tuple[str, float, str]]]]
    legend: Sequence[tuple[str, str]]


def headline(shown: ShownInNotebooks) -> str:
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


def notebook_html(shown: ShownInNotebooks) -> str:
    """Return HTML for a cell's output: whatever names it holds are escaped, and nothing is fetched or run."""
    blocks = [(type(block).__name__, _in_python(block)) for block in _blocks(shown)]
    colours = re.findall(
        r"--(?:c-|(?=(?:accent|ink|page):))(\w+): (light-dark\(.*?\));", read_asset("tokens.css")
    )
    return fragment("notebook.html.j2", {"blocks": blocks, "colours": dict(colours)})


def _in_python(block: Block | Bars) -> Block | Bars:
    match block:
        case Sentence() | Heading():
            return replace(block, text=in_python(block.text))
        case Items() | Notes():
            return replace(block, texts=[in_python(text) for text in block.texts])
        case Table():
            rows = [
                [in_python(cell) if isinstance(cell, str) else cell for cell in row]
                for row in block.rows
            ]
            return replace(block, rows=rows, note=block.note and in_python(block.note))
    return block


def _blocks(shown: ShownInNotebooks) -> Iterator[Block | Bars]:
    first, *sentences = _verdict_lines(shown)
    yield Sentence(first)
    yield from map(Heading, sentences)
    match shown:
        case RunDifference():
            yield from _change_blocks(shown)
        case Scoreboard():
            yield from _scoreboard_blocks(shown)
        case WhatIf():
            yield from _whatif_blocks(shown)
        case Run():
            yield from _run_blocks(shown)


def _verdict_lines(shown: ShownInNotebooks) -> list[str]:
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
    rows = board.table.to_pylist()
    yield Heading("Mean step time on the slowest rank, by part:")
    bars = [
        (row["label"], row["mean_step_time_ns"], [row[part.column] for part in STEP_PARTS])
        for row in rows
    ]
    yield from _drawn(bars)
    for block in of_scoreboard.scoreboard_blocks(board):
        yield from _troubles(block)
        if (
            isinstance(block, Facts | Heading)
            or getattr(block, "caption", None) == of_scoreboard.RESULTS
        ):
            yield block


def _whatif_blocks(answer: WhatIf) -> Iterator[Block | Bars]:
    answered = [scenario for scenario in answer.scenarios if scenario.refused is None]
    rows = [
        row
        for row in of_whatif.menu_rows(answer, answered, is_verbose=False)
        if row.step_time_ns is not None
    ]
    if len(rows) > 1:
        yield from _drawn(_simulated_bars(answer, rows), STEP_LEGEND)
        yield of_whatif.menu(answer, answered, is_verbose=False)
    if answered:
        yield from of_whatif.without_effect(answer, is_verbose=False)
    yield from of_whatif.assumption_blocks(answered, is_verbose=False)
    reasons = of_whatif.refusals(answer, _MOST_LINES)
    if reasons:
        yield Heading("No estimate:")
        yield Items(reasons)
    if answered:
        yield from _problems(answer.problem_rows)


def _simulated_bars(
    answer: WhatIf, rows: Sequence[of_whatif.MenuRow]
) -> Iterator[tuple[str, float | None, Sequence[float | None]]]:
    """Yield each change with its step time, and the parts of it in the order of the legend."""
    for row in rows:
        parts = dict(divided_step(answer, row))
        yield row.label, row.step_time_ns, [parts.get(category) for category, _ in STEP_LEGEND]


def _change_blocks(change: RunDifference) -> Iterator[Block | Bars]:
    yield from (Heading(block.text) for block in of_difference.gate_blocks(change))
    if change.cause is not None:
        yield Heading(of_difference.cause_text(change.cause))
    rows = [row for row in of_difference.part_rows(change)[:-1] if "part" in row]
    sides = zip(SIDES, (change.baseline, change.candidate), change.mean_step_time, strict=False)
    yield Heading("Mean step time on the slowest rank, by part:")
    yield from _drawn(
        (side.name, wall, [row[f"{name}_ns"] for row in rows]) for name, side, wall in sides
    )
    for block in of_difference.difference_blocks(change):
        yield from _troubles(block)
    table = difference_screen.parts_or_metrics(change)
    yield _without_bars(table) if isinstance(table, Table) else table
    changes = [
        Line(of_difference.change_text_of_fact(row)) for row in of_difference.shown_changes(change)
    ]
    if changes:
        yield Lines("Also changed", changes[:_MOST_RANKS])
    yield Notes(
        [
            *of_difference.not_compared_texts(change),
            *of_difference.spread_text(change, "a list of runs"),
            "All metrics: .metrics",
        ]
    )


def _without_bars(table: Table) -> Table:
    """Return a table without its column of bars, which are made of letters."""
    places = [at for at, column in enumerate(table.columns) if column.heading]
    rows = [[row[at] for at in places] for row in table.rows]
    return replace(table, columns=[table.columns[at] for at in places], rows=rows)


def _troubles(block: Block) -> Iterator[Heading]:
    if isinstance(block, Troubles):
        grave = [(severity, message) for severity, message, *_ in block.rows if severity != "info"]
        yield from (Heading(printable(f"{severity}: {message}")) for severity, message in grave)


def _run_blocks(run: Run) -> Iterator[Block | Bars]:
    yield Heading(", ".join(map(printable, subject_parts(run, run.summary().to_pylist()[0]))))
    if not run.breakdown().num_rows:
        yield from of_run.host_blocks(run.host_steps(), _MOST_RANKS)
        yield from _problems(run.problem_rows)
        return
    yield from _drawn(_rank_bars(run))
    if overview.do_ranks_differ(run):
        whole = "capture" if run.is_capture else "mean step"
        table = of_run.rank_table(run, _MOST_RANKS)
        yield replace(
            table,
            note=" ".join(filter(None, [f"Shares are of each rank's own {whole}.", table.note])),
        )
    found = overview.recommendations_of(run)
    for block in first_screen.alternatives_blocks(found, _MOST_LINES):
        # On a narrow page the last columns have to be scrolled to: the numbers of rows go.
        yield _without_bars(block) if isinstance(block, Table) else block
    yield from _problems(run.problem_rows)


def _rank_bars(run: Run) -> Iterator[tuple[str, float | None, Sequence[float | None]]]:
    """Yield the ranks that tell most, with the parts of their steps."""
    ranks = run.telling_ranks(_MOST_RANKS)
    for row in of_run.rank_rows(run):
        if row["rank"] in ranks:
            ns = row["length_ns"]
            parts = [ns and (row[f"{part.name}_share"] or 0) * ns for part in STEP_PARTS]
            yield f"rank {run.rank_names.name(row['rank'])}", ns, parts


def _problems(rows: Sequence[Mapping[str, Any]]) -> Iterator[Heading]:
    shown = [row for row in rows if row["severity"] != "info"][:_MOST_LINES]
    yield from (Heading(printable(f"{row['severity']}: {row['message']}")) for row in shown)
    rest = [row for row in rows if row not in shown]
    if rest:
        is_info = all(row["severity"] == "info" for row in rest)
        noun = "note" if is_info else "warning or note"
        what = (
            noun if len(rest) == 1 else noun.replace("warning", "warnings").replace("note", "notes")
        )
        more = "more " if shown else ""
        yield Heading(f"{len(rest)} {more}{what}: .problems")


def _drawn(
    bars: Iterable[tuple[str, float | None, Sequence[float | None]]],
    legend: Sequence[tuple[str, str]] = PART_LEGEND,
) -> Iterator[Bars | Heading]:
    """Yield the chart of bars: label, length and parts in ns, in order of the legend. What was not recorded is not drawn."""
    every = [(label, wall, parts) for label, wall, parts in bars if wall]
    known = every[:_MOST_ROWS]
    n_more = len(every[_MOST_ROWS:])
    if known:
        longest = max(wall for _, wall, _ in known)
        texts = in_one_unit([ms_text(wall) for _, wall, _ in known])
        rows = [
            (
                label,
                text,
                [
                    (name, ns / longest, f"{words}: {ms_text(ns)}, {percent_text(ns / wall)}")
                    for (name, words), ns in zip(legend, parts, strict=False)
                    if ns
                ],
            )
            for (label, wall, parts), text in zip(known, texts, strict=True)
        ]
        drawn = {name for _, _, segments in rows for name, *_ in segments}
        yield Bars(rows, [(name, words) for name, words in legend if name in drawn])
    if n_more:
        yield Heading(f"The chart shows the first {_MOST_ROWS} of {_MOST_ROWS + n_more}.")
