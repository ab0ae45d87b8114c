"""The page of a difference: verdict, parts of the change, a step of each side, metrics, kernels."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from nsyspipe.comparison.changes import SIDES
from nsyspipe.comparison.difference import RunDifference
from nsyspipe.comparison.side import Side
from nsyspipe.comparison.statistics import MEAN, MEDIAN
from nsyspipe.model.figures import METRICS as BY_NAME
from nsyspipe.model.names import counted, grouped, listed, ranges
from nsyspipe.model.typed_tables import (
    StepsTable,
)
from nsyspipe.report import difference as report, difference_screen as screen
from nsyspipe.report.blocks import (
    Block,
    Cell,
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
from nsyspipe.report.words import Trouble, troubles

_SCRIPTS = (
    "difference_waterfall",
    "timeline_layout",
    "timeline_draw",
    "timeline",
    "difference_timelines",
)
# The name of a part that a side did not record.
_NOT_SPLIT = "not split"
# A colour that stands for no part.
_NEUTRAL = "ink3"
# Judged metrics with key figures on the first screen.
MAX_JUDGED_METRICS_WITH_TILES = 2
# Rows of the table of metrics that are shown at once, unless more metrics are judged.
MAX_UNFOLDED_METRICS = 6
# Facts that changed, on the first screen.
MAX_SHOWN_CHANGES = 8
# The number of the column with the drawing in the table of kernels.
_PLACE_OF_KERNEL_TRACK = 4
# Letters of the label of a side above its timeline.
MAX_LETTERS_OF_LABEL = 60
# If the step time is more than so many times the change, the axis does not begin at 0.
MAX_STEP_TIME_OVER_CHANGE = 20
# Where the scale of the changes may end, in percent.
_ENDS_OF_SCALE = (1, 2, 5, 10, 20, 50)
_LAST_END_OF_SCALE = 100
_TRACK_LEGEND = (
    "Bar: the change, in percent of the baseline or in percentage points. Line: its confidence "
    "interval. Gray band: less "
    "than the minimum effect. Arrow: outside of the scale."
)


class _SideTimeline(NamedTuple):
    """The step of a side that is drawn, on one rank."""

    title: str
    # ``baseline`` or ``candidate``.
    side: str
    step: int
    rank: int
    # Bars and step window. Times count from the start of the window. Column ``rank`` has 0 for the
    # baseline and 1 for the candidate.
    bars: pa.Table
    window: pa.Table


def difference_page(difference: RunDifference) -> str:
    """Return the page of a difference as one HTML file.

    The file is complete and needs no network. The same runs give the same bytes.
    """
    baseline = difference.baseline
    candidate = difference.candidate
    title = f"{cut(baseline.name)} -> {cut(candidate.name)}: nsyspipe diff"
    blocks = report.answer_blocks(difference)
    verdict, *sentences = [block for block in blocks if isinstance(block, Sentence)]
    introduction = [*_introduction(difference, sentences)]
    picture = Section("Where the change comes from", [_picture(difference)], short_title="Change")
    other_changes = Section("What else changed", [*_changes(difference)])
    details = [*_details(difference)]
    identity = (report.DIFF_RUNS, report.identity_of(difference))
    page = AnswerPage(
        title=title,
        identity=identity,
        verdict=verdict,
        introduction=introduction,
        picture=picture,
        beside_picture=[other_changes],
        details=details,
    )
    return answer_html(page, _SCRIPTS)


def _details(difference: RunDifference) -> Iterator[Section]:
    """Yield the sections below the first screen."""
    timelines = [*_timeline_charts(difference)]
    yield Section("Timelines of both sides", timelines, short_title="Timelines")
    metrics = _metrics(difference)
    yield Section("Metrics", metrics)
    kernels = _kernels(difference)
    yield Section("Kernels", [kernels])
    notes = [*_notes(difference)]
    yield Section("Notes", notes)
    facts = _provenance_table(difference)
    yield Section("About both runs", [facts])


def _introduction(difference: RunDifference, sentences: Sequence[Sentence]) -> Iterator[PageBlock]:
    """Yield cause of the change, result of the gate, both sides, doubts, and key figures."""
    yield from sentences
    yield from report.gate_blocks(difference)
    yield from screen.side_blocks(difference)
    row_of_metric = {row["metric"]: row for row in difference.judged_rows}
    first_metrics = difference.judged[:MAX_JUDGED_METRICS_WITH_TILES]
    for metric in first_metrics:
        tiles = _tiles(row_of_metric[metric])
        yield Tiles(tiles)


def _picture(difference: RunDifference) -> PageBlock:
    """Return the chart of the parts of the change, or their table if there is nothing to draw."""
    table = report.parts_table(difference)
    return _waterfall_chart(difference, table) or table


def _changes(difference: RunDifference) -> Iterator[PageBlock]:
    """Yield the facts that changed, all of them in a folded table, and what was not compared."""
    table = report.changes_table(difference)
    # One for each row of the table.
    changes = report.shown_changes(difference)
    lines = [Line(report.change_text_of_fact(row)) for row in changes]
    if lines:
        yield Lines("", lines[:MAX_SHOWN_CHANGES])
    elif report.same_facts(difference):
        yield Sentence("No other difference was found in what both sides recorded.")
    if table.rows:
        topics = [row["topic"] for row in changes]
        topic = Field("about", kind="text")
        without_note = replace(table, note=None)
        with_topics = with_column(without_note, 0, topic, topics)
        yield Fold(f"Show all {len(lines)} as a table", [with_topics])
    yield from report.not_compared_block(difference)


def _metrics(difference: RunDifference) -> list[PageBlock]:
    """Return the table of metrics. If it is long, the rows after the first ones are folded."""
    metrics_table = report.metrics_table(difference)
    table = figure_table(difference, metrics_table)
    n_shown = max(MAX_UNFOLDED_METRICS, len(difference.judged))
    if len(table.rows) <= n_shown:
        return [table]
    shown_rows = table.rows[:n_shown]
    folded_rows = table.rows[n_shown:]
    # The note and the rows in bold belong to the table that is always shown.
    shown = replace(table, rows=shown_rows)
    folded = replace(table, rows=folded_rows, note=None, strong=frozenset())
    title = f"Show {counted(len(folded_rows), 'more metric')}"
    return [shown, Fold(title, [folded])]


def _kernels(difference: RunDifference) -> PageBlock:
    kernels = difference.top_kernels.to_pylist()
    table = report.kernels_table(difference, kernels)
    return kernel_table(difference, table) if table.rows else table


def _notes(difference: RunDifference) -> Iterator[PageBlock]:
    """Yield problems of both sides, what is the same on both, and what to know of the metrics."""
    problems = [*_problems(difference)]
    if problems:
        yield Troubles(problems)
    same_facts = report.same_facts(difference)
    if same_facts:
        yield Notes([f"Same on both sides: {listed(same_facts)}."])
    texts = report.notes(difference)
    if texts:
        yield Notes(texts)
    yield Commands("What a metric means", ["nsyspipe explain METRIC"])


def _problems(difference: RunDifference) -> Iterator[Trouble]:
    """Yield the problems of both sides, with the side in front of their messages.

    Several captures of a side may have the same problem, which is then one row. The row lists the
    numbers of these captures, unless all captures of the side have the problem.
    """
    sides = zip(SIDES, (difference.baseline, difference.candidate), strict=True)
    for name, side in sides:
        rows = [row for row in difference.problem_rows if row["side"] == name]
        n_captures = len(side.runs)
        capture_numbers_by_problem = grouped(_problems_of_captures(side, rows))
        for problem, capture_numbers in capture_numbers_by_problem.items():
            subject = name
            if len(capture_numbers) < n_captures:
                numbers = ", ".join(ranges(capture_numbers))
                subject += f", capture {numbers} of {n_captures}"
            yield problem._replace(message=f"{subject}: {problem.message}")


def _problems_of_captures(
    side: Side, rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Trouble, int]]:
    """Yield each problem of each capture of a side, with the number of the capture, from 1."""
    rows_by_run = grouped((row["run_id"], row) for row in rows)
    for capture_number, run in enumerate(side.runs, start=1):
        rows_of_run = rows_by_run.get(run.header.run_id, ())
        for problem in troubles(rows_of_run):
            yield problem, capture_number


def _tiles(row: Mapping[str, Any]) -> list[Tile]:
    """Return the key figures of a judged metric: both sides, the change, and its interval."""
    metric = metric_label(row["metric"]).capitalize()
    reason = row["why"] or "not decided"
    # A tile has no room for the words that follow: that the runs are not comparable, and why.
    why_missing, _, _ = reason.partition(", not comparable")
    tiles = [_tile_of_side(metric, side, row, why_missing) for side in SIDES]
    change = _tile_of_change(row, why_missing)
    interval = _tile_of_interval(row, why_missing)
    return [*tiles, change, interval]


def _tile_of_interval(row: Mapping[str, Any], why_missing: str) -> Tile:
    name = f"{sure_text(row['confidence'])} CI"
    if row["ci_low"] is None:
        return _tile_without_value(name, missing="none", why=why_missing)
    interval_text = report.interval_text(row)
    return _tile(name, interval_text, "of the change")


def _tile_of_change(row: Mapping[str, Any], why_missing: str) -> Tile:
    """Return the tile of the change, which is in percent of the baseline if that is meaningful."""
    if row["delta"] is None:
        return _tile_without_value("Change", missing="not recorded", why=why_missing)
    relative = percent_change(row)
    is_in_percent = relative != absent
    meaning = f"{relative} of the baseline" if is_in_percent else "candidate - baseline"
    change_text = delta_text(row["unit"], row["delta"])
    return _tile("Change", change_text, meaning)


def _tile_of_side(metric: str, side: str, row: Mapping[str, Any], why_missing: str) -> Tile:
    """Return the tile with the value of a metric on one side, and what it is a statistic of."""
    name = f"{metric}, {side}"
    value = row[side]
    if value is None:
        return _tile_without_value(name, missing="not recorded", why=why_missing)
    n_steps = row[f"n_{side}"]
    if not n_steps:
        # A capture without steps has values, but counts no step.
        meaning = "of the capture"
    elif n_steps == 1:
        meaning = "of one step"
    else:
        # If the other side has no steps, the row has no statistic.
        statistic = row["statistic"] or MEDIAN
        meaning = f"{statistic} of {n_steps} steps"
    text = value_text(row["unit"], value)
    return _tile(name, text, meaning)


def _tile_without_value(name: str, *, missing: str, why: str) -> Tile:
    """Return a key figure that has `missing` in place of its value, and says why."""
    return Tile(name, value="", unit="", meaning=why, missing=missing)


def _tile(name: str, text: str, meaning: str) -> Tile:
    """Return a key figure. If its text has several words, the last word is the unit."""
    number, _, last_word = text.rpartition(" ")
    if not number:
        return Tile(name, text, "", meaning)
    return Tile(name, number, last_word, meaning)


def _waterfall_chart(difference: RunDifference, table: Table) -> Chart | None:
    """Return the chart of `waterfall` with the table of the parts; None if there is no chart."""
    waterfall_data = waterfall(difference)
    if waterfall_data is None:
        return None
    sentences = ["Means over steps of the slowest rank. The parts add up exactly."]
    if difference.statistic != MEAN:
        sentences.append("The verdict uses medians.")
    axis_start_ns = waterfall_data["from"]
    if axis_start_ns > 0:
        sentences.append(f"The axis begins at {ms_text(axis_start_ns)}, not at 0.")
    if table.note:
        sentences.append(table.note)
    height = 32 * len(waterfall_data["bars"]) + 28
    caption = " ".join(sentences)
    without_note = replace(table, note=None)
    return Chart(
        name="waterfall",
        section=PARTS,
        label="From the mean step time of the baseline to that of the candidate, by part",
        height=height,
        data=waterfall_data,
        table=without_note,
        caption=caption,
        legend=PART_LEGEND,
    )


def waterfall(difference: RunDifference) -> dict[str, Any] | None:
    """Return the data of the waterfall chart; None if a side has no steps.

    ``from`` is where the axis begins, in ns, see `_axis_start`. Each of the ``bars`` has ``name``,
    ``category``, ``start``, ``end``, ``baseline``, ``candidate`` and ``delta``. ``start`` and
    ``end`` are places on the axis in ns.

    The first bar is the step time of the baseline, and the last is that of the candidate. In
    between, each part of the change begins at the end of the bar before it. If the known parts do
    not explain the whole change, the bar ``not split`` has the rest.
    """
    before_ns, after_ns, delta_ns = difference.mean_step_time
    if before_ns is None or after_ns is None or delta_ns is None:
        return None
    bars = [_step_time_bar("baseline", before_ns)]
    end_ns = before_ns
    for row in _rows_of_parts(difference):
        bar = _part_bar(row, end_ns)
        bars.append(bar)
        end_ns = bar["end"]
    rest_ns = after_ns - end_ns
    # An unknown part has this bar even if there is no rest, so that nobody takes the part for 0.
    is_any_part_unknown = difference.step_time_parts["delta_ns"].null_count > 0
    if rest_ns or is_any_part_unknown:
        rest_row = {"delta_ns": rest_ns}
        bar_of_rest = _waterfall_bar(_NOT_SPLIT, _NEUTRAL, end_ns, after_ns, rest_row)
        bars.append(bar_of_rest)
    bars.append(_step_time_bar("candidate", after_ns))
    axis_start_ns = _axis_start([bar["end"] for bar in bars])
    return {"from": axis_start_ns, "bars": bars}


def _rows_of_parts(difference: RunDifference) -> list[Mapping[str, Any]]:
    """Return the parts of the step time whose change is known.

    If the causes of idle time are known, they replace the part idle, which is their sum.
    """
    *parts_and_causes, _step_time = part_rows(difference)
    known_rows = [row for row in parts_and_causes if row["delta_ns"] is not None]
    has_causes = any("cause" in row for row in known_rows)
    if has_causes:
        # The row of a cause has no "part".
        return [row for row in known_rows if row.get("part") != "idle"]
    return [*known_rows]


def _step_time_bar(side: str, step_ns: float) -> dict[str, Any]:
    """Return the bar of the step time of a side. It begins at 0, and has no delta."""
    return _waterfall_bar(side, _NEUTRAL, start_ns=0.0, end_ns=step_ns, row={})


def _part_bar(row: Mapping[str, Any], start_ns: float) -> dict[str, Any]:
    """Return the bar of a part, or of a cause of idle time. It begins where the bar before ends."""
    name = f"idle: {row['cause']}" if "cause" in row else row["name"]
    # The row of a cause has no "part", and its colour is that of idle time.
    part = BY_NAME[row.get("part", "idle")]
    category = part.category or _NEUTRAL
    end_ns = start_ns + row["delta_ns"]
    return _waterfall_bar(name, category, start_ns, end_ns, row)


def _waterfall_bar(
    name: str, category: str, start_ns: float, end_ns: float, row: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a bar of `waterfall`, with the values of both sides and their delta from the row."""
    columns = (*SIDES, "delta")
    values = {column: row.get(f"{column}_ns") for column in columns}
    return {"name": name, "category": category, "start": start_ns, "end": end_ns, **values}


