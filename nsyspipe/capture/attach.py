"""Captures a program that is not changed, by the steps of its optimizer.

`launchers/attach` starts Python in a way that calls this. A hook of torch counts steps: it is
called after every step of an optimizer. Ranks do not wait for each other here, because what an
unknown program does between its steps might need them. Around the captured steps, their phases are
marked too.
"""

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nsyspipe.capture import phases
from nsyspipe.capture.flop_count import COUNT_FLOPS, NOT_COUNTED, FlopCount
from nsyspipe.capture.phases import NO_PHASES, MarkedPhases
from nsyspipe.capture.ranges import MarkedSteps
from nsyspipe.capture.status import facts, loaded_torch, say_left_out

ATTACH_STEPS = "NSYSPIPE_ATTACH_STEPS"


def attach(optimizers: Any) -> None:  # noqa: ANN401 - a module without types
    """Count the steps of this program's optimizers, and capture those in `ATTACH_STEPS`.

    Steps are counted from 0. So ``50:70`` are 20 steps after 50 steps of warm-up, called ``step
    50`` to ``step 69``. `optimizers` is the module ``torch.optim.optimizer``.
    """
    first_captured, end = map(int, os.environ[ATTACH_STEPS].split(":"))
    n_captured = end - first_captured
    # The hook is called at the end of a step, when the next one begins. So the begin of step 0 is
    # not seen, and the first step that begins here is step 1.
    steps = MarkedSteps(first_captured, n_captured, n_begun=1, is_alone=True)
    extras = Extras(first_captured, os.environ)
    optimizers.register_optimizer_step_post_hook(StepHook(steps, extras))
    # The hooks of optimizers must not change while they are called. So this hook is there from the
    # beginning. It does nothing while no phases are marked.
    if extras.has_phases and hasattr(optimizers, "register_optimizer_step_pre_hook"):
        optimizers.register_optimizer_step_pre_hook(phases.before_optimizer)


class Extras:
    """What is recorded of the steps beside their ranges: phases and FLOPs.

    What fails here is left out, and the steps are captured as ever.
    """

    def __init__(self, first_captured: int, environment: Mapping[str, str]) -> None:
        self._phases: MarkedPhases | None = None
        self._flops: FlopCount | None = None
        if not environment.get(NO_PHASES):
            self._phases = MarkedPhases(first_captured)
        if environment.get(COUNT_FLOPS):
            self._flops = FlopCount(first_captured)

    @property
    def has_phases(self) -> bool:
        """Whether phases are marked, now or later."""
        return self._phases is not None

    def end_step(self) -> None:
        """End what belongs to the step that ends."""
        phases.close_all()
        if self._flops is not None:
            self._try_flops(self._flops.end_step)

    def begin_step(self, number: int, optimizer: Any) -> None:  # noqa: ANN401
        """Begin what belongs to the next step."""
        if self._flops is not None:
            self._try_flops(self._flops.begin_step, number, optimizer)
        if self._phases is not None:
            try:
                self._phases.begin_step(number)
            except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
                self._phases.stop()
                self._phases = None
                say_left_out("no phases are marked", error)

    def _try_flops(self, action: Callable[..., object], *arguments: object) -> None:
        """Call a method of the counter of FLOPs, which is dropped if the method fails."""
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            if self._flops is not None:
                self._flops.stop()
                self._flops = None
            say_left_out(NOT_COUNTED, error)

    def stop(self) -> None:
        """Take back what the program was given."""
        if self._phases is not None:
            self._phases.stop()
            self._phases = None
        if self._flops is not None:
            self._flops.stop()
            self._flops = None


class _Counted(NamedTuple):
    """The optimizer whose calls are counted, and the parameter of the calls."""

    optimizer: weakref.ref[Any]
    parameter: weakref.ref[Any]

    @property
    def is_gone(self) -> bool:
        """Whether the program has dropped either of them."""
        return self.optimizer() is None or self.parameter() is None


class StepHook:
    """Called after every step of an optimizer. It passes no error on to the program."""

    def __init__(self, steps: MarkedSteps, extras: Extras) -> None:
        self._steps = steps
        self._extras = extras
        self._is_off = False
        # The call that ends each step: the first that was seen. Calls of other optimizers belong to
        # the same step, and so do calls of this optimizer for other parameters. ZeRO makes one for
        # each group of parameters.
        self._counted: _Counted | None = None

    def __call__(self, optimizer: Any, *_rest: object) -> None:  # noqa: ANN401
        """End the phase of the optimizer, and the step if this call ends one."""
        if self._is_off or self._steps.is_over:
            return
        # `MarkedSteps` asks for steps only after the first counted call. So before it, only the
        # program can have asked, by a loop over `captured_steps`.
        has_own_capture = self._counted is None and facts.steps_asked > 0
        if has_own_capture:
            self._turn_off("it captures its own steps, and --attach-steps is left out")
            return
        try:
            phases.after_optimizer(optimizer)
            if self._is_counted(optimizer):
                self._extras.end_step()
                self._steps.end()
                self._begin(optimizer)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            self._turn_off(error)

    def _turn_off(self, reason: object) -> None:
        """Capture nothing from here, and say why."""
        self._is_off = True
        self._extras.stop()
        say_left_out("no capture from here", reason)

    def _begin(self, optimizer: Any) -> None:  # noqa: ANN401
        """Begin the next step, if there is one to count."""
        if self._steps.is_over:
            self._extras.stop()
            return
        self._extras.begin_step(self._steps.next_step, optimizer)
        self._steps.begin()

    def _is_counted(self, optimizer: Any) -> bool:  # noqa: ANN401
        """Tell whether this call ends a step.

        The optimizer that is called first is counted from then on, with its first parameter. If the
        program drops one of them, the next one that is called takes its place.
        """
        if _is_recording_graph():
            return False
        parameters = (param for group in optimizer.param_groups for param in group["params"])
        # For an optimizer without parameters, the optimizer itself stands in.
        first_parameter = next(parameters, optimizer)
        if self._counted is None or self._counted.is_gone:
            self._counted = _Counted(weakref.ref(optimizer), weakref.ref(first_parameter))
            return True
        is_same_optimizer = self._counted.optimizer() is optimizer
        return is_same_optimizer and self._counted.parameter() is first_parameter


def _is_recording_graph() -> bool:
    """Tell whether the program is recording the step in a graph, of torch.compile or of CUDA.

    While it does, nothing is trained, and nothing may wait for the device.
    """
    torch: Any = loaded_torch()
    if torch.compiler.is_compiling():
        return True
    is_capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    return bool(is_capturing)
