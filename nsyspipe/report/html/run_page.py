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
# Ranks of a timeline that are drawn at once (a button shows the others), rows of the costliest, and
# calls.
_TIMELINE_RANKS = 8
_SHOWN_COSTS = 15
_SHOWN_CALLS = 8
_LISTED = 64  # ranks of a table, and hosts
_FIGURES = ("step_time_ns", "throughput_steps_per_s", *SHARES, "exposed_memory_share")
_MOST_READ = 2_000_000  # kernels: nobody waits minutes for a second timeline
_ONLY = "the only step used"
_ALIKE = ("comm_id", "transport", "path", "kind", "nominal_bytes_per_s", "nominal_source")
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
_DEFINITION = [
    Field(name, kind=kind)
    for name, kind in (
        ("column", "name"),
        ("unit", "text"),
        ("meaning", "prose"),
        ("source", "prose"),
    )
]


class Details(NamedTuple):
    """A table under its name, to be opened."""

    name: str
    about: str
    table: Table


def run_page(run: Run, top: int | None = None) -> str:
    """Return the page of a run as one HTML file, with so many of the costliest: complete, offline, the same bytes for the same run."""
    title = f"{run.header.label}: nsyspipe"
    identity = (RUN_ID, run.header.run_id)
    costs = {
        name: replace(one, is_close=True)
        for name, one in cost_tables(run, top or _SHOWN_COSTS).items()
    }
    return blocks_page(
        _blocks(run, costs),
        title,
        identity,
        scripts=_SCRIPTS,
        short={_ABOUT: "About"},
        head_name=_OVERVIEW,
    )


def _blocks(run: Run, costs: Mapping[str, Table]) -> Iterator[Any]:
    """Yield the first screen, then a section for each question that it leaves open."""
    yield from overview_blocks(run, run.telling_ranks(_LISTED))
    if run.host_steps().num_rows:
        yield from _host_section(run)
    if run.header.n_ranks:
        yield Heading("Timeline")
        yield from _timeline(run, run.telling_ranks(_TIMELINE_RANKS), run.telling_ranks(_LISTED))
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
    yield from host_blocks(run.host_steps(), _LISTED)


def _steps_section(run: Run) -> Iterator[Block | Chart]:
    """Yield step time over steps, then what a step consists of: phases, and idle time by cause."""
    (summary,) = run.summary().to_pylist()
    yield Heading("Steps")
    yield from _step_chart(run)
    yield Heading("Phases", SUBSECTION)
    phases = run_report.phase_table(run)
    if phases:
        yield replace(phases, is_close=True)
        yield from (Sentence(text) for text in [words.phases_text(run)] if text)
    elif run.is_capture:
        yield Sentence("There are no phases, because there are no steps.")
    else:
        yield Sentence("No NVTX range inside the steps has the name of a phase.")
    yield Heading("Idle time by cause", SUBSECTION)
    yield from _idle_blocks(run, summary)


def _idle_blocks(run: Run, summary: Mapping[str, Any]) -> Iterator[Block]:
    table = idle_table(
        run.breakdown(), words.unseen_idle(run), "capture" if run.is_capture else "step"
    )
    if table is not None:
        yield table
    elif summary["idle_share"] == 0:
        yield Sentence("The GPUs are never idle.")
    else:
        _, unknown = run_report.why_null("idle_causes", run, summary)
        yield Sentence(f"The causes of idle time are not known: {unknown}.")
    calls = run.idle_calls().to_pylist()[:_SHOWN_CALLS]
    if calls:
        fields = [
            Field("call", of("call"), "name"),
            Field("idle per step", of("blocked_ns_per_step", ms_text)),
        ]
        yield table_of("Calls in which the CPU was blocked", calls, fields, is_close=True)


