"""Exposed communication, waiting, and how busy a rank is in each bin."""

from __future__ import annotations

import numpy as np

from nsyspipe.analysis.intervals import union
from nsyspipe.model import schema
from nsyspipe.report.perfetto.tracks import (
    bin_edges,
    busy_percent,
    busy_time,
    exposed_time,
    waiting_time,
    windows,
)
from tests.build.make import ints
from tests.build.make_perfetto import collective, comm, op, step_row


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
    assert pairs(windows(table, "wait_ns")) == [(0, 20), (30, 40)]
    assert pairs(windows(table, "comm_ns")) == []


def test_busy_time_is_the_union_of_a_category():
    events = schema.EVENTS.from_rows([op(0, 10), op(5, 15), comm(20, 30), op(40, 41, "memory")])
    assert pairs(busy_time(events, "compute")) == [(0, 15)]
    assert pairs(busy_time(events, "comm")) == [(20, 30)]


def test_exposed_is_communication_beside_no_compute_inside_the_windows():
    # Communication [0, 100), compute [20, 30) and [90, 120), windows [10, 95).
    found = exposed_time(times((20, 30), (90, 120)), times((0, 100)), times((10, 95)))
    assert pairs(found) == [(10, 20), (30, 90)]


def test_waiting_runs_from_the_own_start_to_the_last_start_or_the_own_end():
    table = collectives(
        collective(0, 50, 0, wait_ns=10),
        collective(60, 65, 1, wait_ns=10),  # ended before the last came
        collective(70, 90, 2, wait_ns=0),
        collective(100, 120, 3, is_matched=False),
        collective(130, 150, 4),  # matched, but there is no common clock
    )
    assert pairs(waiting_time(table, times((5, 200)))) == [(5, 10), (60, 65)]


def test_waiting_at_two_communicators_at_once_counts_once():
    table = collectives(collective(0, 50, 0, wait_ns=20), collective(10, 60, 1, wait_ns=20))
    assert pairs(waiting_time(table, times((0, 100)))) == [(0, 30)]


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


def test_without_windows_there_is_no_counter():
    assert busy([(0, 1)], [], 0, 3, 6) == []


def test_a_window_without_length_counts_nothing():
    edges = bin_edges(steps(step_row(5, 5, comm_ns=0)))
    inside = windows(steps(step_row(5, 5, comm_ns=0)), "comm_ns")
    assert len(inside) == 0
    assert busy_percent(times((0, 9)), inside, edges)[0].dtype == np.int64
