"""The classes of a sidecar, in which a capture describes itself, for writing and reading.

Only the standard library is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CAPTURE_VERSION = 1
SIDECAR_SUFFIX = ".capture.json"


# The highest count of a sidecar. At this many FLOPs a step of one GPU takes many minutes.
MAX_COUNT = 10**18


@dataclass(frozen=True)
class WorkPerStep:
    """What one step works on, as the program counts it. None means not counted.

    Tokens and samples are those of the whole job. FLOPs are those of one rank, because the counter
    of torch sees one process.
    """

    tokens: int | None = None
    samples: int | None = None
    flops: int | None = None


@dataclass(frozen=True)
class MemoryPeaks:
    """What torch knew of the memory of a rank's GPU when the captured steps had ended."""

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    # How often the allocator freed its cache and tried again.
    allocator_retries: int | None = None


@dataclass(frozen=True)
class CapturedRank:
    """One rank of a capture. None means that a fact is not known."""

    rank: int
    local_rank: int | None = None
    # The process of the training program.
    pid: int | None = None
    # Stem of the report. None also if this rank was not captured.
    report: str | None = None
    # Exit status of the program.
    status: int | None = None
    problem: str | None = None
    gpu_name: str | None = None
    # Whether the report was complete before the program was stopped, whatever its status.
    is_complete: bool | None = None
    work_per_step: WorkPerStep | None = None
    memory: MemoryPeaks | None = None


@dataclass(frozen=True)
class RunCapture:
    """How a run was captured, to compare it with another: ``run.capture`` of the JSON document."""

    name: str | None = None
    captured_at_utc: str | None = None
    # Harmless words. The others are hashes (``hmac:``), or ``***`` in a file that nsyspipe did not
    # write.
    command: list[str] | None = None
    # The key of the hashes: ``capture`` for a key of this capture alone.
    hash_key: str | None = None
    git_commit: str | None = None
    git_is_dirty: bool | None = None
    torch_version: str | None = None
    cuda_version: str | None = None
    nccl_version: str | None = None
    driver_version: str | None = None
    nsys_version: str | None = None
    python_version: str | None = None
    trace: list[str] | None = None
    capture_range: str | None = None
    # The variables of `VARIABLES`, with hashes as in `command`.
    environment: dict[str, str] = field(default_factory=dict)
