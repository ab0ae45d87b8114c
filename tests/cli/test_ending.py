"""How the program ends when somebody else decides: Ctrl-C, a reader that left, a full disk."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.build.trace import KERNEL, RUNTIME
from tests.cli.tools import assert_refused, environment, nsyspipe_here, program

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


def family(pid):
    """Return a process and all that it started."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [one for child in path.read_text().split() for one in family(int(child))]
    return found


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


def test_no_reports_at_all_shows_how_to_use_it():
    done = nsyspipe_here("analyze")
    assert done.returncode == 2
    assert "Usage:" in done.stderr
