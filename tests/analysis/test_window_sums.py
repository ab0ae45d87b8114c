"""Sums of kernels by window, of which a few are chosen later."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis import kernels as module
from nsyspipe.analysis.kernels import window_sums
from tests.build.make import ints, windows

KERNELS = st.lists(st.tuples(st.integers(-5, 60), st.integers(0, 9), st.integers(0, 2)), max_size=30)  # fmt: skip


def sums(kernels, spans, n_rows=3):
    """Sum kernels (start, duration, row) over windows."""
    columns = (ints(*(one[at] for one in kernels)) for at in range(3))
    return window_sums(*columns, n_rows, windows(*spans))


def tiled(edges):
    return list(pairwise(edges))


def test_a_kernel_counts_in_the_window_of_its_start_with_its_whole_duration():
    kernels = [(9, 100, 0), (10, 7, 0), (19, 50, 1), (20, 3, 1), (29, 1, 0), (30, 9, 0)]
    found, number, total = sums(kernels, [(10, 20), (20, 30)], n_rows=2)
    first, second = (found.over(np.array(chosen)) for chosen in ([True, False], [False, True]))
    assert [one.tolist() for one in first[:2]] == [[1, 1], [7, 50]]
    assert [one.tolist() for one in second[:2]] == [[1, 1], [1, 3]]
    assert (number.tolist(), total.tolist()) == ([4, 2], [117, 53])  # outside of the windows too


@pytest.mark.parametrize("most", [1, 30, 2**18])
@given(
    KERNELS, st.lists(st.integers(0, 50), max_size=25, unique=True), st.lists(st.booleans(), min_size=24, max_size=24)
)
def test_every_sum_is_right_or_unknown(most, kernels, edges, flags):
    spans = tiled(sorted(edges))
    chosen = np.array(flags[: len(spans)], np.bool_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_SUMS", most)
        found, number, total = sums(kernels, spans)
    n_inside, inside_ns, is_unknown = found.over(chosen)
    for row in range(3):
        own = [(start, length) for start, length, at in kernels if at == row]
        counted = [
            length
            for start, length in own
            if any(a <= start < b for (a, b), is_in in zip(spans, chosen, strict=True) if is_in)
        ]
        assert (number[row], total[row]) == (len(own), sum(length for _, length in own))
        if not is_unknown[row]:
            assert (n_inside[row], inside_ns[row]) == (len(counted), sum(counted))
    if len(spans) <= max(most // 3, 8):
        assert not is_unknown.any()


def test_windows_at_either_end_keep_their_own_sums_when_there_are_too_many(monkeypatch):
    # For three rows 100 groups: 25 windows alone at either end, 950 between in 50 groups of 19.
    monkeypatch.setattr(module, "_MOST_SUMS", 300)
    n = 1000
    kernels = [(at, 1, at % 3) for at in range(n)]
    found, *_ = sums(kernels, tiled(range(n + 1)))
    assert len(found.first_window) == 100
    assert found.group.size <= 300
    for first, is_known in ((1, True), (25, True), (26, False), (25 + 19, True), (980, True)):
        inside, _, is_unknown = found.over((np.arange(n) >= first) & (np.arange(n) < n - 2))
        assert is_unknown.any() == (not is_known)
        assert not is_known or inside.sum() == n - 2 - first


def test_without_windows_or_kernels_nothing_is_in_them():
    found, number, _ = sums([(1, 2, 0)], [])
    assert number.tolist() == [1, 0, 0]
    assert found.over(np.empty(0, np.bool_))[0].tolist() == [0, 0, 0]
    found, number, total = sums([], [(0, 10)], n_rows=0)
    assert number.size == total.size == found.over(np.array([True]))[0].size == 0
