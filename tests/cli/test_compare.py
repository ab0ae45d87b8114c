"""`nsyspipe compare`: its arguments, outputs and refusals."""

from __future__ import annotations

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from nsyspipe.cli.app import app
from nsyspipe.errors import OutputError
from nsyspipe.store.write import save
from tests.build.scoreboard_runs import scoreboard_runs
from tests.build.trace import TraceBuilder
from tests.cli.tools import assert_refused, nsyspipe_here
from tests.conftest import SAMPLES


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a directory with reports of runs, the same saved in one store, and a run without GPU activity."""
    folder = tmp_path_factory.mktemp("made")
    for run in scoreboard_runs(folder, ("slow", "fast", "again", "wide")).values():
        save(run, folder / "store")
    (folder / "empty").mkdir()
    TraceBuilder().range(0, 10, "step 1").write(folder / "empty" / "empty_0.sqlite")
    return folder


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    """Return a function that runs the command beside the runs, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    for one in made.iterdir():
        (tmp_path / one.name).symlink_to(one)

    def invoke(*arguments):
        return CliRunner().invoke(app, ["compare", "-j", "1", *map(str, arguments)])

    return invoke


def test_runs_give_a_sentence_and_a_table_and_exit_with_0(run):
    done = run("base=slow", "b25=fast/run_*.sqlite")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("b25 is the fastest of 2 runs: 1.30x of base (")
    assert "improvement" in done.stdout


def test_arguments_with_one_label_are_one_run(run):
    done = run("a=slow", "b=fast", "a=again", "--json", "-")
    runs = json.loads(done.stdout)["runs"]
    assert [(one["label"], one["n_captures"]) for one in runs] == [("a", 2), ("b", 1)]


def test_sorting_keeps_the_first_as_the_reference(run):
    done = run("slow=slow", "fast=fast", "again=again", "--sort", "step_time", "--json", "-")
    found = json.loads(done.stdout)
    assert [one["label"] for one in found["runs"]] == ["fast", "slow", "again"]
    assert (found["reference"], found["sort"]) == ("slow", "step_time")
    assert found["runs"][1]["verdict"] == "reference"


def test_all_outputs_at_once(run, tmp_path):
    names = {"json": "a.json", "markdown": "a.md", "csv": "a.csv", "html": "a.html"}
    options = [word for name, file in names.items() for word in (f"--{name}", file)]
    for _ in range(2):  # the same runs may be written again
        done = run("slow", "fast", "-q", *options)
        assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "a.json").read_text())["runs"][0]["verdict"] == "reference"
    assert (tmp_path / "a.md").read_text().startswith("<!-- nsyspipe:compare -->\n")
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert len(list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))) == 2


@pytest.mark.parametrize("name", ["json", "markdown", "csv", "html"])
def test_a_file_of_other_runs_is_replaced_with_force_only(run, tmp_path, name):
    assert run("slow", "fast", f"--{name}", "a").exit_code == 0
    before = (tmp_path / "a").read_bytes()
    refused = run("slow", "wide", f"--{name}", "a").exception
    assert isinstance(refused, OutputError)
    assert refused.fix == "--force, or another name"
    assert (tmp_path / "a").read_bytes() == before
    assert run("slow", "wide", f"--{name}", "a", "--force").exit_code == 0
    assert (tmp_path / "a").read_bytes() != before


def test_a_dash_prints_that_and_nothing_else(run, tmp_path):
    printed = run("slow", "fast", "--csv", "-", "--json", "file.json")
    assert run("slow", "fast", "--csv", "file").exit_code == 0
    assert printed.stdout == (tmp_path / "file").read_text()


def test_a_run_without_gpu_activity_is_a_row_of_nulls(run):
    done = run("slow", "empty", "fast", "--csv", "-")
    assert done.exit_code == 0
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert (rows[1]["speedup"], rows[1]["step_time_ns"], rows[1]["verdict"]) == ("", "", "inconclusive")
    assert rows[2]["verdict"] == "improvement"
    assert "no step has a window on every rank" in run("slow", "empty", "fast").stdout


