"""The page of a store: groups, series, facets, figures that are null, links; whose it is, and that names are only text."""

# ruff: noqa: RUF001 - the multiplication sign is what pages show

import json
import os
import re
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import nsyspipe
from nsyspipe.errors import OutputError
from nsyspipe.report.files import identity_of_page
from nsyspipe.report.html import dashboard_page as dashboard
from nsyspipe.report.html.page import RUN_ID, run_id_of_page
from nsyspipe.store.index import Unreadable, stored_runs
from nsyspipe.store.write import save
from tests.build.hostile import HOSTILE
from tests.dashboard_store import (
    add_run,
    add_series,
    days,
    file_of,
    finding_row,
    run_row,
    work_text,
)

FIGURES = {figure.short: figure for figure in dashboard.FOLLOWED}


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "4 × H200"),
        ({"gpu_names": "NVIDIA A100-SXM4-80GB, NVIDIA H200"}, "4 × A100-SXM4-80GB, H200"),
        ({"gpu_names": "AMD MI300X"}, "4 × AMD MI300X"),
    ],
)
def test_a_group_is_the_world_size_and_the_gpu_model(changes, name):
    assert dashboard.group_name(run_row("a", **changes)) == name


@pytest.mark.parametrize(
    "changes",
    [{"gpu_names": ""}, {"world_size": None}, {"n_ranks": 3}],
    ids=["no GPU", "no world size", "3 of 4 ranks"],
)
def test_a_group_says_what_it_lacks(changes, worded):
    worded(dashboard.group_name(run_row("a", **changes)))


@pytest.mark.parametrize(
    ("pairs", "labels"),
    [
        # A label that comes again is a series; those that are there once are none.
        ([("a", 4), ("b", 4), ("a", 4), ("b", 4)], ["a", "b", "a", "b"]),
        ([("a", 4), ("b", 4), ("c", 4)], [None] * 3),
        # Two of four runs share theirs; then one more run has its own, and two of five is less than
        # half.
        ([("a", 4), ("a", 4), ("b", 4), ("c", 4)], ["a", "a", "b", "c"]),
        ([("a", 4), ("a", 4), ("b", 4), ("c", 4), ("d", 4)], [None] * 5),
        # Each group decides for itself.
        ([("a", 4), ("a", 4), ("a", 8), ("b", 8)], ["a", "a", None, None]),
    ],
)
def test_labels_that_half_of_a_group_share_are_series(pairs, labels):
    rows = [run_row("a", label=label, n_ranks=n, world_size=n) for label, n in pairs]
    assert [label for _, label, _ in dashboard.series_of(rows)] == labels


def test_runs_are_joined_only_where_their_steps_do_the_same_work():
    def names(*works, labels="abcdef", **changes):
        rows = [
            run_row(f"r{at}", label=label, work=work, **changes)
            for at, (label, work) in enumerate(zip(labels, works, strict=False))
        ]
        return [
            (group.removeprefix("4 × H200"), label) for group, label, _ in dashboard.series_of(rows)
        ]

    short, long = ", compute 20 ms to 30 ms a step", ", compute 60 ms a step"
    works = [work_text(ns) for ns in (6e7, 3e7, 2e7)]
    assert [name for name, _ in names(*works)] == [long, short, short]
    # Whatever steps are called; but not where the kernels are others, or more ranks share a batch.
    assert {*names(*works[1:], step_family="x #")} == {("", None)}
    for other in ({"kernel": "conv"}, {"n_sharing": 2}, {"source": "repetition"}):
        said = [f", compute 20 ms a step, like {label}" for label in "ab"]
        assert [name for name, _ in names(work_text(2e7), work_text(2e7, **other))] == said, other
    assert [name for name, _ in names(work_text(None), works[2], work_text(None))][:2] == [
        ", compute not known",
        ", compute 20 ms a step",
    ]
    # A label that stands for two programs is two series.
    assert names(*works, works[2], labels="aabb") == [
        (f"{long}", "a"),
        (short, "a"),
        ("", "b"),
        ("", "b"),
    ]
    # Runs of a store that lacks it are not ranked.
    rows = [run_row("a", work=None), run_row("b", work="[]"), run_row("c")]
    unknown = ("4 × H200, work not known", "nightly", False)
    assert dashboard.series_of(rows) == [unknown, unknown, ("4 × H200", None, True)]


