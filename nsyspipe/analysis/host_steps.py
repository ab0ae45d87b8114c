"""What the steps of each process cost on its host: medians, the slowest step, the slowest process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from nsyspipe.model.names import PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa


# A smaller part of a step is chance: median steps of equal processes differ by 1 or 2 %.
MUCH_RATIO = 0.05


@dataclass(frozen=True)
class HostFigures:
    """The steps of one process, over those whose range was closed."""

    rank: int | None
    report: str
    pid: int
    is_alone: bool  # whether its report holds no other process with steps
    # steps with an end, and those whose range was never closed
    n_steps: int
    n_open: int
    # of `host_ns`; of an even number floored. None without a closed step, as all of the following.
    median_ns: int | None
    # the longest step (tie: the lowest number)
    slowest_step: int | None
    slowest_ns: int | None
    phase_ns: Mapping[str, int | None]  # median by phase; None where the process has none of it
    # median of what is in no phase; None where the process has no phase at all
    other_ns: int | None
    # median of the time from the end of a step to the start of the next one; None with fewer than two steps
    between_ns: int | None


def host_figures(host_steps: pa.Table) -> list[HostFigures]:
    """Reduce `schema.HOST_STEPS` to one entry per process, in the order of the table."""
    rows = host_steps.to_pylist()
    groups = [
        list(own)
        for _, own in groupby(rows, key=lambda row: (row["rank"], row["report"], row["pid"]))
    ]
    per_report = Counter(own[0]["report"] for own in groups)
    return [_of_process(own, is_alone=per_report[own[0]["report"]] == 1) for own in groups]


def fastest_and_slowest(
    figures: Sequence[HostFigures],
) -> tuple[HostFigures, HostFigures] | None:
    """Return the processes with the lowest and the highest median; None unless these differ by `MUCH_RATIO`."""
    known = [one for one in figures if one.median_ns is not None]
    if not known:
        return None
    fast, slow = min(known, key=_median), max(known, key=_median)  # of equal ones the first
    spread = _median(slow) - _median(fast)
    return (fast, slow) if spread and spread >= MUCH_RATIO * _median(fast) else None


def uneven_backward(
    figures: Sequence[HostFigures],
) -> tuple[HostFigures, HostFigures] | None:
    """Return the processes with the least and the most backward where steps are of equal length; else None.

    Ranks that wait for each other do so in backward, where they communicate: then all steps take equally long, and the
    rank that is waited for has the shortest backward. The difference must be `MUCH_RATIO` of a step.
    """
    known = [one for one in figures if one.median_ns is not None]
    if fastest_and_slowest(figures) or any(one.phase_ns["backward"] is None for one in known):
        return None
    least, most = min(known, key=_backward, default=None), max(known, key=_backward, default=None)
    if least is None or most is None:
        return None
    spread = _backward(most) - _backward(least)
    return (least, most) if spread and spread >= MUCH_RATIO * _median(most) else None


def longest_between(figures: Sequence[HostFigures]) -> HostFigures | None:
    """Return the process with most time between its steps; None where that is less than `MUCH_RATIO` of a step."""
    known = [one for one in figures if one.between_ns is not None and one.median_ns is not None]
    most = max(known, key=_between, default=None)  # of equal ones the first
    return most if most and _between(most) >= max(MUCH_RATIO * _median(most), 1) else None


def _of_process(rows: Sequence[Mapping[str, Any]], *, is_alone: bool) -> HostFigures:
    closed = [row for row in rows if row["is_complete"]]
    slowest = max(closed, key=lambda row: (row["host_ns"], -row["step"]), default=None)
    return HostFigures(
        rank=rows[0]["rank"],
        report=rows[0]["report"],
        pid=rows[0]["pid"],
        is_alone=is_alone,
        n_steps=len(closed),
        n_open=len(rows) - len(closed),
        median_ns=_floored_median([row["host_ns"] for row in closed]),
        slowest_step=slowest["step"] if slowest else None,
        slowest_ns=slowest["host_ns"] if slowest else None,
        phase_ns={
            phase: _floored_median([row[f"{phase}_ns"] for row in closed]) for phase in PHASES
        },
        other_ns=_floored_median([_in_no_phase(row) for row in closed]),
        between_ns=_floored_median(
            [
                after["host_start_ns"] - before["host_end_ns"]
                for before, after in pairwise(rows)
                if before["is_complete"]
            ]
        ),
    )


def _in_no_phase(row: Mapping[str, Any]) -> int | None:
    own = [length for phase in PHASES if (length := row[f"{phase}_ns"]) is not None]
    return row["host_ns"] - sum(own) if own else None


def _backward(one: HostFigures) -> int:
    return one.phase_ns["backward"] or 0


def _between(one: HostFigures) -> int:
    return one.between_ns or 0


def _median(one: HostFigures) -> int:
    return one.median_ns or 0


def _floored_median(values: Sequence[int | None]) -> int | None:
    ordered = sorted(value for value in values if value is not None)
    if not ordered or len(ordered) < len(values):
        return None
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2
