"""The page of a store: whether runs get better or worse, and since which one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from nsyspipe.report.page.dashboard_figures import FIGURES, missing_text, value_of, value_text
from nsyspipe.report.page.dashboard_rows import DashboardRun, dashboard_runs
from nsyspipe.report.page.dashboard_series import Facet, facets, group_name, series_of
from nsyspipe.report.page.shell import Page, render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsyspipe.store.catalog import StoredRuns, Unreadable

__all__ = ["DASHBOARD", "STORE", "dashboard_page"]

# The meta element by which a dashboard is known for one, whatever its runs: it may be replaced by a newer one.
STORE, DASHBOARD = "nsyspipe-store", "dashboard"

_SCRIPTS = (
    "dashboard_board.js",
    "dashboard_levels.js",
    "dashboard_words.js",
    "dashboard_axes.js",
    "dashboard_pointer.js",
    "dashboard_trend.js",
    "dashboard_headline.js",
    "dashboard_series.js",
    "dashboard_filters.js",
    "dashboard_table.js",
)
_STYLES = ("dashboard.css", "dashboard_table.css")
# Buttons of a facet that are there from the start; and in all, since more are no choice any more.
_FEW, _MOST = 6, 40


def dashboard_page(
    stored: StoredRuns,
    *,
    title: str,
    pages: Mapping[str, str] | None = None,
    problems: Sequence[Unreadable] = (),
) -> str:
    """Return the page over all runs of a store as one HTML file: complete, offline, the same bytes for the same store.

    Parameters
    ----------
    stored
        From `nsyspipe.store.catalog.stored_runs`.
    title
        What to call the store.
    pages
        URL of the page of a run, relative to the dashboard, by run id.
    problems
        Told beside those of `stored`: runs whose own pages could not be written.

    Returns
    -------
    str
        HTML, to be written as UTF-8.
    """
    runs = dashboard_runs(stored, pages or {})
    found = [one for one in facets([run.row for run in runs]) if len(one.values) > 1]
    return render(
        Page(
            template="dashboard.html.j2",
            title=f"{title}: nsyspipe dashboard",
            identity=(STORE, DASHBOARD),
            context=_context(runs, found, title, [*stored.unreadable, *problems]),
            data={"dashboard": _data(runs, found)},
            scripts=_SCRIPTS,
            styles=_STYLES,
        )
    )


def _context(
    runs: Sequence[DashboardRun],
    found: Sequence[Facet],
    title: str,
    unreadable: Sequence[Unreadable],
) -> dict[str, Any]:
    sections = [("trend", "Trend"), ("shares", "Shares"), ("runs", "Runs")]
    if unreadable:
        sections.append(("problems", "Problems"))
    return {
        "sections": [*sections, ("reading", "How to read it")],
        "store": title,
        "figures": FIGURES,
        "facets": found,
        "n_few": _FEW,
        "n_most": _MOST,
        "rows": [_cells(place, run) for place, run in reversed([*enumerate(runs)])],
        "has_pages": any(run.page for run in runs),
        "unreadable": unreadable,
    }


def _cells(place: int, run: DashboardRun) -> dict[str, Any]:
    """Return one row of the table of runs, as words."""
    row = run.row
    return {
        "place": place,
        "run_id": run.run_id,
        "label": row["label"],
        "captured": run.captured,
        "group": group_name(row),
        "n_steps": row["n_summary_steps"],
        "figures": [(value_text(row, one), value_of(row, one) is None) for one in FIGURES],
        "finding": run.finding,
        "page": run.page,
    }


def _data(runs: Sequence[DashboardRun], found: Sequence[Facet]) -> dict[str, Any]:
    """Return what the scripts draw and filter: one array per property, one entry per run."""
    rows = [run.row for run in runs]
    by_run = series_of(rows)
    series = sorted(set(by_run), key=lambda one: (one.group, one.label or ""))
    n_runs = Counter(one.group for one in by_run)
    groups = sorted(n_runs, key=lambda group: (-n_runs[group], group))
    return {
        "figures": [
            {
                "name": one.name,
                "title": one.title,
                "kind": one.kind,
                "better": one.better,
                "category": one.category,
            }
            for one in FIGURES
        ],
        "groups": groups,
        "series": [{"group": groups.index(one.group), "label": one.label} for one in series],
        "facets": [{"name": one.name, "codes": one.codes} for one in found],
        "runs": {
            "id": [run.run_id for run in runs],
            "label": [row["label"] for row in rows],
            "captured": [run.captured for run in runs],
            "time": [run.captured_ms for run in runs],
            "series": [series.index(one) for one in by_run],
            "n_steps": [row["n_summary_steps"] for row in rows],
            "finding": [run.finding.text for run in runs],
            "page": [run.page for run in runs],
        },
        "values": {one.name: [value_of(row, one) for row in rows] for one in FIGURES},
        "missing": {
            one.name: {
                str(at): missing_text(row, one)
                for at, row in enumerate(rows)
                if value_of(row, one) is None
            }
            for one in FIGURES
        },
    }
