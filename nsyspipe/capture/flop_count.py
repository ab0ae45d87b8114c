"""Counts the FLOPs of one warm-up step of a program that is not changed.

The counter is ``torch.utils.flop_counter.FlopCounterMode``. It sees the operators of one process,
forward and backward, of all micro-batches.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterable
from typing import Any

from nsyspipe.capture.status import facts, loaded_torch, say_left_out

# Set to count.
COUNT_FLOPS = "NSYSPIPE_COUNT_FLOPS"
NOT_COUNTED = "FLOPs are not counted"
_COMPILED = "code that torch.compile has made hides its operators"
_TENSOR_PARALLEL = "operators of tensor parallelism are counted as if this rank did all of them"
_NOTHING_SEEN = "torch saw none, as with CUDA graphs"


class FlopCount:
    """The FLOPs of one step, which is the middle one of the warm-up."""

    def __init__(self, first_captured: int) -> None:
        # The first step cannot be counted, because only its end is seen.
        self._counted_step = first_captured // 2
        self._counter: Any = None
        self.is_over = self._counted_step < 1

    def begin_step(self, number: int, optimizer: Any) -> None:  # noqa: ANN401
        """Begin to count if it is the step to count."""
        if self.is_over or number != self._counted_step:
            return
        reason = _reason_not_to_count(optimizer)
        if reason is not None:
            self._give_up(reason)
            return
        # This is slow to import, and few programs count.
        flop_counter = importlib.import_module("torch.utils.flop_counter")
        counter = flop_counter.FlopCounterMode(display=False)
        counter.__enter__()
        self._counter = counter

    def end_step(self) -> None:
        """Remember the FLOPs of the step that was counted, if it was this one."""
        if self._counter is None:
            return
        counter = self._counter
        self.stop()
        if _has_compiled():
            self._give_up(_COMPILED)
            return
        n_flops = int(counter.get_total_flops())
        if n_flops < 1:
            self._give_up(_NOTHING_SEEN)
            return
        facts.count_work(flops=n_flops)

    def stop(self) -> None:
        """Count nothing from here."""
        self.is_over = True
        counter = self._counter
        self._counter = None
        if counter is not None:
            with contextlib.suppress(RuntimeError):
                counter.__exit__(None, None, None)

    def _give_up(self, reason: str) -> None:
        self.is_over = True
        say_left_out(NOT_COUNTED, reason)


def _reason_not_to_count(optimizer: Any) -> str | None:  # noqa: ANN401
    """Return why the count would be wrong; None if it would be right as far as it can be told."""
    if _has_compiled():
        return _COMPILED
    if _is_tensor_parallel(optimizer):
        return _TENSOR_PARALLEL
    return None


def _has_compiled() -> bool:
    """Tell whether ``torch.compile`` has compiled code of this process."""
    compiler = sys.modules.get("torch._dynamo.utils")
    counters = getattr(compiler, "counters", {})
    # A frame is a function that the compiler has worked on. Before the first one, `counters` has no
    # entry for them.
    return bool(counters.get("frames"))


def _is_tensor_parallel(optimizer: Any) -> bool:  # noqa: ANN401 - of a module without types
    """Tell whether parameters are distributed by more than FSDP, as far as it can be told.

    Then a rank does only a part of the work that its program asks for.
    """
    distributed = sys.modules.get("torch.distributed.tensor")
    distributed_type = getattr(distributed, "DTensor", None)
    if distributed_type is None:
        return False
    parameters = (param for group in optimizer.param_groups for param in group["params"])
    distributed_params = [param for param in parameters if isinstance(param, distributed_type)]
    if not distributed_params:
        return False
    # FSDP alone distributes parameters along one dimension of ranks.
    is_fsdp_alone = _has_fsdp() and not _has_several_dimensions(distributed_params)
    return not is_fsdp_alone


def _has_several_dimensions(distributed_params: Iterable[Any]) -> bool:
    """Tell whether the ranks of a parameter form a mesh of several dimensions."""
    return any(param.device_mesh.ndim > 1 for param in distributed_params)


def _has_fsdp() -> bool:
    """Tell whether the program uses FSDP2, whose parameters are distributed tensors too."""
    torch: Any = loaded_torch()
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return torch.distributed.is_initialized() and hasattr(fsdp, "FSDPModule")
