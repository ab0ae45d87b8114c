"""What reports can answer, of real and built ones, and the flag that would add what is not there."""

from __future__ import annotations

import json

import pytest

import nsyspipe
from nsyspipe.errors import InputError, OptionError
from nsyspipe.model.options import Reading
from nsyspipe.nsys.find_reports import find_reports
from nsyspipe.reader.fabric import read_nccl_logs, read_topology
from nsyspipe.run.doctor import examine
from nsyspipe.run.questions import Beside
from tests.build.nccl_layouts import BYTES, COMM, NCCL_2_21
from tests.build.tools import edit, one_report
from tests.build.trace import KERNEL, MEMCPY, NVTX, RUNTIME, STRINGS, TraceBuilder, steady_rank
from tests.conftest import REAL

NEW = "3.25.0 2026.2.1 mfu"
NAMES = [
    "steps", "phases", "compute_and_comm", "launches", "copies", "ranks", "world_size", "one_clock", "link",
    "gpu_model", "nccl_ranges", "message_bytes", "idle_causes", "kernel_shapes", "cuda_graphs", "profiler_overhead", "os_runtime",
    "cpu_samples", "gpu_metrics",
]  # fmt: skip
LOGS = REAL / "logs"
# What the builder's reports have no tables for.
NEVER_BUILT = {"profiler_overhead", "os_runtime", "cpu_samples", "gpu_metrics"}


def capabilities(*arguments, log=None, topology=None, rank_map=None, **patterns):
    """Return the capabilities of reports by name, after checks that hold for all."""
    beside = Beside(
        rank_map=rank_map,
        log=read_nccl_logs([log]) if log else None,
        topology=read_topology(topology) if topology else None,
    )
    found = examine(find_reports(arguments), Reading.from_text(**patterns), beside)
    assert [one.name for one in found.capabilities] == NAMES
    for one in found.capabilities:
        assert (one.status == "yes") == (one.n_with == one.n_reports) == (not one.lacking)
        assert one.n_with + len(one.lacking) == one.n_reports == len(found.reports)
        assert one.found
        assert one.status != "yes" or one.fix is None
    return {one.name: one for one in found.capabilities}


def statuses(*arguments):
    return {name: one.status for name, one in capabilities(*arguments).items()}


def lacking(*arguments):
    """Return what is not answered in full, besides what the builder never has."""
    return {
        name: status for name, status in statuses(*arguments).items() if status != "yes" and name not in NEVER_BUILT
    }


# --- real reports -------------------------------------------------------------------------------


def test_a_real_run_alone_answers_all_but_link_and_message_bytes(real):
    found = capabilities(real / "ddp-4gpu-shm_*.sqlite")
    assert {name for name, one in found.items() if one.status != "yes"} == {
        "link", "message_bytes", "cpu_samples", "gpu_metrics",
    }  # fmt: skip
    # Counts are SQLite's, over the four files.
    assert found["compute_and_comm"].found == "20832 kernels, 12 of them NCCL's"
    assert found["steps"].found == "12 Batch #, 12 backward, 12 forward"
    assert found["phases"].found == "12 backward, 12 forward, 12 optimizer, 12 data"
    assert found["ranks"].found == "0-3 from RANK"
    assert found["gpu_model"].found == "NVIDIA H200"


def test_the_fix_for_message_bytes_depends_on_what_the_export_has(real):
    old = capabilities(real / "ddp-2gpu-bucket100_*.sqlite")["message_bytes"]
    new = capabilities(real / "ddp-2gpu-bucket100-nsys2025_*.sqlite")["message_bytes"]
    assert "--include-blobs=true" in old.fix
    assert "nsys 2025.3 or newer" in old.fix
    assert "--include-blobs=true" in new.fix
    assert "2025.3" not in new.fix
    assert (new.status, new.found) == ("no", "described, but the payloads were not exported")


def test_a_report_around_torchrun_names_neither_ranks_nor_their_number(real):
    found = capabilities(real / "ddp-4gpu-onefile.sqlite")
    assert (found["ranks"].status, found["world_size"].status) == ("partly", "no")
    assert "--rank-map" in found["ranks"].fix


