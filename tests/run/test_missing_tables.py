"""What a report does not hold costs exactly the answers that need it, and is said with the flag that mends it."""

import pytest

from nsyspipe.report.export import document
from nsyspipe.report.formats import dumps
from tests.build.tools import STEADY, codes, figures, nullable, problem_of, run_of
from tests.build.trace import (
    KERNEL,
    MEMCPY,
    MEMSET,
    NVTX,
    RUNTIME,
    STRINGS,
    TraceBuilder,
    schemas,
    steady_rank,
)
from tests.golden.words import figures as figures_of

pytestmark = pytest.mark.reads_anew

COPIES = dict.fromkeys(["dtod_ns", "dtod_bytes", "n_dtod", "exposed_dtod_ns"])
MEMORY = dict.fromkeys(["exposed_memory_ns", "idle_ns"])
META = "META_DATA_EXPORT"
NO_COPIES = dict.fromkeys(COPIES, 0) | {"exposed_memory_ns": 0, "idle_ns": 770}
LIMITED, WHOLE = {"EXPORT_PARAM_TABLES_TO_EXPORT": KERNEL}, {"EXPORT_PARAM_LAZY": "false"}
# The name of a table inside the name of another table does not name it.
OTHER_TABLES = {"EXPORT_PARAM_TABLES_TO_EXPORT": f"{STRINGS} {NVTX} {MEMCPY} {MEMSET}2"}


def rank():
    return steady_rank(0, world_size=1)


def load(tmp_path, builder=None, **options):
    return run_of(tmp_path, builder or rank(), **options)


def test_a_complete_report_has_no_problem_but_few_steps(tmp_path):
    assert codes(load(tmp_path)) == ["few-steps", "not-judged"]
    run = load(tmp_path, without=("TARGET_INFO_SESSION_START_TIME",))
    assert codes(run) == ["few-steps", "not-judged"]
    assert run.header.captured_at_utc is None


def test_without_nvtx_the_capture_is_one_step_unless_launches_repeat(tmp_path):
    assert load(tmp_path, without=(NVTX,)).header.steps_from == "repetition"
    run = load(tmp_path, without=(NVTX,), step="none")
    # From the first kernel at 100 to the end of the last copy at 3350, all four steps' work in it.
    total = {name: 4 * value for name, value in STEADY.items()}
    wall = {"wall_ns": 3250, "idle_ns": 3250 - 800 - 120 - 40, "overlap_backward_ns": None}
    assert figures(run, step=0) == total | wall
    names = ["start_ns", "end_ns", "is_complete", "in_summary"]
    assert [tuple(row.values()) for row in run.steps().select(names).to_pylist()] == [
        (100, 3350, False, True)
    ]
    assert ("no-steps" in codes(run), run.step_family) == (True, None)
    assert "--trace=cuda,nvtx" in problem_of(run, "no-nvtx")["fix"]


