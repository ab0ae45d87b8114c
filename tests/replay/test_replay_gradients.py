"""Which gradients go into one bucket, and which kernels are theirs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nsyspipe.replay.gradients import bucket_ends, is_alike, matched_in_order
from tests.conftest import examples

MIB = 1 << 20
LENGTHS = st.integers(1, 1000)


@pytest.mark.parametrize(("sizes", "cap", "ends"), [
    ([26, 26, 26], 25, [0, 1, 2]),  # each fills one by itself
    ([25, 25], 25, [0, 1]),  # met exactly
    ([10, 10, 10, 10], 25, [2, 3]),  # the third closes it, the last stays open
    ([10, 10, 10, 10], 1000, [3]),
    ([1, 90, 1, 1], 25, [1, 3]),  # a large one joins what is there
    ([5], 0.001, [0]),
])  # fmt: skip
def test_a_bucket_is_closed_by_the_gradient_that_fills_it(sizes, cap, ends):
    assert bucket_ends(np.array(sizes, np.float64) * MIB, cap).tolist() == ends


@given(st.lists(st.integers(1, 60 * MIB), min_size=1, max_size=30), st.integers(1, 100))
def test_buckets_are_those_of_one_gradient_at_a_time(sizes, cap):
    ends, held = [], 0
    for at, size in enumerate(sizes):
        held += size
        if held >= cap * MIB or at == len(sizes) - 1:
            ends.append(at)
            held = 0
    assert bucket_ends(np.array(sizes, np.float64), cap).tolist() == ends


@examples(100)
@given(st.lists(LENGTHS, min_size=2, max_size=6), st.lists(LENGTHS, max_size=2), st.randoms(use_true_random=False))
def test_no_other_choice_in_order_fits_better(sizes, others, random):
    lengths = [float(one) for one in [*sizes, *others]]
    random.shuffle(lengths)
    # What the docstring says of the kernels' expected lengths.
    largest = max(len(sizes) // 4, 1)
    per_byte = sum(sorted(lengths)[-largest:]) / sum(sorted(sizes)[-largest:])
    base = max(min(lengths) - min(sizes) * per_byte, 0)
    expected = [base + size * per_byte for size in sizes]

    def cost(places):
        return sum(abs(np.log(lengths[at] / want)) for at, want in zip(places, expected, strict=True))

    found = matched_in_order(np.array(lengths), np.array(sizes, np.float64)).tolist()
    assert found == sorted(set(found))
    best = min(map(cost, itertools.combinations(range(len(lengths)), len(sizes))))
    assert cost(found) == pytest.approx(best)


def test_kernels_that_do_not_follow_the_sizes_are_others():
    unequal, equal = np.array([1.0, 9.0, 5.0]), np.array([7.0, 7.0, 7.0])  # those say nothing against any kernels
    assert is_alike(np.array([1.0, 5.0, 2.0]), equal)
    assert not any(is_alike(np.array(lengths), unequal) for lengths in ([9.0, 1.0, 5.0], [3.0, 3.0, 3.0]))
