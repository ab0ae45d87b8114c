"""Without a baseline a test is skipped before it makes a capture; the store is found by option or setting."""

import pytest

from tests.pytest_plugin.conftest import FAST, marked, outcomes

WITH_CAPTURE = (
    "@pytest.fixture(scope='session')\ndef capture():\n    raise AssertionError('captured')\n"
    + marked(FAST, baseline="slow").replace("(step_time)", "(capture, step_time)")
)


@pytest.fixture
def stores(pytester):
    """Return stores without a run by their names; one has a file that keeps its directory in git."""
    empty = pytester.mkdir("empty")
    kept = pytester.mkdir("kept")
    (kept / ".gitkeep").touch()
    return {"none": None, "missing": "missing", "empty": empty.name, "kept": kept.name}


@pytest.mark.parametrize("name", ["none", "missing", "empty", "kept"])
def test_a_test_without_a_baseline_is_skipped(session, stores, name, shown, worded):
    result = session(WITH_CAPTURE, store=stores[name])
    assert outcomes(result) == {"skipped": 1}
    worded(shown(result))


def test_with_a_baseline_the_capture_is_made(session):
    assert outcomes(session(WITH_CAPTURE)) == {"errors": 1}


def test_a_test_that_is_skipped_anyway_needs_no_baseline(session):
    tests = "@pytest.mark.skip\n" + marked(FAST, baseline="unknown")
    assert outcomes(session(tests)) == {"skipped": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "arguments", "outcome"),
    [
        ("runs", (), "passed"),
        ("missing", (), "skipped"),
        ("missing", ("--nsyspipe-store=../runs",), "passed"),
        ("runs", ("--nsyspipe-store=missing",), "skipped"),
    ],
)
def test_a_setting_is_seen_from_its_file_and_an_option_from_the_current_directory(
    session, pytester, made, monkeypatch, setting, arguments, outcome
):
    pytester.makeini(f"[pytest]\nnsyspipe_store = {setting}\n")
    (pytester.path / "runs").symlink_to(made / "store")
    monkeypatch.chdir(pytester.mkdir("inside"))
    tests = "import os\n" + marked(FAST, baseline="slow")
    tests = tests.replace("    step_time(", "    os.chdir('/')\n    step_time(")
    assert outcomes(session(tests, "..", *arguments, store=None)) == {outcome: 1}
