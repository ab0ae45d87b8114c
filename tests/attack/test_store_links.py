"""A store that somebody prepared, or changes while it is used, leads nowhere else and is never waited for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.errors import NsyspipeError, OutputError
from nsyspipe.model.schema import DATASET
from nsyspipe.store import commit
from nsyspipe.store.write import save
from tests.cli.tools import nsyspipe_here
from tests.store.store_tools import OTHER_ID, RUN_ID, contents, copied, new_run, old_run, other_run, places, stored

HIDDEN = [".nsyspipe", ".nsyspipe/staging", ".nsyspipe/switch"]
OF_RUN = [f"{table}/run_id={RUN_ID}" for table in ("runs", "steps", "events")]
DIRECTORIES = [*HIDDEN, "runs", "steps", "metrics", "events", *OF_RUN, f"events/run_id={RUN_ID}/rank=0"]
FILES = [
    ".nsyspipe/lock",
    *(f"{table}/run_id={RUN_ID}/part-0.parquet" for table in ("runs", "steps", "metrics")),
    f"events/run_id={RUN_ID}/rank=1/part-0.parquet",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return two versions of a run, and another run, all read from stores."""
    folder = tmp_path_factory.mktemp("runs")
    found = []
    for make in (old_run, new_run, other_run):
        run = make(folder)
        store = stored(folder / f"store-{make.__name__}", run, events=True)
        found.append(nsyspipe.load(store))
    return found


@pytest.fixture(scope="module")
def both(runs, tmp_path_factory):
    """Return a store of the first and the last of them."""
    store = stored(tmp_path_factory.mktemp("both") / "store", runs[0], events=True)
    save(runs[2], store)
    return store


