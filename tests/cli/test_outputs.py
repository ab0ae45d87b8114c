"""Files that commands write beside what they print: whose may be replaced, and what is never written over."""

import csv
import json
import os
import re

import pytest

import nsyspipe
from nsyspipe import api
from tests.build.tools import file_names
from tests.build.trace import steady_rank
from tests.cli.conftest import refused
from tests.cli.sick_run import LOG
from tests.cli.tools import assert_refused, environment
from tests.read_once import load_once

# Command, its runs, other ones, and the formats that it writes.
COMMANDS = {
    "analyze": ("slow", "fast", "json markdown csv html perfetto"),
    "compare": ("slow fast", "slow wide", "json markdown csv html"),
    "diff": ("slow fast", "fast slow", "json markdown html"),
    "whatif": ("slow", "fast", "json markdown html"),
}
SUFFIXES = {"json": "json", "markdown": "md", "csv": "csv", "html": "html", "perfetto": "pftrace"}
FILES = {f"--{name}": f"run.{suffix}" for name, suffix in SUFFIXES.items()}


def status_of(command):
    """Return the exit status of a command about the built runs, of which `whatif` answers nothing."""
    return 4 if command == "whatif" else 0


def without_run_id(text):
    return re.sub(r"run_id=[\w.-]+", "run_id=RUN", text)


@pytest.fixture
def results(tmp_path):
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


@pytest.mark.parametrize(
    "command",
    ["diff", *(pytest.param(one, marks=pytest.mark.slow) for one in COMMANDS if one != "diff")],
)
def test_files_of_the_same_runs_are_replaced_and_of_others_by_force_only(
    call, beside, results, command, worded
):
    runs, others, formats = COMMANDS[command]
    files = {name: results / name for name in formats.split()}
    options = [part for name, path in files.items() for part in (f"--{name}", path)]
    answered = status_of(command)
    for _ in range(2):
        done = call(command, *runs.split(), "-j", 1, "-q", *options)
        assert (done.exit_code, done.stdout, done.stderr) == (answered, "", "")
    before = {path: path.read_bytes() for path in files.values()}
    for name, path in files.items():
        done = call(command, *others.split(), "-j", 1, "-q", f"--{name}", path)
        worded(refused(done, "--force"), name)
        assert path.read_bytes() == before[path], name
    assert call(command, *others.split(), "-j", 1, "-q", *options, "--force").exit_code == answered
    assert not [path for path in files.values() if path.read_bytes() == before[path]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["json", "markdown", "html"])
def test_documents_of_other_commands_neither_replace_nor_are_replaced(
    call, beside, tmp_path, monkeypatch, name
):
    monkeypatch.setattr(api, "load", load_once())
    path = tmp_path / "out"
    # The text of whatif has no mark of its own.
    commands = [one for one in COMMANDS if name != "markdown" or one != "whatif"]
    options = ["-j", 1, "-q", f"--{name}", path]
    for first in commands:
        path.unlink(missing_ok=True)
        assert call(first, *COMMANDS[first][0].split(), *options).exit_code == status_of(first), (
            first
        )
        before = path.read_bytes()
        for second in commands:
            if second != first:
                refused(call(second, *COMMANDS[second][0].split(), *options))
                assert path.read_bytes() == before, (first, second)


JSON = (
    b"",
    b"[]",
    b'{"run": 1}',
    b'{"run": {"run_id": "other"}}',
    b'{"run": {"run_id": null}}',
    b"[" * 100_000,
)
CONTENTS = {
    "--json": (*JSON, b"\xff\x00<html>"),
    "--markdown": [b""],
    "--csv": [b"", b"run_id,table\n", b"run_id,wall_ns\na,1\n"],
    "--html": [b"mine", b"\xff"],
    "--perfetto": [b"{}"],
}


