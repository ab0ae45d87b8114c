"""What this machine has for analyzing, converting and capturing: small probes, none of which may fail.

A laptop without GPU and nsys is a good place to analyze, so nothing here is an error. Probes read no environment variable
but the search path.
"""

import platform
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from nsyspipe.model.names import printable
from nsyspipe.nsys import programs
from nsyspipe.nsys.programs import GET_NSYS, ROOT, Output, Patience, Program, Run, ask, torch_versions
from nsyspipe.version import __version__

STATUSES = ("ok", "warning", "missing", "unknown")
ANALYZE, CONVERT, CAPTURE = "analyze", "convert", "capture"
_BOTH = f"{CONVERT}, {CAPTURE}"
_WITHOUT_NSYS = (
    ("nsys", "not on PATH, not in the usual places", _BOTH),
    ("importer", "comes with nsys", _BOTH),
    ("trace_values", "nsys would tell", "choosing --trace"),
)

_LONGEST_NAME, _MOST_PARANOID = 64, 2
_LITTLE_SPACE_BYTES = 5_000_000_000
_SAMPLING = re.compile(r"^CPU Profiling Environment \(process-tree\): (\w+)", re.MULTILINE)
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_DRIVER_FILE = re.compile(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s")
_LINK_ROW = re.compile(r"^GPU\d+\s+(.*)$", re.MULTILINE)
_LINK = re.compile(r"\b(?:NV\d+|PIX|PXB|PHB|NODE|SYS)\b")

_INSTALL = "run this in the environment that trains, or in a clone of nsyspipe: pip install '.[train]'"
_NO_GPU = "capture on a machine with NVIDIA GPUs, or what hosts do: launchers/ddp.sh --cpu"
_SAFE_TRACE = "capture with --trace=cuda,nvtx,osrt: NVTX still carries NCCL's ranges"


@dataclass(frozen=True)
class Gpu:
    """A GPU of this host."""

    index: int
    name: str


def gpus(patience: Patience, search_path: str | None) -> tuple[tuple[Gpu, ...], str | None]:
    """Return this host's GPUs and their driver's version, as nvidia-smi tells them."""
    query = ("--query-gpu=index,name,driver_version", "--format=csv,noheader,nounits")
    found, driver = [], None
    for line in _smi(patience, search_path, *query).split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != query[0].count(",") + 1 or not re.fullmatch(r"[0-9]{1,4}", cells[0]):
            continue
        index, name, version = cells
        found.append(Gpu(int(index), printable(name)[:_LONGEST_NAME]))
        driver = driver or (version if _VERSION.fullmatch(version) else None)
    return tuple(found), driver


def topology(patience: Patience, search_path: str | None) -> str | None:
    """Return what ``nvidia-smi topo -m`` prints, if it tells of GPUs."""
    text = _smi(patience, search_path, "topo", "-m")
    return text if _LINK_ROW.search(text) else None


def _smi(patience: Patience, search_path: str | None, *words: str) -> str:
    smi = shutil.which("nvidia-smi", path=search_path)
    return patience.answer(smi, *words) if smi else ""


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
    *, run: Run = ask, root: Path = ROOT, search_path: str | None = None, folder: Path = Path(), total_s: float = 9.0
) -> list[Check]:
    """Look at this machine, for little more than `total_s` seconds at most; None takes the environment's search path."""
    patience = Patience(run, total_s)
    nsys = programs.find_nsys(search_path, root)
    answer = patience.output(str(nsys.path), "--version") if nsys else None
    version = programs.version_in(answer.text) if answer else None
    without = [Check(name, "missing", what, uses, GET_NSYS) for name, what, uses in _WITHOUT_NSYS]
    with_nsys = nsys and [_nsys(nsys, version, answer), _importer(nsys, root), _trace_values(patience, nsys)]
    return [
        Check("nsyspipe", "ok", f"{__version__} on Python {platform.python_version()}", ANALYZE),
        _disk_space(folder),
        *(with_nsys or without),
        _cpu_sampling(patience, nsys, root),
        _driver(patience, search_path, root),
        _topology(patience, search_path),
        _torch(),
        _nccl(root),
        _nvtx(version),
    ]


def _disk_space(folder: Path) -> Check:
    uses = "writing reports"
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return Check("disk_space", "unknown", "the current directory cannot be asked", uses)
    fix = "write reports elsewhere: -o DIR" if free < _LITTLE_SPACE_BYTES else None
    return Check("disk_space", "warning" if fix else "ok", "free in the current directory", uses, fix, free)


def _nsys(nsys: Program, version: str | None, answer: Output | None) -> Check:
    where = f"in {nsys.place}" if nsys.place else "on PATH"
    if version is None:
        why = "cannot be started"
        if answer is not None:
            why = "does not answer" if answer.status is None else f"fails with status {answer.status}"
        return Check("nsys", "unknown", f"{where}, but {why}", _BOTH, "try nsys --version by hand, or install it again")
    if nsys.place:
        fix = f"export PATH={Path(nsys.place).parent}:$PATH"
        return Check("nsys", "warning", f"{version} {where}, not on PATH", _BOTH, fix)
    return Check("nsys", "ok", f"{version} {where}", _BOTH)


