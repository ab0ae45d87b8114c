"""``nsyspipe doctor``: what this machine or some reports can and cannot answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsyspipe.cli.output import write_stdout

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

__all__ = ["doctor"]


def doctor(
    reports: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="REPORTS...",
            help="SQLite exports: files, directories, globs; without them this machine.",
        ),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE|-",
            help="Write the JSON document; - prints it and nothing else.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is there already.")
    ] = False,
) -> None:
    """Say what this machine, or a set of reports, can answer.

    Each line that is not yes or ok comes with the flag or the step that would mend it.

    \b
    Examples:
      nsyspipe doctor                       nsys, driver, torch, NCCL, disk of this machine
      nsyspipe doctor ddp-8gpu_*.sqlite     what these reports can and cannot answer
      nsyspipe doctor reports/ --json - | jq '.capabilities[] | select(.status != "yes")'
    """
    paths, document, text = _examined(reports) if reports else _machine()
    if json_file is not None:
        from nsyspipe.report.document import dumps
        from nsyspipe.report.files import write_text

        if json_file == "-":
            write_stdout(dumps(document))
            return
        write_text(Path(json_file), dumps(document), paths, may_replace=lambda: force)
    from rich.console import Console

    write_stdout(text(Console()))


def _machine() -> tuple[list[Path], dict[str, Any], Callable[[Console], str]]:
    from nsyspipe.machine import check_machine
    from nsyspipe.report.doctor_text import machine_document, machine_text

    checks = check_machine()
    return [], machine_document(checks), lambda console: machine_text(checks, console)


def _examined(
    reports: list[str],
) -> tuple[list[Path], dict[str, Any], Callable[[Console], str]]:
    from nsyspipe.capabilities import examine
    from nsyspipe.read.discover import find_reports
    from nsyspipe.report.doctor_text import reports_document, reports_text

    paths = find_reports(reports)
    found = examine(paths)
    return paths, reports_document(found), lambda console: reports_text(found, console)
