"""The page of one run: the first screen, then a section for each question that it leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from nsyspipe.analysis.kernels import COLLECTIVES, KERNELS, TRAFFIC
from nsyspipe.analysis.traffic import PIPELINE, parallelism
from nsyspipe.errors import DatasetError
from nsyspipe.model.figures import FIGURES, OTHER_FIGURES
from nsyspipe.model.names import few, grouped, verb_for
from nsyspipe.model.schema import DESCRIBED, IDLE_CAUSES
from nsyspipe.model.side_files import NcclFacts
from nsyspipe.model.typed_tables import (
    LinksTable,
    RankSummaryTable,
    StepsTable,
    StragglersTable,
)
from nsyspipe.report import memory, run as run_report, words
from nsyspipe.report.blocks import (
    Block,
    Field,
    Heading,
    Sentence,
    Table,
    Tile,
    Tiles,
    Troubles,
    barred,
    of,
    table_of,
)
from nsyspipe.report.costs import cost_tables
from nsyspipe.report.host_lines import line_table
from nsyspipe.report.html import run_charts as charts
from nsyspipe.report.html.page import RUN_ID, SUBSECTION, Chart, Choice, Fold, blocks_page
from nsyspipe.report.html.run_overview import overview_blocks
from nsyspipe.report.html.timeline import (
    IS_PAINTED,
    MOST_BARS,
    lane_legend,
    n_bars,
    timeline_data,
    timeline_table,
)
from nsyspipe.report.html.timeline_lanes import (
    LaneTables,
    add_lanes,
    lane_fields,
    lanes_hints,
    lanes_legend,
    line_colors,
)
from nsyspipe.report.ladder import ladder_blocks
from nsyspipe.report.run import LOOP, SHARES, WORK, host_blocks, key_figures
from nsyspipe.report.schema import meaning_of
from nsyspipe.report.units import (
    absent,
    bandwidth_text,
    count_text,
    ms_text,
    percent_text,
    place_of_more,
)
from nsyspipe.run.rank_names import RankNames
from nsyspipe.run.run import Run
from nsyspipe.run.work import n_steps
from nsyspipe.version import __version__

_SCRIPTS = (
    "step_bars",
    "timeline_layout",
    "timeline_draw",
    "timeline_lanes",
    "timeline",
    "step_columns",
    "collectives",
)
_OVERVIEW = "Overview"
_ABOUT = "About this run"
# Ranks of a timeline that are drawn at once. A button shows the others.
MAX_FIRST_TIMELINE_RANKS = 8
# Rows of the tables of costs, unless the user sets another number.
MAX_COST_ROWS = 15
# Rows of the table of calls in which the CPU was blocked.
MAX_BLOCKING_CALLS = 8
# Rows of the table of lines of Python at which the CPU was in idle time.
MAX_HOST_LINES = 8
# Ranks that a table lists, and hosts.
MAX_LISTED = 64
# Ranks that a row of the table of the interconnect names.
MAX_CONNECTIONS = 12
_FIGURES = ("step_time_ns", "throughput_steps_per_s", *WORK, *SHARES, "exposed_memory_share")
# Of a run with more kernels, no second timeline is read, which would take minutes.
MAX_KERNELS_OF_MORE_TIMELINES = 2_000_000
_ONLY_STEP = "the only step used"
# Links that have the same values in these columns share a row.
_LINK_KEY = ("comm_id", "transport", "path", "kind", "nominal_bytes_per_s", "nominal_source")
# Tables whose columns are explained.
_DEFINED = (
    "summary",
    "steps",
    "phases",
    "collectives",
    "stragglers",
    "traffic",
    "kernels",
    "costs",
    "idle_calls",
    "links",
    "findings",
    "timeline",
)
_DEFINITION_FIELDS = [
    Field("column", kind="name"),
    Field("unit", kind="text"),
    Field("meaning", kind="prose"),
    Field("source", kind="prose"),
]


class _DrawnTimeline(NamedTuple):
    """A step that a timeline shows."""

    # Which step it is, in words.
    words: str
    data: dict[str, Any]
    bars: pa.Table
    lanes: LaneTables


class _IdleTime(NamedTuple):
    """The mean idle time of a cause, per step."""

    # A column of the steps.
    cause: str
    mean_ns: float


class Details(NamedTuple):
    """A table under its name, to be opened."""

    name: str
    about: str
    table: Table


def run_page(run: Run, top: int | None = None) -> str:
    """Return the page of a run as one HTML file, with `top` rows in the tables of costs.

    By default, these tables have `MAX_COST_ROWS` rows. The file is complete and needs no network.
    The same run gives the same bytes.
    """
    n_rows = top or MAX_COST_ROWS
    tables = cost_tables(run, n_rows)
    # By what they cost: kernels, collectives, traffic.
    cost_table_by_name = {name: replace(table, is_close=True) for name, table in tables.items()}
    header = run.header
    return blocks_page(
        _blocks(run, cost_table_by_name),
        title=f"{header.label}: nsyspipe",
        identity=(RUN_ID, header.run_id),
        scripts=_SCRIPTS,
        short={_ABOUT: "About"},
        head_name=_OVERVIEW,
    )


def _blocks(run: Run, costs: Mapping[str, Table]) -> Iterator[Any]:
    """Yield the first screen, then a section for each question that it leaves open.

    A run without ranks recorded no GPU activity. It has no section about the GPU.
    """
    listed_ranks = run.telling_ranks(MAX_LISTED)
    yield from overview_blocks(run, listed_ranks)
    if run.host_steps().num_rows:
        yield from _host_section(run)
    if run.header.n_ranks:
        yield Heading("Timeline")
        first_ranks = run.telling_ranks(MAX_FIRST_TIMELINE_RANKS)
        yield from _timeline(run, first_ranks, listed_ranks)
        yield from _steps_section(run)
        yield from _ranks_section(run)
        yield from _communication_section(run, costs)
        yield Heading("Kernels")
        yield costs.get(KERNELS) or Sentence("No kernels were recorded.")
    yield from _about_section(run)


def _host_section(run: Run) -> Iterator[Block]:
    yield Heading("CPU steps")
    yield Sentence(
        "How long each NVTX step range took on the CPU, per process. No GPU activity was recorded."
    )
    yield from host_blocks(run.host_steps(), MAX_LISTED)


def _steps_section(run: Run) -> Iterator[Block | Chart]:
    """Yield step time over steps, phases, counters and memory if recorded, and causes of idle time.

    Phases are NVTX ranges inside of a step, such as the forward pass.
    """
    (summary,) = run.summary().to_pylist()
    yield Heading("Steps")
    yield from _step_chart(run)
    yield Heading("Phases", SUBSECTION)
    phases = run_report.phase_table(run)
    if phases:
        yield replace(phases, is_close=True)
        text = words.phases_text(run)
        if text:
            yield Sentence(text)
    elif run.is_capture:
        yield Sentence("There are no phases, because there are no steps.")
    else:
        yield Sentence("No NVTX range inside the steps has the name of a phase.")
    counter_texts = words.counter_texts(run)
    if counter_texts:
        yield Heading("Hardware counters", SUBSECTION)
        yield from map(Sentence, counter_texts)
    memory_texts = memory.memory_texts(run)
    if memory_texts:
        yield Heading("GPU memory", SUBSECTION)
        yield from map(Sentence, memory_texts)
        yield from memory.rank_tables(run, MAX_LISTED)
    yield Heading("Idle time by cause", SUBSECTION)
    yield from _idle_blocks(run, summary)


def _idle_blocks(run: Run, summary: Mapping[str, Any]) -> Iterator[Block]:
    """Yield idle time by cause, then the calls and the lines of Python in which the CPU waited."""
    whole = "capture" if run.is_capture else "step"
    table = idle_table(run.breakdown(), words.unseen_idle(run), whole)
    if table is not None:
        yield table
    elif summary["idle_share"] == 0:
        yield Sentence("The GPUs are never idle.")
    else:
        _, unknown = run_report.why_null("idle_causes", run, summary)
        yield Sentence(f"The causes of idle time are not known: {unknown}.")
    calls = run.idle_calls().to_pylist()
    longest_calls = calls[:MAX_BLOCKING_CALLS]
    if longest_calls:
        call = Field("call", of("call"), "name")
        idle = Field("idle per step", of("blocked_ns_per_step", ms_text))
        caption = "Calls in which the CPU was blocked"
        yield table_of(caption, longest_calls, [call, idle], is_close=True)
    lines = line_table(run, MAX_HOST_LINES, is_close=True)
    if lines is not None:
        yield lines


def _ranks_section(run: Run) -> Iterator[Block]:
    """Yield which rank the others wait for; nothing if the job has one rank."""
    if _is_job_of_one_rank(run):
        return
    (summary,) = run.summary().to_pylist()
    yield Heading("Ranks")
    n_steps_used = summary["n_summary_steps"]
    table = straggler_table(run.stragglers(), run.rank_summary(), n_steps_used, run.rank_names)
    yield table or Sentence(run_report.without_waits(run))
    has_pipeline = PIPELINE in parallelism(run.traffic())
    if summary["wait_share"] and has_pipeline:
        yield Sentence(
            "Pipeline stages also wait for each other: in the bubble, or for a stage that "
            "launches late. That wait time "
            "makes no rank a straggler here."
        )


def _is_job_of_one_rank(run: Run) -> bool:
    """Tell whether one rank was read, and no more ranks of the job are known."""
    n_job_ranks = run.header.n_job_ranks or 1
    return run.header.n_ranks == 1 and n_job_ranks == 1


def _communication_section(run: Run, costs: Mapping[str, Table]) -> Iterator[Block | Chart]:
    """Yield the collectives of a step, their costs by kind and process group, and interconnects."""
    yield Heading("Communication")
    for text in (words.link_text(run), run_report.traffic_of(run)):
        if text:
            yield Sentence(_sentence(text))
    yield from _collectives(run, costs)
    if _is_job_of_one_rank(run):
        return
    yield Heading("Interconnect", SUBSECTION)
    not_known = (
        "Not known. Pass --nccl-log (from a run with NCCL_DEBUG=INFO) and --topology (nvidia-smi "
        "topo -m)."
    )
    table = link_table(run.links())
    yield table or Sentence(not_known)
    if run.nccl is not None:
        settings = nccl_rows(run.nccl)
        yield _pairs("in the NCCL log", settings)


def _collectives(run: Run, costs: Mapping[str, Table]) -> Iterator[Block | Chart]:
    """Yield the charts of the collectives, and their costs by kind, size and process group."""
    whole = "the capture" if run.is_capture else "a step"
    medians = charts.collective_medians(run.collectives(), whole)
    collective_charts = charts.collective_charts(medians, whole, run.rank_names)
    if not collective_charts:
        yield Sentence(_why_no_collectives(run))
        return
    is_any_transfer_known = any(row["transfer"] is not None for row in medians.rows)
    if is_any_transfer_known:
        measured = (
            "Each column shows the transfer time of the collective, and on top of it the "
            "longest time that a rank waits "
            "in it for the others."
        )
    else:
        measured = "Each column shows how long the collective takes."
    chart_in_order = collective_charts[0]
    hint = f"The collectives are in the order of {whole}. {measured} {medians.note}"
    yield replace(chart_in_order, hint=hint)
    has_chart_of_sizes = len(collective_charts) > 1
    if has_chart_of_sizes:
        chart_of_sizes = collective_charts[1]
        yield Heading("Bus bandwidth by message size", SUBSECTION)
        hint_of_sizes = "Each point is a collective, with the medians over steps."
        yield replace(chart_of_sizes, hint=hint_of_sizes)
    # There are collectives. So a table is missing only if others may be hidden in CUDA graphs.
    without_table = Sentence(
        "Not known, because CUDA graphs that were captured as a whole may contain more."
    )
    yield Heading("By kind and size", SUBSECTION)
    yield costs.get(COLLECTIVES, without_table)
    yield Heading("By process group", SUBSECTION)
    yield costs.get(TRAFFIC, without_table)


def _why_no_collectives(run: Run) -> str:
    """Return in words why there is no chart of collectives."""
    comm_share = run.summary()["comm_share"][0]
    if comm_share.as_py() is None:
        return "Communication is not known. The notes have the reason."
    whole = "the capture" if run.is_capture else "the steps used"
    return f"There is no communication in {whole}."


def _about_section(run: Run) -> Iterator[Any]:
    """Yield what the metrics rest on: notes, all metrics, the capture, and definitions."""
    yield Heading(_ABOUT)
    yield Heading("Notes and warnings", SUBSECTION)
    troubles = words.troubles(run.problem_rows)
    if troubles:
        yield Troubles(troubles, is_close=True)
    else:
        yield Sentence("There are none.")
    (summary,) = run.summary().to_pylist()
    has_figures = summary["n_summary_steps"] or run.is_capture
    if has_figures and run.header.n_ranks:
        yield Heading("All metrics", SUBSECTION)
        yield Sentence(_denominator_text(run))
        tiles = key_figures(run, _FIGURES)
        yield Tiles([*_renamed(tiles)])
        yield from ladder_blocks(run)
    yield Heading("Capture", SUBSECTION)
    yield _pairs("recorded", provenance(run))
    yield report_table(run, run.telling_ranks(MAX_LISTED))
    yield Heading("Columns", SUBSECTION)
    yield Sentence(
        "Units and formulas of all columns of the tables. nsyspipe explain COLUMN explains "
        "each of them."
    )
    yield Fold("All columns", [*_definitions()])


def _denominator_text(run: Run) -> str:
    """Return over which ranks and steps the metrics are means, and that the overview differs."""
    if run.header.n_ranks == 1:
        return "These metrics are means over the steps used. The step time is a median."
    return (
        "These metrics are means over all ranks and all steps used, and the step time is a "
        "median. The overview shows the "
        "slowest rank of each step instead."
    )


def _renamed(tiles: Sequence[Tile]) -> Iterator[Tile]:
    """Yield the tiles, with another name for the step time.

    It is a median here. The overview has a mean, which is called step time too.
    """
    step_time_name = FIGURES["step_time_ns"].short
    for tile in tiles:
        if tile.name == step_time_name:
            yield replace(tile, name="median step time")
        else:
            yield tile


def _definitions() -> Iterator[Sentence | Details]:
    """Yield the letters that formulas use, then for each table the meaning of its columns."""
    yield Sentence(
        "C is the time in which compute operations of a rank run. M is the time in which "
        "communication runs, and P the time "
        "in which copies and memsets run. All are clipped to the window of the step. Compute, "
        "exposed communication, "
        "exposed copies and idle time sum exactly to the step."
    )
    for table_name in _DEFINED:
        schema = DESCRIBED[table_name]
        rows = []
        for column in schema.columns:
            meaning = meaning_of(schema, column)
            source = column.source or absent
            rows.append([column.name, column.unit, meaning, source])
        caption = f"Columns of {schema.name}"
        columns_table = Table(caption, _DEFINITION_FIELDS, rows, is_close=True)
        yield Details(schema.name, schema.doc, columns_table)


def _sentence(text: str) -> str:
    first_letter = text[:1].upper()
    return f"{first_letter}{text[1:]}."


def _pairs(caption: str, rows: Sequence[tuple[str, str]]) -> Table:
    """Return the table of facts, each a name and a value."""
    fields = [Field("what", kind="text"), Field(caption, kind="name")]
    return Table(caption, fields, rows, is_close=True)


def _step_chart(run: Run) -> Iterator[Block | Chart]:
    """Yield the chart of step time over steps, or a sentence that says why there is none."""
    n_ranks = run.ranks.num_rows
    comm_share = run.summary()["comm_share"][0]
    # A share that is not known counts as communication.
    has_comm = comm_share.as_py() != 0
    rows = []
    if not run.is_capture:
        rows = charts.step_rows(run.steps(), run.skipped_steps, n_ranks)
    chart = charts.step_chart(rows, has_comm=has_comm, names=run.rank_names)
    if chart is None:
        if run.is_capture:
            why = "There are no steps, because the metrics are of the capture as a whole."
        else:
            why = "There are no steps with GPU activity."
        yield Sentence(why)
        return
    has_joined_steps = len(rows) > charts.MOST_COLUMNS
    hint = _steps_hint(run, rows, has_joined_steps=has_joined_steps)
    yield replace(chart, hint=hint)


def _steps_hint(run: Run, rows: Sequence[Mapping[str, Any]], *, has_joined_steps: bool) -> str:
    """Return how to read the chart of the steps, which has the `rows` of `charts.step_rows`."""
    column = "the slowest of some consecutive steps" if has_joined_steps else "a step"
    if run.header.n_ranks > 1:
        hints = [
            f"Each column is {column}, on its slowest rank.",
            "The dots are the ranks, and the line is their median.",
        ]
    else:
        hints = [f"Each column is {column}."]
    # The mark of a step says why the step is not used.
    if any(row["mark"] for row in rows):
        hints.append("Shaded steps are not used.")
    unseen = words.unseen_idle(run)
    if unseen:
        hints.append(
            f"Dashed parts were not recorded. Idle time is a lower bound, because {unseen}."
        )
    return " ".join(hints)


def _clock_text(run: Run) -> str:
    """Return how well bars of different ranks can be compared; ``""`` for one rank."""
    error_ns_of_ranks = run.ranks["clock_error_ns"].to_pylist()
    if len(error_ns_of_ranks) <= 1:
        return ""
    problem_codes = [row["code"] for row in run.problem_rows]
    if "no-common-clock" in problem_codes:
        return "The clocks of the ranks do not agree. Compare bars within a rank only."
    if None in error_ns_of_ranks:
        return "How well the clocks of the ranks agree is not known."
    max_error_ns = max(error_ns_of_ranks)
    if max_error_ns == 0:
        return "The ranks share one clock."
    max_error_us = max_error_ns / 1000
    return f"The ranks share one clock, accurate to {max_error_us:.1f} us."


def _left_out_text(n_in_file: int, n_ranks: int) -> str:
    """Return how many ranks the file of a page has, and what has all; empty if the file has all."""
    if n_in_file == n_ranks:
        return ""
    are = verb_for(n_in_file, "are")
    return f"{n_in_file} of {n_ranks} ranks {are} in this file. --perfetto writes all."


def _timeline(
    run: Run, first_ranks: list[int], listed_ranks: Sequence[int]
) -> Iterator[Block | Chart]:
    """Yield the chart with the timelines of up to three steps, or why there is none.

    The step closest to the median is drawn first, and the user can choose the others. The chart
    begins with the first ranks, and a button shows the rest of the ranks that the file has. The
    table of the step has the listed ranks.
    """
    bars = run.timeline()
    ranks = run.ranks["rank"].to_pylist()
    data = timeline_data(bars, run.steps(), first=first_ranks, listed=ranks)
    if data is None:
        yield Sentence(
            "There is no timeline: the run was saved without one, or no step is complete on "
            "every rank."
        )
        return
    which = _ONLY_STEP if n_steps(run) == 1 else "closest to the median"
    median = _DrawnTimeline(which, data, bars, _lanes(run))
    more_timelines = _more_timelines(run, data, first_ranks)
    data["others"] = [timeline.data for timeline in more_timelines]
    color_of_line = _add_lanes(run, [median, *more_timelines])
    choices = [_choice(run, median, listed_ranks)]
    choices += [_choice(run, timeline, first_ranks) for timeline in more_timelines]
    n_in_file = len(data["ranks"])
    left_out = _left_out_text(n_in_file, len(ranks))
    whole = "capture" if run.is_capture else "step"
    drawn_steps = [data, *data["others"]]
    legend = _timeline_legend(drawn_steps)
    legend += lanes_legend(drawn_steps, color_of_line)
    hints = lanes_hints(drawn_steps, color_of_line)
    yield Chart(
        name="timeline",
        section="Timeline",
        label=f"Timeline of the {whole}",
        height=120,
        data=data,
        table=None,
        caption=left_out,
        legend=legend,
        has_zoom=True,
        choices=choices,
        # The ranks behind the button.
        n_more=n_in_file - data["n_shown"],
        hint=_timeline_hint(run, hints),
    )


def _lanes(run: Run, step: int | None = None, ranks: list[int] | None = None) -> LaneTables:
    """Return what was sampled in a step on some ranks: counters, and lines of Python.

    By default, this is the step of `run.timeline`, on all its ranks.
    """
    counters = run.counter_bars(step, ranks)
    lines = run.line_bars(step, ranks)
    return LaneTables(counters, lines)


def _add_lanes(run: Run, timelines: Sequence[_DrawnTimeline]) -> dict[str, str]:
    """Add lanes of what was sampled to timelines, and return the colors of lines of Python."""
    colors = line_colors([timeline.lanes for timeline in timelines])
    steps = run.steps()
    for timeline in timelines:
        add_lanes(timeline.data, timeline.lanes, steps, colors)
    return colors


def _timeline_hint(run: Run, hints_of_lanes: Sequence[str]) -> str:
    """Return how to read a timeline."""
    start = "the first rank's start"
    if run.ranks.num_rows <= 1:
        start = "the start"
    hints = [f"Times count from {start}.", _clock_text(run), IS_PAINTED, *hints_of_lanes]
    known_hints = filter(None, hints)
    return " ".join(known_hints)


def _timeline_legend(steps: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return what is drawn of any step: categories of the palette, and words."""
    legends = (lane_legend(step["ranks"], step["names"]) for step in steps)
    entries = chain.from_iterable(legends)
    return [*dict.fromkeys(entries)]