def _axis_start(ends_ns: Sequence[float]) -> float:
    """Return where the axis begins, in ns. `ends_ns` are the ends of all bars.

    The axis begins at 0 if there is no change, or a change that is large enough to see. Otherwise
    it begins somewhat below the lowest end, at a multiple of a power of ten.
    """
    lowest_ns = min(ends_ns)
    highest_ns = max(ends_ns)
    span_ns = highest_ns - lowest_ns
    min_visible_span_ns = highest_ns / MAX_STEP_TIME_OVER_CHANGE
    if span_ns == 0 or span_ns >= min_visible_span_ns:
        return 0.0
    # The largest power of ten that is not above the span.
    unit_ns = 10.0 ** math.floor(math.log10(span_ns))
    wanted_start_ns = lowest_ns - span_ns / 2
    n_units = math.floor(wanted_start_ns / unit_ns)
    return max(unit_ns * n_units, 0.0)


def _timeline_charts(difference: RunDifference) -> Iterator[Block | Chart]:
    """Yield one chart with the timeline of each side, and a sentence for a side without timeline.

    A timeline shows the representative step of the first capture, on the rank where the step is
    longest. If the step is equally long on several ranks, the lowest of these ranks is shown.
    """
    named_sides = zip(SIDES, (difference.baseline, difference.candidate), strict=True)
    timelines = []
    for number, (name, side) in enumerate(named_sides):
        timeline = _side_timeline(name, side, number)
        timelines.append(timeline)
    known_timelines = [timeline for timeline in timelines if timeline is not None]
    if known_timelines:
        yield _timeline_chart(difference, known_timelines)
    for name, timeline in zip(SIDES, timelines, strict=True):
        if timeline is None:
            why = "The run was saved without a timeline, or no step was recorded on every rank."
            yield Sentence(f"There is no timeline of the {name}. {why}")


