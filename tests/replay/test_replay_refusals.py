"""Where the replay does not hold it says why."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.replay import knobs
from nsyspipe.replay.answer import whatif
from tests.build.ddp_run import MS, US
from tests.build.make_replay import SINGLE, STEP, asked, forget_launches, launch_first, only, refusal
from tests.build.trace import TraceBuilder


@pytest.fixture
def ask(tmp_path):
    def answer(run, **changes):
        return asked(tmp_path / "run", run, **changes)

    return answer


def test_one_rank_has_nothing_to_change(ask):
    assert "1 rank: nothing is communicated" in refusal(ask(SINGLE.changed(n_ranks=1)))


def test_one_rank_of_several_is_answered_what_it_allows(tmp_path):
    SINGLE.write(tmp_path / "run")
    run = nsyspipe.load(str(tmp_path / "run" / "ddp_0.sqlite"))
    by_id = {one.id: one for one in whatif(run).scenarios}
    answered = {name for name, one in by_id.items() if one.refused is None}
    assert answered == {"bucket-25", "bucket-100", "no-grad-copy"}
    assert by_id["no-grad-copy"].step_time_ns == pytest.approx(STEP - 400 * US, abs=US)
    assert by_id["bucket-25"].assumptions[0].startswith("for this rank alone")
    assert "1 rank alone is there" in by_id["link-shm"].refused
    assert "nothing is communicated" not in by_id["no-wait"].refused


def test_of_ranks_that_are_missing_only_what_the_others_do_can_be_asked(tmp_path):
    # Rank 2 is late by all that the others seem to transfer: of that no link and no datatype gives anything back.
    SINGLE.changed(n_ranks=4, late=(0, 0, 60 * MS, 0)).write(tmp_path / "run")
    there = [str(tmp_path / "run" / f"ddp_{rank}.sqlite") for rank in (0, 1, 3)]
    found = only(whatif(nsyspipe.load(there), bucket_mb=25))
    assert found.assumptions[0] == (
        "1 rank is missing: a step is taken to be as long as that of the 3 of 4 that are there, and they wait for no other"
    )
    whole = only(whatif(nsyspipe.load(str(tmp_path / "run")), bucket_mb=25))
    assert not any("missing" in one for one in whole.assumptions)
    for change in ({"no_wait": True}, {"bandwidth": "10GB/s"}, {"gradient_dtype": "bf16"}, {"perfect_overlap": True}):
        answer = whatif(nsyspipe.load(there), **change)
        assert refusal(answer).startswith("3 of 4 ranks are there: how much of their communication is waiting")
        assert answer.limit_step_time_ns is None


def test_whole_graphs_hide_communication_and_the_answer_says_so(tmp_path):
    for rank in range(2):
        builder = TraceBuilder(pid=1000 + rank).session(10**18).gpu()
        builder.env(RANK=rank, WORLD_SIZE=2)
        for at in range(MS, 200 * MS, 30 * MS):
            builder.range(at - 20 * US, at + 29 * MS, f"step {at // (30 * MS)}")
            builder.graph(at, at + 25 * MS, launch=at - 10 * US)
            builder.kernel(at + 25 * MS, at + 26 * MS, launch=at - 5 * US)
        builder.write(tmp_path / f"graph_{rank}.sqlite")
    reason = refusal(whatif(nsyspipe.load(str(tmp_path / "graph_*.sqlite"))))
    assert reason.startswith("7 CUDA graphs were captured as a whole: communication inside them")
    assert "--cuda-graph-trace=node" in reason


def test_what_takes_long_to_replay_is_refused(ask, monkeypatch):
    monkeypatch.setattr(knobs, "_MOST_REPLAYED", 11)
    reason = refusal(ask(SINGLE, bucket_mb=25))
    assert reason.startswith("4 buckets in each of ")
    assert "--skip-first" in reason
    monkeypatch.setattr(knobs, "_MOST_REPLAYED", 20)
    assert only(ask(SINGLE, bucket_mb=25)).step_time_ns


def test_a_straggler_is_one_also_where_the_last_gap_of_a_step_is_its_own(tmp_path):
    # Rank 1 launches the first kernel of each step 30 ms late: its window ends with that gap.
    run = SINGLE.changed(n_steps=3)
    builders = [late_launcher(run, rank, 30 * MS if rank else 0) for rank in range(2)]
    for rank, builder in enumerate(builders):
        builder.write(tmp_path / f"late_{rank}.sqlite")
    found = whatif(nsyspipe.load(str(tmp_path / "late_*.sqlite")), link="shm")
    assert "one rank alone stands idle" in refusal(found)


def late_launcher(run, rank, pause):
    """Return a rank whose every step waits so long for its first launch, and whose all-reduces end with the others'."""
    builder = TraceBuilder(pid=1000 + rank)
    builder.env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank).session(10**18).gpu()
    at = 1000 * MS
    for step in range(run.n_steps):
        # Both hosts are ahead of their devices but for the pause.
        first = at + (30 * MS if rank else 0)
        launch = first - (10 * US if pause else 900 * MS)
        builder.range(launch - 2 * US, launch + 50 * US, f"step {step}")
        builder.kernel(first, first + 10 * MS, "forward", launch=launch)
        start = first + 10 * MS
        end = at + 60 * MS
        builder.nccl(start, end, launch=launch + 2 * US)
        builder.kernel(end, end + 4 * MS, "optimizer", launch=launch + 3 * US)
        at = end + 4 * MS
    return builder


def test_gradients_of_two_bytes_cannot_be_halved(ask):
    reason = refusal(ask(SINGLE.changed(datatype="bf16"), gradient_dtype="fp16"))
    assert reason == "gradients are sent as bf16: only f32 ones can be halved"


