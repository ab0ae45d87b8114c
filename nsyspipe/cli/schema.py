"""``nsyspipe schema``: what every table and column means."""

from typing import Annotated

import typer

from nsyspipe.cli.options import OUTPUT
from nsyspipe.cli.outputs import text_of, write_stdout
from nsyspipe.errors import OptionError

_TABLE = "Name of a table. [default: a list of the tables]"
_VERBOSE = "Without TABLE, print the columns of all tables."
_MARKDOWN = "Print Markdown, without TABLE of all tables."


def _complete_table(incomplete: str) -> list[str]:
    from nsyspipe.model.schema import DESCRIBED

    return [name for name in DESCRIBED if name.startswith(incomplete)]


def schema(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help=_TABLE, autocompletion=_complete_table)
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", rich_help_panel=OUTPUT, help=_VERBOSE)
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", rich_help_panel=OUTPUT, help=_MARKDOWN)
    ] = False,
) -> None:
    """Print the type, unit, formula and source of every column of a table.

    Without TABLE, this command lists all tables.

    \b
    Examples:
      nsyspipe schema
      nsyspipe schema steps
      nsyspipe schema -v
      nsyspipe schema --markdown > REFERENCE.md
    """
    from nsyspipe.model.schema import DESCRIBED

    if table is not None and table not in DESCRIBED:
        raise OptionError.no_such_name(
            f"nsyspipe schema {table!r}", "is not a table", table, DESCRIBED
        )
    schemas = [DESCRIBED[table]] if table else list(DESCRIBED.values())
    from nsyspipe.report.schema import list_blocks, schema_blocks, schema_markdown

    if as_markdown:
        text = schema_markdown(schemas)
    elif table or verbose:
        text = text_of(schema_blocks(schemas))
    else:
        text = text_of(list_blocks(schemas))
    write_stdout(text)
