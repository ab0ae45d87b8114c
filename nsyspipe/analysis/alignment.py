"""How alike two sequences are, the block that only one of them has, and equal runs of codes."""

from typing import Final

import numpy as np

from nsyspipe.model.table import Int64

# Rows that are aligned at once.
_ROWS: Final = 2048
# Items of a common subsequence are at most so far apart, so that the time grows linearly.
_MAX_DISTANCE: Final = 2048
_NO_BLOCK: Final = slice(0, 0)


def agreement(shorter: Int64, longer: Int64, least: float) -> tuple[float, slice]:
    """Return the share of the longer sequence that the shorter one has in the same order.

    The second result is the block of the longer sequence without which both agree to `least` or
    more. It is empty if they agree to that as they are. The share is 0 if they agree to less.
    """
    before = _n_equal(shorter, longer[: shorter.size])
    rest = shorter[before:]
    end_of_longer = longer[longer.size - rest.size :]
    behind = _n_equal(rest[::-1], end_of_longer[::-1])
    n_equal = before + behind
    end_of_middle = longer.size - behind
    short_middle = shorter[before : shorter.size - behind]
    long_middle = longer[before:end_of_middle]
    max_missing = int((1 - least) * longer.size)
    if _may_agree(short_middle, long_middle, max_missing):
        max_distance = min(max_missing, _MAX_DISTANCE)
        n_equal_in_middle = n_common(short_middle, long_middle, max_distance)
        share = (n_equal + n_equal_in_middle) / longer.size
        if share >= least:
            return share, _NO_BLOCK
    n_added = longer.size - shorter.size
    if not n_added:
        return 0.0, _NO_BLOCK
    if n_equal >= least * shorter.size:
        return n_equal / shorter.size, slice(before, end_of_middle)
    return _agreement_without_end(shorter, longer, least)


def _agreement_without_end(shorter: Int64, longer: Int64, least: float) -> tuple[float, slice]:
    """Return the agreement if the block is the begin or the end of the longer sequence."""
    first_block = slice(0, longer.size - shorter.size)
    last_block = slice(shorter.size, longer.size)
    for block in (first_block, last_block):
        without_block = np.delete(longer, block)
        share, _ = agreement(shorter, without_block, least)
        if share >= least:
            return share, block
    return 0.0, _NO_BLOCK


def _may_agree(shorter: Int64, longer: Int64, max_missing: int) -> bool:
    """Tell whether a common subsequence may miss so few items of the longer sequence."""
    n_added = longer.size - shorter.size
    if n_added > max_missing:
        return False
    n_missing = longer.size - n_shared(shorter, longer)
    return n_missing <= max_missing


def _n_equal(first: Int64, second: Int64) -> int:
    """Return how many items are equal before the first that differs."""
    differs = np.append(first != second, True)
    return int(differs.argmax())


def n_shared(first: Int64, second: Int64) -> int:
    """Return how many items are in both, in any order. No common subsequence is longer."""
    items = np.append(first, second)
    codes, number = np.unique(items, return_inverse=True)
    n_codes = codes.size
    number_in_first = number[: first.size]
    number_in_second = number[first.size :]
    n_in_first = np.bincount(number_in_first, minlength=n_codes)
    n_in_second = np.bincount(number_in_second, minlength=n_codes)
    n_in_both = np.minimum(n_in_first, n_in_second)
    return int(n_in_both.sum())


def n_common(first: Int64, second: Int64, max_distance: int) -> int:
    """Return the length of the longest common subsequence.

    Its items are at most so far apart; some may be farther apart. This is Crochemore's recurrence
    on bits: a number per row of the table, with only the columns that are near the row.
    """
    n_left = 0
    left = 0
    right = 0
    # The bit of a column is 1 if it adds nothing to the length.
    row = 0
    for first_row in range(0, second.size, _ROWS):
        begin = min(max(0, first_row - max_distance), first.size)
        end = min(first.size, first_row + _ROWS + max_distance)
        n_leaving = begin - left
        leaving_bits = row & _ones(n_leaving)
        n_left += n_leaving - leaving_bits.bit_count()
        new_bits = _ones(end - right) << right - left
        row = (row | new_bits) >> n_leaving
        left = begin
        right = end
        masks = _columns_of_codes(first[left:right])
        all_columns = _ones(right - left)
        for code in second[first_row : first_row + _ROWS].tolist():
            matches = row & masks.get(code, 0)
            row = ((row + matches) | (row - matches)) & all_columns
    n_columns = right - left
    return n_left + n_columns - row.bit_count()


def _ones(n_bits: int) -> int:
    return (1 << n_bits) - 1


def _columns_of_codes(codes: Int64) -> dict[int, int]:
    """Return for each code a number whose bits are the columns with that code."""
    masks: dict[int, int] = {}
    for place, code in enumerate(codes.tolist()):
        mask = masks.get(code, 0)
        masks[code] = mask | 1 << place
    return masks


def runs_of_codes(codes: Int64, length: int) -> Int64:
    """Return a number from 0 for the run of so many codes that begins at each place.

    Codes behind the last are -1.
    """
    behind_last = np.zeros(length, np.int64)
    following = np.append(codes + 1, behind_last)
    following = following.astype(np.uint64)
    n_codes = codes.size
    mixed = np.zeros(n_codes, np.uint64)
    for shift in range(length):
        mixed = mixed * np.uint64(1_000_003)
        mixed += following[shift : shift + n_codes]
        mixed ^= mixed >> np.uint64(31)
    _, numbers = np.unique(mixed, return_inverse=True)
    return numbers.astype(np.int64)