def test_a_run_that_waits_for_launches(ask, tmp_path):
    builders = [launch_bound(rank) for rank in range(2)]
    for rank, builder in enumerate(builders):
        builder.write(tmp_path / f"slow_{rank}.sqlite")
    found = whatif(nsyspipe.load(str(tmp_path / "slow_*.sqlite")))
    assert refusal(found).startswith("launch- or input-bound: GPUs stand idle")


def test_a_straggler_that_waits_for_launches_can_be_balanced(tmp_path):
    for rank in range(2):
        launch_bound(rank, late=rank == 1).write(tmp_path / f"late_{rank}.sqlite")
    run = nsyspipe.load(str(tmp_path / "late_*.sqlite"))
    assert "--no-wait" in refusal(whatif(run, gradient_dtype="bf16"))
    # Rank 0's own work is 10 ms, then the all-reduce of 2 ms.
    assert only(whatif(run, no_wait=True)).step_time_ns == pytest.approx(12 * MS, rel=0.01)


def test_compute_on_the_stream_of_the_communication(tmp_path):
    for rank in range(2):
        builder = launch_bound(rank, late=False)
        builder.kernel(1000 * MS + 30 * MS, 1000 * MS + 31 * MS, "orthogonalise", launch=15 * MS, stream=19)
        builder.write(tmp_path / f"shared_{rank}.sqlite")
    found = whatif(nsyspipe.load(str(tmp_path / "shared_*.sqlite")))
    assert "compute kernels run on the stream of the communication" in refusal(found)


def test_two_communicators(tmp_path):
    for rank in range(2):
        builder = launch_bound(rank, late=False)
        for step in range(5):
            at = 1000 * MS + 12 * MS * step + MS
            builder.nccl(at, at + MS, launch=10 * MS * step + 500, stream=23)
        builder.write(tmp_path / f"two_{rank}.sqlite")
    found = whatif(nsyspipe.load(str(tmp_path / "two_*.sqlite")))
    assert "several communicators" in refusal(found)


def test_collectives_that_do_not_match(tmp_path):
    for rank in range(2):
        builder = launch_bound(rank, late=False)
        if rank:
            builder.nccl(1000 * MS + 33 * MS, 1000 * MS + 34 * MS, launch=20 * MS + 500)
        builder.write(tmp_path / f"odd_{rank}.sqlite")
    assert "could not be matched" in refusal(whatif(nsyspipe.load(str(tmp_path / "odd_*.sqlite"))))


LONG = SINGLE.changed(n_steps=20)
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@pytest.fixture
def long_run(tmp_path):
    """Return the glob of a run of which single launches may be missing."""
    return LONG.write(tmp_path / "long")


def test_collectives_without_a_launch_are_refused_however_few_they_are(long_run, tmp_path):
    # Two of one rank: the first is of the step that is skipped.
    forget_launches(tmp_path / "long" / "ddp_1.sqlite", NCCL, 2)
    reason = refusal(whatif(nsyspipe.load(long_run)))
    # Steps 1 to 18 count: the last one is cut off.
    assert reason.startswith("launches of collectives were not recorded (1 of 36)")


def test_no_launches_at_all_are_a_matter_of_the_capture(long_run, tmp_path):
    for rank in range(2):
        for name, n in ((NCCL, 20), ("layer_backward", 80)):
            forget_launches(tmp_path / "long" / f"ddp_{rank}.sqlite", name, n)
    assert "--trace=cuda,nvtx" in refusal(whatif(nsyspipe.load(long_run)))


def test_a_kernel_without_a_launch_was_launched_with_the_one_before_it(long_run, tmp_path):
    before = only(whatif(nsyspipe.load(long_run), bucket_mb=25)).step_time_ns
    # One of the skipped step, and the next: 1 of 504 operations.
    forget_launches(tmp_path / "long" / "ddp_0.sqlite", "optimizer", 2)
    assert only(whatif(nsyspipe.load(long_run), bucket_mb=25)).step_time_ns == before


def test_buckets_that_begin_long_after_what_they_wait_for(tmp_path):
    """Launched before the forward pass, an all-reduce waits for something else: 30.4 ms long, for 10 on the link."""

    run = SINGLE.changed(transfer=(10 * MS,))
    reports = run.write(tmp_path)
    for rank in range(2):
        launch_first(tmp_path / f"ddp_{rank}.sqlite", NCCL, every=10 * MS)
    found = {one.id: one.refused for one in whatif(nsyspipe.load(reports)).scenarios}
    assert found["bucket-25"].startswith("collectives begin 3.0 times as long")
    assert found["no-wait"] is None


def launch_bound(rank, *, late=True):
    """Return a rank with steps of 12 ms: 10 ms of work, an all-reduce of 2; late ones launch half of the work 4 ms late."""
    builder = TraceBuilder(pid=1000 + rank)
    builder.env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank).session(10**18).gpu()
    length = 16 * MS if late else 12 * MS
    shift = 1000 * MS
    for step in range(5):
        host = step * length + shift if late else 10 * MS * step
        begin = shift + step * length
        builder.range(host - US if late else host, host + length - 2 * US if late else host + 9 * MS, f"step {step}")
        builder.kernel(begin, begin + 5 * MS, "first", launch=host + 1 if late else host + 100)
        gap = 4 * MS if late else 0
        second = begin + 5 * MS + gap
        builder.kernel(second, second + 5 * MS, "second", launch=second - 1 if late else host + 200)
        builder.nccl(second + 5 * MS, second + 7 * MS, launch=second + US if late else host + 300)
    return builder