def _choice(run: Run, timeline: _DrawnTimeline, listed_ranks: Sequence[int]) -> Choice:
    """Return the button, the text and the table of one timeline.

    The data of the timeline get facts about the collectives of its step, and the names of ranks.
    """
    step = timeline.data["step"]
    timeline.data["collectives"] = charts.collective_facts(run.collectives(), step)
    timeline.data.update(charts.names_in_data(run.rank_names))
    texts = []
    if not run.is_capture:
        among_steps = "" if timeline.words == _ONLY_STEP else " of the steps used"
        texts.append(f"Step {step}: {timeline.words}{among_steps}.")
    texts.append(_gap_text(run, timeline.data))
    texts.append(_hidden_phases_text(run, step, timeline.bars))
    text = " ".join(filter(None, texts))
    table = timeline_table(
        timeline.bars,
        run.steps(),
        listed_ranks,
        is_capture=run.is_capture,
        names=run.rank_names,
        other_fields=lane_fields(timeline.lanes),
    )
    return Choice(step, timeline.words, [text], table)


def _gap_text(run: Run, data: Mapping[str, Any]) -> str:
    """Return where the longest gap between compute is; ``""`` if no gap is drawn."""
    gap = data["stretch"]
    if not gap:
        return ""
    place = "the GPU"
    if data["n_ranks"] > 1:
        rank_name = run.rank_names.name(gap["rank"])
        place = f"rank {rank_name} (the slowest rank)"
    length_ns = gap["end"] - gap["start"]
    length = ms_text(length_ns)
    return f"The dashed box is the longest time without compute on {place}: {length}."


