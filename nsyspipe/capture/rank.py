"""One rank of a job: nsys and the program are started, watched, ended when they hang, and told of to the launcher.

``torchrun --no-python python3 -m nsyspipe.capture.rank ... -- nsys profile ... python train.py``: nsys runs in a temporary
directory of this rank's own, and the program's exit status is passed on. What came of it goes to the launcher as a
`RankRecord`. A command without nsys is watched the same way.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nsyspipe.capture.nsys_output import (
    NOTHING,
    Captured,
    NsysOutput,
    is_missed_agent,
    last_words,
    output_of,
    report_there,
)
from nsyspipe.capture.plan import parse_ranks
from nsyspipe.capture.status import STATUS_DIR, RankRecord, end_path, write_record
from nsyspipe.capture.supervision import (
    POLL_S,
    Stop,
    adopt_orphans,
    catching_signals,
    end_adopted,
    end_groups,
    holding,
    short_directory,
    start,
    status_of,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence


# How long the program may take to end when it is asked to.
_PROGRAM_GRACE_S = 15.0
# How long nsys may take to start it.
_START_S = 15.0
_FIRST_OF_TWO_DIGITS = 10
# Runs the program ($4...) and leaves its pid, which is that of its own process, and its exit status beside $1. It
# prints where we do ($2, $3), not where nsys does.
_TELLING_SHELL = (
    'file=$1; exec 1>&"$2" 2>&"$3"; shift 3; sh -c \'echo $$ > "$0.pid"; exec "$@"\' "$file" "$@"; status=$?; '
    'echo $status > "$file.new" && mv "$file.new" "$file"; exit $status'
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank and return the exit status of its program."""
    options, command = _parsed(sys.argv[1:] if arguments is None else list(arguments))
    rank = int(os.environ.get("RANK", "0"))
    record = RankRecord(rank=rank, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
    chosen = options.ranks is None or rank in options.ranks
    at = options.nsys_words
    if not chosen:
        record, at, command = replace(record, is_captured=False), 0, command[at:]
    with _status_directory() as directory, holding(directory) as locks:
        one = _Rank(directory, options.exit_timeout, record, locks)
        return one.run(command[:at], command[at:])


def with_status(program: Sequence[str], file: Path, *, stdout: int = 1, stderr: int = 2) -> list[str]:
    """Return a command that runs a program, printing to descriptors, and leaves its pid and exit status in files."""
    # A plain sh may know descriptors of one digit only.
    shell = ["/bin/sh"] if max(stdout, stderr) < _FIRST_OF_TWO_DIGITS else ["/usr/bin/env", "bash"]
    return [*shell, "-c", _TELLING_SHELL, "sh", str(file), str(stdout), str(stderr), *program]


@contextlib.contextmanager
def _status_directory() -> Iterator[Path]:
    """Yield the launcher's directory, or without a launcher one for the time being."""
    if given := os.environ.get(STATUS_DIR):
        yield Path(given).absolute()
    else:
        with short_directory() as own:
            yield own


class _Rank:
    def __init__(self, status_dir: Path, exit_timeout_s: float, record: RankRecord, locks: tuple[int, ...]) -> None:
        self._directory = status_dir
        self._locks = locks
        self._exit_timeout_s = exit_timeout_s
        self._record = record
        self._ended = end_path(self._directory, record.rank)
        self._log = self._directory / f"nsys_{record.rank}.log"
        self._temporary = self._directory / f"tmp_{record.rank}"
        self._is_killed = False
        self._output: NsysOutput | None = None

    def run(self, nsys: Sequence[str], program: Sequence[str]) -> int:
        """Run the program, under nsys if there is one."""
        self._temporary.mkdir(mode=0o700, exist_ok=True)
        command = [*nsys, *program]
        if output := output_of(nsys):
            earlier = report_there(output)
            self._output = NsysOutput(output, self._temporary, self._log, command, earlier)
        with catching_signals() as stop:
            problem, status = self._start(nsys, program, stop)
            # Once more, where nsys has failed in a way that it does now and then.
            has_never_begun = self._program_pid() is None and not stop.n_asked
            if nsys and has_never_begun and is_missed_agent(last_words(self._log)):
                problem, status = self._start(nsys, program, stop)
        came = Captured()
        if self._output is not None:
            came = self._output.captured()
            if self._program_pid() is None:
                said_last = last_words(self._log, command)
                failed = f"nsys failed before it started the program{said_last}"
                came = replace(came, problem=failed)
        said = [one for one in (problem, came.problem) if one and not (problem and one == NOTHING)]
        self._note(status=status, problem="; ".join(said) or None, report=came.report)
        return self._record.status or 0

    def _start(self, nsys: Sequence[str], program: Sequence[str], stop: Stop) -> tuple[str | None, int | None]:
        """Start nsys with the program and wait for its end; return what went wrong with that, and the exit status."""
        environment = {**os.environ, **({"TMPDIR": str(self._temporary)} if nsys else {})}
        # What nsys prints is kept from the terminal; without nsys nothing stands between.
        stdout, stderr = (os.dup(1), os.dup(2)) if nsys else (1, 2)
        telling = with_status(program, self._ended, stdout=stdout, stderr=stderr)
        if nsys:
            adopt_orphans()
        with self._log.open("wb") as output:
            process = start(
                [*nsys, *telling],
                environment,
                output=output if nsys else None,
                pass_fds=(*self._locks, stdout, stderr) if nsys else self._locks,
            )
            self._note(nsys_group=process.pid if nsys else None)
            problem = self._watch(process, stop)
        if nsys:
            end_adopted(is_any_of_nsys=self._program_pid() is None)
        status = self._program_status()
        return problem, status if status is not None else status_of(process)

    def _watch(self, process: subprocess.Popen[bytes], stop: Stop) -> str | None:
        """Wait until nsys has ended; it has a limited time for that once the program has."""
        deadline = None
        parent = os.getppid()
        while process.poll() is None:
            if os.getppid() != parent and not stop.n_asked:
                # Who started us was killed: nobody else would end the program.
                stop.ask(signal.SIGTERM)
            if self._record.pid is None and self._program_pid() is not None:
                self._note()
            self._look_for_report(stop)
            if stop.n_asked and not self._is_killed:
                self._end_program(process, stop)
            if deadline is None and self._program_status() is not None:
                self._note(status=self._program_status())
                deadline = time.monotonic() + self._exit_timeout_s
            if deadline is not None and time.monotonic() > deadline:
                end_groups([process.pid])
                process.wait()
                return f"nsys had not ended {self._exit_timeout_s:.0f} s after the program: ended it"
            time.sleep(POLL_S)
        return None

    def _look_for_report(self, stop: Stop) -> None:
        """Note when the report is whole; what comes once the program has ended, or was asked to, is not told so."""
        if self._output is None or self._record.pid is None or self._record.report_at is not None:
            return
        is_running = self._program_status() is None and not stop.n_asked
        if is_running and self._output.is_whole(time.monotonic()):
            self._note(report_at=time.time())

    def _end_program(self, process: subprocess.Popen[bytes], stop: Stop) -> None:
        """Pass the signal on to the program alone: nsys then writes what it has captured."""
        self._is_killed = True
        if self._program_status() is not None:
            return
        deadline = time.monotonic() + _START_S
        while (pid := self._program_pid()) is None:
            if process.poll() is not None:
                return
            if time.monotonic() > deadline:
                end_groups([process.pid])
                return
            time.sleep(POLL_S)
        for number in (stop.signal or signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = time.monotonic() + _PROGRAM_GRACE_S
            while self._program_status() is None and time.monotonic() < deadline:
                if process.poll() is not None:
                    return
                time.sleep(POLL_S)
            if self._program_status() is not None:
                return

    def _program_pid(self) -> int | None:
        return _number(self._ended.with_name(f"{self._ended.name}.pid"))

    def _program_status(self) -> int | None:
        return _number(self._ended)

    def _note(self, **facts: object) -> None:
        """Record facts; the first status is when the program ended."""
        if facts.get("status") is not None and self._record.ended_at is None:
            facts["ended_at"] = time.time()
        self._record = replace(self._record, pid=self._program_pid(), **facts)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):  # the program goes on without
            write_record(self._directory, self._record)


def _parsed(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="nsyspipe.capture.rank", description=__doc__)
    parser.add_argument("--exit-timeout", type=float, default=600.0)
    parser.add_argument("--ranks", type=parse_ranks, default=None)
    parser.add_argument("--nsys-words", type=int, default=0)
    at = words.index("--") if "--" in words else len(words)
    return parser.parse_args(words[:at]), words[at + 1 :]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main())