@pytest.mark.parametrize("option", CONTENTS)
def test_a_file_of_anything_else_stays_and_nothing_else_is_written(
    made, results, invoke, option, worded
):
    target = results / "file"
    said = set()
    for content in CONTENTS[option]:
        target.write_bytes(content)
        done = invoke(made / "slow", option, target, "--out", results / "runs")
        said.add(refused(done, "--force"))
        assert target.read_bytes() == content, content
        assert file_names(results) == ["file"], content
    assert len(said) == 1
    worded(said)


def test_a_document_of_a_machine_or_of_reports_is_replaced_by_force_only(steady, tmp_path, call):
    target = tmp_path / "doctor.json"
    assert call("doctor", steady, "--json", target).exit_code == 0
    before = target.read_bytes()
    refused(call("doctor", steady, "--json", target), "--force")
    assert call("doctor", steady, "--json", target, "--force").exit_code == 0
    assert target.read_bytes() == before


def test_two_captures_are_two_runs_unless_the_user_says_otherwise(steady, tmp_path, invoke):
    other = tmp_path / "other"
    other.mkdir()
    steady_rank(0, n_steps=5).write(other / "steady_0.sqlite")
    target = tmp_path / "run.json"
    assert invoke(steady, "--json", target).exit_code == 0
    refused(invoke(other, "--json", target))
    assert invoke(steady, "--json", target, "--run-id", "mine", "--force").exit_code == 0
    assert invoke(other, "--json", target, "--run-id", "mine").exit_code == 0
    found = json.loads(target.read_text())
    assert (found["run"]["run_id"], found["summary"]["n_steps"]) == ("mine", 5)


@pytest.mark.slow
def test_a_run_that_is_replaced_is_said_to_be(steady, tmp_path, invoke, worded):
    store = tmp_path / "store"
    said = [invoke(steady, "--out", store, "--run-id", name).stderr for name in "xxy"]
    steady_rank(0, n_steps=5).write(tmp_path / "other_0.sqlite")
    other = invoke(tmp_path / "other_0.sqlite", "--out", store, "--run-id", "x")
    worded("".join([*said, other.stderr]))


def test_a_file_is_replaced_as_a_whole(made, results, invoke):
    target, usual = results / "run.json", results / "usual"
    usual.touch()
    assert invoke(made / "slow", "--json", target).exit_code == 0
    before = target.stat()
    assert before.st_mode == usual.stat().st_mode
    with target.open() as reader:  # somebody reads the old document while the new one is written
        assert invoke(f"again={made / 'slow'}", "--json", target).exit_code == 0
        assert json.load(reader)["run"]["label"] == "run"
    assert json.loads(target.read_text())["run"]["label"] == "again"
    assert target.stat().st_ino != before.st_ino
    assert file_names(results) == ["run.json", "usual"]


def test_a_dash_prints_that_and_nothing_else(call, beside):
    printed = call("compare", "slow", "fast", "--csv", "-", "--json", "file.json")
    assert call("compare", "slow", "fast", "--csv", "file").exit_code == 0
    assert printed.stdout == (beside / "file").read_text()
    assert len(list(csv.DictReader(printed.stdout.splitlines()))) == 2
    # Of one run all that costs, whatever is printed of it.
    printed = call("analyze", "slow", "--csv", "-", "--top", 1)
    assert call("analyze", "slow", "--csv", "costs", "--top", 2).exit_code == 0
    assert printed.stdout == (beside / "costs").read_text()
    tables = {row["table"] for row in csv.DictReader(printed.stdout.splitlines())}
    assert tables == {"kernels", "collectives", "traffic"}
    refused(call("analyze", "slow", "--top", 0), "--top 0")


MORE = (
    "diff base={} slow --json",
    "compare base={} slow --csv",
    "whatif {} --json",
    "doctor {} --json",
)


@pytest.mark.parametrize("words", [*(f"analyze {{}} {option}" for option in FILES), *MORE])
def test_a_report_is_never_an_output(steady, beside, call, words, worded):
    report = steady / "steady_0.sqlite"
    before = report.read_bytes()
    done = call(*words.format(steady / "steady_*.sqlite").split(), report, "--force")
    worded(refused(done))
    assert report.read_bytes() == before


