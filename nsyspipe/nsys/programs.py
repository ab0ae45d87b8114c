"""Runs other programs with a deadline, finds nsys, and finds out what nsys supports.

The versions of torch, NCCL and nvtx are found without importing them.
"""

import contextlib
import gc
import importlib.util
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nsyspipe.errors import NsysFailedError, NsysNotFoundError

ROOT = Path("/")
# Where NVIDIA's, Debian's and the CUDA toolkit's packages put nsys, below the root.
_NSYS_PLACES = (
    "opt/nvidia/nsight-systems*/*/bin/nsys",
    "opt/nvidia/nsight-systems*/bin/nsys",
    "opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Systems/bin/nsys",
    "usr/lib/nsight-systems/bin/nsys",
    "usr/local/cuda*/bin/nsys",
)
# From a directory above nsys; its own package comes first.
_IMPORTER_PLACES = (
    "host-*/QdstrmImporter",
    "nsight-systems-*/host-*/QdstrmImporter",
    "lib/nsight-systems/host-*/QdstrmImporter",
    "usr/lib/nsight-systems/host-*/QdstrmImporter",
    "opt/nvidia/nsight-systems*/*/host-*/QdstrmImporter",
)
_MOST_BYTES = 1 << 20
_CHUNK = 1 << 16
_POLL_S = 0.02
_PROGRAM_S = 3.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_TELLING = re.compile(
    r"(?i)error|fail|unrecogni[sz]ed|unknown|invalid|cannot|not found|denied|no "
    r"space|exception|end of file|lost"
)
_PROGRESS = re.compile(r"\[[= ]*\d+ ?%|^\[\d+/\d+\]")
_CUDA = re.compile(r"""^cuda(?:\s*:[^=\n]*)?\s*=\s*['"]([\d.]+)['"]""", re.MULTILINE)
_VERSION = re.compile(r"""^__version__\s*=\s*['"]([\w.+-]+)['"]""", re.MULTILINE)
_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
# Where containers and distributions keep a library of their own.
_NCCL_LIBRARIES = ("usr/lib/*-linux-gnu/libnccl.so.*.*.*", "usr/lib64/libnccl.so.*.*.*")
# nvtx from PyPI, this version and newer, does not reach nsys up to that one (seen with 2024.2.3).
_NVTX_LOST = (0, 2, 12)
_NSYS_LOSES = (2024, 2)
_LIBRARY_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")
GET_NSYS = "install Nsight Systems (developer.nvidia.com/nsight-systems)"
_ANSWER_S = 60.0  # the first start from a shared file system reads hundreds of megabytes
_NSYS_VERSION = re.compile(r"\bversion (\d+(?:\.\d+)+)")
_TRACE_SENTENCE = re.compile(r"^\s*-t, --trace=\s*([^.]*)\.", re.MULTILINE)
_TRACE_VALUE = re.compile(r"'([a-z][a-z0-9-]*)'")
_OPTION = re.compile(r"^\s*(?:-\w, )?(--[a-z][a-z0-9-]*)", re.MULTILINE)
# Of prctl(2). Processes that outlive those who started them are ended, or adopted.
SET_DEATH_SIGNAL = 1
SET_CHILD_SUBREAPER = 36


class Program(NamedTuple):
    """A program that was found, and the usual place where; None when it is on the search path."""

    path: Path
    place: str | None


class Output(NamedTuple):
    """What a program printed, and its exit status; None when it did not end in time."""

    status: int | None
    text: str


def find_nsys(search_path: str | None = None, root: Path = ROOT) -> Program | None:
    """Return nsys from the search path, else the newest one in the usual places."""
    on_path = shutil.which("nsys", path=search_path)
    if on_path:
        return Program(Path(on_path), None)
    newest = max(_existing(root, _NSYS_PLACES), key=by_number, default=None)
    return None if newest is None else Program(newest, f"/{newest.relative_to(root).as_posix()}")


def find_importer(nsys: Program, root: Path = ROOT) -> Path | None:
    """Return the importer that belongs to an nsys: it turns what is captured into a report."""
    # The name on the search path is often a link into the package.
    homes = dict.fromkeys(
        [*nsys.path.parents[:2], *Path(os.path.realpath(nsys.path)).parents[:2], root]
    )
    return next((found for home in homes for found in _existing(home, _IMPORTER_PLACES)), None)


def _existing(folder: Path, patterns: Iterable[str]) -> list[Path]:
    programs: list[Path] = []
    for pattern in patterns:
        with contextlib.suppress(OSError):  # a directory that may not be read
            programs += [path for path in sorted(folder.glob(pattern)) if os.access(path, os.X_OK)]
    return programs


