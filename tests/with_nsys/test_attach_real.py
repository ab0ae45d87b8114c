"""Programs that know nothing of nsyspipe, captured by ``--attach-steps`` with the real nsys and torch, on CPUs."""

import pytest

from nsyspipe.capture.outcome import cut_short
from nsyspipe.capture.status import Program
from tests.golden.words import figures
from tests.with_nsys.launching import steps_of
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


# The same in one process: what torchrun and more ranks need to import takes most of the time.
TRAINS_ALONE = """
import sys, torch
model = torch.nn.Linear(16, 16)
of_weights, of_biases = torch.optim.AdamW([model.weight]), torch.optim.SGD([model.bias])
for step in range(12):
    for _ in range(2):
        model(torch.randn(4, 16)).sum().backward()
    for one in (of_weights, of_biases):
        one.step()
        one.zero_grad()
print(__name__, *sys.argv[1:], "nsyspipe" in globals())
"""


def test_the_steps_asked_for_are_captured_of_a_program_that_nobody_changed(machine):
    machine.put_program(TRAINS)
    words = ("--cpu", "-n", "2", "-o", "run", "--attach-steps", "4:9", "--program", "train.py")
    answer = machine.run("ddp.sh", *words, "--", "-x", timeout=90)
    assert (answer.status, answer.out) == (0, "__main__ -x False\n" * 2), answer.err
    check_capture_of_steps(machine, n_ranks=2)


# Two passes of 16 x 16 weights for 4 samples. No gradient of the inputs is needed.
FLOPS = 2 * 2 * (2 * 4 * 16 * 16)


def test_an_unchanged_program_has_phases_and_flops(machine):
    machine.put_program(TRAINS_ALONE)
    words = ("--cpu", "-o", "run", "--attach-steps", "4:9", "--count-flops")
    answer = machine.run("baseline.sh", *words, "--program", "train.py", timeout=90)
    assert answer.status == 0, answer.err
    # The second of the two optimizers steps when the next step has begun.
    step = ["optimizer", "forward", "backward", "forward", "backward", "optimizer"]
    expected = [text for number in range(4, 9) for text in (f"step {number}", *step)]
    assert ranges(machine.work / "run_0.sqlite")[1:] == expected
    (rank,) = machine.sidecar("run")["ranks"]
    assert rank["work_per_step"]["flops"] == FLOPS


def test_the_steps_asked_for_are_captured_of_a_module(machine):
    machine.put_program(TRAINS_ALONE)
    words = ("--cpu", "-o", "run", "--attach-steps", "4:9", "-m", "train")
    answer = machine.run("baseline.sh", *words, "--", "-x", timeout=90)
    assert (answer.status, answer.out) == (0, "__main__ -x False\n"), answer.err
    check_capture_of_steps(machine, n_ranks=1)


def check_capture_of_steps(machine, n_ranks):
    steps = steps_of(machine.analysis("run_*.sqlite"))
    assert steps == {rank: [4, 5, 6, 7, 8] for rank in range(n_ranks)}
    sidecar = machine.sidecar("run")
    assert {(row["is_complete"], row["problem"]) for row in sidecar["ranks"]} == {(True, None)}
    assert sidecar["step_pattern"] == "^step [0-9]+$"


def test_a_program_of_fewer_steps_is_told_which_to_ask_for(machine):
    machine.put_program(TRAINS_ALONE)
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


@pytest.mark.parametrize("text", LIKE.values(), ids=LIKE)
def test_steps_of_programs_like_deepspeed_and_torchtitan_are_captured(machine, text):
    machine.put_program(text + "print(step + 1)")
    answer = machine.run(
        "baseline.sh", "--cpu", "--program", "train.py", "--attach-steps", "3:20", timeout=90
    )
    assert answer.status == 0, answer.err
    # What comes behind the last step has a range too, which the end of the program closes.
    assert steps_of(machine.analysis("baseline_0.sqlite"))[0][:6] == [3, 4, 5, 6, 7, 8]
    # One more for the state of ZeRO's optimizer.
    short = Program(n_steps=9, n_captured_steps=6, warmup=3, steps_asked=17)
    assert machine.sidecar("baseline")["ranks"][0]["problem"] == cut_short(short)
