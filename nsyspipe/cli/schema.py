"""``nsyspipe schema``: what every table and column means."""

from typing import Annotated

import typer

from nsyspipe.cli.options import OUTPUT
from nsyspipe.cli.outputs import text_of, write_stdout
from nsyspipe.errors import OptionError

_TABLE = "Name of a table. [default: all tables]"
_MARKDOWN = "Print Markdown."


def _complete_table(incomplete: str) -> list[str]:
    from nsyspipe.model.schema import DESCRIBED

    return [name for name in DESCRIBED if name.startswith(incomplete)]


def schema(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help=_TABLE, autocompletion=_complete_table)
    ] = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", rich_help_panel=OUTPUT, help=_MARKDOWN)
    ] = False,
) -> None:
    """Print the type, unit, formula and source of every table and column.

    \b
    Examples:
      nsyspipe schema
      nsyspipe schema steps
      nsyspipe schema --markdown > REFERENCE.md
    """
    from nsyspipe.model.schema import DESCRIBED

    if table is not None and table not in DESCRIBED:
        raise OptionError.no_such_name(
            f"nsyspipe schema {table!r}", "is not a table", table, DESCRIBED
        )
    chosen = [DESCRIBED[table]] if table else list(DESCRIBED.values())
    from nsyspipe.report.schema import schema_blocks, schema_markdown

    write_stdout(schema_markdown(chosen) if as_markdown else text_of(schema_blocks(chosen)))
