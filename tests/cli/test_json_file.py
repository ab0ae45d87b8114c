"""Files that are written beside what is printed."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

import nsyspipe
from nsyspipe.errors import NsyspipeError
from tests.build.trace import steady_rank
from tests.cli.tools import assert_refused, nsyspipe_run


def read(path):
    return json.loads(path.read_text())


def test_a_file_of_the_same_run_is_replaced_as_a_whole(steady, tmp_path, invoke):
    target = tmp_path / "run.json"
    assert invoke(steady, "--json", target).exit_code == 0
    before = target.stat().st_ino
    with target.open() as reader:  # somebody reads the old document while the new one is written
        assert invoke(steady, "--json", target, "--label", "again").exit_code == 0
        assert json.load(reader)["run"]["label"] == "steady"
    assert read(target)["run"]["label"] == "again"
    assert target.stat().st_ino != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "steady_0.sqlite", "steady_1.sqlite"]


def test_a_new_file_has_the_permissions_that_the_user_gives_new_files(steady, tmp_path, invoke):
    (tmp_path / "usual").touch()
    assert invoke(steady, "--json", tmp_path / "run.json").exit_code == 0
    assert (tmp_path / "run.json").stat().st_mode == (tmp_path / "usual").stat().st_mode


OTHERS = ["", "[]", '{"run": 1}', '{"run": {"run_id": "other"}}', '{"run": {"run_id": null}}', "[" * 100_000, "\udcff"]


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


FILES = {"--json": "run.json", "--markdown": "run.md", "--html": "run.html", "--perfetto": "run.pftrace"}


def outputs(folder, **more):
    named = {option: folder / name for option, name in FILES.items()} | more
    return [part for pair in named.items() for part in pair]


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


def refused(done, *words):
    """Check that the program ended with an error of ours that says all of this, and printed nothing."""
    assert isinstance(done.exception, NsyspipeError), done.exception
    text = "\n".join(done.exception.lines())
    assert all(word in text for word in words), text
    assert (done.exception.exit_code, done.stdout) == (2, "")


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_all_outputs_are_written_and_then_the_summary_is_printed(steady, results):
    done = nsyspipe_run("analyze", steady, *outputs(results), "--out", results / "runs", "--events")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Communication is ")
    assert listed(results) == [*sorted(FILES.values()), "runs"]
    run_id = nsyspipe.load(steady).header.run_id
    assert (results / "runs" / "events" / f"run_id={run_id}" / "rank=1" / "part-0.parquet").exists()


def test_a_saved_run_gives_the_same_outputs_without_its_reports(steady, results, invoke):
    assert invoke(steady, *outputs(results), "--out", results / "runs", "--events").exit_code == 0
    first = {name: (results / name).read_bytes() for name in FILES.values()}
    printed = invoke(steady).stdout
    for report in steady.glob("*.sqlite"):
        report.unlink()
    again = invoke(results / "runs", *outputs(results))
    assert (again.exception, again.stderr) == (None, "")
    assert again.stdout == printed
    assert {name: (results / name).read_bytes() for name in FILES.values()} == first


def test_a_saved_run_can_be_saved_elsewhere_with_all_that_it_has(steady, results, invoke):
    assert invoke(steady, "-o", results / "a", "--events", "-q").exit_code == 0
    assert invoke(results / "a", "-o", results / "b", "--events", "-q").exit_code == 0
    for path in sorted((results / "a").glob("*/run_id=*/**/*.parquet")):
        assert (results / "b" / path.relative_to(results / "a")).read_bytes() == path.read_bytes()


def test_a_trace_of_a_run_saved_without_operations_says_how_to_get_them(steady, results, invoke):
    assert invoke(steady, "-o", results / "runs", "-q").exit_code == 0
    done = invoke(results / "runs", "--perfetto", results / "run.pftrace")
    refused(done, "was saved without its operations", "--events")
    assert listed(results) == ["runs"]
    more = ("--html", results / "run.html", "--out", results / "others")
    refused(invoke(results / "runs", "--perfetto", results / "run.pftrace", *more), "--events")
    assert listed(results) == ["runs"]


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("--json", b"\xff\x00<html>"),
        ("--markdown", b""),
        ("--html", b"mine"),
        ("--html", b"\xff"),
        ("--perfetto", b"{}"),
    ],
)
def test_a_file_that_is_not_of_this_run_stays(steady, results, invoke, option, content):
    target = results / FILES[option]
    target.write_bytes(content)
    done = invoke(steady, option, target, "--out", results / "runs")
    refused(done, "exists, and is not of this run", "--force")
    assert target.read_bytes() == content
    assert listed(results) == [FILES[option]]  # and nothing else was written
    assert invoke(steady, option, target, "--force").exit_code == 0
    assert target.read_bytes() != content


@pytest.mark.parametrize("option", FILES)
def test_a_file_of_the_same_run_is_replaced_and_of_another_is_not(steady, results, invoke, option):
    target = results / FILES[option]
    assert invoke(steady, option, target, "--run-id", "one").exit_code == 0
    assert invoke(steady, option, target, "--run-id", "one", "--label", "again").exit_code == 0
    before = target.read_bytes()
    refused(invoke(steady, option, target, "--run-id", "two"), "is not of this run")
    assert target.read_bytes() == before


@pytest.mark.parametrize("option", FILES)
def test_a_report_is_never_an_output(steady, invoke, option):
    report = steady / "steady_0.sqlite"
    before = report.read_bytes()
    refused(invoke(steady, option, report, "--force"), "is one of the inputs")
    assert report.read_bytes() == before


@pytest.mark.parametrize("option", FILES)
def test_a_directory_that_is_not_there_is_told_before_any_work(tmp_path, invoke, option):
    # The reports are not looked at yet: the error is about the output.
    target = tmp_path / "absent" / "file"
    refused(invoke(tmp_path / "no.sqlite", option, target), f"{target}: cannot be written")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--json", "-", "--markdown", "-"], "--json and --markdown: both write -"),
        (["--json", "x", "--html", "./x"], "--json and --html: both write ./x"),
        (["--html", "-"], "--html -: cannot be printed"),
        (["--perfetto", "-"], "--perfetto -: cannot be printed"),
        (["--out", "-"], "--out -: cannot be printed"),
        (["--events"], "--events: belongs to a dataset"),
        (["--perfetto-steps", "1:2"], "--perfetto-steps: belongs to a trace"),
        (["--perfetto", "x", "--perfetto-steps", ":"], "is no FROM:TO"),
        (["--perfetto", "x", "--perfetto-steps", "a:b"], "is no FROM:TO"),
        (["--perfetto", "x", "--perfetto-steps", "3:1"], "ends before it starts"),
        (["--out", "x", "--run-id", "7"], "reads like a number"),
        (["--out", "x", "--run-id", "a/b"], "names a directory"),
        (["--out", "x", "--run-id", "../up"], "names a directory"),
    ],
)
def test_outputs_that_cannot_be_are_refused(steady, tmp_path, monkeypatch, invoke, options, message):
    monkeypatch.chdir(tmp_path)
    before = listed(tmp_path)
    refused(invoke(steady, *options), message)
    assert listed(tmp_path) == before


@pytest.mark.parametrize("steps", ["2", "1:", ":2"])
def test_a_trace_of_some_steps_is_smaller(steady, results, invoke, steps):
    whole, part = results / "whole", results / "part"
    assert invoke(steady, "--perfetto", whole, "-q").exit_code == 0
    done = invoke(steady, "--perfetto", part, "--perfetto-steps", steps, "-q")
    assert (done.exit_code, done.stdout) == (0, "")
    assert 0 < part.stat().st_size < whole.stat().st_size


def test_a_trace_of_steps_that_are_not_there_stops_before_anything_is_written(steady, results, invoke):
    others = ("--out", results / "runs", "--html", results / "run.html")
    done = invoke(steady, "--perfetto", results / "x", "--perfetto-steps", "900:901", *others)
    refused(done, "no rank has such a step", "steps 0 to", "--perfetto-steps 0:")
    assert listed(results) == []


def test_a_dataset_does_not_go_where_the_reports_lie(steady, invoke):
    before = listed(steady)
    refused(invoke(steady, "--out", steady), "is where the reports lie", "--out")
    assert listed(steady) == before


@pytest.mark.parametrize("option", ["--json", "--perfetto"])
def test_a_file_of_a_dataset_is_never_replaced(steady, results, invoke, option):
    assert invoke(steady, "-o", results / "runs", "--run-id", "one", "-q").exit_code == 0
    target = results / "runs/steps/run_id=one/part-0.parquet"
    before = target.read_bytes()
    refused(invoke(results / "runs", option, target, "--force"), "is a file of a dataset")
    assert target.read_bytes() == before


def test_a_file_can_go_into_the_directory_of_the_dataset_that_is_made(steady, results, invoke):
    done = invoke(steady, "-o", results / "runs", "--html", results / "runs" / "page.html", "-q")
    assert (done.exception, done.stdout) == (None, "")
    assert invoke(results / "runs", "-q").exit_code == 0


@pytest.mark.parametrize("run_id", ["a\nb", "", "x" * 101, "\x1b[31m"])
def test_a_run_id_that_cannot_be_shown_is_refused(steady, invoke, run_id):
    refused(invoke(steady, "--run-id", run_id), "--run-id")


def test_several_runs_in_a_store_need_a_name(steady, results, invoke):
    for name in ("one", "two"):
        assert invoke(steady, "-o", results / "runs", "--run-id", name, "-q").exit_code == 0
    refused(invoke(results / "runs"), "holds 2 runs", "one (steady), two (steady)", "--run-id two")
    assert invoke(results / "runs", "--run-id", "one").stdout == invoke(steady).stdout
    assert invoke(results / "runs" / "steps" / "run_id=two").stdout == invoke(steady).stdout
    refused(invoke(results / "runs", "--run-id", "three"), "has no such run", "one (steady), two (steady)")
