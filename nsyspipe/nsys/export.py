"""Exports reports to SQLite, several at once, and skips those that are up to date.

An export is written into a hidden directory next to its target, and renamed when it is complete.
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
from typing import Any, NamedTuple

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
    count_cores,
    find,
    handling,
    numbers,
    printed,
    telling_lines,
)

EXPORTED = "exported"
UP_TO_DATE = "up to date"
TIMEOUT_S = 1800.0
# Tables without rows are left out. Blobs have the message sizes of NCCL. Not every nsys has all of
# these options.
_OPTIONS = ("--include-blobs=true", "--lazy=true", "--force-overwrite=true", "--quiet=true")
_NEWER = re.compile(
    r"created in .{0,80}?version \(?([\w.-]{1,60})\)?, newer than", re.IGNORECASE | re.DOTALL
)
# How a report begins: "NVIDIA Tegra Profiler Report 2024@2@3@38-242334140272v0."
_HEADER = re.compile(rb"Profiler Report (\d+(?:@\d+)+)")
_HEADER_BYTES = 200
# No version of nsys.
_UNKNOWN_VERSION = ""
# The table with the settings of an export. Before 2023.3 it has another name, and does not name the
# report.
_META = "META_DATA_EXPORT"
_OLD_META = "EXPORT_META_DATA"
_EVERY_EXPORT_HAS = "StringIds"
_LIMITS = ("EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_TIMES_TO_EXPORT")
_ANOTHER_DIRECTORY = "use another directory: -o DIR"
_OR_CONVERT = ", or run nsyspipe convert on the machine that captured the reports"
# nsys takes some times a report's size in memory, and a disk only so much at once
_MAX_ROWS = 1000
_MAX_DEFAULT_JOBS = 8


@dataclass(frozen=True)
class Exported:
    """A complete export, and the report that it was made from."""

    path: Path
    source: Path
    # `EXPORTED` by this call, or `UP_TO_DATE` before it.
    status: str


class _Pair(NamedTuple):
    """A report, and where it is exported to."""

    source: Path
    target: Path


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
    """Export reports to a directory, to targets, or each to its own directory.

    Returns, for each report in order, its export or its error. A report is not exported if its
    target is an export that is up to date: complete, of a report with this name, and not older than
    the report. `force` exports again, and replaces any export but that of another report. `jobs` is
    how many reports are exported at once; None is as many as there are cores, up to a limit.
    `on_progress` is called with (reports done, reports to export).

    `elsewhere` is for exports on other machines: an executor that runs each export there, and a
    function that is called there and tells whether to stop. `nsys` names an nsys of the machine on
    which it runs. None stands for the nsys that is installed there.

    Raises OptionError if two reports would be exported to one file, OutputError if the directory
    cannot be created, and NsysNotFoundError or NsysFailedError if no nsys answers. Ctrl-C, SIGTERM
    and SIGHUP end all running nsys, and leave no incomplete export.
    """
    pairs = _pairs(reports, directory, targets)
    _refuse_shared_targets(pairs)
    if directory is not None:
        _make_directory(directory)
    # None for a report that must be exported.
    outcomes = [_existing_export(pair, force=force) for pair in pairs]
    to_export = [pair for pair, outcome in zip(pairs, outcomes, strict=True) if outcome is None]
    if not to_export:
        return _filled(outcomes, [])
    _remove_abandoned_exports(to_export)
    # Other machines find their own nsys.
    if not nsys and not elsewhere:
        nsys = find(or_else=_OR_CONVERT)
    options = {"nsys": nsys, "force": force, "timeout_s": timeout_s}
    report_progress = on_progress or _ignore_progress
    exports = _export_all(
        to_export, jobs=jobs, on_progress=report_progress, elsewhere=elsewhere, **options
    )
    return _filled(outcomes, exports)


def _pairs(
    reports: Iterable[Path], directory: Path | None, targets: Mapping[Path, Path] | None
) -> list[_Pair]:
    """Return each report with the path of its export."""
    if targets:
        return [_Pair(report, targets[report]) for report in reports]
    return [_Pair(report, target_of(report, directory)) for report in reports]


def _filled(
    outcomes: Iterable[Exported | NsyspipeError | None],
    missing_outcomes: Iterable[Exported | NsyspipeError],
) -> list[Exported | NsyspipeError]:
    """Return outcomes with the missing ones, in their order, in the places of None."""
    missing = iter(missing_outcomes)
    return [next(missing) if outcome is None else outcome for outcome in outcomes]


def _ignore_progress(_n_done: int, _n_all: int) -> None:
    pass


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError.not_writable(str(directory), error, fix=_ANOTHER_DIRECTORY) from error


def _remove_abandoned_exports(pairs: Iterable[_Pair]) -> None:
    """Remove what killed processes left in the directories of some exports."""
    for folder in {pair.target.parent for pair in pairs}:
        remove_abandoned(folder)


def _refuse_shared_targets(pairs: Iterable[_Pair]) -> None:
    """Raise OptionError if two reports would be exported to one file."""
    source_of_target: dict[str, Path] = {}
    for source, target in pairs:
        real_target = os.path.realpath(target)
        first_source = source_of_target.setdefault(real_target, source)
        if first_source is not source:
            fix = "convert the reports one by one, each into its own directory: -o DIR"
            raise OptionError(
                f"{first_source} and {source}", f"would both be exported to {target}", fix=fix
            )


def _existing_export(pair: _Pair, *, force: bool) -> Exported | NsyspipeError | None:
    """Return the export of a report if it is up to date; None if the report must be exported.

    If the report cannot be exported, return the error.
    """
    try:
        is_current = is_up_to_date(pair.source, pair.target, force=force)
    except NsyspipeError as error:
        return error
    return Exported(pair.target, pair.source, UP_TO_DATE) if is_current else None


def all_exported(outcomes: Sequence[Exported | NsyspipeError]) -> list[Exported]:
    """Return the exports. If some failed, raise the first error, with the number of the others."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, NsyspipeError)]
    if failures:
        first = failures[0]
        problem = first.problem
        n_more = len(failures) - 1
        if n_more:
            problem += f" (and {n_more} more of {len(outcomes)} reports failed)"
        # An error of the same class, for the same report.
        raise type(first)(first.subject, problem, found=first.found, fix=first.fix)
    return [outcome for outcome in outcomes if isinstance(outcome, Exported)]


