"""A saved run is the run: every table, the document, what is printed, byte for byte, without the reports."""

from __future__ import annotations

import json
import os
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import nsyspipe
from nsyspipe.errors import DatasetError, OptionError
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.report.document import document_text
from nsyspipe.report.markdown import markdown
from nsyspipe.report.run import summary_text
from nsyspipe.run.run import RUN_TABLES
from nsyspipe.store.layout import is_saved
from nsyspipe.store.parquet_size import check_size
from nsyspipe.store.read import table_of
from nsyspipe.store.write import save
from tests.build.tools import blank
from tests.build.trace import TraceBuilder, steady_rank
from tests.cli.sick_run import LOG, TOPOLOGY, write_sick
from tests.conftest import SAMPLES
from tests.run.test_real_reports import GROUPS
from tests.store.store_tools import (
    OTHER_ID,
    RUN_ID,
    contents,
    copied,
    old_run,
    other_run,
    places,
    stored,
    unlisted,
)


def check_same(run, saved):
    for name in RUN_TABLES:
        ours, theirs = (getattr(one, name) for one in (run, saved))
        ours, theirs = (one if isinstance(one, pa.Table) else one() for one in (ours, theirs))
        assert theirs.equals(ours, check_metadata=True), name
    for top in (1, 3):
        assert saved.kernels(top).equals(run.kernels(top))
    for name in ("header", "step_family", "skipped_steps", "nccl", "link"):
        assert getattr(saved, name) == getattr(run, name), name
    assert document_text(saved) == document_text(run)
    assert markdown(saved) == markdown(run)
    for width in (80, 120):
        consoles = (Console(width=width, force_terminal=True) for _ in range(2))
        texts = [summary_text(one, console, n_findings=None) for one, console in zip((run, saved), consoles, strict=True)]  # fmt: skip
        assert texts[0] == texts[1]


def check_saves(run, store):
    """Check that a run comes back as it is, its operations too, and as often as one likes."""
    save(run, store, events=True)
    saved = nsyspipe.load(store)
    check_same(run, saved)
    for ours, theirs in zip(run.operations(), saved.operations(), strict=True):
        assert ours[0] == theirs[0]
        assert all(one.equals(other, check_metadata=True) for one, other in zip(ours[1:], theirs[1:], strict=True))  # fmt: skip
    save(saved, store.with_name("again"), events=True)
    assert document_text(nsyspipe.load(store.with_name("again"))) == document_text(run)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in GROUPS])
def test_real_runs_come_back_as_they_are(runs, tmp_path, name):
    check_saves(runs(name), tmp_path / "store")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp-4gpu-before", "ddp-4gpu-after"])
def test_sample_runs_come_back_as_they_are(tmp_path, name):
    run = nsyspipe.load(
        str(SAMPLES / f"{name}_*.sqlite"),
        nccl_log=SAMPLES / f"{name}.nccl.log",
        topology=SAMPLES / "topo-4gpu.txt",
        jobs=1,
    )
    check_saves(run, tmp_path / "store")


def alone(folder):
    steady_rank(0, world_size=1).write(folder / "alone.sqlite")
    return {}


def without_steps(folder):
    for rank in range(2):
        builder = steady_rank(rank)
        builder.rows.pop("NVTX_EVENTS")
        builder.write(folder / f"a_{rank}.sqlite")
    return {}


def without_launches(folder):
    for rank in range(2):
        steady_rank(rank).write(folder / f"a_{rank}.sqlite", without=("CUPTI_ACTIVITY_KIND_RUNTIME",))
    return {}


def nothing_known_of_them(folder):
    for rank in range(2):
        builder = steady_rank(rank)
        for table in (
            "META_DATA_CAPTURE",
            "TARGET_INFO_SESSION_START_TIME",
            "TARGET_INFO_GPU",
            "TARGET_INFO_SYSTEM_ENV",
        ):
            builder.rows.pop(table, None)
        builder.write(folder / f"a_{rank}.sqlite")
    return {"run_id": "unknown"}


def blank_copies(folder):
    for rank in range(2):
        blank(steady_rank(rank), "bytes", "CUPTI_ACTIVITY_KIND_MEMCPY").write(folder / f"a_{rank}.sqlite")  # fmt: skip
    return {}


