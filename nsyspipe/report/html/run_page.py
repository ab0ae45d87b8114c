"""The page of one run: the first screen, then a section for each question that it leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from nsyspipe.analysis.kernels import COLLECTIVES, KERNELS, TRAFFIC
from nsyspipe.analysis.traffic import PIPELINE, parallelism
from nsyspipe.errors import DatasetError
from nsyspipe.model.figures import FIGURES, OTHER_FIGURES
from nsyspipe.model.names import few, grouped
from nsyspipe.model.schema import DESCRIBED, IDLE_CAUSES
from nsyspipe.model.side_files import NcclFacts
from nsyspipe.report import run as run_report, words
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
from nsyspipe.report.run import LOOP, SHARES, host_blocks, key_figures
from nsyspipe.report.schema import meaning_of
from nsyspipe.report.units import absent, bandwidth_text, count_text, ms_text, percent_text
from nsyspipe.run.rank_names import RankNames
from nsyspipe.run.run import Run
from nsyspipe.run.work import n_steps
from nsyspipe.version import __version__

_SCRIPTS = (
    "step_bars",
    "timeline_layout",
    "timeline_draw",
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
# Ranks that a table lists, and hosts.
MAX_LISTED = 64
# Ranks that a row of the table of the interconnect names.
MAX_CONNECTIONS = 12
_FIGURES = ("step_time_ns", "throughput_steps_per_s", *SHARES, "exposed_memory_share")
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


class _MoreTimeline(NamedTuple):
    """A step that a timeline shows on demand."""

    # Which step it is, in words.
    words: str
    data: dict[str, Any]
    bars: pa.Table


class Details(NamedTuple):
    """A table under its name, to be opened."""

    name: str
    about: str
    table: Table


def run_page(run: Run, top: int | None = None) -> str:
    """Return the page of a run as one HTML file, with `top` rows in the tables of costs.

    The file is complete and needs no network. The same run gives the same bytes.
    """
    tables = cost_tables(run, top or MAX_COST_ROWS)
    costs = {name: replace(table, is_close=True) for name, table in tables.items()}
    return blocks_page(
        _blocks(run, costs),
        title=f"{run.header.label}: nsyspipe",
        identity=(RUN_ID, run.header.run_id),
        scripts=_SCRIPTS,
        short={_ABOUT: "About"},
        head_name=_OVERVIEW,
    )


def _blocks(run: Run, costs: Mapping[str, Table]) -> Iterator[Any]:
    """Yield the first screen, then a section for each question that it leaves open."""
    yield from overview_blocks(run, run.telling_ranks(MAX_LISTED))
    if run.host_steps().num_rows:
        yield from _host_section(run)
    if run.header.n_ranks:
        yield Heading("Timeline")
        yield from _timeline(
            run, run.telling_ranks(MAX_FIRST_TIMELINE_RANKS), run.telling_ranks(MAX_LISTED)
        )
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
    """Yield step time over steps, then what a step consists of: phases, and idle time by cause."""
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
    yield Heading("Idle time by cause", SUBSECTION)
    yield from _idle_blocks(run, summary)


def _idle_blocks(run: Run, summary: Mapping[str, Any]) -> Iterator[Block]:
    whole = "capture" if run.is_capture else "step"
    table = idle_table(run.breakdown(), words.unseen_idle(run), whole)
    if table is not None:
        yield table
    elif summary["idle_share"] == 0:
        yield Sentence("The GPUs are never idle.")
    else:
        _, unknown = run_report.why_null("idle_causes", run, summary)
        yield Sentence(f"The causes of idle time are not known: {unknown}.")
    calls = run.idle_calls().to_pylist()[:MAX_BLOCKING_CALLS]
    if calls:
        fields = [
            Field("call", of("call"), "name"),
            Field("idle per step", of("blocked_ns_per_step", ms_text)),
        ]
        yield table_of("Calls in which the CPU was blocked", calls, fields, is_close=True)


def _ranks_section(run: Run) -> Iterator[Block]:
    """Yield which rank the others wait for; nothing if the job has one rank."""
    if _is_alone(run):
        return
    (summary,) = run.summary().to_pylist()
    yield Heading("Ranks")
    table = straggler_table(
        run.stragglers(), run.rank_summary(), summary["n_summary_steps"], run.rank_names
    )
    yield table or Sentence(run_report.without_waits(run))
    if summary["wait_share"] and PIPELINE in parallelism(run.traffic()):
        yield Sentence(
            "Pipeline stages also wait for each other: in the bubble, or for a stage that "
            "launches late. That wait time "
            "makes no rank a straggler here."
        )


def _is_alone(run: Run) -> bool:
    """Tell whether the job has one rank."""
    n_job_ranks = run.header.n_job_ranks or 1
    return run.header.n_ranks == 1 and n_job_ranks == 1


def _communication_section(run: Run, costs: Mapping[str, Table]) -> Iterator[Block | Chart]:
    """Yield the collectives of a step, their costs by kind and process group, and interconnects."""
    yield Heading("Communication")
    for text in (words.link_text(run), run_report.traffic_of(run)):
        if text:
            yield Sentence(_sentence(text))
    yield from _collectives(run, costs)
    if _is_alone(run):
        return
    yield Heading("Interconnect", SUBSECTION)
    not_known = (
        "Not known. Pass --nccl-log (from a run with NCCL_DEBUG=INFO) and --topology (nvidia-smi "
        "topo -m)."
    )
    yield link_table(run.links()) or Sentence(not_known)
    if run.nccl is not None:
        yield _pairs("in the NCCL log", nccl_rows(run.nccl))


def _collectives(run: Run, costs: Mapping[str, Table]) -> Iterator[Block | Chart]:
    whole = "the capture" if run.is_capture else "a step"
    medians = charts.collective_medians(run.collectives(), whole)
    in_charts = charts.collective_charts(medians, whole, run.rank_names)
    if not in_charts:
        yield Sentence(_why_no_collectives(run))
        return
    measured = "Each column shows how long the collective takes."
    if any(row["transfer"] is not None for row in medians.rows):
        measured = (
            "Each column shows the transfer time of the collective, and on top of it the "
            "longest time that a rank waits "
            "in it for the others."
        )
    in_order, *sizes = in_charts
    hint = f"The collectives are in the order of {whole}. {measured} {medians.note}"
    yield replace(in_order, hint=hint)
    for chart in sizes:
        yield Heading("Bus bandwidth by message size", SUBSECTION)
        yield replace(chart, hint="Each point is a collective, with the medians over steps.")
    hidden = Sentence(
        "Not known, because CUDA graphs that were captured as a whole may contain more."
    )
    yield Heading("By kind and size", SUBSECTION)
    yield costs.get(COLLECTIVES, hidden)
    yield Heading("By process group", SUBSECTION)
    yield costs.get(TRAFFIC, hidden)


def _why_no_collectives(run: Run) -> str:
    """Return in words why there is no chart of collectives."""
    if run.summary()["comm_share"][0].as_py() is None:
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
        yield Tiles([*_renamed(key_figures(run, _FIGURES))])
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
    """Return what these metrics are shares of: here of all ranks, above of the slowest."""
    if run.header.n_ranks == 1:
        return "These metrics are means over the steps used. The step time is a median."
    return (
        "These metrics are means over all ranks and all steps used, and the step time is a "
        "median. The overview shows the "
        "slowest rank of each step instead."
    )


def _renamed(tiles: Sequence[Tile]) -> Iterator[Tile]:
    """Yield tiles. The median step time gets a name that differs from the mean of the overview."""
    for tile in tiles:
        is_step_time = tile.name == FIGURES["step_time_ns"].short
        yield replace(tile, name="median step time") if is_step_time else tile


def _definitions() -> Iterator[Sentence | Details]:
    yield Sentence(
        "C is the time in which compute operations of a rank run. M is the time in which "
        "communication runs, and P the time "
        "in which copies and memsets run. All are clipped to the window of the step. Compute, "
        "exposed communication, "
        "exposed copies and idle time sum exactly to the step."
    )
    for schema in map(DESCRIBED.__getitem__, _DEFINED):
        rows = [
            [column.name, column.unit, meaning_of(schema, column), column.source or absent]
            for column in schema.columns
        ]
        yield Details(
            schema.name,
            schema.doc,
            Table(f"Columns of {schema.name}", _DEFINITION_FIELDS, rows, is_close=True),
        )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _pairs(caption: str, rows: Sequence[tuple[str, str]]) -> Table:
    fields = [Field("what", kind="text"), Field(caption, kind="name")]
    return Table(caption, fields, rows, is_close=True)


def _step_chart(run: Run) -> Iterator[Block | Chart]:
    n_ranks = run.ranks.num_rows
    has_comm = run.summary()["comm_share"][0].as_py() != 0
    steps = [] if run.is_capture else charts.step_rows(run.steps(), run.skipped_steps, n_ranks)
    columns = charts.step_chart(steps, has_comm=has_comm, names=run.rank_names)
    if columns is None:
        which = " with GPU activity"
        if run.is_capture:
            which = ", because the metrics are of the capture as a whole"
        yield Sentence(f"There are no steps{which}.")
        return
    yield replace(columns, hint=_steps_hint(run, steps, is_joined=bool(columns.caption)))


def _steps_hint(run: Run, steps: Sequence[Mapping[str, Any]], *, is_joined: bool) -> str:
    """Return how to read the chart of the steps."""
    which = "the slowest of some consecutive steps" if is_joined else "a step"
    hint = f"Each column is {which}."
    if run.header.n_ranks > 1:
        hint = (
            f"Each column is {which}, on its slowest rank. The dots are the ranks, and the "
            "line is their median."
        )
    hints = [hint]
    if any(row["mark"] for row in steps):
        hints.append("Shaded steps are not used.")
    unseen = words.unseen_idle(run)
    if unseen:
        hints.append(
            f"Dashed parts were not recorded. Idle time is a lower bound, because {unseen}."
        )
    return " ".join(hints)


def _clock_text(run: Run) -> str:
    """Return how well bars of different ranks can be compared; nothing for one rank."""
    errors = run.ranks["clock_error_ns"].to_pylist()
    codes = [row["code"] for row in run.problem_rows]
    if len(errors) < 2:  # noqa: PLR2004 - nothing to compare
        return ""
    if "no-common-clock" in codes:
        return "The clocks of the ranks do not agree. Compare bars within a rank only."
    if None in errors:
        return "How well the clocks of the ranks agree is not known."
    accuracy = f", accurate to {max(errors) / 1000:.1f} us" if max(errors) else ""
    return f"The ranks share one clock{accuracy}."


def _timeline(run: Run, first: list[int], listed: Sequence[int]) -> Iterator[Block | Chart]:
    bars = run.timeline()
    data = timeline_data(bars, run.steps(), first, run.ranks["rank"].to_pylist())
    if data is None:
        yield Sentence(
            "There is no timeline: the run was saved without one, or no step is complete on "
            "every rank."
        )
        return
    more = _more_timelines(run, data, first)
    data["others"] = [timeline.data for timeline in more]
    which = _ONLY_STEP if n_steps(run) == 1 else "closest to the median"
    choices = [
        _choice(run, which, data, bars, listed),
        *(_choice(run, timeline.words, timeline.data, timeline.bars, first) for timeline in more),
    ]
    n_drawn = len(data["ranks"])
    n_ranks = run.ranks.num_rows
    left_out = ""
    if n_drawn < n_ranks:
        left_out = f"{n_drawn} of {n_ranks} ranks are in this file. --perfetto writes all."
    start = "the first rank's start" if n_ranks > 1 else "the start"
    hints = [f"Times count from {start}.", _clock_text(run), IS_PAINTED]
    hint = " ".join(filter(None, hints))
    whole = "capture" if run.is_capture else "step"
    yield Chart(
        name="timeline",
        section="Timeline",
        label=f"Timeline of the {whole}",
        height=120,
        data=data,
        table=None,
        caption=left_out,
        legend=_timeline_legend([data, *data["others"]]),
        has_zoom=True,
        choices=choices,
        n_more=n_drawn - data["n_shown"],
        hint=hint,
    )


def _timeline_legend(steps: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return what is drawn of any step: categories of the palette, and words."""
    legends = (lane_legend(step["ranks"], step["names"]) for step in steps)
    return [*dict.fromkeys(chain.from_iterable(legends))]


