"""Built runs of several ranks: who waits for whom, in which communicator, on which clock, and what that makes of steps."""

from types import SimpleNamespace

import numpy as np
import pytest

from nsyspipe.analysis.process_groups import Doubt
from nsyspipe.run.cross_rank import problem_of_groups
from nsyspipe.run.doctor import examine
from tests.build import across
from tests.build.across import (
    BROADCAST,
    CLOCK,
    GATHER,
    SCATTER,
    collectives,
    every_step,
    load,
    reports,
    stragglers,
    waits,
)
from tests.build.tools import codes, one_report, problem_of, shift

said = across.said_of_clocks_and_matching


def clocks(run):
    """Return (shift, offset, error) of each rank."""
    names = ["clock_shift_ns", "clock_offset_ns", "clock_error_ns"]
    return [tuple(row.values()) for row in run.ranks.select(names).to_pylist()]


def test_every_figure_of_a_run_in_which_one_rank_arrives_late(tmp_path):
    # In each step rank 0 arrives at 300, rank 1 at 340, both are done at 400.
    run = load(every_step(reports(2), 300, 340, end=400), tmp_path)
    common = {
        "step": 1,
        "seq": 0,
        "collective": "all_reduce",
        "datatype": "f32",
        "algorithm": "RING_LL",
        "comm_id": "all_reduce/0",
        "end_ns": 1400,
        "is_matched": True,
        "in_summary": True,
        "n_ranks": 2,
        "arrival_skew_ns": 40,
        "transfer_ns": 60,
        "is_significant": True,
        "message_bytes": None,
        "bus_bytes": None,
        "algbw_bytes_per_s": None,
        "busbw_bytes_per_s": None,
    }
    table = run.collectives().to_pylist()
    first = {
        "rank": 0,
        "start_ns": 1300,
        "exposed_ns": 100,
        "wait_ns": 40,
        "late_by_ns": 0,
        "held_up_ns": 0,
    }
    second = {
        "rank": 1,
        "start_ns": 1340,
        "exposed_ns": 60,
        "wait_ns": 0,
        "late_by_ns": 40,
        "held_up_ns": 40,
    }
    common |= dict.fromkeys(("counted_bytes_per_s", "counted_link", "counted_ratio"))
    common |= dict.fromkeys(("nccl_algorithm", "nccl_protocol"))
    expected = [
        common | first | {"is_late_significant": False},
        common | second | {"is_late_significant": True},
    ]
    assert [row for row in table if row["step"] == 1] == expected
    # The table holds every step and says which count.
    expected = [(step, rank, step in {1, 2}) for step in range(4) for rank in range(2)]
    assert [(row["step"], row["rank"], row["in_summary"]) for row in table] == expected
    assert waits(run) == [[40] * 4, [0] * 4]
    # What is left of 100 and 60 ns of communication.
    assert [row["transfer_ns"] for row in run.steps().to_pylist()] == [60] * 8
    # 40 of 1000 on rank 0, 0 of 1000 on rank 1.
    assert [row["wait_share"] for row in run.rank_summary().to_pylist()] == [0.04, 0.0]
    assert run.summary()["wait_share"].to_pylist() == [0.02]
    # Steps 1 and 2: 40 each.
    assert run.stragglers().to_pylist() == [
        {
            "rank": 0,
            "n_arrived_last": 0,
            "wait_caused_ns": 0,
            "lateness_ns": 0,
            "held_up_ns": 0,
            "wait_ns": 80,
        },
        {
            "rank": 1,
            "n_arrived_last": 2,
            "wait_caused_ns": 80,
            "lateness_ns": 80,
            "held_up_ns": 80,
            "wait_ns": 0,
        },
    ]
    assert (clocks(run), said(run)) == (
        [(0, 0, 0)] * 2,
        [],
    )  # equal ends make exact clocks and no problem


def test_a_run_of_one_rank_waits_for_nobody_that_is_known(tmp_path):
    run = load(every_step(reports(1), 300, end=400), tmp_path)
    assert (waits(run), stragglers(run)) == ([[None] * 4], [(0, None, None, None, None, None)])
    names = ("is_matched", "n_ranks", "wait_ns", "transfer_ns", "is_significant")
    assert collectives(run, *names) == [(False, *[None] * 4)]
    assert (run.summary()["wait_share"].to_pylist(), said(run)) == ([None], [])


