"""Captures a program that is not changed, by the steps of its optimizer.

`launchers/attach` starts Python in a way that calls this. A hook of torch counts steps: it is
called after every step of an optimizer. Ranks do not wait for each other here, because what an
unknown program does between its steps might need them.
"""

import os
import sys
import weakref
from typing import Any, NamedTuple

from nsyspipe.capture.ranges import MarkedSteps
from nsyspipe.capture.status import facts, loaded_torch

ATTACH_STEPS = "NSYSPIPE_ATTACH_STEPS"


def attach(optimizers: Any) -> None:  # noqa: ANN401 - a module without types
    """Count the steps of this program's optimizers, and capture those in `ATTACH_STEPS`.

    ``50:70`` are 20 steps after 50 steps of warm-up, called ``step 50`` to ``step 69``. They are
    counted from 0. `optimizers` is the module ``torch.optim.optimizer``.
    """
    begin, end = map(int, os.environ[ATTACH_STEPS].split(":"))
    # A step begins at the end of the step before. Of the first step, only the end is seen.
    steps = MarkedSteps(begin, end - begin, n_begun=1, is_alone=True)
    optimizers.register_optimizer_step_post_hook(_Hook(steps))


class _Counted(NamedTuple):
    """The optimizer whose calls are counted, and the parameter of the calls."""

    optimizer: weakref.ref[Any]
    parameter: weakref.ref[Any]

    @property
    def is_gone(self) -> bool:
        """Whether the program has dropped either of them."""
        return self.optimizer() is None or self.parameter() is None


class _Hook:
    """Called after every step of an optimizer. It passes no error on to the program."""

    def __init__(self, steps: MarkedSteps) -> None:
        self._steps = steps
        self._is_off = False
        # What is updated first. Calls of other optimizers, and of this optimizer for other
        # parameters (ZeRO makes one for each group), belong to the same step.
        self._counted: _Counted | None = None

    def __call__(self, optimizer: Any, *_rest: object) -> None:  # noqa: ANN401
        if self._is_off or self._steps.is_over:
            return
        try:
            if self._counted is None and facts.steps_asked:
                problem = "it captures its own steps, and --attach-steps is left out"
                raise RuntimeError(problem)  # noqa: TRY301 - printed as any other reason
            if self._is_counted(optimizer):
                self._steps.end()
                if not self._steps.is_over:
                    self._steps.begin()
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            self._is_off = True
            message = f"nsyspipe: no capture from here, the program goes on: {error}"
            print(message, file=sys.stderr)  # noqa: T201

    def _is_counted(self, optimizer: Any) -> bool:  # noqa: ANN401
        """Tell whether this call ends a step."""
        if _is_recording_graph():
            return False
        parameters = (param for group in optimizer.param_groups for param in group["params"])
        parameter = next(parameters, optimizer)
        if self._counted is None or self._counted.is_gone:
            self._counted = _Counted(weakref.ref(optimizer), weakref.ref(parameter))
            return True
        is_same_optimizer = self._counted.optimizer() is optimizer
        return is_same_optimizer and self._counted.parameter() is parameter


def _is_recording_graph() -> bool:
    """Tell whether the program records the step in a graph.

    Then nothing is trained, and nothing may wait for the device.
    """
    torch: Any = loaded_torch()
    if torch.compiler.is_compiling():
        return True
    is_capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    return bool(is_capturing)
