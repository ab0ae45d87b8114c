"""GPU memory around two runs: peaks of the rank with most, retries, and calls that allocate."""

import pytest

from nsyspipe.comparison.surroundings import (
    ALLOC_RETRIES,
    ALLOCATIONS,
    PEAK_ALLOCATED,
    PEAK_RESERVED,
)
from tests.build.trace import steady_rank
from tests.comparison.conftest import changes
from tests.findings.test_memory import freeing_rank
from tests.report.test_memory import GIB, PEAKS, loaded


def memory_changes(before, after):
    """Return what differs about memory as (baseline, candidate, difference) by name."""
    return {
        what: values
        for (topic, what), values in changes(before, after).items()
        if topic == "memory"
    }


@pytest.fixture
def made(tmp_path):
    """Return a function that makes the run of ranks with some memory."""

    def make(name, *memories, builder=steady_rank):
        folder = tmp_path / name
        folder.mkdir()
        return loaded(folder, builder, *memories)

    return make


def test_peaks_and_retries_that_differ_are_changes(made):
    more = PEAKS | {"peak_reserved_bytes": 13 * GIB, "allocator_retries": 5}
    assert memory_changes(made("a", PEAKS, PEAKS), made("b", PEAKS, more)) == {
        PEAK_RESERVED: (12 * GIB, 13 * GIB, GIB),
        ALLOC_RETRIES: (3, 5, 2),
    }


def test_equal_peaks_are_no_change(made):
    assert memory_changes(made("a", PEAKS), made("b", PEAKS)) == {}


def test_peaks_that_one_side_does_not_know_of_a_rank_are_no_change(made):
    lower = PEAKS | {"peak_allocated_bytes": GIB}
    assert memory_changes(made("a", PEAKS, PEAKS), made("b", lower, None)) == {}


def test_calls_that_allocate_are_a_change(made):
    after = made("b", None, builder=freeing_rank)
    assert memory_changes(made("a", None), after) == {ALLOCATIONS: (0, 1, 1)}


@pytest.mark.parametrize("name", [PEAK_ALLOCATED, PEAK_RESERVED])
def test_peaks_are_compared_in_bytes(made, name):
    before = made("a", PEAKS)
    after = made("b", PEAKS | {"peak_allocated_bytes": 11 * GIB, "peak_reserved_bytes": 15 * GIB})
    assert memory_changes(before, after)[name][2] in {GIB, 3 * GIB}
