"""The page of a store as text: whose it is, what it carries, and that no name in it is more than text."""

# ruff: noqa: RUF001 - the multiplication sign is what pages show

from __future__ import annotations

import json
import os
import re

import pytest

import nsyspipe
from nsyspipe.errors import OutputError
from nsyspipe.report.files import identity_of_page
from nsyspipe.report.html.dashboard_page import DASHBOARD, STORE, dashboard_page, write_pages
from nsyspipe.report.html.page import run_id_of_page
from nsyspipe.store.saved_run import Unreadable, stored_runs
from nsyspipe.store.write import save
from tests.build.hostile import HOSTILE
from tests.dashboard_store import add_run, add_series, days, file_of, finding_row


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def page(store, **options):
    return dashboard_page(stored_runs(store), title="store", **options)


def data(text):
    found = re.search(r'<script type="application/json" id="data-dashboard">(.*?)</script>', text)
    return json.loads(found[1])


def rows(text):
    """Return the cells of each row of the table of runs, without tags and what is hidden."""
    body = re.sub(r"<[^>]* hidden>[^<]*", "", text[text.index('<table id="table">') :])
    body = body[body.index("<tbody>") : body.index("</tbody>")]
    return [
        [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", body, re.DOTALL)
    ]  # fmt: skip


def test_the_page_says_that_it_is_a_dashboard(store, tmp_path):
    add_run(store, "a")
    path = tmp_path / "page.html"
    path.write_text(page(store), encoding="utf-8")
    assert identity_of_page(path, STORE) == DASHBOARD
    assert run_id_of_page(path) is None


def test_the_same_store_gives_the_same_bytes(store):
    add_series(store, "nightly", [100, 101, 99])
    assert page(store) == page(store)


def test_the_table_holds_every_run_newest_first_without_any_script(store):
    add_run(store, "old", label="first", wait_share=None, n_ranks=1, world_size=1)
    add_run(store, "new", label="second", captured_at_utc=days(1), findings=[finding_row()])
    assert rows(page(store)) == [
        ["2 Mar 2026 04:30", "second new", "4 × H200", "10", "100.0 ms", "", "10.00 steps/s", "10.0 %", "20.0 %",
         "50.0 %", "5.0 %", "2.0 %", "single-bucket up to 12.30 ms"],
        ["1 Mar 2026 04:30", "first old", "1 × H200", "10", "100.0 ms", "", "10.00 steps/s", "10.0 %", "20.0 %",
         "50.0 %", "one rank", "2.0 %", "none"],
    ]  # fmt: skip


def test_a_column_of_pages_is_there_when_there_are_any(store):
    add_run(store, "a", label="A & B")
    assert 'class="text page"' not in page(store)
    text = page(store, pages={"a": "./pages/a.html"})
    assert '<a href="./pages/a.html" aria-label="page of A &amp; B, a">page</a>' in text


def test_charts_get_one_value_per_run_and_null_where_there_is_none(store):
    add_series(store, "nightly", [100, None, 90])
    add_run(store, "unknown", captured_at_utc=None, step_time_ns=None)
    found = data(page(store))
    assert found["runs"]["id"] == ["unknown", "nightly-000", "nightly-001", "nightly-002"]
    assert found["values"]["step_time_ns"] == [None, 100e6, None, 90e6]
    assert found["missing"]["step_time_ns"] == {"0": "not recorded", "2": "not recorded"}
    assert found["runs"]["time"][0] is None


def test_runs_of_other_world_sizes_and_gpus_are_other_series(store):
    add_series(store, "a", [1, 1])
    add_series(store, "b", [1, 1], world_size=8, n_ranks=8)
    add_series(store, "c", [1, 1], gpu_names="NVIDIA A100")
    found = data(page(store))
    assert found["groups"] == ["4 × A100", "4 × H200", "8 × H200"]
    labels = [found["series"][at]["label"] for at in found["runs"]["series"]]
    assert labels == found["runs"]["label"]


def test_only_what_differs_can_be_filtered(store):
    add_series(store, "a", [1, 1])
    add_series(store, "b", [1, 1])
    assert [one["name"] for one in data(page(store))["facets"]] == ["label"]


def test_many_labels_are_a_few_buttons_and_the_text_field(store):
    for at in range(50):
        add_run(store, f"r{at}", label=f"label {at:02}")
    text = page(store)
    assert text.count('class="chip extra"') == 34  # 40 less the 6 that are shown
    assert "10 more: type in the field" in text


def test_runs_that_cannot_be_read_are_told_with_what_mends_them(store):
    add_run(store, "good")
    add_run(store, "bad")
    file_of(store, "runs", "bad").write_bytes(b"")
    text = page(store, problems=[Unreadable("good", "page", "cannot be made", "--out again")])
    problems = text[text.index('<section id="problems"') :]
    assert "<code>bad</code>: runs cannot be read" in problems
    assert "<code>good</code>: page cannot be made" in problems
    assert "Fix: <code>--out</code> again" in problems
    assert '<a href="#problems">' in text


def test_a_store_without_problems_has_no_such_section(store):
    add_run(store, "a")
    assert 'id="problems"' not in page(store)


def test_no_name_is_more_than_text(store):
    for at, name in enumerate(HOSTILE):
        add_run(
            store, f"{at}{name}".replace("/", "_"), label=name, gpu_names=name, hosts=name, link_kind=name,
            findings=[finding_row(id=name, action=name)],
        )  # fmt: skip
    pages = {run_id: f"./{name}.html" for run_id in stored_runs(store).runs["run_id"].to_pylist() for name in HOSTILE}
    text = dashboard_page(stored_runs(store), title="".join(HOSTILE), pages=pages)
    # The page of runs with harmless names has the same elements, with the same attributes.
    harmless = store.with_name("harmless")
    for at in range(len(HOSTILE)):
        names = dict.fromkeys(("label", "gpu_names", "hosts", "link_kind"), f"name {at}")
        add_run(harmless, f"r{at}", findings=[finding_row()], **names)
    ours = dashboard_page(stored_runs(harmless), title="a", pages={"r0": "./a.html"})
    assert tags(text) == tags(ours)
    shown = [name.replace("\u202e", "\ufffd") for name in HOSTILE[:8]]
    assert set(shown) < set(data(text)["runs"]["label"])


def tags(text):
    """Return the names of a page's elements and of their attributes."""
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)
    return sorted({
        (name, *sorted(re.findall(r'\s([a-z-]+)=', re.sub(r'"[^"]*"', '""', attributes))))
        for name, attributes in re.findall(r'<([a-z0-9]+)((?:[^<>"]|"[^"]*")*)>', markup)
    })  # fmt: skip


