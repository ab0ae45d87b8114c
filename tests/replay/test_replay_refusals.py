"""Where the replay does not hold it says why."""

from __future__ import annotations

import re

import pytest

import nsyspipe
from nsyspipe.replay import knobs
from nsyspipe.replay.answer import whatif
from tests.build.ddp_run import MS, US
from tests.build.make_replay import SINGLE, STEP, forget_launches, launch_first, only, refusal
from tests.build.nccl_layouts import COMM_INIT, NCCL_2_21
from tests.build.trace import TraceBuilder

VIEW = SINGLE.changed(has_copies=False)
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@pytest.mark.parametrize(
    ("run", "changes", "reason"),
    [
        (SINGLE.changed(n_ranks=1), {}, "the run has 1 rank: nothing is communicated"),
        (SINGLE.changed(n_steps=2), {}, "no complete step after the first"),
        (SINGLE.changed(n_steps=1), {}, "the run has no steps"),  # one range alone makes none
        (SINGLE.changed(datatype="bf16"), {"gradient_dtype": "fp16"},
         "gradients are sent as bf16: only f32 ones can be halved"),
        (SINGLE.changed(n_micro_batches=3), {"bucket_mb": 25},
         "gradients are all-reduced 3 times per step, with other work between"),
        (VIEW, {"bucket_mb": 25}, "the bytes of the gradients were not recorded (--gradient-bytes N says them)"),
        (VIEW, {"link": "shm"}, "message bytes were not recorded, so the captured bandwidth is not known (--gradient-bytes N"),
        (VIEW, {"no_grad_copy": True}, "no copies between buckets and gradients"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_has_a_reason(ask, run, changes, reason):
    assert refusal(ask(run, **changes)).startswith(reason)


def test_only_a_cut_off_step_is_no_step(tmp_path):
    run = nsyspipe.load(SINGLE.changed(n_steps=1).write(tmp_path / "run"), step=".*")
    assert "no step is complete" in refusal(whatif(run))


def test_one_rank_of_several_is_answered_what_it_allows(tmp_path):
    SINGLE.write(tmp_path)
    by_id = {one.id: one for one in whatif(nsyspipe.load(tmp_path / "ddp_0.sqlite")).scenarios}
    answered = {name for name, one in by_id.items() if one.refused is None}
    assert answered == {"bucket-25", "bucket-100", "no-grad-copy"}
    assert by_id["no-grad-copy"].step_time_ns == pytest.approx(STEP - 400 * US, abs=US)
    assert by_id["bucket-25"].assumptions[0].startswith("for this rank alone")
    assert "1 rank alone is there" in by_id["link-shm"].refused
    assert "nothing is communicated" not in by_id["no-wait"].refused


def test_of_ranks_that_are_missing_only_what_the_others_do_can_be_asked(tmp_path):
    # Rank 2 is late by all that the others seem to transfer: of that no link and no datatype gives anything back.
    reports = SINGLE.changed(n_ranks=4, late=(0, 0, 60 * MS, 0)).write(tmp_path)
    there = nsyspipe.load([str(tmp_path / f"ddp_{rank}.sqlite") for rank in (0, 1, 3)])
    assert only(whatif(there, bucket_mb=25)).assumptions[0] == (
        "1 rank is missing: a step is taken to be as long as that of the 3 of 4 that are there, and they wait for no other"
    )
    assert not any("missing" in one for one in only(whatif(nsyspipe.load(reports), bucket_mb=25)).assumptions)
    for change in ({"no_wait": True}, {"bandwidth": "10GB/s"}, {"gradient_dtype": "bf16"}, {"perfect_overlap": True}):
        answer = whatif(there, **change)
        assert refusal(answer).startswith("3 of 4 ranks are there: how much of their communication is waiting")
        assert answer.limit_step_time_ns is None


def test_what_takes_long_to_replay_is_refused(ask, monkeypatch):
    monkeypatch.setattr(knobs, "_MOST_REPLAYED", 11)
    assert re.match("4 buckets in each of .*--skip-first", refusal(ask(SINGLE, bucket_mb=25)))
    monkeypatch.setattr(knobs, "_MOST_REPLAYED", 20)
    assert only(ask(SINGLE, bucket_mb=25)).step_time_ns


# --- built ranks ------------------------------------------------------------------------------------


def builder_of(rank):
    builder = TraceBuilder(pid=1000 + rank).session(10**18).gpu()
    return builder.env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank)


def whole_graphs(rank):
    builder = builder_of(rank)
    for at in range(MS, 200 * MS, 30 * MS):
        builder.range(at - 20 * US, at + 29 * MS, f"step {at // (30 * MS)}")
        builder.graph(at, at + 25 * MS, launch=at - 10 * US)
        builder.kernel(at + 25 * MS, at + 26 * MS, launch=at - 5 * US)
    return builder


def late_launcher(rank):
    """Return a rank that, if it is the second, launches the first kernel of each step 30 ms late: its window ends with that."""
    builder, at = builder_of(rank), 1000 * MS
    for step in range(3):
        # Both hosts are ahead of their devices but for the pause; all-reduces end at the same time.
        first = at + (30 * MS if rank else 0)
        launch = first - (10 * US if rank else 900 * MS)
        builder.range(launch - 2 * US, launch + 50 * US, f"step {step}")
        builder.kernel(first, first + 10 * MS, "forward", launch=launch)
        builder.nccl(first + 10 * MS, at + 60 * MS, launch=launch + 2 * US)
        builder.kernel(at + 60 * MS, at + 64 * MS, "optimizer", launch=launch + 3 * US)
        at += 64 * MS
    return builder


def launch_bound(rank, *, late=True):
    """Return a rank with steps of 12 ms: 10 ms of work, an all-reduce of 2; late ones launch half of the work 4 ms late."""
    builder, shift = builder_of(rank), 1000 * MS
    length = 16 * MS if late else 12 * MS
    for step in range(5):
        host = step * length + shift if late else 10 * MS * step
        begin = shift + step * length
        builder.range(host - US if late else host, host + length - 2 * US if late else host + 9 * MS, f"step {step}")
        builder.kernel(begin, begin + 5 * MS, "first", launch=host + 1 if late else host + 100)
        second = begin + 5 * MS + (4 * MS if late else 0)
        builder.kernel(second, second + 5 * MS, "second", launch=second - 1 if late else host + 200)
        builder.nccl(second + 5 * MS, second + 7 * MS, launch=second + US if late else host + 300)
    return builder


def shared_stream(rank):
    at = 1000 * MS + 30 * MS
    return launch_bound(rank, late=False).kernel(at, at + MS, "orthogonalise", launch=15 * MS, stream=19)


def two_communicators(rank):
    builder = launch_bound(rank, late=False)
    for step in range(5):
        at = 1000 * MS + 12 * MS * step + MS
        builder.nccl(at, at + MS, launch=10 * MS * step + 500, stream=23)
    return builder


def unmatched(rank):
    builder = launch_bound(rank, late=False)
    return builder.nccl(1000 * MS + 33 * MS, 1000 * MS + 34 * MS, launch=20 * MS + 500) if rank else builder


@pytest.mark.parametrize(
    ("build", "changes", "words"),
    [
        (whole_graphs, {}, "7 CUDA graphs were captured as a whole: communication inside .*--cuda-graph-trace=node"),
        (late_launcher, {"link": "shm"}, "one rank alone stands idle"),
        (launch_bound, {}, "launch- or input-bound: GPUs stand idle"),
        (shared_stream, {}, "compute kernels run on the stream of the communication"),
        (two_communicators, {}, "several communicators"),
        (unmatched, {}, "collectives could not be matched"),
    ],
)
def test_a_run_that_the_model_does_not_cover_is_refused(written, build, changes, words):
    assert re.match(words, refusal(whatif(written(build(0), build(1)), **changes)))


def test_a_straggler_that_waits_for_launches_can_be_balanced(written):
    run = written(launch_bound(0, late=False), launch_bound(1))
    assert "--no-wait" in refusal(whatif(run, gradient_dtype="bf16"))
    # Rank 0's own work is 10 ms, then the all-reduce of 2 ms.
    assert only(whatif(run, no_wait=True)).step_time_ns == pytest.approx(12 * MS, rel=0.01)


@pytest.mark.parametrize(
    ("forgotten", "reason"),
    [
        # Two of one rank: the first is of the step that is skipped. Steps 1 to 18 count: the last one is cut off.
        ([(1, NCCL, 2)], "launches of collectives were not recorded (1 of 36)"),
        ([(rank, *of) for rank in range(2) for of in ((NCCL, 20), ("layer_backward", 80))],
         "launches were not recorded (capture with --trace=cuda,nvtx)"),
        # One of the skipped step, and the next: 1 of 504 operations was launched with the one before it.
        ([(0, "optimizer", 2)], None),
    ],
)  # fmt: skip
def test_launches_that_are_missing(ask, tmp_path, forgotten, reason):
    run = SINGLE.changed(n_steps=20)
    reports = run.write(tmp_path)
    for rank, name, n in forgotten:
        forget_launches(tmp_path / f"ddp_{rank}.sqlite", name, n)
    if reason is None:
        found, whole = whatif(nsyspipe.load(reports), bucket_mb=25), ask(run, bucket_mb=25)
        assert only(found).step_time_ns == only(whole).step_time_ns
    else:
        assert refusal(whatif(nsyspipe.load(reports))).startswith(reason)


def test_buckets_that_begin_long_after_what_they_wait_for(tmp_path):
    """Launched before the forward pass, an all-reduce waits for something else: 30.4 ms long, for 10 on the link."""
    reports = SINGLE.changed(transfer=(10 * MS,)).write(tmp_path)
    for rank in range(2):
        launch_first(tmp_path / f"ddp_{rank}.sqlite", NCCL, every=10 * MS)
    found = {one.id: one.refused for one in whatif(nsyspipe.load(reports)).scenarios}
    assert found["bucket-25"].startswith("collectives begin 3.0 times as long")
    assert found["no-wait"] is None


# --- sharded runs: two collectives on two streams, gathered parameters and scattered gradients --------


def sharded_rank(rank):
    """Return a rank that gathers (2 ms), works (10), scatters (3), works (1), in steps of 16 ms."""
    builder = TraceBuilder("3.25.0 2026.2.1 mfu", pid=1000 + rank).domain("NCCL", 1)
    builder.env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank).session(10**18).gpu()
    init = {"NCCL communicator ID": 5, "No. of ranks": 2, "Rank": rank, "CUDA device": 0}
    builder.nccl_payload(-1000, "ncclCommInitRankConfig", init, COMM_INIT)
    for step in range(5):
        host, at = step * 10 * MS, 1000 * MS + step * 16 * MS
        builder.range(host, host + 9 * MS, f"step {step}")
        for number, (call, begin, end) in enumerate((("AllGather", 0, 2), ("ReduceScatter", 12, 15))):
            launch = host + (1 + 2 * number) * 1000
            name = f"ncclDevKernel_{call}_RING_LL"
            builder.nccl(at + begin * MS, at + end * MS, launch=launch, stream=24 + number, name=name)
            fields = {"NCCL communicator ID": 5, "Message size [bytes]": 1 << 20}
            builder.nccl_payload(launch - 100, f"nccl{call}", fields, NCCL_2_21, end=launch + 100)
        builder.kernel(at + 2 * MS, at + 12 * MS, "work", launch=host + 2000)
        builder.kernel(at + 15 * MS, at + 16 * MS, "optimizer", launch=host + 4000)
    return builder


def test_a_sharded_run_is_answered_where_communication_gets_faster(written):
    run = written(sharded_rank(0), sharded_rank(1))
    own = run.summary()["busbw_bytes_per_s"][0].as_py()
    found = whatif(run, perfect_overlap=True)
    assert found.step_time_ns == 16 * MS
    assert found.limit_step_time_ns is None  # by how much communication slows the work is not known
    assert only(found).step_time_ns == pytest.approx(11 * MS, abs=US)
    # Twice the bandwidth: half of 5 ms less 2 x 30 us, and those.
    faster = only(whatif(run, bandwidth=2 * own))
    assert faster.step_time_ns == pytest.approx(11 * MS + 60 * US + 2470 * US, abs=2 * US)
    assert "only faster links can be answered" in refusal(whatif(run, bandwidth=own / 2))
    assert "there are no buckets" in refusal(whatif(run, bucket_mb=25))
