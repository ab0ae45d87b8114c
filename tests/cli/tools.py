"""Run the program as a user does: another process, its two streams, its exit code."""

import contextlib
import functools
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from unittest import mock

import typer.main

import nsyspipe
from nsyspipe.cli import app

ROOT = Path(nsyspipe.__file__).parents[1]
# What a terminal, a CI service or a developer may have set, and what would change the output.
_TERMINAL = (
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "CLICOLOR_FORCE",
)

# How many lines a command writes to its error stream when a signal ends it.
LINES_AT_END = {signal.SIGINT: 1, signal.SIGTERM: 0}


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if name not in _TERMINAL}
    return (
        kept
        | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))}
        | variables
    )


def program(*arguments):
    return [sys.executable, "-m", "nsyspipe", *map(str, arguments)]


def python_run(script):
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=environment()
    )


def nsyspipe_run(*arguments, cwd=None, timeout=60, **variables):
    """Run the program to its end; streams are bytes decoded as they are."""
    return subprocess.run(
        program(*arguments),
        capture_output=True,
        check=False,
        timeout=timeout,
        cwd=cwd,
        env=environment(**variables),
        encoding="utf-8",
        errors="surrogateescape",
    )


def nsyspipe_here(*arguments, cwd=None, **variables):
    """Return what :func:`nsyspipe_run` returns, from this process: no start of another, which takes a second.

    For what a command says. How it starts, ends and spawns, what it imports, its encodings, and
    whether it hangs is a process's own.
    """
    if taken := [name for name in variables if name == "timeout" or name.startswith("PYTHON")]:
        message = f"{taken} need a process: nsyspipe_run"
        raise TypeError(message)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        paths = [Path(folder) / name for name in ("stdout", "stderr")]
        # Appended to: native code writes to the same files.
        streams = [
            opened.enter_context(path.open("a", encoding="utf-8", errors="surrogateescape"))
            for path in paths
        ]
        returncode = _exit_code(arguments, streams, cwd or Path.cwd(), environment(**variables))
        found = [path.read_text("utf-8", "surrogateescape") for path in paths]
    return subprocess.CompletedProcess(arguments, returncode, *found)


def terminal_run(*arguments, columns=100, **variables):
    """Run the program with both streams on one terminal; return exit code and what the terminal got."""
    ours, theirs = pty.openpty()
    received = bytearray()

    def receive():
        with contextlib.suppress(OSError):  # EIO: the other end was closed
            while chunk := os.read(ours, 65536):
                received.extend(chunk)

    reader = threading.Thread(target=receive, daemon=True)
    reader.start()
    with open(theirs, "w", encoding="utf-8", errors="surrogateescape") as terminal:  # noqa: PTH123 - a descriptor
        settings = environment(COLUMNS=str(columns), **{"TERM": "xterm-256color"} | variables)
        code = _exit_code(arguments, [terminal, terminal], Path.cwd(), settings)
    reader.join(timeout=10)
    os.close(ours)
    return code, received.decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def _exit_code(arguments, streams, folder, variables):
    with contextlib.ExitStack() as changed:
        for number, stream in enumerate(streams, start=1):
            changed.enter_context(_descriptor_at(number, stream.fileno()))
        changed.enter_context(contextlib.redirect_stdout(streams[0]))
        changed.enter_context(contextlib.redirect_stderr(streams[1]))
        changed.enter_context(mock.patch.object(sys, "argv", ["nsyspipe", *map(str, arguments)]))
        changed.enter_context(mock.patch.dict(os.environ, variables, clear=True))
        # Other tests of this process need pandas.
        changed.enter_context(mock.patch.object(app, "without_other_frames"))
        # What the program makes of its options once.
        changed.enter_context(mock.patch.object(typer.main, "get_command", _command_of))
        changed.enter_context(contextlib.chdir(folder))
        try:
            app.run()
        except SystemExit as end:
            return end.code or 0
        finally:
            for stream in streams:
                stream.flush()
    return 0


_command_of = functools.cache(typer.main.get_command)


@contextlib.contextmanager
def _descriptor_at(number, other):
    kept = os.dup(number)
    os.dup2(other, number)
    try:
        yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


def assert_refused(done):
    """Check the contract of unusable input: exit code 2, one line that says why, no result, no traceback; return what it says."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert sum(line.lower().startswith("error") for line in lines) == 1
    assert all(line.startswith(("  found: ", "  fix: ")) for line in lines[1:]), lines
    assert "  fix: " in done.stderr
    return done.stderr
