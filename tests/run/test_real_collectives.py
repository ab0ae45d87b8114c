"""Real runs of several ranks: every collective has its counterparts, ends agree, and the slow rank is found."""

from __future__ import annotations

import functools

import pytest

from tests.run.test_real_reports import each

# Glob -> ranks, collectives per step by kind, how far the ends of one collective may be apart (ns).
NEAR, SHARED_MEMORY = 100_000, 200_000
GROUPS = {
    "ddp-2gpu": (2, {"all_reduce": 1}, NEAR),
    "ddp-2gpu-straggler": (2, {"all_reduce": 11}, NEAR),
    "ddp-2gpu-bucket100": (2, {"all_reduce": 11}, NEAR),
    "ddp-2gpu-bucket100-nsys2025": (2, {"all_reduce": 11}, NEAR),
    "ddp-4gpu": (4, {"all_reduce": 1}, NEAR),
    "ddp-4gpu-shm": (4, {"all_reduce": 1}, SHARED_MEMORY),
    "ddp-4gpu-shm-bucket100": (4, {"all_reduce": 11}, SHARED_MEMORY),
    "ddp-4gpu-shm-powersgd": (4, {"all_reduce": 3}, NEAR),
    "ddp-4gpu-onefile": (4, {"all_reduce": 11}, NEAR),
    "fsdp-4gpu": (4, {"all_gather": 49, "reduce_scatter": 25}, NEAR),
}
STRAGGLER, EVEN = "ddp-2gpu-straggler", "ddp-2gpu"
MS = 1_000_000


@pytest.fixture(scope="module")
def by_collective(captures):
    """Return a function that gives the rows of each collective of a run by (step, seq)."""

    @functools.cache
    def grouped(name):
        found = {}
        for row in captures.run(name).collectives().to_pylist():
            found.setdefault((row["step"], row["seq"]), []).append(row)
        return found

    return grouped


@pytest.mark.parametrize("name", each(GROUPS))
def test_every_collective_is_matched_on_all_ranks(runs, by_collective, name):
    n_ranks, kinds, _ = GROUPS[name]
    run = runs(name)
    steps = sorted(set(run.steps()["step"].to_pylist()))
    found = by_collective(name)
    assert sorted(found) == [(step, seq) for step in steps for seq in range(sum(kinds.values()))]
    for rows in found.values():
        assert [row["rank"] for row in rows] == list(range(n_ranks))
        assert len({(row["collective"], row["comm_id"], row["algorithm"]) for row in rows}) == 1
        assert {(row["is_matched"], row["n_ranks"]) for row in rows} == {(True, n_ranks)}
    for step in steps:
        names = [rows[0]["collective"] for (own, _), rows in found.items() if own == step]
        assert {one: names.count(one) for one in names} == kinds
    assert run.problems["code"].to_pylist().count("unmatched-collectives") == 0


@pytest.mark.parametrize("name", each(GROUPS))
def test_waiting_and_transfer_make_up_each_operation_ends_agree_and_clocks_are_known_to_50_us(
    runs, by_collective, name
):
    for rows in by_collective(name).values():
        first, *_, last = sorted(row["start_ns"] for row in rows)
        for row in rows:
            assert row["arrival_skew_ns"] == last - first
            assert row["wait_ns"] == last - row["start_ns"] < row["end_ns"] - row["start_ns"]
            assert row["wait_ns"] + row["transfer_ns"] == row["end_ns"] - row["start_ns"]
            assert row["transfer_ns"] > 0
        assert sum(row["late_by_ns"] > 0 for row in rows) == 1
        ends = [row["end_ns"] for row in rows]
        assert max(ends) - min(ends) < GROUPS[name][2]
    for row in runs(name).ranks.to_pylist():
        assert 0 <= row["clock_error_ns"] < 50_000
        assert abs(row["clock_offset_ns"]) < 50_000  # of one host
        assert row["clock_offset_ns"] == 0 or abs(row["clock_offset_ns"]) > row["clock_error_ns"]


@pytest.mark.parametrize("name", each(GROUPS))
def test_the_waiting_of_a_step_is_that_of_its_collectives(runs, name):
    # They run one after the other on each stream; on two streams their waits may overlap.
    run = runs(name)
    waits = {}
    for row in run.collectives().to_pylist():
        waits.setdefault((row["rank"], row["step"]), []).append(row["wait_ns"])
    for row in run.steps().to_pylist():
        own = waits[row["rank"], row["step"]]
        assert max(own) <= row["wait_ns"] <= min(sum(own), row["comm_ns"])
        if len(GROUPS[name][1]) == 1:
            assert row["wait_ns"] == sum(own)


@pytest.mark.parametrize("name", each(GROUPS))
def test_stragglers_are_the_sums_of_what_collectives_say(runs, by_collective, name):
    run = runs(name)
    chosen = [row for rows in by_collective(name).values() for row in rows if row["in_summary"]]
    steps = {row["step"] for row in chosen}
    lateness = dict.fromkeys(range(GROUPS[name][0]), 0)
    for step in steps:
        worst = max((row for row in chosen if row["step"] == step), key=lambda row: row["late_by_ns"])
        lateness[worst["rank"]] += worst["late_by_ns"]
    for row in run.stragglers().to_pylist():
        delays = [one["late_by_ns"] for one in chosen if one["rank"] == row["rank"]]
        assert row["wait_caused_ns"] == sum(delays)
        assert row["n_arrived_last"] == sum(delay > 0 for delay in delays)
        assert row["lateness_ns"] == lateness[row["rank"]] <= row["wait_caused_ns"]


# --- who is late ----------------------------------------------------------------------------------


def test_the_rank_that_sleeps_arrives_last_everywhere(runs):
    run = runs(STRAGGLER)
    n_steps = run.summary()["n_summary_steps"].to_pylist()[0]
    fast, slow = run.stragglers().to_pylist()
    assert (fast["n_arrived_last"], fast["wait_caused_ns"], fast["lateness_ns"]) == (0, 0, 0)
    assert slow["n_arrived_last"] == 11 * n_steps
    # It sleeps 30 ms in each forward; the later buckets wait as well, so what it caused is more.
    assert 30 * MS < slow["lateness_ns"] / n_steps < 60 * MS
    assert slow["wait_caused_ns"] > slow["lateness_ns"]
    assert (fast["wait_ns"], slow["wait_ns"]) == (slow["wait_caused_ns"], 0)
    late = [row for row in run.collectives().to_pylist() if row["rank"] == 1]
    assert all(row["is_late_significant"] and row["is_significant"] for row in late)


def test_ranks_alike_are_late_by_less_than_a_hundredth_of_the_step(runs):
    run = runs(EVEN)
    (figures,) = run.summary().to_pylist()
    for row in run.stragglers().to_pylist():
        assert row["lateness_ns"] < 0.01 * figures["step_time_ns"] * figures["n_summary_steps"]
    assert figures["wait_share"] < 0.01
