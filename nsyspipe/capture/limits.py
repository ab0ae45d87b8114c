"""The time limits of a job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nsyspipe.capture.outcome import End
from nsyspipe.capture.records import loop_has_ended, read_records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nsyspipe.capture.nsys_output import ReportWatch
    from nsyspipe.capture.plan import Job
    from nsyspipe.capture.records import RankRecord

__all__ = ["JOB_GRACE_S", "Clock"]

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
