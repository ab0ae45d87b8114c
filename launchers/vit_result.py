"""How fast the measured steps were: what train_vit.py prints and writes."""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path


class Stopwatch:
    """Times the measured steps, as a whole and one by one."""

    def __init__(self, device: torch.device, first: int, n_steps: int) -> None:
        self._device = device
        self._first = first
        self._last = first + n_steps - 1
        # The begin of the first step, and the end of each step: events of a GPU, or times in ns.
        self._marks: list[Any] = []
        self._start_ns = 0
        self._end_ns = 0

    def before(self, number: int) -> None:
        """Begin at the first measured step. The profiler has started, and the ranks have met."""
        if number != self._first:
            return
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self._start_ns = time.perf_counter_ns()
        self._mark()

    def after(self, number: int) -> None:
        """Note the end of a step. After the last one, wait for the device before profiling ends."""
        if self._first <= number <= self._last:
            self._mark()
        if number == self._last:
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            self._end_ns = time.perf_counter_ns()

    def _mark(self) -> None:
        """Note the present moment: on a GPU, that at which its work has come so far."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter_ns())

    def result(self, n_images: int) -> dict[str, Any]:
        """Return the measured figures; `n_images` are those of one step on all ranks."""
        # A step begins where the step before ends.
        begins_and_ends = zip(self._marks, self._marks[1:], strict=False)
        if self._device.type == "cuda":
            # `elapsed_time` is in ms.
            step_times_ns = [begin.elapsed_time(end) * 1e6 for begin, end in begins_and_ends]
            peak_bytes = torch.cuda.max_memory_allocated()
        else:
            step_times_ns = [end - begin for begin, end in begins_and_ends]
            # `ru_maxrss` is in KiB.
            peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        mean_ns = (self._end_ns - self._start_ns) / len(step_times_ns)
        return {
            "mean_step_ns": round(mean_ns),
            "median_step_ns": round(statistics.median(step_times_ns)),
            "images_per_s": n_images / mean_ns * 1e9,
            "peak_memory_bytes": peak_bytes,
        }


def sentence(result: dict[str, Any]) -> str:
    """Say the result in one line."""
    return (
        f"throughput: {result['images_per_s']:,.1f} images/s |"
        f" step mean {result['mean_step_ns'] / 1e6:.2f} ms, median "
        f"{result['median_step_ns'] / 1e6:.2f} ms"
        f" over {result['steps']} steps | peak memory {result['peak_memory_bytes'] / 1e9:.2f} GB |"
        f" loss {result['loss']:.4f}"
    )


def write(path: Path, result: dict[str, Any]) -> None:
    """Write the result as JSON, whole or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        message = f"error: --json {path}: cannot be written: {error.strerror}"
        raise SystemExit(message) from error