def by_number(path: Path) -> list[tuple[int, str]]:
    """Return what sorts paths with numbers as numbers: x_2 before x_10."""
    parts = re.split(r"([0-9]+)", str(path))
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts]


def ask(command: Sequence[str], timeout_s: float) -> Output | None:
    """Run a program as `printed` does; None when it cannot be started."""
    with contextlib.suppress(OSError):
        return printed(command, timeout_s)
    return None


def printed(
    command: Sequence[str],
    timeout_s: float,
    *,
    folder: Path | None = None,
    is_stopped: Callable[[], bool] = bool,
) -> Output:
    """Run a program without input and return the last that it printed; OSError when it cannot be started.

    Its process group is ended with it, when time is up, or when `is_stopped` says so; its errors
    are left out, but in a `folder`.
    """
    received = bytearray()
    is_open = True
    errors = subprocess.STDOUT if folder else subprocess.DEVNULL
    # Its own group: Ctrl-C reaches us, and we end it with all that it started.
    with subprocess.Popen(  # noqa: S603 - a list, no shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd=folder,
        start_new_session=True,
    ) as process:
        source = process.stdout
        deadline = time.monotonic() + timeout_s
        assert source is not None  # noqa: S101 - a pipe
        try:
            while time.monotonic() < deadline and not is_stopped():
                has_ended = process.poll() is not None
                if is_open and select.select([source], [], [], 0 if has_ended else _POLL_S)[0]:
                    chunk = os.read(source.fileno(), _CHUNK)
                    is_open = bool(chunk)
                    received += chunk
                    del received[:-_MOST_BYTES]
                elif has_ended:
                    break
                elif not is_open:
                    time.sleep(_POLL_S)
            status = process.poll()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return Output(status, received.decode("utf-8", "replace"))


class Patience:
    """Runs programs, each for a few seconds, until the time for all is over.

    A program that hung is not run again.
    """

    def __init__(self, total_s: float, search_path: str | None) -> None:
        self._deadline = time.monotonic() + total_s
        self._search_path = search_path
        self._hung: set[str] = set()

    def output(self, program: str, *arguments: str) -> Output | None:
        """Return what a program printed; None if it is not on the search path.

        The status is None if no time is left for it.
        """
        left = min(self._deadline - time.monotonic(), _PROGRAM_S)
        if program in self._hung or left <= 0:
            return Output(None, "")
        path = shutil.which(program, path=self._search_path)
        output = ask([path, *arguments], left) if path else None
        if output is not None and output.status is None:
            self._hung.add(program)
        return output

    def answer(self, program: str, *arguments: str) -> str:
        """Return what a program printed if it ended well, else nothing."""
        output = self.output(program, *arguments)
        return output.text if output is not None and output.status == 0 else ""


def telling_lines(text: str, most: int) -> list[str]:
    """Return the last lines about an error, else the last lines, cut and without repetitions."""
    lines = [
        "".join(filter(str.isprintable, _ESCAPES.sub("", one).strip()))
        for one in re.split(r"[\r\n]+", text)
    ]
    lines = [line[:200] for line in lines if line and not _PROGRESS.search(line)]
    return list(dict.fromkeys(([line for line in lines if _TELLING.search(line)] or lines)[-most:]))


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, to compare by: (0, 2, 12) of 0.2.12rc1."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def torch_versions() -> tuple[str | None, str | None]:
    """Return torch's version and that of the CUDA it was built for; None for what is not there."""
    try:
        spec = importlib.util.find_spec("torch")
        text = Path(spec.origin or "").with_name("version.py").read_text("utf-8") if spec else ""
    except (ImportError, OSError, ValueError):
        text = ""
    version = _VERSION.search(text)
    cuda = _CUDA.search(text)
    return version[1] if version else installed("torch"), cuda[1] if cuda else None


def nccl_version(root: Path) -> str | None:
    """Return the version of torch's NCCL, else of the system's library; None without either."""
    version = next(filter(None, map(installed, _NCCL_PACKAGES)), None)
    if version:
        return version
    names = [path.name for pattern in _NCCL_LIBRARIES for path in root.glob(pattern)]
    return max(
        (match[1] for name in names if (match := _LIBRARY_VERSION.search(name))),
        key=numbers,
        default=None,
    )


def ranges_reach(nsys_version: str, nvtx: str) -> bool:
    """Tell whether ranges of a version of the ``nvtx`` package reach a version of nsys."""
    return numbers(nvtx) < _NVTX_LOST or numbers(nsys_version)[:2] > _NSYS_LOSES


