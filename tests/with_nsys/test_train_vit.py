"""The training program on CPUs: alone, on two gloo ranks, and under nsys."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.nsys,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch: dependency group capture"),
]

LAUNCHERS = Path(__file__).parents[2] / "launchers"
TRAIN = str(LAUNCHERS / "train_vit.py")
QUICK = ("--model", "tiny", "--warmup", "1", "--steps", "2")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
PHASES = ["data", "forward", "backward", "optimizer"]
# As the launchers do where there is no CUDA; torch's own ranges are not registered strings.
NSYS = (
    "profile", "--trace=nvtx,osrt", "--sample=none", "--cpuctxsw=none",
    "--capture-range=nvtx", "--nvtx-capture=nsyspipe.capture", "--capture-range-end=stop",
    "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
)  # fmt: skip


def start(*command, **environment):
    clean = {key: value for key, value in os.environ.items() if key != "RANK"}
    return subprocess.run(
        command,
        env={**clean, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_largest_model_is_vit_l_32():
    # Patches 3*32*32*1024 + 1024; class token 1024; 50 positions of 1024; 24 blocks of 12596224
    # (norms 4096, attention 3148800 + 1049600, network 4198400 + 4195328); norm 2048; head 1025000.
    code = """
import torch, vit_model
with torch.device("meta"): model = vit_model.VisionTransformer(vit_model.SHAPES["large"])
print(sum(parameter.numel() for parameter in model.parameters()))
"""
    done = start(sys.executable, "-c", code, PYTHONPATH=str(LAUNCHERS))
    assert done.stdout == "306535400\n", done.stderr


def test_one_process_trains_without_ddp_and_writes_its_result(tmp_path):
    result = tmp_path / "result.json"
    done = start(sys.executable, TRAIN, *QUICK, "--workers", "1", "--json", str(result))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "1 x CPU | no DDP | float32, batch 4 per rank | 1 + 2 steps" in first
    assert second.startswith("throughput: ")
    found = json.loads(result.read_text())
    assert (found["world_size"], found["n_parameters"], found["scheme"]) == (1, 1206116, "no DDP")
    assert found["images_per_s"] == pytest.approx(4e9 / found["mean_step_ns"], rel=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    "options",
    [
        "--static-graph --gradient-as-bucket-view --bucket-cap-mb 1 --hook fp16",
        "--accumulate 2 --dtype bfloat16 --data gpu --optimizer sgd",
        "--fsdp --accumulate 2",
        "--no-ddp --no-capture --slow-rank 1 --slow-ms 5",
    ],
)
def test_two_ranks_train_and_one_of_them_says_so(options):
    done = start(*TORCHRUN, TRAIN, *QUICK, *options.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 x CPU") == done.stdout.count("throughput: ") == 1


def test_the_gradients_do_not_depend_on_how_they_are_sent(tmp_path):
    losses = []
    for index, options in enumerate(("", "--static-graph --gradient-as-bucket-view", "--fsdp")):
        result = tmp_path / f"{index}.json"
        start(*TORCHRUN, TRAIN, *QUICK, "--json", str(result), *options.split())
        losses.append(json.loads(result.read_text())["loss"])
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-3)


@pytest.mark.parametrize("hook", ["bf16", "powersgd"])
def test_a_hook_that_gloo_cannot_do_is_refused(hook):
    done = start(*TORCHRUN, TRAIN, *QUICK, "--warmup", "3", "--hook", hook)
    assert done.returncode == 1
    assert f"error: --hook {hook}: PyTorch's hook needs GPUs and NCCL, here is gloo" in done.stderr


def test_a_rank_that_crashes_ends_the_job_with_a_status():
    done = start(*TORCHRUN, TRAIN, *QUICK, "--crash-at", "1", "--crash-rank", "1")
    assert done.returncode == 1
    assert "demonstration: --crash-at 1: rank 1 fails on purpose" in done.stderr


def test_a_rank_that_hangs_says_that_it_does():
    command = [sys.executable, TRAIN, *QUICK, "--hang-at-exit"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        *_, last = [process.stdout.readline() for _ in range(3)]
        assert last == "demonstration: --hang-at-exit: rank 0 never ends now\n"
        assert process.poll() is None
        process.terminate()
        assert process.wait(20) == -15


def test_each_report_holds_the_measured_steps_and_no_others(nsys, tmp_path):
    output = str(tmp_path / "run_%q{RANK}")
    # Two nsys that share a temporary directory break each other's connections.
    own = 'export TMPDIR="$0/$RANK"; mkdir -p "$TMPDIR"; exec "$@"'
    run = (
        *("bash", "-c", own, str(tmp_path)),
        str(nsys),
        *NSYS,
        f"--output={output}",
        sys.executable,
        TRAIN,
        "--accumulate",
        "2",
        *QUICK,
    )
    done = start(*TORCHRUN, "--no-python", *run)
    assert done.returncode == 0, done.stderr
    # A step of two passes: warm-up step 0 is not there.
    step = ["data", "forward", "backward", "forward", "backward", "optimizer"]
    for rank in range(2):
        report = tmp_path / f"run_{rank}.nsys-rep"
        exported = report.with_suffix(".sqlite")
        start(str(nsys), "export", "--type=sqlite", f"--output={exported}", str(report))
        assert ranges(exported) == ["nsyspipe.capture", "step 1", *step, "step 2", *step]


def ranges(report):
    with sqlite3.connect(f"file:{report}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "SELECT coalesce(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
            ' WHERE eventType IN (59, 60) AND "end" IS NOT NULL ORDER BY start'
        ).fetchall()
    connection.close()
    return [text for (text,) in rows]
