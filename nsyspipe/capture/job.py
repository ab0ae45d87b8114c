"""Run the command that a launcher has built, see that it ends, and collect what it captured.

``python3 -m nsyspipe.capture.job --name NAME ... -- torchrun ...``. Exit status: that of the training program; 2 for
what cannot be started; 3 when it ended well but reports are missing; 124 when a time limit ended it; 130 on Ctrl-C,
143 on SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from nsyspipe.capture.finish import finish, room_for
from nsyspipe.capture.nsys_output import ReportWatch, captured, report_there
from nsyspipe.capture.outcome import INCOMPLETE, End, interrupted, judge
from nsyspipe.capture.plan import Job, check_ranks, parse_job
from nsyspipe.capture.status import RankRecord, loop_has_ended, read_loops, read_records
from nsyspipe.capture.supervision import (
    GRACE_S,
    POLL_S,
    SIGNALLED,
    Stop,
    adopt_orphans,
    catching_signals,
    end_adopted,
    end_group,
    end_groups,
    group_is_alive,
    group_of,
    holding,
    interruptible,
    short_directory,
    start,
    status_of,
)
from nsyspipe.errors import CaptureError, NsyspipeError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from pathlib import Path


# The time limits of a job.


# torchrun gives its workers 30 s to end, and each of those waits for its nsys.
JOB_GRACE_S = 60.0


class Clock:
    """The time limits of a job.

    Attributes
    ----------
    report_at
        Seconds since the epoch when the report of a whole node was whole while its ranks ran; None before, and where
        each rank looks after its own.
    """

    def __init__(self, job: Job, directory: Path, report: ReportWatch | None = None) -> None:
        self._job = job
        self._directory = directory
        self._begin = time.monotonic()
        self._loop_over: float | None = None
        self._ranks_over: float | None = None
        self._reports_whole: float | None = None
        self._report = report
        self.report_at: float | None = None

    def limit_reached(self) -> End | None:
        """Return why the job must end now, or None."""
        job, now = self._job, time.monotonic()
        self._look(now)
        if job.timeout_s and now - self._begin > job.timeout_s:
            return End(None, "timeout", job.timeout_s)
        if _has_passed(self._loop_over, job.linger_s, now) and self._ranks_over is None:
            return End(None, "exit", job.linger_s)
        if (
            job.ends_any
            and _has_passed(self._reports_whole, job.linger_s, now)
            and self._ranks_over is None
        ):
            return End(None, "linger", job.linger_s)
        # Each rank's nsys has the same limit of its own, and is a little earlier.
        if _has_passed(self._ranks_over, job.exit_timeout_s + JOB_GRACE_S, now):
            return End(None, "command", job.exit_timeout_s + JOB_GRACE_S)
        return None

    def _look(self, now: float) -> None:
        records = read_records(self._directory)
        if len(records) < self._job.n_local:
            return
        if self._loop_over is None and all(
            loop_has_ended(self._directory, one.rank) for one in records
        ):
            self._loop_over = now
        if self._ranks_over is None and all(one.status is not None for one in records):
            self._ranks_over = now
        if self._report is not None and self.report_at is None and self._report.is_whole(now):
            self.report_at = time.time()
        if self._reports_whole is None and self._are_reports_whole(records):
            self._reports_whole = now

    def _are_reports_whole(self, records: Sequence[RankRecord]) -> bool:
        """Tell whether nothing more comes of the capture: each rank's report is whole, or its program has ended."""
        if self._report is not None:
            return self.report_at is not None
        captured = [one for one in records if one.is_captured and one.nsys_group is not None]
        return any(one.report_at for one in captured) and all(
            one.report_at is not None or one.status is not None for one in captured
        )


def _has_passed(since: float | None, limit_s: float, now: float) -> bool:
    return since is not None and limit_s > 0 and now - since > limit_s


