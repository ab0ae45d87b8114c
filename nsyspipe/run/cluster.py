"""The work on reports by the workers of a Dask cluster, which see the same files as this process.

A request is a pickle that makes the call when it is loaded. The scheduler loads what it passes on,
but not the pickle inside, so that it needs no nsyspipe. If a worker is lost, Dask has its calls
made by another worker.
"""

import asyncio
import contextlib
import json
import logging
import pickle
import pkgutil
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Executor, Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from nsyspipe.errors import InputError, OptionError, ReportNotFoundError
from nsyspipe.model.names import listed, printable, verb_for
from nsyspipe.model.text_files import read_small_text
from nsyspipe.version import __version__

# `__main__` does not wait for threads with this name.
SILENT_THREAD = "nsyspipe: silent scheduler"
P = ParamSpec("P")
T = TypeVar("T")

_MAX_TIME_WITHOUT_WORKERS_S = 60.0
_WORKER_CHECK_INTERVAL_S = 1.0
# Dask's default is longer than a user waits. A user who changed it gets that time.
_DEFAULT_CONNECT_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 10.0
_VERSION_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 2.0
_MAX_REASON_LENGTH = 300
MOST_NAMES = 4
_INSTALL = f"install nsyspipe {__version__} where workers are started"
_ADDRESS = re.compile(r"[a-z]+://.+|[^/]+:\d+")