def agreed(reports, **options):
    """Compare each claim of the doctor with what the analysis makes of the same reports."""
    found = {name: one.status for name, one in capabilities(reports, **options).items()}
    run = nsyspipe.load(reports, **options)
    problems = [row["code"] for row in run.problems.to_pylist() if row["severity"] != "info"]
    figures = run.summary().to_pylist()[0]
    assert (found["steps"] == "no") == run.is_capture
    assert (found["phases"] == "yes") == (
        "no-backward" not in problems and "no-launches" not in problems and not run.is_capture
    )
    assert (found["ranks"] == "yes") == ("rank-by-order" not in problems)
    assert (found["world_size"] == "no") == (run.header.world_size is None)
    assert (found["world_size"] == "partly") == ("ranks-missing" in problems)
    assert (found["gpu_model"] == "yes") == (None not in run.ranks["gpu_name"].to_pylist())
    assert (found["compute_and_comm"] == "yes") == (figures["comm_share"] is not None)
    assert (found["copies"] == "yes") == (figures["exposed_memory_share"] is not None)
    sizes = run.collectives()["message_bytes"]
    assert found["message_bytes"] == "yes" or sizes.null_count == len(sizes)
    for row in run.problems.to_pylist():
        if row["code"] == "no-message-size" and found["message_bytes"] == "no":
            doctor = capabilities(reports, **options)["message_bytes"]
            assert (row["message"], row["fix"]) == (
                (f"message sizes were not recorded ({doctor.found}): bytes and bandwidths of collectives are null"),
                doctor.fix,
            )
    return found, run


RUNS = [
    "baseline", "ddp-1gpu_*", "ddp-2gpu_*", "ddp-2gpu-straggler_*", "ddp-4gpu-onefile", "fsdp-4gpu_*", "2gpu-fsdp2_*",
    "2gpu-gpt-b25_*", "2gpu-gpt-accum_*", "2gpu-graph_*", "2gpu-graph-node_*", "2gpu-moe_*", "2gpu-pp_*", "2gpu-tp_*",
]  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.slow
def test_the_doctor_agrees_with_the_analysis(real, run):
    agreed(real / f"{run}.sqlite")


def operators_only():
    """Return a report in which every operator has a range, as emit_nvtx writes them, and no step has any."""
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).gpu()
    for at in range(0, 100, 10):
        builder.kernel(at, at + 5, launch=at).range(at, at + 8, f"aten::to, seq = {at}")
    return builder


def of_a_library():
    """Return a report in which only DALI and cuBLAS have ranges, around all launches."""
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).gpu().domain("DALI", 3).domain("cuBLASLt", 4)
    for at in range(0, 100, 10):
        builder.kernel(at, at + 5, launch=at)
        builder.range(at, at + 8, f"run {at}", domain=3).range(at, at + 2, "matmul", domain=4)
    return builder


def layers(name="layer"):
    """Return one step of four layers and an optimizer: no family of steps."""
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).gpu().range(0, 100, "train")
    for at in range(0, 40, 10):
        builder.kernel(at, at + 5, launch=at).range(at, at + 8, f"{name} {at}")
    return builder.kernel(60, 70, "multi_tensor<FusedAdamMathFunctor>", launch=60)


def warmed_up():
    """Return two warm-ups longer than the two steps after them."""
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).gpu()
    for at, name in ((0, "warm-up 0"), (50, "warm-up 1"), (100, "step 0"), (110, "step 1")):
        end = at + (40 if at < 100 else 8)
        for launch in range(at, end, 2 if at >= 100 else 10):
            builder.kernel(launch, launch + 1, launch=launch)
        builder.range(at, end, name)
    return builder


@pytest.mark.slow
def test_the_doctor_and_the_analysis_say_alike_why_sizes_are_missing(real):
    # Graphs were captured before the capture began: no call of NCCL is seen. The other's export lacks the payloads.
    for name, why in (
        ("2gpu-graph-node_*", "no NVTX range of NCCL"),
        ("ddp-2gpu-bucket100-nsys2025_*", "described, but"),
    ):
        _, run = agreed(real / f"{name}.sqlite")
        rows = [row for row in run.problems.to_pylist() if row["code"] == "no-message-size"]
        assert [f"({why}" in row["message"] for row in rows] == [True]


