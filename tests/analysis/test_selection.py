"""Which steps count in a run's figures."""

from __future__ import annotations

import numpy as np
import pytest

from nsyspipe.analysis.steps import select_steps
from nsyspipe.errors import OptionError
from tests.build.make import ints


def selected(rows, n_ranks, skip_first=None):
    """Select among (step, start, is complete), one per (rank, step) with a window."""
    step, start = ints(*(row[0] for row in rows)), ints(*(row[1] for row in rows))
    complete = np.array([row[2] for row in rows], np.bool_)
    found = select_steps(step, start, complete, n_ranks, skip_first)
    return found.steps.tolist(), found.skipped.tolist(), found.is_fallback


def rank(*complete, first=0):
    """Windows of one rank, numbered from `first`, each 10 ns after the one before."""
    return [(first + at, 10 * (first + at), flag) for at, flag in enumerate(complete)]


FOUR = rank(True, True, True, False)


def test_auto_skips_the_first_complete_step_when_another_remains():
    assert selected(FOUR, 1) == ([1, 2], [0], False)
    assert selected(rank(True, True), 1) == ([1], [0], False)


def test_auto_keeps_the_only_complete_step():
    assert selected(rank(True, False), 1) == ([0], [], False)


def test_the_first_complete_step_is_skipped_not_the_first_step():
    assert selected(rank(False, True, True, False), 1) == ([2], [1], False)


@pytest.mark.parametrize(("n", "steps", "skipped"), [(0, [0, 1, 2], []), (1, [1, 2], [0]), (2, [2], [0, 1])])
def test_a_number_skips_that_many_complete_steps(n, steps, skipped):
    assert selected(FOUR, 1, n) == (steps, skipped, False)


@pytest.mark.parametrize("n", [3, 4, 10**6])
def test_skipping_all_complete_steps_is_an_error_that_says_how_many_there_are(n):
    with pytest.raises(OptionError) as caught:
        selected(FOUR, 1, n)
    assert caught.value.subject == f"--skip-first {n}"
    assert "3 are complete" in caught.value.problem
    assert "--skip-first 2" in caught.value.fix


def test_steps_are_complete_only_if_they_are_on_every_rank():
    # 0 is missing on rank 1, 1 is cut off there, 4 is complete on rank 1 but missing on rank 0.
    rows = FOUR + rank(False, True, True, True, False, first=1)[:4]
    assert selected(rows, 2, 0) == ([2], [], False)


def test_steps_are_in_order_of_time_and_not_of_number():
    rows = [(7, 0, True), (3, 10, True), (5, 20, True), (4, 30, False)]
    assert selected(rows, 1) == ([3, 5], [7], False)


def test_the_order_of_rows_does_not_matter():
    two = FOUR + [(step, start + 3, flag) for step, start, flag in FOUR]
    assert selected(two, 2) == selected(two[::-1], 2) == ([1, 2], [0], False)


def test_without_a_complete_step_those_that_every_rank_has_are_used_and_none_is_skipped():
    # Complete on one rank only: 0 and 1; both ranks have 0 and 1, only rank 0 has 2.
    rows = [*rank(True, False, False), *rank(False, True)]
    assert selected(rows, 2) == ([0, 1], [], True)
    assert selected(rows, 2, 5) == ([0, 1], [], True)


def test_without_a_common_step_nothing_is_selected():
    assert selected([*rank(True, False), *rank(True, False, first=5)], 2) == ([], [], True)
    assert selected([], 2) == ([], [], True)
