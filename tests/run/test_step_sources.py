"""Runs whose steps no range marks: what they say is what the same run with ranges says."""

import itertools

import pytest

import nsyspipe
from nsyspipe.errors import OptionError
from tests.build.tools import STEADY, codes, figures, problem_of, run_of, without_ranges
from tests.build.trace import TraceBuilder, steady_rank
from tests.golden.words import figures as figures_of
from tests.pairs import reports
from tests.run.test_real_reports import N_RANKS

OPTIMIZER = "FusedAdamMathFunctor"


def trained(rank, n_steps=6, *, is_marked=False, first=0, operators=False, optimizer=OPTIMIZER):
    """Return `steady_rank` with an optimizer, whose kernel ends each step; steps are 1000, each 7 longer than the last."""
    builder = TraceBuilder(pid=1000 + rank)
    builder.env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank).session(10**18).gpu().host("node0")
    for step in range(first, first + n_steps):
        at = 1000 * step + 7 * step * step
        if is_marked:
            builder.range(at, at + 900, f"step {step}").range(at + 60, at + 92, "backward")
        if operators:
            builder.range(
                at + 65,
                at + 91,
                "autograd::engine::evaluate_function: MmBackward0",
                thread="autograd",
            )
        builder.kernel(at + 100, at + 200, launch=at + 10)
        builder.kernel(at + 200, at + 300, "gemm_backward", launch=at + 70, thread="autograd")
        builder.nccl(at + 270, at + 330, launch=at + 80, thread="autograd")
        builder.copy(at + 340, at + 350, n_bytes=64, launch=at + 90, thread="autograd")
        builder.kernel(at + 350, at + 380, optimizer, launch=at + 95)
    return builder


def compared(run):
    """Return what must not depend on where steps come from: figures of every step but the cut-off last one."""
    rows = [row for row in run.steps().to_pylist() if row["is_complete"]]
    return [{name: row[name] for name in ("rank", *STEADY, "wait_ns")} for row in rows]


@pytest.mark.parametrize(("operators", "source"), [(False, "thread"), (True, "operators")])
def test_figures_are_those_of_marked_steps_and_the_source_is_said(
    tmp_path, operators, source, worded
):
    (tmp_path / "marked").mkdir()
    marked = run_of(tmp_path / "marked", *(trained(rank, is_marked=True) for rank in range(2)))
    (tmp_path / "bare").mkdir()
    bare = run_of(tmp_path / "bare", *(trained(rank, operators=operators) for rank in range(2)))
    assert compared(bare) == compared(marked)
    assert compared(bare)
    assert (bare.header.steps_from, marked.header.steps_from) == ("repetition", "ranges")
    assert {"steps-by-repetition", f"backward-by-{source}"} <= set(codes(bare))
    (message,) = {
        row["message"] for row in bare.problems.to_pylist() if row["code"] == "steps-by-repetition"
    }
    assert {"6", "4", "1.000"} <= figures_of(message)
    worded(message)


def test_time_outside_of_steps_is_reported_if_it_is_large(tmp_path, worded):
    """24 launches are in 6 steps of 4; before them stand 16 of other kernels, or 4, as a step that is cut off has."""
    for n_before, percent in ((16, "60"), (4, None)):
        builder = trained(0, first=1)
        for number in range(n_before):
            builder.kernel(20 * number, 20 * number + 9, f"init_{number}", launch=10 * number)
        folder = tmp_path / str(n_before)
        folder.mkdir()
        run = run_of(folder, builder)
        assert run.summary()["n_steps"].to_pylist() == [6], n_before
        assert ("steps-cover-part" in codes(run)) == (percent is not None), n_before
        if percent:
            message = problem_of(run, "steps-cover-part")["message"]
            assert percent in figures_of(message), n_before
            worded(message)


def test_ranks_that_enter_the_capture_one_step_apart_are_aligned(tmp_path):
    run = run_of(tmp_path, trained(0), trained(1, 5, first=1))
    assert [row["step"] for row in run.steps().to_pylist() if row["rank"] == 0] == [
        -1,
        0,
        1,
        2,
        3,
        4,
    ]
    assert [row["step"] for row in run.steps().to_pylist() if row["rank"] == 1] == [0, 1, 2, 3, 4]
    assert run.collectives().filter(run.collectives()["is_matched"]).num_rows == 10


def test_the_option_asks_for_repetition_whatever_ranges_there_are(tmp_path):
    run = run_of(tmp_path, *(trained(rank, is_marked=True) for rank in range(2)), step="repetition")
    assert (run.header.steps_from, run.step_family, "steps-by-repetition" in codes(run)) == (
        "repetition",
        None,
        True,
    )


