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

from nsyspipe.capture import supervision
from nsyspipe.capture.outcome import INCOMPLETE, End, finish, interrupted, judge
from nsyspipe.capture.plan import LINGER_S, Job, parse_job, room_for
from nsyspipe.capture.rank import NsysOutput, report_there
from nsyspipe.capture.status import STATUS_DIR, RankRecord, read_programs, read_records
from nsyspipe.errors import CaptureError, NsyspipeError

JOB_GRACE_S = 60.0  # torchrun gives its workers 30 s to end, and each of those waits for its nsys
# For somebody who has asked twice; and until every rank has said how it ended, once its processes
# have.
_HURRY_S = 1.0
_LAST_WORDS_S = 3.0


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
        status: int = supervision.SIGNALLED + (
            interrupt.args[0] if interrupt.args else signal.SIGINT
        )
        _say(f"{interrupted(status)}\n  fix: nsyspipe convert exports the reports that are there")
        return status


def _captured_job(job: Job, room: SimpleNamespace) -> int:
    where = None
    try:
        with supervision.short_directory() as directory:
            where = directory.resolve()
            running = _Running(job, directory)
            _say(_opening(job))
            end = running.run()
            records = read_records(directory)
            room.has_begun = any(record.pid is not None for record in records)
            return running.conclude(records, end)
    finally:
        if where is not None and where.exists():
            _say(f"note: what nsys captured could not be moved from {where}")


