"""Rule compress-gradients: wide gradients, a slow link, and communication that is not hidden."""

from __future__ import annotations

import pytest

from nsyspipe.findings.compress_gradients import compress_gradients
from tests.findings.make import (
    collective,
    evidence,
    fired,
    link,
    not_judged,
    silent,
    step,
    steps,
    unmatched,
)

SHM = [link("shm", "SHM/direct/direct")]
NVLINK = [link("nvlink", "P2P/CUMEM", "NV18")]


def run(length, exposed=None, *, links=SHM, **more):
    """Return a run of two ranks whose all-reduce takes `length`, of which `exposed` (all, unless told) is exposed."""
    shown = length if exposed is None else exposed
    rows = steps(2, exposed=shown, hidden=length - shown)
    return evidence(rows, collective(1, (0, 0), length, **more), links=links)


def test_all_that_is_exposed_is_the_bound():
    found = fired(compress_gradients, run(300))
    assert found.saving_ns_per_step == 300  # bf16 halves it, PowerSGD leaves next to nothing
    assert found.evidence == {
        "link_kind": "shm",
        "link": "SHM through host memory",
        "link_nominal_bytes_per_s": None,
        "nvlink_nominal_bytes_per_s": None,
        "busbw_bytes_per_s": None,
        "busbw_source": None,
        "exposed_transfer_ns_per_step": 300,
        "slowdown_ratio": None,
        "assumed_slowdown_ratio": None,
    }


def test_what_is_hidden_costs_what_it_slows_compute_down_by():
    # 350 hidden, by how much is not known: 0.8 at most, 350 x 0.8 / 1.8.
    found = fired(compress_gradients, run(500, 150))
    assert found.saving_ns_per_step == pytest.approx(150 + 350 * 0.8 / 1.8)


@pytest.mark.parametrize(("length", "fires"), [(100, True), (99, False)])
def test_it_needs_a_tenth_of_step_time(length, fires):
    (fired if fires else silent)(compress_gradients, run(length))


@pytest.mark.parametrize(("datatype", "fires"), [("f64", True), ("bf16", False), (None, False)])
def test_only_wide_types_can_shrink(datatype, fires):
    (fired if fires else silent)(compress_gradients, run(300, datatype=datatype))


def test_a_wide_loss_beside_narrow_gradients_is_no_matter():
    rows = collective(1, (0, 0), 280, datatype="bf16") + collective(1, (300, 300), 320, seq=1)
    silent(compress_gradients, evidence(steps(2, exposed=300), rows, links=SHM))


def test_a_narrow_collective_beside_wide_gradients_does_not_shrink():
    rows = collective(1, (0, 0), 200) + collective(1, (300, 300), 500, datatype="bf16", seq=1)
    found = fired(compress_gradients, evidence(steps(2, exposed=400), rows, links=SHM))
    assert found.saving_ns_per_step == 200  # the 200 in f32


def test_the_norm_of_sharded_gradients_is_no_gradient():
    rows = collective(1, (0, 0), 280, kind="reduce_scatter")
    rows += collective(1, (300, 300), 500, seq=1)
    silent(compress_gradients, evidence(steps(2, exposed=480), rows, links=SHM))


def test_waiting_does_not_shrink():
    # Rank 0 waits 250 of its 300 for rank 1: 50 transfer.
    rows = [step(0, exposed=300, wait=250), step(1, exposed=50)]
    silent(compress_gradients, evidence(rows, collective(1, (0, 250), 300), links=SHM))


def test_where_waiting_is_not_known_all_may_be_transfer():
    rows = steps(2, exposed=300, wait_ns=None, transfer_ns=None)
    given = evidence(rows, unmatched(collective(1, (0, 0), 300)), links=SHM)
    assert fired(compress_gradients, given).saving_ns_per_step == 300


@pytest.mark.parametrize(
    "given",
    [
        run(300, links=NVLINK),
        run(300, 50),
        run(300, kind="all_gather"),
        evidence([step(exposed=300)], collective(1, (0,), 300), links=SHM),
        evidence(steps(2)),
        evidence(steps(2, exposed_comm_ns=None), collective(1, (0, 0), 300), links=SHM),
    ],
    ids=["a fast link", "hidden", "all-gathers", "one rank", "no communication", "not recorded"],
)
def test_what_is_fast_or_hidden_or_something_else_needs_no_compression(given):
    silent(compress_gradients, given)


@pytest.mark.parametrize("links", [None, [], [link("unknown")]])
def test_a_link_of_unknown_speed_cannot_be_judged(links):
    reason = not_judged(compress_gradients, run(300, links=links))
    assert reason.startswith("neither NCCL's log nor message sizes")


def test_a_link_of_unknown_speed_is_no_matter_where_little_is_exposed():
    silent(compress_gradients, run(90, links=None))
