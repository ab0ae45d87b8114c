"""What a launcher asks for: one job on this node, all that it needs, the files that belong to it, and room for them.

``python3 -m nsyspipe.capture.plan`` looks before a capture, and prints the path of nsys, the trace
values, and how CUDA graphs are traced, a line each. Exit status 2 if something is missing; a dry
run says all that is missing.
"""

import argparse
import contextlib
import errno
import importlib.util
import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace

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
_REPORT = re.compile(
    r"_(node)?([0-9]{1,9})\.(?:nsys-rep|sqlite|qdstrm)"
)  # what follows a job's name in its files
_FACTS = (".capture.json", ".topo.txt")
_FACT_OF_NODE = re.compile(r"\.(node)([0-9]{1,9})\.(?:capture\.json|topo\.txt)")
_LOG = re.compile(r"\.nccl\..+\.log", re.DOTALL)
# What --trace takes, for an nsys whose help lists nothing: what 2024.2 lists, and what others do,
# newer or of other systems.
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
# for a program that has said that its loop is over
LINGER_S = 120.0
_MOST_NAMED = 3


@dataclass(frozen=True)
class Job:
    """One job, as far as this node runs it."""

    name: Path  # that all its files begin with
    command: tuple[str, ...]  # torchrun and nsys included
    program: str  # what to call the training program in messages
    n_local: int  # ranks on each node
    node_rank: int
    n_nodes: int
    chosen: frozenset[int] | None  # ranks to capture, of all nodes; None for all of them
    rendezvous: str  # static where a node's ranks follow from its number; any other deals them out
    is_node_wide: bool  # one report for all ranks of a node
    nsys: str | None  # None to run without a capture
    trace: tuple[str, ...]
    capture_range: str
    attach_steps: (
        str | None
    )  # A:B where the program is captured unchanged; None where it begins its capture itself
    # limits for the whole job, for nsys once the program has ended, and for any program once its
    # reports are whole; 0 for none, but nsys always has one; None where nobody has asked for the
    # last
    timeout_s: float
    exit_timeout_s: float
    linger_s: float | None
    is_exported: bool
    is_forced: bool

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.n_nodes * self.n_local

    @property
    def local_ranks(self) -> range | None:
        """The ranks of this node; None while nobody knows."""
        if self.rendezvous != "static":
            return None
        return range(self.node_rank * self.n_local, (self.node_rank + 1) * self.n_local)

    def expected(self, started: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks of this node that are to be captured, given those that have started."""
        if self.nsys is None:
            return ()
        return tuple(
            local_rank
            for local_rank in self.local_ranks or started
            if self.chosen is None or local_rank in self.chosen
        )

    def beside(self, ending: str) -> Path:
        """Return a file of this job."""
        return self.name.with_name(self.name.name + ending)


def earlier_files(job: Job) -> list[Path]:
    """Return what an earlier capture of the same name has left, of several nodes what this node would write.

    Node 0 answers for ranks and nodes that this job has not, and each node for all where nobody
    knows its ranks yet.
    """
    files = (path for path in job.name.parent.iterdir() if path.name.startswith(job.name.name))
    return sorted(path for path in files if _belongs(job, path.name.removeprefix(job.name.name)))


def _belongs(job: Job, ending: str) -> bool:
    """Tell by what follows the job's name: a file of a rank or node must be this node's, or of none of this job."""
    if _LOG.fullmatch(ending):
        return job.n_nodes == 1
    if ending in _FACTS:
        return job.node_rank == 0  # of one node
    report = _REPORT.fullmatch(ending)
    if report and not report[1]:
        number = int(report[2])
        mine = job.local_ranks
        n_of_job = job.world_size
    elif node := report or _FACT_OF_NODE.fullmatch(ending):
        number = int(node[2])
        mine = range(job.node_rank, job.node_rank + 1)
        n_of_job = job.n_nodes
    else:
        return False
    return (
        job.n_nodes == 1
        or mine is None
        or number in mine
        or (job.node_rank == 0 and number >= n_of_job)
    )


def parse_job(words: Sequence[str]) -> Job:
    """Read the words that a launcher passes; what follows ``--`` is the command."""
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
    parser.add_argument(
        "--trace", type=lambda text: tuple(text.split(",")) if text else (), default=()
    )
    parser.add_argument("--capture-range", default="none")
    parser.add_argument("--attach-steps")
    parser.add_argument("--timeout", dest="timeout_s", type=float, default=0)
    parser.add_argument("--exit-timeout", dest="exit_timeout_s", type=float, default=0)
    parser.add_argument("--linger", dest="linger_s", type=float)
    parser.add_argument("--no-export", dest="is_exported", action="store_false")
    parser.add_argument("--force", dest="is_forced", action="store_true")
    at = list(words).index("--")
    return Job(**vars(parser.parse_args(words[:at])), command=tuple(words[at + 1 :]))


@contextlib.contextmanager
def room_for(job: Job) -> Iterator[SimpleNamespace]:
    """Make room for a job's files while it runs: an earlier capture is refused (OutputError), or with --force set aside.

    It is removed at the end if what is yielded `has_begun`, else put back. Logs of NCCL are no
    capture: they are not refused. Directories that were made for it go again, if nothing is in
    them.
    """
    aside = job.name.with_name(f".{job.name.name}.earlier-{os.getpid()}")
    made = [folder for folder in job.name.parents if not folder.exists()]
    room = SimpleNamespace(has_begun=False)
    try:
        if job.nsys is not None:
            _set_aside(job, aside)
        yield room
    finally:
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()
        with contextlib.suppress(
            OSError
        ):  # nothing was set aside; what cannot be put back stays where it is
            for path in sorted(aside.iterdir()):
                place = job.name.with_name(path.name)
                if not room.has_begun and not place.exists():
                    path.rename(place)
            shutil.rmtree(aside)


def _set_aside(job: Job, aside: Path) -> None:
    try:
        job.name.parent.mkdir(parents=True, exist_ok=True)
        there = earlier_files(job)
        names = [
            path.name for path in there if not _LOG.fullmatch(path.name.removeprefix(job.name.name))
        ]
        if names and not job.is_forced:
            more = f", … {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            found = ", ".join(names[:_MOST_NAMED]) + more
            fix = "-o ANOTHER_NAME, or --force to replace it"
            raise OutputError(
                str(job.name), "an earlier capture of this name is there", found=found, fix=fix
            )
        earlier = there if job.is_forced else []
        wrong = next((path for path in earlier if path.is_dir() and not path.is_symlink()), None)
        if wrong:
            raise IsADirectoryError(errno.EISDIR, f"{wrong.name} is a directory")
        for path in earlier:
            aside.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another node was first
                path.rename(aside / path.name)
    except OSError as error:
        raise OutputError(
            str(job.name), f"reports cannot be written there: {error.strerror}", fix="-o NAME"
        ) from error


def main(words: Sequence[str] | None = None) -> int:
    """Check, and print what the launcher needs; for a dry run what is missing is only said."""
    parser = argparse.ArgumentParser(prog="nsyspipe.capture.plan")
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--program", required=True)
    parser.add_argument("--world-size", type=int)
    for text in ("--module", "--module-path", "--ranks", "--capture-range", "--nsys"):
        parser.add_argument(text)
    parser.add_argument("--trace", default="cuda,nvtx,nccl,osrt")
    parser.add_argument("--cuda-graph-trace", choices=("node", "graph"), default="node")
    parser.add_argument("--name", type=Path, default=Path("run"))
    for switch in ("--cpu", "--no-profile", "--dry-run", "--count-gpus", "--is-counted"):
        parser.add_argument(switch, action="store_true")
    options = parser.parse_args(words)
    if options.count_gpus:
        print(n_gpus() or 1)  # noqa: T201
        return 0
    try:
        chosen = (
            parse_ranks(options.ranks)
            if options.ranks is not None and not options.no_profile
            else ()
        )
        # Of ranks that a job does not have nothing would be captured, and nobody would know why.
        n_ranks = options.world_size or options.nproc
        unknown = {one for one in chosen if one >= n_ranks}
        if unknown:
            each = f", {options.nproc} on each node" if n_ranks > options.nproc else ""
            fix = f"ranks of 0-{n_ranks - 1}{each}" if n_ranks > 1 else "leave it out"
            problem = f"there is no rank {min(unknown)}: this job's are 0 to {n_ranks - 1}"
            return _refused(OptionError("--ranks", problem, fix=fix))
    except OptionError as error:
        return _refused(error)
    there = None if options.cpu else n_gpus()
    if there is not None and there > options.nproc and not options.is_counted:
        used = f"{options.nproc} rank{'s' * (options.nproc > 1)}"
        print(  # noqa: T201
            f"note: {used}, where {there} GPUs are: -n {there} takes all of them", file=sys.stderr
        )
    statuses = [_refused(missing, is_noted=options.dry_run) for missing in _missing(options, there)]
    return max(
        [*statuses, 0 if options.no_profile else _tell_nsys(options, is_refused=any(statuses))]
    )


def _refused(error: NsyspipeError, *, is_noted: bool = False) -> int:
    print("note: " if is_noted else "error: ", "\n".join(error.lines()), sep="", file=sys.stderr)  # noqa: T201
    return 0 if is_noted else error.exit_code


def _tell_nsys(options: argparse.Namespace, *, is_refused: bool) -> int:
    trace = options.trace.split(",")
    # Without CUDA there are no graphs, and nsys would complain of the option.
    graphs = options.cuda_graph_trace if any(one.startswith("cuda") for one in trace) else ""
    try:
        found = nsys.find(options.nsys, or_else=", or --nsys PROGRAM, or NSYS=PROGRAM")
        trace, graphs, notes = usable_tracing(found, trace, graphs)
        for note in () if is_refused else notes:
            print(note, file=sys.stderr)  # noqa: T201
        name = str(found.path)
    except NsyspipeError as error:
        status = _refused(error, is_noted=options.dry_run)
        if status:
            return status
        if isinstance(error, CaptureError):  # nobody has looked at them
            try:
                _check_trace(trace, ())
            except OptionError as wrong:
                _refused(wrong, is_noted=True)
        there = nsys.find_nsys()
        name = options.nsys or (str(there.path) if there else "nsys")
    print(f"{name}\n{','.join(trace)}\n{graphs}")  # noqa: T201
    return 0


def usable_tracing(
    found: Nsys, trace: Sequence[str], graphs: str
) -> tuple[list[str], str, list[str]]:
    """Return what this nsys takes of trace values and for CUDA graphs (empty: its own way), and notes; OptionError without a substitute."""
    known = found.trace_values()
    says = f"nsys {found.version_text} does not know"
    notes = []
    _check_trace(trace, known, says)
    if "nccl" in trace and (
        "nccl" not in known if known else numbers(found.version_text)[:2] < _FIRST_WITH_NCCL
    ):
        trace = list(dict.fromkeys([*(value for value in trace if value != "nccl"), "nvtx"]))
        notes.append(f"note: {says} --trace=nccl (2025.6 does), so nvtx records the ranges of NCCL")
    if graphs and not found.has("profile", "--cuda-graph-trace"):
        notes.append(
            f"note: {says} --cuda-graph-trace={graphs}: CUDA graphs are traced in its own way"
        )
        graphs = ""
    return [*trace], graphs, notes


def _check_trace(trace: Sequence[str], known: Sequence[str], says: str = "no nsys knows") -> None:
    """Refuse values that an nsys does not list, where it lists any, else those that no nsys knows; for nccl there is another."""
    others = [value for value in trace if value not in (*(known or _KNOWN_TRACE), "nccl")]
    if others:
        meant = [
            nearest_name(value, known or _KNOWN_TRACE) if value in others else value
            for value in trace
        ]
        fix = (
            f"--trace {','.join(dict.fromkeys(filter(None, meant)))}"
            if any(meant)
            else "leave it out"
        )
        problem = f"{says if known else 'no nsys knows'} {', '.join(others)}"
        raise OptionError(
            f"--trace {','.join(trace)}", problem, found=", ".join(known or _KNOWN_TRACE), fix=fix
        )


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
    return min(
        there, len(list(itertools.takewhile(lambda one: one and one[0] != "-", visible.split(","))))
    )


def _missing_program(options: argparse.Namespace) -> Iterator[InputError]:
    """Yield that there is no such file, or no module that ``python3 -m`` would run; nothing of it is imported."""
    if not options.module:
        if not Path(options.program).is_file():
            yield InputError(options.program, "no such training program", fix="--program FILE")
        return
    name, *below = options.module.split(".")
    spec = PathFinder.find_spec(
        name, options.module_path.split(os.pathsep)
    ) or importlib.util.find_spec(name)
    while spec is not None and (below or spec.submodule_search_locations is not None):
        places = list(spec.submodule_search_locations or ())
        if not all(
            map(os.path.isdir, places)
        ):  # an archive, or a finder of its own: Python will tell
            return
        spec = PathFinder.find_spec(below.pop(0) if below else "__main__", places)
    if spec is None:
        fix = (
            "pass a name that python3 -m accepts, from its directory or with PYTHONPATH. A package "
            "needs a __main__"
        )
        yield InputError(f"-m {options.module}", "no such training program", fix=fix)


def _missing(options: argparse.Namespace, there: int | None) -> Iterator[NsyspipeError]:
    yield from _missing_program(options)
    folder = next(parent for parent in options.name.absolute().parents if parent.exists())
    if not (options.no_profile or (folder.is_dir() and os.access(folder, os.W_OK))):
        yield OutputError(
            str(options.name), f"reports cannot be written below {folder}", fix="-o NAME"
        )
    if importlib.util.find_spec("torch") is None:
        fix = "activate the environment that trains, or name its Python: PYTHON=/path/to/python3"
        yield CaptureError(
            sys.executable, "has no torch, which the training program and torchrun need", fix=fix
        )
    if there is not None and there < options.nproc:
        what = "no GPU" if there == 0 else f"{there} GPU{'s' * (there > 1)}"
        fix = (
            f"-n {there}"
            if there
            else (
                "a machine with GPUs, or what hosts do: --cpu (the sample model is a small one "
                "then)"
            )
        )
        if options.dry_run:
            fix = "you need them only on the machine that captures, not for --dry-run"
        ranks = f"{options.nproc} rank{'s' * (options.nproc > 1)}"
        yield CaptureError(ranks, f"this machine has {what} for them", fix=fix)
    # On CPUs a capture begins with a range, which something must make; a torch with CUDA makes
    # ranges itself.
    begins_by_range = options.cpu and options.capture_range == "nvtx" and not options.no_profile
    if not begins_by_range or torch_versions()[1] is not None:
        return
    if importlib.util.find_spec("nvtx") is None:
        problem = "has no nvtx, through which a capture begins where torch has no CUDA"
        yield CaptureError(sys.executable, problem, fix=_GET_NVTX)
        return
    with contextlib.suppress(NsyspipeError):  # what is wrong with nsys is said next
        version = installed("nvtx")
        found = nsys.find(options.nsys)
        if version is not None and not ranges_reach(found.version_text, version):
            problem = f"its ranges do not reach nsys {found.version_text}: no capture would begin"
            yield CaptureError(
                f"nvtx {version}", problem, fix=f"{_GET_NVTX}, or name a newer nsys: --nsys PROGRAM"
            )


if __name__ == "__main__":
    sys.exit(main())