def _hidden_phases_text(run: Run, step: int, bars: pa.Table) -> str:
    """Return which phases of a step ran on the GPU but have no bar; ``""`` if all have one."""
    is_phase_bar = pc.field("lane") == "phase"
    drawn_phases = bars.filter(is_phase_bar)["name"].to_pylist()
    is_in_step = pc.field("step") == step
    is_on_gpu = pc.field("device_ns") > 0
    phase_rows = run.phases().filter(is_in_step & is_on_gpu)
    phases_on_gpu = phase_rows["phase"].to_pylist()
    # In the order of the training loop.
    hidden = [phase for phase in LOOP if phase in phases_on_gpu and phase not in drawn_phases]
    if not hidden:
        return ""
    subject = f"The {' and '.join(hidden)} phases have"
    if len(hidden) == 1:
        subject = f"The {hidden[0]} phase has"
    return (
        f"{subject} no bar, because the GPU ran that work before the step began or after "
        "the step ended. "
        "The table of phases has the time."
    )


def _more_timelines(run: Run, data: Mapping[str, Any], ranks: list[int]) -> list[_DrawnTimeline]:
    """Return the timelines of the slowest and the fastest step used, on some ranks.

    `data` has the step that is drawn first. Another step is left out if it takes as long as that
    step, or if the page would have more than `MOST_BARS` bars with it. A run with very many kernels
    has no more timelines, and neither has a run that was saved without its operations.
    """
    rows = charts.step_rows(run.breakdown(), skipped=[], n_ranks=0)
    wall_ns_of_step = {row["step"]: row["wall_ns"] for row in rows}
    n_kernels = pc.sum(run.ranks["n_kernels"]).as_py() or 0
    first_step = data["step"]
    if first_step not in wall_ns_of_step or n_kernels > MAX_KERNELS_OF_MORE_TIMELINES:
        return []
    timelines = []
    slowest = max(wall_ns_of_step, key=wall_ns_of_step.__getitem__)
    fastest = min(wall_ns_of_step, key=wall_ns_of_step.__getitem__)
    n_free_bars = MOST_BARS - n_bars(data)
    for which, step in (("the slowest", slowest), ("the fastest", fastest)):
        if wall_ns_of_step[step] == wall_ns_of_step[first_step]:
            continue
        try:
            bars = run.timeline(step, ranks)
        except DatasetError:
            # The run was saved without its operations.
            return []
        step_data = timeline_data(bars, run.steps(), first=ranks, listed=[])
        if step_data is None:
            continue
        # Less than 0 if the step does not fit. Then the next step does not fit either.
        n_free_bars -= n_bars(step_data)
        if n_free_bars >= 0:
            timeline = _DrawnTimeline(which, step_data, bars, _lanes(run, step, ranks))
            timelines.append(timeline)
    return timelines


