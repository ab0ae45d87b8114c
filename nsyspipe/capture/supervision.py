"""Runs a program in its own process group and temporary directory, and makes all of it end."""

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from nsyspipe.nsys.files import YOUNG_S, claim, claimed_at, is_as_made, is_claimed
from nsyspipe.nsys.programs import SET_CHILD_SUBREAPER, SET_DEATH_SIGNAL, handling, prctl

# The path of a Unix socket has at most 107 bytes (unix(7)). Each rank has a directory below ours.
# Python's multiprocessing, which the workers of a DataLoader use, makes sockets 32 bytes deeper. So
# does nsys.
_MAX_DIRECTORY_BYTES = 50
# Every user may write here. What is ours in it is made by mkdtemp.
_SHORT_PARENT = "/tmp"  # noqa: S108
_PREFIX = "nsyspipe-"
_OUR_DIRECTORY = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
# If one of these files has contents, it may be all that is left of hours.
_REPORT_SUFFIXES = (".nsys-rep", ".qdstrm")
POLL_S = 0.1
SIGNALLED = 128
# Time between SIGTERM and SIGKILL, for nsys and for the program.
GRACE_S = 10.0
PROGRAM_GRACE_S = 15.0
_MAX_WAIT_AFTER_KILL_S = 2.0
# How the names of nsys's own programs start: nsys (also its agent), nsys-launcher, QdstrmImporter.
_NSYS_PROGRAMS = ("nsys", "Qdstrm")
# `kill` with this number only tells whether a process exists.
_NO_SIGNAL = 0
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """Yield a new empty directory in TMPDIR, or a short link to it if its path is long.

    Sockets in the directory need a short path. The directory is removed at the end, unless it has a
    report.
    """
    with contextlib.ExitStack() as cleaning:
        directory = _make_directory(None, cleaning)
        if len(os.fsencode(directory)) > _MAX_DIRECTORY_BYTES:
            # If no link can be made, the long path is yielded.
            with contextlib.suppress(OSError):
                link = _make_directory(_SHORT_PARENT, cleaning) / "t"
                link.symlink_to(directory, target_is_directory=True)
                directory = link
        yield directory


@contextlib.contextmanager
def holding(directory: Path) -> Iterator[tuple[int, ...]]:
    """Claim the directory of a job, and yield the descriptors of the locks.

    A program that inherits the descriptors holds the claim as long as it lives.
    """
    directories = [directory]
    if directory.is_symlink():
        # The directory with the short link is ours too.
        directories.append(directory.parent)
    locks = [lock for lock in map(claim, directories) if lock is not None]
    try:
        yield tuple(locks)
    finally:
        for lock in locks:
            os.close(lock)


def _make_directory(parent: str | None, cleaning: contextlib.ExitStack) -> Path:
    """Make a directory in `parent`, or in TMPDIR without one.

    The directory is claimed until the exit stack closes, and then removed.
    """
    _remove_abandoned(Path(parent or tempfile.gettempdir()))
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)).absolute()
    lock = claim(path)
    if lock is not None:
        cleaning.callback(os.close, lock)
    cleaning.callback(_remove, path)
    return path


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories in `parent` of this user's jobs that were killed."""
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                if _is_abandoned(path):
                    _remove(path)


