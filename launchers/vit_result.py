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
    """Times the measured steps as a whole, and each of them without waiting for the device in between."""

    def __init__(self, device: torch.device, first: int, n_steps: int) -> None:
        self._device = device
        self._first, self._last = first, first + n_steps - 1
        self._marks: list[Any] = []
        self._start_ns = self._end_ns = 0

    def before(self, number: int) -> None:
        """Begin at the first measured step, after the profiler has started and the ranks have met."""
        if number == self._first:
            if self._device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            self._start_ns = time.perf_counter_ns()
            self._mark()

    def after(self, number: int) -> None:
        """Note a step's end; after the last, wait for the device, before the profiler stops."""
        if self._first <= number <= self._last:
            self._mark()
        if number == self._last:
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            self._end_ns = time.perf_counter_ns()

    def _mark(self) -> None:
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter_ns())

    def result(self, n_images: int) -> dict[str, Any]:
        """Return the measured figures; `n_images` are those of one step on all ranks."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._device.type == "cuda":
            times = [first.elapsed_time(second) * 1e6 for first, second in pairs]
            peak = torch.cuda.max_memory_allocated()
        else:
            times = [second - first for first, second in pairs]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        mean_ns = (self._end_ns - self._start_ns) / len(times)
        return {
            "mean_step_ns": round(mean_ns),
            "median_step_ns": round(statistics.median(times)),
            "images_per_s": n_images / mean_ns * 1e9,
            "peak_memory_bytes": peak,
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