def _choice(
    run: Run, which: str, data: dict[str, Any], bars: pa.Table, listed: Sequence[int]
) -> Choice:
    """Return what stands above the timeline of a step. The data get what is known of collectives.

    `which` is what the step is among those used, in words.
    """
    step = data["step"]
    data["collectives"] = charts.collective_facts(run.collectives(), step)
    data |= charts.names_in_data(run.rank_names)
    steps_used = "" if which == _ONLY_STEP else " of the steps used"
    texts = [_gap_text(run, data), _hidden_phases_text(run, step, bars)]
    if not run.is_capture:
        texts.insert(0, f"Step {step}: {which}{steps_used}.")
    table = timeline_table(
        bars, run.steps(), listed, is_capture=run.is_capture, names=run.rank_names
    )
    return Choice(step, which, [" ".join(filter(None, texts))], table)


def _gap_text(run: Run, data: Mapping[str, Any]) -> str:
    """Return where the longest time without compute is; nothing if none is drawn."""
    gap = data["stretch"]
    if not gap:
        return ""
    place = "the GPU"
    if data["n_ranks"] > 1:
        place = f"rank {run.rank_names.name(gap['rank'])} (the slowest rank)"
    length = ms_text(gap["end"] - gap["start"])
    return f"The dashed box is the longest time without compute on {place}: {length}."


