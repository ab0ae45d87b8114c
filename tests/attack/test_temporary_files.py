"""What killed runs leave behind goes with the next run in the same place; nothing else does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

import pytest

from nsyspipe.claims import claimed_file, remove_abandoned
from tests.cli.tools import nsyspipe_here

LONG_AGO_S = 3600


def aged(path):
    then = time.time() - LONG_AGO_S
    os.utime(path, (then, then))
    return path


@pytest.fixture
def left(tmp_path):
    """A file as a killed run leaves it."""
    path = tmp_path / ".nsyspipe-abcd1234"
    path.write_text("half")
    return aged(path)


def test_the_next_run_removes_it(steady, tmp_path, left):
    done = nsyspipe_here("analyze", steady, "-q", "--json", tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    assert not left.exists()


def test_a_redaction_removes_it(steady, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    left = out / ".nsyspipe-abcd1234"
    left.write_text("half")
    aged(left)
    assert nsyspipe_here("redact", steady, out, "--force").returncode == 0
    assert sorted(path.name for path in out.iterdir()) == ["steady_0.sqlite", "steady_1.sqlite"]


def test_one_that_is_being_written_stays(tmp_path):
    with claimed_file(tmp_path) as file:
        aged(file)
        remove_abandoned(tmp_path)
        assert file.exists()
    assert list(tmp_path.iterdir()) == []


def test_one_that_another_process_holds_stays(tmp_path, left):
    with left.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        remove_abandoned(tmp_path)
    assert left.exists()


def test_links_and_what_they_lead_to_stay(tmp_path, left):
    target = tmp_path / "precious"
    target.mkdir()
    (target / "lock").touch()
    aged(target / "lock")
    links = [tmp_path / ".nsyspipe-link", tmp_path / ".nsyspipe-file"]
    links[0].symlink_to(target)
    links[1].symlink_to(left.rename(tmp_path / "kept"))
    for link in links:
        os.utime(link, (1, 1), follow_symlinks=False)
    aged(target)
    remove_abandoned(tmp_path)
    assert all(link.is_symlink() for link in links)
    assert (target / "lock").exists()
    assert (tmp_path / "kept").exists()


def test_a_pipe_is_not_waited_for(tmp_path):
    pipe = tmp_path / ".nsyspipe-pipe"
    os.mkfifo(pipe)
    aged(pipe)
    remove_abandoned(tmp_path)
    assert pipe.exists()


def test_other_hidden_files_stay(tmp_path):
    other = tmp_path / ".nsyspipe"
    other.write_text("a user's")
    aged(other)
    with contextlib.suppress(OSError):
        remove_abandoned(tmp_path)
    assert other.exists()
