"""A saved run is the run: every table, the document, what is printed, byte for byte, without the reports."""

import os
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import nsyspipe
from nsyspipe.errors import DatasetError, OptionError
from nsyspipe.model.schema import RUN_TABLES
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.report.export import document
from nsyspipe.report.formats import dumps
from nsyspipe.report.markdown import markdown
from nsyspipe.report.run import summary_text
from nsyspipe.store import layout, read
from nsyspipe.store.layout import is_saved
from nsyspipe.store.read import read_run_files
from nsyspipe.store.write import save
from tests.build.tools import blank
from tests.build.trace import TraceBuilder, steady_rank
from tests.cli.sick_run import LOG, TOPOLOGY, write_sick
from tests.conftest import SAMPLES
from tests.store.store_tools import (
    OTHER_ID,
    RUN_ID,
    contents,
    copied,
    old_run,
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
        assert saved.kernels(top).equals(run.kernels(top)), top
    for name in ("header", "step_family", "skipped_steps", "nccl", "link"):
        assert getattr(saved, name) == getattr(run, name), name
    assert (dumps(document(saved)), markdown(saved)) == (dumps(document(run)), markdown(run))
    ours, theirs = (
        summary_text(one, Console(width=100, force_terminal=True), n_findings=None)
        for one in (run, saved)
    )
    assert ours == theirs


def check_saves(run, store):
    save(run, store, events=True)
    saved = nsyspipe.load(store)
    check_same(run, saved)
    for (rank, *ours), (saved_rank, *theirs) in zip(
        run.operations(), saved.operations(), strict=True
    ):
        assert rank == saved_rank, rank
        assert all(
            one.equals(other, check_metadata=True) for one, other in zip(ours, theirs, strict=True)
        ), rank
    return saved


# One without communication, one of another program, several in one file, a plain one of two ranks,
# one with all files.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["baseline", "ddp-2gpu-straggler", "ddp-4gpu-onefile", "fsdp-4gpu", "sample"]
)
def test_real_runs_come_back_as_they_are(captures, tmp_path, name):
    if name == "sample":
        sides = {
            "nccl_log": SAMPLES / "ddp-4gpu-before.nccl.log",
            "topology": SAMPLES / "topo-4gpu.txt",
        }
        run = nsyspipe.load(str(SAMPLES / "ddp-4gpu-before_*.sqlite"), jobs=1, **sides)
    check_saves(run if name == "sample" else captures.run(name), tmp_path / "store")


def written(folder, *builders, without=(), **options):
    """Write a report per builder, less some tables; return the options that go with them."""
    for rank, builder in enumerate(builders or [steady_rank(rank) for rank in range(2)]):
        builder.write(folder / f"a_{rank}.sqlite", without=without)
    return options


def hostile_names(folder):
    name = 'x"; DROP TABLE runs --\n\t<script>\u202e\U0001f600 \x1b[31m'
    for rank in range(2):
        builder = steady_rank(rank).kernel(5000, 5100, name, launch=3500).range(3000, 3600, name)
        builder.host(name).gpu(1, name)
        builder.write(folder / os.fsdecode(b"<b>\xff'=%41_" + str(rank).encode() + b".sqlite"))
    return {"label": name}


def far_from_zero(folder):
    builders = [TraceBuilder(pid=1000 + rank).env(RANK=rank, WORLD_SIZE=2) for rank in range(2)]
    for builder in builders:
        builder.session(1_790_000_000 * 10**9)
        for step in range(4):
            at = 2**60 + 1001 * step
            builder.range(at, at + 900, f"step {step}").kernel(at + 100, at + 201, launch=at + 10)
            builder.nccl(at + 200, at + 301, launch=at + 80)
    return written(folder, *builders)


UNKNOWN = (
    "META_DATA_CAPTURE",
    "TARGET_INFO_SESSION_START_TIME",
    "TARGET_INFO_GPU",
    "TARGET_INFO_SYSTEM_ENV",
)
BUILT = {
    "alone": lambda folder: written(folder, steady_rank(0, world_size=1)),
    "steps of no length": lambda folder: written(
        folder, TraceBuilder(pid=1000).kernel(0, 0).range(0, 0, "step 0").range(0, 0, "step 1")
    ),
    "without steps": lambda folder: written(folder, without=("NVTX_EVENTS",)),
    "without launches": lambda folder: written(folder, without=("CUPTI_ACTIVITY_KIND_RUNTIME",)),
    "nothing known of them": lambda folder: written(folder, without=UNKNOWN, run_id="unknown"),
    "blank copies": lambda folder: written(
        folder,
        *(blank(steady_rank(rank), "bytes", "CUPTI_ACTIVITY_KIND_MEMCPY") for rank in range(2)),
    ),
    "hostile names": hostile_names,
    "skipped and named": lambda folder: written(
        folder,
        *(steady_rank(rank, n_steps=8) for rank in range(2)),
        skip_first=3,
        step="^step",
        label="three skipped",
        run_id="x",
    ),
    "sick": lambda folder: write_sick(folder) and {"nccl_log": LOG, "topology": TOPOLOGY},
    "far from zero": far_from_zero,
}


