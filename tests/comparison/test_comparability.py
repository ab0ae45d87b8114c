"""What makes two runs not comparable, or their comparison doubtful."""

import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

import nsyspipe
from nsyspipe.api import compare, diff
from nsyspipe.comparison.comparability import check_comparable, check_order
from nsyspipe.comparison.side import Side
from nsyspipe.model import schema
from nsyspipe.run.work import Work
from tests.build.tools import Changed
from tests.build.trace import TraceBuilder
from tests.comparison.conftest import STEPS, captured, changes, payload_run


# Whether they can be compared.
def checks(before, after):
    lists = [runs if isinstance(runs, list) else [runs] for runs in (before, after)]
    sides = [SimpleNamespace(name="x", runs=runs, work=Work.of(runs)) for runs in lists]
    # Built runs are one capture but for what a test changes.
    found = [one for one in check_comparable(*sides) if one.check != "same-capture"]
    return {check.check: (check.blocks, check.baseline, check.candidate) for check in found}


def test_a_run_and_itself_leave_no_other_doubt_than_that(run, made, worded):
    assert checks(run, run) == {}
    side = Side("x", (run,))
    # Whatever it is called.
    same_by_another_id = nsyspipe.load(run.inputs[0].parent, run_id="another")
    for case, other in (("itself", run), ("another id", same_by_another_id)):
        (found,) = check_comparable(side, Side("y", (other,)))
        assert (found.check, found.blocks) == ("same-capture", True), case
        worded([found.message, diff(run, other).metrics["why"][0].as_py()], case)
    # A capture of the same program whose kernels last longer is another one.
    assert check_comparable(side, Side("y", (made(*[[(1900, 100, 40, 60)] * 3] * 2),))) == []


# Compute of 0.001 ms of a kernel "gemm"; a matrix product of another name may be of another
# precision.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("compute", "kernel", "shared"),
    [
        (1_999, "gemm", None),
        (2_000, "gemm", []),
        (500, "gemm", []),
        (2_999, "conv", None),
        (3_000, "conv", ["0%"]),
        (1_001, "softmax", ["0%"]),
    ],
)
def test_steps_of_other_work_differ_by_what_they_compute(
    run, made, compute, kernel, shared, worded
):
    for family in ("step #", "Batch #"):
        other = Changed(
            made(*[[(compute, 100, 40, 60)] * 3] * 2, kernel=kernel), step_family=family
        )
        sides = [Side("a", (Changed(run, step_family="step #"),)), Side("b", (other,))]
        found = next((one for one in check_comparable(*sides) if one.check == "other-work"), None)
        assert (found is not None) == (shared is not None), family
        if found is not None:
            assert found.blocks, family
            assert re.findall("[0-9.]+ ms", found.baseline) == ["0.001 ms"], family
            assert re.findall("[0-9.]+ ms", found.candidate) == [f"{compute / 1e6:.4g} ms"], family
            assert re.findall("[0-9]+%", found.candidate) == shared, family
            worded([found.baseline, found.candidate], family)
            # What seems to do other work has no cause, is no regression, and is not ranked beside
            # it.
            assert (diff(*sides).cause, diff(*sides).verdict) == (None, "inconclusive"), family
            assert (
                compare(sides).table["why"].to_pylist()[1] == diff(*sides).metrics["why"][0].as_py()
            ), family
            assert [kind.labels for kind in compare(sides).kinds] == [("a",), ("b",)], family
            assert [kind.labels for kind in compare(sides, force=True).kinds] == [("a", "b")], (
                family
            )


