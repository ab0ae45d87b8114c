"""The replay against runs of which every time is known: what each change brings is worked out by hand."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.replay.answer import whatif
from nsyspipe.replay.knobs import LINKS
from tests.build.ddp_run import MIB, MS, US, Ddp
from tests.build.make_replay import OVERHEAD, SINGLE, STEP, WORK, asked, first_of, only, refusal


@pytest.fixture
def ask(tmp_path):
    def answer(run, **changes):
        return asked(tmp_path / "run", run, **changes)

    return answer


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
    by_link, by_rate = ask(SINGLE, link="shm"), ask(SINGLE, bandwidth="25GB/s")
    assert only(by_link).step_time_ns == only(by_rate).step_time_ns
    # What was measured is as sure as a user, a data sheet less.
    assert only(by_link).high_ns == only(by_rate).high_ns
    sheet = LINKS["roce-100"].bus_bytes_per_s
    by_sheet, by_user = ask(SINGLE, link="roce-100"), ask(SINGLE, bandwidth=sheet)
    assert only(by_sheet).high_ns > only(by_user).high_ns
    assert "shm: bus bandwidth 25 GB/s within 10 %, measured" in by_link.scenarios[0].assumptions[0]


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
    # 30 us + (80 ms - 30 us) / 4; the first is beside work. Then the last bucket's copy and the optimizer.
    end = 15_100 * US + first_of(4) + 4 * OVERHEAD + (80 * MS - OVERHEAD)
    found = only(ask(SINGLE, bucket_mb=25))
    assert found.step_time_ns == pytest.approx(end + 100 * US + 4 * MS, abs=US)
    assert "the copies and kernels of each" in found.assumptions[0]


def test_a_bucket_that_holds_all_changes_nothing(ask):
    assert only(ask(SINGLE, bucket_mb=1000)).step_time_ns == pytest.approx(STEP, abs=US)


def test_four_buckets_become_one(ask):
    # 20 ms each from 15.1 ms on; as one it begins at 30.4 ms and saves three overheads. That the 15.3 ms beside
    # communication were slowed by 3 %, and each of their six operations by 6.5 us, is assumed.
    four = SINGLE.changed(buckets=(1,) * 4, transfer=(20 * MS,) * 4)
    found = ask(four, bucket_mb=1000)
    assert found.step_time_ns == 15_100 * US + 80 * MS + 400 * US + 4 * MS
    slowed = (0.03 * 15_300 * US + 6 * 6_500) / 1.03
    assert only(found).step_time_ns == pytest.approx(STEP - 3 * OVERHEAD - slowed, rel=0.001)
    assert only(found).high_ns > STEP


def test_changes_combine(ask):
    end = 15_100 * US + first_of(4) + 4 * OVERHEAD + (80 * MS - OVERHEAD)
    found = only(ask(SINGLE, bucket_mb=25, no_grad_copy=True))
    assert found.step_time_ns == pytest.approx(end + 4 * MS, abs=US)
    assert found.id == "custom"
    assert found.knobs == {"bucket_mb": 25, "no_grad_copy": True}
    assert found.label == "bucket_cap_mb=25, gradient_as_bucket_view=True"


def test_perfect_overlap_is_no_faster_than_the_communication(ask):
    # 80 ms on the link are more than 34.8 ms of work, slowed or not.
    assert only(ask(SINGLE, perfect_overlap=True)).step_time_ns == pytest.approx(80 * MS)


def test_perfect_overlap_costs_what_communication_slows(ask):
    # 10 ms beside 34.8 ms of work, which they slow by 3 % and 6.5 us per operation (14 in 34.8 ms): 10 ms x c / (1 + c).
    found = only(ask(SINGLE.changed(transfer=(10 * MS,)), perfect_overlap=True))
    slow = 0.03 + 14 * 6.5 / 34_800
    assert found.step_time_ns == pytest.approx(WORK + slow / (1 + slow) * 10 * MS, abs=20 * US)
    assert found.low_ns == pytest.approx(WORK, abs=US)  # nothing is faster than without communication


def test_perfect_overlap_does_not_hide_the_casts(ask):
    # As above with half the bytes: 30 us + 4.985 ms, and twice what the copies take on top of the work.
    run = SINGLE.changed(transfer=(10 * MS,))
    found = only(ask(run, perfect_overlap=True, gradient_dtype="bf16"))
    work, hidden = WORK + 800 * US, 5_015 * US
    assert work + 0.03 * hidden < found.step_time_ns < work + 0.035 * hidden


def test_no_range_is_narrower_than_the_model_is_wrong(ask):
    # Steps that are all equal, and nothing that is not known: 2 % for the model.
    found = only(ask(SINGLE, no_wait=True))
    assert found.low_ns == pytest.approx(0.98 * STEP, abs=US)
    assert found.high_ns == pytest.approx(1.02 * STEP, abs=US)


def test_a_large_gradient_that_is_ready_last_stays_behind_the_backward_pass(ask):
    # 10, 10, 10 and 90 MiB of 120: the last one alone takes 3/4 of the transfer, after everything.
    run = SINGLE.changed(gradients=(10 * MIB, 10 * MIB, 10 * MIB, 90 * MIB), copy=10 * US, scale=10 * US)
    found = only(ask(run, bucket_mb=25))
    ready = 10 * MS + 4 * 5 * MS + 120 * US
    last = OVERHEAD + (80 * MS - OVERHEAD) * 3 / 4
    # Gradients 0 to 2 fill the first bucket: ready at 25.03 ms and over by 45 ms, later than the last one is ready.
    first = 25_030 * US + first_of(4) + OVERHEAD + (80 * MS - OVERHEAD) / 4
    assert first > ready
    assert found.step_time_ns == pytest.approx(first + last + 90 * US + 4 * MS, abs=3 * US)


def test_kernels_like_those_of_the_gradients_do_not_confuse(tmp_path):
    # A model may scale other things by the same kernel: here before each layer, for 7 us.
    class Confusing(Ddp):
        def _step(self, builders, step, free):
            for builder, at in zip(builders, free, strict=True):
                launch = step * 10 * MS + 500 * US
                builder.kernel(at + 10 * MS + 1, at + 10 * MS + 7 * US, "scale_gradient", launch=launch)
            return super()._step(builders, step, free)

    plain, confusing = (kind(launch_every=100 * US) for kind in (Ddp, Confusing))
    found = [
        only(whatif(nsyspipe.load(run.write(tmp_path / name)), bucket_mb=25)).step_time_ns
        for name, run in (("plain", plain), ("confusing", confusing))
    ]
    assert found[0] == pytest.approx(found[1], rel=0.001)


ACCUMULATED = SINGLE.changed(n_micro_batches=3)


def test_each_micro_batch_waits_for_its_own_collectives(ask):
    # One rank is late in all of them. A TB/s, which is a kB in a ns, leaves 109 us of each of the three transfers.
    found = ask(ACCUMULATED.changed(late=(0, 3 * MS)), bandwidth=1e12)
    assert found.identity_error_pct < 0.01
    assert found.limit_step_time_ns == pytest.approx(3 * (WORK - 4 * MS + 3 * MS) + 4 * MS)
    moved = sum(ACCUMULATED.gradients) / 1000
    assert only(found).step_time_ns == pytest.approx(found.limit_step_time_ns + 3 * (OVERHEAD + moved), abs=US)


def test_the_copies_of_every_micro_batch_are_left_out(ask):
    found = ask(ACCUMULATED, no_grad_copy=True)
    assert found.step_time_ns - only(found).step_time_ns == 3 * 4 * 100 * US


def test_buckets_of_several_micro_batches_are_not_told_apart(ask):
    assert refusal(ask(ACCUMULATED, bucket_mb=25)).startswith(
        "gradients are all-reduced 3 times per step, with other work between"
    )


def test_a_slower_link_takes_what_its_bandwidth_says_of_all_buckets(ask):
    # Four of 0.5 ms are 104 MiB in 2 ms. Over a hundredth of it each takes 50 ms; the first begins at 15.1 ms. That the
    # copies waited for one bucket each, the capture does not show: all of them follow the last.
    run = SINGLE.changed(buckets=(1,) * 4, transfer=(500 * US,) * 4)
    found = only(ask(run, bandwidth=104 * MIB / 0.2))
    end = 15_100 * US + 4 * 50 * MS
    assert found.step_time_ns == pytest.approx(end + 400 * US + 4 * MS, abs=100 * US)


@pytest.mark.parametrize(
    ("changes", "has_copies"),
    [({"bucket_mb": 25}, True), ({"bucket_mb": 26}, False), ({"bandwidth": 104 * MIB / 0.08}, True)],
)
def test_what_a_run_has_already_changes_nothing(ask, changes, has_copies):
    run = SINGLE.changed(buckets=(1,) * 4, transfer=(20 * MS,) * 4, has_copies=has_copies)
    found = ask(run, **changes, gradient_bytes=104 * MIB)
    assert only(found).step_time_ns == pytest.approx(found.step_time_ns, rel=1e-12)


def test_a_link_that_the_run_reaches_changes_nothing(ask):
    # 104 MiB in 4.4 ms are 24.8 GB/s; through host memory 25 are usual.
    found = ask(SINGLE.changed(transfer=(4_400 * US,)), link="shm")
    assert only(found).step_time_ns == pytest.approx(found.step_time_ns, rel=1e-12)
    assert "shm: the captured 24.78 GB/s are what it gives" in only(found).assumptions[0]


@pytest.mark.parametrize("size", [1e-300])
def test_the_smallest_bucket_holds_one_gradient(ask, size):
    by_cap, one_each = (only(ask(SINGLE, bucket_mb=mib)).step_time_ns for mib in (size, 25))
    assert by_cap == one_each


def test_very_many_buckets_are_refused(ask):
    run = SINGLE.changed(scales_alike=False, has_copies=False)
    reason = refusal(ask(run, bucket_mb=1e-7, gradient_bytes=104 * MIB))
    assert reason.startswith("512 buckets per step")
    assert "the run has 1" in reason


def test_no_range_begins_below_the_step_without_communication(ask):
    for run in (SINGLE.changed(transfer=(MS,)), SINGLE.changed(late=(0, MS))):
        found = ask(run)
        assert found.limit_step_time_ns
        for one in found.scenarios:
            if one.refused is None and one.step_time_ns >= found.limit_step_time_ns:
                assert one.low_ns >= found.limit_step_time_ns
