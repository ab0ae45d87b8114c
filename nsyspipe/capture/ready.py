"""Look before a capture whether all it needs is there, and tell a launcher which nsys and trace to use.

``python3 -m nsyspipe.capture.ready --nproc N --program train.py --trace LIST`` prints the path of nsys and the trace
values, a line each. Exit status 2, with one message, if something is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe import nsys
from nsyspipe.errors import CaptureError, InputError, NsyspipeError, OptionError
from nsyspipe.programs import ask, find_nsys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.nsys import Nsys

__all__ = ["main", "n_gpus", "usable_trace"]

_ANSWER_S = 30.0
_GPU_LINE = re.compile(r"^GPU \d+:", re.MULTILINE)
_DRIVER = Path("/proc/driver/nvidia/version")


def main(words: Sequence[str] | None = None) -> int:
    """Check, and print what the launcher needs; for a dry run what is missing is only said."""
    options = _parser().parse_args(words)
    checks = [lambda: _check_program(options.program), _check_torch]
    if not options.cpu:
        checks.append(lambda: _check_gpus(options.nproc))
    if not options.no_profile:
        checks.append(lambda: _print_nsys(options.nsys, options.trace))
    for check in checks:
        try:
            check()
        except NsyspipeError as error:
            kind = "note" if options.dry_run else "error"
            print(f"{kind}: " + "\n".join(error.lines()), file=sys.stderr)  # noqa: T201 - the launcher's message
            if not options.dry_run:
                return error.exit_code
            if check is checks[-1] and not options.no_profile:
                there = find_nsys()
                name = options.nsys or (there.path if there else "nsys")
                print(f"{name}\n{options.trace}")  # noqa: T201
    return 0


def _print_nsys(program: str | None, trace: str) -> None:
    found = nsys.find(program)
    usable, note = usable_trace(found, trace.split(","))
    if note:
        print(note, file=sys.stderr)  # noqa: T201
    print(f"{found.path}\n{','.join(usable)}")  # noqa: T201


def usable_trace(found: Nsys, wanted: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """Return the trace values that this nsys takes, and what to say if those are not all that were wanted.

    Raises
    ------
    OptionError
        If it refuses one that has no substitute.
    """
    known = found.trace_values()
    refused = [value for value in wanted if known and value not in known]
    if not refused:
        return tuple(wanted), None
    if refused != ["nccl"]:
        raise OptionError(
            f"--trace {','.join(wanted)}",
            f"nsys {found.version_text} does not know {', '.join(one for one in refused if one != 'nccl')}",
            found=", ".join(known),
            fix="leave it out",
        )
    kept = [value for value in wanted if value != "nccl"]
    kept += [] if "nvtx" in kept else ["nvtx"]
    note = (
        f"note: nsys {found.version_text} does not know --trace=nccl (2025.6 does); "
        "nvtx carries NCCL's ranges"
    )
    return tuple(kept), note


def n_gpus() -> int | None:
    """Return how many GPUs programs see here; None when nothing can tell."""
    program = shutil.which("nvidia-smi")
    output = ask([program, "-L"], _ANSWER_S) if program else None
    if output is None or output.status != 0:
        return None if _DRIVER.exists() else 0
    there = len(_GPU_LINE.findall(output.text))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    # What follows a wrong one, as -1, is not seen either.
    seen = itertools.takewhile(lambda one: one and not one.startswith("-"), visible.split(","))
    return min(there, len(list(seen)))


def _check_program(program: str) -> None:
    if not Path(program).is_file():
        raise InputError(program, "no such training program", fix="--program FILE")


def _check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise CaptureError(
            sys.executable,
            "has no torch, which the training program and torchrun need",
            fix="activate the environment that trains, or name its Python: PYTHON=/path/to/python3",
        )


def _check_gpus(wanted: int) -> None:
    there = n_gpus()
    if there is not None and there < wanted:
        what = "no GPU" if there == 0 else f"{there} GPU{'s' * (there > 1)}"
        raise CaptureError(
            f"{wanted} rank{'s' * (wanted > 1)}",
            f"this machine has {what} for them",
            fix=f"-n {there}" if there else "--cpu runs a small model on the CPU",
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nsyspipe.capture.ready")
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--program", required=True)
    parser.add_argument("--trace", default="cuda,nvtx,nccl,osrt")
    parser.add_argument("--nsys", default=None)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