def hostile_names(folder):
    name = 'x"; DROP TABLE runs --\n\t<script>\u202e\U0001f600 \x1b[31m'
    for rank in range(2):
        builder = steady_rank(rank)
        builder.kernel(5000, 5100, name, launch=3500).range(3000, 3600, name)
        builder.host(name).gpu(1, name)
        builder.write(folder / os.fsdecode(b"<b>\xff'=%41_" + str(rank).encode() + b".sqlite"))
    return {"label": name}


def skipped_and_named(folder):
    for rank in range(2):
        steady_rank(rank, n_steps=8).write(folder / f"a_{rank}.sqlite")
    return {"skip_first": 3, "step": "^step", "label": "three skipped", "run_id": "x"}


def sick(folder):
    write_sick(folder)
    return {"nccl_log": LOG, "topology": TOPOLOGY}


def log_only(folder):
    write_sick(folder)
    return {"nccl_log": LOG}


def far_from_zero(folder):
    for rank in range(2):
        builder = TraceBuilder(pid=1000 + rank).env(RANK=rank, WORLD_SIZE=2).session(1_790_000_000 * 10**9)
        for step in range(4):
            at = 2**60 + 1001 * step
            builder.range(at, at + 900, f"step {step}").kernel(at + 100, at + 201, launch=at + 10)
            builder.nccl(at + 200, at + 301, launch=at + 80)
        builder.write(folder / f"a_{rank}.sqlite")
    return {}


def steps_of_no_length(folder):
    builder = TraceBuilder(pid=1000).kernel(0, 0)
    for step in range(2):
        builder.range(0, 0, f"step {step}")
    builder.write(folder / "a_0.sqlite")
    return {}


BUILT = [alone, steps_of_no_length, without_steps, without_launches, nothing_known_of_them, blank_copies, hostile_names,
         skipped_and_named, sick, log_only, far_from_zero]  # fmt: skip


@pytest.mark.parametrize("build", BUILT, ids=lambda build: build.__name__)
def test_built_runs_come_back_as_they_are(tmp_path, build):
    (tmp_path / "reports").mkdir()
    options = build(tmp_path / "reports")
    check_saves(nsyspipe.load(tmp_path / "reports", jobs=1, **options), tmp_path / "store")


# --- which run -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return old_run(folder), other_run(folder)


@pytest.fixture(scope="module")
def saved(made, tmp_path_factory):
    """Return a folder of stores to copy: with two runs, and with each alone."""
    folder = tmp_path_factory.mktemp("saved")
    for run, name in zip(made, ("one", "other"), strict=True):
        save(run, folder / "both", events=True)
        save(run, folder / name, events=True)
    return folder


@pytest.fixture
def store(saved, tmp_path):
    """Return a store of two runs."""
    return copied(saved / "both", tmp_path / "store")


def test_of_several_runs_one_must_be_named(made, store):
    with pytest.raises(OptionError, match="holds 2 runs") as caught:
        nsyspipe.load(store)
    assert (caught.value.found, caught.value.fix) == (f"{RUN_ID} (x1), {OTHER_ID} (x3)", f"--run-id {OTHER_ID}")  # fmt: skip
    for run in made:
        assert nsyspipe.load(store, run_id=run.header.run_id).header == run.header


@pytest.mark.parametrize("run_id", ["nobody", "", ".", "../x", "night", "x" * 300, "*"])
def test_a_run_that_is_not_there_is_said_with_those_that_are(store, run_id):
    with pytest.raises(OptionError, match="has no such run") as caught:
        nsyspipe.load(store, run_id=run_id)
    assert caught.value.found == f"{RUN_ID} (x1), {OTHER_ID} (x3)"
    assert caught.value.fix == f"--run-id {OTHER_ID}"


