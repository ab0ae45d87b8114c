"""Where the work on reports runs: in this process, or in spawned ones, as many as cores and memory allow."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from nsyspipe.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec

__all__ = [
    "PRELOAD",
    "SerialExecutor",
    "executor_for",
    "jobs_for",
    "telling_dead_workers",
    "without_other_frames",
]

# What workers run, and import before they are asked to.
PRELOAD = "nsyspipe.digest"

P = ParamSpec("P")
T = TypeVar("T")

# Below this many bytes per extra process, starting it costs more than it saves.
_WORTH_A_PROCESS = 96 * 2**20
# A worker holds the imports, and at its peak about 1.7 times the bytes of a report (measured).
_WORKER_BYTES = 100 * 2**20
_BYTES_PER_REPORT_BYTE = 2


class SerialExecutor(Executor):
    """Runs each call at once, in this process."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the function and return its finished future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - an executor hands every error to the caller of result()
            future.set_exception(error)
        return future


@contextlib.contextmanager
def telling_dead_workers() -> Iterator[None]:
    """Turn the end of a worker process into an error that says what may have ended it.

    Raises
    ------
    InputError
        If a worker died.
    """
    try:
        yield
    except BrokenProcessPool as error:
        raise InputError(
            "analysis",
            "a worker process died: no memory was left, or the calling script starts its work "
            "outside of if __name__ == '__main__'",
            fix="-j 1, or jobs=1 from Python",
        ) from error


def jobs_for(
    sizes: Sequence[int], requested: int | None = None, *, available: int | None = None
) -> int:
    """Return how many processes to use.

    Parameters
    ----------
    sizes
        Bytes of each report.
    requested
        The user's number; None takes the cores there are, if the reports are worth it.
    available
        Free memory in bytes, for tests; None asks the system.

    Returns
    -------
    int
        At least 1, at most one per report, and never more than memory can hold at once.
    """
    if not sizes:
        return 1
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    wanted = requested or min(cores, 1 + sum(sizes) // _WORTH_A_PROCESS)
    memory = _free_memory() if available is None else available
    per_worker = _WORKER_BYTES + _BYTES_PER_REPORT_BYTE * max(sizes)
    by_memory = memory // per_worker if memory else wanted
    return max(1, min(wanted, len(sizes), by_memory))


@contextlib.contextmanager
def executor_for(
    paths: Sequence[Path], requested: int | None, *, preload: str
) -> Iterator[Executor]:
    """Yield an executor for the work on some reports; its processes end with the context.

    Parameters
    ----------
    paths
        The reports; one that does not exist counts nothing.
    requested
        Processes to use; None chooses.
    preload
        A module that workers import at once, while the caller is still busy with its own imports.
    """
    jobs = jobs_for([_size(path) for path in paths], requested)
    if jobs == 1:
        yield SerialExecutor()
        return
    # Spawned, not forked: the parent has threads (Arrow's), which a fork would lose.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker)
    for _ in range(jobs):
        executor.submit(importlib.import_module, preload)
    workers = set(multiprocessing.active_children()) - others
    try:
        yield executor
    except BaseException:
        for worker in workers:
            worker.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0  # whoever reads it will say what is wrong


def _start_worker() -> None:
    """Prepare a worker: no pandas, no polars, and Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    without_other_frames()


def without_other_frames() -> None:
    """Keep pandas and polars out of this process; the libraries here load them where they are installed.

    Arrow loads pandas on its first conversion (0.15 s, 45 MB), ADBC polars when it is imported (0.1 s).
    Only for processes that are ours alone: the command line's and its workers'.
    """
    if not any(isinstance(hook, _NoOtherFrames) for hook in sys.meta_path):
        sys.meta_path.insert(0, _NoOtherFrames())


class _NoOtherFrames:
    """An import hook that knows two modules and does not have them."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """Refuse pandas and polars, leave all else to the other hooks."""
        if name in {"pandas", "polars"}:
            message = f"{name} is kept out of this process"
            raise ModuleNotFoundError(message, name=name)
        return None


def _free_memory() -> int:
    """Return the memory in bytes that new processes may take; 0 when the system does not say."""
    limits = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")
        ]
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        limits += [max(int(limit) - used, 1)] if limit.isdigit() else []
    except (OSError, ValueError):
        pass
    return min(limits, default=0)
