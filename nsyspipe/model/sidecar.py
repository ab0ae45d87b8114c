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
    """One rank of a capture; None is "not known".

    Attributes
    ----------
    pid
        Of the training program's process.
    report
        Stem of its report; None: this rank was not captured.
    status
        With which its program ended.
    is_complete
        Whether its report was whole before the program was ended, so that its status says nothing of the capture.
    """

    rank: int
    local_rank: int | None = None
    pid: int | None = None
    report: str | None = None
    status: int | None = None
    problem: str | None = None
    gpu_name: str | None = None
    is_complete: bool | None = None


@dataclass(frozen=True)
class RunCapture:
    """How a run was captured, for whoever compares two: ``run.capture`` of the JSON document, field by field.

    Attributes
    ----------
    command
        What is known to be harmless; other values are hashed (``hmac:``), or ``***`` where they were not by us.
    hash_key
        What tells hashes by one key from those by another: ``capture`` for a key of this capture alone.
    environment
        Those of `VARIABLES`, likewise.
    """

    name: str | None = None
    captured_at_utc: str | None = None
    command: list[str] | None = None
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
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sidecar:
    """One sidecar of the reports of a run.

    Attributes
    ----------
    path
        Where it was read.
    facts
        What it says of the capture as a whole.
    captured_at_utc_ns
        Of the facts' time, for comparison with reports.
    step_pattern, family
        What it says of the steps' texts, and the normalised text (``step #``) that this means; None when it is more
        than a text with numbers.
    log_names, topology_name
        Files of its directory, not looked at yet.
    """

    path: Path
    facts: RunCapture
    captured_at_utc_ns: int | None = None
    host: str | None = None
    world_size: int | None = None
    ranks: tuple[CapturedRank, ...] = ()
    step_pattern: str | None = None
    family: str | None = None
    log_names: tuple[str, ...] = ()
    topology_name: str | None = None
