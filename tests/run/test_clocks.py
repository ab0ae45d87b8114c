"""Built runs whose clocks differ: sessions, offsets told by collectives, errors, and what is significant."""

from __future__ import annotations

import pytest

from tests.build.across import (
    CLOCK,
    collectives,
    every_step,
    load,
    reports,
    said_of_clocks_and_matching,
    stragglers,
    waits,
)
from tests.build.tools import one_report, problem_of, shift


def clocks(run):
    """Return (shift, offset, error) of each rank."""
    names = ["clock_shift_ns", "clock_offset_ns", "clock_error_ns"]
    return [tuple(row.values()) for row in run.ranks.select(names).to_pylist()]


def late(n_ranks=2, **more):
    """Build ranks that arrive 40 ns one after the other and are done at 500."""
    return every_step(reports(n_ranks), *(300 + 40 * rank for rank in range(n_ranks)), end=500, **more)


def test_a_clock_that_is_off_is_corrected_by_the_collectives(tmp_path):
    builders = late()
    shift(builders[1], 5000)
    run = load(builders, tmp_path)
    # Ends 5000 apart: each is 2500 off the median end.
    assert clocks(run) == [(2500, -2500, 0), (-2500, 2500, 0)]
    assert collectives(run, "start_ns", "wait_ns", "transfer_ns") == [(3800, 40, 160), (3840, 0, 160)]
    assert waits(run) == [[40] * 4, [0] * 4]
    windows = run.steps().select(["start_ns"]).to_pylist()
    assert [row["start_ns"] for row in windows] == [2600, 3600, 4600, 5600] * 2


def test_without_session_starts_the_collectives_make_the_clock(tmp_path):
    builders = late(3)
    shift(builders[2], 7 * 10**12)
    run = load(builders, tmp_path, without=(CLOCK,))
    assert clocks(run) == [(0, 0, 0), (0, 0, 0), (-7 * 10**12, 7 * 10**12, 0)]
    assert collectives(run, "wait_ns") == [(80,), (40,), (0,)]
    assert said_of_clocks_and_matching(run) == ["no-session-start"]


def test_one_report_without_a_session_start_takes_it_from_all(tmp_path):
    builders = late()
    builders[0].rows[CLOCK][0]["utcEpochNs"] += 10**9
    builders[1].rows.pop(CLOCK)
    run = load(builders, tmp_path)
    assert clocks(run) == [(0, 0, 0), (0, 0, 0)]
    assert waits(run) == [[40] * 4, [0] * 4]


@pytest.mark.parametrize("has_start", [False, True])
def test_without_all_session_starts_and_with_few_collectives_there_is_no_common_clock(tmp_path, has_start):
    builders = late(steps=(0, 1))
    for builder in builders[has_start:]:
        builder.rows.pop(CLOCK)
    run = load(builders, tmp_path)
    assert clocks(run) == [(0, 0, None)] * 2
    names = ("is_matched", "n_ranks", "arrival_skew_ns", "wait_ns", "transfer_ns", "late_by_ns")
    assert collectives(run, *names) == [(False, *[None] * 5)] * 2
    assert waits(run) == [[None] * 4] * 2
    assert stragglers(run) == [(rank, None, None, None, None, None) for rank in range(2)]
    assert said_of_clocks_and_matching(run) == ["no-common-clock", "no-session-start"]
    assert problem_of(run, "no-common-clock")["severity"] == "warning"


def test_with_session_starts_and_few_collectives_times_are_told_but_nothing_is_significant(tmp_path):
    run = load(late(steps=(0, 1)), tmp_path)
    assert clocks(run) == [(0, 0, None)] * 2
    assert collectives(run, "wait_ns", "is_significant", "is_late_significant") == [
        (40, False, False), (0, False, False),
    ]  # fmt: skip
    assert waits(run) == [[40, 40, 0, 0], [0] * 4]
    assert said_of_clocks_and_matching(run) == ["clock-error-unknown"]
    assert problem_of(run, "clock-error-unknown")["severity"] == "info"


