"""The page of one run: verdict and key figures first, provenance and definitions last, and the page itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nsyspipe.model.schema import DESCRIBED, TIMELINE
from nsyspipe.report.blocks import Column, Field, Table, of, table_of
from nsyspipe.report.host_steps import capture_rows
from nsyspipe.report.html.page import RUN_ID, Page, render
from nsyspipe.report.html.run_boards import (
    findings_list,
    host_table,
    idle_call_table,
    idle_table,
    kernel_table,
    link_table,
    nccl_facts,
    phase_table,
    straggler_table,
    troubles,
)
from nsyspipe.report.html.run_collectives import (
    by_order,
    by_size,
    chosen_ranks,
    collective_medians,
    collective_note,
    collective_table,
    left_out_note,
)
from nsyspipe.report.html.run_steps import (
    SHOWN_RANKS,
    TIMELINE_RANKS,
    rank_parts,
    rank_parts_table,
    step_rows,
    step_series,
    step_table,
    timeline_data,
    timeline_table,
)
from nsyspipe.report.text import link_text
from nsyspipe.report.units import absent, count_text, ms_text, percent_text, rate_text
from nsyspipe.report.words import idle_text, subject_parts, verdict_of
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsyspipe.model.table import TableSchema
    from nsyspipe.report.html.run_collectives import Medians
    from nsyspipe.run.run import Run


# Which problems explain that a figure is null, the most telling first.
_NO_COMM = ("comm-in-graphs", "no-comm-kernels", "no-kernels", "no-kernel-names")
_CAUSES = {
    "step_time_ns": ("no-steps", "no-common-step", "no-gpu-activity", "captured-without-gpu"),
    "comm_share": _NO_COMM,
    "exposed_comm_share": _NO_COMM,
    "backward_overlap_ratio": (
        "comm-in-graphs", "no-comm-kernels", "no-backward", "no-steps", "no-nvtx", "no-launches", "no-kernels",
    ),
    "wait_share": ("different-runs", "unmatched-collectives", "no-common-clock", *_NO_COMM),
    "idle_share": ("no-kernels", "no-memcpy", "no-memset"),
    "exposed_memory_share": ("no-memcpy", "no-memset", "no-kernels"),
}  # fmt: skip
_LONGEST_REASON = 90
# From this share of step time on, idle time is worth a line on the first screen.
_MUCH_IDLE = 0.05
_ONE_STEP = "these figures rest on one step: capture ten or more before trusting small differences"


@dataclass(frozen=True)
class Tile:
    """One key figure as words."""

    name: str
    value: str
    unit: str
    meaning: str
    # instead of a figure: ``not recorded``, or a dash where there is nothing to record; `meaning` then says why
    missing: str | None = None
    category: str | None = None  # of the palette


def verdict_lines(run: Run) -> list[str]:
    """Return the verdict, a sentence per line, as the terminal says it."""
    return verdict_of(run).split("\n")


def why_lines(run: Run) -> list[str]:
    """Return what stands behind the verdict: the link, why devices idle, and that one step is not much."""
    texts = [link_text(run.link)]
    if (run.summary()["idle_share"][0].as_py() or 0.0) >= _MUCH_IDLE:
        texts.append(idle_text(run.breakdown(), run.idle_calls()))
    if run.summary()["n_summary_steps"][0].as_py() == 1:
        texts.append(_ONE_STEP)
    return [f"{text[0].upper()}{text[1:]}." for text in texts if text]


def facts(run: Run) -> list[str]:
    """Return which run this is, on what, captured when, and which steps count."""
    _, *parts = subject_parts(run, run.summary().to_pylist()[0])
    hosts = run.header.hosts
    more = [f"{len(hosts)} hosts" if len(hosts) > 2 else ", ".join(hosts)] if hosts else []  # noqa: PLR2004 - two fit
    captured = run.header.captured_at_utc
    if captured:
        more.append(f"captured {captured[:10]} {captured[11:16]} UTC")
    return [*parts, *more]


def key_figures(run: Run) -> list[Tile]:
    """Return the figures of the first screen; one that is null says why."""
    summary = run.summary().to_pylist()[0]
    reasons = _reasons(run)
    n_steps = summary["n_summary_steps"]
    of_what = "the capture" if run.is_capture else "step time"
    over = f"slowest rank, median of {n_steps} steps" if n_steps > 1 else "slowest rank of the step"

    def tile(name: str, figure: str, text: str, meaning: str, category: str | None = None) -> Tile:
        value, _, unit = text.rpartition(" ")
        if summary[figure] is not None:
            return Tile(name, value, unit, meaning, None, category)
        if nothing := _why_nothing(figure, run, summary):
            return Tile(name, value, unit, nothing, "\N{EN DASH}", category)
        why = _why_null(figure, summary, reasons)
        return Tile(name, value, unit, why, "not recorded", category)

    def share(name: str, figure: str, meaning: str, category: str | None = None) -> Tile:
        return tile(name, figure, percent_text(summary[figure]), meaning, category)

    dtod = pc.sum(run.breakdown()["dtod_ns"], skip_nulls=False, min_count=1).as_py()
    dtod = dtod if run.is_capture else summary["dtod_ns_per_step"]
    copies = f"DtoD, exposed or not: {ms_text(dtod)}"
    pooled = ", all ranks pooled" if run.header.n_ranks > 1 else ""
    return [
        tile("Step time", "step_time_ns", ms_text(summary["step_time_ns"]), over),
        tile("Throughput", "throughput_steps_per_s", rate_text(summary["throughput_steps_per_s"]), "1 / mean step time"),
        share("Communication", "comm_share", f"of {of_what}{pooled}"),
        share("Exposed", "exposed_comm_share", f"of {of_what}, beside no compute", "exposed"),
        share("Hidden", "backward_overlap_ratio", "of communication, by backward", "hidden"),
        share("Waiting", "wait_share", f"of {of_what}, for late ranks", "waiting"),
        share("Idle", "idle_share", f"of {of_what}{pooled}", "idle"),
        share("Exposed copies", "exposed_memory_share", f"of {of_what}; {copies}", "copies"),
    ]  # fmt: skip


def _reasons(run: Run) -> dict[str, str]:
    return {row["code"]: row["message"] for row in reversed(run.problems.to_pylist())}


def _why_nothing(figure: str, run: Run, summary: Mapping[str, Any]) -> str | None:
    """Return why there is nothing that could have been recorded; None if there is."""
    if figure == "wait_share" and run.header.n_ranks == 1:
        return "one rank: there is nobody to wait for"
    if figure in {"wait_share", "backward_overlap_ratio"} and summary["comm_share"] == 0:
        return "there is no communication"
    return None


def _why_null(figure: str, summary: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    if not summary["n_summary_steps"] and "no-steps" not in reasons:
        figure = "step_time_ns"
    codes = _CAUSES.get(figure, _CAUSES["step_time_ns"])
    text = next((reasons[code] for code in codes if code in reasons), "see Problems")
    text = text.partition(": ")[0]  # what is missing; which answers that costs is seen
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3].rstrip()}..."


_DEFINED = ("summary", "steps", "phases", "collectives", "stragglers", "kernels", "idle_calls", "links", "findings")  # fmt: skip
_NS_PER_US = 1000


@dataclass(frozen=True)
class Definition:
    """One table of `nsyspipe.model.schema`: its name, its grain, and its columns."""

    name: str
    doc: str
    table: Table


def definitions() -> list[Definition]:
    """Return the tables that the page shows, with every column's unit and formula."""
    known = [DESCRIBED[name] for name in _DEFINED if name in DESCRIBED]
    return [_definition(schema) for schema in [*known, TIMELINE]]


