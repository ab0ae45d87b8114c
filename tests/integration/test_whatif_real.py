"""Predictions from real captures against real captures: pairs that differ by what is asked about."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.replay.ask import whatif
from nsyspipe.replay.knobs import Knobs
from nsyspipe.replay.opened import opened_replay

# The model of all captures: its 296 gradients, as the captures without bucket view copy them.
BYTES = 1_226_141_600
BACK = {"bucket_mb": 5000, "gradient_bytes": BYTES}
PAIRS = [
    ("ddp-4gpu-shm", "ddp-4gpu", {"link": "nvlink4"}),
    ("ddp-4gpu", "ddp-4gpu-shm", {"link": "shm"}),
    ("ddp-4gpu-shm", "ddp-4gpu-shm-bucket100", {"bucket_mb": 100, "no_grad_copy": True}),
    ("ddp-4gpu-shm-bucket100", "ddp-4gpu-shm", BACK),
    ("ddp-4gpu", "ddp-4gpu-shm-bucket100", {"bucket_mb": 100, "no_grad_copy": True, "link": "shm"}),
    ("ddp-4gpu-shm-bucket100", "ddp-4gpu", BACK | {"link": "nvlink4"}),
    ("ddp-2gpu-straggler", "ddp-2gpu-bucket100", {"no_wait": True, "no_grad_copy": True}),
    ("ddp-2gpu", "ddp-2gpu-bucket100", {"bucket_mb": 100, "no_grad_copy": True}),
    ("ddp-2gpu-bucket100", "ddp-2gpu", BACK),
]


@pytest.fixture(scope="module")
def loaded(real):
    """Return a function that loads each run once."""
    runs = {}

    def load(name):
        if name not in runs:
            runs[name] = nsyspipe.load(str(real / f"{name}_?.sqlite"))
        return runs[name]

    return load


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "changes"), PAIRS, ids=lambda one: one if isinstance(one, str) else ""
)
def test_what_was_predicted_is_what_was_measured(loaded, before, after, changes):
    found = whatif(loaded(before), **changes)
    (one,) = found.scenarios
    measured = loaded(after).summary()["step_time_ns"][0].as_py()
    assert one.refused is None
    assert one.step_time_ns == pytest.approx(measured, rel=0.04)
    assert one.low_ns <= measured <= one.high_ns


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["ddp-4gpu-shm", "ddp-4gpu", "ddp-2gpu-straggler", "ddp-4gpu-shm-bucket100", "fsdp-4gpu"],
)
def test_nothing_changed_is_the_capture(loaded, name):
    opened = opened_replay(loaded(name))
    captured = loaded(name).summary()["step_time_ns"][0].as_py()
    assert opened.replay.predict(Knobs()).step_time_ns == pytest.approx(captured, rel=0.001)
    found = whatif(loaded(name), no_wait=True)
    assert found.identity_error_pct < 0.1
    assert (found.limit_step_time_ns or 0.0) <= captured


def test_the_limit_of_a_sharded_run_is_not_known(loaded):
    assert whatif(loaded("fsdp-4gpu"), no_wait=True).limit_step_time_ns is None
    assert whatif(loaded("ddp-4gpu"), no_wait=True).limit_step_time_ns is not None


def test_powersgd_is_refused_whatever_is_asked(loaded):
    found = whatif(loaded("ddp-4gpu-shm-powersgd"))
    assert {one.refused is None for one in found.scenarios} == {False}
    assert "PowerSGD" in found.scenarios[0].refused


def test_sharded_parameters_have_no_buckets(loaded):
    by_id = {one.id: one for one in whatif(loaded("fsdp-4gpu")).scenarios}
    assert by_id["bucket-25"].refused.startswith("no all-reduces of gradients alone (sharded")
    assert by_id["link-shm"].refused.startswith("message bytes were not recorded")
    assert by_id["perfect-overlap"].step_time_ns is not None


def test_one_gpu_is_refused(real):
    found = whatif(nsyspipe.load(str(real / "ddp-1gpu_0.sqlite")))
    assert {one.refused for one in found.scenarios} == {
        "the run has 1 rank: nothing is communicated that could be changed"
    }


def test_ranks_of_one_report_are_replayed_too(real):
    found = whatif(nsyspipe.load(str(real / "ddp-4gpu-onefile.sqlite")), perfect_overlap=True)
    assert found.scenarios[0].refused is None
    assert found.identity_error_pct < 0.1
