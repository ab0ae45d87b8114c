"""What reports can answer, of real and built ones, and the flag that would add what is not there."""

import json

import pytest

from nsyspipe.analysis.kernels import LESS_HIDDEN
from nsyspipe.errors import OptionError
from nsyspipe.model.options import Reading
from nsyspipe.model.problems import CATALOGUE
from nsyspipe.nsys.find_reports import find_named
from nsyspipe.nsys.settings import LOG_WRITTEN
from nsyspipe.reader.fabric import read_nccl_logs, read_topology
from nsyspipe.run.doctor import examine
from nsyspipe.run.questions import (
    LESS_WAITING,
    NSYS_OF_EACH,
    ONE_NSYS_PER_GPU,
    QUESTIONS,
    SAMPLE_PYTHON,
    TRACE_LOCK,
    Beside,
)
from tests.build.nccl_layouts import BYTES, COMM, NCCL_2_21
from tests.build.python_samples import (
    BOOTSTRAP,
    LOCK_DOMAIN,
    lock_range,
    sample,
    with_domain,
)
from tests.build.sampled import sampled_rank, sampled_ranks
from tests.build.tools import edit, one_report, run_of
from tests.build.trace import (
    DEFAULT,
    KERNEL,
    MEMCPY,
    NVTX,
    RUNTIME,
    STRINGS,
    TraceBuilder,
    steady_rank,
)
from tests.conftest import REAL
from tests.golden.words import figures
from tests.pairs import reports

NEW = "3.25.0 2026.2.1 mfu"
LOGS = REAL / "logs"
# What the builder's reports have no tables for.
NEVER_BUILT = {
    "profiler_overhead",
    "os_runtime",
    "cpu_samples",
    "gpu_metrics",
    "python_lines",
    "python_lock",
}


def capabilities(*arguments, log=None, topology=None, rank_map=None, **patterns):
    """Return the capabilities of reports by name, after checks that hold for all."""
    logs, paths = (
        read_nccl_logs([log]) if log else None,
        read_topology(topology) if topology else None,
    )
    beside = Beside(rank_map=rank_map, log=logs, topology=paths)
    found = examine(find_named(arguments), Reading.from_text(**patterns), beside)
    assert [one.name for one in found.capabilities] == [question.name for question in QUESTIONS]
    for one in found.capabilities:
        assert (one.status == "yes") == (one.n_with == one.n_reports) == (not one.lacking), one
        assert one.n_with + len(one.lacking) == one.n_reports == len(found.reports), one
        assert one.found, one
        assert one.status != "yes" or one.fix is None, one
    return {one.name: one for one in found.capabilities}


def built(folder, *, without=(), version=NEW, n_ranks=2, **sizes):
    for rank in range(n_ranks):
        builder = steady_rank(rank, version=version, **{"world_size": n_ranks} | sizes)
        builder.range(1, 2, "ncclAllReduce", domain=1).write(
            folder / f"a_{rank}.sqlite", without=without
        )
    return folder


@pytest.mark.parametrize(
    ("table", "expected", "flag"),
    [
        (NVTX, {"nccl_ranges": "no", "phases": "partly"}, "--trace=cuda,nvtx"),
        (
            RUNTIME,
            {"launches": "no", "phases": "no", "idle_causes": "no", "device_clock": "no"},
            "--trace=cuda,nvtx",
        ),
        (
            KERNEL,
            {"compute_and_comm": "no", "kernel_shapes": "no", "steps": "no", "phases": "partly"},
            "without --tables",
        ),
        (MEMCPY, {"copies": "partly"}, "without --tables"),
        (
            STRINGS,
            {"compute_and_comm": "no", "steps": "no", "phases": "no", "nccl_ranges": "no"},
            "",
        ),
        ("TARGET_INFO_GPU", {"gpu_model": "no"}, "without --tables"),
        ("TARGET_INFO_SESSION_START_TIME", {"one_clock": "no"}, "nsys 2022.1"),
        ("META_DATA_CAPTURE", {"world_size": "no"}, "torchrun"),
    ],
)
def test_what_a_missing_table_costs_comes_with_the_flag_that_adds_it(
    tmp_path, table, expected, flag
):
    found = capabilities(built(tmp_path, without=(table,)))
    lacking = {
        name: one.status
        for name, one in found.items()
        if one.status != "yes" and name not in NEVER_BUILT
    }
    # No kernel beside communication has an equal without it; without names none is known to be
    # beside it.
    shapes = {} if table == STRINGS else {"kernel_shapes": "partly"}
    assert lacking == {"link": "no", "message_bytes": "no"} | shapes | expected
    assert all(flag in found[name].fix for name in list(expected)[:1])


