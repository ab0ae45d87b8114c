"""A store while runs are saved in it: writers that are killed, interrupted, or many."""

import random
import shutil

import pytest

import nsyspipe
from nsyspipe.errors import DatasetError
from nsyspipe.store.commit import locked, staged_run
from nsyspipe.store.write import save
from tests.store.store_child import INTERRUPTED, REFUSED, Saver
from tests.store.store_expected import Expected
from tests.store.store_tools import RUN_ID, TABLES, contents, copied, left_behind, places, stored

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
    path = tmp_path / "store"
    assert saver.save("old", path) == saver.save("other", path) == 0
    return path


def test_every_table_of_the_old_run_differs_from_the_new_ones(expected):
    old, new = expected.sums["old"], expected.sums["new"]
    # Of runs without device activity, with counters, and with samples of Python only.
    lanes = {"counter_bars", "line_bars", "peers"}
    absent = {"host_steps", "counters", "host_lines", *lanes} - old.keys()
    assert {table for table in TABLES if old.get(table) == new.get(table)} == absent


def test_killed_at_random_moments(expected, saver, store):
    chosen = random.Random(4)
    saver.ask("old", store, events=True)
    most_s = saver.answer()["seconds"]
    statuses, seen = [], []
    for number in range(24):
        delay = chosen.uniform(0, most_s)
        saver.ask(
            "new" if number % 2 else "old", store, after_s=delay, events=number % 4 > 1, force=True
        )
        if number % 4 == 0:
            expected.meanwhile(store)
        statuses.append(saver.answer()["status"])
        most_s *= 1.05 if statuses[-1] == KILLED else 0.9  # however busy the machine is by then
        seen.append(expected.whole(store))
    assert statuses.count(KILLED) > 5
    assert set(seen) == {"old", "new"}
    assert saver.save("new", store, force=True) == 0
    assert (expected.whole(store), left_behind(store)) == ("new", [])


def clear_up(store):  # as the next writer does
    with staged_run(store, "next"):
        pass


@pytest.mark.parametrize(
    ("runs_before", "before", "after", "states"),
    [
        pytest.param([], {}, {"events": True}, (None, "new"), id="first"),
        pytest.param(["other"], {}, {"events": True}, (None, "new"), id="beside-another"),
        pytest.param(["other", "old"], {}, {"events": True}, ("old", "new"), id="operations-added"),
        pytest.param(
            ["other", "old"],
            {"events": True},
            {"force": True},
            ("old", "new"),
            id="operations-dropped",
        ),
    ],
)
def test_killed_between_changes_of_each_kind(
    expected, saver, tmp_path, runs_before, before, after, states
):
    for name in runs_before:
        assert saver.save(name, tmp_path / "before", **before) == 0, name
    seen = []
    for at in saver.points("new", copied(tmp_path / "before", tmp_path / "points"), **after):
        store = copied(tmp_path / "before", tmp_path / f"store{at}")
        status = saver.save("new", store, how="kill", at=at, **after)
        seen.append(expected.whole(store))
        clear_up(store)
        assert (expected.by_files(store), left_behind(store)) == (seen[-1], []), at
    # Up to some change it is as it was, from there on it is new; some were killed after that one.
    n_before = seen.index(states[1])
    assert seen == [states[0]] * n_before + [states[1]] * (len(seen) - n_before)
    assert (status, n_before > 3, len(seen) > n_before + 1) == (0, True, True)
    assert any(store.glob(f"events/run_id={RUN_ID}/*/*")) == after.get("events", False)


@pytest.mark.parametrize(("name", "is_removed"), [("old", False), ("new", False), ("new", True)])
def test_killed_while_clearing_up_what_a_killed_one_or_the_user_left(
    expected, saver, store, name, is_removed
):
    # Whatever one leaves, the next begins with, and is killed some changes later; the user may
    # remove the run before.
    options = {} if is_removed else {"force": True}
    for at in range(1, 60, 5):
        for directory in store.glob(f"*/run_id={RUN_ID}") if is_removed else ():
            shutil.rmtree(directory)
        if is_removed:
            shutil.rmtree(store / ".nsyspipe" / "switch" / RUN_ID, ignore_errors=True)
            assert expected.whole(store) is None, at
        status = saver.save(
            name, store, how="kill", at=at, events=at % 3 == 0 and not is_removed, **options
        )
        assert status in (0, KILLED), at
        assert expected.whole(store) in (None if is_removed else "old", name), at
    assert saver.save(name, store, **options) == 0
    assert (expected.whole(store), left_behind(store)) == (name, [])


STOPPED = {"full": REFUSED, "interrupt": INTERRUPTED}