def target_of(report: Path, directory: Path | None = None) -> Path:
    """Return where a report is exported to. Without a directory, this is next to the report."""
    folder = report.parent if directory is None else directory
    name = report.stem if report.suffix in (".nsys-rep", ".qdrep") else report.name
    return folder / f"{name}.sqlite"


def is_up_to_date(source: Path, target: Path, *, force: bool) -> bool:
    """Tell whether the target is a complete export of a report, not older than the report.

    With `force`, the answer is no, so that the report is exported again. Raises InputError if the
    report cannot be exported, and OutputError if the target must not be replaced.
    """
    report_time_ns = _checked_time_ns(source)
    if not target.exists():
        return False
    if not target.is_file():
        raise OutputError(str(target), "is not an ordinary file", fix=_ANOTHER_DIRECTORY)
    try:
        # None for a file that is not an export of nsys.
        origin = _origin(target)
    except InputError:
        # The target is not a complete SQLite file.
        if _is_incomplete(target):
            return False
        origin = None
    if origin is None:
        if force:
            return False
        fix = "--force to replace it, or use another directory: -o DIR"
        raise OutputError(str(target), "exists, but is not an export of nsys", fix=fix)
    is_of_other_report = origin.report_name not in (None, source.name)
    if is_of_other_report:
        # Not even `force` replaces this export, which may be all that is left of the other capture.
        what = f"was exported from {origin.report_name}, not from {source.name}"
        raise OutputError(str(target), f"exists, and {what}", fix=_ANOTHER_DIRECTORY)
    is_older_than_report = target.stat().st_mtime_ns < report_time_ns
    return origin.is_complete and not is_older_than_report and not force


