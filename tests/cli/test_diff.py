"""`nsyspipe diff`: its outputs, its gate, its exit codes, and what it refuses."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import nsyspipe
from nsyspipe.cli.app import app
from nsyspipe.store.write import save
from tests.build.plain_steps import write_run
from tests.cli.tools import assert_refused, nsyspipe_here

MS = 10**6


def steps(compute, n=12):
    return [((compute + number % 3) * MS, 20 * MS, 4 * MS, 6 * MS) for number in range(n)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a directory with runs: two slow captures, a fast one, one of two steps, one of three ranks."""
    folder = tmp_path_factory.mktemp("made")
    for at, (name, compute, n, ranks) in enumerate(
        [("slow", 100, 12, 2), ("slow2", 101, 12, 2), ("fast", 70, 12, 2), ("short", 70, 2, 2), ("wide", 70, 12, 3)]
    ):  # fmt: skip
        write_run(folder / name, [steps(compute, n)] * ranks, start=10**18 + at * 10**12)
        save(nsyspipe.load(folder / name, jobs=1), folder / "store" / name)
    return folder


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    """Return a function that runs the command beside the runs, where nothing sets thresholds."""
    monkeypatch.chdir(tmp_path)
    for one in made.iterdir():
        (tmp_path / one.name).symlink_to(one)

    def invoke(*arguments):
        return CliRunner().invoke(app, ["diff", "-j", "1", *map(str, arguments)])

    return invoke


def document(done):
    return json.loads(done.stdout)


def test_two_runs_give_a_verdict_and_exit_with_0(run):
    done = run("slow", "fast")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("Improvement: step time 131.0 ms -> 101.0 ms (-22.9 %)")


def test_every_way_to_name_a_run(run):
    done = run("base=slow/run_*.sqlite", "store/fast")
    assert done.exit_code == 0
    assert "baseline: base | 2 ranks" in done.stdout
    assert run("slow/run_0.sqlite", "fast/run_0.sqlite", "--json", "-").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["slow", "fast", "--fail-on", "regression"], 0),
        (["slow", "fast", "--fail-on", "any-change"], 3),
        (["fast", "slow", "--fail-on", "regression"], 3),
        (["slow", "slow", "--fail-on", "any-change"], 0),
        (["short", "fast", "--fail-on", "regression"], 4),
        (["slow", "wide", "--fail-on", "regression"], 4),
        (["slow", "wide", "--fail-on", "regression", "--force"], 0),
        (["fast", "slow", "--fail-on", "regression", "--min-effect", "50%"], 0),
        (["fast", "slow", "--fail-on", "regression", "--metric", "exposed_comm"], 0),
        (["fast", "slow", "--fail-on", "regression", "--metric", "busbw,step_time"], 3),
        (["fast", "slow", "--fail-on", "regression", "--metric", "busbw,exposed_comm"], 4),
        # Each --metric counts, not only the last one.
        (["fast", "slow", "--fail-on", "regression", "--metric", "step_time", "--metric", "exposed_memory"], 3),
        (["slow", "fast", "--fail-on", "any-change", "--metric", "comm"], 0),
        (["fast", "slow"], 0),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else None,
)
def test_the_gate_sets_the_exit_code_and_says_why(run, tmp_path, arguments, code):
    done = run(
        *arguments,
        "--json",
        tmp_path / "diff.json",
        "--markdown",
        tmp_path / "diff.md",
        "--html",
        tmp_path / "diff.html",
        "-q",
    )
    assert (done.exit_code, done.stdout) == (code, "")
    assert len(done.stderr.splitlines()) == (1 if code else 0)
    # All files are written also when it fails.
    gate = json.loads((tmp_path / "diff.json").read_text())["gate"]
    assert (gate["exit_code"] if gate else 0) == code
    assert (tmp_path / "diff.md").read_text().startswith("<!-- nsyspipe:diff -->")
    assert ("Gate failed" in (tmp_path / "diff.html").read_text(encoding="utf-8")) == (code == 3)


def test_the_reason_names_the_metric_and_its_figures(run):
    done = run("fast", "slow", "--fail-on", "regression")
    assert done.stderr == ("error: --fail-on regression: step_time regression, 101.0 ms -> 131.0 ms (+29.7 %)\n")
    assert done.stdout.startswith("Regression: step time")


def test_reports_and_the_saved_runs_give_the_same_json(run):
    fresh = run("slow", "fast", "--json", "-").stdout
    assert run("store/slow", "store/fast", "--json", "-").stdout == fresh
    assert run("store/slow", "fast", "--json", "-").stdout == fresh


def test_sides_of_one_label_are_told_apart_by_their_arguments(run):
    text = run("slow", "fast").stdout
    assert "baseline: slow | 2 ranks" in text
    assert "candidate: fast | 2 ranks" in text
    # The document says what the runs say of themselves.
    found = document(run("slow", "fast", "--json", "-"))
    assert (found["baseline"]["label"], found["candidate"]["label"]) == ("run", "run")


def test_several_captures_of_a_side_share_a_label(run):
    found = document(run("base=slow", "base=slow2", "new=fast", "--json", "-"))
    assert len(found["baseline"]["captures"]) == 2
    assert found["baseline"]["label"] == "base"
    assert found["has_spread_between_captures"] is True
    row = found["metrics"][0]
    # The mean of 131 and 132 ms.
    assert (row["baseline"], row["n_baseline"], row["n_candidate"]) == (131.5e6, 24, 12)
    text = run("base=slow", "base=slow2", "new=fast").stdout
    assert "the first of 2 captures" in text
    assert "spread between captures is not" not in text


# --- thresholds from files ------------------------------------------------------------------------


