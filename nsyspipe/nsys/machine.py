"""What this machine has for analyzing, converting and capturing: small probes, none of which may fail.

Nothing here is an error: a laptop without GPU and nsys is a good place to analyze. Of variables
PATH alone is read.
"""

import contextlib
import platform
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from nsyspipe.model.names import printable
from nsyspipe.nsys import programs
from nsyspipe.nsys.programs import GET_NSYS, ROOT, Output, Patience, Program, torch_versions
from nsyspipe.version import __version__

STATUSES = ("ok", "warning", "missing", "unknown")
ANALYZE = "analyze"
CONVERT = "convert"
CAPTURE = "capture"
_BOTH = f"{CONVERT}, {CAPTURE}"
_Found: TypeAlias = tuple[
    str, str, str | None
]  # what a probe found: its status, what it says, and what would mend it
_NEEDS_NSYS = "missing", "needs nsys", GET_NSYS
_LONGEST_NAME = 64
_MOST_PARANOID = 2
_LITTLE_SPACE_BYTES = 5_000_000_000
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


@dataclass(frozen=True)
class Gpu:
    """A GPU of this host."""

    index: int
    name: str


def gpus(patience: Patience) -> tuple[tuple[Gpu, ...], str | None]:
    """Return this host's GPUs and their driver's version, as nvidia-smi tells them."""
    query = ("--query-gpu=index,name,driver_version", "--format=csv,noheader,nounits")
    gpus_found = []
    driver = None
    for line in patience.answer("nvidia-smi", *query).split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != query[0].count(",") + 1 or not re.fullmatch(r"[0-9]{1,4}", cells[0]):
            continue
        index, name, version = cells
        gpus_found.append(Gpu(int(index), printable(name)[:_LONGEST_NAME]))
        driver = driver or (version if _VERSION.fullmatch(version) else None)
    return tuple(gpus_found), driver


def topology(patience: Patience) -> str | None:
    """Return what ``nvidia-smi topo -m`` prints, if it tells of GPUs."""
    text = patience.answer("nvidia-smi", "topo", "-m")
    return text if _LINK_ROW.search(text) else None


@dataclass(frozen=True)
class Check:
    """What one probe found, and what would mend it."""

    name: str
    status: str  # one of `STATUSES`; unknown: it could not be found out
    found: str
    needed_for: str  # commands (`ANALYZE`, `CONVERT`, `CAPTURE`) or uses, separated by commas
    fix: str | None = None
    found_bytes: int | None = None


def check_machine(
    *,
    root: Path = ROOT,
    search_path: str | None = None,
    folder: Path = Path(),
    total_s: float = 9.0,
) -> list[Check]:
    """Look at this machine, for little more than `total_s` seconds at most; None takes the environment's search path."""
    patience = Patience(total_s, search_path)
    nsys = programs.find_nsys(search_path, root)
    answer = patience.output(str(nsys.path), "--version") if nsys else None
    version = programs.version_in(answer.text) if answer else None
    free = None
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free
    checks = (
        ("nsyspipe", ANALYZE, ("ok", f"{__version__} on Python {platform.python_version()}", None)),
        ("disk_space", "writing reports", _disk_space(free)),
        ("nsys", _BOTH, _nsys(nsys, version, answer)),
        (
            "importer",
            _BOTH,
            _importer(nsys, root) if nsys else ("missing", "comes with nsys", GET_NSYS),
        ),
        (
            "trace_values",
            "choosing --trace",
            _trace_values(patience, nsys) if nsys else _NEEDS_NSYS,
        ),
        ("cpu_sampling", "CPU samples (not needed)", _cpu_sampling(patience, nsys, root)),
        ("cuda_driver", CAPTURE, _driver(patience, root)),
        ("topology", "naming slow links", _topology(patience, search_path)),
        ("torch", CAPTURE, _torch()),
        ("nccl", "communication between GPUs", _nccl(root)),
        ("nvtx", "labels of steps", _nvtx(version)),
    )
    n_bytes = {"disk_space": free}
    return [
        Check(name, status, found, uses, fix, n_bytes.get(name))
        for name, uses, (status, found, fix) in checks
    ]


def _disk_space(free: int | None) -> _Found:
    if free is None:
        return "unknown", "the free space of the current directory is unknown", _ELSEWHERE
    is_enough = free >= _LITTLE_SPACE_BYTES
    found = "free in the current directory"
    return ("ok", found, None) if is_enough else ("warning", found, _ELSEWHERE)


