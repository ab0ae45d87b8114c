"""Names and numbers in sentences: which names are there, how many are not, and what follows 1."""

import re
import string

import pytest

from nsyspipe.model.names import (
    SINGULAR_VERBS,
    counted,
    few,
    few_with_reasons,
    listed,
    noun_for,
    verb_for,
)
from nsyspipe.model.problems import CATALOGUE, problem


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


@pytest.mark.parametrize(
    ("count", "counted_noun", "verb"),
    [(0, "0 ranks", "are"), (1, "1 rank", "is"), (2, "2 ranks", "are")],
)
def test_only_one_is_singular(count, counted_noun, verb):
    assert counted(count, "rank") == counted_noun
    assert noun_for(count, "rank") == counted_noun.split()[1]
    assert verb_for(count, "are") == verb


# A fact of each message, the other facts, and the words that the number decides.
COUNTED = {
    "captured-several-times": ("n", {"times": "2"}, "process was", "processes were"),
    "comm-in-graphs": ("n", {}, "graph launch", "graph launches"),
    "comm-between-steps": (
        "n_comm",
        {"percent": "3"},
        "communication operation",
        "communication operations",
    ),
    "graphs-as-a-whole": ("n", {}, "graph launch", "graph launches"),
    "launch-missing": ("n", {"total": 5}, "has no launch", "have no launch"),
    "memset-calls-only": ("n", {}, "memset call", "memset calls"),
    "more-ranks-than-world": ("world_size", {"n": 9}, "1 rank", "2 ranks"),
    "ranks-not-read": (
        "n",
        {"world_size": 4, "noun": "ranks", "missing": "rank 1"},
        "was not read",
        "were not read",
    ),
}


@pytest.mark.parametrize("code", COUNTED)
def test_the_message_of_a_problem_has_the_number_of_its_count(code):
    name, facts, singular, plural = COUNTED[code]
    for count, words, other_words in ((1, singular, plural), (2, plural, singular)):
        message = problem(code, **facts, **{name: count}).message
        assert re.search(rf"\b{words}\b", message)
        assert not re.search(rf"\b{other_words}\b", message)


def test_every_verb_after_a_count_is_known():
    fields = {field for kind in CATALOGUE.values() for field in fields_of(kind.message)}
    assert SINGULAR_VERBS.keys() & fields == {"have", "were"}


def fields_of(template):
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]
