"""What follows after a captured job: its exit status and messages, exports, and the sidecar."""

import glob
import math
import shlex
import signal
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

from nsyspipe.capture import sidecar
from nsyspipe.capture.plan import Job
from nsyspipe.capture.rank import FAILED_BY_ITSELF, NOTHING
from nsyspipe.capture.status import Program, RankRecord
from nsyspipe.errors import NsyspipeError
from nsyspipe.model.captured import CapturedRank
from nsyspipe.model.names import verb_for
from nsyspipe.nsys import programs as nsys
from nsyspipe.nsys.export import all_exported, attempt_exports
from nsyspipe.nsys.secrets import hash_key

_NOT_STARTED = 2
INCOMPLETE = 3
TIMED_OUT = 124
# A shell adds the number of the signal.
_ENDED_BY_SIGNAL = 128
INTERRUPTED = 130
_MAX_NAMES = 6
# Enough for a first step that is slower than the others.
_SHORT_WARMUP_STEPS = 2
_NSYS_FIX = (
    "  fix: check --trace and --nsys-arg, name another nsys with --nsys, or run nsyspipe doctor"
)
_AGAIN_FIX = (
    "  fix: start it again, because nsys sometimes fails on a busy machine. If nsys fails again, "
    "run nsyspipe doctor"
)
# Value of --capture-range -> why nsys never began to capture.
_NEVER_BEGUN = {
    "cudaProfilerApi": "it never called cudaProfilerStart on a GPU",
    "nvtx": "it never began the NVTX range nsyspipe.capture",
}
_FIX_WITHOUT_RANGE = (
    (
        "  fix: loop over captured_steps(loader) (from nsyspipe.capture import captured_steps), or "
        "call"
    ),
    (
        "       torch.cuda.profiler.start() after warm-up. --capture-range none captures the whole "
        "run"
    ),
)


class _LimitTexts(NamedTuple):
    """Why a limit ended a job, and what helps besides a new capture."""

    # With a place for the time.
    problem: str
    fix: str


# Reason of `End` -> the limit.
_LIMITS: dict[str | None, _LimitTexts] = {
    "exit": _LimitTexts(
        "its training loop was over, but it had not exited {} later: ended it",
        "call destroy_process_group() in the program, and join or daemonize its threads",
    ),
    "linger": _LimitTexts(
        "it was still running {} after its reports were complete: ended it, as --linger asks",
        "leave --linger out to let it train on",
    ),
    "timeout": _LimitTexts(
        "it was still running after {}: ended it", "give it more time: --timeout SECONDS"
    ),
}


class End(NamedTuple):
    """How the job's command ended."""

    # Its exit status. None if a limit (`after_s`) ended it, 128 + N if signal N asked us to end it.
    status: int | None
    # None, or why we ended it: ``timeout``, ``exit`` (the training loop was over, but the program
    # did not exit), ``linger`` (the reports were complete, but the program went on), ``command``
    # (all ranks had ended, but nsys or torchrun had not), or ``interrupt``.
    why: str | None = None
    after_s: float = 0.0


class _Ranks(NamedTuple):
    """The ranks of a job on this node, and what they left."""

    records: Sequence[RankRecord]
    expected: Sequence[int]
    # The records of expected ranks with a report.
    captured: Sequence[RankRecord]
    programs: Mapping[int, Program]

    @classmethod
    def of_job(
        cls, job: Job, records: Sequence[RankRecord], programs: Mapping[int, Program]
    ) -> Self:
        """Return the ranks of a job that has ended, from the records and programs by rank."""
        expected = job.expected([record.rank for record in records])
        with_report = [record for record in records if record.report]
        captured = [record for record in with_report if record.rank in expected]
        return cls(records, expected, captured, programs)

    @property
    def is_complete(self) -> bool:
        return len(self.captured) == len(self.expected)

    def found_line(self) -> str:
        """Return the line with the number of reports, and their names."""
        # One report of a node may have several ranks.
        reports = dict.fromkeys(record.report for record in self.records if record.report)
        files = [f"{Path(report).name}.nsys-rep" for report in reports]
        line = f"  found: reports of {len(self.captured)} of {len(self.expected)} ranks"
        if not files:
            return line
        names = ", ".join(_some_names(files))
        return f"{line}: {names}"