def _hidden_phases_text(run: Run, step: int, bars: pa.Table) -> str:
    """Return which phases of a step run on the GPU but have no bar; nothing if there are none."""
    drawn = bars.filter(pc.field("lane") == "phase")["name"].to_pylist()
    is_on_gpu = (pc.field("step") == step) & (pc.field("device_ns") > 0)
    phases = run.phases().filter(is_on_gpu)["phase"].to_pylist()
    hidden = [phase for phase in LOOP if phase in phases and phase not in drawn]
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


def _more_timelines(run: Run, data: Mapping[str, Any], first: list[int]) -> list[_MoreTimeline]:
    """Return the slowest and the fastest step used, if they were saved and `MOST_BARS` has room.

    `data` are those of the step that is drawn first.
    """
    n_free = MOST_BARS - n_bars(data)
    walls_ns = {row["step"]: row["wall_ns"] for row in charts.step_rows(run.breakdown(), [], 0)}
    n_kernels = pc.sum(run.ranks["n_kernels"]).as_py() or 0
    if data["step"] not in walls_ns or n_kernels > MAX_KERNELS_OF_MORE_TIMELINES:
        return []
    timelines = []
    slowest = max(walls_ns, key=walls_ns.__getitem__)
    fastest = min(walls_ns, key=walls_ns.__getitem__)
    for which, step in (("the slowest", slowest), ("the fastest", fastest)):
        if walls_ns[step] == walls_ns[data["step"]]:
            continue
        try:
            bars = run.timeline(step, first)
        except DatasetError:
            # The run was saved without its operations.
            return []
        step_data = timeline_data(bars, run.steps(), first, [])
        if step_data is None:
            continue
        n_free -= n_bars(step_data)
        if n_free >= 0:
            timelines.append(_MoreTimeline(which, step_data, bars))
    return timelines


