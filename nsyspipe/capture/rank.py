"""One rank of a job: starts and watches nsys and the program, and reports to the launcher.

``torchrun --no-python python3 -m nsyspipe.capture.rank ... -- nsys profile ... python train.py``:
the program's exit status is passed on, and what came of it goes to the launcher as a `RankRecord`,
also without nsys.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from nsyspipe.capture import supervision
from nsyspipe.capture.status import STATUS_DIR, RankRecord, write_record
from nsyspipe.model.options import parse_ranks
from nsyspipe.nsys.programs import telling_lines

# Problems of a rank's capture. A sidecar contains these sentences, without the text that follows
# them here.
NOTHING = "nothing was captured"
NOT_STARTED = "nsys failed before it started the program"
NOT_WRITTEN = "nsys could not write its report"
NOT_MADE = "nsys did not make a report of its capture"
NOT_ENDED = "nsys had not ended {seconds} s after the program: ended it"
_MAX_LOG_BYTES = 4096
# A report that does not change for so long is complete.
_REPORT_CHECK_INTERVAL_S = 1.0
_FIRST_OF_TWO_DIGITS = 10
# Messages of an nsys that fails by itself, mostly because it and the agent that it starts did not
# find each other.
FAILED_BY_ITSELF = re.compile(r"end of file|connection to agent lost|std::exception", re.IGNORECASE)
_VARIABLE = re.compile(r"%q\{([^}]*)\}")
# The clock of a file server may differ by so much from ours.
_CLOCK_SLACK_NS = 60 * 10**9
# nsys may take so long to start the program.
_MAX_START_S = 15.0
# Runs the program ($4...), which prints to our descriptors ($2, $3) and not to those of nsys.
# Writes the program's pid and exit status to files at $1.
_STATUS_SHELL = (
    'file=$1; exec 1>&"$2" 2>&"$3"; shift 3; sh -c \'echo $$ > "$0.pid"; exec "$@"\' "$file" '
    '"$@"; status=$?; '
    'echo $status > "$file.new" && mv "$file.new" "$file"; exit $status'
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank and return the exit status of its program."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="nsyspipe.capture.rank", description=__doc__)
    parser.add_argument("--exit-timeout", type=float, default=600.0)
    parser.add_argument("--ranks", type=parse_ranks, default=None)
    parser.add_argument("--nsys-words", type=int, default=0)
    parser.add_argument("--counting-option")
    n_options = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:n_options])
    command = words[n_options + 1 :]
    nsys = command[: options.nsys_words]
    program = command[options.nsys_words :]
    rank = int(os.environ.get("RANK", "0"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    record = RankRecord(rank=rank, local_rank=local_rank)
    is_to_capture = options.ranks is None or rank in options.ranks
    if not is_to_capture:
        nsys = []
        record = replace(record, is_captured=False)
    elif options.counting_option and counts_for_host(rank, local_rank, options.ranks):
        # The first two words are ``nsys profile``.
        nsys.insert(2, options.counting_option)
    with contextlib.ExitStack() as contexts:
        directory = _record_directory(contexts)
        locks = contexts.enter_context(supervision.holding(directory))
        running = _Rank(directory, options.exit_timeout, record, locks)
        return running.run(nsys, program)


def _record_directory(contexts: contextlib.ExitStack) -> Path:
    """Return the directory for the records: that of the launcher, or a temporary one.

    Without a launcher, nobody reads the records. The exit stack removes the temporary directory.
    """
    directory_of_launcher = os.environ.get(STATUS_DIR)
    if directory_of_launcher:
        return Path(directory_of_launcher).absolute()
    return contexts.enter_context(supervision.short_directory())


def counts_for_host(rank: int, local_rank: int, captured: Collection[int] | None) -> bool:
    """Tell whether a captured rank is the first captured one of its host.

    The nsys of that rank counts on all GPUs of the host. A second nsys that counts on the same GPU
    would not start. `captured` are the captured ranks of the job, or None if all are.
    """
    if captured is None:
        return local_rank == 0
    first_rank_of_host = rank - local_rank
    earlier_ranks_of_host = range(first_rank_of_host, rank)
    return not any(earlier_rank in captured for earlier_rank in earlier_ranks_of_host)


def with_status(
    program: Sequence[str], file: Path, *, stdout: int = 1, stderr: int = 2
) -> list[str]:
    """Return a command that runs a program, and writes its exit status to a file.

    The pid is written to another file, with ``.pid`` after the name. The program prints to the
    descriptors `stdout` and `stderr`.
    """
    # A plain sh may know descriptors of one digit only.
    shell = ["/bin/sh"]
    if max(stdout, stderr) >= _FIRST_OF_TWO_DIGITS:
        shell = ["/usr/bin/env", "bash"]
    files = [str(file), str(stdout), str(stderr)]
    return [*shell, "-c", _STATUS_SHELL, "sh", *files, *program]


class _Ended(NamedTuple):
    """How a program and its nsys ended."""

    # None if nsys ended in time, or if there is none.
    nsys_problem: str | None
    # Exit status of the program, or of nsys if the program left none.
    status: int | None


class _Rank:
    """One rank that runs: its program, its nsys if it has one, and its record.

    After the program has ended, its nsys may run for `exit_timeout_s`. `locks` are descriptors. As
    long as a process has them open, `status_dir` is in use.
    """

    def __init__(
        self, status_dir: Path, exit_timeout_s: float, record: RankRecord, locks: tuple[int, ...]
    ) -> None:
        self._directory = status_dir
        self._exit_timeout_s = exit_timeout_s
        self._record = record
        self._locks = locks
        # Contains the program's exit status after its end.
        self._status_file = self._directory / f"program_{record.rank}.status"
        self._log = self._directory / f"nsys_{record.rank}.log"
        self._temporary = self._directory / f"tmp_{record.rank}"
        self._output: NsysOutput | None = None

    def run(self, nsys: Sequence[str], program: Sequence[str]) -> int:
        """Run the program to its end, under nsys if there is one, and return its exit status.

        An nsys that failed by itself, before it started the program, is run a second time.
        """
        self._temporary.mkdir(mode=0o700, exist_ok=True)
        command = [*nsys, *program]
        output = output_of(nsys)
        if output:
            earlier = report_there(output)
            self._output = NsysOutput(output, self._temporary, self._log, command, earlier)
        with supervision.catching_signals() as self._stop:
            ended = self._run_once(nsys, program)
            has_begun = self._program_pid() is not None
            may_run_again = nsys and not has_begun and not self._stop.n_asked
            if may_run_again and FAILED_BY_ITSELF.search(last_words(self._log)):
                ended = self._run_once(nsys, program)
        captured = self._captured(command)
        problem = _joined_problems(ended.nsys_problem, captured.problem)
        self._note(status=ended.status, problem=problem, report=captured.report)
        # The status was noted just before, so it is not None, although the type allows it.
        return self._record.status or 0

    def _captured(self, command: Sequence[str]) -> "CapturedReport":
        """Return the report or the problem of the capture; without nsys, there is neither."""
        if self._output is None:
            return CapturedReport(report=None, problem=None)
        captured = self._output.captured()
        if self._program_pid() is not None:
            return captured
        message = last_words(self._log, command)
        return captured._replace(problem=f"{NOT_STARTED}{message}")

    def _run_once(self, nsys: Sequence[str], program: Sequence[str]) -> _Ended:
        """Run the program until it and its nsys have ended, and return how they ended."""
        environment = {**os.environ}
        stdout = 1
        stderr = 2
        inherited_descriptors = self._locks
        if nsys:
            environment["TMPDIR"] = str(self._temporary)
            # nsys prints to its log. The program inherits copies of our descriptors, and prints to
            # these.
            stdout = os.dup(1)
            stderr = os.dup(2)
            inherited_descriptors = (*inherited_descriptors, stdout, stderr)
            supervision.adopt_orphans()
        command = with_status(program, self._status_file, stdout=stdout, stderr=stderr)
        words = [*nsys, *command]
        with self._log.open("wb") as log:
            output = log if nsys else None
            process = supervision.start(
                words, environment, output=output, pass_fds=inherited_descriptors
            )
            self._note(nsys_group=process.pid if nsys else None)
            nsys_problem = self._watch(process)
        if nsys:
            # If nsys never started the program, all that is left belongs to nsys.
            supervision.end_adopted(are_all_of_nsys=self._program_pid() is None)
        status = self._program_status()
        if status is None:
            # The program left no status, so that of nsys counts.
            status = supervision.status_of(process)
        return _Ended(nsys_problem, status)

    def _watch(self, process: subprocess.Popen[bytes]) -> str | None:
        """Wait until nsys, or the program without nsys, has ended.

        After the end of the program, nsys has a limited time. Return the problem if nsys did not
        end in this time, otherwise None.
        """
        nsys_deadline_s = None
        was_program_asked_to_end = False
        launcher_pid = os.getppid()
        stop = self._stop
        while process.poll() is None:
            # The orphan of a killed launcher gets another parent.
            is_orphan = os.getppid() != launcher_pid
            if is_orphan and not stop.n_asked:
                # Nobody else would end the program.
                stop.ask(signal.SIGTERM)
            self._note_progress()
            if stop.n_asked and not was_program_asked_to_end:
                was_program_asked_to_end = True
                self._end_program(process)
            if nsys_deadline_s is None and self._program_status() is not None:
                # The program has ended. From now on, the time of nsys is limited.
                self._note(status=self._program_status())
                nsys_deadline_s = time.monotonic() + self._exit_timeout_s
            if nsys_deadline_s is not None and time.monotonic() > nsys_deadline_s:
                supervision.end_groups([process.pid])
                process.wait()
                return NOT_ENDED.format(seconds=f"{self._exit_timeout_s:.0f}")
            time.sleep(supervision.POLL_S)
        return None

    def _note_progress(self) -> None:
        """Record the start of the program, and the time when its report is complete.

        The time stays None if the report is not complete before the program ends, or is asked to
        end. Such a report may lack a part.
        """
        if self._record.pid is None and self._program_pid() is not None:
            # Each note takes over the pid.
            self._note()
        is_running = self._record.pid is not None and self._program_status() is None
        if not is_running or self._stop.n_asked:
            return
        if self._output is None or self._record.report_at is not None:
            return
        if self._output.is_whole(time.monotonic()):
            self._note(report_at=time.time())

    def _end_program(self, process: subprocess.Popen[bytes]) -> None:
        """Pass the signal on to the program alone, so that nsys writes what it has captured.

        A program that does not end is killed. If the program does not even start, nsys is ended.
        """

        def has_started() -> bool:
            return self._program_pid() is not None or process.poll() is not None

        def has_ended() -> bool:
            return self._program_status() is not None or process.poll() is not None

        supervision.wait_until(has_started, _MAX_START_S)
        pid = self._program_pid()
        if pid is None:
            is_nsys_running = process.poll() is None
            if is_nsys_running:
                supervision.end_groups([process.pid])
            return
        if self._program_status() is not None:
            # The program has ended by itself.
            return
        for number in (self._stop.signal or signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if supervision.wait_until(has_ended, supervision.PROGRAM_GRACE_S):
                return

    def _program_pid(self) -> int | None:
        file = self._status_file
        pid_file = file.with_name(f"{file.name}.pid")
        return _number_in(pid_file)

    def _program_status(self) -> int | None:
        return _number_in(self._status_file)

    def _note(self, **facts: object) -> None:
        """Write the record of this rank with new facts, and with the pid if it is known now.

        The first note with a status also sets the time when the rank ended.
        """
        if facts.get("status") is not None and self._record.ended_at is None:
            facts["ended_at"] = time.time()
        pid = self._program_pid()
        self._record = replace(self._record, pid=pid, **facts)  # type: ignore[arg-type]
        # If the record cannot be written, the program runs on nevertheless.
        with contextlib.suppress(OSError):
            write_record(self._directory, self._record)


def _joined_problems(nsys_problem: str | None, capture_problem: str | None) -> str | None:
    """Return the problem of nsys and that of its capture as one text; None if there is neither."""
    if nsys_problem and capture_problem == NOTHING:
        # The problem of nsys is the reason why nothing was captured.
        return nsys_problem
    problems = filter(None, (nsys_problem, capture_problem))
    return "; ".join(problems) or None


def _number_in(path: Path) -> int | None:
    """Return the number in a file; None if there is no such file, or no number in it yet."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii"))
    return None


