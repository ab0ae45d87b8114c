"""What the doctor says of reports is what the analysis makes of them."""

from __future__ import annotations

import pytest

from tests.build.tools import run_of
from tests.build.trace import TraceBuilder
from tests.pairs import reports
from tests.run.test_capabilities import capabilities

# What it says of real reports is pinned by tests/golden/frozen/doctor.


def agreed(run, *arguments, **options):
    """Compare each claim of the doctor with what the analysis made of the same reports."""
    answers = capabilities(*arguments, **options)
    found = {name: one.status for name, one in answers.items()}
    problems = [row["code"] for row in run.problems.to_pylist() if row["severity"] != "info"]
    figures, sizes = run.summary().to_pylist()[0], run.collectives()["message_bytes"]
    has_phases = not {"no-backward", "no-launches"} & {*problems} and not run.is_capture
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
    for row in run.problems.to_pylist():
        if row["code"] == "no-message-size" and found["message_bytes"] == "no":
            said = answers["message_bytes"]
            assert row["message"] == f"message sizes were not recorded ({said.found}): no bytes and bandwidths"
            assert (row["fix"].split()[1], bool(said.fix)) == ("doctor", True)
    return found


@pytest.mark.parametrize(
    "name",
    ["baseline", "ddp-1gpu", "ddp-2gpu", "ddp-2gpu-straggler", "ddp-4gpu-onefile", "fsdp-4gpu", "2gpu-fsdp2", "2gpu-gpt-b25",
     "2gpu-gpt-accum", "2gpu-graph", "2gpu-graph-node", "2gpu-moe", "2gpu-pp", "2gpu-tp"],
)  # fmt: skip
@pytest.mark.slow
def test_the_doctor_agrees_with_the_analysis(real, runs, name):
    agreed(runs(name), *reports(name, real))


def alone(n_ranges=0, text="", **options):
    """Return a rank with a kernel in each range."""
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).gpu()
    for at in range(0, 10 * n_ranges, 10):
        builder.kernel(at, at + 5, launch=at).range(at, at + 8, f"{text}{at}", **options)
    return builder


def operators_only():
    """Return a report in which every operator has a range, as emit_nvtx writes them, and no step has any."""
    return alone(10, "aten::to, seq = ")


def of_a_library():  # only DALI and cuBLAS have ranges, around all launches
    builder = alone(10, "run ", domain=3).domain("DALI", 3).domain("cuBLASLt", 4)
    for at in range(0, 100, 10):
        builder.range(at, at + 2, "matmul", domain=4)
    return builder


def layers(name="layer"):
    """Return one step of four layers and an optimizer: no family of steps."""
    adam = "multi_tensor<FusedAdamMathFunctor>"
    return alone(4, f"{name} ").range(0, 100, "train").kernel(60, 70, adam, launch=60)


def warmed_up():
    """Return two warm-ups longer than the two steps after them."""
    builder = alone()
    for at, name in ((0, "warm-up 0"), (50, "warm-up 1"), (100, "step 0"), (110, "step 1")):
        end = at + (40 if at < 100 else 8)
        for launch in range(at, end, 2 if at >= 100 else 10):
            builder.kernel(launch, launch + 1, launch=launch)
        builder.range(at, end, name)
    return builder


@pytest.mark.parametrize(
    ("build", "step", "family"),
    [(operators_only, None, None), (of_a_library, None, None), (layers, None, None), (lambda: layers("micro_batch"), None, None),
     (warmed_up, None, "step #"), (lambda: alone().kernel(0, 9, launch=0), None, None),
     # What an option names.
     (of_a_library, "none", None), (of_a_library, "run", "run"), (operators_only, "aten", "aten")],
)  # fmt: skip
def test_the_doctor_and_the_analysis_find_the_same_steps(tmp_path, build, step, family):
    run = run_of(tmp_path, build(), step=step)
    found = agreed(run, tmp_path, **({"step": step} if step else {}))
    assert (run.step_family, run.is_capture, found["steps"] == "yes") == (family, family is None, family is not None)
