"""Analysis of a redacted run says what analysis of the run said, but for the names of hosts."""

import itertools
import json

import pytest
from msgspec.structs import replace

import nsyspipe
from nsyspipe.model.options import Reading
from nsyspipe.model.user_paths import ReportFile
from nsyspipe.reader.facts import JOB_VARIABLES, LAUNCHER_SIZES, read_facts
from nsyspipe.reader.metadata import read_counts
from nsyspipe.reader.report import CPU_SAMPLES, GPU_METRICS, OS_RUNTIME, open_report
from nsyspipe.redact.redact import redact
from nsyspipe.report.export import document
from nsyspipe.report.formats import dumps
from nsyspipe.run import gather
from tests.build import nccl_layouts as nccl
from tests.build.nccl_layouts import BYTES, COMM, RANK, RANKS, Entry, PayloadLayout
from tests.build.planted import plant
from tests.build.sampled import sampled_ranks
from tests.build.tools import edit, nullable, query
from tests.build.trace import (
    KERNEL,
    MEMCPY,
    NVTX,
    RUNTIME,
    STRINGS,
    TraceBuilder,
    schemas,
    steady_rank,
)
from tests.conftest import SAMPLES
from tests.run.test_real_reports import GROUPS

NEW = "3.25.0 2026.2.1 mfu"
QUICK = {"baseline", "ddp-2gpu-bucket100-nsys2025"}


# Of the programs, the machine and the capture, which copies leave out.
LEFT_OUT = (
    "environment",
    "driver_versions",
    "cuda_driver_versions",
    "traced_events",
    "cuda_graph_traces",
    "python_samplings",
    "commands",
)


def read(reports):
    return nsyspipe.load([str(one) for one in reports], jobs=1)


def answers(run):
    tables = [run.kernels(), run.collectives(), run.phases(), run.idle_calls(), run.links()]
    tables += [table for _, *pair in run.operations() for table in pair]
    said = json.loads(dumps(document(run)))
    for name in LEFT_OUT:
        del said["run"][name]
    return said, tables


def assert_same(folder, copies, hosts=("node0",), names="*.sqlite", run=None):
    """Redact a folder's reports, and compare what both say; hosts are those of the reports in order.

    `run` is that of the reports, if they are read already.
    """
    reports = sorted(folder.glob(names))
    redact(str(folder / names), copies if "?" in names or "*" in names else copies / names)
    original, tables = answers(run or read(reports))
    text = json.dumps(original)
    for index, host in enumerate(hosts):
        assert json.dumps(host) in text, index
        text = text.replace(json.dumps(host), f'"host-{index}"')
    redacted, tables_of_copy = answers(read([copies / report.name for report in reports]))
    renamed = json.loads(text)
    renamed["run"]["hosts"].sort()
    for answer in (redacted, renamed):
        # Copies keep no environment, which says that no setting of links was set, and that NCCL
        # wrote a log.
        for finding in answer["findings"]:
            finding["evidence"].pop("nccl_settings", None)
            if finding["id"] == "slow-link":
                del finding["advice"]
    assert redacted == renamed
    assert all(one.equals(other) for one, other in zip(tables, tables_of_copy, strict=True))
    # What doctor counts: all but what analysis does not read.
    last = reports[-1], copies / reports[-1].name
    before, after = map(read_counts, last)
    for table in (OS_RUNTIME, CPU_SAMPLES, GPU_METRICS, STRINGS):
        before.rows[table] = after.rows[table]
    assert before == after
    assert _comparable(last[0]) == _comparable(last[1])
    return original


def _comparable(path):  # but what a copy says in other words
    digest = gather.digest_report(ReportFile.of(path), Reading(), is_decided=False)
    facts = digest.facts
    # A copy leaves out what identifies the job.
    numbers = {name: facts.number(name) for name in facts.variables if name not in JOB_VARIABLES}
    facts = replace(
        facts,
        host=facts.host is None,
        exported_tables="",
        variables=numbers,
        file_state=None,
        gpu_identities={},
    )
    facts = replace(facts, **dict.fromkeys(LEFT_OUT, ()))
    names = ("families", "n_nccl_ranges", "n_message_bytes", "comm_ranks", "mpi_ranks")
    return facts, [getattr(digest, name) for name in names]


def write(folder, *builders):
    folder.mkdir(exist_ok=True)
    for number, builder in enumerate(builders):
        builder.write(folder / f"run_{number}.sqlite")
    return folder


@pytest.mark.parametrize(
    "name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in GROUPS]
)
def test_real_runs_say_the_same(real, runs, tmp_path, name):
    names = f"{name}.sqlite" if (real / f"{name}.sqlite").exists() else f"{name}_?.sqlite"
    said = assert_same(real, tmp_path / "copies", names=names, run=runs(name))
    assert said["summary"]["step_time_ns"] > 0


