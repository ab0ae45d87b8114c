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
from nsyspipe.model.typed_tables import (
    RunsRow,
    RunsTable,
)
from nsyspipe.report.files import check_place_for_file, check_target, identity_of_page, write_text
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

_STYLES = ("blocks.css", "answer.css", "dashboard.css", "dashboard_table.css")
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


class _Option(NamedTuple):
    """A value by which runs can be filtered."""

    # Options are sorted by this.
    sort_key: Any
    word: str


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
    """Return the names of the GPUs of a run, without the word NVIDIA."""
    gpus = filter(None, run["gpu_names"].split(", "))  # The text "" has no GPU.
    names = [gpu.removeprefix("NVIDIA ") for gpu in gpus]
    return ", ".join(names) or "GPU not recorded"


def group_name(run: Mapping[str, Any]) -> str:
    """Return the name of the group of a run: the number of ranks and their GPU.

    Runs of different groups cannot be compared.
    """
    n_ranks = run["n_ranks"]
    world_size = job_ranks(n_ranks, run["n_processes"], run["world_size"])
    ranks = f"{n_ranks}"
    remark = ""
    if world_size is None:
        remark = ", world size not recorded"
    elif world_size != n_ranks:
        ranks = f"{n_ranks} of {world_size} ranks"
    return f"{ranks} \N{MULTIPLICATION SIGN} {_gpu_name(run)}{remark}"


