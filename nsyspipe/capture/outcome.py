"""When a captured job has ended: what to say of it, its reports exported, its sidecar written, and what to do next."""

import glob
import shlex
import signal
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from nsyspipe.capture import sidecar
from nsyspipe.capture.plan import Job
from nsyspipe.capture.rank import FAILED_BY_ITSELF, NOTHING
from nsyspipe.capture.status import Program, RankRecord
from nsyspipe.errors import NsyspipeError
from nsyspipe.model.captured import CapturedRank
from nsyspipe.nsys import programs as nsys
from nsyspipe.nsys.export import all_exported, attempt_exports
from nsyspipe.nsys.secrets import hash_key

_NOT_STARTED = 2
INCOMPLETE = 3
TIMED_OUT = 124
_SIGNALLED = 128
INTERRUPTED = 130
# The warm-up is enough for a first step that is slower than the others.
_MOST_NAMED = 6
_SHORT_WARMUP = 2
_NSYS_FIX = (
    "  fix: check --trace and --nsys-arg, name another nsys with --nsys, or run nsyspipe doctor"
)
_AGAIN_FIX = (
    "  fix: start it again, because nsys sometimes fails on a busy machine. If nsys fails again, "
    "run nsyspipe doctor"
)
_NEVER_BEGUN = {
    "cudaProfilerApi": "it never called cudaProfilerStart on a GPU",
    "nvtx": "it never began the NVTX range nsyspipe.capture",
}
# What a limit has ended, after how long, and what helps besides a new capture.
_HUNG = {
    "exit": (
        "its training loop was over, but it had not exited {} later: ended it",
        "call destroy_process_group() in the program, and join or daemonize its threads",
    ),
    "linger": (
        "it was still running {} after its reports were complete: ended it, as --linger asks",
        "leave --linger out to let it train on",
    ),
    "timeout": ("it was still running after {}: ended it", "give it more time: --timeout SECONDS"),
}


class End(NamedTuple):
    """How the job's command ended."""

    # its exit status; None when a limit (`after_s`) ended it; 128 + N when signal N asked us to end
    # it
    status: int | None
    # None, ``timeout``, ``exit`` (the training loop was over, the program did not exit), ``linger``
    # (its reports were whole, and it went on), ``command`` (all ranks had ended, nsys or torchrun
    # had not), or ``interrupt``
    why: str | None = None
    after_s: float = 0.0


def judge(
    job: Job, records: Sequence[RankRecord], programs: Mapping[int, Program], end: End
) -> tuple[int, list[str]]:
    """Return the launcher's exit status and what to say, by what a job's ranks left and how it ended.

    0 if each expected rank has its report; else that of the rank that failed first, or 2 where nsys
    did not start it.
    """
    expected = job.expected([record.rank for record in records])
    captured = [record for record in records if record.rank in expected and record.report]
    reports = dict.fromkeys(
        record.report for record in records if record.report
    )  # a node's has several ranks
    names = _some([f"{Path(report).name}.nsys-rep" for report in reports])
    found = (
        f"  found: reports of {len(captured)} of {len(expected)} "
        f"ranks{': ' * bool(names)}{', '.join(names)}"
    )
    if end.why == "interrupt":
        status = end.status or INTERRUPTED
        return status, [interrupted(status), found]
    if end.why in _HUNG:
        how, fix = _HUNG[end.why]
        what = f"error: {job.program}: {how.format(f'{end.after_s:.0f} s')}"
        return TIMED_OUT, [
            what,
            found,
            f"  fix: complete reports need no new capture. Before you capture again, {fix}",
        ]
    failed = [record for record in records if record.status]
    if failed:
        # The others are ended because of the first.
        first = min(failed, key=lambda one: (one.ended_at or float("inf"), one.rank))
        return _of_failure(first, found, job, has_reports=bool(captured))
    if end.status:
        how = f"ended with status {end.status} (see its own message above)"
        return end.status, [f"error: the job's command {how}", found]
    notes = [
        f"note: rank {one.rank}: {said}"
        for one in captured
        if (said := cut_short(programs.get(one.rank)))
    ][:1]
    if end.why == "command":
        what = f"the job's command (torchrun or nsys) had not ended {end.after_s:.0f} s later"
        notes.insert(0, f"note: all ranks were over, but {what}: ended it")
    if len(captured) == len(expected):
        return 0, notes
    what = f"error: {job.program}: it ended well, but "
    if not captured and {record.problem for record in records if record.is_captured} == {NOTHING}:
        loops = (one for rank in expected if (one := programs.get(rank)) and one.steps_asked)
        why, *helps = _never_started(job, next(loops, None))
        lines = [f"{what}nothing was captured: {why}", *helps]
    else:
        lines = [f"{what}the set of reports is partial", found]
        lines += _missing(records, expected, {one.rank for one in captured})
    return INCOMPLETE, [*notes, *lines]


