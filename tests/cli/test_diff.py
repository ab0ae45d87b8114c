"""`nsyspipe diff` and `nsyspipe compare`: runs beside each other, the gate, its exit codes, and where thresholds come from."""

import csv
import json
import re

import pytest

import nsyspipe
from nsyspipe.cli.outputs import text_of
from nsyspipe.comparison.scoreboard import SORTS
from nsyspipe.model.figures import FIGURES
from nsyspipe.report.scoreboard import scoreboard_blocks
from nsyspipe.store.write import save
from tests.cli.conftest import refused
from tests.golden.words import figures


@pytest.fixture
def diff(call, beside):  # beside the runs, where nothing sets thresholds
    return lambda *arguments: call("diff", "-j", "1", *arguments)


@pytest.fixture
def compare(call, beside):
    return lambda *arguments: call("compare", "-j", "1", *arguments)


def document(done):
    return json.loads(done.stdout)


@pytest.mark.slow
def test_two_runs_give_a_verdict_named_by_their_arguments_and_exit_with_0(diff, worded):
    done = diff("slow", "fast")
    assert (done.exit_code, done.stderr) == (0, "")
    verdict = done.stdout.splitlines()[0]
    assert {"131.0", "101.0", "22.9"} <= figures(verdict)
    # Both runs are labelled `run`: their arguments tell them apart.
    worded(done.stdout)
    assert " base | " in diff("base=reports/slow/run_*.sqlite", "fast").stdout
    assert (
        diff("reports/slow/run_0.sqlite", "reports/fast/run_0.sqlite", "--json", "-").exit_code == 0
    )


def test_a_directory_of_two_runs_and_a_store_are_told_the_two_arguments(
    diff, compare, beside, worded
):
    both = beside / "both"
    both.mkdir()
    for name in ("slow", "fast"):
        for report in (beside / "reports" / name).glob("*.sqlite"):
            (both / f"{name}-{report.name}").hardlink_to(report)
    two = ["both/fast-run_*.sqlite", "both/slow-run_*.sqlite"]
    worded(refused(diff("both"), *two), "diff")
    worded(refused(compare("both"), *two), "compare")
    assert compare(*two).exit_code == 0
    worded(refused(diff("store")), "a store")


@pytest.mark.slow
def test_a_label_of_a_store_is_a_baseline_of_all_its_captures(diff, beside, worded):
    labels = (
        ("main", "m1", "slow"),
        ("main", "m2", "again"),
        ("a=b/c", "f1", "fast"),
        ("run-3", "s1", "short"),
    )
    for label, run_id, run in labels:
        save(
            nsyspipe.load(beside / "reports" / run, label=label, run_id=run_id, jobs=1),
            beside / "labels",
        )
    worded(refused(diff("--against", "main", "labels")), "no candidate")
    worded(refused(diff("--against", "main", "labels", "run-4")), "a candidate that is not there")
    ranks = [beside / "reports" / "slow" / f"run_{rank}.sqlite" for rank in range(2)]
    worded(refused(diff("--against", "main", "labels", *ranks)), "a candidate rank by rank")
    worded(refused(diff("--against", "m1", "labels")), "an id")
    one = json.loads(diff("--against", "main", "labels/", "a=b/c", "--json", "-").stdout)
    assert one == json.loads(
        diff("main=labels:m1", "main=labels:m2", "labels:f1", "--json", "-").stdout
    )
    assert one["metrics"][0]["n_baseline"] == 24  # steps of both captures
    for _ in range(2):  # the second replaces the first, whatever the sides are called
        assert (
            diff("--against", "main", "labels", "labels:f1", "--markdown", "diff.md").exit_code == 0
        )
    # A path wins over a label, and several arguments are what they are without a baseline.
    assert " new | " in diff("--against", "main", "labels", "new=fast").stdout
    # What is there twice says nothing of the spread between captures.
    save(
        nsyspipe.load(beside / "reports" / "slow", label="main", run_id="m3", jobs=1),
        beside / "labels",
    )
    told = diff("--against", "main", "labels", "run-3").stdout
    worded(told, "one capture twice")
    # One of some ranks counts for nothing beside those of all.
    partial = nsyspipe.load(
        beside / "reports" / "slow", label="main", run_id="m4", ranks="0", jobs=1
    )
    save(partial, beside / "labels")
    done = diff("--against", "main", "labels", "run-3")
    assert done.stdout == told
    worded(done.stderr, "a capture of some ranks")
    save(partial, beside / "parts")
    found = document(diff("--against", "main", "parts", "run-3=fast", "--json", "-"))
    assert found["baseline"]["n_ranks"] == 1
    next((beside / "labels" / "runs" / "run_id=s1").iterdir()).write_bytes(b"")
    worded(refused(diff("--against", "main", "labels", "a=b/c")), "a damaged run")


