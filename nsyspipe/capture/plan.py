"""What a launcher asks for: one job on this node, what it needs, and its files.

``python3 -m nsyspipe.capture.plan`` checks this before a capture. It prints the path of nsys, the
trace values, how CUDA graphs are traced, the options that sample Python, and the option that counts
on GPUs, each on a line. The exit status is 2 if something is missing. A dry run prints everything
that is missing.
"""

import argparse
import contextlib
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
_REPORT = re.compile(r"_(?P<node>node)?(?P<number>[0-9]{1,9})\.(?:nsys-rep|sqlite|qdstrm)")
_FACTS = (".capture.json", ".topo.txt")
_FACT_OF_NODE = re.compile(r"\.(?P<node>node)(?P<number>[0-9]{1,9})\.(?:capture\.json|topo\.txt)")
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
_NO_NSYS_KNOWS = "no nsys knows"
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
        """Return the ranks of this node to capture, in order; none without nsys.

        `started` are the ranks that have started here. They are those of this node if the
        rendezvous assigns ranks, because then no rank is known before it starts.
        """
        if self.nsys is None:
            return ()
        ranks = started if self.local_ranks is None else self.local_ranks
        if self.chosen is None:
            return tuple(ranks)
        return tuple(rank for rank in ranks if rank in self.chosen)

    def beside(self, ending: str) -> Path:
        """Return the path of a file of this job by the end of its name."""
        return self.name.with_name(self.name.name + ending)


def earlier_files(job: Job) -> list[Path]:
    """Return the sorted files of an earlier capture of the same name, as far as they concern us.

    With one node, these are all files. With several nodes, each node is responsible for the files
    that it would write, and node 0 also for those of ranks and nodes that this job does not have.
    If the ranks of a node are not known yet, the node is responsible for the files of all ranks.
    """
    files = []
    for path in job.name.parent.iterdir():
        is_of_job = path.name.startswith(job.name.name)
        if is_of_job and _is_responsible_for(job, _ending_of(job, path)):
            files.append(path)
    return sorted(files)


def _ending_of(job: Job, file: Path) -> str:
    """Return what follows the job's name in the name of a file."""
    return file.name.removeprefix(job.name.name)


def _is_responsible_for(job: Job, ending: str) -> bool:
    """Tell whether this node is responsible for the file with this ending after the job's name.

    No node is responsible for a file that is not of a capture.
    """
    if _LOG.fullmatch(ending):
        # A log has the names of its host and process, so several nodes cannot tell whose it is.
        return job.n_nodes == 1
    if ending in _FACTS:
        # A job of one node has written this file, because its name has no number of a node.
        return job.node_rank == 0
    numbered_file = _REPORT.fullmatch(ending) or _FACT_OF_NODE.fullmatch(ending)
    if numbered_file is None:
        return False
    number = int(numbered_file["number"])
    # The number is that of a node, or that of a rank.
    if numbered_file["node"] is not None:
        is_of_this_node = number == job.node_rank
        is_in_job = number < job.n_nodes
    else:
        is_of_this_node = job.local_ranks is None or number in job.local_ranks
        is_in_job = number < job.world_size
    if job.n_nodes == 1 or is_of_this_node:
        return True
    return job.node_rank == 0 and not is_in_job


def _trace_values(text: str) -> tuple[str, ...]:
    """Return the values of a list with commas; none for an empty text."""
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
    command = tuple(words[n_options + 1 :])
    # Each option has the name of its field in `Job`.
    return Job(**vars(options), command=command)


@contextlib.contextmanager
def room_for(job: Job) -> Iterator[SimpleNamespace]:
    """Make room for the files of a job while it runs.

    Without --force, an earlier capture of the same name is an OutputError. Logs of NCCL are no
    capture, so they are no error. With --force, the earlier files are set aside. At the end they
    are removed if the caller has set `has_begun` of the yielded object. Otherwise they are put
    back. A file whose name is taken by then stays aside. Directories that are made here are removed
    again if they stay empty.
    """
    name_aside = f".{job.name.name}.earlier-{os.getpid()}"
    aside = job.name.with_name(name_aside)
    # The innermost directory comes first, so it is also removed first.
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
        # If nothing was set aside, the directory does not exist, and the OSError ends the block.
        with contextlib.suppress(OSError):
            if room.has_begun:
                shutil.rmtree(aside)
            else:
                _put_back(job, aside)


