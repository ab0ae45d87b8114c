"""What the doctor says of reports is what the analysis makes of them."""

from __future__ import annotations

import pytest

import nsyspipe
from tests.build.trace import TraceBuilder
from tests.run.test_capabilities import capabilities

# What it says of real reports is pinned by tests/golden/frozen/doctor.


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
            message = f"message sizes were not recorded ({doctor.found}): bytes and bandwidths of collectives are null"
            assert (row["message"], row["fix"]) == (message, doctor.fix)
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
