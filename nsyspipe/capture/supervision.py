"""Run a program in a process group and a temporary directory of its own, and see that all of it ends."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nsyspipe.nsys.files import claim, claimed_at, is_claimed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import IO


# A job's temporary directory: where the user's are, under a path that sockets can have.


# A Unix socket's path has 107 bytes at most (unix(7)). Below this directory a rank has its own, and in that Python's
# multiprocessing, which a DataLoader's workers use, puts sockets 32 bytes deeper; nsys has some too.
_MOST_BYTES = 50
_CAPTURES = (".nsys-rep", ".qdstrm")
_SHORT = "/tmp"  # noqa: S108 - every user's; mkdtemp makes what is ours in it
_PREFIX, _LOCK = "nsyspipe-", "lock"
_OURS = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
_LOCK_MODE = 0o600
# Between its making and its lock, a directory looks abandoned.
_YOUNG_S = 60.0


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """Make an empty directory of our own, and remove it at the end with all that is in it, captures excepted.

    A capture that could not be moved to its place may be all that is left of hours: its directory stays. It lies in TMPDIR, since nsys fills it with gigabytes; where that makes its path too long for sockets, the path
    is that of a short link to it.
    """
    with contextlib.ExitStack() as made:
        directory = _made(None, made)
        if len(os.fsencode(directory)) > _MOST_BYTES:
            with contextlib.suppress(OSError):  # a long path is better than none
                link = _made(_SHORT, made) / "t"
                link.symlink_to(directory, target_is_directory=True)
                directory = link
        yield directory


@contextlib.contextmanager
def holding(directory: Path) -> Iterator[tuple[int, ...]]:
    """Claim a job's directory, and return the descriptors of the locks.

    A program that inherits them holds it too: it stays as long as the program lives, whoever of us was killed.
    """
    places = [directory, directory.parent] if directory.is_symlink() else [directory]
    locks = [lock for lock in map(claim, places) if lock is not None]
    try:
        yield tuple(locks)
    finally:
        for lock in locks:
            os.close(lock)


def _made(parent: str | None, cleaning: contextlib.ExitStack) -> Path:
    _remove_abandoned(Path(parent or tempfile.gettempdir()))
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)).absolute()
    lock = claim(path)
    if lock is not None:
        cleaning.callback(os.close, lock)
    cleaning.callback(_remove, path)
    return path


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories of jobs that were killed: this user's, which no process has claimed, nor one in them."""
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                if _is_abandoned(path):
                    _remove(path)


def _is_abandoned(path: Path) -> bool:
    status = path.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    is_ours &= stat.S_IMODE(status.st_mode) == stat.S_IRWXU and bool(_OURS.fullmatch(path.name))
    lock = (path / _LOCK).lstat()
    is_ours &= stat.S_ISREG(lock.st_mode) and stat.S_IMODE(lock.st_mode) == _LOCK_MODE
    if not is_ours or lock.st_size or time.time() - claimed_at(path) <= _YOUNG_S:
        return False
    inner = [one for one in path.glob(f"{_PREFIX}*") if one.is_dir() and not one.is_symlink()]
    return not any(is_claimed(one) for one in [path, *inner])


def _remove(path: Path) -> None:
    if not any(_is_capture(one) for one in path.rglob("*")):
        shutil.rmtree(path, ignore_errors=True)


def _is_capture(path: Path) -> bool:
    """Tell whether a file is a report of nsys, or what it makes one of."""
    return path.suffix in _CAPTURES and path.is_file() and path.stat().st_size > 0


# Processes that outlive those who started them: found in /proc, adopted and ended. Other systems do without.


# Of prctl(2).
_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
# What nsys's own programs are called: nsys (the agent, too), nsys-launcher, QdstrmImporter.
_OF_NSYS = ("nsys", "Qdstrm")
_POLL_S = 0.05
# To end by themselves; after a polite signal; after the last one.
_PATIENCE = ((None, 1.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0))


class Process(NamedTuple):
    """What /proc says of a process: its state is a letter, Z for one that has ended and was not waited for."""

    pid: int
    state: str
    parent: int
    group: int