def output_of(nsys: Sequence[str]) -> str | None:
    """Return the value of --output of an nsys command, with variables replaced as nsys does."""
    for word in nsys:
        if word.startswith("--output="):
            output = word.removeprefix("--output=")
            return _VARIABLE.sub(lambda match: os.environ.get(match[1], ""), output)
    return None


class ReportIdentity(NamedTuple):
    """What differs between two reports of one name."""

    inode: int
    modified_ns: int
    n_bytes: int


def report_there(output: str) -> ReportIdentity | None:
    """Return the identity of the report that exists now; None if there is none."""
    with contextlib.suppress(OSError):
        status = Path(f"{output}.nsys-rep").stat()
        return ReportIdentity(status.st_ino, status.st_mtime_ns, status.st_size)
    return None


class CapturedReport(NamedTuple):
    """The report of an nsys that has ended, without suffix, or the problem if there is none."""

    report: str | None
    problem: str | None


@dataclass
class NsysOutput:
    """The report that an nsys writes, watched from before nsys starts."""

    # The path of the report without suffix.
    output: str
    # The directory of nsys's temporary files.
    temporary: Path
    log: Path
    # The words of nsys and of the program, which messages of nsys may quote.
    command: Sequence[str] = ()
    # The report that was there before nsys started.
    earlier: ReportIdentity | None = None
    # Since the epoch.
    started_ns: int = field(default_factory=time.time_ns)
    _checked_at_s: float = -_REPORT_CHECK_INTERVAL_S
    _last_seen: ReportIdentity | None = None

    def is_whole(self, now_s: float) -> bool:
        """Return whether the report exists and has not changed since the last check.

        Checks once per second. Calls in between return False.
        """
        if now_s - self._checked_at_s < _REPORT_CHECK_INTERVAL_S:
            return False
        self._checked_at_s = now_s
        seen_before = self._last_seen
        self._last_seen = self._report_in_place()
        return self._last_seen is not None and self._last_seen == seen_before

    def _report_in_place(self) -> ReportIdentity | None:
        """Return the new report; None if there is none yet, or while nsys moves it there."""
        present = report_there(self.output)
        if present is None or present == self.earlier or present.n_bytes == 0:
            return None
        try:
            # nsys copies its report from another file system, and then removes the original. So if
            # the original is still there, the copy may not be complete.
            is_moving = self._has_other_reports()
        except OSError:
            # nsys has just moved a file. The next check sees its new place.
            return None
        return None if is_moving else present

    def _has_other_reports(self) -> bool:
        """Return whether nsys's temporary directory has a report that is not in its place yet.

        A report that was copied to its place may also be left in the directory. The two have equal
        sizes, and such a report does not count.
        """
        present = report_there(self.output)
        reports_left = self._files_left(".nsys-rep")
        if present is None:
            return bool(reports_left)
        return any(path.stat().st_size != present.n_bytes for path in reports_left)

    def _files_left(self, suffix: str) -> list[Path]:
        """Return the sorted files with contents and a suffix in nsys's temporary directory."""
        files = filter(Path.is_file, self.temporary.rglob(f"*{suffix}"))
        return sorted(file for file in files if file.stat().st_size > 0)

    def captured(self) -> CapturedReport:
        """Return the report of an nsys that has ended, or the problem.

        A capture in the temporary directory is moved next to the place of the report.
        """
        # nsys moves its report from the temporary directory to its place. If it is still in the
        # directory, another program has written the file that is in its place.
        if self._is_new(report_there(self.output)) and not self._has_other_reports():
            return CapturedReport(self.output, None)
        message = last_words(self.log, self.command)
        reports = self._files_left(".nsys-rep")
        if reports:
            place_text = _keep_captures(reports, self.output)
            return CapturedReport(None, f"{NOT_WRITTEN}{place_text}{message}")
        # What an nsys captured that ended before it made a report of it.
        streams = self._files_left(".qdstrm")
        if streams:
            place_text = _keep_captures(streams, self.output)
            return CapturedReport(None, f"{NOT_MADE}{place_text}")
        # Reports with contents were handled above, so any other report is empty.
        has_empty_report = any(self.temporary.rglob("*.nsys-rep"))
        problem = f"{NOT_WRITTEN}{message}" if has_empty_report else NOTHING
        return CapturedReport(None, problem)

    def _is_new(self, present: ReportIdentity | None) -> bool:
        """Tell whether a report was written since nsys started."""
        if present is None or present == self.earlier:
            return False
        earliest_ns = self.started_ns - _CLOCK_SLACK_NS
        return present.modified_ns >= earliest_ns


