"""The tables of docs/accuracy.md are what the program predicts; ``--update-golden`` writes them anew."""

from itertools import chain

import pytest

from tests.conftest import SAMPLES
from tests.contract.reference_pages import with_part
from tests.pairs import (
    MORE_CHANGES,
    ONE_CHANGE,
    WITHOUT,
    Captures,
    accuracy_table,
    measured,
    set_constants,
)

PAGE = SAMPLES.parent / "docs" / "accuracy.md"


def predicted_without(model, pairs, real):
    """Return pairs of a model, predicted with constants that were estimated without it, by name."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_constants(monkeypatch, model)
        captures = Captures(real)
        return {pair.name: measured(pair, captures) for pair in pairs if pair.model == model}


@pytest.mark.slow
def test_the_accuracy_page_has_what_is_predicted(captures, real, request):
    page = PAGE.read_text(encoding="utf-8")
    parts = {"one change": ONE_CHANGE, "more changes": MORE_CHANGES}
    parts = {name: [pair for pair in parts[name] if pair.knobs is not None] for name in parts}
    without_model = {}
    for model in WITHOUT:
        without_model |= predicted_without(model, chain(*parts.values()), real)
    for name, chosen in parts.items():
        rows = [measured(pair, captures) for pair in chosen]
        page = with_part(page, name, accuracy_table(rows, without_model))
    if request.config.getoption("--update-golden"):
        PAGE.write_text(page, encoding="utf-8")
    assert page == PAGE.read_text(encoding="utf-8")
