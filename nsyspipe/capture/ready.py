"""Look before a capture whether all it needs is there, and tell a launcher which nsys and trace to use.

``python3 -m nsyspipe.capture.ready --nproc N --program train.py --trace LIST`` prints the path of nsys, the trace values,
and how CUDA graphs are traced (nothing where that is nsys's own choice), a line each. Exit status 2, with one message, if
something is missing; a dry run says all that is missing, and fails for options only that no machine could take.
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

from nsyspipe.capture.plan import check_ranks, parse_ranks
from nsyspipe.errors import CaptureError, InputError, NsyspipeError, OptionError
from nsyspipe.nsys import programs as nsys
from nsyspipe.nsys.machine import ranges_reach
from nsyspipe.nsys.programs import ask, nvtx_version, torch_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.nsys.programs import Nsys


_ANSWER_S = 30.0
_GPU_LINE = re.compile(r"^GPU \d+:", re.MULTILINE)
_GET_NVTX = 'pip install "nvtx<0.2.12"'
_DRIVER = Path("/proc/driver/nvidia/version")


def main(words: Sequence[str] | None = None) -> int:
    """Check, and print what the launcher needs; for a dry run what is missing is only said."""
    parser = argparse.ArgumentParser(prog="nsyspipe.capture.ready")
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--program", required=True)
    parser.add_argument("--world-size", type=int, default=None)
    parser.add_argument("--ranks", default=None)
    parser.add_argument("--capture-range", default=None)
    parser.add_argument("--trace", default="cuda,nvtx,nccl,osrt")
    parser.add_argument("--cuda-graph-trace", choices=("node", "graph"), default="node")
    parser.add_argument("--nsys", default=None)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--count-gpus", action="store_true")
    options = parser.parse_args(words)
    if options.count_gpus:
        print(n_gpus() or 1)  # noqa: T201
        return 0
    try:
        if options.ranks is not None and not options.no_profile:
            check_ranks(parse_ranks(options.ranks), options.world_size or options.nproc)
    except OptionError as error:
        _say("error", error)
        return error.exit_code
    checks = [lambda: _check_program(options.program), _check_torch]
    if not options.cpu:
        checks.append(lambda: _check_gpus(options.nproc))
    if options.cpu and options.capture_range == "nvtx" and not options.no_profile:
        checks.append(lambda: _check_nvtx(options.nsys))
    for check in checks:
        try:
            check()
        except NsyspipeError as error:
            _say("note" if options.dry_run else "error", error)
            if not options.dry_run:
                return error.exit_code
    return 0 if options.no_profile else _tell_nsys(options)


def _say(kind: str, error: NsyspipeError) -> None:
    print(f"{kind}: " + "\n".join(error.lines()), file=sys.stderr)  # noqa: T201 - the launcher's message


def _tell_nsys(options: argparse.Namespace) -> int:
    trace = tuple(options.trace.split(","))
    graphs = options.cuda_graph_trace
    try:
        found = nsys.find(options.nsys)
        trace, note = usable_trace(found, trace)
        if note:
            print(note, file=sys.stderr)  # noqa: T201
        graphs, note = usable_graph_trace(found, graphs, trace)
        if note:
            print(note, file=sys.stderr)  # noqa: T201
        name = str(found.path)
    except NsyspipeError as error:
        _say("note" if options.dry_run else "error", error)
        if not options.dry_run:
            return error.exit_code
        there = nsys.find_nsys()
        name = options.nsys or (str(there.path) if there else "nsys")
        graphs = graphs if _has_cuda(trace) else ""
    print(f"{name}\n{','.join(trace)}\n{graphs}")  # noqa: T201
    return 0


def usable_trace(found: Nsys, wanted: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """Return the trace values that this nsys takes, and what to say if those are not all that were wanted.

    OptionError if it refuses one that has no substitute.
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
    note = f"note: nsys {found.version_text} does not know --trace=nccl (2025.6 does); nvtx carries NCCL's ranges"
    return tuple(kept), note


def usable_graph_trace(found: Nsys, wanted: str, trace: Sequence[str]) -> tuple[str, str | None]:
    """Return how this nsys is to trace CUDA graphs, empty for its own way, and what to say if that is not as wanted."""
    if not _has_cuda(trace) or found.profile_has("--cuda-graph-trace"):
        return (wanted if _has_cuda(trace) else ""), None
    note = (
        f"note: nsys {found.version_text} does not know --cuda-graph-trace={wanted}: "
        "CUDA graphs are traced in its own way"
    )
    return "", note


def _has_cuda(trace: Sequence[str]) -> bool:
    return any(one.startswith("cuda") for one in trace)


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


def _check_nvtx(program: str | None) -> None:
    """Refuse a capture on CPUs that would never begin: it begins with a range, which something must make."""
    # A torch with CUDA makes ranges itself.
    if torch_versions()[1] is not None:
        return
    if importlib.util.find_spec("nvtx") is None:
        raise CaptureError(
            sys.executable, "has no nvtx, through which a capture begins where torch has no CUDA", fix=_GET_NVTX
        )
    try:
        version, found = nvtx_version(), nsys.find(program)
    except NsyspipeError:
        return  # what is wrong with nsys is said next
    if version is not None and not ranges_reach(found.version_text, version):
        raise CaptureError(
            f"nvtx {version}",
            f"its ranges do not reach nsys {found.version_text}: no capture would begin",
            fix=f"{_GET_NVTX}, or name a newer nsys: --nsys PROGRAM",
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


if __name__ == "__main__":
    sys.exit(main())
