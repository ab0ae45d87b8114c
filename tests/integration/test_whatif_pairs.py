"""Predictions from real captures against real captures: every ordered pair that differs by one change, and some that do by two."""

from __future__ import annotations

import statistics

import pytest

from tests.pairs import MORE_CHANGES, ONE_CHANGE, PAIRS, measured

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("captures")]

ANSWERABLE = [one for one in PAIRS if one.knobs is not None]


@pytest.fixture(scope="module")
def rows(captures):
    """Return what was predicted and measured of each pair."""
    return {one.name: measured(one, captures) for one in ANSWERABLE}


@pytest.mark.parametrize("pair", ANSWERABLE, ids=lambda one: one.name)
def test_what_was_predicted_is_what_was_measured(rows, pair):
    one = rows[pair.name]
    assert one.refused is None
    assert abs(one.error) <= (0.05 if pair in ONE_CHANGE else 0.06)
    assert one.low_ns <= one.predicted_ns <= one.high_ns
    # What no change of the communication can beat; balanced ranks and copies left out can.
    if not {"no_wait", "no_grad_copy"} & set(pair.knobs):
        assert one.low_ns >= one.limit_ns * (1 - 1e-9)


def test_the_pairs_together_are_as_good_as_promised(rows):
    chosen = [rows[one.name] for one in ONE_CHANGE if one.knobs is not None]
    assert statistics.median(abs(one.error) for one in chosen) <= 0.01
    assert statistics.mean(one.is_inside for one in chosen) >= 0.9
    assert statistics.median(one.half_width for one in chosen) <= 0.03
    more = [rows[one.name] for one in MORE_CHANGES]
    assert statistics.median(abs(one.error) for one in more) <= 0.02
    assert statistics.mean(one.is_inside for one in chosen + more) >= 0.9


def test_a_limit_is_no_less_than_the_device_computes_with_free_kernels(rows):
    # The fastest capture of the same program computes so long without communication beside it.
    from_shm, from_nvlink = (
        rows[f"{name}->{other}"].limit_ns
        for name, other in (
            ("2gpu-gpt-b25-shm", "2gpu-gpt-b25"),
            ("2gpu-gpt-b25", "2gpu-gpt-b25-shm"),
        )
    )
    assert from_shm == pytest.approx(from_nvlink, rel=0.04)
