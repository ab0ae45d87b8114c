"""``nsyspipe doctor``: what this machine or some reports can answer, and the runs of a store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from nsyspipe.cli.inputs import refuse_saved_runs, reports_to_read, store_of
from nsyspipe.cli.options import ExaminingOptions, RunningOptions, with_options
from nsyspipe.cli.outputs import Outputs, progress
from nsyspipe.model.options import Reading, parse_findings, parse_rank_map, parse_skip_first
from nsyspipe.nsys.find_reports import find_logs, split_logs
from nsyspipe.store.layout import is_one_run, is_saved

_REPORTS = (
    "Reports (.sqlite, or .nsys-rep if nsys is installed): files, directories or globs. Or a "
    "run store, to list its runs. "
    "Without arguments, doctor checks this machine."
)


# Options that tell steps, phases and communication.
_PATTERNS = ("step", "comm_kernel", "backward", "forward", "optimizer", "data")


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
    if not reports:
        answer = _answer_of_machine(is_verbose=reading.verbose)
    elif _is_store(Path(reports[0])):
        answer = _answer_of_store(reports, reading)
    else:
        answer = _answer_of_reports(reports, logs, reading, running)
    formats = doctor_formats(answer.blocks, answer.document)
    # No file has this identity, so no file is replaced without --force.
    identity = object()
    outputs.answer(formats, answer.blocks, answer.inputs, identity, quiet=running.quiet)


class _Answer(NamedTuple):
    """What doctor found: as JSON, and as blocks of text."""

    document: dict[str, Any]
    blocks: list[Any]
    # No output may replace these.
    inputs: list[Path]


def _answer_of_machine(*, is_verbose: bool) -> _Answer:
    """Return what this machine can answer."""
    from nsyspipe.nsys.machine import check_machine
    from nsyspipe.report.doctor import machine_blocks, machine_document

    checks = check_machine()
    blocks = [*machine_blocks(checks, is_verbose=is_verbose)]
    return _Answer(machine_document(checks), blocks, [])


def _answer_of_store(arguments: Sequence[str], reading: ExaminingOptions) -> _Answer:
    """Return the runs of a store. Raise an OptionError for options about reports."""
    from nsyspipe.report.doctor import store_blocks, store_document
    from nsyspipe.store.index import stored_runs

    store = arguments[0]
    reading.refuse_given(f"{store} has saved runs, which are analyzed already", "pass the reports")
    stored = stored_runs(store_of(arguments))
    document = store_document(stored)
    blocks = [*store_blocks(stored, store, is_verbose=reading.verbose)]
    return _Answer(document, blocks, [Path(store)])


def _is_store(path: Path) -> bool:
    return is_saved(path) and not is_one_run(path)


def _how_to_read(reading: ExaminingOptions) -> Reading:
    patterns = {name: getattr(reading, name) for name in _PATTERNS}
    return Reading.from_text(n_steps=reading.steps, **patterns)


def _answer_of_reports(
    arguments: Sequence[str],
    log_arguments: Sequence[str],
    reading: ExaminingOptions,
    running: RunningOptions,
) -> _Answer:
    """Return what reports can answer, with the NCCL log and the topology of the options."""
    refuse_saved_runs(arguments, "reports, or a whole run store,")
    from nsyspipe.reader.fabric import read_nccl_logs, read_topology
    from nsyspipe.report.doctor import reports_blocks, reports_document
    from nsyspipe.run.doctor import examine
    from nsyspipe.run.questions import Beside

    # These options have no effect here, but a wrong value is an error all the same.
    _ = parse_skip_first(reading.skip_first)
    _ = parse_findings(reading.findings)
    how_to_read = _how_to_read(reading)
    logs = find_logs(log_arguments)
    topology = None if reading.topology is None else Path(reading.topology)
    with progress(shown=running.is_shown) as stage:
        reports, chosen = reports_to_read(arguments, reading, jobs=running.jobs, stage=stage)
    # Other files are read before the reports, so that a wrong file is refused before the long work.
    rank_map = chosen.rank_map if chosen else parse_rank_map(reading.rank_map)
    log = read_nccl_logs(logs) if logs else None
    side_files = Beside(
        rank_map=rank_map,
        log=log,
        topology=None if topology is None else read_topology(topology),
        looks_beside=not reading.no_logs,
    )
    with running.executor(reports) as executor:
        examination = examine(reports, how_to_read, side_files, executor=executor)
    inputs = [report.path for report in reports]
    inputs += [report.source for report in reports]
    inputs += logs
    if topology is not None:
        inputs.append(topology)
    blocks = [*reports_blocks(examination, is_verbose=reading.verbose)]
    return _Answer(reports_document(examination), blocks, inputs)