def straggler_table(
    stragglers: StragglersTable,
    rank_summary: RankSummaryTable,
    n_steps: int,
    names: RankNames | None = None,
) -> Table | None:
    """Return the table of how much the other ranks waited for each rank, the latest rank first.

    The sums of `stragglers` become means over `n_steps`. The table has up to `MAX_LISTED` ranks. It
    is None for one rank, without steps, or if no collective was matched over the ranks.
    """
    rows = sorted(stragglers.to_pylist(), key=_latest_first)
    is_any_known = any(row["lateness_ns"] is not None for row in rows)
    if len(rows) <= 1 or not n_steps or not is_any_known:
        return None
    names = names or RankNames()
    fields = [*_straggler_fields(rows, rank_summary, n_steps, names)]
    note = (
        "Means per step. In each step, only the rank that causes the longest delay gets this "
        "delay. The other ranks have 0 for that step."
    )
    listed_rows = rows[:MAX_LISTED]
    n_more = len(rows) - len(listed_rows)
    if n_more:
        note += f" {place_of_more(n_more, 'rank', '--json')}"
    caption = "Straggler delay and wait time, mean per step"
    return table_of(caption, listed_rows, fields, note, is_close=True)


def _latest_first(row: Mapping[str, Any]) -> tuple[int, int]:
    """Return the key that sorts the latest rank first, and equally late ranks by number."""
    lateness_ns = row["lateness_ns"] or 0
    return -lateness_ns, row["rank"]


