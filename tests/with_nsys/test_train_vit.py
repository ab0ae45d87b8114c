"""The training program on CPUs: alone and on two gloo ranks. What nsys captures of it: test_launchers_cpu.py."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.launchers.fakes import LAUNCHERS
from tests.with_nsys.launching import endpoint

pytestmark = [
    pytest.mark.nsys,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="no torch: dependency group capture"
    ),
]

QUICK = ("--model", "tiny", "--warmup", "1", "--steps", "2")
# Trains alone as the script does, and two ranks with several options, one after the other, in
# processes of one import: torch takes seconds to start.
MANY = f"""
import contextlib, io, json, os, runpy, sys
sys.path[:0] = [{str(LAUNCHERS)!r}, {str(LAUNCHERS.parent)!r}]
import torch, torch._dynamo, torch.distributed.fsdp, vit_loop, vit_model, vit_options
from nsyspipe.capture import ranges
alone = os.fork()
if not alone:
    sys.argv = json.loads(sys.argv[3])
    with open("said", "w") as file, contextlib.redirect_stdout(file):
        runpy.run_path(sys.argv[0], run_name="__main__")
    os._exit(0)  # to take apart what is imported takes longer than to train
child = os.fork()
os.environ["RANK"] = os.environ["LOCAL_RANK"] = rank = "0" if child else "1"
torch.distributed.init_process_group("gloo")
torch.distributed.init_process_group = lambda *_, **__: None
torch.distributed.destroy_process_group = lambda: None
answers = []
for words in json.loads(sys.argv[1]):
    vars(ranges._progress).update(n_begun=0, n_in_window=0, is_open=False, is_done=False)
    said, ended = io.StringIO(), None
    with contextlib.redirect_stdout(said):
        try:
            vit_loop.run(vit_options.parse(words))
        except (RuntimeError, SystemExit) as end:
            ended = str(end)
    answers.append([said.getvalue(), ended])
with open(sys.argv[2] + rank, "w") as file:
    json.dump(answers, file)
if child:
    with torch.device("meta"):
        model = vit_model.VisionTransformer(vit_model.SHAPES["large"])
    print(sum(parameter.numel() for parameter in model.parameters()), flush=True)
    os._exit(any(os.waitpid(one, 0)[1] != 0 for one in (alone, child)))
os._exit(0)
"""
SENT = ("", "--static-graph --gradient-as-bucket-view --bucket-cap-mb 1", "--fsdp")
TRAINED = (
    *SENT,
    "--static-graph --gradient-as-bucket-view --bucket-cap-mb 1 --hook fp16",
    "--accumulate 2 --dtype bfloat16 --data gpu --optimizer sgd",
    "--fsdp --accumulate 2",
    "--no-ddp --no-capture --slow-rank 1 --slow-ms 5",
)
REFUSED = ("bf16", "powersgd")


def environment(**variables):
    clean = {key: value for key, value in os.environ.items() if key != "RANK"}
    return {**clean, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What both ranks say of each job, and where rank 0 writes its results."""
    folder = tmp_path_factory.mktemp("trained")
    jobs = [
        [*QUICK, "--json", str(folder / f"{at}.json"), *words.split()]
        for at, words in enumerate(TRAINED)
    ]
    jobs += [[*QUICK, "--warmup", "3", "--hook", hook] for hook in REFUSED]
    jobs += [[*QUICK, "--no-ddp", "--crash-at", "2"]]
    host, port = endpoint().split(":")
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": port}
    alone = folder / "alone"
    alone.mkdir()
    script = [str(LAUNCHERS / "train_vit.py"), *QUICK, "--workers", "1", "--json", "result.json"]
    command = [sys.executable, "-c", MANY, json.dumps(jobs), f"{folder}/rank_", json.dumps(script)]
    options = {"env": environment(**group), "cwd": alone, "capture_output": True, "text": True}
    done = subprocess.run(command, **options, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return (
        folder,
        [json.loads((folder / f"rank_{rank}").read_text()) for rank in range(2)],
        int(done.stdout),
    )


def test_the_largest_model_is_vit_l_32(two_ranks):
    # Patches 3*32*32*1024 + 1024; class token 1024; 50 positions of 1024; 24 blocks of 12596224
    # (norms 4096, attention 3148800 + 1049600, network 4198400 + 4195328); norm 2048; head 1025000.
    assert two_ranks[2] == 306535400


def test_two_ranks_train_and_one_of_them_says_so(two_ranks):
    first, second = two_ranks[1]
    for (said, ended), other in zip(first[: len(TRAINED)], second, strict=False):
        assert (said.count("2 x CPU"), said.count("throughput: "), ended) == (1, 1, None), said
        assert other == ["", None], said


def test_the_gradients_do_not_depend_on_how_they_are_sent(two_ranks):
    losses = [
        json.loads((two_ranks[0] / f"{at}.json").read_text())["loss"] for at in range(len(SENT))
    ]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-3)


def test_a_hook_that_gloo_cannot_do_is_refused_and_who_asks_for_a_crash_has_it(two_ranks):
    for rank, said in enumerate(two_ranks[1]):
        assert said[-1][1] == f"demonstration: --crash-at 2: rank {rank} fails on purpose", rank
        for hook, (_, ended) in zip(REFUSED, said[len(TRAINED) : -1], strict=True):
            assert ended.startswith(f"error: --hook {hook}: "), hook
            assert "gloo" in ended, hook


def test_one_process_trains_without_ddp_and_writes_its_result(two_ranks):
    folder = two_ranks[0] / "alone"
    first, second = (folder / "said").read_text().splitlines()
    assert "1 x CPU | no DDP | float32, batch 4 per rank | 1 + 2 steps" in first
    assert second.startswith("throughput: ")
    found = json.loads((folder / "result.json").read_text())
    assert (found["world_size"], found["n_parameters"], found["scheme"]) == (1, 1206116, "no DDP")
    assert found["images_per_s"] == pytest.approx(4e9 / found["mean_step_ns"], rel=1e-6)
    assert sorted(path.name for path in folder.iterdir()) == ["result.json", "said"]