def test_another_world_size_needs_force_for_a_verdict(run):
    for options, verdict in (([], "inconclusive"), (["--force"], "improvement")):
        found = json.loads(run("slow", "wide", "--json", "-", *options).stdout)
        assert found["runs"][1]["verdict"] == verdict


def test_options_reach_the_statistics(run):
    found = json.loads(run("slow", "fast", "--min-effect", "50%", "--confidence", "0.8", "--json", "-").stdout)
    assert (found["min_effect_pct"], found["confidence"]) == (50, 0.8)
    assert found["runs"][1]["verdict"] == "no change"


def test_thresholds_come_from_the_file_that_diff_reads_and_options_win(run, tmp_path):
    (tmp_path / "nsyspipe.toml").write_text('fail-on = "regression"\nmin-effect = "50%"\n')
    found = json.loads(run("slow", "fast", "--json", "-").stdout)
    assert (found["min_effect_pct"], found["confidence"]) == (50, 0.95)
    assert found["settings_file"] == "nsyspipe.toml"
    assert found["runs"][1]["verdict"] == "no change"
    assert "Thresholds from nsyspipe.toml." in run("slow", "fast").stdout
    found = json.loads(run("slow", "fast", "--min-effect", "0", "--json", "-").stdout)
    assert (found["min_effect_pct"], found["settings_file"]) == (0, None)
    (tmp_path / "nsyspipe.toml").write_text("min-effekt = 2\n")
    assert "sets 'min-effekt', which nothing reads" in str(run("slow", "fast").exception)


def test_a_capture_that_is_there_twice_is_said_once(run):
    done = run("a=slow", "b=slow", "c=fast")
    assert "a and b are the same capture" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["slow", "nothing_*.sqlite"], "nothing_*.sqlite"),
        (["slow", "b=nothing.sqlite"], "nothing.sqlite"),
        (["slow", "store"], "holds 4 runs"),
        (["slow", "fast", "--sort", "speed"], "found: step_time, throughput"),
        (["slow", "fast", "--sort", ""], "there is no such metric"),
        (["slow", "fast", "--confidence", "2"], "--confidence"),
        (["slow", "fast", "--min-effect", "-1"], "--min-effect"),
        (["slow", "fast", "--html", "-"], "cannot be printed"),
        (["slow", "fast", "--csv", "a", "--json", "a"], "both write a"),
        (["slow", "fast", "--csv", "no/where.csv"], "no/where.csv"),
        (["a=slow", "a=slow"], "twice"),
    ],
)
def test_what_cannot_be_used_ends_with_2_and_says_why(made, arguments, said):
    done = nsyspipe_here("compare", "-j", "1", *arguments, cwd=made)
    assert_refused(done)
    assert said in done.stderr


def test_a_damaged_report_is_named(made, tmp_path):
    (tmp_path / "bad_0.sqlite").write_bytes(b"no database")
    done = nsyspipe_here("compare", "slow", tmp_path / "bad_0.sqlite", cwd=made)
    assert_refused(done)
    assert "bad_0.sqlite" in done.stderr


@pytest.mark.slow
def test_the_samples_before_and_after_and_the_same_saved(tmp_path):
    # Step times of 645 and 572 ms: the bucket of 25 MB gains 11 %, 1.13 times the steps.
    reports = [f"{name}={SAMPLES}/ddp-4gpu-{name}_*.sqlite" for name in ("before", "after")]
    saved = [f"{name}={SAMPLES}/dataset/runs/run_id=ddp-4gpu-{name}" for name in ("before", "after")]
    found = [json.loads(nsyspipe_here("compare", *runs, "--json", "-").stdout)["runs"] for runs in (reports, saved)]
    assert found[0][1]["verdict"] == found[1][1]["verdict"] == "improvement"
    assert found[0][1]["speedup"] == found[1][1]["speedup"] == pytest.approx(1.128, abs=0.002)
    assert found[0][0]["exposed_comm_share"] > 0.11
    assert found[0][1]["exposed_comm_share"] < 0.01
