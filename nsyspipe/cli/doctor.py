"""``nsyspipe doctor``: what this machine or some reports can and cannot answer, and which runs a store has."""

from pathlib import Path
from typing import Annotated

import typer

from nsyspipe.cli.inputs import refuse_saved_runs, reports_to_read, store_of
from nsyspipe.cli.options import ExaminingOptions, RunningOptions, with_options
from nsyspipe.cli.outputs import Outputs, progress
from nsyspipe.model.options import Reading, parse_findings, parse_rank_map, parse_skip_first
from nsyspipe.nsys.find_reports import find_logs, source_of, split_logs
from nsyspipe.store.layout import is_one_run, is_saved

_REPORTS = (
    "Reports (.sqlite, or .nsys-rep if nsys is installed): files, directories or globs. Or a "
    "run store, to list its runs. "
    "Without arguments, doctor checks this machine."
)


@with_options
def doctor(
    reports: Annotated[
        list[str] | None, typer.Argument(metavar="REPORTS...", help=_REPORTS)
    ] = None,
    *,
    reading: ExaminingOptions,
    outputs: Outputs,
    running: RunningOptions,
) -> None:
    """Check what this machine or a set of reports can answer.

    For each line that is not yes or ok, doctor prints how to add the missing data. The options of
    analyze for reading reports work here too.

    \b
    Examples:
      nsyspipe doctor                       nsys, driver, torch, NCCL, disk of this machine
      nsyspipe doctor ddp-8gpu_*.sqlite     what these reports can and cannot answer
      nsyspipe doctor runs/                 the saved runs and their names
      nsyspipe doctor reports/ --json - | jq '.capabilities[] | select(.status != "yes")'
    """
    from nsyspipe.report.doctor import doctor_formats

    outputs.check()
    reading.check_logs()
    reports, logs = split_logs(reports or [], reading.nccl_log)
    if reports and is_saved(Path(reports[0])) and not is_one_run(Path(reports[0])):
        from nsyspipe.report.doctor import store_blocks, store_document
        from nsyspipe.store.index import stored_runs

        reading.refuse_given(
            f"{reports[0]} has saved runs, which are analyzed already", "pass the reports"
        )
        stored = stored_runs(store_of(reports))
        inputs = [Path(reports[0])]
        document = store_document(stored)
        blocks = list(store_blocks(stored, reports[0], is_verbose=reading.verbose))
    elif reports:
        refuse_saved_runs(reports, "reports, or a whole run store,")
        from nsyspipe.reader.fabric import read_nccl_logs, read_topology
        from nsyspipe.report.doctor import reports_blocks, reports_document
        from nsyspipe.run.doctor import examine
        from nsyspipe.run.questions import Beside

        parse_skip_first(reading.skip_first)
        parse_findings(reading.findings)
        patterns = ("step", "comm_kernel", "backward", "forward", "optimizer", "data")
        told = Reading.from_text(
            n_steps=reading.steps, **{name: getattr(reading, name) for name in patterns}
        )
        found_logs = find_logs(logs)
        topology = [] if reading.topology is None else [Path(reading.topology)]
        with progress(shown=running.is_shown) as stage:
            paths, chosen = reports_to_read(reports, reading, jobs=running.jobs, stage=stage)
        # Files beside reports are read first: a wrong one is told before long work.
        rank_map = chosen.rank_map if chosen else parse_rank_map(reading.rank_map)
        log = read_nccl_logs(found_logs) if found_logs else None
        links = read_topology(topology[0]) if topology else None
        beside = Beside(
            rank_map=rank_map, log=log, topology=links, looks_beside=not reading.no_logs
        )
        with running.executor(paths) as executor:
            found = examine(paths, told, beside, executor=executor)
        inputs = [*paths, *map(source_of, paths), *found_logs, *topology]
        document = reports_document(found)
        blocks = list(reports_blocks(found, is_verbose=reading.verbose))
    else:
        from nsyspipe.nsys.machine import check_machine
        from nsyspipe.report.doctor import machine_blocks, machine_document

        checks = check_machine()
        inputs = []
        document = machine_document(checks)
        blocks = list(machine_blocks(checks, is_verbose=reading.verbose))
    # Whose a file of it is cannot be told, so that none may be replaced but by force.
    outputs.answer(doctor_formats(blocks, document), blocks, inputs, object(), quiet=running.quiet)
