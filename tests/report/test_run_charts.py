"""What charts of a run's page draw, and the same as tables; times are ns."""

import re

import pytest

from nsyspipe.model import schema
from nsyspipe.report.html import run_charts as module
from tests.build.make_perfetto import collective, step_row


def step(
    rank=0, number=0, *, wall=100, compute=60, hidden=20, exposed=10, copies=5, begin=None, **more
):
    """Return a row of `schema.STEPS`; what is neither compute, exposed nor copies is idle."""
    start = 1000 * number if begin is None else begin
    known = None not in (compute, exposed, copies)
    return (
        step_row(start, start + wall, number, rank)
        | {
            "compute_ns": compute,
            "overlap_compute_ns": hidden,
            "exposed_comm_ns": exposed,
            "comm_ns": exposed + hidden if known else None,
            "exposed_memory_ns": copies,
            "idle_ns": wall - compute - exposed - copies if known else None,
            "wait_ns": 12,
            "transfer_ns": 18,
            "compute_share": 0.6,
            "exposed_comm_share": 0.1,
            "exposed_memory_share": 0.05,
            "idle_share": 0.25,
            "wait_share": 0.12,
        }
        | more
    )


def steps(*rows):
    return schema.STEPS.from_rows(sorted(rows, key=lambda row: (row["rank"], row["start_ns"])))


def test_the_parts_of_a_step_sum_to_its_wall_time():
    # 60 ns of compute, 20 of them beside communication; 10 exposed, 5 copies: 25 of 100 idle.
    assert module.parts_of(step()) == {
        "compute": 40,
        "hidden": 20,
        "exposed": 10,
        "copies": 5,
        "idle": 25,
    }


