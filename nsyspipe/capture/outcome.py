"""What to say when a captured job has ended: one message, what it means, and what to do."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.capture.records import RankRecord

__all__ = ["INCOMPLETE", "INTERRUPTED", "TIMED_OUT", "End", "Verdict", "judge"]

INCOMPLETE, TIMED_OUT, INTERRUPTED = 3, 124, 130
_NOT_STARTED = 2
_SIGNALLED = 128
_NSYS_FIX = "  fix: check --trace and --nsys-arg, name another nsys with --nsys, or see what nsyspipe doctor says"
_MOST_NAMED = 6


@dataclass(frozen=True)
class End:
    """How the job's command ended.

    Attributes
    ----------
    status
        Its exit status; None when it was ended by us.
    why
        None, ``timeout``, ``exit`` (the training loop was over, the program did not exit), ``command`` (all ranks
        had ended, nsys or torchrun had not), or ``interrupt``.
    after_s
        The limit that was reached, seconds.
    """

    status: int | None
    why: str | None = None
    after_s: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What to print, and the launcher's exit status."""

    status: int
    lines: tuple[str, ...] = ()


def judge(
    records: Sequence[RankRecord],
    expected: Sequence[int],
    end: End,
    *,
    program: str,
    capture_range: str,
) -> Verdict:
    """Say how a captured job went.

    Parameters
    ----------
    records
        What the ranks of this node left; one that never started left none.
    expected
        The ranks of this node that were to be captured.
    program
        What to call the training program.
    capture_range
        Value of nsys's option.

    Returns
    -------
    Verdict
        Status 0 and nothing to say if the program ended well and each expected rank has its report.
        Else the program's own status where it has one, of the rank that failed first; 2 where nsys did not start it.
    """
    captured = [one for one in records if one.rank in set(expected) and one.report]
    found = f"  found: {_found(len(captured), len(expected), records)}"
    if end.why == "interrupt":
        return Verdict(INTERRUPTED, ("error: interrupted", found))
    failed = _first_failure(records)
    if end.why in {"timeout", "exit"}:
        return Verdict(TIMED_OUT, (*_hung(end, program), found, _fix_of(end)))
    if failed is not None:
        return _of_failure(failed, found, program)
    if end.status:
        what = (
            f"error: the job's command ended with status {end.status}; its own message stands above"
        )
        return Verdict(end.status, (what, found))
    if len(captured) == len(expected):
        return Verdict(0)
    return Verdict(INCOMPLETE, (*_missing(records, expected, captured, program, capture_range),))


def _of_failure(failed: RankRecord, found: str, program: str) -> Verdict:
    if failed.pid is None and failed.nsys_group is not None and failed.problem:
        what = f"error: rank {failed.rank}: {failed.problem}"
        return Verdict(_NOT_STARTED, (what, found, _NSYS_FIX))
    what = f"error: {program}: {_ended(failed)}; its own message stands above"
    fix = "  fix: mend the program, then capture again with --force"
    return Verdict(failed.status or 1, (what, found, fix))


def _hung(end: End, program: str) -> tuple[str, ...]:
    if end.why == "exit":
        return (
            f"error: {program}: its training loop was over, but it had not exited {end.after_s:.0f} s later: ended it",
        )
    return (f"error: {program}: it was still running after {end.after_s:.0f} s: ended it",)


def _fix_of(end: End) -> str:
    if end.why == "exit":
        return (
            "  fix: complete reports need no new capture; in the program, call destroy_process_group() "
            "and join or daemonize its threads"
        )
    return "  fix: complete reports need no new capture; else give it more time: --timeout SECONDS"


def _first_failure(records: Sequence[RankRecord]) -> RankRecord | None:
    """Return the rank that failed first: the others are ended because of it."""
    failed = [one for one in records if one.status]
    return min(failed, key=lambda one: (one.ended_at or float("inf"), one.rank), default=None)


def _ended(record: RankRecord) -> str:
    status = record.status or 0
    if status > _SIGNALLED:
        try:
            name = signal.Signals(status - _SIGNALLED).name
        except ValueError:
            name = f"signal {status - _SIGNALLED}"
        return f"rank {record.rank} was ended by {name}"
    return f"rank {record.rank} ended with status {status}"


def _found(n_captured: int, n_expected: int, records: Sequence[RankRecord]) -> str:
    names = [Path(one.report).name + ".nsys-rep" for one in records if one.report]
    more = f", … {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    listed = f": {', '.join(names[:_MOST_NAMED])}{more}" if names else ""
    return f"reports of {n_captured} of {n_expected} ranks{listed}"


def _missing(
    records: Sequence[RankRecord],
    expected: Sequence[int],
    captured: Sequence[RankRecord],
    program: str,
    capture_range: str,
) -> tuple[str, ...]:
    problems = {one.problem for one in records if one.is_captured}
    if not captured and problems == {"nothing was captured"}:
        return _never_started(program, capture_range)
    there = {one.rank for one in captured}
    reasons = {one.rank: one.problem for one in records}
    rows = [
        f"  rank {rank}: {reasons.get(rank) or 'no report'}"
        for rank in expected
        if rank not in there
    ]
    more = [f"  … {len(rows) - _MOST_NAMED} more"] if len(rows) > _MOST_NAMED else []
    return (
        f"error: {program}: it ended well, but the set of reports is partial",
        f"  found: {_found(len(captured), len(expected), records)}",
        *rows[:_MOST_NAMED],
        *more,
        "  fix: capture again with --force; analyze takes the reports that are there, and says what is missing",
    )


def _never_started(program: str, capture_range: str) -> tuple[str, ...]:
    asked = {
        "cudaProfilerApi": "it never called cudaProfilerStart on a GPU",
        "nvtx": "it never began the NVTX range nsyspipe.capture",
    }.get(capture_range, "nsys wrote no report")
    return (
        f"error: {program}: it ended well, but nothing was captured: {asked}",
        "  fix: loop over captured_steps(loader) (from nsyspipe.capture import captured_steps), or call",
        "       torch.cuda.profiler.start() after warm-up; --capture-range none captures the whole run",
    )
