"""Each row of `golden/words` belongs to a test; a text comes back from its file as it was."""

import re

import pytest

from tests.conftest import WORDS
from tests.golden import words

TESTS = WORDS.parent.parent


@pytest.mark.parametrize(
    "text", ["", "one line", "two\nlines", "\nbetween empty lines\n\n", "    indented\n\nparts"]
)
def test_a_text_comes_back_as_it_was_written(text, tmp_path):
    rows = {"a claim": text, "b claim [case]: part": "other"}
    words.write(tmp_path / "area" / "words.txt", rows)
    assert words.read(tmp_path / "area" / "words.txt") == rows


def test_a_row_has_the_name_of_its_test():
    assert words.row_of("test_a_claim") == "a claim"
    assert words.row_of("test_a_claim[in_case-1]") == "a claim [in_case-1]"


def test_figures_are_the_numbers_of_a_text():
    assert words.figures("12.5 % of 1,000 bytes, 3, and 0.40 ms.") == {"12.5", "1,000", "3", "0.40"}


def test_every_row_belongs_to_a_test():
    orphans = []
    for file in WORDS.rglob("*.txt"):
        module = TESTS / file.relative_to(WORDS).with_name(f"test_{file.stem}.py")
        code = module.read_text(encoding="utf-8")
        claims = {words.row_of(name) for name in re.findall(r"def (test_\w+)", code)}
        named = [(row, re.split(r" \[|: ", row)[0]) for row in words.read(file)]
        orphans += [f"{file.name}: {row}" for row, claim in named if claim not in claims]
    assert orphans == []
