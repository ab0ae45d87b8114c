"""What a run was captured with, in words: versions, commit, command."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsyspipe.sidecar_model import RunCapture

__all__ = ["capture_rows", "capture_text"]

_SHOWN_DIGITS, _LONGEST_COMMAND = 10, 500


def capture_text(capture: RunCapture | None) -> str | None:
    """Return versions and commit in one line; None when no sidecar says any."""
    if capture is None:
        return None
    known = (
        ("torch", capture.torch_version),
        ("NCCL", capture.nccl_version),
        ("driver", capture.driver_version),
        ("commit", _commit(capture)),
    )
    return ", ".join(f"{name} {value}" for name, value in known if value) or None


def capture_rows(capture: RunCapture | None) -> list[tuple[str, str]]:
    """Return what is known of a capture, as pairs."""
    if capture is None:
        return []
    command = shlex.join(capture.command) if capture.command else None
    if command and len(command) > _LONGEST_COMMAND:
        command = f"{command[:_LONGEST_COMMAND]} \N{HORIZONTAL ELLIPSIS}"
    known = (
        ("command", command),
        ("commit", _commit(capture)),
        ("torch", capture.torch_version),
        ("NCCL", capture.nccl_version),
        ("CUDA", capture.cuda_version),
        ("driver", capture.driver_version),
    )
    return [(name, value) for name, value in known if value]


def _commit(capture: RunCapture) -> str | None:
    if capture.git_commit is None:
        return None
    shown = ", ".join(one[:_SHOWN_DIGITS] for one in capture.git_commit.split(", "))
    return f"{shown} with changes" if capture.git_is_dirty else shown