def _per_step(name: str, n_steps: int) -> Callable[[Mapping[str, Any]], float | None]:
    """Return a function that returns the mean per step of column `name` of a row.

    The column has a sum over the steps. The mean is None if the sum is.
    """

    def mean_per_step(row: Mapping[str, Any]) -> float | None:
        total = row[name]
        return None if total is None else total / n_steps

    return mean_per_step


def _straggler_fields(
    rows: Sequence[Mapping[str, Any]],
    rank_summary: RankSummaryTable,
    n_steps: int,
    names: RankNames,
) -> Iterator[Field]:
    """Yield the columns of the table of stragglers."""
    median_ns_of_rank = {row["rank"]: row["step_time_ns"] for row in rank_summary.to_pylist()}

    def median_text(row: Mapping[str, Any]) -> str:
        median_ns = median_ns_of_rank.get(row["rank"])
        return ms_text(median_ns)

    yield Field("rank", lambda row: names.name(row["rank"]))
    yield Field("median step", median_text, hint="Median step time of the rank.")
    yield from _delay_fields(rows, n_steps)


def _delay_fields(rows: Sequence[Mapping[str, Any]], n_steps: int) -> Iterator[Field]:
    """Yield the columns with delays and waits of a rank: means per step."""
    delay_of = _per_step("lateness_ns", n_steps)
    wait_of = _per_step("wait_ns", n_steps)
    wait_caused_of = _per_step("wait_caused_ns", n_steps)

    def wait_caused_text(row: Mapping[str, Any]) -> str:
        wait_caused_ns = wait_caused_of(row)
        return ms_text(wait_caused_ns)

    def n_last_text(row: Mapping[str, Any]) -> str:
        n_per_step = round(row["n_arrived_last"] / n_steps, 2)
        return f"{n_per_step:g}"

    delay_name = OTHER_FIGURES["straggler_delay"].short
    yield barred(rows, delay_name, delay_of, "accent")
    yield Field(OTHER_FIGURES["wait_caused"].short, wait_caused_text)
    wait_name = FIGURES["wait_ns"].short
    yield barred(rows, wait_name, wait_of, "waiting")
    last_name = OTHER_FIGURES["arrived_last"].short
    last_hint = "Collectives per step in which the rank arrived last."
    yield Field(last_name, n_last_text, hint=last_hint)