def series_of(runs: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Return the series of each run, in order of the runs.

    Only runs that `compare` ranks together share a series: runs of one group, whose steps do the
    same work. In a group where most runs share their label with another run, there is a series for
    each label and work (a nightly job). In a group where most labels occur once (commit IDs, the
    variants of a study), there is a series for each work, whose label is None. If several series
    of a group have the same label, their field `group` also names the work.
    """
    series_of_runs = []
    groups_and_runs = []
    for place, run in enumerate(runs):
        group = group_name(run)
        label = run["label"]
        without_work = Series(f"{group}, work not known", label, is_known=False)
        series_of_runs.append(without_work)
        work = Work.parsed(run[WORK])
        if work is not None:
            working_run = WorkingRun(place, run["run_id"], label, work)
            groups_and_runs.append((group, working_run))
    # The runs whose work is known get the series of that work.
    runs_by_group = grouped(groups_and_runs)
    for group, runs_of_group in runs_by_group.items():
        for place, series in _series_of_group(group, runs_of_group):
            series_of_runs[place] = series
    return series_of_runs


def _series_of_group(group: str, runs: Sequence[WorkingRun]) -> Iterator[tuple[int, Series]]:
    """Yield the place of each run of a group among all runs, and the series of the run.

    A kind is a list of runs that do the same work. Each kind has a series, or a series for each
    label.
    """
    kinds = kinds_of_work(runs)
    has_series_per_label = are_most_labels_shared(runs)
    n_kinds_by_label = Counter[str]()
    for kind in kinds:
        labels = {run.label for run in kind}
        n_kinds_by_label.update(labels)
    for kind in kinds:
        name_of_kind = _name_of_kind(group, kind, kinds, n_kinds_by_label)
        for run in kind:
            if has_series_per_label:
                label = run.label
                is_only_kind = n_kinds_by_label[run.label] == 1
            else:
                label = None
                is_only_kind = len(kinds) == 1
            # If no other kind has the same group and label, the name of the group is enough.
            name = group if is_only_kind else name_of_kind
            series = Series(name, label, is_known=True)
            yield run.place, series


def _name_of_kind(
    group: str,
    kind: Sequence[WorkingRun],
    kinds: Sequence[Sequence[WorkingRun]],
    n_kinds_by_label: Mapping[str, int],
) -> str:
    """Return a name for a kind, different from the names of the other kinds of its group.

    The name has the range of compute times of the runs. If the range overlaps with the range of
    another kind, the name also has the label or ID of a run. `kind` is sorted by compute time.
    """
    least_ns = kind[0].compute_ns
    most_ns = kind[-1].compute_ns
    # A compute time that is not known is infinite.
    known_ns = [ns for ns in (least_ns, most_ns) if ns < math.inf]
    texts = [ms_text(ns, 2) for ns in known_ns]
    # Both ends may read the same. Then there is one text.
    span = " to ".join(dict.fromkeys(texts))
    compute = f"{span} a step" if span else "not known"
    name = f"{group}, compute {compute}"
    overlapping_kinds = [peer for peer in kinds if _overlaps(peer, least_ns, most_ns)]
    # One of these kinds is the kind itself.
    does_overlap_with_others = len(overlapping_kinds) > 1
    if does_overlap_with_others:
        first_run = min(kind, key=attrgetter("place"))
        is_label_enough = n_kinds_by_label[first_run.label] == 1
        run_name = first_run.label if is_label_enough else first_run.run_id
        name += f", like {cut(run_name, MAX_LETTERS_OF_RUN)}"
    return name


def _overlaps(kind: Sequence[WorkingRun], least_ns: float, most_ns: float) -> bool:
    """Tell whether the compute times of a kind, sorted by them, overlap with a range."""
    begins_before_end = kind[0].compute_ns <= most_ns
    ends_after_begin = kind[-1].compute_ns >= least_ns
    return begins_before_end and ends_after_begin


def facets(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what runs can be filtered by, each with ``name``, ``title``, ``words`` and ``codes``.

    ``words`` are the distinct values, sorted. ``codes`` has for each run the place of its value in
    ``words``. The label of most runs comes first. All other values are sorted by their size or in
    alphabetical order.
    """
    all_labels = [run["label"] for run in runs]
    n_by_label = Counter(all_labels)
    labels = [_label_option(label, n_by_label[label]) for label in all_labels]
    world_sizes = [_world_size_option(run["world_size"]) for run in runs]
    gpu_names = list(map(_gpu_name, runs))
    gpus = [_Option(sort_key=name, word=name) for name in gpu_names]
    hosts = [_hosts_option(run["hosts"]) for run in runs]
    links = [_link_option(run["link_kind"]) for run in runs]
    return [
        _facet("label", "Label", labels),
        _facet("world", "World size", world_sizes),
        _facet("gpu", "GPU", gpus),
        _facet("hosts", "Hosts", hosts),
        _facet("link", "Slowest link", links),
    ]


def _facet(name: str, title: str, options: Sequence[_Option]) -> dict[str, Any]:
    """Return one entry of `facets`. `options` has the value of each run."""
    distinct_options = sorted(set(options))
    words = [option.word for option in distinct_options]
    code_of_option = {option: code for code, option in enumerate(distinct_options)}
    codes = [code_of_option[option] for option in options]
    return {"name": name, "title": title, "words": words, "codes": codes}


def _label_option(label: str, n_runs: int) -> _Option:
    """Return the option of a label. The label of most runs is first."""
    most_runs_first = -n_runs
    return _Option(sort_key=(most_runs_first, label), word=label)


def _world_size_option(world_size: int | None) -> _Option:
    """Return the option of a world size. What was not recorded is last."""
    is_unknown = world_size is None
    word = NOT_RECORDED if is_unknown else str(world_size)
    return _Option(sort_key=(is_unknown, world_size or 0), word=word)


def _hosts_option(hosts: str) -> _Option:
    """Return the option of a number of hosts. What was not recorded is first."""
    names = [name for name in hosts.split(", ") if name]
    n_hosts = len(names)
    word = str(n_hosts) if n_hosts else NOT_RECORDED
    return _Option(sort_key=n_hosts, word=word)


def _link_option(link_kind: str | None) -> _Option:
    """Return the option of a kind of link. What was not recorded is last."""
    link: Any = _LINKS.get(link_kind, link_kind)
    is_unknown = link == NOT_RECORDED
    return _Option(sort_key=(is_unknown, link), word=link)


def value_of(run: Mapping[str, Any], figure: Figure) -> float | None:
    """Return a metric of a row of `schema.RUNS` to nine digits; None if it was not recorded.

    A number that is not finite is None too. Only a damaged file has one, and no page could carry
    it.
    """
    value = run[figure.column]
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.9g}")


