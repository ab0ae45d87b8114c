"""The bars of the timeline as the chart draws them; times are ns."""

import pytest

from nsyspipe.model import schema
from nsyspipe.report.html import timeline as module
from nsyspipe.report.html.run_charts import collective_facts
from nsyspipe.report.html.timeline import lane_legend, timeline_data, timeline_table
from tests.build.make_perfetto import collective

TO = "\N{EN DASH}"


def bar(lane, start, end, name="x", *, rank=0, busy=None, n=1, seq=None, exposed=None, wait=None):
    return {
        "step": 4,
        "rank": rank,
        "lane": lane,
        "start_ns": start,
        "end_ns": end,
        "busy_ns": end - start if busy is None else busy,
        "n_operations": n,
        "name": name,
        "seq": seq,
        "exposed_ns": exposed,
        "wait_ns": wait,
    }


def windows(*spans, **known):
    rows = [
        {"rank": rank, "step": step, "start_ns": start, "end_ns": end, "compute_ns": 1} | known
        for rank, (start, end) in enumerate(spans)
        for step, start, end in ((3, start - 100, start), (4, start, end))
    ]
    return schema.STEPS.from_rows(rows)


def drawn(*bars, spans=((1000, 1100),), first=(0,), others=()):
    return timeline_data(schema.TIMELINE.from_rows(bars), windows(*spans), first, others)


def test_times_count_from_the_first_start_of_the_step():
    bars = (bar("compute", 1010, 1030), bar("compute", 1050, 1070, rank=1))
    found = drawn(*bars, spans=((1010, 1100), (1000, 1090)), first=(0, 1))
    assert (found["step"], found["end"]) == (4, 100)
    assert [one["window"] for one in found["ranks"]] == [[10, 100], [0, 90]]
    assert [one["lanes"]["compute"]["start"] for one in found["ranks"]] == [[10], [50]]
    assert found["ranks"][0]["lanes"]["compute"]["length"] == [20]


SHOWN = {"start": [20], "length": [40], "name": [0]}


@pytest.mark.parametrize(
    ("bars", "lane", "columns", "legend"),
    [
        # Columns that say nothing are left out; a bar of several operations says how many, and how
        # busy.
        ([bar("compute", 1020, 1060)], "compute", SHOWN, ["compute"]),
        (
            [bar("compute", 1020, 1060, busy=25, n=7)],
            "compute",
            SHOWN | {"busy": [25], "n": [7]},
            ["compute"],
        ),
        # What is drawn of compute covers the communication; its operations leave 7 ns, of which it
        # waits 3.
        (
            [bar("compute", 1000, 1100, busy=60, n=9), bar("comm", 1020, 1060, exposed=7, wait=3)],
            "comm",
            SHOWN | {"exposed": [7], "wait": [3]},
            ["compute", "hidden", "transfer"],
        ),
        ([bar("exposed", 1020, 1060)], "exposed", SHOWN, ["exposed"]),
        # Waiting that is not known is left out, and none at all is kept.
        ([bar("comm", 1020, 1060, exposed=40)], "comm", SHOWN | {"exposed": [40]}, []),
        (
            [bar("comm", 1020, 1060, exposed=40, wait=0)],
            "comm",
            SHOWN | {"exposed": [40], "wait": [0]},
            ["transfer"],
        ),
        # Phases have a colour each, in the order of a loop.
        (
            [bar("phase", 1020, 1060, "optimizer"), bar("phase", 1000, 1020, "forward")],
            "phase",
            {"start": [20, 0], "length": [40, 20], "name": [0, 1]},
            ["forward", "optimizer"],
        ),
    ],
)
def test_a_lane_holds_what_is_known_of_its_bars_and_the_legend_what_has_colour(
    bars, lane, columns, legend
):
    found = drawn(*bars)
    told = [category for category, _ in lane_legend(found["ranks"], found["names"])]
    assert (found["ranks"][0]["lanes"][lane], told) == (columns, legend)