def judge(
    job: Job, records: Sequence[RankRecord], programs: Mapping[int, Program], end: End
) -> tuple[int, list[str]]:
    """Return the launcher's exit status and messages, from what ranks left and how the job ended.

    The first of these cases decides the status:

    - The user or a time limit ended the job: 128 + the number of the signal, or 124.
    - A rank failed: the status of the rank that ended first of these, or 2 if nsys did not start
      its program.
    - The command of the job failed: its status.
    - All ranks ended well: 0 if each expected rank has its report, otherwise 3.
    """
    ranks = _Ranks.of_job(job, records, programs)
    if end.why == "interrupt":
        status = end.status or INTERRUPTED
        return status, [interrupted(status), ranks.found_line()]
    if end.why in _LIMITS:
        return TIMED_OUT, _lines_of_limit(job, ranks, end)
    failed = [record for record in records if record.status]
    if failed:
        # The first rank that fails is the cause: the launcher then ends the other ranks.
        first_failed = min(failed, key=_order_of_end)
        return _judge_failure(first_failed, job, ranks)
    if end.status:
        problem = f"ended with status {end.status} (see its own message above)"
        return end.status, [f"error: the job's command {problem}", ranks.found_line()]
    notes = _notes(ranks, end)
    if ranks.is_complete:
        return 0, notes
    return INCOMPLETE, [*notes, *_lines_of_incomplete(job, ranks)]


class _EndOrder(NamedTuple):
    """The order in which ranks ended. Ranks without a time come last."""

    ended_at: float
    rank: int


def _order_of_end(record: RankRecord) -> _EndOrder:
    return _EndOrder(record.ended_at or math.inf, record.rank)


def _lines_of_limit(job: Job, ranks: _Ranks, end: End) -> list[str]:
    """Return the error for a job that a time limit ended, with its reports and the fix."""
    texts = _LIMITS[end.why]
    problem = texts.problem.format(f"{end.after_s:.0f} s")
    error = f"error: {job.program}: {problem}"
    fix = f"  fix: complete reports need no new capture. Before you capture again, {texts.fix}"
    return [error, ranks.found_line(), fix]


def _notes(ranks: _Ranks, end: End) -> list[str]:
    """Return notes about a job whose ranks ended well."""
    notes = []
    if end.why == "command":
        # The time since the last rank was over.
        later = f"{end.after_s:.0f} s later"
        problem = f"the job's command (torchrun or nsys) had not ended {later}"
        notes.append(f"note: all ranks were over, but {problem}: ended it")
    for record in ranks.captured:
        sentence = cut_short_text(ranks.programs.get(record.rank))
        if sentence:
            # All ranks mostly have the same loop, so one note is enough.
            return [*notes, f"note: rank {record.rank}: {sentence}"]
    return notes


def _lines_of_incomplete(job: Job, ranks: _Ranks) -> list[str]:
    """Return the error for a job that ended well, but without the report of some rank."""
    problems = {record.problem for record in ranks.records if record.is_captured}
    has_no_capture_begun = not ranks.captured and problems == {NOTHING}
    lines: Sequence[str]
    if has_no_capture_begun:
        programs = filter(None, map(ranks.programs.get, ranks.expected))
        programs_with_loop = (program for program in programs if program.steps_asked)
        # All ranks mostly have the same loop, so one of them gives the reason.
        diagnosis = _why_never_begun(job, next(programs_with_loop, None))
        problem = f"nothing was captured: {diagnosis.reason}"
        lines = diagnosis.fix_lines
    else:
        problem = "the set of reports is partial"
        lines = [ranks.found_line(), *_lines_of_missing(ranks)]
    return [f"error: {job.program}: it ended well, but {problem}", *lines]


def interrupted(status: int) -> str:
    """Return the line for a job that a signal ended. Ctrl-C is not named."""
    if status == INTERRUPTED:
        return "error: interrupted"
    return f"error: interrupted by {_signal_name(status)}"


def cut_short_text(program: Program | None) -> str | None:
    """Return a sentence for a capture with fewer steps than asked for; None for a complete one."""
    if program is None:
        return None
    is_cut_short = 0 < program.n_captured_steps < program.steps_asked
    if not is_cut_short:
        return None
    captured = f"{program.n_captured_steps} of {program.steps_asked}"
    were = verb_for(program.n_captured_steps, "were")
    return f"{captured} steps {were} captured: {_loop_text(program)}"


def _loop_text(program: Program) -> str:
    """Return the number of steps after which a loop ended, in how many epochs, and its warm-up."""
    noun = "step" if program.n_steps == 1 else "steps"
    length = f"{program.n_steps} {noun}"
    # `epoch_steps` is 0 if no loader has run out of items.
    if program.epoch_steps:
        is_one_epoch = program.epoch_steps >= program.n_steps
        epochs = "one epoch" if is_one_epoch else f"epochs of {program.epoch_steps}"
        length += f" in {epochs}"
    return f"its loop ended after {length}, the warm-up is {program.warmup}"


def _some_names(names: Sequence[str]) -> list[str]:
    """Return the first names, and how many more there are if that is not all."""
    n_more = len(names) - _MAX_NAMES
    if n_more <= 0:
        return [*names]
    return [*names[:_MAX_NAMES], f"… {n_more} more"]


