"""Every pair of captures, predicted and measured: ``pytest -m bench -n 0 -s tests/bench/test_whatif_pairs.py``."""

import pytest

from nsyspipe.replay import ranges, rebucket
from nsyspipe.replay.simulate import Slowing
from tests.pairs import MORE_CHANGES, ONE_CHANGE, Captures, measured, table

pytestmark = pytest.mark.bench

# What the constants are, estimated without one of the models: slowdown over host memory, of its delay what is in the operation,
# slowdown over NVLink, and how much longer a collective is beside work.
WITHOUT = {
    "ViT": (Slowing(0.03, 7_800.0), 4_700.0, Slowing(0.48, 250.0), 0.055),
    "GPT": (Slowing(0.04, 5_100.0), 2_500.0, Slowing(0.5, 250.0), 0.0),
}


@pytest.mark.parametrize("pairs", [ONE_CHANGE, MORE_CHANGES], ids=["one-change", "more-changes"])
def test_print_all_pairs(captures, pairs):
    print("\n" + table([measured(one, captures) for one in pairs if one.knobs is not None]))


@pytest.mark.parametrize("model", list(WITHOUT))
def test_print_the_pairs_of_a_model_with_constants_of_the_others(real, model, monkeypatch):
    narrow, in_operation, wide, longer = WITHOUT[model]
    monkeypatch.setattr(ranges, "_NARROW", narrow)
    monkeypatch.setattr(ranges, "_NARROW_IN_OPERATION_NS", in_operation)
    monkeypatch.setattr(ranges, "_WIDE", wide)
    monkeypatch.setattr(rebucket, "_LONGER_BESIDE", longer)
    chosen = [one for one in ONE_CHANGE if one.model == model and one.knobs is not None]
    print(f"\n{model}, with constants of the other model")
    captures = Captures(real)
    print(table([measured(one, captures) for one in chosen]))
