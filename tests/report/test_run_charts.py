"""What charts of a run's page draw, and the same as tables; times are ns."""

from __future__ import annotations

import pytest

from nsyspipe.model import schema
from nsyspipe.report.html import run_charts as module
from nsyspipe.report.html.run_charts import (
    MOST_COLUMNS,
    collective_charts,
    collective_medians,
    collective_note,
    parts_of,
    rank_chart,
    step_chart,
    step_rows,
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
    found = rank_chart(steps(step(), step(number=1, wall=200, compute=150, hidden=50), step(rank=1)), [0]).data
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
    found = rank_chart(steps(step(), step(number=1, copies=None, wait_ns=None)), [0]).data
    assert found["ranks"][0]["parts"] is None
    assert found["ranks"][0]["wait"] is None
    assert found["ranks"][0]["wall"] == 200


def test_without_steps_there_is_nothing_to_draw():
    assert rank_chart(schema.STEPS.empty(), []) is None
    assert step_rows(schema.STEPS.empty(), [], 2) == []
    assert step_chart([]) is None


def test_the_table_holds_the_means_with_their_shares():
    table = rank_chart(steps(step(wall=2_000_000, compute=1_000_000, hidden=500_000)), [0]).table
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
    chart = step_chart(rows)
    series = chart.data
    # 401 steps, two to a column: 200 pairs of which the odd step is slower, and the last alone.
    assert series["per_column"] == 2
    assert series["step"] == [*range(1, n - 1, 2), n - 1]
    assert chart.table.note == "The slowest of each 2 steps; --json has all."


def test_few_steps_are_all_drawn():
    series = step_chart(step_rows(steps(step(0, 0), step(0, 1)), [], 1)).data
    assert (series["per_column"], series["n_steps"], series["wall"]) == (1, 2, [100, 100])
    assert series["parts"]["hidden"] == [20, 20]


# --- collectives ---------------------------------------------------------------------------------


def row(step, seq, rank, *, wait=0, transfer=10, length=10, kind="all_reduce", n_bytes=None, **more):  # fmt: skip
    return {
        "step": step, "seq": seq, "rank": rank, "collective": kind, "comm_id": "c",
        "start_ns": 0, "end_ns": length, "is_matched": wait is not None, "in_summary": True,
        "wait_ns": wait, "transfer_ns": None if wait is None else transfer,
        "message_bytes": n_bytes, "busbw_bytes_per_s": None if n_bytes is None else 2e9,
    } | more  # fmt: skip


def medians(*rows):
    return collective_medians(schema.COLLECTIVES.from_rows(rows))


def charts(*rows):
    return collective_charts(medians(*rows))


def test_waits_are_medians_over_steps_of_each_rank():
    found = medians(
        *(row(step, 0, 0, wait=wait) for step, wait in enumerate((10, 20, 90))),
        *(row(step, 0, 1, wait=0) for step in range(3)),
    )
    assert found.rows[0]["wait"] == {0: 20.0, 1: 0.0}
    assert (found.n_steps, found.n_used, found.ranks) == (3, 3, [0, 1])


def test_transfer_is_the_median_over_ranks_and_steps():
    found = medians(row(0, 0, 0, transfer=10), row(0, 0, 1, transfer=30), row(1, 0, 0, transfer=50))
    assert found.rows[0]["transfer"] == 30.0


def test_two_kinds_at_one_place_are_two_rows():
    found = medians(row(0, 0, 0), row(1, 0, 0, kind="broadcast"))
    assert [(one["seq"], one["collective"]) for one in found.rows] == [(0, "all_reduce"), (0, "broadcast")]


def test_an_unmatched_collective_has_its_duration_only():
    found = medians(row(0, 0, 0, wait=None, length=70))
    one = found.rows[0]
    assert (one["duration"], one["transfer"], one["wait"]) == (70.0, None, {0: None})
    assert collective_charts(found)[0].table.rows[0] == ["0", "all_reduce", "<0.001 ms", "-", "-", "-", "-"]


def test_steps_outside_of_the_figures_do_not_count():
    assert medians(row(0, 0, 0, in_summary=False)).rows == []


def test_of_many_collectives_the_longest_are_kept_in_order(monkeypatch):
    monkeypatch.setattr(module, "MOST_COLLECTIVES", 2)
    found = medians(row(0, 0, 0, length=90), row(0, 1, 0, length=10), row(0, 2, 0, length=50))
    assert [one["seq"] for one in found.rows] == [0, 2]
    assert collective_note(found) == "The one step of the figures; the 2 longest of 3 collectives."


def test_of_very_many_rows_steps_are_taken_evenly(monkeypatch):
    monkeypatch.setattr(module, "_MOST_ROWS", 4)
    found = medians(*(row(step, 0, 0, wait=step) for step in range(8)))
    # Every other step: 0, 2, 4, 6, whose median is 3.
    assert (found.n_used, found.n_steps, found.rows[0]["wait"][0]) == (4, 8, 3.0)
    assert collective_note(found) == "Medians over 4 of 8 steps of the figures."


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([row(0, 0, 0), row(1, 0, 0), row(2, 0, 0, wait=None)], ": the 2 that could be matched."),
        ([row(0, 0, 0), row(1, 0, 0), row(1, 1, 0, wait=None)], ": the 2 of which some could be matched."),
        ([row(0, 0, 0, wait=None), row(1, 0, 0, wait=None)], " are not known, as none could be matched across ranks."),
    ],
)
def test_the_note_says_how_many_steps_could_be_matched(rows, says):
    note = collective_note(medians(*rows))
    assert note.startswith(
        f"Medians over the {len({one['step'] for one in rows})} steps of the figures; transfer and waiting"
    )
    assert note.endswith(f"waiting{says}")


def test_the_chart_has_a_wait_per_rank():
    found = charts(row(0, 0, 0, wait=5), row(0, 0, 3, wait=0))[0].data
    assert found["ranks"] == [0, 3]
    assert found["wait"] == [[5.0, 0.0]]


def test_the_table_names_the_rank_that_waits_longest():
    found = charts(row(0, 0, 0, wait=2_000_000), row(0, 0, 1, wait=3_000_000))[0].table
    assert found.rows[0][4:6] == ["3.000 ms", "1"]


def test_of_collectives_in_which_nobody_waits_no_rank_is_named():
    assert charts(row(0, 0, 0), row(0, 0, 1))[0].table.rows[0][4:6] == ["0 ms", "-"]


def test_sizes_are_drawn_where_they_are_known():
    assert len(charts(row(0, 0, 0))) == 1
    found = charts(row(0, 0, 0), row(0, 1, 0, n_bytes=64))[1].data
    assert (found["seq"], found["bytes"], found["busbw"]) == ([1], [64.0], [2e9])


def test_without_communication_there_is_nothing_to_draw():
    assert charts() == []
