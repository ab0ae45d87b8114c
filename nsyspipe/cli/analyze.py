"""``nsyspipe analyze``: the main job."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsyspipe.cli import reading_options as reading
from nsyspipe.cli.output import write_stdout
from nsyspipe.settings import AUTO, DEFAULT_FINDINGS, parse_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsyspipe.run import Run

__all__ = ["analyze"]

_STRICT_FAILED = 2


def analyze(
    reports: Annotated[
        list[str],
        typer.Argument(
            metavar="REPORTS...", help="SQLite exports of one run: files, directories, globs."
        ),
    ],
    step: reading.Step = None,
    backward: reading.Backward = None,
    forward: reading.Forward = None,
    optimizer: reading.Optimizer = None,
    data: reading.Data = None,
    comm_kernel: reading.CommKernel = None,
    skip_first: reading.SkipFirst = AUTO,
    rank_map: reading.RankMap = None,
    label: reading.Label = None,
    run_id: reading.RunId = None,
    nccl_log: reading.NcclLog = None,
    topology: reading.TopologyFile = None,
    findings: reading.Findings = str(DEFAULT_FINDINGS),
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE|-",
            help="Write the JSON document; - prints it and nothing else.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace outputs of another run."),
    ] = False,
    jobs: reading.Jobs = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="No summary and no progress: errors and asked-for outputs only."
        ),
    ] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bar.")] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 2 if there is any problem of severity error or warning."
        ),
    ] = False,
) -> None:
    """Say where each step's time goes: compute, communication (hidden or exposed), copies, idle.

    \b
    Examples:
      nsyspipe analyze ddp-8gpu_*.sqlite
      nsyspipe analyze "ddp-8gpu_*.sqlite" --step '^iter' --skip-first 3
      nsyspipe analyze reports/ --json - | jq .summary.exposed_comm_share
      nsyspipe analyze "ddp-8gpu_*.sqlite" --nccl-log "nccl_*.log" --topology topo.txt
      nsyspipe analyze a.sqlite b.sqlite --rank-map "a.sqlite=0,b.sqlite=1"
    """
    n_findings = parse_findings(findings)
    from nsyspipe.parallel import PRELOAD, executor_for
    from nsyspipe.read.discover import find_logs, find_reports, split_logs

    if nccl_log:
        reports, more_logs = split_logs(reports)
        nccl_log = [*nccl_log, *more_logs]
    paths = find_reports(reports)
    with executor_for(paths, jobs, preload=PRELOAD) as executor:
        # Heavy, so imported while the workers do the same.
        from nsyspipe.loading import load

        with _progress(shown=not (quiet or no_progress)) as on_progress:
            run = load(
                paths,
                step=step,
                backward=backward,
                forward=forward,
                optimizer=optimizer,
                data=data,
                comm_kernel=comm_kernel,
                skip_first=skip_first,
                rank_map=rank_map,
                label=label,
                run_id=run_id,
                nccl_log=find_logs(nccl_log or []),
                topology=topology,
                executor=executor,
                on_progress=on_progress,
            )
            _ = run.steps()
    _write(run, json_file, force=force, quiet=quiet, n_findings=n_findings)
    grave = [row["code"] for row in run.problems.to_pylist() if row["severity"] != "info"]
    if strict and grave:
        typer.echo(
            f"error: --strict: {len(grave)} problem(s): {', '.join(dict.fromkeys(grave))}", err=True
        )
        raise typer.Exit(_STRICT_FAILED)


def _write(
    run: Run, json_file: str | None, *, force: bool, quiet: bool, n_findings: int | None
) -> None:
    """Write what was asked for: files first, so that a printed summary means they are there."""
    if json_file is not None:
        from nsyspipe.report.document import document, dumps
        from nsyspipe.report.files import write_json

        text = dumps(document(run))
        if json_file == "-":
            write_stdout(text)
            return
        write_json(Path(json_file), text, run, force=force)
    if not quiet:
        from rich.console import Console

        from nsyspipe.report.text import summary_text

        write_stdout(summary_text(run, Console(), n_findings=n_findings))


@contextlib.contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield what draws a progress bar on stderr; nothing off a terminal."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading reports", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
