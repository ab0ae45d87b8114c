"""One ``nsys export``: its options, its end, what its failure means, and what an export says of its origin.

Only the standard library is needed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, BinaryIO

from nsyspipe.errors import NsysFailedError, NsyspipeError
from nsyspipe.nsys.files import check_file
from nsyspipe.nsys.programs import GET_NSYS, numbers, telling_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from threading import Event

    from nsyspipe.nsys.programs import Nsys


# Tables without rows are left out; blobs hold the message sizes of NCCL. Not every nsys has them all.
_OPTIONS = ("--include-blobs=true", "--lazy=true", "--force-overwrite=true", "--quiet=true")

_NEWER = re.compile(r"created in .{0,80}?version \(?([\w.-]{1,60})\)?, newer than", re.IGNORECASE | re.DOTALL)
# How a report begins: "NVIDIA Tegra Profiler Report 2024@2@3@38-242334140272v0."
_HEADER = re.compile(rb"Profiler Report (\d+(?:@\d+)+)")
_HEADER_BYTES = 200
_MOST_BYTES, _MOST_LINES = 1 << 16, 3
_FIRST_POLL_S, _LAST_POLL_S = 0.01, 0.2


class ExportStoppedError(NsyspipeError):
    """The caller asked to stop: of no interest to a user, who asked."""


def export_options(nsys: Nsys) -> tuple[str, ...]:
    """Return the options for a whole SQLite export that this nsys knows."""
    return tuple(one for one in _OPTIONS if nsys.export_has(one.partition("=")[0]))


def run_export(nsys: Nsys, report: Path, output: Path, *, timeout_s: float, stopped: Event) -> None:
    """Export one report to a file that is not there yet; whatever nsys started is ended with it, also once we are `stopped`.

    NsysFailedError if nsys cannot be started, fails, is killed or does not end in time; ExportStoppedError if it was stopped.
    """
    arguments = ["--type=sqlite", *export_options(nsys), f"--output={output.absolute()}"]
    # Absolute: a name that starts with a dash is no option then, and nsys runs elsewhere.
    command = [str(nsys.path), "export", *arguments, str(report.absolute())]
    with tempfile.TemporaryFile() as log:
        try:
            status = _status(command, output.parent, log, timeout_s, stopped)
        except OSError as error:
            problem = f"cannot be started ({error.strerror})"
            raise NsysFailedError(str(nsys.path), problem, fix=GET_NSYS) from error
        said = _tail(log)
    if stopped.is_set():
        raise ExportStoppedError(str(report), "was not exported: interrupted")
    if status != 0 or not output.is_file():
        raise _failure(nsys, report, status, said, timeout_s)


def _status(command: Sequence[str], folder: Path, log: BinaryIO, timeout_s: float, stopped: Event) -> int | None:
    """Run a command to its end, or end it: None when time was up or it was stopped."""
    process = subprocess.Popen(  # noqa: S603 - a list, no shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=folder,
        # Its own group: Ctrl-C reaches us, and we end it with all that it started.
        start_new_session=True,
    )
    deadline, poll_s = time.monotonic() + timeout_s, _FIRST_POLL_S
    try:
        while (status := process.poll()) is None and time.monotonic() < deadline:
            if stopped.wait(poll_s):
                break
            poll_s = min(poll_s * 1.5, _LAST_POLL_S)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return status


def _tail(log: BinaryIO) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _MOST_BYTES))
    return log.read(_MOST_BYTES).decode("utf-8", "replace")


def _failure(nsys: Nsys, report: Path, status: int | None, said: str, timeout_s: float) -> NsysFailedError:
    by_hand = shlex.join([str(nsys.path), "export", "--type=sqlite", str(report.absolute())])
    found: str | None = "; ".join(telling_lines(said, _MOST_LINES)) or None
    if status is None:
        problem, found = f"nsys export did not end within {timeout_s:g} s, and was ended", None
        fix = f"--timeout {max(2 * timeout_s, 60):.0f}, or see what it does: {by_hand}"
    elif needed := _needed_version(nsys, report, said):
        problem = f"was captured by nsys {needed}, and the nsys here is {nsys.version_text}, which cannot read it"
        found = str(nsys.path)
        fix = (
            f"install Nsight Systems {needed} or newer (developer.nvidia.com/nsight-systems), name one with "
            "nsyspipe convert --nsys PATH, or run that on the machine that captured it"
        )
    elif status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"{-status}"
        problem = f"nsys export was killed by signal {name}; memory or disk may have run out"
        fix = "fewer at once: -j 1"
    else:
        how = f"fails with status {status}" if status else "ends well but writes no file"
        problem = f"nsys export {how}"
        fix = f"copy or capture the report again if it is not whole, or try {by_hand}"
    return NsysFailedError(str(report), problem, found=found, fix=fix)


def _needed_version(nsys: Nsys, report: Path, said: str) -> str | None:
    """Return the version that a report needs if nsys refuses it as newer, or fails on one that is; else None."""
    if found := _NEWER.search(said):
        return found[1].partition("-")[0]  # without the build's number
    with contextlib.suppress(OSError), report.open("rb") as file:
        if header := _HEADER.search(file.read(_HEADER_BYTES)):
            captured = header[1].decode("ascii").replace("@", ".")
            if numbers(captured) > nsys.version:
                return captured
    return f"later than {nsys.version_text}" if "newer than your" in said else None


# What an SQLite file says about its own export: whether nsys wrote it, whole, and from which report.

_META, _OLD_META = "META_DATA_EXPORT", "EXPORT_META_DATA"
_EVERY_EXPORT_HAS = "StringIds"
_INPUT = "EXPORT_PARAM_INPUT_FILE"
_LIMITS = ("EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_TIMES_TO_EXPORT")
_MOST_ROWS = 1000


@dataclass(frozen=True)
class ExportOrigin:
    """The file name of an export's report, None when it does not say (before 2023.3), and if it has all tables and times."""

    report_name: str | None
    is_whole: bool


def export_origin(path: Path) -> ExportOrigin | None:
    """Return what an export says of itself; None for an SQLite file that nsys did not write.

    NotAReportError or DamagedReportError if it is no SQLite file, or one that is not whole.
    """
    _, flags = check_file(path)
    uri = f"{path.absolute().as_uri()}?{flags}"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if _META not in tables:
                is_nsys = bool(tables & {_OLD_META, _EVERY_EXPORT_HAS})
                return ExportOrigin(None, is_whole=True) if is_nsys else None
            query = f"SELECT name, value FROM {_META} LIMIT {_MOST_ROWS}"  # noqa: S608 - constants
            said = {str(name): value for name, value in database.execute(query)}
    except (sqlite3.Error, UnicodeDecodeError):
        return None
    given = said.get(_INPUT)
    # A report may have been exported on Windows.
    name = PurePosixPath(PureWindowsPath(given).name).name if isinstance(given, str) else None
    return ExportOrigin(name or None, not any(said.get(one) for one in _LIMITS))