def processes() -> Iterator[Process]:
    """Yield every process; nothing where the system does not tell."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = path.read_bytes().rpartition(b")")[2].split()
            state = words[0].decode("ascii")
            yield Process(int(path.parent.name), state, int(words[1]), int(words[2]))


def adopt_orphans() -> None:
    """Become the parent of what our children leave running, where Linux can do that."""
    _prctl()(_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> Callable[[], None]:
    """Return what, called in a new process, has it asked to end (SIGTERM) when we die, killed or not."""
    prctl = _prctl()  # looked up here: between fork and exec as little as possible happens

    def ask_for_it() -> None:
        prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)

    return ask_for_it


def end_adopted(*, is_any_of_nsys: bool) -> None:
    """End what an nsys that has ended left running: an agent that stays forever keeps our terminal's pipe open.

    Only what we have adopted is looked at, and of that only nsys's own programs: what the training program put into
    the background is the user's.

    Parameters
    ----------
    is_any_of_nsys
        The training program never began: there is nothing but nsys's.
    """
    for number, wait_s in _PATIENCE:
        left = _adopted(is_any_of_nsys=is_any_of_nsys)
        if number is not None:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        deadline = time.monotonic() + wait_s
        while left and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            left = _adopted(is_any_of_nsys=is_any_of_nsys)
        if not left:
            return


def _adopted(*, is_any_of_nsys: bool) -> list[int]:
    """Return our children of that kind; those that have ended are waited for first."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    children = [one.pid for one in processes() if one.parent == os.getpid() and one.state != "Z"]
    return [pid for pid in children if is_any_of_nsys or _program_name(pid).startswith(_OF_NSYS)]


def _program_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def _prctl() -> Callable[[int, int], object]:
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes  # noqa: PLC0415 - only Linux needs it

            found: Callable[[int, int], object] = ctypes.CDLL(None).prctl
            return found
    return lambda _option, _value: None


POLL_S = 0.1
SIGNALLED = 128
# Between the polite signal and the last one.
GRACE_S = 10.0


class Stop:
    """Remembers that somebody asked for the end, and with which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.n_asked = 0

    def ask(self, number: int, _frame: object = None) -> None:
        """Handle a signal."""
        self.signal = number
        self.n_asked += 1


@contextlib.contextmanager
def catching_signals() -> Iterator[Stop]:
    """Yield what remembers signals that end a program while the context lasts; nohup's and the like stay ignored."""
    stop = Stop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop.ask) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make the signals that end a program a KeyboardInterrupt with their number, so that what is begun is cleaned up."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(number)


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: IO[bytes] | None = None,
    pass_fds: Sequence[int] = (),
    ends_with_us: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program as the leader of a new session, so that a Ctrl-C of the terminal does not reach it.

    Parameters
    ----------
    output
        Where what it prints goes; None leaves it where ours goes.
    pass_fds
        Files that stay open in it.
    ends_with_us
        Whether it is asked to end when we are killed, where the system can do that.

    Raises
    ------
    OSError
        If it cannot be started.
    """
    return subprocess.Popen(  # noqa: S603 - a list, no shell
        list(command),
        env=dict(environment),
        start_new_session=True,
        stdout=output,
        stderr=output,
        pass_fds=tuple(pass_fds),
        preexec_fn=die_with_parent() if ends_with_us else None,  # noqa: PLW1509 - we have one thread
    )


def status_of(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status as a shell tells it: 128 + N for signal N; None while it runs."""
    status = process.poll()
    return SIGNALLED - status if status is not None and status < 0 else status


def group_is_alive(group: int) -> bool:
    """Tell whether any process of a group is left that is more than a zombie."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # In a container nobody may collect the zombies.
    states = [one.state for one in processes() if one.group == group]
    return not states or any(state not in "ZX" for state in states)


def group_of(pid: int) -> int | None:
    """Return the group of a process; None if there is none, or if it is ours."""
    try:
        group = os.getpgid(pid)
    except ProcessLookupError:
        return None
    return None if group == os.getpgrp() else group


def end_group(group: int, *, grace_s: float = GRACE_S) -> None:
    """Ask all processes of a group to end, and kill what is left after a while."""
    end_groups([group], grace_s=grace_s)


def end_groups(groups: Iterable[int], *, grace_s: float = GRACE_S) -> None:
    """End several groups, as `end_group` does, in the time of one."""
    alive = set(filter(group_is_alive, groups))
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
        for group in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        deadline = time.monotonic() + wait_s
        while (alive := set(filter(group_is_alive, alive))) and time.monotonic() < deadline:
            time.sleep(POLL_S)
