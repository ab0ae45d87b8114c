"""How alike sequences are: what two hold in the same order, the block that only one of them has, and equal runs of codes."""

from typing import Final

import numpy as np

from nsyspipe.model.table import Int64

_ROWS: Final = 2048  # that are aligned at once
_MOST_APART: Final = 2048  # items that are one: so that time grows with the length alone
_NO_BLOCK: Final = slice(0, 0)


def agreement(shorter: Int64, longer: Int64, least: float) -> tuple[float, slice]:
    """Return which part of the longer sequence is in the shorter one too, in order, and what of it was left out: a block.

    Without that block they agree to `least` or more; it is empty where they do as they are. 0 where
    they agree to less.
    """
    before = _n_equal(shorter, longer[: shorter.size])
    behind = _n_equal(shorter[before:][::-1], longer[::-1][: shorter.size - before])
    n_added = longer.size - shorter.size
    allowed = int((1 - least) * longer.size)
    middles = shorter[before : shorter.size - behind], longer[before : longer.size - behind]
    if n_added <= allowed and middles[1].size - n_shared(*middles) <= allowed:
        part = (before + behind + n_common(*middles, min(allowed, _MOST_APART))) / longer.size
        if part >= least:
            return part, _NO_BLOCK
    if not n_added:
        return 0.0, _NO_BLOCK
    if before + behind >= least * shorter.size:
        return (before + behind) / shorter.size, slice(before, longer.size - behind)
    for block in (slice(0, n_added), slice(shorter.size, longer.size)):
        part = agreement(shorter, np.delete(longer, block), least)[0]
        if part >= least:
            return part, block
    return 0.0, _NO_BLOCK


def _n_equal(one: Int64, other: Int64) -> int:
    return int(np.append(one != other, True).argmax())


def n_shared(one: Int64, other: Int64) -> int:
    """Return how many items are in both, in whatever order: no common subsequence is longer."""
    codes, number = np.unique(np.concatenate([one, other]), return_inverse=True)
    counts = [
        np.bincount(own, minlength=codes.size) for own in (number[: one.size], number[one.size :])
    ]
    return int(np.minimum(*counts).sum())


def n_common(one: Int64, other: Int64, most_apart: int) -> int:
    """Return the length of the longest common subsequence of items at most so far apart, or of some farther apart too.

    Crochemore's recurrence on bits, one number a row, of which only those columns are held that are
    near the row.
    """
    # a column that adds nothing to the length is 1
    n_left = 0
    left = 0
    right = 0
    row = 0
    for at in range(0, other.size, _ROWS):
        begin = min(max(0, at - most_apart), one.size)
        end = min(one.size, at + _ROWS + most_apart)
        n_left += begin - left - (row & ((1 << begin - left) - 1)).bit_count()
        row = (row | ((1 << end - right) - 1) << right - left) >> begin - left
        left = begin
        right = end
        masks: dict[int, int] = {}
        for place, code in enumerate(one[left:right].tolist()):
            masks[code] = masks.get(code, 0) | 1 << place
        every = (1 << right - left) - 1
        for code in other[at : at + _ROWS].tolist():
            matches = row & masks.get(code, 0)
            row = ((row + matches) | (row - matches)) & every
    return n_left + right - left - row.bit_count()


def runs_of_codes(codes: Int64, length: int) -> Int64:
    """Return a number from 0 for the run of so many codes that begins at each; behind the last all are -1."""
    following = np.append(codes + 1, np.zeros(length, np.int64)).astype(np.uint64)
    mixed = np.zeros(codes.size, np.uint64)
    for shift in range(length):
        mixed = mixed * np.uint64(1_000_003) + following[shift : shift + codes.size]
        mixed ^= mixed >> np.uint64(31)
    return np.unique(mixed, return_inverse=True)[1].astype(np.int64)
