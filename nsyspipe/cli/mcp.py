"""``nsyspipe mcp``: a server for agents."""

from pathlib import Path
from typing import Annotated

import typer

from nsyspipe.cli.options import INPUT
from nsyspipe.errors import OptionError

_ROOT = (
    "Directory that agents may read, with all below it. Agents can read nothing else. Repeat the "
    "option for more directories. Relative paths of agents start at the first directory. [required]"
)
_PACKAGES = {"anyio", "mcp"}


def mcp(
    root: Annotated[
        list[Path] | None,
        typer.Option("--root", metavar="DIR", help=_ROOT, rich_help_panel=INPUT),
    ] = None,
) -> None:
    """Serve agents four read-only tools: analyze, diff, whatif and query.

    The server uses the Model Context Protocol (MCP) on standard input and output. It reads only
    files below its roots, and writes no file. It needs the package mcp, which
    pip install '.[mcp]' installs in a clone.

    \b
    Examples:
      nsyspipe mcp --root captures/
      nsyspipe mcp --root captures/ --root runs/
    """
    from nsyspipe.mcp.roots import Roots

    roots = Roots.of(root or [])
    try:
        from nsyspipe.mcp.server import serve
    except ModuleNotFoundError as error:
        package, _, _ = str(error.name).partition(".")
        # Any other missing module is a bug or a broken installation, not a missing extra.
        if package not in _PACKAGES:
            raise
        problem = f"needs the Python package {package}, which is not here"
        fix = "pip install mcp (the extra mcp of nsyspipe)"
        raise OptionError("nsyspipe mcp", problem, fix=fix) from error
    serve(roots)
