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
from typing import TYPE_CHECKING

from nsyspipe.capture.nsys_output import NsysOutput, report_there
from nsyspipe.capture.outcome import INCOMPLETE, End, finish, interrupted, judge
from nsyspipe.capture.plan import Job, Room, check_ranks, parse_job
from nsyspipe.capture.status import STATUS_DIR, RankRecord, loop_has_ended, read_programs, read_records
from nsyspipe.capture.supervision import (
    GRACE_S,
    POLL_S,
    SIGNALLED,
    Stop,
    adopt_orphans,
    catching_signals,
    end_adopted,
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


# torchrun gives its workers 30 s to end, and each of those waits for its nsys.
JOB_GRACE_S = 60.0
# Between the polite signal and the last one, for somebody who has asked twice.
_HURRY_S = 1.0
# Until every rank has said how it ended, once its processes have.
_LAST_WORDS_S = 3.0


class Clock:
    """The time limits of a job.

    `report_at` is when the report of a whole node was whole while its ranks ran, in s since the epoch; None before, and where
    each rank looks after its own.
    """

    def __init__(self, job: Job, directory: Path, report: NsysOutput | None = None) -> None:
        self._job = job
        self._directory = directory
        self._begin = time.monotonic()
        # When something was first seen: nsys's reports whole, the loop or the ranks over.
        self._since: dict[str, float] = {}
        self._report = report
        self.report_at: float | None = None

    def limit_reached(self) -> End | None:
        """Return why the job must end now, or None."""
        job, now = self._job, time.monotonic()
        self._look(now)
        # Each rank's nsys has the same limit of its own, and is a little earlier.
        command_s = job.exit_timeout_s + JOB_GRACE_S
        limits = [(self._begin, "timeout", job.timeout_s)]
        if (ranks_over := self._since.get("ranks_over")) is not None:
            limits.append((ranks_over, "command", command_s))
        else:
            limits.append((self._since.get("loop_over", now), "exit", job.linger_s))
            if job.ends_any:
                limits.append((self._since.get("reports_whole", now), "linger", job.linger_s))
        return next((End(None, why, after_s) for since, why, after_s in limits if 0 < after_s < now - since), None)

    def _look(self, now: float) -> None:
        records = read_records(self._directory)
        if len(records) < self._job.n_local:
            return
        if all(loop_has_ended(self._directory, one.rank) for one in records):
            self._since.setdefault("loop_over", now)
        if all(one.status is not None for one in records):
            self._since.setdefault("ranks_over", now)
        if self._report is not None and self.report_at is None and self._report.is_whole(now):
            self.report_at = time.time()
        if self._are_reports_whole(records):
            self._since.setdefault("reports_whole", now)

    def _are_reports_whole(self, records: Sequence[RankRecord]) -> bool:
        """Tell whether nothing more comes of the capture: each rank's report is whole, or its program has ended."""
        if self._report is not None:
            return self.report_at is not None
        captured = [one for one in records if one.is_captured and one.nsys_group is not None]
        return any(one.report_at for one in captured) and all(
            one.report_at is not None or one.status is not None for one in captured
        )


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
    with Room(job) as room:
        where = None
        try:
            with short_directory() as directory:
                where = directory.resolve()
                running = _Running(job, directory)
                _say(_opening(job))
                end = running.run()
                records = read_records(directory)
                room.has_begun = any(one.pid is not None for one in records)
                return running.conclude(records, end)
        finally:
            if where is not None and where.exists():
                _say(f"note: what nsys captured could not be moved from {where}")


class _Running:
    """A job on its way: its directory, and how things stood at its start."""

    def __init__(self, job: Job, directory: Path) -> None:
        self._job = job
        self._directory = directory
        self._started_ns = time.time_ns()
        # Of a node-wide capture; else each rank's nsys has a place of its own.
        self._of_node: NsysOutput | None = None
        if job.is_node_wide:
            self._of_node = self._output(job.node_report, "node")
            self._of_node.earlier = report_there(self._of_node.output)
            self._of_node.temporary.mkdir(mode=0o700, exist_ok=True)
        self._clock = Clock(job, directory, None if job.nsys is None else self._of_node)

    def _output(self, report: Path, whose: str) -> NsysOutput:
        # The one of a node has no log: it prints where we do.
        temporary, log = self._directory / f"tmp_{whose}", self._directory / f"nsys_{whose}.log"
        return NsysOutput(str(report), temporary, log, self._job.command, started_ns=self._started_ns)

    def run(self) -> End:
        """Run the command until it ends, or must be ended."""
        job, directory = self._job, self._directory
        environment = {**os.environ, STATUS_DIR: str(directory)}
        if self._of_node is not None:
            adopt_orphans()
            environment["TMPDIR"] = str(self._of_node.temporary)
        with catching_signals() as stop:
            try:
                with holding(directory) as locks:
                    process = start(job.command, environment, pass_fds=locks, ends_with_us=True)
            except OSError as error:
                problem = f"cannot be started: {error.strerror}"
                raise CaptureError(job.command[0], problem, fix="check PATH") from error
            why = None
            while process.poll() is None and why is None:
                if why := _interrupt(stop) if stop.n_asked else self._clock.limit_reached():
                    self._end(process, stop)
                else:
                    time.sleep(POLL_S)
            if why is None:
                self._wait_for_nsys(job.exit_timeout_s, stop)
        if self._of_node is not None:
            end_adopted(is_any_of_nsys=not read_records(directory))
        return why or (_interrupt(stop) if stop.n_asked else End(status_of(process)))

    def _end(self, process: subprocess.Popen[bytes], stop: Stop) -> None:
        """End the job politely, so that nsys writes what it has; asked once more, end it at once."""
        n_asked, patience_s = stop.n_asked, self._job.exit_timeout_s
        process.terminate()
        deadline = time.monotonic() + JOB_GRACE_S + patience_s
        while process.poll() is None and time.monotonic() < deadline and stop.n_asked == n_asked:
            time.sleep(POLL_S)
        if process.poll() is None:
            end_groups([process.pid], grace_s=_HURRY_S if stop.n_asked > n_asked else GRACE_S)
            process.wait()
        self._wait_for_nsys(patience_s if stop.n_asked == n_asked else 0, stop)

    def _wait_for_nsys(self, patience_s: float, stop: Stop) -> None:
        """Let every nsys finish its report, also one whose starter was killed; end what takes longer, programs too."""
        deadline, n_asked = time.monotonic() + patience_s, stop.n_asked
        groups = {one.nsys_group for one in read_records(self._directory) if one.nsys_group}
        while any(map(group_is_alive, groups)) and time.monotonic() < deadline and stop.n_asked == n_asked:
            time.sleep(POLL_S)
        left = {group for one in self._unended() if one.pid and (group := group_of(one.pid))}
        is_hurried = not patience_s or stop.n_asked > n_asked
        end_groups(groups | left, grace_s=_HURRY_S if is_hurried else GRACE_S)
        deadline = time.monotonic() + _LAST_WORDS_S
        while self._unended() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _unended(self) -> list[RankRecord]:
        return [one for one in read_records(self._directory) if one.status is None]

    def conclude(self, records: Sequence[RankRecord], end: End) -> int:
        """Say how it went, put its reports and sidecar in their places, and return the launcher's exit status."""
        job = self._job
        if job.nsys is not None:
            records = self._came(records)
        programs = read_programs(self._directory)
        verdict = judge(
            records,
            job.expected([one.rank for one in records]),
            end,
            program=job.program,
            capture_range=job.capture_range,
            programs=programs,
        )
        written: list[str] = []
        failed: list[str] = []
        analysis = None
        if job.nsys is not None:
            started_at = self._started_ns / 1e9
            ended_by = end.why if end.why != "command" else None
            written, failed, analysis = finish(job, records, programs, started_at=started_at, ended_by=ended_by)
        for line in (*written, *failed, *verdict.lines):
            _say(line)
        if analysis is not None:
            is_bad = verdict.status or failed
            _say(f"what was captured: {analysis}" if is_bad else f"next: {analysis}")
        return verdict.status or (INCOMPLETE if failed else 0)

    def _came(self, records: Sequence[RankRecord]) -> list[RankRecord]:
        """Return the records with what a node's nsys captured, or that of a rank whose supervisor was killed before."""
        if self._of_node is not None:
            # One report holds all ranks.
            came, at = self._of_node.captured(), self._clock.report_at
            return [replace(one, report=came.report, problem=came.problem, report_at=at) for one in records]
        found = []
        for one in records:
            output = self._output(self._job.beside(f"_{one.rank}"), str(one.rank))
            was_left = one.nsys_group is not None and one.report is None and one.problem is None
            if was_left and output.temporary.is_dir():
                came = output.captured()  # nothing of that name was there before the job
                one = replace(one, report=came.report, problem=came.problem)  # noqa: PLW2901
            found.append(one)
        return found


def _interrupt(stop: Stop) -> End:
    return End(SIGNALLED + (stop.signal or signal.SIGINT), "interrupt")


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
