"""Where the work on reports runs: in this process, or in as many workers as fit.

A worker is a Python process that is started with ``-P``. It gets calls and answers them through
pipes. `multiprocessing` is not used, because its processes start as ``python -c``, with the current
directory first on their path, and import the main program of the caller. Our workers import only
what the caller's installation has, never from the current directory. They end when the process that
started them ends, for whatever reason.
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
from nsyspipe.model.user_paths import ReportFile
from nsyspipe.nsys.programs import SET_DEATH_SIGNAL, count_cores, import_path, prctl, set_up_process

P = ParamSpec("P")
T = TypeVar("T")

# The program of a worker. It finds the package by its directory, and searches that directory for
# nothing else.
_PROGRAM = """\
import pickle, sys
try:
    folder, path, parent = pickle.loads(bytes.fromhex(sys.argv[1]))
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
    import importlib.machinery, importlib.util
    spec = importlib.machinery.PathFinder.find_spec("nsyspipe", [folder])
    sys.modules["nsyspipe"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["nsyspipe"])
    from nsyspipe.run.workers import serve
except Exception as error:
    sys.exit(f"error: a worker process cannot start: {type(error).__name__}: {error}")
serve(parent)
"""
# Options of this interpreter that a worker gets too, by their names in `sys.flags`.
_INHERITED_OPTIONS = {
    "isolated": "-I",
    "ignore_environment": "-E",
    "no_user_site": "-s",
    "dont_write_bytecode": "-B",
}
_PARENT_CHECK_INTERVAL_MS = 1000
# A worker that closed its pipe gets this long to end.
_MAX_WAIT_FOR_END_S = 5.0
_FEWER_JOBS = "-j 1"
# If another process would read fewer bytes of reports, starting it costs more than it saves.
_MIN_BYTES_PER_PROCESS = 96 * 2**20
# Measured: the imports take this much memory, and at its peak a process takes about 1.7 times the
# size of its report.
_IMPORT_BYTES = 100 * 2**20
_MEMORY_PER_REPORT_BYTE = 2


class Workers(ThreadPoolExecutor):
    """Processes that run calls.

    Each process belongs to a thread here, which hands it one call after the other. Processes import
    at once what the calls need. If one dies, all unanswered and all further calls raise an
    `InputError`.
    """

    def __init__(self, number: int) -> None:
        # Ctrl-C is for the main thread of this process. The other threads block it, and so do the
        # processes that they start.
        super().__init__(
            max_workers=number,
            thread_name_prefix="nsyspipe worker",
            initializer=signal.pthread_sigmask,
            initargs=(signal.SIG_BLOCK, {signal.SIGINT}),
        )
        self._lock = threading.Lock()
        self._of_thread = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._error: InputError | None = None
        package = Path(sys.modules["nsyspipe"].__path__[0])
        folder = str(package.absolute().parent)
        self._argument = pickle.dumps((folder, import_path(), os.getpid())).hex()
        # Each thread starts its own process. At the barrier, threads wait for each other. Without
        # it, the first thread could be given the start of several processes.
        self._all_started = threading.Barrier(number)
        try:
            for _ in range(number):
                super().submit(self._start_process)
        except BaseException as error:
            self.kill()
            self.shutdown(cancel_futures=True)
            has_no_thread_left = isinstance(error, RuntimeError)
            if has_no_thread_left:
                problem = f"no more processes can be started ({error})"
                raise InputError("analysis", problem, fix=_FEWER_JOBS) from error
            raise

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a call made by the next process that is free."""
        request = pickle.dumps((fn, args, kwargs))
        return super().submit(self._answer, request)

    def shutdown(
        self,
        wait: bool = True,  # noqa: FBT001, FBT002 - Executor's
        *,
        cancel_futures: bool = False,
    ) -> None:
        """End the processes, once they have made all calls that are not canceled."""
        if cancel_futures:
            # A thread whose start is canceled never comes to the barrier. So the others need not
            # wait there any more.
            self._all_started.abort()
        super().shutdown(wait, cancel_futures=cancel_futures)
        if not wait:
            return
        for process in self._processes:
            # Leaving the context closes the pipe, which ends the process.
            with contextlib.suppress(BrokenPipeError), process:
                pass

    def kill(self) -> None:
        """End the processes at once. They leave nothing half done."""
        self._refuse_calls(dead_worker())
        for process in self._processes:
            process.kill()

    def _start_process(self) -> None:
        """Start the process of this thread. If it cannot be started, all calls are refused."""
        self._all_started.wait()
        options = [
            option for name, option in _INHERITED_OPTIONS.items() if getattr(sys.flags, name)
        ]
        command = [
            sys.executable,
            *options,
            "-P",
            "-X",
            f"utf8={sys.flags.utf8_mode}",
            "-c",
            _PROGRAM,
            self._argument,
        ]
        # An empty entry of PYTHONPATH means the current directory, even with -P. The worker gets
        # the import path by its argument instead.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with self._lock:
            if self._error is not None:
                return
            try:
                process = subprocess.Popen(  # noqa: S603 - our own interpreter and program
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
                )
                self._of_thread.process = process
                self._processes.append(process)
            except (OSError, MemoryError) as error:
                reason = getattr(error, "strerror", None) or "no memory is left"
                problem = f"a worker process cannot be started ({reason})"
                self._error = InputError("analysis", problem, fix=_FEWER_JOBS)

    def _answer(self, request: bytes) -> Any:  # noqa: ANN401 - what the call returns
        """Have a call made by the process of this thread, and return what the call returns.

        Raises the error of the call, or an `InputError` if any of the processes has died.
        """
        if self._error is not None:
            raise self._error
        process: subprocess.Popen[bytes] = self._of_thread.process
        try:
            _send(cast("IO[bytes]", process.stdin), request)
            answers = cast("IO[bytes]", process.stdout)
            payload = pickle.load(answers)  # noqa: S301 - from a process of ours
        except (OSError, EOFError, pickle.UnpicklingError, MemoryError) as failure:
            if isinstance(failure, MemoryError):
                # The rest of its answer is still in the pipe.
                process.kill()
            error = dead_worker(_wait_for_end(process))
            raise self._refuse_calls(error) from failure
        call_error, returned = pickle.loads(payload)  # noqa: S301 - from a process of ours
        if call_error is not None:
            raise call_error
        return returned

    def _refuse_calls(self, error: InputError) -> InputError:
        """Refuse all remaining and further calls, and return the first error of all processes."""
        with self._lock:
            self._error = self._error or error
            return self._error


