"""Where the work on reports runs: in this process, or in workers, as many as cores and memory allow.

A worker is a Python of its own, started with ``-P``, which gets calls and answers them through
pipes: none of `multiprocessing`, which start as ``python -c``, with the current directory first on
their path, and import the main program of whoever calls. Workers import nothing but what the
caller's installation has, never from the current directory, and they end when the process that
started them is gone, whatever ended it.
"""

import contextlib
import importlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar, cast

from nsyspipe.errors import InputError, NsyspipeError, shortage
from nsyspipe.nsys.programs import SET_DEATH_SIGNAL, import_path, prctl, set_up_process

P = ParamSpec("P")
T = TypeVar("T")

# The package is found by its place: the directory around it is not searched for anything else.
_START = """\
import pickle, sys
try:
    around, path, parent = pickle.loads(bytes.fromhex(sys.argv[1]))
    sys.path[:] = [*path, *(one for one in sys.path if one not in path)]
    import importlib.machinery, importlib.util
    spec = importlib.machinery.PathFinder.find_spec("nsyspipe", [around])
    sys.modules["nsyspipe"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["nsyspipe"])
    from nsyspipe.run.workers import serve
except Exception as error:
    sys.exit(f"error: a worker process cannot start: {type(error).__name__}: {error}")
serve(parent)
"""
_FLAGS = {
    "isolated": "-I",
    "ignore_environment": "-E",
    "no_user_site": "-s",
    "dont_write_bytecode": "-B",
}
_LOOK_FOR_PARENT_MS = 1000
_LAST_WORDS_S = 5.0
_FEWER = "-j 1"
_WORTH_A_PROCESS = (
    96 * 2**20
)  # below this many bytes per extra process, starting it costs more than it saves


class Workers(ThreadPoolExecutor):
    """Processes that run calls; each belongs to a thread here, which hands it one call after the other.

    They import at once what they are to run. Where one dies, all unanswered and all further calls
    end in an `InputError`.
    """

    def __init__(self, number: int) -> None:
        # Ctrl-C is for the main thread of this process; what threads start inherits that it is
        # blocked.
        super().__init__(
            number, "nsyspipe worker", signal.pthread_sigmask, (signal.SIG_BLOCK, {signal.SIGINT})
        )
        self._lock, self._own = threading.Lock(), threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._error: InputError | None = None
        around = str(Path(sys.modules["nsyspipe"].__path__[0]).absolute().parent)
        self._hello = pickle.dumps((around, import_path(), os.getpid())).hex()
        self._together = threading.Barrier(
            number
        )  # else one thread could start the process of another
        try:
            for _ in range(number):
                super().submit(self._begin)
        except BaseException as error:
            self.kill()
            self.shutdown(cancel_futures=True)
            if not isinstance(error, RuntimeError):
                raise
            raise InputError(
                "analysis", f"no more processes can be started ({error})", fix=_FEWER
            ) from error

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a call made by the next process that is free."""
        return super().submit(self._answer, pickle.dumps((fn, args, kwargs)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Executor's
        """End the processes, once they have made all calls that are not cancelled."""
        if cancel_futures:  # also starts: those that wait for the others would wait for good
            self._together.abort()
        super().shutdown(wait, cancel_futures=cancel_futures)
        for process in self._processes if wait else ():
            with contextlib.suppress(BrokenPipeError), process:
                pass  # it ends when nothing more can be asked

    def kill(self) -> None:
        """End the processes at once; there is nothing of theirs that could be half done."""
        self._given_up(dead_worker())
        for process in self._processes:
            process.kill()

    def _begin(self) -> None:
        self._together.wait()
        flags = [flag for name, flag in _FLAGS.items() if getattr(sys.flags, name)]
        with self._lock:
            if self._error is not None:
                return
            try:
                self._own.process = subprocess.Popen(  # noqa: S603 - our own interpreter and program
                    [
                        sys.executable,
                        *flags,
                        "-P",
                        "-X",
                        f"utf8={sys.flags.utf8_mode}",
                        "-c",
                        _START,
                        self._hello,
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # Entries of PYTHONPATH that are empty mean the current directory, with -P too;
                    # our path is an argument.
                    env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                )
                self._processes.append(self._own.process)
            except (OSError, MemoryError) as error:
                reason = getattr(error, "strerror", None) or "no memory is left"
                self._error = InputError(
                    "analysis", f"a worker process cannot be started ({reason})", fix=_FEWER
                )

    def _answer(self, request: bytes) -> Any:  # noqa: ANN401 - what the call returns
        """Have a call made by this thread's process; the error that it raises, or an `InputError` if one of all is gone."""
        if self._error is not None:
            raise self._error
        process: subprocess.Popen[bytes] = self._own.process
        try:
            _send(cast("IO[bytes]", process.stdin), request)
            payload = pickle.load(cast("IO[bytes]", process.stdout))  # noqa: S301 - from a process of ours
        except (OSError, EOFError, pickle.UnpicklingError, MemoryError) as failure:
            if isinstance(failure, MemoryError):  # the rest of an answer stands in the pipe
                process.kill()
            try:
                status = process.wait(_LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            raise self._given_up(dead_worker(status)) from failure
        error, value = pickle.loads(payload)  # noqa: S301 - from a process of ours
        if error is not None:
            raise error
        return value

    def _given_up(self, error: InputError) -> InputError:
        """Refuse all calls that are left, and those to come; return the first error of all processes."""
        with self._lock:
            self._error = self._error or error
            return self._error


def dead_worker(status: int | None = None) -> InputError:
    """Return the error for a worker process that ended by itself: its exit status, negative for a signal."""
    how = "" if status is None else f" with status {status}"
    if status is not None and status < 0:
        how = (
            " by "
            f"{signal.Signals(-status).name if -status in set(signal.Signals) else f'signal {-status}'}"
        )
    return InputError("analysis", f"a worker process died{how}, perhaps out of memory", fix=_FEWER)


def _send(file: IO[bytes], payload: bytes) -> None:
    """Send a pickle as bytes: where it cannot be loaded, the other side still knows where it ends."""
    pickle.dump(payload, file, protocol=5)
    file.flush()


def serve(parent: int) -> None:
    """Make the calls that come through standard input, until there are no more; run in a worker process."""
    # It ends with its parent: by the system, also where a call holds the interpreter for good, or
    # by a thread that looks.
    prctl()(
        SET_DEATH_SIGNAL, signal.SIGKILL
    )  # the parent's thread that has started us lives as long
    if os.getppid() != parent:  # it was gone before
        os._exit(1)
    threading.Thread(target=_look_for, args=(parent,), daemon=True).start()
    set_up_process()
    without_other_frames()
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    with contextlib.suppress(Exception):  # a call that needs it says what is wrong
        importlib.import_module("nsyspipe.run.gather")
    with contextlib.suppress(EOFError, pickle.UnpicklingError, BrokenPipeError):
        while True:
            _send(answers, _outcome(pickle.load(requests)))  # noqa: S301 - from our parent


def _outcome(request: bytes) -> bytes:
    """Make one call, and return the error that it raised, or None, and what it returned."""
    try:
        function, args, kwargs = pickle.loads(request)  # noqa: S301 - from our parent
        return pickle.dumps((None, function(*args, **kwargs)), protocol=5)
    except BaseException as error:  # noqa: BLE001 - the parent raises it again
        if not isinstance(error, NsyspipeError):
            error.add_note(f"in a worker process:\n{traceback.format_exc()}")
        try:
            return pickle.dumps((error, None))
        except Exception:  # noqa: BLE001 - an error that holds what cannot be sent
            return pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), None))


