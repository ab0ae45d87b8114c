"""What runs beside a training program: NVTX ranges, and the capture by nsys. Only the standard library is needed.

In a training loop, three lines::

    from nsyspipe.capture import annotate, captured_steps

    for batch in captured_steps(loader):
        with annotate("forward"):
            loss = model(batch)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsyspipe.capture.ranges import annotate, captured_steps, start_capture, stop_capture

__all__ = ["annotate", "captured_steps", "start_capture", "stop_capture"]

# Imported on first use: what supervises a rank needs none of it.
_HOMES = {
    "annotate": "nsyspipe.capture.ranges",
    "captured_steps": "nsyspipe.capture.ranges",
    "start_capture": "nsyspipe.capture.ranges",
    "stop_capture": "nsyspipe.capture.ranges",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    import importlib  # noqa: PLC0415 - only a first use needs it

    return getattr(importlib.import_module(_HOMES[name]), name)