def _importer(nsys: Program, root: Path) -> Check:
    if programs.find_importer(nsys, root):
        return Check("importer", "ok", "QdstrmImporter is there", _BOTH)
    fix = f"{GET_NSYS}, not only its target package"
    return Check("importer", "unknown", "no QdstrmImporter beside nsys", _BOTH, fix)


def _trace_values(patience: Patience, nsys: Program) -> Check:
    uses = "choosing --trace"
    values = programs.trace_values_in(patience.answer(str(nsys.path), "profile", "--help"))
    if not values:
        return Check("trace_values", "unknown", "nsys profile --help does not tell", uses, _SAFE_TRACE)
    if "nccl" in values:
        return Check("trace_values", "ok", ", ".join(values), uses)
    fix = f"{_SAFE_TRACE}; nccl needs nsys 2025.6 or newer"
    return Check("trace_values", "warning", f"no nccl; {', '.join(values)}", uses, fix)


def _cpu_sampling(patience: Patience, nsys: Program | None, root: Path) -> Check:
    """Ask nsys, which tries it; else go by the kernel's setting."""
    uses = "CPU samples (not needed)"
    try:
        level = int(root.joinpath("proc/sys/kernel/perf_event_paranoid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return Check("cpu_sampling", "unknown", "the kernel does not tell", uses)
    said = _SAMPLING.search(patience.answer(str(nsys.path), "status", "-e")) if nsys else None
    found = f"perf_event_paranoid is {level}" + (f", nsys says {said[1]}" if said else "")
    if said[1] == "OK" if said else level <= _MOST_PARANOID:
        return Check("cpu_sampling", "ok", found, uses)
    fix = f"sysctl kernel.perf_event_paranoid={_MOST_PARANOID} as root, or capture with --sample=none"
    return Check("cpu_sampling", "warning", found, uses, fix)


def _driver(patience: Patience, search_path: str | None, root: Path) -> Check:
    there, version = gpus(patience, search_path)
    if there and version:
        counted = ", ".join(f"{n} x {model}" for model, n in Counter(one.name for one in there).items())
        return Check("cuda_driver", "ok", f"{version}, {counted}", CAPTURE)
    try:
        text = root.joinpath("proc/driver/nvidia/version").read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    if loaded := _DRIVER_FILE.search(text):
        found = f"{loaded[1]} is loaded, but nvidia-smi shows no GPU"
        return Check("cuda_driver", "unknown", found, CAPTURE, "try nvidia-smi by hand")
    return Check("cuda_driver", "missing", "no NVIDIA driver answers", CAPTURE, _NO_GPU)


def _topology(patience: Patience, search_path: str | None) -> Check:
    uses = "naming slow links"
    if shutil.which("nvidia-smi", path=search_path) is None:
        return Check("topology", "missing", "nvidia-smi would tell", uses)
    rows = _LINK_ROW.findall(topology(patience, search_path) or "")
    if not rows:
        return Check("topology", "unknown", "nvidia-smi topo -m does not tell", uses)
    links = sorted({cell for row in rows for cell in row.split()[: len(rows)] if _LINK.fullmatch(cell)})
    found = f"{len(rows)} GPUs linked by {', '.join(links)}" if links else "one GPU, no links"
    return Check("topology", "ok", found, uses)


def _torch() -> Check:
    version, cuda = torch_versions()
    if version is None:
        return Check("torch", "missing", "not in this Python environment", CAPTURE, _INSTALL)
    if cuda is None:
        return Check("torch", "warning", f"{version}, which names no CUDA", CAPTURE, _INSTALL)
    return Check("torch", "ok", f"{version}, CUDA {cuda}", CAPTURE)


def _nccl(root: Path) -> Check:
    uses = "communication between GPUs"
    if version := programs.nccl_version(root):
        return Check("nccl", "ok", version, uses)
    # Some builds of torch have it inside.
    status = "missing" if torch_versions()[0] is None else "unknown"
    return Check("nccl", status, "no package or library", uses)


def _nvtx(nsys_version: str | None) -> Check:
    uses = "labels of steps"
    version = programs.installed("nvtx")
    if version is None:
        if torch_versions()[0] is None:
            return Check("nvtx", "missing", "neither nvtx nor torch, whose ranges label as well", uses, _INSTALL)
        return Check("nvtx", "ok", "not installed; torch.cuda.nvtx labels as well", uses)
    if nsys_version is not None and not programs.ranges_reach(nsys_version, version):
        found = f"{version}, whose ranges do not reach nsys {nsys_version}"
        return Check("nvtx", "warning", found, uses, "label with torch.cuda.nvtx, or 'nvtx<0.2.12'")
    return Check("nvtx", "ok", version, uses)
