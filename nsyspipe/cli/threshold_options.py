"""What counts as a difference, for diff and compare alike: options, and the file that is named where it says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from nsyspipe.gate_settings import GateSettings, read_settings, settled
from nsyspipe.untrusted import printable

__all__ = ["Confidence", "MinEffect", "name_file", "settled_here", "shown_path"]

MinEffect = Annotated[
    str | None,
    typer.Option(
        "--min-effect",
        metavar="PCT",
        help="Less change than this does not count, in per cent: 2% and 2 are the same. [default: 2%]",
    ),
]
Confidence = Annotated[
    str | None,
    typer.Option(
        "--confidence",
        metavar="P",
        help="Of the intervals, above 0.5 and below 1. [default: 0.95]",
    ),
]


def settled_here(options: GateSettings, *names: str) -> GateSettings:
    """Return what options say, and where they are silent the nearest file of settings, seen from here.

    Parameters
    ----------
    names
        The settings that count.

    Raises
    ------
    OptionError
        If the file cannot be used, or is not the user's own.
    """
    return settled(options, read_settings(Path.cwd()), names)


def name_file(settings: GateSettings) -> None:
    """Say on stderr which file some setting comes from, where no text does: a log always shows it."""
    if settings.path is not None:
        typer.echo(printable(f"Thresholds from {shown_path(settings)}."), err=True)


def shown_path(settings: GateSettings) -> str | None:
    """Return the file that some setting comes from as seen from here; None where none does."""
    return None if settings.path is None else os.path.relpath(settings.path)
