"""Rule comm-bound: exposed communication, by the phase that launched it."""

from __future__ import annotations

import pytest

from nsyspipe.findings.comm_bound import comm_bound
from tests.findings.make import evidence, fired, kernel, phase, silent, step, steps


def test_exposed_communication_is_all_that_hiding_it_could_save():
    # Exposed 100 and 200 of 1000: 150 per step, 15 %. Waiting 20 and 0: 10. Without waiting 80 and 200: at most 200
    # on the rank with most, 140 in the mean. The phases launched
    # 90 + 180 of it in backward and 10 + 0 in forward; 300 - 280 = 20 belongs to no phase.
    rows = [step(0, exposed=100, hidden=50, wait=20), step(1, exposed=200)]
    phases = [
        phase("backward", 0, exposed_comm_ns=90),
        phase("forward", 0, exposed_comm_ns=10),
        phase("optimizer", 0, exposed_comm_ns=0),
        phase("backward", 1, exposed_comm_ns=180),
    ]
    found = fired(comm_bound, evidence(rows, phases=phases))
    # Rank 1 has most of it: 200, where rank 0 has 80 and of its 50 hidden 50 x 0.8 / 1.8 at most.
    assert found.saving_ns_per_step == 200
    assert found.title == "communication is exposed (waiting apart), launched in backward"
    assert found.evidence == {
        "exposed_comm_ns_per_step": 150,
        "exposed_comm_share": 0.15,
        "exposed_transfer_ns_per_step": 140,
        "slowdown_ratio": None,
        "assumed_slowdown_ratio": pytest.approx(0.8),
        "wait_ns_per_step": 10,
        "exposed_wait_ns_per_step": 10,
        "exposed_comm_ns_per_step_by_phase": {"backward": 135, "forward": 5, "no phase": 10},
    }


@pytest.mark.parametrize(("exposed", "fires"), [((50, 50), True), ((50, 49), False)])
def test_it_needs_5_percent_of_step_time(exposed, fires):
    given = evidence([step(rank, exposed=own) for rank, own in enumerate(exposed)])
    (fired if fires else silent)(comm_bound, given)


def test_hidden_communication_is_no_matter():
    silent(comm_bound, evidence(steps(2, hidden=900)))


def test_a_run_without_phases_says_that_none_launched_it():
    found = fired(comm_bound, evidence(steps(1, exposed=400)))
    assert found.evidence["exposed_comm_ns_per_step_by_phase"] == {"no phase": 400}
    assert found.title == "communication is exposed (waiting apart)"


def test_phases_that_make_up_all_of_it_leave_no_rounding_error():
    # 103 of three ranks; in floating point 103 / 3 is more than 101 / 3 + 2 / 3.
    rows = [step(rank, wall=100, exposed=exposed) for rank, exposed in enumerate((50, 50, 3))]
    phases = [phase("backward", 0, exposed_comm_ns=101), phase("forward", 1, exposed_comm_ns=2)]
    found = fired(comm_bound, evidence(rows, phases=phases))
    assert list(found.evidence["exposed_comm_ns_per_step_by_phase"]) == ["backward", "forward"]


def test_phases_of_two_streams_may_add_up_to_more():
    # Two collectives of 60 side by side, launched by two phases: exposed once, 60 in each.
    phases = [phase(name, exposed_comm_ns=60) for name in ("backward", "forward")]
    found = fired(comm_bound, evidence([step(exposed=60)], phases=phases))
    assert found.saving_ns_per_step == 60
    assert found.evidence["exposed_comm_ns_per_step_by_phase"] == {"backward": 60, "forward": 60}


def test_steps_without_communication_count_too():
    # Gradient accumulation: 200 of 1000 in one step of four is 50 per step.
    rows = [step(0, number, exposed=200 if number == 4 else 0) for number in range(1, 5)]
    assert fired(comm_bound, evidence(rows)).saving_ns_per_step == 50


@pytest.mark.parametrize(
    "rows",
    [
        steps(2),
        [step(exposed_comm_ns=None, comm_ns=None)],
        [step(0, exposed=300), step(1, exposed_comm_ns=None)],
        [step(wall=0)],
    ],
    ids=["none", "not recorded", "not recorded on one rank", "windows without length"],
)
def test_what_is_not_there_is_not_exposed(rows):
    silent(comm_bound, evidence(rows))


def test_waiting_that_is_not_known_is_null():
    found = fired(comm_bound, evidence([step(exposed=300, wait_ns=None, transfer_ns=None)]))
    assert found.evidence["wait_ns_per_step"] is None
    assert found.title.startswith("communication is exposed (waiting included, which is not known)")
    assert found.saving_ns_per_step == 300


def test_exposed_waiting_is_not_its_business():
    # 300 of 1000 exposed, 260 of it waiting: 4 %.
    silent(comm_bound, evidence([step(0, exposed=300, wait=260), step(1, exposed=40)]))


def test_what_it_slows_down_goes_too():
    # 40 kernels take 120 instead of 100 each: c = 0.2. Of 60 hidden 60 x 0.2 / 1.2 = 10.
    slowed = [kernel("gemm", 40, 4800, 4000)]
    found = fired(comm_bound, evidence([step(exposed=100, hidden=60)], kernels=slowed))
    assert found.saving_ns_per_step == pytest.approx(110)
    assert found.evidence["slowdown_ratio"] == pytest.approx(0.2)


def test_where_the_slowdown_is_not_known_the_bound_takes_the_most_that_is_assumed():
    # Few of the kernels beside communication can be compared, 500 of 40500, by 2.4: of 90 hidden 90 x 0.8 / 1.8 = 40.
    alone = [kernel("gemm", 40, 500, 147), kernel("other", 0, 0, 0) | {"overlapped_ns": 40_000}]
    found = fired(comm_bound, evidence([step(exposed=100, hidden=90)], kernels=alone))
    assert found.saving_ns_per_step == pytest.approx(140)
    assert found.evidence["slowdown_ratio"] is None
    assert found.evidence["assumed_slowdown_ratio"] == pytest.approx(0.8)


def test_waiting_for_the_others_profilers_does_not_count():
    # The only step is the capture's first: of 200 exposed 150 are waiting, and 50 are 5 % of 1000.
    found = fired(comm_bound, evidence(steps(2, 0, exposed=200, wait=150)))
    assert (found.saving_ns_per_step, found.evidence["exposed_comm_ns_per_step"]) == (50, 200)
    silent(comm_bound, evidence(steps(2, 0, exposed=200, wait=151)))


def test_where_ranks_are_missing_waiting_is_not_known():
    # 300 of 1000 exposed, 260 of it waiting for the other that is there; a third rank may be later than both.
    rows = [step(0, exposed=300, wait=260), step(1, exposed=40)]
    found = fired(comm_bound, evidence(rows, world_size=3))
    assert found.title == "communication is exposed (waiting included, which is not known)"
    assert found.saving_ns_per_step == 300
    assert found.evidence["exposed_transfer_ns_per_step"] is None