def _is_abandoned(path: Path) -> bool:
    """Tell whether a directory is ours, and no process has claimed it or a directory in it."""
    if not (_OUR_DIRECTORY.fullmatch(path.name) and is_as_made(path)):
        return False
    age_s = time.time() - claimed_at(path)
    if age_s <= YOUNG_S:
        # The process that has just made it may not have claimed it yet.
        return False
    entries = path.glob(f"{_PREFIX}*")
    inner_directories = [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
    return not any(map(is_claimed, [path, *inner_directories]))


def _remove(path: Path) -> None:
    """Remove a directory, unless it has a report of nsys, or a file that becomes one."""
    reports = [file for file in path.rglob("*") if file.suffix in _REPORT_SUFFIXES]
    files = filter(Path.is_file, reports)
    has_report = any(file.stat().st_size > 0 for file in files)
    if not has_report:
        shutil.rmtree(path, ignore_errors=True)


class _Process(NamedTuple):
    """A process of this machine."""

    pid: int
    # A letter. Z is a zombie.
    state: str
    parent: int
    group: int


def _processes() -> Iterator[_Process]:
    """Yield every process of this machine; none on systems without /proc."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        # A process that ends while it is read is left out.
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The line is: pid (name) state parent group ... The name may have any characters, also
            # parentheses, so what follows it comes after the last one.
            _, _, after_name = path.read_text("ascii", "replace").rpartition(")")
            state, parent, group, *_ = after_name.split()
            pid = int(path.parent.name)
            yield _Process(pid, state, int(parent), int(group))


def adopt_orphans() -> None:
    """Become the parent of what our children leave running, if the system can do that."""
    prctl()(SET_CHILD_SUBREAPER, 1)


def end_adopted(*, are_all_of_nsys: bool) -> None:
    """End the children of this process that nsys left running.

    An agent of nsys would otherwise keep the pipe of the terminal open. `are_all_of_nsys` says that
    the program of the user never started, so every child is of nsys. Otherwise only children that
    run a program of nsys are ended.
    """
    _end(
        functools.partial(_children_of_nsys, are_all_of_nsys=are_all_of_nsys),
        os.kill,
        # First they get time to end by themselves.
        _SignalAndWait(_NO_SIGNAL, 1.0),
        _SignalAndWait(signal.SIGTERM, 2.0),
        _SignalAndWait(signal.SIGKILL, _MAX_WAIT_AFTER_KILL_S),
    )


def _children_of_nsys(*, are_all_of_nsys: bool) -> Iterator[int]:
    """Yield the pids of our running children that are of nsys: all, or by their programs."""
    _collect_ended_children()
    children = [process for process in _processes() if process.parent == os.getpid()]
    for child in children:
        if child.state == "Z":
            continue
        # The child may have ended since.
        with contextlib.suppress(OSError):
            if are_all_of_nsys or _is_program_of_nsys(child.pid):
                yield child.pid


def _collect_ended_children() -> None:
    """Take the exit status of every child that has ended, so that no zombie is left."""
    # `waitpid` raises this error if no child is left.
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            all_others_run = pid == 0
            if all_others_run:
                return


def _is_program_of_nsys(pid: int) -> bool:
    """Tell whether a process runs a program of nsys; an OSError if there is no such process."""
    program = Path(f"/proc/{pid}/exe").readlink()
    return program.name.startswith(_NSYS_PROGRAMS)


class _SignalAndWait(NamedTuple):
    """A signal, and the longest wait for its effect."""

    number: int
    max_wait_s: float


def _end(
    find_remaining: Callable[[], Iterable[int]],
    kill: Callable[[int, int], None],
    *signals: _SignalAndWait,
) -> None:
    """Send signals to what remains, one after the other, and wait after each until all has ended.

    `find_remaining` returns processes or groups, and `kill` sends a signal to one of them.
    """

    def has_ended() -> bool:
        remaining = iter(find_remaining())
        return next(remaining, None) is None

    for signal_and_wait in signals:
        for process_or_group in find_remaining():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(process_or_group, signal_and_wait.number)
        wait_until(has_ended, signal_and_wait.max_wait_s)


def wait_until(is_so: Callable[[], bool], max_wait_s: float) -> bool:
    """Wait until a condition is met, or until the time is over, and tell whether it is met."""
    deadline_s = time.monotonic() + max_wait_s
    is_met = is_so()
    while not is_met and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        is_met = is_so()
    return is_met


class Stop:
    """Counts the signals that asked for the end, and remembers the last one."""

    signal: int | None = None
    n_asked = 0

    def ask(self, number: int, _frame: object = None) -> None:
        """Handle a signal."""
        self.signal = number
        self.n_asked += 1


@contextlib.contextmanager
def catching_signals() -> Iterator[Stop]:
    """Yield a `Stop` that gets the signals that end a program while the context lasts."""
    stop = Stop()
    with handling(stop.ask, *_ENDING_SIGNALS):
        yield stop


def interruptible() -> contextlib.AbstractContextManager[None]:
    """Turn signals that end a program into a KeyboardInterrupt, whose argument is their number.

    Without it, a signal would end the program before contexts have cleaned up.
    """

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(number)

    return handling(interrupt, *_ENDING_SIGNALS)


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: IO[bytes] | None = None,
    pass_fds: Sequence[int] = (),
    ends_with_us: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program in its own session, which the Ctrl-C of the terminal does not reach.

    If `ends_with_us`, the system ends the program when this process ends.
    """
    prepare = None
    if ends_with_us:
        # `prctl` is looked up before, because little is allowed between fork and exec.
        prepare = functools.partial(prctl(), SET_DEATH_SIGNAL, signal.SIGTERM)
    return subprocess.Popen(  # noqa: S603 - a list, no shell
        command,
        env=environment,
        start_new_session=True,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
        preexec_fn=prepare,  # noqa: PLW1509 - we have one thread
    )


def status_of(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status as a shell has it, None while the process runs.

    It is 128 + N if signal N ended the process.
    """
    status = process.poll()
    if status is None or status >= 0:
        return status
    # Python has -N if signal N ended the process.
    signal_number = -status
    return SIGNALLED + signal_number


def group_is_alive(group: int) -> bool:
    """Tell whether a group has a process that is not a zombie."""
    try:
        os.killpg(group, _NO_SIGNAL)
    except ProcessLookupError:
        return False
    except PermissionError:
        # The group exists, but another user runs it.
        return True
    # In a container, zombies may remain because nobody collects them.
    states = [process.state for process in _processes() if process.group == group]
    if not states:
        # Without /proc, the states are not known, and the group exists.
        return True
    # Z is a zombie, and X is dead.
    return any(state not in "ZX" for state in states)


def group_of(pid: int) -> int | None:
    """Return the group of a process; None if there is no such process, or if the group is ours."""
    with contextlib.suppress(ProcessLookupError):
        group = os.getpgid(pid)
        if group != os.getpgrp():
            return group
    return None


def end_groups(groups: Iterable[int], *, grace_s: float = GRACE_S) -> None:
    """Ask all processes of groups to end, and kill what remains after `grace_s`."""
    groups = list(groups)
    _end(
        lambda: filter(group_is_alive, groups),
        os.killpg,
        _SignalAndWait(signal.SIGTERM, grace_s),
        _SignalAndWait(signal.SIGKILL, _MAX_WAIT_AFTER_KILL_S),
    )
