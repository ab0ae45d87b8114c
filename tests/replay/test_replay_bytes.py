"""How large the gradients are: where the capture says it, and where a user has to."""

from __future__ import annotations

import pytest

from nsyspipe.errors import OptionError
from tests.build.ddp_run import MIB, MS, US
from tests.build.make_replay import OVERHEAD, SINGLE, asked, first_of, only, refusal

VIEW = SINGLE.changed(has_copies=False)


@pytest.fixture
def ask(tmp_path):
    def answer(run, **changes):
        return asked(tmp_path / "run", run, **changes)

    return answer


def test_without_copies_bytes_have_to_be_given(ask):
    assert "--gradient-bytes N" in refusal(ask(VIEW, bucket_mb=25))
    assert "--gradient-bytes N" in refusal(ask(VIEW, link="shm"))


def test_given_bytes_are_spread_by_the_kernels_that_scale(ask):
    end = 15_100 * US + first_of(4) + 4 * OVERHEAD + (80 * MS - OVERHEAD)
    found = only(ask(VIEW, bucket_mb=25, gradient_bytes=104 * MIB))
    assert found.step_time_ns == pytest.approx(end + 4 * MS, abs=US)
    assert found.assumptions[0] == (
        "gradients of 109,051,904 bytes per step as given: 27,262,976 gradients of 4 bytes, as they are sent"
    )
    assert "estimates" in found.assumptions[1]


def test_gradients_that_a_hook_halved_show_as_twice_as_many(ask):
    found = only(ask(VIEW.changed(datatype="bf16"), no_wait=True, gradient_bytes=104 * MIB))
    assert ": 54,525,952 gradients of 2 bytes, as they are sent" in found.assumptions[0]


def test_without_a_type_nothing_is_said_of_it(ask):
    found = only(ask(VIEW.changed(datatype="any"), no_wait=True, gradient_bytes=104 * MIB))
    assert found.assumptions[0] == "gradients of 109,051,904 bytes per step as given"


def test_given_bytes_change_nothing_by_themselves(ask):
    plain, given = ask(VIEW), ask(VIEW, gradient_bytes=104 * MIB)
    assert {one.id for one in plain.scenarios} == {one.id for one in given.scenarios}
    by_id = {one.id: one for one in given.scenarios}
    assert all(
        one.step_time_ns == by_id[one.id].step_time_ns
        for one in plain.scenarios
        if one.id in ("no-wait", "gradient-bf16")
    )


def test_bytes_that_no_link_carries_are_refused(tmp_path):
    # 104 MiB in 0.2 ms were 545 GB/s, and NVLink between two H200 gives 450.
    run = VIEW.changed(transfer=(200 * US,), datatype="bf16")
    with pytest.raises(OptionError, match="545 GB/s cannot be") as raised:
        asked(tmp_path / "run", run, no_wait=True, gradient_bytes=104 * MIB)
    assert raised.value.found == "all-reduces of bf16"
    found = asked(tmp_path / "run", run, no_wait=True, gradient_bytes=52 * MIB)
    assert only(found).step_time_ns


def test_no_copies_cannot_be_left_out(ask):
    assert "no copies between buckets and gradients" in refusal(ask(VIEW, no_grad_copy=True))


def test_bytes_that_nccl_says_are_as_good(ask):
    end = 15_100 * US + first_of(4) + 4 * OVERHEAD + (80 * MS - OVERHEAD)
    found = only(ask(VIEW.changed(has_payloads=True), bucket_mb=25))
    assert found.step_time_ns == pytest.approx(end + 4 * MS, abs=US)


@pytest.mark.parametrize(
    ("run", "begin"),
    [
        (SINGLE.changed(scales_alike=False), 10 * MS),
        # Not marked, backward is taken for the last two thirds of what leads up to it.
        (SINGLE.changed(scales_alike=False, has_phases=False), 30_400 * US / 3),
    ],
)
def test_gradients_that_were_not_seen_become_ready_evenly(ask, run, begin):
    # Of 104 MiB in 512 parts the first 124 fill a bucket of 25; from then on the link is busy. The last of five
    # buckets holds what is left, 16 parts; its copies begin before: they are as good as over.
    ready = begin + (30_400 * US - begin) * 124 / 512
    end = ready + first_of(4) + 5 * OVERHEAD + (80 * MS - OVERHEAD)
    found = only(ask(run, bucket_mb=25))
    assert found.step_time_ns == pytest.approx(end + 4 * MS, abs=150 * US)
    assert found.high_ns - found.low_ns > 5 * MS  # they may have been ready earlier, or later


@pytest.mark.parametrize(("run", "share"), [(SINGLE, 0.89), (SINGLE, 4), (VIEW.changed(has_payloads=True), 1.11)])
def test_bytes_that_contradict_the_capture_are_refused(ask, run, share):
    with pytest.raises(OptionError) as raised:
        ask(run, no_wait=True, gradient_bytes=share * 104 * MIB)
    assert "the capture says 109,051,904 bytes" in raised.value.problem
    assert f"{share * 104 * MIB:,.0f}" in raised.value.subject
    assert "parameters x 4 bytes" in raised.value.fix


@pytest.mark.parametrize("share", [0.91, 1.09])
def test_bytes_that_nearly_agree_are_taken_and_told(ask, share):
    found = only(ask(SINGLE, no_wait=True, gradient_bytes=share * 104 * MIB))
    assert f"{share * 104 * MIB:,.0f} bytes per step as given" in found.assumptions[0]


def test_bytes_that_were_not_given_are_not_told(ask):
    assert not any("as given" in text for text in only(ask(SINGLE, bucket_mb=25)).assumptions)
