"""A program that nobody changed: which steps are counted, around which the capture lies, and that nothing of it breaks the program.

Each program runs in a process of its own behind `launchers/attach`, with a stand-in for torch that
notes what is asked of it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.build.programs import put
from tests.capture.stand_in import OPTIMIZER, TORCH_WITH_OPTIMIZERS as TORCH

ATTACH = Path(__file__).parents[2] / "launchers" / "attach"
# with optimizers that call their hooks as torch's do
A, B = (
    "a, b = Parameter(), Parameter()",
    "import torch\nfrom torch.optim.optimizer import Optimizer, Parameter\n",
)
ONE = f"{B}{A}\nsgd = Optimizer([a, b])\n"
# Of the first step only the end is seen.
WINDOW = [
    *(
        "start step 1",
        "end",
        "query",
        "PROFILE",
        "query",
        "start step 2",
        "end",
        "start step 3",
        "end",
        "query",
        "END",
    ),
]


@pytest.fixture
def run(tmp_path):
    def program(code, *, steps="2:4", torch=TORCH, optimizer=OPTIMIZER, path=(), **variables):
        put(tmp_path, "torch/__init__.py", torch)
        put(tmp_path, "torch/optim/__init__.py", "from torch.optim import optimizer")
        put(tmp_path, "torch/optim/optimizer.py", optimizer)
        # Nothing of ours but the one directory.
        places = ":".join(map(str, (ATTACH, *path, tmp_path)))
        variables |= {
            "PYTHONPATH": places,
            "NSYSPIPE_ATTACH_STEPS": steps,
            # The stand-in has no modules. Phases are tested with the real torch.
            "NSYSPIPE_NO_PHASES": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        ending = (
            "\nimport json; print(json.dumps(torch.calls), flush=True)"
            if "import torch\n" in code
            else ""
        )
        command = [sys.executable, "-c", code + ending]
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr
        return done

    return program


def calls(done):
    assert done.stderr == ""
    return json.loads(done.stdout.splitlines()[-1])


STEPS = {
    "each step of one optimizer counts, and no rank waits for another": f"{ONE}for _ in range(6): sgd.step()",
    "a second optimizer is of the same step": f"{ONE}other = Optimizer([b])\nfor _ in range(6): sgd.step(); other.step()",
    # As ZeRO calls the optimizer that it wraps: for one group after the other.
    "calls for other groups are of the same step": f"""{ONE}
for _ in range(6):
    for parameter in (a, b):
        sgd.param_groups = [{{"params": []}}, {{"params": [parameter]}}]
        sgd.step()
""",
    # As ZeroRedundancyOptimizer does, whose first rank holds the first parameter.
    "one that calls another one steps once": f"""{ONE}
class Around(Optimizer):
    def step(self): sgd.step(); super().step()
outer = Around([a, b])
for _ in range(6): outer.step()
""",
    "one in backward for each parameter": (
        f"{B}all = [Optimizer([Parameter()]) for _ in range(3)]\nfor _ in range(6): [x.step() for "
        "x in all]"
    ),
    "steps while a graph is made of them are none": f"""{ONE}