@pytest.mark.parametrize(
    ("level", "is_written"), [("INFO", True), ("trace", True), ("WARN", False), (None, False)]
)
def test_the_log_of_a_run_that_wrote_one_is_to_be_passed(tmp_path, level, is_written):
    for rank in range(2):
        builder = steady_rank(rank, version=NEW, world_size=2).env(PATH="/bin")
        (builder.env(NCCL_DEBUG=level) if level else builder).write(tmp_path / f"a_{rank}.sqlite")
    assert (LOG_WRITTEN in capabilities(tmp_path)["link"].fix) == is_written


@pytest.mark.slow
def test_a_rank_alone_that_does_not_communicate_lacks_nothing_of_others(real, worded):
    found = capabilities(*reports("ddp-1gpu", real))
    names = ("one_clock", "message_bytes", "link")
    assert [found[name].status for name in names] == ["yes"] * 3
    worded(line for name in names for line in lines_of(name, found[name]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "status", "fix"),
    [
        ("2gpu-graph", "partly", CATALOGUE["graphs-as-a-whole"].fix),
        ("2gpu-graph-node", "yes", None),
    ],
)
def test_why_devices_idle_inside_graphs_is_known_node_by_node(real, name, status, fix):
    found = capabilities(*reports(name, real))["idle_causes"]
    assert (found.status, found.fix) == (status, fix)


@pytest.mark.parametrize("name", ["2gpu-graph", "2gpu-graph-node"])
def test_calls_that_replayed_graphs_do_not_make_need_steps_without_graphs(real, name):
    found = capabilities(*reports(name, real))
    for what in ("nccl_ranges", "message_bytes"):
        assert (found[what].status, found[what].fix) == (
            "no",
            CATALOGUE["backward-in-graphs"].fix,
        ), what


def test_with_one_gpu_a_process_the_world_is_a_number_of_ranks(tmp_path):
    assert capabilities(built(tmp_path))["world_size"].found == "2"


def test_a_report_of_a_launcher_with_all_ranks_needs_an_nsys_for_each(real, worded):
    found = capabilities(*reports("ddp-4gpu-onefile", real))["world_size"]
    assert (found.status, found.fix) == ("no", NSYS_OF_EACH)
    worded(found.found)


# Each kernel of compute runs beside the 100 ns of communication, and hides so much of it.
@pytest.mark.parametrize(
    ("hidden", "fix"),
    [(60, LESS_HIDDEN), (50, LESS_HIDDEN), (49, LESS_WAITING)],
    ids=["60", "50", "49"],
)
def test_too_few_kernels_to_compare_are_one_statement_beside_their_shapes(
    tmp_path, hidden, fix, worded
):
    for rank in range(2):
        builder = TraceBuilder(version=NEW).env(RANK=rank, WORLD_SIZE=2)
        for step in range(4):
            at = 1000 + 1000 * step
            builder.range(at, at + 900, f"step {step}")
            builder.kernel(at + 10, at + 10 + hidden, "gemm", launch=at + 5)
            builder.nccl(at + 10, at + 110, launch=at + 6)
        builder.write(tmp_path / f"a_{rank}.sqlite")
    found = capabilities(tmp_path)["kernel_shapes"]
    assert (found.status, found.n_with, found.fix) == ("partly", 0, fix)
    worded(found.found)


def test_what_one_report_lacks_is_partly_there_and_the_report_is_named(tmp_path, worded):
    built(tmp_path)
    steady_rank(1, version=NEW).write(tmp_path / "a_1.sqlite", without=(NVTX,))
    found = capabilities(tmp_path)
    assert (found["launches"].status, found["launches"].n_with) == ("yes", 2)
    assert (found["nccl_ranges"].status, found["nccl_ranges"].lacking) == (
        "partly",
        ("a_1.sqlite",),
    )
    # The steps of a run are those of all its ranks: what has none of its own has them by
    # repetition, as all others then.
    assert (found["steps"].status, figures(found["steps"].found)) == ("yes", {"4"})
    worded(found[name].found for name in ("nccl_ranges", "steps"))


def one(builder):
    return lambda folder: builder().write(folder / "a.sqlite")


def alone(**options):
    return lambda folder: built(folder, n_ranks=1, **options)


def kernel(version=DEFAULT, **environment):
    return TraceBuilder(version).env(**environment).kernel(0, 9, launch=0)


def named(*names):
    def build(folder):
        for name in names:
            kernel().write(folder / f"{name}.sqlite")

    return build


def in_graph():
    builder = kernel()
    builder.rows[KERNEL][0]["graphNodeId"] = 5
    return builder


