"""What a sidecar says, checked: shared by those who write it, read it and use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


CAPTURE_VERSION = 1
SIDECAR_SUFFIX = ".capture.json"


@dataclass(frozen=True)
class CapturedRank:
    """One rank of a capture; None is "not known"."""

    rank: int
    local_rank: int | None = None
    pid: int | None = None  # of the training program's process
    report: str | None = None  # stem of its report; None: this rank was not captured
    status: int | None = None  # with which its program ended
    problem: str | None = None
    gpu_name: str | None = None
    # whether its report was whole before the program was ended, so that its status says nothing of the capture
    is_complete: bool | None = None


@dataclass(frozen=True)
class RunCapture:
    """How a run was captured, for whoever compares two: ``run.capture`` of the JSON document, field by field."""

    name: str | None = None
    captured_at_utc: str | None = None
    # what is known to be harmless; other values are hashed (``hmac:``), or ``***`` where they were not by us
    command: list[str] | None = None
    # what tells hashes by one key from those by another: ``capture`` for a key of this capture alone
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
    environment: dict[str, str] = field(default_factory=dict)  # those of `VARIABLES`, likewise


@dataclass(frozen=True)
class Sidecar:
    """One sidecar of the reports of a run."""

    path: Path  # where it was read
    facts: RunCapture  # what it says of the capture as a whole
    captured_at_utc_ns: int | None = None  # of the facts' time, for comparison with reports
    host: str | None = None
    world_size: int | None = None
    ranks: tuple[CapturedRank, ...] = ()
    # what it says of the steps' texts, and the normalised text (``step #``) that this means; None when it is more
    # than a text with numbers
    step_pattern: str | None = None
    family: str | None = None
    # files of its directory, not looked at yet
    log_names: tuple[str, ...] = ()
    topology_name: str | None = None