def _ranks_section(run: Run) -> Iterator[Block]:
    """Yield which rank the others wait for; nothing for one rank, which waits for nobody."""
    (summary,) = run.summary().to_pylist()
    if run.header.n_ranks == 1 == (run.header.n_job_ranks or 1):
        return
    yield Heading("Ranks")
    late = straggler_table(
        run.stragglers(), run.rank_summary(), summary["n_summary_steps"], run.rank_names
    )
    yield late or Sentence(run_report.without_waits(run))
    if summary["wait_share"] and PIPELINE in parallelism(run.traffic()):
        yield Sentence(
            "Pipeline stages also wait for each other: in the bubble, or for a stage that "
            "launches late. That wait time "
            "makes no rank a straggler here."
        )


def _communication_section(run: Run, costs: Mapping[str, Table]) -> Iterator[Block | Chart]:
    """Yield the collectives of a step, what they cost by kind and by process group, and what they run over."""
    yield Heading("Communication")
    yield from (
        Sentence(_sentence(text))
        for text in (words.link_text(run), run_report.traffic_of(run))
        if text
    )
    yield from _collectives(run, costs)
    is_alone = run.header.n_ranks == 1 == (run.header.n_job_ranks or 1)
    if is_alone:
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
    drawn = charts.collective_charts(medians, whole, run.rank_names)
    if not drawn:
        is_known = run.summary()["comm_share"][0].as_py() is not None
        of_whole = "the capture" if run.is_capture else "the steps used"
        none = f"There is no communication in {of_whole}."
        yield Sentence(
            none if is_known else "Communication is not known. The notes have the reason."
        )
        return
    measured = "Each column shows how long the collective takes."
    if any(row["transfer"] is not None for row in medians.rows):
        measured = (
            "Each column shows the transfer time of the collective, and on top of it the "
            "longest time that a rank waits "
            "in it for the others."
        )
    order, *sizes = drawn
    yield replace(
        order, hint=f"The collectives are in the order of {whole}. {measured} {medians.note}"
    )
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


def _about_section(run: Run) -> Iterator[Any]:
    """Yield what the metrics rest on: notes, all metrics, the capture, and the definitions of all columns."""
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
    yield report_table(run, run.telling_ranks(_LISTED))
    yield Heading("Columns", SUBSECTION)
    yield Sentence(
        "Units and formulas of all columns of the tables. nsyspipe explain COLUMN explains "
        "each of them."
    )
    yield Fold("All columns", [*_definitions()])


def _denominator_text(run: Run) -> str:
    """Return what the metrics of this list are shares of: here of all ranks, above of the slowest."""
    if run.header.n_ranks == 1:
        return "These metrics are means over the steps used. The step time is a median."
    return (
        "These metrics are means over all ranks and all steps used, and the step time is a "
        "median. The overview shows the "
        "slowest rank of each step instead."
    )


def _renamed(tiles: Sequence[Tile]) -> Iterator[Tile]:
    """Yield tiles, the median step time under a name that differs from the mean of the overview."""
    for tile in tiles:
        yield (
            replace(tile, name="median step time")
            if tile.name == FIGURES["step_time_ns"].short
            else tile
        )


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
            Table(f"Columns of {schema.name}", _DEFINITION, rows, is_close=True),
        )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _pairs(caption: str, rows: Sequence[tuple[str, str]]) -> Table:
    return Table(
        caption, [Field("what", kind="text"), Field(caption, kind="name")], rows, is_close=True
    )


def _step_chart(run: Run) -> Iterator[Block | Chart]:
    n_ranks = run.ranks.num_rows
    has_comm = run.summary()["comm_share"][0].as_py() != 0
    steps = [] if run.is_capture else charts.step_rows(run.steps(), run.skipped_steps, n_ranks)
    columns = charts.step_chart(steps, has_comm=has_comm, names=run.rank_names)
    if columns is None:
        rest = (
            ", because the metrics are of the capture as a whole"
            if run.is_capture
            else " with GPU activity"
        )
        yield Sentence(f"There are no steps{rest}.")
        return
    yield replace(columns, hint=_steps_hint(run, steps, is_joined=bool(columns.caption)))