def test_a_label_is_no_id_but_the_message_says_which_id_it_has(tmp_path):
    report = steady_rank(0, world_size=1).write(tmp_path / "a_0.sqlite")
    for run_id, label in (("r-1", "before"), ("r-2", "after")):
        save(nsyspipe.load(report, label=label, run_id=run_id), tmp_path / "s")
    with pytest.raises(OptionError, match="no such run; 1 of that label, which is no id") as caught:
        nsyspipe.load(tmp_path / "s", run_id="before")
    assert caught.value.found == "r-1 (before), r-2 (after)"
    assert caught.value.fix == "--run-id r-1"


@pytest.mark.slow
def test_of_many_runs_the_last_are_shown(made, tmp_path):
    for number in range(9):
        save(nsyspipe.load(stored(tmp_path / "alone", made[0]), label=str(number)), tmp_path / f"{number}")  # fmt: skip
    for number in range(8):
        (tmp_path / "8" / "runs" / f"run_id=r{number}").mkdir()
        source = tmp_path / "8" / "runs" / f"run_id={RUN_ID}" / "part-0.parquet"
        (tmp_path / "8" / "runs" / f"run_id=r{number}" / "part-0.parquet").write_bytes(source.read_bytes())
    with pytest.raises(OptionError, match="holds 9 runs") as caught:
        nsyspipe.load(tmp_path / "8")
    assert caught.value.found == "r2 (8), r3 (8), r4 (8), r5 (8), r6 (8), r7 (8) and 3 more"


@pytest.mark.parametrize("table", ["steps", "runs", "events", "links"])
def test_the_directory_of_a_run_in_a_table_names_it(made, store, table):
    path = store / table / f"run_id={RUN_ID}"
    assert is_saved(path)
    for given in (path, str(path), f"{path}/", [path]):
        assert nsyspipe.load(given).header == made[0].header
    assert nsyspipe.load(path, run_id=RUN_ID).header == made[0].header
    with pytest.raises(OptionError, match="has no such run") as caught:
        nsyspipe.load(path, run_id=OTHER_ID)
    assert caught.value.found == f"{RUN_ID} (x1)"


@pytest.mark.parametrize(
    "name", [".", "steps", "nothing", "run_id=x", "steps/run_id=x", "x" * 300, "a/" * 3000, "run_id=" + "x" * 300]
)  # fmt: skip
def test_other_paths_are_no_saved_run(tmp_path, saved, name):
    assert not is_saved(tmp_path / name)
    if name != ".":
        assert not is_saved(saved / "one" / name)


def test_a_saved_run_takes_another_name(made, store):
    run = nsyspipe.load(store, run_id=RUN_ID, label="another")
    assert run.header.label == "another"
    assert run.header.run_id == RUN_ID
    assert nsyspipe.load(store, run_id=RUN_ID).header.label == made[0].header.label


@pytest.mark.parametrize(
    ("option", "value", "shown"),
    [
        ("step", "x", "--step"), ("backward", "x", "--backward"), ("forward", "x", "--forward"),
        ("optimizer", "x", "--optimizer"), ("data", "x", "--data"), ("comm_kernel", "x", "--comm-kernel"),
        ("skip_first", 0, "--skip-first"), ("rank_map", {"a": 0}, "--rank-map"), ("nccl_log", LOG, "--nccl-log"),
        ("topology", TOPOLOGY, "--topology"),
    ],
)  # fmt: skip
def test_options_of_the_analysis_do_not_go_with_a_saved_run(store, option, value, shown):
    with pytest.raises(OptionError, match="whose figures are made") as caught:
        nsyspipe.load(store, run_id=RUN_ID, **{option: value})
    assert caught.value.subject == shown


def test_a_saved_run_goes_with_nothing_else(store, tmp_path):
    steady_rank(0).write(tmp_path / "a_0.sqlite")
    with pytest.raises(OptionError, match="a saved run and something else"):
        nsyspipe.load([store, tmp_path / "a_0.sqlite"])


# --- damage and versions -------------------------------------------------------------------


def read_all(run):
    document_text(run)
    for name in RUN_TABLES:
        getattr(run, name)
    return run.phases(), run.collectives(), run.kernels(), run.timeline(), list(run.operations())


