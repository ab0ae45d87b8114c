"""A scoreboard as JSON and CSV, and how a file is known to be of the same runs."""

from __future__ import annotations

import csv
import io
import json

import pytest

from nsyspipe.api import compare
from nsyspipe.comparison.difference import Side
from nsyspipe.report.scoreboard import (
    identity_of,
    identity_of_csv,
    identity_of_document,
    identity_of_markdown,
    scoreboard_csv,
    scoreboard_document,
    scoreboard_document_text,
    scoreboard_markdown,
)
from tests.build.scoreboard_runs import MS, scoreboard_runs

# The contract's keys of a run.
KEYS = {
    "label", "step_time_ns", "throughput_steps_per_s", "speedup", "speedup_low", "speedup_high", "comm_share",
    "exposed_comm_share", "overlap_ratio", "backward_overlap_ratio", "dtod_ns_per_step", "wait_share",
    "message_bytes_per_step", "verdict",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return scoreboard_runs(tmp_path_factory.mktemp("runs"), ("slow", "fast", "again"))


@pytest.fixture
def board(runs):
    return compare({name: runs[name] for name in ("slow", "fast")})


def test_the_document_is_that_of_the_contract(board, runs):
    found = json.loads(scoreboard_document_text(board))
    assert found == scoreboard_document(board)
    assert {"schema_version", "tool_version", "problems", "runs"} <= set(found)
    assert all(set(run) >= KEYS for run in found["runs"])
    second = found["runs"][1]
    assert (second["label"], second["step_time_ns"], second["verdict"]) == ("fast", 101 * MS, "improvement")  # fmt: skip
    assert second["captures"] == [runs["fast"].header.run_id]
    assert found["kinds"] == [
        {
            "peer": "slow",
            "labels": ["slow", "fast"],
            "best": "fast",
            "level_with": [],
            "not_told_from": [],
        }
    ]


def test_csv_has_a_row_a_run_in_base_units_and_nothing_where_null(board):
    first, second = csv.DictReader(io.StringIO(scoreboard_csv(board)))
    assert float(second["step_time_ns"]) == 101 * MS
    assert float(second["speedup"]) == pytest.approx(131 / 101)
    assert (first["verdict"], first["why"], first["message_bytes_per_step"]) == (
        "reference",
        "",
        "",
    )


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0"])
def test_a_name_is_no_formula_of_a_spreadsheet(runs, name):
    found = compare({name: runs["slow"], 'a,"b"': runs["fast"]})
    rows = list(csv.DictReader(io.StringIO(scoreboard_csv(found))))
    assert [row["label"] for row in rows] == [f"'{name}", 'a,"b"']
    assert rows[1]["peer"] == f"'{name}"


def test_control_characters_of_a_name_are_shown_not_kept(runs):
    text = scoreboard_csv(compare({"a\tb\n\x1b[2J": runs["slow"]}))
    assert text.count("\n") == 2
    assert "a\N{REPLACEMENT CHARACTER}b" in text


def test_files_are_known_by_their_runs_whatever_the_order(board, runs, tmp_path):
    names = {"json": scoreboard_document_text, "md": scoreboard_markdown, "csv": scoreboard_csv}
    for suffix, write in names.items():
        (tmp_path / f"a.{suffix}").write_text(write(board), encoding="utf-8")
    turned = compare({"x": runs["fast"], "y": runs["slow"]})
    other = compare({"x": runs["fast"], "y": runs["again"]})
    for one, is_same in ((board, True), (turned, True), (other, False)):
        identity = identity_of(one)
        assert (identity_of_document(tmp_path / "a.json") == identity) == is_same
        assert (identity_of_markdown(tmp_path / "a.md") == identity) == is_same
        assert (identity_of_csv(tmp_path / "a.csv", one) == identity) == is_same


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"runs": [{}]}', "run_ids\n", "\0", "a,b\n1", '{"runs": 1}'])  # fmt: skip
def test_no_other_file_is_taken_for_one(board, tmp_path, text):
    path = tmp_path / "other"
    path.write_text(text)
    assert identity_of_document(path) is None
    assert identity_of_markdown(path) is None
    assert identity_of_csv(path, board) is None
    assert identity_of_csv(tmp_path / "missing", board) is None


def test_several_captures_are_listed(runs):
    found = compare([Side("both", (runs["slow"], runs["again"])), runs["fast"]])
    document = scoreboard_document(found)
    assert document["runs"][0]["captures"] == [runs[one].header.run_id for one in ("slow", "again")]
    assert identity_of(found) != identity_of(compare([runs["slow"], runs["again"], runs["fast"]]))