@pytest.mark.slow
def test_series_are_those_that_compare_ranks_together(real, store):
    names = ("ddp-2gpu", "ddp-2gpu-bucket100", "2gpu-tp", "2gpu-gpt-b25")
    runs = {
        name: nsyspipe.load(sorted(real.glob(f"{name}_[0-9].sqlite")), run_id=name, jobs=1)
        for name in names
    }
    for run in runs.values():
        save(run, store)
    found = stored_runs(store).runs
    former = found.set_column(
        found.schema.get_field_index("work"), "work", pa.nulls(found.num_rows, pa.string())
    )
    for rows in (found, dashboard._with_works(former, store)):
        of_series = {}
        for row, series in zip(
            rows.to_pylist(), dashboard.series_of(rows.to_pylist()), strict=True
        ):
            of_series.setdefault(series, []).append(row["run_id"])
        assert {tuple(sorted(some)) for some in of_series.values()} == {
            tuple(sorted(kind.labels)) for kind in nsyspipe.compare(runs).kinds
        }, rows


def test_facets_hold_the_values_in_their_own_order():
    rows = [
        run_row("1", label="b", world_size=16, hosts="n0, n1", link_kind="shm"),
        run_row("2", label="a", world_size=8, hosts="n0", link_kind=None),
        run_row("3", label="b", world_size=None, hosts="", link_kind="unknown", gpu_names="L4"),
    ]
    assert {one["name"]: (one["words"], one["codes"]) for one in dashboard.facets(rows)} == {
        "label": (["b", "a"], [0, 1, 0]),  # b has two runs
        "world": (["8", "16", "not recorded"], [1, 0, 2]),
        "gpu": (["H200", "L4"], [0, 0, 1]),
        "hosts": (["not recorded", "1", "2"], [2, 1, 0]),
        "link": (["host memory", "not recorded"], [0, 1, 1]),
    }


@pytest.mark.parametrize(
    ("figure", "changes", "text"),
    [
        ("step time", {}, "100.0 ms"),
        ("throughput", {}, "10.00 steps/s"),
        ("exposed comm", {"exposed_comm_share": 0.0}, "0.0%"),
        ("step time", {"step_time_ns": None}, "not recorded"),
        ("wait", {"wait_share": None}, "not recorded"),
        ("wait", {"wait_share": None, "n_ranks": 1}, "one rank"),
        ("wait", {"wait_share": None, "comm_share": 0.0}, "no communication"),
        (
            "overlap with backward",
            {"backward_overlap_ratio": None, "comm_share": 0.0},
            "no communication",
        ),
        (
            "overlap with backward",
            {"backward_overlap_ratio": None, "comm_share": None},
            "not recorded",
        ),
        ("idle", {"idle_share": float("nan")}, "not recorded"),
        ("total comm", {"comm_share": float("inf")}, "not recorded"),
    ],
)
def test_a_figure_is_a_number_a_zero_or_says_why_not(figure, changes, text):
    assert dashboard._cell(run_row("a", **changes), FIGURES[figure])[0] == text


@pytest.mark.parametrize(
    ("captured", "words"),
    [
        (datetime(2026, 3, 1, 4, 30, 59, tzinfo=UTC), "1 Mar 2026 04:30"),
        (datetime(1970, 1, 1, tzinfo=UTC), "1 Jan 1970 00:00"),
        (None, "not recorded"),
        (datetime(1969, 12, 31, tzinfo=UTC), "not recorded"),  # no clock of a capture
    ],
)
def test_a_time_of_capture_is_in_utc_and_the_same_everywhere(tmp_path, captured, words):
    add_run(tmp_path, "a", captured_at_utc=captured)
    (run,) = dashboard.dashboard_runs(stored_runs(tmp_path), {})
    assert run["captured"] == words
    assert run["captured_ms"] == (
        None if words == "not recorded" else int(captured.timestamp()) * 1000
    )