@pytest.mark.parametrize(
    ("build", "family"),
    [
        (operators_only, None),
        (of_a_library, None),
        (layers, None),
        (lambda: layers("micro_batch"), None),
        (warmed_up, "step #"),
        (lambda: TraceBuilder().env(RANK=0, WORLD_SIZE=1).gpu().kernel(0, 9, launch=0), None),
    ],
    ids=["operators", "libraries", "layers", "micro-batches", "warm-up", "nothing"],
)
def test_the_doctor_and_the_analysis_find_the_same_steps(tmp_path, build, family):
    path = build().write(tmp_path / "a.sqlite")
    found, run = agreed(path)
    assert run.step_family == family
    assert (found["steps"] == "yes") == (family is not None)


@pytest.mark.parametrize("step", ["none", "run", "aten"])
def test_the_doctor_and_the_analysis_agree_on_what_an_option_names(tmp_path, step):
    path = (operators_only() if step == "aten" else of_a_library()).write(tmp_path / "a.sqlite")
    found, run = agreed(path, step=step)
    assert (found["steps"] == "yes") == (step != "none")
    assert run.is_capture == (step == "none")


@pytest.mark.slow
def test_reports_of_several_runs_may_be_examined_together(real):
    found = capabilities(real / "ddp-2gpu_*.sqlite", real / "ddp-4gpu_*.sqlite")
    assert found["ranks"].status == "partly"
    assert found["ranks"].found == "rank 0 is there 2 times in RANK"
    assert found["world_size"].found == "2, 4 in different reports"
    assert "one run" in found["ranks"].fix


# --- built reports, one thing missing --------------------------------------------------------------


def built(folder, *, without=(), version=NEW, n_ranks=2):
    for rank in range(n_ranks):
        builder = steady_rank(rank, version=version, world_size=n_ranks)
        builder.range(1, 2, "ncclAllReduce", domain=1).write(folder / f"a_{rank}.sqlite", without=without)
    return folder


@pytest.mark.parametrize(
    ("table", "expected", "flag"),
    [
        (NVTX, {"steps": "no", "phases": "no", "nccl_ranges": "no"}, "--trace=cuda,nvtx"),
        (RUNTIME, {"launches": "no", "phases": "no", "idle_causes": "no"}, "--trace=cuda,nvtx"),
        (
            KERNEL,
            {"compute_and_comm": "no", "kernel_shapes": "no", "steps": "no", "phases": "partly"},
            "without --tables",
        ),
        (MEMCPY, {"copies": "partly"}, "without --tables"),
        (STRINGS, {"compute_and_comm": "no", "steps": "no", "phases": "no", "nccl_ranges": "no"}, ""),
        ("TARGET_INFO_GPU", {"gpu_model": "no"}, "without --tables"),
        ("TARGET_INFO_SESSION_START_TIME", {"one_clock": "no"}, "nsys 2022.1"),
        ("META_DATA_CAPTURE", {"world_size": "no"}, "torchrun"),
    ],
)  # fmt: skip
def test_what_a_missing_table_costs_comes_with_the_flag_that_adds_it(tmp_path, table, expected, flag):
    found = capabilities(built(tmp_path, without=(table,)))
    # No kernel beside communication has an equal without it; without names none is known to be beside it.
    shapes = {} if table == STRINGS else {"kernel_shapes": "no"}
    assert lacking(tmp_path) == {"link": "no", "message_bytes": "no"} | shapes | expected
    assert all(flag in found[name].fix for name in list(expected)[:1])


def test_what_one_report_lacks_is_partly_there_and_the_report_is_named(tmp_path):
    built(tmp_path)
    steady_rank(1, version=NEW).write(tmp_path / "a_1.sqlite", without=(NVTX,))
    found = capabilities(tmp_path)["launches"]
    assert (found.status, found.n_with) == ("yes", 2)
    found = capabilities(tmp_path)["nccl_ranges"]
    assert (found.status, found.n_with, found.lacking) == ("partly", 1, ("a_1.sqlite",))
    assert found.found == "1 of 2 reports: 1 ranges"
    # The steps of a run are those of all its ranks: the analysis has none, and says so alike.
    found = capabilities(tmp_path)["steps"]
    assert (found.status, found.n_with) == ("no", 0)


