"""Rule ddp-single-gpu: the copies of DDP in a world of one."""

from __future__ import annotations

import pytest

from nsyspipe.findings.ddp_single_gpu import ddp_single_gpu
from tests.findings.make import evidence, fired, silent, step, steps

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
