"""Paths as the user wrote them: opened in any directory, shown as they were written."""

import os
import pickle

import pytest

import nsyspipe
from nsyspipe.errors import DamagedReportError, DatasetError, InputError
from nsyspipe.model.user_paths import ReportFile, UserPath
from nsyspipe.report.export import parquet
from tests.build.trace import steady_rank


@pytest.fixture
def other_directory(tmp_path, monkeypatch):
    """Return the current directory, which a test leaves with ``monkeypatch.chdir("/")``."""
    folder = tmp_path / "left"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_path_names_its_file_in_any_directory(other_directory, monkeypatch):
    path = UserPath.of("notes.txt")
    monkeypatch.chdir("/")
    assert os.fspath(path) == str(other_directory / "notes.txt")


@pytest.mark.parametrize("written", ["notes.txt", "./notes.txt", "../left/notes.txt", "/notes.txt"])
def test_a_path_is_shown_as_it_was_written(other_directory, written):
    assert str(UserPath.of(written)) == written


@pytest.mark.parametrize("kind", [UserPath, ReportFile])
def test_a_path_stays_what_it_is(other_directory, kind):
    path = kind.of("a.sqlite")
    assert kind.of(path) is path
    assert pickle.loads(pickle.dumps(path)) == path


def test_an_export_is_read_and_its_report_is_shown(other_directory, tmp_path):
    report = ReportFile.of("a_0.nsys-rep")
    exported = report.exported_to(tmp_path / "cache" / "a_0.sqlite")
    assert report.source == report.path == other_directory / "a_0.nsys-rep"
    assert exported.path == tmp_path / "cache" / "a_0.sqlite"
    assert exported.source == report.source
    assert str(exported) == "a_0.nsys-rep"


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2], ids=["in this process", "in workers"])
def test_errors_name_reports_as_they_were_written(other_directory, monkeypatch, jobs):
    paths = [f"a_{rank}.sqlite" for rank in range(2)]
    for rank, path in enumerate(paths):
        steady_rank(rank).write(other_directory / path)
    # The header of the file stays, so only whoever reads its pages sees the damage.
    with (other_directory / paths[1]).open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 2000)
    run = nsyspipe.load(paths, jobs=jobs)
    monkeypatch.chdir("/")
    with pytest.raises(DamagedReportError) as damaged:
        run.steps()
    assert damaged.value.subject == paths[1]


def test_errors_name_the_report_and_not_its_export(other_directory, tmp_path):
    steady_rank(0).write(tmp_path / "a.sqlite")
    with (tmp_path / "a.sqlite").open("r+b") as file:
        file.truncate(5000)
    report = ReportFile.of("a.nsys-rep").exported_to(tmp_path / "a.sqlite")
    with pytest.raises(DamagedReportError) as damaged:
        nsyspipe.load(report).steps()
    assert damaged.value.subject == "a.nsys-rep"


def test_errors_name_logs_as_they_were_written(other_directory, monkeypatch):
    steady_rank(0).write(other_directory / "a.sqlite")
    (other_directory / "nccl.log").write_text("no line of NCCL\n")
    run = nsyspipe.load("a.sqlite", nccl_log="nccl.log")
    monkeypatch.chdir("/")
    with pytest.raises(InputError) as refused:
        run.steps()
    assert refused.value.subject == "nccl.log"


def test_errors_name_stores_as_they_were_written(other_directory, monkeypatch):
    steady_rank(0).write(other_directory / "a.sqlite")
    saved = parquet(nsyspipe.load("a.sqlite"), "store")
    run = nsyspipe.load("store")
    steps = saved.parent.parent / "steps" / saved.name / "part-0.parquet"
    assert steps.is_file()
    steps.write_bytes(b"")
    monkeypatch.chdir("/")
    with pytest.raises(DatasetError) as damaged:
        run.steps()
    assert damaged.value.subject == str(steps)
