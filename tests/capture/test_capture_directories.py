"""A job's temporary directory."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from nsyspipe.capture.supervision import short_directory

# What Python's multiprocessing puts below a rank's directory.
SOCKET = "tmp_1000/pymp-12345678/listener-12345678"


@pytest.fixture
def among(tmp_path, monkeypatch):
    """Return what makes a directory of this length the one for temporary files."""

    def make(n_bytes):
        folder = tmp_path / ("d" * max(n_bytes - len(str(tmp_path)) - 1, 1))
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return folder

    return make


@pytest.mark.parametrize("n_bytes", [60, 200])
def test_sockets_have_room_and_files_lie_where_the_user_wants_them(among, n_bytes):
    folder = among(n_bytes)
    with short_directory() as path:
        place = path / SOCKET
        place.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))
        assert folder in path.resolve().parents
        inside = [one for one in folder.rglob("*") if one.is_socket()]
        assert len(inside) == 1
    assert list(folder.iterdir()) == []
    assert not path.parent.exists()


def test_a_short_path_is_taken_as_it_is(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with short_directory() as path:
            assert path.parent == Path(folder)
            assert not path.is_symlink()
        assert list(Path(folder).iterdir()) == []


@pytest.mark.parametrize("name", ["report1.nsys-rep", "x.qdstrm"])
def test_a_directory_that_still_holds_a_capture_stays(among, name):
    folder = among(60)
    with short_directory() as path:
        (path / "tmp_0").mkdir()
        (path / "tmp_0" / name).write_text("hours of work")
    (left,) = folder.iterdir()
    assert (left / "tmp_0" / name).read_text() == "hours of work"


def test_an_empty_report_is_no_reason_to_stay(among):
    folder = among(60)
    with short_directory() as path:
        (path / "x.nsys-rep").touch()
    assert list(folder.iterdir()) == []