# Each kernel's time and number in a step, of compute that is the sum: layers, micro-batches, a
# fused program, a precision.
@pytest.mark.parametrize(
    ("before", "after", "is_other"),
    [
        ({"gemm": (90, 9), "norm": (10, 3)}, {"gemm": (50, 5), "norm": (6, 2)}, True),
        ({"gemm": (90, 9), "norm": (10, 3)}, {"gemm": (95, 36), "norm": (12, 12)}, False),
        (
            {"gemm": (60, 9), "add": (20, 30), "norm": (20, 3)},
            {"gemm": (60, 9), "triton": (15, 6)},
            False,
        ),
        ({"gemm": (90, 9), "norm": (10, 3)}, {"gemm_bf16": (40, 9), "norm": (10, 3)}, False),
        ({"gemm": (90, 9), "norm": (10, 3)}, {"gemm_bf16": (40, 20), "norm": (10, 5)}, True),
        (
            {"gemm": (90, 9), "norm": (10, 3)},
            {"gemm_bf16": (80, 9), "conv": (10, 4), "softmax": (10, 5)},
            True,
        ),
    ],
)
def test_one_program_stays_comparable_and_programs_part(before, after, is_other):
    works = []
    for kernels in (before, after):
        products = sum(n for name, (_, n) in kernels.items() if name.startswith(("gemm", "conv")))
        launches = {
            name: n for name, (_, n) in kernels.items() if not name.startswith(("gemm", "conv"))
        }
        times = {name: ns for name, (ns, _) in kernels.items()}
        works.append(
            Work(sum(times.values()), times, {"matrix products": products, **launches}, {})
        )
    assert (works[0].is_other(works[1]), works[1].is_other(works[0])) == (is_other, is_other)


# What two ranks' communicator serves, on either side; null sizes of what serves nobody knows what
# may be of a model.
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("data", "tensor", (True, "1 (data 2)", "2 (tensor 2)")),
        ("pipeline", "sharded", (True, "2 (pipeline 2)", "1 (sharded 2)")),
        ("expert data", "tensor other", (True, "1 (expert and data 2)", "2 or more (tensor 2)")),
        ("data other", "tensor", (False, "not known (data 2)", "2 (tensor 2)")),
        ("data", "other", None),
        ("data", "sharded expert", None),
        ("tensor", "pipeline", None),
        ("tensor other", "tensor other", None),
    ],
)
def test_runs_whose_ranks_share_batches_part_from_others(run, made, before, after, expected):
    own, runs = (
        {"communicator": "0x1", "n_ranks": 2, "ranks": "0,1", "collective": "all_reduce"},
        [],
    )
    for one, roles in ((run, before), (made(*[[(1900, 100, 40, 60)] * 3] * 2), after)):
        rows = [own | {"role": role} for role in roles.split()]
        runs.append(Changed(one, traffic=partial(schema.TRAFFIC.from_rows, rows)))
    sides, is_parted = (
        [Side("a", runs[:1]), Side("b", runs[1:])],
        expected is not None and expected[0],
    )
    assert checks(*runs).get("shared-batch") == expected
    assert diff(*sides).is_comparable != is_parted
    assert len(compare(sides).kinds) == 1 + is_parted
    judged, forced = diff(*sides), diff(*sides, force=True)
    is_why_told = judged.metrics["why"][0] != forced.metrics["why"][0]
    assert is_why_told == is_parted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_parted", "parallelism"),
    [
        ("2gpu-tp", True, "tensor 2"),
        ("2gpu-pp", True, "pipeline 2"),
        ("2gpu-moe", False, "expert and data 2"),
        ("2gpu-fsdp2", False, "sharded 2"),
    ],
)
def test_real_runs_of_tensor_and_pipeline_parallelism_part_from_ddp(
    runs, name, is_parted, parallelism
):
    pair = runs("2gpu-gpt-b25"), runs(name)
    assert ("shared-batch" in checks(*pair)) == is_parted
    assert checks(*pair).get("experts") == ((False, "none", "some") if name == "2gpu-moe" else None)
    assert changes(*pair)["collectives", "parallelism"] == ("data 2", parallelism)