def _with_outdated_as_none(rows: Sequence[RunsRow]) -> list[dict[str, Any]]:
    """Return all rows of `INDEX`. In them, metrics with an outdated definition are None.

    The latest version of the definitions in any row counts. A metric is outdated if its definition
    has changed since the version of its row. Key ``is_outdated`` tells whether a row had such
    metrics.
    """
    versions = [row["definitions_version"] or FIRST_VERSION for row in rows]
    latest_version = latest_of(versions)
    current_rows = []
    for row, version in zip(rows, versions, strict=True):
        changed_step_columns = changed_columns(version, latest_version)
        # A metric is outdated if a column of the steps that it is computed from has changed.
        outdated = [
            figure.column
            for figure in FOLLOWED
            if not changed_step_columns.isdisjoint(figure.of_step)
        ]
        nulls = dict.fromkeys(outdated)
        current_rows.append({**row, **nulls, "is_outdated": bool(outdated)})
    return current_rows


def _missing_text(run: Mapping[str, Any], figure: Figure) -> str:
    """Return in words why a run has no value of a metric."""
    is_wait = figure.column == "wait_share"
    if run.get("is_outdated"):
        return OLDER_DEFINITIONS
    if is_wait and run["n_ranks"] == 1:
        return "one rank"
    # The category of metrics about overlap with communication.
    is_overlap = figure.category == "hidden"
    needs_comm = is_wait or is_overlap
    if needs_comm and run["comm_share"] == 0:
        return "no communication"
    return NOT_RECORDED