def _checked_time_ns(source: Path) -> int:
    """Return when a report was written, in ns; InputError if the report cannot be exported."""
    with readable(source):
        status = source.stat()
        if not source.is_file():
            raise no_file(source)
        # This fails if the user may not read the report.
        source.open("rb").close()
    if not status.st_size:
        problem = "is empty (0 bytes), so the capture failed"
        raise DamagedReportError(str(source), problem, fix="capture the report again")
    return status.st_mtime_ns


def _is_incomplete(target: Path) -> bool:
    """Tell whether a file that is no complete database is an export whose writer was killed.

    Such a file has no header yet, or the header of a database.
    """
    # False if the file cannot be read.
    with contextlib.suppress(OSError), target.open("rb") as file:
        header = file.read(100)
        is_empty = not header.strip(b"\0")
        return is_empty or header.startswith(b"SQLite format 3")
    return False


def _export_all(
    pairs: Sequence[_Pair],
    *,
    jobs: int | None,
    on_progress: Callable[[int, int], None],
    elsewhere: tuple[Executor, Callable[[], bool]] | None,
    **options: Any,  # noqa: ANN401 - of `_export`
) -> list[Exported | NsyspipeError]:
    """Export reports by several threads, or by an executor elsewhere; return their outcomes.

    `elsewhere` is explained at `attempt_exports`. `options` are those of `_export`, without
    `is_stopped`.
    """
    stopped = Event()
    n_reports = len(pairs)
    on_progress(0, n_reports)
    n_threads = jobs or min(count_cores(), _MAX_DEFAULT_JOBS)
    threads = ThreadPoolExecutor(min(n_threads, n_reports))
    with _catching_ends(), threads:
        executor, is_stopped = elsewhere or (threads, stopped.is_set)
        # Other machines have another current directory.
        submitted_pairs = [_absolute(pair) if elsewhere else pair for pair in pairs]
        futures = [
            executor.submit(_export, *pair, is_stopped=is_stopped, **options)
            for pair in submitted_pairs
        ]
        try:
            running = set(futures)
            while running:
                _, running = wait(running, return_when=FIRST_COMPLETED)
                n_done = n_reports - len(running)
                on_progress(n_done, n_reports)
        except BaseException:
            # Ctrl-C and the like end all nsys, so that nothing incomplete is left.
            stopped.set()
            executor.shutdown(cancel_futures=True)
            raise
    ended = zip(futures, pairs, strict=True)
    return [_outcome(future, *pair) for future, pair in ended]


def _absolute(pair: _Pair) -> _Pair:
    return _Pair(pair.source.absolute(), pair.target.absolute())


def _outcome(future: Future[None], source: Path, target: Path) -> Exported | NsyspipeError:
    """Return the export that a finished call made, or the error with which it failed."""
    try:
        future.result()
    except OSError as error:
        return OutputError.not_writable(str(target), error, fix=_ANOTHER_DIRECTORY)
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
    """Export one report into a scratch directory, and move the complete export to its target.

    `nsys` may be the name of an nsys on the machine where this function runs. An export that
    another process made meanwhile stays, unless `force`.
    """
    nsys = nsys if isinstance(nsys, Nsys) else find(nsys)
    # If the target is a link, the file that it points to is replaced, and the link stays.
    real_target = Path(os.path.realpath(target))
    with readable(source):
        before = source.stat()
    with scratch_directory(real_target.parent) as scratch:
        export = scratch / target.name
        run_export(nsys, source, export, timeout_s=timeout_s, is_stopped=is_stopped)
        _check_export(source, export, before)
        # The time of a report may be ahead of the clock of this machine. The export must not look
        # older than the report, or it would never be up to date.
        if export.stat().st_mtime_ns < before.st_mtime_ns:
            os.utime(export, ns=(before.st_mtime_ns, before.st_mtime_ns))
        if not real_target.exists() and _has_linked(export, real_target):
            return
        # Another process may have exported the report meanwhile. Its export must not change,
        # because somebody may be reading it.
        if force or not is_up_to_date(source, target, force=False):
            remove_side_files(real_target)
            export.replace(real_target)


