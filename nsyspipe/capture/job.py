"""Run the command that a launcher has built, see that it ends, and collect what it captured.

``python3 -m nsyspipe.capture.job --name NAME ... -- torchrun ...``. Exit status: that of the training program; 2 for
what cannot be started; 3 when it ended well but reports are missing; 124 when it was ended; 130 on Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from nsyspipe.capture.directories import short_directory
from nsyspipe.capture.finish import finish
from nsyspipe.capture.outcome import INCOMPLETE, INTERRUPTED, End, judge
from nsyspipe.capture.plan import Job, earlier_files, parse_job
from nsyspipe.capture.records import RankRecord, loop_has_ended, read_records
from nsyspipe.capture.supervision import (
    GRACE_S,
    POLL_S,
    Stop,
    catching_signals,
    end_group,
    end_groups,
    group_is_alive,
    group_of,
    interruptible,
    start,
    status_of,
)
from nsyspipe.errors import CaptureError, NsyspipeError, OptionError, OutputError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["main"]

# torchrun gives its workers 30 s to end, and each of those waits for its nsys.
_JOB_GRACE_S = 60.0
# Between the polite signal and the last one, for somebody who has asked twice.
_HURRY_S = 1.0
# Until every rank has said how it ended, once its processes have.
_LAST_WORDS_S = 3.0


def main(words: Sequence[str] | None = None) -> int:
    """Run one job on this node and return the launcher's exit status."""
    job = parse_job(sys.argv[1:] if words is None else words)
    try:
        with interruptible(), short_directory() as directory:
            _check_ranks(job)
            _make_room(job)
            started_at = time.time()
            _say(_opening(job))
            end = _run(job, directory)
            return _conclude(job, directory, end, started_at)
    except NsyspipeError as error:
        _say("error: " + "\n".join(error.lines()))
        return error.exit_code
    except KeyboardInterrupt:
        _say("error: interrupted\n  fix: nsyspipe convert exports the reports that are there")
        return INTERRUPTED


def _check_ranks(job: Job) -> None:
    """Refuse ranks that this job does not have: nothing would be captured, and nobody would know why."""
    unknown = sorted(one for one in job.chosen or () if one >= job.world_size)
    if unknown and job.nsys is not None:
        raise OptionError(
            "--ranks",
            f"there is no rank {unknown[0]}: this job's are 0 to {job.world_size - 1}",
            fix=f"--ranks 0,{job.world_size - 1}" if job.world_size > 1 else "leave it out",
        )


def _make_room(job: Job) -> None:
    """Refuse to overwrite an earlier capture; with --force remove all of it, so that none of its ranks stays."""
    if job.nsys is None:
        return
    try:
        job.name.parent.mkdir(parents=True, exist_ok=True)
        there = earlier_files(job)
        if there and not job.is_forced:
            raise OutputError(
                str(job.name),
                "an earlier capture of this name is there",
                found=", ".join(path.name for path in there[:3])
                + (f", … {len(there) - 3} more" if len(there) > 3 else ""),  # noqa: PLR2004
                fix="-o ANOTHER_NAME, or --force to replace it",
            )
        for path in there:
            path.unlink()
    except OSError as error:
        raise OutputError(
            str(job.name), f"reports cannot be written there: {error.strerror}", fix="-o NAME"
        ) from error


def _run(job: Job, directory: Path) -> End:
    """Run the command until it ends, or must be ended."""
    clock = _Clock(job, directory)
    with catching_signals() as stop:
        try:
            process = start(job.command, {**os.environ, "NSYSPIPE_STATUS_DIR": str(directory)})
        except OSError as error:
            raise CaptureError(
                job.command[0], f"cannot be started: {error.strerror}", fix="check PATH"
            ) from error
        while process.poll() is None:
            why = End(None, "interrupt") if stop.n_asked else clock.limit_reached()
            if why:
                _end(job, process, directory, stop)
                return why
            time.sleep(POLL_S)
        _wait_for_nsys(directory, job.exit_timeout_s, stop)
    return End(status_of(process), "interrupt" if stop.n_asked else None)


class _Clock:
    """The time limits of a job."""

    def __init__(self, job: Job, directory: Path) -> None:
        self._job = job
        self._directory = directory
        self._begin = time.monotonic()
        self._loop_over: float | None = None
        self._ranks_over: float | None = None

    def limit_reached(self) -> End | None:
        """Return why the job must end now, or None."""
        job, now = self._job, time.monotonic()
        self._look(now)
        if job.timeout_s and now - self._begin > job.timeout_s:
            return End(None, "timeout", job.timeout_s)
        if _has_passed(self._loop_over, job.linger_s, now) and self._ranks_over is None:
            return End(None, "exit", job.linger_s)
        # Each rank's nsys has the same limit of its own, and is a little earlier.
        if _has_passed(self._ranks_over, job.exit_timeout_s + _JOB_GRACE_S, now):
            return End(None, "command", job.exit_timeout_s + _JOB_GRACE_S)
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


def _has_passed(since: float | None, limit_s: float, now: float) -> bool:
    return since is not None and limit_s > 0 and now - since > limit_s


def _end(job: Job, process: subprocess.Popen[bytes], directory: Path, stop: Stop) -> None:
    """End the job politely, so that nsys writes what it has; asked once more, end it at once."""
    n_asked = stop.n_asked
    process.terminate()
    deadline = time.monotonic() + _JOB_GRACE_S + job.exit_timeout_s
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


def _conclude(job: Job, directory: Path, end: End, started_at: float) -> int:
    records = read_records(directory)
    if job.is_node_wide:
        records = _of_the_node(job, records)
    verdict = judge(
        records,
        job.expected([one.rank for one in records]),
        end,
        program=job.program,
        capture_range=job.capture_range,
    )
    done, failed = finish(job, directory, records, started_at=started_at) if job.nsys else ([], [])
    for line in (*done, *failed, *verdict.lines):
        _say(line)
    return verdict.status or (INCOMPLETE if failed else 0)


def _of_the_node(job: Job, records: Sequence[RankRecord]) -> list[RankRecord]:
    """One report holds all ranks of a node that is captured as a whole."""
    is_there = job.node_report.with_name(f"{job.node_report.name}.nsys-rep").is_file()
    report = str(job.node_report) if is_there else None
    problem = None if is_there else "nothing was captured"
    return [replace(one, report=report, problem=problem) for one in records]


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
