"""How much slower a kernel runs under communication: what is compared with what."""

from __future__ import annotations

import numpy as np
import pytest

from nsyspipe.analysis.intervals import union
from nsyspipe.analysis.kernels import comm_delays, kernel_slowdown
from tests.build.make import comm, compute, ints, operations, windows

EDGE = (2, 50, 0)  # of another name: nobody's equal, but a neighbour like others
FREE, COVERED = (1, 10, 0), (1, 20, 20)


def slowdown(*kernels, grid=None, block=None):
    """Compare kernels (name, duration, covered); return {kernel: (covered, what that takes free)}."""
    columns = [ints(*(kernel[at] for kernel in kernels)) for at in range(3)]
    shapes = [ints(*([8] * len(kernels) if one is None else one)) for one in (grid, block)]
    kernel, covered, free = (one.tolist() for one in kernel_slowdown(columns[0], *shapes, *columns[1:]))
    return dict(zip(kernel, zip(covered, free, strict=True), strict=True))


def between_edges(*kernels):
    """Put three neighbours of the same name on either side, so that all in between are equal."""
    first = kernels[0] if kernels else EDGE
    edge = (first[0], 50, 50)
    return (*[edge] * 3, *kernels, *[edge] * 3)


def test_what_a_kernel_takes_longer_than_its_free_equals_it_lost_beside_communication():
    # Free 12, 10, 13 (median 12). Of 40 all was covered, of 14 a half, of 17 a little.
    found = slowdown(*between_edges((1, 40, 40), (1, 12, 0), (1, 14, 7), (1, 10, 0), (1, 13, 0), (1, 17, 6)))
    assert found == {3: (40, 40 - 28), 5: (7, 7 - 2), 8: (6, 6 - 5)}


def test_half_a_kernel_beside_communication_counts_half():
    # Ten per cent beside communication: 110 for 100 when all of it is covered, 105 for about half.
    free = [(1, 100, 0)] * 3
    whole, half = (slowdown(*between_edges(*free, one))[6] for one in ((1, 110, 110), (1, 105, 55)))
    assert whole == (110, 100)
    assert half == (55, 50)


def test_no_more_is_lost_than_was_covered():
    # A kernel that began beside communication for 2 and waited for a place: 30 for 10.
    assert slowdown(*between_edges(*[FREE] * 3, (1, 30, 2)))[6] == (2, 0)


def test_medians_of_even_numbers_are_floored():
    free = (1, 10, 0), (1, 12, 0), (1, 11, 0), (1, 13, 0)
    assert slowdown(*between_edges(*free, COVERED))[7] == (20, 20 - (20 - 11))


@pytest.mark.parametrize(("n_covered", "n_free"), [(3, 2), (6, 0), (0, 6)])
def test_fewer_than_three_that_ran_free_are_not_compared_with(n_covered, n_free):
    assert slowdown(*between_edges(*[COVERED] * n_covered, *[FREE] * n_free)) == {}


def test_free_ones_that_differ_are_of_several_shapes():
    # Of 10 and of 20: whatever ran beside communication, nobody knows which of them it is like.
    free = [(1, 10, 0)] * 4 + [(1, 20, 0)] * 4
    assert slowdown(*between_edges(*free, COVERED)) == {}
    alike = [(1, 10, 0)] * 4 + [(1, 14, 0)] * 4
    assert slowdown(*between_edges(*alike, COVERED)) == {11: (20, 12)}


def test_kernels_of_no_length_are_not_compared_but_are_neighbours():
    nothing = (1, 0, 0)
    assert slowdown(*between_edges(FREE, FREE, nothing, COVERED, COVERED, COVERED)) == {}
    found = slowdown(*between_edges(FREE, FREE, nothing, FREE, COVERED, COVERED, COVERED))
    assert {at: pair for at, pair in found.items() if at in (7, 8, 9)} == dict.fromkeys((7, 8, 9), (20, 10))


