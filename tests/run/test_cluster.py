"""Reports read, and exported, by the workers of a Dask cluster: the same bytes, and one sentence for whatever is wrong."""

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import nsyspipe
from nsyspipe.errors import InputError, OptionError
from nsyspipe.run.cluster import Cluster
from tests.build.fake_nsys import COPY, calls, fake_nsys, fake_report
from tests.build.programs import is_running, within
from tests.cli.tools import (
    LINES_AT_END,
    assert_refused,
    environment,
    nsyspipe_here,
    nsyspipe_run,
)
from tests.conftest import SAMPLES
from tests.forked import CLI, Forks
from tests.late_module import LateModule

distributed: Any = LateModule("distributed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.reads_anew,
    pytest.mark.usefixtures("with_distributed"),
]

DEADLINE_S = 90.0
REPORT = SAMPLES / "ddp-4gpu-before_0.sqlite"
eventually = functools.partial(within, DEADLINE_S)
# What a worker is made of where nsyspipe is missing, or another one.
WITHOUT = """
for name in [name for name in sys.modules if name.split(".")[0] == "nsyspipe"]:
    del sys.modules[name]
sys.modules["nsyspipe"] = None
"""
OLDER = "import nsyspipe.version; nsyspipe.version.__version__ = '0.0.1'"
PATIENCE = {
    "DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT": "2s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "2s",
}
TLS = {
    f"DASK_DISTRIBUTED__COMM__TLS__{name}": "{0}/one.pem"
    for name in (
        "CA_FILE",
        *(
            f"{who}__{what}"
            for who in ("CLIENT", "SCHEDULER", "WORKER")
            for what in ("CERT", "KEY")
        ),
    )
}
# Dask reads its settings when it is imported.
SETTINGS_READ = "import sys, dask\ndask.config.refresh()\n"


@pytest.fixture(scope="module")
def forks():
    """Return the server of all processes here: Dask's imports take as long as ours."""
    forks = Forks("distributed.cli.dask_scheduler", "distributed.cli.dask_worker")
    yield forks
    forks.close()


@pytest.fixture(scope="module")
def analysis(forks):
    """Return a function that starts the program, with settings of Dask's as variables."""

    def start(*words, **variables):
        return forks.start(*words, script=SETTINGS_READ + CLI, env=environment(**variables))

    return start


@pytest.fixture(scope="module")
def analyzed(forks):
    """Return a function that runs the program to its end."""

    def run(*words, **variables):
        script, env = SETTINGS_READ + CLI, environment(**variables)
        return forks.run(*words, script=script, env=env, timeout=DEADLINE_S)

    return run


@pytest.fixture(scope="module")
def with_distributed():
    pytest.importorskip("distributed")


class Machines:
    """A scheduler and workers as one starts them by hand, in a directory where no report is."""

    def __init__(self, forks, folder, started, protocol="tcp", **variables):
        self.forks, self.folder, self.started = forks, folder, started
        self.variables = variables
        self.file = folder / "scheduler.json"
        words = ("--host", f"{protocol}://127.0.0.1", "--port", 0, "--scheduler-file", self.file)
        self.scheduler = self.start("dask_scheduler", *words, first=WITHOUT)
        eventually(
            lambda: self.file.exists() and self.file.read_text().endswith("}"), "a scheduler"
        )
        self.address = json.loads(self.file.read_text())["address"]

    def start(self, module, *words, first="", **variables):
        code = f"{SETTINGS_READ}{first}\nfrom distributed.cli.{module} import main\nmain()"
        process = self.forks.start(
            *words,
            "--no-dashboard",
            script=code,
            cwd=self.folder,
            env=environment(**self.variables | variables),
            new_session=True,
        )
        self.started.append(process)
        return process

    def worker(self, *words, **more):
        process = self.start(
            "dask_worker", self.address, "--nthreads", 1, "--no-nanny", *words, **more
        )
        eventually(lambda: "Registered to" in process.errors(), "a worker")
        return process

    @contextlib.contextmanager
    def another_worker(self, **more):
        """Have one more worker, and wait until the scheduler knows that it is gone."""
        with distributed.Client(self.address, set_as_default=False) as client:
            n_before = n_workers(client)
            process = self.worker(**more)
            yield
            process.kill()
            eventually(lambda: n_workers(client) == n_before, "the worker is gone")


