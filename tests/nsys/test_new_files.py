"""New files, and who claims a place."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from nsyspipe.nsys import files
from nsyspipe.nsys.files import claim, claimed_at, is_claimed, remove_abandoned, scratch_directory


def test_a_file_gets_the_mode_of_any_new_file_and_the_mask_stays(tmp_path):
    path = tmp_path / "a"
    path.touch(mode=0o600)
    before = os.umask(0o027)
    try:
        files.make_readable(path)
    finally:
        assert os.umask(before) == 0o027
    assert path.stat().st_mode & 0o777 == 0o640


def test_only_the_logs_of_the_database_itself_go(tmp_path):
    names = ["a.sqlite", "a.sqlite-wal", "a.sqlite-shm", "a.sqlite-journal", "b.sqlite-wal", "a-wal"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "c.sqlite-wal").symlink_to("gone")
    assert [one.name for one in files.side_files(tmp_path / "c.sqlite")] == ["c.sqlite-wal"]
    files.remove_side_files(tmp_path / "a.sqlite")
    files.remove_side_files(tmp_path / "c.sqlite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-wal", "a.sqlite", "b.sqlite-wal"]


def test_a_claim_holds_until_it_is_closed_and_renews_the_time(tmp_path):
    # A directory that nobody ever claimed counts as used.
    assert (is_claimed(tmp_path), claimed_at(tmp_path), claim(tmp_path / "gone")) == (True, 0, None)
    first, second = claim(tmp_path), claim(tmp_path)
    os.close(first)
    assert is_claimed(tmp_path)
    os.close(second)
    assert not is_claimed(tmp_path)
    os.utime(tmp_path / "lock", (1, 1))
    assert claimed_at(tmp_path) == 1
    os.close(claim(tmp_path))
    assert claimed_at(tmp_path) > 1


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
        assert used.stat().st_mode & 0o777 == 0o700
        for one in (left, used):
            os.utime(one, (long_ago, long_ago))
        (tmp_path / "other").mkdir()
        remove_abandoned(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([used, tmp_path / "other"])
        (used / "half").write_text("x")
    assert list(tmp_path.iterdir()) == [tmp_path / "other"]
