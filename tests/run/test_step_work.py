"""Tokens, samples, FLOPs and MFU of steps: values worked out by hand, from options and sidecars.

Each rank of the built reports has steps of 1000 ns with 200 ns of compute on an H200. Its dense
peak is 494.7 TFLOP/s for TF32, so that 49 470 000 FLOPs take 100 ns. One test has steps of a real
length.
"""

import json
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import nsyspipe
from nsyspipe.analysis.work import RUNGS, RankWork, ladder
from nsyspipe.errors import OptionError
from nsyspipe.model.captured import MAX_COUNT
from nsyspipe.model.peaks import DATATYPES, peak_flops_per_s, peaks_of
from nsyspipe.report.ladder import ladder_blocks
from nsyspipe.store.write import save
from tests.build.tools import codes
from tests.build.trace import TraceBuilder, steady_rank
from tests.conftest import examples
from tests.property.strategies import PROCESSES, build

IN_100_NS = 49_470_000
# The step of a real job on an H200: 9.483 TFLOP in 41.7 ms.
REAL_STEP_NS = 41_700_000
REAL_FLOPS = 9_483_000_000_000
AT = "2001-09-09T01:46:40Z"
WORK = ("tokens", "samples", "flops", "ideal_compute_ns", "slow_compute_ns", "mfu")


def loaded(folder, *works, **options):
    """Return the run of a steady rank for each of some works, which its sidecar has."""
    entries = []
    for at, work in enumerate(works):
        steady_rank(at, world_size=len(works)).write(folder / f"ddp_{at}.sqlite")
        entry = {"rank": at, "report": f"ddp_{at}", "pid": 1000 + at, "work_per_step": work}
        entries.append(entry)
    content = {"name": "ddp", "captured_at_utc": AT, "ranks": entries}
    (folder / "ddp.capture.json").write_text(json.dumps(content))
    return nsyspipe.load(folder, **options)


def worked(run):
    """Return the work of the steps that count, which is the same in all of them."""
    rows = [tuple(row[name] for name in WORK) for row in run.breakdown().to_pylist()]
    (row,) = set(rows)
    return row


def rates(run):
    (summary,) = run.summary().to_pylist()
    names = ("tokens_per_s", "samples_per_s", "flops_per_s", "mfu")
    return tuple(summary[name] for name in names)


def test_options_give_rates_mfu_and_the_ladder(tmp_path):
    run = loaded(
        tmp_path,
        *(None, None),
        tokens_per_step=8192,
        samples_per_step="4",
        flops_per_step="4.947e7",
        peak="TF32",
    )
    assert worked(run) == (8192, 4, IN_100_NS, 100, 100, 0.1)
    # A step of 1000 ns: 1e6 steps a second.
    assert rates(run) == pytest.approx((8192e6, 4e6, 49.47e12, 0.1))
    parts = ladder(run.breakdown())
    assert [*parts.rungs_ns.values()] == [30, 10, 760, 100, 100]
    assert parts.wall_ns == 1000
    (table,) = ladder_blocks(run)
    assert [row[-1] for row in table.rows] == ["3.0%", "1.0%", "76.0%", "10.0%", "10.0%"]
    rank_rates = run.rank_summary()["flops_per_s"].to_pylist()
    assert rank_rates == pytest.approx([49.47e12] * 2)


def real_step_rank(rank):
    """Return a rank of steps of 41.7 ms: 30 ms of compute, an all-reduce and a copy.

    The all-reduce is exposed for 3 ms on rank 0 and for 4 ms on rank 1. The copy takes 1 ms.
    """
    builder = TraceBuilder(pid=1000 + rank).env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank)
    builder.session(10**18 + rank).gpu(name="NVIDIA H200").host("node0")
    for step in range(4):
        at = step * REAL_STEP_NS
        builder.range(at, at + 41_000_000, f"step {step}")
        builder.kernel(at + 100_000, at + 30_100_000, launch=at + 10_000)
        end = at + 33_100_000 + rank * 1_000_000
        builder.nccl(at + 28_100_000, end, launch=at + 20_000)
        builder.copy(at + 35_100_000, at + 36_100_000, n_bytes=64, launch=at + 30_000)
    return builder


