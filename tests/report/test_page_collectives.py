"""Collectives in the order of a step, as a page shows them; times are ns."""

from __future__ import annotations

from nsyspipe.model import schema
from nsyspipe.report.html import run_collectives as module
from nsyspipe.report.html.run_collectives import (
    by_order,
    by_size,
    collective_medians,
    collective_note,
    collective_table,
)


def row(step, seq, rank, *, wait=0, transfer=10, length=10, kind="all_reduce", n_bytes=None, **more):  # fmt: skip
    return {
        "step": step, "seq": seq, "rank": rank, "collective": kind, "comm_id": "c",
        "start_ns": 0, "end_ns": length, "is_matched": wait is not None, "in_summary": True,
        "wait_ns": wait, "transfer_ns": None if wait is None else transfer,
        "message_bytes": n_bytes, "busbw_bytes_per_s": None if n_bytes is None else 2e9,
    } | more  # fmt: skip


def medians(*rows):
    return collective_medians(schema.COLLECTIVES.from_rows(rows))


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
    assert [(one["seq"], one["collective"]) for one in found.rows] == [
        (0, "all_reduce"),
        (0, "broadcast"),
    ]


def test_an_unmatched_collective_has_its_duration_only():
    found = medians(row(0, 0, 0, wait=None, length=70))
    one = found.rows[0]
    assert (one["duration"], one["transfer"], one["wait"]) == (70.0, None, {0: None})
    assert collective_table(found).rows[0] == ["0", "all_reduce", "<0.001 ms", "-", "-", "-", "-"]


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


def test_the_note_says_how_many_steps_could_be_matched():
    found = medians(row(0, 0, 0), row(1, 0, 0), row(2, 0, 0, wait=None))
    assert collective_note(found) == "Medians over the 3 steps of the figures; transfer and waiting: the 2 that could be matched."  # fmt: skip


def test_a_step_of_which_some_could_be_matched_is_not_called_matched():
    found = medians(row(0, 0, 0), row(1, 0, 0), row(1, 1, 0, wait=None))
    assert collective_note(found).endswith("; transfer and waiting: the 2 of which some could be matched.")  # fmt: skip


def test_the_note_says_that_nothing_could_be_matched():
    found = medians(row(0, 0, 0, wait=None), row(1, 0, 0, wait=None))
    assert collective_note(found).endswith("; transfer and waiting are not known, as none could be matched across ranks.")  # fmt: skip


def test_the_chart_has_a_wait_per_rank():
    found = by_order(medians(row(0, 0, 0, wait=5), row(0, 0, 3, wait=0)))
    assert found["ranks"] == [0, 3]
    assert found["wait"] == [[5.0, 0.0]]


def test_the_table_names_the_rank_that_waits_longest():
    found = collective_table(medians(row(0, 0, 0, wait=2_000_000), row(0, 0, 1, wait=3_000_000)))
    assert found.rows[0][4:6] == ["3.000 ms", "1"]


def test_of_collectives_in_which_nobody_waits_no_rank_is_named():
    assert collective_table(medians(row(0, 0, 0), row(0, 0, 1))).rows[0][4:6] == ["0 ms", "-"]


def test_sizes_are_drawn_where_they_are_known():
    assert by_size(medians(row(0, 0, 0))) is None
    found = by_size(medians(row(0, 0, 0), row(0, 1, 0, n_bytes=64)))
    assert (found["seq"], found["bytes"], found["busbw"]) == ([1], [64.0], [2e9])


def test_without_communication_there_is_nothing_to_draw():
    found = medians()
    assert by_order(found) is None
    assert collective_table(found).rows == []
