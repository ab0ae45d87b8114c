"""Where NVTX ranges go: torch's own functions, else the ``nvtx`` package, else nowhere."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Backend(NamedTuple):
    """The four functions that make ranges.

    Attributes
    ----------
    name
        ``torch``, ``nvtx`` or ``none``.
    push, pop
        A range on the calling thread's stack.
    start, end
        A range of the process, by the handle that ``start`` returns.
    """

    name: str
    push: Callable[[str], object]
    pop: Callable[[], object]
    start: Callable[[str], Any]
    end: Callable[[Any], object]


def loaded_torch() -> Any | None:  # noqa: ANN401 - a module without types
    """Return torch when the program has imported it; it is never imported for ranges alone."""
    torch = sys.modules.get("torch")
    # While torch is still being imported, it has no cuda module yet.
    return torch if hasattr(torch, "cuda") else None


_chosen: list[Backend] = []


def backend() -> Backend:
    """Return where ranges go. It is chosen at the first call, for good: a range must end where it began."""
    if not _chosen:
        _chosen.append(_torch() or _nvtx() or _nowhere())
    return _chosen[0]


def _torch() -> Backend | None:
    torch = loaded_torch()
    nvtx = getattr(torch and torch.cuda, "nvtx", None)
    if nvtx is None:
        return None
    try:
        nvtx.mark("nsyspipe")  # a build without CUDA has the functions, and each of them raises
    except RuntimeError:
        return None
    return Backend("torch", nvtx.range_push, nvtx.range_pop, nvtx.range_start, nvtx.range_end)


def _nvtx() -> Backend | None:
    # Ranges of nvtx 0.2.12 and later do not reach nsys 2024.2: torch's functions come first.
    try:
        nvtx = importlib.import_module("nvtx")
        return Backend(
            "nvtx", nvtx.push_range, nvtx.pop_range, nvtx.start_range, nvtx.end_range
        )  # fmt: skip
    except (AttributeError, ImportError, OSError):  # missing, or another package of that name
        return None


def _nowhere() -> Backend:
    return Backend("none", _ignore, _nothing, _ignore, _ignore)


def _ignore(_argument: object) -> None:
    return None


def _nothing() -> None:
    return None
