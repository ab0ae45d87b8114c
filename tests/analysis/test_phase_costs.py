"""What each phase costs on the host and on the device."""

from __future__ import annotations

import numpy as np

from nsyspipe.analysis.breakdown import device_time
from nsyspipe.analysis.phases import phase_costs
from nsyspipe.analysis.steps import Windows, step_windows
from nsyspipe.analysis.summary import phase_summary
from nsyspipe.model import schema
from tests.build.make import comm, compute, dtod, ints, listed, members, memset, operations, phase

TWO = members((0, 100), (100, 200))
TIMES = ("compute_ns", "comm_ns", "device_ns", "exposed_comm_ns", "idle_ns")


def costs(ranges, *ops, windows=None, idle=(0, 0)):
    made = operations(*ops)
    windows = step_windows(TWO, made) if windows is None else windows
    found = phase_costs(
        ranges,
        TWO,
        made,
        windows,
        belongs=(launched_in(ranges, made.kernel_launch), launched_in(ranges, made.copy_launch)),
        device=device_time(made),
        idle_ns=ints(*idle)[: len(windows)],
    )
    return listed(found)


def launched_in(ranges, launches):
    spans = list(zip(ranges.starts, ranges.ends, strict=True))
    return np.array([any(a <= at < b for a, b in spans) for at in launches], np.bool_)


def test_a_phase_costs_what_was_launched_inside_it_clipped_to_the_window():
    # Windows: [10, 130), [130, 190). The second kernel runs [110, 150): 20 in the first window.
    found = costs(
        phase((0, 20, 60), (1, 120, 150)),
        compute(10, 30, 5),  # before the phase
        compute(110, 150, 20),  # at its start
        comm(40, 60, 59),
        comm(60, 70, 60),  # at its end
        dtod(50, 90, 30),  # a copy is no kernel, but the device's time
        compute(130, 190, 130),
        idle=(7, 3),
    )
    # On the device [40, 90) and [110, 130); in the second window 20 of the first step's kernel,
    # inside the 60 of its own.
    assert found == {
        "member": [0, 1],
        "host_ns": [40, 30],
        "n_kernels": [2, 1],
        "compute_ns": [20, 60],
        "comm_ns": [20, 0],
        "device_ns": [70, 60],
        "exposed_comm_ns": [20, 0],
        "idle_ns": [7, 3],
    }


def test_copies_and_memsets_of_a_phase_are_its_device_time_though_it_has_no_kernel():
    found = costs(
        phase((0, 20, 60)),
        compute(10, 100, 5),
        dtod(15, 25, 20),
        memset(20, 40, 59),
        dtod(50, 60, 60),  # launched at the phase's end
        dtod(70, 75),  # never launched
    )
    assert found["n_kernels"] == [0]
    assert [found[name] for name in TIMES] == [[0], [0], [25], [0], [0]]


def test_a_step_without_a_window_has_no_device_times():
    only_second = Windows(ints(1), ints(110), ints(150), np.array([False]))
    found = costs(phase((0, 10, 30), (1, 110, 120)), compute(110, 150, 115), windows=only_second, idle=(6,))
    assert (found["host_ns"], found["n_kernels"]) == ([20, 10], [0, 1])
    assert [found[name] for name in TIMES] == [[-1, 40], [-1, 0], [-1, 40], [-1, 0], [-1, 6]]


def test_without_launches_there_are_host_times_only():
    nothing = dict.fromkeys(("n_kernels", *TIMES))
    assert costs(phase((0, 10, 30)), compute(10, 20)) == {
        "member": [0], "host_ns": [20], **nothing,
    }  # fmt: skip


# --- the phases of a run -------------------------------------------------------------------

ALL_TIMES = ("host_ns", *TIMES)


def means(*rows):
    """Return the means of rows of (phase, host time, ...), all other times being equal to the last given."""
    filled = [(row[0], *row[1:], *[row[-1]] * (len(ALL_TIMES) + 1 - len(row))) for row in rows]
    keys = ("phase", *ALL_TIMES)
    table = schema.PHASES.from_rows([dict(zip(keys, row, strict=True)) for row in filled])
    found = phase_summary(table).to_pylist()
    return {one.pop("phase"): list(one.values()) for one in found}


def test_a_phase_of_a_run_has_the_means_over_the_ranks_and_steps_that_have_it():
    found = means(("forward", 10, 4), ("backward", 30, 2), ("forward", 13, 5))
    assert found == {"backward": [30.0, *[2.0] * 5], "forward": [11.5, *[4.5] * 5]}
    assert list(found) == ["backward", "forward"]


def test_the_mean_of_a_time_that_is_null_anywhere_is_null_and_no_other():
    assert means(("data", 10, 4), ("data", 12, None)) == {"data": [11.0, *[None] * 5]}


def test_a_run_without_phases_has_no_means():
    assert means() == {}
