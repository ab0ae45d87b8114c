"""What the phases of ``--attach-steps`` cost in a step of a small program on the CPU.

    python tests/bench/phases_cost.py

Steps with and without phases run in turns of 50, so what else the machine does falls on both.
Nothing records the ranges. Printed are the microseconds that a step takes longer, in the median of
the turns, and the ratio to the step. A second line has what the ranges alone cost: a step that does
nothing but to call a module, a loader, a backward and an optimizer of one parameter.
"""

import statistics
import sys
import time
from typing import Any

import torch

from nsyspipe.capture import phases
from nsyspipe.capture.phases import MarkedPhases

N_TURNS = 20
N_STEPS = 50
N_LAYERS = 100


def turn_us(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: object) -> float:
    """Return the microseconds of one step, in the mean of a turn."""
    items = iter(loader)  # type: ignore[call-overload]
    begin_ns = time.perf_counter_ns()
    for _ in range(N_STEPS):
        model(next(items)).sum().backward()
        optimizer.step()
        phases.close_all()
    return (time.perf_counter_ns() - begin_ns) / N_STEPS / 1e3


def after_step(optimizer: torch.optim.Optimizer, *_arguments: object) -> None:
    """End the phase of an optimizer, as the hook of ``attach`` does."""
    phases.after_optimizer(optimizer)


def measure(n_layers: int) -> None:
    """Print the cost for a model of so many layers."""
    layers = [torch.nn.Linear(1, 1) for _ in range(n_layers)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples: Any = [torch.ones(1)] * N_STEPS
    loader: Any = torch.utils.data.DataLoader(samples)
    turn_us(model, optimizer, loader)
    differences_us = []
    plain_us = []
    for _ in range(N_TURNS):
        plain_us.append(turn_us(model, optimizer, loader))
        marked = MarkedPhases(1)
        marked.begin_step(1)
        differences_us.append(turn_us(model, optimizer, loader) - plain_us[-1])
        marked.stop()
    cost_us = statistics.median(differences_us)
    step_us = statistics.median(plain_us)
    words = f"{n_layers} layers: {cost_us:.1f} us more than {step_us:.0f} us a step"
    print(f"{words}, ratio {1 + cost_us / step_us:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    optimizers = sys.modules["torch.optim.optimizer"]
    optimizers.register_optimizer_step_pre_hook(phases.before_optimizer)
    optimizers.register_optimizer_step_post_hook(after_step)
    measure(N_LAYERS)
    measure(1)
