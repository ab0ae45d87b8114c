"""Run the command that a launcher has built, see that it ends, and collect what it captured.

``python3 -m nsyspipe.capture.job --name NAME ... -- torchrun ...``. Exit status: the program's; 2
for what cannot be started; 3 when it ended well but reports are missing; 124 at the end of a time
limit; 130 on Ctrl-C, 143 on SIGTERM.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from nsyspipe.capture import supervision
from nsyspipe.capture.outcome import INCOMPLETE, End, finish, interrupted, judge
from nsyspipe.capture.plan import LINGER_S, Job, parse_job, room_for
from nsyspipe.capture.rank import CapturedReport, NsysOutput, report_there
from nsyspipe.capture.status import STATUS_DIR, RankRecord, read_programs, read_records
from nsyspipe.errors import CaptureError, NsyspipeError

# torchrun gives its workers 30 s to end, and each worker waits for its nsys.
JOB_GRACE_S = 60.0
# The user who asks twice does not want to wait longer.
_GRACE_AFTER_SECOND_REQUEST_S = 1.0
# Each rank records how it ended soon after its processes have ended.
_MAX_WAIT_FOR_RECORDS_S = 3.0


def main(words: Sequence[str] | None = None) -> int:
    """Run one job on this node and return the launcher's exit status."""
    try:
        job = parse_job(sys.argv[1:] if words is None else words)
        with supervision.interruptible(), room_for(job) as room:
            return _captured_job(job, room)
    except NsyspipeError as error:
        _say("error: " + "\n".join(error.lines()))
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        # `interruptible` passes the number of the signal. Python itself passes nothing for Ctrl-C.
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        exit_status: int = supervision.SIGNALLED + number
        problem = interrupted(exit_status)
        _say(f"{problem}\n  fix: nsyspipe convert exports the reports that are there")
        return exit_status


class _TimeLimit(NamedTuple):
    """A limit for what a job still does after an event."""

    # The reason of `End` if the limit is over.
    why: str
    since_s: float
    # 0 for no limit.
    limit_s: float


def _captured_job(job: Job, room: SimpleNamespace) -> int:
    """Run a job in a temporary directory, and return the exit status.

    `room.has_begun` becomes True if a program has started. The directory stays if it has a capture
    that could not be moved to its place. Then a note names it.
    """
    resolved_directory = None
    try:
        with supervision.short_directory() as directory:
            resolved_directory = directory.resolve()
            running = _Running(job, directory)
            _say(opening(job))
            end = running.run()
            records = read_records(directory)
            room.has_begun = any(record.pid is not None for record in records)
            return running.conclude(records, end)
    finally:
        if resolved_directory is not None and resolved_directory.exists():
            _say(f"note: what nsys captured could not be moved from {resolved_directory}")


