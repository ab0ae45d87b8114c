"""Processes end, and say why: asked to by a signal, when their parent is gone, when a machine has too little of something."""

import contextlib
import functools
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import nsyspipe
from nsyspipe.errors import DamagedReportError, InputError, shortage
from nsyspipe.reader import report
from nsyspipe.run.workers import Workers, telling_shortage
from tests.build.programs import is_running, within
from tests.build.trace import KERNEL, RUNTIME, steady_rank
from tests.cli.tools import assert_refused, environment, program
from tests.forked import CLI

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
# Generous: the machine may be busy. Nothing waits that long where all is well.
DEADLINE_S = 60.0
eventually = functools.partial(within, DEADLINE_S)
MIB = 2**20
N_KERNELS = 400_000


def grow(path):
    with closing(sqlite3.connect(path)) as database:
        for table in (KERNEL, RUNTIME):
            names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            changed = {
                "start": 't."start" + i % 700',
                "end": 't."end" + i % 700',
                "correlationId": "100 + i",
            }
            cells = ", ".join(changed.get(name, f't."{name}"') for name in names)
            database.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < "
                f"{N_KERNELS}) "
                f"INSERT INTO {table} SELECT {cells} FROM n, (SELECT * FROM {table} LIMIT 1) t"
            )
        database.commit()


def family(pid):
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [one for child in path.read_text().split() for one in family(int(child))]
    return found


def workers_of(pid):
    with contextlib.suppress(OSError):
        return family(pid)[1:]
    return []


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    for rank in range(2):
        grow(steady_rank(rank).write(folder / f"large_{rank}.sqlite"))
    return folder


def reading(pid, folder):
    found = []
    for one in [pid, *workers_of(pid)]:
        with contextlib.suppress(OSError):
            links = [str(entry.readlink()) for entry in Path(f"/proc/{one}/fd").iterdir()]
            found += [one] if any(link.startswith(f"{folder}/") for link in links) else []
    return found


def started(forks, folder, out, jobs=2):
    words = ("analyze", folder, "-j", jobs, "--json", out / "run.json")
    process = forks.start(*words, env=environment(), new_session=True)
    eventually(lambda: reading(process.pid, folder) or process.poll() is not None, "it reads")
    assert process.poll() is None
    return process, workers_of(process.pid)


def starting(forks, folder, _):
    process = forks.start("analyze", folder, "-j", 2, env=environment())
    return process, eventually(lambda: workers_of(process.pid), "workers")


def errors_of(process):
    out, errors = process.communicate(timeout=2 * DEADLINE_S)
    assert_refused(subprocess.CompletedProcess([], process.returncode, out, errors))
    return errors


def gone(workers):
    eventually(lambda: not any(map(is_running, workers)), "the workers are gone")


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "everybody", "jobs"),
    # A terminal sends Ctrl-C to the workers too; kill(1) only to the program.
    [
        (signal.SIGTERM, False, 1),
        (signal.SIGTERM, False, 2),
        (signal.SIGHUP, True, 2),
        (signal.SIGINT, False, 1),
        (signal.SIGINT, False, 2),
        (signal.SIGINT, True, 2),
    ],
)
def test_who_asks_it_to_end_is_obeyed_and_nothing_is_left(
    forks, large, tmp_path, number, everybody, jobs
):
    process, workers = started(forks, large, tmp_path, jobs)
    assert len(workers) == (2 if jobs == 2 else 0)
    (os.killpg if everybody else os.kill)(process.pid, number)
    out, errors = process.communicate(timeout=DEADLINE_S)
    # Who presses Ctrl-C looks at the terminal; who sends another signal does not.
    is_said = number == signal.SIGINT
    assert (process.returncode, out, bool(errors)) == (128 + number, "", is_said)
    assert len(errors.splitlines()) <= 1
    gone(workers)
    assert list(tmp_path.iterdir()) == []


@needs_proc
@pytest.mark.slow
def test_a_signal_that_is_ignored_stays_ignored(steady, tmp_path):
    """As nohup has it: a terminal that closes does not end the program."""
    command = program("analyze", steady, "-q", "--json", tmp_path / "run.json")
    script = (
        "trap '' HUP; \"$@\" & pid=$!; while kill -HUP $pid 2>/dev/null; do sleep 0.05; done; wait "
        "$pid"
    )
    words = ["bash", "-c", script, "sh", *command]
    done = subprocess.run(
        words, env=environment(), timeout=DEADLINE_S, check=False, capture_output=True
    )
    assert done.returncode == 0, done
    assert (tmp_path / "run.json").exists()


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("begin", [started, starting])
def test_workers_end_when_their_parent_is_killed(forks, large, tmp_path, begin):
    process, workers = begin(forks, large, tmp_path)
    process.kill()
    process.communicate()
    gone(workers)


