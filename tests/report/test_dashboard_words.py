"""What the dashboard says of runs: groups, series, facets, figures that are null, times, links."""

# ruff: noqa: RUF001 - the multiplication sign is what pages show

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from nsyspipe.report.html.dashboard_page import dashboard_runs, page_links, page_places
from nsyspipe.report.html.dashboard_series import (
    FIGURES,
    facets,
    group_name,
    missing_text,
    series_of,
    value_of,
    value_text,
)
from nsyspipe.report.html.page import RUN_ID
from nsyspipe.store.saved_run import stored_runs
from tests.dashboard_store import add_run, file_of, finding_row, run_row

STEP_TIME, THROUGHPUT, EXPOSED, COMM, HIDDEN, WAITING, IDLE = FIGURES


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "4 × H200"),
        ({"gpu_names": "NVIDIA A100-SXM4-80GB, NVIDIA H200"}, "4 × A100-SXM4-80GB, H200"),
        ({"gpu_names": "AMD MI300X"}, "4 × AMD MI300X"),
        ({"gpu_names": ""}, "4 × GPU not recorded"),
        ({"world_size": None}, "4 × H200, world size not recorded"),
        ({"n_ranks": 3}, "3 of 4 ranks × H200"),
    ],
)
def test_a_group_is_the_world_size_and_the_gpu_model(changes, name):
    assert group_name(run_row("a", **changes)) == name


def series(*pairs):
    """Return the labels of the series of runs, given as (label, world size)."""
    rows = [run_row("a", label=label, n_ranks=n, world_size=n) for label, n in pairs]
    return [one.label for one in series_of(rows)]


def test_a_label_that_comes_again_is_a_series():
    assert series(("a", 4), ("b", 4), ("a", 4), ("b", 4)) == ["a", "b", "a", "b"]


def test_labels_that_are_there_once_are_no_series():
    assert series(("a", 4), ("b", 4), ("c", 4)) == [None, None, None]


def test_half_of_the_runs_that_share_a_label_make_labels_count():
    # Two of four runs share theirs; then one more run has its own, and two of five is less than half.
    assert series(("a", 4), ("a", 4), ("b", 4), ("c", 4)) == ["a", "a", "b", "c"]
    assert series(("a", 4), ("a", 4), ("b", 4), ("c", 4), ("d", 4)) == [None] * 5


def test_each_group_decides_for_itself():
    assert series(("a", 4), ("a", 4), ("a", 8), ("b", 8)) == ["a", "a", None, None]


def test_facets_hold_the_values_in_their_own_order():
    rows = [
        run_row("1", label="b", world_size=16, hosts="n0, n1", link_kind="shm"),
        run_row("2", label="a", world_size=8, hosts="n0", link_kind=None),
        run_row("3", label="b", world_size=None, hosts="", link_kind="unknown", gpu_names="L4"),
    ]
    found = {one.name: (list(one.values), list(one.codes)) for one in facets(rows)}
    assert found == {
        "label": (["b", "a"], [0, 1, 0]),  # b has two runs
        "world": (["8", "16", "not recorded"], [1, 0, 2]),
        "gpu": (["H200", "L4"], [0, 0, 1]),
        "hosts": (["not recorded", "1", "2"], [2, 1, 0]),
        "link": (["host memory", "not recorded"], [0, 1, 1]),
    }


@pytest.mark.parametrize(
    ("figure", "changes", "text"),
    [
        (STEP_TIME, {}, "100.0 ms"),
        (THROUGHPUT, {}, "10.00 steps/s"),
        (EXPOSED, {"exposed_comm_share": 0.0}, "0.0 %"),
        (STEP_TIME, {"step_time_ns": None}, "not recorded"),
        (WAITING, {"wait_share": None}, "not recorded"),
        (WAITING, {"wait_share": None, "n_ranks": 1}, "one rank"),
        (WAITING, {"wait_share": None, "comm_share": 0.0}, "no communication"),
        (HIDDEN, {"backward_overlap_ratio": None, "comm_share": 0.0}, "no communication"),
        (HIDDEN, {"backward_overlap_ratio": None, "comm_share": None}, "not recorded"),
        (IDLE, {"idle_share": float("nan")}, "not recorded"),
        (COMM, {"comm_share": float("inf")}, "not recorded"),
    ],
)
def test_a_figure_is_a_number_a_zero_or_says_why_not(figure, changes, text):
    assert value_text(run_row("a", **changes), figure) == text


