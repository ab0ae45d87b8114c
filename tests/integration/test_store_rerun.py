"""Saving a run again replaces exactly that run, with the same bytes when it is the same run."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.store.commit import replacing_run
from nsyspipe.store.write import save
from tests.integration.store_tools import (
    OTHER_ID,
    RUN_ID,
    TABLES,
    contents,
    left_behind,
    new_run,
    old_run,
    other_run,
    stored,
    write_reports,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return old_run(folder), new_run(folder), other_run(folder)


def of_run(found, run_id):
    return {path: read for path, read in found.items() if f"run_id={run_id}/" in path}


def files(store):
    """Return every published file as one that was not written again: its number and time of change."""
    stats = {path: path.stat() for path in store.glob("[!.]*/**/*.parquet")}
    return {str(path): (one.st_ino, one.st_mtime_ns) for path, one in stats.items()}


@pytest.mark.parametrize("events", [False, True])
def test_the_same_run_gives_the_same_bytes_in_as_many_files(runs, tmp_path, events):
    store = tmp_path / "store"
    save(runs[0], store, events=events)
    before = contents(store)
    assert len(before) == len(TABLES) + 4 * events
    for _ in range(2):
        save(runs[0], store, events=events)
        assert contents(store) == before
    assert contents(stored(tmp_path / "elsewhere", runs[0], events=events)) == before


def test_reports_that_are_analyzed_again_give_the_same_bytes(runs, tmp_path):
    again = old_run(tmp_path)
    first, second = (
        stored(tmp_path / f"store{at}", run) for at, run in enumerate((runs[0], again))
    )
    assert contents(first) == contents(second)


def test_a_rerun_replaces_its_run_and_touches_no_other(runs, tmp_path):
    old, new, other = runs
    store = stored(tmp_path / "store", other, events=True)
    of_other = files(store)
    save(old, store)
    save(new, store)
    assert of_run(contents(store), RUN_ID) == contents(stored(tmp_path / "alone", new))
    assert {path: found for path, found in files(store).items() if path in of_other} == of_other
    assert left_behind(store) == []


def test_a_rerun_without_operations_removes_those_of_its_run_only(runs, tmp_path):
    old, _, other = runs
    store = stored(tmp_path / "store", old, events=True)
    save(other, store, events=True)
    of_other = of_run(contents(store), OTHER_ID)
    save(old, store)
    assert contents(store) == of_other | contents(stored(tmp_path / "alone", old))
    assert not (store / "events" / f"run_id={RUN_ID}").exists()
    save(other, store)
    assert not (store / "events").exists()
    with pytest.raises(nsyspipe.NsyspipeError, match="saved without its operations"):
        nsyspipe.load(store, run_id=RUN_ID).operations()


def test_a_rerun_with_fewer_ranks_leaves_no_rank_behind(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0], events=True)
    one_rank = nsyspipe.load(
        write_reports(tmp_path / "reports", 1, n_ranks=1), run_id=RUN_ID, jobs=1
    )
    save(one_rank, store, events=True)
    found = sorted(path.name for path in (store / "events" / f"run_id={RUN_ID}").iterdir())
    assert found == ["rank=0"]
    assert nsyspipe.load(store).ranks.num_rows == 1


def test_a_table_that_only_a_later_version_has_goes_with_its_run(runs, tmp_path):
    store = tmp_path / "store"
    with replacing_run(store, RUN_ID) as staged:
        for path in nsyspipe.load(stored(tmp_path / "alone", runs[1])).tables.iterdir():
            shutil.copy(path, staged)
        pq.write_table(pa.table({"run_id": [RUN_ID]}), staged / "later.parquet")
    assert (store / "later" / f"run_id={RUN_ID}" / "part-0.parquet").exists()
    save(runs[0], store)
    assert not (store / "later").exists()
    assert contents(store) == contents(stored(tmp_path / "old", runs[0]))


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"x" * 5000])
def test_a_damaged_run_can_be_replaced(runs, tmp_path, damage):
    store = stored(tmp_path / "store", runs[0], events=True)
    for path in nsyspipe.load(store).tables.iterdir():
        path.write_bytes(damage)
    save(runs[1], store)
    assert contents(store) == contents(stored(tmp_path / "new", runs[1]))
    assert left_behind(store) == []


def test_a_saved_run_saved_where_it_is_stays_as_it_is(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0], events=True)
    before = contents(store)
    save(nsyspipe.load(store), store, events=True)
    assert contents(store) == before
    save(nsyspipe.load(store, label="new name"), store)
    assert nsyspipe.load(store).header.label == "new name"


def test_a_run_whose_operations_fail_leaves_the_store_as_it_was(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0])
    before = contents(store)
    without = nsyspipe.load(stored(tmp_path / "alone", runs[1]))
    with pytest.raises(nsyspipe.NsyspipeError, match="saved without its operations"):
        save(without, store, events=True)
    assert (contents(store), left_behind(store)) == (before, [])
