"""How slices that overlap share tracks, and how columns become what is told of slices."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from nsyspipe.report.perfetto.packets import disjoint_lanes, nested_lanes, shown, values_of
from tests.build.make import ints


def disjoint(*times, ties=None):
    starts, ends = ints(*(start for start, _ in times)), ints(*(end for _, end in times))
    return [
        lane.tolist()
        for lane in disjoint_lanes(starts, ends, None if ties is None else ints(*ties))
    ]


def nested(*times, depth=None):
    starts, ends = ints(*(start for start, _ in times)), ints(*(end for _, end in times))
    return [
        lane.tolist() for lane in nested_lanes(starts, ends, ints(*(depth or [0] * len(times))))
    ]


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
    found = values_of(column)
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
        assert not values_of(pa.chunked_array([values], kind)).is_known.any()
        return
    assert read(pa.chunked_array([values], kind)) == expected
    assert read(pa.chunked_array([values[:1], values[1:]], kind)) == expected


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.bool_()])
def test_a_column_without_chunks_is_empty(kind):
    found = values_of(pa.chunked_array([], kind))
    assert (found.numbers.size, found.is_known.size) == (0, 0)
    assert found.take(ints(-1)).is_known.tolist() == [False]


def test_bytes_that_are_no_text_are_replaced():
    raw = pa.array([b"gemm\xff"], pa.binary())
    column = pa.chunked_array([pa.Array.from_buffers(pa.string(), 1, raw.buffers())])
    assert read(column) == ["gemm\N{REPLACEMENT CHARACTER}"]


def test_lone_surrogates_and_control_characters_are_replaced():
    assert (
        shown("a\udc80b\x1b[31m\n") == "a?b\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"
    )
    assert shown("größe · 核") == "größe · 核"
