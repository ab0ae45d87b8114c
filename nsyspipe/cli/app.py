"""The program: its commands, and what becomes of an error."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from nsyspipe import __version__
from nsyspipe.cli.analyze import analyze
from nsyspipe.cli.schema import schema
from nsyspipe.errors import NsyspipeError
from nsyspipe.parallel import without_pandas

__all__ = ["app", "run"]

_INTERRUPTED, _BROKEN_PIPE = 130, 141

app = typer.Typer(
    no_args_is_help=True,
    # Tracebacks are for our own bugs; with locals they could print what a report holds.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(analyze)
app.command()(schema)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"nsyspipe {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Where does the step time of a multi-GPU PyTorch run go? Answers from Nsight Systems reports.

    \b
    Examples:
      nsyspipe analyze ddp-8gpu_*.sqlite          the answer, in a second
      nsyspipe analyze reports/ --json run.json   the same for programs
      nsyspipe schema steps                       what every number means
      nsyspipe --install-completion               complete commands with Tab
    """


def run() -> None:
    """Run the program and exit: 0 answered, 2 unusable input or option, 130 interrupted."""
    without_pandas()
    try:
        app()
    except NsyspipeError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has left; keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_BROKEN_PIPE)


def print_error(error: NsyspipeError) -> None:
    """Print an error on stderr: one line that says it, then what was found and what fixes it."""
    first, *rest = error.lines()
    typer.secho("error:", fg="red", bold=True, nl=False, err=True)
    typer.echo("\n".join([f" {first}", *rest]), err=True)
