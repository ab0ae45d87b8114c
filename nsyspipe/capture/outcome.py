"""What to say when a captured job has ended: one message, what it means, and what to do."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.capture.nsys_output import NOTHING, is_missed_agent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsyspipe.capture.status import Loop, RankRecord


# What to say of reports that are missing, and of captures that have fewer steps than were asked for.


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
