"""Copies of the reports of a run with what nsyspipe found, for the timeline of Nsight Systems.

Each rank has lanes with its steps, exposed communication, wait time and the findings of the run.
"""

import contextlib
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import IntervalSet
from nsyspipe.errors import NotAReportError, OptionError, OutputError
from nsyspipe.model.options import OnProgress
from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import EventsTable, RanksRow, StepsTable
from nsyspipe.nsys.files import NAME_OF_COPY, readable, remove_abandoned, scratch_directory
from nsyspipe.nsys.find_reports import RAW_SUFFIXES, display_names
from nsyspipe.nsys.nvtxt import Added, add_ranges
from nsyspipe.report.derived_lanes import (
    EXPOSED,
    WAITING,
    exposed_comm_in_steps,
    names_of_steps,
    rows_of_rank,
    times_of,
    waiting_in_steps,
)
from nsyspipe.report.files import not_writable
from nsyspipe.report.nvtxt import Lane, nvtxt_of
from nsyspipe.report_run import ReportRun

_COLORS = {"steps": "SteelBlue", EXPOSED: "OrangeRed", WAITING: "Gold", "findings": "MediumPurple"}
TIMEOUT_S = 1800.0


class Copy(NamedTuple):
    """A report of a run, and the file that its copy becomes."""

    # As the run names it.
    report: str
    source: Path
    target: Path


class _RankLanes(NamedTuple):
    """Makes the lanes of a rank, whose times are converted to those of its report."""

    rank: int
    process_id: int
    # Aligned time - report time.
    shift_ns: int

    def lane(
        self, name: str, starts: Int64, ends: Int64, texts: list[str] | pa.ChunkedArray
    ) -> Lane:
        """Return a lane from aligned times, which become times of the report."""
        return Lane(
            name=f"{name}, rank {self.rank}",
            color=_COLORS[name],
            process_id=self.process_id,
            starts_ns=starts - self.shift_ns,
            ends_ns=ends - self.shift_ns,
            texts=texts,
        )

    def lane_of_findings(self, steps: StepsTable, titles: list[str]) -> Lane:
        """Return a range for each finding, over the steps that the findings are about.

        The ranges nest: the first finding is the outermost, so that it is on top.
        """
        used_steps = steps.filter(pc.field("in_summary"))
        if not used_steps.num_rows:
            no_times = np.empty(0, np.int64)
            return self.lane("findings", no_times, no_times, [])
        # Each range starts 1 ns later than the previous one, and ends 1 ns earlier.
        depths_ns = np.arange(len(titles))
        starts = pc.min(used_steps["start_ns"]).as_py() + depths_ns
        ends = pc.max(used_steps["end_ns"]).as_py() - depths_ns
        return self.lane("findings", starts, ends, titles)


def planned_copies(run: ReportRun, out: Path) -> list[Copy]:
    """Return the copies of all reports of a run. Raise an error if a report cannot be copied.

    `out` is the file that the copy of one report becomes, or a directory. No file is ever replaced.
    """
    _check_gpu_activity(run)
    sources = [_source(report.source) for report in run.paths]
    # `is_dir` may raise an error of the file system, for example if the name is too long.
    with _writable(out):
        is_directory = len(sources) > 1 or out.is_dir()
    targets = [out / source.name for source in sources] if is_directory else [out]
    names = display_names(run.paths)
    copies = list(map(Copy, names, sources, targets))
    _check_one_capture(run, names)
    for copy in copies:
        with _writable(copy.target):
            _check_target(copy, targets)
    return copies


def _source(path: Path) -> Path:
    """Return the report that nsys captured: a path itself, or the file next to its export."""
    candidates = [path] if path.suffix in RAW_SUFFIXES else map(path.with_suffix, RAW_SUFFIXES)
    with readable(path):
        for candidate in candidates:
            if candidate.is_file():
                _check_age(path, candidate)
                return candidate
    problem = "is an export, but only a report that nsys captured can have ranges added"
    raise NotAReportError(str(path), problem, fix="pass the .nsys-rep files")


def _check_age(path: Path, report: Path) -> None:
    """Refuse an export that is older than the report next to it, which may be another capture."""
    if path.stat().st_mtime_ns < report.stat().st_mtime_ns:
        problem = f"is older than {report.name}, and may be the export of another capture"
        fix = f"nsyspipe convert {shlex.quote(str(report))}"
        raise NotAReportError(str(path), problem, fix=fix)


def _check_gpu_activity(run: ReportRun) -> None:
    """Refuse reports without a rank, for which there is nothing to add."""
    if not run.ranks.num_rows:
        problem = "has no GPU activity (no kernel, copy or memset), so there are no ranges to add"
        fix = "pass reports with GPU activity: capture with nsys profile -t cuda,nvtx"
        raise NotAReportError(str(run.paths[0].source), problem, fix=fix)


