"""Every text that a user reads keeps the house style, as `prose` checks it; and the checker finds what it is for."""

import pytest

from tests.conftest import SAMPLES
from tests.contract.prose import (
    objections_to,
    objections_to_markdown,
    prose_of_markdown,
    sentences_of,
    words_in,
)

ROOT = SAMPLES.parent
DOCS = ROOT / "docs"
GOLDENS = ROOT / "tests" / "golden" / "frozen"

# Goldens of rows that functions return: names of kernels, tables, traces. No command prints their
# texts as they are.
OF_FUNCTIONS = {"digests", "names", "tables"}
PRINTED = {
    path
    for path in GOLDENS.rglob("*.txt")
    if path.relative_to(GOLDENS).parts[0] not in OF_FUNCTIONS
}
# What other programs print in a golden of ours.
OF_OTHERS = ("Error in sitecustomize; set PYTHONVERBOSE",)
SKILL = ROOT / "nsyspipe" / "report" / "skill" / "skill.md"
CHECKED = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *PRINTED, SKILL})


def objections_to_ours(path):
    return [
        str(objection)
        for objection in objections_to(path)
        if not any(text in objection.text for text in OF_OTHERS)
    ]


@pytest.mark.slow
def test_every_text_keeps_the_house_style():
    objections = {str(path.relative_to(ROOT)): objections_to_ours(path) for path in CHECKED}
    assert {name: found for name, found in objections.items() if found} == {}


def rules_against(text):
    return [objection.rule for objection in objections_to_markdown(text)]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("One fact; another fact.", "semicolon"),
        ("A copy runs beside a kernel.", "banned word"),
        ("This is hidden by compute.", "replaced term"),
        ("The range is 3 .. 5 ms.", "number style"),
        ("It takes 12 % of a step.", "number style"),
        ("The colour is red.", "spelling"),
        ("Of these runs one is fast.", "opening"),
        (" ".join(["word"] * 36) + ". Short. Short.", "long sentence"),
        ("| term | one; two |", "semicolon"),
        ("- an item; another", "semicolon"),
    ],
)
def test_a_fault_is_found(text, rule):
    assert rule in rules_against(text)


@pytest.mark.parametrize(
    "text",
    [
        " ".join(["word"] * 35) + ". Short.",
        "What is a step?",
        "What-if predicts a step time.",
        "Set `a; b` in the shell.",
        "```bash\na; b\n```",
        "<!-- not run: a; b -->",
        "See [the page](a;b.md).",
        "The range is 3 to 5 ms, or 12%.",
    ],
)
def test_good_text_passes(text):
    assert rules_against(text) == []


def test_sentences_that_are_long_on_average_are_found():
    sentence = " ".join(["Word"] * 30) + "."
    assert rules_against(f"{sentence} {sentence}") == ["mean length"]


def test_a_sentence_may_begin_with_a_name_in_lower_case():
    assert (
        len(sentences_of("It reads reports. nsyspipe writes none. Use nsys 2024.2 or newer.")) == 3
    )


def test_a_number_is_one_word():
    assert words_in("It takes 12.5 ms, or 1,000 steps.") == 7


def test_lines_of_a_paragraph_are_joined_and_cells_are_apart():
    assert list(prose_of_markdown("# Title\na\nb\n\n| c | d |\n|---|---|\n")) == [
        ("Title", True),
        ("a b", False),
        ("c", False),
        ("d", False),
    ]