def test_nothing_is_missing_where_nothing_happened(tmp_path):
    TraceBuilder().kernel(0, 9, launch=0).gpu().session(5).write(tmp_path / "a.sqlite")
    found = capabilities(tmp_path)
    assert found["copies"].status == found["cuda_graphs"].status == "yes"
    assert found["copies"].found == "0 copies, 0 memsets"
    assert found["ranks"].found == "only one"


def test_an_export_of_some_tables_says_nothing_about_the_others(tmp_path):
    builder = TraceBuilder().kernel(0, 9, launch=0)
    builder.meta(EXPORT_PARAM_TABLES_TO_EXPORT=KERNEL).write(tmp_path / "a.sqlite")
    assert capabilities(tmp_path)["copies"].status == "no"


def test_a_report_without_gpu_activity_is_examined(tmp_path):
    TraceBuilder().range(0, 5, "step 1").range(6, 9, "step 2").write(tmp_path / "a.sqlite")
    found = examine([tmp_path / "a.sqlite"])
    assert [one.code for one in found.problems] == ["no-gpu-activity"]
    by_name = {one.name: one for one in found.capabilities}
    assert by_name["steps"].status == "yes"
    assert by_name["compute_and_comm"].found == "no kernel"


def test_a_capture_without_a_gpu_lacks_no_rank_and_gets_no_fix_that_cannot_help(tmp_path):
    for rank in range(2):
        builder = TraceBuilder(pid=1000 + rank).session(5).env(RANK=rank, WORLD_SIZE=2)
        for at in range(0, 3000, 1000):
            builder.range(at, at + 900, f"step {at}").range(at, at + 300, "backward")
        builder.range(0, 2990, "nsyspipe.capture", thread="autograd")
        builder.range(0, 90, "load 1", pid=7).range(90, 95, "load 2", pid=7)  # no step, so no rank
        builder.write(tmp_path / f"cpu_{rank}.sqlite")
    assert capabilities(tmp_path)["copies"].fix == capabilities(tmp_path)["compute_and_comm"].fix
    ranks = [{"rank": rank, "report": f"cpu_{rank}", "pid": 1000 + rank} for rank in range(2)]
    said = {"name": "cpu", "trace": ["nvtx", "osrt"], "ranks": ranks}
    (tmp_path / "cpu.capture.json").write_text(json.dumps(said))
    found = examine(sorted(tmp_path.glob("*.sqlite")))
    assert [(one.code, one.severity) for one in found.problems] == [("captured-without-gpu", "info")]
    by_name = {one.name: one for one in found.capabilities}
    assert (by_name["ranks"].status, by_name["ranks"].found) == ("yes", "0-1 from RANK")
    assert (by_name["world_size"].status, by_name["world_size"].found) == ("yes", "2")
    assert (by_name["phases"].status, by_name["phases"].found) == ("partly", "6 backward")
    assert by_name["steps"].found.startswith("6 step #")
    assert "nsyspipe.capture" not in by_name["steps"].found
    for name in ("compute_and_comm", "copies", "gpu_model", "kernel_shapes", "cuda_graphs", "link"):
        assert (by_name[name].status, by_name[name].fix) == ("no", None)
        assert by_name[name].found == "captured without a GPU"


def test_a_newer_schema_than_any_tested_is_a_problem(tmp_path):
    builder = TraceBuilder().kernel(0, 9).meta(EXPORT_SCHEMA_VERSION="9.1.0")
    found = examine([builder.write(tmp_path / "a.sqlite")])
    assert [(one.code, one.report) for one in found.problems] == [("untested-version", "a.sqlite")]
    assert found.schema_versions == ("9.1.0",)


# --- steps and kernels ------------------------------------------------------------------------------


def test_ranges_that_come_once_are_no_steps(tmp_path):
    builder = TraceBuilder().kernel(0, 9, launch=0).range(0, 9, "training").range(1, 2, "forward")
    found = capabilities(builder.write(tmp_path / "a.sqlite"))
    assert (found["steps"].status, found["steps"].found) == ("no", "1 training, 1 forward")
    assert "--step" in found["steps"].fix
    assert (found["phases"].status, found["phases"].found) == ("partly", "1 forward")
    assert "backward" in found["phases"].fix


