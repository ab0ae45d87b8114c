"""Findings of small built reports, from the SQLite rows to the saving; every number is worked out by hand."""

import re

import pytest

import nsyspipe
from nsyspipe.findings.late_node import find_late_node
from nsyspipe.model import schema
from nsyspipe.report.findings import parts_text
from nsyspipe.report.first_screen import nothing_sentences
from nsyspipe.report.overview import checks_of, recommendations_of
from nsyspipe.report.verdict import verdict
from tests.build import nccl_layouts as nccl
from tests.build.tools import edit, run_of
from tests.build.trace import MEMCPY, RUNTIME, TraceBuilder
from tests.conftest import SAMPLES
from tests.findings.make import collective, findings
from tests.golden.words import figures

_OVERHEAD = (
    "CREATE TABLE PROFILER_OVERHEAD (start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid "
    "INTEGER, "
    "nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL)"
)
# Step i begins at 1000 i + 100 on the device, with a kernel that was launched 20 before: the
# latency.
STARTS = (0, 1000, 2000, 3000)


def quiet_rank(number=0, n_ranks=1, *, starts=STARTS, lead=0):
    """Return a rank whose steps hold nothing but their first kernel, [100, 300); their ranges begin `lead` early."""
    builder = (
        TraceBuilder(pid=1000 + number).session(10**18).gpu().env(RANK=number, WORLD_SIZE=n_ranks)
    )
    for step, at in enumerate(starts):
        builder.range(at - lead, at + 900 - lead, f"step {step}").kernel(
            at + 100, at + 300, launch=at + 80
        )
    return builder


def blocking_call(builder, start, end, name):
    ids = {
        "globalTid": builder.global_tid(),
        "correlationId": builder.launch(None),
        "nameId": builder.string(name),
    }
    return builder.add(RUNTIME, start=start, end=end, **ids)


def savings(run):
    return {row["id"]: row["saving_ns_per_step"] for row in run.judged_findings().to_pylist()}


def test_a_gpu_that_waits_for_its_batch_is_input_bound(tmp_path):
    # Idle from 300 to 1100, when the next step's kernel starts (launched at 1080, it could not
    # sooner). The host is in the data phase from 560 to 1060 of that: 500, and from 450, where the
    # step's range ends, to 550, where the next begins, in none: 100; the other 200 are for
    # launches.
    builder = quiet_rank(lead=450)
    for at in STARTS:
        builder.range(at - 440, at + 60, "data")
    run = run_of(tmp_path, builder)
    # Without the 200 of launching beside the input, that came as much earlier.
    assert savings(run) == {"input-bound": 600, "launch-bound": 400}
    expected = {"": 800, "input_": 600, "between_steps_": 100, "launch_": 200}
    expected |= dict.fromkeys(("blocked_", "dependency_", "unknown_"), 0)
    figures = {f"idle_{name}ns_per_step": value for name, value in expected.items()}
    # All of the bound is idle time of the only rank.
    figures["saving_ns_per_step_by_part"] = {"idle": 600}
    assert findings(run)["input-bound"]["evidence"] == figures


@pytest.mark.parametrize("has_data", [True, False])
def test_a_gpu_that_runs_short_kernels_is_launch_bound(tmp_path, has_data):
    # After [100, 300) six kernels of 50, each launched while the one before runs: gaps of 50 before
    # each, [300, 350) and so on, and from 900 to the next step's start at 1100: half of that
    # between the steps' ranges.
    builder = quiet_rank()
    for at in STARTS:
        if has_data:
            builder.range(at + 110, at + 120, "data")
        for start in range(350, 950, 100):
            builder.kernel(at + start, at + start + 50, launch=at + start - 20)
    found = findings(run_of(tmp_path, builder))
    assert list(found) == ["launch-bound", "input-bound"]
    # Input between the steps came earlier too: all idle time is gone.
    assert found["launch-bound"]["saving_ns_per_step"] == 6 * 50 + 100 + 100
    assert found["input-bound"]["saving_ns_per_step"] == 100
    # So short are no pauses: nothing is said of data.
    assert "data" not in found["launch-bound"]["advice"]


