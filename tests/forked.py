"""Processes whose imports are done: a server imports the package once, and forks for each run.

For tests that need a process: one that is signalled, killed, limited, or run somewhere else. A start
of Python and its imports takes half a second, a fork takes a few milliseconds. What is about the
start itself (what is imported, and from where) needs `subprocess`.

The server has no threads of its own, so that its forks are safe. Between the server and a program
stands a keeper, the program's parent, which says how it ends.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CLI = "from nsyspipe.__main__ import main\nmain()"
_SERVER = "from tests.forked import serve\nserve()"
_IMPORTED_BY_COMMANDS = (
    "nsyspipe.__main__",
    "nsyspipe.api",
    "nsyspipe.cli.app",
    "nsyspipe.findings.judge",
    "nsyspipe.replay.answer",
    "nsyspipe.report.public.report_run",
    "nsyspipe.report.public.run",
    "nsyspipe.run.assemble",
    "nsyspipe.run.gather",
    "nsyspipe.run.operations",
    "nsyspipe.run.run",
    "pyarrow.acero",
    "pyarrow.dataset",
)
# What the system takes as one message.
_MAX_REQUEST_BYTES = 150_000


class Forks:
    """The server: `start` and `run` fork a program from it."""

    def __init__(self, *modules: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        variables = os.environ | {
            "PYTHONPATH": str(ROOT),
            "OPENBLAS_NUM_THREADS": "1",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            # Arrow's allocator, which nobody asks, has a thread else.
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(theirs.fileno()), *modules],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._requests = ours

    def start(
        self,
        *words: object,
        script: str = CLI,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        new_session: bool = False,
    ) -> "Forked":
        """Fork a program that runs a script with these words as its arguments."""
        request = {
            "script": script,
            "words": [str(word) for word in words],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "new_session": new_session,
        }
        return Forked(self._requests, json.dumps(request).encode(), words)

    def run(self, *words: object, timeout: float = 60, **more: Any) -> subprocess.CompletedProcess:
        """Fork a program and wait for its end, as `subprocess.run` does."""
        process = self.start(*words, **more)
        status = process.wait(timeout)
        return subprocess.CompletedProcess([*map(str, words)], status, *process.communicate())

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


class Forked:
    """A program that was forked: what tests use of `subprocess.Popen`. Its streams are files."""

    def __init__(self, server: socket.socket, request: bytes, words: tuple[object, ...]) -> None:
        assert len(request) < _MAX_REQUEST_BYTES
        self.args = words
        self.returncode: int | None = None
        self._streams = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - they stay open
        reports, self_written = os.pipe()
        descriptors = [*(stream.fileno() for stream in self._streams), self_written]
        socket.send_fds(server, [request], descriptors)
        os.close(self_written)
        self._reports = os.fdopen(reports, encoding="ascii")
        self.pid = int(self._reports.readline())

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._reports], [], [], 0)[0]:
            self._take_status()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._reports], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired([str(word) for word in self.args], timeout or 0)
            self._take_status()
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return what it wrote to both streams."""
        self.wait(timeout)
        out, errors = self.output(), self.errors()
        for stream in self._streams:
            stream.close()
        return out, errors

    def output(self) -> str:
        """Return what it has written so far."""
        return self._text_of(0)

    def errors(self) -> str:
        """Return what it has written to its error stream so far."""
        return self._text_of(1)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _take_status(self) -> None:
        self.returncode = int(self._reports.readline())
        self._reports.close()

    def _text_of(self, number: int) -> str:
        # Not by its position, which it shares with the program.
        descriptor = self._streams[number].fileno()
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        return content.decode("utf-8", "surrogateescape")


def serve() -> None:
    """Fork for each request. In a fork, run the program it asks for, as the main program of a process."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    _import_program()
    for module in sys.argv[2:]:
        importlib.import_module(module)
    while True:
        content, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 3)
        _forget_keepers()
        if not content:
            return
        assert len(list(Path("/proc/self/task").iterdir())) == 1
        if os.fork() == 0:
            requests.close()
            break
        for descriptor in descriptors:
            os.close(descriptor)
    *streams, reports = descriptors
    program = os.fork()
    if program:
        _keep(program, reports)
    os.close(reports)
    _become(json.loads(content), streams)


def _import_program() -> None:
    """Import what the program imports, and what its commands import when they run."""
    # As the program does before its imports.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    without_other_frames = importlib.import_module("nsyspipe.run.workers").without_other_frames
    without_other_frames()
    for module in _IMPORTED_BY_COMMANDS:
        importlib.import_module(module)
    with contextlib.suppress(ModuleNotFoundError):
        # Some versions of Typer use it, when they read the first option.
        importlib.import_module("pydantic.type_adapter")


def _forget_keepers() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(program: int, reports: int) -> None:
    """Say the number of a program, and how it ends; leave without what Python does at its end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(reports, f"{program}\n".encode())
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(reports, f"{status}\n".encode())
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Run a program in this process, as if Python had been started for it."""
    if request["new_session"]:
        os.setsid()
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - of a descriptor
        os.dup2(nothing.fileno(), 0)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    # Tests may run where these are ignored, as after ``&``.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv[:] = ["-c", *request["words"]]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(request["script"], "<string>", "exec"), vars(main))
