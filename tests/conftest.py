"""Shared fixtures: real reports, unpacked once; small built runs."""

import fcntl
import functools
import gc
import lzma
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import typer.testing
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

import nsyspipe
from nsyspipe.cli.app import app
from nsyspipe.store import read
from tests.build.plain_steps import scoreboard_runs
from tests.build.trace import TraceBuilder, steady_rank
from tests.forked import Forks
from tests.golden import words
from tests.pairs import Captures
from tests.remembered import ReadOnce, remembered_size

# For tests of the pytest plugin.
pytest_plugins = ["pytester"]

GC_THRESHOLDS = 10_000, 20, 50
REAL = Path(__file__).with_name("real")
SAMPLES = Path(__file__).parent.parent / "sample_reports"
FROZEN = Path(__file__).with_name("golden") / "frozen"
WORDS = FROZEN.with_name("words")

# Each worker has a core of its own. A second thread costs more than it saves on small tables.
if "PYTEST_XDIST_WORKER" in os.environ:
    pa.set_cpu_count(1)


# In CI they are the same each time: what more of them would find they have found.
N_EXAMPLES = 50 if "CI" in os.environ else 25
settings.register_profile(
    "fewer", max_examples=N_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fewer")


def examples(number):  # so many in CI, at a desk a quarter, others each time
    number = number if "CI" in os.environ else max(10, number // 4)
    return settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected outputs")
    parser.addoption(
        "--without-goldens", action="store_true", help="compare no words and no goldens"
    )
    parser.addoption("--kernels", type=int, default=1_000_000, help="bench: kernels per report")
    parser.addoption("--ranks", type=int, default=8, help="bench: reports")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Keep the collector still while tests are collected, and from what stays: it costs a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Arrow and numpy hold most memory, and nothing in cycles.
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


def pytest_terminal_summary(terminalreporter):
    """Print the table of attacks: by file, how many attempts were made and how many of them got through."""
    table = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            place, _, _ = report.nodeid.partition("::")
            if not place.startswith("tests/attack/"):
                continue
            made = table.setdefault(Path(place).stem.removeprefix("test_"), [0, 0])
            made[0] += dict(report.user_properties).get("attempts", 1)
            made[1] += outcome != "passed"
    if not table:
        return
    terminalreporter.section("attacks")
    terminalreporter.write_line(f"{'on':<28} {'attempts':>9} {'failures':>9}")
    for name, (n_attempts, n_failures) in sorted(table.items()):
        terminalreporter.write_line(f"{name:<28} {n_attempts:>9} {n_failures:>9}")
    n_attempts, n_failures = (sum(made[at] for made in table.values()) for at in (0, 1))
    terminalreporter.write_line(f"{'all':<28} {n_attempts:>9} {n_failures:>9}")


# These read all captures, and one worker reads each of them once.
READ_CAPTURES = (
    "tests/evals/test_evals.py",
    "tests/findings/test_bounds.py",
    "tests/findings/test_real_findings.py",
    "tests/golden/test_frozen.py",
    "tests/redact/test_redact_analysis.py",
    "tests/replay/test_accuracy.py",
    "tests/replay/test_expected_savings.py",
    "tests/replay/test_whatif_real.py",
    "tests/report/test_perfetto.py",
    "tests/run/test_real_parallelism.py",
    "tests/run/test_real_reports.py",
    "tests/run/test_step_sources.py",
)
CAPTURES = "captures"
# These walk through the syntax trees of the package, and one worker parses it once.
READ_SYNTAX = (
    "tests/contract/test_density.py",
    "tests/contract/test_imports.py",
    "tests/contract/test_labels_of_outputs.py",
    "tests/contract/test_problem_codes.py",
    "tests/contract/test_sentences.py",
)
# What takes longest of the slow tests, the longest first. By itself pytest-xdist begins with the
# files that have the most tests.
LONGEST = (
    "nsys",
    CAPTURES,
    "tests/run/test_cluster.py",
    "tests/attack/test_current_directory.py",
    "tests/attack/test_processes.py",
    "tests/property/test_cross_rank.py",
    "tests/attack/test_saved_runs.py",
    "tests/property/test_store.py",
    "tests/property/test_operations.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give the tests of a file to one worker, which makes what they share once, and all with a real nsys to one."""
    has_slow_tests = "not slow" not in config.option.markexpr

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path = nodeid.partition("::")[0]
            # Several nsys at once on two cores lose their agents.
            if path.startswith("tests/with_nsys/"):
                return "nsys"
            if path in READ_SYNTAX:
                return "syntax"
            return CAPTURES if has_slow_tests and path in READ_CAPTURES else path

        def _assign_work_unit(self, node):
            # One worker begins with what waits for programs: at the end the others would wait with
            # it.
            waiting = [scope for scope in self.workqueue if scope.startswith("tests/launchers/")]
            longest = [scope for scope in LONGEST if has_slow_tests and scope in self.workqueue]
            if waiting and node is next(iter(self.nodes)):
                self.workqueue.move_to_end(waiting[0], last=False)
            elif longest:
                # No worker is left alone with one of them at the end.
                self.workqueue.move_to_end(longest[0], last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log)


def pytest_configure(config):
    config.pluginmanager.register(ReadOnce())


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable():
    """Send what a worker reports without the keywords of the test: they are half of it, and nobody asks for them."""
    message = yield
    if message is not None and "keywords" in message:
        message["keywords"] = {}
    return message


@pytest.fixture(scope="session", autouse=True)
def _shared(tmp_path_factory):
    """Keep the user's own state directory out of the tests, where captures make a key; do once what is always the same."""
    if (
        "PYTEST_XDIST_WORKER" in os.environ
    ):  # as many processes as cores already: threads would wait for each other
        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "check_size", remembered_size())
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.testing._get_command))
        yield