def test_of_several_ranks_without_communication_no_wait_is_known(tmp_path):
    # They may communicate by kernels of another name: null with a problem, not 0.
    run = load(reports(2), tmp_path)
    assert (waits(run), run.collectives().num_rows) == ([[None] * 4] * 2, 0)
    assert stragglers(run) == [(rank, *[None] * 5) for rank in range(2)]
    assert problem_of(run, "no-comm-kernels")["severity"] == "error"


def test_an_operation_that_ends_before_the_last_arrival_only_waits(
    tmp_path,
):
    builders = every_step(reports(2), 300, 340, end=400, steps=(0, 2, 3))
    builders[0].nccl(1300, 1330, launch=1020)
    builders[1].nccl(1340, 1400, launch=1020)
    run = load(builders, tmp_path)
    # Three of four ends agree, so the clocks stay.
    assert collectives(run, "rank", "wait_ns", "transfer_ns") == [(0, 40, 0), (1, 0, 60)]
    assert waits(run) == [[40, 30, 40, 40], [0] * 4]
    row = problem_of(run, "ended-before-last-arrived")
    assert (row["severity"], row["message"][:2]) == ("warning", "1 ")


def test_process_groups_that_share_a_stream_are_not_matched(tmp_path):
    # Without NCCL's names ranks 0-1 and 2-3 look like one communicator: but one pair ends before
    # the other begins, in two steps 0-1 and in two 2-3, which no clock explains. All four gather.
    builders = every_step(reports(4), 600, 620, 630, 640, end=700, name=GATHER, stream=20)
    for steps, first in (((0, 1), 300), ((2, 3), 400)):
        every_step(builders[:2], first, first + 10, end=first + 50, steps=steps)
        every_step(builders[2:], 700 - first, 710 - first, end=750 - first, steps=steps)
    run = load(builders, tmp_path)
    # Nor is it known who gathers with whom: a job of several groups may gather in groups, too.
    assert collectives(run, "is_matched", "wait_ns", "n_ranks") == [(False, None, None)] * 8
    assert (waits(run), clocks(run)) == ([[None] * 4] * 4, [(0, 0, None)] * 4)
    assert said(run) == ["groups-not-named"]


def test_the_root_of_a_broadcast_may_end_before_the_others_come(tmp_path):
    builders = every_step(
        every_step(reports(2), 300, 310, end=400), 500, 500, end=520, stream=20, name=BROADCAST
    )
    builders[0].nccl(1600, 1610, launch=1030, stream=20, name=BROADCAST)
    builders[1].nccl(1640, 1650, launch=1030, stream=20, name=BROADCAST)
    run = load(builders, tmp_path)
    assert collectives(run, "rank", "wait_ns", "transfer_ns")[-2:] == [(0, 40, 0), (1, 0, 10)]
    assert said(run) == []


@pytest.mark.parametrize(("n", "is_much"), [(3, False), (1, True)])
def test_a_few_operations_outside_steps_are_unmatched_without_a_problem(tmp_path, n, is_much):
    # Launched at 950, between two steps, 1 of 13 or of 5; it runs inside the window, and counts as
    # its communication.
    builders = reports(2)
    for at in (300, 420, 540)[:n]:
        every_step(builders, at, at + 40, end=at + 100)
    every_step(builders, 960, 970, end=990, steps=(1,), launch=950)
    run = load(builders, tmp_path)
    assert [is_matched for (is_matched,) in collectives(run, "is_matched")] == [True] * 2 * n
    assert waits(run) == ([[None] * 4] * 2 if is_much else [[40 * n] * 4, [0] * 4])
    assert [row["n_collectives"] for row in run.steps().to_pylist()] == [n, n + 1, n, n] * 2
    assert (said(run), "comm-between-steps" in codes(run)) == ([], is_much)


