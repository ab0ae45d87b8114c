"""Versions of what a training job runs on, without importing it: torch alone would take seconds."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from pathlib import Path

__all__ = ["nccl_version", "numbers", "nvtx_version", "torch_versions"]

_CUDA = re.compile(r"""^cuda(?:\s*:[^=\n]*)?\s*=\s*['"]([\d.]+)['"]""", re.MULTILINE)
_VERSION = re.compile(r"""^__version__\s*=\s*['"]([\w.+-]+)['"]""", re.MULTILINE)
_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
# Where containers and distributions keep a library of their own.
_NCCL_LIBRARIES = ("usr/lib/*-linux-gnu/libnccl.so.*.*.*", "usr/lib64/libnccl.so.*.*.*")
_LIBRARY_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, to compare by.

    Examples
    --------
    >>> numbers("0.2.12rc1")
    (0, 2, 12)
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def torch_versions() -> tuple[str | None, str | None]:
    """Return torch's version and that of the CUDA it was built for; None for what is not there."""
    try:
        spec = importlib.util.find_spec("torch")
        text = Path(spec.origin or "").with_name("version.py").read_text("utf-8") if spec else ""
    except (ImportError, OSError, ValueError):
        text = ""
    version, cuda = _VERSION.search(text), _CUDA.search(text)
    return version[1] if version else _installed("torch"), cuda[1] if cuda else None


def nccl_version(root: Path) -> str | None:
    """Return the version of NCCL that torch brought, else of the system's library; None without either."""
    for package in _NCCL_PACKAGES:
        if version := _installed(package):
            return version
    found = [path for pattern in _NCCL_LIBRARIES for path in root.glob(pattern)]
    matches = [match[1] for path in found if (match := _LIBRARY_VERSION.search(path.name))]
    return max(matches, key=numbers, default=None)


def nvtx_version() -> str | None:
    """Return the version of the ``nvtx`` package of PyPI; torch's own ranges do without it."""
    return _installed("nvtx")


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, KeyError, OSError, ValueError):  # also a broken one
        return None
