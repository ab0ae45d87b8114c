"""Built runs of several communicators, or captured in part: what is matched, and what is left alone."""

from __future__ import annotations

import pytest

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
from tests.build.tools import problem_of, shift

# --- several collectives, streams, communicators --------------------------------------------------


def sharded(rank, gather, scatter):
    """Return a rank of a run like FSDP: three all-gathers on one stream, two reduce-scatters on another."""
    builder = reports(2)[rank]
    for at in range(0, 4000, 1000):
        for start in (at + 210, at + 300, at + 500):
            builder.nccl(start, start + 60, launch=at + 20, name=GATHER, stream=gather)
        for start in (at + 450, at + 550):
            builder.nccl(start, start + 60, launch=at + 30, name=SCATTER, stream=scatter)
    return builder


def test_two_kinds_on_two_streams_are_matched_whatever_the_streams_are_called(tmp_path):
    ranks = [sharded(0, 20, 24), shift(sharded(1, 31, 7), 4)]
    ranks[1].rows[CLOCK][0]["utcEpochNs"] -= 4  # the same times, on a clock that is 4 ahead
    run = load(ranks, tmp_path)
    assert run.ranks["clock_shift_ns"].to_pylist() == [4, 0]
    names = ("seq", "rank", "collective", "comm_id", "start_ns", "is_matched")
    expected = [
        (seq, rank, kind, f"{kind}/0", 1004 + start, True)
        for seq, (kind, start) in enumerate([
            ("all_gather", 210), ("all_gather", 300), ("reduce_scatter", 450), ("all_gather", 500),
            ("reduce_scatter", 550),
        ])
        for rank in range(2)
    ]  # fmt: skip
    assert collectives(run, *names) == expected
    assert {row[1] for row in stragglers(run)} == {0}


def test_communicators_of_one_collective_are_told_apart_by_order_of_first_use(tmp_path):
    # Rank 1 uses its second communicator before its first from step 1 on: place alone would pair them wrongly.
    builders = reports(2)
    for rank, (first, second) in enumerate(((5, 9), (9, 5))):
        for at in range(0, 4000, 1000):
            starts = (600, 300) if at and rank else (300, 600)
            builders[rank].nccl(at + starts[0], at + 700, launch=at + 20, stream=first)
            builders[rank].nccl(at + starts[1], at + 710, launch=at + 21, stream=second)
    run = load(builders, tmp_path)
    assert collectives(run, "seq", "rank", "comm_id", "wait_ns", "transfer_ns") == [
        (0, 0, "all_reduce/0", 300, 100), (0, 1, "all_reduce/0", 0, 100),
        (1, 0, "all_reduce/1", 0, 110), (1, 1, "all_reduce/1", 300, 110),
    ]  # fmt: skip


def test_a_collective_that_only_some_ranks_make_is_unmatched_without_nccls_names(tmp_path):
    # Ranks 0 and 1 gather, rank 2 does not: that may be a subgroup, or a rank that lost its part.
    builders = every_step(reports(3), 300, 310, 340, end=400)
    every_step(builders[:2], 500, 500, end=520, name=GATHER, stream=20)
    run = load(builders, tmp_path)
    assert collectives(run, "seq", "rank", "collective", "is_matched", "n_ranks") == [
        *((0, rank, "all_reduce", True, 3) for rank in range(3)),
        *((1, rank, "all_gather", False, None) for rank in range(2)),
    ]
    row = problem_of(run, "unmatched-collectives")
    assert row["message"].startswith("8 of 20 communication operations")
    assert waits(run)[:2] == [[None] * 4] * 2
    # The lateness of what was matched stands: 340 - 310 in steps 1 and 2.
    assert [row[1:4] for row in stragglers(run)] == [(0, 0, 0), (0, 0, 0), (2, 60, 60)]
    assert run.summary()["wait_share"].to_pylist() == [None]


# --- a capture that lacks some --------------------------------------------------------------------


