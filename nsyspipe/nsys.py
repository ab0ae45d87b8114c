"""The nsys of this machine: where it is, its version, and what it can do, as its own help tells.

Options and trace values come and go between releases (``--include-blobs``, ``nccl``), so they are asked for
rather than derived from a version. Needs only the standard library: it runs in training environments too.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nsyspipe.errors import NsysFailedError, NsysNotFoundError
from nsyspipe.programs import Run, ask, find_nsys
from nsyspipe.training_packages import numbers

__all__ = ["GET_NSYS", "Nsys", "find", "options_in", "trace_values_in", "version_in"]

GET_NSYS = "install Nsight Systems (developer.nvidia.com/nsight-systems)"

_NAME = "nsys"
# The first start from a shared file system reads hundreds of megabytes.
_ANSWER_S = 60.0
_VERSION = re.compile(r"\bversion (\d+(?:\.\d+)+)")
_TRACE_SENTENCE = re.compile(r"^\s*-t, --trace=\s*([^.]*)\.", re.MULTILINE)
_TRACE_VALUE = re.compile(r"'([a-z][a-z0-9-]*)'")
_OPTION = re.compile(r"^\s*(?:-\w, )?(--[a-z][a-z0-9-]*)", re.MULTILINE)


def version_in(text: str) -> str | None:
    """Return the version that ``nsys --version`` printed, as 2024.2.3.38; None when it did not."""
    found = _VERSION.search(text)
    return found[1] if found else None


def trace_values_in(text: str) -> tuple[str, ...]:
    """Return the values of ``--trace`` that ``nsys profile --help`` lists; empty when it lists none."""
    sentence = _TRACE_SENTENCE.search(text)
    return tuple(_TRACE_VALUE.findall(sentence[1])) if sentence else ()


def options_in(text: str) -> frozenset[str]:
    """Return the long options that a help text describes, as ``--lazy``."""
    return frozenset(_OPTION.findall(text))


@dataclass(frozen=True)
class Nsys:
    """An nsys that answers.

    Attributes
    ----------
    version_text
        As nsys says it: ``2024.2.3.38``.
    version
        Its numbers, to compare by.
    run
        What runs it with a time limit.
    """

    path: Path
    version_text: str
    version: tuple[int, ...]
    run: Run = ask

    def trace_values(self) -> tuple[str, ...]:
        """Return what ``nsys profile --trace`` takes; empty when its help does not tell."""
        return trace_values_in(self._profile_help)

    def profile_has(self, option: str) -> bool:
        """Return whether ``nsys profile`` knows a long option, as ``--cuda-graph-trace``."""
        return option in options_in(self._profile_help)

    def export_has(self, option: str) -> bool:
        """Return whether ``nsys export`` knows a long option, as ``--include-blobs``."""
        return option in options_in(self._export_help)

    @cached_property
    def _profile_help(self) -> str:
        return self._help("profile")

    @cached_property
    def _export_help(self) -> str:
        return self._help("export")

    def _help(self, command: str) -> str:
        output = self.run([str(self.path), command, "--help"], _ANSWER_S)
        return output.text if output is not None and output.status == 0 else ""


def find(program: str | None = None, *, run: Run = ask) -> Nsys:
    """Return the nsys to use, once it has told its version.

    Parameters
    ----------
    program
        A path, a directory that holds nsys, or a name on the search path; None looks on the search path,
        then in the places where packages put it, newest first.
    run
        What runs a program with a time limit.

    Raises
    ------
    NsysNotFoundError
        If there is none.
    NsysFailedError
        If it cannot be started, does not answer, or is something else.
    """
    path = _path(program)
    output = run([str(path), "--version"], _ANSWER_S)
    version = version_in(output.text) if output is not None else None
    if version is not None:
        return Nsys(path, version, numbers(version), run)
    if output is None:
        problem = "cannot be started"
    elif output.status is None:
        problem = f"did not tell its version within {_ANSWER_S:.0f} s"
    elif output.status:
        problem = f"{_NAME} --version fails with status {output.status}"
    else:
        problem = "does not tell a version as nsys does"
    fix = f"try {path} --version by hand, name another nsys, or {GET_NSYS}"
    raise NsysFailedError(str(path), problem, fix=fix)


def _path(program: str | None) -> Path:
    if program is None:
        found = find_nsys()
        if found is None:
            raise NsysNotFoundError(
                _NAME,
                "is not on PATH, and not in the usual places",
                fix=f"{GET_NSYS}, or export PATH=DIRECTORY_OF_NSYS:$PATH",
            )
        return found.path
    named = os.path.expanduser(program)  # noqa: PTH111 - a bare name stays one, to be looked up
    is_directory = bool(named) and Path(named).is_dir()
    given = shutil.which(str(Path(named).absolute() / _NAME) if is_directory else named)
    if given is None:
        raise NsysNotFoundError(
            program or "''", "is no nsys that can be run", fix="name the program: /opt/…/bin/nsys"
        )
    # Absolute: it may be run from another directory.
    return Path(given).absolute()
