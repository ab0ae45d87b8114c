"""The representative step and its bars, by hand."""

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


def collective(start, end, wait, seq=0, *, matched=True, rank=RANK, name="all_reduce"):
    return {"step": STEP, "seq": seq, "rank": rank, "collective": name, "comm_id": "0", "start_ns": start,
            "end_ns": end, "is_matched": matched, "in_summary": True, "wait_ns": wait}  # fmt: skip


def phase(name, start, end, n_operations, device_start, device_end, step=STEP):
    return {"rank": RANK, "step": step, "phase": name, "start_ns": start, "end_ns": end,
            "n_operations": n_operations, "device_start_ns": device_start, "device_end_ns": device_end}  # fmt: skip


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


def test_kernels_that_overlap_are_one_bar_and_those_that_touch_are_two():
    bars = lane("compute", event(110, 120), event(115, 130, name="relu"), event(130, 135))
    # relu took 15 of 25 ns.
    assert bars == [(110, 130, 20, 2, "relu", None), (130, 135, 5, 1, "gemm", None)]


def test_bars_are_clipped_to_the_window_and_what_is_outside_or_empty_is_left_out():
    bars = lane("compute", event(90, 110), event(150, 150), event(190, 400), event(200, 210), event(50, 100))  # fmt: skip
    assert bars == [(100, 110, 10, 1, "gemm", None), (190, 200, 10, 1, "gemm", None)]


def test_a_kernel_of_another_step_that_runs_in_the_window_is_drawn():
    assert lane("compute", event(110, 120, step=STEP - 1)) == [(110, 120, 10, 1, "gemm", None)]


def test_of_two_collectives_at_once_the_later_bar_begins_where_the_earlier_ends():
    bars = lane("comm", comm(110, 130, seq=0), comm(120, 150, "all_gather", seq=1))
    assert bars == [(110, 130, 20, 1, "all_reduce", 0), (130, 150, 20, 1, "all_gather", 1)]


def test_a_collective_within_another_counts_in_its_bar():
    bars = lane("comm", comm(110, 150, seq=0), comm(120, 130, "all_gather", seq=1))
    assert bars == [(110, 150, 40, 2, "all_reduce", None)]


def test_a_collective_that_began_before_the_window_comes_before_one_that_ends_later():
    bars = lane("comm", comm(95, 150, "all_gather", seq=1), comm(90, 120, seq=0))
    assert bars == [(100, 120, 20, 1, "all_reduce", 0), (120, 150, 30, 1, "all_gather", 1)]


def test_communication_of_no_step_has_no_seq():
    assert lane("comm", comm(110, 120, seq=None)) == [(110, 120, 10, 1, "all_reduce", None)]


def test_waiting_ends_with_the_last_start_or_with_the_own_end():
    waits = lane("wait", collectives=[collective(110, 150, 15, 3), collective(160, 170, 20, 4)])
    assert waits == [(110, 125, 15, 1, "all_reduce", 3), (160, 170, 10, 1, "all_reduce", 4)]


def test_nobody_waits_in_unmatched_collectives_in_those_of_others_or_for_no_time():
    others = [collective(110, 150, None, matched=False), collective(110, 150, 9, rank=RANK + 1)]
    assert lane("wait", collectives=[*others, collective(160, 170, 0)]) == []


def test_communication_is_exposed_where_no_kernel_runs():
    # [120, 160) beside kernels in [110, 130) and [140, 150).
    found = event(110, 130), event(140, 150), comm(120, 160, seq=3)
    assert lane("exposed", *found) == [(130, 140, 10, 1, "all_reduce", 3), (150, 160, 10, 1, "all_reduce", 3)]  # fmt: skip
    assert lane("comm", *found, columns=PARTS) == [(120, 160, 40, 20, None)]


def test_communication_that_kernels_cover_is_exposed_for_no_time():
    assert lane("comm", event(110, 160), comm(120, 130), columns=PARTS) == [(120, 130, 10, 0, None)]
    assert lane("exposed", event(110, 160), comm(120, 130)) == []


def test_joined_kernels_do_not_hide_the_communication_in_their_gaps():
    # Two bars of compute at most: the gaps of 2 ns, all of the exposed time, are drawn over.
    kernels = event(110, 120), event(122, 130), event(132, 140), event(180, 190)
    found = *kernels, comm(112, 124, seq=0), comm(124, 136, "all_gather", seq=1)
    drawn = [(110, 140), (180, 190)]
    assert lane("compute", *found, most=2, columns=LONG[:2]) == drawn
    assert lane("comm", *found, most=2, columns=PARTS) == [(112, 124, 12, 2, None), (124, 136, 12, 2, None)]  # fmt: skip
    assert lane("exposed", *found, most=2) == [(120, 122, 2, 1, "all_reduce", 0), (130, 132, 2, 1, "all_gather", 1)]  # fmt: skip


def test_joined_bars_of_communication_keep_their_exposed_and_waiting_time():
    found = event(110, 115), comm(110, 120, seq=0), comm(125, 135, seq=1)
    waits = [collective(110, 120, 4, seq=0), collective(125, 135, 20, seq=1)]
    # Exposed 5 and 10 ns, waiting 4 and, until its own end, 10.
    bars = lane("comm", *found, collectives=waits, most=1, wait=14, columns=PARTS)
    assert bars == [(110, 135, 20, 15, 14)]
    assert lane("exposed", *found, most=1) == [(115, 135, 15, 2, "all_reduce", None)]


