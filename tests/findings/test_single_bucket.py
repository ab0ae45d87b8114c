"""Rule single-bucket: one all-reduce takes nearly all of communication, and nothing hides it."""

from __future__ import annotations

import pytest

from nsyspipe.findings.single_bucket import single_bucket
from tests.findings.make import collective, evidence, fired, phase, silent, step, steps

# Rank 0 starts its all-reduce at 500, rank 1 at 520, both end at 800: exposed 300 and 280, waiting
# 20 and 0. So 290 are exposed per step, 10 of them waiting, 280 transfer.
ROWS = [step(0, exposed=300, wait=20), step(1, exposed=280)]
ONE = collective(1, (500, 520), 800)


def backward(*compute):
    return [phase("backward", rank, compute_ns=own) for rank, own in enumerate(compute)]


def test_what_backward_could_hide_is_the_saving():
    found = fired(single_bucket, evidence(ROWS, ONE, phases=backward(600, 600)))
    assert found.title == "the gradients go in one all-reduce after the backward pass"
    assert found.saving_ns_per_step == 280  # of 290 exposed, 10 are waiting, which nothing hides
    assert found.evidence == {
        "collectives_per_step": 1,
        "overlap_ratio": 0,
        "exposed_comm_ns_per_step": 290,
        "transfer_ns_per_step": 280,
        "all_reduce_ns_per_step": 290,
    }


@pytest.mark.parametrize(
    ("phases", "saving"),
    [
        (backward(200, 100), 150),
        (backward(200, None), 200),
        (backward(None, None), 280),
        ([phase("forward", compute_ns=50)], 280),
        ([], 280),
    ],
    ids=["short backward", "one rank's not known", "not known", "not marked", "no phases"],
)
def test_backward_hides_no_more_than_it_computes(phases, saving):
    # Where backward is not known, any compute might hide: 700 and 720, more than there is to hide.
    assert fired(single_bucket, evidence(ROWS, ONE, phases=phases)).saving_ns_per_step == saving


def test_without_marks_all_compute_is_the_bound():
    found = fired(single_bucket, evidence([step(exposed=600)], collective(1, (0,), 600)))
    assert found.saving_ns_per_step == 400  # 600 exposed, 400 compute
    assert "backward" not in found.title + found.action
    assert found.title == "the gradients go in one all-reduce that no compute hides"


@pytest.mark.parametrize(("hidden", "fires"), [(33, True), (34, False)])
def test_a_tenth_hidden_is_no_longer_after_backward(hidden, fires):
    # 33 of 333 are 9.9 %, 34 of 334 are 10.2 %.
    given = evidence([step(exposed=300, hidden=hidden)], collective(1, (0,), 300 + hidden))
    (fired if fires else silent)(single_bucket, given)


@pytest.mark.parametrize(("exposed", "fires"), [(10, True), (9, False)])
def test_it_needs_1_percent_of_step_time(exposed, fires):
    given = evidence([step(exposed=exposed)], collective(1, (0,), exposed))
    (fired if fires else silent)(single_bucket, given)


def test_one_small_all_reduce_that_waits_holds_no_gradients():
    # The loss is averaged once per step: 295 of 300 are waiting for the other rank, 5 transfer.
    rows = [step(0, exposed=300, wait=295), step(1, exposed=5)]
    silent(single_bucket, evidence(rows, collective(1, (500, 795), 800)))


@pytest.mark.parametrize(
    ("others", "fires"),
    [
        ([5], True),
        ([5, 5], True),
        ([5, 5, 5], False),
        ([15], True),
        ([16], False),
    ],
    ids=["a loss", "loss and norm", "four all-reduces", "95 %", "less than 95 %"],
)
def test_small_all_reduces_beside_it_are_no_buckets(others, fires):
    # The large one takes 285: 285 of 300 is 95 %, of 301 less.
    rows = collective(1, (0,), 285)
    for seq, length in enumerate(others, start=1):
        rows += collective(1, (400 * seq,), 400 * seq + length, seq=seq)
    given = evidence([step(exposed=285 + sum(others))], rows)
    (fired if fires else silent)(single_bucket, given)


def test_fsdp_with_an_all_reduced_norm_has_no_bucket():
    rows = collective(1, (0,), 250, kind="all_gather")
    silent(single_bucket, evidence([step(exposed=300)], rows + collective(1, (400,), 450)))


def test_an_all_reduce_in_one_step_of_four_is_still_one_bucket():
    # Gradient accumulation under no_sync(): 300 in step 4, so 75 per step.
    rows = [step(0, number, exposed=300 if number == 4 else 0) for number in range(1, 5)]
    found = fired(single_bucket, evidence(rows, collective(4, (0,), 300)))
    assert found.saving_ns_per_step == 75
    assert found.evidence["all_reduce_ns_per_step"] == 75


def test_waiting_that_is_not_known_may_all_be_transfer():
    rows = [one | {"wait_ns": None, "exposed_wait_ns": None, "transfer_ns": None} for one in ROWS]
    assert fired(single_bucket, evidence(rows, ONE)).saving_ns_per_step == 290


@pytest.mark.parametrize(
    "rows",
    [steps(2), [step(comm_ns=None, exposed_comm_ns=None)], [step(wall=0)]],
    ids=["none", "not recorded", "a window without length"],
)
def test_without_communication_there_is_nothing_to_say(rows):
    silent(single_bucket, evidence(rows))


def test_communication_of_which_nothing_belongs_to_a_step_is_no_bucket():
    silent(single_bucket, evidence([step(exposed=300)]))


def test_without_any_compute_nothing_could_hide_it():
    rows = [step(0, exposed=300, wait=20, compute_ns=0), step(1, exposed=280, compute_ns=0)]
    silent(single_bucket, evidence(rows, ONE))
