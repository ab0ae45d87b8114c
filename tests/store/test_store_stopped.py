"""A writer that is interrupted, or meets a full disk at whatever moment, leaves the store as it was."""

from __future__ import annotations

import pytest

from tests.store.store_child import INTERRUPTED, REFUSED, Saver
from tests.store.store_expected import Expected
from tests.store.store_tools import contents, copied, left_behind

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return Expected(tmp_path_factory.mktemp("expected"))


@pytest.fixture(scope="module")
def saver(expected):
    saver = Saver(**expected.stores)
    yield saver
    saver.close()


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize(("how", "status"), [("full", REFUSED), ("interrupt", INTERRUPTED)])
def test_stopped_at_each_change_a_replacement_is_made_or_nothing_is(
    expected, saver, tmp_path, how, status, events
):
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
def test_stopped_at_each_change_a_first_run_is_made_or_no_store_is(
    expected, saver, tmp_path, how, status
):
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
