"""What-if on real captures: what is the same, what is refused, and how far predictions are from what was measured."""

import statistics

import pytest

import nsyspipe
from nsyspipe.replay.answer import whatif
from nsyspipe.replay.knobs import Knobs
from nsyspipe.replay.opening import opened_replay
from tests.conftest import REAL
from tests.golden.words import figures
from tests.pairs import MORE_CHANGES, ONE_CHANGE, measured

pytestmark = pytest.mark.usefixtures("opened_once")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp-4gpu-shm", "ddp-2gpu-straggler", "fsdp-4gpu"])
def test_nothing_changed_is_the_capture(runs, name):
    opened = opened_replay(runs(name))
    captured = runs(name).summary()["step_time_ns"][0].as_py()
    assert opened.predict(Knobs()).step_time_ns == pytest.approx(captured, rel=0.001)
    found = whatif(runs(name), no_wait=True)
    assert found.identity_error_pct < 0.1
    assert (found.limit_step_time_ns or 0.0) <= captured


SHARDED = "2gpu-fsdp2"
HOOK = "2gpu-gpt-b25-shm-bf16hook"
# Scenarios by whether they are refused; the others are not looked at.
REFUSED: dict[str, dict[str, bool]] = {
    "ddp-4gpu-shm-powersgd": {"no-wait": True, "link-shm": True},
    "ddp-1gpu": {"no-wait": True, "link-shm": True},
    # PyTorch's streams take turns: of 28 casts per step, one in two steps is on NCCL's stream.
    HOOK: {"link-nvlink4": False, "bucket-25": True, "gradient-bf16": True},
    "fsdp-4gpu": {
        "bucket-25": True,
        "gradient-bf16": True,
        "link-shm": True,
        "perfect-overlap": False,
    },
    "ddp-2gpu-straggler": {"no-wait": False, "link-shm": True},
    "ddp-4gpu-onefile": {"perfect-overlap": False},
    # Of these one host is late in most steps.
    SHARDED: {"no-wait": True, "link-nvlink4": True},
    "2gpu-tp": {"no-wait": False, "link-nvlink4": True, "perfect-overlap": True},
    "2gpu-moe": {"no-wait": True, "link-nvlink4": True},
    "2gpu-graph-node": {
        "no-wait": False,
        "perfect-overlap": True,
        "bucket-25": True,
        "link-shm": True,
    },
    "2gpu-graph": {"no-wait": True},
    "2gpu-pp": {"no-wait": True},
}


OTHER_LINKS = {"nvlink5": "elsewhere", "infiniband-ndr": "elsewhere", "shm": "here"}
WITH_TOPOLOGY = {"topology": REAL / "logs" / "topo-4gpu.txt"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "files", "places"),
    [
        # A capture over NVLink 4 of H200s; over host memory, where nothing says that NVLink
        # connects them; where the topology does.
        ("2gpu-gpt-b25", {}, {"nvlink4": "here", "pcie5x16": "here", **OTHER_LINKS}),
        (
            "ddp-4gpu-shm",
            {},
            {"nvlink4": "unknown", "pcie5x16": "unknown", "pcie4x16": "here", **OTHER_LINKS},
        ),
        ("ddp-4gpu-shm", WITH_TOPOLOGY, {"nvlink4": "here", "pcie5x16": "unknown", **OTHER_LINKS}),
    ],
)
def test_a_link_that_the_run_or_its_machine_has_is_not_of_another_one(runs, name, files, places):
    run = runs(name, **files)
    for link, place in places.items():
        for more in ({}, {"bucket_mb": 25}):  # whatever else is changed
            (one,) = whatif(run, link=link, **more).scenarios
            assert (link, one.link_place) == (link, place), more


@pytest.mark.slow
@pytest.mark.parametrize(("name", "refused"), REFUSED.items(), ids=REFUSED)
def test_what_is_answered_and_what_is_not(runs, name, refused, worded):
    found = whatif(runs(name))
    reasons = {one.id: one.refused for one in found.scenarios}
    assert {change: reasons[change] is not None for change in refused} == refused
    worded(f"{change}: {reasons[change]}" for change, is_refused in refused.items() if is_refused)
    if False in refused.values():
        assert found.identity_error_pct < (0.5 if name == HOOK else 0.1)
    elif name not in {SHARDED, "2gpu-moe"}:
        assert len({*reasons.values()}) == 1  # one reason for all


