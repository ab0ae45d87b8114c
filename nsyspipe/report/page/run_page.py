"""The page of one run: what is wrong, what to change first, and everything that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from nsyspipe.report.page.kernel_board import kernel_table
from nsyspipe.report.page.link_board import link_table, nccl_facts, troubles
from nsyspipe.report.page.provenance import definitions, provenance, rank_table
from nsyspipe.report.page.shell import Page, render
from nsyspipe.report.page.step_parts import SHOWN_RANKS, rank_parts, rank_parts_table
from nsyspipe.report.page.step_series import step_rows, step_series, step_table
from nsyspipe.report.page.timeline_data import SHOWN_RANKS as TIMELINE_RANKS, timeline_data
from nsyspipe.report.page.timeline_table import timeline_table

if TYPE_CHECKING:
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
    context, data = _parts(run)
    return render(
        Page(
            template="run.html.j2",
            title=f"{run.header.label}: nsyspipe",
            identity=(RUN_ID, run.header.run_id),
            context={"sections": _SECTIONS, **context},
            data=data,
            scripts=_SCRIPTS,
            styles=("run.css",),
        )
    )


def _parts(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the template shows, and what the charts draw."""
    ranks = run.ranks["rank"].to_pylist()
    summary = run.summary().to_pylist()[0]
    drawn = chosen_ranks(run.rank_summary(), run.stragglers(), SHOWN_RANKS)
    first = chosen_ranks(run.rank_summary(), run.stragglers(), TIMELINE_RANKS)
    others = [rank for rank in ranks if rank not in first]
    timeline = timeline_data(run.timeline(), run.steps(), first, others)
    steps = step_rows(run.steps(), run.skipped_steps, len(ranks))
    medians = collective_medians(run.collectives())
    bars = rank_parts(run.breakdown(), drawn)
    data = {
        "step-bars": bars,
        "timeline": timeline,
        "steps": step_series(steps),
        "collectives": by_order(medians),
        "sizes": by_size(medians),
    }
    context = {
        "label": run.header.label,
        "verdict": verdict_lines(run),
        "why": why_lines(run),
        "facts": facts(run),
        "tiles": key_figures(run),
        "findings": findings_list(run),
        "has": {name: value is not None for name, value in data.items()},
        "n_drawn": len(bars["ranks"]) if bars else 0,
        "bars_note": left_out_note(len(drawn), len(ranks)),
        "bars_table": rank_parts_table(run.breakdown()),
        "timeline_facts": _timeline_facts(timeline),
        "timeline_table": timeline_table(run.timeline(), run.steps()) if timeline else None,
        "steps_table": step_table(steps),
        "n_steps": len(steps),
        "per_column": data["steps"]["per_column"] if data["steps"] else 1,
        "collectives_note": collective_note(medians),
        "collectives_table": collective_table(medians),
        "straggler_table": straggler_table(
            run.stragglers(), run.rank_summary(), summary["n_summary_steps"]
        ),
        "phase_table": phase_table(run.phase_summary()),
        "idle_table": idle_table(summary),
        "idle_calls": idle_call_table(run.idle_calls()),
        "kernel_table": kernel_table(run.kernels()),
        "link_table": link_table(run.links()),
        "nccl": nccl_facts(run.nccl),
        "troubles": troubles(run.problems),
        "definitions": definitions(),
        "provenance": provenance(run),
        "rank_table": rank_table(run),
        "n_ranks": len(ranks),
    }
    return context, {name: value for name, value in data.items() if value is not None}


def _timeline_facts(timeline: dict[str, Any] | None) -> dict[str, Any]:
    if timeline is None:
        return {}
    return {
        "step": timeline["step"],
        "n_ranks": timeline["n_ranks"],
        "n_shown": timeline["n_shown"],
        "n_kept": len(timeline["ranks"]),
    }