def test_a_kernel_is_not_equal_to_one_of_another_name():
    # Names 1 and 2 in turn, so that either has its own neighbours.
    turn = [(1, 10, 0), (2, 10, 0)] * 4 + [(1, 30, 30), (2, 10, 0)] * 6
    # Of name 1 the places 4, 6 ran free; 2 has its first full set of neighbours at 4 too.
    assert slowdown(*turn) == {}
    turn = [(1, 10, 0), (2, 70, 0)] * 5 + [(1, 30, 30), (2, 70, 0)] * 5
    found = slowdown(*turn)
    # Of name 1 [4, 6, 8] ran free and [10, 12, 14, 16] did not; of name 2 all ran free.
    assert found == dict.fromkeys((10, 12, 14, 16), (30, 10))


@pytest.mark.parametrize("offset", [-3, -2, -1, 1, 2, 3])
def test_each_of_the_three_neighbours_on_either_side_tells_places_apart(offset):
    place = [(2, 1, 0)] * 3, [(2, 1, 0)] * 3
    other = [list(side) for side in place]
    side, at = (0, 3 + offset) if offset < 0 else (1, offset - 1)
    other[side][at] = (3, 1, 0)
    same, moved = ([*one[0], "kernel", *one[1]] for one in (place, other))

    def run(*surroundings):
        """Put a free kernel into the first three surroundings, a covered one into the last three."""
        kernels = [FREE] * 3 + [COVERED] * 3
        pairs = zip(surroundings, kernels, strict=True)
        return [one if one != "kernel" else kernel for places, kernel in pairs for one in places]

    def of_name_1(kernels):
        return {at for at in slowdown(*kernels) if kernels[at][0] == 1}

    assert of_name_1(run(*[same] * 6)) == {24, 31, 38}
    assert of_name_1(run(*[same] * 3, *[moved] * 3)) == set()


def test_equal_kernels_have_equal_grids_and_blocks():
    kernels = between_edges(*[FREE] * 3, *[COVERED] * 3)
    same, other = [8] * 12, [8] * 6 + [9] + [8] * 5
    compared = {6: (20, 10), 7: (20, 10), 8: (20, 10)}
    assert slowdown(*kernels, grid=same, block=same) == compared
    assert slowdown(*kernels, grid=other) == {}
    assert slowdown(*kernels, block=other) == {}


def test_grids_that_use_all_bits_are_told_apart():
    # gridZ of 65535 fills the sign bit; only gridX differs.
    top = -(1 << 48)
    kernels = between_edges(*[FREE] * 3, *[COVERED] * 3)
    assert slowdown(*kernels, grid=[top | 5] * 12).keys() == {6, 7, 8}
    assert slowdown(*kernels, grid=[top | 5] * 6 + [top | 4] * 6) == {}


def test_kernels_that_lack_a_neighbour_are_equal_to_none():
    # Of eight equal ones in a row two have three neighbours on either side.
    assert slowdown(*[FREE] * 4, *[COVERED] * 4) == {}
    zero = (0, 10, 0), (0, 20, 20)  # names and shapes of 0 are no exception
    assert slowdown(*[zero[0]] * 5, *[zero[1]] * 5, grid=[0] * 10, block=[0] * 10) == {}


# --- how much later operations begin ---------------------------------------------------------


def delays(n=100, *, beside=7, **changed):
    """Ask of n kernels of 10 ns without communication, 3 ns apart, and n beside it; launched at once."""
    free = [compute(at, at + 10, 0) for at in range(1000, 1000 + 13 * n, 13)]
    begin = 1000 + 13 * n
    every = 10 + beside
    late = [compute(at, at + 10, 0) for at in range(begin + 50, begin + 50 + every * n, every)]
    nccl = comm(begin + 20, begin + 60 + every * n, 0)
    ops = operations(*free, *late, nccl)
    spans = windows((0, begin), (begin, begin + 10**6))
    found = comm_delays(ops, union(*(np.array([one]) for one in (nccl.start, nccl.end))), spans)
    return None if found is None else found.tolist()


def test_what_begins_later_beside_communication_counts_for_all_that_began_there():
    # The first of them waits 50 ns, of which 20 are before the communication: it is beside it only in part.
    assert delays(101) == [0, 101 * 4]
    assert delays(101, beside=2) == [0, 0]


def test_fewer_than_a_hundred_gaps_say_nothing():
    assert delays(100) is None


def test_without_communication_nothing_begins_later():
    ops = operations(compute(0, 10, 0))
    assert comm_delays(ops, union(np.empty(0, np.int64), np.empty(0, np.int64)), windows((0, 20))).tolist() == [0]  # fmt: skip
