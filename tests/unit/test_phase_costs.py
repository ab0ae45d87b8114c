"""What each phase costs on the host and on the device."""

from __future__ import annotations

import numpy as np

from nsyspipe.metrics.phases import phase_costs
from nsyspipe.phases import PhaseRanges
from nsyspipe.steps import Windows, step_windows
from tests.unit.make import comm, compute, dtod, ints, members, operations

TWO = members((0, 100), (100, 200))


def phase(*rows):
    """Build the ranges of a phase from (step, start, end)."""
    return PhaseRanges(*(ints(*(row[at] for row in rows)) for at in range(3)))


def costs(ranges, *ops, windows=None):
    made = operations(*ops)
    found = phase_costs(ranges, TWO, made, step_windows(TWO, made) if windows is None else windows)
    return {name: None if one is None else one.tolist() for name, one in found.items()}


def test_a_phase_costs_what_was_launched_inside_it_clipped_to_the_window():
    # Windows: [10, 130), [130, 190). The second kernel runs [110, 150): 20 in the first window.
    found = costs(
        phase((0, 20, 60), (1, 120, 150)),
        compute(10, 30, 5),  # before the phase
        compute(110, 150, 20),  # at its start
        comm(40, 60, 59),
        comm(60, 70, 60),  # at its end
        dtod(50, 90, 30),  # a copy is no kernel
        compute(130, 190, 130),
    )
    # In the second window: 20 of the first step's kernel, inside the 60 of its own.
    assert found == {
        "member": [0, 1], "host_ns": [40, 30], "n_kernels": [2, 1], "compute_ns": [20, 60], "comm_ns": [20, 0],
    }  # fmt: skip


def test_ranges_of_a_phase_that_overlap_or_touch_count_once():
    found = costs(
        phase((0, 10, 40), (0, 30, 60), (1, 100, 120), (1, 120, 130)),
        compute(10, 20, 35),  # inside both of the first
        compute(130, 140, 120),
    )
    assert found == {
        "member": [0, 1], "host_ns": [50, 30], "n_kernels": [1, 1], "compute_ns": [10, 10], "comm_ns": [0, 0],
    }  # fmt: skip


def test_a_phase_that_ends_with_its_step_does_not_run_into_the_next_one():
    found = costs(phase((0, 50, 100), (1, 100, 110)), compute(10, 20, 99), compute(120, 130, 100))
    assert found == {
        "member": [0, 1], "host_ns": [50, 10], "n_kernels": [1, 1], "compute_ns": [10, 10], "comm_ns": [0, 0],
    }  # fmt: skip


def test_steps_without_the_phase_have_no_row():
    found = costs(phase((1, 110, 120)), compute(10, 20, 5), compute(120, 130, 115))
    assert found == {
        "member": [1], "host_ns": [10], "n_kernels": [1], "compute_ns": [10], "comm_ns": [0],
    }  # fmt: skip


def test_a_step_without_a_window_has_no_device_times():
    only_second = Windows(ints(1), ints(110), ints(150), np.array([False]))
    found = costs(phase((0, 10, 30), (1, 110, 120)), compute(110, 150, 115), windows=only_second)
    assert found == {
        "member": [0, 1], "host_ns": [20, 10], "n_kernels": [0, 1], "compute_ns": [-1, 40], "comm_ns": [-1, 0],
    }  # fmt: skip


def test_without_launches_there_are_host_times_only():
    assert costs(phase((0, 10, 30)), compute(10, 20)) == {
        "member": [0], "host_ns": [20], "n_kernels": None, "compute_ns": None, "comm_ns": None,
    }  # fmt: skip


def test_a_phase_without_ranges_has_no_rows():
    found = costs(phase(), compute(10, 20, 5))
    assert (found["member"], found["host_ns"]) == ([], [])
