"""A built run whose every figure is worked out by hand, in every export version."""

import json

import pytest

import nsyspipe
from nsyspipe.report.export import document
from nsyspipe.report.formats import dumps
from tests.build.tools import STEADY, codes, figures, problem_of, run_of
from tests.build.trace import NVTX, TraceBuilder, schemas, steady_rank
from tests.golden.words import figures as figures_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("steady"), steady_rank(0), steady_rank(1))


def test_run_figures_are_pooled_over_ranks_and_summary_steps(run):
    # Step 0 is skipped, 3 is cut off; both ranks start together; 100 ns idle lie between two steps'
    # ranges.
    idle = {"input": 100.0, "launch": 650.0, "blocked": 0.0, "dependency": 10.0, "unknown": 0.0}
    assert run.summary().to_pylist() == [
        {
            # Nobody says what a step works on.
            **dict.fromkeys(("tokens_per_s", "samples_per_s", "flops_per_s", "mfu")),
            "n_steps": 4,
            "n_summary_steps": 2,
            "step_time_ns": 1000.0,
            "throughput_steps_per_s": 1e6,
            "comm_share": 0.06,
            "exposed_comm_share": 0.03,
            "overlap_ratio": 0.5,
            "backward_overlap_ratio": 0.5,
            "idle_share": 0.76,
            "compute_share": 0.2,
            "exposed_memory_share": 0.01,
            "dtod_ns_per_step": 10.0,
            "dtod_bytes_per_step": 64.0,
            "collectives_per_step": 1.0,
            "wait_share": 0.0,
            "transfer_share": 0.06,
            # No payload says sizes.
            "message_bytes_per_step": None,
            "algbw_bytes_per_s": None,
            "busbw_bytes_per_s": None,
            **{f"idle_{cause}_ns_per_step": ns for cause, ns in idle.items()},
        }
    ]
    assert run.skipped_steps == [0]


def test_each_step_of_a_rank_is_the_hand_computed_one(
    run,
):
    row = run.breakdown().to_pylist()[0]
    assert {name: row[name] for name in STEADY} == STEADY
    # The least time from launch to start is 90: forward, launched at 10, starts at 100. The copy
    # was launched long before the 10 ns without work that it ends; the next step's forward was not
    # while 350 to 1100 went by, and no call blocked the host; of that it was in no range and in no
    # call from 900, where the step's range ends, to 1000.
    idle = {
        "input": 100,
        "between_steps": 100,
        "launch": 650,
        "pause": 0,
        "blocked": 0,
        "dependency": 10,
        "unknown": 0,
    }
    # Getting input lasted 100 and makes at most as much idle time. No call blocked the host, and
    # nothing started late.
    idle |= {
        "made_by_input": 100,
        "made_by_calls": 0,
        "made_by_copies": 0,
        "blocked_by_copies": 0,
        "blocked_by_allocs": 0,
        "made_by_allocs": 0,
        "late_start": 0,
    }
    expected = {f"idle_{cause}_ns": ns for cause, ns in idle.items()} | {
        "idle_ns": 760,
        "idle_share": 0.76,
    }
    assert {name: row[name] for name in row if name.startswith("idle_")} == expected
    last = run.steps().to_pylist()[3]
    names = ("step", "start_ns", "end_ns", "is_complete", "in_summary")
    assert [last[name] for name in names] == [3, 3100, 3350, False, False]


def test_times_are_aligned_by_three_collectives_or_session_starts(run, tmp_path):
    # Rank 1's session starts 1 ns later; all four collectives end 1 ns later on it, so its clock is
    # ahead by that.
    short = run_of(tmp_path, *(steady_rank(at, n_steps=2) for at in (0, 1)))
    for found, starts in ((run, [100, 100]), (short, [100, 101])):
        assert [
            row["start_ns"] for row in found.steps().to_pylist() if row["step"] == 0
        ] == starts, found


def test_phases_hold_what_was_launched_inside_them_by_any_thread(run):
    rows = {(row["rank"], row["step"], row["phase"]): row for row in run.phases().to_pylist()}
    # On the device [200, 330) and the copy [340, 350), which ends the 10 ns without work.
    assert rows[0, 1, "backward"] == {
        "rank": 0,
        "step": 1,
        "phase": "backward",
        "host_ns": 100,
        "n_kernels": 2,
        "compute_ns": 100,
        "comm_ns": 60,
        "exposed_comm_ns": 30,
        "device_ns": 140,
        "idle_ns": 10,
        "n_blocking_copies": 0,
    }
    forward = rows[0, 1, "forward"]
    # Its gap is that which the next step's forward ends.
    assert (forward["compute_ns"], forward["host_ns"], forward["idle_ns"]) == (100, 45, 750)
    assert rows[0, 3, "forward"]["idle_ns"] == 0


@pytest.mark.parametrize("version", list(schemas()))
def test_every_export_version_gives_the_same_figures(tmp_path, version):
    run = run_of(tmp_path, *(steady_rank(rank, version=version) for rank in range(2)))
    assert (figures(run), run.ranks["rank"].to_pylist()) == (STEADY, [0, 1])
    # Where the environment was not exported, the file name tells the rank.
    has_environment = "META_DATA_CAPTURE" in schemas()[version]
    assert set(run.ranks["rank_source"].to_pylist()) == {
        "env:RANK" if has_environment else "file_name"
    }
    assert run.ranks["gpu_name"].to_pylist() == ["NVIDIA H200"] * 2