class _Running:
    """A job that runs: its directory, its time limits, and what was there at its start."""

    def __init__(self, job: Job, directory: Path) -> None:
        self._job = job
        self._directory = directory
        self._started_ns = time.time_ns()
        # Times in s are of time.monotonic(), unless a comment says "since the epoch".
        self._begin_s = time.monotonic()
        # When each part was first seen to be over: ``loop`` (all training loops), ``ranks`` (all
        # programs), or ``capture`` (the reports are complete). A part that goes on has no key.
        self._over_since_s: dict[str, float] = {}
        # The output of the only nsys of a node-wide capture; None if each rank has its own nsys.
        # The file of its log never exists, because the only nsys prints to our terminal.
        self._node_output: NsysOutput | None = None
        # When the report of the node was complete while its ranks ran, in s since the epoch.
        self._node_report_at: float | None = None
        if job.is_node_wide:
            output = self._output(job.beside(f"_node{job.node_rank}"), "node")
            output.earlier = report_there(output.output)
            output.temporary.mkdir(mode=0o700, exist_ok=True)
            self._node_output = output

    def _output(self, report: Path, owner: str) -> NsysOutput:
        """Return the output of an nsys. Its owner is a rank or ``node``."""
        temporary = self._directory / f"tmp_{owner}"
        log = self._directory / f"nsys_{owner}.log"
        return NsysOutput(
            str(report), temporary, log, self._job.command, started_ns=self._started_ns
        )

    def run(self) -> End:
        """Run the command until it ends, or until a limit or the user ends it."""
        with supervision.catching_signals() as stop:
            process = self._start()
            forced_end = self._wait_for_command(process, stop)
            if forced_end is not None:
                self._end(process, stop)
            else:
                self._wait_for_nsys(self._job.exit_timeout_s, stop)
        if self._node_output is not None:
            # If no rank has begun, all that is left belongs to nsys.
            has_begun = bool(read_records(self._directory))
            supervision.end_adopted(are_all_of_nsys=not has_begun)
        if forced_end is not None:
            return forced_end
        if stop.n_asked:
            # The user asked while nsys wrote its reports.
            return _interrupt(stop)
        return End(supervision.status_of(process))

    def _wait_for_command(
        self, process: subprocess.Popen[bytes], stop: supervision.Stop
    ) -> End | None:
        """Wait while the command runs, and return why it must be ended.

        None if the command has ended by itself.
        """
        while process.poll() is None:
            if stop.n_asked:
                return _interrupt(stop)
            limit_reached = self._limit_reached()
            if limit_reached is not None:
                return limit_reached
            time.sleep(supervision.POLL_S)
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the command of the job; a CaptureError if this is not possible."""
        command = self._job.command
        environment = {**os.environ, STATUS_DIR: str(self._directory)}
        if self._node_output is not None:
            supervision.adopt_orphans()
            environment["TMPDIR"] = str(self._node_output.temporary)
        try:
            with supervision.holding(self._directory) as locks:
                return supervision.start(command, environment, pass_fds=locks, ends_with_us=True)
        except OSError as error:
            problem = f"cannot be started: {error.strerror}"
            raise CaptureError(command[0], problem, fix="check PATH") from error

    def _limit_reached(self) -> End | None:
        """Return the end by a time limit that is over; None if none is over.

        If several are over, the order is: timeout, command, exit, linger.
        """
        job = self._job
        now_s = time.monotonic()
        self._look(now_s)
        over_since_s = self._over_since_s
        limits = [_TimeLimit("timeout", self._begin_s, job.timeout_s)]
        if "ranks" in over_since_s:
            # Each rank ends its own nsys after `exit_timeout_s`. The grace lets it do so first.
            command_limit_s = job.exit_timeout_s + JOB_GRACE_S
            limits.append(_TimeLimit("command", over_since_s["ranks"], command_limit_s))
        else:
            if "loop" in over_since_s:
                exit_limit_s = LINGER_S if job.linger_s is None else job.linger_s
                limits.append(_TimeLimit("exit", over_since_s["loop"], exit_limit_s))
            if "capture" in over_since_s:
                # Without --linger, a program may train on for as long as it likes.
                limits.append(_TimeLimit("linger", over_since_s["capture"], job.linger_s or 0))
        for limit in limits:
            passed_s = now_s - limit.since_s
            has_limit = limit.limit_s > 0
            if has_limit and passed_s > limit.limit_s:
                return End(None, limit.why, limit.limit_s)
        return None

    def _look(self, now_s: float) -> None:
        """Record when the capture, all loops and all ranks were first seen to be over."""
        records = read_records(self._directory)
        # A rank without a record has not begun.
        if len(records) < self._job.n_local:
            return
        if self._is_capture_over(records, now_s):
            self._over_since_s.setdefault("capture", now_s)
        programs = read_programs(self._directory)
        ranks_after_loop = {rank for rank, program in programs.items() if program.loop_ended}
        if all(record.rank in ranks_after_loop for record in records):
            self._over_since_s.setdefault("loop", now_s)
        if all(record.status is not None for record in records):
            self._over_since_s.setdefault("ranks", now_s)

    def _is_capture_over(self, records: Sequence[RankRecord], now_s: float) -> bool:
        """Return whether the reports of all captured programs that still run are complete.

        False if no report became complete while its program ran.
        """
        if self._node_output is not None and self._job.nsys is not None:
            return self._is_report_of_node_whole(self._node_output, now_s)
        under_nsys = [record for record in records if record.nsys_group is not None]
        captured = [record for record in under_nsys if record.is_captured]
        running = [record for record in captured if record.status is None]
        # A rank has a `report_at` if its report became complete while its program ran.
        are_all_running_complete = all(record.report_at is not None for record in running)
        is_any_complete = any(record.report_at is not None for record in captured)
        return are_all_running_complete and is_any_complete

    def _is_report_of_node_whole(self, of_node: NsysOutput, now_s: float) -> bool:
        """Return whether the report of the node is complete, and record when it became so."""
        if self._node_report_at is None and of_node.is_whole(now_s):
            self._node_report_at = time.time()
        return self._node_report_at is not None

    def _end(self, process: subprocess.Popen[bytes], stop: supervision.Stop) -> None:
        """End the job so that nsys writes its report. If the user asks again, end it at once."""
        n_asked_at_begin = stop.n_asked
        patience_s = self._job.exit_timeout_s
        process.terminate()

        def is_urgent() -> bool:
            return stop.n_asked > n_asked_at_begin

        def is_over_or_urgent() -> bool:
            return process.poll() is not None or is_urgent()

        supervision.wait_until(is_over_or_urgent, JOB_GRACE_S + patience_s)
        if process.poll() is None:
            grace_s = _GRACE_AFTER_SECOND_REQUEST_S if is_urgent() else supervision.GRACE_S
            supervision.end_groups([process.pid], grace_s=grace_s)
            process.wait()
        remaining_patience_s = 0 if is_urgent() else patience_s
        self._wait_for_nsys(remaining_patience_s, stop)

    def _wait_for_nsys(self, patience_s: float, stop: supervision.Stop) -> None:
        """Wait at most `patience_s` until every nsys has ended, then end what still runs.

        Every nsys writes its report before it ends. Programs that still run are ended too. If the
        user asks again, or `patience_s` is 0, everything is ended at once.
        """
        n_asked_at_begin = stop.n_asked
        records = read_records(self._directory)
        # An nsys whose supervisor was killed is in the records too.
        groups_of_nsys = {record.nsys_group for record in records if record.nsys_group}

        def is_urgent() -> bool:
            return patience_s == 0 or stop.n_asked > n_asked_at_begin

        def have_ended_or_is_urgent() -> bool:
            return is_urgent() or not any(map(supervision.group_is_alive, groups_of_nsys))

        supervision.wait_until(have_ended_or_is_urgent, patience_s)
        pids = [record.pid for record in self._running_ranks() if record.pid]
        groups_of_programs = set(filter(None, map(supervision.group_of, pids)))
        grace_s = _GRACE_AFTER_SECOND_REQUEST_S if is_urgent() else supervision.GRACE_S
        supervision.end_groups(groups_of_nsys | groups_of_programs, grace_s=grace_s)
        supervision.wait_until(lambda: not self._running_ranks(), _MAX_WAIT_FOR_RECORDS_S)

    def _running_ranks(self) -> list[RankRecord]:
        """Return the records of the ranks whose programs have not ended."""
        records = read_records(self._directory)
        return [record for record in records if record.status is None]

    def conclude(self, records: Sequence[RankRecord], end: End) -> int:
        """Put reports and sidecar in their places, print the outcome, return the exit status."""
        job = self._job
        programs = read_programs(self._directory)
        if job.nsys is not None:
            node_capture = None if self._node_output is None else self._node_output.captured()
            records = [self._with_output(record, node_capture) for record in records]
        # The sidecar says what ended the programs. If we ended the job's command (``command``), all
        # programs had ended by themselves before.
        ended_by = None if end.why == "command" else end.why
        finished = finish(job, records, programs, self._started_ns / 1e9, ended_by)
        status, lines = judge(job, records, programs, end)
        for line in (*finished.notes, *finished.errors, *lines):
            _say(line)
        if finished.command is not None:
            if status or finished.errors:
                purpose = "what was captured"
            elif job.n_nodes == 1:
                purpose = "next"
            else:
                purpose = "next, once all nodes are done"
            _say(f"{purpose}: {finished.command}")
        if finished.errors:
            return status or INCOMPLETE
        return status

    def _with_output(self, record: RankRecord, node_capture: CapturedReport | None) -> RankRecord:
        """Return a record with the report or the problem of its nsys.

        `node_capture` is what the only nsys of the node captured; None if each rank has its own
        nsys. Then most records are complete already. They lack a report and a problem only if the
        supervisor of the rank was killed.
        """
        if node_capture is not None:
            # The report of a node has all ranks.
            return replace(
                record,
                report=node_capture.report,
                problem=node_capture.problem,
                report_at=self._node_report_at,
            )
        has_outcome = record.report is not None or record.problem is not None
        if record.nsys_group is None or has_outcome:
            return record
        report_path = self._job.beside(f"_{record.rank}")
        output = self._output(report_path, str(record.rank))
        if not output.temporary.is_dir():
            return record
        # Earlier files of this name were set aside. So a report is there only if this job made it.
        captured = output.captured()
        return replace(record, report=captured.report, problem=captured.problem)


def _interrupt(stop: supervision.Stop) -> End:
    """Return the end of a job that a signal asked for."""
    number = stop.signal or signal.SIGINT
    return End(supervision.SIGNALLED + number, "interrupt")


def opening(job: Job) -> str:
    """Return the first line: what runs or is captured, with how many ranks, and for how long."""
    limit = f"at most {job.timeout_s:.0f} s" if job.timeout_s else "no time limit"
    ranks = "1 rank" if job.n_local == 1 else f"{job.n_local} ranks"
    if job.nsys is None:
        return f"running {job.program} without nsys: {ranks}, {limit}"
    # Before the rendezvous has assigned the ranks, it is not known which of them are captured.
    are_ranks_known = job.local_ranks is not None
    n_captured = len(job.expected(started=())) if are_ranks_known else job.n_local
    if n_captured != job.n_local:
        ranks = f"{n_captured} of {job.n_local} ranks"
    trace = ",".join(job.trace)
    return f"capturing {job.program}: {ranks}, {trace}, {limit} -> {job.name}_*"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - what a launcher tells its user


if __name__ == "__main__":
    sys.exit(main())
