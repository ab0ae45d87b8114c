"""Predictions from real captures against real captures: every ordered pair that differs by one change, and some that do by two."""

from __future__ import annotations

import statistics

import pytest

from tests.pairs import MORE_CHANGES, ONE_CHANGE, measured

# One test: every capture is read once.
pytestmark = pytest.mark.slow


def test_what_was_predicted_is_what_was_measured(captures):
    chosen = [measured(one, captures) for one in ONE_CHANGE if one.knobs is not None]
    more = [measured(one, captures) for one in MORE_CHANGES if one.knobs is not None]
    for most, rows in ((0.05, chosen), (0.06, more)):
        assert {one.pair.name: one.refused for one in rows if one.refused is not None} == {}
        assert {one.pair.name: one.error for one in rows if abs(one.error) > most} == {}
    for one in chosen + more:
        assert one.low_ns <= one.predicted_ns <= one.high_ns, one.pair.name
        # What no change of the communication can beat; balanced ranks and copies left out can.
        if not {"no_wait", "no_grad_copy"} & set(one.pair.knobs):
            assert one.low_ns >= one.limit_ns * (1 - 1e-9), one.pair.name
    assert statistics.median(abs(one.error) for one in chosen) <= 0.01
    assert statistics.median(abs(one.error) for one in more) <= 0.02
    assert statistics.mean(one.is_inside for one in chosen) >= 0.9
    assert statistics.mean(one.is_inside for one in chosen + more) >= 0.9
    assert statistics.median(one.half_width for one in chosen) <= 0.03
    # A limit is what the device computes without communication beside it, seen from either capture.
    limits = {one.pair.name: one.limit_ns for one in chosen}
    from_shm = limits["2gpu-gpt-b25-shm->2gpu-gpt-b25"]
    assert from_shm == pytest.approx(limits["2gpu-gpt-b25->2gpu-gpt-b25-shm"], rel=0.04)
