"""Samples of Python in the idle time of a GPU, against a count sample by sample."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.analysis.host_lines import (
    HOST_CAUSES,
    HostIdleTime,
    HostLines,
    HostLinesPart,
    PythonThread,
    count_calls,
    count_functions,
    count_holds,
    count_lines,
    find_host_lines,
    join_host_lines,
)
from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.model.canonical import PYTHON_FRAMES, PYTHON_LINES, PYTHON_SAMPLES
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


def thread(times, innermost, in_program, n_lines, stacks=None):
    """Build the samples of a thread. `stacks` has the lines of the program in each sample."""
    stacks = stacks if stacks is not None else [[] for _ in times]
    n_frames = np.array([len(stack) for stack in stacks], np.int64)
    columns = {"process_id": [1] * len(times), "time_ns": times}
    columns |= {"innermost": innermost, "in_program": in_program}
    columns |= {"first_frame": np.cumsum(n_frames) - n_frames, "n_frames": n_frames}
    columns |= {"held_after": [-1] * len(times), "let_go": [-1] * len(times)}
    frames = PYTHON_FRAMES.table({"line": [line for stack in stacks for line in stack]})
    return PythonThread(PYTHON_SAMPLES.table(columns), lines(n_lines), frames)


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
    found = find_host_lines(thread(times, line, in_program, 6), windows(*spans), idle, OFFSET)
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
    taken = thread([10, 20, 30, 60], [0, 0, 0, 1], [0, 0, 0, 1], 2)
    found = find_host_lines(taken, windows((0, 100)), idle, 0)
    counts = count_lines(found, found.innermost)
    assert counts.line.tolist() == [1, 0]
    assert counts.n_idle_samples.tolist() == [1, 0]
    assert counts.n_samples.tolist() == [1, 3]


@pytest.mark.parametrize("idle", [None, HostIdleTime(intervals((0, 100)))])
def test_without_calls_no_cause_is_known(idle):
    found = find_host_lines(thread([10], [0], [0], 1), windows((0, 100)), idle, 0)
    assert not found.is_cause_known
    assert found.cause.tolist() == [-1]


def test_captures_of_one_rank_are_joined():
    first = HostLines(
        lines=lines(2),
        times=ints(50),
        window=ints(0),
        cause=ints(1),
        innermost=ints(1),
        in_program=ints(-1),
        first_frame=ints(0),
        n_frames=ints(1),
        held_after=ints(-1),
        let_go=ints(-1),
        frames=ints(1, 0),
    )
    second = HostLines(
        lines=lines(3),
        times=ints(70),
        window=ints(1),
        cause=ints(-1),
        innermost=ints(2),
        in_program=ints(0),
        first_frame=ints(1),
        n_frames=ints(2),
        held_after=ints(2),
        let_go=ints(1),
        frames=ints(0, 2, 1),
    )
    joined = join_host_lines([HostLinesPart(first, 0, 0), HostLinesPart(second, 4, 1000)])
    assert joined.lines.num_rows == 5
    assert joined.times.tolist() == [50, 1070]
    assert joined.window.tolist() == [0, 5]
    assert joined.innermost.tolist() == [1, 4]
    assert joined.in_program.tolist() == [-1, 2]
    assert joined.held_after.tolist() == [-1, 4]
    assert joined.let_go.tolist() == [-1, 3]
    assert joined.frames.tolist() == [1, 0, 2, 4, 3]
    assert joined.first_frame.tolist() == [0, 3]
    assert joined.n_frames.tolist() == [1, 2]


def test_equal_lines_of_several_captures_are_one_line():
    part = HostLines(
        lines=lines(1),
        times=ints(5),
        window=ints(0),
        cause=ints(1),
        innermost=ints(0),
        in_program=ints(0),
        first_frame=ints(0),
        n_frames=ints(0),
        held_after=ints(0),
        let_go=ints(0),
    )
    joined = join_host_lines([HostLinesPart(part, 0, 0), HostLinesPart(part, 1, 9)])
    counts = count_lines(joined, joined.innermost)
    assert (counts.n_samples.tolist(), counts.n_idle_windows.tolist()) == ([2], [2])
    holds = count_holds(joined)
    assert (holds.counts.line.tolist(), holds.held_after.tolist()) == ([0], [0])
    assert holds.counts.n_samples.tolist() == [2]


@pytest.mark.parametrize("seed", range(20))
def test_pairs_of_lines_are_those_of_a_loop_over_samples(seed):
    random = np.random.default_rng(seed)
    n_samples = 200
    # Lines 3 to 5 are equal to lines 0 to 2.
    let_go = random.integers(-1, 6, n_samples)
    held_after = np.where(let_go < 0, -1, random.integers(-1, 6, n_samples))
    cause = random.integers(-1, len(HOST_CAUSES), n_samples)
    samples = HostLines(
        lines=pa.concat_tables([lines(3), lines(3)]),
        times=np.arange(n_samples),
        window=random.integers(0, 3, n_samples),
        cause=cause,
        innermost=np.zeros(n_samples, np.int64),
        held_after=held_after,
        let_go=let_go,
    )
    n_samples_of = Counter()
    n_idle_samples_of = Counter()
    windows_of = {}
    columns = (held_after, let_go, cause, samples.window)
    for after, line, code, window in zip(*(column.tolist() for column in columns), strict=True):
        if line < 0:
            continue
        pair = (after % 3 if after >= 0 else -1, line % 3)
        n_samples_of[pair] += 1
        n_idle_samples_of[pair] += code >= 0
        if code >= 0:
            windows_of.setdefault(pair, set()).add(window)
    holds = count_holds(samples)
    pairs = list(zip(holds.held_after.tolist(), holds.counts.line.tolist(), strict=True))
    assert dict(zip(pairs, holds.counts.n_samples.tolist(), strict=True)) == n_samples_of
    assert dict(zip(pairs, holds.counts.n_idle_samples.tolist(), strict=True)) == n_idle_samples_of
    n_windows = dict(zip(pairs, holds.counts.n_idle_windows.tolist(), strict=True))
    assert n_windows == {pair: len(windows_of.get(pair, ())) for pair in pairs}


# Lines of functions: two of them have the same name, in different files.
NAMES = [("a.py", "f"), ("a.py", "g"), ("b.py", "f"), ("a.py", "<module>"), ("a.py", "<listcomp>")]
LINES_OF_A_FUNCTION = 3


def lines_of_functions():
    rows = [
        {"path": path, "function": function, "line": 10 * place + number, "is_of_program": True}
        for place, (path, function) in enumerate(NAMES)
        for number in range(LINES_OF_A_FUNCTION)
    ]
    return PYTHON_LINES.from_rows(rows)


def stacks_of(random, n_samples):
    """Return samples with a cause, a window, and lines, innermost first; some stacks recur."""
    causes = random.integers(-1, len(HOST_CAUSES), n_samples)
    windows_of_samples = random.integers(0, 3, n_samples)
    n_lines = len(NAMES) * LINES_OF_A_FUNCTION
    stacks = [random.integers(0, n_lines, random.integers(0, 6)).tolist() for _ in causes]
    return causes.tolist(), windows_of_samples.tolist(), stacks


def host_lines_of(causes, windows_of_samples, stacks):
    n_frames = np.array([len(stack) for stack in stacks], np.int64)
    none = np.full(len(causes), -1)
    return HostLines(
        lines=lines_of_functions(),
        times=np.arange(len(causes)),
        window=np.array(windows_of_samples, np.int64),
        cause=np.array(causes, np.int64),
        innermost=none,
        in_program=none,
        held_after=none,
        let_go=none,
        first_frame=np.cumsum(n_frames) - n_frames,
        n_frames=n_frames,
        frames=np.array([line for stack in stacks for line in stack], np.int64),
    )


def by_hand(samples, key_of_line, first_depth):
    """Return the counts of each key, sample by sample and frame by frame."""
    rows = lines_of_functions().to_pylist()
    entries = {}
    for cause, window, stack in zip(*samples, strict=True):
        seen = set()
        for depth, line in enumerate(stack):
            key = key_of_line(rows[line])
            if depth < first_depth or key is None or key in seen:
                continue
            seen.add(key)
            entries.setdefault(key, []).append((cause, window, depth, rows[line]["line"]))
    counts = {}
    for key, hits in entries.items():
        idle = [hit for hit in hits if hit[0] >= 0]
        numbers = [hit[3] for hit in idle or hits]
        by_cause = [[hit for hit in hits if hit[0] == code] for code in range(len(HOST_CAUSES))]
        counts[key] = {
            "n_samples": len(hits),
            "n_idle_samples": len(idle),
            "n_idle_windows": len({hit[1] for hit in idle}),
            "n_samples_by_cause": [len(of_cause) for of_cause in by_cause],
            "n_windows_by_cause": [len({hit[1] for hit in of_cause}) for of_cause in by_cause],
            "lines": (min(numbers), max(numbers)),
            "mean_depth": sum(hit[2] for hit in hits) / len(hits),
        }
    return counts


def counted(found, key_of_line):
    """Return the counts of each key of a result."""
    rows = lines_of_functions().to_pylist()
    counts = {}
    for place, line in enumerate(found.counts.line.tolist()):
        counts[key_of_line(rows[line])] = {
            "n_samples": found.counts.n_samples[place],
            "n_idle_samples": found.counts.n_idle_samples[place],
            "n_idle_windows": found.counts.n_idle_windows[place],
            "n_samples_by_cause": [of[place] for of in found.counts.n_samples_by_cause],
            "n_windows_by_cause": [of[place] for of in found.counts.n_windows_by_cause],
            "lines": (found.first_line[place], found.last_line[place]),
            "mean_depth": pytest.approx(found.mean_depth[place]),
        }
    return counts


def function_of(row):
    return None if row["function"] == "<listcomp>" else (row["path"], row["function"])


def line_of(row):
    return row["path"], row["function"], row["line"]


@pytest.mark.parametrize("seed", range(20))
def test_functions_and_calls_are_those_of_a_loop_over_frames(seed):
    samples = stacks_of(np.random.default_rng(seed), 200)
    found = host_lines_of(*samples)
    assert counted(count_functions(found), function_of) == by_hand(samples, function_of, 0)
    assert counted(count_calls(found), line_of) == by_hand(samples, line_of, 1)


def test_a_call_that_calls_itself_counts_once_and_at_its_innermost_frame():
    found = host_lines_of([1], [0], [[0, 1, 1, 2]])
    functions, calls = count_functions(found), count_calls(found)
    assert functions.counts.n_samples.tolist() == [1]
    assert (functions.first_line.tolist(), functions.mean_depth.tolist()) == ([0], [0.0])
    assert sorted(calls.mean_depth.tolist()) == [1.0, 3.0]


def test_samples_without_frames_are_in_no_function():
    found = host_lines_of([1, 1], [0, 0], [[], []])
    assert count_functions(found).counts.line.size == 0
    assert count_calls(found).counts.line.size == 0
