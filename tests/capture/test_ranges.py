"""NVTX ranges of a training loop: which are made, in what order, and around what the capture lies.

Each program runs in a process of its own, with a stand-in for torch and nvtx that notes what is
asked of it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nsyspipe.capture
from tests.capture.stand_in import TORCH

REPOSITORY = Path(__file__).parents[2]

NVTX = """
calls = []
def push_range(text): calls.append(text)
def pop_range(): calls.append("pop")
def start_range(text):
    calls.append(f"start {text}")
    return text
def end_range(handle): calls.append(f"end {handle}")
"""

# What torch is without CUDA, and without a process group.
CPU_TORCH = """
from types import SimpleNamespace as Part
def _fail(*_): raise RuntimeError("NVTX functions not installed. Are you sure you have a CUDA build?")
__version__, version = "2.99.0+cpu", Part(cuda=None)
cuda = Part(is_available=lambda: False, is_initialized=lambda: False, nvtx=Part(mark=_fail, range_push=_fail))
distributed = Part(is_available=lambda: False)
"""

MISSING = "raise ImportError('not installed')"
START = (
    "import json, {module}\nfrom nsyspipe.capture import annotate, captured_steps, start_capture, "
    "stop_capture\n"
)


@pytest.fixture
def run(tmp_path):
    def program(code, *, torch=None, nvtx=MISSING, status=0, **environment):
        for name, source in (("torch", torch), ("nvtx", nvtx)):
            if source is not None:
                (tmp_path / f"{name}.py").write_text(source, "utf-8")
        path = os.pathsep.join((str(tmp_path), str(REPOSITORY)))
        inherited = {
            key: value for key, value in os.environ.items() if key not in {"RANK", "LOCAL_RANK"}
        }
        options = {
            "env": {**inherited, "PYTHONPATH": path, **environment},
            "capture_output": True,
            "text": True,
        }
        done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, **options)
        assert done.returncode == status, done.stderr
        return done.stdout if not status else done.stderr

    return program


def calls(run, code, module="nvtx", **more):
    return all_calls(run, [code], module, **more)[0]


def all_calls(run, codes, module, **more):
    """Return what each program asked; they are forks of one process, which starts once."""
    ends = (
        START.format(module=module),
        f"\nprint(json.dumps({module}.calls), flush=True)\nos._exit(0)",
    )
    forks = (
        f"import os\nfor code in {[code.join(ends) for code in codes]!r}:\n    if not (child := "
        "os.fork()): exec(code)\n"
    )
    said = run(
        forks + "    os.waitpid(child, 0)",
        **({"nvtx": NVTX} if module == "nvtx" else {"torch": TORCH}) | more,
    )
    return [json.loads(line) for line in said.splitlines() if line.startswith("[")]


OF_NVTX = {
    "a step holds its data, and the measured steps lie in the capture": """
for item in captured_steps("abc", warmup=1, steps=1):
    with annotate("forward"): nvtx.calls.append(item)
""",
    "an exception ends the range and goes on": """
inner = annotate("inner")
try:
    with annotate("outer"), inner, inner: raise KeyError
except KeyError: nvtx.calls.append("caught")
""",
    "a number follows the name": "with annotate('epoch', 7): pass",
    "a decorated function is itself, in a range": """
@annotate("forward")
def double(number, *, more=0):
    "Its words."
    nvtx.calls.append("work")
    return 2 * number + more
nvtx.calls += [double(4, more=1), double.__name__, double.__doc__]
""",
    "the range of a coroutine spans its awaits": """
import asyncio
@annotate("load")
async def load(name):
    await asyncio.sleep(0)
    nvtx.calls.append(name)
async def both(): await asyncio.gather(load("a"), load("b"))
asyncio.run(both())
""",
    **{
        f"a loop that is left ends its step and its capture: {leave}": f"""
try:
    for item in captured_steps("abc", warmup=0, steps=3):
        if item == "b": {leave}
except KeyError: pass
nvtx.calls.append("after")
"""
        for leave in ("break", "raise KeyError")
    },
    "a loader that ends early leaves no empty step": "for item in captured_steps(['a'], warmup=0, steps=2): pass",
    "epochs count on, and the capture begins once": """
for _ in range(3):
    for item in captured_steps(['a', 'b'], warmup=3, steps=1): pass
""",
    "a capture goes on with the next epoch, and holds what lies between": """
for epoch in range(3):
    for item in captured_steps(['a', 'b'], warmup=1, steps=2): pass
    nvtx.calls.append(f"evaluation {epoch}")
""",
    "it goes on with a stream of items too": """
for epoch in range(2):
    for item in captured_steps(iter("ab"), warmup=1, steps=2): pass
""",
    "what breaks off in the second epoch ends it": """
for epoch in range(3):
    for item in captured_steps(['a', 'b'], warmup=1, steps=4):
        if epoch: break
""",
    "stop ends this loop and those after it": """
for epoch in range(2):
    for item in captured_steps("abcd", warmup=1, steps=2, stop=True): nvtx.calls.append(item)
""",
    "a stream of items ends where it ends": "nvtx.calls += list(captured_steps(iter('ab'), warmup=0, steps=9))",
    "the plain pieces may be called twice": "start_capture(); start_capture(); stop_capture(); stop_capture()",
}
OF_TORCH = {
    "the ranks meet before and after the profiler starts": """
for item in captured_steps('ab', warmup=1, steps=1): torch.calls.append(item)
""",
    "a run without capture waits in the same places": """
for item in captured_steps('a', warmup=0, steps=1, capture=False): torch.calls.append(item)
""",
    "a loop that breaks off waits for the GPU, but not for ever": """
for item in captured_steps('a', warmup=0, steps=2): break
""",
    "a profiler that fails is a warning": """
