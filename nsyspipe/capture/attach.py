"""Capture a program that nobody changes, by the steps of its optimizer; what `launchers/attach` puts before it calls this.

Steps are counted by torch's hook behind every optimizer's step. Ranks do not wait for each other
here: what a program that nobody knows does between its steps might need them.
"""

import os
import sys
import weakref
from typing import Any

from nsyspipe.capture.ranges import MarkedSteps
from nsyspipe.capture.status import facts, loaded_torch

ATTACH_STEPS = "NSYSPIPE_ATTACH_STEPS"


def attach(optimizers: Any) -> None:  # noqa: ANN401 - the module torch.optim.optimizer, without types
    """Count the steps of this program's optimizers from now on, and capture those that `ATTACH_STEPS` names.

    ``50:70`` are 20 steps after 50 of warm-up, called ``step 50`` to ``step 69``, as counted from
    0.
    """
    begin, end = map(int, os.environ[ATTACH_STEPS].split(":"))
    # A step is seen by the end of the one before: of the first only the end.
    optimizers.register_optimizer_step_post_hook(
        _Hook(MarkedSteps(begin, end - begin, n_begun=1, is_alone=True))
    )


class _Hook:
    """Called behind every optimizer's step; never lets an error through to the program."""

    def __init__(self, steps: MarkedSteps) -> None:
        self._steps = steps
        self._is_off = False
        # The optimizer and the parameter that are updated first. Other optimizers, and calls of
        # this one for other parameters (ZeRO makes one for each group), are of the same step.
        self._counted: tuple[weakref.ref[Any], weakref.ref[Any]] | None = None

    def __call__(self, optimizer: Any, *_words: object) -> None:  # noqa: ANN401
        if self._is_off or self._steps.is_over:
            return
        try:
            if self._counted is None and facts.steps_asked:
                raise RuntimeError("it captures its own steps, and --attach-steps is left out")  # noqa: TRY301 - told as any other reason
            if self._is_counted(optimizer):
                self._steps.end()
                if not self._steps.is_over:
                    self._steps.begin()
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            self._is_off = True
            print(f"nsyspipe: no capture from here, the program goes on: {error}", file=sys.stderr)  # noqa: T201

    def _is_counted(self, optimizer: Any) -> bool:  # noqa: ANN401
        torch: Any = loaded_torch()
        # While a graph is made of the step, nothing is trained, and nothing may wait for the
        # device.
        if torch.compiler.is_compiling() or (
            torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        ):
            return False
        parameter = next(
            (param for group in optimizer.param_groups for param in group["params"]), optimizer
        )
        counted = self._counted
        if counted is None or counted[0]() is None or counted[1]() is None:
            self._counted = weakref.ref(optimizer), weakref.ref(parameter)
            return True
        return counted[0]() is optimizer and counted[1]() is parameter
