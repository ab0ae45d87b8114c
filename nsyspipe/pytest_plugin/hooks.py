"""What pytest calls: options, the marker and the fixture.

pytest imports this file in every session, so it needs only the standard library and pytest. The
rest of nsyspipe is imported for a test that has the marker.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nsyspipe.pytest_plugin.step_time import StepTime

MARKER = "step_time"
# Of a report of a test: the property that has the verdict of each comparison.
VERDICT_PROPERTY = "nsyspipe_step_time"
_STORE = "nsyspipe_store"
_STORE_HELP = "Run store with the baselines of tests that have the marker step_time."
_MARKER_HELP = (
    "step_time(baseline, max_regression='2%', confidence=0.95, force=False): compare the captures "
    "of the test with the runs of a label in a run store (nsyspipe)."
)
_ADD_FIXTURE = "add the argument step_time to the test, and call step_time(REPORTS) in it"
_STEP_TIME: pytest.StashKey[StepTime] = pytest.StashKey()


# --- options --------------------------------------------------------------------------------------
def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the setting that name the run store."""
    group = parser.getgroup("nsyspipe")
    group.addoption("--nsyspipe-store", metavar="STORE", help=_STORE_HELP)
    parser.addini(_STORE, f"{_STORE_HELP} Relative to the directory of this file.")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER_HELP)


def _store_of(config: pytest.Config) -> Path | None:
    """Return the run store by its absolute path; None if neither option nor setting names one."""
    option: str | None = config.getoption(_STORE)
    if option:
        return config.invocation_params.dir / option
    setting: str = config.getini(_STORE)
    if not setting:
        return None
    directory = config.rootpath if config.inipath is None else config.inipath.parent
    return directory / setting


# --- collection -----------------------------------------------------------------------------------
@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Report an error of collection for tests whose marker has wrong arguments.

    So the mistake is shown before any test runs, also in a worker of pytest-xdist.
    """
    report = yield
    items = [node for node in report.result or () if isinstance(node, pytest.Item)]
    mistakes = [text for text in map(_mistake_of, items) if text is not None]
    if mistakes:
        report.outcome = "failed"
        report.longrepr = "\n".join(mistakes)
        report.result = []
    return report


def _mistake_of(item: pytest.Item) -> str | None:
    """Return the mistake in the marker of a test; None without a mistake, or without a marker."""
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return None
    from nsyspipe.errors import NsyspipeError, OptionError
    from nsyspipe.pytest_plugin.marker import StepTimeRule

    try:
        # This raises the error for a wrong argument.
        _ = StepTimeRule.of_marker(marker.args, marker.kwargs)
        if MARKER not in getattr(item, "fixturenames", ()):
            problem = "the test does not use the fixture step_time"
            raise OptionError(f"@pytest.mark.{MARKER}", problem, fix=_ADD_FIXTURE)
    except NsyspipeError as error:
        return f"{item.nodeid}: {error}"
    return None


# --- tests ----------------------------------------------------------------------------------------
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail a test without a baseline, before its fixtures make a capture.

    A capture may take minutes.
    """
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return
    from nsyspipe.pytest_plugin.step_time import StepTime

    comparison = StepTime.of_marker(marker, _store_of(item.config), item.path.parent)
    comparison.check_baseline()
    item.stash[_STEP_TIME] = comparison


@pytest.fixture
def step_time(request: pytest.FixtureRequest) -> StepTime:
    """Compare captures with the baseline of the marker step_time: call it with the reports."""
    comparison = request.node.stash.get(_STEP_TIME, None)
    if comparison is None:
        text = 'The fixture step_time needs the marker: @pytest.mark.step_time(baseline="main")'
        pytest.fail(text, pytrace=False)
    return comparison  # type: ignore[no-any-return] # a node has any attributes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that has the marker but compares nothing. Otherwise it would always pass.

    The verdicts of its comparisons become properties of the report of the test.
    """
    outcome = yield
    comparison = item.stash.get(_STEP_TIME, None)
    if comparison is None:
        return outcome
    if not comparison.verdicts:
        text = "The test compared nothing with the baseline. Call step_time(REPORTS) in it."
        pytest.fail(text, pytrace=False)
    item.user_properties += [(VERDICT_PROPERTY, verdict) for verdict in comparison.verdicts]
    return outcome


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the verdict of each test that passed."""
    lines = []
    for report in terminalreporter.getreports("passed"):
        for name, verdict in report.user_properties:
            # The setup and the teardown of a test have reports with the same properties.
            if name == VERDICT_PROPERTY and report.when == "call":
                indented_lines = [f"  {line}" for line in verdict.splitlines()]
                lines += [report.nodeid, *indented_lines]
    if lines:
        terminalreporter.section("step time against the baseline")
        for line in lines:
            terminalreporter.write_line(line)
