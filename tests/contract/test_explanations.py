"""Every finding has an explanation, explanations name only what exists, and docs/findings/ is made from them."""

import ast
import re
import shlex

import pytest
import typer.main

from nsyspipe.cli.app import app
from nsyspipe.findings.judge import CAUSES, RULES
from nsyspipe.model.figures import FIGURES, METRICS
from nsyspipe.model.problems import CATALOGUE
from nsyspipe.replay.answer import ADVICE
from nsyspipe.report.explanations.pages import finding_pages
from nsyspipe.report.explanations.subjects import (
    ALIASES,
    all_ids,
    explain,
    explain_finding,
    similar_ids,
)
from nsyspipe.report.explanations.text import Code, Group, Items, Paragraph, ids_in, normalized
from nsyspipe.report.explanations.timeline import KINDS, Picture
from tests.conftest import SAMPLES

FINDINGS_IN_DOCS = SAMPLES.parent / "docs" / "findings"
HEADINGS = [
    "What it means",
    "How to recognize it",
    "Code before and after",
    "When not to do it",
    "How the saving is estimated",
]
LEAST_WIDTH = 80  # columns of a terminal that every explanation fits
COMPUTE = {"forward", "backward", "optimizer"}
COMMANDS = vars(typer.main.get_command(app))["commands"]
IDS = [rule.__name__.replace("_", "-") for rule in RULES]


def pieces_of(explanation, kind):
    return [
        piece
        for section in explanation.sections
        for piece in section.pieces
        if isinstance(piece, kind)
    ]


def explained():
    """Return the explanations that have a file."""
    return [explain(name) for folder in ("findings", "words") for name in ids_in(folder)]


def texts_of(explanation):
    """Return the sentences of an explanation, without code and pictures."""
    items = [text for piece in pieces_of(explanation, Items) for text in piece.texts]
    paragraphs = [piece.text for piece in pieces_of(explanation, Paragraph)]
    return [explanation.title, explanation.summary, *paragraphs, *items]


def timelines_of(explanation):
    return [
        timeline for picture in pieces_of(explanation, Picture) for timeline in picture.timelines
    ]


def units_of(lanes, kinds):
    return {
        unit
        for lane in lanes
        for bar in lane.bars
        if bar.kind in kinds
        for unit in range(bar.start, bar.end)
    }


def by_rank(timeline):
    """Return the lanes of a timeline by the rank or stage that their names begin with."""
    ranks = {}
    for lane in timeline.lanes:
        number = re.search(r"\d+", lane.name)
        ranks.setdefault(number[0] if number else "", []).append(lane)
    return ranks.values()


def end_of(timeline):
    return max(bar.end for lane in timeline.lanes for bar in lane.bars)


def test_every_rule_has_an_explanation_and_every_explanation_a_rule():
    assert ids_in("findings") == sorted(IDS)


def test_every_finding_is_in_one_list():
    assert sorted(name for names in CAUSES.values() for name in names) == sorted(IDS)


@pytest.mark.parametrize("name", IDS)
def test_a_finding_has_the_five_sections(name):
    assert [section.heading for section in explain_finding(name).sections] == HEADINGS


@pytest.mark.parametrize("name", IDS)
def test_a_finding_has_a_picture_and_code_before_and_after(name):
    recognize, code = explain_finding(name).sections[1:3]
    assert [len(piece.timelines) for piece in recognize.pieces if isinstance(piece, Picture)] == [2]
    assert sum(isinstance(piece, Code) for piece in code.pieces) >= 2


@pytest.mark.parametrize("name", IDS)
def test_a_picture_shows_a_shorter_step_after_the_change(name):
    before, after = timelines_of(explain_finding(name))
    assert end_of(after) < end_of(before)


@pytest.mark.parametrize("explanation", explained(), ids=lambda explanation: explanation.id)
def test_communication_in_a_picture_is_exposed_only_without_compute(explanation):
    for timeline in timelines_of(explanation):
        for lanes in by_rank(timeline):
            compute = units_of(lanes, COMPUTE)
            assert units_of(lanes, {"exposed", "idle"}) & compute == set(), timeline.title
            assert units_of(lanes, {"overlapped"}) <= compute, timeline.title


def test_every_kind_of_bar_is_used_and_has_a_letter_of_its_own():
    used = {
        bar.kind
        for one in explained()
        for timeline in timelines_of(one)
        for lane in timeline.lanes
        for bar in lane.bars
    }
    assert used == set(KINDS)
    assert len({kind.letter for kind in KINDS.values()}) == len(KINDS)