def test_a_real_step_has_its_worked_rate_mfu_and_ladder(tmp_path):
    """9.483 TFLOP in 41.7 ms is 227 TFLOP/s, which is 46 % of the peak of 494.7 TFLOP/s."""
    for rank in range(2):
        real_step_rank(rank).write(tmp_path / f"ddp_{rank}.sqlite")
    run = nsyspipe.load(tmp_path, flops_per_step="9.483e12", peak="tf32")
    (summary,) = run.summary().to_pylist()
    assert round(summary["flops_per_s"] / 1e12) == 227
    assert summary["flops_per_s"] == pytest.approx(REAL_FLOPS / 0.0417)
    assert round(summary["mfu"], 2) == 0.46
    # 9.483 TFLOP / 494.7 TFLOP/s = 19.16919345 ms, to the nearest ns.
    ideal_ns = 19_169_193
    assert summary["mfu"] == pytest.approx(ideal_ns / REAL_STEP_NS)
    slow_ns = 30_000_000 - ideal_ns
    rungs_of_ranks = {
        0: (3_000_000, 1_000_000, 7_700_000, slow_ns, ideal_ns),
        1: (4_000_000, 1_000_000, 6_700_000, slow_ns, ideal_ns),
    }
    steps = run.breakdown().to_pylist()
    assert {step["rank"] for step in steps} == {0, 1}
    for step in steps:
        rungs_ns = tuple(step[name] for name in RUNGS)
        assert rungs_ns == rungs_of_ranks[step["rank"]]
        assert sum(rungs_ns) == step["wall_ns"] == REAL_STEP_NS
    parts = ladder(run.breakdown())
    assert [*parts.rungs_ns.values()] == [3_500_000, 1_000_000, 7_200_000, slow_ns, ideal_ns]
    assert sum(parts.rungs_ns.values()) == parts.wall_ns == REAL_STEP_NS
    (table,) = ladder_blocks(run)
    assert [row[-1] for row in table.rows] == ["8.4%", "2.4%", "17.3%", "26.0%", "46.0%"]


def test_without_options_the_sidecar_says_it_and_mfu_needs_the_datatype(tmp_path):
    work = {"tokens": 8192, "flops": IN_100_NS}
    run = loaded(tmp_path, work, work)
    assert worked(run) == (8192, None, IN_100_NS, None, None, None)
    assert rates(run)[3] is None
    assert "no-datatype" in codes(run)
    assert [*ladder_blocks(run)] == []
    run = loaded(tmp_path, work, work, peak="tf32")
    assert worked(run) == (8192, None, IN_100_NS, 100, 100, 0.1)
    assert not {"no-datatype", "work-replaced"}.intersection(codes(run))


TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x256x32_cublas"
BF16 = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTN"


def named_rank(*kernels, n_steps=4):
    """Return a rank with steps of 1000 ns whose kernels have names and durations, in this order."""
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).session(10**18)
    builder.gpu(name="NVIDIA H200").host("node0")
    for step in range(n_steps):
        at = 1000 * step
        builder.range(at, at + 900, f"step {step}")
        start = at + 100
        for name, duration in kernels:
            builder.kernel(start, start + duration, name, launch=at + 10)
            start += duration
    return builder


def named_run(folder, *kernels, **options):
    path = named_rank(*kernels).write(folder / "a_0.sqlite")
    return nsyspipe.load(path, flops_per_step=IN_100_NS, **options)


def peak_datatypes(run):
    return [(row["peak_datatype"], row["peak_datatype_source"]) for row in run.ranks.to_pylist()]


def test_the_names_of_kernels_show_the_datatype_of_the_peak(tmp_path):
    run = named_run(tmp_path, (TF32, 200), ("elementwise_kernel", 50))
    assert peak_datatypes(run) == [("tf32", "kernel names")]
    assert worked(run)[2:] == (IN_100_NS, 100, 150, 0.1)
    assert not {"no-datatype", "mixed-datatypes"}.intersection(codes(run))


def test_the_option_wins_over_the_names_of_kernels(tmp_path):
    run = named_run(tmp_path, (TF32, 200), peak="bf16")
    assert peak_datatypes(run) == [("bf16", "--peak")]
    # 989.4 TFLOP/s are twice the peak of TF32.
    assert worked(run)[3] == 50