def last_words(log: Path, command: Sequence[str] = ()) -> str:
    """Return the last error message of nsys, after a colon; an empty text if there is none.

    Parts of the command that may be secret are removed from the message.
    """
    try:
        text = log.read_bytes()[-_MAX_LOG_BYTES:].decode("utf-8", "replace")
    except OSError:
        return ""
    from nsyspipe.nsys.command_words import without_words  # noqa: PLC0415 - only if nsys fails

    messages = telling_lines(text, 1)
    if not messages:
        return ""
    message = without_words(messages[0], command)
    return f": {message}"


def _keep_captures(paths: Sequence[Path], output: str) -> str:
    """Move captures next to their output, under free names.

    Return the end of a sentence that says where they are.
    """
    kept_names = []
    # The output is NAME_RANK.
    name, _, rank = output.rpartition("_")
    for number, path in enumerate(paths):
        target = Path(f"{output}{path.suffix}")
        if path.suffix == ".nsys-rep" or target.exists():
            # No pattern for the reports of the job (NAME_*) matches this name. It ends with the
            # rank, as their names do.
            # With our pid, the name is free. The first file needs no number besides.
            mark = f"{os.getpid()}" if number == 0 else f"{os.getpid()}-{number}"
            target = Path(f"{name}.kept-{mark}_{rank}{path.suffix}")
        try:
            # Not `rename`, because the target is often on another file system.
            shutil.move(path, target)
        except OSError as error:
            return f" ({error.strerror}, so it is still in {path.parent.resolve()})"
        kept_names.append(target.name)
    return f", which is kept: {', '.join(kept_names)}"


if __name__ == "__main__":
    sys.exit(main())