def _definition(schema: TableSchema) -> Definition:
    columns = [Column("column", "name"), Column("unit", "text"), Column("meaning", "text"), Column("source", "text")]  # fmt: skip
    rows = [[one.name, one.unit, one.doc, one.source or absent] for one in schema.columns]
    return Definition(schema.name, schema.doc, Table(f"Columns of {schema.name}", columns, rows))


def provenance(run: Run) -> list[tuple[str, str]]:
    """Return what identifies the run and its capture, as pairs."""
    header = run.header
    world = header.world_size
    return [
        ("run id", header.run_id),
        ("label", header.label),
        ("captured", header.captured_at_utc or absent),
        ("ranks", f"{header.n_ranks}" + (f" of {world}" if world is not None else "")),
        ("GPU", ", ".join(header.gpu_names) or absent),
        ("hosts", ", ".join(header.hosts) or absent),
        ("Nsight Systems", ", ".join(header.nsys_versions) or absent),
        ("export schema", ", ".join(header.export_schema_versions) or absent),
        ("steps", run.step_family or ("none: a capture" if run.is_capture else "none marked")),
        *capture_rows(header.capture),
        ("nsyspipe", __version__),
    ]


def rank_table(run: Run) -> Table:
    """Return which report and process each rank is, and how well its clock fits the others'."""
    fields = [
        Field("rank", of("rank")),
        Field("report", of("report"), "name"),
        Field("pid", of("pid")),
        Field("device", of("device_ids"), hint="CUDA ordinal inside the process"),
        Field("GPU", of("gpu_name"), "text"),
        Field("host", of("host"), "text"),
        Field("rank known by", of("rank_source"), "text"),
        Field("kernels", of("n_kernels", count_text)),
        Field("of them communication", of("n_comm", count_text)),
        Field("clock offset", of("clock_offset_ns", _us)),
        Field("clock error", of("clock_error_ns", _us)),
    ]
    return table_of("Ranks and their reports", run.ranks.to_pylist(), fields)


def _us(ns: int) -> str:
    return f"{ns / _NS_PER_US:.1f} \N{MICRO SIGN}s"


