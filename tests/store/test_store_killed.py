"""A store while runs are saved in it: writers that are killed, interrupted, or many."""

from __future__ import annotations

import random
import select
import shutil

import pytest

import nsyspipe
from nsyspipe.errors import DatasetError
from nsyspipe.store.commit import staged_run
from nsyspipe.store.write import save
from tests.store.store_child import INTERRUPTED, REFUSED, Saver
from tests.store.store_expected import Expected
from tests.store.store_tools import (
    RUN_ID,
    TABLES,
    contents,
    copied,
    left_behind,
    new_run,
    old_run,
    other_run,
    places,
    stored,
)

pytestmark = pytest.mark.slow
KILLED = -9


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return Expected(tmp_path_factory.mktemp("expected"))


@pytest.fixture(scope="module")
def saver(expected):
    saver = Saver(**expected.stores)
    yield saver
    saver.close()


@pytest.fixture
def store(tmp_path, saver):
    """Return a store with the old run and the other one."""
    path = tmp_path / "store"
    assert saver.save("old", path) == saver.save("other", path) == 0
    return path


def test_every_table_of_the_old_run_differs_from_the_new_ones(expected):
    for table in TABLES:
        if table == "host_steps":  # of runs without device activity only
            assert table not in expected.sums["old"]
            continue
        assert expected.sums["old"].get(table) != expected.sums["new"].get(table)


def test_killed_at_random_moments_200_times(expected, saver, store):
    chosen = random.Random(4)
    saver.ask("old", store, events=True)
    most_s = saver.answer()["seconds"]
    statuses, seen = [], []
    for number in range(200):
        delay = chosen.uniform(0, most_s)
        saver.ask("new" if number % 2 else "old", store, after_s=delay, events=number % 4 > 1, force=True)
        while not select.select([saver.process.stdout], [], [], 0)[0]:
            expected.meanwhile(store)
        statuses.append(saver.answer()["status"])
        most_s *= 1.05 if statuses[-1] == KILLED else 0.9  # however busy the machine is by then
        seen.append(expected.whole(store))
    assert statuses.count(KILLED) > 50
    assert set(seen) == {"old", "new"}
    assert saver.save("new", store, force=True) == 0
    assert expected.whole(store) == "new"
    assert left_behind(store) == []


REPLACED = [({}, {}), ({}, {"events": True}), ({"events": True}, {"force": True})]
NAMES = ["replaced", "operations-added", "operations-dropped"]


@pytest.mark.parametrize(("before", "after"), REPLACED, ids=NAMES)
def test_killed_before_each_change_that_a_replacement_makes(expected, saver, tmp_path, before, after):
    def prepare(store):
        assert saver.save("other", store) == saver.save("old", store, **before) == 0

    store = killed_everywhere(expected, saver, tmp_path, prepare, after, ("old", "new"))
    assert any(store.glob("events/*/*/*")) == after.get("events", False)


@pytest.mark.parametrize("n_others", [0, 1], ids=["first", "beside-another"])
def test_killed_before_each_change_that_a_new_run_makes(expected, saver, tmp_path, n_others):
    def prepare(store):
        assert sum(saver.save("other", store) for _ in range(n_others)) == 0

    killed_everywhere(expected, saver, tmp_path, prepare, {"events": True}, (None, "new"))


def killed_everywhere(expected, saver, folder, prepare, options, states):
    """Kill a writer of the new run before its first change, its second, ...; return the store of the last one."""
    seen, status, at = [], KILLED, 0
    prepare(folder / "before")
    while status == KILLED:
        at += 1
        store = copied(folder / "before", folder / f"store{at}")
        status = saver.save("new", store, how="kill", at=at, **options)
        seen.append(expected.whole(store))
        assert saver.save("other", store) == 0  # the next writer clears up
        assert (expected.by_files(store), left_behind(store)) == (seen[-1], [])
    # Up to some change it is as it was, from there on it is new; some were killed after that one.
    n_before = seen.index(states[1])
    assert (status, n_before > 10) == (0, True)
    assert seen == [states[0]] * n_before + [states[1]] * (at - n_before)
    assert at > n_before + 1
    return store


@pytest.mark.parametrize("name", ["old", "new"])
def test_killed_while_clearing_up_what_a_killed_one_left(expected, saver, store, name):
    # Whatever one leaves, the next begins with, and is killed one change later.
    for at in range(1, 50):
        assert saver.save(name, store, how="kill", at=at, events=at % 3 == 0, force=True) in (0, KILLED)
        assert expected.whole(store) in ("old", name)
    assert saver.save(name, store, force=True) == 0
    assert (expected.whole(store), left_behind(store)) == (name, [])


def test_runs_that_the_user_removes_are_gone_and_can_be_saved_again(expected, saver, store):
    for at in range(1, 50):
        for directory in store.glob(f"*/run_id={RUN_ID}"):
            shutil.rmtree(directory)
        shutil.rmtree(store / ".nsyspipe" / "switch" / RUN_ID, ignore_errors=True)
        assert expected.whole(store) is None
        saver.save("new", store, how="kill", at=at)
        assert expected.whole(store) in (None, "new")
    assert saver.save("new", store) == 0
    assert (expected.whole(store), left_behind(store)) == ("new", [])


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize(("how", "status"), [("full", REFUSED), ("interrupt", INTERRUPTED)])
def test_stopped_at_each_change_a_replacement_is_made_or_nothing_is(expected, saver, tmp_path, how, status, events):
    seen, found, at = [], status, 0
    assert saver.save("other", tmp_path / "before") == saver.save("old", tmp_path / "before") == 0
    while found == status:
        at += 1
        store = copied(tmp_path / "before", tmp_path / f"store{at}")
        before = contents(store)
        found = saver.save("new", store, how=how, at=at, events=events)
        assert found in (0, status)
        seen.append(expected.whole(store))
        if seen[-1] == "old":
            assert contents(store) == before
        if how == "full":  # refused is as it was, and what is not refused is done
            assert seen[-1] == {REFUSED: "old", 0: "new"}[found]
            assert left_behind(store) == []
        assert saver.save("new", store, force=True) == 0
        assert (expected.by_files(store), left_behind(store)) == ("new", [])
    assert at > 10


