"""Where the work on reports runs: in this process, or in workers, as many as cores and memory allow."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from nsyspipe.errors import shortage
from nsyspipe.run.workers import Workers, can_start, dead_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


# What workers run, and import before they are asked to.
PRELOAD = "nsyspipe.run.gather"

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
def telling_shortage() -> Iterator[None]:
    """Turn the end of a worker process, and what a machine has too little of, into an `InputError` that says so."""
    try:
        yield
    except BrokenExecutor as error:
        raise dead_worker() from error
    except (ImportError, MemoryError, OSError, SystemError) as error:
        if (told := shortage(error)) is None:
            raise
        raise told from error


def jobs_for(
    sizes: Sequence[int], requested: int | None = None, *, available: int | None = None
) -> int:
    """Return how many processes to use: at least 1, at most one per report, never more than memory can hold at once.

    The user's number, else the cores there are, if the reports, bytes each, are worth it. Tests give free memory in
    bytes.
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
    """Yield an executor for the work on some reports, with the user's number of processes; they end with the context.

    Workers import `preload` at once, while the caller is still busy with its own imports.
    """
    jobs = jobs_for([_size(path) for path in paths], requested)
    if jobs == 1 or not can_start():
        yield SerialExecutor()
        return
    workers = Workers(jobs, preload=preload)
    try:
        yield workers
    except BaseException:
        workers.kill()
        raise
    finally:
        workers.shutdown(cancel_futures=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0  # whoever reads it will say what is wrong


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
