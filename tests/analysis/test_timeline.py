"""The representative step and its bars, by hand."""

from __future__ import annotations

import pyarrow as pa

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


def collective(start, end, wait, seq=0, *, matched=True, rank=RANK, name="all_reduce"):
    return {"step": STEP, "seq": seq, "rank": rank, "collective": name, "comm_id": "0", "start_ns": start,
            "end_ns": end, "is_matched": matched, "in_summary": True, "wait_ns": wait}  # fmt: skip


LONG = ("start_ns", "end_ns", "busy_ns", "n_operations", "name", "seq")
PARTS = ("start_ns", "end_ns", "busy_ns", "exposed_ns", "wait_ns")


def lane(name, *events, phases=(), collectives=(), most=MAX_BARS, wait=None, columns=LONG):
    """Return these columns of the bars of one lane."""
    tables = schema.EVENTS.from_rows(events), schema.PHASE_RANGES.from_rows(phases)
    found = timeline(
        steps((RANK, STEP, *WINDOW), (RANK, STEP + 1, WINDOW[1], 300), wait=wait),
        schema.COLLECTIVES.from_rows(collectives),
        [(RANK, *tables)],
        STEP,
        most,
    )
    assert found.schema == schema.TIMELINE.arrow
    rows = [row for row in found.to_pylist() if row["lane"] == name]
    assert {(row["step"], row["rank"]) for row in rows} <= {(STEP, RANK)}
    return [tuple(row[column] for column in columns) for row in rows]


# --- lanes ----------------------------------------------------------------------------------


def test_other_lanes_have_neither_exposed_nor_waiting_time():
    found = event(110, 120), comm(130, 140), event(150, 160, "memory")
    waits = [collective(130, 140, 4)]
    for name in ("compute", "exposed", "wait", "memory"):
        assert [bar[3:] for bar in lane(name, *found, collectives=waits, wait=4, columns=PARTS)] == [(None, None)]  # fmt: skip


def test_texts_of_collectives_may_be_dictionaries():
    rows = schema.COLLECTIVES.from_rows([collective(110, 150, 15, 3)])
    at = rows.schema.get_field_index("collective")
    rows = rows.set_column(at, "collective", rows["collective"].dictionary_encode())
    none = [(RANK, schema.EVENTS.empty(), schema.PHASE_RANGES.empty())]
    found = timeline(steps((RANK, STEP, *WINDOW)), rows, none, STEP)
    assert found["name"].to_pylist() == ["all_reduce"]


# --- fewer bars -----------------------------------------------------------------------------


def test_a_lane_of_very_many_operations_has_the_most_bars_and_its_busy_time():
    found = timeline(
        steps((RANK, STEP, 0, 10**6)),
        schema.COLLECTIVES.empty(),
        [(RANK, many(5000), schema.PHASE_RANGES.empty())],
        STEP,
    )
    assert found.num_rows == MAX_BARS
    # 5000 kernels of 100 ns.
    assert (sum(found["busy_ns"].to_pylist()), sum(found["n_operations"].to_pylist())) == (500_000, 5000)  # fmt: skip


def many(n):
    return schema.EVENTS.from_rows([event(200 * i + i % 7, 200 * i + i % 7 + 100) for i in range(n)])


# --- rows -----------------------------------------------------------------------------------


def test_rows_stand_by_rank_lane_and_start_and_ranks_without_the_step_have_none():
    events = schema.EVENTS.from_rows([comm(150, 160), event(130, 140), event(110, 120), event(115, 118, "memory")])  # fmt: skip
    ranks = [(rank, events, schema.PHASE_RANGES.empty()) for rank in (0, 1, 2)]
    found = timeline(steps((0, STEP, *WINDOW), (2, STEP, *WINDOW)), schema.COLLECTIVES.empty(), ranks, STEP)
    keys = [tuple(row.values())[1:4] for row in found.to_pylist()]
    expected = [("comm", 150), ("compute", 110), ("compute", 130), ("exposed", 150), ("memory", 115)]  # fmt: skip
    assert keys == [(rank, *one) for rank in (0, 2) for one in expected]


def test_without_operations_there_are_no_rows():
    assert lane("compute") == []
    found = timeline(steps(), schema.COLLECTIVES.empty(), [], STEP)
    assert (found.num_rows, found.schema) == (0, schema.TIMELINE.arrow)


# --- the representative step ----------------------------------------------------------------


def test_without_windows_there_is_no_representative_step():
    assert representative_step(steps()) is None
    assert representative_step(schema.STEPS.empty()) is None