def test_the_call_that_lets_the_gpu_run_dry_is_named(tmp_path):
    # The host waits until the first kernel ends at 300, then launches another at 400, [420, 520):
    # the gap [300, 420) is the synchronisation's. Of [520, 1100) cudaMalloc holds the host for 60,
    # and from 900 to 1000 it is between two steps' ranges.
    builder = quiet_rank()
    for at in STARTS:
        blocking_call(builder, at + 105, at + 310, "cudaStreamSynchronize_v3020")
        builder.kernel(at + 420, at + 520, launch=at + 400)
        blocking_call(builder, at + 700, at + 760, "cudaMalloc_v3020")
    run = run_of(tmp_path, builder)
    # Of 1000 the host waits 205 + 60, gets input for 100, and launches 420 while the device idles:
    # it launches 215 beside the idle time for the calls and for input, which came as much earlier
    # without. Calls that allocate in each step have their own finding.
    by_launches = {"launch-bound": 420 + 215, "input-bound": 100}
    assert savings(run) == by_launches | {"sync-bound": 180, "alloc-in-step": 60}
    calls = {
        name: row["evidence"].get("idle_ns_per_step_by_call") for name, row in findings(run).items()
    }
    assert calls["sync-bound"] == {"cudaStreamSynchronize": 120}
    assert calls["alloc-in-step"] == {"cudaMalloc": 60}


def test_many_small_all_reduces_are_too_many_buckets(tmp_path):
    # 20 of 15 ns, one after the other, from 500 on, all exposed: 300 of 1000.
    builders = [quiet_rank(number, 2) for number in range(2)]
    for builder in builders:
        for at in STARTS:
            builder.range(at + 81, at + 90, "backward").kernel(at + 300, at + 500, launch=at + 82)
            for start in range(500, 900, 20):
                end, name = at + start + 15, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
                builder.nccl(at + start, end, launch=at + 85, name=name)
    run = run_of(tmp_path, *builders)
    found = findings(run)
    assert {"comm-bound", "too-many-buckets"} <= set(found)
    assert "single-bucket" not in found
    assert savings(run)["too-many-buckets"] == 300
    assert found["too-many-buckets"]["evidence"]["all_reduces_per_step"] == 20
    assert found["too-many-buckets"]["evidence"]["median_transfer_ns"] == 15


def test_the_profilers_own_work_is_measured_in_the_steps_that_count(tmp_path, worded):
    # Step 1's window is [1100, 2100): 100 of it, and 60 of step 2's. Step 0 is left out.
    run_of(tmp_path, quiet_rank())
    rows = ((1150, 1250), (2090, 2100), (2100, 2150), (150, 900))
    inserts = [
        f"INSERT INTO PROFILER_OVERHEAD VALUES ({start}, {end}, NULL, 1, 0)" for start, end in rows
    ]
    edit(tmp_path / "a_0.sqlite", _OVERHEAD, *inserts)
    found = findings(nsyspipe.load(tmp_path, jobs=1))["profiler-overhead"]
    assert found["saving_ns_per_step"] == (100 + 10 + 50) / 2
    # Of two steps that count, which is few.
    worded(found["title"])


def test_a_first_step_that_the_capture_stretched_is_told(tmp_path):
    # Windows of 2000, 1000, 1000; the last one is cut.
    found = findings(run_of(tmp_path, quiet_rank(starts=(0, 2000, 3000, 4000))))[
        "profiler-overhead"
    ]
    assert found["saving_ns_per_step"] is None
    assert found["severity"] == "low"
    figures = {"first_step_to_median_ratio": 2, "first_step_is_skipped": True}
    assert found["evidence"] == {"overhead_ns_per_step": None} | figures


MS, US = 1_000_000, 1_000
CAUSES = [f"idle_{cause}_ns" for cause in ("input", "launch", "blocked", "dependency", "unknown")]