def _nsys(nsys: Program | None, version: str | None, answer: Output | None) -> _Found:
    if nsys is None:
        return "missing", "not on PATH and not in the usual directories", GET_NSYS
    where = f"in {nsys.place}" if nsys.place else "on PATH"
    if version is None:
        why = "cannot be started"
        if answer is not None:
            why = (
                "does not answer" if answer.status is None else f"fails with status {answer.status}"
            )
        return "unknown", f"{where}, but {why}", "run nsys --version yourself, or reinstall nsys"
    if nsys.place:
        return (
            "warning",
            f"{version} {where}, not on PATH",
            f"export PATH={Path(nsys.place).parent}:$PATH",
        )
    return "ok", f"{version} {where}", None


def _importer(nsys: Program, root: Path) -> _Found:
    if programs.find_importer(nsys, root):
        return "ok", "QdstrmImporter found", None
    return (
        "unknown",
        "QdstrmImporter was not found in the directory of nsys",
        f"{GET_NSYS}, not only the target package",
    )


def _trace_values(patience: Patience, nsys: Program) -> _Found:
    answer = patience.answer(str(nsys.path), "profile", "--help")
    values = [one for one in programs.trace_values_in(answer) if one != "none"]
    if not values:
        return "unknown", "nsys profile --help does not list the values", _SAFE_TRACE
    if "nccl" in values:
        return "ok", ", ".join(values), None
    return (
        "warning",
        f"{', '.join(values)}, but not nccl",
        f"{_SAFE_TRACE} (the value nccl needs nsys 2025.6 or newer)",
    )


def _cpu_sampling(patience: Patience, nsys: Program | None, root: Path) -> _Found:
    try:
        level = int(
            root.joinpath("proc/sys/kernel/perf_event_paranoid").read_text(encoding="ascii")
        )
    except (OSError, ValueError):
        return (
            "unknown",
            "perf_event_paranoid is not readable",
            "capture with --sample=none if nsys fails",
        )
    status = _SAMPLING.search(patience.answer(str(nsys.path), "status", "-e")) if nsys else None
    found = f"perf_event_paranoid is {level}" + (f", nsys reports {status[1]}" if status else "")
    if status[1] == "OK" if status else level <= _MOST_PARANOID:
        return "ok", found, None
    fix = (
        f"sysctl kernel.perf_event_paranoid={_MOST_PARANOID} as root, or capture with --sample=none"
    )
    return "warning", found, fix


def _driver(patience: Patience, root: Path) -> _Found:
    there, version = gpus(patience)
    if there and version:
        counted = ", ".join(
            f"{n} x {model}" for model, n in Counter(one.name for one in there).items()
        )
        return "ok", f"{version}, {counted}", None
    with contextlib.suppress(OSError, ValueError):
        loaded = _DRIVER_FILE.search(
            root.joinpath("proc/driver/nvidia/version").read_text(encoding="utf-8")
        )
        if loaded:
            return (
                "unknown",
                f"{loaded[1]} is loaded, but nvidia-smi shows no GPU",
                "run nvidia-smi yourself",
            )
    return "missing", "no NVIDIA driver found", _NO_GPU


def _topology(patience: Patience, search_path: str | None) -> _Found:
    if shutil.which("nvidia-smi", path=search_path) is None:
        return "missing", "needs nvidia-smi", _TOPOLOGY
    rows = _LINK_ROW.findall(topology(patience) or "")
    if not rows:
        return "unknown", "nvidia-smi topo -m shows no connections", _TOPOLOGY
    links = sorted(
        {cell for row in rows for cell in row.split()[: len(rows)] if _LINK.fullmatch(cell)}
    )
    return (
        "ok",
        f"{len(rows)} GPUs linked by {', '.join(links)}" if links else "one GPU, no links",
        None,
    )


def _torch() -> _Found:
    version, cuda = torch_versions()
    if version is None:
        return "missing", "not in this Python environment", _INSTALL
    if cuda is None:
        return "warning", f"{version}, built without CUDA", _INSTALL
    return "ok", f"{version}, CUDA {cuda}", None


def _nccl(root: Path) -> _Found:
    version = programs.nccl_version(root)
    if version:
        return "ok", version, None
    status = (
        "missing" if torch_versions()[0] is None else "unknown"
    )  # some builds of torch have it inside
    return (
        status,
        "no package or library",
        "run torch.cuda.nccl.version() in your training environment",
    )


def _nvtx(nsys_version: str | None) -> _Found:
    version = programs.installed("nvtx")
    if version is None:
        if torch_versions()[0] is None:
            return (
                "missing",
                "neither nvtx nor torch is installed (torch has NVTX ranges too)",
                _INSTALL,
            )
        return "ok", "not installed, but torch.cuda.nvtx has NVTX ranges too", None
    if nsys_version is not None and not programs.ranges_reach(nsys_version, version):
        found = f"{version}, but nsys {nsys_version} does not record the ranges of this version"
        return "warning", found, "use torch.cuda.nvtx, or install 'nvtx<0.2.12'"
    return "ok", version, None
