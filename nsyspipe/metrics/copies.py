"""Copies of gradients out of their buckets: DtoD copies that are launched one right after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.attribution import NEVER
from nsyspipe.intervals import IntervalSet, union
from nsyspipe.metrics.breakdown import started_in
from nsyspipe.schema import DTOD_KIND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.attribution import ProcessOperations
    from nsyspipe.device_time import DeviceTime
    from nsyspipe.recorded import Recorded
    from nsyspipe.steps import Windows

    Int64 = NDArray[np.int64]

__all__ = ["GRAD_COPY_COLUMNS", "grad_copies"]

GRAD_COPY_COLUMNS = (
    "grad_copy_ns",
    "exposed_grad_copy_ns",
    "grad_copy_span_ns",
    "grad_copy_bytes",
    "n_grad_copies",
)

# A model's own copies stand between kernels; DDP copies a bucket's gradients in one go.
_SHORTEST_RUN = 8
# From the end of one to the start of the next: more is a wait for something else.
_LONGEST_LATENCY_NS = 20_000


def grad_copies(
    operations: ProcessOperations,
    windows: Windows,
    device: DeviceTime,
    in_backward: NDArray[np.bool_] | None,
    recorded: Recorded,
) -> dict[str, Int64 | None]:
    """Measure the copies between gradients and buckets in each window.

    They are DtoD copies in runs of at least eight, launched with nothing else between them, inside
    a backward range where the rank has any. What is launched in the same nanosecond comes after.

    Parameters
    ----------
    in_backward
        Flag per copy: launched inside a backward range; None when the rank has no such range.

    Returns
    -------
    dict
        `GRAD_COPY_COLUMNS`, one int64 per window: union, the part beside neither compute nor comm, the union with
        the gaps of up to 20 us between two of one window,
        bytes and number of those that start in it. None where copies or their kinds were not recorded.
    """
    if not (recorded.kernels and recorded.memcpy and recorded.kinds):
        return dict.fromkeys(GRAD_COPY_COLUMNS)
    chosen = _in_runs(operations)
    if in_backward is not None:
        chosen &= in_backward
    starts, ends = operations.copy_start[chosen], operations.copy_end[chosen]
    covered = union(starts, ends)
    whole, under_compute, under_comm, under_both = (
        one.lengths(windows.starts, windows.ends) for one in device.exposed(covered)
    )
    number, n_bytes = started_in(starts, operations.copy_bytes[chosen], windows)
    return {
        "grad_copy_ns": whole,
        "exposed_grad_copy_ns": whole - under_compute - under_comm + under_both,
        "grad_copy_span_ns": _spans(starts, ends, windows.starts).lengths(
            windows.starts, windows.ends
        ),
        "grad_copy_bytes": n_bytes if recorded.sizes else None,
        "n_grad_copies": number,
    }


def _spans(starts: Int64, ends: Int64, steps: Int64) -> IntervalSet:
    """Merge the copies of each step, and the time that the device takes from one to the next."""
    closed = union(starts, ends)
    short = closed.starts[1:] - closed.ends[:-1] <= _LONGEST_LATENCY_NS
    step = np.searchsorted(steps, closed.ends[:-1], side="left")
    short &= step == np.searchsorted(steps, closed.starts[1:], side="right")
    begins, stops = np.append(True, ~short), np.append(~short, True)
    return IntervalSet(closed.starts[begins[: len(closed)]], closed.ends[stops[: len(closed)]])


def _in_runs(operations: ProcessOperations) -> NDArray[np.bool_]:
    """Tell which copies are DtoD and in a long run of such; copies without a launch never are."""
    launch, is_dtod = operations.copy_launch, operations.copy_kind == DTOD_KIND
    chosen = np.flatnonzero(is_dtod & (launch != NEVER))
    own = launch[chosen]
    others = operations.kernel_launch[: operations.n_launched], launch[~is_dtod]
    n_before = np.sum([np.searchsorted(one, own) for one in others], axis=0)
    begins = np.ones(own.size, np.bool_)
    begins[1:] = n_before[1:] != n_before[:-1]
    run = np.cumsum(begins) - 1
    is_long = np.bincount(run, minlength=1)[run] >= _SHORTEST_RUN
    found = np.zeros(launch.size, np.bool_)
    found[chosen[is_long]] = True
    return found
