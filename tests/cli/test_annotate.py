"""The annotate command, with a fake nsys and a fake ImportNvtxt."""

import errno
import hashlib
import os
import time

import pytest

from nsyspipe.errors import OutputError
from nsyspipe.nsys.files import NAME_OF_COPY, claim
from nsyspipe.report.annotations import Copy, write_copy
from tests.build.fake_nsys import fake_nsys, fake_report
from tests.build.programs import program
from tests.build.read_nvtxt import read_nvtxt
from tests.cli.tools import assert_refused, nsyspipe_here
from tests.nsys.test_nvtxt import IMPORTER


@pytest.fixture
def tool(tmp_path):
    fake_nsys(tmp_path / "tool")
    return program(tmp_path / "tool", "ImportNvtxt", IMPORTER)


@pytest.fixture
def run(tmp_path, tool, monkeypatch):
    monkeypatch.chdir(tmp_path)
    variables = {
        "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}",
        "NSYSPIPE_CACHE_DIR": str(tmp_path / "cache"),
    }
    return lambda *arguments: nsyspipe_here("annotate", *arguments, **variables)


@pytest.fixture
def reports(tmp_path):
    for rank in (0, 1):
        fake_report(tmp_path / "reports" / f"run_{rank}.nsys-rep", rank)
    return tmp_path / "reports"


def state_of(folder):
    return {
        path.name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.iterdir()
    }


def test_each_report_gets_a_copy_and_stays_as_it_is(run, reports, tmp_path, tool):
    before = state_of(reports)
    done = run("reports", "-o", "out")
    assert (done.returncode, done.stdout) == (0, "")
    assert state_of(reports) == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [*sorted(before)]
    lanes = read_nvtxt(tool.with_name("ImportNvtxt.text").read_text())
    n_ranges = sum(map(len, lanes.values()))
    assert f"out/run_1.nsys-rep ({n_ranges} ranges added)" in done.stderr
    quiet = run("reports", "-o", "other", "-q")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_one_report_has_one_copy(run, reports, tmp_path):
    assert run("reports/run_0.nsys-rep", "-o", "copy.nsys-rep").returncode == 0
    assert (tmp_path / "copy.nsys-rep").is_file()


def test_a_report_is_never_its_own_copy(run, reports):
    before = state_of(reports)
    assert_refused(run("reports", "-o", "reports"))
    assert_refused(run("reports/run_0.nsys-rep", "-o", "reports/run_0.nsys-rep"))
    assert state_of(reports) == before


def test_without_a_place_for_copies_nothing_is_read(run, reports):
    assert_refused(run("reports"))


def test_a_failed_copy_leaves_nothing(run, reports, tmp_path, tool):
    program(tool.parent, "ImportNvtxt", "exit 1")
    assert_refused(run("reports", "-o", "out"))
    assert [*(tmp_path / "out").iterdir()] == []


def test_an_nsys_without_the_program_is_refused_before_reports_are_read(
    run, reports, tmp_path, tool
):
    tool.unlink()
    assert_refused(run("reports", "-o", "out"))
    assert not (tmp_path / "cache").exists()


def test_ranges_that_do_not_fit_are_counted(run, reports, tool):
    program(tool.parent, "ImportNvtxt", IMPORTER.replace("$(grep -c '^Range' \"$text\")", "2"))
    done = run("reports/run_0.nsys-rep", "-o", "copy.nsys-rep")
    assert done.returncode == 0
    assert "(1 range added)" in done.stderr


def test_names_that_are_too_long_are_refused(run, reports):
    name = "a" * 300
    assert_refused(run("reports/run_0.nsys-rep", "-o", f"{name}.nsys-rep"))
    assert_refused(run("reports", "-o", name))
    assert_refused(run(f"{name}.nsys-rep", "-o", "out"))


def test_a_copy_keeps_the_mode_of_its_report(run, reports, tmp_path):
    (reports / "run_0.nsys-rep").chmod(0o600)
    assert run("reports/run_0.nsys-rep", "-o", "copy.nsys-rep").returncode == 0
    assert (tmp_path / "copy.nsys-rep").stat().st_mode & 0o777 == 0o600


def test_an_export_older_than_its_report_is_refused(run, reports, tmp_path):
    export = reports / "run_0.sqlite"
    export.write_bytes((reports / "run_0.nsys-rep").read_bytes())
    os.utime(export, (1, 1))
    assert_refused(run("reports/run_0.sqlite", "-o", "copy.nsys-rep"))
    assert not (tmp_path / "copy.nsys-rep").exists()


@pytest.fixture
def remains(tmp_path):
    """Return what a killed annotate leaves, an hour old."""
    directory = tmp_path / ".nsyspipe-12345678.unfinished"
    directory.mkdir(mode=0o700)
    os.close(claim(directory))
    for suffix in (".nvtxt", ".nsys-rep"):
        (directory / f"{NAME_OF_COPY}{suffix}").write_text("half")
    return directory


def make_old(directory):
    an_hour_ago = time.time() - 3600
    os.utime(directory, (an_hour_ago, an_hour_ago))


def test_what_a_killed_annotate_left_is_removed(run, reports, remains):
    make_old(remains)
    assert run("reports/run_0.nsys-rep", "-o", "copy.nsys-rep").returncode == 0
    assert not remains.exists()


def test_a_directory_with_any_other_report_stays(run, reports, remains):
    (remains / "run_0.nsys-rep").write_text("a capture")
    make_old(remains)
    assert run("reports/run_0.nsys-rep", "-o", "copy.nsys-rep").returncode == 0
    assert (remains / "run_0.nsys-rep").exists()


def test_a_copy_that_is_being_written_stays(run, reports, remains):
    lock = claim(remains)
    make_old(remains)
    assert run("reports/run_0.nsys-rep", "-o", "copy.nsys-rep").returncode == 0
    os.close(lock)
    assert remains.exists()


def refuse(*_arguments, **_named):
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.fixture
def copy(reports, tmp_path, monkeypatch):
    """Return a copy to a file system without hard links."""
    monkeypatch.setattr(os, "link", refuse)
    return Copy("run_0", reports / "run_0.nsys-rep", tmp_path / "out" / "copy.nsys-rep")


def test_a_copy_needs_no_hard_link(copy, tool):
    copy.source.chmod(0o640)
    write_copy(tool, copy, [])
    assert [*copy.target.parent.iterdir()] == [copy.target]
    assert copy.target.read_bytes() == copy.source.read_bytes()
    assert copy.target.stat().st_mode & 0o777 == 0o640


def test_without_hard_links_a_file_that_appeared_meanwhile_stays(copy, tool):
    importer = program(tool.parent, "ImportNvtxt", f"{IMPORTER}\necho other > '{copy.target}'")
    with pytest.raises(OutputError):
        write_copy(importer, copy, [])
    assert [*copy.target.parent.iterdir()] == [copy.target]
    assert copy.target.read_text() == "other\n"


def test_without_hard_links_a_failed_move_leaves_nothing(copy, tool, monkeypatch):
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OutputError):
        write_copy(tool, copy, [])
    assert [*copy.target.parent.iterdir()] == []