def test_ranges_of_libraries_are_no_steps(tmp_path):
    builder = TraceBuilder().kernel(0, 9, launch=0).domain("NCCL", 1)
    builder.range(0, 1, "ncclAllReduce", domain=1).range(2, 3, "Group", domain=1)
    found = capabilities(builder.write(tmp_path / "a.sqlite"))
    assert found["steps"].found == "no NVTX range but libraries' own"
    assert found["nccl_ranges"].found == "2 ranges"


def test_several_ranks_without_a_kernel_of_nccl_are_suspicious(tmp_path):
    TraceBuilder().kernel(0, 9, launch=0).env(WORLD_SIZE=2).write(tmp_path / "a.sqlite")
    found = capabilities(tmp_path)["compute_and_comm"]
    assert (found.status, found.found) == ("partly", "1 kernels, 0 of them NCCL's")
    assert "--comm-kernel" in found.fix


@pytest.mark.parametrize(("nodes", "status"), [(0, "partly"), (5, "yes")])
def test_graphs_need_their_nodes(tmp_path, nodes, status):
    builder = TraceBuilder().kernel(0, 9, launch=0)
    builder.rows[KERNEL][0]["graphNodeId"] = nodes or None
    if not nodes:
        builder.graph(10, 20, launch=10)
    found = capabilities(builder.write(tmp_path / "a.sqlite"))["cuda_graphs"]
    assert found.status == status
    assert found.found == ("1 kernels inside" if nodes else "1 graphs as a whole")
    assert nodes or "--cuda-graph-trace=node" in found.fix


def test_a_report_of_graphs_only_answers_in_part(tmp_path):
    TraceBuilder().graph(10, 20, launch=10).write(tmp_path / "a.sqlite", without=(KERNEL,))
    assert capabilities(tmp_path)["compute_and_comm"].status == "partly"


# --- payloads, ranks, world size, clock ----------------------------------------------------------------


def test_message_bytes_need_payloads_and_their_description(tmp_path):
    def message_bytes(**options):
        builder = steady_rank(0, version=NEW)
        builder.nccl_payload(5, "ncclAllReduce", {COMM: 7, BYTES: 4096}, NCCL_2_21)
        return capabilities(builder.write(tmp_path / "a.sqlite", **options))["message_bytes"]

    found = message_bytes()
    assert (found.status, found.found) == ("yes", "1 calls with their size")
    found = message_bytes(without=("NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES"))
    assert (found.status, found.found) == ("no", "payloads without a description")


def test_nccls_payload_names_ranks_and_their_number(tmp_path):
    for rank in (1, 0):
        builder = TraceBuilder(NEW).kernel(0, 9, launch=0)
        builder.comm_payload(1, n_ranks=2, rank=rank).write(tmp_path / f"x{rank}y.sqlite")
    found = capabilities(tmp_path)
    assert found["ranks"].found == "0-1 from NCCL's payload"
    assert (found["world_size"].status, found["world_size"].found) == ("yes", "2")


@pytest.mark.parametrize(
    ("names", "status", "text"),
    [
        (("a_0", "a_1"), "yes", "0-1 from file names"),
        (("a_7", "a_3"), "yes", "3, 7 from file names"),
        (("a", "b"), "partly", "nothing names them"),
        (("a_0", "b_0"), "partly", "rank 0 is there 2 times in file names"),
    ],
)  # fmt: skip
def test_file_names_are_the_last_source_of_ranks(tmp_path, names, status, text):
    for name in names:
        TraceBuilder().kernel(0, 9, launch=0).write(tmp_path / f"{name}.sqlite")
    found = capabilities(tmp_path)["ranks"]
    assert (found.status, found.found) == (status, text)


def test_threads_named_by_mpi_number_the_processes_of_one_report(tmp_path):
    builders = [TraceBuilder(pid=pid).kernel(0, 9, launch=0) for pid in (5, 6)]
    for rank, builder in enumerate(builders):
        builder.string("MPI Rank 0")
        builder.string("MPI Rank 1")
        builder.range(0, None, f"MPI Rank {rank}", kind=39)
    one_report(*builders).write(tmp_path / "a.sqlite")
    assert capabilities(tmp_path)["ranks"].found == "0-1 from MPI's thread names"


def test_operations_that_name_no_process_are_of_one(tmp_path):
    path = steady_rank(0, world_size=1).write(tmp_path / "a_0.sqlite")
    edit(path, *(f"ALTER TABLE {table} DROP COLUMN globalPid" for table in (KERNEL, MEMCPY)))
    assert capabilities(path)["ranks"].found == "0 from RANK"


