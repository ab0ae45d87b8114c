"""``nsyspipe redact``: where copies go, what they replace, and what is left after an error."""

from __future__ import annotations

import os

import pytest

from nsyspipe.errors import OutputError
from nsyspipe.redact.redact import Place, staged
from tests.cli.redacting import hosts, names, private_reports, refused, run
from tests.cli.tools import nsyspipe_here


@pytest.fixture
def reports(tmp_path):
    return private_reports(tmp_path / "reports")


def test_a_copy_that_is_there_is_replaced_only_by_force(reports, tmp_path):
    copy = tmp_path / "copy.sqlite"
    copy.write_text("mine")
    message = refused(reports / "ddp_0.sqlite", copy)
    assert "exists" in message
    assert "--force" in message
    assert copy.read_text() == "mine"
    assert run(reports / "ddp_0.sqlite", copy, "--force").exit_code == 0
    assert hosts(copy) == [("Hostname", "host-0")]


@pytest.mark.slow
@pytest.mark.parametrize("is_copy_there", [False, True])
def test_the_log_of_an_older_file_goes_with_it_by_force_only(reports, tmp_path, is_copy_there):
    """SQLite rolls OUT-wal into OUT when that is opened."""
    copy = tmp_path / "copies" / "copy.sqlite"
    copy.parent.mkdir()
    if is_copy_there:
        copy.write_text("mine")
    for suffix in ("-wal", "-shm", "-journal"):
        copy.with_name(copy.name + suffix).write_text("hunter2")
    assert "exists" in refused(reports / "ddp_0.sqlite", copy)
    assert len(names(copy.parent)) == 3 + is_copy_there
    assert run(reports / "ddp_0.sqlite", copy, "--force").exit_code == 0
    assert names(copy.parent) == ["copy.sqlite"]
    assert nsyspipe_here("analyze", copy, "-q").returncode == 0


def test_an_original_that_is_named_like_a_log_is_not_removed(reports, tmp_path):
    original = (reports / "ddp_0.sqlite").rename(tmp_path / "copy.sqlite-wal")
    assert "is the original" in refused(original, tmp_path / "copy.sqlite", "--force")
    assert original.is_file()


def test_a_directory_with_other_files_is_refused_without_force(reports, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "other.sqlite").write_text("not redacted")
    assert "is not empty" in refused(reports, out)
    assert names(out) == ["other.sqlite"]
    assert run(reports, out, "--force").exit_code == 0
    assert names(out) == ["ddp_0.sqlite", "ddp_1.sqlite", "other.sqlite"]


@pytest.mark.parametrize("how", ["same", "link", "hard link", "other spelling"])
def test_an_original_is_never_replaced(reports, tmp_path, how):
    report = reports / "ddp_0.sqlite"
    out = {"same": report, "other spelling": reports / ".." / "reports" / "ddp_0.sqlite"}.get(how)
    if out is None:
        out = tmp_path / "linked.sqlite"
        (out.symlink_to if how == "link" else out.hardlink_to)(report)
    before = report.read_bytes()
    assert "is the original" in refused(report, out, "--force")
    assert report.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("linked", [False, True])
def test_the_directory_of_the_originals_takes_no_copies(reports, tmp_path, linked):
    out = reports
    if linked:
        out = tmp_path / "linked"
        out.symlink_to(reports)
    assert "is the directory of the reports" in refused(reports, out, "--force")
    assert "is the directory of the reports" in refused(reports / "*.sqlite", out, "--force")
    assert names(reports) == ["ddp_0.sqlite", "ddp_1.sqlite"]


def test_two_reports_of_one_name_are_refused(reports, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "ddp_0.sqlite").hardlink_to(reports / "ddp_0.sqlite")
    assert "copies keep their names" in refused(tmp_path / "*" / "ddp_*.sqlite", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_directory_where_a_file_belongs_is_refused_and_the_reverse(reports, tmp_path):
    (tmp_path / "folder").mkdir()
    assert "is a directory" in refused(reports / "ddp_0.sqlite", tmp_path / "folder", "--force")
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(reports, tmp_path / "file", "--force")


def _copy_while_a_directory_appears(places):
    with staged(places) as files:
        for file in files:
            file.write_text("a copy")
        places[1].copy.mkdir()


def test_nothing_is_left_when_a_later_copy_cannot_be_renamed(reports, tmp_path):
    places = [Place(reports / f"ddp_{i}.sqlite", tmp_path / "out" / f"ddp_{i}.sqlite") for i in (0, 1)]
    with pytest.raises(OutputError):
        _copy_while_a_directory_appears(places)
    assert names(tmp_path / "out") == ["ddp_1.sqlite"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_takes_no_files_is_refused(reports, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "cannot be written" in refused(reports, tmp_path / "closed" / "out")


def test_a_path_below_a_file_is_refused(reports, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(reports / "ddp_0.sqlite", tmp_path / "file" / "copy.sqlite")