def interrupted(status: int) -> str:
    """Return the line for a job that a signal ended, Ctrl-C's without its name."""
    return "error: interrupted" + ("" if status == INTERRUPTED else f" by {_signal(status)}")


def cut_short(said: Program | None) -> str | None:
    """Return a sentence for a capture that has fewer steps than were asked for; None for a whole one."""
    if said is None or not 0 < said.n_captured_steps < said.steps_asked:
        return None
    return f"{said.n_captured_steps} of {said.steps_asked} steps were captured: {_loop(said)}"


def _loop(said: Program) -> str:
    n = f"{said.n_steps} step{'s' * (said.n_steps != 1)}"
    if said.epoch_steps:
        n += (
            " in one epoch"
            if said.epoch_steps >= said.n_steps
            else f" in epochs of {said.epoch_steps}"
        )
    return f"its loop ended after {n}, the warm-up is {said.warmup}"


def _some(names: Sequence[str]) -> list[str]:
    return [
        *names[:_MOST_NAMED],
        *[f"… {len(names) - _MOST_NAMED} more"] * (len(names) > _MOST_NAMED),
    ]


def _missing(records: Sequence[RankRecord], expected: Sequence[int], there: set[int]) -> list[str]:
    reasons = {record.rank: record.problem for record in records}
    rows = [
        f"rank {one}: {reasons.get(one) or 'no report'}" for one in expected if one not in there
    ]
    fix = "fix: capture again"
    if any(".kept-" in row for row in rows):
        fix = (
            "fix: pass the kept .nsys-rep to nsyspipe analyze, or capture again with -o "
            "ANOTHER_NAME"
        )
    elif there:
        fix += " with --force, or analyze the reports that exist"
    return [f"  {line}" for line in (*_some(rows), fix)]