def test_thresholds_come_from_the_nearest_file_which_the_output_names(run, tmp_path):
    path = tmp_path / "nsyspipe.toml"
    path.write_text('[diff]\nfail-on = "regression"\nmin-effect = "50%"\n')
    done = run("fast", "slow")
    assert done.exit_code == 0
    assert "Thresholds from nsyspipe.toml." in done.stdout
    # Options win over the file.
    assert run("fast", "slow", "--min-effect", "2").exit_code == 3
    found = document(run("fast", "slow", "--json", "-"))
    assert (found["min_effect_pct"], found["settings_file"]) == (50, "nsyspipe.toml")
    assert "nsyspipe.toml" in run("fast", "slow", "--markdown", "-").stdout
    # A log always shows it.
    for more in (["-q"], ["--json", "-"]):
        assert run("fast", "slow", *more).stderr == "Thresholds from nsyspipe.toml.\n"
    chosen = run("fast", "slow", "--min-effect", "50%", "--fail-on", "regression")
    assert "Thresholds from" not in chosen.stdout  # none of them is the file's


def test_a_wrong_file_is_refused_in_one_line(made, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.nsyspipe.diff]\nmin-effekt = 2\n")
    done = nsyspipe_here("diff", made / "slow", made / "fast", cwd=tmp_path)
    assert_refused(done)
    assert "pyproject.toml: sets 'min-effekt', which nothing reads" in done.stderr


@pytest.mark.slow
def test_a_gate_of_a_file_that_could_never_fail_is_refused(made, tmp_path):
    path = tmp_path / "nsyspipe.toml"
    path.write_text('[diff]\nfail-on = "regression"\nmetric = ["comm"]\n')
    done = nsyspipe_here("diff", made / "slow", made / "fast", cwd=tmp_path)
    assert_refused(done)
    assert done.stderr.startswith(f"error: {path}: fail-on: can never fail: comm is neither")
    assert done.stderr.endswith('fix: fail-on = "any-change"\n')
    done = nsyspipe_here("diff", made / "slow", made / "fast", "--fail-on", "any-change", cwd=tmp_path)
    assert done.returncode == 0


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["slow"], "compares two runs, and 1 is named"),
        (["slow", "fast", "wide"], "compares two runs, and 3 are named"),
        (["a=slow", "a=fast"], "and 1 is named"),
        (["slow", "fast", "--fail-on", "slower"], "is no gate"),
        (["slow", "fast", "--min-effect", "x"], "no percentage"),
        (["slow", "fast", "--confidence", "95"], "between 0.5 and 1"),
        (["slow", "fast", "--metric", "speed"], "no such metric"),
        (["slow", "fast", "--metric", "idle", "--metric", ""], "no such metric"),
        (
            ["nowhere", "fast", "--fail-on", "regression", "--metric", "step_time", "--metric", "comm,collectives"],
            "comm, collectives are neither better lower nor higher",
        ),
        (["slow", "nowhere"], "nowhere"),
        (["slow", "store/fast", "--json", "x", "--markdown", "x"], "both write x"),
        (["slow", "fast", "--json", "no/such/place.json"], "cannot be written"),
        (["slow", "fast", "--html", "-"], "--html -: cannot be printed"),
        (["store/slow", "store/fast", "--step", "x"], "says how reports are read"),
        (["a=slow", "a=slow", "fast"], "has the capture"),
    ],
    ids=lambda one: one if isinstance(one, str) else " ".join(one),
)
def test_what_cannot_be_used_is_refused_in_one_line(made, arguments, words):
    done = nsyspipe_here("diff", *arguments, cwd=made)
    assert_refused(done)
    assert words in done.stderr


@pytest.mark.slow
def test_a_file_of_the_same_runs_is_replaced_and_another_by_force_only(run, tmp_path):
    for name in ("json", "markdown", "html"):
        path = tmp_path / f"out.{name}"
        arguments = [f"--{name}", path, "-q"]
        assert run("slow", "fast", *arguments).exit_code == 0
        assert run("slow", "fast", *arguments).exit_code == 0
        before = path.read_bytes()
        done = run("fast", "slow", *arguments)
        assert isinstance(done.exception, nsyspipe.NsyspipeError)
        assert path.read_bytes() == before
        assert run("fast", "slow", *arguments, "--force").exit_code == 0
        assert path.read_bytes() != before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["json", "markdown", "html"])
def test_documents_of_other_commands_are_neither_replaced_nor_replace_one(run, tmp_path, name):
    path = tmp_path / f"out.{name}"
    options = ["-j", "1", "-q", f"--{name}", str(path)]
    commands = {
        "analyze": ["analyze", "slow/run_0.sqlite", "slow/run_1.sqlite"],
        "compare": ["compare", "slow", "fast"],
        "whatif": ["whatif", "slow"],
        "diff": ["diff", "slow", "fast"],
    }
    if name != "json":
        del commands["whatif"]
    for first, command in commands.items():
        path.unlink(missing_ok=True)
        done = CliRunner().invoke(app, [*command, *options])
        assert done.exit_code == 0, first
        before = path.read_bytes()
        for second in {"diff"} if first != "diff" else set(commands) - {"diff"}:
            done = CliRunner().invoke(app, [*commands[second], *options])
            assert isinstance(done.exception, nsyspipe.NsyspipeError), (first, second)
            assert path.read_bytes() == before


def test_an_input_is_never_replaced(run, made):
    report = made / "slow" / "run_0.sqlite"
    before = report.read_bytes()
    done = run("slow", "fast", "--json", report, "--force")
    assert isinstance(done.exception, nsyspipe.NsyspipeError)
    assert report.read_bytes() == before
