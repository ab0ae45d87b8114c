"""Saving a run again replaces exactly that run; what the disk and the user's files put in the way is told, nothing changed."""

import errno
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

import nsyspipe
from nsyspipe.errors import OutputError
from nsyspipe.store.write import save
from tests.store import store_tools
from tests.store.store_tools import (
    OTHER_ID,
    RUN_ID,
    TABLES,
    contents,
    left_behind,
    new_run,
    old_run,
    places,
    stored,
)


def refused(run, store, *names, **options):
    """Check the error that saving ends with: it names the store, in one line, and the store is as it was; return it."""
    before = contents(store), left_behind(store)
    with pytest.raises(OutputError) as caught:
        save(run, store, **options)
    text = caught.value.lines()[0]
    assert (text.startswith(f"{store}: "), "\n" in text) == (True, False)
    assert [name for name in names if name not in text] == []
    assert (contents(store), left_behind(store)) == before
    assert caught.value.fix
    return caught.value


def of_run(found, run_id):
    return {path: read for path, read in found.items() if f"run_id={run_id}/" in path}


def files(store):
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in store.glob("[!.]*/**/*.parquet")
    }


@pytest.mark.slow
@pytest.mark.reads_anew
def test_the_same_run_gives_the_same_bytes_in_as_many_files(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0], events=True)
    before = contents(store)
    assert len(before) == len(TABLES) + 4
    # Saved again, what was saved, and elsewhere; and of reports that are analyzed again.
    for run in (runs[0], runs[0], nsyspipe.load(store)):
        save(run, store, events=True)
        assert contents(store) == before, run
    for number, run in enumerate((runs[0], old_run(tmp_path))):
        assert contents(stored(tmp_path / f"elsewhere{number}", run, events=True)) == before, number


def test_a_rerun_replaces_its_run_and_touches_no_other(runs, tmp_path):
    old, new, other = runs
    store = stored(tmp_path / "store", other, events=True)
    of_other = files(store)
    save(old, store)
    save(new, store)
    assert of_run(contents(store), RUN_ID) == contents(stored(tmp_path / "alone", new))
    assert {path: found for path, found in files(store).items() if path in of_other} == of_other
    assert left_behind(store) == []


@pytest.mark.slow
def test_a_rerun_without_operations_keeps_those_of_the_same_run(runs, tmp_path):
    old, _, other = runs
    store = stored(tmp_path / "store", old, events=True)
    save(other, store, events=True)
    before, kept = contents(store), files(store)
    for run in (old, other, nsyspipe.load(store, run_id=RUN_ID)):
        save(run, store)
        assert contents(store) == before, run
    of_operations = [path for path in kept if "/events/" in path or "/phase_ranges/" in path]
    assert [files(store)[path] for path in of_operations] == [kept[path] for path in of_operations]
    assert len(of_operations) == 8
    found = nsyspipe.load(store, run_id=RUN_ID).operations()
    for (_, *ours), (_, *theirs) in zip(old.operations(), found, strict=True):
        assert all(map(pa.Table.equals, ours, theirs)), ours


@pytest.mark.slow
def test_renaming_a_run_keeps_its_operations(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0], events=True)
    save(nsyspipe.load(f"{store}:nightly", label="new"), store)
    assert nsyspipe.load(store).header.label == "new"
    assert len(list(nsyspipe.load(store).operations())) == 2
    save(
        nsyspipe.load(store_tools.write_reports(tmp_path / "reports", 1), run_id=RUN_ID, jobs=1),
        store,
    )
    found = nsyspipe.load(store)
    assert found.nccl is None
    assert len(list(found.operations())) == 2


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"step": "backward"}, {"comm_kernel": "gemm"}])
def test_the_same_reports_read_otherwise_do_not_keep_operations_nor_lose_them(
    runs, tmp_path, options
):
    store = stored(tmp_path / "store", runs[0], events=True)
    otherwise = nsyspipe.load(
        store_tools.write_reports(tmp_path / "reports", 1), run_id=RUN_ID, jobs=1, **options
    )
    assert "--force" in refused(otherwise, store, "events", "phase_ranges", RUN_ID).fix