def _timeline_chart(difference: RunDifference, timelines: Sequence[_SideTimeline]) -> Chart:
    """Return the chart with the timelines of both sides, or of the only side that has one.

    The chart is made like that of one run, as if the sides were the ranks of one step.
    """
    bars = pa.concat_tables([timeline.bars for timeline in timelines]).combine_chunks()
    windows = pa.concat_tables([timeline.window for timeline in timelines]).combine_chunks()
    # The column has the number of a side in place of a rank.
    numbers_of_sides = windows["rank"].to_pylist()
    # Not None, since each timeline has bars.
    data = timeline_data(bars, windows, first=numbers_of_sides, listed=[]) or {}
    ranks = []
    for rank_data, timeline in zip(data["ranks"], timelines, strict=True):
        rank_name = f"{timeline.rank} of the {timeline.side}"
        ranks.append(rank_data | {"rank": rank_name})
    titles = [timeline.title for timeline in timelines]
    table = _timelines_table(timelines, bars, windows)
    legend = lane_legend(ranks, data["names"])
    titled_data = data | {"titles": titles, "ranks": ranks}
    caption = "The step closest to the median of each side, on the rank with the longest step time."
    if difference.has_spread_between_captures:
        caption = f"{caption} Each step is from the first capture of the side."
    if len(timelines) == len(SIDES):
        caption = f"{caption} Both timelines share one zoom."
    return Chart(
        name="timelines",
        section="Timelines of both sides",
        label="Timelines of one step of each side",
        height=120,
        data=titled_data,
        table=table,
        caption=caption,
        legend=legend,
        has_zoom=True,
        hint=IS_PAINTED,
    )


