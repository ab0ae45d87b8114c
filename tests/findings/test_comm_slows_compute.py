"""Rule comm-slows-compute: equal kernels with and without communication beside them."""

from __future__ import annotations

import pytest

from nsyspipe.findings.comm_slows_compute import comm_slows_compute
from tests.findings.make import evidence, fired, kernel, not_judged, silent, step, steps


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
