"""``nsyspipe convert``: reports of nsys to SQLite, several at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsyspipe.cli import options as output
from nsyspipe.cli.terminal import print_error, progress, write_stdout
from nsyspipe.model.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.nsys.export import Exported


_FAILED = 2
_TIMEOUT_S = 1800.0


def convert(
    reports: Annotated[
        list[str], typer.Argument(metavar="REPORTS...", help="Reports of nsys: files, directories, globs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Write there, made if missing. [default: beside each report]"),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Export also what is up to date, and replace files that are no exports of their report."
        ),
    ] = False,
    nsys: Annotated[
        str | None,
        typer.Option(
            "--nsys",
            metavar="PATH",
            help="The nsys to use, or its directory. [default: on PATH, else where it is usually installed]",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long one export may take.")
    ] = _TIMEOUT_S,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", metavar="N", min=1, help="Exports at once. [default: the cores, up to 8]"),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print neither paths nor progress, only errors.")
    ] = False,
    no_progress: output.NoProgress = False,
) -> None:
    """Export .nsys-rep reports to the SQLite files that the other commands read.

    Runs nsys export with every option that this nsys has for a whole export. What is up to date is skipped: an
    export that is whole, of a report with that name, and not older than it. A file of that name which is something
    else is not replaced without --force. stdout names each export that is there at the end, one a line; a report
    that fails does not keep the others from it. Exit code 2 if any fails; nothing is ever half-written.

    analyze and doctor take .nsys-rep files too: they export them into a cache ($NSYSPIPE_CACHE_DIR, else
    ~/.cache/nsyspipe; up to $NSYSPIPE_CACHE_BYTES, 20 GB), and write nothing beside them.

    \b
    Examples:
      nsyspipe convert ddp-8gpu_*.nsys-rep
      nsyspipe convert reports/ -o exports/ -j 4
      nsyspipe convert "runs/*/ddp_*.nsys-rep" --nsys /opt/nvidia/nsight-systems/2025.6.1/bin/nsys
      nsyspipe convert reports/ | xargs -d '\\n' nsyspipe analyze
    """
    from nsyspipe.errors import NsyspipeError
    from nsyspipe.nsys.export import Exported, attempt_exports
    from nsyspipe.nsys.find_reports import find_captures
    from nsyspipe.nsys.programs import find

    sources = find_captures(reports)
    with progress(shown=not (quiet or no_progress)) as stage:
        outcomes = attempt_exports(
            sources,
            directory=out,
            nsys=None if nsys is None else find(nsys),
            jobs=jobs,
            force=force,
            timeout_s=timeout,
            on_progress=stage("exporting reports"),
        )
    for one in outcomes:
        if isinstance(one, NsyspipeError):
            print_error(one)
    made = [one for one in outcomes if isinstance(one, Exported)]
    n_failed = len(outcomes) - len(made)
    if not quiet:
        write_stdout("".join(f"{_as_argument(one.path)}\n" for one in made))
        typer.echo(_summary(made, n_failed), err=True)
    if n_failed:
        raise typer.Exit(_FAILED)


def _as_argument(path: Path) -> str:
    """Return a path as another program can take it: not for an option."""
    text = printable(str(path))
    return f"./{text}" if text.startswith("-") else text


def _summary(made: Sequence[Exported], n_failed: int) -> str:
    from nsyspipe.nsys.export import EXPORTED, UP_TO_DATE

    counts = [(sum(one.status == status for one in made), status) for status in (EXPORTED, UP_TO_DATE)]
    return ", ".join(f"{n} {what}" for n, what in [*counts, (n_failed, "failed")] if n)