@pytest.mark.parametrize(
    ("how", "events", "old"),
    [("full", True, "old"), ("interrupt", False, "old"), *((how, False, None) for how in STOPPED)],
)
def test_stopped_between_changes_a_run_is_made_or_replaced_or_not(
    expected, saver, tmp_path, how, events, old
):
    for name in ("other", old) if old else ():
        assert saver.save(name, tmp_path / "before") == 0, name
    for at in saver.points("new", copied(tmp_path / "before", tmp_path / "points"), events=events):
        store = copied(tmp_path / "before", tmp_path / f"folder{at}" / "store")
        before = contents(store)
        status = saver.save("new", store, how=how, at=at, events=events)
        assert status in (0, STOPPED[how]), at
        which = expected.whole(store)
        if which == old:
            assert contents(store) == before, at
        if how == "full":  # refused is as it was, and what is not refused is done
            assert which == {REFUSED: old, 0: "new"}[status], at
            assert store.parent.exists() == bool(old or which), at
            assert not store.exists() or left_behind(store) == [], at
        if old:
            clear_up(store)
        else:
            assert saver.save("new", store) == 0, at
        assert (expected.by_files(store), left_behind(store)) == (which if old else "new", []), at
    assert status == 0


@pytest.fixture(scope="module")
def savers(expected, saver):
    other = Saver(**expected.stores)
    yield saver, other
    other.close()


@pytest.mark.parametrize("names", [("old", "new"), ("new", "other")], ids=["one-run", "two-runs"])
def test_two_writers_at_once_both_succeed(expected, savers, tmp_path, names):
    seen = set()
    for number in range(9):
        store = tmp_path / f"store{number // 3}"  # also as the first ones of a store
        for saver, name in zip(savers, names, strict=True):
            saver.ask(name, store, events=number % 3 == 0, force=True)
        assert [saver.answer()["status"] for saver in savers] == [0, 0], number
        seen.add(expected.whole(store))
        assert left_behind(store) == [], number
    assert seen == set(names) - {"other"}


def test_a_reader_never_fails_while_two_writers_replace_what_it_reads(expected, savers, tmp_path):
    store = tmp_path / "store"
    assert savers[0].save("old", store) == savers[0].save("other", store) == 0
    for number in range(6):
        savers[0].ask("new" if number % 2 else "old", store)
        savers[1].ask("other", store, events=True)
        expected.meanwhile(store)
        assert [saver.answer()["status"] for saver in savers] == [0, 0], number
    assert savers[0].save("new", store) == 0
    assert expected.whole(store) == "new"


def test_a_run_that_was_opened_stays_what_it_was_when_it_is_replaced(runs, tmp_path, worded):
    old, new, other = runs
    store = stored(tmp_path / "store", old, events=True)
    opened = nsyspipe.load(store)
    assert opened.header == old.header
    save(new, store, events=True, force=True)
    assert all(
        getattr(opened, name)().equals(getattr(old, name)())
        for name in ("steps", "kernels", "findings")
    )
    # All of them may be more than memory holds: they alone are read when they are asked for.
    with pytest.raises(DatasetError, match="replaced") as caught:
        list(opened.operations())
    worded(caught.value.lines())
    assert nsyspipe.load(store, run_id=RUN_ID).steps().equals(new.steps())
    save(other, store)
    assert opened.steps().equals(old.steps())


def commit_copy_of(run, folder, store, staged):
    """Put the files of a run where a writer puts its own, and end as it does."""
    for name, path in places(stored(folder, run)).items():
        with staged.tables.create(f"{name}.parquet") as file:
            file.write(path.read_bytes())
    with locked(store) as opened:
        opened.commit(staged, ())


def test_a_writer_that_was_killed_is_cleared_up_after_but_not_one_that_lives(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0])
    staging = store / ".nsyspipe" / "staging"
    for name in ("killed/tables", "killed-at-once"):
        (staging / name).mkdir(parents=True)
    (staging / "killed" / "alive").touch()
    with staged_run(store, "slow") as staged:
        (own,) = staging.iterdir()
        save(runs[1], store)
        assert list(staging.iterdir()) == [own]
        commit_copy_of(runs[1], tmp_path / "alone", store, staged)
    assert left_behind(store) == []
    assert nsyspipe.load(store, run_id="slow").steps().equals(runs[1].steps())


def test_a_writer_that_fails_does_not_take_away_the_store_of_one_that_lives(runs, tmp_path):
    store = tmp_path / "store"
    with staged_run(store, "slow") as staged:
        with pytest.raises(KeyboardInterrupt), staged_run(store, "fast"):
            raise KeyboardInterrupt
        commit_copy_of(runs[0], tmp_path / "alone", store, staged)
    assert nsyspipe.load(store, run_id="slow").steps().equals(runs[0].steps())
    with pytest.raises(KeyboardInterrupt), staged_run(tmp_path / "new" / "store", "fast"):
        raise KeyboardInterrupt
    assert not (tmp_path / "new").exists()