@pytest.mark.parametrize(("how", "status"), [("full", REFUSED), ("interrupt", INTERRUPTED)])
def test_stopped_at_each_change_a_first_run_is_made_or_no_store_is(expected, saver, tmp_path, how, status):
    found, at = status, 0
    while found == status:
        at += 1
        folder = tmp_path / f"folder{at}"
        store = folder / "store"
        found = saver.save("new", store, how=how, at=at)
        assert found in (0, status)
        which = expected.by_files(store) if store.exists() else None
        if how == "full":
            assert which == {REFUSED: None, 0: "new"}[found]
            assert folder.exists() == (found == 0)
        assert saver.save("new", store) == 0
        assert (expected.whole(store), left_behind(store)) == ("new", [])
    assert at > 10


@pytest.fixture(scope="module")
def savers(expected):
    found = [Saver(**expected.stores) for _ in range(2)]
    yield found
    for saver in found:
        saver.close()


@pytest.mark.slow
@pytest.mark.parametrize("names", [("old", "new"), ("new", "other")], ids=["one-run", "two-runs"])
def test_two_writers_at_once_both_succeed(expected, savers, tmp_path, names):
    seen = set()
    for number in range(60):
        store = tmp_path / f"store{number // 20}"  # also as the first ones of a store
        for saver, name in zip(savers, names, strict=True):
            saver.ask(name, store, events=number % 3 == 0, force=True)
        assert [saver.answer()["status"] for saver in savers] == [0, 0]
        seen.add(expected.whole(store))
        assert left_behind(store) == []
    assert seen == set(names) - {"other"}


@pytest.mark.slow
def test_a_reader_never_fails_while_two_writers_replace_what_it_reads(expected, savers, tmp_path):
    store = tmp_path / "store"
    assert savers[0].save("old", store) == savers[0].save("other", store) == 0
    for number in range(40):
        savers[0].ask("new" if number % 2 else "old", store)
        savers[1].ask("other", store, events=True)
        expected.meanwhile(store)
        assert [saver.answer()["status"] for saver in savers] == [0, 0]
    assert savers[0].save("new", store) == 0
    assert expected.whole(store) == "new"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return old_run(folder), new_run(folder), other_run(folder)


def test_a_run_that_was_opened_stays_what_it_was_when_it_is_replaced(runs, tmp_path):
    old, new, other = runs
    store = stored(tmp_path / "store", old, events=True)
    opened = nsyspipe.load(store)
    assert opened.header == old.header
    save(new, store, events=True, force=True)
    assert opened.steps().equals(old.steps())
    assert opened.kernels().equals(old.kernels())
    assert opened.findings().equals(old.findings())
    # All of them may be more than memory holds: they alone are read when they are asked for.
    with pytest.raises(DatasetError, match="was replaced or removed while it was read") as caught:
        list(opened.operations())
    assert caught.value.fix == "read it again"
    assert nsyspipe.load(store, run_id=RUN_ID).steps().equals(new.steps())
    save(other, store)
    assert opened.steps().equals(old.steps())


def copy_of(run, folder, staged):
    """Put the files of a run where a writer puts its own."""
    for name, path in places(stored(folder, run)).items():
        with staged.create(f"{name}.parquet") as file:
            file.write(path.read_bytes())


def test_a_writer_that_was_killed_is_cleared_up_after_but_not_one_that_lives(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0])
    staging = store / ".nsyspipe" / "staging"
    (staging / "killed").mkdir()
    (staging / "killed" / "alive").touch()
    (staging / "killed" / "tables").mkdir()
    (staging / "killed-at-once").mkdir()
    with staged_run(store, "slow") as staged:
        (own,) = staging.iterdir()
        save(runs[1], store)
        assert list(staging.iterdir()) == [own]
        copy_of(runs[1], tmp_path / "alone", staged)
        with staged.locked() as opened:
            opened.commit(staged, ())
    assert left_behind(store) == []
    assert nsyspipe.load(store, run_id="slow").steps().equals(runs[1].steps())


def test_a_writer_that_fails_does_not_take_away_the_store_of_one_that_lives(runs, tmp_path):
    store = tmp_path / "store"
    with staged_run(store, "slow") as staged:
        with pytest.raises(KeyboardInterrupt), staged_run(store, "fast"):
            raise KeyboardInterrupt
        copy_of(runs[0], tmp_path / "alone", staged)
        with staged.locked() as opened:
            opened.commit(staged, ())
    assert nsyspipe.load(store, run_id="slow").steps().equals(runs[0].steps())
    with pytest.raises(KeyboardInterrupt), staged_run(tmp_path / "new" / "store", "fast"):
        raise KeyboardInterrupt
    assert not (tmp_path / "new").exists()