def _put_back(job: Job, aside: Path) -> None:
    """Move the earlier files back. A file whose name is taken stays aside, and so the directory."""
    for path in sorted(aside.iterdir()):
        original_path = job.name.with_name(path.name)
        if not original_path.exists():
            path.rename(original_path)
    aside.rmdir()


def _set_aside(job: Job, aside: Path) -> None:
    """With --force, move the earlier files that this node is responsible for to `aside`.

    Without --force, nothing is moved. Then files of an earlier capture are an error.

    Raises
    ------
    OutputError
        If there is an earlier capture and no --force, or if files cannot be written or moved there.
    """
    try:
        job.name.parent.mkdir(parents=True, exist_ok=True)
        earlier = earlier_files(job)
        if not job.is_forced:
            _refuse_earlier_capture(job, earlier)
            return
        for path in earlier:
            if path.is_dir() and not path.is_symlink():
                raise _unwritable(job, f"{path.name} is a directory")
        for path in earlier:
            aside.mkdir(exist_ok=True)
            # Another node may have moved the file before.
            with contextlib.suppress(FileNotFoundError):
                path.rename(aside / path.name)
    except OSError as error:
        raise _unwritable(job, error.strerror) from error


def _unwritable(job: Job, reason: str | None) -> OutputError:
    """Return the error for a place where the files of a job cannot be written."""
    problem = f"reports cannot be written there: {reason}"
    return OutputError(str(job.name), problem, fix="-o NAME")


def _refuse_earlier_capture(job: Job, earlier: Sequence[Path]) -> None:
    """Raise an OutputError if there are files of an earlier capture, other than logs of NCCL."""
    names = [path.name for path in earlier if not _LOG.fullmatch(_ending_of(job, path))]
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
    for option in ("--module", "--module-path", "--ranks", "--capture-range", "--nsys"):
        parser.add_argument(option)
    parser.add_argument("--trace", default="cuda,nvtx,nccl,osrt")
    parser.add_argument("--cuda-graph-trace", choices=("node", "graph"), default="node")
    parser.add_argument("--name", type=Path, default=Path("run"))
    for switch in _SWITCHES:
        parser.add_argument(switch, action="store_true")
    options = parser.parse_args(words)
    if options.count_gpus:
        # One rank runs without a GPU too, or if their number is not known.
        print(n_gpus() or 1)  # noqa: T201
        return 0
    try:
        _check_ranks(options)
    except OptionError as error:
        return _print_error(error)
    # None if the number of GPUs does not matter, or is not known.
    n_gpus_here = None if options.cpu else n_gpus()
    has_spare_gpus = n_gpus_here is not None and n_gpus_here > options.nproc
    # --is-counted: the launcher chose the number of ranks by the number of GPUs.
    if has_spare_gpus and not options.is_counted:
        ranks = _ranks_text(options.nproc)
        note = f"note: {ranks}, where {n_gpus_here} GPUs are: -n {n_gpus_here} takes all of them"
        print(note, file=sys.stderr)  # noqa: T201
    errors = _missing(options, n_gpus_here)
    exit_statuses = [_print_error(error, is_noted=options.dry_run) for error in errors]
    if not options.no_profile:
        exit_statuses.append(_print_nsys(options, is_refused=any(exit_statuses)))
    return max(exit_statuses, default=0)