def payload(**options):
    builder = steady_rank(0, version=NEW).nccl_payload(
        5, "ncclAllReduce", {COMM: 7, BYTES: 4096}, NCCL_2_21
    )
    return lambda folder: builder.write(folder / "a.sqlite", **options)


def two_processes(folder, *, has_mpi=False):
    builders = [TraceBuilder(pid=pid).kernel(0, 9, launch=0) for pid in (5, 6)]
    for rank, builder in enumerate(builders if has_mpi else ()):
        builder.string("MPI Rank 0")
        builder.string("MPI Rank 1")
        builder.range(0, None, f"MPI Rank {rank}", kind=39)
    one_report(*builders).write(folder / "a.sqlite")


def no_process(folder):
    path = steady_rank(0, world_size=1).write(folder / "a_0.sqlite")
    edit(path, *(f"ALTER TABLE {table} DROP COLUMN globalPid" for table in (KERNEL, MEMCPY)))


def two_hosts(folder):
    built(folder)
    steady_rank(2).host("node1").write(folder / "a_2.sqlite")
    edit(folder / "a_2.sqlite", "DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE value = 'node0'")


def own_phases():
    builder = kernel()
    for at in range(0, 30, 10):
        builder.range(at, at + 9, "batch 1").range(at + 1, at + 3, "grads").range(
            at + 4, at + 5, "load batch"
        )
    return builder


def one_without_steps(folder):
    built(folder)
    kernel(NEW).range(0, 5, "x").write(folder / "a_1.sqlite")


def synchronization_alone(folder):
    path = built(folder, n_ranks=1, without=(RUNTIME,)) / "a_0.sqlite"
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    edit(path, f'CREATE TABLE {table} (start INT, "end" INT)', f"INSERT INTO {table} VALUES (1, 2)")


KERNELS = one(
    lambda: kernel(WORLD_SIZE=2).kernel(9, 20, "my_all_reduce", launch=1).nccl(30, 40, launch=2)
)
ONCE = one(lambda: kernel().range(0, 9, "training").range(1, 2, "forward"))
LIBRARY = one(
    lambda: (
        kernel()
        .domain("NCCL", 1)
        .range(0, 1, "ncclAllReduce", domain=1)
        .range(2, 3, "Group", domain=1)
    )
)
NO_DESCRIPTION = ("NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES")
PART = "partly"


def two_worlds(folder):
    for size in (2, 4):
        steady_rank(0, world_size=size).write(folder / f"{size}.sqlite")


def payloads_of_ranks(folder):
    for rank in (1, 0):
        kernel(NEW).comm_payload(1, n_ranks=2, rank=rank).write(folder / f"x{rank}y.sqlite")


def whole_graphs(folder):
    TraceBuilder().graph(10, 20, launch=10).write(folder / "a.sqlite", without=(KERNEL,))


def of_mpi(folder):
    two_processes(folder, has_mpi=True)


def without_ranges(folder):
    built(folder, without=(NVTX,))