def dashboard_runs(stored: StoredRuns, pages: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a dict per run, in the order of the store: by time of capture.

    `pages` are the URLs of pages of runs, relative to the dashboard, by run ID.

    Keys of a run:

    - ``row``: its row of `store.index.INDEX`.
    - ``group``: the name of its group.
    - ``captured``: the time of capture in words.
    - ``captured_ms``: the time of capture in ms since 1970 in UTC, or None if not recorded.
    - ``finding``: what to change first.
    - ``most``: the most that this change could save.
    - ``hint``: how to make the change.
    - ``page``: the URL of its page, or None without a page.
    """
    captured_at = stored.runs["captured_at_utc"]
    captured_us_of_runs = captured_at.cast(pa.int64()).to_pylist()
    without_times = stored.runs.drop_columns(["captured_at_utc"])
    rows = _with_outdated_as_none(without_times.to_pylist())
    runs = []
    for row, captured_us in zip(rows, captured_us_of_runs, strict=True):
        page = pages.get(row["run_id"])
        runs.append(_dashboard_run(row, captured_us, page))
    return runs


def _dashboard_run(
    row: Mapping[str, Any], captured_us: int | None, page: str | None
) -> dict[str, Any]:
    """Return one run of `dashboard_runs`, captured `captured_us` after the start of 1970 in UTC."""
    # A damaged file may have a time that no calendar has.
    if captured_us is not None and 0 <= captured_us <= _MAX_CAPTURED_US:
        captured_ms = captured_us // 1000
        captured = _minute_text(captured_us // 1_000_000)
    else:
        captured_ms = None
        captured = NOT_RECORDED
    finding = row["first_finding"]
    without_finding = "none" if row["n_findings"] == 0 else NOT_RECORDED
    saving_ns = row["first_saving_ns_per_step"]
    if row["is_outdated"] and finding == "straggler":
        # The saving rests on the older definitions of a straggler.
        saving_ns = None
    most = f"at most {ms_text(saving_ns, 3)}" if saving_ns else None
    return {
        "row": row,
        "group": group_name(row),
        "captured": captured,
        "captured_ms": captured_ms,
        "finding": finding or without_finding,
        "most": most,
        "hint": row["first_action"],
        "page": page,
    }


def _minute_text(time_s: int) -> str:
    """Return a time in s since 1970, ``1 Mar 2026 04:30``. It is the same in all locales."""
    # Such as "Sun, 01 Mar 2026 04:30:59 GMT".
    http_date = formatdate(time_s, usegmt=True)
    day_to_minute = http_date[5:22]
    return day_to_minute.lstrip("0")


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
    headline, *remarks = _first_sentences(title, runs, has_chart=has_chart)
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
        "rows": _latest_rows(runs),
        "has_pages": has_pages,
        "unreadable": unreadable,
        "min_steps": MIN_STEPS,
    }
    data: dict[str, object] = {}
    scripts: list[str] = []
    if has_chart:
        data["dashboard"] = _data(runs, choices)
        scripts += [f"dashboard_{part}" for part in _SCRIPT_PARTS]
    return render(
        "dashboard.html.j2",
        f"{title}: nsyspipe dashboard",
        (STORE, DASHBOARD),
        context,
        data,
        scripts=scripts,
        styles=_STYLES,
    )


class _TableRow(NamedTuple):
    """A row of the table that the template writes."""

    # Among all runs.
    place: int
    run: Mapping[str, Any]
    # For each metric the text, and whether the value is missing.
    cells: list[tuple[str, bool]]


def _latest_rows(runs: Sequence[Mapping[str, Any]]) -> list[_TableRow]:
    """Return the rows of the latest runs, the latest first. In `runs`, the latest is last."""
    rows = []
    first_place = max(len(runs) - MAX_ROWS_IN_TABLE, 0)
    for place in reversed(range(first_place, len(runs))):
        run = runs[place]
        cells = [_cell(run["row"], figure) for figure in FOLLOWED]
        rows.append(_TableRow(place, run, cells))
    return rows


def _sections(*, has_chart: bool, has_problems: bool) -> list[tuple[str, str]]:
    """Return the sections of the page: the anchor and the title of each."""
    sections = [("runs", "Runs")]
    if has_problems:
        sections.append(("problems", "Problems"))
    if not has_chart:
        return sections
    return [("step-time", "Step time"), *sections, ("reading", "How to read it")]


def _first_sentences(
    title: str, runs: Sequence[Mapping[str, Any]], *, has_chart: bool
) -> list[str]:
    """Return the headline of the page, and remarks if the page has no chart."""
    if has_chart:
        return [f"{len(runs)} runs in {title}"]
    return _few_runs_sentences(title, runs)


def _few_runs_sentences(title: str, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the sentences of a page without a chart: the latest run, and how to compare runs."""
    if not runs:
        return [f"There are no runs in {title}."]
    latest = runs[-1]["row"]
    # The step time is the metric that is followed first.
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
    """Return what the scripts draw.

    Each series and each hint is listed once. A run has their places in these lists.
    """
    rows = [run["row"] for run in runs]
    hints = _values(runs, "hint")
    distinct_hints = [*dict.fromkeys(hints)]
    place_of_hint = {hint: place for place, hint in enumerate(distinct_hints)}
    series_of_runs = series_of(rows)
    columns = {
        "id": _values(rows, "run_id"),
        "label": _values(rows, "label"),
        "time": _values(runs, "captured_ms"),
        "n_steps": _values(rows, "n_summary_steps"),
    }
    columns["series"] = _places_of_series(series_of_runs)
    columns["hint"] = [place_of_hint[hint] for hint in hints]
    columns |= {name: _values(runs, name) for name in _RUN_KEYS_IN_DATA}
    codes = [{"name": facet["name"], "codes": facet["codes"]} for facet in choices]
    data = {
        "min_steps": MIN_STEPS,
        "facets": codes,
        "hints": distinct_hints,
        "runs": columns,
    }
    return data | _series_data(series_of_runs) | _figures_data(rows)


def _values(rows: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    return list(map(itemgetter(key), rows))


def _distinct_series(series_of_runs: Iterable[Series]) -> list[Series]:
    """Return each series once, by group and label."""
    return sorted(set(series_of_runs), key=lambda series: (series.group, series.label or ""))


def _places_of_series(series_of_runs: Sequence[Series]) -> list[int]:
    """Return for each run the place of its series among `_distinct_series`."""
    listed_series = _distinct_series(series_of_runs)
    place_of_series = {series: place for place, series in enumerate(listed_series)}
    return [place_of_series[series] for series in series_of_runs]


def _series_data(series_of_runs: Sequence[Series]) -> dict[str, Any]:
    """Return what the scripts need of each series, and the names of groups.

    The group with most runs is first. A series has the place of its group in that list.
    """
    n_runs_by_group = Counter(series.group for series in series_of_runs)
    by_name = sorted(n_runs_by_group)
    # The sort is stable, so groups of the same size stay in order of their names.
    groups = sorted(by_name, key=n_runs_by_group.__getitem__, reverse=True)
    entries = []
    for series in _distinct_series(series_of_runs):
        place_of_group = groups.index(series.group)
        entry = {"group": place_of_group, "label": series.label, "is_known": series.is_known}
        entries.append(entry)
    return {"groups": groups, "series": entries}


def _figures_data(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics, their values in order of the runs, and why values are missing.

    In ``missing``, the reasons are by metric, then by the place of the run as text.
    """
    figures = []
    values = {}
    missing = {}
    for figure in FOLLOWED:
        name = figure.column
        figures.append({"name": name, "title": figure.label, "kind": figure.unit})
        figure_values = [value_of(row, figure) for row in rows]
        values[name] = figure_values
        why_missing = {}
        for place, value in enumerate(figure_values):
            if value is None:
                why_missing[str(place)] = _missing_text(rows[place], figure)
        missing[name] = why_missing
    return {"figures": figures, "values": values, "missing": missing}


def check_dashboard(path: str, store: Path, *, force: bool) -> None:
    """Raise an OutputError if `path` cannot become the page of a store, before any work is done.

    Without `force`, a file at the path may only be replaced if it is a dashboard.
    """
    target = Path(path)
    _check_no_link_inside(store, target)
    if target.suffix not in {"", ".html", ".htm"}:
        problem = f"is named {target.suffix}, and the page is HTML"
        with_suffix = target.with_suffix(".html")
        raise OutputError(path, problem, fix=str(with_suffix))
    check_place_for_file(path, f"{name_of_store(store)}.html")
    # Whether another page may be replaced is checked below, with a fix that fits a dashboard.
    check_target(target, inputs=(), may_replace=lambda: True)
    if force or not target.exists():
        return
    if identity_of_page(target, STORE) != DASHBOARD:
        problem = "exists, but is not a dashboard of nsyspipe"
        raise OutputError(str(target), problem, fix="use --force or another name")


def _check_no_link_inside(store: Path, path: Path) -> None:
    """Refuse a path inside a store if a link leads out of it.

    Whoever may write to the store could have put the link there.
    """
    # Both paths as the user wrote them: `abspath` follows no links.
    absolute_path = os.path.abspath(path)  # noqa: PTH100
    absolute_store = os.path.abspath(store)  # noqa: PTH100
    path_from_store = os.path.relpath(absolute_path, absolute_store)
    is_outside_store = path_from_store.startswith(os.pardir)
    if is_outside_store:
        return
    real_store = os.path.realpath(store)
    path_without_links = os.path.join(real_store, path_from_store)  # noqa: PTH118
    if os.path.realpath(path) != os.path.normpath(path_without_links):
        problem = "is reached by a link inside the store"
        raise OutputError(str(path), problem, fix="remove the link, or another name")


def store_page(
    store: Path,
    target: Path | None,
    pages: Path | None,
    *,
    force: bool = False,
    stage: Callable[[str], Callable[[int, int], None] | None] = lambda _: None,
) -> StorePage:
    """Return the page of a store. First write the page of each run into `pages`, unless it is None.

    Links to these pages are relative to the directory of `target`. `stage` gets the name of each
    stage, and returns a function that shows the progress of the stage, or None.
    """
    stored_without_works = stored_runs(store, on_progress=stage("reading runs"))
    runs = _with_works(stored_without_works.runs, store)
    stored = replace(stored_without_works, runs=runs)
    run_ids = runs["run_id"].to_pylist()
    without_page = []
    if pages is not None:
        on_progress = stage("writing pages")
        without_page = write_pages(store, run_ids, pages, force=force, on_progress=on_progress)
    directory = Path() if target is None else target.parent
    links = page_links(store, run_ids, directory, pages)
    text = dashboard_page(stored, title=name_of_store(store), pages=links, problems=without_page)
    unreadable = [*stored.unreadable, *without_page]
    return StorePage(text, len(run_ids), unreadable)


def _with_works(runs: RunsTable, store: Path) -> pa.Table:
    """Return rows of `INDEX` with the work of runs that an older nsyspipe saved without it.

    The work is computed only for the latest `MAX_RUNS_WITHOUT_WORK` of these runs. It stays null if
    a run cannot be read.
    """
    works = runs.column(WORK).to_pylist()
    run_ids = runs["run_id"].to_pylist()
    places_without_work = [place for place, work in enumerate(works) if work is None]
    for place in places_without_work[-MAX_RUNS_WITHOUT_WORK:]:
        with contextlib.suppress(DatasetError, OptionError):
            run = open_saved(store, run_ids[place])
            works[place] = Work.of([run]).saved()
    place_of_column = runs.schema.get_field_index(WORK)
    column = pa.array(works, pa.string())
    return runs.set_column(place_of_column, WORK, column)


def write_pages(
    store: Path,
    run_ids: Sequence[str],
    pages: Path,
    *,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Unreadable]:
    """Write the page of each run into directory `pages`, as ``<run id>.html``.

    Without `force`, a page that is newer than its run stays. Return the runs that get no page,
    because one of their tables cannot be read.
    """
    _check_no_link_inside(store, pages)
    _make_directory(pages)
    failed = []
    for n_done, run_id in enumerate(run_ids, start=1):
        path = pages / f"{run_id}.html"
        if force or not _is_fresh(path, store, run_id):
            try:
                run = open_saved(store, run_id)
                text = run_page(run)
            except (DatasetError, OptionError) as error:
                without_page = Unreadable(run_id, "page", error.problem, error.fix)
                failed.append(without_page)
            else:
                _write_page(path, text, run_id, force=force)
        if on_progress:
            on_progress(n_done, len(run_ids))
    return failed


def _make_directory(pages: Path) -> None:
    """Make a directory. Raise an OutputError if it cannot be made or entered."""
    try:
        pages.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            # The name does not matter. In a directory that may not be entered, this raises a
            # PermissionError.
            (pages / "any").lstat()
    except OSError as error:
        why = f"cannot be made or entered ({error.strerror})"
        raise OutputError(str(pages), why, fix="--pages with another directory") from error


def _write_page(path: Path, text: str, run_id: str, *, force: bool) -> None:
    """Write the page of a run. Without `force`, replace only a page of the same run."""

    def may_replace() -> bool:
        return force or run_id_of_page(path) == run_id

    write_text(path, text, (), may_replace=may_replace, is_named=False)


def _is_fresh(path: Path, store: Path, run_id: str) -> bool:
    """Tell whether a file is the page of a run, and at least as new as the run."""
    if path.is_symlink() or run_id_of_page(path) != run_id:
        return False
    run_file = store / published(RUNS_FILE, run_id)
    try:
        page_time_ns = path.lstat().st_mtime_ns
        run_time_ns = run_file.lstat().st_mtime_ns
    except OSError:  # replaced at this moment
        return False
    return page_time_ns >= run_time_ns


def page_links(
    store: Path, run_ids: Iterable[str], directory: Path, pages: Path | None = None
) -> dict[str, str]:
    """Return the URL of the page of each run that has one, by run ID, relative to `directory`.

    Pages are looked for in `pages`, in ``pages/`` of `directory`, in `directory`, and in ``pages/``
    of the store. A file counts only if its text says that it is the page of that run.
    """
    store_pages = store / "pages"
    directories = [directory / "pages", directory, store_pages]
    if pages is not None:
        directories.insert(0, pages)
    # Whoever may write to the store could make its pages a link to anywhere.
    if store_pages.is_symlink():
        directories = [place for place in directories if place != store_pages]
    links = {}
    for run_id in run_ids:
        page = _page_of_run(run_id, directories)
        if page is None:
            continue
        # Bytes, since names of files need not be text.
        name = os.fsencode(os.path.relpath(page, directory))
        # Without "./", a name such as "a:b.html" would be a URL with the scheme "a".
        url = f"./{quote(name)}"
        # A page shows long texts cut, and a cut URL leads nowhere.
        is_short_enough = cut(url) == url
        if is_short_enough:
            links[run_id] = url
    return links


def _page_of_run(run_id: str, directories: Iterable[Path]) -> Path | None:
    """Return the page of a run in the first directory that has one."""
    for directory in directories:
        file = directory / f"{run_id}.html"
        if run_id_of_page(file) == run_id:
            return file
    return None
