"""Why the devices idle: each cause by hand, and what they sum to."""

from __future__ import annotations

import numpy as np
import pytest

from nsyspipe.analysis import breakdown
from nsyspipe.analysis.breakdown import idle_causes, idle_gaps, phase_idle
from nsyspipe.analysis.intervals import EMPTY, union
from nsyspipe.model.schema import IDLE_CAUSES as CAUSES
from tests.build.make import calls, compute, dtod, ints, listed, operations, windows

SYNC, ALLOC = "cudaDeviceSynchronize", "cudaMalloc"

# One gap, [10, 100), ended by a kernel that was launched at 80; the latency is 5, that of the first
# kernel, so it could have started at R = 85: late for 75, then dependent for 15.
FIRST, LAST = compute(0, 10, -5), compute(100, 110, 80)


def parts(*ops, data=(), blocking=(), spans=((0, 110),)):
    """Return the causes as (input, launch, blocked, dependency, unknown), one number per window."""
    found, _ = causes(*ops, data=data, blocking=blocking, spans=spans)
    assert tuple(found) == (*CAUSES, "idle_between_steps_ns", "idle_pause_ns")
    columns = [None if found[name] is None else found[name].tolist() for name in CAUSES]
    return columns if len(spans) > 1 else [None if one is None else one[0] for one in columns]


def causes(*ops, data=(), blocking=(), spans=((0, 110),)):
    """Explain the idle time of some windows; it must come out whole."""
    idle = ints(*(counted_idle(ops, *span) for span in spans))
    ranges = union(ints(*(a for a, _ in data)), ints(*(b for _, b in data))) if data else EMPTY
    table = None if blocking is None else calls(*blocking)
    columns, by_call = idle_causes(idle_gaps(operations(*ops)), windows(*spans), idle, ranges, table)
    if blocking is not None:
        assert sum(columns[name] for name in CAUSES).tolist() == idle.tolist()
        assert all((one >= 0).all() for one in columns.values())
        blocked = columns["idle_blocked_ns"]
        assert sum(by_call.values(), np.zeros_like(blocked)).tolist() == blocked.tolist()
        assert all(one.any() for one in by_call.values())
    return columns, by_call


def counted_idle(ops, start, end):
    return end - start - len({t for op in ops for t in range(op.start, op.end)} & {*range(start, end)})  # fmt: skip


def by_call(*ops, **more):
    """Return the blocked time of each call, of all windows together."""
    return {call: one.sum() for call, one in causes(*ops, **more)[1].items()}


# --- the causes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ops", "host", "expected"),
    [
        # Late until the kernel could have started; launched before the gap, or so that its latency reaches into it.
        ((FIRST, LAST), {}, [0, 75, 0, 15, 0]),
        ((FIRST, compute(100, 110, 3)), {}, [0, 0, 0, 90, 0]),
        ((FIRST, compute(100, 110, 8)), {}, [0, 3, 0, 87, 0]),  # R = 13
        # Of copies the latency may be shorter; without a launch the cause is unknown, and so before and after all operations.
        ((FIRST, dtod(100, 110, 98)), {}, [0, 90, 0, 0, 0]),
        ((FIRST, dtod(100, 110)), {"data": [(0, 100)], "blocking": [(0, 100, SYNC)]}, [0, 0, 0, 0, 90]),
        ((FIRST, LAST), {"spans": [(-20, 200)]}, [0, 75, 0, 15, 110]),
        # The data phase explains what it covers of the late part, before a call that blocks; that in the middle its own time.
        ((FIRST, LAST), {"data": [(0, 30), (80, 95)]}, [25, 50, 0, 15, 0]),
        ((FIRST, LAST), {"blocking": [(30, 40, SYNC), (84, 95, ALLOC)]}, [0, 64, 11, 15, 0]),
        ((FIRST, LAST), {"data": [(20, 40)], "blocking": [(30, 50, SYNC)]}, [20, 45, 10, 15, 0]),
    ],
)
def test_what_explains_a_gap(ops, host, expected):
    assert parts(*ops, **host) == expected


def test_a_blocking_call_under_way_when_the_gap_begins_explains_the_whole_rest():
    # The host waited for the first kernel, and could launch nothing before it returned at 12.
    assert parts(FIRST, LAST, blocking=[(5, 12, SYNC)]) == [0, 0, 75, 15, 0]
    assert parts(FIRST, LAST, blocking=[(10, 11, SYNC)]) == [0, 0, 75, 15, 0]
    assert parts(FIRST, LAST, blocking=[(5, 10, SYNC)]) == [0, 75, 0, 15, 0]  # it was over