def test_an_export_with_all_tables_gives_the_same_figures_as_a_lazy_one(tmp_path):
    builders = (steady_rank(rank).meta(EXPORT_PARAM_LAZY="false") for rank in range(2))
    assert figures(run_of(tmp_path, *builders, lazy=False)) == STEADY


# --- as a capture without steps -------------------------------------------------------------------
def steady_run(folder, **options):
    return run_of(folder, *(steady_rank(rank) for rank in range(2)), **options)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Return a run whose steps are declined."""
    return steady_run(tmp_path_factory.mktemp("captured"), step="none")


def test_shares_are_pooled_over_the_capture_and_what_is_of_a_step_is_null(tmp_path, captured):
    for run in (captured, steady_run(tmp_path, without=(NVTX,), step="none")):
        found = json.loads(dumps(document(run)))
        assert found["run"]["steps_from"] == "capture", run
        steps = [
            (row["rank"], row["step"], row["is_complete"], row["in_summary"])
            for row in found["steps"]
        ]
        assert steps == [(0, 0, False, True), (1, 0, False, True)], run
        summary = found["summary"]
        assert (summary["n_steps"], summary["n_summary_steps"]) == (0, 0), run
        # Four times 200 ns of compute and 60 of communication, from 100 to 3350.
        assert (summary["compute_share"], summary["comm_share"], summary["wait_share"]) == (
            800 / 3250,
            240 / 3250,
            0,
        ), run
        of_a_step = {name for name in summary if name.endswith("_per_step")}
        of_a_step |= {"step_time_ns", "throughput_steps_per_s"}
        assert (
            {summary[name] for name in of_a_step}
            == {row["lateness_ns"] for row in found["stragglers"]}
            == {None}
        ), run
        assert (found["findings"], "no-steps" in [row["code"] for row in found["problems"]]) == (
            [],
            True,
        ), run


def test_it_cannot_be_replayed(
    captured, worded
):  # outputs: tests/golden/frozen/report/run/without-steps.txt
    worded(sorted({str(one.refused) for one in nsyspipe.whatif(captured).scenarios}))


def test_two_captures_without_steps_compare_shares_without_an_interval(tmp_path, captured, worded):
    rows = {row["metric"]: row for row in nsyspipe.diff(captured, captured).metrics.to_pylist()}
    share, time = rows["idle_share"], rows["step_time"]
    assert (share["baseline"], share["delta"]) == (captured.summary()["idle_share"][0].as_py(), 0)
    assert (share["ci_low"], share["n_baseline"], share["verdict"]) == (None, 0, "inconclusive")
    assert (time["baseline"], time["verdict"]) == (None, "inconclusive")
    worded(time["why"])
    found = nsyspipe.diff(captured, steady_run(tmp_path))
    assert (found.is_comparable, "steps-from" in found.comparability["check"].to_pylist()) == (
        False,
        True,
    )
    row = nsyspipe.compare([captured]).table.to_pylist()[0]
    assert (row["n_summary_steps"], row["step_time_ns"], row["comm_share"]) == (0, None, 240 / 3250)


def test_copies_of_unified_memory_lack_no_launch(tmp_path):
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).kernel(0, 9, launch=0)
    for kind in (11, 12, 13, 14):
        builder.copy(10 * kind, 10 * kind + 5, kind)
    assert "launch-missing" not in codes(run_of(tmp_path, builder))
    row = problem_of(run_of(tmp_path, builder.copy(200, 205, 1)), "launch-missing")
    assert {"1", "2"} <= figures_of(row["message"])


@pytest.mark.parametrize("is_told", [True, False])
def test_memsets_are_0_if_the_export_is_known_to_be_whole(tmp_path, is_told):
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).kernel(0, 9, launch=0)
    builder.launch(3, api="cudaMemsetAsync_v3020")
    if is_told:
        builder.meta(EXPORT_PARAM_LAZY="true", EXPORT_PARAM_TABLES_TO_EXPORT="")
    run = run_of(tmp_path, builder)
    assert run.summary()["idle_share"].to_pylist() == [0.0 if is_told else None]
    assert ("memset-calls-only" in codes(run), "no-memset" in codes(run)) == (is_told, not is_told)


@pytest.mark.parametrize("launched", [False, True])
def test_a_step_without_a_window_reports_if_it_launched_a_kernel(tmp_path, launched, worded):
    builder = steady_rank(0, world_size=1).range(3900, 3950, "step 4")
    if launched:  # before step 3 begins on the device
        builder.kernel(3050, 3060, launch=3910)
    found = problem_of(run_of(tmp_path, builder), "step-without-window")
    assert "1" in figures_of(found["message"])
    worded(found["message"])


@pytest.mark.parametrize(("n_ranks", "expected"), [(1, False), (2, True)])
def test_message_sizes_are_missed_from_two_ranks_on(tmp_path, n_ranks, expected):
    run = run_of(tmp_path, *(steady_rank(rank, world_size=n_ranks) for rank in range(n_ranks)))
    assert ("no-message-size" in codes(run)) is expected