@pytest.mark.parametrize(
    "words", [*(f"analyze {{}} {option}" for option in FILES), *MORE, "dashboard {} -o"]
)
def test_a_capture_of_another_run_is_never_an_output_not_even_by_force(
    beside, results, call, words, worded
):
    is_page = words.startswith("dashboard")
    other, raw = results / ("capture" if is_page else "b_0.sqlite"), results / "rep.nsys-rep"
    steady_rank(0, n_steps=5).write(other)
    raw.write_bytes(b"raw")
    run = "slow" if is_page or words.startswith("whatif") else "reports/slow"
    said = set()
    for path in [other] if is_page else [other, raw]:
        before = path.read_bytes()
        for force in ([], ["--force"]):
            done = call(*words.format(run).split(), path, *force)
            said.add(refused(done).replace(str(path), "FILE"))
            assert "--force" not in done.exception.fix, force
        assert path.read_bytes() == before, path
    assert len(said) == 1
    worded(said)


def test_a_log_and_a_file_of_a_dataset_are_never_outputs(sick, made, tmp_path, call, worded):
    log = tmp_path / "nccl.log"
    log.write_bytes(LOG.read_bytes())
    worded(refused(call("doctor", sick, "--nccl-log", log, "--json", log, "--force")), "log")
    assert log.read_bytes() == LOG.read_bytes()
    (target,) = (made / "slow").glob("steps/run_id=*/part-0.parquet")
    before = target.read_bytes()
    for option in ("--json", "--perfetto"):
        done = call("analyze", made / "slow", option, target, "--force")
        worded(without_run_id(refused(done)), option)
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    "start", [*(f"analyze {{}} {option}" for option in FILES), "dashboard {} -o"]
)
def test_a_file_that_cannot_be_written_is_refused(made, tmp_path, call, start, worded):
    # The input is not looked at yet: the error is about the output.
    target = tmp_path / "absent" / "file"
    worded(refused(call(*start.format("no").split(), target, "--force")), "no such directory")
    worded(
        refused(call(*start.format(made / "slow").split(), tmp_path, "--force")),
        "a directory by force",
    )
    target = tmp_path / ("x" * 300)
    worded(refused(call(*start.format(made / "slow").split(), target, "--force")), "a long name")
    # A directory, one that is not there yet too, is told a file in it.
    worded(refused(call(*start.format(made / "slow").split(), tmp_path)), "a directory")
    absent = f"{tmp_path / 'absent'}/"
    worded(refused(call(*start.format(made / "slow").split(), absent)), "a directory to be")


@pytest.mark.slow
def test_a_pipe_is_neither_read_nor_replaced(forks, made, tmp_path):
    target = tmp_path / "pipe"
    os.mkfifo(target)
    for options in ([], ["--force"]):
        # Else it would wait for somebody to write into its own output.
        words = ("analyze", made / "slow", "--json", target, *options)
        assert_refused(forks.run(*words, env=environment(), timeout=20))
        assert target.is_fifo(), options


@pytest.mark.slow
def test_a_saved_run_gives_the_same_outputs_without_its_reports(
    steady, results, invoke, monkeypatch
):
    run_id = nsyspipe.load(steady, jobs=1).header.run_id
    outputs = [part for option, name in FILES.items() for part in (option, results / name)]
    # The next command names what was given, unless it is too long.
    monkeypatch.chdir(steady)
    done = invoke(".", *outputs, "--out", results / "runs", "--events")
    written = ", ".join(f"{results / name}" for name in FILES.values())
    assert (done.exit_code, done.stderr) == (
        0,
        f"written: {written}, {results}/runs/ (run {run_id})\n",
    )

    assert file_names(results) == [*sorted(FILES.values()), "runs"]
    assert (results / "runs" / "events" / f"run_id={run_id}" / "rank=1" / "part-0.parquet").exists()
    first = {name: (results / name).read_bytes() for name in FILES.values()}
    for report in steady.glob("*.sqlite"):
        report.unlink()
    monkeypatch.chdir(results / "runs")
    again = invoke(".", *outputs)
    assert (again.exception, again.stderr) == (None, f"written: {written}\n")
    assert again.stdout == done.stdout
    assert {name: (results / name).read_bytes() for name in FILES.values()} == first


