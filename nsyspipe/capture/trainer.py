"""A callback of Hugging Face's Trainer: ranges of its steps, and a capture of some (extra ``nsyspipe[transformers]``)."""

from typing import Any

from transformers import TrainerCallback

from nsyspipe.capture.ranges import MarkedSteps, stop_capture


class TrainerCapture(TrainerCallback):  # type: ignore[misc]
    """Label the steps of a Hugging Face Trainer, and capture those after the warm-up, once.

    A step is the optimizer's, of all its micro-batches; it begins when these have been fetched. In
    it lie ``forward``, each call of a model that is not compiled, and ``optimizer``; Trainer tells
    no callback where backward begins or ends.

    Parameters
    ----------
    warmup, steps
        Steps before the capture, and steps in it.
    stop
        End the training after the captured steps.
    """

    def __init__(self, *, warmup: int = 10, steps: int = 20, stop: bool = False) -> None:
        self._steps = MarkedSteps(warmup, steps)
        self._stop = stop
        self._hooks: list[Any] = []

    def on_train_begin(self, args: Any, _state: Any, _control: Any, **more: Any) -> None:  # noqa: ANN401, D102
        model = more.get("model")
        # In a compiled model a range would break the graph.
        if model is None or args.torch_compile or hasattr(model, "_orig_mod"):
            return
        self._hooks = [
            model.register_forward_pre_hook(
                lambda one, _: self._steps.phase("forward") if one.training else None
            ),
            model.register_forward_hook(lambda *_: self._steps.phase(None), always_call=True),
        ]

    def on_step_begin(self, *_words: Any, **_more: Any) -> None:  # noqa: ANN401, D102
        self._steps.begin()

    def on_pre_optimizer_step(self, *_words: Any, **_more: Any) -> None:  # noqa: ANN401, D102
        self._steps.phase("optimizer")

    def on_optimizer_step(self, *_words: Any, **_more: Any) -> None:  # noqa: ANN401, D102
        self._steps.phase(None)

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_more: Any) -> None:  # noqa: ANN401, D102
        self._steps.end()
        if self._stop and self._steps.is_over:
            control.should_training_stop = True

    def on_train_end(self, *_words: Any, **_more: Any) -> None:  # noqa: ANN401, D102
        for hook in self._hooks:
            hook.remove()
        stop_capture()
