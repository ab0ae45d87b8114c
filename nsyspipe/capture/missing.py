"""What to say of reports that are missing, and of captures that have fewer steps than were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.capture.nsys_output import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsyspipe.capture.records import Loop, RankRecord

__all__ = ["CUT_SHORT", "cut_short", "found_reports", "missing_lines", "steps_note"]

CUT_SHORT = r"[0-9]+ of [0-9]+ steps were captured: its loop ended after [0-9]+ steps, the warm-up is [0-9]+"
_MOST_NAMED = 6
# Enough for a first step that is slower than the others.
_SHORT_WARMUP = 2


def found_reports(n_captured: int, n_expected: int, records: Sequence[RankRecord]) -> str:
    """Return how many ranks have a report, and the names of some; a node's report has several ranks."""
    names = list(
        dict.fromkeys(Path(one.report).name + ".nsys-rep" for one in records if one.report)
    )
    more = f", … {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    listed = f": {', '.join(names[:_MOST_NAMED])}{more}" if names else ""
    return f"reports of {n_captured} of {n_expected} ranks{listed}"


def cut_short(loop: Loop | None) -> str | None:
    """Return a sentence for a capture that has fewer steps than were asked for; None for a whole one."""
    if loop is None or not 0 < loop.n_captured < loop.n_asked:
        return None
    return (
        f"{loop.n_captured} of {loop.n_asked} steps were captured: its loop ended after {loop.n_steps} steps, "
        f"the warm-up is {loop.warmup}"
    )


def steps_note(ranks: Sequence[int], loops: Mapping[int, Loop]) -> str | None:
    """Return a note if a rank has captured fewer steps than were asked for."""
    found = [(rank, said) for rank in ranks if (said := cut_short(loops.get(rank)))]
    return f"note: rank {found[0][0]}: {found[0][1]}" if found else None


def missing_lines(
    records: Sequence[RankRecord],
    expected: Sequence[int],
    *,
    program: str,
    capture_range: str,
    loops: Mapping[int, Loop],
) -> tuple[str, ...]:
    """Return the message for a program that ended well, where reports are missing."""
    captured = [one for one in records if one.rank in set(expected) and one.report]
    problems = {one.problem for one in records if one.is_captured}
    if not captured and problems == {NOTHING}:
        said = [loops[rank] for rank in expected if rank in loops]
        return _never_started(program, capture_range, said[0] if said else None)
    there = {one.rank for one in captured}
    reasons = {one.rank: one.problem for one in records}
    rows = [
        f"  rank {rank}: {reasons.get(rank) or 'no report'}"
        for rank in expected
        if rank not in there
    ]
    more = [f"  … {len(rows) - _MOST_NAMED} more"] if len(rows) > _MOST_NAMED else []
    fix = (
        "capture again with --force; analyze takes the reports that are there, and says what is missing"
        if captured
        else "capture again"
    )
    if any(".kept-" in row for row in rows):
        fix = "nsyspipe analyze takes a kept .nsys-rep as it is; to capture again, -o ANOTHER_NAME"
    return (
        f"error: {program}: it ended well, but the set of reports is partial",
        f"  found: {found_reports(len(captured), len(expected), records)}",
        *rows[:_MOST_NAMED],
        *more,
        f"  fix: {fix}",
    )


def _never_started(program: str, capture_range: str, loop: Loop | None) -> tuple[str, ...]:
    what = f"error: {program}: it ended well, but nothing was captured"
    if loop is not None and not loop.n_captured and loop.n_steps <= loop.warmup:
        warmup = min(_SHORT_WARMUP, loop.n_steps // 2)
        steps = max(min(loop.n_asked, loop.n_steps - warmup), 1)
        return (
            f"{what}: its loop ended after {loop.n_steps} steps, the warm-up is {loop.warmup}",
            f"  fix: captured_steps(loader, warmup={warmup}, steps={steps}), or more steps",
        )
    if loop is not None and loop.n_captured:
        return (
            f"{what}: {loop.n_captured} of its steps were to be, but nsys did not hear of it",
            '  fix: with --cpu, pip install "nvtx<0.2.12"; else check --capture-range, or name another nsys: --nsys',
        )
    asked = {
        "cudaProfilerApi": "it never called cudaProfilerStart on a GPU",
        "nvtx": "it never began the NVTX range nsyspipe.capture",
    }.get(capture_range, "nsys wrote no report")
    return (
        f"{what}: {asked}",
        "  fix: loop over captured_steps(loader) (from nsyspipe.capture import captured_steps), or call",
        "       torch.cuda.profiler.start() after warm-up; --capture-range none captures the whole run",
    )
