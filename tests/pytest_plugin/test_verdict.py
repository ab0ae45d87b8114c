"""A marked test passes, fails or is skipped as the gate of `nsyspipe diff` decides."""

import pytest

import nsyspipe
from tests.pytest_plugin.conftest import FAST, SHORT, SLOW, marked, outcomes


def test_a_faster_run_passes(comparison):
    assert outcomes(comparison(FAST, baseline="slow")) == {"passed": 1}


def test_a_slower_run_fails(comparison):
    assert outcomes(comparison(SLOW, baseline="fast")) == {"failed": 1}


# 131 ms are 29.7% more than 101 ms. Steps differ by up to 2 ms, so the 95% interval of the change
# is about 1.5 percentage points wide.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("max_regression", "outcome"),
    [("29%", "failed"), (29, "failed"), ("30%", "skipped"), ("31%", "passed"), (31, "passed")],
)
def test_a_regression_fails_from_its_limit_on(comparison, max_regression, outcome):
    result = comparison(SLOW, baseline="fast", max_regression=max_regression)
    assert outcomes(result) == {outcome: 1}


@pytest.mark.slow
def test_a_regression_of_two_percent_fails_if_no_limit_is_set(session, comparison, pytester):
    assert outcomes(comparison(SLOW, baseline="fast")) == {"failed": 1}
    pytester.makefile(".toml", nsyspipe="[diff]\nmin-effect = '31%'\n")
    assert outcomes(comparison(SLOW, baseline="fast")) == {"passed": 1}
    assert outcomes(comparison(SLOW, baseline="fast", max_regression="2%")) == {"failed": 1}


@pytest.mark.slow
def test_a_high_confidence_leaves_the_same_change_undecided(comparison):
    limit = {"baseline": "fast", "max_regression": "31%"}
    assert outcomes(comparison(SLOW, **limit, confidence=0.95)) == {"passed": 1}
    assert outcomes(comparison(SLOW, **limit, confidence=0.999999)) == {"skipped": 1}


def test_two_steps_are_too_few_so_the_test_is_skipped(comparison):
    assert outcomes(comparison(SHORT, baseline="fast")) == {"skipped": 1}


# `wide` has three ranks, the baseline has two.
@pytest.mark.slow
def test_runs_that_are_not_comparable_are_compared_by_force_only(comparison):
    wide = "REPORTS / 'wide'"
    assert outcomes(comparison(wide, baseline="slow")) == {"skipped": 1}
    assert outcomes(comparison(wide, baseline="slow", force=True)) == {"passed": 1}


@pytest.mark.slow
@pytest.mark.parametrize(("captures", "baseline"), [(SLOW, "fast"), (SHORT, "fast")])
def test_the_words_are_those_of_the_gate(comparison, made, captures, baseline):
    name = captures.rpartition(" ")[2].strip("'")
    gate = nsyspipe.diff(
        made / "store",
        nsyspipe.load(made / name, jobs=1),
        against=baseline,
        fail_on="regression",
    ).gate
    assert gate.headline in comparison(captures, baseline=baseline).stdout.str()


@pytest.mark.parametrize(
    ("captures", "baseline"),
    [(FAST, "slow"), (SLOW, "fast"), (SHORT, "fast")],
    ids=["passes", "fails", "undecided"],
)
def test_what_a_session_says_of_a_verdict(comparison, captures, baseline, shown, worded):
    worded(shown(comparison(captures, baseline=baseline)))


def test_several_captures_are_one_side(session):
    tests = (
        "@pytest.mark.step_time(baseline='fast', max_regression='50%')\n"
        f"def test_step(step_time):\n    difference = step_time({SLOW}, REPORTS / 'again')\n"
        "    assert len(difference.candidate.runs) == 2\n"
    )
    assert outcomes(session(tests)) == {"passed": 1}


@pytest.mark.slow
def test_a_capture_is_also_a_run_or_a_list_of_reports(session):
    files = "sorted((REPORTS / 'fast').glob('*.sqlite'))"
    run = "nsyspipe.load(REPORTS / 'fast', step='step')"
    for captures in (files, run):
        tests = "import nsyspipe\n" + marked(captures, baseline="slow")
        assert outcomes(session(tests)) == {"passed": 1}


def test_a_fixture_may_compare(session):
    tests = (
        f"@pytest.fixture\ndef difference(step_time):\n    return step_time({FAST})\n"
        "@pytest.mark.step_time(baseline='slow')\n"
        "def test_step(difference):\n    assert difference.verdict == 'improvement'\n"
    )
    assert outcomes(session(tests)) == {"passed": 1}


@pytest.mark.slow
def test_the_nearest_marker_counts(session):
    tests = (
        "@pytest.mark.step_time(baseline='fast')\nclass TestStep:\n"
        "    @pytest.mark.step_time(baseline='slow')\n"
        f"    def test_near(self, step_time):\n        step_time({FAST})\n"
        f"    def test_far(self, step_time):\n        step_time({SLOW})\n"
    )
    assert outcomes(session(tests)) == {"passed": 1, "failed": 1}


def test_a_regression_that_is_expected_is_an_xfail(session):
    tests = "@pytest.mark.xfail\n" + marked(SLOW, baseline="fast")
    assert outcomes(session(tests)) == {"xfailed": 1}
