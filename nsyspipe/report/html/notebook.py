"""What a notebook shows of a run or an answer: verdict, one chart and one table, as HTML without scripts."""

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
from nsyspipe.report import difference as of_difference, run as of_run, scoreboard as of_scoreboard, whatif as of_whatif
from nsyspipe.report.blocks import Block, Facts, Heading, Sentence, Table, Troubles
from nsyspipe.report.findings import Finding, findings_of
from nsyspipe.report.html.page import PART_LEGEND, fragment, read_asset
from nsyspipe.report.units import STEP_PARTS, absent, in_one_unit, ms_text, percent_text
from nsyspipe.report.verdict import verdict
from nsyspipe.report.words import NOT_CLEAR, mean_step_ns, rank_step_ns, subject_parts
from nsyspipe.run.run import Run, ShownInNotebooks

_MOST_RANKS, _MOST_ROWS, _MOST_LINES = 8, 12, 3
_LIKELY = {  # words that stand for a share
    "hidden": "if all of it were hidden, which no setting does", NOT_CLEAR: "within the error of the replay",
    "conditional": "if what was not recorded is so",
}  # fmt: skip


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
    colours = re.findall(r"--(?:c-|(?=(?:accent|ink|page):))(\w+): (light-dark\(.*?\));", read_asset("tokens.css"))
    return fragment("notebook.html.j2", {"blocks": blocks, "colours": dict(colours)})


def _in_python(block: Block | Bars) -> Block | Bars:
    match block:
        case Sentence() | Heading():
            return replace(block, text=in_python(block.text))
        case Table():
            rows = [[in_python(cell) if isinstance(cell, str) else cell for cell in row] for row in block.rows]
            return replace(block, rows=rows, note=block.note and in_python(block.note))
    return block


def _blocks(shown: ShownInNotebooks) -> Iterator[Block | Bars]:
    yield Sentence(headline(shown))
    match shown:
        case RunDifference():
            yield from _change_blocks(shown)
        case Scoreboard():
            rows = shown.table.to_pylist()
            yield Heading("Mean step time on the slowest rank, by part:")
            bars = [(row["label"], row["mean_step_time_ns"], [row[one.column] for one in STEP_PARTS]) for row in rows]
            yield from _drawn(bars)
            for one in of_scoreboard.scoreboard_blocks(shown):
                yield from _troubles(one)
                if isinstance(one, Facts | Heading) or getattr(one, "caption", None) == of_scoreboard.RESULTS:
                    yield one
        case WhatIf():
            answers = [one for one in shown.scenarios if one.refused is None]
            times = [("as captured", shown.step_time_ns), *((one.label, one.step_time_ns) for one in answers)]
            if answers:
                yield from _drawn([(label, ns, [ns]) for label, ns in times], [("accent", "step time")])
                yield of_whatif.menu(shown, answers)
                shared = [text for text in answers[0].assumptions if all(text in one.assumptions for one in answers)]
                whole = [f"Rests on: {'; '.join(shared)}"] if shared else []
                each = ["What each answer rests on: see .table()"] if len(answers) > 1 else []
                yield Heading(". ".join([*whole, *each]))
            if reasons := of_whatif.refusals(shown):
                yield Heading(f"{len(shown.scenarios) - len(answers)} not answered. {'; '.join(reasons)}")
            if answers:
                yield from _problems(shown.problem_rows)
        case Run():
            yield from _run_blocks(shown)


def _change_blocks(change: RunDifference) -> Iterator[Block | Bars]:
    yield from (Heading(one.text) for one in of_difference.gate_blocks(change))
    rows = [row for row in of_difference.part_rows(change)[:-1] if "part" in row]
    sides = zip(SIDES, (change.baseline, change.candidate), change.mean_step_time, strict=False)
    if change.cause is not None:
        yield Heading(of_difference.cause_text(change, change.cause))
    yield Heading("Mean step time on the slowest rank, by part:")
    yield from _drawn((side.name, wall, [row[f"{name}_ns"] for row in rows]) for name, side, wall in sides)
    for one in of_difference.difference_blocks(change):
        yield from _troubles(one)
        if getattr(one, "caption", None) == of_difference.METRICS:
            yield one
    yield from map(Heading, of_difference.spread_text(change, "a list of runs"))


def _troubles(block: Block) -> Iterator[Heading]:
    if isinstance(block, Troubles):
        yield from (Heading(printable(f"{severity}: {message}")) for severity, message, *_ in block.rows)