def report(
    path,
    *,
    shift=0,
    lag=6 * US,
    sleep=50 * MS,
    kernel=380 * US,
    has_calls=False,
    text=None,
    has_room=True,
):
    """Write 30 steps of 20 kernels, launched 400 us apart, each after so much sleep outside every range.

    The device runs each kernel that much after its launch, and is on a clock that is `shift` later.
    Where it keeps up each step ends with a wait for it. In the middle of the sleep are ten
    launches, 200 us apart, if `has_calls`, or a range. Without room between them the steps' ranges
    begin with the sleep, as those that end with the optimizer do.
    """
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).session(10**18).gpu()
    builder.meta(EXPORT_SCHEMA_VERSION="3.11.1", EXPORT_PRODUCT_VERSION="2024.2.3")
    builder.range(9 * MS, 30 * (sleep + 10 * MS) + 20 * MS, "epoch 0")
    at, busy = 10 * MS, 0
    for step in range(30):
        if has_calls:
            for number in range(10):
                builder.launch(at + sleep // 2 + number * 200 * US, api="cudaEventQuery_v3020")
        if text:
            builder.range(at + 10 * MS, at + 30 * MS, text)
        at += sleep
        builder.range(at if has_room else at - sleep, at + 10 * MS, f"step {step}")
        for number in range(20):
            launch = at + 20 * US + number * 400 * US
            start = max(busy, launch + lag)
            busy = start + kernel
            builder.kernel(start + shift, busy + shift, launch=launch)
        if kernel < 400 * US:
            builder.launch(at + 7700 * US, api="cudaDeviceSynchronize_v3020")
            builder.rows[RUNTIME][-1]["end"] = busy + 4 * US
        at += 10 * MS
    return nsyspipe.load(builder.write(path / f"{shift}{has_calls}{text}_0.sqlite"), jobs=1)


def causes(run):
    return run.steps().select(["step", "idle_between_steps_ns", *CAUSES]).to_pylist()


def test_the_loader_is_named(tmp_path, worded):
    run = report(tmp_path)
    found = findings(run)
    assert list(found) == ["input-bound", "launch-bound"]
    # 19 x 20 us between kernels, 26 us before the first, and 1994 us from the last to the end of
    # the step; of those the host was blocked in the wait for the last kernel for as long as that
    # took.
    rows = {(row["idle_launch_ns"], row["idle_blocked_ns"]) for row in causes(run)[1:-1]}
    assert rows == {((380 + 26 + 1994 - 310) * US, 310 * US)}
    worded(found["input-bound"]["title"])
    assert found["input-bound"]["saving_ns_per_step"] == 50 * MS
    assert {row["idle_between_steps_ns"] for row in causes(run)[:-1]} == {50 * MS}
    # Clocks that agree are not spoken of.
    assert not [code for code in run.problems["code"].to_pylist() if "clock" in code]


def test_a_busy_device_is_not_input_bound(tmp_path):
    run = report(tmp_path, kernel=4 * MS)
    assert findings(run) == {}
    assert {row["idle_input_ns"] for row in causes(run)} == {0}
    # 25 ms, 10 calls of 1 ns each 200 us apart, then 25 ms less 1.8 ms: the longest stretch is the
    # first.
    run = report(tmp_path, has_calls=True)
    assert {row["idle_between_steps_ns"] for row in causes(run)[1:-1]} == {25 * MS}
    assert findings(run)["input-bound"]["saving_ns_per_step"] == 25 * MS


# A step's last kernel ends 8006 us after it began, and the wait for it 4 us later: 1990 us to its
# end, 20 to the next's first.
@pytest.mark.parametrize(
    ("options", "between"),
    [
        ({}, 52_010 * US),
        ({"has_calls": True}, 26_990 * US),
        ({"sleep": 0, "kernel": 390 * US}, 2 * MS),
        ({"sleep": 0, "kernel": 391 * US}, 0),
    ],
)
def test_steps_without_room_between_them_have_the_loader_between_their_kernels(
    tmp_path, options, between
):
    run = report(tmp_path, has_room=False, **options)
    assert {row["idle_between_steps_ns"] for row in causes(run)[1:-1]} == {between}
    assert ("input-bound" in findings(run)) == (between > 0)


@pytest.mark.parametrize(("text", "inputs"), [("validate", 20 * MS), ("get batch", 40 * MS)])
def test_a_range_between_steps_is_what_it_says(tmp_path, text, inputs):
    rows = causes(report(tmp_path, text=text))[1:-1]  # 10 ms quiet, 20 ms in the range, 20 ms quiet
    assert {(row["idle_between_steps_ns"], row["idle_input_ns"]) for row in rows} == {
        (20 * MS, inputs)
    }


@pytest.mark.parametrize("shift", [325 * MS, 823 * MS, -156 * MS])
def test_a_device_on_another_clock_idles_for_the_same_causes(tmp_path, shift):
    run, usual = report(tmp_path, shift=shift), report(tmp_path)
    assert causes(run) == causes(usual)
    (told,) = [row for row in run.problems.to_pylist() if row["code"] == "device-clock-apart"]
    # Its least time from launch to start, 6 us, is taken for 5; a wait returns 4 us after the end.
    assert f"{(shift + US) / 10**6:+,.3f} ms" in told["message"]
    assert list(findings(run)) == list(findings(usual))


@pytest.mark.parametrize(("lag", "code"), [(2 * MS, "uncertain"), (100 * MS, "unknown")])
def test_the_idle_cause_is_null_if_the_device_clock_may_be_off(tmp_path, lag, code):
    run = report(tmp_path, lag=lag)
    # A wait returns 4 us after the end.
    (told,) = [row for row in run.problems.to_pylist() if row["code"].startswith("device-clock")]
    assert (told["code"], f" {lag / MS + 0.004:.3f} ms" in told["message"]) == (
        f"device-clock-{code}",
        True,
    )
    assert {row[cause] is None for row in causes(run) for cause in CAUSES} == {code == "unknown"}


def test_idle_time_whose_cause_is_not_known_is_not_called_fine(tmp_path, worded):
    run = report(tmp_path, lag=100 * MS)
    checks = checks_of(run)
    assert {"input-bound", "launch-bound", "sync-bound"} <= {*checks.skipped_rules}
    worded(nothing_sentences(run, recommendations_of(run), checks))


@pytest.mark.slow
def test_a_deep_queue_is_no_shift_of_the_clock(tmp_path):
    for rank in range(4):
        path = tmp_path / f"deep_{rank}.sqlite"
        path.write_bytes((SAMPLES / f"ddp-4gpu-before_{rank}.sqlite").read_bytes())
        edit(path, f"DELETE FROM {MEMCPY}")
    assert (
        "device-clock-apart"
        not in nsyspipe.load(tmp_path / "deep_?.sqlite", jobs=1).problems["code"].to_pylist()
    )


MIB = 2**20
N_STEPS = 5


def builder_of(rank):
    builder = TraceBuilder("3.25.0 2026.2.1 mfu", pid=1000 + rank).env(
        RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank
    )
    return builder.session(10**18).gpu().host("node0").domain("NCCL", 1)


def call(builder, api, launch, start, end, n_bytes, comm=16, **more):
    builder.nccl_payload(
        launch - 2, api, {nccl.COMM: comm, nccl.BYTES: n_bytes}, nccl.NCCL_2_21, end=launch - 1
    )
    builder.nccl(start, end, launch=launch, **more)


def accumulating(rank, syncs):
    """Return a rank that runs 3 micro-batches per step of 1000: 100 of compute each, then 60 + 40 of all-reduces where it syncs."""
    builder = builder_of(rank)
    for at in range(0, 1000 * N_STEPS, 1000):
        builder.range(at, at + 900, f"step {at // 1000}")
        for number in range(3):
            host, device = at + 10 + 30 * number, at + 100 + 300 * number
            builder.kernel(device, device + 100, launch=host).range(host + 1, host + 28, "backward")
            if syncs[number]:
                call(builder, "ncclAllReduce", host + 5, device + 100, device + 160, 3 * MIB)
                call(builder, "ncclAllReduce", host + 10, device + 160, device + 200, MIB)
    return builder


@pytest.mark.parametrize(
    ("syncs", "saving"),
    [((1, 1, 1), 200), ((0, 0, 1), None), ((0, 1, 1), None)],
    ids=["each", "last", "some"],
)
def test_gradients_that_each_micro_batch_sends(tmp_path, syncs, saving):
    found = findings(run_of(tmp_path, *(accumulating(rank, syncs) for rank in range(2)))).get(
        "no-sync"
    )
    assert (found and found["saving_ns_per_step"]) == saving
    if found:
        figures = {"n_backward_passes": 3, "messages_per_step": 6, "bytes_per_step": 12 * MIB}
        assert figures.items() <= found["evidence"].items()


def stage(rank, *, has_norm=False):
    """Return a stage of two, in steps of 1000.

    The first computes 200, sends at 300, has its gradient at 700, and computes 200; the other
    receives from 100 on and computes 380. With a norm of both, the second waits for the first with
    it, from 700 to 900.
    """
    builder = builder_of(rank)
    kernels = [[(100, 300), (700, 900)], [(310, 690)]][rank]
    pairs = [
        [("ncclSend", 300, 310), ("ncclRecv", 310, 700)],
        [("ncclRecv", 100, 310), ("ncclSend", 690, 700)],
    ][rank]
    for at in range(0, 1000 * N_STEPS, 1000):
        builder.range(at, at + 950, f"step {at // 1000}").range(at + 40, at + 60, "backward")
        for number, (start, end) in enumerate(kernels):
            builder.kernel(at + start, at + end, launch=at + (10, 35)[rank] + 40 * number)
        for number, (name, start, end) in enumerate(pairs):
            call(
                builder,
                name,
                at + 20 + 30 * number,
                at + start,
                at + end,
                MIB,
                name="ncclDevKernel_SendRecv",
            )
        if has_norm:
            call(
                builder,
                "ncclAllReduce",
                at + 80,
                at + (900, 700)[rank],
                at + 910,
                8,
                comm=32,
                stream=23,
            )
    return builder


@pytest.mark.parametrize("has_norm", [False, True])
def test_a_pipelines_bubble_is_its_own_and_nobodys_lateness(tmp_path, has_norm, worded):
    run = run_of(tmp_path, *(stage(rank, has_norm=has_norm) for rank in range(2)))
    roles = {row["communicator"]: row["role"] for row in run.traffic().to_pylist()}
    assert roles == {"0x10": "pipeline"} | ({"0x20": "other"} if has_norm else {})
    # The first waits 690 - 310 for the gradient, the second 300 - 100 for its input.
    bubble = findings(run)["pipeline-bubble"]
    assert bubble["evidence"]["bubble_ns_per_step_by_rank"] == {"0": 380, "1": 200}
    # Of the gap to the next step 50 are between two ranges; in the rest, 150 and 350, with the norm
    # 140 each, hosts launch late. Without its waits and those 50 the second takes 750, or the first
    # 570. But hosts are in no call that waits: each launches for all of the step.
    parts = bubble["evidence"]["saving_ns_per_step_by_part"]
    assert parts.pop("left_for_launching") == (570 if has_norm else 750) - 1000
    assert sum(parts.values()) == 1000 - (570 if has_norm else 750)
    assert bubble["saving_ns_per_step"] == 0
    assert bubble["evidence"]["is_launch_bound"]
    assert "straggler" not in findings(run)
    assert {row["lateness_ns"] for row in run.stragglers().to_pylist()} == {None}
    launch = findings(run)["launch-bound"]
    # Late launches, and as much of the other's waiting: 150 + 350, or 140 + 140; and transfers of
    # 10, which start as soon as they are launched: a send and a receive, and the norm.
    assert launch["saving_ns_per_step"] == (280 + 30 if has_norm else 500 + 20)
    worded(launch["title"], "launch-bound")
    # Bound, 31 or 52 %. Of the slowest stage 400 of 1000 communicate, with the norm 10 more.
    said = verdict(run)
    worded(said, "verdict")
    assert figures(said) >= ({"31", "41"} if has_norm else {"52", "40"})


def test_a_bound_on_late_ranks_tells_what_it_leaves_of_their_delays():
    parts = {"delays": 12e6, "left_for_launching": -4e6, "left_for_compute": -1e6}
    figures = {
        "lateness_ns_per_step": 8e6,
        "rank": 1,
        "fastest_launch_ns_per_step": 31e6,
    }
    text = parts_text({"saving_ns_per_step_by_part": parts} | figures)
    # 12 - 4 - 1 are left, because the fastest host launches for 31.
    assert re.findall(r"([\d.]+) ms", text) == ["12.00", "7.000", "31.00", "8.000"]


def test_parts_of_a_bound_are_told_down_to_what_changes_none_of_its_digits():
    parts = {
        "idle_for_launches": 46.16e6,
        "idle_at_late_start": 2.669e6,
        "waiting": 0.01667e6,
        "longer_window": 0.002e6,
    }
    text = parts_text({"saving_ns_per_step_by_part": parts})
    assert re.findall(r"([\d.]+) ms", text) == ["46.16", "2.669", "0.01667"]


@pytest.mark.parametrize(
    ("least", "shown"), [(5_000, ["60.00", "39.99", "0.005000"]), (4_000, ["60.00", "40.00"])]
)
def test_the_parts_of_a_bound_sum_to_all_of_its_digits(least, shown):
    parts = {"waiting": 60e6, "idle": 40e6 - least, "longer_window": least}
    assert re.findall(r"([\d.]+) ms", parts_text({"saving_ns_per_step_by_part": parts})) == shown


def test_one_part_and_next_to_nothing_is_no_sum():
    assert parts_text({"saving_ns_per_step_by_part": {"waiting": 1e6, "idle": 40}}) == ""


HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}
WORLD = [row for number in (1, 2) for row in collective(number, (0, 10, 100, 103), 400)]
# Rank 2 is late in its group, rank 3 is not in its own.
PAIRS = [
    row | {"rank": rank}
    for comm_id, ranks, starts in (("d0", (0, 2), (0, 100)), ("d1", (1, 3), (0, 0)))
    for rank, row in zip(ranks, collective(1, starts, 400, comm_id=comm_id), strict=True)
]


