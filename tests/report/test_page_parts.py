"""What charts and tables of a run's page are made of; times are ns."""

from __future__ import annotations

import pytest

from nsyspipe.model import schema
from nsyspipe.report.blocks import Bar, bars
from nsyspipe.report.html.run_collectives import chosen_ranks, left_out_note
from nsyspipe.report.html.run_steps import (
    MOST_COLUMNS,
    parts_of,
    rank_parts,
    rank_parts_table,
    step_rows,
    step_series,
    step_table,
)


def step(rank=0, number=0, *, wall=100, compute=60, hidden=20, exposed=10, copies=5, begin=None, **more):  # fmt: skip
    """Return a row of `schema.STEPS`; what is neither compute, exposed nor copies is idle."""
    start = 1000 * number if begin is None else begin
    known = None not in (compute, exposed, copies)
    return {
        "rank": rank, "step": number, "start_ns": start, "end_ns": start + wall, "wall_ns": wall,
        "compute_ns": compute, "overlap_compute_ns": hidden, "exposed_comm_ns": exposed,
        "comm_ns": exposed + hidden if known else None, "exposed_memory_ns": copies,
        "idle_ns": wall - compute - exposed - copies if known else None,
        "wait_ns": 12, "transfer_ns": 18, "in_summary": True, "is_complete": True,
        "compute_share": 0.6, "exposed_comm_share": 0.1, "exposed_memory_share": 0.05, "idle_share": 0.25,
        "wait_share": 0.12,
    } | more  # fmt: skip


def steps(*rows):
    return schema.STEPS.from_rows(sorted(rows, key=lambda row: (row["rank"], row["start_ns"])))


# --- parts of a step ------------------------------------------------------------------------------


def test_the_parts_of_a_step_sum_to_its_wall_time():
    # 60 ns of compute, 20 of them beside communication; 10 exposed, 5 copies: 25 idle.
    parts = parts_of(step())
    assert parts == {"compute": 40, "hidden": 20, "exposed": 10, "copies": 5, "idle": 25}
    assert sum(parts.values()) == 100


@pytest.mark.parametrize("name", ["compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns"])
def test_a_step_of_which_a_part_is_not_recorded_has_no_parts(name):
    assert parts_of(step() | {name: None}) is None


def test_parts_of_a_rank_are_summed_over_its_steps():
    found = rank_parts(steps(step(), step(number=1, wall=200, compute=150, hidden=50), step(rank=1)), [0])
    assert found == {
        "n_steps": 2,
        "whole": "step",
        "ranks": [
            {
                "rank": 0,
                "wall": 300,
                # 40 + 100, 20 + 50, 10 + 10, 5 + 5, 25 + 35
                "parts": {"compute": 140, "hidden": 70, "exposed": 20, "copies": 10, "idle": 60},
                "comm": 90,
                "wait": 24,
                "transfer": 36,
            }
        ],
    }


def test_one_step_without_a_figure_leaves_its_rank_without():
    found = rank_parts(steps(step(), step(number=1, copies=None, wait_ns=None)), [0])
    assert found["ranks"][0]["parts"] is None
    assert found["ranks"][0]["wait"] is None
    assert found["ranks"][0]["wall"] == 200


def test_without_summary_steps_there_is_nothing_to_draw():
    assert rank_parts(schema.STEPS.empty(), []) is None
    assert rank_parts_table(schema.STEPS.empty()).rows == []


def test_the_table_holds_the_means_with_their_shares():
    table = rank_parts_table(steps(step(wall=2_000_000, compute=1_000_000, hidden=500_000)))
    # 1 ms of 2 ms is compute, half of it beside communication.
    assert table.rows[0][:4] == ["0", "2.000 ms", "0.5000 ms (25.0 %)", "0.5000 ms (25.0 %)"]


# --- steps over time ------------------------------------------------------------------------------


def test_a_step_is_shown_by_its_slowest_rank_and_the_fastest_beside_it():
    rows = step_rows(steps(step(0, 1, wall=100), step(1, 1, wall=120), step(2, 1, wall=90)), [], 3)
    assert [(row["rank"], row["wall_ns"]) for row in rows] == [(1, 120)]
    assert [(row["fastest_rank"], row["fastest_wall_ns"]) for row in rows] == [(2, 90)]


def test_of_equally_slow_ranks_the_lowest_is_shown():
    rows = step_rows(steps(step(1, 1), step(0, 1)), [], 2)
    assert rows[0]["rank"] == 0


def test_steps_are_in_the_order_of_time_not_of_number():
    rows = step_rows(steps(step(0, 7, begin=0), step(0, 3, begin=500)), [], 1)
    assert [row["step"] for row in rows] == [7, 3]


def test_steps_that_do_not_count_say_why():
    no = {"in_summary": False}
    rows = step_rows(
        steps(step(0, 0, **no), step(1, 0, **no), step(0, 1), step(1, 1), step(0, 2, **no), step(0, 3, **no), step(1, 3, **no)),
        [0],
        2,
    )  # fmt: skip
    assert [row["mark"] for row in rows] == ["skipped", "", "not on every rank", "cut off"]


def test_of_many_steps_the_slowest_of_each_few_is_drawn():
    n = MOST_COLUMNS + 1
    rows = step_rows(steps(*(step(0, at, wall=100 + at % 2) for at in range(n))), [], 1)
    series = step_series(rows)
    # 401 steps, two to a column: 200 pairs of which the odd step is slower, and the last alone.
    assert series["per_column"] == 2
    assert series["step"] == [*range(1, n - 1, 2), n - 1]
    assert step_table(rows).note == "The slowest of each 2 steps; --json has all."


def test_few_steps_are_all_drawn():
    series = step_series(step_rows(steps(step(0, 0), step(0, 1)), [], 1))
    assert (series["per_column"], series["n_steps"], series["wall"]) == (1, 2, [100, 100])
    assert series["parts"]["hidden"] == [20, 20]


def test_without_steps_there_is_no_series():
    assert step_rows(schema.STEPS.empty(), [], 2) == []
    assert step_series([]) is None


# --- ranks, bars ----------------------------------------------------------------------------------


def summary_of(times, *, late=()):
    rows = [{"rank": rank, "step_time_ns": time, "exposed_comm_share": 0.0} for rank, time in enumerate(times)]  # fmt: skip
    waits = [{"rank": rank, "lateness_ns": 9 if rank in late else 0} for rank in range(len(times))]
    return schema.RANK_SUMMARY.from_rows(rows), schema.STRAGGLERS.from_rows(waits)


def test_few_ranks_are_all_chosen():
    assert chosen_ranks(*summary_of([5, 5, 5]), 3) == [0, 1, 2]


def test_of_many_ranks_stragglers_slowest_and_fastest_are_chosen():
    times = [50] * 64
    times[17], times[40] = 90, 10
    chosen = chosen_ranks(*summary_of(times, late=(33,)), 8)
    assert len(chosen) == 8
    assert {17, 33, 40} < set(chosen)
    assert chosen == sorted(chosen)


def test_a_caption_says_that_ranks_are_left_out():
    assert left_out_note(4, 4) == ""
    assert left_out_note(8, 64).startswith("8 of 64 ranks")


def test_the_longest_bar_fills_its_column_and_a_zero_has_none():
    assert bars([2.0, 4.0, 0.0, None], ["a", "b", "0", "-"], "idle") == [
        Bar("a", 0.5, "idle"),
        Bar("b", 1.0, "idle"),
        "0",
        "-",
    ]