@pytest.fixture
def damaged(saved, tmp_path):
    """Return where a saved run's tables are, and a function that reads all of it, which must fail."""
    tables = places(unlisted(copied(saved / "one", tmp_path / "store")))

    def refused(name):
        with pytest.raises(DatasetError) as caught:
            read_all(nsyspipe.load(tmp_path / "store"))
        assert str(tables[name]) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.fix
        return str(caught.value)

    return tables, refused


READ = ["ranks", "steps", "phases", "collectives", "stragglers", "kernels", "links", "rank_summary",
        "phase_summary", "idle_calls", "timeline", "host_steps", "findings", "problems", "events-1", "phase_ranges-0"]  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_file_that_is_gone_is_an_error_that_names_it(damaged, name):
    tables, refused = damaged
    tables[name].unlink()
    assert "is missing from the saved run" in refused(name)


@pytest.mark.parametrize("name", [*READ, "runs"])
@pytest.mark.parametrize("damage", ["empty", "cut", "other"])
def test_a_damaged_file_is_an_error_that_names_it(damaged, name, damage):
    tables, refused = damaged
    path = tables[name]
    whole = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": whole[:-20], "other": b"x" * len(whole)}[damage])
    assert "cannot be read" in refused(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["steps", "runs", "metrics"])
def test_a_changed_byte_among_the_rows_is_told_or_changes_nothing(damaged, tmp_path, name):
    path = damaged[0][name]
    whole = path.read_bytes()
    before = nsyspipe.load(tmp_path / "store")._files.table(name)
    end_of_rows = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    n_told, silent = 0, []
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            found = nsyspipe.load(tmp_path / "store")._files.table(name)
        except DatasetError:
            n_told += 1
        else:
            silent += [] if found.equals(before) else [at]
    # Rows are under checksums; the few bytes that say where and what they are, are not.
    of_rows = [at for at in silent if at < end_of_rows]
    assert len(of_rows) < 0.02 * end_of_rows / 5
    assert n_told > 0.3 * end_of_rows / 5


# A table without rows, as host_steps here, has the same bytes in every save.
@pytest.mark.parametrize("name", [*(name for name in READ if name != "host_steps"), "events-0"])
def test_a_file_of_another_save_is_an_error_that_names_it(saved, tmp_path, name):
    store = copied(saved / "one", tmp_path / "store")
    path = places(store)[name]
    path.write_bytes(places(saved / "other", OTHER_ID)[name].read_bytes())
    with pytest.raises(DatasetError, match="of another save of the run than its row") as caught:
        read_all(nsyspipe.load(store))
    assert caught.value.subject == str(path)


def rewrite(path, change):
    table = change(pq.read_table(path, partitioning=None))
    pq.write_table(table, path)


@pytest.mark.parametrize("version", [str(SCHEMA_VERSION + 1), "99", "x", "", "1.5", "-1", "é"])
def test_columns_of_a_later_version_are_refused(damaged, version):
    tables, refused = damaged
    rewrite(
        tables["steps"],
        lambda table: table.replace_schema_metadata({"schema_version": version}),
    )
    message = refused("steps")
    assert f"has columns of version {version or 'unknown'}, this nsyspipe knows {SCHEMA_VERSION}" in message


def test_a_file_without_a_version_is_refused(damaged):
    tables, refused = damaged
    rewrite(tables["steps"], lambda table: table.replace_schema_metadata(None))
    assert "has columns of version unknown" in refused("steps")


def test_a_column_that_was_added_since_is_null(damaged, made, tmp_path):
    rewrite(damaged[0]["steps"], lambda table: table.drop_columns(["wait_ns", "dtod_bytes"]))
    found = nsyspipe.load(tmp_path / "store").steps()
    assert found.schema.equals(made[0].steps().schema, check_metadata=True)
    assert found["wait_ns"].null_count == found.num_rows
    assert found["dtod_bytes"].null_count == found.num_rows
    kept = [name for name in found.column_names if name not in ("wait_ns", "dtod_bytes")]
    assert found.select(kept).equals(made[0].steps().select(kept))


def test_a_column_that_is_unknown_is_left_out(damaged, made, tmp_path):
    rewrite(
        damaged[0]["steps"],
        lambda table: table.append_column("later", pa.nulls(len(table))),
    )
    assert nsyspipe.load(tmp_path / "store").steps().equals(made[0].steps())