LATE = ("b", (2, 3), "node b (ranks 2-3)", [90, 90])


def late(rows, hosts=HOSTS, error=0):
    node = find_late_node(schema.COLLECTIVES.from_rows(rows), hosts, error)
    return node and (node.host, node.ranks, node.text, node.late_ns.tolist())


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        # The first of b comes at 100, the last of a at 10: 90 in each step, although no rank of b
        # is 90 behind the other.
        (WORLD, {}, LATE),
        (WORLD, {"error": 89}, LATE),
        (WORLD, {"error": 90}, None),  # the clocks do not tell
        (WORLD, {"error": None}, None),
        (WORLD, {"hosts": {}}, None),
        (WORLD, {"hosts": dict.fromkeys(range(4), "a")}, None),
        (WORLD, {"hosts": {0: "a", 1: "a", 2: "b"}}, None),  # of one rank the host is not known
        # One rank of a host is no host, nor are ranks of which one is late.
        (WORLD, {"hosts": {0: "a", 1: "a", 2: "a", 3: "b"}}, None),
        (PAIRS, {}, None),
        (collective(1, (0, 10, 5, 100), 400), {}, None),
        ([], {}, None),
    ],
)
def test_a_node_is_late_where_all_its_ranks_are(rows, options, expected):
    assert late(rows, **options) == expected
