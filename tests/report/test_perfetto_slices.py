"""Slices and what is derived of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis.intervals import union
from nsyspipe.model import schema
from nsyspipe.report.perfetto import _waiting_time, bin_edges, busy_percent
from nsyspipe.report.perfetto_packets import coded, disjoint_lanes, nested_lanes, shown, values_of
from tests.build.make import ints
from tests.build.make_perfetto import collective, step_row


def lanes_of(lanes, times, *more):
    starts, ends = ints(*(start for start, _ in times)), ints(*(end for _, end in times))
    return [lane.tolist() for lane in lanes(starts, ends, *more)]


@pytest.mark.parametrize(("slices", "lanes"), [
    ([(20, 30), (0, 10), (10, 20)], [[1, 2, 0]]),
    ([], []),
    ([(0, 10), (5, 8), (10, 12), (11, 15)], [[0, 2], [1, 3]]),
    ([(0, 10), (2, 4)], [[0], [1]]), ([(5, 8), (5, 5), (8, 8)], [[1, 0, 2]]), ([(5, 8), (6, 6)], [[0], [1]]),
], ids=["in-turn", "none", "next-track-and-back", "inside-is-no-child", "without-length", "without-length-inside"])  # fmt: skip
def test_slices_of_a_stream_take_the_first_track_that_is_free(slices, lanes):
    assert lanes_of(disjoint_lanes, slices) == lanes
    # Equal times are in the order of the tie.
    assert lanes_of(disjoint_lanes, [(5, 5)] * 3, ints(3, 1, 2)) == [[1, 2, 0]]


@pytest.mark.parametrize(("ranges", "depth", "lanes"), [
    ([(2, 4), (0, 10), (4, 10)], None, [[1, 0, 2]]),
    ([(0, 10), (0, 10)], (1, 0), [[1, 0]]),
    ([(0, 10), (5, 15), (6, 14), (15, 20)], None, [[0, 3], [1, 2]]),
    ([], None, []),
], ids=["inside-stands-behind", "lower-depth-is-outer", "crossing-stands-on-two", "none"])  # fmt: skip
def test_ranges_of_a_host_stand_inside_each_other(ranges, depth, lanes):
    assert lanes_of(nested_lanes, ranges, ints(*(depth or [0] * len(ranges)))) == lanes


TIMES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=30)


@given(TIMES)
def test_lanes_hold_each_slice_once_and_nothing_that_overlaps_or_crosses(found):
    starts = np.array([start for start, _ in found], np.int64)
    ends = starts + np.array([length for _, length in found], np.int64)
    lanes, nests = disjoint_lanes(starts, ends), nested_lanes(starts, ends, np.zeros(starts.size, np.int64))
    for tracks in (lanes, nests):
        assert sorted(row for lane in tracks for row in lane.tolist()) == list(range(len(found)))
    assert all((starts[lane][1:] >= ends[lane][:-1]).all() for lane in lanes)
    # Never more tracks than operations at one time, those without length counted where they stand.
    assert len(lanes) <= max((int(((starts <= t) & (ends >= t)).sum()) for t in range(40)), default=0)
    for lane in nests:
        for place, outer in enumerate(lane):
            for inner in lane[place + 1 :]:
                assert starts[inner] >= starts[outer]
                assert ends[inner] <= ends[outer] or starts[inner] >= ends[outer]


def read(column):
    found = values_of(coded(column))
    numbers = found.numbers.tolist()
    known = found.is_known.tolist()
    values = [found.texts[at] if found.texts and ok else at for at, ok in zip(numbers, known, strict=True)]
    return [value if ok else None for value, ok in zip(values, known, strict=True)]


@pytest.mark.parametrize(("values", "kind", "expected"), [
    ([3, None, 2**62], pa.int64(), [3, None, 2**62]),
    (["b", None, "a", "b"], pa.string(), ["b", None, "a", "b"]),
    ([None, None], pa.string(), [None, None]), ([], pa.string(), []), ([], pa.int64(), []),
    ([True, False, None], pa.bool_(), ["true", "false", None]),
])  # fmt: skip
def test_a_column_keeps_its_values_and_its_nulls(values, kind, expected):
    assert read(pa.chunked_array([values], kind)) == expected
    assert read(pa.chunked_array([values[:1], values[1:]], kind)) == expected


def test_bytes_that_are_no_text_lone_surrogates_and_control_characters_are_replaced():
    raw = pa.array([b"gemm\xff"], pa.binary())
    column = pa.chunked_array([pa.Array.from_buffers(pa.string(), 1, raw.buffers())])
    assert read(column) == ["gemm\N{REPLACEMENT CHARACTER}"]
    assert shown("a\udc80b\x1b[31m\n") == "a?b\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"
    assert shown("größe · 核") == "größe · 核"


def times(*found):
    return union(ints(*(start for start, _ in found)), ints(*(end for _, end in found)))


@pytest.mark.parametrize(("rows", "window", "waiting"), [
    # From its start to the last start, or its own end; nothing of what is not matched or has no common clock.
    (
        [
            collective(0, 50, 0, wait_ns=10), collective(60, 65, 1, wait_ns=10), collective(70, 90, 2, wait_ns=0),
            collective(100, 120, 3, is_matched=False), collective(130, 150, 4),
        ],
        (5, 200),
        [(5, 10), (60, 65)],
    ),
    # At two communicators at once it counts once.
    ([collective(0, 50, 0, wait_ns=20), collective(10, 60, 1, wait_ns=20)], (0, 100), [(0, 30)]),
])  # fmt: skip
def test_waiting_runs_from_its_start_to_the_last_start_or_its_end(rows, window, waiting):
    found = _waiting_time(schema.COLLECTIVES.from_rows(rows), times(window))
    assert list(zip(found.starts.tolist(), found.ends.tolist(), strict=True)) == waiting


@pytest.mark.parametrize(("windows", "bins"), [
    ([(1000, 2000, 0, 0), (900, 2900, 0, 1)], (900, 2900, 201)),  # two hundred of a step, over all ranks
    ([(1000 * i, 1000 * i + 1000, i, 0) for i in range(100)], (0, 100_000, 4001)),  # never more than 4000
    ([(5, 8, 0, 0)], (5, 8, 4)),  # never shorter than a ns
    ([(5, 5, 0, 0)], (5, 5, 1)),
    ([], ()),
])  # fmt: skip
def test_bins_are_as_many_as_can_be_told_apart(windows, bins):
    edges = bin_edges(schema.STEPS.from_rows([step_row(*window) for window in windows]))
    assert (*edges[:1], *edges[-1:], *([edges.size] if edges.size else [])) == bins


@pytest.mark.parametrize(("found", "inside", "edges", "percents"), [
    # Bins of 10: all, half, half, none, all; equal values are told once.
    ([(0, 15), (20, 25), (40, 50)], [(0, 50)], range(0, 60, 10), [(0, 100), (10, 50), (30, 0), (40, 100), (50, 0)]),
    # The window [5, 25): of its part of the first bin 5 of 5, of the last 1 of 5; [30, 40) lies in none.
    ([(0, 10), (22, 23)], [(5, 25)], range(0, 50, 10), [(0, 100), (10, 0), (20, 20), (30, 0)]),
    # To the nearest.
    ([(0, 1), (3, 5)], [(0, 6)], range(0, 9, 3), [(0, 33), (3, 67), (6, 0)]),
])  # fmt: skip
def test_busy_is_the_share_of_each_bin_that_lies_in_windows(found, inside, edges, percents):
    at, shares = busy_percent(times(*found), times(*inside), ints(*edges))
    assert list(zip(at.tolist(), shares.tolist(), strict=True)) == percents