@pytest.mark.parametrize(
    ("before", "after", "is_told"),
    [
        (["2026-03-02T10:00:00Z"], ["2026-03-01T23:59:59Z"], True),
        (["2026-03-02"], ["2026-03-03"], False),
        (["2026-03-01", "2026-03-03"], ["2026-03-02", "2026-03-04"], False),
        (["2026-03-02"], [None], False),
    ],
)
def test_a_candidate_that_was_captured_first_is_told(run, before, after, is_told, worded):
    header = run.header
    runs = (
        [Changed(run, header=replace(header, captured_at_utc=time)) for time in side]
        for side in (before, after)
    )
    found = [*check_order(*(SimpleNamespace(runs=side) for side in runs))]
    assert len(found) == is_told
    for check in found:
        times = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", check.message)
        assert times == ["2026-03-02 10:00:00", "2026-03-01 23:59:59"], check
        worded(check.message)


@pytest.mark.slow
def test_another_world_size_or_gpu_blocks_and_what_was_not_recorded_does_not(run, made):
    assert checks(run, made(*[STEPS] * 3)) == {"world-size": (True, "2", "3")}
    runs = [made(*[STEPS] * n, world_size=None) for n in (2, 3)]
    assert checks(*runs)["world-size"] == (True, "2", "3")  # ranks are counted
    other, unknown = (made(STEPS, STEPS, gpu=gpu) for gpu in ("NVIDIA A100", None))
    assert checks(run, other) == {"gpu-model": (True, "NVIDIA H200", "NVIDIA A100")}
    assert checks(run, unknown)["gpu-model"] == (False, "NVIDIA H200", "not recorded")
    # Of captures of one side that differ each is told.
    assert checks(run, [run, other])["gpu-model"] == (
        True,
        "NVIDIA H200",
        "NVIDIA H200 | NVIDIA A100",
    )


def test_a_rank_that_only_one_side_lacks_blocks(run, made, worded):
    lacking = made(STEPS, world_size=2)
    found = checks(run, lacking)
    assert found["missing-ranks"] == (True, "none", "1")
    blocks, before, after = found["recorded"]
    assert (blocks, before) == (False, "none")
    worded(after)
    assert checks(lacking, lacking) == {
        "missing-ranks": (False, "1", "1")
    }  # where both lack the same, they are alike
    one, other = made(STEPS, world_size=12), made(STEPS, STEPS, world_size=12)  # many are counted
    assert checks(one, other)["missing-ranks"] == (
        True,
        "1, 2, 3, 4, 5, 6 and 5 more",
        "2, 3, 4, 5, 6, 7 and 4 more",
    )


def test_what_blocks_stands_first(run, made):
    other = made(*[STEPS[:1]] * 3, name="iter")
    found = [check.blocks for check in check_comparable(Side("a", (run,)), Side("b", (other,)))]
    assert found == sorted(found, reverse=True)
    assert found[0]


def with_one_range(builder):
    builder.rows["NVTX_EVENTS"] = builder.rows["NVTX_EVENTS"][:2]


def with_overhead(builder):
    """Let the profiler work in the first step of the figures, [1600, 2800): 120 of 3 x 1200 ns."""
    builder.schema = builder.schema | {"PROFILER_OVERHEAD": {"start": "INT", "end": "INT"}}
    builder.add("PROFILER_OVERHEAD", start=2000, end=2120)


@pytest.mark.parametrize(
    ("steps", "options", "check", "sides"),
    [
        (STEPS, {"name": "iter"}, "step-family", ("'step #'", "'iter #'")),
        (STEPS, {"load": {"skip_first": 0}}, "skipped-steps", ("1", "0")),
        (STEPS[:2], {}, "few-steps", ("3", "2")),
        (
            STEPS,
            {"edit": with_one_range, "load": {"step": "step"}},
            "cut-off-steps",
            ("none", "some"),
        ),
        (STEPS, {"edit": with_overhead}, "profiler-overhead", ("0.0%", "3.3%")),
    ],
)
def test_what_makes_a_comparison_doubtful_is_named(run, made, steps, options, check, sides):
    found = checks(run, made(steps, steps, **options))
    assert found[check] == (False, *sides)
    if check in {"step-family", "few-steps"}:
        assert list(found) == [check]


