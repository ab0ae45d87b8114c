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
    behind = _n_equal(shorter[before:][::-1], longer[::-1][: shorter.size - before])
    n_added = longer.size - shorter.size
    allowed = int((1 - least) * longer.size)
    short_middle = shorter[before : shorter.size - behind]
    long_middle = longer[before : longer.size - behind]
    n_equal = before + behind
    if n_added <= allowed and long_middle.size - n_shared(short_middle, long_middle) <= allowed:
        n_in_middle = n_common(short_middle, long_middle, min(allowed, _MAX_DISTANCE))
        share = (n_equal + n_in_middle) / longer.size
        if share >= least:
            return share, _NO_BLOCK
    if not n_added:
        return 0.0, _NO_BLOCK
    if n_equal >= least * shorter.size:
        return n_equal / shorter.size, slice(before, longer.size - behind)
    for block in (slice(0, n_added), slice(shorter.size, longer.size)):
        share, _ = agreement(shorter, np.delete(longer, block), least)
        if share >= least:
            return share, block
    return 0.0, _NO_BLOCK


def _n_equal(first: Int64, second: Int64) -> int:
    """Return how many items are equal before the first that differs."""
    return int(np.append(first != second, True).argmax())


def n_shared(first: Int64, second: Int64) -> int:
    """Return how many items are in both, in any order. No common subsequence is longer."""
    codes, number = np.unique(np.concatenate([first, second]), return_inverse=True)
    in_first = np.bincount(number[: first.size], minlength=codes.size)
    in_second = np.bincount(number[first.size :], minlength=codes.size)
    return int(np.minimum(in_first, in_second).sum())


def n_common(first: Int64, second: Int64, max_distance: int) -> int:
    """Return the length of the longest common subsequence.

    Its items are at most so far apart; some may be farther apart. This is Crochemore's recurrence
    on bits: a number per row of the table, with only the columns that are near the row.
    """
    # The bit of a column is 1 if it adds nothing to the length.
    n_left = 0
    left = 0
    right = 0
    row = 0
    for first_row in range(0, second.size, _ROWS):
        begin = min(max(0, first_row - max_distance), first.size)
        end = min(first.size, first_row + _ROWS + max_distance)
        n_left += begin - left - (row & ((1 << begin - left) - 1)).bit_count()
        row = (row | ((1 << end - right) - 1) << right - left) >> begin - left
        left = begin
        right = end
        masks: dict[int, int] = {}
        for place, code in enumerate(first[left:right].tolist()):
            masks[code] = masks.get(code, 0) | 1 << place
        all_columns = (1 << right - left) - 1
        for code in second[first_row : first_row + _ROWS].tolist():
            matches = row & masks.get(code, 0)
            row = ((row + matches) | (row - matches)) & all_columns
    return n_left + right - left - row.bit_count()


def runs_of_codes(codes: Int64, length: int) -> Int64:
    """Return a number from 0 for the run of so many codes that begins at each place.

    Codes behind the last are -1.
    """
    following = np.append(codes + 1, np.zeros(length, np.int64)).astype(np.uint64)
    mixed = np.zeros(codes.size, np.uint64)
    for shift in range(length):
        mixed = mixed * np.uint64(1_000_003) + following[shift : shift + codes.size]
        mixed ^= mixed >> np.uint64(31)
    return np.unique(mixed, return_inverse=True)[1].astype(np.int64)
