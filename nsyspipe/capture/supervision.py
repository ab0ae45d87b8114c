"""Run a program in a process group and a temporary directory of its own, and see that all of it ends."""

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
from typing import IO

from nsyspipe.nsys.files import YOUNG_S, claim, claimed_at, is_as_made, is_claimed
from nsyspipe.nsys.programs import SET_CHILD_SUBREAPER, SET_DEATH_SIGNAL, handling, prctl

# A Unix socket's path has 107 bytes at most (unix(7)). Below this directory a rank has its own, and
# in that Python's multiprocessing, which a DataLoader's workers use, puts sockets 32 bytes deeper;
# nsys has some too.
_MOST_BYTES = 50
_SHORT = "/tmp"  # noqa: S108 - every user's; mkdtemp makes what is ours in it
_PREFIX = "nsyspipe-"
_OURS = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
POLL_S = 0.1
SIGNALLED = 128
# between the polite signal and the last one, of nsys and of the program
GRACE_S = 10.0
PROGRAM_GRACE_S = 15.0
# What nsys's own programs are called: nsys (the agent, too), nsys-launcher, QdstrmImporter.
_OF_NSYS = ("nsys", "Qdstrm")
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """Make an empty directory in TMPDIR, behind a short link where sockets need one; it goes at the end but for captures."""
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
    """Claim a job's directory, for as long as a program lives that inherits the descriptors of the locks."""
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
                if (
                    _OURS.fullmatch(path.name)
                    and is_as_made(path)
                    and time.time() - claimed_at(path) > YOUNG_S
                ):
                    inner = [
                        one
                        for one in path.glob(f"{_PREFIX}*")
                        if one.is_dir() and not one.is_symlink()
                    ]
                    if not any(map(is_claimed, [path, *inner])):
                        _remove(path)


def _remove(path: Path) -> None:
    """Remove a directory, but not a report of nsys in it, or what it makes one of: perhaps all that is left of hours."""
    captures = (one for one in path.rglob("*") if one.suffix in (".nsys-rep", ".qdstrm"))
    if not any(capture.is_file() and capture.stat().st_size > 0 for capture in captures):
        shutil.rmtree(path, ignore_errors=True)


def _processes() -> Iterator[tuple[int, str, int, int]]:
    """Yield every process, its state (a letter, Z for a zombie), parent and group; nothing where nobody tells."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = path.read_text("ascii", "replace").rpartition(")")[2].split()
            yield int(path.parent.name), words[0], int(words[1]), int(words[2])


def adopt_orphans() -> None:
    """Become the parent of what our children leave running, where Linux can do that."""
    prctl()(SET_CHILD_SUBREAPER, 1)


def end_adopted(*, is_any_of_nsys: bool) -> None:
    """End what nsys left running, its own programs only (or `is_any_of_nsys`): an agent keeps the terminal's pipe."""

    def adopted() -> Iterator[int]:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # those that have ended
                pass
        for pid in [
            pid for pid, state, parent, _ in _processes() if parent == os.getpid() and state != "Z"
        ]:
            with contextlib.suppress(OSError):
                if is_any_of_nsys or Path(f"/proc/{pid}/exe").readlink().name.startswith(_OF_NSYS):
                    yield pid

    # To end by themselves; after a polite signal; after the last one.
    _end(adopted, os.kill, (0, 1.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0))


def _end(
    left: Callable[[], Iterable[int]], kill: Callable[[int, int], None], *signals: tuple[int, float]
) -> None:
    """Send what is left one signal after the other, and wait so many seconds after each."""
    for number, wait_s in signals:
        for one in left():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(one, number)
        wait_until(lambda: not any(True for _ in left()), wait_s)


def wait_until(is_so: Callable[[], bool], most_s: float) -> bool:
    """Wait until something is so, for a limited time, and tell whether it is."""
    deadline = time.monotonic() + most_s
    while not (is_it := is_so()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return is_it


class Stop:
    """Remembers that somebody asked for the end, and with which signal."""

    signal: int | None = None
    n_asked = 0

    def ask(self, number: int, _frame: object = None) -> None:
        """Handle a signal."""
        self.signal = number
        self.n_asked += 1


@contextlib.contextmanager
def catching_signals() -> Iterator[Stop]:
    """Yield what remembers signals that end a program while the context lasts."""
    with handling((stop := Stop()).ask, *_ENDING):
        yield stop


def interruptible() -> contextlib.AbstractContextManager[None]:
    """Make the signals that end a program a KeyboardInterrupt with their number, so that what is begun is cleaned up."""

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(number)

    return handling(interrupt, *_ENDING)


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: IO[bytes] | None = None,
    pass_fds: Sequence[int] = (),
    ends_with_us: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, which the terminal's Ctrl-C does not reach; it may end with us."""
    return subprocess.Popen(  # noqa: S603 - a list, no shell
        command,
        env=environment,
        start_new_session=True,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
        # Looked up before: between fork and exec as little as possible happens.
        preexec_fn=functools.partial(prctl(), SET_DEATH_SIGNAL, signal.SIGTERM)  # noqa: PLW1509 - we have one thread
        if ends_with_us
        else None,
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
    states = [state for _, state, _, its in _processes() if its == group]
    return not states or any(state not in "ZX" for state in states)


def group_of(pid: int) -> int | None:
    """Return the group of a process; None if there is none, or if it is ours."""
    with contextlib.suppress(ProcessLookupError):
        group = os.getpgid(pid)
        if group != os.getpgrp():
            return group
    return None


def end_groups(groups: Iterable[int], *, grace_s: float | None = None) -> None:
    """Ask all processes of groups to end, and kill what is left after a while."""
    groups = list(groups)
    grace_s = GRACE_S if grace_s is None else grace_s
    _end(
        lambda: filter(group_is_alive, groups),
        os.killpg,
        (signal.SIGTERM, grace_s),
        (signal.SIGKILL, 2.0),
    )
