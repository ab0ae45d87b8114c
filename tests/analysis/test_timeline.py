"""What each lane of a timeline says, and in which order; tests/property/test_timeline.py draws any bars."""

from __future__ import annotations

import pyarrow as pa

from nsyspipe.analysis.timeline import MAX_BARS, timeline
from nsyspipe.model import schema

STEP, RANK = 7, 2
WINDOW = (100, 200)


def steps(*rows, wait=None):
    """Return what a timeline looks at of `schema.STEPS`, from (rank, step, start, end); `wait` is of all."""
    columns = list(zip(*((*row, wait) for row in rows), strict=True)) or [()] * 5
    names = ("rank", "step", "start_ns", "end_ns", "wait_ns")
    return pa.table({name: pa.array(column, pa.int64()) for name, column in zip(names, columns, strict=True)})


def event(start, end, category="compute", name="gemm", **more):
    row = {"rank": RANK, "step": STEP, "category": category, "name": name, "dur_ns": end - start}
    return row | {"start_ns": start, "end_ns": end} | more


def comm(start, end, collective="all_reduce", seq=0):
    return event(start, end, "comm", "nccl", collective=collective, seq=seq)


def collective(start, end, wait, seq=0):
    return {"step": STEP, "seq": seq, "rank": RANK, "collective": "all_reduce", "comm_id": "0", "start_ns": start,
            "end_ns": end, "is_matched": True, "in_summary": True, "wait_ns": wait}  # fmt: skip


def bars(events, *waits, spans=((RANK, STEP, *WINDOW),), wait=None):
    """Return the timeline of these ranks, which all have the same operations."""
    tables = schema.EVENTS.from_rows(events), schema.PHASE_RANGES.empty()
    collectives = schema.COLLECTIVES.from_rows(waits)
    at = collectives.schema.get_field_index("collective")  # texts may be dictionaries
    collectives = collectives.set_column(at, "collective", collectives["collective"].dictionary_encode())
    found = timeline(steps(*spans, wait=wait), collectives, [(rank, *tables) for rank in (0, 1, 2)], STEP)
    assert found.schema == schema.TIMELINE.arrow
    return found


def test_lanes_but_comm_have_neither_exposed_nor_waiting_time():
    events = event(110, 120), comm(130, 140), event(150, 160, "memory")
    found = bars(events, collective(130, 140, 4), wait=4).to_pylist()
    assert {row["lane"]: (row["exposed_ns"], row["wait_ns"], row["name"]) for row in found} == {
        "compute": (None, None, "gemm"), "memory": (None, None, "gemm"), "comm": (10, 4, "all_reduce"),
        "exposed": (None, None, "all_reduce"), "wait": (None, None, "all_reduce"),
    }  # fmt: skip


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