def _run_blocks(run: Run) -> Iterator[Block | Bars]:
    yield Heading(", ".join(map(printable, subject_parts(run, run.summary().to_pylist()[0]))))
    if not run.breakdown().num_rows:
        yield from of_run.host_blocks(run.host_steps(), _MOST_RANKS)
        yield from _problems(run.problem_rows)
        return
    ranks = run.telling_ranks(_MOST_RANKS)
    drawn = [(row, row["length_ns"]) for row in of_run.rank_rows(run) if row["rank"] in ranks]
    parts = [[ns and (row[f"{one.name}_share"] or 0) * ns for one in STEP_PARTS] for row, ns in drawn]
    yield from _drawn(
        (f"rank {run.rank_names.name(row['rank'])}", ns, own) for (row, ns), own in zip(drawn, parts, strict=True)
    )
    table = of_run.rank_table(run, _MOST_RANKS)
    whole, mean = ("capture" if run.is_capture else "mean step"), ms_text(rank_step_ns(run))
    shares = f"Shares are of the {whole}, {mean}."
    if run.header.n_ranks > 1:
        shares = f"Shares are of each rank's own {whole}; those of step time in the verdict are of the mean over ranks, {mean}."
    yield replace(table, note=" ".join(filter(None, [shares, table.note])))
    findings = findings_of(run)
    # One that rests on what was not recorded stands last, and may bring most.
    shown = [one for at, one in enumerate(findings) if at < _MOST_LINES or (one.is_conditional and one.share)]
    extent = of_run.Extent((), _MOST_RANKS, len(shown), is_brief=True)
    step_ns = mean_step_ns(run.summary().to_pylist()[0])
    rest = [one.id for one in findings if one not in shown]
    for one in of_run.change_blocks(shown, extent, step_ns):
        if isinstance(one, Table):  # what to change first: on a narrow page the last columns have to be scrolled to
            columns, rows = [*one.columns[-1:], *one.columns[:-1]], [[*row[-1:], *row[:-1]] for row in one.rows]
            yield replace(one, columns=columns, rows=rows, note=_findings_note(shown, rest, ms_text(step_ns)))
    yield from _problems(run.problem_rows)


def _findings_note(shown: Sequence[Finding], rest: Sequence[str], step_time: str) -> str:
    notes = [f"Up to: share of {step_time}, the mean step time on each step's slowest rank"] * (step_time != absent)
    if any(one.expected for one in shown):
        words = {word: text for word, text in _LIKELY.items() if any(one.likely.startswith(word) for one in shown)}
        notes += ["; ".join(["Likely: what a replay of the steps gives", *map(": ".join, words.items())])]
    notes += ["Gains overlap: do not add them up"] * (len(shown) > 1)
    notes += [f"Not shown: {', '.join(rest)}"] if rest else []
    return ". ".join([*notes, "What each rests on: .findings()"])


def _problems(rows: Sequence[Mapping[str, Any]]) -> Iterator[Heading]:
    shown = [row for row in rows if row["severity"] != "info"][:_MOST_LINES]
    yield from (Heading(printable(f"{row['severity']}: {row['message']}")) for row in shown)
    if rest := [row for row in rows if row not in shown]:
        infos = " of severity info" if all(row["severity"] == "info" for row in rest) else ""
        what = "more" if shown else f"problem{'s'[: len(rest) != 1]}"
        yield Heading(f"{len(rest)} {what}{infos}: .problems")


def _drawn(
    bars: Iterable[tuple[str, float | None, Sequence[float | None]]], legend: Sequence[tuple[str, str]] = PART_LEGEND
) -> Iterator[Bars | Heading]:
    """Yield the chart of bars: label, length and parts in ns, in order of the legend. What was not recorded is not drawn."""
    every = [(label, wall, parts) for label, wall, parts in bars if wall]
    known, n_more = every[:_MOST_ROWS], len(every[_MOST_ROWS:])
    if known:
        longest = max(wall for _, wall, _ in known)
        texts = in_one_unit([ms_text(wall) for _, wall, _ in known])
        rows = [
            (label, text, [
                (name, ns / longest, f"{words}: {ms_text(ns)}, {percent_text(ns / wall)}")
                for (name, words), ns in zip(legend, parts, strict=False) if ns
            ])
            for (label, wall, parts), text in zip(known, texts, strict=True)
        ]  # fmt: skip
        yield Bars(rows, legend)
    if n_more:
        yield Heading(f"Drawn are the first {_MOST_ROWS}; {n_more} more in the table.")