# Between the polite signal and the last one, for somebody who has asked twice.
_HURRY_S = 1.0
# Until every rank has said how it ended, once its processes have.
_LAST_WORDS_S = 3.0


def main(words: Sequence[str] | None = None) -> int:
    """Run one job on this node and return the launcher's exit status."""
    try:
        job = parse_job(sys.argv[1:] if words is None else words)
        if job.nsys is not None:
            check_ranks(job.chosen, job.world_size)
        with interruptible():
            return _captured_job(job)
    except NsyspipeError as error:
        _say("error: " + "\n".join(error.lines()))
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        _say(interrupted(SIGNALLED + number))
        _say("  fix: nsyspipe convert exports the reports that are there")
        return SIGNALLED + number


def _captured_job(job: Job) -> int:
    with room_for(job) as room:
        where = None
        try:
            with short_directory() as directory:
                where = directory.resolve()
                started = _Started(time.time_ns(), report_there(str(job.node_report)))
                _say(_opening(job))
                end, report_at = _run(job, directory, started)
                records = read_records(directory)
                room.has_begun = any(one.pid is not None for one in records)
                if report_at is not None:
                    records = [replace(one, report_at=report_at) for one in records]
                return _conclude(job, directory, records, end, started)
        finally:
            if where is not None and where.exists():
                _say(f"note: what nsys captured could not be moved from {where}")


class _Started(NamedTuple):
    """How things stood at the start: the time, ns since the epoch, and the report of a node that was there."""

    at_ns: int
    report: tuple[int, int] | None


def _run(job: Job, directory: Path, started: _Started) -> tuple[End, float | None]:
    """Run the command until it ends, or must be ended; say when the report of a whole node was whole before that."""
    report = None
    if job.is_node_wide and job.nsys is not None:
        report = ReportWatch(str(job.node_report), _of_node(directory), started.report)
    clock = Clock(job, directory, report)
    environment = {**os.environ, "NSYSPIPE_STATUS_DIR": str(directory)}
    if job.is_node_wide:
        adopt_orphans()
        environment["TMPDIR"] = str(_of_node(directory))
    with catching_signals() as stop:
        try:
            with holding(directory) as locks:
                process = start(job.command, environment, pass_fds=locks, ends_with_us=True)
        except OSError as error:
            raise CaptureError(
                job.command[0], f"cannot be started: {error.strerror}", fix="check PATH"
            ) from error
        while process.poll() is None:
            why = _interrupt(stop) if stop.n_asked else clock.limit_reached()
            if why:
                _end(job, process, directory, stop)
                break
            time.sleep(POLL_S)
        else:
            why = None
            _wait_for_nsys(directory, job.exit_timeout_s, stop)
    if job.is_node_wide:
        end_adopted(is_any_of_nsys=not read_records(directory))
    end = why or (_interrupt(stop) if stop.n_asked else End(status_of(process)))
    return end, clock.report_at


def _interrupt(stop: Stop) -> End:
    return End(SIGNALLED + (stop.signal or signal.SIGINT), "interrupt")


def _of_node(directory: Path) -> Path:
    """Return where the nsys of a node-wide capture works, as each rank's nsys has a place of its own."""
    path = directory / "tmp_node"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def _end(job: Job, process: subprocess.Popen[bytes], directory: Path, stop: Stop) -> None:
    """End the job politely, so that nsys writes what it has; asked once more, end it at once."""
    n_asked = stop.n_asked
    process.terminate()
    deadline = time.monotonic() + JOB_GRACE_S + job.exit_timeout_s
    while process.poll() is None and time.monotonic() < deadline and stop.n_asked == n_asked:
        time.sleep(POLL_S)
    if process.poll() is None:
        end_group(process.pid, grace_s=_HURRY_S if stop.n_asked > n_asked else GRACE_S)
        process.wait()
    _wait_for_nsys(directory, job.exit_timeout_s if stop.n_asked == n_asked else 0, stop)