@pytest.mark.slow
def test_operations_of_other_reports_are_lost_only_by_force(runs, tmp_path, worded):
    old, new, other = runs
    store = stored(tmp_path / "store", old, events=True)
    save(other, store, events=True)
    before = contents(store)
    worded(refused(new, store).lines())
    save(new, store, force=True)
    assert contents(store) == of_run(before, OTHER_ID) | contents(stored(tmp_path / "alone", new))
    assert not (store / "events" / f"run_id={RUN_ID}").exists()
    with pytest.raises(nsyspipe.NsyspipeError, match="events=True"):
        nsyspipe.load(store, run_id=RUN_ID).operations()
    save(old, store, events=True, force=True)  # those that are there are written again
    assert contents(store) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("events", "damage"),
    [
        (True, lambda files: files["steps"].write_bytes(b"damaged")),
        (False, lambda files: files["runs"].unlink()),
    ],
    ids=["damaged", "no run"],
)
def test_operations_of_a_damaged_run_are_replaced_only_by_force(
    runs, tmp_path, events, damage, worded
):
    store = stored(tmp_path / "store", runs[0], events=events)
    damage(places(store))
    worded(refused(runs[0], store).lines())
    save(runs[0], store, events=events, force=True)
    assert contents(store) == contents(stored(tmp_path / "alone", runs[0], events=events))


@pytest.mark.slow
def test_a_rerun_with_fewer_ranks_leaves_no_rank_behind(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0], events=True)
    one_rank = nsyspipe.load(
        store_tools.write_reports(tmp_path / "reports", 1, n_ranks=1), run_id=RUN_ID, jobs=1
    )
    for run in (one_rank, runs[1]):
        refused(run, store, "events", "phase_ranges", RUN_ID, events=True)
    save(one_rank, store, events=True, force=True)
    assert [path.name for path in (store / "events" / f"run_id={RUN_ID}").iterdir()] == ["rank=0"]
    assert nsyspipe.load(store).ranks.num_rows == 1


@pytest.mark.slow
def test_a_damaged_run_can_be_replaced(runs, tmp_path):
    store, alone = stored(tmp_path / "store", runs[0]), stored(tmp_path / "new", runs[1])
    before = contents(store)
    with pytest.raises(nsyspipe.NsyspipeError, match="events=True"):
        save(nsyspipe.load(alone), store, events=True)
    assert (contents(store), left_behind(store)) == (before, [])
    for path in places(store).values():
        path.write_bytes(b"x" * 5000)
    save(runs[1], store)
    assert (contents(store), left_behind(store)) == (contents(alone), [])


