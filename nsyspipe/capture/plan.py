"""What a launcher asks for: one job on this node, what it needs, and its files.

``python3 -m nsyspipe.capture.plan`` checks this before a capture. It prints the path of nsys, the
trace values, how CUDA graphs are traced, the options that sample Python, and the option that counts
on GPUs, each on a line. The exit status is 2 if something is missing. A dry run prints everything
that is missing.
"""

import argparse
import contextlib
import errno
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from nsyspipe.capture.recording import counting_option, default_counting_option, python_sampling
from nsyspipe.errors import (
    CaptureError,
    InputError,
    NsyspipeError,
    OptionError,
    OutputError,
    nearest_name,
)
from nsyspipe.model.options import parse_ranks
from nsyspipe.nsys import programs as nsys
from nsyspipe.nsys.programs import Nsys, ask, installed, numbers, ranges_reach, torch_versions

_ANSWER_S = 30.0
_GPU_LINE = re.compile(r"^GPU \d+:", re.MULTILINE)
_GET_NVTX = 'pip install "nvtx<0.2.12"'
_DRIVER = Path("/proc/driver/nvidia/version")
# What follows a job's name in the names of its files.
_REPORT = re.compile(r"_(node)?([0-9]{1,9})\.(?:nsys-rep|sqlite|qdstrm)")
_FACTS = (".capture.json", ".topo.txt")
_FACT_OF_NODE = re.compile(r"\.(node)([0-9]{1,9})\.(?:capture\.json|topo\.txt)")
_LOG = re.compile(r"\.nccl\..+\.log", re.DOTALL)
# The values of --trace for an nsys whose help lists none: those of 2024.2, of newer versions and of
# other systems.
_KNOWN_TRACE = (
    "cublas",
    "cublas-verbose",
    "cuda",
    "cuda-hw",
    "cuda-sw",
    "cudla",
    "cudla-verbose",
    "cudnn",
    "cusolver",
    "cusolver-verbose",
    "cusparse",
    "cusparse-verbose",
    "dx11",
    "dx11-annotations",
    "dx12",
    "dx12-annotations",
    "gds",
    "mpi",
    "nccl",
    "none",
    "nvmedia",
    "nvtx",
    "nvvideo",
    "openacc",
    "opencl",
    "opengl",
    "opengl-annotations",
    "openmp",
    "openxr",
    "openxr-annotations",
    "oshmem",
    "osrt",
    "python-gil",
    "syscall",
    "tegra-accelerators",
    "ucx",
    "vulkan",
    "vulkan-annotations",
    "wddm",
)
_FIRST_WITH_NCCL = (2025, 6)
# How long a program may go on after it has told that its loop is over.
LINGER_S = 120.0
_MAX_NAMES = 3
_SWITCHES = (
    "--cpu",
    "--no-profile",
    "--dry-run",
    "--count-gpus",
    "--is-counted",
    "--python",
    "--gpu-metrics",
)


