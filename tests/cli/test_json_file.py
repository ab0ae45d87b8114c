"""`nsyspipe analyze --json FILE`: whole or not at all, and never over another run's document."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

import nsyspipe
from nsyspipe.report.document import document
from tests.build.trace import steady_rank
from tests.cli.tools import assert_refused, nsyspipe_here, nsyspipe_run


def read(path):
    return json.loads(path.read_text())


@pytest.mark.slow
def test_a_json_file_is_written_beside_the_printed_summary(steady, tmp_path):
    done = nsyspipe_run("analyze", steady, "--json", tmp_path / "run.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Communication is ")
    assert read(tmp_path / "run.json") == document(nsyspipe.load(steady))


def test_a_file_of_the_same_run_is_replaced_as_a_whole(steady, tmp_path, invoke):
    target = tmp_path / "run.json"
    assert invoke(steady, "--json", target).exit_code == 0
    before = target.stat().st_ino
    with target.open() as reader:  # somebody reads the old document while the new one is written
        assert invoke(steady, "--json", target, "--label", "again").exit_code == 0
        assert json.load(reader)["run"]["label"] == "steady"
    assert read(target)["run"]["label"] == "again"
    assert target.stat().st_ino != before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.json",
        "steady_0.sqlite",
        "steady_1.sqlite",
    ]


def test_a_new_file_has_the_permissions_that_the_user_gives_new_files(steady, tmp_path, invoke):
    (tmp_path / "usual").touch()
    assert invoke(steady, "--json", tmp_path / "run.json").exit_code == 0
    assert (tmp_path / "run.json").stat().st_mode == (tmp_path / "usual").stat().st_mode


OTHERS = [
    "",
    "text",
    "[]",
    '{"run": 1}',
    '{"run": {"run_id": "other"}}',
    '{"run": {"run_id": null}}',
    "[" * 100_000,
    "\udcff",
]


@pytest.mark.parametrize("content", OTHERS, ids=range(len(OTHERS)))
def test_a_file_of_anything_else_is_replaced_by_force_only(steady, tmp_path, invoke, content):
    target = tmp_path / "run.json"
    target.write_text(content, encoding="utf-8", errors="surrogateescape")
    refused = invoke(steady, "--json", target)
    assert isinstance(refused.exception, nsyspipe.NsyspipeError)
    assert "--force" in refused.exception.fix
    assert refused.stdout == ""
    assert target.read_text(encoding="utf-8", errors="surrogateescape") == content
    assert invoke(steady, "--json", target, "--force").exit_code == 0
    assert read(target)["run"]["label"] == "steady"


def test_two_captures_are_two_runs_unless_the_user_says_otherwise(steady, tmp_path, invoke):
    other = tmp_path / "other"
    other.mkdir()
    steady_rank(0, n_steps=5).write(other / "steady_0.sqlite")
    target = tmp_path / "run.json"
    assert invoke(steady, "--json", target).exit_code == 0
    assert isinstance(invoke(other, "--json", target).exception, nsyspipe.NsyspipeError)
    assert invoke(steady, "--json", target, "--run-id", "mine", "--force").exit_code == 0
    assert invoke(other, "--json", target, "--run-id", "mine").exit_code == 0
    assert read(target)["run"]["run_id"] == "mine"
    assert read(target)["summary"]["n_steps"] == 5


def test_the_same_capture_elsewhere_has_the_same_id(steady, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for rank in range(2):
        os.link(steady / f"steady_{rank}.sqlite", folder / f"other_{rank}.sqlite")
    assert nsyspipe.load(folder).header.run_id == nsyspipe.load(steady).header.run_id


def test_the_program_refuses_to_overwrite_in_one_line(steady, tmp_path):
    (tmp_path / "notes").write_text("mine")
    assert_refused(nsyspipe_here("analyze", steady, "--json", tmp_path / "notes"))
    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize("name", ["no/such/folder/run.json", ".", "x" * 300])
def test_a_file_that_cannot_be_written_is_refused(steady, tmp_path, invoke, name):
    done = invoke(steady, "--json", tmp_path / name, "--force")
    assert isinstance(done.exception, nsyspipe.NsyspipeError)
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--force"]])
def test_a_pipe_is_neither_read_nor_replaced(steady, tmp_path, options):
    target = tmp_path / "pipe"
    os.mkfifo(target)
    try:
        done = nsyspipe_run("analyze", steady, "--json", target, *options, timeout=20)
    except subprocess.TimeoutExpired:
        pytest.fail("the program waits for somebody to write into its own output")
    assert_refused(done)
    assert target.is_fifo()


def test_a_report_is_never_the_output_even_by_force(steady, tmp_path, invoke):
    report = steady / "steady_0.sqlite"
    before = report.read_bytes()
    done = invoke(steady, "--json", report)
    assert isinstance(done.exception, nsyspipe.NsyspipeError)
    assert report.read_bytes() == before