@pytest.mark.slow
def test_a_sample_run_says_the_same(tmp_path):
    folder = tmp_path / "reports"  # without the logs that lie beside them
    folder.mkdir()
    for path in SAMPLES.glob("ddp-4gpu-after_?.sqlite"):
        (folder / path.name).symlink_to(path)
    assert_same(folder, tmp_path / "copies")


@pytest.mark.slow
@pytest.mark.parametrize("version", sorted(schemas()))
def test_exports_of_every_version_say_the_same(tmp_path, version):
    ranks = [_real_version(steady_rank(rank, version=version)) for rank in range(2)]
    has_host = "TARGET_INFO_SYSTEM_ENV" in schemas()[version]
    assert_same(
        write(tmp_path / "reports", *ranks),
        tmp_path / "copies",
        hosts=("node0",) if has_host else (),
    )


def _real_version(builder):
    for row in builder.rows.get("META_DATA_EXPORT", []):  # no exporter is called "mfu"
        if row["name"] == "EXPORT_PRODUCT_VERSION":
            row["value"] = "2026.2.1.5-262133212345v0"
    return builder


LAYOUTS = [
    (nccl.NCCL_2_19, {BYTES: 4096}),
    (nccl.NCCL_2_21, {COMM: 2**63 + 5, BYTES: 2**40 + 1}),
    (nccl.NCCL_2_28, {"commHash": 11, "count": 1000, "dataType": 7, "seqNumber": 3}),
    (nccl.IMPLICIT, {"my-rank": 1}),
]


@pytest.mark.slow
@pytest.mark.parametrize("some", [LAYOUTS[2:], LAYOUTS], ids=["all decoded", "some not"])
def test_redacted_payloads_have_the_same_values_and_counts(tmp_path, some):
    ranks = [_real_version(steady_rank(rank, version=NEW).domain("NCCL", 1)) for rank in range(2)]
    foreign = PayloadLayout(9, 16, (Entry("rank", 5, 0), Entry("bytes", 18, 8)))
    for number, rank in enumerate(ranks):
        rank.nccl_payload(5, "ncclCommInitRank", {COMM: 7, RANKS: 2, RANK: number}, nccl.COMM_INIT)
        for step, (layout, fields) in enumerate(some):
            rank.nccl_payload(1000 * step + 80, "ncclAllReduce", fields, layout)
        if some is LAYOUTS:
            rank.domain("mine", 4).nccl_payload(
                2080, "mine", {"rank": 1, "bytes": 5}, foreign, domain=4
            )
            rank.nccl_payload(2090, None, {"rank": 1, "bytes": 5}, foreign, domain=8)
            rank.nccl_payload(1080, "ncclAllReduce", {COMM: 7, BYTES: 64}, nccl.NCCL_2_21)
            rank.rows[NVTX][-1]["binaryData"] = b"cut"
            rank.nccl_payload(2095, "ncclMark", {COMM: 7, BYTES: 32}, nccl.NCCL_2_21)
            rank.rows[NVTX][-1]["eventType"] = 34
    original = assert_same(write(tmp_path / "reports", *ranks), tmp_path / "copies")
    assert ("undecoded-payload" in {one["code"] for one in original["problems"]}) == (
        some is LAYOUTS
    )


@pytest.mark.slow
def test_ranks_from_mpi_thread_names_stay(tmp_path):
    ranks = [
        steady_rank(rank).range(-10, None, f"MPI Rank {rank}", kind=39, inline=bool(rank))
        for rank in (1, 0)
    ]
    for builder in ranks:
        del builder.rows["META_DATA_CAPTURE"]
    original = assert_same(write(tmp_path / "reports", *ranks), tmp_path / "copies")
    assert [one["report"] for one in original["ranks"]] == ["run_1.sqlite", "run_0.sqlite"]


def test_that_nvtx_was_traced_without_a_range_stays(tmp_path):
    rank = steady_rank(0, world_size=1).add(
        "META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value="NvtxEvents"
    )
    (tmp_path / "reports").mkdir()
    rank.write(tmp_path / "reports/run_0.sqlite", without=(NVTX,))
    original = assert_same(tmp_path / "reports", tmp_path / "copies")
    assert "no-nvtx-ranges" in {one["code"] for one in original["problems"]}


