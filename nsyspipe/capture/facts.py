"""What a training program tells its launcher: ``ranges_<rank>.json`` in the directory ``NSYSPIPE_STATUS_DIR``."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from pathlib import Path
from typing import Any

from nsyspipe.capture.backends import loaded_torch

__all__ = ["STATUS_DIR", "Facts", "facts"]

STATUS_DIR = "NSYSPIPE_STATUS_DIR"
# A program that puts numbers into its phases' names would otherwise grow this list for days.
_MOST_NAMES, _LONGEST_NAME = 64, 200
_STEP_PATTERN = "^step [0-9]+$"
# What torch raises for a question that its build or the machine cannot answer.
_UNANSWERED = (AssertionError, AttributeError, OSError, RuntimeError, TypeError, ValueError)


class Facts:
    """What this process knows of its own capture.

    Attributes
    ----------
    n_steps, n_captured_steps
        Steps that were begun, and measured ones that were completed.
    warmup, n_asked
        Steps before the capture and steps in it, as the program asked for; None without a capture.
    has_ended
        Whether the training loop is over for good.
    """

    def __init__(self) -> None:
        self.n_steps = 0
        self.n_captured_steps = 0
        self.warmup: int | None = None
        self.n_asked: int | None = None
        self.has_ended = False
        self._names: dict[str, None] = {}
        self._pid: int | None = None

    def saw(self, phase: str) -> None:
        """Remember the name of a phase."""
        names = self._names
        if phase not in names and len(names) < _MOST_NAMES and len(phase) <= _LONGEST_NAME:
            names[phase] = None

    def announce(self) -> None:
        """Write the file for the first time, and once more when the process ends."""
        if self._pid is None:
            self._pid = os.getpid()
            atexit.register(self._end)
            self.write()

    def _end(self) -> None:
        self.has_ended = True
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all, if the launcher asks for it; a failure costs the file only."""
        directory = os.environ.get(STATUS_DIR)
        if not directory or self._pid != os.getpid():  # a fork of the program is not the program
            return
        path = Path(directory) / f"ranges_{_number('RANK') or 0}.json"
        unfinished = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError, ValueError):
            unfinished.write_text(json.dumps(self._gathered()), encoding="utf-8")
            unfinished.replace(path)

    def _gathered(self) -> dict[str, Any]:
        return {
            "rank": _number("RANK") or 0,
            "local_rank": _number("LOCAL_RANK") or 0,
            "pid": self._pid,
            "step_pattern": _STEP_PATTERN,
            "phase_names": list(self._names),
            "n_steps": self.n_steps,
            "n_captured_steps": self.n_captured_steps,
            "warmup": self.warmup,
            "steps_asked": self.n_asked,
            "loop_ended": self.has_ended,
            **_versions(),
        }


facts = Facts()


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(
        ("torch_version", "cuda_version", "nccl_version", "gpu_name")
    )
    torch = loaded_torch()
    if torch is None:
        return found
    with contextlib.suppress(*_UNANSWERED):
        found["torch_version"] = str(torch.__version__)
        found["cuda_version"] = torch.version.cuda
    with contextlib.suppress(*_UNANSWERED):
        # To ask for the name of a device would make a context on it, perhaps the wrong rank's.
        if torch.cuda.is_initialized():
            found["gpu_name"] = str(torch.cuda.get_device_name())
            found["nccl_version"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found
