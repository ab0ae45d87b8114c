"""The capture's two ends: all ranks begin to record together, and no launched work is cut off at the end."""

from __future__ import annotations

import atexit
import time
import warnings
from typing import Any

from nsyspipe.capture.backends import backend, loaded_torch
from nsyspipe.capture.facts import facts

__all__ = ["CAPTURE_RANGE", "meet", "settle", "start_capture", "stop_capture"]

# What `nsys profile --capture-range=nvtx --nvtx-capture=...` waits for where there is no CUDA.
CAPTURE_RANGE = "nsyspipe.capture"
# How long the end of a capture waits for the device when the loop has broken off.
_SETTLE_S, _POLL_S = 5.0, 0.001


class _Window:
    """How this process's capture stands: `handle` is that of the capture's range without CUDA."""

    is_open = False
    has_cuda = False
    handle: object = None


_window = _Window()


def start_capture() -> None:
    """Begin the capture: every rank calls it at the same place; a second call does nothing.

    Waits for the device and, in a distributed job, for all ranks, before and after the start. Ranks
    take up to 100 ms to begin, and without the second wait the first captured step would hold that
    time as if it were waiting for gradients.

    With CUDA it is ``cudaProfilerStart`` (``nsys profile --capture-range=cudaProfilerApi``), without
    it a range ``nsyspipe.capture``. A profiler that cannot be started is a warning, not an error.
    """
    if _window.is_open:
        return
    facts.announce()
    meet()
    torch = loaded_torch()
    _window.is_open = True
    _window.has_cuda = torch is not None and torch.cuda.is_available()
    atexit.register(stop_capture, is_cut_off=True)
    if _window.has_cuda:
        _tell_profiler("start")
    else:
        _window.handle = backend().start(CAPTURE_RANGE)
    meet()


def stop_capture(*, is_cut_off: bool = False) -> None:
    """End the capture, after the device has done what was launched; without a capture it does nothing.

    Parameters
    ----------
    is_cut_off
        The loop broke off: wait a few seconds at most, for other ranks may be gone, and the
        collective that waits for them would never end.
    """
    if not _window.is_open:
        return
    _window.is_open = False
    atexit.unregister(stop_capture)
    settle(is_cut_off=is_cut_off)
    if _window.has_cuda:
        _tell_profiler("stop")
    else:
        backend().end(_window.handle)
    facts.write()


def meet() -> None:
    """Wait for the device and for all ranks."""
    settle()
    torch = loaded_torch()
    # Builds without torch.distributed have the module, and nothing in it.
    if torch is None or not torch.distributed.is_available():
        return
    group = torch.distributed
    if not group.is_initialized():
        return
    if "nccl" in str(group.get_backend()):
        group.barrier(device_ids=[torch.cuda.current_device()])  # else it may guess another GPU
    else:
        group.barrier()
    settle()


def settle(*, is_cut_off: bool = False) -> None:
    """Wait until the device has done what was launched; after a break-off, for a few seconds at most."""
    torch = loaded_torch()
    if torch is None or not torch.cuda.is_initialized():
        return
    if not is_cut_off:
        torch.cuda.synchronize()
        return
    try:
        _wait_for(torch.cuda.current_stream().record_event(), time.monotonic() + _SETTLE_S)
    except RuntimeError:
        return  # the device failed: that error is on its way to the user already


def _wait_for(event: Any, deadline: float) -> None:  # noqa: ANN401 - torch has no types here
    while not event.query() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _tell_profiler(action: str) -> None:
    torch = loaded_torch()
    try:
        getattr(torch and torch.cuda.profiler, action)()
    except (AttributeError, RuntimeError) as error:
        message = f"cudaProfiler{action.title()} failed, the training goes on: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