@pytest.mark.slow
def test_rare_forms_keep_their_meaning_without_their_words(tmp_path):
    """Graphs, memsets, marks, open ranges; ranks that contradict each other, devices by serial number; WAL, ``_V2``."""
    ranks = [nullable(steady_rank(rank)) for rank in range(2)]
    for rank in ranks:
        rank.env(RANK="private", CUDA_VISIBLE_DEVICES="GPU-1234,GPU-5678", OMPI_COMM_WORLD_RANK="x")
        rank.graph(3400, 3450, launch=3390).memset(3460, 3470, launch=3455)
        rank.range(3300, None, "never closed").range(3310, None, "a mark", kind=34)
        rank.launch(3500, api="cudaStreamSynchronize_v3020")
        rank.rows[RUNTIME][-1]["end"] = 3600
    folder = write(tmp_path / "reports", *ranks)
    for path in folder.iterdir():
        edit(path, f"ALTER TABLE {RUNTIME} RENAME TO {RUNTIME}_V2", "PRAGMA journal_mode = WAL")
    assert_same(folder, tmp_path / "copies")
    data = b"".join(path.read_bytes() for path in (tmp_path / "copies").iterdir())
    assert (b"private" in data, b"GPU-1234" in data) == (False, False)


@pytest.mark.slow
def test_several_processes_in_a_report_say_the_same(tmp_path):
    builder = steady_rank(0)
    for step in range(4):
        at = 1000 * step
        builder.range(at, at + 900, f"step {step}", pid=1001)
        builder.kernel(at + 100, at + 300, launch=at + 10, pid=1001, device=1)
        builder.nccl(at + 310, at + 330, launch=at + 20, pid=1001, device=1)
    builder.gpu(1, "NVIDIA A100-SXM4-80GB")
    assert len(assert_same(write(tmp_path / "reports", builder), tmp_path / "copies")["ranks"]) == 2


@pytest.mark.slow
def test_hosts_are_numbered_over_all_reports_as_they_appear(tmp_path):
    ranks = [steady_rank(rank, world_size=4) for rank in range(4)]
    for rank, host in zip(ranks, ["zeta", "alpha", "zeta", "mid"], strict=True):
        rank.rows["TARGET_INFO_SYSTEM_ENV"][0]["value"] = host
    original = assert_same(
        write(tmp_path / "reports", *ranks), tmp_path / "copies", hosts=("zeta", "alpha", "mid")
    )
    assert original["run"]["hosts"] == ["alpha", "mid", "zeta"]
    redacted, _ = answers(read(sorted((tmp_path / "copies").iterdir())))
    assert [one["host"] for one in redacted["ranks"]] == ["host-0", "host-1", "host-0", "host-2"]


LIMITS = {
    "": "FALSE",
    "CUPTI_ACTIVITY_KIND_KERNEL,NVTX_EVENTS": "true",
    "secret": "FALSE",
    "NVTX_EVENTS CUPTI": "odd",
}


@pytest.mark.slow
@pytest.mark.parametrize(("tables", "lazy"), LIMITS.items())
def test_how_the_export_was_limited_means_the_same(tmp_path, tables, lazy):
    ranks = [steady_rank(rank) for rank in range(2)]
    for rank in ranks:
        rank.meta(EXPORT_PARAM_TABLES_TO_EXPORT=tables, EXPORT_PARAM_LAZY=lazy)
    assert_same(write(tmp_path / "reports", *ranks), tmp_path / "copies")


def test_redaction_keeps_variables_and_separates_unknown_models(
    tmp_path,
):
    names = {
        "RANK",
        *LAUNCHER_SIZES,
        *LAUNCHER_SIZES.values(),
        "WORLD_SIZE",
        "LOCAL_RANK",
        "CUDA_VISIBLE_DEVICES",
    }
    values = {name: str(number) for number, name in enumerate(sorted(names))}
    builder = TraceBuilder().kernel(0, 10, launch=0).env(**values, SECRET=4)
    builder.gpu().gpu(1, "my secret prototype").gpu(2, "another one")
    folder = write(tmp_path / "reports", builder)
    redact(str(folder), tmp_path / "copies")
    with (
        open_report(folder / "run_0.sqlite") as report,
        open_report(tmp_path / "copies" / "run_0.sqlite") as copy,
    ):
        before, after = read_facts(report), read_facts(copy)
    assert after.variables == values == before.variables
    assert after.gpu_names == {0: "NVIDIA H200", 1: "unknown model 0", 2: "unknown model 1"}


@pytest.mark.slow
def test_a_report_full_of_secrets_says_the_same(tmp_path):
    secrets = plant(write(tmp_path / "reports") / "run_0.sqlite")
    redact(str(tmp_path / "reports"), tmp_path / "copies")
    original, redacted = (
        answers(read([tmp_path / one / "run_0.sqlite"]))[0] for one in ("reports", "copies")
    )
    text = json.dumps(original).replace(secrets["host"], "host-0")
    # The one model there is has a name that no pattern knows.
    assert redacted == json.loads(text.replace(secrets["GPU model"], "unknown model 0"))