def _timelines_table(
    timelines: Sequence[_SideTimeline], bars: pa.Table, windows: pa.Table
) -> Table:
    """Return the table of timelines: side, step number and rank, then the columns of a run."""
    table = timeline_table(bars, windows)
    # The first column has the number of the side in place of a rank.
    _, *further_columns = table.columns
    columns = [Field("side", kind="text"), Field("step number"), Field("rank"), *further_columns]
    rows = []
    for timeline, (_, *further_cells) in zip(timelines, table.rows, strict=True):
        first_cells = [timeline.side, str(timeline.step), str(timeline.rank)]
        rows.append([*first_cells, *further_cells])
    return Table("Timelines of both sides", columns, rows)


def _side_timeline(name: str, side: Side, number: int) -> _SideTimeline | None:
    """Return what is drawn of a side; None if its first capture has no timeline.

    `number` is 0 for the baseline and 1 for the candidate.
    """
    run = side.runs[0]
    bars = run.timeline()
    if not bars.num_rows:
        return None
    window_table = _longest_window(run.steps(), bars)
    (window,) = window_table.to_pylist()
    rank = window["rank"]
    start_ns = window["start_ns"]
    step = window["step"]
    # The label comes last, because it is cut where there is no room.
    length_text = ms_text(window["length"])
    place_text = f"step {step} on rank {run.rank_names.name(rank)}"
    label = cut(side.name, MAX_LETTERS_OF_LABEL)
    title = f"{name}: {length_text}, {place_text}, {label}"
    is_on_rank = pc.equal(bars["rank"], rank)
    drawn_bars = _from_start(bars.filter(is_on_rank), start_ns, number)
    drawn_window = _from_start(window_table.drop_columns("length"), start_ns, number)
    return _SideTimeline(
        title, side=name, step=step, rank=rank, bars=drawn_bars, window=drawn_window
    )


