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
from typing import IO, Any, NamedTuple

from nsyspipe.errors import NsysFailedError, NsysNotFoundError

ROOT = Path("/")
# Where the packages of NVIDIA, Debian and the CUDA toolkit put nsys, below the root.
_NSYS_PLACES = (
    "opt/nvidia/nsight-systems*/*/bin/nsys",
    "opt/nvidia/nsight-systems*/bin/nsys",
    "opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Systems/bin/nsys",
    "usr/lib/nsight-systems/bin/nsys",
    "usr/local/cuda*/bin/nsys",
)
# From a directory above nsys; its own package comes first.
_HOST_PLACES = (
    "host-*",
    "nsight-systems-*/host-*",
    "lib/nsight-systems/host-*",
    "usr/lib/nsight-systems/host-*",
    "opt/nvidia/nsight-systems*/*/host-*",
)
_IMPORTER = "QdstrmImporter"
_RANGE_IMPORTER = "ImportNvtxt"
# The last part of what a program prints is kept.
_MAX_OUTPUT_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
_POLL_S = 0.02
_MAX_PROGRAM_S = 3.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
# In lines about an error.
_ERROR_WORDS = re.compile(
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
# The first start from a shared file system reads hundreds of megabytes.
_MAX_ANSWER_S = 60.0
_NSYS_VERSION = re.compile(r"\bversion (\d+(?:\.\d+)+)")
_TRACE_SENTENCE = re.compile(r"^\s*-t, --trace=\s*([^.]*)\.", re.MULTILINE)
_TRACE_VALUE = re.compile(r"'([a-z][a-z0-9-]*)'")
_OPTION = re.compile(r"^\s*(?:-\w, )?(--[a-z][a-z0-9-]*)", re.MULTILINE)
# Of prctl(2), which ends or adopts processes that outlive their parents.
SET_DEATH_SIGNAL = 1
SET_CHILD_SUBREAPER = 36


class Program(NamedTuple):
    """A program on this machine."""

    path: Path
    # None if it is on the search path.
    place: str | None


class Output(NamedTuple):
    """What a program printed."""

    # The exit status. None if the program did not end in time.
    status: int | None
    text: str


def find_nsys(search_path: str | None = None, root: Path = ROOT) -> Program | None:
    """Return nsys from the search path, or the newest in the usual places. None without nsys."""
    on_path = shutil.which("nsys", path=search_path)
    if on_path:
        return Program(Path(on_path), place=None)
    # The paths have the versions of nsys in them, so the largest path is that of the newest nsys.
    newest = max(_existing(root, _NSYS_PLACES), key=by_number, default=None)
    if newest is None:
        return None
    return Program(newest, place=f"/{newest.relative_to(root).as_posix()}")


def find_importer(nsys: Program, root: Path = ROOT) -> Path | None:
    """Return the importer of an nsys, which turns a capture into a report. None without one."""
    return _find_beside(nsys.path, _IMPORTER, root)


def find_range_importer(nsys_path: Path, root: Path = ROOT) -> Path | None:
    """Return the program of an nsys that adds ranges to a report. None without one.

    An installation without the user interface may not have it.
    """
    beside = nsys_path.with_name(_RANGE_IMPORTER)
    return beside if os.access(beside, os.X_OK) else _find_beside(nsys_path, _RANGE_IMPORTER, root)


def _find_beside(nsys_path: Path, name: str, root: Path) -> Path | None:
    """Return the program `name` of the installation of an nsys. None without one.

    The program is looked for up to two directories above nsys, then in the usual places below
    `root`.
    """
    # The nsys on the search path is often a link into the package.
    real_path = Path(os.path.realpath(nsys_path))
    homes = [*nsys_path.parents[:2], *real_path.parents[:2], root]
    places = [f"{place}/{name}" for place in _HOST_PLACES]
    # Each directory once, in this order.
    for home in dict.fromkeys(homes):
        programs = _existing(home, places)
        if programs:
            return programs[0]
    return None


def _existing(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the programs below a folder whose paths match one of some patterns.

    They are in the order of the patterns, and those of one pattern are sorted by path.
    """
    programs: list[Path] = []
    for pattern in patterns:
        # Some directories may not be readable.
        with contextlib.suppress(OSError):
            paths = sorted(folder.glob(pattern))
            programs += [path for path in paths if os.access(path, os.X_OK)]
    return programs


def by_number(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts paths by their numbers: x_2 before x_10."""
    # A text, which may be empty, then a number, then a text again, and so on.
    parts = re.split(r"([0-9]+)", str(path))
    # All parts become pairs of a number and a text, which Python can compare. A text gets the
    # number -1, and a number an empty text.
    key: list[tuple[int, str]] = []
    for position, part in enumerate(parts):
        is_number = position % 2 == 1
        key.append((int(part), "") if is_number else (-1, part))
    return key


def count_cores() -> int:
    """Return the number of cores that this process may use. The machine may have more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ask(command: Sequence[str], timeout_s: float) -> Output | None:
    """Run a program as `printed` does. None if it cannot be started."""
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
    """Run a program without input, and return the last part of what it prints.

    When the program ends, time is up, or `is_stopped` returns true (by default never), the program
    and the processes that it started are killed. Then the output so far is returned. What the
    program prints to stderr is included only if it runs in a `folder`. Raises an OSError if the
    program cannot start.
    """
    received = bytearray()
    # Whether the program may print more.
    is_open = True
    stderr = subprocess.STDOUT if folder else subprocess.DEVNULL
    # The program has its own group, so Ctrl-C reaches nsyspipe, which ends the whole group.
    with subprocess.Popen(  # noqa: S603 - a list, no shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        cwd=folder,
        start_new_session=True,
    ) as process:
        source = process.stdout
        deadline = time.monotonic() + timeout_s
        assert source is not None  # noqa: S101 - a pipe
        try:
            while time.monotonic() < deadline and not is_stopped():
                has_ended = process.poll() is not None
                wait_s = 0 if has_ended else _POLL_S
                if is_open and _has_output(source, wait_s):
                    chunk = os.read(source.fileno(), _CHUNK_BYTES)
                    # A pipe that can be read, but has no bytes, was closed.
                    is_open = bool(chunk)
                    received += chunk
                    # All but the last part is dropped.
                    del received[:-_MAX_OUTPUT_BYTES]
                elif has_ended:
                    # All output was read.
                    break
                elif not is_open:
                    # The program closed its output, and still runs.
                    time.sleep(_POLL_S)
            # None if the program still runs.
            status = process.poll()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return Output(status, received.decode("utf-8", "replace"))


def _has_output(source: IO[bytes], wait_s: float) -> bool:
    """Tell whether a pipe can be read, or becomes so within some seconds."""
    readable, _, _ = select.select([source], [], [], wait_s)
    return bool(readable)


class Patience:
    """Runs programs, each for a few seconds, until the time for all is over.

    A program that hung is not run again.
    """

    def __init__(self, total_s: float, search_path: str | None) -> None:
        self._deadline = time.monotonic() + total_s
        self._search_path = search_path
        self._hung: set[str] = set()

    def output(self, program: str, *arguments: str) -> Output | None:
        """Return what a program printed. None if it is not on the search path, or cannot start.

        The status of the output is None if the program does not end in time. It is also None if the
        program is not started, because it did not end in time before, or because the time for all
        programs is over.
        """
        left_s = self._deadline - time.monotonic()
        if program in self._hung or left_s <= 0:
            return Output(status=None, text="")
        path = shutil.which(program, path=self._search_path)
        if path is None:
            return None
        output = ask([path, *arguments], min(left_s, _MAX_PROGRAM_S))
        is_hanging = output is not None and output.status is None
        if is_hanging:
            self._hung.add(program)
        return output

    def answer(self, program: str, *arguments: str) -> str:
        """Return what a program printed. Empty if it failed."""
        output = self.output(program, *arguments)
        return output.text if output is not None and output.status == 0 else ""


def telling_lines(text: str, most: int) -> list[str]:
    """Return the last `most` lines about an error, or the last lines if none is about an error.

    Equal lines among them are returned once. Long lines are cut. Bars that show progress do not
    count as lines.
    """
    printed_lines = map(_printable_line, re.split(r"[\r\n]+", text))
    not_empty = filter(None, printed_lines)
    lines = [line[:200] for line in not_empty if not _PROGRESS.search(line)]
    lines_about_errors = [line for line in lines if _ERROR_WORDS.search(line)]
    last_lines = (lines_about_errors or lines)[-most:]
    # The keys of a dict are distinct, and stay in order.
    return list(dict.fromkeys(last_lines))


def _printable_line(line: str) -> str:
    """Return a line without spaces at its ends, escape sequences and control characters."""
    without_escapes = _ESCAPES.sub("", line).strip()
    return "".join(filter(str.isprintable, without_escapes))


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, to compare by: (0, 2, 12) for 0.2.12rc1."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    if match is None:
        return ()
    return tuple(map(int, match[0].split(".")))


def torch_versions() -> tuple[str | None, str | None]:
    """Return the version of torch, and of the CUDA that it was built for. None if missing."""
    text = _torch_version_file()
    torch = _VERSION.search(text)
    torch_version = torch[1] if torch else installed("torch")
    cuda = _CUDA.search(text)
    cuda_version = cuda[1] if cuda else None
    return torch_version, cuda_version


def _torch_version_file() -> str:
    """Return the text of the file of torch that has its versions. Empty if it cannot be read."""
    try:
        spec = importlib.util.find_spec("torch")
        if spec is None:
            return ""
        # A broken installation has no origin, which is a ValueError here.
        return Path(spec.origin or "").with_name("version.py").read_text("utf-8")
    except (ImportError, OSError, ValueError):
        return ""


def nccl_version(root: Path) -> str | None:
    """Return the version of NCCL: that of torch's package, else that of the system's library.

    Of several libraries, it is the newest. None without NCCL.
    """
    for package in _NCCL_PACKAGES:
        package_version = installed(package)
        if package_version:
            return package_version
    names = [path.name for pattern in _NCCL_LIBRARIES for path in root.glob(pattern)]
    matches = filter(None, map(_LIBRARY_VERSION.search, names))
    library_versions = [match[1] for match in matches]
    return max(library_versions, key=numbers, default=None)


def ranges_reach(nsys_version: str, nvtx: str) -> bool:
    """Tell whether ranges of a version of the ``nvtx`` package reach a version of nsys."""
    major_and_minor = numbers(nsys_version)[:2]
    return numbers(nvtx) < _NVTX_LOST or major_and_minor > _NSYS_LOSES


def installed(package: str) -> str | None:
    """Return the version of an installed package. None if it is missing or broken."""
    from importlib import metadata  # noqa: PLC0415 - slow, and few commands need it

    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, KeyError, OSError, ValueError):
        return None


def version_in(text: str) -> str | None:
    """Return the version in the output of ``nsys --version``: 2024.2.3.38. None without one."""
    match = _NSYS_VERSION.search(text)
    return match[1] if match else None


def trace_values_in(text: str) -> tuple[str, ...]:
    """Return the values of ``--trace`` that ``nsys profile --help`` lists."""
    sentence = _TRACE_SENTENCE.search(text)
    return tuple(_TRACE_VALUE.findall(sentence[1])) if sentence else ()


@dataclass(frozen=True)
class Nsys:
    """An nsys that answers."""

    path: Path
    # As it prints it: ``2024.2.3.38``.
    version_text: str
    _helps: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def trace_values(self) -> tuple[str, ...]:
        """Return the values of ``nsys profile --trace``. Empty if its help does not list them."""
        return trace_values_in(self._help("profile"))

    def has(self, command: str, option: str) -> bool:
        """Tell whether a command of nsys has a long option, for example ``--include-blobs``."""
        return option in _OPTION.findall(self._help(command))

    def _help(self, command: str) -> str:
        """Return the help of a command of nsys. Empty if nsys does not print it.

        nsys is asked once for each command.
        """
        if command not in self._helps:
            output = ask([str(self.path), command, "--help"], _MAX_ANSWER_S)
            help_text = ""
            if output is not None and output.status == 0:
                help_text = output.text
            self._helps[command] = help_text
        return self._helps[command]


def find(program: str | None = None, *, or_else: str = "") -> Nsys:
    """Return the nsys that `program` names: a path, a directory or a name on the search path.

    Without `program`, it is the nsys on the search path, or the newest in the usual places.

    Raises
    ------
    NsysNotFoundError
        If there is no such nsys. `or_else` is added to the fix in its message.
    NsysFailedError
        If the program does not print a version as nsys does.
    """
    path = _path(program, or_else)
    output = ask([str(path), "--version"], _MAX_ANSWER_S)
    version = version_in(output.text) if output is not None else None
    if version is not None:
        return Nsys(path, version)
    fix = f"try {path} --version by hand, name another nsys, or {GET_NSYS}"
    raise NsysFailedError(str(path), _why_no_version(output), fix=fix)


def _why_no_version(output: Output | None) -> str:
    """Return why ``nsys --version`` printed no version."""
    if output is None:
        return "cannot be started"
    if output.status is None:
        return f"did not print its version within {_MAX_ANSWER_S:.0f} s"
    if output.status:
        return f"nsys --version failed with status {output.status}"
    return "does not print a version like nsys"


def _path(program: str | None, or_else: str) -> Path:
    """Return the path of the nsys that a user names; None stands for the one that is installed.

    If none is installed, `or_else` is added to the fix of the error.
    """
    if program is None:
        installed_nsys = find_nsys()
        if installed_nsys is not None:
            return installed_nsys.path
        fix = f"{GET_NSYS}, or export PATH=DIRECTORY_OF_NSYS:$PATH{or_else}"
        raise NsysNotFoundError("nsys", "is not on PATH, and not in the usual places", fix=fix)
    # pathlib would turn ./nsys into nsys, which would then be looked up on the search path.
    name_or_path = os.path.expanduser(program)  # noqa: PTH111
    # An empty path would be the current directory.
    if name_or_path and Path(name_or_path).is_dir():
        name_or_path = str(Path(name_or_path).absolute() / "nsys")
    path = shutil.which(name_or_path)
    if path is None:
        fix = "pass the path of the program: /opt/…/bin/nsys"
        raise NsysNotFoundError(program or "''", "is not an nsys that can be run", fix=fix)
    # Absolute, because it may be run from another directory.
    return Path(path).absolute()


def import_path() -> list[str]:
    """Return ``sys.path`` without relative entries and the current directory.

    Nothing is imported from the directory in which nsyspipe happens to run.
    """
    # Without pathlib, which would be imported from the path that is corrected here.
    entries = list(filter(os.path.isabs, sys.path))
    # A copy, because entries are removed from the list.
    for entry in list(entries):
        # Entries that do not exist stay.
        with contextlib.suppress(OSError, ValueError):
            if os.path.samefile(entry, os.curdir):  # noqa: PTH121
                entries.remove(entry)
    return entries


def set_up_process() -> None:
    """Make Python and libraries use less memory. Call it before numpy and Arrow are imported."""
    # A thread for each core is of no use here, and if memory is limited, these threads end the
    # process.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # The allocator of Arrow keeps freed memory, which numpy and SQLite cannot use. Without it, the
    # peak is a third lower.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # Imported modules stay. Looking through them for garbage takes a tenth of the time of a small
    # run.
    gc.set_threshold(200_000)


def prctl() -> Callable[[int, int], object]:
    """Return the function ``prctl`` of Linux, which changes properties of this process.

    On other systems, or if it cannot be loaded, the result is a function that does nothing.
    """
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes  # noqa: PLC0415 - only Linux needs it

            function: Callable[[int, int], object] = ctypes.CDLL(None).prctl
            return function
    return lambda _option, _value: None


@contextlib.contextmanager
def handling(handler: Callable[[int, Any], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals with a function in this context. Signals that are ignored stay ignored."""
    handlers_before = {
        number: signal.signal(number, handler)
        for number in numbers
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler_before in handlers_before.items():
            signal.signal(number, handler_before)
