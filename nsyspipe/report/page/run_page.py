"""The page of one run: what is wrong, what to change first, and everything that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsyspipe.report.findings_text import link_text
from nsyspipe.report.page.boards import (
    idle_call_table,
    idle_table,
    phase_table,
    straggler_table,
)
from nsyspipe.report.page.chosen_ranks import chosen_ranks, left_out_note
from nsyspipe.report.page.collective_board import (
    by_order,
    by_size,
    collective_note,
    collective_table,
)
from nsyspipe.report.page.collective_medians import collective_medians
from nsyspipe.report.page.embed import RUN_ID
from nsyspipe.report.page.findings_list import findings_list
from nsyspipe.report.page.headline import facts, key_figures, verdict_lines, why_lines
from nsyspipe.report.page.host_board import host_table
from nsyspipe.report.page.kernel_board import kernel_table
from nsyspipe.report.page.link_board import link_table, nccl_facts, troubles
from nsyspipe.report.page.provenance import definitions, provenance, rank_table
from nsyspipe.report.page.shell import Page, render
from nsyspipe.report.page.step_parts import SHOWN_RANKS, rank_parts, rank_parts_table
from nsyspipe.report.page.step_series import step_rows, step_series, step_table
from nsyspipe.report.page.timeline_data import SHOWN_RANKS as TIMELINE_RANKS, timeline_data
from nsyspipe.report.page.timeline_table import timeline_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsyspipe.report.page.collective_medians import Medians
    from nsyspipe.run import Run

__all__ = ["run_page"]

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
    """Return the page of a run as one HTML file: complete, offline, the same bytes for the same run.

    Parameters
    ----------
    run
        Any run; what it does not know is said to be unknown, with the problem that explains it.

    Returns
    -------
    str
        HTML, to be written as UTF-8.
    """
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


def _charts(
    run: Run, drawn: Sequence[int], steps: Sequence[dict[str, Any]], medians: Medians
) -> dict[str, Any]:
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
        "timeline_table": timeline_table(run.timeline(), run.steps(), is_capture=run.is_capture)
        if timeline
        else None,
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
        "straggler_table": straggler_table(
            run.stragglers(), run.rank_summary(), summary["n_summary_steps"]
        ),
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
