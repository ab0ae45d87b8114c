"""What the plugin means for a session: what it imports, without it, and in several processes."""

import json

import pytest

from tests.pytest_plugin.conftest import FAST, SLOW, marked, outcomes

UNMARKED = "def test(): pass\n"
# Writes which modules were imported, when the session ends.
CONFTEST = """
import json, sys
def pytest_unconfigure(config):
    with open("modules.json", "w") as file:
        json.dump(sorted(sys.modules), file)
"""
OF_THE_PLUGIN = {
    "nsyspipe",
    "nsyspipe.pytest_plugin",
    "nsyspipe.pytest_plugin.hooks",
    "nsyspipe.version",
}


@pytest.fixture
def modules(session, pytester):
    """Return a function that runs tests in a new process: the modules that were imported there."""
    pytester.makeconftest(CONFTEST)

    def run(tests, *arguments):
        session(tests, *arguments, store=None, is_own_process=True)
        return set(json.loads((pytester.path / "modules.json").read_text()))

    return run


@pytest.mark.slow
def test_a_session_without_the_marker_imports_nothing_but_the_plugin(modules):
    without = modules(UNMARKED, "-p", "no:nsyspipe")
    assert modules(UNMARKED) - without == OF_THE_PLUGIN


@pytest.mark.slow
def test_a_skipped_comparison_imports_no_arrow_and_no_numpy(modules):
    imported = modules(marked(FAST, baseline="slow"))
    assert "nsyspipe.pytest_plugin.step_time" in imported
    assert imported.isdisjoint({"numpy", "pandas", "pyarrow", "sqlalchemy"})


def test_the_plugin_can_be_switched_off(session):
    result = session(UNMARKED, "-p", "no:nsyspipe", store=None)
    assert outcomes(result) == {"passed": 1}
    assert "step_time" not in session("", "--markers", "-p", "no:nsyspipe", store=None).stdout.str()


def test_marker_and_option_are_in_the_help(session):
    assert "@pytest.mark.step_time(" in session("", "--markers", store=None).stdout.str()
    assert "--nsyspipe-store=STORE" in session("", "--help", store=None).stdout.str()


@pytest.mark.slow
def test_workers_compare_and_their_verdicts_are_printed(session):
    tests = marked(FAST, baseline="slow").replace("test_step", "test_fast")
    tests += marked(SLOW, baseline="fast").replace("test_step", "test_slow")
    tests += marked(SLOW, baseline="unknown").replace("test_step", "test_unknown")
    result = session(tests, "-n", "2", is_own_process=True)
    assert outcomes(result) == {"passed": 1, "failed": 1, "errors": 1}
    assert "test_step.py::test_fast\n  Gate passed" in result.stdout.str()


@pytest.mark.slow
def test_workers_tell_a_mistake_in_the_marker(session):
    result = session(marked(FAST, baseline=1), "-n", "2", is_own_process=True)
    assert outcomes(result) == {"errors": 1}
    assert "test_step.py::test_step: baseline=1" in result.stdout.str()
    assert "INTERNALERROR" not in result.stdout.str()


@pytest.mark.slow
def test_a_verdict_is_a_property_of_the_test(session, pytester):
    session(marked(FAST, baseline="slow"), "--junitxml=tests.xml")
    assert (
        'name="nsyspipe_step_time" value="Gate passed' in (pytester.path / "tests.xml").read_text()
    )