@pytest.mark.parametrize(
    ("name", "collective", "error"),
    [
        ("AllReduce_Sum_f32_RING_LL", "all_reduce", 0),
        ("AllGather_RING_LL", "all_gather", 0),
        ("ReduceScatter_Sum_f32_RING_LL", "reduce_scatter", 0),
        ("AllToAll", "all_to_all", 0),
        ("Broadcast_RING_LL", "broadcast", None),  # its root may be done long before the others
        ("Reduce_Sum_f32_RING_LL", "reduce", None),
        ("SendRecv", "send_recv", None),
    ],
)
def test_only_collectives_that_all_leave_at_once_tell_clocks(tmp_path, name, collective, error):
    run = load(late(name=f"ncclDevKernel_{name}"), tmp_path)
    assert clocks(run) == [(0, 0, error)] * 2
    assert collectives(run, "collective", "wait_ns") == [(collective, 40), (collective, 0)]


def test_a_skew_within_the_clocks_error_is_not_significant(tmp_path):
    builders = reports(2)
    # Rank 1 ends 0, 100, 200, 300 later: of (own end - median end) it has 0, 50, 100, 150, rank 0 the negative.
    # Medians 75 and -75; deviations 75, 25, 25, 75: 50, x 1.4826 = 74.13. So 75 exceeds 74 and is applied.
    for step in range(4):
        at = 1000 * step
        builders[0].nccl(at + 300, at + 450, launch=at + 20)
        builders[1].nccl(at + 300 + 60 * step, at + 450 + 100 * step, launch=at + 20)
    run = load(builders, tmp_path)
    assert clocks(run) == [(75, -75, 74), (-75, 75, 74)]
    # Skews in aligned time: 150 - 60 i, absolute: 150, 90, 30, 30; only what exceeds 74 is significant.
    names = ("rank", "arrival_skew_ns", "is_significant", "late_by_ns", "is_late_significant")
    found = [collectives(run, *names, step=step) for step in range(4)]
    assert found == [
        [(0, 150, True, 150, True), (1, 150, True, 0, False)],
        [(0, 90, True, 90, True), (1, 90, True, 0, False)],
        [(0, 30, False, 30, False), (1, 30, False, 0, False)],
        [(0, 30, False, 0, False), (1, 30, False, 30, False)],
    ]


def test_an_offset_within_its_error_is_not_applied(tmp_path):
    builders = reports(2)
    # Rank 1 ends 0, 0, 100, 100 later: 0, 0, 50, 50 off the median; 25, deviations 25, x 1.4826 = 37.065.
    for step in range(4):
        at = 1000 * step
        builders[0].nccl(at + 300, at + 450, launch=at + 20)
        builders[1].nccl(at + 340, at + 450 + 100 * (step // 2), launch=at + 20)
    run = load(builders, tmp_path)
    assert clocks(run) == [(0, 0, 37), (0, 0, 37)]
    assert waits(run, rank=0) == [40] * 4
    assert collectives(run, "is_significant") == [(True,)] * 2


@pytest.mark.parametrize("has_start", [True, False])
def test_a_report_without_gpu_activity_has_no_say_about_clocks(tmp_path, has_start):
    # Two ranks of one report share its clock, whatever a launcher's report, started long before, holds.
    builders = reports(2)
    every_step(builders[:1], 300, end=400)
    every_step(builders[1:], 340, end=500)
    (idle,) = reports(1, n_steps=0)
    idle.rows.pop("META_DATA_CAPTURE")
    idle.rows[CLOCK][0]["utcEpochNs"] -= 10**9
    if not has_start:
        idle.rows.pop(CLOCK)
    run = load([one_report(*builders), idle], tmp_path)
    assert [row[1:] for row in clocks(run)] == [(0, 0), (0, 0)]
    assert collectives(run, "wait_ns", "transfer_ns", "is_significant") == [
        (40, 60, True), (0, 160, True),
    ]  # fmt: skip


def test_a_report_without_gpu_activity_takes_no_session_start_from_the_others(tmp_path):
    # Two collectives are too few to tell the clocks, 5000 apart, without the sessions' starts.
    builders = late(steps=(0, 1))
    shift(builders[1], -5000).rows[CLOCK][0]["utcEpochNs"] += 5000
    (idle,) = reports(1, n_steps=0)
    idle.rows = {"StringIds": []}
    run = load([*builders, idle], tmp_path)
    assert clocks(run) == [(0, 0, None), (5000, 0, None)]
    assert collectives(run, "start_ns", "wait_ns") == [(1300, 40), (1340, 0)]
