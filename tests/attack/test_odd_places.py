"""Places and times that no one uses on purpose: each ends with exit 2 and one sentence, or works."""

import os
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from nsyspipe.errors import OutputError
from nsyspipe.report.html.dashboard_page import write_pages
from tests.build.trace import RUNTIME, steady_rank
from tests.cli.tools import nsyspipe_here

LIMIT = 2**61
NOBODY = 65534


def ended(done, *words):
    said = done.stderr.decode() if isinstance(done.stderr, bytes) else done.stderr
    assert done.returncode == 2, said
    assert "Traceback" not in said
    assert said.startswith("error: ")
    assert all(word in said for word in words), said


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "ddp_0.sqlite"
    steady_rank(0).write(path)
    return path


def here(*arguments):
    """Run a command in this process, which takes less time."""
    return nsyspipe_here(*map(str, arguments))


def run(*arguments, **options):
    command = [sys.executable, "-m", "nsyspipe", *map(str, arguments)]
    return subprocess.run(
        command, capture_output="stdout" not in options, timeout=100, check=False, **options
    )


@pytest.mark.parametrize("time", [-(2**63), -LIMIT, LIMIT, 2**63 - 1])
@pytest.mark.parametrize("column", ["start", "end"])
def test_a_call_at_a_time_that_no_clock_reaches_is_left_out(report, column, time, tmp_path):
    with sqlite3.connect(report) as database:
        database.execute(f"UPDATE {RUNTIME} SET {column} = ? WHERE rowid % 3 = 0", (time,))
    database.close()
    done = here("analyze", report, "-j", "1", "--perfetto", tmp_path / "run.pftrace")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("option", ["--json", "--html", "--markdown", "--perfetto", "--out"])
def test_an_output_that_is_a_link_to_itself_is_refused(report, option, tmp_path):
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(other)
    other.symlink_to(link)
    ended(here("analyze", report, "-j", "1", option, link), "link")
    assert link.is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_a_full_device_is_told(words):
    with Path("/dev/full").open("wb") as full:
        ended(run(*words, stdout=full, stderr=subprocess.PIPE), "No space left")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["analyze", "x.sqlite"], ["dashboard", "store"]])
def test_a_working_directory_that_was_removed_is_told(words, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    # The child enters the directory, and removes it before the program starts.
    leave = partial(os.rmdir, gone)
    ended(run(*words, cwd=gone, preexec_fn=leave), "the working directory")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_for_pages_that_may_not_be_entered_is_told(tmp_path, monkeypatch):
    pages = tmp_path / "pages"
    pages.mkdir(mode=0o600)
    os.chown(pages, NOBODY, NOBODY)
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
            monkeypatch.setattr(
                os,
                "restored",
                (*getattr(os, "restored", ()), (folder, folder.stat().st_mode)),
                raising=False,
            )
            folder.chmod(folder.stat().st_mode | 0o011)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(OutputError, match="Permission denied"):
            write_pages(tmp_path / "store", ["a"], pages)
    finally:
        os.seteuid(0)
        for folder, mode in getattr(os, "restored", ()):
            folder.chmod(mode)
