"""Run a program in a process group of its own, and see that it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from nsyspipe.capture.processes import die_with_parent, processes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import IO

__all__ = [
    "GRACE_S",
    "POLL_S",
    "SIGNALLED",
    "Stop",
    "catching_signals",
    "end_group",
    "end_groups",
    "group_is_alive",
    "group_of",
    "interruptible",
    "start",
    "status_of",
]

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