@pytest.fixture(autouse=True)
def never_waits():
    """End a test that waits for what a hostile store never gives."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(120)
    yield
    signal.alarm(0)


@pytest.fixture
def outside(tmp_path):
    """Return a directory of somebody else, with what a store may have in it."""
    outside = tmp_path / "outside"
    for name in (
        "part-0.parquet",
        "alive",
        "staging/x/alive",
        "switch/x/steps.parquet",
        f"run_id={RUN_ID}/part-0.parquet",
        "rank=0/part-0.parquet",
        "mine",
    ):
        path = outside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (outside / "empty").mkdir()
    return outside


def tree(folder):
    """Return everything in a directory, with its bytes or target and its time of change."""
    return {
        str(path.relative_to(folder)): (
            path.is_symlink() and path.readlink(),
            path.read_bytes() if path.is_file() and not path.is_symlink() else None,
            None if path.is_dir() else path.lstat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
        if not path.is_fifo() and not path.is_socket()
    }


def put(path, kind, outside):
    """Put something else in place of a path."""
    is_directory = path.is_dir()
    if is_directory:
        shutil.rmtree(path)
    else:
        path.unlink()
    if kind == "link":
        path.symlink_to(outside if is_directory else outside / "mine")
    elif kind == "link to ..":
        path.symlink_to("..")
    elif kind == "link to nothing":
        path.symlink_to(outside / "new")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            os.chdir(path.parent)  # its name may be too long otherwise
            made.bind(path.name)
    elif is_directory:
        path.write_text("mine")
    else:
        path.mkdir()


KINDS = ["link", "link to ..", "link to nothing", "fifo", "socket", "file or directory"]


# Each place as a link, which may lead elsewhere, and as two of the other kinds in turn.
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for at, name in enumerate([*DIRECTORIES, *FILES])
        for kind in ("link", KINDS[1 + 2 * at % 5], KINDS[1 + (2 * at + 1) % 5])
    ],
)
def test_a_place_that_is_something_else_is_refused_by_writers_and_not_followed_by_readers(
    runs, both, tmp_path, outside, monkeypatch, attempts, name, kind
):
    attempts(3)
    monkeypatch.chdir(tmp_path)
    store = copied(both, tmp_path / "store")
    put(store / name, kind, outside)
    before = tree(tmp_path)
    for force in (False, True):
        with pytest.raises(OutputError) as caught:
            save(runs[1], store, events=True, force=force)
        assert str(caught.value).startswith(f"{store}: has a")
        assert caught.value.fix
        assert tree(tmp_path) == before
    try:
        found = nsyspipe.load(store, run_id=RUN_ID)
        is_same = found.steps().equals(runs[0].steps())
        assert is_same
        assert len(list(found.operations())) == 2
    except NsyspipeError:  # which ends a command with 2
        pass
    assert tree(tmp_path) == before


@pytest.mark.parametrize("place", ["staging/link", "switch/link", f"switch/{RUN_ID}"])
def test_links_in_what_is_hidden_are_refused(runs, tmp_path, outside, place):
    store = stored(tmp_path / "store", runs[0])
    (store / ".nsyspipe" / place).symlink_to(outside)
    before = tree(tmp_path)
    with pytest.raises(OutputError, match=r"has a link at \.nsyspipe/") as caught:
        save(runs[1], store, force=True)
    assert caught.value.fix == f"remove {store / '.nsyspipe' / place}"
    assert tree(tmp_path) == before


@pytest.mark.parametrize("run_id", [RUN_ID, "planted"])
@pytest.mark.parametrize(
    ("files", "left"),
    [
        ('["x"]', []),
        ('["runs.parquet"]', []),
        ('["launchers.parquet", "runs.parquet"]', ["launchers.parquet"]),
        ('["mydata.parquet", "runs.parquet"]', ["mydata.parquet"]),
        (None, ["launchers.parquet"]),
        (None, ["steps.parquet"]),
    ],
)
def test_a_switch_that_no_writer_left_moves_and_removes_nothing(runs, tmp_path, run_id, files, left):
    store = stored(tmp_path / "store", runs[0])
    switch = store / ".nsyspipe" / "switch" / run_id
    switch.mkdir()
    if files is not None:
        (switch / "files").write_text(files)
    for name in left:
        (switch / name).write_text("x")
    before = tree(store)
    with pytest.raises(OutputError, match="has files of no run at") as caught:
        save(runs[2], store, force=True)
    assert caught.value.fix == f"remove {switch}"
    assert tree(store) == before


PREPARED = {
    "a link": lambda folder, outside: (folder / "steps.parquet").symlink_to(outside / "mine"),
    "a fifo": lambda folder, outside: os.mkfifo(folder / "steps.parquet"),
    "a directory": lambda folder, outside: (folder / "steps.parquet").mkdir(),
    "another name": lambda folder, outside: (folder / "x..parquet").write_text("x"),
    "files is a link": lambda folder, outside: (folder / "files").symlink_to(outside / "mine"),
    "files is no list": lambda folder, outside: (folder / "files").write_text("{}"),
    "files is nested": lambda folder, outside: (folder / "files").write_text("[" * 100_000),
    "files is a fifo": lambda folder, outside: os.mkfifo(folder / "files"),
}


@pytest.mark.parametrize("name", PREPARED)
def test_a_switch_that_somebody_prepared_is_refused(runs, tmp_path, outside, name):
    store = stored(tmp_path / "store", runs[0])
    switch = store / ".nsyspipe" / "switch" / "prepared"
    switch.mkdir()
    PREPARED[name](switch, outside)
    before = tree(outside)
    with pytest.raises(OutputError) as caught:
        save(runs[1], store, force=True)
    assert "prepared" in str(caught.value.fix)
    assert tree(outside) == before
    assert nsyspipe.load(store, run_id=RUN_ID).steps().equals(runs[0].steps())


def test_a_switch_with_files_of_other_places_removes_nothing_elsewhere(runs, tmp_path, outside):
    store = stored(tmp_path / "store", runs[0])
    switch = store / ".nsyspipe" / "switch" / OTHER_ID
    switch.mkdir()
    (switch / "files").write_text('["../../outside/mine", "/etc/hosts", "steps.parquet"]')
    before, inside = tree(outside), tree(store)
    with pytest.raises(OutputError, match=r"files of no run at \.nsyspipe/switch"):
        save(runs[1], store)
    assert (tree(outside), tree(store)) == (before, inside)


def test_places_that_change_while_runs_are_saved_lead_nowhere(runs, tmp_path, outside, attempts):
    store = stored(tmp_path / "store", runs[0])
    before = tree(outside)
    done = threading.Event()
    n_changes = n_refused = 0

    def change():
        nonlocal n_changes
        names = ["steps", "runs", ".nsyspipe/staging", ".nsyspipe/switch", f"kernels/run_id={RUN_ID}"]
        while not done.is_set():
            path = store / names[n_changes % len(names)]
            with contextlib.suppress(OSError):  # the store's writer is at it too
                path.rename(tmp_path / "aside")
                path.symlink_to(outside)
            with contextlib.suppress(OSError):
                path.unlink()
                (tmp_path / "aside").rename(path)
            shutil.rmtree(tmp_path / "aside", ignore_errors=True)
            n_changes += 1

    attacker = threading.Thread(target=change)
    attacker.start()
    n_saves = 10
    try:
        for number in range(n_saves):
            try:
                save(runs[number % 2], store, force=True)
            except OutputError:
                n_refused += 1
    finally:
        done.set()
        attacker.join()
    attempts(n_saves)
    assert n_changes > n_saves
    assert tree(outside) == before


# --- stores of links, and copies ----------------------------------------------------------------


def as_links(store):
    """Turn a store into one as an older nsyspipe wrote it: its tables are links into what is hidden."""
    shutil.rmtree(store / ".nsyspipe")
    versions = store / ".nsyspipe" / "versions" / "1"
    versions.mkdir(parents=True)
    (store / ".nsyspipe" / "runs").mkdir()
    (store / ".nsyspipe" / "runs" / RUN_ID).symlink_to("../versions/1")
    for name, path in places(store).items():
        path.rename(versions / f"{name}.parquet")
        depth = len(path.relative_to(store).parts) - 1
        path.symlink_to(Path(*[".."] * depth, ".nsyspipe", "runs", RUN_ID, f"{name}.parquet"))
    return store


@pytest.mark.parametrize("copy", ["itself", "without what is hidden"])
def test_a_store_of_links_is_refused_and_what_to_do_is_said(runs, tmp_path, attempts, copy):
    attempts(4)
    store = as_links(stored(tmp_path / "store", runs[0], events=True))
    if copy != "itself":
        shutil.rmtree(store / ".nsyspipe")
    before = tree(store)
    for run in (runs[1], runs[2]):
        with pytest.raises(OutputError, match="link") as caught:
            save(run, store, force=True)
        assert "cp -rL" in caught.value.fix
        assert tree(store) == before
    for command in (["analyze", store], ["dashboard", store, "-o", tmp_path / "x.html"]):
        done = nsyspipe_here(*command)
        assert done.returncode == 2
        assert "is a link, where a store has a file" in done.stderr
        assert "cp -rL" in done.stderr


@pytest.mark.slow
def test_the_way_out_of_a_store_of_links_works(runs, tmp_path):
    store = as_links(stored(tmp_path / "store", runs[0], events=True))
    subprocess.run(["cp", "-rL", store, tmp_path / "copy"], check=True)
    shutil.rmtree(tmp_path / "copy" / ".nsyspipe")
    assert nsyspipe.load(tmp_path / "copy").steps().equals(runs[0].steps())
    save(runs[1], tmp_path / "copy", events=True, force=True)
    assert nsyspipe.load(tmp_path / "copy").steps().equals(runs[1].steps())


def without_links(store, to):
    """Copy as rsync does without -L, and as object stores do: ordinary files alone."""
    for path in store.rglob("*"):
        if path.is_file() and not path.is_symlink():
            (to / path.relative_to(store)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to / path.relative_to(store))


COPIES = {
    "cp -r": lambda store, to: subprocess.run(["cp", "-r", store, to], check=True),
    "without links": without_links,
}


@pytest.mark.parametrize("way", COPIES)
def test_every_copy_reads_the_same_by_every_reader(runs, tmp_path, attempts, way):
    attempts(len(DATASET))
    store = stored(tmp_path / "store", runs[0], events=True)
    save(runs[2], store, events=True)
    files = contents(store)
    expected = {
        table: [len(pq.ParquetFile(path).read()) for path in sorted((store / table).rglob("*.parquet"))]
        for table in DATASET
    }
    COPIES[way](store, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert contents(copy) == files
    for table in DATASET:
        n_rows = sum(expected[table])
        glob = f"read_parquet('{copy}/{table}/**/*.parquet')"
        assert duckdb.sql(f"SELECT count(*) FROM {glob}").fetchall() == [(n_rows,)]
        assert len(pd.read_parquet(copy / table, partitioning=None)) == n_rows
        assert pl.scan_parquet(copy / table).collect().height == n_rows
    for run in (runs[0], runs[2]):
        found = nsyspipe.load(copy, run_id=run.run_id)
        assert found.steps().equals(run.steps())
        assert len(list(found.operations())) == 2


# --- pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "force"),
    [("link", []), ("link to nothing", ["--force"]), ("link to a page", []), ("link to a page", ["--force"]),
     ("fifo", []), ("directory", ["--force"])],
)  # fmt: skip
def test_something_else_in_place_of_a_page_is_refused(runs, tmp_path, outside, kind, force):
    store = stored(tmp_path / "store", runs[0])
    pages = tmp_path / "pages"
    pages.mkdir()
    page = pages / f"{RUN_ID}.html"
    if kind == "link to a page":
        done = nsyspipe_here("analyze", store, "--html", outside / "page.html", "-q")
        assert done.returncode == 0
        page.symlink_to(outside / "page.html")
    elif kind == "directory":
        page.mkdir()
    elif kind == "fifo":
        os.mkfifo(page)
    else:
        page.symlink_to(outside / ("mine" if kind == "link" else "new"))
    before = tree(tmp_path)
    done = nsyspipe_here("dashboard", store, "-o", tmp_path / "x.html", "--pages", pages, *force)
    assert done.returncode == 2
    assert str(page) in done.stderr
    assert tree(tmp_path) == before


def test_a_fifo_where_pages_may_be_is_not_waited_for(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0])
    (store / "pages").mkdir()
    os.mkfifo(store / "pages" / f"{RUN_ID}.html")
    done = nsyspipe_here("dashboard", store, "-o", tmp_path / "x.html")
    assert done.returncode == 0


def test_a_lock_that_somebody_holds_is_not_waited_for_without_end(runs, tmp_path, monkeypatch):
    store = stored(tmp_path / "store", runs[0])
    monkeypatch.setattr(commit, "_LONGEST_WAIT_S", 0.2)
    with (store / ".nsyspipe" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="is locked by another writer"):
            save(runs[1], store)
    save(runs[1], store)