@pytest.mark.parametrize(
    ("traced", "meta", "code"),
    [
        (["NvtxEvents", "Cuda"], {}, "no-nvtx-ranges"),
        (["OSRuntime", "Cuda"], {}, "no-nvtx"),
        # What was traced may have been left out of the export.
        (["NvtxEvents"], LIMITED, "no-nvtx"),
    ],
)
def test_a_program_without_ranges_is_told_from_a_capture_without_nvtx(traced, meta, code, tmp_path):
    builder = rank().meta(**meta)
    for events in traced:
        builder.add("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value=events)
    run = load(tmp_path, builder, without=(NVTX,))
    assert {"no-nvtx", "no-nvtx-ranges"} & set(codes(run)) == {code}
    assert ("--trace=cuda,nvtx" in problem_of(run, code)["fix"]) == (code == "no-nvtx")


def test_without_api_calls_windows_are_the_ranges_and_backward_is_null(tmp_path):
    run = load(tmp_path, without=(RUNTIME,))
    assert figures(run) == STEADY | {"overlap_backward_ns": None}
    assert run.steps()["start_ns"].to_pylist() == [0, 1000, 2000, 3000]
    row = problem_of(run, "no-launches")
    assert (row["severity"], row["rank"]) == ("warning", 0)
    assert "16" in figures_of(row["message"])
    assert {
        *run.summary()["backward_overlap_ratio"].to_pylist(),
        *run.phases()["n_kernels"].to_pylist(),
    } == {None}
    # Without ranges too, the device alone still answers.
    run = load(tmp_path, without=(NVTX, RUNTIME))
    assert figures(run, step=0)["compute_ns"] == 800
    assert {"no-nvtx", "no-steps", "no-launches"} <= set(codes(run))


def test_copies_that_were_made_but_not_exported_are_null_not_zero(tmp_path):
    run = load(tmp_path, without=(MEMCPY,))
    summary = run.summary().to_pylist()[0]
    assert [
        summary[name] for name in ("idle_share", "exposed_memory_share", "dtod_ns_per_step")
    ] == [None] * 3
    assert (summary["comm_share"], summary["compute_share"]) == (0.06, 0.2)
    assert run.ranks["n_dtod"].to_pylist() == [None]
    assert problem_of(run, "no-memcpy")["severity"] == "warning"
    dumps(document(run))


def never_made(table):
    """Take all operations of a kind out of a report, and the calls that made them."""
    builder = rank()
    ids = {row["correlationId"] for row in builder.rows.pop(table, [])}
    builder.rows[RUNTIME] = [
        row for row in builder.rows[RUNTIME] if row["correlationId"] not in ids
    ]
    return builder


def emptied(table):
    builder = rank()
    builder.rows[table] = []
    return builder


def with_memset():
    return rank().memset(1400, 1420, launch=1095)


@pytest.mark.parametrize(
    ("build", "options", "expected", "problems"),
    [
        (rank, {"without": (MEMCPY,)}, COPIES | MEMORY, ["no-memcpy"]),
        (lambda: emptied(MEMCPY), {"lazy": False}, COPIES | MEMORY, ["no-memcpy"]),
        (lambda: never_made(MEMCPY), {}, NO_COPIES, []),
        (lambda: never_made(MEMCPY).meta(**WHOLE), {"lazy": False}, NO_COPIES, []),
        (lambda: never_made(MEMSET).meta(**WHOLE), {"lazy": False}, {}, []),
        # Copies are known where memsets are not.
        (with_memset, {"without": (MEMSET,)}, MEMORY, ["no-memset"]),
        (with_memset, {}, {"exposed_memory_ns": 30, "idle_ns": 740}, []),
        # No memset was made, and the table would be there.
        (
            lambda: rank().meta(
                EXPORT_PARAM_TABLES_TO_EXPORT=f"{STRINGS},{NVTX},{MEMCPY},{MEMSET}"
            ),
            {},
            {},
            [],
        ),
        # A table that the export did not leave out by itself is not recorded: there is no memset,
        # and no call of one.
        (lambda: rank().meta(**LIMITED), {}, MEMORY, ["no-memset"]),
        (lambda: rank().meta(**OTHER_TABLES), {}, MEMORY, ["no-memset"]),
        (lambda: rank().meta(**WHOLE), {}, MEMORY, ["no-memset"]),
    ],
)
def test_what_was_not_exported_is_null_and_what_was_never_made_is_zero(
    tmp_path, build, options, expected, problems
):
    run = load(tmp_path, build(), **options)
    assert figures(run) == STEADY | expected
    assert codes(run) == sorted(["few-steps", "not-judged", *problems])
    for code in problems:
        assert "--tables" in problem_of(run, code)["fix"], code


@pytest.mark.parametrize("lazy", ["true", "false", None])
def test_kernels_that_were_launched_are_unknown_in_a_table_without_rows_too(tmp_path, lazy):
    if lazy is None:
        run = load(tmp_path, without=(KERNEL,))
    else:
        run = load(tmp_path, emptied(KERNEL).meta(EXPORT_PARAM_LAZY=lazy), lazy=False)
    row = figures(run, step=0)
    # Copies alone are one window.
    assert (row["wall_ns"], row["dtod_ns"]) == (3350 - 340, 40)
    assert {row[name] for name in ("compute_ns", "comm_ns", "idle_ns", "exposed_dtod_ns")} == {None}
    assert {"no-kernels", "no-steps"} <= set(codes(run))
    assert run.ranks["n_kernels"].to_pylist() == [None]


@pytest.mark.parametrize("lazy", [True, False])
def test_without_rows_of_kernels_there_were_none_where_none_was_launched(tmp_path, lazy):
    run = load(tmp_path, TraceBuilder().copy(100, 140, launch=5).range(0, 50, "step 1"), lazy=lazy)
    row = run.steps().to_pylist()[0]
    assert (row["compute_ns"], row["comm_ns"], row["idle_ns"], row["dtod_ns"]) == (0, 0, 0, 40)
    assert "no-kernels" not in codes(run)
    # Nor are any missing that ran in graphs as a whole.
    builder = TraceBuilder().graph(100, 140, launch=5).range(0, 50, "step 1")
    assert "no-kernels" not in codes(load(tmp_path, builder, lazy=lazy))


@pytest.mark.parametrize("is_there", [True, False])
def test_without_rows_of_api_calls_no_launch_was_recorded(tmp_path, is_there):
    run = load(tmp_path, emptied(RUNTIME), without=() if is_there else (RUNTIME,), lazy=False)
    assert figures(run) == STEADY | {"overlap_backward_ns": None}
    row = run.steps().to_pylist()[1]
    causes = [
        row[f"idle_{cause}_ns"] for cause in ("input", "launch", "blocked", "dependency", "unknown")
    ]
    assert causes == [0, None, None, 0, 760]
    assert ("no-launches" in codes(run), run.idle_calls().num_rows) == (True, 0)


@pytest.mark.parametrize("missing", [0, 1])
def test_ranks_without_a_common_clock_are_not_aligned_at_all(tmp_path, missing):
    builders = [steady_rank(at).session(5) for at in range(2)]
    del builders[missing].rows["TARGET_INFO_SESSION_START_TIME"]
    run = run_of(tmp_path, *builders)
    assert run.ranks["clock_shift_ns"].to_pylist() == [0, 0]
    assert [row["start_ns"] for row in run.steps().to_pylist() if row["step"] == 1] == [1100, 1100]
    assert problem_of(run, "no-session-start")["report"] == f"a_{missing}.sqlite"


@pytest.mark.parametrize(
    ("table", "field", "empty"),
    [
        ("TARGET_INFO_SYSTEM_ENV", "hosts", []),
        (META, "nsys_versions", []),
        (META, "export_schema_versions", []),
        ("META_DATA_CAPTURE", "world_size", None),
        ("TARGET_INFO_GPU", "gpu_names", []),
    ],
)
def test_without_a_table_of_facts_only_its_facts_are_lost(tmp_path, table, field, empty):
    run = load(tmp_path, without=(table,))
    assert (figures(run), getattr(run.header, field)) == (STEADY, empty)
    if field == "gpu_names":
        assert run.ranks["gpu_name"].to_pylist() == [None]
        assert problem_of(run, "no-gpu-name")["severity"] == "info"


def test_two_gpu_models_are_separated_by_the_device_map(
    tmp_path,
):
    builder = TraceBuilder(version="3.24.0 2025.5.2")
    builder.rows.update(rank().rows, TARGET_INFO_GPU=[])
    builder.gpu(0, "A100").gpu(1, "H100").add(
        "TARGET_INFO_CUDA_DEVICE", pid=1000, cudaId=0, gpuId=1
    )
    assert load(tmp_path, builder).ranks["gpu_name"].to_pylist() == ["H100"]
    builder = rank().gpu(1, "A100").env(CUDA_VISIBLE_DEVICES="1,0")
    assert load(tmp_path, builder).ranks["gpu_name"].to_pylist() == [None]


def test_without_strings_nothing_has_a_name_and_that_is_said(tmp_path):
    run = run_of(tmp_path, steady_rank(0), steady_rank(1), without=(STRINGS,))
    row = run.steps().to_pylist()[0]
    # Compute cannot be told from communication, but busy from idle can: 4 x (230 + 10) ns are busy.
    assert (row["compute_ns"], row["comm_ns"], row["n_collectives"]) == (None, None, None)
    assert row["idle_ns"] == row["wall_ns"] - 4 * 240
    assert run.ranks["n_comm"].to_pylist() == [None, None]
    named = [row for row in run.problems.to_pylist() if row["code"] == "no-kernel-names"]
    assert [(row["rank"], row["severity"]) for row in named] == [(0, "error"), (1, "error")]
    assert ("no-comm-kernels" in codes(run), "no-steps" in codes(run)) == (False, True)


def test_a_rank_without_names_makes_the_runs_communication_unknown(tmp_path, worded):
    nameless = steady_rank(1)
    for row in nameless.rows[KERNEL]:
        row |= {"shortName": 999, "demangledName": 999}
    run = run_of(tmp_path, steady_rank(0), nameless)
    expected = {"comm_share": None, "compute_share": None, "idle_share": 0.76, "step_time_ns": 1000}
    assert run.summary().select([*expected]).to_pylist() == [expected]
    assert problem_of(run, "no-kernel-names")["rank"] == 1
    # That its collectives match none of the other's is no sign of another run.
    assert "different-runs" not in codes(run)
    worded(run.verdict)


@pytest.mark.parametrize("version", [one for one in schemas() if one.startswith("3.2")])
def test_a_newer_export_than_was_tested_is_said(tmp_path, version):
    builder = steady_rank(0, world_size=1, version=version)
    (row,) = [row for row in builder.rows[META] if row["name"] == "EXPORT_SCHEMA_VERSION"]
    row["value"] = "3.99.0"
    run = load(tmp_path, builder)
    assert figures(run) == STEADY
    assert "3.99.0" in problem_of(run, "untested-version")["message"]


@pytest.mark.parametrize("column", ["textId", "domainId", "text", "endGlobalTid", "rangeId"])
def test_a_column_of_nvtx_that_is_missing_costs_only_what_it_held(tmp_path, column):
    builder = nullable(rank())
    if column == "textId":
        texts = {number: text for text, number in builder.strings.items()}
        for row in builder.rows[NVTX]:
            row["text"] = texts[row["textId"]]
    del builder.schema[NVTX][column]
    assert figures(load(tmp_path, builder)) == STEADY
