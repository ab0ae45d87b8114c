"""What to say when a captured job has ended: one message, what it means, and what to do."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.capture.missing import found_reports, missing_lines, steps_note
from nsyspipe.capture.nsys_output import is_missed_agent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsyspipe.capture.records import Loop, RankRecord

__all__ = ["INCOMPLETE", "TIMED_OUT", "End", "Verdict", "interrupted", "judge"]

INCOMPLETE, TIMED_OUT, INTERRUPTED = 3, 124, 130
_NOT_STARTED = 2
_SIGNALLED = 128
_NSYS_FIX = "  fix: check --trace and --nsys-arg, name another nsys with --nsys, or see what nsyspipe doctor says"
_AGENT_FIX = "  fix: start it again: nsys and its agent missed each other, as happens now and then"


@dataclass(frozen=True)
class End:
    """How the job's command ended.

    Attributes
    ----------
    status
        Its exit status; None when a limit ended it; 128 + N when signal N asked us to end it.
    why
        None, ``timeout``, ``exit`` (the training loop was over, the program did not exit), ``linger`` (its reports were
        whole, and it went on), ``command`` (all ranks had ended, nsys or torchrun had not), or ``interrupt``.
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
    loops: Mapping[int, Loop] | None = None,
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
    loops
        What the training programs said of their steps, by rank.

    Returns
    -------
    Verdict
        Status 0, and at most notes, if the program ended well and each expected rank has its report.
        Else the program's own status where it has one, of the rank that failed first; 2 where nsys did not start it.
    """
    captured = [one for one in records if one.rank in set(expected) and one.report]
    found = f"  found: {found_reports(len(captured), len(expected), records)}"
    if end.why == "interrupt":
        status = end.status or INTERRUPTED
        return Verdict(status, (interrupted(status), found))
    failed = _first_failure(records)
    if end.why in {"timeout", "exit", "linger"}:
        return Verdict(TIMED_OUT, (*_hung(end, program), found, _fix_of(end)))
    if failed is not None:
        return _of_failure(failed, found, program, has_reports=bool(captured))
    if end.status:
        what = (
            f"error: the job's command ended with status {end.status}; its own message stands above"
        )
        return Verdict(end.status, (what, found))
    notes = _notes(end, [one.rank for one in captured], loops or {})
    if len(captured) == len(expected):
        return Verdict(0, notes)
    lines = missing_lines(
        records, expected, program=program, capture_range=capture_range, loops=loops or {}
    )
    return Verdict(INCOMPLETE, (*notes, *lines))


def interrupted(status: int) -> str:
    """Return the line for a job that a signal ended, Ctrl-C's without its name."""
    return "error: interrupted" + ("" if status == INTERRUPTED else f" by {_signal(status)}")


def _notes(end: End, captured: Sequence[int], loops: Mapping[int, Loop]) -> tuple[str, ...]:
    notes = []
    if end.why == "command":
        notes.append(
            f"note: all ranks were over, but the job's command (torchrun or nsys) had not ended {end.after_s:.0f} s "
            "later: ended it"
        )
    if short := steps_note(captured, loops):
        notes.append(short)
    return tuple(notes)


def _of_failure(failed: RankRecord, found: str, program: str, *, has_reports: bool) -> Verdict:
    if failed.pid is None and failed.nsys_group is not None and failed.problem:
        what = f"error: rank {failed.rank}: {failed.problem}"
        fix = _AGENT_FIX if is_missed_agent(failed.problem) else _NSYS_FIX
        return Verdict(_NOT_STARTED, (what, found, fix))
    again = "capture again with --force" if has_reports else "capture again"
    fix = f"  fix: mend the program, then {again}"
    return Verdict(failed.status or 1, (f"error: {program}: {_ended(failed)}", found, fix))


def _hung(end: End, program: str) -> tuple[str, ...]:
    if end.why == "exit":
        return (
            f"error: {program}: its training loop was over, but it had not exited {end.after_s:.0f} s later: ended it",
        )
    if end.why == "linger":
        what = f"it was still running {end.after_s:.0f} s after its reports were complete"
        return (f"error: {program}: {what}: ended it, as --linger asks",)
    return (f"error: {program}: it was still running after {end.after_s:.0f} s: ended it",)


def _fix_of(end: End) -> str:
    if end.why == "exit":
        return (
            "  fix: complete reports need no new capture; in the program, call destroy_process_group() "
            "and join or daemonize its threads"
        )
    if end.why == "linger":
        return "  fix: complete reports need no new capture; leave --linger out to let it train on"
    return "  fix: complete reports need no new capture; else give it more time: --timeout SECONDS"


def _first_failure(records: Sequence[RankRecord]) -> RankRecord | None:
    """Return the rank that failed first: the others are ended because of it."""
    failed = [one for one in records if one.status]
    return min(failed, key=lambda one: (one.ended_at or float("inf"), one.rank), default=None)


def _ended(record: RankRecord) -> str:
    status = record.status or 0
    if status <= _SIGNALLED:
        return f"rank {record.rank} ended with status {status}; its own message stands above"
    perhaps = ", perhaps because memory ran out" if status == _SIGNALLED + signal.SIGKILL else ""
    return f"rank {record.rank} was ended by {_signal(status)}{perhaps}"


def _signal(status: int) -> str:
    try:
        return signal.Signals(status - _SIGNALLED).name
    except ValueError:
        return f"signal {status - _SIGNALLED}"