@pytest.mark.parametrize(
    ("late", "blocking", "pause"),
    [
        (40, (), 40),
        (39, (), 0),
        # A call in between parts the stretch.
        (60, ((30, 31, SYNC),), 0),
        (90, ((50, 60, SYNC),), 80),
    ],
)
def test_a_pause_is_a_long_stretch_in_which_nothing_is_launched(monkeypatch, late, blocking, pause):
    monkeypatch.setattr(breakdown, "PAUSE_NS", 40)
    # Launched with no latency, each kernel starts when it comes; windows cut the gap in two.
    ops = (compute(0, 10, 0), compute(10 + late, 20 + late, 10 + late))
    half = 10 + late // 2
    found, _ = causes(*ops, blocking=blocking, spans=((0, half), (half, 20 + late)))
    assert found["idle_pause_ns"].sum() == pause
    assert (found["idle_pause_ns"] <= found["idle_launch_ns"]).all()


# --- what was not recorded -----------------------------------------------------------------


def test_without_the_ends_of_calls_blocked_and_launch_cannot_be_told_apart():
    assert parts(FIRST, LAST, data=[(20, 50)], blocking=None) == [30, None, None, 15, 0]
    assert by_call(FIRST, LAST, blocking=None) == {}


def test_without_idle_time_there_are_no_causes():
    gaps = idle_gaps(operations(FIRST, LAST))
    found = idle_causes(gaps, windows((0, 110)), None, EMPTY, calls((0, 90, SYNC)))
    assert found == (dict.fromkeys((*CAUSES, "idle_between_steps_ns", "idle_pause_ns")), {})


def test_no_windows_have_no_causes():
    gaps = idle_gaps(operations(FIRST, LAST))
    found, by_name = idle_causes(gaps, windows(), ints(), EMPTY, calls((5, 12, SYNC)))
    assert ([one.tolist() for one in found.values()], by_name) == ([[]] * 7, {})


# --- by call -------------------------------------------------------------------------------


def test_blocked_time_is_told_by_call():
    blocking = [(20, 25, SYNC), (30, 50, ALLOC), (60, 64, SYNC)]
    assert by_call(FIRST, LAST, blocking=blocking) == {ALLOC: 20, SYNC: 9}


def test_blocked_time_of_a_call_is_told_by_window():
    # Blocked [20, 25) and [60, 64) in the one, [30, 50) in the other; a window edge cuts both.
    blocking = [(20, 25, SYNC), (30, 50, ALLOC), (60, 64, SYNC)]
    spans = [(0, 22), (22, 40), (40, 63), (63, 110)]
    found = causes(FIRST, LAST, blocking=blocking, spans=spans)[1]
    assert listed(found) == {SYNC: [2, 3, 3, 1], ALLOC: [0, 10, 10, 0]}


def test_the_call_under_way_at_the_start_gets_the_whole_rest():
    blocking = [(5, 12, SYNC), (30, 50, ALLOC)]
    assert by_call(FIRST, LAST, blocking=blocking) == {SYNC: 75}


def test_of_calls_under_way_together_the_one_that_lasts_longest_gets_the_time():
    assert by_call(FIRST, LAST, blocking=[(2, 11, ALLOC), (6, 30, SYNC)]) == {SYNC: 75}
    assert by_call(FIRST, LAST, blocking=[(2, 30, ALLOC), (6, 11, SYNC)]) == {ALLOC: 75}


def test_calls_that_follow_one_another_each_get_their_own_time():
    # Two threads: one call ends when the other begins, or after it began.
    assert by_call(FIRST, LAST, blocking=[(20, 30, ALLOC), (30, 50, SYNC)]) == {SYNC: 20, ALLOC: 10}
    assert by_call(FIRST, LAST, blocking=[(20, 30, ALLOC), (25, 50, SYNC)]) == {SYNC: 20, ALLOC: 10}


def test_blocked_time_outside_of_all_windows_is_of_no_call():
    assert by_call(FIRST, LAST, blocking=[(5, 12, SYNC)], spans=[(20, 30), (30, 35)]) == {SYNC: 15}
    assert by_call(FIRST, LAST, blocking=[(70, 80, SYNC)], spans=[(20, 30)]) == {}


# --- by phase ------------------------------------------------------------------------------


def test_idle_time_belongs_to_the_phase_of_the_operation_that_ends_the_gap():
    # Gaps [10, 20) of phase 0, [30, 40) of none, [50, 60) of phase 1; the second window begins at 55.
    gaps = idle_gaps(operations(*(compute(at, at + 10, at - 1) for at in (0, 20, 40, 60))))
    found = phase_idle(gaps, windows((5, 55), (55, 70)), np.array([0, -1, 1], np.int8), 3)
    assert [one.tolist() for one in found] == [[10, 0], [5, 5], [0, 0]]