def _wait_for_end(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a process, which is killed if it does not end."""
    try:
        return process.wait(_MAX_WAIT_FOR_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def dead_worker(status: int | None = None) -> InputError:
    """Return the error for a worker that died.

    `status` is its exit status, which is minus the number of a signal that ended it. None is not
    known.
    """
    problem = f"a worker process died{_describe_end(status)}, perhaps out of memory"
    return InputError("analysis", problem, fix=_FEWER_JOBS)


def _describe_end(status: int | None) -> str:
    """Return in words what ended a process, by its exit status. Empty if it is not known."""
    if status is None:
        return ""
    if status >= 0:
        return f" with status {status}"
    signal_number = -status
    if signal_number in set(signal.Signals):
        return f" by {signal.Signals(signal_number).name}"
    return f" by signal {signal_number}"


def _send(file: IO[bytes], payload: bytes) -> None:
    """Send a pickle as bytes, so that the receiver finds its end even if it cannot load it."""
    pickle.dump(payload, file, protocol=5)
    file.flush()


def serve(parent: int) -> None:
    """Make the calls that come through standard input of a worker, until the input ends.

    `parent` is the process ID of the parent. If the parent ends, the worker ends too.
    """
    # The system ends this process with its parent, even during a call that holds the interpreter.
    # It does so when the thread ends that started this process. That thread lives as long as the
    # parent.
    prctl()(SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent ended before it was watched, so that no signal comes.
        os._exit(1)
    # A thread watches the parent too, for systems that do not send the signal.
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    set_up_process()
    without_other_frames()
    requests = sys.stdin.buffer
    # Answers go through the pipe of standard output. What a library prints must not be in it, and
    # so goes to standard error.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # The import saves time in the first call. If it fails, the calls raise an error that says why.
    with contextlib.suppress(Exception):
        importlib.import_module("nsyspipe.run.gather")
    # Any of these errors means that the parent sends no more requests.
    with contextlib.suppress(EOFError, pickle.UnpicklingError, BrokenPipeError):
        while True:
            request = pickle.load(requests)  # noqa: S301 - from our parent
            _send(answers, _make_call(request))


def _make_call(request: bytes) -> bytes:
    """Make one call, and return a pickle of two things: its error or None, and what it returns."""
    try:
        function, args, kwargs = pickle.loads(request)  # noqa: S301 - from our parent
        return pickle.dumps((None, function(*args, **kwargs)), protocol=5)
    except BaseException as error:  # noqa: BLE001 - the parent raises it again
        if not isinstance(error, NsyspipeError):
            error.add_note(f"in a worker process:\n{traceback.format_exc()}")
        try:
            return pickle.dumps((error, None))
        except Exception:  # noqa: BLE001 - an error that holds what cannot be sent
            # The text of the error can be sent in any case.
            substitute = RuntimeError(f"{type(error).__name__}: {error}")
            return pickle.dumps((substitute, None))


def _end_with_parent(parent: int) -> None:
    """End this process when its parent has ended, or has closed our standard input."""
    # No event is asked for, so only the end of standard input (file 0) is reported.
    hang_up = select.poll()
    hang_up.register(0, 0)
    while os.getppid() == parent and not hang_up.poll(_PARENT_CHECK_INTERVAL_MS):
        # `poll` waits, so that this is no busy loop.
        pass
    os._exit(1)


def without_other_frames() -> None:
    """Keep pandas and polars, which libraries load, out of a process that is ours alone.

    Loading them takes 0.25 s and 45 MB.
    """
    # A None in `sys.modules` would do the same, but Arrow does not understand it.
    if not any(isinstance(hook, _NoOtherFrames) for hook in sys.meta_path):
        sys.meta_path.insert(0, _NoOtherFrames())


class _NoOtherFrames:
    """An import hook that says that pandas and polars are not installed."""

    def find_spec(
        self,
        name: str,
        path: object = None,  # noqa: ARG002
        target: object = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
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
        except Exception as error:  # noqa: BLE001 - result() raises it
            future.set_exception(error)
        return future


@contextlib.contextmanager
def telling_shortage() -> Iterator[None]:
    """Turn the death of a worker, and any shortage of the machine, into an `InputError`."""
    try:
        yield
    except BrokenExecutor as error:
        raise dead_worker() from error
    except Exception as error:
        shortage_error = shortage(error)
        if shortage_error is None:
            raise
        raise shortage_error from error


def jobs_for(
    sizes: Sequence[int], requested: int | None = None, *, available: int | None = None
) -> int:
    """Return how many processes to use for reports of these sizes in bytes.

    There is at least 1 process, at most one per report, and no more than memory can hold.
    `available` is that memory in bytes, 0 if it is not known. By default, the system is asked for
    it. If no number is requested, it depends on the cores and on the size of the reports.
    """
    # One process is always needed. Each further one must have enough to read to be worth its start.
    n_worth_starting = 1 + sum(sizes) // _MIN_BYTES_PER_PROCESS
    n_wanted = requested or min(count_cores(), n_worth_starting)
    n_useful = min(n_wanted, len(sizes))
    memory_bytes = _free_memory() if available is None else available
    if not memory_bytes:
        return max(n_useful, 1)
    largest_bytes = max(sizes, default=0)
    bytes_per_process = _IMPORT_BYTES + _MEMORY_PER_REPORT_BYTE * largest_bytes
    n_fitting = memory_bytes // bytes_per_process
    return max(min(n_useful, n_fitting), 1)


@contextlib.contextmanager
def executor_for(
    files: Sequence[ReportFile], requested: int | None, *, scheduler: str | None = None
) -> Iterator[Executor]:
    """Yield an executor for the work on some reports.

    With a scheduler, the executor is its cluster. Else it is the requested number of processes,
    which end with the context. If one process is enough, this process does the work itself.
    """
    n_jobs = 1 if scheduler else jobs_for([size_of(file) for file in files], requested)
    # A frozen or embedded program has no Python that can be started again.
    can_start_python = sys.executable and not getattr(sys, "frozen", False)
    if scheduler:
        from nsyspipe.run.cluster import Cluster  # noqa: PLC0415 - few have one

        workers: Workers | Cluster = Cluster(scheduler)
    elif n_jobs > 1 and can_start_python:
        workers = Workers(n_jobs)
    else:
        yield SerialExecutor()
        return
    try:
        yield workers
    except BaseException:
        # The work is of no use any more, so nobody waits for its end.
        workers.kill()
        raise
    finally:
        workers.shutdown(cancel_futures=True)


def size_of(file: ReportFile) -> int:
    """Return the bytes of a report, 0 if it cannot be read. Whoever reads it raises the error."""
    try:
        return file.path.stat().st_size
    except (OSError, ValueError):
        return 0


def _free_memory(root: Path = Path("/")) -> int:
    """Return the memory in bytes that new processes may take, 0 if the system does not say.

    `root` is the directory with the files of the system.
    """
    limits_bytes = [_free_memory_of_machine(root), _free_memory_of_group(root)]
    known_limits_bytes = [limit_bytes for limit_bytes in limits_bytes if limit_bytes is not None]
    return min(known_limits_bytes, default=0)


def _free_memory_of_machine(root: Path) -> int | None:
    """Return the bytes that the machine has left, None if it does not say."""
    with contextlib.suppress(OSError, ValueError):
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        for line in lines:
            if line.startswith("MemAvailable:"):
                kibibytes = int(line.split()[1])
                return kibibytes * 1024
    return None


def _free_memory_of_group(root: Path) -> int | None:
    """Return the bytes that the control group has left, None if it has no limit.

    0 would mean that the memory is not known, so the least is 1.
    """
    folder = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError, ValueError):
        # Without a limit, the text is "max", which is no number.
        limit_bytes = int((folder / "memory.max").read_text(encoding="ascii"))
        used_bytes = int((folder / "memory.current").read_text(encoding="ascii"))
        return max(limit_bytes - used_bytes, 1)
    return None
