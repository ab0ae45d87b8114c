"""What makes two runs not comparable, or their comparison doubtful."""

from __future__ import annotations

from dataclasses import replace

import pytest

import nsyspipe
from nsyspipe.api import diff
from nsyspipe.comparison.comparability import check_comparable
from nsyspipe.comparison.difference import Side
from nsyspipe.model.side_files import RunCapture
from tests.build.changed_run import Changed
from tests.build.nccl_layouts import NCCL_2_21
from tests.build.trace import TraceBuilder, steady_rank

NEW = "3.25.0 2026.2.1 mfu"
COMM, BYTES = "NCCL communicator ID", "Message size [bytes]"
STEPS = [(1000, 100, 40, 60)] * 3


def checks(before, after):
    sides = [Side("x", tuple(runs) if isinstance(runs, list | tuple) else (runs,)) for runs in (before, after)]
    # Built runs are one capture but for what a test changes.
    found = [one for one in check_comparable(*sides) if one.check != "same-capture"]
    return {check.check: (check.blocks, check.baseline, check.candidate) for check in found}


@pytest.fixture(scope="module")
def run(made):
    return made(STEPS, STEPS)


def test_a_run_and_itself_leave_no_other_doubt_than_that(run, made):
    assert checks(run, run) == {}
    side = Side("x", (run,))
    (found,) = check_comparable(side, side)
    assert (found.check, found.blocks) == ("same-capture", False)
    assert found.message == f"the same capture is on both sides: {run.header.label}"
    # A capture of the same program whose kernels last longer is another one.
    slower = made(*[[(2000, 100, 40, 60)] * 3] * 2)
    assert check_comparable(side, Side("y", (slower,))) == []


def test_another_world_size_blocks_and_without_a_recorded_one_ranks_are_counted(run, made):
    assert checks(run, made(*[STEPS] * 3)) == {"world-size": (True, "2", "3")}
    runs = [made(*[STEPS] * n, world_size=None) for n in (2, 3)]
    assert checks(*runs)["world-size"] == (True, "2", "3")


def test_another_gpu_blocks_and_an_unknown_one_does_not(run, made):
    other, unknown = (made(STEPS, STEPS, gpu=gpu) for gpu in ("NVIDIA A100", None))
    assert checks(run, other) == {"gpu-model": (True, "NVIDIA H200", "NVIDIA A100")}
    assert checks(run, unknown)["gpu-model"] == (False, "NVIDIA H200", "not recorded")
    # Of captures of one side that differ each is told.
    assert checks(run, [run, other])["gpu-model"] == (True, "NVIDIA H200", "NVIDIA H200 | NVIDIA A100")


def test_a_rank_that_only_one_side_lacks_blocks(run, made):
    lacking = made(STEPS, world_size=2)
    found = checks(run, lacking)
    assert found["missing-ranks"] == (True, "none", "1")
    assert found["recorded"] == (False, "none", "ranks-missing")
    # Where both lack the same, they are alike.
    assert checks(lacking, lacking) == {"missing-ranks": (False, "1", "1")}
    # Many are counted.
    one, other = made(STEPS, world_size=12), made(STEPS, STEPS, world_size=12)
    assert checks(one, other)["missing-ranks"] == (True, "1, 2, 3, 4, 5, 6 and 5 more", "2, 3, 4, 5, 6, 7 and 4 more")


def test_what_blocks_stands_first(run, made):
    other = made(*[STEPS[:1]] * 3, name="iter")
    found = [check.blocks for check in check_comparable(Side("a", (run,)), Side("b", (other,)))]
    assert found == sorted(found, reverse=True)
    assert found[0]


def with_one_range(builder):
    """Leave one step range, whose window is the last one."""
    builder.rows["NVTX_EVENTS"] = builder.rows["NVTX_EVENTS"][:2]


def with_overhead(builder):
    """Let the profiler work in the first step of the figures, [1600, 2800): 120 of 3 x 1200 ns."""
    builder.schema = builder.schema | {"PROFILER_OVERHEAD": {"start": "INT", "end": "INT"}}
    builder.add("PROFILER_OVERHEAD", start=2000, end=2120)


@pytest.mark.parametrize(
    ("steps", "options", "check", "words"),
    [(STEPS, {"name": "iter"}, "step-family", ("'step #'", "'iter #'")),
        (STEPS, {"load": {"skip_first": 0}}, "skipped-steps", ("1", "0")), (STEPS[:2], {}, "few-steps", ("3", "2")),
        (STEPS, {"edit": with_one_range, "load": {"step": "step"}}, "cut-off-steps", ("none", "some")),
        (STEPS, {"without": ("CUPTI_ACTIVITY_KIND_MEMCPY",)}, "recorded", ("none", "no-memcpy")),
        (STEPS, {"edit": with_overhead}, "profiler-overhead", ("0.0 %", "3.3 %"))],
)  # fmt: skip
def test_what_makes_a_comparison_doubtful_is_named(run, made, steps, options, check, words):
    found = checks(run, made(steps, steps, **options))
    assert found[check] == (False, *words)
    if check in {"step-family", "few-steps"}:
        assert list(found) == [check]


def test_other_message_bytes_are_named(tmp_path):
    runs = []
    for name, size in (("a", 4096), ("b", 8192), ("c", 4100)):
        (tmp_path / name).mkdir()
        for rank in range(2):
            builder = steady_rank(rank, 6, version=NEW).domain("NCCL", 1)
            for step in range(6):
                builder.nccl_payload(1000 * step + 80, "ncclAllReduce", {COMM: 7, BYTES: size}, NCCL_2_21)
            builder.write(tmp_path / name / f"r_{rank}.sqlite")
        runs.append(nsyspipe.load(tmp_path / name, jobs=1))
    assert checks(runs[0], runs[1]) == {"message-bytes": (False, "4096 bytes", "8192 bytes")}
    # A tenth of a per cent is padding.
    assert checks(runs[0], runs[2]) == {}
    # Of several captures their mean.
    assert checks(runs[:2], runs[0])["message-bytes"][1] == "6144 bytes"


def test_other_traces_are_named_where_both_sides_say_theirs(run):
    def traced(*what):
        return Changed(run, header=replace(run.header, capture=RunCapture(trace=list(what))))

    assert checks(traced("cuda", "nvtx"), traced("nvtx", "cuda", "osrt")) == {
        "traces": (False, "cuda, nvtx", "cuda, nvtx, osrt")
    }
    assert checks(traced("cuda"), run) == {}


def test_captures_without_gpu_activity_lack_that_and_no_ranks(run, tmp_path):
    for rank in range(2):
        host = TraceBuilder(pid=1000 + rank).session(10**18).host("node0")
        host.env(RANK=rank, WORLD_SIZE=2)
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
    assert check.message == "no GPU activity was recorded: baseline and candidate"
    row = diff(hosts, hosts).judged_rows[0]
    assert (row["verdict"], row["why"]) == ("inconclusive", "both: no GPU activity was recorded")
