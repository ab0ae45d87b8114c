"""Each column of the main tables has a test of its values: by hand, or by an oracle."""

import functools
from pathlib import Path

from nsyspipe.model import schema

TESTS = Path(__file__).parent.parent
BY_HAND, TABLES = "run/test_columns_by_hand.py", "run/test_tables_by_hand.py"
HOST_STEPS = "run/test_host_steps.py"
ORACLE, COSTS = "property/oracle.py", "property/oracle_costs.py"
BREAKDOWN = "analysis/test_breakdown.py"

# By table: the test that compares whole rows, so that each column of the table is in it.
BY_HAND_ROWS = {
    "steps": "test_every_column_of_a_step",
    "rank_summary": "test_every_column_of_a_ranks_summary",
    "summary": "test_every_column_of_the_summary",
    "collectives": "test_every_column_of_a_collective",
    "stragglers": "test_every_column_of_a_straggler",
    "traffic": "test_every_column_of_the_traffic",
    "kernels": "test_every_column_of_the_kernels_of_a_phase",
    "phase_summary": "test_every_column_of_the_summary_of_a_phase",
}
TABLES_ROWS = {
    "ranks": "test_every_column_of_a_rank",
    "phases": "test_every_column_of_a_backward_phase",
    "links": "test_every_column_of_the_links",
    "timeline": "test_every_column_of_the_timeline_of_a_rank",
    "events": "test_every_column_of_the_events_of_a_step",
    "phase_ranges": "test_every_column_of_the_phase_ranges_of_a_step",
    "costs": "test_every_column_of_the_costs",
    "findings": "test_every_column_of_a_finding",
    "problems": "test_every_column_of_a_problem",
    "runs": "test_every_column_of_a_run",
    "metrics": "test_every_column_of_the_metrics",
    "idle_calls": "test_every_column_of_the_idle_calls",
}
HOST_ROWS = {"host_steps": "test_each_step_of_each_rank_is_a_row_with_its_phases_on_one_clock"}
ROWS = {
    **{table: (BY_HAND, test) for table, test in BY_HAND_ROWS.items()},
    **{table: (TABLES, test) for table, test in TABLES_ROWS.items()},
    **{table: (HOST_STEPS, test) for table, test in HOST_ROWS.items()},
    "counters": ("run/test_counters.py", "test_every_column_of_the_counters_of_a_step"),
    "counter_bars": (
        "run/test_counters.py",
        "test_every_column_of_the_counters_in_the_timeline",
    ),
    "peers": ("run/test_nccl_peers.py", "test_every_column_of_a_peer"),
    "host_lines": ("run/test_host_lines.py", "test_every_column_of_a_line"),
    "line_bars": (
        "run/test_host_lines.py",
        "test_every_column_of_the_lines_in_the_timeline",
    ),
}

# Columns that are 0 or null in those rows: where values other than these are worked out.
OTHERS = {
    ("steps", "tokens"): "run/test_step_work.py",
    ("steps", "samples"): "run/test_step_work.py",
    ("steps", "flops"): "run/test_step_work.py",
    ("steps", "ideal_compute_ns"): "run/test_step_work.py",
    ("steps", "slow_compute_ns"): "run/test_step_work.py",
    ("steps", "mfu"): "run/test_step_work.py",
    ("rank_summary", "flops_per_s"): "run/test_step_work.py",
    ("summary", "tokens_per_s"): "run/test_step_work.py",
    ("summary", "samples_per_s"): "run/test_step_work.py",
    ("summary", "flops_per_s"): "run/test_step_work.py",
    ("summary", "mfu"): "run/test_step_work.py",
    ("collectives", "counted_bytes_per_s"): "run/test_counters.py",
    ("collectives", "counted_link"): "run/test_counters.py",
    ("collectives", "counted_ratio"): "run/test_counters.py",
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
    ("ranks", "device_id"): "run/test_devices.py",
    ("ranks", "clock_error_ns"): "run/test_collectives.py",
    ("phases", "n_blocking_copies"): TABLES,
    ("findings", "expected_ns_per_step"): "replay/test_expected_savings.py",
    ("problems", "report"): TABLES,
    ("problems", "rank"): TABLES,
    ("costs", "bubble_ns_per_step"): "report/test_costs.py",
    ("costs", "slowdown_ratio"): "report/test_costs.py",
    ("costs", "n_slowed"): "report/test_costs.py",
    ("runs", "link_kind"): TABLES,
    ("runs", "environment"): TABLES,
    ("runs", "nccl_version"): TABLES,
}

# Spelled in parts there, as `idle_{cause}_ns`, or by the function that makes the column.
SPELLED = {
    "idle_made_by_calls_ns": "idle_made_by_{source}_ns",
    "idle_made_by_copies_ns": "idle_made_by_{source}_ns",
    "idle_unknown_ns": "idle_{name}_ns",
    "comm_delay_ns": "comm_delays",
}


@functools.cache
def text_of(path):
    return (TESTS / path).read_text(encoding="utf-8")


def test_each_table_is_held_by_rows():
    assert {*ROWS} == {*schema.DESCRIBED, "phase_summary"}


def test_the_tests_of_whole_rows_are_there():
    missing = [(path, test) for path, test in ROWS.values() if f"def {test}(" not in text_of(path)]
    assert missing == []


def test_columns_that_are_zero_there_are_named_where_their_values_are():
    for (table, column), path in OTHERS.items():
        assert SPELLED.get(column, column) in text_of(path), (table, column, path)


def test_columns_that_are_held_elsewhere_are_columns():
    gone = [
        (table, column) for table, column in OTHERS if column not in schema.DESCRIBED[table].names
    ]
    assert gone == []