def _longest_window(steps: StepsTable, bars: pa.Table) -> pa.Table:
    """Return the row of the drawn step on the rank where it is longest, with its ``length`` in ns.

    If it is equally long on several ranks, this is the row of the lowest of them. `bars` are all of
    one step.
    """
    is_drawn_step = pc.field("step") == bars["step"][0]
    drawn_ranks = pc.unique(bars["rank"])
    is_drawn_rank = pc.field("rank").isin(drawn_ranks)
    windows = steps.filter(is_drawn_step & is_drawn_rank)
    lengths_ns = pc.subtract(windows["end_ns"], windows["start_ns"])
    with_lengths = windows.append_column("length", lengths_ns)
    longest_first = with_lengths.sort_by([("length", "descending"), ("rank", "ascending")])
    return longest_first.slice(0, 1)


def _from_start(table: pa.Table, start_ns: int, rank: int) -> pa.Table:
    """Return the rows with times since `start_ns`, with step 0, and with another rank."""
    columns = {name: table[name] for name in table.column_names}
    columns["start_ns"] = pc.subtract(table["start_ns"], start_ns)
    columns["end_ns"] = pc.subtract(table["end_ns"], start_ns)
    columns["rank"] = [rank] * table.num_rows
    columns["step"] = [0] * table.num_rows
    return pa.table(columns, schema=table.schema)


