"""How much slower a kernel runs under communication: what is compared with what."""

from __future__ import annotations

import pytest

from nsyspipe.attribution import UNKNOWN
from nsyspipe.metrics.slowdown import kernel_slowdown
from tests.unit.make import ints

EDGE = (1, 50, 25)  # half covered: compared with nothing, but a neighbour like others
FREE, COVERED = (1, 10, 0), (1, 20, 20)


def slowdown(*kernels, grid=None, block=None):
    """Compare kernels (name, duration, covered); return {kernel: (covered median, free median)}."""
    columns = [ints(*(kernel[at] for kernel in kernels)) for at in range(3)]
    shapes = [ints(*([8] * len(kernels) if one is None else one)) for one in (grid, block)]
    found = kernel_slowdown(columns[0], *shapes, *columns[1:])
    medians = zip(found.covered_ns.tolist(), found.free_ns.tolist(), strict=True)
    return dict(zip(found.kernel.tolist(), medians, strict=True))


def between_edges(*kernels):
    """Put three neighbours of the same name on either side, so that all in between are equal."""
    return (*[EDGE] * 3, *kernels, *[EDGE] * 3)


def test_medians_of_equal_kernels_under_communication_and_free():
    # Under communication 40, 14, 17; free 12, 10, 31.
    found = slowdown(
        *between_edges((1, 40, 40), (1, 12, 0), (1, 14, 14), (1, 10, 0), (1, 31, 0), (1, 17, 17))
    )
    assert found == {3: (17, 12), 5: (17, 12), 8: (17, 12)}


def test_medians_of_even_numbers_are_floored():
    under = (1, 20, 20), (1, 21, 21), (1, 25, 25), (1, 20, 20)
    free = (1, 7, 0), (1, 10, 0), (1, 12, 0), (1, 13, 0)
    found = slowdown(*between_edges(*under, *free))
    assert set(found.values()) == {(20, 11)}  # of 20, 20, 21, 25 and of 7, 10, 12, 13


@pytest.mark.parametrize(("n_covered", "n_free"), [(2, 3), (3, 2), (6, 0), (0, 6)])
def test_fewer_than_three_of_either_sort_are_not_compared(n_covered, n_free):
    assert slowdown(*between_edges(*[COVERED] * n_covered, *[FREE] * n_free)) == {}


def test_ninety_per_cent_under_communication_is_enough_and_a_little_is_not_free():
    kernels = *[FREE] * 3, (1, 10, 9), (1, 100, 90), (1, 20, 20), (1, 100, 89), (1, 30, 1)
    # Covered 10, 20, 100; the 89 % and the 1 ns are neither covered nor free.
    assert slowdown(*between_edges(*kernels)) == dict.fromkeys((6, 7, 8), (20, 10))


def test_kernels_of_no_length_are_not_compared_but_are_neighbours():
    nothing = (1, 0, 0)
    assert slowdown(*between_edges(FREE, FREE, nothing, COVERED, COVERED, COVERED)) == {}
    found = slowdown(*between_edges(FREE, FREE, nothing, FREE, COVERED, COVERED, COVERED))
    assert found == dict.fromkeys((7, 8, 9), (20, 10))


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


def test_kernels_whose_grid_was_not_sampled_are_not_compared():
    kernels = between_edges(*[FREE] * 3, *[COVERED] * 3)
    assert slowdown(*kernels, grid=[UNKNOWN] * 12) == {}


def test_kernels_that_lack_a_neighbour_are_equal_to_none():
    # Of eight equal ones in a row two have three neighbours on either side.
    assert slowdown(*[FREE] * 4, *[COVERED] * 4) == {}
    zero = (0, 10, 0), (0, 20, 20)  # names and shapes of 0 are no exception
    assert slowdown(*[zero[0]] * 5, *[zero[1]] * 5, grid=[0] * 10, block=[0] * 10) == {}


def test_without_kernels_nothing_is_compared():
    assert slowdown() == {}