@pytest.mark.slow
def test_a_saved_run_can_be_saved_elsewhere_with_all_its_parts(made, results, invoke):
    there = results / "there"
    assert (
        invoke(
            made / "slow", "-o", there, "--events", "--html", there / "page.html", "-q"
        ).exception
        is None
    )
    saved = sorted((made / "slow").glob("*/run_id=*/**/*.parquet"))
    assert saved
    for path in saved:
        assert (there / path.relative_to(made / "slow")).read_bytes() == path.read_bytes(), path
    assert invoke(there, "-q").exit_code == 0


def test_a_run_is_not_saved_beside_its_reports_nor_without_operations(
    steady, results, invoke, call, worded
):
    before = file_names(steady)
    worded(refused(invoke(steady, "--out", steady), "--out"), "beside its reports")
    assert file_names(steady) == before
    assert invoke(steady, "-o", results / "runs", "-q").exit_code == 0
    more = ("--html", results / "run.html", "--out", results / "others")
    done = invoke(results / "runs", "--perfetto", results / "run.pftrace")
    worded(refused(done, "--events"), "a trace")
    done = invoke(results / "runs", "--perfetto", results / "run.pftrace", *more)
    worded(refused(done, "--events"), "a trace, a page and a copy")
    worded(refused(call("whatif", results / "runs"), "--out DIR --events"), "whatif")
    assert file_names(results) == ["runs"]


def test_a_trace_of_some_steps_is_smaller_and_unknown_steps_are_refused(
    made, results, invoke, worded
):
    others = ("--out", results / "runs", "--html", results / "run.html")
    done = invoke(
        made / "slow", "--perfetto", results / "x", "--perfetto-steps", "900:901", *others
    )
    worded(refused(done, "--perfetto-steps 0:"), "steps")
    done = invoke(made / "slow", "--perfetto", results / "x", "--perfetto-ranks", "0,7-9", *others)
    worded(refused(done, "--perfetto-ranks 0"), "ranks")
    assert file_names(results) == []
    assert invoke(made / "slow", "--perfetto", results / "whole", "-q").exit_code == 0
    for steps in ("2", "1:", ":2"):
        done = invoke(
            made / "slow",
            "--perfetto",
            results / "part",
            "--perfetto-steps",
            steps,
            "-q",
            "--force",
        )
        assert (done.exit_code, done.stdout) == (0, ""), steps
        assert 0 < (results / "part").stat().st_size < (results / "whole").stat().st_size, steps


@pytest.mark.slow
def test_a_page_is_opened_after_it_is_written(made, results, call, monkeypatch, worded):
    for command, opens in (("analyze", True), ("whatif", False)):
        page, opened = results / f"{command}.html", []
        monkeypatch.setattr(
            "webbrowser.open",
            lambda url: opened.append((url, page.exists())) or opens,  # noqa: B023
        )
        done = call(command, made / "slow", "--html", page, "--open")
        assert opened == [(page.as_uri(), True)], command
        worded(done.stderr, command)


@pytest.mark.slow
def test_several_runs_in_a_store_need_a_name(steady, results, invoke, worded):
    def answer(*words):
        # Without the commands at the end, which name what was given.
        return invoke(*words).stdout.partition("\nNext:")[0]

    printed = answer(steady, "-o", results / "runs", "--run-id", "one")
    assert answer(steady, "-o", results / "runs", "--run-id", "two") == printed
    worded(refused(invoke(results / "runs"), "runs:two"), "no name")
    assert answer(results / "runs", "--run-id", "one") == printed
    assert answer(results / "runs" / "steps" / "run_id=two") == printed
    worded(refused(invoke(results / "runs", "--run-id", "three")), "another name")
