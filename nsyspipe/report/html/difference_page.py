"""The page of a difference: verdict, where the change comes from, one step of each side, metrics and kernels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from nsyspipe.comparison.changes import SIDES
from nsyspipe.comparison.difference import RunDifference, Side
from nsyspipe.comparison.statistics import MEAN, MEDIAN
from nsyspipe.model.figures import METRICS as BY_NAME
from nsyspipe.model.names import grouped, listed, ranges
from nsyspipe.report import difference as report, difference_screen as screen
from nsyspipe.report.blocks import (
    Block,
    Commands,
    Field,
    Line,
    Lines,
    Notes,
    Sentence,
    Table,
    Tile,
    Tiles,
    Track,
    Troubles,
    Word,
    with_column,
)
from nsyspipe.report.difference import PARTS, metric_rows, part_rows, percent_change
from nsyspipe.report.html.answer_page import AnswerPage, PageBlock, Section, answer_html
from nsyspipe.report.html.page import PART_LEGEND, Chart, Fold, cut
from nsyspipe.report.html.run_page import provenance
from nsyspipe.report.html.timeline import IS_PAINTED, lane_legend, timeline_data, timeline_table
from nsyspipe.report.units import (
    absent,
    count_text,
    delta_text,
    metric_label,
    ms_text,
    sure_text,
    value_text,
)
from nsyspipe.report.words import troubles

_Drawn: TypeAlias = "tuple[str, list[str], pa.Table, pa.Table]"
_SCRIPTS = (
    "difference_waterfall",
    "timeline_layout",
    "timeline_draw",
    "timeline",
    "difference_timelines",
)
# a part that a side did not record; and a colour that stands for no part
_REST = "not split"
_NEUTRAL = "ink3"
_MOST_TILE_ROWS = 2  # judged metrics with key figures on the first screen
_FIRST_METRICS = 6  # rows of the table of metrics that are shown at once
_MOST_CHANGES = 8  # facts that changed, on the first screen


def difference_page(difference: RunDifference) -> str:
    """Return the page of a difference as one HTML file: complete, offline, the same bytes for the same runs."""
    before, after = (cut(side.name) for side in (difference.baseline, difference.candidate))
    verdict, *sentences = (
        block for block in report.answer_blocks(difference) if isinstance(block, Sentence)
    )
    page = AnswerPage(
        title=f"{before} -> {after}: nsyspipe diff",
        identity=(report.DIFF_RUNS, report.identity_of(difference)),
        verdict=verdict,
        introduction=[*_introduction(difference, sentences)],
        picture=Section("Where the change comes from", [_picture(difference)], "Change"),
        beside_picture=[Section("What else changed", [*_changes(difference)])],
        details=[
            Section("Timelines of both sides", [*_timeline_charts(difference)], "Timelines"),
            Section("Metrics", _metrics(difference)),
            Section("Kernels", [_kernels(difference)]),
            Section("Notes", [*_notes(difference)]),
            Section("About both runs", [_provenance_table(difference)]),
        ],
    )
    return answer_html(page, _SCRIPTS)


def _introduction(difference: RunDifference, sentences: Sequence[Sentence]) -> Iterator[PageBlock]:
    """Yield what the change comes from, what a gate decided, both sides, doubts, and the key figures."""
    yield from sentences
    yield from report.gate_blocks(difference)
    yield from screen.side_blocks(difference)
    rows = {row["metric"]: row for row in difference.judged_rows}
    yield from (Tiles(_tiles(rows[name])) for name in difference.judged[:_MOST_TILE_ROWS])


def _picture(difference: RunDifference) -> PageBlock:
    table = report.parts_table(difference)
    return _waterfall_chart(difference, table) or table


def _changes(difference: RunDifference) -> Iterator[PageBlock]:
    """Yield the facts that changed, and which facts could not be compared."""
    table = report.changes_table(difference)
    lines = [Line(report.change_text_of_fact(row)) for row in report.shown_changes(difference)]
    if lines:
        yield Lines("", lines[:_MOST_CHANGES])
    elif report.same_facts(difference):
        yield Sentence("No other difference was found in what both sides recorded.")
    if table.rows:
        topics = [row["topic"] for row in report.shown_changes(difference)]
        full = with_column(replace(table, note=None), 0, Field("about", kind="text"), topics)
        yield Fold(f"Show all {len(lines)} as a table", [full])
    yield from report.not_compared_block(difference)


def _metrics(difference: RunDifference) -> list[PageBlock]:
    """Return the metrics that matter most, and the others folded."""
    table = figure_table(difference, report.metrics_table(difference))
    n_shown = max(_FIRST_METRICS, len(difference.judged))
    if len(table.rows) <= n_shown:
        return [table]
    first = replace(table, rows=table.rows[:n_shown])
    others = replace(table, rows=table.rows[n_shown:], note=None, strong=frozenset())
    return [first, Fold(f"Show {len(others.rows)} more metrics", [others])]


def _kernels(difference: RunDifference) -> PageBlock:
    table = report.kernels_table(difference, difference.top_kernels.to_pylist())
    return kernel_table(difference, table) if table.rows else table


def _notes(difference: RunDifference) -> Iterator[PageBlock]:
    """Yield problems of both sides, and what to know of the figures."""
    problems = [*_problems(difference)]
    if problems:
        yield Troubles(problems)
    same = report.same_facts(difference)
    if same:
        yield Notes([f"Same on both sides: {listed(same)}."])
    texts = report.notes(difference)
    if texts:
        yield Notes(texts)
    yield Commands("What a metric means", ["nsyspipe explain METRIC"])


def _problems(difference: RunDifference) -> Iterator[tuple[str, str, str, str | None]]:
    for name, side in zip(SIDES, (difference.baseline, difference.candidate), strict=True):
        rows = grouped(
            (row["run_id"], row) for row in difference.problem_rows if row["side"] == name
        )
        told = (
            (one, at)
            for at, run in enumerate(side.runs, 1)
            for one in troubles(rows.get(run.header.run_id, ()))
        )
        for (grave, what, place, fix), those in grouped(told).items():
            some = (
                f", capture {', '.join(ranges(those))} of {len(side.runs)}"
                if len(those) < len(side.runs)
                else ""
            )
            yield grave, f"{name}{some}: {what}", place, fix


def _tiles(row: Mapping[str, Any]) -> list[Tile]:
    name = metric_label(row["metric"]).capitalize()
    unit = row["unit"]
    why = (row["why"] or "not decided").partition(", not comparable")[0]
    relative = percent_change(row)

    def tile(
        name: str, value: float | None, text: str, meaning: str, missing: str = "not recorded"
    ) -> Tile:
        number, _, unit = text.rpartition(" ")
        if value is None:
            return Tile(name, "", "", why, missing)
        return Tile(name, number, unit, meaning) if number else Tile(name, unit, "", meaning)

    numbers = [row[f"n_{side}"] for side in SIDES]
    over = [
        "of one step" if n == 1 else f"{row['statistic'] or MEDIAN} of {n} steps" for n in numbers
    ]
    sides = zip(SIDES, over, strict=True)
    below = "candidate - baseline" if relative == absent else f"{relative} of the baseline"
    sure = f"{sure_text(row['confidence'])} CI"
    return [
        *(
            tile(f"{name}, {side}", row[side], value_text(unit, row[side]), of_steps)
            for side, of_steps in sides
        ),
        tile("Change", row["delta"], delta_text(unit, row["delta"]), below),
        tile(sure, row["ci_low"], report.interval_text(row), "of the change", "none"),
    ]


def _waterfall_chart(difference: RunDifference, table: Table) -> Chart | None:
    bars = waterfall(difference)
    if bars is None:
        return None
    about = [
        "Means over steps of the slowest rank. The parts add up exactly.",
        "The verdict uses medians." * (difference.statistic != MEAN),
        f"The axis begins at {ms_text(bars['from'])}, not at 0." * (bars["from"] > 0),
        table.note,
    ]
    note = " ".join(filter(None, about))
    table = replace(table, note=None)
    label = "From the mean step time of the baseline to that of the candidate, by part"
    return Chart(
        "waterfall", PARTS, label, 32 * len(bars["bars"]) + 28, bars, table, note, PART_LEGEND
    )


def waterfall(difference: RunDifference) -> dict[str, Any] | None:
    """Return the bars of the chart; None where a side has no steps.

    ``from``: where the axis begins, ns; above 0 where what changed could not be seen on a whole
    one. ``bars``: each with ``name``, ``category``, ``start`` and ``end`` (ns; those of a part are
    the sum so far without and with it), ``baseline``, ``candidate`` and ``delta``. The first is the
    baseline, the last the candidate, and between them every bar begins where the one before ends,
    exactly. A part that a side did not record is in the bar ``not split``.
    """
    before, after, delta = difference.mean_step_time
    if before is None or after is None or delta is None:
        return None

    def bar(
        name: str, category: str, start: float, end: float, row: Mapping[str, Any]
    ) -> dict[str, Any]:
        sides = {side: row.get(f"{side}_ns") for side in (*SIDES, "delta")}
        return {"name": name, "category": category, "start": start, "end": end} | sides

    bars = [bar("baseline", _NEUTRAL, 0.0, before, {})]
    at = before
    rows = [row for row in part_rows(difference)[:-1] if row["delta_ns"] is not None]
    if any("cause" in row for row in rows):  # idle time by cause, if causes are known
        rows = [row for row in rows if row.get("part") != "idle"]
    for row in rows:
        category = BY_NAME[row.get("part", "idle")].category or _NEUTRAL
        name = f"idle: {row['cause']}" if "cause" in row else row["name"]
        bars.append(bar(name, category, at, at + row["delta_ns"], row))
        at = bars[-1]["end"]
    if at != after or difference.step_time_parts["delta_ns"].null_count:
        bars.append(bar(_REST, _NEUTRAL, at, after, {"delta_ns": after - at}))
    bars.append(bar("candidate", _NEUTRAL, 0.0, after, {}))
    return {"from": _axis_start([one["end"] for one in bars]), "bars": bars}


def _axis_start(ends: list[float]) -> float:
    """Return where the axis begins: at 0, unless what changed is less than a twentieth of it, too little to be seen."""
    lowest = min(ends)
    highest = max(ends)
    span = highest - lowest
    if not span or span >= highest / 20:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(span))
    return max(unit * math.floor((lowest - span / 2) / unit), 0.0)


def _timeline_charts(difference: RunDifference) -> Iterator[Block | Chart]:
    """Yield the representative step of each side's first capture, on the rank whose window of it is the longest (tie: the lowest)."""
    sides = (difference.baseline, difference.candidate)
    found = {
        name: _drawn(name, side, at)
        for at, (name, side) in enumerate(zip(SIDES, sides, strict=True))
    }
    drawn = [step for step in found.values() if step is not None]
    if drawn:
        yield _timeline_chart(difference, drawn)
    for name in (name for name, step in found.items() if step is None):
        why = "The run was saved without a timeline, or no step was recorded on every rank."
        yield Sentence(f"There is no timeline of the {name}. {why}")


