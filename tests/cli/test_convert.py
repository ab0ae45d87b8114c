"""The convert command, and .nsys-rep files given to others, as a user runs them: with a fake nsys on PATH."""

import json
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from tests.build.fake_nsys import COPY, NEWER, calls, fake_nsys, fake_report
from tests.build.programs import is_running
from tests.build.tools import file_names
from tests.cli.tools import (
    LINES_AT_END,
    assert_refused,
    environment,
    nsyspipe_here,
    program,
    terminal_run,
)


@pytest.fixture
def tool(tmp_path):
    return partial(fake_nsys, tmp_path / "tool")


@pytest.fixture
def variables(tmp_path, tool):
    tool()
    path = f"{tmp_path / 'tool'}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "NSYSPIPE_CACHE_DIR": str(tmp_path / "cache")}


@pytest.fixture
def run(variables):
    return lambda *arguments, **options: nsyspipe_here(*arguments, **(variables | options))


@pytest.fixture
def reports(tmp_path):
    folder = tmp_path / "reports"
    for rank in (0, 2, 10):
        fake_report(folder / f"run_{rank}.nsys-rep", rank, world_size=11)
    return folder


def test_a_directory_is_converted_once_and_its_exports_are_named(run, reports, tool):
    done = run("convert", reports)
    assert (done.returncode, done.stderr) == (0, "3 exported\n")
    assert done.stdout.splitlines() == [str(reports / f"run_{rank}.sqlite") for rank in (0, 2, 10)]
    assert all(Path(line).is_file() for line in done.stdout.splitlines())
    quiet = run("convert", reports, "-q")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    # What a shell makes of run_*: exports among the reports are passed over, and one named three
    # ways is one.
    for again in (
        [reports],
        sorted(reports.iterdir()),
        [f"{reports}/*.nsys-rep", reports, reports / "run_2.nsys-rep"],
    ):
        assert (found := run("convert", *again, "-j", 1)).stderr == "3 up to date\n", again
        assert sorted(found.stdout.splitlines()) == sorted(done.stdout.splitlines()), again
    assert len(calls(tool())) == 3
    assert run("convert", reports, "--force").stderr == "3 exported\n"


def test_each_failure_is_told_and_the_others_are_converted(run, reports, tool, worded):
    tool(
        f"case \"$report\" in *_2.*) cat >&2 <<'END'\n{NEWER}END\nexit 1;; *_10.*) exit 3;; "
        f"esac; {COPY}"
    )
    done = run("convert", reports)
    assert done.returncode == 2
    assert done.stdout == f"{reports / 'run_0.sqlite'}\n"
    assert done.stderr.count("error: ") == 2
    worded(done.stderr)
    assert file_names(reports) == [
        "run_0.nsys-rep",
        "run_0.sqlite",
        "run_10.nsys-rep",
        "run_2.nsys-rep",
    ]


def test_nsys_and_another_directory_may_be_named(run, reports, tmp_path):
    other = fake_nsys(tmp_path / "other")
    assert run("convert", reports, "--nsys", other, "-o", tmp_path / "new" / "out").returncode == 0
    assert len(calls(other)) == 3
    assert file_names(tmp_path / "new/out") == ["run_0.sqlite", "run_10.sqlite", "run_2.sqlite"]
    assert len(file_names(reports)) == 3
    assert_refused(run("convert", reports, "--nsys", tmp_path / "none", "--force"))


@pytest.mark.slow
def test_a_hang_ends_with_the_timeout_and_a_report_that_is_gone_fails(run, reports, tool, worded):
    tool("sleep 60")
    done = run("convert", reports / "run_0.nsys-rep", "--timeout", 1)
    assert done.returncode == 2
    worded(done.stderr, "a hang")
    assert len(file_names(reports)) == 3
    gone = run("convert", reports / "gone.nsys-rep")
    assert gone.returncode == 2
    worded(gone.stderr, "gone")


def test_names_that_look_like_options_come_out_as_paths(run, tmp_path):
    folder = tmp_path / "odd"
    fake_report(folder / "-q ä_0.nsys-rep")
    assert run("convert", ".", cwd=folder).stdout == "./-q ä_0.sqlite\n"
    assert run("analyze", "./-q ä_0.sqlite", "-q", cwd=folder).returncode == 0