def test_missing_ranks_are_counted(tmp_path):
    steady_rank(0, world_size=8).write(tmp_path / "a_0.sqlite")
    found = capabilities(tmp_path)["world_size"]
    assert (found.status, found.found) == ("partly", "8, of which 1 in these reports")
    assert found.fix == "pass the reports of all ranks"


@pytest.mark.slow
def test_many_ranks_with_gaps_are_listed_in_part(tmp_path):
    for rank in range(0, 20, 2):
        steady_rank(rank, world_size=20).write(tmp_path / f"a_{rank}.sqlite")
    assert capabilities(tmp_path)["ranks"].found == "0, 2, 4, 6, 8, 10, 12, 14, ... from RANK"


def test_one_rank_of_several_waits_for_nobody_that_can_be_seen(tmp_path):
    steady_rank(0, world_size=2).write(tmp_path / "a_0.sqlite")
    found = capabilities(tmp_path)["one_clock"]
    assert (found.status, found.found) == ("no", "the other ranks' reports are missing")
    assert found.fix == "pass the reports of all ranks"


def test_clocks_of_several_hosts_may_differ(tmp_path):
    built(tmp_path)
    steady_rank(2).host("node1").write(tmp_path / "a_2.sqlite")
    edit(tmp_path / "a_2.sqlite", "DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE value = 'node0'")
    assert "2 hosts" in capabilities(tmp_path)["one_clock"].found


# --- what the user says: patterns, ranks ----------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "status", "text"),
    [
        ("^step [0-9]", "yes", "8 match --step '^step [0-9]'"),
        ("^step 2$", "partly", "2 match --step '^step 2$'"),
        ("^Iter", "no", "0 match --step '^Iter', 8 step #, 8 backward, 8 forward"),
    ],
)
def test_the_users_steps_are_counted_and_if_there_are_none_what_else_there_is(tmp_path, step, status, text):
    # Each rank has steps 0 to 3; with one match each, no step would be whole.
    found = capabilities(built(tmp_path), step=step)
    assert (found["steps"].status, found["steps"].found) == (status, text)


def test_a_step_pattern_that_one_report_does_not_match_names_it(tmp_path):
    built(tmp_path)
    TraceBuilder(NEW).kernel(0, 9, launch=0).range(0, 5, "x").write(tmp_path / "a_1.sqlite")
    found = capabilities(tmp_path, step="^step")["steps"]
    assert (found.status, found.lacking) == ("partly", ("a_1.sqlite",))
    assert found.found == "1 of 2 reports: 4 match --step '^step'"


def test_a_step_pattern_without_any_range_finds_none(tmp_path):
    found = capabilities(built(tmp_path, without=(NVTX,)), step="^step")["steps"]
    assert (found.status, found.found) == ("no", "NVTX ranges were not recorded")


def test_the_users_phases_count_and_steps_are_none(tmp_path):
    builder = TraceBuilder().kernel(0, 9, launch=0)
    for at in range(0, 30, 10):
        builder.range(at, at + 9, "batch 1").range(at + 1, at + 3, "grads").range(at + 4, at + 5, "load batch")
    path = builder.write(tmp_path / "a.sqlite")
    assert capabilities(path)["phases"].found == "3 data"
    found = capabilities(path, step="^batch", backward="^grads$")["phases"]
    assert (found.status, found.found) == ("yes", "3 backward, 3 data")
    assert capabilities(path, step="^grads", data="batch")["phases"].found == "6 data"


def test_the_users_communication_kernels_count(tmp_path):
    builder = TraceBuilder().env(WORLD_SIZE=2).kernel(0, 9, launch=0)
    builder.kernel(9, 20, "my_all_reduce", launch=1).nccl(30, 40, launch=2)
    path = builder.write(tmp_path / "a.sqlite")
    for pattern, text in [
        (None, "3 kernels, 1 of them NCCL's"),
        ("^my_", "3 kernels, 2 of them communication"),
        ("^none", "3 kernels, 1 of them communication"),
        ("nccl|my_", "3 kernels, 2 of them communication"),
    ]:
        assert capabilities(path, comm_kernel=pattern)["compute_and_comm"].found == text