def straggler_table(
    stragglers: pa.Table, rank_summary: pa.Table, n_steps: int, names: RankNames | None = None
) -> Table | None:
    """Return how the others waited for each rank, the latest first.

    None for one rank, or where nothing was matched.
    """
    rows = sorted(stragglers.to_pylist(), key=lambda row: (-(row["lateness_ns"] or 0), row["rank"]))
    is_known = any(row["lateness_ns"] is not None for row in rows)
    if len(rows) <= 1 or not n_steps or not is_known:
        return None
    names = names or RankNames()
    medians_ns = {row["rank"]: row["step_time_ns"] for row in rank_summary.to_pylist()}

    def per_step(name: str) -> Callable[[Mapping[str, Any]], float | None]:
        return lambda row: None if row[name] is None else row[name] / n_steps

    wait_caused = per_step("wait_caused_ns")
    delay_name = OTHER_FIGURES["straggler_delay"].short
    delay = barred(rows, delay_name, per_step("lateness_ns"), "accent")
    median_step = Field(
        "median step",
        lambda row: ms_text(medians_ns.get(row["rank"])),
        hint="Median step time of the rank.",
    )
    arrived_last = Field(
        OTHER_FIGURES["arrived_last"].short,
        lambda row: f"{round(row['n_arrived_last'] / n_steps, 2):g}",
        hint="Collectives per step in which the rank arrived last.",
    )
    rank = Field("rank", lambda row: names.name(row["rank"]))
    fields = [
        rank,
        median_step,
        delay,
        Field(OTHER_FIGURES["wait_caused"].short, lambda row: ms_text(wait_caused(row))),
        barred(rows, FIGURES["wait_ns"].short, per_step("wait_ns"), "waiting"),
        arrived_last,
    ]
    note = (
        "Means per step. In each step, the straggler delay counts for the latest rank only. The "
        "other ranks have 0 for that step."
    )
    if len(rows) > MAX_LISTED:
        note += f" {len(rows) - MAX_LISTED} more ranks are in --json."
    caption = "Straggler delay and wait time, mean per step"
    return table_of(caption, rows[:MAX_LISTED], fields, note, is_close=True)


