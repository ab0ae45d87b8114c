"""Slices and what is derived of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from nsyspipe.analysis.intervals import union
from nsyspipe.model import schema
from nsyspipe.report.perfetto.packets import coded, disjoint_lanes, nested_lanes, shown, values_of
from nsyspipe.report.perfetto.trace import _waiting_time, _windows, bin_edges, busy_percent
from tests.build.make import ints
from tests.build.make_perfetto import collective, step_row


def disjoint(*times, ties=None):
    starts, ends = ints(*(start for start, _ in times)), ints(*(end for _, end in times))
    return [lane.tolist() for lane in disjoint_lanes(starts, ends, None if ties is None else ints(*ties))]


def nested(*times, depth=None):
    starts, ends = ints(*(start for start, _ in times)), ints(*(end for _, end in times))
    return [lane.tolist() for lane in nested_lanes(starts, ends, ints(*(depth or [0] * len(times))))]


# --- tracks of streams -----------------------------------------------------------------------


def test_slices_one_after_the_other_need_one_track_whatever_the_rows_order():
    assert disjoint((20, 30), (0, 10), (10, 20)) == [[1, 2, 0]]


def test_no_slices_need_no_track():
    assert disjoint() == []
    assert nested() == []


def test_a_slice_that_overlaps_takes_the_next_track_and_later_ones_the_first_again():
    assert disjoint((0, 10), (5, 8), (10, 12), (11, 15)) == [[0, 2], [1, 3]]


def test_a_slice_inside_another_is_not_its_child_on_a_stream():
    assert disjoint((0, 10), (2, 4)) == [[0], [1]]


def test_a_slice_without_length_stands_before_one_that_starts_then_and_beside_one_that_runs():
    assert disjoint((5, 8), (5, 5), (8, 8)) == [[1, 0, 2]]
    assert disjoint((5, 8), (6, 6)) == [[0], [1]]


def test_equal_times_are_in_order_of_the_tie():
    assert disjoint((5, 5), (5, 5), (5, 5), ties=(3, 1, 2)) == [[1, 2, 0]]


# --- tracks of host ranges -------------------------------------------------------------------


def test_ranges_inside_a_range_stand_on_its_track_behind_it():
    assert nested((2, 4), (0, 10), (4, 10)) == [[1, 0, 2]]


def test_of_equal_ranges_the_lower_depth_is_the_outer():
    assert nested((0, 10), (0, 10), depth=(1, 0)) == [[1, 0]]


def test_ranges_that_cross_stand_on_two_tracks():
    assert nested((0, 10), (5, 15), (6, 14), (15, 20)) == [[0, 3], [1, 2]]


TIMES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=30)


@given(TIMES)
def test_lanes_hold_each_slice_once_and_nothing_that_overlaps(found):
    starts = np.array([start for start, _ in found], np.int64)
    ends = starts + np.array([length for _, length in found], np.int64)
    lanes = disjoint_lanes(starts, ends)
    assert sorted(row for lane in lanes for row in lane.tolist()) == list(range(len(found)))
    for lane in lanes:
        assert (starts[lane][1:] >= ends[lane][:-1]).all()
    # Never more tracks than operations at one time, those without length counted where they stand.
    busiest = max((int(((starts <= t) & (ends >= t)).sum()) for t in range(40)), default=0)
    assert len(lanes) <= busiest


@given(TIMES)
def test_nested_lanes_hold_each_slice_once_and_nothing_that_crosses(found):
    starts = np.array([start for start, _ in found], np.int64)
    ends = starts + np.array([length for _, length in found], np.int64)
    lanes = nested_lanes(starts, ends, np.zeros(starts.size, np.int64))
    assert sorted(row for lane in lanes for row in lane.tolist()) == list(range(len(found)))
    for lane in lanes:
        for place, outer in enumerate(lane):
            for inner in lane[place + 1 :]:
                assert starts[inner] >= starts[outer]
                assert ends[inner] <= ends[outer] or starts[inner] >= ends[outer]


# --- columns ---------------------------------------------------------------------------------


def read(column):
    found = values_of(coded(column))
    numbers = found.numbers.tolist()
    values = numbers if found.texts is None else [found.texts[at] for at in numbers]
    return [value if known else None for value, known in zip(values, found.is_known, strict=True)]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([3, None, 2**62], pa.int64(), [3, None, 2**62]),
        (["b", None, "a", "b"], pa.string(), ["b", None, "a", "b"]),
        ([None, None], pa.string(), None),
        ([True, False, None], pa.bool_(), ["true", "false", None]),
    ],
)
def test_a_column_keeps_its_values_and_its_nulls(values, kind, expected):
    if expected is None:
        assert not values_of(coded(pa.chunked_array([values], kind))).is_known.any()
        return
    assert read(pa.chunked_array([values], kind)) == expected
    assert read(pa.chunked_array([values[:1], values[1:]], kind)) == expected


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.bool_()])
def test_a_column_without_chunks_is_empty(kind):
    found = values_of(coded(pa.chunked_array([], kind)))
    assert (found.numbers.size, found.is_known.size) == (0, 0)


def test_bytes_that_are_no_text_are_replaced():
    raw = pa.array([b"gemm\xff"], pa.binary())
    column = pa.chunked_array([pa.Array.from_buffers(pa.string(), 1, raw.buffers())])
    assert read(column) == ["gemm\N{REPLACEMENT CHARACTER}"]


def test_lone_surrogates_and_control_characters_are_replaced():
    assert shown("a\udc80b\x1b[31m\n") == "a?b\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"
    assert shown("größe · 核") == "größe · 核"


def pairs(times):
    return list(zip(times.starts.tolist(), times.ends.tolist(), strict=True))


def times(*found):
    return union(ints(*(start for start, _ in found)), ints(*(end for _, end in found)))


def steps(*rows):
    return schema.STEPS.from_rows(list(rows))


def collectives(*rows):
    return schema.COLLECTIVES.from_rows(list(rows))


def test_windows_are_those_whose_figure_is_known_and_touching_ones_are_one():
    table = steps(
        step_row(0, 10, 0, wait_ns=0),
        step_row(10, 20, 1, wait_ns=3),
        step_row(20, 30, 2),
        step_row(30, 40, 3, wait_ns=1),
    )
    assert pairs(_windows(table, "wait_ns")) == [(0, 20), (30, 40)]
    assert pairs(_windows(table, "comm_ns")) == []


def test_waiting_runs_from_the_own_start_to_the_last_start_or_the_own_end():
    table = collectives(
        collective(0, 50, 0, wait_ns=10),
        collective(60, 65, 1, wait_ns=10),  # ended before the last came
        collective(70, 90, 2, wait_ns=0),
        collective(100, 120, 3, is_matched=False),
        collective(130, 150, 4),  # matched, but there is no common clock
    )
    assert pairs(_waiting_time(table, times((5, 200)))) == [(5, 10), (60, 65)]


def test_waiting_at_two_communicators_at_once_counts_once():
    table = collectives(collective(0, 50, 0, wait_ns=20), collective(10, 60, 1, wait_ns=20))
    assert pairs(_waiting_time(table, times((0, 100)))) == [(0, 30)]


# --- counters --------------------------------------------------------------------------------


def test_a_step_has_two_hundred_bins_over_the_windows_of_all_ranks():
    edges = bin_edges(steps(step_row(1000, 2000, rank=0), step_row(900, 2900, rank=1)))
    assert (edges[0], edges[-1], edges.size) == (900, 2900, 201)


def test_long_runs_have_four_thousand_bins():
    edges = bin_edges(steps(*(step_row(1000 * i, 1000 * i + 1000, i) for i in range(100))))
    assert (edges.size, edges[1]) == (4001, 25)


def test_bins_are_never_shorter_than_a_ns():
    assert bin_edges(steps(step_row(5, 8))).tolist() == [5, 6, 7, 8]
    assert bin_edges(steps(step_row(5, 5))).tolist() == [5]
    assert bin_edges(steps()).tolist() == []


def busy(found, inside, *edges):
    at, percents = busy_percent(times(*found), times(*inside), ints(*edges))
    return list(zip(at.tolist(), percents.tolist(), strict=True))


def test_busy_is_the_share_of_each_bin_and_equal_values_are_told_once():
    # Bins of 10: all, half, half, none, all.
    found = busy([(0, 15), (20, 25), (40, 50)], [(0, 50)], 0, 10, 20, 30, 40, 50)
    assert found == [(0, 100), (10, 50), (30, 0), (40, 100), (50, 0)]


def test_a_bin_counts_as_far_as_it_lies_in_windows():
    # The window [5, 25): of its part of the first bin 5 of 5, of the last 1 of 5; [30, 40) lies in none.
    assert busy([(0, 10), (22, 23)], [(5, 25)], 0, 10, 20, 30, 40) == [
        (0, 100),
        (10, 0),
        (20, 20),
        (30, 0),
    ]


def test_percent_are_to_the_nearest():
    assert busy([(0, 1), (3, 5)], [(0, 6)], 0, 3, 6) == [(0, 33), (3, 67), (6, 0)]
