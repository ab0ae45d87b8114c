"""Between which lines a thread held Python's lock, in words."""

import pytest

from nsyspipe.findings.host_lines import (
    LINE_UNKNOWN,
    LOCK_HELD,
    LOCK_HELD_BY_OTHER,
    LOCK_WAIT,
    LOCK_WAIT_SHARE,
    NOT_SEEN_IN_TIME,
)
from nsyspipe.report.findings import line_text, lock_text


def held(before, line, **more):
    """Return a figure of a finding: a lock that was held between two lines of one function."""
    figure = {"after_file": "train.py", "after_line": before, "after_function": "train"}
    figure |= {"file": "train.py", "line": line, "function": "train"}
    return figure | {"n_samples": 1065, "n_of_samples": 1288} | more


HELD = {
    "one line": held(97, 97),
    "a later line": held(187, 195),
    "an earlier line is in the next pass": held(191, 184),
    "an earlier line of another function": held(191, 21, function="forward"),
    "an earlier line of another file": held(191, 21, file="net.py"),
    "one line of two files": held(21, 21, file="net.py"),
}


@pytest.mark.parametrize("case", HELD)
def test_a_lock_that_the_main_thread_held(worded, case):
    evidence = {LINE_UNKNOWN: NOT_SEEN_IN_TIME, LOCK_HELD: HELD[case]}
    worded(line_text("launch-bound", evidence))


def test_without_known_lines_the_text_names_none():
    # A saved run of an earlier version has only the line at which the lock was released.
    evidence = {LINE_UNKNOWN: NOT_SEEN_IN_TIME}
    earlier = evidence | {"let_go_line": held(1, 2)}
    assert line_text("launch-bound", evidence) == line_text("launch-bound", earlier)


def test_a_lock_that_another_thread_held(worded):
    evidence = {LOCK_WAIT: 1_500_000, LOCK_WAIT_SHARE: 0.25}
    worded(lock_text(evidence | {LOCK_HELD_BY_OTHER: HELD["one line"]}))
