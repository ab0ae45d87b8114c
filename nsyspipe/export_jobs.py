"""Exports that run: several nsys at once, each into a hidden directory beside its target, then renamed.

So an export is there whole or not at all, and one that was interrupted never looks up to date.
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

from nsyspipe.claims import remove_abandoned, scratch_directory
from nsyspipe.errors import DamagedReportError, NotAReportError, NsysFailedError, NsyspipeError
from nsyspipe.export_command import run_export
from nsyspipe.export_target import is_up_to_date, not_writable
from nsyspipe.new_files import remove_side_files
from nsyspipe.read.file_check import check_file, readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from nsyspipe.nsys import Nsys

__all__ = ["EXPORTED", "UP_TO_DATE", "Exported", "export_all"]

EXPORTED, UP_TO_DATE = "exported", "up to date"

# nsys takes some times a report's size in memory, and a disk only so much at once.
_MOST_JOBS = 8
# What a scheduler sends, and a terminal that closes; Ctrl-C is Python's own.
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Exported:
    """An export that is there.

    Attributes
    ----------
    path
        The SQLite file.
    source
        The report it was made from.
    status
        `EXPORTED` by this call, or `UP_TO_DATE` before it.
    """

    path: Path
    source: Path
    status: str


def export_all(
    nsys: Nsys,
    pairs: Sequence[tuple[Path, Path]],
    jobs: int | None,
    timeout_s: float,
    on_progress: Callable[[int, int], None],
    *,
    force: bool,
) -> list[Exported | NsyspipeError]:
    """Export reports, each to its file, several at once; one that fails is its error.

    Parameters
    ----------
    pairs
        Reports with their files.
    jobs
        How many at once; None takes the cores there are, up to 8.
    timeout_s
        How long one export may take.
    on_progress
        Called with (reports done, reports in all).
    force
        Whether to replace what is up to date by then.

    Notes
    -----
    Ctrl-C, and SIGTERM and SIGHUP where the caller leaves them to the system, end every nsys and leave no half
    export.
    """
    for folder in {target.parent for _, target in pairs}:
        remove_abandoned(folder)
    stopped = Event()
    n_jobs = min(jobs or min(_cores(), _MOST_JOBS), len(pairs))

    def work(pair: tuple[Path, Path]) -> Exported | NsyspipeError:
        try:
            return _export(nsys, *pair, force=force, timeout_s=timeout_s, stopped=stopped)
        except NsyspipeError as error:
            return error

    on_progress(0, len(pairs))
    with _catching_ends(), ThreadPoolExecutor(n_jobs) as threads:
        futures = [threads.submit(work, pair) for pair in pairs]
        try:
            running = set(futures)
            while running:
                _, running = wait(running, return_when=FIRST_COMPLETED)
                on_progress(len(pairs) - len(running), len(pairs))
        except BaseException:  # Ctrl-C and the like: end every nsys, leave nothing half-written
            stopped.set()
            threads.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


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


def _export(
    nsys: Nsys, source: Path, target: Path, *, force: bool, timeout_s: float, stopped: Event
) -> Exported:
    """Export one report: under another name first, which is renamed when all is well."""
    real = Path(os.path.realpath(target))  # through a link, not over it
    try:
        with readable(source):
            before = source.stat()
        with scratch_directory(real.parent) as scratch:
            made = scratch / target.name
            run_export(nsys, source, made, timeout_s=timeout_s, stopped=stopped)
            _check_made(source, made, before)
            # A report's time may be ahead of this machine's clock.
            if made.stat().st_mtime_ns < before.st_mtime_ns:
                os.utime(made, ns=(before.st_mtime_ns, before.st_mtime_ns))
            _publish(source, made, target, force=force)
    except OSError as error:
        raise not_writable(target, error) from error
    return Exported(target, source, EXPORTED)


def _publish(source: Path, made: Path, target: Path, *, force: bool) -> None:
    """Rename a finished export to its target, unless another process has made the same meanwhile."""
    real = Path(os.path.realpath(target))
    if not real.exists():
        remove_side_files(real)
        with contextlib.suppress(OSError):  # it is there now, or this file system has no links
            real.hardlink_to(made)
            return
    # Somebody may be reading it already: it must not change then.
    if not force and is_up_to_date(source, target, force=False):
        return
    remove_side_files(real)
    made.replace(real)


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
        raise DamagedReportError(
            str(source), "changed while it was exported", fix="wait until its capture has ended"
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