# Keeps the interpreter to itself for hours.
CATASTROPHE = r"""
import os, sys, time
sys.path.insert(0, {root!r})
from nsyspipe.run.workers import Workers
workers = Workers(1)
workers.submit(exec, "import re; open('begun', 'w').close(); re.match('(a+)+$', 'a' * 60 + 'b')")
while {begun} and not os.path.exists("begun"):
    time.sleep(0.01)
if os.fork() == 0:  # holds the pipes open, as another pool of the caller may
    time.sleep({seconds})
    os._exit(0)
print("ready", flush=True)
sys.stdin.read()
"""


@needs_proc
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system's part is Linux's")
@pytest.mark.parametrize("begun", [True, False])
def test_a_worker_whose_call_never_lets_go_ends_too(tmp_path, begun):
    text = CATASTROPHE.format(
        root=str(Path(nsyspipe.__file__).parents[1]), begun=begun, seconds=2 * DEADLINE_S
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", text], **pipes, text=True, cwd=tmp_path)
    assert process.stdout.readline() == "ready\n"
    of_ours = lambda: [one for one in workers_of(process.pid) if b"serve(parent" in command(one)]  # noqa: E731
    worker = eventually(of_ours, "a worker")[0]
    others = [one for one in workers_of(process.pid) if one != worker]
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    eventually(lambda: not is_running(worker), "the worker is gone")
    for one in others:
        os.kill(one, signal.SIGKILL)


def command(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"-c\0")[-1]
    return b""


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("begin", [started, starting])
def test_a_worker_that_is_killed_is_one_clear_error(forks, large, tmp_path, begin):
    process, workers = begin(forks, large, tmp_path)
    os.kill(workers[0], signal.SIGKILL)
    errors = errors_of(process)
    assert " SIGKILL" in errors
    assert "fix: -j 1" in errors
    gone(workers)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def workers():
    there = Workers(2)
    yield there
    there.kill()
    there.shutdown()


@pytest.mark.slow
def test_calls_are_answered_with_what_they_return_or_raise_until_the_end(workers):
    assert list(workers.map(pow, [2] * 20, range(20))) == [2**n for n in range(20)]
    assert workers.submit(bytes, 3 * MIB).result() == bytes(3 * MIB)
    with pytest.raises(ZeroDivisionError) as caught:
        workers.submit(divmod, 1, 0).result()
    assert len(caught.value.__notes__) == 1
    with pytest.raises(Exception, match="cannot pickle"):
        workers.submit(iter, {}.keys().__iter__.__self__).result()
    with pytest.raises(SystemExit):
        workers.submit(sys.exit, 3).result()
    assert workers.submit(os.getppid).result() == os.getpid()
    workers.submit(print, "no answer").result()
    assert workers.submit(signal.getsignal, signal.SIGTERM).result() == signal.SIG_DFL
    # After the end no calls are taken, those that were are answered, and no process is left.
    pids = {workers.submit(os.getpid).result() for _ in range(4)}
    waiting = [workers.submit(time.sleep, 0.01) for _ in range(4)]
    workers.shutdown()
    assert [one.result() for one in waiting] == [None] * 4
    assert not any(map(is_running, pids))
    with pytest.raises(RuntimeError):
        workers.submit(int)


@pytest.mark.slow
def test_a_dead_worker_ends_all_calls_that_are_left_and_those_to_come(workers):
    future = workers.submit(os._exit, 7)
    others = [workers.submit(time.sleep, 0) for _ in range(50)]
    with pytest.raises(InputError) as caught:
        future.result(DEADLINE_S)
    assert re.findall(r"\b\d+\b", caught.value.problem) == ["7"]
    with pytest.raises(InputError):
        eventually(lambda: workers.submit(int).result() == 1, "a refusal")
    assert all(one.done() for one in others if not one.running())


@pytest.mark.slow
def test_a_pool_of_the_caller_that_is_broken_already_is_told_too(steady):
    with ProcessPoolExecutor(1) as pool:
        with contextlib.suppress(Exception):
            pool.submit(os._exit, 1).result()
        with pytest.raises(InputError):
            nsyspipe.load(steady, executor=pool).steps()


# Before the program runs: the limit below which it refuses to begin leaves room for any small
# report, so that most of it is taken.
WITH_LITTLE_MEMORY = """
import mmap, resource
from nsyspipe.cli.options import MIN_ADDRESS_SPACE_BYTES as limit
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
taken = mmap.mmap(-1, limit - used - 30 * 2**20)
"""
# A worker has all of its own limit. It is below the one that the program insists on.
WITH_LITTLE_MEMORY_FOR_WORKERS = """
import resource, nsyspipe.cli.options
nsyspipe.cli.options.MIN_ADDRESS_SPACE_BYTES = 0
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 30 * 2**20,) * 2)
"""
WITH_FEW_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}))
"""


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "limit"),
    [(1, WITH_LITTLE_MEMORY), (2, WITH_LITTLE_MEMORY_FOR_WORKERS)],
    ids=["alone", "workers"],
)
def test_too_little_memory_is_said_in_words(forks, large, jobs, limit):
    """Where a library ends the process for want of memory, nobody can say a word: those limits are not here."""
    words = ("analyze", large, "-j", jobs)
    done = forks.run(*words, script=limit + CLI, env=environment(), timeout=DEADLINE_S)
    # A library in a worker may have had its own word.
    done.stderr = done.stderr[done.stderr.index("error: ") :]
    assert " memory" in assert_refused(done)


@pytest.mark.slow
def test_too_few_file_descriptors_are_said_in_words(forks, steady, attempts):
    numbers = (6, 10, 18)
    attempts(len(numbers))
    answers = [
        forks.run(
            *("analyze", steady, "-j", 2),
            script=WITH_FEW_FILES.format(number) + CLI,
            env=environment(),
            timeout=DEADLINE_S,
        )
        for number in numbers
    ]
    assert {done.returncode for done in answers} == {0, 2}
    for done in (one for one in answers if one.returncode):
        assert_refused(done)
        assert "Too many open files" in done.stderr, done
        assert "fix: " in done.stderr, done


# As the system and libraries say it.
MEMORY_INPUT = (
    MemoryError(),
    OSError(12, "Cannot allocate memory"),
    ImportError("libarrow.so: failed to map segment from shared object"),
    pa.ArrowException(
        "Unknown error: Failed to launch worker thread: Resource temporarily unavailable"
    ),
)
FILES_INPUT = (
    OSError(24, "Too many open files"),
    OSError(23, "Too many open files in system"),
)


@pytest.mark.parametrize("errors", [MEMORY_INPUT, FILES_INPUT], ids=["memory", "files"])
def test_what_a_machine_lacks_has_an_error_with_a_fix(errors, worded):
    texts = set()
    for error in errors:
        with pytest.raises(InputError) as caught, telling_shortage():
            raise error
        assert caught.value.fix, error
        texts.add("\n".join(caught.value.lines()))
    assert len(texts) == 1
    worded(texts)


@pytest.mark.parametrize("error", [OSError(2, "x"), ValueError("x")], ids=["no file", "a value"])
def test_another_error_is_not_taken_for_a_shortage(error):
    assert shortage(error) is None


@pytest.mark.parametrize("when", ["before it is opened", "while it is open", "at the end"])
def test_a_report_that_is_deleted_meanwhile_is_said_to_be(
    steady, when, monkeypatch, tmp_path, worded
):
    path = steady / "steady_0.sqlite"
    if when == "before it is opened":
        check = report.check_file
        monkeypatch.setattr(report, "check_file", lambda one: (check(one), one.unlink())[0])
    with (  # noqa: PT012
        pytest.raises(DamagedReportError) as caught,
        report.open_report(path) as opened,
    ):
        path.unlink()
        if when == "while it is open":
            opened.require("TARGET_INFO_GPU")
    worded(caught.value.lines())


@needs_proc
@pytest.mark.slow
def test_reports_that_are_deleted_while_workers_read_are_said_to_be(forks, large, tmp_path):
    folder = tmp_path / "reports"
    shutil.copytree(large, folder)
    process, _ = started(forks, folder, tmp_path)
    for path in folder.iterdir():
        path.unlink()
    errors = errors_of(process)
    assert errors.startswith("error: ")
    assert not (tmp_path / "run.json").exists()
