"""A callback of Lightning's Trainer that labels its steps and phases, and captures some.

It needs the extra ``nsyspipe[lightning]``.
"""

import sys
from typing import Any

from nsyspipe.capture.ranges import MarkedSteps, stop_capture
from nsyspipe.capture.status import facts

# The same library has two names. A Trainer takes only callbacks of its own name.
if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning.callbacks import Callback
else:
    from lightning.pytorch.callbacks import Callback


class LightningCapture(Callback):  # type: ignore[misc]
    """Label the steps of a Lightning Trainer, and capture those after the warm-up, once.

    A step is one of the optimizer, with all its micro-batches. It begins when the first of them has
    been fetched. It contains ``forward``, ``backward`` and ``optimizer``, or only ``backward`` with
    manual optimization.

    Parameters
    ----------
    warmup, steps
        Steps before the capture, and steps in it.
    stop
        End the training after the captured steps.
    tokens_per_step, samples_per_step, flops_per_step
        What a step works on, as in `captured_steps`.
    """

    def __init__(
        self,
        *,
        warmup: int = 10,
        steps: int = 20,
        stop: bool = False,
        tokens_per_step: int | None = None,
        samples_per_step: int | None = None,
        flops_per_step: int | None = None,
    ) -> None:
        facts.count_work(tokens=tokens_per_step, samples=samples_per_step, flops=flops_per_step)
        self._steps = MarkedSteps(warmup, steps)
        self._stop = stop
        self._has_stepped = False

    def on_train_batch_start(  # noqa: D102
        self,
        _trainer: Any,  # noqa: ANN401
        module: Any,  # noqa: ANN401
        *_rest: Any,  # noqa: ANN401
    ) -> None:
        if not self._steps.is_in_step:
            self._steps.begin()
        self._begin_if_automatic(module, "forward")

    def on_before_zero_grad(self, *_rest: Any) -> None:  # noqa: ANN401, D102
        # Forward has ended. Setting gradients to zero belongs to no phase.
        self._steps.phase(None)

    def on_after_backward(self, *_rest: Any) -> None:  # noqa: ANN401, D102
        self._steps.phase(None)

    def on_before_backward(self, *_rest: Any) -> None:  # noqa: ANN401, D102
        self._steps.phase("backward")

    def on_before_optimizer_step(  # noqa: D102
        self,
        _trainer: Any,  # noqa: ANN401
        module: Any,  # noqa: ANN401
        *_rest: Any,  # noqa: ANN401
    ) -> None:
        self._has_stepped = True
        self._begin_if_automatic(module, "optimizer")

    def on_train_batch_end(self, trainer: Any, *_rest: Any) -> None:  # noqa: ANN401, D102
        self._steps.phase(None)
        # A step ends with the micro-batch in which the optimizer was called.
        if self._has_stepped:
            self._has_stepped = False
            self._steps.end()
        if self._stop and self._steps.is_over:
            trainer.should_stop = True

    def on_train_end(self, *_rest: Any) -> None:  # noqa: ANN401, D102
        stop_capture()

    def on_exception(self, *_rest: Any) -> None:  # noqa: ANN401, D102
        stop_capture(is_cut_off=True)

    def _begin_if_automatic(self, module: Any, phase: str) -> None:  # noqa: ANN401
        """End the current phase, and begin another one with automatic optimization.

        With manual optimization, the program chooses the order of its phases. So none begins here.
        """
        self._steps.phase(phase if module.automatic_optimization else None)