import warnings
def fail(): raise RuntimeError("no profiler")
torch.cuda.profiler.start = fail
with warnings.catch_warnings(record=True) as caught:
    for item in captured_steps("a", warmup=0, steps=1): torch.calls.append(item)
torch.calls.append(str(caught[0].message))
""",
}


@pytest.mark.slow
def test_ranges_are_made_in_this_order(run, pinned):
    told = ""
    for module, cases in (("nvtx", OF_NVTX), ("torch", OF_TORCH)):
        for name, asked in zip(cases, all_calls(run, cases.values(), module), strict=True):
            told += f"== {module}: {name}\n{json.dumps(asked)}\n"
    pinned("launchers/ranges.txt", told)


@pytest.mark.slow
def test_ranges_go_to_torch_before_nvtx_unless_it_lacks_cuda(
    run,
):
    code = "with annotate('forward'): pass"
    assert calls(run, code, "torch", nvtx="raise AssertionError") == ["forward", "pop"]
    assert calls(run, f"import torch\n{code}", torch=CPU_TORCH) == ["forward", "pop"]
    # Torch is not imported for them.
    code = (
        "with annotate('x'): pass\nimport sys; nvtx.calls = ['torch' in sys.modules, *nvtx.calls]"
    )
    assert calls(run, code, torch=TORCH) == [False, "x", "pop"]
    code = (
        "from nsyspipe.capture import *\nprint([x for x in captured_steps('abc', warmup=1, "
        "steps=1)])"
    )
    assert run(code, torch=MISSING) == "['a', 'b', 'c']\n"


def test_a_generator_cannot_be_decorated_and_an_open_capture_ends(run, worded):
    code = "from nsyspipe.capture import annotate\n@annotate('data')\ndef items(): yield 1"
    worded(run(code, status=1).splitlines()[-1])
    code = "import atexit\natexit.register(lambda: print(nvtx.calls))\nstart_capture()"
    assert (
        run(START.format(module="nvtx") + code, nvtx=NVTX)
        == "['start nsyspipe.capture', 'end nsyspipe.capture']\n"
    )


def test_the_launcher_is_told_the_names_and_what_the_job_runs_on(run, tmp_path):
    code = """
import os
work = {"tokens_per_step": 8192, "flops_per_step": 9_483_000_000_000}
for item in captured_steps("abc", warmup=1, steps=2, stop=True, **work):
    with annotate("forward"), annotate("layer", 3): pass
torch.calls = [os.getpid()]
"""
    pid = calls(run, code, "torch", NSYSPIPE_STATUS_DIR=str(tmp_path), RANK="5", LOCAL_RANK="1")[0]
    assert json.loads((tmp_path / "ranges_5.json").read_text()) == {
        "rank": 5,
        "local_rank": 1,
        "pid": pid,
        "step_pattern": "^step [0-9]+$",
        "phase_names": ["data", "forward"],
        "n_steps": 3,
        "n_captured_steps": 2,
        "warmup": 1,
        "steps_asked": 2,
        "epoch_steps": 0,
        "loop_ended": True,
        "torch_version": "2.99.0",
        "cuda_version": "13.0",
        "nccl_version": "2.28.9",
        "gpu_name": "A GPU",
        "tokens_per_step": 8192,
        "samples_per_step": None,
        "flops_per_step": 9_483_000_000_000,
        "peak_allocated_bytes": 30 << 30,
        "peak_reserved_bytes": 34 << 30,
        "allocator_retries": 2,
    }
    assert not list(tmp_path.glob("*.[0-9]*"))


# A fork does not speak for its program, and ends before it.
FORKS = """import os
for item in captured_steps("ab", warmup=0, steps=1): pass
if not (child := os.fork()): raise SystemExit
os.waitpid(child, 0); os._exit(0)"""
BEFORE_ITS_CAPTURE = "import os\nfor item in captured_steps('a', warmup=1, steps=2): os._exit(0)"


@pytest.mark.parametrize(
    ("code", "told"), [(BEFORE_ITS_CAPTURE, (0, False, None)), (FORKS, (1, False, None))]
)
def test_the_launcher_is_told_how_far_the_program_is(run, tmp_path, code, told):
    run(START.format(module="nvtx") + code, nvtx=NVTX, NSYSPIPE_STATUS_DIR=str(tmp_path))
    found = json.loads((tmp_path / "ranges_0.json").read_text())
    assert (found["n_captured_steps"], found["loop_ended"], found["torch_version"]) == told


def test_a_window_of_no_steps_is_refused_at_once():
    for wrong in ({"warmup": -1}, {"steps": 0}):
        with pytest.raises(ValueError, match="needs warmup >= 0 and steps >= 1"):
            nsyspipe.capture.captured_steps([], **wrong)
    for wrong in (0, -1, True, 1.5, "8", 2**62 + 1):
        with pytest.raises(ValueError, match="tokens_per_step"):
            nsyspipe.capture.captured_steps([], tokens_per_step=wrong)
    with pytest.raises(AttributeError, match="has no attribute 'anotate'"):
        nsyspipe.capture.anotate  # noqa: B018 - the look-up is the test


def test_ranges_need_only_the_standard_library(run, tmp_path):
    code = "list(captured_steps('ab', warmup=0, steps=1))"
    assert calls(run, code, NSYSPIPE_STATUS_DIR=str(tmp_path / "missing"))[-1] == "pop"
    heavy = {"numpy", "nvtx", "pandas", "pyarrow", "rich", "sqlalchemy", "torch", "typer"}
    code = (
        f"import sys\nfrom nsyspipe.capture import annotate, captured_steps\nprint({heavy} & "
        f"{{*sys.modules}})"
    )
    assert run(code) == "set()\n"