def _timeline_chart(difference: RunDifference, drawn: Sequence[_Drawn]) -> Chart:
    titles, steps, bars_of, window_of = zip(*drawn, strict=True)
    bars, windows = (
        pa.concat_tables(of_sides).combine_chunks() for of_sides in (bars_of, window_of)
    )
    data = timeline_data(bars, windows, windows["rank"].to_pylist(), []) or {}
    ranks = [
        row | {"rank": f"{rank} of the {side}"}
        for row, (side, _, rank) in zip(data["ranks"], steps, strict=True)
    ]
    table = timeline_table(bars, windows)
    colours = lane_legend(ranks, data["names"])
    rows = [[*step, *row[1:]] for step, row in zip(steps, table.rows, strict=True)]
    columns = [Field("side", kind="text"), Field("step number"), Field("rank"), *table.columns[1:]]
    caption = "The step closest to the median of each side, on the rank with the longest step time."
    if difference.has_spread_between_captures:
        caption = f"{caption} Each step is from the first capture of the side."
    if len(drawn) == len(SIDES):
        caption = f"{caption} Both timelines share one zoom."
    label = "Timelines of one step of each side"
    table = Table("Timelines of both sides", columns, rows)
    data |= {"titles": [*titles], "ranks": ranks}
    return Chart(
        "timelines",
        "Timelines of both sides",
        label,
        120,
        data,
        table,
        caption,
        colours,
        has_zoom=True,
        hint=IS_PAINTED,
    )