def _check_ranks(options: argparse.Namespace) -> None:
    """Raise an OptionError for ranks that the job does not have.

    Without this error, nothing would be captured, and no message would say why.
    """
    if options.ranks is None or options.no_profile:
        return
    # A job of one node has no --world-size.
    n_ranks = options.world_size or options.nproc
    unknown = [rank for rank in parse_ranks(options.ranks) if rank >= n_ranks]
    if not unknown:
        return
    last_rank = n_ranks - 1
    has_several_nodes = n_ranks > options.nproc
    if has_several_nodes:
        fix = f"ranks of 0-{last_rank}, {options.nproc} on each node"
    elif n_ranks > 1:
        fix = f"ranks of 0-{last_rank}"
    else:
        fix = "leave it out"
    problem = f"there is no rank {min(unknown)}: this job's are 0 to {last_rank}"
    raise OptionError("--ranks", problem, fix=fix)


def _print_error(error: NsyspipeError, *, is_noted: bool = False) -> int:
    """Print an error, and return its exit status.

    If `is_noted`, the error is printed as a note, and the exit status is 0.
    """
    kind = "note" if is_noted else "error"
    text = "\n".join(error.lines())
    print(f"{kind}: {text}", file=sys.stderr)  # noqa: T201
    return 0 if is_noted else error.exit_code


def _print_nsys(options: argparse.Namespace, *, is_refused: bool) -> int:
    """Print nsys and its options, one a line, and return the exit status.

    If this nsys cannot be used, only its error is printed. In a dry run the error is a note, and
    the options that were asked for are printed. If the job is refused already, there are no notes
    about substitutes.
    """
    asked_trace = options.trace.split(",")
    # Without CUDA there are no graphs, and nsys would complain about the option.
    has_cuda = any(value.startswith("cuda") for value in asked_trace)
    graphs = options.cuda_graph_trace if has_cuda else ""
    # A dry run prints what was asked for, if this nsys cannot be used.
    tracing = Tracing(asked_trace, graphs, [])
    asked_counting_option = default_counting_option() if options.gpu_metrics else ""
    further = _FurtherOptions("", asked_counting_option, [])
    try:
        tool = nsys.find(options.nsys, or_else=", or --nsys PROGRAM, or NSYS=PROGRAM")
        tracing = usable_tracing(tool, asked_trace, graphs)
        further = _further_options(tool, options)
    except NsyspipeError as error:
        exit_status = _print_error(error, is_noted=options.dry_run)
        if not options.dry_run:
            return exit_status
        if isinstance(error, CaptureError):
            _note_unknown_trace(asked_trace)
        program = _nsys_of_dry_run(options)
    else:
        program = str(tool.path)
        if not is_refused:
            for note in (*tracing.notes, *further.notes):
                print(note, file=sys.stderr)  # noqa: T201
    trace = ",".join(tracing.trace)
    lines = [program, trace, tracing.graphs, further.python_options, further.counting_option]
    print("\n".join(lines))  # noqa: T201
    return 0


def _note_unknown_trace(trace: Sequence[str]) -> None:
    """Print a note about trace values that no nsys knows, because no nsys has checked them."""
    try:
        _check_trace(trace, known=_KNOWN_TRACE, problem_start=_NO_NSYS_KNOWS)
    except OptionError as error:
        _print_error(error, is_noted=True)


def _nsys_of_dry_run(options: argparse.Namespace) -> str:
    """Return the nsys to print if it cannot be used here: that of --nsys, or an installed one."""
    if options.nsys:
        return str(options.nsys)
    installed_nsys = nsys.find_nsys()
    return "nsys" if installed_nsys is None else str(installed_nsys.path)


class _FurtherOptions(NamedTuple):
    """The options by which nsys records more than its traces. Each is empty if it is not used."""

    # Those that sample Python, separated by spaces.
    python_options: str
    # The one that counts on GPUs.
    counting_option: str
    notes: list[str]


def _further_options(tool: Nsys, options: argparse.Namespace) -> _FurtherOptions:
    """Return the further options that were asked for and that this nsys has, and notes.

    The option that counts on GPUs may not work on this machine. In a dry run, this is a printed
    note and not an error, because another machine may capture.
    """
    notes = []
    python_options = ""
    if options.python:
        sampling = python_sampling(tool)
        python_options = " ".join(sampling.options)
        if sampling.note is not None:
            notes.append(sampling.note)
    option_that_counts = ""
    if options.gpu_metrics:
        try:
            option_that_counts = counting_option(tool)
        except CaptureError as error:
            if not options.dry_run:
                raise
            _print_error(error, is_noted=True)
            option_that_counts = default_counting_option()
    return _FurtherOptions(python_options, option_that_counts, notes)