def idle_table(steps: StepsTable, unseen: str = "", whole: str = "step") -> Table | None:
    """Return the table of idle time by cause, the largest first; None if no cause is known.

    The times are means over the rows of `steps`. `whole` is ``"step"``, or ``"capture"`` if each
    row is a whole capture on one rank. `unseen` says which idle time is not visible. The known
    times are lower bounds then.
    """
    idle_times = []
    for cause in IDLE_CAUSES:
        mean_ns = pc.mean(steps.column(cause), skip_nulls=False).as_py()
        if mean_ns:
            idle_times.append(_IdleTime(cause, mean_ns))
    # Causes with the same time stay in the order of `IDLE_CAUSES`.
    rows = sorted(idle_times, key=attrgetter("mean_ns"), reverse=True)
    if not rows:
        return None
    wall_ns = pc.mean(steps["wall_ns"]).as_py()
    share_heading = "of the capture" if whole == "capture" else "of step time"
    cause_field = Field("cause", lambda row: words.idle_cause(row.cause), "text")
    idle = barred(rows, f"idle per {whole}", attrgetter("mean_ns"), "idle")
    share = Field(share_heading, lambda row: percent_text(row.mean_ns / wall_ns))
    meaning = Field("meaning", lambda row: FIGURES[f"{row.cause}_per_step"].definition, "prose")
    fields = [cause_field, idle, share, meaning]
    note = f"These times are lower bounds, because {unseen}." if unseen else None
    return table_of(f"Idle by cause, mean per {whole}", rows, fields, note, is_close=True)