_SECTIONS = (
    ("changes", "Changes"),
    ("time", "Time"),
    ("timeline", "Timeline"),
    ("steps", "Steps"),
    ("collectives", "Collectives"),
    ("stragglers", "Stragglers"),
    ("phases", "Phases"),
    ("kernels", "Kernels"),
    ("link", "Link"),
    ("problems", "Problems"),
    ("definitions", "Definitions"),
    ("provenance", "Provenance"),
)
_HOST_STEPS = ("host-steps", "Host steps")  # of a run without GPU activity
_SCRIPTS = (
    "step_bars.js",
    "timeline_layout.js",
    "timeline_draw.js",
    "timeline.js",
    "step_columns.js",
    "collectives.js",
)


def run_page(run: Run) -> str:
    """Return the page of a run as one HTML file: complete, offline, the same bytes for the same run."""
    ranks = run.ranks["rank"].to_pylist()
    steps = [] if run.is_capture else step_rows(run.steps(), run.skipped_steps, len(ranks))
    medians = collective_medians(run.collectives())
    drawn = chosen_ranks(run.rank_summary(), run.stragglers(), SHOWN_RANKS)
    charts = _charts(run, drawn, steps, medians)
    hosts = host_table(run.host_steps())
    context = {
        "sections": ((_HOST_STEPS, *_SECTIONS) if hosts else _SECTIONS),
        "host_table": hosts,
        "n_ranks": len(ranks),
        "is_capture": run.is_capture,
        "has": {name: chart is not None for name, chart in charts.items()},
        "bars_note": left_out_note(len(drawn), len(ranks)),
        **_head(run),
        **_beside_charts(run, charts, steps, medians),
        **_boards(run),
    }
    return render(
        Page(
            template="run.html.j2",
            title=f"{run.header.label}: nsyspipe",
            identity=(RUN_ID, run.header.run_id),
            context=context,
            data={name: chart for name, chart in charts.items() if chart is not None},
            scripts=_SCRIPTS,
            styles=("run.css",),
        )
    )


def _charts(run: Run, drawn: Sequence[int], steps: Sequence[dict[str, Any]], medians: Medians) -> dict[str, Any]:
    """Return what each chart draws; None where there is nothing to draw."""
    first = chosen_ranks(run.rank_summary(), run.stragglers(), TIMELINE_RANKS)
    others = [rank for rank in run.ranks["rank"].to_pylist() if rank not in first]
    return {
        "step-bars": rank_parts(run.breakdown(), drawn, is_capture=run.is_capture),
        "timeline": timeline_data(run.timeline(), run.steps(), first, others),
        "steps": step_series(steps),
        "collectives": by_order(medians),
        "sizes": by_size(medians),
    }


def _head(run: Run) -> dict[str, Any]:
    """Return the first screen: what this run is, what is wrong, and what to do."""
    return {
        "label": run.header.label,
        "verdict": verdict_lines(run),
        "why": why_lines(run),
        "facts": facts(run),
        "tiles": key_figures(run),
        "findings": findings_list(run),
    }


def _beside_charts(
    run: Run, charts: Mapping[str, Any], steps: Sequence[dict[str, Any]], medians: Medians
) -> dict[str, Any]:
    """Return what stands beside the charts: the same in tables, captions, and the numbers that these need."""
    bars, timeline, series = (charts[name] for name in ("step-bars", "timeline", "steps"))
    return {
        "n_drawn": len(bars["ranks"]) if bars else 0,
        "bars_table": rank_parts_table(run.breakdown(), is_capture=run.is_capture),
        "timeline_facts": _timeline_facts(timeline),
        "timeline_table": timeline_table(run.timeline(), run.steps(), is_capture=run.is_capture) if timeline else None,
        "steps_table": step_table(steps),
        "n_steps": len(steps),
        "per_column": series["per_column"] if series else 1,
        "collectives_note": collective_note(medians),
        "collectives_table": collective_table(medians),
    }


def _boards(run: Run) -> dict[str, Any]:
    """Return the sections without charts."""
    summary = run.summary().to_pylist()[0]
    return {
        "straggler_table": straggler_table(run.stragglers(), run.rank_summary(), summary["n_summary_steps"]),
        "phase_table": phase_table(run.phase_summary()),
        "idle_table": idle_table(summary),
        "idle_calls": idle_call_table(run.idle_calls()),
        "kernel_table": kernel_table(run.kernels()),
        "link_line": _link_line(run),
        "link_table": link_table(run.links()),
        "nccl": nccl_facts(run.nccl),
        "troubles": troubles(run.problems),
        "definitions": definitions(),
        "provenance": provenance(run),
        "rank_table": rank_table(run),
    }


def _link_line(run: Run) -> str | None:
    text = link_text(run.link)
    return f"{text[0].upper()}{text[1:]}." if text else None


def _timeline_facts(timeline: dict[str, Any] | None) -> dict[str, Any]:
    if timeline is None:
        return {}
    return {
        "step": timeline["step"],
        "n_ranks": timeline["n_ranks"],
        "n_shown": timeline["n_shown"],
        "n_kept": len(timeline["ranks"]),
    }