def test_a_sharded_capture_gets_no_scenario_of_prefetching(runs):
    assert "prefetch" not in {one.id for one in whatif(runs(SHARDED)).scenarios}


@pytest.mark.parametrize(("rate", "of_links"), [(900, "450"), (450, None), (1126, "900")])
def test_a_bandwidth_beyond_the_gpus_links_is_named_as_such(runs, rate, of_links, worded):
    (found,) = whatif(runs(HOOK), bandwidth=f"{rate}GB/s").scenarios
    # What these GPUs' links give, and the fastest that there is.
    assert (found.refused is not None) == (rate > 900)
    said = found.refused or "\n".join(found.assumptions)
    worded(said)
    assert {f"{rate:,}", of_links or f"{rate:,}"} <= figures(said)


def test_one_rank_of_four_is_told_what_its_own_copies_cost(real):
    (found,) = whatif(
        nsyspipe.load(str(real / "ddp-4gpu-shm_1.sqlite")), no_grad_copy=True
    ).scenarios
    assert found.gain_pct == pytest.approx(0.87, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mib"), [("ddp-2gpu-bucket100", 100), ("2gpu-gpt-b25", 25)])
def test_the_own_bucket_size_changes_nothing(runs, name, mib):
    found = whatif(
        runs(name), bucket_mb=mib, gradient_bytes=1_226_141_600 if name.startswith("ddp") else None
    )
    assert found.scenarios[0].step_time_ns == pytest.approx(found.step_time_ns, rel=1e-12)


@pytest.mark.slow
def test_the_number_of_a_rank_changes_no_prediction(runs, real):
    name, exchanged = "2gpu-gpt-b25-shm", "2gpu-gpt-b25-shm_0.sqlite=1,2gpu-gpt-b25-shm_1.sqlite=0"
    other = whatif(nsyspipe.load(real / f"{name}_*.sqlite", jobs=1, rank_map=exchanged))
    expected = {one.id: one.step_time_ns for one in whatif(runs(name)).scenarios}
    assert {one.id: one.step_time_ns for one in other.scenarios} == pytest.approx(
        expected, rel=1e-12
    )


def test_waits_for_a_bucket_are_no_slow_work(runs):
    # Nearly all of backward is beside communication, and one operation of a hundred waits for a
    # bucket.
    found = whatif(runs("2gpu-gpt-b25-shm"), link="nvlink4")
    assert found.limit_step_time_ns > (
        runs("2gpu-gpt-b25").summary()["compute_share"][0].as_py() * 25.85e6
    )


# --- pairs ----------------------------------------------------------------------------------------
@pytest.mark.slow
def test_what_was_predicted_is_what_was_measured(captures):
    chosen = [measured(one, captures) for one in ONE_CHANGE if one.knobs is not None]
    more = [measured(one, captures) for one in MORE_CHANGES if one.knobs is not None]
    for most, rows in ((0.05, chosen), (0.06, more)):
        assert {one.pair.name: one.refused for one in rows if one.refused is not None} == {}, most
        assert {one.pair.name: one.error for one in rows if abs(one.error) > most} == {}, most
    for one in chosen + more:
        assert one.low_ns <= one.predicted_ns <= one.high_ns, one.pair.name
        # What no change of the communication can beat; balanced ranks and copies left out can.
        if not {"no_wait", "no_grad_copy"} & set(one.pair.knobs):
            assert one.low_ns >= one.limit_ns * (1 - 1e-9), one.pair.name
            assert one.measured_ns > one.limit_ns, one.pair.name
    assert statistics.median(abs(one.error) for one in chosen) <= 0.01
    assert statistics.median(abs(one.error) for one in more) <= 0.02
    assert statistics.mean(one.is_inside for one in chosen) >= 0.9
    assert statistics.mean(one.is_inside for one in chosen + more) >= 0.9
    assert statistics.median(one.half_width for one in chosen) <= 0.03
    # A limit is what the device computes without communication beside it, seen from either capture.
    limits = {one.pair.name: one.limit_ns for one in chosen}
    assert limits["2gpu-gpt-b25-shm->2gpu-gpt-b25"] == pytest.approx(
        limits["2gpu-gpt-b25->2gpu-gpt-b25-shm"], rel=0.04
    )
