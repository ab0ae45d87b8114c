"""What a capture needs of the machine and of the user's settings: Python, torch, nvtx, GPUs, nsys, NCCL's variables."""

from __future__ import annotations

import shlex

import pytest

from tests.build.programs import program


@pytest.fixture(autouse=True)
def _a_program(machine):
    machine.put_program("pass")


@pytest.mark.slow
def test_on_cpus_a_capture_needs_a_package_that_makes_ranges(machine):
    machine.put_nvtx("0.2.12")
    answer = machine.run("ddp.sh", "--cpu", "--program", "train.py")
    assert answer.status == 2
    assert answer.err.splitlines() == [
        "error: nvtx 0.2.12: its ranges do not reach nsys 2024.2.3.38: no capture would begin",
        '  fix: pip install "nvtx<0.2.12", or name a newer nsys: --nsys PROGRAM',
    ]
    # A torch with CUDA makes its own; a capture of everything needs none.
    assert machine.run("ddp.sh", "--cpu", "--program=train.py", "--capture-range=none").status == 0
    (machine.root / "site" / "torch" / "version.py").write_text("cuda: Optional[str] = '12.8'\n")
    assert machine.run("ddp.sh", "--cpu", "--program=train.py", "--force").status == 0


def test_without_that_package_the_message_names_it(machine):
    (machine.root / "site" / "nvtx.py").unlink()
    answer = machine.run("ddp.sh", "--cpu", "--program", "train.py")
    assert answer.status == 2
    assert "has no nvtx, through which a capture begins" in answer.err
    assert answer.err.splitlines()[-1] == '  fix: pip install "nvtx<0.2.12"'
    assert machine.run("ddp.sh", "--cpu", "--program", "train.py", "--no-profile").status == 0


def test_what_the_user_has_told_nccl_stays(machine):
    machine.put_gpus(1)
    machine.variables |= {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/x/%p"}
    answer = machine.run("ddp.sh", "--dry-run", "--program", "train.py")
    assert not any(word.startswith("NCCL_") for word in shlex.split(answer.out))
    notes = [line for line in answer.err.splitlines() if "is kept" in line]
    assert [note.partition(" is kept")[0] for note in notes] == ["note: NCCL_DEBUG=WARN", "note: NCCL_DEBUG_FILE=/x/%p"]
    del machine.variables["NCCL_DEBUG_FILE"]
    machine.variables["NCCL_DEBUG"] = "info"
    answer = machine.run("ddp.sh", "--dry-run", "--program", "train.py")
    told = [word for word in shlex.split(answer.out) if word.startswith("NCCL_")]
    assert told == [f"NCCL_DEBUG_FILE={machine.work}/ddp-1gpu.nccl.%h.%p.log"]


def test_another_nsyspipe_on_the_python_path_is_not_used(machine):
    stale = machine.root / "site" / "nsyspipe"
    stale.mkdir()
    (stale / "__init__.py").write_text("raise SystemExit('stale')")
    assert machine.run("ddp.sh", "--cpu", "--program", "train.py").status == 0


def test_nsys_may_have_another_name(machine):
    machine.put_nsys(name="nsys-2025.6")
    named = str(machine.root / "bin" / "nsys-2025.6")
    answer = machine.run("ddp.sh", "--cpu", "--program", "train.py", "--nsys", named)
    assert answer.status == 0
    assert "ddp-1gpu_0.nsys-rep" in machine.files()


@pytest.mark.parametrize("python", ["/no/python", "old/python3"])
def test_a_python_that_cannot_be_used_is_named(machine, python):
    program(machine.work / "old", "python3", "exit 1")
    machine.variables["PYTHON"] = python
    for launcher in ("ddp.sh", "sweep.sh"):
        answer = machine.run(launcher, "--cpu")
        assert answer.status == 2
        assert answer.err.startswith(f"error: {python}: not a Python 3.11 or newer")


def test_without_torch_the_message_says_which_python_lacks_it(machine):
    (machine.root / "site" / "torch" / "__init__.py").unlink()
    (machine.root / "site" / "torch").rmdir()
    answer = machine.run("ddp.sh", "--cpu", "--program", "train.py")
    assert answer.status == 2
    assert "has no torch" in answer.err
    assert "PYTHON=/path/to/python3" in answer.err


def test_fewer_gpus_than_ranks_are_refused_and_the_fix_says_how_many(machine):
    machine.put_gpus(2)
    answer = machine.run("ddp.sh", "-n", "4", "--program", "train.py")
    assert answer.status == 2
    assert "4 ranks: this machine has 2 GPUs for them" in answer.err
    assert "fix: -n 2" in answer.err


def test_nccl_falls_back_to_nvtx_and_that_is_said_once(machine):
    machine.put_gpus(2)
    answer = machine.run("ddp.sh", "-n", "2", "--dry-run", "--program", "train.py")
    assert "--trace=cuda,nvtx,osrt" in shlex.split(answer.out)
    assert answer.err.count("does not know --trace=nccl") == 1
    assert len(answer.err.splitlines()) == 1