def test_a_true_zero_is_a_value():
    row = run_row("a", exposed_comm_share=0.0)
    assert value_of(row, EXPOSED) == 0
    assert missing_text(run_row("a"), STEP_TIME) == "not recorded"


def test_every_figure_has_the_formula_of_the_schema():
    assert all(figure.formula for figure in FIGURES)


def one_run(store, **changes):
    add_run(store, "a", **changes)
    return dashboard_runs(stored_runs(store), {})[0]


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
    assert one_run(tmp_path, captured_at_utc=captured).captured == words


def test_milliseconds_of_capture_are_kept_for_the_axis(tmp_path):
    captured = datetime(1970, 1, 2, 0, 0, 0, 7999, tzinfo=UTC)
    assert one_run(tmp_path, captured_at_utc=captured).captured_ms == 86_400_007


@pytest.mark.parametrize(
    ("findings", "text"),
    [
        ([], "none"),
        ([finding_row()], "single-bucket, up to 12.30 ms"),
        ([finding_row(saving_ns_per_step=None)], "single-bucket"),
        (
            [finding_row(saving_ns_per_step=float("nan"))],
            "not recorded",
        ),  # no finding has that: damaged
    ],
)
def test_the_first_finding_says_what_it_could_bring(tmp_path, findings, text):
    assert one_run(tmp_path, findings=findings).finding.text == text


def test_findings_that_cannot_be_read_are_not_none(tmp_path):
    add_run(tmp_path, "a")
    file_of(tmp_path, "findings", "a").write_bytes(b"")
    assert dashboard_runs(stored_runs(tmp_path), {})[0].finding.text == "not recorded"


def page_of(path, run_id):
    """Write the head of a run's page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="{RUN_ID}" content="{run_id}">',
        encoding="utf-8",
    )


def links(tmp_path, *, pages=None, run_ids=("a",)):
    beside = tmp_path / "site"
    return page_links(run_ids, page_places(tmp_path / "store", beside, pages), beside)


def test_pages_are_looked_for_in_order(tmp_path):
    wanted = [
        (tmp_path / "store" / "pages" / "a.html", "./../store/pages/a.html"),
        (tmp_path / "site" / "a.html", "./a.html"),
        (tmp_path / "site" / "pages" / "a.html", "./pages/a.html"),
        (tmp_path / "given" / "a.html", "./../given/a.html"),
    ]
    assert links(tmp_path) == {}
    for path, url in wanted:
        page_of(path, "a")
        assert links(tmp_path, pages=tmp_path / "given")["a"] == url


def test_a_page_of_another_run_or_of_anything_else_is_not_linked(tmp_path):
    page_of(tmp_path / "site" / "a.html", "b")
    (tmp_path / "site" / "c.html").write_text("<html>")
    assert links(tmp_path, run_ids=("a", "c")) == {}


def test_urls_are_relative_and_encoded(tmp_path):
    pages = tmp_path / 'p 100%"?#é'
    page_of(pages / "a.html", "a")
    assert links(tmp_path, pages=pages)["a"] == "./../p%20100%25%22%3F%23%C3%A9/a.html"


def test_a_place_whose_name_is_no_text_is_linked_too(tmp_path):
    pages = tmp_path / os.fsdecode(b"p\xff")
    page_of(pages / "a.html", "a")
    assert links(tmp_path, pages=pages)["a"] == "./../p%FF/a.html"
