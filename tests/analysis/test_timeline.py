"""The representative step and its bars, by hand; tests/property/test_timeline.py draws any."""

from __future__ import annotations

import pyarrow as pa
import pytest

from nsyspipe.analysis.timeline import MAX_BARS, representative_step, timeline
from nsyspipe.model import schema

STEP, RANK = 7, 2
WINDOW = (100, 200)


def steps(*rows, in_summary=True, wait=None):
    """Return what a timeline looks at of `schema.STEPS`, from (rank, step, start, end); `wait` is of all."""
    columns = list(zip(*rows, strict=True)) or [()] * 4
    names = ("rank", "step", "start_ns", "end_ns")
    arrays = {name: pa.array(column, pa.int64()) for name, column in zip(names, columns, strict=True)}
    flags = in_summary if isinstance(in_summary, list) else [in_summary] * len(rows)
    arrays["wait_ns"] = pa.array([wait] * len(rows), pa.int64())
    return pa.table(arrays | {"in_summary": pa.array(flags, pa.bool_())})


def event(start, end, category="compute", name="gemm", **more):
    row = {"rank": RANK, "step": STEP, "category": category, "name": name, "dur_ns": end - start}
    return row | {"start_ns": start, "end_ns": end} | more


def comm(start, end, collective="all_reduce", seq=0):
    return event(start, end, "comm", "nccl", collective=collective, seq=seq)


def collective(start, end, wait, seq=0):
    return {"step": STEP, "seq": seq, "rank": RANK, "collective": "all_reduce", "comm_id": "0", "start_ns": start,
            "end_ns": end, "is_matched": True, "in_summary": True, "wait_ns": wait}  # fmt: skip


def bars(events, *waits, spans=((RANK, STEP, *WINDOW),), wait=None, phases=(), most=MAX_BARS):
    """Return the timeline of these ranks, which all have the same operations."""
    tables = schema.EVENTS.from_rows(events), schema.PHASE_RANGES.from_rows(phases)
    collectives = schema.COLLECTIVES.from_rows(waits)
    at = collectives.schema.get_field_index("collective")  # texts may be dictionaries
    collectives = collectives.set_column(at, "collective", collectives["collective"].dictionary_encode())
    found = timeline(steps(*spans, wait=wait), collectives, [(rank, *tables) for rank in (0, 1, 2)], STEP, most)
    assert found.schema == schema.TIMELINE.arrow
    return found


def test_lanes_but_comm_have_neither_exposed_nor_waiting_time():
    events = event(110, 120), comm(130, 140), event(150, 160, "memory")
    found = bars(events, collective(130, 140, 4), wait=4).to_pylist()
    assert {row["lane"]: (row["exposed_ns"], row["wait_ns"], row["name"]) for row in found} == {
        "compute": (None, None, "gemm"), "memory": (None, None, "gemm"), "comm": (10, 4, "all_reduce"),
        "exposed": (None, None, "all_reduce"), "wait": (None, None, "all_reduce"),
    }  # fmt: skip


@pytest.mark.parametrize(("lane", "most", "events", "expected"), [
    # Clipped to [100, 200); what only touches it, or has no length, is none.
    ("compute", 9, [event(90, 110), event(195, 300), event(90, 100), event(200, 210), event(150, 150)],
     [(100, 110, 1, "gemm", None), (195, 200, 1, "gemm", None)]),
    # Those that overlap are one bar, those that only touch are two.
    ("compute", 9, [event(110, 120), event(115, 130), event(130, 140)],
     [(110, 130, 2, "gemm", None), (130, 140, 1, "gemm", None)]),
    # Of equal gaps the earliest is closed; a bar has the name with most time, of equal ones the first.
    ("compute", 2, [event(110, 120, name="b"), event(125, 135, name="a"), event(140, 151, name="c")],
     [(110, 135, 2, "a", None), (140, 151, 1, "c", None)]),
    ("compute", 1, [event(110, 120, name="b"), event(125, 135, name="a"), event(140, 151, name="c")],
     [(110, 151, 3, "c", None)]),
    # Time is of the communication that began first, of equal starts the longest; one within others counts in them.
    ("comm", 9, [comm(110, 120, seq=1), comm(110, 140, seq=2), comm(120, 140, seq=3), comm(130, 150, seq=4)],
     [(110, 140, 3, "all_reduce", None), (140, 150, 1, "all_reduce", 4)]),
    ("comm", 1, [comm(110, 120, seq=1), comm(130, 140, seq=2)], [(110, 140, 2, "all_reduce", None)]),
    # What compute leaves of it, each part of the collective that it is of.
    ("exposed", 9, [comm(110, 140, seq=2), comm(140, 150, seq=3), event(115, 120), event(130, 145)],
     [(110, 115, 1, "all_reduce", 2), (120, 130, 1, "all_reduce", 2), (145, 150, 1, "all_reduce", 3)]),
])  # fmt: skip
def test_the_bars_of_a_lane(lane, most, events, expected):
    keys = ("start_ns", "end_ns", "n_operations", "name", "seq")
    rows = bars(events, most=most).to_pylist()
    assert [tuple(row[key] for key in keys) for row in rows if row["lane"] == lane] == expected