def test_a_rank_map_names_the_ranks(real):
    reports = real / "ddp-4gpu-shm_*.sqlite"
    names = {f"ddp-4gpu-shm_{rank}.sqlite": 3 - rank for rank in range(4)}
    found = capabilities(reports, rank_map=names)["ranks"]
    assert (found.status, found.found) == ("yes", "0-3 from --rank-map")


def test_a_rank_map_names_the_processes_of_one_report(tmp_path):
    builders = [TraceBuilder(pid=pid).kernel(0, 9, launch=0) for pid in (5, 6)]
    one_report(*builders).write(tmp_path / "a.sqlite")
    found = capabilities(tmp_path, rank_map={"a.sqlite:5": 4, "a.sqlite:6": 2})
    assert found["ranks"].found == "2, 4 from --rank-map"


@pytest.mark.parametrize(
    "rank_map",
    [{}, {"a_0": 0}, {"a_0": 0, "a_1": 0}, {"a_0": 0, "a_1": 1, "a_2": 2}, {"a_0": 0, "b_1": 1}],
    ids=["empty", "one lacks", "one rank twice", "one too many", "another name"],
)
def test_a_rank_map_that_does_not_fit_is_an_error(tmp_path, rank_map):
    with pytest.raises(OptionError, match="--rank-map"):
        capabilities(built(tmp_path), rank_map=rank_map)


# --- link -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "topology", "status", "text", "fixes"),
    [
        (None, None, "no", "neither NCCL's log nor the topology", ["--nccl-log", "--topology"]),
        (
            "ddp-4gpu-shm", "topo-4gpu", "yes",
            "SHM through host memory, although the GPUs are connected by NV18", [],
        ),
        ("ddp-4gpu-shm", None, "yes", "SHM through host memory", []),
        ("ddp-4gpu", "topo-4gpu", "yes", "NVLink (P2P/CUMEM over NV18)", []),
        (
            "ddp-4gpu", None, "partly",
            "direct access to GPU memory (P2P/CUMEM); nvidia-smi topo -m tells whether over NVLink or PCIe",
            ["--topology"],
        ),
        (
            None, "topo-4gpu", "partly",
            "the GPUs are connected by NV18; no NCCL log says what NCCL uses", ["--nccl-log"],
        ),
    ],
)  # fmt: skip
def test_the_link_needs_a_log_and_for_direct_access_the_topology(tmp_path, log, topology, status, text, fixes):
    found = capabilities(
        built(tmp_path, n_ranks=4), log=log and LOGS / f"{log}.nccl.log", topology=topology and LOGS / f"{topology}.txt"
    )["link"]
    assert (found.status, found.found) == (status, text)
    assert [option for option in ("--nccl-log", "--topology") if option in (found.fix or "")] == fixes


def test_a_log_of_another_run_says_nothing_of_the_link(tmp_path):
    found = capabilities(built(tmp_path), log=LOGS / "ddp-4gpu.nccl.log")["link"]
    assert (found.status, found.found) == ("no", "the log is of another run")
    assert "NCCL_DEBUG=INFO" in found.fix


def test_the_fix_for_the_link_is_what_to_run(tmp_path):
    assert capabilities(built(tmp_path))["link"].fix == (
        "run with NCCL_DEBUG=INFO and pass --nccl-log FILE; nvidia-smi topo -m > topo.txt and --topology topo.txt"
    )


def test_the_link_of_a_network_needs_no_topology(tmp_path):
    lines = [
        f"node{rank}:{5 + rank}:{5 + rank} [0] NCCL INFO {text}\n"
        for rank in range(2)
        for text in (
            f"ncclCommInitRank comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x7 - Init START",
            f"Channel 00/0 : {rank}[0] -> {1 - rank}[0] [send] via NET/IB/0/GDRDMA",
            f"ncclCommInitRank comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x7 - Init COMPLETE",
        )
    ]
    (tmp_path / "nccl.log").write_text("".join(lines))
    found = capabilities(built(tmp_path), log=tmp_path / "nccl.log")["link"]
    assert (found.status, found.found) == ("yes", "network (NET/IB/0/GDRDMA)")


