"""`nsyspipe doctor`: this machine, or what reports can answer, with the options of `analyze`; no secrets."""

import json
import os
import re
import shutil
import time

import pytest
from typer.testing import CliRunner

import nsyspipe
from nsyspipe.cli.app import app
from nsyspipe.report.as_text import MAX_WIDTH
from tests.build.programs import GPUS, HELP, TOPOLOGY, VERSION, printing, program
from tests.build.tools import edit
from tests.build.trace import NVTX, RUNTIME, TraceBuilder, steady_rank
from tests.cli.sick_run import LINK, LOG
from tests.cli.tools import nsyspipe_here, python_run
from tests.run.test_step_sources import trained

CHECKS = [
    "nsyspipe",
    "disk_space",
    "nsys",
    "importer",
    "trace_values",
    "cpu_sampling",
    "cuda_driver",
    "topology",
    "torch",
    "nccl",
    "nvtx",
]
SECRETS = ("hunter2", "alice", "TOKEN", "node77")


def doctor(*arguments, columns=100):
    words = ["doctor", *map(str, arguments)]
    done = CliRunner().invoke(app, words, env={"COLUMNS": str(columns)}, catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def machine(tmp_path):
    folder = tmp_path / "programs"
    folder.mkdir()
    program(folder, "nsys", printing(version=VERSION, profile=HELP))
    rows = GPUS.replace("\n", "\\n")
    program(
        folder,
        "nvidia-smi",
        f"case $1 in --query-gpu*) printf '{rows}'; exit;; esac\n" + printing(topo=TOPOLOGY),
    )
    return folder, {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.slow
def test_a_machine_with_nsys_and_gpus_is_described_in_text_and_json(machine, worded):
    _, variables = machine
    done = nsyspipe_here("doctor", COLUMNS="100", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--trace=cuda,nvtx,osrt" in done.stdout
    of_these_programs = ("CUDA driver", "nsys", "topology")
    rows = [re.split(r" {2,}", line)[:3] for line in done.stdout.splitlines()]
    worded([" | ".join(row) for row in rows if row[1:2] and row[1] in of_these_programs])
    done = nsyspipe_here("doctor", "--json", "-", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert list(found) == ["schema_version", "tool_version", "checks", "problems"]
    assert (found["problems"], found["schema_version"], found["tool_version"]) == (
        [],
        1,
        nsyspipe.__version__,
    )
    assert [one["name"] for one in found["checks"]] == CHECKS
    keys = ["name", "status", "found", "needed_for", "fix", "found_bytes"]
    assert all(list(one) == keys for one in found["checks"])
    (disk,) = [one for one in found["checks"] if one["name"] == "disk_space"]
    assert type(disk["found_bytes"]) is int


@pytest.mark.slow
@pytest.mark.parametrize("nsys", ["exit 127", "sleep 60 & wait"])
def test_an_nsys_that_fails_or_hangs_costs_seconds_and_no_answer(machine, nsys, worded):
    folder, variables = machine
    program(folder, "nsys", nsys)
    start = time.monotonic()
    done = nsyspipe_here("doctor", COLUMNS="100", **variables)
    assert time.monotonic() - start < 20
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 x NVIDIA H200" in done.stdout
    checks = {one["name"]: one for one in machine_checks(variables)}
    for name in ("nsys", "importer"):
        worded([str(checks[name][key]) for key in ("status", "found", "fix")], name)


def machine_checks(variables):
    return json.loads(nsyspipe_here("doctor", "--json", "-", **variables).stdout)["checks"]


@pytest.mark.slow
def test_one_report_lacking_something_is_named(tmp_path):
    for rank in range(6):
        without = (RUNTIME,) if rank else ()
        steady_rank(rank, world_size=6).write(tmp_path / f"a_{rank}.sqlite", without=without)
    text = " ".join(doctor(tmp_path).split())
    assert "1 of 6 reports: 16 API calls" in text
    assert "(for a_1.sqlite, a_2.sqlite, a_3.sqlite and 2 more)" in text


@pytest.mark.slow
def test_several_processes_say_what_one_does(real):
    one, two = (doctor(real / "ddp-2gpu_*.sqlite", "-j", n, "--json", "-") for n in (1, 2))
    assert one == two


def test_doctor_separates_runs_and_reports_backward_without_a_range(tmp_path, worded):
    for name in ("a", "b"):
        for rank in range(2):
            trained(rank, 8, is_marked=False).write(tmp_path / f"{name}_{rank}.sqlite")
    assert "\n2 runs: a_*.sqlite, b_*.sqlite" in doctor(tmp_path)
    rows = json.loads(doctor(tmp_path / "a_*.sqlite", "--json", "-"))["capabilities"]
    (phases,) = (row for row in rows if row["name"] == "phases")
    assert phases["status"] == "partly"
    worded([phases["found"], phases["fix"]])


def test_problems_and_capabilities_are_told_in_text_and_json(tmp_path, worded):
    TraceBuilder().range(0, 5, "x").meta(EXPORT_SCHEMA_VERSION="9.1.0").write(tmp_path / "a.sqlite")
    text = doctor(tmp_path)
    worded(text)
    assert text.count("fix:") == 1  # the other stands among what adds what is missing
    found = json.loads(doctor(tmp_path, "--json", "-"))
    assert list(found) == ["schema_version", "tool_version", "reports", "capabilities", "problems"]
    told = [(one["code"], one["report"]) for one in found["problems"]]
    fixes = {one["code"]: one["fix"] for one in found["problems"]}
    assert f"fix: {fixes['untested-version']}" in text
    assert fixes["no-gpu-activity"] in {one["fix"] for one in found["capabilities"]}
    assert told == [("untested-version", "a.sqlite"), ("no-gpu-activity", "a.sqlite")]
    assert set(found["problems"][0]) == {"code", "severity", "report", "rank", "message", "fix"}
    keys = (
        "name",
        "answers",
        "status",
        "found",
        "fix",
        "is_used",
        "n_reports",
        "n_with",
        "lacking",
    )
    assert {tuple(one) for one in found["capabilities"]} == {keys}


def every_option(folder):
    names = ",".join(f"sick_{rank}.sqlite={rank}" for rank in range(2))
    return [
        "--step",
        "^step",
        "--backward",
        "^back",
        "--forward",
        "x",
        "--optimizer",
        "x",
        "--data",
        "x",
        "--comm-kernel",
        "^my",
        "--skip-first",
        "1",
        "--rank-map",
        names,
        "--label",
        "a",
        "--run-id",
        "b",
        *LINK,
        "--findings",
        "all",
        "-j",
        "1",
    ]


@pytest.mark.slow
def test_one_set_of_options_works_with_both_commands(sick, worded):
    options = every_option(sick)
    assert nsyspipe_here("analyze", sick, *options).returncode == 0
    rows = json.loads(doctor(sick, *options, "--json", "-"))["capabilities"]
    found = {row["name"]: row["found"] for row in rows if row["status"] == "yes"}
    worded(
        [
            f"{name}: {found[name]}"
            for name in ("steps", "phases", "ranks", "compute_and_comm", "link")
        ]
    )


def test_without_reports_they_are_ignored(sick, tmp_path):
    options = every_option(sick)
    for name, value in (("--step", "("), ("--topology", tmp_path / "none"), ("--findings", "x")):
        options[options.index(name) + 1] = value
    assert [
        one["name"] for one in json.loads(doctor(*options, LOG, "--json", "-"))["checks"]
    ] == CHECKS


@pytest.mark.parametrize(
    ("columns", "what"), [(50, "machine"), (50, "reports"), (80, "long names"), (200, "long names")]
)
def test_the_text_fits_the_terminal_tables_160_columns_and_sentences_100(tmp_path, columns, what):
    name = "a" * 120 if what == "long names" else "a"
    for rank in range(2):
        builder = steady_rank(rank).range(0, 900, "r" * 150).gpu(1, "G" * 150)
        builder.write(tmp_path / f"{name}_{rank}.sqlite", without=() if rank else (NVTX,))
    lines = doctor(*([] if what == "machine" else [tmp_path]), columns=columns).splitlines()
    assert max(map(len, lines)) <= min(columns, MAX_WIDTH)
    sentences = lines[: lines.index("")]
    assert max(map(len, sentences)) <= min(columns, 100)
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.slow
def test_no_environment_user_host_or_path_is_told(tmp_path, machine):
    folder, variables = machine
    program(folder, "nsys", f"echo TOKEN=hunter2 /home/alice; {printing(version=VERSION)}")
    builder = steady_rank(0).env(TOKEN="hunter2", HOME="/home/alice", USER="alice").host("node77")
    path = builder.write(tmp_path / "a_0.sqlite")
    edit(path, "CREATE TABLE PROCESSES (name TEXT)", "INSERT INTO PROCESSES VALUES ('/home/alice')")
    variables |= {"TOKEN": "hunter2", "USER": "alice", "HOME": "/home/alice"}
    for words in ([], ["--json", "-"], [path], [path, "--json", "-"]):
        done = nsyspipe_here("doctor", *words, **variables)
        assert done.returncode == 0, words
        assert not [
            word for word in (*SECRETS, str(tmp_path)) if word in done.stdout + done.stderr
        ], words


@pytest.mark.slow
def test_this_machine_is_checked_without_anything_heavy():
    script = (
        "import sys; from nsyspipe.nsys.machine import check_machine; check_machine(); "
        "print(sorted({'numpy', 'pandas', 'pyarrow', 'sqlalchemy', 'torch'} & set(sys.modules)))"
    )
    assert python_run(script).stdout == "[]\n"


@pytest.mark.slow
def test_the_runs_of_a_store_are_listed_by_the_names_that_open_them(made, tmp_path):
    store = shutil.copytree(made / "store", tmp_path / "store")
    listed = json.loads(doctor(store, "--json", "-"))
    runs = [nsyspipe.load(f"{store}:{row['run_id']}") for row in listed["runs"]]
    assert len(runs) == 5
    for row, run in zip(listed["runs"], runs, strict=True):
        assert (row["label"], row["n_ranks"]) == (run.header.label, run.header.n_ranks), row
        assert [row["step_time_ns"]] == run.summary()["step_time_ns"].to_pylist(), row
    text = doctor(store)
    assert re.search(r"\b5\b", text.splitlines()[0])
    ids = [line.split()[0] for line in text.split("\nID")[1].splitlines()[1:]]
    assert ids == [row["run_id"] for row in listed["runs"]]
    damaged = listed["runs"][1]["run_id"]
    (store / "runs" / f"run_id={damaged}" / "part-0.parquet").write_bytes(b"")
    assert [row["run_id"] for row in json.loads(doctor(store, "--json", "-"))["problems"]] == [
        damaged
    ]
    assert f"{damaged}: runs" in doctor(store)