def test_a_phase_lasts_from_the_first_to_the_last_that_its_ranges_launched():
    keys = ("phase", "start_ns", "end_ns", "device_start_ns", "device_end_ns", "n_operations")
    # The first ended before the window began; of the second what is launched at its end is no part of its busy time.
    rows = ("forward", 10, 20, 90, 100, 1), ("backward", 20, 30, 110, 150, 2), ("data", 40, 50, None, None, 0)
    phases = [{"step": STEP} | dict(zip(keys, row, strict=True)) for row in rows]
    events = event(110, 120, launch_ns=20), event(140, 150, launch_ns=29), event(125, 130, launch_ns=30)
    (row,) = (row for row in bars(events, phases=phases).to_pylist() if row["lane"] == "phase")
    assert [row[key] for key in ("name", "start_ns", "end_ns", "busy_ns", "n_operations")] == [
        "backward", 110, 150, 20, 2,
    ]  # fmt: skip


def test_a_lane_of_very_many_operations_has_the_most_bars_and_its_busy_time():
    # 5000 kernels of 100 ns.
    kernels = [event(200 * at + at % 7, 200 * at + at % 7 + 100) for at in range(5000)]
    found = bars(kernels, spans=[(RANK, STEP, 0, 10**6)])
    assert found.num_rows == MAX_BARS
    assert (sum(found["busy_ns"].to_pylist()), sum(found["n_operations"].to_pylist())) == (500_000, 5000)


def test_rows_stand_by_rank_lane_and_start_and_ranks_without_the_step_have_none():
    events = comm(150, 160), event(130, 140), event(110, 120), event(115, 118, "memory")
    found = bars(events, spans=[(0, STEP, *WINDOW), (2, STEP, *WINDOW)])
    expected = [("comm", 150), ("compute", 110), ("compute", 130), ("exposed", 150), ("memory", 115)]
    assert [tuple(row.values())[1:4] for row in found.to_pylist()] == [
        (rank, *one) for rank in (0, 2) for one in expected
    ]
    assert bars([]).num_rows == bars(events, spans=[]).num_rows == 0


A, B, C = (0, 3, 0, 100), (0, 4, 100, 210), (0, 5, 210, 330)  # 100, 110 and 120 ns


@pytest.mark.parametrize(("rows", "in_summary", "step"), [
    ([], True, None),
    # Closest to the median; of equally close ones the lowest, and of an even number the median is between.
    ([A, B, C], True, 4),
    ([B, A, C, (0, 6, 330, 340)], True, 3),  # 10, 100, 110, 120: 105
    ([(0, 4, 0, 100), (0, 3, 100, 220)], True, 3),  # 110, from which both are 10 away
    # The time of a step is its largest window: 130, 110, 120.
    ([A, B, C, (1, 3, 0, 130), (1, 4, 130, 131), (1, 5, 131, 132)], True, 5),
    # Of the summary steps, else of those that all ranks have, else of all.
    ([A, B, C], [False, False, True], 5), ([A, B, C, (1, 5, 0, 500)], False, 5), ([A, B, (1, 5, 0, 500)], False, 4),
])  # fmt: skip
def test_the_representative_step_is_the_one_closest_to_the_median(rows, in_summary, step):
    assert representative_step(steps(*rows, in_summary=in_summary)) == step
