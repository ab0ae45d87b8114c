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


def __getattr__(name: str) -> object:
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    # Imported on first use: what supervises a rank needs none of it.
    from nsyspipe.capture import ranges  # noqa: PLC0415

    return getattr(ranges, name)
