"""Every number of the rules is a limit with tests on both of its sides, or `limits` says why it is none."""

import pytest

from tests.findings.limits import LIMITS, NO_LIMITS
from tests.mutate_limits import (
    Move,
    checks_of,
    fails,
    is_noticed,
    moves,
    numbers_in,
    numbers_of_rules,
)

NUMBERS = numbers_of_rules()


def test_every_number_of_the_rules_is_in_one_of_the_tables():
    assert NUMBERS.keys() == LIMITS.keys() | NO_LIMITS.keys()


def test_no_number_is_in_both_tables():
    assert LIMITS.keys() & NO_LIMITS.keys() == set()


def test_numbers_in_containers_are_found():
    found = dict(numbers_in("LIMITS", {"a": (1, 0.5), "b": True}))
    assert found == {"LIMITS['a'][0]": 1, "LIMITS['a'][1]": 0.5}


def test_every_limit_lies_between_its_two_other_values():
    for name, limit in LIMITS.items():
        assert limit.lower < NUMBERS[name] < limit.higher, name


def test_the_tests_of_every_limit_exist():
    for name, limit in LIMITS.items():
        for use in limit.uses:
            assert len(checks_of(use)) == len(use.tests), (name, use)


@pytest.mark.slow  # builds the evidence of each case anew for each value
@pytest.mark.parametrize("move", moves(), ids=str)
def test_a_moved_limit_is_noticed(move: Move):
    assert is_noticed(move)


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
def test_no_test_of_a_limit_fails_where_the_limit_is(limit):
    checks = [check for use in LIMITS[limit].uses for check in checks_of(use)]
    assert not any(fails(check) for check in checks)