class Tracing(NamedTuple):
    """What an nsys traces."""

    trace: list[str]
    # The value of --cuda-graph-trace. Empty if nsys does not have the option.
    graphs: str
    notes: list[str]


def usable_tracing(tool: Nsys, trace: Sequence[str], graphs: str) -> Tracing:
    """Return how this nsys traces what was asked for, with a note about each substitute.

    Raises
    ------
    OptionError
        If this nsys does not know a trace value that has no substitute.
    """
    listed_values = tool.trace_values()
    does_not_know = f"nsys {tool.version_text} does not know"
    notes = []
    usable_trace = list(trace)
    if listed_values:
        _check_trace(trace, known=listed_values, problem_start=does_not_know)
    else:
        # The help of this nsys lists no values, so the values of all versions count.
        _check_trace(trace, known=_KNOWN_TRACE, problem_start=_NO_NSYS_KNOWS)
    if "nccl" in trace and not _traces_nccl(tool, listed_values):
        without_nccl = [value for value in trace if value != "nccl"]
        # A dict keeps the order, and has nvtx only once.
        usable_trace = list(dict.fromkeys([*without_nccl, "nvtx"]))
        note = (
            f"note: {does_not_know} --trace=nccl (2025.6 does), so nvtx records the ranges of NCCL"
        )
        notes.append(note)
    if graphs and not tool.has("profile", "--cuda-graph-trace"):
        option = f"--cuda-graph-trace={graphs}"
        note = f"note: {does_not_know} {option}: CUDA graphs are traced in its own way"
        notes.append(note)
        graphs = ""
    return Tracing(usable_trace, graphs, notes)


def _traces_nccl(tool: Nsys, listed_values: Sequence[str]) -> bool:
    """Tell whether an nsys traces NCCL: by the values in its help, or by its version."""
    if listed_values:
        return "nccl" in listed_values
    major_and_minor = numbers(tool.version_text)[:2]
    return major_and_minor >= _FIRST_WITH_NCCL


def _check_trace(trace: Sequence[str], *, known: Sequence[str], problem_start: str) -> None:
    """Raise an OptionError if some trace values are not known.

    ``nccl`` always passes, because there is a substitute. The message is `problem_start`, followed
    by the unknown values.
    """
    unknown = [value for value in trace if value not in known and value != "nccl"]
    if not unknown:
        return
    # The fix keeps the known values. It replaces an unknown value by the most similar known one,
    # or leaves the value out if nothing is similar.
    corrected = [nearest_name(value, known) if value in unknown else value for value in trace]
    usable = dict.fromkeys(filter(None, corrected))
    option = f"--trace {','.join(trace)}"
    problem = f"{problem_start} {', '.join(unknown)}"
    fix = f"--trace {','.join(usable)}" if usable else "leave it out"
    raise OptionError(option, problem, found=", ".join(known), fix=fix)


def n_gpus() -> int | None:
    """Return the number of GPUs that programs see on this machine; None if it is not known."""
    program = shutil.which("nvidia-smi")
    output = ask([program, "-L"], _ANSWER_S) if program else None
    if output is None or output.status != 0:
        # Nobody counts the GPUs of a driver without nvidia-smi.
        return None if _DRIVER.exists() else 0
    n_installed = len(_GPU_LINE.findall(output.text))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return n_installed
    n_visible = 0
    for device in visible.split(","):
        # CUDA ignores a device that does not exist, such as -1, and all devices after it.
        if not device or device.startswith("-"):
            break
        n_visible += 1
    return min(n_installed, n_visible)