TWO_STEPS = one(lambda: TraceBuilder().range(0, 5, "step 1").range(6, 9, "step 2"))
ONE_TABLE = one(lambda: kernel().meta(EXPORT_PARAM_TABLES_TO_EXPORT=KERNEL))
OF_TWO = {"rank_map": {"a_0.sqlite": 1, "a_1.sqlite": 7}}
OF_PROCESSES = {"rank_map": {"a.sqlite:5": 4, "a.sqlite:6": 2}}
EVEN = [str(rank) for rank in range(0, 20, 2)]
# What is built, options, what is answered: by question status, figures of what is found, and
# options of the fix.
CASES = {
    "one kernel": (
        one(lambda: kernel().gpu().session(5)),
        {},
        {"copies": ("yes", "0"), "cuda_graphs": ("yes",), "ranks": ("yes",)},
    ),
    "one table": (ONE_TABLE, {}, {"copies": ("no",)}),
    "ranges that come once": (ONCE, {}, {"steps": ("no", "1", "--step"), "phases": (PART, "1")}),
    "ranges alone": (TWO_STEPS, {}, {"steps": ("yes", "2"), "compute_and_comm": ("no",)}),
    "ranges of a library": (LIBRARY, {}, {"steps": ("no",), "nccl_ranges": ("yes", "2")}),
    "no kernel of NCCL": (
        one(lambda: kernel(WORLD_SIZE=2)),
        {},
        {"compute_and_comm": (PART, "1", "0", "--comm-kernel")},
    ),
    "a whole graph": (
        one(lambda: kernel().graph(10, 20, launch=10)),
        {},
        {"cuda_graphs": (PART, "1", "--cuda-graph-trace=node")},
    ),
    "a node of a graph": (one(in_graph), {}, {"cuda_graphs": ("yes", "1")}),
    "whole graphs alone": (whole_graphs, {}, {"compute_and_comm": (PART,)}),
    "a payload": (payload(), {}, {"message_bytes": ("yes", "1")}),
    "a payload that nothing describes": (
        payload(without=NO_DESCRIPTION),
        {},
        {"message_bytes": ("no",)},
    ),
    "ranks of payloads": (
        payloads_of_ranks,
        {},
        {"ranks": ("yes", "0", "1"), "world_size": ("yes", "2")},
    ),
    # File names are the last source of ranks.
    "names of ranks": (named("a_0", "a_1"), {}, {"ranks": ("yes", "0", "1")}),
    "names of other ranks": (named("a_7", "a_3"), {}, {"ranks": ("yes", "3", "7")}),
    # Gaps in numbers from 0 prove ranks that are not there.
    "a gap": (named("a_0", "a_2"), {}, {"world_size": (PART, "3", "2")}),
    "a gap in a rank map": (named("a_0", "a_1"), OF_TWO, {"world_size": (PART, "8", "2")}),
    "names without numbers": (named("a", "b"), {}, {"ranks": (PART, "--rank-map")}),
    "one number twice": (named("a_0", "b_0"), {}, {"ranks": (PART, "0", "2")}),
    "two worlds": (two_worlds, {}, {"ranks": (PART, "0", "2"), "world_size": (PART, "2", "4")}),
    "ranks of MPI": (of_mpi, {}, {"ranks": ("yes", "0", "1")}),
    "no process": (no_process, {}, {"ranks": ("yes", "0")}),
    "a rank map of processes": (two_processes, OF_PROCESSES, {"ranks": ("yes", "2", "4")}),
    "one rank of 8": (alone(world_size=8), {}, {"world_size": (PART, "8", "1")}),
    # Without its size, a run whose only report communicates may have more ranks.
    "one rank of 2": (alone(world_size=2), {}, {"link": ("no",), "one_clock": ("no",)}),
    "no size": (alone(without=("META_DATA_CAPTURE",)), {}, {"link": ("no",)}),
    "two hosts": (two_hosts, {}, {"one_clock": ("yes", "2")}),
    # Each rank has steps 0 to 3; with one match each, no step would be whole.
    "a pattern": (built, {"step": "^step [0-9]"}, {"steps": ("yes", "4")}),
    "a pattern of one step": (built, {"step": "^step 2$"}, {"steps": (PART, "1")}),
    "a pattern of nothing": (built, {"step": "^Iter"}, {"steps": ("no", "0", "4", "--step")}),
    "a pattern of one rank": (
        one_without_steps,
        {"step": "^step"},
        {"steps": (PART, "4")},
    ),
    "a pattern without ranges": (without_ranges, {"step": "^step"}, {"steps": ("no",)}),
    "phases by other names": (one(own_phases), {}, {"phases": (PART, "3")}),
    "phases by patterns": (
        one(own_phases),
        {"step": "^batch", "backward": "^grads$"},
        {"phases": ("yes", "3")},
    ),
    "phases by one pattern": (
        one(own_phases),
        {"step": "^grads", "data": "batch"},
        {"phases": (PART, "6")},
    ),
    "kernels": (KERNELS, {}, {"compute_and_comm": ("yes", "3", "1")}),
    "kernels by a pattern": (
        KERNELS,
        {"comm_kernel": "^my_"},
        {"compute_and_comm": ("yes", "3", "2")},
    ),
    "kernels by a pattern of nothing": (
        KERNELS,
        {"comm_kernel": "^none"},
        {"compute_and_comm": ("yes", "3", "1")},
    ),
    "kernels by either": (
        KERNELS,
        {"comm_kernel": "nccl|my_"},
        {"compute_and_comm": ("yes", "3", "2")},
    ),
    "synchronization": (
        synchronization_alone,
        {},
        {"idle_causes": (PART, "1", "--trace=cuda,nvtx")},
    ),
    # Eight are named, and how many more there are.
    "many ranks": (named(*(f"a_{rank}" for rank in EVEN)), {}, {"ranks": ("yes", *EVEN[:8], "2")}),
}


def lines_of(name, answer):
    """Return a question with what is found, and the fix."""
    return [f"{name}: {answer.found}", *([f"  fix: {answer.fix}"] if answer.fix else [])]


@pytest.mark.parametrize(("build", "options", "expected"), CASES.values(), ids=CASES)
def test_what_built_reports_answer(tmp_path, build, options, expected, worded):
    build(tmp_path)
    found = capabilities(tmp_path, **options)
    assert {name: found[name].status for name in expected} == {
        name: status for name, (status, *_) in expected.items()
    }
    for name, (_, *parts) in expected.items():
        flags = {part for part in parts if part.startswith("--")}
        assert {*parts} - flags <= figures(found[name].found), name
        assert all(flag in found[name].fix for flag in flags), name
    worded(line for name in expected for line in lines_of(name, found[name]))