def test_reports_and_the_saved_runs_give_the_same_json(diff):
    saved = diff("slow", "fast", "--json", "-").stdout
    assert diff("reports/slow", "reports/fast/run_*.sqlite", "--json", "-").stdout == saved
    # The document says what the runs say of themselves.
    found = json.loads(saved)
    assert (found["baseline"]["label"], found["candidate"]["label"]) == ("run", "run")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("slow fast --fail-on regression", 0),
        ("slow fast --fail-on any-change", 3),
        ("fast slow --fail-on regression", 3),
        ("slow slow --fail-on any-change", 4),
        ("slow slow --fail-on regression", 4),
        ("slow slow --fail-on any-change --force", 0),
        ("short fast --fail-on regression", 4),
        ("slow wide --fail-on regression", 4),
        ("slow wide --fail-on regression --force", 0),
        ("fast slow --fail-on regression --min-effect 50%", 0),
        ("fast slow --fail-on regression --metric exposed_comm", 0),
        ("fast slow --fail-on regression --metric busbw,step_time", 3),
        ("fast slow --fail-on regression --metric busbw,exposed_comm", 4),
        # Each --metric counts, not only the last one.
        ("fast slow --fail-on regression --metric step_time --metric exposed_memory", 3),
        ("slow fast --fail-on any-change --metric comm", 0),
        ("fast slow", 0),
    ],
)
def test_the_gate_sets_the_exit_code_and_says_why(diff, tmp_path, arguments, code):
    done = diff(*arguments.split(), "--json", tmp_path / "diff.json", "-q")
    assert (done.exit_code, done.stdout) == (code, "")
    assert len(done.stderr.splitlines()) == (1 if code else 0)
    gate = json.loads((tmp_path / "diff.json").read_text())["gate"]
    assert (gate["exit_code"] if gate else 0) == code


def test_a_failed_gate_names_metric_and_figures_and_all_files_are_written(diff, tmp_path, worded):
    done = diff(
        "fast", "slow", "--fail-on", "regression", "--markdown", "diff.md", "--html", "diff.html"
    )
    _, failed = done.stderr.splitlines()
    assert {"101.0", "131.0", "29.7"} <= figures(failed)
    worded(done.stderr)
    assert (tmp_path / "diff.md").read_text().startswith("<!-- nsyspipe:diff -->")
    assert (tmp_path / "diff.html").exists()


def test_several_captures_of_a_side_share_a_label(diff):
    sides = ("base=slow", "base=again", "new=fast")
    found = document(diff(*sides, "--json", "-"))
    base = found["baseline"]
    assert (len(base["captures"]), base["label"], found["has_spread_between_captures"]) == (
        2,
        "base",
        True,
    )
    row = found["metrics"][0]
    assert (row["baseline"], row["n_baseline"], row["n_candidate"]) == (131e6, 24, 12)


