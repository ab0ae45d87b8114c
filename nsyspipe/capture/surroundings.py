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
# What starts our own modules in a job.
_RUNNER = "/launchers/run_module.py"
# Nothing of a repository that git would start, or fetch from where a repository says.
_NO_PROGRAMS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "safe.bareRepository=explicit",
    *(
        f"protocol{one}.allow=never"
        for one in ("", ".ext", ".file", ".git", ".ssh", ".http", ".https")
    ),
)
_NO_SETTING = re.compile(r"[=\n\ufffd]")
_MOST_CHANGES = 1000
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
        Where the training program lies; None where nobody knows: no commit is looked for.
    run
        What runs a program with a time limit.
    root, search_path
        Where to look: the file system, programs (None: the environment's).
    """
    patience = Patience(run, total_s)
    smi = shutil.which("nvidia-smi", path=search_path)
    gpus, driver = _gpus(patience, smi) if smi else ((), None)
    commit, is_dirty = _commit(patience, directory, search_path)
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
    """Return the directory of the first existing Python file that a command names, or None; what starts our modules is none."""
    for word in command:
        is_python = word.endswith(".py") and not word.endswith(_RUNNER)
        if is_python and os.path.isfile(word):  # noqa: PTH113 - False for a word that is no path
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
    patience: Patience, directory: Path | None, search_path: str | None
) -> tuple[str | None, bool | None]:
    """Ask git; no git, no repository, and one of somebody else's (which git refuses) are all None."""
    git = shutil.which("git", path=search_path)
    if git is None or directory is None:
        return None, None
    # Changes nothing, and starts no program that the repository's configuration names.
    settings = [word for one in _NO_PROGRAMS for word in ("-c", one)]
    here = (git, "-C", str(directory), "--no-optional-locks", *settings)
    commit = patience.answer(*here, "rev-parse", "HEAD").strip()
    if not _COMMIT.fullmatch(commit):
        return None, None
    filters = _filters(patience, here)
    top = patience.answer(*here, "rev-parse", "--show-toplevel").removesuffix("\n")
    if filters is None or not top:
        return commit, None
    # A name that filters have set is set to nothing: a file is compared as it is.
    settings += [word for one in filters for word in ("-c", one)]
    there = (git, "-C", top, "--no-optional-locks", *settings)
    return commit, _is_dirty(patience, there, has_filters=bool(filters))


def _filters(patience: Patience, here: Sequence[str]) -> list[str] | None:
    """Return settings that switch off what changes files between a repository and its directory; None if some stay."""
    found = patience.output(*here, "config", "--null", "--name-only", "--get-regexp", r"^filter\.")
    if found is None or found.status not in (0, 1):  # 1: there are none
        return None
    drivers = {name.rpartition(".")[0] for name in found.text.split("\0") if name}
    if any(map(_NO_SETTING.search, drivers)):
        return None
    return [
        f"{one}.{what}"
        for one in sorted(drivers)
        for what in ("clean=", "smudge=", "process=", "required=false")
    ]


def _is_dirty(patience: Patience, there: Sequence[str], *, has_filters: bool) -> bool | None:
    """Tell whether a file is changed; None if all that differ have a filter, which nobody asked."""
    # A submodule is asked for its commit only: git would start in it with that repository's own configuration.
    options = ("--porcelain", "-z", "--untracked-files=no", "--no-renames")
    found = patience.output(*there, "status", *options, "--ignore-submodules=dirty")
    if found is None or found.status != 0:
        return None
    changed = [line[3:] for line in found.text.split("\0") if line]
    if not changed or not has_filters:
        return bool(changed)
    told = patience.output(*there, "check-attr", "-z", "filter", "--", *changed[:_MOST_CHANGES])
    if told is None or told.status != 0:
        return None
    return True if {"unspecified", "unset"} & set(told.text.split("\0")[2::3]) else None