def test_runs_without_device_work_say_the_same(tmp_path):
    ranks = [steady_rank(rank) for rank in range(2)]
    for builder, table in itertools.product(ranks, (KERNEL, MEMCPY, RUNTIME)):
        del builder.rows[table]
    original = assert_same(write(tmp_path / "reports", *ranks), tmp_path / "copies", hosts=())
    assert original["summary"]["step_time_ns"] is None


def counted_copies(folder, *builders):
    """Return the runs of some reports and of their copies."""
    reports = write(folder / "reports", *builders)
    redact(str(reports), folder / "copies")
    return read(sorted(reports.iterdir())), read(sorted((folder / "copies").iterdir()))


@pytest.mark.slow
def test_counters_are_the_same_also_those_in_the_report_of_another_rank(tmp_path):
    original, copy = counted_copies(tmp_path, *sampled_ranks())
    ranks = set(original.counters()["rank"].to_pylist())
    assert ranks == {0, 1}
    assert copy.counters().equals(original.counters())


@pytest.mark.slow
def test_counters_of_gpus_without_serial_numbers_are_the_same(tmp_path):
    builders = sampled_ranks()
    for builder in builders:
        for row in builder.rows["TARGET_INFO_GPU"]:
            row["uuid"] = None
    original, copy = counted_copies(tmp_path, *builders)
    assert set(copy.counters()["rank"].to_pylist()) == {0, 1}
    assert copy.counters().equals(original.counters())


@pytest.mark.slow
def test_counters_of_a_real_run_are_the_same(real, tmp_path):
    redact(str(real / "2gpu-counters.sqlite"), tmp_path / "copy.sqlite")
    counters = read([real / "2gpu-counters.sqlite"]).counters()
    assert counters.num_rows > 0
    assert read([tmp_path / "copy.sqlite"]).counters().equals(counters)


def test_the_same_gpu_has_the_same_new_name_in_all_copies(tmp_path):
    counted_copies(tmp_path, *sampled_ranks())
    names = [
        query(path, "SELECT id, uuid, busLocation FROM TARGET_INFO_GPU ORDER BY id")
        for path in sorted((tmp_path / "copies").iterdir())
    ]
    assert names == [[(0, "gpu-0", "bus-0"), (1, "gpu-1", "bus-1")]] * 2


# Names that contain a metric that is read, and names of metrics that are not.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "SMs Active [Throughput %] hunter2",
        "hunter2 SMs Active [Throughput %]",
        "SMs Active [Throughput %]\nhunter2",
        "hunter2 [Throughput %]",
        "GR Active [Throughput %]",
    ],
)
def test_metrics_with_other_names_are_left_out_with_their_samples(tmp_path, name):
    builders = sampled_ranks()
    builders[0].counter(name, {77: 4711})
    original, copy = counted_copies(tmp_path, *builders)
    assert copy.counters().equals(original.counters())
    path = tmp_path / "copies" / "run_0.sqlite"
    n_metrics = "SELECT count(*) FROM TARGET_INFO_GPU_METRICS"
    assert query(path, n_metrics) == [(10,)]
    assert query(path, "SELECT count(*) FROM GPU_METRICS WHERE value = 4711") == [(0,)]
    assert b"hunter2" not in path.read_bytes()


def test_texts_among_the_samples_of_metrics_are_left_out(tmp_path):
    reports = write(tmp_path / "reports", *sampled_ranks())
    for column in ("value", "timestamp", "rawTimestamp"):
        edit(
            reports / "run_0.sqlite", f"UPDATE GPU_METRICS SET {column} = 'hunter2' WHERE rowid = 7"
        )
    edit(reports / "run_0.sqlite", "UPDATE TARGET_INFO_GPU_METRICS SET typeName = 'hunter2'")
    redact(str(reports), tmp_path / "copies")
    path = tmp_path / "copies" / "run_0.sqlite"
    assert query(path, "SELECT timestamp, value FROM GPU_METRICS WHERE rowid = 7") == [(None, None)]
    assert b"hunter2" not in path.read_bytes()


def test_metrics_without_a_table_of_names_are_left_out(tmp_path):
    reports = write(tmp_path / "reports", *sampled_ranks())
    edit(reports / "run_0.sqlite", "DROP TABLE TARGET_INFO_GPU_METRICS")
    redact(str(reports), tmp_path / "copies")
    assert query(tmp_path / "copies" / "run_0.sqlite", "SELECT * FROM GPU_METRICS") == []