def _drawn(name: str, side: Side, place: int) -> _Drawn | None:
    """Return a side's line, the words of its row, bars and window from that window's start, in the place of a rank; or None."""
    run = side.runs[0]
    bars = run.timeline()
    if not bars.num_rows:
        return None
    is_drawn = (pc.field("step") == bars["step"][0]) & pc.field("rank").isin(
        pc.unique(bars["rank"])
    )
    windows = run.steps().filter(is_drawn)
    windows = windows.append_column("length", pc.subtract(windows["end_ns"], windows["start_ns"]))
    window = windows.sort_by([("length", "descending"), ("rank", "ascending")]).slice(0, 1)
    rank, step, start, length = (
        window[column][0].as_py() for column in ("rank", "step", "start_ns", "length")
    )

    def moved(table: pa.Table) -> pa.Table:
        columns = {column: table[column] for column in table.column_names}
        columns |= {column: pc.subtract(table[column], start) for column in ("start_ns", "end_ns")}
        columns |= {"rank": [place] * table.num_rows, "step": [0] * table.num_rows}
        return pa.table(columns, schema=table.schema)

    where = run.rank_names.name(rank)
    # The label comes last: where there is no room, it is cut.
    title = f"{name}: {ms_text(length)}, step {step} on rank {where}, {cut(side.name, 60)}"
    of_rank = bars.filter(pc.equal(bars["rank"], rank))
    return title, [name, str(step), str(rank)], moved(of_rank), moved(window.drop_columns("length"))