def idle_table(steps: pa.Table, unseen: str = "", whole: str = "step") -> Table | None:
    """Return idle time by cause, the largest first; None where it is not known.

    The times are means over `steps`, or of a capture.
    """
    means_ns = [(name, pc.mean(steps[name], skip_nulls=False).as_py()) for name in IDLE_CAUSES]
    rows = sorted(((cause, ns) for cause, ns in means_ns if ns), key=lambda row: -row[1])
    if not rows:
        return None
    wall_ns = pc.mean(steps["wall_ns"]).as_py()
    share_heading = "of the capture" if whole == "capture" else "of step time"
    share = Field(share_heading, lambda row: percent_text(row[1] / wall_ns))
    meaning = Field("meaning", lambda row: FIGURES[f"{row[0]}_per_step"].definition, "prose")
    fields = [
        Field("cause", lambda row: words.idle_cause(row[0]), "text"),
        barred(rows, f"idle per {whole}", itemgetter(1), "idle"),
        share,
        meaning,
    ]
    note = f"These times are lower bounds, because {unseen}." if unseen else None
    return table_of(f"Idle by cause, mean per {whole}", rows, fields, note, is_close=True)


def link_table(links: pa.Table) -> Table | None:
    """Return the connections between ranks, equal ones in one row; None where none is known."""
    connections_by_link = grouped(
        (itemgetter(*_LINK_KEY)(row), f"{row['from_rank']}\N{RIGHTWARDS ARROW}{row['to_rank']}")
        for row in links.to_pylist()
    )
    if not connections_by_link:
        return None
    rows = []
    for link, connections in connections_by_link.items():
        rows.append(dict(zip(_LINK_KEY, link, strict=True)) | {"connections": connections})
    path_hint = "The connection of the GPUs, from nvidia-smi topo -m."
    link_fields = [
        Field("kind", of("kind"), "text"),
        Field("transport", of("transport"), "text", "The transport that NCCL set up."),
        Field("path", of("path"), "text", path_hint),
        Field("peak bandwidth", of("nominal_bytes_per_s", bandwidth_text)),
        Field("source", of("nominal_source"), "text"),
    ]
    connection_fields = [
        Field("connections", lambda row: str(len(row["connections"]))),
        Field("from and to rank", lambda row: few(row["connections"], MAX_CONNECTIONS), "text"),
    ]
    fields = [*link_fields, *connection_fields]
    return table_of("Interconnect between ranks", rows, fields, is_close=True)


