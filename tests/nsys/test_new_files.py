"""What a finished file needs before it takes its place."""

from __future__ import annotations

import os

from nsyspipe.nsys.files import make_readable, remove_side_files, side_files


def test_a_file_gets_the_mode_of_any_new_file_and_the_mask_stays(tmp_path):
    path = tmp_path / "a"
    path.touch(mode=0o600)
    before = os.umask(0o027)
    try:
        make_readable(path)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_only_the_logs_of_the_database_itself_go(tmp_path):
    names = [
        "a.sqlite",
        "a.sqlite-wal",
        "a.sqlite-shm",
        "a.sqlite-journal",
        "b.sqlite-wal",
        "a-wal",
    ]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "c.sqlite-wal").symlink_to("gone")
    assert [one.name for one in side_files(tmp_path / "c.sqlite")] == ["c.sqlite-wal"]
    remove_side_files(tmp_path / "a.sqlite")
    remove_side_files(tmp_path / "c.sqlite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-wal", "a.sqlite", "b.sqlite-wal"]