def test_a_log_without_communicators_says_little(tmp_path):
    (tmp_path / "nccl.log").write_text("node0:5:5 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n")
    built(tmp_path)
    alone = capabilities(tmp_path, log=tmp_path / "nccl.log")["link"]
    assert (alone.status, alone.found) == ("partly", "the log does not say what NCCL uses")
    both = capabilities(tmp_path, log=tmp_path / "nccl.log", topology=LOGS / "topo-4gpu.txt")
    assert both["link"].status == "partly"
    assert "NCCL_DEBUG=INFO" in both["link"].fix


def test_a_topology_of_one_gpu_says_nothing(tmp_path):
    (tmp_path / "topo.txt").write_text("\tGPU0\tCPU Affinity\nGPU0\t X \t0-63\n")
    found = capabilities(built(tmp_path), topology=tmp_path / "topo.txt")["link"]
    assert found.status == "partly"
    assert found.found.startswith("a topology of one GPU")


@pytest.mark.parametrize("run", ["baseline", "ddp-1gpu_*"])
def test_one_rank_needs_no_link(real, run):
    found = capabilities(real / f"{run}.sqlite")["link"]
    assert (found.status, found.found) == ("yes", "one rank")


@pytest.mark.parametrize("sizes", [{"world_size": 2}, {}])
def test_one_report_of_several_ranks_needs_the_link(tmp_path, sizes):
    # Without its size, a run whose only report communicates may have more ranks.
    without = () if sizes else ("META_DATA_CAPTURE",)
    steady_rank(0, **sizes).write(tmp_path / "a_0.sqlite", without=without)
    assert capabilities(tmp_path)["link"].status == "no"


# --- tables that only a look in Nsight Systems uses ---------------------------------------------------


@pytest.mark.parametrize(
    ("name", "table", "flag"),
    [
        ("os_runtime", "OSRT_API", "--trace=cuda,nvtx,osrt"),
        ("cpu_samples", "COMPOSITE_EVENTS", "--sample=process-tree"),
        ("gpu_metrics", "GPU_METRICS", "--gpu-metrics-devices=all"),
        ("profiler_overhead", "PROFILER_OVERHEAD", None),
    ],
)  # fmt: skip
def test_other_tables_are_told_with_their_flag(tmp_path, name, table, flag):
    path = built(tmp_path, n_ranks=1) / "a_0.sqlite"
    found = capabilities(path)[name]
    assert found.status == "no"
    assert (flag or "") in (found.fix or "")
    edit(path, f'CREATE TABLE {table} (start INT, "end" INT)', f"INSERT INTO {table} VALUES (1, 2)")
    assert capabilities(path)[name].status == "yes"


def test_waits_alone_tell_part_of_why_the_gpu_idles(tmp_path):
    path = built(tmp_path, n_ranks=1, without=(RUNTIME,)) / "a_0.sqlite"
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    edit(path, f'CREATE TABLE {table} (start INT, "end" INT)', f"INSERT INTO {table} VALUES (1, 2)")
    assert capabilities(path)["idle_causes"].found == "1 waits"
    assert capabilities(path)["idle_causes"].status == "partly"


# --- versions and bad input -----------------------------------------------------------------------


@pytest.mark.parametrize("version", ["(none) martisu", "2.9.1 2022.1.3", "3.4.0 2023.3.1", NEW])
@pytest.mark.parametrize("lazy", [True, False])
def test_every_version_is_examined(tmp_path, version, lazy):
    steady_rank(0, version=version, world_size=1).write(tmp_path / "a_0.sqlite", lazy=lazy)
    found = statuses(tmp_path)
    assert {found[name] for name in ("steps", "phases", "compute_and_comm", "launches")} == {"yes"}
    assert found["one_clock"] == ("no" if version.startswith("(none)") else "yes")
    assert found["cuda_graphs"] == "yes"


def test_a_report_stays_as_it_is(tmp_path):
    path = built(tmp_path, n_ranks=1) / "a_0.sqlite"
    before = path.read_bytes(), path.stat().st_mtime_ns
    capabilities(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [one.name for one in tmp_path.iterdir()] == ["a_0.sqlite"]


@pytest.mark.parametrize("content", [b"", b"no database at all", b"SQLite format 3\0 cut"])
def test_what_is_no_report_is_an_input_error(tmp_path, content):
    (tmp_path / "a.sqlite").write_bytes(content)
    with pytest.raises(InputError):
        examine([tmp_path / "a.sqlite"])
