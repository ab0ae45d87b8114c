"""Before and after a captured job: room for its files; then reports exported, the sidecar written, and what to do next."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shlex
import shutil
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.capture.outcome import cut_short
from nsyspipe.capture.plan import Job, earlier_files, is_capture
from nsyspipe.capture.sidecar import (
    gather_surroundings,
    program_directory,
    sidecar_document,
    sidecar_path,
    write_sidecar,
    write_topology,
)
from nsyspipe.errors import NsyspipeError, OutputError
from nsyspipe.nsys import programs as nsys
from nsyspipe.nsys.export import export_reports
from nsyspipe.nsys.secrets import hash_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nsyspipe.capture.status import Loop, RankRecord


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


# Room for the files of a job: an earlier capture of its name is refused, or set aside until the new one has begun.


_MOST_NAMED = 3


@contextlib.contextmanager
def room_for(job: Job) -> Iterator[Room]:
    """Make room for a job's files while it runs.

    With --force an earlier capture is set aside, all of it, so that none of its ranks is taken for this job's: into a
    hidden directory beside it, from which nothing need be copied. It is removed at the end if the job has begun,
    and else put back.

    Raises
    ------
    OutputError
        If there is an earlier capture and no --force, or reports cannot be written there.
    """
    room = Room(job)
    if job.nsys is not None:
        room.make()
    try:
        yield room
    finally:
        room.clear()


class Room:
    """Where an earlier capture is while the job runs. `has_begun` says whether the new one takes its place."""

    def __init__(self, job: Job) -> None:
        self.has_begun = False
        self._job = job
        self._aside = job.name.with_name(f".{job.name.name}.earlier-{os.getpid()}")

    def make(self) -> None:
        """Refuse, or set aside."""
        job = self._job
        try:
            job.name.parent.mkdir(parents=True, exist_ok=True)
            there = earlier_files(job)
            if not job.is_forced:
                _refuse([path for path in there if is_capture(job, path)], job)
                return
            for path in there:
                if path.is_dir() and not path.is_symlink():
                    raise IsADirectoryError(errno.EISDIR, f"{path.name} is a directory")
            if there:
                self._aside.mkdir()
            for path in there:
                with contextlib.suppress(FileNotFoundError):  # another node was first
                    path.rename(self._aside / path.name)
        except OSError as error:
            self.clear()
            raise OutputError(
                str(job.name), f"reports cannot be written there: {error.strerror}", fix="-o NAME"
            ) from error

    def clear(self) -> None:
        """Remove the earlier capture, or put back what has not been replaced."""
        if not self._aside.is_dir():
            return
        with contextlib.suppress(OSError):  # what cannot be put back stays where it is
            for path in sorted(self._aside.iterdir()):
                place = self._job.name.with_name(path.name)
                if not self.has_begun and not place.exists():
                    path.rename(place)
            shutil.rmtree(self._aside)


def _refuse(there: Sequence[Path], job: Job) -> None:
    if there:
        more = f", … {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
        raise OutputError(
            str(job.name),
            "an earlier capture of this name is there",
            found=", ".join(path.name for path in there[:_MOST_NAMED]) + more,
            fix="-o ANOTHER_NAME, or --force to replace it",
        )
