"""What each rank leaves for its launcher, written and read: ``ranges_<R>.json`` and ``rank_<R>.json``.

The first is the training program's, the second its supervisor's. Either may be missing, or cut
short.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

STATUS_DIR = "NSYSPIPE_STATUS_DIR"
# A program that puts numbers into its phases' names would otherwise grow this list for days.
_MOST_NAMES = 64
_LONGEST_NAME = 200
_MOST_BYTES = 1 << 20
# What torch raises for a question that its build or the machine cannot answer.
_UNANSWERED = (AssertionError, AttributeError, OSError, RuntimeError, TypeError, ValueError)


def loaded_torch() -> Any | None:  # noqa: ANN401 - a module without types
    """Return torch when the program has imported it; it is never imported for ranges alone."""
    torch = sys.modules.get("torch")
    return (
        torch if hasattr(torch, "cuda") else None
    )  # while torch is still being imported, it has no cuda module yet


@dataclass
class Program:
    """What a training program says of itself and its loops: steps begun and captured, and as it asked for (0: none)."""

    rank: int = 0
    local_rank: int | None = None
    pid: int | None = None
    step_pattern: str | None = None
    phase_names: list[str] = field(default_factory=list)
    n_steps: int = 0
    n_captured_steps: int = 0
    warmup: int = 0
    steps_asked: int = 0
    epoch_steps: int = 0  # of the last loader that has run out of items
    loop_ended: bool = False  # its training loop is over; one that does not use ours never says
    torch_version: str | None = None
    cuda_version: str | None = None
    nccl_version: str | None = None
    gpu_name: str | None = None

    def saw(self, phase: str) -> None:
        """Remember the name of a phase."""
        names = self.phase_names
        if len(names) < _MOST_NAMES and len(phase) <= _LONGEST_NAME and phase not in names:
            names.append(phase)

    def announce(self) -> None:
        """Write the file for the first time, and once more when the process ends."""
        if self.pid is None:
            self.pid = os.getpid()
            ranks = (os.environ.get(one, "") for one in ("RANK", "LOCAL_RANK"))
            self.rank, self.local_rank = (
                int(rank) if rank.isascii() and rank.isdigit() else 0 for rank in ranks
            )
            self.step_pattern = "^step [0-9]+$"
            atexit.register(self.write, is_over=True)
            self.write()

    def write(self, *, is_over: bool = False) -> None:
        """Write the file, whole or not at all, if the launcher asks for it; a failure costs the file only."""
        self.loop_ended |= is_over
        directory = os.environ.get(STATUS_DIR)
        if not directory or self.pid != os.getpid():  # a fork of the program is not the program
            return
        torch = loaded_torch()
        if torch:
            with contextlib.suppress(*_UNANSWERED):
                self.torch_version = str(torch.__version__)
                self.cuda_version = torch.version.cuda
            with contextlib.suppress(*_UNANSWERED):
                # To ask for the name of a device would make a context on it, perhaps the wrong
                # rank's.
                if torch.cuda.is_initialized():
                    self.gpu_name = str(torch.cuda.get_device_name())
                    self.nccl_version = ".".join(str(part) for part in torch.cuda.nccl.version())
        with contextlib.suppress(OSError, ValueError):
            _write(Path(directory) / f"ranges_{self.rank}.json", asdict(self))


facts = Program()
_KINDS = {"int": int, "str": str, "bool": bool, "list[str]": list}
_KIND_BY_FIELD = {one.name: _KINDS[str(one.type).partition(" |")[0]] for one in fields(Program)}


def read_programs(directory: Path) -> dict[int, Program]:
    """Return what the training programs say, by rank; of a field of another type nothing."""
    found = {}
    for path in sorted(directory.glob("ranges_*.json")):
        # One that cannot be read, or is no table of facts, says nothing.
        with (
            contextlib.suppress(AttributeError, OSError, ValueError, RecursionError),
            path.open("rb") as file,
        ):
            said = json.loads(file.read(_MOST_BYTES))
            rank = int(path.stem.removeprefix("ranges_"))
            typed = {
                name: said[name]
                for name, kind in _KIND_BY_FIELD.items()
                if type(said.get(name)) is kind
            }
            found[rank] = Program(**typed | {"rank": rank})
    return found


@dataclass(frozen=True)
class RankRecord:
    """How one rank's program and its capture ended."""

    rank: int
    local_rank: int
    pid: int | None = None  # the training program's process, None when it never started
    nsys_group: int | None = (
        None  # process group of its nsys, which may outlive who started it; None without one
    )
    is_captured: bool = True
    report: str | None = None  # path of the report without suffix; None when none was written
    status: int | None = (
        None  # the program's, 128 + N for one ended by signal N, None while it runs
    )
    problem: str | None = None
    ended_at: float | None = None  # when the program ended, s since the epoch
    report_at: float | None = (
        None  # when its report was whole, if the program still ran then, unasked to end
    )


def write_record(directory: Path, record: RankRecord) -> None:
    """Write a rank's record, whole or not at all."""
    _write(directory / f"rank_{record.rank}.json", asdict(record))


def read_records(directory: Path) -> list[RankRecord]:
    """Return the records there are, by rank."""
    found = [RankRecord(**json.loads(path.read_bytes())) for path in directory.glob("rank_*.json")]
    return sorted(found, key=lambda record: record.rank)


def _write(path: Path, content: dict[str, Any]) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(path)