def test_a_capture_without_a_gpu_gets_no_useless_fix(tmp_path, worded):
    for rank in range(2):
        builder = TraceBuilder(pid=1000 + rank).session(5).env(RANK=rank, WORLD_SIZE=2)
        for at in range(0, 3000, 1000):
            builder.range(at, at + 900, f"step {at}").range(at, at + 300, "backward")
        builder.range(0, 2990, "nsyspipe.capture", thread="autograd")
        builder.range(0, 90, "load 1", pid=7).range(90, 95, "load 2", pid=7)  # no step, so no rank
        builder.write(tmp_path / f"cpu_{rank}.sqlite")
    found = capabilities(tmp_path)
    assert found["copies"].fix == found["compute_and_comm"].fix
    assert {one.code for one in examine(sorted(tmp_path.glob("*.sqlite"))).problems} == {
        "no-gpu-activity"
    }
    ranks = [{"rank": rank, "report": f"cpu_{rank}", "pid": 1000 + rank} for rank in range(2)]
    (tmp_path / "cpu.capture.json").write_text(
        json.dumps({"name": "cpu", "trace": ["nvtx", "osrt"], "ranks": ranks})
    )
    problems = examine(sorted(tmp_path.glob("*.sqlite"))).problems
    assert [(one.code, one.severity) for one in problems] == [("captured-without-gpu", "info")]
    found = capabilities(tmp_path)
    assert {found[name].status for name in ("ranks", "world_size")} == {"yes"}
    assert found["phases"].status == "partly"
    assert "nsyspipe.capture" not in found["steps"].found
    of_gpus = ("compute_and_comm", "copies", "gpu_model", "kernel_shapes", "cuda_graphs", "link")
    assert {found[name].status for name in of_gpus} == {"no"}
    names = ("ranks", "world_size", "phases", *of_gpus)
    assert {found[name].fix for name in names} == {None}
    worded(line for name in (*names, "steps") for line in lines_of(name, found[name]))


def test_a_rank_map_that_does_not_fit_is_an_error(tmp_path):
    built(tmp_path)
    # Empty, one lacks, one rank twice, one too many, another name.
    for rank_map in (
        {},
        {"a_0": 0},
        {"a_0": 0, "a_1": 0},
        {"a_0": 0, "a_1": 1, "a_2": 2},
        {"a_0": 0, "b_1": 1},
    ):
        with pytest.raises(OptionError, match="rank_map"):
            capabilities(tmp_path, rank_map=rank_map)


INIT = "ncclCommInitRank comm 0x1 rank {} nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x7 - Init"
CHANNEL = "Channel 00/0 : {}[0] -> {}[0] [send] via NET/IB/0/GDRDMA"
NETWORK = "".join(
    f"node{rank}:{5 + rank}:{5 + rank} [0] NCCL INFO {text.format(rank, 1 - rank)}\n"
    for rank in range(2)
    for text in (f"{INIT} START", CHANNEL, f"{INIT} COMPLETE")
)
VERSION = "node0:5:5 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
OF_ONE = "".join(
    line
    for line in (LOGS / "ddp-4gpu.nccl.log").read_text().splitlines(keepends=True)
    if ":957:" in line
)  # of four processes
ONE_GPU = "\tGPU0\tCPU Affinity\nGPU0\t X \t0-63\n"
# How many ranks there are, a log and a topology, by name or as text, and whether the link is known.
LINKS = {
    "neither": (4, None, None, "no"),
    "host memory, both": (4, "ddp-4gpu-shm", "topo-4gpu", "yes"),
    "host memory, a log": (4, "ddp-4gpu-shm", None, "yes"),
    "direct access, both": (4, "ddp-4gpu", "topo-4gpu", "yes"),
    "direct access, a log": (4, "ddp-4gpu", None, "partly"),
    "a topology": (4, None, "topo-4gpu", "partly"),
    "a log of another run": (2, "ddp-4gpu", None, "no"),
    "a network": (2, NETWORK, None, "yes"),
    "one log of four, and a topology": (4, OF_ONE, "topo-4gpu", "partly"),
    "one log of four": (4, OF_ONE, None, "partly"),
    "a log without links": (2, VERSION, None, "partly"),
    "a log without links, and a topology": (2, VERSION, "topo-4gpu", "partly"),
    "the topology of a GPU": (2, None, ONE_GPU, "partly"),
}


