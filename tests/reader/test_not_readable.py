"""Reports that somebody is writing or that may not be read: refused in one line, and left alone."""

from __future__ import annotations

import json
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
import json, os, sys
from tests.cli.tools import nsyspipe_here
good, *arguments = sys.argv[1:]
assert nsyspipe_here("analyze", good).returncode == 0
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
done = [nsyspipe_here("analyze", one) for one in arguments]
print(json.dumps([[one.returncode, one.stdout, one.stderr] for one in done]))
"""
# Where a report lies, the modes of its folder and of itself, what is passed, and whether it can be read.
PLACES = {
    "file": (0o755, 0o000, "file/a_0.sqlite", False),
    "closed": (0o000, 0o644, "closed", False),
    "no entry": (0o000, 0o644, "no entry/a_0.sqlite", False),
    "no glob": (0o000, 0o644, "no glob/*.sqlite", False),
    "listed only": (0o600, 0o644, "listed only", False),
    "entered only": (0o311, 0o644, "entered only/a_0.sqlite", True),
}


@pytest.fixture
def folders():
    """Yield a folder that any user may enter, which pytest's own are not, with those of `PLACES`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for place, (mode, file_mode, *_) in PLACES.items():
            (folder / place).mkdir()
            steady_rank(0).write(folder / place / "a_0.sqlite").chmod(file_mode)
            (folder / place).chmod(mode)
        yield folder
        for place in PLACES:
            (folder / place).chmod(0o755)


@pytest.mark.slow
def test_what_may_not_be_read_entered_or_listed_is_refused(report, folders):
    # Nobody may write this checkout's coverage data either.
    unmeasured = {name: value for name, value in environment().items() if "COVERAGE" not in name}
    arguments = [folders / argument for *_, argument, _ in PLACES.values()]
    command = [sys.executable, "-c", AS_NOBODY, *map(str, [report, *arguments])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=unmeasured)
    for (*_, is_read), (code, out, err) in zip(PLACES.values(), json.loads(done.stdout), strict=True):
        if is_read:
            assert (code, err) == (0, "")
        else:
            assert_refused(subprocess.CompletedProcess([], code, out, err))
    assert f"{folders / 'file' / 'a_0.sqlite'}: permission denied" in json.loads(done.stdout)[0][2]
