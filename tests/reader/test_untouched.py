"""Reports are evidence: reading changes neither bytes nor times; what is being written or closed is refused and left alone."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

import nsyspipe
from nsyspipe.errors import DamagedReportError
from tests.build.tools import STEADY, figures, refuse
from tests.build.trace import NVTX, RUNTIME, STRINGS, steady_rank
from tests.cli.tools import assert_refused, environment

WAL_FORMAT = b"\x02\x02"


def snapshot(folder):  # and the folder's own times: a side file that came and went shows there
    files = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    return files, folder.stat().st_mtime_ns


def to_wal(path):
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    assert path.read_bytes()[18:20] == WAL_FORMAT
    assert [one.name for one in path.parent.iterdir() if one.name.startswith(f"{path.name}-")] == []


@pytest.fixture(params=["rollback", "wal"])
def reports(request, tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    for rank in range(2):
        path = steady_rank(rank).write(folder / f"a_{rank}.sqlite")
        if request.param == "wal":
            to_wal(path)
        os.utime(path, ns=(10**18, 10**18 + rank))
    os.utime(folder, ns=(10**18, 10**18))
    return folder


@pytest.fixture
def read_only(reports):
    for path in reports.iterdir():
        path.chmod(0o444)
    reports.chmod(0o555)
    yield reports
    reports.chmod(0o755)


@pytest.mark.slow
def test_the_program_leaves_all_files_as_they_were(forks, reports, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    before = snapshot(reports)
    words = ("analyze", reports, "--json", tmp_path / "out.json", "-j", 2)
    done = forks.run(*words, cwd=here, env=environment())
    assert (done.returncode, done.stderr, list(here.iterdir())) == (
        0,
        f"written: {tmp_path / 'out.json'}\n",
        [],
    )
    assert snapshot(reports) == before


def test_read_only_reports_in_a_read_only_directory_are_read(read_only):
    before = snapshot(read_only)
    assert figures(nsyspipe.load(read_only), rank=1) == STEADY
    assert snapshot(read_only) == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to list open files")
def test_a_failed_analysis_leaves_all_files_and_no_open_report(reports):
    before = snapshot(reports)
    assert figures(nsyspipe.load(reports, jobs=1)) == STEADY
    with pytest.raises(nsyspipe.NsyspipeError):
        nsyspipe.load(reports, step="nothing").steps()
    assert snapshot(reports) == before
    # realpath: the one that lists this folder leads nowhere.
    assert not [
        path
        for path in map(os.path.realpath, Path("/proc/self/fd").iterdir())
        if str(reports) in path
    ]
    # Another program may write.
    with closing(sqlite3.connect(reports / "a_0.sqlite", timeout=0)) as database:
        database.execute("BEGIN EXCLUSIVE")
        database.rollback()


HOLD = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    database.execute(statement)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def report(tmp_path):
    return steady_rank(0).write(tmp_path / "a_0.sqlite")


@pytest.fixture
def hold(report):  # another process runs statements on it, and keeps it open
    others = []

    def start(*statements):
        command = [sys.executable, "-c", HOLD, str(report), *statements]
        others.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert others[-1].stdout.readline() == b"ready\n"

    yield start
    for other in others:
        other.stdin.close()
        other.stdout.close()
        assert other.wait(timeout=10) == 0, other


WRITE = f"UPDATE {STRINGS} SET value = value || 'x'"


@pytest.mark.parametrize(
    "statements",
    [
        ("BEGIN EXCLUSIVE",),
        ("BEGIN IMMEDIATE", WRITE),
        ("BEGIN EXCLUSIVE", WRITE),
        ("PRAGMA journal_mode=WAL", WRITE),
    ],
    ids=["locked", "journal", "locked-journal", "wal"],
)
def test_a_report_that_is_being_written_is_refused_and_left_alone(report, hold, statements, worded):
    hold(*statements)
    times = lambda: {path.name: path.stat().st_mtime_ns for path in report.parent.iterdir()}  # noqa: E731
    before = times()
    error = refuse(DamagedReportError, report)
    assert error.subject == str(report)
    assert times() == before
    worded(error.lines())


def test_a_journal_that_a_killed_writer_left_is_refused(report, tmp_path):
    copy = tmp_path / "copy.sqlite"
    with closing(sqlite3.connect(report, isolation_level=None)) as database:
        changes = WRITE, f"UPDATE {NVTX} SET start = 0", f"DELETE FROM {RUNTIME}"
        for statement in ("PRAGMA cache_size=1", "BEGIN", *changes):
            database.execute(statement)
        shutil.copy(report, copy)
        shutil.copy(f"{report}-journal", f"{copy}-journal")
    assert "copy.sqlite-journal" in str(refuse(DamagedReportError, copy))
    assert (tmp_path / "copy.sqlite-journal").exists()


# Root may read everything, so the program gives up root, once everything is imported: nobody may
# enter every checkout.
AS_NOBODY_INPUT = """
import importlib, json, os, pkgutil, sys
import nsyspipe
from tests.cli.tools import nsyspipe_here
for module in pkgutil.walk_packages(nsyspipe.__path__, "nsyspipe."):
    if module.name not in {"nsyspipe.__main__", "nsyspipe.capture.lightning", "nsyspipe.capture.trainer"}:
        importlib.import_module(module.name)
good, *arguments = sys.argv[1:]
assert nsyspipe_here("analyze", good).returncode == 0
assert nsyspipe_here("analyze", "nothing").returncode == 2
os.chdir("/")
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
done = [nsyspipe_here("analyze", one) for one in arguments]
print(json.dumps([[one.returncode, one.stdout, one.stderr] for one in done]))
"""
# Where a report lies, the modes of its folder and of itself, what is passed, and whether it can be
# read.
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
def test_what_may_not_be_read_entered_or_listed_is_refused(report, folders, worded):
    # Nobody may write this checkout's coverage data either.
    unmeasured = {name: value for name, value in environment().items() if "COVERAGE" not in name}
    arguments = [folders / argument for *_, argument, _ in PLACES.values()]
    command = [sys.executable, "-c", AS_NOBODY_INPUT, *map(str, [report, *arguments])]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=unmeasured
    )
    assert done.returncode == 0, done.stderr
    for (*_, is_read), (code, out, err) in zip(
        PLACES.values(), json.loads(done.stdout), strict=True
    ):
        if is_read:
            assert (code, err) == (0, ""), is_read
        else:
            assert_refused(subprocess.CompletedProcess([], code, out, err))
    said = json.loads(done.stdout)[0][2]
    worded(said.replace(str(folders), "FOLDERS"))