@pytest.mark.parametrize(
    ("optimizer", "n_ranges", "is_told"),
    [
        (OPTIMIZER, 0, True),
        ("my_update", 0, False),
        ("my_update", 1, True),
        ("my_update", 2, False),
    ],
)
def test_without_a_known_optimizer_it_is_said_that_a_unit_may_be_no_step(
    tmp_path, optimizer, n_ranges, is_told
):
    builders = [trained(rank, optimizer=optimizer) for rank in range(2)]
    starts = [
        1000 * step + 7 * step * step + 94 + 2 * number
        for step in range(6)
        for number in range(n_ranges)
    ]
    for builder, at in itertools.product(builders, starts):
        builder.range(at, at + 1, "optimizer")
    run = run_of(tmp_path, *builders, step="repetition")
    assert run.summary()["n_steps"].to_pylist() == [6]
    assert ("steps-without-optimizer" not in codes(run)) == is_told
    assert "steps-of-several-updates" not in codes(run)


def test_a_step_with_several_updates_may_be_several_steps(tmp_path, worded):
    """The generator's step of this GAN launches what no other step does, so that only both together repeat."""
    builder = TraceBuilder().session(10**18).gpu()
    for at in range(0, 10_000, 1000):
        for part, name in ((0, "discriminator"), (400, "generator")):
            for number in range(4):
                late = at + part + 20 * number
                builder.kernel(late, late + 9, f"gemm_{name}_{number}", launch=late)
                builder.kernel(
                    late + 100,
                    late + 109,
                    f"gemm_b_{name}_{number}",
                    launch=late + 100,
                    thread="autograd",
                )
            builder.kernel(at + part + 300, at + part + 310, OPTIMIZER, launch=at + part + 300)
    run = run_of(tmp_path, builder)
    assert run.summary()["n_steps"].to_pylist() == [10]
    message = problem_of(run, "steps-of-several-updates")["message"]
    assert "2" in figures_of(message)
    worded(message)


def test_about_so_many_steps_or_an_error_that_says_how_many(tmp_path, worded):
    assert run_of(tmp_path, trained(0), trained(1), steps=5).summary()["n_steps"].to_pylist() == [6]
    with pytest.raises(OptionError) as caught:
        run_of(tmp_path, trained(0), trained(1), steps=12).steps()
    assert {"6", "4"} <= figures_of(caught.value.found)
    worded(caught.value.lines(), "another number")
    with pytest.raises(OptionError) as caught:
        run_of(tmp_path, trained(0, 1), trained(1, 1), steps=12).steps()
    worded(caught.value.lines(), "none")


def test_steps_with_only_equal_collectives_get_a_note(tmp_path, worded):
    builder = TraceBuilder().session(10**18).gpu()
    for step in range(8):
        at = 1000 * step
        for number in range(5 + 3 * step % 7):
            builder.kernel(
                at + 20 * number,
                at + 20 * number + 9,
                f"gemm_{step}_{number}",
                launch=at + 2 * number,
            )
        builder.nccl(at + 400, at + 480, launch=at + 80).kernel(
            at + 500, at + 510, OPTIMIZER, launch=at + 95
        )
    run = run_of(tmp_path, builder)
    assert run.summary()["n_steps"].to_pylist() == [8]
    message = problem_of(run, "steps-by-repetition")["message"]
    assert "1.000" in figures_of(message)
    worded(message)


def test_stages_of_a_pipeline_repeat_each_their_own_and_are_the_same_steps(tmp_path, worded):
    def stage(rank, first):
        builder = (
            TraceBuilder(pid=1000 + rank)
            .env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank)
            .session(10**18)
            .gpu()
        )
        name = "ncclDevKernel_SendRecv"
        for step in range(first, 7):
            at = 1000 * step + 7 * step * step
            for layer in range(2 + 3 * rank):
                builder.kernel(
                    at + 20 * layer, at + 20 * layer + 9, f"gemm_{rank}", launch=at + layer
                )
            builder.nccl(at + 200, at + 240, name=name, launch=at + 40)
            builder.kernel(at + 250, at + 290, f"gemm_b{rank}", launch=at + 70, thread="autograd")
            builder.nccl(at + 300, at + 340, name=name, launch=at + 75, thread="autograd")
            builder.kernel(at + 350, at + 380, OPTIMIZER, launch=at + 95)
        return builder

    run = run_of(tmp_path, stage(0, 1), stage(1, 0))
    found = {
        rank: [row["step"] for row in run.steps().to_pylist() if row["rank"] == rank]
        for rank in range(2)
    }
    assert found == {0: [0, 1, 2, 3, 4, 5], 1: [-1, 0, 1, 2, 3, 4, 5]}
    messages = [
        row["message"] for row in run.problems.to_pylist() if row["code"] == "steps-by-repetition"
    ]
    # So many steps of so many launches, by rank.
    assert "6" in figures_of(messages[0])
    assert {"7", "9"} <= figures_of(messages[1])
    worded(messages)


