"""The replay against runs of which every time is known: what each change brings is worked out by hand."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.replay.ask import whatif
from tests.build.ddp_run import MIB, MS, US, Ddp
from tests.build.nccl_layouts import COMM_INIT, NCCL_2_21
from tests.build.trace import TraceBuilder

# Each step: forward 10, four times layer 5 and scaling 0.1, all-reduce 80, four copies of 0.1, optimizer 4 ms.
SINGLE = Ddp()
WORK = 10 * MS + 4 * (5 * MS + 100 * US) + 4 * 100 * US + 4 * MS
STEP = WORK + 80 * MS
# What an all-reduce takes besides its bytes, as the replay has it.
OVERHEAD = 30 * US


@pytest.fixture
def ask(tmp_path):
    def answer(run, **changes):
        return whatif(nsyspipe.load(run.write(tmp_path / "run")), **changes)

    return answer


def only(found):
    (scenario,) = found.scenarios
    assert scenario.refused is None, scenario.refused
    assert scenario.low_ns <= scenario.step_time_ns <= scenario.high_ns
    assert scenario.throughput_steps_per_s == pytest.approx(1e9 / scenario.step_time_ns)
    gain = 100 * (found.step_time_ns - scenario.step_time_ns) / found.step_time_ns
    assert scenario.gain_pct == pytest.approx(gain)
    return scenario


def refusal(found):
    assert all(one.step_time_ns is None and one.gain_pct is None for one in found.scenarios)
    (reason,) = {one.refused for one in found.scenarios}
    return reason


def test_the_capture_and_its_limit_are_told(ask):
    found = ask(SINGLE, no_wait=True)
    assert found.step_time_ns == STEP
    assert found.limit_step_time_ns == pytest.approx(WORK, abs=US)
    assert found.identity_error_pct == pytest.approx(0, abs=1e-9)
    assert found.n_steps == 3  # of five: the first is skipped, the last is cut off


def test_balanced_ranks_gain_nothing_by_not_waiting(ask):
    assert only(ask(SINGLE, no_wait=True)).step_time_ns == pytest.approx(STEP, abs=US)


def test_without_waiting_all_ranks_are_as_fast_as_the_faster_of_two(ask):
    found = ask(SINGLE.changed(late=(0, 20 * MS)), no_wait=True)
    assert found.step_time_ns == STEP + 20 * MS
    assert only(found).step_time_ns == pytest.approx(STEP, abs=US)


def test_without_waiting_the_middle_rank_stands_for_all(ask):
    # Of four ranks the second fastest: it is late by 1 ms.
    run = SINGLE.changed(n_ranks=4, late=(9 * MS, 0, MS, 30 * MS))
    assert only(ask(run, no_wait=True)).step_time_ns == pytest.approx(STEP + MS, abs=US)


def test_a_bus_twice_as_fast_halves_what_bytes_take(ask):
    # Two ranks: bus bytes are the bytes. 104 MiB in 80 ms.
    bandwidth = 2 * 104 * MIB / 0.080
    after = OVERHEAD + (80 * MS - OVERHEAD) / 2
    found = only(ask(SINGLE, bandwidth=bandwidth))
    assert found.step_time_ns == pytest.approx(WORK + after, abs=10 * US)


def test_a_link_is_its_bandwidth(ask):
    by_link, by_rate = ask(SINGLE, link="nvlink4"), ask(SINGLE, bandwidth="350GB/s")
    assert only(by_link).step_time_ns == only(by_rate).step_time_ns
    assert only(by_link).high_ns > only(by_rate).high_ns  # a table is less sure than a user
    assert (
        "nvlink4: bus bandwidth 350 GB/s within 20 %, measured"
        in by_link.scenarios[0].assumptions[0]
    )


def test_two_bytes_per_element_halve_the_transfer_and_cost_the_casts(ask):
    # Casts read and write twice what the copies do: 0.8 ms.
    after = OVERHEAD + (80 * MS - OVERHEAD) / 2 + 800 * US
    found = only(ask(SINGLE, gradient_dtype="bf16"))
    assert found.step_time_ns == pytest.approx(WORK + after, abs=US)


def test_without_copies_only_they_are_gone(ask):
    found = only(ask(SINGLE, no_grad_copy=True))
    assert found.step_time_ns == pytest.approx(STEP - 400 * US, abs=US)


def test_four_buckets_hide_all_but_the_first_layers(ask):
    # Each of 26 MiB fills a bucket of 25. The first is ready at 15.1 ms; from there on the link is busy: four times
    # 30 us + (80 ms - 30 us) / 4. Then the last bucket's copy and the optimizer.
    end = 15_100 * US + 4 * OVERHEAD + (80 * MS - OVERHEAD)
    found = only(ask(SINGLE, bucket_mb=25))
    assert found.step_time_ns == pytest.approx(end + 100 * US + 4 * MS, abs=US)
    assert "the copies and kernels of each" in found.assumptions[0]


def test_a_bucket_that_holds_all_changes_nothing(ask):
    assert only(ask(SINGLE, bucket_mb=1000)).step_time_ns == pytest.approx(STEP, abs=US)


def test_four_buckets_become_one(ask):
    # 20 ms each from 15.1 ms on; as one it begins at 30.4 ms and saves three overheads. That the 15.3 ms beside
    # communication were slowed by a tenth is assumed, since there is too little to measure it on.
    four = SINGLE.changed(buckets=(1,) * 4, transfer=(20 * MS,) * 4)
    found = ask(four, bucket_mb=1000)
    assert found.step_time_ns == 15_100 * US + 80 * MS + 400 * US + 4 * MS
    slowed = 15_300 * US * (1 - 1 / 1.101)
    assert only(found).step_time_ns == pytest.approx(STEP - 3 * OVERHEAD - slowed, rel=0.001)
    assert only(found).high_ns > STEP


def test_changes_combine(ask):
    end = 15_100 * US + 4 * OVERHEAD + (80 * MS - OVERHEAD)
    found = only(ask(SINGLE, bucket_mb=25, no_grad_copy=True))
    assert found.step_time_ns == pytest.approx(end + 4 * MS, abs=US)
    assert found.id == "custom"
    assert found.knobs == {"bucket_mb": 25, "no_grad_copy": True}
    assert found.label == "bucket_cap_mb=25, gradient_as_bucket_view=True"


def test_perfect_overlap_is_no_faster_than_the_communication(ask):
    # 80 ms on the link are more than 34.8 ms of work, slowed or not.
    assert only(ask(SINGLE, perfect_overlap=True)).step_time_ns == pytest.approx(80 * MS)


def test_perfect_overlap_costs_what_communication_slows(ask):
    # 10 ms beside 34.8 ms of work, which they slow by 10 % and 3.5 us per operation (11 in 34.8 ms, and not counted
    # the copies' time): 10 ms x c / (1 + c).
    found = only(ask(SINGLE.changed(transfer=(10 * MS,)), perfect_overlap=True))
    assert WORK + 0.09 * 10 * MS < found.step_time_ns < WORK + 0.1 * 10 * MS
    assert found.low_ns < WORK < found.high_ns


def test_a_large_gradient_that_is_ready_last_stays_behind_the_backward_pass(ask):
    # 10, 10, 10 and 90 MiB of 120: the last one alone takes 3/4 of the transfer, after everything.
    run = SINGLE.changed(
        gradients=(10 * MIB, 10 * MIB, 10 * MIB, 90 * MIB), copy=10 * US, scale=10 * US
    )
    found = only(ask(run, bucket_mb=25))
    ready = 10 * MS + 4 * 5 * MS + 120 * US
    last = OVERHEAD + (80 * MS - OVERHEAD) * 3 / 4
    # Gradients 0 to 2 fill the first bucket: ready at 25.03 ms and over by 45 ms, later than the last one is ready.
    first = 25_030 * US + OVERHEAD + (80 * MS - OVERHEAD) / 4
    assert first > ready
    assert found.step_time_ns == pytest.approx(first + last + 90 * US + 4 * MS, abs=2 * US)


def test_kernels_like_those_of_the_gradients_do_not_confuse(tmp_path):
    # A model may scale other things by the same kernel: here before each layer, for 7 us.
    class Confusing(Ddp):
        def _step(self, builders, step, free):
            for builder, at in zip(builders, free, strict=True):
                launch = step * 10 * MS + 500 * US
                builder.kernel(
                    at + 10 * MS + 1, at + 10 * MS + 7 * US, "scale_gradient", launch=launch
                )
            return super()._step(builders, step, free)

    plain, confusing = (kind(launch_every=100 * US) for kind in (Ddp, Confusing))
    found = [
        only(whatif(nsyspipe.load(run.write(tmp_path / name)), bucket_mb=25)).step_time_ns
        for name, run in (("plain", plain), ("confusing", confusing))
    ]
    assert found[0] == pytest.approx(found[1], rel=0.001)


class TestBytes:
    """Where the capture does not say how large the gradients are."""

    VIEW = SINGLE.changed(has_copies=False)

    def test_without_copies_bytes_have_to_be_given(self, ask):
        assert "--gradient-bytes N" in refusal(ask(self.VIEW, bucket_mb=25))
        assert "--gradient-bytes N" in refusal(ask(self.VIEW, link="shm"))

    def test_given_bytes_are_spread_by_the_kernels_that_scale(self, ask):
        end = 15_100 * US + 4 * OVERHEAD + (80 * MS - OVERHEAD)
        found = only(ask(self.VIEW, bucket_mb=25, gradient_bytes=104 * MIB))
        assert found.step_time_ns == pytest.approx(end + 4 * MS, abs=US)
        assert "estimates" in found.assumptions[0]

    def test_given_bytes_change_nothing_by_themselves(self, ask):
        plain, given = ask(self.VIEW), ask(self.VIEW, gradient_bytes=104 * MIB)
        assert {one.id for one in plain.scenarios} == {one.id for one in given.scenarios}
        by_id = {one.id: one for one in given.scenarios}
        assert all(
            one.step_time_ns == by_id[one.id].step_time_ns
            for one in plain.scenarios
            if one.id in ("no-wait", "gradient-bf16")
        )

    def test_no_copies_cannot_be_left_out(self, ask):
        assert "no copies between buckets and gradients" in refusal(
            ask(self.VIEW, no_grad_copy=True)
        )

    def test_bytes_that_nccl_says_are_as_good(self, ask):
        end = 15_100 * US + 4 * OVERHEAD + (80 * MS - OVERHEAD)
        found = only(ask(self.VIEW.changed(has_payloads=True), bucket_mb=25))
        assert found.step_time_ns == pytest.approx(end + 4 * MS, abs=US)

    @pytest.mark.parametrize(
        ("run", "begin"),
        [
            (SINGLE.changed(scales_alike=False), 10 * MS),
            # Not marked, backward is taken for the last two thirds of what leads up to it.
            (SINGLE.changed(scales_alike=False, has_phases=False), 30_400 * US / 3),
        ],
    )
    def test_gradients_that_were_not_seen_become_ready_evenly(self, ask, run, begin):
        # Of 104 MiB in 512 parts the first 124 fill a bucket of 25; from then on the link is busy. The last of five
        # buckets holds what is left, 16 parts; its copies begin before: they are as good as over.
        ready = begin + (30_400 * US - begin) * 124 / 512
        end = ready + 5 * OVERHEAD + (80 * MS - OVERHEAD)
        found = only(ask(run, bucket_mb=25))
        assert found.step_time_ns == pytest.approx(end + 4 * MS, abs=150 * US)
        assert found.high_ns - found.low_ns > 5 * MS  # they may have been ready earlier, or later


class TestSharded:
    """Two collectives on two streams: gathered parameters, scattered gradients."""

    @pytest.fixture
    def sharded(self, tmp_path):
        for rank in range(2):
            sharded_rank(rank).write(tmp_path / f"sharded_{rank}.sqlite")
        return nsyspipe.load(str(tmp_path / "sharded_*.sqlite"))

    def test_its_limit_is_its_work(self, sharded):
        # 2 ms gather, 10 ms work, 3 ms scatter, 1 ms work.
        found = whatif(sharded, perfect_overlap=True)
        assert found.step_time_ns == 16 * MS
        assert found.limit_step_time_ns == pytest.approx(11 * MS, abs=US)
        assert only(found).step_time_ns == pytest.approx(11 * MS, abs=US)

    def test_a_faster_link_is_answered(self, sharded):
        # Twice the bandwidth: half of 5 ms less 2 x 30 us, and those.
        own = sharded.summary()["busbw_bytes_per_s"][0].as_py()
        found = only(whatif(sharded, bandwidth=2 * own))
        assert found.step_time_ns == pytest.approx(11 * MS + 60 * US + 2470 * US, abs=2 * US)

    def test_a_slower_link_is_not(self, sharded):
        own = sharded.summary()["busbw_bytes_per_s"][0].as_py()
        assert "only faster links can be answered" in refusal(whatif(sharded, bandwidth=own / 2))

    def test_there_are_no_buckets(self, sharded):
        assert "there are no buckets" in refusal(whatif(sharded, bucket_mb=25))


class TestMenu:
    def test_it_has_every_change_and_the_largest_gain_first(self, ask):
        found = ask(SINGLE)
        ids = {one.id for one in found.scenarios}
        links = {f"link-{name}" for name in ("nvlink5", "nvlink4", "pcie5x16", "pcie4x16", "shm")}
        assert ids == links | {
            *(
                "bucket-25",
                "bucket-100",
                "no-grad-copy",
                "gradient-bf16",
                "no-wait",
                "perfect-overlap",
            ),
        }
        gains = [one.gain_pct for one in found.scenarios]
        assert gains == sorted(gains, reverse=True)

    def test_what_is_refused_comes_last(self, ask):
        found = ask(SINGLE.changed(has_copies=False))
        refused = [one.refused is not None for one in found.scenarios]
        assert refused == sorted(refused)
        assert any(refused)

    def test_its_table_has_a_row_each(self, ask):
        found = ask(SINGLE)
        table = found.table()
        assert table["id"].to_pylist() == [one.id for one in found.scenarios]
        assert table["step_time_ns"].to_pylist() == [one.step_time_ns for one in found.scenarios]


class TestSteps:
    def test_few_steps_are_a_warning(self, ask):
        found = ask(SINGLE.changed(n_steps=4), no_wait=True)
        (row,) = [one for one in found.problems if one["code"] == "few-steps-to-replay"]
        assert row["severity"] == "warning"
        assert row["message"].startswith("the answers rest on 2 steps")

    def test_enough_steps_are_none(self, ask):
        codes = [one["code"] for one in ask(SINGLE, no_wait=True).problems]
        assert "few-steps-to-replay" not in codes

    def test_only_the_first_step_is_no_step(self, ask):
        assert "no complete step after the first" in refusal(ask(SINGLE.changed(n_steps=2)))

    def test_only_a_cut_off_step_is_no_step(self, ask):
        assert "no step is complete" in refusal(ask(SINGLE.changed(n_steps=1)))


class TestRefusals:
    def test_one_rank_has_nothing_to_change(self, ask):
        assert "1 rank: nothing is communicated" in refusal(ask(SINGLE.changed(n_ranks=1)))

    def test_gradients_of_two_bytes_cannot_be_halved(self, ask):
        reason = refusal(ask(SINGLE.changed(datatype="bf16"), gradient_dtype="fp16"))
        assert reason == "gradients are sent as bf16: only f32 ones can be halved"

    def test_a_run_that_waits_for_launches(self, ask, tmp_path):
        builders = [launch_bound(rank) for rank in range(2)]
        for rank, builder in enumerate(builders):
            builder.write(tmp_path / f"slow_{rank}.sqlite")
        found = whatif(nsyspipe.load(str(tmp_path / "slow_*.sqlite")))
        assert refusal(found).startswith("launch- or input-bound: GPUs stand idle")

    def test_a_straggler_that_waits_for_launches_can_be_balanced(self, tmp_path):
        for rank in range(2):
            launch_bound(rank, late=rank == 1).write(tmp_path / f"late_{rank}.sqlite")
        run = nsyspipe.load(str(tmp_path / "late_*.sqlite"))
        assert "--no-wait" in refusal(whatif(run, gradient_dtype="bf16"))
        # Rank 0's own work is 10 ms, then the all-reduce of 2 ms.
        assert only(whatif(run, no_wait=True)).step_time_ns == pytest.approx(12 * MS, rel=0.01)

    def test_compute_on_the_stream_of_the_communication(self, tmp_path):
        for rank in range(2):
            builder = launch_bound(rank, late=False)
            builder.kernel(
                1000 * MS + 30 * MS, 1000 * MS + 31 * MS, "orthogonalise", launch=15 * MS, stream=19
            )
            builder.write(tmp_path / f"shared_{rank}.sqlite")
        found = whatif(nsyspipe.load(str(tmp_path / "shared_*.sqlite")))
        assert "compute kernels run on the stream of the communication" in refusal(found)

    def test_two_communicators(self, tmp_path):
        for rank in range(2):
            builder = launch_bound(rank, late=False)
            for step in range(5):
                at = 1000 * MS + 12 * MS * step + MS
                builder.nccl(at, at + MS, launch=10 * MS * step + 500, stream=23)
            builder.write(tmp_path / f"two_{rank}.sqlite")
        found = whatif(nsyspipe.load(str(tmp_path / "two_*.sqlite")))
        assert "several communicators" in refusal(found)

    def test_collectives_that_do_not_match(self, tmp_path):
        for rank in range(2):
            builder = launch_bound(rank, late=False)
            if rank:
                builder.nccl(1000 * MS + 33 * MS, 1000 * MS + 34 * MS, launch=20 * MS + 500)
            builder.write(tmp_path / f"odd_{rank}.sqlite")
        assert "could not be matched" in refusal(
            whatif(nsyspipe.load(str(tmp_path / "odd_*.sqlite")))
        )


def launch_bound(rank, *, late=True):
    """Return a rank with steps of 12 ms: 10 ms of work, an all-reduce of 2; late ones launch half of the work 4 ms late."""
    builder = TraceBuilder(pid=1000 + rank)
    builder.env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank).session(10**18).gpu()
    length = 16 * MS if late else 12 * MS
    shift = 1000 * MS
    for step in range(5):
        host = step * length + shift if late else 10 * MS * step
        begin = shift + step * length
        builder.range(
            host - US if late else host,
            host + length - 2 * US if late else host + 9 * MS,
            f"step {step}",
        )
        builder.kernel(begin, begin + 5 * MS, "first", launch=host + 1 if late else host + 100)
        gap = 4 * MS if late else 0
        second = begin + 5 * MS + gap
        builder.kernel(second, second + 5 * MS, "second", launch=second - 1 if late else host + 200)
        builder.nccl(second + 5 * MS, second + 7 * MS, launch=second + US if late else host + 300)
    return builder


def sharded_rank(rank):
    """Return a rank that gathers (2 ms), works (10), scatters (3), works (1), in steps of 16 ms."""
    builder = TraceBuilder("3.25.0 2026.2.1 mfu", pid=1000 + rank).domain("NCCL", 1)
    builder.env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank).session(10**18).gpu()
    init = {"NCCL communicator ID": 5, "No. of ranks": 2, "Rank": rank, "CUDA device": 0}
    builder.nccl_payload(-1000, "ncclCommInitRankConfig", init, COMM_INIT)
    for step in range(5):
        host, at = step * 10 * MS, 1000 * MS + step * 16 * MS
        builder.range(host, host + 9 * MS, f"step {step}")
        for number, (call, begin, end) in enumerate(
            (("AllGather", 0, 2), ("ReduceScatter", 12, 15))
        ):
            launch = host + (1 + 2 * number) * 1000
            name = f"ncclDevKernel_{call}_RING_LL"
            builder.nccl(
                at + begin * MS, at + end * MS, launch=launch, stream=24 + number, name=name
            )
            fields = {"NCCL communicator ID": 5, "Message size [bytes]": 1 << 20}
            builder.nccl_payload(launch - 100, f"nccl{call}", fields, NCCL_2_21, end=launch + 100)
        builder.kernel(at + 2 * MS, at + 12 * MS, "work", launch=host + 2000)
        builder.kernel(at + 15 * MS, at + 16 * MS, "optimizer", launch=host + 4000)
    return builder
