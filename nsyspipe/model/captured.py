"""What a capture says of itself: the classes that its sidecar is written from, and read into. Only the standard library is needed."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    is_complete: bool | None = (
        None  # whether its report was whole before the program was ended, whatever its status
    )


@dataclass(frozen=True)
class RunCapture:
    """How a run was captured, for whoever compares two: ``run.capture`` of the JSON document, field by field."""

    name: str | None = None
    captured_at_utc: str | None = None
    command: list[str] | None = (
        None  # what is harmless; the rest hashed (``hmac:``), or ``***`` if not by us
    )
    hash_key: str | None = (
        None  # which key made the hashes: ``capture`` for one of this capture alone
    )
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
