"""Real reports: identities on every row, figures counted another way, collectives matched, and the slow rank found."""

import collections
import functools
from itertools import pairwise

import pytest

import nsyspipe
from nsyspipe.report.export import document
from nsyspipe.report.formats import dumps
from tests.build.tools import query
from tests.pairs import reports

# Capture -> ranks, collectives of each kind, DtoD copies and bytes per step: no step differs on any
# rank.
ONCE, BUCKETS = {"all_reduce": 1}, {"all_reduce": 11}
GROUPS = {
    "baseline": (1, {}, 72, 471_859_200),
    "ddp-1gpu": (1, {}, 368, 1_698_000_800),
    "ddp-2gpu": (2, ONCE, 368, 1_698_000_800),
    "ddp-2gpu-straggler": (2, BUCKETS, 368, 1_698_000_800),
    "ddp-2gpu-bucket100": (2, BUCKETS, 72, 471_859_200),
    "ddp-2gpu-bucket100-nsys2025": (2, BUCKETS, 72, 471_859_200),
    "ddp-4gpu": (4, ONCE, 368, 1_698_000_800),
    "ddp-4gpu-shm": (4, ONCE, 368, 1_698_000_800),
    "ddp-4gpu-shm-bucket100": (4, BUCKETS, 72, 471_859_200),
    "ddp-4gpu-shm-powersgd": (4, {"all_reduce": 3}, 567, 2_925_645_536),
    "ddp-4gpu-onefile": (4, BUCKETS, 368, 1_698_000_800),
    "fsdp-4gpu": (4, {"all_gather": 49, "reduce_scatter": 25}, 72, 3_774_873_600),
}
ACROSS = [name for name, (n_ranks, *_) in GROUPS.items() if n_ranks > 1]
# How far the ends of one collective may be apart, in general and through host memory (ns).
NEAR, SHARED_MEMORY = 100_000, {"ddp-4gpu-shm": 200_000, "ddp-4gpu-shm-bucket100": 200_000}
# Of other programs: their steps are named otherwise, or not all of them do the same.
OTHERS = [
    f"2gpu-{name}"
    for name in (
        "counters",
        "fsdp2",
        "gpt-accum",
        "gpt-accum-shm",
        "gpt-b25",
        "gpt-b25-shm",
        "gpt-b25-shm-bf16hook",
        "gpt-one-shm",
        "graph",
        "graph-node",
        "moe",
        "pp",
        "tp",
    )
]
OF_FOUR = ["4gpu-item-pageable", "4gpu-tpddp", "4gpu-tpddp-nsys2024"]
N_RANKS = (
    {name: counts[0] for name, counts in GROUPS.items()}
    | dict.fromkeys(OTHERS, 2)
    | dict.fromkeys(OF_FOUR, 4)
)
MS = 1_000_000

# One of each kind; what holds of the others is tried with the slow tests.
QUICK = {
    "baseline",
    "ddp-2gpu-straggler",
    "ddp-2gpu-bucket100-nsys2025",
    "ddp-4gpu-onefile",
    "ddp-4gpu-shm-powersgd",
    "fsdp-4gpu",
    "2gpu-graph",
    "2gpu-graph-node",
    "2gpu-pp",
}