def test_progress_of_an_export_is_shown_on_a_terminal(variables, reports):
    for command in ("analyze", "convert"):
        code, text = terminal_run(command, reports, **variables)
        assert (code, "exporting reports" in text) == (0, True), command


def started_export(variables, folder, tmp_path, *arguments):
    process = subprocess.Popen(
        program(*arguments, folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "child").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "sent"), [("convert", signal.SIGTERM), ("analyze", signal.SIGINT)]
)
def test_an_interrupt_ends_every_nsys_and_leaves_nothing(
    variables, reports, tool, tmp_path, command, sent, worded
):
    child = tmp_path / "child"
    tool(f'head -c 9000 "$report" > "$out"; sleep 60 & echo $! > "{child}"; wait')
    process = started_export(variables, reports, tmp_path, command, "-j", "2")
    process.send_signal(sent)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (128 + sent, "")
    assert len(errors.splitlines()) == LINES_AT_END[sent]
    worded(errors)
    assert file_names(reports) == ["run_0.nsys-rep", "run_10.nsys-rep", "run_2.nsys-rep"]
    assert [one for one in tmp_path.glob("cache/exports/*/*") if one.name != "lock"] == []
    assert not is_running(int(child.read_text()))


@pytest.mark.slow
def test_a_conversion_under_nohup_outlives_its_terminal(variables, reports, tool, tmp_path):
    tool(f'sleep 0.5 & echo $! > "{tmp_path / "child"}"; wait; {COPY}')
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; children inherit it
    try:
        process = started_export(variables, reports, tmp_path, "convert")
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=30)[1] == "3 exported\n"


@pytest.mark.slow
def test_after_a_kill_nothing_looks_up_to_date(variables, run, reports, tool, tmp_path):
    tool(f'head -c 9000 "$report" > "$out"; sleep 2 & echo $! > "{tmp_path / "child"}"; wait')
    process = started_export(variables, reports, tmp_path, "convert")
    process.kill()
    process.communicate(timeout=20)
    assert [name for name in file_names(reports) if name.endswith(".sqlite")] == []
    tool()
    assert run("convert", reports).stderr == "3 exported\n"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["directory", "glob", "files"])
@pytest.mark.parametrize("name", ["run_{}.sqlite", "reports/run_{}.nsys-rep"])
def test_analyze_takes_raw_reports_which_a_rank_map_may_name(run, reports, form, name):
    given = {
        "directory": [reports],
        "glob": [f"{reports}/*.nsys-rep"],
        "files": sorted(reports.iterdir()),
    }[form]
    pairs = ",".join(f"{name.format(was)}={rank}" for was, rank in [(0, 5), (2, 1), (10, 3)])
    done = run("analyze", *given, "--rank-map", pairs, "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    ranks = {row["report"]: row["rank"] for row in document["ranks"]}
    assert ranks == {"run_0.sqlite": 5, "run_2.sqlite": 1, "run_10.sqlite": 3}
    assert (
        document["run"]["reports"] == [f"run_{rank}.sqlite" for rank in (0, 2, 10)]
        or form == "files"
    )
    assert [
        row["rank"] for row in json.loads(run("analyze", *given, "--json", "-").stdout)["ranks"]
    ] == [0, 2, 10]
    assert file_names(reports) == ["run_0.nsys-rep", "run_10.nsys-rep", "run_2.nsys-rep"]


def test_doctor_takes_raw_reports_and_never_replaces_them(run, reports):
    done, raw = run("doctor", reports), reports / "run_0.nsys-rep"
    assert (done.returncode, "run_0.sqlite" in done.stdout) == (0, True)
    before = raw.read_bytes()
    assert_refused(run("doctor", reports, "--json", raw, "--force"))
    assert raw.read_bytes() == before


@pytest.mark.parametrize("command", ["analyze", "doctor"])
def test_a_failing_nsys_is_told(run, reports, tool, command, worded):
    tool("echo 'Exportation error: no space left on device' >&2; exit 1")
    worded(assert_refused(run(command, reports)))