def _steps_hint(run: Run, steps: Sequence[Mapping[str, Any]], *, is_joined: bool) -> str:
    """Return how to read the chart of the steps."""
    which = "the slowest of some consecutive steps" if is_joined else "a step"
    hints = [f"Each column is {which}."]
    if run.header.n_ranks > 1:
        hints = [
            (
                f"Each column is {which}, on its slowest rank. The dots are the ranks, and the "
                "line is their median."
            )
        ]
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
    known_to = f", accurate to {max(errors) / 1000:.1f} us" if max(errors) else ""
    return f"The ranks share one clock{known_to}."


def _timeline(run: Run, first: list[int], listed: Sequence[int]) -> Iterator[Block | Chart]:
    bars = run.timeline()
    data = timeline_data(bars, run.steps(), first, run.ranks["rank"].to_pylist())
    if data is None:
        yield Sentence(
            "There is no timeline: the run was saved without one, or no step is complete on "
            "every rank."
        )
        return
    others = _other_steps(run, data, first)
    data["others"] = [step for _, step, _ in others]
    choices = [
        _choice(run, _ONLY if n_steps(run) == 1 else "closest to the median", data, bars, listed),
        *(_choice(run, *one, first) for one in others),
    ]
    n_kept = len(data["ranks"])
    n_ranks = run.ranks.num_rows
    left_out = (
        f"{n_kept} of {n_ranks} ranks are in this file. --perfetto writes all."
        if n_kept < n_ranks
        else ""
    )
    label = "Timeline of the capture" if run.is_capture else "Timeline of the step"
    drawn = (lane_legend(step["ranks"], step["names"]) for step in (data, *data["others"]))
    colours = [*dict.fromkeys(chain.from_iterable(drawn))]
    begin = (
        "Times count from the first rank's start." if n_ranks > 1 else "Times count from the start."
    )
    hint = " ".join(filter(None, [begin, _clock_text(run), IS_PAINTED]))
    chart = Chart(
        "timeline", "Timeline", label, 120, data, None, left_out, colours, has_zoom=True, hint=hint
    )
    yield replace(chart, choices=choices, n_more=n_kept - data["n_shown"])


def _choice(
    run: Run, what: str, data: dict[str, Any], bars: pa.Table, listed: Sequence[int]
) -> Choice:
    step = data["step"]
    data["collectives"] = charts.collective_facts(run.collectives(), step)
    data |= charts.names_in_data(run.rank_names)
    of_used = "" if what == _ONLY else " of the steps used"
    texts = [] if run.is_capture else [f"Step {step}: {what}{of_used}."]
    stretch = data["stretch"]
    if stretch:
        length = ms_text(stretch["end"] - stretch["start"])
        slowest = f"rank {run.rank_names.name(stretch['rank'])} (the slowest rank)"
        place = slowest if data["n_ranks"] > 1 else "the GPU"
        texts.append(f"The dashed box is the longest time without compute on {place}: {length}.")
    drawn = bars.filter(pc.field("lane") == "phase")["name"].to_pylist()
    ran = (
        run.phases()
        .filter((pc.field("step") == step) & (pc.field("device_ns") > 0))["phase"]
        .to_pylist()
    )
    outside = [phase for phase in LOOP if phase in ran and phase not in drawn]
    if outside:
        subject = (
            f"The {outside[0]} phase has"
            if len(outside) == 1
            else f"The {' and '.join(outside)} phases have"
        )
        texts.append(
            f"{subject} no bar, because the GPU ran that work before the step began or after "
            "the step ended. "
            "The table of phases has the time."
        )
    return Choice(
        step,
        what,
        [" ".join(texts)],
        timeline_table(bars, run.steps(), listed, is_capture=run.is_capture, names=run.rank_names),
    )


