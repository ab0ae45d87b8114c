"""Pages of docs/reference/ that are written from the program say what the program says; ``--update-golden`` writes them."""

import pytest

from tests.conftest import SAMPLES
from tests.contract.reference_pages import cli_page, python_page

REFERENCE = SAMPLES.parent / "docs" / "reference"


def test_the_page_of_commands_has_the_texts_of_help(pinned):
    pinned(REFERENCE / "cli.md", cli_page())


def test_the_page_of_python_has_the_docstrings(pinned):
    pytest.importorskip("numpydoc", reason="dependency group docs")
    pinned(REFERENCE / "python.md", python_page())