torch.is_capturing[0] = True
for _ in range(9): sgd.step()
torch.is_capturing[0] = False
for _ in range(6): sgd.step()
""",
    # The first is gone with its parameters: the next one goes on counting.
    "another optimizer that comes later": (
        f"{ONE}sgd.step()\ndel sgd, a, b\nsgd = Optimizer([Parameter()])\nfor _ in range(4): "
        "sgd.step()"
    ),
    "an optimizer without parameters": f"{B}sgd = Optimizer()\nfor _ in range(5): sgd.step()",
}


@pytest.mark.parametrize("code", STEPS.values(), ids=STEPS)
def test_the_capture_lies_around_the_steps_asked_for(run, code):
    assert calls(run(code)) == WINDOW


def test_a_program_that_ends_before_ends_its_capture_and_the_launcher_is_told(run, tmp_path):
    told = {"NSYSPIPE_STATUS_DIR": str(tmp_path), "RANK": "3"}
    code = (
        f"{ONE}import atexit\natexit.register(lambda: print(torch.calls[-1]))\nfor _ in range(3): "
        "sgd.step()"
    )
    assert run(code, **told).stdout.splitlines()[-1] == "END"
    said = json.loads((tmp_path / "ranges_3.json").read_text())
    names = ("n_steps", "n_captured_steps", "warmup", "steps_asked", "loop_ended", "gpu_name")
    assert [said[name] for name in names] == [3, 1, 2, 2, True, "A GPU"]


BROKEN = {
    "a torch without such hooks": (
        {"optimizer": OPTIMIZER.replace("register_", "no_")},
        "register_optimizer_step_post_hook",
    ),
    "a window that is none": ({"steps": "x:3"}, "'x'"),
    "a window of nothing": ({"steps": "4:4"}, "steps=0"),
    "a window from 0 on": ({"steps": "0:4"}, "warmup=0"),
    "a profiler that raises": (
        {"torch": TORCH.replace('note("PROFILE")', "lambda: 1 // 0")},
        "division",
    ),
    "no compiler": ({"torch": TORCH.replace("compiler =", "_ =")}, "compiler"),
}


@pytest.mark.parametrize(("options", "named"), BROKEN.values(), ids=BROKEN)
def test_whatever_fails_is_said_once_and_the_program_goes_on(run, worded, options, named):
    done = run(f"{ONE}for _ in range(6): sgd.step()\nprint('trained')", **options)
    assert done.stdout.splitlines()[0] == "trained"
    assert done.stderr.count("\n") == 1
    # The reason is mostly Python's own text, which changes with its releases.
    tool, outcome, reason = done.stderr.split(": ", 2)
    assert named in reason
    worded(f"{tool}: {outcome}")


def test_a_program_that_captures_its_own_steps_does_so(run, worded):
    loop = "for _ in captured_steps(range(6), warmup=1, steps=2): sgd.step()"
    done = run(f"{ONE}from nsyspipe.capture import captured_steps\n{loop}")
    told = json.loads(done.stdout)
    assert told[told.index("PROFILE") : told.index("END")].count("data") == 2
    assert told.count("PROFILE") == told.count("step 1") == 1
    assert done.stderr.count("--attach-steps") == 1
    worded(done.stderr.rstrip("\n"))


def test_a_program_without_torch_runs_unchanged_with_its_sitecustomize(run, tmp_path):
    code = (
        "import sys; print('nsyspipe' in sys.modules, 'torch' in sys.modules, hasattr(sys, "
        "'mine'), sys.path[1] == {!r})"
    )
    assert run(code.format(str(ATTACH))).stdout == "False False False True\n"
    put(tmp_path, "own/sitecustomize.py", "import sys; sys.mine = 1; sys.path.append('/added')")
    code = (
        f"{ONE}import sys, sitecustomize; print(sys.mine, sitecustomize.__file__, '/added' in "
        "sys.path)\nfor _ in range(6): sgd.step()"
    )
    done = run(code, path=[tmp_path / "own"])
    assert done.stdout.splitlines()[0] == f"1 {tmp_path}/own/sitecustomize.py True"
    assert calls(done) == WINDOW
    put(tmp_path, "own/sitecustomize.py", "import sys; sys.mine = 1 // 0")
    done = run("print('went on')", path=[tmp_path / "own"])  # as ever: Python tells of it
    assert (done.stdout, done.stderr.splitlines()[0][:22]) == (
        "went on\n",
        "Error in sitecustomize",
    )


def test_a_user_sitecustomize_that_lacks_a_module_is_told_as_ever(run, tmp_path):
    put(tmp_path, "own/sitecustomize.py", "import no_such_module")
    assert (
        "ModuleNotFoundError: No module named 'no_such_module'"
        in run("pass", path=[tmp_path / "own"]).stderr
    )
