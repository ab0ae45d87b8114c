"""Reports are evidence: reading them changes neither bytes nor times, and leaves nothing beside them."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import nsyspipe
from tests.build.tools import STEADY, figures
from tests.build.trace import steady_rank
from tests.cli.tools import nsyspipe_run

WAL_FORMAT = b"\x02\x02"


def snapshot(folder):
    """Return bytes and times of each file, and the folder's own: a side file that came and went shows there."""
    files = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    return files, folder.stat().st_mtime_ns


def to_wal(path):
    """Leave a report in WAL mode, closed cleanly."""
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
def test_the_program_leaves_everything_as_it_was_and_nothing_where_it_was_started(reports, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    before = snapshot(reports)
    done = nsyspipe_run("analyze", reports, "--json", tmp_path / "out.json", "-j", 2, cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert snapshot(reports) == before
    assert list(here.iterdir()) == []


def test_read_only_reports_in_a_read_only_directory_are_read(read_only):
    before = snapshot(read_only)
    assert figures(nsyspipe.load(read_only), rank=1) == STEADY
    assert snapshot(read_only) == before


def test_an_analysis_that_fails_leaves_everything_as_it_was(reports):
    before = snapshot(reports)
    with pytest.raises(nsyspipe.NsyspipeError):
        nsyspipe.load(reports, step="nothing").steps()
    assert snapshot(reports) == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to list open files")
def test_analysis_leaves_everything_as_it_was_and_no_report_open(reports):
    before = snapshot(reports)
    run = nsyspipe.load(reports, jobs=1)
    assert figures(run) == STEADY
    assert snapshot(reports) == before
    open_files = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            open_files.append(entry.readlink())
        except FileNotFoundError:  # the one that lists this folder
            continue
    assert not [path for path in open_files if reports in path.parents]
    # Another program may write.
    with closing(sqlite3.connect(reports / "a_0.sqlite", timeout=0)) as database:
        database.execute("BEGIN EXCLUSIVE")
        database.rollback()


def test_real_reports_stay_as_they_were(real):
    before = snapshot(real)
    _ = nsyspipe.load(real / "ddp-2gpu_*.sqlite").steps()
    assert snapshot(real) == before