@pytest.mark.parametrize("name", ["compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns"])
def test_a_step_with_unrecorded_parts_shows_only_known_parts(name):
    found = module.rank_chart(
        steps(step(), step(number=1) | {name: None, "wait_ns": None}), [0]
    ).data["ranks"][0]
    known = {
        "exposed_comm_ns": ("exposed", 20),
        "exposed_memory_ns": ("copies", 10),
        "idle_ns": ("idle", 50),
    }
    rest = dict(part for of, part in known.items() if of != name)
    assert module.parts_of(step() | {name: None}) == {part: ns // 2 for part, ns in rest.items()}
    assert (found["parts"], found["wait"], found["wall"]) == (rest, None, 200)


def test_parts_of_a_rank_are_summed_and_the_table_has_their_means():
    # 40 + 100, 20 + 50, 10 + 10, 5 + 5, 25 + 35
    parts = {"compute": 140, "hidden": 70, "exposed": 20, "copies": 10, "idle": 60}
    rank = {"rank": 0, "wall": 300, "parts": parts, "comm": 90, "wait": 24, "transfer": 36}
    found = module.rank_chart(
        steps(step(), step(number=1, wall=200, compute=150, hidden=50), step(rank=1)), [0]
    ).data
    assert found == {"n_steps": 2, "whole": "step", "ranks": [rank], "step": None}
    table = module.rank_chart(
        steps(step(wall=2_000_000, compute=1_000_000, hidden=500_000)), [0]
    ).table
    # 1 ms of 2 ms is compute, half of it beside communication.
    assert table.rows[0][:4] == ["0", "2.000 ms", "0.5000 ms (25.0%)", "0.5000 ms (25.0%)"]


NO = {"in_summary": False}
LAST = NO | {"is_complete": False}
SHOWN = ("step", "rank", "wall_ns", "fastest_rank", "mark")


@pytest.mark.parametrize(
    ("rows", "skipped", "n_ranks", "shown"),
    [
        # A step is shown by its slowest rank, the fastest beside it; of equally long ones by the
        # lowest, beside the highest.
        (
            [step(0, 1, wall=100), step(1, 1, wall=120), step(2, 1, wall=90)],
            [],
            3,
            [(1, 1, 120, 2, "")],
        ),
        ([step(1, 1), step(0, 1)], [], 2, [(1, 0, 100, 1, "")]),
        # In the order of time, not of number.
        (
            [step(0, 7, begin=0), step(0, 3, begin=500)],
            [],
            1,
            [(7, 0, 100, 0, ""), (3, 0, 100, 0, "")],
        ),
    ],
)
def test_a_step_is_one_row(rows, skipped, n_ranks, shown):
    assert [
        tuple(row[name] for name in SHOWN)
        for row in module.step_rows(steps(*rows), skipped, n_ranks)
    ] == shown


def test_a_step_that_does_not_count_says_why(worded):
    skipped, shown = [step(0, 0, **NO), step(1, 0, **NO)], [step(0, 1), step(1, 1)]
    others = [step(0, 2, **NO), step(0, 3, **LAST), step(1, 3, **LAST)]
    rows = module.step_rows(steps(*skipped, *shown, *others), [0], 2)
    assert [bool(row["mark"]) for row in rows] == [True, False, True, True]
    worded([row["mark"] for row in rows])


def test_of_many_steps_the_slowest_of_each_few_is_drawn_and_of_few_all(worded):
    n = module.MOST_COLUMNS + 1
    chart = module.step_chart(
        module.step_rows(steps(*(step(0, at, wall=100 + at % 2) for at in range(n))), [], 1)
    )
    # 401 steps, two to a column: 200 pairs of which the odd step is slower, and the last alone.
    assert chart.data["step"] == [*range(1, n - 1, 2), n - 1]
    worded(chart.table.note)
    # Of one rank that does not communicate, nothing is said of others; nor do legends name what
    # takes no time.
    alone = (step(number=number, hidden=0, exposed=0, copies=0) for number in (0, 1))
    few = module.step_chart(module.step_rows(steps(*alone), [], 1), has_comm=False)
    assert (few.table.note, few.data["wall_ns"], few.data["parts"]["exposed"]) == (
        None,
        [100, 100],
        [0, 0],
    )
    assert [one.heading for one in few.table.columns][2:] == [
        "compute",
        "exposed copies",
        "idle",
        "used",
    ]
    assert [*dict(few.legend)] == ["compute", "idle"]


def test_every_rank_of_a_step_is_told_and_their_median():
    rows = module.step_rows(
        steps(*(step(rank, 0, wall=100 + 10 * rank) for rank in range(3))), [], 3
    )
    assert (rows[0]["walls_ns"], rows[0]["median_wall_ns"]) == ([120, 110, 100], 110)
    # Of 40 ranks some, the slowest and the fastest among them.
    many = module.step_rows(steps(*(step(rank, 0, wall=100 + rank) for rank in range(40))), [], 40)[
        0
    ]
    assert (len(many["walls_ns"]), many["walls_ns"][0], many["walls_ns"][-1]) == (16, 139, 100)
    assert many["median_wall_ns"] == 119.5


def row(
    step, seq, rank, *, wait=0, transfer=10, length=None, kind="all_reduce", n_bytes=None, **more
):
    known = {
        "wait_ns": wait,
        "transfer_ns": None if wait is None else transfer,
        "message_bytes": n_bytes,
    }
    known |= {"collective": kind, "busbw_bytes_per_s": None if n_bytes is None else 2e9}
    length = max(10, wait or 0) if length is None else length
    return collective(0, length, seq, step, rank, is_matched=wait is not None, **known, **more)


def medians(*rows):
    return module.collective_medians(schema.COLLECTIVES.from_rows(rows))


def charts(*rows):
    return module.collective_charts(medians(*rows))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # Waits are medians over steps of each rank, transfer is one over ranks and steps.
        (
            [
                *(row(step, 0, 0, wait=wait) for step, wait in enumerate((10, 20, 90))),
                *(row(step, 0, 1) for step in range(3)),
            ],
            [{"wait": {0: 20.0, 1: 0.0}}],
        ),
        (
            [row(0, 0, 0, transfer=10), row(0, 0, 1, transfer=30), row(1, 0, 0, transfer=50)],
            [{"transfer": 30.0}],
        ),
        # The n-th of its kind is one collective, whatever some steps have before it.
        (
            [
                row(0, 0, 0, length=4),
                row(0, 1, 0, length=6),
                row(1, 0, 0, kind="broadcast"),
                row(1, 1, 0, length=4),
                row(1, 2, 0, length=6),
            ],
            [
                {"seq": 0, "collective": "broadcast", "n_steps": 1, "duration": 10.0},
                {"seq": 1, "collective": "all_reduce", "n_steps": 2, "duration": 4.0},
                {"seq": 2, "collective": "all_reduce", "n_steps": 2, "duration": 6.0},
            ],
        ),
        # No rank waits longer than the longest of them takes.
        (
            [
                row(0, 0, 0, wait=1, length=2),
                row(0, 0, 1, wait=8, length=9),
                row(0, 0, 2, length=2),
            ],
            [{"duration": 9.0, "longest": [(1, 8.0), (0, 1.0), (2, 0.0)]}],
        ),
        # The root of a broadcast ends before the last rank starts, 5 ns behind it: it waits as long
        # as it lasts.
        (
            [
                row(0, 0, 0, wait=5, length=2, kind="broadcast"),
                row(0, 0, 1, length=3, kind="broadcast"),
            ],
            [{"duration": 3.0, "longest": [(0, 2.0), (1, 0.0)]}],
        ),
        # What is not matched has its duration only; what is outside of the figures does not count.
        (
            [row(0, 0, 0, wait=None, length=70)],
            [{"duration": 70.0, "transfer": None, "wait": {0: None}}],
        ),
        ([row(0, 0, 0, in_summary=False)], []),
    ],
)
def test_figures_of_a_collective_are_medians(rows, expected, worded):
    found = medians(*rows)
    assert [
        {key: one[key] for key in want} for one, want in zip(found.rows, expected, strict=True)
    ] == expected
    worded(found.note)


