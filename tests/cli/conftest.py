"""What the tests of commands share: the program in this process, and runs to give it."""

import pytest
from typer.testing import CliRunner

import nsyspipe
from nsyspipe.cli.app import app
from nsyspipe.store.write import save
from tests.build.plain_steps import scoreboard_runs
from tests.build.trace import TraceBuilder
from tests.cli.sick_run import write_sick
from tests.conftest import REAL, filled_once
from tests.report.conftest import pinned as pinned_report  # noqa: F401 - a fixture


@pytest.fixture
def call():
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=True)


@pytest.fixture
def invoke(call):
    return lambda *arguments: call("analyze", *arguments)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return a directory of runs, which tests read only; one for all processes of a test run.

    Saved each alone (`slow` and others, see `tests.build.plain_steps`) and together in `store`;
    their reports in `reports`; reports of a run without GPU activity, `empty`, and of one in which
    much could be better, `sick`; files that are neither.
    """
    return filled_once(tmp_path_factory, "made", make_runs)


def make_runs(folder):
    for name, run in scoreboard_runs(
        folder / "reports", ("slow", "fast", "again", "short", "wide")
    ).items():
        save(run, folder / name, events=True)
        save(run, folder / "store")
    for name in ("empty", "sick", "nothing"):
        (folder / name).mkdir()
    TraceBuilder().range(0, 10, "step 1").write(folder / "empty" / "empty_0.sqlite")
    write_sick(folder / "sick")
    (folder / "plain.txt").write_text("GPU0 is fine\n")
    (folder / "text.sqlite").write_text("no database")
    (folder / "bare.sqlite").touch()
    for suffix in (".html", ".json", ".pftrace", ".ipynb"):
        (folder / f"answer{suffix}").write_text("{}")
    (folder / "stub.sqlite").write_bytes(b"SQLite format 3\0")


@pytest.fixture
def beside(made, tmp_path, monkeypatch):
    """Return a directory of the test's own, the current one, in which those runs seem to lie."""
    monkeypatch.chdir(tmp_path)
    for entry in made.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


@pytest.fixture(scope="session")
def sick(made):
    return made / "sick"


@pytest.fixture
def worded(worded, request, monkeypatch):
    """Return `worded`, on a terminal of 100 columns, with the folders that tests share by a name."""
    monkeypatch.setenv("COLUMNS", "100")
    folders = {str(REAL): "REAL"}
    if "made" in request.fixturenames:
        folders[str(request.getfixturevalue("made"))] = "MADE"

    def compare(text, case=""):
        lines = [text] if isinstance(text, str) else text
        whole = "\n".join(lines).rstrip("\n")
        for folder, name in folders.items():
            whole = whole.replace(folder, name)
        worded(whole, case)

    return compare


def refused(done, *names):
    """Check that a command of `call` ended with an error of ours and printed nothing; return its text.

    The text has these names: options, files, runs.
    """
    assert isinstance(done.exception, nsyspipe.NsyspipeError), done.exception
    assert (done.exception.exit_code, done.stdout) == (2, "")
    text = "\n".join(done.exception.lines())
    assert [name for name in names if name not in text] == []
    return text
