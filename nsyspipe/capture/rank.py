"""One rank of a job: nsys and the program are started, watched, ended when they hang, and told of to the launcher.

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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nsyspipe.capture import supervision
from nsyspipe.capture.status import STATUS_DIR, RankRecord, write_record
from nsyspipe.model.options import parse_ranks
from nsyspipe.nsys.programs import telling_lines

# What can be wrong with a rank's capture. A sidecar keeps these sentences, and nothing that follows
# them.
NOTHING = "nothing was captured"
NOT_STARTED = "nsys failed before it started the program"
NOT_WRITTEN = "nsys could not write its report"
NOT_MADE = "nsys did not make a report of its capture"
NOT_ENDED = "nsys had not ended {seconds} s after the program: ended it"
_LONGEST_LOG = 4096
_LOOK_S = 1.0
_FIRST_OF_TWO_DIGITS = 10
# What nsys says when it fails by itself, mostly since it and the agent that it starts have missed
# each other.
FAILED_BY_ITSELF = re.compile(r"end of file|connection to agent lost|std::exception", re.IGNORECASE)
_VARIABLE = re.compile(r"%q\{([^}]*)\}")
# What the clocks of file servers may differ from ours, and what nsys may take to start the program.
_CLOCK_SLACK_NS = 60 * 10**9
_START_S = 15.0
# Runs the program ($4...), leaves its own pid and exit status beside $1, prints where we do ($2,
# $3), not where nsys does.
_TELLING_SHELL = (
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
    at = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:at])
    command = words[at + 1 :]
    nsys = command[: options.nsys_words]
    program = command[options.nsys_words :]
    record = RankRecord(
        rank=int(os.environ.get("RANK", "0")), local_rank=int(os.environ.get("LOCAL_RANK", "0"))
    )
    if options.ranks is not None and record.rank not in options.ranks:
        nsys = []
        record = replace(record, is_captured=False)
    with contextlib.ExitStack() as held:
        given = os.environ.get(
            STATUS_DIR
        )  # the launcher's directory, or without a launcher one for the time being
        directory = (
            Path(given).absolute() if given else held.enter_context(supervision.short_directory())
        )
        locks = held.enter_context(supervision.holding(directory))
        return _Rank(directory, options.exit_timeout, record, locks).run(nsys, program)


def with_status(
    program: Sequence[str], file: Path, *, stdout: int = 1, stderr: int = 2
) -> list[str]:
    """Return a command that runs a program, printing to descriptors, and leaves its pid and exit status in files."""
    # A plain sh may know descriptors of one digit only.
    shell = ["/bin/sh"] if max(stdout, stderr) < _FIRST_OF_TWO_DIGITS else ["/usr/bin/env", "bash"]
    return [*shell, "-c", _TELLING_SHELL, "sh", str(file), str(stdout), str(stderr), *program]


class _Rank:
    def __init__(
        self, status_dir: Path, exit_timeout_s: float, record: RankRecord, locks: tuple[int, ...]
    ) -> None:
        self._directory = status_dir
        self._exit_timeout_s = exit_timeout_s
        self._record = record
        self._locks = locks
        self._ended = (
            self._directory / f"program_{record.rank}.status"
        )  # the program's exit status, once it has one
        self._log = self._directory / f"nsys_{record.rank}.log"
        self._temporary = self._directory / f"tmp_{record.rank}"
        self._output: NsysOutput | None = None

    def run(self, nsys: Sequence[str], program: Sequence[str]) -> int:
        """Run the program, under nsys if there is one."""
        self._temporary.mkdir(mode=0o700, exist_ok=True)
        command = [*nsys, *program]
        output = output_of(nsys)
        if output:
            self._output = NsysOutput(
                output, self._temporary, self._log, command, report_there(output)
            )
        with supervision.catching_signals() as self._stop:
            problem, status = self._start(nsys, program)
            is_begun = self._program_pid() is not None or self._stop.n_asked
            if nsys and not is_begun and FAILED_BY_ITSELF.search(last_words(self._log)):
                problem, status = self._start(nsys, program)
        report, failure = self._output.captured() if self._output else (None, None)
        if self._output and self._program_pid() is None:
            failure = f"{NOT_STARTED}{last_words(self._log, command)}"
        said = [one for one in (problem, failure) if one and not (problem and one == NOTHING)]
        self._note(status=status, problem="; ".join(said) or None, report=report)
        return self._record.status or 0

    def _start(self, nsys: Sequence[str], program: Sequence[str]) -> tuple[str | None, int | None]:
        environment = os.environ | ({"TMPDIR": str(self._temporary)} if nsys else {})
        # What nsys prints is kept from the terminal; without nsys nothing stands between.
        stdout, stderr = (os.dup(1), os.dup(2)) if nsys else (1, 2)
        telling = with_status(program, self._ended, stdout=stdout, stderr=stderr)
        if nsys:
            supervision.adopt_orphans()
        with self._log.open("wb") as output:
            inherited = (*self._locks, stdout, stderr) if nsys else self._locks
            words = [*nsys, *telling]
            printing = output if nsys else None
            process = supervision.start(words, environment, output=printing, pass_fds=inherited)
            self._note(nsys_group=process.pid if nsys else None)
            problem = self._watch(process)
        if nsys:
            supervision.end_adopted(is_any_of_nsys=self._program_pid() is None)
        status = self._program_status()
        return problem, status if status is not None else supervision.status_of(process)

    def _watch(self, process: subprocess.Popen[bytes]) -> str | None:
        """Wait until nsys has ended; it has a limited time for that once the program has."""
        deadline = None
        is_killed = False
        parent = os.getppid()
        stop = self._stop
        while process.poll() is None:
            if os.getppid() != parent and not stop.n_asked:
                stop.ask(
                    signal.SIGTERM
                )  # who started us was killed: nobody else would end the program
            if self._record.pid is None and self._program_pid() is not None:
                self._note()
            # What comes once the program has ended, or was asked to, is not told to be whole.
            is_running = (
                self._record.pid is not None and self._program_status() is None and not stop.n_asked
            )
            awaited = self._output if is_running and self._record.report_at is None else None
            if awaited is not None and awaited.is_whole(time.monotonic()):
                self._note(report_at=time.time())
            if stop.n_asked and not is_killed:
                is_killed = True
                self._end_program(process)
            if deadline is None and self._program_status() is not None:
                self._note(status=self._program_status())
                deadline = time.monotonic() + self._exit_timeout_s
            if deadline is not None and time.monotonic() > deadline:
                supervision.end_groups([process.pid])
                process.wait()
                return NOT_ENDED.format(seconds=f"{self._exit_timeout_s:.0f}")
            time.sleep(supervision.POLL_S)
        return None

    def _end_program(self, process: subprocess.Popen[bytes]) -> None:
        """Pass the signal on to the program alone: nsys then writes what it has captured."""
        supervision.wait_until(
            lambda: self._program_pid() is not None or process.poll() is not None, _START_S
        )
        pid = self._program_pid()
        if pid is None and process.poll() is None:
            supervision.end_groups([process.pid])
        if pid is None or self._program_status() is not None:
            return
        for number in (self._stop.signal or signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if supervision.wait_until(
                lambda: self._program_status() is not None or process.poll() is not None,
                supervision.PROGRAM_GRACE_S,
            ):
                return

    def _program_pid(self) -> int | None:
        return _number(self._ended.with_name(f"{self._ended.name}.pid"))

    def _program_status(self) -> int | None:
        return _number(self._ended)

    def _note(self, **facts: object) -> None:
        if facts.get("status") is not None and self._record.ended_at is None:
            facts["ended_at"] = time.time()
        self._record = replace(self._record, pid=self._program_pid(), **facts)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):  # the program goes on without
            write_record(self._directory, self._record)


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii"))
    return None


def output_of(nsys: Sequence[str]) -> str | None:
    """Return what the words of an nsys name as its output, variables filled in."""
    named = next((word.partition("=")[2] for word in nsys if word.startswith("--output=")), None)
    return named and _VARIABLE.sub(lambda found: os.environ.get(found[1], ""), named)


def report_there(output: str) -> tuple[int, int, int] | None:
    """Return what tells the report that is there from another one of its name; None without one."""
    with contextlib.suppress(OSError):
        there = Path(f"{output}.nsys-rep").stat()
        return there.st_ino, there.st_mtime_ns, there.st_size
    return None


@dataclass
class NsysOutput:
    """What an nsys is to write, looked at from before it starts: its report without suffix, where it works and prints."""

    output: str
    temporary: Path
    log: Path
    command: Sequence[str] = ()  # its own words and the program's, which its messages may quote
    # As `report_there` said before it started; and when that was, since the epoch.
    earlier: tuple[int, int, int] | None = None
    started_ns: int = field(default_factory=time.time_ns)
    _looked_at: float = -_LOOK_S
    _seen: tuple[int, int, int] | None = None

    def is_whole(self, now_s: float) -> bool:
        """Tell whether the report is there, and looks as it did a second ago; asked more often, it does not look."""
        if now_s - self._looked_at < _LOOK_S:
            return False
        self._looked_at = now_s
        before = self._seen
        self._seen = None
        there = report_there(self.output)
        with contextlib.suppress(OSError):  # moved in between
            # On its way from another file system it is there twice, and once not whole.
            if there not in (None, self.earlier) and there[2] and not self._has_others():
                self._seen = there
        return self._seen is not None and self._seen == before

    def _has_others(self) -> bool:
        """Tell whether reports are left where nsys works that are no copies of the one in its place, on another file system."""
        there = report_there(self.output)
        left = self._left(".nsys-rep")
        return any(there is None or one.stat().st_size != there[2] for one in left)

    def _left(self, suffix: str) -> list[Path]:
        return sorted(
            path
            for path in self.temporary.rglob(f"*{suffix}")
            if path.is_file() and path.stat().st_size
        )

    def captured(self) -> tuple[str | None, str | None]:
        """Return the report of an nsys that has ended, or what is wrong; a capture in its temporary directory is moved to safety."""
        there = report_there(self.output)
        is_new = there not in (None, self.earlier) and there[1] >= self.started_ns - _CLOCK_SLACK_NS
        # Nsys moves its report to its place, so one that is left says that the file there is
        # somebody else's.
        if is_new and not self._has_others():
            return self.output, None
        said = last_words(self.log, self.command)
        reports = self._left(".nsys-rep")
        if reports:
            return None, f"{NOT_WRITTEN}{_kept(reports, self.output)}{said}"
        streams = self._left(".qdstrm")
        if streams:
            return None, f"{NOT_MADE}{_kept(streams, self.output)}"
        return None, f"{NOT_WRITTEN}{said}" if any(self.temporary.rglob("*.nsys-rep")) else NOTHING


def last_words(log: Path, command: Sequence[str] = ()) -> str:
    """Return the last of what nsys said that went wrong, without what it quotes that may not be written down."""
    try:
        said = log.read_bytes()[-_LONGEST_LOG:].decode("utf-8", "replace")
    except OSError:
        return ""
    from nsyspipe.nsys.command_words import without_words  # noqa: PLC0415 - of ranks only those need it whose nsys fails

    telling = telling_lines(said, 1)
    return f": {without_words(telling[0], command)}" if telling else ""


def _kept(paths: Sequence[Path], output: str) -> str:
    """Move captures beside their output, under free names, and say where they are."""
    names = []
    # No glob of the job's reports takes such a name in, and it ends in the rank as theirs do.
    name, _, rank = output.rpartition("_")
    for number, path in enumerate(paths):
        target = Path(f"{output}{path.suffix}")
        if path.suffix == ".nsys-rep" or target.exists():
            mark = f"{os.getpid()}-{number}" if number else f"{os.getpid()}"
            target = Path(f"{name}.kept-{mark}_{rank}{path.suffix}")
        try:
            shutil.move(path, target)  # often to another file system
        except OSError as error:
            return f" ({error.strerror}, so it is still in {path.parent.resolve()})"
        names.append(target.name)
    return f", which is kept: {', '.join(names)}"


if __name__ == "__main__":
    sys.exit(main())
