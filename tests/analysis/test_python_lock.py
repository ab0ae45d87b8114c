"""Waits for Python's lock in idle time, against a count nanosecond by nanosecond."""

import numpy as np
import pytest

from nsyspipe.analysis.attribution import NEVER
from nsyspipe.analysis.breakdown import Gaps
from nsyspipe.analysis.host_lines import HOST_CAUSES, HostIdleTime
from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.analysis.python_lock import (
    LockWaits,
    ProcessLock,
    find_lock_waits,
    join_lock_waits,
    waits_of_thread,
)
from nsyspipe.model.canonical import HOST_CALLS, LOCK_RANGES
from tests.build.make import ints, windows

OFFSET, LATENCY = 7, 2
# Threads: two that launch, one that only holds the lock, and the sampler of nsys.
MAIN, AUTOGRAD, OTHER, SAMPLER = 1, 2, 3, 4
WAITS, HOLDS = True, False


def lock_ranges(*rows):
    """Build `canonical.LOCK_RANGES` from (thread, whether it waits, start, end)."""
    return LOCK_RANGES.table(
        {
            "process_id": [1] * len(rows),
            "thread_id": [row[0] for row in rows],
            "is_wait": [row[1] for row in rows],
            "start_ns": [row[2] for row in rows],
            "end_ns": [row[3] for row in rows],
            "is_of_sampler": [row[0] == SAMPLER for row in rows],
        }
    )


def launches(*calls):
    """Build `canonical.HOST_CALLS` from (thread, start)."""
    return HOST_CALLS.table(
        {
            "process_id": [1] * len(calls),
            "thread_id": [call[0] for call in calls],
            "start_ns": [call[1] for call in calls],
            "end_ns": [call[1] + 1 for call in calls],
            "correlation_id": [*range(len(calls))],
        }
    )


def gaps_of(*gaps):
    """Build gaps from (start, end, launch on the clock of the device)."""
    starts, ends, launch = (ints(*column) for column in zip(*gaps, strict=True))
    return Gaps(starts, ends, launch, np.arange(starts.size), LATENCY)


def intervals(*spans):
    return IntervalSet(ints(*(start for start, _ in spans)), ints(*(end for _, end in spans)))


def found_of(gaps, ranges, calls, *, idle=None, spans=((0, 1000),)):
    late = intervals(*((start, end) for start, end, _ in gaps))
    idle = idle or HostIdleTime(late, late, intervals())
    lock = ProcessLock(ranges, calls)
    return find_lock_waits(gaps_of(*gaps), windows(*spans), idle, lock, OFFSET)


def ns_of(waits):
    return {
        cause: values.tolist() for cause, values in zip(HOST_CAUSES, waits.ns_by_cause, strict=True)
    }


@pytest.mark.parametrize("seed", range(20))
def test_waits_are_those_of_a_loop_over_nanoseconds(seed):
    random = np.random.default_rng(seed)
    edges = np.sort(random.choice(900, 40, replace=False)).tolist()
    gaps, calls = [], []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        launch = int(random.integers(start - 5, end + 1))
        thread = int(random.choice([MAIN, AUTOGRAD]))
        is_known = random.random() < 0.9
        gaps.append((start, end, launch if is_known else NEVER))
        calls.append((thread, launch - OFFSET))
    rows = []
    for thread in (MAIN, AUTOGRAD, OTHER, SAMPLER):
        times = np.sort(random.choice(1000, 30, replace=False)).tolist()
        for number, (start, end) in enumerate(zip(times[::2], times[1::2], strict=True)):
            rows.append((thread, bool(number % 2), start, end))
    late = union(ints(*edges[::2]), ints(*edges[1::2]))
    idle = HostIdleTime(late, late[::3], late[1::3])
    spans = ((0, 400), (400, 900))
    # Calls may be in any order.
    found = found_of(gaps, lock_ranges(*rows), launches(*calls[::-1]), idle=idle, spans=spans)
    expected = {cause: [0, 0] for cause in HOST_CAUSES}
    for (start, end, launch), (thread, _) in zip(gaps, calls, strict=True):
        if launch == NEVER:
            continue
        for time in range(start, min(launch + LATENCY, end)):
            states = {row[:2] for row in rows if row[2] + OFFSET <= time < row[3] + OFFSET}
            if (thread, WAITS) in states and (SAMPLER, HOLDS) not in states:
                cause = HOST_CAUSES[int(idle.causes_at(ints(time))[0])]
                expected[cause][int(time >= 400)] += 1
    assert ns_of(found) == expected
    assert sum(map(sum, expected.values())) == int(np.sum(found.times.ends - found.times.starts))


def test_only_the_thread_that_launches_next_counts():
    gaps = [(100, 200, 200), (300, 400, 400)]
    calls = launches((MAIN, 200 - OFFSET), (AUTOGRAD, 400 - OFFSET))
    ranges = lock_ranges((MAIN, WAITS, 93, 193), (MAIN, WAITS, 293, 393))
    assert ns_of(found_of(gaps, ranges, calls))["launch"] == [100]


@pytest.mark.parametrize(
    ("holders", "is_one"),
    [
        ([(OTHER, 0, 50)], True),
        ([(OTHER, 0, 49)], False),
        ([(AUTOGRAD, 0, 100)], False),
        ([(SAMPLER, 50, 100), (OTHER, 0, 25)], True),
        ([], False),
    ],
)
def test_the_holder_launches_nothing_and_holds_the_lock_for_half_of_the_waits(holders, is_one):
    gaps = [(100, 200, 200), (300, 301, 301)]
    calls = launches((MAIN, 200 - OFFSET), (AUTOGRAD, 301 - OFFSET))
    rows = [(MAIN, WAITS, 93, 193)]
    rows += [(thread, HOLDS, 93 + start, 93 + end) for thread, start, end in holders]
    assert found_of(gaps, lock_ranges(*rows), calls).has_one_holder == is_one


def test_without_known_causes_nothing_is_known_of_waits():
    lock = ProcessLock(lock_ranges((MAIN, WAITS, 0, 10)), launches((MAIN, 10)))
    late = intervals((0, 10))
    for idle in (None, HostIdleTime(late)):
        assert find_lock_waits(gaps_of((0, 10, 10)), windows((0, 20)), idle, lock, 0) is None


def test_the_sampler_of_nsys_does_not_make_a_thread_wait():
    ranges = lock_ranges((MAIN, WAITS, 0, 10), (SAMPLER, HOLDS, 4, 6))
    waits = waits_of_thread(ProcessLock(ranges, launches()), MAIN)
    assert (waits.starts.tolist(), waits.ends.tolist()) == ([0, 6], [4, 10])


def test_waits_of_captures_follow_each_other_and_one_unknown_makes_all_unknown():
    first = LockWaits(intervals(), (ints(1), ints(2), ints(3)), has_one_holder=True)
    second = LockWaits(intervals(), (ints(4), ints(5), ints(6)), has_one_holder=False)
    joined = join_lock_waits([first, second])
    assert ns_of(joined) == {"input": [1, 4], "launch": [2, 5], "blocked": [3, 6]}
    assert not joined.has_one_holder
    assert join_lock_waits([first, None]) is None
    assert join_lock_waits([None]) is None
