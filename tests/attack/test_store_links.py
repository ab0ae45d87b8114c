"""A store that somebody prepared, or changes while it is used, leads nowhere else and is never waited for."""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import stat
import threading

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
from tests.store.store_tools import RUN_ID, contents, copied, new_run, old_run, other_run, stored

HIDDEN = [".nsyspipe", ".nsyspipe/staging", ".nsyspipe/switch"]
OF_RUN = [f"{table}/run_id={RUN_ID}" for table in ("runs", "steps", "events")]
DIRECTORIES = [
    *HIDDEN,
    "runs",
    "steps",
    "metrics",
    "events",
    *OF_RUN,
    f"events/run_id={RUN_ID}/rank=0",
]
FILES = [
    ".nsyspipe/lock",
    *(f"{table}/run_id={RUN_ID}/part-0.parquet" for table in ("runs", "steps", "metrics")),
    f"events/run_id={RUN_ID}/rank=1/part-0.parquet",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = [make(folder) for make in (old_run, new_run, other_run)]
    return [
        nsyspipe.load(stored(folder / f"store{at}", run, events=True))
        for at, run in enumerate(made)
    ]


@pytest.fixture(scope="module")
def alone(runs, tmp_path_factory):
    """Return a store of the first run without operations, which tests copy."""
    return stored(tmp_path_factory.mktemp("alone") / "store", runs[0])


@pytest.fixture(scope="module")
def both(runs, tmp_path_factory):
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
    outside = tmp_path / "outside"
    files = [
        "part-0.parquet",
        "alive",
        "staging/x/alive",
        "switch/x/steps.parquet",
        "rank=0/part-0.parquet",
        "mine",
    ]
    for name in (*files, f"run_id={RUN_ID}/part-0.parquet"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text("mine")
    (outside / "empty").mkdir()
    return outside


def assert_same(found, run):
    assert found.steps().equals(run.steps())
    assert len(list(found.operations())) == 2


def tree(folder):
    """Return what is below a folder: where links lead, the bytes of files, and when both were changed."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)  # noqa: PTH118 - thousands of paths
            state = os.lstat(path)
            if stat.S_ISLNK(state.st_mode):
                found[path] = os.readlink(path), state.st_mtime_ns  # noqa: PTH115
            elif stat.S_ISREG(state.st_mode):
                with open(path, "rb") as file:  # noqa: PTH123
                    found[path] = file.read(), state.st_mtime_ns
            elif stat.S_ISDIR(state.st_mode):
                found[path] = None
    return found


def put(path, kind, outside):
    is_directory = path.is_dir()
    shutil.rmtree(path) if is_directory else path.unlink()
    mine = outside if is_directory else outside / "mine"
    targets = {"link": mine, "link to ..": "..", "link to nothing": outside / "new"}
    if kind in targets:
        path.symlink_to(targets[kind])
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
PUT = [
    pytest.param(name, kind, marks=marks)
    for at, name in enumerate([*DIRECTORIES, *FILES])
    for kind, marks in (
        ("link", ()),
        (KINDS[1 + 2 * at % 5], pytest.mark.slow),
        (KINDS[1 + (2 * at + 1) % 5], pytest.mark.slow),
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), PUT)
def test_writers_refuse_and_readers_do_not_follow_a_replaced_place(
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
        assert str(caught.value).startswith(f"{store}: has a"), force
        assert caught.value.fix, force
        assert tree(tmp_path) == before, force
    with contextlib.suppress(NsyspipeError):  # which ends a command with 2
        assert_same(nsyspipe.load(store, run_id=RUN_ID), runs[0])
    assert tree(tmp_path) == before


# What a switch may have in it that no writer leaves: texts of files, or what makes something else
# there.
PREPARED = {
    "a list of no files": {"files": '["x"]'},
    "a list without the files": {"files": '["runs.parquet"]'},
    "a list of no tables": {
        "files": '["launchers.parquet", "runs.parquet"]',
        "launchers.parquet": "x",
    },
    "a list of the user's own": {
        "files": '["mydata.parquet", "runs.parquet"]',
        "mydata.parquet": "x",
    },
    "a list of other places": {"files": '["../../outside/mine", "/etc/hosts", "steps.parquet"]'},
    "no list, and no table": {"launchers.parquet": "x"},
    "no list, and a table": {"steps.parquet": "x"},
    "another name": {"x..parquet": "x"},
    "a link": lambda folder, outside: (folder / "steps.parquet").symlink_to(outside / "mine"),
    "a fifo": lambda folder, outside: os.mkfifo(folder / "steps.parquet"),
    "a directory": lambda folder, outside: (folder / "steps.parquet").mkdir(),
    "files is a link": lambda folder, outside: (folder / "files").symlink_to(outside / "mine"),
    "files is no list": {"files": "{}"},
    "files is nested": {"files": "[" * 100_000},
    "files is a fifo": lambda folder, outside: os.mkfifo(folder / "files"),
    "a link in staging": lambda folder, outside: instead(
        folder, folder.parents[1] / "staging" / "link", outside
    ),
    "a link among the switches": lambda folder, outside: instead(
        folder, folder.parent / "link", outside
    ),
    "a link for the switch": lambda folder, outside: instead(folder, folder, outside),
}


def instead(folder, link, outside):
    folder.rmdir()
    link.symlink_to(outside)


@pytest.mark.parametrize(
    ("name", "run_id"),
    [
        (name, run_id)
        for at, name in enumerate(PREPARED)
        for run_id in ([RUN_ID, "planted"] if at < 7 else ["planted"])
    ],
)
def test_a_switch_that_somebody_prepared_is_refused_and_changes_nothing(
    runs, alone, tmp_path, outside, name, run_id, worded
):
    store = copied(alone, tmp_path / "store")
    switch = store / ".nsyspipe" / "switch" / run_id
    switch.mkdir()
    prepared = PREPARED[name]
    prepared(switch, outside) if callable(prepared) else None
    for file, text in () if callable(prepared) else prepared.items():
        (switch / file).write_text(text)
    before = tree(tmp_path)
    with pytest.raises(OutputError) as caught:
        save(runs[2], store, force=True)
    assert str(caught.value.fix).startswith(f"remove {store / '.nsyspipe'}/")
    worded(caught.value.problem)
    assert tree(tmp_path) == before
    if run_id != RUN_ID:
        assert nsyspipe.load(store, run_id=RUN_ID).steps().equals(runs[0].steps())


@pytest.mark.slow
def test_places_that_change_while_runs_are_saved_lead_nowhere(runs, tmp_path, outside, attempts):
    store = stored(tmp_path / "store", runs[0])
    before = tree(outside)
    done = threading.Event()
    n_changes = 0

    def change():
        nonlocal n_changes
        names = [
            "steps",
            "runs",
            ".nsyspipe/staging",
            ".nsyspipe/switch",
            f"kernels/run_id={RUN_ID}",
        ]
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
            with contextlib.suppress(OutputError):
                save(runs[number % 2], store, force=True)
    finally:
        done.set()
        attacker.join()
    attempts(n_saves)
    assert n_changes > n_saves
    assert tree(outside) == before


def ordinary_files(store, to):
    """Copy as rsync does without -L, and as object stores do: ordinary files alone."""
    for path in store.rglob("*"):
        if path.is_file() and not path.is_symlink():
            (to / path.relative_to(store)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to / path.relative_to(store))


@pytest.mark.slow
@pytest.mark.parametrize("copied_by", [shutil.copytree, ordinary_files])
def test_every_copy_reads_the_same_by_every_reader(runs, tmp_path, attempts, copied_by):
    attempts(len(DATASET))
    store, copy = stored(tmp_path / "store", runs[0], events=True), tmp_path / "copy"
    save(runs[2], store, events=True)
    copied_by(store, copy)
    assert contents(copy) == contents(store)
    for table in DATASET:
        n_rows = sum(
            len(pq.ParquetFile(path).read()) for path in (store / table).rglob("*.parquet")
        )
        glob = f"read_parquet('{copy}/{table}/**/*.parquet')"
        assert duckdb.sql(f"SELECT count(*) FROM {glob}").fetchall() == [(n_rows,)], table
        assert len(pd.read_parquet(copy / table, partitioning=None)) == n_rows, table
        assert pl.scan_parquet(copy / table).collect().height == n_rows, table
    for run in (runs[0], runs[2]):
        assert_same(nsyspipe.load(copy, run_id=run.run_id), run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "force"),
    [
        ("link", []),
        ("link to nothing", ["--force"]),
        ("link to a page", []),
        ("link to a page", ["--force"]),
        ("fifo", []),
        ("directory", ["--force"]),
    ],
)
def test_something_else_in_place_of_a_page_is_refused(alone, tmp_path, outside, kind, force):
    store, pages = copied(alone, tmp_path / "store"), tmp_path / "pages"
    pages.mkdir()
    page = pages / f"{RUN_ID}.html"
    if kind == "link to a page":
        assert (
            nsyspipe_here("analyze", store, "--html", outside / "page.html", "-q").returncode == 0
        )
    if kind.startswith("link"):
        page.symlink_to(
            outside
            / {"link": "mine", "link to nothing": "new", "link to a page": "page.html"}[kind]
        )
    else:
        page.mkdir() if kind == "directory" else os.mkfifo(page)
    before = tree(tmp_path)
    done = nsyspipe_here("dashboard", store, "-o", tmp_path / "x.html", "--pages", pages, *force)
    assert (done.returncode, str(page) in done.stderr) == (2, True)
    assert tree(tmp_path) == before


def test_a_fifo_and_a_lock_that_somebody_holds_are_not_waited_for_without_end(
    runs, tmp_path, monkeypatch, worded
):
    store = stored(tmp_path / "store", runs[0])
    (store / "pages").mkdir()
    os.mkfifo(store / "pages" / f"{RUN_ID}.html")
    assert nsyspipe_here("dashboard", store, "-o", tmp_path / "x.html").returncode == 0
    monkeypatch.setattr(commit, "_MAX_LOCK_WAIT_S", 0.2)
    with (store / ".nsyspipe" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutputError) as caught:
            save(runs[1], store)
    worded(caught.value.lines())
    save(runs[1], store)
