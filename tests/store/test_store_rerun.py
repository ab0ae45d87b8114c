"""Saving a run again replaces exactly that run, with the same bytes when it is the same run."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.errors import OutputError
from nsyspipe.store.write import save
from tests.store import store_tools
from tests.store.store_tools import OTHER_ID, RUN_ID, contents, left_behind, old_run, places, stored, write_reports


def of_run(found, run_id):
    return {path: read for path, read in found.items() if f"run_id={run_id}/" in path}


def files(store):
    """Return every published file as one that was not written again: its number and time of change."""
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in store.glob("[!.]*/**/*.parquet")}


def test_the_same_run_gives_the_same_bytes_in_as_many_files(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0], events=True)
    before = contents(store)
    assert len(before) == len(store_tools.TABLES) + 4
    # Saved again, what was saved, and elsewhere; and of reports that are analyzed again.
    for run in (runs[0], runs[0], nsyspipe.load(store)):
        save(run, store, events=True)
        assert contents(store) == before
    for number, run in enumerate((runs[0], old_run(tmp_path))):
        assert contents(stored(tmp_path / f"elsewhere{number}", run, events=True)) == before


def test_a_rerun_replaces_its_run_and_touches_no_other(runs, tmp_path):
    old, new, other = runs
    store = stored(tmp_path / "store", other, events=True)
    of_other = files(store)
    save(old, store)
    save(new, store)
    assert of_run(contents(store), RUN_ID) == contents(stored(tmp_path / "alone", new))
    assert {path: found for path, found in files(store).items() if path in of_other} == of_other
    assert left_behind(store) == []


def test_a_rerun_without_operations_keeps_those_of_the_same_run(runs, tmp_path):
    old, _, other = runs
    store = stored(tmp_path / "store", old, events=True)
    save(other, store, events=True)
    before, kept = contents(store), files(store)
    for run in (old, other, nsyspipe.load(store, run_id=RUN_ID)):
        save(run, store)
        assert contents(store) == before
    of_operations = [path for path in kept if "/events/" in path or "/phase_ranges/" in path]
    assert [files(store)[path] for path in of_operations] == [kept[path] for path in of_operations]
    assert len(of_operations) == 8
    found = nsyspipe.load(store, run_id=RUN_ID).operations()
    for (_, *ours), (_, *theirs) in zip(old.operations(), found, strict=True):
        assert all(map(pa.Table.equals, ours, theirs))


def test_another_name_or_what_else_is_known_of_a_run_does_not_cost_its_operations(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0], events=True)
    save(nsyspipe.load(store, label="new"), store)
    assert nsyspipe.load(store).header.label == "new"
    assert len(list(nsyspipe.load(store).operations())) == 2
    without_log = nsyspipe.load(write_reports(tmp_path / "reports", 1), run_id=RUN_ID, jobs=1)
    save(without_log, store)
    found = nsyspipe.load(store)
    assert found.nccl is None
    assert len(list(found.operations())) == 2


@pytest.mark.parametrize("options", [{"step": "backward"}, {"comm_kernel": "gemm"}])
def test_the_same_reports_read_otherwise_do_not_keep_operations_nor_lose_them(runs, tmp_path, options):
    store = stored(tmp_path / "store", runs[0], events=True)
    before = contents(store)
    reports = write_reports(tmp_path / "reports", 1)
    otherwise = nsyspipe.load(reports, run_id=RUN_ID, jobs=1, **options)
    with pytest.raises(OutputError, match="has events, phase_ranges of run nightly") as caught:
        save(otherwise, store)
    assert "--force" in caught.value.fix
    assert (contents(store), left_behind(store)) == (before, [])


def test_operations_of_other_reports_are_lost_only_by_force(runs, tmp_path):
    old, new, other = runs
    store = stored(tmp_path / "store", old, events=True)
    save(other, store, events=True)
    before = contents(store)
    with pytest.raises(OutputError, match="of other reports, or read with other options"):
        save(new, store)
    assert (contents(store), left_behind(store)) == (before, [])
    save(new, store, force=True)
    assert contents(store) == of_run(before, OTHER_ID) | contents(stored(tmp_path / "alone", new))
    assert not (store / "events" / f"run_id={RUN_ID}").exists()
    with pytest.raises(nsyspipe.NsyspipeError, match="saved without its operations"):
        nsyspipe.load(store, run_id=RUN_ID).operations()
    save(old, store, events=True, force=True)  # those that are there are written again
    assert contents(store) == before


@pytest.mark.parametrize(("events", "damage", "words"), [
    (True, lambda files: files["steps"].write_bytes(b"damaged"), "has events, phase_ranges"),
    (False, lambda files: files["runs"].unlink(), "of run nightly, and no such run"),
])  # fmt: skip
def test_operations_of_a_damaged_run_and_files_of_no_run_are_lost_only_by_force(runs, tmp_path, events, damage, words):
    store = stored(tmp_path / "store", runs[0], events=events)
    damage(places(store))
    before = contents(store)
    with pytest.raises(OutputError, match=words):
        save(runs[0], store)
    assert contents(store) == before
    save(runs[0], store, events=events, force=True)
    assert contents(store) == contents(stored(tmp_path / "alone", runs[0], events=events))


def test_a_rerun_with_fewer_ranks_leaves_no_rank_behind(runs, tmp_path):
    store = stored(tmp_path / "store", runs[0], events=True)
    one_rank = nsyspipe.load(write_reports(tmp_path / "reports", 1, n_ranks=1), run_id=RUN_ID, jobs=1)
    before = contents(store)
    for run in (one_rank, runs[1]):
        with pytest.raises(OutputError, match="has events, phase_ranges of run nightly"):
            save(run, store, events=True)
        assert (contents(store), left_behind(store)) == (before, [])
    save(one_rank, store, events=True, force=True)
    assert [path.name for path in (store / "events" / f"run_id={RUN_ID}").iterdir()] == ["rank=0"]
    assert nsyspipe.load(store).ranks.num_rows == 1


def test_a_dataset_of_somebody_else_is_no_reason_to_refuse_and_stays(runs, tmp_path):
    store = tmp_path / "store"
    later = store / "mydata" / f"run_id={RUN_ID}" / "part-0.parquet"
    later.parent.mkdir(parents=True)
    pq.write_table(pa.table({"run_id": [RUN_ID]}), later)
    before = later.read_bytes()
    for run in runs[:2]:
        save(run, store, force=run is runs[1])
        assert later.read_bytes() == before
    shutil.rmtree(store / "mydata")
    assert contents(store) == contents(stored(tmp_path / "new", runs[1]))


def test_a_damaged_run_can_be_replaced_and_one_whose_operations_fail_changes_nothing(runs, tmp_path):
    store, alone = stored(tmp_path / "store", runs[0]), stored(tmp_path / "new", runs[1])
    before = contents(store)
    with pytest.raises(nsyspipe.NsyspipeError, match="saved without its operations"):
        save(nsyspipe.load(alone), store, events=True)
    assert (contents(store), left_behind(store)) == (before, [])
    for path in places(store).values():
        path.write_bytes(b"x" * 5000)
    save(runs[1], store)
    assert (contents(store), left_behind(store)) == (contents(alone), [])
