"""Reports to SQLite: where each export belongs, which is up to date, and the rest exported, several at once.

Each goes into a hidden directory beside its target, then is renamed: it is there whole or not at
all.
"""

import contextlib
import os
import re
import shlex
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from threading import Event
from types import FrameType
from typing import Any

from nsyspipe.errors import (
    DamagedReportError,
    InputError,
    NsysFailedError,
    NsyspipeError,
    OptionError,
    OutputError,
)
from nsyspipe.nsys.files import (
    check_file,
    no_file,
    readable,
    remove_abandoned,
    remove_side_files,
    scratch_directory,
)
from nsyspipe.nsys.programs import (
    GET_NSYS,
    Nsys,
    Output,
    find,
    handling,
    numbers,
    printed,
    telling_lines,
)

EXPORTED = "exported"
UP_TO_DATE = "up to date"
TIMEOUT_S = 1800.0
# Tables without rows are left out; blobs hold the message sizes of NCCL. Not every nsys has them
# all.
_OPTIONS = ("--include-blobs=true", "--lazy=true", "--force-overwrite=true", "--quiet=true")
_NEWER = re.compile(
    r"created in .{0,80}?version \(?([\w.-]{1,60})\)?, newer than", re.IGNORECASE | re.DOTALL
)
# How a report begins: "NVIDIA Tegra Profiler Report 2024@2@3@38-242334140272v0."
_HEADER = re.compile(rb"Profiler Report (\d+(?:@\d+)+)")
_HEADER_BYTES = 200
# What an export says of itself; before 2023.3 in a table of another name, and not from which
# report.
_META = "META_DATA_EXPORT"
_OLD_META = "EXPORT_META_DATA"
_EVERY_EXPORT_HAS = "StringIds"
_LIMITS = ("EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_TIMES_TO_EXPORT")
_OR_CONVERT = ", or run nsyspipe convert on the machine that captured the reports"
# nsys takes some times a report's size in memory, and a disk only so much at once
_MOST_ROWS = 1000
_MOST_JOBS = 8


@dataclass(frozen=True)
class Exported:
    """An export that is there, and the report it was made from: `EXPORTED` by this call, or `UP_TO_DATE` before it."""

    path: Path
    source: Path
    status: str


def attempt_exports(
    reports: Iterable[Path],
    *,
    directory: Path | None = None,
    targets: Mapping[Path, Path] | None = None,
    nsys: Nsys | str | None = None,
    elsewhere: tuple[Executor, Callable[[], bool]] | None = None,
    jobs: int | None = None,
    force: bool = False,
    timeout_s: float = TIMEOUT_S,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Exported | NsyspipeError]:
    """Export reports, in a directory, to the targets, or each beside its report; for each return its export, or error.

    An export is up to date if it is whole, of a report of that name, and not older; `force` makes
    it again, over any but one of another report. As many run at once as `jobs`, or the cores, say;
    or as an executor `elsewhere` does, with what tells a call there that it is to end, and with the
    nsys there, which `nsys` may name. `on_progress` is called with (reports done, reports to
    export). OptionError if two would go to one file, OutputError if the directory cannot be made,
    NsysNotFoundError or NsysFailedError if no nsys answers. Ctrl-C, SIGTERM and SIGHUP end every
    nsys and leave no half export.
    """
    pairs = [
        (report, targets[report] if targets else target_of(report, directory)) for report in reports
    ]
    by_target: dict[str, Path] = {}
    for source, target in pairs:
        other = by_target.setdefault(os.path.realpath(target), source)
        if other is not source:
            fix = "convert the reports one by one, each into its own directory: -o DIR"
            raise OptionError(
                f"{other} and {source}", f"would both be exported to {target}", fix=fix
            )
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_writable(directory, error) from error
    outcomes: dict[int, Exported | NsyspipeError] = {}
    for at, (source, target) in enumerate(pairs):
        try:
            if is_up_to_date(source, target, force=force):
                outcomes[at] = Exported(target, source, UP_TO_DATE)
        except NsyspipeError as error:
            outcomes[at] = error
    left = {at: pair for at, pair in enumerate(pairs) if at not in outcomes}
    if left:
        for folder in {target.parent for _, target in left.values()}:
            remove_abandoned(folder)
        found = nsys if nsys or elsewhere else find(or_else=_OR_CONVERT)
        options = {"nsys": found, "force": force, "timeout_s": timeout_s}
        made = _export_all(
            list(left.values()), jobs, on_progress or (lambda *_: None), elsewhere, **options
        )
        outcomes |= dict(zip(left, made, strict=True))
    return [outcomes[at] for at in range(len(pairs))]