def test_what_only_one_side_recorded_makes_a_comparison_doubtful(run, made, worded):
    without_copies = made(STEPS, STEPS, without=("CUPTI_ACTIVITY_KIND_MEMCPY",))
    blocks, before, after = checks(run, without_copies)["recorded"]
    assert (blocks, before) == (False, "none")
    worded(after)


@pytest.mark.slow
def test_other_message_bytes_are_named(tmp_path):
    runs = [payload_run(tmp_path / str(size), size) for size in (4096, 8192, 4100)]
    assert checks(runs[0], runs[1]) == {"message-bytes": (False, "0.004096 MB", "0.008192 MB")}
    assert checks(runs[0], runs[2]) == {}  # a tenth of a per cent is padding
    assert (
        checks(runs[:2], runs[0])["message-bytes"][1] == "0.006144 MB"
    )  # of several captures their mean


def test_other_traces_are_named_where_both_sides_say_theirs(run):
    cuda, nvtx, osrt = (
        captured(run, trace=trace.split()) for trace in ("cuda", "cuda nvtx", "nvtx cuda osrt")
    )
    assert checks(nvtx, osrt) == {"traces": (False, "cuda, nvtx", "cuda, nvtx, osrt")}
    assert checks(cuda, run) == {}


def test_other_methods_of_the_cuda_trace_are_named_where_both_sides_know_theirs(run):
    silent = Changed(run, header=replace(run.header, cuda_traces=[]))
    asked = {word: captured(silent, trace=[word]) for word in ("cuda", "cuda-sw", "cuda-hw")}
    found = checks(asked["cuda-sw"], asked["cuda-hw"])
    assert found["cuda-trace"] == (False, "software", "hardware")
    assert "cuda-trace" not in checks(asked["cuda"], asked["cuda-hw"])
    assert "cuda-trace" not in checks(asked["cuda-hw"], asked["cuda-hw"])


def test_another_sampling_of_python_is_named_where_both_sides_know_theirs(run):
    off, slow, fast, unknown = (
        Changed(run, header=replace(run.header, python_samplings=rates))
        for rates in (["off"], ["200"], ["1000"], [])
    )
    assert checks(off, fast)["python-sampling"] == (False, "off", "1000 per second")
    assert checks(slow, fast)["python-sampling"] == (False, "200 per second", "1000 per second")
    assert "python-sampling" not in checks(fast, fast)
    assert "python-sampling" not in checks(unknown, fast)


def test_captures_without_gpu_activity_lack_that_and_no_ranks(run, tmp_path, worded):
    for rank in range(2):
        host = (
            TraceBuilder(pid=1000 + rank).session(10**18).host("node0").env(RANK=rank, WORLD_SIZE=2)
        )
        for step in range(3):
            host.range(1000 * step, 1000 * step + 300, f"step {step}")
        host.write(tmp_path / f"host_{rank}.sqlite")
    hosts = nsyspipe.load(tmp_path / "host_*.sqlite", jobs=1)
    assert checks(hosts, hosts) == {"no-gpu-activity": (False, "not recorded", "not recorded")}
    found = checks(run, hosts)
    assert found["no-gpu-activity"] == (True, "recorded", "not recorded")
    assert "missing-ranks" not in found
    assert "few-steps" not in found
    *_, check = check_comparable(Side("a", (hosts,)), Side("b", (hosts,)))
    row = diff(hosts, hosts).judged_rows[0]
    assert row["verdict"] == "inconclusive"
    worded([check.message, row["why"]])


@pytest.mark.slow
def test_what_would_settle_a_finding_is_not_the_command_that_is_running(runs):
    run = runs("2gpu-gpt-b25-shm")
    (fix,) = [
        row["fix"] for row in run.problems.to_pylist() if "comm-slows-compute" in row["message"]
    ]
    assert fix.endswith(": nsyspipe.diff")
    fixes = {
        row["fix"]
        for row in diff(run, run).problems.to_pylist()
        if "comm-slows-compute" in row["message"]
    }
    assert fixes == {fix.removesuffix(": nsyspipe.diff")}