def _has_linked(export: Path, target: Path) -> bool:
    """Link an export to its target, and tell whether that was possible.

    Unlike a renamed file, a link never replaces another file. A link is not possible if the target
    exists by now, or if the file system has no links.
    """
    remove_side_files(target)
    try:
        target.hardlink_to(export)
    except OSError:
        return False
    return True


def _catching_ends() -> contextlib.AbstractContextManager[None]:
    """Return a context in which SIGTERM and SIGHUP raise SystemExit.

    Schedulers send SIGTERM, and a terminal that closes sends SIGHUP. By default, they end this
    process at once, and nsys would go on. After a SystemExit, `printed` ends nsys. Ctrl-C raises an
    exception anyway.
    """
    caught: list[signal.Signals] = []
    # Only the main thread can handle signals.
    if threading.current_thread() is threading.main_thread():
        signals = (signal.SIGTERM, signal.SIGHUP)
        # Signals that somebody else handles, or that are ignored, stay as they are.
        caught += [number for number in signals if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, _frame: FrameType | None) -> None:
        # A second signal would disturb the end.
        for caught_signal in caught:
            signal.signal(caught_signal, signal.SIG_IGN)
        # The status of a program that a signal ended, as shells state it.
        sys.exit(128 + number)

    return handling(end, *caught)


def _check_export(source: Path, export: Path, before: os.stat_result) -> None:
    """Raise an error if an export is incomplete, or if its report changed during the export.

    `before` is the state of the report before the export.
    """
    try:
        check_file(export)
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
    known = []
    for option in _OPTIONS:
        name, _, _ = option.partition("=")
        if nsys.has("export", name):
            known.append(option)
    return tuple(known)


def run_export(
    nsys: Nsys, report: Path, export: Path, *, timeout_s: float, is_stopped: Callable[[], bool]
) -> None:
    """Export one report to a new file.

    Raises NsysFailedError if nsys fails, does not end in time or is stopped.
    """
    arguments = ["--type=sqlite", *export_options(nsys), f"--output={export.absolute()}"]
    # The path is absolute, because nsys runs in another directory, and would take a name that
    # begins with a dash for an option.
    command = [str(nsys.path), "export", *arguments, str(report.absolute())]
    try:
        output = printed(command, timeout_s, folder=export.parent, is_stopped=is_stopped)
    except OSError as error:
        problem = f"cannot be started ({error.strerror})"
        raise NsysFailedError(str(nsys.path), problem, fix=GET_NSYS) from error
    if is_stopped():
        raise NsysFailedError(str(report), "was not exported: interrupted")
    if output.status != 0 or not export.is_file():
        raise _failure(nsys, report, output, timeout_s)


def _failure(nsys: Nsys, report: Path, output: Output, timeout_s: float) -> NsysFailedError:
    """Return the error for a failed export."""
    by_hand = shlex.join([str(nsys.path), "export", "--type=sqlite", str(report.absolute())])
    lines: str | None = " / ".join(telling_lines(output.text, most=3)) or None
    # Without a status, nsys ran out of time.
    if output.status is None:
        problem = f"nsys export did not end within {timeout_s:g} s, and was stopped"
        # At least a minute, because the user may have asked for a very short time.
        longer_timeout_s = max(2 * timeout_s, 60)
        fix = f"--timeout {longer_timeout_s:.0f}, or run the export yourself: {by_hand}"
        return NsysFailedError(str(report), problem, fix=fix)
    newer_version = _newer_version(nsys, report, output.text)
    if newer_version is not None:
        return _too_old(nsys, report, newer_version)
    # The status of a program that a signal killed is the negative number of the signal.
    if output.status < 0:
        problem = (
            f"nsys export was killed by signal {_signal_name(-output.status)}, perhaps because "
            "memory or disk space ran out"
        )
        return NsysFailedError(str(report), problem, found=lines, fix="use fewer processes: -j 1")
    if output.status:
        problem = f"nsys export failed with status {output.status}"
    else:
        problem = "nsys export succeeded but wrote no file"
    fix = f"copy or capture the report again if it is incomplete, or run {by_hand}"
    return NsysFailedError(str(report), problem, found=lines, fix=fix)


