"""``nsyspipe schema``: what every table and column means."""

from __future__ import annotations

from typing import Annotated

import typer

from nsyspipe.cli.output import write_stdout
from nsyspipe.errors import OptionError

__all__ = ["schema"]


def _complete_table(incomplete: str) -> list[str]:
    from nsyspipe.schema import DESCRIBED

    return [name for name in DESCRIBED if name.startswith(incomplete)]


def schema(
    table: Annotated[
        str | None,
        typer.Argument(help="One table; without it all of them.", autocompletion=_complete_table),
    ] = None,
) -> None:
    """Print every table and column: type, unit, formula, source.

    \b
    Examples:
      nsyspipe schema
      nsyspipe schema steps
    """
    from rich.console import Console

    from nsyspipe.report.schema_text import schema_text
    from nsyspipe.schema import DESCRIBED

    if table is not None and table not in DESCRIBED:
        raise OptionError(f"table {table!r}", "there is no such table", found=", ".join(DESCRIBED))
    chosen = [DESCRIBED[table]] if table else list(DESCRIBED.values())
    write_stdout(schema_text(chosen, Console()))
