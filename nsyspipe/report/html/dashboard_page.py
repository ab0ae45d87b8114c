"""The page of a run store: a table of its runs, and the step time of each series of runs that can be compared."""

import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import pyarrow as pa
from msgspec.structs import replace

from nsyspipe.comparison.series import MIN_STEPS
from nsyspipe.errors import DatasetError, OptionError, OutputError
from nsyspipe.model.definitions import FIRST_VERSION, changed_columns, latest_of
from nsyspipe.model.figures import Figure, shown
from nsyspipe.model.names import grouped
from nsyspipe.report.files import check_directory, check_target, identity_of_page, write_text
from nsyspipe.report.html.page import cut, render, run_id_of_page
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.units import ms_text, value_text
from nsyspipe.run.run import job_ranks
from nsyspipe.run.work import Work, parted
from nsyspipe.store.index import WORK, StoredRuns, Unreadable, stored_runs
from nsyspipe.store.layout import RUNS_FILE, name_of_store, published
from nsyspipe.store.saved_run import open_saved

NOT_RECORDED = "not recorded"
OLDER_DEFINITIONS = "older definitions"
_LINKS = {
    "nvlink": "NVLink",
    "p2p": "P2P",
    "p2p_pcie": "P2P over PCIe",
    "shm": "host memory",
    "net": "network",
    None: NOT_RECORDED,
    "unknown": NOT_RECORDED,
}
FOLLOWED = shown("dashboard")
_Series: TypeAlias = tuple[str, str | None, bool]
_MOST_US = 253_402_300_799_999_999  # the end of the year 9999
# The meta element by which a dashboard is known for one, whatever its runs: it may be replaced by a
# newer one.
STORE = "nsyspipe-store"
DASHBOARD = "dashboard"

_PARTS = ("board", "words", "axes", "pointer", "trend", "headline", "series", "filters", "table")
_ENDS = 8
_MOST_READ = 200  # runs whose work a former nsyspipe did not keep: it takes long to read them
_FEWEST_IN_CHART = 4  # runs: fewer are a table alone
_ROWS = 100  # as many as the table shows first: others are made when they come into view


def _gpu_name(run: Mapping[str, Any]) -> str:
    names = [name.removeprefix("NVIDIA ") for name in run["gpu_names"].split(", ") if name]
    return ", ".join(names) or "GPU not recorded"


def group_name(run: Mapping[str, Any]) -> str:
    """Return how many ranks on what: runs that differ in it cannot be compared."""
    n_ranks = run["n_ranks"]
    world_size = job_ranks(run["n_ranks"], run["n_processes"], run["world_size"])
    of_world = f" of {world_size} ranks" if world_size not in (None, n_ranks) else ""
    unknown = ", world size not recorded" if world_size is None else ""
    return f"{n_ranks}{of_world} \N{MULTIPLICATION SIGN} {_gpu_name(run)}{unknown}"


