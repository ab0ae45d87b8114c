"""Reports to SQLite: where each export belongs, which is up to date, and the rest exported, several at once.

Each goes into a hidden directory beside its target, then is renamed. So an export is there whole or not at all, and one
that was interrupted never looks up to date.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from nsyspipe.errors import (
    DamagedReportError,
    NotAReportError,
    NsysFailedError,
    NsysNotFoundError,
    NsyspipeError,
    OptionError,
    OutputError,
)
from nsyspipe.nsys.export_command import export_origin, run_export
from nsyspipe.nsys.files import check_file, readable, remove_abandoned, remove_side_files, scratch_directory
from nsyspipe.nsys.programs import Nsys, find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType


EXPORTED, UP_TO_DATE = "exported", "up to date"
TIMEOUT_S = 1800.0

_EXPORT_SUFFIX = ".sqlite"
_REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
_HEADER_BYTES = 100
# nsys takes some times a report's size in memory, and a disk only so much at once.
_MOST_JOBS = 8
# What a scheduler sends, and a terminal that closes; Ctrl-C is Python's own.
_ENDING = (signal.SIGTERM, signal.SIGHUP)


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
    nsys: Nsys | None = None,
    jobs: int | None = None,
    force: bool = False,
    timeout_s: float = TIMEOUT_S,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Exported | NsyspipeError]:
    """Export reports; one that fails does not keep the others from it.

    An export is up to date if it is whole, was made from a report of that name, and is not older than it.

    Parameters
    ----------
    directory
        Where to write, made if it is missing; None writes each beside its report.
    targets
        The file of each report, where not by its name.
    nsys
        What exports; None finds one, if anything is to export.
    jobs
        How many at once; None takes the cores there are, up to 8.
    force
        Whether to export also what is up to date, and over files that are no exports of their report.
    timeout_s
        How long one export may take.
    on_progress
        Called with (reports done, reports to export).

    Returns
    -------
    list
        For each report, in order, its export or why there is none.

    Raises
    ------
    OptionError
        If two reports would be exported to one file.
    OutputError
        If the directory cannot be made.
    NsysNotFoundError, NsysFailedError
        If there is no nsys, or it does not answer.

    Notes
    -----
    Ctrl-C, and SIGTERM and SIGHUP where the caller leaves them to the system, end every nsys and leave no half
    export.
    """
    pairs = [(one, targets[one] if targets else target_of(one, directory)) for one in reports]
    _check_distinct(pairs)
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
        one = _Exporting(nsys or _found(), force=force, timeout_s=timeout_s)
        made = one.all(list(left.values()), jobs, on_progress or (lambda *_: None))
        outcomes |= dict(zip(left, made, strict=True))
    return [outcomes[at] for at in range(len(pairs))]


def all_exported(outcomes: Sequence[Exported | NsyspipeError]) -> list[Exported]:
    """Return the exports where all are needed; else raise the first failure, which says how many others there are."""
    failures = [one for one in outcomes if isinstance(one, NsyspipeError)]
    if failures:
        first, n_others = failures[0], len(failures) - 1
        more = f" (and {n_others} more of {len(outcomes)} reports failed)" if n_others else ""
        raise type(first)(first.subject, first.problem + more, found=first.found, fix=first.fix)
    return [one for one in outcomes if isinstance(one, Exported)]


def _found() -> Nsys:
    try:
        return find()
    except NsysNotFoundError as error:
        fix = f"{error.fix}; or run nsyspipe convert on the machine that captured the reports"
        raise NsysNotFoundError(error.subject, error.problem, fix=fix) from error


def _check_distinct(pairs: Sequence[tuple[Path, Path]]) -> None:
    seen: dict[str, Path] = {}
    for source, target in pairs:
        other = seen.setdefault(os.path.realpath(target), source)
        if other is not source:
            raise OptionError(
                f"{other} and {source}",
                f"would both be exported to {target}",
                fix="convert them one by one, each into a directory of its own: -o DIR",
            )


def _not_writable(path: Path, error: OSError) -> OutputError:
    problem = f"cannot be written ({error.strerror})"
    return OutputError(str(path), problem, fix="another directory: -o DIR")


def target_of(report: Path, directory: Path | None = None) -> Path:
    """Return where a report is exported to: beside it, or into a directory."""
    is_report = report.suffix in _REPORT_SUFFIXES
    name = f"{report.stem if is_report else report.name}{_EXPORT_SUFFIX}"
    return (report.parent if directory is None else directory) / name


def is_up_to_date(source: Path, target: Path, *, force: bool) -> bool:
    """Return whether an export is there that is whole, of a report with this name, and not older than it.

    Raises
    ------
    InputError
        If the report cannot be read, or is empty.
    OutputError
        If something else is where the export would be, and may not be replaced (`force`).
    """
    with readable(source):
        report = source.stat()
        if not source.is_file():
            raise NotAReportError(str(source), "no ordinary file, where a report was needed")
        source.open("rb").close()
    if not report.st_size:
        problem = "is empty (0 bytes): its capture did not end well"
        raise DamagedReportError(str(source), problem, fix="capture it again")
    if not target.exists():
        return False
    if not target.is_file():
        raise OutputError(str(target), "is no ordinary file", fix="another directory: -o DIR")
    if force:
        return False
    try:
        origin = export_origin(target)
    except (DamagedReportError, NotAReportError):
        if _is_unfinished(target):
            return False
        origin = None
    if origin is None or origin.report_name not in (None, source.name):
        what = "is no export of nsys"
        if origin is not None:
            what = f"was exported from {origin.report_name}, not from {source.name}"
        raise OutputError(str(target), f"exists, and {what}", fix="--force to replace it, or another directory: -o DIR")
    return origin.is_whole and target.stat().st_mtime_ns >= report.st_mtime_ns


def _is_unfinished(target: Path) -> bool:
    """Return whether a file looks like an SQLite file whose writer was killed: cut short, or no header yet."""
    try:
        with target.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError:
        return False
    return not header.strip(b"\0") or header.startswith(b"SQLite format 3")


class _Exporting:
    """Exports, several at once: all are ended when one of us is asked to end."""

    def __init__(self, nsys: Nsys, *, force: bool, timeout_s: float) -> None:
        self._nsys = nsys
        self._force = force
        self._timeout_s = timeout_s
        self._stopped = Event()

    def all(
        self, pairs: Sequence[tuple[Path, Path]], jobs: int | None, on_progress: Callable[[int, int], None]
    ) -> list[Exported | NsyspipeError]:
        """Export reports, each to its file; one that fails is its error."""
        on_progress(0, len(pairs))
        n_jobs = min(jobs or min(_cores(), _MOST_JOBS), len(pairs))
        with _catching_ends(), ThreadPoolExecutor(n_jobs) as threads:
            futures = [threads.submit(self._attempt, *pair) for pair in pairs]
            try:
                running = set(futures)
                while running:
                    _, running = wait(running, return_when=FIRST_COMPLETED)
                    on_progress(len(pairs) - len(running), len(pairs))
            except BaseException:  # Ctrl-C and the like: end every nsys, leave nothing half-written
                self._stopped.set()
                threads.shutdown(cancel_futures=True)
                raise
        return [future.result() for future in futures]

    def _attempt(self, source: Path, target: Path) -> Exported | NsyspipeError:
        try:
            self._export(source, target)
        except OSError as error:
            return _not_writable(target, error)
        except NsyspipeError as error:
            return error
        return Exported(target, source, EXPORTED)

    def _export(self, source: Path, target: Path) -> None:
        """Export one report: under another name first, which is renamed when all is well."""
        real = Path(os.path.realpath(target))  # through a link, not over it
        with readable(source):
            before = source.stat()
        with scratch_directory(real.parent) as scratch:
            made = scratch / target.name
            run_export(self._nsys, source, made, timeout_s=self._timeout_s, stopped=self._stopped)
            _check_made(source, made, before)
            # A report's time may be ahead of this machine's clock.
            if made.stat().st_mtime_ns < before.st_mtime_ns:
                os.utime(made, ns=(before.st_mtime_ns, before.st_mtime_ns))
            self._publish(source, made, target)

    def _publish(self, source: Path, made: Path, target: Path) -> None:
        """Rename a finished export to its target, unless another process has made the same meanwhile."""
        real = Path(os.path.realpath(target))
        if not real.exists():
            remove_side_files(real)
            with contextlib.suppress(OSError):  # it is there now, or this file system has no links
                real.hardlink_to(made)
                return
        # Somebody may be reading it already: it must not change then.
        if self._force or not is_up_to_date(source, target, force=False):
            remove_side_files(real)
            made.replace(real)


@contextlib.contextmanager
def _catching_ends() -> Iterator[None]:
    """Make an error of the signals that would end this process at once, and leave nsys behind."""
    caught = []
    if threading.current_thread() is threading.main_thread():
        caught = [one for one in _ENDING if signal.getsignal(one) is signal.SIG_DFL]

    def end(number: int, _frame: FrameType | None) -> None:
        for one in caught:  # once is enough: a second one would disturb the end
            signal.signal(one, signal.SIG_IGN)
        sys.exit(128 + number)

    try:
        for one in caught:
            signal.signal(one, end)
        yield
    finally:
        for one in caught:
            signal.signal(one, signal.SIG_DFL)


def _check_made(source: Path, made: Path, before: os.stat_result) -> None:
    """Raise if what nsys wrote is no whole export, or the report changed while it was read."""
    try:
        check_file(made)
    except (DamagedReportError, NotAReportError) as error:
        raise NsysFailedError(
            str(source),
            f"nsys export ends well, but its output is no whole report ({error.problem})",
            fix="is the disk full? else try another: nsyspipe convert --nsys PATH",
        ) from error
    with readable(source):
        after = source.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DamagedReportError(str(source), "changed while it was exported", fix="wait until its capture has ended")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