@pytest.fixture
def mounted(tmp_path):
    """Return a function that mounts a file system; skip where that is not allowed."""
    places = []

    def mount(*arguments):
        place = tmp_path / f"mount{len(places)}"
        place.mkdir()
        done = subprocess.run(
            ["mount", *arguments, place], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")
        places.append(place)
        return place

    if not shutil.which("mount"):
        pytest.skip("no mount here")
    yield mount
    for place in places:
        subprocess.run(["umount", place], check=True)


def test_a_full_disk_leaves_the_store_as_it_was_and_the_next_save_works(runs, mounted, worded):
    old, new, other = runs
    disk = mounted("-t", "tmpfs", "-o", "size=1m", "none")
    store, filler = stored(disk / "store", other), disk / "filler"
    save(old, store)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    for left in (0, 40_000, 80_000):  # full at once, and full in the middle
        filler.write_bytes(b"x" * (free - left))
        error = refused(new, store, events=True)
        worded(str(error).replace(str(disk), "DISK"), f"{left} bytes free")
    filler.unlink()
    save(new, store)
    assert nsyspipe.load(store, run_id=RUN_ID).steps().equals(new.steps())


@pytest.mark.slow
def test_no_more_files_are_a_full_disk_too(runs, mounted, worded):
    disk = mounted("-t", "tmpfs", "-o", "size=10m,nr_inodes=200", "none")
    save(runs[2], disk / "store")
    for number in range(os.statvfs(disk).f_ffree):
        (disk / f"filler{number}").touch()
    said = set()
    for number in range(0, 30, 3):  # staging needs 20, the directories of a run 16
        said.add(str(refused(runs[0], disk / "store")).replace(str(disk), "DISK"))
        for free in range(number, number + 3):
            (disk / f"filler{free}").unlink()
    worded(sorted(said))


def test_a_limit_on_the_size_of_files_is_an_error_that_says_so(runs, tmp_path):
    store = stored(tmp_path / "store", runs[2])
    stored(tmp_path / "alone", runs[0])  # its reports are read
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        refused(runs[0], store, os.strerror(errno.EFBIG))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_store_that_can_only_be_read_is_an_error_and_can_be_read(runs, mounted, tmp_path):
    place = mounted("--bind", stored(tmp_path / "store", runs[0]))
    subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
    refused(runs[1], place, os.strerror(errno.EROFS))
    assert nsyspipe.load(place).steps().equals(runs[0].steps())


DIRECTORIES = (
    "steps",
    f"steps/run_id={RUN_ID}",
    ".nsyspipe",
    ".nsyspipe/staging",
    ".nsyspipe/switch",
)
IN_THE_WAY = (
    "store",
    "folder",
    f"folder/store/steps/run_id={RUN_ID}/part-0.parquet",
    *(f"folder/store/{name}" for name in DIRECTORIES),
)


@pytest.mark.parametrize("mine", IN_THE_WAY)
def test_a_file_of_the_users_in_the_way_stays(runs, tmp_path, mine, worded):
    path = tmp_path / mine
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    store = path if mine == "store" else tmp_path / "folder" / "store"
    worded(refused(runs[0], store).lines())
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [path]
    assert path.read_text() == "mine"


def test_files_of_the_user_stay_and_do_not_stop_a_save(runs, tmp_path):
    store = tmp_path / "store"
    others = store / "mydata" / f"run_id={RUN_ID}" / "part-0.parquet"
    mine = [store / "notes.md", store / "steps" / "notes.md", others, store / "plots" / "empty"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine") if path.suffix else path.mkdir()
    for run in runs[:2]:
        save(run, store)
    save(runs[1], store, force=True)
    shutil.rmtree(store / "steps" / f"run_id={RUN_ID}")
    save(runs[0], store)
    assert [path.read_text() for path in mine[:3]] == ["mine"] * 3
    assert mine[3].exists()
    assert nsyspipe.load(store).steps().equals(runs[0].steps())


@pytest.mark.parametrize("is_there", [False, True])
def test_a_full_disk_leaves_nothing_but_an_empty_directory_that_was_there(
    runs, mounted, is_there, worded
):
    disk = mounted("-t", "tmpfs", "-o", "size=40k", "none")
    store = disk / "store" if is_there else disk / "a" / "store"
    if is_there:
        store.mkdir()
    worded(str(refused(runs[0], store)).replace(str(disk), "DISK"))
    assert [*disk.rglob("*")] == [store] * is_there


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_to_a_store_is_the_store(runs, tmp_path, is_there):
    if is_there:
        save(runs[2], tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    save(runs[0], tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    for path in (tmp_path / "link", tmp_path / "real"):
        assert nsyspipe.load(path, run_id=RUN_ID).steps().equals(runs[0].steps()), path
    (tmp_path / "itself").symlink_to("itself")
    refused(runs[0], tmp_path / "itself")


def test_a_path_may_be_relative(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(runs[0], Path("store"))
    monkeypatch.chdir("store")
    save(runs[2], Path())
    monkeypatch.chdir("steps")
    assert nsyspipe.load(f"run_id={RUN_ID}").header == runs[0].header
    for path in ("../ranks/run_id=other", "../runs/run_id=other/."):
        assert nsyspipe.load(path).header == runs[2].header, path
    monkeypatch.chdir("run_id=other")
    assert nsyspipe.load(".").header == runs[2].header


@pytest.mark.slow
def test_a_path_may_be_no_text_and_no_file_is_shared_by_hard_links(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", None)  # there are file systems without them
    store = stored(tmp_path / os.fsdecode(b"st\xffore"), runs[0])
    save(runs[1], store)
    assert nsyspipe.load(store).steps().equals(runs[1].steps())
    assert {path.stat().st_nlink for path in store.glob("*/*/*.parquet")} == {1}


@pytest.mark.slow
def test_a_plain_copy_without_what_is_hidden_is_a_store(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0], events=True)
    save(runs[2], store)
    copied = Path(
        shutil.copytree(store, tmp_path / "copy", ignore=shutil.ignore_patterns(".nsyspipe"))
    )
    before = contents(copied)
    save(new_run(tmp_path, run_id="third"), copied)
    found = contents(copied)
    assert {path: found[path] for path in before} == before
    assert len(found) == len(before) + len(TABLES)
    save(runs[1], copied, events=True, force=True)
    assert nsyspipe.load(copied, run_id=RUN_ID).steps().equals(runs[1].steps())
    assert left_behind(copied) == []
