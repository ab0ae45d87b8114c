"""Programs that know nothing of nsyspipe, captured by ``--attach-steps`` with the real nsys and torch, on CPUs.

What torch does while it is imported are thousands of calls of the operating system: they are traced
where no torch is, in `test_launchers_cpu`.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from nsyspipe.capture.outcome import cut_short_text
from nsyspipe.capture.status import Program, read_programs
from tests.build.programs import put
from tests.capture.stand_in import NVTX, OPTIMIZER, TORCH_WITH_OPTIMIZERS
from tests.golden.words import figures
from tests.launchers.fakes import LAUNCHERS, ended
from tests.with_nsys.launching import endpoint, steps_of
from tests.with_nsys.test_launchers_cpu import ranges

pytestmark = pytest.mark.nsys

# Two optimizers, and an accumulation of two micro-batches.
TRAINS = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
of_weights, of_biases = torch.optim.AdamW([model.module.weight]), torch.optim.SGD([model.module.bias])
for step in range(12):
    for _ in range(2):
        model(torch.randn(4, 16)).sum().backward()
    for one in (of_weights, of_biases):
        one.step()
        one.zero_grad()
dist.destroy_process_group()
sys.stdout.write(" ".join([__name__, *sys.argv[1:], f"{'nsyspipe' in globals()}\\n"]))  # at once: both ranks write
"""


# What two nodes start: the first has one nsys around torchrun, the second one of its rank.
NODES = (
    ("--node-rank", "0", "--node-wide", "--program", "train.py"),
    ("--node-rank", "1", "-m", "train"),
)
# Two passes of 16 x 16 weights for 4 samples. No gradient of the inputs is needed.
FLOPS = 2 * 2 * (2 * 4 * 16 * 16)


def test_two_nodes_capture_the_steps_asked_for_of_a_program_that_nobody_changed(machine):
    """A node each in its way: by the name of a file and of a module, with one nsys around all and one of the rank."""
    machine.put_program(TRAINS)
    words = [
        "--cpu",
        "--trace",
        "nvtx",
        "--nnodes",
        "2",
        "--rdzv-endpoint",
        endpoint(),
        "-o",
        "run",
    ]
    words += ["--attach-steps", "4:9", "--count-flops", "--", "-x"]
    nodes = [machine.start("node.sh", *node, *words) for node in NODES]
    answers = [ended(node, timeout=180) for node in nodes]
    assert [answer.status for answer in answers] == [0, 0], answers[0].err + answers[1].err
    # The nsys around torchrun says there what it does.
    assert answers[0].out.count("__main__ -x False\n") == 1
    assert answers[1].out == "__main__ -x False\n"
    reports = ("run_1", "run_node0")
    assert [name for name in machine.files() if name.startswith("run")] == [
        *("run.node0.capture.json", "run.node1.capture.json"),
        *(f"{name}.{suffix}" for name in reports for suffix in ("nsys-rep", "sqlite")),
    ]
    assert steps_of(machine.analysis("run_*.sqlite")) == {rank: [4, 5, 6, 7, 8] for rank in (0, 1)}
    # The second of the two optimizers steps when the next step has begun.
    step = ["optimizer", "forward", "backward", "forward", "backward", "optimizer"]
    expected = [text for number in range(4, 9) for text in (f"step {number}", *step)]
    for at, report in enumerate(reversed(reports)):
        assert ranges(machine.work / f"{report}.sqlite")[1:] == expected, report
        sidecar = machine.sidecar(f"run.node{at}")
        assert sidecar["step_pattern"] == "^step [0-9]+$"
        (rank,) = sidecar["ranks"]
        assert (rank["rank"], rank["is_complete"], rank["problem"]) == (at, True, None)
        assert rank["work_per_step"]["flops"] == FLOPS, at


# Of a torch that only calls hooks.
STEPS_ALONE = """
from torch.optim.optimizer import Optimizer, Parameter
optimizer = Optimizer([Parameter()])
for step in range(12): optimizer.step()
"""


def test_a_program_of_fewer_steps_is_told_which_to_ask_for(machine):
    put(machine.root, "site/torch/__init__.py", TORCH_WITH_OPTIMIZERS)
    put(machine.root, "site/torch/optim/__init__.py", "from torch.optim import optimizer")
    put(machine.root, "site/torch/optim/optimizer.py", OPTIMIZER)
    machine.variables["PYTHONPATH"] = str(machine.root / "site")
    machine.put_program(STEPS_ALONE)
    words = ("--cpu", "--program", "train.py", "--attach-steps", "50:70")
    answer = machine.run("baseline.sh", *words, timeout=90)
    assert answer.status == 3
    # The words of each outcome: tests/golden/frozen/launchers/verdicts.txt.
    assert {"12", "50"} <= figures(machine.refusal(answer))
    assert "fix: --attach-steps 2:12" in answer.err