@pytest.mark.parametrize(
    ("findings", "finding"),
    [
        ([], "none"),
        ([finding_row()], "single-bucket"),
        ([finding_row(saving_ns_per_step=None)], "single-bucket"),
    ],
)
def test_a_run_has_its_first_finding_and_the_upper_bound_of_it(tmp_path, findings, finding, worded):
    add_run(tmp_path, "a", findings=findings)
    (run,) = dashboard.dashboard_runs(stored_runs(tmp_path), {})
    assert run["finding"] == finding
    worded(str(run["most"]))


def test_a_run_of_an_older_store_does_not_say_whether_it_has_findings(tmp_path):
    add_run(tmp_path, "a", n_findings=None)
    (run,) = dashboard.dashboard_runs(stored_runs(tmp_path), {})
    assert run["finding"] == "not recorded"


def page_of(path, run_id):
    path.parent.mkdir(parents=True, exist_ok=True)
    head = '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    path.write_text(f'{head}\n<meta name="{RUN_ID}" content="{run_id}">', encoding="utf-8")


def links(tmp_path, pages=None):
    return dashboard.page_links(tmp_path / "store", ("a",), tmp_path / "site", pages)


def test_pages_are_looked_for_in_order(tmp_path):
    assert links(tmp_path) == {}
    places = {
        "store/pages": "../store/pages/",
        "site": "",
        "site/pages": "pages/",
        "given": "../given/",
    }
    for folder, url in places.items():
        page_of(tmp_path / folder / "a.html", "a")
        assert links(tmp_path, tmp_path / "given")["a"] == f"./{url}a.html", folder
    # A page of another run or of anything else is none.
    page_of(tmp_path / "site" / "a.html", "b")
    (tmp_path / "site" / "c.html").write_text("<html>")
    assert dashboard.page_links(tmp_path / "other", ("b", "c"), tmp_path / "site", None) == {}


def test_urls_are_relative_and_encoded_whether_names_are_text_or_not(tmp_path):
    for name, url in ((os.fsencode('p 100%"?#é'), "p%20100%25%22%3F%23%C3%A9"), (b"p\xff", "p%FF")):
        pages = tmp_path / os.fsdecode(name)
        page_of(pages / "a.html", "a")
        assert links(tmp_path, pages)["a"] == f"./../{url}/a.html", name


def page(store, **options):
    return dashboard.dashboard_page(stored_runs(store), title="store", **options)


def data(text):
    return json.loads(
        re.search(r'<script type="application/json" id="data-dashboard">(.*?)</script>', text)[1]
    )


def test_the_page_is_a_dashboard_and_has_a_column_of_pages_where_there_are_any(store, tmp_path):
    add_run(store, "a", label="A & B")
    text = page(store)
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    assert (identity_of_page(path, dashboard.STORE), run_id_of_page(path)) == (
        dashboard.DASHBOARD,
        None,
    )
    assert not re.search('class="text page"|id="problems"', text)
    linked = page(store, pages={"a": "./pages/a.html"})
    assert re.findall(r'<td class="text page"><a href="([^"]+)"', linked) == ["./pages/a.html"]


@pytest.mark.parametrize(("n_runs", "has_chart"), [(1, False), (3, False), (4, True)])
def test_a_chart_needs_four_runs(store, n_runs, has_chart):
    for at in range(n_runs):
        add_run(store, f"run-{at}")
    text = page(store)
    assert ('<figure class="chart"' in text, 'id="data-dashboard"' in text) == (
        has_chart,
        has_chart,
    )
    assert text.count("<tr data-run=") == n_runs


@pytest.mark.parametrize("case", ["two", "four", "problems"])
def test_a_built_store_says_what_it_did(case, store, pinned, shown):
    if case == "two":
        add_run(store, "old", label="first", wait_share=None, n_ranks=1, world_size=1)
        add_run(store, "new", label="second", captured_at_utc=days(1), findings=[finding_row()])
        problems = []
    elif case == "four":
        add_series(store, "nightly", [100, None, 90])
        add_run(
            store,
            "other",
            world_size=8,
            n_ranks=8,
            captured_at_utc=days(4),
            findings=[finding_row()],
        )
        problems = []
    else:
        add_run(store, "good")
        add_run(store, "bad")
        file_of(store, "runs", "bad").write_bytes(b"")
        problems = [Unreadable("good", "page", "cannot be made", "--out again")]
    pinned(f"dashboard/{case}", page=shown(page(store, problems=problems)))


