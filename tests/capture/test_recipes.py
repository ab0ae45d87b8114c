"""The callbacks of Hugging Face's Trainer and Lightning's, and a loop of accelerate, each by the real package on the CPU.

What is asked of nvtx is noted by a stand-in, and told with what the program trained. One process
imports the packages, which takes longer than all else here, and goes on as each of the programs.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.build.programs import put
from tests.capture.stand_in import NVTX

pytestmark = [
    pytest.mark.recipes,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("accelerate", "lightning", "transformers"))),
        reason="not installed: dependency group recipes",
    ),
]

REPOSITORY = Path(__file__).parents[2]
TRAINER = """
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from nsyspipe.capture import TrainerCapture

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        out = self.layer(x).squeeze(-1)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}

class Tells(TrainerCallback):
    def on_optimizer_step(self, *_, **__): nvtx.calls.append("stepped")

data = [{"x": torch.ones(4), "labels": torch.tensor(1.0)} for _ in range(24)]
args = TrainingArguments(output_dir=".", per_device_train_batch_size=2, gradient_accumulation_steps=GROUP, num_train_epochs=1,
                         max_steps=MAX, report_to=[], save_strategy="no", eval_strategy="steps", eval_steps=3, use_cpu=True,
                         disable_tqdm=True, torch_compile=False)
trainer = Trainer(Model(), args, train_dataset=data, eval_dataset=data[:2],
                  callbacks=[Tells(), TrainerCapture(WORDS)])
trainer.train()
nvtx.calls.append(trainer.state.global_step)
"""
LIGHTNING = """
import torch, lightning
from nsyspipe.capture import LightningCapture

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, at):
        nvtx.calls.append("loss")
        return self.layer(batch).mean()
    def validation_step(self, batch, at): self.layer(batch)
    def optimizer_step(self, *words, **more):
        super().optimizer_step(*words, **more)
        nvtx.calls.append("stepped")
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)

MANUAL
loader = torch.utils.data.DataLoader([torch.ones(4) for _ in range(8)], batch_size=2)
trainer = lightning.Trainer(max_epochs=3, max_steps=MAX, accumulate_grad_batches=GROUP, accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[LightningCapture(WORDS)])
trainer.fit(Module(), loader, loader)
nvtx.calls.append(trainer.global_step)
"""
# Two optimizers that the module steps itself, as of a GAN.
MANUAL = """
class Module(Module):
    automatic_optimization = False
    def training_step(self, batch, at):
        for one in self.optimizers():
            self.manual_backward(self.layer(batch).mean())
            one.step()
            one.zero_grad()
    def configure_optimizers(self): return [torch.optim.SGD([one], lr=0.1) for one in self.parameters()]