def all_exported(outcomes: Sequence[Exported | NsyspipeError]) -> list[Exported]:
    """Return the exports where all are needed; else raise the first failure, which says how many others there are."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, NsyspipeError)]
    if failures:
        first = failures[0]
        more = f" (and {len(failures) - 1} more of {len(outcomes)} reports failed)" * (
            len(failures) > 1
        )
        raise type(first)(first.subject, first.problem + more, found=first.found, fix=first.fix)
    return [outcome for outcome in outcomes if isinstance(outcome, Exported)]


def _not_writable(path: Path, error: OSError) -> OutputError:
    return OutputError(
        str(path), f"cannot be written ({error.strerror})", fix="use another directory: -o DIR"
    )


def target_of(report: Path, directory: Path | None = None) -> Path:
    """Return where a report is exported to: beside it, or into a directory."""
    name = report.stem if report.suffix in (".nsys-rep", ".qdrep") else report.name
    return (report.parent if directory is None else directory) / f"{name}.sqlite"


def is_up_to_date(source: Path, target: Path, *, force: bool) -> bool:
    """Return whether a whole export of this report, no older, is there; InputError or OutputError where none can be."""
    with readable(source):
        report = source.stat()
        if not source.is_file():
            raise no_file(source)
        source.open("rb").close()
    if not report.st_size:
        problem = "is empty (0 bytes), so the capture failed"
        raise DamagedReportError(str(source), problem, fix="capture the report again")
    if target.exists() and not target.is_file():
        raise OutputError(
            str(target), "is not an ordinary file", fix="use another directory: -o DIR"
        )
    if not target.exists():
        return False
    origin = None
    try:
        origin = _origin(target)
    except InputError:
        # Cut short, or without a header yet: its writer was killed.
        with contextlib.suppress(OSError), target.open("rb") as file:
            header = file.read(100)
            if not header.strip(b"\0") or header.startswith(b"SQLite format 3"):
                return False
    if origin is not None and origin[0] not in (
        None,
        source.name,
    ):  # it may be all that there is of that capture
        what = f"was exported from {origin[0]}, not from {source.name}"
        raise OutputError(str(target), f"exists, and {what}", fix="use another directory: -o DIR")
    if origin is None and not force:
        fix = "--force to replace it, or use another directory: -o DIR"
        raise OutputError(str(target), "exists, but is not an export of nsys", fix=fix)
    return (
        origin is not None
        and not force
        and origin[1]
        and target.stat().st_mtime_ns >= report.st_mtime_ns
    )


def _export_all(
    pairs: Sequence[tuple[Path, Path]],
    jobs: int | None,
    on_progress: Callable[[int, int], None],
    elsewhere: tuple[Executor, Callable[[], bool]] | None,
    **options: Any,  # noqa: ANN401 - of `_export`
) -> list[Exported | NsyspipeError]:
    stopped = Event()
    on_progress(0, len(pairs))
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    threads = ThreadPoolExecutor(min(jobs or min(cores, _MOST_JOBS), len(pairs)))
    with _catching_ends(), threads:
        executor, options["is_stopped"] = elsewhere or (threads, stopped.is_set)
        calls = [[path.absolute() if elsewhere else path for path in pair] for pair in pairs]
        futures = [executor.submit(_export, *call, **options) for call in calls]
        try:
            running = set(futures)
            while running:
                _, running = wait(running, return_when=FIRST_COMPLETED)
                on_progress(len(pairs) - len(running), len(pairs))
        except BaseException:  # Ctrl-C and the like: end every nsys, leave nothing half-written
            stopped.set()
            executor.shutdown(cancel_futures=True)
            raise
    return [_outcome(future, *pair) for future, pair in zip(futures, pairs, strict=True)]


def _outcome(future: Future[None], source: Path, target: Path) -> Exported | NsyspipeError:
    try:
        future.result()
    except OSError as error:
        return _not_writable(target, error)
    except NsyspipeError as error:
        return error
    return Exported(target, source, EXPORTED)


def _export(
    source: Path,
    target: Path,
    *,
    nsys: Nsys | str | None,
    force: bool,
    timeout_s: float,
    is_stopped: Callable[[], bool],
) -> None:
    """Export one report, by an nsys or the one of that name here: under another name first, renamed when all is well."""
    nsys = nsys if isinstance(nsys, Nsys) else find(nsys)
    real = Path(os.path.realpath(target))  # through a link, not over it
    with readable(source):
        before = source.stat()
    with scratch_directory(real.parent) as scratch:
        made = scratch / target.name
        run_export(nsys, source, made, timeout_s=timeout_s, is_stopped=is_stopped)
        _check_made(source, made, before)
        # A report's time may be ahead of this machine's clock.
        if made.stat().st_mtime_ns < before.st_mtime_ns:
            os.utime(made, ns=(before.st_mtime_ns, before.st_mtime_ns))
        if not real.exists():
            remove_side_files(real)
            with contextlib.suppress(OSError):  # it is there now, or this file system has no links
                real.hardlink_to(made)
                return
        # Another process may have made the same meanwhile, and somebody be reading it: it must not
        # change then.
        if force or not is_up_to_date(source, target, force=False):
            remove_side_files(real)
            made.replace(real)


def _catching_ends() -> contextlib.AbstractContextManager[None]:
    """Make an error of the signals that would end this process at once, and leave nsys behind."""
    # What a scheduler sends, and a terminal that closes; Ctrl-C is Python's own.
    ending = (
        (signal.SIGTERM, signal.SIGHUP)
        if threading.current_thread() is threading.main_thread()
        else ()
    )
    caught = [one for one in ending if signal.getsignal(one) is signal.SIG_DFL]

    def end(number: int, _frame: FrameType | None) -> None:
        for one in caught:  # once is enough: a second one would disturb the end
            signal.signal(one, signal.SIG_IGN)
        sys.exit(128 + number)

    return handling(end, *caught)


def _check_made(source: Path, made: Path, before: os.stat_result) -> None:
    try:
        check_file(made)
    except InputError as error:
        problem = (
            f"nsys export succeeded, but its output is not a complete report ({error.problem})"
        )
        fix = "check the free disk space, or use another nsys: nsyspipe convert --nsys PATH"
        raise NsysFailedError(str(source), problem, fix=fix) from error
    with readable(source):
        after = source.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DamagedReportError(
            str(source), "changed during the export", fix="wait until the capture has ended"
        )


def export_options(nsys: Nsys) -> tuple[str, ...]:
    """Return the options for a whole SQLite export that this nsys knows."""
    return tuple(one for one in _OPTIONS if nsys.has("export", one.partition("=")[0]))


def run_export(
    nsys: Nsys, report: Path, made: Path, *, timeout_s: float, is_stopped: Callable[[], bool]
) -> None:
    """Export one report to a new file; NsysFailedError if nsys fails, does not end in time or is stopped."""
    arguments = ["--type=sqlite", *export_options(nsys), f"--output={made.absolute()}"]
    # Absolute: a name that starts with a dash is no option then, and nsys runs elsewhere.
    command = [str(nsys.path), "export", *arguments, str(report.absolute())]
    try:
        output = printed(command, timeout_s, folder=made.parent, is_stopped=is_stopped)
    except OSError as error:
        raise NsysFailedError(
            str(nsys.path), f"cannot be started ({error.strerror})", fix=GET_NSYS
        ) from error
    if is_stopped():
        raise NsysFailedError(str(report), "was not exported: interrupted")
    if output.status != 0 or not made.is_file():
        raise _failure(nsys, report, output, timeout_s)


def _failure(nsys: Nsys, report: Path, output: Output, timeout_s: float) -> NsysFailedError:
    status = output.status
    said = output.text
    by_hand = shlex.join([str(nsys.path), "export", "--type=sqlite", str(report.absolute())])
    found: str | None = " / ".join(telling_lines(said, 3)) or None
    if status is None:
        problem = f"nsys export did not end within {timeout_s:g} s, and was stopped"
        found = None
        fix = f"--timeout {max(2 * timeout_s, 60):.0f}, or run the export yourself: {by_hand}"
    elif needed := _needed_version(nsys, report, said):
        problem = (
            f"was captured with nsys {needed}, but nsys {nsys.version_text} on this machine cannot "
            "read such a report"
        )
        found = str(nsys.path)
        where = "nsyspipe convert --nsys PATH, or run that on the machine that captured it"
        fix = (
            f"install Nsight Systems {needed} or newer (developer.nvidia.com/nsight-systems), or "
            f"pass its path with {where}"
        )
    elif status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"{-status}"
        problem = (
            f"nsys export was killed by signal {name}, perhaps because memory or disk space ran out"
        )
        fix = "use fewer processes: -j 1"
    else:
        problem = (
            "nsys export "
            f"{f'failed with status {status}' if status else 'succeeded but wrote no file'}"
        )
        fix = f"copy or capture the report again if it is incomplete, or run {by_hand}"
    return NsysFailedError(str(report), problem, found=found, fix=fix)


def _needed_version(nsys: Nsys, report: Path, said: str) -> str | None:
    """Return the version that a report needs if nsys refuses it as newer, or fails on one that is; else None."""
    found = _NEWER.search(said)
    if found:
        return found[1].partition("-")[0]  # without the build's number
    with contextlib.suppress(OSError), report.open("rb") as file:
        header = _HEADER.search(file.read(_HEADER_BYTES))
        if header:
            captured = header[1].decode("ascii").replace("@", ".")
            if numbers(captured) > numbers(nsys.version_text):
                return captured
    return f"later than {nsys.version_text}" if "newer than your" in said else None


def _origin(path: Path) -> tuple[str | None, bool] | None:
    """Return the name of an export's report (None before 2023.3), and whether it has all; None if it is not nsys's."""
    _, flags = check_file(path)
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?{flags}", uri=True)
        ) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if _META not in tables:
                return (None, True) if tables & {_OLD_META, _EVERY_EXPORT_HAS} else None
            query = f"SELECT name, value FROM {_META} LIMIT {_MOST_ROWS}"  # noqa: S608 - constants
            said = {str(name): value for name, value in database.execute(query)}
    except (sqlite3.Error, UnicodeDecodeError):
        return None
    given = said.get("EXPORT_PARAM_INPUT_FILE")
    # A report may have been exported on Windows.
    name = PurePosixPath(PureWindowsPath(given).name).name if isinstance(given, str) else None
    return name or None, not any(said.get(one) for one in _LIMITS)
