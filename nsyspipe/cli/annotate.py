"""``nsyspipe annotate``: copies of reports with what nsyspipe found, for Nsight Systems."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from nsyspipe.cli.inputs import opened_run, refuse_saved_runs
from nsyspipe.cli.options import RunningOptions, RunWithoutWorkOptions, option, with_options
from nsyspipe.cli.outputs import say_written
from nsyspipe.errors import OptionError
from nsyspipe.model.names import counted, verb_for

if TYPE_CHECKING:
    from nsyspipe.report_run import ReportRun

_RUN = (
    "The reports of one run: .nsys-rep files, a directory, or a glob. You can pass a .sqlite "
    "export if its .nsys-rep is in the same directory. Pass the reports of all ranks, because wait "
    "time needs them."
)


@dataclass(frozen=True)
class CopyOptions:
    """Where the copies are written."""

    out: str | None = option(
        "The copy of one report, or a directory for several copies, which keep their names. "
        "[required]",
        "FILE|DIR",
        "-o",
    )


@with_options
def annotate(
    run: Annotated[list[str], typer.Argument(metavar="REPORTS...", help=_RUN)],
    *,
    copies: CopyOptions,
    reading: RunWithoutWorkOptions,
    running: RunningOptions,
) -> None:
    """Copy reports, and add ranges for steps, exposed communication, wait time and findings.

    Each copy is an .nsys-rep file. To see the ranges, open a copy in Nsight Systems, and expand
    Target (0:0) at the top. annotate never changes the report itself, and replaces no file. It
    needs the program ImportNvtxt, which is a part of Nsight Systems.

    \b
    Examples:
      nsyspipe annotate run_0.nsys-rep -o annotated_0.nsys-rep
      nsyspipe annotate run_0.sqlite -o annotated_0.nsys-rep
      nsyspipe annotate "ddp-8gpu_*.nsys-rep" -o annotated/
    """
    if not copies.out:
        raise OptionError("annotate", "needs a place for the copies", fix="-o annotated/")
    refuse_saved_runs(run, "reports that nsys captured")
    from nsyspipe.nsys.nvtxt import find_importer

    # The program ImportNvtxt. It is looked for first, before the long work.
    importer = find_importer()
    with opened_run(run, reading, running) as (opened, stage):
        from nsyspipe.report.annotations import (
            lanes_by_report,
            planned_copies,
            remove_unfinished_copies,
            write_copy,
        )

        # Saved runs were refused above, so this run is read from reports.
        report_run = cast("ReportRun", opened)
        planned = planned_copies(report_run, Path(copies.out))
        lanes_of_report = lanes_by_report(report_run, stage("reading operations"))
        on_progress = stage("writing copies")
        remove_unfinished_copies(planned)
        for n_done, copy in enumerate(planned, start=1):
            added = write_copy(importer, copy, lanes_of_report.get(copy.report, []))
            if on_progress:
                on_progress(n_done, len(planned))
            ranges = counted(added.n_ranges, "range")
            say_written(f"{copy.target} ({ranges} added)", quiet=running.quiet)
            if added.n_left_out:
                left_out = counted(added.n_left_out, "range")
                are = verb_for(added.n_left_out, "are")
                note = f"note: {left_out} {are} outside of the captured time"
                typer.echo(note, err=True)
