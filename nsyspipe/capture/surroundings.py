"""What a capture ran on: GPUs, driver, topology, versions, the commit. Small probes, none of which may fail."""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.programs import ROOT, Patience, Run, ask
from nsyspipe.training_packages import nccl_version, torch_versions
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Gpu", "Surroundings", "gather_surroundings", "host_name", "program_directory"]

_TOTAL_S = 12.0
_LONGEST_NAME = 100
_BYTES_PER_MIB = 1 << 20
_GPU_FIELDS = ("index", "name", "memory.total", "driver_version")
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_TOPOLOGY_ROW = re.compile(r"^\s*GPU0\s", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """A GPU of this host; its memory is None when nvidia-smi does not tell."""

    index: int
    name: str
    memory_bytes: int | None


@dataclass(frozen=True)
class Surroundings:
    """What this host and this Python environment are; None for what could not be found out.

    Attributes
    ----------
    topology
        What ``nvidia-smi topo -m`` prints.
    git_commit, git_is_dirty
        Of the repository that holds the training program; untracked files make nothing dirty.
    """

    host: str | None
    gpus: tuple[Gpu, ...]
    driver_version: str | None
    topology: str | None
    torch_version: str | None
    cuda_version: str | None
    nccl_version: str | None
    python_version: str
    git_commit: str | None
    git_is_dirty: bool | None


def gather_surroundings(
    directory: Path | None = None,
    *,
    run: Run = ask,
    root: Path = ROOT,
    search_path: str | None = None,
    total_s: float = _TOTAL_S,
) -> Surroundings:
    """Look at this machine and at the training program's repository, for little more than `total_s` seconds.

    Parameters
    ----------
    directory
        Where the training program lies; None takes the current directory.
    run
        What runs a program with a time limit.
    root, search_path
        Where to look: the file system, programs (None: the environment's).
    """
    patience = Patience(run, total_s)
    smi = shutil.which("nvidia-smi", path=search_path)
    gpus, driver = _gpus(patience, smi) if smi else ((), None)
    commit, is_dirty = _commit(patience, directory or Path(), search_path)
    torch, cuda = torch_versions()
    return Surroundings(
        host=host_name(),
        gpus=gpus,
        driver_version=driver,
        topology=_topology(patience, smi) if smi and gpus else None,
        torch_version=torch,
        cuda_version=cuda,
        nccl_version=nccl_version(root),
        python_version=platform.python_version(),
        git_commit=commit,
        git_is_dirty=is_dirty,
    )


def host_name() -> str | None:
    """Return this host's name, as nsys records it."""
    return printable(platform.node())[:_LONGEST_NAME] or None


def program_directory(command: Sequence[str]) -> Path | None:
    """Return the directory of the first existing Python file that a command names, or None."""
    for word in command:
        if word.endswith(".py") and os.path.isfile(word):  # noqa: PTH113 - False for a word that is no path
            return Path(word).absolute().parent
    return None


def _gpus(patience: Patience, smi: str) -> tuple[tuple[Gpu, ...], str | None]:
    query = (f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits")
    found, driver = [], None
    for line in patience.answer(smi, *query).splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_GPU_FIELDS) or not re.fullmatch(r"[0-9]{1,4}", cells[0]):
            continue
        index, name, memory, version = cells
        is_number = re.fullmatch(r"[0-9]{1,12}", memory)
        n_bytes = int(memory) * _BYTES_PER_MIB if is_number else None
        found.append(Gpu(int(index), printable(name)[:_LONGEST_NAME], n_bytes))
        driver = driver or (version if _VERSION.fullmatch(version) else None)
    return tuple(found), driver


def _topology(patience: Patience, smi: str) -> str | None:
    text = patience.answer(smi, "topo", "-m")
    return text if _TOPOLOGY_ROW.search(text) else None


def _commit(
    patience: Patience, directory: Path, search_path: str | None
) -> tuple[str | None, bool | None]:
    """Ask git; no git, no repository, and one of somebody else's (which git refuses) are all None."""
    git = shutil.which("git", path=search_path)
    if git is None:
        return None, None
    # Changes nothing, and starts no program that the repository's configuration names.
    ask_git = ("-C", str(directory), "--no-optional-locks", "-c", "core.fsmonitor=false")
    commit = patience.answer(git, *ask_git, "rev-parse", "HEAD").strip()
    if not _COMMIT.fullmatch(commit):
        return None, None
    changes = patience.output(git, *ask_git, "status", "--porcelain", "--untracked-files=no")
    if changes is None or changes.status != 0:
        return commit, None
    return commit, bool(changes.text.strip())
