"""Reports that somebody is writing or that may not be read: refused in one line, and left alone."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from nsyspipe.errors import DamagedReportError
from tests.build.tools import refuse
from tests.build.trace import NVTX, RUNTIME, STRINGS, steady_rank
from tests.cli.tools import assert_refused, environment, nsyspipe_run


@pytest.fixture
def report(tmp_path):
    return steady_rank(0).write(tmp_path / "a_0.sqlite")


# --- still being written ------------------------------------------------------------------------

HOLD = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    database.execute(statement)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold(report):
    """Return a function that lets another process run statements on the report and keep it open."""
    others = []

    def start(*statements):
        command = [sys.executable, "-c", HOLD, str(report), *statements]
        others.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert others[-1].stdout.readline() == b"ready\n"

    yield start
    for other in others:
        other.stdin.close()
        other.stdout.close()
        assert other.wait(timeout=10) == 0


WRITE = f"UPDATE {STRINGS} SET value = value || 'x'"


@pytest.mark.parametrize(
    "statements",
    [("BEGIN EXCLUSIVE",), ("BEGIN IMMEDIATE", WRITE), ("BEGIN EXCLUSIVE", WRITE), ("PRAGMA journal_mode=WAL", WRITE)],
    ids=["locked", "journal", "locked-journal", "wal"],
)
def test_a_report_that_is_being_written_is_refused_and_left_alone(report, hold, statements):
    hold(*statements)
    before = {path.name: path.stat().st_mtime_ns for path in report.parent.iterdir()}
    error = refuse(DamagedReportError, report)
    assert str(report) in str(error)
    assert "being written" in str(error)
    assert {path.name: path.stat().st_mtime_ns for path in report.parent.iterdir()} == before


@pytest.mark.slow
def test_the_program_refuses_a_locked_report_in_one_line(report, hold):
    hold("BEGIN EXCLUSIVE")
    assert_refused(nsyspipe_run("analyze", report))


def test_a_journal_that_a_killed_writer_left_is_refused(report, tmp_path):
    copy = tmp_path / "copy.sqlite"
    with closing(sqlite3.connect(report, isolation_level=None)) as database:
        for statement in (
            "PRAGMA cache_size=1",
            "BEGIN",
            WRITE,
            f"UPDATE {NVTX} SET start = 0",
            f"DELETE FROM {RUNTIME}",
        ):
            database.execute(statement)
        shutil.copy(report, copy)
        shutil.copy(f"{report}-journal", f"{copy}-journal")
    assert "copy.sqlite-journal" in str(refuse(DamagedReportError, copy))
    assert (tmp_path / "copy.sqlite-journal").exists()


# --- not readable -------------------------------------------------------------------------------

# Root may read everything, so the program gives up root, once everything it imports is imported.
AS_NOBODY = """
import contextlib, io, os, sys
from nsyspipe.cli.app import app, run
good, *arguments = sys.argv[1:]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app(["analyze", good])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.argv = ["nsyspipe", "analyze", *arguments]
run()
"""


@pytest.fixture
def open_folder():
    """Yield a folder that any user may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "inner").mkdir()
        steady_rank(0).write(folder / "inner" / "a_0.sqlite")
        yield folder
        (folder / "inner").chmod(0o755)


def run_as_nobody(good, *arguments):
    # Nobody may write this checkout's coverage data either.
    unmeasured = {name: value for name, value in environment().items() if "COVERAGE" not in name}
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(good), *map(str, arguments)], capture_output=True, text=True,
        check=False, timeout=60, env=unmeasured,
    )  # fmt: skip


@pytest.mark.slow
def test_a_report_without_read_permission_is_refused(report, open_folder):
    path = open_folder / "inner" / "a_0.sqlite"
    path.chmod(0)
    done = run_as_nobody(report, path)
    assert_refused(done)
    assert f"{path}: permission denied" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "mode"), [("inner", 0o000), ("inner/a_0.sqlite", 0o000), ("inner/*.sqlite", 0o000), ("inner", 0o600)]
)
def test_a_directory_that_may_not_be_entered_or_listed_is_refused(report, open_folder, argument, mode):
    (open_folder / "inner").chmod(mode)
    assert_refused(run_as_nobody(report, open_folder / argument))


@pytest.mark.slow
def test_a_report_in_a_directory_that_may_be_entered_but_not_listed_is_read(report, open_folder):
    (open_folder / "inner").chmod(0o311)
    done = run_as_nobody(report, open_folder / "inner" / "a_0.sqlite")
    assert (done.returncode, done.stderr) == (0, "")
