"""The work on reports by the workers of a Dask cluster, which see the same files as this process.

What is sent is a pickle whose loading is the call, so that the scheduler, which loads what it
passes on, needs no nsyspipe. A worker that is lost has its calls made by another one: that is
Dask's part.
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
from typing import ParamSpec, TypeVar

from nsyspipe.errors import InputError, OptionError, ReportNotFoundError
from nsyspipe.model.names import listed, printable
from nsyspipe.model.text_files import read_small_text
from nsyspipe.version import __version__

SILENT_THREAD = "nsyspipe: silent scheduler"  # `__main__` waits for no thread of this name
P = ParamSpec("P")
T = TypeVar("T")

_NO_WORKER_S = 60.0
_LOOK_FOR_WORKERS_S = 1.0
# Dask would wait longer; whoever sets another time than its default gets it.
_DEFAULT_CONNECT_S = 30.0
_CONNECT_S = 10.0
_RUN_S = 60.0
_CLOSE_S = 2.0
_LONGEST_REASON = 300
MOST_NAMES = 4
_INSTALL = f"install nsyspipe {__version__} where workers are started"
_ADDRESS = re.compile(r"[a-z]+://.+|[^/]+:\d+")


def _answer_within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call does, or raise its error; a TimeoutError if that takes longer.

    It runs in a thread that nobody waits for: Ctrl-C and SIGTERM are heard meanwhile, and the
    program can end.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - who waits for it raises it
            answer.set_exception(error)

    threading.Thread(target=run, name=SILENT_THREAD, daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError as error:
        what = str(error) or f"it accepted the connection, but did not answer for {seconds:.0f} s"
        raise TimeoutError(what) from error


def _no_scheduler(place: str, address: str, error: Exception) -> InputError:
    """Return the error for an address where no scheduler answers, by what a library made of the answer."""
    said = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, MemoryError):  # what another protocol says is read as a length
        said = "another program answers, perhaps its dashboard"
    problem = f"no Dask scheduler answers there ({printable(said[:_LONGEST_REASON])})"
    fix = "use the address that dask scheduler prints"
    of_tls = " (for tls:// configure the certificates in Dask)"
    if place != address:
        problem = f"names {address}, but {problem.replace(' there', '')}"
        fix = "use the file of a running scheduler, or start dask scheduler --scheduler-file again"
    return InputError(place, problem, fix=fix + of_tls * address.startswith("tls"))


class Cluster(Executor):
    """The workers of one scheduler, named by its address or by the file that it writes.

    Raises OptionError if that is neither, or Dask is not installed; InputError if no scheduler
    answers, or a worker that is there has no nsyspipe of this version.
    """

    def __init__(self, place: str) -> None:
        address = _address(place)
        try:
            import dask
            from distributed import Client, Security
            from distributed.comm import connect
        except ImportError as error:
            fix = "pip install distributed (the extra dask of nsyspipe)"
            raise OptionError(
                place, f"needs dask.distributed, which is not here ({error})", fix=fix
            ) from error
        for name in ("distributed", "distributed.client", "asyncio", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters of it is said here
        self._place = place
        self._address = address
        self._error: InputError | None = None
        self._only: dict[str, list[str]] = {}
        self._is_shut = threading.Event()

        async def reach() -> None:  # a client that cannot be made would have to be waited for
            await (
                await connect(address, wait_s, **Security().get_connection_args("client"))
            ).close()

        class OwnClient(Client):  # type: ignore[misc]  # of a library without types
            def __del__(self) -> None:
                """Close nothing: `shutdown` does, and one that is half made would be waited for."""

        def open_client() -> Client:
            asyncio.run(
                reach()
            )  # apart: the caller's thread may have a loop that runs, as in a notebook
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # of versions of libraries, also of pandas, which is kept out here
                return OwnClient(address, set_as_default=False, timeout=wait_s)

        set_s = dask.utils.parse_timedelta(
            dask.config.get("distributed.comm.timeouts.connect", _DEFAULT_CONNECT_S)
        )
        wait_s = _CONNECT_S if set_s == _DEFAULT_CONNECT_S else set_s
        try:
            self._client = _answer_within(wait_s + _CLOSE_S / 4, open_client)
        except (
            Exception
        ) as error:  # whatever a library makes of the bytes of something that is no scheduler
            raise _no_scheduler(place, address, error) from error
        self._executor = self._client.get_executor(pure=False)
        try:
            _answer_within(_RUN_S, self._check_versions)
        except (TimeoutError, OSError) as error:
            self.kill()
            problem = f"the scheduler answers, but its workers did not answer within {_RUN_S:g} s"
            raise InputError(
                place, problem, fix="read the log of dask scheduler, or restart dask scheduler"
            ) from error
        except BaseException:
            self.kill()
            raise
        threading.Thread(
            target=self._look_for_workers, name="nsyspipe cluster", daemon=True
        ).start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a call made by a worker that is free; `fn` is a function of nsyspipe."""
        if self._error is not None:
            raise self._error
        running = self._executor.submit(
            pickle.loads, pickle.dumps(_Call((fn, args, kwargs))), **self._only
        )
        future: Future[T] = Future()
        running.add_done_callback(lambda done: self._settle(future, done))
        future.add_done_callback(lambda done: running.cancel() if done.cancelled() else None)
        return future

    def on_each_worker(self, fn: Callable[..., T], *args: object) -> dict[str, T | Exception]:
        """Return what each worker that is there now answers to a call, or which error it raises, by its address."""
        found: dict[str, T | Exception] = self._client.run(fn, *args, on_error="return")
        return found

    def take_only(self, workers: Iterable[str]) -> None:
        """Give further calls to these workers alone."""
        self._only = {"workers": sorted(workers)}

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002 - Executor's
        """Leave the cluster; what waits is dropped, and what a worker is reading it reads to its end, for nobody."""
        if self._is_shut.is_set():
            return
        self._is_shut.set()
        with contextlib.suppress(Exception):  # a scheduler that is gone has nothing to drop
            self._executor.shutdown(wait=False)
        with contextlib.suppress(Exception):
            self._client.close(timeout=_CLOSE_S)

    kill = shutdown

    def _settle(self, future: Future[T], done: Future[T]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(done.result())
        except CancelledError:
            problem = "the scheduler has ended or dropped the task"
            future.set_exception(
                self._error
                or InputError(self._place, problem, fix="restart the scheduler and this command")
            )
        except ModuleNotFoundError as error:
            problem = f"a worker does not have the module {error.name}"
            future.set_exception(InputError(self._place, problem, fix=_INSTALL))
        except Exception as error:  # noqa: BLE001 - the caller of result() gets it
            problem = (
                "its workers died one after the other at the same report, perhaps out of memory"
            )
            fix = "dask worker --nthreads 1 --memory-limit 16GB (see its log)"
            told = InputError(self._place, problem, fix=fix)
            future.set_exception(told if type(error).__name__ == "KilledWorker" else error)

    def _check_versions(self) -> None:
        """Refuse workers without nsyspipe, or with another one; those that come later are asked at each call."""
        # By a function of Python's own, which is there whatever else is not.
        found = self.on_each_worker(pkgutil.resolve_name, "nsyspipe.version:__version__")
        wrong = {worker: one for worker, one in found.items() if one != __version__}
        if wrong:
            problem = f"{len(wrong)} of {len(found)} workers do not have nsyspipe {__version__}"
            versions = ("none" if isinstance(one, Exception) else one for one in wrong.values())
            names = listed(map("{} has {}".format, wrong, versions), MOST_NAMES)
            raise InputError(self._place, problem, found=names, fix=_INSTALL)

    def _look_for_workers(self) -> None:
        import dask

        timeout = dask.config.get("distributed.scheduler.no-workers-timeout", None)
        patience_s = dask.utils.parse_timedelta(timeout) if timeout else _NO_WORKER_S
        seen_at = time.monotonic()
        while not self._is_shut.wait(_LOOK_FOR_WORKERS_S):
            with contextlib.suppress(Exception):  # while it reconnects
                there = self._client.nthreads()
                if there.keys() & set(self._only.get("workers", there)):
                    seen_at = time.monotonic()
                elif time.monotonic() - seen_at > patience_s:
                    wait = "to wait longer: DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT=1h"
                    fix = f"dask worker {self._address}, then {wait}"
                    self._error = InputError(self._place, "has no worker for this task", fix=fix)
                    self._executor.shutdown(wait=False)
                    return


def is_unwanted() -> bool:
    """Tell whether the call that a worker makes was dropped meanwhile, as by Ctrl-C or the end of who asked for it."""
    from distributed import get_worker

    worker = get_worker()
    return bool(worker.state.tasks[worker.get_current_task()].state == "cancelled")


class _Call(tuple[object, ...]):
    """A call that unpickling makes: a function, and what it takes."""

    def __reduce__(self) -> tuple[object, ...]:
        return answer, (__version__, pickle.dumps(tuple(self)))


def answer(version: str, request: bytes) -> object:
    """Make a call on a worker; InputError if it has another nsyspipe, or does not see the report."""
    from distributed import get_worker

    worker = get_worker().address
    if version != __version__:
        problem = f"has nsyspipe {__version__}, but the client has {version}"
        raise InputError(
            f"worker {worker}", problem, fix=f"install nsyspipe {version} on the workers"
        )
    function, args, kwargs = pickle.loads(request)  # noqa: S301 - Dask's protocol is pickles too
    try:
        return function(*args, **kwargs)
    except ReportNotFoundError as error:
        fix = "use a directory that all workers see by the same path"
        if Path(error.subject).parent.match("exports/*"):
            fix += " (exports are cached in $NSYSPIPE_CACHE_DIR)"
        raise InputError(error.subject, f"is not there for worker {worker}", fix=fix) from None


def _address(place: str) -> str:
    path = Path(place)
    try:
        if _ADDRESS.fullmatch(place) and not path.is_file():
            return place
        found = json.loads(read_small_text(path))["address"]
        if isinstance(found, str) and len(found) <= _LONGEST_REASON:
            return found
        problem = "contains no address of a scheduler"
    except FileNotFoundError:
        problem = "is not an address of a scheduler or an existing file"
    except (OSError, KeyError, TypeError, ValueError, RecursionError):
        problem = "is not a file of a Dask scheduler"
    fix = "use tcp://HOST:8786, or the file that dask scheduler --scheduler-file FILE writes"
    raise OptionError(f"--scheduler {place}", problem, fix=fix)
