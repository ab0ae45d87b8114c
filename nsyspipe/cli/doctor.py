"""``nsyspipe doctor``: what this machine or some reports can and cannot answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsyspipe.cli import options as reading
from nsyspipe.cli.terminal import progress, write_stdout
from nsyspipe.model.options import AUTO, DEFAULT_FINDINGS, Reading, parse_findings, parse_skip_first

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console


def doctor(
    reports: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="REPORTS...",
            help="Reports (.sqlite, or .nsys-rep where there is nsys): files, directories, globs; without them this "
            "machine.",
        ),
    ] = None,
    step: reading.Step = None,
    backward: reading.Backward = None,
    forward: reading.Forward = None,
    optimizer: reading.Optimizer = None,
    data: reading.Data = None,
    comm_kernel: reading.CommKernel = None,
    skip_first: reading.SkipFirst = AUTO,
    rank_map: reading.RankMap = None,
    label: reading.Label = None,  # noqa: ARG001 - taken, so that all commands take the same
    run_id: reading.RunId = None,  # noqa: ARG001
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
        bool, typer.Option("--force", help="Replace a file that is there already.")
    ] = False,
    jobs: reading.Jobs = None,
) -> None:
    """Say what this machine, or a set of reports, can answer.

    Each line that is not yes or ok comes with the flag or the step that would mend it. Options of
    analyze that say how reports are read work here too; without reports they are ignored.

    \b
    Examples:
      nsyspipe doctor                       nsys, driver, torch, NCCL, disk of this machine
      nsyspipe doctor ddp-8gpu_*.sqlite     what these reports can and cannot answer
      nsyspipe doctor reports/ --json - | jq '.capabilities[] | select(.status != "yes")'
    """
    reports = reports or []
    if nccl_log:
        from nsyspipe.nsys.find_reports import split_logs

        reports, more_logs = split_logs(reports)
        nccl_log = [*nccl_log, *more_logs]
    if reports:
        parse_skip_first(skip_first)
        parse_findings(findings)
        told = Reading.from_text(
            step=step,
            comm_kernel=comm_kernel,
            backward=backward,
            forward=forward,
            optimizer=optimizer,
            data=data,
        )
        paths, document, text = _examined(reports, told, rank_map, nccl_log or [], topology, jobs)
    else:
        paths, document, text = _machine()
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
    from nsyspipe.nsys.machine import check_machine
    from nsyspipe.report.doctor import machine_document, machine_text

    checks = check_machine()
    return [], machine_document(checks), lambda console: machine_text(checks, console)


def _examined(
    reports: list[str],
    told: Reading,
    rank_map: str | None,
    nccl_log: list[str],
    topology: str | None,
    jobs: int | None,
) -> tuple[list[Path], dict[str, Any], Callable[[Console], str]]:
    """Examine reports; files beside them are read first, since a wrong one is told before long work."""
    from nsyspipe.cli.inputs import exports_of
    from nsyspipe.nsys.find_reports import find_logs, source_of
    from nsyspipe.reader.fabric import read_nccl_logs, read_topology
    from nsyspipe.report.doctor import reports_document, reports_text
    from nsyspipe.run.doctor import examine
    from nsyspipe.run.doctor_rules import Beside
    from nsyspipe.run.ranks import parse_rank_map
    from nsyspipe.run.workers import PRELOAD, executor_for

    logs = find_logs(nccl_log)
    with progress(shown=True) as stage:
        paths = exports_of(reports, jobs=jobs, stage=stage)
    beside = Beside(
        rank_map=None if rank_map is None else parse_rank_map(rank_map),
        log=read_nccl_logs(logs) if logs else None,
        topology=None if topology is None else read_topology(Path(topology)),
    )
    with executor_for(paths, jobs, preload=PRELOAD) as executor:
        found = examine(paths, told, beside, executor=executor)
    sources = [source_of(path) for path in paths]
    inputs = [*paths, *sources, *logs, *([] if topology is None else [Path(topology)])]
    return inputs, reports_document(found), lambda console: reports_text(found, console)