def test_an_optimizer_inside_backward_does_not_make_the_loop_the_backward_pass(tmp_path):
    def built(folder, *, is_marked):
        folder.mkdir()
        builder = TraceBuilder().session(10**18).gpu()
        for at in range(0, 6000, 1000):
            if is_marked:
                builder.range(at, at + 900, "step").range(at + 40, at + 92, "backward")
            for layer in range(3):
                builder.kernel(at + 100 + 10 * layer, at + 110 + 10 * layer, launch=at + 10 + layer)
                late = at + 200 + 20 * layer
                builder.kernel(
                    late, late + 10, "gemm_b", launch=at + 50 + 4 * layer, thread="autograd"
                )
                builder.kernel(
                    late + 10, late + 15, OPTIMIZER, launch=at + 52 + 4 * layer, thread="autograd"
                )
            builder.nccl(at + 215, at + 255, launch=at + 51, thread="autograd")
        return run_of(folder, builder)

    marked, bare = (
        built(tmp_path / name, is_marked=name == "marked") for name in ("marked", "bare")
    )
    ratio = marked.summary()["backward_overlap_ratio"][0].as_py()
    assert (bare.header.steps_from, bare.summary()["backward_overlap_ratio"][0].as_py()) == (
        "repetition",
        ratio,
    )
    assert ratio > 0


@pytest.mark.parametrize("n_steps", [6, 1])
def test_ranks_that_do_not_all_repeat_get_a_note(tmp_path, n_steps, worded):
    run = run_of(tmp_path, trained(0, n_steps), trained(1, 1))
    assert run.is_capture
    worded(problem_of(run, "no-steps")["message"])


def test_what_repeats_and_trains_nothing_is_said_and_is_no_step(tmp_path, worded):
    builder = TraceBuilder().session(10**18).gpu()
    for at in range(0, 60_000, 1000):
        builder.kernel(at + 100, at + 200, "norm", launch=at).kernel(
            at + 200, at + 300, "gemm", launch=at + 50
        )
    run = run_of(tmp_path, builder)
    assert (run.header.steps_from, run.is_capture) == ("capture", True)
    message = problem_of(run, "no-steps")["message"]
    assert {"60", "0.001"} <= figures_of(message)
    worded(message)


def test_steps_that_cannot_be_aligned_have_no_figures_across_ranks(tmp_path):
    def even(rank, late):
        builder = TraceBuilder(pid=1000 + rank).env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank)
        builder.session(10**18 + late).gpu()
        for at in range(0, 6000, 1000):
            builder.kernel(at + 100, at + 200, launch=at + 10).nccl(
                at + 270, at + 330, launch=at + 80
            )
            builder.kernel(at + 350, at + 380, OPTIMIZER, launch=at + 95)
        return builder

    run = run_of(tmp_path, even(0, 0), even(1, 500))
    assert "steps-not-aligned" in codes(run)
    assert run.steps()["wait_ns"].null_count == run.steps().num_rows
    assert set(run.steps()["comm_ns"].to_pylist()) == {60}


def test_where_ranges_mark_the_steps_nothing_changes(tmp_path):
    run = run_of(tmp_path, steady_rank(0), steady_rank(1))
    assert (figures(run), run.header.steps_from) == (STEADY, "ranges")
    assert not [code for code in codes(run) if code.startswith(("steps-by", "backward-by"))]


UNMARKED = {"4gpu-tpddp", "4gpu-tpddp-nsys2024"}  # their programs have no ranges of steps
HIDDEN = {
    "2gpu-graph"
}  # a graph that holds a whole step hides what it does: nothing says that it trains
# Its first captured step takes ten times the others, so that it repeats nothing.
FIRST_IS_OTHER = {"2gpu-counters"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [*sorted(N_RANKS.keys() - UNMARKED - FIRST_IS_OTHER), "ddp-4gpu-before", "ddp-4gpu-after"],
)
def test_real_reports_without_their_ranges_have_the_same_steps(real, runs, tmp_path, name, worded):
    paths = reports(name, real)
    bare = nsyspipe.load([without_ranges(path, tmp_path / path.name) for path in paths])
    assert bare.is_capture == (name in HIDDEN)
    if name in HIDDEN:
        worded(problem_of(bare, "no-steps")["message"])
        return
    marked = runs(name)
    assert (marked.header.steps_from, bare.header.steps_from) == ("ranges", "repetition")
    (expected,), (found,) = marked.summary().to_pylist(), bare.summary().to_pylist()
    assert found["n_steps"] == expected["n_steps"]
    assert found["step_time_ns"] == pytest.approx(expected["step_time_ns"], rel=0.01)
    backward = expected["backward_overlap_ratio"]
    assert found["backward_overlap_ratio"] == (
        backward if not backward else pytest.approx(backward, rel=0.02)
    )