def n_workers(client):
    return client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.workers))


@contextlib.contextmanager
def started_processes():
    """Yield a list of processes, which end with the block."""
    started = []
    yield started
    for process in reversed(started):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def machines(forks, tmp_path_factory):
    """Return a function that starts a scheduler of the test's own."""
    with started_processes() as started:
        yield lambda *words, **more: Machines(
            forks, tmp_path_factory.mktemp("machines"), started, *words, **more
        )


@pytest.fixture(scope="module")
def cluster_with_worker(forks, tmp_path_factory):
    """Return a scheduler with one worker, which tests share and leave as it was."""
    with started_processes() as started:
        cluster = Machines(forks, tmp_path_factory.mktemp("machines"), started)
        cluster.worker()
        yield cluster


WRITTEN = {"--json": "json", "--html": "html", "--markdown": "md", "--perfetto": "pftrace"}


def outputs(folder, *words, run=nsyspipe_here, written=tuple(WRITTEN), **variables):
    """Return what an analysis prints and writes; `run` starts it in this process or in another one."""
    files = {option: f"run.{WRITTEN[option]}" for option in written}
    words = (
        *words,
        "--findings",
        "all",
        "--force",
        *(word for pair in files.items() for word in pair),
    )
    done = run("analyze", ".", *words, cwd=folder, **variables)
    assert done.returncode == 0, done
    return [done.stdout, done.stderr, *((folder / name).read_bytes() for name in files.values())]


def without_address(said):
    """Return what is said without the addresses, which another run does not have."""
    return re.sub(r"(?<=127\.0\.0\.1:)\d+", "PORT", said)


def without_reason(said):
    """Return what is said without the words of Dask, in brackets at the end of the line."""
    return re.sub(r" \(.*\)$", " (WHY)", without_address(said), flags=re.MULTILINE)


def test_all_outputs_are_those_of_one_process(steady, machines, analyzed, worded):
    cluster = machines()
    for _ in range(2):
        cluster.worker()
    here = outputs(steady, "-j", 1)
    started = functools.partial(nsyspipe_run, timeout=DEADLINE_S)
    assert outputs(steady, "--scheduler", cluster.address, run=started) == here
    # However it is named, the same cluster answers: one document is enough to tell.
    document = functools.partial(outputs, steady, written=["--json"])
    alone = document("-j", 1)
    assert document("--scheduler", cluster.file) == alone
    assert document(NSYSPIPE_SCHEDULER=cluster.address) == alone
    # That it was the cluster: nobody is there any more, and -j goes before the variable.
    cluster.scheduler.kill()
    assert document("-j", 1, NSYSPIPE_SCHEDULER=cluster.address) == alone
    said = assert_refused(
        analyzed("analyze", steady, NSYSPIPE_SCHEDULER=cluster.address, **PATIENCE)
    )
    worded(without_reason(said))


def test_every_command_that_reads_reports_takes_a_cluster(steady, cluster_with_worker):
    for words in ("doctor .", "diff . . --force", "whatif .", "compare ."):
        ways = [("-j", 1), ("--scheduler", cluster_with_worker.address)]
        here, there = (
            nsyspipe_here(*words.split(), "--json", "-", *way, cwd=steady) for way in ways
        )
        assert (there.returncode, there.stdout, there.stderr) == (
            here.returncode,
            here.stdout,
            here.stderr,
        ), words
        assert here.stdout.startswith("{"), words


def test_a_cluster_of_python_and_its_executor(steady):
    """`LocalCluster` of a process: the executor of its client is one as any other."""
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, dashboard_address=":0"
        ) as local,
        distributed.Client(local) as client,
    ):
        told = []
        run = nsyspipe.load(
            steady, executor=client.get_executor(), on_progress=lambda *done: told.append(done)
        )
        assert run.steps() == nsyspipe.load(steady, jobs=1).steps()
        assert told[-1] == (2, 2)
        cluster = Cluster(local.scheduler_address)
        assert [cluster.submit(pow, 2, n).result() for n in range(4)] == [1, 2, 4, 8]
        with pytest.raises(ZeroDivisionError):
            cluster.submit(divmod, 1, 0).result()
        cluster.shutdown()
        with pytest.raises(RuntimeError):
            cluster.submit(int)


