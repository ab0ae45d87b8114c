"""A store whose runs differ by a known time, and pytest sessions that have the plugin."""

import os
import re
import tomllib
from pathlib import Path

import pytest

# A session of the plugin in this process forgets what it imports, and numpy, Arrow and pandas
# cannot be imported twice. So all that a comparison imports is imported here.
import nsyspipe
import nsyspipe.report.html.notebook
import nsyspipe.report.public.report_run
import nsyspipe.report.public.saved_run
import nsyspipe.run.gather
from nsyspipe.store.write import save
from tests.build.plain_steps import scoreboard_runs
from tests.conftest import SAMPLES, filled_once

# Of the plugins that may be installed, these change the order of tests, and leave files.
WITHOUT_OTHERS = ("-p", "no:randomly", "-p", "no:cacheprovider", "-rs")
FAST, SLOW, SHORT = (f"REPORTS / {name!r}" for name in ("fast", "slow", "short"))
# The head of a session, its progress, and the line with its time.
_OF_PYTEST = re.compile(
    r"=+ (test session starts|\d+ .* in ).*=+|platform |rootdir: |plugins: |configfile: "
    r"|collect(ed|ing) |test_step.py [.A-Za-z]+ "
)
# What stands around the titles of sections.
_RULE = re.compile(r"([=_!])\1{2,}")
METADATA = "Metadata-Version: 2.1\nName: nsyspipe\nVersion: 0\n"


def write_entry_points(folder: Path) -> Path:
    """Write what an installation says of the plugin in pyproject.toml, so that pytest finds it."""
    project = tomllib.loads((SAMPLES.parent / "pyproject.toml").read_text("utf-8"))["project"]
    entries = project["entry-points"]["pytest11"].items()
    lines = ["[pytest11]", *(f"{name} = {module}" for name, module in entries)]
    installed = folder / "nsyspipe-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(METADATA)
    (installed / "entry_points.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    return write_entry_points(tmp_path_factory.mktemp("installed"))


def make_runs(folder):
    # The median step takes 101 ms in `fast`, and 131 ms in `slow` and `again`. `short` has two steps.
    names = ("slow", "fast", "short", "again", "wide")
    scoreboard_runs(folder, names)
    for name in ("slow", "fast"):
        run = nsyspipe.load(folder / name, label=name, run_id=f"of-{name}", jobs=1)
        save(run, folder / "store")


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return a folder of runs by their names, and a store in which each run has its name as label."""
    return filled_once(tmp_path_factory, "step_time", make_runs)


@pytest.fixture
def session(pytester, installed, made, monkeypatch):
    """Return a function that runs pytest on a text of tests, beside those runs: its result.

    `REPORTS` is the folder of the runs in these tests.
    """
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), str(SAMPLES.parent)]))
    pytester.syspathinsert(installed)

    def run(tests, *arguments, store=made / "store", is_own_process=False):
        head = f"import pytest\nfrom pathlib import Path\nREPORTS = Path({str(made)!r})\n"
        pytester.makepyfile(test_step=head + tests)
        # Without a file of settings, pytest takes a directory above for that of the tests.
        if not (pytester.path / "tox.ini").exists():
            pytester.makeini("[pytest]\n")
        words = [*WITHOUT_OTHERS, *arguments]
        if store is not None:
            words.append(f"--nsyspipe-store={store}")
        if is_own_process:
            return pytester.runpytest_subprocess(*words)
        return pytester.runpytest_inprocess(*words)

    return run


@pytest.fixture
def comparison(session):
    """Return a function that runs one test with these arguments of the marker: its result."""

    def run(captures, *arguments, store=..., **marker):
        tests = marked(captures, **marker)
        return (
            session(tests, *arguments) if store is ... else session(tests, *arguments, store=store)
        )

    return run


def marked(captures, **marker):
    """Return a test with this marker that compares captures, which are runs or texts of Python."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in marker.items())
    return (
        f"@pytest.mark.step_time({arguments})\n"
        f"def test_step(step_time):\n    step_time({captures})\n"
    )


def outcomes(result):
    """Return how many tests had each outcome, without outcomes that none had."""
    return {name: number for name, number in result.parseoutcomes().items() if number}


@pytest.fixture
def shown(made, pytester):
    """Return a function that returns what a session printed of its tests: without times and paths."""

    def text_of(result):
        text = result.stdout.str().replace(str(made), "MADE").replace(str(pytester.path), "HERE")
        text = text.replace(os.path.relpath(made, pytester.path), "MADE")
        lines = [line for line in text.splitlines() if line and not _OF_PYTEST.match(line)]
        return "\n".join(_RULE.sub(r"\1\1", line) for line in lines)

    return text_of
