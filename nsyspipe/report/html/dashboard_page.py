"""The page of a run store: a table of its runs, and the step time of each series of runs.

A series holds runs that can be compared.
"""

import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from email.utils import formatdate
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
from msgspec.structs import replace

from nsyspipe.comparison.run_kinds import WorkingRun, are_most_labels_shared, kinds_of_work
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
from nsyspipe.run.work import Work
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
# The end of the year 9999, in microseconds since 1970.
_MAX_CAPTURED_US = 253_402_300_799_999_999
# The meta element of a dashboard, whatever its runs. A file that has it may be replaced by a newer
# dashboard.
STORE = "nsyspipe-store"
DASHBOARD = "dashboard"

_SCRIPT_PARTS = (
    "board",
    "words",
    "axes",
    "pointer",
    "trend",
    "headline",
    "series",
    "filters",
    "table",
)
# Runs that an older nsyspipe saved without their work, whose work is computed: that takes long.
MAX_RUNS_WITHOUT_WORK = 200
# Fewer runs have a table, but no chart.
MIN_RUNS_IN_CHART = 4
# Rows that the table shows first. The scripts make the others when they come into view.
MAX_ROWS_IN_TABLE = 100
# Keys of `dashboard_runs` that the scripts need.
_RUN_KEYS_IN_DATA = ("captured", "finding", "most", "page")
# Letters of a run's name within the name of a series.
MAX_LETTERS_OF_RUN = 40


class Series(NamedTuple):
    """Runs that can be compared."""

    group: str
    # None where the runs have different labels.
    label: str | None
    # Whether the work of the runs is known, so that they can be ranked.
    is_known: bool


class StorePage(NamedTuple):
    """The page of a run store."""

    text: str
    n_runs: int
    unreadable: list[Unreadable]


def _gpu_name(run: Mapping[str, Any]) -> str:
    names = [name.removeprefix("NVIDIA ") for name in run["gpu_names"].split(", ") if name]
    return ", ".join(names) or "GPU not recorded"


def group_name(run: Mapping[str, Any]) -> str:
    """Return the number of ranks and their GPU. Runs of different groups cannot be compared."""
    n_ranks = run["n_ranks"]
    world_size = job_ranks(n_ranks, run["n_processes"], run["world_size"])
    of_world = f" of {world_size} ranks" if world_size not in (None, n_ranks) else ""
    unknown = ", world size not recorded" if world_size is None else ""
    return f"{n_ranks}{of_world} \N{MULTIPLICATION SIGN} {_gpu_name(run)}{unknown}"