def _answer_within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call, or raise its error. Raises TimeoutError after some seconds.

    The call runs in a thread that nobody waits for. So Ctrl-C and SIGTERM end the program while the
    call runs.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - result() raises it
            answer.set_exception(error)

    threading.Thread(target=run, name=SILENT_THREAD, daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError as error:
        # An error of the call itself has a text. The error of `answer.result` has none.
        silence = f"it accepted the connection, but did not answer for {seconds:.0f} s"
        raise TimeoutError(str(error) or silence) from error


def _no_scheduler(place: str, address: str, error: Exception) -> InputError:
    """Return the error for an address without a scheduler. A library raised `error` for it."""
    if isinstance(error, MemoryError):
        # The library took the first bytes of another protocol for the length of a huge message.
        reason = "another program answers, perhaps its dashboard"
    else:
        lines = str(error).splitlines() or [type(error).__name__]
        reason = printable(lines[0][:_MAX_REASON_LENGTH])
    if place == address:
        problem = f"no Dask scheduler answers there ({reason})"
        fix = "use the address that dask scheduler prints"
    else:
        problem = f"names {address}, but no Dask scheduler answers ({reason})"
        fix = "use the file of a running scheduler, or start dask scheduler --scheduler-file again"
    if address.startswith("tls"):
        fix += " (for tls:// configure the certificates in Dask)"
    return InputError(place, problem, fix=fix)


def _check_dask(place: str) -> None:
    """Raise OptionError if Dask is not installed."""
    try:
        import dask  # noqa: F401
        from distributed import Client, Security  # noqa: F401
        from distributed.comm import connect  # noqa: F401
    except ImportError as error:
        fix = "pip install distributed (the extra dask of nsyspipe)"
        problem = f"needs dask.distributed, which is not here ({error})"
        raise OptionError(place, problem, fix=fix) from error


def _silence_dask() -> None:
    """Keep Dask from printing. Our own messages say what matters."""
    for name in ("distributed", "distributed.client", "asyncio", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _connect_timeout_s() -> float:
    import dask

    setting = dask.config.get("distributed.comm.timeouts.connect", _DEFAULT_CONNECT_TIMEOUT_S)
    timeout_s = float(dask.utils.parse_timedelta(setting))
    return _CONNECT_TIMEOUT_S if timeout_s == _DEFAULT_CONNECT_TIMEOUT_S else timeout_s


def _open_client(place: str, address: str) -> Any:  # noqa: ANN401 - of a library without types
    """Return a client of the scheduler with this address. Raises InputError if none answers."""
    from distributed import Client, Security
    from distributed.comm import connect

    timeout_s = _connect_timeout_s()

    async def reach() -> None:
        connection_args = Security().get_connection_args("client")
        connection = await connect(address, timeout_s, **connection_args)
        await connection.close()

    class OwnClient(Client):  # type: ignore[misc]  # of a library without types
        def __del__(self) -> None:
            """Close nothing. `shutdown` closes a client, and an unfinished one would block here."""

    def open_client() -> Client:
        # A client that cannot connect would block the end of the program. So a connection is tried
        # before. The caller's thread may have a running event loop, as in a notebook. This thread
        # has none.
        asyncio.run(reach())
        with warnings.catch_warnings():
            # Dask warns that versions of libraries differ from those of its workers. That is no
            # problem here.
            warnings.simplefilter("ignore")
            return OwnClient(address, set_as_default=False, timeout=timeout_s)

    # A little longer than the library, which then says why it could not connect.
    patience_s = timeout_s + _CLOSE_TIMEOUT_S / 4
    try:
        return _answer_within(patience_s, open_client)
    except Exception as error:
        # A library may raise any error for the bytes of another program.
        raise _no_scheduler(place, address, error) from error


class Cluster(Executor):
    """The workers of one scheduler, named by its address or by the file that it writes.

    Raises OptionError if that is neither, or if Dask is not installed. Raises InputError if no
    scheduler answers, or if a worker does not have this version of nsyspipe.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._address = _address(place)
        _check_dask(place)
        _silence_dask()
        self._error: InputError | None = None
        # Keyword arguments for Dask in each call: the workers that may make it, or nothing.
        self._allowed: dict[str, list[str]] = {}
        self._is_shut = threading.Event()
        self._client = _open_client(place, self._address)
        self._executor = self._client.get_executor(pure=False)
        try:
            _answer_within(_VERSION_TIMEOUT_S, self._check_versions)
        except (TimeoutError, OSError) as error:
            self.kill()
            problem = (
                "the scheduler answers, but its workers did not answer within "
                f"{_VERSION_TIMEOUT_S:g} s"
            )
            fix = "read the log of dask scheduler, or restart dask scheduler"
            raise InputError(place, problem, fix=fix) from error
        except BaseException:
            self.kill()
            raise
        watcher = threading.Thread(target=self._watch_workers, name="nsyspipe cluster", daemon=True)
        watcher.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a call made by a worker that is free. `fn` is a function of nsyspipe."""
        if self._error is not None:
            raise self._error
        request = pickle.dumps(_Call((fn, args, kwargs)))
        task = self._executor.submit(pickle.loads, request, **self._allowed)
        future: Future[T] = Future()

        def drop_task(done_future: Future[T]) -> None:
            if done_future.cancelled():
                task.cancel()

        task.add_done_callback(lambda done_task: self._settle(future, done_task))
        future.add_done_callback(drop_task)
        return future

    def on_each_worker(self, fn: Callable[..., T], *args: object) -> dict[str, T | Exception]:
        """Return the result or error of a call on each worker that is there now, by its address."""
        results: dict[str, T | Exception] = self._client.run(fn, *args, on_error="return")
        return results

    def take_only(self, workers: Iterable[str]) -> None:
        """Give further calls only to these workers."""
        self._allowed = {"workers": sorted(workers)}

    def shutdown(
        self,
        wait: bool = True,  # noqa: ARG002, FBT001, FBT002 - Executor's
        *,
        cancel_futures: bool = True,  # noqa: ARG002 - Executor's
    ) -> None:
        """Leave the cluster, and drop the waiting calls.

        A worker that is reading a report reads it to its end, although nobody needs it.
        """
        if self._is_shut.is_set():
            return
        self._is_shut.set()
        # A scheduler that has ended has nothing to drop.
        with contextlib.suppress(Exception):
            self._executor.shutdown(wait=False)
        with contextlib.suppress(Exception):
            self._client.close(timeout=_CLOSE_TIMEOUT_S)

    kill = shutdown

    def _settle(self, future: Future[T], task: Future[T]) -> None:
        """Give a future of ours the result or error of its task on the cluster."""
        is_wanted = future.set_running_or_notify_cancel()
        if not is_wanted:
            return
        try:
            future.set_result(task.result())
        except CancelledError:
            problem = "the scheduler has ended or dropped the task"
            fix = "restart the scheduler and this command"
            future.set_exception(self._error or InputError(self._place, problem, fix=fix))
        except ModuleNotFoundError as error:
            problem = f"a worker does not have the module {error.name}"
            future.set_exception(InputError(self._place, problem, fix=_INSTALL))
        except Exception as error:  # noqa: BLE001 - the caller of result() gets it
            is_death_of_workers = type(error).__name__ == "KilledWorker"
            future.set_exception(self._killed_workers() if is_death_of_workers else error)

    def _killed_workers(self) -> InputError:
        problem = "its workers died one after the other at the same report, perhaps out of memory"
        fix = "dask worker --nthreads 1 --memory-limit 16GB (see its log)"
        return InputError(self._place, problem, fix=fix)

    def _check_versions(self) -> None:
        """Refuse workers without this version of nsyspipe.

        Workers that come later are checked at each call (see `answer`).
        """
        # A worker without nsyspipe has this function too, because it is part of Python.
        versions = self.on_each_worker(pkgutil.resolve_name, "nsyspipe.version:__version__")
        wrong = {worker: result for worker, result in versions.items() if result != __version__}
        if not wrong:
            return
        names = []
        for worker, version in wrong.items():
            shown_version = "none" if isinstance(version, Exception) else version
            names.append(f"{worker} has {shown_version}")
        do = verb_for(len(wrong), "do")
        problem = f"{len(wrong)} of {len(versions)} workers {do} not have nsyspipe {__version__}"
        raise InputError(self._place, problem, found=listed(names, MOST_NAMES), fix=_INSTALL)

    def _watch_workers(self) -> None:
        """Set the error of all calls if there is no worker for too long."""
        import dask

        setting = dask.config.get("distributed.scheduler.no-workers-timeout", None)
        default_s = _MAX_TIME_WITHOUT_WORKERS_S
        patience_s = dask.utils.parse_timedelta(setting) if setting else default_s
        last_seen_s = time.monotonic()
        while not self._is_shut.wait(_WORKER_CHECK_INTERVAL_S):
            # A client that reconnects raises errors, which say nothing of workers.
            with contextlib.suppress(Exception):
                if self._has_workers():
                    last_seen_s = time.monotonic()
                elif time.monotonic() - last_seen_s > patience_s:
                    self._error = self._no_worker()
                    self._executor.shutdown(wait=False)
                    return

    def _has_workers(self) -> bool:
        present = self._client.nthreads()
        allowed = self._allowed.get("workers", present)
        return bool(present.keys() & set(allowed))

    def _no_worker(self) -> InputError:
        wait = "to wait longer: DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT=1h"
        fix = f"dask worker {self._address}, then {wait}"
        return InputError(self._place, "has no worker for this task", fix=fix)


def is_unwanted() -> bool:
    """Tell whether the call that this worker makes was dropped meanwhile.

    Ctrl-C, or the end of the process that asked for it, drops a call.
    """
    from distributed import get_worker

    worker = get_worker()
    return bool(worker.state.tasks[worker.get_current_task()].state == "cancelled")


class _Call(tuple[object, ...]):
    """A call that unpickling makes: a function and its arguments."""

    def __reduce__(self) -> tuple[object, ...]:
        return answer, (__version__, pickle.dumps(tuple(self)))


def answer(version: str, request: bytes) -> object:
    """Make a call on a worker.

    Raises InputError if the worker has another version of nsyspipe, or does not see the report.
    """
    from distributed import get_worker

    address = get_worker().address
    if version != __version__:
        problem = f"has nsyspipe {__version__}, but the client has {version}"
        fix = f"install nsyspipe {version} on the workers"
        raise InputError(f"worker {address}", problem, fix=fix)
    function, args, kwargs = pickle.loads(request)  # noqa: S301 - Dask's protocol is pickles too
    try:
        return function(*args, **kwargs)
    except ReportNotFoundError as error:
        fix = "use a directory that all workers see by the same path"
        if Path(error.subject).parent.match("exports/*"):
            fix += " (exports are cached in $NSYSPIPE_CACHE_DIR)"
        raise InputError(error.subject, f"is not there for worker {address}", fix=fix) from None


def _address(place: str) -> str:
    """Return the address of a scheduler. `place` is the address, or a file that contains it."""
    path = Path(place)
    try:
        # A file may be named like an address.
        is_address = _ADDRESS.fullmatch(place) and not path.is_file()
        if is_address:
            return place
        address = json.loads(read_small_text(path))["address"]
        if isinstance(address, str) and len(address) <= _MAX_REASON_LENGTH:
            return address
        problem = "contains no address of a scheduler"
    except FileNotFoundError:
        problem = "is not an address of a scheduler or an existing file"
    except (OSError, KeyError, TypeError, ValueError, RecursionError):
        problem = "is not a file of a Dask scheduler"
    fix = "use tcp://HOST:8786, or the file that dask scheduler --scheduler-file FILE writes"
    raise OptionError(f"--scheduler {place}", problem, fix=fix)
