"""Each column of the main tables has a test of its values: by hand, or by an oracle."""

from pathlib import Path

import pytest

from nsyspipe.model import schema

TESTS = Path(__file__).parent.parent
BY_HAND = "run/test_columns_by_hand.py"
ORACLE, COSTS = "property/oracle.py", "property/oracle_costs.py"
BREAKDOWN = "analysis/test_breakdown.py"

# By table: the test that compares whole rows, so that each column of the table is in it.
ROWS = {
    "steps": "test_every_column_of_a_step",
    "rank_summary": "test_every_column_of_a_ranks_summary",
    "summary": "test_every_column_of_the_summary",
    "collectives": "test_every_column_of_a_collective",
    "stragglers": "test_every_column_of_a_straggler",
    "traffic": "test_every_column_of_the_traffic",
    "kernels": "test_every_column_of_the_kernels_of_a_phase",
    "phase_summary": "test_every_column_of_the_summary_of_a_phase",
}

# Columns that are 0 or null in those rows: where values other than these are worked out.
OTHERS = {
    ("steps", "comm_on_compute_stream_ns"): "run/test_other_communication.py",
    ("steps", "idle_blocked_ns"): BREAKDOWN,
    ("steps", "idle_pause_ns"): BREAKDOWN,
    ("steps", "idle_blocked_by_copies_ns"): COSTS,
    ("steps", "idle_made_by_calls_ns"): COSTS,
    ("steps", "idle_made_by_copies_ns"): COSTS,
    ("steps", "n_blocking_copies"): COSTS,
    ("steps", "n_pageable_copies"): COSTS,
    ("steps", "blocking_copy_bytes"): COSTS,
    ("steps", "exposed_blocking_copy_ns"): COSTS,
    ("steps", "idle_late_start_ns"): BY_HAND,
    ("steps", "grad_copy_ns"): ORACLE,
    ("steps", "exposed_grad_copy_ns"): ORACLE,
    ("steps", "grad_copy_span_ns"): ORACLE,
    ("steps", "grad_copy_bytes"): ORACLE,
    ("steps", "n_grad_copies"): ORACLE,
    ("steps", "comm_delay_ns"): "analysis/test_kernels.py",
    ("steps", "overhead_ns"): "reader/test_kernels_read.py",
    ("steps", "idle_unknown_ns"): COSTS,
    ("rank_summary", "idle_blocked_ns_per_step"): "analysis/test_summary.py",
    ("rank_summary", "idle_unknown_ns_per_step"): "analysis/test_summary.py",
    ("summary", "idle_blocked_ns_per_step"): "analysis/test_summary.py",
    ("summary", "idle_unknown_ns_per_step"): "analysis/test_summary.py",
    ("traffic", "bubble_ns_per_step"): "analysis/test_traffic.py",
    ("kernels", "n_slowed"): COSTS,
    ("kernels", "slowed_ns"): COSTS,
    ("kernels", "free_ns"): COSTS,
    ("kernels", "slowdown_ratio"): COSTS,
}

# Spelled in parts there, as `idle_{cause}_ns`, or by the function that makes the column.
SPELLED = {
    "idle_made_by_calls_ns": "idle_made_by_{source}_ns",
    "idle_made_by_copies_ns": "idle_made_by_{source}_ns",
    "idle_unknown_ns": "idle_{name}_ns",
    "comm_delay_ns": "comm_delays",
}

# Tables whose columns have not been looked through one by one.
NOT_LOOKED_THROUGH = {
    *("phases", "idle_calls", "links", "ranks", "timeline", "host_steps", "findings", "problems"),
    *("costs", "events", "phase_ranges", "runs", "metrics"),
}


def text_of(path):
    return (TESTS / path).read_text(encoding="utf-8")


def test_each_table_is_held_by_rows_or_said_not_to_be():
    assert {*ROWS} | NOT_LOOKED_THROUGH == {*schema.DESCRIBED, "phase_summary"}


def test_no_table_is_held_and_said_not_to_be():
    assert {*ROWS}.isdisjoint(NOT_LOOKED_THROUGH)


@pytest.mark.parametrize("test", ROWS.values())
def test_the_test_of_whole_rows_is_there(test):
    assert f"def {test}(" in text_of(BY_HAND)


@pytest.mark.parametrize(("place", "path"), OTHERS.items())
def test_columns_that_are_zero_there_are_named_where_their_values_are(place, path):
    _, column = place
    assert SPELLED.get(column, column) in text_of(path)


@pytest.mark.parametrize("place", OTHERS)
def test_columns_that_are_held_elsewhere_are_columns(place):
    table, column = place
    assert column in schema.DESCRIBED[table].names