def test_a_step_of_an_unknown_optimizer_begins_before_forward(
    tmp_path,
):
    """The host pauses 780 before the loss, 170 between steps."""
    builder = TraceBuilder(pid=1000).env(RANK=0, WORLD_SIZE=1, LOCAL_RANK=0).session(10**18).gpu()
    launches = (
        (10, "embed", "main"),
        (20, "gemm_forward", "main"),
        (800, "loss", "main"),
        (810, "loss_backward", "autograd"),
        (820, "gemm_backward", "autograd"),
        (830, "update", "main"),
        (840, "update_more", "main"),
    )
    # The capture begins in mid-forward.
    for step in range(6):
        for after, name, thread in launches[0 if step else 2 :]:
            at = 1000 * step + after
            builder.kernel(at + 1, at + 6, name, launch=at, thread=thread)
    (digest,) = (
        process
        for report in run_of(tmp_path, builder)._gathered.digests
        for process in report.processes
    )
    starts = digest.members["start_ns"].to_pylist()
    assert len(starts) >= 4
    assert all(start % 1000 > 840 or start % 1000 <= 10 for start in starts[1:])


# --- ranges of frameworks -------------------------------------------------------------------------
# A step of 1000: its ranges as (start, end, name with the step's number in it, thread), what its
# steps are called or where they come from, and the phases that are to be seen in them.
MARKS = {
    # torch.autograd.profiler.emit_nvtx, with torch.profiler's step marks and record_function
    "pytorch profiler": (
        [
            (0, 900, "ProfilerStep#{n}", "main"),
            (2, 8, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "main"),
            (9, 40, "DistributedDataParallel.forward", "main"),
            (65, 90, "autograd::engine::evaluate_function: MmBackward0, seq = {n}", "autograd"),
            (93, 99, "Optimizer.step#AdamW.step", "main"),
        ],
        "ProfilerStep##",
        {"data", "forward", "backward", "optimizer"},
    ),
    # its functions by their qualified names, and no range of a step
    "DeepSpeed": (
        [
            (5, 50, "DeepSpeedEngine.forward", "main"),
            (60, 92, "DeepSpeedEngine.backward", "main"),
            (93, 99, "DeepSpeedEngine.step", "main"),
        ],
        "repetition",
        {"forward", "backward", "optimizer"},
    ),
    # emit_nvtx from the first step to the last that is profiled, and no range of a step
    "Megatron": (
        [
            (9, 40, "aten::linear, op_id = {n}", "main"),
            (
                65,
                90,
                (
                    "autograd::engine::evaluate_function: LinearWithGradAccumulationBackward, "
                    "op_id = {n}"
                ),
                "autograd",
            ),
            (93, 99, "Optimizer.step#FusedAdam.step", "main"),
        ],
        "repetition",
        {"backward", "optimizer"},
    ),
    "Lightning": (
        [
            (0, 900, "[pl][profile]run_training_batch", "main"),
            (5, 50, "[pl][profile][Strategy]DDPStrategy.training_step", "main"),
            (60, 92, "[pl][profile][Strategy]DDPStrategy.backward", "main"),
            (93, 99, "[pl][profile][LightningModule]Model.optimizer_step", "main"),
        ],
        "[pl][profile]run_training_batch",
        {"backward", "optimizer"},
    ),
    "by hand": (
        [
            (0, 900, "iteration{n}", "main"),
            (5, 50, "Forward", "main"),
            (60, 92, "Backward", "main"),
        ],
        "iteration#",
        {"forward", "backward"},
    ),
    # XLA launches a module as a whole
    "JAX": (
        [(0, 900, "XlaModule:#hlo_module=jit_train_step,program_id=17#", "main")],
        "XlaModule:#hlo_module=jit_train_step,program_id=##",
        {"backward"},  # what another thread launches
    ),
}


@pytest.mark.parametrize("framework", MARKS)
def test_steps_and_phases_are_known_by_the_names_that_frameworks_give_them(tmp_path, framework):
    ranges, steps, phases = MARKS[framework]
    builder = TraceBuilder().session(10**18).gpu()
    for n in range(6):
        at = 1000 * n
        for start, end, name, thread in ranges:
            builder.range(at + start, at + end, name.format(n=n), thread=thread)
        builder.kernel(at + 100, at + 200, launch=at + 10)
        builder.kernel(at + 200, at + 300, "gemm_backward", launch=at + 70, thread="autograd")
        builder.kernel(at + 350, at + 380, "FusedAdamMathFunctor", launch=at + 95)
    run = run_of(tmp_path, builder)
    assert (run.step_family or run.header.steps_from, run.summary()["n_steps"][0].as_py()) == (
        steps,
        6,
    )
    assert set(run.phases()["phase"].to_pylist()) == phases
