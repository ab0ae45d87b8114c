"""Stand-ins for torch, its optimizers, nvtx and trainers, as they are laid out.

Those of torch and nvtx note what is asked of them.
"""

TORCH = """
from types import SimpleNamespace as Part
calls, is_capturing = [], [False]
def note(text, answer=None):
    def call(*_, **__):
        calls.append(text)
        return answer
    return call
__version__, version = "2.99.0", Part(cuda="13.0")
compiler = Part(is_compiling=lambda: False)
cuda = Part(
    nvtx=Part(mark=lambda text: None, range_push=calls.append, range_pop=note("pop"),
              range_start=lambda text: calls.append(f"start {text}"), range_end=note("end")),
    is_available=lambda: True, is_initialized=lambda: True, current_device=lambda: 1,
    is_current_stream_capturing=lambda: is_capturing[0],
    current_stream=lambda: Part(record_event=lambda: Part(query=note("query", True))),
    profiler=Part(start=note("PROFILE"), stop=note("END")), synchronize=note("sync"),
    max_memory_allocated=lambda: 30 << 30, max_memory_reserved=lambda: 34 << 30,
    memory_stats=lambda: {"num_alloc_retries": 2},
    get_device_name=lambda: "A GPU", nccl=Part(version=lambda: (2, 28, 9)),
)
distributed = Part(is_available=lambda: True, is_initialized=lambda: True, get_backend=lambda: "nccl",
                   barrier=lambda device_ids: calls.append(f"barrier {device_ids}"))
"""
# With optimizers that call their hooks as torch's do.
TORCH_WITH_OPTIMIZERS = f"{TORCH}from torch import optim\n"
OPTIMIZER = """
hooks = []
register_optimizer_step_post_hook = hooks.append
class Parameter:
    # As to compare tensors, which takes time, and is refused by some.
    def __eq__(self, other): raise AssertionError("compared")
    __hash__ = object.__hash__
class Optimizer:
    def __init__(self, *groups):
        self.param_groups = [{"params": list(group)} for group in groups]
    def step(self):
        for hook in hooks: hook(self, (), {})
"""
NVTX = """
calls = []
def start_range(text):
    calls.append(text)
    return text
def end_range(text): calls.append(f"end {text}")
def push_range(text): calls.append(text)
def pop_range(): calls.append("end")
"""
# The base classes of callbacks, which do nothing by themselves.
TRANSFORMERS = "class TrainerCallback: pass\n"
LIGHTNING_CALLBACKS = "class Callback: pass\n"