@dataclass(frozen=True)
class Job:
    """The part of a job that this node runs."""

    # All files of the job begin with it.
    name: Path
    # With torchrun and nsys.
    command: tuple[str, ...]
    # The name of the training program in messages.
    program: str
    # Number of ranks on each node.
    n_local: int
    node_rank: int
    n_nodes: int
    # The ranks to capture, of all nodes. None for all.
    chosen: frozenset[int] | None
    # ``static`` if the ranks of a node follow from its number. Any other rendezvous assigns them.
    rendezvous: str
    # One report has all ranks of a node.
    is_node_wide: bool
    # None to run without a capture.
    nsys: str | None
    trace: tuple[str, ...]
    capture_range: str
    # A:B if the program is captured unchanged. None if it begins its capture itself.
    attach_steps: str | None
    # The limit for the whole job. 0 for none.
    timeout_s: float
    # The limit for nsys after the program has ended.
    exit_timeout_s: float
    # The limit for a program after its reports are complete. 0 for none, None if the user did not
    # set it.
    linger_s: float | None
    is_exported: bool
    is_forced: bool

    @property
    def world_size(self) -> int:
        """Number of ranks of all nodes."""
        return self.n_nodes * self.n_local

    @property
    def local_ranks(self) -> range | None:
        """The ranks of this node; None if the rendezvous assigns them."""
        if self.rendezvous != "static":
            return None
        first = self.node_rank * self.n_local
        return range(first, first + self.n_local)

    def expected(self, started: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks of this node to capture. `started` are those that have started."""
        if self.nsys is None:
            return ()
        ranks = self.local_ranks or started
        if self.chosen is None:
            return tuple(ranks)
        return tuple(filter(self.chosen.__contains__, ranks))

    def beside(self, ending: str) -> Path:
        """Return the path of a file of this job by the end of its name."""
        return self.name.with_name(self.name.name + ending)


def earlier_files(job: Job) -> list[Path]:
    """Return the files of an earlier capture of the same name that this node is responsible for.

    With several nodes, these are the files that this node would write. Node 0 is also responsible
    for ranks and nodes that this job does not have, and each node for all ranks if its own are not
    known yet.
    """
    files = []
    for path in job.name.parent.iterdir():
        is_of_job = path.name.startswith(job.name.name)
        if is_of_job and _belongs(job, _ending_of(job, path)):
            files.append(path)
    return sorted(files)


def _ending_of(job: Job, file: Path) -> str:
    """Return what follows the job's name in the name of a file."""
    return file.name.removeprefix(job.name.name)


def _belongs(job: Job, ending: str) -> bool:
    """Return whether this node is responsible for a file, by what follows the job's name in it."""
    if _LOG.fullmatch(ending):
        return job.n_nodes == 1
    if ending in _FACTS:
        # A job of one node has written it.
        return job.node_rank == 0
    file_of_rank_or_node = _REPORT.fullmatch(ending) or _FACT_OF_NODE.fullmatch(ending)
    if file_of_rank_or_node is None:
        return False
    is_of_node = file_of_rank_or_node[1] is not None
    number = int(file_of_rank_or_node[2])
    n_numbers = job.n_nodes if is_of_node else job.world_size
    own_numbers = job.local_ranks
    if is_of_node:
        own_numbers = range(job.node_rank, job.node_rank + 1)
    if job.n_nodes == 1 or own_numbers is None or number in own_numbers:
        return True
    return job.node_rank == 0 and number >= n_numbers


def _trace_values(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def parse_job(words: Sequence[str]) -> Job:
    """Parse the words that a launcher passes. The command follows after ``--``."""
    parser = argparse.ArgumentParser(prog="nsyspipe.capture.job")
    parser.add_argument("--name", type=lambda name: Path(name).absolute(), required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--nproc", dest="n_local", type=int, default=1)
    parser.add_argument("--nodes", dest="n_nodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--ranks", dest="chosen", type=parse_ranks)
    parser.add_argument("--rendezvous", default="static")
    parser.add_argument("--node-wide", dest="is_node_wide", action="store_true")
    parser.add_argument("--nsys")
    parser.add_argument("--trace", type=_trace_values, default=())
    parser.add_argument("--capture-range", default="none")
    parser.add_argument("--attach-steps")
    parser.add_argument("--timeout", dest="timeout_s", type=float, default=0)
    parser.add_argument("--exit-timeout", dest="exit_timeout_s", type=float, default=0)
    parser.add_argument("--linger", dest="linger_s", type=float)
    parser.add_argument("--no-export", dest="is_exported", action="store_false")
    parser.add_argument("--force", dest="is_forced", action="store_true")
    n_options = list(words).index("--")
    options = parser.parse_args(words[:n_options])
    return Job(**vars(options), command=tuple(words[n_options + 1 :]))


@contextlib.contextmanager
def room_for(job: Job) -> Iterator[SimpleNamespace]:
    """Make room for the files of a job while it runs.

    An earlier capture of that name is an OutputError. With --force it is set aside, and removed at
    the end if the yielded object `has_begun`, else put back. Logs of NCCL are no capture, so they
    are no error. Directories that are made here are removed again if they stay empty.
    """
    name_aside = f".{job.name.name}.earlier-{os.getpid()}"
    aside = job.name.with_name(name_aside)
    new_directories = [directory for directory in job.name.parents if not directory.exists()]
    room = SimpleNamespace(has_begun=False)
    try:
        if job.nsys is not None:
            _set_aside(job, aside)
        yield room
    finally:
        with contextlib.suppress(OSError):
            for directory in new_directories:
                directory.rmdir()
        # Nothing may have been set aside. Files that cannot be put back stay where they are.
        with contextlib.suppress(OSError):
            for path in sorted(aside.iterdir()):
                place = job.name.with_name(path.name)
                if not room.has_begun and not place.exists():
                    path.rename(place)
            shutil.rmtree(aside)


def _set_aside(job: Job, aside: Path) -> None:
    try:
        job.name.parent.mkdir(parents=True, exist_ok=True)
        earlier = earlier_files(job)
        if not job.is_forced:
            _refuse_earlier_capture(job, earlier)
            return
        for path in earlier:
            if path.is_dir() and not path.is_symlink():
                raise IsADirectoryError(errno.EISDIR, f"{path.name} is a directory")
        for path in earlier:
            aside.mkdir(exist_ok=True)
            # Another node may have moved the file before.
            with contextlib.suppress(FileNotFoundError):
                path.rename(aside / path.name)
    except OSError as error:
        problem = f"reports cannot be written there: {error.strerror}"
        raise OutputError(str(job.name), problem, fix="-o NAME") from error


def _refuse_earlier_capture(job: Job, earlier: Sequence[Path]) -> None:
    """Raise an OutputError if there are files of an earlier capture, other than logs of NCCL."""
    captured = [path for path in earlier if not _LOG.fullmatch(_ending_of(job, path))]
    names = [path.name for path in captured]
    if not names:
        return
    names_text = ", ".join(names[:_MAX_NAMES])
    if len(names) > _MAX_NAMES:
        names_text += f", … {len(names) - _MAX_NAMES} more"
    raise OutputError(
        str(job.name),
        "an earlier capture of this name is there",
        found=names_text,
        fix="-o ANOTHER_NAME, or --force to replace it",
    )


def main(words: Sequence[str] | None = None) -> int:
    """Check a job, and print what the launcher needs. In a dry run, missing things are notes."""
    parser = argparse.ArgumentParser(prog="nsyspipe.capture.plan")
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--program", required=True)
    parser.add_argument("--world-size", type=int)
    for text in ("--module", "--module-path", "--ranks", "--capture-range", "--nsys"):
        parser.add_argument(text)
    parser.add_argument("--trace", default="cuda,nvtx,nccl,osrt")
    parser.add_argument("--cuda-graph-trace", choices=("node", "graph"), default="node")
    parser.add_argument("--name", type=Path, default=Path("run"))
    for switch in _SWITCHES:
        parser.add_argument(switch, action="store_true")
    options = parser.parse_args(words)
    if options.count_gpus:
        print(n_gpus() or 1)  # noqa: T201
        return 0
    try:
        _check_ranks(options)
    except OptionError as error:
        return _refused(error)
    n_gpus_here = None if options.cpu else n_gpus()
    has_spare_gpus = n_gpus_here is not None and n_gpus_here > options.nproc
    if has_spare_gpus and not options.is_counted:
        ranks = _ranks_text(options.nproc)
        note = f"note: {ranks}, where {n_gpus_here} GPUs are: -n {n_gpus_here} takes all of them"
        print(note, file=sys.stderr)  # noqa: T201
    statuses = [
        _refused(missing, is_noted=options.dry_run) for missing in _missing(options, n_gpus_here)
    ]
    if not options.no_profile:
        statuses.append(_print_nsys(options, is_refused=any(statuses)))
    return max(statuses, default=0)


def _check_ranks(options: argparse.Namespace) -> None:
    """Raise an OptionError for ranks that the job does not have.

    Otherwise nothing would be captured, without any reason.
    """
    if options.ranks is None or options.no_profile:
        return
    n_ranks = options.world_size or options.nproc
    unknown = [rank for rank in parse_ranks(options.ranks) if rank >= n_ranks]
    if not unknown:
        return
    fix = "leave it out"
    if n_ranks > 1:
        fix = f"ranks of 0-{n_ranks - 1}"
        if n_ranks > options.nproc:
            fix += f", {options.nproc} on each node"
    problem = f"there is no rank {min(unknown)}: this job's are 0 to {n_ranks - 1}"
    raise OptionError("--ranks", problem, fix=fix)


def _refused(error: NsyspipeError, *, is_noted: bool = False) -> int:
    kind = "note" if is_noted else "error"
    text = "\n".join(error.lines())
    print(f"{kind}: {text}", file=sys.stderr)  # noqa: T201
    return 0 if is_noted else error.exit_code


def _print_nsys(options: argparse.Namespace, *, is_refused: bool) -> int:
    """Print nsys and what it traces, and return the exit status."""
    trace = options.trace.split(",")
    # Without CUDA there are no graphs, and nsys would complain about the option.
    has_cuda = any(value.startswith("cuda") for value in trace)
    graphs = options.cuda_graph_trace if has_cuda else ""
    recorded = _Recorded("", default_counting_option() if options.gpu_metrics else "", [])
    try:
        tool = nsys.find(options.nsys, or_else=", or --nsys PROGRAM, or NSYS=PROGRAM")
        trace, graphs, notes = usable_tracing(tool, trace, graphs)
        recorded = _recorded(tool, options)
        notes += recorded.notes
        if not is_refused:
            for note in notes:
                print(note, file=sys.stderr)  # noqa: T201
        name = str(tool.path)
    except NsyspipeError as error:
        status = _refused(error, is_noted=options.dry_run)
        if status:
            return status
        if isinstance(error, CaptureError):
            # Without an nsys, the trace values have not been checked yet.
            try:
                _check_trace(trace, ())
            except OptionError as trace_error:
                _refused(trace_error, is_noted=True)
        installed_nsys = nsys.find_nsys()
        name = options.nsys or (str(installed_nsys.path) if installed_nsys else "nsys")
    lines = [name, ",".join(trace), graphs, recorded.python_options, recorded.counting_option]
    print("\n".join(lines))  # noqa: T201
    return 0


class _Recorded(NamedTuple):
    """What an nsys records beside its traces. An empty text for what it does not."""

    # Separated by spaces.
    python_options: str
    counting_option: str
    notes: list[str]


def _recorded(tool: Nsys, options: argparse.Namespace) -> _Recorded:
    """Return what this nsys records of what was asked for, with notes about the rest."""
    notes = []
    python_options = ""
    if options.python:
        sampling = python_sampling(tool)
        python_options = " ".join(sampling.options)
        if sampling.note is not None:
            notes.append(sampling.note)
    counter = ""
    if options.gpu_metrics:
        try:
            counter = counting_option(tool)
        except CaptureError as error:
            if not options.dry_run:
                raise
            # Another machine may be allowed to count.
            _refused(error, is_noted=True)
            counter = default_counting_option()
    return _Recorded(python_options, counter, notes)


class Tracing(NamedTuple):
    """What an nsys traces."""

    trace: list[str]
    # The value of --cuda-graph-trace. Empty if nsys does not have the option.
    graphs: str
    notes: list[str]


def usable_tracing(tool: Nsys, trace: Sequence[str], graphs: str) -> Tracing:
    """Return what this nsys can trace of what was asked for, with notes about substitutes.

    An OptionError is raised for a trace value without a substitute.
    """
    listed_values = tool.trace_values()
    start = f"nsys {tool.version_text} does not know"
    notes = []
    _check_trace(trace, listed_values, start)
    if "nccl" in trace and not _traces_nccl(tool, listed_values):
        without_nccl = [value for value in trace if value != "nccl"]
        trace = list(dict.fromkeys([*without_nccl, "nvtx"]))
        note = f"note: {start} --trace=nccl (2025.6 does), so nvtx records the ranges of NCCL"
        notes.append(note)
    if graphs and not tool.has("profile", "--cuda-graph-trace"):
        note = f"note: {start} --cuda-graph-trace={graphs}: CUDA graphs are traced in its own way"
        notes.append(note)
        graphs = ""
    return Tracing([*trace], graphs, notes)


def _traces_nccl(tool: Nsys, listed_values: Sequence[str]) -> bool:
    if listed_values:
        return "nccl" in listed_values
    return numbers(tool.version_text)[:2] >= _FIRST_WITH_NCCL


def _check_trace(
    trace: Sequence[str], listed_values: Sequence[str], start: str = "no nsys knows"
) -> None:
    """Raise an OptionError for trace values that are not in the help of nsys.

    If the help lists no values, the known values of all versions count. ``nccl`` always passes,
    because there is a substitute. `start` begins the message for an nsys that lists values.
    """
    known = listed_values or _KNOWN_TRACE
    unknown = [value for value in trace if value not in known and value != "nccl"]
    if not unknown:
        return
    similar = [nearest_name(value, known) if value in unknown else value for value in trace]
    usable = dict.fromkeys(filter(None, similar))
    if not listed_values:
        start = "no nsys knows"
    option = f"--trace {','.join(trace)}"
    problem = f"{start} {', '.join(unknown)}"
    fix = f"--trace {','.join(usable)}" if usable else "leave it out"
    raise OptionError(option, problem, found=", ".join(known), fix=fix)


def n_gpus() -> int | None:
    """Return the number of GPUs that programs see on this machine; None if it is not known."""
    program = shutil.which("nvidia-smi")
    output = ask([program, "-L"], _ANSWER_S) if program else None
    if output is None or output.status != 0:
        return None if _DRIVER.exists() else 0
    n_installed = len(_GPU_LINE.findall(output.text))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return n_installed
    n_visible = 0
    for device in visible.split(","):
        # CUDA does not see what follows a wrong device, such as -1.
        if not device or device.startswith("-"):
            break
        n_visible += 1
    return min(n_installed, n_visible)


def _missing_program(options: argparse.Namespace) -> Iterator[InputError]:
    """Yield an error if there is no such file, or no module that ``python3 -m`` would run.

    Nothing of the module is imported.
    """
    if not options.module:
        if not Path(options.program).is_file():
            yield InputError(options.program, "no such training program", fix="--program FILE")
        return
    name, *submodules = options.module.split(".")
    module_path = options.module_path.split(os.pathsep)
    spec = PathFinder.find_spec(name, module_path) or importlib.util.find_spec(name)
    while spec is not None and (submodules or spec.submodule_search_locations is not None):
        places = list(spec.submodule_search_locations or ())
        if not all(Path(place).is_dir() for place in places):
            # An archive, or a package with a finder of its own. Python will report a problem.
            return
        # Of a package, ``python3 -m`` runs __main__.
        spec = PathFinder.find_spec(submodules.pop(0) if submodules else "__main__", places)
    if spec is None:
        fix = (
            "pass a name that python3 -m accepts, from its directory or with PYTHONPATH. A package "
            "needs a __main__"
        )
        yield InputError(f"-m {options.module}", "no such training program", fix=fix)


def _missing(options: argparse.Namespace, n_gpus_here: int | None) -> Iterator[NsyspipeError]:
    """Yield an error for each thing that the job needs and that is missing, but for nsys."""
    yield from _missing_program(options)
    if not options.no_profile:
        yield from _unwritable_place(options.name)
    if importlib.util.find_spec("torch") is None:
        problem = "has no torch, which the training program and torchrun need"
        fix = "activate the environment that trains, or name its Python: PYTHON=/path/to/python3"
        yield CaptureError(sys.executable, problem, fix=fix)
    if n_gpus_here is not None and n_gpus_here < options.nproc:
        yield _too_few_gpus(options, n_gpus_here)
    # On CPUs, a capture begins with a range of nvtx. A torch with CUDA makes ranges itself.
    begins_by_range = options.cpu and options.capture_range == "nvtx" and not options.no_profile
    if begins_by_range and torch_versions()[1] is None:
        yield from _missing_nvtx(options)


def _unwritable_place(name: Path) -> Iterator[OutputError]:
    """Yield an error if no reports of that name can be written."""
    directory = next(parent for parent in name.absolute().parents if parent.exists())
    if not (directory.is_dir() and os.access(directory, os.W_OK)):
        problem = f"reports cannot be written below {directory}"
        yield OutputError(str(name), problem, fix="-o NAME")


def _too_few_gpus(options: argparse.Namespace, n_gpus_here: int) -> CaptureError:
    if n_gpus_here == 0:
        gpus = "no GPU"
        fix = "a machine with GPUs, or what hosts do: --cpu (the sample model is a small one then)"
    else:
        gpus = f"{n_gpus_here} GPUs" if n_gpus_here > 1 else f"{n_gpus_here} GPU"
        fix = f"-n {n_gpus_here}"
    if options.dry_run:
        fix = "you need them only on the machine that captures, not for --dry-run"
    problem = f"this machine has {gpus} for them"
    return CaptureError(_ranks_text(options.nproc), problem, fix=fix)


def _ranks_text(n_ranks: int) -> str:
    return f"{n_ranks} ranks" if n_ranks > 1 else f"{n_ranks} rank"


def _missing_nvtx(options: argparse.Namespace) -> Iterator[CaptureError]:
    """Yield an error if nvtx is not installed, or if its ranges do not reach nsys."""
    if importlib.util.find_spec("nvtx") is None:
        problem = "has no nvtx, through which a capture begins where torch has no CUDA"
        yield CaptureError(sys.executable, problem, fix=_GET_NVTX)
        return
    # The errors of nsys itself come with the next check.
    with contextlib.suppress(NsyspipeError):
        nvtx_version = installed("nvtx")
        nsys_version = nsys.find(options.nsys).version_text
        if nvtx_version is not None and not ranges_reach(nsys_version, nvtx_version):
            problem = f"its ranges do not reach nsys {nsys_version}: no capture would begin"
            fix = f"{_GET_NVTX}, or name a newer nsys: --nsys PROGRAM"
            yield CaptureError(f"nvtx {nvtx_version}", problem, fix=fix)


if __name__ == "__main__":
    sys.exit(main())
