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

    Code without a file is not, nor are installed packages, the standard library and PyTorch.
    Installed packages are in ``site-packages`` or ``dist-packages``. The standard library is in a
    folder such as ``lib/python3.12``. PyTorch is a folder ``torch`` with the names of PyTorch's
    packages.
    """
    if path.startswith(_NO_FILE):
        return False
    return _OF_PYTHON.search(path) is None and _OF_TORCH.search(path) is None


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Return how each file is shown, by its path.

    A file of the program is shown relative to the longest folder that the files of the program have
    in common. Any other file is shown from its package on.
    """
    distinct_paths = set(paths)
    paths_of_program = sorted(path for path in distinct_paths if is_of_program(path))
    folder = _common_folder(paths_of_program)
    name_of_path = {}
    for path in distinct_paths:
        name_of_path[path] = _name_in_package(path)
    for path in paths_of_program:
        name_of_path[path] = path[len(folder) :].lstrip("/")
    return name_of_path


def _common_folder(paths: list[str]) -> str:
    """Return the longest folder that all paths are in; an empty text if they have none."""
    folders = [os.path.dirname(path) for path in paths]  # noqa: PTH120 - not of this machine
    if not folders or "" in folders:
        return ""
    are_absolute = {folder.startswith("/") for folder in folders}
    if len(are_absolute) > 1:
        # An absolute and a relative path have nothing in common.
        return ""
    return os.path.commonpath(folders)


def _name_in_package(path: str) -> str:
    """Return the part of a path that begins with its package, or with PyTorch's folder.

    The whole path if it has neither, or if the code is in no file.
    """
    if path.startswith(_NO_FILE):
        return path
    # Packages may be in lib/python3.12/site-packages. So the last such folder counts.
    start_of_package = 0
    for folder_of_python in _OF_PYTHON.finditer(path):
        start_of_package = folder_of_python.end()
    if start_of_package:
        return path[start_of_package:]
    folder_of_torch = _OF_TORCH.search(path)
    start = 0 if folder_of_torch is None else folder_of_torch.start()
    return path[start:].lstrip("/")
