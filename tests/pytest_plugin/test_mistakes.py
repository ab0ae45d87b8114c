"""Mistakes are one clear message: of the marker at collection, of labels and reports in the test."""

import pytest

from tests.pytest_plugin.conftest import FAST, marked, outcomes


class _Huge(int):
    """Written as a short text, because Python refuses to write its digits."""

    def __repr__(self):
        return "10**5000"


HUGE = _Huge(10**5000)
MISTAKES = {
    "a misspelt argument": {"baseline": "slow", "max_regresion": "2%"},
    "an unknown argument": {"baseline": "slow", "metrics": "idle"},
    "no percentage": {"baseline": "slow", "max_regression": "fast"},
    "a ratio or a percentage": {"baseline": "slow", "max_regression": 0.02},
    "a flag as percentage": {"baseline": "slow", "max_regression": True},
    "a percentage of thousands of digits": {"baseline": "slow", "max_regression": HUGE},
    "a list as percentage": {"baseline": "slow", "max_regression": [2]},
    "no baseline": {},
    "a number as label": {"baseline": 1},
    "an empty label": {"baseline": ""},
    "a confidence of 95": {"baseline": "slow", "confidence": 95},
    "a text as flag": {"baseline": "slow", "force": "yes"},
}


@pytest.mark.parametrize("marker", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_marker_is_an_error_of_collection(comparison, marker, shown, worded):
    result = comparison(FAST, **marker)
    assert (result.ret, outcomes(result)) == (pytest.ExitCode.INTERRUPTED, {"errors": 1})
    worded(shown(result))


def test_an_argument_without_its_name_is_refused(session, shown, worded):
    tests = marked(FAST, baseline="slow").replace("baseline=", "")
    result = session(tests)
    assert outcomes(result) == {"errors": 1}
    worded(shown(result))


def test_all_mistakes_of_a_file_are_told_at_once(session):
    mistakes = [{"baseline": "slow", "force": 1}, {}, {"baseline": 1}]
    tests = "".join(marked(FAST, **marker) for marker in mistakes)
    for number in range(3):
        tests = tests.replace("test_step(", f"test_{number}(", 1)
    result = session(tests)
    assert outcomes(result) == {"errors": 1}
    assert sum(f"::test_{number}: " in result.stdout.str() for number in range(3)) == 3


@pytest.mark.slow
def test_a_mistake_in_the_marker_of_a_class_is_found(session):
    tests = (
        "@pytest.mark.step_time(baseline=1)\nclass TestStep:\n    def test(self, step_time): 0\n"
    )
    assert outcomes(session(tests)) == {"errors": 1}


@pytest.mark.parametrize(
    ("tests", "outcome"),
    [
        ("@pytest.mark.step_time(baseline='slow')\ndef test(): 0\n", "errors"),
        ("@pytest.mark.step_time(baseline='slow')\ndef test(step_time): 0\n", "failed"),
        ("def test(step_time): 0\n", "errors"),
        ("@pytest.mark.step_time(baseline='slow')\ndef test(step_time): step_time()\n", "failed"),
    ],
    ids=["no fixture", "no comparison", "no marker", "no capture"],
)
def test_a_test_that_compares_nothing_does_not_pass(session, tests, outcome, shown, worded):
    result = session(tests)
    assert outcomes(result) == {outcome: 1}
    worded(shown(result))


@pytest.mark.slow
def test_a_test_that_fails_before_it_compares_says_why(session):
    tests = "@pytest.mark.step_time(baseline='slow')\ndef test(step_time): assert 0, 'mine'\n"
    result = session(tests)
    assert outcomes(result) == {"failed": 1}
    assert "AssertionError: mine" in result.stdout.str()


@pytest.mark.parametrize(
    ("baseline", "store"),
    [("slwo", "store"), ("of-slow", "store"), ("slow", "fast"), ("slow", "store:slow")],
    ids=["unknown label", "an id", "reports", "one run"],
)
def test_an_unknown_label_is_an_error(comparison, made, baseline, store, shown, worded):
    result = comparison(FAST, baseline=baseline, store=made / store)
    assert outcomes(result) == {"errors": 1}
    worded(shown(result))


@pytest.mark.parametrize("captures", ["'missing.sqlite'", "__file__", "7"])
def test_an_unusable_report_fails_with_one_message(comparison, captures, shown, worded):
    result = comparison(captures, baseline="slow")
    assert outcomes(result) == {"failed": 1}
    worded(shown(result))


def test_a_setting_that_cannot_be_used_is_an_error(comparison, pytester, shown, worded):
    pytester.makefile(".toml", nsyspipe="[diff]\nmin-effect = 'fast'\n")
    result = comparison(FAST, baseline="slow")
    assert outcomes(result) == {"errors": 1}
    worded(shown(result))


def test_a_bug_keeps_its_traceback(comparison):
    result = comparison("type('X', (), {'__fspath__': lambda self: 1 / 0})()", baseline="slow")
    assert "ZeroDivisionError" in result.stdout.str()


def test_a_name_cannot_drive_the_terminal(comparison):
    text = comparison(repr("\x1b[2Jmissing.sqlite"), baseline="slow").stdout.str()
    assert "\x1b[2J" not in text
    assert "\N{REPLACEMENT CHARACTER}[2Jmissing.sqlite" in text


def test_a_store_with_a_nul_is_an_error_in_words(comparison, pytester):
    pytester.makeini("[pytest]\nnsyspipe_store = a\0b\n")
    result = comparison(FAST, baseline="slow", store=None)
    assert outcomes(result) == {"errors": 1}
    assert "contains a NUL character" in result.stdout.str()
    assert "ValueError" not in result.stdout.str()


def test_the_name_of_a_missing_store_cannot_drive_the_terminal(comparison):
    result = comparison(FAST, baseline="slow", store="\x1b[2Jmissing")
    assert outcomes(result) == {"skipped": 1}
    assert "\x1b[2J" not in result.stdout.str()
