"""A callback of Hugging Face's Trainer that labels its steps, and captures some.

It needs the extra ``nsyspipe[transformers]``.
"""

from typing import Any

from transformers import TrainerCallback

from nsyspipe.capture.ranges import MarkedSteps, stop_capture
from nsyspipe.capture.status import facts


class TrainerCapture(TrainerCallback):  # type: ignore[misc]
    """Label the steps of a Hugging Face Trainer, and capture those after the warm-up, once.

    A step is one of the optimizer, with all its micro-batches. It begins when they have been
    fetched. It contains ``optimizer``, and ``forward`` around each call of a model that is not
    compiled. Trainer tells no callback where backward begins or ends.

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
        self._hooks: list[Any] = []

    def on_train_begin(  # noqa: D102
        self,
        args: Any,  # noqa: ANN401
        _state: Any,  # noqa: ANN401
        _control: Any,  # noqa: ANN401
        **named: Any,  # noqa: ANN401
    ) -> None:
        model = named.get("model")
        # In a compiled model, a range would break the graph.
        if model is None or args.torch_compile or hasattr(model, "_orig_mod"):
            return
        self._hooks = [
            model.register_forward_pre_hook(self._begin_forward),
            model.register_forward_hook(self._end_forward, always_call=True),
        ]

    def _begin_forward(self, module: Any, *_rest: Any) -> None:  # noqa: ANN401
        if module.training:
            self._steps.phase("forward")

    def _end_forward(self, *_rest: Any) -> None:  # noqa: ANN401
        self._steps.phase(None)

    def on_step_begin(self, *_rest: Any, **_named: Any) -> None:  # noqa: ANN401, D102
        self._steps.begin()

    def on_pre_optimizer_step(self, *_rest: Any, **_named: Any) -> None:  # noqa: ANN401, D102
        self._steps.phase("optimizer")

    def on_optimizer_step(self, *_rest: Any, **_named: Any) -> None:  # noqa: ANN401, D102
        self._steps.phase(None)

    def on_step_end(  # noqa: D102
        self,
        _args: Any,  # noqa: ANN401
        _state: Any,  # noqa: ANN401
        control: Any,  # noqa: ANN401
        **_named: Any,  # noqa: ANN401
    ) -> None:
        self._steps.end()
        if self._stop and self._steps.is_over:
            control.should_training_stop = True

    def on_train_end(self, *_rest: Any, **_named: Any) -> None:  # noqa: ANN401, D102
        for hook in self._hooks:
            hook.remove()
        stop_capture()