def scale_around(judged: Iterable[float], not_judged: Iterable[float]) -> float:
    """Return where the scale of changes ends, in percent, which is a round value.

    The scale has room for all changes of judged metrics and for the smaller half of the others. A
    metric outside the verdict may change tenfold. With room for it, no other change could be seen.
    """
    sizes = sorted(map(abs, not_judged))
    # Of an odd number, the one in the middle counts as smaller.
    n_smaller = (len(sizes) + 1) // 2
    smaller_half = sizes[:n_smaller]
    largest = max([*map(abs, judged), *smaller_half], default=0)
    fitting_ends = (end for end in _ENDS_OF_SCALE if largest <= end)
    return next(fitting_ends, _LAST_END_OF_SCALE)


def figure_table(difference: RunDifference, table: Table) -> Table:
    """Return the table of metrics with each change drawn, and why a verdict is inconclusive.

    Drawings are in percent of the baseline. Those of ratios are in percentage points. A reason that
    most metrics share is not in their rows, but in the note of the table.
    """
    rows, _n_on_terminal = metric_rows(difference)
    common_reason = _common_reason(rows)
    note = _note_with_reason(table.note, common_reason)
    rows_with_verdicts = _with_verdicts(difference, table, common_reason)
    with_verdicts = replace(table, rows=rows_with_verdicts, note=note)
    changes = list(map(_in_percent, rows))
    limit = _end_of_scale(changes, len(difference.judged))
    track = Field(f"-{limit:g} to +{limit:g}%", kind="track", hint=_TRACK_LEGEND)
    tracks = [_track(change, limit) for change in changes]
    number_of_verdict = len(with_verdicts.columns) - 1
    with_tracks = with_column(with_verdicts, number_of_verdict, track, tracks)
    steps = Field("steps", hint="steps used for this metric: baseline, candidate")
    n_steps_texts = list(map(_n_steps_text, rows))
    return with_column(with_tracks, len(with_tracks.columns), steps, n_steps_texts)


def _note_with_reason(note: str | None, common_reason: str | None) -> str:
    """Return a note, and the reason of inconclusive verdicts that have no reason in their row."""
    if common_reason is None:
        return note or ""
    # The text has a colon already.
    reason_text = common_reason.replace(":", ",")
    reason_sentence = f"Inconclusive without a reason: {reason_text}."
    return f"{note} {reason_sentence}" if note else reason_sentence


def _with_verdicts(
    difference: RunDifference, table: Table, common_reason: str | None
) -> list[list[Cell]]:
    """Return the rows of the table of metrics, with the verdict and its reason in the last cell.

    In `table`, the last cell of each row has the verdict without a reason.
    """
    rows, _n_on_terminal = metric_rows(difference)
    with_verdicts: list[list[Cell]] = []
    for (*cells, _verdict), row in zip(table.rows, rows, strict=True):
        word = report.verdict_word(row["verdict"])
        reason = _why_inconclusive(row, common_reason)
        is_outweighed = report.is_outweighed(difference, row)
        verdict = Word(word, reason, is_outweighed)
        with_verdicts.append([*cells, verdict])
    return with_verdicts


