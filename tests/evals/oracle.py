"""Answers worked out from the tables of reports, in plain SQL, without any code of nsyspipe.

A step of a rank begins with the first kernel that was launched in its range, and ends where the
next one begins.
"""

import sqlite3
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

_TEXT = "coalesce(NVTX_EVENTS.text, (SELECT value FROM StringIds WHERE id = NVTX_EVENTS.textId))"
_STARTS = f"""
SELECT {_TEXT} AS name, min(kernel.start)
FROM NVTX_EVENTS
JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call
  ON call.start BETWEEN NVTX_EVENTS.start AND NVTX_EVENTS."end"
JOIN CUPTI_ACTIVITY_KIND_KERNEL AS kernel ON kernel.correlationId = call.correlationId
WHERE name LIKE ? || '%'
GROUP BY name ORDER BY 2
"""
_KERNELS = """
SELECT start, "end", value LIKE 'nccl%'
FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON StringIds.id = shortName
WHERE start >= ? AND start < ? ORDER BY start
"""
_CALLS_OF_KERNEL = """
SELECT start FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON StringIds.id = shortName
WHERE value LIKE ? AND start >= ? AND start < ?
"""


class Window(NamedTuple):
    """A step on one rank, from its first kernel to the first one of the next step."""

    name: str
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


def rows(report: Path, query: str, *values: object) -> list[tuple]:
    connection = sqlite3.connect(f"file:{report}?mode=ro", uri=True)
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()


def windows(report: Path, ranges: str) -> list[Window]:
    """Return the complete steps of a rank that ranges with this beginning mark."""
    starts = rows(report, _STARTS, ranges)
    return [Window(name, start_ns, end_ns) for (name, start_ns), (_, end_ns) in pairwise(starts)]


def step_times_ns(reports: Iterable[Path], ranges: str) -> list[int]:
    """Return how long the slowest rank takes for each step but the first, which holds the start of the capture."""
    lengths = [[window.length_ns for window in windows(report, ranges)] for report in reports]
    return [max(of_ranks) for of_ranks in zip(*lengths, strict=True)][1:]


def step_time_ns(reports: Iterable[Path], ranges: str) -> float:
    return statistics.median(step_times_ns(reports, ranges))


def change_pct(before: Sequence[Path], after: Sequence[Path], ranges: str) -> float:
    """Return by how many percent the step time changed."""
    return 100 * (step_time_ns(after, ranges) / step_time_ns(before, ranges) - 1)


def are_separate(before: Sequence[Path], after: Sequence[Path], ranges: str) -> bool:
    """Tell whether the longest step after a change is shorter than the shortest before."""
    return max(step_times_ns(after, ranges)) < min(step_times_ns(before, ranges))


def exposed_share(reports: Iterable[Path], ranges: str) -> float:
    """Return the time of NCCL's kernels without other kernels, as a share of the steps of all ranks."""
    exposed_ns = 0
    length_ns = 0
    for report in reports:
        for window in windows(report, ranges)[1:]:
            kernels = rows(report, _KERNELS, window.start_ns, window.end_ns)
            exposed_ns += _exposed_ns(kernels)
            length_ns += window.length_ns
    return exposed_ns / length_ns


def _exposed_ns(kernels: Sequence[tuple[int, int, int]]) -> int:
    """Return how long only kernels of NCCL run."""
    edges = sorted({edge for start, end, _ in kernels for edge in (start, end)})
    total_ns = 0
    for start, end in pairwise(edges):
        kinds = {is_nccl for first, last, is_nccl in kernels if first <= start and end <= last}
        if kinds == {1}:
            total_ns += end - start
    return total_ns


def calls_per_step(report: Path, ranges: str, name: str) -> float:
    """Return how many kernels of a name run per complete step."""
    steps = windows(report, ranges)
    calls = rows(report, _CALLS_OF_KERNEL, name, steps[0].start_ns, steps[-1].end_ns)
    return len(calls) / len(steps)