def _look_for(parent: int) -> None:
    """End this process when nobody holds the other end of its standard input any more, or its parent is another."""
    hung_up = select.poll()
    hung_up.register(0, 0)
    while os.getppid() == parent and not hung_up.poll(_LOOK_FOR_PARENT_MS):
        pass
    os._exit(1)


def without_other_frames() -> None:
    """Keep pandas and polars, which libraries load (0.25 s, 45 MB), out of a process that is ours alone."""
    if not any(isinstance(hook, _NoOtherFrames) for hook in sys.meta_path):
        sys.meta_path.insert(
            0, _NoOtherFrames()
        )  # None among `sys.modules` is what Arrow does not understand


class _NoOtherFrames:
    """An import hook that knows two modules and does not have them."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if name in {"pandas", "polars"}:
            raise ModuleNotFoundError(f"{name} is kept out of this process", name=name)
        return None


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


def place_for(running: Executor, path: str | Path) -> str:
    """Return how those who run the calls find a report: by its whole path, where they may be in another directory."""
    return str(
        path if isinstance(running, SerialExecutor | ThreadPoolExecutor) else Path(path).absolute()
    )


@contextlib.contextmanager
def telling_shortage() -> Iterator[None]:
    """Turn the end of a worker process, and what a machine has too little of, into an `InputError` that says so."""
    try:
        yield
    except BrokenExecutor as error:
        raise dead_worker() from error
    except Exception as error:
        told = shortage(error)
        if told is None:
            raise
        raise told from error


def jobs_for(
    sizes: Sequence[int], requested: int | None = None, *, available: int | None = None
) -> int:
    """Return how many processes to use: at least 1, at most one per report, never more than memory can hold at once."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    wanted = requested or min(cores, 1 + sum(sizes) // _WORTH_A_PROCESS)
    memory = _free_memory() if available is None else available
    # The imports, and at its peak about 1.7 times the report (measured).
    return max(
        1,
        min(
            wanted,
            len(sizes),
            memory // (100 * 2**20 + 2 * max(sizes, default=0)) if memory else wanted,
        ),
    )


@contextlib.contextmanager
def executor_for(
    paths: Sequence[Path], requested: int | None, *, scheduler: str | None = None
) -> Iterator[Executor]:
    """Yield an executor for the work on some reports: the user's number of processes, which end with the context, or a cluster."""
    jobs = 1 if scheduler else jobs_for([size_of(path) for path in paths], requested)
    if scheduler:
        from nsyspipe.run.cluster import Cluster  # noqa: PLC0415 - few have one

        workers: Workers | Cluster = Cluster(scheduler)
    # A program that is frozen or embedded is no Python that can be started again.
    elif jobs == 1 or not sys.executable or getattr(sys, "frozen", False):
        yield SerialExecutor()
        return
    else:
        workers = Workers(jobs)
    try:
        yield workers
    except BaseException:
        workers.kill()
        raise
    finally:
        workers.shutdown(cancel_futures=True)


def size_of(path: Path) -> int:
    """Return the bytes of a report; 0 of one that cannot be looked at, as whoever reads it will say what is wrong."""
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0


def _free_memory() -> int:
    """Return the memory in bytes that new processes may take; 0 when the system does not say."""
    limits = []
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")
        ]
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        limits += [max(int(limit) - used, 1)] if limit.isdigit() else []
    return min(limits, default=0)