def nccl_rows(nccl: NcclFacts) -> list[tuple[str, str]]:
    """Return what the NCCL log tells of NCCL, as names and values."""
    nvls = {True: "set up", False: "not set up", None: "not in the log"}[nccl.nvls]
    return [
        ("version", nccl.version or absent),
        ("NVLink SHARP", nvls),
        *sorted(nccl.settings.items()),
    ]


def provenance(run: Run) -> list[tuple[str, str]]:
    """Return what identifies the run and its capture, as names and values."""
    header = run.header
    ranks = f"{header.n_ranks}"
    if header.world_size is not None:
        ranks = f"{header.n_ranks} of {header.world_size}"
    if header.has_shared_processes:
        ranks = words.ranks_text(header)
    steps = ", ".join(words.sources(run)) or "none marked"
    if run.is_capture:
        steps = "none: a capture"
    identity = [
        ("run id", header.run_id),
        ("label", header.label),
        ("captured", header.captured_at_utc or absent),
        ("ranks read, with GPU activity", ranks),
    ]
    hardware = [
        ("GPU", ", ".join(header.gpu_names) or absent),
        ("hosts", few(header.hosts, MAX_LISTED) or absent),
    ]
    versions = [
        ("Nsight Systems", ", ".join(header.nsys_versions) or absent),
        ("export schema", ", ".join(header.export_schema_versions) or absent),
    ]
    return [
        *identity,
        *hardware,
        *versions,
        ("steps", run.step_family or steps),
        *words.capture_rows(header.capture),
        ("nsyspipe", __version__),
    ]


def _devices_of(run: Run, row: Mapping[str, Any]) -> str:
    """Return the device of a rank that shares its process, else all devices of its process."""
    shares_process = row["rank"] in run.rank_names.names
    return str(row["device_id"] if shares_process else row["device_ids"])


def report_table(run: Run, listed: Sequence[int]) -> Table:
    """Return report, process, hardware and clock of the `listed` ranks."""
    device_hint = "CUDA ordinal inside the process."
    process_fields = [
        Field("rank", lambda row: run.rank_names.name(row["rank"])),
        Field("report", of("report"), "name"),
        Field("pid", of("pid")),
        Field("GPU index", lambda row: _devices_of(run, row), hint=device_hint),
    ]
    hardware_fields = [
        Field("GPU model", of("gpu_name"), "text"),
        Field("host", of("host"), "text"),
        Field("rank found from", of("rank_source"), "text"),
    ]
    figure_fields = [
        Field("kernels", of("n_kernels", count_text)),
        Field("communication kernels", of("n_comm", count_text)),
        Field("clock offset us", of("clock_offset_ns", ms_text), unit="us"),
        Field("clock error us", of("clock_error_ns", ms_text), unit="us"),
    ]
    fields = [*process_fields, *hardware_fields, *figure_fields]
    ranks = [row for row in run.ranks.to_pylist() if row["rank"] in listed]
    note = run_report.table_note(len(ranks), run.header.n_ranks)
    return table_of("Ranks and their reports", ranks, fields, note, is_close=True)