def _missing_program(options: argparse.Namespace) -> Iterator[InputError]:
    """Yield an error if the file of the program, or the module for ``python3 -m``, is missing.

    Nothing of the module is imported.
    """
    if not options.module:
        if not Path(options.program).is_file():
            yield InputError(options.program, "no such training program", fix="--program FILE")
        return
    name, *submodules = options.module.split(".")
    module_path = options.module_path.split(os.pathsep)
    spec = PathFinder.find_spec(name, module_path) or importlib.util.find_spec(name)
    # Each turn goes from a package to the next name in it. A name that is not found ends the loop
    # with the error.
    while spec is not None:
        is_package = spec.submodule_search_locations is not None
        if not is_package and not submodules:
            # This module is the program.
            return
        # A module that is no package has no directories. So the next name is not found in it.
        directories = list(spec.submodule_search_locations or ())
        if not all(Path(directory).is_dir() for directory in directories):
            # An archive, or a package with a finder of its own. Python will report a problem.
            return
        # If the last name is a package, ``python3 -m`` runs its __main__.
        next_name = submodules.pop(0) if submodules else "__main__"
        spec = PathFinder.find_spec(next_name, directories)
    fix = (
        "pass a name that python3 -m accepts, from its directory or with PYTHONPATH. A package "
        "needs a __main__"
    )
    yield InputError(f"-m {options.module}", "no such training program", fix=fix)


def _missing(options: argparse.Namespace, n_gpus_here: int | None) -> Iterator[NsyspipeError]:
    """Yield an error for each missing thing that the job needs. Nsys is checked elsewhere.

    `n_gpus_here` is None if the number of GPUs does not matter, or is not known.
    """
    yield from _missing_program(options)
    if not options.no_profile:
        yield from _unwritable_place(options.name)
    if importlib.util.find_spec("torch") is None:
        problem = "has no torch, which the training program and torchrun need"
        fix = "activate the environment that trains, or name its Python: PYTHON=/path/to/python3"
        yield CaptureError(sys.executable, problem, fix=fix)
    if n_gpus_here is not None and n_gpus_here < options.nproc:
        yield _too_few_gpus(options, n_gpus_here)
    # On CPUs, a capture begins with an NVTX range.
    begins_by_range = options.cpu and options.capture_range == "nvtx" and not options.no_profile
    if begins_by_range:
        _, cuda_version = torch_versions()
        # A torch with CUDA makes ranges without the package nvtx.
        if cuda_version is None:
            yield from _unusable_nvtx(options)


def _unwritable_place(name: Path) -> Iterator[OutputError]:
    """Yield an error if no reports of that name can be written.

    Missing directories will be made. So the innermost parent that exists must be writable.
    """
    directory = next(parent for parent in name.absolute().parents if parent.exists())
    if not (directory.is_dir() and os.access(directory, os.W_OK)):
        problem = f"reports cannot be written below {directory}"
        yield OutputError(str(name), problem, fix="-o NAME")


def _too_few_gpus(options: argparse.Namespace, n_gpus_here: int) -> CaptureError:
    """Return the error for more ranks than GPUs. Its fix depends on what the user can change."""
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


def _unusable_nvtx(options: argparse.Namespace) -> Iterator[CaptureError]:
    """Yield an error if the package nvtx is not installed, or if nsys does not see its ranges.

    Call it if torch has no CUDA. Then only nvtx makes the range that begins the capture.
    """
    if importlib.util.find_spec("nvtx") is None:
        problem = "has no nvtx, through which a capture begins where torch has no CUDA"
        yield CaptureError(sys.executable, problem, fix=_GET_NVTX)
        return
    try:
        nsys_version = nsys.find(options.nsys).version_text
    except NsyspipeError:
        # `_print_nsys` reports an nsys that cannot be used.
        return
    nvtx_version = installed("nvtx")
    if nvtx_version is None or ranges_reach(nsys_version, nvtx_version):
        return
    problem = f"its ranges do not reach nsys {nsys_version}: no capture would begin"
    fix = f"{_GET_NVTX}, or name a newer nsys: --nsys PROGRAM"
    yield CaptureError(f"nvtx {nvtx_version}", problem, fix=fix)


if __name__ == "__main__":
    sys.exit(main())