def link_table(links: LinksTable) -> Table | None:
    """Return the table of the connections between ranks; None if no connection is known.

    Connections with the same values in the columns of `_LINK_KEY` share a row.
    """
    key_of = itemgetter(*_LINK_KEY)
    keys_and_texts = [(key_of(row), _connection_text(row)) for row in links.to_pylist()]
    texts_by_key = grouped(keys_and_texts)
    if not texts_by_key:
        return None
    rows = []
    for key, texts in texts_by_key.items():
        key_columns = zip(_LINK_KEY, key, strict=True)
        rows.append(dict(key_columns) | {"connections": texts})
    fields = [*_link_fields(), *_connection_fields()]
    return table_of("Interconnect between ranks", rows, fields, is_close=True)


def _connection_text(row: Mapping[str, Any]) -> str:
    return f"{row['from_rank']}\N{RIGHTWARDS ARROW}{row['to_rank']}"


def _link_fields() -> Iterator[Field]:
    """Yield the columns with what is known of an interconnect."""
    yield Field("kind", of("kind"), "text")
    yield Field("transport", of("transport"), "text", "The transport that NCCL set up.")
    path_hint = "The connection of the GPUs, from nvidia-smi topo -m."
    yield Field("path", of("path"), "text", path_hint)
    bandwidth = of("nominal_bytes_per_s", bandwidth_text)
    yield Field("peak bandwidth", bandwidth)
    yield Field("source", of("nominal_source"), "text")


