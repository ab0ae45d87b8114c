"""Writing to the terminal or pipe: results to stdout, errors and progress to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nsyspipe.errors import NsyspipeError, OutputError
from nsyspipe.model.text import printable

if TYPE_CHECKING:
    from nsyspipe.report.blocks import Block


def write_stdout(text: str) -> None:
    """Write a result, now rather than at exit."""
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


def text_of(blocks: Iterable[Block]) -> str:
    """Return blocks as text for this terminal."""
    from rich.console import Console

    from nsyspipe.report.as_text import as_text

    return as_text(blocks, Console())


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


# Called with (done, in all); and what starts a stage by its name.
OnProgress = Callable[[int, int], None]
Stage = Callable[[str], OnProgress | None]


@contextlib.contextmanager
def progress(*, shown: bool) -> Iterator[Stage]:
    """Yield what starts a stage: it replaces the bar of the one before, and returns what moves its own."""
    if not shown or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:

        def start(name: str) -> OnProgress:
            for old in bar.task_ids:
                bar.remove_task(old)
            task = bar.add_task(name, total=None)  # it moves until something is counted
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield start
