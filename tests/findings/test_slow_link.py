"""Rule slow-link: what NCCL's log, the topology or the bandwidth that was reached says of the link."""

from __future__ import annotations

import math

import pytest

from nsyspipe.findings.slow_link import slow_link
from tests.findings.make import collective, evidence, fired, link, not_judged, silent, step, steps

SHM = link("shm", "SHM/direct/direct", "NV18", nominal=63e9)
NVLINK = link("nvlink", "P2P/CUMEM", "NV18", nominal=450e9)
H200 = ("NVIDIA H200",)
# NVLink of an H200 promises 450 GB/s; 15 % of that are 67.5 bytes per ns.
PROMISED = 450


def run(links=None, *, transfer=1000, wall=5000, hidden=0, gpu_names=H200, figures=(), **more):
    """Return a run of two ranks whose all-reduce transfers for `transfer` ns."""
    rows = steps(2, wall=wall, exposed=transfer - hidden, hidden=hidden, **dict(figures))
    met = collective(1, (0, 0), transfer, **more.pop("of_collective", {}))
    return evidence(rows, met, links=links, gpu_names=gpu_names, **more)


def sized(per_ns):
    """Return a collective's columns when the payload tells its bus bytes, in bytes per ns of 1000 ns."""
    return {"message_bytes": 16_000_000, "bus_bytes": 1000 * per_ns}


# --- by what NCCL or the topology says ------------------------------------------------------------


def test_shared_memory_is_slow_and_all_that_is_exposed_could_go():
    found = fired(slow_link, run([SHM]))
    assert found.saving_ns_per_step == 1000
    assert found.action == "use NVLink or P2P: data goes over host memory (SHM)"
    assert found.title.endswith("although the GPUs are connected by NV18")
    assert found.evidence == {
        "link_kind": "shm",
        "link": "SHM through host memory, although the GPUs are connected by NV18",
        "link_nominal_bytes_per_s": 63e9,
        "nvlink_nominal_bytes_per_s": 450e9,
        "busbw_bytes_per_s": None,
        "busbw_source": None,
        "nccl_settings": None,
        "exposed_comm_ns_per_step": 1000,
        "transfer_ns_per_step": 1000,
        "slowdown_ratio": None,
        "assumed_slowdown_ratio": None,
    }