def test_a_collective_of_some_ranks_is_unmatched_without_nccl_names(tmp_path):
    # Ranks 0 and 1 gather, rank 2 does not: that may be a subgroup, or a rank that lost its part.
    builders = every_step(reports(3), 300, 310, 340, end=400)
    every_step(builders[:2], 500, 500, end=520, name=GATHER, stream=20, steps=(1, 2))
    run = load(builders, tmp_path)
    unmatched = [(1, rank, "all_gather", False, None) for rank in range(2)]
    expected = [(0, rank, "all_reduce", True, 3) for rank in range(3)] + unmatched
    assert collectives(run, "seq", "rank", "collective", "is_matched", "n_ranks") == expected
    assert problem_of(run, "unmatched-collectives")["message"].startswith(
        "4 of 16 communication operations"
    )
    assert waits(run)[:2] == [[40, None, None, 40], [30, None, None, 30]]
    # The lateness of what was matched stands: 340 - 310 in steps 1 and 2.
    assert [row[1:4] for row in stragglers(run)] == [(0, 0, 0), (0, 0, 0), (2, 60, 60)]
    assert run.summary()["wait_share"].to_pylist() == [None]


def test_ranks_that_leave_another_out_in_every_step_leave_nothing_matched(tmp_path):
    builders = every_step(reports(3), 300, 310, 340, end=400)
    every_step(builders[:2], 500, 500, end=520, name=GATHER, stream=20)
    run = load(builders, tmp_path)
    assert collectives(run, "is_matched", "n_ranks") == [(False, None)] * 5
    assert stragglers(run) == [(rank, *[None] * 5) for rank in range(3)]
    assert said(run) == ["groups-not-named"]


@pytest.mark.parametrize("has_log", [True, False])
def test_a_log_that_does_not_name_the_groups_is_not_asked_for_once_more(has_log):
    rows = SimpleNamespace(is_named=np.array([False]))
    fix = problem_of_groups(rows, Doubt.TIMES, has_log=has_log).fix
    assert ("--nccl-log" in fix, "--include-blobs=true" in fix) == (not has_log, True)


REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def with_backward(n_ranks):
    """Build ranks whose steps have a range of the backward pass, in which `every_step` launches by default."""
    builders = reports(n_ranks)
    for builder in builders:
        for at in range(0, 4000, 1000):
            builder.range(at + 15, at + 60, "backward")
    return builders


def hybrid_shards(n_ranks, *names):
    """Build ranks that end these collectives of their backward pass together."""
    builders = with_backward(n_ranks)
    for place, name in enumerate(names):
        arrivals = [300 + 200 * place + rank for rank in range(n_ranks)]
        every_step(
            builders,
            *arrivals,
            end=450 + 200 * place,
            name=name,
            stream=20 + place,
            launch=20 + place,
        )
    return builders


@pytest.mark.parametrize(
    ("n_ranks", "names", "expected"),
    [
        (4, (SCATTER, REDUCE), ["groups-not-named"]),  # sharded in groups, which reduce across
        (4, (SCATTER, GATHER), []),
        (4, (REDUCE,), []),
        (2, (SCATTER, REDUCE), []),  # two ranks that communicate are one group
    ],
)
def test_what_serves_two_kinds_of_parallelism_is_of_several_groups(
    tmp_path, n_ranks, names, expected
):
    assert said(load(hybrid_shards(n_ranks, *names), tmp_path)) == expected


def test_where_nothing_matches_in_summary_steps_figures_are_null(tmp_path):
    builders = every_step(reports(2), 300, 340, end=400, steps=(0, 3))
    every_step(builders[:1], 300, end=400, steps=(1, 2))
    run = load(builders, tmp_path)
    assert waits(run, rank=0) == [40, None, None, 40]
    assert [row[:5] for row in stragglers(run)] == [(rank, *[None] * 4) for rank in range(2)]
    assert stragglers(run)[0][5] is None


def test_without_steps_the_captures_are_matched_as_one(tmp_path):
    run = load(every_step(reports(2), 300, 340, end=400), tmp_path, without=("NVTX_EVENTS",))
    expected = [(seq, rank, 40 * (1 - rank), True) for seq in range(4) for rank in range(2)]
    assert collectives(run, "seq", "rank", "wait_ns", "in_summary", step=0) == expected
    assert waits(run) == [[160], [0]]


def late(n_ranks=2, **more):
    """Build ranks that arrive 40 ns one after the other and are done at 500."""
    return every_step(
        reports(n_ranks), *(300 + 40 * rank for rank in range(n_ranks)), end=500, **more
    )