def _too_old(nsys: Nsys, report: Path, newer_version: str) -> NsysFailedError:
    """Return the error for a report that a newer nsys captured, see `_newer_version`."""
    if newer_version == _UNKNOWN_VERSION:
        capturing = "a newer nsys"
        needed = "a newer Nsight Systems"
    else:
        capturing = f"nsys {newer_version}"
        needed = f"Nsight Systems {newer_version} or newer"
    problem = (
        f"was captured with {capturing}, but nsys {nsys.version_text} on this machine cannot read "
        "such a report"
    )
    fix = (
        f"install {needed} (developer.nvidia.com/nsight-systems), or pass its path with nsyspipe "
        "convert --nsys PATH, or run that on the machine that captured it"
    )
    return NsysFailedError(str(report), problem, found=str(nsys.path), fix=fix)


def _signal_name(number: int) -> str:
    is_known = number in set(signal.Signals)
    return signal.Signals(number).name if is_known else f"{number}"


def _newer_version(nsys: Nsys, report: Path, printed_text: str) -> str | None:
    """Return the version of the nsys that captured a report; None if this nsys is new enough.

    `printed_text` is what this nsys printed about the report. The result is `_UNKNOWN_VERSION` if
    that was a newer nsys, and its version is not known.
    """
    match = _NEWER.search(printed_text)
    if match:
        # The number of the build follows a dash.
        version, _, _ = match[1].partition("-")
        return version
    capturing_version = _version_in_header(report)
    if capturing_version and numbers(capturing_version) > numbers(nsys.version_text):
        return capturing_version
    # Neither nsys nor the header of the report says which version.
    is_too_old = "newer than your" in printed_text
    return _UNKNOWN_VERSION if is_too_old else None


def _version_in_header(report: Path) -> str | None:
    """Return the version of the nsys that captured a report; None if it cannot be read."""
    with contextlib.suppress(OSError), report.open("rb") as file:
        match = _HEADER.search(file.read(_HEADER_BYTES))
        if match:
            # The header has 2024@2@3@38 for 2024.2.3.38.
            return match[1].decode("ascii").replace("@", ".")
    return None


class _Origin(NamedTuple):
    """What an export was made from."""

    # None before nsys 2023.3.
    report_name: str | None
    # Whether the export was not limited.
    is_complete: bool


def _origin(path: Path) -> _Origin | None:
    """Return what an export was made from; None if the file is not an export of nsys.

    The result tells the name of the report, and whether the export is complete: not limited to some
    tables or times. Raises InputError if the file is not a complete SQLite file.
    """
    _, flags = check_file(path)
    uri = f"{path.absolute().as_uri()}?{flags}"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if _META not in tables:
                # Older exports do not name their report. They are complete, because an older nsys
                # could not limit an export.
                is_export = bool(tables & {_OLD_META, _EVERY_EXPORT_HAS})
                return _Origin(None, is_complete=True) if is_export else None
            query = f"SELECT name, value FROM {_META} LIMIT {_MAX_ROWS}"  # noqa: S608 - constants
            rows = database.execute(query)
            settings = {str(name): value for name, value in rows}
    except (sqlite3.Error, UnicodeDecodeError):
        return None
    report_path = settings.get("EXPORT_PARAM_INPUT_FILE")
    report_name = None
    if isinstance(report_path, str):
        # A report may have been exported on Windows, whose paths have backslashes.
        report_name = PurePosixPath(PureWindowsPath(report_path).name).name
    is_limited = any(map(settings.get, _LIMITS))
    return _Origin(report_name or None, is_complete=not is_limited)