OF_A_DESK = {"alone", "without steps", "hostile names", "sick"}
BUILT_CASES = [
    pytest.param(build, id=name, marks=() if name in OF_A_DESK else pytest.mark.slow)
    for name, build in BUILT.items()
]


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILT_CASES)
def test_built_runs_come_back_as_they_are(tmp_path, build):
    (tmp_path / "reports").mkdir()
    saved = check_saves(
        nsyspipe.load(tmp_path / "reports", jobs=1, **build(tmp_path / "reports")),
        tmp_path / "store",
    )
    save(saved, tmp_path / "again", events=True)  # as often as one likes
    assert contents(tmp_path / "again") == contents(tmp_path / "store")


@pytest.fixture(scope="module")
def saved(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    for run, name in zip(runs[::2], ("one", "other"), strict=True):
        save(run, folder / "both", events=True)
        save(run, folder / name, events=True)
    return folder


@pytest.fixture
def store(saved, tmp_path):
    return copied(saved / "both", tmp_path / "store")


@pytest.mark.parametrize("run_id", [None, "nobody", ".", "../x", "night", "x" * 300, "*"])
def test_of_several_runs_one_that_is_there_must_be_named(runs, store, run_id, worded):
    with pytest.raises(OptionError) as caught:
        nsyspipe.load(store, run_id=run_id)
    assert caught.value.found == f"{RUN_ID} (x1), {OTHER_ID} (x3)"
    worded(caught.value.lines())
    for run in runs[::2] if run_id is None else ():
        assert nsyspipe.load(store, run_id=run.header.run_id).header == run.header, run


@pytest.mark.slow
def test_a_label_is_no_id_but_the_message_says_which_id_it_has(tmp_path):
    report = steady_rank(0, world_size=1).write(tmp_path / "a_0.sqlite")
    for run_id, label in (("r-1", "before"), ("r-2", "after")):
        save(
            nsyspipe.load(report, label=label, run_id=run_id),
            tmp_path / "s",
            events=label == "before",
        )
    # It has its operations.
    with pytest.raises(OptionError, match=r"s:r-1, or pandas\.read_parquet\('.*/s/runs'\)"):
        nsyspipe.load(tmp_path / "s")
    with pytest.raises(OptionError) as caught:
        nsyspipe.load(tmp_path / "s", run_id="before")
    assert caught.value.found == "r-1 (before), r-2 (after)"
    assert caught.value.fix == "--run-id r-1"
    for name, fix in (
        ("befor", "s:before"),
        ("Afterr", "s:after"),
        ("r2", "s:r-2"),
        ("x", "nsyspipe doctor "),
    ):
        with pytest.raises(OptionError) as caught:
            nsyspipe.load(f"{tmp_path}/s:{name}")
        assert fix in caught.value.fix, name


def test_of_many_runs_the_last_are_shown(saved, tmp_path):
    store = copied(saved / "one", tmp_path / "store")
    for number in range(8):
        shutil.copytree(store / "runs" / f"run_id={RUN_ID}", store / "runs" / f"run_id=r{number}")
    with pytest.raises(OptionError) as caught:
        nsyspipe.load(store)
    assert caught.value.found == "r2 (x1), r3 (x1), r4 (x1), r5 (x1), r6 (x1), r7 (x1) and 3 more"


@pytest.mark.slow
@pytest.mark.parametrize("table", ["steps", "runs", "events", "links"])
def test_the_directory_of_a_run_in_a_table_names_it(runs, store, table):
    path = store / table / f"run_id={RUN_ID}"
    assert is_saved(path)
    for given in (path, str(path), f"{path}/", [path]):
        assert nsyspipe.load(given).header == runs[0].header, given
    assert nsyspipe.load(path, run_id=RUN_ID).header == runs[0].header
    with pytest.raises(OptionError) as caught:
        nsyspipe.load(path, run_id=OTHER_ID)
    assert caught.value.found == f"{RUN_ID} (x1)"


def test_other_paths_are_no_saved_run(tmp_path, saved):
    names = [
        "steps",
        "nothing",
        "run_id=x",
        "steps/run_id=x",
        "x" * 300,
        "a/" * 3000,
        "run_id=" + "x" * 300,
    ]
    assert not any(
        is_saved(folder / name) for folder in (tmp_path, saved / "one") for name in names
    )
    assert not is_saved(tmp_path)


@pytest.mark.parametrize(
    "option",
    [
        "step",
        "backward",
        "forward",
        "optimizer",
        "data",
        "comm_kernel",
        "skip_first",
        "rank_map",
        "nccl_log",
        "topology",
    ],
)
def test_options_of_the_analysis_do_not_go_with_a_saved_run(store, option):
    with pytest.raises(OptionError) as caught:
        nsyspipe.load(store, run_id=RUN_ID, **{option: "0"})
    assert caught.value.subject == f"--{option.replace('_', '-')}"


def test_a_saved_run_goes_with_nothing_else(store, tmp_path, worded):
    steady_rank(0).write(tmp_path / "a_0.sqlite")
    with pytest.raises(OptionError) as caught:
        nsyspipe.load([store, tmp_path / "a_0.sqlite"])
    worded(caught.value.lines())


def read_all(run):
    document(run)
    for name in RUN_TABLES:
        getattr(run, name)
    return run.phases(), run.collectives(), run.kernels(), run.timeline(), list(run.operations())


@pytest.fixture
def damaged(saved, tmp_path):
    tables = places(unlisted(copied(saved / "one", tmp_path / "store")))

    def refused(name):
        with pytest.raises(DatasetError) as caught:
            read_all(nsyspipe.load(tmp_path / "store"))
        assert str(tables[name]) in caught.value.lines()[0]
        assert "\n" not in caught.value.lines()[0]
        assert caught.value.fix
        return caught.value.lines()[0]

    return tables, refused


READ = [
    "ranks",
    "steps",
    "phases",
    "collectives",
    "stragglers",
    "kernels",
    "links",
    "rank_summary",
    "phase_summary",
    "idle_calls",
    "timeline",
    "findings",
    "problems",
    "events-1",
    "phase_ranges-0",
    "runs",
    "host_steps",
]
DAMAGES = ["gone", "empty", "cut", "other", "of another save"]
# Each table once, each damage in turn; two tables with all.
DAMAGED = {(name, DAMAGES[at % len(DAMAGES)]) for at, name in enumerate(READ[:15])}
DAMAGED |= {("host_steps", "gone"), ("runs", "empty"), ("runs", "cut"), ("runs", "other")}
DAMAGED |= {(name, damage) for name in ("steps", "events-1") for damage in DAMAGES}


@pytest.mark.parametrize(("name", "damage"), sorted(DAMAGED))
def test_a_damaged_file_is_an_error_that_names_it(saved, damaged, tmp_path, name, damage, worded):
    tables, refused = damaged
    whole = tables[name].read_bytes()
    if damage == "gone":
        tables[name].unlink()
        worded(refused(name))
    elif damage == "of another save":
        store = copied(saved / "one", tmp_path / "listed")
        path = places(store)[name]
        path.write_bytes(places(saved / "other", OTHER_ID)[name].read_bytes())
        with pytest.raises(DatasetError) as caught:
            read_all(nsyspipe.load(store))
        assert caught.value.subject == str(path)
        worded(caught.value.problem)
    else:
        tables[name].write_bytes(
            {"empty": b"", "cut": whole[:-20], "other": b"x" * len(whole)}[damage]
        )
        refused(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["steps", "runs", "metrics"])
def test_a_changed_byte_is_told_or_changes_nothing_and_never_ends_the_process(
    damaged, tmp_path, name
):
    path = damaged[0][name]
    whole = path.read_bytes()
    n, n_footer = len(whole), int.from_bytes(whole[-8:-4], "little")
    # The magic number, pages with their headers, the footer, its length, the magic number again.
    pages, footer = range(4, n - 8 - n_footer), range(n - 8 - n_footer, n - 8)
    chosen = {
        at: bit
        for part, bit in ((pages, 0x10), (footer, 0x55))
        for at in part[:: max(len(part) // 50, 1)]
    }
    chosen |= dict.fromkeys((0, 3, *range(n - 8, n)), 0x10)
    before = read_run_files(tmp_path / "store", RUN_ID).table(name)
    told, silent = set(), set()
    for at, bit in chosen.items():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        try:
            found = read_run_files(tmp_path / "store", RUN_ID).table(name)
        except DatasetError:
            told.add(at)
        else:
            silent |= set() if found.equals(before) else {at}
    # Rows are under checksums; the few bytes that say where and what they are, are not.
    of_pages = [at for at in chosen if at in pages]
    assert len(silent & {*pages}) <= 0.02 * len(of_pages)
    assert len(told & {*pages}) > 0.3 * len(of_pages)
    assert len(told & {*footer}) > 0.25 * len([at for at in chosen if at in footer])
    assert told >= {*range(n - 8, n)}


def rewrite(path, change):
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)


def test_a_column_added_later_is_null_and_an_unknown_one_is_left_out(damaged, runs, tmp_path):
    added = ["wait_ns", "dtod_bytes"]
    rewrite(
        damaged[0]["steps"],
        lambda table: table.drop_columns(added).append_column("later", pa.nulls(len(table))),
    )
    found = nsyspipe.load(tmp_path / "store").steps()
    assert found.schema.equals(runs[0].steps().schema, check_metadata=True)
    assert {found[name].null_count for name in added} == {found.num_rows}
    assert found.drop_columns(added).equals(runs[0].steps().drop_columns(added))


def replaced(name, column):
    return lambda table: table.set_column(table.column_names.index(name), name, column)


def of_version(version):
    metadata = None if version is None else {"schema_version": version}
    return lambda table: table.replace_schema_metadata(metadata)


NO_DETAILS = ("", "{}", "[]", "null", '{"header": {}}', '{"header": 3, "link": null}')
OTHER_KINDS = (pa.array(["x"] * 10), pa.array([None] * 10, pa.int64()), pa.array([0.5] * 10))
VERSIONS = (str(SCHEMA_VERSION + 1), "99", "x", "", "1.5", "-1", "é", None)
CHANGED = {
    **{f"version {version!r}": ("steps", of_version(version)) for version in VERSIONS},
    **{
        f"other {values.type} {at}": ("steps", replaced("wall_ns", values))
        for at, values in enumerate(OTHER_KINDS)
    },
    "columns": ("steps", lambda table: table.drop_columns(["wall_ns", "rank"])),
    **{
        f"details {details}": ("runs", replaced("details", pa.array([details])))
        for details in NO_DETAILS
    },
    "no row": ("runs", lambda table: table.slice(0, 0)),
    "two rows": ("runs", lambda table: pa.concat_tables([table] * 2)),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_table_that_is_not_what_nsyspipe_writes_is_an_error(damaged, case, tmp_path, worded):
    tables, refused = damaged
    name, change = CHANGED[case]
    rewrite(tables[name], change)
    # In brackets stands what libraries say.
    worded(re.sub(r" \(.*\)", "", refused(name)))


def test_details_that_a_later_nsyspipe_added_are_left_out(damaged, runs, tmp_path):
    def add(table):
        text = table["details"][0].as_py()
        for name in ("header", "nccl", "link"):
            assert f'"{name}": {{' in text, name
            text = text.replace(f'"{name}": {{', f'"{name}": {{"later": [1], ')
        return replaced("details", pa.array([text]))(table)

    rewrite(damaged[0]["runs"], add)
    run = nsyspipe.load(tmp_path / "store")
    assert (run.header, run.nccl, run.link) == (runs[0].header, runs[0].nccl, runs[0].link)


def test_a_run_that_is_removed_and_saved_while_it_is_read_was_replaced(tmp_path, monkeypatch):
    store = stored(tmp_path / "store", old_run(tmp_path))
    (steps,) = store.glob("steps/**/*.parquet")
    (phases,) = store.glob("phases/**/*.parquet")
    shutil.copyfile(phases, steps)
    read_now = read._content_or_none
    n_reads_of_runs = 0

    def removed_at_the_second_reading(place, run_id, file):
        nonlocal n_reads_of_runs
        n_reads_of_runs += file == layout.RUNS_FILE
        if file == layout.RUNS_FILE and n_reads_of_runs == 2:
            return None
        return read_now(place, run_id, file)

    monkeypatch.setattr(read, "_MAX_ATTEMPTS", 1)
    monkeypatch.setattr(read, "_content_or_none", removed_at_the_second_reading)
    files = read_run_files(store, RUN_ID)
    with pytest.raises(DatasetError, match=RUN_ID):
        files.table("steps")