def _wait_for_nsys(directory: Path, patience_s: float, stop: Stop) -> None:
    """Let every nsys finish its report, also one whose starter was killed; end what takes longer, programs too."""
    deadline, n_asked = time.monotonic() + patience_s, stop.n_asked
    groups = {one.nsys_group for one in read_records(directory) if one.nsys_group}
    while (
        any(map(group_is_alive, groups)) and time.monotonic() < deadline and stop.n_asked == n_asked
    ):
        time.sleep(POLL_S)
    left = {group_of(one.pid) for one in _unended(directory) if one.pid}
    is_hurried = not patience_s or stop.n_asked > n_asked
    end_groups(
        groups | {group for group in left if group}, grace_s=_HURRY_S if is_hurried else GRACE_S
    )
    deadline = time.monotonic() + _LAST_WORDS_S
    while _unended(directory) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _unended(directory: Path) -> list[RankRecord]:
    return [one for one in read_records(directory) if one.status is None]


def _conclude(
    job: Job, directory: Path, records: Sequence[RankRecord], end: End, started: _Started
) -> int:
    if job.is_node_wide and job.nsys is not None:
        records = _of_the_node(job, directory, records, started)
    elif job.nsys is not None:
        records = [_saved(job, directory, one, started) for one in records]
    loops = read_loops(directory)
    verdict = judge(
        records,
        job.expected([one.rank for one in records]),
        end,
        program=job.program,
        capture_range=job.capture_range,
        loops=loops,
    )
    written: list[str] = []
    failed: list[str] = []
    analysis = None
    if job.nsys is not None:
        started_at = started.at_ns / 1e9
        written, failed, analysis = finish(
            job,
            directory,
            records,
            loops,
            started_at=started_at,
            ended_by=end.why if end.why != "command" else None,
        )
    for line in (*written, *failed, *verdict.lines):
        _say(line)
    if analysis is not None:
        is_bad = verdict.status or failed
        _say(f"what was captured: {analysis}" if is_bad else f"next: {analysis}")
    return verdict.status or (INCOMPLETE if failed else 0)


def _of_the_node(
    job: Job, directory: Path, records: Sequence[RankRecord], started: _Started
) -> list[RankRecord]:
    """One report holds all ranks of a node that is captured as a whole."""
    came = captured(
        str(job.node_report),
        _of_node(directory),
        directory / "nsys_node.log",  # none: it prints where we do
        earlier=started.report,
        started_ns=started.at_ns,
        command=job.command,
    )
    return [replace(one, report=came.report, problem=came.problem) for one in records]


def _saved(job: Job, directory: Path, record: RankRecord, started: _Started) -> RankRecord:
    """Look for what the nsys of a rank captured whose supervisor was killed before it could."""
    temporary = directory / f"tmp_{record.rank}"
    was_left = record.nsys_group is not None and record.report is None and record.problem is None
    if not was_left or not temporary.is_dir():
        return record
    output = str(job.beside(f"_{record.rank}"))
    log = directory / f"nsys_{record.rank}.log"
    # Nothing of that name was there before the job.
    came = captured(
        output, temporary, log, earlier=None, started_ns=started.at_ns, command=job.command
    )
    return replace(record, report=came.report, problem=came.problem)


def _opening(job: Job) -> str:
    limit = f"at most {job.timeout_s:.0f} s" if job.timeout_s else "no time limit"
    if job.nsys is None:
        return f"running {job.program} without nsys: {job.n_local} rank(s), {limit}"
    ranks = len(job.local_ranks or ()) or job.n_local
    n = len(job.expected(list(job.local_ranks or ()))) or ranks
    what = f"{n} of {ranks} ranks" if n != ranks else f"{ranks} rank{'s' * (ranks > 1)}"
    return f"capturing {job.program}: {what}, {','.join(job.trace)}, {limit} -> {job.name}_*"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - what a launcher tells its user


if __name__ == "__main__":
    sys.exit(main())
