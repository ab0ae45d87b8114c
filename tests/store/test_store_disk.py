"""What the disk and the user's own files can put in the way of a dataset: a clear error, and nothing changed."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

import nsyspipe
from nsyspipe.errors import OutputError
from nsyspipe.store.write import save
from tests.store.store_tools import RUN_ID, TABLES, contents, left_behind, new_run, stored


@pytest.fixture
def mounted(tmp_path):
    """Return a function that mounts a file system; skip where that is not allowed."""
    places = []

    def mount(*arguments):
        place = tmp_path / f"mount{len(places)}"
        place.mkdir()
        done = subprocess.run(["mount", *arguments, place], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")
        places.append(place)
        return place

    if not shutil.which("mount"):
        pytest.skip("no mount here")
    yield mount
    for place in places:
        subprocess.run(["umount", place], check=True)


def refused(run, store, *words, **options):
    """Check the error that saving ends with; it names the store, in one line."""
    with pytest.raises(OutputError) as caught:
        save(run, store, **options)
    text = caught.value.lines()[0]
    assert (text.startswith(f"{store}: "), "\n" in text, bool(caught.value.fix)) == (True, False, True)
    assert all(word in text for word in words), text


def test_a_full_disk_leaves_the_store_as_it_was_and_the_next_save_works(runs, mounted):
    old, new, other = runs
    disk = mounted("-t", "tmpfs", "-o", "size=1m", "none")
    store, filler = stored(disk / "store", other), disk / "filler"
    save(old, store)
    before = contents(store)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    for left in (0, 40_000, 80_000):  # full at once, and full in the middle
        filler.write_bytes(b"x" * (free - left))
        refused(new, store, "its disk is full", "as it was", events=True)
        assert (contents(store), left_behind(store)) == (before, [])
    filler.unlink()
    save(new, store)
    assert nsyspipe.load(store, run_id=RUN_ID).steps().equals(new.steps())


def test_no_more_files_are_a_full_disk_too(runs, mounted):
    disk = mounted("-t", "tmpfs", "-o", "size=10m,nr_inodes=200", "none")
    save(runs[2], disk / "store")
    before = contents(disk / "store")
    for number in range(os.statvfs(disk).f_ffree):
        (disk / f"filler{number}").touch()
    for number in range(0, 30, 3):  # staging needs 20, the directories of a run 16
        refused(runs[0], disk / "store", "its disk is full")
        assert (contents(disk / "store"), left_behind(disk / "store")) == (before, [])
        for free in range(number, number + 3):
            (disk / f"filler{free}").unlink()


def test_a_limit_on_the_size_of_files_is_an_error_that_says_so(runs, tmp_path):
    store = stored(tmp_path / "store", runs[2])
    stored(tmp_path / "alone", runs[0])  # its reports are read
    before, limits = contents(store), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        refused(runs[0], store, "cannot be written (File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (contents(store), left_behind(store)) == (before, [])


def test_a_store_that_can_only_be_read_is_an_error_and_can_be_read(runs, mounted, tmp_path):
    store = stored(tmp_path / "store", runs[0])
    place = mounted("--bind", store)
    subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
    refused(runs[1], place, "Read-only file system")
    assert nsyspipe.load(place).steps().equals(runs[0].steps())


IN_THE_WAY = {
    "store": "is no directory",
    "folder": "cannot be written (Not a directory",
    f"folder/store/steps/run_id={RUN_ID}/part-0.parquet": "has steps of run nightly, and no such run",
}
DIRECTORIES = ("steps", f"steps/run_id={RUN_ID}", ".nsyspipe", ".nsyspipe/staging", ".nsyspipe/switch")
IN_THE_WAY |= {f"folder/store/{name}": f"has a file at {name}, where a store has a directory" for name in DIRECTORIES}


@pytest.mark.parametrize(("mine", "words"), IN_THE_WAY.items())
def test_a_file_of_the_users_in_the_way_stays(runs, tmp_path, mine, words):
    path = tmp_path / mine
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    refused(runs[0], path if mine == "store" else tmp_path / "folder" / "store", words)
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [path]
    assert path.read_text() == "mine"


def test_the_users_own_files_beside_the_tables_stay(runs, tmp_path):
    store = tmp_path / "store"
    mine = [store / "notes.md", store / "steps" / "notes.md", store / "plots" / "empty"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine") if path.suffix else path.mkdir()
    for run in runs[:2]:
        save(run, store)
    shutil.rmtree(store / "steps" / f"run_id={RUN_ID}")
    save(runs[0], store)
    assert all(path.exists() for path in mine)
    assert nsyspipe.load(store).steps().equals(runs[0].steps())


@pytest.mark.parametrize("is_there", [False, True])
def test_a_full_disk_leaves_nothing_but_an_empty_directory_that_was_there(runs, mounted, is_there):
    disk = mounted("-t", "tmpfs", "-o", "size=40k", "none")
    store = disk / "store" if is_there else disk / "a" / "store"
    if is_there:
        store.mkdir()
    refused(runs[0], store, "its disk is full")
    assert [*disk.rglob("*")] == [store] * is_there


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_to_a_store_is_the_store(runs, tmp_path, is_there):
    if is_there:
        save(runs[2], tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    save(runs[0], tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    for path in (tmp_path / "link", tmp_path / "real"):
        assert nsyspipe.load(path, run_id=RUN_ID).steps().equals(runs[0].steps())
    (tmp_path / "itself").symlink_to("itself")
    refused(runs[0], tmp_path / "itself", "cannot be written")


def test_a_path_may_be_relative(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(runs[0], Path("store"))
    monkeypatch.chdir("store")
    save(runs[2], Path())
    monkeypatch.chdir("steps")
    assert nsyspipe.load(f"run_id={RUN_ID}").header == runs[0].header
    for path in ("../ranks/run_id=other", "../runs/run_id=other/."):
        assert nsyspipe.load(path).header == runs[2].header
    monkeypatch.chdir("run_id=other")
    assert nsyspipe.load(".").header == runs[2].header


def test_a_path_may_be_no_text_and_no_file_is_shared_by_hard_links(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", None)  # there are file systems without them
    store = stored(tmp_path / os.fsdecode(b"st\xffore"), runs[0])
    save(runs[1], store)
    assert nsyspipe.load(store).steps().equals(runs[1].steps())
    assert {path.stat().st_nlink for path in store.glob("*/*/*.parquet")} == {1}


def test_a_plain_copy_without_what_is_hidden_is_a_store(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0], events=True)
    save(runs[2], store)
    copied = Path(shutil.copytree(store, tmp_path / "copy", ignore=shutil.ignore_patterns(".nsyspipe")))
    before = contents(copied)
    save(new_run(tmp_path, run_id="third"), copied)
    found = contents(copied)
    assert {path: found[path] for path in before} == before
    assert len(found) == len(before) + len(TABLES)
    save(runs[1], copied, events=True, force=True)
    assert nsyspipe.load(copied, run_id=RUN_ID).steps().equals(runs[1].steps())
    assert left_behind(copied) == []
