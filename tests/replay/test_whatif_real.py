"""What-if on real captures: what is the same, what is refused (pairs: `test_whatif_pairs`)."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.replay.answer import whatif
from nsyspipe.replay.knobs import Knobs
from nsyspipe.replay.scenarios import opened_replay


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp-4gpu-shm", "ddp-2gpu-straggler", "fsdp-4gpu"])
def test_nothing_changed_is_the_capture(runs, name):
    opened = opened_replay(runs(name))
    captured = runs(name).summary()["step_time_ns"][0].as_py()
    assert opened.predict(Knobs()).step_time_ns == pytest.approx(captured, rel=0.001)
    found = whatif(runs(name), no_wait=True)
    assert found.identity_error_pct < 0.1
    assert (found.limit_step_time_ns or 0.0) <= captured


def test_the_limit_of_a_sharded_run_is_not_known(runs):
    assert whatif(runs("fsdp-4gpu"), no_wait=True).limit_step_time_ns is None
    assert whatif(runs("ddp-4gpu"), no_wait=True).limit_step_time_ns is not None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ddp-4gpu-shm-powersgd", "PowerSGD"),
        ("ddp-1gpu", "the run has 1 rank: nothing is communicated that could be changed"),
    ],
)
def test_powersgd_and_one_gpu_are_refused_whatever_is_asked(runs, name, words):
    (reason,) = {one.refused for one in whatif(runs(name)).scenarios}
    assert words in reason


def test_a_bandwidth_beyond_the_gpus_links_is_named_as_such(runs):
    (found,) = whatif(runs("2gpu-gpt-b25-shm-bf16hook"), bandwidth="900GB/s").scenarios
    said = "bus bandwidth 900 GB/s as given, more than the 450 GB/s of these GPUs' fastest link"
    assert any(one.startswith(said) for one in found.assumptions)
    (found,) = whatif(runs("2gpu-gpt-b25-shm-bf16hook"), bandwidth="450GB/s").scenarios
    assert any(one.startswith("bus bandwidth 450 GB/s as given, within") for one in found.assumptions)
    (found,) = whatif(runs("2gpu-gpt-b25-shm-bf16hook"), bandwidth="1126GB/s").scenarios
    assert found.refused.startswith("no link gives 1,126 GB/s: the fastest that is known, nvlink5, gives 900 GB/s")


def test_a_bf16_hook_is_replayed_but_for_its_buckets(runs):
    # PyTorch's streams take turns: of 28 casts per step, one in two steps is on NCCL's stream.
    found = whatif(runs("2gpu-gpt-b25-shm-bf16hook"))
    assert found.identity_error_pct < 0.5
    by_id = {one.id: one for one in found.scenarios}
    assert by_id["link-nvlink4"].refused is None
    assert by_id["bucket-25"].refused.startswith("a hook compresses the gradients (NCCL is given 0.50")
    assert by_id["gradient-bf16"].refused.startswith("gradients are sent as bf16")


def test_sharded_parameters_have_no_buckets(runs):
    by_id = {one.id: one for one in whatif(runs("fsdp-4gpu")).scenarios}
    assert by_id["bucket-25"].refused.startswith("no all-reduces of gradients alone (sharded")
    assert by_id["link-shm"].refused.startswith("message bytes were not recorded")
    assert by_id["perfect-overlap"].step_time_ns is not None


def test_one_rank_of_four_is_told_what_its_own_copies_cost(real):
    one = nsyspipe.load(str(real / "ddp-4gpu-shm_1.sqlite"))
    found = {row.id: row for row in whatif(one).scenarios}
    assert found["no-grad-copy"].gain_pct == pytest.approx(0.87, abs=0.1)
    assert "for this rank alone" in found["no-grad-copy"].assumptions[0]
    assert found["link-nvlink4"].refused.startswith("1 rank alone is there")


@pytest.mark.parametrize(("name", "mib"), [("ddp-2gpu-bucket100", 100), ("2gpu-gpt-b25", 25)])
def test_the_own_bucket_size_changes_nothing(runs, name, mib):
    n_bytes = 1_226_141_600 if name.startswith("ddp") else None
    found = whatif(runs(name), bucket_mb=mib, gradient_bytes=n_bytes)
    assert found.scenarios[0].step_time_ns == pytest.approx(found.step_time_ns, rel=1e-12)


def test_waits_for_a_bucket_are_no_slow_work(runs):
    # Nearly all of backward is beside communication, and one operation of a hundred waits for a bucket.
    found = whatif(runs("2gpu-gpt-b25-shm"), link="nvlink4")
    compute = runs("2gpu-gpt-b25").summary()["compute_share"][0].as_py() * 25.85e6
    assert found.limit_step_time_ns > compute


def test_a_straggler_of_two_ranks_is_refused_anything_but_balance(runs):
    found = {one.id: one for one in whatif(runs("ddp-2gpu-straggler")).scenarios}
    assert found["no-wait"].refused is None
    assert "one rank alone stands idle 22.4 %" in found["link-shm"].refused


def test_ranks_of_one_report_are_replayed_too(runs):
    found = whatif(runs("ddp-4gpu-onefile"), perfect_overlap=True)
    assert found.scenarios[0].refused is None
    assert found.identity_error_pct < 0.1
