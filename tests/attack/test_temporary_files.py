"""What killed runs leave behind goes with the next run in the same place; nothing else does."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from pathlib import Path

import pytest

from nsyspipe.capture.sidecar import write_sidecar
from nsyspipe.capture.supervision import holding, short_directory, start
from nsyspipe.nsys.files import claim, claimed_file, remove_abandoned
from nsyspipe.redact.places import Place, staged
from tests.cli.tools import nsyspipe_here

LONG_AGO_S = 3600
LEFT = ".nsyspipe-abcd1234.unfinished"


def aged(path):
    then = time.time() - LONG_AGO_S
    os.utime(path, (then, then))
    return path


@pytest.fixture
def left(tmp_path):
    """A file as a killed run leaves it."""
    path = tmp_path / LEFT
    path.touch(mode=0o600)
    path.write_text("half")
    return aged(path)


def test_the_next_run_removes_it(steady, tmp_path, left):
    done = nsyspipe_here("analyze", steady, "-q", "--json", tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    assert not left.exists()


def test_a_redaction_removes_it(steady, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    left = out / LEFT
    left.touch(mode=0o600)
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
    target.chmod(0o700)
    aged(target / "lock")
    links = [tmp_path / f".nsyspipe-{n}2345678.unfinished" for n in range(2)]
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
    pipe = tmp_path / LEFT
    os.mkfifo(pipe, mode=0o600)
    aged(pipe)
    remove_abandoned(tmp_path)
    assert pipe.exists()


@pytest.mark.parametrize(
    "name",
    [".nsyspipe", ".nsyspipe-notes.txt", ".nsyspipe-settings.toml", ".nsyspipe-settings", f"{LEFT}.bak"],
)  # fmt: skip
def test_a_user_s_hidden_files_and_directories_stay(tmp_path, name):
    other = tmp_path / "files" / name
    folder = tmp_path / "folders" / name
    for one in (other, folder):
        one.parent.mkdir()
    other.touch(mode=0o600)
    folder.mkdir(mode=0o700)
    os.close(claim(folder))
    for one in (aged(other), aged(folder)):
        remove_abandoned(one.parent)
        assert one.exists()


def test_a_file_that_others_may_read_is_not_ours(tmp_path, left):
    left.chmod(0o644)
    remove_abandoned(tmp_path)
    assert left.exists()


@pytest.fixture
def folder_left(tmp_path):
    """A scratch directory as a killed export leaves it."""
    folder = tmp_path / LEFT
    folder.mkdir(mode=0o700)
    os.close(claim(folder))
    (folder / "run_0.sqlite").write_text("half")
    (folder / "run_0.sqlite-journal").touch()
    return aged(folder)


@pytest.mark.parametrize("group_bit", [0, 0o2000])
def test_a_killed_export_s_directory_is_removed(tmp_path, folder_left, group_bit):
    folder_left.chmod(0o700 | group_bit)
    remove_abandoned(tmp_path)
    assert not folder_left.exists()


@pytest.mark.parametrize("change", ["mode", "content", "folder", "lock", "no lock"])
def test_a_directory_with_anything_else_stays(tmp_path, folder_left, change):
    if change == "mode":
        folder_left.chmod(0o755)
    elif change == "content":
        (folder_left / "precious").touch()
    elif change == "folder":
        (folder_left / "a.sqlite").mkdir()
    elif change == "lock":
        (folder_left / "lock").write_text("a user's")
    else:
        (folder_left / "lock").unlink()
    aged(folder_left)
    remove_abandoned(tmp_path)
    assert (folder_left / "run_0.sqlite").exists()


@pytest.fixture
def job_left(tmp_path, monkeypatch):
    """The directory of a job as SIGKILL leaves it, with one of its rank, in an empty TMPDIR."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    job = tmp_path / "nsyspipe-abcd1234"
    for folder in (job, job / "nsyspipe-efgh5678"):
        folder.mkdir(mode=0o700)
        (folder / "half").write_text("half")
        os.close(claim(folder))
        aged(folder / "lock")
    return job


def test_the_next_job_removes_a_killed_job_s_directory(job_left):
    with short_directory():
        assert not job_left.exists()


@pytest.mark.parametrize("holder", [".", "nsyspipe-efgh5678"])
def test_a_job_s_directory_that_one_of_its_processes_holds_stays(job_left, holder):
    lock = claim(job_left / holder)
    aged(job_left / holder / "lock")
    with short_directory():
        assert (job_left / "half").exists()
    os.close(lock)


@pytest.mark.parametrize("is_link", [False, True])
def test_a_killed_job_s_directory_stays_while_its_program_lives(job_left, tmp_path, is_link):
    place = job_left
    if is_link:  # a short way to a directory elsewhere
        place = job_left / "t"
        place.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").mkdir()
    with holding(place) as locks:
        training = start(["sleep", "60"], os.environ, pass_fds=locks)
    aged(job_left / "lock")
    with short_directory():
        assert (job_left / "half").exists()
    training.kill()
    training.wait()
    with short_directory():
        assert not job_left.exists()


def test_a_capture_that_a_killed_job_left_stays(job_left):
    (job_left / "rank0.nsys-rep").write_text("hours")
    with short_directory():
        assert (job_left / "rank0.nsys-rep").exists()


@pytest.mark.parametrize("change", ["mode", "name", "lock", "lock's mode", "no lock", "link"])
def test_what_is_no_job_s_directory_stays(job_left, change):
    kept = job_left
    if change == "mode":
        job_left.chmod(0o755)
    elif change == "name":
        kept = job_left.rename(job_left.with_name("nsyspipe-mine"))
    elif change == "lock":
        (job_left / "lock").write_text("a user's")
        aged(job_left / "lock")
    elif change == "lock's mode":
        (job_left / "lock").chmod(0o644)
    elif change == "no lock":
        (job_left / "lock").unlink()
    else:
        target = job_left.rename(job_left.with_name("elsewhere"))
        job_left.symlink_to(target)
        kept = target
    with short_directory():
        assert (kept / "half").exists()


def test_the_directory_of_a_running_job_stays(job_left):
    with short_directory() as first, short_directory():
        aged(first / "lock")
        with short_directory():
            assert first.exists()
    assert list(job_left.parent.iterdir()) == []


def test_the_next_sidecar_removes_a_killed_one_s_draft(tmp_path, left):
    write_sidecar(tmp_path / "run.nsyspipe.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["run.nsyspipe.json"]


def n_descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_redaction_keeps_no_descriptor_per_report(steady, tmp_path):
    places = [Place(steady / "steady_0.sqlite", tmp_path / f"{n}.sqlite") for n in range(50)]
    with staged(places) as files:
        before = n_descriptors()
        assert len(files) == len(places)
    assert before - n_descriptors() <= 1