class _Running:
    """A job on its way: its directory, its time limits, and how things stood at its start."""

    def __init__(self, job: Job, directory: Path) -> None:
        self._job = job
        self._directory = directory
        self._started_ns, self._begin = time.time_ns(), time.monotonic()
        # When something was first seen to be over: the ``loop``, the ``ranks``, the ``capture``
        # (reports whole).
        self._since: dict[str, float] = {}
        # Of a node-wide capture; else each rank's nsys has a place of its own. It has no log: it
        # prints where we do.
        self._of_node: NsysOutput | None = None
        # When the report of a whole node was whole while its ranks ran, in s since the epoch.
        self._node_report_at: float | None = None
        if job.is_node_wide:
            self._of_node = self._output(job.beside(f"_node{job.node_rank}"), "node")
            self._of_node.earlier = report_there(self._of_node.output)
            self._of_node.temporary.mkdir(mode=0o700, exist_ok=True)

    def _output(self, report: Path, whose: str) -> NsysOutput:
        temporary = self._directory / f"tmp_{whose}"
        log = self._directory / f"nsys_{whose}.log"
        return NsysOutput(
            str(report), temporary, log, self._job.command, started_ns=self._started_ns
        )

    def run(self) -> End:
        """Run the command until it ends, or must be ended."""
        job = self._job
        directory = self._directory
        environment = {**os.environ, STATUS_DIR: str(directory)}
        if self._of_node is not None:
            supervision.adopt_orphans()
            environment["TMPDIR"] = str(self._of_node.temporary)
        with supervision.catching_signals() as stop:
            try:
                with supervision.holding(directory) as locks:
                    process = supervision.start(
                        job.command, environment, pass_fds=locks, ends_with_us=True
                    )
            except OSError as error:
                raise CaptureError(
                    job.command[0], f"cannot be started: {error.strerror}", fix="check PATH"
                ) from error
            why = None
            while process.poll() is None and why is None:
                why = _interrupt(stop) if stop.n_asked else self._limit_reached()
                if why:
                    self._end(process, stop)
                else:
                    time.sleep(supervision.POLL_S)
            if why is None:
                self._wait_for_nsys(job.exit_timeout_s, stop)
        if self._of_node is not None:
            supervision.end_adopted(is_any_of_nsys=not read_records(directory))
        return why or (_interrupt(stop) if stop.n_asked else End(supervision.status_of(process)))

    def _limit_reached(self) -> End | None:
        job = self._job
        now = time.monotonic()
        self._look(now)
        limits = [(self._begin, "timeout", job.timeout_s)]
        if "ranks" in self._since:
            # Each rank's nsys has the same limit of its own, and is a little earlier.
            limits.append((self._since["ranks"], "command", job.exit_timeout_s + JOB_GRACE_S))
        else:
            limits.append(
                (
                    self._since.get("loop", now),
                    "exit",
                    LINGER_S if job.linger_s is None else job.linger_s,
                )
            )
            limits.append((self._since.get("capture", now), "linger", job.linger_s or 0))
        return next(
            (
                End(None, why, after_s)
                for since, why, after_s in limits
                if 0 < after_s < now - since
            ),
            None,
        )

    def _look(self, now: float) -> None:
        records = read_records(self._directory)
        if len(records) < self._job.n_local:
            return
        if self._of_node is None or self._job.nsys is None:
            # Nothing more comes of the capture: each rank's report is whole, or its program has
            # ended.
            captured = [
                record for record in records if record.is_captured and record.nsys_group is not None
            ]
            has_come = [one.report_at is not None or one.status is not None for one in captured]
            is_whole = any(one.report_at for one in captured) and all(has_come)
        else:
            if self._node_report_at is None and self._of_node.is_whole(now):
                self._node_report_at = time.time()
            is_whole = self._node_report_at is not None
        programs = read_programs(self._directory)
        is_loop_over = all(
            record.rank in programs and programs[record.rank].loop_ended for record in records
        )
        are_ranks_over = all(record.status is not None for record in records)
        for what, is_so in (
            ("loop", is_loop_over),
            ("ranks", are_ranks_over),
            ("capture", is_whole),
        ):
            if is_so:
                self._since.setdefault(what, now)

    def _end(self, process: subprocess.Popen[bytes], stop: supervision.Stop) -> None:
        """End the job politely, so that nsys writes what it has; asked once more, end it at once."""
        n_asked = stop.n_asked
        patience_s = self._job.exit_timeout_s
        process.terminate()
        supervision.wait_until(
            lambda: process.poll() is not None or stop.n_asked > n_asked, JOB_GRACE_S + patience_s
        )
        if process.poll() is None:
            supervision.end_groups(
                [process.pid], grace_s=_HURRY_S if stop.n_asked > n_asked else supervision.GRACE_S
            )
            process.wait()
        self._wait_for_nsys(patience_s if stop.n_asked == n_asked else 0, stop)

    def _wait_for_nsys(self, patience_s: float, stop: supervision.Stop) -> None:
        """Let every nsys finish its report, also one whose starter was killed; end what takes longer, programs too."""
        n_asked = stop.n_asked
        groups = {
            record.nsys_group for record in read_records(self._directory) if record.nsys_group
        }
        is_alive = supervision.group_is_alive
        supervision.wait_until(
            lambda: stop.n_asked > n_asked or not any(map(is_alive, groups)), patience_s
        )
        left = {
            group for one in self._unended() if one.pid and (group := supervision.group_of(one.pid))
        }
        is_hurried = not patience_s or stop.n_asked > n_asked
        supervision.end_groups(
            groups | left, grace_s=_HURRY_S if is_hurried else supervision.GRACE_S
        )
        supervision.wait_until(lambda: not self._unended(), _LAST_WORDS_S)

    def _unended(self) -> list[RankRecord]:
        return [record for record in read_records(self._directory) if record.status is None]

    def conclude(self, records: Sequence[RankRecord], end: End) -> int:
        """Say how it went, put its reports and sidecar in their places, and return the launcher's exit status."""
        job = self._job
        programs = read_programs(self._directory)
        if job.nsys is not None:
            of_node = None if self._of_node is None else self._of_node.captured()
            records = [self._came(record, of_node) for record in records]
        ended_by = end.why if end.why != "command" else None
        written, failed, analysis = finish(job, records, programs, self._started_ns / 1e9, ended_by)
        status, lines = judge(job, records, programs, end)
        for line in (*written, *failed, *lines):
            _say(line)
        if analysis is not None:
            then = "next" if job.n_nodes == 1 else "next, once all nodes are done"
            _say(f"{'what was captured' if status or failed else then}: {analysis}")
        return status or (INCOMPLETE if failed else 0)

    def _came(
        self, record: RankRecord, of_node: tuple[str | None, str | None] | None
    ) -> RankRecord:
        """Return a record with what a node's nsys captured, or that of a rank whose supervisor was killed before."""
        if of_node is not None:
            report, problem = of_node  # it holds all ranks
            return replace(record, report=report, problem=problem, report_at=self._node_report_at)
        was_left = (
            record.nsys_group is not None and record.report is None and record.problem is None
        )
        output = self._output(self._job.beside(f"_{record.rank}"), str(record.rank))
        if not was_left or not output.temporary.is_dir():
            return record
        report, problem = output.captured()  # nothing of that name was there before the job
        return replace(record, report=report, problem=problem)


def _interrupt(stop: supervision.Stop) -> End:
    return End(supervision.SIGNALLED + (stop.signal or signal.SIGINT), "interrupt")


def _opening(job: Job) -> str:
    limit = f"at most {job.timeout_s:.0f} s" if job.timeout_s else "no time limit"
    if job.nsys is None:
        ranks = f"{job.n_local} rank{'s' * (job.n_local != 1)}"
        return f"running {job.program} without nsys: {ranks}, {limit}"
    n = len(job.expected([])) or job.n_local
    what = f"{n} of {job.n_local} ranks" if n != job.n_local else f"{n} rank{'s' * (n > 1)}"
    return f"capturing {job.program}: {what}, {','.join(job.trace)}, {limit} -> {job.name}_*"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - what a launcher tells its user


if __name__ == "__main__":
    sys.exit(main())