def _connection_fields() -> Iterator[Field]:
    """Yield the columns with the ranks that an interconnect connects."""
    yield Field("connections", lambda row: str(len(row["connections"])))
    connections = of("connections", lambda texts: few(texts, MAX_CONNECTIONS))
    yield Field("from and to rank", connections, "text")


def nccl_rows(nccl: NcclFacts) -> list[tuple[str, str]]:
    """Return what the NCCL log tells of NCCL, as names and values."""
    # NCCL's name for NVLink SHARP is NVLS.
    nvls = {True: "set up", False: "not set up", None: "not in the log"}[nccl.nvls]
    version = nccl.version or absent
    settings = sorted(nccl.settings.items())
    return [("version", version), ("NVLink SHARP", nvls), *settings]


def provenance(run: Run) -> list[tuple[str, str]]:
    """Return what identifies the run and its capture, as names and values."""
    header = run.header
    captured = header.captured_at_utc or absent
    gpus = ", ".join(header.gpu_names) or absent
    hosts = few(header.hosts, MAX_LISTED) or absent
    nsys_versions = ", ".join(header.nsys_versions) or absent
    export_versions = ", ".join(header.export_schema_versions) or absent
    identity = [("run id", header.run_id), ("label", header.label), ("captured", captured)]
    steps = ("steps", _source_of_steps(run))
    ranks = ("ranks read, with GPU activity", _ranks_read(run))
    hardware = [("GPU", gpus), ("hosts", hosts)]
    versions = [("Nsight Systems", nsys_versions), ("export schema", export_versions)]
    return [
        *identity,
        ranks,
        *hardware,
        *versions,
        steps,
        *words.capture_rows(header.capture),
        ("nsyspipe", __version__),
    ]


def _ranks_read(run: Run) -> str:
    """Return how many ranks were read, and of how many if that is known."""
    header = run.header
    if header.has_shared_processes:
        return words.ranks_text(header)
    if header.world_size is not None:
        return f"{header.n_ranks} of {header.world_size}"
    return f"{header.n_ranks}"


def _source_of_steps(run: Run) -> str:
    """Return what marks the steps."""
    if run.step_family:
        return run.step_family
    if run.is_capture:
        return "none: a capture"
    return ", ".join(words.sources(run)) or "none marked"


def _devices_of(run: Run, row: Mapping[str, Any]) -> str:
    """Return the device of a rank that shares its process, else all devices of its process."""
    shares_process = row["rank"] in run.rank_names.names
    column = "device_id" if shares_process else "device_ids"
    return str(row[column])


def report_table(run: Run, listed: Sequence[int]) -> Table:
    """Return report, process, hardware and clock of the `listed` ranks."""
    fields = [*_process_fields(run), *_hardware_fields(), *_clock_fields()]
    all_ranks = run.ranks.to_pylist()
    ranks = [row for row in all_ranks if row["rank"] in listed]
    note = run_report.table_note(len(ranks), run.header.n_ranks)
    return table_of("Ranks and their reports", ranks, fields, note, is_close=True)


def _process_fields(run: Run) -> Iterator[Field]:
    yield Field("rank", lambda row: run.rank_names.name(row["rank"]))
    yield Field("report", of("report"), "name")
    yield Field("pid", of("pid"))
    device_hint = "CUDA ordinal inside the process."
    yield Field("GPU index", lambda row: _devices_of(run, row), hint=device_hint)


def _hardware_fields() -> Iterator[Field]:
    yield Field("GPU model", of("gpu_name"), "text")
    yield Field("host", of("host"), "text")
    yield Field("rank found from", of("rank_source"), "text")


def _clock_fields() -> Iterator[Field]:
    """Yield the columns with the numbers of kernels, and with the clock.

    A table converts a time to the unit of its column.
    """
    yield Field("kernels", of("n_kernels", count_text))
    yield Field("communication kernels", of("n_comm", count_text))
    yield Field("clock offset us", of("clock_offset_ns", ms_text), unit="us")
    yield Field("clock error us", of("clock_error_ns", ms_text), unit="us")
