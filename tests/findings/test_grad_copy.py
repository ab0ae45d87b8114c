"""Rule grad-copy: DDP copies gradients out of their buckets."""

from __future__ import annotations

import pytest

from nsyspipe.findings.grad_copy import grad_copy
from tests.findings.make import collective, evidence, fired, silent, step

WALL = 100_000
COPIES = {"grad_copy_bytes": 16_000_000, "n_grad_copies": 8}
ONE = collective(1, (500, 500), 800)


def run(exposed, rows=ONE, *, copied=None, **more):
    figures = {"exposed_grad_copy_ns": exposed, "grad_copy_ns": copied or exposed} | COPIES
    figures |= {"grad_copy_span_ns": copied or exposed} | more
    return evidence([step(rank, wall=WALL, exposed=300, **figures) for rank in range(2)], rows)


def test_the_copies_and_the_gaps_between_them_are_the_saving():
    found = fired(grad_copy, run(400, copied=900, grad_copy_span_ns=990))
    assert found.saving_ns_per_step == 990
    assert found.evidence == {
        "grad_copy_ns_per_step": 900,
        "exposed_grad_copy_ns_per_step": 400,
        "grad_copy_span_ns_per_step": 990,
        "grad_copy_bytes_per_step": 16e6,
        "grad_copies_per_step": 8,
    }
    assert "gradient_as_bucket_view=True" in found.action


@pytest.mark.parametrize(("exposed", "fires"), [(100, True), (99, False)])
def test_it_needs_a_thousandth_of_step_time(exposed, fires):
    (fired if fires else silent)(grad_copy, run(exposed))


def test_it_is_a_mean_over_steps_of_the_rank_with_most():
    rows = [
        step(rank, number, wall=WALL, **COPIES)
        | dict.fromkeys(("exposed_grad_copy_ns", "grad_copy_span_ns"), 900 if (rank, number) == (1, 2) else 0)
        for rank in range(2)
        for number in (1, 2)
    ]
    assert fired(grad_copy, evidence(rows, ONE)).saving_ns_per_step == 450


def test_copies_of_less_than_16_mb_need_half_a_per_cent_of_step_time():
    silent(grad_copy, run(499, grad_copy_bytes=15_999_999))
    fired(grad_copy, run(500, grad_copy_bytes=15_999_999))
    fired(grad_copy, run(100, grad_copy_bytes=None))


@pytest.mark.parametrize(
    "given",
    [
        run(5000, []),
        run(5000, collective(1, (500, 500), 800, kind="broadcast")),
        run(5000, ONE + collective(1, (900, 900), 990, kind="reduce_scatter", seq=1)),
        run(None),
        run(0, copied=5000),
    ],
    ids=["no collectives", "no all-reduce", "sharded", "copies not recorded", "all hidden"],
)
def test_without_all_reduces_or_exposed_copies_there_is_nothing_to_say(given):
    silent(grad_copy, given)


def test_sizes_that_were_not_recorded_are_null():
    assert fired(grad_copy, run(400, grad_copy_bytes=None)).evidence["grad_copy_bytes_per_step"] is None
