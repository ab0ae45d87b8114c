"""Whether reports can be of one run at all."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.errors import RankConflictError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsyspipe.placing import PlacedProcess

__all__ = ["check_one_run"]

_ONE_RUN_NS = 60_000_000_000


def check_one_run(placed: Sequence[PlacedProcess]) -> None:
    """Raise if two reports are one and the same, claim one rank, or come from different runs.

    Different runs: two captured ``WORLD_SIZE``, or over a minute between the activity of reports.

    Raises
    ------
    RankConflictError
        Naming both files.
    """
    seen: dict[object, PlacedProcess] = {}
    for one in placed:
        for identity in _identities(one):
            other = seen.setdefault(identity, one)
            if other.argument != one.argument:
                raise _conflict(other, one, "the same report twice", "pass each report once")
    _check_captured(placed, "WORLD_SIZE", differ=True)
    _check_captured([one for one in placed if one.is_alone], "RANK", differ=False)
    _check_times(placed)


def _identities(placed: PlacedProcess) -> Iterator[object]:
    """Yield what no two reports of a run share: the file itself, and session start with process."""
    status = Path(placed.report.path).stat()
    yield "file", status.st_dev, status.st_ino
    start = placed.report.facts.session_start_utc_ns
    if start is not None:
        yield "capture", start, placed.process.process_id


def _one_per_report(placed: Iterable[PlacedProcess]) -> list[PlacedProcess]:
    return [next(group) for _, group in itertools.groupby(placed, key=lambda one: one.argument)]


def _check_captured(placed: Sequence[PlacedProcess], variable: str, *, differ: bool) -> None:
    """Raise if reports disagree on a variable that they must share (`differ`), or share one they must not."""
    seen: dict[int, PlacedProcess] = {}
    for one in _one_per_report(placed):
        value = one.report.facts.number(variable)
        if value is None:
            continue
        other = next((seen[key] for key in seen if (key != value) == differ), None)
        if other is not None:
            theirs = other.report.facts.number(variable)
            values = (
                f"{variable} is {theirs} and {value}"
                if differ
                else f"both captured {variable}={value}"
            )
            raise _conflict(
                other, one, f"{values}: reports of different runs", "pass the reports of one run"
            )
        seen.setdefault(value, one)


def _check_times(placed: Sequence[PlacedProcess]) -> None:
    """Raise if device activity pauses for over a minute between two reports."""
    if any(one.report.facts.session_start_utc_ns is None for one in placed):
        return
    in_order = sorted(placed, key=lambda one: one.process.span[0] + one.shift_ns)
    latest = None
    for one in in_order:
        if latest is not None:
            gap = one.process.span[0] + one.shift_ns - latest.process.span[1] - latest.shift_ns
            if gap > _ONE_RUN_NS:
                seconds = gap // 1_000_000_000
                raise _conflict(
                    latest,
                    one,
                    f"active {seconds} s apart: reports of different runs",
                    "pass the reports of one run",
                )
        if (
            latest is None
            or one.process.span[1] + one.shift_ns > latest.process.span[1] + latest.shift_ns
        ):
            latest = one


def _conflict(
    first: PlacedProcess, second: PlacedProcess, what: str, fix: str
) -> RankConflictError:
    names = f"{first.report.path} and {second.report.path}"
    return RankConflictError(names, what, fix=f"{fix}, or number them yourself with --rank-map")