def test_a_call_that_ends_its_workers_is_told(machines, worded):
    """Workers without a nanny: one that starts another worker may be too late when its own cluster closes."""
    cluster = machines(DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0")
    cluster.worker()
    running = Cluster(cluster.address)
    with pytest.raises(InputError) as caught:
        running.submit(os._exit, 1).result(DEADLINE_S)
    worded(without_address("\n".join(caught.value.lines())))
    running.shutdown()


def test_tls_is_that_of_dask(steady, machines, analyzed, tmp_path, worded):
    made = (
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-keyout",
                "key.pem",
                "-out",
                "cert.pem",
                "-days",
                "2",
                "-subj",
                "/CN=127.0.0.1",
            ],
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        if shutil.which("openssl")
        else None
    )
    if made is None or made.returncode:
        pytest.skip("no openssl")
    (tmp_path / "one.pem").write_text(
        (tmp_path / "key.pem").read_text() + (tmp_path / "cert.pem").read_text()
    )
    variables = {name: value.format(tmp_path) for name, value in TLS.items()}
    cluster = machines("tls", **variables)
    cluster.worker()
    assert cluster.address.startswith("tls://")
    done = analyzed("analyze", steady, "--scheduler", cluster.file, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    said = assert_refused(analyzed("analyze", steady, "--scheduler", cluster.file, **PATIENCE))
    # Behind "fix: " are words of our own; why no connection is made, Dask says.
    worded(said.partition("  fix: ")[2])


@pytest.mark.parametrize("first", [WITHOUT, OLDER], ids=["without", "another version"])
def test_workers_without_this_nsyspipe_are_named(steady, cluster_with_worker, first, worded):
    with cluster_with_worker.another_worker(first=first):
        done = nsyspipe_here("analyze", steady, "--scheduler", cluster_with_worker.address)
    said = assert_refused(done)
    assert ("0.0.1" in said.replace("127.0.0.1", "")) == (first == OLDER)
    worded(without_address(said).replace(nsyspipe.__version__, "VERSION"))


@pytest.mark.parametrize("first", [WITHOUT, OLDER], ids=["without", "another version"])
def test_a_worker_that_comes_later_is_refused_too(machines, first, worded):
    cluster = machines()
    running = Cluster(cluster.address)
    future = running.submit(int)
    cluster.worker(first=first)
    with pytest.raises(InputError) as caught:
        future.result(DEADLINE_S)
    assert nsyspipe.__version__ in caught.value.fix
    worded(
        without_address("\n".join(caught.value.lines())).replace(nsyspipe.__version__, "VERSION")
    )
    running.shutdown()


def test_what_only_this_process_sees_is_told_with_the_worker(steady, cluster_with_worker, worded):
    report, address = "/proc/self/cwd/steady_0.sqlite", cluster_with_worker.address
    done = nsyspipe_here("analyze", report, "--scheduler", address, cwd=steady)
    worded(without_address(assert_refused(done)))


@pytest.mark.parametrize("place", ["tcp://127.0.0.1:9", "nothing://h:1"])
def test_a_scheduler_that_does_not_answer_is_told(place, analyzed, worded):
    done = analyzed("analyze", REPORT, "--scheduler", place, **PATIENCE)
    worded(without_reason(assert_refused(done)))


def test_another_server_is_not_taken_for_a_lack_of_memory(analyzed, worded):
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        listening.settimeout(DEADLINE_S)

        def answer():
            with listening.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        pool.submit(answer)
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        said = assert_refused(analyzed("analyze", REPORT, "--scheduler", address))
        worded(without_address(said))


def test_a_scheduler_without_workers_is_told(steady, machines, analyzed, worded):
    cluster = machines()
    said = assert_refused(analyzed("analyze", steady, "--scheduler", cluster.file, **PATIENCE))
    assert cluster.address in said
    worded(without_address(said).replace(str(cluster.file), "FILE"))


def test_dask_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(OptionError, match="distributed"):
        Cluster("tcp://127.0.0.1:8786")


# A worker that is at a report when somebody looks, and takes its time.
SLOW = """
import time, nsyspipe.run.gather as gather
quick = gather.digest_report
def digest_report(path, *words, **options):
    open(f"{path}.begun", "w").close()
    time.sleep(4)
    return quick(path, *words, **options)
digest_report.__module__ = "nsyspipe.run.gather"
gather.digest_report = digest_report
"""


@pytest.fixture
def begun(analysis):
    """Return a function that starts an analysis, and returns it once a worker is at a report."""

    def start(folder, *words, **variables):
        process = analysis("analyze", folder, *words, **variables)
        eventually(lambda: list(folder.glob("*.begun")) or process.poll() is not None, "it reads")
        assert process.poll() is None
        return process

    return start


def test_the_report_of_a_worker_that_is_lost_is_read_again(steady, machines, begun):
    expected = nsyspipe_here("analyze", steady, "-j", 1).stdout
    cluster = machines()
    lost, _ = cluster.worker(first=SLOW), cluster.worker()
    process = begun(steady, "--scheduler", cluster.address)
    lost.kill()
    out, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, errors) == (0, expected, "")