def test_what_nvlink_would_still_need_is_no_saving():
    # 45 bytes per ns were reached, a tenth of NVLink's: 100 of the 1000 ns would stay.
    found = fired(slow_link, run([SHM], of_collective=sized(PROMISED // 10)))
    assert found.saving_ns_per_step == 900
    assert (found.evidence["busbw_bytes_per_s"], found.evidence["busbw_source"]) == (
        45e9,
        "payload",
    )


def test_where_most_is_hidden_all_that_is_exposed_could_go():
    # 700 of 1000 hidden: NVLink would need 100, which fit under what hides 700. At 45 GB/s compute is slower by at most
    # 1.6 x (0.03 + 0.47 x log10(45 / 30)).
    found = fired(slow_link, run([SHM], hidden=700, of_collective=sized(PROMISED // 10)))
    most = 1.6 * (0.03 + 0.47 * math.log10(45 / 30))
    assert found.saving_ns_per_step == pytest.approx(300 + 700 * most / (1 + most))


def test_waiting_would_not_go():
    # Rank 0 waits 600 of its 1000 for rank 1: exposed (1000 + 400) / 2 = 700, transfer 400.
    rows = [step(0, exposed=1000, wait=600, wall=5000), step(1, exposed=400, wall=5000)]
    found = fired(slow_link, evidence(rows, collective(1, (0, 600), 1000), links=[SHM]))
    assert found.saving_ns_per_step == 400


@pytest.mark.parametrize(
    ("one", "over"),
    [
        (link("p2p_pcie", "P2P/IPC", "SYS"), "PCIe"),
        (link("net", "NET/Socket/0"), "a network"),
        (link("net", "NET/IB/0", "NV18"), "a network"),
        (link("unknown", None, "SYS"), "something slower"),
        (link("unknown", "NEW/THING", "NODE"), "something slower"),
    ],
    ids=["PCIe", "TCP", "a network inside a host", "PCIe whatever NCCL uses", "unknown transport"],
)
def test_less_than_nvlink_is_slow(one, over):
    assert fired(slow_link, run([one])).action == f"use NVLink or P2P: data goes over {over}"


def test_the_slowest_edge_of_the_ring_counts():
    found = fired(slow_link, run([NVLINK, link("shm", "SHM/direct/direct", edge=(1, 0))]))
    assert found.evidence["link_kind"] == "shm"


def test_nvlink_is_not_slow_even_if_little_came_of_it():
    silent(slow_link, run([NVLINK], of_collective=sized(1)))


def test_a_network_between_hosts_is_all_there_is():
    # The ring of two hosts: NVLink inside each, InfiniBand between them.
    ring = [NVLINK, link("net", "NET/IB/0/GDRDMA", edge=(1, 2))]
    reason = not_judged(slow_link, run(ring, n_hosts=2))
    assert reason == "NCCL's log names a network, and message sizes are needed to tell how fast it is"
    silent(slow_link, run(ring, n_hosts=2, of_collective=sized(PROMISED // 10)))


@pytest.mark.parametrize(("transfer", "fires"), [(250, True), (249, False)])
def test_it_needs_5_percent_of_step_time(transfer, fires):
    (fired if fires else silent)(slow_link, run([SHM], transfer=transfer))


def test_one_rank_or_no_communication_has_no_link():
    silent(slow_link, evidence([step(exposed=500)], collective(1, (0,), 500), links=[SHM]))
    silent(slow_link, evidence(steps(2), links=[SHM]))
    silent(slow_link, evidence(steps(2, comm_ns=None), links=[SHM]))


# --- what was set -----------------------------------------------------------------------------------


def test_settings_that_decide_what_nccl_uses_are_evidence():
    given = {"NCCL_ALGO": "Ring", "NCCL_SHM_DISABLE": "0", "NCCL_P2P_LEVEL": "LOC"}
    found = fired(slow_link, run([SHM], nccl_settings=given))
    assert found.evidence["nccl_settings"] == {"NCCL_P2P_LEVEL": "LOC", "NCCL_SHM_DISABLE": "0"}
    assert fired(slow_link, run([SHM], nccl_settings={})).evidence["nccl_settings"] == {}


@pytest.mark.parametrize(
    ("one", "over"),
    [
        (SHM, "host memory"),
        (link("net", "NET/Socket/0", "NV18"), "a network"),
        (link("unknown", None, "SYS"), "something slower"),
    ],
)
@pytest.mark.parametrize("value", ["1", "0 | 1"])
def test_p2p_that_was_switched_off_is_to_be_switched_on(one, over, value):
    found = fired(slow_link, run([one], nccl_settings={"NCCL_P2P_DISABLE": value}))
    assert found.action == f"unset NCCL_P2P_DISABLE: data goes over {over}"


def test_p2p_that_was_left_on_is_not():
    found = fired(slow_link, run([SHM], nccl_settings={"NCCL_P2P_DISABLE": "0"}))
    assert found.action == "use NVLink or P2P: data goes over host memory (SHM)"


def test_between_hosts_p2p_is_no_way():
    given = run([link("net", "NET/Socket/0")], n_hosts=2, nccl_settings={"NCCL_P2P_DISABLE": "1"})
    assert fired(slow_link, given).action == "use NVLink or P2P: data goes over a network"


# --- by the bandwidth that was reached ------------------------------------------------------------


@pytest.mark.parametrize(("per_ns", "fires"), [(67.4, True), (67.5, False)])
def test_below_15_percent_of_nvlink_it_is_not_nvlink(per_ns, fires):
    (fired if fires else silent)(slow_link, run(of_collective=sized(per_ns)))


def test_bytes_of_copied_gradients_stand_in_for_payloads():
    # 45 000 bytes of gradients per rank and 1000 ns; with two ranks busbw = algbw = 45 bytes per ns.
    found = fired(slow_link, run(figures={"grad_copy_bytes": 45_000}))
    assert found.evidence["busbw_bytes_per_s"] == 45e9
    assert found.evidence["busbw_source"] == "gradient copies"
    assert found.title.endswith("far less bandwidth than NVLink gives")
    assert found.saving_ns_per_step == 900


@pytest.mark.parametrize(("n_bytes", "is_told"), [(2 << 20, True), ((2 << 20) - 1, False)])
def test_fewer_copied_bytes_than_so_many_buckets_hold_are_not_what_was_sent(n_bytes, is_told):
    # Of three all-reduces two are of closed buckets, 1 MiB each at least.
    met = [row for seq in range(3) for row in collective(1, (0, 0), 300, seq=seq)]
    given = evidence(steps(2, exposed=900, grad_copy_bytes=n_bytes), met, links=[SHM])
    found = fired(slow_link, given)
    assert found.evidence["busbw_source"] == ("gradient copies" if is_told else None)


def test_of_four_ranks_half_as_much_again_goes_over_the_bus():
    # 2 x 3/4 of 40 bytes per ns.
    rows = steps(4, wall=5000, exposed=1000, grad_copy_bytes=40_000)
    given = evidence(rows, collective(1, (0,) * 4, 1000), gpu_names=H200)
    assert fired(slow_link, given).evidence["busbw_bytes_per_s"] == 60e9


@pytest.mark.parametrize("per_ns", [1, PROMISED])
def test_ranks_that_are_absent_may_be_what_the_others_wait_for(per_ns):
    not_judged(slow_link, run(world_size=4, of_collective=sized(per_ns)))
    not_judged(slow_link, run(world_size=4, figures={"grad_copy_bytes": 1000 * per_ns}))


def test_between_hosts_a_bandwidth_below_nvlinks_is_no_fault():
    silent(slow_link, run(n_hosts=2, of_collective=sized(10)))


@pytest.mark.parametrize(
    "given",
    [
        run(),
        run(figures={"grad_copy_bytes": 10_000}, of_collective={"datatype": "bf16"}),
        run(figures={"grad_copy_bytes": 10_000}, of_collective={"kind": "all_gather"}),
        run(figures={"grad_copy_bytes": None}),
        run(figures={"grad_copy_bytes": 10_000}, of_collective={"transfer_ns": None}),
        run(gpu_names=("NVIDIA L4",), of_collective=sized(1)),
        run(gpu_names=(), of_collective=sized(1)),
    ],
    ids=[
        "no sizes",
        "compressed, perhaps",
        "not gradients",
        "copies not recorded",
        "not matched",
        "a GPU without NVLink",
        "no GPU name",
    ],
)
def test_without_sizes_or_a_promise_it_cannot_be_judged(given):
    assert not_judged(slow_link, given).startswith("neither NCCL's log nor message sizes")


def test_direct_access_needs_the_topology():
    reason = not_judged(slow_link, run([link("p2p", "P2P/CUMEM")]))
    assert "topology" in reason
    fired(slow_link, run([link("p2p", "P2P/CUMEM")], of_collective=sized(10)))


@pytest.mark.parametrize("path", ["PIX", "PXB", "PHB"])
def test_peer_to_peer_below_a_host_bridge_is_the_best_there_is_without_nvlink(path):
    silent(slow_link, run([link("p2p_pcie", "P2P/IPC", path)]))
    silent(slow_link, run([link("unknown", None, path)]))


def test_small_messages_do_not_tell_how_fast_the_link_is():
    assert not_judged(slow_link, run(of_collective=sized(1) | {"message_bytes": 15_999_999}))


def test_cards_may_have_no_nvlink_at_all():
    cards = ("NVIDIA A100-PCIE-40GB",)
    assert not_judged(slow_link, run(of_collective=sized(1), gpu_names=cards))