def _common_reason(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the reason why more than half of the rows are inconclusive; None if there is none."""
    reasons = [row["why"] for row in rows if row["why"]]
    if not reasons:
        return None
    ((most_common_reason, n_rows),) = Counter(reasons).most_common(1)
    return str(most_common_reason) if n_rows > len(rows) / 2 else None


def _why_inconclusive(row: Mapping[str, Any], common_reason: str | None) -> str | None:
    """Return why the verdict of a row is inconclusive, and how many steps would decide it.

    The reason is left out if it is the common reason, because the note of the table has that. None
    if neither is left.
    """
    parts = []
    why = row["why"]
    if why and why != common_reason:
        parts.append(why)
    # The numbers of steps or captures that would decide it.
    if row["settle_steps"] or row["settle_captures"]:
        what_settles = report.settle_text(row)
        parts.append(what_settles)
    known_parts = filter(None, parts)
    return ", ".join(known_parts) or None


def _n_steps_text(row: Mapping[str, Any]) -> str:
    """Return the numbers of steps of both sides; one number if they have the same."""
    numbers = [count_text(row[f"n_{side}"]) for side in SIDES]
    return ", ".join(dict.fromkeys(numbers))


def _in_percent(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the change of a metric, the ends of its interval and the minimum effect in percent.

    The keys are those of `Track`. 100 % is what `_whole_of` returns. A value is None if it is not
    known, or if nothing is 100 %.
    """
    whole = _whole_of(row)
    values = {
        "at": row["delta"],
        "low": row["ci_low"],
        "high": row["ci_high"],
        "band": row["min_effect"],
    }
    percents: dict[str, float | None] = dict.fromkeys(values)
    if whole is None:
        return percents
    for name, value in values.items():
        if value is not None:
            percents[name] = 100 * value / whole
    return percents


def _whole_of(row: Mapping[str, Any]) -> float | None:
    """Return what is 100 % for the change of a metric: the baseline, or 1 for a ratio.

    None if a metric that is no ratio has no baseline, or a baseline of 0.
    """
    if row["unit"] == "ratio":
        return 1
    baseline = row["baseline"]
    return abs(baseline) if baseline else None


def _end_of_scale(changes: Sequence[Mapping[str, float | None]], n_judged: int) -> float:
    """Return where the scale of changes ends, in percent.

    The first `n_judged` changes are those of judged metrics.
    """
    sizes = [_size_of(change) for change in changes]
    sizes_of_changed = filter(None, sizes[n_judged:])
    return scale_around(sizes[:n_judged], sizes_of_changed)


def _size_of(change: Mapping[str, float | None]) -> float:
    """Return the largest distance from 0 of a change and of the ends of its interval."""
    values = [change[name] or 0 for name in ("at", "low", "high")]
    return max(map(abs, values))


def _track(change: Mapping[str, float | None], limit: float) -> Track:
    """Return the track of a change in percent.

    `limit` is the percentage at the end of the scale. On the track, it is 1.
    """
    shares: dict[str, float | None] = dict.fromkeys(change)
    for name, percent in change.items():
        if percent is not None:
            shares[name] = percent / limit
    return Track(**shares)


def kernel_table(difference: RunDifference, table: Table) -> Table:
    """Return the table of kernels with each difference drawn, and how often each kernel runs.

    `table` has a row for each of the kernels that changed most, of which there is at least one.
    """
    rows = difference.top_kernels.to_pylist()
    differences_ns = [row["delta_ns_per_step"] for row in rows]
    largest_ns = max(map(abs, differences_ns)) or 1  # No division by 0 if nothing changed.
    tracks = [Track(difference_ns / largest_ns) for difference_ns in differences_ns]
    # The left half of the track means less time, and the right half more.
    track = Field("less, more", kind="track")
    wider_table = with_column(table, _PLACE_OF_KERNEL_TRACK, track, tracks)
    for side in SIDES:
        # Means have decimals.
        n_calls = [round(row[f"{side}_n_per_step"], 2) for row in rows]
        numbers = list(map(count_text, n_calls))
        field = Field(f"calls per step, {side}", hint="mean over ranks and the steps used")
        wider_table = with_column(wider_table, len(wider_table.columns), field, numbers)
    return wider_table


def _capture_columns(name: str, side: Side) -> Iterator[Field]:
    """Yield a column for each capture of a side."""
    n_captures = len(side.runs)
    for number in range(1, n_captures + 1):
        heading = f"{name} {side.name}"
        if n_captures > 1:
            heading += f", capture {number} of {n_captures}"
        yield Field(cut(heading), kind="name")


def _provenance_table(difference: RunDifference) -> Table:
    """Return what identifies each capture of both sides: a row per fact, a column per capture."""
    columns = [Field("", kind="text")]
    captures = []
    sides = zip(SIDES, (difference.baseline, difference.candidate), strict=True)
    for name, side in sides:
        columns += _capture_columns(name, side)
        captures += [dict(provenance(run)) for run in side.runs]
    # The names of all facts that any capture has, each once, in the order of the first capture
    # that has them.
    facts = dict.fromkeys(itertools.chain.from_iterable(captures))
    rows = []
    for fact in facts:
        values = [cut(capture.get(fact, absent)) for capture in captures]
        rows.append([fact, *values])
    return Table("About both runs", columns, rows)