def scale_around(judged: Iterable[float], others: Iterable[float]) -> float:
    """Return the smallest of a few round ends that holds what it must and half of the others; else the largest.

    All of them would be too many: what changed tenfold would leave no room to see the rest.
    """
    sizes = sorted(map(abs, others))
    most = max([*map(abs, judged), *sizes[: (len(sizes) + 1) // 2]], default=0)
    return next((end for end in (1, 2, 5, 10, 20, 50) if most <= end), 100)


_TRACK_LEGEND = (
    "Bar: the change, in percent of the baseline or in percentage points. Line: its confidence "
    "interval. Gray band: less "
    "than the minimum effect. Arrow: outside of the scale."
)


def figure_table(difference: RunDifference, table: Table) -> Table:
    """Return the table of figures with each difference and its interval beside zero, and why it is inconclusive.

    The track is in per cent of the baseline, of ratios in points: as the words beside it.
    """
    rows, _ = metric_rows(difference)
    shares = [*map(_in_percent, rows)]
    reach = [
        max((abs(share[name] or 0) for name in ("at", "low", "high")), default=0)
        for share in shares
    ]
    n_judged = len(difference.judged)
    limit = scale_around(reach[:n_judged], filter(None, reach[n_judged:]))
    tracks = [
        Track(**{name: value and value / limit for name, value in share.items()})
        for share in shares
    ]
    reasons = Counter(row["why"] for row in rows if row["why"]).most_common(1)
    mostly = next((why for why, n in reasons if n > len(rows) / 2), None)
    verdicts = []
    for (*cells, _), row in zip(table.rows, rows, strict=True):
        settles = report.settle_text(row) if row["settle_steps"] or row["settle_captures"] else None
        why = (
            ", ".join(filter(None, [None if row["why"] == mostly else row["why"], settles])) or None
        )
        verdicts.append(
            [
                *cells,
                Word(
                    report.verdict_word(row["verdict"]), why, report.is_outweighed(difference, row)
                ),
            ]
        )
    common = mostly and f"Inconclusive without a reason: {mostly.replace(':', ',')}."
    note = " ".join(filter(None, [table.note, common]))
    track = Field(f"-{limit:g} to +{limit:g}%", kind="track", hint=_TRACK_LEGEND)
    table = with_column(
        replace(table, rows=verdicts, note=note), len(table.columns) - 1, track, tracks
    )
    steps = Field("steps", hint="steps used for this metric: baseline, candidate")
    numbers = [
        ", ".join(dict.fromkeys(count_text(row[f"n_{side}"]) for side in SIDES)) for row in rows
    ]
    return with_column(table, len(table.columns), steps, numbers)


def _in_percent(row: Mapping[str, Any]) -> dict[str, float | None]:
    base = row["baseline"]
    unit = 1 if row["unit"] == "ratio" else abs(base) if base else None
    values = {
        "at": row["delta"],
        "low": row["ci_low"],
        "high": row["ci_high"],
        "band": row["min_effect"],
    }
    return {
        name: None if value is None or unit is None else 100 * value / unit
        for name, value in values.items()
    }


def kernel_table(difference: RunDifference, table: Table) -> Table:
    """Return the table of kernels with the sign of each difference drawn, and how often each runs."""
    rows = difference.top_kernels.to_pylist()
    most = max(abs(row["delta_ns_per_step"]) for row in rows) or 1
    tracks = [Track(row["delta_ns_per_step"] / most) for row in rows]
    table = with_column(table, 4, Field("less, more", kind="track"), tracks)
    for side in SIDES:
        numbers = [count_text(round(row[f"{side}_n_per_step"], 2)) for row in rows]
        field = Field(f"calls per step, {side}", hint="mean over ranks and the steps used")
        table = with_column(table, len(table.columns), field, numbers)
    return table


def _provenance_table(difference: RunDifference) -> Table:
    columns = [Field("", kind="text")]
    captures = []
    for name, side in zip(SIDES, (difference.baseline, difference.candidate), strict=True):
        for at, run in enumerate(side.runs, start=1):
            number = f", capture {at} of {len(side.runs)}" if len(side.runs) > 1 else ""
            columns.append(Field(cut(f"{name} {side.name}{number}"), kind="name"))
            captures.append(dict(provenance(run)))
    # Not every capture has every fact; the order is that of whoever has it.
    names = dict.fromkeys(name for capture in captures for name in capture)
    rows = [[name, *(cut(capture.get(name, absent)) for capture in captures)] for name in names]
    return Table("About both runs", columns, rows)
