"""Directories in use, and those of processes that are gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from nsyspipe.nsys.files import claim, claimed_at, is_claimed, remove_abandoned, scratch_directory


def test_a_claim_holds_until_it_is_closed(tmp_path):
    first, second = claim(tmp_path), claim(tmp_path)
    assert is_claimed(tmp_path)
    os.close(first)
    assert is_claimed(tmp_path)
    os.close(second)
    assert not is_claimed(tmp_path)


def test_a_directory_that_nobody_ever_claimed_counts_as_used(tmp_path):
    assert is_claimed(tmp_path)
    assert claimed_at(tmp_path) == 0


def test_a_directory_that_is_not_there_cannot_be_claimed(tmp_path):
    assert claim(tmp_path / "gone") is None


def test_a_claim_renews_the_time(tmp_path):
    os.close(claim(tmp_path))
    os.utime(tmp_path / "lock", (1, 1))
    assert claimed_at(tmp_path) == 1
    os.close(claim(tmp_path))
    assert claimed_at(tmp_path) > 1


def test_the_scratch_directory_is_private_and_goes_with_what_it_holds(tmp_path):
    with scratch_directory(tmp_path) as scratch:
        assert scratch.stat().st_mode & 0o777 == 0o700
        (scratch / "half").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_only_what_a_killed_process_left_is_removed(tmp_path):
    script = (
        "import os, sys; from pathlib import Path; from nsyspipe.nsys.files import scratch_directory\n"
        "with scratch_directory(Path(sys.argv[1])) as scratch:\n"
        "    (scratch / 'half.sqlite').touch(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=30)
    (left,) = tmp_path.iterdir()
    remove_abandoned(tmp_path)
    assert left.exists()  # young: its owner may be about to lock it
    long_ago = time.time() - 3600
    with scratch_directory(tmp_path) as used:
        for one in (left, used):
            os.utime(one, (long_ago, long_ago))
        (tmp_path / "other").mkdir()
        remove_abandoned(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([used, tmp_path / "other"])
