"""Names in sentences: which are there, and how many are not."""

import pytest

from nsyspipe.model.names import few, few_with_reasons, listed


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        ("a", "a"),
        ("ab", "a and b"),
        ("abc", "a, b and c"),
        ("abcd", "a, b, c and 1 more"),
        (range(6), "0, 1, 2 and 3 more"),
    ],
)
def test_names_are_listed_up_to_a_number(names, text):
    assert listed(names, most=3) == text


def test_without_names_lists_are_empty():
    assert (listed([]), listed(iter(()), joint="or"), few([], most=3)) == ("", "", "")


@pytest.mark.parametrize(
    ("reason_of_name", "text"),
    [
        ({}, ""),
        ({"a": "empty"}, "a (empty)"),
        ({"a": "empty", "b": "a link", "c": "empty"}, "a, c (empty), b (a link)"),
        (dict.fromkeys("abcd", "empty"), "a, b and 2 more (empty)"),
        # Two of the first reason are not named, nor are the three of the third and fourth reason.
        (
            dict.fromkeys("abcd", "empty") | {"e": "a link", "f": "x", "g": "x", "h": "y"},
            "a, b and 2 more (empty), e (a link) and 3 more",
        ),
    ],
)
def test_names_of_one_reason_are_together_and_those_left_out_are_counted(reason_of_name, text):
    assert few_with_reasons(reason_of_name.items(), most=2) == text