def _never_started(job: Job, said: Program | None) -> tuple[str, ...]:
    if said is not None and not said.n_captured_steps and said.n_steps <= said.warmup:
        warmup = min(_SHORT_WARMUP, said.n_steps // 2)
        steps = max(min(said.steps_asked, said.n_steps - warmup), 1)
        why = _loop(said)
        more = (
            "wrap the loader of each epoch in it"
            if said.epoch_steps >= said.n_steps > 0
            else "more steps"
        )
        if job.attach_steps:
            return (
                why,
                f"  fix: --attach-steps {max(warmup, 1)}:{max(warmup, 1) + steps}, or more steps",
            )
        return why, f"  fix: captured_steps(loader, warmup={warmup}, steps={steps}), or {more}"
    if said is not None and said.n_captured_steps:
        fix = (
            'with --cpu, pip install "nvtx<0.2.12". Otherwise check --capture-range, or name '
            "another nsys: --nsys"
        )
        return (
            f"{said.n_captured_steps} of its steps were to be, but nsys did not hear of it",
            f"  fix: {fix}",
        )
    if job.attach_steps:
        return (
            (
                "no step of a torch.optim optimizer was seen (a compiled step, or one in a CUDA "
                "graph, is not)"
            ),
            (
                "  fix: --capture-range none --nsys-arg=--delay=60 --nsys-arg=--duration=20 "
                "captures 20 s after a minute, and ends the program"
            ),
        )
    return (
        _NEVER_BEGUN.get(job.capture_range, "nsys wrote no report"),
        (
            "  fix: loop over captured_steps(loader) (from nsyspipe.capture import "
            "captured_steps), or call"
        ),
        (
            "       torch.cuda.profiler.start() after warm-up. --capture-range none captures the "
            "whole run"
        ),
    )


def _of_failure(
    failed: RankRecord, found: str, job: Job, *, has_reports: bool
) -> tuple[int, list[str]]:
    if failed.pid is None and failed.nsys_group is not None and failed.problem:
        fix = _AGAIN_FIX if FAILED_BY_ITSELF.search(failed.problem) else _NSYS_FIX
        return _NOT_STARTED, [f"error: rank {failed.rank}: {failed.problem}", found, fix]
    status = failed.status or 1
    how = f"ended with status {status} (see its own message above)"
    if status > _SIGNALLED:
        how = f"was ended by {_signal(status)}"
        how += ", perhaps because memory ran out" * (status == _SIGNALLED + signal.SIGKILL)
    fix = "  fix: fix the program, then capture again" + " with --force" * has_reports
    return status, [f"error: {job.program}: rank {failed.rank} {how}", found, fix]


def _signal(status: int) -> str:
    number = status - _SIGNALLED
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def finish(
    job: Job,
    records: Sequence[RankRecord],
    programs: Mapping[int, Program],
    started_at: float,
    ended_by: str | None,
) -> tuple[list[str], list[str], str | None]:
    """Export reports and write the sidecar: what was written, what failed, and the command that analyzes it, if any.

    Of several nodes it names the reports of all: those of one alone are half a run.
    """
    reports = sorted({Path(f"{record.report}.nsys-rep") for record in records if record.report})
    if not reports:
        return [], [], None
    suffix = ".nsys-rep"
    notes = []
    failed = []
    try:
        notes = _describe(job, records, programs, started_at, ended_by)
    except NsyspipeError as error:
        failed.append("error: " + "\n".join(error.lines()))
    try:
        if job.is_exported:
            all_exported(attempt_exports(reports, nsys=nsys.find(job.nsys)))
            suffix = ".sqlite"
    except NsyspipeError as error:
        failed.append("error: " + "\n".join(error.lines()))
    where = f"{job.name}_*{suffix}"
    words = f"{glob.escape(str(job.name))}_*{suffix}"
    if len(reports) == 1:
        where = str(reports[0].with_suffix(suffix))
        words = where if job.n_nodes == 1 else words
    written = f"{len(reports)} report{'s' * (len(reports) > 1)} written: {where}"
    return [written, *notes], failed, f"nsyspipe analyze {shlex.quote(words)}"


def _describe(
    job: Job,
    records: Sequence[RankRecord],
    programs: Mapping[int, Program],
    started_at: float,
    ended_by: str | None,
) -> list[str]:
    key = hash_key()
    place = sidecar.Place(str(job.name), job.node_rank, job.n_nodes)
    around = sidecar.gather_surroundings(sidecar.program_directory(job.command))
    if around.topology is not None:
        sidecar.write_sidecar(place.file(sidecar.TOPOLOGY_SUFFIX), around.topology)
    ranks = []
    for record in records:
        problem = record.problem or (
            cut_short(programs.get(record.rank)) if record.report else None
        )
        is_complete = (
            bool(record.report)
            and not problem
            and (record.status == 0 or record.report_at is not None)
        )
        same = {
            name: getattr(record, name)
            for name in ("rank", "local_rank", "pid", "report", "status")
        }
        ranks.append(
            CapturedRank(
                **same, problem=problem, is_complete=is_complete if record.is_captured else None
            )
        )
    facts: dict[str, Any] = {
        name: getattr(job, name) for name in ("world_size", "trace", "capture_range")
    }
    facts |= {
        "nsys_version": nsys.find(job.nsys).version_text,
        "ended_by": ended_by,
        "surroundings": around,
    }
    began = datetime.fromtimestamp(started_at, UTC)
    document = sidecar.sidecar_document(
        place, job.command, ranks, programs, captured_at=began, key=key, **facts
    )
    sidecar.write_sidecar(place.file(), document)
    return [key.note] if key.note else []