def _lines_of_missing(ranks: _Ranks) -> list[str]:
    """Return lines for the expected ranks without a report, and a last line with the fix."""
    captured = {record.rank for record in ranks.captured}
    problem_of_rank = {record.rank: record.problem for record in ranks.records}
    lines = []
    for rank in ranks.expected:
        if rank not in captured:
            problem = problem_of_rank.get(rank) or "no report"
            lines.append(f"rank {rank}: {problem}")
    fix = "fix: capture again"
    # The name of a report has ".kept-" if it could not be put into its place.
    if any(".kept-" in line for line in lines):
        fix = (
            "fix: pass the kept .nsys-rep to nsyspipe analyze, or capture again with -o "
            "ANOTHER_NAME"
        )
    elif captured:
        fix += " with --force, or analyze the reports that exist"
    return [f"  {line}" for line in (*_some_names(lines), fix)]


class _Diagnosis(NamedTuple):
    """Why a capture never began, and what helps."""

    reason: str
    fix_lines: tuple[str, ...]


def _why_never_begun(job: Job, program: Program | None) -> _Diagnosis:
    """Return why a capture never began, and the fix.

    `program` is what a training program reported about its loop. None if no program reported any.
    """
    if program is not None and program.n_captured_steps:
        # The loop did begin a capture.
        reason = f"{program.n_captured_steps} of its steps were to be, but nsys did not hear of it"
        fix = (
            'with --cpu, pip install "nvtx<0.2.12". Otherwise check --capture-range, or name '
            "another nsys: --nsys"
        )
        return _Diagnosis(reason, (f"  fix: {fix}",))
    if program is not None and program.n_steps <= program.warmup:
        # The loop ended before the first step to capture.
        return _Diagnosis(_loop_text(program), (_fix_of_short_loop(job, program),))
    if job.attach_steps:
        reason = (
            "no step of a torch.optim optimizer was seen (a compiled step, or one in a CUDA graph, "
            "is not)"
        )
        fix = (
            "--capture-range none --nsys-arg=--delay=60 --nsys-arg=--duration=20 captures 20 s "
            "after a minute, and ends the program"
        )
        return _Diagnosis(reason, (f"  fix: {fix}",))
    reason = _NEVER_BEGUN.get(job.capture_range, "nsys wrote no report")
    return _Diagnosis(reason, _FIX_WITHOUT_RANGE)


