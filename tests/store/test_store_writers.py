"""Several writers and readers of one store at once: all succeed, and nobody meets half a run."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.errors import DatasetError
from nsyspipe.store.commit import staged_run
from nsyspipe.store.write import save
from tests.store.store_child import Saver
from tests.store.store_expected import Expected
from tests.store.store_tools import (
    RUN_ID,
    left_behind,
    new_run,
    old_run,
    other_run,
    places,
    stored,
)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return Expected(tmp_path_factory.mktemp("expected"))


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