def series_of(runs: Sequence[Mapping[str, Any]]) -> list[_Series]:
    """Return the series of each run, which one line joins: its group, a label, and whether its runs can be ranked.

    Only runs that `compare` ranks together can: of one group, whose steps do the same work. In a
    group where most runs share their label with another, a label is a series (a nightly job). Where
    most labels are there once (a commit's id, the variants of a study), all of the same work are:
    the label is None. The group says which work, if there are several.
    """
    series: list[_Series] = [
        (f"{group_name(run)}, work not known", run["label"], False) for run in runs
    ]
    works = {at: work for at, run in enumerate(runs) if (work := Work.parsed(run[WORK]))}
    compute = {at: work.busy_ns or math.inf for at, work in works.items()}
    for group, places in grouped((group_name(runs[at]), at) for at in works).items():
        n_alike = Counter(runs[at]["label"] for at in places)
        is_by_label = 2 * sum(n for n in n_alike.values() if n > 1) >= len(places)
        places.sort(key=lambda at: (compute[at], runs[at]["run_id"]))
        # Of many of a kind those of least and of most compute.
        kinds = parted(
            places,
            lambda at, kind: (
                not any(works[at].is_unlike(works[one]) for one in {*kind[:_ENDS], *kind[-_ENDS:]})
            ),
        )
        n_kinds = Counter(label for kind in kinds for label in {runs[at]["label"] for at in kind})
        spans = [(compute[kind[0]], compute[kind[-1]]) for kind in kinds]
        for kind, (least, most) in zip(kinds, spans, strict=True):
            words = " to ".join(
                dict.fromkeys(ms_text(ns, 2) for ns in (least, most) if ns < math.inf)
            )
            name = f"{group}, compute {f'{words} a step' if words else 'not known'}"
            first = runs[min(kind)]
            if sum(low <= most and least <= high for low, high in spans) > 1:
                name += (
                    ", like "
                    f"{cut(first['label' if n_kinds[first['label']] == 1 else 'run_id'], 40)}"
                )
            for at in kind:
                label = runs[at]["label"] if is_by_label else None
                is_one = (n_kinds[label] if is_by_label else len(kinds)) == 1
                series[at] = (group if is_one else name, label, True)
    return series