def each(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


def test_every_real_report_is_in_one_of_the_groups(real):
    assert {path for name in N_RANKS for path in reports(name, real)} == set(real.iterdir())


@pytest.mark.parametrize("name", each(N_RANKS))
def test_windows_of_a_rank_tile_time_and_their_parts_sum_to_wall_time(runs, name):
    rows = runs(name).steps().to_pylist()
    assert len(rows) >= 3 * N_RANKS[name]
    for rank in range(N_RANKS[name]):
        own = [row for row in rows if row["rank"] == rank]
        assert all(before["end_ns"] == after["start_ns"] for before, after in pairwise(own)), rank
        assert [row["step"] for row in own] == sorted({row["step"] for row in own}), rank
        assert [row["is_complete"] for row in own] == [True] * (len(own) - 1) + [False], rank
    # What whole graphs hold is not told apart: comm and compute are null there.
    for row in rows if name != "2gpu-graph" else ():
        parts = row["compute_ns"], row["exposed_comm_ns"], row["exposed_memory_ns"], row["idle_ns"]
        assert sum(parts) == row["wall_ns"] == row["end_ns"] - row["start_ns"], row
        assert row["exposed_comm_ns"] + row["overlap_compute_ns"] == row["comm_ns"], row
        assert min(parts) >= 0, row
        assert 0 <= (row["overlap_backward_ns"] or 0) <= row["overlap_compute_ns"], row
        assert 0 <= row["exposed_dtod_ns"] <= min(row["dtod_ns"], row["exposed_memory_ns"]), row


@pytest.mark.parametrize("name", each(GROUPS))
def test_every_step_makes_the_same_and_operations_are_as_many_as_sqlite_counts(runs, real, name):
    n_ranks, kinds, *copies = GROUPS[name]
    run = runs(name)
    assert (run.ranks["rank"].to_pylist(), run.step_family) == (list(range(n_ranks)), "Batch #")
    found = {
        (row["n_collectives"], row["n_dtod"], row["dtod_bytes"]) for row in run.steps().to_pylist()
    }
    assert found == {(sum(kinds.values()), *copies)}
    statement = (
        "SELECT count(*), sum(value LIKE 'nccl%') FROM CUPTI_ACTIVITY_KIND_KERNEL "
        "JOIN StringIds ON id = shortName GROUP BY globalPid ORDER BY deviceId"
    )
    counted = [row for path in reports(name, real) for row in query(path, statement)]
    assert (
        list(zip(run.ranks["n_kernels"].to_pylist(), run.ranks["n_comm"].to_pylist(), strict=True))
        == counted
    )
    steps = run.breakdown().to_pylist()
    for step in {row["step"] for row in steps}:  # in aligned time
        own = [row for row in steps if row["step"] == step]
        assert len(own) == n_ranks, step
        assert max(row["start_ns"] for row in own) < min(row["end_ns"] for row in own), step


@pytest.mark.slow
@pytest.mark.parametrize("name", each(GROUPS))
def test_a_step_starts_with_the_first_kernel_that_any_thread_launched_in_it(runs, real, name):
    run = runs(name)
    starts = {(row["rank"], row["step"]): row["start_ns"] for row in run.steps().to_pylist()}
    for row in run.ranks.to_pylist():
        found = query(
            real / row["report"],
            "SELECT CAST(substr(coalesce(n.text, s.value), 7) AS INTEGER) AS step, min(k.start) "
            "FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
            "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.start >= n.start AND r.start < n.end "
            "AND r.globalTid / 16777216 = n.globalTid / 16777216 "
            "JOIN CUPTI_ACTIVITY_KIND_KERNEL k ON k.correlationId = r.correlationId "
            "AND k.globalPid / 16777216 = r.globalTid / 16777216 "
            "WHERE coalesce(n.text, s.value) LIKE 'Batch %' AND (n.globalTid / 16777216) % "
            f"16777216 = {row['pid']} "
            "GROUP BY step",
        )
        assert len(found) >= 3, row
        assert {step: start + row["clock_shift_ns"] for step, start in found} == {
            step: start for (rank, step), start in starts.items() if rank == row["rank"]
        }, row


@pytest.mark.slow
def test_two_exporters_give_one_document(runs):
    old, new = (document(runs(f"ddp-2gpu-bucket100{suffix}")) for suffix in ("", "-nsys2025"))
    for name in ("nsys_versions", "export_schema_versions"):
        assert old["run"].pop(name) != new["run"].pop(name), name
    for found in (old, new):
        del found["run"]["reports"], found["run"]["label"]
        for row in (*found["ranks"], *found["problems"]):
            del row["report"]
        for row in found["problems"]:  # what an exporter left out differs, and so does the fix
            if row["code"] == "no-message-size":
                del row["message"], row["fix"]
    assert dumps(old) == dumps(new)
    assert old["run"]["run_id"]


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


@pytest.mark.parametrize("name", each(ACROSS))
def test_each_collective_is_matched_and_clocks_are_known_to_50_us(runs, by_collective, name):
    n_ranks, kinds, *_ = GROUPS[name]
    run, found = runs(name), by_collective(name)
    steps = sorted(set(run.steps()["step"].to_pylist()))
    assert sorted(found) == [(step, seq) for step in steps for seq in range(sum(kinds.values()))]
    for step in steps:
        names = [rows[0]["collective"] for (own, _), rows in found.items() if own == step]
        assert {one: names.count(one) for one in names} == kinds, step
    assert "unmatched-collectives" not in run.problems["code"].to_pylist()
    for rows in found.values():
        assert [row["rank"] for row in rows] == list(range(n_ranks)), rows
        assert len({(row["collective"], row["comm_id"], row["algorithm"]) for row in rows}) == 1, (
            rows
        )
        first, *_, last = sorted(row["start_ns"] for row in rows)
        for row in rows:
            assert (row["is_matched"], row["n_ranks"], row["arrival_skew_ns"]) == (
                True,
                n_ranks,
                last - first,
            ), row
            assert row["wait_ns"] == last - row["start_ns"] < row["end_ns"] - row["start_ns"], row
            assert row["wait_ns"] + row["transfer_ns"] == row["end_ns"] - row["start_ns"], row
            assert row["transfer_ns"] > 0, row
        assert sum(row["late_by_ns"] > 0 for row in rows) == 1, rows
        ends = [row["end_ns"] for row in rows]
        assert max(ends) - min(ends) < SHARED_MEMORY.get(name, NEAR), rows
    for row in run.ranks.to_pylist():
        assert 0 <= row["clock_error_ns"] < 50_000, row
        assert abs(row["clock_offset_ns"]) < 50_000, row  # of one host
        assert row["clock_offset_ns"] == 0 or abs(row["clock_offset_ns"]) > row["clock_error_ns"], (
            row
        )


@pytest.mark.parametrize("name", each(ACROSS))
def test_the_waiting_of_steps_and_stragglers_is_what_collectives_say(runs, by_collective, name):
    run = runs(name)
    rows = [row for rows in by_collective(name).values() for row in rows]
    # They run one after the other on each stream; on two streams their waits may overlap.
    waits = collections.defaultdict(list)
    for row in rows:
        waits[row["rank"], row["step"]].append(row["wait_ns"])
    for row in run.steps().to_pylist():
        own = waits[row["rank"], row["step"]]
        assert max(own) <= row["wait_ns"] <= min(sum(own), row["comm_ns"]), row
        if len(GROUPS[name][1]) == 1:
            assert row["wait_ns"] == sum(own), row
    chosen = [row for row in rows if row["in_summary"]]
    lateness = dict.fromkeys(range(GROUPS[name][0]), 0)
    for step in {row["step"] for row in chosen}:
        worst = max(
            (row for row in chosen if row["step"] == step), key=lambda row: row["late_by_ns"]
        )
        lateness[worst["rank"]] += worst["late_by_ns"]
    for row in run.stragglers().to_pylist():
        delays = [one["late_by_ns"] for one in chosen if one["rank"] == row["rank"]]
        assert row["wait_caused_ns"] == sum(delays), row
        assert row["n_arrived_last"] == sum(delay > 0 for delay in delays), row
        assert row["lateness_ns"] == lateness[row["rank"]] <= row["wait_caused_ns"], row


def test_the_rank_that_sleeps_arrives_last_everywhere(runs):
    run = runs("ddp-2gpu-straggler")
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
    run = runs("ddp-2gpu")
    (figures,) = run.summary().to_pylist()
    for row in run.stragglers().to_pylist():
        assert row["lateness_ns"] < 0.01 * figures["step_time_ns"] * figures["n_summary_steps"], row
    assert figures["wait_share"] < 0.01


def test_calls_sum_to_the_blocked_time(runs):
    run = runs("ddp-4gpu-shm-powersgd")
    total = sum(run.idle_calls()["blocked_ns_per_step"].to_pylist())
    assert total > 0
    assert total == pytest.approx(run.summary()["idle_blocked_ns_per_step"][0].as_py())


def by_counting(run):
    """Return number and time by (rank, phase, name) of the kernels that start in a summary step."""
    windows = collections.defaultdict(list)
    for row in run.breakdown().to_pylist():
        windows[row["rank"]].append((row["start_ns"], row["end_ns"]))
    found = collections.defaultdict(lambda: [0, 0])
    for rank, events, _ in run.operations():
        for row in events.to_pylist():
            if row["category"] != "memory" and any(
                start <= row["start_ns"] < end for start, end in windows[rank]
            ):
                cost = found[rank, row["phase"], row["name"]]
                cost[0] += 1
                cost[1] += row["end_ns"] - row["start_ns"]
    return {key: tuple(cost) for key, cost in found.items()}


@pytest.mark.slow
def test_kernels_and_their_difference_are_those_of_the_events(runs):
    # A sharded run, whose ranks all gather in both passes, and one that reduces gradients.
    both = {"baseline": runs("fsdp-4gpu"), "candidate": runs("ddp-4gpu")}
    rows = {
        (row["phase"], row["name"]): row
        for row in nsyspipe.diff(*both.values(), force=True).kernels.to_pylist()
    }
    for side, run in both.items():
        counted = by_counting(run)
        kernels = run.kernels().to_pylist()
        names = ("rank", "phase", "name", "n_in_summary", "in_summary_ns")
        found = [tuple(row[name] for name in names) for row in kernels if row["n_in_summary"]]
        assert sorted(found, key=str) == sorted(
            ((*key, *cost) for key, cost in counted.items()), key=str
        ), side
        # There are others: in the step that is skipped and in the one that is cut off.
        assert all(row["n_kernels"] > row["n_in_summary"] for row in kernels), side
        sums = collections.defaultdict(lambda: [0, 0])
        for (_, *key), cost in counted.items():
            for at in (0, 1):
                sums[tuple(key)][at] += cost[at]
        n_rows = run.breakdown().num_rows
        assert set(sums) == {key for key, row in rows.items() if row[f"{side}_n_per_step"]}, side
        for key, (number, ns) in sums.items():
            assert rows[key][f"{side}_ns_per_step"] == ns / n_rows, key
            assert rows[key][f"{side}_n_per_step"] == number / n_rows, key
            assert rows[key][f"{side}_mean_ns"] == ns / number, key
