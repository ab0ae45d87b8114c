"""A writer that is killed, at whatever moment, never leaves a store that anybody reads wrongly."""

from __future__ import annotations

import random
import select
import shutil

import pytest

from tests.store.store_child import Saver
from tests.store.store_expected import Expected
from tests.store.store_tools import RUN_ID, TABLES, copied, left_behind

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
        saver.ask(
            "new" if number % 2 else "old", store, after_s=delay, events=number % 4 > 1, force=True
        )
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
def test_killed_before_each_change_that_a_replacement_makes(
    expected, saver, tmp_path, before, after
):
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
        assert saver.save(name, store, how="kill", at=at, events=at % 3 == 0, force=True) in (
            0,
            KILLED,
        )
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