def test_the_longest_of_many_collectives_are_kept_in_order(monkeypatch, worded):
    monkeypatch.setattr(module, "MOST_COLLECTIVES", 2)
    found = medians(row(0, 0, 0, length=90), row(0, 1, 0, length=10), row(0, 2, 0, length=50))
    assert [one["seq"] for one in found.rows] == [0, 2]
    worded([found.note, module.collective_charts(found)[0].data["axis"]], "one step")
    rows = schema.COLLECTIVES.from_rows([row(0, seq, 0) for seq in range(3)])
    capture = module.collective_medians(rows, "the capture")
    worded(capture.note, "capture")
    monkeypatch.setattr(module, "MAX_ROWS_OF_MEDIANS", 4)
    found = medians(*(row(step, 0, 0, wait=step) for step in range(8)))
    assert found.rows[0]["wait"][0] == 3.0  # every other step: 0, 2, 4, 6, whose median is 3
    worded(found.note, "every other step")


def test_the_note_says_that_some_steps_have_more(worded):
    rows = [row(0, 0, 0), row(0, 1, 0), row(1, 0, 0)]
    worded(medians(*rows).note)
    (chart,) = charts(*rows)
    assert [
        one[
            chart.table.columns.index(
                next(at for at in chart.table.columns if at.heading == "steps")
            )
        ]
        for one in chart.table.rows
    ] == ["2", "1"]


MATCHED = {
    "2 of 3": ([row(0, 0, 0), row(1, 0, 0), row(2, 0, 0, wait=None)], ["3", "2"]),
    "some of 2": ([row(0, 0, 0), row(1, 0, 0), row(0, 1, 0), row(1, 1, 0, wait=None)], ["2", "2"]),
    "none": ([row(at, 0, 0, wait=None) for at in (0, 1)], ["2"]),
}


@pytest.mark.parametrize("case", MATCHED)
def test_the_note_says_how_many_steps_could_be_matched(case, worded):
    rows, numbers = MATCHED[case]
    note = medians(*rows).note
    assert re.findall(r"\d+", note) == numbers
    worded(note)


@pytest.mark.parametrize(
    ("rows", "cells", "wait"),
    [
        (
            [row(0, 0, 0, wait=2_000_000), row(0, 0, 3, wait=3_000_000)],
            ["3.000 ms", "3"],
            [[(3, 3_000_000.0), (0, 2_000_000.0)]],
        ),
        # In which nobody waits no rank is named.
        ([row(0, 0, 0), row(0, 0, 1)], ["0 ms", "-"], [[(0, 0.0), (1, 0.0)]]),
        ([row(0, 0, 0, wait=None, length=70)], ["-", "-"], [[]]),
        # Of many ranks the longest.
        (
            [row(0, 0, rank, wait=rank * 10**6) for rank in range(12)],
            ["11.00 ms", "11"],
            [[(rank, rank * 1e6) for rank in range(11, 1, -1)]],
        ),
    ],
)
def test_the_rank_that_waits_longest_is_named(rows, cells, wait):
    (chart,) = charts(*rows)
    assert chart.table.rows[0][4:6] == cells
    assert (chart.data["longest"], chart.data["n_waits"]) == (
        wait,
        [sum(one["wait_ns"] is not None for one in rows)],
    )


def test_nothing_is_drawn_of_what_is_not_there():
    empty = schema.STEPS.empty()
    assert [
        module.rank_chart(empty, []),
        module.step_chart(module.step_rows(empty, [], 2)),
        *charts(),
    ] == [None, None]
    # Sizes are drawn where they are known.
    sized = [row(0, seq, 0, n_bytes=64 * seq) for seq in (1, 2, 3)]
    found = charts(row(0, 0, 0), *sized)[1].data
    assert (found["seq"], found["bytes"], found["busbw"]) == (
        [1, 2, 3],
        [64.0, 128.0, 192.0],
        [2e9] * 3,
    )
    # Speeds over one or two sizes are a few dots, which say nothing of sizes.
    assert len(charts(*sized[:2], row(0, 4, 0, n_bytes=64))) == 1
