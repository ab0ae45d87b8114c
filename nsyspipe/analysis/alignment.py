"""How alike two sequences are, the block that only one of them has, and equal runs of codes."""

from typing import Final

import numpy as np

from nsyspipe.model.table import Int64

# Rows that are aligned at once.
_ROWS: Final = 2048
# Items of a common subsequence are at most so far apart, so that the time grows linearly.
_MAX_DISTANCE: Final = 2048
_NO_BLOCK: Final = slice(0, 0)


def agreement(shorter: Int64, longer: Int64, min_share: float) -> tuple[float, slice]:
    """Return how much two sequences agree, and the block of the longer one that is left out.

    The agreement is the share of the longer sequence that the shorter one has in the same order.
    It has to reach `min_share`. The sequences are compared in four ways, and the first that reaches
    the limit counts:

    1. Both are whole. Then no block is left out, and the second result is an empty slice.
    2. The longer one is without its middle, which differs from the shorter one.
    3. The longer one is without its begin, so that both have the same length.
    4. The longer one is without its end, so that both have the same length.

    If no way reaches the limit, the agreement is 0, and no block is left out.
    """
    n_equal_at_begin = _n_equal(shorter, longer[: shorter.size])
    # What is equal at the begin is not counted again at the end.
    rest = shorter[n_equal_at_begin:]
    end_of_longer = longer[longer.size - rest.size :]
    n_equal_at_end = _n_equal(rest[::-1], end_of_longer[::-1])
    n_equal = n_equal_at_begin + n_equal_at_end
    short_middle = shorter[n_equal_at_begin : shorter.size - n_equal_at_end]
    middle_of_longer = slice(n_equal_at_begin, longer.size - n_equal_at_end)
    long_middle = longer[middle_of_longer]
    max_missing = int((1 - min_share) * longer.size)
    if _may_agree(short_middle, long_middle, max_missing):
        max_distance = min(max_missing, _MAX_DISTANCE)
        n_equal_in_middle = n_common(short_middle, long_middle, max_distance)
        share = (n_equal + n_equal_in_middle) / longer.size
        if share >= min_share:
            return share, _NO_BLOCK
    if longer.size == shorter.size:
        # Neither sequence has a block that the other one lacks.
        return 0.0, _NO_BLOCK
    share_without_middle = n_equal / shorter.size
    if share_without_middle >= min_share:
        return share_without_middle, middle_of_longer
    return _agreement_of_equal_length(shorter, longer, min_share)


def _agreement_of_equal_length(
    shorter: Int64, longer: Int64, min_share: float
) -> tuple[float, slice]:
    """Return the agreement without the begin of the longer sequence, or without its end.

    The part that is left out is the second result. It is so long that both sequences have the same
    length. The begin is tried first. If neither agreement reaches `min_share`, the result is 0 and
    an empty slice.
    """
    first_block = slice(0, longer.size - shorter.size)
    last_block = slice(shorter.size, longer.size)
    for block in (first_block, last_block):
        without_block = np.delete(longer, block)
        share, _ = agreement(shorter, without_block, min_share)
        if share >= min_share:
            return share, block
    return 0.0, _NO_BLOCK


def _may_agree(shorter: Int64, longer: Int64, max_missing: int) -> bool:
    """Tell whether a common subsequence may have all but `max_missing` items of the longer one."""
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
    distinct_items, number_of_item = np.unique(items, return_inverse=True)
    n_distinct = distinct_items.size
    numbers_in_first = number_of_item[: first.size]
    numbers_in_second = number_of_item[first.size :]
    n_in_first = np.bincount(numbers_in_first, minlength=n_distinct)
    n_in_second = np.bincount(numbers_in_second, minlength=n_distinct)
    n_in_both = np.minimum(n_in_first, n_in_second)
    return int(n_in_both.sum())


def n_common(first: Int64, second: Int64, max_distance: int) -> int:
    """Return the length of the longest common subsequence.

    An item and its counterpart may be `max_distance` apart. Counterparts that are farther apart
    may be found or missed.

    Think of a table with a column per item of `first` and a row per item of `second`. A cell is the
    length of the longest common subsequence up to its column and row. From a cell to the next in
    its row, the length grows by 0 or 1. `row` is one integer with a bit per column, which is 0 if
    the length grows at that column. So the length at the end of a row is its number of 0 bits.
    Crochemore's recurrence makes each row from the row before.

    Only the columns near the row, from `left` to `right`, are in the integer.
    """
    n_grown_before_left = 0
    left = 0
    right = 0
    row = 0
    for first_row in range(0, second.size, _ROWS):
        new_left = min(max(0, first_row - max_distance), first.size)
        new_right = min(first.size, first_row + _ROWS + max_distance)
        n_leaving = new_left - left
        leaving_bits = row & _ones(n_leaving)
        n_grown_before_left += n_leaving - leaving_bits.bit_count()
        # At columns that enter, the length has not grown yet.
        entering_bits = _ones(new_right - right) << right - left
        row = (row | entering_bits) >> n_leaving
        left = new_left
        right = new_right
        columns_of_code = _columns_of_codes(first[left:right])
        all_columns = _ones(right - left)
        for code in second[first_row : first_row + _ROWS].tolist():
            matches = row & columns_of_code.get(code, 0)
            row = ((row + matches) | (row - matches)) & all_columns
    n_grown_in_row = right - left - row.bit_count()
    return n_grown_before_left + n_grown_in_row


def _ones(n_bits: int) -> int:
    """Return the integer whose lowest `n_bits` bits are 1, and all others 0."""
    return (1 << n_bits) - 1


def _columns_of_codes(codes: Int64) -> dict[int, int]:
    """Return for each code an integer, in which the bits of the columns with that code are 1."""
    columns_of_code: dict[int, int] = {}
    for column, code in enumerate(codes.tolist()):
        columns = columns_of_code.get(code, 0)
        columns_of_code[code] = columns | 1 << column
    return columns_of_code


def runs_of_codes(codes: Int64, length: int) -> Int64:
    """Return for each place the number of the run of `length` codes that begins there, from 0.

    Equal runs have the same number, since they have the same hash. The last runs continue with -1
    behind the last code.
    """
    # All codes are made one higher, so that the -1 behind the last code becomes 0.
    behind_last = np.zeros(length, np.int64)
    following = np.append(codes + 1, behind_last)
    following = following.astype(np.uint64)
    n_codes = codes.size
    hash_of_run = np.zeros(n_codes, np.uint64)
    for shift in range(length):
        hash_of_run = hash_of_run * np.uint64(1_000_003)
        hash_of_run += following[shift : shift + n_codes]
        hash_of_run ^= hash_of_run >> np.uint64(31)
    _, numbers = np.unique(hash_of_run, return_inverse=True)
    return numbers.astype(np.int64)