@pytest.mark.parametrize("has_start", [False, True])
def test_few_collectives_without_session_starts_give_no_common_clock(tmp_path, has_start):
    builders = late(steps=(0, 1))
    for builder in builders[has_start:]:
        builder.rows.pop(CLOCK)
    run = load(builders, tmp_path)
    assert clocks(run) == [(0, 0, None)] * 2
    names = ("is_matched", "n_ranks", "arrival_skew_ns", "wait_ns", "transfer_ns", "late_by_ns")
    assert collectives(run, *names) == [(False, *[None] * 5)] * 2
    assert waits(run) == [[None] * 4] * 2
    assert stragglers(run) == [(rank, None, None, None, None, None) for rank in range(2)]
    assert said(run) == ["no-common-clock", "no-session-start"]
    assert problem_of(run, "no-common-clock")["severity"] == "warning"


def test_few_collectives_with_session_starts_are_not_significant(
    tmp_path,
):
    run = load(late(steps=(0, 1)), tmp_path)
    assert clocks(run) == [(0, 0, None)] * 2
    expected = [(at, False, False) for at in (40, 0)]
    assert collectives(run, "wait_ns", "is_significant", "is_late_significant") == expected
    assert (waits(run), said(run)) == ([[40, 40, 0, 0], [0] * 4], ["clock-error-unknown"])
    assert problem_of(run, "clock-error-unknown")["severity"] == "info"


# The root of the last three may be done long before the others.
@pytest.mark.parametrize(
    ("name", "collective", "error"),
    [
        ("AllReduce_Sum_f32_RING_LL", "all_reduce", 0),
        ("AllGather_RING_LL", "all_gather", 0),
        ("AllToAll", "all_to_all", 0),
        ("ReduceScatter_Sum_f32_RING_LL", "reduce_scatter", 0),
        ("Broadcast_RING_LL", "broadcast", None),
        ("Reduce_Sum_f32_RING_LL", "reduce", None),
        ("SendRecv", "send_recv", None),
    ],
)
def test_only_collectives_that_all_leave_at_once_tell_clocks(tmp_path, name, collective, error):
    run = load(late(name=f"ncclDevKernel_{name}"), tmp_path)
    assert clocks(run) == [(0, 0, error)] * 2
    assert collectives(run, "collective", "wait_ns") == [(collective, 40), (collective, 0)]


@pytest.mark.parametrize("has_start", [True, False])
def test_a_report_without_gpu_activity_has_no_say_about_clocks(tmp_path, has_start):
    # Two ranks of one report share its clock, whatever a launcher's report, started long before,
    # holds.
    builders = [
        *every_step(reports(2)[:1], 300, end=400),
        *every_step(reports(2)[1:], 340, end=500),
    ]
    (idle,) = reports(1, n_steps=0)
    idle.rows.pop("META_DATA_CAPTURE")
    idle.rows[CLOCK][0]["utcEpochNs"] -= 10**9
    if not has_start:
        idle.rows.pop(CLOCK)
    run = load([one_report(*builders), idle], tmp_path)
    assert [row[1:] for row in clocks(run)] == [(0, 0), (0, 0)]
    assert collectives(run, "wait_ns", "transfer_ns", "is_significant") == [
        (40, 60, True),
        (0, 160, True),
    ]


def test_a_report_without_gpu_activity_takes_no_session_start_from_the_others(tmp_path):
    # Two collectives are too few to tell the clocks, 5000 apart, without the sessions' starts.
    builders = late(steps=(0, 1))
    shift(builders[1], -5000).rows[CLOCK][0]["utcEpochNs"] += 5000
    (idle,) = reports(1, n_steps=0)
    idle.rows = {"StringIds": []}
    run = load([*builders, idle], tmp_path)
    assert clocks(run) == [(0, 0, None), (5000, 0, None)]
    assert collectives(run, "start_ns", "wait_ns") == [(1300, 40), (1340, 0)]


@pytest.mark.parametrize(("names", "is_known"), [((SCATTER, REDUCE), False), ((REDUCE,), True)])
def test_doctor_says_when_it_is_not_known_who_communicates_with_whom(tmp_path, names, is_known):
    load(hybrid_shards(4, *names), tmp_path)
    found = {one.name: one for one in examine(sorted(tmp_path.glob("*.sqlite"))).capabilities}
    assert (found["one_clock"].status == "yes") == is_known
