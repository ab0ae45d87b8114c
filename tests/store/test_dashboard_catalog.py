"""All runs of a store: in order, with what each found first; one that cannot be read hides no other."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.errors import DatasetError
from nsyspipe.model.schema import DATASET
from nsyspipe.store.choice import labels_by_time
from nsyspipe.store.index import INDEX, read_index, stored_runs
from nsyspipe.store.write import save
from tests.build.trace import steady_rank
from tests.dashboard_store import add_run, days, file_of, finding_row, run_row, write


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


# By time of capture whatever their ids; an unknown one is never the latest, equal ones go by id.
@pytest.mark.parametrize(
    ("captured", "order"),
    [({"a": 3, "b": 1, "c": 2}, "bca"), ({"d": 1, "b": None, "c": 1, "a": None}, "abcd")],
)
def test_runs_come_in_order_each_with_the_finding_that_could_bring_most(store, captured, order):
    for run_id, day in captured.items():
        findings = (
            [finding_row(id="comm-bound"), finding_row(id="grad-copy")] if run_id == "a" else []
        )
        add_run(
            store, run_id, captured_at_utc=None if day is None else days(day), findings=findings
        )
    seen = []
    found = stored_runs(store, on_progress=lambda *counts: seen.append(counts))
    assert found.runs["run_id"].to_pylist() == [*order]
    assert found.runs.schema.equals(INDEX.arrow, check_metadata=True)
    assert found.unreadable == ()
    firsts = {
        row["run_id"]: (row["n_findings"], row["first_finding"]) for row in found.runs.to_pylist()
    }
    assert firsts == dict.fromkeys(captured, (0, None)) | {"a": (2, "comm-bound")}
    assert seen == [(at, len(order)) for at in range(1, len(order) + 1)]


def rewritten(change):
    return lambda path: pq.write_table(change(pq.read_table(path, partitioning=None)), path)


FAR = pa.array([2**62]).cast(pa.timestamp("us", "UTC"))
later_version = rewritten(lambda table: table.replace_schema_metadata({b"schema_version": b"99"}))
DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:200]),
    "empty": lambda path: path.write_bytes(b""),
    "later version": later_version,
    "other types": rewritten(lambda table: table.set_column(1, "label", pa.array([[1, 2]]))),
    "null label": rewritten(
        lambda table: table.set_column(1, "label", pa.array([None], pa.string()))
    ),
    "time beyond all dates": rewritten(
        lambda table: table.drop_columns(["captured_at_utc"]).append_column("captured_at_utc", FAR)
    ),
    "no row": lambda path: pq.write_table(DATASET["runs"].empty(), path),
    "two rows": lambda path: pq.write_table(DATASET["runs"].from_rows([run_row("bad")] * 2), path),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_told_and_hides_no_other(store, damage):
    for run_id in ("bad", "good"):
        add_run(store, run_id, findings=[finding_row()])
    DAMAGE[damage](file_of(store, "runs", "bad"))
    found = stored_runs(store)
    assert found.runs["run_id"].to_pylist() == ["good"]
    (told,) = found.unreadable
    assert (told.run_id, told.table, bool(told.message), bool(told.fix)) == (
        "bad",
        "runs",
        True,
        True,
    )
    if damage == "later version":
        assert ("99" in told.message, told.fix) == (True, "a newer nsyspipe")


def test_the_directory_says_which_run_it_is(store):
    write(store, "runs", "here", [run_row("elsewhere")])
    assert stored_runs(store).runs["run_id"].to_pylist() == ["here"]


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory):
    """Return runs of the same reports with the ids a to d; each is analyzed once for all tests."""
    folder = tmp_path_factory.mktemp("reports")
    for rank in range(2):
        steady_rank(rank).write(folder / f"steady_{rank}.sqlite")
    return {
        run_id: nsyspipe.load(folder, run_id=run_id, label="of the file", jobs=1)
        for run_id in "abcd"
    }


@pytest.fixture
def indexed(analyzed, store):
    for run_id in "abc":
        save(analyzed[run_id], store)
    found = read_index(store)
    assert found["run_id"].to_pylist() == [*"abc"]
    labels = pa.array(["of the index"] * 3)
    pq.write_table(
        found.set_column(2, INDEX.arrow.field("label"), labels), store / ".nsyspipe" / "index"
    )
    return store


def test_the_index_is_believed_of_no_file_but_the_one_it_was_made_of(indexed):
    assert [*labels_by_time(indexed).values()] == ["of the index"] * 3
    write(indexed, "runs", "a", [run_row("a", label="replaced")])
    file_of(indexed, "runs", "b").rename(file_of(indexed, "runs", "c"))
    assert labels_by_time(indexed) == {"a": "replaced", "c": "of the file"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: index.unlink(),
        lambda index: index.write_bytes(b""),
        lambda index: index.write_bytes(index.read_bytes()[:-9]),
        later_version,
        rewritten(lambda table: table.set_column(2, "label", pa.nulls(3, pa.string()))),
        lambda index: index.rename(index.with_name("other")) and index.symlink_to("other"),
        lambda index: index.unlink() or index.mkdir(),
    ],
)
def test_a_store_reads_the_same_without_an_index_that_can_be_used(indexed, damage):
    damage(indexed / ".nsyspipe" / "index")
    assert [*labels_by_time(indexed).values()] == ["of the file"] * 3


@pytest.mark.slow
def test_a_label_of_millions_of_characters_is_cut_in_the_index_and_in_the_run(indexed):
    index, cut = indexed / ".nsyspipe" / "index", "x" * 500
    rewritten(lambda table: table.set_column(2, "label", pa.array(["x" * 5_000_000] * 3)))(index)
    assert labels_by_time(indexed) == dict.fromkeys("abc", cut)
    rewritten(lambda table: table.set_column(1, "label", pa.array(["x" * 5_000_000])))(
        file_of(indexed, "runs", "a")
    )
    assert labels_by_time(indexed) == {"a": cut, "b": cut, "c": cut}
    index.unlink()
    assert labels_by_time(indexed) == {"a": cut, "b": "of the file", "c": "of the file"}
    assert nsyspipe.load(indexed, run_id="a").label == cut


@pytest.mark.slow
def test_who_saves_brings_the_index_up_to_date(analyzed, indexed, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(indexed / "runs", copy / "runs")
    shutil.rmtree(copy / "runs" / "run_id=b")
    save(analyzed["d"], copy)
    assert sorted(read_index(copy)["run_id"].to_pylist()) == [*"acd"]
    shutil.rmtree(copy / "runs" / "run_id=c")
    save(analyzed["a"], copy)
    assert sorted(read_index(copy)["run_id"].to_pylist()) == [*"ad"]


@pytest.mark.parametrize("kind", ["missing", "empty", "a file"])
def test_what_holds_no_runs_is_refused_with_the_command_that_makes_them(store, kind):
    {"missing": lambda: None, "empty": store.mkdir, "a file": store.touch}[kind]()
    with pytest.raises(DatasetError) as refused:
        stored_runs(store)
    assert "--out" in refused.value.fix


def test_a_store_of_damaged_runs_only_is_an_error_that_says_why(store, worded):
    for run_id in ("a", "b"):
        add_run(store, run_id)
        later_version(file_of(store, "runs", run_id))
    with pytest.raises(DatasetError, match=r"\b2\b") as refused:
        stored_runs(store)
    assert "99" in refused.value.found
    worded(refused.value.lines())


def test_a_run_of_a_former_version_is_listed_without_what_was_not_known_then(store):
    path = write(store, "runs", "old", [run_row("old")])
    rewritten(lambda table: table.drop_columns(["n_findings", "first_finding", "first_action"]))(
        path
    )
    (row,) = stored_runs(store).runs.to_pylist()
    assert (row["label"], row["n_findings"], row["first_finding"]) == ("nightly", None, None)