@pytest.mark.parametrize(("n_ranks", "log", "topology", "status"), LINKS.values(), ids=LINKS)
def test_the_link_needs_a_log_and_for_direct_access_the_topology(
    tmp_path, n_ranks, log, topology, status, worded
):
    def file(name, content, suffix):
        if content is None or "\n" not in content:
            return content and LOGS / f"{content}{suffix}"
        (tmp_path / name).write_text(content)
        return tmp_path / name

    files = {
        "log": file("nccl.log", log, ".nccl.log"),
        "topology": file("topo.txt", topology, ".txt"),
    }
    found = capabilities(built(tmp_path, n_ranks=n_ranks), **files)["link"]
    assert (found.status, found.fix is None) == (status, status == "yes")
    worded(lines_of("link", found))


def test_other_tables_are_told_with_their_flag(tmp_path):
    path = built(tmp_path, n_ranks=1) / "a_0.sqlite"
    before = path.read_bytes(), path.stat().st_mtime_ns
    found = capabilities(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns, [*tmp_path.iterdir()]) == (*before, [path])
    tables = {
        "os_runtime": ("OSRT_API", "--trace=cuda,nvtx,osrt"),
        "cpu_samples": ("COMPOSITE_EVENTS", "--sample=process-tree"),
        "profiler_overhead": ("PROFILER_OVERHEAD", ""),
    }
    for name, (table, flag) in tables.items():
        assert found[name].status == "no", name
        assert flag in (found[name].fix or ""), name
        edit(
            path,
            f'CREATE TABLE {table} (start INT, "end" INT)',
            f"INSERT INTO {table} VALUES (1, 2)",
        )
        answers = capabilities(path)
        assert [one for one in tables if answers[one].status == "yes"] == [*tables][
            : [*tables].index(name) + 1
        ], name
    assert figures(answers["profiler_overhead"].found) == {"1"}  # which nest: no pauses


@pytest.mark.parametrize(
    ("version", "option"),
    [
        ("2024.4.2", "--gpu-metrics-device=all"),
        ("2024.5.1", "--gpu-metrics-devices=all"),
        ("2026.1", "--gpu-metrics-devices=all"),
        (None, "--gpu-metrics-device=all"),
    ],
)
def test_gpu_metrics_need_the_option_as_its_nsys_calls_it(tmp_path, version, option):
    builder = TraceBuilder().kernel(0, 9, launch=0)
    (builder.meta(EXPORT_PRODUCT_VERSION=version) if version else builder).write(
        tmp_path / "a.sqlite"
    )
    fix = capabilities(tmp_path)["gpu_metrics"].fix
    assert fix.split()[-1] == option


@pytest.mark.parametrize(
    ("build", "is_of_one_rank"),
    [
        (built, True),
        (alone(world_size=2), True),
        (alone(world_size=1), False),
        (two_processes, False),
    ],
)
def test_gpu_metrics_are_for_one_rank_of_a_host_where_each_has_its_own_nsys(
    tmp_path, build, is_of_one_rank
):
    build(tmp_path)
    assert capabilities(tmp_path)["gpu_metrics"].fix.endswith(ONE_NSYS_PER_GPU) == is_of_one_rank


@pytest.mark.parametrize("version", ["(none) martisu", "2.9.1 2022.1.3", "3.4.0 2023.3.1", NEW])
@pytest.mark.parametrize("lazy", [True, False])
def test_every_version_is_examined(tmp_path, version, lazy):
    steady_rank(0, version=version, world_size=1).write(tmp_path / "a_0.sqlite", lazy=lazy)
    found = {name: one.status for name, one in capabilities(tmp_path).items()}
    assert {
        found[name] for name in ("steps", "phases", "compute_and_comm", "launches", "cuda_graphs")
    } == {"yes"}
    assert found["one_clock"] == ("no" if version.startswith("(none)") else "yes")


# --- what the analysis makes of the same reports --------------------------------------------------
# What it says of real reports is pinned by tests/golden/frozen/doctor.
def agreed(run, *arguments, **options):
    """Compare each claim of the doctor with what the analysis made of the same reports."""
    answers = capabilities(*arguments, **options)
    found = {name: one.status for name, one in answers.items()}
    problems = [row["code"] for row in run.problems.to_pylist() if row["severity"] != "info"]
    figures, sizes = run.summary().to_pylist()[0], run.collectives()["message_bytes"]
    has_phases = (
        not {"no-backward", "backward-in-graphs", "no-launches"} & {*problems}
        and not run.is_capture
    )
    for claim, fact in (
        (found["steps"] == "no", run.is_capture),
        (found["phases"] == "yes", has_phases),
        (found["ranks"] == "yes", "rank-by-order" not in problems),
        (found["world_size"] == "no", run.header.world_size is None),
        (found["world_size"] == "partly", "ranks-missing" in problems),
        (found["gpu_model"] == "yes", None not in run.ranks["gpu_name"].to_pylist()),
        (found["compute_and_comm"] == "yes", figures["comm_share"] is not None),
        (found["copies"] == "yes", figures["exposed_memory_share"] is not None),
    ):
        assert claim == fact, (found, problems)
    assert found["message_bytes"] == "yes" or sizes.null_count == len(sizes)
    for row in run.problem_rows:
        if row["code"] == "no-message-size" and found["message_bytes"] == "no":
            said = answers["message_bytes"]
            assert said.found in row["message"], row
            assert row["fix"] == said.fix, row
    return found


