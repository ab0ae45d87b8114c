"""The bars of the timeline as the chart draws them; times are ns."""

from __future__ import annotations

from nsyspipe import schema
from nsyspipe.report.page import timeline_data as module
from nsyspipe.report.page.timeline_data import timeline_data
from nsyspipe.report.page.timeline_table import timeline_table

TO = "\N{EN DASH}"


def bar(lane, start, end, name="x", *, rank=0, busy=None, n=1, seq=None):
    return {
        "step": 4, "rank": rank, "lane": lane, "start_ns": start, "end_ns": end,
        "busy_ns": end - start if busy is None else busy, "n_operations": n, "name": name, "seq": seq,
    }  # fmt: skip


def windows(*spans):
    rows = [
        {"rank": rank, "step": step, "start_ns": start, "end_ns": end}
        for rank, (start, end) in enumerate(spans)
        for step, start, end in ((3, start - 100, start), (4, start, end))
    ]
    return schema.STEPS.from_rows(rows)


def drawn(*bars, spans=((1000, 1100),), first=(0,), others=()):
    return timeline_data(schema.TIMELINE.from_rows(bars), windows(*spans), first, others)


def test_times_count_from_the_first_start_of_the_step():
    found = drawn(
        bar("compute", 1010, 1030),
        bar("compute", 1050, 1070, rank=1),
        spans=((1010, 1100), (1000, 1090)),
        first=(0, 1),
    )
    assert (found["step"], found["end"]) == (4, 100)
    assert [one["window"] for one in found["ranks"]] == [[10, 100], [0, 90]]
    assert [one["lanes"]["compute"]["start"] for one in found["ranks"]] == [[10], [50]]
    assert found["ranks"][0]["lanes"]["compute"]["length"] == [20]


def test_columns_that_say_nothing_are_left_out():
    lanes = drawn(bar("compute", 1000, 1010))["ranks"][0]["lanes"]
    assert set(lanes["compute"]) == {"start", "length", "name"}


def test_a_bar_of_several_operations_says_how_many_and_how_busy():
    lanes = drawn(bar("compute", 1000, 1010), bar("compute", 1020, 1050, busy=25, n=7))["ranks"][0]["lanes"]  # fmt: skip
    assert lanes["compute"]["busy"] == [10, 25]
    assert lanes["compute"]["n"] == [1, 7]


def test_communication_is_exposed_where_no_compute_bar_is():
    # comm [20, 60) beside compute [10, 30) and [40, 50): exposed [30, 40) and [50, 60).
    lanes = drawn(
        bar("compute", 1010, 1030),
        bar("compute", 1040, 1050),
        bar("comm", 1020, 1060, "all_reduce", seq=0),
    )["ranks"][0]["lanes"]
    assert lanes["exposed"] == {"start": [30, 50], "length": [10, 10]}
    assert lanes["comm"]["seq"] == [0]


def test_communication_without_compute_is_exposed_as_a_whole():
    lanes = drawn(bar("comm", 1020, 1060, "all_reduce"))["ranks"][0]["lanes"]
    assert lanes["exposed"] == {"start": [20], "length": [40]}


def test_names_are_written_once():
    found = drawn(bar("compute", 1000, 1010, "a"), bar("compute", 1010, 1020, "b"), bar("compute", 1020, 1030, "a"), bar("compute", 1030, 1040, None))  # fmt: skip
    names = found["ranks"][0]["lanes"]["compute"]["name"]
    assert [found["names"][at] if at >= 0 else None for at in names] == ["a", "b", "a", None]
    assert len(found["names"]) == 2


def test_other_ranks_are_kept_while_there_is_room(monkeypatch):
    monkeypatch.setattr(module, "MOST_BARS", 3)
    bars = [bar("compute", 1000, 1010, rank=rank) for rank in range(5)]
    found = drawn(*bars, spans=((1000, 1100),) * 5, first=(2,), others=(0, 1, 3, 4))
    assert [(one["rank"], one["isFirst"]) for one in found["ranks"]] == [
        (0, False),
        (1, False),
        (2, True),
    ]
    assert (found["n_ranks"], found["n_shown"]) == (5, 1)


def test_the_table_says_when_phases_run_and_how_long_lanes_are_busy():
    rows = [
        bar("compute", 1_000_000, 3_000_000, busy=1_500_000),
        bar("compute", 4_000_000, 5_000_000),
        bar("phase", 1_000_000, 2_000_000, "forward"),
        bar("phase", 4_000_000, 6_000_000, "forward"),
    ]
    table = timeline_table(
        schema.TIMELINE.from_rows(rows), windows((1_000_000, 9_000_000), (2_000_000, 8_000_000))
    )
    assert [one.heading for one in table.columns][-1] == "forward, from and to"
    # 1.5 ms and 1 ms busy; forward from the window's start to 5 ms later; rank 1 has no bars.
    assert table.rows == [
        ["0", f"0 ms {TO} 8.000 ms", "2.500 ms", "0 ms", "0 ms", "0 ms", f"0 ms {TO} 5.000 ms"],
        ["1", f"1.000 ms {TO} 7.000 ms", "0 ms", "0 ms", "0 ms", "0 ms", "-"],
    ]


def test_without_a_timeline_there_is_nothing_to_draw():
    assert timeline_data(schema.TIMELINE.empty(), windows((0, 1)), [0], []) is None
