"""What killed runs leave behind goes with the next run in the same place; nothing else does."""

import fcntl
import os
import shutil
import tempfile
import time

import pytest

from nsyspipe.capture.sidecar import write_sidecar
from nsyspipe.capture.supervision import holding, short_directory, start
from nsyspipe.nsys.files import claim, claimed_file, remove_abandoned
from nsyspipe.redact.redact import Place, staged
from tests.cli.tools import nsyspipe_here

LONG_AGO_S = 3600
LEFT = ".nsyspipe-abcd1234.unfinished"


def aged(path):
    then = time.time() - LONG_AGO_S
    os.utime(path, (then, then))
    return path


def left_in(folder):
    """Leave a file in a directory as a killed run does."""
    path = folder / LEFT
    path.touch(mode=0o600)
    path.write_text("half")
    return aged(path)


@pytest.fixture
def left(tmp_path):
    return left_in(tmp_path)


def test_the_next_run_redaction_or_sidecar_removes_it(steady, tmp_path):
    out = tmp_path / "out"
    for command in (
        ["analyze", steady, "-q", "--json", out / "run.json"],
        ["redact", steady, out, "--force"],
    ):
        out.mkdir(exist_ok=True)
        left_in(out)
        assert nsyspipe_here(*command).returncode == 0, command
        assert not (out / LEFT).exists(), command
        shutil.rmtree(out)
    out.mkdir()
    left_in(out)
    write_sidecar(out / "run.nsyspipe.json", {})
    assert [path.name for path in out.iterdir()] == ["run.nsyspipe.json"]


def test_one_that_is_being_written_or_held_or_that_others_may_read_stays(tmp_path, left):
    with left.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with claimed_file(tmp_path) as file:
            aged(file)
            remove_abandoned(tmp_path)
            assert file.exists()
            assert left.exists()
    assert list(tmp_path.iterdir()) == [left]
    left.chmod(0o644)
    remove_abandoned(tmp_path)
    assert left.exists()


def test_links_and_what_they_lead_to_stay_and_a_pipe_is_not_waited_for(tmp_path, left):
    target, pipe = tmp_path / "precious", tmp_path / ".nsyspipe-22345678.unfinished"
    target.mkdir(mode=0o700)
    (target / "lock").touch()
    aged(target / "lock")
    links = [tmp_path / f".nsyspipe-{n}2345678.unfinished" for n in range(2)]
    links[0].symlink_to(target)
    links[1].symlink_to(left.rename(tmp_path / "kept"))
    for link in links:
        os.utime(link, (1, 1), follow_symlinks=False)
    aged(target)
    os.mkfifo(pipe, mode=0o600)
    aged(pipe)
    remove_abandoned(tmp_path)
    assert all(link.is_symlink() for link in links)
    assert all(path.exists() for path in (target / "lock", tmp_path / "kept", pipe))


@pytest.mark.parametrize(
    "name",
    [
        ".nsyspipe",
        ".nsyspipe-notes.txt",
        ".nsyspipe-settings.toml",
        ".nsyspipe-settings",
        f"{LEFT}.bak",
    ],
)
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
        assert one.exists(), one


@pytest.fixture
def folder_left(tmp_path):
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


ELSE = {
    "mode": lambda folder: folder.chmod(0o755),
    "content": lambda folder: (folder / "precious").touch(),
    "folder": lambda folder: (folder / "a.sqlite").mkdir(),
    "lock": lambda folder: (folder / "lock").write_text("a user's"),
    "no lock": lambda folder: (folder / "lock").unlink(),
}


@pytest.mark.parametrize("change", ELSE)
def test_a_directory_with_anything_else_stays(tmp_path, folder_left, change):
    ELSE[change](folder_left)
    aged(folder_left)
    remove_abandoned(tmp_path)
    assert (folder_left / "run_0.sqlite").exists()


@pytest.fixture
def job_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    job = tmp_path / "nsyspipe-abcd1234"
    for folder in (job, job / "nsyspipe-efgh5678"):
        folder.mkdir(mode=0o700)
        (folder / "half").write_text("half")
        os.close(claim(folder))
        aged(folder / "lock")
    return job


@pytest.mark.parametrize("holder", [".", "nsyspipe-efgh5678", None])
def test_the_next_job_removes_the_unused_directory_of_a_killed_job(job_left, holder):
    lock = None if holder is None else claim(job_left / holder)
    for path in job_left.rglob("lock"):
        aged(path)
    with short_directory():
        assert job_left.exists() == (job_left / "half").exists() == (holder is not None)
    if lock is not None:
        os.close(lock)


@pytest.mark.parametrize("is_link", [False, True])
def test_a_killed_job_s_directory_stays_while_its_program_lives(job_left, tmp_path, is_link):
    place = job_left / "t" if is_link else job_left
    if is_link:  # a short way to a directory elsewhere
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


def linked(job):
    target = job.rename(job.with_name("elsewhere"))
    job.symlink_to(target)
    return target


NO_JOBS = {
    "mode": lambda job: job.chmod(0o755),
    "name": lambda job: job.rename(job.with_name("nsyspipe-mine")),
    "lock": lambda job: ((job / "lock").write_text("a user's"), aged(job / "lock"))[2:],
    "lock's mode": lambda job: (job / "lock").chmod(0o644),
    "no lock": lambda job: (job / "lock").unlink(),
    "link": linked,
}


@pytest.mark.parametrize("change", NO_JOBS)
def test_what_is_no_job_s_directory_stays(job_left, change):
    there = NO_JOBS[change](job_left) or job_left
    with short_directory():
        assert (there / "half").exists()


def test_the_directory_of_a_running_job_stays(job_left):
    with short_directory() as first, short_directory():
        aged(first / "lock")
        with short_directory():
            assert first.exists()
    assert list(job_left.parent.iterdir()) == []


def test_a_redaction_keeps_no_descriptor_per_report(steady, tmp_path):
    with staged([Place(steady / "steady_0.sqlite", tmp_path / f"{n}.sqlite") for n in range(50)]):
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert before - len(os.listdir("/proc/self/fd")) <= 1  # noqa: PTH208
