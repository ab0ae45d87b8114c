"""What each rank leaves for its launcher, and how it is written and read.

``ranges_<R>.json`` is from the training program, and ``rank_<R>.json`` from its supervisor. Either
may be missing or incomplete.
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

from nsyspipe.model.captured import MAX_COUNT

STATUS_DIR = "NSYSPIPE_STATUS_DIR"
# A program may put numbers into the names of its phases. Without a limit, this list would grow for
# days.
_MAX_PHASE_NAMES = 64
_MAX_NAME_LENGTH = 200
_MAX_FILE_BYTES = 1 << 20
# What torch raises if its build or the machine cannot answer a question.
_TORCH_ERRORS = (
    AssertionError,
    AttributeError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def loaded_torch() -> Any | None:  # noqa: ANN401 - a module without types
    """Return torch if the program has imported it. It is never imported only for ranges."""
    torch = sys.modules.get("torch")
    # While torch is being imported, it has no `cuda` yet.
    return torch if hasattr(torch, "cuda") else None


def say_left_out(outcome: str, reason: object) -> None:
    """Say on stderr what is not recorded of a program, which goes on, and why."""
    message = f"nsyspipe: {outcome}, the program goes on: {reason}"
    print(message, file=sys.stderr)  # noqa: T201


@dataclass
class Program:
    """What a training program reports about itself and its loops."""

    rank: int = 0
    local_rank: int | None = None
    pid: int | None = None
    step_pattern: str | None = None
    phase_names: list[str] = field(default_factory=list)
    # Steps that have begun, and those of them that were captured.
    n_steps: int = 0
    n_captured_steps: int = 0
    # Steps before the capture, and steps in it, as the program asked. 0 if it did not.
    warmup: int = 0
    steps_asked: int = 0
    # Steps of the last loader that has run out of items.
    epoch_steps: int = 0
    # Whether its training loop is over. A program with another loop never reports it.
    loop_ended: bool = False
    torch_version: str | None = None
    cuda_version: str | None = None
    nccl_version: str | None = None
    gpu_name: str | None = None
    # What a step works on: tokens and samples of the whole job, FLOPs of this rank.
    tokens_per_step: int | None = None
    samples_per_step: int | None = None
    flops_per_step: int | None = None
    # What the allocator of torch knows of the GPU, when the captured steps have ended.
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    allocator_retries: int | None = None

    def saw(self, phase: str) -> None:
        """Remember the name of a phase."""
        names = self.phase_names
        if len(names) >= _MAX_PHASE_NAMES or len(phase) > _MAX_NAME_LENGTH:
            return
        if phase not in names:
            names.append(phase)

    def count_work(
        self, *, tokens: int | None = None, samples: int | None = None, flops: int | None = None
    ) -> None:
        """Remember what a step works on. A count that is None stays as it was.

        Raises
        ------
        ValueError
            If a count is not a positive integer of at most `MAX_COUNT`. Then no count changes.
        """
        work = {"tokens_per_step": tokens, "samples_per_step": samples, "flops_per_step": flops}
        new_counts = {name: count for name, count in work.items() if count is not None}
        for name, count in new_counts.items():
            # True is an `int` for `isinstance`, but it is no count.
            if type(count) is not int or not 0 < count <= MAX_COUNT:
                raise ValueError(f"{name} must be a positive integer, got {count!r}")
        for name, count in new_counts.items():
            setattr(self, name, count)

    def ask_memory(self) -> None:
        """Remember the peaks of the allocator of torch, if CUDA is in use. They are not reset."""
        torch = loaded_torch()
        if not torch:
            return
        with contextlib.suppress(*_TORCH_ERRORS):
            if not torch.cuda.is_initialized():
                return
            self.peak_allocated_bytes = int(torch.cuda.max_memory_allocated())
            self.peak_reserved_bytes = int(torch.cuda.max_memory_reserved())
            statistics = torch.cuda.memory_stats()
            self.allocator_retries = int(statistics["num_alloc_retries"])

    def announce(self) -> None:
        """Write the facts of this process to their file now, and again when the process ends.

        The rank and the pid are known from here. A second call does nothing, because they do not
        change.
        """
        if self.pid is not None:
            return
        self.pid = os.getpid()
        self.rank = _number_in_environment("RANK")
        self.local_rank = _number_in_environment("LOCAL_RANK")
        # A regular expression for the texts of the ranges of steps.
        self.step_pattern = "^step [0-9]+$"
        atexit.register(self.write, is_over=True)
        self.write()

    def write(self, *, is_over: bool = False) -> None:
        """Write the whole file of this rank, if a launcher has named a directory for it.

        The program goes on without the file if it cannot be written. If `is_over`, the program has
        ended, and its training loop with it.
        """
        if is_over:
            self.loop_ended = True
        directory = os.environ.get(STATUS_DIR)
        # A fork of the program is another program. Before `announce`, the pid is None.
        has_announced = self.pid == os.getpid()
        if not directory or not has_announced:
            return
        self._ask_torch()
        with contextlib.suppress(OSError, ValueError):
            _write(Path(directory) / f"ranges_{self.rank}.json", asdict(self))

    def _ask_torch(self) -> None:
        """Remember the GPU, and the versions of torch and its libraries, if torch knows them."""
        torch = loaded_torch()
        if not torch:
            return
        with contextlib.suppress(*_TORCH_ERRORS):
            self.torch_version = str(torch.__version__)
            self.cuda_version = torch.version.cuda
        with contextlib.suppress(*_TORCH_ERRORS):
            # Asking for the name of a device would make a context, perhaps on the wrong device.
            if torch.cuda.is_initialized():
                self.gpu_name = str(torch.cuda.get_device_name())
                parts_of_version = torch.cuda.nccl.version()
                self.nccl_version = ".".join(map(str, parts_of_version))


def _number_in_environment(variable: str) -> int:
    """Return the number in a variable, 0 if it has none."""
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() else 0


facts = Program()
_TYPE_BY_NAME = {"int": int, "str": str, "bool": bool, "list[str]": list}
# The type of each field that is not None: of the annotation ``int | None``, this is int.
_TYPE_BY_FIELD = {
    program_field.name: _TYPE_BY_NAME[str(program_field.type).partition(" |")[0]]
    for program_field in fields(Program)
}


def read_programs(directory: Path) -> dict[int, Program]:
    """Return what the training programs report, by rank.

    A field of a wrong type gets its default.
    """
    programs = {}
    for path in sorted(directory.glob("ranges_*.json")):
        # A file that cannot be read, or has no facts, is left out.
        with contextlib.suppress(AttributeError, OSError, ValueError, RecursionError):
            with path.open("rb") as file:
                content = json.loads(file.read(_MAX_FILE_BYTES))
            # The name of the file decides, because the content may have been changed.
            rank = int(path.stem.removeprefix("ranges_"))
            fields_of_program = _known_fields(content) | {"rank": rank}
            programs[rank] = Program(**fields_of_program)
    return programs


def _known_fields(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a program that have the right type."""
    known = {}
    for name, field_type in _TYPE_BY_FIELD.items():
        value = content.get(name)
        if type(value) is field_type:
            known[name] = value
    return known


@dataclass(frozen=True)
class RankRecord:
    """How the program of a rank, and its capture, ended."""

    rank: int
    local_rank: int
    # Of the training program, None if it never started.
    pid: int | None = None
    # Process group of nsys, which may live longer than the process that started it. None without
    # nsys.
    nsys_group: int | None = None
    is_captured: bool = True
    # Path of the report without suffix, None if none was written.
    report: str | None = None
    # Of the program: 128 + N if signal N ended it, None while it runs.
    status: int | None = None
    problem: str | None = None
    # When the program ended, in s since the epoch.
    ended_at: float | None = None
    # When its report was complete, if the program still ran then and nobody had asked it to end.
    report_at: float | None = None


def write_record(directory: Path, record: RankRecord) -> None:
    """Write the whole record of a rank, or nothing."""
    _write(directory / f"rank_{record.rank}.json", asdict(record))


def read_records(directory: Path) -> list[RankRecord]:
    """Return the records in a directory, in order of ranks."""
    contents = [json.loads(path.read_bytes()) for path in directory.glob("rank_*.json")]
    records = [RankRecord(**content) for content in contents]
    return sorted(records, key=lambda record: record.rank)


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a file of JSON so that a reader sees all of it, or the file that was there before."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(path)