@pytest.mark.slow
def test_what_a_table_is_sorted_by_is_shown_however_narrow(beside, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    runs = {name: nsyspipe.load(name) for name in ("slow", "fast")}
    headings = {"throughput": "steps/s", "rank_steps": "rank\nsteps/s", "speedup": "speed-up"}
    for name, (column, _) in SORTS.items():
        heading = headings.get(name) or FIGURES[column].heading
        table = text_of(scoreboard_blocks(nsyspipe.compare(runs, sort=name)))
        shown = re.sub(r"Left out[^.]*\.", "", table)
        assert all(line in shown for line in heading.split("\n")), name


@pytest.mark.slow
def test_runs_of_one_label_are_one_side_in_a_sorted_table(compare, worded):
    done = compare("base=slow", "b25=reports/fast/run_*.sqlite", "c=slow")
    assert (done.exit_code, done.stderr) == (0, "")
    # 131 ms of 101.
    assert re.findall(r"[\d.]+x", done.stdout.splitlines()[0]) == ["1.30x"]
    worded(done.stdout, "one capture twice beside another")
    worded(compare("a=slow", "b=slow").stdout, "one capture twice")
    runs = document(compare("a=slow", "b=fast", "a=again", "--json", "-"))["runs"]
    assert [(one["label"], one["n_captures"]) for one in runs] == [("a", 2), ("b", 1)]
    found = document(
        compare("slow=slow", "fast=fast", "again=again", "--sort", "step_time", "--json", "-")
    )
    assert [one["label"] for one in found["runs"]] == ["fast", "slow", "again"]
    assert (found["reference"], found["sort"], found["runs"][1]["verdict"]) == (
        "slow",
        "step_time",
        "reference",
    )


def test_a_run_without_gpu_activity_is_a_row_of_nulls(compare, worded):
    done = compare("slow", "empty", "fast", "--csv", "-")
    assert done.exit_code == 0
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert (rows[1]["speedup"], rows[1]["step_time_ns"], rows[1]["verdict"]) == (
        "",
        "",
        "inconclusive",
    )
    assert rows[2]["verdict"] == "improvement"
    worded(compare("slow", "empty", "fast").stdout)


def test_options_reach_the_verdict(compare):
    for arguments, expected in [
        ("slow wide", ("inconclusive", 2, 0.95)),  # of another world size
        ("slow wide --force", ("improvement", 2, 0.95)),
        ("slow fast --min-effect 50% --confidence 0.8", ("no change", 50, 0.8)),
    ]:
        found = document(compare(*arguments.split(), "--json", "-"))
        assert (
            found["runs"][1]["verdict"],
            found["min_effect_pct"],
            found["confidence"],
        ) == expected, arguments


@pytest.mark.slow
def test_thresholds_come_from_the_nearest_file_which_the_output_names(diff, tmp_path, worded):
    (tmp_path / "nsyspipe.toml").write_text('[diff]\nfail-on = "regression"\nmin-effect = "50%"\n')
    done = diff("fast", "slow")
    assert done.exit_code == 0
    assert "nsyspipe.toml" in done.stdout
    assert diff("fast", "slow", "--min-effect", "2").exit_code == 3  # options win over the file
    assert "nsyspipe.toml" in diff("fast", "slow", "--markdown", "-").stdout
    # A log always shows it.
    worded(diff("fast", "slow", "-q").stderr, "quiet")
    done = diff("fast", "slow", "--json", "-")
    worded(done.stderr, "JSON")
    assert (document(done)["min_effect_pct"], document(done)["settings_file"]) == (
        50,
        "nsyspipe.toml",
    )
    chosen = diff("fast", "slow", "--min-effect", "50%", "--fail-on", "regression")
    assert "nsyspipe.toml" not in chosen.stdout  # none of them is the file's


def test_compare_takes_its_thresholds_from_the_file_that_diff_reads(compare, tmp_path):
    (tmp_path / "nsyspipe.toml").write_text('fail-on = "regression"\nmin-effect = "50%"\n')
    found = document(compare("slow", "fast", "--json", "-"))
    assert (found["min_effect_pct"], found["confidence"], found["settings_file"]) == (
        50,
        0.95,
        "nsyspipe.toml",
    )
    assert found["runs"][1]["verdict"] == "no change"
    assert "nsyspipe.toml" in compare("slow", "fast").stdout
    found = document(compare("slow", "fast", "--min-effect", "0", "--json", "-"))
    assert (found["min_effect_pct"], found["settings_file"]) == (0, None)


def test_a_wrong_file_and_a_gate_that_could_never_fail_are_refused(diff, compare, tmp_path, worded):
    path = tmp_path / "pyproject.toml"
    path.write_text("[tool.nsyspipe.diff]\nmin-effekt = 2\n")
    worded(refused(diff("slow", "fast")), "diff")
    worded(refused(compare("slow", "fast")), "compare")
    path.write_text('[tool.nsyspipe.diff]\nfail-on = "regression"\nmetric = ["comm"]\n')
    worded(refused(diff("slow", "fast"), str(path)), "a gate that could never fail")
    assert diff("slow", "fast", "--fail-on", "any-change").exit_code == 0
