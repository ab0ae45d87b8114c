"""A process that saves runs on demand, each time in a child that may be stopped at any point.

    python -m tests.store.store_child NAME=STORE...

Each line of stdin asks, each of stdout answers, both JSON. A child is forked per request, so that
it begins in a millisecond; importing Arrow takes a hundred times as long.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import nsyspipe
from nsyspipe.errors import OutputError
from nsyspipe.store import write
from nsyspipe.store.write import save

# What changes a directory or a file, by the names of Python's audit events.
CHANGES = (
    "open",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.utime",
    "shutil.rmtree",
)
GROWS = ("open", "os.mkdir", "os.symlink")
REFUSED, INTERRUPTED = 3, 130


@dataclass
class Stop:
    """Stops its process at the `at`-th change: killed, interrupted, or told from then on that the disk is full."""

    how: str
    at: int
    events: list[str] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES:
            return
        if event == "open" and (isinstance(arguments[0], int) or not arguments[2] & os.O_CREAT):
            return  # which makes no file
        self.events.append(event)
        if self.how == "kill" and len(self.events) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "interrupt" and len(self.events) == self.at:
            raise KeyboardInterrupt
        if self.how == "full" and len(self.events) >= self.at and event in GROWS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Encoding:
    """Encodes equal tables of a run once for all children, which are stopped where files change, not there."""

    def __init__(self) -> None:
        self._encode, self._write = write._encoded, write._write
        # By the run, the name of the table and its rank.
        self._files: dict[tuple[Any, ...], list[tuple[pa.Table, pa.Buffer]]] = {}
        self._place: tuple[Any, ...] | None = None

    def write(
        self, staged: Any, name: str, table: pa.Table, rank: int | None = None
    ) -> dict[str, str]:
        self._place = (staged.run_id, name, rank)
        try:
            return self._write(staged, name, table, rank)
        finally:
            self._place = None

    def encoded(self, table: pa.Table) -> pa.Buffer:
        if self._place is None:  # the index
            return self._encode(table)
        files = self._files.setdefault(self._place, [])
        for known, content in files:
            if known.equals(table, check_metadata=True):
                return content
        files.append((table, self._encode(table)))
        return files[-1][1]


def _save(run: Any, request: dict[str, Any]) -> int:
    stop = Stop(request.get("how", ""), request.get("at", 0))
    sys.addaudithook(stop)
    try:
        save(
            run,
            Path(request["store"]),
            events=request.get("events", False),
            force=request.get("force", False),
        )
    except OutputError:
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    if "events_to" in request:
        Path(request["events_to"]).write_text(json.dumps(stop.events))
    return 0


def _answer(runs: dict[str, Any], request: dict[str, Any]) -> dict[str, float]:
    """Save in a child, killed after a time if asked for; return its status, negative if it was killed."""
    child = os.fork()
    if child == 0:
        os._exit(_save(runs[request["run"]], request))
    if "after_s" in request:
        time.sleep(request["after_s"])
        os.kill(child, signal.SIGKILL)
    start = time.perf_counter()
    return {
        "status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    runs = {
        name: nsyspipe.load(store)
        for name, _, store in (one.partition("=") for one in sys.argv[1:])
    }
    encoding = Encoding()
    write._write, write._encoded = encoding.write, encoding.encoded
    for run in runs.values():
        with tempfile.TemporaryDirectory() as folder:
            save(run, Path(folder))  # its tables are read once, not by each child
    for line in sys.stdin:
        print(json.dumps(_answer(runs, json.loads(line))), flush=True)


class Saver:
    """The process, from outside."""

    def __init__(self, **stores: Path) -> None:
        command = [sys.executable, "-m", "tests.store.store_child"]
        command += [f"{name}={store}" for name, store in stores.items()]
        root, pipe = Path(__file__).parents[2], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root)

    def ask(self, run: str, store: Path, **request: Any) -> None:
        self.process.stdin.write(json.dumps({"run": run, "store": str(store)} | request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        return json.loads(self.process.stdout.readline())

    def save(self, run: str, store: Path, **request: Any) -> int:
        """Save and wait; return the child's status."""
        self.ask(run, store, **request)
        return self.answer()["status"]

    def points(self, run: str, store: Path, **request: Any) -> list[int]:
        listed = store.with_name("events")
        assert self.save(run, store, events_to=str(listed), **request) == 0
        kinds = json.loads(listed.read_text())
        ends = [
            at for at in range(1, len(kinds) + 1) if at == len(kinds) or kinds[at] != kinds[at - 1]
        ]
        assert len(kinds) > len(ends) > 10
        return sorted({1, *ends, *(at + 1 for at in ends), 10**6})

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


if __name__ == "__main__":
    main()
