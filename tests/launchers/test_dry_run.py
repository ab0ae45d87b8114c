"""--dry-run prints the exact command, on any machine, and does nothing."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from nsyspipe.nsys.programs import find_nsys
from tests.launchers.fakes import LAUNCHERS, NEW_HELP

NODE = ("node.sh", "--nnodes", "2", "--node-rank", "1", "-n", "4", "--rdzv-endpoint", "n0:29500")


def printed(machine, *words):
    answer = machine.run(words[0], "--dry-run", *words[1:])
    assert answer.status == 0, answer.err
    assert len(answer.out.splitlines()) == 1
    assert machine.files() == []
    return shlex.split(answer.out)


def after(words, first):
    return words[words.index(first) :]


@pytest.fixture
def gpus(machine):
    machine.put_nsys(help_text=NEW_HELP)
    machine.put_gpus(8)
    machine.put_program("pass")
    return machine


def test_ddp_is_torchrun_around_nsys_around_the_program(gpus):
    words = printed(gpus, "ddp.sh", "-n", "2", "--program", "train.py", "--", "--lr", "1")
    bin_ = str(gpus.root / "bin")
    assert after(words, f"{bin_}/torchrun") == [
        *(f"{bin_}/torchrun", "--standalone", "--nproc_per_node=2", "--no-python"),
        *(f"{bin_}/python3", "-P", f"{LAUNCHERS}/run_module.py", "nsyspipe.capture.rank"),
        *("--exit-timeout=600", "--nsys-words=9", "--"),
        *(f"{bin_}/nsys", "profile", "--trace=cuda,nvtx,nccl,osrt"),
        *("--sample=none", "--cpuctxsw=none", "--output=ddp-2gpu_%q{RANK}"),
        *("--capture-range=cudaProfilerApi", "--cuda-graph-trace=node", "--capture-range-end=stop"),
        *("env", f"PYTHONPATH={LAUNCHERS.parent}:{gpus.root}/site"),
        *(f"{bin_}/python3", "train.py", "--lr", "1"),
    ]
    assert words[:2] == ["env", f"PYTHONPATH={gpus.root}/site"]
    assert set(words[2 : words.index(f"{bin_}/torchrun")]) == {
        "NCCL_DEBUG=INFO",
        f"NCCL_DEBUG_FILE={gpus.work}/ddp-2gpu.nccl.%h.%p.log",
    }


def test_the_baseline_has_no_torchrun(gpus):
    words = printed(gpus, "baseline.sh", "--program", "train.py")
    assert not any("torchrun" in word for word in words)
    assert "--output=baseline_0" in words


@pytest.mark.parametrize(
    ("words", "graphs"),
    [
        ([], ["--cuda-graph-trace=node"]),
        (["--cuda-graph-trace", "graph"], ["--cuda-graph-trace=graph"]),
        (["--nsys-arg=--cuda-graph-trace=graph:host-only"], ["--cuda-graph-trace=graph:host-only"]),
        (["--trace", "nvtx"], []),
    ],
)
def test_cuda_graphs_are_traced_by_node_unless_the_user_says_otherwise(gpus, words, graphs):
    printed_words = printed(gpus, "ddp.sh", "--program", "train.py", *words)
    found = [word.removeprefix("--nsys-arg=") for word in printed_words if "--cuda-graph" in word]
    assert found == graphs


def test_a_node_names_its_place_and_that_of_the_first(gpus):
    words = printed(gpus, *NODE, "--program", "train.py", "--ranks", "0-1,7")
    torchrun = after(words, str(gpus.root / "bin" / "torchrun"))
    assert torchrun[1:7] == [
        *("--nnodes=2", "--nproc_per_node=4", "--node_rank=1"),
        *("--master_addr=n0", "--master_port=29500", "--no-python"),
    ]
    assert "--ranks=0-1,7" in torchrun
    assert "--output=ddp-8gpu_%q{RANK}" in torchrun


def test_another_rendezvous_gets_its_endpoint_and_id(gpus):
    words = printed(gpus, *NODE, "--rdzv-backend=c10d", "-o", "d/run", "--program", "train.py")
    for word in ("--rdzv_backend=c10d", "--rdzv_endpoint=n0:29500", "--rdzv_id=run"):
        assert word in words


def test_a_node_wide_capture_has_nsys_around_torchrun(gpus):
    words = printed(gpus, *NODE, "--node-wide", "--program", "train.py")
    nsys, torchrun = (words.index(str(gpus.root / "bin" / name)) for name in ("nsys", "torchrun"))
    assert nsys < torchrun
    assert "--output=ddp-8gpu_node1" in words[nsys:torchrun]
    assert "--nsys-words=0" in words[torchrun:]


def test_options_of_the_capture_arrive_in_the_command(gpus):
    words = printed(
        gpus, "ddp.sh", "--program", "train.py", "--capture-range", "none", "--force", "--nsys-arg",
        "--delay=3", "--nsys-arg=--kill=none", "--ranks=0", "--exit-timeout=7", "--trace=nvtx",
    )  # fmt: skip
    nsys = after(words, str(gpus.root / "bin" / "nsys"))
    assert nsys[2:9] == [
        *("--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--output=ddp-1gpu_%q{RANK}"),
        *("--capture-range=none", "--force-overwrite=true", "--delay=3"),
    ]
    assert nsys[9] == "--kill=none"
    assert {"--ranks=0", "--exit-timeout=7", "--nsys-words=10"} < set(words)


def test_without_a_profile_there_is_no_nsys(gpus):
    words = printed(gpus, "ddp.sh", "--program", "train.py", "--no-profile")
    assert not any("nsys" in word.split("/")[-1] and "profile" in word for word in words)
    assert str(gpus.root / "bin" / "nsys") not in words
    assert "--nsys-words=0" in words
    assert not any(word.startswith("NCCL_DEBUG") for word in words)


def test_the_printed_command_runs(gpus):
    gpus.put_program("print('it runs')")
    words = printed(gpus, "baseline.sh", "--cpu", "--program", "train.py")
    done = subprocess.run(
        words, cwd=gpus.work, env=gpus.environment, capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout == "it runs\n"
    assert gpus.files() == ["baseline_0.nsys-rep"]


@pytest.mark.skipif(find_nsys(search_path="/nowhere") is not None, reason="an nsys is in a usual place")
@pytest.mark.parametrize("launcher", ["baseline.sh", "ddp.sh", "node.sh"])
def test_a_machine_with_nothing_prints_the_command_and_says_what_is_missing(machine, launcher):
    for path in ("bin/nsys", "bin/torchrun", "site/torch/__init__.py"):
        (machine.root / path).unlink()
    (machine.root / "site" / "torch").rmdir()
    words = NODE[1:] if launcher == "node.sh" else ()
    answer = machine.run(launcher, *words, "--program", "none.py", "--dry-run")
    assert answer.status == 0
    assert "nsys profile --trace=cuda,nvtx,nccl,osrt" in answer.out
    notes = [line for line in answer.err.splitlines() if line.startswith("note: ")]
    assert len(notes) == len(["program", "torch", "GPU", "nsys"])
    assert "error" not in answer.err