@pytest.fixture
def saved(steady, store):
    save(nsyspipe.load(steady, run_id="mine"), store)
    return store


def test_pages_of_runs_are_written_from_the_store(saved, tmp_path):
    seen = []
    failed = write_pages(saved, ["mine"], tmp_path / "deep" / "pages", on_progress=lambda *at: seen.append(at))  # fmt: skip
    assert (failed, seen) == ([], [(1, 1)])
    assert run_id_of_page(tmp_path / "deep" / "pages" / "mine.html") == "mine"


def test_a_page_is_written_anew_only_when_it_is_older_than_its_run(saved, tmp_path):
    write_pages(saved, ["mine"], tmp_path / "pages")
    path = tmp_path / "pages" / "mine.html"
    text = path.read_text()
    path.write_text(text + "kept")
    write_pages(saved, ["mine"], tmp_path / "pages")
    assert path.read_text() == text + "kept"
    write_pages(saved, ["mine"], tmp_path / "pages", force=True)
    assert path.read_text() == text
    path.write_text(text + "old")
    os.utime(path, ns=(0, 0))
    write_pages(saved, ["mine"], tmp_path / "pages")
    assert path.read_text() == text


def test_a_file_that_is_no_page_of_the_run_stays(saved, tmp_path):
    path = tmp_path / "pages" / "mine.html"
    path.parent.mkdir()
    path.write_text("notes")
    with pytest.raises(OutputError, match="exists"):
        write_pages(saved, ["mine"], path.parent)
    assert path.read_text() == "notes"
    write_pages(saved, ["mine"], path.parent, force=True)
    assert run_id_of_page(path) == "mine"


def test_a_run_whose_tables_are_damaged_has_no_page_and_the_others_have(saved, steady, tmp_path):
    save(nsyspipe.load(steady, run_id="other"), saved)
    file_of(saved, "steps", "mine").resolve().write_bytes(b"")
    (told,) = write_pages(saved, ["mine", "other"], tmp_path / "pages")
    assert (told.run_id, told.table) == ("mine", "page")
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["other.html"]


def test_pages_where_no_directory_can_be_are_refused(saved, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be made"):
        write_pages(saved, ["mine"], tmp_path / "file" / "pages")
