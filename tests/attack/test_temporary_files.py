"""What killed runs leave behind goes with the next run in the same place; nothing else does."""

from __future__ import annotations

import contextlib
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


@pytest.mark.parametrize("change", ["mode", "name", "lock", "no lock", "link"])
def test_what_is_no_job_s_directory_stays(job_left, change):
    kept = job_left
    if change == "mode":
        job_left.chmod(0o755)
    elif change == "name":
        kept = job_left.rename(job_left.with_name("nsyspipe-mine"))
    elif change == "lock":
        (job_left / "lock").write_text("a user's")
        aged(job_left / "lock")
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