@pytest.mark.parametrize("name", IDS)
def test_a_simulated_finding_names_the_option_that_simulates_it(name):
    simulated = [
        word
        for piece in pieces_of(explain_finding(name), Code)
        for word in piece.text.split()
        if "whatif" in word
    ]
    assert bool(simulated) == (name in {*ADVICE, "slow-link"})


@pytest.mark.parametrize("explanation", explained(), ids=lambda explanation: explanation.id)
def test_code_fits_a_terminal_and_is_python(explanation):
    for piece in pieces_of(explanation, Code):
        assert [line for line in piece.text.splitlines() if len(line) > LEAST_WIDTH - 4] == [], (
            piece
        )
        if piece.language == "python":
            ast.parse(piece.text)


@pytest.mark.parametrize("explanation", explained(), ids=lambda explanation: explanation.id)
def test_commands_and_options_that_are_named_exist(explanation):
    commands = [line for piece in pieces_of(explanation, Code) for line in piece.text.splitlines()]
    commands += [span for text in texts_of(explanation) for span in re.findall(r"`([^`]+)`", text)]
    for command in commands:
        words = shlex.split(command) if command.startswith("nsyspipe ") else []
        if words and words[1:2] != ["explain"]:
            COMMANDS[words[1]].make_context(words[1], words[2:] or ["REPORTS"])
        elif len(words) > 2 and not words[2].isupper():
            assert explain(words[2]) is not None, command


@pytest.mark.parametrize("explanation", explained(), ids=lambda explanation: explanation.id)
def test_sentences_are_short_and_have_no_semicolon(explanation):
    for text in texts_of(explanation):
        assert ";" not in text, text
        sentences = re.split(r"(?<=[.?:])\s", text)
        assert [sentence for sentence in sentences if len(sentence.split()) > 28] == [], text


def is_explained(name):
    metric_of_column = FIGURES[name].name if name in FIGURES else name
    return explain(name).id in {name, metric_of_column, normalized(name)}


def test_every_id_has_an_explanation():
    assert [name for name in all_ids() if not is_explained(name)] == []


def test_a_column_of_a_metric_is_explained_in_other_tables_too():
    headings = {section.heading for section in explain("wait_ns").sections}
    assert {"Definition", "In the table collectives"} <= headings


def test_no_value_of_a_message_is_left_as_a_field():
    left = [
        code for code in CATALOGUE for text in texts_of(explain(code)) if "{" in text or "}" in text
    ]
    assert left == []


def test_ids_of_findings_notes_and_metrics_are_different():
    names = [*ids_in("findings"), *ids_in("words"), *CATALOGUE, *map(normalized, METRICS)]
    assert sorted(names) == sorted(set(names))


def test_other_words_lead_to_words_that_have_an_explanation():
    assert set(ALIASES.values()) <= set(ids_in("words"))
    assert set(ALIASES) & {*IDS, *ids_in("words"), *CATALOGUE} == set()


@pytest.mark.parametrize(
    ("topic", "group", "name"),
    [
        ("single_bucket", Group.FINDING, "single-bucket"),
        (" Straggler ", Group.FINDING, "straggler"),
        ("upper bound", Group.WORD, "estimates"),
        ("idle", Group.METRIC, "idle"),
        ("idle_ns", Group.METRIC, "idle"),
        ("algorithm bandwidth", Group.METRIC, "algbw"),
        ("wall_ns", Group.COLUMN, "wall_ns"),
        ("few-steps", Group.NOTE, "few-steps"),
    ],
)
def test_an_id_is_found_in_several_spellings(topic, group, name):
    explanation = explain(topic)
    assert (explanation.group, explanation.id) == (group, name)


@pytest.mark.parametrize(
    ("topic", "first"), [("stragler", "straggler"), ("bucket", "single-bucket")]
)
def test_similar_ids_are_offered(topic, first):
    assert explain(topic) is None
    assert similar_ids(topic)[0] == first


def test_nothing_is_offered_for_a_word_that_is_like_none():
    assert similar_ids("qqq") == []


def test_pages_of_findings_are_made_from_the_explanations(request):
    pages = finding_pages()
    if request.config.getoption("--update-golden"):
        FINDINGS_IN_DOCS.mkdir(exist_ok=True)
        for path in FINDINGS_IN_DOCS.iterdir():
            path.unlink()
        for name, text in pages.items():
            (FINDINGS_IN_DOCS / name).write_text(text, encoding="utf-8")
    assert {
        path.name: path.read_text(encoding="utf-8") for path in FINDINGS_IN_DOCS.iterdir()
    } == pages