@pytest.fixture(scope="session")
def forks():
    """Return the server from which a test forks the program, where it needs a process of its own."""
    forks = Forks()
    yield forks
    forks.close()


def filled_once(tmp_path_factory, name, fill):
    """Return a folder of this name that one process of a test run fills, for all of them to read."""
    base, is_shared = tmp_path_factory.getbasetemp(), "PYTEST_XDIST_WORKER" in os.environ
    folder = (base.parent if is_shared else base) / name
    whole = folder.with_name(f"{name}.whole")
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            folder.mkdir()
            fill(folder)
            whole.touch()
    return folder


def unpack_real_reports(folder):
    for packed in sorted(REAL.glob("*.xz")):
        unpack(packed, folder)


def unpack_reports_of_programs(folder):
    for packed in sorted(REAL.glob("[24]gpu/*.xz")):
        unpack(packed, folder / packed.parent.name)


def unpack(packed, folder):
    folder.mkdir(exist_ok=True)
    with lzma.open(packed) as source, (folder / packed.stem).open("wb") as target:
        shutil.copyfileobj(source, target)


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """Return the folder of real reports (see tests/real/PROVENANCE.md), unpacked; one for all processes of a test run."""
    return filled_once(tmp_path_factory, "real", unpack_real_reports)


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """Return the folder of real reports of other programs, unpacked, in `2gpu` and `4gpu`; one for all processes."""
    return filled_once(tmp_path_factory, "programs", unpack_reports_of_programs)


@pytest.fixture(scope="session")
def captures(real, request):
    # Few tests need the reports of other programs, and unpacking them takes seconds.
    return Captures(real, lambda: request.getfixturevalue("programs"))


@pytest.fixture
def runs(captures):
    return captures.run


@pytest.fixture
def printed(monkeypatch):
    """Return a function that runs the program where a user would, in the clone: what it prints."""
    monkeypatch.chdir(SAMPLES.parent)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments):
        result = typer.testing.CliRunner().invoke(app, [*map(str, arguments)], prog_name="nsyspipe")
        told = [line for line in result.stderr.splitlines() if not line.startswith("written: ")]
        assert (result.exit_code, result.exception, told) == (0, None, [])
        return result.stdout

    return run


@pytest.fixture
def pinned(request):
    """Return a function that compares one output with the committed file below `golden/frozen`, or commits it."""

    def compare(name, text):
        expected = FROZEN / name
        if request.config.getoption("--update-golden"):
            expected.parent.mkdir(parents=True, exist_ok=True)
            expected.write_text(text, encoding="utf-8")
        if not request.config.getoption("--without-goldens"):
            assert text == expected.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def worded(request):
    """Return a function that compares a text with the row of this test below `golden/words`, or commits it.

    ``worded(text)`` takes a string, or several, one a line. A test that has several texts names
    each: ``worded(text, case)``. The rows of a module are one file,
    `golden/words/<folder>/<module>.txt`; delete it before an update to lose rows that no test asks
    for.
    """
    place = request.path.relative_to(WORDS.parent.parent)
    file = WORDS / place.with_name(place.stem.removeprefix("test_") + ".txt")
    test = words.row_of(request.node.name)
    compared = set()

    def compare(text, case=""):
        row = f"{test}: {case}" if case else test
        assert row not in compared, f"two texts of one name: {row}"
        compared.add(row)
        actual = text if isinstance(text, str) else "\n".join(text)
        if "tmp_path" in request.fixturenames:
            actual = actual.replace(str(request.getfixturevalue("tmp_path")), "TMP")
        if request.config.getoption("--update-golden"):
            words.write(file, words.read(file) | {row: actual})
        rows = words.read(file)
        assert row in rows, f"{file} has no row of this name: pytest --update-golden"
        if not request.config.getoption("--without-goldens"):
            assert actual == rows[row]

    return compare


@pytest.fixture(scope="session")
def steady_run(tmp_path_factory):
    """Return the run of a rank pair of four equal steps, of which two count; see `tests.build.trace.steady_rank`."""
    folder = tmp_path_factory.mktemp("steady")
    for rank in range(2):
        steady_rank(rank).write(folder / f"steady_{rank}.sqlite")
    return nsyspipe.load(folder, run_id="r1", jobs=1)


@pytest.fixture(scope="session")
def without_gpu(tmp_path_factory):
    path = tmp_path_factory.mktemp("empty") / "empty_0.sqlite"
    return nsyspipe.load(TraceBuilder().range(0, 10, "step 1").write(path), jobs=1)


@pytest.fixture(scope="session")
def board_runs(tmp_path_factory):
    return scoreboard_runs(tmp_path_factory.mktemp("board"))


@pytest.fixture
def steady(tmp_path):
    for rank in range(2):
        steady_rank(rank).write(tmp_path / f"steady_{rank}.sqlite")
    return tmp_path
