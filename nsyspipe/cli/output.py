"""Writing to the terminal or pipe: results to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from nsyspipe.errors import NsyspipeError, OutputError
from nsyspipe.untrusted import printable

__all__ = ["give_up_stdout", "lenient_encoding", "print_error", "write_stdout"]


def write_stdout(text: str) -> None:
    """Write a result, now rather than at exit.

    Raises
    ------
    OutputError
        If it cannot be written; a reader that left is a BrokenPipeError instead.
    """
    if sys.stdout is None:  # closed by whoever started the program
        raise OutputError("standard output", "is closed", fix="write to a file: --json FILE")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise OutputError("standard output", problem, fix="write to a file: --json FILE") from error


def print_error(error: NsyspipeError) -> None:
    """Print an error: one line that says it, then what was found and what fixes it."""
    is_coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    word = typer.style("error:", fg="red", bold=True) if is_coloured else "error:"
    first, *rest = map(printable, error.lines())
    sys.stderr.write("\n".join([f"{word} {first}", *rest]) + "\n")


def lenient_encoding() -> None:
    """Let a terminal that knows few letters show the rest as question marks."""
    if sys.stderr is None:  # closed by whoever started the program
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for the program's life
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="replace")


def give_up_stdout() -> None:
    """Send what is still buffered nowhere: whoever should have read it is gone."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
