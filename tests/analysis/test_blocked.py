"""Until when calls explain idle time, and which of several."""

import numpy as np
import pytest

from nsyspipe.analysis.blocked import blocked_time, explained_until, made_by
from nsyspipe.analysis.intervals import IntervalSet, union
from tests.build.make import calls, ints

IDLE = union(ints(10, 30, 50), ints(20, 40, 60))


@pytest.mark.parametrize(
    ("start", "end", "until"),
    [
        (-20, 5, 30),  # as long behind its end as it lasted
        (12, 16, 16),  # as much idle time as it lasted while it lasted
        (8, 20, 32),  # 10 meanwhile, and 2 of the next gap
        (60, 70, 80),  # no idle time behind it
        (-(2**60), 0, 2**60),
    ],
)
def test_until_when_a_call_explains_idle_time(start, end, until):
    assert explained_until(IDLE, ints(start), ints(end)).tolist() == [until]


@pytest.mark.parametrize(("amount", "time"), [(1, 11), (10, 20), (11, 31), (30, 60), (31, 2**62)])
def test_when_so_much_is_covered(amount, time):
    assert IDLE.when_covered(ints(amount)).tolist() == [time]


def test_two_times_that_overlap_explain_idle_time_once():
    found = made_by(IDLE, ints(5, 0), ints(12, 8))
    assert np.stack((found.starts, found.ends)).tolist() == [[10], [17]]


def test_without_idle_time_nothing_is_explained():
    nothing = IntervalSet(ints(), ints())
    assert len(made_by(nothing, ints(0), ints(10))) == 0


@pytest.mark.parametrize(
    ("rows", "explains"),
    [
        # The second while it is under way, [10, 12); behind it the first, which explains until 30,
        # the second until 26.
        ([(-10, 10, "a"), (-2, 12, "b")], {"a": 8, "b": 2}),
        # The first until 50, less what goes by while the second is under way.
        ([(-40, 5, "a"), (13, 16, "b")], {"a": 17, "b": 3}),
        # Of two that return together the first to start: [10, 17).
        ([(8, 15, "a"), (9, 15, "b")], {"a": 7}),
    ],
)
def test_which_call_explains_idle_time(rows, explains):
    found = blocked_time(IDLE, IDLE, calls(*rows))
    lengths = found.times.ends - found.times.starts
    names = [rows[row][2] for row in found.call.tolist()]
    told = {
        name: sum(int(own) for own, of in zip(lengths, names, strict=True) if of == name)
        for name in set(names)
    }
    assert told == explains
