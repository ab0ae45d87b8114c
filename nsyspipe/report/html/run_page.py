"""The page of one run: verdict and key figures first, provenance and definitions last, and the page itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from nsyspipe.analysis.kernels import COLLECTIVES, KERNELS, TRAFFIC
from nsyspipe.analysis.traffic import PIPELINE, parallelism
from nsyspipe.errors import DatasetError
from nsyspipe.findings.judge import CAUSES
from nsyspipe.model.figures import FIGURES
from nsyspipe.model.names import few, grouped
from nsyspipe.model.schema import DESCRIBED, IDLE_CAUSES
from nsyspipe.model.side_files import NcclFacts
from nsyspipe.report import run as run_report, words
from nsyspipe.report.blocks import Block, Facts, Field, Heading, Sentence, Table, Tiles, Troubles, barred, of, table_of
from nsyspipe.report.costs import SLOWER, cost_tables
from nsyspipe.report.findings import Finding, findings_of, of_capture, order_notes
from nsyspipe.report.html import run_charts as charts
from nsyspipe.report.html.page import RUN_ID, Chart, Choice, blocks_page
from nsyspipe.report.html.timeline import IS_PAINTED, MOST_BARS, lane_legend, n_bars, timeline_data, timeline_table
from nsyspipe.report.run import LOOP, SHARES, host_blocks, key_figures, left_out_note, rank_rows, traffic_of
from nsyspipe.report.units import absent, bandwidth_text, count_text, ms_text, percent_text
from nsyspipe.report.verdict import verdict
from nsyspipe.run.rank_names import RankNames
from nsyspipe.run.run import Run
from nsyspipe.run.work import n_steps
from nsyspipe.version import __version__

_SCRIPTS = ("step_bars", "timeline_layout", "timeline_draw", "timeline", "step_columns", "collectives")
# Ranks that charts draw, and those of a timeline that are drawn at once; a button shows the others.
_SHOWN_RANKS, _TIMELINE_RANKS, _SHOWN_COSTS, _SHOWN_CALLS = 12, 8, 15, 8
_LISTED = 64  # ranks of a table, and hosts
_FINDING_HEIGHT, _STEPS_HEIGHT = 160, 480  # px, about; the latter of steps, and of what is above the bars of ranks
_FIGURES = ("step_time_ns", "throughput_steps_per_s", *SHARES, "exposed_memory_share")
_MOST_READ = 2_000_000  # kernels: nobody waits minutes for a second timeline
_ONLY = "the only one"
_WHOSE_BOUNDS = (
    " Step time is each step's slowest rank's, a bound the deciding rank's; figures above are means over ranks."
)
_ALIKE = ("comm_id", "transport", "path", "kind", "nominal_bytes_per_s", "nominal_source")
_DEFINED = (
    "summary", "steps", "phases", "collectives", "stragglers", "traffic", "kernels", "costs", "idle_calls", "links", "findings", "timeline",
)  # fmt: skip
_DEFINITION = [Field(name, kind=kind) for name, kind in (
    ("column", "name"), ("unit", "text"), ("meaning", "prose"), ("source", "prose"),
)]  # fmt: skip


class Findings(NamedTuple):
    """What to change by cause, each with its bound and its evidence."""

    by_cause: Sequence[tuple[str, Sequence[Finding]]]


class Details(NamedTuple):
    """A table under its name, to be opened."""

    name: str
    about: str
    table: Table


def run_page(run: Run, top: int | None = None) -> str:
    """Return the page of a run as one HTML file, with so many of the costliest: complete, offline, the same bytes for the same run."""
    title, identity = f"{run.header.label}: nsyspipe", (RUN_ID, run.header.run_id)
    # What to change, and beside it where time goes; beside a long list steps have room, too.
    n_beside = 0 if run.host_steps().num_rows else 3 if _has_long_list(run) else 2
    costs = {name: replace(one, is_close=True) for name, one in cost_tables(run, top or _SHOWN_COSTS).items()}
    if (kernels := costs.get(KERNELS)) and any(row[-1] != absent for row in kernels.rows):
        costs[KERNELS] = replace(kernels, note=" ".join(filter(None, [f"Slower beside comm: {SLOWER}.", kernels.note])))
    return blocks_page(_blocks(run, costs), title, identity, scripts=_SCRIPTS)


def _has_long_list(run: Run) -> bool:
    bars = len(run.telling_ranks(_SHOWN_RANKS)) * charts.BAR_HEIGHT
    return not run.is_capture and len(findings_of(run)) * _FINDING_HEIGHT > bars + _STEPS_HEIGHT


def _blocks(run: Run, costs: Mapping[str, Table]) -> Iterator[Block | Chart | Findings | Details]:
    summary = run.summary().to_pylist()[0]
    yield from _head(run, summary)
    if run.host_steps().num_rows:
        yield Heading("Host steps")
        yield Sentence(
            "How long each NVTX step range lasted on the host, per process. There is no device to compare it with: all "
            "figures of the device are not recorded."
        )
        yield from host_blocks(run.host_steps(), _LISTED)
    yield from _what_to_change(run, has_comm=summary["comm_share"] is not None)
    yield from _charts(run, costs, rank_rows(run))
    yield Heading("Stragglers")
    late = straggler_table(run.stragglers(), run.rank_summary(), summary["n_summary_steps"], run.rank_names)
    yield late or Sentence(run_report.without_waits(run))
    if summary["wait_share"] and PIPELINE in parallelism(run.traffic()):
        yield Sentence(
            "What stages of a pipeline wait for each other, in its bubble or for one that launches late, makes no rank late here."
        )
    yield Heading("Phases")
    if phases := run_report.phase_table(run):
        yield replace(phases, is_close=True)
        yield from (Sentence(text) for text in [words.phases_text(run)] if text)
    else:
        unnamed = "No NVTX range inside the steps is named like a phase."
        yield Sentence("Phases are of steps, and there are none." if run.is_capture else unnamed)
    _, unknown = run_report.why_null("idle_causes", run, summary)
    why = "Devices are never idle." if summary["idle_share"] == 0 else f"Why devices idle is not known: {unknown}."
    yield idle_table(run.breakdown(), words.unseen_idle(run), "capture" if run.is_capture else "step") or Sentence(why)
    if calls := run.idle_calls().to_pylist()[:_SHOWN_CALLS]:
        fields = [Field("call", of("call"), "name"), Field("idle per step", of("blocked_ns_per_step", ms_text))]
        yield table_of("Calls that hosts were blocked in", calls, fields, is_close=True)
    yield Heading("Kernels")
    yield costs.get(KERNELS) or Sentence("No kernels were recorded.")
    yield Heading("Link")
    is_alone = run.header.n_ranks == 1 == (run.header.n_job_ranks or 1)
    not_known = "Not known. Pass --nccl-log (from a run with NCCL_DEBUG=INFO) and --topology (nvidia-smi topo -m)."
    yield (links := link_table(run.links())) or Sentence("One rank: there is no link." if is_alone else not_known)
    if run.nccl is not None:
        yield _pairs("NCCL, as its log says", nccl_rows(run.nccl))
    yield Heading("Problems")
    if troubles := words.troubles(run.problem_rows):
        yield Sentence("What could not be read or answered, and what would bring it back.")
        yield Troubles(troubles, is_close=True)
    else:
        yield Sentence(f"None{'' if links or is_alone else ', but the link is not known'}.")
    yield Heading("Definitions")
    yield Sentence(
        "How each number is defined. C is the union of a rank's compute operations, M of communication, P of copies and memsets, "
        "clipped to the step's window. compute + exposed communication + exposed copies + idle = step, exactly."
    )
    for schema in map(DESCRIBED.__getitem__, _DEFINED):
        rows = [[one.name, one.unit, one.doc, one.source or absent] for one in schema.columns]
        yield Details(schema.name, schema.doc, Table(f"Columns of {schema.name}", _DEFINITION, rows, is_close=True))
    yield Heading("Provenance")
    yield _pairs("recorded", provenance(run))
    yield report_table(run, run.telling_ranks(_LISTED))


def _head(run: Run, summary: Mapping[str, Any]) -> Iterator[Block]:
    lead, *lines = verdict(run).split("\n")
    yield Sentence(lead, "bold")
    yield from [Sentence(" ".join(lines), verdict="gain")] if lines else []
    captured, shares = run.header.captured_at_utc, words.shares_text(run)
    when = captured and f"captured {captured[:10]} {captured[11:16]} UTC"
    yield Facts([*filter(None, [*words.subject_parts(run, summary), *words.hosts_text(run), when, shares])], "Run")
    why = [words.link_text(run), traffic_of(run)]
    if (summary["idle_share"] or 0.0) >= 0.05:  # noqa: PLR2004 - much enough for the first screen
        why.append(words.idle_text(run.breakdown(), run.idle_calls(), words.unseen_idle(run)))
    yield from (Sentence(f"{text[0].upper()}{text[1:]}.") for text in why if text)
    yield Tiles(key_figures(run, _FIGURES))


def _what_to_change(run: Run, *, has_comm: bool) -> Iterator[Block | Findings]:
    yield Heading("What to change first")
    if findings := findings_of(run):
        groups = by_cause(findings)
        if len(findings) > 1:
            order, whose = "; ".join(order_notes(findings)), _WHOSE_BOUNDS * (run.header.n_ranks > 1)
            how = " Grouped by cause, groups by their first." * (len(groups) > 1)
            yield Sentence(f"{order[:1].upper()}{order[1:]}.{how}{whose}")
        yield Findings(groups)
        listed = enumerate((one for _, group in groups for one in group), start=1)
        refused = grouped((one.refused, number) for number, one in listed if one.refused and one.share)
        yield from (Sentence(f"No likely gain is told of {few(at, len(at))}: {text}.") for text, at in refused.items())
    else:
        nothing = "Nothing found to change."
        if run.is_capture:
            nothing = "Nothing was judged: what a change saves is a part of a step, and there are no steps."
        elif not has_comm:
            fixes = [row["fix"] for row in run.problem_rows if row["severity"] == "error" and row["fix"]]
            fix = "; fix: ".join(["", *fixes[:1]])
            nothing = f"Hardly anything could be judged, as communication is not known{fix}."
        is_open = any(row["code"] == "not-judged" for row in run.problem_rows)
        yield Sentence(nothing + " What could not be judged is under Problems." * is_open)
    yield from of_capture(run)


def by_cause(findings: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    """Return findings of one cause together, in the order of the first of each."""
    causes = {name: cause for cause, names in CAUSES.items() for name in names}
    return [*grouped((causes.get(one.id, "others"), one) for one in findings).items()]


def _pairs(caption: str, rows: Sequence[tuple[str, str]]) -> Table:
    return Table(caption, [Field("what", kind="text"), Field(caption, kind="name")], rows, is_close=True)


def _charts(run: Run, costs: Mapping[str, Table], rows: Sequence[Mapping[str, Any]]) -> Iterator[Block | Chart]:
    whole, over = "a step", "mean of the steps in the figures"
    if run.is_capture:
        whole, over = "the capture", "from the first operation to the end of the last"
    elif n_steps(run) == 1:
        over = "the only one in the figures"
    medians = charts.collective_medians(run.collectives(), whole)
    collectives = charts.collective_charts(medians, whole, run.rank_names)
    has_comm = bool(collectives)
    unseen = words.unseen_idle(run)
    least = f" Idle is at least that: {unseen}." if unseen else ""
    drawn, listed = (run.telling_ranks(most) for most in (_SHOWN_RANKS, _LISTED))
    yield Heading("Time")
    chart_of = partial(charts.rank_chart, is_capture=run.is_capture, has_comm=has_comm, names=run.rank_names)
    if bars := chart_of(run.breakdown(), drawn, listed, caption=left_out_note(len(drawn), len(rows))):
        thin = " Thin bar: communication, hidden or not, split into waiting for other ranks and transfer."
        split = thin if any(pair in bars.legend for pair in charts.THIN) else ""
        yield Sentence(f"Where the time of {whole} goes per rank, {over}.{split}{least}")
        yield bars
    else:
        yield Sentence("No step has a window on every rank, so there is nothing to split.")
    steps = [*_steps(run, len(rows), least, has_comm=has_comm)]
    is_early = _has_long_list(run)
    yield from steps if is_early else ()
    yield Heading("Timeline")
    yield from _timeline(run, run.telling_ranks(_TIMELINE_RANKS), listed)
    yield from () if is_early else steps
    yield Heading("Collectives")
    if has_comm:
        measured = "how long each takes"
        if any(row["transfer"] is not None for row in medians.rows):
            measured = "transfer with all ranks there, and the longest that a rank waits in it for the others"
        yield Sentence(f"In the order of {whole}: {measured}. {medians.note}")
        sizes: list[Any] = [Sentence("Message size against bus bandwidth, by medians.")] * bool(collectives[1:])
        yield from (*collectives[:1], *sizes, *collectives[1:])
        hidden = Sentence("Not known: CUDA graphs that were captured as a whole may hold more.")
        yield costs.get(COLLECTIVES, hidden)
        yield Heading("Traffic")
        yield costs.get(TRAFFIC, hidden)
    else:
        none = f"There is no communication in {'the capture' if run.is_capture else 'the steps of the figures'}."
        is_known = run.summary()["comm_share"][0].as_py() is not None
        yield Sentence(none if is_known else "Not known: what was not recorded is under Problems.")


def _steps(run: Run, n_ranks: int, least: str, *, has_comm: bool) -> Iterator[Block | Chart]:
    yield Heading("Steps")
    steps = [] if run.is_capture else charts.step_rows(run.steps(), run.skipped_steps, n_ranks)
    if columns := charts.step_chart(steps, has_comm=has_comm, names=run.rank_names):
        all_ranks = " on its slowest rank; dots are the ranks, the line their median" if n_ranks > 1 else ""
        one = "the slowest of some consecutive steps" if columns.caption else "a step"
        shaded = " Shaded: not in the figures." if any(row["mark"] for row in steps) else ""
        shaded += " Dashed: not recorded." if least else ""
        yield Sentence(f"Each column is {one}{all_ranks}.{shaded}{least}")
        yield columns
    else:
        rest = ": the figures are of the capture as a whole." if run.is_capture else " with GPU activity."
        yield Sentence(f"There are no steps{rest}")


def _clock_text(run: Run) -> str:
    errors, codes = run.ranks["clock_error_ns"].to_pylist(), [row["code"] for row in run.problem_rows]
    if len(errors) < 2:  # noqa: PLR2004 - nothing to compare
        return ""
    if "no-common-clock" in codes:
        return "; clocks of the ranks do not agree: compare bars within a rank only"
    if None in errors:
        return "; how well the clocks of the ranks agree is not known"
    known_to = f", to {max(errors) / 1000:.1f} us" if max(errors) else ""
    return f"; ranks share one clock{known_to}"


def _timeline(run: Run, first: list[int], listed: Sequence[int]) -> Iterator[Block | Chart]:
    bars = run.timeline()
    data = timeline_data(bars, run.steps(), first, run.ranks["rank"].to_pylist())
    if data is None:
        yield Sentence("There is no timeline: the run was saved without one, or no step has a window on every rank.")
        return
    yield Sentence(f"Times count from the first rank's start{_clock_text(run)}.")
    others = _other_steps(run, data, first)
    data["others"] = [step for _, step, _ in others]
    choices = [
        _choice(run, _ONLY if n_steps(run) == 1 else "closest to the median", data, bars, listed),
        *(_choice(run, *one, first) for one in others),
    ]
    n_kept, n_ranks = len(data["ranks"]), run.ranks.num_rows
    left_out = f" {n_kept} of {n_ranks} ranks are in this file; --perfetto writes all." if n_kept < n_ranks else ""
    label = "Timeline of the capture" if run.is_capture else "Timeline of the step"
    drawn = (lane_legend(step["ranks"], step["names"]) for step in (data, *data["others"]))
    colours = [*dict.fromkeys(chain.from_iterable(drawn))]
    chart = Chart("timeline", "Timeline", label, 120, data, None, IS_PAINTED + left_out, colours, has_zoom=True)
    yield replace(chart, choices=choices, n_more=n_kept - data["n_shown"])


def _choice(run: Run, what: str, data: dict[str, Any], bars: pa.Table, listed: Sequence[int]) -> Choice:
    step = data["step"]
    data["collectives"] = charts.collective_facts(run.collectives(), step)
    data |= charts.names_in_data(run.rank_names)
    texts = [] if run.is_capture else [f"Step {step}: {what}{' of those' * (what != _ONLY)} in the figures."]
    if stretch := data["stretch"]:
        length = ms_text(stretch["end"] - stretch["start"])
        which, on = (
            ("slowest ", f" on rank {run.rank_names.name(stretch['rank'])}") if data["n_ranks"] > 1 else ("", "")
        )
        texts.append(f"Dashed: where the {which}rank is longest without compute: {length}{on}.")
    drawn = bars.filter(pc.field("lane") == "phase")["name"].to_pylist()
    ran = run.phases().filter((pc.field("step") == step) & (pc.field("device_ns") > 0))["phase"].to_pylist()
    if outside := [phase for phase in LOOP if phase in ran and phase not in drawn]:
        texts.append(
            f"No bar for {few(outside, len(LOOP))}: what this step launched in it ran on the device before the step began or after it "
            "ended there. Times of it under Phases are of what ran during this step, launched in the step before or after."
        )
    return Choice(
        step, what, texts, timeline_table(bars, run.steps(), listed, is_capture=run.is_capture, names=run.rank_names)
    )


def _other_steps(run: Run, data: Mapping[str, Any], first: list[int]) -> list[tuple[str, dict[str, Any], pa.Table]]:
    """Return the slowest and the fastest step of the figures as `timeline_data`, as far as there is room and they were saved."""
    room, steps = MOST_BARS - n_bars(data), []
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
        Field("median step", lambda row: ms_text(times.get(row["rank"])), hint="of the rank's windows"),
        barred(rows, "late", per_step("lateness_ns"), "accent", "the longest that all others waited for one rank, of each step, for the rank that made it"),
        Field("wait caused", lambda row: ms_text(per_step("wait_caused_ns")(row)), hint="how much later it came than the last other, summed over collectives"),
        barred(rows, "waits itself", per_step("wait_ns"), "waiting", "for other ranks, inside communication, each moment once"),
        Field("arrived last,\ncollectives per step", lambda row: f"{round(row['n_arrived_last'] / n_steps, 2):g}", hint="collectives in which it arrived last, alone"),
    ]  # fmt: skip
    note = (
        "Means per step. Late: of each step the longest that all others waited for one rank, counted for that rank only: one that "
        "was late by less has 0. Wait caused sums over collectives the time that all others wait for it: its start less the start before it."
    )
    more = f" And {len(rows) - _LISTED} more ranks; --json has all." if len(rows) > _LISTED else ""
    return table_of("Who the others wait for, mean per step", rows[:_LISTED], fields, note + more, is_close=True)


def idle_table(steps: pa.Table, unseen: str = "", whole: str = "step") -> Table | None:
    """Return idle time per step by cause, mean of `steps` or of a capture, the largest first; None where it is not known."""
    causes = [(name, pc.mean(steps[name], skip_nulls=False).as_py()) for name in IDLE_CAUSES]
    rows = sorted(((cause, ns) for cause, ns in causes if ns), key=lambda row: -row[1])
    wall = pc.mean(steps["wall_ns"]).as_py()
    fields = [
        Field("cause", lambda row: words.idle_cause(row[0]), "text"),
        barred(rows, f"idle per {whole}", itemgetter(1), "idle"),
        Field("of the capture" if whole == "capture" else "of step time", lambda row: percent_text(row[1] / wall)),
        Field("meaning", lambda row: FIGURES[f"{row[0]}_per_step"].definition, "prose"),
    ]
    note = f"At least that: {unseen}." if unseen else None
    return table_of(f"Idle by cause, mean per {whole}", rows, fields, note, is_close=True) if rows else None


def link_table(links: pa.Table) -> Table | None:
    """Return the edges between ranks, those that are alike in one row; None where nothing is known of them."""
    edge = "{from_rank}\N{RIGHTWARDS ARROW}{to_rank}".format_map
    groups = grouped((tuple(row[name] for name in _ALIKE), edge(row)) for row in links.to_pylist())
    rows = [dict(zip(_ALIKE, group, strict=True)) | {"edges": edges} for group, edges in groups.items()]
    fields = [
        Field("kind", of("kind"), "text"),
        Field("transport", of("transport"), "text", "what NCCL set up, in its words"),
        Field("path", of("path"), "text", "what lies between the GPUs, by nvidia-smi topo -m"),
        Field("nominal", of("nominal_bytes_per_s", bandwidth_text), hint="what the data sheet promises per direction"),
        Field("source", of("nominal_source"), "text"),
        Field("edges", lambda row: str(len(row["edges"]))),
        Field("from and to rank", lambda row: few(row["edges"], 12), "text"),
    ]
    return table_of("Links between ranks", rows, fields, is_close=True) if rows else None


def nccl_rows(nccl: NcclFacts) -> list[tuple[str, str]]:
    """Return what NCCL says of itself, as pairs."""
    nvls = {True: "set up", False: "not set up", None: "not said"}[nccl.nvls]
    return [("version", nccl.version or absent), ("NVLink SHARP", nvls), *sorted(nccl.settings.items())]


def provenance(run: Run) -> list[tuple[str, str]]:
    """Return what identifies the run and its capture, as pairs."""
    header, world = run.header, run.header.world_size
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
        Field("device", lambda row: _devices_of(run, row), hint="CUDA ordinal inside the process"),
        Field("GPU", of("gpu_name"), "text"),
        Field("host", of("host"), "text"),
        Field("rank known by", of("rank_source"), "text"),
        Field("kernels", of("n_kernels", count_text)),
        Field("of them communication", of("n_comm", count_text)),
        Field("clock offset us", of("clock_offset_ns", ms_text), unit="us"),
        Field("clock error us", of("clock_error_ns", ms_text), unit="us"),
    ]
    ranks = [row for row in run.ranks.to_pylist() if row["rank"] in listed]
    note = run_report.table_note(len(ranks), run.header.n_ranks)
    return table_of("Ranks and their reports", ranks, fields, note, is_close=True)