def test_waiting_counts_in_the_bar_in_which_it_runs():
    # The second collective waits [115, 125), of which [115, 120) belongs to the first, which waits for nobody.
    found = comm(110, 120, seq=0), comm(115, 130, seq=1)
    waits = [collective(110, 120, 0, seq=0), collective(115, 130, 10, seq=1)]
    bars = lane("comm", *found, collectives=waits, wait=10, columns=PARTS)
    assert bars == [(110, 120, 10, 10, 5), (120, 130, 10, 10, 5)]


def test_where_the_wait_of_the_step_is_not_known_that_of_its_bars_is_not():
    found = comm(110, 120, seq=0), comm(125, 135, seq=1)
    some = [collective(110, 120, 4, seq=0), collective(125, 135, None, seq=1, matched=False)]
    assert [bar[-1] for bar in lane("comm", *found, collectives=some, columns=PARTS)] == [None, None]  # fmt: skip
    # Nobody waits is a true zero.
    assert [bar[-1] for bar in lane("comm", *found, wait=0, columns=PARTS)] == [0, 0]


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


def test_a_memory_bar_is_named_by_what_took_most_time():
    bars = lane("memory", event(110, 120, "memory", "memset"), event(112, 130, "memory", "memcpy DtoD"))  # fmt: skip
    assert bars == [(110, 130, 20, 2, "memcpy DtoD", None)]


def test_of_two_names_with_equal_time_the_first_of_the_alphabet_is_the_bars():
    assert lane("compute", event(110, 120, name="b"), event(110, 120, name="a"))[0][4] == "a"


def test_a_phase_is_the_hull_of_what_its_range_launched_and_busy_where_that_runs():
    events = [event(110, 120, launch_ns=20), event(130, 150, launch_ns=29), event(140, 160, launch_ns=30)]  # fmt: skip
    bars = lane("phase", *events, phases=[phase("forward", 20, 30, 2, 110, 150)])
    assert bars == [(110, 150, 30, 2, "forward", None)]


def test_phases_may_overlap_and_equal_ones_stand_in_order_of_name():
    phases = [phase("forward", 20, 30, 1, 110, 150), phase("backward", 30, 40, 1, 110, 150),
              phase("optimizer", 40, 50, 1, 140, 160)]  # fmt: skip
    events = [event(110, 150, launch_ns=20), event(110, 150, launch_ns=30), event(140, 160, launch_ns=40)]  # fmt: skip
    assert [bar[4] for bar in lane("phase", *events, phases=phases)] == ["backward", "forward", "optimizer"]  # fmt: skip


def test_phases_of_other_steps_those_without_operations_and_step_ranges_have_no_bar():
    phases = [phase("forward", 20, 30, 1, 110, 150, step=STEP + 1), phase("data", 30, 40, 0, None, None),
              phase(None, 0, 90, 3, 110, 150), phase("backward", 40, 50, 1, 250, 260)]  # fmt: skip
    assert lane("phase", event(110, 150, launch_ns=20), phases=phases) == []


# --- fewer bars -----------------------------------------------------------------------------


def test_neighbours_with_the_smallest_gap_are_joined_first_and_stay_apart_in_busy_time():
    events = event(110, 120), event(125, 130, name="relu"), event(140, 150), event(152, 160)
    assert lane("compute", *events, most=3) == [
        (110, 120, 10, 1, "gemm", None),
        (125, 130, 5, 1, "relu", None),
        (140, 160, 18, 2, "gemm", None),
    ]
    assert lane("compute", *events, most=1) == [(110, 160, 33, 4, "gemm", None)]


def test_of_equal_gaps_the_earliest_is_joined_first():
    events = event(110, 120), event(125, 130), event(135, 140)
    assert [bar[:2] for bar in lane("compute", *events, most=2)] == [(110, 130), (135, 140)]


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


def test_the_step_time_closest_to_the_median_wins():
    # Slowest rank: 100, 140, 125; the median is 125.
    table = steps((0, 1, 0, 100), (0, 2, 0, 90), (0, 3, 0, 110), (1, 1, 0, 80), (1, 2, 0, 140), (1, 3, 0, 125))  # fmt: skip
    assert representative_step(table) == 3


def test_of_steps_equally_close_to_the_median_the_lowest_wins():
    # The median of 100 and 140 is 120.
    assert representative_step(steps((0, 5, 0, 140), (0, 4, 0, 100))) == 4


def test_a_median_between_two_steps_is_not_floored():
    # The median of 100 and 103 is 101.5: both are as close, and would not be if it were 101.
    assert representative_step(steps((0, 4, 0, 103), (0, 5, 0, 100))) == 4


@pytest.mark.parametrize(("flags", "chosen"), [([False, True, False], 2), ([True, True, True], 3)])
def test_only_steps_of_the_figures_are_asked(flags, chosen):
    table = steps((0, 1, 0, 100), (0, 2, 0, 900), (0, 3, 0, 200), in_summary=flags)
    assert representative_step(table) == chosen


def test_without_steps_of_the_figures_those_that_all_ranks_have_are_asked():
    rows = (0, 1, 0, 500), (0, 2, 0, 100), (1, 2, 0, 100), (0, 3, 0, 500)
    assert representative_step(steps(*rows, in_summary=False)) == 2


def test_where_ranks_share_no_step_any_is_asked():
    assert representative_step(steps((0, 1, 0, 100), (1, 2, 0, 100), in_summary=False)) == 1


def test_without_windows_there_is_no_representative_step():
    assert representative_step(steps()) is None
    assert representative_step(schema.STEPS.empty()) is None