def test_the_longest_stretch_without_compute_is_that_of_the_slowest_rank():
    # Rank 1 is slower: its bars leave [0, 5), [20, 90) and [100, 110); rank 0 computes nothing for
    # 80.
    spans = ((1000, 1100), (1000, 1110))
    bars = (
        bar("compute", 1080, 1100),
        bar("compute", 1005, 1020, rank=1),
        bar("compute", 1090, 1100, rank=1),
    )
    assert drawn(*bars, spans=spans, first=(0, 1))["stretch"] == {"rank": 1, "start": 20, "end": 90}
    # At the end of its window; and nothing to speak of.
    assert drawn(bar("compute", 1000, 1040))["stretch"] == {"rank": 0, "start": 40, "end": 100}
    assert drawn(bar("compute", 1000, 1100))["stretch"] is None
    assert drawn(bar("memory", 1000, 1100))["stretch"] is None


def test_kernels_that_may_communicate_are_no_compute(worded):
    bars = schema.TIMELINE.from_rows([bar("compute", 1000, 1040)])
    found = timeline_data(bars, windows((1000, 1100), compute_ns=None), (0,), ())
    assert (found["ranks"][0]["lanes"].keys(), found["stretch"]) == ({"untold"}, None)
    worded([text for _, text in lane_legend(found["ranks"])])


def test_a_collective_is_told_with_its_bytes_and_who_came_last():
    sized = {"message_bytes": 64, "busbw_bytes_per_s": 2e9}
    rows = [
        collective(0, 9, 0, 4, rank, late_by_ns=late, **sized) for rank, late in enumerate((0, 7))
    ]
    rows += [collective(0, 9, 1, 4), collective(0, 9, 2, 3, late_by_ns=5)]
    assert collective_facts(schema.COLLECTIVES.from_rows(rows), 4) == {
        "0": [64, 2e9, 1],
        "1": [None, None, None],
    }


def test_names_are_written_once():
    found = drawn(
        bar("compute", 1000, 1010, "a"),
        bar("compute", 1010, 1020, "b"),
        bar("compute", 1020, 1030, "a"),
        bar("compute", 1030, 1040, None),
    )
    names = found["ranks"][0]["lanes"]["compute"]["name"]
    assert ([found["names"][at] for at in names[:3]], names[3], len(found["names"])) == (
        ["a", "b", "a"],
        -1,
        2,
    )


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
    known = {
        "compute_ns": 1,
        "comm_ns": 0,
        "exposed_comm_ns": 0,
        "wait_ns": 0,
        "exposed_memory_ns": 0,
    }
    spans = windows((1_000_000, 9_000_000), (2_000_000, 8_000_000), **known)
    table = timeline_table(schema.TIMELINE.from_rows(rows), spans)
    assert [one.heading for one in table.columns][-1] == "forward, from and to"
    # 1.5 ms and 1 ms busy; forward from the window's start to 5 ms later; rank 1 has no bars, and
    # did nothing.
    assert table.rows == [
        ["0", f"0 ms {TO} 8.000 ms", "2.500 ms", "0 ms", f"0 ms {TO} 5.000 ms"],
        ["1", f"1.000 ms {TO} 7.000 ms", "0 ms", "0 ms", "-"],
    ]


def test_the_table_has_no_zero_for_what_was_not_recorded():
    def busy(**known):
        rows = [bar("comm", 1_000_000, 3_000_000, exposed=0)]
        return timeline_table(
            schema.TIMELINE.from_rows(rows), windows((0, 9_000_000), **known)
        ).rows[0][2:]

    assert busy(compute_ns=None) == ["-"] * 5
    # A run of one rank: nobody to wait for; copies were not recorded.
    assert busy(compute_ns=0, comm_ns=2_000_000, exposed_comm_ns=0) == [
        "0 ms",
        "2.000 ms",
        "0 ms",
        "-",
        "-",
    ]


def test_without_a_timeline_there_is_nothing_to_draw():
    assert drawn() is None