def test_the_chart_gets_one_value_per_run_and_null_where_there_is_none(store):
    add_series(store, "nightly", [100, None, 90])
    add_run(store, "unknown", captured_at_utc=None, step_time_ns=None)
    found = data(page(store))
    assert found["runs"]["id"] == ["unknown", "nightly-000", "nightly-001", "nightly-002"]
    assert (found["values"]["step_time_ns"], found["runs"]["time"][0]) == (
        [None, 100e6, None, 90e6],
        None,
    )
    assert found["missing"]["step_time_ns"] == {"0": "not recorded", "2": "not recorded"}


@pytest.mark.slow
def test_many_labels_are_a_few_buttons_and_the_text_field(store):
    for at in range(41):
        add_run(store, f"r{at}", label=f"label {at:02}")
    text = page(store)
    assert text.count('class="chip extra"') == 34  # 40 less the 6 that are shown
    assert text.count('class="facet-rest"') == 1


@pytest.mark.slow
def test_no_name_is_more_than_text(store):
    for at, name in enumerate(HOSTILE):
        names = dict.fromkeys(("label", "gpu_names", "hosts", "link_kind"), name)
        add_run(
            store,
            f"{at}{name}".replace("/", "_"),
            findings=[finding_row(id=name, action=name)],
            **names,
        )
    found = stored_runs(store)
    pages = dict(
        zip(found.runs["run_id"].to_pylist(), (f"./{name}.html" for name in HOSTILE), strict=True)
    )
    text = dashboard.dashboard_page(found, title="".join(HOSTILE), pages=pages)
    assert set(HOSTILE[:8]) < set(data(text)["runs"]["label"])
    text = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)
    assert set(re.findall(r"<(script|img|!--)", text)) == set()
    assert not re.search(r"<[a-z]+(?:[^<>\"]|\"[^\"]*\")*\son\w+=", text)


@pytest.fixture
def saved(steady, store):
    save(nsyspipe.load(steady, run_id="mine"), store)
    return store


@pytest.mark.slow
def test_a_page_is_written_anew_only_if_older_than_its_run(saved, tmp_path):
    seen = []
    assert (
        dashboard.write_pages(
            saved, ["mine"], tmp_path / "pages", on_progress=lambda *at: seen.append(at)
        )
        == []
    )
    path = tmp_path / "pages" / "mine.html"
    text = path.read_text()
    assert (seen, run_id_of_page(path)) == ([(1, 1)], "mine")
    path.write_text(text + "kept")
    for force, expected in ((False, text + "kept"), (True, text)):
        dashboard.write_pages(saved, ["mine"], tmp_path / "pages", force=force)
        assert path.read_text() == expected, force
    path.write_text(text + "old")
    os.utime(path, ns=(0, 0))
    dashboard.write_pages(saved, ["mine"], tmp_path / "pages")
    assert path.read_text() == text


@pytest.mark.slow
def test_a_file_that_is_no_page_of_the_run_stays_and_pages_need_a_directory(saved, tmp_path):
    path = tmp_path / "pages" / "mine.html"
    path.parent.mkdir()
    path.write_text("notes")
    for folder, why in ((path.parent, "exists"), (path / "pages", "cannot be made")):
        with pytest.raises(OutputError, match=why):
            dashboard.write_pages(saved, ["mine"], folder)
    assert path.read_text() == "notes"
    dashboard.write_pages(saved, ["mine"], path.parent, force=True)
    assert run_id_of_page(path) == "mine"


@pytest.mark.slow
def test_a_run_whose_tables_are_damaged_has_no_page_and_the_others_have(saved, steady, tmp_path):
    save(nsyspipe.load(steady, run_id="other"), saved)
    file_of(saved, "steps", "mine").resolve().write_bytes(b"")
    (told,) = dashboard.write_pages(saved, ["mine", "other"], tmp_path / "pages")
    assert (told.run_id, told.table) == ("mine", "page")
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["other.html"]
