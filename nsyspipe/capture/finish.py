"""After a captured job: its reports exported to SQLite, its sidecar written, and what to do next."""

from __future__ import annotations

import glob
import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe import nsys
from nsyspipe.capture.hash_key import hash_key
from nsyspipe.capture.missing import cut_short
from nsyspipe.capture.sidecar import (
    sidecar_document,
    sidecar_path,
    write_sidecar,
    write_topology,
)
from nsyspipe.capture.surroundings import gather_surroundings, program_directory
from nsyspipe.errors import NsyspipeError
from nsyspipe.exporting import export_reports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsyspipe.capture.plan import Job
    from nsyspipe.capture.records import Loop, RankRecord

__all__ = ["finish"]

_OF_ROW = ("rank", "local_rank", "pid", "report", "status", "problem", "is_complete")


def finish(
    job: Job,
    directory: Path,
    records: Sequence[RankRecord],
    loops: Mapping[int, Loop],
    *,
    started_at: float,
    ended_by: str | None = None,
) -> tuple[list[str], list[str], str | None]:
    """Export the reports of a job and write its sidecar.

    Parameters
    ----------
    directory
        Where the ranks and the training program left what they know.
    loops
        What the training programs said of their steps.
    started_at
        Seconds since the epoch.
    ended_by
        Why the launcher ended the program; None where it did not.

    Returns
    -------
    tuple
        Lines for the user: what was written, and what failed on the way; and the command that analyzes it, None
        without a report.
    """
    reports = sorted({Path(f"{one.report}.nsys-rep") for one in records if one.report})
    failed: list[str] = []
    if not reports:
        return [], failed, None
    notes: list[str] = []
    try:
        rows = [_row(one, loops) for one in records]
        notes += _write_sidecar(job, directory, rows, started_at, ended_by)
    except NsyspipeError as error:
        failed += _message(error)
    suffix = ".nsys-rep"
    if job.is_exported:
        try:
            export_reports(reports, nsys=nsys.find(job.nsys))
            suffix = ".sqlite"
        except NsyspipeError as error:
            failed += _message(error)
    return [_written(job, reports, suffix), *notes], failed, _analysis(job, reports, suffix)


def _write_sidecar(
    job: Job,
    directory: Path,
    rows: Sequence[dict[str, object]],
    started_at: float,
    ended_by: str | None,
) -> list[str]:
    """Write it, and return what to say of it."""
    key = hash_key()
    around = gather_surroundings(program_directory(job.command))
    name, node, n_nodes = str(job.name), job.node_rank, job.n_nodes
    write_topology(name, around, node_rank=node, n_nodes=n_nodes)
    document = sidecar_document(
        name,
        command=job.command,
        ranks=rows,
        status_dir=directory,
        world_size=job.world_size,
        nsys_version=nsys.find(job.nsys).version_text,
        trace=job.trace,
        capture_range=job.capture_range,
        captured_at=datetime.fromtimestamp(started_at, UTC),
        surroundings=around,
        node_rank=node,
        n_nodes=n_nodes,
        key=key,
        ended_by=ended_by,
    )
    write_sidecar(sidecar_path(name, node_rank=node, n_nodes=n_nodes), document)
    return [key.note] if key.note else []


def _row(record: RankRecord, loops: Mapping[int, Loop]) -> dict[str, object]:
    facts = asdict(record)
    if record.report and not record.problem:
        facts["problem"] = cut_short(loops.get(record.rank))
    if record.is_captured:
        is_ended_well = record.status == 0 or record.report_at is not None
        facts["is_complete"] = bool(record.report) and not facts["problem"] and is_ended_well
    else:
        facts["is_complete"] = None
    return {name: facts[name] for name in _OF_ROW}


def _written(job: Job, reports: Sequence[Path], suffix: str) -> str:
    where = f"{job.name}_*{suffix}" if len(reports) > 1 else reports[0].with_suffix(suffix)
    return f"{len(reports)} report{'s' * (len(reports) > 1)} written: {where}"


def _analysis(job: Job, reports: Sequence[Path], suffix: str) -> str:
    if len(reports) == 1:
        return f"nsyspipe analyze {shlex.quote(str(reports[0].with_suffix(suffix)))}"
    return f"nsyspipe analyze {shlex.quote(f'{glob.escape(str(job.name))}_*{suffix}')}"


def _message(error: NsyspipeError) -> list[str]:
    first, *rest = error.lines()
    return [f"error: {first}", *rest]
