"""``nsyspipe redact``: copies of reports that can be shown to others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsyspipe.cli import options as output
from nsyspipe.cli.terminal import progress, write_stdout

if TYPE_CHECKING:
    from nsyspipe.redact.redact import Redaction


def redact(
    reports: Annotated[
        str,
        typer.Argument(
            metavar="IN", help="One report (.sqlite), or a directory or quoted glob with all reports of a run."
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="The copy of one report; for several a directory, in which they keep their names."
        ),
    ],
    drop_unknown: Annotated[
        bool,
        typer.Option(
            "--drop-unknown", help="Leave out tables that this version does not know, instead of refusing the report."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace copies that are there already.")] = False,
    quiet: output.Quiet = False,
    no_progress: output.NoProgress = False,
) -> None:
    """Copy reports without environment, host, user, paths, process list; analyze answers the same for the copy.

    Only what analysis needs is copied. Names of kernels and NVTX ranges stay: they may hold private words.

    \b
    Examples:
      nsyspipe redact ddp-8gpu_0.sqlite copy_0.sqlite
      nsyspipe redact reports/ redacted/
      nsyspipe redact 'reports/ddp-8gpu_*.sqlite' redacted/
    """
    from nsyspipe.redact.redact import redact as run_redact

    with progress(shown=not (no_progress or quiet)) as stage:
        done = run_redact(reports, out, force=force, drop_unknown=drop_unknown, on_progress=stage("copying MiB"))
    if not quiet:
        write_stdout(_text(done, out))


def _text(done: Redaction, out: Path) -> str:
    from nsyspipe.report.redaction import redaction_text

    return redaction_text(done, out)
