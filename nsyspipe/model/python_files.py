"""Which Python files belong to the user's program, and how their names are shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

# Code that is not in a file, for example ``<frozen runpy>``.
_NO_FILE = "<"
# The file of samples that were due while the thread itself held Python's lock (GIL), for example in
# a call in C. The sampler needs the lock, so it takes them later, and the frames are those of a
# later line.
NOT_SEEN = "<not seen>"
# Values of `schema.HOST_LINES`, column ``frame``.
INNERMOST = "innermost"
IN_PROGRAM = "program"
LET_GO = "let_go"
LOCK_HOLDER = "lock_holder"
CALL = "call"
FUNCTION = "function"
# What Python and its installers put below a folder ``lib/python3.12``: the standard library, and
# packages of a virtual environment. Debian's ``dist-packages`` may lie in ``lib/python3``.
_OF_PYTHON = re.compile(
    r"(?<![^/])(?:site-packages|dist-packages|lib(?:32|64)?/python[0-9][0-9.]*(?:\.zip|t)?)/"
)
# PyTorch may be built in a folder of its own.
_OF_TORCH = re.compile(
    r"(?:^|/)torch/(?:_[a-z_]+|autograd|backends|compiler|cuda|distributed|fx|jit|multiprocessing"
    r"|nn|optim|profiler|utils)(?:/|\.py$)"
)


def is_of_program(path: str) -> bool:
    """Tell whether a file is of the user's program.

    It is, unless its code has no file, was installed, or is Python's or PyTorch's. Installed means
    in ``site-packages`` or ``dist-packages``. The standard library is what else is in a folder such
    as ``lib/python3.12``. PyTorch is a folder ``torch`` with the names of PyTorch's packages.
    """
    if path.startswith(_NO_FILE):
        return False
    return _OF_PYTHON.search(path) is None and _OF_TORCH.search(path) is None


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Return how each file is shown.

    A file of the program is shown relative to the longest folder that these files have in common.
    Any other file is shown from its package on.
    """
    distinct = set(paths)
    of_program = sorted(path for path in distinct if is_of_program(path))
    folder = _common_folder(of_program)
    names = {}
    for path in distinct:
        names[path] = _name_in_package(path)
    for path in of_program:
        names[path] = path[len(folder) :].lstrip("/")
    return names


def _common_folder(paths: list[str]) -> str:
    """Return the longest folder that all paths are in; an empty text if they have none."""
    folders = [os.path.dirname(path) for path in paths]  # noqa: PTH120 - not of this machine
    if not folders or "" in folders:
        return ""
    is_absolute = [folder.startswith("/") for folder in folders]
    if any(is_absolute) and not all(is_absolute):
        return ""
    return os.path.commonpath(folders)


def _name_in_package(path: str) -> str:
    """Return the part of a path that begins with its package, or with PyTorch's folder."""
    if path.startswith(_NO_FILE):
        return path
    end_of_python = 0
    for match in _OF_PYTHON.finditer(path):
        end_of_python = match.end()
    if end_of_python:
        return path[end_of_python:]
    match_of_torch = _OF_TORCH.search(path)
    start = 0 if match_of_torch is None else match_of_torch.start()
    return path[start:].lstrip("/")
