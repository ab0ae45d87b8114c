"""What the callbacks of trainers are told about the work of a step, and what the sidecar has of it.

Each program calls its callback as the real trainer does. The trainers and nvtx are stand-ins.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsyspipe.capture.sidecar import Place, Surroundings, sidecar_document, write_sidecar
from nsyspipe.capture.status import read_programs
from nsyspipe.model.captured import WorkPerStep
from nsyspipe.reader.sidecar import parse_sidecar
from tests.build.programs import put
from tests.capture.stand_in import LIGHTNING_CALLBACKS, NVTX, TRANSFORMERS

REPOSITORY = Path(__file__).parents[2]
UNKNOWN = Surroundings(None, (), None, None, None, None, None, "3.11.9", None, None)
TRAINER = """
import sys
from types import SimpleNamespace as Part
from nsyspipe.capture import TrainerCapture
callback = TrainerCapture(warmup=0, steps=1, WORDS)
control = Part(should_training_stop=False)
callback.on_train_begin(Part(torch_compile=False), None, control)
callback.on_step_begin(None, None, control)
callback.on_pre_optimizer_step(None, None, control)
callback.on_optimizer_step(None, None, control)
callback.on_step_end(None, None, control)
callback.on_train_end(None, None, control)
assert "torch" not in sys.modules
"""
LIGHTNING = """
import sys
from types import SimpleNamespace as Part
from nsyspipe.capture import LightningCapture
callback = LightningCapture(warmup=0, steps=1, WORDS)
trainer, module = Part(should_stop=False), Part(automatic_optimization=True)
callback.on_train_batch_start(trainer, module, None, 0)
callback.on_before_backward(trainer, module, None)
callback.on_after_backward(trainer, module)
callback.on_before_optimizer_step(trainer, module, None)
callback.on_train_batch_end(trainer, module, None, None, 0)
callback.on_train_end(trainer, module)
assert "torch" not in sys.modules
"""
# One count is not taken for another if all three differ.
ALL = "tokens_per_step=8192, samples_per_step=256, flops_per_step=9_483_000_000_000"
WORK = {
    ALL: WorkPerStep(tokens=8192, samples=256, flops=9_483_000_000_000),
    "tokens_per_step=8192": WorkPerStep(tokens=8192),
    "samples_per_step=256": WorkPerStep(samples=256),
    "flops_per_step=7": WorkPerStep(flops=7),
    "": None,
}


@pytest.fixture
def train(tmp_path):
    """Return what runs a program as rank 3 of a job whose status directory is `tmp_path`."""
    put(tmp_path, "site/nvtx.py", NVTX)
    put(tmp_path, "site/transformers.py", TRANSFORMERS)
    put(tmp_path, "site/lightning/pytorch/callbacks.py", LIGHTNING_CALLBACKS)
    # A module of that name on the machine would win over packages without a file of their own.
    put(tmp_path, "site/lightning/__init__.py", "")
    put(tmp_path, "site/lightning/pytorch/__init__.py", "")
    environment = {
        "PYTHONPATH": f"{tmp_path}/site{os.pathsep}{REPOSITORY}",
        "NSYSPIPE_STATUS_DIR": str(tmp_path),
        "RANK": "3",
    }

    def run(code, words):
        command = [sys.executable, "-c", code.replace("WORDS", words)]
        options = {"env": os.environ | environment, "capture_output": True, "text": True}
        return subprocess.run(command, **options, timeout=60, check=False)

    return run


@pytest.mark.parametrize("words", WORK)
@pytest.mark.parametrize("code", [TRAINER, LIGHTNING], ids=["trainer", "lightning"])
def test_what_a_callback_is_told_of_a_step_is_in_the_sidecar(train, tmp_path, code, words):
    done = train(code, words)
    assert done.returncode == 0, done.stderr
    programs = read_programs(tmp_path)
    assert programs[3].n_captured_steps == 1
    place = Place(str(tmp_path / "ddp"))
    command = ["python", "train.py"]
    document = sidecar_document(
        place, command, programs=programs, surroundings=UNKNOWN, environment={}
    )
    write_sidecar(place.file(), document)
    (rank,) = parse_sidecar(place.file().read_bytes(), place.file()).ranks
    assert (rank.rank, rank.work_per_step) == (3, WORK[words])


@pytest.mark.parametrize("name", ["tokens_per_step", "samples_per_step", "flops_per_step"])
@pytest.mark.parametrize("code", [TRAINER, LIGHTNING], ids=["trainer", "lightning"])
def test_a_callback_refuses_what_is_no_count(train, tmp_path, code, name):
    done = train(code, f"{name}=0")
    assert done.returncode == 1
    assert f"ValueError: {name} " in done.stderr
    assert read_programs(tmp_path) == {}