@pytest.mark.parametrize(
    "name",
    [
        "baseline",
        "ddp-1gpu",
        "ddp-2gpu",
        "ddp-2gpu-straggler",
        "ddp-4gpu-onefile",
        "fsdp-4gpu",
        "2gpu-fsdp2",
        "2gpu-gpt-b25",
        "2gpu-gpt-accum",
        "2gpu-graph",
        "2gpu-graph-node",
        "2gpu-moe",
        "2gpu-pp",
        "2gpu-tp",
    ],
)
@pytest.mark.slow
def test_the_doctor_agrees_with_the_analysis(real, runs, name):
    agreed(runs(name), *reports(name, real))


def with_ranges(n_ranges=0, text="", **options):
    """Return a rank with a kernel in each range."""
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).gpu()
    for at in range(0, 10 * n_ranges, 10):
        builder.kernel(at, at + 5, launch=at).range(at, at + 8, f"{text}{at}", **options)
    return builder


def operators_only():
    """Return a report in which every operator has a range, as emit_nvtx writes them, and no step has any."""
    return with_ranges(10, "aten::to, seq = ")


def of_a_library():  # only DALI and cuBLAS have ranges, around all launches
    builder = with_ranges(10, "run ", domain=3).domain("DALI", 3).domain("cuBLASLt", 4)
    for at in range(0, 100, 10):
        builder.range(at, at + 2, "matmul", domain=4)
    return builder


def layers(name="layer"):
    """Return one step of four layers and an optimizer: no family of steps."""
    adam = "multi_tensor<FusedAdamMathFunctor>"
    return with_ranges(4, f"{name} ").range(0, 100, "train").kernel(60, 70, adam, launch=60)


def warmed_up():
    """Return two warm-ups longer than the two steps after them."""
    builder = with_ranges()
    for at, name in ((0, "warm-up 0"), (50, "warm-up 1"), (100, "step 0"), (110, "step 1")):
        end = at + (40 if at < 100 else 8)
        for launch in range(at, end, 2 if at >= 100 else 10):
            builder.kernel(launch, launch + 1, launch=launch)
        builder.range(at, end, name)
    return builder


@pytest.mark.parametrize(
    ("build", "step", "family"),
    [
        (operators_only, None, None),
        (of_a_library, None, None),
        (layers, None, None),
        (lambda: layers("micro_batch"), None, None),
        (warmed_up, None, "step #"),
        (lambda: with_ranges().kernel(0, 9, launch=0), None, None),
        # What an option names.
        (of_a_library, "none", None),
        (of_a_library, "run", "run"),
        (operators_only, "aten", "aten"),
    ],
)
def test_the_doctor_and_the_analysis_find_the_same_steps(tmp_path, build, step, family):
    run = run_of(tmp_path, build(), step=step)
    found = agreed(run, tmp_path, **({"step": step} if step else {}))
    assert (run.step_family, run.is_capture, found["steps"] != "no") == (
        family,
        family is None,
        family is not None,
    )


def sampled(folder, n_ranks=2):
    """Write ranks of which the first counts for both GPUs."""
    for rank, builder in enumerate(sampled_ranks()[:n_ranks]):
        builder.write(folder / f"s_{rank}.sqlite")
    return folder


def test_the_gpu_metrics_of_a_rank_can_be_in_the_report_of_another(tmp_path):
    found = capabilities(sampled(tmp_path))["gpu_metrics"]
    # 5 counters of 2 GPUs, with 10 samples in each of 6 steps.
    assert (found.status, found.is_used, figures(found.found)) == ("yes", True, {"600"})


def test_the_gpu_metrics_of_another_run_on_the_same_gpu_do_not_count(tmp_path):
    sampled_ranks()[0].write(tmp_path / "a.sqlite")
    sampled_rank(0).write(tmp_path / "b.sqlite")
    found = capabilities(tmp_path)["gpu_metrics"]
    assert (found.status, found.lacking) == ("partly", ("b.sqlite",))


