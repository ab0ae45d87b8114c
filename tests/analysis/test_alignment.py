"""How alike two sequences are: against the longest common subsequence by its definition, and what is left out as a block."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from nsyspipe.analysis.alignment import agreement, n_common, n_shared


def longest_common(one, other):
    """Return the length of the longest common subsequence, by its recurrence."""
    row = [0] * (len(one) + 1)
    for item in other:
        before = row
        row = [0]
        for at, own in enumerate(one):
            row.append(before[at] + 1 if own == item else max(row[at], before[at + 1]))
    return row[-1]


def changed(sequence, roll, n_changes):
    """Return a sequence with so many items left out, and as many put in."""
    left = np.delete(sequence, roll.choice(sequence.size, n_changes, replace=False))
    return np.insert(left, np.sort(roll.choice(left.size, n_changes)), roll.integers(0, 9, n_changes))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_common_is_the_longest_common_subsequence(seed):
    roll = np.random.default_rng(seed)
    one, other = (roll.integers(0, 5, size) for size in roll.integers(0, 60, 2))
    expected = longest_common(one, other)
    assert n_common(one, other, 60) == expected
    assert expected <= n_shared(one, other) <= min(one.size, other.size)


@pytest.mark.parametrize("seed", range(5))
def test_across_several_blocks_of_rows_a_band_as_wide_as_the_changes_is_enough(seed):
    roll = np.random.default_rng(seed)
    one = roll.integers(0, 9, 2600)
    other = changed(one, roll, 40)
    whole = n_common(one, other, 2600)
    assert n_common(one, other, 80) == whole >= 2560
    assert agreement(one, other, 0.95) == (whole / 2600, slice(0, 0))


@pytest.mark.parametrize("at", [0, 30, 100])
def test_a_block_that_only_one_has_is_left_out_at_either_end_or_where_all_else_is_equal(at):
    unit = np.arange(100)
    longer = np.insert(unit, at, np.full(40, 500))
    assert agreement(unit, longer, 0.9) == (1.0, slice(at, at + 40))
    noisy = longer.copy()
    noisy[np.flatnonzero(longer != 500)[[20, 60]]] = 900
    assert agreement(unit, noisy, 0.9) == ((0.98, slice(at, at + 40)) if at != 30 else (0.0, slice(0, 0)))


def test_sequences_of_other_items_are_not_aligned_at_all():
    assert agreement(np.arange(50), np.arange(100, 150), 0.9) == (0.0, slice(0, 0))


def test_alignment_of_long_units_holds_a_band_and_not_a_row_per_item():
    roll = np.random.default_rng(1)
    one = roll.permutation(20_000)
    other = changed(one, roll, 200)
    tracemalloc.start()
    assert n_common(one, other, 1000) >= 19_800
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A number of 20 000 bits for each of as many items would be 50 MB.
    assert peak < 8_000_000