def series_of(runs: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Return the series of each run.

    Only runs that `compare` ranks together share a series: runs of one group, whose steps do the
    same work. In a group where most runs share their label with another, each label is a series (a
    nightly job). Where most labels occur once (a commit's ID, the variants of a study), all runs of
    the same work are one, and its label is None. The group tells which work it is, if there are
    several.
    """
    series = [
        Series(f"{group_name(run)}, work not known", run["label"], is_known=False) for run in runs
    ]
    works = [Work.parsed(run[WORK]) for run in runs]
    groups = grouped(
        (group_name(run), WorkingRun(place, run["run_id"], run["label"], work))
        for place, (run, work) in enumerate(zip(runs, works, strict=True))
        if work is not None
    )
    for group, members in groups.items():
        for place, series_of_run in _series_of_group(group, members):
            series[place] = series_of_run
    return series


def _series_of_group(group: str, runs: Sequence[WorkingRun]) -> Iterator[tuple[int, Series]]:
    """Yield the place of each run of a group, and its series."""
    kinds = kinds_of_work(runs)
    is_by_label = are_most_labels_shared(runs)
    n_kinds_by_label = Counter[str]()
    for kind in kinds:
        n_kinds_by_label.update({run.label for run in kind})
    for kind in kinds:
        name_of_kind = _name_of_kind(group, kind, kinds, n_kinds_by_label)
        for run in kind:
            label = run.label if is_by_label else None
            n_kinds = n_kinds_by_label[run.label] if is_by_label else len(kinds)
            name = group if n_kinds == 1 else name_of_kind
            yield run.place, Series(name, label, is_known=True)


def _name_of_kind(
    group: str,
    kind: Sequence[WorkingRun],
    kinds: Sequence[Sequence[WorkingRun]],
    n_kinds_by_label: Mapping[str, int],
) -> str:
    """Return what tells a kind of a group from the others: its compute time, if needed a run."""
    least_ns = kind[0].compute_ns
    most_ns = kind[-1].compute_ns
    texts = [ms_text(ns, 2) for ns in (least_ns, most_ns) if ns < math.inf]
    # Both ends may read the same.
    span = " to ".join(dict.fromkeys(texts))
    compute = f"{span} a step" if span else "not known"
    name = f"{group}, compute {compute}"
    overlapping = [
        peer for peer in kinds if peer[0].compute_ns <= most_ns and least_ns <= peer[-1].compute_ns
    ]
    if len(overlapping) > 1:
        first = min(kind, key=attrgetter("place"))
        run_name = first.label if n_kinds_by_label[first.label] == 1 else first.run_id
        name += f", like {cut(run_name, MAX_LETTERS_OF_RUN)}"
    return name


def facets(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what runs can be filtered by: name, title, words and codes.

    The words are the distinct values in order, and the codes are each run's place among them.
    Labels come by their number of runs, the rest in their own order.
    """
    n_by_label = Counter(run["label"] for run in runs)
    labels = [((-n_by_label[run["label"]], run["label"]), run["label"]) for run in runs]
    world_sizes = [_world_size_option(run["world_size"]) for run in runs]
    gpu_names = [(_gpu_name(run), _gpu_name(run)) for run in runs]
    hosts = [_hosts_option(run["hosts"]) for run in runs]
    links = [_link_option(run["link_kind"]) for run in runs]
    return [
        _facet("label", "Label", labels),
        _facet("world", "World size", world_sizes),
        _facet("gpu", "GPU", gpu_names),
        _facet("hosts", "Hosts", hosts),
        _facet("link", "Slowest link", links),
    ]


def _facet(name: str, title: str, options: Sequence[tuple[Any, str]]) -> dict[str, Any]:
    """Return a facet of the options of each run: what they are sorted by, and the word."""
    codes = {option: code for code, option in enumerate(sorted(set(options)))}
    return {
        "name": name,
        "title": title,
        "words": [word for _, word in codes],
        "codes": [codes[option] for option in options],
    }


def _world_size_option(world_size: int | None) -> tuple[Any, str]:
    if world_size is None:
        return (True, 0), NOT_RECORDED
    return (False, world_size), str(world_size)


def _hosts_option(hosts: str) -> tuple[Any, str]:
    n_hosts = len([host for host in hosts.split(", ") if host])
    return n_hosts, str(n_hosts or NOT_RECORDED)


def _link_option(link_kind: str | None) -> tuple[Any, str]:
    link: Any = _LINKS.get(link_kind, link_kind)
    return (link == NOT_RECORDED, link), link


def value_of(run: Mapping[str, Any], figure: Figure) -> float | None:
    """Return a metric of a row of `schema.RUNS` to nine digits.

    It is null where a damaged file has no finite number, which no page could carry.
    """
    value = run[figure.column]
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.9g}")


def _without_outdated(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of `INDEX` without the metrics that have another definition in other rows.

    ``is_outdated`` tells which rows had such metrics.
    """
    versions = [row["definitions_version"] or FIRST_VERSION for row in rows]
    latest = latest_of(versions)
    current_rows = []
    for row, version in zip(rows, versions, strict=True):
        changed = changed_columns(version, latest)
        outdated = [figure.column for figure in FOLLOWED if not changed.isdisjoint(figure.of_step)]
        nulls = dict.fromkeys(outdated)
        current_rows.append(row | nulls | {"is_outdated": bool(outdated)})
    return current_rows


def _missing_text(run: Mapping[str, Any], figure: Figure) -> str:
    """Return in words why a run has no value of a metric."""
    is_wait = figure.column == "wait_share"
    if run.get("is_outdated"):
        return OLDER_DEFINITIONS
    if is_wait and run["n_ranks"] == 1:
        return "one rank"
    if (is_wait or figure.category == "hidden") and run["comm_share"] == 0:
        return "no communication"
    return NOT_RECORDED


def dashboard_runs(stored: StoredRuns, pages: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the runs by time of capture, as the store has them.

    Each has its ``row`` of `store.index.INDEX`, ``group``, ``captured`` in words and
    ``captured_ms`` since 1970 (UTC; None when not recorded), what to change first (``finding``),
    the ``most`` that it could save, how (``hint``), and the URL of its own ``page``, relative to
    the dashboard.
    """
    microseconds = stored.runs["captured_at_utc"].cast(pa.int64()).to_pylist()
    rows = _without_outdated(stored.runs.drop_columns(["captured_at_utc"]).to_pylist())
    return [
        _dashboard_run(row, captured_us, pages.get(row["run_id"]))
        for row, captured_us in zip(rows, microseconds, strict=True)
    ]


def _dashboard_run(
    row: Mapping[str, Any], captured_us: int | None, page: str | None
) -> dict[str, Any]:
    """Return one run of `dashboard_runs`, captured so long after the start of 1970."""
    captured_ms = None
    captured = NOT_RECORDED
    if captured_us is not None and 0 <= captured_us <= _MAX_CAPTURED_US:
        captured_ms = captured_us // 1000
        # Of "Sun, 01 Mar 2026 04:30:59 GMT", whatever the locale.
        captured = formatdate(captured_us // 1_000_000, usegmt=True)[5:22].lstrip("0")
    without_finding = "none" if row["n_findings"] == 0 else NOT_RECORDED
    saving_ns = row["first_saving_ns_per_step"]
    if row["is_outdated"] and row["first_finding"] == "straggler":
        # The saving rests on the older definitions of a straggler.
        saving_ns = None
    return {
        "row": row,
        "group": group_name(row),
        "captured": captured,
        "captured_ms": captured_ms,
        "finding": row["first_finding"] or without_finding,
        "most": f"at most {ms_text(saving_ns, 3)}" if saving_ns else None,
        "hint": row["first_action"],
        "page": page,
    }


def dashboard_page(
    stored: StoredRuns,
    *,
    title: str,
    pages: Mapping[str, str] | None = None,
    problems: Sequence[Unreadable] = (),
) -> str:
    """Return the page of all runs of a store as one HTML file.

    The file is complete and needs no network. The same store gives the same bytes.
    """
    runs = dashboard_runs(stored, pages or {})
    has_chart = len(runs) >= MIN_RUNS_IN_CHART
    rows = [run["row"] for run in runs]
    choices = [facet for facet in facets(rows) if len(facet["words"]) > 1]
    unreadable = [*stored.unreadable, *problems]
    headline, *remarks = _few_runs_sentences(title, runs)
    if has_chart:
        headline = f"{len(runs)} runs in {title}"
    sections = _sections(has_chart=has_chart, has_problems=bool(unreadable))
    has_pages = any(run["page"] for run in runs)
    context = {
        "sections": sections,
        "store": title,
        "has_chart": has_chart,
        "headline": headline,
        "remarks": remarks,
        "figures": FOLLOWED,
        "facets": choices,
        "rows": [*_latest_rows(runs)],
        "has_pages": has_pages,
        "unreadable": unreadable,
        "min_steps": MIN_STEPS,
    }
    return render(
        "dashboard.html.j2",
        f"{title}: nsyspipe dashboard",
        (STORE, DASHBOARD),
        context,
        {"dashboard": _data(runs, choices)} if has_chart else {},
        scripts=[f"dashboard_{part}" for part in _SCRIPT_PARTS] if has_chart else [],
        styles=("blocks.css", "answer.css", "dashboard.css", "dashboard_table.css"),
    )


class _TableRow(NamedTuple):
    """A row of the table that the template writes."""

    # Among all runs.
    place: int
    run: Mapping[str, Any]
    # For each metric the text, and whether the value is missing.
    cells: list[tuple[str, bool]]


def _latest_rows(runs: Sequence[Mapping[str, Any]]) -> Iterator[_TableRow]:
    """Yield the rows of the latest runs, the latest first."""
    for place in reversed(range(len(runs))[-MAX_ROWS_IN_TABLE:]):
        run = runs[place]
        yield _TableRow(place, run, [_cell(run["row"], figure) for figure in FOLLOWED])


def _sections(*, has_chart: bool, has_problems: bool) -> list[tuple[str, str]]:
    """Return the sections of the page: what an address and what navigation calls each."""
    sections = [("runs", "Runs")]
    if has_problems:
        sections.append(("problems", "Problems"))
    if not has_chart:
        return sections
    return [("step-time", "Step time"), *sections, ("reading", "How to read it")]


def _few_runs_sentences(title: str, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the sentences of a page without a chart: the latest run, and how to compare runs."""
    if not runs:
        return [f"There are no runs in {title}."]
    latest = runs[-1]["row"]
    step_time = FOLLOWED[0]
    text, is_missing = _cell(latest, step_time)
    step_time_text = f"step time {text}" if is_missing else f"{text} per step"
    sentences = [f"Latest run: {latest['label']}, {step_time_text}"]
    if len(runs) > 1:
        sentences.append(
            "A difference between runs may be noise. To find out, run nsyspipe compare STORE."
        )
    return sentences


def _cell(row: Mapping[str, Any], figure: Figure) -> tuple[str, bool]:
    """Return a metric of a run in words, and whether it is missing."""
    value = value_of(row, figure)
    if value is None:
        return _missing_text(row, figure), True
    return value_text(figure.unit, value), False


def _data(
    runs: Sequence[Mapping[str, Any]], choices: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what the scripts draw. Series and hints are listed once, and runs refer to them."""
    rows = [run["row"] for run in runs]
    distinct_hints = dict.fromkeys(run["hint"] for run in runs)
    place_of_hint = {hint: place for place, hint in enumerate(distinct_hints)}
    series = series_of(rows)
    columns = {
        "id": list(map(itemgetter("run_id"), rows)),
        "label": list(map(itemgetter("label"), rows)),
        "time": list(map(itemgetter("captured_ms"), runs)),
        "n_steps": list(map(itemgetter("n_summary_steps"), rows)),
    }
    columns["series"] = _places_in_order(series)
    columns["hint"] = [place_of_hint[run["hint"]] for run in runs]
    columns |= {name: list(map(itemgetter(name), runs)) for name in _RUN_KEYS_IN_DATA}
    data = {
        "min_steps": MIN_STEPS,
        "facets": [{"name": facet["name"], "codes": facet["codes"]} for facet in choices],
        "hints": [*distinct_hints],
        "runs": columns,
    }
    return data | _series_data(series) | _figures_data(rows)


def _in_order(series: Iterable[Series]) -> list[Series]:
    """Return each series once, by group and label."""
    return sorted(set(series), key=lambda line: (line.group, line.label or ""))


def _places_in_order(series: Sequence[Series]) -> list[int]:
    """Return for each run the place of its series among those that the data list."""
    places = {line: place for place, line in enumerate(_in_order(series))}
    return [places[line] for line in series]


def _series_data(series: Sequence[Series]) -> dict[str, Any]:
    """Return what the scripts need of the series, and their groups, the largest first."""
    n_runs_by_group = Counter(line.group for line in series)
    groups = sorted(n_runs_by_group, key=lambda group: (-n_runs_by_group[group], group))
    lines = [
        {"group": groups.index(line.group), "label": line.label, "is_known": line.is_known}
        for line in _in_order(series)
    ]
    return {"groups": groups, "series": lines}


def _figures_data(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of all runs, and why a value is missing."""
    figures = []
    values = {}
    missing = {}
    for figure in FOLLOWED:
        name = figure.column
        figures.append({"name": name, "title": figure.label, "kind": figure.unit})
        values[name] = [value_of(row, figure) for row in rows]
        missing[name] = {
            str(place): _missing_text(rows[place], figure)
            for place, value in enumerate(values[name])
            if value is None
        }
    return {"figures": figures, "values": values, "missing": missing}


def check_dashboard(path: str, store: Path, *, force: bool) -> None:
    """Refuse (OutputError) what may not be replaced, before any work is done."""
    target = Path(path)
    _check_no_link_inside(store, target)
    if target.suffix not in {"", ".html", ".htm"}:
        problem = f"is named {target.suffix}, and the page is HTML"
        raise OutputError(path, problem, fix=str(target.with_suffix(".html")))
    check_directory(path, f"{name_of_store(store)}.html")
    check_target(target, (), may_replace=lambda: True)
    if target.exists() and not force and identity_of_page(target, STORE) != DASHBOARD:
        raise OutputError(
            str(target),
            "exists, but is not a dashboard of nsyspipe",
            fix="use --force or another name",
        )


def _check_no_link_inside(store: Path, path: Path) -> None:
    """Refuse a path inside a store if a link leads out of it.

    Whoever may write to the store could have put the link there.
    """
    # By the links that were given, not by what they lead to.
    inside = os.path.relpath(os.path.abspath(path), os.path.abspath(store))  # noqa: PTH100
    if inside.startswith(os.pardir):
        return
    without_links = os.path.normpath(os.path.join(os.path.realpath(store), inside))  # noqa: PTH118
    if os.path.realpath(path) != without_links:
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
) -> StorePage:
    """Return the page of a store, after the pages of its runs are written, if `pages` is given."""
    stored = stored_runs(store, on_progress=stage("reading runs"))
    stored = replace(stored, runs=_with_works(stored.runs, store))
    run_ids = stored.runs["run_id"].to_pylist()
    without_page = []
    if pages is not None:
        without_page = write_pages(
            store, run_ids, pages, force=force, on_progress=stage("writing pages")
        )
    directory = Path() if target is None else target.parent
    links = page_links(store, run_ids, directory, pages)
    text = dashboard_page(stored, title=name_of_store(store), pages=links, problems=without_page)
    return StorePage(text, len(run_ids), [*stored.unreadable, *without_page])


def _with_works(runs: pa.Table, store: Path) -> pa.Table:
    """Return rows of `INDEX` with the work of the latest runs that were saved without it.

    An older nsyspipe did not save it.
    """
    works = runs[WORK].to_pylist()
    run_ids = runs["run_id"].to_pylist()
    without_work = [place for place, work in enumerate(works) if work is None]
    for place in without_work[-MAX_RUNS_WITHOUT_WORK:]:
        with contextlib.suppress(DatasetError, OptionError):
            works[place] = Work.of([open_saved(store, run_ids[place])]).saved()
    return runs.set_column(runs.schema.get_field_index(WORK), WORK, pa.array(works, pa.string()))


def write_pages(
    store: Path,
    run_ids: Sequence[str],
    pages: Path,
    *,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Unreadable]:
    """Write the page of each run as ``<run id>.html``, unless it is newer than the run.

    Returns the runs that have no page, because one of their tables cannot be read.
    """
    _check_no_link_inside(store, pages)
    _make_directory(pages)
    failed = []
    for n_done, run_id in enumerate(run_ids, start=1):
        path = pages / f"{run_id}.html"
        if force or not _is_fresh(path, store, run_id):
            try:
                text = run_page(open_saved(store, run_id))
            except (DatasetError, OptionError) as error:
                failed.append(Unreadable(run_id, "page", error.problem, error.fix))
            else:
                _write_page(path, text, run_id, force=force)
        if on_progress:
            on_progress(n_done, len(run_ids))
    return failed


def _make_directory(pages: Path) -> None:
    """Make a directory, or refuse one (OutputError) that cannot be made or entered."""
    try:
        pages.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            # Any name will do: this fails in a directory that may not be entered.
            (pages / "any").lstat()
    except OSError as error:
        why = f"cannot be made or entered ({error.strerror})"
        raise OutputError(str(pages), why, fix="--pages with another directory") from error


def _write_page(path: Path, text: str, run_id: str, *, force: bool) -> None:
    """Write the page of a run. Without force, only a page of the same run is replaced."""

    def may_replace() -> bool:
        return force or run_id_of_page(path) == run_id

    write_text(path, text, (), may_replace=may_replace, is_named=False)


def _is_fresh(path: Path, store: Path, run_id: str) -> bool:
    """Tell whether a file is the page of a run, and at least as new as the run."""
    if path.is_symlink() or run_id_of_page(path) != run_id:
        return False
    run_file = store / published(RUNS_FILE, run_id)
    try:
        return path.lstat().st_mtime_ns >= run_file.lstat().st_mtime_ns
    except OSError:  # replaced at this moment
        return False


def page_links(
    store: Path, run_ids: Iterable[str], directory: Path, pages: Path | None = None
) -> dict[str, str]:
    """Return the URL of each run's page, relative to a directory, without runs that have no page.

    Pages are looked for in `pages`, in that directory and its ``pages/``, and in ``pages/`` of the
    store. A file counts only if it says itself that it is the page of that run.
    """
    store_pages = store / "pages"
    directories = [directory / "pages", directory, store_pages]
    if pages is not None:
        directories.insert(0, pages)
    trusted = [place for place in directories if place != store_pages or not place.is_symlink()]
    links = {}
    for run_id in run_ids:
        files = (place / f"{run_id}.html" for place in trusted)
        page = next((file for file in files if run_id_of_page(file) == run_id), None)
        if page is None:
            continue
        # Bytes, since names of files need not be text. With "./", none is ever taken for a scheme.
        url = f"./{quote(os.fsencode(os.path.relpath(page, directory)))}"
        is_whole = cut(url) == url
        if is_whole:
            links[run_id] = url
    return links
