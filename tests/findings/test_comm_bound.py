"""Communication that is exposed, slows compute, or has no use."""

from __future__ import annotations

import pytest

from nsyspipe.findings.comm_bound import comm_bound
from nsyspipe.findings.comm_slows_compute import comm_slows_compute
from nsyspipe.findings.ddp_single_gpu import ddp_single_gpu
from tests.findings.make import evidence, fired, kernel, not_judged, phase, silent, step, steps


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


def run(*kernels, hidden=220, **figures):
    return evidence(steps(2, hidden=hidden, **figures), kernels=kernels)


def test_overlapped_compute_would_be_shorter_by_what_kernels_are_slower():
    # 1100 under communication for 1000 without it: c = 0.1, at most 0.13. Of 226 overlapped 226 x 0.13 / 1.13 = 26 are lost.
    found = fired(
        comm_slows_compute,
        run(
            kernel("gemm", 10, 150, 100, rank=0),
            kernel("gemm", 10, 150, 100, rank=1),
            kernel("norm", 30, 800, 800),
            kernel("alone", 0, 0, 0),
            hidden=226,
        ),
    )
    assert found.saving_ns_per_step == pytest.approx(26)
    assert found.evidence["slowdown_ratio"] == pytest.approx(0.1)
    assert found.evidence["n_kernels_compared"] == 50
    assert found.evidence["overlap_compute_ns_per_step"] == 226
    assert found.evidence["slowdown_ratio_by_kernel"] == {"gemm": 0.5, "norm": 0}


def test_kernels_that_begin_later_count_too_on_the_rank_with_most():
    rows = [step(rank, hidden=226, comm_delay_ns=10 * (1 + rank)) for rank in range(2)]
    found = fired(comm_slows_compute, evidence(rows, kernels=[kernel("gemm", 30, 1100, 1000)]))
    assert found.saving_ns_per_step == pytest.approx(26 + 1.3 * 20)
    assert found.evidence["comm_delay_ns_per_step"] == 15


def test_five_kernels_are_shown_by_what_they_lose():
    kernels = [kernel(f"k{number}", 10, 1000 + 100 * number, 1000) for number in range(1, 8)]
    shown = fired(comm_slows_compute, run(*kernels)).evidence["slowdown_ratio_by_kernel"]
    assert list(shown) == ["k7", "k6", "k5", "k4", "k3"]


@pytest.mark.parametrize(
    ("slowed", "hidden", "fires"),
    [
        (1020, 220, True),  # 2 %: 220 x 0.02 / 1.02 = 4.3
        (1019, 220, False),
        (900, 220, False),
        (1100, 28, True),  # 28 x 0.1 / 1.1 = 2.55, of 1000 more than 0.25 %
        (1100, 27, False),  # 2.45
        (1200, 20, True),  # 2 % overlapped: 20 x 0.2 / 1.2 = 3.3
        (1200, 19, False),
    ],
)
def test_it_needs_2_percent_that_cost_a_four_hundredth_of_step_time(slowed, hidden, fires):
    given = run(kernel("gemm", 30, slowed, 1000), hidden=hidden)
    (fired if fires else silent)(comm_slows_compute, given)


@pytest.mark.parametrize(("n", "is_judged"), [(30, True), (29, False)])
def test_fewer_than_30_kernels_prove_nothing(n, is_judged):
    given = run(kernel("gemm", n, 1100, 1000))
    (fired if is_judged else not_judged)(comm_slows_compute, given)


def test_a_run_without_equal_kernels_cannot_be_judged():
    assert not_judged(comm_slows_compute, run(kernel("gemm", 0, 0, 0))).startswith("only 0 kernels")
    assert not_judged(comm_slows_compute, run()).startswith("only 0 kernels")


@pytest.mark.parametrize(
    "given",
    [
        evidence(steps(2), kernels=[kernel("gemm", 50, 2000, 1000)]),
        evidence(steps(2, exposed=500), kernels=[kernel("gemm", 50, 2000, 1000)]),
        evidence([step(comm_ns=None, overlap_compute_ns=None)]),
        evidence([step(hidden=500), step(1, overlap_compute_ns=None)]),
        evidence([step(wall=0)]),
    ],
    ids=["no communication", "none hidden", "not recorded", "not on one rank", "no time"],
)
def test_without_overlap_nothing_is_slowed(given):
    silent(comm_slows_compute, given)


COPIES = {
    "grad_copy_ns": 60,
    "exposed_grad_copy_ns": 40,
    "grad_copy_bytes": 4000,
    "n_grad_copies": 8,
}


def test_copies_of_gradients_in_a_world_of_one_are_for_nothing():
    found = fired(ddp_single_gpu, evidence([step(**COPIES, idle_launch_ns=25)]))
    assert found.saving_ns_per_step == 65
    assert found.evidence == {
        "world_size": 1,
        "idle_ns_per_step": 25,
        "grad_copy_ns_per_step": 60,
        "exposed_grad_copy_ns_per_step": 40,
        "grad_copy_span_ns_per_step": 0,
        "grad_copy_bytes_per_step": 4000,
        "grad_copies_per_step": 8,
    }


def test_hidden_copies_are_named_though_they_cost_no_time():
    given = evidence([step(**COPIES | {"exposed_grad_copy_ns": 0})])
    assert fired(ddp_single_gpu, given).saving_ns_per_step == 0


def test_a_world_of_unknown_size_is_taken_for_one_if_backward_is_marked():
    # Inside backward only DDP copies that many tensors in a row; elsewhere it may be an average of weights.
    marked = evidence([step(**COPIES)], world_size=None)
    assert fired(ddp_single_gpu, marked).evidence["world_size"] is None
    silent(ddp_single_gpu, evidence([step(**COPIES, overlap_backward_ns=None)], world_size=None))


def test_a_world_of_one_needs_no_marks():
    fired(ddp_single_gpu, evidence([step(**COPIES, overlap_backward_ns=None)]))


@pytest.mark.parametrize(
    "given",
    [
        evidence([step(**COPIES)], world_size=4),
        evidence(steps(2, **COPIES)),
        evidence([step(exposed=30, **COPIES)]),
        evidence([step()]),
        evidence([step(**COPIES | dict.fromkeys(COPIES))]),
    ],
    ids=["one report of four", "two ranks", "it communicates", "no copies", "copies not recorded"],
)
def test_other_runs_have_no_such_copies(given):
    silent(ddp_single_gpu, given)
