"""Samples of Python in the idle time of a GPU, against a count sample by sample."""

import numpy as np
import pytest

from nsyspipe.analysis.host_lines import (
    HOST_CAUSES,
    HostIdleTime,
    HostLines,
    HostLinesPart,
    count_lines,
    find_host_lines,
    join_host_lines,
)
from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.model.canonical import PYTHON_LINES, PYTHON_SAMPLES
from tests.build.make import ints, windows

OFFSET = 7


def lines(n):
    return PYTHON_LINES.table(
        {
            "path": [f"/p/{number}.py" for number in range(n)],
            "line": list(range(n)),
            "function": ["f"] * n,
            "is_of_program": [True] * n,
        }
    )


def samples(times, innermost, in_program):
    columns = {"process_id": [1] * len(times), "time_ns": times}
    columns |= {"innermost": innermost, "in_program": in_program}
    return PYTHON_SAMPLES.table(columns)


def intervals(*spans):
    return IntervalSet(ints(*(start for start, _ in spans)), ints(*(end for _, end in spans)))


def cause_at(time, idle):
    """Return what the device idles for at a time, by comparison with every interval."""
    named = {"blocked": idle.blocked, "launch": idle.launch, "input": idle.late}
    for name, times in named.items():
        for start, end in zip(times.starts, times.ends, strict=True):
            if start <= time < end:
                return HOST_CAUSES.index(name)
    return -1


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_a_loop_over_samples(seed):
    random = np.random.default_rng(seed)
    edges = np.sort(random.choice(1000, 40, replace=False))
    late = union(edges[::2].astype(np.int64), edges[1::2].astype(np.int64))
    launch, blocked = late[::3], late[1::3]
    idle = HostIdleTime(late, launch, blocked)
    spans = [(100, 300), (300, 550), (550, 900)]
    n = 400
    times = np.sort(random.integers(0, 1000, n))
    line = random.integers(0, 6, n)
    in_program = random.integers(-1, 6, n)
    found = find_host_lines(
        samples(times, line, in_program), lines(6), windows(*spans), idle, OFFSET
    )
    rows = []
    for sample in zip((times + OFFSET).tolist(), line.tolist(), in_program.tolist(), strict=True):
        for number, (start, end) in enumerate(spans):
            if start <= sample[0] < end:
                rows.append((number, cause_at(sample[0], idle), *sample[1:]))
    for frame, column in ((found.innermost, 2), (found.in_program, 3)):
        counts = count_lines(found, frame)
        for place, number in enumerate(counts.line.tolist()):
            of_line = [row for row in rows if row[column] == number]
            assert counts.n_samples[place] == len(of_line)
            assert counts.n_idle_samples[place] == sum(row[1] >= 0 for row in of_line)
            assert counts.n_idle_windows[place] == len({row[0] for row in of_line if row[1] >= 0})
            for code in range(len(HOST_CAUSES)):
                of_cause = [row[0] for row in of_line if row[1] == code]
                assert counts.n_samples_by_cause[code][place] == len(of_cause)
                assert counts.n_windows_by_cause[code][place] == len(set(of_cause))
        assert counts.n_samples.sum() == sum(row[column] >= 0 for row in rows)


def test_a_line_at_which_the_host_waits_for_a_busy_gpu_has_no_sample_in_idle_time():
    idle = HostIdleTime(intervals((50, 100)), intervals((50, 100)), intervals())
    taken = samples([10, 20, 30, 60], [0, 0, 0, 1], [0, 0, 0, 1])
    found = find_host_lines(taken, lines(2), windows((0, 100)), idle, 0)
    counts = count_lines(found, found.innermost)
    assert counts.line.tolist() == [1, 0]
    assert counts.n_idle_samples.tolist() == [1, 0]
    assert counts.n_samples.tolist() == [1, 3]


@pytest.mark.parametrize("idle", [None, HostIdleTime(intervals((0, 100)))])
def test_without_calls_no_cause_is_known(idle):
    found = find_host_lines(samples([10], [0], [0]), lines(1), windows((0, 100)), idle, 0)
    assert not found.is_cause_known
    assert found.cause.tolist() == [-1]


def test_captures_of_one_rank_are_joined():
    first = HostLines(lines(2), ints(50), ints(0), ints(1), ints(1), ints(-1))
    second = HostLines(lines(3), ints(70), ints(1), ints(-1), ints(2), ints(0))
    joined = join_host_lines([HostLinesPart(first, 0, 0), HostLinesPart(second, 4, 1000)])
    assert joined.lines.num_rows == 5
    assert joined.times.tolist() == [50, 1070]
    assert joined.window.tolist() == [0, 5]
    assert joined.innermost.tolist() == [1, 4]
    assert joined.in_program.tolist() == [-1, 2]