def _other_steps(
    run: Run, data: Mapping[str, Any], first: list[int]
) -> list[tuple[str, dict[str, Any], pa.Table]]:
    """Return the slowest and the fastest step of the figures as `timeline_data`, as far as there is room and they were saved."""
    room = MOST_BARS - n_bars(data)
    steps = []
    times = {row["step"]: row["wall_ns"] for row in charts.step_rows(run.breakdown(), [], 0)}
    if data["step"] not in times or (pc.sum(run.ranks["n_kernels"]).as_py() or 0) > _MOST_READ:
        return []
    for what, choose in (("the slowest", max), ("the fastest", min)):
        number = choose(times, key=times.__getitem__)
        if times[number] == times[data["step"]]:
            continue
        try:
            bars = run.timeline(number, first)
        except DatasetError:  # saved without its operations
            return []
        step = timeline_data(bars, run.steps(), first, [])
        if step is not None and (room := room - n_bars(step)) >= 0:
            steps.append((what, step, bars))
    return steps


def straggler_table(
    stragglers: pa.Table, rank_summary: pa.Table, n_steps: int, names: RankNames | None = None
) -> Table | None:
    """Return how the others waited for each rank, the latest first; None for one rank, or where nothing was matched."""
    rows = sorted(stragglers.to_pylist(), key=lambda row: (-(row["lateness_ns"] or 0), row["rank"]))
    if len(rows) < 2 or not n_steps or all(row["lateness_ns"] is None for row in rows):  # noqa: PLR2004 - two ranks
        return None
    times = {row["rank"]: row["step_time_ns"] for row in rank_summary.to_pylist()}

    def per_step(name: str) -> Callable[[Mapping[str, Any]], float | None]:
        return lambda row: None if row[name] is None else row[name] / n_steps

    names = names or RankNames()
    fields = [
        Field("rank", lambda row: names.name(row["rank"])),
        Field(
            "median step",
            lambda row: ms_text(times.get(row["rank"])),
            hint="Median step time of the rank.",
        ),
        barred(rows, OTHER_FIGURES["straggler_delay"].short, per_step("lateness_ns"), "accent"),
        Field(
            OTHER_FIGURES["wait_caused"].short, lambda row: ms_text(per_step("wait_caused_ns")(row))
        ),
        barred(rows, FIGURES["wait_ns"].short, per_step("wait_ns"), "waiting"),
        Field(
            OTHER_FIGURES["arrived_last"].short,
            lambda row: f"{round(row['n_arrived_last'] / n_steps, 2):g}",
            hint="Collectives per step in which the rank arrived last.",
        ),
    ]
    note = (
        "Means per step. In each step, the straggler delay counts for the latest rank only. The "
        "other ranks have 0 for that step."
    )
    more = f" {len(rows) - _LISTED} more ranks are in --json." if len(rows) > _LISTED else ""
    return table_of(
        "Straggler delay and wait time, mean per step",
        rows[:_LISTED],
        fields,
        note + more,
        is_close=True,
    )


def idle_table(steps: pa.Table, unseen: str = "", whole: str = "step") -> Table | None:
    """Return idle time per step by cause, mean of `steps` or of a capture, the largest first; None where it is not known."""
    causes = [(name, pc.mean(steps[name], skip_nulls=False).as_py()) for name in IDLE_CAUSES]
    rows = sorted(((cause, ns) for cause, ns in causes if ns), key=lambda row: -row[1])
    wall = pc.mean(steps["wall_ns"]).as_py()
    fields = [
        Field("cause", lambda row: words.idle_cause(row[0]), "text"),
        barred(rows, f"idle per {whole}", itemgetter(1), "idle"),
        Field(
            "of the capture" if whole == "capture" else "of step time",
            lambda row: percent_text(row[1] / wall),
        ),
        Field("meaning", lambda row: FIGURES[f"{row[0]}_per_step"].definition, "prose"),
    ]
    note = f"These times are lower bounds, because {unseen}." if unseen else None
    return (
        table_of(f"Idle by cause, mean per {whole}", rows, fields, note, is_close=True)
        if rows
        else None
    )


