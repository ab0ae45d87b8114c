"""Pages of docs/reference/ that are written from the program say what the program says; ``--update-golden`` writes them."""

import re
from itertools import pairwise

import pytest

from nsyspipe.analysis.traffic import ROLES
from nsyspipe.model.figures import METRICS
from tests.conftest import SAMPLES
from tests.contract.reference_pages import cli_page, python_page, vocabulary_table, with_part

REFERENCE = SAMPLES.parent / "docs" / "reference"


def test_the_page_of_commands_has_the_texts_of_help(pinned):
    pinned(REFERENCE / "cli.md", cli_page())


@pytest.mark.slow  # these have all dependency groups
def test_the_page_of_python_has_the_docstrings(pinned):
    pytest.importorskip("numpydoc", reason="dependency group docs")
    pinned(REFERENCE / "python.md", python_page())


GLOSSARY = REFERENCE / "glossary.md"


def test_the_glossary_has_the_vocabulary(pinned):
    pinned(
        GLOSSARY, with_part(GLOSSARY.read_text(encoding="utf-8"), "vocabulary", vocabulary_table())
    )


def test_the_glossary_has_each_term_once():
    rows = re.findall(r"^\| ([^|]+?) \|", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE)
    terms = sorted(row.casefold() for row in rows if row != "term")
    assert [term for term, following in pairwise(terms) if term == following] == []


def test_the_glossary_has_the_names_of_every_metric_and_kind_of_parallelism():
    glossary = GLOSSARY.read_text(encoding="utf-8")
    assert [name for name in (*METRICS, *ROLES[:-1]) if f"`{name}`" not in glossary] == []