def test_gpu_metrics_of_other_gpus_only_are_no_answer(tmp_path):
    builder = steady_rank(0, version="3.20.3 2025.3.2", world_size=1)
    builder.gpu(0, "NVIDIA H200", uuid="a", busLocation="x")
    builder.counter("SMs Active [Throughput %]", {0: 5, 10: 5}, gpu=3)
    builder.write(tmp_path / "a_0.sqlite")
    found = capabilities(tmp_path)["gpu_metrics"]
    assert (found.status, found.fix.split()[-1]) == ("no", "--gpu-metrics-devices=all")


def test_gpu_metrics_with_unknown_names_are_no_answer(tmp_path):
    builder = steady_rank(0, version="3.20.3 2025.3.2", world_size=1)
    builder.counter("Frobs [Throughput %]", {0: 5, 10: 5}).write(tmp_path / "a_0.sqlite")
    found = capabilities(tmp_path)["gpu_metrics"]
    assert (found.status, found.fix) == ("no", CATALOGUE["counters-without-names"].fix)


def test_lines_of_python_and_waits_for_its_lock_are_counted(tmp_path):
    for rank, builder in enumerate(sampled_ranks()[:1]):
        builder.domain("GIL Trace", LOCK_DOMAIN)
        for at in (0, 100, 200):
            lock_range(builder, "worker", at, at + 50, waits=True)
        builder.write(tmp_path / f"s_{rank}.sqlite")
    found = capabilities(tmp_path)
    # 20 samples in each of 6 steps.
    lines, lock = found["python_lines"], found["python_lock"]
    assert (lines.status, lines.is_used, figures(lines.found)) == ("yes", True, {"120"})
    assert (lock.status, lock.is_used, figures(lock.found)) == ("yes", True, {"3"})


def test_missing_lines_of_python_and_waits_for_its_lock_come_with_their_flags(tmp_path):
    found = capabilities(built(tmp_path))
    assert (found["python_lines"].status, found["python_lines"].fix) == ("no", SAMPLE_PYTHON)
    assert (found["python_lock"].status, found["python_lock"].fix) == ("no", TRACE_LOCK)


def test_samples_of_python_without_lines_are_no_answer(tmp_path):
    builder = sample(with_domain(steady_rank(0, version=NEW)), 5, blob=b"")
    builder.write(tmp_path / "a_0.sqlite")
    found = capabilities(tmp_path)["python_lines"]
    assert (found.status, found.fix) == ("no", CATALOGUE["python-samples-without-lines"].fix)


def test_samples_of_python_threads_other_than_the_main_one_are_no_answer(tmp_path):
    builder = with_domain(steady_rank(0, version=NEW))
    sample(builder, 5, ("work", "/a/b.py", 3), BOOTSTRAP).write(tmp_path / "a_0.sqlite")
    found = capabilities(tmp_path)["python_lines"]
    assert (found.status, found.fix) == ("no", None)


def on_lagging_clock(folder, lag_us):
    """Write four steps of 10 ms with a kernel that starts `lag_us` after its launch.

    A call that waits for the kernel returns 4 us after its end. So the clocks of CPU and GPU may
    differ by the lag and 4 us.
    """
    builder = TraceBuilder(version=NEW).env(RANK=0, WORLD_SIZE=1)
    for step in range(4):
        at = 1_000_000 + 10_000_000 * step
        start = at + lag_us * 1000
        builder.range(at, at + 9_000_000, f"step {step}")
        builder.kernel(start, start + 1000, launch=at)
        builder.launch(at + 500_000, api="cudaDeviceSynchronize_v3020")
        builder.rows[RUNTIME][-1]["end"] = start + 5000
    builder.write(folder / "a_0.sqlite")


@pytest.mark.parametrize(
    ("lag_us", "status", "idle_status", "code"),
    [
        (900, "yes", "yes", None),
        (1100, "partly", "yes", "device-clock-uncertain"),
        (9900, "partly", "yes", "device-clock-uncertain"),
        (11000, "no", "no", "device-clock-unknown"),
    ],
)
def test_clocks_of_cpu_and_gpu_that_may_differ_are_a_lack(
    tmp_path, lag_us, status, idle_status, code
):
    on_lagging_clock(tmp_path, lag_us)
    found = capabilities(tmp_path)
    assert found["device_clock"].status == status
    assert found["device_clock"].fix == (CATALOGUE[code].fix if code else None)
    assert found["idle_causes"].status == idle_status


def test_without_timed_calls_the_clocks_of_cpu_and_gpu_cannot_be_compared(tmp_path):
    found = capabilities(built(tmp_path, without=(RUNTIME,)))["device_clock"]
    assert (found.status, found.fix) == ("no", CATALOGUE["no-launches"].fix)
