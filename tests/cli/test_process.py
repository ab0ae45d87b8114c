"""What a process of the program imports, and how it ends when somebody else decides: Ctrl-C, a reader that left, a full disk."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import adbc_driver_manager.dbapi
import pytest

import nsyspipe
from nsyspipe.run.workers import PRELOAD, executor_for
from tests.build.programs import listening
from tests.build.trace import KERNEL, RUNTIME, steady_rank
from tests.cli.tools import assert_refused, environment, nsyspipe_run, program

FULL = Path("/dev/full")
N_KERNELS = 400_000


def grow(path):
    """Add kernels with launches, enough to keep the program busy for a while."""
    with closing(sqlite3.connect(path)) as database:
        for table in (KERNEL, RUNTIME):
            names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            changed = {"start": 't."start" + i % 700', "end": 't."end" + i % 700', "correlationId": "100 + i"}
            cells = ", ".join(changed.get(name, f't."{name}"') for name in names)
            database.execute(
                f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {N_KERNELS}) "
                f"INSERT INTO {table} SELECT {cells} FROM n, (SELECT * FROM {table} LIMIT 1) t"
            )
        database.commit()


def test_an_interrupt_that_comes_while_sqlite_answers_is_not_lost():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with executor_for([], 1, preload=PRELOAD), pytest.raises(KeyboardInterrupt):
            adbc_driver_manager.dbapi._blocking_call(signal.raise_signal, (signal.SIGINT,), {}, lambda: None)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    for rank in range(2):
        grow(steady_rank(rank).write(folder / f"large_{rank}.sqlite"))
    return folder


def family(pid):
    """Return a process and all that it started."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [one for child in path.read_text().split() for one in family(int(child))]
    return found


def alive(group):
    """Return the processes of a group that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state not in "ZX":
            found.append(path.parent.name)
    return found


def wait_until_it_reads(pid, folder):
    """Return when some process of a family has a report open."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for one in family(pid):
            for entry in Path(f"/proc/{one}/fd").glob("*"):
                try:
                    if folder in entry.readlink().parents:
                        return
                except OSError:
                    continue
        time.sleep(0.002)
    pytest.fail("the program opened no report")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see what the program does")
@pytest.mark.parametrize(("jobs", "delay", "everybody"), [(1, 0.03, False), (2, 0.05, True)])
def test_an_interrupt_ends_it_without_a_word_or_a_file(large, tmp_path, jobs, everybody, delay):
    command = program("analyze", large, "-j", jobs, "--json", tmp_path / "run.json")
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
        preexec_fn=listening,  # noqa: PLW1509 - pytest forks from its main thread
    ) as started:
        wait_until_it_reads(started.pid, large)
        time.sleep(delay)
        # A terminal sends Ctrl-C to the workers too; kill(1) only to the program.
        (os.killpg if everybody else os.kill)(started.pid, signal.SIGINT)
        output, errors = started.communicate(timeout=20)
    assert (started.returncode, output, errors.strip()) == (130, "", "")
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 5
    while (left := alive(started.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []


# What commands print is written at one place, help and errors of use by Typer.
@pytest.mark.parametrize(
    "arguments",
    [
        "analyze {}",
        "diff --help",
        *(pytest.param(f"{one} {{}}", marks=pytest.mark.slow) for one in ("doctor", "whatif")),
    ],
)
def test_a_reader_that_left_is_no_bug_of_ours(steady, arguments):
    command = program(*(one.format(steady) for one in arguments.split()))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as started:
        started.stdout.close()
        errors = started.stderr.read()
        started.wait(timeout=30)
    assert errors == b""
    assert started.returncode in (0, 128 + signal.SIGPIPE)  # 1 would mean a bug of ours


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_said_in_one_line(steady):
    with FULL.open("w") as full:
        done = subprocess.run(
            program("analyze", steady), stdout=full, stderr=subprocess.PIPE, env=environment(), text=True,
            check=False, timeout=30,
        )  # fmt: skip
    done.stdout = ""
    assert_refused(done)


@pytest.mark.slow
def test_a_closed_stdout_is_no_bug_of_ours(steady):
    command = ["/bin/sh", "-c", 'exec "$0" "$@" >&-', *program("analyze", steady)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=30, env=environment())
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2)


# --- what is imported, and what it says of itself --------------------------------------------------


def imported(*arguments):
    """Return the packages that a run of the program imports, with what they import of themselves."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "nsyspipe", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=60, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0
    rows = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert "nsyspipe.cli.app" in rows
    # A refused import is listed too, but nothing inside it.
    return {name.partition(".")[0] for name in rows if "." in name}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["diff", "-h"]], ids=" ".join)
def test_help_and_version_import_nothing_heavy(arguments):
    heavy = {"adbc_driver_manager", "adbc_driver_sqlite", "numpy", "pandas", "pyarrow", "sqlalchemy", "torch"}
    assert imported(*arguments) & heavy == set()


@pytest.mark.slow
def test_analysis_does_without_pandas_polars_and_torch(steady):
    found = imported("analyze", steady, "-j", 1)
    assert {"pyarrow", "sqlalchemy"} <= found
    assert found & {"pandas", "polars", "torch", "nvtx"} == set()


@pytest.mark.slow
def test_a_program_that_imports_the_package_keeps_its_pandas(steady):
    script = f"import nsyspipe; print(nsyspipe.load({str(steady)!r}).to_pandas('steps').dtypes['wall_ns'])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60, env=environment()
    )
    assert (done.stdout, done.stderr) == ("int64[pyarrow]\n", "")


def test_the_version_is_one_line():
    done = nsyspipe_run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"nsyspipe {nsyspipe.__version__}\n", "")


@pytest.mark.slow
def test_completion_offers_the_tables_of_schema():
    done = nsyspipe_run("schema", _NSYSPIPE_COMPLETE="complete_bash", COMP_WORDS="nsyspipe schema st", COMP_CWORD="2")
    assert "steps" in done.stdout
