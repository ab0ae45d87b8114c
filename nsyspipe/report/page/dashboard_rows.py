"""From the stored runs to what a dashboard says of each: words, values, its first finding, its page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nsyspipe.report.page.dashboard_figures import NOT_RECORDED
from nsyspipe.units import ms_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.store.catalog import StoredRuns

__all__ = ["DashboardRun", "FirstFinding", "dashboard_runs"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_US = 253_402_300_799_999_999  # the end of the year 9999
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class FirstFinding:
    """What to change first in a run: the rule's id, the most that it could bring, and the change in a few words."""

    name: str
    most: str | None = None
    hint: str | None = None

    @property
    def text(self) -> str:
        """Both in one line."""
        return f"{self.name}, {self.most}" if self.most else self.name


@dataclass(frozen=True, slots=True)
class DashboardRun:
    """One run of the dashboard.

    Attributes
    ----------
    row
        Of `schema.RUNS`, without the time of capture.
    captured_ms
        Milliseconds since 1970, UTC; None when not recorded.
    page
        URL of the run's own page, relative to the dashboard; None when there is none.
    """

    row: Mapping[str, Any]
    captured_ms: int | None
    captured: str
    finding: FirstFinding
    page: str | None

    @property
    def run_id(self) -> str:
        """The run's id: its address in the store."""
        run_id: str = self.row["run_id"]
        return run_id


def dashboard_runs(stored: StoredRuns, pages: Mapping[str, str]) -> list[DashboardRun]:
    """Return the runs by time of capture, as the store gives them.

    Parameters
    ----------
    pages
        URL of a run's page by run id.
    """
    microseconds = stored.runs["captured_at_utc"].cast(pa.int64()).to_pylist()
    rows = stored.runs.drop_columns(["captured_at_utc", "details"]).to_pylist()
    firsts = {row["run_id"]: row for row in stored.findings.to_pylist()}
    unknown = {one.run_id for one in stored.unreadable}
    found = []
    for row, captured_us in zip(rows, microseconds, strict=True):
        run_id = row["run_id"]
        known = captured_us is not None and 0 <= captured_us <= _MOST_US
        found.append(
            DashboardRun(
                row,
                captured_us // 1000 if known else None,
                _moment(captured_us) if known else NOT_RECORDED,
                _finding(firsts.get(run_id), is_known=run_id not in unknown),
                pages.get(run_id),
            )
        )
    return found


def _moment(microseconds: int) -> str:
    """Return a time as ``20 Nov 2026 22:17``, whatever the locale."""
    at = _EPOCH + timedelta(microseconds=microseconds)
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year} {at:%H:%M}"


def _finding(row: Mapping[str, Any] | None, *, is_known: bool) -> FirstFinding:
    if row is None:
        return FirstFinding("none" if is_known else NOT_RECORDED)
    saving = row["saving_ns_per_step"]
    most = f"up to {ms_text(saving)}" if saving and math.isfinite(saving) else None
    return FirstFinding(row["id"], most, row["action"])