def installed(package: str) -> str | None:
    """Return the version of an installed package; None if it is missing or broken."""
    from importlib import metadata  # noqa: PLC0415 - takes longer than all else here, and few ask

    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, KeyError, OSError, ValueError):
        return None


def version_in(text: str) -> str | None:
    """Return the version that ``nsys --version`` printed, as 2024.2.3.38; None when it did not."""
    return match[1] if (match := _NSYS_VERSION.search(text)) else None


def trace_values_in(text: str) -> tuple[str, ...]:
    """Return the values of ``--trace`` that ``nsys profile --help`` lists."""
    sentence = _TRACE_SENTENCE.search(text)
    return tuple(_TRACE_VALUE.findall(sentence[1])) if sentence else ()


@dataclass(frozen=True)
class Nsys:
    """An nsys that answers, and its version as it prints it, for example ``2024.2.3.38``."""

    path: Path
    version_text: str
    _helps: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def trace_values(self) -> tuple[str, ...]:
        """Return what ``nsys profile --trace`` takes; empty when its help does not tell."""
        return trace_values_in(self._help("profile"))

    def has(self, command: str, option: str) -> bool:
        """Tell whether a command of nsys has a long option, for example ``--include-blobs``."""
        return option in _OPTION.findall(self._help(command))

    def _help(self, command: str) -> str:
        if command not in self._helps:
            output = ask([str(self.path), command, "--help"], _ANSWER_S)
            self._helps[command] = output.text if output is not None and output.status == 0 else ""
        return self._helps[command]


def find(program: str | None = None, *, or_else: str = "") -> Nsys:
    """Return the nsys named by a path, directory or name, else that of the search path, else the newest installed.

    NsysNotFoundError if there is none (`or_else` is what helps besides), NsysFailedError if it does
    not answer as nsys does.
    """
    path = _path(program, or_else)
    output = ask([str(path), "--version"], _ANSWER_S)
    if output is None:
        problem = "cannot be started"
    elif (version := version_in(output.text)) is not None:
        return Nsys(path, version)
    elif output.status is None:
        problem = f"did not print its version within {_ANSWER_S:.0f} s"
    elif output.status:
        problem = f"nsys --version failed with status {output.status}"
    else:
        problem = "does not print a version like nsys"
    raise NsysFailedError(
        str(path), problem, fix=f"try {path} --version by hand, name another nsys, or {GET_NSYS}"
    )


def _path(program: str | None, or_else: str) -> Path:
    if program is None:
        program_found = find_nsys()
        if program_found is not None:
            return program_found.path
        fix = f"{GET_NSYS}, or export PATH=DIRECTORY_OF_NSYS:$PATH{or_else}"
        raise NsysNotFoundError("nsys", "is not on PATH, and not in the usual places", fix=fix)
    named = os.path.expanduser(program)  # noqa: PTH111 - a bare name stays one, to be looked up
    path = shutil.which(
        str(Path(named).absolute() / "nsys") if named and Path(named).is_dir() else named
    )
    if path is None:
        raise NsysNotFoundError(
            program or "''",
            "is not an nsys that can be run",
            fix="pass the path of the program: /opt/…/bin/nsys",
        )
    return Path(path).absolute()  # it may be run from another directory


def import_path() -> list[str]:
    """Return ``sys.path`` without relative entries and the current directory, for safety."""
    entries = list(
        filter(os.path.isabs, sys.path)
    )  # no pathlib: it would be imported from the path that this mends
    for entry in list(entries):
        with contextlib.suppress(OSError, ValueError):
            if os.path.samefile(entry, os.curdir):  # noqa: PTH121
                entries.remove(entry)
    return entries


def set_up_process() -> None:
    """Make Python and libraries use less memory; call it before numpy and Arrow are imported."""
    # A thread for each core is of no use here, and where memory is limited they end the process.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Arrow's own allocator keeps what was freed, beside what numpy and SQLite take: a third less at
    # the peak without.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # What is imported stays: to look through it for garbage, again and again, is a tenth of a small
    # run.
    gc.set_threshold(200_000)


def prctl() -> Callable[[int, int], object]:
    """Return Linux's function of that name; other systems do without."""
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes  # noqa: PLC0415 - only Linux needs it

            function: Callable[[int, int], object] = ctypes.CDLL(None).prctl
            return function
    return lambda _option, _value: None


@contextlib.contextmanager
def handling(handler: Callable[[int, Any], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals with a function in this context; signals that are ignored stay ignored."""
    before = {
        one: signal.signal(one, handler)
        for one in numbers
        if signal.getsignal(one) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
