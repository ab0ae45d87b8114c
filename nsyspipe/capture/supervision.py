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
# How the names of nsys's own programs start: nsys (also its agent), nsys-launcher, QdstrmImporter.
_NSYS_PROGRAMS = ("nsys", "Qdstrm")
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """Make an empty directory in TMPDIR, behind a short link if sockets need one.

    It is removed at the end, unless it has a report.
    """
    with contextlib.ExitStack() as cleaning:
        directory = _make_directory(None, cleaning)
        if len(os.fsencode(directory)) > _MAX_DIRECTORY_BYTES:
            # Without a link, a long path is better than none.
            with contextlib.suppress(OSError):
                link = _make_directory(_SHORT_PARENT, cleaning) / "t"
                link.symlink_to(directory, target_is_directory=True)
                directory = link
        yield directory


@contextlib.contextmanager
def holding(directory: Path) -> Iterator[tuple[int, ...]]:
    """Claim the directory of a job, and yield the descriptors of the locks.

    The claim holds as long as a program lives that inherits the descriptors.
    """
    directories = [directory, directory.parent] if directory.is_symlink() else [directory]
    locks = [lock for lock in map(claim, directories) if lock is not None]
    try:
        yield tuple(locks)
    finally:
        for lock in locks:
            os.close(lock)


def _make_directory(parent: str | None, cleaning: contextlib.ExitStack) -> Path:
    """Make a directory that is claimed until the exit stack closes, and then removed."""
    _remove_abandoned(Path(parent or tempfile.gettempdir()))
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)).absolute()
    lock = claim(path)
    if lock is not None:
        cleaning.callback(os.close, lock)
    cleaning.callback(_remove, path)
    return path


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories of this user's jobs that were killed."""
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                if _is_abandoned(path):
                    _remove(path)


def _is_abandoned(path: Path) -> bool:
    """Tell whether a directory is ours, and no process has claimed it or a directory in it."""
    if not (_OUR_DIRECTORY.fullmatch(path.name) and is_as_made(path)):
        return False
    if time.time() - claimed_at(path) <= YOUNG_S:
        return False
    entries = path.glob(f"{_PREFIX}*")
    inner = [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
    return not any(map(is_claimed, [path, *inner]))


def _remove(path: Path) -> None:
    """Remove a directory, unless it has a report of nsys, or a file that becomes one."""
    reports = [file for file in path.rglob("*") if file.suffix in _REPORT_SUFFIXES]
    files = filter(Path.is_file, reports)
    if not any(file.stat().st_size for file in files):
        shutil.rmtree(path, ignore_errors=True)


class _Process(NamedTuple):
    """A process of this machine."""

    pid: int
    # A letter. Z is a zombie.
    state: str
    parent: int
    group: int


def _processes() -> Iterator[_Process]:
    """Yield every process. Systems without /proc have none."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name of the program, which may have any characters, ends at the last parenthesis.
            _, _, after_name = path.read_text("ascii", "replace").rpartition(")")
            state, parent, group, *_ = after_name.split()
            pid = int(path.parent.name)
            yield _Process(pid, state, int(parent), int(group))


def adopt_orphans() -> None:
    """Become the parent of what our children leave running, if the system can do that."""
    prctl()(SET_CHILD_SUBREAPER, 1)


def end_adopted(*, is_any_of_nsys: bool) -> None:
    """End what nsys left running, because an agent keeps the pipe of the terminal open.

    These are only nsys's own programs, or any programs if `is_any_of_nsys`.
    """
    _end(
        functools.partial(_adopted, is_any_of_nsys=is_any_of_nsys),
        os.kill,
        # First they get time to end by themselves.
        (0, 1.0),
        (signal.SIGTERM, 2.0),
        (signal.SIGKILL, 2.0),
    )


def _adopted(*, is_any_of_nsys: bool) -> Iterator[int]:
    """Yield our running children that nsys left."""
    with contextlib.suppress(ChildProcessError):
        # Collect those that have ended.
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    children = [process for process in _processes() if process.parent == os.getpid()]
    for child in children:
        if child.state == "Z":
            continue
        with contextlib.suppress(OSError):
            if is_any_of_nsys or _is_program_of_nsys(child.pid):
                yield child.pid


def _is_program_of_nsys(pid: int) -> bool:
    program = Path(f"/proc/{pid}/exe").readlink()
    return program.name.startswith(_NSYS_PROGRAMS)


def _end(
    find_remaining: Callable[[], Iterable[int]],
    kill: Callable[[int, int], None],
    *signals: tuple[int, float],
) -> None:
    """Send signals to what remains, one after the other, and wait for some seconds after each."""

    def has_ended() -> bool:
        return not any(True for _ in find_remaining())

    for number, wait_s in signals:
        for process_or_group in find_remaining():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(process_or_group, number)
        wait_until(has_ended, wait_s)


def wait_until(is_so: Callable[[], bool], most_s: float) -> bool:
    """Wait for a limited time until a condition is met, and tell whether it is."""
    deadline_s = time.monotonic() + most_s
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
    """Turn signals that end a program into a KeyboardInterrupt with their number.

    So what is begun is cleaned up.
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
    return SIGNALLED - status


def group_is_alive(group: int) -> bool:
    """Tell whether a group has a process that is not a zombie."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # In a container, zombies may remain because nobody collects them.
    states = [process.state for process in _processes() if process.group == group]
    return not states or any(state not in "ZX" for state in states)


def group_of(pid: int) -> int | None:
    """Return the group of a process, None if there is no such process, or if the group is ours."""
    with contextlib.suppress(ProcessLookupError):
        group = os.getpgid(pid)
        if group != os.getpgrp():
            return group
    return None


def end_groups(groups: Iterable[int], *, grace_s: float | None = None) -> None:
    """Ask all processes of groups to end, and kill what remains after `grace_s`."""
    groups = list(groups)
    grace_s = GRACE_S if grace_s is None else grace_s
    _end(
        lambda: filter(group_is_alive, groups),
        os.killpg,
        (signal.SIGTERM, grace_s),
        (signal.SIGKILL, 2.0),
    )