def _fix_of_short_loop(job: Job, program: Program) -> str:
    """Return the fix for a loop that ended in its warm-up: steps to capture that the loop has."""
    # The warm-up is at most half of the loop.
    warmup = min(_SHORT_WARMUP_STEPS, program.n_steps // 2)
    n_after_warmup = program.n_steps - warmup
    n_captured = min(program.steps_asked, n_after_warmup)
    # For a loop without steps too, the option must have at least one.
    n_captured = max(n_captured, 1)
    if job.attach_steps:
        # --attach-steps never sees step 0, so its first step is at least step 1.
        first = max(warmup, 1)
        end = first + n_captured
        return f"  fix: --attach-steps {first}:{end}, or more steps"
    has_steps = program.n_steps > 0
    # An epoch with all steps of the program is its only epoch.
    is_one_epoch = has_steps and program.epoch_steps >= program.n_steps
    alternative = "wrap the loader of each epoch in it" if is_one_epoch else "more steps"
    return f"  fix: captured_steps(loader, warmup={warmup}, steps={n_captured}), or {alternative}"


def _judge_failure(first_failed: RankRecord, job: Job, ranks: _Ranks) -> tuple[int, list[str]]:
    """Return exit status and messages for the rank that failed first."""
    rank = first_failed.rank
    has_never_started = first_failed.pid is None and first_failed.nsys_group is not None
    if has_never_started and first_failed.problem:
        # nsys failed, not the program.
        fix = _AGAIN_FIX if FAILED_BY_ITSELF.search(first_failed.problem) else _NSYS_FIX
        problem = f"error: rank {rank}: {first_failed.problem}"
        return _NOT_STARTED, [problem, ranks.found_line(), fix]
    # The status of a failed rank is never None, although the type allows it.
    status = first_failed.status or 1
    error = f"error: {job.program}: rank {rank} {_failure_text(status)}"
    fix = "  fix: fix the program, then capture again"
    if ranks.captured:
        # The reports of the other ranks are in the way.
        fix += " with --force"
    return status, [error, ranks.found_line(), fix]


def _failure_text(status: int) -> str:
    """Return how a program failed that has this exit status."""
    if status <= _ENDED_BY_SIGNAL:
        return f"ended with status {status} (see its own message above)"
    text = f"was ended by {_signal_name(status)}"
    is_killed = status == _ENDED_BY_SIGNAL + signal.SIGKILL
    return f"{text}, perhaps because memory ran out" if is_killed else text


def _signal_name(status: int) -> str:
    """Return the name of the signal in an exit status of 128 + its number."""
    number = status - _ENDED_BY_SIGNAL
    if number not in set(signal.Signals):
        return f"signal {number}"
    return signal.Signals(number).name


class Finished(NamedTuple):
    """What was written after a job has ended."""

    # What was written, and notes about it.
    notes: list[str]
    errors: list[str]
    # The command that analyzes the reports. None if there is no report.
    command: str | None


def finish(
    job: Job,
    records: Sequence[RankRecord],
    programs: Mapping[int, Program],
    started_at: float,
    ended_by: str | None,
) -> Finished:
    """Export the reports of a job, and write its sidecar. Errors are collected, not raised.

    With several nodes, the command names the reports of all nodes, because one node has a part of
    the run only. `started_at` is in s since the epoch, and `ended_by` is the reason of an `End`.
    """
    # A report of a whole node is that of several records.
    names = {record.report for record in records if record.report}
    reports = sorted(Path(f"{name}.nsys-rep") for name in names)
    if not reports:
        return Finished([], [], None)
    is_exported = False
    notes = []
    errors = []
    try:
        notes = _describe(job, records, programs, started_at, ended_by)
    except NsyspipeError as error:
        errors.append(_error_text(error))
    try:
        if job.is_exported:
            outcomes = attempt_exports(reports, nsys=nsys.find(job.nsys))
            all_exported(outcomes)
            is_exported = True
    except NsyspipeError as error:
        errors.append(_error_text(error))
    suffix = ".sqlite" if is_exported else ".nsys-rep"
    notes.insert(0, _written_note(job, reports, suffix))
    argument = _argument_of_analyze(job, reports, suffix)
    command = f"nsyspipe analyze {shlex.quote(argument)}"
    return Finished(notes, errors, command)


def _written_note(job: Job, reports: Sequence[Path], suffix: str) -> str:
    """Return how many reports this node has written, with the name of the only one."""
    if len(reports) == 1:
        return f"1 report written: {reports[0].with_suffix(suffix)}"
    return f"{len(reports)} reports written: {job.name}_*{suffix}"


def _argument_of_analyze(job: Job, reports: Sequence[Path], suffix: str) -> str:
    """Return the reports of the whole job: the only one, or a pattern.

    It is a pattern with several nodes too, because the other nodes write reports as well.
    """
    if len(reports) == 1 and job.n_nodes == 1:
        return str(reports[0].with_suffix(suffix))
    return f"{glob.escape(str(job.name))}_*{suffix}"


def _error_text(error: NsyspipeError) -> str:
    return "error: " + "\n".join(error.lines())


def _describe(
    job: Job,
    records: Sequence[RankRecord],
    programs: Mapping[int, Program],
    started_at: float,
    ended_by: str | None,
) -> list[str]:
    """Write the sidecar and the topology of a job, and return notes about them."""
    key = hash_key()
    place = sidecar.Place(str(job.name), job.node_rank, job.n_nodes)
    directory = sidecar.program_directory(job.command)
    surroundings = sidecar.gather_surroundings(directory)
    if surroundings.topology is not None:
        topology_file = place.file(sidecar.TOPOLOGY_SUFFIX)
        sidecar.write_sidecar(topology_file, surroundings.topology)
    ranks = [_captured_rank(record, programs.get(record.rank)) for record in records]
    nsys_version = nsys.find(job.nsys).version_text
    document = sidecar.sidecar_document(
        place,
        job.command,
        ranks,
        programs,
        captured_at=datetime.fromtimestamp(started_at, UTC),
        key=key,
        surroundings=surroundings,
        world_size=job.world_size,
        trace=job.trace,
        capture_range=job.capture_range,
        nsys_version=nsys_version,
        ended_by=ended_by,
    )
    sidecar.write_sidecar(place.file(), document)
    return [key.note] if key.note else []


def _captured_rank(record: RankRecord, program: Program | None) -> CapturedRank:
    """Return the row of a rank in the sidecar.

    `is_complete` is None for a rank that was not to be captured.
    """
    problem = record.problem or None
    if problem is None and record.report:
        problem = cut_short_text(program)
    is_complete = None
    if record.is_captured:
        # A report that was complete before its program failed is whole nevertheless.
        has_whole_report = record.status == 0 or record.report_at is not None
        is_complete = bool(record.report) and problem is None and has_whole_report
    return CapturedRank(
        rank=record.rank,
        local_rank=record.local_rank,
        pid=record.pid,
        report=record.report,
        status=record.status,
        problem=problem,
        is_complete=is_complete,
    )