def facets(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what runs can be filtered by: name, title, words (distinct values in order), and codes (each run's word).

    Labels come by their number of runs, the rest in their own order.
    """
    n_by_label = Counter(run["label"] for run in runs)
    links = [_LINKS.get(run["link_kind"], run["link_kind"]) for run in runs]
    sizes = [run["world_size"] for run in runs]
    hosts = [len([host for host in run["hosts"].split(", ") if host]) for run in runs]
    # Of each run the place among the others, and the words.
    values: dict[tuple[str, str], list[tuple[Any, str]]] = {
        ("label", "Label"): [
            ((-n_by_label[run["label"]], run["label"]), run["label"]) for run in runs
        ],
        ("world", "World size"): [
            ((n is None, n or 0), NOT_RECORDED if n is None else str(n)) for n in sizes
        ],
        ("gpu", "GPU"): [(_gpu_name(run), _gpu_name(run)) for run in runs],
        ("hosts", "Hosts"): [(n, str(n or NOT_RECORDED)) for n in hosts],
        ("link", "Slowest link"): [((link == NOT_RECORDED, link), link) for link in links],
    }
    found = []
    for (name, title), of_runs in values.items():
        codes = {pair: code for code, pair in enumerate(sorted({*of_runs}))}
        words = [word for _, word in codes]
        found.append(
            {
                "name": name,
                "title": title,
                "words": words,
                "codes": [codes[pair] for pair in of_runs],
            }
        )
    return found


def value_of(run: Mapping[str, Any], figure: Figure) -> float | None:
    """Return a figure of a row of `schema.RUNS` to nine digits; a damaged one, which no page can carry, is null."""
    value = run[figure.column]
    return float(f"{value:.9g}") if value is not None and math.isfinite(value) else None


def _without_outdated(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of `INDEX` less the figures that mean something else in other rows; ``is_outdated`` tells which rows had them."""
    versions = [row["definitions_version"] or FIRST_VERSION for row in rows]
    latest = latest_of(versions)
    found = []
    for row, version in zip(rows, versions, strict=True):
        changed = changed_columns(version, latest)
        outdated = [one.column for one in FOLLOWED if not changed.isdisjoint(one.of_step)]
        found.append(row | dict.fromkeys(outdated) | {"is_outdated": bool(outdated)})
    return found


def _missing_text(run: Mapping[str, Any], figure: Figure) -> str:
    if run.get("is_outdated"):
        return OLDER_DEFINITIONS
    if figure.column == "wait_share" and run["n_ranks"] == 1:
        return "one rank"
    if (figure.column == "wait_share" or figure.category == "hidden") and run["comm_share"] == 0:
        return "no communication"
    return NOT_RECORDED


def dashboard_runs(stored: StoredRuns, pages: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the runs by time of capture, as the store gives them.

    Each has its ``row`` of `store.index.INDEX`, ``group``, ``captured`` in words and
    ``captured_ms`` since 1970 (UTC; None when not recorded), what to change first (``finding``),
    the ``most`` that it could bring, how (``hint``), and the URL of its own ``page``, relative to
    the dashboard.
    """
    microseconds = stored.runs["captured_at_utc"].cast(pa.int64()).to_pylist()
    rows = _without_outdated(stored.runs.drop_columns(["captured_at_utc"]).to_pylist())
    runs = []
    for row, captured_us in zip(rows, microseconds, strict=True):
        captured_ms = None
        captured = NOT_RECORDED
        if captured_us is not None and 0 <= captured_us <= _MOST_US:
            captured_ms = captured_us // 1000
            # Of "Sun, 01 Mar 2026 04:30:59 GMT", whatever the locale.
            captured = formatdate(captured_us // 1_000_000, usegmt=True)[5:22].lstrip("0")
        # What a straggler costs was told by other definitions.
        is_other_saving = row["is_outdated"] and row["first_finding"] == "straggler"
        saving = None if is_other_saving else row["first_saving_ns_per_step"]
        runs.append(
            {
                "row": row,
                "group": group_name(row),
                "captured": captured,
                "captured_ms": captured_ms,
                "finding": row["first_finding"]
                or ("none" if row["n_findings"] == 0 else NOT_RECORDED),
                "most": f"at most {ms_text(saving, 3)}" if saving else None,
                "hint": row["first_action"],
                "page": pages.get(row["run_id"]),
            }
        )
    return runs


def dashboard_page(
    stored: StoredRuns,
    *,
    title: str,
    pages: Mapping[str, str] | None = None,
    problems: Sequence[Unreadable] = (),
) -> str:
    """Return the page over all runs of a store as one HTML file: complete, offline, the same bytes for the same store."""
    runs = dashboard_runs(stored, pages or {})
    has_chart = len(runs) >= _FEWEST_IN_CHART
    choices = [facet for facet in facets([run["row"] for run in runs]) if len(facet["words"]) > 1]
    unreadable = [*stored.unreadable, *problems]
    latest = [*enumerate(runs)][: -_ROWS - 1 : -1]
    headline, *remarks = _few_runs_sentences(title, runs)
    context = {
        "sections": _sections(has_chart=has_chart, has_problems=bool(unreadable)),
        "store": title,
        "has_chart": has_chart,
        "headline": f"{len(runs)} runs in {title}" if has_chart else headline,
        "remarks": remarks,
        "figures": FOLLOWED,
        "facets": choices,
        "rows": [
            (at, run, [_cell(run["row"], figure) for figure in FOLLOWED]) for at, run in latest
        ],
        "has_pages": any(run["page"] for run in runs),
        "unreadable": unreadable,
        "min_steps": MIN_STEPS,
    }
    return render(
        "dashboard.html.j2",
        f"{title}: nsyspipe dashboard",
        (STORE, DASHBOARD),
        context,
        {"dashboard": _data(runs, choices)} if has_chart else {},
        scripts=[f"dashboard_{part}" for part in _PARTS] if has_chart else [],
        styles=("blocks.css", "answer.css", "dashboard.css", "dashboard_table.css"),
    )


def _sections(*, has_chart: bool, has_problems: bool) -> list[tuple[str, str]]:
    """Return the sections of the page, by what an address and what navigation calls them."""
    sections = [("runs", "Runs")]
    if has_problems:
        sections.append(("problems", "Problems"))
    return (
        [("step-time", "Step time"), *sections, ("reading", "How to read it")]
        if has_chart
        else sections
    )


def _few_runs_sentences(title: str, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a page without a chart says: which run is the latest, and how runs are compared."""
    if not runs:
        return [f"There are no runs in {title}."]
    latest = runs[-1]["row"]
    step_time = FOLLOWED[0]
    text, is_missing = _cell(latest, step_time)
    sentences = [
        (
            f"Latest run: {latest['label']}, "
            f"{f'step time {text}' if is_missing else f'{text} per step'}"
        )
    ]
    if len(runs) > 1:
        sentences.append(
            "A difference between runs may be noise. To find out, run nsyspipe compare STORE."
        )
    return sentences


def _cell(row: Mapping[str, Any], figure: Figure) -> tuple[str, bool]:
    value = value_of(row, figure)
    return (
        (_missing_text(row, figure), True)
        if value is None
        else (value_text(figure.unit, value), False)
    )


def _data(
    runs: Sequence[Mapping[str, Any]], choices: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    rows = [run["row"] for run in runs]
    by_run = series_of(rows)
    series = sorted(set(by_run), key=lambda line: (line[0], line[1] or ""))
    n_runs = Counter(group for group, _, _ in by_run)
    groups = sorted(n_runs, key=lambda group: (-n_runs[group], group))
    values = {figure.column: [value_of(row, figure) for row in rows] for figure in FOLLOWED}
    hints = {hint: at for at, hint in enumerate(dict.fromkeys(run["hint"] for run in runs))}
    return {
        "min_steps": MIN_STEPS,
        "figures": [{"name": one.column, "title": one.label, "kind": one.unit} for one in FOLLOWED],
        "groups": groups,
        "series": [
            {"group": groups.index(line[0]), "label": line[1], "is_known": line[2]}
            for line in series
        ],
        "facets": [{name: facet[name] for name in ("name", "codes")} for facet in choices],
        "runs": {
            "id": [row["run_id"] for row in rows],
            "label": [row["label"] for row in rows],
            "time": [run["captured_ms"] for run in runs],
            "series": [series.index(line) for line in by_run],
            "n_steps": [row["n_summary_steps"] for row in rows],
            "hint": [hints[run["hint"]] for run in runs],
            **{
                name: [run[name] for run in runs]
                for name in ("captured", "finding", "most", "page")
            },
        },
        "hints": [*hints],
        "values": values,
        "missing": {
            one.column: {
                str(at): _missing_text(rows[at], one)
                for at, n in enumerate(values[one.column])
                if n is None
            }
            for one in FOLLOWED
        },
    }


def check_dashboard(given: str, store: Path, *, force: bool) -> None:
    """Refuse (OutputError) what may not be replaced, before any work is done."""
    target = Path(given)
    _check_no_link_inside(store, target)
    if target.suffix not in {"", ".html", ".htm"}:
        problem = f"is named {target.suffix}, and the page is HTML"
        raise OutputError(given, problem, fix=str(target.with_suffix(".html")))
    check_directory(given, f"{name_of_store(store)}.html")
    check_target(target, (), may_replace=lambda: True)
    if target.exists() and not force and identity_of_page(target, STORE) != DASHBOARD:
        raise OutputError(
            str(target),
            "exists, but is not a dashboard of nsyspipe",
            fix="use --force or another name",
        )


def _check_no_link_inside(store: Path, path: Path) -> None:
    """Refuse a path inside a store that a link leads out of it: whoever may write to the store could have put it there."""
    inside = os.path.relpath(os.path.abspath(path), os.path.abspath(store))  # noqa: PTH100 - by the links that were given
    if inside.startswith(os.pardir):
        return
    if os.path.realpath(path) != os.path.normpath(os.path.join(os.path.realpath(store), inside)):  # noqa: PTH118
        raise OutputError(
            str(path),
            "is reached by a link inside the store",
            fix="remove the link, or another name",
        )


def store_page(
    store: Path,
    target: Path | None,
    pages: Path | None,
    *,
    force: bool = False,
    stage: Callable[[str], Callable[[int, int], None] | None] = lambda _: None,
) -> tuple[str, int, list[Unreadable]]:
    """Return the page of a store, of how many runs it is, and what of them cannot be read; their own pages are written before."""
    found = stored_runs(store, on_progress=stage("reading runs"))
    failed = []
    found = replace(found, runs=_with_works(found.runs, store))
    run_ids = found.runs["run_id"].to_pylist()
    if pages is not None:
        failed = write_pages(store, run_ids, pages, force=force, on_progress=stage("writing pages"))
    links = page_links(store, run_ids, Path() if target is None else target.parent, pages)
    text = dashboard_page(found, title=name_of_store(store), pages=links, problems=failed)
    return text, len(run_ids), [*found.unreadable, *failed]


def _with_works(runs: pa.Table, store: Path) -> pa.Table:
    """Return rows of `INDEX` with the work of the latest runs that a former nsyspipe saved without it."""
    works = runs[WORK].to_pylist()
    run_ids = runs["run_id"].to_pylist()
    for at in [at for at, work in enumerate(works) if work is None][-_MOST_READ:]:
        with contextlib.suppress(DatasetError, OptionError):
            works[at] = Work.of([open_saved(store, run_ids[at])]).saved()
    return runs.set_column(runs.schema.get_field_index(WORK), WORK, pa.array(works, pa.string()))


def write_pages(
    store: Path,
    run_ids: Sequence[str],
    pages: Path,
    *,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Unreadable]:
    """Write the page of each run as ``<run id>.html``; one that is newer than its run stays as it is.

    Returns the runs of which there is no page, because a table of theirs cannot be read.
    """
    _check_no_link_inside(store, pages)
    try:
        pages.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (pages / "any").lstat()  # which fails in a directory that may not be entered
    except OSError as error:
        why = f"cannot be made or entered ({error.strerror})"
        raise OutputError(str(pages), why, fix="--pages with another directory") from error
    failed = []
    for n_done, run_id in enumerate(run_ids, start=1):
        path = pages / f"{run_id}.html"
        if force or not _is_fresh(path, store, run_id):
            try:
                text = run_page(open_saved(store, run_id))
            except (DatasetError, OptionError) as error:
                failed.append(Unreadable(run_id, "page", error.problem, error.fix))
            else:
                is_its = partial(
                    lambda path, run_id: force or run_id_of_page(path) == run_id, path, run_id
                )
                write_text(path, text, (), may_replace=is_its, is_named=False)
        if on_progress:
            on_progress(n_done, len(run_ids))
    return failed


def _is_fresh(path: Path, store: Path, run_id: str) -> bool:
    if path.is_symlink() or run_id_of_page(path) != run_id:
        return False
    try:
        return (
            path.lstat().st_mtime_ns >= (store / published(RUNS_FILE, run_id)).lstat().st_mtime_ns
        )
    except OSError:  # replaced at this moment
        return False


def page_links(
    store: Path, run_ids: Iterable[str], beside: Path, pages: Path | None = None
) -> dict[str, str]:
    """Return the URL of each run's page, relative to a directory, of those that have one in one of a few directories.

    A file counts only if it says itself that it is the page of that run.
    """
    near = [*([] if pages is None else [pages]), beside / "pages", beside, store / "pages"]
    places = [place for place in near if not (place == store / "pages" and place.is_symlink())]
    links = {}
    for run_id in run_ids:
        page = next(
            (
                file
                for place in places
                if run_id_of_page(file := place / f"{run_id}.html") == run_id
            ),
            None,
        )
        if page is not None:
            # Bytes, since names of files need not be text; "./" so that none is ever taken for a
            # scheme.
            url = f"./{quote(os.fsencode(os.path.relpath(page, beside)))}"
            if cut(url) == url:  # half a URL leads nowhere
                links[run_id] = url
    return links
