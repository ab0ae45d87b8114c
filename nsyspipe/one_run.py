"""Whether reports can be of one run at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.errors import RankConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsyspipe.digest import ReportDigest
    from nsyspipe.placing import PlacedHost, PlacedProcess

__all__ = ["check_one_run"]

_ONE_RUN_NS = 60_000_000_000


def check_one_run(
    digests: Sequence[ReportDigest], placed: Sequence[PlacedProcess | PlacedHost]
) -> None:
    """Raise if two reports are one and the same, claim one rank, or come from different runs.

    Different runs: two captured ``WORLD_SIZE``, or over a minute between the activity of reports: that of their
    devices, in a run without any that of their hosts' steps.

    Raises
    ------
    RankConflictError
        Naming both files.
    """
    _check_distinct(digests, placed)
    _check_captured(digests, "WORLD_SIZE", differ=True)
    _check_captured([one.report for one in placed if one.is_alone], "RANK", differ=False)
    _check_times(placed)


def _check_distinct(
    digests: Sequence[ReportDigest], placed: Sequence[PlacedProcess | PlacedHost]
) -> None:
    """Raise if one file is there twice, or one capture: a process of a session."""
    seen: dict[object, ReportDigest] = {}
    for digest, *identity in (*_files(digests), *_captures(placed)):
        other = seen.setdefault(tuple(identity), digest)
        if other is not digest:
            raise _conflict(other, digest, "the same report twice", "pass each report once")


def _files(digests: Sequence[ReportDigest]) -> Iterator[tuple[ReportDigest, str, int, int]]:
    for digest in digests:
        status = Path(digest.path).stat()
        yield digest, "file", status.st_dev, status.st_ino


def _captures(
    placed: Sequence[PlacedProcess | PlacedHost],
) -> Iterator[tuple[ReportDigest, str, int, int]]:
    for one in placed:
        start = one.report.facts.session_start_utc_ns
        if start is not None:
            yield one.report, "capture", start, one.process.process_id


def _check_captured(digests: Sequence[ReportDigest], variable: str, *, differ: bool) -> None:
    """Raise if reports disagree on a variable that they must share (`differ`), or share one they must not."""
    seen: dict[int, ReportDigest] = {}
    for digest in digests:
        value = digest.facts.number(variable)
        if value is None:
            continue
        other = (
            next((seen[key] for key in seen if key != value), None) if differ else seen.get(value)
        )
        if other is not None:
            theirs = other.facts.number(variable)
            values = f"{theirs} and {value}" if differ else f"{value} in both"
            what = f"captured {variable} is {values}: reports of different runs"
            raise _conflict(other, digest, what, "pass the reports of one run")
        seen[value] = digest


def _check_times(placed: Sequence[PlacedProcess | PlacedHost]) -> None:
    """Raise if activity pauses for over a minute between two reports."""
    if any(one.report.facts.session_start_utc_ns is None for one in placed):
        return
    latest: PlacedProcess | PlacedHost | None = None
    for one in sorted(placed, key=lambda one: one.span[0]):
        if latest is not None and one.span[0] - latest.span[1] > _ONE_RUN_NS:
            seconds = (one.span[0] - latest.span[1]) // 1_000_000_000
            what = f"active {seconds} s apart: reports of different runs"
            raise _conflict(latest.report, one.report, what, "pass the reports of one run")
        if latest is None or one.span[1] > latest.span[1]:
            latest = one


def _conflict(first: ReportDigest, second: ReportDigest, what: str, fix: str) -> RankConflictError:
    names = f"{first.path} and {second.path}"
    return RankConflictError(names, what, fix=f"{fix}, or number them yourself with --rank-map")