def link_table(links: pa.Table) -> Table | None:
    """Return the edges between ranks, those that are alike in one row; None where nothing is known of them."""
    edge = "{from_rank}\N{RIGHTWARDS ARROW}{to_rank}".format_map
    groups = grouped((tuple(row[name] for name in _ALIKE), edge(row)) for row in links.to_pylist())
    rows = [
        dict(zip(_ALIKE, group, strict=True)) | {"edges": edges} for group, edges in groups.items()
    ]
    fields = [
        Field("kind", of("kind"), "text"),
        Field("transport", of("transport"), "text", "The transport that NCCL set up."),
        Field("path", of("path"), "text", "The connection of the GPUs, from nvidia-smi topo -m."),
        Field("peak bandwidth", of("nominal_bytes_per_s", bandwidth_text)),
        Field("source", of("nominal_source"), "text"),
        Field("connections", lambda row: str(len(row["edges"]))),
        Field("from and to rank", lambda row: few(row["edges"], 12), "text"),
    ]
    return table_of("Interconnect between ranks", rows, fields, is_close=True) if rows else None


def nccl_rows(nccl: NcclFacts) -> list[tuple[str, str]]:
    """Return what NCCL says of itself, as pairs."""
    nvls = {True: "set up", False: "not set up", None: "not in the log"}[nccl.nvls]
    return [
        ("version", nccl.version or absent),
        ("NVLink SHARP", nvls),
        *sorted(nccl.settings.items()),
    ]


def provenance(run: Run) -> list[tuple[str, str]]:
    """Return what identifies the run and its capture, as pairs."""
    header = run.header
    world = run.header.world_size
    ranks = f"{header.n_ranks}" + (f" of {world}" if world is not None else "")
    if header.has_shared_processes:
        ranks = words.ranks_text(header)
    steps = "none: a capture" if run.is_capture else ", ".join(words.sources(run)) or "none marked"
    return [
        ("run id", header.run_id),
        ("label", header.label),
        ("captured", header.captured_at_utc or absent),
        ("ranks read, with GPU activity", ranks),
        ("GPU", ", ".join(header.gpu_names) or absent),
        ("hosts", few(header.hosts, _LISTED) or absent),
        ("Nsight Systems", ", ".join(header.nsys_versions) or absent),
        ("export schema", ", ".join(header.export_schema_versions) or absent),
        ("steps", run.step_family or steps),
        *words.capture_rows(header.capture),
        ("nsyspipe", __version__),
    ]


def _devices_of(run: Run, row: Mapping[str, Any]) -> str:
    """Return the device of a rank whose process has others too, else all devices of its process."""
    return str(row["device_id"] if row["rank"] in run.rank_names.names else row["device_ids"])


def report_table(run: Run, listed: Sequence[int]) -> Table:
    """Return of ranks that are `listed` which report and process each rank is, and how well its clock fits the others'."""
    fields = [
        Field("rank", lambda row: run.rank_names.name(row["rank"])),
        Field("report", of("report"), "name"),
        Field("pid", of("pid")),
        Field(
            "GPU index", lambda row: _devices_of(run, row), hint="CUDA ordinal inside the process."
        ),
        Field("GPU model", of("gpu_name"), "text"),
        Field("host", of("host"), "text"),
        Field("rank found from", of("rank_source"), "text"),
        Field("kernels", of("n_kernels", count_text)),
        Field("communication kernels", of("n_comm", count_text)),
        Field("clock offset us", of("clock_offset_ns", ms_text), unit="us"),
        Field("clock error us", of("clock_error_ns", ms_text), unit="us"),
    ]
    ranks = [row for row in run.ranks.to_pylist() if row["rank"] in listed]
    note = run_report.table_note(len(ranks), run.header.n_ranks)
    return table_of("Ranks and their reports", ranks, fields, note, is_close=True)
