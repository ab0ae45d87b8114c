"""What runs beside a training program: NVTX ranges, and the capture by nsys.

It needs only the standard library.

In a training loop, three lines::

    from nsyspipe.capture import annotate, captured_steps

    for batch in captured_steps(loader):
        with annotate("forward"):
            loss = model(batch)
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsyspipe.capture.lightning import LightningCapture as LightningCapture
    from nsyspipe.capture.ranges import annotate, captured_steps, start_capture, stop_capture
    from nsyspipe.capture.trainer import TrainerCapture as TrainerCapture

__all__ = ["annotate", "captured_steps", "start_capture", "stop_capture"]
# These need the library that calls them. Whoever names one of them has it.
_CALLBACKS = {"LightningCapture": "lightning", "TrainerCapture": "trainer"}


def __getattr__(name: str) -> object:
    """Return a public name from its module, which is imported now."""
    if name not in (*__all__, *_CALLBACKS):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not imported before, because the supervisor of a rank needs none of these names.
    module_name = _CALLBACKS.get(name, "ranges")
    return getattr(importlib.import_module(f"nsyspipe.capture.{module_name}"), name)
