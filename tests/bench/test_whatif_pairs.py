"""Every pair of captures, predicted and measured: ``pytest -m bench -n 0 -s tests/bench/test_whatif_pairs.py``."""

import pytest

from tests.pairs import MORE_CHANGES, ONE_CHANGE, WITHOUT, Captures, measured, set_constants, table

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("pairs", [ONE_CHANGE, MORE_CHANGES], ids=["one-change", "more-changes"])
def test_print_all_pairs(captures, pairs):
    print("\n" + table([measured(one, captures) for one in pairs if one.knobs is not None]))


@pytest.mark.parametrize("model", list(WITHOUT))
def test_print_the_pairs_of_a_model_with_constants_of_the_others(real, model, monkeypatch):
    set_constants(monkeypatch, model)
    chosen = [one for one in ONE_CHANGE if one.model == model and one.knobs is not None]
    print(f"\n{model}, with constants of the other model")
    captures = Captures(real)
    print(table([measured(one, captures) for one in chosen]))
