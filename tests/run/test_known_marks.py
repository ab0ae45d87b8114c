"""Range names of frameworks as they are: which are steps, and which are phases of them."""

from __future__ import annotations

import pytest

from tests.build.tools import run_of
from tests.build.trace import TraceBuilder

# A step of 1000: its ranges as (start, end, name with the step's number in it, thread), what its steps are called or where
# they come from, and the phases that are to be seen in them.
MARKS = {
    # torch.autograd.profiler.emit_nvtx, with torch.profiler's step marks and record_function
    "pytorch profiler": ([(0, 900, "ProfilerStep#{n}", "main"),
                          (2, 8, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "main"),
                          (9, 40, "DistributedDataParallel.forward", "main"),
                          (65, 90, "autograd::engine::evaluate_function: MmBackward0, seq = {n}", "autograd"),
                          (93, 99, "Optimizer.step#AdamW.step", "main")], "ProfilerStep##",
                         {"data", "forward", "backward", "optimizer"}),
    # its functions by their qualified names, and no range of a step
    "DeepSpeed": ([(5, 50, "DeepSpeedEngine.forward", "main"), (60, 92, "DeepSpeedEngine.backward", "main"),
                   (93, 99, "DeepSpeedEngine.step", "main")], "repetition", {"forward", "backward", "optimizer"}),
    # emit_nvtx from the first step to the last that is profiled, and no range of a step
    "Megatron": ([(9, 40, "aten::linear, op_id = {n}", "main"),
                  (65, 90, "autograd::engine::evaluate_function: LinearWithGradAccumulationBackward, op_id = {n}",
                   "autograd"), (93, 99, "Optimizer.step#FusedAdam.step", "main")], "repetition",
                 {"backward", "optimizer"}),
    "Lightning": ([(0, 900, "[pl][profile]run_training_batch", "main"),
                   (5, 50, "[pl][profile][Strategy]DDPStrategy.training_step", "main"),
                   (60, 92, "[pl][profile][Strategy]DDPStrategy.backward", "main"),
                   (93, 99, "[pl][profile][LightningModule]Model.optimizer_step", "main")],
                  "[pl][profile]run_training_batch", {"backward", "optimizer"}),
    "by hand": ([(0, 900, "iteration{n}", "main"), (5, 50, "Forward", "main"), (60, 92, "Backward", "main")],
                "iteration#", {"forward", "backward"}),
    # XLA launches a module as a whole
    "JAX": (
        [(0, 900, "XlaModule:#hlo_module=jit_train_step,program_id=17#", "main")],
        "XlaModule:#hlo_module=jit_train_step,program_id=##",
        {"backward"},  # what another thread launches
    ),
}  # fmt: skip


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
    assert (run.step_family or run.header.steps_from, run.summary()["n_steps"][0].as_py()) == (steps, 6)
    assert set(run.phases()["phase"].to_pylist()) == phases