# DeepSpeed and torchtitan are not installed: these make the calls of theirs that count. ZeRO 1 and
# 2 step the optimizer once to make its state, then in each step for one group after the other; ZeRO
# 3 gives it one partition at a time.
ZERO = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
base = torch.optim.AdamW([{{"params": layer.parameters()}} for layer in model])
groups = base.param_groups
partitions = [group["params"] for group in groups]
{first}
for step in range(8):
    model(torch.randn(2, 8)).sum().backward()
    {update}
    model.zero_grad()
"""
OF_GROUPS = """
    for group in groups:
        base.param_groups = [group]
        base.step()
    base.param_groups = groups
"""
OF_PARTITIONS = """
    for at in range(len(groups)):
        for base.param_groups[at]["params"] in [[one] for one in partitions[at]]:
            base.step()
        base.param_groups[at]["params"] = []
"""
# Its container steps an optimizer for each part of the model, and is one itself.
TITAN = """
import torch
class Container(torch.optim.Optimizer):
    def __init__(self, parts):
        self.optimizers = [torch.optim.AdamW(part.parameters()) for part in parts]
        super().__init__([one for part in parts for one in part.parameters()], {"lr": 1e-3})
    def step(self):
        for one in self.optimizers: one.step()
parts = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)]
optimizers = Container(parts)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizers.optimizers[0], lambda step: 1.0)
for step in range(9):
    parts[1](parts[0](torch.randn(2, 8))).sum().backward()
    optimizers.step()
    scheduler.step()
    optimizers.zero_grad()
"""
EMPTY = "for group in groups: group['params'] = []"
LIKE = {
    "ZeRO 1 and 2": ZERO.format(first="base.step()", update=OF_GROUPS),
    "ZeRO 3": ZERO.format(
        first=EMPTY + OF_PARTITIONS.replace("\n    ", "\n"), update=OF_PARTITIONS
    ),
    "torchtitan": TITAN,
}


# Imports torch once, and goes on as each program in a process of its own.
EACH = """
import atexit, json, os, sys
import nvtx, torch, torch._dynamo  # as the first optimizer does
texts = json.loads(sys.argv[1])
for at, text in enumerate(texts):
    if not os.fork():
        os.environ["RANK"] = str(at)
        exec(text, {"__name__": "__main__"})
        with open(f"calls_{at}.json", "w") as file:
            json.dump(nvtx.calls, file)
        atexit._run_exitfuncs()
        os._exit(0)  # to take apart what is imported takes longer than the program
assert [os.wait()[1] for _ in texts] == [0] * len(texts)
os._exit(0)
"""


@pytest.fixture(scope="module")
def attached(tmp_path_factory):
    """The folder of what programs behind `launchers/attach` have asked of nvtx, and say of themselves."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch: dependency group capture")
    folder = tmp_path_factory.mktemp("attached")
    put(folder, "site/nvtx.py", NVTX)
    environment = os.environ | {
        "PYTHONPATH": f"{LAUNCHERS / 'attach'}:{folder}/site",
        "CUDA_VISIBLE_DEVICES": "",
        "NSYSPIPE_ATTACH_STEPS": "3:20",
        "NSYSPIPE_STATUS_DIR": str(folder),
    }
    command = [sys.executable, "-c", EACH, json.dumps([*LIKE.values()])]
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", LIKE)
def test_steps_of_programs_like_deepspeed_and_torchtitan_are_captured(attached, name):
    at = [*LIKE].index(name)
    calls = json.loads((attached / f"calls_{at}.json").read_text())
    of_steps = [call for call in calls if "step " in call or "capture" in call]
    steps = [call for number in range(3, 9) for call in (f"step {number}", f"end step {number}")]
    assert of_steps[of_steps.index("nsyspipe.capture") :][: len(steps) + 1] == [
        "nsyspipe.capture",
        *steps,
    ]
    # One more for the state of ZeRO's optimizer.
    short = Program(n_steps=9, n_captured_steps=6, warmup=3, steps_asked=17)
    assert cut_short_text(read_programs(attached)[at]) == cut_short_text(short)
