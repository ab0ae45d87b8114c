"""The launchers on real GPUs: NCCL's kernels in the reports, what analyze says of them, and every way a job can go wrong."""

import json
import re

import pytest

from nsyspipe.capture.plan import n_gpus
from tests.with_nsys.launching import endpoint, steps_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif((n_gpus() or 0) < 2, reason="needs two NVIDIA GPUs"),
]
SHORT = ("--", "--model", "base", "--warmup", "3", "--steps", "6")
STEPS = [3, 4, 5, 6, 7, 8]  # the three of the warm-up are not captured
FLOAT_BYTES = 4
# Never begins a capture, but uses the GPU.
NEVER = "import torch\ntorch.ones(8, device='cuda').sum().item()\nprint('done')\n"


def run(machine, launcher, *words, **options):
    return machine.run(launcher, *words, timeout=240, **options)


def assert_whole(analysis):
    assert analysis["steps"]
    for row in analysis["steps"]:
        parts = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
        assert sum(row[part] for part in parts) == row["wall_ns"], row
        assert row["exposed_comm_ns"] + row["overlap_compute_ns"] == row["comm_ns"], row


def test_two_gpus_are_captured_and_analyze_agrees_with_the_program(machine):
    answer = run(machine, "ddp.sh", "-n", "2", "-o", "run", *SHORT, "--json", "train.json")
    assert answer.status == 0, answer.err
    found = machine.analysis("run_*.sqlite")
    assert_whole(found)
    assert steps_of(found, "steps") == {0: STEPS, 1: STEPS}
    assert found["run"]["world_size"] == 2
    assert [row["rank"] for row in found["ranks"]] == [0, 1]
    assert {row["device_id"] for row in found["ranks"]} == {0, 1}
    sidecar = machine.sidecar("run")
    assert {row["pid"] for row in found["ranks"]} == {row["pid"] for row in sidecar["ranks"]}
    assert sidecar["capture_range"] == "cudaProfilerApi"
    assert sidecar["nccl_log_files"]
    assert found["nccl"]["version"].startswith(sidecar["nccl_version"])
    assert found["links"][0]["transport"] is not None
    summary = found["summary"]
    assert 0 < summary["comm_share"] < 1
    assert 0 < summary["backward_overlap_ratio"] <= 1
    trained = json.loads((machine.work / "train.json").read_text())
    # DDP copies each gradient out of its bucket; little else is copied on the device.
    gradients = trained["n_parameters"] * FLOAT_BYTES
    assert gradients <= summary["dtod_bytes_per_step"] < 1.1 * gradients
    assert summary["step_time_ns"] == pytest.approx(trained["median_step_ns"], rel=0.25)


def test_one_gpu_has_no_communication(machine):
    answer = run(machine, "baseline.sh", *SHORT)
    assert answer.status == 0, answer.err
    found = machine.analysis("baseline_0.sqlite")
    assert_whole(found)
    assert steps_of(found, "steps") == {0: STEPS}
    assert found["summary"]["comm_share"] == 0
    assert found["ranks"][0]["n_comm"] == 0


def test_without_nvlink_shared_memory_is_named_as_the_link(machine):
    machine.variables["NCCL_P2P_DISABLE"] = "1"
    answer = run(machine, "ddp.sh", "-n", "2", "-o", "run", *SHORT, "--bucket-cap-mb", "2000")
    assert answer.status == 0, answer.err
    found = machine.analysis("run_*.sqlite")
    assert found["links"][0]["transport"].startswith("SHM")
    assert machine.sidecar("run")["environment"]["NCCL_P2P_DISABLE"] == "1"
    assert found["summary"]["collectives_per_step"] == 1


def test_chosen_ranks_only_are_captured(machine):
    answer = run(machine, "ddp.sh", "-n", "2", "-o", "run", "--ranks", "1", *SHORT)
    assert answer.status == 0, answer.err
    assert [name for name in machine.files() if name.endswith("sqlite")] == ["run_1.sqlite"]
    found = machine.analysis("run_1.sqlite")
    assert steps_of(found, "steps") == {1: STEPS}
    assert any(row["code"] == "ranks-not-captured" for row in found["problems"])


def test_one_report_of_a_node_holds_both_ranks(machine):
    words = ("--nnodes", "1", "--node-rank", "0", "-n", "2", "--rdzv-endpoint", endpoint())
    answer = run(machine, "node.sh", *words, "--node-wide", "-o", "run", *SHORT)
    assert answer.status == 0, answer.err
    found = machine.analysis("run_node0.sqlite")
    assert_whole(found)
    assert {rank: steps[:5] for rank, steps in steps_of(found, "steps").items()} == {
        0: STEPS[:5],
        1: STEPS[:5],
    }


def test_a_crash_mid_capture_passes_its_status_on_and_keeps_what_was_captured(machine):
    answer = run(
        machine, "ddp.sh", "-n", "2", "-o", "run", *SHORT, "--crash-at", "6", "--crash-rank", "1"
    )
    assert answer.status == 1
    assert "rank 1 fails on purpose" in answer.err
    assert re.search(r"error: train_vit\.py: rank 1 .*\b1\b", answer.err)
    assert "  found: " in answer.err
    reports = [name for name in machine.files() if name.endswith("sqlite")]
    assert reports
    assert all(
        steps[:2] == [3, 4] for steps in steps_of(machine.analysis(*reports), "steps").values()
    )


def test_a_program_that_never_begins_is_told_how(machine):
    machine.put_program(NEVER)
    answer = run(machine, "baseline.sh", "--program", "train.py")
    assert (answer.status, answer.out) == (3, "done\n")
    assert "cudaProfilerStart" in answer.err
    assert machine.files() == []


def test_a_program_that_hangs_at_its_end_is_ended_with_complete_reports(machine):
    answer = run(
        machine, "ddp.sh", "-n", "2", "-o", "run", "--linger", "5", *SHORT, "--hang-at-exit"
    )
    assert answer.status == 124
    assert re.search(r"\b5 s\b", answer.err)
    assert re.search(r"  found: .*\b2\b.*\b2\b", answer.err)
    assert steps_of(machine.analysis("run_*.sqlite"), "steps") == {0: STEPS, 1: STEPS}