@pytest.mark.parametrize(("lost", "place"), [(0, 0), (3, -1)])
def test_a_rank_that_lost_one_collective_unmatches_that_group_of_that_step_only(
    tmp_path, lost, place
):
    builders = every_step(reports(2), 300, 340, end=400)
    every_step(builders, 500, 540, end=600, launch=21)
    every_step(builders, 700, 720, end=800, launch=22, name=GATHER, stream=20)
    reduced = [
        row for row in builders[1].rows["CUPTI_ACTIVITY_KIND_KERNEL"] if row["streamId"] == 19
    ]
    gone = sorted(reduced, key=lambda row: row["start"])[place]
    builders[1].rows["CUPTI_ACTIVITY_KIND_KERNEL"].remove(gone)
    run = load(builders, tmp_path)
    found = {
        (row["step"], row["collective"], row["rank"]): row for row in run.collectives().to_pylist()
    }
    unmatched = {key for key, row in found.items() if not row["is_matched"]}
    assert unmatched == {(lost, "all_reduce", 0), (lost, "all_reduce", 1)}
    for row in found.values():
        assert (row["wait_ns"] is None) == (not row["is_matched"])
    kept = [None if step == lost else 100 for step in range(4)]  # 40 + 40 + 20
    assert waits(run) == [kept, [None if step == lost else 0 for step in range(4)]]
    row = problem_of(run, "unmatched-collectives")
    assert row["message"].startswith("3 of 23 communication operations")
    # Steps 0 and 3 do not count: figures are as of a whole capture.
    assert stragglers(run) == [(0, 0, 0, 0, 0, 200), (1, 6, 200, 80, 200, 0)]
    assert run.summary()["wait_share"].to_pylist() == [0.05]


def test_unmatched_collectives_come_last_in_their_step(tmp_path):
    builders = every_step(reports(2), 500, 540, end=600)
    builders[0].nccl(1300, 1310, launch=1021, name=BROADCAST)
    builders[0].nccl(1700, 1710, launch=1022, name=BROADCAST)
    builders[1].nccl(1250, 1260, launch=1021, name=GATHER)
    run = load(builders, tmp_path)
    assert collectives(run, "seq", "rank", "collective", "start_ns", "is_matched") == [
        (0, 0, "all_reduce", 1500, True),
        (0, 1, "all_reduce", 1540, True),
        (1, 0, "broadcast", 1300, False),
        (1, 1, "all_gather", 1250, False),
        (2, 0, "broadcast", 1700, False),
    ]


def test_where_nothing_matches_in_summary_steps_figures_are_null(tmp_path):
    builders = every_step(reports(2), 300, 340, end=400, steps=(0, 3))
    every_step(builders[:1], 300, end=400, steps=(1, 2))
    run = load(builders, tmp_path)
    assert waits(run, rank=0) == [40, None, None, 40]
    assert stragglers(run)[0] == (0, None, None, None, None, None)
    assert stragglers(run)[1][:5] == (1, None, None, None, None)


def test_three_of_four_ranks_give_figures_of_those_present(tmp_path):
    run = load(every_step(reports(3, world_size=4), 300, 310, 340, end=400), tmp_path)
    assert "1 of 4 ranks" in problem_of(run, "ranks-missing")["message"]
    assert collectives(run, "rank", "n_ranks", "wait_ns", "late_by_ns") == [
        (0, 3, 40, 0), (1, 3, 30, 0), (2, 3, 0, 30),
    ]  # fmt: skip
    # Twice: rank 2 is 30 behind rank 1, and holds rank 0 up for 40.
    assert stragglers(run) == [(0, 0, 0, 0, 0, 80), (1, 0, 0, 0, 0, 60), (2, 2, 60, 60, 80, 0)]


def test_without_steps_the_captures_are_matched_as_one(tmp_path):
    builders = every_step(reports(2), 300, 340, end=400)
    for builder in builders:
        builder.rows.pop("NVTX_EVENTS")
    run = load(builders, tmp_path)
    names = ("seq", "rank", "wait_ns", "in_summary")
    assert collectives(run, *names, step=0) == [
        (seq, rank, 40 * (1 - rank), True) for seq in range(4) for rank in range(2)
    ]
    assert waits(run) == [[160], [0]]