"""


ACCELERATE = """
import torch
from accelerate import Accelerator
from nsyspipe.capture import annotate, captured_steps

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader([torch.ones(4) for _ in range(4)], batch_size=1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in captured_steps(loader, warmup=1, steps=2, stop=True):
    with annotate("forward"):
        loss = model(batch).mean()
    with annotate("backward"):
        accelerator.backward(loss)
    with annotate("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
"""
# As nobody has changed it: `launchers/attach` does the first lines when torch is imported. accelerate wraps the optimizer, and skips its step while it accumulates.
ATTACHED = """
import os, sys, torch
from nsyspipe.capture.attach import attach
os.environ["NSYSPIPE_ATTACH_STEPS"] = "2:4"
attach(sys.modules["torch.optim.optimizer"])
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader([torch.ones(4) for _ in range(12)], batch_size=1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
        nvtx.calls.append(accelerator.sync_gradients)
"""


def program(text, **parts):
    for name, part in parts.items():
        text = text.replace(name, str(part))
    return text


TWO_STEPS = "warmup=1, steps=2"
PROGRAMS = {
    "trainer": program(TRAINER, GROUP=2, MAX=4, WORDS=TWO_STEPS),
    "trainer that ends early": program(TRAINER, GROUP=1, MAX=3, WORDS="warmup=2, steps=9")
    + program(TRAINER, GROUP=1, MAX=9, WORDS="warmup=2, steps=2, stop=True"),
    "lightning": program(LIGHTNING, MANUAL="", GROUP=2, MAX=4, WORDS=TWO_STEPS),
    "lightning by hand": program(
        LIGHTNING, MANUAL=MANUAL, GROUP=1, MAX=99, WORDS="warmup=0, steps=1, stop=True"
    ),
    "accelerate": ACCELERATE,
    "accelerate unchanged": ATTACHED,
}
EACH = """
import json, os, sys
import accelerate, lightning, nvtx, torch, torch._dynamo
from transformers import Trainer
for name, text in json.loads(sys.argv[1]).items():
    os.mkdir(name)
    child = os.fork()
    if not child:
        os.chdir(name)
        exec(text, {"__name__": "__main__", "nvtx": nvtx})
        with open("calls.json", "w") as file:
            json.dump(nvtx.calls, file)
        os._exit(0)  # to take apart what is imported takes longer than the program
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{name} has failed")
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Return what each program asks of nvtx, and tells."""
    folder = tmp_path_factory.mktemp("recipes")
    put(folder, "site/nvtx.py", NVTX)
    places = {
        "PYTHONPATH": f"{folder}/site:{REPOSITORY}",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    options = {"env": os.environ | places, "cwd": folder, "capture_output": True, "text": True}
    command = [sys.executable, "-c", EACH, json.dumps(PROGRAMS)]
    done = subprocess.run(command, **options, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return {name: json.loads((folder / name / "calls.json").read_text()) for name in PROGRAMS}


def test_a_step_of_the_trainer_is_its_optimizers_whatever_it_accumulates(asked):
    forward = ["forward", "end forward"]
    optimizer = ["optimizer", "stepped", "end optimizer"]
    steps = [[f"step {n}", *2 * forward, *optimizer, f"end step {n}"] for n in range(4)]
    captured = ["nsyspipe.capture", *steps[1], *steps[2], "end nsyspipe.capture"]
    assert asked["trainer"] == [*steps[0], *captured, *steps[3], 4]


def test_a_trainer_that_ends_early_ends_its_capture(asked):
    told = asked["trainer that ends early"]
    end = told.index(3)
    assert told[end - 2 : end] == ["end step 2", "end nsyspipe.capture"]
    assert told[-3:] == ["end step 3", "end nsyspipe.capture", 4]


def test_a_step_of_lightning_has_its_phases_over_epochs_and_micro_batches(asked):
    pass_ = ["forward", "loss", "end forward", "backward", "end backward"]
    steps = [
        [f"step {n}", *2 * pass_, "optimizer", "stepped", "end optimizer", f"end step {n}"]
        for n in range(4)
    ]
    captured = ["nsyspipe.capture", *steps[1], *steps[2], "end nsyspipe.capture"]
    assert asked["lightning"] == [*steps[0], *captured, *steps[3], 4]


def test_lightning_stops_and_with_manual_optimization_only_backward_is_told(asked):
    captured = [
        "nsyspipe.capture",
        "step 0",
        *2 * ["backward", "end backward"],
        "end step 0",
        "end nsyspipe.capture",
    ]
    found = asked["lightning by hand"]
    assert [*found[: len(captured)], found[-1]] == [*captured, 2]


def test_a_loop_of_accelerate_is_as_any(asked):
    phases = ["forward", "end", "backward", "end", "optimizer", "end"]
    steps = [[f"step {n}", "data", "end", *phases, "end"] for n in range(3)]
    captured = ["nsyspipe.capture", *steps[1], *steps[2], "end nsyspipe.capture"]
    assert asked["accelerate"] == [*steps[0], *captured]


def test_an_unchanged_loop_of_accelerate_is_captured_by_its_optimizers_steps(asked):
    steps = [[f"step {number}", True, False, f"end step {number}"] for number in (1, 2, 3)]
    captured = ["nsyspipe.capture", *steps[1], *steps[2], "end nsyspipe.capture"]
    calls = asked["accelerate unchanged"][1:]
    phases = ("data", "forward", "backward", "optimizer")
    without_phases = [call for call in calls if call not in (*phases, "end")]
    assert without_phases == [*steps[0], *captured, True, False, True, False, True]
    of_step_2 = calls[calls.index("step 2") : calls.index("end step 2")]
    # Two micro-batches, and one step of the optimizer.
    assert [of_step_2.count(phase) for phase in phases] == [2, 2, 2, 1]