@pytest.mark.parametrize("who", ["worker", "scheduler"])
def test_when_nobody_is_left_that_is_told(steady, machines, begun, who, worded):
    cluster = machines()
    worker = cluster.worker(first=SLOW)
    process = begun(steady, "--scheduler", cluster.address, **PATIENCE)
    (worker if who == "worker" else cluster.scheduler).kill()
    out, errors = process.communicate(timeout=DEADLINE_S)
    assert_refused(subprocess.CompletedProcess([], process.returncode, out, errors))
    worded(without_address(errors))


def n_tasks(client):
    """Return how many calls a scheduler and its workers know."""
    known = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    return known + sum(client.run(lambda dask_worker: len(dask_worker.state.tasks)).values())


def test_ctrl_c_leaves_nothing(steady, machines, begun, tmp_path):
    cluster = machines()
    cluster.worker(first=SLOW)
    process = begun(steady, "--scheduler", cluster.address, "--json", tmp_path / "run.json")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=DEADLINE_S)
    assert (output, len(errors.splitlines())) == ("", LINES_AT_END[signal.SIGINT])
    assert process.returncode == 130
    assert not (tmp_path / "run.json").exists()
    with distributed.Client(cluster.address, set_as_default=False) as client:
        eventually(lambda: n_tasks(client) == 0, "nothing is left to do")
    assert len(list(steady.glob("*.begun"))) == 1  # the other report was not begun


@pytest.fixture
def captures(tmp_path):
    for rank in range(3):
        fake_report(tmp_path / "captures" / f"run_{rank}.nsys-rep", rank)
    return tmp_path / "captures"


def test_workers_export_and_those_without_nsys_are_named(machines, captures, tmp_path, worded):
    nsys = fake_nsys(tmp_path / "tool")
    cluster = machines()
    cluster.worker(PATH="/nonexistent")
    done = nsyspipe_here("convert", captures, "--scheduler", cluster.address)
    if "exported" not in done.stderr:  # this machine has none in the usual places
        worded(without_address(assert_refused(done)), "no worker")
    cluster.worker(PATH=f"{tmp_path / 'tool'}{os.pathsep}{os.environ['PATH']}")
    done = nsyspipe_here("convert", captures.name, "--scheduler", cluster.file, cwd=tmp_path)
    assert done.returncode == 0, done
    worded(without_address(done.stderr), "one of two workers")
    assert done.stdout.splitlines() == [f"captures/run_{rank}.sqlite" for rank in range(3)]
    assert len(calls(nsys)) == 3
    again = nsyspipe_here("convert", captures, "--scheduler", cluster.file, "-q", "--nsys", nsys)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert len(calls(nsys)) == 3


def test_ctrl_c_ends_exports_on_workers(machines, captures, analysis, tmp_path):
    pid = tmp_path / "pid"
    fake_nsys(tmp_path / "tool", f"echo $$ > {pid}; sleep 300; {COPY}")
    cluster = machines()
    cluster.worker(PATH=f"{tmp_path / 'tool'}{os.pathsep}{os.environ['PATH']}")
    process = analysis("convert", captures, "--scheduler", cluster.address)
    number = int(eventually(lambda: pid.exists() and pid.read_text(), "an export"))
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=DEADLINE_S)
    assert (output, len(errors.splitlines())) == ("", LINES_AT_END[signal.SIGINT])
    assert process.returncode == 130
    eventually(lambda: not is_running(number), "nsys is gone")
    eventually(
        lambda: {one.suffix for one in captures.iterdir()} == {".nsys-rep"},
        "nothing is half-written",
    )