def _check_one_capture(run: ReportRun, names: list[str]) -> None:
    for row in run.ranks.to_pylist():
        if row["report"] not in names:
            problem = "are several captures of one rank"
            raise OptionError(row["report"], problem, fix="pass the reports of one capture")


def _check_target(copy: Copy, targets: list[Path]) -> None:
    target = copy.target
    if target.exists() or target.is_symlink():
        raise _exists(target)
    if targets.count(target) > 1:
        problem = "would be the copy of several reports with this name"
        raise OutputError(str(target), problem, fix="annotate the reports one by one")
    if target.suffix != copy.source.suffix:
        problem = f"is no name of a report, which ends in {copy.source.suffix}"
        raise OutputError(str(target), problem, fix=f"-o {target.with_suffix(copy.source.suffix)}")


def _exists(target: Path) -> OutputError:
    return OutputError(str(target), "exists, and annotate replaces no file", fix="another name")


@contextlib.contextmanager
def _writable(target: Path) -> Iterator[None]:
    """Turn the errors of the file system about a place for a copy into an OutputError."""
    try:
        yield
    except OSError as error:
        raise not_writable(target, error) from error


def remove_unfinished_copies(copies: Iterable[Copy]) -> None:
    """Remove what killed commands left in the directories of some copies, once per directory."""
    for directory in {copy.target.parent for copy in copies}:
        remove_abandoned(directory)


def write_copy(importer: Path, copy: Copy, lanes: list[Lane]) -> Added:
    """Write the copy of a report with the mode of the report, complete or not at all."""
    with _writable(copy.target):
        directory = copy.target.parent
        directory.mkdir(parents=True, exist_ok=True)
        with scratch_directory(directory) as scratch:
            file = scratch / f"{NAME_OF_COPY}{copy.target.suffix}"
            nvtxt = nvtxt_of(lanes)
            added = add_ranges(importer, copy.source, file, nvtxt, timeout_s=TIMEOUT_S)
            file.chmod(stat.S_IMODE(copy.source.stat().st_mode))
            _move(file, copy.target)
    return added


def _move(file: Path, target: Path) -> None:
    """Move a file to a name that no file has. If a file has the name by now, that file stays."""
    try:
        target.hardlink_to(file)
    except FileExistsError as error:
        raise _exists(target) from error
    except OSError:
        # The file system may have no hard links.
        _move_without_link(file, target)
    else:
        file.unlink()


def _move_without_link(file: Path, target: Path) -> None:
    """Move a file as `_move` does, without a hard link.

    An empty file takes the name first, which fails if there is a file. Then the whole file replaces
    the empty one in one step. If this fails, the empty file is removed.
    """
    try:
        target.touch(exist_ok=False)
    except FileExistsError as error:
        raise _exists(target) from error
    try:
        file.rename(target)
    finally:
        is_moved = not file.exists()
        if not is_moved:
            target.unlink()


def lanes_by_report(run: ReportRun, on_progress: OnProgress | None = None) -> dict[str, list[Lane]]:
    """Return the lanes of the ranks of each report, with times by the clock of the report."""
    row_of_rank = {row["rank"]: row for row in run.ranks.to_pylist()}
    ranks = [*row_of_rank]
    lanes_of_report: dict[str, list[Lane]] = {row["report"]: [] for row in row_of_rank.values()}
    operations_of_ranks = run.operations(ranks=ranks)
    for n_done, (rank, events, _phases) in enumerate(operations_of_ranks, start=1):
        row = row_of_rank[rank]
        lanes_of_report[row["report"]] += _lanes_of_rank(run, row, events)
        if on_progress:
            on_progress(n_done, len(ranks))
    return lanes_of_report


def _lanes_of_rank(run: ReportRun, row: RanksRow, events: EventsTable) -> Iterator[Lane]:
    """Yield the lanes of a rank that are known.

    A known lane may be empty. Then the rank has no exposed communication, or no wait time.
    """
    rank = row["rank"]
    rank_lanes = _RankLanes(rank, process_id=row["pid"], shift_ns=row["clock_shift_ns"])
    steps = rows_of_rank(run.steps(), rank)
    starts, ends = times_of(steps, "start_ns", "end_ns")
    names = ["whole capture"] * len(starts) if run.is_capture else names_of_steps(steps)
    yield rank_lanes.lane("steps", starts, ends, names)
    derived: dict[str, IntervalSet | None] = {
        EXPOSED: exposed_comm_in_steps(steps, events),
        WAITING: waiting_in_steps(steps, rows_of_rank(run.collectives(), rank)),
    }
    for name, times in derived.items():
        if times is not None:
            yield rank_lanes.lane(name, times.starts, times.ends, [name] * len(times))
    yield rank_lanes.lane_of_findings(steps, run.findings()["title"].to_pylist())
