"""What this machine has for analyzing, converting and capturing.

No probe may fail, because a laptop without GPU and nsys is a good place to analyze. The only
environment variable that is read is PATH.
"""

import contextlib
import platform
import re
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from nsyspipe.model.names import printable
from nsyspipe.nsys import programs
from nsyspipe.nsys.programs import GET_NSYS, ROOT, Output, Patience, Program, torch_versions
from nsyspipe.version import __version__

STATUSES = ("ok", "warning", "missing", "unknown")
ANALYZE = "analyze"
CONVERT = "convert"
CAPTURE = "capture"
_BOTH = f"{CONVERT}, {CAPTURE}"
_MAX_GPU_NAME_CHARACTERS = 64
# CPU samples need this value of perf_event_paranoid, or a lower one.
_MAX_PARANOID_LEVEL = 2
_MIN_FREE_BYTES = 5_000_000_000
_SAMPLING = re.compile(r"^CPU Profiling Environment \(process-tree\): (\w+)", re.MULTILINE)
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_DRIVER_FILE = re.compile(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s")
_LINK_ROW = re.compile(r"^GPU\d+\s+(.*)$", re.MULTILINE)
_LINK = re.compile(r"\b(?:NV\d+|PIX|PXB|PHB|NODE|SYS)\b")
_INSTALL = (
    "run nsyspipe in your training environment, or run pip install '.[train]' in a clone of "
    "nsyspipe (5.7 GB with CUDA). Without "
    "a GPU first run pip install torch --index-url https://download.pytorch.org/whl/cpu (0.75 GB)"
)
_NO_GPU = (
    "capture on a machine with NVIDIA GPUs, or capture only CPU activity: launchers/ddp.sh --cpu"
)
_ELSEWHERE = "write reports elsewhere: -o DIR"
_TOPOLOGY = (
    "run nvidia-smi topo -m > topo.txt on a host of the job, and pass --topology topo.txt to "
    "analyze"
)
_SAFE_TRACE = "capture with --trace=cuda,nvtx,osrt, which includes NCCL's NVTX ranges"


class _Probe(NamedTuple):
    """What a probe found."""

    # One of `STATUSES`.
    status: str
    text: str
    fix: str | None = None


_GPU_QUERY = ("index", "name", "driver_version")


@dataclass(frozen=True)
class Gpu:
    """A GPU of this host."""

    index: int
    name: str


def gpus(patience: Patience) -> tuple[tuple[Gpu, ...], str | None]:
    """Return the GPUs of this host, and the version of their driver, as nvidia-smi prints them.

    The version is None if nvidia-smi does not print one.
    """
    query = f"--query-gpu={','.join(_GPU_QUERY)}"
    answer = patience.answer("nvidia-smi", query, "--format=csv,noheader,nounits")
    host_gpus = []
    driver_version = None
    for line in answer.split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        # Other lines are messages.
        if len(cells) != len(_GPU_QUERY) or not re.fullmatch(r"[0-9]{1,4}", cells[0]):
            continue
        index, name, version = cells
        shown_name = printable(name)[:_MAX_GPU_NAME_CHARACTERS]
        host_gpus.append(Gpu(int(index), shown_name))
        if driver_version is None and _VERSION.fullmatch(version):
            driver_version = version
    return tuple(host_gpus), driver_version


def topology(patience: Patience) -> str | None:
    """Return what ``nvidia-smi topo -m`` prints. None if there is no GPU in it."""
    text = patience.answer("nvidia-smi", "topo", "-m")
    return text if _LINK_ROW.search(text) else None


@dataclass(frozen=True)
class Check:
    """What one probe found, and how to fix it."""

    name: str
    # One of `STATUSES`.
    status: str
    found: str
    # Commands (`ANALYZE`, `CONVERT`, `CAPTURE`) or uses, separated by commas.
    needed_for: str
    fix: str | None = None
    found_bytes: int | None = None


def check_machine(
    *,
    root: Path = ROOT,
    search_path: str | None = None,
    folder: Path = Path(),
    total_s: float = 9.0,
) -> list[Check]:
    """Return what this machine has, after little more than `total_s` seconds.

    Programs are looked for in `search_path`, or else in PATH, and files below `root`. `folder` is
    where reports would be written.
    """
    patience = Patience(total_s, search_path)
    nsys = programs.find_nsys(search_path, root)
    answer = patience.output(str(nsys.path), "--version") if nsys else None
    nsys_version = programs.version_in(answer.text) if answer else None
    versions = f"{__version__} on Python {platform.python_version()}"
    this_package = _check("nsyspipe", ANALYZE, _Probe("ok", versions))
    disk_space = _check_disk_space(folder)
    installation = _check("nsys", _BOTH, _nsys(nsys, nsys_version, answer))
    checks = [this_package, disk_space, installation]
    checks += _checks_of_nsys(patience, nsys, root)
    checks += _checks_of_gpus(patience, search_path, root)
    checks += _checks_of_packages(root, nsys_version)
    return checks


def _check(name: str, needed_for: str, probe: _Probe) -> Check:
    return Check(name, probe.status, probe.text, needed_for, probe.fix)


def _checks_of_nsys(patience: Patience, nsys: Program | None, root: Path) -> list[Check]:
    if nsys is None:
        importer = _Probe("missing", "comes with nsys", GET_NSYS)
        trace_values = _Probe("missing", "needs nsys", GET_NSYS)
    else:
        importer = _importer(nsys, root)
        trace_values = _trace_values(patience, nsys)
    sampling = _cpu_sampling(patience, nsys, root)
    return [
        _check("importer", _BOTH, importer),
        _check("trace_values", "choosing --trace", trace_values),
        _check("cpu_sampling", "CPU samples (not needed)", sampling),
    ]


def _checks_of_gpus(patience: Patience, search_path: str | None, root: Path) -> list[Check]:
    driver = _check("cuda_driver", CAPTURE, _driver(patience, root))
    links = _check("topology", "naming slow links", _topology(patience, search_path))
    return [driver, links]


def _checks_of_packages(root: Path, nsys_version: str | None) -> list[Check]:
    return [
        _check("torch", CAPTURE, _torch()),
        _check("nccl", "communication between GPUs", _nccl(root)),
        _check("nvtx", "labels of steps", _nvtx(nsys_version)),
    ]


def _check_disk_space(folder: Path) -> Check:
    free_bytes = None
    with contextlib.suppress(OSError):
        free_bytes = shutil.disk_usage(folder).free
    check = _check("disk_space", "writing reports", _disk_space(free_bytes))
    return replace(check, found_bytes=free_bytes)


def _disk_space(free_bytes: int | None) -> _Probe:
    if free_bytes is None:
        problem = "the free space of the current directory is unknown"
        return _Probe("unknown", problem, _ELSEWHERE)
    text = "free in the current directory"
    is_enough = free_bytes >= _MIN_FREE_BYTES
    return _Probe("ok", text) if is_enough else _Probe("warning", text, _ELSEWHERE)


def _nsys(nsys: Program | None, version: str | None, answer: Output | None) -> _Probe:
    """Return where nsys is and its version, from what ``nsys --version`` answered."""
    if nsys is None:
        return _Probe("missing", "not on PATH and not in the usual directories", GET_NSYS)
    place = f"in {nsys.place}" if nsys.place else "on PATH"
    if version is None:
        fix = "run nsys --version yourself, or reinstall nsys"
        return _Probe("unknown", f"{place}, but {_failure_text(answer)}", fix)
    if nsys.place:
        fix = f"export PATH={Path(nsys.place).parent}:$PATH"
        return _Probe("warning", f"{version} {place}, not on PATH", fix)
    return _Probe("ok", f"{version} {place}")


def _failure_text(answer: Output | None) -> str:
    if answer is None:
        return "cannot be started"
    return "does not answer" if answer.status is None else f"fails with status {answer.status}"


def _importer(nsys: Program, root: Path) -> _Probe:
    if programs.find_importer(nsys, root):
        return _Probe("ok", "QdstrmImporter found")
    problem = "QdstrmImporter was not found in the directory of nsys"
    return _Probe("unknown", problem, f"{GET_NSYS}, not only the target package")


def _trace_values(patience: Patience, nsys: Program) -> _Probe:
    answer = patience.answer(str(nsys.path), "profile", "--help")
    values = [value for value in programs.trace_values_in(answer) if value != "none"]
    if not values:
        return _Probe("unknown", "nsys profile --help does not list the values", _SAFE_TRACE)
    if "nccl" in values:
        return _Probe("ok", ", ".join(values))
    fix = f"{_SAFE_TRACE} (the value nccl needs nsys 2025.6 or newer)"
    return _Probe("warning", f"{', '.join(values)}, but not nccl", fix)


def _cpu_sampling(patience: Patience, nsys: Program | None, root: Path) -> _Probe:
    """Return whether nsys can sample the CPU, as nsys reports it.

    Without an answer of nsys, the setting ``perf_event_paranoid`` of the kernel decides. If the
    setting cannot be read, nsys is not asked.
    """
    setting = root / "proc/sys/kernel/perf_event_paranoid"
    try:
        level = int(setting.read_text(encoding="ascii"))
    except (OSError, ValueError):
        fix = "capture with --sample=none if nsys fails"
        return _Probe("unknown", "perf_event_paranoid is not readable", fix)
    answer = patience.answer(str(nsys.path), "status", "-e") if nsys else ""
    reported_status = _SAMPLING.search(answer)
    text = f"perf_event_paranoid is {level}"
    if reported_status:
        text += f", nsys reports {reported_status[1]}"
        is_possible = reported_status[1] == "OK"
    else:
        is_possible = level <= _MAX_PARANOID_LEVEL
    if is_possible:
        return _Probe("ok", text)
    sysctl = f"sysctl kernel.perf_event_paranoid={_MAX_PARANOID_LEVEL} as root"
    return _Probe("warning", text, f"{sysctl}, or capture with --sample=none")


def _driver(patience: Patience, root: Path) -> _Probe:
    """Return the version of the driver and the GPUs, as nvidia-smi shows them.

    If nvidia-smi shows no GPU, the kernel tells whether a driver is loaded.
    """
    host_gpus, version = gpus(patience)
    if host_gpus and version:
        count_of_model = Counter(gpu.name for gpu in host_gpus)
        models = [f"{count} x {model}" for model, count in count_of_model.items()]
        return _Probe("ok", f"{version}, {', '.join(models)}")
    loaded_version = _loaded_driver(root)
    if loaded_version is None:
        return _Probe("missing", "no NVIDIA driver found", _NO_GPU)
    problem = f"{loaded_version} is loaded, but nvidia-smi shows no GPU"
    return _Probe("unknown", problem, "run nvidia-smi yourself")


def _loaded_driver(root: Path) -> str | None:
    """Return the version of NVIDIA's driver that the kernel has loaded. None without one."""
    with contextlib.suppress(OSError, ValueError):
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8")
        match = _DRIVER_FILE.search(text)
        return match[1] if match else None
    return None


def _topology(patience: Patience, search_path: str | None) -> _Probe:
    """Return by which links the GPUs are connected, as ``nvidia-smi topo -m`` shows it."""
    if shutil.which("nvidia-smi", path=search_path) is None:
        return _Probe("missing", "needs nvidia-smi", _TOPOLOGY)
    text = topology(patience) or ""
    rows = [row.split() for row in _LINK_ROW.findall(text)]
    if not rows:
        return _Probe("unknown", "nvidia-smi topo -m shows no connections", _TOPOLOGY)
    n_gpus = len(rows)
    # A row has a cell for each GPU. Further cells are about network cards and CPUs.
    cells = {cell for row in rows for cell in row[:n_gpus]}
    links = sorted(filter(_LINK.fullmatch, cells))
    if not links:
        return _Probe("ok", "one GPU, no links")
    return _Probe("ok", f"{n_gpus} GPUs linked by {', '.join(links)}")


def _torch() -> _Probe:
    version, cuda = torch_versions()
    if version is None:
        return _Probe("missing", "not in this Python environment", _INSTALL)
    if cuda is None:
        return _Probe("warning", f"{version}, built without CUDA", _INSTALL)
    return _Probe("ok", f"{version}, CUDA {cuda}")


def _is_torch_installed() -> bool:
    version, _ = torch_versions()
    return version is not None


def _nccl(root: Path) -> _Probe:
    version = programs.nccl_version(root)
    if version:
        return _Probe("ok", version)
    # Some builds of torch contain NCCL.
    status = "unknown" if _is_torch_installed() else "missing"
    fix = "run torch.cuda.nccl.version() in your training environment"
    return _Probe(status, "no package or library", fix)


def _nvtx(nsys_version: str | None) -> _Probe:
    """Return whether programs can make NVTX ranges that nsys records."""
    nvtx_version = programs.installed("nvtx")
    if nvtx_version is None:
        if _is_torch_installed():
            return _Probe("ok", "not installed, but torch.cuda.nvtx has NVTX ranges too")
        problem = "neither nvtx nor torch is installed (torch has NVTX ranges too)"
        return _Probe("missing", problem, _INSTALL)
    if nsys_version is not None and not programs.ranges_reach(nsys_version, nvtx_version):
        problem = (
            f"{nvtx_version}, but nsys {nsys_version} does not record the ranges of this version"
        )
        return _Probe("warning", problem, "use torch.cuda.nvtx, or install 'nvtx<0.2.12'")
    return _Probe("ok", nvtx_version)