@pytest.mark.parametrize(("n_others", "ideal_ns"), [(10, 100), (11, None)])
def test_a_step_that_mixes_datatypes_has_no_mfu(tmp_path, n_others, ideal_ns):
    # 190 of 200 ns are 95 %.
    run = named_run(tmp_path, (TF32, 200 - n_others), (BF16, n_others))
    assert worked(run)[3] == ideal_ns
    assert ("mixed-datatypes" in codes(run)) == (ideal_ns is None)


def test_kernels_of_steps_that_are_not_complete_show_no_datatype(tmp_path):
    builder = named_rank((TF32, 200))
    for at in range(-5000, -1000, 500):
        builder.kernel(at, at + 400, BF16)
    path = builder.write(tmp_path / "a_0.sqlite")
    assert peak_datatypes(nsyspipe.load(path)) == [("tf32", "kernel names")]


def test_without_a_datatype_the_columns_of_the_peak_are_null(tmp_path):
    run = named_run(tmp_path, ("gemm", 200))
    assert peak_datatypes(run) == [(None, None)]
    assert "no-datatype" in codes(run)


def test_graphs_as_a_whole_hide_the_datatype(tmp_path):
    builder = named_rank((TF32, 200))
    for step in range(4):
        builder.graph(1000 * step + 400, 1000 * step + 700, launch=1000 * step + 20)
    run = nsyspipe.load(builder.write(tmp_path / "a_0.sqlite"), flops_per_step=IN_100_NS)
    assert peak_datatypes(run) == [(None, None)]


def test_the_ladder_names_the_peak_and_what_shows_its_datatype(tmp_path, worded):
    for name, options in (("kernel names", {}), ("option", {"peak": "tf32"})):
        run = named_run(tmp_path, (TF32, 200), **options)
        (table,) = ladder_blocks(run)
        worded(table.note, name)


@pytest.mark.slow
def test_a_real_program_has_the_datatype_that_it_was_run_with(runs):
    assert set(peak_datatypes(runs("2gpu-fsdp2"))) == {("bf16", "kernel names")}
    assert set(peak_datatypes(runs("ddp-2gpu"))) == {("fp32", "kernel names")}


def test_ranks_may_have_different_flops_but_tokens_are_of_the_job(tmp_path):
    first = {"tokens": 8192, "flops": IN_100_NS}
    second = {"tokens": 4096, "flops": 2 * IN_100_NS}
    run = loaded(tmp_path, first, second, peak="tf32")
    assert {(row["rank"], row["ideal_compute_ns"]) for row in run.breakdown().to_pylist()} == {
        (0, 100),
        (1, 200),
    }
    assert rates(run) == (None, None, pytest.approx(1.5 * 49.47e12), 0.15)
    assert "work-differs" in codes(run)


def test_an_option_wins_over_the_sidecar_and_the_contradiction_is_told(tmp_path, worded):
    run = loaded(tmp_path, {"tokens": 5}, {"tokens": 5}, tokens_per_step=7)
    assert worked(run)[0] == 7
    (row,) = [row for row in run.problem_rows if row["code"] == "work-replaced"]
    worded(row["message"])
    assert "work-replaced" not in codes(loaded(tmp_path, *[{"tokens": 5}] * 2, tokens_per_step=5))


def test_more_flops_than_the_peak_allows_have_no_slow_compute(tmp_path):
    run = loaded(tmp_path, None, flops_per_step=2 * IN_100_NS, peak="tf32")
    assert worked(run)[3:5] == (200, 0)
    assert "faster-than-peak" not in codes(run)
    run = loaded(tmp_path, None, flops_per_step=2 * IN_100_NS + 500_000, peak="tf32")
    assert worked(run)[3:5] == (201, None)
    assert "faster-than-peak" in codes(run)
    assert ladder(run.breakdown()) is None


def test_without_steps_nothing_is_known_of_them(tmp_path):
    run = loaded(tmp_path, {"tokens": 5}, step="none", flops_per_step=5, peak="tf32")
    assert worked(run) == (None,) * 6
    assert rates(run) == (None,) * 4


