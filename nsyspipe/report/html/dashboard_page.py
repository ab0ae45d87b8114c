"""The page of a store: whether runs get better or worse, since which one, with links to the runs' own pages."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from nsyspipe.errors import DatasetError, OptionError, OutputError
from nsyspipe.report.files import write_text
from nsyspipe.report.html.dashboard_series import (
    FIGURES,
    NOT_RECORDED,
    Facet,
    facets,
    group_name,
    missing_text,
    series_of,
    value_of,
    value_text,
)
from nsyspipe.report.html.page import Page, cut, render, run_id_of_page
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.units import ms_text
from nsyspipe.store.layout import RUNS_FILE, published
from nsyspipe.store.saved_run import Unreadable, open_saved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from nsyspipe.store.saved_run import StoredRuns


def write_pages(
    store: Path,
    run_ids: Sequence[str],
    pages: Path,
    *,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Unreadable]:
    """Write the page of each run as ``<run id>.html``; one that is newer than its run stays as it is.

    Returns
    -------
    list
        The runs of which there is no page, because a table of theirs cannot be read.
    """
    _make(pages)
    failed = []
    for n_done, run_id in enumerate(run_ids, start=1):
        path = pages / f"{run_id}.html"
        if force or not _is_fresh(path, store, run_id):
            try:
                text = run_page(open_saved(store, run_id))
            except (DatasetError, OptionError) as error:
                failed.append(Unreadable(run_id, "page", error.problem, error.fix))
            else:
                may_replace = _asker(path, run_id, force=force)
                write_text(path, text, (), may_replace=may_replace, is_named=False)
        if on_progress:
            on_progress(n_done, len(run_ids))
    return failed


def _make(pages: Path) -> None:
    try:
        pages.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be made ({error.strerror})"
        raise OutputError(str(pages), problem, fix="--pages with another directory") from error


def _is_fresh(path: Path, store: Path, run_id: str) -> bool:
    """Tell whether a page of the run is there and not older than what was saved of it."""
    if path.is_symlink() or run_id_of_page(path) != run_id:
        return False
    try:
        saved = (store / published(RUNS_FILE, run_id)).lstat().st_mtime_ns
        return path.lstat().st_mtime_ns >= saved
    except OSError:  # replaced at this moment
        return False


def _asker(path: Path, run_id: str, *, force: bool) -> Callable[[], bool]:
    return lambda: force or run_id_of_page(path) == run_id


def page_places(store: Path, beside: Path, pages: Path | None) -> list[Path]:
    """Return the directories that may hold pages of runs, in the order in which they are asked."""
    given = [] if pages is None else [pages]
    return [*given, beside / "pages", beside, store / "pages"]


def page_links(run_ids: Iterable[str], places: Sequence[Path], beside: Path) -> dict[str, str]:
    """Return the relative URL of each run's page, of those that have one.

    A file counts only if it says itself that it is the page of that run.
    """
    found = {}
    for run_id in run_ids:
        pages = (place / f"{run_id}.html" for place in places)
        page = next((page for page in pages if run_id_of_page(page) == run_id), None)
        if page is not None:
            # Bytes, since names of files need not be text; "./" so that none is ever taken for a scheme.
            url = f"./{quote(os.fsencode(os.path.relpath(page, beside)))}"
            if cut(url) == url:  # half a URL leads nowhere
                found[run_id] = url
    return found


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_US = 253_402_300_799_999_999  # the end of the year 9999
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class FirstFinding:
    """What to change first in a run: the rule's id, the most that it could bring, and the change in a few words."""

    name: str
    most: str | None = None
    hint: str | None = None

    @property
    def text(self) -> str:
        """Both in one line."""
        return f"{self.name}, {self.most}" if self.most else self.name


@dataclass(frozen=True, slots=True)
class DashboardRun:
    """One run of the dashboard."""

    row: Mapping[str, Any]  # of `schema.RUNS`, without the time of capture
    captured_ms: int | None  # milliseconds since 1970, UTC; None when not recorded
    captured: str
    finding: FirstFinding
    # URL of the run's own page, relative to the dashboard; None when there is none
    page: str | None

    @property
    def run_id(self) -> str:
        """The run's id: its address in the store."""
        run_id: str = self.row["run_id"]
        return run_id


def dashboard_runs(stored: StoredRuns, pages: Mapping[str, str]) -> list[DashboardRun]:
    """Return the runs by time of capture, as the store gives them."""
    microseconds = stored.runs["captured_at_utc"].cast(pa.int64()).to_pylist()
    rows = stored.runs.drop_columns(["captured_at_utc", "details"]).to_pylist()
    firsts = {row["run_id"]: row for row in stored.findings.to_pylist()}
    unknown = {one.run_id for one in stored.unreadable}
    found = []
    for row, captured_us in zip(rows, microseconds, strict=True):
        run_id = row["run_id"]
        known = captured_us is not None and 0 <= captured_us <= _MOST_US
        found.append(
            DashboardRun(
                row,
                captured_us // 1000 if known else None,
                _moment(captured_us) if known else NOT_RECORDED,
                _finding(firsts.get(run_id), is_known=run_id not in unknown),
                pages.get(run_id),
            )
        )
    return found


def _moment(microseconds: int) -> str:
    """Return a time as ``20 Nov 2026 22:17``, whatever the locale."""
    at = _EPOCH + timedelta(microseconds=microseconds)
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year} {at:%H:%M}"


def _finding(row: Mapping[str, Any] | None, *, is_known: bool) -> FirstFinding:
    if row is None:
        return FirstFinding("none" if is_known else NOT_RECORDED)
    saving = row["saving_ns_per_step"]
    most = f"up to {ms_text(saving)}" if saving and math.isfinite(saving) else None
    return FirstFinding(row["id"], most, row["action"])


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
    """Return the page over all runs of a store as one HTML file: complete, offline, the same bytes for the same store."""
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
            one.name: {str(at): missing_text(row, one) for at, row in enumerate(rows) if value_of(row, one) is None}
            for one in FIGURES
        },
    }
