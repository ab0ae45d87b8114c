"""The script that changes the code in one place changes that place, and only that."""

import ast

import pytest

from tests.mutate_code import changed, changes_of

# A function, and what becomes of it by each change, in the order of the syntax tree.
CASES = {
    "a < 1": ["a <= 1", "a < 2"],
    "a + b": ["a - b"],
    "a and b": ["a or b"],
    "not a": ["not not a"],
    "a * 2.0": ["a + 2.0", "a * 3.0"],
    "f('1')": [],
    "a < b < c": [],
}


@pytest.mark.parametrize("expression", CASES)
def test_each_number_and_operator_is_changed_alone(expression):
    changes = changes_of("a.py", expression)
    assert [changed(expression, change) for change in changes] == CASES[expression]


def test_annotations_are_not_changed():
    source = "def f(a: int | None) -> int | None:\n    return a\n"
    assert changes_of("a.py", source) == []


def test_a_change_is_named_with_its_place():
    (change,) = changes_of("run/a.py", "\nx = a >= b\n")
    assert str(change) == "run/a.py:2 GtE -> Gt in a >= b"


def test_what_is_not_changed_stays_as_it_is():
    source = "def f(a):\n    '''Text.'''\n    return a if a > 2 else 5\n"
    for change in changes_of("a.py", source):
        assert ast.parse(changed(source, change)).body[0].name == "f", change