@pytest.mark.slow
def test_a_saved_run_has_the_same_work_and_takes_no_options(tmp_path):
    run = loaded(tmp_path, None, flops_per_step=IN_100_NS, peak="tf32", run_id="x")
    save(run, tmp_path / "store")
    saved = nsyspipe.load(tmp_path / "store")
    assert worked(saved) == worked(run)
    with pytest.raises(OptionError):
        nsyspipe.load(tmp_path / "store", peak="tf32").steps()


@pytest.mark.parametrize(
    "value", [0, -1, True, "", "x", "1.5", 1.5, "1e30", "1e99999", "9" * 30, "nan", "1\n", [], {}]
)
def test_what_is_no_count_is_refused(tmp_path, value):
    for name in ("tokens_per_step", "samples_per_step", "flops_per_step"):
        with pytest.raises(OptionError):
            loaded(tmp_path, None, **{name: value})


def test_an_unknown_datatype_is_refused_and_an_unknown_gpu_has_no_peak(tmp_path):
    with pytest.raises(OptionError):
        loaded(tmp_path, None, peak="int4")
    steady_rank(0, world_size=1).gpu(0, "GPU <b>").write(tmp_path / "ddp_0.sqlite")
    run = nsyspipe.load(tmp_path, flops_per_step=5, peak="bf16")
    assert rates(run)[3] is None
    assert rates(run)[2] == pytest.approx(5e6)


@pytest.mark.slow
def test_the_largest_counts_do_not_overflow(tmp_path):
    run = loaded(tmp_path, *[{"flops": MAX_COUNT}] * 12, peak="fp32")
    assert rates(run)[2] == pytest.approx(1e24)
    assert "faster-than-peak" in codes(run)


@pytest.mark.parametrize(
    ("name", "datatype", "tflops"),
    [
        ("NVIDIA H200", "tf32", 494.7),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-PCIE-40GB", "tf32", 156),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla V100-SXM2-32GB", "bf16", None),
        ("NVIDIA L40S", "fp8", 733),
        ("NVIDIA A10", "fp16", 125),
        ("NVIDIA A10G", "fp16", None),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 4090 D", "bf16", None),
        ("NVIDIA B200", "bf16", 2250),
        # A part of a GPU has not the peak of the whole.
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),
        (None, "bf16", None),
    ],
)
def test_a_peak_belongs_to_a_gpu_and_a_datatype(name, datatype, tflops):
    peak = peak_flops_per_s(name, datatype)
    assert peak == (None if tflops is None else round(tflops * 1e12))


def test_every_gpu_of_the_table_has_a_source_and_no_peak_falls_with_a_smaller_type():
    names = ("NVIDIA H200", "NVIDIA A100-SXM4-40GB", "NVIDIA L4", "NVIDIA A30", "NVIDIA H200 NVL")
    for name in names:
        assert peaks_of(name).source
        known = [peak_flops_per_s(name, datatype) for datatype in DATATYPES]
        known = [peak for peak in known if peak is not None]
        assert known == sorted(known)


@given(st.integers(1, MAX_COUNT), st.integers(10**12, 10**16))
def test_ideal_compute_is_the_nearest_ns(flops, peak):
    ideal_ns = RankWork(flops=flops, peak_flops_per_s=peak).ideal_compute_ns
    assert abs(Fraction(flops * 10**9, peak) - ideal_ns) <= Fraction(1, 2)


@pytest.mark.slow
@examples(30)
@given(st.lists(PROCESSES, min_size=1, max_size=3), st.integers(1, 20_000_000))
def test_the_ladder_sums_exactly_on_every_capture(found, flops):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank, process in enumerate(found):
            build(process, pid=1000 + rank).gpu().write(folder / f"r_{rank}.sqlite")
        run = nsyspipe.load(folder, jobs=1, flops_per_step=flops, peak="bf16")
        ideal_ns = (flops * 10**9 + 494_700_000_000_000) // 989_400_000_000_000
        for row in run.steps().to_pylist():
            rungs = [row[rung] for rung in RUNGS]
            if None not in rungs:
                assert sum(rungs) == row["wall_ns"]
                assert row["ideal_compute_ns"] == ideal_ns
            elif row["ideal_compute_ns"] is not None and row["compute_ns"] is not None:
                assert row["compute_ns"] < ideal_ns or row["idle_ns"] is None
        parts = ladder(run.breakdown())
        assert parts is None or sum(parts.rungs_ns.values()) == parts.wall_ns
