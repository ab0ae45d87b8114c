"""The page of a scoreboard as text: the same for the same runs, complete, closed to what names hold."""

from __future__ import annotations

import json
import re

import pytest

from nsyspipe.api import compare
from nsyspipe.report.files import identity_of_page
from nsyspipe.report.html.page import LIBRARY, read_asset
from nsyspipe.report.html.scoreboard_page import scoreboard_page
from nsyspipe.report.scoreboard import RUNS, identity_of
from nsyspipe.store.write import save
from tests.build.hostile import HOSTILE
from tests.build.scoreboard_runs import MS, scoreboard_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return scoreboard_runs(tmp_path_factory.mktemp("runs"), ("slow", "fast", "short", "wide"))


def page_of(board):
    return scoreboard_page(board).replace(read_asset(LIBRARY), "")


def data_of(board):
    found = re.search(r'<script type="application/json" id="data-scoreboard">(.*?)</script>', page_of(board))  # fmt: skip
    return json.loads(found[1])


def test_the_page_says_of_which_runs_it_is(runs, tmp_path):
    board = compare(runs)
    path = tmp_path / "page.html"
    path.write_text(scoreboard_page(board), encoding="utf-8")
    assert identity_of_page(path, RUNS) == identity_of(board)


@pytest.mark.slow
def test_saved_runs_give_the_same_page(runs, tmp_path):
    for name, run in runs.items():
        save(run, tmp_path / name)
    saved = compare({name: tmp_path / name for name in runs})
    assert scoreboard_page(saved) == scoreboard_page(compare(runs))


def test_every_section_is_there_once_and_nothing_is_fetched(runs):
    text = page_of(compare(runs))
    assert re.findall(r'<li><a href="#([a-z]+)">', text) == ["time", "runs", "problems", "reading"]
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text)
    assert "problems" not in re.findall(r'href="#([a-z]+)"', page_of(compare([runs["slow"], runs["fast"]])))  # fmt: skip


def test_the_chart_has_parts_intervals_and_headings(runs):
    rows = data_of(compare(runs))["rows"]
    assert [row.get("heading") or row["label"] for row in rows] == [
        "2 ranks, NVIDIA H200", "slow", "fast", "short", "3 ranks, NVIDIA H200", "wide"
    ]  # fmt: skip
    fast, short = rows[2], rows[3]
    assert fast["parts"] == {"compute": 71 * MS, "exposed": 20 * MS, "copies": 4 * MS, "idle": 6 * MS}  # fmt: skip
    assert (fast["wall"], fast["is_best"], fast["verdict"]) == (101 * MS, True, "improvement")
    assert fast["speedup"] == pytest.approx(131 / 101)
    assert fast["low"] < fast["speedup"] < fast["high"]
    assert (short["low"], short["why"]) == (None, "short: 2 steps, needs 3")


def test_runs_of_one_kind_have_no_headings(runs):
    board = compare({name: runs[name] for name in ("slow", "fast")})
    data = data_of(board)
    assert [row["label"] for row in data["rows"]] == ["slow", "fast"]
    assert data["over"] == "over slow"


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_text(runs, name):
    text = page_of(compare({name: runs["slow"], "</script><img src=x>": runs["fast"]}))
    harmless = page_of(compare({"a": runs["slow"], "b": runs["fast"]}))
    assert len(re.findall(r"<(?:script|img)\b", text)) == len(re.findall(r"<(?:script|img)\b", harmless))  # fmt: skip
    assert "&lt;/script&gt;&lt;img src=x&gt;" in text