def test_a_column_that_is_never_null_must_be_there(damaged):
    tables, refused = damaged
    rewrite(tables["steps"], lambda table: table.drop_columns(["wall_ns", "rank"]))
    assert "lacks the columns rank, wall_ns" in refused("steps")


@pytest.mark.parametrize("values", [pa.array(["x"] * 10), pa.array([None] * 10, pa.int64()), pa.array([0.5] * 10)])
def test_a_column_of_another_kind_is_an_error(damaged, values):
    tables, refused = damaged
    rewrite(
        tables["steps"],
        lambda table: table.set_column(table.column_names.index("wall_ns"), "wall_ns", values),
    )
    assert "cannot be read" in refused("steps")


@pytest.mark.parametrize("details", ["", "{}", "[]", "null", '{"header": {}}', '{"header": 3, "link": null}'])
def test_details_that_say_nothing_are_an_error(damaged, details):
    tables, refused = damaged
    rewrite(
        tables["runs"],
        lambda table: table.set_column(table.column_names.index("details"), "details", pa.array([details])),
    )
    assert "has no usable details" in refused("runs")


def test_details_that_a_later_nsyspipe_added_are_left_out(damaged, made, tmp_path):
    def add(table):
        text = table["details"][0].as_py()
        for name in ("header", "nccl", "link"):
            assert f'"{name}": {{' in text
            text = text.replace(f'"{name}": {{', f'"{name}": {{"later": [1], ')
        return table.set_column(table.column_names.index("details"), "details", pa.array([text]))

    rewrite(damaged[0]["runs"], add)
    run = nsyspipe.load(tmp_path / "store")
    assert (run.header, run.nccl, run.link) == (made[0].header, made[0].nccl, made[0].link)


def test_of_a_command_that_an_earlier_nsyspipe_saved_only_what_may_be_written_down_is_read(damaged, tmp_path):  # fmt: skip
    given = {
        "command": ["python", "/home/me/train.py", "--lr=0.1", "--jwt", "eyJhbGciOi", "hmac:0123abcd"],
        "environment": {"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "sesame", "HF_TOKEN": "hf_abcdef"},
        "git_commit": "abc",
    }  # fmt: skip

    def add(table):
        details = json.loads(table["details"][0].as_py())
        details["header"]["capture"] = given
        at = table.column_names.index("details")
        return table.set_column(at, "details", pa.array([json.dumps(details)]))

    rewrite(damaged[0]["runs"], add)
    run = nsyspipe.load(tmp_path / "store")
    found = run.header.capture
    assert found.command == ["python", "train.py", "--lr=0.1", "--jwt", "***", "hmac:0123abcd"]
    assert found.environment == {"NCCL_ALGO": "***", "NCCL_P2P_DISABLE": "1"}
    assert found.git_commit == "abc"
    save(run, tmp_path / "again")
    assert b"eyJhbGciOi" not in b"".join(contents(tmp_path / "again").values())
    assert nsyspipe.load(tmp_path / "again").header == run.header


@pytest.mark.parametrize("n_rows", [0, 2])
def test_a_runs_table_without_its_one_row_is_an_error(damaged, tmp_path, n_rows):
    path = damaged[0]["runs"]
    rewrite(path, lambda table: pa.concat_tables([table] * n_rows) if n_rows else table.slice(0, 0))
    with pytest.raises(DatasetError, match=f"holds {n_rows} rows of the run, not 1"):
        _ = nsyspipe.load(tmp_path / "store").header


@pytest.mark.slow
def test_a_changed_footer_is_refused_or_read_and_never_ends_the_process():
    path = next((SAMPLES / "dataset" / "steps").rglob("*.parquet"))
    whole = path.read_bytes()
    footer = range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole) - 8)
    n_refused = 0
    for at in footer[::61]:
        changed = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
        with tempfile.TemporaryFile() as file:
            file.write(changed)
            file.flush()
            try:
                assert check_size(file) == len(whole)
                table_of(pa.py_buffer(changed), "steps", path)
            except (ValueError, DatasetError):
                n_refused += 1
    assert n_refused > len(footer[::61]) / 4
