"""Where the replay does not hold it says why."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

import nsyspipe
from nsyspipe.model.problems import EXPORT_AGAIN, WITH_BLOBS
from nsyspipe.replay import opening, refusals, starving
from nsyspipe.replay.answer import whatif
from tests.build.ddp_run import MS, US
from tests.build.make_replay import SINGLE, STEP, forget_launches, launch_first, only, refusal
from tests.build.nccl_layouts import COMM_INIT, NCCL_2_21
from tests.build.tools import run_of_steps
from tests.build.trace import TraceBuilder
from tests.golden.words import figures

pytestmark = pytest.mark.usefixtures("opened_once")

VIEW = SINGLE.changed(has_copies=False)
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


REFUSED = {
    "one rank": (SINGLE.changed(n_ranks=1), {}),
    "a first step alone": (SINGLE.changed(n_steps=2), {}),
    # One range alone makes none.
    "no steps": (SINGLE.changed(n_steps=1), {}),
    "narrow gradients made narrow": (SINGLE.changed(datatype="bf16"), {"gradient_dtype": "fp16"}),
    "buckets of accumulated gradients": (SINGLE.changed(n_micro_batches=3), {"bucket_mb": 25}),
    "buckets of unknown bytes": (VIEW, {"bucket_mb": 25}),
    "a link for unknown bytes": (VIEW, {"link": "shm"}),
    "no copies to leave out": (VIEW, {"no_grad_copy": True}),
}


@pytest.mark.parametrize(
    ("problems", "fix"),
    [
        ([], WITH_BLOBS),
        ([("no-message-size", f"{EXPORT_AGAIN}nsys export")], WITH_BLOBS),
        ([("no-message-size", "trace NVTX")], "trace NVTX"),
        ([("no-message-size", "trace NVTX"), ("backward-in-graphs", "no graphs")], "no graphs"),
    ],
)
def test_what_records_message_sizes_is_what_the_problems_say(problems, fix):
    run = SimpleNamespace(problem_rows=[{"code": code, "fix": own} for code, own in problems])
    assert opening._what_records_sizes(run) == fix


@pytest.mark.parametrize(("run", "changes"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_answered_has_a_reason(ask, run, changes, worded):
    worded(refusal(ask(run, **changes)))


def test_only_a_cut_off_step_is_no_step(tmp_path, worded):
    run = nsyspipe.load(SINGLE.changed(n_steps=1).write(tmp_path / "run"), step=".*")
    worded(refusal(whatif(run)))


def test_one_rank_of_several_is_answered_what_it_allows(tmp_path, worded):
    SINGLE.write(tmp_path)
    by_id = {one.id: one for one in whatif(nsyspipe.load(tmp_path / "ddp_0.sqlite")).scenarios}
    assert {name for name, one in by_id.items() if one.refused is None} == {
        "bucket-25",
        "bucket-100",
        "no-grad-copy",
    }
    assert by_id["no-grad-copy"].step_time_ns == pytest.approx(STEP - 400 * US, abs=US)
    worded(by_id["bucket-25"].assumptions, "bucket-25")
    for name in ("link-shm", "no-wait"):
        worded(by_id[name].refused, name)


@pytest.mark.slow
def test_of_ranks_that_are_missing_only_what_the_others_do_can_be_asked(tmp_path, worded):
    # Rank 2 is late by all that the others seem to transfer: of that no link and no datatype gives
    # anything back.
    reports = SINGLE.changed(n_ranks=4, late=(0, 0, 60 * MS, 0)).write(tmp_path)
    there = nsyspipe.load([str(tmp_path / f"ddp_{rank}.sqlite") for rank in (0, 1, 3)])
    missing, *others = only(whatif(there, bucket_mb=25)).assumptions
    worded(missing, "what is assumed")
    assert {"3", "4"} <= figures(missing)
    assert others == [*only(whatif(nsyspipe.load(reports), bucket_mb=25)).assumptions]
    for change in (
        {"no_wait": True},
        {"bandwidth": "10GB/s"},
        {"gradient_dtype": "bf16"},
        {"perfect_overlap": True},
    ):
        answer = whatif(there, **change)
        worded(refusal(answer), ", ".join(change))
        assert answer.limit_step_time_ns is None, change


def test_what_takes_long_to_replay_is_refused(ask, monkeypatch, worded):
    monkeypatch.setattr(refusals, "_MAX_SIMULATED_BUCKETS", 11)
    worded(refusal(ask(SINGLE, bucket_mb=25)))
    monkeypatch.setattr(refusals, "_MAX_SIMULATED_BUCKETS", 20)
    assert only(ask(SINGLE, bucket_mb=25)).step_time_ns


def rank_of(rank, length, rows, *, n_steps=5, lead=None, span=(0, 9 * MS), builder=None):
    """Return a rank with steps of `length` from 1 s on, of (kernel, begin, end, launch after its host's begin, stream).

    Its host begins each step `lead` before its device, or every 10 ms, and is in it for `span`.
    """
    builder = builder or TraceBuilder(pid=1000 + rank).session(10**18).gpu()
    builder.env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank)
    for step in range(n_steps):
        at = 1000 * MS + step * length
        host = 10 * MS * step if lead is None else at - lead
        builder.range(host + span[0], host + span[1], f"step {step}")
        for name, begin, end, launch, *stream in rows:
            number = stream[0] if stream else 19 if name == NCCL else 7
            builder.kernel(at + begin, at + end, name, launch=host + launch, stream=number)
    return builder


def whole_graphs(rank):
    builder = rank_of(
        rank,
        30 * MS,
        [("gemm", 25 * MS, 26 * MS, 15 * US)],
        n_steps=7,
        lead=20 * US,
        span=(0, 29 * MS),
    )
    for at in range(1000 * MS, 1200 * MS, 30 * MS):
        builder.graph(at, at + 25 * MS, launch=at - 10 * US)
    return builder


def late_launcher(rank):
    """Return a rank that, if it is the second, launches the first kernel of each step 30 ms late: its window ends with that."""
    # Both hosts are ahead of their devices but for the pause; all-reduces end at the same time.
    at = 30 * MS if rank else 0
    reduced = (NCCL, at + 10 * MS, 60 * MS, 2 * US)
    rows = [("forward", at, at + 10 * MS, 0), reduced, ("optimizer", 60 * MS, 64 * MS, 3 * US)]
    return rank_of(
        rank,
        64 * MS,
        rows,
        n_steps=3,
        lead=10 * US - at if rank else 900 * MS,
        span=(-2 * US, 50 * US),
    )


def launch_bound(rank, stream=19):
    """Return a rank with 10 ms of work and an all-reduce of 2 per step, which launches half of the work 4 ms late."""
    launch = 9 * MS - 1
    rows = [
        ("first", 0, 5 * MS, 1),
        ("second", 9 * MS, 14 * MS, launch),
        (NCCL, 14 * MS, 16 * MS, launch + 1 + US, stream),
    ]
    return rank_of(rank, 16 * MS, rows, lead=0, span=(-US, 16 * MS - 2 * US))


def early(rank, *more, stream=19):
    """Return a rank with the same work that is launched early, and more operations in each step."""
    rows = [
        ("first", 0, 5 * MS, 100),
        ("second", 5 * MS, 10 * MS, 200),
        (NCCL, 10 * MS, 12 * MS, 300, stream),
    ]
    return rank_of(rank, 12 * MS, [*rows, *more])


def unmatched(rank):
    builder = early(rank)
    return (
        builder.nccl(1000 * MS + 33 * MS, 1000 * MS + 34 * MS, launch=20 * MS + 500)
        if rank
        else builder
    )


def with_orthogonalising(rank):
    """Return a rank that computes on the stream of its communication."""
    return early(rank, ("orthogonalise", 6 * MS, 7 * MS, 5 * MS, 19))


def with_two_communicators(rank):
    return early(rank, (NCCL, MS, 2 * MS, 500, 23))


NOT_COVERED = {
    "whole graphs": (whole_graphs, {}),
    "a rank that launches late": (late_launcher, {"bandwidth": "2x"}),
    # Nor with ranks that are not waited for.
    "unknown bytes": (late_launcher, {"link": "shm"}),
    "all launch late": (launch_bound, {}),
    "one stream for both": (with_orthogonalising, {}),
    "two communicators": (with_two_communicators, {}),
    "not matched": (unmatched, {}),
}


@pytest.mark.parametrize(("build", "changes"), NOT_COVERED.values(), ids=NOT_COVERED)
def test_a_run_that_the_model_does_not_cover_is_refused(written, build, changes, worded):
    worded(refusal(whatif(written(build(0), build(1)), **changes)))


@pytest.mark.parametrize(
    ("times", "causes"),
    [
        ((10, 20, 70), ("sync-bound",)),
        ((24, 51, 25), ("launch-bound", "sync-bound")),
        ((25, 51, 24), ("launch-bound", "input-bound")),
        ((0, 0, 0), ()),
        ((4, None, None), ("input-bound",)),
    ],
)
def test_a_gpu_waits_for_launches_because_of_each_cause_of_a_quarter_of_it(times, causes):
    names = ("idle_input_ns", "idle_launch_ns", "idle_blocked_ns")
    types = pa.schema(
        [("rank", pa.int32()), ("in_summary", pa.bool_()), *((name, pa.int64()) for name in names)]
    )
    counted, other = (dict(zip(names, own, strict=True)) for own in (times, (0, 99, 0)))
    rows = [{"rank": 1, "in_summary": True} | other, {"rank": 0, "in_summary": True} | counted]
    steps = pa.Table.from_pylist([{"rank": 0, "in_summary": False} | other, *rows], schema=types)
    assert starving.starved_causes(run_of_steps(steps)) == [causes, ("launch-bound",)]


def test_a_starved_rank_is_no_slower_where_the_other_only_lives_on_a_lead(written):
    # Both hosts take 64 ms a step; that of rank 0 is 900 ms ahead.
    found = starving.starving(written(late_launcher(0), late_launcher(1)))
    assert (found.n_late_steps, found.n_steps, found.slower) == ({1: 1}, 1, [])


def test_a_straggler_that_waits_for_launches_can_be_balanced(written, worded):
    run = written(early(0), launch_bound(1))
    # Its all-reduces are on a stream of their own: both are answered with no_wait.
    for change in ({"bandwidth": "2x"}, {"perfect_overlap": True}):
        worded(refusal(whatif(run, **change)), *change)
        assert only(whatif(run, **change, no_wait=True)).step_time_ns <= 12.1 * MS, change
    # Rank 0's own work is 10 ms, then the all-reduce of 2 ms.
    assert only(whatif(run, no_wait=True)).step_time_ns == pytest.approx(12 * MS, rel=0.01)


def test_no_hint_leads_to_a_change_that_is_refused_all_the_same(written, worded):
    # On the stream of the work: perfect overlap is none there, with or without waiting for late
    # ranks.
    run = written(early(0, stream=7), launch_bound(1, stream=7))
    by_id = {one.id: one.refused_in_options for one in whatif(run).scenarios}
    assert by_id["no-wait"] is None
    (asked,) = whatif(run, perfect_overlap=True).scenarios
    (balanced,) = whatif(run, perfect_overlap=True, no_wait=True).scenarios
    assert asked.refused == balanced.refused == by_id["perfect-overlap"]
    assert "--no-wait" not in asked.refused_in_options
    worded(asked.refused)


def test_a_straggler_is_not_balanced_to_more_than_the_other_host_launches(written, worded):
    # It launches the same work in 15 ms, and the next step 1 ms later: of three steps the last
    # one's next is not replayed.
    rows = [("part", at * MS, (at + 1) * MS, int(1.5 * at * MS)) for at in range(10)]
    slow = rank_of(
        0,
        16 * MS,
        [*rows, (NCCL, 10 * MS, 16 * MS, 15 * MS)],
        lead=40 * MS,
        span=(-US, 16 * MS - 2 * US),
    )
    reason = refusal(whatif(written(slow, launch_bound(1)), no_wait=True))
    worded(reason)
    # To launch, and on GPUs.
    assert {"15.67", "12.00"} <= figures(reason)


def with_slow_hosts():
    """Return two ranks with 10 ms of work, launched in 18, and an all-reduce of 20 ms."""
    rows = [("part", at * MS, (at + 1) * MS, int(1.8 * at * MS)) for at in range(10)]
    rows = [*rows, (NCCL, 10 * MS, 30 * MS, 18 * MS)]
    return [
        rank_of(rank, 30 * MS, rows, lead=40 * MS, span=(-US, 30 * MS - 2 * US))
        for rank in range(2)
    ]


@pytest.mark.parametrize(("bandwidth", "expected"), [("2x", 20 * MS), ("4x", 15 * MS)])
def test_a_link_shortens_a_step_down_to_what_hosts_launch(written, bandwidth, expected):
    answer = whatif(written(*with_slow_hosts()), bandwidth=bandwidth)
    assert only(answer).step_time_ns == pytest.approx(expected, rel=0.01)


def test_no_link_makes_a_step_much_shorter_than_its_hosts_take_to_launch_it(written, worded):
    reason = refusal(whatif(written(*with_slow_hosts()), bandwidth="20x"))
    # In 18 ms at least, so a quarter too many, hosts launch what GPUs would do in 10 + 20 / 20.
    worded(reason)
    assert "18.00" in figures(reason)
    assert any(11 <= float(figure) < 12 for figure in figures(reason))


MISSING = {
    # Two of one rank: the first is of the step that is skipped. Steps 1 to 18 count: the last one
    # is cut off.
    "of collectives": [(1, NCCL, 2)],
    "of all": [(rank, *of) for rank in range(2) for of in ((NCCL, 20), ("layer_backward", 80))],
}


def without_launches(folder, run, forgotten):
    reports = run.write(folder)
    for rank, name, n in forgotten:
        forget_launches(folder / f"ddp_{rank}.sqlite", name, n)
    return nsyspipe.load(reports)


@pytest.mark.parametrize("forgotten", MISSING.values(), ids=MISSING)
def test_launches_that_are_missing(tmp_path, forgotten, worded):
    worded(refusal(whatif(without_launches(tmp_path, SINGLE.changed(n_steps=20), forgotten))))


@pytest.mark.slow
def test_few_launches_may_be_missing(ask, tmp_path):
    run = SINGLE.changed(n_steps=20)
    # One of the skipped step, and the next: 1 of 504 operations was launched with the one before
    # it.
    found = whatif(without_launches(tmp_path, run, [(0, "optimizer", 2)]), bucket_mb=25)
    assert only(found).step_time_ns == only(ask(run, bucket_mb=25)).step_time_ns


def test_buckets_that_begin_long_after_what_they_wait_for(tmp_path, worded):
    """Launched before the forward pass, an all-reduce waits for something else: 30.4 ms long, for 10 on the link."""
    reports = SINGLE.changed(transfer=(10 * MS,)).write(tmp_path)
    for rank in range(2):
        launch_first(tmp_path / f"ddp_{rank}.sqlite", NCCL, every=10 * MS)
    found = {one.id: one.refused for one in whatif(nsyspipe.load(reports)).scenarios}
    assert "3.0" in figures(found["bucket-25"])
    worded(found["bucket-25"])
    assert found["no-wait"] is None


def sharded_rank(rank):
    """Return a rank that gathers (2 ms), works (10), scatters (3), works (1), in steps of 16 ms."""
    builder = (
        TraceBuilder("3.25.0 2026.2.1 mfu", pid=1000 + rank).domain("NCCL", 1).session(10**18).gpu()
    )
    init = {"NCCL communicator ID": 5, "No. of ranks": 2, "Rank": rank, "CUDA device": 0}
    builder.nccl_payload(-1000, "ncclCommInitRankConfig", init, COMM_INIT)
    for launch in range(US, 50 * MS, 10 * MS):
        for call, at in (("AllGather", launch), ("ReduceScatter", launch + 2 * US)):
            fields = {"NCCL communicator ID": 5, "Message size [bytes]": 1 << 20}
            builder.nccl_payload(at - 100, f"nccl{call}", fields, NCCL_2_21, end=at + 100)
    gather, scatter = (f"ncclDevKernel_{call}_RING_LL" for call in ("AllGather", "ReduceScatter"))
    rows = [(gather, 0, 2 * MS, US, 24), (scatter, 12 * MS, 15 * MS, 3 * US, 25)]
    rows += [("work", 2 * MS, 12 * MS, 2 * US), ("optimizer", 15 * MS, 16 * MS, 4 * US)]
    return rank_of(rank, 16 * MS, rows, builder=builder)


def test_a_sharded_run_is_answered_where_communication_gets_faster(written, worded):
    run = written(sharded_rank(0), sharded_rank(1))
    own = run.summary()["busbw_bytes_per_s"][0].as_py()
    found = whatif(run, perfect_overlap=True)
    assert found.step_time_ns == 16 * MS
    assert found.limit_step_time_ns is None  # by how much communication slows the work is not known
    assert only(found).step_time_ns == pytest.approx(11 * MS, abs=US)
    faster = only(
        whatif(run, bandwidth=2 * own)
    )  # twice the bandwidth: half of 5 ms less 2 x 30 us, and those
    assert faster.step_time_ns == pytest.approx(11 * MS + 60 * US + 2470 * US, abs=2 * US)
    worded(refusal(whatif(run, bandwidth=own / 2)), "a slower link")
    worded(refusal(whatif(run, bucket_mb=25)), "buckets")
